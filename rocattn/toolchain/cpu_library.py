"""Locate the CPU kernel library: named by the user, contained in the wheel, or compiled on first use.

It also contains launch.cpp, which queues a GPU plan's kernels and is compiled separately without a wheel.

A wheel for distribution (`python3 dev.py wheel`) contains the kernels for every target in `WHEEL_TARGETS`, compiled
with the pinned compiler. An editable install and a plain `pip install .` contain none.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import SettingError, ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import PINNED, VARIABLE, choose_host_compiler, pinned_compiler
from rocattn.toolchain.host import WHEEL_TARGETS, Target, compile_for, compile_host, host_isa, tuning
from rocattn.toolchain.inputs import content_key

if TYPE_CHECKING:
    from collections.abc import Iterable

LAUNCHER = "launch.cpp"
SOURCES = ("forward.cpp", "decode.cpp", "varlen.cpp", "backward.cpp", "pool.cpp", "probe.cpp", LAUNCHER)
GIVEN = "ROCATTN_CPU_LIBRARY"
FOLDER = "compiled"
"""In the installed package: the wheel's libraries, and `_INDEX`."""
_INDEX = "index.json"
_WHAT = "the CPU kernels"
_LOG = logging.getLogger(__name__)
_OPENED = itertools.count()


class CpuLibrary(msgspec.Struct, frozen=True):
    """The library that this process uses or would use.

    Attributes:
        maker: The kind of compiler that makes or made it ("ziglang", "gcc", …), or the variable that names it.
        compiler: The version line of that compiler; "" if unknown.
        isa: Its instruction set, a key of `ISA_OPTIONS`; "" if unknown.
        path: The file, if named or from the wheel; None if it is compiled on first use.
    """

    maker: str
    compiler: str
    isa: str
    path: Path | None = None


class _Index(msgspec.Struct):
    """A wheel's record of its libraries: compiler, hash of the sources, and each file's target."""

    compiler: str
    sources: str
    files: dict[str, Target]


def choose_cpu_library() -> CpuLibrary:
    """Choose the library: ``ROCATTN_CPU_LIBRARY``, the wheel's, or one for ``ROCATTN_COMPILER`` or another compiler.

    Raises:
        ToolchainError: When there is neither a library nor a compiler.
        SettingError: When a variable names no file, no working compiler, or an instruction set that this CPU lacks.
    """
    if given := os.environ.get(GIVEN):  # built by other means, for example with sanitizers
        if not Path(given).is_file():
            raise SettingError(f"{GIVEN} is {given!r}: there is no such file; build the CPU kernels, or unset it")
        return CpuLibrary(GIVEN, "", "", Path(given))
    isa = host_isa()
    index = None if os.environ.get(VARIABLE, "").strip() else _carried()
    if index is not None and (name := _fitting(index, Target(platform.machine(), isa, tuning()))):
        return CpuLibrary(PINNED, index.compiler, isa, _folder() / name)
    compiler = choose_host_compiler()
    return CpuLibrary(compiler.kind, compiler.version, isa)


def read_library(library: CpuLibrary) -> bytes:
    """Return a library's shared object from the wheel, the cache or a compilation.

    Raises:
        ToolchainError: When it cannot be read, or does not compile.
    """
    return compile_host(_sources(), isa=library.isa, what=_WHAT) if library.path is None else _read(library.path)


def read_launcher() -> bytes:
    """Return a shared object, for any CPU of this kind, that queues a GPU plan's kernels.

    Raises:
        ToolchainError: When the wheel contains none and there is no compiler.
    """
    target = Target(platform.machine(), "portable", ())
    index = None if os.environ.get(VARIABLE, "").strip() else _carried()
    if index is not None and (name := _fitting(index, target)):
        return _read(_folder() / name)
    return compile_for(target, [kernel_root() / "cpu" / LAUNCHER], choose_host_compiler())


def open_library(data: bytes) -> ctypes.CDLL:
    """Open a shared object in memory, which works even if folders are read-only or mounted noexec.

    Raises:
        ToolchainError: When it cannot be opened.
    """
    try:
        descriptor = os.memfd_create("rocattn-cpu", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        descriptor = -1
    if descriptor >= 0:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            # The loader knows libraries by path: each has its own, and none is in /proc/self as the stand-in's kernels.
            return ctypes.CDLL(f"/proc/{os.getpid()}/fd/{'./' * next(_OPENED)}{descriptor}")
        except OSError as error:  # the kernel forbids executable memory files
            _LOG.debug("cannot open the library from memory: %s", error)
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="rocattn-") as folder:
        path = Path(folder, "rocattn_cpu.so")
        path.write_bytes(data)
        return open_path(path)


def open_path(path: Path) -> ctypes.CDLL:
    """Open a shared object that is a file.

    Raises:
        ToolchainError: When it cannot be opened.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolchainError(f"the CPU kernels cannot be opened: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ToolchainError(f"cannot read {path} ({error.strerror}): reinstall rocattn") from error


def write_libraries(folder: Path, names: Iterable[str]) -> None:
    """Compile libraries for a wheel, or take them from the cache.

    Args:
        folder: The folder for the libraries and their index.
        names: Names in `WHEEL_TARGETS`.

    Raises:
        ToolchainError: When a name is unknown, or there is no pinned compiler.
    """
    if unknown := sorted(set(names) - WHEEL_TARGETS.keys()):
        raise ToolchainError(f"no CPU kernels are called {', '.join(unknown)}: choose from {', '.join(WHEEL_TARGETS)}")
    compiler = pinned_compiler()
    if compiler.host_reason:
        raise ToolchainError(f"a wheel's CPU kernels need the pinned compiler: {compiler.host_reason}")
    files = {}
    for name in names:
        files[f"{name}.so"] = target = WHEEL_TARGETS[name]
        (folder / f"{name}.so").write_bytes(compile_for(target, _sources(), compiler, what=f"{_WHAT} of {name}"))
    (folder / _INDEX).write_bytes(msgspec.json.encode(_Index(compiler.version, _sources_key(), files)))


def _sources() -> list[Path]:
    return [kernel_root() / "cpu" / name for name in SOURCES]


def _sources_key() -> str:
    """Return the hash of all compiled sources, so that edits of installed sources take effect."""
    parts: list[str | bytes] = []
    for path in sorted((kernel_root() / "cpu").iterdir()):
        parts += [path.name, path.read_bytes()]
    return content_key(parts)


def _folder() -> Path:
    return Path(__file__).resolve().parents[1] / FOLDER


@functools.cache
def _carried() -> _Index | None:
    """Return the wheel's libraries for the installed sources; read once per process."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        index = msgspec.json.decode((_folder() / _INDEX).read_bytes(), type=_Index)
        return index if index.sources == _sources_key() else None
    except (OSError, msgspec.DecodeError):
        return None


def _fitting(index: _Index, wanted: Target) -> str:
    """Return the file for a target, or one that differs only in tuning, or ""."""
    able = [name for name, target in index.files.items() if target[:2] == wanted[:2]]
    return next((name for name in able if index.files[name] == wanted), able[0] if able else "")
