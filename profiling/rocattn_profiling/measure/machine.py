"""The machine and commit that a measurement belongs to, and the resources that the machine or container has left."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import rocattn
from rocattn.errors import ToolchainError
from rocattn.gpu.arch import is_nvidia
from rocattn.gpu.probe import probe
from rocattn.toolchain import choose_cpu_library
from rocattn_profiling.base.files import system_text
from rocattn_profiling.measure.records import Commit, Machine
from rocattn_profiling.revisions.git import RevisionError, git, uncommitted


def _folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield (version, folder) of this process's control groups for a controller, innermost first.

    A container with its own cgroup namespace sees its group at the mount's root, one without sees the host's path. The
    path and its parents are tried, and missing folders are skipped.
    """
    mounts: dict[str, Path] = {}
    for line in system_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        target = before.split(" ")[4] if kind.startswith("cgroup") else ""
        if kind == "cgroup2":
            mounts[""] = root / target.lstrip("/")
        elif kind == "cgroup":
            mounts |= {name: root / target.lstrip("/") for name in options.split(",")}
    for line in system_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = mounts.get(controller if controllers else "")
        if mount is None:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for part in dict.fromkeys([inside, *inside.parents, PurePosixPath()]):
            if (mount / part).is_dir():
                yield (1 if controllers else 2), mount / part


def _number(path: Path) -> int | None:
    """Return the integer in a file; None if there is none, or for "max"."""
    text = system_text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU time this process may use, in cores, or None without a limit.

    Args:
        root: The root of /proc and the control groups.
    """
    limits = []
    for version, folder in _folders("cpu", root):
        if version == 2:
            quota, _, period = system_text(folder / "cpu.max").partition(" ")
        else:
            quota, period = system_text(folder / "cpu.cfs_quota_us"), system_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory limit of this process and its group, in bytes, or None without a limit."""
    limits = []
    for version, folder in _folders("memory", root):
        limit = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for "no limit"
            limits.append(limit)
    return min(limits, default=None)


def memory_left_bytes(root: Path = Path("/")) -> int | None:
    """Return how much more memory the group may allocate, in bytes, or None without a limit.

    File pages that the kernel can drop at once (inactive_file) count as free, as they do for ``docker stats``.
    """
    left = []
    for version, folder in _folders("memory", root):
        names = ("memory.max", "memory.current", "inactive_file ")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is None or used is None or limit >= 1 << 60:
            continue
        stat = system_text(folder / "memory.stat").splitlines()
        cache = sum(int(line.split()[1]) for line in stat if line.startswith(names[2]))
        left.append(max(0, limit - max(0, used - cache)))
    return min(left, default=None)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's name as reported by the system, or else its architecture."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = ""
    match = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    name = match[1] if match else ""
    if not name and platform.system() == "Darwin":
        with suppress(OSError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return " ".join((name or platform.processor() or platform.machine() or "unknown CPU").split())


def available_cores() -> int:
    """Return how many cores this process may use: its affinity, and the control group's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, -int(-quota // 1)))


def total_memory_bytes() -> int:
    """Return the machine's memory in bytes, or the control group's limit if that is smaller."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)


def available_memory_bytes() -> int:
    """Return the memory in bytes that can be allocated without swapping or being killed by the control group."""
    import psutil

    available = int(psutil.virtual_memory().available)
    left = memory_left_bytes()
    return available if left is None else min(available, left)


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that limit every BLAS, OpenMP and our kernels to a number of threads.

    Waiting OpenBLAS threads spin for 2^26 cycles and more (0.1 s was seen), on the core that the next backend needs.
    Here they sleep after 2^20 cycles, by when the next product of the same call would long have started.

    Whether glibc's allocator returns freed memory to the system depends on its address: the same code then incurs page
    faults in every call, or never (1.84 times the time was seen, the same in every process of an environment). It is
    configured to keep up to 1 GiB.
    """
    names = [f"{name}_NUM_THREADS" for name in ("BLIS", "MKL", "OMP", "OPENBLAS", "ROCATTN")]
    counts = dict.fromkeys([*names, "VECLIB_MAXIMUM_THREADS"], str(threads))
    keep = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
    return {**counts, **keep, "OPENBLAS_THREAD_TIMEOUT": "20"}


def load_average() -> float:
    """Return the 1-minute load average; 0 if the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def machine_name(cpu: str, cores: int, memory_bytes: int, gpu: str = "") -> str:
    """Return the name under which results of this type of machine are stored.

    It is ``ROCATTN_MACHINE`` if set. Otherwise it is derived from the hardware, not the host name: containers and cloud
    runners of one type have a new host name every time, and each would start its own history.
    """
    if name := os.environ.get("ROCATTN_MACHINE", "").strip():
        return re.sub(r"[^\w.+-]+", "-", name)
    model = re.sub(r"\((?:R|TM|r|tm)\)|\bCPU\b|\bProcessor\b|@.*$", " ", cpu)
    parts = [_slug(model), f"{cores}c", f"{round(memory_bytes / 2**30)}g", _slug(gpu)]
    return "-".join(filter(None, parts))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@functools.cache
def gpu_facts() -> dict[str, str]:
    """Return the name, target and drivers of the first GPU that this process may use; empty without one.

    Queried once, in another process: a broken driver must not crash the measuring process. The stand-in does not count.
    """
    answer = probe()
    if not answer.devices or answer.devices[0].is_stand_in:
        return {}
    device = answer.devices[0]
    if is_nvidia(device.arch):
        return {"gpu": device.name, "gfx": device.arch, "driver": "NVIDIA, by HIP forwarded to CUDA: not an AMD GPU"}
    try:
        amdgpu = Path("/sys/module/amdgpu/version").read_text().strip()
    except OSError:  # the driver built into the kernel has no version
        amdgpu = platform.release()
    gfx = device.arch.partition(":")[0]
    return {"gpu": device.name or gfx, "gfx": gfx, "driver": f"amdgpu {amdgpu}, HIP {answer.runtime}"}


def blas_name() -> str:
    """Return the name and version of the BLAS that numpy was built with, or "" if numpy does not say."""
    import numpy as np

    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    except (KeyError, TypeError):
        return ""
    return f"{blas.get('name', '')} {blas.get('version', '')}".strip()


def kernel_compiler() -> str:
    """Return the compiler and instruction set of cpu-flash's kernels, or "" if there are none."""
    try:
        library = choose_cpu_library()
    except ToolchainError:
        return ""
    return f"{library.compiler}, {library.isa}" if library.compiler else f"unknown, named by {library.maker}"


def this_machine() -> Machine:
    """Return the slow-moving facts of this machine."""
    import numpy as np

    cpu, cores, memory, gpu = cpu_model(), available_cores(), total_memory_bytes(), gpu_facts()
    return Machine(
        name=machine_name(cpu, cores, memory, gpu.get("gpu", "")),
        cpu=cpu,
        cores=cores,
        memory_bytes=memory,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
        blas=blas_name(),
        compiler=kernel_compiler(),
        **gpu,
    )


def _git(repo: Path, *arguments: str) -> str:
    """Return the output of a git command in a repository, or "" if git is missing or fails."""
    try:
        return git(repo, *arguments)
    except RevisionError:
        return ""


def this_commit(repo: Path) -> Commit | None:
    """Return the commit that is checked out in a repository, or None outside a repository (or without git).

    ``dirty`` is set if tracked files differ from the commit, or if there are untracked sources next to them.
    """
    # Override user configuration that prints signatures before the line (log.showSignature) or changes its encoding.
    line = _git(repo, "log", "-1", "--no-show-signature", "--encoding=UTF-8", "--format=%H %ct %s")
    if not line:
        return None
    sha, seconds, *subject = line.split(" ", 2)
    dirty = bool(uncommitted(repo).code)
    return Commit(sha=sha, date_ms=int(seconds) * 1000, subject=" ".join(subject), dirty=dirty)


def measured_repo() -> Path | None:
    """Return the checkout that the imported rocattn runs from, or None for an installed copy.

    An environment inside a checkout (``.venv``) is an installed copy: git would report the repository around it, whose
    code is not what runs.
    """
    if rocattn.__file__ is None:
        return None
    root = Path(rocattn.__file__).resolve().parent.parent
    top = _git(root, "rev-parse", "--show-toplevel")
    return root if top and Path(top).resolve() == root else None
