"""The "cpu-flash" backend: tiled attention with an online softmax, in numpy.

A tile is 64 or 128 packed query rows (the rows of all query heads that share a KV head, so K and V are read once per
group) by 512 keys or more; a chunk of heads is worked on together, so that its tiles' scores are about 512 KiB, which
stay in an L2 cache. scale * log2(e) is folded into q once, so that a tile costs two matrix products and four passes:
max, subtract, exp2, and a matrix-vector product with ones as the sum (four times faster than a sum along rows). Tiles
that causal or window hide are skipped; only tiles on the band's edge, which are narrow, build a mask. All sums are
float32. K and V are converted to float32 once per chunk unless they already are.

Sources: Dao, "FlashAttention-2" (2023), algorithms 1 and 2; Milakov and Gimelshein, "Online normalizer calculation for
softmax" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rocattn.backends.scores import (
    Heads,
    Hidden,
    chunk_size,
    finish_scores,
    head_chunks,
    masking_bytes,
    product,
    query_factor,
)
from rocattn.registry import YES, Backend, Support

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn.config import AttentionConfig
    from rocattn.layouts import Operands
    from rocattn.registry import Array

LOG2E = math.log2(math.e)
LN2 = math.log(2)
# Measured on a Zen 5 core (1 MiB L2), 8 heads, D 64 and 128: few rows waste less on the diagonal, more rows make better
# matrix products; the two cross near Sq = 1024. 256 rows were up to 1.9 times slower at Sq = 256 causal.
SHORT_ROWS, LONG_ROWS, LONG_SEQ = 64, 128, 1024
TILE_KEYS = 512
EDGE_KEYS = 128
TILE_SCORES = 1 << 17


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a config is cut: ``rows`` query positions (of every head of a group) by ``keys``."""

    rows: int
    keys: int
    group: int

    @classmethod
    def of(cls, config: AttentionConfig) -> Tiling:
        """Choose the tile: 64 or 128 packed rows, and more keys where there are fewer rows (decode)."""
        group = config.num_heads // config.num_kv_heads
        backward = config.direction == "backward"
        packed = LONG_ROWS if config.seq_q >= LONG_SEQ or backward else SHORT_ROWS
        rows = max(1, min(config.seq_q, packed // group))
        # Backward keeps two or three tiles, and adds to dk and dv once per row tile: fewer keys, more rows.
        keys = max(TILE_KEYS, (TILE_SCORES // 2 if backward else TILE_SCORES) // (rows * group))
        return cls(rows, max(1, min(config.seq_k, keys)), group)

    @property
    def scores(self) -> int:
        """Scores of one KV head's tile."""
        return self.rows * self.keys * self.group


class _Block:
    """A chunk of heads with its K and V in float32, in the strides that BLAS takes."""

    def __init__(self, config: AttentionConfig, operands: Operands, heads: Heads) -> None:
        self.config, self.operands, self.heads = config, operands, heads
        self.nb, self.nh = heads.count
        self.group = config.num_heads // config.num_kv_heads
        self.k = _for_blas(operands.k[heads.batch, heads.kv])
        self.v = _for_blas(operands.v[heads.batch, heads.kv])

    def pack(self, array: Array, rows: slice, factor: float = 1.0) -> Array:
        """Return some rows of [B, H, Sq, X] times a factor as float32 [nb, nh, G * R, X]."""
        part = array[self.heads.batch, self.heads.query, rows]
        packed = np.empty(part.shape, np.float32)
        packed[...] = part
        if factor != 1.0:
            packed *= np.float32(factor)
        return packed.reshape(self.nb, self.nh, self.group * part.shape[2], part.shape[3])

    def scores(
        self, q: Array, rows: slice, keys: slice, buffer: Array, tanh: Array | None = None
    ) -> tuple[Array, Hidden | None]:
        """Compute a tile's scores, times log2(e), in a part of the buffer; returns them as [nb, nh, G * R, C]."""
        scores = _part(buffer, (*q.shape[:3], keys.stop - keys.start))
        np.matmul(q, self.k[:, :, keys].swapaxes(-1, -2), out=scores)
        by_head = (self.nb, self.nh * self.group, rows.stop - rows.start, keys.stop - keys.start)
        hidden = finish_scores(
            scores.reshape(by_head), self.config, self.operands, self.heads, rows, keys, unit=LOG2E,
            tanh_out=None if tanh is None else _part(tanh, by_head),
        )  # fmt: skip
        return scores, hidden


def _for_blas(array: Array) -> Array:
    """Return [.., S, X] as float32 whose rows BLAS can take: itself wherever possible, else a copy."""
    row, item = array.strides[-2:]
    if array.dtype == np.float32 and item == array.itemsize and row >= array.shape[-1] * item and row % item == 0:
        return array
    copy = np.empty(array.shape, np.float32)
    copy[...] = array
    return copy


def _part(buffer: Array, shape: tuple[int, ...]) -> Array:
    """Return the front of a flat buffer in a shape: contiguous whatever the tile's size."""
    return buffer[: math.prod(shape)].reshape(shape)


def _key_tiles(config: AttentionConfig, tiling: Tiling, rows: slice) -> Iterator[slice]:
    """Go through the key tiles that some row sees; narrow ones where the band's edge crosses them."""
    first_start, first_stop = config.visible_range(rows.start)
    last_start, last_stop = config.visible_range(rows.stop - 1)
    # Between these two every row sees every key.
    inner_start = min(max(last_start, first_start), last_stop)
    inner_stop = max(min(first_stop, last_stop), inner_start)
    edge = min(EDGE_KEYS, tiling.keys)
    for start, stop, step in (
        (first_start, inner_start, edge),
        (inner_start, inner_stop, tiling.keys),
        (inner_stop, last_stop, edge),
    ):
        for j in range(start, stop, step):
            yield slice(j, min(j + step, stop))


class CpuFlashBackend(Backend):
    """Tiled online-softmax attention in numpy."""

    name = "cpu-flash"
    priority = 10

    def supports(self, config: AttentionConfig) -> Support:
        """Say yes to everything but float64."""
        if config.dtype == "float64":
            return Support(ok=False, reason="float64 is not computed in tiles: its sums are float32; use cpu")
        return YES

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the tiles and row statistics of one chunk of heads, and K and V if they are converted, in bytes."""
        tiling = Tiling.of(config)
        nb, nh = chunk_size(config, tiling.scores, TILE_SCORES)
        rows, backward = tiling.rows * tiling.group, config.direction == "backward"
        tiles = nb * nh * tiling.scores * (1 + backward * (1 + (config.softcap is not None)) + config.alibi)
        inner = config.alibi or config.mask != "none"  # otherwise only the narrow tiles on the band's edge are masked
        keys = tiling.keys if inner else min(EDGE_KEYS, tiling.keys)
        masks = masking_bytes(config, tiling.rows * keys, nb, nh * tiling.group, 4)
        d, dv = config.head_dim, config.head_dim_v
        converted = config.seq_k * (d + dv) * ((config.itemsize != 4) + backward)
        packed = rows * (d + 2 * dv + 8) + backward * (rows * (2 * d + dv) + tiling.keys * max(d, dv))
        return 4 * tiles + masks + 4 * nb * nh * (converted + packed)

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""
        tiling = Tiling.of(config)
        scores = np.empty(_buffer_size(config, tiling), np.float32)
        with np.errstate(all="ignore"):
            for heads in head_chunks(config, tiling.scores, TILE_SCORES):
                block = _Block(config, operands, heads)
                for i in range(0, config.seq_q, tiling.rows):
                    rows = slice(i, min(i + tiling.rows, config.seq_q))
                    _forward_rows(block, tiling, rows, scores, out, lse)

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Write the gradients into ``dq``, ``dk``, ``dv`` ([B, H or Hkv, S, D or Dv] views)."""
        tiling = Tiling.of(config)
        size = _buffer_size(config, tiling)
        buffers = [np.empty(size, np.float32) for _ in range(3 if config.softcap is not None else 2)]
        with np.errstate(all="ignore"):
            for heads in head_chunks(config, tiling.scores, TILE_SCORES):
                block = _Block(config, operands, heads)
                sums = np.zeros(block.k.shape, np.float32), np.zeros(block.v.shape, np.float32)
                for i in range(0, config.seq_q, tiling.rows):
                    rows = slice(i, min(i + tiling.rows, config.seq_q))
                    _backward_rows(block, tiling, rows, buffers, (dout, out, lse), (dq, *sums))
                # dk wants q * scale, but q carried query_factor: scale * log2(e), or scale / softcap.
                sums[0][...] *= np.float32(LN2 if config.softcap is None else config.softcap)
                dk[heads.batch, heads.kv], dv[heads.batch, heads.kv] = sums


def _buffer_size(config: AttentionConfig, tiling: Tiling) -> int:
    nb, nh = chunk_size(config, tiling.scores, TILE_SCORES)
    return nb * nh * tiling.scores


def _forward_rows(block: _Block, tiling: Tiling, rows: slice, buffer: Array, out: Array, lse: Array | None) -> None:
    """Run the online softmax of some query rows over all their key tiles and write their results."""
    config, heads = block.config, block.heads
    q = block.pack(block.operands.q, rows, query_factor(config, LOG2E))
    shape = q.shape[:3]
    # Row maxima in units of log2(e), and sums relative to them; a sink is where both start.
    top, total = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
    if block.operands.sinks is not None:
        sinks = np.repeat(block.operands.sinks[heads.query] * np.float32(LOG2E), rows.stop - rows.start)
        top[...] = sinks.reshape(shape[1:])
        total[...] = top > -np.inf
    result = np.zeros((*shape, config.head_dim_v), np.float32)
    partial = np.empty_like(result)
    ones = np.ones(tiling.keys, np.float32)
    started = False
    for keys in _key_tiles(config, tiling, rows):
        scores, hidden = block.scores(q, rows, keys, buffer)
        new_top = np.maximum(top, scores.max(axis=-1))
        reference = np.where(new_top == -np.inf, np.float32(0), new_top)
        scores -= reference[..., None]
        np.exp2(scores, out=scores)
        rescale = np.exp2(top - reference)
        total *= rescale
        total += np.matmul(scores, ones[: keys.stop - keys.start])
        values = block.v[:, :, keys]
        if started:
            result *= rescale[..., None]
            result += product(scores, values, hidden, partial)
        else:
            product(scores, values, hidden, result)
            started = True
        top = new_top
    result /= np.where(total == 0, np.float32(1), total)[..., None]
    target = out[heads.batch, heads.query, rows]
    target[...] = result.reshape(target.shape)
    if lse is not None:
        logs = lse[heads.batch, heads.query, rows]
        logs[...] = (np.log(total) + top * np.float32(LN2)).reshape(logs.shape)


def _backward_rows(
    block: _Block,
    tiling: Tiling,
    rows: slice,
    buffers: list[Array],
    given: tuple[Array, Array, Array],
    wanted: tuple[Array, Array, Array],
) -> None:
    """Add what some query rows contribute to dk and dv (float32, of the block's heads), and write their dq.

    Args:
        block: The heads.
        tiling: The tile sizes.
        rows: The query rows.
        buffers: Flat float32 tiles: P, dS and, with softcap, tanh.
        given: dout, out and lse, whole.
        wanted: dq, whole, and the sums dk and dv of the block.
    """
    config, heads = block.config, block.heads
    dout, out, lse = given
    dq, dk_sum, dv_sum = wanted
    q = block.pack(block.operands.q, rows, query_factor(config, LOG2E))
    upstream = block.pack(dout, rows)
    delta = np.einsum("bhrd,bhrd->bhr", upstream, block.pack(out, rows))
    reference = block.pack(lse[..., None], rows)[..., 0]
    # A row that sees nothing has LSE -inf; with 0 in its place exp2(-inf - 0) is the 0 it needs.
    reference = np.where(reference == -np.inf, np.float32(0), reference * np.float32(LOG2E))
    dq_rows = np.zeros(q.shape, np.float32)
    tanh = buffers[2] if config.softcap is not None else None
    for keys in _key_tiles(config, tiling, rows):
        weights, hidden = block.scores(q, rows, keys, buffers[0], tanh)
        weights -= reference[..., None]
        np.exp2(weights, out=weights)
        if hidden is not None:
            hidden.clear(weights)  # of a row whose LSE is NaN
        k, v = block.k[:, :, keys], block.v[:, :, keys]
        transposed = weights.swapaxes(-1, -2)
        dv_sum[:, :, keys] += product(transposed, upstream, hidden, np.empty(v.shape, np.float32), keys_last=False)
        dscores = np.matmul(upstream, v.swapaxes(-1, -2), out=_part(buffers[1], weights.shape))
        dscores -= delta[..., None]
        dscores *= weights
        if tanh is not None:
            slope = _part(tanh, weights.shape)
            slope *= slope
            np.subtract(1, slope, out=slope)
            dscores *= slope
        if hidden is not None:
            hidden.clear(dscores)
        dq_rows += product(dscores, k, hidden, np.empty(q.shape, np.float32))
        transposed = dscores.swapaxes(-1, -2)
        dk_sum[:, :, keys] += product(transposed, q, hidden, np.empty(k.shape, np.float32), keys_last=False)
    dq_rows *= np.float32(config.softmax_scale)
    target = dq[heads.batch, heads.query, rows]
    target[...] = dq_rows.reshape(target.shape)
