"""Cache lines of global accesses: counted by hand, on the ways in which compilers write addresses."""

import pytest

from rocattn_profiling.kernels.model.cache_lines import cache_lines
from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.read.assembly import parse_assembly

from .test_lanes import KERNEL

PITCH = "s_load_dword s4, s[0:1], 0x0\n"
TILE = "v_lshrrev_b32_e32 v1, 4, v0\nv_and_b32_e32 v2, 15, v0\n"  # 16 lanes a row


def lines(body, arch="gfx942", threads=64):
    """Return the cache lines of a kernel's code, run through once."""
    text = "\n".join(line if line.endswith(":") else f"\t{line}" for line in body.splitlines())
    (function,) = parse_assembly(KERNEL.format(arch=arch, body=text, half=int(arch.startswith("gfx1"))))
    return cache_lines(function, range(len(function.blocks)), arch, LaneValues(function, threads))


@pytest.mark.parametrize(
    ("body", "touched", "factor", "stride"),
    [
        ("v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v9, v1, s[2:3]", 4, 1, 4),
        ("v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v9, v1, s[2:3] offset:20", 4, 1, 4),
        ("v_lshlrev_b32_e32 v1, 8, v0\nglobal_load_dword v9, v1, s[2:3]", 64, 16, 256),
        ("v_mov_b32_e32 v1, 0\nglobal_load_dwordx4 v[4:7], v1, s[2:3]", 1, 1, 0),
        (("v_mov_b32_e32 v1, 0\nv_lshlrev_b64 v[4:5], 4, v[0:1]\nv_lshl_add_u64 v[4:5], s[2:3], 0, v[4:5]\n"
         "global_load_dwordx2 v[6:7], v[4:5], off"), 16, 2, 16),
        (f"{PITCH}v_mad_u64_u32 v[4:5], s[6:7], v0, s4, 0\nglobal_load_dwordx4 v[8:11], v[4:5], off", 64, 4, None),
        ((f"{PITCH}v_mul_lo_u32 v1, v0, s4\nv_ashrrev_i32_e32 v2, 31, v1\nv_lshlrev_b64 v[2:3], 2, v[1:2]\n"
         "v_add_co_u32_e32 v2, vcc, s2, v2\nv_addc_co_u32_e32 v3, vcc, v4, v3\nglobal_store_dword v[2:3], v0, off"),
         64, 16, None),
        (f"{PITCH}{TILE}v_mad_u32_u24 v1, v1, s4, v2\nv_lshlrev_b32_e32 v1, 2, v1\nglobal_load_dword v9, v1, s[2:3]",
         4, 1, None),
        (f"{PITCH}{TILE}v_mad_u32_u24 v1, v2, s4, v1\nv_lshlrev_b32_e32 v1, 2, v1\nglobal_load_dword v9, v1, s[2:3]",
         16, 4, None),
        (f"{PITCH}v_lshlrev_b32_e32 v1, s4, v0\nflat_load_dword v9, v[1:2]", 64, 16, None),
        ("v_lshlrev_b32_e32 v1, 7, v0\nbuffer_load_dword v9, v1, s[4:7], s8 offen offset:4", 64, 16, 128),
        ("v_lshlrev_b32_e32 v1, 7, v0\nbuffer_load_dword v1, s[4:7], s8 offen lds", 64, 16, 128),
        ("buffer_load_dword v9, off, s[4:7], s8", 1, 1, 0),
        ("v_mov_b32_e32 v1, 0\nv_mov_b32 v2, v0\nv_ashrrev_i64 v[4:5], 29, v[1:2]\nglobal_load_dword v9, v[4:5], s3",
         8, 2, 8),
        (("global_load_dword v3, v0, s[2:3]\nv_cmp_eq_u32_e32 vcc, 0, v3\nv_bfrev_b32_e32 v5, 1\n"
         "v_lshlrev_b32_e32 v1, 4, v0\nv_cndmask_b32_e32 v1, v5, v1, vcc\nbuffer_load_dword v9, v1, s[4:7], 0 offen"),
         16, 4, 16),
    ],
)  # fmt: skip
def test_lines_of_one_wave(body, touched, factor, stride):
    """As counted by hand; an unknown pitch has each row in lines of its own."""
    found = lines(body)
    assert (found.unknown, found.worst_lines, found.worst, found.worst_stride) == (0, touched, factor, stride)
    assert found.own_lines == (touched == 64)


def test_a_vector_load_of_one_address_is_named():
    """A scalar load would do; not so a store, or a load through a buffer whose lanes the hardware tells apart."""
    body = "v_mov_b32_e32 v1, 0\nglobal_load_dword v9, v1, s[2:3]\nglobal_store_dword v1, v9, s[2:3]"
    assert lines(body).uniform == 1
    assert lines("buffer_load_dword v9, off, s[4:7], s8").uniform == 0
    cost = loop_cost(parse_assembly(KERNEL.format(arch="gfx942", body=f"\t{body}", half=0))[0], "gfx942")
    assert cost.schedule.idioms == ("vector load of one address",)


def test_lines_of_rdna_have_128_bytes():
    """Of 32 lanes with 4 bytes each they are one; two rows of 64 bytes are two."""
    found = lines("v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_b32 v9, v1, s[2:3]", "gfx1201", 32)
    assert (found.line_bytes, found.factor, found.worst_lines) == (128, 1, 1)
    tile = f"{PITCH}{TILE}v_mul_lo_u32 v1, v1, s4\nv_add_lshl_u32 v1, v1, v2, 2\nglobal_load_b32 v9, v1, s[2:3]"
    assert lines(tile, "gfx1100", 32).factor == 2


def test_a_loop_moves_all_lanes_or_none():
    """A pointer that each iteration moves by one number keeps its lines; by the lanes' own numbers they are unknown."""
    loop = "v_lshlrev_b32_e32 v1, 2, v0\n.L1:\nglobal_load_dword v9, v1, s[2:3]\n{}\ns_cbranch_scc1 .L1"
    assert lines(loop.format("v_add_u32_e32 v1, 0x400, v1")).factor == 1
    assert lines(loop.format("v_add_u32_e32 v1, v0, v1")).unknown == 1


def test_what_the_code_does_not_tell_is_unknown():
    """Gathers, several dimensions of a block, and buffers of records: no part of the factor."""
    gather = "global_load_dword v1, v0, s[2:3]\nglobal_load_dword v9, v1, s[2:3]"
    assert (lines(gather).accesses, lines(gather).unknown, lines(gather).factor) == (2, 1, 1)
    assert lines("v_bfe_u32 v1, v0, 10, 10\nglobal_load_dword v9, v1, s[2:3]").factor is None
    assert lines("buffer_load_dword v9, v0, s[4:7], 0 idxen").factor is None
    assert lines("v_mov_b32_e32 v1, v0") is None
