"""Metrics follow from counters by their formulas, and what cannot be is named, never shown as a fact."""

import numpy as np
import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.profile.ingest.table import COUNTER_DTYPES, DISPATCH_DTYPES, Profile
from rocattn_profiling.profile.metrics.aggregate import by_kernel, by_launch
from rocattn_profiling.profile.metrics.devices import devices_of
from rocattn_profiling.profile.metrics.evaluate import MIXED, TOO_SHORT, evaluate
from rocattn_profiling.profile.metrics.launches import Launches, PassCounters

from ..kit import agents, frame, lines_of

MI210 = {
    "number": 0, "arch": "gfx90a", "cus": 104, "simds": 416, "max_waves_per_cu": 32, "xccs": 1, "max_clock_mhz": 1700,
    "max_memory_clock_mhz": 1600, "memory_channels": 32, "lds_banks": 32, "l2_channels": 32,
}  # fmt: skip
RX_9060_XT = {"number": 0, "arch": "gfx1200", "cus": 32, "simds": 64, "max_waves_per_cu": 32, "xccs": 1}
MI300X = MI210 | {"arch": "gfx942", "cus": 304, "simds": 1216, "xccs": 8, "max_clock_mhz": 2100}


def profile(passes, agent=MI210):
    """A profile of passes: each a list of (kernel, duration in ns, counters), in the order of dispatch."""
    rows, counts = [], []
    for number, launches in enumerate(passes):
        for dispatch, (kernel, duration, counters) in enumerate(launches):
            for name, value in counters.items():
                counts.append((len(rows), name, value))
            rows.append({
                "process": 7, "dispatch": dispatch, "pass": f"pass_{number}", "kernel": kernel, "grid": 256 * 64,
                "block": 256, "wave_size": 64, "start_ns": 1000, "end_ns": 1000 + duration, "agent": 0,
            })  # fmt: skip
    table = frame(rows, DISPATCH_DTYPES)
    counted = frame(counts, COUNTER_DTYPES)
    return Profile(dispatches=table, counters=counted, agents=agents(agent))


def kernels(made, **options):
    """Return the groups by kernel."""
    return {group.name: group for group in by_kernel(evaluate(made, devices_of(made)), **options)}


def value(made, metric, kernel="k"):
    """Return one metric of one kernel."""
    return kernels(made)[kernel].values[metric].value


def test_bandwidth_is_bytes_over_time():
    """32-byte and 64-byte requests of gfx90a: (10 * 32 + 90 * 64) bytes in 1000 ns, of 1638.4 GB/s."""
    reads = {"TCC_EA_RDREQ_sum": 100, "TCC_EA_RDREQ_32B_sum": 10, "TCC_EA_WRREQ_sum": 0, "TCC_EA_WRREQ_64B_sum": 0}
    made = profile([[("k", 1000, reads)]])
    assert value(made, "read_gbps") == pytest.approx((320 + 5760) / 1000)
    assert value(made, "memory_pct") == pytest.approx(100 * 6.08 / 1638.4)


def test_reads_of_an_mi350_come_from_its_own_counters_only():
    """TCC_BUBBLE stays 0 on gfx950: MI300's formula made 4.2 MB of the 8.4 MB of rocprof-compute's vcopy sample."""
    old = {"TCC_BUBBLE_sum": 0, "TCC_EA0_RDREQ_sum": 65640, "TCC_EA0_RDREQ_32B_sum": 0}
    new = {"TCC_EA0_RDREQ_32B_sum": 0, "TCC_EA0_RDREQ_64B_sum": 104, "TCC_EA0_RDREQ_128B_sum": 65536}
    mi350 = MI300X | {"arch": "gfx950", "cus": 256, "simds": 1024}
    assert "read_bytes" not in kernels(profile([[("k", 1000, old)]], mi350))["k"].values
    assert value(profile([[("k", 1000, new)]], mi350), "read_bytes") == 104 * 64 + 65536 * 128


@pytest.mark.parametrize(
    ("arch", "f6f4", "flops", "source"),
    [
        ("gfx950", 900, 910, snapshot("[rpc] 2.1 MFMA FLOPs, all floating-point types")),
        ("gfx950", None, 10, snapshot("[rpc] 2.1 MFMA FLOPs, without F6 and F4, which were not counted")),
        ("gfx942", 900, 10, snapshot("[rpc] 2.1 MFMA FLOPs, all floating-point types")),
    ],
)
def test_products_of_six_and_four_bits_are_flops_of_an_mi350(arch, f6f4, flops, source):
    """A kernel of MXFP4 products had no FLOPs at all; where they were not counted, the source says so."""
    names = ("F16", "BF16", "F32", "F64", "F8")
    counted = {f"SQ_INSTS_VALU_MFMA_MOPS_{name}": 2 for name in names} | (
        {} if f6f4 is None else {"SQ_INSTS_VALU_MFMA_MOPS_F6F4": f6f4}
    )
    found = kernels(profile([[("k", 1000, counted)]], MI300X | {"arch": arch}))["k"].values["matrix_flops"]
    assert found.value == 512 * flops
    assert found.source == source


def test_ratio_of_sums_and_mean_of_ratios_are_given():
    """Hit rates of 50 % of 10 and 100 % of 90: 95 % of all, 75 % as a mean."""
    launches = [("k", 1000, {"TCC_HIT_sum": 5, "TCC_MISS_sum": 5}), ("k", 1000, {"TCC_HIT_sum": 90, "TCC_MISS_sum": 0})]
    found = kernels(profile([launches]))["k"].values["l2_hit_pct"]
    assert (found.value, found.mean) == (pytest.approx(95), pytest.approx(75))
    assert found.convention == "SUM/SUM"


@pytest.mark.parametrize(
    ("counter", "metric", "shown"),
    [
        ("OccupancyPercent", "achieved_occupancy_pct", 30),
        ("MeanOccupancyPerCU", "waves", 30 * 104),
        ("MeanOccupancyPerActiveCU", "waves_per_active_cu", 30),
        ("L2CacheHit", "l2_hit_pct", 30),
        ("VALUBusy", "valu_busy_pct", 30),
        ("GPUBusy", "busy_pct", 30),
        ("VALUUtilization", "valu_active_lanes", 0.3 * 64),
    ],
)
def test_shares_that_the_profiler_evaluated_are_not_added_up(counter, metric, shown):
    """An occupancy of 20 % and one of 40 % are 30 %, not 60 %."""
    launches = [("k", 1000, {counter: 20.0}), ("k", 1000, {counter: 40.0})]
    found = kernels(profile([launches], MI210 | {"max_waves_per_cu": 64}))["k"].values[metric]
    assert (found.value, found.convention) == (pytest.approx(shown), "mean")


@pytest.mark.parametrize(
    ("counter", "metric", "shown"),
    [("FetchSize", "read_bytes", 3072), ("WriteSize", "written_bytes", 3072), ("Wavefronts", "launched_waves", 3)],
)
def test_amounts_by_the_names_of_rocprof_1(counter, metric, shown):
    """Files of rocprof 1 and AMD's examples have these names: what they held was "not counted"."""
    launches = [("k", 1000, {counter: 2.0}), ("k", 1000, {counter: 4.0})]
    values = kernels(profile([launches], MI210))["k"].values
    assert values[metric].value == pytest.approx(shown)
    if metric == "read_bytes":
        assert values["read_gbps"].value == pytest.approx(6 * 1024 / 2000)


def test_passes_are_joined_by_the_launch_not_by_its_number():
    """The second pass launches the kernels in the other order."""
    first = [("a", 1000, {"TCC_HIT_sum": 9}), ("b", 1000, {"TCC_HIT_sum": 1})]
    second = [("b", 1000, {"TCC_MISS_sum": 9}), ("a", 1000, {"TCC_MISS_sum": 1})]
    found = kernels(profile([first, second]))
    assert found["a"].values["l2_hit_pct"].value == pytest.approx(90)
    assert found["b"].values["l2_hit_pct"].value == pytest.approx(10)
    assert MIXED in found["a"].values["l2_hit_pct"].flags


def test_cycles_of_another_pass_do_not_normalise_an_accumulator():
    """2000 wave-cycles in 10 busy cycles of its own pass are 200 waves, whatever another pass took."""
    own = ("k", 1000, {"SQ_LEVEL_WAVES_ACCUM": 2000, "GRBM_GUI_ACTIVE": 10})
    other = ("k", 1000, {"GRBM_GUI_ACTIVE": 1000, "SQ_BUSY_CYCLES": 3})
    assert value(profile([[other], [own]]), "waves") == pytest.approx(200)
    apart = profile([[other], [("k", 1000, {"SQ_LEVEL_WAVES_ACCUM": 2000})]])
    assert "waves" not in kernels(apart)["k"].values


def test_cycles_summed_over_dies_are_divided_by_them():
    """An MI300X reports the busy cycles of its eight XCDs together."""
    counters = {"SQ_LEVEL_WAVES_ACCUM": 2000, "GRBM_GUI_ACTIVE": 80}
    assert value(profile([[("k", 1000, counters)]], MI300X), "waves") == pytest.approx(200)


def test_an_mi100_is_one_die_though_its_files_do_not_say_so():
    """Omniperf 1 wrote no num_xcd, and everything per cycle was missing for want of it."""
    mi100 = {"number": 0, "arch": "gfx908", "cus": 120}
    assert (
        value(profile([[("k", 1000, {"SQ_ACTIVE_INST_VALU": 60, "GRBM_GUI_ACTIVE": 10})]], mi100), "valu_busy_pct") == 5
    )


def test_the_time_of_an_undisturbed_pass_is_preferred():
    """Counting slows the kernel down; the timing pass has no counters."""
    counted = [("k", 4000, {"TCC_REQ_sum": 1000})]
    made = profile([counted, [("k", 1000, {})]])
    assert value(made, "l2_gbps") == pytest.approx(128 * 1000 / 1000)
    group = kernels(made)["k"]
    assert (group.time_ns[50], group.total_ns) == (1000, 1000)


def found(made):
    """Return the values of the one kernel, what was left out of its launches, and its metrics left out."""
    evaluation = evaluate(made, devices_of(made))
    (group,) = by_kernel(evaluation)
    return group.values, evaluation.launches.problems, evaluation.left_out


SHOWN = {"l2_hit_pct", "read_bytes", "waves", "achieved_occupancy_pct", "waiting_pct", "valu_busy_pct"}
HIT = {"TCC_HIT_sum": 1, "TCC_MISS_sum": 1}
RDNA_HIT = {"GL2C_HIT_sum": 1, "GL2C_MISS_sum": 1}
STILL = {"SQ_WAVES": 256, "GRBM_GUI_ACTIVE": 0, "TCC_HIT_sum": 0, "TCC_MISS_sum": 0}
LEFT_OUT = {
    # Seen on real hardware: 17 172 waves on a compute unit.
    "an occupancy above the wave slots": ([{"SQ_WAVE_CYCLES": 10_000, "GRBM_GUI_ACTIVE": 1}], MI210),
    # gfx90a's names read on another chip do that.
    "a part that is larger than its whole": (
        [{"TCC_EA_RDREQ_sum": 0, "TCC_EA_RDREQ_32B_sum": 675_209, "TCC_HIT_sum": 1}], MI210,
    ),
    # TCC_EA_… on gfx942 is accepted by the profiler and reads nonsense.
    "names of another architecture": ([{"TCC_EA_RDREQ_sum": 5} | HIT], MI300X),
    # Radeon with the performance level on auto counts waves and nothing else.
    "counters that stand still": ([STILL, STILL | {"GRBM_GUI_ACTIVE": 9, "TCC_HIT_sum": 3}], MI210),
    # SQ_WAVE_CYCLES is always 0 on gfx1200: its own metrics go, the memory's stay, and nothing is said of clocks.
    "one counter that stands still": ([{
        "GRBM_GUI_ACTIVE": 1000, "SQ_WAVE_CYCLES": 0, "SQ_WAIT_ANY": 7, "SQ_INSTS_VALU": 5, "SQ_WAVES": 256,
        "GL2C_EA_RDREQ_sum": 4,
    }], RX_9060_XT),
    "more waves than 64 blocks of 256 threads have": ([{"SQ_WAVES": 87_812_120} | HIT], MI210),
    "0/0, neither 0 % nor an error": ([{"TCC_HIT_sum": 0, "TCC_MISS_sum": 0, "TCC_REQ_sum": 7}], MI210),
    # 29 465 cycles in 10 us are 2.9 GHz on a chip of 1.7: the profiler's packets are in them.
    "a kernel shorter than its cycles": ([{"SQ_ACTIVE_INST_VALU": 1000, "GRBM_GUI_ACTIVE": 29_465}], MI210),
}  # fmt: skip


def test_what_is_left_out_is_named():
    """And the rest stands: each of these metrics with its value and flags, what was dropped, and why."""
    said = {}
    for name, (launches, agent) in LEFT_OUT.items():
        ns = 10_000 if name == "a kernel shorter than its cycles" else 1000
        values, problems, left_out = found(profile([[("k", ns, each) for each in launches]], agent))
        kept = {key: each for key, each in values.items() if key in SHOWN}
        said[name] = " ".join([
            *(f"{key} {each.value:g} {each.unit} of {each.launches} {each.flags}" for key, each in kept.items()),
            *problems, *sorted({why for reasons in left_out.values() for why in reasons}),
        ])  # fmt: skip
    assert lines_of(said) == snapshot("""\
an occupancy above the wave slots: left out in 1 of 1: 40000 waves is above the maximum, 3328
a part that is larger than its whole: pass pass_0: TCC_EA_RDREQ_32B_sum and TCC_EA_RDREQ_sum left out in 1 launch:
    32-byte reads are a subset of all reads, but one launch has 675209 of 0
names of another architecture: l2_hit_pct 50 % of 1 () pass pass_0: TCC_EA_RDREQ_sum left out: these are gfx90a's
    names, whose values are 0 or meaningless on this architecture; use TCC_EA0_…
counters that stand still: l2_hit_pct 100 % of 1 ('from 1 of 2 launches',) pass pass_0: GRBM_GUI_ACTIVE: 0 in 1 of 2
    launches, left out: on Radeon, counters need a pinned performance level (amd-smi set -g 0 -l stable_std)
one counter that stands still: read_bytes 1024 bytes of 1 () pass pass_0: SQ_WAVE_CYCLES left out: it reads 0 in 1 of
    1 launch that executed instructions, so this GPU's profiler does not count it
more waves than 64 blocks of 256 threads have: pass pass_0: 1 of 1 launch left out: SQ_WAVES is 87812120 where 16384
    work-items in blocks of 256 are launched, so other counters are wrong, too
0/0, neither 0 % nor an error:
a kernel shorter than its cycles: valu_busy_pct 0.0326332 % of 1 ("in 1 launch the counted cycles exceed the kernel's
    time at the highest clock, so they include the profiler's own work: too low",)\
""")


# 256 waves of 64 or 512 of 32: 12 % above is drift, 17 % is not; where no size is told, either will do on RDNA alone: a
# count that was taken twice passed for waves of 32, and every other count of the pass with it.
WAVES = [
    (RX_9060_XT, 256, 64, True), (RX_9060_XT, 287, 64, True), (RX_9060_XT, 300, 64, False),
    (RX_9060_XT, 512, 64, False), (RX_9060_XT, 512, None, True), (RX_9060_XT, 512, 32, True),
    (RX_9060_XT, 256, 32, False),
    *((MI300X | {"arch": arch}, 512, None, False) for arch in ("gfx908", "gfx90a", "gfx942", "gfx950")),
]  # fmt: skip


@pytest.mark.parametrize(("agent", "waves", "wave_size", "stays"), WAVES)
def test_wave_counts_may_drift_within_their_wave_size(agent, waves, wave_size, stays):
    """A launch of another number is left out, and its number is said."""
    made = profile([[("k", 1000, {"SQ_WAVES": waves} | (RDNA_HIT if agent is RX_9060_XT else HIT))]], agent)
    made.dispatches["wave_size"] = pd.array([wave_size], dtype=made.dispatches["wave_size"].dtype)
    values, problems, _ = found(made)
    assert ("l2_hit_pct" in values, not problems) == (stays, stays)
    assert stays or f"SQ_WAVES is {waves} " in problems[0]


def test_another_gpu_s_names_are_no_fault_of_this_one():
    """Two machines' profiles read together: each run's counters are judged by its own GPU."""
    counters = {"TCC_EA_RDREQ_sum": 5, "TCC_EA_RDREQ_32B_sum": 1}
    made = profile([[("old", 1000, counters)], [("new", 1000, {"TCC_HIT_sum": 1, "TCC_MISS_sum": 1})]])
    made.agents = agents(MI210, MI300X)
    made.dispatches["agent"] = pd.array([0, 1], dtype="Int32")
    evaluation = evaluate(made, devices_of(made))
    assert evaluation.launches.problems == []
    assert {group.name: "read_bytes" in group.values for group in by_kernel(evaluation)} == {"old": True, "new": False}


@pytest.mark.parametrize(
    "counted", [{"SQ_WAVE_CYCLES": 24_000, "SQ_BUSY_CYCLES": 1000}, {"MeanOccupancyPerActiveCU": 24}]
)
def test_waves_per_active_cu_of_rdna_are_half_of_what_a_wgp_has(counted):
    """rocprofv3 gave 4.79 for an attention kernel of 7.377 % of the 32 slots of a gfx1151's CUs, 2.36 each."""
    assert value(profile([[("k", 1000, counted)]], RX_9060_XT), "waves_per_active_cu") == pytest.approx(12)
    engines = profile([[("k", 1000, counted)]], RX_9060_XT | {"arch": "gfx1030"})
    assert "waves_per_active_cu" not in kernels(engines)["k"].values  # SQ_BUSY_CYCLES has no instance for a WGP there


def test_a_kernel_takes_the_formula_most_launches_have():
    """Sums over launches counted in two ways would be of neither; how many launches it is of is said."""
    counted = ("k", 1000, {"TCC_HIT_sum": 1, "TCC_MISS_sum": 1})
    found = kernels(profile([[counted, counted, ("k", 1000, {"L2CacheHit": 10})]]))["k"].values["l2_hit_pct"]
    assert (found.value, found.launches, found.flags) == (pytest.approx(50), 2, ("from 2 of 3 launches",))


def test_files_of_many_passes_come_first():
    """rocprof-compute takes the parts of pmc_perf before a file of one pass; what they lack comes from there."""
    times = np.full(2, np.nan)
    alone = PassCounters("timing", {"A": np.array([1.0, 1.0]), "B": np.array([4.0, 4.0])}, times)
    parts = [PassCounters(f"pmc_perf[{n}]", {"A": np.array([n, np.nan])}, times) for n in (2.0, 3.0)]
    joined = Launches(pd.DataFrame({"kernel": ["k", "k"]}), [alone, *parts], times).joined.counters
    assert {name: values.tolist() for name, values in joined.items()} == {"A": [2, 1], "B": [4, 4]}


@pytest.mark.parametrize(
    ("agent", "is_flagged"),
    [
        (
            {"arch": "gfx1201", "product": "AMD Radeon RX 9070 XT", "cus": 64, "simds": 128, "max_clock_mhz": 2460},
            False,
        ),
        ({"arch": "gfx1201", "product": "AMD Radeon Graphics", "cus": 64, "simds": 128, "max_clock_mhz": 2460}, False),
        ({"arch": "gfx1030", "product": "AMD Radeon RX 6900 XT", "cus": 80, "simds": 160, "max_clock_mhz": 2460}, True),
        ({"arch": "gfx942", "product": "AMD Instinct MI300X", "cus": 304, "simds": 1216, "max_clock_mhz": 2460}, True),
    ],
    ids=lambda each: each["product"] if isinstance(each, dict) else "",
)
def test_boosting_past_the_reported_clock_is_not_flagged(agent, is_flagged):
    """2900 cycles in 1000 ns: an RX 9070 XT that boosts, reported with its game clock; elsewhere the profiler's own."""
    counted = {"SQ_WAVE_CYCLES": 2_900_000, "GRBM_GUI_ACTIVE": 2_900}
    card = {"number": 0, "max_waves_per_cu": 32, "xccs": 1} | agent
    flags = kernels(profile([[("k", 1000, counted)]], card))["k"].values["achieved_occupancy_pct"].flags
    assert any(TOO_SHORT in flag for flag in flags) == is_flagged


def test_a_bandwidth_is_impossible_above_the_boost_clock_only():
    """64 CUs ask for 64 bytes a cycle: 10.1 TB/s at the game clock, 12.2 at the boost clock."""
    card = RX_9060_XT | {
        "arch": "gfx1201", "product": "AMD Radeon RX 9070 XT", "cus": 64, "simds": 128, "max_clock_mhz": 2460,
    }  # fmt: skip
    reads = [{"GL2C_EA_RDREQ_sum": gbps * 1000 / 256} for gbps in (11_000, 12_500)]
    shown = ["read_gbps" in kernels(profile([[("k", 1000, each)]], card))["k"].values for each in reads]
    assert shown == [True, False]


def test_nothing_is_made_up_where_the_gpu_is_not_known():
    """A file without its GPU: no arch, so no formula applies, and the reason is given."""
    made = profile([[("k", 1000, {"TCC_HIT_sum": 5, "TCC_MISS_sum": 5})]])
    made.agents = made.agents.iloc[:0]
    evaluation = evaluate(made, devices_of(made))
    assert by_kernel(evaluation)[0].values == {}
    assert evaluation.missing["l2_hit_pct"] == "needs the GPU that it ran on"
    named = by_kernel(evaluate(made, devices_of(made, "MI210")))
    assert named[0].values["l2_hit_pct"].value == pytest.approx(50)


def test_countable_flops_are_reported_as_not_counted():
    """CDNA counts them; RDNA cannot, and there the problem is all that helps."""
    counted = {"SQ_WAVES": 256}
    mi210 = profile([[("k", 1000, counted)]])
    radeon = profile([[("k", 1000, counted)]], MI210 | {"arch": "gfx1100", "cus": 84})
    missing = [evaluate(made, devices_of(made)).missing["flops"] for made in (mi210, radeon)]
    assert missing == ["not counted, and the attention problem is not known", "needs the attention problem"]


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        (
            "gfx1151",
            (
                (
                    "profilers before February 2026 count 4 of this GPU's 8 L2 channels (ROCm/rocm-systems PR 3100): "
                    "with one of those, this is about half"
                ),
            ),
        ),
        ("gfx1100", ()),
        ("gfx1150", ()),
    ],
)
def test_cautions_reach_all_derived_metrics(arch, flags):
    """Half of Strix Halo's L2 was counted until February 2026: bytes and bandwidths say so; a share is of any half."""
    sizes = dict.fromkeys(("GL2C_EA_RDREQ_32B_sum", "GL2C_EA_RDREQ_64B_sum", "GL2C_EA_RDREQ_96B_sum"), 0)
    counted = sizes | {"GL2C_EA_RDREQ_128B_sum": 1000, "GL2C_HIT_sum": 3, "GL2C_MISS_sum": 1}
    values = kernels(profile([[("k", 10_000, counted)]], MI210 | {"arch": arch}))["k"].values
    assert values["read_bytes"].value == 128_000
    for key in ("read_bytes", "read_gbps"):
        assert values[key].flags == flags
    assert values["l2_hit_pct"].flags == ()


@pytest.mark.parametrize(("arch", "is_told"), [("gfx950", True), ("gfx942", False), ("gfx90a", False)])
def test_an_undefined_hit_rate_has_a_caution(arch, is_told):
    """gfx950's L2CacheHit read 0 in every launch of real files; counted hits and misses need no remark."""
    by_name = kernels(profile([[("k", 1000, {"L2CacheHit": 0})]], MI300X | {"arch": arch}))["k"].values["l2_hit_pct"]
    assert by_name.value == 0
    assert any("L2CacheHit" in flag for flag in by_name.flags) == is_told
    counted = {"TCC_HIT_sum": 0, "TCC_MISS_sum": 8}
    assert kernels(profile([[("k", 1000, counted)]], MI300X | {"arch": arch}))["k"].values["l2_hit_pct"].flags == ()


@pytest.mark.parametrize(("banks", "clock"), [(None, 2400), (32, 2400), (32, None)])
def test_gfx950_has_64_banks_whatever_sysinfo_says(banks, clock):
    """Its sysinfo.csv says 32 of every chip: conflicts of 40 cycles an access were impossible with it, and the rest."""
    counted = {"SQ_LDS_IDX_ACTIVE": 41_000, "SQ_LDS_BANK_CONFLICT": 40_000}
    mi350 = MI300X | {"arch": "gfx950", "cus": 256, "simds": 1024, "lds_banks": banks, "max_clock_mhz": clock}
    values = kernels(profile([[("k", 1000, counted)]], mi350))["k"].values
    assert values["lds_conflicts_per_access"].value == 40
    assert values["lds_gbps"].value == 128 * 1000 / 1000


@pytest.mark.parametrize(("cus", "is_told"), [(84, True), (96, False)])
def test_a_chip_with_disabled_wgps_has_a_caution(cus, is_told):
    """48 instances were read of an RX 7900 XT's 42 WGPs; a share of two counters so read is a mean of WGPs still."""
    counted = {"SQ_WAVE_CYCLES": 100, "SQ_WAIT_ANY": 50, "GRBM_GUI_ACTIVE": 10}
    navi = {"number": 0, "arch": "gfx1100", "cus": cus, "simds": 2 * cus, "max_waves_per_cu": 32, "xccs": 1}
    values = kernels(profile([[("k", 1000, counted)]], navi))["k"].values
    for key in ("waves", "achieved_occupancy_pct"):
        assert any("disabled WGPs" in flag for flag in values[key].flags) == is_told
    assert values["waiting_pct"].flags == ()


def test_launches_one_by_one_are_in_the_order_of_dispatch():
    """And each has its own value."""
    launches = [("b", 1000, {"TCC_REQ_sum": 1}), ("a", 2000, {"TCC_REQ_sum": 4}), ("b", 1000, {"TCC_REQ_sum": 3})]
    made = profile([launches])
    found = by_launch(evaluate(made, devices_of(made)))
    assert [(group.name, group.values["l2_gbps"].value) for group in found] == [
        ("b", pytest.approx(0.128)), ("a", pytest.approx(0.256)), ("b", pytest.approx(0.384)),
    ]  # fmt: skip
    made.dispatches["process"] = pd.array([9, 8, 8], dtype=made.dispatches["process"].dtype)
    assert [group.name for group in by_launch(evaluate(made, devices_of(made)))] == ["a", "b", "b"]


def test_the_attention_problem_gives_flops_on_rdna():
    """work_flops from a plan: 2e9 FLOP in 1 ms are 2 TFLOP/s."""
    rdna = RX_9060_XT | {"arch": "gfx1100", "cus": 84, "simds": 168, "max_clock_mhz": 2400}
    made = profile([[("k", 1_000_000, {"SQ_BUSY_CYCLES": 5})]], rdna)
    evaluation = evaluate(made, devices_of(made), {"work_flops": np.array([2e9])})
    found = by_kernel(evaluation, ["D 128"])[0]
    assert (found.label, found.values["useful_tflops"].value) == ("D 128", pytest.approx(2))
    assert found.values["tflops"].value == pytest.approx(2)
