"""Combine counters that a file splits by hardware instance (sum and maximum), and name accumulators.

``TCC_HIT[0] ... TCC_HIT[15]`` are the channels of one counter; rocpd and JSON have one record per instance. rocprofv3's
CSV files contain sums.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.parts import NO_COUNTERS, Notes, UnreadableError, categorical, counter_frame
from rocattn_profiling.profile.ingest.table import INSTANCE_DTYPES, empty

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_COUNTERS = 30_000  # the largest real file has 2700 columns; codes are 16 bits
ACCUMULATOR = "SQ_ACCUM_PREV_HIRES"
_AT_ONCE = 1 << 18  # values compared per step
_INSTANCE = re.compile(r"^(.+?)\[\d+\]$")
_LEVEL = re.compile(r"^SQC?_\w*LEVEL")


def base_name(counter: str) -> str:
    """Return the counter's name without the instance: TCC_HIT for ``TCC_HIT[3]``."""
    match = _INSTANCE.match(counter)
    return match[1] if match else counter


def accumulator_names(counters: Sequence[str]) -> dict[str, str]:
    """Name a pass's accumulator after the level counter that it integrates.

    The hardware accumulates the one level counter programmed next to it (``accumulate(X, HIGH_RES)``).
    """
    levels = {counter for counter in counters if _LEVEL.match(counter) and not counter.endswith("_ACCUM")}
    if ACCUMULATOR not in counters or len(levels) != 1:
        return {}
    return {ACCUMULATOR: f"{levels.pop()}_ACCUM"}


def combine(
    row: NDArray[np.int32], code: NDArray[Any], value: NDArray[np.float64], names: Sequence[str], notes: Notes
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a counters frame with one value per dispatch and counter, and the instances frame.

    Args:
        row: Dispatch of each value.
        code: Counter of each value, an index into ``names``.
        value: The values.
        names: Counter names as the file has them.
        notes: Collects problems.

    Raises:
        UnreadableError: When there are more counter names than any GPU has.
    """
    if len(names) > MOST_COUNTERS:
        raise UnreadableError(f"{len(names)} different counter names", NO_COUNTERS)
    bases = list(dict.fromkeys(map(base_name, names)))
    split = len(bases) < len(names)
    if split:
        index = {name: position for position, name in enumerate(bases)}
        code = np.array([index[base_name(name)] for name in names], np.int16)[code]
    accumulators = accumulator_names(bases)
    shown = [accumulators.get(name, name) for name in bases]
    if _all_different(row, code, len(bases)):
        return counter_frame(row, categorical(code, shown), value), empty(INSTANCE_DTYPES)
    if not split:
        notes.add("counters have several values per dispatch", "taken as hardware instances and summed")
    key = row.astype(np.int64) * len(bases) + code
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    ordered = value[order]
    counts = np.diff(np.r_[starts, len(key)])
    rows, codes = (key[starts] // len(bases)).astype(np.int32), (key[starts] % len(bases)).astype(np.int16)
    frame = counter_frame(rows, categorical(codes, shown), np.add.reduceat(ordered, starts))
    several = counts > 1
    instances = pd.DataFrame(
        {
            "row": rows[several],
            "counter": categorical(codes[several], shown),
            "instances": counts[several].astype(np.int32),
            "max": np.maximum.reduceat(ordered, starts)[several],
        }
    )
    return frame, instances


def _all_different(row: NDArray[np.int32], code: NDArray[Any], counters: int) -> bool:
    """Return whether each counter occurs at most once per dispatch.

    The rows of a dispatch are usually adjacent. Then the sum of 2^code over them equals their bitwise OR exactly if no
    code repeats, and this test is many times faster than sorting.
    """
    if not len(row):
        return True
    if counters <= 62 and bool((row[1:] >= row[:-1]).all()):
        begin = 0
        while begin < len(row):  # in chunks: the bits take more memory than the counters
            end = int(np.searchsorted(row, row[min(begin + _AT_ONCE, len(row) - 1)], side="right"))
            part = row[begin:end]
            starts = np.flatnonzero(np.r_[True, part[1:] != part[:-1]])
            bits = np.int64(1) << code[begin:end].astype(np.int64)
            if (np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any():
                return False
            begin = end
        return True
    return not bool(pd.Series(row.astype(np.int64) * counters + code).duplicated().any())
