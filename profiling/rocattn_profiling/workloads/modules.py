"""Attention modules in numpy: projections around `rocattn.attention`, as models have them.

`MultiHead` is the standard layer. `MultiExpert` is a Gemma layer shared by experts: each projects its own tokens with
its own weights and width, all tokens attend together under a prefix-LM mask (as in the PaliGemma and pi0 models).
`CachedGemma` is one expert that keeps K and V in a cache: prefill of a prompt, then a token a step.

A module does not know who computes attention: it is called with a function of `rocattn.attention`'s arguments. So the
same code runs on any backend, and on float64 and naive programs for the check. Projections compute in float32 (numpy
has no fast product of smaller types; float64 in float64) and are rounded to the module's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn.backend import Array
    from rocattn.kv_cache import KVCache, PagedKVCache

    Attend = Callable[..., Array]

ROPE_BASE = 10_000.0


def project(x: Array, weights: Array) -> Array:
    """Return x [B, S, N] times weights [N, M], rounded to x's dtype."""
    batch, seq, width = x.shape
    product = x.reshape(-1, width).astype(weights.dtype, copy=False) @ weights
    return product.reshape(batch, seq, -1).astype(x.dtype, copy=False)


def rotate(x: Array, first: int) -> Array:
    """Return heads [B, S, H, D] turned by their positions ``first``, … (RoPE, Su et al. 2021; halves as pairs)."""
    half = x.shape[-1] // 2
    wide = np.float64 if x.dtype == np.float64 else np.float32
    angle = np.arange(first, first + x.shape[1])[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    sin, cos = (f(angle).astype(wide)[:, None] for f in (np.sin, np.cos))
    a, b = x[..., :half].astype(wide, copy=False), x[..., half:].astype(wide, copy=False)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype, copy=False)


def prefix_lm_mask(prefix: int, total: int) -> Array:
    """Return a boolean mask [total, total]: every token sees the prefix, and those after it up to itself."""
    mask = np.tri(total, dtype=bool)
    mask[:, :prefix] = True
    return mask


@dataclass(frozen=True)
class Projections:
    """The weights of one layer or expert of N model dimensions.

    Attributes:
        qkv: [N, (H + 2 Hkv) D].
        out: [H D, N].
        num_heads, num_kv_heads, head_dim: H, Hkv and D.
    """

    qkv: Array
    out: Array
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def random(
        cls, rng: np.random.Generator, width: int, num_heads: int, num_kv_heads: int, head_dim: int,
        dtype: np.dtype[Any],
    ) -> Self:  # fmt: skip
        """Return normal weights of variance 1 / rows, rounded to a dtype, kept in the one that products compute in."""
        wide = np.float64 if dtype == np.float64 else np.float32
        shapes = ((width, (num_heads + 2 * num_kv_heads) * head_dim), (num_heads * head_dim, width))
        qkv, out = ((rng.standard_normal(s, np.float32) * s[0] ** -0.5).astype(dtype).astype(wide) for s in shapes)
        return cls(qkv, out, num_heads, num_kv_heads, head_dim)

    def wide(self) -> Self:
        """Return the same weights in float64."""
        return replace(self, qkv=self.qkv.astype(np.float64), out=self.out.astype(np.float64))

    def heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Return q [B, S, H, D], k and v [B, S, Hkv, D] of tokens [B, S, N], as views of one product."""
        packed = project(x, self.qkv).reshape(*x.shape[:2], -1, self.head_dim)
        end = self.num_heads + self.num_kv_heads
        return packed[:, :, : self.num_heads], packed[:, :, self.num_heads : end], packed[:, :, end:]

    def merge(self, attended: Array) -> Array:
        """Return tokens [B, S, N] of what the heads [B, S, H, D] attended to."""
        return project(attended.reshape(*attended.shape[:2], -1), self.out)


@dataclass(frozen=True)
class MultiHead:
    """Standard multi-head attention."""

    weights: Projections

    def wide(self) -> Self:
        """Return the same module in float64."""
        return replace(self, weights=self.weights.wide())

    def __call__(self, x: Array, attend: Attend) -> Array:
        """Return [B, S, N] of tokens [B, S, N]."""
        q, k, v = self.weights.heads(x)
        return self.weights.merge(attend(q, k, v))


@dataclass(frozen=True)
class MultiExpert:
    """Experts whose tokens attend together: the first expert's are the prefix."""

    experts: tuple[Projections, ...]

    def wide(self) -> Self:
        """Return the same module in float64."""
        return replace(self, experts=tuple(expert.wide() for expert in self.experts))

    def __call__(self, tokens: Sequence[Array], attend: Attend) -> list[Array]:
        """Return [B, S_e, N_e] of each expert's tokens [B, S_e, N_e]."""
        made = [expert.heads(x) for expert, x in zip(self.experts, tokens, strict=True)]
        q, k, v = (np.concatenate(parts, axis=1) for parts in zip(*made, strict=True))
        mask = prefix_lm_mask(tokens[0].shape[1], q.shape[1])
        attended = attend(rotate(q, 0), rotate(k, 0), v, mask=mask)
        ends = np.cumsum([x.shape[1] for x in tokens])[:-1]
        parts = np.split(attended, ends, axis=1)
        return [expert.merge(part) for expert, part in zip(self.experts, parts, strict=True)]


@dataclass(frozen=True)
class CachedGemma:
    """One expert that keeps K and V: its prompt attends to all of itself, then each token to all before it."""

    weights: Projections

    def wide(self) -> Self:
        """Return the same module in float64."""
        return replace(self, weights=self.weights.wide())

    def prefill(self, prompt: Array, cache: KVCache | PagedKVCache, **options: Any) -> Array:
        """Return [B, S, N] of a prompt [B, S, N], which the empty cache keeps; options of `rocattn.attention`."""
        q, k, v = self._heads(prompt, 0)
        cache.append(k, v)
        return self.weights.merge(cache.attend(q, **options))

    def remember(self, prompt: Array, cache: KVCache | PagedKVCache, chunk: int) -> None:
        """Fill the empty cache as `prefill` does, without attending; ``chunk`` tokens of every sequence in turn."""
        _, k, v = self._heads(prompt, 0)
        for start in range(0, prompt.shape[1], chunk):
            cache.append(k[:, start : start + chunk], v[:, start : start + chunk])

    def step(self, token: Array, position: int, cache: KVCache | PagedKVCache, **options: Any) -> Array:
        """Return [B, 1, N] of the next token [B, 1, N], which the cache keeps; options of `rocattn.attention`."""
        q, k, v = self._heads(token, position)
        cache.append(k, v)
        return self.weights.merge(cache.attend(q, **options))

    def whole(self, tokens: Array, prompt: int, attend: Attend) -> Array:
        """Return [B, S, N] of all tokens at once, without a cache: what prefill and steps have to give, one by one."""
        q, k, v = self._heads(tokens, 0)
        return self.weights.merge(attend(q, k, v, mask=prefix_lm_mask(prompt, tokens.shape[1])))

    def last(self, tokens: Array, attend: Attend) -> Array:
        """Return [B, 1, N] of the last token alone, without a cache: what the step after the others has to give."""
        q, k, v = self._heads(tokens, 0)
        return self.weights.merge(attend(q[:, -1:], k, v))

    def _heads(self, x: Array, first: int) -> tuple[Array, Array, Array]:
        q, k, v = self.weights.heads(x)
        return rotate(q, first), rotate(k, first), v
