"""Groups of entries in a verdict: those that one cause made worse, and those undecided for the same reason.

Changing one line may slow down twenty benchmarks. Every form of the verdict shows that line once, with its
benchmarks and one command that measures exactly those again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.model import EXACT, Cause, Entry, GateResult
from rocattn_profiling.gate.rule.reasons import shared
from rocattn_profiling.gate.waivers import trailer

_LONGEST = 60  # characters in a pattern for several benchmarks
_NAME = re.compile(r"[\w.]+", re.ASCII)


class CauseGroup(NamedTuple):
    """Entries with the same status that one cause made worse.

    Attributes:
        entries: At least one, worst first.
        causes: Causes shared by all of them, likeliest first, without duplicates; empty if none is known.
    """

    entries: list[Entry]
    causes: list[Cause]

    @property
    def status(self) -> str:
        """The entries' common status."""
        return self.entries[0].status


class ReasonGroup(NamedTuple):
    """Entries with the same status and reason; ``reason`` includes the remedy for all of them."""

    entries: list[Entry]
    reason: Reason[str]

    @property
    def suspect(self) -> bool:
        """Whether the entries are likely slower."""
        return self.entries[0].suspect


def by_cause(entries: Sequence[Entry]) -> list[CauseGroup]:
    """Group worse entries by cause.

    Args:
        entries: The verdict's entries, worst first; only those that got worse are grouped.

    Returns:
        The groups, ordered by their worst entries.
    """
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        if entry.worse:
            groups.setdefault((entry.status, *_cause_key(entry)), []).append(entry)
    return [CauseGroup(alike, list(dict.fromkeys(_causes(alike)))) for alike in groups.values()]


def _causes(entries: Sequence[Entry]) -> list[Cause]:
    return [cause for entry in entries for cause in entry.causes]


def _cause_key(entry: Entry) -> tuple[Hashable, ...]:
    """Return a key that entries with the same cause share: the changed line, or else the first cause's text."""
    if entry.place is not None:
        return entry.place.path, entry.place.line
    if entry.causes:
        return (entry.causes[0].text,)
    if entry.status == "removed":  # grouped by file or module: one waiver line accepts them all
        return (re.split(r"::|\.(?!py\b)", entry.name)[0],)
    # Exact metrics and errors explain themselves.
    return ("", entry.name if entry.metric in EXACT else entry.reason if entry.status != "regression" else "")


def causes_known(entries: Sequence[Entry]) -> int:
    """Count the distinct known causes of regressions."""
    return sum(1 for group in by_cause(entries) if group.status == "regression" and group.causes)


def by_reason(entries: Sequence[Entry], status: str) -> list[ReasonGroup]:
    """Group the entries with a status by their reason: likely slower groups first, then by descending size.

    Undecided entries are grouped by reason code, so that each group has one remedy; others by the reason's text.
    """
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        if entry.status == status:
            why = _undecided(entry)
            groups.setdefault((entry.suspect, why.code if why else entry.reason), []).append(entry)
    grouped = [ReasonGroup(alike, _reason_of(alike)) for alike in groups.values()]
    return sorted(grouped, key=lambda group: (not group.suspect, -len(group.entries)))


def _undecided(entry: Entry) -> Reason[str] | None:
    return entry.decision.undecided if entry.decision is not None else None


def _reason_of(alike: Sequence[Entry]) -> Reason[str]:
    """Return the group's common reason."""
    reasons = [why for entry in alike if (why := _undecided(entry)) is not None]
    if not reasons:
        decision = alike[0].decision
        return Reason("", alike[0].reason or (decision.reason if decision is not None else ""))
    rounds = [entry.decision.rounds_needed for entry in alike if entry.decision is not None]
    return shared(reasons, sorted(rounds))


def repeat(result: GateResult, entries: Sequence[Entry] = (), *, rounds: int = 0) -> str:
    """Return the command that measures entries of a verdict again; "" if it is not known.

    Args:
        result: The verdict.
        entries: What to measure; if empty, everything the run measured.
        rounds: Maximum number of rounds; 0 for the default.
    """
    if not result.again:
        return ""
    words = ["--rounds", f"{rounds}"] if rounds else []
    names = sorted({entry.name for entry in entries if entry.metric not in EXACT})
    pattern = _pattern(names, result) if names else ""
    for chosen in [pattern] if pattern else result.patterns:
        words += ["--bench", chosen]
    return " ".join([result.again, *(shlex.quote(word) for word in words)])


def deciding(result: GateResult, group: ReasonGroup) -> str:
    """Return the command that would decide an undecided group; "" if more rounds would not help."""
    rounds = max((entry.decision.rounds_needed for entry in group.entries if entry.decision is not None), default=0)
    return repeat(result, group.entries, rounds=rounds) if rounds else ""


def acceptance(result: GateResult, group: CauseGroup) -> str:
    """Return the commit-message line that accepts a group's measured regressions; "" if there is none."""
    if result.head.revision is None:  # there is no commit to put it in
        return ""
    measured = [entry for entry in group.entries if entry.metric not in EXACT]
    return trailer(measured)


def repeats(result: GateResult, groups: Sequence[CauseGroup]) -> tuple[list[str], str]:
    """Return each group's command and a shared one; if all are equal, only the shared one is set.

    Args:
        result: The verdict.
        groups: The groups from `by_cause`.
    """
    commands = ["" if group.status == "removed" else repeat(result, group.entries) for group in groups]
    if len(commands) > 1 and len(set(commands)) == 1 and commands[0]:
        return [""] * len(commands), commands[0]
    return commands, ""


def _pattern(names: Sequence[str], result: GateResult) -> str:
    """Return a short regular expression that matches the names; "" if it would be long or a name is not a Python name.

    It matches all parameters of each name. If part of the name is enough, it matches no other benchmark of the verdict.
    """
    others = [entry.label for entry in result.entries if entry.name not in names]
    names = [name.rpartition("::")[2] for name in names]  # a node id's function
    if not all(_NAME.fullmatch(name) for name in names):
        return ""
    common = common_part(names)
    parts = common.rstrip(".").split(".")
    for start in range(len(parts) - 1, -1, -1):
        pattern = ".".join(parts[start:])
        if pattern and not any(re.search(pattern, label) for label in others):
            return pattern
    pattern = "|".join(dict.fromkeys(name if len(names) == 1 else name.rpartition(".")[2] for name in names))
    return pattern if len(names) == 1 or len(pattern) <= _LONGEST else ""


def common_part(names: Sequence[str]) -> str:
    """Return the common prefix up to a dot (or "::" in node ids), or the text before parameters; one name in full."""
    first = names[0]
    if len(set(names)) == 1:
        return first
    whole = first.partition("(")[0]
    between = "::" if "::" in whole else "."
    for end in (len(whole), *(match.end() for match in reversed(list(re.finditer(re.escape(between), whole))))):
        start = first[:end]
        parted = start.endswith(between)
        if all(name.startswith(start) and (parted or name[end : end + 1] in {"", "("}) for name in names):
            return start
    return ""
