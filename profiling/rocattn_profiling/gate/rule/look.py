"""One look at one pair: what its launches say so far, before looks and suite are paid for.

A change needs a probability below the level that it is within the nuisance margin, or that something else explains it
(a slow state of one side, two modes of unchanged code), and an estimate of at least the smallest reportable size and
the absolute floor. `rocattn_profiling.gate.rule.vetoes` takes back what the machine did.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import doubts, noise, readings, vetoes
from rocattn_profiling.gate.rule.launches import (
    LEAST,
    LOW_END,
    cpu_bound,
    level,
    pushed_off,
    spells,
    steady,
    usual_share,
)
from rocattn_profiling.gate.rule.pairs import TIMES
from rocattn_profiling.gate.rule.policy import FULL_LOOKS
from rocattn_profiling.measure.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.gate.rule.launches import Array
    from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch
    from rocattn_profiling.gate.rule.policy import Policy
    from rocattn_profiling.gate.rule.posterior import Change

_BLIND = 1.25  # factor on the probability of a change in wall time when nothing tells which launches were interrupted
_SPELL = 5.0  # on every probability where all launches met slow spells of the machine, by the canary; 1 where none did
_LEFT = (0.015, 0.04)  # launch noise in logs up to which the canary explains such spells, and from which on it does not
_DOUBTED = 0.2  # probability from which on nothing is called a change, so that doubts need not be asked


Quantity = Literal["wall time", "CPU time", "value"]
Guard = Literal[
    "drift", "wall_time", "rounds", "small", "floor", "fixed_work", "slow_states", "two_modes", "slow_spells",
    "interruptions_unknown", "always_interrupted", "clock",
]  # fmt: skip
"""What can stand between the launches and a decision; `rocattn_profiling.gate.rule.undecided` has the words."""
Steps = tuple[tuple[Guard | None, float], ...]
"""A probability step by step: what the launches say by themselves (None), then what each guard makes of it."""


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
        base: Low end of base, in the pair's unit and in ``quantity``.
        change: The change; None when nothing can be said, or no ratio (`by_rank`).
        quantity: What was compared.
        excuse: Why nothing can be said; None where something can.
        note: What a reader must know beside it.
        clock: Time changed, and the GPU's cycles do not bear it out.
        adjusted: The machine's speed explains the launches, and was taken out of them (`readings.tells`).
        against_change: How the probability of the change's own direction came about; empty where an excuse stands.
        against_pass: The same of ``p_same``.
    """

    p_up: float
    p_down: float
    p_same: float
    base: float
    change: Estimate | None
    quantity: Quantity
    excuse: Reason | None = None
    note: Reason | None = None
    clock: bool = False
    adjusted: bool = False
    against_change: Steps = ()
    against_pass: Steps = ()

    @property
    def p_change(self) -> float:
        """The probability that there is no change in the direction of the estimate."""
        return self.p_down if self.change is not None and self.change.shift < 0 else self.p_up

    def guarded(self, guard: Guard, p_up: float, p_down: float) -> Look:
        """Return the look with what a guard makes of the probabilities of a change."""
        look = self._replace(p_up=p_up, p_down=p_down)
        return look._replace(against_change=(*self.against_change, (guard, look.p_change)))


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
    least = max(_floor(pair, policy), math.expm1(policy.log_called) * min(middles))
    chance = 1 / math.comb(len(a) + len(b), len(a)) if abs(middles[1] - middles[0]) >= least else 1.0
    p_up, p_down = (chance if apart else 1.0 for apart in (min(b) > max(a), max(b) < min(a)))
    excuse = Reason("zero", "a value of 0 has no ratio to compare")
    return Look(p_up, p_down, 1.0, middles[0], None, _quantity(pair, bound=False), excuse)


def examine(pair: Pair, policy: Policy) -> Look:
    """Look at one pair's launches once.

    Args:
        pair: Positive, finite samples.
        policy: The rule.
    """
    if pair.rounds < LEAST:
        few = "1 launch a side is" if pair.rounds == 1 else f"{pair.rounds} launches a side are"
        excuse = Reason(
            "few_launches", f"{few} too few to tell anything from noise", f"measure {FULL_LOOKS[0]} or more"
        )
        return Look(1.0, 1.0, 1.0, 0.0, None, _quantity(pair, bound=False), excuse)
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
        busy = Reason(
            "busy_machine", "too noisy: the machine was busy or slow in most launches of a side",
            "measure again on a machine at rest",
        )  # fmt: skip
        quantity = _quantity(pair, bound=False)
        return Look(1.0, 1.0, 1.0, level(ways.base[0]), _told(seen), quantity, busy)
    # CPU time does not count what other processes took, so even disturbed launches can be used.
    kept, column = (usable, "cpu") if bound else (clean, "samples")
    ways = readings.of(pair, kept, column, policy.prior_noise)
    seen = noise.compared(ways)
    best = int(seen.chances.argmax())
    a, b, base = ways.base[best], ways.head[best], level(ways.base[readings.plain(ways, best)])
    drifted = vetoes.drift(kept, (a, b))
    unsure = _unsure(pair, seen.noise)
    against_pass = _against_pass(pair, base, seen, policy, (drifted, unsure), certain=proven or not bound)
    order = (
        f"all launches of one side ran before the other's, and the machine may have drifted by {drifted * 100:.1f} %"
    )
    note = (
        Reason("drift", order, "run the two sides in turns")
        if drifted
        else readings.told(ways, best, policy.log_margin)
    )
    adjusted = readings.tells(ways, seen)
    alone = Look(
        seen.p_below(policy.log_margin), seen.p_above(-policy.log_margin), against_pass[-1][1], base, _told(seen),
        _quantity(pair, bound=bound), None, note, adjusted=adjusted, against_pass=against_pass,
    )  # fmt: skip
    certain = policy.log_margin + drifted
    look = alone._replace(against_change=((None, alone.p_change),))
    look = look.guarded("drift", seen.p_below(certain), seen.p_above(-certain))
    if min(look.p_up, look.p_down) > _DOUBTED:
        return look
    if veto := _veto(pair, look, policy, clean if bound and enough else None, (a, b)):
        return look.guarded(veto, 1.0, 1.0)
    held, weight = doubts.memory(a, b)
    look = _doubted(look, noise.compared(ways, weight), held, doubts.two_modes(a, b, seen, ways.prior[best]), certain)
    blind = _BLIND if usual is None and not bound and pair.a.unit in TIMES else 1.0
    guard: Guard = "interruptions_unknown" if blind > unsure else "slow_spells"
    unsure = max(unsure, blind)
    look = look.guarded(guard, min(1.0, unsure * look.p_up), min(1.0, unsure * look.p_down))
    return _in_cycles(pair, look, policy)


def _quantity(pair: Pair, *, bound: bool) -> Quantity:
    """Return what is compared: ``bound`` says whether the code keeps the core busy."""
    if bound:
        return "CPU time"
    single = all(len(x.samples) == 1 for side in (pair.a, pair.b) for x in side.launches)
    return "value" if single and pair.a.unit not in TIMES else "wall time"


def launch_noise(pair: Pair, policy: Policy) -> float:
    """Return the launch-to-launch noise of a pair in the quantity that decides it, in logs.

    The prior's where too few launches tell, and 0 for a value that is always the same or has no ratio.
    """
    if identical(pair) or has_zero(pair):
        return 0.0
    seen = examine(pair, policy).change
    return policy.prior_noise if seen is None else seen.noise


def _told(seen: Change) -> Estimate:
    return Estimate(seen.shift, seen.low, seen.high, seen.noise)


def _veto(
    pair: Pair, look: Look, policy: Policy, wall: Sequence[Sequence[PairLaunch]] | None, places: tuple[Array, Array]
) -> Guard | None:
    """Return what takes a significant change back: it is too small, or not the code's own; None if nothing does.

    Args:
        pair: The launches.
        look: With the change.
        policy: The rule.
        wall: Launches whose wall time must bear out a change in CPU time; None where there are too few.
        places: Locations of base and of head, in logs.
    """
    assert look.change is not None
    shift = look.change.shift
    if abs(shift) < policy.log_called:
        return "small"
    if abs(math.expm1(shift)) * look.base < _floor(pair, policy):
        return "floor"
    if wall and vetoes.wall_contradicts(wall, shift, policy.log_margin):
        return "wall_time"
    if vetoes.not_round_by_round(*places, shift):
        return "rounds"
    return "fixed_work" if vetoes.canary_moved_along(pair, shift) else None


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
    steps: tuple[tuple[Guard, float, float], ...] = (
        ("slow_states", slow.p_below(bound) if up else slow.p_above(-bound), held), ("two_modes", 1.0, modes),
    )  # fmt: skip
    for guard, otherwise, weight in steps:
        chance = look.p_change
        chance += weight * (otherwise - chance)
        look = look.guarded(guard, *((chance, look.p_down) if up else (look.p_up, chance)))
    return look


def _in_cycles(pair: Pair, look: Look, policy: Policy) -> Look:
    """Return the look at a GPU time with what its clock says: time up with equal cycles is not the code."""
    cycles = vetoes.in_cycles(pair)
    if cycles is None:
        return look
    seen = examine(cycles, policy)
    if min(seen.p_up, seen.p_down) > _DOUBTED:
        look = look._replace(p_same=seen.p_same, clock=True, against_pass=seen.against_pass)
        return look.guarded("clock", 1.0, 1.0)
    return look.guarded("clock", max(look.p_up, seen.p_up), max(look.p_down, seen.p_down))


def _p_same(pair: Pair, base: float, seen: Change, policy: Policy, drifted: float) -> float:
    """Return the probability that the change is at least what matters: small means the pair passes."""
    least = max(policy.log_tolerance, math.log1p(_floor(pair, policy) / base)) - drifted
    return max(seen.p_above(least), seen.p_below(-least)) if least > 0 else 1.0


def _against_pass(
    pair: Pair, base: float, seen: Change, policy: Policy, doubt: tuple[float, float], *, certain: bool
) -> Steps:
    """Return how the probability of a change that matters came about.

    ``doubt`` is how far the machine may have drifted, in logs, and `_unsure`. It is ``certain`` if some sample was not
    interrupted: where every one was, a wait of the code's own cannot be told from an interruption.
    """
    drifted, unsure = doubt
    p_same = _p_same(pair, base, seen, policy, drifted)
    kept = p_same if certain else 1.0
    return (
        (None, _p_same(pair, base, seen, policy, 0.0)), ("drift", p_same), ("always_interrupted", kept),
        ("slow_spells", min(1.0, unsure * kept)),
    )  # fmt: skip


def _floor(pair: Pair, policy: Policy) -> float:
    """Return the absolute change of one call that is too small to matter, in the pair's unit."""
    return max(pair.floor, policy.floor / TIMES.get(pair.a.unit, 1.0))
