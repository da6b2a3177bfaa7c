"""What an AMD code object says about its kernels: the metadata note (LLVM, "User Guide for AMDGPU Backend").

The note is MessagePack; the decoder here knows the types that occur in it, so that the library needs no other package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rocattn.errors import ToolchainError

_ELF_MAGIC = b"\x7fELF\x02\x01"
_AMDGPU_MACHINE = 224
_SHT_NOTE = 7
_SHT_DYNSYM = 11
_SYMBOL_BYTES = 24
_NT_AMDGPU_METADATA = 32
_PROPERTIES_OFFSET = 56
# Bits of a descriptor's properties: registers that a launch must fill with more than grid, block and arguments give.
_WANTED = {1: "dispatch pointer", 2: "queue pointer", 4: "dispatch id"}
# MessagePack's types of fixed width: code -> struct format.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One kernel argument: where it lies in the argument block.

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
    """One kernel of a code object.

    Attributes:
        symbol: The function's name.
        wave_size: Lanes of a wave.
        block: The largest block it may be launched with, in threads.
        vgprs, agprs, sgprs: Registers of a wave; on gfx90a and later ``vgprs`` counts the AGPRs, too.
        vgpr_spills, sgpr_spills: Registers kept in memory for want of room.
        lds_bytes: LDS that the kernel declares.
        scratch_bytes: Private memory of a lane.
        kernarg_bytes: Size of the argument block.
        args: Its arguments, by offset.
        wants: What its descriptor asks for beside arguments, block ids and thread ids: "dispatch pointer", ….
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


def is_code_object(data: bytes) -> bool:
    """Whether bytes are an AMD GPU's ELF file (a library for this CPU is none)."""
    return data[:6] == _ELF_MAGIC and len(data) >= 64 and struct.unpack_from("<H", data, 18)[0] == _AMDGPU_MACHINE


def read_metadata(data: bytes) -> dict[str, Any]:
    """Return the metadata note of a code object.

    Raises:
        ToolchainError: When the bytes are no code object, or it has no note.
    """
    if not is_code_object(data):
        raise ToolchainError("this is no AMD GPU code object: its ELF header says otherwise")
    try:
        for section in _sections(data):
            if section.type != _SHT_NOTE:
                continue
            for owner, kind, text in _notes(data, section.offset, section.offset + section.bytes):
                if (owner, kind) == (b"AMDGPU\0", _NT_AMDGPU_METADATA):
                    found, _ = _decode(data, text)
                    return dict(found)
    except (struct.error, IndexError, TypeError, ValueError) as error:
        raise ToolchainError(f"the code object is damaged: {error}") from error
    raise ToolchainError("the code object has no metadata note")


def kernels_of(data: bytes) -> tuple[KernelInfo, ...]:
    """Return what a code object's metadata says of each of its kernels.

    Raises:
        ToolchainError: As `read_metadata`.
    """
    entries = read_metadata(data).get("amdhsa.kernels", ())
    try:
        properties = _descriptor_properties(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"the code object is damaged: {error}") from error
    return tuple(_kernel(entry, properties.get(f"{entry['.name']}.kd", 0)) for entry in entries)


def _kernel(entry: dict[str, Any], properties: int) -> KernelInfo:
    args = tuple(
        # A pointer parameter appears as the compiler passes it: coerced to the global address space.
        KernelArg(arg.get(".name", "").removesuffix(".coerce"), arg[".offset"], arg[".size"], arg[".value_kind"])
        for arg in entry.get(".args", ())
    )
    return KernelInfo(
        symbol=entry[".name"],
        wave_size=entry[".wavefront_size"],
        block=entry[".max_flat_workgroup_size"],
        vgprs=entry[".vgpr_count"],
        agprs=entry.get(".agpr_count", 0),
        sgprs=entry[".sgpr_count"],
        vgpr_spills=entry.get(".vgpr_spill_count", 0),
        sgpr_spills=entry.get(".sgpr_spill_count", 0),
        lds_bytes=entry[".group_segment_fixed_size"],
        scratch_bytes=entry[".private_segment_fixed_size"],
        kernarg_bytes=entry[".kernarg_segment_size"],
        args=args,
        wants=tuple(name for bit, name in _WANTED.items() if properties >> bit & 1),
    )


class _Section(NamedTuple):
    type: int
    address: int
    offset: int
    bytes: int
    link: int


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for header in range(table, table + size * count, size):
        kind, _, address, offset, length, link = struct.unpack_from("<IQQQQI", data, header + 4)
        found.append(_Section(kind, address, offset, length, link))
    return found


def _descriptor_properties(data: bytes) -> dict[str, int]:
    """Return the "kernel code properties" word of each kernel descriptor, by its symbol ("<kernel>.kd")."""
    sections = _sections(data)
    found = {}
    for table in sections:
        if table.type != _SHT_DYNSYM:
            continue
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.bytes, _SYMBOL_BYTES):
            name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            text = data[names + name : data.index(b"\0", names + name)].decode()
            if text.endswith(".kd"):
                start = sections[section].offset + value - sections[section].address
                found[text] = struct.unpack_from("<H", data, start + _PROPERTIES_OFFSET)[0]
    return found


def _notes(data: bytes, start: int, end: int) -> list[tuple[bytes, int, int]]:
    """Return (owner, type, where its content begins) of each note in a section."""
    found = []
    while start + 12 <= end:
        name, text, kind = struct.unpack_from("<III", data, start)
        content = start + 12 + (name + 3) // 4 * 4
        found.append((data[start + 12 : start + 12 + name], kind, content))
        start = content + (text + 3) // 4 * 4
    return found


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    """Return the MessagePack value at a position, and the position after it."""
    code, at = data[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return (code if code < 0x80 else code - 256), at
    for limit, mask, read_short in _SHORT:
        if code < limit:
            return read_short(data, at, code & mask)
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        return struct.unpack_from(_NUMBERS[code], data, at)[0], at + struct.calcsize(_NUMBERS[code])
    for kinds, read in _COUNTED:
        if code in kinds:
            (count,) = struct.unpack_from(kinds[code], data, at)
            return read(data, at + struct.calcsize(kinds[code]), count)
    raise ValueError(f"unexpected MessagePack type {code:#x}")


def _bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    return data[at : at + count], at + count


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    return data[at : at + count].decode(), at + count


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(count):
        value, at = _decode(data, at)
        values.append(value)
    return values, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    values = {}
    for _ in range(count):
        key, at = _decode(data, at)
        values[key], at = _decode(data, at)
    return values, at


_Reader = Callable[[bytes, int, int], tuple[Any, int]]
# Codes below the limit hold the count in these bits.
_SHORT: tuple[tuple[int, int, _Reader], ...] = ((0x90, 0x0F, _map), (0xA0, 0x0F, _list), (0xC0, 0x1F, _text))
# Codes before a count: code -> its struct format.
_COUNTED: tuple[tuple[dict[int, str], _Reader], ...] = (
    ({0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}, _text),
    ({0xDC: ">H", 0xDD: ">I"}, _list),
    ({0xDE: ">H", 0xDF: ">I"}, _map),
    ({0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}, _bytes),
)
