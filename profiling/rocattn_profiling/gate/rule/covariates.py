"""Covariate adjustment: candidate models that remove none, some or all of the machine's slowdown and of round effects.

A drifting clock, or another process on the same core, slows down everything on a machine, some benchmarks more than
others. Measured by the canary, this accounts for most of the CPU-time differences between launches of identical code
(docs/gate-measured.md). The fraction of it that a benchmark shares is unknown: each candidate fraction has a prior
probability, and `rocattn_profiling.gate.rule.noise.compare` averages over them by how well they explain the launches.
In other words, a covariate with an unknown slope is integrated out: Gelman et al., Bayesian Data Analysis, chapter 14.

The two launches of a round share a layout and run back to back, so a shared effect says nothing about the change. Let m
be the mean of a round's two launches and d half their difference. Launches with a correlation of rho = 0.6 have
Var(m) = 4 Var(d). Halving m around the mean of all rounds (`ROUND_SHRINKAGE`) makes them independent, Var(m) = Var(d),
leaves each launch 1 / 2.5 of its variance, and shrinks the volume by a factor of 2 per round. Whether there is such an
effect is also unknown, and is averaged over in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.constants import CANARY_SLOPES, MIN_LAUNCHES, ROUND_EFFECT, ROUND_SHRINKAGE
from rocattn_profiling.gate.rule.launches import (
    Column,
    Selection,
    canary_times,
    clock_noise,
    has_canary,
    interleaved,
    level,
    locations,
)
from rocattn_profiling.gate.rule.noise import Candidates, ChangePosterior
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.launches import Array

_SLOPES = np.array(list(CANARY_SLOPES))[:, None]  # [candidate, launch]
_NO_SLOPE = np.zeros((1, 1))
_RESIDUAL_SD = 1 / math.sqrt(0.5 + 0.5 / (1 - ROUND_SHRINKAGE) ** 2)  # relative, of a launch without its round effect


class Fit(NamedTuple):
    """A pair's launches, adjusted and compared.

    Attributes:
        candidates: The adjustments.
        posterior: Posterior of the change, averaged over the candidates.
        best: Index of the most likely candidate.
        level: Base's quoted value, in the pair's unit; round effects are not subtracted.
    """

    candidates: Candidates
    posterior: ChangePosterior
    best: int
    level: float

    @property
    def base(self) -> Array:
        """Base's locations in logs, under the most likely adjustment."""
        adjusted: Array = self.candidates.base[self.best]
        return adjusted

    @property
    def head(self) -> Array:
        """Head's locations in logs, under the most likely adjustment."""
        adjusted: Array = self.candidates.head[self.best]
        return adjusted

    @property
    def prior(self) -> Array:
        """Log prior of the noise under the most likely adjustment."""
        prior: Array = self.candidates.prior[self.best]
        return prior

    @property
    def follows_canary(self) -> bool:
        """Whether the launches follow the canary: slope 0 became less than half as probable as its prior."""
        chances = self.posterior.chances
        unadjusted = float(chances[:: len(CANARY_SLOPES)].sum())
        return len(chances) >= len(CANARY_SLOPES) and unadjusted < CANARY_SLOPES[0.0] / 2


def fit(pair: Pair, selection: Selection, prior_noise: float) -> Fit:
    """Adjust and compare the selected launches of a pair; for ``prior_noise`` see `Policy`."""
    candidates = candidates_of(pair, selection.kept, selection.column, prior_noise)
    posterior = noise.compare(candidates)
    best = int(posterior.chances.argmax())
    return Fit(candidates, posterior, best, level(candidates.base[slope_index(candidates, best)]))


def candidates_of(pair: Pair, kept: Sequence[Sequence[PairLaunch]], column: Column, prior_noise: float) -> Candidates:
    """Return the candidate adjustments of a pair: all slopes, then the same slopes with round effects removed.

    Only CPU time is adjusted for the machine's speed: the canary is CPU time too, and does not apply to waits, devices
    and values.

    Args:
        pair: The pair, for its history and its clock's resolution.
        kept: The launches of base and of head that count.
        column: The quantity to compare.
        prior_noise: See `Policy`.
    """
    base, head = (locations(side, column)[None] for side in kept)
    slopes, chances = _NO_SLOPE, np.ones(1)
    if column == "cpu" and has_canary(pair):
        base_canary, head_canary = (canary_times(side) for side in kept)
        middle = median([*base_canary.tolist(), *head_canary.tolist()])
        slopes, chances = _SLOPES, np.array(list(CANARY_SLOPES.values()))
        base, head = base - slopes * (base_canary - middle), head - slopes * (head_canary - middle)
    expected, sessions = max(prior_noise, clock_noise(pair, column)), history(pair, column, slopes)
    rounds = _rounds(kept)
    effects = _round_effects(base[:, rounds[0]], head[:, rounds[1]])
    if effects is None:
        return noise.candidates(base, head, expected, sessions, chances.tolist())
    without = base.copy(), head.copy()
    for side, indices in zip(without, rounds, strict=True):
        side[:, indices] -= ROUND_SHRINKAGE * effects
    volume = np.repeat([0.0, (len(rounds[0]) - 1) * math.log1p(-ROUND_SHRINKAGE)], len(chances))
    # The rounds of earlier sessions are unknown: reduce the scatter of their launches by the expected factor.
    sessions = [
        np.concatenate([x, x.mean(axis=1, keepdims=True) * (1 - _RESIDUAL_SD) + x * _RESIDUAL_SD]) for x in sessions
    ]
    return noise.candidates(
        np.concatenate([base, without[0]]), np.concatenate([head, without[1]]), expected, sessions,
        [*((1 - ROUND_EFFECT) * chances), *(ROUND_EFFECT * chances)], volume.tolist(),
    )  # fmt: skip


def _round_effects(base: Array, head: Array) -> Array | None:
    """Return each round's mean minus the overall mean; None if rounds differ no more than the launches within them.

    Args:
        base: Locations of launches, in logs, shape [candidate, round].
        head: The same for head, with the same rounds.
    """
    if base.shape[1] < MIN_LAUNCHES:
        return None
    means, halves = 0.5 * (base + head), 0.5 * (head - base)
    means -= means.mean(axis=1, keepdims=True)
    return means if (means.var(axis=1) > halves.var(axis=1)).any() else None


def _rounds(kept: Sequence[Sequence[PairLaunch]]) -> tuple[list[int], list[int]]:
    """Return the indices of base's and head's launches that share a round; none if one side ran before the other."""
    if not interleaved(kept):
        return [], []
    base, head = ({launch.round: index for index, launch in enumerate(side)} for side in kept)
    both = [round_ for round_ in base if round_ in head]
    return [base[round_] for round_ in both], [head[round_] for round_ in both]


def slope_index(candidates: Candidates, best: int) -> int:
    """Return the index of the candidate with the same slope that keeps round effects."""
    return best % len(CANARY_SLOPES) if len(candidates.chances) >= len(CANARY_SLOPES) else 0


def removed(fitted: Fit, margin: float) -> Reason[Literal["machine_speed"]] | None:
    """Return how much the most likely slope removed from the change between the sides; None if within the margin."""
    candidates = fitted.candidates
    slope = slope_index(candidates, fitted.best)
    if not slope:
        return None
    base, head = (median((side[0] - side[slope]).tolist()) for side in (candidates.base, candidates.head))
    slowdown = head - base
    if abs(slowdown) < margin:
        return None
    word = "slower" if slowdown > 0 else "faster"
    text = f"corrected by {abs(slowdown) * 100:.1f} % because the machine was {word} during head's launches (canary)"
    return Reason("machine_speed", text)


def history(pair: Pair, column: Column, slopes: Array = _NO_SLOPE) -> list[Array]:
    """Return the locations in logs of the launches of earlier sessions, shape [candidate, launch].

    Args:
        pair: The pair, with the history of its sides.
        column: The quantity to compare.
        slopes: Fractions of the canary's slowdown to remove if it is known, shape [candidate, 1].
    """
    sessions = []
    for session in (*pair.a.history, *pair.b.history):
        if len(session) < MIN_LAUNCHES or not all(getattr(x, column) and min(getattr(x, column)) > 0 for x in session):
            continue
        known = slopes.any() and all(x.canary > 0 for x in session)
        sessions.append(locations(session, column) - slopes * (canary_times(session) if known else 0.0))
    return sessions
