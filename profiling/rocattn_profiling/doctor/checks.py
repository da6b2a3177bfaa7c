"""The checks of ``rocattn doctor`` and their report: software, hardware, and sources of measurement noise.

Each check returns rows; none raises because something is missing.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import rocattn
from rocattn.cache import cache_folder, compiled_entries, write_problem
from rocattn.errors import RocattnError, SettingError, ToolchainError
from rocattn.gpu.arch import TESTED, has_kernels, is_nvidia
from rocattn.gpu.probe import GpuProbe, probe
from rocattn.installed import install_command
from rocattn.settings import cache_gib
from rocattn.sources import kernel_root
from rocattn.threads import thread_count
from rocattn.toolchain import Compiler, choose_compiler, choose_cpu_library, compile_hip, find_compilers, host_isa
from rocattn.toolchain.compilers import PINNED
from rocattn_profiling.base.files import system_text
from rocattn_profiling.base.process import BrokenToolError, find_tool, tool_version
from rocattn_profiling.kernels.read.code_objects import read_objects
from rocattn_profiling.kernels.read.disassembly import disassemble, find_disassemblers, llvm_remedy
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.machine import cpu_model
from rocattn_profiling.profile.collect.find import METHODS, Tool, find_profilers
from rocattn_profiling.revisions import environments

if TYPE_CHECKING:
    from rocattn.backend import Backend

SCHEMA = 2
_REPAIR = "repair or remove it"
_UNSET = "correct the variable, or unset it"
# The consequences of a backend that does not work.
_WITHOUT = {
    "cpu": "reinstall rocattn and numpy: nothing runs without this backend",
    "cpu-flash": "until this is fixed, attention on the CPU runs in numpy, 50 to 200 times slower",
    "gpu": "optional: the other backends do not need a GPU",
}
GIB = 1 << 30
_TRIAL_S = 0.3
_VERSION_TIMEOUT_S = 5.0
_PROBE_KERNEL = 'extern "C" __attribute__((global)) void probe(int* out) { *out = 1; }\n'
# Instruction sets by which CPU kernels and BLAS libraries select code.
SIMD = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve")

Status = Literal["ok", "warning", "missing", "broken"]
"""Ready (checked and working); present with a flaw; absent and optional; required or requested, but not working."""
Say = Callable[[str], None]


class DoctorCheck(msgspec.Struct, frozen=True):
    """A row: an item, its status and details, and the remedy for a problem."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


class BackendCheck(msgspec.Struct, frozen=True):
    """A backend: whether it is available here and supports a plain float32 config, and the reason if not.

    ``is_stand_in`` means that it runs on a substitute for its hardware. ``ms`` is the best time for 512 tokens with 8
    heads of 64 in float32 for backends that compute on the CPU; None for others.
    """

    name: str
    available: bool
    supports: bool
    works: bool
    reason: str = ""
    is_stand_in: bool = False
    ms: float | None = None
    status: Status = "ok"


class Report(msgspec.Struct, frozen=True):
    """The result of all checks; ``ok`` means that nothing is broken."""

    ok: bool
    checks: list[DoctorCheck]
    compilers: list[Compiler]
    gpu: GpuProbe
    backends: list[BackendCheck]

    def to_builtins(self) -> dict[str, Any]:
        """Return the JSON form: these fields, schema and version, and the chosen compilers."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        gpu, host = chosen_compilers(self.compilers)
        for compiler, row in zip(self.compilers, values["compilers"], strict=True):
            row["chosen"], row["chosen_host"] = compiler is gpu, compiler is host
        return {"schema": SCHEMA, "rocattn": rocattn.__version__} | values


def chosen_compilers(compilers: list[Compiler]) -> tuple[Compiler | None, Compiler | None]:
    """Return the first compiler for GPU kernels, and the first for this CPU unless its kernels need none.

    None if the given one does not work.
    """
    if compilers and compilers[0].given and compilers[0].host_reason:
        return None, None
    gpu = next((compiler for compiler in compilers if compiler.usable), None)
    with contextlib.suppress(ToolchainError, SettingError):
        if choose_cpu_library().path is not None:
            return gpu, None
    return gpu, next((compiler for compiler in compilers if not compiler.host_reason), None)


def examine(say: Say = lambda _: None) -> Report:
    """Run all checks; those that start other programs run concurrently.

    Args:
        say: Called with a description of the next step.
    """
    say("looking for compilers, GPUs, profilers and other programs")
    with ThreadPoolExecutor(max_workers=8) as pool:
        gpu = pool.submit(probe)
        compilers = pool.submit(find_compilers)
        profilers = pool.submit(profiler_checks)
        tools = pool.submit(tool_checks)
        disassemblers = pool.submit(disassembler_check)
    backends = backend_results(say)  # alone, because they are timed
    compilers_here, usable = compilers.result(), gpu.result()
    checks = [
        *python_checks(),
        *processor_checks(),
        *backend_checks(backends),
        *compiler_checks(compilers_here),
        *gpu_checks(usable),
        *profilers.result(),
        disassemblers.result(),
        *tools.result(),
        *hygiene_checks(),
    ]
    ok = all(check.status != "broken" for check in checks)
    return Report(ok, checks, compilers_here, usable, backends)


def gpu_problem(report: Report, arch: str, allow_stand_in: bool) -> str:
    """Return why this machine has no GPU to measure on; "" if it has one.

    Args:
        report: The result of `examine`.
        arch: The required architecture, like "gfx942"; "" for any.
        allow_stand_in: Whether the stand-in counts.
    """
    devices = [device for device in report.gpu.devices if allow_stand_in or not device.is_stand_in]
    if not devices:
        return report.gpu.reason or "only the stand-in is there (unset ROCM_PATH), and its times mean nothing"
    # Kernels run on the first device; a runner's label has no features ("gfx942:sramecc+").
    actual = devices[0].arch.partition(":")[0]
    if arch and actual != arch:
        return f"it is {actual}, not {arch}"
    backend = next((backend for backend in report.backends if backend.name == "gpu"), None)
    if backend is None or not backend.works:
        return backend.reason if backend else "this rocattn has no backend gpu"
    return ""


def python_checks() -> list[DoctorCheck]:
    """Return rows for the interpreter and rocattn's required packages, from the installed metadata."""
    group = "python"
    rows = [DoctorCheck(group, "python", "ok", f"{platform.python_version()} ({sys.executable})")]
    try:
        wanted = [
            re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requires("rocattn") or [] if "extra ==" not in line
        ]
        rows.append(DoctorCheck(group, "rocattn", "ok", f"{rocattn.__version__} ({Path(rocattn.__file__).parent})"))
    except PackageNotFoundError:
        wanted = []
        remedy = "python3 dev.py run, or pip install -e . in the clone"
        rows.append(
            DoctorCheck(group, "rocattn", "warning", f"{rocattn.__version__}, used without being installed", remedy)
        )
    installed: list[str] = []
    for name in wanted:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            rows.append(DoctorCheck(group, name, "broken", "required, but not installed", install_command(name)))
    if installed:
        rows.append(DoctorCheck(group, "packages", "ok", ", ".join(installed)))
    return rows


def backend_results(say: Say = lambda _: None) -> list[BackendCheck]:
    """Query every backend, and run a small attention with a known result on those that are available."""
    try:
        from rocattn.backends import BACKENDS
    except ImportError as error:
        reason = f"cannot be imported: {error}"
        return [BackendCheck("cpu", available=False, supports=False, works=False, reason=reason, status="broken")]
    results = []
    for backend in BACKENDS:
        first = ": the first time on a machine its kernels may have to be compiled" * (backend.name == "cpu-flash")
        say(f"trying the backend {backend.name}{first}")
        try:
            results.append(_backend_result(backend))
        except SettingError as error:
            refused = BackendCheck(backend.name, available=False, supports=False, works=False, reason=str(error))
            results.append(msgspec.structs.replace(refused, status="broken"))
    return results


def _backend_result(backend: Backend) -> BackendCheck:
    config = rocattn.AttentionConfig(batch=1, num_heads=8, seq_q=512, seq_k=512, head_dim=64)
    available, supports = backend.available(), backend.supports(config)
    reason = available.reason or supports.reason
    on_cpu = backend.name in {"cpu", "cpu-flash"}
    status: Status = "missing"
    if available and supports:
        reason = _trial(backend.name)
        status = "broken" if reason else "ok"
    elif available.broken:  # its hardware is present: the GPU, or a compiler that does not compile the kernels
        status = "warning" if not on_cpu else "broken" if _has_cpu_kernels() else "missing"
    stand_in = bool(available) and backend.is_stand_in
    ms = _time_of(backend.name, config) if not reason and on_cpu else None
    return BackendCheck(backend.name, bool(available), bool(supports), not reason, reason, stand_in, ms, status)


def _has_cpu_kernels() -> bool:
    """Return whether there are compiled kernels, or a compiler for them."""
    try:
        choose_cpu_library()
    except ToolchainError:
        return False
    return True


def _time_of(name: str, config: rocattn.AttentionConfig) -> float:
    """Return the best time of a config in milliseconds, to show the cost of falling back to this backend.

    Repeats for `_TRIAL_S`: BLAS threads spin for a while after use, and occupy a core.
    """
    import numpy as np

    shape = (config.batch, config.seq_q, config.num_heads, config.head_dim)
    q = np.ones(shape, np.float32)
    times: list[float] = []
    end = time.perf_counter() + _TRIAL_S
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        rocattn.attention(q, q, q, backend=name)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def _trial(name: str) -> str:
    """Return the error of a backend on q = 0, for which attention is the mean of v; "" if it is correct."""
    import numpy as np

    v = np.arange(24, dtype=np.float32).reshape(1, 6, 1, 4)
    try:
        out = rocattn.attention(np.zeros((1, 3, 1, 4), np.float32), v, v, backend=name)
    except SettingError:
        raise
    except (RocattnError, ArithmeticError, ImportError, OSError, TypeError, ValueError) as error:
        return f"a small attention fails: {error}"
    return "" if np.allclose(out, v.mean(axis=1, keepdims=True)) else "a small attention gives a wrong result"


def backend_checks(backends: list[BackendCheck]) -> list[DoctorCheck]:
    """Return a row per backend, and one for numpy's BLAS."""
    group = "backends"
    rows = []
    for backend in backends:
        detail = "available, supports a plain float32 config" if backend.works else backend.reason
        if backend.ms is not None:
            path = f"{host_isa()}: " if backend.name == "cpu-flash" else ""
            detail = f"{path}512 tokens of 8 heads of 64 in {backend.ms:.1f} ms"
        if backend.works and backend.is_stand_in:
            detail = "runs on the stand-in GPU: not a GPU, never chosen unless named"
        remedy = "" if backend.works else _WITHOUT.get(backend.name, "")
        rows.append(DoctorCheck(group, backend.name, backend.status, detail, remedy))
    try:
        blas = machine.blas_name()
    except ImportError as error:
        return [*rows, DoctorCheck(group, "numpy", "broken", str(error), install_command("numpy"))]
    return [*rows, DoctorCheck(group, "blas", "ok" if blas else "warning", blas or "numpy does not say which")]


def compiler_checks(compilers: list[Compiler]) -> list[DoctorCheck]:
    """Return rows for the compilers in order of preference, the CPU kernels' compiler, kernel sources and cache."""
    group = "compilers, in the order of choice"
    gpu, host = chosen_compilers(compilers)
    rows = [_compiler_row(group, compiler, gpu, host) for compiler in compilers]
    rows += [_gpu_kernels(group), _cpu_kernels(group)]
    try:
        rows.append(DoctorCheck(group, "kernel sources", "ok", str(kernel_root())))
    except RocattnError as error:
        rows.append(DoctorCheck(group, "kernel sources", "broken", str(error), "reinstall rocattn"))
    return [*rows, _cache(group)]


def _cache(group: str) -> DoctorCheck:
    """Return the location of compiled code and the gate's environments, their size and the limit."""
    folder = cache_folder()
    if problem := write_problem(folder):
        return DoctorCheck(
            group, "cache", "warning", f"{folder}: {problem}", "set ROCATTN_CACHE_DIR to a writable folder"
        )
    envs = environments.cache_root() / "envs"
    parts = {"compiled code": compiled_entries(folder)}
    if envs.is_dir():
        parts["the gate's environments"] = environments.cached_entries(envs)
    sizes = [f"{sum(entry.size_bytes for entry in entries) / 2**30:.2f} GiB {name}" for name, entries in parts.items()]
    try:
        limit = f"at most {cache_gib():g} GiB each" if cache_gib() < math.inf else "no limit"
    except SettingError as error:
        return DoctorCheck(group, "cache", "broken", str(error), _UNSET)
    return DoctorCheck(group, "cache", "ok", f"{folder}: {', '.join(sizes)}; {limit}")


def _compiler_row(group: str, compiler: Compiler, gpu: Compiler | None, host: Compiler | None) -> DoctorCheck:
    name = f"{compiler.kind} (ROCATTN_COMPILER)" if compiler.given else compiler.kind
    if compiler.reason and compiler.host_reason:
        program = f"{compiler.argv[0]}: " if compiler.argv else ""
        if compiler.given:
            return DoctorCheck(group, name, "broken", program + compiler.reason, _UNSET)
        remedy = f"optional: {gpu.kind} is chosen" if gpu else "optional: one compiler is enough"
        return DoctorCheck(group, name, "missing", program + compiler.reason, remedy)
    what = f"{len(compiler.targets)} GPU target{'s' * (len(compiler.targets) != 1)}"
    if compiler.reason:
        what = f"for CPU kernels only: {compiler.reason}"
    chosen = [kernels for kernels, which in (("GPU kernels", gpu), ("CPU kernels", host)) if which is compiler]
    note = f"chosen for {' and '.join(chosen)}" if chosen else "optional, not tried"
    return DoctorCheck(group, name, "ok", f"{compiler.version}; {what}; {note}")


def _gpu_kernels(group: str) -> DoctorCheck:
    """Return whether the chosen compiler can make a code object, which needs no GPU."""
    try:
        compiler = choose_compiler()
    except SettingError as error:
        return DoctorCheck(group, "GPU kernels", "broken", str(error), _UNSET)
    except ToolchainError:
        return DoctorCheck(group, "GPU kernels", "missing", "no compiler for them", install_command(PINNED))
    try:
        _probe_object("gfx942")
    except (RocattnError, OSError) as error:
        return DoctorCheck(group, "GPU kernels", "broken", str(error), f"another compiler: {install_command(PINNED)}")
    return DoctorCheck(group, "GPU kernels", "ok", f"{compiler.kind} compiled one for gfx942")


def _probe_object(arch: str) -> bytes:
    """Return the code object of a tiny kernel, cached or newly compiled."""
    with tempfile.TemporaryDirectory(prefix="rocattn-doctor-") as folder:
        source = Path(folder, "probe.hip")
        source.write_text(_PROBE_KERNEL)
        return compile_hip(source, arch).data


def disassembler_check() -> DoctorCheck:
    """Return the targets that the disassemblers here can read, by testing each with a code object."""
    group, name = "programs", "disassembler"
    need = "`rocattn kernels audit FILE` then has no instructions: no cycles, no matrix %, no source lines"
    tools = ", ".join(find_disassemblers())
    try:
        with ThreadPoolExecutor() as pool:
            objects = dict(zip(TESTED, pool.map(_probe_object, TESTED), strict=True))
    except (RocattnError, OSError):
        if tools:
            return DoctorCheck(group, name, "warning", f"{tools}: not tried, as no kernel compiles here", "see above")
        return DoctorCheck(group, name, "missing", f"not found; {need}", llvm_remedy())
    unread = []
    for arch, data in objects.items():
        try:
            for device in read_objects(data, arch):
                disassemble(device)
        except (RocattnError, OSError):
            unread.append(arch)
    if not tools:
        return DoctorCheck(group, name, "missing", f"not found; {need}", llvm_remedy())
    read = [arch for arch in TESTED if arch not in unread]
    if not unread:
        return DoctorCheck(group, name, "ok", f"reads {', '.join(read)} ({tools})")
    detail = f"{tools}: too old for {', '.join(unread)}; there {need}"
    return DoctorCheck(group, name, "warning", f"reads {', '.join(read) or 'none'}; {detail}", llvm_remedy())


def _cpu_kernels(group: str) -> DoctorCheck:
    """Return the compiler of cpu-flash's kernels, and their instruction set."""
    try:
        library, threads = choose_cpu_library(), thread_count()
    except SettingError as error:
        return DoctorCheck(group, "CPU kernels", "broken", str(error), _UNSET)
    except ToolchainError:
        return DoctorCheck(group, "CPU kernels", "missing", "no compiler for them", install_command(PINNED))
    parts = [library.maker, library.isa, str(library.path or "compiled here")]
    detail = f"{', '.join(filter(None, parts))}, {threads} thread{'s' * (threads != 1)}"
    return DoctorCheck(group, "CPU kernels", "ok", detail)


def _tool(group: str, name: str, names: tuple[str, ...], absent: Status, remedy: str) -> DoctorCheck:
    path = find_tool(*names)
    if path is None:
        return DoctorCheck(group, name, absent, "not found", remedy)
    try:
        return DoctorCheck(group, name, "ok", f"{tool_version(path, _VERSION_TIMEOUT_S)} ({path})")
    except BrokenToolError as error:
        return DoctorCheck(group, name, "warning", f"{error} ({path})", _REPAIR)


def profiler_checks() -> list[DoctorCheck]:
    """Return rows for AMD's profilers, newest first, as `rocattn profile` finds them."""
    group = "profilers (only for profiling on a GPU)"
    wanted = {
        "rocprofv3": "install rocprofiler-sdk (ROCm 6.2 or later)",
        "rocprofv2": "part of ROCm 5.5 to 6; rocprofv3 replaces it",
        "rocprof": "part of ROCm up to 6; rocprofv3 replaces it",
        "rocprof-compute": "install rocprofiler-compute (called omniperf before ROCm 6.3)",
    }
    tools = {tool.name: tool for tool in find_profilers(_VERSION_TIMEOUT_S)}
    rows = [
        _profiler(group, tools[name]) if name in tools else DoctorCheck(group, name, "missing", "not found", how)
        for name, how in wanted.items()
    ]
    return [rows[0], _pc_sampling(group, tools.get("rocprofv3")), *rows[1:]]


def _pc_sampling(group: str, rocprofv3: Tool | None) -> DoctorCheck:
    """Return whether rocprofv3 has PC sampling, and its other requirements."""
    # rocprofiler-sdk: source/docs/how-to/using-pc-sampling.rst, and pc_sampling/ioctl for the driver. For the upstream
    # Linux driver see issue 3428 of ROCm/rocm-systems.
    needs = (
        "needs gfx90a or later, AMD's amdgpu-dkms (KFD interface 1.16, which Linux 6.19's own driver lacks), and on "
        "MI300X firmware SOS 0x00360259 (host_trap), MEC 0x1a (stochastic)"
    )
    first = min(release for methods in METHODS.values() for release in methods.values())
    since = f"ROCm {first[0]}.{first[1]}"
    if rocprofv3 is None or rocprofv3.problem:
        return DoctorCheck(group, "PC sampling", "missing", f"rocprofv3 has it; {needs}", f"install {since} or later")
    methods = {name for each in METHODS.values() for name, release in each.items() if release <= rocprofv3.release}
    if methods:
        how = "rocprofv3 -L lists what this GPU takes"
        return DoctorCheck(group, "PC sampling", "ok", f"{' and '.join(sorted(methods))}; {needs}", how)
    status: Status = "missing" if rocprofv3.rocm else "warning"
    return DoctorCheck(group, "PC sampling", status, f"rocprofv3 has it from {since} on; {needs}", "install that")


def _profiler(group: str, tool: Tool) -> DoctorCheck:
    if tool.problem:
        return DoctorCheck(group, tool.name, "warning", f"{tool.problem} ({tool.path})", _REPAIR)
    known = ", ".join(part for part in (tool.version, tool.rocm and f"ROCm {tool.rocm}") if part)
    return DoctorCheck(group, tool.name, "ok", f"{known or 'version unknown'} ({tool.path})")


def tool_checks() -> list[DoctorCheck]:
    """Return rows for other programs used by some commands."""
    group = "programs"
    wanted: dict[str, tuple[tuple[str, ...], Status, str]] = {
        "git": (("git",), "missing", "install git: gate and site need the history"),
        "amd-smi": (
            ("amd-smi",),
            "missing",
            "only with an AMD GPU: install amd-smi-lib (clocks and driver in records)",
        ),
        "chromium": (
            ("chromium", "chromium-browser", "google-chrome", "chrome"),
            "missing",
            "optional: install chromium for the tests that open the site",
        ),
    }
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        jobs = [pool.submit(_tool, group, name, *how) for name, how in wanted.items()]
        return [job.result() for job in jobs]


def processor_checks() -> list[DoctorCheck]:
    """Return rows for CPU model, cores and affinity, instruction sets, and memory."""
    group = "processor and memory"
    total, usable = os.cpu_count() or 1, machine.available_cores()
    cores = f"{usable} usable of {total}"
    simd = [name for name in SIMD if name in cpu_flags()]
    memory, left = machine.total_memory_bytes() / GIB, machine.available_memory_bytes() / GIB
    low = left < 1
    return [
        DoctorCheck(group, "cpu", "ok", cpu_model()),
        DoctorCheck(group, "cores", "ok", cores),
        DoctorCheck(group, "simd", "ok" if simd else "warning", " ".join(simd) or "none of the known instruction sets"),
        DoctorCheck(
            group,
            "memory",
            "warning" if low else "ok",
            f"{left:.1f} GiB free of {memory:.1f} GiB",
            "end other programs: large configurations will be skipped" if low else "",
        ),
    ]


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the CPU's feature flags with Linux's names; empty on other systems."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set(flags[1].split()) if flags else set()


def gpu_checks(probed: GpuProbe) -> list[DoctorCheck]:
    """Return rows for bindings, runtime and devices, and the usual causes if there is no device."""
    group = "gpu"
    bindings = DoctorCheck(group, "hip-python", "ok", probed.bindings)
    if not probed.bindings:
        bindings = DoctorCheck(
            group, "hip-python", "missing", "not installed", f"{install_command('hip-python')} (x86-64 Linux only)"
        )
    rows = [bindings]
    for index, device in enumerate(probed.devices):
        if device.is_stand_in:
            detail = f"the stand-in for {device.arch}, wave{device.wave_size}: not a GPU; its times mean nothing"
            rows.append(DoctorCheck(group, f"device {index}", "warning", detail, "unset ROCM_PATH to look for a GPU"))
            continue
        if is_nvidia(device.arch):
            detail = f"{device.name}, {device.arch}, HIP forwarded to its driver: not an AMD GPU"
            remedy = "its times are not an AMD GPU's; unset ROCM_PATH to look for one"
            rows.append(DoctorCheck(group, f"device {index}", "warning", detail, remedy))
            continue
        # On RDNA, HIP counts work-group processors, which are pairs of CUs: 42 on an RX 7900 XT, specified with 84.
        units = f"{device.compute_units} {'CUs' if device.wave_size == 64 else 'WGPs'}"
        memory = f"{device.memory_bytes / GIB:.0f} GiB"
        detail = f"{device.name or 'AMD GPU'}, {device.arch}, {units}, {memory}, wave{device.wave_size}"
        if has_kernels(device.arch):
            rows.append(DoctorCheck(group, f"device {index}", "ok", detail))
        else:
            remedy = "choose another device with HIP_VISIBLE_DEVICES" if index == 0 and len(probed.devices) > 1 else ""
            rows.append(
                DoctorCheck(group, f"device {index}", "warning", f"{detail}: there are no kernels for it", remedy)
            )
    if probed.runtime:
        rows.append(DoctorCheck(group, "HIP runtime", "ok", probed.runtime))
    if probed.devices:
        return rows
    remedy = "optional: only measuring on a GPU needs one"
    rows.append(DoctorCheck(group, "device", "missing", probed.reason, remedy))
    return [*rows, *_access_checks(group)]


def _access_checks(group: str) -> list[DoctorCheck]:
    """Check that the driver's device file exists and that this user may open it."""
    kfd = Path("/dev/kfd")
    if not kfd.exists():
        return [
            DoctorCheck(group, "/dev/kfd", "missing", "no amdgpu driver is loaded", "only with an AMD GPU: load amdgpu")
        ]
    if os.access(kfd, os.R_OK | os.W_OK):
        return [DoctorCheck(group, "/dev/kfd", "ok", "readable and writable")]
    import grp

    mine = {grp.getgrgid(number).gr_name for number in os.getgroups() if _has_name(number)}
    lacking = [name for name in ("render", "video") if name not in mine]
    remedy = f"sudo usermod -aG {','.join(lacking or ['render', 'video'])} $USER, then log in again"
    return [DoctorCheck(group, "/dev/kfd", "warning", f"no permission; groups: {' '.join(sorted(mine))}", remedy)]


def _has_name(group: int) -> bool:
    import grp

    try:
        grp.getgrgid(group)
    except KeyError:
        return False
    return True


def hygiene_checks(cpu: Path = Path("/sys/devices/system/cpu")) -> list[DoctorCheck]:
    """Return sources of noise: load, frequency governor, control-group quota, virtualization."""
    group = "measurement hygiene"
    load, cores = machine.load_average(), machine.available_cores()
    busy = load > 0.5 * cores
    remedy = "end other programs before measuring" if busy else ""
    rows = [DoctorCheck(group, "load", "warning" if busy else "ok", f"{load:.2f} on {cores} cores", remedy)]
    governors = sorted({system_text(path) for path in cpu.glob("cpu*/cpufreq/scaling_governor")} - {""})
    if not governors:
        rows.append(DoctorCheck(group, "governor", "ok", "not exposed (usual in virtual machines)"))
    elif governors == ["performance"]:
        rows.append(DoctorCheck(group, "governor", "ok", "performance"))
    else:
        rows.append(
            DoctorCheck(
                group, "governor", "warning", ", ".join(governors), "sudo cpupower frequency-set -g performance"
            )
        )
    quota, limit = machine.cpu_quota(), machine.memory_limit_bytes()
    remedy = "give the container whole cores (cpuset) instead of a quota: throttling shows as outliers" if quota else ""
    cpu_part = f"CPU quota {quota:g} cores" if quota else "no CPU quota"
    detail = f"{cpu_part}, {f'memory limit {limit / GIB:.1f} GiB' if limit else 'no memory limit'}"
    rows.append(DoctorCheck(group, "control group", "warning" if quota else "ok", detail, remedy))
    if "hypervisor" in cpu_flags():
        note = "times depend on its neighbors: compare within one run only, as the gate does"
        rows.append(DoctorCheck(group, "virtual machine", "warning", "yes", note))
    return rows
