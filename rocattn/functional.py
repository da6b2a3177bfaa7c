"""The public functions `attention` and `attention_backward`, with the exact meaning of every option.

For query row i and key j of a batch and head, with t = i + Sk - Sq the key on the row's diagonal::

    s = scale * q_i . k_j                             scale: 1 / sqrt(D) unless given; 8-bit q_i, k_j times their scale
    s = softcap * tanh(s / softcap)                   if softcap
    s = s - slope * |t - j|                           if alibi_slopes
    s = s + mask                                      if mask is floating
    hidden if  causal and j > t                       bottom-right, also when Sq != Sk
           or  window and not t - left <= j <= t + right     -1: open
           or  mask is bool and False, or floating and -inf
    p = exp(s) / (sum of exp(s) over visible keys [+ exp(sink)])
    p = p / (1 - dropout_p), or 0                     if dropout_p; does not affect LSE_i
    out_i = sum of p * v_j (8-bit v_j times v_scale),  LSE_i = natural log of that denominator

A row without a visible key has output 0, LSE -inf and gradient 0; with sinks, only the sink remains: output 0,
LSE = sink, gradient 0. A hidden key has no influence at all, even if its K or V row contains NaN or inf.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.backend import Operands
from rocattn.backends import BACKENDS, CpuFlashBackend
from rocattn.config import DTYPE_BYTES, FP8_DTYPES, LARGEST, AttentionConfig, Direction, MaskKind, VarlenShape
from rocattn.dropout import dropout_key
from rocattn.errors import ConfigError
from rocattn.gpu.tensors import views_of
from rocattn.layouts import empty_in_layout, heads_view, mask_view, stored_shape
from rocattn.steady import Function, checked_by, computed, keep

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.steady import DeviceProblem


# A call's checks and config depend on few values, which a loop of calls repeats: cached, they cost a tenth.
# Keys are compared by value, and all values are normalized first, so True, 1 and 1.0 are never confused.
_CONFIGS: dict[tuple[object, ...], AttentionConfig] = {}
_MOST_CONFIGS = 256
_NO_DROPOUT = 0.0  # the default, which needs no check
_LARGEST_SCALE = 1e8  # for 8-bit tensors; times the largest scale of scores it still fits in float32
_WIDE_DTYPES = (None, "bfloat16", "float16", "float32")  # allowed for the output of 8-bit q


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    mask: Array | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    out_dtype: str | None = None,
    dropout_p: float = _NO_DROPOUT,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    layout: str = "BSHD",
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute scaled dot-product attention; the module docstring defines every option exactly.

    Args:
        q: [B, Sq, H, D] for layout "BSHD", [B, H, Sq, D] for "BHSD", [B, Sq, H*D] for "BSE"; float16, bfloat16
            (`ml_dtypes.bfloat16`), float32 or float64; with 8-bit k also their dtype. Strides are arbitrary, and the
            array may be read-only: the layout needs no copy.
            Or a tensor on an AMD GPU (torch's ROCm build, DLPack): then all arrays are tensors on that GPU with a
            contiguous last axis, ALiBi slopes and sinks are float32, and the outputs are tensors of the same kind.
        k: Like q with Sk and Hkv, where H is a multiple of Hkv: each KV head serves H / Hkv query heads. K and V may
            be stored in 8 bits: ml_dtypes' ``float8_e4m3fn`` or ``float8_e4m3fnuz``, torch's on a GPU.
        v: Like k, but its head dimension Dv may differ from D.
        causal: Row i sees keys j <= i + Sk - Sq.
        mask: bool (True = may attend) or floating (added to the scaled scores; -inf hides; dtypes other than q's and
            float32 are converted, or rejected on a GPU); [Sq, Sk], [B, Sk] (if B is not Sq), [B, Sq, Sk], or 4-d
            with each axis 1 or full, broadcast to [B, H, Sq, Sk].
        window: (left, right): row i sees keys from i + Sk - Sq - left to i + Sk - Sq + right; -1 is open.
        softcap: c in c * tanh(score / c), before ALiBi and mask.
        alibi_slopes: [H] or [B, H], floating: ``slope * |i + Sk - Sq - j|`` is subtracted from the scaled scores, as in
            FlashAttention; ``scale`` does not multiply a slope.
        sinks: [H], floating: an additional logit per head in the softmax's denominator and in the LSE; -inf is no sink.
        scale: Factor of q.k; None is 1 / sqrt(D).
        q_scale: Like k_scale, for 8-bit q: one per KV head, shared by its query heads. Times k_scale at most 1e8.
        k_scale: Factor of 8-bit k (k_descale in FlashAttention-3): a number, [1], [Hkv] or [B, Hkv], floating,
            magnitude at most 1e8; on a GPU a float32 tensor. None is 1.
        v_scale: Like k_scale, for v.
        out_dtype: The name of the output's dtype for 8-bit q: "float16", "bfloat16" (None) or "float32".
        dropout_p: The probability, from 0 to 1, that a weight is 0; the others are divided by 1 - dropout_p.
        dropout_seed: From 0 to 2^64 - 1; required with dropout. Which weights are 0 depends only on seed, offset and
            the weight's batch, head, row and key (`rocattn.dropout`): equal calls drop the same weights.
        dropout_offset: From 0 to 2^64 - 1; each offset gives a different mask.
        layout: "BSHD", "BHSD" or "BSE".
        num_heads: H; required for "BSE", otherwise checked if given.
        num_kv_heads: Hkv; ``num_heads`` if None.
        return_lse: Also return the LSE.
        backend: The backend's name; None selects (`BackendRegistry.select`).

    Returns:
        The output in q's layout and dtype, head dimension Dv; with ``return_lse`` also the natural-log LSE,
        float32 [B, H, Sq].

    Raises:
        ConfigError: When shapes, dtypes or options do not describe an attention problem.
        NoBackendError: When the named backend, or every backend, cannot run it.
    """
    if isinstance(k, np.ndarray):
        BACKENDS.expect(backend, k.nbytes)  # before the checks: threads wake up in the meantime
    tensors = (q, k, v, mask, alibi_slopes, sinks, q_scale, k_scale, v_scale)
    options = (
        causal, window, softcap, scale, layout, num_heads, num_kv_heads, return_lse, out_dtype, dropout_p,
        dropout_seed, dropout_offset,
    )  # fmt: skip
    if (found := computed(ATTENTION, tensors, options, backend)) is not None:
        return found if return_lse else found[0]
    config, operands = describe(
        q, k, v, causal=causal, mask=mask, window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        scale=scale, layout=layout, num_heads=num_heads, num_kv_heads=num_kv_heads, return_lse=return_lse,
        q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, out_dtype=out_dtype, dropout_p=dropout_p,
        dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    chosen = BACKENDS.select(config, backend)
    out, view = empty_in_layout(out_shape(config), layout, out_dtype_of(config, q))
    lse = np.empty((config.batch, config.num_heads, config.seq_q), np.float32) if return_lse else None
    chosen.forward(config, operands, view, lse)
    if type(chosen) is CpuFlashBackend:
        keep(ATTENTION, tensors, options, backend, chosen.plain_call(config, operands, view, {"out": out, "lse": lse}))
    return out if lse is None else (out, lse)


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dlse: Array | None = None,
    *,
    causal: bool = False,
    mask: Array | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | None = None,
    dropout_p: float = _NO_DROPOUT,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    layout: str = "BSHD",
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    backend: str | None = None,
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `attention` with respect to q, k and v.

    Args:
        dout: Gradient of the output, in its layout, shape and dtype.
        q: As given to `attention`.
        k: As given to `attention`.
        v: As given to `attention`.
        out: The output of `attention`.
        lse: The LSE from `attention` with ``return_lse=True``: float32 [B, H, Sq].
        dlse: Gradient of the LSE, shaped like ``lse``; None for none. Not supported by backend ``gpu``.
        causal: This and all other options as given to `attention`.
        mask: See `attention`; constant here, like ALiBi slopes and sinks: they get no gradient.
        window: See `attention`.
        softcap: See `attention`.
        alibi_slopes: See `attention`.
        sinks: See `attention`.
        scale: See `attention`.
        dropout_p: See `attention`; the same seed and offset give the same mask here.
        dropout_seed: See `attention`.
        dropout_offset: See `attention`.
        layout: See `attention`.
        num_heads: See `attention`.
        num_kv_heads: See `attention`.
        backend: See `attention`.

    Returns:
        (dq, dk, dv) in the layout, shape and dtype of q, k and v.

    Raises:
        ConfigError: When shapes, dtypes or options do not describe an attention problem.
        NoBackendError: When the named backend, or every backend, cannot run it.
    """
    if not isinstance(q, np.ndarray):
        tensors = (dout, q, k, v, out, lse, mask, alibi_slopes, sinks, dlse)
        options = (
            causal, window, softcap, scale, layout, num_heads, num_kv_heads, dropout_p, dropout_seed, dropout_offset
        )  # fmt: skip
        if (found := computed(BACKWARD, tensors, options, backend)) is not None:
            return found
    config, operands, views = describe_backward(
        dout, q, k, v, out, lse, dlse, causal=causal, mask=mask, window=window, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, scale=scale, layout=layout, num_heads=num_heads,
        num_kv_heads=num_kv_heads, dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
    )  # fmt: skip
    chosen = BACKENDS.select(config, backend)
    dq, dq_view = empty_in_layout(operands.q.shape, layout, q.dtype)
    dk, dk_view = empty_in_layout(operands.k.shape, layout, q.dtype)
    dv, dv_view = empty_in_layout(operands.v.shape, layout, q.dtype)
    chosen.backward(config, operands, views[0], views[1], lse, dq_view, dk_view, dv_view)
    return dq, dk, dv


def describe_backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, dlse: Array | None = None, *,
    layout: str = "BSHD", **options: Any,
) -> tuple[AttentionConfig, Operands, list[Array]]:  # fmt: skip
    """Check the arguments of `attention_backward`; like `describe`, plus [B, H, Sq, Dv] views of dout and out.

    Raises:
        ConfigError: When they do not describe the gradients of an attention problem.
    """
    lse_gradient = dlse is not None
    config, operands = describe(q, k, v, layout=layout, direction="backward", lse_gradient=lse_gradient, **options)
    views = []
    for name, array in (("dout", dout), ("out", out)):
        check_array(name, array, _name(q.dtype))
        view = heads_view(array, layout, config.num_heads, name)
        if view.shape != out_shape(config):
            raise ConfigError(f"{name} has shape {array.shape}: the output is {out_shape(config)} as [B, H, Sq, Dv]")
        views.append(view)
    rows = (config.batch, config.num_heads, config.seq_q)
    for name, logs in (("lse", lse), *((("dlse", dlse),) if dlse is not None else ())):
        check_array(name, logs, "float32")
        if logs.shape != rows:
            raise ConfigError(f"{name} has shape {logs.shape}: it must be [B, H, Sq] = {list(rows)}")
    return config, operands._replace(dlse=dlse), views


def describe(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    mask: Array | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | None = None,
    layout: str = "BSHD",
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    return_lse: bool = False,
    direction: Direction = "forward",
    readable: bool = True,
    packed: tuple[VarlenShape, int, int, int] | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    out_dtype: str | None = None,
    lse_gradient: bool = False,
    dropout_p: float = _NO_DROPOUT,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
) -> tuple[AttentionConfig, Operands]:
    """Check the arguments of `attention`, and return the config and the views for a backend.

    ``readable`` is False for shadows of device tensors, whose content is not checked: that would wait for the GPU.
    ``packed`` has the config's varlen, batch, seq_q and seq_k if q, k and v contain the rows of all sequences.

    Raises:
        ConfigError: When shapes, dtypes or options do not describe an attention problem.
    """
    require_array("q", q)
    require_array("k", k)
    require_array("v", v)
    if out_dtype is not None and not isinstance(out_dtype, str):  # it may be unhashable
        raise ConfigError(f"out_dtype is {out_dtype!r}: it must be the name of a dtype")
    dtype, q_dtype, kv_dtype = _common_dtype(q.dtype, k.dtype, v.dtype, out_dtype)
    num_heads, num_kv_heads = _heads("num_heads", num_heads), _heads("num_kv_heads", num_kv_heads)
    q_view = heads_view(q, layout, num_heads, "q")  # checks the layout
    kv_heads = num_heads if num_kv_heads is None and layout == "BSE" else num_kv_heads
    k_view, v_view = heads_view(k, layout, kv_heads, "k"), heads_view(v, layout, kv_heads, "v")
    kind: MaskKind = "none"
    if mask is not None:
        _check_shapes(q_view.shape, k_view.shape, v_view.shape)
        (batch, heads, seq_q, _), seq_k = q_view.shape, k_view.shape[2]
        mask = mask_view(_checked_mask(mask, dtype, readable=readable), (batch, heads, seq_q, seq_k))
        kind = "bool" if mask.dtype == bool else "additive"
    causal, return_lse, window = _flag("causal", causal), _flag("return_lse", return_lse), _window(window)
    softcap, scale = _number("softcap", softcap), _number("scale", scale)
    drop_key = None
    if dropout_p is not _NO_DROPOUT or dropout_seed is not None or type(dropout_offset) is not int or dropout_offset:
        dropout_p, drop_key = _dropout(dropout_p, dropout_seed, dropout_offset)
    mask_shape, alibi, sink = None if mask is None else mask.shape, alibi_slopes is not None, sinks is not None
    key = (
        q_view.shape, k_view.shape, v_view.shape, dtype, layout, causal, window, kind, mask_shape, softcap, alibi, sink,
        scale, return_lse, direction, packed, q_dtype, kv_dtype, q_scale is not None, k_scale is not None,
        v_scale is not None, lse_gradient, dropout_p,
    )  # fmt: skip
    config = _CONFIGS.get(key)
    if config is None:
        _check_shapes(q_view.shape, k_view.shape, v_view.shape)
        (batch, heads, seq_q, dim), (_, heads_k, seq_k, _), dim_v = q_view.shape, k_view.shape, v_view.shape[3]
        varlen = None
        if packed is not None:
            varlen, batch, seq_q, seq_k = packed
        config = AttentionConfig(
            batch=batch, num_heads=heads, num_kv_heads=heads_k, seq_q=seq_q, seq_k=seq_k, head_dim=dim,
            head_dim_v=dim_v, dtype=dtype, layout=layout, causal=causal, window=window, mask=kind,
            mask_shape=mask_shape, softcap=softcap, alibi=alibi, sinks=sink, scale=scale, return_lse=return_lse,
            direction=direction, varlen=varlen, q_dtype=q_dtype, kv_dtype=kv_dtype, q_scale=q_scale is not None,
            k_scale=k_scale is not None, v_scale=v_scale is not None, lse_gradient=lse_gradient,
            dropout_p=dropout_p,
        )  # fmt: skip
        if len(_CONFIGS) >= _MOST_CONFIGS:
            _CONFIGS.clear()
        _CONFIGS[key] = config
    if alibi_slopes is not None:
        rows = config.batch, config.num_heads
        lowest = -LARGEST if readable else None
        alibi_slopes = np.broadcast_to(_per_head("alibi_slopes", alibi_slopes, config, (rows[1:], rows), lowest), rows)
    if sinks is not None:
        sinks = _per_head("sinks", sinks, config, ((config.num_heads,),), -math.inf if readable else None)
    if kv_dtype is None:
        if drop_key is None:
            return config, Operands(q_view, k_view, v_view, mask, alibi_slopes, sinks)  # by position: half the time
        return config, Operands(q_view, k_view, v_view, mask, alibi_slopes, sinks, dropout_key=drop_key)
    q_factors, k_factors, v_factors = (
        None if given is None else _scale_of_8_bits(name, given, config, readable=readable)
        for name, given in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale))
    )
    if readable and q_factors is not None and k_factors is not None:
        _check_scale("q_scale times k_scale", q_factors * k_factors)
    return config, Operands(q_view, k_view, v_view, mask, alibi_slopes, sinks, k_factors, v_factors, q_factors)


@functools.lru_cache(maxsize=64)
def _common_dtype(
    q: np.dtype[Any], k: np.dtype[Any], v: np.dtype[Any], out_dtype: str | None
) -> tuple[str, str | None, str | None]:
    """Return the names of the output's dtype, and of the 8-bit dtypes of q and of k and v, if any."""
    small = _name(k) if _name(k) in FP8_DTYPES else None
    if small is not None and _name(v) != small:
        raise ConfigError(f"k has dtype {small} and v {_name(v)}: both must be stored alike")
    if small is not None and _name(q) == small:
        if out_dtype not in _WIDE_DTYPES:
            raise ConfigError(f"out_dtype is {out_dtype!r}: use one of {', '.join(map(str, _WIDE_DTYPES))}")
        return out_dtype or _WIDE_DTYPES[1], small, small
    _check_dtype("q", q)
    if out_dtype not in {None, _name(q)}:
        raise ConfigError(f"out_dtype is {out_dtype!r}: it can be chosen only with 8-bit q, and q has {_name(q)}")
    if small is not None:
        return _name(q), None, small
    for name, dtype in (("k", k), ("v", v)):
        _check_dtype(name, dtype, _name(q))
    return _name(q), None, None


def _forward_on_device(tensors: dict[str, Any], options: dict[str, Any]) -> DeviceProblem:
    config, operands = describe(**tensors, **options, readable=False)
    stored = {"out": stored_shape(config, "out")}
    if config.return_lse:
        stored["lse"] = config.scores_shape[:3]
    return config, views_of(operands), stored


def _backward_on_device(tensors: dict[str, Any], options: dict[str, Any]) -> DeviceProblem:
    config, operands, (dout, out) = describe_backward(**tensors, **options, readable=False)
    views = views_of(operands) | {"dout": dout, "out": out, "lse": tensors["lse"]}
    return config, views, {f"d{name}": stored_shape(config, name) for name in ("q", "k", "v")}


ATTENTION = Function(
    ("q", "k", "v", "mask", "alibi_slopes", "sinks", "q_scale", "k_scale", "v_scale"),
    (
        "causal", "window", "softcap", "scale", "layout", "num_heads", "num_kv_heads", "return_lse", "out_dtype",
        "dropout_p", "dropout_seed", "dropout_offset",
    ),
    checked_by(_forward_on_device),
)  # fmt: skip
BACKWARD = Function(
    ("dout", "q", "k", "v", "out", "lse", "mask", "alibi_slopes", "sinks", "dlse"),
    (
        "causal", "window", "softcap", "scale", "layout", "num_heads", "num_kv_heads", "dropout_p", "dropout_seed",
        "dropout_offset",
    ),
    checked_by(_backward_on_device),
)  # fmt: skip


def out_shape(config: AttentionConfig) -> tuple[int, int, int, int]:
    """Return [B, H, Sq, Dv]."""
    return config.batch, config.num_heads, config.seq_q, config.head_dim_v


def out_dtype_of(config: AttentionConfig, q: Array) -> np.dtype[Any]:
    """Return the dtype of the output."""
    if config.q_dtype is None:
        return q.dtype
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if config.dtype == "bfloat16" else config.dtype)


@functools.lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name; numpy rebuilds it on every call, which takes a third of a small attention's time."""
    return dtype.name


def require_array(name: str, array: Any) -> Array:
    """Return the array; reject other types, and masked arrays, whose mask would be ignored.

    Raises:
        ConfigError: Names the argument.
    """
    if type(array) is np.ndarray:  # nearly always; a check for subclasses takes three times as long
        return array
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{name} must be a numpy array, not {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):
        raise ConfigError(f"{name} is a masked array: give its data, and say with mask= what is hidden")
    return array


def check_array(name: str, array: Any, dtype: str) -> None:
    """Reject anything but a numpy array of a dtype.

    Raises:
        ConfigError: Names the argument.
    """
    require_array(name, array)
    _check_dtype(name, array.dtype, dtype)


def _check_dtype(name: str, dtype: np.dtype[Any], wanted: str = "") -> None:
    if wanted and _name(dtype) != wanted:
        raise ConfigError(f"{name} has dtype {_name(dtype)}, but {wanted} is needed: convert one of them")
    if _name(dtype) not in DTYPE_BYTES:
        raise ConfigError(f"{name} has dtype {_name(dtype)}: use one of {', '.join(DTYPE_BYTES)}")
    _check_order(name, dtype)


def _check_order(name: str, dtype: np.dtype[Any]) -> None:
    if not dtype.isnative:
        raise ConfigError(f"{name} has dtype {dtype.str}, not in this machine's byte order: convert it first")


def _check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    for what, axis in (("batch", 0), ("KV heads", 1), ("keys", 2)):
        if k[axis] != v[axis]:
            raise ConfigError(f"k and v disagree: {k[axis]} and {v[axis]} {what} (as [B, H, S, D]: {k} and {v})")
    for what, axis in (("batch", 0), ("head_dim", 3)):
        if q[axis] != k[axis]:
            raise ConfigError(f"q and k disagree: {what} is {q[axis]} and {k[axis]} (as [B, H, S, D]: {q} and {k})")
    if not k[1]:  # a config interprets 0 as "as many as query heads"
        raise ConfigError(f"k and v have no heads (as [B, H, S, D]: {k} and {v}): at least one KV head is needed")


def _checked_mask(given: Any, dtype: str, *, readable: bool) -> Array:
    """Return a mask as backends read it: other floating dtypes are converted if readable."""
    mask = require_array("mask", given)
    floating = dict.fromkeys((dtype, "float32"))
    if mask.dtype == bool or _name(mask.dtype) in floating:
        _check_order("mask", mask.dtype)
        return mask
    if _name(mask.dtype) not in DTYPE_BYTES:
        allowed = "bool (True = may attend) or a floating dtype (added to the scores)"
        raise ConfigError(f"mask has dtype {_name(mask.dtype)}: use {allowed}")
    if not readable:
        raise ConfigError(f"mask has dtype {_name(mask.dtype)}: on a device use bool or {' or '.join(floating)}")
    _check_order("mask", mask.dtype)
    if dtype == "float64":
        return mask.astype(np.float64)
    largest = np.finfo(np.float32).max  # larger finite numbers are clipped to it: only -inf hides
    return np.where(np.isinf(mask), mask, np.clip(mask, -largest, largest)).astype(np.float32)


def _flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise ConfigError(f"{name} is {value!r}: it must be True or False")
    return bool(value)


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = None if isinstance(value, bool | np.bool_ | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise ConfigError(f"{name} is {value!r}: it must be a number")
    if not math.isfinite(number):
        raise ConfigError(f"{name} is {number}: it must be finite")
    return number


def _dropout(dropout_p: Any, seed: Any, offset: Any) -> tuple[float, Array | None]:
    """Return the probability and the mask's key; None without dropout, whatever the seed."""
    probability = _number("dropout_p", dropout_p)
    if probability is None:
        raise ConfigError("dropout_p is None: it must be a number from 0 to 1")
    for name, value in (("dropout_seed", seed), ("dropout_offset", offset)):
        if not (name == "dropout_seed" and value is None) and not 0 <= _whole(name, value) < 1 << 64:
            raise ConfigError(f"{name} is {value!r}: it must be from 0 to 2^64 - 1")
    if probability and seed is None:
        raise ConfigError(f"dropout_p is {dropout_p}: dropout_seed must say which weights are dropped")
    return probability, dropout_key(
        _whole("dropout_seed", seed), _whole("dropout_offset", offset)
    ) if probability else None


def _whole(name: str, value: Any) -> int:
    # Not an array: numpy accepts one with a single number as an integer.
    if not isinstance(value, bool | np.bool_ | np.ndarray):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise ConfigError(f"{name} is {value!r}: it must be a whole number")


def _heads(name: str, count: Any) -> int | None:
    if count is None:
        return None
    return _whole(name, count)


def _window(window: Any) -> tuple[int, int] | None:
    if window is None:
        return None
    try:
        left, right = (operator.index(side) for side in window)
    except (TypeError, ValueError):
        raise ConfigError(f"window is {window!r}: it must be (left, right), whole numbers, -1 for open") from None
    return left, right


def _per_head(
    name: str, values: Any, config: AttentionConfig, shapes: tuple[tuple[int, ...], ...], lowest: float | None
) -> Array:
    """Return values in the compute dtype, each from ``lowest`` to `LARGEST`; None if their content is not read."""
    if not isinstance(values, np.ndarray) or _name(values.dtype) not in DTYPE_BYTES:
        kind = f"{_name(values.dtype)} array" if isinstance(values, np.ndarray) else type(values).__name__
        raise ConfigError(f"{name} must be a floating numpy array, not {kind}")
    require_array(name, values)
    if values.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ConfigError(f"{name} has shape {values.shape}: it must be {wanted}")
    if lowest is not None:
        _check_range(name, values, lowest)
    return values.astype(np.float64 if config.dtype == "float64" else np.float32, copy=False)


def _scale_of_8_bits(name: str, given: Any, config: AttentionConfig, *, readable: bool) -> Array:
    """Return factors of 8-bit q, k or v as [B, Hkv] in the compute dtype, with stride 0 along broadcast axes."""
    kind = np.float64 if config.dtype == "float64" else np.float32
    values = given if isinstance(given, np.ndarray) else np.array(_number(name, given), kind)
    require_array(name, values)
    if _name(values.dtype) not in DTYPE_BYTES:
        raise ConfigError(f"{name} has dtype {_name(values.dtype)}: it must be floating")
    rows = config.batch, config.num_kv_heads
    if values.shape not in {(), (1,), rows[1:], rows}:
        raise ConfigError(
            f"{name} has shape {values.shape}: it must be a number, [1], {list(rows[1:])} (KV heads) or {list(rows)}"
        )
    if readable:
        _check_scale(name, values)
    return np.broadcast_to(values.astype(kind, copy=False), rows)


def _check_scale(name: str, values: Array) -> None:
    if not (abs(values.astype(np.float64)) <= _LARGEST_SCALE).all():
        raise ConfigError(f"{name} must be finite and at most {_LARGEST_SCALE:g} in magnitude")


def _check_range(name: str, values: Array, lowest: float) -> None:
    wide = values.astype(np.float64)  # the bounds would be inf in float16
    # A NaN becomes both maximum and minimum, and fails every comparison.
    if wide.max(initial=0) <= LARGEST and (lowest == -math.inf or wide.min(initial=0) >= lowest):
        return
    at = tuple(np.argwhere(~((wide >= lowest) & (wide <= LARGEST)))[0].tolist())
    bounds = f"at most {LARGEST:g} (-inf is no sink)" if lowest == -math.inf else f"from {lowest:g} to {LARGEST:g}"
    raise ConfigError(f"{name} has {wide[at]:g} at {list(at)}: it must be {bounds}")
