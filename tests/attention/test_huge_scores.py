"""Scores of 1e8 to 1e31, equal over a row or far apart: their softmax is known exactly, whatever their size."""

import functools

import ml_dtypes
import numpy as np
import pytest

import rocattn
from rocattn.kv_cache import PagedKVCache
from rocattn.toolchain.host import host_isa

from .oracle import attend
from .problems import BACKENDS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = [(BFLOAT16, 1e8), (BFLOAT16, 1e10), (BFLOAT16, 1e20), (BFLOAT16, 1e31), (np.float32, 1e10), (np.float32, 1e31)]
SIZES += [(np.float16, 1e8), (np.float16, 3e9)]
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
# Name -> what differs from 4 heads of 67 queries and 131 keys.
SHAPES = {
    "plain": {},
    "causal": {"causal": True, "Sq": 70, "Sk": 150},
    "window": {"window": (20, 5)},
    "padded": {"mask": np.arange(131)[None, None, None] < 90},
    "masked": {"mask": np.where(np.arange(67 * 131).reshape(1, 1, 67, 131) % 7 < 5, 0, -np.inf).astype(np.float32)},
    "softcap": {"softcap": 15.0},
    "grouped, with sinks": {"Hkv": 2, "sinks": np.array([0.5, -1, 2, 0], np.float32)},
    "decode": {"Hkv": 1, "Sq": 1, "Sk": 1500},
    "decode, causal": {"Sq": 2, "Sk": 301, "causal": True},
    "keys in parts": {"H": 2, "Hkv": 1, "Sq": 5, "Sk": 2200},
}


def problem(dtype, size, *, H=4, Hkv=4, Sq=67, Sk=131, D=64, stepped=True):
    """q, k, v [B, H or Hkv, S, D] with scores of +-0.7 to 1.3 times a size in each row.

    They are products of the first feature alone. If stepped, those of every third key are larger than the others'.
    """
    rng = np.random.default_rng(3)
    q, k, v = np.zeros((1, H, Sq, D)), rng.standard_normal((1, Hkv, Sk, D)), rng.standard_normal((1, Hkv, Sk, D))
    first = 2.0**15 if dtype == np.float16 else 1.0  # what keeps q in its range
    k[..., 0] = first
    if stepped:
        k[:, :, 2::3, 0] = first * (1 + 2.0**-6)
    q[..., 0] = size * D**0.5 / first * rng.uniform(0.7, 1.3, (1, H, Sq)) * rng.choice([-1, 1], (1, H, Sq))
    if dtype == np.float16:
        q = np.clip(q, -65504, 65504)
    return tuple(x.astype(dtype) for x in (q, k, v))


def parts(name):
    """The sizes and the options of a shape."""
    options = dict(SHAPES[name])
    return {key: options.pop(key) for key in ("H", "Hkv", "Sq", "Sk") if key in options}, options


@functools.cache
def exact(name, dtype, size, stepped):
    """(q, k, v), and the out and lse of a shape: for every backend alike."""
    sizes, options = parts(name)
    given = problem(dtype, size, stepped=stepped, **sizes)
    return given, attend(*given, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_huge_scores_have_the_softmax_of_their_differences(name, backend):
    """No NaN, no weight that vanished: equal scores share the probability, and the largest take it all."""
    _, options = parts(name)
    for dtype, size in SIZES:
        for stepped in (False, True):
            (q, k, v), (wanted, wanted_lse) = exact(name, dtype, size, stepped)
            out, lse = rocattn.attention(q, k, v, layout="BHSD", return_lse=True, backend=backend, **options)
            label = f"{np.dtype(dtype).name}, {size:g}, stepped {stepped}"
            np.testing.assert_allclose(
                out.astype(np.float64), wanted, atol=TOLERANCE[np.dtype(dtype).name], err_msg=label
            )
            np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6, atol=1e-4, err_msg=label)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("Sq", [1, 33])
def test_equal_queries_and_keys_give_the_mean_of_the_values(Sq, backend):
    """All elements of q and k are one number, so that every product and sum is exact in float32."""
    rng = np.random.default_rng(4)
    v = rng.standard_normal((1, 1, 528, 64)).astype(BFLOAT16)
    for number in (2.0**13, 3 * 2.0**15, 2.0**30, 2.0**50):
        q, k = (np.full((1, 1, rows, 64), number, BFLOAT16) for rows in (Sq, 528))
        out = rocattn.attention(q, k, v, layout="BHSD", backend=backend)
        mean = v.astype(np.float64).mean(axis=2, keepdims=True)
        np.testing.assert_allclose(out.astype(np.float64), np.broadcast_to(mean, out.shape), atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("Sq", [1, 20])
def test_neighbouring_scores_keep_their_distance(Sq, backend):
    """2^25 and the next number of float32 are 4 apart: the exact product of each with log2(e) decides.

    For 16-bit inputs, whose products are exact; a kernel may multiply float32 ones by the scale first.
    """
    if backend == "cpu-flash" and host_isa() == "portable":
        pytest.skip("this CPU rounds a product before it adds to it")
    rng = np.random.default_rng(5)
    v = rng.standard_normal((1, 1, 300, 64))
    odd, late = np.arange(300) % 2, np.arange(300) >= 256  # a range of its own, where few rows see many keys
    # The last: 56 * 2^50 and the next number have one product with log2(e) in float32, and are 2^32 apart.
    for power, step, number, above in ((20, 4, 32, odd), (20, 4, 32, odd * ~late), (50, 2**32, 56, late)):
        q, k = np.zeros((1, 1, Sq, 64)), np.zeros((1, 1, 300, 64))
        q[..., 0], q[..., 1] = 2.0**power, step
        k[..., 0], k[..., 1] = number, above
        given = [x.astype(BFLOAT16) for x in (q, k, v)]
        out = rocattn.attention(*given, layout="BHSD", scale=1.0, backend=backend)
        wanted, _ = attend(*given, scale=1.0)
        np.testing.assert_allclose(out.astype(np.float64), wanted, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_huge_scores_are_those_of_float64(name, backend):
    """A probability recomputed from the LSE alone would be off by the LSE's spacing: 1024 at 1e10."""
    sizes, options = parts(name)
    for dtype, size in SIZES:
        if dtype == np.float16 and size > 1e9:
            continue  # dk is beyond float16
        for stepped in (False, True):
            q, k, v = problem(dtype, size, stepped=stepped, **sizes)
            dout = np.random.default_rng(6).standard_normal(q.shape).astype(dtype)
            out, lse = rocattn.attention(q, k, v, layout="BHSD", return_lse=True, backend=backend, **options)
            found = rocattn.attention_backward(dout, q, k, v, out, lse, layout="BHSD", backend=backend, **options)
            wide = [x.astype(np.float64) for x in (dout, q, k, v, out)]
            wanted = rocattn.attention_backward(*wide, lse, layout="BHSD", backend="cpu", **options)
            for tensor, mine, exact in zip(("dq", "dk", "dv"), found, wanted, strict=True):
                features = slice(1, None) if tensor == "dq" else slice(None)  # that of the scores is a sum to 0
                got, right = mine.astype(np.float64)[..., features], exact[..., features]
                assert np.isfinite(mine.astype(np.float64)).all(), f"{tensor}, {np.dtype(dtype).name}, {size:g}"
                np.testing.assert_allclose(
                    got, right, atol=max(1e-30, np.abs(right).max()) * TOLERANCE[np.dtype(dtype).name],
                    err_msg=f"{tensor}, {np.dtype(dtype).name}, {size:g}, stepped {stepped}",
                )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_a_paged_cache_are_weighted_by_their_keys(backend):
    """Not by LSEs that have no room for the logarithm of how many keys there were: the parts are 16, 32 and 23 keys."""
    for dtype, size in ((BFLOAT16, 1e6), (BFLOAT16, 1e20), (np.float16, 1e8), (np.float32, 1e10)):
        q, k, v = (x.swapaxes(1, 2) for x in problem(dtype, size, H=2, Hkv=1, Sq=3, Sk=71))
        cache = PagedKVCache(2, 1, 64, num_blocks=12, block_size=16, dtype=dtype)
        for start, end in ((0, 16), (16, 48), (48, 71)):  # the second sequence takes the blocks between
            cache.append(k[:, start:end], v[:, start:end], sequence=0)
            cache.append(k[:, :16], v[:, :16], sequence=1)
        found = cache.attend(np.concatenate([q, q]), causal=True, backend=backend)[:1]
        wanted, _ = attend(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=True)
        np.testing.assert_allclose(
            found.astype(np.float64).swapaxes(1, 2), wanted, atol=TOLERANCE[np.dtype(dtype).name]
        )
