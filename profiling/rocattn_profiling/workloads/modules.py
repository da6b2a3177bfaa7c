"""Attention modules of models in numpy, and their workloads for ``rocattn bench --modules``.

`MultiHead` is the standard layer. `MultiExpert` is a Gemma layer shared by experts: each projects its own tokens with
its own weights and width, all tokens attend together under a prefix-LM mask (as in the PaliGemma and pi0 models).
`CachedGemma` is one expert with a KV cache: prefill of a prompt, then one token per step.

A module gets its attention as a function with `rocattn.attention`'s arguments, so the same code runs on any backend,
and on float64 and naive programs for the check. Projections compute in float32 (numpy has no fast product of smaller
types; float64 in float64) and are rounded to the module's dtype.

A workload is named after the suite of its records. Its configs describe the module's attention; `extra_work` counts the
projections. The whole module's output is compared with the module in float64, with limits from the error of the module
around a naive program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.functional import describe
from rocattn.kv_cache import KVCache, PagedKVCache
from rocattn_profiling.workloads.accuracy import check_tensors
from rocattn_profiling.workloads.inputs import numpy_dtype
from rocattn_profiling.workloads.naive import Forward, exact_forward, naive_forward, one_kv_head

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn_profiling.measure.records import Check

    Attend = Callable[..., Array]
    Arrays = tuple[Array, ...]

ROPE_BASE = 10_000.0
BLOCK_TOKENS = 64
CHUNK_TOKENS = 256
"""Tokens stored at a time for a step's prompt, alternating between sequences, so a paged cache interleaves them."""


def project(x: Array, weights: Array) -> Array:
    """Return x [B, S, N] times weights [N, M], rounded to x's dtype."""
    batch, seq, width = x.shape
    product = x.reshape(-1, width).astype(weights.dtype, copy=False) @ weights
    return product.reshape(batch, seq, -1).astype(x.dtype, copy=False)


def rotate(x: Array, first: int) -> Array:
    """Rotate heads [B, S, H, D] by their positions ``first``, … (RoPE, Su et al. 2021; halves as pairs)."""
    half = x.shape[-1] // 2
    wide = np.float64 if x.dtype == np.float64 else np.float32
    angle = np.arange(first, first + x.shape[1])[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    sin, cos = (f(angle).astype(wide)[:, None] for f in (np.sin, np.cos))
    a, b = x[..., :half].astype(wide, copy=False), x[..., half:].astype(wide, copy=False)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype, copy=False)


def prefix_lm_mask(prefix: int, total: int) -> Array:
    """Return a boolean mask [total, total]: every token sees the prefix, and the later tokens up to itself."""
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
        """Return normal weights with variance 1 / rows, rounded to a dtype, stored in the dtype of the products."""
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
        """Return tokens [B, S, N] from the heads' outputs [B, S, H, D]."""
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
    """Experts whose tokens attend together; the first expert's tokens are the prefix."""

    experts: tuple[Projections, ...]

    def wide(self) -> Self:
        """Return the same module in float64."""
        return replace(self, experts=tuple(expert.wide() for expert in self.experts))

    def __call__(self, tokens: Sequence[Array], attend: Attend) -> list[Array]:
        """Return [B, S_e, N_e] of each expert's tokens [B, S_e, N_e]."""
        projected = [expert.heads(x) for expert, x in zip(self.experts, tokens, strict=True)]
        q, k, v = (np.concatenate(parts, axis=1) for parts in zip(*projected, strict=True))
        mask = prefix_lm_mask(tokens[0].shape[1], q.shape[1])
        attended = attend(rotate(q, 0), rotate(k, 0), v, mask=mask)
        ends = np.cumsum([x.shape[1] for x in tokens])[:-1]
        parts = np.split(attended, ends, axis=1)
        return [expert.merge(part) for expert, part in zip(self.experts, parts, strict=True)]


@dataclass(frozen=True)
class CachedGemma:
    """An expert with a KV cache: the prompt attends to all of itself, then each token to all before it."""

    weights: Projections

    def wide(self) -> Self:
        """Return the same module in float64."""
        return replace(self, weights=self.weights.wide())

    def prefill(self, prompt: Array, cache: KVCache | PagedKVCache, **options: Any) -> Array:
        """Return [B, S, N] for a prompt [B, S, N], stored in the empty cache; options of `rocattn.attention`."""
        q, k, v = self._heads(prompt, 0)
        cache.append(k, v)
        return self.weights.merge(cache.attend(q, **options))

    def remember(self, prompt: Array, cache: KVCache | PagedKVCache, chunk: int) -> None:
        """Fill the empty cache like `prefill`, but without attention; ``chunk`` tokens of every sequence in turn."""
        _, k, v = self._heads(prompt, 0)
        for start in range(0, prompt.shape[1], chunk):
            cache.append(k[:, start : start + chunk], v[:, start : start + chunk])

    def step(self, token: Array, position: int, cache: KVCache | PagedKVCache, **options: Any) -> Array:
        """Return [B, 1, N] for the next token [B, 1, N], stored in the cache; options of `rocattn.attention`."""
        q, k, v = self._heads(token, position)
        cache.append(k, v)
        return self.weights.merge(cache.attend(q, **options))

    def whole(self, tokens: Array, prompt: int, attend: Attend) -> Array:
        """Return [B, S, N] for all tokens at once without a cache: the expected results of prefill and steps."""
        q, k, v = self._heads(tokens, 0)
        return self.weights.merge(attend(q, k, v, mask=prefix_lm_mask(prompt, tokens.shape[1])))

    def last(self, tokens: Array, attend: Attend) -> Array:
        """Return [B, 1, N] for only the last token without a cache: the expected result of the last step."""
        q, k, v = self._heads(tokens, 0)
        return self.weights.merge(attend(q[:, -1:], k, v))

    def _heads(self, x: Array, first: int) -> tuple[Array, Array, Array]:
        q, k, v = self.weights.heads(x)
        return rotate(q, first), rotate(k, first), v


@dataclass(frozen=True, slots=True)
class Workload:
    """A module with the sizes to measure.

    Attributes:
        module: Its name for ``--modules``.
        suite: The suite of its records.
        description: Readable text.
        widths: Model dimensions of each expert.
        configs: The attention inside, smallest first.
        quick: Lengths (Sk) of the ``--quick`` subset.
    """

    module: str
    suite: str
    description: str
    widths: tuple[int, ...]
    configs: tuple[AttentionConfig, ...]
    quick: tuple[int, ...]

    def chosen(self, quick: bool) -> list[AttentionConfig]:
        """Return all configs, or only the quick ones."""
        return [config for config in self.configs if not quick or config.seq_k in self.quick]

    def tokens(self, config: AttentionConfig) -> list[int]:
        """Return the tokens per expert; if there are several, the first has seven eighths."""
        if len(self.widths) == 1:
            return [config.seq_q]
        later = max(1, config.seq_q // 8)
        return [config.seq_q - later, later]


def _gemma(batch: int, seq_q: int, seq_k: int, **more: Any) -> AttentionConfig:
    return AttentionConfig(batch=batch, num_heads=8, num_kv_heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=256, **more)


def _cached(*, paged: bool) -> Workload:
    lengths = (256, 1024, 4096)
    configs = [_gemma(2, n, n, return_lse=paged) for n in lengths[:2]]
    configs += [_gemma(2, 1, n, return_lse=paged) for n in lengths]
    where = f"in blocks of {BLOCK_TOKENS} tokens of a pool" if paged else "in reserved memory"
    return Workload(
        "gemma_fast",
        "module-gemma_fast-paged" if paged else "module-gemma_fast",
        f"a Gemma layer with a KV cache {where}: prefill of a prompt (Sq = Sk), and one decode step (Sq 1) against the "
        "prompt before it; width 2048, 8 heads, 1 KV head, D 256, batch 2, with projections and RoPE",
        (2048,),
        tuple(configs),
        (256, 1024),
    )


_ALL = (
    Workload(
        "standard",
        "module-standard",
        "standard multi-head attention with its projections: width 512, 8 heads, D 64, batch 1",
        (512,),
        tuple(
            AttentionConfig(batch=1, num_heads=8, seq_q=n, seq_k=n, head_dim=64) for n in (128, 256, 512, 1024, 2048)
        ),
        (128, 512),
    ),
    Workload(
        "gemma",
        "module-gemma",
        "a Gemma layer of two experts (widths 2048 and 1024) under one prefix-LM mask: the first has 7 of 8 tokens; "
        "8 heads, 1 KV head, D 256, batch 1, with projections and RoPE",
        (2048, 1024),
        tuple(_gemma(1, n, n, mask="bool", mask_shape=(1, 1, n, n)) for n in (256, 512, 1024, 2048)),
        (256, 512),
    ),
    _cached(paged=False),
    _cached(paged=True),
)
WORKLOADS: dict[str, Workload] = {workload.suite: workload for workload in _ALL}
NAMES = tuple(dict.fromkeys(workload.module for workload in _ALL))


def of_module(name: str) -> list[Workload]:
    """Return the workloads of a module.

    Raises:
        ConfigError: When the module does not exist; the message lists the names.
    """
    if name not in NAMES:
        raise ConfigError(f"no module is named {name!r}: choose from {', '.join(NAMES)}")
    return [workload for workload in _ALL if workload.module == name]


def extra_work(suite: str, config: AttentionConfig) -> tuple[int, int]:
    """Return FLOPs and compulsory bytes around attention: projections, their weights, tokens in and out."""
    workload = WORKLOADS[suite]
    flops = size = 0
    for width, tokens in zip(workload.widths, workload.tokens(config), strict=True):
        weights = width * (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        flops += 2 * weights * tokens * config.batch
        size += weights * max(4, config.itemsize) + 2 * tokens * config.batch * width * config.itemsize
    return flops, size


class ModuleSubject(ABC):
    """A module with its tokens: the timed call, and the reference for its outputs."""

    @abstractmethod
    def call(self, **options: Any) -> Callable[[], Arrays]:
        """Run the timed call; options of `rocattn.attention`."""

    @abstractmethod
    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """Return the outputs with another attention function; in float64 if ``exact``."""


@dataclass(frozen=True)
class Plain(ModuleSubject):
    """Standard attention of some tokens."""

    module: MultiHead
    tokens: Array

    def call(self, **options: Any) -> Callable[[], Arrays]:
        """See `ModuleSubject`."""
        attend = partial(rocattn.attention, **options)
        return lambda: (self.module(self.tokens, attend),)

    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """See `ModuleSubject`."""
        if exact:
            return (self.module.wide()(self.tokens.astype(np.float64), attend),)
        return (self.module(self.tokens, attend),)


@dataclass(frozen=True)
class Joint(ModuleSubject):
    """Tokens of several experts that attend together."""

    module: MultiExpert
    tokens: list[Array]

    def call(self, **options: Any) -> Callable[[], Arrays]:
        """See `ModuleSubject`."""
        attend = partial(rocattn.attention, **options)
        return lambda: tuple(self.module(self.tokens, attend))

    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """See `ModuleSubject`."""
        if exact:
            return tuple(self.module.wide()([x.astype(np.float64) for x in self.tokens], attend))
        return tuple(self.module(self.tokens, attend))


@dataclass(frozen=True)
class Prefill(ModuleSubject):
    """A prompt written to an empty cache."""

    module: CachedGemma
    tokens: Array
    new_cache: Callable[[], KVCache | PagedKVCache]

    def call(self, **options: Any) -> Callable[[], Arrays]:
        """See `ModuleSubject`; the cache is emptied by each call."""
        cache = self.new_cache()

        def prefill() -> Arrays:
            cache.truncate(0)
            return (self.module.prefill(self.tokens, cache, **options),)

        return prefill

    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """See `ModuleSubject`: all tokens at once, without a cache."""
        module, tokens = (self.module.wide(), self.tokens.astype(np.float64)) if exact else (self.module, self.tokens)
        return (module.whole(tokens, tokens.shape[1], attend),)


@dataclass(frozen=True)
class DecodeStep(Prefill):
    """The last token, with a cache of the previous ones."""

    def call(self, **options: Any) -> Callable[[], Arrays]:
        """See `ModuleSubject`; each call first removes the token from the cache."""
        cache, before = self.new_cache(), self.tokens.shape[1] - 1
        self.module.remember(self.tokens[:, :before], cache, CHUNK_TOKENS)

        def step() -> Arrays:
            cache.truncate(before)
            return (self.module.step(self.tokens[:, before:], before, cache, **options),)

        return step

    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """See `ModuleSubject`: the last token's row, without a cache."""
        module, tokens = (self.module.wide(), self.tokens.astype(np.float64)) if exact else (self.module, self.tokens)
        return (module.last(tokens, attend),)


def make_subject(suite: str, config: AttentionConfig, seed: int) -> ModuleSubject:
    """Return a workload's module with seeded normal weights and tokens, in the config's dtype."""
    workload = WORKLOADS[suite]
    rng, dtype = np.random.default_rng([seed, int(config.key, 16)]), numpy_dtype(config.dtype)
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    experts = tuple(Projections.random(rng, width, *heads, dtype) for width in workload.widths)
    step = workload.module == "gemma_fast" and config.seq_q < config.seq_k
    counts = [config.seq_k] if step else workload.tokens(config)
    shapes = [(config.batch, count, width) for count, width in zip(counts, workload.widths, strict=True)]
    tokens = [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]
    if workload.module == "standard":
        return Plain(MultiHead(experts[0]), tokens[0])
    if workload.module == "gemma":
        return Joint(MultiExpert(experts), tokens)
    new_cache = partial(_paged_cache if suite.endswith("-paged") else _reserved_cache, config, dtype)
    return (DecodeStep if step else Prefill)(CachedGemma(experts[0]), tokens[0], new_cache)


def _reserved_cache(config: AttentionConfig, dtype: np.dtype[Any]) -> KVCache:
    return KVCache(config.batch, config.num_kv_heads, config.head_dim, capacity=config.seq_k, dtype=dtype)


def _paged_cache(config: AttentionConfig, dtype: np.dtype[Any]) -> PagedKVCache:
    blocks = config.batch * -(-config.seq_k // BLOCK_TOKENS)
    return PagedKVCache(
        config.batch, config.num_kv_heads, config.head_dim, num_blocks=blocks, block_size=BLOCK_TOKENS, dtype=dtype
    )


def prepare(
    suite: str, config: AttentionConfig, backends: Sequence[str], seed: int
) -> tuple[dict[str, Callable[[], Arrays]], Callable[[dict[str, Arrays]], dict[str, Check]]]:
    """Return each backend's call of a module, and the check of their outputs.

    Args:
        suite: A workload's suite.
        config: One of its configs; the dtype may differ.
        backends: Names.
        seed: Seed of weights and tokens.
    """
    subject = make_subject(suite, config, seed)
    calls = {name: subject.call(backend=name) for name in backends}

    def check(outputs: dict[str, Arrays]) -> dict[str, Check]:
        right = subject.reference(partial(_by_heads, exact_forward), exact=True)
        naive = subject.reference(partial(_by_heads, naive_forward), exact=False)
        return {name: check_tensors(config, arrays, right, naive) for name, arrays in outputs.items()}

    return calls, check


def _by_heads(forward: Callable[..., Forward], q: Array, k: Array, v: Array, **options: Any) -> Array:
    """Compute attention of BSHD arrays with one of the check's programs, one KV head at a time."""
    config, operands = describe(q, k, v, **options)
    out = np.empty((config.batch, config.seq_q, config.num_heads, config.head_dim_v), q.dtype)
    group, rows = config.num_heads // config.num_kv_heads, np.arange(config.seq_q)
    for batch in range(config.batch):
        for head in range(config.num_kv_heads):
            rows_out = forward(config, operands, one_kv_head(config, batch, head), rows).out
            by_head = rows_out.reshape(group, config.seq_q, -1).swapaxes(0, 1)
            out[batch, :, head * group : (head + 1) * group] = by_head
    return out
