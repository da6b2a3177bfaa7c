"""A model of launch noise, fitted to two sides: the posterior of the change between them.

A launch's location (the log of a low quantile of its samples) is the code's level plus small symmetric noise; sometimes
another process, the cache or the host delays it::

    x = mu + e,   e ~ (1 - pi) * N(0, tau) + pi * (N(0, tau) + Exp(delay))

tau, pi and delay are unknown and the same on both sides. They are integrated over a fixed grid with a weak prior on tau
(log-normal around the expected noise), which launches of earlier sessions sharpen if today's agree with them. The
levels have flat priors, so the posterior of their difference stays valid even if several launches of a side were
delayed, unlike a mean, a median or a t test. Contaminated normals: Tukey 1960; integrating out nuisance scales under a
prior: Gelman et al., Bayesian Data Analysis, chapter 3.

Array axes are [side, candidate, tau, contamination, level]. A candidate is one covariate adjustment
(`rocattn_profiling.gate.rule.covariates`), a contamination one combination of pi and delay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn_profiling.gate.rule.constants import (
    DELAYED_SHARES,
    DELAYS,
    FLAT_PRIOR,
    LOW_SHARE,
    NOISE_SCALES,
    OTHER_NOISE,
    PRIOR_WIDTH,
    SESSION_WEIGHT,
    SESSIONS,
    STRAY_SCALE,
    STRAY_SHARE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_STEP = 0.0005  # between tabulated residuals
_LEFT, _RIGHT = -1.6, 2.4  # tabulated residuals; others get the value at the edge
_POINTS = 81  # levels per side and tau
_SHIFTS = 2 * _POINTS - 1  # possible differences between the levels of two sides
_LEVELS = np.linspace(-1.0, 1.0, _POINTS)  # as fractions of the reach
_FFT_POINTS = 192  # a fast size, at least the number of shifts
_SHIFT_STEPS = np.arange(1.0 - _POINTS, _POINTS)  # from the shift in the middle
_QUANTILE_GRID = np.linspace(0.0, 1.0, 241)  # as fractions of the posterior's width
_NEGLIGIBLE = 1e-5  # a less probable tau is left out of the interval

_SCALE_INDEX = np.arange(len(NOISE_SCALES))


class _DensityTable(NamedTuple):
    """Log densities of the noise, shape [tau and residual, contamination]: values used together are adjacent."""

    log_density: Array
    taus: Array
    residuals: int


@lru_cache(maxsize=1)
def _table() -> _DensityTable:
    """Tabulate the densities."""
    residuals = np.arange(_LEFT, _RIGHT, _STEP)
    blocks = []
    for tau in NOISE_SCALES:
        core, wide = (
            np.exp(-0.5 * (residuals / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
            for scale in (tau, STRAY_SCALE * tau)
        )
        clean = (1 - STRAY_SHARE) * core + STRAY_SHARE * wide
        rows = []
        for delay in DELAYS:
            # Normal plus exponential: E' = (N - E) / delay, solved by integrating N exp(t / delay).
            integral = np.cumsum(core * np.exp((residuals - _LEFT) / delay)) * _STEP / delay
            delayed = integral * np.exp(-(residuals - _LEFT) / delay)
            rows += [np.log((1 - share) * clean + share * delayed + 1e-12) for share in DELAYED_SHARES]
        blocks.append(rows)
    # With this order of frees glibc keeps the memory of a pair's arrays. With others, every pair returns it to the
    # system and faults it in again: a quarter of the time with five candidates.
    log_density: Array = np.ascontiguousarray(np.array(blocks).swapaxes(1, 2)).reshape(-1, len(rows))
    return _DensityTable(log_density, np.array(NOISE_SCALES), len(residuals))


def _log_densities(residuals: Array) -> Iterator[Array]:
    """Yield the log densities of residuals of shape [launch, ..., tau, level] per launch, with contaminations last.

    One launch at a time, because an array for all launches takes megabytes.
    """
    table = _table()
    index = np.rint((residuals - _LEFT) / _STEP)
    np.minimum(np.maximum(index, 0, out=index), table.residuals - 1, out=index)
    index += table.residuals * _SCALE_INDEX[:, None]
    return (table.log_density.take(at, axis=0) for at in index.astype(np.intp))


def log_density(residuals: Array) -> Array:
    """Return the log density of each launch's residual under each model, shape [launch, tau and contamination]."""
    by_tau = np.broadcast_to(residuals[:, None, None], (len(residuals), len(NOISE_SCALES), 1))
    return np.array(list(_log_densities(by_tau))).reshape(len(residuals), -1)


def low_count(count: int) -> int:
    """Return how many of a side's launches count as low."""
    return math.ceil(LOW_SHARE * count)


def low_launches(locations: Array) -> Array:
    """Return the low locations, in ascending order, from locations of shape [candidate, launch]."""
    low: Array = np.sort(locations, axis=1)[:, : low_count(locations.shape[1])]
    return low


class Likelihoods(NamedTuple):
    """Likelihood of the levels of one or two sides.

    Attributes:
        centre: Center of the grid of levels, shape [side, candidate].
        reach: How far the grid extends either way, shape [candidate, tau].
        log_levels: Log likelihood of each level, shape [side, candidate, tau, contamination, level].
        relative: The likelihood, relative to the largest over the levels; same shape.
        evidence: Log likelihood with the level integrated out, shape [side, candidate, tau, contamination].
    """

    centre: Array
    reach: Array
    log_levels: Array
    relative: Array
    evidence: Array

    def tempered(self, weight: float) -> Likelihoods:
        """Return the likelihoods as if only this fraction of the launches had been measured."""
        return self if weight == 1.0 else _integrated(self.centre, self.reach, self.log_levels * weight)


def _integrated(centre: Array, reach: Array, log_levels: Array) -> Likelihoods:
    """Complete the likelihoods: integrate out the levels under a flat prior."""
    best = log_levels.max(axis=4)
    relative = np.exp(log_levels - best[..., None])
    evidence = best + np.log(relative.sum(axis=4) * reach[..., None])
    return Likelihoods(centre, reach, log_levels, relative, evidence)


def likelihoods(*sides: Array) -> Likelihoods:
    """Return the likelihoods of the sides' levels.

    Args:
        sides: For each side, its launches' locations in logs, shape [candidate, launch]; at least one launch.
    """
    lows = [low_launches(x) for x in sides]
    centre = np.array([x.mean(axis=1) for x in lows])
    spread = np.array([x[:, -1] - x[:, 0] for x in lows]).max(axis=0)
    reach = spread[:, None] + 8.0 * _table().taus / math.sqrt(min(x.shape[1] for x in sides))
    levels = reach[..., None] * _LEVELS
    by_level = [
        reduce(np.add, _log_densities((x - middle[:, None]).T[:, :, None, None] - levels))
        for x, middle in zip(sides, centre, strict=True)
    ]  # [side][candidate, tau, level, contamination]
    return _integrated(centre, reach, np.ascontiguousarray(np.array(by_level).swapaxes(3, 4)))


@lru_cache(maxsize=64)
def _weak_prior(noise: float) -> Array:
    """Return log weights of tau, the same for every contamination, shape [1, tau, contamination]; they sum to one."""
    table = _table()
    centre = min(max(noise, NOISE_SCALES[0]), NOISE_SCALES[-1])
    shape = np.exp(-0.5 * ((np.log(table.taus) - math.log(centre)) / PRIOR_WIDTH) ** 2)
    weights = np.log((1 - FLAT_PRIOR) * shape / shape.sum() + FLAT_PRIOR / len(shape))
    return _normalised(np.repeat(weights[None, :, None], table.log_density.shape[1], axis=2))


@lru_cache(maxsize=4096)
def _session_evidence(session: bytes, candidates: int) -> Array:
    """Return the log likelihood of one session's locations (float64), shape [candidate, tau, contamination]."""
    evidence: Array = likelihoods(np.frombuffer(session).reshape(candidates, -1)).evidence[0]
    return evidence


def prior_after(noise: float, sessions: Sequence[Array]) -> Array:
    """Return the log prior of the noise after earlier sessions, shape [candidate, tau, contamination].

    The weights of each candidate sum to one.

    Args:
        noise: Launch noise in logs, expected before any launch.
        sessions: For each session, its launches' locations in logs, newest last, shape [launch] or [candidate, launch].
    """
    weights = _weak_prior(noise)
    if not sessions:
        return weights
    for x in map(np.atleast_2d, sessions[-SESSIONS:]):
        weights = weights + SESSION_WEIGHT * _session_evidence(x.astype(np.float64).tobytes(), len(x))
    return _normalised(weights)


def _log_sums(logs: Array) -> Array:
    """Return the log of each candidate's sum; axes in and out: [candidate, tau, contamination]."""
    most = logs.max(axis=(1, 2), keepdims=True)
    sums: Array = most + np.log(np.exp(logs - most).sum(axis=(1, 2), keepdims=True))
    return sums


def _normalised(logs: Array) -> Array:
    """Return the log weights, normalized so that each candidate's weights sum to one."""
    weights: Array = logs - _log_sums(logs)
    return weights


def mixture_prior(noise: float, sessions: Sequence[Array], today: Likelihoods) -> Array:
    """Return the log prior for two sides: the history's, as far as it agrees with today's launches.

    The sharp prior from a long history would outweigh today's few launches, even if the machine is now busier. So it is
    mixed with the weak prior, which has the probability `OTHER_NOISE`. They are reweighted by how well each predicts
    today's launches, whatever the levels (robust mixture priors: Schmidli et al. 2014, Biometrics 70). All launches
    count for this, even if `compare` tempers them.

    Args:
        noise: See `prior_after`.
        sessions: See `prior_after`.
        today: Today's launches.
    """
    weak = prior_after(noise, [])
    if not sessions:
        return weak
    past, evidence = prior_after(noise, sessions), today.evidence.sum(axis=0)
    odds = math.log((1 - OTHER_NOISE) / OTHER_NOISE) + _log_sums(past + evidence) - _log_sums(weak + evidence)
    return _normalised(np.logaddexp(past - np.logaddexp(0.0, -odds), weak - np.logaddexp(0.0, odds)))


class Candidates(NamedTuple):
    """Two sides under each candidate adjustment (`rocattn_profiling.gate.rule.covariates.candidates_of`).

    Attributes:
        chances: Prior probability of each candidate.
        base, head: Locations in logs, shape [candidate, launch].
        likelihoods: Likelihoods of both sides' levels.
        prior: Log weights of the noise, from `prior_after` or `mixture_prior`.
        volume: Log of the factor by which an adjustment shrinks the space of launches. Without it, shrinking alone
            would make launches more probable.
    """

    chances: Array
    base: Array
    head: Array
    likelihoods: Likelihoods
    prior: Array
    volume: Array


def candidates(
    a: Array, b: Array, noise: float, sessions: Sequence[Array],
    chances: Sequence[float] = (1.0,), volume: Sequence[float] = (0.0,),
) -> Candidates:  # fmt: skip
    """Fit two sides under one or more adjustments.

    Args:
        a: Base's launches' locations in logs, shape [launch] or [candidate, launch].
        b: The same for head.
        noise: See `prior_after`.
        sessions: See `prior_after`.
        chances: See `Candidates`.
        volume: See `Candidates`; a single value applies to all.
    """
    base, head = np.atleast_2d(a, b)
    today = likelihoods(base, head)
    prior = mixture_prior(noise, sessions, today)
    prior = np.broadcast_to(prior, (len(chances), *prior.shape[1:]))
    return Candidates(np.array(chances), base, head, today, prior, np.array(volume))


@dataclass(frozen=True)
class ChangePosterior:
    """Posterior of head minus base, in logs.

    Attributes:
        middles: Middle of each row's evenly spaced shifts, one row per candidate and tau; shape [row, 1].
        steps: Distance between these shifts, shape [row, 1].
        mass: Probability of each row and shift, shape [row, shift].
        chances: Posterior probability of each candidate.
        noise: Posterior mean of tau: the noise of today's launches, adjusted.
    """

    middles: Array
    steps: Array
    mass: Array
    chances: Array
    noise: float

    @property
    def shift(self) -> float:
        """The median."""
        return self._quantiles[0]

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self._quantiles[1]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self._quantiles[2]

    def p_below(self, bound: float) -> float:
        """Return the probability that the change is not above the bound."""
        return self._p_within((bound - self.middles) / self.steps - _SHIFT_STEPS)

    def p_above(self, bound: float) -> float:
        """Return the probability that the change is not below the bound."""
        return self._p_within(_SHIFT_STEPS - (bound - self.middles) / self.steps)

    def _p_within(self, left: Array) -> float:
        """Return the mass on one side of a bound ``left`` steps away; a shift's mass is spread one step either way."""
        return float(np.vdot(self.mass, np.minimum(np.maximum(0.5 + 0.5 * left, 0.0), 1.0)))

    @cached_property
    def _quantiles(self) -> tuple[float, float, float]:
        """The median and the ends of the interval, from the rows' distribution functions on a common grid."""
        likely = self.mass.sum(axis=1) > _NEGLIGIBLE
        middles, steps, mass = self.middles[likely], self.steps[likely], self.mass[likely]
        reach = (_POINTS - 1) * steps
        start, end = (middles - reach).min(), (middles + reach).max()
        grid = np.sort(np.concatenate([start + (end - start) * _QUANTILE_GRID, list(set(middles.ravel().tolist()))]))
        below = np.cumsum(mass, axis=1) - 0.5 * mass
        positions = np.minimum((grid - middles) / steps + (_POINTS - 1), _SHIFTS - 1)
        left = np.minimum(np.maximum(positions, 0.0).astype(np.intp), _SHIFTS - 2)
        index = left + np.arange(0, below.size, _SHIFTS)[:, None]
        distribution = below.take(index)
        distribution += (below.take(index + 1) - distribution) * (positions - left)
        total = (distribution * (positions >= 0)).sum(axis=0)
        middle, low, high = np.interp((0.5, 0.025, 0.975), total, grid).tolist()
        return middle, low, high


def compare_plain(a: Array, b: Array, prior: Array) -> ChangePosterior:
    """Compare two sides without any adjustment; for arguments see `candidates` and `Candidates`."""
    base, head = np.atleast_2d(a, b)
    return compare(Candidates(np.ones(1), base, head, likelihoods(base, head), prior, np.zeros(1)))


def compare(fits: Candidates, weight: float = 1.0) -> ChangePosterior:
    """Compare two sides, averaging over the candidates by how well each explains the launches.

    Args:
        fits: One or more candidates.
        weight: Fraction of the launches that counts as independent (`rocattn_profiling.gate.rule.guards.slow_states`).
    """
    sides = fits.likelihoods.tempered(weight)
    posterior = _posterior(fits, sides, weight)
    # The distribution of a difference is the cross-correlation of the two levels', summed over contaminations.
    base, head = np.fft.rfft(sides.relative, _FFT_POINTS)
    weights = posterior / sides.relative.sum(axis=4).prod(axis=0)
    head *= base.conj()
    head *= weights[..., None]
    wrapped = np.fft.irfft(head.sum(axis=2), _FFT_POINTS)
    mass = np.maximum(np.concatenate([wrapped[..., 1 - _POINTS :], wrapped[..., :_POINTS]], axis=2), 0.0)
    middles = np.repeat(sides.centre[1] - sides.centre[0], len(NOISE_SCALES))[:, None]
    steps = sides.reach.reshape(-1, 1) * (2 / (_POINTS - 1))
    noise = float((posterior.sum(axis=(0, 2)) * _table().taus).sum())
    return ChangePosterior(middles, steps, mass.reshape(-1, _SHIFTS) / mass.sum(), posterior.sum(axis=(1, 2)), noise)


def _posterior(fits: Candidates, sides: Likelihoods, weight: float) -> Array:
    """Return the probability of each candidate and model, shape [candidate, tau, contamination]."""
    logs = fits.prior + sides.evidence.sum(axis=0) + (np.log(fits.chances) + weight * fits.volume)[:, None, None]
    probability: Array = np.exp(logs - logs.max())
    probability /= probability.sum()
    return probability
