"""History pages as views: one family of benchmarks each, every parameter combination a line with its interval."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocattn_profiling.report.charts import Chart, Trace, Value, line_chart, sparklines, value_axis
from rocattn_profiling.report.quantities import between, natural, percent, percent_tick, quantity, short_date

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocattn_profiling.measure.asv_series import Point, Series
    from rocattn_profiling.report.commits import CommitInfo

SHOWN_COMMITS = 200
_BENCH = re.compile(r"(bench\.\w+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One parameter combination: a backend's history of one config (or whatever the parameters are).

    ``machine`` also names the environment where results of several share a page.
    """

    panel: str
    name: str
    machine: str
    unit: str
    points: list[Point]


@dataclass(slots=True)
class Family:
    """Benchmarks that share a page: a grid of ``rocattn bench`` with all backends, or one benchmark of a suite."""

    name: str
    slug: str
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the newest point of a line says.

    Attributes:
        previous, first: Change against the point before and the first one.
        direction: "up" or "down" when the intervals of the newest and the previous point do not touch, else "". A hint,
            not a verdict: intervals within a run do not hold the spread between runs.
    """

    name: str
    colour: int
    latest: str
    interval: str
    previous: str
    first: str
    direction: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart with its newest values in words."""

    label: str
    machine: str
    chart: Chart
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Row:
    """One commit of the table: cells in the order of the table's columns."""

    sha: str
    date: str
    subject: str
    cells: list[str]


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Everything ``history.html.j2`` shows."""

    name: str
    slug: str
    overview: Chart
    overview_narrow: Chart
    panels: list[Panel]
    columns: list[tuple[str, str]]
    rows: list[Row]
    commits: int
    hidden: int
    legend: list[tuple[str, int]]

    def moved(self, direction: str) -> int:
        """How many lines went "up" or "down" at their newest commit."""
        return sum(entry.direction == direction for panel in self.panels for entry in panel.entries)


def families(series: Iterable[Series]) -> list[Family]:
    """Sort series into pages; the backends of a bench grid, and of a suite, become lines of the same charts."""
    found: dict[str, Family] = {}
    taken: set[str] = set()
    listed = list(series)
    environments: dict[tuple[str, str], set[str]] = {}
    for one in listed:
        environments.setdefault((one.benchmark, one.machine), set()).add(one.env_name)
    for one in listed:
        match = _BENCH.fullmatch(one.benchmark)
        name = match[1] if match else one.benchmark
        params = dict(one.params)
        backend = params.pop("backend", match[2].replace("_", "-") if match else "")
        panel = ", ".join(v if k in {"config", "label"} else f"{k} {v}" for k, v in params.items())
        if name not in found:
            found[name] = Family(name, _slug(name, taken))
        several = len(environments[one.benchmark, one.machine]) > 1
        where = f"{one.machine}, {one.env_name}" if several else one.machine
        found[name].lines.append(Line(panel, backend or "result", where, one.unit, one.points))
    for family in found.values():
        family.lines.sort(key=lambda line: (natural(line.panel), line.machine, line.name))
    return sorted(found.values(), key=lambda family: (not family.name.startswith("bench."), natural(family.name)))


def history_page(family: Family, commits: Mapping[str, CommitInfo], backends: Sequence[str]) -> HistoryPage:
    """Lay out a family's page.

    Args:
        family: Its lines.
        commits: The repository's commits by sha; others are shown before them, by date.
        backends: Line names in the site's order, so that a name has one colour on every page.
    """
    shas = order_commits((p for line in family.lines for p in line.points), commits)
    hidden = max(0, len(shas) - SHOWN_COMMITS)
    place = {sha: at for at, sha in enumerate(shas[hidden:])}
    panels: dict[tuple[str, str], list[Line]] = {}
    for line in family.lines:
        panels.setdefault((line.panel, line.machine), []).append(line)
    several = len({line.machine for line in family.lines}) > 1
    names = [line.name for line in family.lines]
    shown = [_panel(label, machine if several else "", lines, place, commits, backends)
             for (label, machine), lines in panels.items()]  # fmt: skip
    return HistoryPage(
        name=family.name,
        slug=family.slug,
        overview=_overview(family, place, commits, backends, (1080, 300), 9),
        overview_narrow=_overview(family, place, commits, backends, (340, 230), 3),
        panels=shown,
        columns=[(line.panel, line.name) for line in family.lines],
        rows=_table(family, place, commits),
        commits=len(place),
        hidden=hidden,
        legend=[(name, colour_of(name, backends)) for name in dict.fromkeys(names)],
    )


def order_commits(points: Iterable[Point], commits: Mapping[str, CommitInfo]) -> list[str]:
    """Return the shas oldest first: in git's order, those git does not know before them by date."""
    dates = {point.sha: point.date_ms for point in points}
    return sorted(dates, key=lambda sha: (sha in commits, commits[sha].order if sha in commits else dates[sha], sha))


def colour_of(name: str, backends: Sequence[str]) -> int:
    """Return a name's colour: the same on every page."""
    return backends.index(name) % 8 if name in backends else 7


def latest_spark(family: Family, commits: Mapping[str, CommitInfo]) -> list[tuple[str, str]]:
    """Return (name, sparkline points) of the geometric mean over panels, a line name each: the family at a glance."""
    shas = order_commits((p for line in family.lines for p in line.points), commits)[-SHOWN_COMMITS:]
    names = list(dict.fromkeys(line.name for line in family.lines))
    rows = []
    for name in names:
        ratios = [_relative(line, shas) for line in family.lines if line.name == name]
        rows.append([_geometric_mean([r[at] for r in ratios]) for at in range(len(shas))])
    return [(name, points) for name, points in zip(names, sparklines(rows), strict=True) if points]


def _relative(line: Line, shas: Sequence[str]) -> list[float | None]:
    values = {p.sha: p.value for p in line.points}
    known = [v if v is not None and math.isfinite(v) and v > 0 else None for v in (values.get(sha) for sha in shas)]
    base = next((v for v in known if v is not None), 1.0)
    return [None if v is None else v / base for v in known]


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    logs = [math.log(v) for v in values if v is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _overview(
    family: Family, place: Mapping[str, int], commits: Mapping[str, CommitInfo], backends: Sequence[str],
    size: tuple[float, float], ticks: int,
) -> Chart:  # fmt: skip
    traces = []
    shas = list(place)
    for line in family.lines:
        points = {p.sha: p for p in line.points}
        values = []
        for sha, ratio in zip(shas, _relative(line, shas), strict=True):
            if ratio is not None:
                what = f"{line.panel}, {line.name}" if line.panel else line.name
                now = f"{what}: {percent(ratio)} ({quantity(points[sha].value, line.unit)})"
                told = f"{now}\n{told_commit(sha, points[sha], commits)}"
                values.append(Value(place[sha], ratio, told))
        traces.append(Trace(line.panel, colour_of(line.name, backends), values))
    return line_chart(
        traces,
        title="Every combination against its first measured commit",
        description=f"{len(traces)} lines over {len(place)} commits; 0 % is each line's first point, lower is better",
        unit="",
        x_ticks=_commit_ticks(place, ticks),
        x_label="commits, oldest to newest",
        tick_text=percent_tick,
        y_axis=value_axis([v.y or 1.0 for trace in traces for v in trace.values], log=False, zero=False),
        rule=1.0,
        size=size,
    )


def _panel(
    label: str, machine: str, lines: Sequence[Line], place: Mapping[str, int],
    commits: Mapping[str, CommitInfo], backends: Sequence[str],
) -> Panel:  # fmt: skip
    traces, entries = [], []
    for line in lines:
        colour = colour_of(line.name, backends)
        points = sorted((p for p in line.points if p.sha in place), key=lambda p: place[p.sha])
        traces.append(
            Trace(
                line.name,
                colour,
                [Value(place[p.sha], p.value, _told(line, p, commits), p.low, p.high) for p in points],
            )
        )
        entries.append(_entry(line, points, colour))
    unit = lines[0].unit
    newest = "; ".join(f"{e.name}: {e.latest} at the newest commit, {e.first} since the first" for e in entries)
    chart = line_chart(
        traces,
        title=label or "history",
        description=f"{unit} over commits. {newest}",
        unit=unit,
        x_ticks=_commit_ticks(place, 3),
        size=(340, 180),
    )
    return Panel(label, machine, chart, entries)


def _entry(line: Line, points: Sequence[Point], colour: int) -> Entry:
    known = [p for p in points if p.value is not None and math.isfinite(p.value)]
    newest = points[-1] if points else None
    last = known[-1] if known else None
    before = known[-2] if len(known) > 1 else None
    direction = ""
    if (
        last
        and before
        and last.low is not None
        and last.high is not None
        and before.low is not None
        and before.high is not None
    ):
        direction = "up" if last.low > before.high else "down" if last.high < before.low else ""
    current = newest is not None and newest is last
    return Entry(
        name=line.name,
        colour=colour,
        latest=quantity(last.value, line.unit) if last and current else _state(newest),
        interval=between(last.low, last.high, line.unit) if last and current else "",
        previous=percent(_ratio(last, before)) if current else "",
        first=percent(_ratio(last, known[0] if len(known) > 1 else None)) if current else "",
        direction=direction if current else "",
    )


def _state(point: Point | None) -> str:
    if point is None:
        return "not measured"
    return "failed" if point.value is None else "n/a"


def _ratio(new: Point | None, old: Point | None) -> float | None:
    if new is None or old is None or not new.value or not old.value:
        return None
    return new.value / old.value


def _table(family: Family, place: Mapping[str, int], commits: Mapping[str, CommitInfo]) -> list[Row]:
    cells: dict[str, list[str]] = {sha: [""] * len(family.lines) for sha in place}
    dates: dict[str, int] = {}
    for column, line in enumerate(family.lines):
        for point in line.points:
            dates[point.sha] = point.date_ms
            if point.sha in cells:
                text = quantity(point.value, line.unit)
                cells[point.sha][column] = "failed" if point.value is None else text
    return [
        Row(sha, short_date(dates[sha]), commits[sha].subject if sha in commits else "(not in this clone)", cells[sha])
        for sha in reversed(list(place))
    ]


def _commit_ticks(place: Mapping[str, int], count: int) -> list[tuple[float, str]]:
    shas = list(place)
    step = max(1, -(-len(shas) // count))
    return [(at, shas[at][:7]) for at in range(len(shas) - 1, -1, -step)]


def told_commit(sha: str, point: Point, commits: Mapping[str, CommitInfo]) -> str:
    """Return a commit as tooltips name it: short sha, date, subject."""
    subject = commits[sha].subject if sha in commits else "not in this clone"
    return f"{sha[:8]} {short_date(point.date_ms)} {subject}"


def _told(line: Line, point: Point, commits: Mapping[str, CommitInfo]) -> str:
    value = "failed" if point.value is None else quantity(point.value, line.unit)
    interval = between(point.low, point.high, line.unit)
    return f"{line.name}: {value}{f' ({interval})' if interval else ''}\n{told_commit(point.sha, point, commits)}"


def _slug(name: str, taken: set[str]) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:80] or "benchmark"
    if slug in taken:
        slug = f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    taken.add(slug)
    return slug
