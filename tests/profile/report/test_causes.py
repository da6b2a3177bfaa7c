"""Why a kernel became slower: the limit whose time grew with it, or what changes every share."""

from dataclasses import replace

import pytest

from rocattn_profiling.profile.report.causes import cause_of
from rocattn_profiling.profile.report.compare import compare

from .test_limits import BMM1, BMM2, report

COPY = {
    "ns": 40_000, "GRBM_GUI_ACTIVE": 600_000, "SQ_WAVES": 8192, "SQ_INSTS": 100_000, "SQ_WAVE_CYCLES": 90_000_000,
    "SQ_WAIT_ANY": 60_000_000, "SQ_ACTIVE_INST_VALU": 400_000, "SQ_VALU_MFMA_BUSY_CYCLES": 0, "SQ_LDS_IDX_ACTIVE": 0,
    "SQ_LDS_BANK_CONFLICT": 0, "SQ_INSTS_LDS": 0, "TCP_TOTAL_CACHE_ACCESSES_sum": 2_000_000,
    "TA_FLAT_WAVEFRONTS_sum": 1_000_000, "TA_BUFFER_WAVEFRONTS_sum": 0, "TCC_REQ_sum": 1_500_000,
    "TCC_EA0_RDREQ_sum": 1_300_000, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 0, "TCC_EA0_WRREQ_sum": 1_300_000,
    "TCC_EA0_WRREQ_64B_sum": 1_300_000,
}  # fmt: skip
"""A copy of 83 MB each way in 40 us: 78 % of an MI300X's memory."""


def cause(before, after, **resources):
    """Return why the second launch takes longer than the first, or less long."""
    (old,), (new,) = report(before).kernels, report(after).kernels
    new = replace(new, resources=new.resources | resources)
    return cause_of(old, new, new.time_ns[50] / old.time_ns[50])


def scaled(counted, ratio, *names):
    """Return counters, of which some are so many times as large."""
    return counted | {name: round(counted[name] * ratio) for name in names}


def test_unaligned_rows_are_the_cause_of_a_slower_product():
    """The real case: of 20 metrics that moved, LDS is the limit whose time grew; its evidence is what made it grow."""
    why = cause(BMM1, BMM2)
    assert (why.code, why.limit) == ("limit", "lds")
    assert why.text == "LDS busy 23 → 79 %"
    assert any("unaligned" in each for each in why.evidence)
    back = cause(BMM2, BMM1)
    assert (back.code, back.limit, back.text) == ("limit", "lds", "LDS busy 79 → 23 %")


def test_more_bytes_at_the_same_bandwidth_are_more_work():
    """A copy that moves 30 % more at 78 % of the peak, both times: its share moved by nothing, its time did."""
    names = [name for name in COPY if name.startswith("TCC_EA0")]
    why = cause(COPY, scaled(COPY, 1.3, "ns", "GRBM_GUI_ACTIVE", *names))
    assert (why.code, why.limit) == ("limit", "memory")
    assert "30 % more" in why.text


def test_the_same_cycles_at_a_lower_clock_are_the_clock():
    """A GPU at its power limit: every bandwidth falls, and no kernel became worse."""
    why = cause(BMM2, scaled(BMM2, 1.25, "ns"))
    assert why.code == "clock"
    assert "20 %" in why.text


def test_another_problem_is_not_a_slower_kernel():
    """Twice the blocks in twice the time."""
    (old,), (new,) = report(COPY).kernels, report(scaled(COPY, 2, *COPY)).kernels
    why = cause_of(old, replace(new, grids=((2 * 524288, 256),)), 2.0)
    assert why.code == "work"


def test_spilled_registers_come_before_the_limit_that_they_load():
    """Scratch is memory: the memory's share moves, and the spill is the cause."""
    names = [name for name in COPY if name.startswith("TCC_EA0")]
    slow = scaled(COPY, 1.3, "ns", "GRBM_GUI_ACTIVE", *names)
    assert cause(COPY, slow, scratch_bytes=64).code == "scratch"
    assert cause(slow, COPY, scratch_bytes=64).code != "scratch", "it became faster in spite of them"


def test_fewer_waves_are_the_cause_where_no_limit_is_near():
    """Half of the waves fit, and everything is done at half the rate."""
    idle = scaled(COPY, 1 / 8, *(name for name in COPY if name.startswith(("TC", "TA"))))
    idle |= {"SQ_LEVEL_WAVES_ACCUM": 45e7}
    slow = scaled(idle, 2, "ns", "GRBM_GUI_ACTIVE")
    why = cause(idle, slow, vgprs=168)
    assert why.code == "occupancy"
    assert why.evidence == ("VGPRs 48 → 168",)


@pytest.mark.parametrize(
    ("after", "code"),
    [({"ns": 29344}, "same"), ({"ns": 60_000}, "uncounted"), (BMM1 | {"ns": 60_000}, "clock")],
    ids=["same", "times only", "clock"],
)
def test_what_cannot_be_explained_is_not(after, code):
    """Less than 2 % is no change; without counters there is a command, not a guess."""
    why = cause(BMM1, after)
    assert why.code == code
    assert bool(why.remedy) == (code == "uncounted")


def test_another_instance_of_a_function_is_its_partner():
    """A tile's size is a template argument: the names differ, and the comparison was of nothing."""
    before, after = report(BMM1), report(BMM2)
    before.kernels = [replace(before.kernels[0], name="void bmm<64>(int)")]
    after.kernels = [replace(after.kernels[0], name="void bmm<128>(int)")]
    (pair,) = compare(before, after).pairs
    assert pair.is_other_instance
    assert pair.ratio == pytest.approx(1.29, abs=0.01)
    two = [replace(before.kernels[0], name=f"void bmm<{size}>(int)") for size in (32, 64)]
    before.kernels = two
    assert [bool(pair.before and pair.after) for pair in compare(before, after).pairs] == [False] * 3
