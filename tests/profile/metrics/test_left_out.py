"""What counters and values are left out of a profile, exactly that, and with which words."""

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.metrics.aggregate import by_kernel
from rocattn_profiling.profile.metrics.devices import devices_of
from rocattn_profiling.profile.metrics.evaluate import evaluate
from rocattn_profiling.profile.metrics.launches import find_launches

from ..kit import agents, lines_of
from .test_evaluate import MI210, MI300X, RX_9060_XT, kernels, profile, value

HITS = {"TCC_HIT_sum": 3, "TCC_MISS_sum": 1}


def found(made):
    """Return the values of the one kernel, and what was left out of its launches."""
    evaluation = evaluate(made, devices_of(made))
    (group,) = by_kernel(evaluation)
    return group.values, evaluation.launches.problems


@pytest.mark.parametrize(
    ("grid", "block", "waves"),
    [
        (64 * 96, 96, 128),  # a block of 96 takes two waves of 64
        (64 * 32, 32, 64),  # one of 32 takes one, as full as it is
        (256 * 9 + 1, 256, 40),  # what is left over is a block, too
        (-1, 256, 12345),  # not known: nothing is contradicted
        (64 * 256, -1, 12345),
        (64 * 256, 256, 0),
    ],
)
def test_waves_are_what_the_blocks_take(grid, block, waves):
    """Waves are whole, and so are blocks."""
    made = profile([[("k", 1000, HITS | {"SQ_WAVES": waves})]])
    made.dispatches["grid"], made.dispatches["block"] = grid, block
    values, problems = found(made)
    assert ("l2_hit_pct" in values, problems) == (True, [])


def test_the_first_wrong_launch_is_the_example():
    """Not the first launch; the others keep their numbers."""
    made = profile([[("k", 1000, HITS | {"SQ_WAVES": waves}) for waves in (256, 9999, 7777)]])
    values, (problem,) = found(made)
    assert (values["l2_hit_pct"].launches, problem.partition(": ")[2][:44]) == (
        1, "2 of 3 launches left out: SQ_WAVES is 9999 w",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["GRBM_COUNT", "SQ_BUSY_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_CYCLES", "SQ_WAVE_CYCLES"])
@pytest.mark.parametrize("executed", ["SQ_INSTS", "SQ_INSTS_VALU"])
def test_a_silent_counter_is_dropped_alone(name, executed):
    """Whatever a kernel does, these count while it runs."""
    values, (problem,) = found(profile([[("k", 1000, HITS | {name: 0, executed: 5})]]))
    why = "it reads 0 in 1 of 1 launch that executed instructions, so this GPU's profiler does not count it"
    assert problem == f"pass pass_0: {name} left out: {why}"
    assert values["l2_hit_pct"].value == 75


def test_launch_with_contradictory_counters_is_dropped():
    """The busy cycles stand, though another counter moved."""
    values, (problem,) = found(profile([[("k", 1000, HITS | {"GRBM_GUI_ACTIVE": 0, "GRBM_COUNT": 9})]]))
    assert values == {}
    assert lines_of({"said": problem}) == snapshot("""\
said: pass pass_0: GRBM_GUI_ACTIVE, GRBM_COUNT: 0 in 1 of 1 launch, left out: on Radeon, counters need a pinned
    performance level (amd-smi set -g 0 -l stable_std)\
""")


def test_a_part_above_its_whole_drops_both():
    """A conflict share of the GPU's time needs the part alone, DRAM's share of the reads the whole."""
    lds = {"SQ_LDS_BANK_CONFLICT": 50, "SQ_LDS_IDX_ACTIVE": 40, "GRBM_GUI_ACTIVE": 1000}
    assert "lds_conflict_time_pct" not in found(profile([[("k", 1000, lds)]]))[0]
    reads = {"TCC_EA_RDREQ": 40, "TCC_EA_RDREQ_32B": 50, "TCC_EA_RDREQ_DRAM": 30}
    assert "dram_read_pct" not in found(profile([[("k", 1000, reads)]]))[0]
    assert found(profile([[("k", 1000, reads | {"TCC_EA_RDREQ_32B": 40})]]))[0]["dram_read_pct"].value == 75


def test_rules_apply_to_their_gpu_only():
    """TCC_EA_… of the gfx90a stays where the gfx942's goes, and so does what is a contradiction there alone."""
    reads = {"TCC_EA_RDREQ_sum": 40, "TCC_EA_RDREQ_32B_sum": 10}
    made = profile([[("old", 1000, reads), ("new", 1000, reads | HITS)]])
    made.agents = agents(MI210, MI300X)
    made.dispatches["agent"] = pd.array([0, 1], dtype="Int32")
    groups = kernels(made)
    assert "read_bytes" in groups["old"].values
    assert groups["new"].values.keys() & {"read_bytes", "l2_hit_pct"} == {"l2_hit_pct"}


def test_the_requested_spelling_of_a_sum_comes_first():
    """Files of rocprof-compute have TCC_HIT, those of rocprofv3 TCC_HIT_sum; a profile may have both."""
    short = {"TCC_HIT": 1, "TCC_MISS": 1}
    assert value(profile([[("k", 1000, short)]]), "l2_hit_pct") == 50
    for passes in ([short, HITS], [HITS, short]):
        assert value(profile([[("k", 1000, each)] for each in passes]), "l2_hit_pct") == 75
    assert value(profile([[("k", 1000, short | HITS)]]), "l2_hit_pct") == 75


def test_launch_numbers_do_not_depend_on_pass_order():
    """Findings and comparisons go by it."""
    passes = [[("b", 1000, HITS), ("a", 1000, HITS)], [("a", 1000, {"X": 1}), ("b", 1000, {"X": 1})]]
    tables = [find_launches(profile(order)).table["kernel"].astype(str).tolist() for order in (passes, passes[::-1])]
    assert tables == [["a", "b"]] * 2


@pytest.mark.parametrize(
    ("counted", "metric", "why"),
    [
        ({"TCC_EA_RDREQ_LEVEL_sum": 7, "TCC_EA_RDREQ_sum": 0}, "read_latency_cycles", "division by zero"),
        ({"TCP_TCC_READ_REQ_sum": 150, "TCP_TCC_WRITE_REQ_sum": 0, "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": 0,
          "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": 0, "TCP_TOTAL_CACHE_ACCESSES_sum": 100}, "l1_hit_pct",
         "-50 % is below 0"),
        ({"OccupancyPercent": 102.5}, "achieved_occupancy_pct", "102.5 % is above the maximum, 100"),
        ({"OccupancyPercent": 101.5}, "achieved_occupancy_pct", ""),
        ({"OccupancyPercent": 0}, "achieved_occupancy_pct", ""),
    ],
    ids=["infinite", "negative", "above", "within the slack", "zero"],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_with_its_number(counted, metric, why):
    """An occupancy may be 2 % above its slots, for rounding in the hardware; nothing is below 0."""
    made = profile([[("k", 1000, counted)]])
    left_out = evaluate(made, devices_of(made)).left_out.get(metric, [])
    assert left_out == ([f"left out in 1 of 1: {why}"] if why else [])


def test_of_several_impossible_values_the_worst_is_named():
    """Its number says most."""
    made = profile([[("k", 1000, {"OccupancyPercent": share}) for share in (120, 9000, 300)]])
    (line,) = evaluate(made, devices_of(made)).left_out["achieved_occupancy_pct"]
    assert line.startswith("left out in 3 of 3: 9000 % is above")


def test_what_the_gpu_cannot_count_is_not_called_not_counted():
    """Matrix units of RDNA have no counter; L2's hits have one, which was not asked for."""
    made = profile([[("k", 1000, {"SQ_INSTS_LDS": 5})]], RX_9060_XT | {"arch": "gfx1100"})
    missing = evaluate(made, devices_of(made)).missing
    assert (missing["matrix_busy_pct"], missing["l2_hit_pct"]) == ("this GPU cannot count it", "not counted")


def test_each_missing_metric_has_its_own_reason():
    """Each reason is that metric's own."""
    made = profile([[("k", 1000, {"TCC_EA_RDREQ_sum": 5, "TCC_EA_RDREQ_32B_sum": 0})]])
    made.dispatches[["start_ns", "end_ns"]] = pd.NA
    missing = evaluate(made, devices_of(made)).missing
    assert missing["read_gbps"] == "needs the kernel's time"


@pytest.mark.parametrize(
    ("cycles", "stands", "told"),
    [
        (
            0,
            True,
            snapshot(
                [
                    (
                        "pass pass_0: GRBM_GUI_ACTIVE: 0 in 1 of 1 launch, left out: on Radeon, counters need a "
                        "pinned performance level (amd-smi set -g 0 -l stable_std)"
                    ),
                    "pass pass_1: left out where all counters read 0: nothing was counted",
                ]
            ),
        ),
        (9, False, snapshot([])),
    ],
)
def test_zeros_are_no_numbers_where_counters_stood_still(cycles, stands, told):
    """A pass whose counters may be 0 does not show it itself; where others counted, its zeros are numbers."""
    traffic = {"TCC_EA_RDREQ_sum": 0, "TCC_EA_RDREQ_32B_sum": 0}
    values, problems = found(profile([[("k", 1000, {"GRBM_GUI_ACTIVE": cycles})], [("k", 1000, traffic)]]))
    assert ("read_bytes" in values) != stands
    assert problems == told


READS = {"TCC_EA0_RDREQ_sum": 1000, "TCC_EA0_RDREQ_32B_sum": 0, "TCC_BUBBLE_sum": 0}


@pytest.mark.parametrize(
    ("wrapped", "told"),
    [
        (
            6.1e18,
            snapshot(
                "pass pass_0: TCC_EA0_RDREQ_sum left out in 1 of 3 launches: 6.1e+18 is impossible in the launch's time"
            ),
        ),
        (
            2.0**48,
            snapshot(
                "pass pass_0: TCC_EA0_RDREQ_sum left out in 1 of 3 launches: 2.81e+14 is impossible in the launch's "
                "time"
            ),
        ),
        (
            -5.0,
            snapshot(
                "pass pass_0: TCC_EA0_RDREQ_sum left out in 1 of 3 launches: -5 is impossible in the launch's time"
            ),
        ),
    ],
)
def test_a_wrapped_counter_is_left_out_everywhere(wrapped, told):
    """One launch of three: neither the bytes, nor the counters behind them, nor their mean has it."""
    made = profile(
        [[("k", 1000, READS), ("k", 1000, READS | {"TCC_EA0_RDREQ_sum": wrapped}), ("k", 1000, READS)]], MI300X
    )
    values, (problem,) = found(made)
    assert problem == told
    assert (values["read_bytes"].value, values["read_bytes"].launches) == (64_000, 2)
    assert dict(values["read_gbps"].counters)["TCC_EA0_RDREQ_sum"] == 1000


def test_counters_of_an_impossible_rate_are_left_out_with_it():
    """6.4 TB in 1 us is no bandwidth of an MI300X: its bytes are no bytes read, either."""
    made = profile([[("k", 1000, READS), ("k", 1000, READS | {"TCC_EA0_RDREQ_sum": 10**9})]], MI300X)
    evaluation = evaluate(made, devices_of(made))
    (group,) = by_kernel(evaluation)
    assert group.values["read_bytes"].value == 64_000
    assert evaluation.launches.joined.counters["TCC_EA0_RDREQ_sum"].tolist()[0] == 1000
    assert pd.isna(evaluation.launches.joined.counters["TCC_EA0_RDREQ_sum"][1])
    assert "read_gbps" in evaluation.left_out
    assert evaluation.launches.problems == snapshot(
        [
            (
                "Read bandwidth: left out in 1 of 2: 6.4e+07 GB/s is above the maximum, 40857.6, so its counters are "
                "left out, too"
            )
        ]
    )
