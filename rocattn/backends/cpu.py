"""The "cpu" backend: standard attention in numpy, a reference that supports everything.

The whole [Sq, Sk] score matrix of a chunk of heads exists at once. fp16, bf16 and fp32 are computed in float32,
float64 in float64. The backward pass recomputes the softmax instead of using ``lse``, so that float64 gradients are
not limited by a float32 LSE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocattn.backend import YES, Backend, Operands, Support
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
from rocattn.config import AttentionConfig
from rocattn.dropout import kept_weights

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from rocattn.backend import Array

CHUNK_SCORES = 1 << 22
"""Scores computed together unless one KV head has more: 16 MiB in float32, which fits in an L3 cache."""


class Softmax(NamedTuple):
    """The softmax of a block of heads, with each KV head's group packed: [nb, nhkv, G * R, …].

    Attributes:
        weights: [nb, nhkv, G * R, Sk], normalized; 0 in rows without a visible key.
        lse: [nb, nhkv, G * R], natural log, in the compute dtype.
        hidden: Which pairs are hidden.
        tanh: tanh(score / softcap) [nb, nhkv, G * R, Sk]; None unless wanted.
        q, k, v: The operands of the block in the compute dtype; q scaled.
        kept: Dropout's factor for each weight, shaped like ``weights``; None without dropout.
    """

    weights: Array
    lse: Array
    hidden: Hidden | None
    tanh: Array | None
    q: Array
    k: Array
    v: Array
    kept: Array | None = None

    @property
    def dropped(self) -> Array:
        """The factors of the values: the weights after dropout."""
        return self.weights if self.kept is None else self.weights * self.kept


def softmax_block(
    config: AttentionConfig, operands: Operands, heads: Heads, rows: slice | Array, dtype: DTypeLike,
    *, keep_tanh: bool = False,
) -> Softmax:  # fmt: skip
    """Compute the softmax over all keys for some heads and query rows (a slice or an array of positions)."""
    group = config.num_heads // config.num_kv_heads
    nb, nh = heads.count
    q = operands.q[heads.batch, heads.query][:, :, rows].astype(dtype, order="C")
    q *= q.dtype.type(query_factor(config))
    count = q.shape[2]
    q = q.reshape(nb, nh, group * count, config.head_dim)
    if operands.q_scale is not None:
        q *= operands.q_scale[heads.batch, heads.kv, None, None].astype(dtype, copy=False)
    k = computed(operands.k, operands.k_scale, heads, dtype)
    v = computed(operands.v, operands.v_scale, heads, dtype)
    scores = np.matmul(q, k.swapaxes(-1, -2))
    by_head = scores.reshape(nb, nh * group, count, config.seq_k)
    tanh = np.empty_like(by_head) if keep_tanh and config.softcap is not None else None
    hidden = finish_scores(by_head, config, operands, heads, rows, slice(0, config.seq_k), tanh_out=tanh)
    top = scores.max(axis=-1, initial=-np.inf)
    sinks = None
    if operands.sinks is not None:
        sinks = np.repeat(operands.sinks[heads.query].astype(dtype), count).reshape(nh, group * count)
        top = np.maximum(top, sinks)
    top[top == -np.inf] = 0  # a row without a visible key: exp(-inf - 0) is the 0 it needs
    scores -= top[..., None]
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1)
    if sinks is not None:
        total += np.exp(sinks - top)
    lse = np.log(total) + top
    scores /= np.where(total == 0, 1, total)[..., None]
    curve = None if tanh is None else tanh.reshape(scores.shape)
    return Softmax(scores, lse, hidden, curve, q, k, v, kept_block(config, operands, heads, rows, dtype))


def kept_block(
    config: AttentionConfig, operands: Operands, heads: Heads, rows: slice | Array, dtype: DTypeLike
) -> Array | None:
    """Return `Softmax.kept` for a block."""
    if operands.dropout_key is None:
        return None
    positions = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    batches, own = (np.arange(part.start, part.stop) for part in (heads.batch, heads.query))
    numbers = batches[:, None] * config.num_heads + own
    kept = kept_weights(operands.dropout_key, config.dropout_p, numbers, positions, config.seq_k, dtype)
    group = config.num_heads // config.num_kv_heads
    return kept.reshape(*heads.count, group * len(positions), config.seq_k)


def computed(stored: Array, scale: Array | None, heads: Heads, dtype: DTypeLike) -> Array:
    """Return K or V of some heads in the compute dtype, multiplied by the scale if stored in 8 bits."""
    values = stored[heads.batch, heads.kv].astype(dtype, copy=False)
    if scale is not None:
        values *= scale[heads.batch, heads.kv, None, None].astype(dtype, copy=False)
    return values


def gradients_block(
    config: AttentionConfig,
    softmax: Softmax,
    dout: Array,
    *,
    storage: DTypeLike | None = None,
    delta: Array | None = None,
    dlse: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return dq [nb, nhkv, G * R, D], dk [nb, nhkv, Sk, D] and dv [nb, nhkv, Sk, Dv] of a block.

    With P the softmax: dV = P^T dO, dS = P * (dO V^T - rowsum(P * dO V^T) + dLSE), dQ = scale dS K, dK = scale dS^T Q.
    Dropout multiplies P in dV, and dO V^T.
    A sink takes probability but has no value: it appears in P only. Source: Dao et al. 2022, "FlashAttention", B.4.

    Args:
        config: The problem.
        softmax: The block's softmax; its ``tanh`` is overwritten.
        dout: [nb, nhkv, G * R, Dv], in the compute dtype.
        storage: Round dO V^T and dS to this dtype, like a program that stores them in it; None does not round.
        dlse: The gradient of the LSE, [nb, nhkv, G * R, 1]; None for none.
        delta: rowsum(P * dO V^T) [nb, nhkv, G * R, 1], given if a program computes it as rowsum(dO * out); else None.
    """
    weights, hidden, q, k, v = softmax.weights, softmax.hidden, softmax.q, softmax.k, softmax.v
    if hidden is not None:
        hidden.clear(weights)  # for rows whose LSE is NaN
    dv = product(softmax.dropped.swapaxes(-1, -2), dout, hidden, np.empty_like(v, order="C"), keys_last=False)
    dscores = np.matmul(dout, v.swapaxes(-1, -2))
    if storage is not None:
        dscores[...] = dscores.astype(storage)
    if hidden is not None:
        hidden.clear(dscores)
    if softmax.kept is not None:
        dscores *= softmax.kept
    dscores -= np.einsum("bhij,bhij->bhi", dscores, weights)[..., None] if delta is None else delta
    if dlse is not None:
        dscores += dlse
    dscores *= weights
    if softmax.tanh is not None:
        slope = np.square(softmax.tanh, out=softmax.tanh)
        np.subtract(1, slope, out=slope)
        dscores *= slope
    if hidden is not None:
        hidden.clear(dscores)
    if storage is not None:
        dscores[...] = dscores.astype(storage)
    dq = product(dscores, k, hidden, np.empty_like(q))
    dq *= q.dtype.type(config.softmax_scale)
    dk = product(dscores.swapaxes(-1, -2), q, hidden, np.empty_like(k, order="C"), keys_last=False)
    if config.softcap is not None:
        dk *= q.dtype.type(config.softcap)  # q was scaled by scale / softcap
    return dq, dk, dv


def compute_dtype(config: AttentionConfig) -> np.dtype:
    """Return float64 for float64, else float32."""
    return np.dtype(np.float64 if config.dtype == "float64" else np.float32)


class CpuBackend(Backend):
    """Standard attention in numpy."""

    name = "cpu"
    cost = "with numpy, 50 to 200 times slower than cpu-flash"
    priority = 0
    takes_fp8 = True
    takes_dropout = True
    takes_lse_gradient = True

    def supports(self, config: AttentionConfig) -> Support:  # noqa: ARG002 - every config is supported
        """Return yes: this backend is the reference for the complete contract."""
        return YES

    def score_bytes(self, config: AttentionConfig) -> int:
        """Return the bytes of a chunk's scores: one copy forward, two backward, three backward with softcap."""
        nb, nh, group = self._chunk(config)
        scores = nb * nh * group * config.seq_q * config.seq_k * compute_dtype(config).itemsize
        return scores * (2 + (config.softcap is not None) if config.direction == "backward" else 1)

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the peak memory of a chunk of heads in bytes: scores, float copies, and masks being applied.

        Forward keeps one copy of the scores (two while ALiBi is subtracted), backward two (three with softcap). Dropout
        adds one, and forward another while applying it.
        """
        item = compute_dtype(config).itemsize
        nb, nh, group = self._chunk(config)
        if not nb:  # an empty batch has no chunk
            return 0
        backward = config.direction == "backward"
        scores = nb * nh * group * config.seq_q * config.seq_k * item
        q, k = group * config.seq_q * config.head_dim, config.seq_k * config.head_dim
        v, out = config.seq_k * config.head_dim_v, group * config.seq_q * config.head_dim_v
        rows = 6 * group * config.seq_q
        operands = q + rows + (k + v) * (config.kv_itemsize != item)
        drops = config.dropout_p > 0
        resting = scores * (1 + (backward and config.softcap is not None) + drops)
        masking = masking_bytes(config, nb, nh * group, item)
        working = nb * nh * item * (out + q + k + v) + scores if backward else nb * nh * item * out + scores * drops
        return resting + nb * nh * item * operands + max(masking.applying, masking.kept + working)

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""
        with np.errstate(all="ignore"):
            for heads in self._chunks(config):
                _forward_chunk(config, operands, heads, out, lse)

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,  # noqa: ARG002 - recomputed
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Write the gradients into ``dq``, ``dk``, ``dv`` ([B, H or Hkv, S, D or Dv] views)."""
        with np.errstate(all="ignore"):
            for heads in self._chunks(config):
                _backward_chunk(config, operands, heads, dout, (dq, dk, dv))

    @staticmethod
    def _chunk(config: AttentionConfig) -> tuple[int, int, int]:
        """Return the maximum number of batches and KV heads per chunk, and the number of query heads per KV head."""
        group = config.num_heads // config.num_kv_heads
        batches, heads = chunk_size(config, group * config.seq_q * config.seq_k, CHUNK_SCORES)
        return min(batches, config.batch), heads, group

    @staticmethod
    def _chunks(config: AttentionConfig) -> list[Heads]:
        group = config.num_heads // config.num_kv_heads
        return list(head_chunks(config, group * config.seq_q * config.seq_k, CHUNK_SCORES))


# A chunk's arrays are local variables of a function, so they are freed before the next chunk begins.


def _forward_chunk(config: AttentionConfig, operands: Operands, heads: Heads, out: Array, lse: Array | None) -> None:
    dtype = compute_dtype(config)
    softmax = softmax_block(config, operands, heads, slice(0, config.seq_q), dtype)
    result = np.empty((*softmax.q.shape[:3], config.head_dim_v), dtype)
    product(softmax.dropped, softmax.v, softmax.hidden, result)
    target = out[heads.batch, heads.query]
    target[...] = result.reshape(target.shape)
    if lse is not None:
        row_values = lse[heads.batch, heads.query]
        row_values[...] = softmax.lse.reshape(row_values.shape)


def _backward_chunk(
    config: AttentionConfig, operands: Operands, heads: Heads, dout: Array, gradients: tuple[Array, Array, Array]
) -> None:
    dtype = compute_dtype(config)
    dq, dk, dv = gradients
    softmax = softmax_block(config, operands, heads, slice(0, config.seq_q), dtype, keep_tanh=True)
    upstream = dout[heads.batch, heads.query].astype(dtype, order="C")
    rows = softmax.q.shape[:3]
    dlse = None if operands.dlse is None else operands.dlse[heads.batch, heads.query].astype(dtype).reshape(*rows, 1)
    block = gradients_block(config, softmax, upstream.reshape(*rows, config.head_dim_v), dlse=dlse)
    dq[heads.batch, heads.query] = block[0].reshape(dq[heads.batch, heads.query].shape)
    dk[heads.batch, heads.kv], dv[heads.batch, heads.kv] = block[1:]
