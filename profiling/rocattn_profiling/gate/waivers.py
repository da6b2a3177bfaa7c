"""Waivers: which regressions are accepted, by whom, how large, and until when.

They are in the gated repository's ``.rocattn/waivers.toml`` or, for a single change, in a commit trailer. A waiver
accepts one benchmark, metric and architecture, named exactly. It widens no threshold and moves no baseline, and what it
accepts is shown. An expired or unneeded waiver fails the gate, since a stale list hides the next regression.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn.gpu.arch import processor
from rocattn.gpu.errors import ArchError
from rocattn_profiling.gate.model import CAUSE, EXACT, JUDGED, METRICS, Entry
from rocattn_profiling.gate.thresholds import check_keys, check_metric, is_number, read_tables
from rocattn_profiling.revisions.git import git

if TYPE_CHECKING:
    from rocattn_profiling.revisions.git import Revision

FILE = ".rocattn/waivers.toml"
_TEXTS = ("benchmark", "metric", "arch", "issue", "reason", "author")
_NEEDED = ("benchmark", "metric", "ceiling", "expires", "issue", "reason")
_TRAILER = re.compile(r"^rocattn-accept[ \t]*:[ \t]*(.*(?:\n[ \t]+\S.*)*)$", re.IGNORECASE | re.MULTILINE)
_INDENTED = re.compile(r"^[ \t>]+rocattn-accept[ \t]*:", re.IGNORECASE | re.MULTILINE)
# A label may contain " | ": it ends where the rest first parses as metric, ceiling and reason.
_ACCEPTED = re.compile(
    rf"(?P<label>.+?) \| (?:(?P<metric>{'|'.join((*METRICS, CAUSE))})(?: (?P<arch>gfx\w+))? \| (?P<ceiling>[\d.]+|inf)"
    r"|(?P<gone>removed)) \| (?P<reason>.+)"
)

REMOVED = "removed"  # in place of a metric: benchmarks that head removed
_GONE = frozenset({"removed", "missing"})
_LONGEST = 300  # maximum characters of a line to copy
_NO_WORSE = "it did not get worse"


class WaiverError(RocattnError):
    """Raised if the waivers file is malformed; names file and line."""


class Waiver(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted regression, or an accepted removal of benchmarks.

    Attributes:
        benchmark: The label of the benchmark (with its parameters) or exact metric.
        metric, arch: As in `Entry`; ``metric`` can also be "removed" or "cause".
        ceiling: Largest accepted ratio head / base; infinity also accepts a regression without a ratio.
        expires: The last day on which it is valid; None for a trailer, which is valid for its change.
        issue: Where the regression is tracked; empty for a trailer.
        reason, author: Information for readers.
        source: File and line, or commit.
        added: Whether this change added it.
    """

    benchmark: str
    metric: str
    arch: str = ""
    ceiling: float
    expires: dt.date | None
    issue: str = ""
    reason: str
    author: str = ""
    source: str
    added: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, metric and architecture."""
        return self.benchmark, self.metric, self.arch

    def accepts(self, entry: Entry) -> bool:
        """Whether it covers this regression, by name or by its cause's location (not for exact metrics)."""
        if entry.status in _GONE or self.metric == REMOVED:
            return entry.status in _GONE and self.metric == REMOVED and _belongs(entry.label, self.benchmark)
        if self.metric == CAUSE and entry.metric not in EXACT and entry.place is not None:
            return self.benchmark == f"{entry.place.path}:{entry.place.line}"
        return self.key == (entry.label, entry.metric, entry.arch)

    @property
    def title(self) -> str:
        """Benchmark, metric and architecture as text."""
        return f"{self.benchmark} {self.metric} {self.arch}".rstrip()

    def text(self) -> str:
        """Return reason, issue and limits on one line."""
        limits = [self.issue] if self.issue else []
        if self.metric == REMOVED:
            return f"{self.reason} (accepted in {self.source})"
        limits.append("of any size" if self.ceiling == float("inf") else f"up to x{self.ceiling:g}")
        if self.expires is None:
            return f"{self.reason} ({', '.join([*limits, f'accepted in {self.source}'])})"
        limits.append(f"until {self.expires}")
        limits += [f"by {self.author}"] if self.author else []
        limits += ["added by this change"] if self.added else []
        return f"{self.reason} ({', '.join([*limits, self.source])})"


class WaiverTable(msgspec.Struct, frozen=True, kw_only=True):
    """All of head's waivers; ``notes`` lists what could not be parsed as one."""

    rows: list[Waiver] = []
    notes: list[str] = []

    def waived(self, label: str, metric: str, arch: str = "", today: dt.date | None = None) -> str:
        """Return reason and issue if such a regression is accepted at some size; empty if not."""
        today = today or utc_today()
        texts = [w.text() for w in self.rows if w.key == (label, metric, arch) and not _expired(w, today)]
        return texts[0] if texts else ""


def utc_today() -> dt.date:
    """Return today's date in UTC, which decides whether a waiver has expired."""
    return dt.datetime.now(dt.UTC).date()


def load(tree: Path | None, messages: Iterable[tuple[str, str]] = (), base: Path | None = None) -> WaiverTable:
    """Read head's waivers.

    Args:
        tree: Head's files; None without a repository.
        messages: (Commit, message) of every commit in the change, newest first; see `commit_messages`. If several
            trailers name one benchmark, the last counts.
        base: Base's files; a waiver that is not in them was added by this change.

    Raises:
        WaiverError: The file is malformed.
    """
    own = _read(tree) if tree is not None else []
    if base is not None:
        try:
            before = {(w.key, w.ceiling, w.expires) for w in _read(base)}
        except WaiverError:
            before = set()
        own = [msgspec.structs.replace(w, added=(w.key, w.ceiling, w.expires) not in before) for w in own]
    accepted, notes = _trailers(messages)
    return WaiverTable(rows=[*own, *accepted], notes=notes)


def commit_messages(repo: Path, base: Revision, head: Revision) -> list[tuple[str, str]]:
    """Return (short hash, message) of head's commits since base, newest first; none for uncommitted changes.

    Raises:
        RevisionError: Git cannot list them.
    """
    if head.dirty:
        return []
    listed = git(
        repo, "log", "--no-show-signature", "--encoding=UTF-8", "--format=%h%n%B%x00", f"{base.sha}..{head.sha}"
    )
    parts = [part.strip("\n") for part in listed.split("\0")]
    return [(sha, message) for part in parts if part for sha, _, message in [part.partition("\n")]]


def trailer(entries: Sequence[Entry]) -> str:
    """Return the commit-message line that accepts measured regressions with one cause, except for its reason.

    Its ceiling is the upper end of the highest interval, since the next run will measure a different ratio. For several
    entries it names the cause's location, or the first entry if there is none; for removed benchmarks, the common
    prefix of their names.
    """
    if entries and all(entry.status in _GONE for entry in entries):
        names = sorted({entry.name for entry in entries})
        parts = zip(*(re.split(r"(?<=[.:])", f"{name}.") for name in names), strict=False)
        shared = takewhile(lambda each: len(set(each)) == 1, parts)
        return _copied("".join(first for first, *_ in shared).rstrip(".:"), "removed | REASON")
    decided = [(entry, entry.decision) for entry in entries if entry.decision is not None and entry.decision.has_ratio]
    decided = [(entry, decision) for entry, decision in decided if entry.status == "regression"]
    if not decided or any(entry.metric in EXACT for entry in entries):
        return ""
    (entry, decision), *others = decided
    label, metric, highs = entry.label, entry.metric, [each.ratio_high for _, each in decided]
    if others and entry.place is not None:
        label, metric = f"{entry.place.path}:{entry.place.line}", CAUSE
    high = (None if None in highs else max(filter(None, highs))) if metric == CAUSE else decision.ratio_high
    return _copied(label, f"{metric} | {_ceiling(high)} | REASON")


def _copied(label: str, rest: str) -> str:
    """Return a trailer; empty if it is too long to copy or would not parse back to the label."""
    line = f"Rocattn-Accept: {label} | {rest}"
    read = [waiver.benchmark for waiver in _trailers([("", line)])[0]]
    shown = line.isprintable() and " ".join(line.split()) == line and len(line) <= _LONGEST
    return line if shown and read == [label] else ""


def _ceiling(ratio: float | None) -> str:
    """Return a ratio rounded up to hundredths."""
    if ratio is None:
        return "inf"
    hundredths = math.floor(100 * ratio)
    return f"{(hundredths + (hundredths / 100 < ratio)) / 100:.2f}"


def apply(
    entries: Sequence[Entry], table: WaiverTable, today: dt.date, *, narrowed: bool = False
) -> tuple[list[Entry], list[str]]:
    """Mark accepted regressions as "waived", and check that the waivers are valid and needed.

    Args:
        entries: Every benchmark and exact metric of this run.
        table: The waivers.
        today: The date that decides which have expired.
        narrowed: Whether the run left out benchmarks, so that a waiver's benchmark may exist without an entry.

    Returns:
        The entries, and a line for each waiver that has expired or is not needed.
    """
    after = []
    for entry in entries:
        if entry.status in _GONE and (mine := [w for w in table.rows if w.accepts(entry)]):
            after.append(msgspec.structs.replace(entry, status="waived", waiver=mine[0].text()))
        elif entry.status != "regression":
            after.append(entry)
        elif mine := [w for w in table.rows if w.accepts(entry)]:
            after.append(_accept(entry, [w for w in mine if not _expired(w, today)]))
        else:
            after.append(_passed_over(entry, table.rows))
    problems = [f"{w.source}: the waiver of {w.title} expired on {w.expires}" for w in table.rows if _expired(w, today)]
    for waiver in table.rows:
        # A trailer applies to one change: it cannot go stale, and a fix in a later commit must not turn the gate red.
        if waiver.expires is None or _expired(waiver, today):
            continue
        if why := _unused(waiver, entries, narrowed=narrowed):
            problems.append(f"{waiver.source}: the waiver of {waiver.title} is not needed: {why}; remove it")
    return after, problems


def _accept(entry: Entry, waivers: list[Waiver]) -> Entry:
    if not waivers:
        return msgspec.structs.replace(entry, reason=_and(entry.reason, "its waiver has expired"))
    best = max(waivers, key=lambda w: w.ceiling)
    ratio = entry.decision.ratio if entry.decision is not None and entry.decision.has_ratio else math.inf
    if ratio <= best.ceiling:
        return msgspec.structs.replace(entry, status="waived", waiver=best.text())
    what = f"x{ratio:.3f} is" if ratio < math.inf else "a change without a ratio is"
    return msgspec.structs.replace(
        entry, reason=_and(entry.reason, f"{what} above its waiver's ceiling of x{best.ceiling:g} ({best.source})")
    )


def _passed_over(entry: Entry, waivers: Sequence[Waiver]) -> Entry:
    """Add to a regression's reason the waiver that was probably meant for it, and why it does not match."""
    meant = next((w for w in waivers if w.benchmark == entry.name or _alike(w.benchmark) == _alike(entry.label)), None)
    if meant is None:
        return entry
    is_of, needs = (
        f"{label} {metric} {arch or 'without an architecture'}"
        if metric in EXACT
        else f"{label} {metric} {arch}".rstrip()
        for label, metric, arch in (meant.key, (entry.label, entry.metric, entry.arch))
    )
    return msgspec.structs.replace(
        entry, reason=_and(entry.reason, f"not waived: {meant.source} is for {is_of}, but this is {needs}")
    )


def _alike(label: str) -> str:
    """Return a label without case, spaces and quotes, in which typos are common."""
    return re.sub(r"[\s'\"]", "", label).casefold()


def _and(reason: str, more: str) -> str:
    return f"{reason}; {more}" if reason else more


def _expired(waiver: Waiver, today: dt.date) -> bool:
    return waiver.expires is not None and waiver.expires < today


def _unused(waiver: Waiver, entries: Sequence[Entry], *, narrowed: bool) -> str:
    """Return why a waiver is not needed; empty if it is needed, or if this run does not show that."""
    mine = [e for e in entries if (e.label, e.metric, e.arch) == waiver.key]
    if mine:
        # A regression needs the waiver; an undecided or unmeasured entry may need it.
        return _NO_WORSE if mine[0].status in {"pass", "improvement"} else ""
    if any(e.status == "removed" and _belongs(waiver.benchmark, e.label) for e in entries):
        return "the suite no longer has it"
    if narrowed or any(e.status not in JUDGED and _belongs(waiver.benchmark, e.label) for e in entries):
        return ""
    if waiver.metric in EXACT:
        # Only changes have their own entry; it has no architecture if the change is the same on all. A run without a
        # compiler has no entries at all.
        related = [e for e in entries if e.metric == waiver.metric and (not waiver.arch or e.arch in {"", waiver.arch})]
        # A failed entry stands for all metrics it would have covered; one with this label, for all architectures.
        unknown = any(
            entry.status == "failed" or (entry.label == waiver.benchmark and entry.status == "regression")
            for entry in related
        )
        return _NO_WORSE if related and not unknown else ""
    also = ", with an arch, which only exact metrics have" if waiver.arch else ""
    return f"no benchmark in the suite has this name, these parameters and this metric{also}"


def _belongs(label: str, part: str) -> bool:
    """Whether a label belongs to the benchmark or module of an entry."""
    return label == part or label.startswith((f"{part}(", f"{part}.", f"{part}::"))


def _read(tree: Path) -> list[Waiver]:
    """Return the waivers of a tree's file.

    Raises:
        WaiverError: It is malformed.
    """
    waivers = [_waiver(row, source) for row, source in read_tables(tree, FILE, "waiver", WaiverError)]
    for index, waiver in enumerate(waivers):
        if twin := next((w for w in waivers[:index] if w.key == waiver.key), None):
            raise WaiverError(f"{waiver.source}: {waiver.title} is waived twice, first at {twin.source}")
    return waivers


def _waiver(row: dict[str, object], source: str) -> Waiver:
    check_keys(row, source, (*_TEXTS, "ceiling", "expires"), _NEEDED, WaiverError)
    for key in _TEXTS:
        value = row.get(key, "")
        if not isinstance(value, str) or (key in _NEEDED and not value.strip()):
            raise WaiverError(f"{source}: {key} must be non-empty text")
    check_metric(str(row["metric"]), source, WaiverError)
    if why := _bad_arch(str(row.get("arch", ""))):
        raise WaiverError(f"{source}: arch: {why}")
    expires, ceiling = row["expires"], row["ceiling"]
    if not isinstance(expires, dt.date) or isinstance(expires, dt.datetime):
        raise WaiverError(f"{source}: expires must be a date without quotes, as in expires = 2027-03-31")
    if not isinstance(ceiling, (int, float)) or not is_number(ceiling) or not ceiling > 1:
        raise WaiverError(f"{source}: ceiling must be a ratio above 1 (1.10 accepts up to 10 % more), or inf")
    return Waiver(**{**row, "ceiling": float(ceiling), "source": source})  # type: ignore[arg-type]  # checked above


def _bad_arch(arch: str) -> str:
    """Return why no entry of a verdict can have this architecture; empty if one can."""
    try:
        plain = processor(arch) if arch else ""
    except ArchError as error:
        return str(error)
    return f"{arch!r} has features: write {plain}, as the verdict does" if plain != arch else ""


def _trailers(messages: Iterable[tuple[str, str]]) -> tuple[list[Waiver], list[str]]:
    """Return the waivers in commit messages, newest first, and a line for each trailer that cannot be parsed."""
    accepted: dict[tuple[str, str, str], Waiver] = {}
    notes = []
    for sha, message in messages:
        own: dict[tuple[str, str, str], Waiver] = {}
        if _INDENTED.search(message):
            notes.append(
                f"commit {sha}: an indented Rocattn-Accept accepts nothing: begin a line with it "
                "(git merge --squash indents what it quotes)"
            )
        for trailer in _TRAILER.findall(message.replace("\r\n", "\n")):
            text = re.sub(r"\n[ \t]+", " ", trailer).strip()
            match = _ACCEPTED.fullmatch(text)
            try:
                ceiling = float(match["ceiling"] or "inf") if match else 0.0
            except ValueError:
                ceiling = 0.0
            if match is None or not ceiling > 1:
                form = "<label> | <metric> [<arch>] | <ceiling ratio above 1> | <reason>"
                form += f", the metric one of {', '.join(METRICS)}; or <label> | removed | <reason>"
                notes.append(f"commit {sha}: Rocattn-Accept: {text!r} accepts nothing: write {form}")
                continue
            if why := _bad_arch(match["arch"] or ""):
                notes.append(f"commit {sha}: Rocattn-Accept: {text!r} accepts nothing: {why}")
                continue
            waiver = Waiver(
                benchmark=match["label"], metric=match["metric"] or REMOVED, arch=match["arch"] or "", ceiling=ceiling,
                expires=None, reason=match["reason"], source=f"commit {sha}", added=True,
            )  # fmt: skip
            own[waiver.key] = waiver
        accepted = {**accepted, **{key: waiver for key, waiver in own.items() if key not in accepted}}
    return list(accepted.values()), notes
