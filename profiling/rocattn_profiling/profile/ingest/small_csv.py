"""Read small files: agents (also rocminfo's list), statistics, rocprof-compute's sysinfo and roofline."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rocattn_profiling.profile.ingest.csv_text import HEADER_BYTES, Header, Utf8
from rocattn_profiling.profile.ingest.parts import FilePart, Notes, UnreadableError, agent_frame, kernel_name
from rocattn_profiling.profile.ingest.table import ROOF_DTYPES, SUMMARY_DTYPES

LARGEST_BYTES = 64 << 20  # a statistics file has a line per kernel; real ones have kilobytes
# The facts about a run to keep.
_FACTS = (
    "workload_name", "command", "date", "timestamp", "version", "rocm_version", "host_rocmver", "hostname", "host_name",
    "gpu_model", "gpu_soc", "gpu_arch", "compute_partition", "memory_partition", "ip_blocks",
)  # fmt: skip
_ROOF = re.compile(r"^(?P<name>.+?)(?P<kind>Bw|Flops|Ops)(?P<end>Low|High)?$", re.IGNORECASE)
_ROOF_NAMES = {"hbm": "HBM", "mall": "MALL", "l2": "L2", "l1": "L1", "lds": "LDS", "fp32": "FP32", "fp64": "FP64"}


def rows_of(path: Path, header: Header) -> list[dict[str, str]]:
    """Return the rows of a small CSV file as mappings of header name to text.

    Raises:
        UnreadableError: When the file is too large for its kind or has unbalanced quotes.
    """
    stream = Utf8(path)
    try:
        data = stream.read(LARGEST_BYTES)
        if stream.read(1):
            raise UnreadableError("larger than 64 MiB", "this is not a table of its kind")
    finally:
        stream.close()
    text = data.decode(errors="replace")
    try:
        lines = list(csv.reader(text.splitlines(keepends=True), delimiter=header.delimiter))
    except csv.Error as error:
        raise UnreadableError(f"the CSV is broken ({error})", "profile again") from error
    return [dict(zip(header.names, line, strict=False)) for line in lines[1:] if any(line)]


def number(text: str | None) -> float | None:
    """Return a finite number; None for an empty cell, "N/A" or other text."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """Return an integer that fits in 31 bits, or None."""
    value = number(text)
    return int(value) if value is not None and abs(value) < 2**31 else None


def _bytes(kilobytes: str | None) -> int | None:
    known = whole(kilobytes)
    return None if known is None else known * 1024


def read_agents(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read rocprofv3's agent_info.csv: one row per CPU and GPU."""
    agents = [agent_of(row) for row in rows_of(path, header) if row.get("Agent_Type") == "GPU"]
    if not agents:
        return part.skip("it names no GPU")
    part.agents = agent_frame(agents, part.source.file)
    return part


def agent_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return our columns for an agent in agent_info.csv, or in JSON and rocpd with the names in lower case."""
    lower = {key.lower(): None if value is None else str(value) for key, value in row.items()}
    arch = lower.get("name") or ""
    return {
        "number": whole(lower.get("logical_node_id")),
        "node": whole(lower.get("node_id")),
        "arch": arch if arch.startswith("gfx") else target_name(whole(lower.get("gfx_target_version"))),
        "product": lower.get("product_name") or "",
        "device_id": whole(lower.get("device_id")) or None,
        "cus": whole(lower.get("cu_count")),
        "simds": whole(lower.get("simd_count")),
        "max_waves_per_simd": whole(lower.get("max_waves_per_simd")),
        "max_waves_per_cu": whole(lower.get("max_waves_per_cu")),
        "wave_size": whole(lower.get("wave_front_size")),
        "lds_bytes": _bytes(lower.get("lds_size_in_kb")),
        "xccs": whole(lower.get("num_xcc")),
        "shader_engines": whole(lower.get("num_shader_banks")),
        "max_clock_mhz": number(lower.get("max_engine_clk_fcompute")) or None,
    }


def target_name(version: int | None) -> str:
    """Return the gfx name of a Gfx_Target_Version: 90402 is major 9, minor 4, stepping 2 (in hexadecimal)."""
    if not version:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def read_statistics(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a ``*_stats.csv`` of kernels."""
    notes = Notes(part.source.file)
    kernels = []
    for line, row in enumerate(rows_of(path, header), 2):
        calls, total = number(row.get("Calls")), number(row.get("TotalDurationNs"))
        if calls is None or total is None or not 0 < calls < 2**63:
            notes.add("{n} [row|rows] without calls or time", "dropped", line=line)
            continue
        low, high, mean = number(row.get("MinNs")), number(row.get("MaxNs")), number(row.get("AverageNs"))
        spread = number(row.get("StdDev"))
        if spread is not None and low is not None and high is not None and calls > 1 and spread > (high - low):
            notes.add(
                "StdDev of {n} [kernel is larger than its|kernels is larger than their] range",
                "not used (a defect of rocprofv3); use the kernel trace", line=line,
            )  # fmt: skip
        kernels.append((kernel_name(row.get("Name", "")), int(calls), total, mean, low, high, part.source.file))
    part.problems += notes.problems()
    if not kernels:
        return part.skip("it contains no rows: no kernel ran")
    part.summaries = pd.DataFrame(kernels, columns=list(SUMMARY_DTYPES)).astype(SUMMARY_DTYPES)
    return part


def read_sysinfo(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read rocprof-compute's sysinfo.csv: the machine and GPU of a workload, in the names of three generations."""
    rows = rows_of(path, header)
    if not rows:
        return part.skip("it contains no row")
    row = rows[0]
    notes = Notes(part.source.file)
    first = {name: next((row[key] for key in keys if row.get(key)), None) for name, keys in _SYSINFO.items()}
    simds, cus = whole(first["simds_per_cu"]), whole(first["cus"])
    clock, memory_clock = number(first["max_clock_mhz"]) or None, number(first["max_memory_clock_mhz"]) or None
    for name, value in (("max_sclk", clock), ("max_mclk", memory_clock)):
        if value is None:
            notes.add(f"{name} is empty or 0", "peaks that need it are not computed unless you state the clock", line=2)
    waves_per_cu = whole(first["max_waves_per_cu"])
    channels, bandwidth = whole(first["memory_channels"]), number(row.get("hbm_bw") or row.get("hbmBW"))
    if bandwidth and memory_clock:
        # A stated bandwidth takes precedence: files of an MI300A state 96 L2 channels, but 5324.8 GB/s, as for 128.
        channels = whole(f"{bandwidth * 1000 / (32 * memory_clock):.0f}")
    agent = {
        "arch": first["arch"] or "",
        "product": first["product"] or "",
        "cus": cus,
        "simds": None if simds is None or cus is None else simds * cus,
        "max_waves_per_cu": waves_per_cu,
        "max_waves_per_simd": waves_per_cu // simds if waves_per_cu and simds else None,
        "wave_size": whole(first["wave_size"]),
        "xccs": whole(first["xccs"]),
        "shader_engines": whole(first["shader_engines"]),
        "max_clock_mhz": clock,
        "max_memory_clock_mhz": memory_clock,
        "memory_channels": channels,
        "l2_channels": whole(first["l2_channels"]),
        "lds_banks": whole(first["lds_banks"]),
    }
    part.agents = agent_frame([agent], part.source.file)
    part.system = {name: row[name] for name in _FACTS if row.get(name)}
    part.problems += notes.problems()
    return part


# Ours -> names in Omniperf 1.x, 2.x and rocprof-compute 3.x.
_SYSINFO = {
    "arch": ("gpu_arch", "gpu_soc"),
    "product": ("gpu_model", "name"),
    "cus": ("cu_per_gpu", "numCU"),
    "simds_per_cu": ("simd_per_cu", "numSIMD"),
    "wave_size": ("wave_size", "waveSize"),
    "max_waves_per_cu": ("max_waves_per_cu", "maxWavesPerCU"),
    "shader_engines": ("se_per_gpu", "numSE"),
    "max_clock_mhz": ("max_sclk", "sclk"),
    "max_memory_clock_mhz": ("max_mclk", "mclk"),
    "memory_channels": ("num_hbm_channels", "num_memory_channels"),
    "l2_channels": ("total_l2_chan", "L2Banks"),
    "lds_banks": ("lds_banks_per_cu", "LDSBanks"),
    "xccs": ("num_xcd",),
}


def read_roofline(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read rocprof-compute's roofline.csv: each device's measured bandwidths (GB/s) and rates (GFLOP/s)."""
    roofs: dict[tuple[int, str, str], dict[str, float]] = {}
    for row in rows_of(path, header):
        device = whole(row.get("device"))
        for column, text in row.items():
            match, value = _ROOF.match(column), number(text)
            if device is None or match is None or value is None:
                continue
            unit = {"bw": "GB/s", "flops": "GFLOP/s", "ops": "GOP/s"}[match["kind"].lower()]
            end = (match["end"] or "mean").lower()
            roofs.setdefault((device, _roof_name(match["name"]), unit), {})[end] = value
    if not roofs:
        return part.skip("it contains no roof: the micro-benchmark did not run")
    rows = [
        (device, name, unit, values.get("mean"), values.get("low"), values.get("high"), part.source.file)
        for (device, name, unit), values in roofs.items()
        if "mean" in values
    ]
    part.roofs = pd.DataFrame(rows, columns=list(ROOF_DTYPES)).astype(ROOF_DTYPES)
    return part


def _roof_name(name: str) -> str:
    """Return "MFMA BF16" for MFMABF16; rocprof-compute itself misspells one column MFMAFI8."""
    lower = name.lower()
    if lower.startswith("mfma"):
        return f"MFMA {name[4:].upper().replace('FI8', 'I8')}"
    return _ROOF_NAMES.get(lower, name)


_ROCMINFO_AGENT = re.compile(r"(?m)^\*+\s*\nAgent \d+\s*\n\*+\s*$")
_ROCMINFO_FIELD = re.compile(r"(?m)^  (\w[^:\n]*?):[ \t]*([^\n]*?)\s*$")  # deeper lines: caches, pools and ISAs
_ROCMINFO_LDS = re.compile(r"Segment:\s+GROUP\s+Size:\s+(\d+)")
_ROCMINFO_COLORS = re.compile(r"\x1b\[[0-9;]*m|\[\d+m(?=ROCk|\s|$)")
_ROCMINFO = {
    "number": "Node",  # the rows' gpu-id
    "node": "Node", "device_id": "Chip ID", "cus": "Compute Unit", "max_waves_per_cu": "Max Waves Per CU",
    "wave_size": "Wavefront Size", "shader_engines": "Shader Engines", "max_clock_mhz": "Max Clock Freq. (MHz)",
}  # fmt: skip


def read_rocminfo(path: Path, part: FilePart) -> FilePart:
    """Read rocminfo's text, which rocprof 1 saves as ``results.sysinfo.txt``; it also numbers GPUs by node."""
    stream = Utf8(path)
    try:
        text = _ROCMINFO_COLORS.sub("", stream.read(HEADER_BYTES).decode(errors="replace")).replace("\r\n", "\n")
    finally:
        stream.close()
    agents = []
    for block in _ROCMINFO_AGENT.split(text)[1:]:
        said: dict[str, str] = {}
        for name, value in _ROCMINFO_FIELD.findall(block):
            said.setdefault(name, value)
        if said.get("Device Type") != "GPU":
            continue
        # Numbers are written as 64(0x40).
        agent: dict[str, object] = {
            ours: whole(said.get(name, "").partition("(")[0]) for ours, name in _ROCMINFO.items()
        }
        cus, simds, lds = (
            agent["cus"],
            whole(said.get("SIMDs per CU", "").partition("(")[0]),
            _ROCMINFO_LDS.search(block),
        )
        agent["simds"] = simds * cus if simds and isinstance(cus, int) else None
        agent["lds_bytes"] = _bytes(lds[1] if lds else None)
        agents.append(agent | {"arch": said.get("Name", ""), "product": said.get("Marketing Name", "")})
    if not agents:
        return part.skip("a description of the machine (rocminfo) that names no GPU")
    part.agents = agent_frame(agents, part.source.file)
    return part
