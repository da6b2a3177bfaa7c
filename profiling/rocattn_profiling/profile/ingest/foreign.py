"""Files of other tools: proton's trees are read; others are identified, with advice on a format that can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from rocattn_profiling.profile.ingest.json_results import decode
from rocattn_profiling.profile.ingest.parts import FilePart, kernel_name
from rocattn_profiling.profile.ingest.table import SUMMARY_DTYPES

_AGAIN = "record with rocprofv3 --kernel-trace --output-format csv json rocpd, which are read"
_OF_TRACE = "a table of {}, computed from a trace: pass the trace itself"
_READINGS = "amd-smi's readings: clocks, power and temperatures, no kernels"
_ANALYZED = "a table of `rocprof-compute analyze`"
_OF_NVIDIA = "from an NVIDIA GPU: rocattn reports on AMD GPUs only"

# SQLite: a table that only this tool writes, the tool, what the file is.
DATABASES = (
    ("rocpd_op", "rpd", f"a trace of rocmProfileData (rpd), which is not read: {_AGAIN}"),
    ("KERN", "rocprof", "rocprof 1's copy of the launches in results.csv, which is read: pass that file"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "Nsight Systems", f"Nsight Systems' export {_OF_NVIDIA}"),
    ("TARGET_INFO_GPU", "Nsight Systems", f"Nsight Systems' export {_OF_NVIDIA}"),
)
# JSON: a pattern for the first bytes, the tool, what the file is.
JSONS = (
    (rb'"(?:rocattn|rocattn_profile)"\s*:|"wanted"\s*:.{0,400}"passes"\s*:', "rocattn",
     "`rocattn profile`'s own record of the run: pass its folder"),
    (rb'"(?:rocprof-?sys|omnitrace|timemory)"\s*:', "rocprof-sys", f"a summary of rocprof-sys (Omnitrace): {_AGAIN}"),
    (rb'"(?:gfx_activity|hotspot_temperature|socket_power|vram_used|mem_busy_percent)"', "amd-smi",
     _READINGS),
    (rb'"(?:jobs|pmc)"\s*:', "", "a profiler's input file (jobs): it contains no measurements"),
    (rb'"traceEvents"\s*:', "", f"a Chrome trace of neither PyTorch's profiler nor rocprof 1: {_AGAIN}"),
)  # fmt: skip
# Text: likewise.
TEXTS = (
    (rb"AMD-?SMI|\n[ \t]+(?:GFX_ACTIVITY|SOCKET_POWER|HOTSPOT)[ \t]*:|ROCm System Management Interface", "amd-smi",
     _READINGS),
    (rb"\|-+\|[ \t\r]*\n[^|\n]*\|[^|\n]*(?:WALL|REAL|SAMPLED|INSTRUMENT)", "rocprof-sys",
     f"a summary of rocprof-sys (Omnitrace): {_AGAIN}"),
    (rb"^,?\s*\{\s*\"args\"\s*:.*\"process_name\"", "rocprof",
     "rocprof 1's trace without kernels: --hip-trace or --sys-trace records them; results.csv has them, too"),
)  # fmt: skip
# Use `[ \t]` within a line, never `\s`: it also matches line breaks, so every blank line starts another long scan.
# Other files that accompany profiles: pattern for the first bytes, tool, description.
_OF_ROCM = (
    (rb"(?m)^[ \t]*pmc[ \t]*:", "", "a profiler's input file (lists of counters)"),
    (rb"(?m)^(jobs|metrics)[ \t]*:", "rocprofv3", "a profiler's input file (jobs)"),
    (rb"(?m)^format_rocprof_output:", "rocprof-compute", "rocprof-compute's settings of the run"),
    (rb"Agent1?\.Name", "", "a description of the machine (rocminfo)"),
    ((rb"(?mi)^[ \t]*(gpu[ \t]*:[ \t]*\d|counter_name[ \t]*:)|List available counters"
      rb"|Name[ \t]*:[ \t]*\w+[ \t\r]*\n[ \t]*Description"), "",
     "a list of available counters"),
    (rb"(?mi)^(omniperf|rocprof(iler)?-compute) version|^\[profiling\] |^Target: MI", "rocprof-compute",
     "a log of rocprof-compute"),
    (rb"(?m)^RPL:|^ROCP?rofiler:", "rocprof", "a log of rocprof"),
    (rb"(?m)\[rocprofv3\]|\btool\.cpp:\d+|output_stream\.cpp", "rocprofv3", "a log of rocprofv3"),
)  # fmt: skip
# Tables: columns in lower case (a trailing * marks a prefix), the tool, what the file is.
TABLES = (
    ({"metric", "avg", "unit*"}, "rocprof-compute", _ANALYZED),
    ({"metric", "avg", "min"}, "rocprof-compute", _ANALYZED),
    ({"metric", "median", "q1"}, "rocprof-compute", _ANALYZED),
    ({"kernel_name", "count", "sum(*"}, "rocprof-compute", "top kernels of `rocprof-compute analyze`"),
    ({"type", "time_ms", "percent"}, "TraceLens", _OF_TRACE),
    ({"kernel_name", "kernel_duration*"}, "TraceLens", _OF_TRACE),
    ({"kernel_name", "short_kernel*"}, "TraceLens", _OF_TRACE),
    ({"name", "param:*"}, "TraceLens", _OF_TRACE),
    ({"name", "op_category"}, "TraceLens", _OF_TRACE),
    ({"op_category", "parent_module"}, "TraceLens", _OF_TRACE),
    ({"name", "total_direct_kernel_time*"}, "TraceLens", _OF_TRACE),
    ({"bin_start", "bin_end"}, "TraceLens", _OF_TRACE),
    ({"rank", "idle_time*"}, "HolisticTraceAnalysis", _OF_TRACE),
    ({"rank", "comp_comm_overlap*"}, "HolisticTraceAnalysis", _OF_TRACE),
    ({"gpu", "gfx*"}, "amd-smi", _READINGS),
    ({"gpu", "power*"}, "amd-smi", _READINGS),
)  # fmt: skip
_NEXT_TO = {"rocprof-compute": ", computed from pmc_perf.csv, which is read: pass the workload's folder"}
_BINARIES = (
    (b"NVR\0", "Nsight Compute", f"a report of Nsight Compute {_OF_NVIDIA}"),
    (b"PK\3\4", "", "an archive or workbook: unpack it, or pass the files that it was made from"),
)
# Formats that the content does not identify, by the end of the file name.
_PERFETTO = ("Perfetto", f"a Perfetto trace (rocprofv3 -f pftrace, rocprof-sys): {_AGAIN}")
_SUFFIXES = {
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
    ".proto": _PERFETTO,
    ".ncu-rep": ("Nsight Compute", f"a report of Nsight Compute {_OF_NVIDIA}"),
    ".nsys-rep": ("Nsight Systems", f"a report of Nsight Systems {_OF_NVIDIA}"),
    ".qdrep": ("Nsight Systems", f"a report of Nsight Systems {_OF_NVIDIA}"),
    ".rpd": ("rpd", f"a trace of rocmProfileData (rpd): {_AGAIN}"),
    ".att": ("rocprofv3", "a thread trace before it was decoded: give the folder that rocprofv3 --att wrote"),
}


def named_table(names: set[str]) -> tuple[str, str] | None:
    """Identify the tool and the kind of file by a table's columns."""
    for needed, tool, what in TABLES:
        if all(
            any(has.startswith(each[:-1]) for has in names) if each[-1] == "*" else each in names for each in needed
        ):
            return tool, what.format(tool) + _NEXT_TO.get(tool, "")
    return None


def named_text(head: bytes, known: tuple[tuple[bytes, str, str], ...]) -> tuple[str, str] | None:
    """Identify the tool and the kind of file by the first bytes, from `JSONS` or `TEXTS`."""
    return next(((tool, what) for pattern, tool, what in known if re.search(pattern, head, re.DOTALL)), None)


def named_binary(path: Path, start: bytes) -> tuple[str, str] | None:
    """Identify the tool and the kind of file by its first bytes, or else by the end of its name."""
    if _is_perfetto(start):
        return _SUFFIXES[".pftrace"]
    found = next(((tool, what) for magic, tool, what in _BINARIES if start.startswith(magic)), None)
    return found or _SUFFIXES.get(path.suffix.lower())


def named_other(path: Path, start: bytes, head: bytes, nuls: int) -> tuple[str, str]:
    """Return the tool and the reason why a file that is not a table is not read.

    Args:
        path: The file.
        start: Its raw first bytes.
        head: The same as text, decompressed.
        nuls: Number of NUL bytes in the text.
    """
    if found := named_binary(path, start) or named_text(head, TEXTS):
        return found
    if nuls * 10 > len(head) or re.search(rb"[\x01-\x08\x0e-\x1a]", head[:4096]):
        return "", "a binary file in a format that is not read (rocpd, JSON and CSV are: rocprofv3 -f csv json rocpd)"
    for pattern, tool, what in _OF_ROCM:
        if re.search(pattern, head):
            return tool, f"{what}: it contains no measurements"
    return "", "a text file that no known profiler wrote"


def _is_perfetto(start: bytes) -> bool:
    """Return whether these are packets of a Perfetto trace: three times field 1 with a length."""
    at = 0
    for _ in range(3):
        if at >= len(start) or start[at] != 0x0A:
            return False
        at, length, shift = at + 1, 0, 0
        while at < len(start) and start[at] & 0x80:
            length, shift, at = length | (start[at] & 0x7F) << shift, shift + 7, at + 1
        at += 1 + (length | start[at] << shift if at < len(start) else 0)
    return b"\0" in start[:4096]


class Frame(msgspec.Struct):
    """Name and type of a node."""

    name: str = ""


class Node(msgspec.Struct):
    """A scope or kernel in proton's tree; its metrics exclude its children's."""

    frame: Frame | None = None
    metrics: dict[str, Any] = {}
    children: list[Node] = []


def read_proton(path: Path, part: FilePart) -> FilePart:
    """Read time and count of each kernel, over all launch sites, from a tree of Triton's proton (``.hatchet``)."""
    found: dict[str, list[float]] = {}
    nodes: list[Node] = list(decode(path, list[Node]))
    while nodes:
        node = nodes.pop()
        nodes += node.children
        time, calls = (_number(node.metrics.get(name)) for name in ("time (ns)", "count"))
        if node.frame and not node.children and time:
            total = found.setdefault(kernel_name(node.frame.name), [0.0, 0.0])
            total[0], total[1] = total[0] + (calls or 1.0), total[1] + time
    found = {name: sums for name, sums in found.items() if sums[0] < 2**63}
    if not found:
        return part.skip("a Proton tree without kernel times: start Proton with backend roctracer")
    rows = [(name, int(n), total, total / n, None, None, part.source.file) for name, (n, total) in found.items()]
    part.summaries = pd.DataFrame(rows, columns=list(SUMMARY_DTYPES)).astype(SUMMARY_DTYPES)
    return part


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
