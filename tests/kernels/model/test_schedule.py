"""The order of a hot loop, on code whose order is known by construction; each case is what a compiler writes."""

import pytest

from rocattn_profiling.kernels.model.schedule import LATENCY, OVERLAP_GAP, schedule_of
from rocattn_profiling.kernels.read.assembly import Instruction

MFMA = "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]"
BIG = "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]"
WMMA = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
READ, WRITE = "ds_read_b128 v[4:7], v8", "ds_write_b128 v8, v[4:7]"
VECTOR, LOAD = "v_exp_f32_e32 v9, v9", "global_load_dwordx4 v[4:7], v8, s[0:1]"


def order(*code, arch="gfx942", is_loop=True):
    """Return the order of a body; an item may be a line, or a list of lines."""
    lines = [line for item in code for line in ([item] if isinstance(item, str) else item)]
    body = [Instruction(*line.partition(" ")[::2]) for line in lines]
    return schedule_of(body, arch, is_loop=is_loop)


def test_vector_work_counts_as_overlapped_only_in_short_gaps():
    """Twelve between two products run beside them; one more, and the matrix unit waits for all of them."""
    short = order(MFMA, [VECTOR] * OVERLAP_GAP, MFMA, "s_barrier", [VECTOR] * OVERLAP_GAP)
    assert short.own_overlap_pct == 50
    assert order(MFMA, [VECTOR] * (OVERLAP_GAP + 1), MFMA, "s_barrier").own_overlap_pct == 0


def test_a_loop_goes_on_behind_its_branch():
    """A gap round the back edge is a gap like others, but for code that runs once."""
    assert order(VECTOR, MFMA, VECTOR).own_overlap_pct == 100
    assert order(VECTOR, MFMA, VECTOR, is_loop=False).own_overlap_pct == 0
    assert order(MFMA, READ, "s_waitcnt lgkmcnt(0)", MFMA, MFMA).run == 3
    assert order(MFMA, READ, "s_waitcnt lgkmcnt(0)", MFMA, MFMA, is_loop=False).run == 1.5


def test_products_between_a_read_and_its_wait():
    """The last read that a wait waits for counts; a wait for what has come already is none."""
    late = order(READ, READ, MFMA, MFMA, "s_waitcnt lgkmcnt(1)", MFMA, "s_waitcnt lgkmcnt(0)", MFMA)
    assert (late.read_distance, late.read_waits, late.bare_read_waits) == (2.5, 2, 0)
    early = order(READ, "s_waitcnt lgkmcnt(0)", MFMA, "s_waitcnt lgkmcnt(0)", MFMA)
    assert (early.read_distance, early.read_waits, early.bare_read_waits, early.run) == (0, 1, 1, 2)


def test_reads_of_the_iteration_before_are_waited_for():
    """A pipelined loop reads at its end what it multiplies at its beginning."""
    assert order("s_waitcnt lgkmcnt(0)", MFMA, READ, MFMA, MFMA, MFMA).read_distance == 3


def test_larger_products_count_as_several():
    """A 32x32x8 is two of 16x16x16, and takes twice the cycles."""
    found = order(READ, BIG, "s_waitcnt lgkmcnt(0)", BIG)
    assert (found.products, found.read_distance, found.run) == (4, 2, 4)


@pytest.mark.parametrize(
    ("arch", "read", "wait"),
    [
        ("gfx942", READ, "s_waitcnt vmcnt(0) lgkmcnt(0)"),
        ("gfx942", READ, "s_waitcnt 0xc07f"),
        ("gfx1030", READ, "s_waitcnt 0xc07f"),
        ("gfx1100", "ds_load_b128 v[4:7], v8", "s_waitcnt 0xfc07"),
        ("gfx1100", "ds_load_b128 v[4:7], v8", "s_waitcnt_lgkmcnt null, 0x0"),
        ("gfx1201", "ds_load_b128 v[4:7], v8", "s_wait_dscnt 0x0"),
        ("gfx1201", "ds_load_b128 v[4:7], v8", "s_wait_loadcnt_dscnt 0x3f00"),
    ],
)
def test_every_generation_has_its_own_waits(arch, read, wait):
    """By name, as a number, one counter or two; a wait for arithmetic is no wait for memory."""
    product = WMMA if arch.startswith("gfx1") else MFMA
    assert order(read, product, "s_waitcnt_depctr 0xfff", wait, arch=arch).read_distance == 1


def test_counters_tell_stores_and_scalar_loads_apart():
    """A wait for stores is none for loads on gfx11; gfx9 counts both; gfx12 counts scalar loads apart from LDS."""
    store, scalar = "global_store_dword v8, v4, s[0:1]", "s_load_dword s4, s[0:1], 0x0"
    assert order(LOAD, store, "s_waitcnt vmcnt(1)", arch="gfx942").loads_in_flight == 1
    assert order(LOAD, store, MFMA, "s_waitcnt_vscnt null, 0x0", MFMA, arch="gfx1100").run == 2
    read = "ds_load_b128 v[4:7], v8"
    assert order(read, scalar, WMMA, "s_wait_kmcnt 0x0", WMMA, arch="gfx1201").read_waits == 0
    assert order(READ, scalar, WMMA, "s_waitcnt lgkmcnt(0)", WMMA, arch="gfx1100").read_waits == 1


def test_loads_in_flight_of_loops_with_and_without_products():
    """One load at a time is a chain of latencies; eight that are waited for one by one are eight in flight."""
    chain = order(LOAD, "s_waitcnt vmcnt(0)", "v_pk_fma_f32 v[0:1], v[4:5], v[6:7], v[0:1]", is_loop=True)
    assert (chain.loads_in_flight, chain.bytes_in_flight, chain.products, chain.run) == (1, 16, 0, None)
    waits = [line for left in range(7, -1, -1) for line in (f"s_waitcnt vmcnt({left})", VECTOR)]
    assert order([LOAD] * 8, waits).loads_in_flight == 8
    ahead = order("s_waitcnt vmcnt(1)", MFMA, LOAD, WRITE)
    assert (ahead.loads_in_flight, ahead.bytes_in_flight) == (2, 32)
    assert order(MFMA, READ, "s_waitcnt lgkmcnt(0)").loads_in_flight is None
    assert order(LOAD, LOAD, MFMA).loads_in_flight == 2


def test_direct_to_lds_loads_are_loads():
    """AITER's K goes to LDS without a register."""
    direct = order("buffer_load_dword v8, s[4:7], 0 offen lds", MFMA, "s_waitcnt vmcnt(0)", "s_barrier")
    assert (direct.loads_in_flight, direct.bytes_in_flight, direct.read_waits) == (1, 4, 0)


@pytest.mark.parametrize(
    ("code", "exposed"),
    [
        ([LOAD, "s_waitcnt vmcnt(0)", *[VECTOR] * 50], LATENCY - 4),
        (["s_waitcnt vmcnt(0)", LOAD, *[VECTOR] * 50], LATENCY - 204),
        (["s_waitcnt vmcnt(0)", LOAD, *[VECTOR] * 300], 0),
        ([LOAD, "s_waitcnt vmcnt(0)"] * 3, 3 * (LATENCY - 4)),
        ([*[LOAD] * 3, *["s_waitcnt vmcnt(2)", "s_waitcnt vmcnt(1)", "s_waitcnt vmcnt(0)"]], LATENCY - 12),
        ([LOAD, MFMA, "s_waitcnt vmcnt(0)"], None),
    ],
)
def test_what_a_wave_waits_for_memory_without_products(code, exposed):
    """Loads under way at once wait once, and what is issued meanwhile is not waited for, around the back edge, too."""
    body = [Instruction(*line.partition(" ")[::2]) for line in code]
    found = schedule_of(body, "gfx942", is_loop=True, cycles=dict.fromkeys(body, 4.0)).exposed_cycles
    assert found == (None if exposed is None else pytest.approx(exposed, abs=8))
