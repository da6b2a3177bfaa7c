"""What changed in the history: the change points of every series, with causes, states, boundaries and a feed."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from xml.etree import ElementTree as ET

import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import PLACE_KEYS, Series, in_order, is_rate, once_for_commits
from rocattn_profiling.asv.store import read_config
from rocattn_profiling.base.forks import forked
from rocattn_profiling.pages.quantities import percent, utc
from rocattn_profiling.pages.render import count
from rocattn_profiling.revisions.git import RevisionError, resolve
from rocattn_profiling.site.changepoints import (
    CONFIRMED,
    LEVEL,
    SHORTEST,
    ChangePoint,
    CommitChange,
    changes_of,
    short_levels,
    unsearched,
)  # fmt: skip
from rocattn_profiling.site.commits import History
from rocattn_profiling.site.model import LIMIT, OPEN, Boundary, Changes, CommitCause, LevelChange

if TYPE_CHECKING:
    from rocattn_profiling.asv.store import AsvStore
    from rocattn_profiling.site.changepoints import ShortLevel, Unsearched

    Waived = Callable[[str, str, str, float], str]
    Accepted = Callable[[str, int], str]
    LimitOf = Callable[[str], float]
    Excused = Callable[[Sequence[tuple[str, str]]], Sequence[str]]
    Runner = Callable[..., Iterable["Searched"]]

_Value = TypeVar("_Value")
MANY_LINES, MANY_SHARE, MANY_SUITES = 20, 0.1, 3
"""Lines, their share of a machine's lines, and their suites from which on a simultaneous move may be the machine's."""
SHARED = 4
"""Number of lines that confirm a level too short to be confirmed by one."""
AUDIT = "bench_audit."
"""Prefix of benchmarks that track properties of machine code: exact numbers, by architecture and kernel."""
NEITHER = (".track_sgprs", ".track_lds_bytes", ".track_code_bytes")
"""Numbers of the audit that are neither good nor bad: their cost shows in waves and cycles."""
_THRESHOLDS, _FIRST = "regressions_thresholds", "regressions_first_commits"
_LINES = 16  # series per task
ATOM = "http://www.w3.org/2005/Atom"
ENTRIES = 50
ENTRY_LINES = 20
"""Lines listed per entry."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Searched(NamedTuple):
    """The result of searching one series alone: changes, levels too short to be changes, and rises from zero.

    ``left_out`` says why all or part of it was not searched.
    """

    changes: list[CommitChange]
    short: list[ShortLevel]
    left_out: Unsearched | None
    rises: list[tuple[CommitChange, float]]


def where_of(series: Series) -> str:
    """Return where a series was measured: its machine and environment."""
    return f"{series.machine}, {series.env_name}"


def nothing_waived(_label: str, _metric: str, _arch: str, _ratio: float) -> str:
    """Accept no regression."""
    return ""


def nothing_accepted(_label: str, _order: int) -> str:
    """Accept no regression."""
    return ""


def usual_limit(_label: str) -> float:
    """Return `LIMIT`."""
    return LIMIT


def nothing_excused(ranges: Sequence[tuple[str, str]]) -> list[str]:
    """Excuse no commit."""
    return [""] * len(ranges)


def find_changes(
    series: Iterable[Series], history: History, waived: Waived = nothing_waived, run: Runner = map,
    accepted: Accepted = nothing_accepted, limit_of: LimitOf = usual_limit, excused: Excused = nothing_excused,
) -> Changes:  # fmt: skip
    """Find the changes of every series.

    Args:
        series: The store's series.
        history: The repository's commits, which determine the order of points; other branches are left out.
        waived: Returns why a regression is accepted ("" if it is not), given the gate's label, metric and architecture
            and its size: the new cost over the old.
        run: Calls a function with each series and its arguments, like `map`, possibly in other processes.
        accepted: Returns why asv's configuration ignores a regression, given its label and the order of its most likely
            commit.
        limit_of: Returns the relative change of a label above which it is announced.
        excused: Returns why each range of commits, the first excluded, cannot have changed a result; "" if it can.
    """
    changes = Changes()
    bounds: dict[str, list[Boundary]] = {}
    order = {sha: info.order for sha, info in history.commits.items() if info.on_branch}
    lined = in_order(series, order)
    starts: list[set[str]] = []
    begun: dict[tuple[int, str], set[str]] = {}  # cache: many series share their commits
    for line in lined:
        where = where_of(line)
        if where not in bounds:
            bounds[where] = boundaries(line, order)
            changes.boundaries += bounds[where]
        key = (id(line.points.shas), where)
        if key not in begun:
            begun[key] = _starts(line.points.shas, bounds[where], order)
        starts.append(begun[key])
    found = list(run(_search, lined, starts))
    shared = _shared(lined, [own.short for own in found])
    columns = zip(*((lined[n], starts[n], found[n], levels) for n, levels in shared.items()), strict=True)
    for number, both in zip(shared, run(_with_shared, *columns) if shared else (), strict=True):
        found[number] = both
    places = once_for_commits(lambda points: {sha: index for index, sha in enumerate(points.shas)})
    for line, (moves, _, left_out, rises) in zip(lined, found, strict=True):
        changes.few += left_out == "few"
        changes.zero += [(line.label, where_of(line))] if left_out == "zero" and not rises else []
        if not (moves or rises):
            continue
        lower, limit = lower_is_better(line), limit_of(line.label)
        at = places(line.points)
        for move, rise in [*((move, None) for move in moves), *rises]:
            cost = max(move.change.ratio, 1 / move.change.ratio)
            worse = (move.change.ratio > 1) == lower
            reason = worse and (waived(*gate_names(line), cost) or accepted(line.label, order[move.likeliest]))
            before = np.flatnonzero(line.points.values[: at[move.commits[0]]] != math.inf)[-1:].tolist()
            since = line.points.shas[before[0]] if before else ""
            changes.listed.append(
                LevelChange(
                    line.label, line.benchmark, where_of(line), line.unit, move.change, move.commits, move.likeliest,
                    line.points.dates_ms[at[move.likeliest]], lower, reason or "", since, limit, rise,
                )
            )  # fmt: skip
    changes.causes = _judged(_causes(changes.listed, order), lined, order, excused)
    changes.listed = [change for cause in changes.causes for change in cause.changes]
    changes.listed.sort(key=lambda change: (order[change.likeliest], change.label), reverse=True)
    changes.boundaries.sort(key=lambda boundary: order[boundary.sha], reverse=True)
    return changes


def _shared(lines: Sequence[Series], short: Sequence[list[ShortLevel]]) -> dict[int, list[ShortLevel]]:
    """Return the short levels that too many lines of one place have at the same commits for noise to explain.

    Two to four far points on one line may be an accident; the same points on several lines are not.
    """
    beside = Counter(where_of(line) for line in lines)
    points: Counter[str] = Counter()
    found: dict[tuple[str, ShortLevel], list[int]] = {}
    for at, (line, levels) in enumerate(zip(lines, short, strict=True)):
        points[where_of(line)] += len(line.points)
        for level in levels:
            found.setdefault((where_of(line), level), []).append(at)
    total: Counter[str] = Counter()
    for (where, _), own in found.items():
        total[where] += len(own)
    shared: dict[int, list[ShortLevel]] = {}
    for (where, level), own in found.items():
        expected = beside[where] * total[where] / points[where]
        # As unlikely by accident, at any position, as a false change in the test of one line.
        if len(own) >= SHARED and _tail(len(own), expected) <= LEVEL * beside[where] / points[where]:
            for at in own:
                shared.setdefault(at, []).append(level)
    return shared


def _tail(least: int, expected: float) -> float:
    """Return the probability of at least ``least`` rare events, given the expected number (Poisson)."""
    term, fewer = math.exp(-expected), 0.0
    for number in range(least):
        fewer += term
        term *= expected / (number + 1)
    return max(0.0, 1 - fewer)


def from_zero(line: Series, starts: Collection[str]) -> list[tuple[CommitChange, float]]:
    """Return where a line of zeros rose, which has no ratio, and to which level; one or two outliers do not count."""
    known = [(at, value) for at, value in enumerate(line.points.values.tolist()) if math.isfinite(value)]
    if any(value < 0 for _, value in known):
        return []
    edges = [at for at, sha in enumerate(line.points.shas) if sha in starts]
    runs: list[tuple[int, bool, list[tuple[int, float]]]] = []  # the stretch, whether above zero, the values
    for (stretch, above), group in itertools.groupby(known, lambda one: (bisect_right(edges, one[0]), one[1] > 0)):
        own = list(group)
        if len(own) >= SHORTEST and runs and runs[-1][:2] == (stretch, above):
            runs[-1][2].extend(own)
        elif len(own) >= SHORTEST:
            runs.append((stretch, above, own))
    rises = []
    for number, ((stretch, above, old), (now, up, new)) in enumerate(itertools.pairwise(runs), 2):
        if stretch != now or above or not up:
            continue
        first, last = old[-1][0] + 1, new[0][0]
        back = number < len(runs) and runs[number][0] == now
        point = ChangePoint(
            index=last, first=first, last=last, ratio=math.inf, ratio_low=math.inf, ratio_high=math.inf,
            state="recovered" if back else "confirmed" if len(new) >= CONFIRMED else "new", points=len(new),
        )  # fmt: skip
        commits = line.points.shas[first : last + 1]
        move = CommitChange(change=point, commits=commits, likeliest=commits[-1])
        rises.append((move, statistics.median(value for _, value in new)))
    return rises


def _causes(changes: Sequence[LevelChange], order: Mapping[str, int]) -> list[CommitCause]:
    """Group changes by commit, starting with the most likely commit of the most lines.

    A change in the same direction whose interval contains that commit belongs to it, unless its line already has one.
    """
    votes = Counter((change.likeliest, change.point.ratio > 1) for change in changes)
    suspected: dict[tuple[str, bool], list[int]] = {}
    for at, change in enumerate(changes):
        for sha in change.commits:
            if (key := (sha, change.point.ratio > 1)) in votes:
                suspected.setdefault(key, []).append(at)
    left = set(range(len(changes)))
    found: dict[str, list[LevelChange]] = {}
    for sha, rose in sorted(votes, key=lambda key: (-votes[key], order[key[0]], key[1])):
        own = [at for at in suspected[sha, rose] if at in left]
        named = [at for at in own if changes[at].likeliest == sha]
        if not named:
            continue
        lines, date_ms = set(), changes[named[0]].date_ms
        for at in sorted(own, key=lambda at: changes[at].likeliest != sha):
            line = (changes[at].label, changes[at].where)
            if line not in lines:
                lines.add(line)
                left.discard(at)
                found.setdefault(sha, []).append(replace(changes[at], likeliest=sha, date_ms=date_ms))
    return [
        CommitCause(sha, own[0].date_ms, sorted(own, key=lambda change: (-change.weight, change.label, change.where)))
        for sha, own in found.items()
    ]


def _judged(
    causes: Sequence[CommitCause], series: Sequence[Series], order: Mapping[str, int], excused: Excused
) -> list[CommitCause]:  # fmt: skip
    """Separate machine and environment events from commits as causes, and return all, largest first.

    A commit that touched nothing that is built or measured cannot be at fault. One that touched code may be, even if
    many unrelated lines moved: that is noted with the regression, but does not close it.
    """
    announced = [any(change.state in OPEN for change in cause.changes) for cause in causes]
    ranges = [_range(cause, order) for cause in causes]
    reasons = iter(excused([own for own, due in zip(ranges, announced, strict=True) if due]))
    ends: dict[str, tuple[list[int], list[int]]] = {}  # per machine: where its lines have first and last values
    for line in series:
        worked = np.flatnonzero(line.points.values != math.inf)
        for both, at in zip(ends.setdefault(line.machine, ([], [])), (worked[:1], worked[-1:]), strict=True):
            both += [order[line.points.shas[place]] for place in at]
    ends = {machine: (sorted(firsts), sorted(lasts)) for machine, (firsts, lasts) in ends.items()}
    judged = []
    for cause, due, (since, end) in zip(causes, announced, ranges, strict=True):
        event = next(reasons) if due else ""
        crowd = _crowd(cause, order[cause.sha], ends) if due else ""
        changes = [replace(change, event=event) for change in cause.changes] if event else cause.changes
        text = f"{event}; {crowd}" if event and crowd else event
        among = order[end] - order[since] if since else 1
        doubt = "" if event else crowd
        judged.append(replace(cause, changes=changes, since=since, among=among, event=text, doubt=doubt))
    return sorted(judged, key=lambda cause: (-cause.changes[0].weight, -len(cause.changes), -order[cause.sha]))


def _range(cause: CommitCause, order: Mapping[str, int]) -> tuple[str, str]:
    """Return the commit before a cause's earliest suspect, and its last suspect, each by nine tenths of its lines."""
    middle = order[cause.sha]
    least = (len(cause.changes) - 1) // 10
    before = sorted((order[change.since], change.since) for change in cause.changes if change.since)
    after = sorted((max(order[change.commits[-1]], middle), change.commits[-1]) for change in cause.changes)
    early = [one for one in before if one[0] < middle]
    start = early[max(len(early) - 1 - least, 0)][1] if early else ""
    end = after[min(least, len(after) - 1)]
    return start, end[1] if end[0] > middle else cause.sha


def suite_of(benchmark: str) -> str:
    """Return the module of a benchmark: its name without method and class."""
    module = benchmark.rpartition(".")[0]
    outer, _, last = module.rpartition(".")
    return outer if outer and last[:1].isupper() else module


def _crowd(cause: CommitCause, place: int, ends: Mapping[str, tuple[list[int], list[int]]]) -> str:
    """Return how many unrelated lines of one machine moved at once, in words; "" if not many."""
    for machine, (firsts, lasts) in ends.items():
        own = [change for change in cause.changes if change.where.startswith(f"{machine}, ")]
        suites = len({suite_of(change.benchmark) for change in own})
        beside = bisect_left(firsts, place) - bisect_left(lasts, place)
        if len(own) >= max(MANY_LINES, MANY_SHARE * beside) and suites >= MANY_SUITES:
            return f"{len(own)} of {beside} lines on {machine}, in {suites} suites, moved at once"
    return ""


def rules_of_asv(store: AsvStore, history: History, note: Callable[[str], None]) -> tuple[Accepted, LimitOf]:
    """Return functions for why a repository's ``asv.conf.json`` accepts a regression, and for its limits.

    Args:
        store: The store, with the path of the configuration.
        history: The repository's commits.
        note: Called with one line for each entry that cannot be applied.
    """
    if store.config_path is None:
        return nothing_accepted, usual_limit
    try:
        config = vars(read_config(store.config_path))
    except RocattnError as error:
        note(f"{_THRESHOLDS} and {_FIRST} are ignored: {error}")
        return nothing_accepted, usual_limit
    thresholds = dict(_entries(config, _THRESHOLDS, note, float))
    begins = dict(_entries(config, _FIRST, note, lambda name: _first_of(store, history, name)))

    def accepted(label: str, order: int) -> str:
        for entry, (name, first) in begins.items():
            if entry.match(label) and (first is None or order < first):
                return f"{_FIRST}: {'not watched' if first is None else f'before {name}'}"
        return ""

    def limit_of(label: str) -> float:
        return max((limit for entry, limit in thresholds.items() if entry.match(label)), default=LIMIT)

    return accepted, limit_of


def _entries(
    config: dict[str, Any], key: str, note: Callable[[str], None], read: Callable[[Any], _Value]
) -> list[tuple[re.Pattern[str], _Value]]:
    """Return the entries of one setting by pattern; note those that cannot be read."""
    table, entries = config.get(key) or {}, []
    for pattern, value in table.items() if isinstance(table, dict) else ():
        try:
            entries.append((re.compile(pattern), read(value)))
        except (re.error, ValueError, TypeError, RevisionError) as error:
            note(f"asv.conf.json: {key} of {pattern!r} is ignored: {error}")
    return entries


def _first_of(store: AsvStore, history: History, name: str | None) -> tuple[str, int | None]:
    """Return a first commit's name and its order in the history; None without a commit: nothing is watched.

    Raises:
        RevisionError: The repository does not have it.
        ValueError: It is on no branch of this clone.
    """
    if name is None:
        return "", None
    info = history.commits.get(resolve(store.repo_root, name).sha)
    if info is None:
        raise ValueError(f"{name} is not in the history of this clone")
    return name, info.order


def boundaries(series: Series, order: Mapping[str, int]) -> list[Boundary]:
    """Return where the machine, driver or compiler of a series changed, in commit order.

    A fact missing from a result file does not count as a change: older files lack facts that newer tools record.
    """
    known: dict[str, str] = {}
    changed = []
    for sha in sorted((sha for sha in series.places if sha in order), key=lambda sha: order[sha]):
        facts = series.places[sha]
        moved = [key for key in PLACE_KEYS if key in facts and known.get(key, facts[key]) != facts[key]]
        if moved:
            text = "; ".join(f"{key} {known[key]} -> {facts[key]}" for key in moved)
            changed.append(Boundary(sha, where_of(series), text))
        known |= facts
    return changed


def _starts(shas: Sequence[str], bounds: Sequence[Boundary], order: Mapping[str, int]) -> set[str]:
    """Return the first measured commit at or after each boundary: a series may have no point at the boundary."""
    starts = set()
    for boundary in bounds:
        later = (sha for sha in shas if order[sha] >= order[boundary.sha])
        starts |= {next(later, "")} - {""}
    return starts


def lower_is_better(series: Series) -> bool | None:
    """Return whether lower values of a series are better; None for numbers that are neither good nor bad."""
    return None if series.benchmark.endswith(NEITHER) else not is_rate(series.unit)


def gate_names(series: Series) -> tuple[str, str, str]:
    """Return the label, metric and architecture that the gate, and thus a waiver, uses for a series."""
    if series.benchmark.startswith(AUDIT):
        return series.params.get("kernel", ""), "audit", series.params.get("arch", "")
    method = series.benchmark.rsplit(".", 1)[-1]
    metric = next((kind for kind in ("peakmem", "mem", "track") if method.startswith(f"{kind}_")), "time")
    return series.label, metric, ""


def in_processes(work: Callable[..., Searched], *columns: Sequence[Any], jobs: int) -> Iterator[Searched]:
    """Do the same as `map`, in ``jobs`` processes.

    Raises:
        RocattnError: A process was killed.
    """
    many = len(columns[0])

    def search(own: range) -> list[Searched]:
        return [work(*(column[at] for column in columns)) for at in own]

    tasks = [range(at, min(at + _LINES, many)) for at in range(0, many, _LINES)]
    for found in forked(search, tasks, jobs):
        yield from found


def _search(series: Series, starts: Collection[str]) -> Searched:
    """Search a series on its own: its points are in commit order, and boundaries begin at ``starts``."""
    left_out = unsearched(series, starts)
    rises = from_zero(series, starts) if left_out == "zero" else []
    return Searched(changes_of(series, starts), short_levels(series, starts), left_out, rises)


def _with_shared(
    series: Series, starts: Collection[str], alone: Searched, levels: Collection[ShortLevel]
) -> Searched:  # fmt: skip
    """Add short levels that other series confirm to the result of one series."""
    return alone._replace(changes=changes_of(series, starts, shared=levels, found=alone.changes))


def atom(
    causes: Sequence[CommitCause], history: History, links: Mapping[str, str], made_ms: int, url: str, project: str
) -> str:
    """Return an Atom feed of the newest commits that made lines worse, with recovered and waived ones marked.

    Args:
        causes: Regressions that were announced at some time, by commit.
        history: The repository's commits.
        links: The page of each commit, by its hash, relative to the feed.
        made_ms: When the site was made; the date of a feed without entries.
        url: Address of the site; without it, links are relative to the feed.
        project: Name of the project.
    """
    order = {cause.sha: history.commits[cause.sha].order for cause in causes}
    newest = sorted(causes, key=lambda cause: -order[cause.sha])[:ENTRIES]
    oldest = min(history.commits.values(), key=lambda info: info.order, default=None)
    base = f"{url.rstrip('/')}/" if url else ""
    ET.register_namespace("", ATOM)
    feed = ET.Element(f"{{{ATOM}}}feed")
    # From the repository's first commit, so that every build, anywhere, has the same feed id.
    _add(feed, "id", _urn("feed", oldest.sha if oldest else ""))
    _add(feed, "title", f"{project}: regressions on {history.branch}")
    _add(feed, "updated", _moment(max((_commit_date(cause, history) for cause in newest), default=made_ms)))
    author = ET.SubElement(feed, f"{{{ATOM}}}author")
    _add(author, "name", "rocattn")
    _link(feed, f"{base}feed.xml", "self", "application/atom+xml")
    _link(feed, f"{base}changes.html", "alternate", "text/html")
    for cause in newest:
        entry = ET.SubElement(feed, f"{{{ATOM}}}entry")
        states = ", ".join(change.state for change in cause.states)
        _add(entry, "id", _urn("commit", cause.sha))
        lines = count(len(cause.changes), "line")
        _add(entry, "title", f"{cause.sha[:8]} {history.commits[cause.sha].subject}: {lines} {cause.sizes} ({states})")
        _add(entry, "updated", _moment(_commit_date(cause, history)))
        _link(entry, base + links.get(cause.sha, "changes.html"), "alternate", "text/html")
        more = len(cause.changes) - ENTRY_LINES
        listed = [_line(change) for change in cause.changes[:ENTRY_LINES]] + ([f"and {more} more"] if more > 0 else [])
        _add(
            entry, "summary", "\n".join([*([f"Perhaps not its fault: {cause.doubt}."] if cause.doubt else []), *listed])
        )
    ET.indent(feed)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(feed, encoding="unicode")}\n'


def _line(change: LevelChange) -> str:
    point = change.point
    span = f" (95 %: {percent(point.ratio_low)} to {percent(point.ratio_high)})" if change.rise is None else ""
    others = f"; or from another of {len(change.commits)} commits" if len(change.commits) > 1 else ""
    why = f"; accepted: {change.waived}" if change.waived else ""
    state = f"{change.state} after {count(point.points, 'point')}"
    return f"{change.label}: {change.size}{span} on {change.where}, {state}{others}{why}"


def _commit_date(cause: CommitCause, history: History) -> int:
    date_ms = history.commits[cause.sha].date_ms
    return date_ms if date_ms > 0 else cause.date_ms


def _urn(kind: str, name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'rocattn:{kind}:{name}')}"


def _moment(date_ms: int) -> str:
    return utc(date_ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(parent: ET.Element, name: str, text: str) -> None:
    # Subjects and labels may contain any character: those not allowed in XML are replaced.
    ET.SubElement(parent, f"{{{ATOM}}}{name}").text = _NOT_XML.sub("�", text)


def _link(parent: ET.Element, href: str, rel: str, kind: str) -> None:
    ET.SubElement(parent, f"{{{ATOM}}}link", {"href": href, "rel": rel, "type": kind})
