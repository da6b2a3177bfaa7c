"""rocattn's attention in the models of Hugging Face's transformers, by their ``attn_implementation``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rocattn.errors import ConfigError
from rocattn.torch.function import autocast
from rocattn.torch.operators import KINDS, OPERATORS, drawn_state, run_operator

if TYPE_CHECKING:
    from torch import Tensor


def register_transformers(name: str = "rocattn") -> None:
    """Make rocattn's attention known to transformers, for ``attn_implementation=name`` of any model that has it.

    As in ``AutoModelForCausalLM.from_pretrained(…, attn_implementation="rocattn")``. Masks are made as for ``"sdpa"``;
    sliding windows are in them. Attention sinks (``s_aux``, without a gradient) and soft caps are taken, and dropout; a
    position bias and weights that are to be returned are refused, by `rocattn.ConfigError`, when the model runs.

    Args:
        name: What models call it.

    Raises:
        ModuleNotFoundError: When transformers is not installed.
        ImportError: When it is too old to be told of attention functions.
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
    """Compute a layer's attention of query [B, H, Sq, D] as [B, Sq, H, Dv]; what is not computed is refused."""
    if position_bias is not None or output_attentions:
        raise ConfigError("position_bias and output_attentions are not supported: use attn_implementation='eager'")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # In this order: whether there is one row is a symbol under torch.compile. Without a mask they stand at the front.
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
