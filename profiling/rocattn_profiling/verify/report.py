"""Output of `rocattn verify`: tables and failures in the terminal, an HTML page, JSON, and JUnit XML for CI servers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET  # only writes, never parses

import msgspec

import rocattn
from rocattn.gpu.arch import TESTED
from rocattn.gpu.reasons import STAND_IN_ARCH
from rocattn_profiling.base import console
from rocattn_profiling.base.markup import xml
from rocattn_profiling.base.reasons import Coverage, NotCompared
from rocattn_profiling.verify.cases import FAMILIES
from rocattn_profiling.verify.outcomes import (
    ULP_EDGES,
    YARDSTICK,
    Agreement,
    CaseOutcome,
    TensorErrors,
    Verification,
    symptoms,
)

SCHEMA = 1
WORST = 100
"""Number of tensors listed on the page, worst first; verify.json lists all."""
_FAULT = 400  # printed characters of a fault: the stand-in GPU's first complaint; the others follow from it


class FailedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong outcome, with the command that repeats it."""

    case: str
    backend: str
    family: str
    fault: str
    symptom: str
    command: str


@dataclass(frozen=True, slots=True)
class PageCell:
    """A family on a backend: cases run, cases failed, and the worst ratio of error to allowed error."""

    ran: int
    wrong: int
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distances of a kind of tensor's elements from float64: fractions per bin of `ULP_EDGES`, and beyond."""

    dtype: str
    tensors: str
    program: str
    elements: int
    shares: list[float]


@dataclass(slots=True)
class VerifyReport:
    """The data of the page, the tables and the files.

    Attributes:
        unavailable: Backends that cannot run here, with the reason.
        unchecked: Backends requested by name on which no case ran, with the reason.
        architectures: Architecture of each backend that runs on a GPU or its stand-in.
    """

    level: str
    seed: int
    cases: int
    outcomes: list[CaseOutcome]
    agreements: list[Agreement]
    unavailable: dict[str, str]
    unchecked: dict[str, str]
    stand_ins: list[str]
    architectures: dict[str, str]
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
        """Number of outcomes of cases that ran."""
        return sum(outcome.ran for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """Number of wrong outcomes."""
        return len(self.failures)

    @property
    def skipped(self) -> int:
        """Number of outcomes of cases that the backend does not support."""
        return len(self.outcomes) - self.ran

    @property
    def coverage(self) -> Coverage:
        """How much was checked, and which backends were not; those requested by name are needed."""
        lacking = self.unavailable | self.unchecked
        return Coverage(
            compared=self.ran,
            not_compared=tuple(
                NotCompared(what=name, code="unavailable" if name in self.unavailable else "unsupported",
                            text=reason, needed=name in self.unchecked)
                for name, reason in lacking.items()
            ),
        )  # fmt: skip

    def margin(self, backend: str) -> str:
        """Return how many cases a backend ran, and its worst percentage of the allowed error."""
        cells = [row[backend] for row in self.families.values() if backend in row]
        worst = max((cell.ratio for cell in cells if cell.ratio is not None), default=0.0)
        ran = sum(cell.ran for cell in cells)
        return (
            f"{ran} cases; at worst {100 * worst:.0f} % of the allowed error" if ran else "supports none of the cases"
        )


def build(
    result: Verification, *, cases: int, level: str, seed: int, unavailable: dict[str, str], stand_ins: list[str],
    architectures: dict[str, str],
    again: Callable[[CaseOutcome], str], started: float, seconds: float, named: Sequence[str] = (),
) -> VerifyReport:  # fmt: skip
    """Build the report of a run; ``again`` returns the command that repeats an outcome."""
    wrong = sorted((o for o in result.outcomes if not o.ok), key=lambda o: (not o.symptom, o.backend, _order(o.family)))
    failures = [
        FailedCase(case=o.case, backend=o.backend, family=o.family, fault=o.fault, symptom=o.symptom, command=again(o))
        for o in wrong
    ]
    backends = [name for name in dict.fromkeys(o.backend for o in result.outcomes) if name != YARDSTICK]
    tensors = [(o, tensor) for o in result.outcomes for tensor in o.tensors]
    return VerifyReport(
        level, seed, cases, result.outcomes, list(result.agreements.values()), unavailable,
        _unchecked(result.outcomes, named, unavailable), stand_ins, architectures, failures,
        symptoms(result.outcomes), started, seconds, backends, _families(result.outcomes, backends),
        _histograms(result.outcomes), sorted(tensors, key=lambda pair: -pair[1].ratio)[:WORST],
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
        "not_compared": msgspec.to_builtins(report.coverage.not_compared),
        "stand_ins": report.stand_ins,
        "architectures": report.architectures,
        "symptoms": report.symptoms,
        "failures": msgspec.to_builtins(report.failures),
        "agreements": msgspec.to_builtins(report.agreements),
        "ulp_edges": list(ULP_EDGES),
        "outcomes": msgspec.to_builtins(report.outcomes),
    }


def to_html(report: VerifyReport) -> str:
    """Return the page: one file without scripts or links to other pages."""
    from rocattn_profiling.pages.render import standalone

    bins = [f"≤ {edge:g}" for edge in ULP_EDGES] + [f"> {ULP_EDGES[-1]:g}"]
    return standalone(
        "verify.html.j2", "Verification", int(report.started * 1000), report=report, about=FAMILIES, bins=bins
    )


def _unchecked(outcomes: Sequence[CaseOutcome], named: Sequence[str], unavailable: dict[str, str]) -> dict[str, str]:
    ran = {outcome.backend for outcome in outcomes if outcome.ran}
    refused = {outcome.backend: outcome.skipped for outcome in reversed(outcomes)}  # the first outcome's reason
    reasons = refused | unavailable
    return {name: reasons.get(name, "no case was chosen") for name in dict.fromkeys(named) if name not in ran}


def _order(family: str) -> int:
    return list(FAMILIES).index(family)


def _families(outcomes: Sequence[CaseOutcome], backends: Sequence[str]) -> dict[str, dict[str, PageCell]]:
    by_family: dict[str, dict[str, PageCell]] = {}
    for family in FAMILIES:
        for name in backends:
            mine = [o for o in outcomes if o.family == family and o.backend == name and o.ran]
            if mine:
                ratios = [o.check.ratio for o in mine if o.check is not None]
                cell = PageCell(len(mine), sum(not o.ok for o in mine), max(ratios, default=None))
                by_family.setdefault(family, {})[name] = cell
    return by_family


def _histograms(outcomes: Sequence[CaseOutcome]) -> list[Histogram]:
    """Add up the ULPs of outputs, LSEs and gradients by dtype: the backends', then the naive program's once per case.

    The family "gradients" is excluded, since finite differences themselves have errors of many ULPs.
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
    histograms = []
    for (dtype, kind), programs in sorted(sums.items()):
        for program, counts in sorted(programs.items(), key=lambda item: item[0] == "naive program"):
            total = sum(counts)
            if total:
                histograms.append(Histogram(dtype, kind, program, total, [count / total for count in counts]))
    return histograms


def _add(group: dict[str, list[int]], program: str, counts: Sequence[int]) -> None:
    kept = group.setdefault(program, [0] * (len(ULP_EDGES) + 1))
    group[program] = [a + b for a, b in zip(kept, counts, strict=True)]


def print_tables(report: VerifyReport) -> None:
    """Print the worst ratio of error to allowed error, by family and by option."""
    outcomes = [outcome for outcome in report.outcomes if outcome.backend in report.backends]
    families = list(dict.fromkeys(outcome.family for outcome in outcomes))
    _table(report, "family", families, lambda outcome: [outcome.family])
    options = sorted({option for outcome in outcomes for option in outcome.options})
    _table(report, "option", options, lambda outcome: outcome.options)


def _table(
    report: VerifyReport, title: str, groups: list[str], groups_of: Callable[[CaseOutcome], Iterable[str]]
) -> None:
    rows = []
    for group in groups:
        cells = []
        for name in report.backends:
            mine = [o for o in report.outcomes if o.backend == name and o.ran and group in groups_of(o)]
            cells += [str(len(mine)), worst(mine)]
        rows.append([group, *cells])
    if rows:
        columns = [column for name in report.backends for column in ("cases", name)]
        console.print_table("worst error / allowed error (largest absolute error)", [title, *columns], rows)


def worst(outcomes: list[CaseOutcome]) -> str:
    """Return the worst ratio and the largest error of the outcomes."""
    if any(outcome.error for outcome in outcomes):
        return "raised"
    checks = [outcome.check for outcome in outcomes if outcome.check is not None]
    if not checks:
        return "-"
    if any(check.not_finite for check in checks):
        return "NaN or inf"
    text = f"{max(c.ratio for c in checks):.2g} ({max(c.max_abs_error for c in checks):.1e})"
    return f"{text} WRONG" if any(outcome.problem for outcome in outcomes) else text


def print_failures(report: VerifyReport, limit: int) -> None:
    """Print unchecked backends, the failures' symptoms, and a line with the command for each of the worst."""
    for name, reason in (report.unavailable | report.unchecked).items():
        asked = " (requested with --backend: status 3)" if name in report.unchecked else ""
        console.say(f"not checked: {name}{asked}: {reason}")
    for backend, lines in report.symptoms.items():
        for line in lines:
            console.say(f"{backend}: {line}")
    printed: dict[str, str] = {}
    for failure in report.failures[:limit]:
        looks = f"; looks like: {failure.symptom}" if failure.symptom else ""
        fault = failure.fault
        if len(fault) > _FAULT:
            begins = textwrap.shorten(fault, _FAULT, placeholder=" …")
            first = printed.setdefault(begins, failure.case)
            fault = (
                f"{begins if first == failure.case else f'as in {first}'} ({len(fault):,} characters in verify.json)"
            )
        console.say(f"WRONG {failure.backend} {failure.case}: {fault}{looks}; again: {failure.command}")
    if len(report.failures) > limit:
        console.say(f"… and {len(report.failures) - limit} more, in verify.json and index.html")


def devices(report: VerifyReport) -> list[str]:
    """Return the architecture that the cases ran as, for each backend that has one."""
    return [
        f"{name}: the stand-in for {arch}, 1 of {len(TESTED)} architectures ({STAND_IN_ARCH} picks another)"
        if name in report.stand_ins
        else f"{name}: {arch}"
        for name, arch in report.architectures.items()
    ]


def to_xml(report: VerifyReport) -> str:
    """Return the report as JUnit XML, with the attributes of the schema of Jenkins' xUnit plugin.

    Each backend is a suite; a test's class is its family and its name the case's label. A backend requested by name
    that ran no case is one error.
    """
    root = ET.Element("testsuites", name="rocattn verify", time=f"{report.seconds:.3f}")
    commands = {(failure.case, failure.backend): failure for failure in report.failures}
    for backend in dict.fromkeys(outcome.backend for outcome in report.outcomes):
        mine = [outcome for outcome in report.outcomes if outcome.backend == backend]
        counts = {
            "tests": len(mine),
            "failures": sum(not o.ok and not o.error for o in mine),
            "errors": sum(bool(o.error) for o in mine),
            "skipped": sum(not o.ran for o in mine),
        }
        seconds = f"{sum(o.seconds for o in mine):.3f}"
        numbers = {key: str(count) for key, count in counts.items()}
        suite = ET.SubElement(root, "testsuite", {"name": xml(backend), "time": seconds} | numbers)
        for outcome in mine:
            test = ET.SubElement(
                suite, "testcase", classname=f"{xml(backend)}.{xml(outcome.family)}", name=xml(outcome.case),
                time=f"{outcome.seconds:.3f}",
            )  # fmt: skip
            _add_result(test, outcome)
            if (failure := commands.get((outcome.case, backend))) is not None:
                test[0].text = xml(f"{failure.fault}\n{failure.symptom}\nagain: {failure.command}\n")
    for backend, reason in report.unchecked.items():
        numbers = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
        suite = ET.SubElement(root, "testsuite", {"name": f"{xml(backend)}: not checked", "time": "0.000"} | numbers)
        test = ET.SubElement(suite, "testcase", classname=xml(backend), name="requested with --backend", time="0.000")
        ET.SubElement(test, "error", message=xml(f"not checked: {reason}"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_result(test: ET.Element, outcome: CaseOutcome) -> None:
    if not outcome.ran:
        ET.SubElement(test, "skipped", message=xml(outcome.skipped))
    elif outcome.error:
        ET.SubElement(test, "error", message=xml(outcome.error))
    elif not outcome.ok:
        ET.SubElement(test, "failure", message=xml(outcome.symptom or outcome.fault))
