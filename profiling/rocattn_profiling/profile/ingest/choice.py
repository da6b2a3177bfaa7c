"""Select part of a profile: some kernels, some launches of each kernel, one GPU."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rocattn.errors import RocattnError
from rocattn_profiling.profile.ingest.table import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RANGE = re.compile(r"([1-9]\d{0,17})(?:-([1-9]\d{0,17}))?")
SYNTAX = "3, 2-10 or [2-10,15], counted from 1"


def ranges_of(text: str) -> tuple[tuple[int, int], ...]:
    """Parse launch numbers in the syntax of rocprofv3's ``--kernel-iteration-range``; ranges include both ends.

    Args:
        text: "3", "2-10" or "[2-10,15]".

    Raises:
        RocattnError: When the text is anything else.
    """
    ranges = []
    for part in text.strip().removeprefix("[").removesuffix("]").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise RocattnError(f"--launches {text}: write the launches of each kernel as {SYNTAX}")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """A selection of launches from a profile.

    Attributes:
        kernels: Kernel names as spelled in the profile; None for all.
        ranges: Launches, counted per kernel, GPU and process (`ranges_of`); empty for all.
        gpu: The profiler's number of the GPU; None for all.
        passes: The passes to filter; None for all.
    """

    kernels: Collection[str] | None = None
    ranges: Sequence[tuple[int, int]] = ()
    gpu: int | None = None
    passes: Collection[str] | None = None

    def of(self, profile: Profile) -> Profile:
        """Return the selected part; with ``ranges`` or ``gpu``, samples without a known launch are dropped."""
        rows = profile.dispatches
        keep: NDArray[np.bool_] = np.ones(len(rows), dtype=bool)
        samples = profile.samples
        if self.kernels is not None:
            keep &= rows["kernel"].isin(self.kernels).to_numpy()
            samples = samples[samples["kernel"].isin(self.kernels)]
        if self.gpu is not None:
            keep &= rows["agent"].isin(gpus(profile).get(self.gpu, ())).to_numpy()
        if self.ranges:
            order = rows.sort_values(["pass", "process", "dispatch"], kind="stable")
            keys = ["pass", "process", "agent", "kernel"]
            nth = order.groupby(keys, observed=True, sort=False, dropna=False).cumcount().sort_index().to_numpy() + 1
            keep &= np.logical_or.reduce([(least <= nth) & (nth <= most) for least, most in self.ranges])
        if self.passes is not None:
            keep |= ~rows["pass"].isin(self.passes).to_numpy()
        elif self.ranges or self.gpu is not None:
            kept = set(zip(rows["process"][keep], rows["dispatch"][keep], strict=True))
            known = [each in kept for each in zip(samples["process"], samples["dispatch"], strict=True)]
            samples = samples[np.array(known, dtype=bool)]
        number = np.cumsum(keep) - 1
        tables = {}
        for name in ("counters", "instances"):
            table = getattr(profile, name)
            table = table[keep[table["row"].to_numpy()]].reset_index(drop=True)
            tables[name] = table.assign(row=number[table["row"].to_numpy()].astype(np.int32))
        return replace(
            profile, dispatches=rows[keep].reset_index(drop=True), samples=samples.reset_index(drop=True), **tables
        )


def gpus(profile: Profile) -> dict[int, list[int]]:
    """Map each GPU number to its rows in the agents' table, for GPUs that ran something."""
    ran = set(profile.dispatches["agent"].dropna().tolist())
    numbers = profile.agents["number"].fillna(profile.agents["node"])
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(numbers.tolist()):
        if row in ran and number is not pd.NA:
            rows.setdefault(int(number), []).append(row)
    return rows
