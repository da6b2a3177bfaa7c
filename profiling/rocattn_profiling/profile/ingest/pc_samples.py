"""Aggregate rocprofv3's PC samples by instruction, and read them from JSON and rocpd files.

`instruction_files` reads the CSV tables.

Found in ROCm/rocm-systems, projects/rocprofiler-sdk (paths below it):

* JSON: ``buffer_records.pc_sample_host_trap`` and ``pc_sample_stochastic`` of ``*_results.json``; ``inst_index`` points
  into ``strings.pc_sample_instructions`` and ``pc_sample_comments`` (source/lib/output/{generateJSON.cpp,
  pc_sample_transform.hpp}, include/rocprofiler-sdk/cxx/serialization/save.hpp).
* Reasons: ``rocprofiler_pc_sampling_instruction_not_issued_reason_t`` of include/rocprofiler-sdk/pc_sampling.h.
* rocpd: the view ``rocpd_gpu_pc_sample`` of schema 3.0.4 (2026), source/docs/how-to/using-pc-sampling.rst at 0d90e186.
  Instructions are in ``rocpd_disassembly_data`` if ``--complete-isa-decode`` was given. Before 2026 these databases
    contain no samples. Their ``exec_mask`` is text ("0x00000000ffffffff"), elsewhere a number.

A sample from an unknown code object has ``inst_index`` -1, an empty instruction, and the comment "Unrecognized code
object id": it was taken in a copy or fill kernel of the runtime, or in self-modifying code (generateCSV.cpp).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pandas as pd

from rocattn_profiling.profile.ingest.parts import Database, UnreadableError, kernel_name
from rocattn_profiling.profile.ingest.table import (
    HOST_TRAP,
    ISSUED,
    NO_DISPATCH,
    NO_PROCESS,
    SAMPLE_DTYPES,
    SAMPLED,
    STOCHASTIC,
)

REASON = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_"
REASONS = (
    "NONE", "NO_INSTRUCTION_AVAILABLE", "ALU_DEPENDENCY", "WAITCNT", "INTERNAL_INSTRUCTION", "BARRIER_WAIT",
    "ARBITER_NOT_WIN", "ARBITER_WIN_EX_STALL", "OTHER_WAIT", "SLEEP_WAIT",
)  # fmt: skip
"""The names of the reasons without the `REASON` prefix, in the order of their numbers."""
_EVERY_LANE = (1 << 64) - 1
_KEY = ("process", "dispatch", "kernel", "method", "code_object", "offset", "instruction", "source", "state")


class SampleRows:
    """Sums samples by `_KEY`, which keeps millions of samples small."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], list[int]] = {}

    def add(
        self, method: str, *, instruction: str, source: str, state: str, count: int, lanes: int = 0, hits: int = 0,
        process: int = NO_PROCESS, dispatch: int = NO_DISPATCH, kernel: str = "", code_object: int | None = None,
        offset: int | None = None,
    ) -> None:  # fmt: skip
        """Add samples, or cycles of a thread trace; see `SAMPLE_DTYPES`."""
        key = (process, dispatch, kernel, method, code_object, offset, instruction, source, state)
        sums = self._sums.setdefault(key, [0, 0, 0])
        for place, number in enumerate((count, hits, lanes)):
            sums[place] += number

    def frame(self, label: str) -> pd.DataFrame:
        """Return the samples of a pass, with columns `SAMPLE_DTYPES`."""
        rows = [(*key, *sums) for key, sums in self._sums.items()]
        table = pd.DataFrame(rows, columns=[*_KEY, "count", "hits", "lanes"], dtype="object")
        table["pass"] = label
        try:
            return table[list(SAMPLE_DTYPES)].astype(SAMPLE_DTYPES)
        except OverflowError as error:
            raise UnreadableError("it holds numbers of more than 64 bits", "this is not a profiler's file") from error


def state_of(issued: object, stall: str) -> str:
    """Return the state of a stochastic sample: issued, or the name of the stall reason."""
    return ISSUED if issued else stall.removeprefix(REASON)


def lanes_in(mask: str) -> int:
    """Count the lanes in an exec mask, decimal or "0x" hexadecimal; 0 for other text."""
    try:
        return (int(mask, 0) & _EVERY_LANE).bit_count()  # signed in drafts of rocpd
    except ValueError:
        return 0


class Address(msgspec.Struct):
    """An address."""

    handle: int = 0


class ProgramCounter(msgspec.Struct):
    """A sample's code object (0 is never a valid one) and its byte offset from the object's load base."""

    code_object_id: int = 0
    code_object_offset: int = 0


class Snapshot(msgspec.Struct):
    """The hardware's data on a stochastic sample."""

    stall_reason: str = ""


class SampleRecord(msgspec.Struct):
    """One sample."""

    pc: ProgramCounter
    dispatch_id: int = NO_DISPATCH
    exec_mask: int = 0
    wave_issued: int = 0
    snapshot: Snapshot | None = None


class IndexedSample(msgspec.Struct):
    """A sample and its instruction's index in `SampleStrings`, -1 for none."""

    record: SampleRecord
    inst_index: int = -1


class SampleStrings(msgspec.Struct):
    """Instructions, and source lines in the same order."""

    pc_sample_instructions: list[str] = []
    pc_sample_comments: list[str] = []


class LoadedObject(msgspec.Struct):
    """A loaded code object."""

    code_object_id: int = 0
    load_base: int = 0


class KernelStart(msgspec.Struct):
    """A kernel's start address and its code object."""

    code_object_id: int = 0
    kernel_address: Address = msgspec.field(default_factory=Address)


def entries_of(
    objects: Sequence[LoadedObject], kernels: Sequence[tuple[KernelStart, str]]
) -> dict[int, list[tuple[int, str]]]:
    """Return each code object's kernels, sorted by their offset from its load base."""
    bases = {each.code_object_id: each.load_base for each in objects}
    entries: dict[int, list[tuple[int, str]]] = {}
    for kernel, name in kernels:
        if kernel.code_object_id in bases and kernel.kernel_address.handle:
            offset = kernel.kernel_address.handle - bases[kernel.code_object_id]
            entries.setdefault(kernel.code_object_id, []).append((offset, kernel_name(name)))
    return {number: sorted(of_object) for number, of_object in entries.items()}


def add_records(
    rows: SampleRows, records: Mapping[str, Sequence[IndexedSample]], strings: SampleStrings, process: int,
    named: Mapping[int, str], entries: Mapping[int, list[tuple[int, str]]],
) -> None:  # fmt: skip
    """Add the samples of one process of a JSON file.

    Args:
        rows: The destination.
        records: Samples by method.
        strings: The instructions.
        process: The process id.
        named: The kernels of the dispatches described in the file.
        entries: The result of `entries_of`. For other dispatches, the last kernel that starts before a sample is taken.
    """
    alike = Counter(
        (method, each.inst_index, each.record.pc.code_object_id, each.record.pc.code_object_offset,
         each.record.dispatch_id, _state_of(each.record), each.record.exec_mask)
        for method, samples in records.items() for each in samples
    )  # fmt: skip
    texts = list(zip(strings.pc_sample_instructions, strings.pc_sample_comments, strict=False))
    for (method, index, number, offset, dispatch, state, mask), count in alike.items():
        instruction, source = texts[index] if 0 <= index < len(texts) else ("", "")
        at = {"code_object": number, "offset": offset} if number else {}
        starts = entries.get(number, [])
        before = bisect_right(starts, offset, key=lambda each: each[0])
        rows.add(
            method, instruction=instruction, source=source, state=state, count=count, lanes=count * mask.bit_count(),
            process=process, dispatch=dispatch, kernel=named.get(dispatch) or (starts[before - 1][1] if before else ""),
            **at,
        )  # fmt: skip


def _state_of(record: SampleRecord) -> str:
    return SAMPLED if record.snapshot is None else state_of(record.wave_issued, record.snapshot.stall_reason)


def samples_of_database(connection: Database, label: str) -> pd.DataFrame | None:
    """Return the samples in a rocpd database, or None if its schema has no samples."""

    def columns_of(view: str) -> set[str]:
        return {row[1] for row in connection.execute(f"PRAGMA table_info('{view}')")}

    has = columns_of("rocpd_gpu_pc_sample")
    if not {"guid", "pid", "dispatch_id", "code_object_id", "code_object_offset"} <= has:
        return None
    mask = next((f"S.{name}" for name in ("exec_mask", "exec") if name in has), "0")
    state = ("S.wave_issued", "S.stall_reason") if {"wave_issued", "stall_reason"} <= has else ("NULL", "NULL")
    text, join = ("''", "''"), ""
    if {"instruction", "comment"} <= columns_of("rocpd_disassembly_data"):
        text = ("D.instruction", "D.comment")
        join = (
            "LEFT JOIN rocpd_disassembly_data D ON D.guid = S.guid AND D.code_object_id = S.code_object_id "
            "AND D.code_object_offset = S.code_object_offset"
        )
    chosen = ", ".join(("P.pid", "S.dispatch_id", "S.code_object_id", "S.code_object_offset", mask, *state, *text))
    query = (
        f"SELECT {chosen}, COUNT(*) FROM rocpd_gpu_pc_sample S JOIN rocpd_info_process P "  # noqa: S608 - own names
        f"ON P.id = S.pid AND P.guid = S.guid {join} GROUP BY {chosen}"
    )
    rows = SampleRows()
    for pid, dispatch, number, offset, lanes, issued, reason, instruction, source, count in connection.rows(query):
        said = SAMPLED if issued is None else ISSUED if issued else _reason(reason)
        rows.add(
            HOST_TRAP if issued is None else STOCHASTIC, instruction=instruction or "", source=source or "", state=said,
            count=count, lanes=count * lanes_in(str(lanes)), process=pid, dispatch=dispatch,
            code_object=number or None, offset=offset if number else None,
        )  # fmt: skip
    return rows.frame(label)


def _reason(number: object) -> str:
    return REASONS[number] if isinstance(number, int) and 0 <= number < len(REASONS) else REASONS[0]
