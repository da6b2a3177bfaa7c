"""What changed in the history: change points of every series with commits, states and boundaries, and their feed."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar
from xml.etree import ElementTree as ET

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import PLACE_KEYS, Point, Series, is_rate
from rocattn_profiling.asv.store import read_config
from rocattn_profiling.pages.quantities import percent
from rocattn_profiling.revisions.git import RevisionError, resolve
from rocattn_profiling.site.changepoints import FEWEST, ChangePoint, CommitChange, unsearched
from rocattn_profiling.site.commits import History

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rocattn_profiling.asv.store import AsvStore

    Waived = Callable[[str, str, str, float], str]
    Accepted = Callable[[str, float, int], str]
    Finder = Callable[[Series, set[str]], Sequence[CommitChange]]
    Runner = Callable[[Finder, Sequence[Series], Sequence[set[str]]], Iterable[Sequence[CommitChange]]]

_Value = TypeVar("_Value")
State = Literal["new", "confirmed", "recovered", "waived"]
OPEN: tuple[State, ...] = ("new", "confirmed")
AUDIT = "bench_audit."
"""Prefix of the benchmarks that track properties of machine code: exact numbers, by architecture and kernel."""
NEITHER = (".track_sgprs", ".track_lds_bytes", ".track_code_bytes")
"""Numbers of the audit that are neither good nor bad: what they cost shows in waves and cycles."""
FEW_POINTS = 100_000
"""Points of all series together that one process searches in the time that a pool takes to start."""
_THRESHOLDS, _FIRST = "regressions_thresholds", "regressions_first_commits"
_LINES = 16  # series in one task
_NICENESS = 5  # `asv publish` runs at the same time, under a timeout
ATOM = "http://www.w3.org/2005/Atom"
ENTRIES = 50
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first commit measured with a different machine, driver or compiler: where (`where_of`), and what changed."""

    sha: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level in one series.

    Attributes:
        label: The benchmark with its parameters; ``where`` is its machine and environment.
        benchmark: Its name.
        point: Size, interval and state, from the statistics.
        commits: Hashes of the commits that may have caused it, oldest first; ``likeliest`` is one of them.
        lower_is_better: False for rates; None for numbers that are neither good nor bad.
        waived: Why a regression is accepted; "" if it is not.
    """

    label: str
    benchmark: str
    where: str
    unit: str
    point: ChangePoint
    commits: list[str]
    likeliest: str
    date_ms: int
    lower_is_better: bool | None = True
    waived: str = ""

    @property
    def id(self) -> str:
        """A name that is the same in every build of the site: for anchors and the feed."""
        return hashlib.sha256(f"{self.label}\n{self.where}\n{self.likeliest}".encode()).hexdigest()[:16]

    @property
    def worse(self) -> bool:
        """Whether it got slower or larger (of a rate: smaller)."""
        return self.lower_is_better is not None and (self.point.ratio > 1) == self.lower_is_better

    @property
    def better(self) -> bool:
        """Whether it got faster or smaller (of a rate: larger)."""
        return self.lower_is_better is not None and not self.worse

    @property
    def state(self) -> State:
        """The state of the change; an accepted regression is "waived" unless it recovered by itself."""
        return "waived" if self.waived and self.point.state in OPEN else self.point.state

    @property
    def open(self) -> bool:
        """Whether it is a regression that neither recovered nor is waived."""
        return self.worse and self.state in OPEN

    @property
    def tone(self) -> str:
        """Its colour class on a page."""
        if self.state == "recovered" or self.lower_is_better is None:
            return ""
        return "good" if self.better else "warn" if self.waived else "bad"


@dataclass(slots=True)
class Changes:
    """All changes, newest first, and which series were not searched.

    Attributes:
        listed: The changes.
        boundaries: Commits across which no levels are compared.
        few: Number of series with too few points on the branch.
        zero: (label, where) of the series with values of zero or less, which have no ratios.
    """

    listed: list[LevelChange] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    few: int = 0
    zero: list[tuple[str, str]] = field(default_factory=list)
    fewest: ClassVar[int] = FEWEST

    @property
    def open(self) -> list[LevelChange]:
        """The open regressions, newest first."""
        return [change for change in self.listed if change.open]

    def by_series(self) -> dict[tuple[str, str], list[LevelChange]]:
        """Return the changes of each series by its label and where it was measured."""
        by_series: dict[tuple[str, str], list[LevelChange]] = {}
        for change in self.listed:
            by_series.setdefault((change.label, change.where), []).append(change)
        return by_series


def where_of(series: Series) -> str:
    """Return where a series was measured: its machine and environment."""
    return f"{series.machine}, {series.env_name}"


def nothing_waived(_label: str, _metric: str, _arch: str, _ratio: float) -> str:
    """Accept no regression."""
    return ""


def nothing_accepted(_label: str, _ratio: float, _order: int) -> str:
    """Accept no regression."""
    return ""


def find_changes(
    series: Iterable[Series], history: History, find: Finder, waived: Waived = nothing_waived, run: Runner = map,
    accepted: Accepted = nothing_accepted,
) -> Changes:  # fmt: skip
    """Find the changes of every series.

    Args:
        series: The store's series.
        history: The repository's commits, which give the order of points; those of other branches are left out.
        find: Returns the changes of a series, given the boundary commits.
        waived: Returns why a regression is accepted ("" if it is not), given the gate's label, metric and architecture
            and its size: the new cost over the old.
        run: A replacement of ``map``, for long histories.
        accepted: Returns why asv's configuration does not want a regression, given its label, its size, and the order
            of its likeliest commit.
    """
    changes = Changes()
    bounds: dict[str, list[Boundary]] = {}
    order = {sha: info.order for sha, info in history.commits.items() if info.on_branch}
    lined: list[Series] = []
    starts: list[set[str]] = []
    for stored in series:
        where = where_of(stored)
        if where not in bounds:
            bounds[where] = boundaries(stored, order)
            changes.boundaries += bounds[where]
        points = sorted((p for p in stored.points if p.sha in order), key=lambda p: order[p.sha])
        lined.append(msgspec.structs.replace(stored, points=points))
        starts.append(_starts([point.sha for point in points], bounds[where], order))
    for line, begins, moves in zip(lined, starts, run(find, lined, starts), strict=True):
        code = unsearched(line, begins)
        changes.few += code == "few"
        changes.zero += [(line.label, where_of(line))] if code == "zero" else []
        lower = lower_is_better(line)
        dates = {point.sha: point.date_ms for point in line.points} if moves else {}
        for move in moves:
            worse = (move.change.ratio > 1) == lower
            cost = max(move.change.ratio, 1 / move.change.ratio)
            reason = worse and (
                waived(*gate_names(line), cost) or accepted(line.label, cost, order[move.likeliest])
            )  # fmt: skip
            changes.listed.append(
                LevelChange(
                    line.label, line.benchmark, where_of(line), line.unit, move.change, move.commits, move.likeliest,
                    dates[move.likeliest], lower, reason or "",
                )
            )  # fmt: skip
    changes.listed.sort(key=lambda change: (order[change.likeliest], change.label), reverse=True)
    changes.boundaries.sort(key=lambda boundary: order[boundary.sha], reverse=True)
    return changes


def accepted_by_asv(store: AsvStore, history: History, note: Callable[[str], None]) -> Accepted:
    """Return what tells why a repository's ``asv.conf.json`` does not want a regression reported.

    Args:
        store: With the path of the configuration.
        history: The repository's commits.
        note: Called with one line for each entry that cannot be obeyed.
    """
    if store.config_path is None:
        return nothing_accepted
    try:
        config = vars(read_config(store.config_path))
    except RocattnError as error:
        note(f"{_THRESHOLDS} and {_FIRST} do not count: {error}")
        return nothing_accepted
    thresholds = dict(_entries(config, _THRESHOLDS, note, float))
    begins = dict(_entries(config, _FIRST, note, lambda name: _first_of(store, history, name)))

    def accepted(label: str, cost: float, order: int) -> str:
        limit = max((limit for entry, limit in thresholds.items() if entry.match(label)), default=0.0)
        if cost - 1 <= limit:
            return f"within the {100 * limit:g} % of {_THRESHOLDS}"
        for entry, (name, first) in begins.items():
            if entry.match(label) and (first is None or order < first):
                return f"{_FIRST}: {'not watched' if first is None else f'before {name}'}"
        return ""

    return accepted


def _entries(
    config: dict[str, Any], key: str, note: Callable[[str], None], read: Callable[[Any], _Value]
) -> list[tuple[re.Pattern[str], _Value]]:
    """Return the entries of one setting by their pattern; those that cannot be read are noted."""
    table, entries = config.get(key) or {}, []
    for pattern, value in table.items() if isinstance(table, dict) else ():
        try:
            entries.append((re.compile(pattern), read(value)))
        except (re.error, ValueError, TypeError, RevisionError) as error:
            note(f"asv.conf.json: {key} of {pattern!r} does not count: {error}")
    return entries


def _first_of(store: AsvStore, history: History, name: str | None) -> tuple[str, int | None]:
    """Return a first commit's name and its place in the history; None without one: nothing is watched.

    Raises:
        RevisionError: When the repository does not have it.
        ValueError: When it is on no branch of this clone.
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
    """Return the first measured commit at or after each boundary: a series need not have a point at the boundary."""
    starts = set()
    for boundary in bounds:
        later = (sha for sha in shas if order[sha] >= order[boundary.sha])
        starts |= {next(later, "")} - {""}
    return starts


def lower_is_better(series: Series) -> bool | None:
    """Return whether lower values of a series are better; None for numbers that are neither good nor bad."""
    return None if series.benchmark.endswith(NEITHER) else not is_rate(series.unit)


def gate_names(series: Series) -> tuple[str, str, str]:
    """Return the label, metric and architecture by which the gate, and so a waiver, names a series."""
    if series.benchmark.startswith(AUDIT):
        return series.params.get("kernel", ""), "audit", series.params.get("arch", "")
    method = series.benchmark.rsplit(".", 1)[-1]
    metric = next((kind for kind in ("peakmem", "mem", "track") if method.startswith(f"{kind}_")), "time")
    return series.label, metric, ""


def in_processes(
    find: Finder, series: Sequence[Series], starts: Sequence[set[str]], jobs: int
) -> Iterator[list[CommitChange]]:
    """Return ``map(find, series, starts)``, computed in several processes with the same results.

    Args:
        find: A module-level function, since another process imports it; its series hold shas and values only.
        series: Points in commit order.
        starts: Boundaries of each series.
        jobs: Number of processes.

    Raises:
        RocattnError: When a process was killed.
    """
    if jobs < 2 or sum(len(line.points) for line in series) < FEW_POINTS:
        yield from (list(find(line, begins)) for line, begins in zip(series, starts, strict=True))
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin)
    waiting: deque[Future[list[list[CommitChange]]]] = deque()
    try:
        for at in range(0, len(series), _LINES):
            tasks = [(_lean(series[i]), starts[i]) for i in range(at, min(at + _LINES, len(series)))]
            waiting.append(pool.submit(_search, find, msgspec.msgpack.encode(tasks)))
            if len(waiting) > 4 * jobs:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RocattnError("a helper process that looked for change points was killed (out of memory?)") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _lean(series: Series) -> Series:
    """Return a series without samples and places, which are most of its size and not needed."""
    points = [Point(sha=point.sha, date_ms=0, value=point.value) for point in series.points]
    return msgspec.structs.replace(series, points=points, places={})


def _search(find: Finder, tasks: bytes) -> list[list[CommitChange]]:
    decoded = msgspec.msgpack.decode(tasks, type=list[tuple[Series, set[str]]])
    return [list(find(series, starts)) for series, starts in decoded]


def _begin() -> None:
    """Ignore Ctrl-C, which ends the main process and so its workers, and yield to `asv publish`, under a timeout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)


def atom(
    changes: Sequence[LevelChange], history: History, links: Mapping[str, str], made_ms: int, url: str, project: str
) -> str:
    """Return an Atom feed of the newest regressions, recovered and waived ones included and marked.

    Args:
        changes: All change points, newest first.
        history: The repository's commits.
        links: The page of each change, by its id, relative to the feed.
        made_ms: When the site was made; the date of a feed without entries.
        url: Address of the site; links are relative to the feed without it.
        project: Whose history it is.
    """
    worse = [change for change in changes if change.worse][:ENTRIES]
    oldest = min(history.commits.values(), key=lambda info: info.order, default=None)
    base = f"{url.rstrip('/')}/" if url else ""
    ET.register_namespace("", ATOM)
    feed = ET.Element(f"{{{ATOM}}}feed")
    # From the repository's first commit, so that every build, anywhere, has the same feed id.
    _add(feed, "id", _urn("feed", oldest.sha if oldest else ""))
    _add(feed, "title", f"{project}: regressions on {history.branch}")
    _add(feed, "updated", _moment(max((_commit_date(change, history) for change in worse), default=made_ms)))
    author = ET.SubElement(feed, f"{{{ATOM}}}author")
    _add(author, "name", "rocattn")
    _link(feed, f"{base}feed.xml", "self", "application/atom+xml")
    _link(feed, f"{base}changes.html", "alternate", "text/html")
    for change in worse:
        entry = ET.SubElement(feed, f"{{{ATOM}}}entry")
        _add(entry, "id", _urn("change", change.id))
        _add(entry, "title", f"{change.label}: {percent(change.point.ratio)} ({change.state})")
        _add(entry, "updated", _moment(_commit_date(change, history)))
        _link(entry, base + links.get(change.id, "changes.html"), "alternate", "text/html")
        _add(entry, "summary", _summary(change, history))
    ET.indent(feed)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(feed, encoding="unicode")}\n'


def _summary(change: LevelChange, history: History) -> str:
    point, commits = change.point, history.commits
    came = f"{change.likeliest[:8]} {commits[change.likeliest].subject}" if change.likeliest in commits else ""
    others = f", or another of {len(change.commits)} commits" if len(change.commits) > 1 else ""
    why = f" Accepted: {change.waived}." if change.waived else ""
    return (
        f"{percent(point.ratio)} (95 %: {percent(point.ratio_low)} to {percent(point.ratio_high)}) on {change.where}, "
        f"{change.state} after {point.points} points. Likeliest commit: {came}{others}.{why}"
    )


def _commit_date(change: LevelChange, history: History) -> int:
    info = history.commits.get(change.likeliest)
    return info.date_ms if info and info.date_ms > 0 else change.date_ms


def _urn(kind: str, name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'rocattn:{kind}:{name}')}"


def _moment(date_ms: int) -> str:
    return datetime.fromtimestamp(date_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(parent: ET.Element, name: str, text: str) -> None:
    # Subjects and labels may hold any character: those that XML cannot hold are replaced.
    ET.SubElement(parent, f"{{{ATOM}}}{name}").text = _NOT_XML.sub("�", text)


def _link(parent: ET.Element, href: str, rel: str, kind: str) -> None:
    ET.SubElement(parent, f"{{{ATOM}}}link", {"href": href, "rel": rel, "type": kind})
