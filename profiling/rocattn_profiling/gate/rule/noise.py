"""The noise of process launches as a model, and what it says about the change between two sides.

A launch's location (log of the low end of its samples) is the code's level plus a small symmetric noise; now and then
another process, the cache or the host adds to it, never subtracts::

    x = mu + e,   e ~ (1 - pi) * N(0, tau) + pi * (N(0, tau) + Exp(delay))

tau, pi and delay are unknown and the same on both sides. They are integrated over a fixed grid with a weak prior on tau
(log-normal around the noise to be expected), which the launches of earlier sessions sharpen where today's agree with
them. The levels have flat priors, so the posterior of their difference is a statement about the change even when
several launches of a side were disturbed: a mean, a median or a plain t test over launches is not. Contaminated
normals: Tukey 1960; integrating nuisance scales out under a prior: Gelman et al., Bayesian Data Analysis, chapter 3.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn_profiling.gate.rule.posterior import POINTS, SHIFTS, Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LOW_SHARE = 0.5  # of the launches of a side: the lowest, which place it
_TAUS = (0.003, 0.005, 0.008, 0.0125, 0.02, 0.032, 0.05, 0.08, 0.13, 0.22, 0.4)
_EVERY = np.arange(len(_TAUS))
_SHARES = (0.05, 0.35)  # pi
_DELAYS = (0.04, 0.15, 0.5)
_STEP = 0.0005  # of every grid, in logs
_LEFT, _RIGHT = -1.6, 2.4  # the densities are tabulated between; beyond, the edge's value stands
_LEVELS = np.linspace(-1.0, 1.0, POINTS)  # in parts of the reach
_TRANSFORMED = 192  # points of a Fourier transform: not less than shifts, and a fast number
_STRAY, _STRAY_SCALE = 0.05, 3.0  # share and scale of a wider core: a launch may be fast by luck, too
_PRIOR_WIDTH = 0.9  # of log tau: a factor of two and a half either way
_OPEN = 0.05  # part of the prior that gives every tau the same weight: some machines are as bad as that
SESSIONS = 8  # of the history that are listened to, the newest
_TEMPER = 0.5  # weight of a past launch: sessions differ
_UNLIKE = 0.4  # chance that today's noise is not that of earlier sessions: a busier machine, other code


class _Table(NamedTuple):
    """Log densities of the noise, shape [tau and place, pi and delay]: what is looked up together lies together."""

    log_density: Array
    taus: Array
    places: int


@lru_cache(maxsize=1)
def _table() -> _Table:
    places = np.arange(_LEFT, _RIGHT, _STEP)
    blocks = []
    for tau in _TAUS:
        core, wide = (
            np.exp(-0.5 * (places / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
            for scale in (tau, _STRAY_SCALE * tau)
        )
        clean = (1 - _STRAY) * core + _STRAY * wide
        rows = []
        for delay in _DELAYS:
            # Normal plus exponential: E' = (N - E) / delay, solved by integrating N exp(t / delay).
            grown = np.cumsum(core * np.exp((places - _LEFT) / delay)) * _STEP / delay
            late = grown * np.exp(-(places - _LEFT) / delay)
            rows += [np.log((1 - share) * clean + share * late + 1e-12) for share in _SHARES]
        blocks.append(rows)
    # Freeing these megabytes in another order also has glibc keep what a pair's arrays take: else every pair's are
    # handed back to the system and fetched again: a quarter of the time, where there are five ways to read a pair.
    log_density: Array = np.ascontiguousarray(np.array(blocks).swapaxes(1, 2)).reshape(-1, len(rows))
    return _Table(log_density, np.array(_TAUS), len(places))


def _looked_up(places: Array) -> Iterator[Array]:
    """Give the log density of the noise, the models of a tau in the last axis, for places of shape [..., tau, level].

    It is looked up for one index of the first axis at a time: an array for all launches takes megabytes.

    Args:
        places: In logs.
    """
    table = _table()
    index = np.rint((places - _LEFT) / _STEP)
    np.minimum(np.maximum(index, 0, out=index), table.places - 1, out=index)
    index += table.places * _EVERY[:, None]
    return (table.log_density.take(at, axis=0) for at in index.astype(np.intp))


def log_density(places: Array) -> Array:
    """Return the log density of the noise under each model at the place of each launch, shape [launch, model]."""
    taus = np.broadcast_to(places[:, None, None], (len(places), len(_TAUS), 1))
    return np.array(list(_looked_up(taus))).reshape(len(places), -1)


def lowest(count: int) -> int:
    """Return how many of a side's launches are its low ones."""
    return math.ceil(LOW_SHARE * count)


def lowest_of(x: Array) -> Array:
    """Return the low ones of locations of shape [way, launch], in order."""
    found: Array = np.sort(x, axis=1)[:, : lowest(x.shape[1])]
    return found


@lru_cache(maxsize=64)
def _prior(noise: float) -> Array:
    """Return log weights of tau and, alike, of every pi and delay, shape [1, tau, pi and delay]; they sum to one."""
    table = _table()
    centre = min(max(noise, _TAUS[0]), _TAUS[-1])
    shape = np.exp(-0.5 * ((np.log(table.taus) - math.log(centre)) / _PRIOR_WIDTH) ** 2)
    weights = np.log((1 - _OPEN) * shape / shape.sum() + _OPEN / len(shape))
    return _normalised(np.repeat(weights[None, :, None], table.log_density.shape[1], axis=2))


class Sides(NamedTuple):
    """What the launches of one side or of two say of their levels, read in one way or more.

    Attributes:
        low: What the levels that are tried lie around, shape [side, way].
        reach: How far they go either way, shape [way, tau].
        logs: Log likelihood of each, shape [side, way, tau, pi and delay, level].
        relative: The same without the log, relative to the largest of a row.
        whole: Log likelihood of the launches of each side, its level unknown, shape [side, way, tau, pi and delay].
    """

    low: Array
    reach: Array
    logs: Array
    relative: Array
    whole: Array

    def tempered(self, weight: float) -> Sides:
        """Return the likelihoods as if only this part of the launches had been seen."""
        return self if weight == 1.0 else _sides(self.low, self.reach, self.logs * weight)


def _sides(low: Array, reach: Array, logs: Array) -> Sides:
    best = logs.max(axis=4)
    relative = np.exp(logs - best[..., None])
    whole = best + np.log(relative.sum(axis=4) * reach[..., None])  # a level has a flat prior
    return Sides(low, reach, logs, relative, whole)


def sides_of(*sides: Array) -> Sides:
    """Return what the launches of sides say of their levels.

    Args:
        sides: Locations of the launches of each, in logs, shape [way, launch], one launch or more.
    """
    lowest_ones = [lowest_of(x) for x in sides]
    low = np.array([x.mean(axis=1) for x in lowest_ones])
    spread = np.array([x[:, -1] - x[:, 0] for x in lowest_ones]).max(axis=0)
    reach = spread[:, None] + 8.0 * _table().taus / math.sqrt(min(x.shape[1] for x in sides))
    levels = reach[..., None] * _LEVELS
    logs = [
        reduce(np.add, _looked_up((x - of_x[:, None]).T[:, :, None, None] - levels))
        for x, of_x in zip(sides, low, strict=True)
    ]  # [side][way, tau, level, pi and delay]
    return _sides(low, reach, np.ascontiguousarray(np.array(logs).swapaxes(3, 4)))


@lru_cache(maxsize=4096)
def _shown(session: bytes, ways: int) -> Array:
    """Return the log likelihood of one session's locations (float64), shape [way, tau, pi and delay]."""
    shown: Array = sides_of(np.frombuffer(session).reshape(ways, -1)).whole[0]
    return shown


def learned(noise: float, sessions: Sequence[Array]) -> Array:
    """Return the log prior of the model after earlier launches, shape [way, tau, pi and delay]; each way's sums to one.

    Args:
        noise: Launch noise in logs to expect before any is seen.
        sessions: Locations of one session's launches each, in logs, the newest last, shape [launch] or [way, launch].
    """
    weights = _prior(noise)
    if not sessions:
        return weights
    for x in map(np.atleast_2d, sessions[-SESSIONS:]):
        weights = weights + _TEMPER * _shown(x.astype(np.float64).tobytes(), len(x))
    return _normalised(weights)


def _summed(logs: Array) -> Array:
    """Return the log of each way's sum, given and returned with axes [way, tau, pi and delay]."""
    most = logs.max(axis=(1, 2), keepdims=True)
    found: Array = most + np.log(np.exp(logs - most).sum(axis=(1, 2), keepdims=True))
    return found


def _normalised(logs: Array) -> Array:
    """Return log weights that sum to one for each way."""
    found: Array = logs - _summed(logs)
    return found


def expected(noise: float, sessions: Sequence[Array], sides: Sides) -> Array:
    """Return the log prior for two sides: what earlier sessions showed, as far as it agrees with today's launches.

    A prior as sharp as many launches make it would outvote the few of today, also where the machine is busier than it
    was. It is one of two: the other is the weak one that knows no history, with a chance of 0.4. How well each foresees
    today's launches, whatever the levels of the sides, says which is believed (robust mixture priors: Schmidli et al.
    2014, Biometrics 70). That is settled here, from all launches, for `compared` may count them in part.

    Args:
        noise: As in `learned`.
        sessions: As in `learned`.
        sides: Today's launches.
    """
    weak = learned(noise, [])
    if not sessions:
        return weak
    past, today = learned(noise, sessions), sides.whole.sum(axis=0)
    odds = math.log((1 - _UNLIKE) / _UNLIKE) + _summed(past + today) - _summed(weak + today)
    return _normalised(np.logaddexp(past - np.logaddexp(0.0, -odds), weak - np.logaddexp(0.0, odds)))


class Readings(NamedTuple):
    """The ways to read two sides: with the machine's speed taken out to some extent (`readings.of`).

    Attributes:
        chances: Probability of each way before the launches are seen.
        base, head: Locations, in logs, shape [way, launch].
        sides: Of `sides_of`.
        prior: Log weights of the model, of `learned` or `expected`.
        volume: Log of the volume that a way leaves of launches: what draws them together makes them no more probable.
    """

    chances: Array
    base: Array
    head: Array
    sides: Sides
    prior: Array
    volume: Array


def read(
    a: Array, b: Array, noise: float, sessions: Sequence[Array],
    chances: Sequence[float] = (1.0,), volume: Sequence[float] = (0.0,),
) -> Readings:  # fmt: skip
    """Return ways to read two sides.

    Args:
        a: Locations of base launches, in logs, shape [launch] or, for several ways, [way, launch].
        b: The same of head.
        noise: As in `expected`.
        sessions: As in `expected`.
        chances: As in `Readings`.
        volume: As in `Readings`; one may stand for all.
    """
    base, head = np.atleast_2d(a, b)
    sides = sides_of(base, head)
    prior = expected(noise, sessions, sides)
    prior = np.broadcast_to(prior, (len(chances), *prior.shape[1:]))
    return Readings(np.array(chances), base, head, sides, prior, np.array(volume))


def change(a: Array, b: Array, prior: Array) -> Change:
    """Compare two sides read in one way; arguments as `read` and `Readings`."""
    base, head = np.atleast_2d(a, b)
    return compared(Readings(np.ones(1), base, head, sides_of(base, head), prior, np.zeros(1)))


def compared(ways: Readings, weight: float = 1.0) -> Change:
    """Compare two sides, averaging over the ways to read them by how well each explains the launches.

    Args:
        ways: One or more.
        weight: Part of the launches that counts as independent (`rocattn_profiling.gate.rule.doubts.memory`).
    """
    sides = ways.sides.tempered(weight)
    posterior = _posterior(ways, sides, weight)
    # The distribution of the difference of two levels is the correlation of theirs, summed over pi and delay.
    base, head = np.fft.rfft(sides.relative, _TRANSFORMED)
    weights = posterior / sides.relative.sum(axis=4).prod(axis=0)
    head *= base.conj()
    head *= weights[..., None]
    wrapped = np.fft.irfft(head.sum(axis=2), _TRANSFORMED)
    mass = np.maximum(np.concatenate([wrapped[..., 1 - POINTS :], wrapped[..., :POINTS]], axis=2), 0.0)
    middles = np.repeat(sides.low[1] - sides.low[0], len(_TAUS))[:, None]
    steps = sides.reach.reshape(-1, 1) * (2 / (POINTS - 1))
    noise = float((posterior.sum(axis=(0, 2)) * _table().taus).sum())
    return Change(middles, steps, mass.reshape(-1, SHIFTS) / mass.sum(), posterior.sum(axis=(1, 2)), noise)


def _posterior(ways: Readings, sides: Sides, weight: float = 1.0) -> Array:
    """Return the probability of each way and model, shape [way, tau, pi and delay]; ``sides`` count for the weight."""
    logs = ways.prior + sides.whole.sum(axis=0) + (np.log(ways.chances) + weight * ways.volume)[:, None, None]
    found: Array = np.exp(logs - logs.max())
    found /= found.sum()
    return found
