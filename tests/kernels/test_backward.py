"""The backward kernels: executed by the stand-in GPU against float64, and read as code objects."""

import re
from dataclasses import replace

import numpy as np
import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.gpu.arguments import KERNEL_TYPES
from rocattn.gpu.backward import backward_launches, can_use_backward, variants
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.workloads.accuracy import check_gradients
from rocattn_profiling.workloads.inputs import make_inputs

from .launching import backward_arrays, check_arguments

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
# Every register layout: five of matrix instructions, and the vector units on waves of 32 and 64.
TARGETS = [(arch, "float16") for arch in ARCHS]
TARGETS += [("gfx942", "bfloat16"), ("gfx1201", "bfloat16"), ("gfx1100", "float32"), ("gfx942", "float32")]
SIZES = {
    "batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 37, "seq_k": 83, "head_dim": 32, "direction": "backward",
}  # fmt: skip
CASES = {
    "plain": {},
    "causal": {"causal": True, "seq_q": 83, "layout": "BSE"},
    "causal-more-queries": {"causal": True, "seq_q": 90, "seq_k": 31, "layout": "BHSD"},
    "window-sinks": {"window": (9, 3), "sinks": True, "scale": -0.2},
    "odd-dims-bool-mask": {"mask": "bool", "mask_shape": (2, 1, 37, 83), "head_dim": 20, "head_dim_v": 31},
    "every-option": {
        "causal": True, "window": (30, 5), "mask": "additive", "mask_shape": (1, 1, 37, 83), "softcap": 2.0,
        "alibi": True, "sinks": True, "scale": -0.3, "num_kv_heads": 1,
    },
    "dropout": {"dropout_p": 0.3, "causal": True},
}  # fmt: skip


def run(device, config, inputs):
    """Run the backward pass on the outputs of the cpu backend; return dq, dk, dv as the caller holds them."""
    options = inputs.options(config) | {"return_lse": True}
    out, lse = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="cpu", **options)
    arrays = backward_arrays(device, config, inputs, out, lse)
    arrays.run(backward_launches(config, device.arch, arrays.buffers))
    results = [arrays.result(name) for name in ("dq", "dk", "dv")]
    arrays.free()
    return results


def agree(device, **fields):
    """Assert that the gradients of a problem are within the error rule."""
    config = AttentionConfig(**SIZES | fields)
    inputs = make_inputs(config)
    check = check_gradients(config, inputs, *run(device, config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_it_agrees_with_float64(standin, arch, dtype, case):
    """All three gradients are within the error rule for every option, dtype and register layout."""
    agree(standin(arch), dtype=dtype, **CASES[case])


@pytest.mark.parametrize(
    ("arch", "dtype", "head_dim"),
    [("gfx1100", "float16", 64), ("gfx1100", "bfloat16", 128), ("gfx1201", "float16", 96), ("gfx942", "float16", 128),
     ("gfx950", "bfloat16", 64), ("gfx90a", "float16", 96), ("gfx1100", "float32", 128), ("gfx942", "float32", 64)],
)  # fmt: skip
def test_every_kind_of_block_agrees_with_float64(standin, arch, dtype, head_dim):
    """Teams of one wave to four, four or eight waves, one phase or two, over more than one block each way."""
    agree(standin(arch), dtype=dtype, batch=1, num_heads=2, seq_q=140, seq_k=150, head_dim=head_dim, causal=True)


OPTIONS = {
    "window": (30, 5), "mask": "additive", "mask_shape": (1, 1, 1, 45), "softcap": 2.0, "alibi": True, "scale": -0.3,
}  # fmt: skip
WIDE = [
    ("gfx1100", "float16", {"head_dim": 256, "causal": True, "layout": "BSE"}),
    ("gfx1100", "bfloat16", {"head_dim": 40, "head_dim_v": 256, **OPTIONS}),
    ("gfx1201", "float16", {"head_dim": 192, "mask": "bool", "mask_shape": (1, 2, 33, 45)}),
    ("gfx1201", "bfloat16", {"head_dim": 256, "head_dim_v": 64, "window": (9, 3), "sinks": True}),
    ("gfx90a", "float16", {"head_dim": 130, "causal": True, "seq_k": 20}),
    ("gfx90a", "float16", {"head_dim": 200, "head_dim_v": 256, **OPTIONS}),
    ("gfx942", "bfloat16", {"head_dim": 256}),
    ("gfx942", "float16", {"head_dim": 160, "head_dim_v": 192, **OPTIONS}),
    ("gfx950", "float16", {"head_dim": 256, "head_dim_v": 64, "causal": True, "layout": "BHSD"}),
    ("gfx1030", "float16", {"head_dim": 200, "causal": True}),
    ("gfx1100", "float32", {"head_dim": 256, "window": (9, 3)}),
    ("gfx942", "float32", {"head_dim": 130, "head_dim_v": 256, **OPTIONS}),
]


@pytest.mark.parametrize(("arch", "dtype", "fields"), WIDE)
def test_head_dimensions_up_to_256_agree_with_float64(standin, arch, dtype, fields):
    """D and Dv above 128, compiled sizes and others, one much larger than the other, on every register layout."""
    agree(
        standin(arch), dtype=dtype, **{"batch": 1, "num_heads": 2, "num_kv_heads": 1, "seq_q": 33, "seq_k": 45} | fields
    )


@pytest.mark.parametrize(("tiny", "head_dim"), [(True, 64), (False, 64), (False, 192)])
def test_f16_survives_a_matrix_unit_without_subnormals(standin, tiny, head_dim):
    """CDNA 2: probabilities below 2^-14 count, and the factor that saves them makes no dS too large for f16."""
    config = AttentionConfig(**SIZES | {"batch": 1, "head_dim": head_dim}, dtype="float16", sinks=tiny)
    inputs = make_inputs(config)
    if tiny:
        inputs.sinks.fill(11.0)  # of which e^11 is the share
    else:
        inputs.dout[:, 11] *= 3000
        inputs.v[:, 50:] *= 20
    check = check_gradients(config, inputs, *run(standin("gfx90a"), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


def test_the_gradients_are_the_same_bits_every_time(standin):
    """There are no atomics: nothing depends on the order of blocks."""
    config = AttentionConfig(**SIZES, dtype="float16", causal=True)
    inputs = make_inputs(config)
    once, again = (run(standin("gfx1100"), config, inputs) for _ in range(2))
    for first, second in zip(once, again, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("arch", "dtype", "head_dim"),
    [*((*target, 32) for target in TARGETS), ("gfx1100", "float16", 96), ("gfx942", "bfloat16", 160),
     ("gfx1201", "float32", 64)],
)  # fmt: skip
def test_a_hidden_pair_has_no_influence_even_if_it_is_nan(standin, arch, dtype, head_dim):
    """NaN and inf in K and V rows, Q and dO rows reach what sees them, and nothing else."""
    config = AttentionConfig(**SIZES | {"seq_q": 83, "head_dim": head_dim}, dtype=dtype, causal=True, window=(20, -1))
    clean = make_inputs(config)
    expected = run(standin(arch), config, clean)
    inputs = make_inputs(config)
    inputs.k[:, 70] = np.nan
    inputs.v[:, 70, :, 5] = np.inf
    inputs.q[:, 3] = np.nan
    inputs.dout[:, 5, :, 7] = np.nan
    options = clean.options(config) | {"return_lse": True}
    out, lse = rocattn.attention(clean.q, clean.k, clean.v, backend="cpu", **options)
    spoilt = (np.arange(83) >= 70) | (np.arange(83) == 3)  # what a forward pass would have given
    out[:, spoilt], lse[:, :, spoilt] = np.nan, np.nan
    arrays = backward_arrays(standin(arch), config, inputs, out, lse)
    arrays.run(backward_launches(config, arch, arrays.buffers))
    dq, dk, dv = (arrays.result(name) for name in ("dq", "dk", "dv"))
    arrays.free()
    queries, keys = [0, 1, 2, 4, *range(6, 70)], list(range(6, 50))  # that see none of it
    for got, want, rows in zip((dq, dk, dv), expected, (queries, keys, keys), strict=True):
        np.testing.assert_array_equal(got[:, rows], want[:, rows])
    assert np.isnan(dq[:, [3, 5, *range(70, 83)]].astype(np.float32)).all()
    assert np.isnan(dk[:, :6].astype(np.float32)).all()
    assert np.isnan(dv[:, :6, :, 7].astype(np.float32)).all()


def test_a_row_without_a_visible_key_has_no_gradient(standin):
    """Its LSE of -inf makes no NaN: dq is 0 there, and dk and dv are those of the other rows."""
    config = AttentionConfig(**SIZES | {"seq_k": 5}, dtype="bfloat16", causal=True)
    dq, dk, dv = run(standin("gfx1201"), config, make_inputs(config))
    assert (dq[:, :32] == 0).all()
    assert (dq[:, 32:] != 0).any()
    assert np.isfinite(dk.astype(np.float32)).all()
    assert np.isfinite(dv.astype(np.float32)).all()


@pytest.mark.parametrize("value", [-1e9, -3e30, float(np.finfo(np.float32).min)], ids=str)
@pytest.mark.parametrize(
    ("arch", "dtype"), [("gfx90a", "float16"), ("gfx942", "bfloat16"), ("gfx1100", "float16"), ("gfx1201", "float32")]
)
def test_row_with_a_huge_mask_has_gradients_of_equal_scores(standin, arch, dtype, value):
    """Its scores and its LSE are the mask's value: beside it float32 holds neither the scores nor their number."""
    config = AttentionConfig(
        batch=1, num_heads=1, seq_q=37, seq_k=83, head_dim=32, dtype=dtype, direction="backward", layout="BHSD",
        mask="additive", mask_shape=(1, 1, 37, 1),
    )  # fmt: skip
    mask = np.zeros(config.mask_shape, np.float32)
    mask[:, :, 5:9] = value
    inputs = replace(make_inputs(config), mask=mask)
    found = run(standin(arch), config, inputs)

    q, k, v, dout = (array[0, 0].astype(np.float64) for array in (inputs.q, inputs.k, inputs.v, inputs.dout))
    scores = q @ k.T * config.softmax_scale
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[5:9] = 1 / config.seq_k  # beside such a value the scores are nothing
    delta = (dout * (p @ v)).sum(axis=1, keepdims=True)
    ds = p * (dout @ v.T - delta) * config.softmax_scale
    for mine, exact in zip(found, (ds @ k, ds.T @ q, p.T @ dout), strict=True):
        near = (1e-5 if dtype == "float32" else 0.02) * np.abs(exact).max()
        np.testing.assert_allclose(mine[0, 0].astype(np.float64), exact, atol=near)


FLAT = {
    "plain": {"batch": 1},
    "causal-below": {"causal": True, "seq_q": 83, "layout": "BHSD", "sign": -1},
    "window-mask-sinks": {"window": (50, 9), "mask": "bool", "mask_shape": (2, 1, 37, 83), "sinks": True},
    "softcap": {"softcap": 3e5, "head_dim": 20, "head_dim_v": 130, "num_kv_heads": 4},
    "sinks-decide": {"batch": 1, "sinks": True, "sink": 2e6},
}


@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_rows_of_large_lse_have_their_softmax_gradients(standin, arch, dtype, case):
    """Every third row's scores are equal and 1e6 (float16) to 1e10: their probabilities are not in the LSE any more."""
    fields = dict(FLAT[case])
    sign, sink = fields.pop("sign", 1), fields.pop("sink", None)
    config = AttentionConfig(**SIZES | fields, dtype=dtype)
    inputs = make_inputs(config)
    ramp = np.linspace(0.2, 1, config.head_dim) * (1e3 if dtype == "float16" else 1e5)
    q, k, v, dout = (getattr(inputs, name).copy() for name in ("q", "k", "v", "dout"))
    q[...], k[...] = 0, (sign * ramp).astype(k.dtype)
    (q.swapaxes(1, 2) if config.layout == "BHSD" else q)[:, ::3] = ramp.astype(q.dtype)
    inputs = replace(inputs, q=q, k=k)
    if sink:
        inputs.sinks.fill(sink)
    found = run(standin(arch), config, inputs)

    heads = [array if config.layout == "BHSD" else array.swapaxes(1, 2) for array in (q, k, v, dout)]
    q, k, v, dout = (array.astype(np.float64) for array in heads)
    group = config.num_heads // config.num_kv_heads
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = q @ k.swapaxes(2, 3) * config.softmax_scale
    slope = 1.0
    if config.softcap:
        slope = 1 - np.tanh(scores / config.softcap) ** 2
        scores = config.softcap * np.tanh(scores / config.softcap)
    distance = np.arange(config.seq_k) - np.arange(config.seq_q)[:, None] - (config.seq_k - config.seq_q)
    left, right = config.band or (-1, -1)
    hidden = ((left >= 0) & (distance < -left)) | ((right >= 0) & (distance > right))
    hidden = hidden if inputs.mask is None else hidden | ~inputs.mask
    scores = np.where(hidden, -np.inf, scores)
    sinks = np.full(config.num_heads, -np.inf) if inputs.sinks is None else inputs.sinks
    top = np.maximum(scores.max(axis=3, keepdims=True), sinks[:, None, None])
    top = np.where(top == -np.inf, 0, top)
    total = np.exp(scores - top).sum(axis=3, keepdims=True) + np.exp(sinks[:, None, None] - top)
    p = np.exp(scores - top) / np.where(total == 0, 1, total)
    ds = p * (dout @ v.swapaxes(2, 3) - (dout * (p @ v)).sum(axis=3, keepdims=True)) * slope * config.softmax_scale
    dk, dv = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    dk, dv = (each.reshape(each.shape[0], -1, group, *each.shape[2:]).sum(axis=2) for each in (dk, dv))
    terms = np.abs(ds).sum(axis=3).max() * np.abs(k).max(), np.abs(dk).max(), np.abs(dv).max()
    for gradient, exact, size in zip(found, (ds @ k, dk, dv), terms, strict=True):
        mine = (gradient if config.layout == "BHSD" else gradient.swapaxes(1, 2)).astype(np.float64)
        np.testing.assert_allclose(mine, exact, atol=(1e-4 if dtype == "float32" else 0.02) * size)


@pytest.mark.parametrize("empty", ["batch", "seq_q", "seq_k"])
def test_a_size_of_zero_is_fine(standin, empty):
    """Gradients without a term are 0, empty ones are not touched."""
    config = AttentionConfig(**SIZES | {empty: 0}, dtype="float16")
    for gradient in run(standin("gfx1100"), config, make_inputs(config)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_launches_fit_the_code_objects(standin, arch):
    """Argument names, offsets and sizes, block and wave size are what the machine code says; the build grid has all."""
    for fields in ({"head_dim": 256}, {"head_dim": 20}):
        checked = {}
        for dtype in KERNEL_TYPES:
            config = AttentionConfig(**SIZES | fields, dtype=dtype)
            inputs = make_inputs(config)
            lse = np.zeros((config.batch, config.num_heads, config.seq_q), np.float32)
            arrays = backward_arrays(standin(arch), config, inputs, inputs.dout, lse)
            launches = backward_launches(config, arch, arrays.buffers)
            arrays.free()
            # Kernels of the same source, options but for the type, arguments and block need not be compiled twice.
            facts = [(launch.symbol, launch.block, launch.args, {**launch.defines, "DTYPE": ""}) for launch in launches]
            if facts not in checked.values() or dtype == "float32":
                check_arguments(launches, arch)
            checked[dtype] = facts
            built = [(each.source, each.symbol, each.defines) for each in variants(arch)]
            assert all((launch.source, launch.symbol, launch.defines) in built for launch in launches)


@pytest.mark.parametrize(("fields", "reason"), [({"head_dim": 257}, "up to 256"), ({"dtype": "float64"}, "float64")])
def test_what_it_cannot_do_it_says(fields, reason):
    """A config beyond the kernels gets a reason, and no launches."""
    assert can_use_backward(AttentionConfig(**SIZES)).ok
    config = AttentionConfig(**SIZES | fields)
    assert reason in can_use_backward(config).reason
    with pytest.raises(ConfigError, match=reason):
        backward_launches(config, "gfx942", {})


@pytest.mark.parametrize(("name", "rows", "arch"), [("q", 32, "gfx942"), ("dout", 16, "gfx1100"), ("v", 16, "gfx1100")])
def test_rows_too_far_apart_for_32_bit_offsets_are_refused(name, rows, arch):
    """A tile of a streamed array that spans 4 GiB: the reason is given, nothing is launched."""
    config = AttentionConfig(**SIZES | {"head_dim": 256}, dtype="float16")
    limit = (1 << 31) // rows
    assert plan(config, arch, strides={name: (256, 256, limit - 1, 1)}).launches
    assert plan(config, arch, strides={name: (256, 256, -(limit - 1), 1)}).launches
    with pytest.raises(ConfigError, match=f"{name} has rows -{limit} elements apart: {rows} of them"):
        plan(config, arch, strides={name: (256, 256, -limit, 1)})


LARGE = {"attention_backward_large_dq": 48, "attention_backward_large_dkdv": 120}  # VGPRs at most
MATRIX = {"gfx90a": "v_mfma", "gfx942": "v_mfma", "gfx950": "v_mfma", "gfx1100": "v_wmma", "gfx1201": "v_wmma"}


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", ARCHS)
def test_no_vector_register_is_spilled(read_metadata, caplog, arch):
    """None does, or uses scratch; compiled here are those that need most, and those without a head dimension."""
    most = {("f16", 192, 0), ("f16", 256, 0), ("f32", 256, 0), ("f16", 256, 1)}
    for variant in variants(arch):
        defines = variant.defines
        if "HEAD_DIM" in defines and (defines["DTYPE"], defines["HEAD_DIM"], defines["PLAIN_SCORES"]) not in most:
            continue
        code = compile_hip(variant.source, arch, defines=variant.defines)
        (kernel,) = read_metadata(code.data)["amdhsa.kernels"]
        assert kernel[".vgpr_spill_count"] == 0, variant
        assert kernel[".private_segment_fixed_size"] == 0, variant
        assert kernel[".group_segment_fixed_size"] <= 65536, variant
        assert kernel[".vgpr_count"] <= LARGE.get(variant.kernel, 512), variant
        assert re.search(r"\tglobal_load_(dwordx4|b128)", code.assembly), variant
        assert not re.search(r"\tflat_(load|store)", code.assembly), variant
        uses = variant.defines["DTYPE"] != "f32" and arch in MATRIX and "HEAD_DIM" in variant.defines
        assert (MATRIX.get(arch, "v_mfma") in code.assembly) == uses, variant
    assert caplog.records == []
