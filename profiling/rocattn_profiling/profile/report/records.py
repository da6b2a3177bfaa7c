"""The records of a profile report: limits, findings, verdicts and hot spots of each kernel, and the report itself."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.kernels.model.occupancy import Occupancy
from rocattn_profiling.pages.quantities import quantity
from rocattn_profiling.profile.ingest.table import THREAD_TRACE, Profile
from rocattn_profiling.profile.metrics.aggregate import MetricValue
from rocattn_profiling.profile.metrics.definitions import definitions
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.metrics.formula import Condition, Formula
from rocattn_profiling.profile.metrics.timeline import Kind, Timeline
from rocattn_profiling.profile.metrics.units import LaunchShape, LongLaunches

ReasonCode = Literal[
    "bound", "idle_units", "short", "straggler", "sampled", "far", "no_gpu", "times_only", "stood_still", "not_counted",
    "not_countable", "waste", "impossible", "unknown_fact", "not_of_this", "no_flops", "no_peak",
]  # fmt: skip
"""Which limit bounds a kernel, or why a number is unknown: machine-readable."""
FEWEST = 200
"""Minimum number of a kernel's samples for ranking its lines: at 200, a share of 30 % is uncertain by 6 points."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A note, a piece of advice or a next command, and its condition."""

    when: tuple[Condition, ...]
    says: str


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """One limit; the head of ``limits.toml`` explains the fields."""

    key: str
    name: str
    of: str
    exact: tuple[Formula, ...]
    at_least: tuple[Formula, ...]
    parts: tuple[Formula, ...]
    counted_by: tuple[str, ...]
    essential: bool
    measured: tuple[tuple[Formula, str], ...]
    waiting: tuple[Formula, ...]
    waiting_name: str
    waiting_advice: str
    sure: tuple[Condition, ...]
    let: dict[str, Formula]
    notes: tuple[Clause, ...]
    advice: tuple[Clause, ...]
    label: str
    less: str
    next: tuple[Clause, ...]

    def countable(self, arch: str) -> str:
        """Return the metric that measures it on an architecture; "" if none does."""
        ways = {metric.key: metric.for_arch(arch) for metric in definitions().metrics if metric.key in self.counted_by}
        return next((key for key in self.counted_by if ways[key]), "")


@dataclass(frozen=True, slots=True)
class Bound:
    """How close a kernel is to one limit.

    Attributes:
        key, name: Of the limit.
        pct: Its share of the limit; 0 to 100.
        is_least: Whether the true share may be larger.
        is_part: Whether only part of the work was counted.
        where: The share in words: "at 79 % of the time or more".
        notes: Further observations in words; "" for none.
        advice: How to make a kernel at this limit faster.
        label: What the share measures: "LDS busy".
        less: What can gain more than the same work: "fewer LDS cycles".
        command: Command that finds the cause.
        numbers: Inputs of the share and numbers in the notes, by name.
        of_measured: Percent of what a benchmark in the same run, or copies on this GPU, reached; None if unknown.
        is_waiting: Whether its share includes time in which the unit waited for the level behind it. Then it bounds
            nothing, and any other near limit comes first.
    """

    key: str
    name: str
    pct: float
    is_least: bool
    is_part: bool
    where: str
    notes: str
    advice: str
    label: str
    less: str
    command: str
    numbers: dict[str, float]
    of_measured: float | None = None
    is_waiting: bool = False

    @property
    def reached(self) -> float:
        """Percent of the attainable: of the peak, or of what the benchmark reached, if that is less."""
        return max(self.pct, self.of_measured or 0.0)

    @property
    def short(self) -> str:
        """The limit and the share: "LDS at least 79 %"."""
        return f"{self.name} {'at least ' if self.is_least else ''}{self.pct:.0f} %"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How close a kernel is to all limits.

    Attributes:
        known: Limits with a known share, the nearest first.
        uncounted: Essential limits that the GPU can count, but whose share is unknown or only partly known.
        uncountable: Essential limits that it cannot count.
        beyond: Those of `uncounted` above their peak, because a cache behind them served part of the traffic.
    """

    known: tuple[Bound, ...]
    uncounted: tuple[HardwareLimit, ...]
    uncountable: tuple[HardwareLimit, ...]
    beyond: AbstractSet[str] = frozenset()

    @property
    def nearest(self) -> Bound | None:
        """The nearest of the known limits."""
        return self.known[0] if self.known else None

    def without(self, keys: AbstractSet[str]) -> float:
        """Return the share of the nearest limit except these; 0 if no share is known."""
        return max(
            (bound.reached for bound in self.known if bound.key not in keys and not bound.is_waiting), default=0.0
        )


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """One suggested optimization.

    Attributes:
        key: The rule, or the limit: "lds-bound".
        title: What kernels with this finding have in common: "LDS bound".
        sentence: The suggestion with the numbers behind it.
        gain: Upper bound, as a share of all kernels' time (0 to 1); None if unbounded or without times.
        rank: Sort key: the gain if there is one.
        numbers: Its inputs by name.
        command: Command that finds the cause; "" for none.
        is_too_low: Whether its inputs are too low: then its sentence ends with `TOO_LOW` and its gain has no bound.
        less: What gains more than the bound, which assumes the same work: "fewer LDS cycles"; "" for nothing.
        waste: Upper bound of the wasted part of the kernel's own time (0 to 1); 0 if it is not a waste.
    """

    key: str
    title: str
    sentence: str
    gain: float | None
    rank: float
    numbers: dict[str, float]
    command: str
    is_too_low: bool = False
    less: str = ""
    waste: float = 0.0

    @property
    def gain_text(self) -> str:
        """The upper bound of its gain in words."""
        if self.gain is None:
            return "gain not known"
        share = 100 * self.gain
        more = f", more with {self.less}" if self.less else ""
        return f"at most {share:{'.0f' if share >= 10 else '.2g'}} % of all kernels' time{more}"  # 100, not 1e+02


@dataclass(frozen=True, slots=True)
class Stall:
    """What a kernel's waves mostly wait for, from PC samples or a thread trace.

    Attributes:
        pct: Percent of the samples or traced cycles.
        title: As a diagnosis: "vector memory latency".
        text: With its share: "62 % of its samples wait for vector memory".
        advice: What usually helps.
        command: Command that collects counters for more detail.
    """

    pct: float
    title: str
    text: str
    advice: str
    command: str


class Verdict(Reason[ReasonCode], frozen=True):
    """The limit that bounds a kernel, or why it is unknown; the remedy is the command to run next, or "".

    In a remedy, PATH, COMMAND, FILE and NAME stand for the profile's files, the profiled program, its code objects and
    a GPU's name.

    Attributes:
        brief: The verdict in a few words, for a table: "LDS bound".
        finding: The key of the finding that the sentence comes from; "" for none.
    """

    brief: str = ""
    finding: str = ""


@dataclass(frozen=True)
class HotInstruction:
    """One instruction.

    Attributes:
        text: As disassembled; "" if the files do not have it.
        address: Its code object and offset; "" if the files do not say.
        caller: The line that it is inlined into ("flash.h:217"); "" for none.
        count: Samples, or cycles of a thread trace.
        causes: Cause -> count, the largest first.
        hits: Number of executions in a thread trace; otherwise 0.
        cycles: Cycles that a lone wave needs to issue it; None if unknown.
        lanes: Active lanes on average; None in a thread trace.
    """

    text: str
    address: str
    caller: str
    count: int
    causes: dict[str, int]
    hits: int
    cycles: float | None
    lanes: float | None


@dataclass(frozen=True)
class HotLine:
    """One source line, or one instruction without a line.

    Attributes:
        place: "kernel.hip:118"; for an instruction without a line, its address or its text.
        source: The line as in the files, with the lines that it is inlined into; "" for none.
        count: Samples, or cycles of a thread trace.
        causes: Cause -> count, the largest first.
        cycles: Cycles of all its instructions in the table, counting each once; None if unknown.
        instructions: The hottest first.
    """

    place: str
    source: str
    count: int
    causes: dict[str, int]
    cycles: float | None
    instructions: list[HotInstruction]

    @property
    def wait(self) -> str:
        """The key of the largest cause except issuing; "" if it always issues."""
        return next((key for key in self.causes if key != "issued"), "")


@dataclass(frozen=True)
class HotSpots:
    """The hot spots of a kernel by one method.

    Attributes:
        kernel: Its name; "" if no file says which kernels were sampled.
        number: Its number in the report's tables; None if it has none.
        method: `HOST_TRAP`, `STOCHASTIC` or `THREAD_TRACE`.
        total: Samples, or cycles of a thread trace.
        launches: Sampled launches; 0 if the files do not say.
        causes: Cause -> count, the largest first.
        lanes: Active lanes on average; None in a thread trace.
        lines: The hottest first.
        no_cycles: Why no instruction has cycles, or "".
        finding: What to do about the hottest line; None if nothing stands out.
        remedy: The command to run next; "" for none.
    """

    kernel: str
    number: int | None
    method: str
    total: int
    launches: int
    causes: dict[str, int]
    lanes: float | None
    lines: list[HotLine]
    no_cycles: str
    finding: KernelFinding | None = None
    remedy: str = ""

    @property
    def unit(self) -> str:
        """What is counted."""
        return "traced cycles" if self.method == THREAD_TRACE else "samples"

    @property
    def few(self) -> bool:
        """Whether there are too few samples to rank lines."""
        return self.method != THREAD_TRACE and self.total < FEWEST

    @property
    def uncertainty(self) -> float:
        """Uncertainty of a share of one half in percentage points (95 %), if samples are independent."""
        return float(98 / math.sqrt(self.total))

    def share(self, count: int) -> float:
        """Return a count's share of the total, in percent."""
        return 100 * count / self.total


@dataclass(frozen=True)
class KernelProfile:
    """The launches of one kernel, shape and GPU (or one launch, in a report per dispatch).

    Attributes:
        name: As written by the profiler.
        label: The attention problem that it solved; "" if unknown.
        dispatch, process: In a report per dispatch; otherwise None.
        device: The GPU; None if no file names it.
        launches: Number of launches.
        shape: Their blocks.
        where: Which of several GPUs or processes ran them, in words: "GPU 5", "8 GPUs"; "" if there is only one.
        gpus: The profiler's GPU numbers.
        long: The few launches that hold much of the time; None for none.
        grids: The different (work-items, block) of its launches, the most frequent first.
        resources: `RESOURCES` of its first launch, as allocated; None if the files do not have them.
        time_ns: Percentile -> time of a launch; empty without times.
        total_ns, time_share: Sum over its launches, and their share of all kernels' time.
        values: Metric -> value.
        counters: Counter -> mean over the launches; empty if `bounds` is None.
        occupancy: The occupancy that registers and LDS allow; if None, `occupancy_unknown` has the reason.
        bounds: How close it is to each limit; None for the HIP runtime's own kernels.
        findings: Suggested optimizations, the largest gain first.
        verdict: Which limit bounds it, or why that is unknown; None if `bounds` is None.
        kind: What its time is spent on; only kernels with work of their own are judged.
    """

    name: str
    label: str
    dispatch: int | None
    process: int | None
    device: Device | None
    launches: int
    shape: LaunchShape
    where: str
    gpus: tuple[int, ...]
    long: LongLaunches | None
    grids: tuple[tuple[int, int], ...]
    resources: dict[str, int | None]
    time_ns: dict[int, float]
    total_ns: float
    time_share: float
    values: dict[str, MetricValue]
    counters: dict[str, float]
    occupancy: Occupancy | None
    occupancy_unknown: str
    bounds: Bounds | None
    findings: list[KernelFinding]
    verdict: Verdict | None
    kind: Kind = ""

    @property
    def noun(self) -> str:
        """What a row of its report is called."""
        return "kernel" if self.dispatch is None else "launch"

    @property
    def facts(self) -> list[str]:
        """What its launches have in common and how they differ: blocks, GPU, spread of times, long launches."""
        facts = [self.shape.text, self.where]
        if self.launches > 1 and self.time_ns:
            least, most = (quantity(self.time_ns[each] / 1e9, "seconds") for each in (10, 90))
            facts.append(f"p10-p90 {least} to {most}" if least != most else "")
        facts.append(self.long.text if self.long else "")
        return [fact for fact in facts if fact]


@dataclass
class ProfileReport:
    """Everything that the templates and the JSON show.

    Attributes:
        per: "kernel" or "dispatch".
        kernels: In descending order of total time, the HIP runtime's own last; single launches in order of dispatch.
        devices: The GPUs that ran them.
        profile: What was read.
        problems: Defects of the files or of their counters, one line each.
        left_out: Metric -> why values were dropped.
        counters_left_out: Counter -> number of launches whose value was dropped; `problems` says why.
        missing: Metric -> why no kernel has it.
        hot_spots: From PC samples and thread traces, the kernels with the most samples first.
        not_hot: Which samples are in none of them, or "".
        paths: The files and folders that were read, as given on the command line; for next commands.
        command: The profiled program, if a `rocattn profile` collection has it; for next commands.
        timeline: How the time was spent.
        chosen: Which launches were chosen, in words; "" for all.
    """

    per: str
    kernels: list[KernelProfile]
    devices: list[Device]
    profile: Profile
    problems: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    hot_spots: list[HotSpots] = field(default_factory=list)
    not_hot: str = ""
    paths: list[str] = field(default_factory=list)
    command: tuple[str, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)
    counters_left_out: dict[str, int] = field(default_factory=dict)
    chosen: str = ""
