"""Dropout: the mask is Philox's, the same in every tiling, layout and backend, and in the backward pass; refusals."""

import numpy as np
import pytest

import rocattn
from rocattn.backends import BACKENDS
from rocattn.config import AttentionConfig
from rocattn.dropout import dropout_key, kept_weights, philox
from rocattn.errors import ConfigError, NoBackendError

from .problems import BACKENDS as NAMES
from .problems import LAYOUTS, head_counts, heads_first, make, stored

# Counter, key and words of Random123's kat_vectors, philox4x32 with 10 rounds.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_words_are_those_of_the_paper(counter, key, words):
    """Also of many counters at once."""
    found = philox([np.full((2, 3), word, np.uint32) for word in counter], key)
    assert [set(word.ravel().tolist()) for word in found] == [{word} for word in words]


def scalar_mask(seed, offset, dropout_p, shape):
    """Which weights are kept, word by word from the definition in rocattn/dropout.py."""

    def words(counter, key):
        return [int(word) for word in philox([np.uint32(word) for word in counter], key)]

    key = tuple(words((offset % 2**32, offset >> 32, 0, 0), (seed % 2**32, seed >> 32))[:2])
    kept = np.empty(shape, bool)
    for b, h, i, j in np.ndindex(shape):
        kept[b, h, i, j] = words((j // 4, i, b * shape[1] + h, 0), key)[j % 4] >= dropout_p * 2**32
    return kept


def test_the_mask_is_that_of_the_definition():
    """Seed and offset of more than 32 bits."""
    shape, seed, offset = (2, 3, 5, 7), 2**63 + 12345, 2**40 + 3
    kept = kept_weights(dropout_key(seed, offset), 0.4, np.arange(6).reshape(2, 3), np.arange(5), 7, np.float64)
    np.testing.assert_array_equal(kept, scalar_mask(seed, offset, 0.4, shape) / 0.6)


def weights(name, dropout_p=0.5, layout="BHSD", Hkv=2, Sq=70, Sk=130, **options):
    """The dropped weights of uniform scores [B, H, Sq, Sk], times Sk: the values are an identity."""
    B, H = 2, 4
    q, k = np.zeros((B, H, Sq, 8), np.float32), np.zeros((B, Hkv, Sk, 8), np.float32)
    v = np.broadcast_to(np.eye(Sk, dtype=np.float32), (B, Hkv, Sk, Sk))
    out = rocattn.attention(
        *(stored(x, layout) for x in (q, k, v)), layout=layout, backend=name, dropout_p=dropout_p, dropout_seed=9,
        **head_counts(layout, H, Hkv), **options,
    )  # fmt: skip
    return heads_first(out, layout, H) * Sk


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_each_weight_is_dropped_by_its_place_alone(name, layout):
    """In every layout, with grouped heads or without, in a shorter problem, and from another row on."""
    whole = weights(name)
    assert 0.49 < (whole == 0).mean() < 0.51
    np.testing.assert_allclose(np.unique(whole.round(4)), [0, 2])
    for other in (weights(name, layout=layout), weights(name, Hkv=1), weights("cpu")):
        np.testing.assert_array_equal(other == 0, whole == 0)
    np.testing.assert_array_equal(weights(name, Sq=3, Sk=21) == 0, whole[:, :, :3, :21] == 0)
    seen = np.tri(70, 130, 60, dtype=bool)
    np.testing.assert_array_equal(weights(name, causal=True) != 0, (whole != 0) & seen)


@pytest.mark.parametrize("name", NAMES)
def test_seed_and_offset_choose_the_mask(name):
    """Equal ones give equal bits, others another mask; the LSE does not change."""
    q, k, v = (x.swapaxes(1, 2) for x in make(Sq=40, Sk=90))

    def run(**options):
        return rocattn.attention(q, k, v, return_lse=True, backend=name, **options)

    out, lse = run(dropout_p=0.3, dropout_seed=1)
    np.testing.assert_array_equal(run(dropout_p=0.3, dropout_seed=1, dropout_offset=0)[0], out)
    assert (run(dropout_p=0.3, dropout_seed=2)[0] != out).mean() > 0.9
    assert (run(dropout_p=0.3, dropout_seed=1, dropout_offset=1)[0] != out).mean() > 0.9
    plain, same = run(dropout_seed=1)
    np.testing.assert_allclose(lse, same, rtol=1e-6)
    np.testing.assert_array_equal(plain, run()[0])
    assert not run(dropout_p=1, dropout_seed=1)[0].any()


def test_gradients_are_finite_differences():
    """Of the function with this mask, in float64; with a softcap and grouped heads."""
    q, k, v = (x.swapaxes(1, 2).astype(np.float64) for x in make(B=1, Sq=5, Sk=9, D=4))
    options = {"dropout_p": 0.4, "dropout_seed": 3, "dropout_offset": 5, "softcap": 2.0, "backend": "cpu"}
    out, lse = rocattn.attention(q, k, v, return_lse=True, **options)
    dout = np.random.default_rng(1).standard_normal(out.shape)
    gradients = rocattn.attention_backward(dout, q, k, v, out, lse, **options)
    for place, gradient in enumerate(gradients):
        for at in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-5, -1e-5):
                inputs = [q.copy(), k.copy(), v.copy()]
                inputs[place][at] += step
                ends.append((rocattn.attention(*inputs, **options) * dout).sum())
            assert abs((ends[0] - ends[1]) / 2e-5 - gradient[at]) < 1e-8


def test_a_backend_that_knows_no_dropout_is_not_asked():
    """One of before would compute attention without it."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=2, seq_k=2, head_dim=4, dropout_p=0.1)
    old = type("Old", (type(BACKENDS.get("cpu")),), {"name": "old", "takes_dropout": False})()
    BACKENDS.register(old)
    try:
        with pytest.raises(NoBackendError, match="old has no dropout"):
            BACKENDS.select(config, "old")
    finally:
        BACKENDS.unregister("old")


REFUSED = {
    "dropout_p is 0.1: dropout_seed must say": {"dropout_p": 0.1},
    "dropout_p is -0.1: it must be a number from 0 to 1": {"dropout_p": -0.1, "dropout_seed": 1},
    "dropout_p is 2.0: it must be": {"dropout_p": 2, "dropout_seed": 1},
    "dropout_p is nan": {"dropout_p": float("nan"), "dropout_seed": 1},
    "dropout_p is True": {"dropout_p": True, "dropout_seed": 1},
    "dropout_p is None": {"dropout_p": None},
    "dropout_seed is -1: it must be from 0 to": {"dropout_seed": -1},
    "dropout_seed is 1.0: it must be a whole number": {"dropout_p": 0.1, "dropout_seed": 1.0},
    "dropout_offset is 18446744073709551616": {"dropout_p": 0.1, "dropout_seed": 1, "dropout_offset": 2**64},
    "dropout_offset is None": {"dropout_p": 0.1, "dropout_seed": 1, "dropout_offset": None},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_arguments_are_named(words):
    """Also where nothing would be dropped."""
    q = np.ones((1, 3, 1, 4), np.float32)
    with pytest.raises(ConfigError, match=words):
        rocattn.attention(q, q, q, **REFUSED[words])


def test_no_dropout_of_sequences_and_8_bits():
    """Refused by the config, and so by every backend."""
    sizes = {"batch": 1, "num_heads": 1, "seq_q": 2, "seq_k": 2, "head_dim": 4, "dropout_p": 0.1}
    with pytest.raises(ConfigError, match="no dropout for sequences of different lengths"):
        AttentionConfig(**sizes, varlen={"total_q": 2, "total_k": 2})
    with pytest.raises(ConfigError, match="no dropout for float8_e4m3fn"):
        AttentionConfig(**sizes, dtype="bfloat16", kv_dtype="float8_e4m3fn")
    plain = AttentionConfig(**sizes | {"dropout_p": 0.0})
    assert "dropout_p" not in plain.to_dict()
    assert AttentionConfig.from_dict(AttentionConfig(**sizes).to_dict()).label.endswith("d4-dropout0.1-float32")
