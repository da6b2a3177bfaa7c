"""Identify faults: which known mistake reproduces a backend's wrong output?

Each hypothesis is a `Twist` of the contract. It fits a case if it explains the wrong rows of the output, leaves the
right rows right, and reproduces the LSE. A mistake is reported only if it fits every failing case of a backend
(`rocattn_profiling.verify.outcomes`), since it may fit one by chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn.layouts import heads_view
from rocattn_profiling.verify.contract import RIGHT, Twist, attend
from rocattn_profiling.workloads.inputs import numpy_dtype
from rocattn_profiling.workloads.naive import all_gradients

if TYPE_CHECKING:
    from rocattn.backend import Array
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs

LARGEST = 6e7
"""Above this many multiply-adds per hypothesis, a case is too large to try them all."""
_SLACK = 8 * math.log(2)  # of this project's kernels, whose weights reach 2^8
_NARROWER = {
    "float64": ("float16", "bfloat16"), "float32": ("float16", "bfloat16"), "float16": ("bfloat16", "float16"),
    "bfloat16": ("bfloat16",),
}  # fmt: skip
"""Too narrow dtypes for a program's intermediate results; with 16-bit inputs, the same dtype matters only for sums."""
_UNUSUAL = 3.0  # times the error of a right program
_TILES_OF_SUMS = (8, 16, 32, 64, 128)
_TILES = (8, 16, 32, 48, 64, 96, 128, 256)
_UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-44}
_SCORE_UNIT = {"float32": 2.0**-22, "float64": 2.0**-51}
_GRADIENT_UNIT = 2.0**-16  # of the largest gradient: error of sums with cancellation
_LSE_UNIT = 1e-5  # LSEs are float32 for every dtype
_REST = 0.05  # fraction of a row's error that a mistake may leave unexplained
_ROUNDING = 1e-3  # of a mistake's errors: smaller errors of a row are rounding in a narrower dtype
_EXPLAINED = 0.9  # fraction of the wrong rows; tiles need not change every row


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A mistake, described in words and as a twist.

    Attributes:
        words: The mistake.
        twist: The contract with this mistake.
        detail: The difference between variants of a mistake.
        enough: The fraction of the wrong rows that it must explain.
        everywhere: Whether it must also leave right rows right. If not, it affects only some rows, and is reported if
            no other mistake explains the output.
    """

    words: str
    twist: Twist
    detail: str = ""
    enough: float = _EXPLAINED
    everywhere: bool = True


class KnownMistake(msgspec.Struct, frozen=True, kw_only=True):
    """A known mistake that fits a wrong output: its words, which identify it, and a detail of this case.

    ``unsure``: it neither fits nor can be excluded, because it reads memory with unknown contents. ``proven``: it was
    observed directly, not inferred from an output that it would explain.
    """

    mistake: str
    detail: str = ""
    unsure: bool = False
    proven: bool = False

    @property
    def words(self) -> str:
        """Mistake and detail in one line."""
        return f"{self.mistake} ({self.detail})" if self.detail else self.mistake


DIFFERENCES = {
    "again": "its bits differ from run to run",
    "filled": "it adds to the output's old contents, or leaves parts of the output unwritten",
    "refilled": "K or V refilled in place is read with its old contents: something is cached by an array's address",
    "threads": "its bits depend on the number of threads",
    "at once": "calls from several threads disturb each other",
}
"""Mistakes that show when the computation is repeated, by `execution.LaterRuns.cause`."""
UNSCALED = "scores are not scaled"
NO_DELTA = "rowsum(dO * out), often called delta, is not subtracted"
LEAK = "NaN or inf of a hidden key reaches rows that do not see it"
UNSTABLE = "the exponent is rounded before the largest score is subtracted: huge equal scores overflow or vanish"
COARSE = "probabilities of the backward pass are taken from the LSE, whose rounding decides them at huge scores"
NARROW = "float64 is computed in float32: every number in the output is exact in float32"
_HUGE = 2.0**20  # scores whose float32 rounding, in log2 units, begins to affect exponents


def fitting(
    config: AttentionConfig, inputs: Inputs, out: Array, lse: Array | None, *, what: str = "out",
    only: Collection[str] | None = None,
) -> list[KnownMistake] | None:  # fmt: skip
    """Return the known mistakes that explain a wrong output, the likeliest first; None if the case is too large.

    Args:
        config: The problem; only its forward direction is used.
        inputs: The inputs of the output.
        out: The output in the config's layout.
        lse: [B, H, Sq], or None.
        what: The worst wrong tensor.
        only: The mistakes to try; all if None.
    """
    if not _can_be_tried(config):
        return None
    got = heads_view(out, config.layout, config.num_heads, "out").astype(np.float64)
    with np.errstate(all="ignore"):
        exact, exact_lse = attend(config, inputs)
        case = _Case(config, inputs, got, exact, lse, exact_lse, _tolerance(config, inputs, exact))
        named = list(_at_a_glance(case, what))
        explaining = [] if case.right.all() else _explaining(case, only)
        named += explaining
        if not explaining and case.within_rounding() and not case.right_lse.all():
            named += [KnownMistake(mistake=words) for words in _lse_mistakes(case)]
        if not named and what != "lse":
            named = _precisions(case)
        if not named and case.right.all() and what in {"out", "lse"}:
            return None  # the error is within the rounding, so no mistake can be identified
    return [fit for fit in dict.fromkeys(named) if only is None or fit.mistake in only]


def same_forward(config: AttentionConfig, inputs: Inputs, out: Array, lse: Array | None) -> bool:
    """Return whether a forward pass is right except for rounding, or too large to check."""
    if not _can_be_tried(config):
        return True
    got = heads_view(out, config.layout, config.num_heads, "out").astype(np.float64)
    with np.errstate(all="ignore"):
        exact, exact_lse = attend(config, inputs)
        case = _Case(config, inputs, got, exact, lse, exact_lse, _tolerance(config, inputs, exact))
        return bool(case.within_rounding() and case.right_lse.all())


def _can_be_tried(config: AttentionConfig) -> bool:
    work = config.batch * config.num_heads * config.seq_q * config.seq_k * (config.head_dim + config.head_dim_v)
    return 0 < work <= LARGEST


class _Case:
    """A wrong output with the right one, [B, H, Sq, Dv], and their LSEs [B, H, Sq]."""

    def __init__(
        self, config: AttentionConfig, inputs: Inputs, got: Array, exact: Array, lse: Array | None, exact_lse: Array,
        tolerance: float,
    ) -> None:  # fmt: skip
        self.config, self.inputs, self.got, self.exact, self.tolerance = config, inputs, got, exact, tolerance
        self.lse = None if lse is None else lse.astype(np.float64)
        self.exact_lse = exact_lse
        self.right_lse = self.lse_is(exact_lse)
        self.right_out = _close(got, exact, tolerance)
        self.right = self.right_out & self.right_lse
        # Scores are also rounded: if they are large, outputs with the same mistake differ by more than the tolerance.
        self.error = np.abs(got - exact).max(axis=-1, initial=0)
        self.nearness = np.maximum(tolerance, np.where(np.isfinite(self.error), self.error, 0) * _REST)[..., None]

    def lse_is(self, other: Array) -> Array:
        """Return which rows' LSEs equal another output's; all without an LSE."""
        if self.lse is None:
            return np.ones(other.shape, bool)
        same = self.equal(self.lse, other, max(_UNITS[self.config.dtype], _LSE_UNIT))
        error = np.abs(self.lse - self.exact_lse)
        return same | (np.isfinite(error) & (np.abs(self.lse - other) <= _REST * error))

    def fits(self, other: Array, other_lse: Array) -> Array:
        """Return which rows another program explains: the output, together with its LSE or the right LSE."""
        hidden = (other_lse < _FAR) & (other_lse < self.exact_lse)  # with any finite score
        if self.lse is not None:
            hidden &= self.lse < _FAR
        return _close(self.got, other, self.nearness) & (self.lse_is(other_lse) | self.right_lse | hidden)

    def shows(self, other: Array, other_lse: Array) -> bool:
        """Return whether another program's result differs from the right one in this case."""
        unit = max(_UNITS[self.config.dtype], _LSE_UNIT)
        same_lse = self.lse is None or bool(self.equal(self.exact_lse, other_lse, unit).all())
        return not (same_lse and _close(other, self.exact, self.tolerance).all())

    def equal(self, lse: Array, other: Array, unit: float) -> Array:
        """Return which LSEs are equal within a unit at their magnitude."""
        size = 1 + np.abs(np.where(np.isfinite(self.exact_lse), self.exact_lse, 0))
        near = np.abs(lse - other) <= size * unit
        return np.asarray((lse == other) | near | (np.isnan(lse) & np.isnan(other)))

    def within_rounding(self) -> bool:
        """Return whether the output is right except for rounding, including that of large scores."""
        scores = float(np.max(np.abs(self.exact_lse), initial=0, where=np.isfinite(self.exact_lse)))
        unit = _SCORE_UNIT["float64" if self.config.dtype == "float64" else "float32"]
        return bool(
            _close(self.got, self.exact, self.tolerance * (1 + scores * unit / _UNITS[self.config.dtype])).all()
        )

    def explained(self, fits: Array) -> float:
        """Return the fraction of the wrong rows that fit, ignoring rows whose errors are negligible in comparison."""
        wrong = ~self.right
        if not (wrong & fits).any():
            return 0.0
        rounded = self.right_lse & (self.error < _ROUNDING * np.median(self.error[wrong & fits]))
        missed = wrong & ~fits & ~rounded
        return float(1 - missed.sum() / wrong.sum())


def gradient_mistakes(
    config: AttentionConfig, inputs: Inputs, arrays: Mapping[str, Array]
) -> list[KnownMistake] | None:
    """Return the known mistakes that explain wrong gradients; None if the case is too large.

    Args:
        config: The problem.
        inputs: Its inputs, with dout.
        arrays: dq, dk and dv, in the config's layout.
    """
    if not _can_be_tried(config) or inputs.dout is None:
        return None
    heads = {"dq": config.num_heads, "dk": config.num_kv_heads, "dv": config.num_kv_heads}
    got = {n: heads_view(arrays[n], config.layout, count, n).astype(np.float64) for n, count in heads.items()}
    dout = heads_view(inputs.dout, config.layout, config.num_heads, "dout")
    exact = all_gradients(config, inputs.operands(config), dout)
    if not all(np.isfinite(array).all() for array in exact.values()):
        return []
    found = []
    for mistake, changed in _gradient_hypotheses(config, inputs, dout, exact):
        shows = _explains(got, exact, exact | changed, max(3 * _UNITS[config.dtype], _GRADIENT_UNIT))
        if shows is not None:
            found.append(msgspec.structs.replace(mistake, unsure=not shows))
    return sorted(found, key=lambda fit: fit.unsure)


def _explains(
    got: Mapping[str, Array], exact: Mapping[str, Array], other: Mapping[str, Array], unit: float
) -> bool | None:
    """Return whether a mistake is visible in these gradients; None if it does not explain them."""
    shows = False
    for name, array in got.items():
        rounding = unit * float(np.abs(exact[name]).max(initial=0))
        apart = float(np.abs(other[name] - exact[name]).max(initial=0))
        if not np.abs(array - other[name]).max(initial=0) <= max(rounding, _REST * apart):
            return None
        shows = shows or apart > 2 * rounding
    return shows


def _gradient_hypotheses(
    config: AttentionConfig, inputs: Inputs, dout: Array, exact: Mapping[str, Array]
) -> Iterator[tuple[KnownMistake, dict[str, Array]]]:
    """Yield mistakes of backward passes with the gradients that they change, most common first."""
    scale, group = config.softmax_scale, config.num_heads // config.num_kv_heads
    dq, dk, dv = exact["dq"], exact["dk"], exact["dv"]
    if scale:
        unscaled = KnownMistake(mistake=UNSCALED, detail="nor are dq and dk")
        yield unscaled, {"dq": dq / scale, "dk": dk / scale}
        for words, factor in (("is not scaled", 1 / scale), ("is scaled twice", scale)):
            yield KnownMistake(mistake=f"dq {words}"), {"dq": dq * factor}
            yield KnownMistake(mistake=f"dk {words}"), {"dk": dk * factor}
    if config.head_dim == config.head_dim_v:
        yield KnownMistake(mistake="dk and dv are swapped"), {"dk": dv, "dv": dk}
    operands = inputs.operands(config)
    yield KnownMistake(mistake=NO_DELTA), all_gradients(config, operands, dout, delta=False)
    if config.softcap is not None:
        flat = KnownMistake(mistake="the slope of the softcap is missing")
        yield flat, all_gradients(config, operands, dout, slope=False)
    if group > 1:
        mean = KnownMistake(mistake="dk and dv are the mean over the query heads of a group, not the sum")
        yield mean, {"dk": dk / group, "dv": dv / group}
        for place, which in ((group - 1, "last"), (0, "first")):
            alone = np.zeros_like(dout)  # gradients are linear in dO
            alone[:, place::group] = dout[:, place::group]
            of_one = all_gradients(config, operands, alone)
            words = f"dk and dv are those of the {which} query head of a group, not the sum"
            yield KnownMistake(mistake=words), {"dk": of_one["dk"], "dv": of_one["dv"]}


def _at_a_glance(case: _Case, what: str) -> Iterator[KnownMistake]:
    """Yield mistakes that the positions of wrong rows reveal, without a program that reproduces them."""
    lost = np.asarray(np.isfinite(case.exact).all(axis=-1) & ~np.isfinite(case.got).all(axis=-1))
    alone = lost.any() and not (~case.right_out & ~lost).any()
    if alone and not _finite(case.inputs):
        yield KnownMistake(mistake=LEAK)
    elif alone:
        if not (lost & ~np.isneginf(case.exact_lse)).any():
            yield KnownMistake(mistake="rows that see nothing are NaN, not 0")
        count = int(np.argmin([*lost[0, 0, ::-1], False]))
        if 0 < count < lost.shape[2] and lost.sum() == count * lost[..., 0].size and lost[..., -count:].all():
            yield KnownMistake(mistake="the last rows are never written, or NaN", detail=f"{count} of {lost.shape[2]}")
    if _unstable(case.got, case.exact, case.exact_lse, ~case.right_out):
        yield KnownMistake(mistake=UNSTABLE)
    if case.config.dtype == "float64" and not case.right_out.all() and _is_float32(case.got) > _is_float32(case.exact):
        yield KnownMistake(mistake=NARROW)
    if what.startswith("d") and case.right.all() and _huge(case.exact_lse).any():
        yield KnownMistake(mistake=COARSE)
    yield from _sentinel(case)


def _unstable(got: Array, exact: Array, exact_lse: Array, wrong: Array) -> bool:
    """Return whether only rows with huge scores are wrong, some of them with unexpected NaN, inf or 0."""
    lost = ~np.isfinite(got).all(axis=-1) | ((got == 0).all(axis=-1) & (exact != 0).any(axis=-1))
    return bool((wrong & lost).any() and not (wrong & ~_huge(exact_lse)).any())


def _is_float32(array: Array) -> bool:
    return bool(np.array_equal(array, array.astype(np.float32), equal_nan=True))


def _huge(exact_lse: Array) -> Array:
    return np.asarray(np.isfinite(exact_lse) & (np.abs(exact_lse) > _HUGE))


_FAR = -5e3
_FINITE = "hidden scores are a finite number, not -inf: rows that see nothing return a mean of V"


def _hypotheses(config: AttentionConfig) -> Iterator[Hypothesis]:
    """Yield the mistakes that could show in a config, most common first."""
    band, group = config.causal or config.window is not None, config.num_heads // config.num_kv_heads
    yield Hypothesis("the last key of a row is not seen", Twist(dropped=1))
    for count in dict.fromkeys([2, *(config.seq_k % tile for tile in (16, 32, 64, 128))]):
        if 1 < count < config.seq_k:
            yield Hypothesis(f"the last {count} keys are not seen", Twist(dropped=count))
    if band:
        top_left = "causal and window are aligned top-left, not bottom-right"
        yield Hypothesis(top_left, Twist(top_left=True))
        yield Hypothesis(top_left, Twist(top_left=True, simplified=True))
        if config.alibi:
            yield Hypothesis(top_left, Twist(top_left=True, alibi_top_left=True), detail="and ALiBi")
        yield Hypothesis(top_left, Twist(causal_top_left=True), detail="causal alone")
        yield Hypothesis("the last key of each row's band is not seen", Twist(shift=(0, -1)))
        yield Hypothesis("each row sees one key beyond the right end of its band", Twist(shift=(0, 1)))
        yield Hypothesis("the first key of each row's window is not seen", Twist(shift=(-1, 0)))
        yield Hypothesis("each row sees one key before the left end of its window", Twist(shift=(1, 0)))
        yield Hypothesis("causal and window are ignored", Twist(band=False))
    if config.mask == "additive":
        yield Hypothesis(
            "finite values of an additive mask are not added: it is read as hiding or not", Twist(mask="only -inf")
        )
        yield Hypothesis("an additive mask is multiplied by the scale, too", Twist(mask="scaled"))
        for narrow in ("float16", "bfloat16") if config.dtype in {"float32", "float64"} else ():
            yield Hypothesis(f"the values of an additive mask are rounded to {narrow}", Twist(mask=narrow))
    if config.mask != "none":
        yield Hypothesis("the mask is ignored", Twist(mask="ignored"))
        batches, heads = config.mask_shape[:2] if config.mask_shape else (1, 1)
        if heads > 1:
            yield Hypothesis("every head uses the first head's mask", Twist(masked_by="first head"))
        if batches > 1:
            yield Hypothesis("every batch uses the first batch's mask", Twist(masked_by="first batch"))
        yield Hypothesis("the boolean mask is inverted", Twist(mask="inverted"))
    yield Hypothesis(_FINITE, Twist(hidden=-1e30))
    yield from _scaling(config)
    if config.kv_dtype is not None:
        yield Hypothesis("8-bit tensors are read in the other of the two formats", Twist(other_format=True))
    if group > 1 and config.num_kv_heads > 1:
        yield Hypothesis("query head h uses KV head h % Hkv, not h // (H / Hkv)", Twist(interleaved=True))
    yield from _stale()
    yield Hypothesis("each key is paired with the value of the key after it", Twist(value_shift=1))
    yield Hypothesis("each key is paired with the value of the key before it", Twist(value_shift=-1))
    yield Hypothesis("subnormal elements of q, k and v are treated as 0", Twist(flushed=True))


def _stale() -> Iterator[Hypothesis]:
    """Yield online softmaxes that do not rescale, for tiles of several sizes."""
    for stale, words in (
        ("both", "partial results are"), ("output", "partial outputs are"), ("sum", "partial sums are"),
    ):  # fmt: skip
        for tile in _TILES:
            text = f"{words} not rescaled when a later tile has a larger score"
            for slack in (0.0, _SLACK):
                twist = Twist(tile=tile, stale=stale, slack=slack)
                yield Hypothesis(text, twist, detail=f"tiles of {tile} keys fit best")


def _edges_of_tiles(config: AttentionConfig) -> Iterator[Hypothesis]:
    """Yield mistakes that affect only rows whose band ends in a certain column of a tile."""
    if not config.causal and config.window is None:
        return
    for shift, text in (
        ((0, 1), "see one key beyond the right end of their band"),
        ((0, -1), "do not see the last key of their band"),
        ((1, 0), "see one key before the left end of their window"),
        ((-1, 0), "do not see the first key of their window"),
    ):
        words = f"some rows {text}: a tile at the edge of the band is masked wrongly or not at all"
        yield Hypothesis(words, Twist(shift=shift), everywhere=False)


def _scaling(config: AttentionConfig) -> Iterator[Hypothesis]:
    scale = config.softmax_scale
    if config.softcap is not None:
        yield Hypothesis("softcap is ignored", Twist(softcap=False))
        yield Hypothesis("softcap is applied after ALiBi and the mask", Twist(late_softcap=True))
    if config.alibi:
        yield Hypothesis("ALiBi slopes are ignored", Twist(alibi=0.0))
        yield Hypothesis("ALiBi is added, not subtracted", Twist(alibi=-1.0))
        yield Hypothesis("ALiBi's distances are aligned top-left, not bottom-right", Twist(alibi_top_left=True))
        yield Hypothesis("every head uses the first head's ALiBi slope", Twist(sloped_by="first head"))
        yield Hypothesis("every batch uses the first batch's ALiBi slopes", Twist(sloped_by="first batch"))
        yield Hypothesis("a head uses its KV head's index to look up the ALiBi slope", Twist(sloped_by="KV head"))
        yield Hypothesis("ALiBi slopes are multiplied by the scale, too", Twist(alibi=scale))
    if config.sinks:
        yield Hypothesis("sinks are ignored", Twist(sinks=False))
        yield Hypothesis("every head uses the first head's sink", Twist(sinks_of="first head"))
        yield Hypothesis("a head uses its KV head's index to look up the sink", Twist(sinks_of="KV head"))
    if config.q_scale:
        yield Hypothesis("q_scale is ignored", Twist(q_scale=False))
    if config.k_scale:
        yield Hypothesis("k_scale is ignored", Twist(k_scale=False))
    if config.v_scale:
        yield Hypothesis("v_scale is ignored", Twist(v_scale=False))
    if scale:
        yield Hypothesis(UNSCALED, Twist(scale=1 / scale))
        yield Hypothesis("scores are scaled twice", Twist(scale=scale))
        if config.scale is not None and config.head_dim:
            text = "`scale` is ignored: 1 / sqrt(D) is used"
            yield Hypothesis(text, Twist(scale=config.head_dim**-0.5 / scale))


def _strides(config: AttentionConfig, right: int) -> Iterator[Hypothesis]:
    """Yield wrong strides between rows of V; values read past its end or between its parts are unknown."""
    usual = {config.head_dim, config.head_dim_v, config.head_dim_v * config.num_heads, *range(8, 257, 8), 512, 1024}
    for stride in sorted(usual - {0, right}):
        text, detail = f"rows of V are read {stride} elements apart in memory", f"they are {right} apart"
        yield Hypothesis(text, Twist(value_stride=stride), detail=detail, enough=0.3)


def _explaining(case: _Case, only: Collection[str] | None) -> list[KnownMistake]:
    """Return the mistakes that explain the wrong rows, sorted by the number explained, then by clear closeness."""
    ranked: list[tuple[float, float, KnownMistake]] = []
    unsure: list[KnownMistake] = []
    v = heads_view(case.inputs.v, case.config.layout, case.config.num_kv_heads, "v")
    for hypothesis in itertools.chain(
        _hypotheses(case.config), _strides(case.config, v.strides[2] // v.itemsize), _edges_of_tiles(case.config)
    ):
        if (ranked and not hypothesis.everywhere) or (only is not None and hypothesis.words not in only):
            continue
        other, other_lse = attend(case.config, case.inputs, hypothesis.twist)
        if not case.shows(other, other_lse):
            continue
        fits = case.fits(other, other_lse)
        share = case.explained(fits)
        kept = float(fits[case.right].mean()) if case.right.any() and hypothesis.everywhere else 1.0
        fit = KnownMistake(mistake=hypothesis.words, detail=hypothesis.detail)
        if min(share, kept) >= hypothesis.enough:
            _insert(ranked, share, _mean_error(case.got[fits], other[fits]), fit)
        elif only is not None and hypothesis.twist.value_stride and case.right_lse.all():
            unsure.append(msgspec.structs.replace(fit, unsure=True))
    return [fit for *_, fit in ranked] + unsure


def _insert(ranked: list[tuple[float, float, KnownMistake]], share: float, error: float, fit: KnownMistake) -> None:
    """Insert a mistake before those that explain fewer rows, or equally many clearly less closely."""
    at = 0
    while at < len(ranked):
        other_share, other_error, _ = ranked[at]
        if share > other_share + 1e-9 or (share >= other_share - 1e-9 and error < other_error / 2):
            break
        at += 1
    ranked.insert(at, (share, error, fit))


def _lse_mistakes(case: _Case) -> Iterator[str]:
    """Yield the mistakes in an LSE if the output is right."""
    assert case.lse is not None
    unit = max(_UNITS[case.config.dtype], _LSE_UNIT)
    for words, twist in (
        ("the LSE is in base 2, not natural", Twist(lse="log2")),
        ("the LSE has the wrong sign", Twist(lse="negated")),
        ("the LSE omits the row's largest score", Twist(lse="of the scores' sum alone")),
        ("the LSE omits the last key", Twist(dropped=1)),
        ("the LSE omits the sink", Twist(sinks=False)),
    ):
        _, other = attend(case.config, case.inputs, twist)
        if case.equal(case.exact_lse, other, unit).all():
            continue  # the mistake is invisible in this case
        if case.equal(case.lse, other, 2 * unit).all():
            yield words
    blank = np.isneginf(case.exact_lse)
    if blank.any() and (case.lse[blank] != case.exact_lse[blank]).any() and case.lse_is(case.exact_lse)[~blank].all():
        yield "the LSE of a row that sees nothing is not -inf"


def _sentinel(case: _Case) -> Iterator[KnownMistake]:
    """Yield the finite score of rows without keys if their LSE reveals it: far below any real one."""
    blank = np.isneginf(case.exact_lse)
    if case.lse is None or not blank.any() or not np.isfinite(case.lse[blank]).all():
        return
    score = float(np.median(case.lse[blank]))
    if score < _FAR:
        yield KnownMistake(mistake=_FINITE, detail=f"about {score:.2g}, by their LSE")


def _precisions(case: _Case) -> list[KnownMistake]:
    """Return which intermediate in which narrow dtype explains errors of this size with a right LSE, nearest first."""
    error, dtype = _mean_error(case.got, case.exact), case.config.dtype
    if not 0 < error < math.inf:
        return []
    if case.lse is not None and not case.equal(case.lse, case.exact_lse, _LSE_UNIT).all():
        return []  # their rounding cannot affect the LSE
    if abs(np.mean(case.got - case.exact, where=np.isfinite(case.got) & np.isfinite(case.exact))) > error / 2:
        return []  # rounding to nearest is not one-sided
    narrow = _NARROWER[dtype]
    sizes = [
        ("probabilities", name, _mean_error(_rounded_probabilities(case.config, case.inputs, name), case.exact), 3.0)
        for name in narrow
        if name != dtype
    ]
    weights, values = probabilities(case.config, case.inputs), _values_by_head(case.config, case.inputs)
    # A right program rounds its output, and may keep probabilities in its dtype.
    usual = max(_mean_error(rounded, case.exact) for rounded in (
        _rounded_probabilities(case.config, case.inputs, dtype), case.exact.astype(numpy_dtype(dtype)),
    ))  # fmt: skip
    for name in narrow if error > _UNUSUAL * usual else ():
        for tile in (tile for tile in _TILES_OF_SUMS if name != dtype or tile < case.config.seq_k):
            summed = _rounded_sums(weights, values, name, tile)
            sizes.append(("the sums of an output", name, _mean_error(summed, case.exact), 1.5))
    apart: dict[str, float] = {}
    for what, name, expected, factor in sizes:
        if 0 < expected < math.inf and 1 / factor < error / expected < factor:
            words = f"errors are as large as with {what} kept in {name}"
            apart[words] = min(apart.get(words, math.inf), abs(math.log(error / expected)))
    return [KnownMistake(mistake=words) for words in sorted(apart, key=lambda words: apart[words])]


def _rounded_sums(weights: Array, values: Array, dtype: str, tile: int) -> Array:
    """Return the output of a program that accumulates tiles of keys in a dtype."""
    total = np.zeros((*weights.shape[:3], values.shape[-1]))
    for first in range(0, weights.shape[-1], tile):
        part = slice(first, first + tile)
        total = (total + weights[..., part] @ values[:, :, part]).astype(numpy_dtype(dtype)).astype(np.float64)
    return total


def _values_by_head(config: AttentionConfig, inputs: Inputs) -> Array:
    v = heads_view(inputs.v, config.layout, config.num_kv_heads, "v").astype(np.float64)
    return np.repeat(np.where(np.isfinite(v), v, 0), config.num_heads // config.num_kv_heads, axis=1)


def _rounded_probabilities(config: AttentionConfig, inputs: Inputs, dtype: str) -> Array:
    """Return the output of a program that stores the probabilities in a dtype."""
    weights = probabilities(config, inputs)
    stored = weights.astype(numpy_dtype(dtype)).astype(np.float64)
    out: Array = stored @ _values_by_head(config, inputs)
    return out


def probabilities(config: AttentionConfig, inputs: Inputs) -> Array:
    """Return the probabilities [B, H, Sq, Sk] in float64: the output with the identity as values."""
    from dataclasses import replace

    wide = config.replace(head_dim_v=config.seq_k, layout="BHSD", num_kv_heads=config.num_kv_heads)
    q = heads_view(inputs.q, config.layout, config.num_heads, "q")
    k = heads_view(inputs.k, config.layout, config.num_kv_heads, "k")
    identity = np.broadcast_to(np.eye(config.seq_k), (config.batch, config.num_kv_heads, config.seq_k, config.seq_k))
    out, _ = attend(wide, replace(inputs, q=q, k=k, v=identity), RIGHT)
    return out


def _tolerance(config: AttentionConfig, inputs: Inputs, exact: Array) -> float:
    """Return the error below which outputs count as equal: a few units at the magnitude of the values."""
    size = float(np.max(np.abs(exact), initial=0, where=np.isfinite(exact)))
    largest = inputs.v.astype(np.float64)
    typical = float(np.sqrt(np.mean(np.square(largest, where=np.isfinite(largest), out=np.zeros(largest.shape)))))
    return _UNITS[config.dtype] * max(4 * size, typical)


def _finite(inputs: Inputs) -> bool:
    return all(bool(np.isfinite(array).all()) for array in (inputs.k, inputs.v))


def _close(got: Array, other: Array, tolerance: float | Array) -> Array:
    """Return which rows [B, H, Sq] are equal in every feature."""
    same = (got == other) | (np.abs(got - other) <= tolerance) | (np.isnan(got) & np.isnan(other))
    return np.asarray(same.all(axis=-1))


def _mean_error(got: Array, exact: Array) -> float:
    """Return the root mean square error of finite elements; inf if only one of the two is finite, or none is."""
    finite = np.isfinite(exact)
    if not finite.any() or (finite != np.isfinite(got)).any():
        return math.inf
    return float(np.sqrt(np.mean(np.square(got - exact, where=finite, out=np.zeros(got.shape)), where=finite)))
