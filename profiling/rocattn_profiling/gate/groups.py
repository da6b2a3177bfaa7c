"""What belongs together in a verdict: entries that one cause made worse, and entries undecided for one reason.

A change of one line may slow down twenty benchmarks. Every form of the verdict shows that line once, with its
benchmarks, and one command that measures exactly those again.
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

_LONGEST = 60  # characters of a pattern for several benchmarks
_NAME = re.compile(r"[\w.]+", re.ASCII)


class CauseGroup(NamedTuple):
    """Entries of one status that became worse by one cause.

    Attributes:
        entries: The worst first; at least one.
        causes: Of all of them, the likeliest first, each once; empty where none is known.
    """

    entries: list[Entry]
    causes: list[Cause]

    @property
    def status(self) -> str:
        """The status that all of them have."""
        return self.entries[0].status


class ReasonGroup(NamedTuple):
    """Entries of one status for one reason; ``reason`` has the remedy for all of them."""

    entries: list[Entry]
    reason: Reason[str]

    @property
    def suspect(self) -> bool:
        """Whether they are likely slower."""
        return self.entries[0].suspect


def by_cause(entries: Sequence[Entry]) -> list[CauseGroup]:
    """Group what is worse by its cause.

    Args:
        entries: Of a verdict, worst first; others than worse ones are left out.

    Returns:
        The groups in the order of their worst entries.
    """
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        if entry.worse:
            groups.setdefault((entry.status, *_cause_key(entry)), []).append(entry)
    return [CauseGroup(alike, list(dict.fromkeys(_causes(alike)))) for alike in groups.values()]


def _causes(entries: Sequence[Entry]) -> list[Cause]:
    return [cause for entry in entries for cause in entry.causes]


def _cause_key(entry: Entry) -> tuple[Hashable, ...]:
    """Return what entries with the same cause share: the changed line, else the first cause's words."""
    if entry.place is not None:
        return entry.place.path, entry.place.line
    if entry.causes:
        return (entry.causes[0].text,)
    if entry.status == "removed":  # those of one file or module together, which one line accepts
        return (re.split(r"::|\.(?!py\b)", entry.name)[0],)
    # Numbers that are read off, and errors, are their own explanation.
    return ("", entry.name if entry.metric in EXACT else entry.reason if entry.status != "regression" else "")


def causes_known(entries: Sequence[Entry]) -> int:
    """Return how many different causes made regressions."""
    return sum(1 for group in by_cause(entries) if group.status == "regression" and group.causes)


def by_reason(entries: Sequence[Entry], status: str) -> list[ReasonGroup]:
    """Group the entries of a status by why they have it, likely slower ones first, then the largest group.

    Undecided ones are grouped by the reason's code, so that each group has one remedy; others by their reason's text.
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
    """Return the reason that a group has in common."""
    reasons = [why for entry in alike if (why := _undecided(entry)) is not None]
    if not reasons:
        decision = alike[0].decision
        return Reason("", alike[0].reason or (decision.reason if decision is not None else ""))
    rounds = [entry.decision.rounds_needed for entry in alike if entry.decision is not None]
    return shared(reasons, sorted(rounds))


def repeat(result: GateResult, entries: Sequence[Entry] = (), *, rounds: int = 0) -> str:
    """Return the command that measures entries of a verdict again; "" where it is not known.

    Args:
        result: The verdict.
        entries: What to measure; without any, what the run measured.
        rounds: Most rounds; 0 for the usual.
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
    """Return the command that would decide an undecided group; "" where more rounds do not."""
    rounds = max((entry.decision.rounds_needed for entry in group.entries if entry.decision is not None), default=0)
    return repeat(result, group.entries, rounds=rounds) if rounds else ""


def acceptance(result: GateResult, group: CauseGroup) -> str:
    """Return the line of a commit message that accepts the measured regressions of a group; "" without one."""
    if result.head.revision is None:  # no commit could hold it
        return ""
    measured = [entry for entry in group.entries if entry.metric not in EXACT]
    return trailer(measured)


def repeats(result: GateResult, groups: Sequence[CauseGroup]) -> tuple[list[str], str]:
    """Return the command of each group, and of all of them together where it is the same; then they have none.

    Args:
        result: The verdict.
        groups: Of `by_cause`.
    """
    commands = ["" if group.status == "removed" else repeat(result, group.entries) for group in groups]
    if len(commands) > 1 and len(set(commands)) == 1 and commands[0]:
        return [""] * len(commands), commands[0]
    return commands, ""


def _pattern(names: Sequence[str], result: GateResult) -> str:
    """Return a short regular expression that finds benchmarks; "" if it is not short, or they are no Python names.

    It finds all parameters of each name, and no other benchmark of the verdict where one part of the name suffices.
    """
    others = [entry.label for entry in result.entries if entry.name not in names]
    names = [name.rpartition("::")[2] for name in names]  # of a node id the function
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
    """Return what names begin with in common, up to a dot ("::" of node ids) or before the parameters; all of one."""
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
