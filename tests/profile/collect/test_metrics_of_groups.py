"""What is collected and what is computed fit together: groups of counters and formulas of metrics."""

import pytest

from rocattn_profiling.profile.collect.counters import default_groups, group, group_names, of_arch
from rocattn_profiling.profile.collect.passes import of_metric, plan_passes
from rocattn_profiling.profile.metrics.definitions import definitions

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
# What every profile says by default; RDNA counts no FLOPs, and RDNA 2 and 3 no busy cycles of the vector units.
ALWAYS = {"achieved_occupancy_pct", "read_gbps", "write_gbps", "memory_pct", "l2_hit_pct", "lds_conflict_pct"}
ON_CDNA = {"valu_busy_pct", "matrix_busy_pct", "matrix_tflops", "arithmetic_intensity", "l1_hit_pct", "waiting_pct"}


def counted(names, arch):
    """Return the counters of groups."""
    return {one for name in names for bundle in group(name, of_arch(arch)) for one in bundle}


@pytest.mark.parametrize("arch", ARCHS)
def test_the_default_groups_suffice_for_the_metrics_that_matter(arch):
    """Occupancy, bandwidth, caches, LDS; on CDNA the matrix units and the roofline, too."""
    have = counted(default_groups(), arch) | {"GRBM_GUI_ACTIVE", "SQ_WAVES"}
    found = {key for key, ways in definitions().counters(arch).items() if any(way <= have for way in ways)}
    assert found >= ALWAYS | (ON_CDNA if arch.startswith("gfx9") else set())


@pytest.mark.parametrize("arch", ARCHS)
def test_every_countable_metric_can_be_requested(arch):
    """Its passes hold all counters of one of its formulas, within the hardware's limits."""
    counters = of_arch(arch)
    for key in definitions().counters(arch):
        needed = of_metric(key, counters)
        if needed:
            passes = plan_passes([key], arch).passes
            assert set(needed) <= {one for each in passes for one in each.counters}
            assert all(not counters.over(each.counters) for each in passes)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_group_has_no_counter_that_nothing_is_made_of(arch):
    """Registers are scarce: what no metric needs is not collected by default."""
    used = {name for ways in definitions().counters(arch).values() for way in ways for name in way}
    unused = {name: sorted(counted([name], arch) - used) for name in group_names()}
    assert {name: names for name, names in unused.items() if names} == {}


def test_an_uncountable_metric_is_named_as_left_out():
    """Matrix units of RDNA have no counter; the rest is measured."""
    plan = plan_passes(["matrix_busy_pct", "l2_hit_pct"], "gfx1100")
    assert "matrix_busy_pct" in plan.left_out
    assert any("GL2C_HIT_sum" in each.counters for each in plan.passes)


def test_no_group_is_called_like_a_metric():
    """One name asks for one thing."""
    assert set(group_names()).isdisjoint(metric.key for metric in definitions().metrics)
