"""Results of `rocattn verify`: an outcome per case and backend, errors in ULPs, distances between backends."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn_profiling.measure.records import Check
from rocattn_profiling.verify.cases import VerifyCase
from rocattn_profiling.verify.symptoms import KnownMistake

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn_profiling.workloads.accuracy import AccuracyVerdict

YARDSTICK = "yardstick"
"""Replaces the backend in the outcome of a case whose float64 reference breaks the contract."""

_EXACT = 1e300  # larger ratios represent inf, which JSON lacks
ULP_EDGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0)
"""Upper edges of the histogram's bins; a correctly rounded result is within 0.5. The last bin counts the rest."""
# Mantissa bits, and the exponent of the smallest normal number.
_FORMATS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022)}
_WORST = sys.float_info.max  # JSON has no inf


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one case on one backend.

    Attributes:
        case, family, backend: The names.
        options: `VerifyCase.options`.
        check: The worst tensor's comparison with float64; None if there is nothing to compare.
        tensors: The comparison of every tensor, with ULPs and the naive program's errors.
        error: The exception raised by the backend; empty if none.
        problem: A fault that no error bound shows (different bits, a leaked NaN); empty if none.
        head_dim: Head dimension of Q and K.
        fits: The known mistakes that explain the wrong output; None if none were tried.
        symptom: The mistake among them that fits all failing cases of the backend (`with_symptoms`); empty if none.
        skipped: Why the backend does not support the case; empty if it ran.
        seconds: Time of the backend and of the comparison.
    """

    case: str
    backend: str
    options: list[str]
    family: str = "accuracy"
    check: Check | None = None
    tensors: list[TensorErrors] = []
    error: str = ""
    problem: str = ""
    head_dim: int = 0
    fits: list[KnownMistake] | None = None
    symptom: str = ""
    skipped: str = ""
    seconds: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether the backend ran the case."""
        return not self.skipped

    @property
    def ok(self) -> bool:
        """Whether the result was right, or the case did not run."""
        return bool(self.skipped) or (self.check is not None and self.check.ok and not self.problem)

    @property
    def fault(self) -> str:
        """Description of the fault, or ""."""
        if self.ok:
            return ""
        parts = [self.error, self.problem]
        if self.check is not None and not self.check.ok:
            c = self.check
            if c.not_finite:
                parts.append(f"{c.what} has NaN or inf where float64 has none, or vice versa")
            else:
                much = f"{c.ratio:.3g} times what is allowed" if c.ratio < _EXACT else "where it must be exact"
                error = f"{c.max_abs_error:.2e} (naive {c.naive_max_abs_error:.2e})"
                parts.append(f"{c.what} is off by {error}, {much}")
        return "; ".join(part for part in parts if part)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The largest distance between two backends' outputs or LSEs for a dtype, relative to the tensor's largest number.

    ``max_rel`` is the relative distance, ``max_abs`` and ``max_ulps`` the absolute distance at the same element.
    """

    first: str
    second: str
    dtype: str
    cases: int = 0
    max_rel: float = 0.0
    max_abs: float = 0.0
    max_ulps: float = 0.0
    case: str = ""
    what: str = ""


class FinishedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case on all backends, with the largest distances between backends so far."""

    case: str
    outcomes: list[CaseOutcome]
    agreements: list[Agreement]


@dataclass(slots=True)
class Verification:
    """Result of a run: an outcome per case and backend, and the distances between backends."""

    outcomes: list[CaseOutcome] = field(default_factory=list)
    agreements: dict[tuple[str, str, str], Agreement] = field(default_factory=dict)

    def take(self, finished: FinishedCase) -> None:
        """Adopt a case from a run that was terminated."""
        self.outcomes += finished.outcomes
        self.agreements |= {(each.first, each.second, each.dtype): each for each in finished.agreements}

    def compare(self, case: VerifyCase, outputs: Mapping[str, Mapping[str, Array]]) -> None:
        """Update the largest distance for each pair of backends and dtype."""
        dtype = case.config.dtype
        for (first, mine), (second, theirs) in itertools.combinations(outputs.items(), 2):
            worst = self.agreements.get((first, second, dtype)) or Agreement(first=first, second=second, dtype=dtype)
            for name in ("out", "lse"):  # not gradients: any rounding is large relative to an exact 0
                if name not in mine or name not in theirs:
                    continue
                share, distance, ulps = _distance(mine[name], theirs[name])
                if share > worst.max_rel or not worst.case:
                    there: dict[str, float | str] = {"max_rel": share, "max_abs": distance, "max_ulps": ulps}
                    there |= {"case": case.label, "what": name}
                    worst = msgspec.structs.replace(worst, **there)
            self.agreements[first, second, dtype] = msgspec.structs.replace(worst, cases=worst.cases + 1)


def with_symptoms(outcomes: Iterable[CaseOutcome]) -> list[CaseOutcome]:
    """Add a symptom to each failing outcome: a mistake that also fits the backend's other failures."""
    everything = list(outcomes)
    mistakes = {
        backend: mistakes_of([o for o in everything if o.backend == backend and not o.ok])
        for backend in dict.fromkeys(outcome.backend for outcome in everything)
    }
    return [msgspec.structs.replace(o, symptom=_symptom(o, mistakes[o.backend])) for o in everything]


def _symptom(outcome: CaseOutcome, mistakes: Sequence[str]) -> str:
    named = (fit.words for fit in outcome.fits or () if fit.mistake in mistakes and not fit.unsure)
    return next(named, "")


def _proven(outcome: CaseOutcome) -> list[str]:
    return [fit.mistake for fit in outcome.fits or () if fit.proven]


def mistakes_of(failed: Sequence[CaseOutcome]) -> list[str]:
    """Return the mistakes that were observed directly, plus those inferred from a backend's other failing cases.

    Inferred is the known mistake that fits every other case, or else two mistakes that together do, or none.
    If several fit all cases, the one that ranks first in most is chosen. Cases on which no mistake was tried do not
    count; a mistake whose fit is unsure in some cases must be sure in at least as many others.
    """
    proven = list(dict.fromkeys(itertools.chain(*map(_proven, failed))))
    return proven + _inferred([outcome for outcome in failed if not _proven(outcome)])


def _inferred(failed: Sequence[CaseOutcome]) -> list[str]:
    asked = [outcome.fits for outcome in failed if outcome.fits is not None]
    tried = [[fit.mistake for fit in fits] for fits in asked]
    sure = Counter(mistake for fits in asked for mistake in {fit.mistake for fit in fits if not fit.unsure})
    known = [mistake for mistake in dict.fromkeys(itertools.chain(*tried)) if sure[mistake]]
    everywhere = [m for m in known if 2 * sure[m] >= len(tried) and all(m in fits for fits in tried)]
    if everywhere:
        return [max(everywhere, key=lambda mistake: sum(fits[0] == mistake for fits in tried))]
    pairs = itertools.combinations([mistake for mistake in known if sure[mistake] > 1], 2)
    shared = [pair for pair in pairs if _shared_by(pair, tried)]
    return list(max(shared, key=lambda pair: sum(fits[0] in pair for fits in tried), default=()))


def _shared_by(pair: tuple[str, str], tried: Sequence[Sequence[str]]) -> bool:
    """Return whether each case fits one of two mistakes, and each mistake fits more than one case alone."""
    alone = [sum(mine in fits and other not in fits for fits in tried) for mine, other in (pair, pair[::-1])]
    return all(pair[0] in fits or pair[1] in fits for fits in tried) and min(alone) > 1


def symptoms(outcomes: Iterable[CaseOutcome]) -> dict[str, list[str]]:
    """Return sentences about each backend's failures: the mistake or their common properties, then the families."""
    sentences: dict[str, list[str]] = {}
    grouped: dict[str, list[CaseOutcome]] = {}
    for outcome in outcomes:
        if outcome.ran:
            grouped.setdefault(outcome.backend, []).append(outcome)
    for backend, everything in grouped.items():
        failed = [outcome for outcome in everything if not outcome.ok]
        if not failed:
            continue
        lines = [_named(mistake, failed) for mistake in mistakes_of(failed)]
        rest = [outcome for outcome in failed if not _proven(outcome)]
        if rest and not _inferred(rest):
            lines += _in_common(everything, rest)
        families = dict.fromkeys(o.family for o in failed)
        counted = ", ".join(f"{name} ({sum(o.family == name for o in failed)})" for name in families)
        sentences[backend] = [*lines, f"failing families: {counted}"]
    return sentences


def _named(mistake: str, failed: Sequence[CaseOutcome]) -> str:
    """Return a mistake with its most frequent detail, and the number of cases it fits if that is not all."""
    asked = [[fit for fit in outcome.fits or () if fit.mistake == mistake] for outcome in failed]
    words = Counter(fit.words for fits in asked for fit in fits).most_common(1)[0][0]
    cases = sum(any(not fit.unsure for fit in fits) for fits in asked)
    if cases == len(failed):
        return words
    excluded = any(outcome.fits is not None and not fits for outcome, fits in zip(failed, asked, strict=True))
    others = "another mistake explains the others" if excluded else "the others do not contradict it"
    return f"{words}: fits {cases} of {len(failed)} failing cases; {others}"


def _in_common(ran: Sequence[CaseOutcome], failed: Sequence[CaseOutcome]) -> list[str]:
    """Return what failures without a known mistake have in common: tensors, options, rising scores."""
    off = Counter(tensor.what for outcome in failed for tensor in outcome.tensors if not tensor.ratio <= 1)
    off |= Counter({"an exception": sum(bool(outcome.error) for outcome in failed)})
    traits = {id(outcome): [*outcome.options, f"D={outcome.head_dim}"] for outcome in ran}
    count = Counter(trait for outcome in ran for trait in traits[id(outcome)])
    wrong = Counter(trait for outcome in failed for trait in traits[id(outcome)])
    parts = {
        "off": [f"{what} in {cases}" for what, cases in off.most_common() if cases],
        "all failing cases have": [t for t in count if wrong[t] == len(failed) and count[t] < len(ran)],
        "all cases fail with": [t for t, cases in count.most_common() if 1 < cases == wrong[t] < len(failed)],
        "no case fails with": [t for t, cases in count.most_common() if cases > 1 and not wrong[t]],
    }
    said = "; ".join(f"{words}: {', '.join(values)}" for words, values in parts.items() if values)
    lines = [f"{len(failed)} of {len(ran)} cases fail, and no known mistake fits them all; {said}"]
    rising = {o.case for o in failed if o.family == "scales" and "-rising" in o.case}
    right = {o.case for o in ran if o.family == "scales" and o.ok}
    if any(case.replace("-rising", "-falling") in right for case in rising):
        lines.append("wrong where scores rise along the keys, right where they fall")
    return lines


def _distance(mine: Array, theirs: Array) -> tuple[float, float, float]:
    """Return the largest distance between two tensors: relative to the largest number, absolute, and in ULPs."""
    if not mine.size:
        return 0.0, 0.0, 0.0
    a, b = (x.astype(np.float64) for x in (mine, theirs))
    with np.errstate(all="ignore"):
        gap = np.where((a == b) | ~(np.isfinite(a) & np.isfinite(b)), 0, np.abs(a - b))
    at = np.unravel_index(int(gap.argmax()), gap.shape)
    largest = float(np.max(np.abs(a), initial=0, where=np.isfinite(a)))
    here = max(abs(a[at]), abs(b[at]))
    ulps = float(gap[at] / ulp(np.asarray(here), mine.dtype.name))
    return float(gap[at]) / largest if largest else 0.0, float(gap[at]), ulps


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a program's tensor relative to float64.

    Attributes:
        max_abs, rms: Largest and root mean square error.
        max_rel: The largest error over the largest result.
        ulps: Number of elements in each bin of `ULP_EDGES`, and beyond.
    """

    max_abs: float
    max_rel: float
    rms: float
    ulps: list[int]


class TensorErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a case's tensor: the backend's, and those of a naive program of the same dtype.

    Attributes:
        what: "out", "lse", "dq", "dk" or "dv".
        dtype: The tensor's dtype, which determines its ULPs.
        ratio: Error over allowed error.
    """

    what: str
    dtype: str
    ratio: float
    mine: Errors
    naive: Errors


def tensor_errors(verdict: AccuracyVerdict, dtype: str) -> TensorErrors:
    """Convert a verdict; ``dtype`` is the config's."""
    kept = "float32" if verdict.what == "lse" else dtype
    return TensorErrors(
        what=verdict.what,
        dtype=kept,
        ratio=min(verdict.ratio, _WORST),
        mine=_errors(verdict.error, verdict.exact, kept),
        naive=_errors(verdict.naive_error, verdict.exact, kept),
    )


def ulp_histogram(error: Array, exact: Array, dtype: str) -> list[int]:
    """Count elements by their error in units in the last place of the exact result (Goldberg 1991, section 1.2)."""
    with np.errstate(over="ignore"):
        distance = error / ulp(exact, dtype)
    inside = np.searchsorted(ULP_EDGES, np.where(np.isnan(distance), np.inf, distance).reshape(-1), side="left")
    return [int(count) for count in np.bincount(inside, minlength=len(ULP_EDGES) + 1)]


def ulp(exact: Array, dtype: str) -> Array:
    """Return the distance between adjacent numbers of a dtype at each value (near 0, the subnormal spacing)."""
    bits, least = _FORMATS[dtype]
    exponent = np.frexp(np.where(np.isfinite(exact), exact, 0))[1] - 1
    return np.exp2(np.maximum(np.where(exact == 0, least, exponent), least) - float(bits))


def _errors(error: Array, exact: Array, dtype: str) -> Errors:
    worst = float(error.max(initial=0))
    largest = float(np.max(np.abs(exact), initial=0, where=np.isfinite(exact)))
    mean = float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0
    return Errors(
        max_abs=min(worst, _WORST),
        max_rel=min(worst / largest if largest else (0.0 if worst == 0 else _WORST), _WORST),
        rms=min(mean, _WORST),
        ulps=ulp_histogram(error, exact, dtype) if error.size else [0] * (len(ULP_EDGES) + 1),
    )
