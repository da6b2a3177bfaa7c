"""How wrong, in units in the last place: what `rocattn verify` says of each tensor beside its verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn_profiling.workloads.verdicts import AccuracyVerdict

ULP_EDGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0)
"""Upper ends of the histogram's bins; 0.5 is a result rounded as well as can be. A last bin has what is beyond."""
# Bits after the point, and the exponent of the smallest normal number.
_FORMATS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022)}
_WORST = sys.float_info.max  # JSON has no inf


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """The error of one program's tensor against float64.

    Attributes:
        max_abs, rms: Largest and root mean square error.
        max_rel: The largest error over the largest result.
        ulps: How many elements fall in each bin of `ULP_EDGES`, and beyond.
    """

    max_abs: float
    max_rel: float
    rms: float
    ulps: list[int]


class TensorErrors(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of one case: what the backend has, and what a naive program of the same dtype would have had.

    Attributes:
        what: "out", "lse", "dq", "dk" or "dv".
        dtype: Of the tensor: the unit of its ULPs.
        ratio: The error over what the rule allows.
    """

    what: str
    dtype: str
    ratio: float
    mine: Errors
    naive: Errors


def tensor_errors(verdict: AccuracyVerdict, dtype: str) -> TensorErrors:
    """Describe a verdict; ``dtype`` is the config's."""
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
    """Return the distance between neighbouring numbers of a dtype at each value (that of subnormal ones near 0)."""
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
