"""How the time went: busy, compute, exposed communication, copies, idle, and which GPU comes last to collectives.

The parts are those of TraceLens (``GPUEventAnalyser.compute_metrics_dict``: unions of intervals; communication is
exposed where no compute runs, a copy where neither does; the span is from the first start to the last end) and of
HolisticTraceAnalysis (``get_temporal_breakdown``), but for the HIP runtime's copy and fill kernels and a memset, which
are copies here and compute there.

Only a pass without counters tells: a profiler that counts runs kernels one at a time, and waits in between.

A trace is of an application if it has at least `_FEW` launches of at least `_KINDS` kernels, of which most follow on
another kernel, and if the numbers of the launches have few holes, which a filter or a cut leaves. A micro-benchmark
repeats one kernel, and waits for its host on purpose: its idle time is no fault.
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
"""Parts of the span in the picture."""
_HEAD = re.compile(r"[<(]")
_FEW, _KINDS, _REPEATED = 50, 3, 0.5
_MISSING = 0.05  # share of the launches that may be missing: some profilers drop a few
_AT_ONCE = 0.5  # share of the collectives whose launches overlap on all GPUs, from which their clocks are one
COMPUTE, COMMUNICATION, COPIES = range(3)
_PART = {"": COMPUTE, "collective": COMMUNICATION, "runtime": COPIES}
Kind = Literal["", "runtime", "collective"]
"""Whose work a kernel's time is: its own (""), or that of the HIP runtime or of other GPUs (see ``kinds.toml``)."""
Unknown = Literal["", "counted", "durations", "one_launch", "part"]
"""Why the time line is not known: for programs."""


@dataclass(frozen=True, slots=True)
class IdleGap:
    """One wait of a GPU: its length, when it began after the first launch, and the names around it."""

    ns: int
    since_ns: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class GpuTime:
    """How the time of one GPU went, in one process; parts are disjoint and sum to the span.

    Attributes:
        name: "GPU 4", "GPU 4, process 12"; "the GPU" if it is the only one.
        span_ns: From the start of the first to the end of the last kernel or copy.
        compute_ns: In which kernels with work of their own run.
        exposed_ns: In which collectives run and no such kernel.
        copies_ns: In which only copies and fills run.
        communication_ns: In which collectives run, whatever else does.
        launches: Kernels.
        waits: How often it was idle.
        gaps: The longest waits.
        bins: Shares of compute, exposed communication and copies in equal parts of the span, for the picture.
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
        """In which a kernel or a copy runs."""
        return self.compute_ns + self.exposed_ns + self.copies_ns

    @property
    def idle_ns(self) -> int:
        """In which nothing does."""
        return self.span_ns - self.busy_ns


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The launches of collectives on all GPUs.

    Attributes:
        launches: How many.
        total_ns, median_ns, longest_ns: Of their durations.
        half: The longest launches that hold half of the time.
    """

    launches: int
    total_ns: int
    median_ns: float
    longest_ns: int
    half: int


@dataclass(frozen=True, slots=True)
class StartSkew:
    """How far apart GPUs come to the same collective.

    Attributes:
        matched: Collectives that were found on several GPUs.
        gpus: Of how many.
        last: The GPU that makes the others wait longest.
        times_last: In how many of them it is the last.
        median_ns, longest_ns: From the first start to the last one.
        waited_ns: What GPUs waited for the last one, all of them together.
        for_last_ns: What of it they waited for `last`.
        by_duration: Whether the GPUs share no clock: then the shortest launch of a collective is the last to start.
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
    """How the time went, of one pass without counters.

    Attributes:
        gpus: Each GPU and process; empty if it is unknown.
        unknown: Why it is unknown; "" if it is not.
        collectives: None if there are none.
        skew: None if it is not known.
        kernels: Different kernels with work of their own.
        missing: Launches that the files number, but do not have, if they are many.
        is_application: Whether its idle time is the program's: see the head of the module.
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
    """Return what kind of kernel a name is of, "" for one with work of its own, by ``kinds.toml``."""
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
    """The union of intervals, sorted and apart."""

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
        """What they cover."""
        return int(self._before[-1])

    def until(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what they cover before each of these times."""
        if not len(self.starts):
            return np.zeros(len(times), np.int64)
        at = np.searchsorted(self.starts, times, "right")
        last = np.maximum(at - 1, 0)
        inside = np.minimum(times, self.ends[last]) - self.starts[last]
        return np.where(at > 0, self._before[last] + inside, 0)


def timeline(profile: Profile) -> Timeline:
    """Return how the time of a profile went, of its longest pass without counters and samples."""
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
    numbers = numbered.groupby("process")["dispatch"]  # also those without times
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
    """Return kernels and copies of the pass, sorted by their start; or why there is none."""
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
    """Return the rows of each GPU and process that launched kernels, by its name."""
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
    """Return who comes last to collectives: the n-th launch of a kernel is the same collective on each GPU.

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
        return None  # one process has one clock: these are not the same collectives
    late = np.zeros((2, len(names)), np.int64)  # what the others waited for each, and how often it was the last
    spreads: list[NDArray[np.int64]] = []
    for (gpus, times), same in zip(pairs, at_once, strict=True):
        begins = -np.diff(times, axis=2)[..., 0] if by_duration else times[:, same, 0]
        behind = begins.max(axis=0) - begins
        spreads.append(behind.max(axis=0))
        last = gpus[behind.argmin(axis=0)]  # of those that are equally late the first
        np.add.at(late[0], last, behind.sum(axis=0))
        np.add.at(late[1], last, spreads[-1] > 0)
    spread, worst = np.concatenate(spreads), int(late[0].argmax())
    several = len(set(np.concatenate([gpus for gpus, _ in pairs]).tolist()))
    return StartSkew(
        len(spread), several, names[worst], int(late[1, worst]), float(np.median(spread)), int(spread.max()),
        int(late[0].sum()), int(late[0, worst]), by_duration,
    )  # fmt: skip


def to_json(time: Timeline) -> dict[str, Any]:
    """Return a time line as JSON-ready values, without the picture's."""
    gpus = [
        {name: value for name, value in asdict(gpu).items() if name != "bins"}
        | {"busy_ns": gpu.busy_ns, "idle_ns": gpu.idle_ns}
        for gpu in time.gpus
    ]
    return asdict(time) | {"gpus": gpus}
