"""Judge an output: its error relative to float64, compared with the error of a naive program of the same dtype.

The rule, for every tensor: the largest error and the root mean square error may be at most ``factor`` times those of
the naive program (`rocattn_profiling.workloads.naive`), plus a floor. The factor is 2, and 3 for gradients. The floor
is for cases in which the naive program happens to be exact (one visible key): one unit in the last place of the dtype
at the magnitude of the result, four units of the accumulation dtype (float32; float64 for float64) at the magnitude of
v, and the smallest number that a result must not round to 0. For gradients it is four such units at the magnitude of
the terms they sum, times 1 + |LSE|: a backward pass recomputes probabilities as exp(score - LSE), and a score summed in
a different order than in the forward pass is off by a few units at its magnitude, while the naive program keeps its
probabilities. The same applies to float64 outputs, since the exact results are also float64 and rounded like the
naive program's. For large scores, `fair_forward` is the naive program.

Rows of the output are judged together with rows of similar magnitude (the same power of two): with one limit for all,
the first rows of a causal problem, which average few keys and so have large results and errors, would hide a wrong
tail in the last rows. Gradients, whose small rows are differences of large terms, are judged as a whole.

The LSE has the same rule: at most twice the naive program's largest error, plus four float32 units at its magnitude.
Exactly the rows without a visible key must have LSE -inf, and output 0.

NaN or inf where float64 has neither is wrong, even in rows that are not compared. The rule follows flash-attention's
tests (see the documentation on correctness); a fixed tolerance of 1e-2 would accept a kernel that drops a fifth of a
row at 1000 keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

import numpy as np

from rocattn.errors import ConfigError
from rocattn.layouts import heads_view, stored_shape
from rocattn_profiling.measure.records import Check
from rocattn_profiling.workloads.inputs import Inputs
from rocattn_profiling.workloads.naive import (
    LARGE_SCORE,
    exact_forward,
    exact_gradients,
    fair_forward,
    naive_gradients,
    one_kv_head,
)

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig

P = ParamSpec("P")
EDGE = 32
"""All tile sizes are multiples of this; rows on both sides of its multiples are sampled first."""
OUTPUT_FACTOR = 2.0
GRADIENT_FACTOR = 3.0
GROUP_ELEMENTS = 256
"""A group with fewer elements joins the next: it is too small to estimate the naive program's largest error."""
_UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
# A float32 result below the smallest normal number may be 0 (GPUs and fast CPU code flush it); float16 uses its
# smallest subnormal, which conversion from float32 preserves.
_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
_BLANK = -9999  # the octave for rows that are exactly 0
_WORST = sys.float_info.max  # JSON has no inf


def judge_output(
    config: AttentionConfig,
    inputs: Inputs,
    out: Array,
    lse: Array | None = None,
    *,
    max_flops: float = 2e9,
    seed: int = 0,
) -> Judgement:
    """Judge an output, and the LSE if given, tensor by tensor.

    Args:
        config: The problem.
        inputs: The inputs of the output.
        out: In the config's layout and dtype, head dimension Dv.
        lse: float32 [B, H, Sq], natural log; None if there is none.
        max_flops: Above this, query rows are sampled: the first and last, rows at tile edges, and random ones.
        seed: Of the sampling.

    Raises:
        ConfigError: When out or lse does not have the config's shape and dtype.
    """
    _check_form("out", out, stored_shape(config, "out"), config.dtype)
    if inputs.sequences is not None:
        return _joined_judgements(
            judge_output(
                single, part, out[None, rows], None if lse is None else np.ascontiguousarray(lse[None, :, rows]),
                max_flops=max_flops, seed=seed,
            )
            for single, part, rows, _ in _alone(config, inputs)
        )  # fmt: skip
    rows_total = config.batch * config.num_heads * config.seq_q
    if lse is not None:
        _check_form("lse", lse, (config.batch, config.num_heads, config.seq_q), "float32")
    if not rows_total:
        return Judgement([], 0, 0, OUTPUT_FACTOR)
    operands, view = inputs.operands(config), heads_view(out, config.layout, config.num_heads, "out")
    compared: dict[str, list[Array]] = {name: [] for name in ("out", "exact", "naive", "lse", "exact_lse", "naive_lse")}
    with np.errstate(all="ignore"):
        for batch, kv_head, rows in sample_rows(config, max_flops, seed):
            heads = one_kv_head(config, batch, kv_head)
            exact = exact_forward(config, operands, heads, rows)
            naive = fair_forward(config, operands, heads, rows, exact)
            got = view[batch, heads.query][:, rows].astype(np.float64).reshape(exact.out.shape)
            for name, part in (("out", got), ("exact", exact.out), ("naive", naive.out), ("exact_lse", exact.lse)):
                compared[name].append(part.astype(np.float64, copy=False))
            if lse is not None:
                logs = lse[batch, heads.query][:, rows].astype(np.float64).reshape(-1)
                for name, part in (("lse", logs), ("naive_lse", naive.lse)):
                    compared[name].append(part.astype(np.float64, copy=False))
        joined = {name: np.concatenate(parts) for name, parts in compared.items() if parts}
        size = _largest(inputs.v) * (1.0 if inputs.v_scale is None else _largest(inputs.v_scale))
        if config.dtype == "float64":
            size *= 1 + min(LARGE_SCORE, _largest(joined["exact_lse"]))
        verdicts = [judge_rows("out", joined["out"], joined["exact"], joined["naive"], config, size)]
        if lse is not None:
            verdicts.append(judge_lse(joined["lse"], joined["exact_lse"], joined["naive_lse"]))
        if _finite(inputs) and not (_all_finite(out) and (lse is None or not (np.isnan(lse) | (lse == np.inf)).any())):
            verdicts.append(hopeless("out" if not _all_finite(out) else "lse", OUTPUT_FACTOR))
    return Judgement(verdicts, len(joined["exact"]), rows_total, OUTPUT_FACTOR)


def _alone(config: AttentionConfig, inputs: Inputs) -> Iterator[tuple[AttentionConfig, Inputs, slice, slice]]:
    """Yield each sequence with rows: problem, inputs, and its rows of q and packed k."""
    assert inputs.sequences is not None
    rows = (inputs.sequences.queries(index) for index in range(inputs.sequences.count))
    with_rows = [(index, own) for index, own in enumerate(rows) if own.start < own.stop]
    for single, part, (index, own) in zip(config.sequences, inputs.parts, with_rows, strict=True):
        slopes = inputs.alibi_slopes  # [H], or [B, H]
        mine = slopes if slopes is None or slopes.ndim == 1 else slopes[index]
        yield single, replace(part, alibi_slopes=mine), own, inputs.sequences.keys(index)


def _joined_judgements(judgements: Iterable[Judgement]) -> Judgement:
    """Combine several sequences' judgments: for each tensor, the verdict closest to its limit."""
    every = list(judgements)
    worst: dict[str, AccuracyVerdict] = {}
    for verdict in (verdict for judgement in every for verdict in judgement.verdicts):
        if verdict.what not in worst or not verdict.ratio <= worst[verdict.what].ratio:
            worst[verdict.what] = verdict
    checked, rows = sum(x.rows_checked for x in every), sum(x.rows for x in every)
    return Judgement([*worst.values()], checked, rows, every[0].factor if every else OUTPUT_FACTOR)


def check_tensors(
    config: AttentionConfig, got: Sequence[Array], exact: Sequence[Array], naive: Sequence[Array]
) -> Check:
    """Judge the outputs [..., X] of a module around attention with the rule for outputs.

    Args:
        config: The module's attention; its dtype is the outputs'.
        got: The outputs.
        exact: Their float64 values.
        naive: The outputs of the module around the naive program.
    """
    verdicts = []
    for arrays in zip(got, exact, naive, strict=True):
        output, right, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in arrays)
        size = _largest(right)
        finite = _all_finite(output)
        judged = judge_rows("out", output, right, other, config, size) if finite else hopeless("out", OUTPUT_FACTOR)
        verdicts.append(judged)
    rows = sum(array.size // array.shape[-1] for array in exact)
    return as_check(verdicts, rows, rows, OUTPUT_FACTOR)


def judge_gradients(
    config: AttentionConfig,
    inputs: Inputs,
    dq: Array,
    dk: Array,
    dv: Array,
    *,
    max_flops: float = 2e9,
    seed: int = 0,
    exact: Mapping[str, Array] | None = None,
    exact_scores: bool = False,
) -> Judgement:
    """Judge gradients, tensor by tensor.

    Gradients of k and v sum over all query rows, so whole KV heads are compared: all up to ``max_flops``, random ones
    (at least one) above.

    Args:
        config: The problem, direction "backward".
        inputs: The inputs of the gradients, ``dout`` included.
        dq: With the layout, shape and dtype of q.
        dk: Likewise for k.
        dv: Likewise for v.
        max_flops: Above this, KV heads are sampled.
        seed: Of the sampling.
        exact: "dq", "dk" and "dv" as [B, heads, S, D] in float64, used instead of the analytic gradients.
        exact_scores: Whether scores do not depend on the order of summation: then a large LSE allows no larger error.

    Raises:
        ConfigError: When a gradient does not have its tensor's shape and dtype, or the inputs have no ``dout``.
    """
    if inputs.dout is None:
        raise ConfigError("the inputs have no dout: make them from a config with direction='backward'")
    if inputs.sequences is not None:
        return _joined_judgements(
            judge_gradients(
                single, part, dq[None, rows], dk[None, keys], dv[None, keys], max_flops=max_flops, seed=seed
            )
            for single, part, rows, keys in _alone(config, inputs)
        )
    given = {"dq": dq, "dk": dk, "dv": dv}
    for name, array in given.items():
        _check_form(name, array, stored_shape(config, name[1]), config.dtype)
    rows_total = config.batch * config.num_heads * config.seq_q
    operands = inputs.operands(config)
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    views = {
        name: heads_view(array, config.layout, config.num_heads if name == "dq" else config.num_kv_heads, name)
        for name, array in given.items()
    }
    units = _sample_kv_heads(config, max_flops, seed)
    if not units or not config.seq_q:
        blank = all(not np.asarray(array, np.float64).any() for array in given.values())
        return Judgement([] if blank else [hopeless("dk", GRADIENT_FACTOR)], 0, rows_total, GRADIENT_FACTOR)
    compared: dict[str, list[list[Array]]] = {name: [[], [], []] for name in given}
    largest_lse = 0.0
    with np.errstate(all="ignore"):
        for batch, kv_head in units:
            heads = one_kv_head(config, batch, kv_head)
            analytic = exact_gradients(config, operands, dout, heads)
            largest_lse = 0.0 if exact_scores else max(largest_lse, analytic.largest_lse)
            naive = naive_gradients(config, operands, dout, heads, wide_scores=exact_scores)
            for name, view in views.items():
                own = heads.query if name == "dq" else heads.kv
                part = view[batch, own].astype(np.float64)
                right = getattr(analytic, name)
                shape = right.shape
                if exact is not None:
                    right = exact[name][batch, own].reshape(shape)
                triple = (part.reshape(shape), right, getattr(naive, name))
                for parts, value in zip(compared[name], triple, strict=True):
                    parts.append(value.astype(np.float64, copy=False))
        sizes = _gradient_sizes(config, inputs, largest_lse)
        verdicts = [
            judge_whole(name, [np.concatenate(parts) for parts in compared[name]], config, sizes[name])
            for name in given
        ]
        bad = [name for name, array in given.items() if not _all_finite(array)]
        if bad and _finite(inputs):
            verdicts.append(hopeless(bad[0], GRADIENT_FACTOR))
    group = config.num_heads // config.num_kv_heads
    return Judgement(verdicts, len(units) * group * config.seq_q, rows_total, GRADIENT_FACTOR)


def _checked(judge: Callable[P, Judgement]) -> Callable[P, Check]:
    """Return a function with the same arguments that returns only the worst tensor's verdict."""
    return lambda *arguments, **options: judge(*arguments, **options).as_check()


check_output, check_gradients = _checked(judge_output), _checked(judge_gradients)


def sample_rows(config: AttentionConfig, max_flops: float, seed: int) -> list[tuple[int, int, Array]]:
    """Choose what to compare: (batch, KV head, query rows), everything if that takes at most ``max_flops``.

    A row means that position in every query head of the KV head. Above the limit each chosen KV head gets its first
    and last row, its share of the rows on both sides of tile edges (divided among the chosen heads), and random rows.
    """
    units = [(b, h) for b in range(config.batch) for h in range(config.num_kv_heads)]
    group = config.num_heads // config.num_kv_heads
    row_flops = 2 * group * max(config.seq_k, 1) * max(config.head_dim + config.head_dim_v, 1)
    budget = max(4, int(max_flops / row_flops))
    everything = np.arange(config.seq_q)
    if budget >= len(units) * config.seq_q:
        return [(b, h, everything) for b, h in units]
    rng = np.random.default_rng(seed)
    chosen = sorted(rng.permutation(len(units))[: max(1, budget // 16)])
    each = min(config.seq_q, max(4, budget // len(chosen)))
    edges = np.unique([[m - 1, m] for m in range(EDGE, config.seq_q, EDGE)])
    edges = rng.permutation(edges)
    plan = []
    for position, unit in enumerate(chosen):
        mine = edges[position :: len(chosen)][: each // 2]
        rest = rng.permutation(config.seq_q)
        wanted = dict.fromkeys([0, config.seq_q - 1, *mine.tolist(), *rest.tolist()[: each + 2]])
        plan.append((*units[unit], np.array(sorted(list(wanted)[:each]))))
    return plan


def _sample_kv_heads(config: AttentionConfig, max_flops: float, seed: int) -> list[tuple[int, int]]:
    units = [(b, h) for b in range(config.batch) for h in range(config.num_kv_heads)]
    group = config.num_heads // config.num_kv_heads
    flops = 2 * group * config.seq_q * config.seq_k * (3 * config.head_dim + 2 * config.head_dim_v)
    count = len(units) if not flops else min(len(units), max(1, int(max_flops / flops)))
    chosen = np.random.default_rng(seed).permutation(len(units))[:count]
    return [units[i] for i in sorted(chosen)]


def _gradient_sizes(config: AttentionConfig, inputs: Inputs, largest_lse: float) -> dict[str, float]:
    """Return the magnitude of the terms that a gradient sums: |dout| |v| in a row of dS, times scale k for dq."""
    assert inputs.dout is not None
    score = config.head_dim_v * _typical(inputs.dout) * _typical(inputs.v) * abs(config.softmax_scale)
    sizes = {"dq": score * _largest(inputs.k), "dk": score * _largest(inputs.q), "dv": _largest(inputs.dout)}
    return {name: size * (1 + largest_lse) for name, size in sizes.items()}


def _largest(array: Array) -> float:
    wide = array.astype(np.float32) if array.dtype.itemsize <= 2 else array
    return float(np.max(np.abs(wide), initial=0, where=np.isfinite(wide)))


def _typical(array: Array) -> float:
    wide = array.astype(np.float32) if array.dtype.itemsize <= 2 else array
    return rms(np.where(np.isfinite(wide), wide, 0))


def _all_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _finite(inputs: Inputs) -> bool:
    return all(_all_finite(array) for array in (inputs.q, inputs.k, inputs.v))


def _check_form(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype.name != dtype:
        raise ConfigError(f"{name} is {array.dtype.name} {list(array.shape)}; the config says {dtype} {list(shape)}")


@dataclass(frozen=True, slots=True)
class AccuracyVerdict:
    """The verdict on a tensor; ``ratio`` is the worst error / limit over groups, for largest and mean error.

    ``error``, ``naive_error`` and ``exact`` contain the compared elements, if any.
    """

    what: str
    ratio: float
    max_abs_error: float
    max_rel_error: float
    rms_error: float
    naive_max_abs_error: float
    factor: float
    error: Array = field(default_factory=lambda: np.empty(0), repr=False)
    naive_error: Array = field(default_factory=lambda: np.empty(0), repr=False)
    exact: Array = field(default_factory=lambda: np.empty(0), repr=False)


class Judgement(NamedTuple):
    """The verdicts on a problem's tensors, and the number of compared query rows."""

    verdicts: list[AccuracyVerdict]
    rows_checked: int
    rows: int
    factor: float

    def as_check(self) -> Check:
        """Return the verdict of the tensor closest to its limit, or farthest beyond it."""
        return as_check(*self)


def judge_rows(
    what: str, got: Array, exact: Array, naive: Array, config: AttentionConfig, size: float
) -> AccuracyVerdict:
    """Judge rows [N, X] in groups of the same power of two; rows that are exactly 0 must be 0."""
    error, naive_error = _error(got, exact), _error(naive, exact)
    scale = np.max(np.abs(exact), axis=-1, initial=0, where=np.isfinite(exact))
    octave = np.where(scale > 0, np.frexp(scale)[1], _BLANK)
    ratio = 0.0
    for rows, blank in _groups(octave, exact.shape[-1]):
        floor = 0.0 if blank else _floor(config, float(scale[rows].max()), size)
        ratio = max(ratio, _ratio(error[rows], naive_error[rows], OUTPUT_FACTOR, floor))
    return _verdict(what, ratio, error, naive_error, exact, OUTPUT_FACTOR)


def _groups(octave: Array, width: int) -> list[tuple[Array, bool]]:
    """Split rows into octaves, joining small ones with a neighbor, and state whether an octave's rows are exactly 0."""
    blank, order = np.flatnonzero(octave == _BLANK), np.argsort(octave, kind="stable")
    order = order[len(blank) :]
    groups: list[Array] = []
    start = 0
    for stop in [*(np.flatnonzero(np.diff(octave[order])) + 1).tolist(), len(order)]:
        if (stop - start) * width >= GROUP_ELEMENTS:
            groups.append(order[start:stop])
            start = stop
    if start < len(order):  # too few of the largest remain: they join the next smaller ones
        groups.append(np.concatenate([groups.pop(), order[start:]]) if groups else order[start:])
    return [(rows, False) for rows in groups] + [(blank, True)] * bool(blank.size)


def judge_whole(what: str, triple: list[Array], config: AttentionConfig, size: float) -> AccuracyVerdict:
    """Judge a gradient (got, exact, naive) as one group."""
    got, exact, naive = triple
    error, naive_error = _error(got, exact), _error(naive, exact)
    floor = _floor(config, float(np.max(np.abs(exact), initial=0)), size)
    ratio = _ratio(error, naive_error, GRADIENT_FACTOR, floor)
    return _verdict(what, ratio, error, naive_error, exact, GRADIENT_FACTOR)


def judge_lse(got: Array, exact: Array, naive: Array) -> AccuracyVerdict:
    """Judge the LSE, every element at its magnitude."""
    error, naive_error = _error(got, exact), _error(naive, exact)
    size = 1 + np.abs(np.where(np.isfinite(exact), exact, 0))
    limit = OUTPUT_FACTOR * naive_error.max() + 4 * np.finfo(np.float32).eps * size
    return _verdict("lse", float(np.max(error / limit)), error, naive_error, exact, OUTPUT_FACTOR)


def _error(got: Array, exact: Array) -> Array:
    """Return |got - exact|; 0 if both are the same non-finite value, inf if only one is."""
    same = (got == exact) | (np.isnan(got) & np.isnan(exact))
    error = np.where(same, 0, np.abs(got - exact))
    return np.where(np.isnan(error), np.inf, error)


def _ratio(error: Array, naive_error: Array, factor: float, floor: float) -> float:
    """Return the larger ratio of largest and root mean square error to their limits; 0 / 0 is 0."""
    if not error.size:
        return 0.0
    pairs = ((error.max(), naive_error.max(), floor), (rms(error), rms(naive_error), floor / 4))
    worst = 0.0
    for mine, naive, least in pairs:
        limit = factor * naive + least
        worst = max(worst, 0.0 if mine == 0 else float(mine / limit) if limit > 0 else np.inf)
    return worst


def _floor(config: AttentionConfig, scale: float, size: float) -> float:
    """Return the error allowed if the naive program is exact (see the module docstring)."""
    unit = _UNITS[config.dtype]
    sums = np.finfo(np.float64 if config.dtype == "float64" else np.float32).eps
    return float(unit * scale + 4 * sums * size + _LEAST[config.dtype])


def rms(error: Array) -> float:
    """Return the root mean square; 0 if empty."""
    return float(np.sqrt(np.mean(np.square(error)))) if error.size else 0.0


def hopeless(what: str, factor: float) -> AccuracyVerdict:
    """Return the verdict for a tensor with unexpected NaN or inf."""
    return AccuracyVerdict(what, np.inf, np.inf, np.inf, np.inf, 0.0, factor)


def _verdict(what: str, ratio: float, error: Array, naive_error: Array, exact: Array, factor: float) -> AccuracyVerdict:
    worst = float(error.max(initial=0))
    largest = float(np.max(np.abs(exact), initial=0, where=np.isfinite(exact)))
    relative = worst / largest if largest else (0.0 if worst == 0 else np.inf)
    least = float(naive_error.max(initial=0))
    return AccuracyVerdict(what, ratio, worst, relative, rms(error), least, factor, error, naive_error, exact)


def as_check(verdicts: list[AccuracyVerdict], rows_checked: int, rows: int, factor: float) -> Check:
    """Return the verdict of the tensor closest to its limit, or farthest beyond it."""
    worst = max(verdicts, key=lambda v: v.ratio, default=AccuracyVerdict("out", 0.0, 0.0, 0.0, 0.0, 0.0, factor))
    return Check(
        ok=worst.ratio <= 1,
        max_abs_error=min(worst.max_abs_error, _WORST),
        max_rel_error=min(worst.max_rel_error, _WORST),
        rms_error=min(worst.rms_error, _WORST),
        naive_max_abs_error=min(worst.naive_max_abs_error, _WORST),
        factor=worst.factor,
        rows_checked=rows_checked,
        rows=rows,
        what=worst.what,
        ratio=min(worst.ratio, _WORST),
    )
