"""The records of the gate: both sides, what is measured and how, its result, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec

from rocattn_profiling.asv.launch import Case, Outcome, Request, Suite
from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason, counted
from rocattn_profiling.gate.planning.pace import Pace, TimeLimit, Tracing
from rocattn_profiling.gate.rule.pairs import Count, Decision, Number, Pair, PairLaunch
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import SuiteDecision
from rocattn_profiling.measure.records import Machine
from rocattn_profiling.revisions.git import Revision

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Loaded

_COMPARABLE = 3  # times as many samples are still comparable: a busy machine takes 4 where a quiet one takes 12
SCHEMA = 1
Overall = Literal["pass", "regression", "problem", "inconclusive", "not measured"]
Status = Literal[
    "regression", "improvement", "pass", "inconclusive", "unreached", "new", "missing", "failed", "void", "broken",
    "skipped", "removed", "ungated", "waived",
]  # fmt: skip
# Worst first; undecided comes before fine.
ORDER: tuple[Status, ...] = (
    "regression", "failed", "missing", "void", "removed", "unreached", "inconclusive", "waived", "broken",
    "improvement", "ungated", "new", "skipped", "pass",
)  # fmt: skip
JUDGED: tuple[Status, ...] = ("regression", "improvement", "pass", "inconclusive")
LOST: tuple[Status, ...] = ("failed", "missing", "void", "removed")
"""Statuses of benchmarks that base has and that were not compared: without them there is no pass."""
LEFT_OUT: dict[Status, str] = {
    "failed": "that fails on head", "missing": "missing on head", "void": "without two sides", "removed": "removed",
    "unreached": "not reached in time", "broken": "broken on both sides", "skipped": "skipped",
    "ungated": "not judged", "new": "that runs only on head",
}  # fmt: skip
"""Statuses of what was not compared, and what a person calls it."""
CAUSE = "cause"  # in the place of a metric: of all benchmarks of a cause
METRICS = ("time", "mem", "peakmem", "track", "audit", "workspace", "plan", "exact")
EXACT = frozenset({"audit", "workspace", "plan", "exact"})  # metrics of plug-ins: read off, not measured
SideName = Literal["base", "head"]
SIDES: tuple[SideName, SideName] = ("base", "head")


class CaseLauncher(Protocol):
    """Starts the processes of one side: `rocattn_profiling.asv.launch.Launcher` does for asv's suites."""

    @property
    def python(self) -> str:
        """The interpreter of the side's environment."""

    @property
    def scratch(self) -> Path:
        """A folder of the side's for working files."""

    @property
    def shared(self) -> tuple[Path, ...]:
        """The files and folders that both sides take from head, and that no change can be in."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a launch."""

    def discover(self) -> Suite:
        """List the benchmarks in this environment.

        Raises:
            SuiteError: When they cannot be listed at all.
        """

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Measure a case once in a fresh process; never raises for a benchmark's failure.

        Raises:
            OutOfTimeError: When ``within_s`` ended first.
        """

    def end_server(self) -> None:
        """End what was kept to fork launches from."""

    def call_command(self, name: str, label: str, answer: Path | None = None) -> tuple[str, ...]:
        """Return a command that calls a benchmark, unmeasured, and ends as programs do."""

    def loaded(
        self, name: str, label: str, trace: Sequence[str] = (), *, module: str = "", within_s: float = math.inf
    ) -> Loaded | None:
        """Call a benchmark, unmeasured, and return what it loads; None if it does not run, or not in time.

        Args:
            name: The benchmark.
            label: The same with its parameters.
            trace: Names of the source files, without folders, whose functions to trace.
            module: Its module, if calls are to share one import of it; else empty.
            within_s: The caller's own limit.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a session measures, and how.

    Attributes:
        cases: The benchmarks, each with one combination of parameters.
        policy: When to look at the launches, and how to decide.
        policies: Label -> the policy of a case that has its own.
        request: How a launch samples.
        seed: Determines every order.
        steps: Label -> how many calls away from the benchmark the change is; without those that it does not reach.
        pace: What launches are expected to take.
        limit: When to end; by default never.
        runs_change: Says of a benchmark whether it runs anything that differs, or None where that is not known. None
            where every benchmark is to be measured.
        tracing: What it is expected to say.
    """

    cases: Sequence[Case]
    policy: Policy
    policies: Mapping[str, Policy] = field(default_factory=dict)
    request: Request
    seed: int
    steps: Mapping[str, int] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    limit: TimeLimit = field(default_factory=lambda: TimeLimit.begin(0.0))
    runs_change: Callable[[Case], bool | None] | None = None
    tracing: Tracing | None = None

    def policy_of(self, case: Case) -> Policy:
        """Return the policy of one case."""
        return self.policies.get(case.label, self.policy)

    @property
    def looks(self) -> list[int]:
        """The rounds after which any case is looked at."""
        return sorted({look for policy in (self.policy, *self.policies.values()) for look in policy.looks})


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a session measured.

    Attributes:
        pairs: The stored pair of every case that ran on both sides.
        decision: Their verdicts.
        outcomes: Per label and side, the first launch or the failed one.
        launches: Number of processes with samples.
        repeated: How many of those repeat a slow launch.
        unreached: Labels that the time limit left without a launch on both sides.
        open: Labels that are undecided for lack of time.
    """

    pairs: list[Pair]
    decision: SuiteDecision
    outcomes: dict[str, dict[SideName, Outcome]]
    launches: int
    repeated: int
    unreached: list[str] = []
    open: list[str] = []

    @property
    def stopped(self) -> bool:
        """Whether there was not enough time for everything."""
        return bool(self.unreached or self.open)


class BenchmarkKey(msgspec.Struct, frozen=True, kw_only=True):
    """What launches on one machine must have in common to be comparable.

    Attributes:
        label: The benchmark with its parameters.
        version: Of its code, by asv; another version starts a new history.
        python: Major and minor version of the interpreter.
        sample_ns, budget_ns: The requested sampling, in which quick and full runs differ.
    """

    label: str
    version: str
    python: str
    sample_ns: int
    budget_ns: int


class PastSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Launches of identical code, side by side in time.

    Attributes:
        start_us: Unix time of the first in microseconds, which identifies a session.
        samples: How many samples a launch had.
        wall: Location of each launch by wall time (or its value), in the benchmark's unit.
        cpu: The same by CPU time; empty when unknown.
        canary: Time of the canary in each launch, in ns; empty when unknown.
    """

    start_us: float
    samples: int
    wall: list[float]
    cpu: list[float] = []
    canary: list[float] = []

    def launches(self) -> list[PairLaunch]:
        """Return the launches in the form of a pair's history."""
        columns = zip(self.wall, self.cpu or [0.0] * len(self.wall), self.canary or [0.0] * len(self.wall), strict=True)
        return [
            PairLaunch(round=index, samples=[wall], cpu=[cpu] if self.cpu else [], canary=canary)
            for index, (wall, cpu, canary) in enumerate(columns)
        ]


class BenchmarkHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one benchmark, the newest last."""

    key: BenchmarkKey
    sessions: list[PastSession]


class NoiseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's history came from.

    Attributes:
        path: The record; "" when none was to be read.
        why_not: Why there is no history, one line; "" when it was read.
    """

    path: str = ""
    why_not: str = ""


class KnownNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one benchmark in numbers.

    Attributes:
        sessions, launches: How many.
        value: Typical distance of a launch from the median of its session, as a standard deviation in logs.
    """

    sessions: Count
    launches: Count
    value: Number


class EarlierNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The history that a run began with; stored with its launches, so that a resumed run decides the same."""

    source: NoiseSource = NoiseSource()
    benchmarks: list[BenchmarkHistory] = []

    def history(self, label: str, samples: int) -> list[list[PairLaunch]]:
        """Return the sessions of a benchmark whose launches had about as many samples, the newest last."""
        sessions = (session for past in self.benchmarks if past.key.label == label for session in past.sessions)
        return [s.launches() for s in sessions if max(s.samples, samples) <= _COMPARABLE * min(s.samples, samples)]


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
            cannot run it), "missing" (only head lacks it), "failed" (ran on base, fails on head), "void" (base
            has it, and it did not run each side's own code), "broken" (fails on both), "skipped" (by itself, on both),
            "removed" (from the suite, whole or in part), "ungated" (a larger value is better), "unreached" (the time
            limit ended before both sides ran once), "waived" (a regression or removal that is accepted).
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

    @property
    def lost(self) -> bool:
        """Whether base has it and it was not compared. A kernel that is gone is a change of code, not of the suite."""
        return self.status in LOST and not (self.status == "removed" and self.metric in EXACT)

    @property
    def worse(self) -> bool:
        """Whether it fails the gate."""
        return self.status == "regression" or self.lost

    @property
    def place(self) -> Location | None:
        """Where its likeliest cause is: a changed line if there is one."""
        places = [cause.location for cause in self.causes if cause.location is not None and cause.kind == "source"]
        places += [cause.location for cause in self.causes if cause.location is not None]
        return places[0] if places else None


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
        verdict: "pass", "regression", "problem" (a waiver has expired or is unused), "inconclusive" or "not measured".
        sentence: The verdict in one sentence.
        created_ms: Unix time of the verdict.
        base, head: The two sides.
        machine: Where it was measured; None for result files of others.
        in_turns: Whether launches of both sides are known to alternate.
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
    machine: Machine | None = None
    in_turns: bool = True
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


def decision_of(label: str, status: Status, ratio: float, reason: str) -> Decision:
    """Return the decision on an exact number: nothing is left to chance."""
    return Decision(
        id=label, verdict=status, ratio=ratio, ratio_low=ratio, ratio_high=ratio, p=0.0, rounds_used=0, reason=reason
    )
