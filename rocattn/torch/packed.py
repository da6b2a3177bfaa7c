"""Sequences of different lengths in PyTorch: `attention_varlen`, and flash-attention's two functions for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rocattn.errors import ConfigError
from rocattn.torch.operators import OPERATORS, run_operator

if TYPE_CHECKING:
    from torch import Tensor


def attention_varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None = None, *,
    seqlens_k: Tensor | None = None, block_table: Tensor | None = None, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, causal: bool = False, window: tuple[int, int] | None = None,
    softcap: float | None = None, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
    scale: float | None = None, q_scale: Tensor | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, out_dtype: torch.dtype | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Compute `rocattn.attention_varlen` of tensors: packed query, key and value; key and value also in pages.

    Args:
        query: [total_q, H, D]; other arguments as there; on an AMD GPU integers are int32.
        key: [total_k, Hkv, D], or [num_pages, page_size, Hkv, D].
        value: Like key, with Dv.
        cu_seqlens_q: [B + 1].
        cu_seqlens_k: [B + 1]; None with pages.
        seqlens_k: [B].
        block_table: [B, max_pages]; pages have no gradients.
        max_seqlen_q: An upper bound.
        max_seqlen_k: An upper bound.
        causal: Aligned bottom-right, by each sequence's own lengths.
        window: (left, right).
        softcap: None for off.
        alibi_slopes: [H] or [B, H].
        sinks: [H].
        scale: None is 1 / sqrt(D).
        q_scale: Factor of 8-bit query.
        k_scale: Factor of 8-bit key.
        v_scale: Factor of 8-bit value.
        out_dtype: Output dtype for 8-bit query.
        return_lse: Also return the LSE, which has a gradient as well.

    Returns:
        [total_q, H, Dv]; with ``return_lse`` also float32 [H, total_q].

    Raises:
        ConfigError: When the arguments do not describe such a problem.
        NoBackendError: When no backend can compute it.
    """
    out, lse = run_operator(
        OPERATORS.attention_varlen.default,
        query, key, value, cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, alibi_slopes, sinks, q_scale, k_scale,
        v_scale, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, causal=causal, window=window, softcap=softcap,
        scale=scale, out_dtype=out_dtype,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Compute flash-attention's function of this name, also on the CPU, and always deterministically.

    Returns:
        [total_q, H, Dv]; with ``return_attn_probs`` (out, LSE, None): the LSE of a row that sees no key is -inf.

    Raises:
        ConfigError: When the arguments do not fit together, or ask for dropout.
        NoBackendError: When no backend can compute it.
    """
    del deterministic
    if dropout_p != 0.0:
        raise ConfigError(f"dropout_p is {dropout_p}: packed sequences do not support dropout: pass 0.0")
    seqlens_k = None
    if block_table is not None:
        cu_seqlens_k, seqlens_k = None, cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    out, lse = attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k=seqlens_k, block_table=block_table, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, alibi_slopes=alibi_slopes, return_lse=True,
        **_named(softmax_scale, causal, window_size, softcap),
    )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Compute flash-attention's function of this name, without rotary embedding or left padding.

    Args:
        q: [B, Sq, H, D].
        k_cache: [entries, capacity, Hkv, D], or with ``block_table`` [num_pages, page_size, Hkv, D].
        v_cache: Like k_cache, with Dv.
        k: [B, Snew, Hkv, D], written into the cache after the first ``cache_seqlens`` tokens; None for none.
        v: The same for v_cache.
        rotary_cos: None.
        rotary_sin: None.
        cache_seqlens: [B] or a number: the tokens in the cache; None means a full cache.
        cache_batch_idx: [B]: each sequence's entry; None is 0, 1, …
        cache_leftpad: None.
        block_table: [B, max_pages].
        softmax_scale: None is 1 / sqrt(D).
        causal: Aligned bottom-right.
        window_size: (left, right); -1 is open.
        softcap: 0.0 for off.
        rotary_interleaved: Without effect.
        alibi_slopes: [H] or [B, H].
        num_splits: Without effect: the backend decides how to split keys.
        return_softmax_lse: Also return the LSE.

    Returns:
        [B, Sq, H, Dv]; with ``return_softmax_lse`` also float32 [B, H, Sq].

    Raises:
        ConfigError: When the arguments do not fit together, or ask for what is not there.
        NoBackendError: When no backend can compute it.
    """
    del rotary_interleaved, num_splits
    if rotary_cos is not None or rotary_sin is not None or cache_leftpad is not None:
        raise ConfigError("rotary_cos, rotary_sin and cache_leftpad must be None: rotate q and k first, and do not pad")
    if q.dim() != 4 or k_cache.dim() != 4:
        raise ConfigError(f"q and k_cache have {q.dim()} and {k_cache.dim()} dimensions: [B, S, H, D] are needed")
    if (k is None) != (v is None):
        raise ConfigError("k and v are new tokens: give both or neither")
    if block_table is not None and cache_batch_idx is not None:
        raise ConfigError("cache_batch_idx is for caches without pages: block_table says where a sequence is")
    batch, rows = q.shape[:2]
    pages = block_table  # a cache without pages has one for each entry
    if pages is None:
        entries = torch.arange(batch, device=q.device) if cache_batch_idx is None else cache_batch_idx
        pages = entries[:, None].int()
    room = pages.shape[1] * k_cache.shape[1]
    if not isinstance(cache_seqlens, torch.Tensor):
        held = room if cache_seqlens is None else cache_seqlens
        cache_seqlens = torch.full((batch,), held, dtype=torch.int32, device=q.device)
    if k is not None and v is not None:
        _append(k_cache, v_cache, k, v, cache_seqlens, pages)
        cache_seqlens = cache_seqlens + k.shape[1]
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows
    out, lse = attention_varlen(
        q.reshape(batch * rows, *q.shape[2:]), k_cache, v_cache, starts, seqlens_k=cache_seqlens, block_table=pages,
        max_seqlen_q=rows, alibi_slopes=alibi_slopes, return_lse=True,
        **_named(softmax_scale, causal, window_size, softcap),
    )  # fmt: skip
    out = out.reshape(batch, rows, *out.shape[1:])
    return (out, lse.reshape(-1, batch, rows).transpose(0, 1)) if return_softmax_lse else out


def _append(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, pages: Tensor) -> None:
    """Write new tokens after those in the cache; tokens that do not fit are rejected before any is written."""
    size, count = k_cache.shape[1], k.shape[1]
    room = pages.shape[1] * size
    # Under torch.compile, and on a GPU, reading them would wait; only PyTorch's own index check remains there.
    if not torch.compiler.is_compiling() and lengths.device.type == "cpu" and (lengths + count > room).any():
        raise ConfigError(f"{int(lengths.max())} tokens and {count} new ones do not fit into a cache of {room}")
    places = lengths[:, None].long() + torch.arange(count, device=k.device)
    held = pages.long().gather(1, places // size)
    with torch.no_grad():
        k_cache[held, places % size], v_cache[held, places % size] = k, v


def _named(scale: float | None, causal: bool, window: tuple[int, int], softcap: float) -> dict[str, Any]:
    """Return flash-attention's options with our names and values."""
    sides = None if tuple(window) == (-1, -1) else tuple(window)
    return {"scale": scale, "causal": causal, "window": sides, "softcap": softcap or None}
