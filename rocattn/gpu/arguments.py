"""Build kernel arguments from a problem's options, for all families of kernels.

Shapes and strides come from the plan's buffers; an array that a problem lacks is a null pointer (u64 0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rocattn.backend import length_problem
from rocattn.config import DTYPE_BYTES, AttentionConfig
from rocattn.dropout import factor, threshold
from rocattn.gpu.launch import Arg, Buffer, BufferArg, KernelLaunch, ScalarArg

if TYPE_CHECKING:
    from collections.abc import Iterable

KERNEL_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""The kernels' names for dtypes."""
FP8_TYPES = {"float8_e4m3fn": "e4m3fn", "float8_e4m3fnuz": "e4m3fnuz"}
"""The kernels' names for the 8-bit dtypes of q, k and v."""
MASK_KINDS = {"bool": 1, "float32": 2, "float16": 3, "bfloat16": 4}
"""The value of ``mask_kind`` for each mask dtype; 0 is no mask."""
MAX_GRID_YZ = 65535
"""Blocks along y and z of a grid: heads and batches."""
MAX_BLOCKS = 1 << 16
"""Blocks of a kernel that loops over its work: many times more than fit on any GPU at once, to balance the load."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A compilation of a kernel file.

    Attributes:
        kernel: The kernel's name, as in `KernelLaunch.kernel`.
        source: Its file below `kernel_root`.
        symbol: The function in the code object.
        defines: Compile-time macros.
    """

    kernel: str
    source: str
    symbol: str
    defines: dict[str, str | int]


def size_problem(config: AttentionConfig) -> str:
    """Return why a problem is too large for the kernels, whatever their tiles, or ""."""
    if max(config.batch, config.num_heads) > MAX_GRID_YZ:
        return f"a grid has at most {MAX_GRID_YZ} heads and as many batches"
    return length_problem(config)


def pointer(name: str, buffers: dict[str, Buffer]) -> Arg:
    """Return a buffer of the plan as an argument, or null if the plan has no such buffer."""
    return BufferArg(name) if name in buffers else ScalarArg(name, "u64", 0)


def i64(name: str, value: int) -> ScalarArg:
    """Return a 64-bit argument."""
    return ScalarArg(name, "i64", value)


def u32(name: str, value: int) -> ScalarArg:
    """Return a 32-bit argument."""
    return ScalarArg(name, "u32", value)


def bits32(name: str, value: int) -> ScalarArg:
    """Return a 32-bit argument that is not a count; `rocattn.gpu.plan` requires u32 counts to be below 2^31."""
    return ScalarArg(name, "i32", value - (value >> 31 << 32))


def f32(name: str, value: float) -> ScalarArg:
    """Return a float argument."""
    return ScalarArg(name, "f32", value)


def row_strides(name: str, buffers: dict[str, Buffer]) -> list[Arg]:
    """Return the strides of a [B, H, S, D] buffer with last stride 1: ``<name>_stride_b``, ``_h`` and ``_s``."""
    strides = buffers[name].strides
    return [i64(f"{name}_stride_{axis}", strides[position]) for position, axis in enumerate("bhs")]


def stride_problem(names: Iterable[str], rows: int, buffers: dict[str, Buffer]) -> str:
    """Return which [B, H, S, D] buffer has rows too far apart for a tile's 32-bit offsets, or "".

    Args:
        names: The buffers that are read in tiles.
        rows: Rows per tile.
        buffers: The plan's buffers.
    """
    for name in names:
        stride = buffers[name].strides[2]
        if abs(stride) * rows * DTYPE_BYTES.get(buffers[name].dtype, 1) >= 1 << 32:
            return f"{name} has rows {stride} elements apart: {rows} of them must span less than 4 GiB"
    return ""


def sequence_args(config: AttentionConfig, buffers: dict[str, Buffer], splits: int = 1) -> list[Arg]:
    """Return the trailing arguments of kernels for sequences of different lengths, if any."""
    varlen = config.varlen
    if varlen is None:
        return []
    factor, shift = division(varlen.page_size) if varlen.paged else (0, 0)
    table = buffers.get("block_table")
    return [
        *(pointer(name, buffers) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table")),
        u32("sequences", config.batch), u32("total_q", varlen.total_q),
        u32("table_width", 0 if table is None else table.strides[0]), u32("page_size", varlen.page_size),
        bits32("page_factor", factor), u32("page_shift", shift), u32("splits", splits),
    ]  # fmt: skip


def scale_args(config: AttentionConfig, buffers: dict[str, Buffer]) -> list[Arg]:
    """Return the trailing arguments of kernels for 8-bit K and V (and Q), if any."""
    if config.kv_dtype is None:
        return []
    names = ("q_scale", "k_scale", "v_scale")
    strides = [buffers[name].strides if name in buffers else (0, 0) for name in names]
    return [
        *(pointer(name, buffers) for name in names),
        *(u32(f"{name}_stride_{axis}", step[at]) for name, step in zip(names, strides, strict=True)
          for at, axis in enumerate("bh")),
    ]  # fmt: skip


def dropout_args(config: AttentionConfig, buffers: dict[str, Buffer]) -> list[Arg]:
    """Return the trailing arguments of kernels with dropout, if any."""
    if not config.dropout_p:
        return []
    below = bits32("drop_below", threshold(config.dropout_p))
    return [pointer("dropout_key", buffers), below, f32("keep_factor", factor(config.dropout_p))]


def dropping(variant: KernelVariant, config: AttentionConfig) -> KernelVariant:
    """Return the kernel variant with dropout arguments if the problem has dropout."""
    return replace(variant, defines=variant.defines | {"DROPOUT": 1}) if config.dropout_p else variant


def division(divisor: int) -> tuple[int, int]:
    """Return (factor, shift) with n // divisor == (2 n * factor >> 32) >> shift for n below 2^30, divisor up to 2^30.

    Source: Granlund and Montgomery 1994, "Division by Invariant Integers using Multiplication", theorem 4.2.
    """
    bits = max(1, (divisor - 1).bit_length())
    return -(-(1 << 30 + bits) // divisor), bits - 1


def mask_strides(buffers: dict[str, Buffer]) -> list[Arg]:
    """Return the mask's strides, 0 along broadcast axes (all axes without a mask)."""
    mask = buffers.get("mask")
    values = [0] * 4 if mask is None else [0 if n == 1 else s for n, s in zip(mask.shape, mask.strides, strict=True)]
    return [i64(f"mask_stride_{axis}", value) for axis, value in zip("bhqk", values, strict=True)]


def mask_kind(buffers: dict[str, Buffer]) -> ScalarArg:
    """Return the kind of the plan's mask."""
    return u32("mask_kind", MASK_KINDS[buffers["mask"].dtype] if "mask" in buffers else 0)


def window(config: AttentionConfig) -> list[Arg]:
    """Return the band including causal: narrower than the sequences, which fit in 32 bits, or open."""
    left, right = config.band or (-1, -1)
    return [ScalarArg("window_left", "i32", left), ScalarArg("window_right", "i32", right)]


def launch(
    variant: KernelVariant, blocks: int | tuple[int, int, int], threads: int, args: Iterable[Arg], *, slots: int = 0
) -> KernelLaunch:
    """Return a variant's launch on a grid of blocks along x, or along x, y and z; slots as in `KernelLaunch`."""
    return KernelLaunch(
        kernel=variant.kernel, source=variant.source, defines=variant.defines, symbol=variant.symbol,
        grid=(blocks, 1, 1) if isinstance(blocks, int) else blocks, block=(threads, 1, 1), args=tuple(args),
        slots=slots,
    )  # fmt: skip
