"""What the mnemonics of AMDGPU instructions mean."""

from collections import Counter

import pytest

from rocattn_profiling.kernels.read.instructions import Access, Pipe, Role, classify, idioms

LOAD, STORE, ATOMIC = Access.LOAD, Access.STORE, Access.ATOMIC


@pytest.mark.parametrize(
    ("mnemonic", "unit", "role"),
    [
        ("v_add_f32_e32", Pipe.VECTOR, Role.PLAIN),
        ("v_fma_mix_f32", Pipe.VECTOR, Role.PLAIN),
        ("v_pack_b32_f16", Pipe.VECTOR, Role.PLAIN),
        ("v_pk_fma_f32", Pipe.VECTOR, Role.PACKED),
        ("v_pk_mov_b32", Pipe.VECTOR, Role.MOVE),
        ("v_mov_b64_e32", Pipe.VECTOR, Role.MOVE),
        ("v_accvgpr_write_b32", Pipe.VECTOR, Role.MOVE),
        ("v_exp_f32_e32", Pipe.VECTOR, Role.TRANSCENDENTAL),
        ("v_rcp_iflag_f32_e32", Pipe.VECTOR, Role.TRANSCENDENTAL),
        ("v_s_rsq_f32", Pipe.VECTOR, Role.TRANSCENDENTAL),
        ("v_cvt_pk_f16_f32", Pipe.VECTOR, Role.CONVERSION),
        ("v_permlanex16_b32", Pipe.VECTOR, Role.CROSS_LANE),
        ("v_permlane32_swap_b32_e32", Pipe.VECTOR, Role.CROSS_LANE),
        ("v_readfirstlane_b32", Pipe.VECTOR, Role.CROSS_LANE),
        ("v_add_f32_dpp", Pipe.VECTOR, Role.CROSS_LANE),
        ("ds_bpermute_b32", Pipe.LDS, Role.CROSS_LANE),
        ("ds_swizzle_b32", Pipe.LDS, Role.CROSS_LANE),
        ("s_mul_i32", Pipe.SCALAR, Role.PLAIN),
        ("s_load_b128", Pipe.SCALAR, Role.PLAIN),
        ("s_cbranch_vccz", Pipe.BRANCH, Role.PLAIN),
        ("s_endpgm", Pipe.BRANCH, Role.PLAIN),
        ("s_waitcnt", Pipe.WAIT, Role.PLAIN),
        ("s_wait_dscnt", Pipe.WAIT, Role.PLAIN),
        ("s_waitcnt_depctr", Pipe.WAIT, Role.PLAIN),
        ("s_barrier_signal", Pipe.WAIT, Role.PLAIN),
        ("buffer_gl0_inv", Pipe.WAIT, Role.PLAIN),
        ("buffer_wbl2", Pipe.WAIT, Role.PLAIN),
        ("global_inv", Pipe.WAIT, Role.PLAIN),
        ("s_delay_alu", Pipe.HINT, Role.PLAIN),
        ("v_nop", Pipe.HINT, Role.PLAIN),
        ("s_clause", Pipe.HINT, Role.PLAIN),
        ("export_something", Pipe.OTHER, Role.PLAIN),
    ],
)
def test_each_goes_to_one_unit_and_has_one_role(mnemonic, unit, role):
    """Matrix, vector, LDS, scalar, branches, waits and hints are told apart, and vector work by its purpose."""
    operation = classify(mnemonic)
    assert (operation.unit, operation.role, operation.access, operation.flops) == (unit, role, None, 0)


@pytest.mark.parametrize(
    ("mnemonic", "unit", "access", "width"),
    [
        ("ds_read_b32", Pipe.LDS, LOAD, 4),
        ("ds_load_b128", Pipe.LDS, LOAD, 16),
        ("ds_read2_b64", Pipe.LDS, LOAD, 16),
        ("ds_load_2addr_stride64_b32", Pipe.LDS, LOAD, 8),
        ("ds_read2st64_b64", Pipe.LDS, LOAD, 16),
        ("ds_read_u16_d16_hi", Pipe.LDS, LOAD, 2),
        ("ds_read_b64_tr_b16", Pipe.LDS, LOAD, 8),
        ("ds_load_tr16_b128", Pipe.LDS, LOAD, 16),
        ("ds_write2st64_b32", Pipe.LDS, STORE, 8),
        ("ds_store_b96", Pipe.LDS, STORE, 12),
        ("ds_add_rtn_f32", Pipe.LDS, ATOMIC, 4),
        ("global_load_dword", Pipe.GLOBAL, LOAD, 4),
        ("global_load_dwordx3", Pipe.GLOBAL, LOAD, 12),
        ("global_load_lds_dwordx4", Pipe.GLOBAL, LOAD, 16),
        ("global_load_d16_hi_b16", Pipe.GLOBAL, LOAD, 2),
        ("global_load_short_d16", Pipe.GLOBAL, LOAD, 2),
        ("global_load_ubyte", Pipe.GLOBAL, LOAD, 1),
        ("global_load_tr_b128_w32", Pipe.GLOBAL, LOAD, 16),
        ("buffer_load_b64", Pipe.GLOBAL, LOAD, 8),
        ("buffer_load_format_xyz", Pipe.GLOBAL, LOAD, 12),
        ("buffer_load_format_d16_xy", Pipe.GLOBAL, LOAD, 4),
        ("flat_store_dwordx2", Pipe.GLOBAL, STORE, 8),
        ("global_store_b8", Pipe.GLOBAL, STORE, 1),
        ("global_atomic_add_f32", Pipe.GLOBAL, ATOMIC, 4),
        ("global_atomic_pk_add_bf16", Pipe.GLOBAL, ATOMIC, 4),
        ("global_atomic_cmpswap_x2", Pipe.GLOBAL, ATOMIC, 8),
        ("scratch_load_b128", Pipe.SCRATCH, LOAD, 16),
        ("scratch_store_dword", Pipe.SCRATCH, STORE, 4),
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
    assert classify(mnemonic).unit is Pipe.MATRIX
    assert classify(mnemonic).flops == 2 * products


def test_named_code_is_found_by_its_mnemonics():
    """A barrier's own invalidation on RDNA is no fence, and a readfirstlane alone no waterfall loop."""

    def named(mnemonics):
        return idioms(Counter(mnemonics))

    assert named({"buffer_gl0_inv", "v_readfirstlane_b32", "global_load_b32", "global_inv"}) == ()
    assert named({"buffer_gl1_inv"}) == named({"buffer_wbl2"}) == named({"buffer_inv"}) == ("fence",)
    assert named({"v_readfirstlane_b32", "v_cmp_eq_u32_e32", "s_and_saveexec_b64"}) == ("waterfall loop",)
    assert named({"v_mul_hi_u32", "v_cmp_le_u32_e32", "v_cndmask_b32_e32"}) == ("integer division",)
    assert named({"global_atomic_add_f32", "ds_add_u32", "ds_bpermute_b32"}) == ("LDS atomic", "global atomic")
    assert named({"v_exp_f32_e32", "v_rndne_f32_e32", "v_ldexp_f32"}) == ("exact exponential",)
    assert named({"v_exp_f32_e32"}) == ()
    assert named({"v_cvt_f64_f32_e32", "v_mul_f64"}) == ("f32 made f64",)
    copies = ["v_accvgpr_read_b32", "v_accvgpr_write_b32"]
    assert named([*copies, "v_mfma_f32_32x32x8_f16"]) == ("AGPR copies",)
    assert named([*copies, *["v_mfma_f32_32x32x8_f16"] * 2]) == ()
    assert named({"flat_load_dword", "v_rcp_iflag_f32_e32", "v_div_fmas_f32"}) == (
        "exact division", "flat access", "integer division",
    )  # fmt: skip
