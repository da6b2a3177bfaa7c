"""Iteration multiplexing: counters of one kernel that are spread over its launches, combined for each launch.

rocprof-compute of ROCm 7.13 and later (``--iteration-multiplexing``) cycles through several sets of counters, one set
per launch of a kernel, in one run. Its analysis fills missing counters of a launch from neighboring launches of the
same kernel and launch shape, one round of sets at a time (ROCm/rocm-systems PR 5742,
impute_counters_iteration_multiplex). This module does the same, and flags every value computed from such counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

SHAPE = ["kernel", "grid", "block", "lds_bytes"]
"""Launches with these in common share counters; the same as rocprof-compute's ``kernel_launch_params``."""
BORROWED = "counters of other launches of the same kernel and shape (iteration multiplexing)"
_KERNELS = 3  # maximum number of kernels listed that have too few launches


def bring_together(name: str, counters: Mapping[str, Floats], table: pd.DataFrame) -> tuple[dict[str, Mask], list[str]]:
    """Fill the counters of a pass whose launches measured them in turns.

    Args:
        name: The pass, for messages.
        counters: Per launch; NaN if not counted. Modified.
        table: The launches, with `SHAPE` and "agent", in order of dispatch within a kernel.

    Returns:
        Counter -> the launches whose value is from another launch; and messages about what could not be filled.
    """
    names = list(counters)
    there = ~np.isnan(np.vstack([counters[each] for each in names]))
    lacking = np.flatnonzero(there.any(0) & ~there.all(0))
    if not len(lacking):
        return {}, []
    filled: dict[str, Mask] = {}
    few: dict[str, int] = {}
    kernels = [(rows, _sets(there[:, rows])) for rows in _rows(table.iloc[np.flatnonzero(there.any(0))])]
    every = _largest({each for _, sets in kernels for each in sets if len(sets) > 1})
    for rows, sets in kernels:
        if len(sets) < len(every):
            few[str(table["kernel"].iloc[rows[0]])] = len(sets)
        for start in range(0, len(rows), len(sets)) if len(sets) > 1 else ():
            part = rows[start : start + len(sets)]
            for at, each in enumerate(names):
                have = part[there[at, part]]
                if len(have) and len(have) < len(part):
                    lack = part[~there[at, part]]
                    # The next launch that has it, otherwise the previous one.
                    later = np.minimum(np.searchsorted(have, lack), len(have) - 1)
                    counters[each][lack] = counters[each][have[later]]
                    filled.setdefault(each, np.zeros(len(table), dtype=bool))[lack] = True
    return filled, _told(name, few, len(every))


def _rows(launches: pd.DataFrame) -> list[NDArray[np.int64]]:
    """Return the launches of each kernel and shape, in order of dispatch."""
    groups = launches.groupby([*SHAPE, "agent"], observed=True, dropna=False)
    return [np.sort(frame.index.to_numpy(np.int64)) for _, frame in groups]


def _sets(there: Mask) -> list[frozenset[int]]:
    """Return the sets of counters that a kernel's launches measured in turns; one if some launch has all."""
    return _largest({frozenset(np.flatnonzero(column).tolist()) for column in there.T})


def _largest(sets: set[frozenset[int]]) -> list[frozenset[int]]:
    """Return the sets that are not part of a larger one: a launch that lost a value is not a separate set."""
    return [each for each in sets if not any(each < other for other in sets)]


def _told(name: str, few: Mapping[str, int], sets: int) -> list[str]:
    """Say which kernels had too few launches for all sets."""
    if not few:
        return []
    named = [f"{kernel[:60]} ({had} of {sets})" for kernel, had in list(few.items())[:_KERNELS]]
    more = f" and {len(few) - _KERNELS} more" if len(few) > _KERNELS else ""
    text = f"iteration multiplexing spread the counters over {sets} launches, too many for {', '.join(named)}"
    return [f"pass {name}: {text}{more}: run more iterations, or collect without it"]
