"""Inputs for measuring and checking: bitwise equal for the same (config, kind, seed) in every process.

There are two kinds. "normal" is seeded standard normal data. "trig" consists of the ramps of the project's original
suite over each array's flat storage index n: q = sin(n / 10), k = cos(n / 10), v = tan(n / 10) clipped to [-4, 4] (tan
has poles, and one huge value would hide every other error), dout = sin(n / 5); the seed shifts n. Inputs are never
zeros: a kernel that does not write would pass, and multiplying zeros draws less power than real work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from rocattn.backend import Operands, Sequences
from rocattn.config import FP8_DTYPES
from rocattn.dropout import dropout_key
from rocattn.errors import ConfigError
from rocattn.layouts import heads_view, stored_shape

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig, VarlenShape

KINDS = ("normal", "trig")
_STORED = 16.0  # factor of 8-bit elements with a scale: normal data stays well within the range
_CHUNK = 1 << 22  # elements generated at a time, so that a large array needs no temporary of its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The arrays of one problem.

    Attributes:
        q, k, v: In the config's layout and dtype; 8-bit if it has a ``q_dtype`` or ``kv_dtype``.
        mask: bool, or the config's dtype if additive, of the config's ``mask_shape``; None without one.
        alibi_slopes: [H], float32 (float64 for float64): 2^(-8 (h + 1) / H) (Press et al. 2022); None without them.
        sinks: [H], the same dtype, normal; None without them.
        q_scale, k_scale, v_scale: [B, Hkv], the same dtype, 2^-5 to 2^-3: factors of 8-bit q, k and v, whose elements
            are 16 times as large; None without them.
        dout: Gradient of the output, in its layout and dtype; None unless the config's direction is "backward".
        sequences: The location of sequences of different lengths in q, k, v and dout; None without them.
        dropout_seed: The seed for a config with ``dropout_p``; the offset is 0.
        parts: The inputs of each sequence with rows; the arrays contain NaN outside of them.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    q_scale: Array | None = None
    k_scale: Array | None = None
    v_scale: Array | None = None
    dout: Array | None = None
    sequences: Sequences | None = None
    parts: tuple[Inputs, ...] = ()
    dropout_seed: int = 0x9E3779B97F4A7C15

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a backend reads, by name."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in given.items() if isinstance(array, np.ndarray)}

    def options(self, config: AttentionConfig) -> dict[str, Any]:
        """Return all keyword arguments of `rocattn.attention` except ``backend``; ``return_lse`` only for forward.

        For a config with ``varlen``, those of `rocattn.attention_varlen`.
        """
        if self.sequences is not None:
            return self._varlen_options(config)
        options: dict[str, Any] = {
            "causal": config.causal, "mask": self.mask, "window": config.window, "softcap": config.softcap,
            "alibi_slopes": self.alibi_slopes, "sinks": self.sinks, "scale": config.scale, "layout": config.layout,
            "num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
        }  # fmt: skip
        if config.dropout_p:
            options |= {"dropout_p": config.dropout_p, "dropout_seed": self.dropout_seed}
        if config.direction == "forward":
            options["return_lse"] = config.return_lse
        return options | self._scales(config)

    def _scales(self, config: AttentionConfig) -> dict[str, Any]:
        scales = {} if config.kv_dtype is None else {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return scales if config.q_dtype is None else scales | {"q_scale": self.q_scale, "out_dtype": config.dtype}

    def _varlen_options(self, config: AttentionConfig) -> dict[str, Any]:
        where = self.sequences
        assert where is not None
        options: dict[str, Any] = {
            "cu_seqlens_q": where.cu_seqlens_q, "cu_seqlens_k": where.cu_seqlens_k, "seqlens_k": where.seqlens_k,
            "causal": config.causal, "window": config.window, "softcap": config.softcap,
            "alibi_slopes": self.alibi_slopes, "sinks": self.sinks, "scale": config.scale,
        }  # fmt: skip
        if config.direction == "forward":
            options |= {"block_table": where.block_table, "return_lse": config.return_lse}
        return options | self._scales(config)

    def operands(self, config: AttentionConfig) -> Operands:
        """Return the arrays as views [B, H, S, D] for a backend."""
        slopes = self.alibi_slopes
        if self.sequences is not None:
            wide = None if slopes is None else np.broadcast_to(slopes, (config.batch, config.num_heads))
            k, v = (x.swapaxes(1, 2) if x.ndim == 4 else rows_view(x) for x in (self.k, self.v))
            return Operands(rows_view(self.q), k, v, None, wide, self.sinks, self.k_scale, self.v_scale, self.q_scale)
        return Operands(
            q=heads_view(self.q, config.layout, config.num_heads, "q"),
            k=heads_view(self.k, config.layout, config.num_kv_heads, "k"),
            v=heads_view(self.v, config.layout, config.num_kv_heads, "v"),
            mask=self.mask,
            alibi_slopes=None if slopes is None else np.broadcast_to(slopes, (config.batch, config.num_heads)),
            sinks=self.sinks,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            q_scale=self.q_scale,
            dropout_key=dropout_key(self.dropout_seed, 0) if config.dropout_p else None,
        )


def rows_view(array: Array) -> Array:
    """Return packed rows [S, heads, D] as a view [1, heads, S, D] for a backend."""
    return array[None].swapaxes(1, 2)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a config's ``dtype``, ``q_dtype`` or ``kv_dtype`` name."""
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" or name in FP8_DTYPES else name)


def stored_dtype(config: AttentionConfig, tensor: str) -> np.dtype[Any]:
    """Return the dtype of "q", "k", "v" or "out"."""
    stored = {"q": config.q_dtype, "k": config.kv_dtype, "v": config.kv_dtype}
    return numpy_dtype(stored.get(tensor) or config.dtype)


def make_inputs(config: AttentionConfig, *, data: str = "normal", seed: int = 0) -> Inputs:
    """Make the inputs of a config.

    Args:
        config: The problem.
        data: "normal" or "trig".
        seed: An integer of at least 0.

    Raises:
        ConfigError: For an unknown kind of data.
    """
    if data not in KINDS:
        raise ConfigError(f"data {data!r} is unknown: use one of {', '.join(KINDS)}")
    if config.varlen is not None:
        return _varlen_inputs(config, config.varlen, data, seed)
    # The config is part of the seed, so that configs do not share a prefix of the same stream.
    rng = np.random.default_rng([seed, int(config.key, 16)])
    dtype = numpy_dtype(config.dtype)
    names = ["q", "k", "v"] + ["out"] * (config.direction == "backward")
    scaled = {"q": config.q_scale, "k": config.k_scale, "v": config.v_scale}
    arrays = []
    for name in names:
        source, larger = _source(data, name, seed, rng), _STORED if scaled.get(name) else 1
        arrays.append(_fill(stored_shape(config, name), stored_dtype(config, name), source, larger))
    wide = np.dtype(np.float64 if config.dtype == "float64" else np.float32)
    heads = np.arange(1, config.num_heads + 1)
    return Inputs(
        q=arrays[0],
        k=arrays[1],
        v=arrays[2],
        mask=_mask(config, dtype, rng),
        alibi_slopes=np.exp2(-8.0 * heads / config.num_heads).astype(wide) if config.alibi else None,
        sinks=rng.standard_normal(config.num_heads).astype(wide) if config.sinks else None,
        k_scale=_scale(config, rng).astype(wide) if config.k_scale else None,
        v_scale=_scale(config, rng).astype(wide) if config.v_scale else None,
        q_scale=_scale(config, rng).astype(wide) if config.q_scale else None,
        dout=arrays[3] if config.direction == "backward" else None,
    )


def _scale(config: AttentionConfig, rng: np.random.Generator) -> Array:
    scale: Array = np.exp2(rng.uniform(-1, 1, (config.batch, config.num_kv_heads))) / _STORED
    return scale


def _varlen_inputs(config: AttentionConfig, varlen: VarlenShape, data: str, seed: int) -> Inputs:
    """Make each sequence's inputs like a separate problem's, then arrange them; pages in arbitrary order."""
    lengths, kept = varlen.lengths, ("q", "k", "v", "dout")
    alone = [config.replace(batch=1, seq_q=q, seq_k=k, varlen=None) for q, k in lengths]
    parts = [make_inputs(single, data=data, seed=seed + index) for index, single in enumerate(alone)]
    slopes, sinks = (parts[0].alibi_slopes, parts[0].sinks) if parts else (None, None)
    parts = [replace(part, alibi_slopes=slopes, sinks=sinks) for part in parts]
    starts = np.zeros((2, len(lengths) + 1), np.int32)
    starts[:, 1:] = np.array(lengths, np.int64).reshape(-1, 2).cumsum(axis=0).T
    names = {"q": "q", "k": "k", "v": "v"} | ({"dout": "out"} if config.direction == "backward" else {})
    arrays = {n: np.full(stored_shape(config, t), np.nan, stored_dtype(config, t)) for n, t in names.items()}
    counts = [-(-k // varlen.page_size) if varlen.paged else 0 for _, k in lengths]
    order, table = np.random.default_rng(seed).permutation(varlen.num_pages), None
    if varlen.paged:
        table = np.full((len(lengths), varlen.max_pages), -1, np.int32)
    for index, part in enumerate(parts):
        for name in (name for name in kept if name in arrays):
            rows = getattr(part, name)[0]
            if table is not None and name in {"k", "v"}:
                pages = table[index, : counts[index]] = order[sum(counts[:index]) :][: counts[index]]
                for at, page in enumerate(pages.tolist()):
                    tokens = rows[at * varlen.page_size : (at + 1) * varlen.page_size]
                    arrays[name][page, : len(tokens)] = tokens
            else:
                first = starts[int(name in {"k", "v"}), index]
                arrays[name][first : first + len(rows)] = rows
    keys = np.array([k for _, k in lengths], np.int32) if varlen.paged else None
    q_scale, k_scale, v_scale = (
        np.concatenate([getattr(part, name) for part in parts]) if getattr(config, name) and parts else None
        for name in ("q_scale", "k_scale", "v_scale")
    )
    return Inputs(
        q=arrays["q"], k=arrays["k"], v=arrays["v"], alibi_slopes=slopes, sinks=sinks, dout=arrays.get("dout"),
        q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
        sequences=Sequences(starts[0], None if varlen.paged else starts[1], keys, table),
        parts=tuple(part for part, (rows, _) in zip(parts, lengths, strict=True) if rows),
    )  # fmt: skip


def _source(data: str, name: str, seed: int, rng: np.random.Generator) -> Callable[[int, int], Array]:
    """Return a function for the values at flat positions start … start + count - 1 (to be called in order)."""
    if data == "normal":
        return lambda _, count: rng.standard_normal(count)

    def ramp(start: int, count: int) -> Array:
        n = np.arange(start, start + count, dtype=np.float64) + seed
        if name == "v":
            return np.clip(np.tan(n / 10), -4, 4)
        return np.cos(n / 10) if name == "k" else np.sin(n / (10 if name == "q" else 5))

    return ramp


def _fill(shape: tuple[int, ...], dtype: np.dtype[Any], source: Callable[[int, int], Array], larger: float) -> Array:
    array = np.empty(shape, dtype)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[...] = larger * source(start, part.size)
    return array


def _mask(config: AttentionConfig, dtype: np.dtype[Any], rng: np.random.Generator) -> Array | None:
    """Make a mask that hides a quarter of the keys, and every 16th row completely if each row has its own mask."""
    if config.mask_shape is None:
        return None
    batch, heads, rows, keys = config.mask_shape
    allowed = rng.random(config.mask_shape) < 0.75
    if keys == 1:
        allowed[...] = True  # a hidden element would hide whole rows, which only the rule below should do
    elif keys:
        # If only the mask hides keys, every row keeps at least one key.
        allowed[..., 0] |= ~allowed.any(axis=-1)
    if rows > 1:
        blank = rng.integers(16, size=(batch, heads))
        allowed &= (np.arange(rows) % 16 != blank[..., None])[..., None]
    if config.mask == "bool":
        return allowed
    values = rng.standard_normal(config.mask_shape)
    return np.where(allowed, values, -np.inf).astype(dtype)
