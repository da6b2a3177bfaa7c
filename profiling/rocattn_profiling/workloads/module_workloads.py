"""The attention modules that ``rocattn bench --modules`` measures: their sizes, calls and checks.

A workload is named by the suite of its records. Its configs describe the attention inside; what the projections add
is counted by `extra_work`. The output of the whole module is compared with the module in float64, and its error with
that of the module around a naive program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.functional import describe
from rocattn.kv_cache import KVCache, PagedKVCache
from rocattn_profiling.workloads.accuracy import check_tensors
from rocattn_profiling.workloads.inputs import numpy_dtype
from rocattn_profiling.workloads.modules import CachedGemma, MultiExpert, MultiHead, Projections
from rocattn_profiling.workloads.naive import exact_forward, naive_forward, one_kv_head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn.backend import Array
    from rocattn_profiling.measure.records import Check
    from rocattn_profiling.workloads.modules import Attend
    from rocattn_profiling.workloads.naive import Forward

    Arrays = tuple[Array, ...]

BLOCK_TOKENS = 64
CHUNK_TOKENS = 256
"""A step's prompt was kept so many tokens at a time, two sequences in turn: a paged cache has stretches of as many."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One module with the sizes it is measured at.

    Attributes:
        module: What ``--modules`` calls it.
        suite: The suite of its records.
        description: For people.
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
        """Return the configs, or only the quick ones."""
        return [config for config in self.configs if not quick or config.seq_k in self.quick]

    def tokens(self, config: AttentionConfig) -> list[int]:
        """Return the tokens of each expert; of several, the first has seven of eight."""
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
        ConfigError: When there is no module of that name; the message lists the names.
    """
    if name not in NAMES:
        raise ConfigError(f"no module is named {name!r}: choose from {', '.join(NAMES)}")
    return [workload for workload in _ALL if workload.module == name]


def extra_work(suite: str, config: AttentionConfig) -> tuple[int, int]:
    """Return FLOPs and compulsory bytes of what surrounds attention: projections, their weights, tokens in and out."""
    workload = WORKLOADS[suite]
    flops = size = 0
    for width, tokens in zip(workload.widths, workload.tokens(config), strict=True):
        weights = width * (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        flops += 2 * weights * tokens * config.batch
        size += weights * max(4, config.itemsize) + 2 * tokens * config.batch * width * config.itemsize
    return flops, size


class ModuleSubject(ABC):
    """A module with its tokens: what each backend is timed on, and what the outputs are compared with."""

    @abstractmethod
    def call(self, **options: Any) -> Callable[[], Arrays]:
        """Return one timed call; options of `rocattn.attention`."""

    @abstractmethod
    def reference(self, attend: Attend, *, exact: bool) -> Arrays:
        """Return the same outputs around another attention; in float64 if ``exact``."""


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
    """A prompt into an empty cache."""

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
    """The last of the tokens, against a cache of those before it."""

    def call(self, **options: Any) -> Callable[[], Arrays]:
        """See `ModuleSubject`; each call forgets the token again before it takes it."""
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
    """Return what each backend does for one call of a module, and the check of their outputs.

    Args:
        suite: Of a workload.
        config: One of its configs; the dtype may differ.
        backends: Names.
        seed: Of weights and tokens.
    """
    subject = make_subject(suite, config, seed)
    calls = {name: subject.call(backend=name) for name in backends}

    def check(outputs: dict[str, Arrays]) -> dict[str, Check]:
        right = subject.reference(partial(_by_heads, exact_forward), exact=True)
        naive = subject.reference(partial(_by_heads, naive_forward), exact=False)
        return {name: check_tensors(config, arrays, right, naive) for name, arrays in outputs.items()}

    return calls, check


def _by_heads(forward: Callable[..., Forward], q: Array, k: Array, v: Array, **options: Any) -> Array:
    """Compute attention of BSHD arrays with one of the check's programs, a KV head at a time."""
    config, operands = describe(q, k, v, **options)
    out = np.empty((config.batch, config.seq_q, config.num_heads, config.head_dim_v), q.dtype)
    group, rows = config.num_heads // config.num_kv_heads, np.arange(config.seq_q)
    for batch in range(config.batch):
        for head in range(config.num_kv_heads):
            made = forward(config, operands, one_kv_head(config, batch, head), rows).out
            by_head = made.reshape(group, config.seq_q, -1).swapaxes(0, 1)
            out[batch, :, head * group : (head + 1) * group] = by_head
    return out
