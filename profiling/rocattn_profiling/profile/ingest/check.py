"""What is wrong in the numbers of a file, whichever format it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.profile.ingest.parts import MISSING, Notes, nullable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.profile.ingest.parts import Part

_AT_ONCE = 1 << 16  # values that are looked at together
_FEWEST_ROUNDED = 3
_SEVEN_DIGITS = 1_000_000  # from here on, six significant digits leave a zero at the end


def check(part: Part) -> None:
    """Look through what was read from one file; impossible times are removed."""
    if not len(part.dispatches):
        return
    notes = Notes(part.source.file)
    _check_times(part, notes)
    _check_counters(part, notes)
    part.problems += notes.problems()


def _check_times(part: Part, notes: Notes) -> None:
    """Remove times that are no duration: it must be positive."""
    times = part.dispatches[["start_ns", "end_ns"]]
    start, end = (times[name].to_numpy(np.int64, na_value=MISSING) for name in times)
    half = (start == MISSING) != (end == MISSING)
    never = (start != MISSING) & (end != MISSING) & (end <= start)
    notes.add(
        "{n} dispatches end before or when they start", "their times are not used; take times from a kernel trace",
        count=int(never.sum()),
    )  # fmt: skip
    notes.add("{n} dispatches have a start or an end, not both", "their times are not used", count=int(half.sum()))
    wrong = half | never
    if wrong.any():
        for name, values in (("start_ns", start), ("end_ns", end)):
            part.dispatches[name] = nullable(np.where(wrong, MISSING, values), "Int64")


def _check_counters(part: Part, notes: Notes) -> None:
    if not len(part.counters):
        return
    row = part.counters["row"].to_numpy()
    counts = np.zeros(len(part.dispatches), np.int64)
    for begin in range(0, len(row), 16 * _AT_ONCE):  # bincount makes 64-bit copies of what it counts
        counts += np.bincount(row[begin : begin + 16 * _AT_ONCE], minlength=len(counts))
    passes = part.dispatches["pass"].cat.codes.to_numpy()
    most = np.zeros(passes.max() + 1, np.int64)
    np.maximum.at(most, passes, counts)
    notes.add(
        "{n} dispatches lack counters that others of their pass have", "nothing is computed from what they lack",
        count=int((counts < most[passes]).sum()),
    )  # fmt: skip
    if _rounded_to_six_digits(part.counters["value"].to_numpy()):
        notes.add("values have 6 significant digits only", "small differences of large values mean nothing")


def _rounded_to_six_digits(values: NDArray[np.float64]) -> bool:
    """Return whether all large values, and at least three different, are rounded; one that is not ends the search.

    A count that every launch has alike (1228800 waves) is no sign of rounding.
    """
    found: set[float] = set()
    for begin in range(0, len(values), _AT_ONCE):
        part = values[begin : begin + _AT_ONCE]
        large = part[part >= _SEVEN_DIGITS]
        if (large % 10.0 ** (np.floor(np.log10(large)) - 5)).any():
            return False
        if len(found) < _FEWEST_ROUNDED:
            found.update(np.unique(large)[:_FEWEST_ROUNDED].tolist())
    return len(found) >= _FEWEST_ROUNDED
