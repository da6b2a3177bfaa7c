"""The standard path: five kernels with the score matrix in memory, for everything the flash kernels do not support.

``qk_matmul`` writes the products q.k in float32 [B, H, Sq, Sk], ``scale`` and ``mask`` modify them in place,
``softmax`` turns them into probabilities of the inputs' dtype (in place for float32), ``pv_matmul`` multiplies them by
V. All five always run, whatever the options, since fused kernels are compared with this path. Nothing is skipped; a
causal problem costs as much as a full one.
"""

from __future__ import annotations

from rocattn.config import AttentionConfig
from rocattn.gpu.arch import wave_size
from rocattn.gpu.arguments import (
    KERNEL_TYPES,
    MAX_BLOCKS,
    KernelVariant,
    f32,
    i64,
    launch,
    mask_kind,
    mask_strides,
    pointer,
    row_strides,
    u32,
    window,
)
from rocattn.gpu.launch import Buffer, KernelLaunch, WorkspaceArg

TILE = 64
"""MATMUL_TILE of kernels/include/rocattn/matmul.h."""
BLOCK = 256
"""Threads of ``scale`` and ``mask``."""
SOFTMAX_BLOCKS = (64, 256)
SOFTMAX_ITEMS = 16
"""Scores of a row that a thread of ``softmax`` keeps in registers: 64 threads suffice for rows of up to 1024."""


def workspace_bytes(config: AttentionConfig) -> dict[str, int]:
    """Return the device memory the path needs in addition to inputs and outputs, by workspace name."""
    count = config.batch * config.num_heads * config.seq_q * config.seq_k
    scores = {"scores": count * 4}
    return scores if config.dtype == "float32" else scores | {"probs": count * config.itemsize}


def standard_launches(config: AttentionConfig, arch: str, buffers: dict[str, Buffer]) -> tuple[KernelLaunch, ...]:
    """Return the launches of the standard path, in order; a size of 0 makes some grids empty.

    Args:
        config: A forward problem in one of `KERNEL_TYPES`: any options, any sizes.
        arch: Target without features ("gfx1100").
        buffers: q, k, v, out and, if present, lse, mask, alibi_slopes, sinks. q, k, v and out are
            [B, H or Hkv, S, D or Dv] views with unit last stride; lse is contiguous.
    """
    batch, heads, seq_q, seq_k = config.scores_shape
    rows, tiles_q, tiles_k = batch * heads * seq_q, -(-seq_q // TILE), -(-seq_k // TILE)
    scale_blocks = min(MAX_BLOCKS, -(-rows * seq_k // (4 * BLOCK)))
    # A wave of ``mask`` processes eight vectors of four columns per lane.
    mask_items = rows * -(-seq_k // (8 * 4 * wave_size(arch)))
    mask_blocks = min(MAX_BLOCKS, -(-mask_items // (BLOCK // wave_size(arch))))
    softmax_blocks = min(MAX_BLOCKS, rows)
    sizes = workspace_bytes(config)
    scores = WorkspaceArg("scores", sizes["scores"])
    probs = WorkspaceArg("probs", sizes["probs"]) if "probs" in sizes else scores
    variant = {each.kernel: each for each in _variants(KERNEL_TYPES[config.dtype], _softmax_block(seq_k))}
    matmul_threads, softmax_threads = 4 * wave_size(arch), _softmax_block(seq_k)
    problem = [
        u32("seq_q", seq_q), u32("seq_k", seq_k), u32("num_heads", heads),
        u32("group", heads // config.num_kv_heads),
    ]  # fmt: skip
    return (
        launch(
            variant["qk_matmul"], tiles_k * tiles_q * heads * batch, matmul_threads,
            [pointer("q", buffers), pointer("k", buffers), scores, *row_strides("q", buffers),
             *row_strides("k", buffers), *problem, u32("head_dim", config.head_dim)],
        ),
        launch(
            variant["scale"], scale_blocks, BLOCK,
            [scores, i64("count", rows * seq_k), f32("scale", config.softmax_scale),
             f32("softcap", config.softcap or 0.0), u32("blocks", scale_blocks)],
        ),
        launch(
            variant["mask"], mask_blocks, BLOCK,
            [scores, pointer("mask", buffers), pointer("alibi_slopes", buffers), *mask_strides(buffers),
             u32("rows", rows), *problem[:3], mask_kind(buffers), *window(config), u32("blocks", mask_blocks)],
        ),
        launch(
            variant["softmax"], softmax_blocks, softmax_threads,
            [scores, probs, pointer("lse", buffers), pointer("sinks", buffers), i64("in_stride", seq_k),
             i64("out_stride", seq_k), u32("rows", rows), u32("columns", seq_k), u32("seq_q", seq_q),
             u32("num_heads", heads), u32("blocks", softmax_blocks)],
        ),
        launch(
            variant["pv_matmul"], -(-config.head_dim_v // TILE) * tiles_q * heads * batch, matmul_threads,
            [probs, pointer("v", buffers), pointer("out", buffers), *row_strides("v", buffers),
             *row_strides("out", buffers), *problem, u32("head_dim_v", config.head_dim_v)],
        ),
    )  # fmt: skip


def variants(arch: str) -> tuple[KernelVariant, ...]:  # noqa: ARG001 - the same for every target
    """Return every compilation that `standard_launches` can request for an architecture."""
    compilations = {}
    for dtype in KERNEL_TYPES.values():
        for block in SOFTMAX_BLOCKS:
            for each in _variants(dtype, block):
                compilations[each.kernel, *sorted(each.defines.items())] = each
    return tuple(compilations.values())


def _softmax_block(seq_k: int) -> int:
    return next((block for block in SOFTMAX_BLOCKS if seq_k <= block * SOFTMAX_ITEMS), SOFTMAX_BLOCKS[-1])


def _variants(dtype: str, softmax_block: int) -> tuple[KernelVariant, ...]:
    softmax: dict[str, str | int] = {"IN_DTYPE": "f32", "OUT_DTYPE": dtype, "BLOCK": softmax_block}
    return (
        KernelVariant("qk_matmul", "hip/qk_matmul.hip", "qk_matmul", {"DTYPE": dtype}),
        KernelVariant("scale", "hip/scale.hip", "scale_scores", {}),
        KernelVariant("mask", "hip/mask.hip", "mask_scores", {}),
        KernelVariant("softmax", "hip/softmax.hip", "softmax_rows", softmax),
        KernelVariant("pv_matmul", "hip/pv_matmul.hip", "pv_matmul", {"DTYPE": dtype}),
    )
