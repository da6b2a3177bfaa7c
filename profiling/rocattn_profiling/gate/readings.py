"""The ways to read a pair's launches: the machine's speed, by the canary, taken out more or less.

A clock that wanders and a neighbour on the same core slow all work there, some of it more than other; measured, that
is most of what launches of identical code differ by in CPU time (docs/gate.md). How much of it one benchmark shares is
not known: each share has a chance, and the launches say which explains them (`noise.compared` averages). A covariate
with an unknown slope, integrated out: Gelman et al., Bayesian Data Analysis, chapter 14.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.gate import noise
from rocattn_profiling.gate.launches import LEAST, has_canary, locations, quantum, speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.gate.launches import Array
    from rocattn_profiling.gate.pairs import Pair, PairLaunch

# Share of the canary's slowness -> chance, none of it first. Memory-bound code shares little of a clock.
SLOPES = {0.0: 0.1, 0.4: 0.15, 0.7: 0.25, 0.9: 0.25, 1.1: 0.25}
_SLOPES = np.array(list(SLOPES))[:, None]  # [way, launch]
_NONE = np.zeros((1, 1))


def of(pair: Pair, kept: Sequence[Sequence[PairLaunch]], column: str, prior_noise: float) -> noise.Readings:
    """Return the ways to read the launches of a pair.

    Only CPU time is adjusted: the canary is CPU time, too, and says nothing of waits, devices and values.

    Args:
        pair: For its history and its clock's coarseness.
        kept: The launches of base and of head that are used.
        column: "cpu" or "samples", what they are placed by.
        prior_noise: As in `Policy`.
    """
    a, b = (locations(side, column) for side in kept)
    noise_expected = max(prior_noise, quantum(pair, column))
    if column != "cpu" or not has_canary(pair):
        return noise.read(a, b, noise_expected, earlier(pair, column))
    of_a, of_b = (speed(side) for side in kept)
    middle = median([*of_a.tolist(), *of_b.tolist()])
    base, head = a - _SLOPES * (of_a - middle), b - _SLOPES * (of_b - middle)
    return noise.read(base, head, noise_expected, earlier(pair, column, _SLOPES), tuple(SLOPES.values()))


def tells(ways: noise.Readings, seen: noise.Change) -> bool:
    """Whether the launches follow the fixed work: that they do not is half as probable as before they were seen."""
    return len(ways.chances) > 1 and bool(seen.chances[0] < ways.chances[0] / 2)


def told(ways: noise.Readings, best: int, margin: float) -> str:
    """Say what the best reading took out of the change between the sides; empty when it is within the margin."""
    if not best:
        return ""
    of_base, of_head = (median((side[0] - side[best]).tolist()) for side in (ways.base, ways.head))
    taken = of_head - of_base
    if abs(taken) < margin:
        return ""
    word = "slower" if taken > 0 else "faster"
    return f"head met the machine {word}, by fixed work beside it: {abs(taken) * 100:.1f} % are taken out"


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
