"""Each family of `rocattn verify` fails on the fault that it is for, says so, and blames whom it should."""

import itertools
import re
import threading

import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn.backends import BACKENDS
from rocattn.gpu.tiles import PADDED_HEAD_DIMS
from rocattn_profiling.verify import run as verify_run
from rocattn_profiling.verify.cases import cases
from rocattn_profiling.verify.contract import finite_differences
from rocattn_profiling.verify.inputs import STRESSES, make_case_inputs
from rocattn_profiling.verify.outcomes import ULP_EDGES, YARDSTICK, ulp, ulp_histogram
from rocattn_profiling.verify.run import verify
from rocattn_profiling.verify.symptoms import COARSE, UNSTABLE

from .changed import Changed


def first(family, **wanted):
    """The first core case of a family whose config, data or storage has these values."""
    return next(
        case
        for case in cases("core")
        if case.family == family
        and all(getattr(case, name, getattr(case.config, name, None)) == value for name, value in wanted.items())
    )


def fault(case, backend):
    """What verify says is wrong with a case on a backend; "" if nothing."""
    (outcome,) = verify([case], [backend]).outcomes
    return outcome.fault


CALLS = itertools.count()


def unsteady(out, _lse):
    """Other last bits in every second call."""
    out[0, 0, -1] *= out.dtype.type(1 + next(CALLS) % 2 * 1e-6)


def by_thread_count(out, _lse):
    """Other last bits on two threads."""
    import os

    if os.environ.get("ROCATTN_NUM_THREADS") == "2":
        out *= out.dtype.type(1 + 1e-6)


def by_thread(out, _lse):
    """Other last bits on threads that are not the first."""
    if threading.current_thread() is not threading.main_thread():
        out *= out.dtype.type(1 + 1e-6)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (unsteady, "when it runs again"),
        (by_thread_count, "on 2 threads"),
        (by_thread, "when 4 threads call it at once"),
    ],
)
def test_bits_that_change_are_a_fault(spoil, words):
    """The sentence says in how many elements of which tensor, and when."""
    case = first("determinism", dtype="float32", direction="forward")
    text = fault(case, Changed(after=spoil))
    assert text.startswith("out differs in ")
    assert text.endswith(words)
    assert fault(case, Changed()) == ""


def test_the_standard_path_is_run_at_the_quick_level():
    """Heads that no flash kernel takes, and rows of more keys than a block of softmax reads at once."""
    wide = [case.config for case in cases("quick") if case.config.head_dim > max(PADDED_HEAD_DIMS)]
    assert {config.causal for config in wide} == {False, True}
    assert max(config.seq_k for config in wide) > 2048


@pytest.mark.parametrize("data", ["large-scores", "rising"])
def test_sums_are_rescaled_in_every_dtype_at_the_quick_level(data):
    """Kernels of 16 bits move a row's reference in code of their own."""
    dtypes = {case.config.dtype for case in cases("quick") if case.family == "scales" and case.data == data}
    assert dtypes >= {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize("tile", [16, 32])
def test_a_leak_at_any_column_of_a_tile_is_seen(tile):
    """The quick level puts the end of the diagonal into each column: a tile that skips masking may leak at one only."""
    ends = {
        (case.config.seq_k - case.config.seq_q) % tile
        for case in cases("quick")
        if case.family == "visibility" and case.config.causal and case.config.window is None
    }
    assert ends == set(range(tile))


def without_numbers(text):
    """A sentence without its errors, which differ between machines."""
    return re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "N", text)


def test_leaked_and_swallowed_nans_are_faults():
    """Rows that see a NaN are NaN, all others are numbers."""
    case = first("containment", data="hidden-nan", causal=True, dtype="float32")
    assert fault(case, Changed()) == ""
    assert fault(case, Changed(after=lambda out, _: out.__setitem__((0, 0, 0), np.nan))) == snapshot(
        "out has NaN or inf where float64 has none, or vice versa"
    )

    def swallow(out, _lse):
        out[np.isnan(out)] = 0.5

    assert fault(case, Changed(after=swallow)) == snapshot(
        "84 rows that see a NaN key have no NaN; out has NaN or inf where float64 has none, or vice versa"
    )


def test_gradients_of_hidden_poisoned_keys_must_be_zero():
    """Even a tiny one is named."""
    case = first("containment", direction="backward", dtype="float32")
    hidden = make_case_inputs(case.config, case.data).mask[0, 0, 0]

    def leak(_dq, dk, _dv):
        dk[0, 0, np.flatnonzero(~hidden)] = 1e-30

    assert fault(case, Changed(gradients=leak)) == "dk of keys that no row sees is not 0"


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_wrong_gradient_is_off_finite_differences(name):
    """An error of 1e-6 of a float64 gradient is one."""
    case = first("gradients", dtype="float64", alibi=True)

    def spoil(dq, dk, dv):
        {"dq": dq, "dk": dk, "dv": dv}[name][...] *= 1 + 1e-6

    assert fault(case, Changed()) == ""
    assert fault(case, Changed(gradients=spoil)).startswith(f"{name} is off by")


def test_finite_differences_match_gradients_solved_by_hand():
    """With one key the output is its value: dv is the sum of dout, and nothing else has a gradient."""
    case = first("gradients", dtype="float64")
    config = case.config.replace(seq_k=1)
    inputs = make_case_inputs(config, "normal")
    found = finite_differences(config, inputs)
    np.testing.assert_allclose(found["dv"][:, :, 0], inputs.dout.sum(axis=1), rtol=1e-8)
    assert not found["dq"].any()
    assert not found["dk"].any()


def test_a_wrong_yardstick_is_blamed_and_not_the_backend(monkeypatch):
    """When the analytic gradients that judge are wrong themselves, the outcome is the yardstick's."""
    right = verify_run.all_gradients
    monkeypatch.setattr(verify_run, "all_gradients", lambda *a: (g := right(*a)) | {"dk": g["dk"] * (1 + 1e-5)})
    found = verify([first("gradients", dtype="float64")], [Changed()]).outcomes
    assert [(o.backend, o.ok) for o in found] == [("changed", True), (YARDSTICK, False)]
    assert without_numbers(found[1].fault) == snapshot(
        "dk of the floatN reference deviates from finite differences by N"
    )

    right_out = verify_run.attend
    monkeypatch.setattr(verify_run, "attend", lambda *a: [x + 1e-6 for x in right_out(*a)])
    found = verify([first("visibility", dtype="float16")], [Changed()]).outcomes
    assert without_numbers(found[-1].fault) == snapshot("out of the floatN reference deviates from the contract by N")


def test_reading_or_writing_outside_of_an_array_is_a_fault():
    """A write beside the output is named; a read beside an input is NaN, for that is what is there."""
    case = first("edges", dtype="float32", direction="forward")

    def write(out, _lse):
        out.base[0, 0, 0, 0] = 1  # the buffer that the output lies in

    def read(config, operands):

        k = operands.k
        shifted = np.lib.stride_tricks.as_strided(k[:, :, 1:], k.shape, k.strides)
        return config, operands._replace(k=shifted)

    assert fault(case, Changed()) == ""
    assert fault(case, Changed(after=write)) == snapshot("the backend wrote outside out")
    assert fault(case, Changed(before=read)) == snapshot("out has NaN or inf where float64 has none, or vice versa")


class Writing(Changed):
    """Right, but writes into what it is given to read."""

    def backward(self, config, operands, dout, out, lse, dq, dk, dv):
        """Turn the LSE to base 2 in place."""
        super().backward(config, operands, dout, out, lse, dq, dk, dv)
        lse /= np.float32(np.log(2))


def test_writing_into_an_input_is_a_fault_of_who_wrote():
    """The tensor is named, also if the output is right; the next backend gets what the first one got."""

    def halve(config, operands):
        operands.k[...] = operands.k / operands.k.dtype.type(2)
        return config.replace(scale=config.softmax_scale * 2), operands

    case = first("basics", direction="forward", dtype="float32")
    written, right = verify([case], [Changed(before=halve), Changed()]).outcomes
    assert written.fault == "the backend wrote into k, which it is given to read"
    assert right.ok
    backward = first("basics", direction="backward", dtype="float32")
    assert fault(backward, Writing()) == "the backend wrote into lse, which it is given to read"
    assert fault(backward, Changed()) == ""


def test_slopes_of_another_sequence_are_a_fault():
    """Sequences of a batch have slopes of their own, or a kernel could read those of the first for all."""

    def shared(config, operands):
        slopes = operands.alibi_slopes
        return config, operands._replace(alibi_slopes=np.broadcast_to(slopes[:1], slopes.shape))

    chosen = [case for case in cases("quick") if case.config.alibi and case.config.batch > 1]
    assert any(not outcome.ok for outcome in verify(chosen, [Changed(before=shared)]).outcomes)
    assert all(outcome.ok for outcome in verify(chosen, [Changed()]).outcomes)


@pytest.mark.parametrize("data", STRESSES)
def test_stress_inputs_are_repeatable_and_right_on_cpu(data):
    """Each kind of data is reproducible, has no NaN but on purpose, and passes on both CPU backends at two seeds."""
    case = next(c for c in cases("core") if c.data == data)
    one, other = (make_case_inputs(case.config, data, seed=5) for _ in range(2))
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        finite = np.isfinite(getattr(one, name).astype(np.float64))
        assert finite.all() or (data.startswith("hidden") and name != "q")
        assert (getattr(one, name) != 0).any() or (data, name) == ("uniform", "q")
    backends = [backend for backend in BACKENDS if backend.name.startswith("cpu") and backend.available()]
    for seed in (0, 5):
        found = verify([case], backends, seed=seed).outcomes
        assert {o.backend: o.fault for o in found if not o.ok} == {}


def test_kinds_of_data_do_what_their_names_say():
    """Subnormal numbers are; rising scores rise; one key a row holds all of its probability."""
    config = first("scales", data="subnormal", dtype="float16").config
    assert np.abs(make_case_inputs(config, "subnormal").v.astype(np.float64)).max() < 2.0**-14
    assert np.abs(make_case_inputs(config, "x10000").q.astype(np.float64)).std() > 5e3
    operands = make_case_inputs(config, "rising").operands(config)
    scores = operands.q[:, ::2].astype(np.float64) @ operands.k.astype(np.float64).swapaxes(-1, -2) * 64**-0.5
    assert (np.diff(scores.mean(axis=(0, 1, 2))[::10]) > 0).all()
    config = first("positions", dtype="bfloat16").config
    inputs = make_case_inputs(config, "positions")
    operands = inputs.operands(config)
    (outcome,) = verify([first("positions", dtype="bfloat16")], [BACKENDS.get("cpu")]).outcomes
    assert outcome.check.max_abs_error == 0
    assert len(np.unique(operands.v.astype(np.float64)[0, 0, :, 0])) > 40


def test_backends_are_compared_with_each_other():
    """The largest distance of two backends is kept by dtype, with its tensor, case and ULPs."""
    chosen = [first("layouts", dtype="float32"), first("layouts", dtype="float32", layout="BHSD")]

    def spoil(out, _lse):
        out[0, 0, 0, 0] += 1

    found = verify(chosen, [BACKENDS.get("cpu"), Changed(after=spoil)]).agreements
    ((key, kept),) = found.items()
    assert key == ("cpu", "changed", "float32")
    assert (kept.cases, kept.what, kept.max_abs) == (2, "out", pytest.approx(1, rel=1e-6))
    assert kept.case in {case.label for case in chosen}
    assert kept.max_ulps > 1e5


def test_ulps_are_distances_between_neighbours():
    """As numpy's spacing in float16, float32 and float64; bfloat16 has 8 bits; subnormal numbers share one."""
    values = np.array([1.0, 1.5, 2.0, 1e-3, 6e-5, 3e-8, 1024.0, -3.0])
    for dtype in ("float16", "float32", "float64"):
        np.testing.assert_array_equal(ulp(values, dtype), np.abs(np.spacing(np.abs(values.astype(dtype)))))
    np.testing.assert_array_equal(ulp(np.array([1.0, 2.0, 0.0]), "bfloat16"), [2.0**-7, 2.0**-6, 2.0**-133])
    counts = ulp_histogram(np.array([0, 0.4, 0.6, 3, 5000, np.inf]) * 2.0**-10, np.ones(6), "float16")
    assert counts == [2, 1, 0, 1, 0, 0, 0, 0, 0, 2]
    assert len(counts) == len(ULP_EDGES) + 1
    # A bin's upper end belongs to it: 0.5 is a result rounded as well as can be.
    assert ulp_histogram(np.array(ULP_EDGES) * 2.0**-10, np.ones(9), "float16") == [1] * 9 + [0]


def test_a_large_case_is_judged_by_a_sample_of_its_rows():
    """Sequences of several tiles at the full level do not bring the [Sq, Sk] scores of the contract with them."""
    case = next(c for c in cases("full") if c.family == "containment" and c.config.seq_k > 2000)
    (outcome,) = verify([case], [BACKENDS.get("cpu")]).outcomes
    assert outcome.ok
    assert outcome.check.rows_checked < outcome.check.rows


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("data", ["x10000", "large-scores"])
def test_large_scores_do_not_make_the_rule_blind(data, dtype):
    """Where a naive float16 program overflows its limit is still a number: an output 2 % too large is wrong."""
    case = first("scales", data=data, dtype=dtype, softcap=None)
    assert fault(case, Changed()) == ""

    def spoil(out, _lse):
        out *= out.dtype.type(1.02)

    (outcome,) = verify([case], [Changed(after=spoil)]).outcomes
    assert not outcome.ok
    assert max(tensor.naive.max_abs for tensor in outcome.tensors) < 1e30


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_huge_equal_scores_have_a_sharp_limit_and_a_name(dtype):
    """A row of a flat softmax that is lost is named; an output 2 % too large is wrong, as at scores of any size."""
    case = first("stability", data="flat-1e10", dtype=dtype, direction="forward", causal=False)
    assert fault(case, Changed()) == ""

    def scaled(out, _lse):
        out *= out.dtype.type(1.02)

    def lost(out, _lse):
        out[0, 0, 5] = 0

    assert without_numbers(fault(case, Changed(after=scaled))) == snapshot(
        "out is off by N (naive N), N times what is allowed"
    )
    (outcome,) = verify([case], [Changed(after=lost)]).outcomes
    assert outcome.symptom == UNSTABLE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_large_lse_allows_no_error_where_scores_are_exact(name, dtype):
    """A tenth too much of one gradient is wrong at scores of 1e8 and 1e10, and named.

    In float16 keys are so large that the rounding of dq's first feature is more than that: there it is NaN.
    """
    case = first("stability", dtype=dtype, direction="backward", causal=False)
    assert fault(case, Changed()) == ""

    def spoil(dq, dk, dv):
        changed = {"dq": dq, "dk": dk, "dv": dv}[name]
        changed *= changed.dtype.type(1.1 if dtype != "float16" or name != "dq" else np.nan)

    (outcome,) = verify([case], [Changed(gradients=spoil)]).outcomes
    assert outcome.check.what == name
    assert outcome.symptom == COARSE
