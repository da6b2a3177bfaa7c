"""The staggered waves of prefill on gfx950: tiles that waves skip, mask and share, under the race detector."""

import dataclasses

import numpy as np
import pytest

from rocattn_profiling.workloads.accuracy import check_output

from .test_flash_on_hostgpu import problem, run, visible_rows, with_poison

# Tiles have 64 keys, blocks 256 rows, waves 32: from no tile to more than the three that LDS holds.
SIZES = {
    "no-key": {"seq_q": 40, "seq_k": 0},
    "one-short-tile": {"seq_q": 300, "seq_k": 5},
    "one-tile": {"seq_q": 256, "seq_k": 64},
    "two-tiles": {"seq_q": 256, "seq_k": 128},
    "three-tiles-and-a-key": {"seq_q": 33, "seq_k": 193},
    "many-tiles": {"seq_q": 100, "seq_k": 64 * 9 - 1},
}
CAUSAL = {
    "square": {"seq_q": 300, "seq_k": 300},
    "more-queries-than-keys": {"seq_q": 290, "seq_k": 70},
    "more-keys-than-queries": {"seq_q": 270, "seq_k": 530},
    "a-wave-a-tile": {"seq_q": 256, "seq_k": 512},
}
FEW = {"batch": 1, "num_heads": 2, "num_kv_heads": 1}


def wide(dtype="float16", head_dim=128, **changes):
    """A problem of compiled head dimensions, which the staggered kernels take."""
    return problem(dtype, head_dim=head_dim, head_dim_v=head_dim, **FEW, **changes)


@pytest.mark.parametrize(("dtype", "head_dim"), [("float16", 128), ("bfloat16", 128), ("float16", 96)])
@pytest.mark.parametrize("size", [*SIZES, *CAUSAL])
def test_it_agrees_with_float64(standin, size, dtype, head_dim):
    """Waves that skip tiles still meet every barrier, and no tile is overwritten before all have read it."""
    changes = SIZES[size] if size in SIZES else CAUSAL[size] | {"causal": True}
    config, inputs = wide(dtype, head_dim, **changes)
    check = check_output(config, inputs, *run(standin("gfx950"), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.mark.parametrize("causal", [False, True])
def test_products_that_start_anew_agree_with_float64(standin, causal):
    """Scores so large that the block goes through all tiles again."""
    config, inputs = wide(seq_q=260, seq_k=330, causal=causal)
    ramp = np.linspace(0.2, 1, 128) * 6e4
    q, k = inputs.q.copy(), inputs.k.copy()
    q[:, ::3], k[:, 200:] = ramp.astype(q.dtype), ramp.astype(k.dtype)
    inputs = dataclasses.replace(inputs, q=q, k=k)
    check = check_output(config, inputs, *run(standin("gfx950"), config, inputs))
    assert check.ok, f"{check.what} is {check.ratio:.3g} x the allowed error"


@pytest.fixture(scope="module")
def finite(standin):
    """A causal problem, and what is computed of it while all of K and V are finite."""
    config, inputs = wide(seq_q=300, seq_k=350, causal=True)
    return config, inputs, run(standin("gfx950"), config, inputs)


@pytest.mark.parametrize("back", [2, 40, 70, 130, 200])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_hidden_key_never_leaks(standin, finite, back, value):
    """What a hidden key's K and V hold changes no bit of the rows that do not see it."""
    config, inputs, before = finite
    key = config.seq_k - back
    visible = visible_rows(config, inputs, key)
    after = run(standin("gfx950"), config, with_poison(inputs, key, value))
    np.testing.assert_array_equal(after[0][:, ~visible], before[0][:, ~visible])
    np.testing.assert_array_equal(after[1][:, :, ~visible], before[1][:, :, ~visible])
    assert not np.isfinite(after[0][:, visible].astype(np.float32)).all(axis=(0, 2, 3)).any()


@pytest.mark.parametrize("back", [2, 40, 70, 130, 200])
def test_an_infinite_value_reaches_only_rows_that_see_its_key(standin, finite, back):
    """The early waves clear V for all, and leave notes that the late ones read half a tile later."""
    config, inputs, (before, _) = finite
    key = config.seq_k - back
    v = inputs.v.copy()
    v[:, key, :, 5], v[:, key, :, 6] = -np.inf, np.nan
    visible = visible_rows(config, inputs, key)
    after, _ = run(standin("gfx950"), config, dataclasses.replace(inputs, v=v))
    assert (after[:, visible, :, 5] == -np.inf).all()
    assert np.isnan(after[:, visible, :, 6]).all()
    after[:, visible, :, 5:7] = before[:, visible, :, 5:7]
    np.testing.assert_array_equal(after, before)
