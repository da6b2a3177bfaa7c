"""Attention in PyTorch: ``scaled_dot_product_attention`` with PyTorch's signature, and the operators that it calls.

``torch.ops.rocattn.attention(query, key, value, mask=None, alibi_slopes=None, sinks=None, q_scale=None, k_scale=None,
v_scale=None, *, causal=False, top_left=False, window=None, softcap=None, scale=None, out_dtype=None) -> (out, lse)``
has the options and meanings of `rocattn.attention` in the layout BHSD: tensors [B, H, S, D] of any strides, on the CPU
or an AMD GPU. With ``causal``, ``top_left`` lets row i see keys j <= i, as PyTorch's ``is_causal`` does.
``torch.ops.rocattn.attention_backward(dout, query, key, value, out, lse, mask=None, …, dlse=None, *, …)`` has those of
`rocattn.attention_backward` and returns (dq, dk, dv). Autograd, ``torch.compile`` and fake tensors know both. Query,
key and value have gradients, through the output and the LSE (not yet on a GPU); a mask, slopes or sinks that ask for
one are refused.

CPU tensors are used in place, by ``torch.get_num_threads()`` threads unless ``ROCATTN_NUM_THREADS`` says otherwise;
these are PyTorch's own, if it was built with OpenMP. Outputs lie in memory as the query does: where its heads lie
within its tokens ([B, S, H, D]), theirs do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

try:
    import torch
    from torch.autograd import forward_ad
    from torch.nn.attention.bias import CausalBias, CausalVariant
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError("rocattn.torch needs PyTorch, which is not installed", name="torch") from None
import ml_dtypes
import numpy as np

from rocattn.errors import ConfigError
from rocattn.functional import attention, attention_backward, describe, describe_backward
from rocattn.gpu.tensors import numpy_dtype
from rocattn.threads import threads_from_caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rocattn.backend import Array

_CONSTANTS = ("mask", "alibi_slopes", "sinks")
_SCALES = ("q_scale", "k_scale", "v_scale")
_FORWARD = ("q", "k", "v", *_CONSTANTS, *_SCALES)
_BACKWARD = ("dout", "q", "k", "v", "out", "lse", *_CONSTANTS, "dlse")
_FP8 = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz}
_WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_IN_LAYOUT = {"q", "k", "v", "out", "dout"}
_KINDS = ("cpu", "cuda")  # of devices; the second is PyTorch's name of AMD's, too
# Tensors are positional: `torch.library.register_autograd` takes no others.
_CONSTANT_TENSORS = "Tensor? mask=None, Tensor? alibi_slopes=None, Tensor? sinks=None"
_OPTIONS = "*, bool causal=False, bool top_left=False, SymInt[]? window=None, float? softcap=None, float? scale=None"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what ``torch.nn.functional.scaled_dot_product_attention`` computes, by rocattn's backends.

    As there: ``is_causal`` is aligned top-left, a row that sees no key is 0, batches and heads broadcast, autocast
    casts, and a ``torch.nn.attention.bias.CausalBias`` is taken as mask.

    Args:
        query: [..., Hq, L, E], or [L, E]; float16, bfloat16, float32 or, on the CPU, float64.
        key: [..., H, S, E].
        value: [..., H, S, Ev].
        attn_mask: bool (True = takes part) or floating (query's dtype or float32; added to the scaled scores), of a
            shape that broadcasts to [..., Hq, L, S].
        dropout_p: 0.0: there is no dropout.
        is_causal: Row i sees keys j <= i, also where L != S.
        scale: Factor on the scores; None is 1 / sqrt(E).
        enable_gqa: H may be a divisor of Hq.

    Returns:
        [..., Hq, L, Ev], in query's dtype.

    Raises:
        ConfigError: When the arguments do not fit together, or ask for dropout, for a mask with ``is_causal``, for the
            gradient of a mask, or for nested tensors.
        NoBackendError: When no backend can compute it.
    """
    if dropout_p != 0.0:
        raise ConfigError(f"dropout_p is {dropout_p}: there is no dropout here; pass 0.0, or use PyTorch's function")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if isinstance(tensor, torch.fx.Proxy):  # of torch.fx.symbolic_trace: a node of its graph
            named = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            call, given = scaled_dot_product_attention, (query, key, value, attn_mask)
            return torch.overrides.handle_torch_function(call, given, *given, **named)
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            kind = "nested tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ConfigError(f"{name} is a {kind}: a tensor that is not nested is needed")
        if _has_tangent(tensor):
            raise NotImplementedError(f"{name} has a tangent: there is no forward-mode derivative here")
    is_causal, lower_right, attn_mask = _causality(query, key, attn_mask, is_causal)
    kind = query.device.type
    if kind in _KINDS and torch.is_autocast_enabled(kind):
        query, key, value, attn_mask = (_autocast(x, kind) for x in (query, key, value, attn_mask))
    shape = query.shape[:-2]
    if not (query.dim() == key.dim() == value.dim() == 4 and shape[0] == key.shape[0] == value.shape[0]):
        query, key, value, shape = _one_batch(query, key, value)
    if not enable_gqa and not query.shape[1] == key.shape[1] == value.shape[1]:
        query, key, value = _common_heads(query, key, value)
        shape = (*shape[:-1], query.shape[1])
    if attn_mask is not None:
        attn_mask = _mask_of_one_batch(attn_mask, tuple(shape[:-1]))
    out, _ = _OPERATORS.attention.default(
        query, key, value, attn_mask, causal=is_causal or lower_right, top_left=is_causal, scale=scale
    )
    return out if len(shape) == 2 else out.reshape(*shape, *out.shape[2:])


def _has_tangent(tensor: Tensor) -> bool:
    """Whether a forward-mode derivative is asked for, which `torch.library` would take for 0 without a word."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:  # noqa: SLF001 - asking by itself takes 1 us
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def _autocast(tensor: Tensor | None, kind: str) -> Tensor | None:
    """Cast as autocast does for PyTorch's function: whatever is floating, but not float64."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _causality(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> tuple[bool, bool, Tensor | None]:
    """Return whether it is causal aligned top-left, whether bottom-right, and the mask if there is another."""
    if mask is None:
        return is_causal, False, None
    causal_bias = isinstance(mask, CausalBias)
    if is_causal:  # in PyTorch's words
        raise ConfigError(
            "CausalBias should not be used with causal=True"
            if causal_bias
            else "Explicit attn_mask should not be set when is_causal=True: put the causal part into the mask"
        )
    if not causal_bias:
        return False, False, mask
    sizes, wanted = (mask.seq_len_q, mask.seq_len_kv), (query.shape[-2], key.shape[-2])
    if sizes != wanted:
        raise ConfigError(f"attn_mask is a CausalBias of [L, S] = {list(sizes)}, but query and key have {list(wanted)}")
    lower_right = mask.variant == CausalVariant.LOWER_RIGHT
    return not lower_right, lower_right, None


def _one_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """Broadcast the batch dimensions and make one of them.

    Returns:
        query, key and value as [B, H, S, D], and what stands before [L, Ev] in the output's shape.
    """
    tensors = query, key, value
    dims = [x.dim() for x in tensors]
    if min(dims) < 2:
        raise ConfigError(f"query, key and value have shapes {_shapes(tensors)}: each needs 2 dimensions or more")
    try:
        lead = tuple(torch.broadcast_shapes(*(x.shape[:-3] for x in tensors)))
    except RuntimeError:
        raise ConfigError(
            f"query, key and value have shapes {_shapes(tensors)}: their batches do not broadcast"
        ) from None
    count = math.prod(lead)
    whole = [x if x.dim() > 2 else x[None] for x in tensors]
    query, key, value = (x.expand(*lead, *x.shape[-3:]).reshape(count, *x.shape[-3:]) for x in whole)
    return query, key, value, () if max(dims) == 2 else (*lead, query.shape[1])


def _shapes(tensors: Sequence[Tensor]) -> str:
    """Return shapes as text, for errors alone: symbolic sizes under ``torch.compile`` have none."""
    return ", ".join(str(list(x.shape)) for x in tensors)


def _common_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast the heads of [B, H, S, D] without a copy; one KV head stays one, which grouped heads share."""
    heads = query.shape[1], key.shape[1], value.shape[1]
    count = next((n for n in heads if n != 1), 1)
    if not all(n == 1 or n == count for n in heads):  # noqa: PLR1714 - sizes that are traced cannot be hashed
        raise ConfigError(
            f"query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads, which do not broadcast: "
            "for grouped heads pass enable_gqa=True"
        )
    query = query.expand(-1, count, -1, -1)
    if heads[1] == heads[2]:
        return query, key, value
    return query, key.expand(-1, count, -1, -1), value.expand(-1, count, -1, -1)


def _mask_of_one_batch(mask: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Return a mask that broadcasts to [*lead, H, L, S] as [B or 1, H or 1, L or 1, S or 1]."""
    missing = len(lead) + 3 - mask.dim()
    if missing < 0:
        raise ConfigError(f"attn_mask has {mask.dim()} dimensions, the attention weights have {len(lead) + 3}")
    mask = mask[(None,) * missing]
    if len(lead) == 1:
        return mask
    inner = mask.shape[-3:]
    if all(n == 1 for n in mask.shape[:-3]):
        return mask.reshape(1, *inner)
    return mask.expand(*lead, *inner).reshape(math.prod(lead), *inner)


def _layout(query: Tensor) -> str:
    """Return the order in which the outputs of a call lie in memory: that of the query [B, H, S, D]."""
    return "BSHD" if query.stride(1) < query.stride(2) else "BHSD"


def _turned(tensor: Tensor, layout: str) -> Tensor:
    """View [B, H, S, D] in a layout, or back."""
    return tensor.transpose(1, 2) if layout == "BSHD" else tensor


def _empty(query: Tensor, heads: int, tokens: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return [B, heads, tokens, width] without content, in memory as outputs are."""
    batch, layout = query.shape[0], _layout(query)
    shape = (batch, tokens, heads, width) if layout == "BSHD" else (batch, heads, tokens, width)
    return _turned(query.new_empty(shape, dtype=dtype), layout)


def _check_devices(*tensors: Tensor | None) -> None:
    """Refuse tensors of two devices, one of them "meta" perhaps: what is made for fake ones has no content."""
    devices = {str(tensor.device) for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise ConfigError(f"the tensors are on several devices: {', '.join(sorted(devices))}")


def _fake_attention(
    query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _check_devices(query, key, value, *others)
    shadows = _shadows(_FORWARD, (query, key, value, *others))
    _check_alignment(shadows or {}, options)
    if shadows is not None:
        name = None if out_dtype is None else _dtype_name(out_dtype)
        describe(**shadows, **_hints(options), out_dtype=name, layout="BHSD", readable=False)
    batch, heads, tokens, _ = query.shape
    dtype = (out_dtype or torch.bfloat16) if query.dtype in _FP8 else query.dtype
    lse = query.new_empty((batch, heads, tokens), dtype=torch.float32)
    return _empty(query, heads, tokens, value.shape[3], dtype), lse


def _fake_backward(
    dout: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _check_devices(dout, query, key, value, *others)
    shadows = _shadows(_BACKWARD, (dout, query, key, value, *others))
    _check_alignment(shadows or {}, options)
    if shadows is not None:
        describe_backward(**shadows, **_hints(options), layout="BHSD", readable=False)
    dq, dk, dv = (_empty(query, *x.shape[1:]) for x in (query, key, value))
    return dq, dk, dv


def _shadows(names: Sequence[str], tensors: Sequence[Tensor | None]) -> dict[str, Any] | None:
    """Return arrays of fake tensors' shapes and dtypes over no memory; None where a size is not known yet.

    A size that may change is taken as it is now, so that a check of it is no condition on later ones: those meet the
    real kernel's checks.
    """
    shadows: dict[str, Any] = {}
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is not None:
            shape = [_hint(size) for size in tensor.shape]
            if None in shape:
                return None
            _check_dtype(name, tensor)
            shadows[name] = np.broadcast_to(np.empty((), numpy_dtype(_dtype_name(tensor.dtype))), shape)
    return shadows


def _hint(value: Any) -> Any:
    """Return what a symbolic number is in the example that is traced; other values as they are."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


def _hints(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `describe`."""
    known = {name: value for name, value in options.items() if name != "top_left"}
    if known.get("window") is not None:
        known["window"] = [_hint(side) for side in known["window"]]
    return known | {name: _hint(known[name]) for name in ("softcap", "scale") if name in known}


def _check_alignment(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse ``top_left`` with what is measured from the other diagonal."""
    if options.get("top_left") and (not options.get("causal") or options.get("window") or "alibi_slopes" in given):
        raise ConfigError("top_left aligns causal, which must be True, and neither a window nor ALiBi slopes")


def _align(given: dict[str, Any], options: dict[str, Any], layout: str) -> None:
    """Say with a window, or the keys that are seen, what ``top_left`` means: ours is aligned to the last key.

    Args:
        given: The tensors' arrays in a layout; those of the keys that are seen take their place.
        options: Of `rocattn.attention` but for ``top_left``, which is taken out.
        layout: "BHSD" or "BSHD".
    """
    _check_alignment(given, options)
    if not options.pop("top_left", False):
        return
    axis = layout.index("S")
    rows, keys = given["q"].shape[axis], given["k"].shape[axis]
    if rows > keys:
        options |= {"causal": False, "window": (-1, rows - keys)}
    elif rows < keys == given["v"].shape[axis]:  # no row sees a later key
        seen = (*(slice(None),) * axis, slice(rows))
        given |= {name: given[name][seen] for name in ("k", "v")}
        if "mask" in given and given["mask"].shape[-1] == keys:
            given["mask"] = given["mask"][..., :rows]


def _arguments(names: Sequence[str], tensors: Sequence[Tensor | None], layout: str) -> dict[str, Any]:
    """Return tensors [B, H, S, D] as `rocattn.attention` takes them in a layout, by the names that it gives them."""
    given: dict[str, Any] = {}
    for name, tensor in zip(names, tensors, strict=False):  # those at the end that are None may be missing
        if tensor is not None:
            turned = _turned(tensor, layout) if name in _IN_LAYOUT else tensor
            given[name] = _array(name, turned) if tensor.device.type == "cpu" else _on_gpu(name, turned.detach())
    return given


def _array(name: str, tensor: Tensor) -> Array:
    """Return a CPU tensor's memory as an array."""
    tensor = tensor.detach()
    if tensor.dtype in _FP8:
        stored: Array = tensor.view(torch.uint8).numpy()
        return stored.view(_FP8[tensor.dtype])
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy()  # PyTorch and ml_dtypes do not know each other's bfloat16
        return array.view(ml_dtypes.bfloat16)
    try:
        array = tensor.numpy()
    except (TypeError, RuntimeError) as error:  # not asked before: it is as good as never
        _check_dtype(name, tensor)
        raise ConfigError(f"{name} has no plain memory: {str(error).splitlines()[0]}") from None
    return array


def _check_dtype(name: str, tensor: Tensor) -> None:
    """Refuse the floating dtypes that arrays of neither numpy nor ours have."""
    if tensor.is_floating_point() and tensor.dtype not in {*_WIDE, *_FP8}:
        names = ", ".join(_dtype_name(dtype) for dtype in (*_WIDE, *_FP8))
        raise ConfigError(f"{name} has dtype {_dtype_name(tensor.dtype)}: use one of {names}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on_gpu(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as the gpu backend's kernels can read it, copied only if they cannot."""
    if name in {"alibi_slopes", "sinks", "lse", "dlse", *_SCALES}:
        return tensor.float().contiguous()
    return tensor if name == "mask" or tensor.stride(-1) == 1 else tensor.contiguous()


def _tensor(result: Any) -> Tensor:
    """Return a result of `rocattn.attention` as a tensor over the same memory."""
    if isinstance(result, torch.Tensor):
        return result
    tensor = torch.from_numpy(result.view("int16") if result.dtype == ml_dtypes.bfloat16 else result)
    tensor = tensor.view(torch.bfloat16) if result.dtype == ml_dtypes.bfloat16 else tensor
    return tensor if result.size else tensor.new_empty(tensor.shape)  # numpy's strides are 0 then


def _attention(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    layout = _layout(tensors[0])
    given = _arguments(_FORWARD, tensors, layout)
    if options.get("out_dtype") is not None:
        options["out_dtype"] = _dtype_name(options["out_dtype"])
    _align(given, options, layout)
    with threads_from_caller(torch.get_num_threads()):
        out, lse = attention(**given, **options, layout=layout, return_lse=True)
    return _turned(_tensor(out), layout), _tensor(lse)


def _attention_backward(*tensors: Any, **options: Any) -> tuple[Tensor, ...]:
    layout = _layout(tensors[1])
    given = _arguments(_BACKWARD, tensors, layout)
    _align(given, options, layout)
    with threads_from_caller(torch.get_num_threads()):
        gradients = attention_backward(**given, **options, layout=layout)
    found = [_turned(_tensor(gradient), layout) for gradient in gradients]
    return tuple(_with_unseen(*pair) for pair in zip(found, tensors[1:4], strict=True))


def _with_unseen(gradient: Tensor, of: Tensor) -> Tensor:
    """Return the gradient of all keys, of which `_align` may have left out those that no row sees."""
    seen, keys = gradient.shape[2], of.shape[2]
    if seen == keys:
        return gradient
    whole = _empty(gradient, gradient.shape[1], keys, gradient.shape[3])
    whole[:, :, :seen] = gradient
    whole[:, :, seen:] = 0
    return whole


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    for name, needed in zip(_FORWARD, ctx.needs_input_grad, strict=False):
        if needed and name in {*_CONSTANTS, *_SCALES}:
            raise ConfigError(
                f"{name} requires a gradient, which is not computed: detach it, or use PyTorch's attention"
            )
    query, key, value, *constants = inputs[: -len(_SCALES)]  # 8-bit keys, which have them, have no gradients
    out, lse = output
    ctx.set_materialize_grads(False)  # a loss on out alone must not cost what one on the LSE does
    ctx.save_for_backward(query, key, value, out, lse, *constants)
    ctx.options = {name: value for name, value in keyword_only_inputs.items() if name != "out_dtype"}


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # from query to sinks
    dout = torch.zeros_like(saved[3]) if dout is None else dout
    gradients = _OPERATORS.attention_backward.default(dout, *saved, dlse, **ctx.options)
    return (*gradients, *(None,) * (len(_FORWARD) - 3))


def _refuse_second(ctx: Any, *gradients: Tensor) -> None:
    del ctx, gradients
    raise NotImplementedError("rocattn::attention has no second derivative: use PyTorch's attention for that")


def _register() -> None:
    """Make the operators known to PyTorch."""
    library, three = torch.library, "(Tensor query, Tensor key, Tensor value, "
    scales = "Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None"
    options = f"{_CONSTANT_TENSORS}, {scales}, {_OPTIONS}, ScalarType? out_dtype=None"
    library.define("rocattn::attention", f"{three}{options}) -> (Tensor out, Tensor lse)")
    library.define(
        "rocattn::attention_backward",
        "(Tensor dout, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
        f"{_CONSTANT_TENSORS}, Tensor? dlse=None, {_OPTIONS}) "
        "-> (Tensor dq, Tensor dk, Tensor dv)",
    )
    library.impl("rocattn::attention", _KINDS, _attention)
    library.impl("rocattn::attention_backward", _KINDS, _attention_backward)
    library.register_fake("rocattn::attention", _fake_attention)
    library.register_fake("rocattn::attention_backward", _fake_backward)
    library.register_autograd("rocattn::attention", _differentiate, setup_context=_save)
    library.register_autograd("rocattn::attention_backward", _refuse_second)


_register()
_OPERATORS = torch.ops.rocattn
