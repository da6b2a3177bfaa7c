"""Which rows of a file are one dispatch: numbers that repeat, passes in one file, rows that lie apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.parts import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rocattn_profiling.profile.ingest.parts import Notes

_IDENTITY = ("process", "guid", "replay", "dispatch", "kernel", "grid", "start_ns")


def product(made: Mapping[str, NDArray[Any]], whole: str) -> NDArray[np.int64]:
    """Return the work-items of a launch or group from its x, y and z; unknown where one of them is."""
    total = np.ones(len(made[f"{whole}_x"]), np.int64)
    unknown = np.zeros(len(total), bool)
    for axis in "xyz":
        size = made.get(f"{whole}_{axis}")
        if size is not None:
            unknown |= (size < 0) | (size > np.iinfo(np.uint32).max)
            total *= np.where(unknown, 1, size)
    total[unknown] = MISSING
    return total


def resolve(
    runs: Mapping[str, NDArray[Any]], notes: Notes
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]] | None:
    """Tell which runs of rows are the same dispatch, and to which pass each dispatch belongs.

    A dispatch number that comes again with the same kernel and grid but another start time is another pass of the
    same application; with another kernel or grid the number was reused (several processes or devices).

    Args:
        runs: Columns of the runs of rows; those of `_IDENTITY` that the file has decide.
        notes: Takes what is wrong.

    Returns:
        Index of the first run of each dispatch, each run's dispatch, and each dispatch's pass; None if every run is a
        dispatch of one pass.
    """
    if "dispatch" not in runs:
        return None
    owners = [name for name in ("process", "guid", "replay") if name in runs]
    numbers = runs["dispatch"]
    if all((runs[name] == runs[name][0]).all() for name in owners) and bool((numbers[1:] > numbers[:-1]).all()):
        return None
    table = pd.DataFrame({name: runs[name] for name in _IDENTITY if name in runs}, copy=False)
    groups = table.groupby(list(table.columns), sort=False, dropna=False)
    row: NDArray[np.int32] = np.asarray(groups.ngroup(), np.int32)
    first: NDArray[np.int64] = np.flatnonzero(np.asarray(groups.cumcount()) == 0)
    firsts = table.iloc[first]
    if "replay" in table:
        passes = pd.factorize(firsts["replay"], sort=True)[0]
        return first, row, np.asarray(passes, np.int32)
    number = firsts.groupby([name for name in ("process", "dispatch") if name in firsts], sort=False)
    again = np.asarray(number.cumcount(), np.int32)
    launch = [name for name in ("kernel", "grid") if name in firsts]
    reused = np.zeros(len(firsts), bool)
    for name in launch:
        reused |= (number[name].transform("first") != firsts[name]).to_numpy()
    if reused.any():
        notes.add(
            "{n} dispatch numbers are used for several dispatches", "told apart by kernel, grid and start time; "
            "give every process its own file (-o NAME_%pid%)", count=int(reused.sum()),
        )  # fmt: skip
        again = np.zeros(len(firsts), np.int32)
    return first, row, np.asarray(again, np.int32)
