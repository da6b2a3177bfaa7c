"""Kernel descriptors: what the packet processor reads to launch a kernel (LLVM, "User Guide for AMDGPU Backend").

A descriptor has the registers in granules, so it says what is allocated, not what the code uses.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

DESCRIPTOR_BYTES, OLD_DESCRIPTOR_BYTES = 64, 256
_UNIFIED_FILE = re.compile(r"gfx90a|gfx94|gfx95|gfx9-4")  # VGPRs and AGPRs share one file
_THOUSAND_VGPRS = re.compile(r"gfx125|gfx12-5")
_SGPR_GRANULE = 8
# Bits of the properties: registers that a launch must fill with more than grid, block and arguments give.
_WANTED = {1: "dispatch pointer", 2: "queue pointer", 4: "dispatch id"}
_WAVE32, _DYNAMIC_STACK = 10, 11
_LOG_WAVE32 = 5


@dataclass(frozen=True, slots=True)
class KernelDescriptor:
    """One kernel descriptor.

    Attributes:
        wave_size: Lanes of a wave.
        vgprs: Vector registers as encoded: a multiple of the encoding's granule, AGPRs included where both share a
            file (gfx90a, gfx94x, gfx950).
        sgprs: Scalar registers as encoded, with those for VCC and the like; 0 where none are encoded (gfx10 and later).
        accum_offset: The first AGPR's place in the shared file; 0 where there is none.
        lds_bytes, scratch_bytes, kernarg_bytes: As in the metadata.
        wgp_mode: Whether a block may spread over both CUs of a WGP; None where there is no choice (gfx9, gfx125x).
        dynamic_stack: Whether the scratch size is only a lower bound.
        wants: What a launch must bring beside arguments, block ids and thread ids: "dispatch pointer", ….
        entry: Where the code begins, in bytes from the descriptor.
        exact: Whether the registers are what the code uses (version 2), not what is allocated.
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
    """Whether a processor's VGPRs and AGPRs share one file."""
    return bool(_UNIFIED_FILE.match(processor))


def gfx_major(processor: str) -> int:
    """Return 9 of "gfx90a" and "gfx9-4-generic", 11 of "gfx1100"; 0 if the name is no processor's."""
    match = re.match(r"gfx(?:(\d+)-(?:\d+-)?generic|(\d+)[0-9a-f]{2}$)", processor)
    return int(match[1] or match[2]) if match else 0


def vgpr_encoding_granule(processor: str, wave_size: int) -> int:
    """Return how many registers one step of a descriptor's VGPR count means.

    LLVM's ``getVGPREncodingGranule``; what the hardware allocates has its own, larger granule.
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
        processor: What it is for: the meaning of some fields depends on it.
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

    It has exact register counts. Nothing of gfx90a or later was ever made in this version.
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
