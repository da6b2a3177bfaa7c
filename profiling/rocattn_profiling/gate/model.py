"""The gate's records: both sides, the design of a session, its result, and the verdict."""

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

_COMPARABLE = 3  # sample counts within this factor are comparable: a busy machine takes 4 where a quiet one takes 12
SCHEMA = 1
Overall = Literal["pass", "regression", "problem", "inconclusive", "not measured"]
Status = Literal[
    "regression", "improvement", "pass", "inconclusive", "unreached", "new", "missing", "failed", "void", "broken",
    "skipped", "removed", "ungated", "waived",
]  # fmt: skip
# Worst first; undecided before passed.
ORDER: tuple[Status, ...] = (
    "regression", "failed", "missing", "void", "removed", "unreached", "inconclusive", "waived", "broken",
    "improvement", "ungated", "new", "skipped", "pass",
)  # fmt: skip
JUDGED: tuple[Status, ...] = ("regression", "improvement", "pass", "inconclusive")
LOST: tuple[Status, ...] = ("failed", "missing", "void", "removed")
"""Statuses of base's benchmarks that were not compared; with any of these, the gate does not pass."""
LEFT_OUT: dict[Status, str] = {
    "failed": "that fails on head", "missing": "missing on head", "void": "without two sides", "removed": "removed",
    "unreached": "not reached in time", "broken": "broken on both sides", "skipped": "skipped",
    "ungated": "not judged", "new": "that runs only on head",
}  # fmt: skip
"""Statuses of what was not compared, and their descriptions in text."""
CAUSE = "cause"  # in place of a metric: all benchmarks that share a cause
METRICS = ("time", "mem", "peakmem", "track", "audit", "workspace", "plan", "exact")
EXACT = frozenset({"audit", "workspace", "plan", "exact"})  # plug-ins' metrics: exact numbers, not measurements
SideName = Literal["base", "head"]
SIDES: tuple[SideName, SideName] = ("base", "head")


class CaseLauncher(Protocol):
    """Starts one side's processes; `rocattn_profiling.asv.launch.Launcher` implements it for asv suites."""

    @property
    def python(self) -> str:
        """The interpreter of this side's environment."""

    @property
    def scratch(self) -> Path:
        """This side's folder for working files."""

    @property
    def shared(self) -> tuple[Path, ...]:
        """The files and folders that both sides take from head, so that they cannot contain a change."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of a launch."""

    def discover(self) -> Suite:
        """List the benchmarks in this environment.

        Raises:
            SuiteError: They cannot be listed at all.
        """

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Measure a case once in a fresh process; a benchmark's failure does not raise.

        Raises:
            OutOfTimeError: ``within_s`` ended first.
        """

    def end_server(self) -> None:
        """End the server process that launches are forked from."""

    def call_command(self, name: str, label: str, answer: Path | None = None) -> tuple[str, ...]:
        """Return a command that calls a benchmark without measuring and then exits normally."""

    def loaded(
        self, name: str, label: str, trace: Sequence[str] = (), *, module: str = "", within_s: float = math.inf
    ) -> Loaded | None:
        """Call a benchmark without measuring; return what it loads, or None if it fails or does not finish in time.

        Args:
            name: The benchmark.
            label: The benchmark with its parameters.
            trace: File names, without folders, of the sources whose functions to trace.
            module: The benchmark's module if calls share one import of it; otherwise empty.
            within_s: The caller's time limit in seconds.
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
        steps: Label -> number of calls from the benchmark to the change; without benchmarks that do not reach it.
        pace: The expected duration of launches.
        limit: When to stop; by default never.
        runs_change: Returns whether a benchmark runs any code that differs, or None if unknown. None to measure every
            benchmark.
        tracing: The expected results of ``runs_change``.
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
        """Return a case's policy."""
        return self.policies.get(case.label, self.policy)

    @property
    def looks(self) -> list[int]:
        """The numbers of rounds after which any case has a look."""
        return sorted({look for policy in (self.policy, *self.policies.values()) for look in policy.looks})


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a session measured.

    Attributes:
        pairs: The stored pair of every case that ran on both sides.
        decision: The verdicts on the pairs.
        outcomes: Per label and side, the first launch or the failed one.
        launches: Number of processes with samples.
        repeated: How many of those are repeats of slow launches.
        unreached: Labels that were not launched on both sides before the time limit.
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
        """Whether the time limit ended the session early."""
        return bool(self.unreached or self.open)


class BenchmarkKey(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that launches on one machine must share to be comparable.

    Attributes:
        label: The benchmark with its parameters.
        version: asv's version of its code; a new version starts a new history.
        python: The interpreter's major and minor version.
        sample_ns, budget_ns: The requested sampling in ns, which differs between quick and full runs.
    """

    label: str
    version: str
    python: str
    sample_ns: int
    budget_ns: int


class PastSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Launches of identical code, adjacent in time.

    Attributes:
        start_us: Unix time of the first launch in microseconds; it identifies the session.
        samples: How many samples a launch had.
        wall: Location of each launch by wall time (or its value), in the benchmark's unit.
        cpu: The same by CPU time; empty when unknown.
        canary: Canary time of each launch, in ns; empty if unknown.
    """

    start_us: float
    samples: int
    wall: list[float]
    cpu: list[float] = []
    canary: list[float] = []

    def launches(self) -> list[PairLaunch]:
        """Return the launches in the format of a pair's history."""
        columns = zip(self.wall, self.cpu or [0.0] * len(self.wall), self.canary or [0.0] * len(self.wall), strict=True)
        return [
            PairLaunch(round=index, samples=[wall], cpu=[cpu] if self.cpu else [], canary=canary)
            for index, (wall, cpu, canary) in enumerate(columns)
        ]


class BenchmarkHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark's sessions, newest last."""

    key: BenchmarkKey
    sessions: list[PastSession]


class NoiseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's history came from.

    Attributes:
        path: The noise record; "" if none was requested.
        why_not: Why there is no history, one line; "" if it was read.
    """

    path: str = ""
    why_not: str = ""


class KnownNoise(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of one benchmark's history.

    Attributes:
        sessions, launches: Their number.
        value: Typical deviation of a launch from its session's median, as a standard deviation of the log time.
    """

    sessions: Count
    launches: Count
    value: Number


class EarlierNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The history at the start of a run; stored with the launches, so that a resumed run decides the same."""

    source: NoiseSource = NoiseSource()
    benchmarks: list[BenchmarkHistory] = []

    def history(self, label: str, samples: int) -> list[list[PairLaunch]]:
        """Return a benchmark's sessions whose launches had about as many samples, newest last."""
        sessions = (session for past in self.benchmarks if past.key.label == label for session in past.sessions)
        return [s.launches() for s in sessions if max(s.samples, samples) <= _COMPARABLE * min(s.samples, samples)]


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A location in the repository: a path relative to its top folder, and a 1-based line."""

    path: str
    line: int = 1


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between base and head that may have changed a benchmark.

    Attributes:
        kind: "machine code", "launch", "backend", "counters", "environment" or "source".
        text: The difference, in one sentence with numbers.
        about: The metric of a machine-code finding, "flash path" if that was lost, otherwise "".
        location: The source line, if there is one.
        diff: The changed lines there, each prefixed with "-" or "+"; empty if not known.
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
        unit: "ns" for times, otherwise the benchmark's unit.
        status: A verdict ("regression", "improvement", "pass", "inconclusive"), or why there is none: "new" (base
            cannot run it), "missing" (only head lacks it), "failed" (runs on base, fails on head), "void" (base
            has it, but it did not run each side's own code), "broken" (fails on both), "skipped" (by itself, on both),
            "removed" (from the suite, whole or in part), "ungated" (a larger value is better), "unreached" (the time
            limit came before both sides ran once), "waived" (an accepted regression or removal).
        metric: "time", "mem", "peakmem", "track", or for exact metrics "audit", "workspace" or "plan".
        arch: The gfx target of an exact metric; otherwise empty.
        causes: Differences on this benchmark's path, likeliest first; empty unless it is worse.
        waiver: Reason and issue of the waiver that accepts this; empty without one.
        rule: The limits that the repository's thresholds set for it, with file and line; empty for the run's rule.
        suspect: Whether it is undecided but likely slower: at most one in ten of these is expected to be unchanged.
        noise: Its noise as known before the run; None if unknown.
        decision: Ratio, interval, p, rounds and reason; None without a verdict.
        base, head: Low end of each side in ``unit``, for the quantity that decided; None if not measured.
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
        """Whether base has it and it was not compared. A removed kernel is a code change, not a gap in the suite."""
        return self.status in LOST and not (self.status == "removed" and self.metric in EXACT)

    @property
    def worse(self) -> bool:
        """Whether it makes the gate fail."""
        return self.status == "regression" or self.lost

    @property
    def place(self) -> Location | None:
        """The location of its likeliest cause: a changed line if there is one."""
        places = [cause.location for cause in self.causes if cause.location is not None and cause.kind == "source"]
        places += [cause.location for cause in self.causes if cause.location is not None]
        return places[0] if places else None


class SideFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One side: its revision, and the environment it ran in.

    Attributes:
        revision: The revision that was built; None for an existing environment.
        interpreter: The Python of an existing environment; "" for a revision.
        python, packages: Python version, and name -> version of every importable package.
        offline: Whether it uses the running interpreter's dependencies instead of the revision's own.
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
    """How long a run was expected to take, how long it took, and what it left open.

    Attributes:
        limit_s: The ``--max-time`` limit in seconds; 0 without one.
        estimate_s: The estimate before measuring, low and high end, in seconds; 0 and 0 without one.
        measured_s: Seconds from the end of the builds to the verdict, without preparations, for this run only (not
            for one it resumed).
        benchmarks: How many were to be measured.
        stopped: Whether the limit ended the run; the same command then continues with the rest.
        unreached: Benchmarks that were not measured once on both sides.
        open: Benchmarks that are undecided only for lack of time.
        remedy: How to decide the undecided and measure the rest, one line; "" if nothing is left.
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
        schema: The version of this structure.
        verdict: "pass", "regression", "problem" (a waiver has expired or is unused), "inconclusive" or "not measured".
        sentence: The verdict in one sentence.
        created_ms: Unix time of the verdict, in ms.
        base, head: The two sides.
        machine: Where it was measured; None for result files of other tools.
        in_turns: Whether the two sides' launches are known to alternate.
        environment_differences: Package -> [version in base, version in head], where they differ.
        policy: The rule and its thresholds.
        quick, seed, launches: How it was measured; ``launches`` counts processes.
        suite: The benchmark folder; ``patterns`` selected from it.
        suite_shift: Geometric mean of all benchmarks' ratios.
        canary_shift: Median ratio of fixed work in the same processes.
        invalid: Why the session as a whole does not count; empty if it does.
        again: The command that repeats the comparison with the whole suite; empty if the sides' names do not allow it.
        notes: Notes for the reader in addition to the verdicts.
        problems: Why the gate fails apart from its verdicts: waivers that are expired or unused.
        noise: Where the noise history came from; None if the run did not look for any.
        budget: The time that the run was expected to take, was given, and took.
        counts: Status -> number of entries.
        not_compared: What was not compared: entries with such a status, and what was left out without an entry.
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
        """What was left out without an entry."""
        return [each for each in self.not_compared if each.code not in LEFT_OUT]

    @property
    def status(self) -> int:
        """Exit status if undecided is acceptable: 0 pass, inconclusive; 1 regression, problem; 3 not measured."""
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
        more: What was left out without an entry.
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
    """Return the number of entries per status, worst first; only statuses that occur."""
    return {status: n for status in ORDER if (n := sum(entry.status == status for entry in entries))}


def badness(entry: Entry) -> float:
    """Return a sort key, worst last: the ratio, or infinity for a regression without one (0 to 43)."""
    if entry.decision is not None and entry.decision.has_ratio:
        return entry.decision.ratio
    return math.inf if entry.status == "regression" else 0.0


def decision_of(label: str, status: Status, ratio: float, reason: str) -> Decision:
    """Return the decision on an exact number, which has no uncertainty."""
    return Decision(
        id=label, verdict=status, ratio=ratio, ratio_low=ratio, ratio_high=ratio, p=0.0, rounds_used=0, reason=reason
    )
