"""Read the kernels of an AMD code object from its metadata note and kernel descriptors.

LLVM's "User Guide for AMDGPU Backend" describes both. Files are untrusted: damage raises a `ToolchainError`, and time
and memory are bounded whatever a file contains.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from rocattn.errors import ToolchainError
from rocattn.toolchain.descriptor import (
    DESCRIPTOR_BYTES,
    OLD_DESCRIPTOR_BYTES,
    KernelDescriptor,
    gfx_major,
    read_descriptor,
    read_old_descriptor,
)
from rocattn.toolchain.elf import AMDGPU, Elf, Symbol, is_elf, shown

_NT_AMDGPU_METADATA = 32
_STT_OLD_KERNEL = 10
_MAX_METADATA_BYTES = 16 << 20  # 8,000 kernels of 30 arguments; a hostile byte may decode to 70 bytes of objects
MAX_KERNELS = 1 << 16
_MOST = 2**32 - 1
# ``EF_AMDGPU_MACH_*`` and ``EF_AMDGPU_FEATURE_*`` of llvm/BinaryFormat/ELF.h.
_OS_HSA, _OS_PAL, _OS_MESA = 64, 65, 66
OTHER_RUNTIMES = {_OS_PAL: "PAL (graphics drivers)", _OS_MESA: "Mesa"}
_MACHINES = {
    0x20: "gfx600", 0x21: "gfx601", 0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703", 0x26: "gfx704",
    0x28: "gfx801", 0x29: "gfx802", 0x2A: "gfx803", 0x2B: "gfx810", 0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904",
    0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c", 0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012",
    0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3A: "gfx602", 0x3B: "gfx705", 0x3C: "gfx805",
    0x3D: "gfx1035", 0x3E: "gfx1034", 0x3F: "gfx90a", 0x40: "gfx940", 0x41: "gfx1100", 0x42: "gfx1013",
    0x43: "gfx1150", 0x44: "gfx1103", 0x45: "gfx1036", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200",
    0x49: "gfx1250", 0x4A: "gfx1151", 0x4B: "gfx941", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950", 0x50: "gfx1310",
    0x51: "gfx9-generic", 0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x55: "gfx1152",
    0x58: "gfx1153", 0x59: "gfx12-generic", 0x5A: "gfx1251", 0x5B: "gfx12-5-generic", 0x5C: "gfx1172", 0x5D: "gfx1170",
    0x5E: "gfx1171", 0x5F: "gfx9-4-generic",
}  # fmt: skip
_SETTINGS = {2: "-", 3: "+"}  # 0: the processor has no such feature; 1: code for either setting
# LLVM writes "amdgcn-amd-amdhsa--gfx942", since 2026 also "amdgpu9.42-amd-amdhsa-unknown-gfx942".
_TRIPLE = re.compile(r"amdg(?:cn|pu[0-9a-z.]*)-amd-amdhsa-[a-z]*-(gfx.+)")


@dataclass(frozen=True, slots=True)
class KernelArg:
    """A kernel argument and its place in the argument block.

    Attributes:
        name: The parameter's name; empty if the compiler did not keep it.
        offset, size: In bytes.
        kind: "global_buffer", "by_value", or "hidden_…" for what the runtime would have to fill in.
    """

    name: str
    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel of a code object.

    Attributes:
        symbol: The function's name.
        wave_size: Lanes of a wave.
        block: The largest block size, in threads.
        required_block: The only allowed block size; 0 if there are others.
        vgprs, agprs, sgprs: Registers of a wave; on gfx90a and later ``vgprs`` includes the AGPRs.
        vgpr_spills, sgpr_spills: Registers spilled to memory.
        lds_bytes: LDS that the kernel declares.
        scratch_bytes: Private memory per lane.
        kernarg_bytes: Size of the argument block.
        args: Its arguments, by offset.
        wants: Inputs requested by its descriptor other than arguments, block ids and thread ids: "dispatch pointer", ….
        descriptor: Its kernel descriptor, with the registers that a launch allocates; None if the file has none.
        code_bytes: Size of its function's machine code; 0 if its symbol does not state it.
        unknown: Names of attributes that the file does not state. They are 0 or empty; ``vgprs`` and ``sgprs`` are
            rounded up if they come from a descriptor.
    """

    symbol: str
    wave_size: int
    block: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    args: tuple[KernelArg, ...]
    wants: tuple[str, ...] = ()
    descriptor: KernelDescriptor | None = None
    code_bytes: int = 0
    unknown: tuple[str, ...] = ()
    required_block: int = 0


def is_code_object(data: bytes) -> bool:
    """Return whether bytes are an AMD GPU's ELF file, unlike a library for this CPU."""
    return is_elf(data) and int.from_bytes(data[18:20], "little") == AMDGPU


def read_elf(data: bytes) -> Elf:
    """Return a code object's ELF file.

    Raises:
        ToolchainError: When the bytes are not a code object, or are damaged.
    """
    if not is_code_object(data):
        raise ToolchainError("this is no AMD GPU code object: its ELF header says otherwise")
    return Elf.read(data)


def read_metadata(data: bytes) -> dict[str, Any]:
    """Return the metadata note of a code object.

    Raises:
        ToolchainError: When the bytes are not a code object, or it has no note.
    """
    metadata = metadata_of(read_elf(data))
    if metadata is None:
        raise ToolchainError("the code object has no metadata note")
    return metadata


def kernels_of(data: bytes) -> tuple[KernelInfo, ...]:
    """Return each kernel's facts from a code object's metadata.

    Raises:
        ToolchainError: As in `read_metadata`, and when the metadata lacks facts that a launch depends on.
    """
    elf = read_elf(data)
    metadata = read_metadata(data)
    descriptors = descriptors_of(elf, target_of(elf, metadata).partition(":")[0])
    kernels = tuple(
        kernel_of_metadata(entry, descriptors.get(descriptor_symbol(entry)), elf.symbols.get(entry[".name"]))
        for entry in kernel_entries(metadata)
    )
    for kernel in kernels:
        if missing := [name for name in kernel.unknown if not name.endswith("_spills")]:
            raise ToolchainError(f"the metadata of {kernel.symbol} does not say its {', '.join(missing)}")
    return kernels


def metadata_of(elf: Elf) -> dict[str, Any] | None:
    """Return the decoded metadata note, or None (version 2 has a different note, which is not read).

    Raises:
        ToolchainError: When it is damaged.
    """
    for owner, kind, text in elf.notes:
        if (owner, kind) == (b"AMDGPU\0", _NT_AMDGPU_METADATA):
            if len(text) > _MAX_METADATA_BYTES:
                raise ToolchainError(f"the metadata note has {len(text) >> 20} MiB: that is none of a compiler's")
            try:
                return msgspec.msgpack.decode(text, type=dict[str, Any])
            except (ValueError, RecursionError) as error:
                raise ToolchainError(f"the metadata note is damaged: {error}") from error
    return None


def code_object_version(elf: Elf) -> int:
    """Return the version of the code-object format, currently 2 to 6; 0 for another runtime's."""
    return elf.abi_version + 2 if elf.os_abi == _OS_HSA else 0


def target_of_flags(elf: Elf) -> str:
    """Return the target of an ELF header: "gfx90a:sramecc+:xnack-"; "" for an unknown processor."""
    processor = _MACHINES.get(elf.flags & 0xFF, "")
    if not processor or code_object_version(elf) < 3:
        return processor
    if code_object_version(elf) == 3:  # one bit per feature: on, or either off or unsupported
        settings = [("sramecc", 3 * (elf.flags >> 9 & 1)), ("xnack", 3 * (elf.flags >> 8 & 1))]
    else:
        settings = [("sramecc", elf.flags >> 10 & 3), ("xnack", elf.flags >> 8 & 3)]
    return processor + "".join(f":{name}{_SETTINGS[value]}" for name, value in settings if value in _SETTINGS)


def target_of_triple(text: str) -> str:
    """Return the target of "amdgcn-amd-amdhsa--gfx90a:xnack-"; "" for any other triple."""
    match = _TRIPLE.fullmatch(text)
    return match[1] if match else ""


def target_of(elf: Elf, metadata: dict[str, Any] | None) -> str:
    """Return the target with features from the ELF header, or, for an unknown processor, from the metadata; or ""."""
    named = metadata.get("amdhsa.target", "") if metadata else ""
    return target_of_flags(elf) or (target_of_triple(named) if isinstance(named, str) else "")


def kernel_entries(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metadata's kernel entries; each is a map with a printable name.

    Raises:
        ToolchainError: When one is not.
    """
    entries = metadata.get("amdhsa.kernels", [])
    if not isinstance(entries, list):
        raise ToolchainError("the metadata note is damaged: its kernels are no list")
    if len(entries) > MAX_KERNELS:
        raise ToolchainError(f"the metadata note names {len(entries)} kernels: that is none of a compiler's")
    for entry in entries:
        name = entry.get(".name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ToolchainError("the metadata note is damaged: a kernel has no name, or none that can be printed")
    return entries


def descriptor_symbol(entry: dict[str, Any]) -> str:
    """Return the name of the kernel descriptor that a metadata entry belongs to."""
    symbol = entry.get(".symbol")
    return symbol if isinstance(symbol, str) else f"{entry['.name']}.kd"


def descriptors_of(elf: Elf, processor: str) -> dict[str, KernelDescriptor]:
    """Return each kernel descriptor by its symbol ("<kernel>.kd"; in version 2 the kernel's own).

    Raises:
        ToolchainError: When a symbol is not within the file.
    """
    old = code_object_version(elf) == 2
    names = [
        name
        for name, symbol in elf.symbols.items()
        if (symbol.type == _STT_OLD_KERNEL if old else name.endswith(".kd"))
    ]
    if len(names) > MAX_KERNELS:
        raise ToolchainError(f"the file has {len(names)} kernel descriptors: that is none of a compiler's")
    if old:
        return {name: read_old_descriptor(elf.at_symbol(elf.symbols[name], OLD_DESCRIPTOR_BYTES)) for name in names}
    return {name: read_descriptor(elf.at_symbol(elf.symbols[name], DESCRIPTOR_BYTES), processor) for name in names}


def kernel_of_metadata(
    entry: dict[str, Any], descriptor: KernelDescriptor | None, function: Symbol | None
) -> KernelInfo:
    """Return a kernel's facts from a metadata entry; descriptor and symbol supply missing ones.

    Raises:
        ToolchainError: When a value has the wrong type or is implausible.
    """
    unknown: list[str] = []

    def count(key: str, attribute: str, otherwise: int | None = None) -> int:
        value = entry.get(key, otherwise)
        if value is None:
            if descriptor is None or attribute in _ROUNDED_UP or not hasattr(descriptor, attribute):
                unknown.append(attribute)
            return int(getattr(descriptor, attribute, 0))
        return _number(value, key, entry)

    info = KernelInfo(
        symbol=entry[".name"],
        wave_size=count(".wavefront_size", "wave_size"),
        block=count(".max_flat_workgroup_size", "block"),
        vgprs=count(".vgpr_count", "vgprs"),
        agprs=count(".agpr_count", "agprs", _agprs(entry, descriptor)),
        sgprs=count(".sgpr_count", "sgprs"),
        vgpr_spills=count(".vgpr_spill_count", "vgpr_spills"),
        sgpr_spills=count(".sgpr_spill_count", "sgpr_spills"),
        lds_bytes=count(".group_segment_fixed_size", "lds_bytes"),
        scratch_bytes=count(".private_segment_fixed_size", "scratch_bytes"),
        kernarg_bytes=count(".kernarg_segment_size", "kernarg_bytes"),
        args=_args(entry),
        wants=descriptor.wants if descriptor else (),
        descriptor=descriptor,
        code_bytes=function.bytes if function else 0,
        unknown=tuple(unknown),
        required_block=_required_block(entry),
    )
    if info.wave_size not in {32, 64} and "wave_size" not in unknown:
        raise ToolchainError(f"the metadata of {shown(info.symbol)} is damaged: waves of {info.wave_size} lanes")
    return info


def kernel_of_descriptor(
    symbol: str, descriptor: KernelDescriptor, processor: str, function: Symbol | None
) -> KernelInfo:
    """Return a kernel's facts from its descriptor only.

    Args:
        symbol: The kernel's name.
        descriptor: Its descriptor.
        processor: Its processor; the registers cannot be decoded for an unknown one.
        function: The symbol of its code, if any.
    """
    unknown = ["block", "agprs", "vgpr_spills", "sgpr_spills", "args"]
    vgprs, sgprs, wave_size = descriptor.vgprs, descriptor.sgprs, descriptor.wave_size
    code_bytes = function.bytes if function else 0
    if descriptor.exact:  # this kind precedes the code and is included in the symbol's size
        code_bytes = max(code_bytes - OLD_DESCRIPTOR_BYTES, 0)
    else:
        unknown += _ROUNDED_UP
    if not gfx_major(processor):
        unknown += ["wave_size"]
        vgprs = sgprs = wave_size = 0
    return KernelInfo(
        symbol=symbol, wave_size=wave_size, block=0, vgprs=vgprs, agprs=0, sgprs=sgprs, vgpr_spills=0, sgpr_spills=0,
        lds_bytes=descriptor.lds_bytes, scratch_bytes=descriptor.scratch_bytes,
        kernarg_bytes=descriptor.kernarg_bytes, args=(), wants=descriptor.wants, descriptor=descriptor,
        code_bytes=code_bytes, unknown=tuple(unknown),
    )  # fmt: skip


def _agprs(entry: dict[str, Any], descriptor: KernelDescriptor | None) -> int:
    """Return the AGPRs if the metadata lacks them: the registers from the accumulation offset on."""
    if descriptor is None or not descriptor.accum_offset:
        return 0
    return max(_number(entry.get(".vgpr_count", 0), ".vgpr_count", entry) - descriptor.accum_offset, 0)


def _required_block(entry: dict[str, Any]) -> int:
    sizes = entry.get(".reqd_workgroup_size") or [0]
    if not isinstance(sizes, list):
        raise ToolchainError(f"the metadata of {shown(entry['.name'])} is damaged: its block is no list of sizes")
    return math.prod(_number(size, ".reqd_workgroup_size", entry) for size in sizes)


_ROUNDED_UP = ("vgprs", "sgprs")


def _args(entry: dict[str, Any]) -> tuple[KernelArg, ...]:
    args = entry.get(".args") or []
    if not isinstance(args, list) or not all(isinstance(arg, dict) for arg in args):
        raise ToolchainError(f"the metadata of {shown(entry['.name'])} is damaged: its arguments are no list of maps")
    return tuple(
        # A pointer parameter appears as the compiler passes it: coerced to the global address space.
        KernelArg(
            _text(arg, ".name", entry).removesuffix(".coerce"),
            _number(arg.get(".offset"), ".offset", entry),
            _number(arg.get(".size"), ".size", entry),
            _text(arg, ".value_kind", entry),
        )
        for arg in args
    )


def _number(value: Any, key: str, entry: dict[str, Any]) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ToolchainError(f"the metadata of {shown(entry['.name'])} is damaged: {key} is {shown(repr(value), 40)}")
    return value


def _text(arg: dict[str, Any], key: str, entry: dict[str, Any]) -> str:
    value = arg.get(key, "")
    if not isinstance(value, str) or not value.isprintable():
        raise ToolchainError(f"the metadata of {shown(entry['.name'])} is damaged: an argument's {key} is no text")
    return value
