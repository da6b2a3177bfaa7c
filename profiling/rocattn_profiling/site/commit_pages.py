"""A page for each measured commit: what moved with it, and what its machine code says about why."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocattn_profiling.pages.quantities import natural, percent, quantity
from rocattn_profiling.site.changes import AUDIT, lower_is_better, where_of
from rocattn_profiling.site.history import direction_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocattn_profiling.asv.series import Point, Series
    from rocattn_profiling.site.changes import Boundary, LevelChange
    from rocattn_profiling.site.commits import CommitInfo, History

HINTS = 10
"""Differences from the commit before that a page lists, largest first."""
LEAST = math.log(1.02)
"""Smaller differences between single runs are not worth a row."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One number that differs from that of the commit measured before, as text; ``tone`` is "good", "bad" or ""."""

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
        commit: What git says.
        path: Of the page; ``previous`` and ``following`` are those of the commits measured before and after.
        measured: How many results the commit has.
        brought: Change points for which it is the likeliest commit; ``perhaps`` those that it may have brought.
        machine_code: Numbers of the audit that differ: exact.
        hints: Results that left the interval of the commit before: runs of different days.
        failed: What ran on the commit before and does not any more.
        boundaries: What else is different from this commit on.
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
        """Whether nothing at all moved."""
        return not (self.brought or self.machine_code or self.hints or self.failed)


def commit_paths(series: Iterable[Series], commits: Mapping[str, CommitInfo]) -> dict[str, str]:
    """Return the page of each measured commit that git knows; file names are short hashes where those are unlike."""
    shas = {point.sha for one in series for point in one.points} & commits.keys()
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
    line = [page for _, page in sorted((p.commit.order, p) for p in pages.values() if p.commit.on_branch)]
    for before, after in itertools.pairwise(line):
        before.following, after.previous = after.path, before.path
    for change in changes:
        for sha in change.commits:
            if sha in pages:
                (pages[sha].brought if sha == change.likeliest else pages[sha].perhaps).append(change)
    for boundary in bounds:
        if boundary.sha in pages:
            pages[boundary.sha].boundaries.append(boundary)
    for one in series:
        _add_series(one, pages)
    for page in pages.values():
        page.hints = [move for _, _, move in sorted(page.largest, reverse=True)]
        page.machine_code.sort(key=lambda move: (natural(move.label), natural(move.where)))
    return sorted(pages.values(), key=lambda page: page.commit.order, reverse=True)


def _add_series(one: Series, pages: Mapping[str, CommitPage]) -> None:
    """Tell the pages what one line's points say against the points before them."""
    audited = one.benchmark.startswith(AUDIT)
    for before, point in _steps(one, pages):
        page = pages[point.sha]
        page.measured += 1
        old, new = before.value if before else None, point.value
        if before is None or old is None:
            continue
        if new is None:
            page.failed.append((one.label, where_of(one)))
        elif new == old or math.isnan(new) or math.isnan(old):
            continue
        elif audited:
            page.machine_code.append(_move(one, old, new))
        elif new > 0 and old > 0 and direction_of(point, before):
            size = abs(math.log(new / old))
            if size >= LEAST and (len(page.largest) < HINTS or size > page.largest[0][0]):
                heapq.heappush(page.largest, (size, page.measured, _move(one, old, new)))
                if len(page.largest) > HINTS:
                    heapq.heappop(page.largest)


def _steps(series: Series, pages: Mapping[str, CommitPage]) -> Iterable[tuple[Point | None, Point]]:
    """Go through a line in commit order: the point before on the branch (None for the first), and the point."""
    before: Point | None = None
    for point in series.points:
        if point.sha not in pages:
            continue
        on_branch = pages[point.sha].commit.on_branch
        yield (before if on_branch else None), point
        if on_branch:
            before = point


def _move(series: Series, old: float, new: float) -> Difference:
    audited = series.benchmark.startswith(AUDIT)
    metric = series.benchmark.rsplit(".track_", 1)[-1].replace("_", " ")
    label = f"{series.params.get('kernel', '')}: {metric}" if audited else series.label
    where = series.params.get("arch", "") if audited else where_of(series)
    lower = lower_is_better(series)
    tone = "" if lower is None else "bad" if (new > old) == lower else "good"
    change = percent(new / old) if old else ""
    return Difference(label, where, quantity(old, series.unit), quantity(new, series.unit), change, new > old, tone)
