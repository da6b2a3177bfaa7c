"""The checks of ``rocattn doctor`` that look at the machine: processor, memory, GPU, and what makes times noisy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.cpu_model import cpu_model
from rocattn.gpu.arch import has_kernels
from rocattn_profiling.doctor.report import Check
from rocattn_profiling.measure import cgroup, machine

if TYPE_CHECKING:
    from rocattn.gpu.probe import GpuProbe

GIB = 1 << 30
# Instruction sets that CPU kernels and BLAS libraries choose their code by.
SIMD = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve")


def processor_checks() -> list[Check]:
    """Return CPU model, cores and affinity, instruction sets, and memory."""
    group = "processor and memory"
    total, usable = os.cpu_count() or 1, machine.available_cores()
    cores = f"{usable} usable of {total}"
    simd = [name for name in SIMD if name in cpu_flags()]
    memory, left = machine.total_memory_bytes() / GIB, machine.available_memory_bytes() / GIB
    low = left < 1
    return [
        Check(group, "cpu", "ok", cpu_model()),
        Check(group, "cores", "ok", cores),
        Check(group, "simd", "ok" if simd else "warning", " ".join(simd) or "none of the known instruction sets"),
        Check(
            group,
            "memory",
            "warning" if low else "ok",
            f"{left:.1f} GiB free of {memory:.1f} GiB",
            "end other programs: large configurations will be skipped" if low else "",
        ),
    ]


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the CPU's feature flags as Linux names them; empty elsewhere."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set(found[1].split()) if found else set()


def gpu_checks(found: GpuProbe) -> list[Check]:
    """Return bindings, runtime and devices; without a device also what usually stands in the way."""
    group = "gpu"
    bindings = Check(group, "hip-python", "ok", found.bindings)
    if not found.bindings:
        bindings = Check(group, "hip-python", "missing", "not installed", "pip install hip-python (x86-64 Linux only)")
    rows = [bindings]
    for index, device in enumerate(found.devices):
        if device.is_stand_in:
            detail = f"the stand-in for {device.arch}, wave{device.wave_size}: not a GPU; its times mean nothing"
            rows.append(Check(group, f"device {index}", "warning", detail, "unset ROCM_PATH to look for a GPU"))
            continue
        # On RDNA HIP counts work-group processors, pairs of CUs: 42 on an RX 7900 XT, which is sold with 84.
        units = f"{device.compute_units} {'CUs' if device.wave_size == 64 else 'WGPs'}"
        memory = f"{device.memory_bytes / GIB:.0f} GiB"
        detail = f"{device.name or 'AMD GPU'}, {device.arch}, {units}, {memory}, wave{device.wave_size}"
        if has_kernels(device.arch):
            rows.append(Check(group, f"device {index}", "ok", detail))
        else:
            remedy = "choose another device with HIP_VISIBLE_DEVICES" if index == 0 and len(found.devices) > 1 else ""
            rows.append(Check(group, f"device {index}", "warning", f"{detail}: there are no kernels for it", remedy))
    if found.runtime:
        rows.append(Check(group, "HIP runtime", "ok", found.runtime))
    if found.devices:
        return rows
    remedy = "only for measuring on a GPU: everything else works without"
    rows.append(Check(group, "device", "missing", found.reason, remedy))
    return [*rows, *_access_checks(group)]


def _access_checks(group: str) -> list[Check]:
    """Return whether the driver's device file is there and this user may open it."""
    kfd = Path("/dev/kfd")
    if not kfd.exists():
        return [Check(group, "/dev/kfd", "missing", "no amdgpu driver is loaded", "only with an AMD GPU: load amdgpu")]
    if os.access(kfd, os.R_OK | os.W_OK):
        return [Check(group, "/dev/kfd", "ok", "readable and writable")]
    import grp

    mine = {grp.getgrgid(number).gr_name for number in os.getgroups() if _has_name(number)}
    lacking = [name for name in ("render", "video") if name not in mine]
    remedy = f"sudo usermod -aG {','.join(lacking or ['render', 'video'])} $USER, then log in again"
    return [Check(group, "/dev/kfd", "warning", f"no permission; groups: {' '.join(sorted(mine))}", remedy)]


def _has_name(group: int) -> bool:
    import grp

    try:
        grp.getgrgid(group)
    except KeyError:
        return False
    return True


def hygiene_checks(cpu: Path = Path("/sys/devices/system/cpu")) -> list[Check]:
    """Return what makes times noisy: load, frequency governor, control-group quota, virtualisation."""
    group = "measurement hygiene"
    load, cores = machine.load_average(), machine.available_cores()
    busy = load > 0.5 * cores
    remedy = "end other programs before measuring" if busy else ""
    rows = [Check(group, "load", "warning" if busy else "ok", f"{load:.2f} on {cores} cores", remedy)]
    governors = sorted({_first_line(path) for path in cpu.glob("cpu*/cpufreq/scaling_governor")} - {""})
    if not governors:
        rows.append(Check(group, "governor", "ok", "not exposed (usual in virtual machines)"))
    elif governors == ["performance"]:
        rows.append(Check(group, "governor", "ok", "performance"))
    else:
        rows.append(
            Check(group, "governor", "warning", ", ".join(governors), "sudo cpupower frequency-set -g performance")
        )
    quota, limit = cgroup.cpu_quota(), cgroup.memory_limit_bytes()
    remedy = "give the container whole cores (cpuset) instead of a quota: throttling shows as outliers" if quota else ""
    cpu_part = f"CPU quota {quota:g} cores" if quota else "no CPU quota"
    detail = f"{cpu_part}, {f'memory limit {limit / GIB:.1f} GiB' if limit else 'no memory limit'}"
    rows.append(Check(group, "control group", "warning" if quota else "ok", detail, remedy))
    if "hypervisor" in cpu_flags():
        note = "times depend on its neighbours: compare within one run only, as the gate does"
        rows.append(Check(group, "virtual machine", "warning", "yes", note))
    return rows


def _first_line(path: Path) -> str:
    """Return a file's first line; empty when it cannot be read (a core that is switched off)."""
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""
