"""Reading assembly: instructions, blocks, loops and the way an iteration takes, on small texts and our own kernels."""

import math
import sys

import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn.toolchain import compile_hip
from rocattn_profiling.kernels.model.loops import find_loops, hot_loop, usual_path
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.read.instructions import Access, Pipe, Role

from ..counting import Counts, counts_of

LOAD, STORE = Access.LOAD, Access.STORE
WMMA = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"


def read(body, name="k", directives="\t.amdhsa_wavefront_size32 1\n", arch="gfx1100"):
    """Return the one function of a kernel with this body, laid out as clang does."""
    text = (
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n\t.text\n\t.globl\t{name}\n\t.type\t{name},@function\n'
        f"{name}:                                  ; @{name}\n; %bb.0:\n{body}\n\ts_endpgm\n"
        f'\t.section\t.rodata,"a",@progbits\n\t.amdhsa_kernel {name}\n{directives}\t.end_amdhsa_kernel\n\t.text\n'
        f".Lfunc_end0:\n\t.size\t{name}, .Lfunc_end0-{name}\n"
    )
    (function,) = parse_assembly(text)
    return function


def counted(*lines):
    """Count instructions."""
    return Counts(block for function in [read("\n".join(lines))] for block in function.blocks[0].instructions[:-1])


def labels(function, path):
    """Return the labels of blocks, or their first mnemonic if they have none."""
    return [function.blocks[i].label or function.blocks[i].instructions[0].mnemonic for i in path]


class TestCounts:
    """What instructions are, operands included, and how they are counted."""

    def test_a_dual_instruction_is_one_issue_and_two_operations(self):
        """Both halves count, each with its own role."""
        counts = counted("\tv_dual_mov_b32 v1, v2 :: v_dual_mul_f32 v3, s4, v5", "\tv_add_f32_e32 v1, v1, v2")
        assert (counts.units[Pipe.VECTOR], counts.vector_operations, counts.dual) == (2, 3, 1)
        assert counts.roles == {Role.MOVE: 1, Role.PLAIN: 2}

    @pytest.mark.parametrize(
        "modifiers",
        ["quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", "row_shr:1", "row_half_mirror", "dpp8:[7,6,5,4,3,2,1,0]"],
    )
    def test_dpp_modifier_makes_an_instruction_cross_lane(self, modifiers):
        """Whether or not the mnemonic says so."""
        assert counted(f"\tv_add_f32 v1, v2, v3 {modifiers}").roles == {Role.CROSS_LANE: 1}

    def test_spills_count_as_scratch_by_any_instruction(self):
        """Targets without scratch instructions reach the stack through the buffer of the first four scalars."""
        counts = counted(
            "\tbuffer_store_dword v40, off, s[0:3], 0 offset:4    ; 4-byte Folded Spill",
            "\tbuffer_load_dword v1, off, s[0:3], s32 offset:8",
            "\tscratch_load_b64 v[1:2], off, off offset:8    ; 8-byte Folded Reload",
            "\tbuffer_load_dwordx4 v[0:3], v9, s[0:3], 0 offen",
        )
        assert counts.memory == {
            (Pipe.SCRATCH, STORE, 4): 1,
            (Pipe.SCRATCH, LOAD, 4): 1,
            (Pipe.SCRATCH, LOAD, 8): 1,
            (Pipe.GLOBAL, LOAD, 16): 1,
        }
        assert (counts.spills, counts.units) == (2, {Pipe.SCRATCH: 3, Pipe.GLOBAL: 1})

    @pytest.mark.parametrize(
        ("arch", "directive", "lanes"), [("gfx1100", "", 32), ("gfx11-generic", "", 32), ("gfx942", "", 64),
                                         ("gfx1100", "\t.amdhsa_wavefront_size32 0\n", 64)],
    )  # fmt: skip
    def test_without_a_word_the_wave_is_what_the_assembler_makes_it(self, arch, directive, lanes):
        """Compilers always say it; who writes assembly by hand leaves it out."""
        directives = f"\t.amdhsa_next_free_vgpr 8\n{directive}"
        assert read("\ts_nop 0", directives=directives, arch=arch).wave_size == lanes

    def test_each_instruction_has_what_it_moves_and_computes(self):
        """Bytes, FLOPs, barriers."""
        whole = counted(
            "\tds_load_b128 v[0:3], v9", "\ts_waitcnt lgkmcnt(0)", "\ts_barrier", f"\t{WMMA}",
            "\tds_store_b64 v9, v[0:1]", f"\t{WMMA}", "\tglobal_load_b128 v[0:3], v9, s[0:1]", "\ts_nop 0",
        )  # fmt: skip
        assert (whole.instructions, whole.barriers, whole.flops) == (8, 1, 4 * 16**3)
        assert whole.matrix == {"v_wmma_f32_16x16x16_f16": 2}
        assert (whole.lane_bytes(Pipe.LDS), whole.lane_bytes(Pipe.LDS, LOAD)) == (24, 16)
        assert (whole.accesses(Pipe.LDS), whole.accesses(Pipe.GLOBAL, STORE)) == (2, 0)
        assert (whole.lane_bytes(Pipe.GLOBAL), whole.lane_bytes(Pipe.GLOBAL, STORE)) == (16, 0)
        assert (whole.units[Pipe.WAIT], whole.units[Pipe.HINT]) == (2, 1)

    def test_a_barrier_in_two_halves_is_one(self):
        """On gfx12 a wave signals that it is there, and then waits for the others."""
        split = counted("\ts_barrier_signal -1", "\ts_barrier_wait 0xffff")
        assert (split.barriers, split.units[Pipe.WAIT]) == (1, 2)


class TestText:
    """Functions and blocks."""

    def test_what_the_file_says_of_a_kernel_is_kept(self):
        """Name, target, descriptor and wave size; a descriptor of gfx1100 that does not say it is one of wave32."""
        function = read("\tv_mov_b32_e32 v0, 0", "attention", "\t.amdhsa_next_free_vgpr 88\n")
        assert (function.name, function.target, function.is_kernel) == ("attention", "gfx1100", True)
        assert (function.descriptor, function.wave_size) == ({"next_free_vgpr": "88"}, 32)
        assert read("").wave_size == 32
        assert [one.mnemonic for one in function.blocks[0].instructions] == ["v_mov_b32_e32", "s_endpgm"]

    def test_a_triton_file_reads_the_same(self):
        """Its target has another form, line tables name files, comments and local labels are everywhere."""
        text = """\t.amdgcn_target "amdgpu9.42-amd-amdhsa-unknown-gfx942"
\t.type\tflash,@function
flash:                                  ; @flash
.Lfunc_begin0:
\t.file\t1 "/some/folder" "flash.py"
\t.loc\t1 33 0 prologue_end             ; flash.py:33:0
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
.Ltmp1:
\t.loc\t1 0 0 is_stmt 0
\ts_nop 0 // a comment
;;#ASMSTART
\t.loc\t1 41 7
\tv_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]
\ts_endpgm
.Lfunc_end0:
\tv_mov_b32_e32 v0, 0
"""
        (function,) = parse_assembly(text)
        assert (function.target, function.is_kernel, len(function.blocks)) == ("gfx942", False, 1)
        assert function.blocks[0].instructions[1].operands == "0"
        assert function.blocks[0].line == 7
        assert [(one.mnemonic, one.source) for one in function.blocks[0].instructions] == [
            ("s_load_dwordx2", "flash.py:33"), ("s_nop", ""), ("v_mfma_f32_32x32x8_f16", "flash.py:41"),
            ("s_endpgm", "flash.py:41"),
        ]  # fmt: skip

    def test_branches_lead_to_blocks(self):
        """A block ends at a branch and before what a branch names; other labels split nothing."""
        function = read("""
\ts_cbranch_scc1 .LBB0_2
\tv_mov_b32_e32 v0, 0
.Ltmp0:
\tv_mov_b32_e32 v1, 0
\ts_branch BB0_3
.LBB0_2:                                ; %if.else
\tv_mov_b32_e32 v2, 0
BB0_3:""")
        assert [(block.label, len(block.instructions), block.successors) for block in function.blocks] == [
            ("", 1, (1, 2)),
            ("", 3, (3,)),
            (".LBB0_2", 1, (3,)),
            ("BB0_3", 1, ()),
        ]
        assert function.unknown_targets == ()

    def test_what_the_text_does_not_tell_is_said(self):
        """A branch to nowhere is named, not guessed."""
        assert read("\ts_cbranch_execz .LBB9_9").unknown_targets == (".LBB9_9",)

    @pytest.mark.parametrize("text", ["", "int main() { return 0; }", "\x00\x7fELF\x02", "a:\n" * 99, ".type\n;;;;\n:"])
    def test_other_text_has_no_functions(self, text):
        """It is no error: there is nothing in it."""
        assert parse_assembly(text) == ()

    def test_a_function_without_instructions_has_no_loops(self):
        """Nor a hot one."""
        (function,) = parse_assembly("\t.type\tf,@function\nf:\n.Lfunc_end0:\n")
        assert (find_loops(function), hot_loop(function)) == ((), None)


NEST = f"""
.LBB0_1:
\tv_mov_b32_e32 v0, 0
.LBB0_2:
\t{WMMA}
\ts_cbranch_scc1 .LBB0_2
\t{WMMA}
\t{WMMA}
.LBB0_4:
\tv_add_f32_e32 v0, v0, v0
\tv_add_f32_e32 v0, v0, v0
\ts_cbranch_vccnz .LBB0_4
\ts_cbranch_execnz .LBB0_1
"""


class TestLoops:
    """Natural loops."""

    def test_loops_know_their_nesting(self):
        """Headers, what is directly in a loop, and what belongs to it itself."""
        function = read(NEST)
        loops = find_loops(function)
        at = {block.label: i for i, block in enumerate(function.blocks)}
        assert [function.blocks[loop.header].label for loop in loops] == [".LBB0_1", ".LBB0_2", ".LBB0_4"]
        assert [loop.inner for loop in loops] == [loops[1:], (), ()]
        assert [len(loop.blocks) for loop in loops] == [5, 1, 1]
        assert loops[0].own == loops[0].blocks - {at[".LBB0_2"], at[".LBB0_4"]}
        assert loops[1].latches == {at[".LBB0_2"]}

    def test_the_hot_loop_has_the_most_matrix_products_of_its_own(self):
        """Those of an inner loop do not count for the outer; without any, vector instructions decide."""
        function = read(NEST)
        assert function.blocks[hot_loop(function).header].label == ".LBB0_1"
        plain = read(NEST.replace(WMMA, "s_nop 0"))
        assert plain.blocks[hot_loop(plain).header].label == ".LBB0_4"

    def test_two_ways_back_are_one_loop(self):
        """A `continue` makes a second latch, not a second loop."""
        function = read("""
.LBB0_1:
\ts_cbranch_scc1 .LBB0_1
\tv_mov_b32_e32 v0, 0
\ts_cbranch_vccz .LBB0_1""")
        (loop,) = find_loops(function)
        assert loop.latches == {0, 1}

    def test_a_cycle_with_two_entries_is_no_natural_loop(self):
        """Nothing dominates it; code that nothing reaches is passed over."""
        assert find_loops(read("""
\ts_cbranch_scc1 .LBB0_2
.LBB0_1:
\tv_mov_b32_e32 v0, 0
.LBB0_2:
\tv_mov_b32_e32 v1, 0
\ts_cbranch_scc0 .LBB0_1
\ts_endpgm
.LBB0_3:
\ts_branch .LBB0_3""")) == ()  # fmt: skip

    def test_deep_nests_need_no_deep_recursion(self):
        """More loops, each in the next, than Python allows calls."""
        depth = sys.getrecursionlimit() + 100
        heads = "".join(f".LBB0_{i}:\n\ts_nop 0\n" for i in range(depth))
        tails = "".join(f"\ts_cbranch_scc1 .LBB0_{i}\n" for i in reversed(range(depth)))
        loops = find_loops(read(heads + tails))
        assert [len(loop.inner) for loop in loops] == [1] * (depth - 1) + [0]


class TestPaths:
    """What an iteration executes."""

    def test_what_a_uniform_branch_skips_is_rare(self):
        """The usual path goes past it."""
        function = read(f"""
.LBB0_1:
\t{WMMA}
\ts_cbranch_vccz .LBB0_3
\tv_mul_f32_e32 v0, v0, v1
.LBB0_3:
\tv_exp_f32_e32 v0, v0
\ts_cbranch_scc1 .LBB0_1""")
        (loop,) = find_loops(function)
        assert labels(function, usual_path(function, loop)) == [".LBB0_1", ".LBB0_3"]
        assert counts_of(function, usual_path(function, loop)).units[Pipe.VECTOR] == 1

    @pytest.mark.parametrize("skip", ["s_cbranch_execz .LBB0_3", "s_cbranch_execnz .LBB0_2\n\ts_branch .LBB0_3"])
    def test_what_a_branch_on_exec_skips_is_not(self, skip):
        """It skips only where no lane is active: the code before it is guarded lane by lane."""
        function = read(f"""
.LBB0_1:
\t{WMMA}
\t{skip}
.LBB0_2:
\tds_store_b128 v0, v[1:4]
.LBB0_3:
\ts_cbranch_scc1 .LBB0_1""")
        (loop,) = find_loops(function)
        assert counts_of(function, usual_path(function, loop)).lane_bytes(Pipe.LDS) == 16

    def test_an_iteration_fetches_the_next_tile_once(self):
        """Not the last iteration, which loads nothing, nor the slow way, nor one after the other."""
        function = read(f"""
.LBB0_1:
\t{WMMA}
\ts_cbranch_scc1 .LBB0_5
\ts_cbranch_scc0 .LBB0_3
\tglobal_load_b128 v[0:3], v9, s[0:1]
\ts_cbranch_vccnz .LBB0_5
.LBB0_3:
\tglobal_load_u16 v0, v9, s[0:1]
\tglobal_load_u16 v1, v9, s[0:1]
\tglobal_load_b128 v[4:7], v9, s[0:1]
.LBB0_5:
\ts_cbranch_scc1 .LBB0_1""")
        (loop,) = find_loops(function)
        assert counts_of(function, usual_path(function, loop)).memory == {(Pipe.GLOBAL, LOAD, 16): 1}

    def test_the_path_holds_all_matrix_products(self):
        """However long the other way: an iteration that skips them is not the usual one."""
        function = read(f"""
.LBB0_1:
\ts_cbranch_scc1 .LBB0_3
\tv_mov_b32_e32 v0, 0
\t{WMMA}
.LBB0_3:
\ts_cbranch_scc1 .LBB0_1""")
        (loop,) = find_loops(function)
        assert counts_of(function, usual_path(function, loop)).units[Pipe.MATRIX] == 1

    def test_inner_loops_are_passed_over_or_run_through_once(self):
        """A rare inner loop that loads does not attract the path; one on the only way counts once."""
        rare = """
\ts_cbranch_scc1 .LBB0_3
.LBB0_2:
\tglobal_load_u16 v0, v9, s[0:1]
\ts_cbranch_scc0 .LBB0_2"""
        always = """
.LBB0_4:
\tds_load_b32 v0, v9
\ts_cbranch_scc0 .LBB0_4"""
        function = read(f"\n.LBB0_1:\n\t{WMMA}{rare}\n.LBB0_3:\n\ts_nop 0{always}\n\ts_cbranch_scc1 .LBB0_1")
        path = usual_path(function, find_loops(function)[0])
        assert labels(function, path) == [".LBB0_1", ".LBB0_3", ".LBB0_4", "s_cbranch_scc1"]
        assert counts_of(function, path).memory == {(Pipe.LDS, LOAD, 4): 1}


@pytest.fixture(scope="module")
def compiled(kernel_cache):
    """Return a function: architecture -> the launch of a long fp16 problem and its kernel, read."""

    def compile_for(arch):
        config = AttentionConfig(batch=1, num_heads=8, seq_q=4096, seq_k=4096, head_dim=64, dtype="float16")
        (launch,) = plan(config, arch).launches
        code = compile_hip(launch.source, arch, defines=launch.defines)
        (function,) = (each for each in parse_assembly(code.assembly) if each.name == launch.symbol)
        return launch, function

    return compile_for


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_the_hot_loop_of_our_kernels_is_found(compiled, arch):
    """It holds the products of one key tile, its usual path all of them; K and V are fetched, nothing is spilled."""
    launch, function = compiled(arch)
    defines, wave = launch.defines, 32 if arch == "gfx1100" else 64
    assert (function.target, function.wave_size, function.unknown_targets) == (arch, wave, ())
    loop = hot_loop(function)
    usual = counts_of(function, usual_path(function, loop))
    tiles = defines["QUERY_FRAGMENTS"] * defines["KEYS_PER_TILE"] // 16
    assert counts_of(function, loop.own).flops == usual.flops == tiles * 4 * 16 * 16 * 64
    tile_bytes = 2 * 2 * 64 * defines["KEYS_PER_TILE"]
    assert usual.lane_bytes(Pipe.GLOBAL, LOAD) * math.prod(launch.block) >= tile_bytes
    assert usual.roles[Role.TRANSCENDENTAL] == tiles * 256 // wave
    assert usual.units[Pipe.SCRATCH] == usual.spills == 0
    assert usual.instructions < sum(len(block.instructions) for block in function.blocks)
