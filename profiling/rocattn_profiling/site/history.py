"""Views of the history pages: one per family of benchmarks, and one per GPU kernel."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.asv.series import CommitPlaces, commits_of, in_order
from rocattn_profiling.base.markup import plain
from rocattn_profiling.pages.charts import colour_of, sparklines, thin
from rocattn_profiling.pages.quantities import between, natural, percent, quantity, short_date
from rocattn_profiling.site.changes import AUDIT, lower_is_better, where_of
from rocattn_profiling.site.commits import CommitInfo
from rocattn_profiling.site.history_charts import (
    Around,
    HistoryLine,
    Key,
    against,
    against_place,
    better_of,
    day_of,
    geometric_means,
    overview_charts,
    panel_chart,
    relative,
    shortened,
    styled,
    tag_places,
)
from rocattn_profiling.site.model import Boundary, LevelChange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.asv.series import Point, Series
    from rocattn_profiling.pages.charts import Chart

TABLE_CELLS, TABLE_COLUMNS, TABLE_ROWS = 4000, 40, 200
LINES = 300
"""Most lines drawn per page; lines with an open change come first."""
SPARK_POINTS = 80
FEW_PAGES, DEEPEST = 4, 8
"""Benchmarks from which on a module or class is a branch of the tree, and the tree's maximum depth."""
LARGEST = 99.0
CSV_VALUES = 1_000_000
"""Values of all benchmarks above which no CSV is written: 130 bytes each."""
_MOST_CELL = 1000  # characters
_BENCH = re.compile(r"(bench\.\w+)\.(\w+)")
TITLES = {
    "vgprs": "VGPRs of a wave",
    "sgprs": "SGPRs of a wave",
    "spills": "Registers spilled",
    "lds_bytes": "LDS of a block",
    "lost_wave_slots": "Wave slots of a SIMD left empty (lost occupancy)",
    "code_bytes": "Machine code",
    "hot_loop": "Issue cycles of the hot loop for 1e6 FLOP",
}
"""Titles of tracked numbers, in the page's order; others follow under their own names."""


@dataclass(slots=True)
class Family:
    """Benchmarks that share a page: a grid of ``rocattn bench`` with all backends, or one benchmark of a suite."""

    name: str
    title: str
    slug: str
    benchmark: str
    lines: list[HistoryLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LatestPoint:
    """The newest point of a line, as text.

    Attributes:
        previous, first: Change from the previous and from the first point.
        direction: "up" or "down" if the intervals of the newest and the previous point do not overlap, else "". A
            hint, not a verdict: intervals within a run do not include the variation between runs.
        worse: Whether that direction is a regression; False for numbers that are neither good nor bad.
        anchor: The line's anchor.
    """

    name: str
    colour: int
    latest: str
    interval: str
    previous: str
    first: str
    direction: str
    worse: bool
    anchor: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart, kept until its page is written, with its newest values as text; links lead to ``anchor``."""

    label: str
    machine: str
    anchor: str
    chart: Chart | None
    entries: list[LatestPoint]


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One commit of the table: cells in the order of the table's columns."""

    sha: str
    anchor: str
    date: str
    subject: str
    cells: list[str]


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Everything ``history.html.j2`` shows.

    Attributes:
        title: The suite's pretty name, or else its name.
        benchmark: Its name in asv's pages.
        overview, overview_narrow: Charts of all lines, kept until the page is written.
        against: Charts of machines and environments against one of them, wide and narrow; None if none share lines.
        sparks: (name, points of a sparkline) of the geometric mean over combinations.
        lines: Number of lines, from ``combinations`` in ``places``; ``left_out`` of them are not drawn.
        changes: Change points of its lines, newest first.
        boundaries: Commits across which levels are not compared.
        commits: Number of commits drawn; ``thinned`` if some lines have fewer points than that.
        range: The charts' commits for the script: "name in addresses,date", separated by spaces.
        better: "lower", "higher" for rates, "" if lines are of both kinds or of neither.
        columns, rows: The newest values as a table; columns have a short and a full name.
    """

    name: str
    title: str
    slug: str
    benchmark: str
    overview: Chart | None
    overview_narrow: Chart | None
    against: tuple[Chart, Chart] | None
    sparks: list[tuple[str, str]]
    panels: list[Panel]
    lines: int
    combinations: int
    places: int
    left_out: int
    changes: list[LevelChange]
    boundaries: list[Boundary]
    columns: list[tuple[str, str]]
    rows: list[CommitRow]
    commits: int
    range: str
    thinned: bool
    better: str
    legend: list[Key]

    @property
    def open(self) -> int:
        """Number of open regressions."""
        return sum(change.open for change in self.changes)

    @property
    def largest(self) -> float:
        """Size of the largest open regression in logs; 0 if none is open."""
        return max((min(change.weight, LARGEST) for change in self.changes if change.open), default=0.0)

    @property
    def compares(self) -> bool:
        """Whether its lines belong to several backends."""
        return len(self.sparks) > 1

    @property
    def dotted(self) -> bool:
        """Whether points of the overview chart have tooltips."""
        return self.overview is not None and any(mark.title for line in self.overview.lines for mark in line.marks)

    def without_charts(self) -> HistoryPage:
        """Return the part that the front page needs: the charts of a thousand benchmarks would take a gigabyte."""
        panels = [replace(panel, chart=None) for panel in self.panels]
        return replace(self, overview=None, overview_narrow=None, against=None, panels=panels, rows=[])

    def moved(self, direction: str) -> int:
        """Number of lines that went "up" or "down" at their newest commit."""
        return sum(entry.direction == direction for panel in self.panels for entry in panel.entries)

    def worse(self, direction: str) -> bool:
        """Whether any line that went in this direction got worse."""
        return any(entry.direction == direction and entry.worse for panel in self.panels for entry in panel.entries)


@dataclass(frozen=True, slots=True)
class Branch:
    """A module or class with its benchmarks and its inner modules and classes."""

    name: str
    pages: list[HistoryPage]
    branches: list[Branch]

    @property
    def every(self) -> list[HistoryPage]:
        """All pages below it."""
        return [*self.pages, *(page for branch in self.branches for page in branch.every)]


def tree_of(pages: Sequence[HistoryPage], path: tuple[str, ...] = ()) -> Branch:
    """Return pages as a tree by the parts of their names; branches with few pages are merged into the one above."""
    own: list[HistoryPage] = []
    below: dict[str, list[HistoryPage]] = {}
    for page in pages:
        parts = page.name.split(".")[len(path) :]
        (below.setdefault(parts[0], []) if len(parts) > 1 and len(path) < DEEPEST else own).append(page)
    large = {name: inner for name, inner in below.items() if len(inner) >= FEW_PAGES}
    if len(large) == len(below) == 1 and not own:
        ((name, inner),) = large.items()
        return tree_of(inner, (*path, name))
    own += [page for name, inner in below.items() if name not in large for page in inner]
    branches = [tree_of(inner, (*path, name)) for name, inner in large.items()]
    return Branch(".".join(path), own, branches)


def families(
    series: Iterable[Series], changes: Mapping[tuple[str, str], list[LevelChange]] | None = None
) -> list[Family]:
    """Group series into pages; the backends of a bench grid, and of a suite, become lines of the same charts."""
    grouped: dict[str, list[Series]] = {}
    for line in series:
        grid = _grid_of(line)
        grouped.setdefault(grid[0] if grid else line.benchmark, []).append(line)
    taken: set[str] = set()
    pages = [
        Family(name, own[-1].pretty_name or name, slug_of(name, taken), own[0].benchmark, _lines_of(own, changes or {}))
        for name, own in grouped.items()
    ]
    return sorted(pages, key=lambda family: (not family.name.startswith("bench."), natural(family.name)))


def _grid_of(line: Series) -> tuple[str, str] | None:
    """Return the grid and backend of a series from `rocattn bench`; None for others, whatever their module's name."""
    match = _BENCH.fullmatch(line.benchmark) if line.params.keys() == {"config"} else None
    return (match[1], match[2].replace("_", "-")) if match else None


def _lines_of(family: Sequence[Series], changes: Mapping[tuple[str, str], list[LevelChange]]) -> list[HistoryLine]:
    """Name each series of a page by what distinguishes it: backend, parameters, environment, machine."""
    values: dict[str, dict[str, set[str]]] = {}  # per parameter: readable value -> values in asv's form
    environments: dict[str, set[str]] = {}
    for line in family:
        environments.setdefault(line.machine, set()).add(line.env_name)
        for (key, value), argument in zip(line.params.items(), line.arguments, strict=True):
            values.setdefault(key, {}).setdefault(value, set()).add(argument)
    backends = {line.params.get("backend") or (_grid_of(line) or ("", ""))[1] for line in family}
    lines: list[HistoryLine] = []
    apart_by: list[dict[str, str]] = []
    for line in family:
        # '1' and 1 look the same, but are two values.
        exact = dict(zip(line.params, line.arguments, strict=True))
        params = {key: value if len(values[key][value]) == 1 else exact[key] for key, value in line.params.items()}
        grid = _grid_of(line)
        backend = params.pop("backend", grid[1] if grid else "")
        shown = {key: value if key in {"config", "label"} else f"{key}={value}" for key, value in params.items()}
        panel, name = ", ".join(shown.values()), backend
        apart = {
            **({" backend": name or "no backend"} if len(backends) > 1 else {}),
            **{key: text for key, text in shown.items() if sum(map(len, values[key].values())) > 1},
            **({" machine": line.machine} if len(environments) > 1 else {}),
            **({" environment": line.env_name} if len(set().union(*environments.values())) > 1 else {}),
        }
        several = len(environments[line.machine]) > 1
        own = changes.get((line.label, where_of(line)), [])
        full = ", ".join(apart.values()) or panel or name or line.benchmark
        apart_by.append(apart)
        lines.append(
            HistoryLine(
                panel, name, where_of(line) if several else line.machine, line.unit, line.points, line.label,
                where_of(line), own, lower_is_better(line), full, full,
            )
        )  # fmt: skip
    brief: dict[str, dict[str, str]] = {}
    for kind in {kind for apart in apart_by for kind in apart}:
        texts = sorted({apart[kind] for apart in apart_by if kind in apart})
        brief[kind] = dict(zip(texts, shortened(texts), strict=True))
    lines = [
        replace(line, short_name=", ".join(brief[kind][text] for kind, text in apart.items())) if apart else line
        for line, apart in zip(lines, apart_by, strict=True)
    ]
    return sorted(lines, key=lambda line: (natural(line.panel), line.machine, line.name))


def drawn_lines(family: Family) -> list[int]:
    """Return which lines are drawn on a family's page; lines with an open change come first."""
    order = sorted(range(len(family.lines)), key=lambda at: not any(change.open for change in family.lines[at].changes))
    return sorted(order[:LINES])


def history_page(family: Family, around: Around) -> HistoryPage:
    """Lay out a family's page.

    Args:
        family: Its lines.
        around: The site's commits, boundaries and colors.
    """
    commits = around.commits
    shas = order_commits(commits_of(line.points for line in family.lines), commits)
    place = CommitPlaces(shas)
    ratios = [relative(line, place) for line in family.lines]
    drawn = drawn_lines(family)
    chosen = [family.lines[at] for at in drawn]
    chosen, legend = styled(chosen, around.backends)
    wide, narrow = overview_charts(chosen, [ratios[at] for at in drawn], place, around)
    reference, others, to_reference = against_place(chosen, place)
    title = f"Machines and environments against {reference}"
    tags = tag_places(shas, around)
    panels: dict[tuple[str, str], list[HistoryLine]] = {}
    for line in chosen:
        panels.setdefault((line.panel, line.machine), []).append(line)
    places = {line.machine for line in family.lines}
    shown = [
        Panel(
            label, machine if len(places) > 1 else "", panel_anchor(label, machine),
            panel_chart(label, lines, place, around, len(chosen), tags), [entry_of(line) for line in lines],
        )
        for (label, machine), lines in panels.items()
    ]  # fmt: skip
    changes = sorted(
        (c for line in family.lines for c in line.changes), key=lambda c: (place[c.likeliest], c.label), reverse=True
    )
    wheres = {line.where for line in family.lines}
    columns = family.lines[:TABLE_COLUMNS]
    return HistoryPage(
        name=family.name,
        title=family.title,
        slug=family.slug,
        benchmark=family.benchmark,
        overview=wide,
        overview_narrow=narrow,
        against=overview_charts(others, to_reference, place, around, title, reference) if others else None,
        sparks=_sparks(family.lines, ratios),
        panels=shown,
        lines=len(family.lines),
        combinations=len({(line.panel, line.name) for line in family.lines}),
        places=len(places),
        left_out=len(family.lines) - len(chosen),
        changes=changes,
        boundaries=[b for b in around.boundaries if b.where in wheres and b.sha in place],
        columns=[(line.short_name, line.full_name) for line in columns],
        rows=_table(columns, shas[-max(10, min(TABLE_ROWS, TABLE_CELLS // len(columns))) :], around),
        commits=len(place),
        range=" ".join(f"{around.short(sha)},{day_of(sha, commits)}" for sha in shas),
        thinned=any(panel.chart.thinned for panel in shown if panel.chart),
        better=better_of(family.lines),
        legend=legend,
    )


def values_csv(family: Family) -> str:
    """Return a family's values as CSV: a row per line and commit, without a value if it failed."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("benchmark", "where", "commit", "date", "value", "low", "high", "unit"))
    for line in family.lines:
        label, where = _cell(line.label), _cell(line.where)
        for point in line.points:
            known = ("" if each is None else repr(each) for each in (point.value, point.low, point.high))
            rows.writerow((label, where, point.sha, short_date(point.date_ms), *known, line.unit))
    return text.getvalue()


def _cell(text: str) -> str:
    """Return untrusted text, made safe: not a formula in a spreadsheet, and no control sequences for a terminal."""
    text = plain(text, _MOST_CELL)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def panel_anchor(label: str, machine: str) -> str:
    """Return the anchor of a chart."""
    return f"p-{hashlib.sha256(f'{label}|{machine}'.encode()).hexdigest()[:10]}"


def in_commit_order(series: Iterable[Series], commits: Mapping[str, CommitInfo]) -> list[Series]:
    """Return the series with their points in the order of `order_commits`, as required by all pages."""
    listed = list(series)
    ordered = order_commits(commits_of(line.points for line in listed), commits)
    return in_order(listed, {sha: at for at, sha in enumerate(ordered)})


def order_commits(dates: Mapping[str, int], commits: Mapping[str, CommitInfo]) -> list[str]:
    """Return the shas, oldest first: commits unknown to git by date, then the others in git's order."""
    return sorted(dates, key=lambda sha: (sha in commits, commits[sha].order if sha in commits else dates[sha], sha))


def _sparks(lines: Sequence[HistoryLine], ratios: Sequence[NDArray[np.float64]]) -> list[tuple[str, str]]:
    names = list(dict.fromkeys(line.name for line in lines))
    means = []
    for name in names:
        own = np.stack([ratio for line, ratio in zip(lines, ratios, strict=True) if line.name == name])
        means.append(geometric_means(own) if len(own) > 1 else own[0])
    kept = sorted({at for mean in means for at in thin(mean, max(8, SPARK_POINTS // len(names)))})
    rows = [mean[kept] for mean in means]
    return [(name, points) for name, points in zip(names, sparklines(rows, at=kept), strict=True) if points]


def entry_of(line: HistoryLine) -> LatestPoint:
    """Return the newest point of a line whose points are in commit order."""
    points, known = line.points, np.flatnonzero(np.isfinite(line.points.values)).tolist()
    newest = points[-1] if points else None
    first, last = (points[known[0]], points[known[-1]]) if known else (None, None)
    before = points[known[-2]] if len(known) > 1 else None
    direction = direction_of(last, before)
    current = newest is not None and newest == last
    return LatestPoint(
        name=line.name,
        colour=line.style,
        latest=quantity(last.value, line.unit) if last and current else _state(newest),
        interval=between(last.low, last.high, line.unit) if last and current else "",
        previous=percent(_ratio(last, before)) if current else "",
        first=percent(_ratio(last, first if first != last else None)) if current else "",
        direction=direction if current else "",
        worse=current and line.lower_is_better is not None and direction == ("up" if line.lower_is_better else "down"),
        anchor=line.anchor,
    )


def direction_of(last: Point | None, before: Point | None) -> str:
    """Return "up" or "down" if the intervals of two points do not overlap, else ""."""
    if last is None or before is None or last.low is None or last.high is None:
        return ""
    if before.low is None or before.high is None:
        return ""
    return "up" if last.low > before.high else "down" if last.high < before.low else ""


def _state(point: Point | None) -> str:
    if point is None:
        return "not measured"
    return "failed" if point.value is None else "n/a"


def _ratio(new: Point | None, old: Point | None) -> float | None:
    if new is None or old is None or new.value is None or not old.value:
        return None
    return against(new.value, old.value)


def _table(lines: Sequence[HistoryLine], shas: Sequence[str], around: Around) -> list[CommitRow]:
    commits = around.commits
    cells: dict[str, list[str]] = {sha: [""] * len(lines) for sha in shas}
    dates: dict[str, int] = {}
    for column, line in enumerate(lines):
        for point in line.points[-len(shas) :]:  # in commit order
            if point.sha in cells:
                dates[point.sha] = point.date_ms
                text = quantity(point.value, line.unit)
                cells[point.sha][column] = "failed" if point.value is None else text
    return [
        CommitRow(
            sha,
            f"at-{around.short(sha)}",
            short_date(dates[sha]),
            commits[sha].subject if sha in commits else "(not in this clone)",
            cells[sha],
        )
        for sha in reversed(shas)
        if sha in dates
    ]


def slug_of(name: str, taken: set[str]) -> str:
    """Return a unique file name for a benchmark or kernel, and add it to ``taken``."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:80] or "benchmark"
    if slug in taken:
        slug = f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    taken.add(slug)
    return slug


@dataclass(frozen=True, slots=True)
class KernelPage:
    """Everything ``kernel.html.j2`` shows.

    Attributes:
        name: The kernel and its variant.
        archs: Its architectures.
        panels: One chart per number, with one line per architecture.
        rows: (number, newest value by architecture).
        changes: Change points of its numbers, newest first.
        commits: Number of audited commits.
    """

    name: str
    slug: str
    archs: list[str]
    panels: list[Panel]
    rows: list[tuple[str, list[str]]]
    changes: list[LevelChange]
    commits: int
    legend: list[tuple[str, int]]

    @property
    def open(self) -> int:
        """Number of open regressions."""
        return sum(change.open for change in self.changes)


def kernel_pages(
    series: Sequence[Series], around: Around, changes: Mapping[tuple[str, str], list[LevelChange]]
) -> list[KernelPage]:
    """Lay out a page for each kernel in the store; results from several machines share one page.

    Args:
        series: Every history line; only the audit's lines are used.
        around: The site's commits; here colors stand for architectures.
        changes: Change points by label and place.
    """
    kernels: dict[str, dict[str, dict[str, HistoryLine]]] = {}
    for stored in series:
        metric = stored.benchmark.rpartition(".track_")[2]
        kernel, arch = stored.params.get("kernel", ""), stored.params.get("arch", "")
        if not stored.benchmark.startswith(AUDIT) or not kernel or not arch:
            continue
        where = where_of(stored)
        own = changes.get((stored.label, where), [])
        line = HistoryLine(
            metric, arch, stored.machine, stored.unit, stored.points, stored.label, where, own, lower_is_better(stored)
        )
        lines = kernels.setdefault(kernel, {}).setdefault(metric, {})
        # Exact numbers do not depend on the machine, so the longest history is used.
        if arch not in lines or len(lines[arch].points) < len(line.points):
            lines[arch] = line
    archs = sorted({arch for metrics in kernels.values() for lines in metrics.values() for arch in lines}, key=natural)
    own_colours = replace(around, backends=archs)
    taken: set[str] = set()
    return [
        _kernel_page(name, slug_of(name, taken), kernels[name], own_colours) for name in sorted(kernels, key=natural)
    ]


def _kernel_page(
    kernel: str, slug: str, metrics: Mapping[str, Mapping[str, HistoryLine]], around: Around
) -> KernelPage:
    ordered = sorted(metrics, key=lambda m: (list(TITLES).index(m) if m in TITLES else len(TITLES), m))
    lines = [line for metric in ordered for line in metrics[metric].values()]
    shas = order_commits(commits_of(line.points for line in lines), around.commits)
    place = CommitPlaces(shas)
    archs = [arch for arch in around.backends if any(arch in own for own in metrics.values())]
    tags = tag_places(shas, around)
    panels, rows = [], []
    for metric in ordered:
        title = TITLES.get(metric, metric.replace("_", " "))
        own = [
            replace(metrics[metric][arch], style=colour_of(arch, around.backends))
            for arch in archs if arch in metrics[metric]
        ]  # fmt: skip
        entries = {line.name: entry_of(line) for line in own}
        chart = panel_chart(title, own, place, around, len(lines), tags)
        panels.append(Panel(title, "", f"m-{metric}", chart, list(entries.values())))
        rows.append((title, [entries[arch].latest if arch in entries else "" for arch in archs]))
    changes = sorted(
        (change for line in lines for change in line.changes), key=lambda c: (place[c.likeliest], c.label), reverse=True
    )
    legend = [(arch, colour_of(arch, around.backends)) for arch in archs]
    return KernelPage(kernel, slug, archs, panels, rows, changes, len(shas), legend)
