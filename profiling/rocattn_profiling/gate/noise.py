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
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LOW_SHARE = 0.5  # of the launches of a side: the lowest, which place it
_TAUS = (0.003, 0.005, 0.008, 0.0125, 0.02, 0.032, 0.05, 0.08, 0.13, 0.22, 0.4)
_SHARES = (0.05, 0.35)  # pi
_DELAYS = (0.04, 0.15, 0.5)
_STEP = 0.0005  # of every grid, in logs
_LEFT, _RIGHT = -1.6, 2.4  # the densities are tabulated between; beyond, the edge's value stands
_POINTS = 81  # levels tried a side, for each tau
_STRAY, _STRAY_SCALE = 0.05, 3.0  # share and scale of a wider core: a launch may be fast by luck, too
_PRIOR_WIDTH = 0.9  # of log tau: a factor of two and a half either way
_UNLIKELY = 1e-5  # a tau of less probability has no say in the interval
_OPEN = 0.05  # part of the prior that gives every tau the same weight: some machines are as bad as that
_MODE_SHARES = tuple((i + 0.5) / 12 for i in range(12))
SESSIONS = 8  # of the history that are listened to, the newest
_TEMPER = 0.5  # weight of a past launch: sessions differ
_UNLIKE = 0.4  # chance that today's noise is not that of earlier sessions: a busier machine, other code
_MEMORY, _COEFFICIENT = 0.5, 0.7  # chance of slow states before five launches are seen, and how long those last
_HELD = 4.5  # median absolute deviations at which an outlier is held
_MODES, _FAR_MODES = 0.05, 0.01  # share of benchmarks with two modes that far apart
_FAR = math.log1p(0.15)


class _Table(NamedTuple):
    """Log densities of the noise, shape [tau, pi and delay, place]."""

    log_density: Array
    taus: Array


class Change(NamedTuple):
    """Posterior of head minus base, in logs.

    Attributes:
        shift: Its median; low, high: its 95 % interval.
        noise: Posterior mean of tau: the launch noise of this benchmark, here and now.
        grids: Shifts, a row for each tau (of each way to read the launches).
        below, above: Probability (of the row's tau and) of a change below, above each shift.
        chances: Of the ways to read the launches, now that they are seen (`compared`).
    """

    shift: float
    low: float
    high: float
    noise: float
    grids: Array
    below: Array
    above: Array
    chances: Array

    def p_below(self, bound: float) -> float:
        """Return the probability that the change is not above the bound."""
        rows = zip(self.grids, self.below, strict=True)
        return float(sum(np.interp(bound, grid, below, left=0.0) for grid, below in rows))

    def p_above(self, bound: float) -> float:
        """Return the probability that the change is not below the bound."""
        rows = zip(self.grids, self.above, strict=True)
        return float(sum(np.interp(bound, grid, above, right=0.0) for grid, above in rows))


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
    return _Table(np.array(blocks), np.array(_TAUS))


def lowest(count: int) -> int:
    """Return how many of a side's launches are its low ones."""
    return math.ceil(LOW_SHARE * count)


@lru_cache(maxsize=64)
def _prior(noise: float) -> Array:
    """Return log weights of tau and, alike, of every pi and delay, shape [tau, pi and delay]."""
    table = _table()
    centre = min(max(noise, _TAUS[0]), _TAUS[-1])
    shape = np.exp(-0.5 * ((np.log(table.taus) - math.log(centre)) / _PRIOR_WIDTH) ** 2)
    weights = np.log((1 - _OPEN) * shape / shape.sum() + _OPEN / len(shape))
    return np.repeat(weights[:, None], table.log_density.shape[1], axis=1)


class _Levels(NamedTuple):
    """Likelihoods of one side's level on a grid for each tau: relative to the largest of a row, and those as logs."""

    low: float
    relative: Array
    best: Array

    def tempered(self, weight: float) -> _Levels:
        """Return the likelihoods as if only this part of the launches had been seen."""
        return self if weight == 1.0 else _Levels(self.low, self.relative**weight, self.best * weight)


def _reach(sides: Sequence[Array]) -> Array:
    """Return how far from the low end a level is looked for, a value for each tau."""
    spread, fewest = 0.0, min(len(x) for x in sides)
    for x in sides:
        ordered = np.sort(x)
        spread = max(spread, float(ordered[lowest(len(x)) - 1] - ordered[0]))
    reach: Array = spread + 8.0 * _table().taus / math.sqrt(fewest)
    return reach


def _levels(x: Array, reach: Array) -> _Levels:
    """Return the likelihood of every level near the low end of a side."""
    table = _table()
    low = float(np.sort(x)[: lowest(len(x))].mean())
    levels = reach[:, None] * np.linspace(-1.0, 1.0, _POINTS)
    places = (x[None, :, None] - low - levels[:, None, :] - _LEFT) / _STEP
    index = np.clip(np.rint(places), 0, table.log_density.shape[2] - 1).astype(np.intp)
    logs = np.stack([rows[:, at].sum(axis=1) for rows, at in zip(table.log_density, index, strict=True)])
    best = logs.max(axis=2)
    return _Levels(low, np.exp(logs - best[:, :, None]), best)


@lru_cache(maxsize=4096)
def _shown(session: bytes) -> Array:
    """Return the log likelihood of the model after one session's locations (float64), shape [tau, pi and delay]."""
    x = np.frombuffer(session)
    reach = _reach([x])
    levels = _levels(x, reach)
    shown: Array = levels.best + np.log(levels.relative.sum(axis=2) * reach[:, None])
    return shown


def learned(noise: float, sessions: Sequence[Array]) -> Array:
    """Return the log prior of the model after launches of earlier sessions, shape [tau, pi and delay]; it sums to one.

    Args:
        noise: Launch noise in logs to expect before any is seen.
        sessions: Locations of one session's launches each, in logs, the newest last.
    """
    weights = _prior(noise)
    for x in sessions[-SESSIONS:]:
        weights = weights + _TEMPER * _shown(x.astype(np.float64).tobytes())
    return _normalised(weights)


def _normalised(logs: Array) -> Array:
    """Return log weights that sum to one."""
    most = float(logs.max())
    found: Array = logs - most - math.log(float(np.exp(logs - most).sum()))
    return found


class Sides(NamedTuple):
    """What the launches of two sides say of their levels."""

    reach: Array
    base: _Levels
    head: _Levels


def sides_of(a: Array, b: Array) -> Sides:
    """Return what two sides' launches say of their levels.

    Args:
        a: Locations of base launches, in logs, shape [n], n >= 1.
        b: Locations of head launches, in logs, shape [m], m >= 1.
    """
    reach = _reach([a, b])
    return Sides(reach, _levels(a, reach), _levels(b, reach))


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
    past = learned(noise, sessions)
    odds = math.log((1 - _UNLIKE) / _UNLIKE) + _foreseen(sides, past) - _foreseen(sides, weak)
    return _normalised(np.logaddexp(past - np.logaddexp(0.0, -odds), weak - np.logaddexp(0.0, odds)))


def _foreseen(sides: Sides, prior: Array) -> float:
    """Return the log likelihood of both sides' launches under a prior that sums to one, the levels unknown."""
    rows = prior + 2 * np.log(sides.reach)[:, None]
    for side in (sides.base, sides.head):
        rows = rows + side.best + np.log(side.relative.sum(axis=2))
    most = float(rows.max())
    return most + math.log(float(np.exp(rows - most).sum()))


class Reading(NamedTuple):
    """One way to read two sides: with the machine's speed taken out to some extent (`readings.of`).

    Attributes:
        chance: Probability of this way before the launches are seen.
        base, head: Locations, in logs.
        sides: Of `sides_of`.
        prior: Log weights of the model, of `learned` or `expected`.
    """

    chance: float
    base: Array
    head: Array
    sides: Sides
    prior: Array


def reading(a: Array, b: Array, noise: float, sessions: Sequence[Array], chance: float = 1.0) -> Reading:
    """Return one way to read two sides; arguments as `sides_of`, `expected` and `Reading`."""
    sides = sides_of(a, b)
    return Reading(chance, a, b, sides, expected(noise, sessions, sides))


def change(a: Array, b: Array, prior: Array) -> Change:
    """Compare two sides read in one way; arguments as `sides_of` and `Reading`."""
    return compared([Reading(1.0, a, b, sides_of(a, b), prior)])


def compared(readings: Sequence[Reading], weight: float = 1.0) -> Change:
    """Compare two sides, averaging over the ways to read them by how well each explains the launches.

    Args:
        readings: One or more.
        weight: Part of the launches that counts as independent (`memory`).
    """
    found = [_compared(one, weight) for one in readings]
    logs = np.array([evidence for evidence, _, _ in found])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    mass = np.concatenate([chance * rows for chance, (_, rows, _) in zip(chances, found, strict=True)])
    grids = np.concatenate([rows for _, _, rows in found])
    below = np.cumsum(mass, axis=1) - 0.5 * mass
    above = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1] - 0.5 * mass
    of_tau = mass.sum(axis=1)
    noise = float((of_tau * np.tile(_table().taus, len(readings))).sum())
    likely = of_tau > _UNLIKELY
    middle = grids[:, _POINTS - 1]
    start, end = grids[likely, 0].min(), grids[likely, -1].max()
    fine = np.union1d(np.linspace(start, end, 241), middle[likely])
    whole = sum(np.interp(fine, grid, row, left=0.0) for grid, row in zip(grids[likely], below[likely], strict=True))
    centre, low, high = (float(np.interp(q, whole, fine)) for q in (0.5, 0.025, 0.975))
    return Change(centre, low, high, noise, grids, below, above, chances)


def _compared(one: Reading, weight: float) -> tuple[float, Array, Array]:
    """Return a reading's log evidence, and masses of the change with their shifts, both of shape [tau, shift]."""
    sides, reach = one.sides, one.sides.reach
    base, head = sides.base.tempered(weight), sides.head.tempered(weight)
    rows = base.best + head.best + one.prior + 2 * np.log(reach)[:, None]  # both levels have a flat prior
    largest = rows.max()
    rows = np.exp(rows - largest)
    size = 2 * _POINTS
    # The distribution of the difference of two levels is the correlation of theirs, summed over pi and delay.
    spectra = np.fft.rfft(head.relative * rows[:, :, None], size) * np.conj(np.fft.rfft(base.relative, size))
    wrapped = np.fft.irfft(spectra.sum(axis=1), size, axis=1)
    mass = np.maximum(np.concatenate([wrapped[:, -_POINTS + 1 :], wrapped[:, :_POINTS]], axis=1), 0.0)
    total = mass.sum()
    steps = 2 * reach / (_POINTS - 1)
    grids = sides.head.low - sides.base.low + steps[:, None] * np.arange(-_POINTS + 1, _POINTS)
    return math.log(one.chance) + float(largest) + math.log(total), mass / total, grids


def memory(a: Array, b: Array) -> tuple[float, float]:
    """Return the probability that a side has slow states of its own, and the part of its launches that then counts.

    Independent launches and launches correlated by 0.7 from one to the next are told apart by the smaller of two
    lag-one coefficients: that of both sides, and that of head minus base, round by round, which what is common to a
    round does not touch. Means and scatters in short series were simulated. Five launches say next to nothing, so the
    prior stands; the part that counts is 1 / (1 + 2 sum_k (1 - k/n) 0.7^k).

    Args:
        a: Locations of base launches in the order of their rounds, in logs.
        b: The same of head.
    """
    count = min(len(a), len(b))
    seen = min(_lag_one([a[:count], b[:count]]), _lag_one([b[:count] - a[:count]]))
    fits = [
        math.exp(-0.5 * ((seen - mean) / scatter) ** 2) / scatter
        for mean, scatter in (
            (-0.05 - 1.2 / count, 0.8 / math.sqrt(count + 5)),
            (0.66 - 3.7 / count, 0.85 / math.sqrt(count + 4)),
        )
    ]
    held = _MEMORY * fits[1] / (_MEMORY * fits[1] + (1 - _MEMORY) * fits[0])
    lost = sum((1 - lag / count) * _COEFFICIENT**lag for lag in range(1, count))
    return held, 1.0 / (1.0 + 2.0 * lost)


def _lag_one(rows: Sequence[Array]) -> float:
    """Return the correlation of neighbours in rows with a mean of their own, outliers held."""
    together = power = 0.0
    for row in rows:
        steps = row - np.median(row)
        reach = _HELD * float(np.median(np.abs(steps)))
        steps = np.clip(steps, -reach, reach)
        steps = steps - steps.mean()
        together += float((steps[1:] * steps[:-1]).sum())
        power += float((steps**2).sum())
    return together / power if power > 0 else -1.0 / len(rows[0])


def two_modes(a: Array, b: Array, seen: Change, prior: Array) -> float:
    """Return the probability that two modes of unchanged code look like this change; arguments as `against_modes`."""
    # Modes (layout, placement) are seldom far apart.
    share = _FAR_MODES if abs(seen.shift) >= _FAR else _MODES
    return share / (share + (1 - share) * against_modes(a, b, seen, prior))


def against_modes(a: Array, b: Array, seen: Change, prior: Array) -> float:
    """Return the Bayes factor of a change against one benchmark with two modes that both sides visit.

    Code that runs at two speeds by chance (layout, placement) can show one speed in most launches of base and the other
    in most of head. Both explanations have the same two levels and the same noise; the modes add a share, uniform.

    Args:
        a: Locations of base launches, in logs.
        b: Locations of head launches, in logs.
        seen: The change, of `change`.
        prior: As in `change`.
    """
    table = _table()
    base = float(np.sort(a)[: lowest(len(a))].mean())
    own: list[Array] = []
    other: list[Array] = []
    for x, level, away in ((a, base, base + seen.shift), (b, base + seen.shift, base)):
        for levels, kept in ((level, own), (away, other)):
            places = np.clip(np.rint((x - levels - _LEFT) / _STEP), 0, table.log_density.shape[2] - 1)
            kept.append(table.log_density[:, :, places.astype(np.intp)])
    own_logs, other_logs = np.concatenate(own, axis=2), np.concatenate(other, axis=2)
    of_base = np.arange(own_logs.shape[2]) < len(a)
    weights = prior - prior.max()
    changed = own_logs.sum(axis=2) + weights
    modes = []
    for share in _MODE_SHARES:  # of the level of head
        mine = np.where(of_base, math.log(1 - share), math.log(share))
        theirs = np.where(of_base, math.log(share), math.log(1 - share))
        modes.append(np.logaddexp(own_logs + mine, other_logs + theirs).sum(axis=2) + weights)
    best = changed.max()
    return float(np.exp(changed - best).sum() / max(np.exp(np.array(modes) - best).sum() / len(modes), 1e-300))
