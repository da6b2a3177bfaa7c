"""The ways to read a pair's launches: what they owe to the machine and to their round, taken out more or less.

A clock that wanders and a neighbour on the same core slow all work there, some of it more than other; measured, that
is most of what launches of identical code differ by in CPU time (docs/gate.md). How much of it one benchmark shares is
not known: each share has a chance, and the launches say which explains them (`noise.compared` averages). A covariate
with an unknown slope, integrated out: Gelman et al., Bayesian Data Analysis, chapter 14.

What else the two launches of a round have in common (where their data lie, what the machine was at) says nothing about
the change. How much that is, is not known either, and weighed in the same way.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.launches import LEAST, has_canary, interleaved, locations, quantum, speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.gate.rule.launches import Array
    from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch
    from rocattn_profiling.gate.rule.posterior import Change

# Share of the canary's slowness -> chance, none of it first. Memory-bound code shares little of a clock.
SLOPES = {0.0: 0.1, 0.4: 0.15, 0.7: 0.25, 0.9: 0.25, 1.1: 0.25}
_SLOPES = np.array(list(SLOPES))[:, None]  # [way, launch]
_NONE = np.zeros((1, 1))
ROUNDS = 0.3  # chance that the launches of a round have something in common
_TAKEN = 0.5  # of the middle of a round's two launches, around that of all rounds: they are then correlated by 0.6
_ADDED = _TAKEN / (1 - _TAKEN)  # of the middle of two independent launches, which makes them two of a round
_LEFT = 1 / math.sqrt(1 + _ADDED + 0.5 * _ADDED**2)  # the noise of those two, in parts of that of the two of a round


def of(pair: Pair, kept: Sequence[Sequence[PairLaunch]], column: str, prior_noise: float) -> noise.Readings:
    """Return the ways to read the launches of a pair: those of `SLOPES` and, after them, the same by rounds.

    Only CPU time is adjusted for speed: the canary is CPU time, too, and says nothing of waits, devices and values.

    Args:
        pair: For its history and its clock's coarseness.
        kept: The launches of base and of head that are used.
        column: "cpu" or "samples", what they are placed by.
        prior_noise: As in `Policy`.
    """
    base, head = (locations(side, column)[None] for side in kept)
    slopes, chances = _NONE, np.ones(1)
    if column == "cpu" and has_canary(pair):
        of_base, of_head = (speed(side) for side in kept)
        middle = median([*of_base.tolist(), *of_head.tolist()])
        slopes, chances = _SLOPES, np.array(list(SLOPES.values()))
        base, head = base - slopes * (of_base - middle), head - slopes * (of_head - middle)
    noise_expected, sessions = max(prior_noise, quantum(pair, column)), earlier(pair, column, slopes)
    rounds = _rounds(kept)
    common = _in_common(base[:, rounds[0]], head[:, rounds[1]])
    if common is None:
        return noise.read(base, head, noise_expected, sessions, chances.tolist())
    by_rounds = base.copy(), head.copy()
    for side, places in zip(by_rounds, rounds, strict=True):
        side[:, places] -= _TAKEN * common
    volume = np.repeat([0.0, (len(rounds[0]) - 1) * math.log1p(-_TAKEN)], len(chances))
    sessions = [np.concatenate([x, x.mean(axis=1, keepdims=True) * (1 - _LEFT) + x * _LEFT]) for x in sessions]
    return noise.read(
        np.concatenate([base, by_rounds[0]]), np.concatenate([head, by_rounds[1]]), noise_expected, sessions,
        [*((1 - ROUNDS) * chances), *(ROUNDS * chances)], volume.tolist(),
    )  # fmt: skip


def _in_common(base: Array, head: Array) -> Array | None:
    """Return the middle of each round around that of all; None where the sides differ as much: that is but noise.

    Args:
        base: Locations of launches, in logs, shape [way, round].
        head: Those of the same rounds.
    """
    if base.shape[1] < LEAST:
        return None
    middles, halves = 0.5 * (base + head), 0.5 * (head - base)
    middles -= middles.mean(axis=1, keepdims=True)
    return middles if (middles.var(axis=1) > halves.var(axis=1)).any() else None


def _rounds(kept: Sequence[Sequence[PairLaunch]]) -> tuple[list[int], list[int]]:
    """Return the places of base's and head's launches that ran in one round; none if one side ran before the other."""
    if not interleaved(kept):
        return [], []
    places = [{launch.round: place for place, launch in enumerate(side)} for side in kept]
    both = [round_ for round_ in places[0] if round_ in places[1]]
    return [places[0][round_] for round_ in both], [places[1][round_] for round_ in both]


def tells(ways: noise.Readings, seen: Change) -> bool:
    """Whether the launches follow the fixed work: that they do not is half as probable as before they were seen."""
    return len(ways.chances) >= len(SLOPES) and bool(seen.chances[:: len(SLOPES)].sum() < SLOPES[0.0] / 2)


def plain(ways: noise.Readings, best: int) -> int:
    """Return the place of the reading that takes out as much of the machine's speed, and nothing of rounds."""
    return best % len(SLOPES) if len(ways.chances) >= len(SLOPES) else 0


def told(ways: noise.Readings, best: int, margin: float) -> Reason | None:
    """Say what the best reading took out of the change between the sides; None when it is within the margin."""
    slope = plain(ways, best)
    if not slope:
        return None
    of_base, of_head = (median((side[0] - side[slope]).tolist()) for side in (ways.base, ways.head))
    taken = of_head - of_base
    if abs(taken) < margin:
        return None
    word = "slower" if taken > 0 else "faster"
    text = f"head met the machine {word}, by fixed work beside it: {abs(taken) * 100:.1f} % are taken out"
    return Reason("machine_speed", text)


def earlier(pair: Pair, column: str, slopes: Array = _NONE) -> list[Array]:
    """Return the locations of the launches of earlier sessions, in logs, shape [way, launch].

    Args:
        pair: With the history of its sides.
        column: "cpu" or "samples".
        slopes: Shares of the machine's speed that are taken out where it is known, shape [way, 1].
    """
    sessions = []
    for session in (*pair.a.history, *pair.b.history):
        if len(session) < LEAST or not all(getattr(x, column) and min(getattr(x, column)) > 0 for x in session):
            continue
        known = slopes.any() and all(x.canary > 0 for x in session)
        sessions.append(locations(session, column) - slopes * (speed(session) if known else 0.0))
    return sessions
