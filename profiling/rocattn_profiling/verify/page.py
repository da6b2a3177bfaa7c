"""The page and the JSON of `rocattn verify`: outcomes by family, ULPs beside the naive program's, failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

import rocattn
from rocattn_profiling.verify.cases import FAMILIES
from rocattn_profiling.verify.outcomes import YARDSTICK, symptoms
from rocattn_profiling.verify.ulps import ULP_EDGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn_profiling.verify.outcomes import Agreement, CaseOutcome, Verification
    from rocattn_profiling.verify.ulps import TensorErrors

SCHEMA = 1
WORST = 100
"""Tensors listed on the page, worst first; all are in verify.json."""


class FailedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One wrong outcome, with the command that shows it again."""

    case: str
    backend: str
    family: str
    fault: str
    symptom: str
    command: str


@dataclass(frozen=True, slots=True)
class PageCell:
    """One family on one backend: how many cases ran and failed, and the worst error over what is allowed."""

    ran: int
    wrong: int
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """How far elements of one kind of tensor are from float64: shares of the bins of `ULP_EDGES`, and beyond."""

    dtype: str
    tensors: str
    program: str
    elements: int
    shares: list[float]


@dataclass(slots=True)
class VerifyReport:
    """Everything the page, the tables and the files show.

    Attributes:
        unavailable: Backends that cannot run here, with the reason.
        unchecked: Of the backends that were asked for by name, those on which no case ran, with the reason.
    """

    level: str
    seed: int
    cases: int
    outcomes: list[CaseOutcome]
    agreements: list[Agreement]
    unavailable: dict[str, str]
    unchecked: dict[str, str]
    stand_ins: list[str]
    failures: list[FailedCase]
    symptoms: dict[str, list[str]]
    started: float
    seconds: float
    backends: list[str] = field(default_factory=list)
    families: dict[str, dict[str, PageCell]] = field(default_factory=dict)
    histograms: list[Histogram] = field(default_factory=list)
    worst: list[tuple[CaseOutcome, TensorErrors]] = field(default_factory=list)

    @property
    def ran(self) -> int:
        """How many outcomes are of cases that ran."""
        return sum(outcome.ran for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """How many are wrong."""
        return len(self.failures)

    @property
    def skipped(self) -> int:
        """How many are of cases that a backend does not support."""
        return len(self.outcomes) - self.ran

    def margin(self, backend: str) -> str:
        """Return how many cases a backend ran, and how near it came to a limit."""
        cells = [row[backend] for row in self.families.values() if backend in row]
        worst = max((cell.ratio for cell in cells if cell.ratio is not None), default=0.0)
        ran = sum(cell.ran for cell in cells)
        return (
            f"{ran} cases; at worst {100 * worst:.0f} % of the allowed error" if ran else "supports none of the cases"
        )


def build(
    found: Verification, *, cases: int, level: str, seed: int, unavailable: dict[str, str], stand_ins: list[str],
    again: Callable[[CaseOutcome], str], started: float, seconds: float, named: Sequence[str] = (),
) -> VerifyReport:  # fmt: skip
    """Lay out what a run found; ``again`` gives the command that repeats an outcome."""
    wrong = sorted((o for o in found.outcomes if not o.ok), key=lambda o: (not o.symptom, o.backend, _order(o.family)))
    failures = [
        FailedCase(
            case=o.case, backend=o.backend, family=o.family, fault=o.fault, symptom=o.symptom, command=again(o)
        )
        for o in wrong
    ]  # fmt: skip
    backends = [name for name in dict.fromkeys(o.backend for o in found.outcomes) if name != YARDSTICK]
    tensors = [(o, tensor) for o in found.outcomes for tensor in o.tensors]
    return VerifyReport(
        level, seed, cases, found.outcomes, list(found.agreements.values()), unavailable,
        _unchecked(found.outcomes, named, unavailable), stand_ins, failures,
        symptoms(found.outcomes), started, seconds, backends, _families(found.outcomes, backends),
        _histograms(found.outcomes), sorted(tensors, key=lambda pair: -pair[1].ratio)[:WORST],
    )  # fmt: skip


def to_json(report: VerifyReport) -> dict[str, Any]:
    """Return the report as JSON-ready values."""
    return {
        "schema": SCHEMA,
        "rocattn": rocattn.__version__,
        "level": report.level,
        "seed": report.seed,
        "cases": report.cases,
        "ran": report.ran,
        "failed": report.failed,
        "skipped": report.skipped,
        "seconds": round(report.seconds, 1),
        "unavailable": report.unavailable,
        "unchecked": report.unchecked,
        "stand_ins": report.stand_ins,
        "symptoms": report.symptoms,
        "failures": msgspec.to_builtins(report.failures),
        "agreements": msgspec.to_builtins(report.agreements),
        "ulp_edges": list(ULP_EDGES),
        "outcomes": msgspec.to_builtins(report.outcomes),
    }


def to_html(report: VerifyReport) -> str:
    """Return the page: one file, without scripts and without links to other pages."""
    from rocattn_profiling.pages.render import standalone

    bins = [f"≤ {edge:g}" for edge in ULP_EDGES] + [f"> {ULP_EDGES[-1]:g}"]
    return standalone(
        "verify.html.j2", "Verification", int(report.started * 1000), report=report, about=FAMILIES, bins=bins
    )


def _unchecked(outcomes: Sequence[CaseOutcome], named: Sequence[str], unavailable: dict[str, str]) -> dict[str, str]:
    ran = {outcome.backend for outcome in outcomes if outcome.ran}
    refused = {outcome.backend: outcome.skipped for outcome in reversed(outcomes)}  # the first one's reason
    reasons = refused | unavailable
    return {name: reasons.get(name, "no case was chosen") for name in dict.fromkeys(named) if name not in ran}


def _order(family: str) -> int:
    return list(FAMILIES).index(family)


def _families(outcomes: Sequence[CaseOutcome], backends: Sequence[str]) -> dict[str, dict[str, PageCell]]:
    found: dict[str, dict[str, PageCell]] = {}
    for family in FAMILIES:
        for name in backends:
            mine = [o for o in outcomes if o.family == family and o.backend == name and o.ran]
            if mine:
                ratios = [o.check.ratio for o in mine if o.check is not None]
                cell = PageCell(len(mine), sum(not o.ok for o in mine), max(ratios, default=None))
                found.setdefault(family, {})[name] = cell
    return found


def _histograms(outcomes: Sequence[CaseOutcome]) -> list[Histogram]:
    """Add up the ULPs of outputs, LSEs and gradients by dtype: the backends', then the naive program's, once a case.

    Finite differences have errors of many ULPs of their own: what is compared with them is left out.
    """
    sums: dict[tuple[str, str], dict[str, list[int]]] = {}
    counted = set()
    for outcome in outcomes:
        if outcome.family == "gradients":
            continue
        for tensor in outcome.tensors:
            kind = tensor.what if tensor.what in {"out", "lse"} else "gradients"
            group = sums.setdefault((tensor.dtype, kind), {})
            _add(group, outcome.backend, tensor.mine.ulps)
            if (outcome.case, tensor.what) not in counted:
                counted.add((outcome.case, tensor.what))
                _add(group, "naive program", tensor.naive.ulps)
    made = []
    for (dtype, kind), programs in sorted(sums.items()):
        for program, counts in sorted(programs.items(), key=lambda item: item[0] == "naive program"):
            total = sum(counts)
            if total:
                made.append(Histogram(dtype, kind, program, total, [count / total for count in counts]))
    return made


def _add(group: dict[str, list[int]], program: str, counts: Sequence[int]) -> None:
    kept = group.setdefault(program, [0] * (len(ULP_EDGES) + 1))
    group[program] = [a + b for a, b in zip(kept, counts, strict=True)]
