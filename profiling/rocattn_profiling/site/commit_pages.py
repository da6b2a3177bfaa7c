"""A page for each measured commit: its changes, and the differences in machine code that may explain them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocattn_profiling.pages.quantities import natural, percent, quantity
from rocattn_profiling.site.changes import AUDIT, Boundary, LevelChange, lower_is_better, where_of
from rocattn_profiling.site.commits import CommitInfo, History
from rocattn_profiling.site.history import direction_of

if TYPE_CHECKING:
    from rocattn_profiling.asv.series import Point, Series

HINTS = 10
"""Number of differences from the commit before that a page lists, largest first."""
LEAST = math.log(1.02)
"""Smaller differences between single runs are not listed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that differs from that of the previously measured commit, as text; ``tone`` is "good", "bad" or ""."""

    label: str
    where: str
    before: str
    after: str
    change: str
    rose: bool
    tone: str


@dataclass(slots=True)
class CommitPage:
    """Everything ``commit.html.j2`` shows.

    Attributes:
        commit: The commit.
        path: Of the page; ``previous`` and ``following`` are those of the commits measured before and after.
        measured: Number of results of the commit.
        brought: Change points whose likeliest commit it is; ``perhaps`` those whose interval includes it.
        machine_code: Differences in the audit's numbers, which are exact.
        hints: Results outside the interval of the commit before; their runs may be days apart.
        failed: Benchmarks that ran on the commit before and no longer do.
        boundaries: Changes of machine, driver or compiler from this commit on.
        largest: The heap that ``hints`` are taken from.
    """

    commit: CommitInfo
    path: str
    previous: str = ""
    following: str = ""
    measured: int = 0
    brought: list[LevelChange] = field(default_factory=list)
    perhaps: list[LevelChange] = field(default_factory=list)
    machine_code: list[Difference] = field(default_factory=list)
    hints: list[Difference] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    largest: list[tuple[float, int, Difference]] = field(default_factory=list)

    @property
    def quiet(self) -> bool:
        """Whether nothing changed."""
        return not (self.brought or self.machine_code or self.hints or self.failed)


def commit_paths(series: Iterable[Series], commits: Mapping[str, CommitInfo]) -> dict[str, str]:
    """Return the page of each measured commit that git knows, named by its short hash where that is unique."""
    shas = {point.sha for line in series for point in line.points} & commits.keys()
    short: dict[str, list[str]] = {}
    for sha in shas:
        short.setdefault(sha[:8], []).append(sha)
    return {sha: f"commits/{sha[:8] if len(short[sha[:8]]) == 1 else sha}.html" for sha in shas}


def commit_pages(
    series: Sequence[Series], history: History, changes: Sequence[LevelChange], bounds: Sequence[Boundary],
    paths: Mapping[str, str],
) -> list[CommitPage]:  # fmt: skip
    """Lay out the pages of all measured commits, newest first.

    Args:
        series: Every history line, its points in commit order.
        history: The repository's commits.
        changes: All change points.
        bounds: Where something other than the code changed.
        paths: Of the pages, by commit.
    """
    commits = history.commits
    pages = {sha: CommitPage(commits[sha], path) for sha, path in paths.items()}
    branch = [page for _, page in sorted((p.commit.order, p) for p in pages.values() if p.commit.on_branch)]
    for before, after in itertools.pairwise(branch):
        before.following, after.previous = after.path, before.path
    for change in changes:
        for sha in change.commits:
            if sha in pages:
                (pages[sha].brought if sha == change.likeliest else pages[sha].perhaps).append(change)
    for boundary in bounds:
        if boundary.sha in pages:
            pages[boundary.sha].boundaries.append(boundary)
    for line in series:
        _add_series(line, pages)
    for page in pages.values():
        page.hints = [move for _, _, move in sorted(page.largest, reverse=True)]
        page.machine_code.sort(key=lambda move: (natural(move.label), natural(move.where)))
    return sorted(pages.values(), key=lambda page: page.commit.order, reverse=True)


def _add_series(line: Series, pages: Mapping[str, CommitPage]) -> None:
    """Add the differences between one line's successive points to the pages."""
    audited = line.benchmark.startswith(AUDIT)
    for before, point in _steps(line, pages):
        page = pages[point.sha]
        page.measured += 1
        old, new = before.value if before else None, point.value
        if before is None or old is None:
            continue
        if new is None:
            page.failed.append((line.label, where_of(line)))
        elif new == old or math.isnan(new) or math.isnan(old):
            continue
        elif audited:
            page.machine_code.append(_difference(line, old, new))
        elif new > 0 and old > 0 and direction_of(point, before):
            size = abs(math.log(new / old))
            if size >= LEAST and (len(page.largest) < HINTS or size > page.largest[0][0]):
                heapq.heappush(page.largest, (size, page.measured, _difference(line, old, new)))
                if len(page.largest) > HINTS:
                    heapq.heappop(page.largest)


def _steps(series: Series, pages: Mapping[str, CommitPage]) -> Iterable[tuple[Point | None, Point]]:
    """Yield the points of a line in commit order, each after its predecessor on the branch (None for the first)."""
    before: Point | None = None
    for point in series.points:
        if point.sha not in pages:
            continue
        on_branch = pages[point.sha].commit.on_branch
        yield (before if on_branch else None), point
        if on_branch:
            before = point


def _difference(series: Series, old: float, new: float) -> Difference:
    audited = series.benchmark.startswith(AUDIT)
    metric = series.benchmark.rsplit(".track_", 1)[-1].replace("_", " ")
    label = f"{series.params.get('kernel', '')}: {metric}" if audited else series.label
    where = series.params.get("arch", "") if audited else where_of(series)
    lower = lower_is_better(series)
    tone = "" if lower is None else "bad" if (new > old) == lower else "good"
    change = percent(new / old) if old else ""
    return Difference(label, where, quantity(old, series.unit), quantity(new, series.unit), change, new > old, tone)
