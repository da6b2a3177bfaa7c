"""Use rocattn's attention in models of Hugging Face transformers through ``attn_implementation``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rocattn.errors import ConfigError
from rocattn.torch.function import autocast
from rocattn.torch.operators import KINDS, OPERATORS, drawn_state, run_operator

if TYPE_CHECKING:
    from torch import Tensor


def register_transformers(name: str = "rocattn") -> None:
    """Register rocattn's attention with transformers, for ``attn_implementation=name`` in any model that supports it.

    For example ``AutoModelForCausalLM.from_pretrained(…, attn_implementation="rocattn")``. Masks are built as for
    ``"sdpa"`` and include sliding windows. Attention sinks (``s_aux``, without a gradient), soft caps and dropout are
    supported. A position bias or returned weights raise `rocattn.ConfigError` when the model runs.

    Args:
        name: The name for ``attn_implementation``.

    Raises:
        ModuleNotFoundError: When transformers is not installed.
        ImportError: When it is too old to register attention functions.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        raise ModuleNotFoundError("register_transformers needs transformers, which is not installed") from None
    AttentionInterface.register(name, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, position_bias: Tensor | None = None, output_attentions: bool = False, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute a layer's attention for query [B, H, Sq, D] as [B, Sq, H, Dv]; unsupported options are rejected."""
    if position_bias is not None or output_attentions:
        raise ConfigError("position_bias and output_attentions are not supported: use attn_implementation='eager'")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # In this order: a comparison with one row is symbolic under torch.compile. Without a mask, rows are at the front.
    aligned = bool(query.shape[2] > 1 and attention_mask is None and causal)
    kind = query.device.type
    if kind in KINDS and torch.is_autocast_enabled(kind):
        query, key, value, attention_mask = (autocast(x, kind) for x in (query, key, value, attention_mask))
    out, _lse = run_operator(
        OPERATORS.attention.default,
        query, key, value, attention_mask, None, s_aux, None, None, None, drawn_state(dropout), causal=aligned,
        top_left=aligned, softcap=softcap, scale=scaling, dropout_p=dropout,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None
