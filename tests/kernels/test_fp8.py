"""K and V of 8 bits: what each byte becomes, and which instructions do it."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

from rocattn.gpu.arch import TESTED, fp8_dtype
from rocattn.gpu.arguments import FP8_TYPES
from rocattn.gpu.flash import BUILT_FP8, BUILT_FP8_Q, variants
from rocattn.toolchain import compile_hip
from rocattn_profiling.workloads.inputs import numpy_dtype

SOURCE = """
#include <rocattn/tile.h>
using namespace rocattn;
template <typename T, typename Stored>
ROCATTN_INLINE void convert(const Stored* bytes, T* out) {
    const auto eight = load<Stored, 8>(bytes + thread_id() * 8);
    store<T, 8>(out + thread_id() * 8, as_computed<T, Stored, 8>(eight));
}
ROCATTN_KERNEL(values, 32, (const STORED* bytes, f16* half, bf16* brain, float* full, float* alone, u32* found)) {
    convert(bytes, half);
    convert(bytes, brain);
    convert(bytes, full);
    for (u32 i = 0; i < 8; ++i) {
        const u32 at = thread_id() * 8 + i;
        store(alone + at, to_float(load(bytes + at)));
    }
    for (u32 first = 0; first < 8; first += 4) {
        auto four = load<STORED, 4>(bytes + thread_id() * 8 + first);
        u32 any = 0;
        NonFinite<STORED>::find(four, any);
        NonFinite<STORED>::clear(four);
        store(found + (thread_id() * 8 + first) / 4 * 2, static_cast<u32>(NonFinite<STORED>::is_set(any)));
        store(found + (thread_id() * 8 + first) / 4 * 2 + 1, __builtin_bit_cast(u32, four));
    }
}
"""


def value_of(byte, kv_dtype):
    """What the formats' definitions say of a byte (OCP 8-bit Floating Point 1.0; AMD CDNA 3 ISA, 7.6)."""
    sign, exponent, fraction = byte >> 7, byte >> 3 & 15, byte & 7
    bias = 7 if kv_dtype == "float8_e4m3fn" else 8
    if (byte & 127 == 127) if bias == 7 else (byte == 128):
        return math.nan
    size = math.ldexp(fraction, -2 - bias) if exponent == 0 else math.ldexp(8 + fraction, exponent - bias - 3)
    return -size if sign else size


@pytest.mark.parametrize("kv_dtype", FP8_TYPES)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201", "gfx1100"])
def test_every_byte_becomes_its_value(standin, tmp_path, arch, kv_dtype):
    """All 256 in f16, bf16 and f32, with the sign of 0, as ml_dtypes has them; NaN alone is found and cleared."""
    exact = np.array([value_of(byte, kv_dtype) for byte in range(256)])
    of_ml_dtypes = np.arange(256).astype(np.uint8).view(numpy_dtype(kv_dtype)).astype(np.float64)
    np.testing.assert_array_equal(of_ml_dtypes, exact)

    device = standin(arch)
    source = tmp_path / "values.hip"
    source.write_text(SOURCE)
    # Each byte at each place of a word.
    bytes_ = np.concatenate([np.roll(np.arange(256), shift) for shift in range(4)]).astype(np.uint8).reshape(4, 256)
    for order in bytes_:
        given = device.upload(order)
        dtypes = {"half": np.float16, "brain": ml_dtypes.bfloat16, "full": np.float32, "alone": np.float32}
        outputs = {name: device.upload(np.zeros(256, dtype)) for name, dtype in dtypes.items()}
        found = device.upload(np.zeros((64, 2), np.uint32))
        arguments = given, *outputs.values(), found
        answer = device.run(source, "values", (1, 1, 1), (32, 1, 1), *arguments, STORED=FP8_TYPES[kv_dtype])
        assert answer == (0, "")
        for name, dtype in dtypes.items():
            got = device.download(outputs[name], (256,), np.dtype(dtype)).astype(np.float64)
            np.testing.assert_array_equal(got, exact[order], err_msg=name)
            numbers = ~np.isnan(got)
            np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[order][numbers]), err_msg=name)
        any_nan, cleared = device.download(found, (64, 2), np.dtype(np.uint32)).T
        nan = np.isnan(exact[order])
        np.testing.assert_array_equal(any_nan != 0, nan.reshape(64, 4).any(axis=1))
        np.testing.assert_array_equal(np.ascontiguousarray(cleared).view(np.uint8), np.where(nan, 0, order))
        for pointer in (given, *outputs.values(), found):
            device.free(pointer)


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("arch", [arch for arch in TESTED if fp8_dtype(arch)])
def test_bytes_are_converted_by_instructions(arch):
    """Each shipped kernel converts its tiles two elements at a time; with Q of 8 bits, K is multiplied as it is."""
    stored = FP8_TYPES[fp8_dtype(arch)]
    built = [variant for variant in variants(arch) if "KV_DTYPE" in variant.defines]
    symbols = [*(f"{symbol}_fp8" for symbol in BUILT_FP8), *(f"{symbol}_fp8_q" for symbol in BUILT_FP8_Q)]
    assert sorted(variant.symbol for variant in built) == sorted(symbols)
    for variant in built:
        defines = variant.defines
        kinds = {name: stored for name in ("KV_DTYPE", "Q_DTYPE") if name in defines}
        assert {name: defines[name] for name in kinds} == kinds
        code = compile_hip(variant.source, arch, defines=defines)
        conversions = len(re.findall(r"\sv_cvt_pk_f32_fp8", code.assembly))
        lanes = defines["WAVES"] * (64 if arch.startswith("gfx9") else 32)
        columns = defines["HEAD_DIM_V"] + defines["HEAD_DIM"] * ("Q_DTYPE" not in defines)
        assert conversions == defines["KEYS_PER_TILE"] * columns // lanes // 2
        depth = 32 if arch.startswith("gfx9") else 16
        products = defines["KEYS_PER_TILE"] // 16 * defines["HEAD_DIM"] // depth * defines["QUERY_FRAGMENTS"]
        assert len(re.findall(r"\sv_(?:mfma|wmma)\w*_fp8_fp8", code.assembly)) == products * ("Q_DTYPE" in defines)
        other = {"e4m3fn": "e4m3fnuz", "e4m3fnuz": "e4m3fn"}[stored]
        code = compile_hip(variant.source, arch, defines=defines | dict.fromkeys(kinds, other))
        assert "_fp8" not in code.assembly.replace(variant.symbol, "")
