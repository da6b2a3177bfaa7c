"""Launches added up: sums of several, shares of several, kernels told apart, and which convention a number is of."""

import numpy as np
import pandas as pd
import pytest

from rocattn_profiling.profile.metrics.aggregate import PERCENTILES, by_kernel
from rocattn_profiling.profile.metrics.devices import devices_of
from rocattn_profiling.profile.metrics.evaluate import MIXED, TOO_SHORT, evaluate

from ..kit import agents
from .test_evaluate import MI300X, kernels, profile, value

READS = {"TCC_EA_RDREQ_sum": 100, "TCC_EA_RDREQ_32B_sum": 0}  # 6400 bytes


def test_kernels_are_sorted_by_total_time():
    """Percentiles of 1 to 101 ns are the numbers themselves; "b" takes longer in one launch, "a" in all together."""
    launches = [("a", ns, {}) for ns in range(1, 102)] + [("b", 200, {})]
    made = profile([launches])
    first, second = by_kernel(evaluate(made, devices_of(made)))
    assert (first.name, first.total_ns, second.name, second.total_ns) == ("a", 101 * 51, "b", 200)
    assert first.time_ns == {0: 1, 10: 11, 50: 51, 90: 91, 99: 100, 100: 101}
    assert tuple(first.time_ns) == PERCENTILES


def test_rates_of_several_launches_are_all_bytes_over_all_time():
    """6400 bytes in 1000 ns and in 3000 ns: 3.2 GB/s, not the mean of 6.4 and 2.1; the amount is a launch's mean."""
    found = kernels(profile([[("k", 1000, READS), ("k", 3000, READS)]]))["k"].values
    rate, amount = found["read_gbps"], found["read_bytes"]
    assert (rate.value, rate.mean, rate.convention) == (
        pytest.approx(3.2), pytest.approx((6.4 + 6.4 / 3) / 2), "SUM/SUM",
    )  # fmt: skip
    assert (amount.value, amount.convention) == (6400, "mean")


def test_a_derived_share_uses_ratios_of_sums():
    """1000 waves for 10 cycles and 200 for 90 are 280 of 3328 slots; adding the launches' own waves gave 1200."""
    counted = [{"SQ_LEVEL_WAVES_ACCUM": waves * n, "GRBM_GUI_ACTIVE": n} for waves, n in ((1000, 10), (200, 90))]
    found = kernels(profile([[("k", 1000, each) for each in counted]]))["k"].values
    assert found["waves"].value == pytest.approx(280)
    assert found["achieved_occupancy_pct"].value == pytest.approx(100 * 280 / 3328)


def test_a_partial_share_uses_its_own_launches():
    """Of the launch whose writes were not counted the share says nothing, so its slower reads are not in it either."""
    writes = {"TCC_EA_WRREQ_sum": 100, "TCC_EA_WRREQ_64B_sum": 100}
    both, reads = (
        kernels(profile([launches]))["k"].values
        for launches in ([("k", 1000, READS | writes)], [("k", 1000, READS | writes), ("k", 9000, READS)])
    )
    assert reads["memory_pct"].value == reads["memory_pct"].mean == both["memory_pct"].value > 0
    assert reads["memory_pct"].flags == ("from 1 of 2 launches",)
    assert reads["read_gbps"].value == pytest.approx(1.28)


def test_kernels_keep_their_own_formulas():
    """And what is made of it: "a" was counted, of "b" the profiler evaluated the waves itself."""
    launches = [
        ("a", 1000, {"SQ_LEVEL_WAVES_ACCUM": 2000, "GRBM_GUI_ACTIVE": 10}), ("b", 1000, {"MeanOccupancyPerCU": 8}),
    ]  # fmt: skip
    found = kernels(profile([launches]))
    shares = {name: group.values["achieved_occupancy_pct"].value for name, group in found.items()}
    assert shares == {"a": pytest.approx(100 * 200 / 3328), "b": pytest.approx(25)}


def test_work_of_several_launches_is_added_up():
    """2e9 FLOP in 1 ms each are 2 TFLOP/s, however many launches."""
    made = profile([[("k", 1_000_000, READS), ("k", 1_000_000, READS)]])
    (group,) = by_kernel(evaluate(made, devices_of(made), {"work_flops": np.array([2e9, 2e9])}))
    assert group.values["useful_tflops"].value == pytest.approx(2)


def test_an_impossible_launch_is_in_no_sum():
    """40 000 waves in one of two launches: the other's 200 are the kernel's."""
    counted = [{"SQ_LEVEL_WAVES_ACCUM": cycles, "GRBM_GUI_ACTIVE": 10} for cycles in (2000, 400_000)]
    found = kernels(profile([[("k", 1000, each) for each in counted]]))["k"].values["waves"]
    assert (found.value, found.launches, found.flags) == (pytest.approx(200), 1, ("from 1 of 2 launches",))


def test_two_kinds_of_gpus_are_never_one_group():
    """A share is possible on either GPU; over the mean of 84 and 96 CUs it would be none."""
    full = [{"SQ_WAVE_CYCLES": 32 * cus * n, "GRBM_GUI_ACTIVE": n} for cus, n in ((96, 99), (84, 1))]
    made = profile([[("k", 1000, each) for each in full]])
    cards = [{"number": i, "arch": "gfx1100", "cus": cus, "simds": 2 * cus, "max_waves_per_cu": 32, "xccs": 1}
             for i, cus in enumerate((96, 84))]  # fmt: skip
    made.agents = agents(*cards)
    made.dispatches["agent"] = pd.array([0, 1], dtype="Int32")
    groups = by_kernel(evaluate(made, devices_of(made)))
    assert [each.values["achieved_occupancy_pct"].value for each in groups] == [pytest.approx(100)] * 2


def test_a_differing_mean_over_passes_is_given():
    """rocprof-compute's: 2000 and 4000 wave-cycles over the 25 cycles of pmc_perf; their own pass has 10 and 40."""
    own = [("k", 1000, {"SQ_LEVEL_WAVES_ACCUM": n, "GRBM_GUI_ACTIVE": busy}) for n, busy in ((2000, 10), (4000, 40))]
    made = profile([[("k", 1000, {"GRBM_GUI_ACTIVE": 25, "TCC_HIT_sum": 1})] * 2, own])
    found = kernels(made)["k"].values
    assert (found["waves"].value, found["waves"].mean) == (pytest.approx(6000 / 50), pytest.approx(150))
    assert found["waves"].across == pytest.approx((2000 / 25 + 4000 / 25) / 2)
    assert found["achieved_occupancy_pct"].across == pytest.approx(100 * 120 / 3328)
    same = profile([[("k", 1000, {"GRBM_GUI_ACTIVE": 10, "TCC_HIT_sum": 1})], own[:1]])
    assert kernels(same)["k"].values["waves"].across is None


def test_the_time_beside_a_pass_s_counters_is_that_pass_s_own():
    """Without a timing pass: 6400 bytes in the 4000 ns of their pass, not in the 1000 ns of another."""
    matrix = {"SQ_INSTS_VALU_MFMA_MOPS_F16": 10**6, "SQ_INSTS_VALU_MFMA_MOPS_BF16": 0}
    made = profile([[("k", 1000, {"TCC_HIT_sum": 1})], [("k", 4000, READS)], [("k", 8000, matrix)]])
    assert value(made, "read_gbps") == pytest.approx(1.6)
    assert value(made, "tflops") == value(made, "matrix_tflops") == pytest.approx(64)
    timed = profile([[("k", 1000, {"TCC_HIT_sum": 1})], [("k", 4000, READS)], [("k", 2000, {})]])
    assert value(timed, "read_gbps") == pytest.approx(3.2)


def test_a_sum_of_two_passes_has_the_time_of_neither():
    """Matrix FLOPs of 8000 ns and vector FLOPs of 2000 ns: their rate is over the kernel's time, as known best."""
    matrix = {f"SQ_INSTS_VALU_MFMA_MOPS_{name}": 10**5 * (name == "F16") for name in ("F16", "BF16", "F32", "F64")}
    vector = {f"SQ_INSTS_VALU_{op}_F{bits}": 0 for op in ("ADD", "MUL", "TRANS", "FMA") for bits in (16, 32, 64)}
    made = profile([[("k", 1000, {"TCC_HIT_sum": 1})], [("k", 8000, matrix)], [("k", 2000, vector)]])
    assert value(made, "matrix_tflops") == pytest.approx(6.4)
    assert value(made, "tflops") == pytest.approx(51.2)


def test_of_passes_that_all_have_a_metric_the_first_is_taken():
    """Not the last, and the launch counts once."""
    made = profile([[("k", 1000, {"TCC_REQ_sum": 50})], [("k", 4000, {"TCC_REQ_sum": 100})]])
    found = kernels(made)["k"].values["l2_gbps"]
    assert (found.value, found.passes, found.launches) == (pytest.approx(6.4), ("pass_0",), 1)


def test_launches_of_different_passes_are_one_kernel():
    """The second launch is in the second run alone: the bytes were those of the first, beside the bandwidth of both."""
    more = {name: 3 * count for name, count in READS.items()}
    made = profile([[("k", 1000, READS)], [("k", 1000, READS), ("k", 3000, more)]])
    found = kernels(made)["k"].values
    assert (found["read_bytes"].value, found["read_bytes"].launches) == ((6400 + 19200) / 2, 2)
    assert found["read_bytes"].passes == ("pass_0", "pass_1")
    assert found["read_gbps"].value == pytest.approx(6.4)
    assert not found["read_bytes"].flags + found["read_gbps"].flags


def test_a_pass_without_times_leaves_rates_to_one_that_has_them():
    """And where none has both, the time of another pass serves; the counters are of one pass still."""
    made = profile([[("k", 1000, {"TCC_REQ_sum": 50})], [("k", 4000, {"TCC_REQ_sum": 100})]])
    made.dispatches.loc[0, ["start_ns", "end_ns"]] = pd.NA
    assert value(made, "l2_gbps") == pytest.approx(3.2)
    apart = profile([[("k", 1000, {"TCC_REQ_sum": 50} | READS)], [("k", 4000, {"TCC_HIT_sum": 1})]])
    apart.dispatches.loc[0, ["start_ns", "end_ns"]] = pd.NA
    found = kernels(apart)["k"].values
    assert found["read_gbps"].value == pytest.approx(1.6)
    assert (found["l2_gbps"].value, found["l2_gbps"].passes) == (pytest.approx(1.6), ("pass_0",))
    assert found["l2_gbps"].flags == ()


def test_the_first_timing_pass_of_a_launch_counts():
    """The second fills in what the first lacks."""
    made = profile([[("k", 1000, {}), ("k", 1000, {})], [("k", 5000, {}), ("k", 7000, {})]])
    made.dispatches.loc[1, ["start_ns", "end_ns"]] = pd.NA
    (group,) = by_kernel(evaluate(made, devices_of(made)))
    assert group.total_ns == 1000 + 7000


@pytest.mark.parametrize("cycles", [17_600, 17_800])
def test_cycles_of_eight_dies_are_long_only_beyond_eight_clocks(cycles):
    """2100 MHz in 1000 ns are 2100 cycles of each XCD; 5 % more is no sign of the profiler yet, 6 % is."""
    made = profile([[("k", 1000, {"SQ_ACTIVE_INST_VALU": 1000, "GRBM_GUI_ACTIVE": cycles})]], MI300X)
    assert kernels(made)["k"].values["valu_busy_pct"].flags == (
        () if cycles == 17_600 else (f"in 1 launch {TOO_SHORT}",)
    )


def test_cycles_of_another_pass_are_judged_by_what_was_used():
    """Only launches that the number is made of are counted as short, and counters of two passes say so."""
    long, short = ({"GRBM_GUI_ACTIVE": cycles} for cycles in (1000, 9000))
    busy = {"SQ_ACTIVE_INST_VALU": 1000}
    one = profile([[("k", 1000, long | busy), ("k", 1000, short)]])
    assert kernels(one)["k"].values["valu_busy_pct"].flags == ("from 1 of 2 launches",)
    mixed = profile([[("k", 1000, busy)], [("k", 1000, short)]])
    assert kernels(mixed)["k"].values["valu_busy_pct"].flags == (f"in 1 launch {TOO_SHORT}", MIXED)
    second = profile([[("k", 1000, long | busy)], [("k", 1000, long | busy), ("k", 1000, short | busy)]])
    assert kernels(second)["k"].values["valu_busy_pct"].flags == (f"in 1 launch {TOO_SHORT}",)
