"""Guards: alternative explanations of a difference, and observations of the machine that contradict it.

Alternative explanations (slow periods of one side that last for several launches; a bimodal benchmark) are
probabilities, weighted by how well they explain the launches, that `rocattn_profiling.gate.rule.interim` adds to the
p-value. The other guards raise a p-value or veto a change. No guard can create a regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn_profiling.gate.rule import noise
from rocattn_profiling.gate.rule.constants import (
    BIMODAL,
    CANARY_MOVED,
    CONTRADICTED,
    DRIFT_ERRORS,
    MIN_LAUNCHES,
    PAIRED_LEVEL,
    PAIRED_ROUNDS,
    PRIOR_NOISE,
    SLOW_STATES,
    SPELL_FACTOR,
    SPELL_NOISE,
    STATE_CORRELATION,
    WINSORISED,
)
from rocattn_profiling.gate.rule.launches import canary_times, has_canary, interleaved, locations, slow_share
from rocattn_profiling.gate.rule.noise import ChangePosterior
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.launches import Array

_MODE_SHARES = (np.arange(12) + 0.5) / 12  # a uniform prior of the share of launches in the other mode


# --- Alternative explanations -------------------------------------------------------------------------------------


def slow_states(a: Array, b: Array) -> tuple[float, float]:
    """Return the probability that one side has slow states, and the fraction of its launches that then counts.

    The smaller of two coefficients distinguishes independent launches from launches with a lag-one correlation of 0.7:
    that of both sides, and that of head minus base per round, which effects shared by a round do not change. Their
    means and standard deviations in short series were simulated. Five launches hardly distinguish the two, so the prior
    remains. Correlated launches count as 1 / (1 + 2 sum_k (1 - k/n) 0.7^k) of independent ones.

    Args:
        a: Base's locations in the order of their rounds, in logs.
        b: The same of head.
    """
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    base, head, differences = _autocovariances(np.array([a, b, b - a]))
    coefficient = min(_correlation(base + head, count), _correlation(differences, count))
    independent, correlated = (
        math.exp(-0.5 * ((coefficient - mean) / sd) ** 2) / sd
        for mean, sd in (
            (-0.05 - 1.2 / count, 0.8 / math.sqrt(count + 5)),
            (0.66 - 3.7 / count, 0.85 / math.sqrt(count + 4)),
        )
    )
    probability = SLOW_STATES * correlated / (SLOW_STATES * correlated + (1 - SLOW_STATES) * independent)
    inflation = sum((1 - lag / count) * STATE_CORRELATION**lag for lag in range(1, count))
    return probability, 1.0 / (1.0 + 2.0 * inflation)


def _autocovariances(rows: Array) -> Array:
    """Return sums of lag-one products and of squares around each winsorized row's mean, shape [row, 2]."""
    deviations = rows - _medians(rows)
    reach = WINSORISED * _medians(np.abs(deviations))
    deviations = np.minimum(np.maximum(deviations, -reach), reach)
    deviations -= deviations.mean(axis=1, keepdims=True)
    return np.stack([(deviations[:, 1:] * deviations[:, :-1]).sum(axis=1), (deviations**2).sum(axis=1)], axis=1)


def _correlation(sums: Array, count: int) -> float:
    """Return the lag-one coefficient from its sums; if nothing varies, its expected value for independent launches."""
    products, squares = sums.tolist()
    return products / squares if squares > 0 else -1.0 / count


def _medians(rows: Array) -> Array:
    """Return the median of each row, shape [row, 1]: for few launches much faster than numpy's."""
    ordered, count = np.sort(rows, axis=1), rows.shape[1]
    medians: Array = 0.5 * (ordered[:, (count - 1) // 2, None] + ordered[:, count // 2, None])
    return medians


def bimodal(a: Array, b: Array, posterior: ChangePosterior, prior: Array) -> float:
    """Return the probability that an unchanged bimodal benchmark explains this; for arguments see `bayes_factor`."""
    return BIMODAL / (BIMODAL + (1 - BIMODAL) * bayes_factor(a, b, posterior, prior))


def bayes_factor(a: Array, b: Array, posterior: ChangePosterior, prior: Array) -> float:
    """Return the Bayes factor of a change against one bimodal benchmark whose modes both sides visit.

    Code that runs at two speeds by chance (layout, placement, another process on the same core) can show one speed in
    most launches of base and the other in most of head. Both explanations have the same two levels and the same noise;
    the bimodal one adds a mixing share with a uniform prior.

    Args:
        a: Base's locations, in logs.
        b: Head's locations, in logs.
        posterior: Posterior of the change.
        prior: Prior of the noise under the adjustment of these locations; see `noise.Candidates`.
    """
    base = float(noise.low_launches(a[None]).mean())
    head = base + posterior.shift
    own, other = (noise.log_density(np.concatenate([a - x, b - y])) for x, y in ((base, head), (head, base)))
    peak = np.maximum(own, other)
    own_density, other_density = np.exp(own - peak), np.exp(other - peak)
    share = _MODE_SHARES[:, None]  # of the mode at head's level
    in_own = np.where((np.arange(len(own)) < len(a))[:, None, None], 1 - share, share)  # [launch, share, 1]
    mixed = other_density[:, None] + in_own * (own_density - other_density)[:, None]
    weights = prior.ravel()
    modes, changed = np.log(mixed).sum(axis=0) + peak.sum(axis=0) + weights, own.sum(axis=0) + weights
    best = changed.max()
    return float(np.exp(changed - best).sum() / max(np.exp(modes - best).sum() / len(_MODE_SHARES), 1e-300))


# --- Observations of the machine ----------------------------------------------------------------------------------


def canary_change(pair: Pair) -> ChangePosterior | None:
    """Return the canary's head minus base, in logs; None if it was not measured."""
    if not has_canary(pair) or not pair.rounds:
        return None
    a, b = (canary_times(side.launches) for side in (pair.a, pair.b))
    return noise.compare_plain(a, b, noise.prior_after(PRIOR_NOISE, []))


def canary_moved_along(pair: Pair, shift: float) -> bool:
    """Whether the canary also changed in the same direction, by at least half as much."""
    canary = canary_change(pair)
    if canary is None or (canary.p_below(0.0) if shift > 0 else canary.p_above(0.0)) >= CONTRADICTED:
        return False
    return canary.shift * shift > 0 and abs(canary.shift) > CANARY_MOVED * abs(shift)


def wall_contradicts(undisturbed: Sequence[Sequence[PairLaunch]], shift: float, margin: float) -> bool:
    """Whether the wall time of launches that kept their core makes a change in CPU time improbable."""
    a, b = (locations(side, "samples") for side in undisturbed)
    wall = noise.compare_plain(a, b, noise.prior_after(PRIOR_NOISE, []))
    return (wall.p_above(margin) if shift > 0 else wall.p_below(-margin)) < CONTRADICTED


def rounds_contradict(a: Array, b: Array, shift: float) -> bool:
    """Whether too many rounds contradict a change: Wilcoxon's signed-rank test of head minus base, exact, one-sided.

    The launches of a round ran back to back, so a long slow spell that looks like a change overall does not look like
    one round by round. The test assumes nothing about the noise. It is skipped for fewer rounds than `PAIRED_ROUNDS`.

    Args:
        a: Base's locations in the order of their rounds, in logs.
        b: The same of head.
        shift: The change.
    """
    count = min(len(a), len(b))
    if count < PAIRED_ROUNDS:
        return False
    differences = (b[:count] - a[:count]) * math.copysign(1.0, shift)
    ranks = np.abs(differences).argsort().argsort() + 1
    against = int(ranks[differences <= 0].sum())
    sign_patterns = np.zeros(count * (count + 1) // 2 + 1)  # number of patterns by rank sum
    sign_patterns[0] = 1.0
    for rank in range(1, count + 1):
        sign_patterns[rank:] += sign_patterns[:-rank].copy()
    return float(sign_patterns[: against + 1].sum() / sign_patterns.sum()) > PAIRED_LEVEL


def drift(sides: Sequence[Sequence[PairLaunch]], logs: Sequence[Array]) -> float:
    """Return how far the machine may have drifted from one side to the other, in logs; 0 if they ran interleaved.

    If all launches of one side ran before the other's, drift looks like a change. The trend within the sides, plus
    `DRIFT_ERRORS` of its standard errors, is extrapolated from the middle of one to the middle of the other.

    Args:
        sides: Launches of base and of head.
        logs: Their locations.
    """
    if min(len(side) for side in sides) < MIN_LAUNCHES or interleaved(sides):
        return 0.0
    starts = [np.array([launch.start_us for launch in side]) for side in sides]
    # Scaled by the largest: squares of 1e300 or 1e-300, possible in other programs' files, overflow or underflow.
    largest = max(float(np.abs(side).max()) for side in starts) or 1.0
    starts = [side / largest for side in starts]
    if not all(np.ptp(side) > 0 for side in starts):
        return 0.0
    times = np.concatenate([side - side.mean() for side in starts])
    values = np.concatenate([side - side.mean() for side in logs])
    spread = float((times**2).sum())
    if not spread:
        return 0.0
    slope = float((times * values).sum()) / spread
    residual = float(((values - slope * times) ** 2).sum()) / (len(times) - 3)
    return abs(float(starts[1].mean() - starts[0].mean())) * (abs(slope) + DRIFT_ERRORS * math.sqrt(residual / spread))


def spell_factor(pair: Pair, launch_noise: float) -> float:
    """Return the factor on every p-value for slow spells of the machine that the canary may have missed.

    If the canary saw spells in many launches, and the adjusted launches still scatter, it missed spells in others.
    """
    lowest, highest = SPELL_NOISE
    unexplained = min(max((launch_noise - lowest) / (highest - lowest), 0.0), 1.0)
    return 1 + (SPELL_FACTOR - 1) * slow_share(pair) * unexplained


def in_cycles(pair: Pair) -> Pair | None:
    """Return the pair in GPU clock cycles; None if a clock is unknown."""
    sides = (pair.a, pair.b)
    if not all(x.sclk_mhz and min(x.sclk_mhz) > 0 for side in sides for x in side.launches):
        return None
    a, b = (
        msgspec.structs.replace(side, unit="cycles", launches=[_cycles(x) for x in side.launches], history=[])
        for side in sides
    )
    return msgspec.structs.replace(pair, a=a, b=b)


def _cycles(launch: PairLaunch) -> PairLaunch:
    """Return a launch with its samples in cycles and without its other columns."""
    samples = [time * clock for time, clock in zip(launch.samples, launch.sclk_mhz, strict=True)]
    return msgspec.structs.replace(launch, samples=samples, cpu=[], nivcsw=[], sclk_mhz=[])
