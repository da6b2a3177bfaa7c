"""Tile sizes and wave counts of the flash kernels, with the reason for each choice.

Nothing here has been measured on a GPU yet: the choices follow from registers, LDS and instruction counts of the
compiled kernels (`tests/kernels/test_flash_code_objects.py` checks their budgets) and from other projects' choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rocattn.config import DTYPE_BYTES
from rocattn.gpu.arch import Family, family

_MOST_DECODE_WAVES = 8
_BLOCK_LDS_BYTES = 64 << 10
PADDED_HEAD_DIMS = (32, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 576)
MAX_VALUE_DIM = 256
"""Maximum features of v per kernel: their O takes half of a wave's registers; more are computed in parts."""


@dataclass(frozen=True, slots=True)
class FlashTile:
    """How a flash kernel divides its work.

    Attributes:
        waves: Waves per block; each has its own query rows and all share the K and V tiles in LDS.
        query_fragments: Fragments of 16 query rows per wave.
        keys_per_tile: Keys per K and V tile in LDS.
        q_in_lds: Whether Q stays in LDS instead of registers.
        slices: Slices of columns in which a tile is loaded: 1 loads the next tile ahead, into registers; more load
            when needed.
        min_waves: Waves per SIMD that the registers must allow; 0 lets the compiler choose.
        reason: The reason for the choice.
        key_parts: Parts of a tile's keys: a part's softmax overlaps with the next part's products.
        fragments: Whether K and V are loaded as matrix fragments, not through LDS.
    """

    waves: int
    query_fragments: int
    keys_per_tile: int
    q_in_lds: bool
    slices: int
    min_waves: int
    reason: str
    key_parts: int = 1
    fragments: bool = False

    @property
    def rows(self) -> int:
        """Query rows per block."""
        return 16 * self.waves * self.query_fragments

    def defines(self) -> dict[str, str | int]:
        """Return the kernels' macros."""
        return {
            "WAVES": self.waves,
            "QUERY_FRAGMENTS": self.query_fragments,
            "KEYS_PER_TILE": self.keys_per_tile,
            "SLICES": self.slices,
            "Q_IN_LDS": int(self.q_in_lds),
            **({"MIN_WAVES": self.min_waves} if self.min_waves else {}),
            **({"KEY_PARTS": self.key_parts} if self.key_parts > 1 else {}),
        }


def padded_head_dim(head_dim: int, *, narrow: bool = False) -> int:
    """Return the compiled head dimension for a head dimension of at most 576.

    Args:
        head_dim: In elements.
        narrow: See `is_narrow`. Such tiles have a power of two of columns, which divide evenly among threads and need
            no registers for idle threads. Beyond 256, Q leaves no choice.
    """
    return next(
        padded
        for padded in PADDED_HEAD_DIMS
        if padded >= head_dim and not (narrow and padded & (padded - 1) and padded <= MAX_VALUE_DIM)
    )


def value_parts(head_dim_v: int) -> list[tuple[int, int]]:
    """Return (first, count) of the features of v for each launch: all of them up to `MAX_VALUE_DIM`.

    Parts have nearly equal sizes: 512 is 2 x 256, 576 is 3 x 192.
    """
    parts = -(-head_dim_v // MAX_VALUE_DIM)
    width = -(-head_dim_v // parts) if parts == 1 else -(-head_dim_v // parts // 32) * 32
    return [(first, min(width, head_dim_v - first)) for first in range(0, head_dim_v, width)]


def is_narrow(step: int, dtype: str) -> bool:
    """Return whether rows are loaded with less than 16 bytes per lane; ``step`` is their `column_step`."""
    return 0 < step * DTYPE_BYTES[dtype] < 16


def column_step(head_dim: int, head_dim_v: int, itemsize: int) -> int:
    """Return the elements per load of a row: the largest power of two, up to 16 bytes, that divides both sizes.

    0 means that the head dimensions are compiled ones, so no column is checked.
    """
    if {head_dim, head_dim_v} <= set(PADDED_HEAD_DIMS):
        return 0
    return math.gcd(head_dim, head_dim_v, 16 // itemsize)


# Largest padded head dimension (of q and v) -> tile; the first that fits is used.
_Table = dict[Family, tuple[tuple[int, FlashTile], ...]]
_FORWARD: _Table = {
    "gfx11": (
        (64, FlashTile(4, 2, 32, q_in_lds=False, slices=1, min_waves=6, reason=(
            "32 rows a wave fit in 240 VGPRs (Q and O 64 each); they halve the cost of moving K and V for each row"
        ))),
        (128, FlashTile(8, 1, 32, q_in_lds=False, slices=1, min_waves=6, reason=(
            "Q and O take 64 VGPRs each for 16 rows: 240 leave 6 waves a SIMD; 8 waves load each tile for 128 rows"
        ))),
        (256, FlashTile(4, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason=(
            "O alone takes 128 VGPRs: Q stays in LDS, tiles are not fetched ahead, and 16 keys keep LDS at 54 KiB; 8 "
            "fragments at a time are read from LDS, so that nothing is spilled"
        ))),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason=(
            "Q of 16 rows takes 18 KiB of LDS at D = 576, and a tile 27: 45 of 64 KiB for one wave"
        ))),
    ),
    "gfx12": (
        (64, FlashTile(4, 2, 32, q_in_lds=False, slices=1, min_waves=6, reason=(
            "as gfx11, whose fragments are twice as large; the registers saved hold K fragments in flight"
        ))),
        (128, FlashTile(12, 1, 48, q_in_lds=False, slices=1, min_waves=6, reason=(
            "32 rows would take 64 for Q, 128 for O and 32 for S of 256 VGPRs; 12 waves load each tile for 192 rows, "
            "and 48 keys are work for all"
        ))),
        (256, FlashTile(4, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
    ),
    "cdna": (
        (64, FlashTile(4, 3, 64, q_in_lds=False, slices=1, min_waves=2, key_parts=2, reason=(
            "64 keys give each of 256 threads a part of V to transpose. 48 rows a wave read a third less of LDS for a "
            "product than 32; O, S and two batches of fragments, 48, 48 and 32 VGPRs, leave 2 waves a SIMD"
        ))),
        (128, FlashTile(8, 2, 64, q_in_lds=False, slices=1, min_waves=2, key_parts=2, reason=(
            "O 64, Q and S 32 VGPRs for 32 rows, and 32 for two batches of fragments, leave 2 waves a SIMD. They are "
            "one block: its 256 rows share each tile, and 64 keys halve the barriers"
        ))),
        (256, FlashTile(4, 1, 32, q_in_lds=False, slices=1, min_waves=0, reason=(
            "32 keys are the fewest that the chained product takes: 37 KiB of LDS, so 16 rows a wave do"
        ))),
        (576, FlashTile(2, 1, 32, q_in_lds=False, slices=4, min_waves=0, reason=(
            "a tile takes 58 KiB of LDS at D = 576, through which Q of two waves passes; it is not fetched ahead, "
            "which would take 208 VGPRs beside 72 of Q and 64 of O"
        ))),
    ),
    "nvidia": (
        (64, FlashTile(4, 2, 32, q_in_lds=False, slices=1, min_waves=0, reason="as gfx11, whose waves are as wide")),
        (128, FlashTile(4, 1, 32, q_in_lds=False, slices=1, min_waves=0, reason="as gfx11")),
        (256, FlashTile(4, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
    ),
    "vector": (
        (64, FlashTile(2, 1, 16, q_in_lds=True, slices=1, min_waves=0, reason=(
            "operands are floats in LDS, Q too: a lane reads it in full depth; 2 waves a block keep LDS at 18 KiB"
        ))),
        (128, FlashTile(2, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason=(
            "tiles fetched ahead would take 128 VGPRs beside 64 of O; 35 KiB of LDS"
        ))),
        (256, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="54 of 64 KiB of LDS for one wave")),
    ),
}  # fmt: skip


# The same with masks and biases, which need registers for each query fragment; missing entries are as above with one.
_WITH_OPTIONS: _Table = {
    "cdna": (
        (64, FlashTile(4, 1, 64, q_in_lds=False, slices=1, min_waves=3, reason="16 rows a wave; 18.1 KiB of LDS")),
        (128, FlashTile(4, 1, 32, q_in_lds=False, slices=1, min_waves=2, reason="16 rows a wave; 18.8 KiB of LDS")),
        (256, FlashTile(4, 1, 32, q_in_lds=False, slices=1, min_waves=0, reason="as without options")),
        (576, FlashTile(2, 1, 32, q_in_lds=False, slices=4, min_waves=0, reason="as without options")),
    )
}


# For K loaded directly to LDS (gfx942, `DIRECT_K` in flash_shape.h).
_DIRECT_K = FlashTile(4, 3, 32, q_in_lds=False, slices=1, min_waves=2, key_parts=2, reason=(
    "48 rows a wave read a third less of LDS for a product than 32; O 96, Q 48, S 24 and two batches of fragments 32 "
    "of 256 VGPRs leave none for K on its way. 32 keys let two blocks, each with two tiles of K, share a unit's LDS"
))  # fmt: skip


def flash_tile(
    arch: str, head_dim: int, head_dim_v: int, dtype: str, *, step: int = 0, options: bool = False, paged: bool = False
) -> FlashTile:
    """Return the tile of the prefill kernels for padded head dimensions.

    Args:
        arch: Target, without features.
        head_dim: Of q and k, padded.
        head_dim_v: Of v and out, padded.
        dtype: numpy's name.
        step: `column_step` of the unpadded sizes.
        options: Whether this is the kernel with masks and biases, which need registers for each query fragment.
        paged: Whether K and V are pages of a cache, which are not loaded directly to LDS.
    """
    direct = head_dim == head_dim_v == 128 and step == 0 and not options and not paged
    if arch == "gfx942" and family(arch, dtype) == "cdna" and direct:
        return _DIRECT_K
    # Loads of one or two elements need a register or an address each: too many to prefetch a tile.
    table = (_WITH_OPTIONS if options and family(arch, dtype) in _WITH_OPTIONS else _FORWARD)[family(arch, dtype)]
    tile = _chosen(table, head_dim, head_dim_v, ahead=step not in {1, 2})
    return replace(tile, query_fragments=1) if options else tile


_DECODE: _Table = {
    "gfx11": (
        (128, FlashTile(1, 1, 16, q_in_lds=True, slices=1, min_waves=0, reason=(
            "one wave fetches a whole tile ahead: 64 VGPRs for 16 keys at D = 128, and O takes 64; 14.8 KiB of LDS"
        ))),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="O takes 128 VGPRs")),
    ),
    "gfx12": (
        (128, FlashTile(1, 1, 16, q_in_lds=True, slices=1, min_waves=0, reason=(
            "as gfx11; at D = 64 and 128 one wave alone loads K and V as fragments and has Q in registers, which "
            "passed through 4.3 KiB of LDS"
        ))),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
    ),
    "cdna": (
        (128, FlashTile(1, 1, 32, q_in_lds=False, slices=1, min_waves=0, reason=(
            "32 keys are the fewest that the chained product takes: 64 VGPRs in flight at D = 128, 19.5 KiB of LDS, "
            "or 4.5 KiB, for Q, where at D = 64 and 128 one wave alone loads K and V as fragments"
        ))),
        (576, FlashTile(1, 1, 32, q_in_lds=False, slices=4, min_waves=0, reason="a tile ahead would take 128 VGPRs")),
    ),
    "nvidia": (
        (128, FlashTile(1, 1, 16, q_in_lds=True, slices=1, min_waves=0, reason="as gfx11")),
        (576, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="as gfx11")),
    ),
    "vector": (
        (64, FlashTile(1, 1, 16, q_in_lds=True, slices=1, min_waves=0, reason="64 VGPRs in flight on waves of 32")),
        (256, FlashTile(1, 1, 16, q_in_lds=True, slices=4, min_waves=0, reason="a tile ahead would take 128 VGPRs")),
    ),
}  # fmt: skip


def decode_tile(arch: str, head_dim: int, head_dim_v: int, dtype: str, *, step: int = 0, rows: int = 16) -> FlashTile:
    """Return the tile of the decode kernel.

    Up to 128 rows form one block, which reads K and V once: one wave per 16 rows, or per 32 on CDNA if a tile of up to
    128 features is prefetched, so that each fragment of K and V read from LDS feeds two products. Fewer waves if Q does
    not fit in LDS.

    Args:
        arch: Target, without features.
        head_dim: Of q and k, padded.
        head_dim_v: Of v and out, padded.
        dtype: numpy's name.
        step: `column_step` of the unpadded sizes.
        rows: Query rows that share a KV head.
    """
    kind = family(arch, dtype)
    # As in `flash_tile`, but one wave loads the whole tile, so loads of four elements are also too many.
    tile = _chosen(_DECODE[kind], head_dim, head_dim_v, ahead=not is_narrow(step, dtype))
    waves = 1
    while 16 * waves < rows and waves < _MOST_DECODE_WAVES:
        waves *= 2
    if waves >= 4 and tile.slices == 1:
        if kind == "cdna" and max(head_dim, head_dim_v) <= 128:
            return replace(tile, waves=waves // 2, query_fragments=2)
        if kind in {"gfx11", "gfx12", "nvidia"}:  # fewer barriers; Q fits in registers next to a shared tile
            tile = replace(tile, keys_per_tile=32, q_in_lds=False)
    while lds_bytes(replace(tile, waves=waves), arch, head_dim, head_dim_v, dtype) > _BLOCK_LDS_BYTES and waves > 1:
        waves //= 2
    tile = replace(tile, waves=waves)
    # LOADS_FRAGMENTS in flash_shape.h: if K and V bypass LDS, Q also fits in registers.
    whole = step == 0 and head_dim % 64 == head_dim_v % 64 == 0
    if kind in {"cdna", "gfx12"} and waves == tile.slices == 1 and whole:
        return replace(tile, q_in_lds=False, fragments=True)
    return tile


def largest_head_dim(arch: str, dtype: str) -> int:
    """Return the largest head dimension of q and k for flash kernels: float32 fills LDS earlier."""
    return max(limit for limit, _ in _DECODE[family(arch, dtype)])


def lds_bytes(tile: FlashTile, arch: str, head_dim: int, head_dim_v: int, dtype: str) -> int:
    """Return a block's LDS as laid out in flash_shape.h and fragments.h; dimensions are padded.

    For gfx950 prefill that loads tiles directly to LDS, it counts one tile of three: there waves limit the blocks.
    """
    kind = family(arch, dtype)
    element, depth = {"cdna": (2, 32), "gfx11": (2, 16), "gfx12": (2, 16), "nvidia": (2, 16), "vector": (4, 4)}[kind]
    padding = 16 // element

    def row(columns: int) -> int:
        return columns + (padding if kind != "cdna" else 16 * (columns // 16 % 2 == 0))

    stride = row(-(-head_dim // depth) * depth)
    keys = tile.keys_per_tile
    skip = padding * (2 if kind == "cdna" else 1)
    transposed = head_dim_v * (keys + padding) + head_dim_v // 8 * skip
    k_and_v = keys * stride + (keys * row(head_dim_v) if kind == "cdna" and arch == "gfx950" else transposed)
    q = 16 * tile.waves * stride * (tile.query_fragments if tile.q_in_lds else 1)
    if tile.fragments:
        k_and_v = 0
    return element * (k_and_v + q if tile.q_in_lds else max(k_and_v, q)) + 4 * tile.waves


def _chosen(table: tuple[tuple[int, FlashTile], ...], *dims: int, ahead: bool) -> FlashTile:
    tile = next(tile for limit, tile in table if max(dims) <= limit)
    if not ahead:
        tile = replace(tile, slices=4)
    # A slice consists of whole groups of 8 columns.
    return replace(tile, slices=2) if tile.slices > 2 and any(dim % (8 * tile.slices) for dim in dims) else tile
