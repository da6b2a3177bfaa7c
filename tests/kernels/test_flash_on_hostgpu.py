"""The flash kernels executed by the stand-in GPU, with all of its checks, against float64.

Every array stands in memory of its own with NaN after each row, and outputs start as NaN (`launching.Arrays`); rows of
the output without a visible key must be exactly 0, and their LSE -inf (`check_output`).
"""

import ctypes
import dataclasses

import numpy as np
import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.flash import flash_launches, split_prefill, uses_decode
from rocattn_profiling.workloads.accuracy import check_output
from rocattn_profiling.workloads.inputs import make_inputs

from ..host_compilers import building_with, each_compiler
from ..hostgpu.standin import StandIn
from .launching import forward_arrays

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
# Every register layout; bf16 where its conversions differ; the vector units on waves of 32 and 64.
TARGETS = [(arch, "float16") for arch in ARCHS]
TARGETS += [("gfx1100", "bfloat16"), ("gfx942", "bfloat16"), ("gfx1100", "float32"), ("gfx942", "float32")]
# Odd sizes: no tile is full, heads share K and V, columns are padded. Two blocks of rows, several key tiles.
SIZES = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "seq_q": 67, "seq_k": 109, "head_dim": 40, "head_dim_v": 56}
CASES = {
    "plain": {},
    "causal": {"causal": True, "layout": "BSE"},
    "causal-more-queries-than-keys": {"causal": True, "seq_q": 109, "seq_k": 67, "layout": "BHSD"},
    "window-sinks": {"window": (20, 3), "sinks": True},
    "bool-mask": {"mask": "bool", "mask_shape": (2, 1, 67, 109)},
    "additive-mask-one-for-all-keys": {"mask": "additive", "mask_shape": (2, 1, 67, 1)},
    "every-option": {
        "causal": True, "window": (30, 5), "mask": "additive", "mask_shape": (1, 4, 67, 109), "softcap": 2.0,
        "alibi": True, "sinks": True, "scale": -0.3,
    },
    "dropout": {"dropout_p": 0.3, "window": (90, 20)},
    "decode": {"seq_q": 3, "seq_k": 530, "causal": True, "alibi": True},
    "decode-sinks-window": {"seq_q": 1, "seq_k": 600, "window": (300, 0), "sinks": True, "layout": "BHSD"},
    "decode-single-split": {"seq_q": 2, "seq_k": 600, "window": (90, 0), "sinks": True, "head_dim_v": 54},
}  # fmt: skip
# Compiled head dimensions, without padding: every tile of the table, on one architecture each.
DIMS = [
    ("gfx1100", "float16", 128, 128), ("gfx1201", "bfloat16", 128, 64), ("gfx942", "float16", 96, 128),
    ("gfx950", "bfloat16", 80, 80), ("gfx90a", "float16", 256, 32), ("gfx1100", "bfloat16", 192, 256),
    ("gfx1030", "float16", 32, 160), ("gfx1201", "float16", 32, 32), ("gfx950", "float16", 128, 128),
]  # fmt: skip
# Head dimensions that are no multiple of 16 bytes; a row of one element; D and Dv that share only a factor of 1.
UNEVEN = [
    ("gfx1100", "float16", 63, 33), ("gfx1201", "float16", 90, 50), ("gfx942", "bfloat16", 100, 36),
    ("gfx90a", "float32", 63, 22), ("gfx1100", "float16", 1, 3), ("gfx950", "float16", 64, 77),
    ("gfx1030", "float16", 130, 6), ("gfx942", "float16", 33, 20),
]  # fmt: skip


def run(device, config, inputs):
    """Run a forward pass; return out as the caller holds it, and the LSE."""
    arrays = forward_arrays(device, config, inputs)
    arrays.run(flash_launches(config, device.arch, arrays.buffers))
    results = arrays.result("out"), arrays.result("lse")
    arrays.free()
    return results


def problem(dtype, **changes):
    """A config of `SIZES` that wants the LSE, and seeded inputs."""
    config = AttentionConfig(**SIZES | changes, dtype=dtype, return_lse=True)
    return config, make_inputs(config)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_it_agrees_with_float64(standin, arch, dtype, case):
    """Out and LSE are within the error rule for every kernel, option and register layout; every check is silent."""
    config, inputs = problem(dtype, **CASES[case])
    check = check_output(config, inputs, *run(standin(arch), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@each_compiler
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_the_stand_in_of_each_compiler_agrees_with_float64(tmp_path, kernel_cache, level, compiler):
    """Its library, which runs the kernels' lanes and does what only a GPU's instructions do, and checks it."""
    with building_with(compiler, level):
        device = StandIn(tmp_path, "gfx1100")
    config, inputs = problem("float16", **CASES["every-option"])
    check = check_output(config, inputs, *run(device, config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.mark.parametrize(("arch", "dtype", "head_dim", "head_dim_v"), DIMS)
def test_every_head_dimension_agrees_with_float64(standin, arch, dtype, head_dim, head_dim_v):
    """Tiles of all widths, D and Dv alike or not, give what float64 gives."""
    config, inputs = problem(dtype, batch=1, num_heads=1, num_kv_heads=1, head_dim=head_dim, head_dim_v=head_dim_v,
                             causal=True)  # fmt: skip
    assert check_output(config, inputs, *run(standin(arch), config, inputs)).ok


def test_columns_beyond_the_head_dimension_are_zeros(standin):
    """gfx950 multiplies 32 columns at a time: for D = 80 there are 16 in LDS that no row of K fills."""
    config, inputs = problem("float16", seq_q=1, seq_k=530, head_dim=80)
    assert check_output(config, inputs, *run(standin("gfx950"), config, inputs)).ok


@pytest.mark.parametrize("changes", [
    {"causal": True}, {"mask": "bool", "mask_shape": (1, 1, 67, 109), "softcap": 3.0}, {"seq_q": 3, "seq_k": 530},
], ids=["causal", "options", "decode"])  # fmt: skip
@pytest.mark.parametrize(("arch", "dtype", "head_dim", "head_dim_v"), UNEVEN)
def test_uneven_head_dimensions_agree_with_float64(standin, arch, dtype, head_dim, head_dim_v, changes):
    """Rows loaded in pieces of 1, 2 and 4 elements: no column too many, none too few, nothing read beyond a row."""
    config, inputs = problem(dtype, batch=1, num_heads=1, num_kv_heads=1, head_dim=head_dim, head_dim_v=head_dim_v,
                             **changes)  # fmt: skip
    assert check_output(config, inputs, *run(standin(arch), config, inputs)).ok


@pytest.mark.parametrize(("head_dim", "head_dim_v", "changes"), [
    (576, 512, {"num_heads": 20, "seq_q": 1, "seq_k": 1100, "sinks": True}), (576, 512, {"causal": True}),
    (320, 320, {"seq_q": 3, "seq_k": 530, "alibi": True}), (301, 277, {"window": (20, 5), "softcap": 5.0}),
    (540, 530, {"causal": True}), (64, 576, {}),
], ids=["latent decode", "latent prompt", "320", "301", "540", "wide v"])  # fmt: skip
@pytest.mark.parametrize("arch", ["gfx1100", "gfx942", "gfx90a", "gfx950", "gfx1201"])
def test_wide_heads_agree_with_float64(standin, arch, head_dim, head_dim_v, changes):
    """Up to 576: v's features in parts of at most 256, each with the scores of all of q and k; one LSE."""
    config, inputs = problem("float16", **{"batch": 2, "num_heads": 2, "num_kv_heads": 1} | changes,
                             head_dim=head_dim, head_dim_v=head_dim_v)  # fmt: skip
    assert check_output(config, inputs, *run(standin(arch), config, inputs)).ok


@pytest.mark.parametrize("seq_k", [0, 1, 31, 32, 33, 64])
@pytest.mark.parametrize("seq_q", [1, 64, 65])
def test_tile_edges_agree_with_float64(standin, seq_q, seq_k):
    """Key counts on both sides of a tile's, none at all, and rows on both sides of a block's."""
    config, inputs = problem("float16", batch=1, num_heads=1, num_kv_heads=1, seq_q=seq_q, seq_k=seq_k)
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_growing_scores_agree_with_float64(standin, arch):
    """Scores that grow from tile to tile, by little and by much, move the reference every time it must."""
    config, inputs = problem("float16", num_heads=2, num_kv_heads=2, seq_k=200)
    ramp = np.linspace(0.05, 12, config.seq_k, dtype=np.float32)[None, :, None, None]
    inputs = dataclasses.replace(inputs, k=(inputs.k * ramp).astype(inputs.k.dtype))
    assert check_output(config, inputs, *run(standin(arch), config, inputs)).ok


# Heads and tokens: two, four and eight waves, or half as many with two fragments each; two blocks of rows.
ROWS = [(arch, dtype, heads, tokens, 40) for arch, dtype in (*TARGETS[:6], ("gfx942", "float32"))
        for heads, tokens in ((4, 6), (11, 5), (71, 1))] + [("gfx1030", "float16", 71, 1, 128)]  # fmt: skip


@pytest.mark.parametrize(("arch", "dtype", "heads", "tokens", "head_dim"), ROWS)
def test_rows_that_share_a_kv_head_agree_with_float64(standin, arch, dtype, heads, tokens, head_dim):
    """Multi-query attention and speculative tokens: one read of K and V for all rows of a block."""
    config, inputs = problem(dtype, batch=1, num_heads=heads, num_kv_heads=1, seq_q=tokens, seq_k=520, causal=True,
                             head_dim=head_dim)  # fmt: skip
    assert uses_decode(config)
    check = check_output(config, inputs, *run(standin(arch), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_split_prefill_agrees_with_float64(standin, arch):
    """A chunk of a prompt against many keys, causal, with sinks: splits and their combination."""
    config, inputs = problem("float16", batch=1, num_heads=1, num_kv_heads=1, seq_q=40, seq_k=1700, causal=True,
                             sinks=True)  # fmt: skip
    assert split_prefill(config, arch, 40)
    assert check_output(config, inputs, *run(standin(arch), config, inputs)).ok


@pytest.mark.parametrize(("arch", "seq_k", "head_dim_v", "splits"), [
    ("gfx1100", 4600, 160, 36), ("gfx942", 9213, 128, 72), ("gfx1201", 16890, 8, 132),
])  # fmt: skip
def test_many_splits_agree_with_float64(standin, arch, seq_k, head_dim_v, splits):
    """Whole batches of splits and a last one, two rounds of columns, and more splits than a block has threads."""
    config, inputs = problem(
        "float16", batch=1, num_heads=2, num_kv_heads=1, seq_q=1, seq_k=seq_k, head_dim=16, head_dim_v=head_dim_v,
        sinks=True,
    )  # fmt: skip
    arrays = forward_arrays(standin(arch), config, inputs)
    launches = flash_launches(config, arch, arrays.buffers)
    assert launches[0].grid == (splits, 1, 1)
    arrays.run(launches)
    check = check_output(config, inputs, arrays.result("out"), arrays.result("lse"))
    arrays.free()
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


FLAT = {
    "plain": {}, "below": {"sign": -1}, "causal": {"causal": True}, "late": {"first": 70}, "some-rows": {"rows": 3},
    "options": {"mask": "bool", "mask_shape": (2, 1, 67, 109), "window": (50, 30), "sinks": True},
    # Splits that see few keys and many, and one that sees none.
    "decode": {"seq_q": 1, "seq_k": 1030, "window": (530, 0)},
    "decode-causal": {"seq_q": 3, "seq_k": 514, "causal": True, "sinks": True},
}  # fmt: skip


@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize(("arch", "dtype"), TARGETS)
def test_equal_scores_have_equal_weights_however_large_they_are(standin, arch, dtype, case):
    """1e8 (float16), 1e12 and more: float32 steps there by more than exponents span, and an LSE holds no sum."""
    fields = dict(FLAT[case])
    sign, first, rows = fields.pop("sign", 1), fields.pop("first", 0), fields.pop("rows", 1)
    config, inputs = problem(dtype, num_heads=2, num_kv_heads=1, head_dim=64, head_dim_v=64, **fields)
    ramp = np.linspace(0.2, 1, config.head_dim) * (6e4 if dtype == "float16" else 1e10)
    q, k = inputs.q.copy(), inputs.k.copy()
    q[:, ::rows], k[:, first:] = ramp.astype(q.dtype), (sign * ramp).astype(k.dtype)
    inputs = dataclasses.replace(inputs, q=q, k=k)
    check = check_output(config, inputs, *run(standin(arch), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


def with_poison(inputs, key, value):
    """The same inputs, but the K row of `key` is `value`, and so is feature 5 of its V row."""
    k, v = inputs.k.copy(), inputs.v.copy()
    k[:, key], v[:, key, :, 5] = value, value
    return dataclasses.replace(inputs, k=k, v=v)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("changes", [
    {"causal": True},
    {"window": (10, 4)},
    {"mask": "bool", "mask_shape": (1, 1, 67, 109)},
    {"seq_q": 3, "seq_k": 530, "causal": True},
], ids=["causal", "window", "mask", "decode"])  # fmt: skip
@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_hidden_key_never_leaks(standin, arch, changes, value):
    """Rows that do not see a poisoned key are bit for bit what they were; rows that see it are not finite."""
    check_poison(standin(arch), value, **changes)


def test_a_hidden_key_never_leaks_from_fragments(standin):
    """The values that a wave loads without LDS, where it is a block of its own and D is that of its tile."""
    check_poison(standin("gfx942"), np.nan, seq_q=3, seq_k=530, causal=True, head_dim=64, head_dim_v=64)


def check_poison(device, value, **changes):
    """Hold a problem's rows to what they were but where they see a poisoned key."""
    config, inputs = problem("float16", **changes)
    key = config.seq_k - 2
    visible = visible_rows(config, inputs, key)
    assert 0 < visible.sum() < config.seq_q
    before, after = run(device, config, inputs), run(device, config, with_poison(inputs, key, value))
    np.testing.assert_array_equal(after[0][:, ~visible], before[0][:, ~visible])
    np.testing.assert_array_equal(after[1][:, :, ~visible], before[1][:, :, ~visible])
    assert not np.isfinite(after[0][:, visible].astype(np.float32)).all(axis=(0, 2, 3)).any()


# On gfx950, which alone has V in LDS as in memory, the key is in a thread's second row.
@pytest.mark.parametrize(
    ("arch", "back"), [("gfx1100", 20), ("gfx1201", 20), ("gfx942", 20), ("gfx1030", 20), ("gfx950", 10)]
)
def test_infinite_value_reaches_only_rows_that_see_its_key(standin, arch, back):
    """V alone is infinite at one feature: rows that see the key become that infinity there and nowhere else."""
    config, inputs = problem("float16", causal=True)
    key = config.seq_k - back
    v = inputs.v.copy()
    v[:, key, :, 5], v[:, key, :, 6] = -np.inf, np.nan
    visible = visible_rows(config, inputs, key)
    before, _ = run(standin(arch), config, inputs)
    after, _ = run(standin(arch), config, dataclasses.replace(inputs, v=v))
    assert (after[:, visible, :, 5] == -np.inf).all()
    assert np.isnan(after[:, visible, :, 6]).all()
    after[:, visible, :, 5:7] = before[:, visible, :, 5:7]
    np.testing.assert_array_equal(after, before)


def test_rows_may_descend(standin):
    """K and V with negative strides, as a reversed array has them."""
    config, inputs = problem("float16", layout="BHSD")
    arrays = forward_arrays(standin("gfx1100"), config, inputs)
    begins = {}
    for name in ("k", "v"):
        memory = np.ascontiguousarray(getattr(inputs, name)[:, :, ::-1])
        arrays.device.free(arrays.pointers[name])
        arrays.add_view(name, memory, memory[:, :, ::-1])
        begins[name] = arrays.pointers[name]
        last_row = (config.seq_k - 1) * memory.strides[2]
        arrays.pointers[name] = ctypes.c_void_p(begins[name].value + last_row)
    arrays.run(flash_launches(config, "gfx1100", arrays.buffers))
    assert check_output(config, inputs, arrays.result("out"), arrays.result("lse")).ok
    arrays.pointers |= begins
    arrays.free()


def test_a_split_without_a_visible_key_adds_nothing(standin):
    """A mask may hide all keys of a split from all of its rows: its part is 0, not 0 / 0. Each head has its own."""
    config, inputs = problem("float16", seq_q=3, seq_k=600, mask="bool", mask_shape=(2, 4, 3, 600))
    mask = np.zeros_like(inputs.mask)
    mask[..., 500:] = True
    mask[0, 1, :, 480:], mask[1, 2, 1, 520:] = True, False
    inputs = dataclasses.replace(inputs, mask=mask)
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


def test_decode_has_slopes_for_each_batch(standin):
    """[B, H] slopes: the second batch falls off a quarter as steeply as the first."""
    config, inputs = problem("float16", seq_q=3, seq_k=530, alibi=True)
    slopes = inputs.alibi_slopes * np.float32([[1], [0.25]])
    inputs = dataclasses.replace(inputs, alibi_slopes=slopes)
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


def test_decode_without_an_lse_writes_none(standin):
    """Nobody gave room for it: a store to it would be to address 0. The window leaves keys for one split."""
    config = AttentionConfig(**SIZES | {"seq_q": 2, "seq_k": 600}, window=(90, 0), dtype="float16")
    inputs = make_inputs(config)
    arrays = forward_arrays(standin("gfx1100"), config, inputs)
    arrays.run(flash_launches(config, "gfx1100", arrays.buffers))
    assert check_output(config, inputs, arrays.result("out"), None).ok
    arrays.free()


@pytest.mark.parametrize("window", [None, (90, 0)], ids=["splits", "one split"])
def test_decode_multiplies_by_the_scales_of_8_bits(standin, window):
    """K and V of 8 bits with a factor for each batch and KV head, in a part of the keys and in all of them."""
    config, inputs = problem("float16", seq_q=2, seq_k=600, window=window, kv_dtype="float8_e4m3fn", k_scale=True,
                             v_scale=True)  # fmt: skip
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


def test_a_score_of_minus_infinity_weighs_nothing(standin):
    """A visible key that is infinite where q is below 0: columns beyond D = 40 are zeros, not copies of that one."""
    config, inputs = problem("float16")
    q, k = inputs.q.copy(), inputs.k.copy()
    q[..., 0], k[:, 50, :, 0] = -1, np.inf
    inputs = dataclasses.replace(inputs, q=q, k=k)
    assert check_output(config, inputs, *run(standin("gfx1100"), config, inputs)).ok


def visible_rows(config, inputs, key):
    """Which rows see a key (of a config whose mask is the same for all batches and heads)."""
    row = np.arange(config.seq_q)
    seen = np.ones(config.seq_q, bool)
    if config.band is not None:
        left, right = config.band
        ahead = key - (row + config.seq_k - config.seq_q)
        seen &= (left < 0) | (-ahead <= left)
        seen &= (right < 0) | (ahead <= right)
    return seen & inputs.mask[0, 0, :, key] if config.mask == "bool" else seen


@pytest.mark.parametrize("softcap", [None, 50.0])
def test_small_weights_count_without_subnormals(standin, softcap):
    """gfx90a: 20000 keys that weigh 2^-15 of the first one's weight, together more than half of the output."""
    config, inputs = problem(
        "float16", batch=1, num_heads=1, num_kv_heads=1, seq_q=33, seq_k=20000, head_dim=8, head_dim_v=8, scale=1.0,
        softcap=softcap,
    )  # fmt: skip
    q, k, v = np.zeros_like(inputs.q), np.zeros_like(inputs.k), np.ones_like(inputs.v)
    q[..., 0], k[:, 0, :, 0] = 1, 15 * np.log(2)
    v[:, 0] = 0
    out, _ = run(standin("gfx90a"), config, dataclasses.replace(inputs, q=q, k=k, v=v))
    first = float(k[0, 0, 0, 0]) if softcap is None else softcap * np.tanh(float(k[0, 0, 0, 0]) / softcap)
    np.testing.assert_allclose(out.astype(np.float64), 19999 / (19999 + np.exp(first)), rtol=2e-3)
