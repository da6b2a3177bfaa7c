"""The page that compares two commits line by line, with the values of many others for its script."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn_profiling.asv.series import CommitPlaces, once_for_commits
from rocattn_profiling.pages.quantities import percent, quantity, short_date

if TYPE_CHECKING:
    from markupsafe import Markup
    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import Point, Points
    from rocattn_profiling.site.commits import CommitInfo
    from rocattn_profiling.site.history_charts import Around, HistoryLine

    Array = NDArray[np.float64]

VALUES = 300_000
"""Most values on the page, about 15 bytes each; this limits the number of commits."""
ROWS = 200
"""Lines in its table, largest difference first."""


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One row: a line at both commits as text; ``tone`` is "good" or "bad" if the intervals do not overlap, else ""."""

    label: str
    where: str
    home: str
    before: str
    after: str
    change: str
    interval: str
    apart: bool
    tone: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Everything ``compare.html.j2`` shows.

    Attributes:
        old, new: The compared commits, as named in addresses.
        old_name, new_name: Their readable names: tag or hash, date and subject.
        rows: The lines that differ most, out of ``lines``, of which ``apart`` are outside the other commit's interval
            and ``unknown`` have no interval.
        commits: Number of commits on the page, out of ``measured``.
        island: Their values as JSON, for the script.
    """

    old: str
    new: str
    old_name: str
    new_name: str
    rows: list[ComparedLine]
    lines: int
    apart: int
    unknown: int
    commits: int
    measured: int
    island: Markup


class CommitPair(NamedTuple):
    """Two commits to compare, the number of values per measured commit, and the releases among those, newest first."""

    old: str
    new: str
    values: Mapping[str, int]
    releases: Mapping[str, str]


def compared_commits(lines: Sequence[HistoryLine], around: Around) -> CommitPair | None:
    """Choose the newest commit of the branch and the last release, or else the commit measured before it.

    Args:
        lines: Every line of the site.
        around: The site's commits and tags.

    Returns:
        None if no line has values at two commits of the branch.
    """
    commits = around.commits
    values = _measured(lines, commits)
    measured = sorted((commits[sha] for sha in values if commits[sha].on_branch), key=lambda info: info.order)
    releases = _releases(measured, around)
    pair = _pair(lines, [info.sha for info in measured], releases)
    return pair and CommitPair(*pair, values, releases)


def compare_page(
    compared: CommitPair, lines: Sequence[HistoryLine], places: Mapping[tuple[str, str], str], around: Around
) -> ComparePage:
    """Compare two commits.

    Args:
        compared: The commits.
        lines: Every line of the site.
        places: The page and anchor of each.
        around: The site's commits and tags.
    """
    commits = around.commits
    old, new, values, releases = compared
    held, room = {new, old}, VALUES - values[new] - values[old]
    for sha in dict.fromkeys([*releases, *sorted(values, key=lambda sha: -commits[sha].order)]):
        if sha not in held and values[sha] <= room:
            held.add(sha)
            room -= values[sha]
    at = CommitPlaces(sorted(held, key=lambda sha: commits[sha].order))
    found: list[tuple[float, HistoryLine, str, Point, Point]] = []
    packed = []
    wheres = {where: number for number, where in enumerate(sorted({line.where for line in lines}))}
    pages: dict[str, int] = {}
    of_held = once_for_commits(lambda points: np.flatnonzero(at.of(points) >= 0))
    for line in lines:
        points, some = line.points, of_held(line.points)
        some = some[points.positive()[some]]
        if not len(some):
            continue
        home, mark, anchor = places[line.label, line.where].partition("#")
        lower = 0 if line.lower_is_better is None else 1 if line.lower_is_better else -1
        columns, texts = at.of(points)[some].tolist(), [""] * len(at)
        packs = _packed(points.values[some], points.lows[some], points.highs[some])
        for column, text in zip(columns, packs, strict=True):
            texts[column] = text
        page = pages.setdefault(home, len(pages))
        packed.append([line.label, wheres[line.where], line.unit, lower, page, mark + anchor, " ".join(texts)])
        own = dict(zip(columns, some.tolist(), strict=True))
        if at[old] in own and at[new] in own:
            before, after = points[own[at[old]]], points[own[at[new]]]
            size = abs(math.log(after.value or 1) - math.log(before.value or 1))  # both are positive
            found.append((size, line, home + mark + anchor, before, after))
    found.sort(key=lambda one: -one[0])
    spans = [_span(before, after) for *_, before, after in found]
    told = {
        sha: (around.short(sha), short_date(commits[sha].date_ms), releases.get(sha, ""), commits[sha].subject[:80])
        for sha in at
    }
    names = [f"{tag or sha[:8]}, {day} {subject}" for sha, day, tag, subject in (told[old], told[new])]
    return ComparePage(
        old=around.short(old), new=around.short(new), old_name=names[0], new_name=names[1],
        rows=[_row(*own[1:]) for own in found[:ROWS]], lines=len(found),
        apart=sum(span is not None and not span[0] <= 1 <= span[1] for span in spans), unknown=spans.count(None),
        commits=len(at), measured=len(values),
        island=_island({"commits": list(told.values()), "places": list(wheres), "pages": list(pages), "lines": packed}),
    )  # fmt: skip


def _measured(lines: Sequence[HistoryLine], commits: Container[str]) -> Counter[str]:
    """Return, per commit, how many lines have a value that can be part of a ratio."""
    beside: dict[int, list[Points]] = {}  # series measured together share their commits
    for line in lines:
        beside.setdefault(id(line.points.shas), []).append(line.points)
    values: Counter[str] = Counter()
    for own in beside.values():
        numbers = np.sum([points.positive() for points in own], axis=0).tolist()
        values.update({sha: n for sha, n in zip(own[0].shas, numbers, strict=True) if n and sha in commits})
    return values


def _pair(lines: Sequence[HistoryLine], measured: Sequence[str], releases: Iterable[str]) -> tuple[str, str] | None:
    """Choose two commits that share at least half of the lines measured at the newer one; None if there are none."""
    place = {sha: at for at, sha in enumerate(measured)}

    places = once_for_commits(lambda points: np.array([place.get(sha, -1) for sha in points.shas], dtype=np.intp))

    def known(line: HistoryLine) -> NDArray[np.intp]:
        own = places(line.points)[line.points.positive()]
        return own[own >= 0]

    new = max((int(own[-1]) for own in map(known, lines) if len(own) > 1), default=0)
    shared = np.zeros(len(measured), dtype=np.intp)  # per commit: lines that the newest one also has
    for own in map(known, lines):
        if own[-1:].tolist() == [new]:
            shared[own[:-1]] += 1
    earlier = [*(place[sha] for sha in releases if place[sha] < new), *np.flatnonzero(shared)[::-1].tolist()]
    most = shared.max(initial=0)
    old = next((at for at in earlier if 2 * shared[at] >= most > 0), None)
    return None if old is None else (measured[old], measured[new])


def _releases(measured: Sequence[CommitInfo], around: Around) -> dict[str, str]:
    """Return the measured commits at tags, or the last ones before them, newest first."""
    orders = [info.order for info in measured]
    exact: dict[int, str] = {}
    near: dict[int, str] = {}
    for name, sha in around.tags:
        order = around.commits[sha].order
        number = bisect_right(orders, order)
        if number and orders[number - 1] == order:
            exact.setdefault(number, name)
        elif 0 < number < len(orders):
            near.setdefault(number, f"before {name}")
    names = near | exact
    return {measured[number - 1].sha: names[number] for number in sorted(names, reverse=True)}


def _packed(values: Array, lows: Array, highs: Array) -> Iterator[str]:
    """Yield points in the script's format: 5 digits, and how far intervals extend to each side, in 0.01 %."""
    between = (lows > 0) & (highs > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        ends = [np.rint(10_000 * np.minimum(np.where(between, own, 0.0) / values, 1e9)) for own in (lows, highs)]
    for value, low, high in zip(values.tolist(), *(own.astype(np.int64).tolist() for own in ends), strict=True):
        yield f"{value:.5g}:{10_000 - low}:{high - 10_000}" if high else f"{value:.5g}"


def _interval(point: Point) -> tuple[float, float] | None:
    """Return a point's interval; None if it has none that can be part of a ratio."""
    return (
        None if point.low is None or point.high is None or min(point.low, point.high) <= 0 else (point.low, point.high)
    )


def _span(old: Point, new: Point) -> tuple[float, float] | None:
    """Return the smallest and largest ratio of two points by their intervals; None if one has none."""
    was, now = _interval(old), _interval(new)
    return (now[0] / was[1], now[1] / was[0]) if was and now else None


def _row(line: HistoryLine, home: str, old: Point, new: Point) -> ComparedLine:
    ratio = (new.value or 0.0) / (old.value or 1.0)
    span = _span(old, new)
    interval = f"{percent(span[0])} to {percent(span[1])}" if span else ""
    apart, tone = span is not None and not span[0] <= 1 <= span[1], ""
    if span and apart and line.lower_is_better is not None:
        tone = "bad" if (span[0] > 1) == line.lower_is_better else "good"
    before, after = quantity(old.value, line.unit), quantity(new.value, line.unit)
    return ComparedLine(line.label, line.where, home, before, after, percent(ratio), interval, apart, tone)


def _island(data: object) -> Markup:
    from markupsafe import Markup

    # Only "<" could end a script element; lone surrogates are escaped too.
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))  # noqa: S704 - nothing ends the element
