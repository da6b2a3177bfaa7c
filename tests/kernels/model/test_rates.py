"""Cycles of instructions: what the data says, where it is from, and how an instruction finds its rate."""

import tomllib
from importlib.resources import files

import pytest

from rocattn_profiling.base.gpus import architecture
from rocattn_profiling.kernels.model.rates import RatesError, kind_of, product_key, rates
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.kernels.read.instructions import Pipe, classify, lane_flops, lane_product_flops

DATA = tomllib.loads(files("rocattn_profiling.kernels.model").joinpath("rates.toml").read_text(encoding="utf-8"))
FAMILIES = [("gfx90a", 64), ("gfx942", 64), ("gfx950", 64), ("gfx1030", 32), ("gfx1100", 32), ("gfx1100", 64)]
FAMILIES += [("gfx1151", 32), ("gfx1201", 32), ("gfx1201", 64)]


def cost(arch, text, wave=None):
    """Return what one instruction costs."""
    mnemonic, _, operands = text.partition(" ")
    return rates(arch, wave or (64 if arch.startswith("gfx9") else 32)).cost(Instruction(mnemonic, operands))


class TestData:
    """The file itself."""

    def test_every_number_names_a_source_that_is_described(self):
        """And every source is used."""
        entries = [*DATA["instruction"], *DATA["memory"], *DATA["matrix"], DATA["wave64_in_one_cycle"]]
        used = {entry["source"] for entry in entries}
        assert used <= set(DATA["sources"])
        text = files("rocattn_profiling.kernels.model").joinpath("rates.toml").read_text(encoding="utf-8")
        body = text.partition("[families]")[2]
        assert [name for name in DATA["sources"] if name not in body] == []

    def test_families_and_measured_families_exist(self):
        """What was measured was measured on GPUs that the entry is about."""
        for entry in [*DATA["instruction"], *DATA["memory"], *DATA["matrix"]]:
            assert set(entry["families"]) <= set(DATA["families"])
            assert set(entry.get("measured", [])) <= set(entry["families"])

    def test_no_product_stands_twice_for_a_family(self):
        """The later entry would silently win."""
        for family in DATA["families"]:
            own = [entry for entry in DATA["matrix"] if family in entry["families"]]
            keys = [(product_key(f"v_{name}"), name) for entry in own for name in entry["names"]]
            assert len({key for key, _ in keys}) == len(keys)

    @pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201"])
    def test_peaks_that_follow_are_those_of_the_gpu_table(self, arch):
        """The best product of a type, times the SIMDs of a CU: two tables with different sources agree."""
        table, gpu = rates(arch, 64 if arch.startswith("gfx9") else 32), architecture(arch)
        names = {"f16": "fp16", "bf16": "bf16", "f8": "fp8", "f32": "fp32", "f64": "fp64", "i8": "int8", "iu8": "int8"}
        names |= {"iu4": "int4", "xf32": "tf32"}
        found = {names[element]: speed * gpu.simds_per_cu for element, speed in table.peak.items()}
        known = gpu.ops_per_clock_per_cu
        assert {name: speed for name, speed in found.items() if name in known} == {
            name: speed for name, speed in known.items() if name in found
        }
        assert {"fp16", "bf16"} <= set(found).intersection(known)

    @pytest.mark.parametrize(("arch", "wave"), FAMILIES)
    def test_each_kind_of_instruction_has_a_rate(self, arch, wave):
        """Nothing that a kernel may hold is met for the first time."""
        texts = ["v_add_f32 v0, v1, v2", "v_pk_add_f16 v0, v1, v2", "v_dot2_f32_f16 v0, v1, v2, v3", "v_mov_b32 v0, v1"]
        texts += ["v_permlanex16_b32 v0, v1, s0, s1", "v_cvt_f16_f32 v0, v1", "v_cvt_pkrtz_f16_f32 v0, v1, v2"]
        texts += [
            "v_mul_lo_u32 v0, v1, v2",
            "v_lshlrev_b64 v[0:1], 1, v[2:3]",
            "v_mad_u64_u32 v[0:1], s0, v1, v2, v[3:4]",
        ]
        texts += ["v_fma_f64 v[0:1], v[0:1], v[0:1], v[0:1]", "v_exp_f32 v0, v0", "v_rcp_f64 v[0:1], v[0:1]"]
        texts += [
            "s_add_i32 s0, s0, 1",
            "s_branch .LBB0_1",
            "s_waitcnt vmcnt(0)",
            "s_nop 0",
            "s_load_b64 s[0:1], s[2:3], 0",
        ]
        texts += ["ds_read_b32 v0, v1", "ds_write_b128 v0, v[0:3]", "ds_add_f32 v0, v1", "ds_bpermute_b32 v0, v1, v2"]
        texts += [
            "global_load_dwordx4 v[0:3], v0, s[0:1]",
            "global_store_short v[0:1], v2, off",
            "scratch_load_dword v0, off, s32",
        ]
        texts += ["global_atomic_add_f32 v0, v1, s[0:1]", "buffer_load_dword v0, v1, s[4:7], 0 offen"]
        for text in texts:
            found = cost(arch, text, wave)
            assert found.known, text
            assert 0 < found.issue <= 40, text
            assert 0 < found.cycles <= 64, text

    @pytest.mark.parametrize("arch", ["", "gfx900", "gfx1250", "sm_90"])
    def test_an_unknown_gpu_is_one_line(self, arch):
        """It says for which there are rates."""
        with pytest.raises(RatesError, match=r"no instruction rates .*, only for gfx90a, .*gfx1201"):
            rates(arch, 64)

    def test_a_wave_size_that_a_gpu_has_not_is_one_line(self):
        """CDNA has waves of 64 lanes only."""
        with pytest.raises(RatesError, match="gfx942 has no waves of 32 lanes"):
            rates("gfx942", 32)


@pytest.mark.parametrize(
    ("arch", "wave", "text", "cycles", "issue"),
    [
        ("gfx942", 64, "v_fma_f32 v0, v1, v2, v3", 4, 4),
        ("gfx942", 64, "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]", 4, 4),
        ("gfx942", 64, "v_fma_f64 v[0:1], v[0:1], v[0:1], v[0:1]", 4, 4),
        ("gfx942", 64, "v_exp_f32_e32 v0, v1", 16, 16),
        ("gfx950", 64, "v_exp_f32_e32 v0, v1", 8, 8),
        ("gfx950", 64, "v_rcp_f64_e32 v[0:1], v[2:3]", 16, 16),
        ("gfx942", 64, "v_cvt_f16_f32_e32 v0, v1", 16, 4),
        ("gfx942", 64, "v_cvt_pkrtz_f16_f32 v0, v1, v2", 4, 4),
        ("gfx1100", 32, "v_fma_f32 v0, v1, v2, v3", 1, 1),
        ("gfx1100", 32, "v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5", 1, 1),
        ("gfx1100", 64, "v_fma_f32 v0, v1, v2, v3", 1, 1),
        ("gfx1100", 64, "v_xor_b32_e32 v0, v1, v2", 2, 2),
        ("gfx1100", 64, "v_add_f32 v1, v2, v3 row_shr:1", 2, 2),
        ("gfx1030", 64, "v_fma_f32 v0, v1, v2, v3", 2, 2),
        ("gfx1100", 32, "v_exp_f32_e32 v0, v1", 4, 1),
        ("gfx1201", 32, "v_s_exp_f32 s0, s1", 1, 1),
        ("gfx1100", 32, "v_lshlrev_b64 v[0:1], 1, v[2:3]", 2, 2),
        ("gfx1100", 32, "v_mad_u64_u32 v[0:1], s0, v1, v2, v[3:4]", 4, 4),
        ("gfx1100", 32, "v_add_f64 v[0:1], v[0:1], v[0:1]", 16, 16),
        ("gfx90a", 64, "s_nop 7", 32, 32),
        ("gfx1100", 32, "s_nop 0x3", 4, 4),
    ],
)
def test_vector_and_scalar_instructions_take(arch, wave, text, cycles, issue):
    """Transcendental functions at a quarter of the rate (half on CDNA 4), on RDNA in a unit of their own."""
    found = cost(arch, text, wave)
    assert (found.cycles, found.issue) == (cycles, issue)


@pytest.mark.parametrize(
    ("arch", "text", "cycles", "issue"),
    [
        ("gfx942", "ds_read_b32 v0, v1", 4, 4),
        ("gfx942", "ds_read_b128 v[0:3], v1", 16, 4),
        ("gfx950", "ds_read_b128 v[0:3], v1", 8, 4),
        ("gfx942", "ds_write_b32 v0, v1", 8, 4),
        ("gfx942", "ds_write_b128 v0, v[0:3]", 20, 4),
        ("gfx942", "ds_bpermute_b32 v0, v1, v2", 8, 4),
        ("gfx90a", "global_load_dwordx4 v[0:3], v0, s[0:1]", 16, 4),
        ("gfx942", "global_load_dwordx4 v[0:3], v0, s[0:1]", 8, 4),
        ("gfx942", "global_load_ushort v0, v0, s[0:1]", 4, 4),
        ("gfx1100", "ds_load_b32 v0, v1", 1, 1),
        ("gfx1100", "ds_load_b128 v[0:3], v1", 4, 1),
        ("gfx1100", "ds_store_2addr_stride64_b32 v0, v1, v2", 2, 3),
        ("gfx1100", "ds_store_b128 v0, v[0:3]", 4, 5),
        ("gfx1100", "global_load_b128 v[0:3], v0, s[0:1]", 4, 1),
        ("gfx1100", "global_load_b128 v[0:3], v[0:1], off", 4, 2),
        ("gfx1100", "global_store_b64 v0, v[0:1], s[0:1]", 2, 3),
        ("gfx1100", "global_store_b128 v[4:5], v[0:3], off", 4, 6),
        ("gfx1201", "scratch_store_b32 off, v0, s32", 1, 2),
    ],
)
def test_memory_instructions_take_by_their_width(arch, text, cycles, issue):
    """CDNA: 64 bytes a cycle, stores 4 cycles more for addresses (8 and 20, as documented); RDNA: 128 bytes a cycle."""
    found = cost(arch, text)
    assert (found.cycles, found.issue) == (cycles, issue)


@pytest.mark.parametrize(
    ("arch", "mnemonic", "cycles", "issue", "peak"),
    [
        ("gfx90a", "v_mfma_f32_32x32x8f16", 64, 4, 64),
        ("gfx90a", "v_mfma_f32_16x16x16bf16_1k", 32, 4, 32),
        ("gfx90a", "v_mfma_f32_16x16x8bf16", 32, 4, 16),
        ("gfx942", "v_mfma_f32_32x32x8_f16", 32, 4, 32),
        ("gfx942", "v_mfma_f32_32x32x8f16", 32, 4, 32),
        ("gfx942", "v_mfma_f32_16x16x16_bf16", 16, 4, 16),
        ("gfx942", "v_mfma_f32_16x16x16_bf16_1k", 16, 4, 16),
        ("gfx942", "v_mfma_f32_16x16x32_fp8_bf8", 16, 4, 16),
        ("gfx942", "v_mfma_f32_32x32x2_f32", 64, 64, 64),
        ("gfx942", "v_mfma_f64_16x16x4_f64", 32, 32, 32),
        ("gfx942", "v_smfmac_f32_16x16x32_f16", 16, 8, 16),
        ("gfx950", "v_mfma_f32_16x16x16_f16", 16, 4, 8),
        ("gfx950", "v_mfma_f32_16x16x32_f16", 16, 4, 16),
        ("gfx950", "v_mfma_f32_16x16x32_fp8_fp8", 16, 4, 8),
        ("gfx950", "v_mfma_f64_16x16x4_f64", 64, 64, 64),
        ("gfx1100", "v_wmma_f32_16x16x16_f16", 32, 32, 32),
        ("gfx1151", "v_wmma_i32_16x16x16_iu4", 16, 16, 16),
        ("gfx1201", "v_wmma_f32_16x16x16_bf16", 16, 16, 16),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_bf8", 8, 8, 8),
        ("gfx1201", "v_swmmac_f32_16x16x32_f16", 16, 16, 16),
    ],
)
def test_matrix_instructions_take(arch, mnemonic, cycles, issue, peak):
    """MFMA lets vector instructions in after 4 cycles, WMMA, 32-bit and 64-bit MFMA not at all.

    The last number is what its FLOPs take at the dense peak of its type: shapes made for an older GPU reach half.
    """
    found = cost(arch, f"{mnemonic} v[0:3], v[4:5], v[6:7], v[0:3]")
    assert (found.kind, found.cycles, found.issue, found.peak_cycles, found.known) == (
        "matrix",
        cycles,
        issue,
        peak,
        True,
    )


@pytest.mark.parametrize(
    ("formats", "cycles"), [("", 32), (" cbsz:1 blgp:4", 32), (" cbsz:4 blgp:4", 16), (" cbsz:2 blgp:3", 16)]
)
def test_products_of_narrow_elements_take_half(formats, cycles):
    """Of the formats of an f8f6f4 product, the two with 8 bits set the pace."""
    assert cost("gfx950", f"v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]{formats}").cycles == cycles


def test_a_product_without_a_rate_is_said_to_have_none():
    """It counts at the best rate of the GPU."""
    found = cost("gfx1100", "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]")
    assert (found.known, found.cycles) == (False, 16384 / 512)
    assert not cost("gfx1030", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]").known


@pytest.mark.parametrize(
    ("mnemonic", "flops", "products"),
    [
        ("v_fma_f32", 2, 2),
        ("v_fmac_f32_e32", 2, 2),
        ("v_fmaak_f32", 2, 2),
        ("v_mad_f32", 2, 2),
        ("v_mac_f32_e32", 2, 2),
        ("v_fma_mix_f32", 2, 2),
        ("v_fma_mixlo_f16", 2, 2),
        ("v_pk_fma_f32", 4, 4),
        ("v_pk_fma_f16", 4, 4),
        ("v_pk_mul_f32", 2, 0),
        ("v_pk_add_bf16", 2, 0),
        ("v_add_f32_e64", 1, 0),
        ("v_subrev_f32_e32", 1, 0),
        ("v_mul_legacy_f32", 1, 0),
        ("v_mul_dx9_zero_f32", 1, 0),
        ("v_add_f64", 1, 0),
        ("v_exp_f32_e32", 1, 0),
        ("v_rcp_iflag_f32_e32", 1, 0),
        ("v_s_exp_f32", 1, 0),
        ("v_dot2_f32_f16", 4, 4),
        ("v_dot2c_f32_bf16", 4, 4),
        ("v_dot4_i32_iu8", 0, 0),
        ("v_max_f32_e32", 0, 0),
        ("v_cvt_f16_f32_e32", 0, 0),
        ("v_add_u32_e32", 0, 0),
        ("v_mad_u64_u32", 0, 0),
        ("v_pk_mad_u16", 0, 0),
        ("v_mul_lo_u32", 0, 0),
        ("v_cndmask_b32_e32", 0, 0),
        ("v_mfma_f32_16x16x16_f16", 0, 0),
    ],
)
def test_lanes_do_floating_point_operations(mnemonic, flops, products):
    """Multiply-adds are two, packed ones twice that, a dot product two a pair; integers and comparisons none."""
    assert (lane_flops(mnemonic), lane_product_flops(mnemonic)) == (flops, products)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ds_load_b128", "lds_load_16B"),
        ("ds_write2_b64", "lds_store_16B"),
        ("ds_bpermute_b32", "lds_exchange"),
        ("ds_append", "lds_other"),
        ("global_load_lds_dwordx4", "global_load_16B"),
        ("global_atomic_add_f32", "global_atomic_4B"),
        ("scratch_store_b32", "scratch_store_4B"),
        ("v_add_f32_dpp", "cross_lane"),
        ("v_cmp_lt_u64_e32", "integer64"),
        ("v_lshl_add_u64", "integer64"),
        ("v_mov_b64_e32", "move"),
        ("v_cvt_f64_f32", "f64"),
        ("v_wmma_f32_16x16x16_f16", "matrix"),
        ("s_cbranch_scc0", "branch"),
        ("s_delay_alu", "hint"),
    ],
)
def test_kinds_have_names(text, kind):
    """Memory kinds say unit, direction and bytes of a lane."""
    assert kind_of(text) == kind


def test_kinds_agree_with_units():
    """Whatever the finer name, matrix instructions stay matrix instructions."""
    for name in (name for entry in DATA["matrix"] for name in entry["names"] if "<" not in name):
        assert classify(f"v_{name}").unit is Pipe.MATRIX
        assert classify(f"v_{name}").flops > 0
