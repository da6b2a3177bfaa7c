"""Chooses which launches of a pair count, and whether CPU time or wall time decides.

The location of a launch is a low quantile of its samples, because other work on a machine only ever adds time. Launches
and the column are chosen by observations of the machine (context switches, CPU time against wall time, the canary),
never by the outcome.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.constants import CPU_BOUND, KEPT_CORE, MIN_LAUNCHES, SLOW, VERY_SLOW
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch
from rocattn_profiling.measure.stats import low_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Column = Literal["cpu", "samples"]


class Selection(NamedTuple):
    """The launches that count.

    Attributes:
        kept: Launches of base and of head.
        column: The quantity to compare: CPU time if the benchmark is CPU-bound, otherwise wall time or value.
        disturbed: Whether a side has too few undisturbed launches: ``kept`` has all, and nothing can be decided.
        proven: Whether some samples were not interrupted; if none, waits in the code cannot be told from interruptions.
        wall: Launches whose wall time must not contradict a change in CPU time; None if there are too few.
        interruptions_known: Whether CPU time and context switches were recorded.
    """

    kept: tuple[Sequence[PairLaunch], Sequence[PairLaunch]]
    column: Column
    disturbed: bool
    proven: bool
    wall: tuple[Sequence[PairLaunch], Sequence[PairLaunch]] | None
    interruptions_known: bool


def choose(pair: Pair) -> Selection:
    """Choose launches and column. CPU time excludes other processes, so it can use disturbed launches."""
    bound, proven = cpu_bound(pair)
    usable = steady(pair)
    if bound and _fewest(usable) < MIN_LAUNCHES:  # the canary adjustment handles slow launches
        usable = (pair.a.launches, pair.b.launches)
    usual = usual_share(pair)
    clean = (
        [launch for launch in usable[0] if not pushed_off(launch, usual)],
        [launch for launch in usable[1] if not pushed_off(launch, usual)],
    )
    enough = _fewest(clean) >= MIN_LAUNCHES
    known = usual is not None
    if _fewest(usable) < MIN_LAUNCHES or not (enough or bound):
        return Selection((pair.a.launches, pair.b.launches), "samples", True, proven, None, known)
    if bound:
        return Selection(usable, "cpu", False, proven, clean if enough else None, known)
    return Selection(clean, "samples", False, True, None, known)


def _fewest(sides: Sequence[Sequence[PairLaunch]]) -> int:
    return min(len(side) for side in sides)


def location(launches: Sequence[PairLaunch]) -> float | None:
    """Return a side's quoted value, in its unit: the mean of its low locations; None without launches."""
    low = sorted(low_quantile(launch.samples) for launch in launches)[: noise.low_count(len(launches))]
    return sum(low) / len(low) if low else None


def locations(launches: Sequence[PairLaunch], column: Column) -> Array:
    """Return the location of each launch, in logs."""
    return np.log([low_quantile(getattr(launch, column)) for launch in launches])


def level(logs: Array) -> float:
    """Return a side's quoted value from its locations in logs."""
    return math.exp(float(np.sort(logs)[: noise.low_count(len(logs))].mean()))


def steady(pair: Pair) -> tuple[list[PairLaunch], list[PairLaunch]]:
    """Return the launches of both sides during which, by the canary alone, the machine was not very slow."""
    sides = (pair.a.launches, pair.b.launches)
    if not has_canary(pair):
        return sides
    limit = VERY_SLOW * _usual(pair)
    return [x for x in sides[0] if x.canary <= limit], [x for x in sides[1] if x.canary <= limit]


def slow_share(pair: Pair) -> float:
    """Return the share of a pair's launches in slow spells of the machine, by the canary; 0 without a canary."""
    if not has_canary(pair):
        return 0.0
    limit, launches = SLOW * _usual(pair), [*pair.a.launches, *pair.b.launches]
    return sum(launch.canary > limit for launch in launches) / len(launches)


def _usual(pair: Pair) -> float:
    return usual_canary([launch.canary for side in (pair.a, pair.b) for launch in side.launches])


def usual_canary(times: Sequence[float]) -> float:
    """Return the canary's time at the machine's usual speed: the median of the faster half."""
    return median(sorted(times)[: (len(times) + 1) // 2])


def has_canary(pair: Pair) -> bool:
    """Whether every launch timed the canary."""
    return all(launch.canary > 0 for side in (pair.a, pair.b) for launch in side.launches)


def canary_times(launches: Sequence[PairLaunch]) -> Array:
    """Return each launch's time for the canary, in logs."""
    return np.log([launch.canary for launch in launches])


def interleaved(sides: Sequence[Sequence[PairLaunch]]) -> bool:
    """Whether the sides overlap in time: neither's launches all began before the other's. No side may be empty."""
    a, b = ([launch.start_us for launch in side] for side in sides)
    return max(a) >= min(b) and max(b) >= min(a)


def cpu_bound(pair: Pair) -> tuple[bool, bool]:
    """Return whether the code keeps its core busy on both sides, and whether undisturbed samples prove that.

    It does if CPU time equals wall time in uninterrupted samples. If every sample was interrupted it is assumed, since
    their wall times show nothing.
    """
    proven = True
    for side in (pair.a, pair.b):
        if not _has_cpu(side.launches):
            return False, False
        shares = _undisturbed_shares(side.launches)
        if len(shares) < MIN_LAUNCHES:
            proven = False
        elif not CPU_BOUND[0] <= median(shares) <= CPU_BOUND[1]:
            return False, False
    return True, proven


def usual_share(pair: Pair) -> float | None:
    """Return CPU time over wall time of undisturbed samples; None if CPU time or switches are unknown."""
    launches = [*pair.a.launches, *pair.b.launches]
    if not _has_cpu(launches) or not all(launch.nivcsw for launch in launches):
        return None
    shares = _undisturbed_shares(launches)
    return median(shares) if len(shares) >= MIN_LAUNCHES else 1.0


def pushed_off(launch: PairLaunch, usual: float | None) -> bool:
    """Whether other processes took the core during the launch's low samples."""
    if usual is None:
        return False
    low = _low_samples(launch)
    share = sum(launch.cpu[i] for i in low) / sum(launch.samples[i] for i in low)
    # Without an involuntary switch, time off the core is a sleep or a lock in the code.
    return share < KEPT_CORE * usual and sum(launch.nivcsw[i] for i in low) > 0


def clock_noise(pair: Pair, column: Column) -> float:
    """Return the noise of a coarse clock, seen in repeating samples: the relative standard deviation of one tick."""
    tick = 0.0
    for side in (pair.a, pair.b):
        values = [value for launch in side.launches for value in getattr(launch, column)]
        distinct = sorted(set(values))
        if 2 <= len(distinct) <= len(values) / 3:
            tick = max(tick, min(b - a for a, b in itertools.pairwise(distinct)) / distinct[0])
    return tick / math.sqrt(12)


def _has_cpu(launches: Sequence[PairLaunch]) -> bool:
    return bool(launches) and all(launch.cpu and min(launch.cpu) > 0 for launch in launches)


def _low_samples(launch: PairLaunch) -> list[int]:
    """Return the indices of the launch's lowest third of samples."""
    order = sorted(range(len(launch.samples)), key=launch.samples.__getitem__)
    return order[: max(1, len(order) // 3)]


def _undisturbed_shares(launches: Sequence[PairLaunch]) -> list[float]:
    """Return CPU time over wall time of the uninterrupted samples.

    If switches were not counted, the highest third stands in for them: code that waits never keeps its core.
    """
    if all(launch.nivcsw for launch in launches):
        return [
            cpu / wall
            for launch in launches
            for wall, cpu, switches in zip(launch.samples, launch.cpu, launch.nivcsw, strict=True)
            if wall and not switches
        ]
    times = (time for launch in launches for time in zip(launch.samples, launch.cpu, strict=True))
    shares = sorted((cpu / wall for wall, cpu in times if wall), reverse=True)
    return shares[: max(1, len(shares) // 3)]
