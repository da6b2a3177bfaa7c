"""Which launches are judged together: those of one kernel, problem, shape and GPU.

Prefill and decode share a kernel's name, and GPUs share its work: a mean over them describes no launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from rocattn_profiling.pages.quantities import quantity
from rocattn_profiling.profile.metrics.evaluate import Evaluation
from rocattn_profiling.profile.metrics.timeline import kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

EXACT = 6
"""Up to this many shapes of a kernel are separate groups; if there are more, sizes in a group at most double."""
AGREE = 1.1
"""GPUs share a group if their median times differ by at most this ratio; two equal GPUs differ by less."""
_HELD = 0.5  # minimum share of a group's time that a few long launches take together
_HELD_BY_ONE = 0.25  # the same for a single launch
_FEW = 0.05  # maximum share of the launches that are long
_LONG = 3.0  # a launch is long from this multiple of the median


class LaunchPlace(NamedTuple):
    """Where a launch ran: its GPU's row in the agents' table (-1 if unknown) and its process's number in the run."""

    agent: int
    rank: int


@dataclass(frozen=True, slots=True, order=True)
class LaunchShape:
    """The threads of a block, and the smallest and largest number of blocks; all 0 if unknown."""

    block: int
    least: int
    most: int

    @property
    def text(self) -> str:
        """As text: "4,096 blocks of 256", "17 to 32 blocks of 64"; "" if unknown."""
        if not self.block:
            return ""
        least = f"{self.least:,} to " if self.least != self.most else ""
        return f"{least}{self.most:,} block{'s' if self.most > 1 else ''} of {self.block:,}"


@dataclass(frozen=True, slots=True)
class LaunchUnit:
    """What launches that are judged together have in common; `kind` numbers kinds of GPUs."""

    kernel: str
    label: str
    shape: LaunchShape
    kind: int
    places: tuple[LaunchPlace, ...]


@dataclass(frozen=True, slots=True)
class LongLaunches:
    """A few launches that take much of their group's time.

    Attributes:
        count, of: Their number, and the number of launches.
        share: Their share of the group's time, 0 to 1.
        longest_ns: The time of the longest one.
        excess: Share of the group's time that they take beyond the median, 0 to 1.
    """

    count: int
    of: int
    share: float
    longest_ns: float
    excess: float

    @property
    def text(self) -> str:
        """As text: "1 of 1,310 launches is 56 % of its time: 733 ms"."""
        verb, end = ("is", "") if self.count == 1 else ("are", ", the longest")
        longest = quantity(self.longest_ns / 1e9, "seconds")
        return f"{self.count:,} of {self.of:,} launches {verb} {100 * self.share:.0f} % of its time{end}: {longest}"


def long_launches(times: Floats) -> LongLaunches | None:
    """Return the few launches that take much of a group's time; None if all launches take about equally long.

    Args:
        times: The launches' times in ns, without NaN.
    """
    if len(times) < 3 or times.max() < _LONG * np.median(times):
        return None
    median, longest = float(np.median(times)), np.sort(times)[::-1]
    held = np.cumsum(longest) / longest.sum()
    number = 1 if held[0] >= _HELD_BY_ONE else int(np.argmax(held >= _HELD)) + 1
    if number > max(1, _FEW * len(times)):
        return None
    share = float(held[number - 1])
    return LongLaunches(number, len(times), share, float(longest[0]), share - number * median / float(times.sum()))


def units_of(
    evaluation: Evaluation, labels: Sequence[str] | None, *, single: bool = False
) -> tuple[Integers, list[LaunchUnit]]:
    """Return the number of each launch's unit, and the units.

    Args:
        evaluation: The evaluated launches.
        labels: The problem of each launch.
        single: Whether each launch is a separate unit.
    """
    table = evaluation.launches.table
    kernels = table["kernel"].cat.categories
    codes = table["kernel"].cat.codes.to_numpy()
    problem: Integers = np.zeros(len(table), np.int64)
    problems: Sequence[str] = [""]
    if labels:
        problem, found = pd.factorize(np.array(labels, object))
        problems = found.tolist()
    grid, block = table["grid"].to_numpy(np.int64), table["block"].to_numpy(np.int64)
    known = (grid > 0) & (block > 0)
    block, blocks = np.where(known, block, 0), np.where(known, -(-grid // np.maximum(block, 1)), 0)
    agents: Integers = np.asarray(table["agent"].astype("Int64").fillna(-1), np.int64)
    ranks: Integers = np.asarray(table["rank"], np.int64)
    kinds, step = _kinds(evaluation, agents), int(ranks.max(initial=0)) + 1
    places: Integers = (agents + 1) * step + ranks  # encodes both in one number, in order
    number: Integers = np.zeros(len(table), np.int64)
    every: Integers = np.arange(len(table), dtype=np.int64)
    units: list[LaunchUnit] = []

    def add(rows: Integers, shape: LaunchShape) -> None:
        number[rows] = len(units)
        on = tuple(LaunchPlace(place // step - 1, place % step) for place in np.unique(places[rows]).tolist())
        kernel, label = kernels[codes[rows[0]]], problems[problem[rows[0]]]
        units.append(LaunchUnit(str(kernel), str(label), shape, int(kinds[rows[0]]), on))

    if single:
        for row in range(len(table)):
            add(np.array([row]), LaunchShape(int(block[row]), int(blocks[row]), int(blocks[row])))
        return number, units
    for rows in _parts(every, pd.factorize(codes)[0], problem):
        if kind_of(str(kernels[codes[rows[0]]])):  # not its own work, so all shapes and GPUs are one unit
            add(rows, LaunchShape(0, 0, 0))
            continue
        for of_class, shape in _classes(rows, block, blocks):
            for of_kind in _parts(of_class, kinds):
                for alike in _alike(of_kind, places, agents, evaluation.launches.duration_ns):
                    add(alike, shape)
    return number, units


def _kinds(evaluation: Evaluation, agents: Integers) -> Integers:
    """Return the kind of GPU of each launch; GPUs of equal architecture and size are one kind."""
    facts = [np.nan_to_num(evaluation.constants[name]) for name in ("cus", "xcds", "clock_mhz", "peak_gbps")]
    kinds: dict[object, int] = {}
    _, first, of_launch = np.unique(agents, return_index=True, return_inverse=True)
    of_agent = [
        kinds.setdefault((evaluation.archs[row], *(values[row] for values in facts)), len(kinds)) for row in first
    ]
    return np.array(of_agent, np.int64)[of_launch]


def _parts(rows: Integers, *keys: Integers) -> Iterator[Integers]:
    """Yield groups of rows with equal keys."""
    order = np.lexsort([rows, *(key[rows] for key in keys)])
    differ = np.logical_or.reduce([np.diff(key[rows][order]) != 0 for key in keys])
    return iter(np.split(rows[order], np.flatnonzero(differ) + 1))


def _classes(rows: Integers, block: Integers, blocks: Integers) -> Iterator[tuple[Integers, LaunchShape]]:
    """Yield groups of rows with one shape or, if a kernel has many, with sizes within a factor of two."""
    by_shape = list(_parts(rows, blocks, block))
    joined: list[list[Integers]] = []
    for part in by_shape:
        size, first = (block[part[0]], blocks[part[0]]), joined[-1][0][0] if joined else -1
        if len(by_shape) > EXACT and joined and size[0] == block[first] and size[1] <= 2 * blocks[first]:
            joined[-1].append(part)
        else:
            joined.append([part])
    for parts in joined:
        least, most = parts[0][0], parts[-1][0]
        yield np.concatenate(parts), LaunchShape(int(block[least]), int(blocks[least]), int(blocks[most]))


def _alike(rows: Integers, places: Integers, agents: Integers, duration_ns: Floats) -> Iterator[Integers]:
    """Yield groups of rows from places (GPUs, processes) whose median times agree, or differ less than launches do."""
    parts = list(_parts(rows, places))
    quartiles = {}
    for number, part in enumerate(parts):
        times = duration_ns[part][~np.isnan(duration_ns[part])]
        quartiles[number] = np.percentile(times, (25, 50, 75)) if len(times) else np.zeros(3)
    # Consecutive processes on one GPU are not separate places: one launch of each proves nothing.
    if len(np.unique(agents[rows])) == 1 and min(map(len, parts)) < 3:
        parts, quartiles = [rows], {0: np.zeros(3)}
    joined: list[list[int]] = []
    for number in sorted(quartiles, key=lambda number: float(quartiles[number][1])):
        low, median, _ = quartiles[number]
        if joined and (
            median <= AGREE * quartiles[joined[-1][0]][1] or low <= max(quartiles[each][2] for each in joined[-1])
        ):
            joined[-1].append(number)
        else:
            joined.append([number])
    for numbers in joined:
        yield np.sort(np.concatenate([parts[number] for number in numbers]))
