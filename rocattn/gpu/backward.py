"""The backward pass: three kernels, no atomics, the same bits in every run.

``attention_backward_preprocess`` computes delta = rowsum(dout * out); ``attention_backward_dkdv`` gives each block some
keys of one KV head and streams the queries that see them, of all heads of the group; ``attention_backward_dq`` gives
each block some queries and streams the keys that they see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocattn.errors import ConfigError
from rocattn.gpu.arch import wave_size
from rocattn.gpu.arguments import (
    KERNEL_TYPES,
    MAX_BLOCKS,
    Variant,
    f32,
    launch,
    mask_kind,
    mask_strides,
    pointer,
    row_strides,
    u32,
    window,
)
from rocattn.gpu.launch import WorkspaceArg
from rocattn.registry import YES, Support

if TYPE_CHECKING:
    from rocattn.config import AttentionConfig
    from rocattn.gpu.launch import Arg, Buffer, Launch

MAX_HEAD_DIM = 128
PREPROCESS_BLOCK = 256
PREPROCESS_ROWS = 32
"""Rows that a block of the preprocess kernel takes at a time."""


class Shape(NamedTuple):
    """How a block is made.

    Attributes:
        waves: Waves; each has 16 rows of its own (keys in dkdv, queries in dq).
        stream_rows: Rows of the other side in LDS at a time.
        resident_lds: Whether a block's own rows stay in LDS instead of registers.
    """

    waves: int
    stream_rows: int
    resident_lds: bool


def can_use_backward(config: AttentionConfig) -> Support:
    """Say whether the backward kernels compute this config."""
    if config.dtype not in KERNEL_TYPES:
        return Support(ok=False, reason=f"GPU kernels compute {', '.join(KERNEL_TYPES)}, not {config.dtype}")
    if max(config.head_dim, config.head_dim_v) > MAX_HEAD_DIM:
        return Support(ok=False, reason=f"backward kernels have head dimensions up to {MAX_HEAD_DIM}")
    return YES


def head_dims(arch: str, dtype: str) -> tuple[int, ...]:
    """Return the head dimensions that kernels are compiled for; others are padded with zeros to the next one.

    Not 96 on the vector units: its tiles do not divide among a wave's lanes, which costs more registers than 128 does.
    """
    return (32, 64, MAX_HEAD_DIM) if _vector_units(arch, dtype) else (32, 64, 96, MAX_HEAD_DIM)


def block_shape(kernel: str, arch: str, dtype: str, head_dim: int) -> Shape:
    """Return how a block of "dkdv" or "dq" is made.

    Registers decide: a wave keeps its sums (D floats for each of 16 rows, twice in dkdv) and, if there is room, its own
    rows, which else are read from LDS again for every product.

    Args:
        kernel: "dkdv" or "dq".
        arch: Target without features.
        dtype: "f16", "bf16" or "f32".
        head_dim: One of `head_dims`.
    """
    if _vector_units(arch, dtype):
        # A lane needs its row in full depth, so rows stay in LDS, as floats; at 128, 64 KiB hold this many.
        waves = 4 if head_dim <= 64 else 2 if kernel == "dq" else 1
        return Shape(waves, 16, resident_lds=True)
    if wave_size(arch) == 64:
        # 512 registers; a lane has a quarter of a row. 8 waves share a tile at 128, where LDS holds one block.
        return Shape(8 if head_dim > 64 else 4, 32, resident_lds=False)
    return Shape(4, 32 if head_dim <= 64 else 16, resident_lds=head_dim > 64)


def backward_launches(config: AttentionConfig, arch: str, buffers: dict[str, Buffer]) -> tuple[Launch, ...]:
    """Return the launches of the backward pass, in order; a size of 0 makes some grids empty.

    Args:
        config: A problem that `can_use_backward` accepts.
        arch: Target without features ("gfx1100").
        buffers: q, k, v, out, dout, dq, dk, dv ([B, H or Hkv, S, D or Dv] views with unit last stride), lse
            (contiguous) and, if the problem has them, mask and alibi_slopes. Sinks are in the LSE.

    Raises:
        ConfigError: When `can_use_backward` says no.
    """
    if not (answer := can_use_backward(config)):
        raise ConfigError(f"no GPU kernels for {config.label}: {answer.reason}")
    batch, heads, seq_q, seq_k = config.scores_shape
    rows, dtype = batch * heads * seq_q, KERNEL_TYPES[config.dtype]
    delta = WorkspaceArg("delta", rows * 4)
    widest = max(config.head_dim, config.head_dim_v)
    head_dim = next(each for each in head_dims(arch, dtype) if each >= widest)
    plain = config.head_dim == config.head_dim_v == head_dim and not (
        config.mask_shape or config.softcap or config.alibi
    )
    problem = [
        u32("seq_q", seq_q), u32("seq_k", seq_k), u32("num_heads", heads), u32("group", heads // config.num_kv_heads),
        u32("head_dim", config.head_dim), u32("head_dim_v", config.head_dim_v), mask_kind(buffers), *window(config),
        f32("scale", config.softmax_scale), f32("softcap", config.softcap or 0.0),
    ]  # fmt: skip
    blocks = min(MAX_BLOCKS, -(-rows // PREPROCESS_ROWS))
    made = [
        launch(
            _preprocess(dtype), blocks, PREPROCESS_BLOCK,
            [pointer("dout", buffers), pointer("out", buffers), delta, *row_strides("dout", buffers),
             *row_strides("out", buffers), u32("rows", rows), u32("seq_q", seq_q), u32("num_heads", heads),
             u32("head_dim_v", config.head_dim_v), u32("blocks", blocks)],
        )
    ]  # fmt: skip
    for kernel, results, count, over in (
        ("dkdv", ("dk", "dv"), seq_k, config.num_kv_heads),
        ("dq", ("dq",), seq_q, heads),
    ):
        shape = block_shape(kernel, arch, dtype, head_dim)
        args: list[Arg] = [*(pointer(name, buffers) for name in ("q", "k", "v", "dout", "lse")), delta]
        args += [pointer(name, buffers) for name in (*results, "mask", "alibi_slopes")]
        for name in ("q", "k", "v", "dout", *results):
            args += row_strides(name, buffers)
        grid = (-(-count // (16 * shape.waves)), over, batch)
        args += [*mask_strides(buffers), *problem]
        made.append(
            launch(_variant(kernel, arch, dtype, head_dim, plain=plain), grid, shape.waves * wave_size(arch), args)
        )
    return tuple(made)


def variants(arch: str) -> tuple[Variant, ...]:
    """Return every compilation that `backward_launches` can ask for on an architecture."""
    return tuple(
        each
        for dtype in KERNEL_TYPES.values()
        for each in (
            _preprocess(dtype),
            *(
                _variant(kernel, arch, dtype, head_dim, plain=plain)
                for kernel in ("dkdv", "dq")
                for head_dim in head_dims(arch, dtype)
                for plain in (True, False)
            ),
        )
    )


def _vector_units(arch: str, dtype: str) -> bool:
    return dtype == "f32" or arch.startswith("gfx10")


def _preprocess(dtype: str) -> Variant:
    name = "attention_backward_preprocess"
    return Variant(name, f"hip/{name}.hip", name, {"DTYPE": dtype})


def _variant(kernel: str, arch: str, dtype: str, head_dim: int, *, plain: bool) -> Variant:
    shape, name = block_shape(kernel, arch, dtype, head_dim), f"attention_backward_{kernel}"
    defines: dict[str, str | int] = {
        "DTYPE": dtype, "HEAD_DIM": head_dim, "WAVES": shape.waves, "STREAM_ROWS": shape.stream_rows,
        "RESIDENT_LDS": int(shape.resident_lds), "PLAIN_SCORES": int(plain),
    }  # fmt: skip
    return Variant(name, f"hip/{name}.hip", name, defines)
