"""KV caches that grow without copying: keys and values of past tokens, in reserved memory or in blocks.

Both hold numpy arrays; their sizes are fixed when they are made.

`KVCache` reserves room for its capacity at once (memory that nothing was written to costs address space only) and
hands out views. `PagedKVCache` takes blocks of a pool as sequences grow, so that sequences of any length share it
(Kwon et al. 2023, PagedAttention); attention then runs over each stretch of adjacent blocks, and the parts are joined
by their LSE, which needs no gathered copy of K and V and works with every backend. Only float64 is gathered, and what
has an LSE beyond `LARGE_LSE`: a float32 LSE does not hold enough digits of the sums there.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.config import DTYPE_BYTES
from rocattn.errors import ConfigError
from rocattn.functional import attention, require_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from rocattn.backend import Array

LARGE_LSE = 2.0**14
"""Beyond it the spacing of float32 is 2^-9 and more, and parts joined by their LSE are off by as much."""


class KVCache:
    """K and V of sequences of one common length, in one piece of reserved memory.

    Attributes:
        length: Tokens kept of each sequence.
        capacity: Tokens there is room for.

    Args:
        batch: B.
        num_kv_heads: Hkv.
        head_dim: D of k.
        capacity: Tokens to reserve for.
        head_dim_v: Dv of v; as ``head_dim`` if None.
        dtype: Of k and v.

    Raises:
        ConfigError: When a size is negative or no whole number, attention does not take the dtype, or memory is short.
    """

    def __init__(
        self, batch: int, num_kv_heads: int, head_dim: int, *, capacity: int, head_dim_v: int | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:  # fmt: skip
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        self.length, self.capacity, kept = 0, _count("capacity", capacity), _kept_dtype(dtype)
        rows = _count("batch", batch), self.capacity, _count("num_kv_heads", num_kv_heads)
        self._k = _reserved((*rows, _count("head_dim", head_dim)), kept)
        self._v = _reserved((*rows, _count("head_dim_v", head_dim_v)), kept)

    @property
    def keys(self) -> Array:
        """K as a view [B, length, Hkv, D]; it does not grow when the cache does."""
        return self._k[:, : self.length]

    @property
    def values(self) -> Array:
        """V as a view [B, length, Hkv, Dv]."""
        return self._v[:, : self.length]

    def append(self, k: Array, v: Array) -> None:
        """Keep the next tokens: k [B, S, Hkv, D] and v [B, S, Hkv, Dv] in the cache's dtype.

        Raises:
            ConfigError: When shapes or dtypes differ from the cache's, or there is no room.
        """
        _check_tokens(k, v, self._k, self._v, len(self._k))
        end = self.length + k.shape[1]
        if end > self.capacity:
            raise ConfigError(f"{end} tokens do not fit into a cache of {self.capacity}: reserve more")
        self._k[:, self.length : end], self._v[:, self.length : end] = k, v
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on.

        Raises:
            ConfigError: When that many are not kept.
        """
        self.length = _checked_length(length, self.length)

    def attend(self, q: Array, **options: Any) -> Any:
        """Return `rocattn.attention` of q [B, Sq, H, D] over what is kept; options as it takes them, but one layout.

        Raises:
            ConfigError: When arguments do not describe an attention problem, or name another layout than "BSHD".
        """
        if (layout := options.get("layout", "BSHD")) != "BSHD":  # the kept K would be read with heads for tokens
            raise ConfigError(f"layout is {layout!r}: the cache keeps [B, S, Hkv, D], so q must be BSHD")
        return attention(q, self.keys, self.values, **options)


class PagedKVCache:
    """K and V of sequences of any lengths, in blocks that each takes from a common pool.

    Attributes:
        block_size: Tokens a block.
        tables: The blocks of each sequence, in the order of its tokens.
        lengths: Tokens kept of each sequence.

    Args:
        batch: B, the number of sequences.
        num_kv_heads: Hkv.
        head_dim: D of k.
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.
        head_dim_v: Dv of v; as ``head_dim`` if None.
        dtype: Of k and v.

    Raises:
        ConfigError: When a size is negative or no whole number, a block has no tokens, attention does not take the
            dtype, or memory is short.
    """

    def __init__(
        self, batch: int, num_kv_heads: int, head_dim: int, *, num_blocks: int, block_size: int = 64,
        head_dim_v: int | None = None, dtype: DTypeLike = np.float32,
    ) -> None:  # fmt: skip
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        self.block_size, batch = _count("block_size", block_size, least=1), _count("batch", batch)
        num_blocks, kept = _count("num_blocks", num_blocks), _kept_dtype(dtype)
        rows = num_blocks * self.block_size, _count("num_kv_heads", num_kv_heads)
        self._k = _reserved((*rows, _count("head_dim", head_dim)), kept)
        self._v = _reserved((*rows, _count("head_dim_v", head_dim_v)), kept)
        self._free = list(range(num_blocks))[::-1]  # the lowest is taken first: fresh sequences get adjacent blocks
        self.tables: list[list[int]] = [[] for _ in range(batch)]
        self.lengths = [0] * batch

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    def append(self, k: Array, v: Array, *, sequence: int | None = None) -> None:
        """Keep the next tokens of every sequence, or of one: k [B or 1, S, Hkv, D] and v [B or 1, S, Hkv, Dv].

        Raises:
            ConfigError: When shapes or dtypes differ from the cache's, or the pool has too few free blocks; then
                nothing was kept.
        """
        chosen = self._chosen(sequence)
        _check_tokens(k, v, self._k[None], self._v[None], len(chosen))
        ends = [self.lengths[index] + k.shape[1] for index in chosen]
        wanted = [-(-end // self.block_size) - len(self.tables[index]) for index, end in zip(chosen, ends, strict=True)]
        if sum(wanted) > len(self._free):
            raise ConfigError(
                f"{sum(wanted)} more blocks are needed and {len(self._free)} are free: make a larger pool"
            )
        for row, (index, end, more) in enumerate(zip(chosen, ends, wanted, strict=True)):
            self.tables[index] += [self._free.pop() for _ in range(more)]
            at = 0
            for place in self._stretches(index, self.lengths[index], end):
                self._k[place] = k[row, at : at + place.stop - place.start]
                self._v[place] = v[row, at : at + place.stop - place.start]
                at += place.stop - place.start
            self.lengths[index] = end

    def truncate(self, length: int, *, sequence: int | None = None) -> None:
        """Forget the tokens from ``length`` on, of every sequence or of one; their blocks go back to the pool.

        Raises:
            ConfigError: When that many are not kept.
        """
        chosen = self._chosen(sequence)
        length = min(
            (_checked_length(length, self.lengths[index]) for index in chosen), default=0
        )  # checked before any
        for index in chosen:
            kept = -(-length // self.block_size)
            self._free += self.tables[index][kept:][::-1]
            del self.tables[index][kept:]
            self.lengths[index] = length

    def attend(
        self, q: Array, *, causal: bool = False, softcap: float | None = None, scale: float | None = None,
        backend: str | None = None,
    ) -> Array:  # fmt: skip
        """Return attention of q [B, Sq, H, D] over what is kept of each sequence, [B, Sq, H, Dv].

        Args:
            q: Queries of the newest Sq tokens of each sequence, in the cache's dtype.
            causal: See `rocattn.attention`.
            softcap: See `rocattn.attention`.
            scale: See `rocattn.attention`.
            backend: See `rocattn.attention`; it has to return the LSE.

        Raises:
            ConfigError: When q has not one entry a sequence, or does not fit to K.
        """
        require_array("q", q)
        if q.ndim != 4 or len(q) != len(self.lengths):
            raise ConfigError(f"q has shape {q.shape}: [B, Sq, H, D] with B = {len(self.lengths)} is needed")
        out = np.empty((*q.shape[:3], self._v.shape[-1]), q.dtype)
        for index, length in enumerate(self.lengths):
            parts, done = [], 0
            places = self._stretches(index, 0, length) or [slice(0, 0)]  # q is checked where nothing is kept, too
            gather = q.dtype == np.float64 and len(places) > 1  # joining by a float32 LSE would lose half the digits
            for place in () if gather else places:
                done += place.stop - place.start
                # The last row sees all keys; of an earlier stretch, row i sees up to its diagonal and length - done on.
                window = (-1, length - done) if causal else None
                parts.append(
                    attention(
                        q[index : index + 1], self._k[None, place], self._v[None, place], window=window,
                        softcap=softcap, scale=scale, return_lse=True, backend=backend,
                    )
                )  # fmt: skip
            if len(parts) == 1:
                out[index] = parts[0][0][0]
            elif gather or not all(_tells_sums(lse) for _, lse in parts):
                k, v = (np.concatenate([x[place] for place in places])[None] for x in (self._k, self._v))
                out[index] = attention(
                    q[index : index + 1], k, v, causal=causal, softcap=softcap, scale=scale, backend=backend
                )[0]
            else:
                out[index] = _joined(parts)
        return out

    def _chosen(self, sequence: int | None) -> Sequence[int]:
        if sequence is None:
            return range(len(self.lengths))
        sequence = _count("sequence", sequence)
        if sequence >= len(self.lengths):
            raise ConfigError(f"there is no sequence {sequence}: the cache has {len(self.lengths)}")
        return [sequence]

    def _stretches(self, sequence: int, first: int, end: int) -> list[slice]:
        """Return where the tokens ``first`` … ``end`` - 1 lie in the pool, adjacent blocks as one slice."""
        stretches: list[slice] = []
        size, table = self.block_size, self.tables[sequence]
        while first < end:
            stop = min(end, (first // size + 1) * size)
            start = table[first // size] * size + first % size
            last = start + stop - first
            stretches.append(slice(stretches.pop().start if stretches and stretches[-1].stop == start else start, last))
            first = stop
        return stretches


def _tells_sums(lse: Array) -> bool:
    """Whether a float32 LSE has room for the logarithm of a sum of weights beside the largest score, in every row."""
    return not bool((np.isfinite(lse) & (np.abs(lse) > LARGE_LSE)).any())


def _joined(parts: list[tuple[Array, Array]]) -> Array:
    """Join outputs [1, Sq, H, Dv] over parts of the keys by their LSE [1, H, Sq]; returns [Sq, H, Dv]."""
    lses = np.stack([lse[0].T for _, lse in parts])
    largest = lses.max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0)  # a row that sees no key at all
    weights = np.exp(lses - largest)
    total = weights.sum(axis=0)
    weights /= np.where(total > 0, total, 1)
    joined = np.zeros(parts[0][0].shape[1:], np.float32)
    for weight, (out, _) in zip(weights, parts, strict=True):
        joined += weight[..., None] * out[0]
    return joined


def _count(name: str, value: Any, *, least: int = 0) -> int:
    """Return a size as an int, or raise: a float that counts tokens would end in numpy, after it was kept."""
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if isinstance(value, bool) or count < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number, {least} or more")
    return count


def _reserved(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return uninitialised memory, or raise: numpy has another error for each way in which it can be too much."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        size = math.prod(shape) * dtype.itemsize
        raise ConfigError(f"there is no memory for {size / (1 << 30):.3g} GiB of keys or values: keep less") from None


def _kept_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype to keep, also by the name that configs use: numpy alone does not know "bfloat16"."""
    import ml_dtypes

    try:
        kept = np.dtype(ml_dtypes.bfloat16 if isinstance(dtype, str) and dtype == "bfloat16" else dtype)
    except TypeError:
        raise ConfigError(f"dtype is {dtype!r}: use one of {', '.join(DTYPE_BYTES)}") from None
    if kept.name not in DTYPE_BYTES or not kept.isnative:
        raise ConfigError(f"dtype is {kept.str}: use one of {', '.join(DTYPE_BYTES)}, in this machine's byte order")
    return kept


def _check_tokens(k: Array, v: Array, keys: Array, values: Array, batch: int) -> None:
    """Raise unless k and v are the same number of tokens in the form and dtype of the stored ones [., ., Hkv, D]."""
    for name, array, stored in (("k", k, keys), ("v", v, values)):
        require_array(name, array)
        if array.ndim != 4 or array.shape[0] != batch or array.shape[2:] != stored.shape[2:]:
            wanted = f"[{batch}, S, {stored.shape[2]}, {stored.shape[3]}]"
            raise ConfigError(f"{name} has shape {array.shape}: the cache takes {wanted}")
        if array.dtype != stored.dtype:
            raise ConfigError(f"{name} has dtype {array.dtype.name}: the cache keeps {stored.dtype.name}")
    if k.shape[1] != v.shape[1]:
        raise ConfigError(f"k has {k.shape[1]} tokens and v {v.shape[1]}")


def _checked_length(length: int, kept: int) -> int:
    length = _count("length", length)
    if length > kept:
        raise ConfigError(f"cannot truncate to {length} tokens: {kept} are kept")
    return length
