"""`attention_varlen` and its backward: sequences of different lengths in packed rows, k and v also in pages.

Row i of a sequence with Sq rows and Sk keys has the same meaning as in `rocattn.attention` (`rocattn.functional`): its
diagonal is key i + Sk - Sq of its own sequence, and no row sees another sequence. This matches flash-attention's
``flash_attn_varlen_func`` and the paged form of its ``flash_attn_with_kvcache``.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.backend import Operands, Sequences
from rocattn.backends import BACKENDS
from rocattn.config import VARLEN_LARGEST, AttentionConfig, Direction, VarlenShape
from rocattn.errors import ConfigError
from rocattn.functional import check_array, describe, out_dtype_of, require_array
from rocattn.gpu.pages import DevicePages
from rocattn.gpu.tensors import views_of
from rocattn.layouts import empty_array, stored_shape
from rocattn.steady import Function, checked_by, computed

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.steady import DeviceProblem


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    *,
    seqlens_k: Array | None = None,
    block_table: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    out_dtype: str | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute attention of B sequences of different lengths.

    Args:
        q: [total_q, H, D], the concatenated rows of all sequences; dtypes and strides as in `rocattn.attention`. Or a
            tensor on an AMD GPU: then all arrays are GPU tensors, integers are int32, and their values are not checked,
            which would wait for the GPU.
        k: Packed: [total_k, Hkv, D]. In pages: [num_pages, page_size, Hkv, D], of any page size.
        v: Like k, with Dv.
        cu_seqlens_q: [B + 1], int32: sequence b has the rows from cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q.
            Starts with 0, never decreases, ends with total_q; a sequence may have no rows.
        cu_seqlens_k: The same for packed k and v; None with pages.
        seqlens_k: [B], int32: number of keys per sequence. Required with pages; with packed k and v, limits each
            sequence to its first rows (None: all).
        block_table: [B, max_pages], int32: key j of sequence b is row j % page_size of page
            block_table[b, j // page_size]. Entries beyond a sequence's last key are not read; pages may be shared.
        max_seqlen_q: Upper bound of each sequence's rows. Arrays in host memory are checked against it; for arrays on a
            GPU it selects the kernel (None: total_q), and rows beyond it are not computed.
        max_seqlen_k: The same for keys.
        causal: Row i of a sequence sees its keys j <= i + Sk - Sq.
        window: (left, right) around that diagonal; see `rocattn.attention`.
        softcap: See `rocattn.attention`.
        alibi_slopes: [H] or [B, H]; see `rocattn.attention`.
        sinks: [H]; see `rocattn.attention`.
        scale: See `rocattn.attention`.
        q_scale: Factor of 8-bit q; see `rocattn.attention`.
        k_scale: Factor of 8-bit k.
        v_scale: Factor of 8-bit v.
        out_dtype: See `rocattn.attention`.
        return_lse: Also return the LSE.
        backend: The backend's name; None selects (`BackendRegistry.select`).

    Returns:
        The output [total_q, H, Dv] in q's dtype; with ``return_lse`` also the natural-log LSE, float32 [H, total_q].

    Raises:
        ConfigError: When the arrays or options do not describe such a problem.
        NoBackendError: When the named backend, or every backend, cannot run it.
    """
    if not isinstance(q, np.ndarray):
        tensors = (
            q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, alibi_slopes, sinks, q_scale, k_scale, v_scale
        )  # fmt: skip
        options = (causal, window, softcap, scale, return_lse, out_dtype, max_seqlen_q, max_seqlen_k)
        if (found := computed(_VARLEN, tensors, options, backend)) is not None:
            return found if return_lse else found[0]
    config, operands, sequences = describe_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes,
        sinks=sinks, scale=scale, return_lse=return_lse, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
        out_dtype=out_dtype,
    )  # fmt: skip
    chosen = BACKENDS.select(config, backend)
    out = empty_array((len(q), config.num_heads, config.head_dim_v), out_dtype_of(config, q))
    lse = np.empty((config.num_heads, len(q)), np.float32) if return_lse else None
    chosen.forward_varlen(config, operands, sequences, _heads(out), None if lse is None else lse[None])
    return out if lse is None else (out, lse)


def _on_device(tensors: dict[str, Any], options: dict[str, Any]) -> DeviceProblem:
    config, operands, sequences = describe_varlen(**tensors, **options, readable=False)
    stored: dict[str, tuple[int, ...]] = {"out": stored_shape(config, "out")}
    if config.return_lse:
        stored["lse"] = (config.num_heads, config.rows_q)
    return config, views_of(operands, sequences), stored


_VARLEN = Function(
    (
        "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table", "alibi_slopes", "sinks", "q_scale",
        "k_scale", "v_scale",
    ),
    ("causal", "window", "softcap", "scale", "return_lse", "out_dtype", "max_seqlen_q", "max_seqlen_k"),
    checked_by(_on_device),
)  # fmt: skip


def attend_pages(
    pages: DevicePages, q: Array, k: Array, v: Array, cu_seqlens_q: Array, *, seqlens_k: Array, block_table: Array,
    backend: str | None = None, return_lse: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Compute `attention_varlen` over pages in device memory; ``k`` and ``v`` only provide shapes.

    Raises:
        ConfigError: When the arrays or options do not describe such a problem, or a backend other than "gpu" is named.
        NoBackendError: When the gpu backend cannot run it.
    """
    if backend not in (None, "gpu"):  # not a set: the name may be unhashable
        raise ConfigError(f"the pages are on a device: the gpu backend reads those, not {backend!r}")
    config, operands, sequences = describe_varlen(
        q, k, v, cu_seqlens_q, None, seqlens_k, block_table, return_lse=return_lse, **options
    )
    BACKENDS.select(config, "gpu")
    out = empty_array((len(q), config.num_heads, config.head_dim_v), out_dtype_of(config, q))
    lse = np.empty((config.num_heads, len(q)), np.float32) if return_lse else None
    pages.attend(config, operands, sequences, _heads(out), None if lse is None else lse[None])
    return out if lse is None else (out, lse)


def attention_varlen_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    dlse: Array | None = None,
    seqlens_k: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | None = None,
    backend: str | None = None,
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `attention_varlen` with packed k and v.

    Args:
        dout: Gradient of the output, in its shape and dtype.
        q: This, k, v and all options as given to `attention_varlen`.
        k: [total_k, Hkv, D].
        v: [total_k, Hkv, Dv].
        out: The output of `attention_varlen`.
        lse: The LSE from `attention_varlen` with ``return_lse=True``: float32 [H, total_q].
        cu_seqlens_q: As given to `attention_varlen`.
        cu_seqlens_k: As given to `attention_varlen`.
        dlse: Gradient of the LSE, shaped like ``lse``; None for none. Not supported by backend ``gpu``.
        seqlens_k: As given to `attention_varlen`.
        causal: As given to `attention_varlen`.
        window: As given to `attention_varlen`.
        softcap: As given to `attention_varlen`.
        alibi_slopes: As given to `attention_varlen`; constant here, like sinks.
        sinks: As given to `attention_varlen`.
        scale: As given to `attention_varlen`.
        backend: As given to `attention_varlen`.

    Returns:
        (dq, dk, dv) with the shapes and dtype of q, k and v; 0 in rows of k and v that belong to no sequence.

    Raises:
        ConfigError: When the arrays or options do not describe such a problem.
        NoBackendError: When the named backend, or every backend, cannot run it.
    """
    config, operands, sequences = describe_varlen_backward(
        dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, dlse=dlse, seqlens_k=seqlens_k, causal=causal,
        window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, scale=scale,
    )  # fmt: skip
    chosen = BACKENDS.select(config, backend)
    dq, dk, dv = (np.empty(x.shape, q.dtype) for x in (q, k, v))
    chosen.backward_varlen(
        config, operands, sequences, _heads(dout), _heads(out), lse[None], _heads(dq), _heads(dk), _heads(dv)
    )
    return dq, dk, dv


def describe_varlen_backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *,
    dlse: Array | None = None, seqlens_k: Array | None = None, **options: Any,
) -> tuple[AttentionConfig, Operands, Sequences]:  # fmt: skip
    """Check the arguments of `attention_varlen_backward`, like `describe_varlen`.

    Raises:
        ConfigError: When they do not describe the gradients of such a problem.
    """
    config, operands, sequences = describe_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k, direction="backward", lse_gradient=dlse is not None, **options
    )
    shape = (len(q), config.num_heads, config.head_dim_v)
    for name, array in (("dout", dout), ("out", out)):
        check_array(name, array, config.dtype)
        if array.shape != shape:
            raise ConfigError(f"{name} has shape {array.shape}: the output is [total_q, H, Dv] = {list(shape)}")
    for name, logs in (("lse", lse), *((("dlse", dlse),) if dlse is not None else ())):
        check_array(name, logs, "float32")
        if logs.shape != (config.num_heads, len(q)):
            raise ConfigError(f"{name} has shape {logs.shape}: it must be [H, total_q] = {[config.num_heads, len(q)]}")
    return config, operands._replace(dlse=None if dlse is None else dlse[None]), sequences


def describe_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array | None = None,
    seqlens_k: Array | None = None, block_table: Array | None = None, *, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, direction: Direction = "forward", readable: bool = True, **options: Any,
) -> tuple[AttentionConfig, Operands, Sequences]:  # fmt: skip
    """Check the arguments, and return those of `Backend.forward_varlen`; ``readable`` is as in `describe`.

    Raises:
        ConfigError: When they do not describe a problem.
    """
    paged = block_table is not None
    for name, array, axes in (
        ("q", q, "[total_q, H, D]"),
        ("k", k, "[num_pages, page_size, Hkv, D]" if paged else "[total_k, Hkv, D]"),
        ("v", v, "[num_pages, page_size, Hkv, Dv]" if paged else "[total_k, Hkv, Dv]"),
    ):
        if require_array(name, array).ndim != axes.count(",") + 1 or max(array.shape) > VARLEN_LARGEST:
            raise ConfigError(f"{name} has shape {array.shape}: {axes} is needed, each below 2^31")
    if paged and k.shape[:2] != v.shape[:2]:
        raise ConfigError(f"k and v disagree: {k.shape[:2]} and {v.shape[:2]} are (num_pages, page_size)")
    if paged and (cu_seqlens_k is not None or seqlens_k is None):
        raise ConfigError("pages are found by block_table and seqlens_k: give both, and no cu_seqlens_k")
    if not paged and cu_seqlens_k is None:
        raise ConfigError("k and v are packed, which needs cu_seqlens_k, or in pages, which needs block_table")
    starts_q = _int32("cu_seqlens_q", cu_seqlens_q, (None,), readable=readable)
    if not len(starts_q):
        raise ConfigError("cu_seqlens_q is empty: it has one entry more than there are sequences")
    batch = len(starts_q) - 1
    table = lengths = starts_k = None
    if block_table is not None:
        table = _int32("block_table", block_table, (batch, None), readable=readable)
    if cu_seqlens_k is not None:
        starts_k = _int32("cu_seqlens_k", cu_seqlens_k, (batch + 1,), readable=readable)
    if seqlens_k is not None:
        lengths = _int32("seqlens_k", seqlens_k, (batch,), readable=readable)
    sequences = Sequences(starts_q, starts_k, lengths, table)
    if readable:
        rows, keys = _checked_lengths(sequences, len(q), k.shape[:2] if paged else k.shape[:1])
    else:  # only bounds are known: reading the arrays would wait for the GPU
        most = k.shape[1] * table.shape[1] if table is not None else len(k)
        rows, keys = np.array([max_seqlen_q or len(q)]), np.array([max_seqlen_k or most])
    varlen = VarlenShape(
        total_q=len(q), total_k=0 if paged else len(k), page_size=k.shape[1] if paged else 0,
        num_pages=len(k) if paged else 0, max_pages=0 if table is None else table.shape[1],
        counts_keys=lengths is not None,
    )  # fmt: skip
    packed = varlen, batch, _longest("max_seqlen_q", max_seqlen_q, rows), _longest("max_seqlen_k", max_seqlen_k, keys)
    flat_k, flat_v = (_page_or_all(x, paged=paged) for x in (k, v))
    config, operands = describe(
        q[None], flat_k, flat_v, **options, direction=direction, readable=readable, packed=packed
    )
    if paged:
        operands = operands._replace(k=k.swapaxes(1, 2), v=v.swapaxes(1, 2))
    return config, operands, sequences


def _checked_lengths(sequences: Sequences, total_q: int, keys: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the rows and the keys of each sequence; ``keys``: (total_k,) or (num_pages, page_size).

    Raises:
        ConfigError: When arrays refer to rows or pages that do not exist.
    """
    _check_starts("cu_seqlens_q", sequences.cu_seqlens_q, "q", total_q, exact=True)
    if (table := sequences.block_table) is not None:
        rooms = np.full(sequences.count, table.shape[1] * keys[1], np.int64)
    elif (starts := sequences.cu_seqlens_k) is not None:
        _check_starts("cu_seqlens_k", starts, "k", keys[0], exact=False)
        wide = starts.astype(np.int64)
        rooms = wide[1:] - wide[:-1]
    lengths = rooms if sequences.seqlens_k is None else sequences.seqlens_k
    wrong = (lengths < 0) | (lengths > rooms)
    if wrong.any():
        at, what = int(np.argmax(wrong)), "rows in cu_seqlens_k" if table is None else "pages in the table"
        raise ConfigError(f"seqlens_k has {lengths[at]} at [{at}]: it must be from 0 to {rooms[at]}, the {what}")
    if table is not None and table.size and keys[1]:
        used = np.arange(table.shape[1]) * keys[1] < lengths[:, None]
        no_page = used & ((table < 0) | (table >= keys[0]))
        if no_page.any():
            place = np.argwhere(no_page)[0].tolist()
            raise ConfigError(f"block_table has {table[tuple(place)]} at {place}: there are pages 0 to {keys[0] - 1}")
    return np.diff(sequences.cu_seqlens_q), lengths  # checked above: no difference overflows


def _page_or_all(array: Array, *, paged: bool) -> Array:
    """Return k or v as [1, S, Hkv, D] for shape checks: one page of many."""
    if not paged:
        return array[None]
    return array[:1] if len(array) else np.empty((1, *array.shape[1:]), array.dtype)


def _int32(name: str, array: Array, shape: tuple[int | None, ...], *, readable: bool) -> Array:
    """Return integers as a contiguous int32 array; None in the shape means any size."""
    array = require_array(name, array)
    if array.dtype.kind not in "iu" or (not readable and array.dtype != np.int32):
        raise ConfigError(f"{name} has dtype {array.dtype.name}: int32 is needed")
    if array.ndim != len(shape) or any(want not in {None, have} for have, want in zip(array.shape, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ConfigError(f"{name} has shape {array.shape}: it must be [{wanted}]")
    if not readable:
        return array
    if array.dtype != np.int32 and array.size and not -(1 << 31) <= int(array.min()) <= int(array.max()) < 1 << 31:
        raise ConfigError(f"{name} holds numbers from {array.min()} to {array.max()}: they must fit in int32")
    whole: Array = np.ascontiguousarray(array, np.int32)
    return whole


def _check_starts(name: str, starts: Array, rows: str, total: int, *, exact: bool) -> None:
    """Check cumulative lengths; they must end at the number of rows if ``exact``, else at or before it."""
    if starts[0] != 0:
        raise ConfigError(f"{name} begins with {starts[0]}: it must begin with 0")
    falls = starts[1:] < starts[:-1]  # compared, not subtracted: an int32 difference may overflow
    if falls.any():
        at = int(np.argmax(falls))
        raise ConfigError(f"{name} falls from {starts[at]} to {starts[at + 1]} at [{at + 1}]: it must not")
    if starts[-1] > total or (exact and starts[-1] != total):
        raise ConfigError(f"{name} ends with {starts[-1]}, but {rows} has {total} rows")


def _longest(name: str, given: int | None, lengths: Array) -> int:
    """Return the length of the longest sequence; it must not exceed a given bound."""
    longest = int(lengths.max(initial=0))
    if given is None:
        return longest
    try:
        bound = operator.index(given)
    except TypeError:
        raise ConfigError(f"{name} is {given!r}: it must be a whole number") from None
    if bound < longest:
        raise ConfigError(f"{name} is {bound}, but a sequence has {longest}")
    return longest


def _heads(array: Array) -> Array:
    """Return [S, H, D] as a view [1, H, S, D]."""
    view: Array = array[None].swapaxes(1, 2)
    return view
