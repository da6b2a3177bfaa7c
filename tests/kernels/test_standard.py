"""The five kernels of the standard path: executed by the stand-in GPU against float64, and read as code objects."""

import dataclasses
import re

import numpy as np
import pytest

import rocattn
from rocattn.config import AttentionConfig
from rocattn.gpu.build import argument_problem
from rocattn.gpu.standard import standard_launches, variants
from rocattn.toolchain import compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.kernels.build import all_variants
from rocattn_profiling.workloads.accuracy import check_output
from rocattn_profiling.workloads.inputs import make_inputs

from .launching import forward_arrays

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
# Every register layout: five of matrix instructions in two dtypes, and the vector units on waves of 32 and 64.
TARGETS = [(arch, dtype) for arch in ARCHS for dtype in ("float16", "bfloat16")]
TARGETS += [("gfx1100", "float32"), ("gfx942", "float32")]
# Odd sizes: no tile is full, rows start anywhere, heads share K and V.
SIZES = {"batch": 2, "num_heads": 6, "num_kv_heads": 2, "seq_q": 37, "seq_k": 83, "head_dim": 40, "head_dim_v": 24}
CASES = {
    "plain": {},
    "causal": {"causal": True, "layout": "BSE"},
    "causal-more-queries": {"causal": True, "seq_q": 90, "seq_k": 31, "layout": "BHSD"},
    "window-sinks": {"window": (9, 3), "sinks": True},
    "bool-mask": {"mask": "bool", "mask_shape": (2, 1, 37, 83)},
    "column-mask": {"mask": "additive", "mask_shape": (1, 6, 37, 1), "num_kv_heads": 6},
    "wide-heads": {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 300, "head_dim_v": 130},
    "every-option": {
        "causal": True, "window": (30, 5), "mask": "additive", "mask_shape": (1, 1, 37, 83), "softcap": 2.0,
        "alibi": True, "sinks": True, "scale": -0.3,
    },
}  # fmt: skip


def run(device, config, inputs):
    """Run the standard path; return out as the caller holds it, and the LSE if the config wants it."""
    arrays = forward_arrays(device, config, inputs)
    arrays.run(standard_launches(config, device.arch, arrays.buffers))
    results = arrays.result("out"), arrays.result("lse") if config.return_lse else None
    arrays.free()
    return results


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_it_agrees_with_float64(standin, arch, dtype, case):
    """Out and LSE are within the error rule for every option, dtype and register layout; every check is silent."""
    config = AttentionConfig(**(SIZES | CASES[case]), dtype=dtype, return_lse=True)
    inputs = make_inputs(config)
    check = check_output(config, inputs, *run(standin(arch), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.mark.parametrize("seq_k", [1, 63, 64, 65, 1025, 4100])
def test_rows_of_any_length_agree_with_float64(standin, seq_k):
    """Tile edges, both softmax blocks, and rows too long for its registers."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=3, seq_k=seq_k, head_dim=8, dtype="float16", return_lse=True)
    inputs = make_inputs(config)
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


def test_tiny_probabilities_count_without_subnormals(standin):
    """gfx90a: with 20000 equal keys every probability is a subnormal f16; the output is still the mean of V."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=1, seq_k=20000, head_dim=8, dtype="float16", return_lse=True)
    inputs = make_inputs(config)
    inputs = dataclasses.replace(inputs, q=np.zeros_like(inputs.q), v=np.abs(inputs.v))
    out, _ = run(standin("gfx90a"), config, inputs)
    np.testing.assert_allclose(out[0, 0, 0], inputs.v[0, :, 0].astype(np.float64).mean(axis=0), rtol=4e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_mask_of_any_dtype_and_stride_is_read_right(standin, dtype):
    """Additive masks in q's dtype and in float32, along keys or across them, give the same as float64."""
    config = AttentionConfig(**SIZES | {"mask": "additive", "mask_shape": (1, 1, 37, 83)}, dtype=dtype)
    inputs = make_inputs(config)
    masks = [inputs.mask, inputs.mask.astype(np.float32), np.asfortranarray(inputs.mask[0, 0])[None, None]]
    for mask in masks:
        changed = dataclasses.replace(inputs, mask=mask)
        assert check_output(config, changed, *run(standin("gfx942"), config, changed)).ok


@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_a_hidden_key_has_no_influence_even_if_it_is_nan(standin, arch, dtype):
    """NaN and inf in K and V reach the rows that see the key, and no other."""
    config = AttentionConfig(**SIZES | {"seq_q": 70}, dtype=dtype, causal=True, window=(20, -1), return_lse=True)
    inputs = make_inputs(config)
    inputs.k[:, 50] = np.nan
    inputs.v[:, 50] = np.nan
    inputs.v[1, 60, :, 3] = np.inf
    out, lse = run(standin(arch), config, inputs)
    assert check_output(config, inputs, out, lse).ok
    sees = np.arange(70) + 83 - 70
    assert np.isnan(out[:, (sees >= 50) & (sees - 20 <= 50)]).all()
    clean = out[:, (sees < 50) | (sees - 20 > 60)]
    assert clean.size
    assert np.isfinite(clean).all()


def test_row_without_a_visible_key_has_lse_minus_infinity(standin):
    """More queries than keys under a causal mask, and no keys at all."""
    for seq_k in (5, 0):
        config = AttentionConfig(**SIZES | {"seq_k": seq_k}, dtype="bfloat16", causal=True, return_lse=True)
        out, lse = run(standin("gfx1201"), config, make_inputs(config))
        assert (out[:, : 37 - seq_k] == 0).all()
        assert (lse[:, :, : 37 - seq_k] == -np.inf).all()


@pytest.mark.parametrize("empty", ["batch", "seq_q", "head_dim_v", "head_dim"])
def test_a_size_of_zero_is_fine(standin, empty):
    """Kernels without work are not launched, the others give what the contract says."""
    config = AttentionConfig(**SIZES | {empty: 0}, dtype="float16", return_lse=True)
    inputs = make_inputs(config)
    expected = rocattn.attention(inputs.q, inputs.k, inputs.v, backend="cpu", **inputs.options(config))
    for got, want in zip(run(standin("gfx1100"), config, inputs), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_the_lse_is_optional(standin):
    """Without it the output has the same bits."""
    config = AttentionConfig(**SIZES, dtype="float16", return_lse=True)
    inputs = make_inputs(config)
    without, none = run(standin("gfx1100"), config.replace(return_lse=False), inputs)
    assert none is None
    np.testing.assert_array_equal(without, run(standin("gfx1100"), config, inputs)[0])


def test_all_five_kernels_run_in_order(standin):
    """Whatever the options: the path is what fused kernels are compared with."""
    config = AttentionConfig(**SIZES, dtype="float16")
    arrays = forward_arrays(standin("gfx942"), config, make_inputs(config))
    launches = standard_launches(config, "gfx942", arrays.buffers)
    arrays.free()
    assert [launch.kernel for launch in launches] == ["qk_matmul", "scale", "mask", "softmax", "pv_matmul"]


# The budgets in the kernels' headers.
VGPRS = {"qk_matmul": 216, "scale": 32, "mask": 64, "softmax": 64, "pv_matmul": 216}
LDS_BYTES = {"qk_matmul": 18432, "scale": 0, "mask": 0, "pv_matmul": 18432}
MATRIX = {"gfx90a": "v_mfma", "gfx942": "v_mfma", "gfx950": "v_mfma", "gfx1100": "v_wmma", "gfx1201": "v_wmma"}


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", ARCHS)
def test_every_variant_stays_within_its_budget(read_metadata, caplog, arch):
    """No warning, scratch or spill; VGPRs and LDS as the headers say; 16-byte accesses, no flat ones; matrix units.

    And the arguments that plans launch them with.
    """
    args = {(each.source, each.symbol): each.args for each in all_variants([arch])}
    for variant in variants(arch):
        code = compile_hip(variant.source, arch, defines=variant.defines)
        (kernel,) = read_metadata(code.data)["amdhsa.kernels"]
        assert argument_problem(*kernels_of(code.data), args[variant.source, variant.symbol]) == "", variant
        assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0), variant
        assert kernel[".private_segment_fixed_size"] == 0, variant
        assert kernel[".vgpr_count"] <= VGPRS[variant.kernel], variant
        assert kernel[".group_segment_fixed_size"] == LDS_BYTES.get(variant.kernel, kernel[".group_segment_fixed_size"])
        assert re.search(r"\tglobal_load_(dwordx4|b128)", code.assembly), variant
        assert re.search(r"\tglobal_store_(dwordx[24]|b(64|128))", code.assembly), variant
        assert not re.search(r"\tflat_(load|store)", code.assembly), variant
        matmul = variant.kernel in {"qk_matmul", "pv_matmul"} and variant.defines["DTYPE"] != "f32" and arch in MATRIX
        assert (MATRIX.get(arch, "v_mfma") in code.assembly) == matmul, variant
    assert caplog.records == []
