"""A second float64 implementation of the contract of `rocattn.attention`, with switches for typical kernel mistakes.

It shares no code with the library or the yardstick (`rocattn_profiling.workloads.naive`), so a mistake in either shows
up as a difference. Its gradients are central finite differences, independent of any backward pass. With a `Twist` it
computes the output of a kernel with that mistake, which `rocattn_profiling.verify.symptoms` uses to identify faults.
All [B, H, Sq, Sk] scores exist at once, so it is only for small problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.config import DTYPE_BYTES, FP8_DTYPES
from rocattn.layouts import heads_view
from rocattn_profiling.workloads.inputs import numpy_dtype

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs


STEP = 1e-5
"""Step of central differences: truncation (STEP^2 / 6 times a third derivative) and cancellation are about 1e-10."""
TOLERANCE = 1e-7
_BATCH = 128  # perturbed problems solved at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Twist:
    """Mistakes, each off by default.

    Attributes:
        top_left: The diagonal of causal and window is key i of row i, not key i + Sk - Sq.
        causal_top_left: The same, only for causal.
        alibi_top_left: The same, for ALiBi's distances.
        simplified: Causal and window come from `AttentionConfig.band`, which omits limits without effect under correct
            alignment.
        shift: Outward shift of the band's left and right ends, in keys.
        dropped: Number of trailing keys that no row sees.
        band: Whether causal and window are applied.
        mask: "kept", "ignored" or "inverted" (bool); for additive values: "only -inf" (finite ones up to -1e30 are not
            added), "scaled" (like the scores), or the dtype to which they are rounded.
        hidden: The score of a hidden key.
        masked_by, sloped_by, sinks_of: The source of query head h's mask, ALiBi slope and sink: its "own", the
            "first head", the "first batch", or the "KV head" h // (H / Hkv).
        softcap, sinks: Whether the option is applied.
        alibi: Factor applied to the slopes.
        late_softcap: Softcap after ALiBi and mask.
        scale: Additional factor applied to the scores.
        interleaved: Query head h uses KV head h % Hkv, not h // (H / Hkv).
        tile: Keys per tile of an online softmax that does not rescale; 0 for none.
        stale: The partial result that it does not rescale: "output", "sum" or "both".
        slack: How far a score must exceed the subtracted maximum before that is raised, as in lazily rescaling kernels.
        value_stride: Elements between rows of V in memory; 0 for the correct number.
        value_shift: Probability j is multiplied by value j + value_shift.
        q_scale, k_scale, v_scale: Whether the factor of 8-bit q, k and v is applied.
        other_format: 8-bit q, k and v are read as the other of the two formats.
        flushed: Elements of q, k and v below the dtype's smallest normal number are flushed to 0.
        lse: "natural", "log2", "negated", "of the scores' sum alone" (without the maximum).
    """

    top_left: bool = False
    causal_top_left: bool = False
    alibi_top_left: bool = False
    simplified: bool = False
    shift: tuple[int, int] = (0, 0)
    dropped: int = 0
    band: bool = True
    mask: str = "kept"
    masked_by: str = "own"
    sloped_by: str = "own"
    sinks_of: str = "own"
    hidden: float = -np.inf
    softcap: bool = True
    alibi: float = 1.0
    sinks: bool = True
    late_softcap: bool = False
    scale: float = 1.0
    interleaved: bool = False
    tile: int = 0
    stale: str = "both"
    slack: float = 0.0
    value_stride: int = 0
    value_shift: int = 0
    q_scale: bool = True
    k_scale: bool = True
    v_scale: bool = True
    other_format: bool = False
    flushed: bool = False
    lse: str = "natural"


RIGHT = Twist()
_SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def visible_pairs(config: AttentionConfig, mask: Array | None, twist: Twist = RIGHT) -> Array:
    """Return which (query, key) pairs are visible, bool [B, H, Sq, Sk]."""
    rows = np.arange(config.seq_q)[:, None] + (0 if twist.top_left else config.seq_k - config.seq_q)
    keys = np.arange(config.seq_k)
    visible = np.broadcast_to(keys < config.seq_k - twist.dropped, (config.seq_q, config.seq_k))
    if twist.band:
        window = config.band if twist.simplified else config.window
        left, right = window if window is not None else (-1, -1)
        if config.causal and not twist.simplified:
            diagonal = np.arange(config.seq_q)[:, None] if twist.causal_top_left else rows
            visible = visible & (keys <= diagonal + twist.shift[1])
        if left != -1:
            visible = visible & (keys >= rows - left - twist.shift[0])
        if right != -1:
            visible = visible & (keys <= rows + right + twist.shift[1])
    every = np.broadcast_to(visible, config.scores_shape)
    if mask is None or twist.mask == "ignored":
        return every
    mask = _of_another(mask, twist.masked_by, config)
    allowed = mask if mask.dtype == bool else mask.astype(np.float64) != -np.inf
    if twist.mask == "inverted" and mask.dtype == bool:
        allowed = ~allowed
    return every & allowed


def attend(config: AttentionConfig, inputs: Inputs, twist: Twist = RIGHT) -> tuple[Array, Array]:
    """Return (out [B, H, Sq, Dv], LSE [B, H, Sq]) in float64.

    A hidden key is excluded completely, whatever K and V contain there, so a NaN cannot leak unless ``twist.hidden``
    is finite.
    """
    operands = inputs.operands(config)
    group = config.num_heads // config.num_kv_heads
    heads = np.arange(config.num_heads)
    shared = heads % config.num_kv_heads if twist.interleaved else heads // group
    q, k, v = _wide(operands.q, twist), _wide(operands.k, twist), _values(config, inputs, twist)
    if operands.q_scale is not None and twist.q_scale:
        q = q * operands.q_scale.astype(np.float64)[:, heads // group, None, None]
    if operands.k_scale is not None and twist.k_scale:
        k = k * operands.k_scale.astype(np.float64)[..., None, None]
    if operands.v_scale is not None and twist.v_scale:
        v = v * operands.v_scale.astype(np.float64)[..., None, None]
    if twist.flushed:
        q, k, v = (np.where(np.abs(x) < _SMALLEST[config.dtype], 0, x) for x in (q, k, v))
    k, v = k[:, shared], v[:, shared]
    visible = visible_pairs(config, inputs.mask, twist)
    with np.errstate(all="ignore"):
        scores = (q @ k.swapaxes(-1, -2)) * (config.softmax_scale * twist.scale)
        scores = np.where(visible, _biased(config, inputs, scores, twist), twist.hidden)
        return _normalised(config, inputs, scores, v, twist)


def _values(config: AttentionConfig, inputs: Inputs, twist: Twist) -> Array:
    v = heads_view(inputs.v, config.layout, config.num_kv_heads, "v")
    if twist.value_stride and v.size:
        memory = inputs.v.reshape(-1).astype(np.float64)
        batch, head, _, feature = (step // inputs.v.itemsize for step in v.strides)
        at = np.ogrid[tuple(slice(n) for n in v.shape)]
        steps = (batch, head, twist.value_stride, feature)
        where = sum(index * step for index, step in zip(at, steps, strict=True)) % memory.size
        return np.asarray(memory[where])
    return np.roll(_wide(v, twist), -twist.value_shift, axis=2)


def _wide(array: Array, twist: Twist) -> Array:
    if twist.other_format and array.dtype.name in FP8_DTYPES:
        array = array.view(numpy_dtype(FP8_DTYPES[1 - FP8_DTYPES.index(array.dtype.name)]))
    return array.astype(np.float64)


def _biased(config: AttentionConfig, inputs: Inputs, scores: Array, twist: Twist) -> Array:
    cap = config.softcap if twist.softcap else None
    if cap is not None and not twist.late_softcap:
        scores = cap * np.tanh(scores / cap)
    if inputs.alibi_slopes is not None:
        rows = np.arange(config.seq_q)[:, None] + (0 if twist.alibi_top_left else config.seq_k - config.seq_q)
        slopes = np.broadcast_to(inputs.alibi_slopes.astype(np.float64), (config.batch, config.num_heads))
        slopes = _of_another(slopes, twist.sloped_by, config)
        scores = scores - twist.alibi * slopes[..., None, None] * np.abs(rows - np.arange(config.seq_k))
    if inputs.mask is not None and inputs.mask.dtype != bool and twist.mask != "ignored":
        scores = scores + _added(config, _of_another(inputs.mask, twist.masked_by, config), twist)
    if cap is not None and twist.late_softcap:
        scores = cap * np.tanh(scores / cap)
    return scores


def _of_another(array: Array, whose: str, config: AttentionConfig) -> Array:
    """Return an array [B or 1, H or 1, …] in which each head has another one's values."""
    if whose == "first head":
        return array[:, :1] if array.ndim == 4 else np.broadcast_to(array[:, :1], array.shape)
    if whose == "first batch":
        return array[:1] if array.ndim == 4 else np.broadcast_to(array[:1], array.shape)
    if whose == "KV head":
        return array[:, np.arange(array.shape[1]) // (config.num_heads // config.num_kv_heads)]
    return array


def _added(config: AttentionConfig, mask: Array, twist: Twist) -> Array:
    values = mask.astype(np.float64)
    if twist.mask == "only -inf":
        return np.where(values > -1e30, 0, values)
    if twist.mask == "scaled":
        return values * config.softmax_scale
    if twist.mask in DTYPE_BYTES:
        return values.astype(numpy_dtype(twist.mask)).astype(np.float64)
    return values


def _normalised(config: AttentionConfig, inputs: Inputs, scores: Array, v: Array, twist: Twist) -> tuple[Array, Array]:
    top = scores.max(axis=-1, initial=-np.inf, keepdims=True)
    sinks = None
    if inputs.sinks is not None and twist.sinks:
        each = _of_another(inputs.sinks.astype(np.float64)[None], twist.sinks_of, config)
        sinks = np.broadcast_to(each[..., None, None], top.shape)
        top = np.maximum(top, sinks)
    top = np.where(np.isneginf(top), 0, top)
    reached = _running_maximum(scores, twist) if twist.tile else top
    if twist.slack:
        top = reached[..., -1:]
    weights = np.exp(scores - top)
    summed = weights
    if twist.tile:
        stale = np.exp(scores - reached)
        weights, summed = (stale if twist.stale in {part, "both"} else weights for part in ("output", "sum"))
    total = summed.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - top))
    out = _weighted(weights * _kept(config, inputs.dropout_seed), v) / np.where(total == 0, 1, total)
    logs = (np.log(total) + (0 if twist.lse == "of the scores' sum alone" else top))[..., 0]
    return out, {"log2": logs / np.log(2), "negated": -logs}.get(twist.lse, logs)


def _kept(config: AttentionConfig, seed: int) -> Array | float:
    """Return dropout's factor for each weight, [B, H, Sq, Sk], with offset 0, from a separate Philox implementation."""
    if not config.dropout_p:
        return 1.0
    key = _philox((0, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[:2]
    head, row, column = np.ogrid[: config.batch * config.num_heads, : config.seq_q, : config.seq_k]
    words = _philox((column // 4, row, head, 0), (int(key[0]), int(key[1])))
    drawn = np.choose(column % 4, np.broadcast_arrays(*words))
    kept = (drawn / 2.0**32 >= config.dropout_p) / (1 - config.dropout_p)
    return np.asarray(kept.reshape(config.scores_shape))


def _philox(counter: tuple[Any, ...], key: tuple[int, int]) -> tuple[Array, ...]:
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    for turn in range(10):
        left, right = ((k + turn * step) % 2**32 for k, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        low = np.uint64(2**32)
        a, b, c, d = y // low ^ b ^ np.uint64(left), y % low, x // low ^ d ^ np.uint64(right), x % low
    return a, b, c, d


def _running_maximum(scores: Array, twist: Twist) -> Array:
    """Return the largest score up to the end of each key's tile, which an online softmax subtracts."""
    edges = np.minimum((np.arange(scores.shape[-1]) // twist.tile + 1) * twist.tile, scores.shape[-1]) - 1
    reached = np.maximum.accumulate(scores, axis=-1)[..., edges]
    for key in range(1, scores.shape[-1] if twist.slack else 0):
        kept = reached[..., key - 1]
        reached[..., key] = np.where(reached[..., key] > kept + twist.slack, reached[..., key], kept)
    return np.where(np.isneginf(reached), 0, reached)


def _weighted(weights: Array, v: Array) -> Array:
    """Return weights @ v, in which a weight of 0 excludes NaN and inf."""
    bad: Array = np.logical_not(np.isfinite(v).all(axis=-1))
    out = weights @ np.where(bad[..., None], 0, v)
    for b, h, j in zip(*np.nonzero(bad), strict=True):
        out[b, h] += np.where(weights[b, h, :, j, None] > 0, weights[b, h, :, j, None] * v[b, h, j], 0)
    return out


def finite_differences(config: AttentionConfig, inputs: Inputs) -> dict[str, Array]:
    """Return "dq", "dk" and "dv" as [1, heads, S, D] in float64, element by element, for small problems with batch 1.

    d sum(out * dout) / dx is (f(x + h) - f(x - h)) / 2 h with h = `STEP`, at exactly the given inputs.
    """
    assert inputs.dout is not None
    assert config.batch == 1
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    views = {
        name: np.ascontiguousarray(heads_view(getattr(inputs, name), config.layout, count, name).astype(np.float64))
        for name, count in heads.items()
    }
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout").astype(np.float64)
    plain = config.replace(layout="BHSD", dtype="float64", direction="forward")
    gradients = {}
    for name, view in views.items():
        gradient = np.zeros(view.size)
        for start in range(0, view.size, _BATCH):
            moved = np.arange(start, min(start + _BATCH, view.size))
            ends = [_sums(plain, inputs, views, dout, (name, moved, sign * STEP)) for sign in (1, -1)]
            gradient[moved] = (ends[0] - ends[1]) / (2 * STEP)
        gradients[f"d{name}"] = gradient.reshape(view.shape)
    return gradients


def _sums(
    config: AttentionConfig, inputs: Inputs, views: dict[str, Array], dout: Array, move: tuple[str, Array, float]
) -> Array:
    """Return sum(out * dout) for many copies of the problem, each with one element of one tensor perturbed."""
    name, moved, step = move
    count = len(moved)
    copies: dict[str, Any] = {key: np.repeat(view, count, axis=0) for key, view in views.items()}
    copies[name].reshape(count, -1)[np.arange(count), moved] += step
    out, _ = attend(config.replace(batch=count), replace(inputs, **copies))
    return np.asarray((out * dout).sum(axis=(1, 2, 3)))
