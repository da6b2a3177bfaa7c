"""Attention in PyTorch: functions with the signatures of PyTorch and flash-attention, and the operators they call.

``torch.ops.rocattn.attention(query, key, value, mask=None, alibi_slopes=None, sinks=None, q_scale=None, k_scale=None,
v_scale=None, rng_state=None, *, causal=False, top_left=False, window=None, softcap=None, scale=None, dropout_p=0.0,
out_dtype=None) -> (out, lse)`` has the options and semantics of `rocattn.attention` in the layout BHSD: tensors
[B, H, S, D] with any strides, on the CPU or an AMD GPU. With ``causal``, ``top_left`` lets row i see keys j <= i, like
PyTorch's ``is_causal``; ``rng_state`` contains dropout's seed and offset, int64 [2] on the CPU.
``torch.ops.rocattn.attention_backward(dout, query, key, value, out, lse, mask=None, …, dlse=None, rng_state=None, *,
…)`` has those of `rocattn.attention_backward` and returns (dq, dk, dv). ``torch.ops.rocattn.attention_varlen`` and
``attention_varlen_backward`` are for packed sequences: query [total_q, H, D], then `rocattn.attention_varlen`'s
arrays in its order. All support autograd, ``torch.compile`` and fake tensors. Query, key and value have gradients,
through the output and the LSE (not yet on a GPU); a mask, slopes or sinks that require a gradient are rejected.

CPU tensors are used in place, with ``torch.get_num_threads()`` threads unless ``ROCATTN_NUM_THREADS`` overrides it;
these are PyTorch's own threads if it was built with OpenMP. Outputs have the query's memory layout: if its heads are
stored within its tokens ([B, S, H, D]), so are theirs.
"""

try:
    import torch  # noqa: F401 - checks that it is installed
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError("rocattn.torch needs PyTorch, which is not installed", name="torch") from None

from rocattn.torch.function import scaled_dot_product_attention
from rocattn.torch.models import register_transformers
from rocattn.torch.packed import attention_varlen, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = [
    "attention_varlen",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "register_transformers",
    "scaled_dot_product_attention",
]
