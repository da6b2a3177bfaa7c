"""Dropout's mask: a function of seed, offset and position, so any tiling, and the backward pass, gives the same one.

The weight of query row i and key j in batch b and query head h is kept if word j % 4 of::

    philox(counter = (j // 4, i, b * H + h, 0), key = dropout_key(seed, offset))

is at least `threshold`, and is then multiplied by `factor`. Source: Salmon et al. 2011, "Parallel Random Numbers: As
Easy as 1, 2, 3": Philox 4x32 with ten rounds, the generator of PyTorch's GPU operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, DTypeLike

    from rocattn.backend import Array

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85  # increments of the key per round
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_COUNTERS = 1 << 14  # computed at a time, so that their words stay in a core's cache


def philox(counter: Iterable[ArrayLike], key: tuple[int, int]) -> list[Array]:
    """Return four uint32 words for each counter.

    Args:
        counter: Four broadcastable uint32 arrays.
        key: Two words.
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint32) for word in counter)
    for number in range(_ROUNDS):
        k0, k1 = (np.uint32((word + number * step) & _WORD) for word, step in zip(key, _STEPS, strict=True))
        first, second = (word.astype(np.uint64) * by for word, by in zip((c0, c2), _MULTIPLIERS, strict=True))
        high0, high1 = ((wide >> np.uint64(32)).astype(np.uint32) for wide in (first, second))
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, second.astype(np.uint32), high0 ^ c3 ^ k1, first.astype(np.uint32)
    return list(np.broadcast_arrays(c0, c1, c2, c3))


def dropout_key(seed: int, offset: int) -> Array:
    """Return a mask's key, uint32 [2], from seed and offset, each below 2^64."""
    words = philox(
        [np.uint32(offset & _WORD), np.uint32(offset >> 32), np.uint32(0), np.uint32(0)], (seed & _WORD, seed >> 32)
    )
    return np.array(words[:2], np.uint32)


def threshold(dropout_p: float) -> int:
    """Return the smallest word that keeps a weight; for probability 1, `factor` also removes the last one."""
    return min(int(dropout_p * 2.0**32), _WORD)


def factor(dropout_p: float) -> float:
    """Return the factor of kept weights: 1 / (1 - p)."""
    return 0.0 if dropout_p == 1 else 1 / (1 - dropout_p)


def kept_weights(key: Array, dropout_p: float, heads: Array, rows: Array, keys: int, dtype: DTypeLike) -> Array:
    """Return the factor of each weight, 0 or `factor`.

    Args:
        key: The result of `dropout_key`.
        dropout_p: The probability.
        heads: b * H + h of each head, integers of any shape.
        rows: Positions of the query rows, [R].
        keys: Sk.
        dtype: The result's dtype.

    Returns:
        [*heads.shape, R, Sk].
    """
    groups, least = np.arange(-(-keys // 4), dtype=np.uint32), np.uint32(threshold(dropout_p))
    words = int(key[0]), int(key[1])
    result = np.empty((heads.size, len(rows), keys), dtype)
    step = max(1, _COUNTERS // max(len(groups), 1))
    for number, head in enumerate(heads.ravel().tolist()):
        for first in range(0, len(rows), step):
            some = rows[first : first + step].astype(np.uint32)[:, None]
            drawn = np.stack(philox([groups, some, np.uint32(head & _WORD), np.uint32(0)], words), axis=-1)
            result[number, first : first + step] = drawn.reshape(len(some), -1)[:, :keys] >= least
    result *= result.dtype.type(factor(dropout_p))
    return result.reshape(*heads.shape, len(rows), keys)
