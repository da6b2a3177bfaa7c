"""The page that compares two commits line by line, and holds the values of many for its script to compare others."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.pages.quantities import percent, quantity, short_date
from rocattn_profiling.site.history import direction_of
from rocattn_profiling.site.history_charts import is_positive

if TYPE_CHECKING:
    from markupsafe import Markup

    from rocattn_profiling.asv.series import Point
    from rocattn_profiling.site.commits import CommitInfo
    from rocattn_profiling.site.history_charts import Around, HistoryLine

VALUES = 300_000
"""Values that the page holds, about 15 bytes each: of as many commits as that allows."""
ROWS = 200
"""Lines that its table shows, the largest difference first."""


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One row: a line at both commits as text; ``tone`` is "good", "bad" or "" by whether the intervals are apart."""

    label: str
    where: str
    home: str
    before: str
    after: str
    change: str
    interval: str
    tone: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Everything ``compare.html.j2`` shows.

    Attributes:
        old, new: The compared commits, as they are named in addresses.
        old_name, new_name: The same for people: tag or hash, date and subject.
        rows: The lines that differ most, of ``lines``, of which ``apart`` lie outside the other commit's interval.
        commits: How many commits the page holds, of ``measured``.
        island: Their values as JSON, for the script.
    """

    old: str
    new: str
    old_name: str
    new_name: str
    rows: list[ComparedLine]
    lines: int
    apart: int
    commits: int
    measured: int
    island: Markup


def compare_page(
    lines: Sequence[HistoryLine], places: Mapping[tuple[str, str], str], around: Around
) -> ComparePage | None:
    """Compare the newest measured commit of the branch with the last release, or else with the one before it.

    Either has values of half its lines at least, if any has: at some commits other benchmarks were measured.

    Args:
        lines: Every line of the site.
        places: The page and anchor of each.
        around: The site's commits and tags.

    Returns:
        None where no two commits of the branch have values.
    """
    commits = around.commits
    values = Counter(p.sha for line in lines for p in line.points if is_positive(p) and p.sha in commits)
    measured = sorted((commits[sha] for sha in values if commits[sha].on_branch), key=lambda info: info.order)
    if len(measured) < 2:
        return None
    tagged = _tagged(measured, around)
    new = measured[-1].sha
    shas = ({p.sha for p in line.points if is_positive(p)} for line in lines)
    shared = Counter(sha for own in shas if new in own for sha in own)
    earlier = [*tagged, *(info.sha for info in measured[-2::-1])]
    old = next((sha for sha in earlier if sha != new and 2 * shared[sha] >= shared[new]), measured[-2].sha)
    held, room = {new, old}, VALUES - values[new] - values[old]
    for sha in dict.fromkeys([*tagged, *sorted(values, key=lambda sha: -commits[sha].order)]):
        if sha not in held and values[sha] <= room:
            held.add(sha)
            room -= values[sha]
    at = {sha: number for number, sha in enumerate(sorted(held, key=lambda sha: commits[sha].order))}
    found: list[tuple[float, ComparedLine]] = []
    packed = []
    wheres = {where: number for number, where in enumerate(sorted({line.where for line in lines}))}
    pages: dict[str, int] = {}
    for line in lines:
        points = {p.sha: p for p in line.points if p.sha in at and is_positive(p)}
        if not points:
            continue
        home, mark, anchor = places[line.label, line.where].partition("#")
        lower = 0 if line.lower_is_better is None else 1 if line.lower_is_better else -1
        texts = " ".join(_packed(points.get(sha)) for sha in at)
        page = pages.setdefault(home, len(pages))
        packed.append([line.label, wheres[line.where], line.unit, lower, page, mark + anchor, texts])
        if old in points and new in points:
            size = abs(math.log(points[new].value / points[old].value))  # type: ignore[operator] # both are positive
            found.append((size, _row(line, home + mark + anchor, points[old], points[new])))
    found.sort(key=lambda one: -one[0])
    told = {sha: _told(commits[sha], around) for sha in at}
    names = [f"{tag or sha[:8]}, {day} {subject}" for sha, day, tag, subject in (told[old], told[new])]
    return ComparePage(
        old=around.short(old), new=around.short(new), old_name=names[0], new_name=names[1],
        rows=[row for _, row in found[:ROWS]], lines=len(found),
        apart=sum(bool(row.tone) for _, row in found), commits=len(at), measured=len(values),
        island=_island({"commits": list(told.values()), "places": list(wheres), "pages": list(pages), "lines": packed}),
    )  # fmt: skip


def _tagged(measured: Sequence[CommitInfo], around: Around) -> list[str]:
    """Return the measured commits at tags or last before them, the newest first; later tags have none."""
    orders = [info.order for info in measured]
    tags = [around.commits[sha].order for _, sha in around.tags]
    before = sorted({bisect_right(orders, order) for order in tags if order <= orders[-1]}, reverse=True)
    return [measured[number - 1].sha for number in before if number]


def _packed(point: Point | None) -> str:
    """Return a point as the script reads it: 5 digits, and how far its interval reaches to each side, in 0.01 %."""
    if point is None or point.value is None:
        return ""
    if point.low is None or point.high is None:
        return f"{point.value:.5g}"
    below, above = (round(10_000 * abs(end / point.value - 1)) for end in (point.low, point.high))
    return f"{point.value:.5g}:{below}:{above}"


def _row(line: HistoryLine, home: str, old: Point, new: Point) -> ComparedLine:
    ratio = (new.value or 0.0) / (old.value or 1.0)
    interval = ""
    if old.low and old.high and new.low and new.high:
        interval = f"{percent(new.low / old.high)} to {percent(new.high / old.low)}"
    moved, tone = direction_of(new, old), ""
    if moved and line.lower_is_better is not None:
        tone = "bad" if (moved == "up") == line.lower_is_better else "good"
    before, after = quantity(old.value, line.unit), quantity(new.value, line.unit)
    return ComparedLine(line.label, line.where, home, before, after, percent(ratio), interval, tone)


def _told(info: CommitInfo, around: Around) -> list[str]:
    tags: Iterable[str] = (name for name, sha in around.tags if sha == info.sha)
    return [around.short(info.sha), short_date(info.date_ms), next(iter(tags), ""), info.subject[:80]]


def _island(data: object) -> Markup:
    from markupsafe import Markup

    # In a script element only "<" could end it; a lone surrogate is escaped, too.
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))  # noqa: S704 - nothing ends the element
