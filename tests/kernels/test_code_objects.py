"""Kernels compiled for every supported GPU: what their code objects say, without a GPU."""

import re

import pytest

from rocattn.toolchain import compile_hip

ARCHS = ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"]
# 64 VGPRs leave 8 waves a SIMD on CDNA (512 registers) and 16 on RDNA: enough to hide memory latency.
MAX_VGPRS = 64
POINTER = {".size": 8, ".value_kind": "global_buffer", ".address_space": "global"}
# The table in the header of hip/softmax.hip.
SOFTMAX_ARGS = [
    *({".offset": offset} | POINTER for offset in (0, 8, 16, 24)),
    *({".offset": offset, ".size": 8, ".value_kind": "by_value"} for offset in (32, 40)),
    *({".offset": offset, ".size": 4, ".value_kind": "by_value"} for offset in (48, 52, 56, 60, 64)),
]


def compile_softmax(arch, in_dtype="f16", out_dtype="f16", block=256):
    """Compile hip/softmax.hip."""
    return compile_hip("hip/softmax.hip", arch, defines={"IN_DTYPE": in_dtype, "OUT_DTYPE": out_dtype, "BLOCK": block})


@pytest.mark.usefixtures("kernel_cache")
class TestSoftmax:
    """hip/softmax.hip."""

    @pytest.mark.parametrize("arch", ARCHS)
    @pytest.mark.parametrize(
        ("in_dtype", "out_dtype"), [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f32", "f16")]
    )
    def test_it_compiles_within_its_register_budget(self, read_metadata, caplog, arch, in_dtype, out_dtype):
        """No warning, no scratch, no spill, at most the VGPRs that its header states, on every target."""
        code = compile_softmax(arch, in_dtype, out_dtype)
        assert caplog.records == []
        metadata = read_metadata(code.data)
        assert metadata["amdhsa.target"] == f"amdgcn-amd-amdhsa--{arch}"
        (kernel,) = metadata["amdhsa.kernels"]
        assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0)
        assert kernel[".private_segment_fixed_size"] == 0
        assert kernel[".vgpr_count"] <= MAX_VGPRS
        assert kernel[".wavefront_size"] == (64 if arch.startswith("gfx9") else 32)

    @pytest.mark.parametrize("block", [64, 256, 1024])
    def test_its_launch_is_what_the_header_says(self, read_metadata, block):
        """Symbol, block, LDS bytes and every argument's offset, size and kind are as documented, none is hidden."""
        (kernel,) = read_metadata(compile_softmax("gfx942", block=block).data)["amdhsa.kernels"]
        assert kernel[".name"] == "softmax_rows"
        assert kernel[".max_flat_workgroup_size"] == block
        assert kernel[".group_segment_fixed_size"] == 8 * block // 64
        assert kernel[".kernarg_segment_size"] == 68
        relevant = {".offset", ".size", ".value_kind", ".address_space"}
        assert [{key: arg[key] for key in arg.keys() & relevant} for arg in kernel[".args"]] == SOFTMAX_ARGS

    @pytest.mark.parametrize("arch", ARCHS)
    def test_its_wide_path_moves_16_bytes_an_instruction(self, arch):
        """Loads and stores of 16 bytes are in the code, and none that has to find out its address space."""
        assembly = compile_softmax(arch).assembly
        assert re.search(r"\tglobal_load_(dwordx4|b128)", assembly)
        assert re.search(r"\tglobal_store_(dwordx4|b128)", assembly)
        assert not re.search(r"\tflat_(load|store)", assembly)

    def test_target_features_reach_the_code_object(self, read_metadata):
        """A full target id, as GPUs report it, is compiled as such."""
        metadata = read_metadata(compile_softmax("gfx90a:sramecc+:xnack-").data)
        assert metadata["amdhsa.target"] == "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"


@pytest.mark.usefixtures("kernel_cache")
def test_the_headers_accept_definitions_made_before_them(tmp_path):
    """Under hipRTC, HIP's own __global__, __device__, __shared__ and threadIdx exist already."""
    source = tmp_path / "like_hiprtc.hip"
    source.write_text(
        "#define __global__ __attribute__((global))\n"
        "#define __device__ __attribute__((device))\n"
        "#define __shared__ __attribute__((shared))\n"
        "#define __launch_bounds__(n) __attribute__((launch_bounds(n)))\n"
        "struct dim { unsigned x, y, z; };\n"
        "extern __device__ const dim threadIdx;\n"
        "#include <rocattn/device.h>\n"
        'extern "C" __global__ void k(float* x) { x[rocattn::thread_id()] = rocattn::wave_sum(*x); }\n'
    )
    assert compile_hip(source, "gfx1100").data.startswith(b"\x7fELF")


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("bits", "expected"), [("0x7f800001u", 0x7FC0), ("0xff812345u", 0xFFC1)])
def test_bfloat16_keeps_nan(bits, expected, tmp_path):
    """Rounding to bfloat16 cannot carry a NaN into infinity; the compiler folds it, so no GPU is needed to see it."""
    source = tmp_path / "nan.hip"
    source.write_text(
        "#include <rocattn/device.h>\n"
        'extern "C" __global__ void k(unsigned* out) {\n'
        f"    *out = rocattn::from_float<rocattn::bf16>(__builtin_bit_cast(float, {bits})).bits;\n"
        "}\n"
    )
    assembly = compile_hip(source, "gfx942").assembly
    assert re.search(rf"v_mov_b32_e32 v\d+, {hex(expected)}\b", assembly), assembly
