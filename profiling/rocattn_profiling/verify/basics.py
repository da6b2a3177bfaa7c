"""The first mistakes of a kernel, each by itself: the family "basics" of `rocattn verify`.

A case that needs five options at once says nothing about a backend that refuses one of them. So each point below is
looked at in the plainest case that a backend takes, in each dtype and direction: it is asked what it supports.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

from rocattn.config import DTYPE_BYTES, AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocattn.backend import Backend

TILE = 16  # the smallest tile that kernels have: no size beside its multiples is one of a larger tile's
POINTS: dict[str, Callable[[AttentionConfig], bool]] = {
    "batches": lambda c: c.batch > 1,
    "more than two batches": lambda c: c.batch > 2,
    "grouped heads": lambda c: c.num_heads > c.num_kv_heads > 1,
    "causal, Sq < Sk": lambda c: c.causal and c.seq_q < c.seq_k,
    "causal, Sq > Sk": lambda c: c.causal and c.seq_q > c.seq_k,
    "BSHD": lambda c: c.layout == "BSHD",
    "BHSD": lambda c: c.layout == "BHSD",
    "BSE": lambda c: c.layout == "BSE",
    "Dv != D": lambda c: c.head_dim_v != c.head_dim,
    "a last tile of keys that is not full": lambda c: c.seq_k % TILE > 0,
}
"""What is looked at -> whether a config shows it. A layout needs two heads, which all configs here have."""

# Factor -> its values, the plainest first. Three KV heads for six heads: h % 3, h // 3 and h // 2 all differ.
_FACTORS: dict[str, tuple[Any, ...]] = {
    "dims": ((64, 64), (128, 128), (64, 32), (192, 128), (32, 32), (96, 96), (80, 80), (256, 256), (32, 16), (128, 64)),
    "seq": ((67, 131), (131, 67), (131, 131), (64, 128), (128, 64), (128, 128), (1, 131), (1, 128)),
    "heads": ((2, 2), (6, 3), (4, 1)),
    "layout": ("BSHD", "BHSD", "BSE"),
    "causal": (False, True),
    "batch": (2, 1, 3),
    "lse": (True, False),
}


def basics(backend: Backend | None = None) -> Iterator[tuple[AttentionConfig, str]]:
    """Yield the plainest problem of each point, dtype and direction, and how its arrays lie in memory.

    Args:
        backend: Of the problems that it supports; None for one that supports everything.
    """
    for dtype, direction in itertools.product(DTYPE_BYTES, ("forward", "backward")):
        able = _Able(dtype, direction, backend)
        for name, shows in POINTS.items():
            if (config := able.first(shows)) is not None:
                # In the midst of NaN what is read of the last tile beyond the last key shows.
                yield config, "moat" if "tile" in name else "plain"


def all_basics() -> Iterator[tuple[AttentionConfig, str]]:
    """Yield what `basics` may yield for any backend."""
    for dtype, direction in itertools.product(DTYPE_BYTES, ("forward", "backward")):
        yield from itertools.product(_configs(dtype, direction), ("plain", "moat"))


class _Able:
    """The configs of a dtype and direction that a backend supports, plainest first, each asked for once."""

    def __init__(self, dtype: str, direction: str, backend: Backend | None) -> None:
        configs = _configs(dtype, direction)
        self._more: Iterator[AttentionConfig] = (c for c in configs if backend is None or _supports(backend, c))
        self._known: list[AttentionConfig] = []

    def first(self, shows: Callable[[AttentionConfig], bool]) -> AttentionConfig | None:
        """Return the plainest config that shows a point; None if there is none."""
        for config in self._known:
            if shows(config):
                return config
        for config in self._more:
            self._known.append(config)
            if shows(config):
                return config
        return None


def _supports(backend: Backend, config: AttentionConfig) -> bool:
    try:
        return bool(backend.supports(config))
    except Exception:  # noqa: BLE001 - the case that this makes is run, and says what is raised
        return True


def _configs(dtype: str, direction: str) -> Iterator[AttentionConfig]:
    """Yield all combinations of the factors, plainest first."""
    for picked in _places():
        if (config := _config(dtype, direction, picked)) is not None:
            yield config


@cache
def _places() -> list[tuple[int, ...]]:
    """Return which value of each factor, the plainest combination first: the smallest sum of places."""
    return sorted(itertools.product(*(range(len(values)) for values in _FACTORS.values())), key=sum)


@cache
def _config(dtype: str, direction: Any, picked: tuple[int, ...]) -> AttentionConfig | None:
    values = {name: _FACTORS[name][place] for name, place in zip(_FACTORS, picked, strict=True)}
    if direction == "backward" and values["lse"]:  # gradients come without an LSE
        return None
    (head_dim, head_dim_v), (seq_q, seq_k), (heads, kv_heads) = values["dims"], values["seq"], values["heads"]
    return AttentionConfig(
        batch=values["batch"], num_heads=heads, num_kv_heads=kv_heads, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim,
        head_dim_v=head_dim_v, dtype=dtype, layout=values["layout"], causal=values["causal"],
        return_lse=values["lse"], direction=direction,
    )  # fmt: skip
