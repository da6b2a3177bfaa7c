"""hip/softmax.hip, executed by the stand-in GPU with all of its checks, against float64."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from rocattn.sources import kernel_root

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
HALF_SMALLEST = {"f16": 2.0**-25, "bf16": 2.0**-126, "f32": 2.0**-126}  # exp2 flushes what is below 2^-126
WAVES = {32: "gfx1100", 64: "gfx942"}
SEQ_Q, NUM_HEADS = 2, 3
ROWS = SEQ_Q * NUM_HEADS + 1  # one row into a second batch: heads must wrap around


@pytest.fixture
def run(standin):
    """Return a function that runs the kernel on [rows, columns] scores and gives (probs, lse)."""

    def run_softmax(
        scores,
        *,
        out="f16",
        gap=0,
        offset=0,
        out_offset=0,
        block=64,
        wave=32,
        blocks=3,
        sinks=None,
        in_place=False,
        want_lse=True,
    ):
        device = standin(WAVES[wave])
        name = next(key for key, dtype in DTYPES.items() if dtype == scores.dtype)
        rows, columns = scores.shape
        stride = columns + gap
        source, rows_in = strided(rows, columns, stride, offset, scores.dtype)
        rows_in[...] = scores
        target, rows_out = (source, rows_in) if in_place else strided(rows, columns, stride, out_offset, DTYPES[out])
        lse = np.full(rows, np.nan, np.float32)
        held = [device.upload(array) for array in (source, target, lse)]
        where_in, where_out, where_lse = held[0], held[0] if in_place else held[1], held[2]
        where_sinks = ctypes.c_void_p(0) if sinks is None else device.upload(sinks)
        status, report = device.run(
            kernel_root() / "hip/softmax.hip", "softmax_rows", (blocks,), (block,), moved(where_in, source, offset),
            moved(where_out, target, offset if in_place else out_offset), where_lse if want_lse else ctypes.c_void_p(0),
            where_sinks, ctypes.c_int64(stride), ctypes.c_int64(stride), *map(ctypes.c_uint32, (rows, columns)),
            *map(ctypes.c_uint32, (SEQ_Q, NUM_HEADS, blocks)), IN_DTYPE=name, OUT_DTYPE=out, BLOCK=block,
        )  # fmt: skip
        assert (status, report) == (0, "")
        target[...] = device.download(where_out, target.shape, target.dtype)
        result = rows_out.astype(np.float64)
        rows_out[...] = np.nan
        assert np.isnan(target.astype(np.float64)).all()  # nothing else was written
        lse = device.download(where_lse, lse.shape, lse.dtype)
        for pointer in (*held, *([] if sinks is None else [where_sinks])):
            device.free(pointer)
        return result, lse

    return run_softmax


def moved(pointer, array, elements):
    """Return a pointer some elements on."""
    return ctypes.c_void_p((pointer.value or 0) + elements * array.itemsize)


def strided(rows, columns, stride, offset, dtype):
    """Return an array full of NaN that ends with its last row, and its [rows, columns] part, ``offset`` elements in."""
    whole = np.full(rows * stride + offset, np.nan, dtype)
    return whole, whole[offset:].reshape(rows, stride)[:, :columns]


def draw(columns, dtype, *, rows=ROWS, seed=0, spread=3.0):
    """Return seeded normal scores with some -inf in every row, a whole row of -inf, and rows of extreme size."""
    rng = np.random.default_rng([seed, columns])
    scores = rng.normal(0, spread, (rows, columns))
    scores[rng.random((rows, columns)) < 0.2] = -np.inf
    if columns:
        scores[1] = -np.inf
        scores[2] = rng.normal(0, 1, columns) + (60000 if dtype == np.float16 else 1e5)
    return scores.astype(dtype)


def reference(scores, sinks=None):
    """Return (probs, lse) in float64 by the contract: sinks join the denominator, a row without a key gives 0, -inf."""
    x = scores.astype(np.float64)
    row_sink = np.full(len(x), -np.inf)
    if sinks is not None:
        row_sink = sinks.astype(np.float64)[np.arange(len(x)) // SEQ_Q % NUM_HEADS]
    top = np.maximum(x.max(axis=1, initial=-np.inf), row_sink)
    base = np.where(np.isinf(top), 0, top)
    e = np.exp(x - base[:, None])
    total = e.sum(axis=1) + np.exp(row_sink - base)
    with np.errstate(divide="ignore"):
        lse = base + np.log(total)
    return e / np.where(total == 0, 1, total)[:, None], lse


def agree(got, scores, out, sinks=None):
    """Assert that probs and LSE are within rounding of float64.

    exp2(x * log2(e)) in float32 has a relative error of about |x| 2^-24; there are two such factors whose arguments
    add up to score - max, then a sum, a division and the rounding to the output type.
    """
    probs, lse = reference(scores, sinks)
    depth = np.abs(scores.astype(np.float64) - np.where(np.isinf(lse), 0, lse)[:, None])
    relative = HALF_ULP[out] + 2.0**-24 * (8 + 2 * np.where(np.isinf(depth), 0, depth))
    error = np.abs(got[0] - probs)
    assert not np.isnan(error).any()
    assert (error <= relative * probs + HALF_SMALLEST[out]).all(), error.max()
    np.testing.assert_allclose(got[1], lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 63, 100, 257, 1023, 1024, 1025, 1500, 3001])
def test_rows_of_any_length_match_float64(run, columns, wave):
    """Short rows (kept in registers), long rows (read twice) and every tail give the same function."""
    scores = draw(columns, np.float16)
    agree(run(scores, wave=wave, gap=-columns % 8), scores, "f16")


@pytest.mark.parametrize(("dtype", "out"), [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f32", "f16")])
@pytest.mark.parametrize(
    ("columns", "gap", "offset", "out_offset"),
    [(96, 0, 0, 0), (131, 5, 0, 0), (131, 0, 0, 0), (40, 8, 3, 0), (40, 8, 0, 3), (1337, 7, 0, 0), (1337, 7, 0, 1)],
)
def test_any_stride_and_alignment_in_each_dtype(run, dtype, out, columns, gap, offset, out_offset):
    """Rows may start at any element; nothing outside [rows, columns] is read or written."""
    scores = draw(columns, DTYPES[dtype])
    agree(run(scores, out=out, gap=gap, offset=offset, out_offset=out_offset), scores, out)


@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("columns", [5, 4096, 4104])
def test_several_waves_combine_through_lds(run, columns, wave):
    """A block of 256 threads gives what one of 64 gives, also when most of its waves have no element."""
    scores = draw(columns, np.float32, rows=3)
    agree(run(scores, out="f32", block=256, wave=wave, blocks=1), scores, "f32")


def test_row_without_a_visible_key_is_zero(run):
    """All -inf is 0 and LSE -inf, not NaN; so is a row of no columns."""
    probs, lse = run(np.full((ROWS, 33), -np.inf, np.float16), gap=7)
    assert (probs == 0).all()
    assert (lse == -np.inf).all()
    _, lse = run(np.empty((ROWS, 0), np.float16), gap=8)
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("out", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("columns", [37, 1061])
def test_hidden_score_is_minus_zero_improbable_one_zero(run, columns, out):
    """pv_matmul leaves out the V rows of hidden keys by that sign, in every path and dtype."""
    scores = draw(columns, np.float32)
    scores[5] = -200.0
    scores[5, 3:] = np.where(np.arange(columns - 3) % 2, -np.inf, -1e30)
    probs, _ = run(scores, out=out)
    assert (np.signbit(probs) == (scores == -np.inf)).all()
    assert (probs[5, 3:] == 0).all()


@pytest.mark.parametrize("columns", [33, 1100])
def test_sinks_take_part_in_the_denominator_of_their_head(run, columns):
    """The sink of head row / seq_q % num_heads joins sum and LSE; -inf is no sink; an empty row's LSE is the sink."""
    scores = draw(columns, np.float32)
    sinks = np.array([1.5, -np.inf, 70.0], np.float32)
    got = run(scores, out="f32", gap=-columns % 4, sinks=sinks)
    agree(got, scores, "f32", sinks)
    assert got[1][1] == 1.5  # row 1 is all -inf and belongs to head 0


@pytest.mark.parametrize("columns", [50, 1200])
def test_a_nan_fills_its_own_row_and_no_other(run, columns):
    """NaN is not swallowed by the maximum, even when the rest of the row is -inf, and stays in its row."""
    scores = draw(columns, np.float16)
    scores[1, 17] = np.nan
    scores[3, columns - 1] = np.nan
    probs, lse = run(scores, gap=-columns % 8)
    assert np.isnan(probs).all(axis=1).tolist() == [row in {1, 3} for row in range(ROWS)]
    assert np.isnan(lse).tolist() == [row in {1, 3} for row in range(ROWS)]


@pytest.mark.parametrize(("columns", "gap"), [(77, 3), (77, 0), (1111, 1)])
def test_the_result_may_replace_the_scores(run, columns, gap):
    """In place gives the same bits as out of place."""
    scores = draw(columns, np.float16)
    there = run(scores, gap=gap)[0]
    np.testing.assert_array_equal(run(scores, gap=gap, in_place=True)[0], there)


@pytest.mark.parametrize("blocks", [1, 2, ROWS, 2 * ROWS])
def test_any_grid_covers_every_row_once(run, blocks):
    """Fewer blocks than rows loop, more do nothing; the bits do not depend on it, nor on whether LSE is wanted."""
    scores = draw(70, np.float32)
    probs, lse = run(scores, out="f32", gap=2, blocks=blocks, want_lse=False)
    agree((probs, reference(scores)[1]), scores, "f32")
    assert np.isnan(lse).all()
