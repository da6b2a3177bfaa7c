"""Every option means what the contract says, in every layout, on odd sizes, on both backends."""

import functools
import itertools

import numpy as np
import pytest

import rocattn
from rocattn.toolchain.host import host_isa

from .oracle import attend
from .problems import BACKENDS, BFLOAT16, LAYOUTS, OPTION_NAMES, head_counts, heads_first, make, option_sets, stored

TOLERANCE = 2e-5  # float32 with |scores| up to about 30


def run(q, k, v, backend, layout="BHSD", **options):
    """(out, lse) of the library, as [B, H, …]."""
    H, Hkv = q.shape[1], k.shape[1]
    out, lse = rocattn.attention(
        *(stored(x, layout) for x in (q, k, v)), layout=layout, backend=backend, return_lse=True,
        **head_counts(layout, H, Hkv), **options,
    )  # fmt: skip
    assert out.dtype == q.dtype
    assert lse.dtype == np.float32
    return heads_first(out, layout, H), lse


def agree(got, wanted, tolerance=TOLERANCE):
    """Both out and LSE are within the tolerance, and -inf exactly where it should be."""
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.astype(np.float64), theirs, rtol=tolerance, atol=tolerance)


SIZES = ((1, 1), (13, 29), (37, 11), (1, 257), (131, 67))


@functools.cache
def solved(name, size):
    """A problem with the named options, and its answer."""
    Sq, Sk = size
    q, k, v = make(B=2, H=4, Hkv=2, Sq=Sq, Sk=Sk, D=12, Dv=7, seed=Sq + Sk)
    options = option_sets(2, 4, Sq, Sk)[name]
    return q, k, v, options, attend(q, k, v, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPTION_NAMES)
def test_option_means_the_same_in_every_layout(name, layout, backend):
    """An option gives the contract's output and LSE whatever the layout, for square, wide and tall problems."""
    for size in SIZES:
        q, k, v, options, wanted = solved(name, size)
        agree(run(q, k, v, backend, layout, **options), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(257, 257), (64, 64), (65, 63), (127, 191), (2, 251), (193, 5)], ids=str)
@pytest.mark.parametrize("name", ["plain", "causal", "window", "all"])
def test_tile_edges_are_exact(name, size, backend):
    """Sizes on, before and after tile edges, and primes, give the contract's result."""
    q, k, v, options, wanted = solved(name, size)
    agree(run(q, k, v, backend, **options), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["plain", "causal", "window", "alibi", "additive-mask"])
def test_more_keys_than_one_tile(name, backend):
    """A row's softmax runs over several key tiles (2300 keys), rescaled when the maximum moves."""
    q, k, v = make(B=1, H=2, Hkv=1, Sq=70, Sk=2300, D=9, Dv=5)
    k[:, :, 2200] *= 9  # the largest scores come last
    options = option_sets(1, 2, 70, 2300)[name]
    agree(run(q, k, v, backend, **options), attend(q, k, v, **options), 5e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("side", [29, 2**31, 2**63 - 1, 2**70])
def test_a_window_wider_than_the_sequences_is_open(side, backend):
    """Whatever a side's size, as in sys.maxsize for "no limit": the position that it reaches must not overflow."""
    q, k, v, _, _ = solved("plain", (13, 29))
    for window, same in (((side, side), {}), ((side, 2), {"window": (-1, 2)}), ((3, side), {"window": (3, -1)})):
        agree(run(q, k, v, backend, window=window), run(q, k, v, backend, **same))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("D", "Dv"), [(1, 1), (5, 5), (7, 19), (40, 24), (72, 100), (64, 1), (0, 3), (3, 0)])
def test_any_head_dim(D, Dv, backend):
    """D need not be a multiple of 8, V may have its own head dimension, and either may be 0."""
    q, k, v = make(D=D, Dv=Dv, Sq=11, Sk=17)
    agree(run(q, k, v, backend, causal=True), attend(q, k, v, causal=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("H", "Hkv"), [(1, 1), (3, 3), (4, 2), (4, 1), (12, 3), (130, 1)])
def test_grouped_heads_share_keys_and_values(H, Hkv, backend):
    """Query head h uses KV head h // (H / Hkv), for 1, 2, 4 and even 130 query heads a KV head."""
    q, k, v = make(B=1, H=H, Hkv=Hkv, Sq=9, Sk=14, D=6)
    options = option_sets(1, H, 9, 14)["all"]
    agree(run(q, k, v, backend, **options), attend(q, k, v, **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize(
    "full", list(itertools.product([False, True], repeat=4)), ids=lambda f: "".join("1x"[x] for x in f)
)
def test_mask_broadcasts_from_all_sixteen_shapes(full, kind, backend):
    """Each of a mask's four axes may be 1 or full."""
    q, k, v = make(B=2, H=4, Hkv=2, Sq=19, Sk=23, D=8)
    shape = tuple(size if here else 1 for size, here in zip((2, 4, 19, 23), full, strict=True))
    rng = np.random.default_rng(3)
    allowed = rng.random(shape) < 0.6
    mask = allowed if kind == "bool" else np.where(allowed, rng.standard_normal(shape), -np.inf).astype(np.float32)
    agree(run(q, k, v, backend, mask=mask), attend(q, k, v, mask=mask))


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_fewer_dimensions_are_shared(backend):
    """[Sq, Sk] goes before [B, Sk], [B, Sq, Sk] has each 1 or full: all heads share them."""
    q, k, v = make(B=3, Sq=19, Sk=23)
    mask = np.random.default_rng(4).random((3, 19, 23)) < 0.5
    keys = mask[:, 0]
    agree(run(q, k, v, backend, mask=mask[0]), attend(q, k, v, mask=mask[0]))
    agree(run(q, k, v, backend, mask=keys), attend(q, k, v, mask=keys[:, None, None]))
    for part in (mask, mask[:1], mask[:, :1], mask[..., :1]):
        agree(run(q, k, v, backend, mask=part), attend(q, k, v, mask=part[:, None]))
    q, k, v = (x[..., :3, :] if x is q else x for x in (q, k, v))  # as many rows as batches
    agree(run(q, k, v, backend, mask=keys), attend(q, k, v, mask=keys[None, None]))


MASKS = {  # -2.001 is no number of 16 bits: a float32 mask is added as it was given, not rounded to q's dtype first
    np.float32: [0, -2.001, -np.inf, 1.003, 0.5, -0.1, 3.3],
    **{kept: [0, -2.0, -np.inf, 1.5, 0.5, -0.125, 3.25] for kept in (np.float64, np.float16, BFLOAT16)},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.float64], ids=str)
@pytest.mark.parametrize("kept", MASKS, ids=str)
def test_masks_of_other_floating_dtypes_are_converted(kept, dtype, backend):
    """Exactly, or to float32; a finite number beyond it stays finite, for only -inf hides."""
    if dtype == np.float64 and backend == "cpu-flash":
        pytest.skip("cpu-flash has no float64")
    q, k, v = (x.astype(dtype) for x in make(B=1, H=2, Hkv=2, Sq=5, Sk=7, D=8))
    mask = np.array([MASKS[kept]]).astype(kept).repeat(5, 0)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    out, lse = run(q, k, v, backend, mask=mask)
    wanted, wanted_lse = attend(*wide, mask=mask.astype(np.float64))
    np.testing.assert_allclose(lse, wanted_lse, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=1e-2, atol=1e-2)
    if kept == np.float64 != dtype:
        lowest = np.full((5, 7), np.finfo(np.float64).min)
        out, lse = run(np.zeros_like(q), k, v, backend, mask=lowest)
        out, v = (x.astype(np.float64) for x in (out, v))
        np.testing.assert_allclose(out, v.mean(2, keepdims=True).repeat(5, 2), rtol=2e-2, atol=2e-2)
        assert np.isfinite(lse).all()


def test_slopes_and_sinks_keep_float64():
    """0.1 and 0.3 rounded to float32 are off in the ninth digit, and so would the output be."""
    q, k, v = (x.astype(np.float64) for x in make(B=1, H=2, Hkv=2, Sq=5, Sk=7, D=8))
    options = {"alibi_slopes": np.array([0.1, 0.7]), "sinks": np.array([0.3, -0.9])}
    for mine, theirs in zip(run(q, k, v, "cpu", **options), attend(q, k, v, **options), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12 if mine.dtype == np.float64 else 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_additive_mask_of_the_lowest_finite_value_does_not_hide(dtype, backend):
    """A row masked everywhere with finfo.min still averages its keys: only -inf hides."""
    q, k, v = make(Sq=3, Sk=5, dtype=dtype)
    mask = np.full((3, 5), np.finfo(dtype).min, dtype)
    out, lse = run(q * dtype(0), k, v, backend, mask=mask)
    np.testing.assert_allclose(out, np.repeat(v.mean(2, keepdims=True), 2, 1).repeat(3, 2), rtol=2e-3, atol=2e-3)
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "hide",
    [
        {"mask": np.zeros((9, 17), bool)},
        {"mask": np.full((9, 17), -np.inf, np.float32)},
        {"mask": np.zeros((1, 1, 9, 1), bool)},
    ],
    ids=["bool", "additive", "row"],
)
def test_row_without_a_visible_key_is_zero(hide, backend):
    """Output 0 and LSE -inf without sinks; with sinks output 0 and LSE = sink."""
    q, k, v = make(Sq=9, Sk=17)
    out, lse = run(q, k, v, backend, **hide)
    assert not out.any()
    assert (lse == -np.inf).all()
    sinks = np.array([0.5, -2, 3, 0], np.float32)
    out, lse = run(q, k, v, backend, sinks=sinks, **hide)
    assert not out.any()
    np.testing.assert_allclose(lse, np.broadcast_to(sinks[None, :, None], lse.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [{"Sq": 9, "Sk": 4}, {"Sq": 1, "Sk": 1500}], ids=["rows-without-keys", "decode"])
def test_sink_of_minus_infinity_is_no_sink(sizes, backend):
    """Such a sink takes no probability: output and LSE are those without it, also in rows that see nothing."""
    q, k, v = make(**sizes)
    plain = run(q, k, v, backend, causal=True)
    for mine, theirs in zip(
        run(q, k, v, backend, causal=True, sinks=np.full(4, -np.inf, np.float32)), plain, strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)
    sinks = np.array([-np.inf, 1, -np.inf, 2], np.float32)  # beside heads that have one
    full = run(q, k, v, backend, causal=True, sinks=np.array([0, 1, 0, 2], np.float32))
    for mixed, without, each in zip(run(q, k, v, backend, causal=True, sinks=sinks), plain, full, strict=True):
        np.testing.assert_allclose(mixed[:, ::2], without[:, ::2], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(mixed[:, 1::2], each[:, 1::2], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("scale", "softcap"), [(None, None), (0.01, None), (50.0, 3.0)])
def test_alibi_slopes_are_not_multiplied_by_the_scale(scale, softcap, backend):
    """As in FlashAttention: without queries a causal row's denominator is 1 + e^-slope + … + e^(-slope t), closed."""
    q, k, v = make(Sq=19, Sk=37, D=25)
    slopes = np.array([0.5, 0.25, 0.03, 2.0], np.float32)
    options = {"causal": True, "alibi_slopes": slopes, "scale": scale, "softcap": softcap}
    _, lse = run(q * 0, k, v, backend, **options)
    seen = np.arange(37 - 19 + 1, 37 + 1)  # keys of each row, the farthest first
    slope = slopes[:, None].astype(np.float64)
    wanted = np.log((1 - np.exp(-slope * seen)) / (1 - np.exp(-slope)))
    np.testing.assert_allclose(lse, np.broadcast_to(wanted, lse.shape), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_is_aligned_bottom_right(backend):
    """With Sq > Sk the first rows see nothing; with Sq < Sk the last row sees everything."""
    q, k, v = make(Sq=9, Sk=4)
    out, lse = run(q, k, v, backend, causal=True)
    assert not out[:, :, :5].any()
    assert (lse[:, :, :5] == -np.inf).all()
    np.testing.assert_allclose(out[:, :, 5], np.repeat(v[:, :, 0], 2, 1), rtol=1e-6)
    q, k, v = make(Sq=4, Sk=9)
    agree([x[:, :, -1:] for x in run(q, k, v, backend, causal=True)], attend(q[:, :, -1:], k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("empty", [{"B": 0}, {"Sq": 0}, {"Sk": 0}, {"Sq": 0, "Sk": 0}, {"D": 0, "Dv": 0}], ids="-".join)
def test_sizes_may_be_zero(empty, layout, backend):
    """An empty problem gives an empty output; no keys give zeros and LSE -inf."""
    q, k, v = make(**{"Sq": 5, "Sk": 3} | empty)
    out, lse = run(q, k, v, backend, layout, causal=True)
    assert out.shape == (*q.shape[:3], v.shape[3])
    assert not out.any()
    if k.shape[2] == 0:
        assert (lse == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_half_precision_inputs_are_accumulated_in_float32(name, backend, dtype):
    """The result is the float64 result of the rounded inputs, rounded once: half a unit in the last place, or so."""
    q, k, v = make(Sq=23, Sk=131, D=20, dtype=dtype)
    options = option_sets(2, 4, 23, 131)[name]
    out, lse = run(q, k, v, backend, **options)
    wanted, wanted_lse = attend(q, k, v, **options)
    unit = 2.0 ** (-10 if dtype == np.float16 else -7)
    # With fp16 the matrix unit takes each weight as two bf16 numbers, which cut off less than 2^-16 of it.
    cut = 2.0**-16 * np.abs(v).max() if (backend, dtype, host_isa()) == ("cpu-flash", np.float16, "amx") else 0.0
    assert (np.abs(out.astype(np.float64) - wanted) <= 0.51 * unit * np.abs(wanted) + 1e-5 + cut).all()
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-5)


def test_float64_is_computed_in_float64():
    """The cpu backend's float64 output is right to 1e-13, and is what is selected for float64."""
    q, k, v = make(Sq=23, Sk=31, dtype=np.float64)
    options = option_sets(2, 4, 23, 31)["all"]
    out, lse = run(q, k, v, None, **options)
    wanted, wanted_lse = attend(q, k, v, **options)
    np.testing.assert_allclose(out, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_scores_do_not_overflow(backend):
    """Scores of +-1000 give finite results: the maximum is subtracted before the exponential."""
    q, k, v = make(Sq=7, Sk=40, D=8)
    q *= 100
    out, lse = run(q, k, v, backend, scale=1.0)
    wanted = attend(q, k, v, scale=1.0)
    assert np.abs(wanted[1]).max() > 500
    np.testing.assert_allclose(out, wanted[0], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse, wanted[1], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lse_is_returned_only_if_asked(backend):
    """Without return_lse the result is the output alone, and the same."""
    q, k, v = make()
    alone = rocattn.attention(q, k, v, layout="BHSD", backend=backend)
    both, _ = rocattn.attention(q, k, v, layout="BHSD", backend=backend, return_lse=True)
    np.testing.assert_array_equal(alone, both)


def hiding(kind):
    """Options that hide keys 10 to 14 of 23 from every row, or the last keys from the first rows."""
    allowed = np.ones((1, 1, 19, 23), bool)
    allowed[..., 10:15] = False
    added = np.where(allowed, 0, -np.inf).astype(np.float32)
    rows = np.ones((1, 1, 19, 23), bool)
    rows[:, :, 4:, 10:15] = False  # rows 0 to 3 see them
    return {
        "bool": {"mask": allowed}, "additive": {"mask": added}, "rows": {"mask": rows},
        "causal": {"causal": True}, "window": {"window": (3, 2)},
    }[kind]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("kind", ["bool", "additive", "rows", "causal", "window"])
def test_nan_in_a_hidden_key_reaches_no_other_row(kind, poison, backend):
    """Rows that do not see a poisoned key are what they are without it, to rounding: vectors may do a unit's part."""
    q, k, v = make(Sq=19, Sk=23)
    options = hiding(kind)
    clean, clean_lse = run(q, k, v, backend, **options)
    keys = slice(20, 23) if kind in {"causal", "window"} else slice(10, 15)
    for tensor in (k, v):
        tensor[:, :, keys] = poison
    out, lse = run(q, k, v, backend, **options)
    first = {"causal": 16, "window": 14, "rows": 0}.get(kind, 19)  # of the rows that see a poisoned key
    last = 4 if kind == "rows" else 19
    hidden = np.r_[0:first, last:19]
    np.testing.assert_allclose(out[:, :, hidden], clean[:, :, hidden], rtol=1e-6, atol=5e-7)
    np.testing.assert_allclose(lse[:, :, hidden], clean_lse[:, :, hidden], rtol=1e-6, atol=5e-7)
    assert not np.isfinite(out[:, :, first:last]).any()
