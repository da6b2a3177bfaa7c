"""``scaled_dot_product_attention`` with PyTorch's signature, translated to a call of the operator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias, CausalVariant

from rocattn.errors import ConfigError
from rocattn.torch.operators import KINDS, OPERATORS, drawn_state, run_operator, sdpa_again, sdpa_is_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


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
    """Compute ``torch.nn.functional.scaled_dot_product_attention`` with rocattn's backends.

    As in PyTorch, ``is_causal`` is aligned top-left, a row that sees no key is 0, batches and heads broadcast, autocast
    applies, and a ``torch.nn.attention.bias.CausalBias`` is accepted as a mask.

    Args:
        query: [..., Hq, L, E], or [L, E]; float16, bfloat16, float32 or, on the CPU, float64.
        key: [..., H, S, E].
        value: [..., H, S, Ev].
        attn_mask: bool (True = takes part) or floating (added to the scaled scores), of a
            shape that broadcasts to [..., Hq, L, S].
        dropout_p: The probability that a weight is 0, using PyTorch's CPU generator.
        is_causal: Row i sees keys j <= i, even if L != S.
        scale: Factor of the scores; None is 1 / sqrt(E).
        enable_gqa: Whether H may be a divisor of Hq.

    Returns:
        [..., Hq, L, Ev], in query's dtype.

    Raises:
        ConfigError: When the arguments conflict, or use a mask with ``is_causal``, a mask that requires a gradient,
            or nested tensors.
        NoBackendError: When no backend can compute it.
    """
    call = query, key, value, attn_mask, is_causal, None, scale, enable_gqa, dropout_p
    is_eager = isinstance(query, torch.Tensor) and not torch.compiler.is_compiling()
    if is_eager and (found := sdpa_again(*call)) is not None:
        return found
    masks = () if attn_mask is None else (("attn_mask", attn_mask),)
    for name, tensor in (("query", query), ("key", key), ("value", value), *masks):
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            if isinstance(tensor, torch.fx.Proxy):  # from torch.fx.symbolic_trace: a node of its graph
                named = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
                function, given = scaled_dot_product_attention, (query, key, value, attn_mask)
                return torch.overrides.handle_torch_function(function, given, *given, **named)
            kind = "nested tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ConfigError(f"{name} is a {kind}: a tensor that is not nested is needed")
        if _has_tangent(tensor):
            raise NotImplementedError(f"{name} has a tangent: forward-mode derivatives are not supported")
    _check_options(dropout_p, is_causal=is_causal, enable_gqa=enable_gqa)
    is_causal, lower_right, attn_mask = _causality(query, key, attn_mask, is_causal)
    kind = query.device.type
    if kind in KINDS and torch.is_autocast_enabled(kind):
        query, key, value, attn_mask = (autocast(x, kind) for x in (query, key, value, attn_mask))
    shape = query.shape[:-2]
    if not (query.dim() == key.dim() == value.dim() == 4 and shape[0] == key.shape[0] == value.shape[0]):
        query, key, value, shape = _one_batch(query, key, value)
    if not enable_gqa and not query.shape[1] == key.shape[1] == value.shape[1]:
        query, key, value = _common_heads(query, key, value)
        shape = (*shape[:-1], query.shape[1])
    if attn_mask is not None:
        attn_mask = _mask_of_one_batch(attn_mask, tuple(shape[:-1]))
    out, _ = run_operator(
        OPERATORS.attention.default,
        query, key, value, attn_mask, *((None,) * 5 + (drawn_state(dropout_p),) if dropout_p else ()),
        causal=is_causal or lower_right, top_left=is_causal, scale=scale, dropout_p=dropout_p,
    )  # fmt: skip
    unchanged = query is call[0] and key is call[1] and value is call[2] and attn_mask is call[3]
    if is_eager and unchanged and (attn_mask is None or query.is_cuda) and not dropout_p and not out.requires_grad:
        sdpa_is_operator(*call)
    return out if len(shape) == 2 else out.reshape(*shape, *out.shape[2:])


def _check_options(dropout_p: Any, **flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} is {flag!r}: it must be True or False")
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float | torch.SymFloat):
        raise ConfigError(f"dropout_p is {dropout_p!r}: it must be a number from 0 to 1")


def _has_tangent(tensor: Tensor) -> bool:
    """Return whether a forward-mode derivative is requested, which `torch.library` would silently treat as 0."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:  # noqa: SLF001 - the public query takes 1 us
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def autocast(tensor: Tensor | None, kind: str) -> Tensor | None:
    """Cast like autocast for PyTorch's function: all floating dtypes except float64."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _causality(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> tuple[bool, bool, Tensor | None]:
    """Return whether it is causal with top-left alignment, whether with bottom-right, and any other mask."""
    if mask is None:
        return is_causal, False, None
    causal_bias = isinstance(mask, CausalBias)
    if is_causal:  # PyTorch's wording
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
    """Broadcast the batch dimensions and merge them into one.

    Returns:
        query, key and value as [B, H, S, D], and the leading dimensions of the output's shape, before [L, Ev].
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
    """Format shapes, only for errors: symbolic sizes under ``torch.compile`` have no text."""
    return ", ".join(str(list(x.shape)) for x in tensors)


def _common_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast the heads of [B, H, S, D] without a copy; a single KV head stays one, shared by all query heads."""
    heads = query.shape[1], key.shape[1], value.shape[1]
    count = next((n for n in heads if n != 1), 1)
    if not all(n == 1 or n == count for n in heads):  # noqa: PLR1714 - traced sizes cannot be hashed
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
    if missing:
        mask = mask[(None,) * missing]
    if len(lead) == 1:
        return mask
    inner = mask.shape[-3:]
    if all(n == 1 for n in mask.shape[:-3]):
        return mask.reshape(1, *inner)
    return mask.expand(*lead, *inner).reshape(math.prod(lead), *inner)
