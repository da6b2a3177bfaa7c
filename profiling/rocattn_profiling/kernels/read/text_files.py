"""Kernel metadata in assembly text: the YAML that compilers append, and the descriptors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from rocattn.toolchain.code_object import KernelInfo
from rocattn_profiling.kernels.read.assembly import AssemblyFunction

_KERNEL = re.compile(r"^ {2}- ", re.MULTILINE)
_FIELD = re.compile(r"^(?: {4}| {2}- )(\.\w+):[ \t]+(\S.*)", re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.amdgcn_target[ \t]", re.MULTILINE)
_CODE_BYTES = re.compile(
    r"^[ \t]*\.amdhsa_kernel[ \t]+(\S+)|^; Kernel info:\n; codeLenInByte = (\d{1,12})$", re.MULTILINE
)
_REQUIRED = re.compile(r"\.reqd_workgroup_size:((?:\s+- \d{1,10}$)+)", re.MULTILINE)
_DIGITS = re.compile(r"[0-9]{1,10}")
_COMPILER = re.compile(r'^[ \t]*\.ident[ \t]+"([^"]*)"', re.MULTILINE)
# Number of `KernelInfo` -> its name in the metadata, and the descriptor's equivalent directive, if any.
_NUMBERS = {
    "wave_size": ("wavefront_size", ""),
    "block": ("max_flat_workgroup_size", ""),
    "vgprs": ("vgpr_count", "next_free_vgpr"),
    "agprs": ("agpr_count", ""),
    "sgprs": ("sgpr_count", "next_free_sgpr"),
    "vgpr_spills": ("vgpr_spill_count", ""),
    "sgpr_spills": ("sgpr_spill_count", ""),
    "lds_bytes": ("group_segment_fixed_size", "group_segment_fixed_size"),
    "scratch_bytes": ("private_segment_fixed_size", "private_segment_fixed_size"),
    "kernarg_bytes": ("kernarg_segment_size", "kernarg_size"),
}


def decoded(data: bytes) -> str:
    """Decode a file's text, whatever its line endings and byte order mark."""
    return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")


def texts_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield each target's assembly text and first line number: a driver may put several in one file."""
    starts = [match.start() for match in _TARGET.finditer(text)]
    line, at = 1, 0
    for start in starts[1:]:
        yield line, text[at:start]
        line, at = line + text.count("\n", at, start), start
    yield line, text[at:]


def compiler_of(text: str) -> str:
    """Return the compiler named in an assembly text; "" if none is."""
    match = _COMPILER.search(text)
    return match[1] if match else ""


def kernels_of_text(text: str, functions: tuple[AssemblyFunction, ...]) -> dict[str, KernelInfo]:
    """Return symbol -> metadata of the kernels in a text; `KernelInfo.unknown` lists missing numbers.

    The metadata is YAML in LLVM's style; only scalar fields of kernels are read.

    Args:
        text: The assembly text.
        functions: Its functions, from `parse_assembly`.
    """
    said, sizes = _metadata(text), _code_bytes(text)
    return {
        function.name: _info(function, said.get(function.name, {}), sizes.get(function.name, 0))
        for function in functions
        if function.is_kernel
    }


def _code_bytes(text: str) -> dict[str, int]:
    """Return kernel -> code size in bytes, from LLVM's comment after the descriptor."""
    sizes, name = {}, ""
    for kernel, size in _CODE_BYTES.findall(text):
        name = kernel or name
        if size and name:
            sizes[name] = int(size)
    return sizes


def _metadata(text: str) -> dict[str, dict[str, str]]:
    """Return kernel -> scalar fields of its metadata."""
    kernels: dict[str, dict[str, str]] = {}
    for rest in text.split(".amdgpu_metadata")[1:]:
        block = rest.partition(".end_amdgpu_metadata")[0]
        for part in _KERNEL.split(block)[1:]:
            fields = {name[1:]: value.rstrip(" \t").strip("'\"") for name, value in _FIELD.findall(f"  - {part}")}
            if required := _REQUIRED.search(part):
                fields["required_block"] = str(math.prod(int(size) for size in _DIGITS.findall(required[1])))
            if "name" in fields:
                kernels[fields["name"]] = fields
    return kernels


def _info(function: AssemblyFunction, fields: dict[str, str], code_bytes: int) -> KernelInfo:
    values: dict[str, Any] = {"wave_size": function.wave_size}
    unknown = []
    for name, (key, directive) in _NUMBERS.items():
        value = number(fields.get(key, ""))
        if value is None:
            value = number(function.descriptor.get(directive, ""))
        if value is not None:
            values[name] = value
        elif name not in values:
            values[name] = 0
            if name != "agprs":  # older metadata omits it where a processor has no AGPRs
                unknown.append(name)
    values["required_block"] = number(fields.get("required_block", "")) or 0
    return KernelInfo(symbol=function.name, args=(), unknown=tuple(unknown), code_bytes=code_bytes, **values)


def number(text: str) -> int | None:
    """Parse a 32-bit number; None for an expression, as written by newer compilers, and for anything else."""
    return int(text) if _DIGITS.fullmatch(text) and int(text) < 1 << 32 else None
