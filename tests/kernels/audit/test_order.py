"""The order of the hot loop's instructions is compared, pinned and gated as registers are."""

import pytest

from rocattn_profiling.gate.machine_code.compare import cost_ratio
from rocattn_profiling.kernels.compare import check_pins, compare
from rocattn_profiling.kernels.model.cost import OtherLoop
from rocattn_profiling.kernels.pins import pins_of, read_pins, write_pins

from ..made_facts import audit, facts, loop, order


def kernel(barriers=2, **changes):
    """Return a kernel whose hot loop has this order."""
    return facts(cost=loop(schedule=order(**changes), barriers=barriers))


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"load_distance": 8.0}, "load to wait"),
        ({"read_distance": 2.0}, "read to wait"),
        ({"barriers": 3}, "barriers"),
        ({"loads_in_flight": 4, "bytes_in_flight": 64}, "loads in flight"),
    ],
)
def test_each_number_is_worse_one_way_and_better_the_other(changes, metric):
    """One finding each, with a cost that grew."""
    before, after = kernel(), kernel(**changes)
    (one,) = compare(audit(before), audit(after)).findings
    (other,) = compare(audit(after), audit(before)).findings
    assert (one.severity, one.metric) == ("worse", metric)
    assert (other.severity, other.metric) == ("better", metric)
    ratio = cost_ratio(one, before, after)
    assert ratio is None or ratio > 1


def test_a_barrier_less_does_not_outrank_many_cycles():
    """It is a note beside them; alone it is better, and a barrier more outranks cycles saved."""
    before = facts(cost=loop(schedule=order(), barriers=2))
    slower, faster = (facts(cost=loop(schedule=order(), barriers=n, plain=count)) for n, count in ((1, 900), (3, 200)))
    for after in (slower, faster):
        found = {one.metric: one.severity for one in compare(audit(before), audit(after)).findings}
        assert "worse" in found.values()
        assert "better" not in found.values()
    assert found["barriers"] == "worse"


def plain(exposed=None, idioms=(), count=300, **changes):
    """Return a kernel without products."""
    made = order(products=0.0, load_distance=None, exposed_cycles=exposed, idioms=idioms)
    return facts(cost=loop(matrix=0, plain=count, flops=0, schedule=made, **changes))


def verdict(before, after):
    """Return what a comparison says, and the findings that say it."""
    found = compare(audit(before), audit(after))
    said = {one.metric for one in found.of("worse")}, {one.metric for one in found.of("better")}
    return ("worse", said[0]) if said[0] else ("better", said[1]) if said[1] else ("same", found.not_compared)


@pytest.mark.parametrize(
    ("before", "after", "cycles"),
    [
        (0, 990, 280),  # a prefetch that went, though registers and cycles are saved
        (1000, 8000, 280),  # a wait for each load
    ],
)
def test_latency_that_is_exposed_outweighs_some_cycles(before, after, cycles):
    """Without products, too; the way back is better."""
    old, new = plain(before), plain(after, count=cycles)
    assert verdict(old, new) == ("worse", {"exposed latency"})
    assert verdict(new, old) == ("better", {"exposed latency"})
    assert verdict(plain(2000), plain(2900, count=100))[0] == "better"  # other waves fill as much


def test_latency_that_more_cycles_hide_is_no_gain():
    """An inner loop that is unrolled no more has no waits left to fill: it takes longer all the same."""
    unrolled, rolled = plain(180, count=200), plain(0, count=500)
    assert verdict(unrolled, rolled) == ("worse", {"issue cycles"})
    assert verdict(rolled, unrolled) == ("better", {"issue cycles"})


def test_an_idiom_in_the_place_of_another_counts_by_its_cost():
    """An atomic of global memory for one of LDS: as many kinds, and worse."""
    old, new = plain(idioms=("LDS atomic",)), plain(idioms=("global atomic",))
    assert verdict(old, new) == ("worse", {"idioms"})
    assert verdict(new, old) == ("better", {"idioms"})
    (finding,) = compare(audit(old), audit(new)).findings
    assert finding.text.endswith(": global atomic, no LDS atomic")


def test_work_that_moved_into_a_function_is_no_cycle_saved():
    """The call is named, and what the loops issue is not compared."""
    old, new = plain(), plain(idioms=("function call",), count=100)
    assert verdict(old, new) == ("worse", {"idioms"})
    assert "calls a function" in compare(audit(old), audit(new)).not_compared[0].line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"barriers": 1}, "+1 barriers"),
        ({"idioms": ("fence",)}, "fence added"),
        ({"cycles": 60.0}, "40 -> 60 issue cycles at k.hip:7 (+50.0 %)"),
    ],
)
def test_loops_beside_the_hot_one_are_compared(changes, said):
    """What got worse in them is worse; what unrolling the hot one leaves over is not, nor more work."""
    values = {"source": "k.hip:7", "cycles": 40.0, "flops": 64, "global_bytes": 128, "barriers": 0, "idioms": ()}
    old, new = (plain(others=(OtherLoop(**(values | each)),)) for each in ({}, changes))
    assert verdict(old, new) == ("worse", {"other loops"})
    (finding,) = compare(audit(old), audit(new)).findings
    assert said in finding.text
    more = (*old.loop.others, *old.loop.others)
    severity, (gap,) = verdict(old, plain(others=more))
    assert (severity, gap.code) == ("same", "more_loops")  # another loop, or one that was unrolled to its end
    unrolled = plain(others=more, count=600, loads=((16, 16),))
    assert compare(audit(old), audit(unrolled)).not_compared == ()  # what that leaves over
    twice = OtherLoop(**(values | {"cycles": 78.0, "flops": 128, "global_bytes": 256}))
    assert verdict(old, plain(others=(twice,)))[0] == "better"


def test_waves_decide_only_where_they_are_needed():
    """Where a loop's own cycles fill the time that a wave waits, twice the waves are no answer to more of them."""

    def waves(vgprs, count, exposed):
        return facts(vgprs=vgprs, lds=0, cost=plain(exposed, count=count).loop)

    few, rolled = waves(230, 600, 900.0), waves(96, 720, 900.0)
    assert verdict(few, rolled) == ("worse", {"issue cycles"})
    assert verdict(rolled, few) == ("better", {"issue cycles"})
    assert verdict(waves(96, 120, 9000.0), waves(230, 100, 9000.0)) == ("worse", {"occupancy"})


@pytest.mark.parametrize(
    "changes",
    [
        {"own_overlap_pct": 0.0}, {"run": 2.0}, {"bare_read_waits": 4}, {"read_distance": 3.0},
        {"loads_in_flight": 4, "bytes_in_flight": 128},
    ],
)  # fmt: skip
def test_what_compilers_move_for_nothing_is_no_finding(changes):
    """Single instructions, loads that are fewer but wider, and what stands between products."""
    assert compare(audit(kernel()), audit(kernel(**changes))).findings == []


def test_intensity_is_compared_where_products_are():
    """The same products for twice the bytes: half the reuse."""
    before = facts(cost=loop(schedule=order()))
    after = facts(cost=loop(schedule=order(), loads=((16, 16),)))
    assert "FLOP/B" in {one.metric for one in compare(audit(before), audit(after)).findings}


def test_the_order_is_pinned(tmp_path):
    """It is read back as written; a pin of before there was one asks for a new one."""
    made = audit(kernel())
    (path,) = write_pins(tmp_path, pins_of(made))
    assert [read_pins(path)] == pins_of(made)
    assert max(map(len, path.read_text().splitlines())) <= 140
    assert [one.metric for one in check_pins([read_pins(path)], audit(kernel(barriers=3))).findings] == ["barriers"]
    old = pins_of(audit(facts()))
    assert [one.severity for one in check_pins(old, made).findings] == ["new"]
