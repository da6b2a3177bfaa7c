"""One look at one pair: what its launches say so far, before looks and suite are paid for.

A change needs all of: a probability below the level that it is within the nuisance margin, an estimate of at least the
smallest reportable size and the absolute floor, wall time that does not contradict where CPU time decides, a canary
(fixed work in the same processes) that did not move along, and launches that two modes of one benchmark do not explain.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocattn_profiling.gate import noise
from rocattn_profiling.gate.pairs import TIMES
from rocattn_profiling.measure.stats import LOCATION_QUANTILE, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rocattn_profiling.gate.pairs import Pair, PairLaunch

FULL_LOOKS = (5, 10, 15, 20)
QUICK_LOOKS = (5, 8, 12)
_FIRST_SHARE = 0.5  # of the level goes to the first look: large changes should not need a second
_CPU_BOUND = (0.97, 1.05)  # CPU over wall time of undisturbed samples, on both sides
_KEPT_CPU = 0.97  # below this part of the usual CPU share, with context switches, a launch was pushed off its core
_SLOW_CANARY = 1.25  # fixed work this much slower than in the better half of all launches: a slow spell of the machine
_CONTRADICTED = 0.05  # probability of a change in wall time below which it contradicts CPU time
_LEAST = 3  # undisturbed launches a side without which nothing is said
_AGAINST_MODES = 30.0  # Bayes factor that a change needs against two modes of unchanged code
_AGAINST_FAR_MODES = 5.0  # the same from _FAR on: modes (layout, placement) are seldom so far apart
_FAR = math.log1p(0.15)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, written into every verdict.

    Attributes:
        min_effect: Smallest relative change that must not be missed: the tolerance of a pass.
        level: Chance of a false regression over the whole suite (Holm); half of it is that of a false pass.
        benchmark_level: Probability, over all looks, at which a single benchmark fails, however small the suite.
        looks: Rounds after which the data are judged; half of the level goes to the first, the rest to the others.
        prior_noise: Launch noise in logs expected of a benchmark without a history.
    """

    min_effect: float = 0.05
    level: float = 0.05
    benchmark_level: float = 0.01
    looks: tuple[int, ...] = FULL_LOOKS
    prior_noise: float = 0.015

    @property
    def margin(self) -> float:
        """Shift in logs that nuisances (layout, import order) may cause; significance is judged against it."""
        return math.log1p(0.2 * self.min_effect)

    @property
    def least(self) -> float:
        """Smallest estimate in logs that is called a change."""
        return math.log1p(0.4 * self.min_effect)

    @property
    def tolerance(self) -> float:
        """Change in logs that a pass excludes."""
        return math.log1p(self.min_effect)

    def share(self, index: int) -> float:
        """Return the part of the level that the look of this index (from 0) spends."""
        return _FIRST_SHARE if index == 0 else (1 - _FIRST_SHARE) / (len(self.looks) - 1)


class Look(NamedTuple):
    """What the launches so far say about one pair; probabilities are not yet paid for looks or the suite.

    Attributes:
        p_up, p_down: That the change is not above (below) the margin; 1 when a condition fails that is not of chance.
        p_same: That the change is at least what must not be missed.
        base: Low end of base, in the pair's unit, in the quantity that ``reason`` names.
        change: The change; None when nothing can be said.
        reason: "wall time", "CPU time" or "its value"; else why nothing can be said.
    """

    p_up: float
    p_down: float
    p_same: float
    base: float
    change: noise.Change | None
    reason: str


def without_ratio(pair: Pair) -> str:
    """Say why a pair has no ratio: values of zero, or all alike."""
    values = {value for side in (pair.a, pair.b) for launch in side.launches for value in launch.samples}
    if len(values) == 1:
        return f"identical: every sample of both sides is {next(iter(values)):g}"
    return "a value of 0 has no ratio to compare" if 0.0 in values else ""


def location(launches: Sequence[PairLaunch]) -> float | None:
    """Return the low end of one side in its unit: what a side is quoted as; None without launches."""
    lows = sorted(quantile(launch.samples, LOCATION_QUANTILE) for launch in launches)[: noise.lowest(len(launches))]
    return sum(lows) / len(lows) if lows else None


def examine(pair: Pair, policy: Policy) -> Look:
    """Look at one pair's launches once.

    Args:
        pair: Positive, finite samples.
        policy: The rule.
    """
    fewest = pair.rounds
    if fewest < _LEAST:
        return Look(1.0, 1.0, 1.0, 0.0, None, f"{fewest} launches a side are too few to tell anything from noise")
    steady = _steady(pair)
    usual = _usual_share(pair)
    clean = [[launch for launch in side if not _pushed_off(launch, usual)] for side in steady]
    enough = min(len(side) for side in clean) >= _LEAST
    bound, proven = _cpu_bound(pair)
    if min(len(side) for side in steady) < _LEAST or not (enough or bound):
        a, b = (_locations(side.launches, "samples") for side in (pair.a, pair.b))
        seen = noise.change(a, b, _prior(pair, "samples", policy))
        why = "too noisy: the machine was busy or slow in most launches of a side"
        return Look(1.0, 1.0, 1.0, _level(a), seen, why)
    # CPU time does not count what other processes took, so even disturbed launches can be used.
    kept, column = (steady, "cpu") if bound else (clean, "samples")
    single = all(len(x.samples) == 1 for side in (pair.a, pair.b) for x in side.launches)
    name = "CPU time" if bound else "its value" if single and pair.a.unit not in TIMES else "wall time"
    a, b = (_locations(side, column) for side in kept)
    prior = _prior(pair, column, policy)
    seen = noise.change(a, b, prior)
    p_up, p_down = seen.p_below(policy.margin), seen.p_above(-policy.margin)
    if min(p_up, p_down) <= policy.benchmark_level:
        wall = clean if bound and enough else None
        if not _counts(pair, (a, b), seen, prior, policy) or (wall and _contradicted(wall, seen, policy)):
            p_up = p_down = 1.0
    # Where every sample was interrupted, a wait of the code's own cannot be told from an interruption.
    p_same = _p_same(pair, _level(a), seen, policy) if proven or not bound else 1.0
    return Look(p_up, p_down, p_same, _level(a), seen, name)


def launch_noise(pair: Pair, policy: Policy) -> float:
    """Return the launch-to-launch noise of a pair in the quantity that decides it, in logs; the prior's without any."""
    seen = examine(pair, policy).change
    return policy.prior_noise if seen is None else seen.noise


def _counts(
    pair: Pair,
    sides: tuple[NDArray[np.float64], NDArray[np.float64]],
    seen: noise.Change,
    prior: NDArray[np.float64],
    policy: Policy,
) -> bool:
    """Whether a significant change is large enough, the code's own, and not two modes of one benchmark."""
    absolute = abs(math.expm1(seen.shift)) * _level(sides[0])
    if abs(seen.shift) < policy.least or absolute < pair.floor:
        return False
    if _canary_moved_along(pair, seen.shift):
        return False
    needed = _AGAINST_FAR_MODES if abs(seen.shift) >= _FAR else _AGAINST_MODES
    return noise.against_modes(*sides, seen, prior) >= needed


def _contradicted(clean: Sequence[Sequence[PairLaunch]], seen: noise.Change, policy: Policy) -> bool:
    """Whether wall time makes a change that CPU time shows improbable."""
    a, b = (_locations(side, "samples") for side in clean)
    wall = noise.change(a, b, noise.learned(policy.prior_noise, []))
    agreeing = wall.p_above(policy.margin) if seen.shift > 0 else wall.p_below(-policy.margin)
    return agreeing < _CONTRADICTED


def _p_same(pair: Pair, base: float, seen: noise.Change, policy: Policy) -> float:
    """Return the probability that the change is at least what matters: small means the pair passes."""
    least = max(policy.tolerance, math.log1p(pair.floor / base))
    return max(seen.p_above(least), seen.p_below(-least))


def _prior(pair: Pair, column: str, policy: Policy) -> NDArray[np.float64]:
    """Return what is known of the noise before this session: the prior, the clock's coarseness, the history."""
    sessions = [
        _locations(session, column)
        for side in (pair.a, pair.b)
        for session in side.history
        if len(session) >= _LEAST
        and all(getattr(launch, column) and min(getattr(launch, column)) > 0 for launch in session)
    ]
    return noise.learned(max(policy.prior_noise, _quantum(pair, column)), sessions)


def _locations(launches: Sequence[PairLaunch], column: str) -> NDArray[np.float64]:
    """Return the low end of each launch, in logs."""
    return np.log([quantile(getattr(launch, column), LOCATION_QUANTILE) for launch in launches])


def _level(locations: NDArray[np.float64]) -> float:
    """Return the low end of one side's locations, out of the logs."""
    return math.exp(float(np.sort(locations)[: noise.lowest(len(locations))].mean()))


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
    rows = [
        (cpu / wall, switched)
        for launch in launches
        for wall, cpu, switched in zip(launch.samples, launch.cpu, launch.nivcsw or [-1] * len(launch.cpu), strict=True)
        if wall
    ]
    if any(switched < 0 for _, switched in rows):
        shares = sorted((share for share, _ in rows), reverse=True)
        return shares[: max(1, len(shares) // 3)]
    return [share for share, switched in rows if not switched]


def _cpu_bound(pair: Pair) -> tuple[bool, bool]:
    """Return whether the code itself keeps the core busy on both sides, and whether that is proven.

    It is, when CPU time is wall time in the samples that nothing interrupted. When every sample was interrupted it is
    taken for granted: such times say nothing as wall times.
    """
    proven = True
    for side in (pair.a, pair.b):
        if not _has_cpu(side.launches):
            return False, False
        shares = _quiet_shares(side.launches)
        if len(shares) < _LEAST:
            proven = False
        elif not _CPU_BOUND[0] <= float(np.median(shares)) <= _CPU_BOUND[1]:
            return False, False
    return True, proven


def _usual_share(pair: Pair) -> float | None:
    """Return CPU over wall time of undisturbed samples; None when CPU time or switches are unknown."""
    launches = [*pair.a.launches, *pair.b.launches]
    if not _has_cpu(launches) or not all(launch.nivcsw for launch in launches):
        return None
    shares = _quiet_shares(launches)
    return float(np.median(shares)) if len(shares) >= _LEAST else 1.0


def _pushed_off(launch: PairLaunch, usual: float | None) -> bool:
    """Whether other processes took the core in the launch's low samples."""
    if usual is None:
        return False
    places = _low_samples(launch)
    share = sum(launch.cpu[i] for i in places) / sum(launch.samples[i] for i in places)
    # Without a forced switch, time off the core is a sleep or a lock of the code's own.
    return share < _KEPT_CPU * usual and sum(launch.nivcsw[i] for i in places) > 0


def _steady(pair: Pair) -> tuple[list[PairLaunch], list[PairLaunch]]:
    """Return the launches at the machine's usual speed, chosen by the canary alone, never by the outcome."""
    sides = (pair.a.launches, pair.b.launches)
    if not _has_canary(pair):
        return sides
    canaries = sorted(launch.canary for side in sides for launch in side)
    limit = _SLOW_CANARY * float(np.median(canaries[: (len(canaries) + 1) // 2]))
    return [x for x in sides[0] if x.canary <= limit], [x for x in sides[1] if x.canary <= limit]


def _has_canary(pair: Pair) -> bool:
    return all(launch.canary > 0 for side in (pair.a, pair.b) for launch in side.launches)


def canary_change(pair: Pair) -> noise.Change | None:
    """Return head minus base of the fixed work, in logs; None when it was not measured."""
    if not _has_canary(pair) or not pair.rounds:
        return None
    a, b = (np.log([launch.canary for launch in side.launches]) for side in (pair.a, pair.b))
    return noise.change(a, b, noise.learned(Policy().prior_noise, []))


def _canary_moved_along(pair: Pair, shift: float) -> bool:
    """Whether fixed work changed, too, by at least half as much in the same direction."""
    canary = canary_change(pair)
    if canary is None or canary.shift * shift <= 0 or abs(canary.shift) <= 0.5 * abs(shift):
        return False
    return (canary.p_below(0.0) if shift > 0 else canary.p_above(0.0)) < _CONTRADICTED


def _quantum(pair: Pair, column: str) -> float:
    """Return the noise of a coarse clock: a tick's standard deviation, relative, where samples repeat."""
    ticks = 0.0
    for side in (pair.a, pair.b):
        values = [value for launch in side.launches for value in getattr(launch, column)]
        distinct = sorted(set(values))
        if 2 <= len(distinct) <= len(values) / 3:
            ticks = max(ticks, min(b - a for a, b in itertools.pairwise(distinct)) / distinct[0])
    return ticks / math.sqrt(12)
