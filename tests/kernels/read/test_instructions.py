"""What the mnemonics of AMDGPU instructions mean."""

import pytest

from rocattn_profiling.kernels.read.instructions import Access, Role, Unit, classify

LOAD, STORE, ATOMIC = Access.LOAD, Access.STORE, Access.ATOMIC


@pytest.mark.parametrize(
    ("mnemonic", "unit", "role"),
    [
        ("v_add_f32_e32", Unit.VECTOR, Role.PLAIN),
        ("v_fma_mix_f32", Unit.VECTOR, Role.PLAIN),
        ("v_pack_b32_f16", Unit.VECTOR, Role.PLAIN),
        ("v_pk_fma_f32", Unit.VECTOR, Role.PACKED),
        ("v_pk_mov_b32", Unit.VECTOR, Role.MOVE),
        ("v_mov_b64_e32", Unit.VECTOR, Role.MOVE),
        ("v_accvgpr_write_b32", Unit.VECTOR, Role.MOVE),
        ("v_exp_f32_e32", Unit.VECTOR, Role.TRANSCENDENTAL),
        ("v_rcp_iflag_f32_e32", Unit.VECTOR, Role.TRANSCENDENTAL),
        ("v_s_rsq_f32", Unit.VECTOR, Role.TRANSCENDENTAL),
        ("v_cvt_pk_f16_f32", Unit.VECTOR, Role.CONVERSION),
        ("v_permlanex16_b32", Unit.VECTOR, Role.CROSS_LANE),
        ("v_permlane32_swap_b32_e32", Unit.VECTOR, Role.CROSS_LANE),
        ("v_readfirstlane_b32", Unit.VECTOR, Role.CROSS_LANE),
        ("v_add_f32_dpp", Unit.VECTOR, Role.CROSS_LANE),
        ("ds_bpermute_b32", Unit.LDS, Role.CROSS_LANE),
        ("ds_swizzle_b32", Unit.LDS, Role.CROSS_LANE),
        ("s_mul_i32", Unit.SCALAR, Role.PLAIN),
        ("s_load_b128", Unit.SCALAR, Role.PLAIN),
        ("s_cbranch_vccz", Unit.BRANCH, Role.PLAIN),
        ("s_endpgm", Unit.BRANCH, Role.PLAIN),
        ("s_waitcnt", Unit.WAIT, Role.PLAIN),
        ("s_wait_dscnt", Unit.WAIT, Role.PLAIN),
        ("s_waitcnt_depctr", Unit.WAIT, Role.PLAIN),
        ("s_barrier_signal", Unit.WAIT, Role.PLAIN),
        ("buffer_gl0_inv", Unit.WAIT, Role.PLAIN),
        ("buffer_wbl2", Unit.WAIT, Role.PLAIN),
        ("global_inv", Unit.WAIT, Role.PLAIN),
        ("s_delay_alu", Unit.HINT, Role.PLAIN),
        ("v_nop", Unit.HINT, Role.PLAIN),
        ("s_clause", Unit.HINT, Role.PLAIN),
        ("export_something", Unit.OTHER, Role.PLAIN),
    ],
)
def test_each_goes_to_one_unit_and_has_one_role(mnemonic, unit, role):
    """Matrix, vector, LDS, scalar, branches, waits and hints are told apart, and vector work by its purpose."""
    operation = classify(mnemonic)
    assert (operation.unit, operation.role, operation.access, operation.flops) == (unit, role, None, 0)


@pytest.mark.parametrize(
    ("mnemonic", "unit", "access", "width"),
    [
        ("ds_read_b32", Unit.LDS, LOAD, 4),
        ("ds_load_b128", Unit.LDS, LOAD, 16),
        ("ds_read2_b64", Unit.LDS, LOAD, 16),
        ("ds_load_2addr_stride64_b32", Unit.LDS, LOAD, 8),
        ("ds_read2st64_b64", Unit.LDS, LOAD, 16),
        ("ds_read_u16_d16_hi", Unit.LDS, LOAD, 2),
        ("ds_read_b64_tr_b16", Unit.LDS, LOAD, 8),
        ("ds_load_tr16_b128", Unit.LDS, LOAD, 16),
        ("ds_write2st64_b32", Unit.LDS, STORE, 8),
        ("ds_store_b96", Unit.LDS, STORE, 12),
        ("ds_add_rtn_f32", Unit.LDS, ATOMIC, 4),
        ("global_load_dword", Unit.GLOBAL, LOAD, 4),
        ("global_load_dwordx3", Unit.GLOBAL, LOAD, 12),
        ("global_load_lds_dwordx4", Unit.GLOBAL, LOAD, 16),
        ("global_load_d16_hi_b16", Unit.GLOBAL, LOAD, 2),
        ("global_load_short_d16", Unit.GLOBAL, LOAD, 2),
        ("global_load_ubyte", Unit.GLOBAL, LOAD, 1),
        ("global_load_tr_b128_w32", Unit.GLOBAL, LOAD, 16),
        ("buffer_load_b64", Unit.GLOBAL, LOAD, 8),
        ("buffer_load_format_xyz", Unit.GLOBAL, LOAD, 12),
        ("buffer_load_format_d16_xy", Unit.GLOBAL, LOAD, 4),
        ("flat_store_dwordx2", Unit.GLOBAL, STORE, 8),
        ("global_store_b8", Unit.GLOBAL, STORE, 1),
        ("global_atomic_add_f32", Unit.GLOBAL, ATOMIC, 4),
        ("global_atomic_pk_add_bf16", Unit.GLOBAL, ATOMIC, 4),
        ("global_atomic_cmpswap_x2", Unit.GLOBAL, ATOMIC, 8),
        ("scratch_load_b128", Unit.SCRATCH, LOAD, 16),
        ("scratch_store_dword", Unit.SCRATCH, STORE, 4),
    ],
)
def test_memory_instructions_say_how_wide_they_are(mnemonic, unit, access, width):
    """Bytes a lane, on old and new names; the forms with two addresses move both."""
    operation = classify(mnemonic)
    assert (operation.unit, operation.access, operation.width) == (unit, access, width)


@pytest.mark.parametrize(
    ("mnemonic", "products"),
    [
        ("v_wmma_f32_16x16x16_f16", 16 * 16 * 16),
        ("v_wmma_i32_16x16x16_iu8", 16 * 16 * 16),
        ("v_swmmac_f32_16x16x32_bf16", 16 * 16 * 32),
        ("v_mfma_f32_16x16x16_f16", 16 * 16 * 16),
        ("v_mfma_f32_16x16x16f16", 16 * 16 * 16),
        ("v_mfma_f32_32x32x8_bf16_1k", 32 * 32 * 8),
        ("v_mfma_f32_16x16x32_bf16", 16 * 16 * 32),
        ("v_mfma_scale_f32_32x32x64_f8f6f4", 32 * 32 * 64),
        ("v_smfmac_f32_16x16x32_f16", 16 * 16 * 32),
        ("v_mfma_f32_4x4x4_16b_f16", 4 * 4 * 4 * 16),
        ("v_mfma_f32_4x4x4f16", 4 * 4 * 4 * 16),
        ("v_mfma_f32_16x16x4f32", 16 * 16 * 4),
        ("v_mfma_f32_16x16x4f16", 16 * 16 * 4 * 4),
        ("v_mfma_f32_16x16x4bf16_1k", 16 * 16 * 4 * 4),
        ("v_mfma_f32_32x32x4bf16", 32 * 32 * 4),
        ("v_mfma_f32_32x32x4bf16_1k", 32 * 32 * 4 * 2),
        ("v_mfma_f32_32x32x1f32", 32 * 32 * 2),
        ("v_mfma_f64_4x4x4f64", 4 * 4 * 4 * 4),
        ("v_mfma_f64_16x16x4f64", 16 * 16 * 4),
    ],
)
def test_matrix_products_say_how_much_they_compute(mnemonic, products):
    """FLOPs from the shape, and from the number of products where the older names leave it to the depth."""
    assert classify(mnemonic).unit is Unit.MATRIX
    assert classify(mnemonic).flops == 2 * products
