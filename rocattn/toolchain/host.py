"""Compile C++ for this CPU, once per machine: kernels/cpu and other host code.

The sources use neither the C++ standard library nor the C library's headers, and a shared object leaves its few
undefined symbols (pthread_create, posix_memalign, …) to the process that loads it. So nothing is linked in, machines
can compile for one another, and the same source, options and compiler give the same bytes. The CPU kernels take 15 to
25 seconds of CPU time: the first use prints a notice, and a wheel contains them (`rocattn.toolchain.cpu_library`).
"""

from __future__ import annotations

import functools
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import SettingError, ToolchainError
from rocattn.notices import notice
from rocattn.toolchain.compilers import Compiler, choose_host_compiler, run_step
from rocattn.toolchain.inputs import absolute, content_key, inputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = (
    *("-std=c++17", "-O3", "-fPIC", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    *("-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra"),
)
ISA_OPTIONS = {
    "amx": ("-march=x86-64-v4", "-mamx-tile", "-mamx-bf16"),
    "avx512bf16": ("-march=x86-64-v4", "-mavx512bf16"),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
    "portable": (),
}
_X86_FLAGS = {
    "avx2": {"avx2", "fma", "f16c", "bmi2", "movbe"},
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "avx512bf16": {"avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16"},
}
_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"
_ZEN5 = 0x1A  # family
# Cores with few L1 misses in flight, and more L2 misses: a prefetch to L2 occupies none of the few.
_FETCH = ("-DRA_PREFETCH_TO_L2",)
# 512-bit stores take two cycles, and L1 has 32 KiB: keep sums in registers for more keys, and rows in place.
# Prefetches to L2 are dropped if its queue is full, so each is repeated.
_SLOW_STORES = ("-DRA_SLOW_STORES",)


class Target(NamedTuple):
    """A library's target: `platform.machine()`, a key of `ISA_OPTIONS`, and the result of `tuning`."""

    machine: str
    isa: str
    tuning: tuple[str, ...]


WHEEL_TARGETS = {
    "x86_64-amx": Target("x86_64", "amx", _FETCH),
    "x86_64-avx512bf16-zen4": Target("x86_64", "avx512bf16", (*_FETCH, *_SLOW_STORES)),
    "x86_64-avx512bf16": Target("x86_64", "avx512bf16", ()),
    "x86_64-avx512": Target("x86_64", "avx512", _FETCH),
    "x86_64-avx2": Target("x86_64", "avx2", _FETCH),
    "x86_64-avx2-zen": Target("x86_64", "avx2", (*_FETCH, *_SLOW_STORES)),
    "x86_64-portable": Target("x86_64", "portable", ()),
    "aarch64-portable": Target("aarch64", "portable", ()),
}
"""A wheel's targets: combinations in real cores. Others work with the first library of their instruction set."""


@functools.cache
def host_isa() -> str:
    """Return the fastest instruction set of this CPU that the kernels support; ``ROCATTN_CPU_ISA`` overrides it.

    That is the widest, except for bf16 products on Intel cores: there vdpbf16ps takes two cycles and two FMAs take
    one, so widening to float32 is faster (measured: forward 1.5 times, backward equal). On AMD (Zen 4 and 5), pairs
    are faster.

    Raises:
        SettingError: When the override is unknown, or this CPU lacks it.
    """
    able = ["portable"]
    if platform.machine() in {"x86_64", "AMD64"}:
        flags = _cpu_flags()
        for name, needed in _X86_FLAGS.items():
            if not needed <= flags:
                break
            able.append(name)
    wanted = os.environ.get("ROCATTN_CPU_ISA")
    if wanted and wanted not in able:
        raise SettingError(f"ROCATTN_CPU_ISA is {wanted!r}: this CPU has {', '.join(able)}; set it to one, or unset it")
    if not wanted and able[-1] == "avx512bf16" and _cpu_vendor() == _INTEL:
        return "avx512"
    return wanted or able[-1]


def _cpu_flags() -> set[str]:
    return set(_cpu_line("flags").split())


def _cpu_vendor() -> str:
    return _cpu_line("vendor_id")


def tuning() -> tuple[str, ...]:
    """Return options for this core beyond its instruction sets; measured on Xeons with AMX, Zen 4 and 5."""
    vendor = _cpu_vendor()
    if vendor == _INTEL:
        return _FETCH
    family = _cpu_family()
    return (*_FETCH, *_SLOW_STORES) if vendor == _AMD and family is not None and family < _ZEN5 else ()


def _cpu_family() -> int | None:
    text = _cpu_line("cpu family")
    return int(text) if text.isdecimal() else None


def _cpu_line(name: str) -> str:
    """Return the first CPU's value for a name in /proc/cpuinfo, or nothing."""
    try:
        with Path("/proc/cpuinfo").open() as info:
            line = next((text for text in info if text.startswith(name)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def compile_host(
    sources: Sequence[Path], *, isa: str | None = None, options: Sequence[str] = (), what: str = ""
) -> bytes:
    """Compile C++ files into one shared object for this CPU, or take it from the cache.

    Args:
        sources: The files.
        isa: A key of `ISA_OPTIONS`; None is `host_isa`.
        options: Additional compiler options.
        what: Name of the sources for a notice on stderr if compilation takes long.

    Returns:
        The shared object's bytes.

    Raises:
        ToolchainError: When there is no compiler or the source does not compile.
    """
    target = Target(platform.machine(), isa or host_isa(), tuning())
    return compile_for(target, sources, choose_host_compiler(), options=options, what=what)


def compile_for(
    target: Target, sources: Sequence[Path], compiler: Compiler, *, options: Sequence[str] = (), what: str = ""
) -> bytes:
    """Like `compile_host`, for any machine that the compiler supports; only the pinned one supports others."""
    files = [absolute(source) for source in sources]
    chosen = (*_OPTIONS, *ISA_OPTIONS[target.isa], *target.tuning, *options)
    inputs = _inputs(files)
    parts: list[str | bytes] = ["host-2", compiler.version, target.machine, *chosen]
    for name, data in inputs:
        parts += [name, data]
    folder = cache_folder()

    def make() -> dict[str, bytes]:
        compiled = _build([*compiler.argv, *own_options(compiler, target.machine)], compiler.linker, files, chosen)
        if _inputs(files) != inputs:  # otherwise the cache would store another version under this key
            raise ToolchainError(f"{files[0].name} or a header changed while it was compiled: run it again")
        return {"code.so": compiled}

    def announce() -> None:
        if what:
            cost = f"about 20 s of CPU time, kept in {folder}"
            notice(f"compiling {what} for {target.isa} with {compiler.version} ({cost})")

    return ContentCache(folder).get_or_make(content_key(parts), make, announce)["code.so"]


def hip_library(folder: Path) -> Path:
    """Build one of this project's libraries with HIP's C interface, or take it from the cache.

    Args:
        folder: Its sources.

    Returns:
        The folder for ``ROCM_PATH``: its ``lib`` contains ``libamdhip64.so``.

    Raises:
        ToolchainError: When there is no compiler or the library cannot be written.
    """
    data = compile_host(sorted(folder.glob("*.cpp")))
    root = cache_folder() / folder.name / content_key([data])
    library = root / "lib" / "libamdhip64.so"
    if library.is_file():
        return root
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=library.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, library)  # noqa: PTH105 - atomic: another process may do the same
    except OSError as error:
        raise ToolchainError(f"cannot write {library}: {error.strerror}") from error
    return root


def _inputs(sources: Sequence[Path]) -> list[tuple[str, bytes]]:
    folders = dict.fromkeys(source.parent for source in sources)
    return [entry for folder in folders for entry in inputs_of(folder, *(s for s in sources if s.parent == folder))]


def _build(driver: Sequence[str], linker: Sequence[str], sources: Sequence[Path], options: Sequence[str]) -> bytes:
    from concurrent.futures import ThreadPoolExecutor  # takes 5 ms: not needed if the library is cached

    try:
        with tempfile.TemporaryDirectory(prefix="rocattn-build-") as folder:
            objects = [str(Path(folder, f"{source.stem}.o")) for source in sources]
            workers = min(len(sources), len(os.sched_getaffinity(0)))
            with ThreadPoolExecutor(workers) as pool:
                work = [pool.submit(_compile, driver, *pair, options) for pair in zip(sources, objects, strict=True)]
            for done in work:
                done.result()
            result = Path(folder, "code.so")
            link = linker or (*driver, "-nostdlib")
            run_step([*link, "-shared", *objects, "-o", str(result)], sources[0], "this CPU")
            return result.read_bytes()
    except OSError as error:
        raise ToolchainError(f"cannot build {sources[0].name} in a temporary folder: {error.strerror}") from error


def own_options(compiler: Compiler, machine: str = "") -> tuple[str, ...]:
    """Return the options that make a driver compile for a machine (default: this one) using only its own headers."""
    if compiler.kind == "gcc":
        return ()
    if compiler.kind != "ziglang":
        return ("--no-default-config",)
    # "gnu" for every libc: nothing from it is included or linked.
    headers = str(Path(compiler.argv[0]).parent / "lib" / "include")
    return ("--no-default-config", "-target", f"{machine or platform.machine()}-linux-gnu", "-isystem", headers)


def _compile(driver: Sequence[str], source: Path, target: str, options: Sequence[str]) -> None:
    where = [f"-ffile-prefix-map={source.parent}=.", "-c", source.name, "-o", target]
    run_step([*driver, *options, *where], source, "this CPU")
