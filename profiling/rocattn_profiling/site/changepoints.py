"""Change points in the history of a benchmark: where its level moved, by how much, and whether that still holds.

The most surprising bump (a run of commits against the rest, of which a step is the case that reaches an end) is sought
again and again, as in circular binary segmentation (Olshen et al. 2004). What counts as surprising is calibrated on the
series itself: the same search runs over series without a change, made of this one's own residuals with their own
autocorrelation (a sieve bootstrap, Buehlmann 1997), and the largest values follow a Gumbel distribution fitted to them.
So no p of a maximising split is taken for a p. Outliers are drawn in towards a running median first. A part that
shows no bump, but scatters more than its steps do, is split into the levels that fit best: several hide each other.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from rocattn_profiling.measure.stats import student_t_quantile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import Series

    Array = NDArray[np.float64]

State = Literal["new", "confirmed", "recovered"]
Unsearched = Literal["few", "zero"]  # fewer than `FEWEST` points; values of zero or less, which have no ratios
CONFIRMED = 5  # points on a level
SHORTEST = 3  # points of the newest level: one or two are outliers
FLOOR = 1e-3  # noise in logs that even a constant series is credited with
_CLIP = 2.5  # noise scales from the running median at which an outlier is held
_FAR = 3.75  # noise scales from both sides at which several together are far off
_WINDOW = 2 * CONFIRMED - 1
LEVEL = 0.007  # chance of a false change in a stable series, at every test
LEAST = math.log1p(0.01)  # smaller steps are no news
FEWEST = CONFIRMED + SHORTEST  # points without which nothing is said
_DRAWS, _FEWEST_DRAWS = 200, 60
_DRAWN = 60_000  # points of all draws together: long series get fewer draws
_PLAIN = 100.0  # t squared of independent points that no stable series reaches: outliers were held before
_APART = 1.5  # times the noise from point to point that points scatter, if they are on several levels
_HIDDEN = 0.1  # of the chance of a false change, for levels in what shows no change as a whole
_PRICE = 5.0  # times the noise from point to point, squared: of a level among them
_MOST_CORRELATED = 0.8
_EULER = 0.5772156649


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One change of level.

    Attributes:
        index: The most likely first commit on the new level, an index into the series.
        first, last: The change came with one of these commits (95 %); commits that were not measured are among them.
        ratio, ratio_low, ratio_high: New level over old, with a 95 % interval.
        state: "new" with fewer than five points on the new level, "recovered" when a later change undid it, else
            "confirmed".
        points: How many points the new level has.
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
    """A change point with its commits: ``commits`` are the hashes it may have come with, oldest first."""

    change: ChangePoint
    commits: list[str]
    likeliest: str


class _Noise(NamedTuple):
    """Residuals of a stretch: scale, lag-one autocorrelation, and the values themselves."""

    scale: float
    correlation: float
    residuals: Array

    @property
    def inflation(self) -> float:
        """Factor on the variance of a mean of many autocorrelated points."""
        return (1 + self.correlation) / (1 - self.correlation)


def changes_of(series: Series, boundaries: Collection[str] = (), level: float = LEVEL) -> list[CommitChange]:
    """Return the changes of a stored series.

    Args:
        series: Points in commit order; what failed or is not available is passed over.
        boundaries: Commits from which on a machine, driver or compiler is another one: levels are not compared across.
        level: Chance of a false change, at every test.
    """
    shas = [point.sha for point in series.points]
    starts = [index for index, sha in enumerate(shas) if sha in boundaries]
    found = change_points([point.value for point in series.points], starts, level)
    return [CommitChange(change=c, commits=shas[c.first : c.last + 1], likeliest=shas[c.index]) for c in found]


def change_points(
    values: Sequence[float | None], boundaries: Collection[int] = (), level: float = LEVEL
) -> list[ChangePoint]:
    """Return the changes of a series of positive values in commit order.

    Args:
        values: None or NaN where a commit was not measured; a series with a value of zero or less has no ratios.
        boundaries: Indices at which something other than the code changed: levels are not compared across.
        level: Chance of a false change, at every test.
    """
    found: list[ChangePoint] = []
    for kept in _stretches(values, boundaries):
        if min(value for _, value in kept) > 0:
            found += _stretch(np.array([i for i, _ in kept]), np.log([value for _, value in kept]), level)
    return found


def unsearched(series: Series, boundaries: Collection[str] = ()) -> Unsearched | None:
    """Return why no change is sought in a stored series, or not in all of it; None when it is.

    Args:
        series: As `changes_of` takes it.
        boundaries: Commits across which levels are not compared.
    """
    starts = [index for index, point in enumerate(series.points) if point.sha in boundaries]
    stretches = list(_stretches([point.value for point in series.points], starts))
    if not stretches:
        return "few"
    return "zero" if any(value <= 0 for kept in stretches for _, value in kept) else None


def _stretches(values: Sequence[float | None], boundaries: Collection[int]) -> Iterator[list[tuple[int, float]]]:
    """Go through the stretches between boundaries that have enough points, as (index, value) of what was measured."""
    edges = sorted({0, len(values), *(index for index in boundaries if 0 < index < len(values))})
    for start, end in itertools.pairwise(edges):
        kept = [(i, v) for i in range(start, end) if (v := values[i]) is not None and math.isfinite(v)]
        if len(kept) >= FEWEST:
            yield kept


def _stretch(places: NDArray[np.intp], logs: Array, level: float) -> list[ChangePoint]:
    """Return the changes of a stretch without boundaries."""
    y = winsorised(logs)
    cuts = _pruned(logs, y, sorted(set(_cuts(logs, y, 0, len(y), level))), level)
    if not cuts:
        return []
    edges = [0, *cuts, len(y)]
    means = [float(y[a:b].mean()) for a, b in itertools.pairwise(edges)]
    changes = []
    for number, cut in enumerate(cuts):
        start, end = edges[number], edges[number + 2]
        # Of both neighbours only, as the change was judged: a line that is quiet here may be noisy elsewhere.
        noise = _noise(y[start:end], [cut - start])
        first, last = _interval(y[start:end], cut - start, noise)
        shift = means[number + 1] - means[number]
        error = noise.scale * math.sqrt(noise.inflation * (1 / (cut - start) + 1 / (end - cut)))
        reach = student_t_quantile(0.975, end - start - 2) * error
        # Back at the old level, or beyond it: no step up is open in a line that is lower than before it.
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


def _cuts(raw: Array, y: Array, start: int, end: int, level: float) -> Iterator[int]:
    """Go through the changes within a part, found from the most surprising down."""
    part = y[start:end]
    if len(part) < FEWEST:
        return
    surprise, run, length = _surprise(part)
    cuts = [cut for cut in (run, run + length) if 0 < cut < len(part)]
    parts = list(itertools.pairwise([0, *cuts, len(part)]))
    if cuts and _chance(part, cuts, surprise) <= level:
        yield from (start + cut for cut in cuts)
        for a, b in parts:
            yield from _cuts(raw, y, start + a, start + b, level)
    elif cuts and float(part.std()) > _APART * step_scale(part):
        # Levels that come and go pass for noise around any one of them: what each differs by from its neighbours is
        # asked instead.
        yield from (start + cut for cut in _pruned(raw[start:end], part, _levels(part), level * _HIDDEN))


def _levels(y: Array) -> list[int]:
    """Return where the levels begin that fit best for what each costs (optimal partitioning, Jackson et al. 2005)."""
    count, price = len(y), (_PRICE * step_scale(y)) ** 2
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (y, y**2))
    places = np.arange(count + 1)
    best, begins = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=np.intp)
    best[0] = 0.0
    for end in range(CONFIRMED, count + 1):
        starts = places[: end + 1 - (CONFIRMED if end < count else SHORTEST)]
        around = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        costs = best[starts] + around
        begins[end] = costs.argmin()
        best[end] = costs[begins[end]] + price
    cuts, at = [], int(begins[count])
    while at:
        cuts.append(at)
        at = int(begins[at])
    return cuts[::-1]


def _lengths(count: int) -> list[int]:
    """Return the lengths of bumps to try: every short one, then ever coarser steps."""
    lengths, length = [], CONFIRMED
    while length <= count - SHORTEST:
        lengths.append(length)
        length = max(length + 1, int(length * 1.08)) if length > 40 else length + 1
    return lengths


def _runs(sums: Array) -> Iterator[tuple[int, Array, float]]:
    """Go through the runs of points by their length; 0 stands for steps: runs that reach an end.

    Args:
        sums: Of points around their mean, from none to all along the first axis; one series or a column each.

    Yields:
        The length, the squared sums of its runs along the first axis, and what to divide these by. The array is
        written over for the next length.
    """
    count = len(sums) - 1
    # A step is a run that reaches an end; the run before it and the run after it are equally surprising. Only at the
    # end, where news is wanted soon, are fewer than `CONFIRMED` points a run: elsewhere outliers came together.
    steps = np.arange(CONFIRMED, count - SHORTEST + 1)
    weights = steps * (1 - steps / count)
    yield 0, sums[CONFIRMED : count - SHORTEST + 1] ** 2 / weights.reshape(-1, *[1] * (sums.ndim - 1)), 1.0
    room = np.empty_like(sums)
    for m in _lengths(count):
        # A run that leaves a point or two at an end would cut off an outlier.
        last = count - m - SHORTEST
        if last < CONFIRMED:
            break
        gain = room[: last + 1 - CONFIRMED]
        np.subtract(sums[CONFIRMED + m : last + m + 1], sums[CONFIRMED : last + 1], out=gain)
        yield m, np.square(gain, out=gain), m * (1 - m / count)


def _surprise(part: Array) -> tuple[float, int, int]:
    """Return a series' largest t of a run of points against the rest, and the run's start and length."""
    count = len(part)
    centred = part - part.mean()
    best, where, length = -1.0, 0, 0
    for m, gain, weight in _runs(np.concatenate([[0.0], np.cumsum(centred)])):
        at = int(gain.argmax())
        if (value := float(gain[at]) / weight) > best:
            best, where, length = (value, CONFIRMED + at, m) if m else (value, 0, CONFIRMED + at)
    left = max(float((centred**2).sum()) - best, count * FLOOR**2)
    return math.sqrt(best / (left / (count - 2))), where, length


def _surprises(rows: Array) -> Array:
    """Return what `_surprise` returns first, of each row: a column each, so that memory is read in order."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.zeros((count + 1, len(rows)))
    np.cumsum(centred.T, axis=0, out=sums[1:])
    best = np.zeros(len(rows))
    for _, gain, weight in _runs(sums):
        np.maximum(best, gain.max(axis=0) / weight, out=best)
    left = np.maximum((centred**2).sum(axis=1) - best, count * FLOOR**2)
    surprises: Array = np.sqrt(best / (left / (count - 2)))
    return surprises


def _noise(y: Array, cuts: Sequence[int]) -> _Noise:
    """Return the noise around the levels between cuts."""
    edges = [0, *cuts, len(y)]
    residuals = np.concatenate([y[a:b] - y[a:b].mean() for a, b in itertools.pairwise(edges)])
    count = len(y)
    freedom = max(1, count - len(cuts) - 1)
    variance = float((residuals**2).sum()) / freedom
    seen = float((residuals[1:] * residuals[:-1]).sum() / max((residuals**2).sum(), 1e-300))
    # Kendall 1954: the lag-one coefficient of a short series is too small by (1 + 3 rho) / n, for every level fitted.
    correlation = seen + (len(cuts) + 1) * (1 + 3 * seen) / count
    # A coefficient that so short a series shows by chance is none; a larger one is taken with its error.
    error = 1.0 / math.sqrt(count)
    correlation = min(_MOST_CORRELATED, correlation + error) if correlation > error else 0.0
    return _Noise(max(math.sqrt(variance), FLOOR), correlation, residuals * math.sqrt(count / freedom))


def _chance(part: Array, cuts: Sequence[int], surprise: float) -> float:
    """Return the chance of so surprising a run in a stable series with this one's noise: 1 or 0 where it is plain."""
    count = len(part)
    # One stable series in five of independent normal points has a run that surprises more, a correlated one sooner.
    if surprise**2 < max(9.0, 4.2 + 1.8 * math.log(count)):
        return 1.0
    noise = _noise(part, cuts)
    if surprise**2 > _PLAIN and not noise.correlation:
        return 0.0
    source = np.random.default_rng(count)  # the same series is always judged the same
    draws = source.choice(noise.residuals, size=(max(_FEWEST_DRAWS, min(_DRAWS, _DRAWN // count)), count))
    if noise.correlation:
        columns = np.ascontiguousarray(draws.T)
        columns[1:] *= math.sqrt(1 - noise.correlation**2)
        for i in range(1, count):
            columns[i] += noise.correlation * columns[i - 1]
        draws = np.ascontiguousarray(columns.T)
    largest = _surprises(draws) ** 2  # of normal maxima the squares have the exponential tail of Gumbel's law
    spread = max(float(largest.std()) * math.sqrt(6) / math.pi, 1e-9)
    centre = float(largest.mean()) - _EULER * spread
    return -math.expm1(-math.exp(min(50.0, -(surprise**2 - centre) / spread)))


def _pruned(raw: Array, y: Array, cuts: list[int], level: float) -> list[int]:
    """Take out, least surprising first, the cuts that a look at both neighbours does not bear out."""
    known: dict[tuple[int, int, int], tuple[float, float]] = {}  # a cut taken out changes what its neighbours see only
    while cuts:
        weakest, at = (level, math.inf), -1
        for number, place in enumerate(zip([0, *cuts], cuts, [*cuts[1:], len(y)], strict=False)):
            if place not in known:
                known[place] = _doubt(raw, y, *place)
            if known[place] > weakest:
                weakest, at = known[place], number
        if at < 0:
            return cuts
        del cuts[at]
    return cuts


def _doubt(raw: Array, y: Array, start: int, cut: int, end: int) -> tuple[float, float]:
    """Return the chance that the levels on both sides of a cut differ so much in a stable stretch, and their -t."""
    part, inner = y[start:end], cut - start
    shift = float(part[inner:].mean() - part[:inner].mean())
    surprise = abs(shift) / (_noise(part, [inner]).scale * math.sqrt(1 / inner + 1 / (end - cut)))
    if abs(shift) < LEAST or len(part) < FEWEST or not _are_levels(raw[start:end], inner, shift, end == len(y)):
        return 1.0, -surprise
    return _chance(part, [inner], surprise), -surprise


def _are_levels(raw: Array, cut: int, shift: float, newest: bool) -> bool:
    """Return whether each side of a cut has the points of a level, nearer to it than to the other side's.

    A run of `CONFIRMED` that four outliers fill, drawn in and with a neighbour, is as surprising as a level.

    Args:
        raw: The points as they were measured.
        cut: The first of the second side.
        shift: From side to side, of the points that were drawn in.
        newest: The second side is the end of the series.
    """
    before, after, count = float(np.median(raw[:cut])), float(np.median(raw[cut:])), len(raw) - cut
    sign = math.copysign(1.0, shift)
    # What was drawn in understates outliers. Of the few points at the end every one counts, so the nearer one is asked.
    half = (min if newest and count <= CONFIRMED else max)(abs(shift), sign * (after - before)) / 2
    old, new = int((sign * (after - raw[:cut]) > half).sum()), int((sign * (raw[cut:] - before) > half).sum())
    # At the end three and four are all there are; from five on one may stray.
    needed = min(CONFIRMED, count - (count >= CONFIRMED)) if newest else CONFIRMED
    return old >= CONFIRMED and new >= needed


def _interval(part: Array, cut: int, noise: _Noise) -> tuple[int, int]:
    """Return the first and last place that hold 95 % of the posterior of a single cut."""
    places = np.arange(1, len(part))
    sums = np.cumsum(part - part.mean())[:-1]
    gain = sums**2 * len(part) / (places * (len(part) - places))
    weights = np.exp((gain - gain.max()) / (2 * noise.scale**2 * noise.inflation))
    order = np.argsort(weights)[::-1]
    needed = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    chosen = places[order[:needed]]
    return int(min(chosen.min(), cut)), int(max(chosen.max(), cut))


def winsorised(y: Array) -> Array:
    """Draw outliers in towards the running median, also those that came together; a run that may be a level is none."""
    count = len(y)
    # Points of a run of `CONFIRMED` are most of any window of twice as many that they stand in: what is shorter is not.
    middle = np.full(count, statistics.median(y[:_WINDOW].tolist()))  # numpy's takes longer for so few
    if count > _WINDOW:
        half = _WINDOW // 2
        middle[half : count - half] = np.median(np.lib.stride_tricks.sliding_window_view(y, _WINDOW), axis=1)
    # At the end three points may be news.
    for i in range(max(0, count - CONFIRMED + 1), count):
        middle[i] = statistics.median(y[max(0, i - SHORTEST + 1) : i + SHORTEST].tolist())
    scale = step_scale(y)
    held = np.clip(y, middle - _CLIP * scale, middle + _CLIP * scale)
    # Those that came together raise each other's median, and what is left of them is a bump. They are put where the
    # points around them lie, if they are far off those before and those after, and too few for a level.
    side = np.sign(y - held)
    for start, end in itertools.pairwise(np.flatnonzero(np.diff(side, prepend=0.0, append=0.0)).tolist()):
        if not side[start] or not 1 < end - start < CONFIRMED or end == count:
            continue
        first, last = max(0, start - CONFIRMED + 1), end + CONFIRMED - 1
        parts = [part for part in (held[first:start], held[end:last]) if len(part)]
        around = float(np.median(np.concatenate(parts)))
        edge = max(side[start] * float(np.median(part)) for part in parts) + _FAR * scale
        few = int((side[start] * (y[first:last] - around) > _CLIP * scale).sum()) < CONFIRMED
        if few and (side[start] * y[start:end]).min() > edge:
            held[start:end] = around
    return held


def step_scale(y: Array) -> float:
    """Return the noise that the steps from point to point show, which few changes of level hardly touch."""
    # Normal noise has a mean step of 1.128 scales. A tenth is left out for outliers.
    steps = np.sort(np.abs(np.diff(y)))
    return max(float(np.mean(steps[: math.ceil(0.9 * len(steps))])) / 0.9, FLOOR)
