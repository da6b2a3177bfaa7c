"""Compile a kernel to a code object for a GPU, reproducibly: the same source gives the same bytes.

A kernel is compiled in three steps (assembly, object, linked code object) because the assembly is also needed, and
because the steps need neither an offload bundler nor ROCm. The build sees only the source's folder and the include
folder (``-nostdinc``), so hashing those files identifies the result.
"""

from __future__ import annotations

import functools
import logging
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import Compiler, choose_compiler, run_step
from rocattn.toolchain.inputs import absolute, content_key, inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOG = logging.getLogger(__name__)

_ARCH = re.compile(r"gfx[0-9a-f]{3,}(?::(?:sramecc|xnack)[+-])*")
_HIP_OPTIONS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"),
    *("-nostdinc", "-nostdinc++", "--no-default-config"),
    *("-std=c++20", "-O3", "-Wall", "-Wextra"),
    "-fno-discard-value-names",  # keeps the names of the kernel's arguments in the metadata
    *("-fuse-cuid=none", "-ffile-compilation-dir=."),  # the default unit id hashes the source's absolute path
)


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A compiled kernel file.

    Attributes:
        data: The HSA code object (ELF) for ``hipModuleLoadData``.
        assembly: Its assembly text.
        arch: The target it was compiled for.
        compiler: The compiler.
        key: Hash of the source, its headers, the options and the compiler: equal keys mean equal bytes.
    """

    data: bytes
    assembly: str
    arch: str
    compiler: Compiler
    key: str


def compile_hip(
    source: Path | str,
    arch: str,
    *,
    defines: Mapping[str, str | float | bool | None] | None = None,
    code_object_version: int = 5,
    include_root: Path | None = None,
    line_tables: bool = False,
) -> CodeObject:
    """Compile one kernel file for one GPU architecture, or take it from the cache.

    Args:
        source: A ``.hip`` file; relative paths are below `kernel_root`.
        arch: Target, with its features if any: "gfx942", "gfx90a:sramecc+:xnack-".
        defines: Macros; True is 1, False 0, None defines only the name.
        code_object_version: 5 is read by ROCm 6 and later, 6 by ROCm 6.3 and later.
        include_root: Folder for ``#include <rocattn/…>``; default ``kernel_root() / "include"``.
        line_tables: Whether the code object and the assembly state each instruction's source line.

    Raises:
        ToolchainError: When there is no compiler, the arguments are invalid, or the kernel does not compile; the
            message has the compiler's first error line, ``command`` the failing command, ``output`` its full output.
    """
    path = absolute(source if Path(source).is_absolute() else kernel_root() / source)
    headers = absolute(include_root if include_root is not None else kernel_root() / "include")
    compiler = choose_compiler()
    _check_arch(arch, compiler)
    options = [f"-mcode-object-version={code_object_version}", *define_options(defines or {})]
    if line_tables:
        options.append("-gline-tables-only")
    inputs = inputs_of(headers, path)
    parts: list[str | bytes] = ["hip-1", compiler.version, arch, path.name, *_HIP_OPTIONS, *options]
    parts += [part for name_and_data in inputs for part in name_and_data]
    key = content_key(parts)

    def make() -> dict[str, bytes]:
        compiled = _three_steps(compiler, path, headers, arch, options)
        if inputs_of(headers, path) != inputs:  # otherwise the cache would store another version under this key
            raise ToolchainError(f"{path.name} or a header changed while it was compiled: run it again")
        return compiled

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


def define_options(defines: Mapping[str, str | float | bool | None]) -> list[str]:
    """Return the compiler options for macros; see `compile_hip`."""
    options = []
    for name, value in sorted(defines.items()):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ToolchainError(f"{name!r} cannot be defined: a macro's name is letters, digits and underscores")
        text = int(value) if isinstance(value, bool) else value
        options.append(f"-D{name}" if text is None else f"-D{name}={text}")
    return options


def _three_steps(
    compiler: Compiler, source: Path, headers: Path, arch: str, options: Sequence[str]
) -> dict[str, bytes]:
    """Compile to assembly, assemble, link; the source has a relative name, so that the result contains no path."""
    maps = [f"-ffile-prefix-map={source.parent}=.", f"-ffile-prefix-map={headers}=include"]
    try:
        with tempfile.TemporaryDirectory(prefix="rocattn-build-") as folder:
            asm, obj, linked = (str(Path(folder, f"code.{suffix}")) for suffix in ("s", "o", "hsaco"))
            where = [*maps, f"-I{headers}", f"--offload-arch={arch}"]
            build = [*compiler.argv, *_HIP_OPTIONS, *where, *options, "-S", source.name, "-o", asm]
            warnings = run_step(build, source, arch)
            if warnings:
                _LOG.warning("%s compiles for %s with warnings:\n%s", source.name, arch, warnings)
            target = ["--no-default-config", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", *options[:1]]
            run_step([*compiler.argv, *target, "-c", "-x", "assembler", asm, "-o", obj], source, arch)
            run_step([*compiler.linker, "-shared", "--no-undefined", obj, "-o", linked], source, arch)
            return {"code.hsaco": Path(linked).read_bytes(), "code.s": Path(asm).read_bytes()}
    except OSError as error:
        raise ToolchainError(f"cannot build {source.name} in a temporary folder: {error.strerror}") from error
