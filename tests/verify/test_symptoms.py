"""When a mistake has a name and when it has none: shares of rows, sizes of errors, LSEs, NaN, and memory."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rocattn.config import AttentionConfig
from rocattn.layouts import heads_view
from rocattn_profiling.measure.records import Check
from rocattn_profiling.verify import symptoms as verify_symptoms
from rocattn_profiling.verify.contract import Twist, attend
from rocattn_profiling.verify.inputs import make_case_inputs
from rocattn_profiling.verify.outcomes import CaseOutcome, Errors, TensorErrors, mistakes_of, symptoms, with_symptoms
from rocattn_profiling.verify.symptoms import LEAK, NARROW, KnownMistake, fitting
from rocattn_profiling.workloads.inputs import numpy_dtype

from .changed import likeliest

CONFIG = AttentionConfig(
    batch=2, num_heads=4, num_kv_heads=2, seq_q=23, seq_k=37, head_dim=16, head_dim_v=12, dtype="float32",
    return_lse=True,
)  # fmt: skip
SMALL = {"kv_dtype": "float8_e4m3fn", "k_scale": True, "v_scale": True}
BLANK = "the LSE of a row that sees nothing is not -inf"


def store(config, view, dtype=np.float32):
    """An output [B, H, Sq, Dv] as a backend gives it."""
    seen = view if config.layout == "BHSD" else view.swapaxes(1, 2)
    return np.ascontiguousarray(seen).astype(dtype)


def named(config, view, lse, *, inputs=None, what="out"):
    """What is said of an output and an LSE."""
    inputs = inputs or make_case_inputs(config, "normal")
    return likeliest(config, inputs, store(config, view), np.asarray(lse, np.float32), what=what)


@pytest.mark.parametrize(
    ("changes", "twist", "words"),
    [
        ({}, Twist(tile=16, stale="both"), "partial results are not rescaled when a later tile has a larger score"),
        ({"scale": 20.0}, Twist(tile=16, stale="output", slack=8 * math.log(2)),
         "partial outputs are not rescaled when a later tile has a larger score (tiles of 16 keys fit best)"),
        ({}, Twist(value_shift=-1), "each key is paired with the value of the key before it"),
        ({}, Twist(dropped=2), "the last 2 keys are not seen"),
        ({"causal": True}, Twist(hidden=-1e30), ""),
        ({"causal": True, "seq_q": 41}, Twist(hidden=-1e30), "hidden scores are a finite number, not -inf"),
        ({"window": (4, 0)}, Twist(band=False), "causal and window are ignored"),
        ({"layout": "BHSD"}, Twist(value_stride=24), "rows of V are read 24 elements apart in memory (they are 12"),
        ({"head_dim_v": 9}, Twist(value_stride=36), "rows of V are read 36 elements apart in memory (they are 18"),
        ({"head_dim_v": 9}, Twist(value_stride=512), "rows of V are read 512 elements apart in memory (they are 18"),
        ({"dtype": "float64", "mask": "additive", "mask_shape": (2, 1, 23, 37)}, Twist(mask="bfloat16"),
         "the values of an additive mask are rounded to bfloat16"),
        (SMALL, Twist(k_scale=False), "k_scale is ignored"),
        (SMALL, Twist(v_scale=False), "v_scale is ignored"),
        (SMALL | {"q_dtype": "float8_e4m3fn", "q_scale": True}, Twist(q_scale=False), "q_scale is ignored"),
        (SMALL, Twist(other_format=True), "8-bit tensors are read in the other of the two formats"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_has_its_name(changes, twist, words):
    """And what does not show in a case has none."""
    config = CONFIG.replace(**changes)
    inputs = make_case_inputs(config, "normal")
    view, _ = attend(config, inputs, twist)
    found = likeliest(config, inputs, store(config, view, numpy_dtype(config.dtype)), None)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(("spoilt", "words"), [(0, True), (1, True), (7, False)])
def test_a_name_explains_nine_of_ten_wrong_rows(spoilt, words):
    """Of 23 wrong rows of each head some are wrong in a way of their own."""
    view, lse = attend(CONFIG, make_case_inputs(CONFIG, "normal"), Twist(scale=4.0))
    view[:, :, :spoilt] += 3
    assert named(CONFIG, view, lse) == ("scores are not scaled" if words else "")


def test_one_bad_row_is_not_what_changes_others():
    """The window's end shows in the last row only: that all others fit explains nothing of a row of garbage."""
    config = CONFIG.replace(seq_q=37, causal=True, window=(35, -1))
    view, lse = attend(config, make_case_inputs(config, "normal"))
    view[:, :, 3] += 3
    assert named(config, view, lse) == ""


@pytest.mark.parametrize(
    ("shift", "words"),
    [((0, 1), "some rows see one key beyond the right end of their band"),
     ((0, -1), "some rows do not see the last key of their band"),
     ((1, 0), "some rows see one key before the left end of their window"),
     ((-1, 0), "some rows do not see the first key of their window")],
)  # fmt: skip
def test_a_tile_that_is_masked_wrongly_is_named_by_its_rows(shift, words):
    """Some rows are wrong by one key, the others right; rows that are wrong in another way too have no name."""
    config = CONFIG.replace(window=(9, 4))
    inputs = make_case_inputs(config, "normal")
    view, lse = attend(config, inputs)
    shifted, _ = attend(config, inputs, Twist(shift=shift))
    view[:, 1, 8:10] = shifted[:, 1, 8:10]
    assert named(config, view, lse).startswith(words)
    view[:, 1, 9] += 3
    assert named(config, view, lse) == ""


def test_an_output_of_nothing_is_not_missing_keys():
    """Zeros are what a row without keys has, but nobody drops as many keys as there are."""
    assert named(CONFIG, np.zeros((2, 4, 23, 12)), np.zeros((2, 4, 23))) == ""
    empty = CONFIG.replace(seq_k=0)
    assert named(empty, np.ones((2, 4, 23, 12)), np.zeros((2, 4, 23))) == ""


@pytest.mark.parametrize(("dtype", "rounding", "effect"), [
    ("float16", 2.0**-11, 2.0**-7), ("bfloat16", 2.0**-8, 2.0**-2), ("float32", 2.0**-22, 2.0**-14),
    ("float64", 2.0**-50, 2.0**-37),
])  # fmt: skip
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_a_mistake_is_told_from_rounding_in_each_dtype(dtype, rounding, effect, size):
    """Whatever the size of the values: rounding has no name, and a mistake has one that changes little more."""
    config = CONFIG.replace(dtype=dtype)
    inputs = make_case_inputs(config, "normal")
    values = size * (1 + effect * inputs.v.astype(np.float64))
    inputs = replace(inputs, v=values.astype(inputs.v.dtype))
    (exact, _), (wrong, _) = attend(config, inputs), attend(config, inputs, Twist(value_shift=1))
    for view, words in ((exact, ""), (wrong, "each key is paired with the value of the key after it")):
        assert likeliest(config, inputs, store(config, view * (1 + rounding), np.float64), None) == words


@pytest.mark.parametrize(
    ("nearness", "row", "words"),
    [
        (1.0, "", "multiplied by the scale"),
        (0.8, "", "multiplied by the scale"),
        (0.55, "", "not added"),  # hardly nearer: the commoner one
        (0.0, "", "not added"),
        (1.0, "garbage", "multiplied by the scale"),  # of the rows that both explain
        (1.0, "not added", "not added"),  # the nearer one explains a row less
    ],
)
def test_the_mistake_that_explains_more_rows_is_named(nearness, row, words):
    """A mask times a small scale is in bfloat16 nearly one that is not added, but for a row of large values."""
    config = CONFIG.replace(dtype="bfloat16", scale=0.01, mask="additive", mask_shape=(2, 1, 23, 37))
    inputs = make_case_inputs(config, "uniform")
    mask = np.array(inputs.mask)
    if row == "not added":
        mask[:, :, 3, ::2] = 300
    inputs = replace(inputs, mask=mask)
    ignored, scaled = (attend(config, inputs, Twist(mask=mask))[0] for mask in ("only -inf", "scaled"))
    view = ignored + nearness * (scaled - ignored)
    view[:, :, 3] = {"": view[:, :, 3], "garbage": 9.0, "not added": ignored[:, :, 3]}[row]
    assert words in likeliest(config, inputs, store(config, view), None)


@pytest.mark.parametrize(("spoilt", "words"), [(12, "rows of V are read 24 elements apart in memory"), (19, "")])
def test_a_stride_past_the_end_explains_a_third_of_the_rows(spoilt, words):
    """Behind the memory of V nobody knows what is read."""
    config = CONFIG.replace(layout="BHSD")
    view, lse = attend(config, make_case_inputs(config, "normal"), Twist(value_stride=24))
    view[:, :, :spoilt] += 3
    found = named(config, view, lse)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("changes", "twist", "words"),
    [
        ({}, Twist(lse="log2"), "the LSE is in base 2, not natural"),
        ({}, Twist(lse="negated"), "the LSE has the wrong sign"),
        ({}, Twist(dropped=1), "the LSE omits the last key"),
        ({"sinks": True}, Twist(sinks=False), "the LSE omits the sink"),
        ({}, Twist(), ""),
    ],
    ids=str,
)
def test_an_lse_is_named_where_it_is_what_is_wrong(changes, twist, words):
    """Beside a right output; of a wrong output the LSE's own words would be beside the point."""
    config = CONFIG.replace(**changes)
    inputs = make_case_inputs(config, "normal")
    (right, _), (other, lse) = attend(config, inputs), attend(config, inputs, twist)
    assert named(config, right, lse, what="lse") == words
    assert named(config, right + 3, lse) == ""
    if twist == Twist(dropped=1):
        assert named(config, other, lse, what="lse") == "the last key of a row is not seen"


@pytest.mark.parametrize(
    ("blank", "words"),
    [
        (-1e30, "hidden scores are a finite number, not -inf: rows that see nothing return a mean of V (about -1e+30"),
        (-4000.0, BLANK),
        (0.0, BLANK),
        (-np.inf, ""),
    ],
)
def test_a_row_without_keys_gives_a_sentinel_away(blank, words):
    """41 rows on 37 keys: the first four see none. A number that scores can have is no sentinel, but no -inf either."""
    config = CONFIG.replace(seq_q=41, causal=True)
    right, lse = attend(config, make_case_inputs(config, "normal"))
    assert np.isneginf(lse[:, :, :4]).all()
    lse[:, :, :4] = blank
    found = named(config, right, lse, what="lse")
    assert found.startswith(words)
    assert bool(found) == bool(words)
    lse[:, :, 0] = -np.inf  # no sentinel that all such rows have
    assert named(config, right, lse, what="lse") == (BLANK if words else "")


@pytest.mark.parametrize("name", ["k", "v"])
def test_nan_is_a_leak_only_where_a_hidden_key_has_it(name):
    """With the last key's NaN the last row's is right, an earlier row's is a leak; of finite inputs NaN is no leak."""
    config = CONFIG.replace(seq_q=37, causal=True)
    inputs = make_case_inputs(config, "normal")
    spoilt = np.array(getattr(inputs, name))
    spoilt[:, -1] = np.nan
    poisoned = replace(inputs, **{name: spoilt})
    right, lse = attend(config, poisoned)
    assert np.isnan(right[:, :, -1]).all()
    assert np.isfinite(right[:, :, :-1]).all()
    assert named(config, right, lse, inputs=poisoned) == ""
    wrong = right.copy()
    wrong[:, :, 5] = np.nan
    assert named(config, wrong, lse, inputs=poisoned) == LEAK
    assert named(config, wrong, lse, inputs=inputs) == ""


@pytest.mark.parametrize(
    ("dtype", "kept", "factor", "words"),
    [
        ("float32", "bfloat16", 1.0, "errors are as large as with probabilities kept in bfloat16"),
        ("float32", "float16", 1.0, "errors are as large as with probabilities kept in float16"),
        ("float64", "float16", 1.0, "errors are as large as with probabilities kept in float16"),
        ("float32", "float16", 0.05, ""),
        ("float32", "bfloat16", 20.0, ""),
        ("float16", "float16", 1.0, ""),
    ],
)
def test_errors_of_a_coarser_dtype_are_named_by_their_size(dtype, kept, factor, words):
    """An error times a factor is another one; float16 may keep its probabilities in float16."""
    config = CONFIG.replace(dtype=dtype)
    inputs = make_case_inputs(config, "normal")
    exact, lse = attend(config, inputs)
    v = heads_view(inputs.v, config.layout, 2, "v").astype(np.float64)
    scores = np.einsum(
        "bhqd,bhkd->bhqk",
        heads_view(inputs.q, config.layout, 4, "q").astype(np.float64),
        np.repeat(heads_view(inputs.k, config.layout, 2, "k").astype(np.float64), 2, axis=1),
    ) / np.sqrt(16)
    weights = np.exp(scores - lse[..., None]).astype(numpy_dtype(kept)).astype(np.float64)
    made = exact + factor * (weights @ np.repeat(v, 2, axis=1) - exact)
    found = likeliest(config, inputs, store(config, made, np.float64), None)
    assert found == words
    assert likeliest(config, inputs, store(config, made, np.float64), np.float32(lse), what="lse") == ""


def failing(*mistakes, tried=True, **more):
    """A failing outcome that these mistakes fit."""
    fits = [KnownMistake(mistake=words) for words in mistakes] if tried else None
    values = {"case": "c", "backend": "b", "options": ["forward", "float32"], "problem": "wrong", "fits": fits}
    return CaseOutcome(**(values | more))


@pytest.mark.parametrize(
    ("fits", "named"),
    [
        ([["scale"], ["scale"]], ["scale"]),
        ([["scale", "mask"], ["mask"]], ["mask"]),  # the likelier one of a case, but not of the other
        ([["scale", "mask"], ["mask", "scale"], ["mask", "scale"]], ["mask"]),
        ([["scale"], ["scale"], []], []),  # one of three: by chance
        ([["scale"], ["scale"], ["mask"], ["mask"]], ["scale", "mask"]),
        ([["scale"], ["scale"], ["scale"], ["mask"]], []),  # a second mistake is not told from one case
        ([["scale"], ["scale"], ["mask"], ["mask"], []], []),
        ([["a"], ["a"], ["b"], ["b"], ["c"], ["c"]], []),
        ([[], []], []),
    ],
    ids=str,
)
def test_a_mistake_is_told_only_if_it_fits_every_failing_case(fits, named):
    """Or two that share them; of no case is a mistake said that is not said of the backend."""
    failed = [failing(*mistakes) for mistakes in fits]
    assert mistakes_of(failed) == named
    said = [outcome.symptom for outcome in with_symptoms(failed)]
    assert said == [next((m for m in mistakes if m in named), "") for mistakes in fits]
    lines = symptoms(failed)["b"]
    assert len(lines) == max(len(named), 1) + 1
    assert [line.partition(":")[0] for line in lines[: len(named)]] == named
    assert named or lines[0] == f"{len(failed)} of {len(failed)} cases fail, and no known mistake fits them all; "


@pytest.mark.parametrize(("sure", "unsure", "named"), [(3, 2, True), (2, 2, True), (1, 2, False), (0, 2, False)])
def test_a_mistake_that_cannot_be_excluded_is_no_proof(sure, unsure, named):
    """What is read beyond an array is not known: such a case has no symptom, and half of the cases must have one."""
    unknown = KnownMistake(mistake="stride", unsure=True)
    failed = [failing("stride") for _ in range(sure)] + [failing(fits=[unknown]) for _ in range(unsure)]
    assert mistakes_of(failed) == ["stride"] * named
    assert [outcome.symptom for outcome in with_symptoms(failed)] == ["stride" * named] * sure + [""] * unsure


def test_causal_alone_may_be_aligned_top_left():
    """Of a window beside it that is right: the same mistake, with a detail."""
    config = CONFIG.replace(causal=True, window=(9, -1))
    view, lse = attend(config, make_case_inputs(config, "normal"), Twist(causal_top_left=True))
    assert named(config, view, lse) == "causal and window are aligned top-left, not bottom-right (causal alone)"


def test_a_mistake_that_shows_in_the_lse_alone_is_named():
    """With one key the output is that key's value, whatever the scores are."""
    config = CONFIG.replace(seq_k=1)
    inputs = make_case_inputs(config, "normal")
    (right, lse), (view, wrong) = attend(config, inputs), attend(config, inputs, Twist(scale=4.0))
    assert np.array_equal(right, view)
    assert named(config, view, wrong, what="lse") == "scores are not scaled"
    assert named(config, view, lse) == ""


def test_what_no_mistake_was_tried_on_is_counted():
    """A case that is too large says nothing for or against a mistake, and is said; nor does one of another backend."""
    failed = [failing("scale"), failing(tried=False), failing("mask", backend="other")]
    found = symptoms(failed)
    assert found["b"][0] == "scale: fits 1 of 2 failing cases; the others do not contradict it"
    assert found["other"][0] == "mask"


def test_failures_without_a_name_are_said_to_have_in_common():
    """Tensors that are off, and options that all, none or only failing cases have; nothing is called a cause."""
    errors = Errors(max_abs=1, max_rel=1, rms=1, ulps=[])
    off = [TensorErrors(what="lse", dtype="float32", ratio=2.0, mine=errors, naive=errors)]
    passed = Check(
        ok=True, max_abs_error=0, max_rel_error=0, rms_error=0, naive_max_abs_error=0, factor=2, rows_checked=1, rows=1
    )
    ran = [
        *(failing(options=["forward", "float32", "softcap"], head_dim=64, tensors=off) for _ in range(2)),
        failing(options=["forward", "float32"], head_dim=64, error="ValueError: no"),
        *(failing(options=["forward", "float16"], head_dim=64, problem="", check=passed) for _ in range(2)),
        failing(options=["forward", "float32"], head_dim=32, problem="", check=passed),
    ]
    assert symptoms(ran)["b"][0] == (
        "3 of 6 cases fail, and no known mistake fits them all; off: lse in 2, an exception in 1; "
        "all failing cases have: float32, D=64; all cases fail with: softcap; no case fails with: float16"
    )


def test_rounded_probabilities_do_not_touch_the_lse():
    """An error of their size beside an LSE that is off by 1e-4 is another mistake: of the scale, say."""
    config = CONFIG.replace(dtype="float32")
    inputs = make_case_inputs(config, "normal")
    (right, logs), (view, lse) = attend(config, inputs), attend(config, inputs, Twist(scale=1.0003))
    assert np.abs(view - right).max() > 1e-5
    assert named(config, view, logs) != ""
    assert named(config, view, lse) == ""
    assert fitting(config, inputs, store(config, view), np.float32(lse)) == []


def test_a_mistake_needs_its_own_lse_or_the_right_one():
    """An output without the last key, and an LSE that is neither with nor without it: something else is wrong."""
    inputs = make_case_inputs(CONFIG, "normal")
    (_, right), (view, lse) = attend(CONFIG, inputs), attend(CONFIG, inputs, Twist(dropped=1))
    for logs, words in ((right, "the last key of a row is not seen"), (lse, "the last key of a row is not seen")):
        assert named(CONFIG, view, logs) == words
    assert named(CONFIG, view, lse + 0.5) == ""


def test_large_scores_leave_more_rounding_than_the_values():
    """A row that a mistake explains but for a twentieth of its error fits; at a tenth it does not."""
    inputs = make_case_inputs(CONFIG, "normal")
    right, _ = attend(CONFIG, inputs)
    view, lse = attend(CONFIG, inputs, Twist(scale=4.0))
    for rest, words in ((0.02, "scores are not scaled"), (0.2, "")):
        assert named(CONFIG, view + rest * (right - view), lse) == words


def test_rows_off_by_rounding_alone_are_no_other_mistake():
    """A float64 output computed in float32: where a tile needs no rescale, its rows are off by 1e-7 of their own."""
    config = CONFIG.replace(dtype="float64")
    view, lse = attend(config, make_case_inputs(config, "normal"), Twist(tile=16, stale="both"))
    rounded = view.astype(np.float32).astype(np.float64)
    inputs = make_case_inputs(config, "normal")
    fits = fitting(config, inputs, store(config, rounded, np.float64), np.float32(lse))
    words = "partial results are not rescaled when a later tile has a larger score"
    assert [fit.mistake for fit in fits] == [NARROW, words]
    assert fitting(config, inputs, store(config, rounded + 0.01, np.float64), np.float32(lse)) == []
    right, _ = attend(config, inputs)
    narrow = store(config, right.astype(np.float32), np.float64)
    assert likeliest(config, inputs, narrow, None) == NARROW


def test_an_lse_is_named_where_large_scores_round_the_output():
    """At scores of 1e4 a right float32 output is off by more than a few units of its values."""
    inputs = make_case_inputs(CONFIG, "normal")
    inputs = replace(inputs, q=inputs.q * np.float32(1e4))
    right, lse = attend(CONFIG, inputs)
    rounded = right + 2.0**-24 * np.abs(lse).max()
    tolerance = np.abs(rounded - right).max() / verify_symptoms._tolerance(CONFIG, inputs, right)
    assert tolerance > 1
    assert named(CONFIG, rounded, lse / np.log(2), what="lse", inputs=inputs) == "the LSE is in base 2, not natural"
    assert named(CONFIG, rounded + 1, lse / np.log(2), what="lse", inputs=inputs) == ""


def gradients(config, inputs, mistake=""):
    """dq, dk and dv as stored, by loops over heads that share nothing with the reference; with a mistake."""
    q, k, v = (np.asarray(array, np.float64).swapaxes(1, 2) for array in (inputs.q, inputs.k, inputs.v))
    dout, group = np.asarray(inputs.dout, np.float64).swapaxes(1, 2), config.num_heads // config.num_kv_heads
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b, h in np.ndindex(config.batch, config.num_heads):
        kv, scale = h // group, config.softmax_scale
        scores = q[b, h] @ k[b, kv].T * scale
        tanh = np.tanh(scores / (config.softcap or 1.0))
        weights = np.exp(scores if config.softcap is None else config.softcap * tanh)
        weights /= weights.sum(axis=-1, keepdims=True)
        above = dout[b, h] @ v[b, kv].T
        inner = above if mistake == "delta" else above - (weights * above).sum(axis=-1, keepdims=True)
        ds = weights * inner
        ds *= 1 if config.softcap is None or mistake == "slope" else 1 - tanh**2
        dq[b, h] = ds @ k[b, kv] * (1 if "dq unscaled" in mistake else scale)
        of_k = ds.T @ q[b, h] * (1 if "dk unscaled" in mistake else scale)
        of_v = weights.T @ dout[b, h]
        if mistake == "mean":
            of_k, of_v = of_k / group, of_v / group
        if mistake == "last":
            dk[b, kv], dv[b, kv] = 0, 0
        dk[b, kv] += of_v if mistake == "swapped" else of_k
        dv[b, kv] += of_k if mistake == "swapped" else of_v
    dtype = numpy_dtype(config.dtype)
    return {n: np.ascontiguousarray(g.swapaxes(1, 2)).astype(dtype) for n, g in (("dq", dq), ("dk", dk), ("dv", dv))}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("dq unscaled", ["dq is not scaled"]), ("dk unscaled", ["dk is not scaled"]),
        ("dq unscaled, dk unscaled", ["scores are not scaled"]), ("swapped", ["dk and dv are swapped"]),
        ("delta", [verify_symptoms.NO_DELTA]), ("slope", ["the slope of the softcap is missing"]),
        ("mean", ["dk and dv are the mean over the query heads of a group, not the sum"]),
        ("last", ["dk and dv are those of the last query head of a group, not the sum"]), ("", []),
    ],
)  # fmt: skip
def test_a_mistake_in_gradients_has_its_name(mistake, words, dtype):
    """Each alone, in every dtype; right ones have none."""
    changes = {"softcap": 2.0} if mistake == "slope" else {}
    config = CONFIG.replace(direction="backward", return_lse=False, head_dim_v=16, dtype=dtype, **changes)
    inputs = make_case_inputs(config, "normal")
    found = verify_symptoms.gradient_mistakes(config, inputs, gradients(config, inputs, mistake))
    assert [fit.mistake for fit in found if not fit.unsure] == words


def test_what_a_case_cannot_show_is_not_sure():
    """With the scale 1 nothing tells whether dq is scaled, nor with one head what is summed; a large case is left."""
    config = CONFIG.replace(direction="backward", return_lse=False, scale=1.0, num_kv_heads=4)
    inputs = make_case_inputs(config, "normal")
    found = verify_symptoms.gradient_mistakes(config, inputs, gradients(config, inputs))
    assert {fit.unsure for fit in found} == {True}
    assert [fit.mistake for fit in found] == [
        "scores are not scaled", "dq is not scaled", "dk is not scaled", "dq is scaled twice", "dk is scaled twice",
    ]  # fmt: skip
    large = config.replace(seq_q=4096, seq_k=4096)
    assert verify_symptoms.gradient_mistakes(large, inputs, {}) is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (slice(0, 4), "rows that see nothing are NaN, not 0"),
        (slice(-3, None), "the last rows are never written, or NaN (3 of 41)"),
        (slice(9, 11), ""),
    ],
)
def test_nan_is_named_by_the_rows_that_have_it(rows, words):
    """41 rows on 37 keys: the first four see none."""
    config = CONFIG.replace(seq_q=41, causal=True)
    right, lse = attend(config, make_case_inputs(config, "normal"))
    right[:, :, rows] = np.nan
    assert named(config, right, lse) == words
