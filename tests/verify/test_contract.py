"""The contract written out for `verify` is the library's; each twist of it is a different output that gets its name."""

import numpy as np
import pytest

from rocattn.config import AttentionConfig
from rocattn.layouts import heads_view
from rocattn_profiling.verify import symptoms as verify_symptoms
from rocattn_profiling.verify.contract import Twist, attend, visible_pairs
from rocattn_profiling.verify.inputs import make_case_inputs
from rocattn_profiling.verify.symptoms import LEAK

from .changed import likeliest

BASE = AttentionConfig(
    batch=2, num_heads=4, num_kv_heads=2, seq_q=23, seq_k=37, head_dim=16, head_dim_v=12, dtype="float64",
    return_lse=True,
)  # fmt: skip
MASKS = {"mask": "additive", "mask_shape": (2, 1, 23, 37)}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "more-rows": {"causal": True, "seq_q": 41},
    "window": {"window": (7, 3)},
    "causal-window": {"causal": True, "window": (5, -1)},
    "bool": {"mask": "bool", "mask_shape": (1, 4, 23, 37)},
    "additive": MASKS,
    "all": {"causal": True, "softcap": 3.0, "alibi": True, "sinks": True, "scale": 0.4, **MASKS},
}


def compute(config, inputs):
    """(out [B, H, Sq, Dv], lse) of the cpu backend."""
    import rocattn

    out, lse = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="cpu", **inputs.options(config))
    return heads_view(out, config.layout, config.num_heads, "out"), lse


@pytest.mark.parametrize("layout", ["BSHD", "BHSD", "BSE"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_contract_is_what_the_reference_computes(name, layout):
    """Two programs that share no code agree to float64's last digits, LSE included."""
    config = BASE.replace(layout=layout, **OPTIONS[name])
    inputs = make_case_inputs(config, "normal")
    out, lse = compute(config, inputs)
    mine, logs = attend(config, inputs)
    np.testing.assert_allclose(mine, out, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(logs, lse, rtol=1e-6)


TWISTS = {
    "causal and window are aligned top-left": (Twist(top_left=True), "causal"),
    "the last key of each row's band is not seen": (Twist(shift=(0, -1)), "causal"),
    "one key beyond the right end": (Twist(shift=(0, 1)), "window"),
    "the first key of each row's window is not seen": (Twist(shift=(-1, 0)), "window"),
    "one key before the left end": (Twist(shift=(1, 0)), "window"),
    "causal and window are ignored": (Twist(band=False), "causal-window"),
    "the mask is ignored": (Twist(mask="ignored"), "bool"),
    "the boolean mask is inverted": (Twist(mask="inverted"), "bool"),
    "finite values of an additive mask are not added": (Twist(mask="only -inf"), "additive"),
    "an additive mask is multiplied by the scale, too": (Twist(mask="scaled"), "additive"),
    "softcap is ignored": (Twist(softcap=False), "all"),
    "softcap is applied after ALiBi and the mask": (Twist(late_softcap=True), "all"),
    "ALiBi slopes are ignored": (Twist(alibi=0.0), "all"),
    "ALiBi is added, not subtracted": (Twist(alibi=-1.0), "all"),
    "ALiBi slopes are multiplied by the scale, too": (Twist(alibi=0.4), "all"),
    "the last 5 keys are not seen": (Twist(dropped=5), "plain"),
    "sinks are ignored": (Twist(sinks=False), "all"),
    "scores are not scaled": (Twist(scale=4.0), "plain"),
    "scores are scaled twice": (Twist(scale=0.25), "plain"),
    "`scale` is ignored": (Twist(scale=0.25 / 0.4), "all"),
    "query head h uses KV head h % Hkv": (Twist(interleaved=True), "plain"),
    "partial outputs are not rescaled": (Twist(tile=16, stale="output"), "plain"),
    "partial sums are not rescaled": (Twist(tile=16, stale="sum"), "plain"),
    "the value of the key after it": (Twist(value_shift=1), "plain"),
    "rows of V are read 32 elements apart": (Twist(value_stride=32), "plain"),
    "the last key of a row is not seen": (Twist(dropped=1), "plain"),
    "the LSE has the wrong sign": (Twist(lse="negated"), "plain"),
    "the LSE omits the row's largest score": (Twist(lse="of the scores' sum alone"), "plain"),
}


@pytest.mark.parametrize("words", TWISTS)
def test_each_twist_is_named_for_what_it_is(words):
    """An output that a mistake gives, in bfloat16 at that, has the mistake's name and no other's."""
    twist, options = TWISTS[words]
    config = BASE.replace(dtype="bfloat16", **OPTIONS[options])
    inputs = make_case_inputs(config, "normal")
    right, _ = attend(config, inputs)
    view, lse = attend(config, inputs, twist)
    out = np.ascontiguousarray(view.swapaxes(1, 2)).astype(inputs.q.dtype)
    what = "lse" if twist.lse != "natural" else "out"
    assert (what == "lse") == np.allclose(view, right)
    assert words in likeliest(config, inputs, out, lse.astype(np.float32), what=what)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_rounded_mask_is_not_called_coarse_probabilities(narrow):
    """What is rounded is the mask: probabilities kept in as many bits give errors of the same size."""
    config = BASE.replace(dtype="float32", **MASKS)
    inputs = make_case_inputs(config, "normal")
    view, lse = attend(config, inputs, Twist(mask=narrow))
    out = np.ascontiguousarray(view.swapaxes(1, 2)).astype(np.float32)
    assert likeliest(config, inputs, out, lse) == f"the values of an additive mask are rounded to {narrow}"


@pytest.mark.parametrize("scale", [None, 0.01])
@pytest.mark.parametrize("mask", ["only -inf", "scaled"])
def test_of_two_mistakes_in_tolerance_the_nearer_is_named(mask, scale):
    """In bfloat16 a mask times a small scale is nearly one that is not added: both explain all rows."""
    config = BASE.replace(dtype="bfloat16", scale=scale, **MASKS)
    inputs = make_case_inputs(config, "uniform")
    view, lse = attend(config, inputs, Twist(mask=mask))
    out = np.ascontiguousarray(view.swapaxes(1, 2)).astype(np.float32)
    words = {"only -inf": "finite values of an additive mask are not added", "scaled": "multiplied by the scale"}
    assert words[mask] in likeliest(config, inputs, out, lse)


def test_a_right_output_has_no_symptom():
    """Rounding is no mistake."""
    config = BASE.replace(dtype="bfloat16", **OPTIONS["all"])
    inputs = make_case_inputs(config, "normal")
    out, lse = compute(config, inputs)
    assert likeliest(config, inputs, np.ascontiguousarray(out.swapaxes(1, 2)), lse) == ""


def test_a_mistake_that_does_not_show_is_not_named():
    """In bfloat16 an LSE without the last key is within rounding of the right one: no other is called so."""
    config = BASE.replace(dtype="bfloat16")
    inputs = make_case_inputs(config, "normal")
    out, lse = compute(config, inputs)
    out = np.ascontiguousarray(out.swapaxes(1, 2))
    spoilt = (lse + 0.012 * (1 + np.abs(lse))).astype(np.float32)
    assert likeliest(config, inputs, out, spoilt, what="lse") == ""


def test_a_leak_is_named():
    """NaN in a row that does not see the poisoned keys is a leak, whatever else it looks like."""
    config = BASE.replace(causal=True, dtype="float32")
    inputs = make_case_inputs(config, "hidden-nan")
    out, lse = compute(config, inputs)
    spoilt = np.ascontiguousarray(out.swapaxes(1, 2))
    spoilt[:, 0] = np.nan
    assert likeliest(config, inputs, spoilt, lse) == LEAK


def test_visible_pairs_of_a_small_problem():
    """Written down by hand: 3 rows, 4 keys, causal, a window of one key to the left."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=3, seq_k=4, head_dim=1, causal=True, window=(1, -1))
    assert visible_pairs(config, None)[0, 0].astype(int).tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_flushed_subnormals_are_named():
    """An output without what is below float16's smallest normal number, as some matrix units give it."""
    config = BASE.replace(dtype="float16")
    inputs = make_case_inputs(config, "x0.0001")
    view, lse = attend(config, inputs, Twist(flushed=True))
    out = np.ascontiguousarray(view.swapaxes(1, 2)).astype(np.float16)
    assert likeliest(config, inputs, out, lse) == "subnormal elements of q, k and v are treated as 0"


def test_a_mistake_that_would_spoil_right_rows_is_not_named():
    """One row is as if causal were ignored; were it, the other rows would be, too."""
    config = BASE.replace(dtype="float32", causal=True)
    inputs = make_case_inputs(config, "normal")
    right, lse = attend(config, inputs)
    wrong, _ = attend(config, inputs, Twist(band=False))
    out = right.copy()
    out[:, :, 3] = wrong[:, :, 3]
    stored = np.ascontiguousarray(out.swapaxes(1, 2)).astype(np.float32)
    assert likeliest(config, inputs, stored, lse) == ""


def test_a_mistake_within_rounding_is_not_named():
    """A softcap far above the scores changes less than bfloat16 shows; what is as near to that is something else."""
    config = BASE.replace(dtype="bfloat16", softcap=40.0)
    inputs = make_case_inputs(config, "normal")
    right, lse = attend(config, inputs)
    other, _ = attend(config, inputs, Twist(softcap=False))
    tolerance = verify_symptoms._tolerance(config, inputs, right)
    assert 0 < np.abs(other - right).max() < tolerance
    out = other + 0.999 * tolerance * np.sign(other - right)
    assert (np.abs(out - right).max(axis=-1) > tolerance).mean() > 0.5
    stored = np.ascontiguousarray(out.swapaxes(1, 2)).astype(np.float32)
    assert "softcap" not in likeliest(config, inputs, stored, lse)


def test_of_a_large_case_nothing_is_tried(monkeypatch):
    """Forty more programs of its size would take too long: the mistake stays a number."""
    config = BASE.replace(dtype="float32", causal=True)
    inputs = make_case_inputs(config, "normal")
    view, lse = attend(config, inputs, Twist(band=False))
    out = np.ascontiguousarray(view.swapaxes(1, 2)).astype(np.float32)
    assert "ignored" in likeliest(config, inputs, out, lse)
    work = 2 * 4 * 23 * 37 * (16 + 12)
    monkeypatch.setattr(verify_symptoms, "LARGEST", work)
    assert "ignored" in likeliest(config, inputs, out, lse)
    monkeypatch.setattr(verify_symptoms, "LARGEST", work - 1)
    assert likeliest(config, inputs, out, lse) == ""
