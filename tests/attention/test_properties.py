"""Identities that hold for any problem, on examples that hypothesis makes (always the same ones)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rocattn

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=20)
SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)
BACKEND = st.sampled_from(["cpu", "cpu-flash"])
WINDOWS = st.none() | st.tuples(st.integers(-1, 20), st.integers(-1, 20))


def arrays(seed, H, Hkv, Sq, Sk, D, Dv):
    """q, k, v as [1, H, S, D]."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in ((1, H, Sq, D), (1, Hkv, Sk, D), (1, Hkv, Sk, Dv))]


def attend(q, k, v, backend, **options):
    """(out, lse)."""
    return rocattn.attention(q, k, v, layout="BHSD", return_lse=True, backend=backend, **options)


def close(a, b, tolerance=2e-5):
    """Equal within float32's rounding."""
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@FIXED
@given(
    seed=SEEDS, sq=SIZES, sk=SIZES, d=SIZES, dv=SIZES, kv=st.integers(1, 3), group=st.integers(1, 3),
    causal=st.booleans(), window=WINDOWS, softcap=st.none() | st.floats(0.5, 20),
)  # fmt: skip
def test_backends_agree(seed, sq, sk, d, dv, kv, group, causal, window, softcap):
    """cpu and cpu-flash give the same output, LSE and gradients."""
    q, k, v = arrays(seed, kv * group, kv, sq, sk, d, dv)
    options = {"causal": causal, "window": window, "softcap": softcap}
    results = {}
    for backend in ("cpu", "cpu-flash"):
        out, lse = attend(q, k, v, backend, **options)
        dout = np.ones_like(out)
        gradients = rocattn.attention_backward(dout, q, k, v, out, lse, layout="BHSD", backend=backend, **options)
        results[backend] = (out, lse, *gradients)
    for mine, theirs in zip(*results.values(), strict=True):
        close(mine, theirs, 1e-4)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=SIZES, group=st.integers(1, 4), backend=BACKEND)
def test_grouped_heads_equal_repeated_ones(seed, sq, sk, group, backend):
    """GQA is attention with K and V repeated for each query head of the group."""
    q, k, v = arrays(seed, 2 * group, 2, sq, sk, 8, 5)
    grouped = attend(q, k, v, backend, causal=True)
    repeated = attend(q, np.repeat(k, group, 1), np.repeat(v, group, 1), backend, causal=True)
    for mine, theirs in zip(grouped, repeated, strict=True):
        close(mine, theirs)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=st.integers(2, 40), data=st.data(), backend=BACKEND)
def test_two_halves_of_the_keys_merge_by_their_lse(seed, sq, sk, data, backend):
    """Attention over all keys is the LSE-weighted mean of attention over two parts (split-KV)."""
    cut = data.draw(st.integers(1, sk - 1))
    q, k, v = arrays(seed, 2, 1, sq, sk, 8, 5)
    whole, lse = attend(q, k, v, backend)
    (a, la), (b, lb) = (attend(q, k[:, :, part], v[:, :, part], backend) for part in (slice(cut), slice(cut, None)))
    merged = np.logaddexp(la, lb)
    close(merged, lse)
    close(a * np.exp(la - merged)[..., None] + b * np.exp(lb - merged)[..., None], whole)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=SIZES, backend=BACKEND)
def test_order_of_keys_does_not_matter(seed, sq, sk, backend):
    """Without positions, permuting the keys with their values and mask changes nothing."""
    q, k, v = arrays(seed, 2, 2, sq, sk, 8, 5)
    rng = np.random.default_rng(seed)
    mask, order = rng.random((1, 1, sq, sk)) < 0.7, rng.permutation(sk)
    plain = attend(q, k, v, backend, mask=mask)
    permuted = attend(q, k[:, :, order], v[:, :, order], backend, mask=mask[..., order])
    for mine, theirs in zip(plain, permuted, strict=True):
        close(mine, theirs)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=SIZES, shift=st.floats(-30, 30, width=32), backend=BACKEND)
def test_adding_a_number_to_all_scores_moves_only_the_lse(seed, sq, sk, shift, backend):
    """A constant additive mask leaves the output and adds itself to the LSE."""
    q, k, v = arrays(seed, 2, 1, sq, sk, 8, 5)
    out, lse = attend(q, k, v, backend)
    moved, moved_lse = attend(q, k, v, backend, mask=np.full((1, 1, 1, 1), shift, np.float32))
    close(moved, out, 5e-5)
    close(moved_lse, lse + np.float32(shift), 5e-5)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=SIZES, causal=st.booleans(), window=WINDOWS, backend=BACKEND)
def test_causal_and_window_equal_their_masks(seed, sq, sk, causal, window, backend):
    """A band is the boolean mask that hides the same pairs."""
    q, k, v = arrays(seed, 2, 1, sq, sk, 8, 5)
    distance = np.arange(sk)[None, :] - (np.arange(sq)[:, None] + sk - sq)
    left, right = window or (-1, -1)
    allowed = np.ones((sq, sk), bool)
    allowed &= distance <= 0 if causal else True
    allowed &= distance >= -left if left >= 0 else True
    allowed &= distance <= right if right >= 0 else True
    banded, masked = attend(q, k, v, backend, causal=causal, window=window), attend(q, k, v, backend, mask=allowed)
    for mine, theirs in zip(banded, masked, strict=True):
        close(mine, theirs)


@FIXED
@given(seed=SEEDS, sq=SIZES, sk=SIZES, sink=st.floats(-20, 20, width=32), backend=BACKEND)
def test_a_sink_is_a_key_without_a_value(seed, sq, sk, sink, backend):
    """A sink scales the output by the probability that the keys keep, and joins the LSE."""
    q, k, v = arrays(seed, 1, 1, sq, sk, 8, 5)
    out, lse = attend(q, k, v, backend)
    sunk, sunk_lse = attend(q, k, v, backend, sinks=np.array([sink], np.float32))
    close(sunk_lse, np.logaddexp(lse, np.float32(sink)))
    close(sunk, out * np.exp(lse - sunk_lse)[..., None])
