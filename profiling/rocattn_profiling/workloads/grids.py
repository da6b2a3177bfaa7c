"""The workload grids: the only definition of the shapes shared by bench, asv, the gate and the reports.

Does not import numpy, so that asv's discovery and ``--help`` can import it. Every grid is float32 in BSHD by default,
which BLAS on a CPU computes natively and every backend supports; ``rocattn bench --dtype --layout`` changes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from rocattn.config import AttentionConfig, Direction
from rocattn.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Grid:
    """A named list of attention problems.

    Attributes:
        name, description: Readable texts; the name is also the ``suite`` of its records.
        all_configs: Every config, smallest first within each option.
        in_quick: Whether a config belongs to the ``--quick`` subset, which still covers every option of the grid.
        backends: Backends measured unless others are named.
        data: Kinds of input that the grid is meant for; the first is the default.
        directions: Directions that are meaningful for it.
    """

    name: str
    description: str
    all_configs: tuple[AttentionConfig, ...]
    in_quick: Callable[[AttentionConfig], bool]
    backends: tuple[str, ...] = ("cpu", "cpu-flash")
    data: tuple[str, ...] = ("normal", "trig")
    directions: tuple[Direction, ...] = ("forward", "backward")

    def configs(self, quick: bool = False, direction: Direction = "forward") -> list[AttentionConfig]:
        """Return all configs of the grid, or only the quick ones, in one direction.

        Raises:
            ConfigError: When the grid does not have the direction.
        """
        if direction not in self.directions:
            raise ConfigError(
                f"grid {self.name!r} has no {direction} direction: it is {', '.join(self.directions)} only"
            )
        chosen = [config for config in self.all_configs if not quick or self.in_quick(config)]
        return [config if config.direction == direction else config.replace(direction=direction) for config in chosen]


def _inference() -> Iterator[AttentionConfig]:
    """8 heads: 256 to 1024 model dimensions, the range of encoder and small decoder models."""
    for seq in (128, 256, 512, 1024, 2048):
        for head_dim in (32, 64, 128):
            for batch in (1, 4):
                for causal in (False, True):
                    yield AttentionConfig(
                        batch=batch, num_heads=8, seq_q=seq, seq_k=seq, head_dim=head_dim, causal=causal
                    )


def _square() -> Iterator[AttentionConfig]:
    """[1, n, n] as one head: n tokens of n dimensions."""
    for n in (32, 64, 128, 256, 512):
        yield AttentionConfig(batch=1, num_heads=1, seq_q=n, seq_k=n, head_dim=n)


def _gemma() -> Iterator[AttentionConfig]:
    for seq in (512, 1024, 2048, 4096, 8192):
        for batch in (1, 4, 8, 16):
            for num_kv_heads in (32, 8):
                yield AttentionConfig(
                    batch=batch,
                    num_heads=32,
                    num_kv_heads=num_kv_heads,
                    seq_q=seq,
                    seq_k=seq,
                    head_dim=256,
                    causal=True,
                )


def _decode() -> Iterator[AttentionConfig]:
    for exponent in range(7, 15):
        yield AttentionConfig(batch=1, num_heads=32, num_kv_heads=8, seq_q=1, seq_k=2**exponent, head_dim=128)


def _latent() -> Iterator[AttentionConfig]:
    """DeepSeek's decode: 128 heads on one latent of 512 features and 64 of position; Dv 512."""
    for seq_q, seq_k in ((1, 1024), (1, 4096), (1, 16384), (2, 4096)):
        yield AttentionConfig(
            batch=1, num_heads=128, num_kv_heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=576, head_dim_v=512,
            causal=True, dtype="bfloat16",
        )  # fmt: skip


def _odd() -> Iterator[AttentionConfig]:
    """Sizes that match no tile: slowest relative to PyTorch on a CPU, from research/peers/against_torch.py."""
    for batch, heads, kv_heads, seq, dim, causal, layout in (
        (4, 1, 1, 128, 32, True, "BHSD"),
        (4, 8, 8, 128, 64, False, "BSHD"),
        (1, 16, 8, 160, 75, False, "BHSD"),
        (8, 8, 4, 177, 164, False, "BSHD"),
        (1, 8, 8, 200, 80, False, "BSHD"),
        (2, 8, 2, 128, 256, False, "BHSD"),
        (8, 8, 4, 312, 80, False, "BSHD"),
        (2, 8, 4, 525, 107, True, "BSHD"),
        (2, 12, 12, 640, 64, False, "BSHD"),
        (1, 8, 8, 896, 32, False, "BSHD"),
        # With 16 threads:
        (1, 4, 4, 128, 64, False, "BSHD"),
        (4, 8, 8, 528, 80, True, "BSHD"),
        (8, 2, 2, 704, 64, False, "BSHD"),
    ):
        yield AttentionConfig(
            batch=batch, num_heads=heads, num_kv_heads=kv_heads, seq_q=seq, seq_k=seq, head_dim=dim, causal=causal,
            layout=layout,
        )  # fmt: skip


def _varlen() -> Iterator[AttentionConfig]:
    """Lengths from a rule, not random: the same in every process without numpy."""
    heads = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "causal": True}
    prompts = tuple((16 + 37 * n % 240,) * 2 for n in range(32))
    mixed = ((1024, 1024), (512, 512), (256, 256), (64, 64), (33, 33), (7, 7))
    steps = tuple((1, 128 + 997 * n % 3968) for n in range(32))
    chunk = ((256, 2048), *steps[:15])
    for lengths, page_sizes in ((prompts, (0, 16)), (mixed, (0, 16)), (steps, (0, 16, 256)), (chunk, (16, 256))):
        for size in page_sizes:
            yield _of_lengths(lengths, size, **heads)


def _of_lengths(lengths: tuple[tuple[int, int], ...], page_size: int, **sizes: Any) -> AttentionConfig:
    rows, keys = zip(*lengths, strict=True)
    pages = [-(-k // page_size) for k in keys] if page_size else [0]
    varlen = {
        "total_q": sum(rows), "total_k": 0 if page_size else sum(keys), "page_size": page_size,
        "num_pages": sum(pages), "max_pages": max(pages), "counts_keys": page_size > 0, "lengths": lengths,
    }  # fmt: skip
    return AttentionConfig.from_dict(
        {"batch": len(lengths), "seq_q": max(rows), "seq_k": max(keys), "varlen": varlen, **sizes}
    )


_INFERENCE_QUICK = {
    # (batch, seq, head_dim, causal): both sizes of batch, all head dimensions, causal and not, short to long.
    (1, 128, 64, False),
    (1, 128, 64, True),
    (4, 256, 32, False),
    (4, 256, 32, True),
    (1, 512, 128, False),
    (1, 512, 128, True),
    (1, 1024, 64, False),
    (1, 1024, 64, True),
}
_GEMMA_QUICK = {(1, 512, 32), (1, 512, 8), (4, 512, 8), (1, 1024, 8)}  # (batch, seq, num_kv_heads)


def _varlen_grid() -> Iterator[Grid]:
    """Yield the grid of sequences of different lengths; none at a commit without support for them (asv's history)."""
    if "varlen" in {field.name for field in fields(AttentionConfig)}:
        yield Grid(
            "varlen",
            "sequences of different lengths, packed and in pages of 16 and 256: 32 short prompts, 6 of 7 to 1024, 32 "
            "decode steps with 128 to 4095 keys, a chunk of a prompt among steps; 32 heads with 8 KV heads, D 128",
            tuple(_varlen()),
            lambda c: c.varlen is not None and (c.varlen.page_size == 16 or c.batch == 32),
            directions=("forward",),
        )


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        Grid(
            "inference",
            "self-attention of prompts: Sq = Sk 128 to 2048, D 32, 64, 128, 8 heads, batch 1 and 4, causal and not",
            tuple(_inference()),
            lambda c: (c.batch, c.seq_q, c.head_dim, c.causal) in _INFERENCE_QUICK,
        ),
        Grid(
            "square",
            "one head of n tokens and n dimensions, [1, n, n], n 32 to 512: the original CPU baseline table",
            tuple(_square()),
            lambda c: c.seq_q in {32, 128, 512},
        ),
        Grid(
            "gemma",
            "prompts of a Gemma-like model, causal: Sq = Sk 512 to 8192, D 256, heads 32/32 and 32/8, batch 1 to 16",
            tuple(_gemma()),
            lambda c: (c.batch, c.seq_q, c.num_kv_heads) in _GEMMA_QUICK,
        ),
        Grid(
            "decode",
            "one new token against a KV cache: Sq 1, Sk 128 to 16384, D 128, 32 heads with 8 KV heads, batch 1",
            tuple(_decode()),
            lambda c: c.seq_k in {128, 1024, 4096},  # 16384 took four fifths of the sampling time
            directions=("forward",),
        ),
        *_varlen_grid(),
        Grid(
            "latent",
            "multi-head latent attention: Sq 1 and 2, Sk 1024 to 16384, 128 heads of one KV head, D 576, Dv 512",
            tuple(_latent()),
            lambda c: c.seq_k == 4096,
            directions=("forward",),
        ),
        Grid(
            "odd",
            "sizes that no tile fits: Sq = Sk 128 to 896, D 32 to 256 (75, 107, 164, …), grouped heads, both layouts",
            tuple(_odd()),
            lambda c: (c.seq_q, c.head_dim) in {(128, 32), (177, 164), (200, 80), (528, 80)},
        ),
    )
}


def get_grid(name: str) -> Grid:
    """Return the grid with this name.

    Raises:
        ConfigError: When there is none; the message lists the names.
    """
    if name not in GRIDS:
        raise ConfigError(f"no grid is named {name!r}: choose from {', '.join(GRIDS)}")
    return GRIDS[name]
