"""The common table of all profilers' output: dispatches, counters, agents, and their provenance.

Two frames contain the measurements. ``dispatches`` has one row per kernel dispatch and pass (a pass is one run of the
application; a profiler repeats it for each group of counters). ``counters`` has one row per dispatch and counter, with
an index ``row`` into ``dispatches``, so kernel names and grids are stored once per dispatch, not once per counter.
`Profile.tidy` joins the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd

NO_PROCESS = -1  # the file does not say which process
NO_DISPATCH = -1  # the file does not number its dispatches

# Column -> dtype of `Profile.dispatches`. Sizes are per work-group or per work-item as the profiler reports them
# (allocated, not requested); <NA> where not stated. Nullable, because a missing count is not 0.
DISPATCH_DTYPES = {
    "process": "int32",  # process id; negative where unknown, or where two hosts share one id
    "dispatch": "int64",  # the profiler's number of the dispatch in its process
    "pass": "category",  # the run of the application: a folder, a file, or a group of columns
    "kernel": "category",
    "grid": "int64",  # work-items of the launch, x*y*z; -1 unknown
    "block": "int32",  # work-items of a work-group, x*y*z; -1 unknown
    "lds_bytes": "Int32",  # per work-group
    "scratch_bytes": "Int32",  # per work-item
    "vgprs": "Int32",  # architectural vector registers per lane
    "agprs": "Int32",  # accumulation vector registers per lane
    "sgprs": "Int32",
    "wave_size": "Int32",
    "start_ns": "Int64",  # GPU clock; <NA> where missing or impossible (End <= Start, see Profile.problems)
    "end_ns": "Int64",
    "queue": "Int64",
    "agent": "Int32",  # index of the row in Profile.agents that ran it
}
COUNTER_DTYPES = {"row": "int32", "counter": "category", "value": "float64"}
ACTIVITY_DTYPES = {  # GPU activity other than kernels: the copy engines
    "pass": "category",  # pass, process and agent as in dispatches
    "process": "int32",
    "agent": "Int32",
    "kind": "category",  # COPY or FILL
    "name": "category",  # "HOST_TO_DEVICE"
    "start_ns": "int64",  # on the same clock as the dispatches of its pass
    "end_ns": "int64",
    "bytes": "Int64",  # <NA> where not stated
}
COPY, FILL = "copy", "fill"
INSTANCE_DTYPES = {"row": "int32", "counter": "category", "instances": "int32", "max": "float64"}
AGENT_DTYPES = {
    "number": "Int32",  # the profiler's own number of the GPU; <NA> where the row describes every GPU of the run
    "node": "Int32",  # its KFD node id
    "arch": "object",  # gfx942
    "product": "object",
    "device_id": "Int32",  # of the PCI device: 0x74a1
    "cus": "Int32",
    "simds": "Int32",
    "max_waves_per_simd": "Int32",
    "max_waves_per_cu": "Int32",
    "wave_size": "Int32",  # the default; kernels may differ
    "lds_bytes": "Int64",  # per compute unit
    "xccs": "Int32",
    "shader_engines": "Int32",
    "max_clock_mhz": "float64",
    "max_memory_clock_mhz": "float64",
    "memory_channels": "Int32",
    "l2_channels": "Int32",
    "lds_banks": "Int32",
    "file": "object",
}
SUMMARY_DTYPES = {  # the profiler's per-kernel statistics (*_stats.csv): for checks, and as a last resort
    "kernel": "object",
    "calls": "int64",
    "total_ns": "float64",
    "average_ns": "float64",
    "min_ns": "float64",
    "max_ns": "float64",
    "file": "object",
}
SAMPLE_DTYPES = {  # PC samples and thread traces, added up by instruction, state and dispatch
    "pass": "category",
    "process": "int32",  # as in dispatches
    "dispatch": "int64",  # the profiler's number; -1 unknown
    "kernel": "category",  # "" if no file states it
    "method": "category",  # HOST_TRAP, STOCHASTIC or THREAD_TRACE
    "code_object": "Int64",  # the profiler's number of the loaded code object; <NA> where not stated
    "offset": "Int64",  # of the instruction from the object's load base (thread trace: its ELF address), in bytes
    "instruction": "category",  # "s_waitcnt vmcnt(0)"; "" where it could not be decoded
    "source": "category",  # "kernel.hip:118", callers after " -> "; "" without debug information
    "state": "category",  # ISSUED, SAMPLED, STALLED, IDLE, or the stall reason: "WAITCNT", ...
    "count": "int64",  # samples; cycles of the traced waves in a thread trace
    "hits": "int64",  # thread trace: how often the instruction ran, once per instruction; else 0
    "lanes": "int64",  # active lanes, added up over the samples; 0 in a thread trace
}
HOST_TRAP, STOCHASTIC, THREAD_TRACE = "host_trap", "stochastic", "thread_trace"
ISSUED, SAMPLED, STALLED, IDLE = "ISSUED", "SAMPLED", "STALLED", "IDLE"
"""States other than rocprofiler-sdk's reasons: issued, sampled without reason (host trap), a thread trace's cycles."""
ROOF_DTYPES = {  # rocprof-compute's measured roofs: bandwidths in GB/s, rates in GFLOP/s (GOP/s for integers)
    "device": "int32",
    "roof": "object",  # HBM, L2, L1, LDS, FP32, MFMA BF16, ...
    "unit": "object",  # GB/s, GFLOP/s or GOP/s
    "mean": "float64",
    "low": "float64",
    "high": "float64",
    "file": "object",
}


@dataclass(frozen=True)
class FileProblem:
    """A problem with a file, in one line, with its remedy.

    Attributes:
        file: Path as found.
        line: First line (1-based), or None for the whole file.
        what: The problem, with the number of cases.
        remedy: What the user should do, or what was done.
    """

    file: str
    line: int | None
    what: str
    remedy: str

    def __str__(self) -> str:
        """Return the problem as one readable line."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.what}; {self.remedy}"


@dataclass(frozen=True)
class Source:
    """An examined file: the tool that wrote it, with the evidence.

    Attributes:
        file: Path as found.
        tool: "rocprofv3", "rocprofv2", "rocprof", "rocprof-compute", or "" for a file not from a profiler.
        generation: The tool's layout ("7.0+", "6.3", "Omniperf 2.x", "schema 3").
        kind: Its contents ("counters", "kernel trace", "agents", "kernel statistics", ...).
        detected_by: The decisive content.
        version: The tool's own version if stated.
        rocm: The ROCm version if stated.
        skipped: Why nothing was read from it, or "".
    """

    file: str
    tool: str
    generation: str
    kind: str
    detected_by: str
    version: str = ""
    rocm: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Run:
    """One of several runs in the input files: a unique name, and the paths that select it alone."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class FileSummary:
    """The result of `describe` for one file: source, contents and problems."""

    source: Source
    kernels: int
    dispatches: int
    counters: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    samples: int = 0


def empty(dtypes: dict[str, str]) -> pd.DataFrame:
    """Return an empty frame with these columns."""
    return _template(tuple(dtypes.items())).copy()


@cache
def _template(dtypes: tuple[tuple[str, str], ...]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes})


@dataclass
class Profile:
    """All data read from one or more profiler outputs.

    Attributes:
        dispatches: One row per dispatch and pass, columns `DISPATCH_DTYPES`, index 0..n-1.
        counters: One row per dispatch and counter, columns `COUNTER_DTYPES`; ``row`` is an index into ``dispatches``.
            Values are summed over hardware instances, so ``TCC_HIT`` of a file with ``TCC_HIT[0]...`` is their sum.
            An accumulator is named after the level counter it integrates, ``SQ_LEVEL_WAVES_ACCUM`` (files call
            all of them ``SQ_ACCUM_PREV_HIRES``, the name kept in a pass without exactly one level counter).
        activities: Copies and fills by the GPUs' copy engines, columns `ACTIVITY_DTYPES`.
        instances: For counters split into instances: the number of instances and the largest value.
        agents: The GPUs, columns `AGENT_DTYPES`; a GPU not described by any file has only its number.
        summaries: The profiler's own per-kernel statistics, columns `SUMMARY_DTYPES`.
        roofs: Measured roofs, columns `ROOF_DTYPES`.
        samples: PC samples and thread traces, columns `SAMPLE_DTYPES`.
        system: File -> facts about the run (command, ROCm version, host, ...), never the environment.
        provenance: One entry per file.
        problems: In the order of the files.
        runs: The runs, if the files contain several, whose numbers must not be joined; else empty.
    """

    dispatches: pd.DataFrame = field(default_factory=lambda: empty(DISPATCH_DTYPES))
    counters: pd.DataFrame = field(default_factory=lambda: empty(COUNTER_DTYPES))
    activities: pd.DataFrame = field(default_factory=lambda: empty(ACTIVITY_DTYPES))
    instances: pd.DataFrame = field(default_factory=lambda: empty(INSTANCE_DTYPES))
    agents: pd.DataFrame = field(default_factory=lambda: empty(AGENT_DTYPES))
    summaries: pd.DataFrame = field(default_factory=lambda: empty(SUMMARY_DTYPES))
    roofs: pd.DataFrame = field(default_factory=lambda: empty(ROOF_DTYPES))
    samples: pd.DataFrame = field(default_factory=lambda: empty(SAMPLE_DTYPES))
    system: dict[str, dict[str, str]] = field(default_factory=dict)
    provenance: list[Source] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)
    runs: tuple[Run, ...] = ()

    def tidy(self, columns: Sequence[str] = tuple(DISPATCH_DTYPES)) -> pd.DataFrame:
        """Return one table: a row per counter with its dispatch's columns, then ``counter`` and ``value``.

        Dispatches without counters (a timing pass) appear once, with ``counter`` and ``value`` missing.
        """
        bare = self.dispatches.index.difference(pd.Index(self.counters["row"].unique()))
        rows = pd.concat([self.counters[["row", "counter", "value"]], pd.DataFrame({"row": bare})], ignore_index=True)
        rows["counter"] = rows["counter"].astype(self.counters["counter"].dtype)
        table = self.dispatches.loc[rows["row"].to_numpy(), list(columns)].reset_index(drop=True)
        table["counter"] = rows["counter"]
        table["value"] = rows["value"]
        return table

    def ordinals(self) -> pd.Series:
        """Number each dispatch among those in its pass with the same kernel, grid, block and GPU.

        These numbers join the passes: each pass reran the application, so dispatch numbers and their order may differ,
        but the third launch of a kernel on a grid is the third in every pass. Numbers follow the dispatch numbers,
        process by process. GPUs are numbered separately only if every dispatch's GPU is known, since launches on
        several GPUs interleave differently in each run.
        """
        rows = self.dispatches
        by_gpu = ["agent"] if rows["agent"].notna().all() else []
        keys = ["pass", "kernel", "grid", "block", *by_gpu]
        order = rows[keys].iloc[np.lexsort((rows["dispatch"], rows["process"], rows["pass"].cat.codes))]
        return order.groupby(keys, observed=True, sort=False, dropna=False).cumcount().sort_index().astype("int32")
