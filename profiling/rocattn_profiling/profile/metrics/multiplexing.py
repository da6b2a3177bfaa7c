"""Iteration multiplexing: the counters of one kernel spread over its launches, brought together launch by launch.

rocprof-compute of ROCm 7.13 and later (``--iteration-multiplexing``) measures each launch of a kernel with the next of
several sets of counters, in one run. Its analysis fills what a launch lacks from the neighboring launches of the same
kernel and launch shape, a round of sets at a time (ROCm/rocm-systems PR 5742, impute_counters_iteration_multiplex);
so does this module, and every value made of such counters says so.
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
"""What launches have in common that take counters from each other, as rocprof-compute's ``kernel_launch_params``."""
BORROWED = "counters of other launches of the same kernel and shape (iteration multiplexing)"
_KERNELS = 3  # kernels with too few launches that are named


def bring_together(name: str, counters: Mapping[str, Floats], table: pd.DataFrame) -> tuple[dict[str, Mask], list[str]]:
    """Fill the counters of one pass that its launches measured in turns.

    Args:
        name: Of the pass, for the problems.
        counters: Per launch; NaN where it did not count. Mutated.
        table: The launches, with `SHAPE` and "agent", in the order of dispatch within a kernel.

    Returns:
        Counter -> the launches that have it from another one, and what could not be filled.
    """
    names = list(counters)
    there = ~np.isnan(np.vstack([counters[each] for each in names]))
    lacking = np.flatnonzero(there.any(0) & ~there.all(0))
    if not len(lacking):
        return {}, []
    filled: dict[str, Mask] = {}
    few: dict[str, tuple[int, int]] = {}
    kernels = [(rows, _sets(there[:, rows])) for rows in _rows(table.iloc[np.flatnonzero(there.any(0))])]
    most = max(len(sets) for _, sets in kernels)
    for rows, sets in kernels:
        if most < 2 or (len(sets) < 2 and len(rows) >= most):  # all of one set: this kernel's launches lack nothing
            continue
        if len(rows) < most:
            few[str(table["kernel"].iloc[rows[0]])] = (len(rows), most)
            continue
        for start in range(0, len(rows), len(sets)):
            part = rows[start : start + len(sets)]
            for at, each in enumerate(names):
                have = part[there[at, part]]
                if len(have) and len(have) < len(part):
                    lack = part[~there[at, part]]
                    # The next launch that has it, else the last before.
                    later = np.minimum(np.searchsorted(have, lack), len(have) - 1)
                    counters[each][lack] = counters[each][have[later]]
                    filled.setdefault(each, np.zeros(len(table), dtype=bool))[lack] = True
    return filled, _told(name, few)


def _rows(launches: pd.DataFrame) -> list[NDArray[np.int64]]:
    """Return the launches of each kernel and shape, in the order of dispatch."""
    groups = launches.groupby([*SHAPE, "agent"], observed=True, dropna=False)
    return [np.sort(frame.index.to_numpy(np.int64)) for _, frame in groups]


def _sets(there: Mask) -> list[bytes]:
    """Return the sets of counters that a kernel's launches measured in turns; one if each had all, or lost one."""
    every = list(dict.fromkeys(column.tobytes() for column in there.T))
    whole = there.any(1).tobytes()
    return every[:1] if whole in every else every


def _told(name: str, few: Mapping[str, tuple[int, int]]) -> list[str]:
    if not few:
        return []
    named = [f"{kernel[:60]} ({had})" for kernel, (had, _) in list(few.items())[:_KERNELS]]
    more = f" and {len(few) - _KERNELS} more" if len(few) > _KERNELS else ""
    (_, sets), *_ = few.values()
    text = f"iteration multiplexing spread the counters over {sets} launches, more than there are of {', '.join(named)}"
    return [f"pass {name}: {text}{more}: run more iterations, or collect without it"]
