"""The backward pass: five kernels without atomics, bitwise reproducible.

``attention_backward_preprocess`` computes delta = rowsum(dout * out). In ``attention_backward_dkdv`` each block owns
some keys of one KV head and streams the queries that see them, from all heads of the group; in
``attention_backward_dq`` each block owns some queries and streams the keys that they see. Both skip rows whose LSE is
too large to recompute probabilities from it in float32; ``attention_backward_large_dq`` and
``attention_backward_large_dkdv`` add those rows, and exit immediately if there are none.
"""

from __future__ import annotations

from typing import NamedTuple

from rocattn.backend import YES, Support
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.gpu.arch import family, wave_size
from rocattn.gpu.arguments import (
    KERNEL_TYPES,
    MAX_BLOCKS,
    KernelVariant,
    dropout_args,
    dropping,
    f32,
    launch,
    mask_kind,
    mask_strides,
    pointer,
    row_strides,
    stride_problem,
    u32,
    window,
)
from rocattn.gpu.launch import Arg, Buffer, KernelLaunch, WorkspaceArg

MAX_HEAD_DIM = 256
PREPROCESS_BLOCK = 256
PREPROCESS_ROWS = 32
"""Rows per block iteration of the preprocess kernel."""
LARGE_BLOCK = 256
LARGE_ROWS = 32
"""Queries per block of the large-row dq kernel; one word per block records whether it has large rows."""
LARGE_KEYS = 16
"""Keys per block of the large-row dkdv kernel."""
_STREAMED = {"dkdv": ("q", "dout"), "dq": ("k", "v")}
"""The buffers that a kernel reads in tiles, whose rows have 32-bit offsets."""


class Shape(NamedTuple):
    """The shape of a block.

    Attributes:
        waves: Waves per block.
        team: Waves that share some of the block's own rows (keys in dkdv, queries in dq), each with a part of the
            features.
        row_blocks: Blocks of 16 such rows per team, which is also how often each fragment of streamed rows read from
            LDS is used.
        stream_rows: Rows of the other side in LDS at a time.
        phased: Whether streamed rows are in LDS first as loaded, then transposed in the same space, not both at once.
        min_waves: Waves per SIMD that the registers must allow; 0 lets the compiler choose.
    """

    waves: int
    team: int
    row_blocks: int
    stream_rows: int
    phased: bool
    min_waves: int = 0

    @property
    def rows(self) -> int:
        """Rows that a block owns."""
        return 16 * self.row_blocks * self.waves // self.team


def can_use_backward(
    config: AttentionConfig, arch: str | None = None, buffers: dict[str, Buffer] | None = None
) -> Support:
    """Return whether the backward kernels compute this config, or why not.

    Args:
        config: The problem.
        arch: Target without features.
        buffers: As in `backward_launches`; without them and the target, rows are assumed to be close enough.
    """
    if config.dtype not in KERNEL_TYPES:
        return Support(ok=False, reason=f"GPU kernels compute {', '.join(KERNEL_TYPES)}, not {config.dtype}")
    if max(config.head_dim, config.head_dim_v) > MAX_HEAD_DIM:
        return Support(ok=False, reason=f"backward kernels have head dimensions up to {MAX_HEAD_DIM}")
    if arch is not None and buffers is not None:
        for kernel, streamed in _STREAMED.items():
            rows = block_shape(kernel, arch, KERNEL_TYPES[config.dtype], _padded(config, arch), plain=False).stream_rows
            if reason := stride_problem(streamed, rows, buffers):
                return Support(ok=False, reason=reason)
    return YES


def head_dims(arch: str, dtype: str) -> tuple[int, ...]:
    """Return the compiled head dimensions; others are padded with zeros to the next one.

    On vector units these are only powers of two: other tiles do not divide evenly among a wave's lanes, which costs
    more registers than padding.
    """
    return (32, 64, 128, MAX_HEAD_DIM) if _vector_units(arch, dtype) else (32, 64, 96, 128, 192, MAX_HEAD_DIM)


def block_shape(kernel: str, arch: str, dtype: str, head_dim: int, *, plain: bool) -> Shape:
    """Return the block shape of "dkdv" or "dq".

    Registers are the limit: a wave keeps its own rows and their sums (two matrices each in dkdv), each as wide as its
    part of the features.

    Args:
        kernel: "dkdv" or "dq".
        arch: Target without features.
        dtype: "f16", "bf16" or "f32".
        head_dim: One of `head_dims`.
        plain: Whether scores have no options, which need registers for each row.
    """
    if _vector_units(arch, dtype):
        # 32 features per wave: a lane has its row of both matrices in full depth, 64 registers.
        return Shape(4 if head_dim == 32 else 8, head_dim // 32, 1, 16, phased=head_dim > 32)
    if wave_size(arch) == 64:
        # A lane has a quarter of a row. 8 waves share a tile, but the sums of dkdv at 256 need the registers of two.
        # Above 128, LDS fits 32 streamed rows, the minimum for the chained product, in one form at a time.
        waves = 4 if head_dim <= 64 or (kernel == "dkdv" and head_dim > 192) else 8
        return Shape(
            waves,
            1,
            _row_blocks(kernel, arch, dtype, head_dim, plain=plain),
            32,
            phased=head_dim > 128 and arch != "gfx950",
        )
    if head_dim <= 64:
        # On gfx12 32 queries fit: their operands take half the registers of gfx11; there 16 rows in LDS leave room.
        gfx12 = family(arch, "float16") == "gfx12"
        return Shape(4, 1, 2 if gfx12 and kernel == "dq" else 1, 32 if gfx12 or kernel == "dq" else 16, phased=False)
    # At most 64 features per wave; 16 rows keep LDS small enough for 3 blocks per WGP, which is 6 waves per SIMD.
    # Both forms at once would take registers that gfx11's options need at 128.
    fits = head_dim < 128 or (head_dim == 128 and (plain or kernel == "dq" or not arch.startswith("gfx11")))
    return Shape(8, 2 if head_dim <= 128 else 4, 1, 16, phased=not fits, min_waves=6)


def _row_blocks(kernel: str, arch: str, dtype: str, head_dim: int, *, plain: bool) -> int:
    """Return how many blocks of 16 rows a CDNA wave has for 16-bit dtypes.

    Two or three blocks divide the LDS reads per product by that number, and take registers: 3 D / 4 for dkdv, D / 2 for
    dq, of 256.
    """
    if kernel == "dq":
        return 2 if head_dim <= 128 else 1
    if head_dim <= 64:
        return 3 if plain else 2
    # Options take registers for each row, as does gfx90a's scaling of f16; gfx950's fragments are wider.
    most = 128 if plain and arch != "gfx950" else 96
    if (arch, dtype) == ("gfx90a", "f16"):
        most = 96 if plain else 64
    return 2 if head_dim <= most else 1


def backward_launches(config: AttentionConfig, arch: str, buffers: dict[str, Buffer]) -> tuple[KernelLaunch, ...]:
    """Return the launches of the backward pass, in order; a size of 0 makes some grids empty.

    Args:
        config: A problem that `can_use_backward` accepts.
        arch: Target without features ("gfx1100").
        buffers: q, k, v, out, dout, dq, dk, dv ([B, H or Hkv, S, D or Dv] views with unit last stride), lse
            (contiguous) and, if the problem has them, mask, alibi_slopes and sinks.

    Raises:
        ConfigError: When `can_use_backward` says no.
    """
    if not (answer := can_use_backward(config, arch, buffers)):
        raise ConfigError(f"no GPU kernels for {config.label}: {answer.reason}")
    batch, heads, seq_q, seq_k = config.scores_shape
    rows, dtype = batch * heads * seq_q, KERNEL_TYPES[config.dtype]
    delta = WorkspaceArg("delta", rows * 4)
    groups = -(-seq_q // LARGE_ROWS)
    ends = WorkspaceArg("ends", rows * 2 * 4)  # for large rows: largest score and 1 / sum
    some = WorkspaceArg("some", batch * heads * groups * 4)
    head_dim = _padded(config, arch)
    plain = config.head_dim == config.head_dim_v == head_dim and not (
        config.mask_shape or config.softcap or config.alibi or config.dropout_p
    )
    problem = [
        u32("seq_q", seq_q), u32("seq_k", seq_k), u32("num_heads", heads), u32("group", heads // config.num_kv_heads),
        u32("head_dim", config.head_dim), u32("head_dim_v", config.head_dim_v), mask_kind(buffers), *window(config),
        f32("scale", config.softmax_scale), f32("softcap", config.softcap or 0.0),
        *dropout_args(config, buffers),
    ]  # fmt: skip
    blocks = min(MAX_BLOCKS, -(-rows // PREPROCESS_ROWS))
    launches = [
        launch(
            _simple("preprocess", dtype), blocks, PREPROCESS_BLOCK,
            [pointer("dout", buffers), pointer("out", buffers), delta, *row_strides("dout", buffers),
             *row_strides("out", buffers), u32("rows", rows), u32("seq_q", seq_q), u32("num_heads", heads),
             u32("head_dim_v", config.head_dim_v), u32("blocks", blocks)],
        )
    ]  # fmt: skip
    for kernel, results, count, over in (
        ("dkdv", ("dk", "dv"), seq_k, config.num_kv_heads),
        ("dq", ("dq",), seq_q, heads),
    ):
        shape = block_shape(kernel, arch, dtype, head_dim, plain=plain)
        args: list[Arg] = [*(pointer(name, buffers) for name in ("q", "k", "v", "dout", "lse")), delta]
        args += [pointer(name, buffers) for name in (*results, "mask", "alibi_slopes")]
        for name in ("q", "k", "v", "dout", *results):
            args += row_strides(name, buffers)
        grid = (-(-count // shape.rows), over, batch)
        args += [*mask_strides(buffers), *problem]
        launches.append(
            launch(
                dropping(_variant(kernel, arch, dtype, head_dim, plain=plain), config),
                grid,
                shape.waves * wave_size(arch),
                args,
            )
        )
    for kernel, results, options, grid in (
        ("large_dq", ("dq",), ("mask", "alibi_slopes", "sinks"), (groups, heads, batch)),
        ("large_dkdv", ("dk", "dv"), ("mask", "alibi_slopes"), (-(-seq_k // LARGE_KEYS), config.num_kv_heads, batch)),
    ):
        args = [*(pointer(name, buffers) for name in ("q", "k", "v", "dout", "lse")), delta, ends, some]
        args += [pointer(name, buffers) for name in (*results, *options)]
        for name in ("q", "k", "v", "dout", *results):
            args += row_strides(name, buffers)
        args += [*mask_strides(buffers), *problem]
        launches.append(launch(dropping(_simple(kernel, dtype), config), grid, LARGE_BLOCK, args))
    return tuple(launches)


def variants(arch: str) -> tuple[KernelVariant, ...]:
    """Return every compilation that `backward_launches` can request for an architecture."""
    return tuple(
        each
        for dtype in KERNEL_TYPES.values()
        for each in (
            *(_simple(kernel, dtype) for kernel in ("preprocess", "large_dq", "large_dkdv")),
            *(
                _variant(kernel, arch, dtype, head_dim, plain=plain)
                for kernel in ("dkdv", "dq")
                for head_dim in head_dims(arch, dtype)
                for plain in (True, False)
            ),
        )
    )


def _padded(config: AttentionConfig, arch: str) -> int:
    """Return the compiled head dimension, shared by D and Dv."""
    widest = max(config.head_dim, config.head_dim_v)
    return next(each for each in head_dims(arch, KERNEL_TYPES[config.dtype]) if each >= widest)


def _vector_units(arch: str, dtype: str) -> bool:
    return dtype == "f32" or arch.startswith("gfx10")


def _simple(kernel: str, dtype: str) -> KernelVariant:
    """Return a kernel that takes all but the dtype as arguments."""
    name = f"attention_backward_{kernel}"
    return KernelVariant(name, f"hip/{name}.hip", name, {"DTYPE": dtype})


def _variant(kernel: str, arch: str, dtype: str, head_dim: int, *, plain: bool) -> KernelVariant:
    shape, name = block_shape(kernel, arch, dtype, head_dim, plain=plain), f"attention_backward_{kernel}"
    defines: dict[str, str | int] = {
        "DTYPE": dtype, "HEAD_DIM": head_dim, "WAVES": shape.waves, "TEAM_WAVES": shape.team,
        "ROW_BLOCKS": shape.row_blocks,
        "STREAM_ROWS": shape.stream_rows, "TWO_PHASES": int(shape.phased), "PLAIN_SCORES": int(plain),
    }  # fmt: skip
    # With options, bfloat16 at 256 would spill 3 registers.
    if shape.min_waves and (plain or head_dim < MAX_HEAD_DIM):
        defines["MIN_WAVES"] = shape.min_waves
    return KernelVariant(name, f"hip/{name}.hip", name, defines)
