"""What a pair's launches are worth: where each lies, which were disturbed, and whether CPU time may decide.

A launch lies at the low end of its samples, because other work on a machine only ever adds time. Launches and columns
are chosen by what tells of the machine (context switches, CPU time against wall time, a canary), never by the outcome.
"""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.gate.rule import noise
from rocattn_profiling.measure.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch

    Array = NDArray[np.float64]

LEAST = 3  # undisturbed launches a side without which nothing is said
LOW_END = 0.05  # quantile of a launch's samples: of ten, about the mean of the lowest two
_CPU_BOUND = (0.97, 1.05)  # CPU over wall time of undisturbed samples, on both sides
_KEPT_CPU = 0.97  # below this part of the usual CPU share, with context switches, a launch was pushed off its core
SLOW = 1.15  # times the usual time of the fixed work: a launch met a slow spell of the machine
_SLOW_CANARY = 1.25  # the same, and so slow that the launch does not count while there are others


def location(launches: Sequence[PairLaunch]) -> float | None:
    """Return the low end of one side in its unit: what a side is quoted as; None without launches."""
    lows = sorted(quantile(launch.samples, LOW_END) for launch in launches)[: noise.lowest(len(launches))]
    return sum(lows) / len(lows) if lows else None


def locations(launches: Sequence[PairLaunch], column: str) -> Array:
    """Return the low end of each launch, in logs."""
    return np.log([quantile(getattr(launch, column), LOW_END) for launch in launches])


def level(places: Array) -> float:
    """Return the low end of one side's locations, out of the logs."""
    return math.exp(float(np.sort(places)[: noise.lowest(len(places))].mean()))


def steady(pair: Pair) -> tuple[list[PairLaunch], list[PairLaunch]]:
    """Return the launches at the machine's usual speed, by the canary alone."""
    sides = (pair.a.launches, pair.b.launches)
    if not has_canary(pair):
        return sides
    limit = _SLOW_CANARY * _usual(pair)
    return [x for x in sides[0] if x.canary <= limit], [x for x in sides[1] if x.canary <= limit]


def spells(pair: Pair) -> float:
    """Return the share of a pair's launches that met a slow spell of the machine, by the canary; 0 without one."""
    if not has_canary(pair):
        return 0.0
    limit, launches = SLOW * _usual(pair), [*pair.a.launches, *pair.b.launches]
    return sum(launch.canary > limit for launch in launches) / len(launches)


def _usual(pair: Pair) -> float:
    return usual_canary([launch.canary for side in (pair.a, pair.b) for launch in side.launches])


def usual_canary(times: Sequence[float]) -> float:
    """Return how long the fixed work takes at the machine's usual speed: the median of the faster half."""
    return median(sorted(times)[: (len(times) + 1) // 2])


def has_canary(pair: Pair) -> bool:
    """Whether every launch timed the fixed work."""
    return all(launch.canary > 0 for side in (pair.a, pair.b) for launch in side.launches)


def speed(launches: Sequence[PairLaunch]) -> Array:
    """Return how long each launch took for the fixed work, in logs."""
    return np.log([launch.canary for launch in launches])


def interleaved(sides: Sequence[Sequence[PairLaunch]]) -> bool:
    """Whether not all launches of one side began before the other's; both sides have one or more."""
    a, b = ([launch.start_us for launch in side] for side in sides)
    return max(a) >= min(b) and max(b) >= min(a)


def cpu_bound(pair: Pair) -> tuple[bool, bool]:
    """Return whether the code itself keeps the core busy on both sides, and whether that is proven.

    It is, when CPU time is wall time in the samples that nothing interrupted. When every sample was interrupted it is
    taken for granted: such times say nothing as wall times.
    """
    proven = True
    for side in (pair.a, pair.b):
        if not _has_cpu(side.launches):
            return False, False
        shares = _quiet_shares(side.launches)
        if len(shares) < LEAST:
            proven = False
        elif not _CPU_BOUND[0] <= median(shares) <= _CPU_BOUND[1]:
            return False, False
    return True, proven


def usual_share(pair: Pair) -> float | None:
    """Return CPU over wall time of undisturbed samples; None when CPU time or switches are unknown."""
    launches = [*pair.a.launches, *pair.b.launches]
    if not _has_cpu(launches) or not all(launch.nivcsw for launch in launches):
        return None
    shares = _quiet_shares(launches)
    return median(shares) if len(shares) >= LEAST else 1.0


def pushed_off(launch: PairLaunch, usual: float | None) -> bool:
    """Whether other processes took the core in the launch's low samples."""
    if usual is None:
        return False
    places = _low_samples(launch)
    share = sum(launch.cpu[i] for i in places) / sum(launch.samples[i] for i in places)
    # Without a forced switch, time off the core is a sleep or a lock of the code's own.
    return share < _KEPT_CPU * usual and sum(launch.nivcsw[i] for i in places) > 0


def quantum(pair: Pair, column: str) -> float:
    """Return the noise of a coarse clock: a tick's standard deviation, relative, where samples repeat."""
    ticks = 0.0
    for side in (pair.a, pair.b):
        values = [value for launch in side.launches for value in getattr(launch, column)]
        distinct = sorted(set(values))
        if 2 <= len(distinct) <= len(values) / 3:
            ticks = max(ticks, min(b - a for a, b in itertools.pairwise(distinct)) / distinct[0])
    return ticks / math.sqrt(12)


def _has_cpu(launches: Sequence[PairLaunch]) -> bool:
    return bool(launches) and all(launch.cpu and min(launch.cpu) > 0 for launch in launches)


def _low_samples(launch: PairLaunch) -> list[int]:
    """Return the places of the launch's lowest third of samples."""
    order = sorted(range(len(launch.samples)), key=launch.samples.__getitem__)
    return order[: max(1, len(order) // 3)]


def _quiet_shares(launches: Sequence[PairLaunch]) -> list[float]:
    """Return CPU over wall time of the samples that nothing interrupted.

    Where switches were not counted these are the highest third: code that waits by itself never keeps the core.
    """
    if all(launch.nivcsw for launch in launches):
        return [
            cpu / wall
            for launch in launches
            for wall, cpu, switched in zip(launch.samples, launch.cpu, launch.nivcsw, strict=True)
            if wall and not switched
        ]
    times = (time for launch in launches for time in zip(launch.samples, launch.cpu, strict=True))
    shares = sorted((cpu / wall for wall, cpu in times if wall), reverse=True)
    return shares[: max(1, len(shares) // 3)]
