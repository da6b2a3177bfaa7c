"""Let an llvm-objdump that knows gfx942 but not gfx950 read code of gfx950, which has all of gfx942's and some more.

LLVM knows gfx950 from version 20 on. No part of the pinned toolchain disassembles: zig links LLVM's assemblers only,
and its own ``objdump`` prints headers. So the instructions that are new in gfx950 are found and decoded here, s_nop
takes their place, and the tool reads the rest as gfx942. The opcodes are those that the pinned clang assembles; a test
compares.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rocattn.toolchain.elf import Elf

PROCESSOR = "gfx950"
_RELATIVE_FLAG, _FLAGS_AT = 0x4C, 0x30  # EF_AMDGPU_MACH_AMDGCN_GFX942, and where an ELF64 header has its flags
_NOP = 0xBF800000


class New(NamedTuple):
    """An instruction that gfx942 does not have: its name, and the 32-bit registers of its result and operands."""

    name: str
    registers: tuple[int, ...]


_MFMA = {
    0x3D4: New("v_mfma_f32_16x16x32_f16", (4, 4, 4, 4)), 0x3B5: New("v_mfma_f32_16x16x32_bf16", (4, 4, 4, 4)),
    0x3D5: New("v_mfma_f32_32x32x16_f16", (16, 4, 4, 16)), 0x3B7: New("v_mfma_f32_32x32x16_bf16", (16, 4, 4, 16)),
    0x3B6: New("v_mfma_i32_16x16x64_i8", (4, 4, 4, 4)), 0x3B8: New("v_mfma_i32_32x32x32_i8", (16, 4, 4, 16)),
    0x3AD: New("v_mfma_f32_16x16x128_f8f6f4", (4, 8, 8, 4)), 0x3AE: New("v_mfma_f32_32x32x64_f8f6f4", (16, 8, 8, 16)),
}  # fmt: skip
_VOP3 = {
    0x233: New("v_bitop3_b16", (1, 1, 1, 1)), 0x234: New("v_bitop3_b32", (1, 1, 1, 1)),
    0x235: New("v_cvt_scalef32_pk_fp8_f32", (1, 1, 1, 1)), 0x236: New("v_cvt_scalef32_pk_bf8_f32", (1, 1, 1, 1)),
    0x23D: New("v_cvt_scalef32_pk_fp4_f32", (1, 1, 1, 1)), 0x265: New("v_ashr_pk_i8_i32", (1, 1, 1, 1)),
    0x266: New("v_ashr_pk_u8_i32", (1, 1, 1, 1)), 0x267: New("v_cvt_pk_f16_f32", (1, 1, 1)),
    0x268: New("v_cvt_pk_bf16_f32", (1, 1, 1)), 0x2A6: New("v_cvt_sr_f16_f32", (1, 1, 1)),
    0x2A7: New("v_cvt_sr_bf16_f32", (1, 1, 1)), 0x2A8: New("v_minimum3_f32", (1, 1, 1, 1)),
    0x2A9: New("v_maximum3_f32", (1, 1, 1, 1)), 0x39A: New("v_dot2_f32_bf16", (1, 1, 1, 1)),
    0x39B: New("v_pk_minimum3_f16", (1, 1, 1, 1)), 0x39C: New("v_pk_maximum3_f16", (1, 1, 1, 1)),
}  # fmt: skip
_VOP1 = {
    0x58: New("v_prng_b32", (1, 1)), 0x59: New("v_permlane16_swap_b32", (1, 1)),
    0x5A: New("v_permlane32_swap_b32", (1, 1)), 0x5B: New("v_cvt_f32_bf16", (1, 1)),
}  # fmt: skip
_DS = {
    0xE0: New("ds_read_b64_tr_b4", (2,)), 0xE1: New("ds_read_b96_tr_b6", (3,)), 0xE2: New("ds_read_b64_tr_b8", (2,)),
    0xE3: New("ds_read_b64_tr_b16", (2,)),
}  # fmt: skip
_FLAT_TO_LDS = {0x7E: "global_load_lds_dwordx3", 0x7D: "global_load_lds_dwordx4"}
_BUFFER_TO_LDS = {0x16: "buffer_load_dwordx3", 0x17: "buffer_load_dwordx4"}
_SCALE_PREFIX = 0x3AC  # two words before an MFMA, with the registers of its scales


def as_gfx942(elf: Elf, ranges: Iterable[tuple[int, int]]) -> tuple[bytes, dict[int, str]]:
    """Return a code object that says it is for gfx942, and what stands at the addresses where its code was changed.

    Of an instruction of several words the addresses of the others have "".

    Args:
        elf: A code object for gfx950.
        ranges: Where its functions' instructions lie, from address to address.
    """
    data = bytearray(elf.data)
    flags = struct.unpack_from("<I", data, _FLAGS_AT)[0]
    struct.pack_into("<I", data, _FLAGS_AT, flags & ~0xFF | _RELATIVE_FLAG)
    replaced: dict[int, str] = {}
    for start, end in ranges:
        section = next((each for each in elf.sections if 0 <= start - each.address < each.bytes), None)
        if section is None:
            continue
        shift = section.offset - section.address
        count = (min(end, section.address + section.bytes) - start) // 4
        words = struct.unpack_from(f"<{count}I", data, start + shift)
        for at, length, text in _new_instructions(words):
            for word in range(at, at + length):
                struct.pack_into("<I", data, start + shift + 4 * word, _NOP)
                replaced[start + 4 * word] = text if word == at else ""
    return bytes(data), replaced


def _new_instructions(words: tuple[int, ...]) -> Iterator[tuple[int, int, str]]:
    """Yield index, words and text of each instruction that gfx942 does not have."""
    at = 0
    while at < len(words):
        length = _length(words[at])
        if at + length > len(words):
            return
        text = _text(words[at : at + length])
        if length == 2 and _opcode(words[at]) == _SCALE_PREFIX and (scaled := words[at + 2 : at + 4])[1:]:
            length = 4
            text = _text(scaled).replace("v_mfma_", "v_mfma_scale_", 1)
        if text:
            yield at, length, text
        at += length


def _length(word: int) -> int:
    """Return how many words an instruction of gfx9 has, by its first."""
    if not word >> 31:  # VOP1, VOP2, VOPC: a literal, SDWA or DPP is a second word
        literal = (word >> 25 & 0x3F) in {0x17, 0x18, 0x24, 0x25}  # v_fmamk, v_fmaak
        return 2 if literal or word & 0x1FF in {0xF9, 0xFA, 0xFF} else 1
    if word >> 30 == 2:
        if word >> 23 == 0x17F:  # SOPP
            return 1
        if word >> 28 == 0xB and word >> 23 < 0x17D:  # SOPK; s_setreg_imm32 has its number behind it
            return 2 if (word >> 23 & 0x1F) == 0x14 else 1
        one_source = word >> 23 == 0x17D
        return 2 if word & 0xFF == 0xFF or (not one_source and word >> 8 & 0xFF == 0xFF) else 1
    return 1 if word >> 26 == 0x35 else 2  # interpolation


def _opcode(word: int) -> int | None:
    return word >> 16 & 0x3FF if word >> 26 == 0x34 else None


def _text(words: tuple[int, ...]) -> str:
    """Return an instruction that gfx942 does not have; "" for all others."""
    first = words[0]
    if first >> 25 == 0x3F:
        new = _VOP1.get(first >> 9 & 0xFF)
        return f"{new.name} v{first >> 17 & 0xFF}, {_source(first & 0x1FF)}" if new else ""
    if len(words) == 1:
        return ""
    second = words[1]
    decode = {0x34: _vector, 0x36: _lds, 0x37: _flat, 0x38: _buffer}.get(first >> 26)
    return decode(first, second) if decode else ""


def _vector(first: int, second: int) -> str:
    opcode = first >> 16 & 0x3FF
    sources = [second & 0x1FF, second >> 9 & 0x1FF, second >> 18 & 0x1FF]
    if new := _MFMA.get(opcode):
        accumulates = bool(first >> 15 & 1)
        in_agprs = (second >> 27 & 1, second >> 28 & 1, accumulates)
        parts = [_registers("a" if accumulates else "v", first & 0xFF, new.registers[0])]
        parts += [
            _source(source, size, agpr=bool(agpr))
            for source, size, agpr in zip(sources, new.registers[1:], in_agprs, strict=True)
        ]
        formats = {"cbsz": first >> 8 & 7, "blgp": second >> 29}
        return " ".join([f"{new.name} {', '.join(parts)}", *(f"{k}:{value}" for k, value in formats.items() if value)])
    if new := _VOP3.get(opcode):
        parts = [f"v{first & 0xFF}", *(_source(source) for source in sources[: len(new.registers) - 1])]
        table = (second >> 27 & 3) << 6 | (first >> 8 & 7) << 3 | second >> 29
        return f"{new.name} {', '.join(parts)}" + (f" bitop3:{table:#x}" if "bitop3" in new.name else "")
    return ""


def _lds(first: int, second: int) -> str:
    new = _DS.get(first >> 17 & 0xFF)
    if new is None:
        return ""
    result = _registers("a" if first >> 25 & 1 else "v", second >> 24, new.registers[0])
    return f"{new.name} {result}, v{second & 0xFF}" + (f" offset:{first & 0xFFFF}" if first & 0xFFFF else "")


def _flat(first: int, second: int) -> str:
    name = _FLAT_TO_LDS.get(first >> 18 & 0x7F)
    if name is None or first >> 14 & 3 != 2:
        return ""
    base, address = second >> 16 & 0x7F, second & 0xFF
    where = f"v[{address}:{address + 1}], off" if base == 0x7F else f"v{address}, s[{base}:{base + 1}]"
    return f"{name} {where}"


def _buffer(first: int, second: int) -> str:
    name = _BUFFER_TO_LDS.get(first >> 18 & 0x7F) if first >> 16 & 1 else None
    if name is None:
        return ""
    resource = 4 * (second >> 16 & 0x1F)
    address = f"v{second & 0xFF}" if first >> 12 & 3 else "off"
    words = [f"{name} {address}, s[{resource}:{resource + 3}], {_source(second >> 24)}"]
    words += ["idxen"] * (first >> 13 & 1) + ["offen"] * (first >> 12 & 1)
    words += [f"offset:{first & 0xFFF}"] if first & 0xFFF else []
    return " ".join([*words, "lds"])


def _registers(kind: str, number: int, count: int) -> str:
    return f"{kind}{number}" if count == 1 else f"{kind}[{number}:{number + count - 1}]"


def _source(code: int, count: int = 1, *, agpr: bool = False) -> str:
    """Return an operand by its code of nine bits."""
    if code >= 256:
        return _registers("a" if agpr else "v", code - 256, count)
    if code <= 101:
        return _registers("s", code, count)
    if 128 <= code <= 208:
        return str(code - 128 if code <= 192 else 192 - code)
    return _NAMED.get(code, f"src_{code}")


_NAMED = {
    106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 240: "0.5", 241: "-0.5", 242: "1.0",
    243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0",
}  # fmt: skip
