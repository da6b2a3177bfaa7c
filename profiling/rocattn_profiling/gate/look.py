"""One look at one pair: what its launches say so far, before looks and suite are paid for.

A regression needs all of: a low-end shift of at least the minimum effect and the absolute floor, a moderated t
against a nuisance margin, an exact permutation of the launches that agrees, CPU time that agrees when the benchmark is
CPU-bound, and a canary (fixed work in the same processes) that did not move along.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocattn_profiling.gate import lowend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rocattn_profiling.gate.pairs import Pair, PairLaunch

FULL_LOOKS = (5, 10, 15, 20)
QUICK_LOOKS = (5, 8, 12)
_CPU_BOUND = (0.97, 1.05)  # CPU over wall time of the low samples, on both sides
_KEPT_CPU = 0.97  # below it, with context switches, a launch was pushed off its core
_SLOW_CANARY = 1.25  # fixed work this much slower than in the better half of all launches: a slow spell of the machine
_VETO = 0.5  # wall time must show this share of the minimum effect before CPU time may call a regression
_LEAST = 3  # undisturbed launches a side without which nothing is said


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, written into every verdict.

    Attributes:
        min_effect: Smallest relative change that counts, and the tolerance of a pass.
        margin: Shift that nuisances (layout, import order) may cause; significance is judged against it.
        level: Chance of a false regression over the whole suite (Holm); also of a false pass of a benchmark.
        benchmark_level: The same for a single benchmark, however small the suite.
        looks: Rounds after which the data are judged; the level is spent evenly over them.
        permutation: Largest p of the permutation check; ``permutation_large`` from ``large_effect`` on, which two modes
            of a benchmark seldom differ by.
        prior_noise, prior_freedom: Launch noise in logs assumed before any is seen, and its weight.
    """

    min_effect: float = 0.05
    margin: float = 0.02
    level: float = 0.05
    benchmark_level: float = 0.002
    looks: tuple[int, ...] = FULL_LOOKS
    permutation: float = 0.02
    permutation_large: float = 0.03
    large_effect: float = 0.15
    prior_noise: float = 0.015
    prior_freedom: float = 4.0


class Series(NamedTuple):
    """Locations of both sides in one quantity, in logs, shapes [n] and [m]."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]


class Look(NamedTuple):
    """What the launches so far say about one pair; p-values are not yet paid for looks or the suite."""

    p_up: float
    p_down: float
    p_same: float
    base: float
    difference: lowend.Difference | None
    reason: str


def without_ratio(pair: Pair) -> str:
    """Say why a pair has no ratio: values of zero, or all alike."""
    values = {value for side in (pair.a, pair.b) for launch in side.launches for value in launch.samples}
    if len(values) == 1:
        return f"identical: every sample of both sides is {next(iter(values)):g}"
    return "a value of 0 has no ratio to compare" if 0.0 in values else ""


def location(launches: Sequence[PairLaunch]) -> float | None:
    """Return the low end of one side in its unit: what a side is quoted as; None without launches."""
    lows = sorted(lowend.low_end(launch.samples) for launch in launches)[: lowend.lowest(len(launches))]
    return sum(lows) / len(lows) if lows else None


def examine(pair: Pair, policy: Policy, prior: float) -> Look:
    """Look at one pair's launches once.

    Args:
        pair: Positive, finite samples.
        policy: The rule.
        prior: Launch noise of the session, in logs.
    """
    fewest = pair.rounds
    if fewest < _LEAST:
        return Look(1.0, 1.0, 1.0, 0.0, None, f"{fewest} launches a side are too few to tell anything from noise")
    history = _history_noise(pair)
    prior = max(prior if history is None else history, _quantum(pair))
    wall = _series(pair.a.launches, pair.b.launches, "samples")
    single = all(len(x.samples) == 1 for side in (pair.a, pair.b) for x in side.launches)
    main, name = wall, "its value" if single and pair.a.unit not in {"ns", "us", "ms", "s", "seconds"} else "wall time"
    steady = _steady(pair)
    clean = [[launch for launch in side if not _pushed_off(launch, pair)] for side in steady]
    enough = min(len(side) for side in clean) >= _LEAST
    bound = all(_is_cpu_bound(side) for side in steady)
    if min(len(side) for side in steady) < _LEAST or not (enough or bound):
        seen = lowend.difference(wall.a, wall.b, prior, policy.prior_freedom)
        return Look(
            1.0, 1.0, 1.0, _level(wall.a), seen, "too noisy: the machine was busy or slow in most launches of a side"
        )
    kept = clean if enough else steady
    wall = main = _series(kept[0], kept[1], "samples")
    if bound:  # CPU time does not count what other processes took, so even disturbed launches can be used
        main, name = _series(kept[0], kept[1], "cpu"), "CPU time"
    seen = lowend.difference(main.a, main.b, prior, policy.prior_freedom)
    # Wall time must agree with CPU time, where there are launches to ask.
    agreeing = lowend.difference(wall.a, wall.b, prior, policy.prior_freedom) if bound and enough else seen
    canary = canary_shift(pair)
    up = _p_one_way(pair, main, seen, agreeing, canary, policy, sign=1.0)
    down = _p_one_way(pair, main, seen, agreeing, canary, policy, sign=-1.0)
    return Look(up, down, _p_same(pair, main, seen, policy), _level(main.a), seen, name)


def _p_one_way(
    pair: Pair,
    main: Series,
    seen: lowend.Difference,
    wall: lowend.Difference,
    canary: float,
    policy: Policy,
    *,
    sign: float,
) -> float:
    """Return the p of a change in one direction, or 1 when a condition that is no matter of chance fails."""
    least = math.log1p(policy.min_effect)
    shift = sign * seen.shift
    base = _level(main.a)
    too_small = shift < least or abs(math.expm1(seen.shift)) * base < pair.floor
    if too_small or sign * wall.shift < _VETO * least or sign * canary > 0.5 * shift:
        return 1.0
    low, high = (main.a, main.b) if sign > 0 else (main.b, main.a)
    large = shift >= math.log1p(policy.large_effect)
    if lowend.permutation_p(low, high) > (policy.permutation_large if large else policy.permutation):
        return 1.0
    margin = math.log1p(policy.margin)
    return seen.p_above(margin) if sign > 0 else seen.p_below(-margin)


def _p_same(pair: Pair, main: Series, seen: lowend.Difference, policy: Policy) -> float:
    """Return the p of "the slowdown is at least what matters": small means the pair passes."""
    base = _level(main.a)
    least = max(math.log1p(policy.min_effect), math.log1p(pair.floor / base))
    return max(seen.p_below(least), seen.p_above(-least))


def _series(a: Sequence[PairLaunch], b: Sequence[PairLaunch], column: str) -> Series:
    locations = [np.log([lowend.low_end(getattr(launch, column)) for launch in side]) for side in (a, b)]
    return Series(*locations)


def _level(locations: NDArray[np.float64]) -> float:
    """Return the low end of one side's locations, out of the logs."""
    return math.exp(float(np.sort(locations)[: lowend.lowest(len(locations))].mean()))


def _low_samples(launch: PairLaunch) -> list[int]:
    """Return the places of the launch's lowest third of samples."""
    order = sorted(range(len(launch.samples)), key=launch.samples.__getitem__)
    return order[: max(1, len(order) // 3)]


def _launch_share(launch: PairLaunch) -> float:
    places = _low_samples(launch)
    return sum(launch.cpu[i] for i in places) / sum(launch.samples[i] for i in places)


def _has_cpu(launches: Sequence[PairLaunch]) -> bool:
    return all(launch.cpu and min(launch.cpu) > 0 for launch in launches)


def _is_cpu_bound(launches: Sequence[PairLaunch]) -> bool:
    """Whether the code itself keeps the core busy: in the samples that nothing interrupted, CPU time is wall time."""
    if not launches or not _has_cpu(launches):
        return False
    shares = []
    for launch in launches:
        switches = launch.nivcsw or [0] * len(launch.samples)
        rows = zip(launch.samples, launch.cpu, switches, strict=True)
        shares += [cpu / wall for wall, cpu, switched in rows if not switched and wall]
    return len(shares) >= _LEAST and _CPU_BOUND[0] <= float(np.median(shares)) <= _CPU_BOUND[1]


def _steady(pair: Pair) -> tuple[list[PairLaunch], list[PairLaunch]]:
    """Return the launches at the machine's usual speed, chosen by the canary alone, never by the outcome."""
    sides = (pair.a.launches, pair.b.launches)
    if not all(launch.canary > 0 for side in sides for launch in side):
        return sides
    canaries = sorted(launch.canary for side in sides for launch in side)
    limit = _SLOW_CANARY * float(np.median(canaries[: (len(canaries) + 1) // 2]))
    return [x for x in sides[0] if x.canary <= limit], [x for x in sides[1] if x.canary <= limit]


def _pushed_off(launch: PairLaunch, pair: Pair) -> bool:
    """Whether other processes took the core in the launch's low samples."""
    if not _has_cpu(pair.a.launches) or not _has_cpu(pair.b.launches) or _launch_share(launch) >= _KEPT_CPU:
        return False
    # Without switch counts, time off the core may as well be a sleep or a lock: only a switch makes it a disturbance.
    return bool(launch.nivcsw) and sum(launch.nivcsw[i] for i in _low_samples(launch)) > 0


def canary_shift(pair: Pair) -> float:
    """Return head minus base of the fixed work, in logs; 0 when it was not measured."""
    launches = (pair.a.launches, pair.b.launches)
    if not all(launch.canary > 0 for side in launches for launch in side):
        return 0.0
    low = [np.sort(np.log([launch.canary for launch in side]))[: lowend.lowest(len(side))].mean() for side in launches]
    return float(low[1] - low[0])


def _quantum(pair: Pair) -> float:
    """Return the noise of a coarse clock: a tick's standard deviation, relative, where samples repeat."""
    ticks = 0.0
    for side in (pair.a, pair.b):
        values = [value for launch in side.launches for value in launch.samples]
        distinct = sorted(set(values))
        if 2 <= len(distinct) <= len(values) / 3:
            ticks = max(ticks, min(b - a for a, b in itertools.pairwise(distinct)) / distinct[0])
    return ticks / math.sqrt(12)


def _history_noise(pair: Pair) -> float | None:
    """Return the launch noise that earlier sessions showed, in logs; None without any."""
    seen = weight = 0.0
    for side in (pair.a, pair.b):
        for session in side.history:
            if len(session) >= _LEAST:
                facts = lowend.order_facts(len(session))
                low = np.sort(np.log([lowend.low_end(x.samples) for x in session]))[: lowend.lowest(len(session))]
                seen += facts.freedom * float(low.var(ddof=1)) / facts.spread
                weight += facts.freedom
    # A floor keeps a few lucky sessions from claiming that a shared machine has no noise.
    return max(math.sqrt(seen / weight), 0.004) if weight else None
