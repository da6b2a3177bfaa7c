"""The stand-in GPU: its library, and GPU kernels compiled for it instead of for a GPU.

A program finds the library like ROCm's: ``ROCM_PATH`` names the folder whose ``lib`` contains ``libamdhip64.so``.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import ToolchainError
from rocattn.settings import HOSTGPU_OPTIMIZE, choice
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import Compiler, choose_compiler, run_step
from rocattn.toolchain.hip import define_options
from rocattn.toolchain.host import ISA_OPTIONS, hip_library, host_isa, own_options
from rocattn.toolchain.inputs import absolute, content_key, inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# The macros that clang defines for each target; the kernels do not distinguish related targets.
_TARGET_MACROS = {
    "gfx1030": ("__GFX10__", "__gfx1030__"),
    "gfx1100": ("__GFX11__", "__gfx1100__"),
    "gfx1201": ("__GFX12__", "__gfx1201__"),
    "gfx90a": ("__GFX9__", "__gfx90a__"),
    "gfx942": ("__GFX9__", "__gfx942__"),
    "gfx950": ("__GFX9__", "__gfx950__"),
}
HOSTGPU_ARCHS = tuple(_TARGET_MACROS)
_OPTIONS = (
    *("-x", "c++", "-std=c++20", "-fPIC", "-ffreestanding", "-nostdinc", "-nostdinc++"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-pass-failed"),
    "-fstack-clash-protection",  # a large frame hits the guard page before another thread's stack
    "-ftrivial-auto-var-init=pattern",  # a variable used before it is set contains NaN, not a plausible value
)


def hostgpu_library() -> Path:
    """Build the stand-in for ROCm's HIP runtime, or take it from the cache.

    Returns:
        The folder for ``ROCM_PATH``.

    Raises:
        ToolchainError: When there is no compiler or the library cannot be written.
    """
    return hip_library(kernel_root() / "hostgpu")


def compile_hostgpu(
    source: Path | str,
    arch: str,
    *,
    defines: Mapping[str, str | float | bool | None] | None = None,
    include_root: Path | None = None,
) -> bytes:
    """Compile one kernel file for the stand-in GPU, or take it from the cache.

    Args:
        source: A ``.hip`` file; relative paths are below `kernel_root`.
        arch: The GPU to stand in for, one of `HOSTGPU_ARCHS`.
        defines: Macros; True is 1, False 0, None defines only the name.
        include_root: Folder for ``#include <rocattn/…>``; default ``kernel_root() / "include"``.

    Returns:
        A shared object that the stand-in's ``hipModuleLoadData`` accepts instead of a code object.

    Raises:
        ToolchainError: When there is no compiler, the stand-in lacks the GPU, or the kernel does not compile.
        SettingError: When ROCATTN_HOSTGPU_OPTIMIZE is not a level.
    """
    level = choice(HOSTGPU_OPTIMIZE)
    path = absolute(source if Path(source).is_absolute() else kernel_root() / source)
    headers = absolute(include_root if include_root is not None else kernel_root() / "include")
    if arch not in _TARGET_MACROS:
        raise ToolchainError(f"the stand-in GPU has no {arch!r}: it has {', '.join(HOSTGPU_ARCHS)}")
    compiler = choose_compiler()
    macros = (f"ROCATTN_HOSTGPU={arch}", *_TARGET_MACROS[arch])
    options = [
        f"-O{level}",
        *_OPTIONS,
        *ISA_OPTIONS[host_isa()],
        *(f"-D{name}" for name in macros),
        *define_options(defines or {}),
    ]
    inputs = inputs_of(headers, path)
    parts: list[str | bytes] = ["hostgpu-1", compiler.version, platform.machine(), path.name, *options]
    parts += [part for name_and_data in inputs for part in name_and_data]

    def make() -> dict[str, bytes]:
        compiled = _build(compiler, path, headers, options)
        if inputs_of(headers, path) != inputs:  # otherwise the cache would store another version under this key
            raise ToolchainError(f"{path.name} or a header changed while it was compiled: run it again")
        return {"code.so": compiled}

    return ContentCache(cache_folder()).get_or_make(content_key(parts), make)["code.so"]


def _build(compiler: Compiler, source: Path, headers: Path, options: Sequence[str]) -> bytes:
    """Compile and link; the source has a relative name, so that the result contains no path."""
    try:
        with tempfile.TemporaryDirectory(prefix="rocattn-build-") as folder:
            compiled, linked = str(Path(folder, "code.o")), Path(folder, "code.so")
            where = [f"-ffile-prefix-map={source.parent}=.", f"-ffile-prefix-map={headers}=include", f"-I{headers}"]
            step = [*compiler.argv, *own_options(compiler), *options, *where, "-c", source.name, "-o", compiled]
            run_step(step, source, "the stand-in GPU")
            run_step([*compiler.linker, "-shared", compiled, "-o", str(linked)], source, "the stand-in GPU")
            return linked.read_bytes()
    except OSError as error:
        raise ToolchainError(f"cannot build {source.name} in a temporary folder: {error.strerror}") from error
