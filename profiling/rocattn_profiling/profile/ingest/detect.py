"""Detect a file's tool, generation and kind from its content, and choose its reader.

File names are ignored, since users rename files. A ``*_stats.csv`` of kernels differs from one of API calls only in the
names it lists.
"""

from __future__ import annotations

import csv
import itertools
import re
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rocattn_profiling.base.markup import plain
from rocattn_profiling.profile.ingest import columns
from rocattn_profiling.profile.ingest.copies import read_copies
from rocattn_profiling.profile.ingest.csv_text import HEADER_BYTES, Header, Utf8, parse_header
from rocattn_profiling.profile.ingest.foreign import DATABASES, JSONS, named_other, named_table, named_text, read_proton
from rocattn_profiling.profile.ingest.instruction_files import (
    TRACE_COLUMNS,
    read_pc_samples,
    read_trace_csv,
    read_trace_json,
)
from rocattn_profiling.profile.ingest.json_results import read_chrome_trace, read_json
from rocattn_profiling.profile.ingest.kineto import read_kineto
from rocattn_profiling.profile.ingest.long_csv import read_by_number, read_long
from rocattn_profiling.profile.ingest.parts import FilePart, UnreadableError
from rocattn_profiling.profile.ingest.rocpd import open_database, read_rocpd
from rocattn_profiling.profile.ingest.small_csv import (
    read_agents,
    read_rocminfo,
    read_roofline,
    read_statistics,
    read_sysinfo,
)
from rocattn_profiling.profile.ingest.table import Source
from rocattn_profiling.profile.ingest.wide_csv import read_wide

HEAD_BYTES = 1 << 16
_ROCMINFO = re.compile(rb"(?m)^HSA (?:System Attributes|Agents)\s*$")

_TRACE_CODE = re.compile(rb'\s*\{\s*"code"\s*:\s*\[\s*\[\s*"')
# Detected facts: tool, generation, kind and evidence.
Facts = tuple[str, str, str, str]

_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|trace_id)"\s*:'
    rb'|"cat"\s*:\s*"(?:kernel|cpu_op|cuda_runtime|ac2g|python_function|user_annotation|gpu_\w+)"|PyTorch Profiler'
)
_PROTON = re.compile(rb'\s*\[\s*\{(?=.{0,4000}"frame"\s*:)(?=.{0,60000}"metrics"\s*:)', re.DOTALL)
KINETO = "PyTorch profiler"
V3, V2, V1, COMPUTE = "rocprofv3", "rocprofv2", "rocprof", "rocprof-compute"


@dataclass(frozen=True)
class DetectedFile:
    """A file with its detected format.

    Attributes:
        path: The file.
        source: Everything known before it is read; ``skipped`` is the reason if there is nothing to read.
        reader: Reads the file into a part; None if there is nothing to read.
        family: "csv", "json", "rocpd" or "chrome": formats that one run may write side by side.
    """

    path: Path
    source: Source
    reader: Callable[[FilePart], FilePart] | None = None
    family: str = "csv"

    def is_log_of_compute(self) -> bool:
        """Return whether rocprof-compute wrote this text."""
        return self.source.kind == "other" and self.source.tool == COMPUTE


def detect(path: Path, shown: str) -> DetectedFile:
    """Return a file's format; never raises because of its content.

    Args:
        path: The file.
        shown: The file's name in messages.

    Raises:
        OSError: When the file cannot be read at all.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        return _nothing(path, shown, "not a regular file")
    if about.st_size == 0:
        return _nothing(path, shown, "the file is empty: the profiler wrote nothing, or was aborted", kind="broken")
    try:
        return _by_content(path, shown)
    except UnreadableError as error:
        return _nothing(path, shown, f"{error.what}; {error.remedy}", kind="broken")


def _by_content(path: Path, shown: str) -> DetectedFile:
    stream = Utf8(path)
    try:
        head = stream.read(HEAD_BYTES)
        raw = path.open("rb")
        with raw:
            magic = raw.read(HEAD_BYTES)
        if magic[:16] == b"SQLite format 3\0":
            return _sqlite(path, shown)
        text = head.lstrip()
        recognised = _json(path, shown, head) if re.match(rb"\{|\[\s*[\[{\"]", text) else None
        if stream.is_compressed and head.startswith(b"SQLite format 3"):
            why = "a compressed database, which is not read: decompress it with gunzip"
            return _nothing(path, shown, why, kind="broken")
        if recognised is not None:
            return recognised
        while b"\n" not in head and len(head) < HEADER_BYTES and (more := stream.read(HEAD_BYTES)):
            head += more
    finally:
        stream.close()
    header = parse_header(head)
    if header is not None:
        recognised = _csv(path, shown, _as_filled(header, head), head)
        if recognised is not None:
            return recognised
    if _ROCMINFO.search(head):
        source = Source(shown, V1 if head.startswith(b"CMD:") else "rocminfo", "", "agents", "rocminfo's HSA Agents")
        return DetectedFile(path, source, lambda part: read_rocminfo(path, part))
    tool, why = named_other(path, magic, head, stream.nuls)
    return _nothing(path, shown, why, tool=tool)


def _as_filled(header: Header, head: bytes) -> Header:
    """Return a header without the two columns that rocprofv2 (6.1) names but omits from rows in rocprof v1's layout."""
    names = [name for name in header.names if name not in {"sig", "obj"}]
    first = next((line for line in head[header.bytes :].splitlines() if line.strip()), b"")
    try:
        row = next(csv.reader([first.decode(errors="replace")], delimiter=header.delimiter), [])
    except csv.Error:
        row = []
    return replace(header, names=names) if len(row) == len(names) == len(header.names) - 2 else header


def _nothing(path: Path, shown: str, why: str, *, tool: str = "", kind: str = "other") -> DetectedFile:
    return DetectedFile(path, Source(shown, tool, "", kind, "", skipped=why))


def _sqlite(path: Path, shown: str) -> DetectedFile:
    try:
        with closing(open_database(path)) as connection:
            names = {name for (name,) in connection.rows("SELECT name FROM sqlite_master")}
            for table, tool, why in DATABASES:
                if table in names:
                    return _nothing(path, shown, why, tool=tool)
            if "rocpd_metadata" in names:
                rows = itertools.islice(connection.rows("SELECT tag, value FROM rocpd_metadata"), 64)
                schema = str(dict(rows).get("schema_version", "unknown"))
                source = Source(shown, V3, f"schema {schema}", "rocpd database", "SQLite with view rocpd_metadata")
                return DetectedFile(path, source, lambda part: read_rocpd(path, part), "rocpd")
            if any(name.startswith("rocpd_") for name in names):
                why = "it has rocpd tables without their views; write it with rocprofv3 of ROCm 7.0 or later"
                return _nothing(path, shown, why, kind="broken")
    except (sqlite3.Error, UnreadableError, UnicodeDecodeError, MemoryError) as error:  # messages quote damaged text
        why = f"the database is damaged or cut off ({plain(str(error))}); profile again"
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_ROLLBACK:
            why = f"the program that wrote the database was killed midway ({path.name}-journal remains); profile again"
        return _nothing(path, shown, why, kind="broken")
    return _nothing(path, shown, "a SQLite database that no known profiler wrote")


def _json(path: Path, shown: str, head: bytes) -> DetectedFile:
    if b'"rocprofiler-sdk-tool"' in head:
        source = Source(shown, V3, "6.2 or later", "results JSON", 'key "rocprofiler-sdk-tool"')
        return DetectedFile(path, source, lambda part: read_json(path, part), "json")
    if _TRACE_CODE.match(head):
        source = Source(shown, V3, "7.0 or later", "thread trace", 'key "code" with an array of instructions')
        return DetectedFile(path, source, lambda part: read_trace_json(path, part), "json")
    if b'"traceEvents"' in head and (b'"BeginNs"' in head or b"CPU HIP API" in head):
        source = Source(shown, V1, "", "trace JSON", "traceEvents with BeginNs")
        return DetectedFile(path, source, lambda part: read_chrome_trace(path, part), "chrome")
    if _KINETO.search(head):
        source = Source(shown, KINETO, "", "trace JSON", "traceEvents of PyTorch's profiler")
        return DetectedFile(path, source, lambda part: read_kineto(path, part), "chrome")
    if _PROTON.match(head):
        source = Source(shown, "proton", "", "kernel statistics", 'a tree with "frame" and "metrics"')
        return DetectedFile(path, source, lambda part: read_proton(path, part), "json")
    tool, why = named_text(head, JSONS) or ("", "a JSON file that no known profiler wrote")
    return _nothing(path, shown, why, tool=tool)


def _csv(path: Path, shown: str, header: Header, head: bytes) -> DetectedFile | None:
    """Return the format of a CSV file, or None if the header is not from a profiler."""
    names = {columns.plain(name) for name in header.names}
    ours = set(columns.positions(header.names))
    reader: Callable[[Path, Header, FilePart], FilePart]
    if {"counter", "value", "dispatch", "kernel"} <= ours:
        facts, reader = _long_counters(header, names, head), read_long
    elif {"kernel", "start_ns", "end_ns", "block_x"} <= ours:
        facts, reader = _kernel_trace(header, names), _read_trace
    elif {"kernel", "grid", "block"} <= ours and (names & {"grd", "lds_per_workgroup"}):
        facts, reader = _wide(header, names, head), read_wide
    elif {"name", "calls", "totaldurationns"} <= names:
        return _statistics(path, shown, header, names, head)
    else:
        for needed, description, small in _SMALL:
            if needed <= names:
                facts, reader = description, small
                break
        else:
            return _derived(path, shown, names)
    tool, generation, kind, evidence = facts
    source = Source(shown, tool, generation, kind, evidence)
    return DetectedFile(path, source, lambda part: reader(path, header, part))


def _read_trace(path: Path, header: Header, part: FilePart) -> FilePart:
    part.timing = True
    return read_long(path, header, part)


_SAMPLE = {"exec_mask", "dispatch_id", "instruction", "instruction_comment"}
# The other tables: columns, facts, and reader.
_SMALL: tuple[tuple[set[str], Facts, Callable[[Path, Header, FilePart], FilePart]], ...] = (
    (
        {"agent_type", "gfx_target_version", "cu_count"},
        (V3, "6.2 or later", "agents", "columns Agent_Type, Gfx_Target_Version"),
        read_agents,
    ),
    (
        {"direction", "source_agent_id", "destination_agent_id", "start_timestamp", "end_timestamp"},
        (V3, "", "memory copies", "columns Direction, Source_Agent_Id"),
        read_copies,
    ),
    ({"gpu_arch", "cu_per_gpu"}, (COMPUTE, "", "sysinfo", "columns gpu_arch, cu_per_gpu"), read_sysinfo),
    ({"gpu_soc", "numcu"}, (COMPUTE, "", "sysinfo", "columns gpu_soc, numCU"), read_sysinfo),
    ({"device", "hbmbw"}, (COMPUTE, "", "roofline", "columns device, HBMBw"), read_roofline),
    (
        {"dispatch_id", "kernel_id", "counter_id", "counter_name", "counter_value"},
        (COMPUTE, "its own tool, 2026", "counters (by number)", "columns kernel_id, counter_id"),
        read_by_number,
    ),
    (
        {*_SAMPLE, "wave_issued_instruction", "stall_reason"},
        (V3, "7.0 or later", "PC samples (stochastic)", "columns Exec_Mask, Stall_Reason"),
        read_pc_samples,
    ),
    (_SAMPLE, (V3, "6.4 or later", "PC samples (host trap)", "columns Exec_Mask, no Stall_Reason"), read_pc_samples),
    (set(TRACE_COLUMNS), (V3, "7.0 or later", "thread trace", "columns Vaddr, Hitcount, Latency"), read_trace_csv),
)


def _derived(path: Path, shown: str, names: set[str]) -> DetectedFile | None:
    for needed, tool, why in _DERIVED:
        if needed <= names:
            return DetectedFile(path, Source(shown, tool, "", "derived table", "", skipped=why))
    if found := named_table(names):
        return _nothing(path, shown, found[1], tool=found[0])
    return None


_DISPATCHES = "a list of the dispatches of pmc_perf.csv, which is read"
# Tables of profilers without dispatches: columns, tool, why they are not read.
_DERIVED = (
    ({"sum(ns)", "count"}, COMPUTE, "its top kernels are computed from pmc_perf.csv, which is read"),
    ({"kernel_name", "dispatch_id", "gpu_id"}, COMPUTE, _DISPATCHES),
    ({"kernelname", "index", "gpu_id"}, COMPUTE, _DISPATCHES),
    ({"domain", "function"}, V3, "a trace of API calls: it contains no kernel dispatches"),
    ({"kind", "operation", "address"}, V3, "a trace of memory allocations: it contains no kernel dispatches"),
    ({"kind", "operation", "alloc_flags"}, V3, "a trace of scratch memory: it contains no kernel dispatches"),
    (
        {"dispatch_id", "kernel_id", "scratch_per_workitem"},
        COMPUTE,
        "launches, read with the file of counters next to it",
    ),
    ({"kernel_id", "kernel_short_name"}, COMPUTE, "kernels' names, read with the file of counters next to it"),
)


def _is_convert(header: Header, names: set[str]) -> bool:
    """`rocpd convert` writes SQL names in title case (Lds_Block_Size), and a Guid."""
    return "guid" in names or bool({"Lds_Block_Size", "Vgpr_Count", "Lds_Size"} & set(header.names))


# Columns missing in rocprofv3's counter file, with the last version that lacks them.
_LONG = (
    ("kernel_id", "6.2.0 to 6.2.2", "no Kernel_Id"),
    ("start_timestamp", "6.2.4", "no timestamps"),
    ("accum_vgpr_count", "6.3", "no Accum_VGPR_Count"),
)


def _long_counters(header: Header, names: set[str], head: bytes) -> Facts:
    if "gpu_id" in names:
        generation = "3.6 or later" if "guid" in names else "3.3 or later"
        return COMPUTE, generation, "counters (long)", "columns GPU_ID, Counter_Name"
    if _is_convert(header, names):
        return V3, "rocpd convert", "counters", "Counter_Name with Guid or SQL names in title case"
    evidence = f"Counter_Name and {len(header.names)} columns"
    for missing, generation, what in _LONG:
        if missing not in names:
            return V3, generation, "counters", f"{evidence}, {what}"
    if re.search(rb'"Agent \d+"', head):
        return V3, "7.0 or later", "counters", f'{evidence}, Agent_Id is "Agent N"'
    return V3, "6.4", "counters", f"{evidence}, Agent_Id is a number"


def _kernel_trace(header: Header, names: set[str]) -> Facts:
    if _is_convert(header, names):
        return V3, "rocpd convert", "kernel trace", "Workgroup_Size_X with Guid or SQL names in title case"
    if "dispatch_id" not in names:
        return V3, "6.2.0 to 6.2.2", "kernel trace", "Workgroup_Size_X, no Dispatch_Id"
    if "stream_id" not in names:
        return V3, "6.2.4 to 6.4", "kernel trace", "Workgroup_Size_X and Dispatch_Id, no Stream_Id"
    return V3, "7.0 or later", "kernel trace", "Workgroup_Size_X and Stream_Id"


def _wide(header: Header, names: set[str], head: bytes) -> Facts:
    merged = any(columns.repeated_description(name) is not None for name in header.names)
    counters = any(not columns.is_description(name) for name in header.names)
    kind = "counters (merged passes)" if merged else "counters (wide)" if counters else "kernel times"
    if "grd" in names:
        if merged:
            return COMPUTE, "Omniperf 1.x", kind, "columns KernelName, grd and repeated wave_size"
        generation = "ROCm 5.3 or later" if "arch_vgpr" in names else "ROCm 5.2 or earlier"
        return V1, generation, kind, f"columns KernelName, grd, {'arch_vgpr' if 'arch_vgpr' in names else 'vgpr'}"
    if merged:
        generation = "3.x" if "kernel_id" in names else "Omniperf 2.x"
        return COMPUTE, generation, kind, "columns Kernel_Name, Grid_Size and repeated description columns"
    blank = re.match(rb"[^\n]*\n\r?\n", head) is not None
    evidence = "columns Dispatch_ID, LDS_Per_Workgroup" + (", an empty line after the header" if blank else "")
    return V2, "", kind, evidence


# Names that occur only in statistics of API calls, copies or domains.
_API = re.compile(
    r"^(_*hip[A-Z_]\w*|hsa_\w+|roctx\w*|nccl\w*|Copy\w+To\w+|async-copy|MEMORY_COPY\w*|[A-Z_]+_API\w*|KERNEL_DISPATCH)$"
)


def _statistics(path: Path, shown: str, header: Header, names: set[str], head: bytes) -> DetectedFile:
    tool = V3 if "minns" in names else V1
    listed = re.findall(rb'^"?([^",]*)', head, re.MULTILINE)[1:]
    first = [name.decode(errors="replace") for name in listed if name]
    if first and all(_API.match(name) for name in first):
        why = "statistics of API calls, copies or domains: it contains no kernels"
        return DetectedFile(path, Source(shown, tool, "", "other statistics", "columns Name, Calls", skipped=why))
    generation = "6.2 or later" if tool == V3 else ""
    evidence = "columns Name, Calls" + (", MinNs" if tool == V3 else "")
    source = Source(shown, tool, generation, "kernel statistics", evidence)
    return DetectedFile(path, source, lambda part: read_statistics(path, header, part))


_OF_A_WORKLOAD = frozenset({
    "counters (wide)", "counters (merged passes)", "counters (long)", "counters (by number)", "kernel times",
    "sysinfo", "roofline",
})  # fmt: skip


def within_workload(file: DetectedFile, generation: str, version: str) -> DetectedFile:
    """Attribute a file in a folder with a sysinfo.csv to rocprof-compute of that generation.

    rocprof-compute keeps the files of the rocprof that it called, so the columns alone do not identify it.
    """
    if file.source.kind not in _OF_A_WORKLOAD:
        return file
    evidence = file.source.detected_by
    if file.source.kind != "sysinfo":
        evidence += "; sysinfo.csv next to it"
    source = replace(file.source, tool=COMPUTE, generation=generation, detected_by=evidence, version=version)
    return replace(file, source=source)


def workload_generation(header: list[str], version: str) -> str:
    """Return rocprof-compute's generation from the columns of its sysinfo.csv and the version stated there."""
    if "numCU" in header:
        return "Omniperf 1.x"
    return {"2": "Omniperf 2.x", "3": "3.x"}.get(version, f"sysinfo version {version}")
