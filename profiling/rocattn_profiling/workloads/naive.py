"""The yardstick of accuracy: attention in float64, and as computed by a naive program in the tensor's dtype.

The naive program is flash-attention's ``attention_ref(upcast=False, reorder_ops=True)``: standard attention whose
tensors all have the dtype of the inputs (the products q.k, the finished scores, the probabilities, the output), with
the scale applied to k instead of q. Products and sums inside an operation are float32, as in BLAS and every GPU
framework. 8-bit K and V are converted to the numbers that they represent, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn.backends.cpu import Softmax, compute_dtype, computed, gradients_block, kept_block, softmax_block
from rocattn.backends.scores import Heads, finish_scores, product, query_factor
from rocattn_profiling.workloads.inputs import numpy_dtype

if TYPE_CHECKING:
    from rocattn.backend import Array, Operands
    from rocattn.config import AttentionConfig

BLOCK_SCORES = 1 << 21
LARGE_SCORE = 64.0
"""Above this LSE, scores are so large that their rounding dominates the error."""
_ORDERS = 8


class Forward(NamedTuple):
    """A program's output for some rows of a KV head: out [G * R, Dv] and natural-log LSE [G * R]."""

    out: Array
    lse: Array


class Gradients(NamedTuple):
    """A program's gradients for a KV head: dq [G * Sq, D], dk [Sk, D], dv [Sk, Dv]; and the largest |LSE|."""

    dq: Array
    dk: Array
    dv: Array
    largest_lse: float


def one_kv_head(config: AttentionConfig, batch: int, kv_head: int) -> Heads:
    """Return the range of a single KV head and the query heads that share it."""
    group = config.num_heads // config.num_kv_heads
    query = slice(kv_head * group, (kv_head + 1) * group)
    return Heads(slice(batch, batch + 1), slice(kv_head, kv_head + 1), query)


def exact_forward(config: AttentionConfig, operands: Operands, heads: Heads, rows: Array) -> Forward:
    """Compute some rows of one KV head in float64."""
    blocks = [_forward(softmax_block(config, operands, heads, part, np.float64)) for part in _parts(config, rows)]
    return _joined(config, blocks)


def naive_forward(config: AttentionConfig, operands: Operands, heads: Heads, rows: Array) -> Forward:
    """Compute some rows of one KV head with the naive program in the config's dtype."""
    dtype = numpy_dtype(config.dtype)
    blocks = []
    for part in _parts(config, rows):
        block = _forward(_naive_softmax(config, operands, heads, part))
        blocks.append(Forward(_rounded(block.out, dtype), block.lse))
    return _joined(config, blocks)


def fair_forward(config: AttentionConfig, operands: Operands, heads: Heads, rows: Array, exact: Forward) -> Forward:
    """Compute some rows of one KV head like `naive_forward`, adapted to be a fair yardstick for large scores.

    Large scores are not stored in 16 bits (at 2000 bfloat16 has a spacing of 8, and float16 ends at 65504): the program
    runs in float32, and only its output is rounded. Few rows then have competing keys, and the effect of rounding those
    scores is random: the program runs with the features of q and k in several orders, and each element is the result
    farthest from ``exact``, the float64 result.
    """
    if float(np.max(np.abs(exact.lse), initial=0, where=np.isfinite(exact.lse))) <= LARGE_SCORE:
        return naive_forward(config, operands, heads, rows)
    rng, inside = np.random.default_rng(config.head_dim), config
    if config.itemsize == 2:
        inside = config.replace(dtype="float32")
    naive = naive_forward(inside, operands, heads, rows)
    for _ in range(_ORDERS):
        order = rng.permutation(config.head_dim)
        moved = operands._replace(q=operands.q[..., order], k=operands.k[..., order])
        other = naive_forward(inside, moved, heads, rows)
        naive = Forward(_farthest(naive.out, other.out, exact.out), _farthest(naive.lse, other.lse, exact.lse))
    return Forward(_rounded(naive.out, numpy_dtype(config.dtype)), naive.lse)


def exact_gradients(
    config: AttentionConfig, operands: Operands, dout: Array, heads: Heads, *, delta: bool = True, slope: bool = True
) -> Gradients:
    """Compute the gradients of one KV head in float64; ``dout`` is the [B, H, Sq, Dv] view.

    Without ``delta``, rowsum(dO * out) is replaced by 0, and without ``slope`` the softcap derivative by 1: mistakes.
    """
    blocks, largest = [], 0.0
    for rows in _parts(config, np.arange(config.seq_q)):
        softmax = softmax_block(config, operands, heads, rows, np.float64, keep_tanh=slope)
        upstream = _upstream(softmax, dout, heads, rows)
        blocks.append(gradients_block(config, softmax, upstream, delta=None if delta else np.zeros((1, 1, 1, 1))))
        largest = max(largest, _largest_lse(softmax))
    return Gradients(*_summed(config, blocks), largest)


def all_gradients(config: AttentionConfig, operands: Operands, dout: Array, **changed: bool) -> dict[str, Array]:
    """Return `exact_gradients` for all heads as [B, heads, S, D]; ``dout`` is the [B, H, Sq, Dv] view."""
    with np.errstate(all="ignore"):
        by_head = [
            exact_gradients(config, operands, dout, one_kv_head(config, batch, head), **changed)
            for batch, head in np.ndindex(config.batch, config.num_kv_heads)
        ]
    shapes = {
        "dq": (config.num_heads, config.seq_q, config.head_dim),
        "dk": (config.num_kv_heads, config.seq_k, config.head_dim),
        "dv": (config.num_kv_heads, config.seq_k, config.head_dim_v),
    }
    return {
        name: np.stack([getattr(part, name) for part in by_head]).reshape(config.batch, *shape)
        for name, shape in shapes.items()
    }


def naive_gradients(
    config: AttentionConfig, operands: Operands, dout: Array, heads: Heads, *, wide_scores: bool = False
) -> Gradients:
    """Compute the gradients of one KV head with the naive program in the config's dtype.

    With ``wide_scores`` it keeps scores in float32, since 16 bits are too narrow for huge ones; the rest has the dtype.
    """
    dtype = numpy_dtype(config.dtype)
    blocks, largest = [], 0.0
    for rows in _parts(config, np.arange(config.seq_q)):
        softmax = _naive_softmax(config, operands, heads, rows, wide_scores=wide_scores)
        upstream = _upstream(softmax, dout, heads, rows)
        # The backward pass gets the stored ``out``, whose rounding is part of every program's gradients.
        delta = (upstream[0, 0] * _rounded(_forward(softmax).out, dtype)).sum(axis=-1, keepdims=True)
        blocks.append(gradients_block(config, softmax, upstream, storage=dtype, delta=delta[None, None]))
        largest = max(largest, _largest_lse(softmax))
    dq, dk, dv = (_rounded(x, dtype) for x in _summed(config, blocks))
    return Gradients(dq, dk, dv, largest)


def _farthest(first: Array, other: Array, exact: Array) -> Array:
    """Return the value farther from the exact result for each element."""
    return np.where(np.abs(other - exact) > np.abs(first - exact), other, first)


def _parts(config: AttentionConfig, rows: Array) -> Iterator[Array]:
    """Split rows so that a block's scores stay small."""
    group = config.num_heads // config.num_kv_heads
    step = max(1, BLOCK_SCORES // max(1, group * config.seq_k))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _forward(softmax: Softmax) -> Forward:
    out = np.empty((*softmax.q.shape[:3], softmax.v.shape[-1]), softmax.v.dtype)
    product(softmax.dropped, softmax.v, softmax.hidden, out)
    return Forward(out[0, 0], softmax.lse[0, 0])


def _naive_softmax(
    config: AttentionConfig, operands: Operands, heads: Heads, rows: Array, *, wide_scores: bool = False
) -> Softmax:
    """Return `softmax_block`'s result with every tensor rounded to the config's dtype (q raw, k scaled).

    With ``wide_scores``, scaled k and the scores are not rounded.
    """
    dtype, wide = numpy_dtype(config.dtype), compute_dtype(config)
    kept = wide if wide_scores else dtype
    group = config.num_heads // config.num_kv_heads
    q = operands.q[heads.batch, heads.query][:, :, rows].astype(wide, order="C")
    q = q.reshape(1, 1, group * len(rows), config.head_dim)
    if operands.q_scale is not None:
        q *= operands.q_scale[heads.batch, heads.kv, None, None].astype(wide)
    k = computed(operands.k, operands.k_scale, heads, wide)
    v = computed(operands.v, operands.v_scale, heads, wide)
    scores = _rounded(np.matmul(q, _rounded(k * wide.type(query_factor(config)), kept).swapaxes(-1, -2)), kept)
    by_head = scores.reshape(1, group, len(rows), config.seq_k)
    tanh = np.empty_like(by_head) if config.softcap is not None else None
    hidden = finish_scores(by_head, config, operands, heads, rows, slice(0, config.seq_k), tanh_out=tanh)
    scores = _rounded(scores, kept)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    sinks = None
    if operands.sinks is not None:
        sinks = np.repeat(_rounded(operands.sinks[heads.query], dtype).astype(wide), len(rows))[None, None, :, None]
        top = np.maximum(top, sinks)
    top[top == -np.inf] = 0
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - top))
    lse = (np.log(total) + top)[..., 0]
    weights = _rounded(weights / np.where(total == 0, 1, total), dtype)
    curve = None if tanh is None else _rounded(tanh, dtype).reshape(scores.shape)
    # `gradients_block` expects q scaled by query_factor.
    kept_weights = kept_block(config, operands, heads, rows, wide)
    return Softmax(weights, lse, hidden, curve, q * wide.type(query_factor(config)), k, v, kept_weights)


def _upstream(softmax: Softmax, dout: Array, heads: Heads, rows: Array) -> Array:
    part = dout[heads.batch, heads.query][:, :, rows].astype(softmax.q.dtype, order="C")
    return part.reshape(1, 1, softmax.q.shape[2], dout.shape[-1])


def _rounded(array: Array, dtype: np.dtype) -> Array:
    """Round to a dtype, but return the values in the wide one."""
    return array if array.dtype == dtype else array.astype(dtype).astype(array.dtype)


def _along_rows(parts: Sequence[Array], group: int) -> Array:
    """Join row blocks [G * R, …] along R, head by head; if a width is 0, numpy cannot infer R."""
    by_head = [part.reshape(group, len(part) // group, *part.shape[1:]) for part in parts]
    joined: Array = np.concatenate(by_head, axis=1)
    return joined.reshape(group * joined.shape[1], *joined.shape[2:])


def _joined(config: AttentionConfig, blocks: list[Forward]) -> Forward:
    group = config.num_heads // config.num_kv_heads
    return Forward(_along_rows([b.out for b in blocks], group), _along_rows([b.lse for b in blocks], group))


def _largest_lse(softmax: Softmax) -> float:
    return float(np.max(np.abs(softmax.lse), initial=0, where=np.isfinite(softmax.lse)))


def _summed(config: AttentionConfig, blocks: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Join dq's row blocks, and add up their contributions to dk and dv."""
    group = config.num_heads // config.num_kv_heads
    dk, dv = (sum((b[i][0, 0] for b in blocks[1:]), start=blocks[0][i][0, 0]) for i in (1, 2))
    return _along_rows([b[0][0, 0] for b in blocks], group), dk, dv
