"""What speaks against a change that noise does not explain: the machine, the clock, the order of the launches.

None of these can make a regression; each can take one back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.launches import LEAST, has_canary, interleaved, locations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch
    from rocattn_profiling.gate.rule.posterior import Change

    Array = NDArray[np.float64]

PAIRED = 7  # rounds from which on the sides must also differ round by round
_PAIRED_LEVEL = 0.05
CONTRADICTED = 0.05  # probability of a change in another quantity below which it contradicts
_USUAL_NOISE = 0.02
_SURE = 2.0  # standard errors of a slope that a drift may have had without being seen


def canary_change(pair: Pair) -> Change | None:
    """Return head minus base of the fixed work, in logs; None when it was not measured."""
    if not has_canary(pair) or not pair.rounds:
        return None
    a, b = (np.log([launch.canary for launch in side.launches]) for side in (pair.a, pair.b))
    return noise.change(a, b, noise.learned(_USUAL_NOISE, []))


def canary_moved_along(pair: Pair, shift: float) -> bool:
    """Whether fixed work changed, too, by at least half as much in the same direction."""
    canary = canary_change(pair)
    if canary is None or (canary.p_below(0.0) if shift > 0 else canary.p_above(0.0)) >= CONTRADICTED:
        return False
    return canary.shift * shift > 0 and abs(canary.shift) > 0.5 * abs(shift)


def wall_contradicts(clean: Sequence[Sequence[PairLaunch]], shift: float, margin: float) -> bool:
    """Whether wall time of launches that kept their core makes a change that CPU time shows improbable."""
    a, b = (locations(side, "samples") for side in clean)
    wall = noise.change(a, b, noise.learned(_USUAL_NOISE, []))
    return (wall.p_above(margin) if shift > 0 else wall.p_below(-margin)) < CONTRADICTED


def in_cycles(pair: Pair) -> Pair | None:
    """Return the pair in clock cycles of the GPU; None where a clock is unknown."""
    sides = (pair.a, pair.b)
    if not all(x.sclk_mhz and min(x.sclk_mhz) > 0 for side in sides for x in side.launches):
        return None
    a, b = (
        msgspec.structs.replace(
            side,
            unit="cycles",
            launches=[
                msgspec.structs.replace(
                    x,
                    samples=[t * f for t, f in zip(x.samples, x.sclk_mhz, strict=True)],
                    cpu=[],
                    nivcsw=[],
                    sclk_mhz=[],
                )
                for x in side.launches
            ],
            history=[],
        )
        for side in sides
    )
    return msgspec.structs.replace(pair, a=a, b=b)


def not_round_by_round(a: Array, b: Array, shift: float) -> bool:
    """Whether too many rounds speak against a change: Wilcoxon's signed ranks of head minus base, exact, one side.

    The launches of a round ran side by side, so a long spell of the machine that fits a change by chance does not fit
    it round by round. It assumes nothing about the noise, and with fewer rounds than `PAIRED` it says nothing.

    Args:
        a: Locations of base launches in the order of their rounds, in logs.
        b: The same of head.
        shift: The change.
    """
    count = min(len(a), len(b))
    if count < PAIRED:
        return False
    steps = (b[:count] - a[:count]) * math.copysign(1.0, shift)
    ranks = np.abs(steps).argsort().argsort() + 1
    against = int(ranks[steps <= 0].sum())
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    return float(ways[: against + 1].sum() / ways.sum()) > _PAIRED_LEVEL


def drift(sides: Sequence[Sequence[PairLaunch]], places: Sequence[Array]) -> float:
    """Return how far the machine may have drifted from one side to the other, in logs; 0 when they ran interleaved.

    Where all launches of one side ran before the other's, a drift cannot be told from a change. The trend within the
    sides, with its error, carried on from the middle of one to the middle of the other, is what it may have been.

    Args:
        sides: Launches of base and of head.
        places: Their locations, in logs.
    """
    if min(len(side) for side in sides) < LEAST or interleaved(sides):
        return 0.0
    starts = [np.array([launch.start_us for launch in side]) for side in sides]
    # In parts of the largest: squares of what a foreign clock may say, 1e300 or 1e-300, are no numbers.
    largest = max(float(np.abs(side).max()) for side in starts) or 1.0
    starts = [side / largest for side in starts]
    if not all(np.ptp(side) > 0 for side in starts):
        return 0.0
    times = np.concatenate([side - side.mean() for side in starts])
    values = np.concatenate([side - side.mean() for side in places])
    spread = float((times**2).sum())
    if not spread:
        return 0.0
    slope = float((times * values).sum()) / spread
    left = float(((values - slope * times) ** 2).sum()) / (len(times) - 3)
    return abs(float(starts[1].mean() - starts[0].mean())) * (abs(slope) + _SURE * math.sqrt(left / spread))
