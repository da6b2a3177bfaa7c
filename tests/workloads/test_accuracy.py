"""The evaluation passes right results and catches subtly wrong ones; its data is the same in every process."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn_profiling.measure.records import Check
from rocattn_profiling.workloads.accuracy import EDGE, check_gradients, check_output, sample_rows
from rocattn_profiling.workloads.inputs import make_inputs

LONG = AttentionConfig(
    batch=1, num_heads=4, num_kv_heads=2, seq_q=130, seq_k=1000, head_dim=40, causal=True, return_lse=True
)
DTYPES = ("float16", "bfloat16", "float32")


def solve(config, inputs, backend="cpu", **changes):
    """(out, lse) with some options changed."""
    options = inputs.options(config) | {"return_lse": True} | changes
    return rocattn.attention(inputs.q, inputs.k, inputs.v, backend=backend, **options)


def differentiate(config, inputs, backend="cpu"):
    """(dq, dk, dv)."""
    out, lse = solve(config, inputs, backend)
    options = inputs.options(config)
    return rocattn.attention_backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, backend=backend, **options)


@pytest.mark.parametrize("backend", ["cpu", "cpu-flash"])
@pytest.mark.parametrize("data", ["normal", "trig"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_results_pass(dtype, data, backend):
    """Both backends are well within the rule in every dtype, on both kinds of data, forward and backward."""
    config = LONG.replace(dtype=dtype)
    inputs = make_inputs(config, data=data)
    check = check_output(config, inputs, *solve(config, inputs, backend))
    assert check.ok
    assert check.ratio < 0.7
    assert check.rows_checked == check.rows == 4 * 130
    backward = config.replace(direction="backward", return_lse=False, seq_k=300)
    inputs = make_inputs(backward, data=data)
    check = check_gradients(backward, inputs, *differentiate(backward, inputs, backend))
    assert check.ok
    assert check.factor == 3


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(0, 24), (40, 0), (0, 0)])
def test_head_dimensions_of_0_are_judged_like_others(head_dim, head_dim_v):
    """All scores are 0 without features; without values the LSE and empty gradients are left, and a wrong LSE shows."""
    config = AttentionConfig(
        batch=1,
        num_heads=4,
        num_kv_heads=2,
        seq_q=37,
        seq_k=70,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        return_lse=True,
    )
    inputs = make_inputs(config)
    out, lse = solve(config, inputs)
    assert check_output(config, inputs, out, lse).ok
    assert not check_output(config, inputs, out, lse + 1).ok
    backward = config.replace(direction="backward", return_lse=False)
    inputs = make_inputs(backward)
    assert check_gradients(backward, inputs, *differentiate(backward, inputs)).ok


def test_float64_results_pass_against_float64():
    """A float64 result is compared with float64 too; the floor, not the naive program, sets the limit."""
    config = LONG.replace(dtype="float64")
    inputs = make_inputs(config)
    assert check_output(config, inputs, *solve(config, inputs)).ok
    out, lse = solve(config, inputs)
    assert not check_output(config, inputs, out * (1 + 1e-12), lse).ok


def dropped_last_key(config, inputs):
    """The last key never takes part."""
    mask = np.ones((config.seq_q, config.seq_k), bool)
    mask[:, -1] = False
    return solve(config.replace(causal=False), inputs, causal=False, mask=mask)[0]


def top_left_causal(config, inputs):
    """Row i sees keys up to i instead of i + Sk - Sq."""
    mask = np.tri(config.seq_q, config.seq_k, dtype=bool)
    return solve(config, inputs, causal=False, mask=mask)[0]


def missing_rescale(config, inputs):
    """Two key tiles whose partial sums are added without bringing them to one maximum."""
    half = config.seq_k // 2
    mask = np.ones((config.seq_q, config.seq_k), bool)
    mask[:, half:] = False
    (a, la), (b, lb) = (solve(config, inputs, causal=False, mask=m) for m in (mask, ~mask))
    tops = [lse - np.log(half) for lse in (la, lb)]  # about the maxima; the sums relative to them:
    wa, wb = (np.exp(lse - top) for lse, top in zip((la, lb), tops, strict=True))
    weight = (wa / (wa + wb)).swapaxes(1, 2)[..., None]
    return (a * weight + b * (1 - weight)).astype(a.dtype)


def shifted_values(config, inputs):
    """Each key's value is its neighbour's."""
    options = inputs.options(config) | {"causal": False, "return_lse": False}
    return rocattn.attention(inputs.q, inputs.k, np.roll(inputs.v, 1, axis=1), **options)


def wrong_tail(config, inputs):
    """The last row, whose values are small, is off by a tenth of itself."""
    out = solve(config, inputs)[0].copy()
    out[:, -1] *= out.dtype.type(1.125)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [dropped_last_key, missing_rescale, shifted_values])
def test_faults_without_causal_are_caught(fault, dtype):
    """One dropped key of 1000, a forgotten rescale and shifted values are errors in every dtype."""
    config = LONG.replace(dtype=dtype, causal=False)
    inputs = make_inputs(config)
    assert check_output(config, inputs, solve(config, inputs)[0]).ok
    check = check_output(config, inputs, fault(config, inputs))
    assert not check.ok
    assert check.what == "out"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [top_left_causal, wrong_tail])
def test_causal_faults_are_caught(fault, dtype):
    """Top-left alignment, and an error in rows whose values are small beside the first rows', are errors."""
    config = LONG.replace(dtype=dtype, seq_k=1000, seq_q=1000 if fault is wrong_tail else 130)
    inputs = make_inputs(config)
    assert not check_output(config, inputs, fault(config, inputs)).ok


def test_half_precision_probabilities_are_caught_in_float32():
    """A float32 kernel that rounds P to float16 is not a float32 kernel."""
    config = LONG.replace(causal=False)
    inputs = make_inputs(config)
    views = inputs.operands(config)
    scores = np.matmul(views.q.reshape(1, 2, -1, 40), views.k.swapaxes(-1, -2)) * np.float32(40**-0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)

    def output(weights):
        out = np.matmul(weights, views.v).reshape(1, 4, 130, 40)
        return np.ascontiguousarray(out.swapaxes(1, 2))

    assert check_output(config, inputs, output(weights)).ok
    assert not check_output(config, inputs, output(weights.astype(np.float16).astype(np.float32))).ok


LSE_FAULTS = {
    "log2": lambda lse: lse / np.float32(np.log(2)),
    "sign": lambda lse: -lse,
    "one-key": lambda lse: lse - np.float32(np.log(1000 / 999)),
}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    # One key of 1000 moves the LSE by 0.001: less than a naive program in half precision is off by.
    [(fault, dtype) for fault in ("log2", "sign") for dtype in DTYPES] + [("one-key", "float32")],
)
def test_wrong_lse_is_caught(fault, dtype):
    """An LSE in log2, with the wrong sign, or without one of 1000 keys is an error, and is named."""
    config = LONG.replace(dtype=dtype, causal=False)
    inputs = make_inputs(config)
    out, lse = solve(config, inputs)
    check = check_output(config, inputs, out, LSE_FAULTS[fault](lse))
    assert not check.ok
    assert check.what == "lse"


def test_rows_without_keys_must_be_zero_and_minus_infinity():
    """In rows that see nothing even a tiny output, or a finite LSE, is an error."""
    config = LONG.replace(seq_q=40, seq_k=30)
    inputs = make_inputs(config)
    out, lse = solve(config, inputs)
    assert (lse[:, :, :10] == -np.inf).all()
    assert check_output(config, inputs, out, lse).ok
    touched, finite = out.copy(), lse.copy()
    touched[0, 3, 1, 5] = 1e-30
    finite[0, 1, 3] = 0
    assert not check_output(config, inputs, touched, lse).ok
    assert check_output(config, inputs, out, finite).what == "lse"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_or_inf_is_caught_even_in_rows_not_compared(bad):
    """One bad element in a row that sampling passes over fails the check; the record stays JSON."""
    config = LONG.replace(seq_q=700)
    inputs = make_inputs(config)
    out, lse = solve(config, inputs)
    budget = 2e6
    compared = {(b, row) for b, _, rows in sample_rows(config, budget, 0) for row in rows.tolist()}
    row = next(r for r in range(700) if (0, r) not in compared)
    out[0, row, 0, 0] = bad
    check = check_output(config, inputs, out, lse, max_flops=budget)
    assert not check.ok
    assert check.rows_checked < check.rows
    assert msgspec.json.decode(msgspec.json.encode(check), type=Check) == check
    out, lse = solve(config, inputs)
    lse[0, 0, row] = bad
    check = check_output(config, inputs, out, lse, max_flops=budget)
    assert (check.ok, check.what) == (False, "lse")


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_gradients_are_caught_and_named(name, dtype):
    """A gradient short of one query row's share, or scaled by 1.05, is an error and is named."""
    config = LONG.replace(dtype=dtype, direction="backward", return_lse=False, seq_k=131, causal=False)
    inputs = make_inputs(config)
    gradients = dict(zip(("dq", "dk", "dv"), differentiate(config, inputs), strict=True))
    assert check_gradients(config, inputs, **gradients).ok
    gradients[name] = (gradients[name].astype(np.float32) * 1.05).astype(gradients[name].dtype)
    check = check_gradients(config, inputs, **gradients)
    assert not check.ok
    assert check.what == name


@pytest.mark.parametrize("head", [0, 1])
def test_nan_gradients_are_caught_where_nothing_is_sampled(head):
    """Of two KV heads one is compared; a NaN in the other is an error all the same."""
    config = LONG.replace(direction="backward", return_lse=False, num_heads=2, num_kv_heads=2, seq_k=131, causal=False)
    inputs = make_inputs(config)
    dq, dk, dv = differentiate(config, inputs)
    dk[:, 5, head] = np.nan
    check = check_gradients(config, inputs, dq, dk, dv, max_flops=1)
    assert (check.ok, check.what) == (False, "dk")


@pytest.mark.parametrize("left", ["dk", "dv"])
def test_gradients_of_keys_that_no_row_reads_must_be_zero(left):
    """Without query rows nothing is compared but this: what lay in memory is no gradient."""
    config = LONG.replace(seq_q=0, direction="backward", return_lse=False)
    inputs = make_inputs(config)
    found = dict(zip(("dq", "dk", "dv"), differentiate(config, inputs), strict=True))
    assert check_gradients(config, inputs, **found).ok
    found[left][0, 0, 0, 0] = 1e-30
    assert not check_gradients(config, inputs, **found).ok


def test_gradients_without_the_last_rows_are_caught():
    """dk and dv that miss the last of 130 query rows are errors."""
    config = LONG.replace(direction="backward", return_lse=False, seq_k=131, causal=False)
    inputs = make_inputs(config)
    dq, dk, dv = differentiate(config, inputs)
    inputs.dout[:, -1] = 0
    _, short_dk, short_dv = differentiate(config, inputs)
    inputs = make_inputs(config)
    assert check_gradients(config, inputs, dq, short_dk, dv).what == "dk"
    assert not check_gradients(config, inputs, dq, dk, short_dv).ok


@pytest.mark.parametrize(
    "config",
    [
        LONG.replace(batch=3, num_heads=8, num_kv_heads=4, seq_q=4000, seq_k=4000, head_dim=128),
        LONG.replace(batch=64, num_heads=32, num_kv_heads=8, seq_q=1, seq_k=16384),
        LONG.replace(seq_q=1, seq_k=200_000),
    ],
    ids=["prefill", "decode", "long"],
)
def test_sampling_keeps_to_its_budget_and_takes_the_edges(config):
    """Few enough rows for the budget; in each KV head the first, the last and rows beside tile edges."""
    budget = 5e8
    plan = sample_rows(config, budget, seed=1)
    group = config.num_heads // config.num_kv_heads
    rows = sum(len(rows) for _, _, rows in plan)
    row_flops = 2 * group * config.seq_k * (config.head_dim + config.head_dim_v)
    assert rows * row_flops <= max(budget, 4 * row_flops)
    assert len({(b, h) for b, h, _ in plan}) == len(plan)
    for _, _, chosen in plan:
        assert {0, config.seq_q - 1} <= set(chosen.tolist())
        assert (np.diff(chosen) > 0).all()
        if config.seq_q > 1:
            assert any(row % EDGE in {0, EDGE - 1} for row in chosen[1:-1])
    assert [r.tolist() for *_, r in plan] == [r.tolist() for *_, r in sample_rows(config, budget, seed=1)]


def test_all_tile_edges_are_sampled_if_the_budget_allows():
    """Half of a head's rows are kept for them: both sides of every multiple of the smallest tile."""
    config = LONG.replace(num_heads=1, num_kv_heads=1, seq_q=16 * EDGE)
    ((_, _, chosen),) = sample_rows(config, 80 * 2 * config.seq_k * (config.head_dim + config.head_dim_v), seed=1)
    assert {row for edge in range(EDGE, config.seq_q, EDGE) for row in (edge - 1, edge)} <= set(chosen.tolist())


def test_sampled_check_still_catches_faults():
    """A dropped last key is caught from a sample of rows."""
    config = LONG.replace(seq_q=600, causal=False)
    inputs = make_inputs(config)
    check = check_output(config, inputs, dropped_last_key(config, inputs), max_flops=5e6)
    assert not check.ok
    assert check.rows_checked < 600


def test_what_is_not_the_configs_shape_or_dtype_is_refused():
    """A check never compares by broadcasting or casting."""
    inputs = make_inputs(LONG)
    out, lse = solve(LONG, inputs)
    with pytest.raises(ConfigError, match=r"out is float32 \[130, 4, 40\]; the config says float32 \[1, 130, 4, 40\]"):
        check_output(LONG, inputs, out[0])
    with pytest.raises(ConfigError, match="lse is float64"):
        check_output(LONG, inputs, out, lse.astype(np.float64))
    with pytest.raises(ConfigError, match="no dout"):
        check_gradients(LONG, inputs, out, out, out)


@pytest.mark.parametrize("layout", ["BSHD", "BHSD", "BSE"])
@pytest.mark.parametrize("data", ["normal", "trig"])
def test_inputs_are_in_the_configs_form_and_never_zeros(data, layout):
    """Layout, dtype, mask and options are what the config says; values vary."""
    config = LONG.replace(
        layout=layout, dtype="bfloat16", alibi=True, sinks=True, mask="additive", mask_shape=(1, 4, 130, 1000),
        direction="backward",
    )  # fmt: skip
    inputs = make_inputs(config, data=data, seed=3)
    for array in (inputs.q, inputs.k, inputs.v, inputs.dout):
        assert array.dtype.name == "bfloat16"
        assert np.abs(array.astype(np.float32)).max() <= 8
        assert array.astype(np.float32).std() > 0.3
    assert inputs.mask.dtype.name == "bfloat16"
    assert "return_lse" not in inputs.options(config)
    out, _ = solve(config, inputs)
    assert out.shape == inputs.dout.shape


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("shape", [(2, 4, 64, 50), (1, 1, 64, 50), (2, 1, 1, 50), (1, 4, 64, 1), (1, 1, 1, 1)], ids=str)
def test_masks_hide_some_keys_and_a_few_whole_rows(shape, kind):
    """Most rows keep keys; where rows have masks of their own, one in sixteen keeps none."""
    config = AttentionConfig(batch=2, num_heads=4, seq_q=64, seq_k=50, head_dim=8, mask=kind, mask_shape=shape)
    mask = make_inputs(config).mask
    allowed = np.broadcast_to(mask if kind == "bool" else mask != -np.inf, (2, 4, 64, 50))
    blank = ~allowed.any(-1)
    assert blank.mean() == (1 / 16 if shape[2] > 1 else 0)
    if shape[3] > 1:
        assert 0.5 < allowed.mean() < 0.95


def test_inputs_are_the_same_in_every_process():
    """The same (config, data, seed) gives the same bits elsewhere; another seed or config gives others."""
    code = """
import hashlib
from rocattn.config import AttentionConfig
from rocattn_profiling.workloads.inputs import make_inputs
config = AttentionConfig(
    batch=1, num_heads=2, seq_q=9, seq_k=7, head_dim=5, mask="bool", mask_shape=(1, 1, 9, 7), sinks=True
)
x = make_inputs(config, seed=4)
print(hashlib.sha256(b"".join(a.tobytes() for a in (x.q, x.k, x.v, x.mask, x.sinks))).hexdigest())
"""
    digests = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(digests) == 1
    config = AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=7, head_dim=5)
    first = make_inputs(config, seed=4)
    np.testing.assert_array_equal(first.q, make_inputs(config, seed=4).q)
    assert (first.q != make_inputs(config, seed=5).q).any()
    assert (first.q != make_inputs(config.replace(causal=True), seed=4).q).any()
    with pytest.raises(ConfigError, match="data 'zeros' is unknown: use one of normal, trig"):
        make_inputs(config, data="zeros")
