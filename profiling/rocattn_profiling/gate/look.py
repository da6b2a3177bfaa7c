"""One look at one pair: what its launches say so far, before looks and suite are paid for.

A change needs a probability below the level that it is within the nuisance margin, or that something else explains it
(a slow state of one side, two modes of unchanged code), and an estimate of at least the smallest reportable size and
the absolute floor. `rocattn_profiling.gate.vetoes` takes back what the machine did.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocattn_profiling.gate import doubts, noise, readings, vetoes
from rocattn_profiling.gate.launches import LEAST, LOW_END, cpu_bound, level, pushed_off, spells, steady, usual_share
from rocattn_profiling.gate.pairs import TIMES
from rocattn_profiling.measure.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.gate.launches import Array
    from rocattn_profiling.gate.pairs import Pair, PairLaunch
    from rocattn_profiling.gate.posterior import Change

FULL_LOOKS = (5, 10, 15, 20)
QUICK_LOOKS = (5, 8, 12)
_FIRST_SHARE = 0.5  # of a pass's level goes to the first look: most unchanged code should not need a second
_BLIND = 1.25  # factor on the probability of a change in wall time when nothing tells which launches were interrupted
_SPELL = 5.0  # on every probability where all launches met slow spells of the machine, by the canary; 1 where none did
_LEFT = (0.015, 0.04)  # launch noise in logs up to which the canary explains such spells, and from which on it does not
# Factor on the level at a last look: up to ten rounds, and after twenty.
_LENIENT, _LENIENT_ADJUSTED, _LENIENT_MOST = 2.5, 3.5, 4.0
_DOUBTED = 0.2  # probability from which on nothing is called a change, so that doubts need not be asked


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, written into every verdict.

    Attributes:
        min_effect: Smallest relative change that must not be missed: the tolerance of a pass.
        level: Chance of a false regression over the whole suite (Holm); half of it is that of a false pass.
        benchmark_level: Probability at which a single benchmark fails at a look that others follow, however small the
            suite.
        looks: Rounds after which the data are judged.
        prior_noise: Launch noise in logs expected of a benchmark without a history.
        floor: Absolute change of one call that is too small to matter, in ns for times, else in the pair's own unit;
            the pair's own floor counts where it is larger.
    """

    min_effect: float = 0.05
    level: float = 0.05
    benchmark_level: float = 0.025
    looks: tuple[int, ...] = FULL_LOOKS
    prior_noise: float = 0.02
    floor: float = 0.0

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

    def leniency(self, rounds: int, *, adjusted: bool) -> float:
        """Return the factor on the level at the look after so many rounds.

        The last look has more than its share: what is undecided there would never be found. The more launches, the
        more the margin and the doubts make of the probability, so the factor grows with them; with the machine's speed
        taken out less is left that they do not cover (docs/gate-measured.md). Three or four launches are too few to be
        lenient with.

        Args:
            rounds: Launches a side.
            adjusted: Whether the machine's speed explains the launches and was taken out (`Look.adjusted`).
        """
        if rounds < self.looks[-1]:
            return 1.0
        if rounds < FULL_LOOKS[0]:
            return 0.5
        fewest, most = FULL_LOOKS[1], FULL_LOOKS[-1]
        start = _LENIENT_ADJUSTED if adjusted else _LENIENT
        return start + (_LENIENT_MOST - start) * (min(max(rounds, fewest), most) - fewest) / (most - fewest)

    def pass_share(self, index: int) -> float:
        """Return the part of a pass's level that the look of this index (from 0) spends: half, then equal parts."""
        return _FIRST_SHARE if index == 0 else (1 - _FIRST_SHARE) / (len(self.looks) - 1)


class Estimate(NamedTuple):
    """What is told of a `posterior.Change`, without its posterior, of which every pair would keep up to 200 kB."""

    shift: float
    low: float
    high: float
    noise: float


class Look(NamedTuple):
    """What the launches so far say about one pair; probabilities are not yet paid for looks or the suite.

    Attributes:
        p_up, p_down: That the change is not above (below) the margin; 1 when a condition fails that is not of chance.
        p_same: That the change is at least what must not be missed.
        base: Low end of base, in the pair's unit, in the quantity that ``reason`` names.
        change: The change; None when nothing can be said, or no ratio (`by_rank`).
        reason: "wall time", "CPU time" or "its value"; else why nothing can be said.
        note: What a reader must know beside it; else empty.
        clock: Time changed, and the GPU's cycles do not bear it out.
        adjusted: The machine's speed explains the launches, and was taken out of them (`readings.tells`).
        shares: What each round contributes to the change, in logs (`noise.influences`), shape [side, round]; NaN for a
            launch that does not count, None where it was not asked for.
    """

    p_up: float
    p_down: float
    p_same: float
    base: float
    change: Estimate | None
    reason: str
    note: str = ""
    clock: bool = False
    adjusted: bool = False
    shares: Array | None = None


def identical(pair: Pair) -> str:
    """Say so if every sample of both sides is the same number."""
    values = {value for side in (pair.a, pair.b) for launch in side.launches for value in launch.samples}
    return f"identical: every sample of both sides is {next(iter(values)):g}" if len(values) == 1 else ""


def has_zero(pair: Pair) -> bool:
    """Whether a sample is 0, of which there is no ratio and no logarithm."""
    return any(0.0 in launch.samples for side in (pair.a, pair.b) for launch in side.launches)


def by_rank(pair: Pair, policy: Policy) -> Look:
    """Look at a pair that holds zeros: it changed if every launch of one side is above every one of the other.

    Of launches in random order that happens with a probability of one over the ways to choose a side's among all. The
    sizes that count hold here too: the absolute floor, and the smallest relative change where neither side is at 0.

    Args:
        pair: Finite samples, none below 0.
        policy: The rule.
    """
    a, b = ([quantile(launch.samples, LOW_END) for launch in side.launches] for side in (pair.a, pair.b))
    middles = (median(a), median(b))
    least = max(_floor(pair, policy), math.expm1(policy.least) * min(middles))
    chance = 1 / math.comb(len(a) + len(b), len(a)) if abs(middles[1] - middles[0]) >= least else 1.0
    p_up, p_down = (chance if apart else 1.0 for apart in (min(b) > max(a), max(b) < min(a)))
    return Look(p_up, p_down, 1.0, middles[0], None, "a value of 0 has no ratio to compare")


def examine(pair: Pair, policy: Policy, *, shares: bool = False) -> Look:
    """Look at one pair's launches once.

    Args:
        pair: Positive, finite samples.
        policy: The rule.
        shares: Whether to tell what each round contributes, for the suite.
    """
    if pair.rounds < LEAST:
        few = "1 launch a side is" if pair.rounds == 1 else f"{pair.rounds} launches a side are"
        why = f"{few} too few to tell anything from noise"
        return Look(1.0, 1.0, 1.0, 0.0, None, why)
    bound, proven = cpu_bound(pair)
    usable = steady(pair)
    if bound and min(len(side) for side in usable) < LEAST:  # the canary tells how slow each was: `readings.of`
        usable = (pair.a.launches, pair.b.launches)
    usual = usual_share(pair)
    clean = [[launch for launch in side if not pushed_off(launch, usual)] for side in usable]
    enough = min(len(side) for side in clean) >= LEAST
    if min(len(side) for side in usable) < LEAST or not (enough or bound):
        everything = (pair.a.launches, pair.b.launches)
        ways = readings.of(pair, everything, "samples", policy.prior_noise)
        seen = noise.compared(ways)
        why = "too noisy: the machine was busy or slow in most launches of a side"
        of_rounds = _shares(pair, everything, ways) if shares else None
        return Look(1.0, 1.0, 1.0, level(ways.base[0]), _told(seen), why, shares=of_rounds)
    # CPU time does not count what other processes took, so even disturbed launches can be used.
    kept, column = (usable, "cpu") if bound else (clean, "samples")
    single = all(len(x.samples) == 1 for side in (pair.a, pair.b) for x in side.launches)
    name = "CPU time" if bound else "its value" if single and pair.a.unit not in TIMES else "wall time"
    ways = readings.of(pair, kept, column, policy.prior_noise)
    seen = noise.compared(ways)
    best = int(seen.chances.argmax())
    a, b, base = ways.base[best], ways.head[best], level(ways.base[readings.plain(ways, best)])
    drifted = vetoes.drift(kept, (a, b))
    p_up, p_down = seen.p_below(policy.margin + drifted), seen.p_above(-policy.margin - drifted)
    # Where every sample was interrupted, a wait of the code's own cannot be told from an interruption.
    p_same = _p_same(pair, base, seen, policy, drifted) if proven or not bound else 1.0
    unsure = _unsure(pair, seen.noise)
    p_same = min(1.0, unsure * p_same)
    note = f"all launches of one side ran before the other's, and the machine may have drifted by {drifted * 100:.1f} %"
    if not drifted:
        note = readings.told(ways, best, policy.margin)
    adjusted, of_rounds = readings.tells(ways, seen), _shares(pair, kept, ways) if shares else None
    look = Look(p_up, p_down, p_same, base, _told(seen), name, note, adjusted=adjusted, shares=of_rounds)
    if min(p_up, p_down) > _DOUBTED:
        return look
    wall = clean if bound and enough else None
    vetoed = (wall and vetoes.wall_contradicts(wall, seen.shift, policy.margin)) or vetoes.not_round_by_round(
        a, b, seen.shift
    )
    if vetoed or not _counts(pair, look, policy):
        return look._replace(p_up=1.0, p_down=1.0)
    held, weight = doubts.memory(a, b)
    slow = noise.compared(ways, weight)
    look = _doubted(look, slow, held, doubts.two_modes(a, b, seen, ways.prior[best]), policy.margin + drifted)
    unsure = max(unsure, _BLIND if usual is None and not bound and pair.a.unit in TIMES else 1.0)
    look = look._replace(p_up=min(1.0, unsure * look.p_up), p_down=min(1.0, unsure * look.p_down))
    return _in_cycles(pair, look, policy)


def launch_noise(pair: Pair, policy: Policy) -> float:
    """Return the launch-to-launch noise of a pair in the quantity that decides it, in logs.

    The prior's where too few launches tell, and 0 for a value that is always the same or has no ratio.
    """
    if identical(pair) or has_zero(pair):
        return 0.0
    seen = examine(pair, policy).change
    return policy.prior_noise if seen is None else seen.noise


def _shares(pair: Pair, kept: Sequence[Sequence[PairLaunch]], ways: noise.Readings) -> Array:
    """Return what the rounds of a pair contribute, as `Look.shares`; ``kept`` are the launches that were read."""
    found = np.full((2, max(len(side.launches) for side in (pair.a, pair.b))), np.nan)
    for row, side, used, shares in zip(found, (pair.a, pair.b), kept, noise.influences(ways), strict=True):
        left = iter(used)
        launch = next(left, None)
        places = []
        for place, stored in enumerate(side.launches):
            if stored is launch:
                places.append(place)
                launch = next(left, None)
        row[places] = shares
    return found


def _told(seen: Change) -> Estimate:
    return Estimate(seen.shift, seen.low, seen.high, seen.noise)


def _counts(pair: Pair, look: Look, policy: Policy) -> bool:
    """Whether a significant change is large enough and the code's own."""
    assert look.change is not None
    shift = look.change.shift
    absolute = abs(math.expm1(shift)) * look.base
    if abs(shift) < policy.least or absolute < _floor(pair, policy):
        return False
    return not vetoes.canary_moved_along(pair, shift)


def _unsure(pair: Pair, left: float) -> float:
    """Return the factor on every probability for slow spells that a launch may have met without its canary.

    Where many launches met one and the launches scatter, others met one beside the canary's time.
    """
    lowest, highest = _LEFT
    return 1 + (_SPELL - 1) * spells(pair) * min(max((left - lowest) / (highest - lowest), 0.0), 1.0)


def _doubted(look: Look, slow: Change, held: float, modes: float, bound: float) -> Look:
    """Return the look with the probability of other explanations of a significant change added.

    Args:
        look: With what independent launches would say.
        slow: What launches say that a slow state of their side holds together.
        held: Probability of such states.
        modes: Probability that two modes of unchanged code are what is seen.
        bound: What a change must exceed, in logs.
    """
    assert look.change is not None
    up = look.change.shift > 0
    chance = look.p_up if up else look.p_down
    chance += held * ((slow.p_below(bound) if up else slow.p_above(-bound)) - chance)
    chance += (1 - chance) * modes
    return look._replace(p_up=chance) if up else look._replace(p_down=chance)


def _in_cycles(pair: Pair, look: Look, policy: Policy) -> Look:
    """Return the look at a GPU time with what its clock says: time up with equal cycles is not the code."""
    cycles = vetoes.in_cycles(pair)
    if cycles is None:
        return look
    seen = examine(cycles, policy)
    if min(seen.p_up, seen.p_down) > _DOUBTED:
        return look._replace(p_up=1.0, p_down=1.0, p_same=seen.p_same, clock=True)
    return look._replace(p_up=max(look.p_up, seen.p_up), p_down=max(look.p_down, seen.p_down))


def _p_same(pair: Pair, base: float, seen: Change, policy: Policy, drifted: float) -> float:
    """Return the probability that the change is at least what matters: small means the pair passes."""
    least = max(policy.tolerance, math.log1p(_floor(pair, policy) / base)) - drifted
    return max(seen.p_above(least), seen.p_below(-least)) if least > 0 else 1.0


def _floor(pair: Pair, policy: Policy) -> float:
    """Return the absolute change of one call that is too small to matter, in the pair's unit."""
    return max(pair.floor, policy.floor / TIMES.get(pair.a.unit, 1.0))
