"""Mistakes of the emulator that our kernels run into, each put right at run time, and each shown by itself.

A correction changes no file: it replaces the emulator's function that compiles an instruction, by one that calls the
old one with the difference. `case` is the smallest program that shows the mistake: registers in, the emulator's
result, the right one, which stands here as a number that follows from the document alone.
"""

# ruff: noqa: SLF001 - the emulator has no public parts
from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ONE, SIXTEEN, HUNDRED = 0x3F800000, 0x41800000, 0x42C80000  # as float32
_ONES = 0x3C003C00  # 1.0 twice, as float16


@dataclass(frozen=True)
class Case:
    """A program of a few instructions that the emulator gets wrong without the correction.

    Attributes:
        arch: Target.
        assembly: The instructions.
        vectors: VGPRs at the start, one value for all lanes or one each; the others are NaN.
        scalars: SGPRs at the start; s[2:3] is always the address of 4096 bytes of memory.
        right: What a register ("v3", "s4") must be at the end, one value for all lanes or one each.
    """

    arch: str
    assembly: str
    vectors: Mapping[int, Any]
    right: Mapping[str, Any]
    scalars: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Correction:
    """One mistake.

    Attributes:
        instructions: Which it is in.
        mistake: What the emulator does.
        document: What AMD says, and where.
        apply: Puts it right in the emulator's module.
        cases: Programs that show it.
    """

    instructions: str
    mistake: str
    document: str
    apply: Callable[[Any], None]
    cases: tuple[Case, ...]


def correct(emulator: Any) -> None:
    """Apply all corrections to the emulator."""
    for correction in CORRECTIONS:
        correction.apply(emulator)
    emulator._get_runner.cache_clear()  # what was compiled before has the mistakes
    emulator._canonical_runner_cache.clear()


def _wrap(emulator: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function that compiles a format's instructions, wherever it is looked up."""
    old = getattr(emulator, name)
    new = functools.wraps(old)(make(old))
    setattr(emulator, name, new)
    handlers = emulator._INST_HANDLERS
    handlers.update({kind: new for kind, handler in handlers.items() if handler is old})


def _instead(context: Any, **methods: Any) -> Any:
    """Return the compiler's context with some methods replaced; all it notes stays in the original."""

    class Instead:
        def __getattr__(self, name: str) -> Any:
            return methods[name] if name in methods else getattr(context, name)

    return Instead()


# ---- v_wmma with a constant ------------------------------------------------------------------------------------------


def _constant_accumulator(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_wmma(inst: Any, context: Any) -> Any:
            low, high = type(inst).src2.lo, type(inst).src2.hi
            number = inst._raw >> low & (1 << high - low + 1) - 1

            def inst_field(where: Any) -> Any:
                if (where.lo, where.hi) != (low, high):
                    return context.inst_field(where)
                if number < 256:  # the compiled instruction is for this constant
                    return emulator._c(number)
                value = context.inst_field(where)
                context.dyn_fields[-1] = (low, high - 1)  # and this one for any VGPR, but for no constant
                return value

            def rvgpr_dyn(register: Any, lane: Any, valid: Any = None) -> Any:
                # Numbers of VGPRs come from the instruction's fields; one that is known here is the constant's.
                if number < 256 and register.simplify().op is emulator.Ops.CONST:
                    return context.rsgpr_dyn(emulator._c(number))
                return context.rvgpr_dyn(register, lane, valid)

            return old(inst, _instead(context, inst_field=inst_field, rvgpr_dyn=rvgpr_dyn))

        return compile_wmma

    _wrap(emulator, "_compile_wmma", make)


# ---- LDS instructions on AGPRs ---------------------------------------------------------------------------------------


def _lds_of_agprs(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_mem_op(inst: Any, context: Any) -> Any:
            if not isinstance(inst, emulator.irc.DS) or not inst.acc:
                return old(inst, context)
            data = {context.inst_field(getattr(type(inst), name)) for name in ("data0", "data1")}

            def rvgpr_dyn(register: Any, lane: Any, valid: Any = None) -> Any:
                is_data = register in data or any(part in data for part in register.src)
                return (context.raccvgpr_dyn if is_data else context.rvgpr_dyn)(register, lane, valid)

            return old(inst, _instead(context, rvgpr_dyn=rvgpr_dyn))

        return compile_mem_op

    _wrap(emulator, "_compile_mem_op", make)


# ---- matrix products of AGPRs ----------------------------------------------------------------------------------------


def _products_of_agprs(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_mfma(inst: Any, context: Any) -> Any:
            chosen = int(getattr(inst, "acc", 0) or 0)  # bit 0: A, bit 1: B
            names = [name for bit, name in enumerate(("src0", "src1")) if chosen >> bit & 1]
            sources = {context.inst_field(getattr(type(inst), name)) for name in names}

            def rvgpr_dyn(register: Any, lane: Any, valid: Any = None) -> Any:
                of_agprs = any(part in sources for part in register.src)
                return (context.raccvgpr_dyn if of_agprs else context.rvgpr_dyn)(register, lane, valid)

            return old(inst, _instead(context, rvgpr_dyn=rvgpr_dyn))

        return compile_mfma

    _wrap(emulator, "_compile_mfma", make)


# ---- the carry of v_mad_u64_u32 --------------------------------------------------------------------------------------


def _carry_of_mad(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_vop3sd(inst: Any, context: Any) -> Any:
            if inst.op.name not in {"V_MAD_U64_U32", "V_MAD_CO_U64_U32"}:
                return old(inst, context)
            fields, literal = type(inst), context.optional_field(inst, "literal")
            target, carry = context.inst_field(fields.vdst), context.inst_field(fields.sdst)
            sources = [context.inst_field(getattr(fields, name)) for name in ("src0", "src1", "src2")]
            active, wide = context.rexec(), emulator.dtypes.uint64

            def sums(lane: Any) -> tuple[Any, Any]:
                a, b = (context.rsrc_dyn(source, lane, 32, literal).cast(wide) for source in sources[:2])
                return a * b, a * b + context.rsrc_dyn(sources[2], lane, 64, literal)

            def overflow(lane: Any) -> Any:
                product, total = sums(lane)
                return (total < product).cast(emulator.dtypes.uint32)

            # The carries' loop comes first: the registers that it reads may be the ones that are written.
            masks = context.wmask(carry, context.unroll_lanes(overflow, active))
            lane = context.range()
            low, high = emulator._split64(sums(lane)[1])
            writes = [context.wvgpr_dyn(target, lane, low, active),
                      context.wvgpr_dyn(target + emulator._c(1), lane, high, active)]  # fmt: skip
            return emulator.UOp.sink(*masks, emulator.UOp.group(*writes).end(lane), *context.inc_pc())

        return compile_vop3sd

    _wrap(emulator, "_compile_vop3sd", make)


# ---- stores to odd addresses -----------------------------------------------------------------------------------------


def _unaligned_stores(emulator: Any) -> None:
    uint8, uint32, uint64 = emulator.dtypes.uint8, emulator.dtypes.uint32, emulator.dtypes.uint64

    class Bytes(emulator._Ctx):
        """The compiler's context with memory as bytes, not as 32-bit words."""

        __slots__ = ()
        vmem = emulator.UOp.param(2, uint8, (1 << 48,))

        def inst_word(self, dword_idx: int) -> Any:
            parts = []
            for byte in range(4):
                at = self.rpc() + emulator.UOp.const(4 * dword_idx + byte, uint64)
                parts.append(self.vmem.index(at).load().cast(uint32) << emulator._c(8 * byte))
            return parts[0] | parts[1] | parts[2] | parts[3]

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_mem_op(inst: Any, context: Any) -> Any:
            name = inst.op.name
            if not name.startswith(("GLOBAL_STORE", "FLAT_STORE")):
                return old(inst, context)
            other = Bytes(context.inst_size, context.wave_size)
            compiled = old(inst, other)
            context.dyn_fields.extend(other.dyn_fields)
            return compiled

        return compile_mem_op

    def make_store(old: Callable[..., Any]) -> Callable[..., Any]:
        def mem_store(mem: Any, addr: Any, val: Any, active: Any, addr_bits: int = 32, data_bits: int = 32) -> Any:
            if mem.dtype != uint8:
                return old(mem, addr, val, active, addr_bits, data_bits)
            return emulator._mem_store_bytes(mem, addr, emulator._to_u32(val), active, data_bits)

        return mem_store

    _wrap(emulator, "_compile_mem_op", make)
    _wrap(emulator, "_mem_store", make_store)


# ---- transposing reads -----------------------------------------------------------------------------------------------


def _transposing_reads(emulator: Any) -> None:
    uint32 = emulator.dtypes.uint32

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_mem_op(inst: Any, context: Any) -> Any:
            if inst.op.name != "DS_READ_B64_TR_B16":
                return old(inst, context)
            fields, constant = type(inst), emulator._c
            address, target = context.inst_field(fields.addr), context.inst_field(fields.vdst)
            offset = context.inst_field(fields.offset1) << constant(8) | context.inst_field(fields.offset0)
            write = context.waccvgpr_dyn if inst.acc else context.wvgpr_dyn
            kept = emulator.UOp.placeholder((128,), uint32, slot=0, addrspace=emulator.AddrSpace.LOCAL)
            active, lane = context.rexec(), context.range()
            word = context.rvgpr_dyn(address, lane) + offset >> constant(2)
            reads = [kept.index(lane * 2 + i).store(context.lds.index(word + constant(i)).load()) for i in range(2)]
            kept, lane = kept.after(emulator.UOp.group(*reads).end(lane)), context.range()
            writes = []
            for i in range(2):
                halves = []
                for row in (2 * i, 2 * i + 1):  # of the 4 lanes that read a row, which has this lane's column
                    source = lane // 16 * 16 + 4 * row + lane % 16 // 4
                    both = kept.index(source * 2 + lane % 4 // 2).load()
                    halves.append(both >> (lane % 2 * 16).cast(uint32) & constant(0xFFFF))
                writes.append(write(target + constant(i), lane, halves[0] | halves[1] << constant(16), active))
            return emulator.UOp.sink(emulator.UOp.group(*writes).end(lane), *context.inc_pc())

        return compile_mem_op

    _wrap(emulator, "_compile_mem_op", make)


# ---- loads to LDS ----------------------------------------------------------------------------------------------------


def _loads_to_lds(emulator: Any) -> None:
    uint64, signed = emulator.dtypes.uint64, emulator.dtypes.int64

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compile_mem_op(inst: Any, context: Any) -> Any:
            words = {"GLOBAL_LOAD_LDS_DWORD": 1, "GLOBAL_LOAD_LDS_DWORDX3": 3, "GLOBAL_LOAD_LDS_DWORDX4": 4}
            count = words.get(inst.op.name)
            if count is None:
                return old(inst, context)
            fields, constant = type(inst), emulator._c
            address, base = context.inst_field(fields.addr), context.inst_field(fields.saddr)
            offset = context.inst_field_signed(fields.offset)
            active, lane = context.rexec(), context.range()
            scalar = emulator._u64(context.rsgpr_dyn(base), context.rsgpr_dyn(base + constant(1)))
            low = context.rvgpr_dyn(address, lane)
            whole = emulator._u64(low, context.rvgpr_dyn(address + constant(1), lane))
            start = (base < constant(124)).where(scalar + low.cast(uint64), whole) + offset.cast(uint64)
            # LDS_offset of the document: M0, the instruction's offset, and the lane's place.
            place = context.rsgpr_dyn(constant(124)) + offset.cast(emulator.dtypes.uint32)
            place = place + lane.cast(emulator.dtypes.uint32) * constant(4 * count)
            moves = []
            for word in range(count):
                on = emulator._lane_active(active, lane)
                at = ((start >> emulator.UOp.const(2, uint64)) + emulator.UOp.const(word, uint64)).cast(signed)
                both = [context.vmem.index((at + emulator.UOp.const(i, signed)).valid(on)).load() for i in range(2)]
                value = emulator._u64(*both) >> (start & emulator.UOp.const(3, uint64)) * emulator.UOp.const(8, uint64)
                slot = context.lds.index(((place >> constant(2)) + constant(word)).valid(on))
                moves.append(slot.store(value.cast(emulator.dtypes.uint32)))
            return emulator.UOp.sink(emulator.UOp.group(*moves).end(lane), *context.inc_pc())

        return compile_mem_op

    _wrap(emulator, "_compile_mem_op", make)


# ---- broadcasts by DPP -----------------------------------------------------------------------------------------------


def _row_broadcasts(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def dpp16_ctrl(lane: Any, dpp: int, *masks: int) -> Any:
            if dpp & ~15 != 0x150:
                return old(lane, dpp, *masks)
            _, enabled, valid = old(lane, 0x120, *masks)  # a rotation by nothing: every lane has a source
            row = lane.cast(emulator.dtypes.int) & emulator._c(~15, emulator.dtypes.int)
            return row + emulator._c(dpp & 15, emulator.dtypes.int), enabled, valid

        return dpp16_ctrl

    _wrap(emulator, "_dpp16_ctrl", make)


# ---- 16-bit instructions on v128 and the following registers ---------------------------------------------------------


def _upper_registers(emulator: Any) -> None:
    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(inst: Any, context: Any, *rest: Any, **named: Any) -> Any:
            bits = dict(inst.canonical_op_bits)
            encodings = tuple(getattr(emulator.irc, name) for name in ("VOP1", "VOP2", "VOPC"))
            if not isinstance(inst, encodings) or 16 not in bits.values():
                return old(inst, context, *rest, **named)

            def rsrc_dyn(offset: Any, lane: Any, size: int = 32, *more: Any, **options: Any) -> Any:
                sixteen = size == 32 and bits["s0"] == 16  # 1.0 is still a float16
                return context.rsrc_dyn(offset, lane, 16 if sixteen else size, *more, **options)

            # Halves of registers are addressed where an operand has 16 bits: none has any more.
            inst.canonical_op_bits = {name: 32 if size == 16 else size for name, size in bits.items()}
            return old(inst, _instead(context, rsrc_dyn=rsrc_dyn), *rest, **named)

        return compiled

    _wrap(emulator, "_compile_vop12", make)
    _wrap(emulator, "_compile_vopc", make)


_LANE = np.arange(64)
_WMMA_ZERO = dict.fromkeys(range(16), _ONES) | {128 + number: HUNDRED for number in range(8)}
CORRECTIONS = (
    Correction(
        "v_wmma_* with a constant as C",
        "takes the constant's code for the number of a VGPR: C = 0 (code 128) reads v128 and the following ones",
        "RDNA3 and RDNA4 ISA, microcode format VOP3P: SRC2 128 is the constant 0, 256 to 511 are VGPRs; WMMA's C may be"
        " a constant",
        _constant_accumulator,
        (
            Case("gfx1201", "v_wmma_f32_16x16x16_f16 v[16:23], v[0:3], v[4:7], 0", _WMMA_ZERO, {"v16": SIXTEEN}),
            Case("gfx1100", "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], 0", _WMMA_ZERO, {"v16": SIXTEEN}),
        ),
    ),
    Correction(
        "ds_write_* of AGPRs",
        "ignores the ACC bit for the data that is written (not for what is read): takes the VGPR of that number",
        "AMD Instinct MI300 ISA, microcode format DS: ACC (bit 25): the data's registers are AccVGPRs",
        _lds_of_agprs,
        (
            Case("gfx942", "v_accvgpr_write_b32 a4, v1\ns_nop 3\nds_write_b32 v0, a4\nds_read_b32 v2, v0\n"
                 "s_waitcnt lgkmcnt(0)", {0: np.arange(64) * 4, 1: ONE}, {"v2": ONE}),
        ),
    ),
    Correction(
        "v_mfma_* with A or B in AGPRs",
        "ignores the ACC bits of A and B (not those of C and D): takes the VGPRs of those numbers",
        "AMD Instinct MI300 ISA, microcode format VOP3P-MAI: ACC (bits 60:59): A, B are in AccVGPRs",
        _products_of_agprs,
        (
            Case("gfx942", "v_accvgpr_write_b32 a8, v1\nv_accvgpr_write_b32 a9, v1\ns_nop 3\n"
                 "v_mfma_f32_16x16x16_f16 v[4:7], v[2:3], a[8:9], 0", {1: _ONES, 2: _ONES, 3: _ONES}, {"v4": SIXTEEN}),
        ),
    ),
    Correction(
        "v_mad_u64_u32, v_mad_co_u64_u32",
        "writes no carry: the SGPRs of SDST stay as they were",
        "RDNA3, RDNA4 and MI300 ISA, VOP3 instruction: {D1.u1, D0.u64} = S0.u32 * S1.u32 + S2.u64",
        _carry_of_mad,
        (
            Case("gfx942", "v_mad_u64_u32 v[2:3], s[4:5], v0, v1, v[6:7]",
                 {0: 1, 1: 1, 6: 0xFFFFFFFF, 7: 0xFFFFFFFF}, {"v2": 0, "v3": 0, "s4": 0xFFFFFFFF, "s5": 0xFFFFFFFF}),
            Case("gfx1100", "v_mad_u64_u32 v[2:3], s4, v0, v1, v[6:7]",
                 {0: 1, 1: 1, 6: 5, 7: 0}, {"v2": 6, "v3": 0, "s4": 0}, {4: 0x1234}),
        ),
    ),
    Correction(
        "ds_read_b64_tr_b16",
        "does not know it: AMD's tables, from which the emulator is made, have no pseudocode of it",
        "AMD CDNA4 ISA, transposing reads: 16 lanes read 4 rows of 16 elements of 16 bits, and get a column each",
        _transposing_reads,
        (
            Case(
                "gfx950",
                "ds_write_b64 v0, v[2:3]\nds_read_b64_tr_b16 v[4:5], v0\ns_waitcnt lgkmcnt(0)",
                {0: _LANE * 8, 2: _LANE * 4 | _LANE * 4 + 1 << 16, 3: _LANE * 4 + 2 | _LANE * 4 + 3 << 16},
                # Element e of the wave's 256 stands in row e // 16 % 4, column e % 16 of the 16 lanes' block e // 64.
                {f"v{4 + i}": _LANE // 16 * 64 + _LANE % 16 + 32 * i | _LANE // 16 * 64 + _LANE % 16 + 32 * i + 16 << 16
                 for i in range(2)},
            ),
        ),
    ),
    Correction(
        "global_load_lds_dword, dwordx3, dwordx4",
        "does not know it",
        "AMD CDNA4 ISA, loads to LDS: LDS address = M0 + the instruction's offset + lane times the bytes of a lane",
        _loads_to_lds,
        (
            Case("gfx950", "global_store_dwordx4 v0, v[4:7], s[2:3]\ns_waitcnt vmcnt(0)\ns_mov_b32 m0, 0x400\n"
                 "global_load_lds_dwordx4 v0, s[2:3]\ns_waitcnt vmcnt(0)\nds_read_b32 v8, v0 offset:0x404",
                 {0: _LANE * 16, 4: _LANE, 5: _LANE + 100, 6: _LANE, 7: _LANE}, {"v8": _LANE + 100}),
            Case("gfx942", "global_store_dword v0, v4, s[2:3]\ns_waitcnt vmcnt(0)\ns_mov_b32 m0, 0x400\n"
                 "global_load_lds_dword v0, s[2:3]\ns_waitcnt vmcnt(0)\nds_read_b32 v8, v0 offset:0x400",
                 {0: _LANE * 4, 4: _LANE + 100}, {"v8": _LANE + 100}),
        ),
    ),
    Correction(
        "DPP with row_newbcast, row_share",
        "does not know it",
        "AMD Instinct MI300 ISA, DPP_ROW_NEWBCAST: a lane of each row of 16 for the whole row; RDNA: DPP_ROW_SHARE",
        _row_broadcasts,
        (
            Case("gfx942", "v_mov_b32_dpp v1, v0 row_newbcast:5 row_mask:0xf bank_mask:0xf", {0: _LANE},
                 {"v1": _LANE // 16 * 16 + 5}),
        ),
    ),
    Correction(
        "16-bit VOP1, VOP2 and VOPC instructions on v128 to v255 of gfx9",
        "takes them for the high halves of v0 to v127, as they are on gfx11 and later",
        "AMD Instinct MI300 ISA, microcode formats VOP1, VOP2, VOPC: VDST, SRC0 - 256 and VSRC1 are numbers of VGPRs,"
        " 0 to 255",
        _upper_registers,
        (
            Case("gfx942", "v_cvt_f16_f32_e32 v130, v1\nv_cvt_f32_f16_e32 v3, v130",
                 {1: ONE, 2: 0, 130: 0}, {"v130": 0x3C00, "v2": 0, "v3": ONE}),
            Case("gfx942", "v_cmp_eq_u16_e32 vcc, v1, v130\nv_cndmask_b32_e64 v3, 0, 1, vcc",
                 {1: 7, 2: 0, 130: 7}, {"v3": 1}),
        ),
    ),
    Correction(
        "global_store_* to an address that is no multiple of 4",
        "drops the address's last two bits",
        'LLVM, "User Guide for AMDGPU Backend", unaligned-access-mode: on for amdhsa; Linux sets ALIGNMENT_MODE of'
        " SH_MEM_CONFIG to UNALIGNED for compute (amdkfd)",
        _unaligned_stores,
        (
            Case("gfx942", "global_store_dword v0, v2, s[2:3] offset:2\nglobal_load_ushort v3, v0, s[2:3] offset:2\n"
                 "global_load_ushort v4, v0, s[2:3] offset:4\ns_waitcnt vmcnt(0)",
                 {0: np.arange(64) * 8, 2: 0x12345678}, {"v3": 0x5678, "v4": 0x1234}),
            Case("gfx1201", "global_store_b64 v0, v[4:5], s[2:3] offset:2\nglobal_load_u16 v3, v0, s[2:3] offset:6\n"
                 "s_wait_loadcnt 0x0", {0: np.arange(32) * 16, 4: 0x12345678, 5: 0x9ABCDEF0}, {"v3": 0xDEF0}),
        ),
    ),
)  # fmt: skip


def results(state: Any, case: Case) -> dict[str, tuple[int, int]]:
    """Return (found, right) of each register that a case is about: of the first lane that differs, or of lane 0."""
    vectors = np.frombuffer(state._vgpr_mv, np.uint32).reshape(-1, state.wave_size)
    found = {}
    for name, right in case.right.items():
        values = vectors[int(name[1:])] if name[0] == "v" else np.array([state._read_sgpr(int(name[1:]))], np.uint32)
        wanted = np.broadcast_to(np.asarray(right, np.uint32), values.shape)
        lane = int(np.argmax(values != wanted))
        found[name] = int(values[lane]), int(wanted[lane])
    return found
