"""What gfx950 has and gfx942 has not is decoded as the pinned clang assembles it."""

import re

import pytest

from rocattn.errors import ToolchainError
from rocattn.toolchain.code_object import read_elf
from rocattn.toolchain.compilers import choose_compiler
from rocattn.toolchain.hip import compile_hip
from rocattn_profiling.kernels.read.gfx950 import as_gfx942

NEW = """\
v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[12:15]
v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], 0
v_mfma_f32_32x32x16_f16 v[0:15], v[4:7], v[8:11], v[0:15]
v_mfma_f32_32x32x16_bf16 a[0:15], v[4:7], a[8:11], a[16:31]
v_mfma_i32_16x16x64_i8 v[0:3], v[4:7], v[8:11], v[12:15]
v_mfma_i32_32x32x32_i8 v[0:15], v[4:7], v[8:11], v[0:15]
v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[4:11], v[12:19], v[20:35]
v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[20:23] cbsz:1 blgp:1
v_permlane16_swap_b32 v1, v2
v_permlane32_swap_b32 v1, v2
v_prng_b32 v1, v2
v_cvt_f32_bf16 v1, v2
v_cvt_pk_bf16_f32 v1, v2, s3
v_cvt_pk_f16_f32 v1, v2, v3
v_cvt_sr_bf16_f32 v1, v2, v3
v_cvt_sr_f16_f32 v1, v2, v3
v_bitop3_b32 v1, v2, v3, -4 bitop3:0x78
v_bitop3_b16 v1, v2, v3, v4 bitop3:0x36
v_minimum3_f32 v1, v2, v3, v4
v_maximum3_f32 v1, v2, 1.0, v4
v_pk_minimum3_f16 v1, v2, v3, v4
v_pk_maximum3_f16 v1, v2, v3, v4
v_ashr_pk_i8_i32 v1, v2, v3, v4
v_ashr_pk_u8_i32 v1, v2, v3, v4
v_dot2_f32_bf16 v1, v2, v3, v4
v_cvt_scalef32_pk_fp8_f32 v1, v2, v3, v4
v_cvt_scalef32_pk_bf8_f32 v1, v2, v3, v4
v_cvt_scalef32_pk_fp4_f32 v1, v2, v3, v4
ds_read_b64_tr_b16 v[2:3], v1 offset:64
ds_read_b64_tr_b8 v[2:3], v1
ds_read_b64_tr_b4 v[2:3], v1
ds_read_b96_tr_b6 v[2:4], v1
buffer_load_dwordx3 v1, s[8:11], s4 offen offset:16 lds
buffer_load_dwordx4 v1, s[8:11], 0 offen lds
global_load_lds_dwordx3 v[2:3], off
global_load_lds_dwordx4 v2, s[4:5]
""".splitlines()
# What both have, with second words that look like anything: the walk over the code must not fall out of step.
OLD = """\
v_mov_b32 v1, 0xd3b70000
s_mov_b32 s4, 0xd9c60000
s_setreg_imm32_b32 hwreg(HW_REG_MODE), 0xd3b70000
v_fmamk_f32 v1, v2, 0xd3b70000, v3
v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
s_cmp_eq_u32 s4, 0xd3b70000
s_add_u32 s4, s5, 0xd3b70000
s_movk_i32 s4, 0x1234
buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen
global_load_dwordx4 v[4:7], v[2:3], off
v_mfma_f32_32x32x8_f16 v[0:15], v[4:5], v[8:9], v[0:15]
ds_read_b128 v[4:7], v1 offset:64
""".splitlines()


def test_each_is_decoded_as_it_was_assembled(tmp_path):
    """In the middle of what gfx942 has, which is left alone."""
    try:
        choose_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    mixed = [line for pair in zip(NEW, OLD * 3, strict=True) for line in pair]
    source = tmp_path / "new.hip"
    body = "".join(f'    asm volatile("{line}");\n' for line in mixed)
    source.write_text(f'extern "C" __attribute__((global)) void k() {{\n{body}}}\n')
    elf = read_elf(compile_hip(source, "gfx950").data)
    symbol = next(each for each in elf.symbols.values() if each.name == "k")
    data, replaced = as_gfx942(elf, [(symbol.value, symbol.value + symbol.bytes)])
    assert [re.sub(" +", " ", text) for text in replaced.values() if text] == NEW
    assert len(data) == len(elf.data)
    assert sum(a != b for a, b in zip(data, elf.data, strict=True)) <= 4 * len(replaced) + 1


def test_a_scaled_product_is_one_instruction():
    """Its scales stand in two words before it (encoding as clang 22 makes it)."""
    from rocattn_profiling.kernels.read.gfx950 import _new_instructions

    words = (0xD3AC0000, 0x00023318, 0xD3AD0800, 0x04521904)
    (found,) = _new_instructions(words)
    assert found[:2] == (0, 4)
    assert found[2].startswith("v_mfma_scale_f32_16x16x128_f8f6f4 ")
