"""GateResult: the verdict that JSON, text and pages are made from, and its exit status."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import is_rate
from rocattn_profiling.base.files import open_regular, write_text
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason, counted
from rocattn_profiling.gate.noise_record import KnownNoise, NoiseSource, known_noise
from rocattn_profiling.gate.rule.pairs import (  # noqa: TC001 - msgspec reads the annotations when it decodes
    Count,
    Decision,
    Number,
    PairLaunch,
)
from rocattn_profiling.gate.rule.policy import Policy  # noqa: TC001 - msgspec reads the annotations when it decodes
from rocattn_profiling.measure.records import Machine  # noqa: TC001 - as above
from rocattn_profiling.revisions.git import Revision  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocattn_profiling.asv.launch import Case, Outcome
    from rocattn_profiling.gate.measure import SessionResult, SideName
    from rocattn_profiling.gate.rule.pairs import Pair

SCHEMA = 1
FILE = "verdict.json"
Overall = Literal["pass", "regression", "problem", "inconclusive", "not measured"]
Status = Literal[
    "regression", "improvement", "pass", "inconclusive", "unreached", "new", "missing", "failed", "broken", "skipped",
    "removed", "ungated", "waived",
]  # fmt: skip
# Worst first; undecided comes before fine.
ORDER: tuple[Status, ...] = (
    "regression", "failed", "missing", "unreached", "inconclusive", "waived", "broken", "improvement", "ungated", "new",
    "removed", "skipped", "pass",
)  # fmt: skip
JUDGED: tuple[Status, ...] = ("regression", "improvement", "pass", "inconclusive")
LEFT_OUT: dict[Status, str] = {
    "failed": "that fails on head", "missing": "missing on head", "unreached": "not reached in time",
    "broken": "broken on both sides", "skipped": "skipped", "ungated": "not judged", "new": "new on head",
    "removed": "removed",
}  # fmt: skip
"""Statuses of what was not compared, and what a person calls it."""
METRICS = ("time", "mem", "peakmem", "track", "audit", "workspace", "plan", "exact")
EXACT = frozenset({"audit", "workspace", "plan", "exact"})  # metrics of plug-ins: read off, not measured


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A location in the repository: a path relative to its top folder, and a line from 1."""

    path: str
    line: int = 1


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between base and head that may have changed a benchmark.

    Attributes:
        kind: "machine code", "launch", "backend", "counters", "environment" or "source".
        text: The difference, one sentence with numbers.
        about: The metric of a finding on machine code, "flash path" where that was lost, else "".
        location: The source line, if there is one.
        diff: The changed lines there, each with "-" or "+" in front; empty where they are not known.
    """

    kind: Literal["machine code", "launch", "backend", "counters", "environment", "source"]
    text: str
    about: str = ""
    location: Location | None = None
    diff: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark with one parameter combination, or one exact metric.

    Attributes:
        label: ``module.Class.time_x(1024, 'cpu')``; ``name`` is the part before the parameters.
        params: Parameter name -> repr of its value.
        unit: "ns" for times, else the benchmark's own.
        status: A verdict ("regression", "improvement", "pass", "inconclusive"), or why there is none: "new" (base
            cannot run it), "missing" (only head lacks it), "failed" (ran on base, fails on head), "broken" (fails on
            both), "skipped" (by itself, on both), "removed" (from the suite), "ungated" (a larger value is better),
            "unreached" (the time limit ended before both sides ran once), "waived" (a regression that a waiver
            accepts).
        metric: "time", "mem", "peakmem", "track", or for exact metrics "audit", "workspace" or "plan".
        arch: The gfx target of an exact metric; empty for others.
        causes: Differences on this benchmark's path, the likeliest first; empty unless it is worse.
        waiver: Reason and issue of the waiver that accepts this; empty without one.
        rule: What the repository's thresholds set for it, with file and line; empty for the run's own rule.
        suspect: Whether it is undecided but likely slower: at most one in ten of these is expected to be unchanged.
        noise: What was known about its noise before the run; None if nothing was.
        decision: Ratio, interval, p, rounds and reason; None without a verdict.
        base, head: Low end of each side in ``unit``, of the quantity that decided; None if not measured.
        base_launches, head_launches: Every launch behind the verdict.
        reason: Why there is no verdict, one line; ``traceback`` has the details.
    """

    label: str
    name: str
    params: dict[str, str] = {}
    unit: str = ""
    metric: str = "time"
    arch: str = ""
    status: Status
    decision: Decision | None = None
    base: Number | None = None
    head: Number | None = None
    base_launches: list[PairLaunch] = []
    head_launches: list[PairLaunch] = []
    reason: str = ""
    traceback: str = ""
    causes: list[Cause] = []
    waiver: str = ""
    rule: str = ""
    suspect: bool = False
    noise: KnownNoise | None = None


class SideFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One side: its revision, and the environment it ran in.

    Attributes:
        revision: What was built; None for an existing environment.
        interpreter: The Python of an existing environment; "" for a revision.
        python, packages: Version of Python, and name -> version of everything that can be imported.
        offline: Whether dependencies are the running interpreter's instead of the revision's own.
    """

    revision: Revision | None = None
    interpreter: str = ""
    python: str
    packages: dict[str, str]
    offline: bool = False

    @property
    def short(self) -> str:
        """The short hash, or the interpreter."""
        return self.interpreter if self.revision is None else self.revision.short

    @property
    def title(self) -> str:
        """Short hash and subject, or the interpreter."""
        if self.revision is None:
            return self.interpreter
        return f"{self.revision.short} {self.revision.subject}".rstrip()


class TimeBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run was expected to take, and what it made of its time.

    Attributes:
        limit_s: The limit of ``--max-time``; 0 without one.
        estimate_s: The estimate before measuring, low and high end, in seconds; 0 and 0 where there was none.
        measured_s: Seconds from the end of the builds to the verdict, without preparations, of this run alone (not of
            one it resumed).
        benchmarks: How many were to be measured.
        stopped: Whether the limit ended the run; the same command then goes on with the rest.
        unreached: Benchmarks that were not measured once on both sides.
        open: Benchmarks that are undecided only for lack of time.
        remedy: What would decide the undecided and measure the rest, one line; "" where nothing is left.
    """

    limit_s: Number = 0.0
    estimate_s: tuple[Number, Number] = (0.0, 0.0)
    measured_s: Number = 0.0
    benchmarks: Count = 0
    stopped: bool = False
    unreached: Count = 0
    open: Count = 0
    remedy: str = ""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the gate found, and everything needed to check it.

    Attributes:
        schema: Of this structure.
        verdict: "pass", "regression", "problem" (a waiver is expired or unused), "inconclusive" or "not measured".
        sentence: The verdict in one sentence.
        created_ms: Unix time of the verdict.
        base, head: The two sides.
        machine: Where it was measured.
        environment_differences: Package -> [version in base, version in head], where they differ.
        policy: The rule and its thresholds.
        quick, seed, launches: How it was measured; ``launches`` counts processes.
        suite: The benchmark folder; ``patterns`` narrowed it.
        suite_shift: Geometric mean of all benchmarks' ratios.
        canary_shift: Median ratio of fixed work in the same processes.
        invalid: Why the session as a whole does not count; empty if it does.
        again: The command that compares the same sides again, whole suite; empty if their names do not say how.
        notes: What a reader must know besides the verdicts.
        problems: Why the gate fails besides its verdicts: waivers that are expired or unused.
        noise: Where knowledge of earlier noise came from; None if the run did not look for any.
        budget: The time that the run was expected to take, was given, and took.
        counts: Status -> how many entries.
        not_compared: What was not compared: entries of such a status, and what no entry is of.
        entries: Every benchmark, worst first.
    """

    schema: int = SCHEMA
    verdict: Overall
    sentence: str
    created_ms: int
    base: SideFacts
    head: SideFacts
    machine: Machine
    environment_differences: dict[str, tuple[str, str]] = {}
    policy: Policy
    quick: bool
    seed: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
    launches: Count
    suite: str
    patterns: list[str] = []
    suite_shift: Number = 1.0
    canary_shift: Number = 1.0
    invalid: str = ""
    again: str = ""
    notes: list[str] = []
    problems: list[str] = []
    noise: NoiseSource | None = None
    budget: TimeBudget = TimeBudget()
    counts: dict[str, int] = {}
    not_compared: list[NotCompared] = []
    entries: list[Entry] = []

    @property
    def coverage(self) -> Coverage:
        """How much was compared."""
        return coverage_of(self.entries, self.beyond_entries)

    @property
    def beyond_entries(self) -> list[NotCompared]:
        """What was not compared and has no entry."""
        return [each for each in self.not_compared if each.code not in LEFT_OUT]

    @property
    def status(self) -> int:
        """Exit status that tolerates undecided ones: 0 pass, inconclusive; 1 regression, problem; 3 not measured."""
        return {"pass": 0, "inconclusive": 0, "regression": 1, "problem": 1, "not measured": 3}[self.verdict]

    @property
    def remarks(self) -> list[str]:
        """The notes, preceded by a line about packages that differ."""
        differing = self.environment_differences.items()
        listed = ", ".join(f"{name} {old or 'absent'} -> {new or 'absent'}" for name, (old, new) in differing)
        return [*([f"the environments differ: {listed}"] if listed else []), *self.notes]

    @property
    def strict_status(self) -> int:
        """Exit status under a strict policy: 2 if anything is undecided and nothing is worse."""
        return 2 if self.status == 0 and self.counts.get("inconclusive", 0) else self.status


class _Schema(msgspec.Struct):
    schema: int = SCHEMA


def entries_of(cases: Sequence[Case], session: SessionResult) -> list[Entry]:
    """Return an entry for each measured case."""
    decisions = {decision.id: decision for decision in session.decision.decisions}
    pairs = {pair.id: pair for pair in session.pairs}
    unreached = set(session.unreached)
    return [
        _judged(case, pairs[case.label], decisions[case.label], session.decision.levels.get(case.label))
        if case.label in decisions
        else _unreached(case)
        if case.label in unreached
        else _unjudged(case, session.outcomes[case.label])
        for case in cases
    ]


def _judged(case: Case, pair: Pair, decision: Decision, levels: tuple[float, float] | None) -> Entry:
    gated = not larger_is_better(case)
    return Entry(
        label=case.label,
        name=case.benchmark.name,
        params=case.parameters,
        unit=pair.a.unit,
        metric=case.benchmark.metric,
        status=decision.verdict if gated else "ungated",  # type: ignore[arg-type]  # the verdicts are a part of Status
        decision=decision,
        base=levels[0] if levels else None,
        head=levels[1] if levels else None,
        base_launches=pair.a.launches,
        head_launches=pair.b.launches,
        noise=known_noise(pair),
        reason="" if gated else f"asv counts smaller as better, and {pair.a.unit} says otherwise: shown, not judged",
    )


def larger_is_better(case: Case) -> bool:
    """Whether a tracked value is a rate by its unit. asv's smaller-is-better rule would judge it the wrong way."""
    return case.benchmark.type == "track" and is_rate(case.benchmark.unit)


def _unreached(case: Case) -> Entry:
    return Entry(
        label=case.label,
        name=case.benchmark.name,
        params=case.parameters,
        unit=case.benchmark.unit,
        metric=case.benchmark.metric,
        status="unreached",
        reason="there was no time left to run it on both sides",
    )


def _unjudged(case: Case, outcomes: dict[SideName, Outcome]) -> Entry:
    base, head = outcomes["base"], outcomes["head"]
    bad = {"failed", "timeout"}
    status: Status
    if head.status == "ok":
        status, shown = "new", base
    elif base.status == "ok":
        status, shown = ("failed" if head.status in bad else "missing"), head
    elif head.status in bad:
        # If base skipped it, only head can show the failure.
        status, shown = ("failed" if base.status == "skipped" else "broken"), head
    else:
        status, shown = "skipped", head
    where = "base: " if status == "new" else ""
    return Entry(
        label=case.label,
        name=case.benchmark.name,
        params=case.parameters,
        unit=case.benchmark.unit,
        metric=case.benchmark.metric,
        status=status,
        reason=where + shown.reason,
        traceback=shown.traceback if shown.status in bad else "",
    )


def coverage_of(entries: Sequence[Entry], more: Sequence[NotCompared] = ()) -> Coverage:
    """Return how much of a session was compared.

    Args:
        entries: Every benchmark and exact metric.
        more: What was not compared and has no entry.
    """
    counts = counts_of(entries)
    undecided = counts.get("inconclusive", 0)
    left_out = [entry for status in LEFT_OUT for entry in entries if entry.status == status]
    of = [
        (f"# {noun} {LEFT_OUT[entry.status]}", f"# {noun}s {LEFT_OUT[entry.status]}", Reason(entry.status, why))
        for entry in left_out
        for noun, why in [("exact metric" if entry.metric in EXACT else "benchmark", entry.reason)]
    ]
    return Coverage(
        compared=len(entries) - len(left_out) - undecided, undecided=undecided, not_compared=(*counted(of), *more)
    )


def counts_of(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the number of entries of each status that occurs, worst first."""
    return {status: n for status in ORDER if (n := sum(entry.status == status for entry in entries))}


def badness(entry: Entry) -> float:
    """Return a sort key with the worst last: the ratio, and infinity for a regression without one (0 to 43)."""
    if entry.decision is not None and entry.decision.has_ratio:
        return entry.decision.ratio
    return math.inf if entry.status == "regression" else 0.0


def write(result: GateResult, path: Path) -> Path:
    """Write the verdict alone, as JSON.

    Raises:
        RocattnError: When the folder or disk does not take it.
    """
    return write_text(path, to_json(result))


def to_json(result: GateResult) -> str:
    """Return the verdict as JSON, which `read` reads and every other form is made from."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"


def read(path: Path) -> GateResult:
    """Read a verdict.

    Raises:
        RocattnError: When it is missing, no regular file, or not a verdict of this schema.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
        # Checked first, because a verdict of another schema may lack fields of this one.
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise RocattnError(f"{path} has schema {schema}; this rocattn reads {SCHEMA}")
        return msgspec.json.decode(data, type=GateResult)
    except OSError as error:
        raise RocattnError(f"cannot read the gate's verdict {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RocattnError(f"{path} is not a verdict of rocattn gate: {terminal(str(error))}") from error
