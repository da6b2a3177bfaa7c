"""Machine code for plans: name it by content, compile it for a GPU or the stand-in, and check its arguments."""

from __future__ import annotations

import functools
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.errors import ToolchainError
from rocattn.gpu.arch import is_nvidia
from rocattn.gpu.errors import GpuError
from rocattn.gpu.launch import Arg
from rocattn.settings import LINE_TABLES, switch
from rocattn.sources import kernel_root
from rocattn.toolchain.code_object import KernelInfo, kernels_of
from rocattn.toolchain.inputs import content_key, inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEY_DIGITS = 16
_SIZES = {"u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8}


def code_object_name(source: str, arch: str, defines: Mapping[str, str | int]) -> str:
    """Return "<stem>.<key>.hsaco": the key hashes the source, its headers, the macros and the architecture.

    It needs no compiler and is the same in every checkout with these files, so `rocattn plan` and `rocattn kernels
    build` name the same file; the manifest records the compiler.

    Args:
        source: The kernel's file below `kernel_root`.
        arch: Target without features.
        defines: Compile-time macros.

    Raises:
        ToolchainError: When the source cannot be read.
    """
    root = kernel_root()
    return _name(root, source, arch, tuple(sorted(defines.items())), _stamp(root))


@functools.lru_cache(maxsize=1024)
def _name(root: Path, source: str, arch: str, defines: tuple[tuple[str, str | int], ...], stamp: object) -> str:
    # Cached while no file changes: a growing KV cache makes a plan per token.
    parts: list[str | bytes] = ["plan-1", arch, source, *(f"{name}={value}" for name, value in defines)]
    return f"{Path(source).stem}.{content_key([*parts, *_read(root, source, stamp)])[:_KEY_DIGITS]}.hsaco"


@functools.lru_cache(maxsize=64)
def _read(root: Path, source: str, stamp: object) -> list[str | bytes]:
    """Return a source and its headers, each after its name; cached for all variants while no file changes."""
    del stamp
    return [part for entry in inputs_of(root / "include", root / source) for part in entry]


def _stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of all files that kernels can be made from."""
    stamps = []
    for folder in ("hip", "include/rocattn"):
        with suppress(OSError), os.scandir(root / folder) as entries:
            for entry in entries:
                status = entry.stat()
                stamps.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(stamps))


def compile_for_device(source: str, arch: str, defines: Mapping[str, str | int], *, stand_in: bool) -> bytes:
    """Return a kernel's machine code: a code object, a CPU library for the stand-in GPU, or PTX.

    Raises:
        ToolchainError: When there is no compiler or the kernel does not compile.
    """
    if is_nvidia(arch):
        code: bytes = _compile_ptx()(source, arch, defines=dict(defines))
        return code
    if stand_in:
        from rocattn.toolchain.hostgpu import compile_hostgpu

        return compile_hostgpu(source, arch, defines=dict(defines))
    from rocattn.toolchain.hip import compile_hip

    return compile_hip(source, arch, defines=dict(defines), line_tables=switch(LINE_TABLES)).data


@functools.cache
def _compile_ptx() -> Any:
    """Return the compiler for NVIDIA cards, located next to the library that forwards HIP: research/hipcuda."""
    from runpy import run_path  # only with such a card

    place = Path(os.environ.get("ROCM_PATH", ""), "hipcuda.py")
    try:
        return run_path(str(place))["compile_ptx"]
    except OSError as error:
        raise ToolchainError(f"no compiler for an NVIDIA card: {place} is not there; see research/hipcuda") from error


def arg_type(arg: Arg) -> str:
    """Return an argument's type: "pointer" or the scalar's type."""
    return arg.type if arg.kind == "scalar" else "pointer"


def arg_layout(args: Sequence[Arg]) -> list[tuple[int, int]]:
    """Return each argument's (offset, size) in the argument block: in order, each aligned to its own size."""
    layout: list[tuple[int, int]] = []
    end = 0
    for arg in args:
        size = _size(arg)
        align = min(8, size & -size) if arg_type(arg) == "bytes" else size
        start = (end + align - 1) // align * align
        layout.append((start, size))
        end = start + size
    return layout


def _size(arg: Arg) -> int:
    if arg.kind == "scalar" and arg.type == "bytes":
        return max(1, len(bytes.fromhex(str(arg.value))))
    return 8 if arg.kind != "scalar" else _SIZES[arg.type]


def pack_scalar(arg: Arg) -> bytes:
    """Return the bytes of a scalar argument.

    Raises:
        GpuError: When the value does not fit the type.
    """
    assert arg.kind == "scalar"
    if arg.type == "bytes":
        return bytes.fromhex(str(arg.value))
    code = {"u32": "<I", "i32": "<i", "f32": "<f", "u64": "<Q", "i64": "<q"}[arg.type]
    try:
        return struct.pack(code, arg.value)
    except (struct.error, OverflowError) as error:
        raise GpuError(f"argument {arg.name} = {arg.value!r} is not a valid {arg.type}: {error}") from error


def code_problem(code: bytes, symbol: str, args: Sequence[Arg], block: tuple[int, int, int]) -> str:
    """Return why a code object's metadata does not match a launch, or ""."""
    try:
        kernels = {kernel.symbol: kernel for kernel in kernels_of(code)}
    except ToolchainError as error:
        return str(error)
    if symbol not in kernels:
        return f"there is no kernel {symbol}: the code object has {', '.join(kernels) or 'none'}"
    threads = block[0] * block[1] * block[2]
    if threads > kernels[symbol].block:
        return f"{symbol} takes {kernels[symbol].block} threads per block, the plan has {threads}"
    return argument_problem(kernels[symbol], args)


def argument_problem(kernel: KernelInfo, args: Sequence[Arg]) -> str:
    """Return how a kernel's metadata contradicts a plan's arguments, or "".

    Offsets, sizes and kinds must match, and so must names of scalars if the compiler kept them (a pointer may have
    another name, since two parameters can be one buffer). Nothing may be left for the runtime to fill in: neither
    hidden arguments nor the dispatch packet, which only exists in a queue.
    """
    if hidden := [arg.kind for arg in kernel.args if arg.kind.startswith("hidden")]:
        return f"{kernel.symbol} has hidden arguments: {', '.join(hidden)}"
    if kernel.wants:
        return f"{kernel.symbol} asks for more than its arguments: {', '.join(kernel.wants)}"
    if len(kernel.args) != len(args):
        return f"{kernel.symbol} takes {len(kernel.args)} arguments, the plan gives {len(args)}"
    for have, arg, (offset, size) in zip(kernel.args, args, arg_layout(args), strict=True):
        pointer = have.kind == "global_buffer"
        kind = arg_type(arg)
        fits = kind in {"pointer", "u64"} if pointer else kind != "pointer"  # u64 0 is a null pointer
        named = not have.name or kind in {"pointer", "u64"} or have.name == arg.name
        if (have.offset, have.size) != (offset, size) or not fits or not named:
            parameter = f"{have.name or '(unnamed)'}: {have.kind} of {have.size} bytes at {have.offset}"
            return (
                f"{kernel.symbol} takes {parameter}, where the plan has {arg.name}: {kind} of {size} bytes at {offset}"
            )
    return ""
