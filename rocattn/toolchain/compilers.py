"""Find compilers: the one named by ROCATTN_COMPILER, the pinned one, ROCm's, a clang on PATH, and gcc for the CPU.

The search for a CPU compiler starts each candidate once (its version is part of every cache key); only GPU kernels
also need its list of targets.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import SettingError, ToolchainError, complaint
from rocattn.installed import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARIABLE = "ROCATTN_COMPILER"
PINNED = "ziglang"
MIN_CLANG, MIN_GCC = 17, 12
_PROBE_TIMEOUT_S = 60.0
# These make a compiler read or record things that are not part of the cache key.
_UNHERMETIC = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS", "CLANG_CONFIG_FILE_USER_DIR"}


@dataclass(frozen=True, slots=True)
class Compiler:
    """A candidate compiler: usable, or not for a reason.

    Attributes:
        kind: "ziglang" (the pinned one), "rocm", "clang" or "gcc".
        argv: Command of the compiler driver; empty if there is none.
        linker: Command of its ld.lld; empty if there is none.
        version: The driver's version line, which for ROCm names the exact revision.
        targets: Supported GPU architectures ("gfx942", …).
        reason: Why it cannot compile GPU kernels; empty if it can.
        host_reason: Why it cannot compile for this CPU; empty if it can.
        given: Whether ``ROCATTN_COMPILER`` names it.
    """

    kind: str
    argv: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    version: str = ""
    targets: tuple[str, ...] = ()
    reason: str = ""
    host_reason: str = ""
    given: bool = False

    @property
    def usable(self) -> bool:
        """Whether it can compile GPU kernels."""
        return not self.reason


def find_compilers() -> list[Compiler]:
    """Return all candidate compilers in order of preference, with their GPU targets."""
    from concurrent.futures import ThreadPoolExecutor  # takes 5 ms: not needed if one compiler is enough

    with ThreadPoolExecutor() as pool:
        return list(pool.map(_with_targets, _candidates()))


@functools.cache
def choose_compiler() -> Compiler:
    """Return the first compiler for GPU kernels; searched once per process.

    Raises:
        ToolchainError: When there is none; the message gives each one's reason.
        SettingError: When the given one does not work.
    """
    looked: list[Compiler] = []
    for candidate in _candidates():
        compiler = _with_targets(candidate)
        if compiler.usable:
            return compiler
        _check_given(compiler)
        looked.append(compiler)
    absent = [compiler for compiler in looked if (compiler.kind, compiler.argv) == (PINNED, ())]
    reasons = "; ".join(f"{compiler.kind}: {compiler.reason}" for compiler in looked if compiler not in absent)
    remedy = f"{install_command(PINNED)} ({reasons})" if absent else reasons
    raise ToolchainError(f"no compiler for HIP kernels: {remedy}")


@functools.cache
def choose_host_compiler() -> Compiler:
    """Return the first compiler for this CPU; searched once per process.

    Raises:
        ToolchainError: When there is none.
        SettingError: When the given one does not work.
    """
    if not sys.platform.startswith("linux"):
        raise ToolchainError(f"the CPU kernels are built for Linux only, not for {sys.platform}")
    for compiler in _candidates():
        if not compiler.host_reason:
            return compiler
        _check_given(compiler)
    raise ToolchainError(
        f"no C++ compiler: {install_command(PINNED)}, or put clang >= {MIN_CLANG} or g++ >= {MIN_GCC} on PATH"
    )


def compiler_environment() -> dict[str, str]:
    """Return the variable that makes another Python environment compile for this CPU with the same compiler."""
    try:
        return {VARIABLE: shlex.join(choose_host_compiler().argv)}
    except ToolchainError:
        return {}


def run_step(command: Sequence[str], source: Path, target: str) -> str:
    """Run one command of a compilation in the source's folder and return its diagnostics.

    Args:
        command: The command.
        source: The source file.
        target: The target, as named in errors.

    Raises:
        ToolchainError: When it fails; with the compiler's first error line.
    """
    done = subprocess.run(
        (*_ended_with_us(), *command), cwd=source.parent, env=_environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        text = f"{source.name} does not compile for {target}: {_why(done.stderr, done.returncode)}"
        raise ToolchainError(text, command=command, output=done.stderr)
    return done.stderr.strip()


@functools.cache
def _ended_with_us() -> tuple[str, ...]:
    """Return a command prefix that ends a compilation if this process is killed, or nothing if unavailable.

    Python could do it between fork and exec, which is unsafe with threads and copies all our page tables.
    """
    program = shutil.which("setpriv")  # from util-linux; supports the signal since 2.33
    if program is None:
        return ()
    words = (program, "--pdeathsig", "KILL")
    try:
        known = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        known = False
    return words if known else ()


def _candidates() -> Iterator[Compiler]:
    """Examine the compilers in order of preference, without querying their targets."""
    yield from _given()
    yield pinned_compiler()
    yield _rocm()
    yield from _clangs()
    yield from _gccs()


def _given() -> Iterator[Compiler]:
    """Examine the compiler in ``ROCATTN_COMPILER``: any compiler command, or any form of ziglang."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        yield _unusable("clang", f"cannot be read ({error})", given=True)
        return
    program = shutil.which(argv[0]) or argv[0]
    argv = (os.path.abspath(program) if os.sep in program else program, *argv[1:])  # noqa: PTH100 - keeps links
    if argv[1:3] == ("-m", "ziglang"):
        try:
            home = Path(_ask([argv[0], "-c", "import ziglang; print(ziglang.__path__[0])"]).strip())
        except ToolchainError as error:
            yield _unusable(PINNED, str(error), argv=argv, given=True)
            return
        yield replace(_zig(home), given=True)
    elif Path(argv[0]).name == "zig":
        yield replace(_zig(Path(argv[0]).parent), given=True)
    else:
        yield replace(_identified("", argv, _linker_of(argv[0])), given=True)


def _check_given(compiler: Compiler) -> None:
    """Raise rather than use a compiler other than the requested one, unless that is for another purpose."""
    if compiler.given and compiler.host_reason:
        raise SettingError(
            f"{VARIABLE} does not name a working compiler: {compiler.host_reason}; correct it, or unset it"
        )


def pinned_compiler() -> Compiler:
    """Examine clang in the PyPI package ``ziglang``, started directly: its ``python -m`` only execs the same file."""
    spec = find_spec(PINNED)
    if spec is None or not spec.submodule_search_locations:
        return _unusable(PINNED, f"not installed: {install_command(PINNED)}")
    return _zig(Path(next(iter(spec.submodule_search_locations))))


def _zig(home: Path) -> Compiler:
    """Examine the clang inside zig; its release is that of the enclosing package."""
    zig = str(home / "zig")
    packages = sorted(path.name[: -len(".dist-info")] for path in home.parent.glob("ziglang-*.dist-info"))
    release = packages[0].partition("-")[2] if len(packages) == 1 else "unknown"
    return _identified(PINNED, (zig, "clang"), (zig, "ld.lld"), f" (ziglang {release})")


def _rocm() -> Compiler:
    """Examine ROCm's clang; hipcc is only a wrapper that adds options."""
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    for folder in ("lib/llvm/bin", "llvm/bin", "bin"):
        for name in ("amdclang++", "clang++"):
            if (driver := root / folder / name).exists():
                linkers = [root / place / "ld.lld" for place in (folder, "lib/llvm/bin", "llvm/bin")]
                linker = next((str(path) for path in linkers if path.exists()), "")
                return _identified("rocm", (str(driver),), (linker,) if linker else ())
    where = f"{root}, from ROCM_PATH" if os.environ.get("ROCM_PATH") else f"{root}; set ROCM_PATH if it is elsewhere"
    if (root / "bin" / "hipcc").exists():
        return _unusable("rocm", f"hipcc is there but the clang it wraps is not (looked in {where})")
    return _unusable("rocm", f"no amdclang++ (looked in {where})")


def _clangs() -> Iterator[Compiler]:
    """Examine each clang on PATH, unversioned names first, then the newest."""
    names = ("clang++", "clang", *(f"clang-{major}" for major in range(40, MIN_CLANG - 1, -1)))
    drivers = list(_on_path(names))
    for driver in drivers:
        yield _identified("clang", (driver,), _linker_of(driver))
    if not drivers:
        yield _unusable("clang", "no clang on PATH")


def _gccs() -> Iterator[Compiler]:
    """Examine each g++ on PATH, only for this CPU."""
    drivers = list(_on_path(("g++", *(f"g++-{major}" for major in range(30, MIN_GCC - 1, -1)))))
    for driver in drivers:
        yield _identified("gcc", (driver,), ())
    if not drivers:
        yield _unusable("gcc", "no g++ on PATH")


def _on_path(names: Sequence[str]) -> Iterator[str]:
    """Find programs on PATH, each file once."""
    known: set[str] = set()
    for name in names:
        driver = shutil.which(name)
        if driver is not None and (real := os.path.realpath(driver)) not in known:
            known.add(real)
            yield driver


def _linker_of(driver: str) -> tuple[str, ...]:
    """Return the ld.lld next to a clang, or else one of its version, or else any on PATH."""
    real = os.path.realpath(driver)
    suffix = re.search(r"-\d+$", real)
    beside = Path(real).parent / "ld.lld"
    linker = str(beside) if beside.exists() else None
    linker = linker or (shutil.which(f"ld.lld{suffix[0]}") if suffix else None) or shutil.which("ld.lld")
    return (linker,) if linker else ()


def _unusable(
    kind: str, reason: str, *, argv: tuple[str, ...] = (), version: str = "", given: bool = False
) -> Compiler:
    return Compiler(kind, argv, version=version, reason=reason, host_reason=reason, given=given)


def _identified(kind: str, argv: tuple[str, ...], linker: tuple[str, ...], suffix: str = "") -> Compiler:
    """Query a compiler's version; without a ``kind``, derive it from the answer."""
    try:
        banner = _ask([*argv, "--version"])
    except ToolchainError as error:
        return _unusable(kind or "clang", str(error), argv=argv)
    if clang := re.search(r"^.*clang version (\d+).*$", banner, re.MULTILINE):
        name, least, match = "clang", MIN_CLANG, clang
        kind = kind or "clang"
    elif "Free Software Foundation" in banner and (gcc := re.search(r"^.*\) (\d+)\.\d+.*$", banner, re.MULTILINE)):
        name, least, match = "gcc", MIN_GCC, gcc
        kind = kind or "gcc"
    else:
        return _unusable(kind or "clang", f"{argv[0]} is not a {kind or 'clang or gcc'}", argv=argv)
    if (name == "gcc") != (kind == "gcc"):
        return _unusable(kind, f"{argv[0]} is not a {kind}", argv=argv)
    version = match[0].strip() + suffix
    if int(match[1]) < least:
        reason = f"{name} {match[1]} is too old: {least} or newer is needed"
        return _unusable(kind, reason, argv=argv, version=version)
    return Compiler(kind, argv, linker, version)


def _with_targets(compiler: Compiler) -> Compiler:
    """Query a clang's AMDGPU targets, and check that its linker exists."""
    if compiler.reason:
        return compiler
    if compiler.kind == "gcc":
        return replace(compiler, reason="gcc has no AMDGPU target")
    try:
        listed = _ask([*compiler.argv, "--target=amdgcn-amd-amdhsa", "-nogpulib", "-print-supported-cpus"])
        targets = tuple(dict.fromkeys(re.findall(r"^\s+(gfx[0-9a-f]+)$", listed, re.MULTILINE)))
        if not compiler.linker:
            return replace(compiler, targets=targets, reason="its ld.lld is missing: install lld")
        _ask([*compiler.linker, "--version"])
    except ToolchainError as error:
        return replace(compiler, reason=str(error))
    return replace(compiler, targets=targets, reason="" if targets else "built without the AMDGPU target")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _UNHERMETIC}
    return kept | {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}


def _ask(argv: Sequence[str]) -> str:
    """Return a compiler's output, or raise ToolchainError with the reason why it does not work."""
    try:
        done = subprocess.run(
            argv, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError(f"{argv[0]} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"{argv[0]} did not answer in {_PROBE_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise ToolchainError(f"`{shlex.join(argv)}` failed: {_why(done.stderr, done.returncode)}")
    return done.stdout + done.stderr


def _why(output: str, status: int) -> str:
    return complaint(output, f"no message, exit status {status}")
