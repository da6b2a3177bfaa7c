"""What kernels compute: ids, lanes, arithmetic, conversions and arguments, against numpy."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from rocattn.toolchain.host import host_isa

from .standin import SUCCESS, environment

ARCHS = ["gfx1030", "gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950"]
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def wave_of(arch: str) -> int:
    """Lanes of a wave."""
    return 64 if arch.startswith("gfx9") else 32


@pytest.mark.parametrize("arch", ARCHS)
def test_ids_and_lanes(standin, arch):
    """A grid of 3 x 2 x 2 blocks of two waves."""
    device, wave = standin(arch), wave_of(arch)
    threads, blocks, columns = 2 * wave, 12, 8
    values = np.random.default_rng(3).permutation(threads).astype(np.uint32)
    out = device.empty(4 * blocks * threads * columns)
    ran = device.run("lanes.hip", "lanes", (3, 2, 2), (threads,), out, device.upload(values), DTYPE="f16")
    assert ran == (SUCCESS, "")
    seen = device.download(out, (blocks, 2, wave, columns), np.uint32)
    lane = np.arange(wave)
    waves = values.reshape(2, wave)
    assert (seen == seen[:1])[..., [0, 1, 2, 3, 4, 6, 7]].all()
    assert (seen[0, :, :, 0] == np.arange(threads).reshape(2, wave) + (lane << 24) + [[0], [1 << 16]]).all()
    assert (seen[0, :, :, 1] == waves[:, (lane * 7 + 3) % wave]).all()
    assert (seen[0, :, :, 2] == waves[:, lane ^ 5]).all()
    assert (seen[0, :, :, 3] == waves[:, lane ^ 16]).all()
    assert (seen[0, :, :, 4] == (waves == 17).any(1, keepdims=True)).all()
    assert (seen[..., 5] == np.arange(blocks)[:, None, None]).all()
    assert (seen[0, :, :, 6].view(np.float32) == waves.sum(1, keepdims=True)).all()
    assert (seen[0, :, :, 7].view(np.float32) == waves.max(1, keepdims=True)).all()


def test_fast_functions_round_well_and_drop_small_numbers(standin):
    """Within 1 ulp of float64; below 2^-126 all is 0, as on a GPU."""
    rng = np.random.default_rng(4)
    tiny, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, tiny / 2, -tiny / 2, largest]
    special += [-126, -126.5, 127.99, 128]
    x = np.concatenate(
        [special, rng.uniform(-130, 130, 3000), 2.0 ** rng.uniform(-126, 127, 3000), rng.uniform(0.5, 2, 1000)]
    ).astype(np.float32)
    device = standin()
    outs = [device.empty(x.nbytes) for _ in range(3)]
    arguments = (device.upload(x), *outs, ctypes.c_uint(len(x)))
    assert device.run("lanes.hip", "functions", (1,), (64,), *arguments, DTYPE="f16") == (SUCCESS, "")
    exp2, log2, reciprocal = (device.download(out, x.shape, np.float32) for out in outs)
    wide = x.astype(np.float64)
    flushed = np.where(np.abs(wide) < tiny, np.copysign(0.0, wide), wide)
    with np.errstate(all="ignore"):
        wanted = {"exp2": np.exp2(wide), "log2": np.log2(flushed), "reciprocal": 1 / flushed}
        for name, got in (("exp2", exp2), ("log2", log2), ("reciprocal", reciprocal)):
            exact = np.where(np.abs(wanted[name]) < tiny, 0.0, wanted[name])
            exact32 = exact.astype(np.float32)
            same = (got == exact32) | (np.isnan(got) & np.isnan(exact32))
            assert (same | (np.abs(got - exact) <= np.spacing(np.abs(exact32)))).all(), name


@pytest.mark.parametrize("isa", ["portable", None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_are_numpys(standin, dtype, isa):
    """All 65536 patterns to float, and rounding to nearest even; also without the CPU's instructions for it."""
    device = standin()
    patterns = np.arange(65536, dtype=np.uint16).view(DTYPES[dtype])
    rng = np.random.default_rng(5)
    near = patterns.astype(np.float32).view(np.uint32) + rng.integers(-0x8000, 0x8000, 65536).astype(np.uint32)
    x = near.view(np.float32)
    x[:4] = 65519.99, 65520.0, 2.0**-25, -(2.0**-25)
    wide, rounded = device.empty(4 * 65536), device.empty(2 * 65536)
    arguments = (device.upload(patterns), wide, device.upload(x), rounded, ctypes.c_uint(65536))
    with environment(ROCATTN_CPU_ISA=isa or host_isa()):
        host_isa.cache_clear()
        try:
            ran = device.run("lanes.hip", "conversions", (1,), (64,), *arguments, DTYPE=dtype, ISA=isa or "widest")
        finally:
            host_isa.cache_clear()
    assert ran == (SUCCESS, "")
    got = device.download(wide, 65536, np.float32)
    np.testing.assert_array_equal(got, patterns.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(DTYPES[dtype]).astype(np.float32)
    np.testing.assert_array_equal(device.download(rounded, 65536, DTYPES[dtype]).astype(np.float32), wanted)


def arguments_of(out):
    """Argument values with padding between them, and what the kernel should write."""
    pair = type("Pair", (ctypes.Structure,), {"_fields_": [("first", ctypes.c_uint8), ("second", ctypes.c_int64)]})
    values = (ctypes.c_uint8(7), ctypes.c_int64(-5), ctypes.c_uint16(300), ctypes.c_float(1.5), pair(9, 1 << 40), out)
    wanted = {0: b"\7", 8: (-5).to_bytes(8, "little", signed=True), 16: (300).to_bytes(2, "little")}
    wanted |= {20: np.float32(1.5).tobytes(), 24: b"\11", 32: (1 << 40).to_bytes(8, "little")}
    return values, wanted


@pytest.mark.parametrize("form", ["buffer", "each"])
def test_arguments_arrive_in_both_forms(standin, form):
    """Bytes, padding and structs, from one buffer or from an address for each."""
    device = standin()
    out = device.upload(np.zeros(48, np.uint8))
    values, wanted = arguments_of(out)
    function = device.function("lanes.hip", "arguments", DTYPE="f16")
    if form == "buffer":
        assert device.launch(function, (1,), (32,), *values) == SUCCESS, device.report()
    else:
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        status = device.lib.hipModuleLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, addresses, None)
        assert status == SUCCESS, device.report()
    written = device.download(out, 48, np.uint8).tobytes()
    for offset, data in wanted.items():
        assert written[offset : offset + len(data)] == data, offset
