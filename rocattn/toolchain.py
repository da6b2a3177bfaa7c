"""Finding a compiler and turning kernels into code objects, the same bytes for the same source every time.

A kernel is compiled in three steps (assembly, object, linked code object) rather than one, because the assembly is
wanted too and because the steps need no offload bundler and no ROCm. The build sees nothing but the source's folder
and the include folder (``-nostdinc``), so hashing those files identifies the result.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOG = logging.getLogger(__name__)

MIN_CLANG = 17
_PROBE_TIMEOUT_S = 60.0
_ARCH = re.compile(r"gfx[0-9a-f]{3,}(?::(?:sramecc|xnack)[+-])*")
_INCLUDE = re.compile(
    rb"(?:^[ \t]*#[ \t]*(?:include(?:_next)?|import|embed)\b|\b__has_(?:include|embed)[ \t]*\()[ \t]*"
    rb'(?:"([^"\n]+)"|<([^>\n]+)>|(.*))',
    re.MULTILINE,
)
# These make clang read or record things that the cache key does not know of.
_UNHERMETIC = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS", "CLANG_CONFIG_FILE_USER_DIR"}

_HIP_OPTIONS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"),
    *("-nostdinc", "-nostdinc++", "--no-default-config"),
    *("-std=c++20", "-O3", "-Wall", "-Wextra"),
    *("-fuse-cuid=none", "-ffile-compilation-dir=."),  # the default unit id hashes the source's absolute path
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A clang that was looked at: usable, or not with its reason.

    Attributes:
        kind: "ziglang" (the pinned one), "rocm" or "clang" (on PATH).
        argv: How to start the compiler driver; empty if there is none.
        linker: How to start its ld.lld.
        version: The driver's own version line, which for ROCm names the exact revision.
        targets: GPU architectures it knows ("gfx942", …).
        reason: Why it cannot be used; empty if it can.
    """

    kind: str
    argv: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    version: str = ""
    targets: tuple[str, ...] = ()
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether kernels can be compiled with it."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A compiled kernel file.

    Attributes:
        data: The HSA code object (ELF), as ``hipModuleLoadData`` takes it.
        assembly: Its assembly text.
        arch: The target it was compiled for.
        compiler: What compiled it.
        key: Hash of the source, its headers, the options and the compiler: equal keys, equal bytes.
    """

    data: bytes
    assembly: str
    arch: str
    compiler: Compiler
    key: str


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _UNHERMETIC}
    return kept | {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}


def _ask(argv: Sequence[str]) -> str:
    """Return what a compiler prints, or raise ToolchainError with the reason it does not work."""
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
        raise ToolchainError(f"`{shlex.join(argv)}` failed: {_first_error(done.stderr, done.returncode)}")
    return done.stdout + done.stderr


def _inspect(kind: str, argv: tuple[str, ...], linker: tuple[str, ...], suffix: str = "") -> Compiler:
    """Ask a clang for its version and AMDGPU targets, and its linker whether it is there."""
    try:
        banner = _ask([*argv, "--version"])
        line = next((text for text in banner.splitlines() if "clang version" in text), "")
        found = re.search(r"clang version (\d+)", line)
        if found is None:
            return Compiler(kind, argv, reason=f"{argv[0]} is not a clang")
        version = line.strip() + suffix
        if int(found[1]) < MIN_CLANG:
            reason = f"clang {found[1]} is too old: {MIN_CLANG} or newer is needed"
            return Compiler(kind, argv, version=version, reason=reason)
        listed = _ask([*argv, "--target=amdgcn-amd-amdhsa", "-nogpulib", "-print-supported-cpus"])
        targets = tuple(dict.fromkeys(re.findall(r"^\s+(gfx[0-9a-f]+)$", listed, re.MULTILINE)))
        if not linker:
            return Compiler(kind, argv, version=version, targets=targets, reason="its ld.lld is missing: install lld")
        _ask([*linker, "--version"])
    except ToolchainError as error:
        return Compiler(kind, argv, reason=str(error))
    reason = "" if targets else "built without the AMDGPU target"
    return Compiler(kind, argv, linker, version, targets, reason)


def _pinned() -> Compiler:
    """Look at clang of the PyPI package ``ziglang``, started directly: its ``python -m`` only execs the same file."""
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return Compiler("ziglang", reason="not installed: pip install 'rocattn[toolchain]'")
    from importlib.metadata import PackageNotFoundError, version

    zig = str(Path(next(iter(spec.submodule_search_locations))) / "zig")
    try:
        release = version("ziglang")
    except PackageNotFoundError:
        release = "unknown"
    return _inspect("ziglang", (zig, "clang"), (zig, "ld.lld"), f" (ziglang {release})")


def _rocm() -> Compiler:
    """Look at ROCm's own clang; hipcc is only a wrapper around it that adds options of its own."""
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    for folder in ("lib/llvm/bin", "llvm/bin", "bin"):
        for name in ("amdclang++", "clang++"):
            if (driver := root / folder / name).exists():
                linkers = [root / place / "ld.lld" for place in (folder, "lib/llvm/bin", "llvm/bin")]
                linker = next((str(path) for path in linkers if path.exists()), "")
                return _inspect("rocm", (str(driver),), (linker,) if linker else ())
    where = f"{root}, from ROCM_PATH" if os.environ.get("ROCM_PATH") else f"{root}; set ROCM_PATH if it is elsewhere"
    if (root / "bin" / "hipcc").exists():
        return Compiler("rocm", reason=f"hipcc is there but the clang it wraps is not (looked in {where})")
    return Compiler("rocm", reason=f"no amdclang++ (looked in {where})")


def _on_path() -> Iterator[Compiler]:
    """Look at each clang on PATH, unversioned names first, then the newest."""
    names = ("clang++", "clang", *(f"clang-{major}" for major in range(40, MIN_CLANG - 1, -1)))
    seen: set[str] = set()
    for name in names:
        driver = shutil.which(name)
        if driver is None or (real := os.path.realpath(driver)) in seen:
            continue
        seen.add(real)
        suffix = re.search(r"-\d+$", real)
        beside = Path(real).parent / "ld.lld"
        linker = str(beside) if beside.exists() else None
        linker = linker or (shutil.which(f"ld.lld{suffix[0]}") if suffix else None) or shutil.which("ld.lld")
        yield _inspect("clang", (driver,), (linker,) if linker else ())
    if not seen:
        yield Compiler("clang", reason="no clang on PATH")


def _candidates() -> Iterator[Compiler]:
    yield _pinned()
    yield _rocm()
    yield from _on_path()


def find_compilers() -> list[Compiler]:
    """Return every compiler looked at, in the order of choice: pinned, ROCm's, then clang on PATH."""
    return list(_candidates())


@functools.cache
def choose_compiler() -> Compiler:
    """Return the first usable compiler; asked once a process.

    Raises:
        ToolchainError: When there is none; the message gives each one's reason.
    """
    looked: list[Compiler] = []
    for compiler in _candidates():
        if compiler.usable:
            return compiler
        looked.append(compiler)
    reasons = "; ".join(f"{compiler.kind}: {compiler.reason}" for compiler in looked)
    raise ToolchainError(f"no compiler for HIP kernels: {reasons}")


def compile_hip(
    source: Path | str,
    arch: str,
    *,
    defines: Mapping[str, str | float | bool | None] | None = None,
    code_object_version: int = 5,
    include_root: Path | None = None,
) -> CodeObject:
    """Compile one kernel file for one GPU architecture, or take it from the cache.

    Args:
        source: A ``.hip`` file; a relative path is taken below `kernel_root`.
        arch: Target, with its features if any: "gfx942", "gfx90a:sramecc+:xnack-".
        defines: Macros; True is 1, False 0, None defines the name alone.
        code_object_version: 5 is read by ROCm 6 and later, 6 by ROCm 6.3 and later.
        include_root: Where ``#include <rocattn/…>`` looks; default ``kernel_root() / "include"``.

    Raises:
        ToolchainError: When there is no compiler, the arguments make no sense, or the kernel does not compile; its
            message has the compiler's first error line, ``command`` the failing command, ``output`` all it printed.
    """
    path = _absolute(source if Path(source).is_absolute() else kernel_root() / source)
    headers = _absolute(include_root if include_root is not None else kernel_root() / "include")
    compiler = choose_compiler()
    _check_arch(arch, compiler)
    options = [f"-mcode-object-version={code_object_version}", *_define_options(defines or {})]
    inputs = _inputs(path, headers)
    parts = [b"hip-1", compiler.version.encode(), arch.encode(), path.name.encode()]
    parts += [option.encode() for option in (*_HIP_OPTIONS, *options)]
    parts += [part for name, data in inputs for part in (name.encode(), data)]
    key = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()

    def make() -> dict[str, bytes]:
        made = _three_steps(compiler, path, headers, arch, options)
        if _inputs(path, headers) != inputs:  # else the cache would hold another version under this key
            raise ToolchainError(f"{path.name} or a header changed while it was compiled: run it again")
        return made

    files = _cache(cache_folder()).get_or_make(key, make)
    return CodeObject(files["code.hsaco"], files["code.s"].decode(), arch, compiler, key)


@functools.cache
def _cache(folder: Path) -> ContentCache:
    return ContentCache(folder)


def _check_arch(arch: str, compiler: Compiler) -> None:
    if not _ARCH.fullmatch(arch):
        raise ToolchainError(f"{arch!r} is no GPU architecture: write it like gfx942 or gfx90a:sramecc+:xnack-")
    processor = arch.partition(":")[0]
    if processor not in compiler.targets:
        remedy = "install a newer compiler (rocattn doctor lists them)"
        raise ToolchainError(f"{compiler.version} does not know {processor}: {remedy}")


def _define_options(defines: Mapping[str, str | float | bool | None]) -> list[str]:
    options = []
    for name, value in sorted(defines.items()):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ToolchainError(f"{name!r} cannot be defined: a macro's name is letters, digits and underscores")
        text = int(value) if isinstance(value, bool) else value
        options.append(f"-D{name}" if text is None else f"-D{name}={text}")
    return options


def _inputs(source: Path, headers: Path) -> list[tuple[str, bytes]]:
    """Return the source and every file it could include, by the name it is included by, as found without a compiler.

    Conditions are not evaluated: a header inside ``#if 0`` counts too, which costs a rebuild at worst. A name that
    is found nowhere is listed empty, so that adding the file later changes the key; the compiler reports it.
    """
    found: dict[Path, tuple[str, bytes]] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        name = (
            f"include/{path.relative_to(headers)}"
            if path.is_relative_to(headers)
            else os.path.relpath(path, source.parent)
        )
        try:
            data = path.read_bytes()
        except OSError as error:
            if path == source:
                raise ToolchainError(f"cannot read the kernel source {source}: {error.strerror}") from error
            data = b""
        found[path] = name, data
        for quoted, angled, computed in _INCLUDE.findall(data.replace(b"\\\n", b"")):
            if computed:
                line = computed.decode(errors="replace").strip()
                raise ToolchainError(f"{path.name}: cannot follow the include of {line}: name the header literally")
            spelt = (quoted or angled).decode(errors="replace")
            beside = _absolute(path.parent / spelt)
            waiting.append(beside if quoted and beside.is_file() else _absolute(headers / spelt))
    return list(found.values())


def _absolute(path: Path | str) -> Path:
    return Path(os.path.normpath(Path(path).absolute()))


def _three_steps(
    compiler: Compiler, source: Path, headers: Path, arch: str, options: Sequence[str]
) -> dict[str, bytes]:
    """Compile to assembly, assemble, link; the source is named relatively, so that no path enters the result."""
    maps = [f"-ffile-prefix-map={source.parent}=.", f"-ffile-prefix-map={headers}=include"]
    try:
        with tempfile.TemporaryDirectory(prefix="rocattn-build-") as folder:
            asm, obj, linked = (str(Path(folder, f"code.{suffix}")) for suffix in ("s", "o", "hsaco"))
            where = [*maps, f"-I{headers}", f"--offload-arch={arch}"]
            build = [*compiler.argv, *_HIP_OPTIONS, *where, *options, "-S", source.name, "-o", asm]
            warnings = _step(build, source, arch)
            if warnings:
                _LOG.warning("%s compiles for %s with warnings:\n%s", source.name, arch, warnings)
            target = ["--no-default-config", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", *options[:1]]
            _step([*compiler.argv, *target, "-c", "-x", "assembler", asm, "-o", obj], source, arch)
            _step([*compiler.linker, "-shared", "--no-undefined", obj, "-o", linked], source, arch)
            return {"code.hsaco": Path(linked).read_bytes(), "code.s": Path(asm).read_bytes()}
    except OSError as error:
        raise ToolchainError(f"cannot build {source.name} in a temporary folder: {error.strerror}") from error


def _step(command: Sequence[str], source: Path, arch: str) -> str:
    """Run one command in the source's folder and return its diagnostics.

    Raises:
        ToolchainError: When it fails.
    """
    done = subprocess.run(
        command, cwd=source.parent, env=_environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        first = _first_error(done.stderr, done.returncode)
        raise ToolchainError(f"{source.name} does not compile for {arch}: {first}", command=command, output=done.stderr)
    return done.stderr.strip()


def _first_error(output: str, status: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = next((line for line in lines if "error:" in line), None)
    return named or (lines[-1] if lines else f"no message, exit status {status}")
