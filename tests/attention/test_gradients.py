"""Gradients are the derivative of what the contract defines: finite differences of the oracle say so."""

import numpy as np
import pytest

import rocattn
from rocattn.backend import support
from rocattn.backends import BACKENDS as BACKENDS_HERE
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError

from .oracle import attend
from .problems import BACKENDS, BFLOAT16, LAYOUTS, OPTION_NAMES, head_counts, heads_first, make, option_sets, stored
from .test_options import hiding

STEP = 1e-5
SIZES = {"batch": 1, "num_heads": 2, "seq_q": 5, "seq_k": 4, "head_dim": 8}


def run(dout, q, k, v, backend, layout="BHSD", **options):
    """(dq, dk, dv) as [B, heads, S, D], from the backend's own forward pass."""
    H, Hkv = q.shape[1], k.shape[1]
    arrays = [stored(x, layout) for x in (q, k, v)]
    options = {"layout": layout, "backend": backend, **head_counts(layout, H, Hkv), **options}
    out, lse = rocattn.attention(*arrays, return_lse=True, **options)
    gradients = rocattn.attention_backward(stored(dout, layout), *arrays, out, lse, **options)
    return [heads_first(x, layout, heads) for x, heads in zip(gradients, (H, Hkv, Hkv), strict=True)]


def run_both(dout, dlse, q, k, v, backend, **options):
    """(dq, dk, dv) where output and LSE have a gradient."""
    options |= {"layout": "BHSD", "backend": backend}
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    return rocattn.attention_backward(dout, q, k, v, out, lse, dlse, **options)


def upstream(q, v, seed=5):
    """A gradient of the output."""
    shape = (*q.shape[:3], v.shape[3])
    return np.random.default_rng(seed).standard_normal(shape).astype(q.dtype)


def differences(loss, tensors):
    """Central finite differences of a loss with respect to each tensor."""
    gradients = []
    for tensor in tensors:
        gradient = np.zeros_like(tensor)
        for at in np.ndindex(tensor.shape):
            kept = tensor[at]
            sums = []
            for moved in (kept + STEP, kept - STEP):
                tensor[at] = moved
                sums.append(loss(*tensors))
            tensor[at] = kept
            gradient[at] = (sums[0] - sums[1]) / (2 * STEP)
        gradients.append(gradient)
    return gradients


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_cpu_gradients_match_finite_differences(name):
    """Every option's gradients agree with central differences in float64, with rows that see nothing among them."""
    q, k, v = make(B=1, H=2, Hkv=1, Sq=5, Sk=4, D=3, Dv=2, dtype=np.float64)
    options = option_sets(1, 2, 5, 4)[name]
    dout = upstream(q, v)
    wanted = differences(
        lambda *tensors: float((attend(*tensors, **options)[0] * dout).sum()), [q.copy(), k.copy(), v.copy()]
    )
    for mine, theirs in zip(run(dout, q, k, v, "cpu", **options), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_the_gradient_of_the_lse_matches_finite_differences(name):
    """A loss on the LSE: what merges parts of a sequence (ring attention), or keeps logits small, trains by it."""
    q, k, v = make(B=1, H=2, Hkv=1, Sq=5, Sk=4, D=3, Dv=2, dtype=np.float64)
    options = option_sets(1, 2, 5, 4)[name]
    dout, dlse = upstream(q, v), np.random.default_rng(6).standard_normal((1, 2, 5)).astype(np.float32)

    def loss(*tensors):
        out, lse = attend(*tensors, **options)
        return float((out * dout).sum() + (np.where(np.isfinite(lse), lse, 0) * dlse).sum())

    wanted = differences(loss, [q.copy(), k.copy(), v.copy()])
    for mine, theirs in zip(run_both(dout, dlse, q, k, v, "cpu", **options), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "Sk"), [("plain", 149), ("all", 149), ("causal", 31)])  # 31: one block of keys
def test_the_gradient_of_the_lse_in_tiles(name, Sk, dtype):
    """cpu-flash's is that of float64, also where it sums P * dP itself; a strided one and zeros are as any."""
    q, k, v = make(B=1, H=4, Hkv=2, Sq=71, Sk=Sk, D=12, Dv=7, dtype=dtype)
    options = option_sets(1, 4, 71, Sk)[name]
    dout, dlse = upstream(q, v), np.random.default_rng(6).standard_normal((1, 4, 142)).astype(np.float32)[..., ::2]
    wide = [x.astype(np.float64) for x in (dout, q, k, v)]
    if options.get("mask") is not None and options["mask"].dtype != bool:
        options["mask"] = options["mask"].astype(np.float32)
    wanted = run_both(wide[0], dlse, *wide[1:], "cpu", **options)
    unit = {np.float32: 2.0**-16, np.float16: 2.0**-10}.get(dtype, 2.0**-7)
    for mine, theirs in zip(run_both(dout, dlse, q, k, v, "cpu-flash", **options), wanted, strict=True):
        assert np.abs(mine.astype(np.float64) - theirs).max() <= 3 * unit * np.abs(theirs).max()
    none = run_both(dout, None, q, k, v, "cpu-flash", **options)
    for mine, theirs in zip(run_both(dout, 0 * dlse, q, k, v, "cpu-flash", **options), none, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_backend_that_ignores_the_lse_gradient_is_not_asked():
    """A gradient is right or refused."""
    config = AttentionConfig(**SIZES, direction="backward", lse_gradient=True)
    answer = BACKENDS_HERE.supports(BACKENDS_HERE.get("gpu"), config)
    assert not answer
    assert support(BACKENDS_HERE.get("gpu"), config).reason == ("gpu has no gradient of the LSE: use cpu or cpu-flash")
    with pytest.raises(ConfigError, match="the forward pass takes no gradient"):
        AttentionConfig(**SIZES, lse_gradient=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPTION_NAMES)
def test_gradients_agree_with_float64(name, layout, backend):
    """Both backends' float32 gradients are the float64 ones, in every layout, over several tiles and odd sizes."""
    q, k, v = make(B=1, H=4, Hkv=2, Sq=71, Sk=149, D=12, Dv=7)
    options = option_sets(1, 4, 71, 149)[name]
    dout = upstream(q, v)
    wanted = run(*(x.astype(np.float64) for x in (dout, q, k, v)), "cpu", **options)
    for mine, theirs in zip(run(dout, q, k, v, backend, layout, **options), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("size", [(257, 257), (1, 251), (193, 1), (64, 65), (127, 700)], ids=str)
@pytest.mark.parametrize("name", ["plain", "causal", "window", "all"])
def test_flash_gradients_over_tile_edges(name, size):
    """cpu-flash's tiled backward equals cpu's, with sizes around its tiles."""
    Sq, Sk = size
    q, k, v = make(B=2, H=4, Hkv=1, Sq=Sq, Sk=Sk, D=9)
    options = option_sets(2, 4, Sq, Sk)[name]
    dout = upstream(q, v)
    for mine, theirs in zip(
        run(dout, q, k, v, "cpu-flash", **options), run(dout, q, k, v, "cpu", **options), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=["float16", "bfloat16"])
def test_half_precision_gradients_are_close(dtype, backend):
    """Gradients of half inputs are the float64 ones within a few units in the last place of their largest value."""
    q, k, v = make(Sq=23, Sk=131, D=20, dtype=dtype)
    dout = upstream(q, v)
    wanted = run(*(x.astype(np.float64) for x in (dout, q, k, v)), "cpu", causal=True)
    unit = 2.0 ** (-10 if dtype == np.float16 else -7)
    for mine, theirs in zip(run(dout, q, k, v, backend, causal=True), wanted, strict=True):
        assert mine.dtype == dtype
        assert np.abs(mine.astype(np.float64) - theirs).max() <= 2 * unit * np.abs(theirs).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_row_that_sees_nothing_is_zero(backend):
    """Rows without a visible key have dq 0 and add nothing to dk and dv."""
    q, k, v = make(Sq=9, Sk=4)
    dout = upstream(q, v)
    dq, dk, dv = run(dout, q, k, v, backend, causal=True)
    assert not dq[:, :, :5].any()
    dout[:, :, :5] = 0
    for mine, theirs in zip((dq, dk, dv), run(dout, q, k, v, backend, causal=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty", [{"B": 0}, {"Sq": 0}, {"Sk": 0}, {"D": 0}, {"Dv": 0}], ids="-".join)
def test_gradients_of_empty_problems_are_zero(empty, backend):
    """Sizes of 0 give gradients of the right shapes, all 0 where nothing flows."""
    q, k, v = make(**{"Sq": 5, "Sk": 3, "D": 4, "Dv": 4} | empty)
    gradients = run(upstream(q, v), q, k, v, backend)
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
    assert not any(x.any() for x in gradients[:2])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_nan_in_a_hidden_key_reaches_no_gradient(kind, poison, backend):
    """Poisoned keys that no row sees change neither dq nor the gradients of other keys; their own are 0."""
    q, k, v = make(Sq=19, Sk=23)
    options, dout = hiding(kind), upstream(q, v)
    clean = run(dout, q, k, v, backend, **options)
    for tensor in (k, v):
        tensor[:, :, 10:15] = poison
    for mine, theirs in zip(run(dout, q, k, v, backend, **options), clean, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not clean[1][:, :, 10:15].any()
    assert not clean[2][:, :, 10:15].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_in_a_seen_key_or_query_stays_with_its_rows(name, backend):
    """With causal, the last key's NaN spoils dq of the last row only; the first query's NaN, only keys it sees."""
    q, k, v = make(Sq=19, Sk=19)
    dout = upstream(q, v)
    clean = run(dout, q, k, v, backend, causal=True)
    {"q": q, "k": k, "v": v}[name][:, :, 0 if name == "q" else -1] = np.nan
    dq, dk, dv = run(dout, q, k, v, backend, causal=True)
    rows = slice(1, None) if name == "q" else slice(0, -1)
    np.testing.assert_allclose(dq[:, :, rows], clean[0][:, :, rows], rtol=1e-5, atol=1e-6)
    if name == "q":
        np.testing.assert_allclose(dk[:, :, 1:], clean[1][:, :, 1:], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dv[:, :, 1:], clean[2][:, :, 1:], rtol=1e-5, atol=1e-6)
        assert np.isnan(dk[:, :, 0]).all()
    else:
        assert not np.isfinite(dq[:, :, -1]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sink_of_minus_infinity_changes_no_gradient(backend):
    """No NaN comes of -inf, neither in rows that see nothing nor beside a head with a sink."""
    q, k, v = make(Sq=9, Sk=4, Hkv=4)
    dout = upstream(q, v)
    without = run(dout, q, k, v, backend, causal=True)
    full = run(dout, q, k, v, backend, causal=True, sinks=np.array([0, 1, 0, 2], np.float32))
    mixed = run(dout, q, k, v, backend, causal=True, sinks=np.array([-np.inf, 1, -np.inf, 2], np.float32))
    for mine, none, each in zip(mixed, without, full, strict=True):
        np.testing.assert_allclose(mine[:, ::2], none[:, ::2], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(mine[:, 1::2], each[:, 1::2], rtol=1e-6, atol=1e-7)
