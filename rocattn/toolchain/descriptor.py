"""Kernel descriptors, which the packet processor reads to launch a kernel (LLVM, "User Guide for AMDGPU Backend").

A descriptor encodes registers in granules, so it states the allocation, not the code's usage.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

DESCRIPTOR_BYTES, OLD_DESCRIPTOR_BYTES = 64, 256
_UNIFIED_FILE = re.compile(r"gfx90a|gfx94|gfx95|gfx9-4")  # VGPRs and AGPRs share one file
_THOUSAND_VGPRS = re.compile(r"gfx125|gfx12-5")
_SGPR_GRANULE = 8
# Property bits: registers that a launch must fill with data other than grid, block and arguments.
_WANTED = {1: "dispatch pointer", 2: "queue pointer", 4: "dispatch id"}
_WAVE32, _DYNAMIC_STACK = 10, 11
_LOG_WAVE32 = 5


@dataclass(frozen=True, slots=True)
class KernelDescriptor:
    """A kernel descriptor.

    Attributes:
        wave_size: Lanes of a wave.
        vgprs: Encoded vector registers: a multiple of the encoding's granule, including AGPRs if both share a
            file (gfx90a, gfx94x, gfx950).
        sgprs: Encoded scalar registers, including those for VCC and the like; 0 if none are encoded (gfx10 and later).
        accum_offset: The first AGPR's index in the shared file; 0 if there is none.
        lds_bytes, scratch_bytes, kernarg_bytes: As in the metadata.
        wgp_mode: Whether a block may use both CUs of a WGP; None if there is no choice (gfx9, gfx125x).
        dynamic_stack: Whether the scratch size is only a lower bound.
        wants: Inputs of a launch other than arguments, block ids and thread ids: "dispatch pointer", ….
        entry: Start of the code, in bytes from the descriptor.
        exact: Whether the registers are the code's usage (version 2), not the allocation.
    """

    wave_size: int
    vgprs: int
    sgprs: int
    accum_offset: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    wgp_mode: bool | None
    dynamic_stack: bool
    wants: tuple[str, ...]
    entry: int
    exact: bool = False


def has_unified_registers(processor: str) -> bool:
    """Return whether a processor's VGPRs and AGPRs share one register file."""
    return bool(_UNIFIED_FILE.match(processor))


def gfx_major(processor: str) -> int:
    """Return 9 for "gfx90a" and "gfx9-4-generic", 11 for "gfx1100"; 0 if the name is not a processor."""
    match = re.match(r"gfx(?:(\d+)-(?:\d+-)?generic|(\d+)[0-9a-f]{2}$)", processor)
    return int(match[1] or match[2]) if match else 0


def vgpr_encoding_granule(processor: str, wave_size: int) -> int:
    """Return the number of registers per step of a descriptor's VGPR count.

    This is LLVM's ``getVGPREncodingGranule``; the hardware's allocation granule is larger.
    """
    if has_unified_registers(processor):
        return 8
    if _THOUSAND_VGPRS.match(processor):
        return 16
    return 8 if wave_size == 32 else 4


def read_descriptor(data: bytes, processor: str) -> KernelDescriptor:
    """Decode a descriptor of code objects of version 3 and later.

    Args:
        data: Its 64 bytes.
        processor: Its processor, which affects the meaning of some fields.
    """
    lds, scratch, kernarg = struct.unpack_from("<III", data, 0)
    (entry,) = struct.unpack_from("<q", data, 16)
    rsrc3, rsrc1, _ = struct.unpack_from("<III", data, 44)
    (properties,) = struct.unpack_from("<H", data, 56)
    major = gfx_major(processor)
    wave_size = 32 if major >= 10 and properties >> _WAVE32 & 1 else 64
    return KernelDescriptor(
        wave_size=wave_size,
        vgprs=((rsrc1 & 0x3F) + 1) * vgpr_encoding_granule(processor, wave_size),
        sgprs=((rsrc1 >> 6 & 0xF) + 1) * _SGPR_GRANULE if major < 10 else 0,
        accum_offset=((rsrc3 & 0x3F) + 1) * 4 if has_unified_registers(processor) else 0,
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        wgp_mode=bool(rsrc1 >> 29 & 1) if major >= 10 and not _THOUSAND_VGPRS.match(processor) else None,
        dynamic_stack=bool(properties >> _DYNAMIC_STACK & 1),
        wants=_wants(properties),
        entry=entry,
    )


def read_old_descriptor(data: bytes) -> KernelDescriptor:
    """Decode an ``amd_kernel_code_t``, the 256 bytes before a kernel's code in code objects of version 2.

    It has exact register counts. This version never existed for gfx90a or later.
    """
    (entry,) = struct.unpack_from("<q", data, 16)
    (rsrc1,) = struct.unpack_from("<I", data, 48)
    properties, scratch, lds = struct.unpack_from("<III", data, 56)
    (kernarg,) = struct.unpack_from("<Q", data, 72)
    sgprs, vgprs = struct.unpack_from("<HH", data, 84)
    (major,) = struct.unpack_from("<H", data, 10)
    return KernelDescriptor(
        wave_size=32 if data[103] == _LOG_WAVE32 else 64,
        vgprs=vgprs,
        sgprs=sgprs,
        accum_offset=0,
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        wgp_mode=bool(rsrc1 >> 29 & 1) if major >= 10 else None,
        dynamic_stack=False,
        wants=_wants(properties),
        entry=entry,
        exact=True,
    )


def _wants(properties: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _WANTED.items() if properties >> bit & 1)
