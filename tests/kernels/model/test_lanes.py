"""Registers followed back to the thread's number, on the ways in which compilers make addresses."""

import pytest

from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.read.assembly import parse_assembly

KERNEL = """\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
\t.type k,@function
k:
{body}
\ts_endpgm
.Lend:
\t.size k, .Lend-k
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 16
\t\t.amdhsa_wavefront_size32 {half}
\t.end_amdhsa_kernel
"""


def value(body, register="v9", arch="gfx942", threads=64):
    """Return what a register holds at the end of a kernel."""
    half = int(arch.startswith("gfx1"))
    lines = "\n".join(line if line.endswith(":") else f"\t{line}" for line in body.splitlines())
    (function,) = parse_assembly(KERNEL.format(arch=arch, body=lines, half=half))
    last = len(function.blocks) - 1
    found = LaneValues(function, threads).operand(register, (last, len(function.blocks[last].instructions) - 1))
    return found and (found.words.tolist(), found.loose)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("v_lshlrev_b32_e32 v9, 4, v0", lambda t: t * 16),
        ("v_lshrrev_b32_e32 v2, 3, v0\nv_mul_u32_u24_e32 v2, 0x110, v2\nv_lshl_add_u32 v9, v0, 4, v2",
         lambda t: t // 8 * 0x110 + t * 16),
        ("s_movk_i32 s9, 0x90\nv_mad_u32_u24 v9, v0, s9, 4", lambda t: t * 0x90 + 4),
        ("v_bfe_u32 v1, v0, 2, 2\nv_xor_b32_e32 v9, v1, v0", lambda t: t ^ t >> 2 & 3),
        ("v_bfe_i32 v1, v0, 0, 1\nv_and_b32_e32 v9, 0x108, v1", lambda t: 0x108 * (t & 1)),
        ("v_mbcnt_lo_u32_b32 v1, -1, 0\nv_mbcnt_hi_u32_b32 v1, -1, v1\nv_sub_u32_e32 v9, 63, v1", lambda t: 63 - t),
        ("v_cmp_gt_u32_e32 vcc, 16, v0\nv_mov_b32_e32 v1, 8\nv_cndmask_b32_e32 v9, 0, v1, vcc", lambda t: 8 * (t < 16)),
        ("v_accvgpr_write_b32 a3, v0\nv_accvgpr_read_b32 v9, a3", lambda t: t),
        ("v_bitop3_b32 v9, v0, 12, 3 bitop3:0x6c", lambda t: 12 ^ (t & 3)),
        ("v_mad_u64_u32 v[9:10], s[0:1], v0, 24, v[0:1]", lambda t: t * 25),
        ("v_mul_lo_u16 v1, v0, 48\nv_sub_nc_u16 v9, v0, v1", lambda t: t - t * 48 & 0xFFFF),
        ("v_and_b32_e32 v1, 31, v0\nv_or3_b32 v9, v1, 64, 0x80", lambda t: t % 32 | 192),
    ],
)  # fmt: skip
def test_arithmetic_on_the_thread(body, expected):
    """Every lane has its own number; the result is exact."""
    assert value(body) == ([expected(thread) for thread in range(64)], "")


def test_dual_instructions_are_two():
    """gfx11 writes two in one."""
    body = "v_dual_mov_b32 v1, 5 :: v_dual_lshlrev_b32 v9, 2, v0"
    assert value(body, arch="gfx1100", threads=32) == ([4 * thread for thread in range(32)], "")
    body = "v_cmp_gt_u32_e32 vcc_lo, 16, v0\nv_dual_cndmask_b32 v9, v0, v1 :: v_dual_mov_b32 v2, 1"
    assert value(f"v_mov_b32_e32 v1, 8\n{body}", arch="gfx1100", threads=32)[0] == [8] * 16 + list(range(16, 32))


def test_unknown_scalars_move_all_lanes_alike():
    """An argument added or XORed leaves the differences; multiplied with lanes' numbers it does not."""
    load = "s_load_dword s4, s[0:1], 0x0\n"
    assert value(f"{load}v_lshl_add_u32 v9, v0, 2, s4") == ([4 * thread for thread in range(64)], "add")
    assert value(f"{load}v_xor_b32_e32 v9, s4, v0") == (list(range(64)), "xor")
    assert value(f"{load}v_mul_lo_u32 v9, v0, s4") is None
    assert value(f"{load}v_min_u32_e32 v9, s4, v0") == (list(range(64)), "add")
    assert value(f"{load}v_add_u32_e32 v1, s4, v0\nv_and_b32_e32 v9, 15, v1") is None
    assert value(f"{load}v_xor_b32_e32 v1, s4, v0\nv_add_u32_e32 v9, v0, v1") is None
    assert value(f"{load}s_and_b32 s4, s4, 3\nv_mov_b32_e32 v9, s4") == ([0] * 64, "add")


def test_parts_of_a_sum_with_no_bits_in_common_are_taken_apart():
    """The thread among all is its block's number times a power of two, and its own number: rows and columns of that."""
    thread = "s_load_dword s4, s[0:1], 0x0\ns_lshl_b32 s5, s4, 6\nv_or_b32_e32 v1, s5, v0\n"
    assert value(f"{thread}v_and_b32_e32 v9, 15, v1") == ([t % 16 for t in range(64)], "")
    assert value(f"{thread}v_lshrrev_b32_e32 v9, 4, v1") == ([t // 16 for t in range(64)], "add")
    assert value(f"{thread}v_bfe_u32 v9, v1, 2, 3") == ([t // 4 % 8 for t in range(64)], "")
    assert value(f"{thread}v_bfe_u32 v9, v1, 2, 5") == ([t // 4 for t in range(64)], "add")
    assert value(f"{thread}v_lshrrev_b32_e32 v9, 4, v1", threads=128) == ([t % 64 // 16 for t in range(128)], "add")
    assert value(f"{thread}v_add_u32_e32 v1, 1, v1\nv_and_b32_e32 v9, 15, v1") is None
    moved = f"{thread}.L1:\nv_and_b32_e32 v9, 15, v1\nv_add_u32_e32 v1, s4, v1\ns_cbranch_scc1 .L1"
    assert value(moved) is None


def test_an_unknown_mask_is_not_the_same_for_all_lanes():
    """A choice by it is known only where both sides are equal."""
    choice = "global_load_dword v3, v0, s[0:1]\nv_cmp_eq_u32_e32 vcc, 0, v3\nv_cndmask_b32_e32 v9, {}, v0, vcc"
    assert value(choice.format("8")) is None
    assert value(choice.format("v0")) == (list(range(64)), "")


def test_what_comes_from_memory_or_other_lanes_is_not_known():
    """Nor what a call may have written."""
    assert value("global_load_dword v9, v0, s[0:1]") is None
    assert value("v_mov_b32_dpp v9, v0 quad_perm:[1,0,3,2]") is None
    assert value("v_mov_b32_e32 v9, v0\ns_swappc_b64 s[30:31], s[4:5]") is None
    assert value("v_mov_b32_e32 v9, v5") is None


def test_a_loop_adds_to_what_it_began_with():
    """A pointer that advances by the same for all lanes keeps their differences; two ways that differ do not agree."""
    loop = "v_lshlrev_b32_e32 v9, 4, v0\n.L1:\nv_add_u32_e32 v9, 0x400, v9\ns_cbranch_scc1 .L1"
    words, loose = value(loop)
    assert ([word - words[0] for word in words], loose) == ([16 * thread for thread in range(64)], "")
    ways = "v_mov_b32_e32 v9, {}\ns_cbranch_scc1 .L1\nv_mov_b32_e32 v9, {}\n.L1:\ns_nop 0"
    assert value(ways.format("v0", "0")) is None
    assert value(ways.format("0", "64"))[1] == ""


@pytest.mark.parametrize(
    "step",
    ["v_add_u32_e32 v9, 1, v9", "v_cmp_lt_u32_e32 vcc, v9, v0\nv_cndmask_b32_e32 v9, 0, v9, vcc",
     "v_lshrrev_b64 v[9:10], 1, v[9:10]"],
)  # fmt: skip
def test_a_value_of_very_many_steps_is_not_known(step):
    """Whatever the instructions: Python goes only so deep."""
    assert value("\n".join(["v_mov_b32_e32 v9, v0", "v_mov_b32_e32 v10, 0", *[step] * 2000])) is None
    assert value("\n".join(["v_mov_b32_e32 v9, v0", *["v_add_u32_e32 v9, 1, v9"] * 90]))[0][0] == 90


def test_waves_of_a_block_have_their_own_first_lanes():
    """v_readfirstlane is the wave's; the number of the wave is the same in its lanes."""
    words, _ = value("v_readfirstlane_b32 s4, v0\nv_mov_b32_e32 v9, s4", threads=128)
    assert words == [0] * 64 + [64] * 64
