"""Q, K and V of 8 bits in the public functions and caches: what is meant, what is refused, and how caches round."""

import ml_dtypes
import numpy as np
import pytest

import rocattn
from rocattn import BACKENDS, AttentionConfig, ConfigError, KVCache, NoBackendError, PagedKVCache
from rocattn.config import FP8_DTYPES
from rocattn.kv_cache import quantised
from rocattn.registry import BackendRegistry

FORMATS = [np.dtype(getattr(ml_dtypes, name)) for name in FP8_DTYPES]
B, H, HKV, D = 2, 4, 2, 16
SCALES = {
    "none": None, "number": 0.0625, "numpy's": np.float32(0.0625), "one": np.full(1, 0.0625, np.float32),
    "heads": np.array([0.05, 0.08], np.float32), "all": np.array([[0.05, 0.08], [0.02, 0.1]], np.float32),
}  # fmt: skip


def problem(stored, dtype=np.float16, seq_q=5, seq_k=33):
    """q, k and v; k and v are stored 16 times as large as they are meant."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((B, seq_q, H, D)).astype(dtype)
    k, v = ((16 * rng.standard_normal((B, seq_k, HKV, D))).astype(stored) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("kind", SCALES)
def test_a_scale_is_a_factor_of_what_is_stored(stored, dtype, kind):
    """A number, one element, one for each KV head, one for each sequence and KV head; none is 1."""
    scale, (q, k, v) = SCALES[kind], problem(stored, dtype)
    wide = np.broadcast_to(1.0 if scale is None else np.asarray(scale, np.float64), (B, HKV))[:, None, :, None]
    meant = [x.astype(np.float64) * wide for x in (k, v)]
    options = {"causal": True, "scale": 2.0**-6, "return_lse": True}
    right, right_lse = rocattn.attention(q.astype(np.float64), *meant, **options)
    out, lse = rocattn.attention(q, k, v, k_scale=scale, v_scale=scale, **options)
    assert out.dtype == q.dtype
    unit = float(ml_dtypes.finfo(q.dtype).eps)
    np.testing.assert_allclose(out.astype(np.float64), right, rtol=0, atol=8 * unit * abs(right).max())
    np.testing.assert_allclose(lse, right_lse, rtol=1e-5)


@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("out_dtype", [None, "float16", "float32"])
@pytest.mark.parametrize("kind", SCALES)
def test_q_of_8_bits_has_a_scale_and_an_output_of_its_own_dtype(stored, out_dtype, kind):
    """The scale of a KV head is that of all its query heads; the output is bfloat16 unless another dtype is named."""
    scale, (q, k, v) = SCALES[kind], problem(stored, stored)
    wide = np.broadcast_to(1.0 if scale is None else np.asarray(scale, np.float64), (B, HKV))
    meant = q.astype(np.float64) * wide.repeat(H // HKV, axis=1)[:, None, :, None]
    options = {"causal": True, "scale": 2.0**-4, "k_scale": 0.0625, "v_scale": 0.0625, "return_lse": True}
    right, right_lse = rocattn.attention(
        meant, *(x.astype(np.float64) * 0.0625 for x in (k, v)), causal=True, scale=2.0**-4, return_lse=True
    )
    out, lse = rocattn.attention(q, k, v, q_scale=scale, out_dtype=out_dtype, **options)
    assert out.dtype.name == out_dtype or out.dtype == ml_dtypes.bfloat16
    unit = float(ml_dtypes.finfo(out.dtype).eps)
    np.testing.assert_allclose(out.astype(np.float64), right, rtol=0, atol=8 * unit * abs(right).max())
    np.testing.assert_allclose(lse, right_lse, rtol=1e-5)
    starts = np.array([0, 5, 10], np.int32), np.array([0, 33, 66], np.int32)
    packed = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    same, _ = rocattn.attention_varlen(*packed, *starts, q_scale=scale, out_dtype=out_dtype, **options)
    np.testing.assert_array_equal(same.reshape(out.shape), out)


def test_packed_sequences_have_scales_of_their_own():
    """Packed rows and pages: [B, Hkv] counts sequences."""
    rng = np.random.default_rng(1)
    stored, lengths = FORMATS[0], (7, 12)
    starts = np.array([0, 7, 19], np.int32)
    q = rng.standard_normal((19, H, D)).astype(np.float16)
    k, v = ((16 * rng.standard_normal((19, HKV, D))).astype(stored) for _ in range(2))
    scale = rng.uniform(0.03, 0.1, (2, HKV)).astype(np.float32)
    packed = rocattn.attention_varlen(q, k, v, starts, starts, k_scale=scale, v_scale=scale, causal=True)
    pages = np.zeros((2, 5, 4, HKV, D), stored)
    for x, of_pages in zip((k, v), pages, strict=True):
        of_pages.reshape(20, HKV, D)[:7], of_pages.reshape(20, HKV, D)[8:] = x[:7], x[7:]
    table = np.array([[0, 1, -1], [2, 3, 4]], np.int32)
    paged = rocattn.attention_varlen(
        q, *pages, starts, seqlens_k=np.array(lengths), block_table=table, k_scale=scale, v_scale=scale, causal=True
    )
    for at in range(2):
        rows = slice(starts[at], starts[at + 1])
        one = (x[None, rows] for x in (q, k, v))
        alone = rocattn.attention(*one, k_scale=scale[at], v_scale=scale[at], causal=True)
        np.testing.assert_array_equal(packed[rows], alone[0])
        np.testing.assert_array_equal(paged[rows], alone[0])


def test_what_makes_no_sense_is_refused():
    """One line each, with the argument's name."""
    q, k, v = problem(FORMATS[0])
    for told, arguments, options in (
        ("k has dtype float8_e4m3fn and v float8_e4m3fnuz", (q, k, v.astype(np.float32).astype(FORMATS[1])), {}),
        ("v has dtype float8_e4m3fn, but float16 is needed", (q, k.astype(np.float16), v), {}),
        ("q has dtype float8_e4m3fn: use one of", (k, k.astype(q.dtype), v.astype(q.dtype)), {}),
        ("q has dtype float8_e4m3fnuz: use one of", (q.astype(FORMATS[1]), k, v), {}),
        ("q_scale is a factor of 8-bit q", (q, k, v), {"q_scale": 2.0}),
        ("out_dtype is 'float64': use one of None, bfloat16", (k, k, v), {"out_dtype": "float64"}),
        ("out_dtype is 'bfloat16': it can be chosen only with 8-bit q", (q, k, v), {"out_dtype": "bfloat16"}),
        ("q_scale times k_scale must be finite and at most 1e", (k, k, v), {"q_scale": 1e5, "k_scale": 1e5}),
        ("factors of 8-bit k and v", (q, k.astype(q.dtype), v.astype(q.dtype)), {"k_scale": 2.0}),
        (r"k_scale has shape \(3,\)", (q, k, v), {"k_scale": np.ones(3, np.float32)}),
        ("v_scale has dtype int64", (q, k, v), {"v_scale": np.ones(HKV, np.int64)}),
        ("k_scale must be finite and at most 1e", (q, k, v), {"k_scale": np.array([1, np.nan], np.float32)}),
        ("v_scale must be finite and at most 1e", (q, k, v), {"v_scale": 1e9}),
        ("k_scale is 'x': it must be a number", (q, k, v), {"k_scale": "x"}),
    ):
        with pytest.raises(ConfigError, match=told):
            rocattn.attention(*arguments, **options)
    with pytest.raises(ConfigError, match="v has dtype float8_e4m3fn, but"):
        rocattn.attention_backward(q, q, q, v, q, q)
    with pytest.raises(ConfigError, match="no gradients of float8_e4m3fn keys"):
        rocattn.attention_backward(q, q, k, v, q, np.zeros((B, H, 5), np.float32))


def test_only_backends_that_know_8_bits_are_asked():
    """cpu-flash says so in a line and cpu is taken; nor is a backend that was written before them asked."""
    sizes = {"batch": 1, "num_heads": 1, "seq_q": 1, "seq_k": 9, "head_dim": 8}
    config = AttentionConfig(**sizes, dtype="float16", kv_dtype=FP8_DTYPES[0])
    answer = BACKENDS.supports(BACKENDS.get("cpu-flash"), config)
    assert not answer
    assert answer.reason == "cpu-flash takes no 8-bit keys and values, here float8_e4m3fn"

    class Old(type(BACKENDS.get("cpu"))):
        name, priority, takes_fp8 = "old", 1, False

    registry = BackendRegistry()
    registry.register(Old())
    with pytest.raises(NoBackendError, match="old takes no 8-bit keys and values"):
        registry.select(config)
    registry.register(BACKENDS.get("cpu"))
    assert registry.select(config).name == "cpu"


def test_a_config_without_8_bits_keeps_its_key():
    """Records of earlier commits are found again; with them the config survives JSON."""
    plain = AttentionConfig(batch=1, num_heads=1, seq_q=1, seq_k=9, head_dim=8)
    assert not {"q_dtype", "kv_dtype", "q_scale", "k_scale", "v_scale"} & plain.to_dict().keys()
    small = plain.replace(dtype="bfloat16", kv_dtype=FP8_DTYPES[1], k_scale=True)
    assert AttentionConfig.from_dict(small.to_dict()) == small
    assert small.label == "b1-h1-q1-k9-d8-k_scale-float8_e4m3fnuz-bfloat16"
    assert small.kv_bytes == 2 * 9 * 8
    assert not {"q_dtype", "q_scale"} & small.to_dict().keys()
    all_small = small.replace(q_dtype=FP8_DTYPES[1], q_scale=True)
    assert AttentionConfig.from_dict(all_small.to_dict()) == all_small
    assert all_small.label == "b1-h1-q1-k9-d8-q_scale-k_scale-qfloat8_e4m3fnuz-bfloat16"
    assert (all_small.q_bytes, all_small.out_bytes) == (8, 16)
    with pytest.raises(ConfigError, match="q is stored in float8_e4m3fn, k and v in float8_e4m3fnuz"):
        small.replace(q_dtype=FP8_DTYPES[0])
    with pytest.raises(ConfigError, match="kv_dtype 'float8_e5m2' is not supported"):
        plain.replace(kv_dtype="float8_e5m2")


def nearest(values, stored):
    """The numbers of a format nearest to values, ties to even mantissas, by search among all of them."""
    codes = np.arange(256).astype(np.uint8)
    numbers = codes.view(stored).astype(np.float64)
    codes, numbers = codes[np.isfinite(numbers)], numbers[np.isfinite(numbers)]
    distance = abs(numbers - np.clip(values.astype(np.float64), numbers.min(), numbers.max())[:, None])
    tied = distance == distance.min(axis=1, keepdims=True)
    even = tied & (codes % 2 == 0)
    return numbers[np.where(even.any(axis=1), even.argmax(axis=1), tied.argmax(axis=1))]


@pytest.mark.parametrize("stored", FORMATS)
def test_a_cache_rounds_to_nearest_even_and_saturates(stored):
    """All numbers of the format, what lies halfway between two and beside it, beyond the largest, inf, NaN, -0."""
    numbers = np.arange(256).astype(np.uint8).view(stored).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    halfway = (numbers[1:] + numbers[:-1]) / 2
    beside = [np.nextafter(halfway, np.float32(to)) for to in (-np.inf, np.inf)]
    far = np.array([-np.inf, -1e30, -500, 449, 464, 465, 1e30, np.inf, 1e-30, -1e-30, -0.0], np.float32)
    values = np.concatenate([numbers, halfway, *beside, far])
    got = quantised(values[:, None], np.ones(1), stored)[:, 0]
    np.testing.assert_array_equal(got.astype(np.float64), nearest(values, stored))
    assert np.isnan(quantised(np.full((1, 1), np.nan, np.float32), 1.0, stored).astype(np.float32)).all()
    # A scale of each KV head divides first.
    scaled = quantised(np.stack([values, values])[None, :, :] * np.float32(4), np.array([4, 2]), stored)
    np.testing.assert_array_equal(scaled[0, 0].astype(np.float64), nearest(values, stored))
    np.testing.assert_array_equal(scaled[0, 1].astype(np.float64), nearest(values * np.float32(2), stored))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("stored", FP8_DTYPES)
def test_caches_of_8_bits_attend_to_what_they_kept(stored, dtype):
    """Appended 16-bit tokens are quantised, 8-bit ones kept as they are; queries have any dtype."""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((B, 3, H, D)).astype(dtype)
    k, v = (rng.standard_normal((B, 20, HKV, D)).astype(dtype) for _ in range(2))
    scales = {"k_scale": np.array([0.01, 0.02], np.float32), "v_scale": 0.015}
    kind = np.dtype(getattr(ml_dtypes, stored))
    kept = quantised(k, scales["k_scale"], kind), quantised(v, scales["v_scale"], kind)
    right = rocattn.attention(q, *kept, causal=True, **scales)
    for cache in (
        KVCache(B, HKV, D, capacity=30, dtype=stored, **scales),
        PagedKVCache(B, HKV, D, num_blocks=12, block_size=4, dtype=stored, **scales),
    ):
        cache.append(k[:, :13], v[:, :13])
        cache.append(kept[0][:, 13:15], kept[1][:, 13:15])
        cache.append(k[:, 15:], kept[1][:, 15:])
        assert cache.keys.dtype.name == stored
        np.testing.assert_array_equal(cache.attend(q, causal=True), right)
        q8 = quantised(q, 0.02, kind)
        same = rocattn.attention(q8, *kept, causal=True, q_scale=0.02, **scales)
        np.testing.assert_array_equal(cache.attend(q8, causal=True, q_scale=0.02), same)
        with pytest.raises(ConfigError, match="float64: the cache keeps float8"):
            cache.append(k[:, :1].astype(np.float64), v[:, :1])


def test_a_cache_refuses_scales_that_are_none():
    """Positive and finite, one or one a KV head, and only where something is scaled."""
    for bad in (0.0, -1.0, np.inf, np.ones(3), np.array([1, np.nan])):
        with pytest.raises(ConfigError, match="k_scale must be a positive number, or"):
            KVCache(1, HKV, D, capacity=3, dtype=FP8_DTYPES[0], k_scale=bad)
    with pytest.raises(ConfigError, match="are for caches of float8_e4m3fn or float8_e4m3fnuz, not of float16"):
        PagedKVCache(1, HKV, D, num_blocks=3, dtype=np.float16, v_scale=0.5)
