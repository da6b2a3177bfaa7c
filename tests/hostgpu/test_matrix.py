"""The matrix instructions against AMD's documented register layouts, written here once more with numpy's indexing."""

import ml_dtypes
import numpy as np
import pytest

from .standin import SUCCESS

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
# arch: (lanes, depth, elements of A and B in a lane, registers of C in a lane)
SHAPES = {"gfx1100": (32, 16, 16, 8), "gfx1201": (32, 16, 8, 8), "gfx90a": (64, 16, 4, 4), "gfx942": (64, 16, 4, 4)}
SHAPES["gfx950"] = (64, 32, 8, 4)
EVERYWHERE = [(arch, dtype) for arch in (*SHAPES, "gfx1030") for dtype in DTYPES]


def operand_index(arch: str):
    """[lanes, elements] -> (row of A or column of B, depth), as AMD's matrix instruction calculator lists them."""
    lanes, _, elements, _ = SHAPES[arch]
    lane, element = np.mgrid[:lanes, :elements]
    part = lane // 16
    depth = {
        "gfx1100": element,  # both halves of the wave hold all of the depth
        "gfx1201": element // 4 * 8 + part * 4 + element % 4,  # VGPR pairs alternate between the halves
        "gfx90a": part * 4 + element,
        "gfx942": part * 4 + element,
        "gfx950": part * 8 + element,
    }[arch]
    return lane % 16, depth


def sum_index(arch: str):
    """[lanes, registers] -> (row, column) of C and D."""
    lanes, _, _, registers = SHAPES[arch]
    lane, register = np.mgrid[:lanes, :registers]
    part = lane // 16
    row = {"gfx1100": 2 * register + part, "gfx1201": 8 * part + register}.get(arch, 4 * part + register)
    return row, lane % 16


@pytest.fixture
def execute(standin):
    """Return a function: arch, dtype, fragments a, b, c of all lanes -> fragments of d."""

    def execute(arch, dtype, a, b, c):
        device = standin(arch)
        pointers = [device.upload(a), device.upload(b), device.upload(c), device.empty(c.nbytes)]
        lanes = SHAPES[arch][0]
        ran = device.run("matrix.hip", "instruction", (1,), (lanes,), *pointers, DTYPE=dtype, FRAGMENTS=1)
        assert ran == (SUCCESS, "")
        d = device.download(pointers[3], c.shape, np.float32)
        for pointer in pointers:
            device.free(pointer)
        return d

    return execute


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("arch", SHAPES)
def test_whole_products_follow_the_documented_layout(execute, arch, dtype):
    """Small integers, so that every sum is exact and a wrong index cannot hide in a tolerance."""
    _, depth, _, _ = SHAPES[arch]
    rng = np.random.default_rng(6)
    a, b = rng.integers(-8, 9, (16, depth)), rng.integers(-8, 9, (depth, 16))
    c = rng.integers(-100, 101, (16, 16)).astype(np.float32)
    n, k = operand_index(arch)
    rows = sum_index(arch)
    d = execute(arch, dtype, a[n, k].astype(DTYPES[dtype]), b[k, n].astype(DTYPES[dtype]), c[rows])
    np.testing.assert_array_equal(d, (a @ b + c)[rows])


@pytest.mark.parametrize(
    ("arch", "stored", "depth"), [("gfx942", "e4m3fnuz", 32), ("gfx950", "e4m3fn", 32), ("gfx1201", "e4m3fn", 16)]
)
def test_products_of_8_bits_follow_the_documented_layout(standin, arch, stored, depth):
    """Every byte that is a number, in exact sums of powers of two apart; a NaN reaches its row and column alone."""
    device, dtype = standin(arch), getattr(ml_dtypes, f"float8_{stored}")
    lane, element = np.mgrid[: 32 if arch == "gfx1201" else 64, :8]
    k = element // 4 * 8 + lane // 16 * 4 + element % 4 if arch == "gfx1201" else lane // 16 * 8 + element
    rng, rows = np.random.default_rng(8), sum_index(arch)
    numbers = np.arange(256).astype(np.uint8).view(dtype)
    numbers = rng.permutation(np.resize(numbers[np.isfinite(numbers)], 16 * depth)).reshape(16, depth)
    a, b = numbers, (2.0 ** rng.integers(-3, 4, (depth, 16))).astype(dtype)
    c = rng.integers(-100, 101, (16, 16)).astype(np.float32)
    for poisoned in (False, True):
        if poisoned:
            a = a.copy()
            a[3, 5] = np.nan
        pointers = [device.upload(np.ascontiguousarray(x)) for x in (a[lane % 16, k], b[k, lane % 16], c[rows])]
        pointers.append(device.empty(c.nbytes))
        grid = ("matrix.hip", "instruction", (1,), (len(lane),))
        assert device.run(*grid, *pointers, DTYPE=stored, FRAGMENTS=1, UNCHAINED=1) == (SUCCESS, "")
        d = device.download(pointers[3], c[rows].shape, np.float32)
        right = (a.astype(np.float64) @ b.astype(np.float64) + c)[rows]
        np.testing.assert_allclose(d, right, rtol=1e-6, atol=1e-4)
        assert np.isnan(right).any() == poisoned
        for pointer in pointers:
            device.free(pointer)


@pytest.mark.parametrize("arch", SHAPES)
def test_each_register_element_has_its_own_place(execute, arch):
    """One-hot fragments: element e of lane l of A meets exactly row l % 16, and depth by depth the row of B."""
    lanes, depth, elements, registers = SHAPES[arch]
    n, k = operand_index(arch)
    row, column = sum_index(arch)
    b = np.arange(1, depth * 16 + 1).reshape(depth, 16) % 251  # rows all differ
    zero = np.zeros((lanes, registers), np.float32)
    places = [(lane, e) for lane in range(lanes) for e in range(elements)]
    for lane, e in places[:: 3 if arch != "gfx1100" else 5]:
        a = np.zeros((lanes, elements), np.float16)
        a[(n == n[lane, e]) & (k == k[lane, e])] = 1  # one lane's element, and on gfx11 its copy
        assert np.count_nonzero(a) == (2 if arch == "gfx1100" else 1)
        d = execute(arch, "f16", a, b[k, n].astype(np.float16), zero)
        np.testing.assert_array_equal(d, np.where(row == lane % 16, b[k[lane, e]][column], 0))


@pytest.mark.parametrize("arch", SHAPES)
def test_only_cdna_2_takes_subnormal_inputs_for_zero(execute, arch):
    """As MIOpen's documentation says of the MI200's f16 and bf16 matrix instructions."""
    _, depth, _, _ = SHAPES[arch]
    n, k = operand_index(arch)
    rows = sum_index(arch)
    a, b = np.full((16, depth), 2.0**-20, np.float16), np.full((depth, 16), 8, np.float16)
    d = execute(arch, "f16", a[n, k], b[k, n], np.ones((16, 16), np.float32)[rows])
    assert (d == (1 if arch == "gfx90a" else 1 + depth * 2.0**-17)).all()


@pytest.mark.parametrize(("arch", "dtype"), EVERYWHERE)
def test_products_through_the_kernels_interface(standin, arch, dtype):
    """`Matrix<T>` from row-major LDS tiles, on matrix instructions and on vector units."""
    depth = SHAPES[arch][1] if dtype != "f32" and arch in SHAPES else 4
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-8, 9, (16, depth)).astype(DTYPES[dtype]) for _ in range(2))
    c = rng.integers(-100, 101, (16, 16)).astype(np.float32)
    device = standin(arch)
    d = device.empty(c.nbytes)
    pointers = [device.upload(x) for x in (a, b, c)]
    ran = device.run("matrix.hip", "product", (1,), (64 if "gfx9" in arch else 32,), *pointers, d, DTYPE=dtype)
    assert ran == (SUCCESS, "")
    wanted = c + a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(device.download(d, (16, 16), np.float32), wanted)


@pytest.mark.parametrize(("arch", "dtype"), EVERYWHERE)
def test_chained_products_need_no_lds(standin, arch, dtype):
    """The first product's C becomes the second's B; small integers are exact in every type, so equality holds."""
    depth = SHAPES[arch][1] if dtype != "f32" and arch in SHAPES else 4
    chain = max(depth, 16)
    rng = np.random.default_rng(8)
    k, q, v = (rng.integers(-1, 2, shape).astype(DTYPES[dtype]) for shape in ((chain, depth), (16, depth), (16, chain)))
    device = standin(arch)
    out = device.empty(4 * 256)
    pointers = [device.upload(x) for x in (k, q, v)]
    ran = device.run("matrix.hip", "chained", (1,), (64 if "gfx9" in arch else 32,), *pointers, out, DTYPE=dtype)
    assert ran == (SUCCESS, "")
    k, q, v = (x.astype(np.float64) for x in (k, q, v))
    np.testing.assert_array_equal(device.download(out, (16, 16), np.float32), v @ (k @ q.T))


def test_products_are_exact_and_sums_round_in_float(execute):
    """2^-24 times 1 is not lost in a half; beside 1 it is lost in a float, as many times as it is added."""
    n, k = operand_index("gfx1201")
    a = np.where(k == 0, 1.0, 2.0**-24)[..., :]
    b = np.ones(n.shape)
    d = execute("gfx1201", "f16", a.astype(np.float16), b.astype(np.float16), np.zeros((32, 8), np.float32))
    assert (d == 1).all()
    d = execute("gfx1201", "f16", np.where(k == 0, 0, a).astype(np.float16), b.astype(np.float16),
                np.zeros((32, 8), np.float32))  # fmt: skip
    assert (d == 15 * 2.0**-24).all()


def test_special_values_go_through(execute):
    """Infinities and NaN reach the sums they belong to and no others."""
    n, k = operand_index("gfx942")
    a = np.where((n == 3) & (k == 5), np.inf, 1.0).astype(ml_dtypes.bfloat16)
    b = np.where((n == 2) & (k == 5), np.nan, 1.0).astype(ml_dtypes.bfloat16)
    d = execute("gfx942", "bf16", a, b, np.zeros((64, 4), np.float32))
    row, column = sum_index("gfx942")
    assert np.isnan(d[column == 2]).all()
    assert (d[(row == 3) & (column != 2)] == np.inf).all()
    assert (d[(row != 3) & (column != 2)] == 16).all()
