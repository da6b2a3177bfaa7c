"""How loops count: steps and constant numbers of iterations, in the forms that compilers write."""

import pytest

from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.loops import find_loops
from rocattn_profiling.kernels.model.trips import count_of
from rocattn_profiling.kernels.read.assembly import parse_assembly

from .test_lanes import KERNEL


def kernel(body):
    """Return a kernel of gfx942."""
    lines = "\n".join(line if line.endswith(":") else f"\t{line}" for line in body.splitlines())
    (function,) = parse_assembly(KERNEL.format(arch="gfx942", body=lines, half=0))
    return function


def count(body):
    """Return how its only loop counts."""
    function = kernel(body)
    (loop,) = find_loops(function)
    found = count_of(function, loop.header, loop.blocks, LaneValues(function, 64))
    return found and (found.step, found.trips)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s_mov_b32 s5, 64\n.L:\ns_add_i32 s5, s5, -2\ns_cmp_lg_u32 s5, 0\ns_cbranch_scc1 .L", (-2, 32)),
        ("s_mov_b32 s5, 64\n.L:\ns_sub_i32 s5, s5, 2\ns_cmp_lg_u32 s5, 0\ns_cbranch_scc1 .L", (-2, 32)),
        ("s_mov_b32 s3, 0\n.L:\ns_addk_i32 s3, 0x110\ns_cmpk_eq_i32 s3, 0x1100\ns_cbranch_scc0 .L", (272, 16)),
        ("s_mov_b32 s3, 0\n.L:\ns_cmp_lt_i32 s3, 9\ns_add_i32 s3, s3, 3\ns_cbranch_scc1 .L", (3, 4)),
        ("s_mov_b32 s3, 0\n.L:\ns_cmp_ge_i32 s3, 8\ns_cbranch_scc1 .E\ns_add_i32 s3, s3, 1\ns_branch .L\n.E:\nv_nop",
         (1, 8)),
        ("s_mov_b32 s3, 0\n.L:\ns_add_i32 s4, s3, 1\ns_cmp_eq_u32 s3, 7\ns_mov_b32 s3, s4\ns_cbranch_scc0 .L", (1, 8)),
        (("s_load_dword s4, s[0:1], 0x0\ns_mov_b32 s3, 0\n.L:\ns_add_i32 s3, s3, 16\ns_cmp_ge_i32 s3, s4\n"
         "s_cbranch_scc0 .L"), (16, None)),
        ("s_load_dword s3, s[0:1], 0x0\n.L:\ns_add_i32 s3, s3, -1\ns_cmp_eq_u32 s3, 0\ns_cbranch_scc0 .L", (-1, None)),
        ((".L:\nv_add_u32_e32 v1, 0x400, v1\nv_cmp_le_i32_e32 vcc, s8, v1\ns_or_b64 s[2:3], vcc, s[2:3]\n"
         "s_andn2_b64 exec, exec, s[2:3]\ns_cbranch_execnz .L"), (1024, None)),
        ("s_mov_b32 s3, 0\n.L:\ns_addk_co_i32 s3, 0x100\ns_cmp_eq_u32 s3, 0x800\ns_cbranch_scc0 .L", (256, 8)),
        ("s_mov_b64 s[4:5], 0\n.L:\ns_add_nc_u64 s[4:5], s[4:5], 0x400\ns_cmp_eq_u32 s4, 0x8000\ns_cbranch_scc0 .L",
         (1024, 32)),
        ("s_mov_b32 s3, 1\n.L:\ns_lshl_b32 s3, s3, 1\ns_cmp_lt_i32 s3, 64\ns_cbranch_scc1 .L", None),
        (".L:\ns_cbranch_vccnz .L", None),
    ],
)  # fmt: skip
def test_steps_and_iterations(body, expected):
    """Of what is no constant only the step is known."""
    assert count(body) == expected


def test_a_constant_inner_loop_counts_as_if_it_were_unrolled():
    """The outer loop is the hot one, with all iterations of the inner one; without a constant it is the inner one."""
    nest = (
        "s_mov_b32 s9, 0\n.LO:\nglobal_load_dword v1, v0, s[2:3]\ns_mov_b32 s3, {}\n"
        ".LI:\nv_fma_f32 v2, v1, v1, v2\nv_fma_f32 v2, v1, v1, v2\ns_add_i32 s3, s3, -1\ns_cmp_eq_u32 s3, 0\n"
        "s_cbranch_scc0 .LI\ns_barrier\ns_add_i32 s9, s9, 16\ns_cmp_lt_i32 s9, s8\ns_cbranch_scc1 .LO"
    )
    cost = loop_cost(kernel(nest.format(16)), "gfx942")
    assert (cost.loop, cost.step, cost.trips, cost.barriers) == (".LO", 16, None, 1)
    assert cost.vector_flops == 16 * 2 * 2 * 64
    assert cost.notes == ()
    cost = loop_cost(kernel(nest.format("s7")), "gfx942")
    assert (cost.loop, cost.step, cost.trips, cost.vector_flops) == (".LI", -1, None, 2 * 2 * 64)


def test_a_loop_over_lanes_is_not_the_hot_one():
    """LLVM sums up the lanes of a wave before an atomic; without FLOPs, accesses of memory tell the hot loop."""
    lanes = (
        ".LO:\nglobal_load_dword v1, v0, s[2:3]\ns_mov_b64 s[6:7], exec\n.LI:\ns_ff1_i32_b64 s9, s[6:7]\n"
        "v_readlane_b32 s12, v1, s9\ns_lshl_b64 s[10:11], 1, s9\ns_andn2_b64 s[6:7], s[6:7], s[10:11]\n"
        "v_add_f32 v2, s12, v2\ns_cbranch_scc1 .LI\nglobal_atomic_add_f32 v1, v2, s[0:1]\ns_add_i32 s8, s8, 1\n"
        "s_cmp_lt_i32 s8, s13\ns_cbranch_scc1 .LO"
    )
    assert loop_cost(kernel(lanes), "gfx942").loop == ".LO"
    load = "global_load_dword v{}, v0, s[2:3]\n"
    copies = (
        f".LA:\n{load.format(1)}v_add_u32 v5, 1, v5\nv_add_u32 v5, 1, v5\ns_cbranch_scc1 .LA\n"
        f".LB:\n{load.format(1)}{load.format(2)}v_add_u32 v5, 1, v5\ns_cbranch_scc1 .LB"
    )
    assert loop_cost(kernel(copies), "gfx942").loop == ".LB"
