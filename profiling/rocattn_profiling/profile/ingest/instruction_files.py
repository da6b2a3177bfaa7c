"""Readers of rocprofv3's per-instruction output: PC samples as CSV, and decoded thread traces.

Found in ROCm/rocm-systems, projects/rocprofiler-sdk (paths below it) at 1b1610fc (August 2025):

* CSV, ROCm 6.4 and later: source/lib/output/generateCSV.cpp, examples in
  source/docs/data/pc_sampling_{host_trap_debug,stochastic_debug}.csv. Host trap: Sample_Timestamp, Exec_Mask,
  Dispatch_Id, Instruction, Instruction_Comment, Correlation_Id. Stochastic (7.0) adds Wave_Issued_Instruction,
    Instruction_Type, Stall_Reason, Wave_Count; the reason is meaningful only if no instruction was issued. Neither
    states code object, offset or kernel: a kernel trace of the same run (``--kernel-trace``) names the kernel.
* Thread traces (``--att``, ROCm 7.0 and later): ``stats_*.csv`` and ``ui_output_*/code.json`` of
  source/lib/att-tool/{code.cpp,profile_interface.cpp}. The table has CodeObj, Vaddr, Instruction, Hitcount, Latency,
  Stall, Idle, Source; the documents write "Codeobj" (source/docs/how-to/using-thread-trace.rst). A kernel's
  instructions follow a line without cycles: "; " and its mangled name as the instruction, its demangled name as the
  source. ``code.json`` has the same rows as arrays, in the order that its ``header`` names.

A trace covers the waves on one compute unit of each traced shader engine. Latency is stall plus issue (gfx10 and later:
execution) time; idle is the time between the end of a wave's previous instruction and this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from rocattn_profiling.profile.ingest.columns import plain
from rocattn_profiling.profile.ingest.csv_text import Header, blocks
from rocattn_profiling.profile.ingest.json_results import decode
from rocattn_profiling.profile.ingest.parts import DROPPED, MISSING, FilePart, Notes, UnreadableError, kernel_name
from rocattn_profiling.profile.ingest.pc_samples import SampleRows, lanes_in, state_of
from rocattn_profiling.profile.ingest.small_csv import rows_of
from rocattn_profiling.profile.ingest.table import HOST_TRAP, IDLE, ISSUED, SAMPLED, STALLED, STOCHASTIC, THREAD_TRACE

TRACE_COLUMNS = ("codeobj", "vaddr", "instruction", "hitcount", "latency", "stall", "idle", "source")
_WANTED = {
    "exec_mask": ("exec_mask", "label"), "dispatch_id": ("dispatch", "int"), "instruction": ("instruction", "label"),
    "instruction_comment": ("source", "label"), "wave_issued_instruction": ("issued", "int"),
    "stall_reason": ("reason", "label"),
}  # fmt: skip
_IN_JSON = {"isa": "instruction", "hit": "hitcount"}  # names of code.json's header that differ
_NAME = "; "


class TraceCode(msgspec.Struct):
    """``code.json``."""

    code: list[list[Any]]
    header: str = ""


def read_pc_samples(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a ``*_pc_sampling_host_trap.csv`` or ``*_pc_sampling_stochastic.csv``."""
    notes = Notes(part.source.file)
    wanted = {
        ours: (position, kind)
        for position, name in enumerate(map(plain, header.names)) if name in _WANTED
        for ours, kind in [_WANTED[name]]
    }  # fmt: skip
    method = STOCHASTIC if wanted.keys() >= {"reason", "issued"} else HOST_TRAP
    rows = SampleRows()
    for block in blocks(path, header, wanted, notes):
        table = pd.DataFrame({name: pd.Series(values) for name, values in block.columns.items()})
        counts = table.groupby(list(wanted), observed=True, sort=False).size().reset_index(name="count")
        for cell in counts.to_dict("records"):
            count = int(cell["count"])
            if MISSING in {cell["dispatch"], cell.get("issued")}:
                notes.add("{n} [sample|samples] without a dispatch or a state", "dropped", count=count)
                continue
            instruction = str(cell["instruction"])
            rows.add(
                method, dispatch=int(cell["dispatch"]), instruction=instruction,
                source=str(cell["source"]) if instruction else "", count=count,
                state=state_of(cell["issued"], str(cell["reason"])) if method == STOCHASTIC else SAMPLED,
                lanes=count * lanes_in(str(cell["exec_mask"])),
            )  # fmt: skip
    part.samples = rows.frame(part.pass_label)
    part.problems += notes.problems()
    return part if len(part.samples) else part.skip("it contains no samples: the kernels were too short")


def read_trace_csv(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a ``stats_*.csv``."""
    return _fill(part, ({plain(name): text for name, text in row.items()} for row in rows_of(path, header)))


def read_trace_json(path: Path, part: FilePart) -> FilePart:
    """Read a ``code.json``.

    Raises:
        UnreadableError: When its header does not name what a thread trace has.
    """
    trace: TraceCode = decode(path, TraceCode)
    names = [_IN_JSON.get(name, name) for name in map(plain, trace.header.split(","))]
    if not set(TRACE_COLUMNS) <= set(names):
        raise UnreadableError(
            "its header does not name instructions and cycles", "decode the trace with rocprofv3 of ROCm 7.0 or later"
        )
    return _fill(part, (dict(zip(names, map(str, row), strict=False)) for row in trace.code))


def _fill(part: FilePart, table: Iterable[Mapping[str, str]]) -> FilePart:
    """Add up the cycles of each instruction by state."""
    notes = Notes(part.source.file)
    rows = SampleRows()
    kernel = ""
    for row in table:
        instruction, source = row.get("instruction", ""), row.get("source", "")
        if instruction.startswith(_NAME):
            kernel = kernel_name(source or instruction.removeprefix(_NAME))
            continue
        try:
            number, offset, hits, latency, stall, idle = (
                int(row[name]) for name in ("codeobj", "vaddr", "hitcount", "latency", "stall", "idle")
            )
        except (KeyError, ValueError):
            notes.add("{n} [line is not an instruction|lines are not instructions] with cycles", DROPPED)
            continue
        if min(number, offset, hits, latency, idle) < 0 or not 0 <= stall <= latency:
            notes.add("{n} [instruction|instructions] with more stalled cycles than cycles", "dropped")
            continue
        cycles = {ISSUED: latency - stall, STALLED: stall, IDLE: idle}
        for state, count in cycles.items():
            if count or state == ISSUED:  # ISSUED carries the execution count, 0 for code that did not run
                rows.add(
                    THREAD_TRACE, instruction=instruction, source=source, state=state, count=count, kernel=kernel,
                    code_object=number, offset=offset, hits=hits if state == ISSUED else 0,
                )  # fmt: skip
    part.samples = rows.frame(part.pass_label)
    part.problems += notes.problems()
    if not part.samples["hits"].any():
        part.samples = part.samples[:0]
        return part.skip("no instruction was traced: no wave ran on the traced compute unit (--att-target-cu)")
    return part


def trace_key(samples: pd.DataFrame) -> int:
    """Hash a trace, so that its table and its ``code.json`` get the same number."""
    numbers = samples[["code_object", "offset", "state", "count", "hits"]].astype("str")
    return int(pd.util.hash_pandas_object(numbers, index=False).sum())
