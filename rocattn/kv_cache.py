"""KV caches that grow without copying: keys and values of past tokens, in reserved memory or in blocks.

Both contain numpy arrays of fixed size. With an 8-bit dtype (``"float8_e4m3fn"`` or ``"float8_e4m3fnuz"``) they store
tokens divided by a scale (`quantised`), which `attend` multiplies back.

`KVCache` reserves its whole capacity at once (unwritten memory costs only address space) and returns views.
`PagedKVCache` takes blocks from a pool as sequences grow, so that sequences of any length share it (Kwon et al. 2023,
PagedAttention); attention reads them through the block table (`rocattn.attention_varlen`).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.config import DTYPE_BYTES, FP8_DTYPES
from rocattn.errors import ConfigError
from rocattn.functional import attention, require_array
from rocattn.gpu.pages import DevicePages
from rocattn.varlen import attend_pages, attention_varlen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from rocattn.backend import Array

_MOST = 1 << 26  # sequences or blocks, since they are kept in lists
_QUANTISED = ("float16", "bfloat16", "float32")
"""Dtypes that an 8-bit cache accepts in addition to its own."""


class KVCache:
    """K and V of equally long sequences, in one block of reserved memory.

    Attributes:
        length: Stored tokens per sequence.
        capacity: Maximum tokens per sequence.

    Args:
        batch: B.
        num_kv_heads: Hkv.
        head_dim: D of k.
        capacity: Tokens to reserve.
        head_dim_v: Dv of v; ``head_dim`` if None.
        dtype: Dtype of the stored k and v.
        k_scale: For an 8-bit dtype: the factor of stored k, a positive number or [Hkv].
        v_scale: The same for v.

    Raises:
        ConfigError: When a size is negative or not an integer, attention does not take the dtype, or memory is short.
    """

    def __init__(
        self, batch: int, num_kv_heads: int, head_dim: int, *, capacity: int, head_dim_v: int | None = None,
        dtype: DTypeLike = np.float32, k_scale: Array | float = 1.0, v_scale: Array | float = 1.0,
    ) -> None:  # fmt: skip
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        self.length, self.capacity, kept = 0, _count("capacity", capacity), _kept_dtype(dtype)
        rows = _count("batch", batch), self.capacity, _count("num_kv_heads", num_kv_heads)
        self._k = _reserved((*rows, _count("head_dim", head_dim)), kept)
        self._v = _reserved((*rows, _count("head_dim_v", head_dim_v)), kept)
        self._scales = _kept_scales(kept, k_scale, v_scale, rows[2])

    @property
    def keys(self) -> Array:
        """K as a view [B, length, Hkv, D]; it does not grow with the cache."""
        return self._k[:, : self.length]

    @property
    def values(self) -> Array:
        """V as a view [B, length, Hkv, Dv]."""
        return self._v[:, : self.length]

    def append(self, k: Array, v: Array) -> None:
        """Append tokens: k [B, S, Hkv, D] and v [B, S, Hkv, Dv] in the cache's dtype.

        An 8-bit cache also accepts float16, bfloat16 and float32, and stores them `quantised`.

        Raises:
            ConfigError: When shapes or dtypes differ from the cache's, or the capacity is exceeded.
        """
        k, v = _kept_tokens(k, v, self._k, self._v, len(self._k), self._scales)
        end = self.length + k.shape[1]
        if end > self.capacity:
            raise ConfigError(f"{end} tokens do not fit into a cache of {self.capacity}: reserve more")
        self._k[:, self.length : end], self._v[:, self.length : end] = k, v
        self.length = end

    def truncate(self, length: int) -> None:
        """Remove all tokens from ``length`` on.

        Raises:
            ConfigError: When fewer tokens are stored.
        """
        self.length = _checked_length(length, self.length)

    def attend(self, q: Array, **options: Any) -> Any:
        """Return `rocattn.attention` of q [B, Sq, H, D] over the stored tokens; same options, but only layout "BSHD".

        Raises:
            ConfigError: When arguments do not describe an attention problem, or name a layout other than "BSHD".
        """
        if (layout := options.get("layout", "BSHD")) != "BSHD":  # the stored K would be read with heads as tokens
            raise ConfigError(f"layout is {layout!r}: the cache keeps [B, S, Hkv, D], so q must be BSHD")
        return attention(q, self.keys, self.values, **(options | self._scales))


class PagedKVCache:
    """K and V of sequences of any lengths, in blocks from a shared pool.

    Forked or reordered sequences share blocks; appending to a shared block copies it first.

    Attributes:
        block_size: Tokens per block.
        tables: The blocks of each sequence, in the order of its tokens.
        lengths: Stored tokens per sequence.

    Args:
        batch: B, the number of sequences.
        num_kv_heads: Hkv.
        head_dim: D of k.
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.
        head_dim_v: Dv of v; ``head_dim`` if None.
        dtype: Dtype of the stored k and v.
        k_scale: For an 8-bit dtype: the factor of stored k, a positive number or [Hkv].
        v_scale: The same for v.
        device: HIP's index of the device that stores the blocks; None for host memory. `append` and `attend` take
            numpy arrays in both cases; only these are copied to and from a device.

    Raises:
        ConfigError: When a size is negative or not an integer, a block has no tokens, attention does not support the
            dtype, or memory is short.
        GpuError: When the device does not exist or has too little memory.
    """

    def __init__(
        self, batch: int, num_kv_heads: int, head_dim: int, *, num_blocks: int, block_size: int = 64,
        head_dim_v: int | None = None, dtype: DTypeLike = np.float32, k_scale: Array | float = 1.0,
        v_scale: Array | float = 1.0, device: int | None = None,
    ) -> None:  # fmt: skip
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        self.block_size, batch = _count("block_size", block_size, least=1), _count("batch", batch, most=_MOST)
        num_blocks, kept = _count("num_blocks", num_blocks), _kept_dtype(dtype)
        rows = num_blocks, self.block_size, _count("num_kv_heads", num_kv_heads)
        k, v = (*rows, _count("head_dim", head_dim)), (*rows, _count("head_dim_v", head_dim_v))
        self._scales = _kept_scales(kept, k_scale, v_scale, rows[2])
        self._pages: DevicePages | None = None
        if device is None:
            self._k, self._v = _reserved(k, kept), _reserved(v, kept)
        else:
            from rocattn.gpu.pages import DevicePages

            self._pages = DevicePages(_count("device", device), k, v, kept)
            self._k, self._v = _shadow(k, kept), _shadow(v, kept)
        # The lowest is taken first: fresh sequences get adjacent blocks.
        self._free = list(range(_count("num_blocks", num_blocks, most=_MOST)))[::-1]
        self._holders = [0] * len(self._free)  # number of sequences that use each block
        self.tables: list[list[int]] = [[] for _ in range(batch)]
        self.lengths = [0] * batch
        self._table = np.zeros((batch, 0), np.int32)  # `tables` as kernels read them; undefined past their ends

    @property
    def free_blocks(self) -> int:
        """Number of unused blocks."""
        return len(self._free)

    @property
    def keys(self) -> Any:
        """The pool of K, [num_blocks, block_size, Hkv, D]: a view, or the device's array."""
        return self._k if self._pages is None else self._pages.keys

    @property
    def values(self) -> Any:
        """The pool of V, [num_blocks, block_size, Hkv, Dv]."""
        return self._v if self._pages is None else self._pages.values

    @property
    def block_table(self) -> Array:
        """The blocks of each sequence, int32 [B, max blocks]: ``block_table`` of `rocattn.attention_varlen`."""
        return self._table[:, : max(map(len, self.tables), default=0)]

    @property
    def seqlens(self) -> Array:
        """The stored tokens per sequence, int32 [B]: ``seqlens_k`` of `rocattn.attention_varlen`."""
        return np.array(self.lengths, np.int32)

    def append(self, k: Array, v: Array, *, sequence: int | None = None) -> None:
        """Append tokens to every sequence, or to one: k [B or 1, S, Hkv, D] and v [B or 1, S, Hkv, Dv].

        An 8-bit cache also accepts float16, bfloat16 and float32, and stores them `quantised`.

        Raises:
            ConfigError: When shapes or dtypes differ from the cache's, or the pool has too few free blocks; nothing is
                stored then.
        """
        chosen = self._chosen(sequence)
        k, v = _kept_tokens(k, v, self._k, self._v, len(chosen), self._scales)
        ends = [self.lengths[index] + k.shape[1] for index in chosen]
        wanted = [-(-end // self.block_size) - len(self.tables[index]) for index, end in zip(chosen, ends, strict=True)]
        self._copy_shared(chosen if k.shape[1] else (), sum(wanted))
        for index, more in zip(chosen, wanted, strict=True):
            if more:
                self._take(index, more)
        places = np.array([self.lengths[index] for index in chosen])[:, None] + np.arange(k.shape[1])
        blocks = self._table[np.array(chosen, int)[:, None], places // self.block_size] if places.size else places
        rows = places % self.block_size
        if self._pages is None:
            self._k[blocks, rows], self._v[blocks, rows] = k, v
        else:
            flat = (blocks.astype(np.int64) * self.block_size + rows).reshape(-1)
            self._pages.write(flat, k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:]))
        for index, end in zip(chosen, ends, strict=True):
            self.lengths[index] = end

    def truncate(self, length: int, *, sequence: int | None = None) -> None:
        """Remove the tokens from ``length`` on, of every sequence or of one; their blocks return to the pool.

        Raises:
            ConfigError: When fewer tokens are stored.
        """
        chosen = self._chosen(sequence)
        length = min(
            (_checked_length(length, self.lengths[index]) for index in chosen), default=0
        )  # check all before changing any
        for index in chosen:
            kept = -(-length // self.block_size)
            self._give_back(self.tables[index][kept:])
            del self.tables[index][kept:]
            self.lengths[index] = length

    def fork(self, sequence: int) -> int:
        """Add a sequence that shares all blocks of an existing one; return its index, the last one.

        Raises:
            ConfigError: When the sequence does not exist.
        """
        (source,) = self._chosen(_count("sequence", sequence))
        self._arrange([*range(len(self.lengths)), source])
        return len(self.lengths) - 1

    def reorder(self, indices: Sequence[int] | Array) -> None:
        """Replace sequence i with the previous sequence indices[i], as beam search chooses; drop those not listed.

        Args:
            indices: Sequence indices, one per resulting sequence. No token is copied.

        Raises:
            ConfigError: When they are not a list of integers, or name a sequence that does not exist.
        """
        try:
            count = len(indices)
        except (TypeError, OverflowError):
            raise ConfigError(f"indices is {indices!r}: it must be a list of sequences") from None
        if count > _MOST:
            raise ConfigError(f"indices has {count} entries: a cache takes at most {_MOST}")
        self._arrange([self._chosen(_count("sequence", index))[0] for index in indices])

    def _arrange(self, sources: list[int]) -> None:
        """Replace the sequences with these; blocks that become unused are freed."""
        before = self.tables
        self.tables = [list(before[source]) for source in sources]
        for table in self.tables:
            for block in table:
                self._holders[block] += 1
        for table in before:
            self._give_back(table)
        self.lengths, self._table = [self.lengths[source] for source in sources], self._table[sources]

    def _give_back(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def _copy_shared(self, chosen: Sequence[int], wanted: int) -> None:
        """Copy shared blocks that sequences will write to, provided that ``wanted`` more free blocks remain.

        Raises:
            ConfigError: When the pool has too few free blocks; nothing is copied then.
        """
        shared: list[tuple[int, int]] = []
        holders: dict[int, int] = {}  # remaining users as one after the other gets its copy
        for index in chosen:
            if self.lengths[index] % self.block_size:
                block = self.tables[index][-1]
                holders[block] = holders.get(block, self._holders[block]) - 1
                if holders[block]:
                    shared.append((index, block))
        if wanted + len(shared) > len(self._free):
            raise ConfigError(
                f"{wanted + len(shared)} more blocks are needed and {len(self._free)} are free: make a larger pool"
            )
        for index, block in shared:
            copy = self._free.pop()
            if self._pages is None:
                self._k[copy], self._v[copy] = self._k[block], self._v[block]
            else:
                self._pages.copy(block, copy)
            self._holders[block] -= 1
            self._holders[copy] = 1
            last = len(self.tables[index]) - 1
            self.tables[index][last] = self._table[index, last] = copy

    def attend(self, q: Array, **options: Any) -> Any:
        """Return `rocattn.attention_varlen` of q [B, Sq, H, D] over each sequence's stored tokens.

        Args:
            q: Queries of each sequence's newest Sq tokens, in the cache's dtype; in any other dtype for an 8-bit cache.
            options: As in `rocattn.attention_varlen`.

        Returns:
            The output [B, Sq, H, Dv]; with ``return_lse`` also the LSE, float32 [B, H, Sq].

        Raises:
            ConfigError: When q does not have one entry per sequence, or does not match K.
        """
        require_array("q", q)
        batch = len(self.lengths)
        if q.ndim != 4 or len(q) != batch:
            raise ConfigError(f"q has shape {q.shape}: [B, Sq, H, D] with B = {batch} is needed")
        starts = np.arange(batch + 1) * q.shape[1]
        packed, table = q.reshape(batch * q.shape[1], *q.shape[2:]), self.block_table
        options |= {"seqlens_k": self.seqlens, "block_table": table, **self._scales}
        if self._pages is None:
            result = attention_varlen(packed, self._k, self._v, starts, **options)
        else:
            result = attend_pages(self._pages, packed, self._k, self._v, starts, **options)
        out, *lse = result if isinstance(result, tuple) else (result,)
        out = out.reshape(*q.shape[:3], self._v.shape[-1])
        return (out, lse[0].reshape(q.shape[2], batch, q.shape[1]).swapaxes(0, 1)) if lse else out

    def _take(self, index: int, more: int) -> None:
        """Add blocks to a sequence."""
        table = self.tables[index]
        taken = [self._free.pop() for _ in range(more)]
        for block in taken:
            self._holders[block] = 1
        table += taken
        if len(table) > self._table.shape[1]:  # grow by half, so that growth is cheap
            wider = np.zeros((len(self.tables), len(table) * 3 // 2), np.int32)
            wider[:, : self._table.shape[1]] = self._table
            self._table = wider
        self._table[index, len(table) - more : len(table)] = table[-more:]

    def _chosen(self, sequence: int | None) -> Sequence[int]:
        if sequence is None:
            return range(len(self.lengths))
        sequence = _count("sequence", sequence)
        if sequence >= len(self.lengths):
            raise ConfigError(f"there is no sequence {sequence}: the cache has {len(self.lengths)}")
        return [sequence]


def _count(name: str, value: Any, *, least: int = 0, most: float = math.inf) -> int:
    """Return a size as an int, or raise: a float token count would only fail later, in numpy."""
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if isinstance(value, bool) or count < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number, {least} or more")
    if count > most:
        raise ConfigError(f"{name} is {value}: a cache takes at most {most}")
    return count


def _reserved(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return uninitialized memory, or raise: numpy has several errors for sizes that are too large."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        size = math.prod(shape) * dtype.itemsize
        raise ConfigError(f"there is no memory for {size / (1 << 30):.3g} GiB of keys or values: keep less") from None


def _shadow(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of a shape without memory, never read or written, to check shapes of device data."""
    return np.broadcast_to(np.empty((), dtype), shape)


def _kept_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype to store, also by a config's name: numpy alone does not support "bfloat16"."""
    import ml_dtypes

    names = (*DTYPE_BYTES, *FP8_DTYPES)
    own = isinstance(dtype, str) and dtype in {"bfloat16", *FP8_DTYPES}
    try:
        kept = np.dtype(getattr(ml_dtypes, str(dtype)) if own else dtype)
    except TypeError:
        raise ConfigError(f"dtype is {dtype!r}: use one of {', '.join(names)}") from None
    if kept.name not in names or not kept.isnative:
        raise ConfigError(f"dtype is {kept.str}: use one of {', '.join(names)}, in this machine's byte order")
    return kept


def quantised(values: Array, scale: Array | float, dtype: np.dtype[Any]) -> Array:
    """Return values divided by a scale, in float32, then rounded to the nearest 8-bit float, ties to even.

    Values beyond its range become its largest number; NaN stays NaN. Pass the same scale to attention as ``k_scale`` or
    ``v_scale``: for example the largest magnitude over 448 (``float8_e4m3fn``) or 240 (``float8_e4m3fnuz``).

    Args:
        values: [..., Hkv, D], float16, bfloat16 or float32.
        scale: A number or [Hkv].
        dtype: ml_dtypes' float8_e4m3fn or float8_e4m3fnuz.
    """
    import ml_dtypes

    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations
    wide = values.astype(np.float32) / np.asarray(scale, np.float32)[..., None]
    narrow: Array = np.clip(wide, -largest, largest, out=wide).astype(dtype)
    return narrow


def _kept_scales(kept: np.dtype[Any], k_scale: Any, v_scale: Any, heads: int) -> dict[str, Array]:
    """Return a cache's scales by name, [] or [Hkv]; none for a cache without quantization."""
    scales: dict[str, Array] = {}
    for name, given in (("k_scale", k_scale), ("v_scale", v_scale)):
        try:
            numbers = np.asarray(given)
            scale = numbers.astype(np.float32) if numbers.dtype.kind in "iufV" else np.empty(0)  # V: ml_dtypes' floats
        except (TypeError, ValueError):
            scale = np.empty(0)
        if scale.shape not in {(), (heads,)} or not scale.size or not (np.isfinite(scale) & (scale > 0)).all():
            raise ConfigError(f"{name} must be a positive number, or [{heads}] of them, one per KV head")
        scales[name] = scale
    if kept.name in FP8_DTYPES:
        return scales
    if any((scale != 1).any() for scale in scales.values()):
        raise ConfigError(f"k_scale and v_scale are for caches of {' or '.join(FP8_DTYPES)}, not of {kept.name}")
    return {}


def _kept_tokens(
    k: Array, v: Array, keys: Array, values: Array, batch: int, scales: dict[str, Array]
) -> tuple[Array, Array]:
    """Return k and v as they are stored; scales are those of an 8-bit cache.

    Raises:
        ConfigError: When k and v differ in their number of tokens, do not have the stored form [., ., Hkv, D], or have
            neither the stored dtype nor one that can be quantized.
    """
    for name, array, stored in (("k", k, keys), ("v", v, values)):
        require_array(name, array)
        if array.ndim != 4 or array.shape[0] != batch or array.shape[2:] != stored.shape[2:]:
            wanted = f"[{batch}, S, {stored.shape[2]}, {stored.shape[3]}]"
            raise ConfigError(f"{name} has shape {array.shape}: the cache takes {wanted}")
        if array.dtype != stored.dtype and not (scales and array.dtype.name in _QUANTISED):
            raise ConfigError(f"{name} has dtype {array.dtype.name}: the cache keeps {stored.dtype.name}")
    if k.shape[1] != v.shape[1]:
        raise ConfigError(f"k has {k.shape[1]} tokens and v {v.shape[1]}")
    k = k if k.dtype == keys.dtype else quantised(k, scales["k_scale"], keys.dtype)
    v = v if v.dtype == values.dtype else quantised(v, scales["v_scale"], values.dtype)
    return k, v


def _checked_length(length: int, kept: int) -> int:
    length = _count("length", length)
    if length > kept:
        raise ConfigError(f"cannot truncate to {length} tokens: {kept} are kept")
    return length
