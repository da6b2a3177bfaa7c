"""Read the GPUs' state from the kernel: architecture, performance level, clocks, driver and permissions.

The source is sysfs or, if that shows no GPU (some containers), amd-smi or rocm-smi, whose output is kept verbatim.
Needs no HIP runtime, and never changes a setting.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from rocattn_profiling.base.files import DocumentError, decoded, system_text
from rocattn_profiling.base.process import ask

_AMD = "0x1002"
_RDNA = re.compile(r"gfx1[0-2]\d\d")
# At these levels the driver of Radeon GPUs gates the counters' clocks: every counter except SQ_WAVES reads 0.
GATED_LEVELS = ("auto", "low", "high")


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, in ROCR's order.

    ``performance_level`` and the clocks (MHz) are "" and 0 if the kernel does not report them.
    """

    arch: str
    node: int
    render_minor: int = 0
    compute_units: int = 0
    performance_level: str = ""
    core_mhz: int = 0
    memory_mhz: int = 0
    partition: str = ""


class Hardware(msgspec.Struct, frozen=True):
    """A snapshot of the GPUs, with a list of missing information.

    Attributes:
        gpus: The GPUs.
        kernel: Release of the running kernel.
        driver: Version of the amdgpu module, if it states one.
        kfd: State of the device file that ROCm opens: "ok", "missing" or "no permission".
        paranoid: /proc/sys/kernel/perf_event_paranoid, or None.
        told_by: The source: sysfs, amd-smi or rocm-smi, or "".
        smi: Output of the smi tool (JSON), if sysfs shows no GPU.
        absent: One line per missing item.
    """

    gpus: tuple[Gpu, ...]
    kernel: str
    driver: str
    kfd: str
    paranoid: int | None
    told_by: str
    smi: Any = None
    absent: tuple[str, ...] = ()

    @property
    def archs(self) -> tuple[str, ...]:
        """The distinct architectures."""
        return tuple(dict.fromkeys(gpu.arch for gpu in self.gpus if gpu.arch))

    def gated(self, arch: str) -> str:
        """Return the current performance level if it keeps the counters of this architecture at 0, else ""."""
        if _RDNA.match(arch) is None:
            return ""
        levels = [gpu.performance_level for gpu in self.gpus if gpu.arch == arch]
        return next((level for level in levels if level in GATED_LEVELS), "")


def examine(root: Path = Path("/")) -> Hardware:
    """Return the current state of the GPUs; ``root`` replaces the file system in tests."""
    gpus = tuple(_gpus(root))
    absent, smi, told_by = [], None, "sysfs" if gpus else ""
    if not gpus:
        absent.append("no AMD GPU in /sys/class/kfd")
        smi, told_by = _ask_smi()
        if not told_by:
            absent.append("neither amd-smi nor rocm-smi answers")
    elif not any(gpu.performance_level for gpu in gpus):
        absent.append("the kernel does not show the performance level")
    kfd = _access(root / "dev/kfd")
    if kfd == "missing":
        absent.append("/dev/kfd: the amdgpu driver is not loaded, or the container was started without it")
    paranoid = system_text(root / "proc/sys/kernel/perf_event_paranoid")
    return Hardware(
        gpus=gpus,
        kernel=platform.release(),
        driver=system_text(root / "sys/module/amdgpu/version"),
        kfd=kfd,
        paranoid=int(paranoid) if re.fullmatch(r"-?\d+", paranoid) else None,
        told_by=told_by,
        smi=smi,
        absent=tuple(absent),
    )


def visible(hardware: Hardware, arch: str) -> str:
    """Return the ROCR_VISIBLE_DEVICES that hides GPUs of other architectures; "" if all are of this one.

    Applications use the first visible GPU, which may be the CPU's integrated one.
    """
    chosen = [str(number) for number, gpu in enumerate(hardware.gpus) if gpu.arch == arch]
    return ",".join(chosen) if chosen and len(chosen) < len(hardware.gpus) else ""


def _gpus(root: Path) -> list[Gpu]:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    gpus = []
    for folder in sorted(nodes.glob("*"), key=lambda path: int(path.name) if path.name.isdigit() else -1):
        facts = dict(re.findall(r"^(\w+) (\d+)$", system_text(folder / "properties"), re.MULTILINE))
        version = int(facts.get("gfx_target_version", "0"))
        if not version:
            continue  # a CPU
        simds, per_cu = int(facts.get("simd_count", "0")), int(facts.get("simd_per_cu", "0"))
        minor = int(facts.get("drm_render_minor", "0"))
        device = root / f"sys/class/drm/renderD{minor}/device"
        gpus.append(
            Gpu(
                arch=f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
                node=int(folder.name),
                render_minor=minor,
                compute_units=simds // per_cu if per_cu else 0,
                performance_level=system_text(device / "power_dpm_force_performance_level"),
                core_mhz=_clock(device / "pp_dpm_sclk"),
                memory_mhz=_clock(device / "pp_dpm_mclk"),
                partition=system_text(device / "current_compute_partition"),
            )
        )
    return gpus


def _clock(path: Path) -> int:
    """Return the clock that the driver marks as current, in MHz, or 0."""
    match = re.search(r"(\d+)\s*M[Hh]z\s*\*", system_text(path))
    return int(match[1]) if match else 0


def _access(path: Path) -> str:
    if not path.exists():
        return "missing"
    return "ok" if os.access(path, os.R_OK | os.W_OK) else "no permission"


def _ask_smi() -> tuple[Any, str]:
    """Return clocks and performance level printed by amd-smi or rocm-smi, and the tool's name."""
    for name, arguments in (
        ("amd-smi", ("metric", "--clock", "--perf-level", "--json")),
        ("rocm-smi", ("--showperflevel", "--showclocks", "--showdriverversion", "--json")),
    ):
        path = shutil.which(name) or shutil.which(name, path="/opt/rocm/bin")
        answer = ask([path, *arguments]) if path else None
        if answer is None or answer.ended.status != 0:
            continue
        start = min((at for at in (answer.text.find("{"), answer.text.find("[")) if at >= 0), default=-1)
        try:
            return decoded(answer.text[start:]), name
        except DocumentError:
            continue
    return None, ""
