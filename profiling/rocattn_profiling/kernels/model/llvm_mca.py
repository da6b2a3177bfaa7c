"""llvm-mca's estimate of a hot loop, beside ours, where a program of that name knows the GPU.

It simulates one wave that issues in order, with the latencies of LLVM's scheduling model (SISchedule.td): waits for
results are in it; other waves, memory and the widths of accesses are not. A quarter-rate instruction is to it one of a
long latency only. The model of gfx9 counts in units of 4 cycles; those of gfx11 and gfx12 take a WMMA for an ordinary
vector instruction, so that loops full of those come out far too short.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.kernels.read.disassembly import find_tools
from rocattn_profiling.kernels.read.instructions import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.kernels.read.assembly import Instruction

ITERATIONS = 100
_TIMEOUT_S = 60.0
_PASS_CYCLES = 4  # of gfx9: "The latency values are 1 / (operations / cycle) / 4"
_BAD_LINE = re.compile(r"^[^\n:]*:(\d+):\d+: (?:error|fatal error): (.*)$", re.MULTILINE)


class McaError(RocattnError, RuntimeError):
    """Raised when there is no llvm-mca for a GPU, or it fails; one line with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What llvm-mca says of one iteration.

    Attributes:
        tool, version: The program, and its LLVM's version.
        cycles: Of an iteration in a long run of them, in cycles of the GPU.
        throughput_cycles: The least that its busiest resource needs (llvm-mca's "Block RThroughput").
        resources: Cycles that each resource is used in an iteration, those that are ("HWVALU", "HWXDL", …).
        instructions: That it was given.
        left_out: Mnemonics that it could not read.
    """

    tool: str
    version: str
    cycles: float
    throughput_cycles: float
    resources: dict[str, float]
    instructions: int
    left_out: tuple[str, ...]


def estimate(body: Sequence[Instruction], arch: str) -> Estimate:
    """Return llvm-mca's estimate of instructions that run again and again.

    Args:
        body: One iteration, as `hot_path` returns it.
        arch: The GPU without features.

    Raises:
        McaError: When no llvm-mca here knows the GPU, or it cannot read most of the instructions.
    """
    reasons = []
    for tool in find_tools("llvm-mca"):
        try:
            return _estimate(tool, body, arch)
        except McaError as error:
            reasons.append(f"{tool}: {error}")
    looked = "; ".join(reasons) or "none is on PATH or in ROCm (apt install llvm-19, or set ROCM_PATH)"
    raise McaError(f"no llvm-mca for {arch}: {looked}")


def _estimate(tool: str, body: Sequence[Instruction], arch: str) -> Estimate:
    given = [one for one in body if one.unit is not Pipe.BRANCH]  # it cannot follow them
    left_out: list[str] = []
    report: _Report | None = None
    while given and report is None:
        done = _run(tool, [f"{one.mnemonic} {one.operands}" for one in given], arch)
        if "is not a recognized processor" in done.stderr or "unable to get target" in done.stderr:
            raise McaError("does not know it")
        if done.returncode == 0:
            try:
                report = msgspec.json.decode(done.stdout, type=_Report)
            except msgspec.DecodeError as error:
                raise McaError(f"its JSON is not understood: {error}") from error
            break
        bad = {int(line) for line, _ in _BAD_LINE.findall(done.stderr)}
        if not bad.intersection(range(1, len(given) + 1)):
            raise McaError((done.stderr.strip().splitlines() or [f"it ends with status {done.returncode}"])[0])
        left_out += [one.mnemonic for line, one in enumerate(given, 1) if line in bad]
        given = [one for line, one in enumerate(given, 1) if line not in bad]
    if report is None or not report.CodeRegions or len(left_out) > len(given):
        raise McaError(f"it cannot read {', '.join(sorted(set(left_out))[:3]) or 'the loop'}: a newer one may")
    region, scale = report.CodeRegions[0], _PASS_CYCLES if arch.startswith("gfx9") else 1
    names = report.TargetInfo.Resources
    used = {
        names[each.ResourceIndex]: each.ResourceUsage * scale
        for each in region.ResourcePressureView.ResourcePressureInfo
        if each.InstructionIndex == len(given)  # behind the instructions: all of them
    }
    return Estimate(
        tool=tool, version=_version(tool), cycles=scale * region.SummaryView.TotalCycles / ITERATIONS,
        throughput_cycles=scale * region.SummaryView.BlockRThroughput, resources=dict(sorted(used.items())),
        instructions=len(given), left_out=tuple(sorted(set(left_out))),
    )  # fmt: skip


def _run(tool: str, lines: Sequence[str], arch: str) -> subprocess.CompletedProcess[str]:
    command = [tool, "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-json", f"-iterations={ITERATIONS}", "-"]
    try:
        return subprocess.run(
            command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise McaError(f"cannot run: {error}") from error


def _version(tool: str) -> str:
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    found = re.search(r"LLVM version (\S+)", done.stdout)
    return found[1] if found else ""


class _Pressure(msgspec.Struct, frozen=True):
    InstructionIndex: int
    ResourceIndex: int
    ResourceUsage: float


class _PressureView(msgspec.Struct, frozen=True):
    ResourcePressureInfo: list[_Pressure]


class _Summary(msgspec.Struct, frozen=True):
    TotalCycles: float
    BlockRThroughput: float


class _Region(msgspec.Struct, frozen=True):
    ResourcePressureView: _PressureView
    SummaryView: _Summary


class _Target(msgspec.Struct, frozen=True):
    Resources: list[str]


class _Report(msgspec.Struct, frozen=True):
    CodeRegions: list[_Region]
    TargetInfo: _Target
