"""Score modifiers on a block of scores in numpy: softcap, ALiBi, mask, causal and window, in that order.

This is the only implementation of the semantics of `rocattn.attention` for `cpu` and for accuracy checks. A block is
scores[nb, nh, R, C] for a range of batches, query heads, query rows and keys; `cpu` uses chunks of whole heads, the
checks use scattered rows of one head.

Hidden pairs have no effect: a hidden score becomes -inf whatever it was, and `product` excludes hidden pairs from a
matrix product even if 0 * NaN or 0 * inf would include them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rocattn.backend import Operands
from rocattn.config import AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn.backend import Array

# By item size: the unsigned type of that size, the position of the sign bit, and the bits of +inf.
_INF_BITS: dict[int, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    4: (np.uint32, 31, 0x7F800000),
    8: (np.uint64, 63, 0x7FF0000000000000),
}


@dataclass(frozen=True, slots=True)
class Heads:
    """A range of batches and KV heads, with the query heads that share them."""

    batch: slice
    kv: slice
    query: slice

    @property
    def count(self) -> tuple[int, int]:
        """Number of batches and KV heads."""
        return self.batch.stop - self.batch.start, self.kv.stop - self.kv.start


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden pairs of a block.

    Attributes:
        pairs: bool, broadcastable to ``block``.
        block: (nb, nh, R, C), with nh query heads.
        kv_heads: Number of KV heads that the block's query heads share.
    """

    pairs: Array
    block: tuple[int, ...]
    kv_heads: int

    def packed(self) -> Array:
        """Return the pairs as [nb, KV heads, G * R, C], in which a group shares K and V."""
        nb, nh, rows, keys = self.block
        return np.broadcast_to(self.pairs, self.block).reshape(nb, self.kv_heads, nh // self.kv_heads * rows, keys)

    def clear(self, packed: Array) -> None:
        """Set the hidden pairs of a packed block to 0 if it contains NaN or inf (a finite block needs no clearing)."""
        if not np.isfinite(packed.sum()):
            np.copyto(packed, 0, where=self.packed())


def head_chunks(config: AttentionConfig, pairs_per_kv_head: int, budget: int) -> Iterator[Heads]:
    """Iterate over all batches and KV heads in chunks of about ``budget`` scores (at least one KV head)."""
    nb, nh = chunk_size(config, pairs_per_kv_head, budget)
    group = config.num_heads // config.num_kv_heads
    for b in range(0, config.batch, nb):
        batch = slice(b, min(b + nb, config.batch))
        for h in range(0, config.num_kv_heads, nh):
            stop = min(h + nh, config.num_kv_heads)
            yield Heads(batch, slice(h, stop), slice(h * group, stop * group))


def chunk_size(config: AttentionConfig, pairs_per_kv_head: int, budget: int) -> tuple[int, int]:
    """Return the maximum number of batches and KV heads in a chunk of `head_chunks`."""
    fit = max(1, budget // max(pairs_per_kv_head, 1))
    heads = min(config.num_kv_heads, fit)
    batches = max(1, min(config.batch, fit // config.num_kv_heads)) if heads == config.num_kv_heads else 1
    return batches, heads


def query_factor(config: AttentionConfig) -> float:
    """Return the factor for q before q.k, so that `finish_scores` need not scale."""
    return config.softmax_scale / config.softcap if config.softcap is not None else config.softmax_scale


def finish_scores(
    scores: Array, config: AttentionConfig, operands: Operands, heads: Heads, rows: slice | Array, keys: slice,
    *, tanh_out: Array | None = None,
) -> Hidden | None:  # fmt: skip
    """Turn products q.k into the softmax's input, in place.

    Args:
        scores: [nb, nh, R, C] products, q scaled by `query_factor`; overwritten with the final scores.
        config: The problem.
        operands: The mask and ALiBi slopes.
        heads: The block's batches and heads.
        rows: The block's query rows: a slice, or an array of positions.
        keys: The block's keys.
        tanh_out: Receives tanh(score / softcap), which the backward pass needs.

    Returns:
        The hidden pairs; None if all are visible.
    """
    if config.softcap is not None:
        np.tanh(scores, out=scores)
        if tanh_out is not None:
            tanh_out[...] = scores
        scores *= scores.dtype.type(config.softcap)
    first = config.seq_k - config.seq_q
    diagonal = np.arange(rows.start, rows.stop, dtype=np.int32) if isinstance(rows, slice) else rows.astype(np.int32)
    hidden = None
    if operands.alibi_slopes is not None or _crosses_band(config, diagonal, first, keys):
        distance = np.arange(keys.start, keys.stop, dtype=np.int32) - (diagonal + np.int32(first))[:, None]
        hidden = _outside_band(config, distance)
        if operands.alibi_slopes is not None:
            slopes = operands.alibi_slopes[heads.batch, heads.query].astype(scores.dtype)
            scores -= slopes[:, :, None, None] * np.abs(distance).astype(scores.dtype)
    if operands.mask is not None:
        tile = mask_tile(operands.mask, heads, rows, keys)
        masked = ~tile if tile.dtype == bool else _add_mask(scores, tile)
        hidden = masked if hidden is None else hidden | masked
    if hidden is None or not hidden.any():
        return None
    _hide(scores, hidden)
    return Hidden(hidden, scores.shape, heads.count[1])


class Masking(NamedTuple):
    """Bytes that `finish_scores` allocates in addition to a block's scores: at its peak, and for its result."""

    applying: int
    kept: int


def masking_bytes(config: AttentionConfig, batches: int, heads: int, itemsize: int) -> Masking:
    """Return the memory needed by `finish_scores` for a block of whole heads.

    Distances (int32) and the band's hidden pairs are shared by all heads; ALiBi needs another array of the scores'
    size. Hidden pairs are bool, plus a cap with the scores' item size while they are applied.

    Args:
        config: The problem.
        batches: Batches of the block.
        heads: Query heads of the block, in each batch.
        itemsize: Bytes of a score.
    """
    pairs, scores = config.seq_q * config.seq_k, batches * heads * config.seq_q * config.seq_k
    first = config.seq_k - config.seq_q
    ends = np.array([0, config.seq_q - 1])[: config.seq_q]
    banded = _crosses_band(config, ends, first, slice(0, config.seq_k))
    distance, band = 4 * pairs * (config.alibi or banded), pairs * banded
    alibi = config.alibi * (itemsize * (pairs + scores) + distance + band)
    if config.mask_shape is None:
        return Masking(max(alibi, distance + band + itemsize * band), band)
    sizes = zip((batches, heads, config.seq_q, config.seq_k), config.mask_shape, strict=True)
    own = [full if extent > 1 else 1 for full, extent in sizes]
    masked = math.prod(own)
    hidden = own[0] * own[1] * pairs if banded else masked
    both = masked + band + hidden if banded else masked
    return Masking(max(alibi, distance + max(both, both - band + itemsize * hidden)), hidden)


def mask_tile(mask: Array, heads: Heads, rows: slice | Array, keys: slice) -> Array:
    """Return the part of a mask for a block; axes of size 1 stay 1."""
    part = mask
    for axis, index in enumerate((heads.batch, heads.query, rows, keys)):
        if mask.shape[axis] != 1:
            part = part[(slice(None),) * axis + (index,)]
    return part


def _add_mask(scores: Array, tile: Array) -> Array:
    """Add an additive mask to scores; return where it is -inf."""
    hidden: Array = tile == tile.dtype.type(-np.inf)
    scores += tile.astype(scores.dtype, copy=False)
    return hidden


def _crosses_band(config: AttentionConfig, rows: Array, first: int, keys: slice) -> bool:
    if config.band is None or not rows.size:
        return False
    left, right = config.band
    return bool(
        (right >= 0 and keys.stop - 1 > rows[0] + first + right) or (left >= 0 and keys.start < rows[-1] + first - left)
    )


def _outside_band(config: AttentionConfig, distance: Array) -> Array | None:
    if config.band is None:
        return None
    left, right = config.band
    if left < 0:
        return distance > right
    return (distance < -left) if right < 0 else (distance > right) | (distance < -left)


def _hide(scores: Array, hidden: Array) -> None:
    """Set hidden scores to -inf.

    fmin with a cap of -inf or +inf, built from its bits, is branch-free: 15 times faster than a masked copy.
    A visible NaN becomes +inf, and NaN again when the softmax subtracts the maximum.
    """
    if scores.dtype.kind != "f" or scores.itemsize not in _INF_BITS:
        np.copyto(scores, scores.dtype.type(-np.inf), where=hidden)
        return
    bits, shift, infinity = _INF_BITS[scores.itemsize]
    cap = hidden.astype(bits)
    cap <<= bits(shift)
    cap |= bits(infinity)
    np.fmin(scores, cap.view(scores.dtype), out=scores)


def product(weights: Array, values: Array, hidden: Hidden | None, out: Array, *, keys_last: bool = True) -> Array:
    """Compute ``out = weights @ values``, to which hidden pairs never contribute, whatever the values are.

    Args:
        weights: [nb, nh, R, C], 0 at hidden pairs.
        values: [nb, nh, C, D].
        hidden: The hidden pairs; None for none.
        out: [nb, nh, R, D], overwritten.
        keys_last: Whether C counts keys (and R query rows), or the other way round.
    """
    # A sum is finite only if every term is: one cheap pass shows whether the plain product is safe.
    if hidden is None or np.isfinite(values.sum()):
        return np.matmul(weights, values, out=out)
    pairs = hidden.packed() if keys_last else hidden.packed().swapaxes(-1, -2)
    bad: Array = np.logical_not(np.isfinite(values).all(axis=-1))
    np.matmul(weights, np.where(bad[..., None], 0, values), out=out)
    for c in np.flatnonzero(bad.any(axis=(0, 1))):
        counts = bad[:, :, c, None] & ~pairs[..., c]
        out += np.where(counts[..., None], weights[..., c, None] * values[:, :, c, None, :], 0)
    return out
