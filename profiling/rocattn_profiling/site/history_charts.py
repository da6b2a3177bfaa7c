"""Charts of the history: lines over commits with their intervals, changes as bands, boundaries as edges."""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rocattn_profiling.pages.charts import (
    COLOURS,
    STYLES,
    Band,
    ChartLine,
    ChartPoint,
    colour_of,
    line_chart,
    thin,
    value_axis,
)
from rocattn_profiling.pages.quantities import between, percent, percent_tick, quantity, short_date, times
from rocattn_profiling.pages.render import count
from rocattn_profiling.site.commits import CommitInfo
from rocattn_profiling.site.model import Boundary, LevelChange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import CommitPlaces, Point, Points
    from rocattn_profiling.pages.charts import Chart

    Array = NDArray[np.float64]

Value = TypeVar("Value", float, "Array")
PAGE_BENDS, PAGE_DOTS = 24_000, 1800
"""Limits on the points of lines, and on the dots with tooltips, for all charts on a page."""
CHART_BENDS, CHART_DOTS = 6000, 600
"""The same for one chart of all lines."""
OVERVIEW_BANDS = 12
LONG_RUN = 12
"""Length of a name from which on parts that do not distinguish lines are left out."""
MANY = 60
"""With more commits than this, dots would touch."""


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """The history of one combination of parameters, such as a backend and a config.

    ``name`` distinguishes it from the other lines of its panel and is "" if it is the only one. ``full_name`` and the
    shortened ``short_name`` distinguish it from all others on its page, where it is drawn in ``style``. ``machine``
    includes the environment if a page has several. ``label`` and ``where`` identify the series; for
    ``lower_is_better`` see `LevelChange`.
    """

    panel: str
    name: str
    machine: str
    unit: str
    points: Points
    label: str = ""
    where: str = ""
    changes: list[LevelChange] = field(default_factory=list)
    lower_is_better: bool | None = True
    full_name: str = ""
    short_name: str = ""
    style: int = 0

    @property
    def anchor(self) -> str:
        """The anchor of the line on its page; those of its points begin with it."""
        return f"line-{hashlib.sha256(f'{self.label}|{self.where}'.encode()).hexdigest()[:10]}"


@dataclass(slots=True)
class Around:
    """Shared context of all charts of a site.

    Attributes:
        commits: The repository's commits by sha; unknown ones are shown before them, by date.
        backends: Line names in the site's order, so that a name has the same color on every page.
        boundaries: Commits at which something other than the code changed.
        pages: The page of each measured commit, relative to the charts' pages.
        tags: (name, sha) of the repository's tags, the first to label first.
    """

    commits: Mapping[str, CommitInfo]
    backends: Sequence[str] = ()
    boundaries: Sequence[Boundary] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[tuple[str, str]] = ()

    def short(self, sha: str) -> str:
        """Return a commit's name in anchors and addresses, which is its page's name."""
        return self.pages[sha].rpartition("/")[2].removesuffix(".html") if sha in self.pages else sha


def relative(line: HistoryLine, place: CommitPlaces) -> Array:
    """Return a line's values relative to its first, one per commit; NaN if there is no value."""
    values = place.along(line.points)
    first = values[np.isfinite(values) & (values != 0)][:1]
    return against(values, first.item()) if len(first) else np.full(len(place), math.nan)


def against(new: Value, old: float) -> Value:
    """Return the ratio of a value to a nonzero one; a decrease gives less than 1 even for a negative ``old``."""
    return new / old if old > 0 else 2 - new / old


def geometric_means(rows: Array) -> Array:
    """Return the geometric mean of the positive values in each column; NaN if there are none."""
    positive = rows > 0
    counts = positive.sum(axis=0)
    logs = np.log(np.where(positive, rows, 1.0)).sum(axis=0)
    return np.where(counts, np.exp(logs / np.maximum(counts, 1)), math.nan)


def better_of(lines: Iterable[HistoryLine]) -> str:
    """Return which values are better: "lower", "higher" for rates, "" if lines are of both kinds or of neither."""
    kinds = {line.lower_is_better for line in lines}
    return "lower" if kinds == {True} else "higher" if kinds == {False} else ""


def shortened(texts: Sequence[str]) -> list[str]:
    """Return texts with long runs common to all replaced by "…"; different texts stay different."""
    tokens = {text: re.findall(r"\w+|\W", text) for text in texts}
    after: dict[tuple[str, ...], set[str]] = {}  # beginning -> what follows it
    for parts in tokens.values():
        for at, token in enumerate([*parts, ""]):
            after.setdefault(tuple(parts[:at]), set()).add(token)
    short = {}
    for text, parts in tokens.items():
        runs = [""]
        for at, token in enumerate(parts):
            if len(after[tuple(parts[:at])]) > 1:
                runs += [token, ""]
            else:
                runs[-1] += token
        short[text] = "".join("…" if at % 2 == 0 and len(run) > LONG_RUN else run for at, run in enumerate(runs))
    return [short[text] for text in texts]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a page's legend; ``anchor`` and ``place`` are its line's, or "" if it stands for several lines."""

    name: str
    full_name: str
    style: int
    anchor: str = ""
    place: str = ""


def styled(lines: Sequence[HistoryLine], backends: Sequence[str]) -> tuple[list[HistoryLine], list[Key]]:
    """Return the lines of a page with their styles, and the page's legend.

    A line has its backend's color if dashes then suffice to distinguish its lines, else the next style. If there are
    more lines than styles, they are styled by backend, or else by machine and environment, and the legend counts them.
    """
    of_name = [colour_of(line.name, backends) if line.name else 0 for line in lines]
    names = list(dict.fromkeys(line.name for line in lines))
    nth: Counter[int] = Counter()
    dashed = []
    for colour in of_name:
        dashed.append(colour + COLOURS * nth[colour])
        nth[colour] += 1
    if len(names) > 1 and max(dashed) < STYLES and len(set(dashed)) == len(lines):
        styles = dashed
    elif len(lines) <= STYLES:
        styles = list(range(len(lines)))
    elif len(names) > 1:
        styles = of_name
    else:
        machines = list(dict.fromkeys(line.machine for line in lines))
        styles = [machines.index(line.machine) % STYLES for line in lines]
    drawn = [replace(line, style=style) for line, style in zip(lines, styles, strict=True)]
    if len(lines) <= STYLES:
        return drawn, [Key(line.short_name, line.full_name, line.style, line.anchor, line.machine) for line in drawn]
    alike = Counter((line.name if len(names) > 1 else line.machine, line.style) for line in drawn)
    keys = []
    for (group, style), number in alike.items():
        told = f"{group}: {count(number, 'line')}" if len(alike) > 1 else count(number, "line")
        keys.append(Key(told, told, style))
    return drawn, keys


def against_place(lines: Sequence[HistoryLine], place: CommitPlaces) -> tuple[str, list[HistoryLine], list[Array]]:
    """Compare machines and environments by the combinations that they share.

    Args:
        lines: All lines of a page, their points in commit order.
        place: Index of each of its commits.

    Returns:
        The place with the most points, the lines of the others, and their values relative to that place's at the same
        commit or the last one before it, one per commit; NaN if there is none.
    """
    counts = Counter[str]()
    for line in lines:
        counts[line.machine] += len(line.points)
    reference = max(counts, key=lambda machine: counts[machine])
    base = {(line.panel, line.name): line for line in lines if line.machine == reference}
    others = [line for line in lines if line.machine != reference and (line.panel, line.name) in base]
    ratios = []
    for line in others:
        new, old = place.along(line.points), place.along(base[line.panel, line.name].points)
        last = np.maximum.accumulate(np.where(old > 0, np.arange(len(place)), 0))  # before the first there is none
        ratios.append(np.where((new > 0) & (old[last] > 0), new / np.where(old[last] > 0, old[last], 1.0), math.nan))
    told = [at for at, own in enumerate(ratios) if np.isfinite(own).any()]
    return reference, [others[at] for at in told], [ratios[at] for at in told]


def overview_charts(
    lines: Sequence[HistoryLine], ratios: Sequence[Array], place: Mapping[str, int], around: Around,
    title: str = "Every combination against its first measured commit", one: str = "each line's first",
) -> tuple[Chart, Chart]:  # fmt: skip
    """Lay out ratios of lines in one chart, for wide and for narrow windows.

    Args:
        lines: The lines.
        ratios: Ratios of each line, from `relative` or `against_place`.
        place: Index of each commit.
        around: The site's commits and boundaries.
        title: The chart's title.
        one: What the ratios are relative to.
    """
    shas = list(place)
    # Dots of many lines would hide the lines: either all lines have dots, or none.
    dotted = len(shas) <= MANY and len(shas) * len(lines) <= CHART_DOTS
    bends = _share(CHART_BENDS, len(lines), 16, 240)
    traces = []
    for line, own in zip(lines, ratios, strict=True):
        known = np.flatnonzero(~np.isnan(own))
        shown = dotted or len(known) == 1  # a single point has no line
        kept = known[thin(own[known], bends)]
        values = []
        if shown:
            points = {p.sha: p for p in line.points}
            for at, ratio in zip(kept.tolist(), own[kept].tolist(), strict=True):
                now = f"{line.full_name}: {percent(ratio)} ({quantity(points[shas[at]].value, line.unit)})"
                told = f"{now}\n{commit_title(shas[at], points[shas[at]], around.commits)}"
                values.append(ChartPoint(at, ratio, told, href=around.pages.get(shas[at], "")))
        traces.append(ChartLine(line.full_name, line.style, values, line.machine, (kept, own[kept])))
    better = f", {better_of(lines)} is better" if better_of(lines) else ""
    heights = np.concatenate([np.empty(0), *(trace.corners[1] for trace in traces)])
    heights[heights == 0] = 1.0
    reach = [heights.min().item(), heights.max().item()] if len(heights) else []
    axis = value_axis(reach, log=None, zero=False)
    standing = [change for line in lines for change in line.changes if change.open]
    bands = [_band(change, place, around) for change in standing[:OVERVIEW_BANDS]]
    edges, tags = _edges(lines, place, around), tag_places(shas, around)

    def chart(size: tuple[float, float], ticks: int) -> Chart:
        return line_chart(
            traces,
            title=title,
            description=f"{len(traces)} lines over {len(place)} commits; the dashed line is {one}{better}",
            unit="",
            x_ticks=_commit_ticks(shas, ticks, around.commits),
            x_label="commits, oldest to newest, by their date",
            tags=tags,
            tick_text=times if axis.log else percent_tick,
            y_axis=axis,
            rule=1.0,
            size=size,
            bands=bands,
            edges=edges,
        )

    return chart((1080, 300), 9), chart((340, 230), 2)


def panel_chart(
    label: str, lines: Sequence[HistoryLine], place: CommitPlaces, around: Around, on_page: int,
    tags: Sequence[tuple[float, str]],
) -> Chart:  # fmt: skip
    """Lay out the lines of one combination, whose points are in commit order.

    ``on_page`` is the number of lines in all charts of the page; ``tags`` come from `tag_places`.
    """
    traces, newest, thinned = [], [], False
    dots, bends = _share(PAGE_DOTS, on_page, 6, MANY), _share(PAGE_BENDS, on_page, 48, 160)
    for line in lines:
        points, numbers, line_anchor = line.points, line.points.values, line.anchor
        moved = {change.likeliest for change in line.changes}
        dotted = _dotted(numbers, dots, [at for at, sha in enumerate(points.shas) if sha in moved] if moved else ())
        drawn = thin(numbers, bends, dotted)
        thinned = thinned or len(dotted) < len(points)
        marked = []
        for at in drawn:
            if at not in dotted and numbers[at] != math.inf:
                continue
            point, told = points[at], at in dotted
            title = _tooltip(line, point, around.commits) if told else ""
            ends = (point.low, point.high) if told else (None, None)
            anchor = f"{line_anchor}-{around.short(point.sha)}" if told else ""
            href = around.pages.get(point.sha, "")
            marked.append(ChartPoint(place[point.sha], point.value, title, *ends, href=href, anchor=anchor))
        corners = place.of(points)[drawn], numbers[drawn]
        traces.append(ChartLine(line.name or line.full_name, line.style, marked, bends=corners))
        if points:
            newest.append(f"{_named(line)}{quantity(points[-1].value, line.unit)} at the newest commit")
    unit = lines[0].unit
    chart = line_chart(
        traces,
        title=label or "history",
        description=f"{unit} over {len(place)} commits. {'; '.join(newest)}",
        unit=unit,
        x_ticks=_commit_ticks(list(place), 2, around.commits),
        tags=tags,
        size=(340, 180),
        bands=[_band(change, place, around) for line in lines for change in line.changes],
        edges=_edges(lines, place, around),
    )
    chart.thinned = thinned
    return chart


def change_title(change: LevelChange, subject: Callable[[str], str]) -> str:
    """Return the tooltip of a change: size, state, and the commits that it may have come with."""
    point = change.point
    size = f"{percent(point.ratio)} ({percent(point.ratio_low)} to {percent(point.ratio_high)})"
    many = len(change.commits)
    came = "with" if many == 1 else f"with one of {many} commits, likeliest"
    return f"{change.label}: {size}, {change.state}\n{came} {change.likeliest[:8]} {subject(change.likeliest)}"


def commit_title(sha: str, point: Point, commits: Mapping[str, CommitInfo]) -> str:
    """Describe a commit for tooltips: short sha, date, subject."""
    subject = commits[sha].subject if sha in commits else "not in this clone"
    return f"{sha[:8]} {short_date(point.date_ms)} {subject}"


def _band(change: LevelChange, place: Mapping[str, int], around: Around) -> Band:
    def subject(sha: str) -> str:
        return around.commits[sha].subject if sha in around.commits else ""

    # From the last commit certainly on the old level to the last one that may have caused the change.
    low, high = place[change.commits[0]] - 1, place[change.commits[-1]]
    tone = f"{change.tone} {change.state}".strip()
    return Band(max(0, low), high, change_title(change, subject), tone, around.pages.get(change.likeliest, ""))


def _edges(lines: Sequence[HistoryLine], place: Mapping[str, int], around: Around) -> list[tuple[float, str]]:
    wheres = {line.where for line in lines}
    own = [b for b in around.boundaries if b.where in wheres and b.sha in place]
    return list(dict.fromkeys((place[b.sha] - 0.5, f"not comparable across: {b.text}") for b in own))


def _share(budget: int, lines: int, least: int, most: int) -> int:
    return max(least, min(most, budget // max(1, lines)))


def _dotted(values: Array, most: int, keep: Iterable[int] = ()) -> set[int]:
    """Return the indices that get a dot and a tooltip; only ``keep`` if there is no room for more."""
    return set(thin(values, most, set(keep))) if most else set(keep)


def _commit_ticks(shas: Sequence[str], count: int, commits: Mapping[str, CommitInfo]) -> list[tuple[float, str]]:
    step = max(1, -(-len(shas) // count))
    return [(at, day_of(shas[at], commits) or shas[at][:7]) for at in range(len(shas) - 1, -1, -step)]


def tag_places(shas: Sequence[str], around: Around) -> list[tuple[float, str]]:
    """Return the positions of tags among a chart's commits: between two commits if the tagged one was not measured."""
    at = {sha: number for number, sha in enumerate(shas)}
    known = [sha for sha in shas if sha in around.commits]
    orders = [around.commits[sha].order for sha in known]
    placed: list[tuple[float, str]] = []
    for name, sha in around.tags:
        after = bisect_right(orders, around.commits[sha].order)
        if sha in at:
            placed.append((at[sha], name))
        elif 0 < after < len(known):
            placed.append((at[known[after]] - 0.5, name))
    return placed


def day_of(sha: str, commits: Mapping[str, CommitInfo]) -> str:
    """Return a commit's day, "" if it is not known."""
    return short_date(commits[sha].date_ms) if sha in commits and commits[sha].date_ms > 0 else ""


def _tooltip(line: HistoryLine, point: Point, commits: Mapping[str, CommitInfo]) -> str:
    value = "failed" if point.value is None else quantity(point.value, line.unit)
    interval = between(point.low, point.high, line.unit)
    return f"{_named(line)}{value}{f' ({interval})' if interval else ''}\n{commit_title(point.sha, point, commits)}"


def _named(line: HistoryLine) -> str:
    return f"{line.name}: " if line.name else ""
