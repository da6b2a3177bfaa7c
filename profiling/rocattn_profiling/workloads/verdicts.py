"""The rule by which one tensor is judged: its error beside float64's, the naive program's, and the limit they set.

`rocattn_profiling.workloads.accuracy` states the rule, and computes what is compared here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn_profiling.measure.records import Check

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig

OUTPUT_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
GROUP_ELEMENTS = 256
"""Fewer elements than this are no fair sample of the naive program's largest error: such a group joins the next."""
_UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
# Below its smallest normal number a float32 result may be 0 (GPUs and fast CPU code flush it); float16 has a smallest
# subnormal, which conversion from float32 gives right.
_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
_BLANK = -9999  # the octave of rows that are exactly 0
_WORST = sys.float_info.max  # JSON has no inf


@dataclass(frozen=True, slots=True)
class AccuracyVerdict:
    """How one tensor fared; ``ratio`` is the worst of error / limit over groups and over largest and mean error.

    ``error``, ``naive_error`` and ``exact`` hold what was compared, element by element; empty where nothing was.
    """

    what: str
    ratio: float
    max_abs_error: float
    max_rel_error: float
    rms_error: float
    naive_max_abs_error: float
    factor: float
    error: Array = field(default_factory=lambda: np.empty(0), repr=False)
    naive_error: Array = field(default_factory=lambda: np.empty(0), repr=False)
    exact: Array = field(default_factory=lambda: np.empty(0), repr=False)


class Judgement(NamedTuple):
    """The verdict of every tensor of one problem, and how many of its query rows were compared."""

    verdicts: list[AccuracyVerdict]
    rows_checked: int
    rows: int
    factor: float

    def as_check(self) -> Check:
        """Return the verdict of the tensor that came closest to its limit, or went farthest beyond."""
        return as_check(*self)


def judge_rows(
    what: str, got: Array, exact: Array, naive: Array, config: AttentionConfig, size: float
) -> AccuracyVerdict:
    """Judge rows [N, X] among rows of the same power of two; rows of exact zeros must be zeros."""
    error, naive_error = _error(got, exact), _error(naive, exact)
    scale = np.max(np.abs(exact), axis=-1, initial=0, where=np.isfinite(exact))
    octave = np.where(scale > 0, np.frexp(scale)[1], _BLANK)
    ratio = 0.0
    for rows, blank in _groups(octave, exact.shape[-1]):
        floor = 0.0 if blank else _floor(config, float(scale[rows].max()), size)
        ratio = max(ratio, _ratio(error[rows], naive_error[rows], OUTPUT_FACTOR, floor))
    return _verdict(what, ratio, error, naive_error, exact, OUTPUT_FACTOR)


def _groups(octave: Array, width: int) -> list[tuple[Array, bool]]:
    """Cut rows into octaves, small ones joined with a neighbour; each with whether its rows are exactly 0."""
    blank, order = np.flatnonzero(octave == _BLANK), np.argsort(octave, kind="stable")
    order = order[len(blank) :]
    groups: list[Array] = []
    start = 0
    for stop in [*(np.flatnonzero(np.diff(octave[order])) + 1).tolist(), len(order)]:
        if (stop - start) * width >= GROUP_ELEMENTS:
            groups.append(order[start:stop])
            start = stop
    if start < len(order):  # too few of the largest are left: they go with the next smaller ones
        groups.append(np.concatenate([groups.pop(), order[start:]]) if groups else order[start:])
    return [(rows, False) for rows in groups] + [(blank, True)] * bool(blank.size)


def judge_whole(what: str, triple: list[Array], config: AttentionConfig, size: float) -> AccuracyVerdict:
    """Judge a gradient (got, exact, naive) in one group."""
    got, exact, naive = triple
    error, naive_error = _error(got, exact), _error(naive, exact)
    floor = _floor(config, float(np.max(np.abs(exact), initial=0)), size)
    ratio = _ratio(error, naive_error, GRADIENT_FACTOR, floor)
    return _verdict(what, ratio, error, naive_error, exact, GRADIENT_FACTOR)


def judge_lse(got: Array, exact: Array, naive: Array) -> AccuracyVerdict:
    """Judge the LSE, every element at its own size."""
    error, naive_error = _error(got, exact), _error(naive, exact)
    size = 1 + np.abs(np.where(np.isfinite(exact), exact, 0))
    limit = OUTPUT_FACTOR * naive_error.max() + 4 * np.finfo(np.float32).eps * size
    return _verdict("lse", float(np.max(error / limit)), error, naive_error, exact, OUTPUT_FACTOR)


def _error(got: Array, exact: Array) -> Array:
    """Return |got - exact|; 0 where both are the same non-finite value, inf where only one is."""
    same = (got == exact) | (np.isnan(got) & np.isnan(exact))
    error = np.where(same, 0, np.abs(got - exact))
    return np.where(np.isnan(error), np.inf, error)


def _ratio(error: Array, naive_error: Array, factor: float, floor: float) -> float:
    """Return the worse of largest and root mean square error over its limit; 0 / 0 is 0."""
    if not error.size:
        return 0.0
    pairs = ((error.max(), naive_error.max(), floor), (rms(error), rms(naive_error), floor / 4))
    worst = 0.0
    for mine, naive, least in pairs:
        limit = factor * naive + least
        worst = max(worst, 0.0 if mine == 0 else float(mine / limit) if limit > 0 else np.inf)
    return worst


def _floor(config: AttentionConfig, scale: float, size: float) -> float:
    """Return the error allowed when the naive program makes none (see the module)."""
    unit = _UNITS[config.dtype]
    sums = np.finfo(np.float64 if config.dtype == "float64" else np.float32).eps
    return float(unit * scale + 4 * sums * size + _LEAST[config.dtype])


def rms(error: Array) -> float:
    """Return the root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0


def hopeless(what: str, factor: float) -> AccuracyVerdict:
    """Return the verdict of a tensor that is wrong beyond comparison: NaN or inf where none belongs."""
    return AccuracyVerdict(what, np.inf, np.inf, np.inf, np.inf, 0.0, factor)


def _verdict(what: str, ratio: float, error: Array, naive_error: Array, exact: Array, factor: float) -> AccuracyVerdict:
    worst = float(error.max(initial=0))
    largest = float(np.max(np.abs(exact), initial=0, where=np.isfinite(exact)))
    relative = worst / largest if largest else (0.0 if worst == 0 else np.inf)
    least = float(naive_error.max(initial=0))
    return AccuracyVerdict(what, ratio, worst, relative, rms(error), least, factor, error, naive_error, exact)


def as_check(verdicts: list[AccuracyVerdict], rows_checked: int, rows: int, factor: float) -> Check:
    """Return the verdict of the tensor that came closest to its limit, or went farthest beyond."""
    worst = max(verdicts, key=lambda v: v.ratio, default=AccuracyVerdict("out", 0.0, 0.0, 0.0, 0.0, 0.0, factor))
    return Check(
        ok=worst.ratio <= 1,
        max_abs_error=min(worst.max_abs_error, _WORST),
        max_rel_error=min(worst.max_rel_error, _WORST),
        rms_error=min(worst.rms_error, _WORST),
        naive_max_abs_error=min(worst.naive_max_abs_error, _WORST),
        factor=worst.factor,
        rows_checked=rows_checked,
        rows=rows,
        what=worst.what,
        ratio=min(worst.ratio, _WORST),
    )
