"""What AMD's instructions do: an independent reading of the ISA documents, on arrays of lanes.

Written from "RDNA3 Instruction Set Architecture", "RDNA4 Instruction Set Architecture" and "AMD Instinct MI300
Instruction Set Architecture" (and, for gfx950, the CDNA4 one), not from the emulator's tables. Instructions come as
LLVM prints them. `apply` changes a `State` as the instruction does; what it does not know it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

U32, U64, I32, I64, F32, F16 = np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float16
SCC, EXEC, VCC = 253, 126, 106
_FLOATS = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494", "0.15915494309189532"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b), "ne": lambda a, b: a != b, "ge": lambda a, b: a >= b,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)), "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b),
}  # fmt: skip


class UnknownInstructionError(Exception):
    """Raised for an instruction that is not described here."""


@dataclass
class State:
    """Registers and LDS of a wave: `v` and `a` are [256, lanes] of uint32, `s` uint32 by number, `lds` bytes."""

    v: Any
    a: Any
    s: Any
    lds: Any

    def copy(self) -> State:
        """Return a copy; LDS is shared."""
        return State(self.v.copy(), self.a.copy(), self.s.copy(), self.lds)

    @property
    def lanes(self) -> int:
        """Lanes of the wave."""
        return int(self.v.shape[1])

    def mask(self, number: int) -> Any:
        """Return a mask in SGPRs as one bool a lane."""
        return mask_lanes(self.wide(number), self.lanes)

    def wide(self, number: int) -> int:
        """Return a mask in SGPRs: one SGPR for 32 lanes, two for 64."""
        return int(self.s[number]) | (int(self.s[number + 1]) << 32 if self.lanes == 64 else 0)

    def set_wide(self, number: int, value: int, bits: int) -> None:
        """Write an SGPR, or two."""
        self.s[number] = value & 0xFFFFFFFF
        if bits == 64:
            self.s[number + 1] = value >> 32 & 0xFFFFFFFF


def mask_lanes(value: int, lanes: int) -> Any:
    """Return the bits of a mask as bools."""
    return (value >> np.arange(lanes, dtype=object) & 1).astype(bool)


def lanes_mask(bits: Any) -> int:
    """Return bools as the bits of a mask."""
    return int(sum(1 << int(lane) for lane in np.flatnonzero(bits)))


@dataclass(frozen=True)
class Instruction:
    """One instruction as text: its name without the encoding's suffix, its operands and modifiers."""

    name: str
    encoding: str
    operands: tuple[str, ...]
    flags: dict[str, str]

    def bits(self, flag: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return a modifier like op_sel:[1,0]."""
        text = self.flags.get(flag)
        return tuple(int(part) for part in text.strip("[]").split(",")) if text else default


_WORDS = ("clamp", "off", "gds", "row_mirror", "row_half_mirror", "glc", "slc", "dlc", "sc0", "sc1", "nt")


def parse(text: str) -> Instruction:
    """Read an instruction as LLVM prints it."""
    name, _, rest = text.partition(";")[0].strip().partition(" ")
    rest = re.sub(r"\[(\d+):(\d+)\]", r"[\1~\2]", rest)  # a pair of registers is no modifier
    flags = dict(re.findall(r"(\w+):(\S+)", rest))
    operands = []
    for part in re.sub(r"\w+:\S+", "", rest).split(","):
        words = part.replace("~", ":").split()
        flags |= {word: "1" for word in words if word in _WORDS}
        operands += [" ".join(word for word in words if word not in _WORDS)]
    match = re.fullmatch(r"(\w+?)_(e32|e64|sdwa|dpp|e64_dpp)", name)
    plain = tuple(operand for operand in operands if operand)
    return Instruction(match[1] if match else name, match[2] if match else "", plain, flags)


_NUMBERED = re.compile(r"(v|s|a|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])")
_NAMED = {"vcc": 106, "vcc_lo": 106, "vcc_hi": 107, "exec": 126, "exec_lo": 126, "exec_hi": 127}


def register(text: str) -> tuple[str, int, int] | None:
    """Return the file, first number and count of a register operand; None if it is none."""
    if text in _NAMED:
        return "s", _NAMED[text], 2 if text in {"vcc", "exec"} else 1
    if text in {"m0", "null", "scc"}:
        return text, 0, 1
    match = _NUMBERED.fullmatch(text.removesuffix(".l").removesuffix(".h"))
    if not match:
        return None
    first = int(match[2] or match[3])
    count = int(match[4]) - first + 1 if match[4] else 1
    return ("s", 108 + first, count) if match[1] == "ttmp" else (match[1], first, count)


class Operands:
    """The operands of one instruction, read from the state before it."""

    def __init__(self, instruction: Instruction, state: State) -> None:
        self.ins, self.state = instruction, state
        self._from, self._there = _dpp(instruction, state)

    @property
    def kept(self) -> Any:
        """Lanes whose result is not written, as DPP gives them no source."""
        bound = self.ins.flags.get("bound_ctrl", "0") != "0"
        return np.zeros(self.state.lanes, bool) if bound else ~self._there

    def raw(self, index: int, bits: int = 32, part: int = 0) -> Any:
        """Return an operand's bits as uint32 or uint64 a lane, without modifiers; ``part``: registers further on."""
        text = self.ins.operands[index]
        number = register(text) is None and re.fullmatch(r"-?[\dx.a-f]+", text)
        words = self._selected(index, self.text(text if number else text.strip("-|"), bits, part))
        return np.where(self._there, words[self._from], 0).astype(words.dtype) if index == 1 else words

    def _selected(self, index: int, words: Any) -> Any:
        """Apply SDWA's choice of a byte or a half."""
        choice = self.ins.flags.get(f"src{index - 1}_sel", "DWORD")
        if choice == "DWORD":
            return words
        size, number = (8, int(choice[-1])) if choice.startswith("BYTE") else (16, int(choice[-1]))
        part = words >> U32(size * number) & U32((1 << size) - 1)
        if "sext" in self.ins.operands[index]:
            raise UnknownInstructionError("sext")
        return part

    def text(self, text: str, bits: int = 32, part: int = 0) -> Any:
        """Return the bits that an operand's text stands for."""
        where, lanes = register(text), self.state.lanes
        if where is None:
            return np.full(lanes, _constant(text, bits), U64 if bits == 64 else U32)
        file, first, _ = where
        if file == "scc":
            return np.full(lanes, self.state.s[SCC] & 1, U32)
        if file == "null":
            return np.zeros(lanes, U64 if bits == 64 else U32)
        if file == "m0":
            return np.full(lanes, self.state.s[124 if lanes == 64 else 125], U32)
        source = {"v": self.state.v, "a": self.state.a}.get(file)
        words = [source[first + part + i] if source is not None else np.full(lanes, self.state.s[first + part + i], U32)
                 for i in range(2 if bits == 64 else 1)]  # fmt: skip
        return words[0].copy() if bits < 64 else words[0].astype(U64) | words[1].astype(U64) << U64(32)

    def modified(self, index: int, value: Any) -> Any:
        """Apply - and || to floats."""
        text = self.ins.operands[index]
        value = np.abs(value) if "|" in text else value
        return -value if text.startswith("-") and register(text.strip("-|")) else value

    def f32(self, index: int) -> Any:
        """Return an operand as float32."""
        return self.modified(index, self.raw(index).view(F32))

    def f16(self, index: int) -> Any:
        """Return an operand's low half, or the one that op_sel says, as float16."""
        return self.modified(index, _half(self.raw(index, 16), self._high(index)).view(F16))

    def _high(self, index: int) -> int:
        """Return 1 where an operand is the high half of its register: of v1.h, or by op_sel."""
        op_sel = (*self.ins.bits("op_sel", ()), 0, 0, 0, 0)
        return int(self.ins.operands[index].endswith(".h")) or op_sel[index - 1]

    def integer(self, index: int, kind: Any) -> Any:
        """Return an operand as an integer of 16, 32 or 64 bits."""
        size = np.dtype(kind).itemsize
        raw = self.raw(index, 8 * size)
        return _half(raw, self._high(index)).view(kind) if size == 2 else raw.view(kind)


def _dpp(ins: Instruction, state: State) -> tuple[Any, Any]:
    """Return which lane each lane takes the first source from (DPP), and whether there is one that is active."""
    lane = np.arange(state.lanes)
    kinds = [flag for flag in ins.flags if flag.startswith(("row_", "quad_")) and flag != "row_mask"]
    if not kinds:
        return lane, np.ones(state.lanes, bool)
    if {ins.flags.get(name, "0xf") for name in ("row_mask", "bank_mask")} != {"0xf"}:
        raise UnknownInstructionError("DPP with a mask of rows or banks")
    (kind,), row, place = kinds, lane & ~15, lane & 15
    number = 0 if kind == "quad_perm" else int(ins.flags[kind], 0)
    places = {
        "row_shl": place + number, "row_shr": place - number, "row_ror": (place - number) & 15,
        "row_mirror": 15 - place, "row_half_mirror": place & 8 | 7 - (place & 7), "row_share": place * 0 + number,
        "row_newbcast": place * 0 + number, "row_xmask": place ^ number,
        "quad_perm": place & ~3 | np.array(ins.bits("quad_perm", (0, 1, 2, 3)))[place & 3],
    }  # fmt: skip
    inside = (places[kind] >= 0) & (places[kind] < 16)
    source = np.where(inside, row + places[kind], lane)
    return source, inside & (state.mask(EXEC)[source] | (ins.flags.get("fi", "0") != "0"))


def _half(words: Any, high: int) -> Any:
    return (words >> U32(16 * high)).astype(np.uint16)


def _constant(text: str, bits: int) -> int:
    if text in _FLOATS or re.fullmatch(r"-?\d+\.\d+(e[-+]?\d+)?", text):
        kind, word = {16: (F16, np.uint16), 32: (F32, U32), 64: (np.float64, U64)}[bits]
        return int(np.array(float(text), kind).view(word))
    return int(text, 0) & (0xFFFFFFFFFFFFFFFF if bits == 64 else 0xFFFFFFFF)


# ---- vector arithmetic ---------------------------------------------------------------------------------------------

Fused = np.float64  # products of float32 are exact in it; sums are rounded twice, which comparisons must allow


def _fma(a: Any, b: Any, c: Any) -> Any:
    return (a.astype(Fused) * b.astype(Fused) + c.astype(Fused)).astype(F32)


def _max(a: Any, b: Any) -> Any:
    return np.fmax(a, b)


def _min(a: Any, b: Any) -> Any:
    return np.fmin(a, b)


def _med3(a: Any, b: Any, c: Any) -> Any:
    low = _max(_min(a, b), _min(_max(a, b), c))
    if a.dtype.kind != "f":
        return low
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, _min(_min(a, b), c), low)


_F32: dict[str, Callable[..., Any]] = {
    "v_add_f32": lambda a, b: a + b, "v_sub_f32": lambda a, b: a - b, "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": lambda a, b: a * b, "v_max_f32": _max, "v_min_f32": _min, "v_fma_f32": _fma,
    "v_fmaak_f32": _fma, "v_fmamk_f32": _fma, "v_max3_f32": lambda a, b, c: _max(_max(a, b), c),
    "v_min3_f32": lambda a, b, c: _min(_min(a, b), c), "v_med3_f32": _med3,
    "v_exp_f32": np.exp2, "v_log_f32": np.log2, "v_rcp_f32": lambda a: F32(1) / a, "v_sqrt_f32": np.sqrt,
    "v_rcp_iflag_f32": lambda a: F32(1) / a, "v_rsq_f32": lambda a: F32(1) / np.sqrt(a), "v_mov_f32": lambda a: a,
    "v_maximum3_f32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "v_minimum3_f32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
}  # fmt: skip
APPROXIMATE = {"v_exp_f32", "v_log_f32", "v_rcp_f32", "v_sqrt_f32", "v_rcp_iflag_f32", "v_rsq_f32"}
"""Instructions that hardware computes to within an ulp or two."""


def _u32(function: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    return U32, function


_INTEGER: dict[str, tuple[Any, Callable[..., Any]]] = {
    "v_and_b32": _u32(lambda a, b: a & b), "v_or_b32": _u32(lambda a, b: a | b), "v_xor_b32": _u32(lambda a, b: a ^ b),
    "v_xnor_b32": _u32(lambda a, b: ~(a ^ b)), "v_not_b32": _u32(lambda a: ~a), "v_mov_b32": _u32(lambda a: a),
    "v_add_u32": _u32(lambda a, b: a + b), "v_sub_u32": _u32(lambda a, b: a - b),
    "v_subrev_u32": _u32(lambda a, b: b - a), "v_add3_u32": _u32(lambda a, b, c: a + b + c),
    "v_lshlrev_b32": _u32(lambda a, b: b << (a & U32(31))), "v_lshrrev_b32": _u32(lambda a, b: b >> (a & U32(31))),
    "v_ashrrev_i32": (I32, lambda a, b: b >> (a & I32(31))),
    "v_and_or_b32": _u32(lambda a, b, c: a & b | c), "v_or3_b32": _u32(lambda a, b, c: a | b | c),
    "v_lshl_or_b32": _u32(lambda a, b, c: a << (b & U32(31)) | c),
    "v_lshl_add_u32": _u32(lambda a, b, c: (a << (b & U32(31))) + c),
    "v_add_lshl_u32": _u32(lambda a, b, c: (a + b) << (c & U32(31))), "v_xad_u32": _u32(lambda a, b, c: (a ^ b) + c),
    "v_xor3_b32": _u32(lambda a, b, c: a ^ b ^ c),
    "v_bfi_b32": _u32(lambda a, b, c: a & b | ~a & c),
    "v_bfe_u32": _u32(lambda a, b, c: a >> (b & U32(31)) & ((U32(1) << (c & U32(31))) - U32(1))),
    "v_bfe_i32": (I32, lambda a, b, c: (a << (I32(32) - (b & I32(31)) - (c & I32(31)))) >> (I32(32) - (c & I32(31)))),
    "v_alignbit_b32": _u32(
        lambda a, b, c: (((a.astype(U64) << U64(32)) | b) >> (c & U32(31)).astype(U64)).astype(U32)),
    "v_mul_lo_u32": _u32(lambda a, b: a * b),
    "v_mul_hi_u32": _u32(lambda a, b: (a.astype(U64) * b.astype(U64) >> U64(32)).astype(U32)),
    "v_mul_u32_u24": _u32(lambda a, b: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF))),
    "v_mad_u32_u24": _u32(lambda a, b, c: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF)) + c),
    "v_min_u32": _u32(np.minimum), "v_max_u32": _u32(np.maximum), "v_min_i32": (I32, np.minimum),
    "v_max_i32": (I32, np.maximum), "v_med3_u32": _u32(_med3), "v_med3_i32": (I32, _med3),
    "v_bfrev_b32": _u32(lambda a: np.array([int(f"{x:032b}"[::-1], 2) for x in a], U32)),
    "v_lshl_add_u64": (U64, lambda a, b, c: (a << (b & U64(7))) + c), "v_mov_b64": (U64, lambda a: a),
    "v_lshlrev_b16": (np.uint16, lambda a, b: b << (a & np.uint16(15))),
    "v_lshrrev_b16": (np.uint16, lambda a, b: b >> (a & np.uint16(15))),
    "v_mov_b16": (np.uint16, lambda a: a),
    "v_mul_lo_u16": (np.uint16, lambda a, b: a * b), "v_add_u16": (np.uint16, lambda a, b: a + b),
    "v_sub_u16": (np.uint16, lambda a, b: a - b), "v_and_b16": (np.uint16, lambda a, b: a & b),
    "v_or_b16": (np.uint16, lambda a, b: a | b),
}  # fmt: skip
_ALIASES = {
    "v_max_num_f32": "v_max_f32", "v_min_num_f32": "v_min_f32", "v_max3_num_f32": "v_max3_f32",
    "v_min3_num_f32": "v_min3_f32", "v_med3_num_f32": "v_med3_f32", "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32", "v_subrev_nc_u32": "v_subrev_u32", "v_sub_nc_u16": "v_sub_u16",
    "v_add_nc_u16": "v_add_u16", "v_cls_i32": "v_ffbh_i32", "v_mad_co_u64_u32": "v_mad_u64_u32",
}  # fmt: skip


def _leading_sign(a: Any) -> Any:
    """Return how many bits of the top are alike; -1 where all are."""
    found = []
    for x in a.view(I32).tolist():
        bits = (~x if x < 0 else x).bit_length()
        found.append(32 - bits if bits else -1)
    return np.array(found, I32).view(U32)


def _perm(a: Any, b: Any, selector: Any) -> Any:
    both = a.astype(U64) << U64(32) | b.astype(U64)
    out = np.zeros_like(a)
    for byte in range(4):
        choice = selector >> U32(8 * byte) & U32(0xFF)
        value = (both >> (U64(8) * np.minimum(choice, 7).astype(U64)) & U64(0xFF)).astype(U32)
        for code, bit in ((8, 15), (9, 31), (10, 47), (11, 63)):
            value = np.where(choice == code, np.where(both >> U64(bit) & U64(1), 0xFF, 0), value).astype(U32)
        value = np.where(choice == 12, 0, np.where(choice > 12, 0xFF, value)).astype(U32)
        out |= value << U32(8 * byte)
    return out


def _to_int(values: Any, kind: Any) -> Any:
    info = np.iinfo(kind)
    wide = np.trunc(np.where(np.isnan(values), 0, values).astype(np.float64))
    return np.clip(wide, info.min, info.max).astype(I64).astype(kind).view(U32)


_CONVERT: dict[str, Callable[[Operands], Any]] = {
    "v_cvt_f32_u32": lambda o: o.raw(1).astype(F32).view(U32),
    "v_cvt_f32_i32": lambda o: o.raw(1).view(I32).astype(F32).view(U32),
    "v_cvt_u32_f32": lambda o: _to_int(o.f32(1), U32),
    "v_cvt_i32_f32": lambda o: _to_int(o.f32(1), I32),
    "v_cvt_f32_f16": lambda o: o.f16(1).astype(F32).view(U32),
    "v_ffbh_i32": lambda o: _leading_sign(o.raw(1)),
    "v_perm_b32": lambda o: _perm(o.raw(1), o.raw(2), o.raw(3)),
    "v_ldexp_f32": lambda o: np.ldexp(o.f32(1), o.raw(2).view(I32)).astype(F32).view(U32),
    "v_div_fixup_f32": lambda o: _div_fixup(o.f32(1), o.f32(2), o.f32(3)).view(U32),
    "v_pack_b32_f16": lambda o: o.f16(1).view(np.uint16).astype(U32) | o.f16(2).view(np.uint16).astype(U32) << U32(16),
    "v_cvt_pk_f16_f32": lambda o: _f16_bits(o.f32(1)) | _f16_bits(o.f32(2)) << U32(16),
    "v_bitop3_b32": lambda o: _truth(o.raw(1), o.raw(2), o.raw(3), int(o.ins.flags["bitop3"], 0)),
    "v_cvt_pk_bf16_f32": lambda o: _bf16(o.f32(1)) | _bf16(o.f32(2)) << U32(16),
}


def _f16_bits(values: Any) -> Any:
    return values.astype(F16).view(np.uint16).astype(U32)


def _truth(a: Any, b: Any, c: Any, table: int) -> Any:
    """Return the truth table's bit for each triple of bits; a's bit counts 4, b's 2, c's 1."""
    out = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def _bf16(values: Any) -> Any:
    bits = values.view(U32)
    rounded = (bits.astype(U64) + U64(0x7FFF) + (bits >> U32(16) & U32(1)) >> U64(16)).astype(U32)
    return np.where(np.isnan(values), bits >> U32(16) | U32(0x40), rounded)


def _div_fixup(quotient: Any, denominator: Any, numerator: Any) -> Any:
    """Return a division's result: what the steps before must have come to, with sign and special values."""
    del quotient
    return (numerator / denominator).astype(F32)


def vector(ins: Instruction, state: State) -> dict[int, Any] | None:
    """Return the VGPRs that a lane-by-lane instruction writes, as {register: uint32 a lane}; None if it is none."""
    o, name = Operands(ins, state), _ALIASES.get(ins.name, ins.name)
    if name in _INTEGER:
        return _integer(ins, o, *_INTEGER[name])
    if name in {"v_lshlrev_b64", "v_lshrrev_b64", "v_ashrrev_i64"}:
        return _pair(ins, _shifted(name, o.raw(1).astype(U64) & U64(63), o.raw(2, 64)))
    if re.fullmatch(r"v_pk_(add|mul|fma|mov)_(f32|b32)", name):
        return _packed_f32(ins, o)
    value = _one_register(name, ins, o)
    return None if value is None else {_target(ins): value}


def _one_register(name: str, ins: Instruction, o: Operands) -> Any:
    """Return what an instruction with a result of up to 32 bits writes; None if it is not known."""
    result = None
    if name in _F32:
        result = _omod(ins, _F32[name](*[o.f32(i) for i in range(1, len(ins.operands))]).astype(F32)).view(U32)
    elif name == "v_fmac_f32":
        result = _fma(o.f32(1), o.f32(2), o.raw(0).view(F32)).view(U32)
    elif name in _CONVERT:
        result = _CONVERT[name](o).astype(U32)
    elif name == "v_cvt_f16_f32":
        result = _low_half(ins, o.state, o.f32(1).astype(F16).view(np.uint16))
    elif name == "v_cndmask_b32":
        chosen = o.state.mask(_mask_number(ins.operands[3]) if len(ins.operands) > 3 else VCC)
        first, second = (o.modified(i, o.raw(i).view(F32)).view(U32) for i in (1, 2))
        result = np.where(chosen, second, first)
    elif name.startswith("v_fma_mix"):
        result = _mix(ins, o)
    elif name == "v_accvgpr_read_b32":
        result = o.raw(1)
    return result


def _shifted(name: str, shift: Any, value: Any) -> Any:
    if "ashr" in name:
        return (value.view(I64) >> shift.view(I64)).view(U64)
    return value << shift if "lshl" in name else value >> shift


def _target(ins: Instruction) -> int:
    where = register(ins.operands[0])
    assert where is not None
    return where[1]


def _mask_number(text: str) -> int:
    where = register(text)
    assert where is not None
    return where[1]


def _pair(ins: Instruction, value: Any) -> dict[int, Any]:
    first = _target(ins)
    return {first: value.astype(U32), first + 1: (value >> U64(32)).astype(U32)}


def _omod(ins: Instruction, value: Any) -> Any:
    scale = {"2": 2, "4": 4}.get(ins.flags.get("mul", ""), 1)
    value = value * F32(scale) / F32(2 if ins.flags.get("div") else 1)
    return np.clip(np.where(np.isnan(value), 0, value), 0, 1).astype(F32) if "clamp" in ins.flags else value


def _integer(ins: Instruction, o: Operands, kind: Any, function: Callable[..., Any]) -> dict[int, Any]:
    values = [o.integer(i, kind) for i in range(1, len(ins.operands))]
    if ins.name == "v_lshl_add_u64":
        values[1] = o.raw(2).astype(U64)
    result = function(*values)
    if "clamp" in ins.flags:
        exact = function(*[value.astype(I64) for value in values])
        result = np.clip(exact, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
    size = np.dtype(kind).itemsize
    if size == 8:
        return _pair(ins, result.view(U64))
    if size == 2:
        return {_target(ins): _low_half(ins, o.state, result.astype(np.uint16))}
    return {_target(ins): result.astype(kind).view(U32)}


def _low_half(ins: Instruction, state: State, half: Any) -> Any:
    """Return a register whose low half is new: gfx9 zeroes the other, later ones keep it."""
    if state.lanes == 64:
        return half.astype(U32)
    old = state.v[_target(ins)]
    if ins.operands[0].endswith(".h") or (len(ins.bits("op_sel", ())) > 1 and ins.bits("op_sel", ())[-1]):
        return old & U32(0xFFFF) | half.astype(U32) << U32(16)
    return old & U32(0xFFFF0000) | half.astype(U32)


def _mix(ins: Instruction, o: Operands) -> Any:
    """Fused multiply-add of float32 and float16 operands: op_sel_hi says which are float16, op_sel which half."""
    wide, high = ins.bits("op_sel_hi", (0, 0, 0)), ins.bits("op_sel", (0, 0, 0))
    values = []
    for i in range(3):
        raw = o.raw(i + 1, 16) if wide[i] else o.raw(i + 1)
        value = _half(raw, high[i]).view(F16).astype(F32) if wide[i] else raw.view(F32)
        values.append(o.modified(i + 1, value))
    result = values[0].astype(Fused) * values[1].astype(Fused) + values[2].astype(Fused)
    result = result.astype(F32)
    if ins.name == "v_fma_mix_f32":
        return result.view(U32)
    half = result.astype(F16).view(np.uint16).astype(U32)
    old = o.state.v[_target(ins)]
    if ins.name == "v_fma_mixlo_f16":
        return old & U32(0xFFFF0000) | half
    return old & U32(0xFFFF) | half << U32(16)


def _packed_f32(ins: Instruction, o: Operands) -> dict[int, Any]:
    """Two float32 operations: op_sel says which half of a pair the low one reads, op_sel_hi the high one."""
    count = len(ins.operands) - 1
    halves = (ins.bits("op_sel", (0, 0, 0)), ins.bits("op_sel_hi", (1, 1, 1)))
    signs = (ins.bits("neg_lo", (0, 0, 0)), ins.bits("neg_hi", (0, 0, 0)))
    first, results = _target(ins), []
    if "mov" in ins.name:
        chosen = [_packed_part(ins, o, i, halves[0][i]) for i in range(2)]
        return {first: chosen[0], first + 1: chosen[1]}
    for half in range(2):
        values = []
        for i in range(count):
            value = _packed_part(ins, o, i, halves[half][i]).view(F32)
            values.append(-value if signs[half][i] else value)
        results.append({"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "fma": _fma}[ins.name[5:8]](*values))
    return {first + half: result.astype(F32).view(U32) for half, result in enumerate(results)}


def _packed_part(ins: Instruction, o: Operands, i: int, half: int) -> Any:
    where = register(ins.operands[i + 1])
    return o.raw(i + 1, part=half if where and where[2] > 1 else 0)
