"""Launches of the flash kernels: which kernel, which tiles, how many splits, and the arguments in order.

A forward pass is one prefill kernel or, for few query rows and many keys, ``flash_decode`` on splits of the keys
followed by ``flash_decode_combine``. Nothing here was measured on a GPU yet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rocattn.backend import YES, Support
from rocattn.gpu.arch import wave_size
from rocattn.gpu.arguments import (
    KERNEL_TYPES,
    MAX_GRID_YZ,
    KernelVariant,
    f32,
    launch,
    mask_kind,
    mask_strides,
    pointer,
    row_strides,
    size_problem,
    stride_problem,
    u32,
    window,
)
from rocattn.gpu.launch import WorkspaceArg
from rocattn.gpu.tiles import FlashTile, column_step, decode_tile, flash_tile, is_narrow, padded_head_dim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn.config import AttentionConfig
    from rocattn.gpu.launch import Arg, Buffer, KernelLaunch

MAX_HEAD_DIM = 256
DECODE_ROWS = 32
"""Query rows of a KV head (Sq times the heads that share it) up to which the decode kernel is taken: two of its tiles.
The prefill kernels would compute 64 rows and more and read K and V once for each of the heads."""
DECODE_KEYS = 512
"""Keys from which on it is taken: enough for two splits."""
MIN_SPLIT_KEYS = 256
"""Keys of a split at least: each one writes its rows in float32 and has them read again, which is 6 % of the traffic
of 256 keys at D = 128 in 16 bits."""
DECODE_BLOCKS = 768
"""Blocks, one wave each, that a decode grid should have: 8 for each compute unit of a 96-unit GPU, 2 to 3 on 304."""
BUILT_HEAD_DIMS = (32, 64, 80, 96, 128, 256)
"""Head dimensions that `variants` lists; others are compiled when they are first used."""
_LOG2_E = math.log2(math.e)


def can_use_flash_attention(config: AttentionConfig, arch: str, buffers: dict[str, Buffer] | None = None) -> Support:
    """Say whether the flash kernels compute this config, or why not.

    Args:
        config: The problem.
        arch: Target, without features.
        buffers: As `flash_launches` takes them; None: rows of k and v are taken to lie close enough.
    """
    reason = ""
    if config.direction == "backward":
        reason = "these are the kernels of the forward pass"
    elif config.dtype not in KERNEL_TYPES:
        reason = f"flash kernels take {', '.join(KERNEL_TYPES)}, not {config.dtype}"
    elif max(config.head_dim, config.head_dim_v) > MAX_HEAD_DIM:
        reason = (
            f"flash kernels take head dimensions up to {MAX_HEAD_DIM}, not {config.head_dim} and {config.head_dim_v}"
        )
    elif not config.head_dim or not config.head_dim_v:
        reason = "flash kernels read column 0 for columns that are not there: head dimensions must be 1 or more"
    elif too_large := size_problem(config):
        reason = too_large
    elif buffers is not None:
        reason = stride_problem(("k", "v"), _tile(config, arch).keys_per_tile, buffers)
    return Support(ok=False, reason=reason) if reason else YES


def select_kernel(config: AttentionConfig) -> str:
    """Return the kernel of the prefill for a config that `can_use_flash_attention` accepts."""
    plain = config.mask == "none" and config.softcap is None and not config.alibi and not config.sinks
    # The plain kernels work on q.k / scale: the scale must be positive and have a float32 reciprocal.
    if plain and 1e-30 < config.softmax_scale < 1e30:
        if config.band is None:
            return "flash_attention_nocausal"
        if config.band == (-1, 0):
            return "flash_attention_causal"
    return "flash_attention"


def uses_decode(config: AttentionConfig) -> bool:
    """Say whether a forward pass takes the decode kernel."""
    rows = config.num_heads // config.num_kv_heads * config.seq_q
    fits = config.num_kv_heads * _row_tiles(config) <= MAX_GRID_YZ
    return 0 < rows <= DECODE_ROWS and config.seq_k >= DECODE_KEYS and fits


def flash_launches(config: AttentionConfig, arch: str, buffers: dict[str, Buffer]) -> tuple[KernelLaunch, ...]:
    """Return the launches of a forward pass, in order.

    Args:
        config: A problem that `can_use_flash_attention` accepts.
        arch: Target, without features.
        buffers: By name: q, k, v, out as [B, H or Hkv, S, D or Dv] views; lse, mask ([1 or B, 1 or H, 1 or Sq,
            1 or Sk]), alibi_slopes (contiguous [B, H]) and sinks ([H]) where there are any.
    """
    if not config.batch * config.num_heads * config.seq_q:
        return ()
    if uses_decode(config):
        return _decode(config, arch, buffers)
    kernel = select_kernel(config)
    dims = _padded(config)
    tile = _tile(config, arch)
    args = _plain_args(config, buffers) if kernel != "flash_attention" else _option_args(config, buffers)
    grid = (-(-config.seq_q // tile.rows), config.num_heads, config.batch)
    return (launch(_variant(kernel, config, dims, tile), grid, tile.waves * wave_size(arch), args),)


def splits_of(config: AttentionConfig, keys_per_tile: int) -> tuple[int, int]:
    """Return how many splits the keys of a decode have, and the keys of each (the last may have fewer).

    As many as fill the GPU (`DECODE_BLOCKS`), each of at least `MIN_SPLIT_KEYS` keys and of whole key tiles.
    """
    blocks = config.batch * config.num_kv_heads * _row_tiles(config)
    wanted = max(1, min(-(-DECODE_BLOCKS // blocks), config.seq_k // MIN_SPLIT_KEYS))
    keys = -(-config.seq_k // wanted)
    keys = -(-keys // keys_per_tile) * keys_per_tile
    return -(-config.seq_k // keys), keys


def variants(arch: str) -> tuple[KernelVariant, ...]:
    """Return the compilations of the build grid: all kernels, the dtypes, and D = Dv in `BUILT_HEAD_DIMS`."""
    compilations = [
        KernelVariant("flash_decode_combine", "hip/flash_decode_combine.hip", "flash_decode_combine", {"DTYPE": dtype})
        for dtype in KERNEL_TYPES.values()
    ]
    for name, dtype in KERNEL_TYPES.items():
        for dim in BUILT_HEAD_DIMS:
            for kernel in ("flash_attention", "flash_attention_causal", "flash_attention_nocausal", "flash_decode"):
                tile = (
                    decode_tile(arch, dim, dim, name)
                    if kernel == "flash_decode"
                    else flash_tile(arch, dim, dim, name, options=kernel == "flash_attention")
                )
                compilations.append(_compiled(kernel, dtype, (dim, dim), tile, 0))
    return tuple(compilations)


def _decode(config: AttentionConfig, arch: str, buffers: dict[str, Buffer]) -> tuple[KernelLaunch, ...]:
    dims = _padded(config)
    tile = _tile(config, arch)
    splits, keys = splits_of(config, tile.keys_per_tile)
    rows = config.batch * config.num_heads * config.seq_q
    partial_out = WorkspaceArg("partial_out", splits * rows * config.head_dim_v * 4)
    partial_ends = WorkspaceArg("partial_ends", splits * rows * 2 * 4)  # reference and sum
    batch = u32("batch", config.batch)
    decode_args: list[Arg] = [
        *_pointers(("q", "k", "v"), buffers), partial_out, partial_ends, *_pointers(("mask", "alibi_slopes"), buffers),
        *_strides(("q", "k", "v"), buffers), *mask_strides(buffers), *_sizes(config), mask_kind(buffers),
        u32("keys_per_split", keys), batch, *_score_options(config),
    ]  # fmt: skip
    combine_args: list[Arg] = [
        partial_out, partial_ends, *_pointers(("out", "lse", "sinks"), buffers), *_strides(("out",), buffers),
        u32("splits", splits), u32("seq_q", config.seq_q), u32("num_heads", config.num_heads),
        u32("head_dim_v", config.head_dim_v), batch,
    ]  # fmt: skip
    name = "flash_decode_combine"
    combine = KernelVariant(name, f"hip/{name}.hip", name, {"DTYPE": KERNEL_TYPES[config.dtype]})
    grid = (splits, config.num_kv_heads * _row_tiles(config), config.batch)
    return (
        launch(_variant("flash_decode", config, dims, tile), grid, wave_size(arch), decode_args),
        launch(combine, (config.seq_q, config.num_heads, config.batch), wave_size(arch), combine_args),
    )


def _row_tiles(config: AttentionConfig) -> int:
    """Return the 16-row tiles that the packed rows of one KV head take."""
    return -(-(config.num_heads // config.num_kv_heads * config.seq_q) // 16)


def _padded(config: AttentionConfig) -> tuple[int, int]:
    narrow = is_narrow(_step(config), config.dtype)
    return padded_head_dim(config.head_dim, narrow=narrow), padded_head_dim(config.head_dim_v, narrow=narrow)


def _variant(kernel: str, config: AttentionConfig, dims: tuple[int, int], tile: FlashTile) -> KernelVariant:
    return _compiled(kernel, KERNEL_TYPES[config.dtype], dims, tile, _step(config))


def _step(config: AttentionConfig) -> int:
    return column_step(config.head_dim, config.head_dim_v, config.itemsize)


def _compiled(kernel: str, dtype: str, dims: tuple[int, int], tile: FlashTile, step: int) -> KernelVariant:
    defines = {"DTYPE": dtype, "HEAD_DIM": dims[0], "HEAD_DIM_V": dims[1], "COLUMN_STEP": step, **tile.defines()}
    return KernelVariant(kernel, f"hip/{kernel}.hip", kernel, defines)


def _tile(config: AttentionConfig, arch: str) -> FlashTile:
    """Return the tile of a forward pass."""
    dims, step = _padded(config), _step(config)
    if uses_decode(config):
        return decode_tile(arch, *dims, config.dtype, step=step)
    return flash_tile(arch, *dims, config.dtype, step=step, options=select_kernel(config) == "flash_attention")


def _plain_args(config: AttentionConfig, buffers: dict[str, Buffer]) -> list[Arg]:
    return [
        *_pointers(("q", "k", "v", "out", "lse"), buffers), *_strides(("q", "k", "v", "out"), buffers), *_sizes(config),
        f32("scale_log2", config.softmax_scale * _LOG2_E),
    ]  # fmt: skip


def _option_args(config: AttentionConfig, buffers: dict[str, Buffer]) -> list[Arg]:
    return [
        *_pointers(("q", "k", "v", "out", "lse", "mask", "alibi_slopes", "sinks"), buffers),
        *_strides(("q", "k", "v", "out"), buffers), *mask_strides(buffers), *_sizes(config), mask_kind(buffers),
        *_score_options(config),
    ]  # fmt: skip


def _pointers(names: Iterable[str], buffers: dict[str, Buffer]) -> list[Arg]:
    return [pointer(name, buffers) for name in names]


def _strides(names: Iterable[str], buffers: dict[str, Buffer]) -> list[Arg]:
    return [stride for name in names for stride in row_strides(name, buffers)]


def _sizes(config: AttentionConfig) -> list[Arg]:
    return [
        u32("seq_q", config.seq_q), u32("seq_k", config.seq_k), u32("num_heads", config.num_heads),
        u32("group", config.num_heads // config.num_kv_heads), u32("head_dim", config.head_dim),
        u32("head_dim_v", config.head_dim_v),
    ]  # fmt: skip


def _score_options(config: AttentionConfig) -> list[Arg]:
    return [*window(config), f32("scale", config.softmax_scale), f32("softcap", config.softcap or 0.0)]
