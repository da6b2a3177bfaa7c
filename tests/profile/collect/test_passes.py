"""Passes: every counter once where it fits, within every block's registers, the same each time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from rocattn_profiling.profile.collect.counters import (
    ACCUMULATOR,
    CounterError,
    anchors,
    default_groups,
    group,
    group_names,
    known_archs,
    of_arch,
)
from rocattn_profiling.profile.collect.passes import TIMING, ProfilerPass, plan_passes, split

# Registers per block from AMD's sources (gfxip/gfx*/gfx*_block_info.h), written down here a second time on purpose.
REGISTERS = {"SQ": 8, "TCC": 4, "TCP": 4, "TA": 2, "TD": 2, "GRBM": 2, "SPI": 6, "CPC": 2, "CPF": 2, "GL2C": 4}


def registers_of(arch):
    """Return the registers of an architecture."""
    return REGISTERS | ({"SQ": 16} if arch.startswith("gfx12") else {})


def raw(counter, arch):
    """Return the raw counters of a counter, for the names that are one with a suffix; else what the table says."""
    for suffix in ("_sum", "_avr", "_max", "_min"):
        if counter.endswith(suffix) and of_arch(arch).needs(counter) == (counter.removesuffix(suffix),):
            return {counter.removesuffix(suffix)}
    return set(of_arch(arch).needs(counter))


def assert_fits(counters, arch):
    """Check a pass against the registers, counting raw counters by the block in their names."""
    used = {}
    for name in {one for counter in counters for one in raw(counter, arch)}:
        block = "SQ" if name.startswith(("SQ_", "SQC_")) else name.split("_")[0]
        used[block] = used.get(block, 0) + 1
    over = {block: count for block, count in used.items() if count > registers_of(arch).get(block, 1 << 30)}
    assert not over, (arch, counters)
    assert sum(ACCUMULATOR in raw(counter, arch) for counter in counters) <= 1


@pytest.mark.parametrize("arch", known_archs())
def test_default_passes_fit_and_repeat_the_anchors(arch):
    """The timing pass is first and has no counters; every other one has the anchors and fits the blocks."""
    plan = plan_passes((), arch)
    first, *others = plan.passes
    assert (first.name, first.counters) == (TIMING, ())
    assert 1 <= len(others) <= 5
    for of_pass in others:
        assert set(anchors()) <= set(of_pass.counters)
        assert len(set(of_pass.counters)) == len(of_pass.counters)
        assert_fits(of_pass.counters, arch)
    wanted = {name for one in default_groups() for part in group(one, of_arch(arch)) for name in part}
    assert wanted <= {name for of_pass in others for name in of_pass.counters}


@pytest.mark.parametrize("arch", known_archs())
def test_every_counter_of_every_group_exists_there(arch):
    """A group asks no architecture for a counter that its profiler's table does not have."""
    counters = of_arch(arch)
    for name in group_names():
        for part in group(name, counters):
            assert [one for one in part if not counters.has(one)] == []


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_what_is_divided_by_each_other_is_counted_in_one_pass(arch):
    """Parts of a group that fit beside the anchors stay together: ratios are taken within a run."""
    plan = plan_passes(tuple(group_names()), arch)
    counters = of_arch(arch)
    for name in group_names():
        for part in group(name, counters):
            if not counters.over((*anchors(), *part)):
                assert any(set(part) <= set(of_pass.counters) for of_pass in plan.passes), part


@settings(max_examples=60, deadline=None)
@given(data=st.data(), arch=st.sampled_from(["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201", "gfx1151"]))
def test_any_choice_of_counters_is_covered_within_the_limits(data, arch):
    """Every counter asked for is in a pass, no pass is over, and the plan is the same each time."""
    counters = of_arch(arch)
    names = sorted(name for name in (*counters.blocks, *counters.expressions) if not counters.over((name,)))
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=40, unique=True))
    plan = plan_passes(wanted, arch)
    assert plan == plan_passes(wanted, arch)
    assert set(wanted) <= {name for of_pass in plan.passes for name in of_pass.counters}
    for of_pass in plan.passes[1:]:
        assert_fits(of_pass.counters, arch)


def test_two_accumulated_counters_need_two_passes():
    """The accumulator register is one: MeanOccupancyPerCU and LdsLatency do not share a pass."""
    plan = plan_passes(["MeanOccupancyPerCU", "LdsLatency"], "gfx942")
    together = [of_pass.counters for of_pass in plan.passes if "MeanOccupancyPerCU" in of_pass.counters]
    assert len(together) == 1
    assert "LdsLatency" not in together[0]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_what_is_cut_over_passes_leaves_room_for_the_anchors(arch):
    """Twelve SQ counters of the vector FLOPs: 7 and 5 beside SQ_WAVES, not 8 without it and 4."""
    _, *counting = plan_passes(["vector_flops"], arch).passes
    assert [len(of_pass.wanted) for of_pass in counting] == [7, 5]
    assert all(set(anchors()) <= set(of_pass.counters) for of_pass in counting)


def test_a_derived_counter_takes_the_registers_of_its_parts():
    """FETCH_SIZE (3 of TCC) and WRITE_SIZE (2) do not fit one pass on gfx942, and do on gfx90a (2 + 2)."""
    passes = {arch: len(plan_passes(["FETCH_SIZE", "WRITE_SIZE"], arch).passes) for arch in ("gfx942", "gfx90a")}
    assert passes == {"gfx942": 3, "gfx90a": 2}


@pytest.mark.parametrize(
    ("wanted", "arch", "message"),
    [
        (["TCC_HITT_sum"], "gfx942", "TCC_HIT_sum"),
        (["TCC_EA_RDREQ_sum"], "gfx942", "TCC_EA0_RDREQ_sum"),
        (["launch"], "gfx1100", "nothing to count: launch: gfx1100 has no counters for it"),
        (["SQ_WAVES; rm -rf"], "gfx942", "letters, digits and _ only"),
        ([], "gfx1300", "no table of counters for gfx1300"),
        ([], "mi300", "write it like gfx942"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_right_one(wanted, arch, message):
    """A typo, another architecture's counter, a group that is not there, and no architecture."""
    with pytest.raises(CounterError, match=re.escape(message)) as told:
        plan_passes(wanted, arch)
    assert "\n" not in str(told.value)


def test_a_group_without_counters_is_left_out():
    """The rest is still planned."""
    plan = plan_passes(["lds", "launch", "operations"], "gfx1100")
    assert set(plan.left_out) == {"launch", "operations"}
    assert len(plan.passes) == 2


def test_a_group_leaves_out_what_the_release_does_not_know():
    """gfx1201 of ROCm 7.0 has no TCP_REQ: the group goes without it, a counter that is named is asked for anyway."""
    old, new = (plan_passes(["caches"], "gfx1201", release) for release in ((7, 0), (7, 2)))
    assert old.left_out == dict.fromkeys(("TCP_REQ", "TCP_REQ_MISS"), "not in ROCm 7.0 on gfx1201")
    assert new.left_out == {}
    assert "TCP_REQ" in new.passes[1].counters
    assert "TCP_REQ" in plan_passes(["TCP_REQ"], "gfx1201", (7, 0)).passes[1].counters
    assert plan_passes(["caches"], "gfx1201") == new


OLDER = [
    ("gfx942", (6, 2), "rocprofv3", {"TCC_BUBBLE_sum", "SQ_INSTS_VALU_MFMA_MOPS_F8"}),
    ("gfx942", (6, 3), "rocprofv3", {"SQ_INSTS_VALU_MFMA_MOPS_F8"}),
    ("gfx942", (6, 1), "rocprof", {"SQ_INSTS_VALU_MFMA_MOPS_F8"}),
    ("gfx942", (6, 4), "rocprofv3", set()),
    ("gfx942", (0, 0), "rocprofv3", set()),
    ("gfx90a", (6, 2), "rocprofv3", set()),
    ("gfx1100", (6, 2), "rocprofv3", set()),
]


@pytest.mark.parametrize(("arch", "release", "tool", "unknown"), OLDER)
def test_default_groups_avoid_counters_older_releases_lack(arch, release, tool, unknown):
    """One counter that rocprofv3 of ROCm 6.2, 6.3 or version 1 does not know costs its whole pass."""
    plan = plan_passes((), arch, release, tool)
    assert set(plan.left_out) == unknown
    assert not unknown & {name for of_pass in plan.passes for name in of_pass.counters}


def test_a_metric_takes_the_formula_that_the_release_can_count():
    """Matrix operations without FP8 in ROCm 6.3; none is left for LDS conflicts on an MI100, or bytes in ROCm 6.2."""
    old, new = (plan_passes(["matrix_flops"], "gfx942", release).passes[1].counters for release in ((6, 3), (6, 4)))
    assert set(new) - set(old) == {"SQ_INSTS_VALU_MFMA_MOPS_F8"}
    plan = plan_passes(["lds_conflict_pct", "lds"], "gfx908", (6, 4))
    assert plan.left_out["lds_conflict_pct"] == "ROCm 6.4 does not count it on gfx908"
    assert "read_bytes" in plan_passes(["read_bytes", "lds"], "gfx942", (6, 2)).left_out


def test_of_gfx908_older_releases_know_few_counters():
    """75 of them in ROCm 6.2: L2's requests and hits are among them."""
    asked = {name for of_pass in plan_passes((), "gfx908", (6, 4)).passes for name in of_pass.counters}
    assert {"TCC_HIT_sum", "TCC_MISS_sum", "TCC_EA_RDREQ_sum", "SQ_LDS_BANK_CONFLICT"} <= asked
    assert not asked & {"SQ_WAVE_CYCLES", "TCC_REQ_sum", "SQ_INSTS", "TCP_TOTAL_CACHE_ACCESSES_sum"}


def test_features_of_a_target_do_not_matter():
    """gfx942:sramecc+:xnack- is gfx942, as rocminfo prints it."""
    assert plan_passes((), "gfx942:sramecc+:xnack-") == plan_passes((), "gfx942")


def test_a_sibling_uses_its_familys_table_with_its_own_limits():
    """gfx1151 is in no table of ROCm 7.0: gfx1100's is used, with one TCP counter a pass, and that is said."""
    counters = of_arch("gfx1151")
    assert (counters.table, counters.limits["TCP"], counters.verified) == ("gfx1100", 1, False)
    assert plan_passes((), "gfx1151").notes == snapshot(
        (
            (
                "L2 counters of gfx1100 are reported broken (ROCm/rocm-systems 2352); AMD does not test gfx1101 and "
                "gfx1102"
            ),
            "gfx1151 is not in ROCm 7.0's counter table: the counters of gfx1100 are asked for",
        )
    )


def test_halves_keep_the_anchors_and_every_counter():
    """Halving ends at single counters."""
    whole = ProfilerPass("counters-1", (*anchors(), "A", "B", "C"))
    queue, leaves = [whole], []
    while queue:
        one = queue.pop()
        halves = split(one)
        if halves is None:
            leaves.append(one)
            continue
        assert all(set(anchors()) <= set(half.counters) for half in halves)
        queue += halves
    assert sorted(leaf.wanted for leaf in leaves) == [("A",), ("B",), ("C",)]
    assert len({leaf.name for leaf in leaves}) == 3
    assert split(ProfilerPass(TIMING)) is None
    on_one = split(ProfilerPass("counters-1", (*anchors(), "A", "B"), devices=(1,)))
    assert [half.devices for half in on_one] == [(1,), (1,)], "on the same GPUs"
    assert split(ProfilerPass("workload", ("TCC_HIT_sum", "TCC_MISS_sum"), opaque=True)) is None
