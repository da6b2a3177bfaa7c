"""Launches of the flash kernels: which kernel, which tiles, how many splits, and the arguments in order.

For sequences of different lengths the same kernels take packed rows and pages (kernels/include/rocattn/
flash_sequences.h): a prefill's grid covers the tiles of all sequences, a decode's the rows and splits of the longest.

A forward pass is one prefill kernel or, for few query rows and many keys and for chunks of a prompt that leave most of
the GPU idle, ``flash_decode`` on splits of the keys, followed by ``flash_decode_combine`` if there are several splits.
Nothing here has been measured on a GPU yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rocattn.backend import YES, Support
from rocattn.config import AttentionConfig
from rocattn.gpu.arch import blocks_a_unit, bytes_in_flight, default_compute_units, fp8_dtype, wave_size, xcds
from rocattn.gpu.arguments import (
    FP8_TYPES,
    KERNEL_TYPES,
    MAX_GRID_YZ,
    KernelVariant,
    dropout_args,
    dropping,
    f32,
    launch,
    mask_kind,
    mask_strides,
    pointer,
    row_strides,
    scale_args,
    sequence_args,
    size_problem,
    stride_problem,
    u32,
    window,
)
from rocattn.gpu.launch import Arg, Buffer, KernelLaunch, WorkspaceArg
from rocattn.gpu.tiles import (
    MAX_VALUE_DIM,
    FlashTile,
    column_step,
    decode_tile,
    flash_tile,
    is_narrow,
    largest_head_dim,
    lds_bytes,
    padded_head_dim,
    value_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

DECODE_ROWS = 128
"""Maximum query rows per KV head (Sq times the heads that share it) for the decode kernel: the rows of its largest
tile. The prefill kernels would read K and V once per query head."""
DECODE_QUERIES = 32
"""Maximum queries per head for the decode kernel: with more, the prefill kernels' tiles are at least half full."""
DECODE_KEYS = 512
"""Minimum number of keys for the decode kernel."""
MIN_SPLIT_KEYS = 128
"""Minimum keys per split. Starting and ending a block takes about as long as one key tile."""
PARTIAL_SHARE = 8
"""Minimum ratio of a block's K and V bytes to the bytes of its partial results, written and read."""
CHUNKS = 4
"""Minimum ratio of keys to queries at which a prefill's keys are split."""
OPTIONS_COST = 1.25
"""Cost of a key in the decode kernel, which has all options, in keys of a prefill kernel; an estimate."""
MAX_SPLITS = 1024
"""Maximum number of splits in `flash_decode_combine`."""
_COMBINE_WAVES = 4
_ROUNDS = 16  # candidate numbers of rounds, from the smallest
_BLOCK_COST, _COMBINE_COST = 32, 64  # in keys of a split; estimates, not measured
BUILT_HEAD_DIMS = (32, 64, 80, 96, 128, 256)
"""Head dimensions in `variants`; others are compiled on first use."""
LATENT_DIMS = (576, MAX_VALUE_DIM)
"""D and Dv of the decode kernel for multi-head latent attention (576, 512), also in `variants` for 128 rows."""
BUILT_SEQUENCES = {
    "flash_attention_causal": ("varlen", "paged", "small_pages"),
    "flash_attention_nocausal": ("varlen",),
    "flash_decode": ("paged", "small_pages"),
}
"""Kernel -> the kinds of `SEQUENCES` in `variants`: packed prompts, prompts and decode from a paged cache."""
BUILT_FP8 = ("flash_attention", "flash_decode", "flash_decode_paged")
BUILT_FP8_Q = ("flash_attention", "flash_decode")
"""Symbols with 8-bit K and V, and 8-bit Q if the target computes with it, in `variants`."""
_LOG2_E = math.log2(math.e)


def can_use_flash_attention(
    config: AttentionConfig, arch: str = "", buffers: dict[str, Buffer] | None = None
) -> Support:
    """Return whether the flash kernels compute this config, or why not.

    Args:
        config: The problem.
        arch: Target, without features; "" for any target with matrix units.
        buffers: As in `flash_launches`; None assumes that rows of k and v are close enough.
    """
    reason = ""
    if config.direction == "backward":
        reason = "these kernels compute the forward pass only"
    elif config.dtype not in KERNEL_TYPES:
        reason = f"flash kernels take {', '.join(KERNEL_TYPES)}, not {config.dtype}"
    elif max(config.head_dim, config.head_dim_v) > (most := largest_head_dim(arch or "gfx942", config.dtype)):
        dims = f"{config.head_dim} and {config.head_dim_v}"
        reason = (
            f"flash kernels take head dimensions up to {most} in {config.dtype}{f' on {arch}' * bool(arch)}, not {dims}"
        )
    elif not config.head_dim or not config.head_dim_v:
        reason = "flash kernels read column 0 for columns that are not there: head dimensions must be 1 or more"
    elif too_large := size_problem(config):
        reason = too_large
    elif buffers is not None:
        reason = stride_problem(("k", "v"), _tile(_parts(config)[0][1], arch).keys_per_tile, buffers)
    return Support(ok=False, reason=reason) if reason else YES


def select_kernel(config: AttentionConfig) -> str:
    """Return the prefill kernel for a config that `can_use_flash_attention` accepts."""
    plain = config.mask == "none" and config.softcap is None and not config.alibi and not config.sinks
    plain = plain and not config.dropout_p
    plain = plain and config.kv_dtype is None  # its scale is unknown before the launch
    # The plain kernels use q.k / scale: the scale must be positive and have a float32 reciprocal.
    if plain and 1e-30 < config.softmax_scale < 1e30:
        if config.band is None:
            return "flash_attention_nocausal"
        if config.band == (-1, 0):
            return "flash_attention_causal"
    return "flash_attention"


def uses_decode(config: AttentionConfig) -> bool:
    """Return whether a forward pass uses the decode kernel."""
    rows = _packed_rows(config)
    fits = config.num_kv_heads * -(-rows // 16) <= MAX_GRID_YZ and not config.dropout_p
    return 0 < rows <= DECODE_ROWS and config.seq_q <= DECODE_QUERIES and config.seq_k >= DECODE_KEYS and fits


def flash_launches(
    config: AttentionConfig, arch: str, buffers: dict[str, Buffer], compute_units: int | None = None
) -> tuple[KernelLaunch, ...]:
    """Return the launches of a forward pass, in order.

    Args:
        config: A problem that `can_use_flash_attention` accepts.
        arch: Target, without features.
        buffers: By name: q, k, v, out as [B, H or Hkv, S, D or Dv] views; lse, mask ([1 or B, 1 or H, 1 or Sq,
            1 or Sk]), alibi_slopes (contiguous [B, H]) and sinks ([H]) if present.
        compute_units: The device's; None for those of the architecture's largest product.
    """
    if not config.batch * config.num_heads * config.rows_q:
        return ()
    units = compute_units or default_compute_units(arch)
    launches: list[KernelLaunch] = []
    for first, part in _parts(config):
        # Each part of v's features recomputes the scores; the first one writes the LSE.
        own = {name: buffer for name, buffer in buffers.items() if first == 0 or name != "lse"}
        at = {"v": first * config.kv_itemsize, "out": first * config.itemsize}
        launches += [_at(launch, at) for launch in _launches(part, arch, own, units)]
    return tuple(launches)


def _parts(config: AttentionConfig) -> list[tuple[int, AttentionConfig]]:
    """Return (first feature of v, problem of the launch's features) for each launch; usually one."""
    return [(first, config.replace(head_dim_v=count)) for first, count in value_parts(config.head_dim_v)]


def _at(launch: KernelLaunch, offsets: dict[str, int]) -> KernelLaunch:
    """Return a launch with its buffers offset by some bytes."""
    args = (replace(arg, offset_bytes=offsets.get(arg.name, 0)) if arg.kind == "buffer" else arg for arg in launch.args)
    return replace(launch, args=tuple(args))


def _launches(config: AttentionConfig, arch: str, buffers: dict[str, Buffer], units: int) -> tuple[KernelLaunch, ...]:
    """Return the launches of a problem whose Dv fits in one launch."""
    if uses_decode(config):
        return _decode(config, arch, buffers, split_keys(config, arch, units))
    if (splits := split_prefill(config, arch, units)) is not None:
        return _decode(config, arch, buffers, splits)
    kernel = select_kernel(config)
    dims = _padded(config)
    tile = _tile(config, arch)
    args = _plain_args(config, buffers) if kernel != "flash_attention" else _option_args(config, buffers)
    args += sequence_args(config, buffers) + scale_args(config, buffers) + dropout_args(config, buffers)
    grid = (-(-config.seq_q // tile.rows), config.num_heads, config.batch)
    if config.varlen is not None:  # each sequence has its own whole tiles
        grid = (config.varlen.total_q // tile.rows + config.batch, config.num_heads, 1)
    variant = _on_dies(dropping(_variant(kernel, config, dims, tile), config), arch, units)
    return (launch(variant, grid, tile.waves * wave_size(arch), args),)


@dataclass(frozen=True, slots=True)
class KeySplits:
    """How a decode's keys are split.

    Attributes:
        count: Number of splits.
        first_key: First key of the first split.
        keys: Keys per split; the last may have fewer. first_key and keys are multiples of a key tile.
        slots: Blocks that fit on the GPU at once.
        cost: Duration of all rounds, in keys of a block.
    """

    count: int
    first_key: int
    keys: int
    slots: int
    cost: float


def split_keys(config: AttentionConfig, arch: str, compute_units: int) -> KeySplits:
    """Split the keys visible to any row of a decode, so that its blocks fill the GPU in whole rounds.

    Of the numbers of splits that fill 1, 2, ... rounds of the slots, it chooses the one whose rounds end first; a round
    takes a split's keys plus the fixed cost of a block.

    Args:
        config: A problem that `uses_decode`, or from `split_prefill`.
        arch: Target, without features.
        compute_units: The device's compute units.
    """
    tile = _decode_tile(config, arch)
    slots = _slots(config, arch, compute_units, tile)
    first, last = _seen_keys(config)
    first -= first % tile.keys_per_tile
    tiles = max(1, -(-(last + 1 - first) // tile.keys_per_tile))
    rows = min(tile.rows, _packed_rows(config))
    partial_bytes = 2 * 4 * rows * (config.head_dim_v + 2)
    least = max(
        MIN_SPLIT_KEYS, PARTIAL_SHARE * partial_bytes // ((config.head_dim + config.head_dim_v) * config.kv_itemsize)
    )
    most = max(1, min(MAX_SPLITS, tiles * tile.keys_per_tile // least))
    blocks = config.batch * config.num_kv_heads * _row_tiles(config, tile)
    rounds = -(-blocks // slots)
    best, ends = (1, tiles), math.inf
    for some in range(rounds, rounds + _ROUNDS):
        per_split = -(-tiles // min(most, some * slots // blocks))
        count = -(-tiles // per_split)
        end = -(-blocks * count // slots) * (per_split * tile.keys_per_tile + _BLOCK_COST) + _COMBINE_COST * (count > 1)
        if end < ends:
            best, ends = (count, per_split), end
    return KeySplits(best[0], first, best[1] * tile.keys_per_tile, slots, ends)


def split_prefill(config: AttentionConfig, arch: str, compute_units: int) -> KeySplits | None:
    """Split the keys of a prefill whose grid leaves more than half of the GPU idle: a chunk of a prompt, few heads.

    Returns:
        The splits, for the decode kernel and its combination; None if the prefill kernel takes less time.
    """
    fits = config.num_kv_heads * -(-_packed_rows(config) // 16) <= MAX_GRID_YZ and not config.dropout_p
    # A causal problem's splits are computed for all rows of the chunk.
    if not config.seq_q or config.seq_k < max(DECODE_KEYS, CHUNKS * config.seq_q) or not fits:
        return None
    tile = _tile(config, arch)
    blocks = config.batch * config.num_heads * -(-config.seq_q // tile.rows)
    if 2 * blocks > _slots(config, arch, compute_units, tile):
        return None
    splits = split_keys(config, arch, compute_units)
    first, last = _seen_keys(config)
    return splits if splits.count > 1 and OPTIONS_COST * splits.cost < last + 1 - first else None


def _slots(config: AttentionConfig, arch: str, compute_units: int, tile: FlashTile) -> int:
    """Return how many blocks of a tile fit on a GPU at once, limited by LDS and by the number that pays off."""
    d, dv = _padded(config)
    blocks = blocks_a_unit(arch, tile.waves, lds_bytes(tile, arch, d, dv, config.dtype))
    if tile.fragments:
        in_flight = tile.keys_per_tile * (d + dv) * config.kv_itemsize
        blocks = min(blocks, -(-bytes_in_flight(arch) // in_flight))
    return compute_units * blocks


def _seen_keys(config: AttentionConfig) -> tuple[int, int]:
    """Return the first and last key visible to any row of the band; none if last < first."""
    left, right = config.band or (-1, -1)
    diagonal = config.seq_k - config.seq_q  # row 0's
    first = 0 if left < 0 else max(0, diagonal - left)
    last = config.seq_k - 1 if right < 0 else min(config.seq_k - 1, config.seq_k - 1 + right)
    return min(first, config.seq_k - 1), last


def variants(arch: str) -> tuple[KernelVariant, ...]:
    """Return the compilations of the build grid: all kernels, all dtypes, and D = Dv in `BUILT_HEAD_DIMS`.

    Decode has up to 16 rows per KV head: its larger tiles are compiled on first use.
    """
    compilations = [_combine(dtype) for dtype in KERNEL_TYPES.values()]
    for name, dtype in KERNEL_TYPES.items():
        for dim in BUILT_HEAD_DIMS:
            for kernel in ("flash_attention", "flash_attention_causal", "flash_attention_nocausal", "flash_decode"):
                compilation = _built(arch, kernel, name, dim)
                compilations.append(compilation)
                if (dim, dtype) == (128, "f16"):  # one size represents kernels that differ only in where rows are
                    kinds = [
                        _of_sequences(_built(arch, kernel, name, dim, paged=kind != "varlen"), kind)
                        for kind in BUILT_SEQUENCES.get(kernel, ())
                    ]
                    compilations += kinds
                    if (stored := fp8_dtype(arch)) is not None:
                        small = [each for each in (compilation, *kinds) if each.symbol in BUILT_FP8]
                        compilations += [_of_fp8(each, stored) for each in small]
                        of_q = [each for each in small if each.symbol in BUILT_FP8_Q]
                        compilations += [_of_fp8(each, stored, of_q=True) for each in of_q]
        if largest_head_dim(arch, name) >= LATENT_DIMS[0]:
            tile = decode_tile(arch, *LATENT_DIMS, name, rows=DECODE_ROWS)
            compilations.append(_compiled("flash_decode", dtype, LATENT_DIMS, tile, 0))
    return tuple(compilations)


def _built(arch: str, kernel: str, dtype: str, dim: int, *, paged: bool = False) -> KernelVariant:
    """Return the compilation of a kernel for D = Dv = `dim`; see `flash_tile`."""
    if kernel == "flash_decode":
        return _compiled(kernel, KERNEL_TYPES[dtype], (dim, dim), decode_tile(arch, dim, dim, dtype), 0)
    tile = flash_tile(arch, dim, dim, dtype, options=kernel == "flash_attention", paged=paged)
    compiled = _compiled(kernel, KERNEL_TYPES[dtype], (dim, dim), tile, 0)
    return _on_dies(compiled, arch, default_compute_units(arch))


def _decode(
    config: AttentionConfig, arch: str, buffers: dict[str, Buffer], splits: KeySplits
) -> tuple[KernelLaunch, ...]:
    tile = _decode_tile(config, arch)
    rows = config.rows_q * config.num_heads
    partials: list[Arg] = [pointer(name, {}) for name in ("partial_out", "partial_ends")]
    if splits.count > 1:
        columns = -(-config.head_dim_v // 4) * 4
        partials = [
            WorkspaceArg("partial_out", splits.count * rows * columns * 4),
            WorkspaceArg("partial_ends", splits.count * rows * 2 * 4),  # reference and sum
        ]
    decode_args: list[Arg] = [
        *_pointers(("q", "k", "v"), buffers), *partials,
        *_pointers(("out", "lse", "mask", "alibi_slopes", "sinks"), buffers),
        *_strides(("q", "k", "v", "out"), buffers), *mask_strides(buffers), *_sizes(config), mask_kind(buffers),
        u32("first_key", splits.first_key), u32("keys_per_split", splits.keys), *_score_options(config),
        *sequence_args(config, buffers, splits.count), *scale_args(config, buffers),
    ]  # fmt: skip
    grid = (splits.count, config.num_kv_heads * _row_tiles(config, tile), config.batch)
    variant = _variant("flash_decode", config, _padded(config), tile)
    decode = launch(variant, grid, tile.waves * wave_size(arch), decode_args, slots=splits.slots)
    if splits.count == 1:
        return (decode,)
    # Packed rows count as one batch.
    seq_q, batch = (config.seq_q, config.batch) if config.varlen is None else (config.varlen.total_q, 1)
    lane_bits = (-(-config.head_dim_v // 4) - 1).bit_length()  # each lane of the combination has 4 features
    combine_args: list[Arg] = [
        *partials, *_pointers(("out", "lse", "sinks"), buffers), *_strides(("out",), buffers),
        u32("splits", splits.count), u32("seq_q", seq_q), u32("num_heads", config.num_heads),
        u32("head_dim_v", config.head_dim_v), u32("batch", batch), u32("lane_bits", lane_bits),
    ]  # fmt: skip
    blocks, threads = (seq_q, config.num_heads, batch), _COMBINE_WAVES * wave_size(arch)
    return decode, launch(_combine(KERNEL_TYPES[config.dtype]), blocks, threads, combine_args)


def _combine(dtype: str) -> KernelVariant:
    name = "flash_decode_combine"
    return KernelVariant(name, f"hip/{name}.hip", name, {"DTYPE": dtype})


def _packed_rows(config: AttentionConfig) -> int:
    """Return the query rows that share a KV head."""
    return config.num_heads // config.num_kv_heads * config.seq_q


def _row_tiles(config: AttentionConfig, tile: FlashTile) -> int:
    """Return the number of blocks for the packed rows of one KV head."""
    return -(-_packed_rows(config) // tile.rows)


def _padded(config: AttentionConfig) -> tuple[int, int]:
    narrow = is_narrow(_step(config), config.dtype)
    return padded_head_dim(config.head_dim, narrow=narrow), padded_head_dim(config.head_dim_v, narrow=narrow)


def _variant(kernel: str, config: AttentionConfig, dims: tuple[int, int], tile: FlashTile) -> KernelVariant:
    compiled = _compiled(kernel, KERNEL_TYPES[config.dtype], dims, tile, _step(config))
    if config.varlen is not None:
        compiled = _of_sequences(compiled, _sequences(config, tile))
    if config.kv_dtype is None:
        return compiled
    return _of_fp8(compiled, config.kv_dtype, of_q=config.q_dtype is not None)


SEQUENCES = {"varlen": 1, "paged": 2, "small_pages": 3}
"""Kernel-name suffix -> value of the SEQUENCES macro."""


def _sequences(config: AttentionConfig, tile: FlashTile) -> str:
    """Return the kind of `SEQUENCES` for a problem."""
    if config.varlen is None or not config.varlen.paged:
        return "varlen"
    return "small_pages" if config.varlen.page_size % tile.keys_per_tile else "paged"


def _of_sequences(variant: KernelVariant, kind: str) -> KernelVariant:
    """Return a kernel's compilation for sequences of different lengths."""
    name = f"{variant.symbol}_{kind}"
    return replace(variant, kernel=name, symbol=name, defines=variant.defines | {"SEQUENCES": SEQUENCES[kind]})


def _of_fp8(variant: KernelVariant, stored: str, *, of_q: bool = False) -> KernelVariant:
    """Return a kernel's compilation for 8-bit K and V, and possibly Q."""
    name = f"{variant.symbol}_fp8{'_q' * of_q}"
    defines = variant.defines | dict.fromkeys(("KV_DTYPE", "Q_DTYPE")[: 1 + of_q], FP8_TYPES[stored])
    return replace(variant, kernel=name, symbol=name, defines=defines)


def _step(config: AttentionConfig) -> int:
    return column_step(config.head_dim, config.head_dim_v, config.itemsize)


def _compiled(kernel: str, dtype: str, dims: tuple[int, int], tile: FlashTile, step: int) -> KernelVariant:
    defines = {"DTYPE": dtype, "HEAD_DIM": dims[0], "HEAD_DIM_V": dims[1], "COLUMN_STEP": step, **tile.defines()}
    return KernelVariant(kernel, f"hip/{kernel}.hip", kernel, defines)


def _on_dies(variant: KernelVariant, arch: str, compute_units: int) -> KernelVariant:
    """Return a prefill kernel that maps the blocks of a head to the same compute die, if the GPU has several."""
    dies = xcds(arch, compute_units)
    return replace(variant, defines=variant.defines | {"XCDS": dies}) if dies > 1 else variant


def _tile(config: AttentionConfig, arch: str) -> FlashTile:
    """Return the tile for a forward pass without splits."""
    if uses_decode(config):
        return _decode_tile(config, arch)
    step, options = _step(config), select_kernel(config) == "flash_attention"
    paged = config.varlen is not None and config.varlen.paged
    return flash_tile(arch, *_padded(config), config.dtype, step=step, options=options, paged=paged)


def _decode_tile(config: AttentionConfig, arch: str) -> FlashTile:
    return decode_tile(arch, *_padded(config), config.dtype, step=_step(config), rows=_packed_rows(config))


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
        u32("head_dim_v", config.head_dim_v), u32("batch", config.batch),
    ]  # fmt: skip


def _score_options(config: AttentionConfig) -> list[Arg]:
    return [*window(config), f32("scale", config.softmax_scale), f32("softcap", config.softcap or 0.0)]
