"""Change points in the history of a benchmark: where its level moved, by how much, and whether it later recovered.

The most significant bump (a run of commits against the rest; a step is a run that reaches an end) is searched for
recursively, as in circular binary segmentation (Olshen et al. 2004). The search biases the p-value of the best split,
so it is calibrated by a sieve bootstrap (Buehlmann 1997): the same search runs over stable series, generated from this
series' residuals with their autocorrelation, and a Gumbel distribution is fitted to the largest values. Outliers are
first winsorized towards a running median. Optimal partitioning proposes further steps, since steps can mask each other.
Each step is then tested against its two adjacent levels, or the points near it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from rocattn_profiling.measure.stats import student_t_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import Series

    Array = NDArray[np.float64]

State = Literal["new", "confirmed", "recovered"]
Unsearched = Literal["few", "zero"]  # fewer than `FEWEST` points; values of zero or less, which have no ratios
CONFIRMED = 5  # points on a level
SHORTEST = 3  # points of the newest level; one or two are outliers
FLOOR = 1e-3  # smallest noise, in logs, assumed even for a constant series
_CLIP = 2.5  # noise scales from the running median to which outliers are winsorized
_FAR = 3.75  # noise scales from the points on both sides beyond which a cluster is replaced
_WINDOW = 2 * CONFIRMED - 1
LEVEL = 0.007  # significance level of each test
_KEPT = 10.0  # times the level: p-value above which a change found earlier is withdrawn
LEAST = math.log1p(0.01)  # smaller steps are not reported
FEWEST = CONFIRMED + SHORTEST  # points needed for a search
_DRAWS, _FEWEST_DRAWS = 200, 60
_CLEAR = 12.0  # factor above or below the level from which on the smallest number of draws decides
_DRAWN = 60_000  # points in all bootstrap draws: long series get fewer draws
_PLAIN = 100.0  # squared t that no stable series of independent, winsorized points reaches
_AROUND = 41  # size of the window of points that determines the noise of its middle point
_ENDS = 8 * CONFIRMED  # ends of levels whose costs are computed at once
_LATER = np.where(np.tri(_ENDS, _ENDS + 1, -1, dtype=bool), 0.0, np.inf)  # starts too near to an end
_ROWS = np.arange(CONFIRMED)
_PRICE = 5.0  # its square is the penalty per level, in squared noise scales
_MOST_CORRELATED = 0.8
_EULER = 0.5772156649
_AT_ONCE = 1 << 16  # numbers per step of a search, so that they stay in the CPU's cache
_student_t = lru_cache(maxsize=1024)(partial(student_t_quantile, 0.975))


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One change of level.

    Attributes:
        index: The most likely first commit on the new level, an index into the series.
        first, last: The range of commits that the change came with (95 %), including unmeasured ones.
        ratio, ratio_low, ratio_high: New level over old, with a 95 % interval.
        state: "recovered" if a later change undid it, "new" with fewer than five points on the new level, otherwise
            "confirmed".
        points: Number of points on the new level.
    """

    index: int
    first: int
    last: int
    ratio: float
    ratio_low: float
    ratio_high: float
    state: State
    points: int


class CommitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change point with its commits: ``commits`` are the hashes that it may have come with, oldest first."""

    change: ChangePoint
    commits: list[str]
    likeliest: str


class ShortLevel(NamedTuple):
    """Two to four points of one line, far from the points on both sides.

    Attributes:
        first, after: Its first commit, and the first commit after it.
        higher: Whether it is above the adjacent points.
    """

    first: str
    after: str
    higher: bool


class _Noise(NamedTuple):
    """Residuals of a stretch: scale, lag-one autocorrelation, and the values themselves."""

    scale: float
    correlation: float
    residuals: Array

    @property
    def inflation(self) -> float:
        """Factor on the variance of a mean of many autocorrelated points."""
        return (1 + self.correlation) / (1 - self.correlation)


def changes_of(
    series: Series, boundaries: Collection[str] = (), level: float = LEVEL, shared: Collection[ShortLevel] = (),
    found: Collection[CommitChange] | None = None,
) -> list[CommitChange]:  # fmt: skip
    """Return the changes of a stored series.

    Args:
        series: Points in commit order; failed and missing ones are skipped.
        boundaries: The first commits with a new machine, driver or compiler: levels are not compared across these.
        level: Significance level of each test.
        shared: Short levels of the series that other series confirm.
        found: The changes without these, if known: then nothing is searched again.
    """
    shas = series.points.shas
    starts = _starts(shas, boundaries)
    places = {sha: index for index, sha in enumerate(shas)} if shared else {}
    proven = [(places[short.first], places[short.after]) for short in shared]
    known = None if found is None else [one.change.index for one in found]
    points = change_points(series.points.values, starts, level, proven, known)
    return [CommitChange(change=c, commits=shas[c.first : c.last + 1], likeliest=shas[c.index]) for c in points]


def change_points(
    values: Sequence[float | None] | Array,
    boundaries: Collection[int] = (),
    level: float = LEVEL,
    shared: Collection[tuple[int, int]] = (),
    found: Collection[int] | None = None,
) -> list[ChangePoint]:
    """Return the changes of a series of positive values in commit order.

    Args:
        values: One per commit; None or NaN if not measured. A series with a value of zero or less has no ratios.
        boundaries: Indices at which something other than the code changed: levels are not compared across these.
        level: Significance level of each test.
        shared: Short levels that other series confirm: the first index of each, and the first after it.
        found: The indices of the changes without these, if known.
    """
    changes: list[ChangePoint] = []
    numbers = np.asarray(values, dtype=float)  # None becomes NaN
    for kept in _stretches(numbers, boundaries):
        if numbers[kept].min() > 0:
            at = {index: place for place, index in enumerate(kept.tolist())} if shared or found else {}
            own = [(at[first], at[after]) for first, after in shared if first in at and after in at]
            known = None if found is None else [at[index] for index in found if index in at]
            changes += _stretch(kept, np.log(numbers[kept]), level, own, known)
    return changes


def short_levels(series: Series, boundaries: Collection[str] = ()) -> list[ShortLevel]:
    """Return runs too short for a level that are far from the points on both sides: noise, if only one series has it.

    Args:
        series: See `changes_of`.
        boundaries: Commits across which levels are not compared.
    """
    shas, values = series.points.shas, series.points.values
    found = []
    for kept in _stretches(values, _starts(shas, boundaries)):
        if len(kept) <= _WINDOW or values[kept].min() <= 0:
            continue
        y = np.log(values[kept])
        far = np.maximum(_FAR * _scales(y), LEAST)
        side, inner = np.zeros(len(y)), slice(_WINDOW // 2, -(_WINDOW // 2))
        away = y[inner] - _middle(y)
        side[inner] = np.sign(away) * (np.abs(away) > far[inner])
        for start, end in _runs(side):
            own = side[start] * y[max(0, start - SHORTEST) : end + SHORTEST]
            inside = slice(min(start, SHORTEST), min(start, SHORTEST) + end - start)
            if 1 < end - start < CONFIRMED and own[inside].min() > np.delete(own, inside).max() + far[start]:
                found.append(ShortLevel(shas[kept[start]], shas[kept[end]], bool(side[start] > 0)))
    return found


def unsearched(series: Series, boundaries: Collection[str] = ()) -> Unsearched | None:
    """Return why a stored series is not searched, or only in part; None if all of it is searched.

    Args:
        series: See `changes_of`.
        boundaries: Commits across which levels are not compared.
    """
    starts = _starts(series.points.shas, boundaries)
    stretches = list(_stretches(series.points.values, starts))
    if not stretches:
        return "few"
    return "zero" if any(series.points.values[kept].min() <= 0 for kept in stretches) else None


def _starts(shas: Sequence[str], boundaries: Collection[str]) -> list[int]:
    return [index for index, sha in enumerate(shas) if sha in boundaries] if boundaries else []


def _stretches(values: Array, boundaries: Collection[int]) -> Iterator[NDArray[np.intp]]:
    """Yield the stretches between boundaries that have enough points, as indices of the measured commits."""
    edges = sorted({0, len(values), *(index for index in boundaries if 0 < index < len(values))})
    for start, end in itertools.pairwise(edges):
        kept = start + np.flatnonzero(np.isfinite(values[start:end]))
        if len(kept) >= FEWEST:
            yield kept


def _stretch(
    places: NDArray[np.intp], logs: Array, level: float, shared: Collection[tuple[int, int]], known: list[int] | None
) -> list[ChangePoint]:
    """Return the change points of a stretch without boundaries."""
    first, last, y, cuts = _searched(logs, level) if known is None else _known(logs, known)
    places = places[first:last]
    for start, end in ((start - first, end - first) for start, end in shared):
        if start >= SHORTEST and end + SHORTEST <= len(y) and not any(start <= cut <= end for cut in cuts):
            y[start:end] = logs[first + start : first + end]
            cuts = sorted([*cuts, start, end])
    if not cuts:
        return []
    edges = [0, *cuts, len(y)]
    means = [float(y[a:b].mean()) for a, b in itertools.pairwise(edges)]
    changes = []
    for number, cut in enumerate(cuts):
        start, end = edges[number], edges[number + 2]
        # Noise of the two adjacent levels only, as in the test of the change: a series may be noisier elsewhere.
        noise = _noise(y[start:end], [cut - start])
        first, last = _interval(y[start:end], cut - start, noise)
        shift = means[number + 1] - means[number]
        error = noise.scale * math.sqrt(noise.inflation * (1 / (cut - start) + 1 / (end - cut)))
        reach = _student_t(end - start - 2) * error
        # Recovered at the old level or beyond it: a step up is not open if the series is now lower than before it.
        left = ((later - means[number]) * math.copysign(1.0, shift) for later in means[number + 2 :])
        undone = any(rest <= max(LEAST, 0.2 * abs(shift)) for rest in left)
        changes.append(
            ChangePoint(
                index=int(places[cut]),
                first=int(places[start + first - 1]) + 1,
                last=int(places[start + last]),
                ratio=math.exp(shift),
                ratio_low=math.exp(shift - reach),
                ratio_high=math.exp(shift + reach),
                state="recovered" if undone else "new" if len(y) - cut < CONFIRMED else "confirmed",
                points=end - cut,
            )
        )
    return changes


def _searched(logs: Array, level: float, *, whole: bool = True) -> tuple[int, int, Array, list[int]]:
    """Return where the search begins and ends, the winsorized points in between, and where levels begin among them."""
    first, body, last = _ends(logs)
    logs, body = logs[first:last], body - first
    y = winsorised(logs[:body])
    levels = _levels(y)
    offered = sorted({*levels, *(_cuts(y, 0, body, level, set(levels)) if whole else ())})
    doubts: dict[tuple[int, int, int], tuple[float, float]] = {}
    cuts = _pruned(logs[:body], y, offered, level, doubts)
    if cuts and cuts[-1] >= FEWEST:
        # Later levels must not hide a change that was found before them.
        before, _, _, told = _searched(logs[: cuts[-1]], level, whole=False)
        told = [before + cut for cut in told]
        cuts = _pruned(logs[:body], y, sorted({*told, *cuts}), level, doubts, told)
    if body < len(logs):  # tested against the level before it only
        longer = np.concatenate([y, logs[body:]])
        if _doubt(logs, longer, cuts[-1] if cuts else 0, body, len(logs))[0] <= level:
            y = longer
            cuts.append(body)
    return first, last, y, cuts


def _known(logs: Array, cuts: Sequence[int]) -> tuple[int, int, Array, list[int]]:
    """Return the same as `_searched`, given the levels' starts that it found, as indices of all points."""
    first, body, last = _ends(logs)
    y = winsorised(logs[first:body])
    if body in cuts:
        y = np.concatenate([y, logs[body:last]])
    return first, last, y, [cut - first for cut in cuts]


def _ends(y: Array) -> tuple[int, int, int]:
    """Return where the search begins and ends, and where the points end that may be a new level.

    A few far points at an end would make every other change look like noise, since no run can exclude them. They are
    set aside at the beginning; at the end, one or two are, while three or four may be a level.
    """
    first, last = 0, len(y)
    while more := _apart(y[first:][::-1]):
        first += more
    while 0 < (more := _apart(y[first:last])) < SHORTEST:
        last -= more
    return first, last - more, last


def _apart(y: Array) -> int:
    """Return how many points at the end, if fewer than `CONFIRMED`, are far from those before them; otherwise 0."""
    ends = y[-_WINDOW - CONFIRMED :].tolist()
    for count in range(1, min(CONFIRMED, len(y) - FEWEST + 1)):
        usual, there = statistics.median(ends[:-count][-_WINDOW:]), statistics.median(ends[-count:])
        before = usual, *ends[-count - 2 : -count]
        nearest = min(abs(own - other) for own in ends[-count:] for other in before)
        if nearest > _FAR * FLOOR and nearest > _FAR * step_scale(rest := y[:-count]):
            # A first point that is nearer to them than to the level before belongs to them.
            nearer = 4 * np.abs(rest - there) < np.abs(rest - usual)
            more = int(np.argmin(nearer[::-1]))
            return count + more if count + more < CONFIRMED else 0
    return 0


def _cuts(y: Array, start: int, end: int, level: float, known: Collection[int]) -> list[int]:
    """Return the steps within a segment that are not yet known: the most significant one, and those on its sides."""
    part = y[start:end]
    if len(part) < FEWEST:
        return []
    surprise, run, length = _surprise(part)
    cuts = [start + cut for cut in (run, run + length) if 0 < cut < len(part)]
    new = [cut for cut in cuts if cut not in known]

    def is_step() -> bool:
        return _chance(part, [cut - start for cut in cuts], surprise) <= level

    if not cuts or (new and not is_step()):
        return []
    within = [cut for a, b in itertools.pairwise([start, *cuts, end]) for cut in _cuts(y, a, b, level, known)]
    return [*new, *within] if new or (within and is_step()) else []  # the test is expensive


def _levels(y: Array) -> list[int]:
    """Return where the levels of the best penalized fit begin (optimal partitioning, Jackson et al. 2005)."""
    count, weights = len(y), 1 / _scales(y) ** 2
    totals, sums, squares = (np.concatenate([[0.0], np.cumsum(weights * y**power)]) for power in range(3))
    best, begins = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=np.intp)
    best[0] = 0.0

    room = np.empty((2, _ENDS * (count + 1)))
    for first in range(CONFIRMED, count + 1, _ENDS):  # their costs do not need `best`
        after = min(first + _ENDS, count + 1)
        known, shape = after - SHORTEST, (after - first, after - SHORTEST)
        costs, weight = (part[: shape[0] * known].reshape(shape) for part in room)
        np.subtract(sums[first:after, None], sums[:known], out=costs)
        np.subtract(totals[first:after, None], totals[:known], out=weight)
        with np.errstate(divide="ignore", invalid="ignore"):  # starts after an end, whose costs are unused
            np.divide(np.square(costs, out=costs), weight, out=costs)
        np.subtract(squares[first:after, None], squares[:known], out=weight)
        newest = np.subtract(weight, costs, out=costs)[-1].copy()
        costs[:, first + 1 - CONFIRMED :] += _LATER[: after - first, : after - first + 1]
        for end in range(first, after, CONFIRMED):  # no level begins and ends within one chunk
            later = min(end + CONFIRMED, after)
            few = costs[end - first : later - first, : later - CONFIRMED] + best[: later - CONFIRMED]
            begins[end:later] = chosen = few.argmin(axis=1)
            best[end:later] = few[_ROWS[: later - end], chosen] + _PRICE**2
    cuts, at = [], int((newest + best[: len(newest)]).argmin())
    while at:
        cuts.append(at)
        at = int(begins[at])
    return cuts[::-1]


@lru_cache(maxsize=1024)
def _lengths(count: int) -> tuple[NDArray[np.intp], Array]:
    """Return the lengths of bumps to try (all short ones, then ever coarser steps), and the divisors of their gain."""
    # A run must not leave just one or two points at an end: they would be outliers.
    lengths, length = [], CONFIRMED
    while length <= count - SHORTEST - CONFIRMED:
        lengths.append(length)
        length = max(length + 1, int(length * 1.08)) if length > 40 else length + 1
    tried = np.array(lengths, dtype=np.intp)
    return tried, tried * (1 - tried / count)


def _steps(sums: NDArray[np.floating]) -> Array:
    """Return the gains of steps, which reach an end.

    Runs shorter than `CONFIRMED` count only at the end, where changes should be reported soon: elsewhere they are
    clustered outliers. The runs before and after a step are equally significant.

    Args:
        sums: Cumulative sums of the centered points along the first axis, 0 first; one series, or one per column.
    """
    count = len(sums) - 1
    steps = np.arange(CONFIRMED, count - SHORTEST + 1)
    weights = (steps * (1 - steps / count)).astype(sums.dtype)
    gains: Array = sums[CONFIRMED : count - SHORTEST + 1] ** 2 / weights.reshape(-1, *[1] * (sums.ndim - 1))
    return gains


def _surprise(part: Array) -> tuple[float, int, int]:
    """Return the largest t statistic of a run against the rest of a series, and the run's start and length."""
    count = len(part)
    lengths, weights = _lengths(count)
    centred = part - _sum(part) / count
    sums = np.zeros(count + 1 + int(lengths.max(initial=0)))
    np.cumsum(centred, out=sums[1 : count + 1])
    gains = _steps(sums[: count + 1])
    best, where, length = float(gains.max()), 0, CONFIRMED + int(gains.argmax())
    sums[count - SHORTEST + 1 :] = np.nan  # no run ends there
    starts = np.arange(CONFIRMED, count - SHORTEST - CONFIRMED + 1)
    for at in range(0, len(lengths), some := max(1, _AT_ONCE // count)):
        gains = (sums[starts + lengths[at : at + some, None]] - sums[starts]) ** 2
        most = np.fmax.reduce(gains, axis=1)
        longest = int((values := most / weights[at : at + some]).argmax())
        if (value := float(values[longest])) > best:
            best, where = value, CONFIRMED + int((gains[longest] == most[longest]).argmax())
            length = int(lengths[at + longest])
    left = max(float(centred @ centred) - best, count * FLOOR**2)
    return math.sqrt(best / (left / (count - 2))), where, length


def _surprises(columns: Array) -> Array:
    """Return the largest t statistic of each series, given as columns so that memory is read in order."""
    count = len(columns)
    centred = columns - columns.sum(axis=0) / count
    sums = np.zeros((count + 1, columns.shape[1]), dtype=np.float32)  # faster; the noise of draws is far larger
    np.cumsum(centred, axis=0, out=sums[1:], dtype=np.float32)
    gains = _steps(sums)
    room = np.empty_like(gains)
    lengths, weights = _lengths(count)
    for length, share in zip(lengths.tolist(), (1 / weights).tolist(), strict=True):
        # Largest gain of any length, per start of the run: a maximum for each length would take longer.
        many = count - SHORTEST - length - CONFIRMED + 1
        gain, most = room[:many], gains[:many]
        np.subtract(sums[CONFIRMED + length : count - SHORTEST + 1], sums[CONFIRMED : CONFIRMED + many], out=gain)
        np.multiply(np.square(gain, out=gain), share, out=gain)
        np.maximum(most, gain, out=most)
    best = gains.max(axis=0).astype(float)
    left = np.maximum((centred**2).sum(axis=0) - best, count * FLOOR**2)
    surprises: Array = np.sqrt(best / (left / (count - 2)))
    return surprises


def _noise(y: Array, cuts: Sequence[int]) -> _Noise:
    """Return the noise around the levels between cuts."""
    edges = [0, *cuts, len(y)]
    residuals = np.concatenate([y[a:b] - _sum(y[a:b]) / (b - a) for a, b in itertools.pairwise(edges)])
    count, squares = len(y), float(residuals @ residuals)
    freedom = max(1, count - len(cuts) - 1)
    variance = squares / freedom
    lag_one = float(residuals[1:] @ residuals[:-1]) / max(squares, 1e-300)
    # Kendall 1954: the lag-one coefficient of a short series is biased by -(1 + 3 rho) / n for every fitted level.
    correlation = lag_one + (len(cuts) + 1) * (1 + 3 * lag_one) / count
    # A coefficient within its standard error counts as 0; a larger one is increased by its standard error.
    error = 1.0 / math.sqrt(count)
    correlation = min(_MOST_CORRELATED, correlation + error) if correlation > error else 0.0
    return _Noise(max(math.sqrt(variance), FLOOR), correlation, residuals * math.sqrt(count / freedom))


def _chance(part: Array, cuts: Sequence[int], surprise: float, noise: _Noise | None = None) -> float:
    """Return the bootstrap p-value of a t statistic under this series' noise; 1 or 0 if that is obvious."""
    count = len(part)
    # One in five stable series of independent normal points exceeds this, and more of the correlated series do.
    if surprise**2 < max(9.0, 4.2 + 1.8 * math.log(count)):
        return 1.0
    noise = noise or _noise(part, cuts)
    if surprise**2 > _PLAIN * noise.inflation:
        return 0.0
    stable = _stable(noise.residuals.tobytes(), noise.correlation)
    most = max(_FEWEST_DRAWS, min(_DRAWS, _DRAWN // count))
    for draws in (_FEWEST_DRAWS, most):  # a few draws decide most tests
        centre, spread = stable.largest(draws)
        chance = -math.expm1(-math.exp(min(50.0, -(surprise**2 - centre) / spread)))
        if not LEVEL / _CLEAR < chance < LEVEL * _CLEAR:
            break
    return chance


@lru_cache(maxsize=64)
def _stable(residuals: bytes, correlation: float) -> _Stable:
    """Return stable series; cached, since the same levels are tested again in longer or differently split histories."""
    return _Stable(np.frombuffer(residuals), correlation)


class _Stable:
    """Stable series generated from a series' residuals.

    Args:
        residuals: The series' residuals.
        correlation: Their lag-one autocorrelation.
    """

    def __init__(self, residuals: Array, correlation: float) -> None:
        self._residuals, self._correlation = residuals, correlation
        self._squares = np.empty(0)

    def largest(self, draws: int) -> tuple[float, float]:
        """Return location and scale of the Gumbel distribution of the largest squared t of ``draws`` series."""
        if draws > len(self._squares):
            self._squares = np.concatenate([self._squares, _surprises(self._drawn(len(self._squares), draws)) ** 2])
        squares = self._squares[:draws]  # squares of normal maxima have a Gumbel tail
        mean = _sum(squares) / draws
        spread = max(math.sqrt(_sum((squares - mean) ** 2) / draws * 6) / math.pi, 1e-9)
        return mean - _EULER * spread, spread

    def _drawn(self, first: int, after: int) -> Array:
        """Return some of the series, as columns."""
        drawn = self._residuals.take(_picked(len(self._residuals), first, after))
        if self._correlation:
            drawn[1:] *= math.sqrt(1 - self._correlation**2)
            shift, share = 1, self._correlation
            # A first-order autoregression: 1 / (1 - cB) = (1 + cB) (1 + c^2 B^2) ..., until a factor is 1 in doubles.
            while shift < len(drawn) and share > 1e-17:
                drawn[shift:] += share * drawn[:-shift]
                shift, share = 2 * shift, share**2
        return drawn


@lru_cache(maxsize=256)
def _picked(count: int, first: int, after: int) -> NDArray[np.int32]:
    """Return which residuals make up some of the stable series of a length: deterministic for the same series."""
    return np.random.default_rng(count).integers(0, count, size=(after, count))[first:].T.astype(np.int32, order="C")


def _pruned(
    raw: Array, y: Array, cuts: list[int], level: float, doubts: dict[tuple[int, int, int], tuple[float, float]],
    told: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Remove the cuts that a test of the two adjacent levels does not confirm, least significant first.

    Cuts found earlier are removed only if their own points contradict them, at `_KEPT` times the level. ``doubts``
    caches the p-values of tests, since removing a cut changes only the adjacent ones.
    """
    while cuts:
        weakest, at = (level, math.inf), -1
        for number, place in enumerate(zip([0, *cuts], cuts, [*cuts[1:], len(y)], strict=False)):
            if place not in doubts:
                doubts[place] = _doubt(raw, y, *place)
            chance, surprise = doubts[place]
            if (doubt := (chance / _KEPT if place[1] in told else chance, surprise)) > weakest:
                weakest, at = doubt, number
        if at < 0:
            return cuts
        del cuts[at]
    return cuts


def _doubt(raw: Array, y: Array, start: int, cut: int, end: int) -> tuple[float, float]:
    """Return the p-value of the difference between the levels on both sides of a cut, and minus its t statistic."""
    # Noise farther away, or later, must not override a step that the points near it confirm.
    near, far = max(start, cut - _AROUND), min(end, cut + _AROUND)
    chance, surprise = _doubt_within(raw[near:far], y[near:far], cut - near, far == len(y))
    if (near, far) == (start, end):
        return chance, surprise
    if 2 * chance < LEVEL / _CLEAR:
        return 2 * chance, surprise
    return min((2 * chance, surprise), _doubt_within(raw[start:end], y[start:end], cut - start, end == len(y)))


def _doubt_within(raw: Array, part: Array, cut: int, newest: bool) -> tuple[float, float]:
    """Return the same as `_doubt`, for the given points alone."""
    shift, count = _sum(part[cut:]) / (len(part) - cut) - _sum(part[:cut]) / cut, len(part)
    noise = _noise(part, [cut])
    surprise = abs(shift) / (noise.scale * math.sqrt(1 / cut + 1 / (count - cut)))
    if abs(shift) < LEAST or count < FEWEST or not _are_levels(raw, cut, shift, newest):
        return 1.0, -surprise
    return _chance(part, [cut], surprise, noise), -surprise


def _are_levels(raw: Array, cut: int, shift: float, newest: bool) -> bool:
    """Return whether each side of a cut has enough points nearer to its own level than to the other.

    Four winsorized outliers and an adjacent point can look like a level of `CONFIRMED` points; this rejects that.

    Args:
        raw: The points as measured, before winsorizing.
        cut: Index of the second side's first point.
        shift: Difference between the sides, after winsorizing.
        newest: Whether the second side reaches the end of the series.
    """
    before, after, count = _median(raw[:cut]), _median(raw[cut:]), len(raw) - cut
    sign = math.copysign(1.0, shift)
    # Winsorizing understates outliers, so the larger shift counts; at the end, with few points, the smaller one.
    half = (min if newest and count <= CONFIRMED else max)(abs(shift), sign * (after - before)) / 2
    old = int(np.count_nonzero(sign * (after - raw[:cut]) > half))
    new = int(np.count_nonzero(sign * (raw[cut:] - before) > half))
    # With three or four points at the end all must fit; from five on one may stray.
    needed = min(CONFIRMED, count - (count >= CONFIRMED)) if newest else CONFIRMED
    return old >= CONFIRMED and new >= needed


def _interval(part: Array, cut: int, noise: _Noise) -> tuple[int, int]:
    """Return the first and last position in the 95 % credible set of a single cut."""
    places = np.arange(1, len(part))
    sums = np.cumsum(part - part.mean())[:-1]
    gain = sums**2 * len(part) / (places * (len(part) - places))
    weights = np.exp((gain - gain.max()) / (2 * noise.scale**2 * noise.inflation))
    order = np.argsort(weights)[::-1]
    needed = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    chosen = places[order[:needed]]
    return int(min(chosen.min(), cut)), int(max(chosen.max(), cut))


def winsorised(y: Array) -> Array:
    """Winsorize towards the running median, clusters included; runs of `CONFIRMED` or more may be a level and stay."""
    count = len(y)
    # A run of `CONFIRMED` points is the majority of each window around it; a shorter run is not.
    middle = np.full(count, statistics.median(y[:_WINDOW].tolist()))  # faster than numpy for few values
    if count > _WINDOW:
        half = _WINDOW // 2
        middle[half : count - half] = _middle(y)
    # At the end three points may be a new level.
    for i in range(max(0, count - CONFIRMED + 1), count):
        middle[i] = statistics.median(y[max(0, i - SHORTEST + 1) : i + SHORTEST].tolist())
    scale = step_scale(y)
    clipped = np.minimum(np.maximum(y, middle - _CLIP * scale), middle + _CLIP * scale)
    # Clustered outliers raise each other's median, so clipping leaves a bump. A cluster that is far from the points
    # before and after it, and too short for a level, is replaced by the median of those points.
    side = np.sign(y - clipped)
    for start, end in _runs(side):
        if not 1 < end - start < CONFIRMED or end == count:
            continue
        first, last = max(0, start - CONFIRMED + 1), end + CONFIRMED - 1
        parts = [part for part in (clipped[first:start], clipped[end:last]) if len(part)]
        around = _median(np.concatenate(parts))
        edge = max(side[start] * _median(part) for part in parts) + _FAR * scale
        few = int((side[start] * (y[first:last] - around) > _CLIP * scale).sum()) < CONFIRMED
        if few and (side[start] * y[start:end]).min() > edge:
            clipped[start:end] = around
    return clipped


def _runs(side: Array) -> Iterator[tuple[int, int]]:
    """Yield where each run of a value other than 0 begins and ends."""
    edges = [0, *(np.flatnonzero(side[1:] != side[:-1]) + 1).tolist(), len(side)]
    return ((start, end) for start, end in itertools.pairwise(edges) if side[start])


def _sorted_windows(y: Array, length: int) -> Array:
    """Return all runs of ``length`` points as rows, each sorted."""
    step = y.strides[0]
    windows: Array = np.ndarray((len(y) - length + 1, length), y.dtype, y, 0, (step, step)).copy()
    windows.sort(axis=1)
    return windows


def _middle(y: Array) -> Array:
    """Return the running median of `_WINDOW` points, for full windows only."""
    return _sorted_windows(y, _WINDOW)[:, _WINDOW // 2]


def _scales(y: Array) -> Array:
    """Return `step_scale` around each point, so that noise elsewhere, or later, does not affect it."""
    if len(y) <= _AROUND:
        return np.full(len(y), step_scale(y))
    few = math.ceil(0.9 * (_AROUND - 1))
    around = _sorted_windows(np.abs(y[1:] - y[:-1]), _AROUND - 1)[:, :few].sum(axis=1) / few / 0.9
    before = _AROUND // 2
    beside = np.full(before, around[0]), around, np.full(len(y) - len(around) - before, around[-1])
    scales: Array = np.maximum(np.concatenate(beside), FLOOR)
    return scales


def _median(values: Array) -> float:
    """Return the median; numpy takes ten times as long for a few values."""
    ordered, half = values.copy(), len(values) // 2
    ordered.sort()
    return float((ordered[half] + ordered[-half - 1]) / 2)


def step_scale(y: Array) -> float:
    """Estimate the noise from first differences, which a few changes of level hardly affect."""
    # The mean absolute difference of normal noise is 1.128 standard deviations; the largest tenth is trimmed.
    steps = np.abs(y[1:] - y[:-1])
    steps.sort()
    few = math.ceil(0.9 * len(steps))
    return max(_sum(steps[:few]) / few / 0.9, FLOOR)


def _sum(values: Array) -> float:
    """Return the sum; the array method takes twice as long for a few values."""
    return float(np.add.reduce(values))
