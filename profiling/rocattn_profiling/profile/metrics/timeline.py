"""How the time was spent: busy, compute, exposed communication, copies, idle, and which GPU is late to collectives.

The parts are those of TraceLens (``GPUEventAnalyser.compute_metrics_dict``: unions of intervals; communication is
exposed where no compute runs, a copy where neither does; the span is from the first start to the last end) and of
HolisticTraceAnalysis (``get_temporal_breakdown``), except that the HIP runtime's copy and fill kernels and memsets are
copies here and compute there.

Only passes without counters are used: to count, a profiler runs kernels one at a time and waits between them.

A trace shows an application if it has at least `_FEW` launches of at least `_KINDS` kernels, if most launches follow a
different kernel, and if the launch numbers have few gaps, which filters leave. A microbenchmark repeats one kernel and
waits for its host on purpose, so its idle time is not a defect.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.table import NO_PROCESS, Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAPS = 5
BINS = 240
"""Number of bins of the span in the picture."""
_HEAD = re.compile(r"[<(]")
_FEW, _KINDS, _REPEATED = 50, 3, 0.5
_MISSING = 0.05  # share of the launches that may be missing: some profilers drop a few
_AT_ONCE = 0.5  # share of collectives that must overlap on all GPUs for their clocks to be in sync
COMPUTE, COMMUNICATION, COPIES = range(3)
_PART = {"": COMPUTE, "collective": COMMUNICATION, "runtime": COPIES}
Kind = Literal["", "runtime", "collective"]
"""What a kernel's time is spent on: its own work (""), the HIP runtime, or waiting for other GPUs (``kinds.toml``)."""
Unknown = Literal["", "counted", "durations", "one_launch", "part"]
"""Why the timeline is unknown: machine-readable."""


@dataclass(frozen=True, slots=True)
class IdleGap:
    """One wait of a GPU: its length and start (from the first launch) in ns, and the kernels before and after."""

    ns: int
    since_ns: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class GpuTime:
    """How the time of one GPU was spent, in one process; the parts are disjoint and sum to the span.

    Attributes:
        name: "GPU 4", "GPU 4, process 12"; "the GPU" if it is the only one.
        span_ns: From the start of the first to the end of the last kernel or copy.
        compute_ns: Time with kernels that have work of their own.
        exposed_ns: Time with collectives and no such kernel.
        copies_ns: Time with only copies and fills.
        communication_ns: Time with collectives, whatever else runs.
        launches: Number of kernel launches.
        waits: Number of times that it was idle.
        gaps: The longest waits.
        bins: Shares of compute, exposed communication and copies in `BINS` equal parts of the span.
    """

    name: str
    span_ns: int
    compute_ns: int
    exposed_ns: int
    copies_ns: int
    communication_ns: int
    launches: int
    waits: int
    gaps: tuple[IdleGap, ...]
    bins: tuple[tuple[float, float, float], ...]

    @property
    def busy_ns(self) -> int:
        """Time with a kernel or a copy."""
        return self.compute_ns + self.exposed_ns + self.copies_ns

    @property
    def idle_ns(self) -> int:
        """Time with neither."""
        return self.span_ns - self.busy_ns


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The launches of collectives on all GPUs.

    Attributes:
        launches: Their number.
        total_ns, median_ns, longest_ns: Their durations.
        half: Number of the longest launches that take half of the time.
    """

    launches: int
    total_ns: int
    median_ns: float
    longest_ns: int
    half: int


@dataclass(frozen=True, slots=True)
class StartSkew:
    """How far apart GPUs start the same collective.

    Attributes:
        matched: Number of collectives found on several GPUs.
        gpus: Number of these GPUs.
        last: The GPU that the others wait for longest.
        times_last: Number of collectives in which it is last.
        median_ns, longest_ns: From the first start to the last one.
        waited_ns: Total time that GPUs waited for the last one.
        for_last_ns: The part of it spent waiting for `last`.
        by_duration: Whether the GPUs' clocks differ; then the shortest launch of a collective is the last to start.
    """

    matched: int
    gpus: int
    last: str
    times_last: int
    median_ns: float
    longest_ns: int
    waited_ns: int
    for_last_ns: int
    by_duration: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """How the time of one pass without counters was spent.

    Attributes:
        gpus: Each GPU and process; empty if unknown.
        unknown: Why it is unknown; "" if it is known.
        collectives: None if there are none.
        skew: None if unknown.
        kernels: Number of different kernels with work of their own.
        missing: Number of launches missing from the files, by their numbering; 0 if only a few are.
        is_application: Whether its idle time is the program's; see the module docstring.
    """

    gpus: tuple[GpuTime, ...] = ()
    unknown: Unknown = ""
    collectives: CollectiveTime | None = None
    skew: StartSkew | None = None
    kernels: int = 0
    missing: int = 0
    is_application: bool = False


@cache
def kind_of(kernel: str) -> Kind:
    """Return the kind of a kernel by its name (``kinds.toml``); "" for one with work of its own."""
    head = _HEAD.split(kernel.replace("(anonymous namespace)::", "").strip(), maxsplit=1)[0]
    unless, kinds = _table()
    if unless.search(head):
        return ""
    return next((kind for kind, pattern in kinds if pattern.search(head)), "")


@cache
def _table() -> tuple[re.Pattern[str], list[tuple[Kind, re.Pattern[str]]]]:
    table = tomllib.loads(files(__package__).joinpath("kinds.toml").read_text("utf-8"))
    unless = re.compile("|".join(f"(?:{each})" for each in table["unless"]))
    return unless, [(each["name"], re.compile(each["pattern"])) for each in table["kind"]]


class Intervals:
    """The union of intervals, sorted and disjoint."""

    def __init__(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > reached[:-1]
        self.starts = start[first]
        self.ends = reached[np.append(np.flatnonzero(first)[1:] - 1, len(reached) - 1)] if len(start) else reached
        self._before = np.concatenate([[0], np.cumsum(self.ends - self.starts)])

    @property
    def length(self) -> int:
        """The length that they cover."""
        return int(self._before[-1])

    def until(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length that they cover before each of these times."""
        if not len(self.starts):
            return np.zeros(len(times), np.int64)
        at = np.searchsorted(self.starts, times, "right")
        last = np.maximum(at - 1, 0)
        inside = np.minimum(times, self.ends[last]) - self.starts[last]
        return np.where(at > 0, self._before[last] + inside, 0)


def timeline(profile: Profile) -> Timeline:
    """Return how the time was spent in the pass with the most timed launches and no counters or samples."""
    rows = _rows(profile)
    if isinstance(rows, str):
        return Timeline(unknown=rows)
    names = rows["name"].cat
    part = np.array([_PART[kind_of(str(name))] for name in names.categories], np.int8)
    rows["part"] = np.where(rows["is_copy"], COPIES, part[names.codes]) if len(part) else COPIES
    lanes = _lanes(rows, profile.agents)
    launched = rows[~rows["is_copy"]]
    numbered = profile.dispatches[
        (profile.dispatches["pass"] == rows["pass"][0]) & (profile.dispatches["dispatch"] >= 0)
    ]
    numbers = numbered.groupby("process")["dispatch"]  # including those without times
    missing = int((numbers.max() - numbers.min() + 1 - numbers.nunique()).sum())
    missing = missing if missing > _MISSING * len(launched) else 0
    held = launched[launched["part"] == COMMUNICATION]
    skew = _skew({name: lane[lane["part"] == COMMUNICATION] for name, lane in lanes.items()})
    own = launched[launched["part"] == COMPUTE]
    kernels = own["name"].nunique()
    repeated = sum(
        int((codes[1:] == codes[:-1]).sum())
        for codes in (lane.loc[lane["part"] == COMPUTE, "name"].cat.codes.to_numpy() for lane in lanes.values())
    )
    return Timeline(
        tuple(_gpu(name, lane) for name, lane in lanes.items()), "", _collectives(held), skew, kernels, missing,
        len(own) >= _FEW and kernels >= _KINDS and repeated < _REPEATED * len(own) and not missing,
    )  # fmt: skip


def _rows(profile: Profile) -> pd.DataFrame | Unknown:
    """Return the kernels and copies of that pass, sorted by start, or why there is none."""
    table = profile.dispatches
    passes = table["pass"].cat.codes.to_numpy()
    disturbed = {*np.unique(passes[profile.counters["row"].unique()])}
    sampled = set(profile.samples["pass"].unique())
    labels = list(table["pass"].cat.categories)
    disturbed |= {code for code, label in enumerate(labels) if label in sampled}
    timed = (table["start_ns"].notna() & table["end_ns"].notna()).to_numpy()
    usable = ~np.isin(passes, list(disturbed))
    counts = np.bincount(passes[timed & usable], minlength=1)
    longest = int(counts.argmax())
    chosen = timed & usable & (passes == longest)
    if not chosen.any():
        return "counted" if timed.any() else "durations"
    kernels: pd.DataFrame = table.loc[chosen, ["process", "agent", "start_ns", "end_ns"]].assign(
        name=table.loc[chosen, "kernel"].cat.remove_unused_categories(), is_copy=False
    )
    if len(kernels) == 1:
        return "one_launch"
    if kernels["start_ns"].nunique() == 1 and kernels["agent"].nunique() < len(kernels):
        return "durations"
    copies = profile.activities
    copies = copies[(copies["pass"] == labels[longest]).to_numpy()]
    if len(copies):
        own = kernels["process"].unique()
        process = copies["process"].where(copies["process"] != NO_PROCESS, own[0]) if len(own) == 1 else None
        copies = copies[["process", "agent", "start_ns", "end_ns", "name"]].assign(is_copy=True)
        copies["process"] = copies["process"] if process is None else process
        united = pd.concat([kernels["name"].astype("object"), copies["name"].astype("object")], ignore_index=True)
        kernels = pd.concat([kernels, copies], ignore_index=True).assign(name=united.astype("category"))
    kernels[["start_ns", "end_ns"]] = kernels[["start_ns", "end_ns"]].astype("int64")
    kernels["pass"] = labels[longest]
    return kernels.sort_values("start_ns", kind="stable", ignore_index=True)


def _lanes(rows: pd.DataFrame, agents: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each GPU and process that launched kernels, by name."""
    groups: list[Any] = [
        (owner, lane) for owner, lane in rows.groupby(["agent", "process"], dropna=False) if not lane["is_copy"].all()
    ]
    numbers = [agents["number"].iloc[int(agent)] if pd.notna(agent) else pd.NA for (agent, _), _ in groups]
    gpus = [f"GPU {number}" if pd.notna(number) else "a GPU" for number in numbers]
    if len(set(gpus)) < len(gpus):
        gpus = [f"{gpu}, process {process}" for gpu, ((_, process), _) in zip(gpus, groups, strict=True)]
    if len(set(gpus)) < len(gpus):  # GPUs of several hosts have the same number
        gpus = [f"{gpu}, no. {place}" for place, gpu in enumerate(gpus, 1)]
    return dict(zip(gpus if len(gpus) > 1 else ["the GPU"], (lane for _, lane in groups), strict=True))


def _gpu(name: str, lane: pd.DataFrame) -> GpuTime:
    start, end, part = (lane[column].to_numpy() for column in ("start_ns", "end_ns", "part"))
    compute, moved, everything, communication = (
        Intervals(start[of], end[of])
        for of in (part == COMPUTE, part != COPIES, part >= COMPUTE, part == COMMUNICATION)
    )
    first, last = int(start[0]), int(end.max())
    edges = np.linspace(first, last, BINS + 1).astype(np.int64)
    covered = np.stack([compute.until(edges), moved.until(edges), everything.until(edges)])
    shares = np.diff(np.diff(covered, prepend=0, axis=0), axis=1) / np.maximum(np.diff(edges), 1)
    return GpuTime(
        name, last - first, compute.length, moved.length - compute.length, everything.length - moved.length,
        communication.length, int((~lane["is_copy"]).sum()), len(everything.starts) - 1, _gaps(lane, everything),
        tuple((float(a), float(b), float(c)) for a, b, c in shares.T.round(4)),
    )  # fmt: skip


def _gaps(lane: pd.DataFrame, busy: Intervals) -> tuple[IdleGap, ...]:
    waits = busy.starts[1:] - busy.ends[:-1]
    start, end, names = lane["start_ns"].to_numpy(), lane["end_ns"].to_numpy(), lane["name"].astype("object").to_numpy()
    return tuple(
        IdleGap(
            int(waits[at]), int(busy.ends[at] - busy.starts[0]), str(names[np.argmax(end == busy.ends[at])]),
            str(names[np.argmax(start == busy.starts[at + 1])]),
        )
        for at in np.argsort(-waits, kind="stable")[:GAPS]
    )  # fmt: skip


def _collectives(held: pd.DataFrame) -> CollectiveTime | None:
    if not len(held):
        return None
    lengths = np.sort((held["end_ns"] - held["start_ns"]).to_numpy())[::-1]
    half = int(np.searchsorted(np.cumsum(lengths), lengths.sum() / 2)) + 1
    return CollectiveTime(len(lengths), int(lengths.sum()), float(np.median(lengths)), int(lengths[0]), half)


def _skew(lanes: Mapping[str, pd.DataFrame]) -> StartSkew | None:
    """Return which GPU is late to collectives: the n-th launch of a kernel is the same collective on each GPU.

    Only kernels that several GPUs launched equally often are compared.
    """
    names = list(lanes)
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    table = [{str(name): rows for name, rows in lane.groupby("name", observed=True)} for lane in lanes.values()]
    for name in dict.fromkeys(name for of_lane in table for name in of_lane):
        having = [number for number, of_lane in enumerate(table) if name in of_lane]
        counts = [len(table[number][name]) for number in having]
        most = max(sorted(set(counts), reverse=True), key=counts.count)
        alike = [number for number, count in zip(having, counts, strict=True) if count == most]
        if len(alike) > 1:
            times = np.stack([table[number][name][["start_ns", "end_ns"]].to_numpy(np.int64) for number in alike])
            pairs.append((np.array(alike, np.int64), times))
    if not pairs:
        return None
    at_once = [times[..., 0].max(axis=0) < times[..., 1].min(axis=0) for _, times in pairs]
    by_duration = float(np.concatenate(at_once).mean()) < _AT_ONCE
    if by_duration and len({process for lane in lanes.values() for process in lane["process"]}) == 1:
        return None  # one process has one clock, so these are different collectives
    late = np.zeros((2, len(names)), np.int64)  # the time that others waited for each GPU, and how often it was last
    spreads: list[NDArray[np.int64]] = []
    for (gpus, times), same in zip(pairs, at_once, strict=True):
        begins = -np.diff(times, axis=2)[..., 0] if by_duration else times[:, same, 0]
        behind = begins.max(axis=0) - begins
        spreads.append(behind.max(axis=0))
        last = gpus[behind.argmin(axis=0)]  # the first of equally late ones
        np.add.at(late[0], last, behind.sum(axis=0))
        np.add.at(late[1], last, spreads[-1] > 0)
    spread, worst = np.concatenate(spreads), int(late[0].argmax())
    several = len(set(np.concatenate([gpus for gpus, _ in pairs]).tolist()))
    return StartSkew(
        len(spread), several, names[worst], int(late[1, worst]), float(np.median(spread)), int(spread.max()),
        int(late[0].sum()), int(late[0, worst]), by_duration,
    )  # fmt: skip


def to_json(time: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON-ready values, without the picture's bins."""
    gpus = [
        {name: value for name, value in asdict(gpu).items() if name != "bins"}
        | {"busy_ns": gpu.busy_ns, "idle_ns": gpu.idle_ns}
        for gpu in time.gpus
    ]
    return asdict(time) | {"gpus": gpus}
