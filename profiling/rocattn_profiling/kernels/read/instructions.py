"""Classify AMDGPU instructions by mnemonic: gfx9 to gfx12, in LLVM's spelling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Pipe(Enum):
    """The pipe that an instruction is issued to; a `HINT` only takes an issue slot: s_delay_alu, s_nop, s_clause."""

    MATRIX = "matrix"
    VECTOR = "vector"
    LDS = "lds"
    GLOBAL = "global"
    SCRATCH = "scratch"
    SCALAR = "scalar"
    BRANCH = "branch"
    WAIT = "wait"  # waits, barriers, and cache maintenance
    HINT = "hint"
    OTHER = "other"

    __hash__ = object.__hash__  # Enum's is slow Python code, and millions are counted


class Role(Enum):
    """The purpose of a vector or LDS instruction: the first that applies."""

    CROSS_LANE = "cross_lane"
    TRANSCENDENTAL = "transcendental"
    CONVERSION = "conversion"
    MOVE = "move"
    PACKED = "packed"
    PLAIN = "plain"


class Access(Enum):
    """The direction of a memory instruction; direct-to-LDS loads are global loads."""

    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic"


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of a mnemonic.

    Attributes:
        unit, role: See `Pipe` and `Role`.
        access, width: For memory: direction, and bytes per lane (0 if the mnemonic does not say).
        flops: For matrix products: floating-point (or integer) operations per wave, 2 * M * N * K * blocks. Sparse
            products count the dense K.
    """

    unit: Pipe
    role: Role = Role.PLAIN
    access: Access | None = None
    width: int = 0
    flops: int = 0


@lru_cache(maxsize=1 << 14)
def classify(mnemonic: str) -> Operation:
    """Return a mnemonic's operation, whatever its operands; if it is unknown, only the unit is certain."""
    for known, operation in _FIXED:
        if known.match(mnemonic):
            return operation
    prefix = mnemonic.partition("_")[0]
    if prefix == "v":
        return _vector(mnemonic)
    if prefix in _MEMORY:
        return _memory(_MEMORY[prefix], mnemonic)
    return Operation(Pipe.SCALAR if prefix == "s" else Pipe.OTHER)


@lru_cache(maxsize=1 << 14)
def lane_flops(mnemonic: str) -> int:
    """Return the floating-point operations per lane of a vector instruction, matrix products excluded.

    A fused multiply-add counts 2, other arithmetic and transcendental functions 1, packed instructions twice that; a
    dot product of n pairs 2 n. Comparisons, minima, maxima and conversions do not count (as in ROCm Compute Profiler's
    VALU FLOPs: ADD, MUL, FMA, TRANS).
    """
    if match := _DOT.match(mnemonic):
        return 2 * int(match[1])
    if match := _ARITHMETIC.match(mnemonic):
        return (2 if match[1] else 1) * (2 if _FUSED.match(match[2]) else 1)
    return 0


@lru_cache(maxsize=1 << 14)
def lane_product_flops(mnemonic: str) -> int:
    """Return the part of `lane_flops` from multiply-adds, which matrix products consist of."""
    match = _ARITHMETIC.match(mnemonic)
    return lane_flops(mnemonic) if _DOT.match(mnemonic) or (match and _FUSED.match(match[2])) else 0


@lru_cache(maxsize=1 << 14)
def is_branch(mnemonic: str) -> bool:
    """Return whether it is a branch to the label in its operands."""
    return bool(_BRANCH.match(mnemonic))


@lru_cache(maxsize=1 << 14)
def is_indirect(mnemonic: str) -> bool:
    """Return whether it jumps to an address in a register."""
    return bool(_INDIRECT.match(mnemonic))


def is_call(mnemonic: str) -> bool:
    """Return whether it calls a function that returns to the next instruction."""
    return mnemonic.startswith(("s_swappc", "s_call"))


@lru_cache(maxsize=1 << 14)
def ends_flow(mnemonic: str) -> bool:
    """Return whether execution never continues with the next instruction in the text."""
    return bool(_NO_FALL_THROUGH.match(mnemonic))


def waits_for_waves(mnemonic: str) -> bool:
    """Return whether it is a barrier: on gfx12 only s_barrier_wait, the second half, not s_barrier_signal."""
    return mnemonic in {"s_barrier", "s_barrier_wait"}


def is_wide_fence(mnemonic: str, operands: str) -> bool:
    """Return whether it is a gfx12 fence with a scope beyond the block, which is in the operands."""
    return mnemonic.startswith(("global_inv", "global_wb")) and operands.endswith(("SCOPE_DEV", "SCOPE_SYS"))


def integer(text: str) -> int | None:
    """Parse a number in assembler syntax ("8", "0x40"); None if it is not a number."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def idioms(mnemonics: Counter[str]) -> tuple[str, ...]:
    """Return the costly idioms in code: fences, atomics, flat accesses, divisions and so on.

    LLVM emits v_rcp_iflag for an integer division, v_div_fmas for a float division; v_readfirstlane, a comparison and
    s_and_saveexec for a waterfall loop over the values that lanes hold in a register; v_rndne and v_ldexp around v_exp
    for an exact expf. AGPR copies count as an idiom if they outnumber the matrix products.
    """
    kinds = mnemonics.keys()
    found = {name for name, known in _IDIOMS if any(map(known.match, kinds))}
    found |= {name for name, parts in _TOGETHER if all(any(each.startswith(part) for each in kinds) for part in parts)}
    units = [classify(each) for each in kinds]
    found |= {_ATOMICS[each.unit] for each in units if each.access is Access.ATOMIC and each.unit in _ATOMICS}
    copies, products = (
        sum(count for each, count in mnemonics.items() if known(each)) for known in (_is_agpr_copy, _is_product)
    )
    if copies > products:
        found.add("AGPR copies")
    return tuple(sorted(found))


def idioms_weight(named: Collection[str]) -> int:
    """Return a number that grows with the cost of idioms: each outweighs all cheaper ones together."""
    return sum(1 << _COSTS.index(name) for name in named if name in _COSTS)


def _is_agpr_copy(mnemonic: str) -> bool:
    return mnemonic.startswith("v_accvgpr_")


def _is_product(mnemonic: str) -> bool:
    return classify(mnemonic).unit is Pipe.MATRIX


def has_lane_exchange(operands: str) -> bool:
    """Return whether operands have a DPP modifier, with which any vector instruction reads other lanes."""
    return ("_" in operands or "dpp8" in operands) and bool(
        _DPP.search(operands)
    )  # a fast check first: few have either


CALL, FENCE = "function call", "fence"
_COSTS = (
    "AGPR copies", "vector load of one address", "LDS atomic", "exact exponential", "exact division",
    "integer division", "f32 made f64", "flat access", "waterfall loop", CALL, "global atomic", FENCE,
)  # fmt: skip
"""Idioms, costliest last; the order is a judgment call."""
_IDIOMS = (
    # Beyond the block: on RDNA a barrier alone invalidates gl0; gfx12's fences have their scope in the operands.
    (FENCE, re.compile(r"buffer_(?:gl1_inv|inv|wb\w*)$|s_gl1_inv")),
    (CALL, re.compile(r"s_swappc|s_call")),
    ("flat access", re.compile(r"flat_(?:load|store|atomic)")),
    ("integer division", re.compile(r"v_rcp_iflag_f32")),
    ("f32 made f64", re.compile(r"v_cvt_f64_f32")),
    ("exact division", re.compile(r"v_div_fmas_f")),
)
_TOGETHER = (
    ("waterfall loop", ("v_readfirstlane", "v_cmp", "s_and_saveexec")),
    ("integer division", ("v_mul_hi_u32", "v_cmp_le_u32", "v_cndmask")),  # by a loop-invariant divisor
    ("exact exponential", ("v_exp_f32", "v_rndne_f32", "v_ldexp_f32")),
)
_ATOMICS = {Pipe.GLOBAL: "global atomic", Pipe.LDS: "LDS atomic"}
_BRANCH = re.compile(r"s_branch|s_cbranch_(?!join|[gi]_fork)|s_subvector_loop")
_INDIRECT = re.compile(r"s_setpc|s_swappc|s_call|s_cbranch_(?:join|[gi]_fork)")
_NO_FALL_THROUGH = re.compile(r"s_branch|s_endpgm|s_setpc|s_rfe")
_DPP = re.compile(r"\b(?:quad_perm|dpp8|row_\w+|wave_\w+):|\brow_(?:half_)?mirror\b")
_FIXED = (
    (re.compile(r"s_wait|s_barrier|s_[di]cache|s_gl1_inv|(?:buffer|global)_(?:gl[01]_inv|inv|wb\w*)$"),
     Operation(Pipe.WAIT)),
    (re.compile(r"s_delay_alu|[sv]_nop|ds_nop|s_clause|s_setprio|s_sleep|s_(?:set_)?inst_prefetch|s_code_end|s_sendmsg|"
                r"s_ttrace"), Operation(Pipe.HINT)),
    (re.compile(r"s_c?branch|s_subvector_loop|s_setpc|s_swappc|s_call|s_endpgm|s_rfe"), Operation(Pipe.BRANCH)),
    (re.compile(r"ds_(?:b?permute|swizzle)"), Operation(Pipe.LDS, Role.CROSS_LANE)),
)  # fmt: skip
_VECTOR_ROLES = (
    (Role.CROSS_LANE, re.compile(r"v_(?:permlane|readlane|readfirstlane|writelane)|v_\w+_dpp8?$")),
    (Role.TRANSCENDENTAL, re.compile(r"v_(?:s_)?(?:exp|log|rcp|rsq|sqrt|sin|cos|tanh)_")),
    (Role.CONVERSION, re.compile(r"v_cvt_")),
    (Role.MOVE, re.compile(r"v_(?:pk_)?mov|v_accvgpr_|v_swap")),
    (Role.PACKED, re.compile(r"v_pk_")),
)


def _vector(mnemonic: str) -> Operation:
    if _MATRIX.match(mnemonic):
        return Operation(Pipe.MATRIX, flops=_matrix_flops(mnemonic))
    return Operation(Pipe.VECTOR, next((role for role, known in _VECTOR_ROLES if known.match(mnemonic)), Role.PLAIN))


_DOT = re.compile(r"v_(?:dual_)?dot(\d)c?_f\w*_(?:f|bf)\d")
_ARITHMETIC = re.compile(
    r"v_(?:dual_)?(pk_)?(?:s_)?(fma\w*?|mad\w*?|mac\w*?|div_fmas|add|sub|subrev|mul|exp|log|rcp|rsq|sqrt|sin|cos|tanh)"
    r"(?:_legacy|_dx9_zero|_iflag)?_b?f(?:16|32|64)(?=_|$)"
)
_FUSED = re.compile(r"fma|mad|mac|div_fmas")
_MATRIX = re.compile(r"v_(?:s?wmmac?|mfma|smfmac)_")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?")
# Several products in one instruction: gfx940 and later state the number ("_4b_"), before, these depths imply it.
_SEVERAL_PRODUCTS = re.compile(r"x(?:1f32|4f16|2bf16|4bf16_1k|4i8)$")
_PRODUCTS = {4: 16, 16: 4, 32: 2}  # number of rows -> products


def _matrix_flops(mnemonic: str) -> int:
    shape = _SHAPE.search(mnemonic)
    if not shape:
        return 0
    m, n, k = (int(shape[i]) for i in (1, 2, 3))
    if shape[4]:
        products = int(shape[4])
    elif mnemonic.endswith("4x4x4f64"):
        products = 4
    else:
        products = _PRODUCTS.get(m, 1) if _SEVERAL_PRODUCTS.search(mnemonic) else 1
    return 2 * m * n * k * products


_MEMORY = {
    "ds": Pipe.LDS, "global": Pipe.GLOBAL, "flat": Pipe.GLOBAL, "buffer": Pipe.GLOBAL, "tbuffer": Pipe.GLOBAL,
    "image": Pipe.GLOBAL, "scratch": Pipe.SCRATCH,
}  # fmt: skip
_LOAD, _STORE = re.compile(r"_(?:read|load)"), re.compile(r"_(?:write|store)")
_NO_ACCESS = re.compile(r"ds_(?:append|consume|gws|ordered)|\w+_(?:prefetch|sample|get)")


def _memory(unit: Pipe, mnemonic: str) -> Operation:
    if _NO_ACCESS.match(mnemonic):
        return Operation(unit)
    access = Access.LOAD if _LOAD.search(mnemonic) else Access.STORE if _STORE.search(mnemonic) else Access.ATOMIC
    return Operation(unit, access=access, width=_lane_bytes(mnemonic))


_DWORDS = re.compile(r"_dword(?:x(\d))?(?=_|$)")
_FORMAT = re.compile(r"_format_(d16_)?(?:hi_)?([xyzw]+)")
_TYPE = re.compile(r"_(?:bf|[buif])(8|16|32|64|96|128)(?=_|$)")
_TWO = re.compile(r"_(?:read|write)2|_2addr")


def _lane_bytes(mnemonic: str) -> int:
    if dwords := _DWORDS.search(mnemonic):
        return 4 * int(dwords[1] or 1)
    if form := _FORMAT.search(mnemonic):
        return len(form[2]) * (2 if form[1] or "_d16_" in mnemonic else 4)
    if bits := _TYPE.search(mnemonic):
        elements = 2 if _TWO.search(mnemonic) else 1
        return elements * max(int(bits[1]) // 8, 4 if "_pk_" in mnemonic else 1)
    if "byte" in mnemonic or "short" in mnemonic:
        return 1 if "byte" in mnemonic else 2
    return 8 if mnemonic.endswith("_x2") else 4 if "atomic" in mnemonic else 0
