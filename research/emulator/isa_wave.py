"""What AMD's instructions do to masks, scalars, memory and other lanes; see `isa` for the sources."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from isa import (
    _COMPARE,
    EXEC,
    F16,
    F32,
    I32,
    I64,
    SCC,
    U32,
    U64,
    VCC,
    Instruction,
    Operands,
    State,
    UnknownInstructionError,
    lanes_mask,
    register,
    vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {"u16": np.uint16, "i16": np.int16, "u32": U32, "i32": I32, "u64": U64, "i64": I64}
_SKIPPED = re.compile(
    r"s_(waitcnt\w*|wait_\w+|nop|delay_alu|clause|sendmsg|setprio|sched_\w+|barrier\w*|endpgm|sleep|branch|cbranch_\w+"
    r"|inst_prefetch|set_inst_prefetch_distance|code_end|set_gpr_idx\w*|setreg\w*|icache_inv)|buffer_(wbl2|inv|gl\d_inv)"
)
_STORE = re.compile(r"(global|flat|ds|buffer|scratch)_(store|write)")


class LeftToFixupError(Exception):
    """Raised for a step of a division of extreme values: v_div_fixup_f32, its end, is compared with the quotient."""


def apply(ins: Instruction, state: State) -> None:
    """Change a state as an instruction does; stores to memory are left to the caller (`stores`).

    Raises:
        UnknownInstructionError: When it is not described here.
    """
    if _SKIPPED.fullmatch(ins.name) or _STORE.match(ins.name):
        return
    if ins.name.startswith(("s_", "v_s_")):
        _scalar(ins, state)
        return
    active = state.mask(EXEC)
    for handler in (_compare, _carry, _lanes, _matrix, _load):
        if handler(ins, state, active):
            return
    written = vector(ins, state)
    if written is None:
        raise UnknownInstructionError(ins.name)
    active = active & ~Operands(ins, state).kept
    for number, value in written.items():
        target = state.v
        if ins.flags.get("dst_sel", "DWORD") != "DWORD":
            raise UnknownInstructionError("dst_sel")
        target[number] = np.where(active, value, target[number])


# ---- masks -----------------------------------------------------------------------------------------------------------


def _compare(ins: Instruction, state: State, active: Any) -> bool:
    match = re.fullmatch(r"v_cmp(x?)_(\w+)_(\w+)", ins.name)
    if not match:
        return False
    o, first = Operands(ins, state), len(ins.operands) - 2
    bits = 64 if state.lanes == 64 else 32
    if match[2] == "class":
        result = _class(o, first, match[3])
    elif match[3] in {"f32", "f16"}:
        both = [_float(o, first + i, match[3]) for i in range(2)]
        result = _COMPARE[match[2]](*both)
    else:
        both = [o.integer(first + i, KINDS[match[3].replace("b", "u")]) for i in range(2)]
        result = _COMPARE[match[2]](*both)
    mask = lanes_mask(result & active)
    if match[1]:
        state.set_wide(EXEC, mask, bits)
    if first or not match[1]:
        where = register(ins.operands[0]) if first else ("s", VCC, 1)
        assert where is not None
        if where[0] != "null":
            state.set_wide(where[1], mask, bits)
    return True


def _float(o: Operands, index: int, kind: str) -> Any:
    # The index of a source in op_sel and SDWA's selections counts from the destination, which a v_cmpx has not.
    return o.f32(index) if kind == "f32" else o.f16(index)


def _class(o: Operands, first: int, kind: str) -> Any:
    values, wanted = _float(o, first, kind), o.raw(first + 1)
    tiny, negative = np.finfo(values.dtype).tiny, np.signbit(values)
    quiet = values.view(np.uint16 if kind == "f16" else U32) & (0x200 if kind == "f16" else 0x400000) != 0
    size, nan, inf = np.abs(values), np.isnan(values), np.isinf(values)
    normal, zero = ~nan & ~inf & (size >= tiny), size == 0
    small = ~nan & ~zero & (size < tiny)
    kinds = [nan & ~quiet, nan & quiet, inf & negative, normal & negative, small & negative, zero & negative,
             zero & ~negative, small & ~negative, normal & ~negative, inf & ~negative]  # fmt: skip
    return sum((wanted >> U32(bit) & U32(1)).astype(bool) & each for bit, each in enumerate(kinds)).astype(bool)


def _carry(ins: Instruction, state: State, active: Any) -> bool:
    """Instructions with a carry or a flag out, and perhaps one in."""
    o, name = Operands(ins, state), ins.name
    match = re.fullmatch(r"v_(add|sub|subrev)(c|b)?_co(_ci)?_u32", name.replace("subbrev", "subrevb"))
    if match:
        a, b = o.raw(2).astype(I64), o.raw(3).astype(I64)
        carry = state.mask(_number(ins.operands[4])) if len(ins.operands) > 4 else np.zeros(state.lanes, bool)
        signed = {"add": a + b + carry, "sub": a - b - carry, "subrev": b - a - carry}[match[1]]
        out, low = (signed < 0) | (signed > 0xFFFFFFFF), (signed & 0xFFFFFFFF).astype(U32)
    elif name in {"v_mad_u64_u32", "v_mad_co_u64_u32"}:
        product, third = o.raw(2).astype(U64) * o.raw(3).astype(U64), o.raw(4, 64)
        total = product + third
        out, low = total < product, total.astype(U32)
        _write(state, _number(ins.operands[0]) + 1, (total >> U64(32)).astype(U32), active)
    elif name == "v_div_scale_f32":
        value = o.f32(2)
        for index in (3, 4):
            size = np.abs(o.f32(index))
            if not ((size > 2.0**-60) & (size < 2.0**60) | ~active).all():
                raise LeftToFixupError
        out, low = np.zeros(state.lanes, bool), value.view(U32)
    elif name == "v_div_fmas_f32":
        if (state.mask(VCC) & active).any():
            raise LeftToFixupError
        exact = o.f32(1).astype(np.float64) * o.f32(2) + o.f32(3)
        _write(state, _number(ins.operands[0]), exact.astype(F32).view(U32), active)
        return True
    else:
        return False
    _write(state, _number(ins.operands[0]), low, active)
    if ins.operands[1] != "null":
        state.set_wide(_number(ins.operands[1]), lanes_mask(out & active), 64 if state.lanes == 64 else 32)
    return True


def _write(state: State, number: int, value: Any, active: Any) -> None:
    state.v[number] = np.where(active, value, state.v[number])


def _number(text: str) -> int:
    where = register(text)
    if where is None:
        raise UnknownInstructionError(f"{text!r} is no register")
    return where[1]


# ---- other lanes -----------------------------------------------------------------------------------------------------


def _lanes(ins: Instruction, state: State, active: Any) -> bool:
    o, name, lanes = Operands(ins, state), ins.name, state.lanes
    if name == "v_readfirstlane_b32":
        first = int(np.argmax(active)) if active.any() else 0
        state.s[_number(ins.operands[0])] = o.raw(1)[first]
    elif name == "v_readlane_b32":
        state.s[_number(ins.operands[0])] = o.raw(1)[int(o.raw(2)[0]) % lanes]
    elif name == "v_writelane_b32":
        state.v[_number(ins.operands[0]), int(o.raw(2)[0]) % lanes] = o.raw(1)[0]
    elif name in {"v_accvgpr_write_b32", "v_accvgpr_mov_b32"}:
        number = _number(ins.operands[0])
        state.a[number] = np.where(active, o.raw(1), state.a[number])
    elif name in {"ds_bpermute_b32", "ds_permute_b32"}:
        source = (o.raw(1) + U32(int(ins.flags.get("offset", "0")))) // U32(4) % U32(lanes)
        if name == "ds_permute_b32":
            raise UnknownInstructionError(name)
        values = np.where(active[source], o.raw(2)[source], 0)
        _write(state, _number(ins.operands[0]), values, active)
    elif name in {"v_permlane16_b32", "v_permlanex16_b32"}:
        _write(state, _number(ins.operands[0]), _permlane(ins, o, active), active)
    elif name in {"v_permlane32_swap_b32", "v_permlane16_swap_b32"}:
        row = 32 if "32" in name else 16
        first, second = _number(ins.operands[0]), _number(ins.operands[1])
        upper = np.arange(lanes) // row % 2 == 1
        old, other = state.v[first].copy(), state.v[second].copy()
        state.v[first] = np.where(upper, np.roll(other, row), old)
        state.v[second] = np.where(upper, other, np.roll(old, -row))
    else:
        return False
    return True


def _permlane(ins: Instruction, o: Operands, active: Any) -> Any:
    lane = np.arange(o.state.lanes)
    choices = np.array([int(o.raw(2 + i // 8)[0]) >> 4 * (i % 8) & 15 for i in range(16)])
    row = lane & ~15 if ins.name == "v_permlane16_b32" else (lane & ~15) ^ 16
    source = row + choices[lane & 15]
    fetch, bound = (*ins.bits("op_sel", (0, 0)), 0)[:2]
    values, old = o.raw(1)[source], o.state.v[_number(ins.operands[0])]
    return values if fetch else np.where(active[source], values, 0 if bound else old)


# ---- matrices ----------------------------------------------------------------------------------------------------


def _matrix(ins: Instruction, state: State, active: Any) -> bool:
    match = re.fullmatch(r"v_(wmma|mfma)_f32_(\d+)x(\d+)x(\d+)_?(f16|bf16|f32)(?:_1k)?", ins.name)
    if not match:
        return False
    if not active.all():
        raise UnknownInstructionError("a matrix product with lanes off")
    rows, _, depth = (int(match[i]) for i in (2, 3, 4))
    a, b = (_fragment(ins, state, i, match[5], rows, depth) for i in (1, 2))
    groups = state.lanes // rows
    count = rows * rows // state.lanes
    exact = a @ b.T
    lane = np.arange(state.lanes)
    file, first = _vector_file(ins.operands[0], state)
    third = register(ins.operands[3])
    results = []
    for i in range(count):
        if match[1] == "wmma":
            row = 2 * i + lane // 16 if _operand_registers(ins.operands[1]) == depth // 2 else i + 8 * (lane // 16)
        elif rows == 32:
            row = 8 * (i // 4) + 4 * (lane // 32) + i % 4
        else:
            row = (lane // rows) * (rows // groups) + i
        if third is None:
            c = Operands(ins, state).raw(3).view(F32)
        else:
            source, number = _vector_file(ins.operands[3], state)
            c = source[number + i].view(F32)
        results.append((exact[row, lane % rows] + c).astype(F32).view(U32))
    for i, result in enumerate(results):
        file[first + i] = result
    return True


def _operand_registers(text: str) -> int:
    where = register(text)
    assert where is not None
    return where[2]


def _vector_file(text: str, state: State) -> tuple[Any, int]:
    where = register(text)
    assert where is not None
    return {"v": state.v, "a": state.a}[where[0]], where[1]


def _fragment(ins: Instruction, state: State, index: int, kind: str, rows: int, depth: int) -> Any:
    """Return a matrix operand as [rows, depth] in float64."""
    file, first = _vector_file(ins.operands[index], state)
    registers = _operand_registers(ins.operands[index])
    words = file[first : first + registers]
    if kind == "f32":
        values = words.view(F32)
    else:
        halves = np.stack([words & U32(0xFFFF), words >> U32(16)], axis=1).reshape(2 * registers, -1)
        values = halves.astype(np.uint16).view(F16) if kind == "f16" else (halves << U32(16)).astype(U32).view(F32)
    matrix = np.zeros((rows, depth))
    per_lane = len(values)
    for lane in range(state.lanes):
        group = 0 if per_lane == depth else lane // rows
        matrix[lane % rows, group * per_lane : (group + 1) * per_lane] = values[:, lane]
    return matrix


# ---- memory --------------------------------------------------------------------------------------------------------


def _load_transposed(ins: Instruction, state: State) -> bool:
    """``ds_read_b64_tr_b16``: 16 lanes read 4 rows of 16 elements, 4 elements each, and get a column each."""
    if ins.name != "ds_read_b64_tr_b16":
        return False
    file, first = _vector_file(ins.operands[0], state)
    (addresses,) = _addresses(ins, state, True, False, False, 8)
    read = np.array([np.frombuffer(_bytes(state, True, int(at), 8), np.uint16) for at in addresses], U32)
    columns = read.reshape(-1, 4, 16).transpose(0, 2, 1).reshape(-1, 4)
    file[first], file[first + 1] = (columns[:, i] | columns[:, i + 1] << U32(16) for i in (0, 2))
    return True


def _load(ins: Instruction, state: State, active: Any) -> bool:
    if _load_transposed(ins, state):
        return True
    match = re.fullmatch(r"(global|ds)_(?:load|read)(2?)(_2addr)?(st64|_stride64)?_(\w+)", ins.name)
    if not match:
        return False
    if match[5].startswith("lds_"):
        return True  # what it writes lies in LDS: see `stores`
    file, first = _vector_file(ins.operands[0], state)
    old = file.copy()
    size, high, keep = _width(match[5])
    lds = match[1] == "ds"
    for part, base in enumerate(_addresses(ins, state, lds, bool(match[2] or match[3]), bool(match[4]), size)):
        for lane in np.flatnonzero(active):
            data = _bytes(state, lds, int(base[lane]), size)
            for word in range(-(-size // 4)):
                value = int.from_bytes(data[4 * word : 4 * word + 4], "little")
                if "i" in match[5][0] and size < 4:
                    value = int.from_bytes(data, "little", signed=True) & 0xFFFFFFFF
                number = first + part * (size // 4) + word
                if keep:
                    value = int(old[number, lane]) & (0xFFFF if high else 0xFFFF0000) | value << 16 * high
                file[number, lane] = value
    return True


_WIDTHS = {
    **dict.fromkeys(("b128", "dwordx4"), 16), **dict.fromkeys(("b96", "dwordx3"), 12),
    **dict.fromkeys(("b64", "dwordx2"), 8), **dict.fromkeys(("b32", "dword"), 4),
    **dict.fromkeys(("u16", "ushort", "i16", "b16", "short", "d16_b16", "short_d16", "d16_hi_b16"), 2),
    **dict.fromkeys(("short_d16_hi", "u16_d16", "u16_d16_hi"), 2),
    **dict.fromkeys(("u8", "ubyte", "i8", "b8", "byte", "d16_u8", "d16_hi_u8"), 1),
}  # fmt: skip


def _width(kind: str) -> tuple[int, bool, bool]:
    """Return bytes, and whether a half goes high, and whether the other half stays."""
    if kind not in _WIDTHS:
        raise UnknownInstructionError(kind)
    return _WIDTHS[kind], "hi" in kind, "d16" in kind


def _addresses(ins: Instruction, state: State, lds: bool, two: bool, stride: bool, size: int) -> list[Any]:
    store = bool(_STORE.match(ins.name))
    o = Operands(ins, state)
    if lds:
        address = o.raw(0 if store else 1).astype(np.int64)
        if not two:
            return [address + int(ins.flags.get("offset", "0"), 0) & 0xFFFFFFFF]
        step = size * (64 if stride else 1)
        return [address + step * int(ins.flags.get(f"offset{part}", "0"), 0) & 0xFFFFFFFF for part in range(2)]
    at, base = (0, 2) if store else (1, 2)
    offset = int(ins.flags.get("offset", "0"), 0)
    if len(ins.operands) > base and register(ins.operands[base]):
        scalar = int(state.s[_number(ins.operands[base])]) | int(state.s[_number(ins.operands[base]) + 1]) << 32
        return [o.raw(at).astype(np.int64) + scalar + offset]
    return [o.raw(at, 64).view(np.int64) + offset]


def _bytes(state: State, lds: bool, address: int, size: int) -> bytes:
    if lds:
        return bytes(state.lds[address : address + size])
    return ctypes.string_at(address, size)


def stores(ins: Instruction, state: State) -> list[tuple[bool, int, bytes]]:
    """Return what a store writes, lane by lane: whether to LDS, the address, the bytes."""
    if ins.name.startswith("global_load_lds_"):
        return _loaded_to_lds(ins, state)
    match = re.fullmatch(r"(global|ds)_(?:store|write)(2?)(_2addr)?(st64|_stride64)?_(\w+)", ins.name)
    if not match:
        if _STORE.match(ins.name):
            raise UnknownInstructionError(ins.name)
        return []
    lds, two = match[1] == "ds", bool(match[2] or match[3])
    size, high, _ = _width(match[5])
    found = []
    for part, base in enumerate(_addresses(ins, state, lds, two, bool(match[4]), size)):
        file, first = _vector_file(ins.operands[1 + part], state)
        for lane in np.flatnonzero(state.mask(EXEC)):
            words = b"".join(int(file[first + word, lane]).to_bytes(4, "little") for word in range(-(-size // 4)))
            found.append((lds, int(base[lane]), words[2 * high :][:size]))
    return found


def _loaded_to_lds(ins: Instruction, state: State) -> list[tuple[bool, int, bytes]]:
    """A load to LDS: each lane's bytes one after another from M0 and the instruction's offset on."""
    size, _, _ = _width(ins.name.removeprefix("global_load_lds_"))
    o, offset = Operands(ins, state), int(ins.flags.get("offset", "0"), 0)
    if len(ins.operands) > 1:
        scalar = int(state.s[_number(ins.operands[1])]) | int(state.s[_number(ins.operands[1]) + 1]) << 32
        base = o.raw(0).astype(np.int64) + scalar + offset
    else:
        base = o.raw(0, 64).view(np.int64) + offset
    start = int(state.s[124]) + offset
    lanes = np.flatnonzero(state.mask(EXEC))
    return [(True, start + size * int(lane), ctypes.string_at(int(base[lane]), size)) for lane in lanes]


# ---- scalars -------------------------------------------------------------------------------------------------------


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def _float_of(value: int) -> float:
    return float(np.array(value & 0xFFFFFFFF, U32).view(F32))


def _bits_of(value: Any) -> int:
    return int(np.array(value, F32).view(U32))


_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b), "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "and_not1": lambda a, b: a & ~b, "or_not1": lambda a, b: a | ~b,
}  # fmt: skip
_SAVE = {"and": lambda s, e: s & e, "or": lambda s, e: s | e, "xor": lambda s, e: s ^ e,
         "andn2": lambda s, e: s & ~e, "and_not1": lambda s, e: s & ~e, "andn1": lambda s, e: ~s & e,
         "and_not0": lambda s, e: ~s & e, "orn2": lambda s, e: s | ~e}  # fmt: skip
_FLOAT_SCALAR: dict[str, Callable[..., Any]] = {
    "s_add_f32": lambda a, b: F32(a) + F32(b), "s_sub_f32": lambda a, b: F32(a) - F32(b),
    "s_mul_f32": lambda a, b: F32(a) * F32(b), "v_s_exp_f32": lambda a: np.exp2(F32(a)),
    "v_s_rcp_f32": lambda a: F32(1) / F32(a), "v_s_log_f32": lambda a: np.log2(F32(a)),
    "s_max_num_f32": lambda a, b: np.fmax(F32(a), F32(b)), "s_min_num_f32": lambda a, b: np.fmin(F32(a), F32(b)),
}  # fmt: skip


def _scalar(ins: Instruction, state: State) -> None:
    """Change SGPRs and SCC; a value is a whole number here."""
    name = ins.name
    if name.startswith("s_load"):
        _scalar_load(ins, state)
        return
    wide = 64 if re.search(r"(b64|u64|i64)$", name) else 32
    values = [_value(text, state, wide, name) for text in ins.operands]
    if _scalar_compare(ins, state, values):
        return
    if name in {"s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_addk_co_i32"}:
        old, immediate = values[0], _signed(values[1] & 0xFFFF, 16)
        total = {"m": immediate, "a": _signed(old, 32) + immediate}.get(name[2], 0)
        if name == "s_mulk_i32":
            total = _signed(old, 32) * immediate
        _put(ins, state, total, 32)
        if name[2] == "a":
            state.s[SCC] = int(not -(1 << 31) <= total < 1 << 31)
        return
    if match := re.fullmatch(r"s_(\w+)_saveexec_b(32|64)", name):
        mask = state.wide(EXEC)
        _put(ins, state, mask, wide)
        result = _SAVE[match[1]](values[1], mask) & (1 << wide) - 1
        state.set_wide(EXEC, result, wide)
        state.s[SCC] = int(result != 0)
        return
    if name == "s_fmac_f32":
        a, b, c = (_float_of(value) for value in (values[1], values[2], values[0]))
        _put(ins, state, _bits_of(F32(a * b + c)), 32)
        return
    result, flag = _computed(name, values[1:], wide, int(state.s[SCC]) & 1)
    _put(ins, state, result, wide)
    if flag is not None:
        state.s[SCC] = int(flag)


def _value(text: str, state: State, bits: int, name: str) -> int:
    where = register(text)
    if where is None:
        if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
            return int(text, 0) & (1 << bits) - 1
        try:
            return _bits_of(float(text))
        except ValueError:
            raise UnknownInstructionError(f"{name} {text}") from None
    file, first, count = where
    if file in {"null", "m0", "scc"}:
        return {"null": 0, "scc": int(state.s[SCC]) & 1, "m0": int(state.s[124 if state.lanes == 64 else 125])}[file]
    return int(state.s[first]) | (int(state.s[first + 1]) << 32 if bits == 64 and count > 1 else 0)


def _put(ins: Instruction, state: State, value: int, bits: int) -> None:
    where = register(ins.operands[0])
    assert where is not None
    if where[0] == "m0":
        state.s[124 if state.lanes == 64 else 125] = value & 0xFFFFFFFF
    elif where[0] != "null":
        state.set_wide(where[1], value, bits if where[2] > 1 else 32)


def _scalar_compare(ins: Instruction, state: State, values: list[int]) -> bool:
    name = ins.name
    if match := re.fullmatch(r"s_cmpk?_(\w+)_(u32|i32|u64|i64|f32)", name):
        a, b = values
        if match[2] == "f32":
            result = bool(_COMPARE[match[1]](F32(_float_of(a)), F32(_float_of(b))))
        else:
            if match[2][0] == "i":
                a, b = _signed(a, 32), _signed(b & 0xFFFFFFFF, 32)
            result = bool(_COMPARE[match[1]](a, b))
    elif match := re.fullmatch(r"s_bitcmp([01])_b32", name):
        result = (values[0] >> (values[1] & 31) & 1) == int(match[1])
    else:
        return False
    state.s[SCC] = int(result)
    return True


def _computed(name: str, values: list[int], wide: int, scc: int) -> tuple[int, bool | None]:
    """Return a scalar result and the new SCC; None where it stays."""
    ones = (1 << wide) - 1
    a, b, c = (*values, 0, 0, 0)[:3]
    if match := re.fullmatch(r"s_(and|or|xor|nand|nor|xnor|andn2|orn2|and_not1|or_not1)_b(?:32|64)", name):
        result = _LOGIC[match[1]](a, b) & ones
        return result, result != 0
    if name in _FLOAT_SCALAR:
        return _bits_of(_FLOAT_SCALAR[name](*[_float_of(value) for value in values])), None
    if match := re.fullmatch(r"s_lshl([1234])_add_u32", name):
        total = (a << int(match[1])) + b
        return total & ones, total > ones
    simple: dict[str, Callable[[], tuple[int, bool | None]]] = {
        "s_mov": lambda: (a, None), "s_cselect": lambda: (a if scc else b, None),
        "s_not": lambda: (~a & ones, ~a & ones != 0),
        "s_brev": lambda: (int(f"{a:0{wide}b}"[::-1], 2), None),
        "s_lshl": lambda: _flagged(a << (b & wide - 1) & ones), "s_lshr": lambda: _flagged(a >> (b & wide - 1)),
        "s_ashr": lambda: _flagged(_signed(a, wide) >> (b & wide - 1) & ones),
        "s_add_u32": lambda: (a + b & ones, a + b > ones), "s_add_co_u32": lambda: (a + b & ones, a + b > ones),
        "s_addc_u32": lambda: (a + b + scc & ones, a + b + scc > ones),
        "s_sub_u32": lambda: (a - b & ones, b > a), "s_subb_u32": lambda: (a - b - scc & ones, b + scc > a),
        "s_add_nc_u64": lambda: (a + b & ones, None), "s_sub_nc_u64": lambda: (a - b & ones, None),
        "s_add_i32": lambda: _overflow(_signed(a, 32) + _signed(b, 32)),
        "s_sub_i32": lambda: _overflow(_signed(a, 32) - _signed(b, 32)),
        "s_mul_i32": lambda: (a * b & ones, None), "s_mul_u64": lambda: (a * b & ones, None),
        "s_mul_hi_u32": lambda: (a * b >> 32, None),
        "s_min_u32": lambda: (min(a, b), a < b), "s_max_u32": lambda: (max(a, b), a >= b),
        "s_min_i32": lambda: (min(a, b, key=lambda x: _signed(x, 32)), _signed(a, 32) < _signed(b, 32)),
        "s_max_i32": lambda: (max(a, b, key=lambda x: _signed(x, 32)), _signed(a, 32) >= _signed(b, 32)),
        "s_bfe_u32": lambda: _flagged(a >> (b & 31) & (1 << (b >> 16 & 127)) - 1),
        "s_cvt_f32_u32": lambda: (_bits_of(F32(a)), None),
        "s_cvt_f32_i32": lambda: (_bits_of(F32(_signed(a, 32))), None),
        "s_cvt_u32_f32": lambda: (max(0, min(ones, int(np.trunc(_float_of(a))))), None),
        "s_pack_ll_b32_b16": lambda: (a & 0xFFFF | (b & 0xFFFF) << 16, None),
        "s_bcnt1_i32": lambda: _flagged(a.bit_count()),
        "s_ff1_i32": lambda: ((a & -a).bit_length() - 1 & 0xFFFFFFFF, None),
        "s_ctz_i32": lambda: ((a & -a).bit_length() - 1 & 0xFFFFFFFF, None),
    }  # fmt: skip
    simple["s_add_co_i32"], simple["s_sub_co_i32"] = simple["s_add_i32"], simple["s_sub_i32"]
    simple["s_sub_co_u32"] = simple["s_sub_u32"]
    simple["s_add_co_ci_u32"], simple["s_sub_co_ci_u32"] = simple["s_addc_u32"], simple["s_subb_u32"]
    del c
    function = simple.get(name) or simple.get(re.sub(r"_[bi](32|64)$", "", name))
    if function is None:
        raise UnknownInstructionError(name)
    return function()


def _flagged(value: int) -> tuple[int, bool]:
    return value, value != 0


def _overflow(value: int) -> tuple[int, bool]:
    return value & 0xFFFFFFFF, not -(1 << 31) <= value < 1 << 31


def _scalar_load(ins: Instruction, state: State) -> None:
    target, base = register(ins.operands[0]), register(ins.operands[1])
    assert target is not None
    assert base is not None
    address = int(state.s[base[1]]) | int(state.s[base[1] + 1]) << 32
    address += _value(ins.operands[2], state, 32, ins.name) if len(ins.operands) > 2 else 0
    address += int(ins.flags.get("offset", "0"), 0)
    if not re.search(r"(b\d+|dword(x\d+)?)$", ins.name) or ins.name.endswith(("b8", "b16")):
        raise UnknownInstructionError(ins.name)
    for word in range(target[2]):
        state.s[target[1] + word] = int.from_bytes(ctypes.string_at(address + 4 * word, 4), "little")
