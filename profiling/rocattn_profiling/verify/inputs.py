"""Inputs that stress one property each: magnitudes, rising or huge scores, tiny probabilities, NaN in hidden keys.

Each kind changes seeded normal data (`rocattn_profiling.workloads.inputs`); a case names its kind, so that its inputs
are the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.errors import ConfigError
from rocattn.layouts import heads_view
from rocattn_profiling.verify.contract import visible_pairs
from rocattn_profiling.workloads.inputs import KINDS, Inputs, make_inputs, numpy_dtype

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig

POISONS = {"nan": np.nan, "inf": np.inf, "minus-inf": -np.inf}
_RANGES = {"float16": (-14, 65504.0), "bfloat16": (-126, 3.38e38), "float32": (-126, 3.4e38), "float64": (-1022, 1e308)}
_STEPS = {"float16": 13, "bfloat16": 24, "float32": 24, "float64": 24}
_GAP = 9  # the period of scores that fall by ln 2 per key: odd and no divisor of a tile


def make_case_inputs(config: AttentionConfig, data: str, seed: int = 0) -> Inputs:
    """Make the inputs of a case: "normal", "trig", or one of `STRESSES`.

    Raises:
        ConfigError: For an unknown kind of data.
    """
    if data not in KINDS and data not in STRESSES:
        raise ConfigError(f"data {data!r} is unknown: use one of {', '.join((*KINDS, *STRESSES))}")
    inputs = make_inputs(config, data=data if data in KINDS else "normal", seed=seed)
    if inputs.alibi_slopes is not None and config.batch > 1:  # [B, H]: different slopes for each sequence
        parts = np.arange(1, config.batch + 1, dtype=inputs.alibi_slopes.dtype)[:, None]
        inputs = replace(inputs, alibi_slopes=inputs.alibi_slopes / parts)
    if data in STRESSES:
        with np.errstate(all="ignore"):
            STRESSES[data](config, inputs)
    return inputs


def _scaled(factor: float) -> Callable[[AttentionConfig, Inputs], None]:
    def change(_: AttentionConfig, inputs: Inputs) -> None:
        for array in (inputs.q, inputs.k, inputs.v):
            array[...] = array.astype(np.float64) * factor

    return change


def _large_scores(config: AttentionConfig, inputs: Inputs) -> None:
    """Scores in the thousands, with standard deviation 2000."""
    spread = max(config.head_dim, 1) ** 0.5 * abs(config.softmax_scale)
    inputs.q[...] = inputs.q.astype(np.float64) * (2000 / spread)


def _subnormal(config: AttentionConfig, inputs: Inputs) -> None:
    """All elements of q, k and v below the dtype's smallest normal number."""
    _scaled(2.0 ** _RANGES[config.dtype][0] / 8)(config, inputs)


def _set_scores(config: AttentionConfig, inputs: Inputs, scores: Array) -> None:
    """Give every row the same scores [Sk] through the first feature; the other features keep a little noise."""
    q = heads_view(inputs.q, config.layout, config.num_heads, "q")
    k = heads_view(inputs.k, config.layout, config.num_kv_heads, "k")
    q[...] = q.astype(np.float64) / 16
    q[..., 0] = 4
    k[..., 0] = scores / (4 * config.softmax_scale)


def _rising(config: AttentionConfig, inputs: Inputs) -> None:
    """Scores rise by 40 from the first key to the last: the running maximum of an online softmax keeps changing."""
    _set_scores(config, inputs, np.linspace(0, 40, config.seq_k))


def _falling(config: AttentionConfig, inputs: Inputs) -> None:
    """Scores fall by 40 from the first key to the last: the maximum is in the first tile."""
    _set_scores(config, inputs, np.linspace(40, 0, config.seq_k))


def _faint(config: AttentionConfig, inputs: Inputs) -> None:
    """Keys with tiny probabilities and large values, so that the output depends on every probability's last bits.

    Key j has score -ln 2 * (9 j mod steps) and a value 2^(9 j mod steps) times as large.
    """
    power = np.arange(config.seq_k) * _GAP % _STEPS[config.dtype]
    _set_scores(config, inputs, -np.log(2) * power)
    q = heads_view(inputs.q, config.layout, config.num_heads, "q")
    q[..., 1:] = 0
    v = heads_view(inputs.v, config.layout, config.num_kv_heads, "v")
    v[...] = np.clip(v.astype(np.float64), -3, 3) * np.exp2(power)[:, None]


def _uniform(config: AttentionConfig, inputs: Inputs) -> None:
    """Scores of 0 and one-hot values: out[i, j mod Dv] shows whether row i sees key j, the LSE how many it sees."""
    inputs.q[...] = 0
    v = heads_view(inputs.v, config.layout, config.num_kv_heads, "v")
    v[...] = np.arange(config.seq_k)[:, None] % max(config.head_dim_v, 1) == np.arange(config.head_dim_v)


def _positions(config: AttentionConfig, inputs: Inputs) -> None:
    """Each row attends to a single key and so returns one row of V, which shows where V was read."""
    rng = np.random.default_rng([config.seq_q, config.seq_k])
    codes = rng.choice([-1.0, 1.0], (config.seq_k, config.head_dim))
    wanted = rng.permutation(np.arange(config.seq_q) % max(config.seq_k, 1))
    k = heads_view(inputs.k, config.layout, config.num_kv_heads, "k")
    q = heads_view(inputs.q, config.layout, config.num_heads, "q")
    k[...] = codes
    # Keys that share at most half of their signs are 1000 apart, and exp(-1000) is 0 in every dtype.
    q[...] = codes[wanted] * (2000 / max(config.head_dim, 1) / config.softmax_scale)


def _all_bytes(config: AttentionConfig, inputs: Inputs) -> None:
    """8-bit tensors with every byte that is a number equally often, including -0, subnormals and the largest."""
    for seed, array in enumerate((inputs.k, inputs.v, *([inputs.q] if config.q_dtype else []))):
        numbers = np.arange(256).astype(np.uint8).view(array.dtype)
        numbers = numbers[np.isfinite(numbers)]
        array[...] = np.random.default_rng(seed).permutation(np.resize(numbers, array.size)).reshape(array.shape)


def _offset(_: AttentionConfig, inputs: Inputs) -> None:
    """Values with a mean far above their spread, to reveal a small error in the denominator."""
    inputs.v[...] = inputs.v.astype(np.float64) + 100


def _lowest(config: AttentionConfig, inputs: Inputs) -> None:
    """An additive mask with the dtype's lowest finite number instead of -inf: such keys are barely visible."""
    if config.mask == "additive":
        assert inputs.mask is not None
        finite = np.asarray(_lowest_finite(numpy_dtype(config.dtype)), inputs.mask.dtype)
        inputs.mask[...] = np.where(inputs.mask == inputs.mask.dtype.type(-np.inf), finite, inputs.mask)


def _blank(config: AttentionConfig, inputs: Inputs) -> None:
    """Every second row has no visible key: its mask is all -inf or False."""
    if inputs.mask is not None and config.mask_shape is not None and config.mask_shape[2] > 1:
        inputs.mask[:, :, ::2] = False if config.mask == "bool" else -np.inf


def _no_sink(_: AttentionConfig, inputs: Inputs) -> None:
    """Every second head has a sink of -inf, which must have no effect: -inf - -inf must not be computed."""
    if inputs.sinks is not None:
        inputs.sinks[::2] = -np.inf


def _huge(pattern: str, size: float) -> Callable[[AttentionConfig, Inputs], None]:
    """Scores of ±0.75 to 1.25 times a size, constant per row: subtracting the maximum first leaves no error.

    "flat": equal for all keys; "stepped": every third key's score is larger by 2^-6, so that either these keys or all
    others get the whole weight. Both use only the first feature. "equal": all elements of q are one power of two, and
    all of k another. ALiBi and finite mask values would be lost next to such scores: every second head has slopes large
    enough, the others none, and finite mask values become 0.
    """

    def change(config: AttentionConfig, inputs: Inputs) -> None:
        q = heads_view(inputs.q, config.layout, config.num_heads, "q")
        k = heads_view(inputs.k, config.layout, config.num_kv_heads, "k")
        random = q[..., 0].astype(np.float64)
        sign = np.where(random < 0, -1, 1)
        product = size / config.softmax_scale
        if pattern == "equal":
            number = 2.0 ** round(np.log2(product / config.head_dim) / 2)
            q[...], k[...] = sign[..., None] * number, number
        else:
            first = 2.0**15 if config.dtype == "float16" else 1.0  # keeps q in range
            q[...] = 0
            q[..., 0] = np.clip(product / first * sign * (0.75 + np.abs(random) % 0.5), *_finite_range(config))
            k[..., 0] = first
            if pattern == "stepped":
                k[:, :, 2::3, 0] = first * (1 + 2.0**-6)
        if config.mask == "additive":
            assert inputs.mask is not None
            inputs.mask[inputs.mask != -np.inf] = 0
        if inputs.alibi_slopes is not None:
            inputs.alibi_slopes[..., ::2], inputs.alibi_slopes[..., 1::2] = 0, size * 2.0**-6

    return change


def _finite_range(config: AttentionConfig) -> tuple[float, float]:
    lowest = _lowest_finite(numpy_dtype(config.dtype))
    return lowest, -lowest


def _lowest_finite(dtype: np.dtype[Any]) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations


def _poisoned(kind: str) -> Callable[[AttentionConfig, Inputs], None]:
    def change(config: AttentionConfig, inputs: Inputs) -> None:
        k = heads_view(inputs.k, config.layout, config.num_kv_heads, "k")
        v = heads_view(inputs.v, config.layout, config.num_kv_heads, "v")
        for batch, head, key in zip(*np.nonzero(poisoned_keys(config, inputs)), strict=True):
            k[batch, head, key] = POISONS[kind]
            v[batch, head, key] = POISONS[kind]

    return change


def poisoned_keys(config: AttentionConfig, inputs: Inputs) -> Array:
    """Return which keys to poison, bool [B, Hkv, Sk]: the sixth of the keys that is visible to the fewest rows.

    If some keys are hidden from all rows, only those, possibly fewer.
    """
    rows_seeing = (
        visible_pairs(config, inputs.mask).reshape(config.batch, config.num_kv_heads, -1, config.seq_k).sum(axis=2)
    )
    count = max(1, config.seq_k // 6)
    chosen = np.argsort(rows_seeing, axis=-1, kind="stable")[..., :count]
    marked = np.zeros(rows_seeing.shape, bool)
    np.put_along_axis(marked, chosen, values=True, axis=-1)
    unseen = rows_seeing == 0
    return np.asarray(marked & (unseen | ~unseen.any(axis=-1, keepdims=True)))


STRESSES: dict[str, Callable[[AttentionConfig, Inputs], None]] = {
    **{f"x{factor:g}": _scaled(factor) for factor in (1e-4, 1e-2, 1e2, 1e4)},
    "large-scores": _large_scores,
    "subnormal": _subnormal,
    "rising": _rising,
    "falling": _falling,
    "faint": _faint,
    "uniform": _uniform,
    "positions": _positions,
    "all-bytes": _all_bytes,
    "offset": _offset,
    "lowest": _lowest,
    "blank": _blank,
    "no-sink": _no_sink,
    **{f"hidden-{kind}": _poisoned(kind) for kind in POISONS},
    **{f"flat-1e{power}": _huge("flat", 10.0**power) for power in (8, 10, 20, 31)},
    **{f"stepped-1e{power}": _huge("stepped", 10.0**power) for power in (8, 20)},
    "equal-1e10": _huge("equal", 1e10),
}
"""Kind of data -> function that modifies seeded normal inputs in place."""
