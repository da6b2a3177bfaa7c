"""What an iteration of the hot loop costs: small loops worked out by hand, and our own kernels."""

import re

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.kernels.model.cost import LoopCost, Work, loop_cost
from rocattn_profiling.kernels.model.rates import RatesError
from rocattn_profiling.kernels.read.assembly import parse_assembly

WMMA = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
MFMA = "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]"


def function_of(arch, *lines, wave32=None, end="s_endpgm"):
    """Return the function of a kernel with these lines."""
    wave32 = not arch.startswith("gfx9") if wave32 is None else wave32
    body = "".join(f"{line}\n" if line.startswith(".") else f"\t{line}\n" for line in lines)
    text = (
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n\t.type\tk,@function\nk:\n{body}\t{end}\n'
        f"\t.amdhsa_kernel k\n\t.amdhsa_wavefront_size32 {int(wave32)}\n\t.end_amdhsa_kernel\n"
    )
    (function,) = parse_assembly(text)
    return function


def cost_of(arch, *lines, **options):
    """Return what a kernel costs whose only loop holds these lines (and a branch)."""
    return loop_cost(function_of(arch, ".LBB0_1:", *lines, "s_cbranch_scc1 .LBB0_1", **options), arch)


class TestByHand:
    """Loops small enough to add up."""

    def test_wmma_and_vector_instructions_serialise(self):
        """gfx1100, wave32.

        matrix:  2 x 32                                               =  64
        vector:  8 fma x 1 + 4 exp x 4                                =  24 (issue 8 + 4 = 12)
        scalar:  1 add                                                =   1
        memory:  2 ds_load_b128 x 1 + 1 global_load_b128 (saddr) x 1  =   3
        other:   1 s_waitcnt x 1 + 1 branch x 3                       =   4
        The SIMD's issue is held for 64 + 12 = 76 cycles; LDS is busy for 2 x 4, for two SIMDs 16; L0 for 4, and 8.
        """
        cost = cost_of(
            "gfx1100", *[WMMA] * 2, *["v_fma_f32 v30, v31, v32, v33"] * 8, *["v_exp_f32_e32 v30, v31"] * 4,
            *["ds_load_b128 v[8:11], v40"] * 2, "global_load_b128 v[20:23], v41, s[0:1]", "s_waitcnt lgkmcnt(0)",
            "s_add_i32 s4, s4, 1",
        )  # fmt: skip
        assert (cost.matrix_cycles, cost.vector_cycles, cost.scalar_cycles) == (64, 24, 1)
        assert (cost.memory_cycles, cost.other_cycles, cost.issue_cycles) == (3, 4, 96)
        assert (cost.lds_cycles, cost.global_cycles) == (8, 4)
        assert (cost.bound_cycles, cost.bound_by) == (76, "matrix and vector")
        assert cost.issue_bound_pct == pytest.approx(100 * 64 / 76)
        assert cost.matrix_share_pct == pytest.approx(100 * 64 / 96)
        assert (cost.matrix_flops, cost.vector_flops) == (2 * 2 * 16**3, 32 * (8 * 2 + 4))
        assert cost.global_bytes == 32 * 16
        assert cost.flops_per_global_byte == (16384 + 640) / 512
        assert cost.cycles_per(8192) == 48
        assert (cost.instructions, cost.loop, cost.has_loop, cost.wave_size) == (20, ".LBB0_1", True, 32)
        assert cost.kinds["transcendental"] == Work(4, 16)
        assert cost.kinds["lds_load_16B"] == Work(2, 8)
        assert sum(work.instructions for work in cost.kinds.values()) == cost.instructions
        assert cost.notes == ()

    def test_mfma_lets_vector_instructions_run_beside_it(self):
        """gfx942: 8 products x 16 = 128 cycles, 4 x 8 = 32 of them held; vector 12 x 4 + 2 x 16 = 80.

        Held in all: 32 + 80 = 112 < 128, so that the matrix unit decides, and vector instructions cost nothing more.
        """
        cost = cost_of("gfx942", *[MFMA] * 8, *["v_pk_mul_f32 v[8:9], v[8:9], v[8:9]"] * 12, *["v_exp_f32 v9, v9"] * 2)
        assert (cost.matrix_cycles, cost.vector_cycles) == (128, 80)
        assert (cost.bound_cycles, cost.bound_by, cost.issue_bound_pct) == (128, "matrix", 100)
        assert cost.vector_flops == 64 * (12 * 2 + 2)
        assert cost.notes == snapshot(
            ("matrix and vector instructions overlap only with two or more waves per SIMD, or interleaved in one",)
        )

    def test_too_many_vector_instructions_bound_mfma_loops(self):
        """gfx942: 4 products x 16 = 64 cycles; held 4 x 4 + 28 x 4 = 128: half of the peak at best."""
        cost = cost_of("gfx942", *[MFMA] * 4, *["v_add_f32 v9, v9, v9"] * 28)
        assert (cost.bound_cycles, cost.bound_by, cost.issue_bound_pct) == (128, "matrix and vector", 50)

    def test_products_of_32_bit_elements_hold_the_issue(self):
        """gfx942: 2 x 32 cycles of v_mfma_f32_16x16x4_f32 and 4 x 4 of additions serialise: 80."""
        product = "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3]"
        cost = cost_of("gfx942", *[product] * 2, *["v_add_f32 v9, v9, v9"] * 4)
        assert (cost.bound_cycles, cost.issue_bound_pct) == (80, 80)

    def test_a_shape_of_half_the_rate_halves_the_issue_bound(self):
        """gfx950 does 16x16x16 in the cycles of 16x16x32: busy all the time, it reaches half of the peak."""
        assert cost_of("gfx950", *[MFMA] * 4).issue_bound_pct == 50
        assert cost_of("gfx950", *[MFMA.replace("x16_", "x32_")] * 4).issue_bound_pct == 100

    def test_lds_bounds_where_its_port_is_the_busiest(self):
        """gfx942: a read of 16 bytes a lane is 16 cycles of a port that two SIMDs share: 4 x 16 x 2 = 128 > 16."""
        cost = cost_of("gfx942", MFMA, *["ds_read_b128 v[8:11], v20"] * 4)
        assert (cost.lds_cycles, cost.bound_cycles, cost.bound_by) == (64, 128, "lds")
        assert cost.issue_bound_pct == 12.5

    def test_the_l1_cache_bounds_where_it_is_the_busiest(self):
        """gfx90a: 64 lanes x 16 bytes / 64 = 16 cycles of a cache that four SIMDs share."""
        cost = cost_of("gfx90a", *["global_load_dwordx4 v[8:11], v20, s[0:1]"] * 2, "v_add_f32 v9, v9, v9")
        assert (cost.global_cycles, cost.bound_cycles, cost.bound_by) == (32, 128, "global")

    def test_transcendental_functions_bound_in_their_own_unit(self):
        """gfx1100: 16 exp keep their unit for 64 cycles, and the issue for 16; 20 other instructions fit beside."""
        cost = cost_of("gfx1100", *["v_exp_f32 v9, v9"] * 16, *["v_add_f32 v8, v8, v8"] * 20)
        assert (cost.bound_cycles, cost.bound_by) == (64, "transcendental")

    def test_without_matrix_products_vector_flops_count(self):
        """gfx1100: fma 2, a packed one 4, a dot product of two pairs 4, a dual one 2 + 1, times 32 lanes."""
        cost = cost_of(
            "gfx1100", "v_fmac_f32_e32 v0, v1, v2", "v_pk_fma_f16 v0, v1, v2, v3", "v_dot2_f32_f16 v0, v1, v2, v3",
            "v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v5, v4, v3", "v_max_f32_e32 v0, v1, v2",
        )  # fmt: skip
        assert (cost.issue_bound_pct, cost.matrix_share_pct) == (None, 0)
        assert cost.vector_flops == 32 * (2 + 4 + 4 + 3)
        assert (cost.vector_cycles, cost.bound_by) == (5, "vector")
        assert cost.cycles_per(32 * 13) == 5 + 3
        assert cost.flops_per_global_byte is None

    def test_wave64_takes_two_cycles_where_it_cannot_be_a_pair(self):
        """gfx1100, wave64: fma 1, xor 2."""
        cost = cost_of("gfx1100", "v_fma_f32 v0, v1, v2, v3", "v_xor_b32_e32 v0, v1, v2", wave32=False)
        assert (cost.wave_size, cost.vector_cycles) == (64, 3)

    def test_lines_share_the_cycles(self):
        """The line table says whose they are; what it does not name has none."""
        cost = cost_of(
            "gfx1100", '.file 1 "a" "flash.h"', ".loc 1 10 0", WMMA, "v_add_f32 v30, v31, v31", ".loc 1 12 0",
            *["v_exp_f32 v30, v30"] * 2,
        )  # fmt: skip
        assert [(each.line, each.instructions, each.cycles) for each in cost.lines] == [
            ("flash.h:10", 2, 33),
            ("flash.h:12", 3, 8 + 3),
        ]
        assert (cost.source, sum(each.cycles for each in cost.lines)) == ("flash.h:10", cost.issue_cycles)


class TestWhatIsNotKnown:
    """Notes, and code of other shapes."""

    def test_a_kernel_without_a_loop_is_counted_whole(self):
        """And says so."""
        cost = loop_cost(function_of("gfx1100", "v_mov_b32_e32 v0, 0", WMMA), "gfx1100")
        assert (cost.has_loop, cost.loop, cost.matrix_cycles, cost.instructions) == (False, "", 32, 3)
        assert cost.notes == ("no loop: all of its code is counted once",)

    @pytest.mark.parametrize(
        ("arch", "lines"), [("gfx1100", ("s_barrier",)), ("gfx1201", ("s_barrier_signal -1", "s_barrier_wait -1"))]
    )
    def test_a_barrier_is_one_however_it_is_written(self, arch, lines):
        """Both halves of gfx12's take issue slots."""
        cost = cost_of(arch, *lines)
        assert (cost.barriers, cost.kinds["wait"].instructions) == (1, len(lines))

    def test_a_function_without_instructions_costs_nothing(self):
        """There is nothing to say."""
        (function,) = parse_assembly("\t.type\tf,@function\nf:\n.Lfunc_end0:\n")
        assert loop_cost(function, "gfx942") is None

    def test_texts_target_is_the_default_without_features(self):
        """An architecture that is named goes before it."""
        function = function_of("gfx1100", WMMA)
        assert (loop_cost(function, "").arch, loop_cost(function, "").matrix_cycles) == ("gfx1100", 32)
        assert loop_cost(function, "gfx1201").matrix_cycles == 16
        assert loop_cost(function_of("gfx942", MFMA), "gfx942:sramecc+:xnack-").arch == "gfx942"
        with pytest.raises(RatesError):
            loop_cost(function, "gfx803")

    @pytest.mark.parametrize(
        ("line", "note"),
        [
            ("s_swappc_b64 s[30:31], s[0:1]", "calls or jumps to addresses in registers"),
            ("v_wmma_f32_16x16x99_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "no rates for v_wmma_f32_16x16x99_f16"),
            ("unreadable_instruction", "no rates for unreadable_instruction"),
            ("s_cbranch_vccz .Lelsewhere", r"branch targets are not in the text: \.Lelsewhere$"),
        ],
    )
    def test_what_the_text_does_not_show_is_noted(self, line, note):
        """The rest is counted."""
        cost = cost_of("gfx1100", line, "v_add_f32 v0, v0, v0")
        assert any(re.search(note, each) for each in cost.notes), cost.notes
        assert cost.vector_cycles >= 1

    def test_a_cycle_with_two_entries_is_noted(self):
        """No loop is found in it."""
        function = function_of(
            "gfx1100", "s_cbranch_scc1 .LBB0_2", ".LBB0_1:", "v_mov_b32 v0, 0", ".LBB0_2:", "v_mov_b32 v0, 1",
            "s_cbranch_scc0 .LBB0_1",
        )  # fmt: skip
        assert "several entries" in " ".join(loop_cost(function, "").notes)

    def test_inner_loops_are_noted(self):
        """They are counted once, however often they run."""
        function = function_of(
            "gfx1100", ".LBB0_1:", WMMA, ".LBB0_2:", "ds_load_b32 v9, v8", "s_cbranch_scc0 .LBB0_2",
            "s_cbranch_scc1 .LBB0_1",
        )  # fmt: skip
        cost = loop_cost(function, "")
        assert (cost.kinds["lds_load_4B"].instructions, len(cost.notes)) == (1, 1)
        assert cost.notes[0] == "an inner loop is counted as running once, whatever the trip count"

    def test_device_function_has_no_wave_size(self):
        """On GPUs that have two."""
        (function,) = parse_assembly("\t.type\tf,@function\nf:\n\tv_mov_b32 v0, 0\n\ts_setpc_b64 s[30:31]\n")
        assert " ".join(loop_cost(function, "gfx1100").notes) == snapshot(
            "no loop: all of its code is counted once it calls or jumps to addresses in registers: code there is not "
            "counted the text does not say the wave size: 64 is assumed"
        )
        assert "wave size" not in " ".join(loop_cost(function, "gfx942").notes)

    def test_it_can_be_written_and_read_as_json(self):
        """All of it."""
        cost = cost_of("gfx942", MFMA, "global_load_dwordx4 v[8:11], v20, s[0:1]")
        assert msgspec.json.decode(msgspec.json.encode(cost), type=LoopCost) == cost


@pytest.fixture(scope="module")
def compiled(kernel_cache):
    """Return a function: architecture and head dimension -> the assembly of a long fp16 problem, and its symbol."""

    def compile_for(arch, head_dim):
        config = AttentionConfig(batch=1, num_heads=8, seq_q=4096, seq_k=4096, head_dim=head_dim, dtype="float16")
        (launch,) = plan(config, arch).launches
        return compile_hip(launch.source, arch, defines=launch.defines).assembly, launch.symbol

    return compile_for


def kernel_cost(text, symbol):
    """Return what a kernel of a text costs."""
    (function,) = (each for each in parse_assembly(text) if each.name == symbol)
    return loop_cost(function, "")


# Matrix cycles of a score tile of 16 x 16 by head dimension: 4 D FLOPs of 256 scores over the rate of a SIMD.
def serial_pct(cost):
    """Return the matrix cycles of matrix and vector cycles together: the issue bound if nothing ran beside anything."""
    return 100 * cost.matrix_cycles / (cost.matrix_cycles + cost.vector_cycles)


PER_TILE = {"gfx90a": 4, "gfx942": 2, "gfx950": 1, "gfx1100": 4, "gfx1201": 2}


@pytest.mark.parametrize("arch", PER_TILE)
def test_our_kernels_spend_on_products_what_the_peak_allows(compiled, arch):
    """No product is computed twice or at half the rate; all instructions have rates; parts and lines add up."""
    cost = kernel_cost(*compiled(arch, 64))
    tiles = cost.matrix_flops / (1024 * 64)
    assert tiles == int(tiles) > 0
    assert cost.matrix_cycles / tiles == PER_TILE[arch] * 64
    assert not [note for note in cost.notes if "rates" in note or "labels" in note]
    parts = (cost.matrix_cycles, cost.vector_cycles, cost.scalar_cycles, cost.memory_cycles, cost.other_cycles)
    assert cost.issue_cycles == sum(parts) == pytest.approx(sum(line.cycles for line in cost.lines))
    assert cost.matrix_cycles <= cost.bound_cycles <= cost.issue_cycles
    assert 0 < cost.matrix_share_pct <= serial_pct(cost) <= cost.issue_bound_pct <= 100
    assert cost.cycles_per(1024 * 64) == pytest.approx(cost.issue_cycles / tiles)


@pytest.mark.parametrize(("head_dim", "budget_pct"), [(64, 76), (128, 86)])
def test_gfx1100_matches_the_budget_made_by_hand(compiled, head_dim, budget_pct):
    """Matrix cycles of matrix and vector cycles: 256 of 336 and 512 of 592, 80 vector cycles a tile."""
    cost = kernel_cost(*compiled("gfx1100", head_dim))
    assert serial_pct(cost) == pytest.approx(budget_pct, abs=4)


@pytest.mark.parametrize(("arch", "symbol"), [("gfx1100", "v_wmma_"), ("gfx942", "v_mfma_")])
def test_doubling_the_matrix_instructions_doubles_their_cycles(compiled, arch, symbol):
    """And their FLOPs, and nothing else."""
    text, name = compiled(arch, 64)
    doubled = re.sub(rf"(?m)^(\t{symbol}.*\n)", r"\1\1", text)
    before, after = kernel_cost(text, name), kernel_cost(doubled, name)
    assert (after.matrix_cycles, after.matrix_flops) == (2 * before.matrix_cycles, 2 * before.matrix_flops)
    assert (after.vector_cycles, after.scalar_cycles) == (before.vector_cycles, before.scalar_cycles)
    assert after.global_bytes == before.global_bytes
    assert after.issue_bound_pct >= before.issue_bound_pct


def test_an_added_vector_instruction_costs_its_cycle(compiled):
    """One beside each product of the loop, a cycle each, takes the issue bound down."""
    text, name = compiled("gfx1100", 64)
    added = re.sub(r"(?m)^(\tv_wmma_.*\n)", "\\1\tv_add_f32_e32 v255, v255, v255\n", text)
    before, after = kernel_cost(text, name), kernel_cost(added, name)
    products = before.kinds["matrix"].instructions
    assert after.issue_cycles - before.issue_cycles == after.bound_cycles - before.bound_cycles == products
    assert after.issue_bound_pct < before.issue_bound_pct
