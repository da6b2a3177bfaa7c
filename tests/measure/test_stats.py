"""Numbers computed from records agree with numpy, scipy and with cases whose answer is known."""

import math

import msgspec
import numpy as np
import pytest
from scipy import stats as scipy_stats

from rocattn.errors import RocattnError
from rocattn_profiling.measure import stats
from rocattn_profiling.measure.records import Launch

from ..bench.made_records import CONFIG, MACHINE, make_record


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.95, 0.99, 1.0])
def test_quantiles_are_numpys_default(count, q):
    """Linear interpolation between order statistics, for any number of samples."""
    values = np.random.default_rng(count).lognormal(size=count)
    assert stats.quantile(values.tolist(), q) == pytest.approx(np.quantile(values, q), rel=1e-12)


def test_a_quantile_of_nothing_is_refused():
    """No number is made up for an empty series."""
    with pytest.raises(RocattnError, match="no samples"):
        stats.quantile([], 0.5)


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 9, 10, 29, 100])
def test_students_t_agrees_with_scipy(dof):
    """The closed form of the distribution and its quantile, for odd and even degrees of freedom."""
    for t in (-7.0, -0.3, 0.0, 0.8, 3.1, 40.0):
        assert stats.student_t_cdf(t, dof) == pytest.approx(scipy_stats.t.cdf(t, dof), abs=1e-12)
    for p in (0.6, 0.9, 0.975, 0.9995):
        assert stats.student_t_quantile(p, dof) == pytest.approx(scipy_stats.t.ppf(p, dof), rel=1e-9)


def test_the_mean_interval_agrees_with_scipy():
    """mean +- t s / sqrt(n)."""
    values = [1.0, 1.2, 0.7, 1.9, 1.1]
    low, high = scipy_stats.t.interval(0.95, 4, loc=np.mean(values), scale=scipy_stats.sem(values))
    assert stats.mean_interval(values) == pytest.approx((np.mean(values), low, high))


def test_a_summary_holds_the_pooled_samples_statistics():
    """Mean, extremes and percentiles are of all samples; the spread is over the launches' locations."""
    launches = [[1000.0, 1100.0, 5000.0], [1010.0, 1200.0], [990.0, 1050.0, 1060.0, 1070.0]]
    pooled = np.concatenate(launches)
    summary = stats.summarize(make_record(launches))
    assert (summary.launches, summary.samples) == (3, 9)
    assert summary.mean_ns == pytest.approx(pooled.mean())
    assert (summary.min_ns, summary.max_ns) == (990.0, 5000.0)
    for name, q in (("p50_ns", 50), ("p95_ns", 95), ("p99_ns", 99)):
        assert getattr(summary, name) == pytest.approx(np.percentile(pooled, q))
    assert summary.launch_stddev_ns == pytest.approx(np.std([np.quantile(x, 0.05) for x in launches], ddof=1))
    assert stats.summarize(make_record(launches[:1])).launch_stddev_ns is None


def test_rates_are_the_configs_work_over_the_median():
    """tokens/s counts query tokens; TFLOP/s is exact, with the papers' count beside; percent is of the ceilings."""
    summary = stats.summarize(make_record([[2000.0, 2000.0, 9000.0]]))
    visible = 3 * 4 * (7 + 8 + 9 + 10 + 11)  # batch x heads x keys that the 5 rows see, bottom-right aligned
    assert summary.calls_per_s == pytest.approx(5e5)
    assert summary.tokens_per_s == pytest.approx(3 * 5 / 2e-6)
    assert summary.tflops == pytest.approx(visible * 2 * 48 / 2e-6 / 1e12)
    assert summary.tflops_conventional == pytest.approx(2 * 3 * 4 * 5 * (11 + 6) * 48 / 2 / 2e-6 / 1e12)  # FA-3's count
    moved = 4 * (3 * 4 * 5 * 24 + 3 * 2 * 11 * 48 + 3 * 4 * 5 * 24)
    assert summary.gbps == pytest.approx(moved / 2e-6 / 1e9)
    assert summary.gemm_pct == pytest.approx(100 * summary.tflops / 0.2)
    assert summary.memory_pct == pytest.approx(100 * summary.gbps / 40)


def test_a_modules_projections_count_as_its_work():
    """What is timed beside the attention is in FLOP/s and bytes/s, by the papers' count too."""
    alone, whole = (
        stats.summarize(make_record([[2000.0]], **more)) for more in ({}, {"extra_flops": 10**6, "extra_bytes": 4000})
    )
    assert whole.gbps - alone.gbps == pytest.approx(2)
    assert whole.tflops - alone.tflops == pytest.approx(0.5)
    assert whole.tflops_conventional - alone.tflops_conventional == pytest.approx(0.5)


def test_float64_is_judged_by_the_float64_ceiling():
    """A float32 ceiling would make float64 look half as good as it is."""
    single = stats.summarize(make_record([[2000.0]]))
    double = stats.summarize(make_record([[2000.0]], config=CONFIG.replace(dtype="float64")))
    assert double.gemm_pct == pytest.approx(2 * single.gemm_pct)


def test_what_was_not_measured_is_none_in_a_summary():
    """What was not measured is None, not zero."""
    summary = stats.summarize(make_record([[2000.0]], ceilings={}))
    assert summary.gemm_pct is None
    assert summary.memory_pct is None
    assert summary.cores_used is None
    half = Launch(start_ns=0, pos=0, number=1, samples_ns=[10.0, 30.0], cpu_ns=[20.0])
    assert stats.summarize(make_record([], launches=[half])).cores_used is None


def test_a_gpu_is_not_judged_by_the_cpus_ceilings():
    """Thousands of percent of what this CPU can do would say nothing."""
    summary = stats.summarize(make_record([[2000.0]], backend="gpu"))
    assert (summary.gemm_pct, summary.memory_pct) == (None, None)
    launch = Launch(start_ns=0, pos=0, number=1, samples_ns=[10.0, 30.0], cpu_ns=[20.0, 50.0])
    assert stats.summarize(make_record([], launches=[launch])).cores_used == pytest.approx(1.75)


@pytest.mark.parametrize("backend", ["cpu", "gpu-standard"])
def test_a_share_of_a_disturbed_ceiling_is_undecided(backend):
    """Two takes of one bad moment may agree: a share of theirs would be too large, and not only beyond 100 %."""
    ceilings = {"gemm_tflops": 1e9, "memory_gbps": 1e9, "disturbed": 1.0}
    summary = stats.summarize(make_record([[2000.0]], ceilings=ceilings, backend=backend))
    assert (summary.gemm_pct, summary.memory_pct) == (None, None)
    told = {} if backend == "gpu-standard" else dict.fromkeys(["gemm_pct", "memory_pct"], stats.DISTURBED_CEILING)
    assert summary.undecided == told


@pytest.mark.parametrize(
    ("load", "threads", "cores", "known", "wider"),
    [(3.0, 2, 2, True, False), (3.1, 2, 2, False, False), (3.1, 1, 2, True, True), (3.1, 1, 3, True, False)],
)
def test_a_crowded_machine_moves_all_launches_of_a_run(load, threads, cores, known, wider):
    """Of several threads nothing is told; of one, the interval has what runs differ by."""
    machine = msgspec.structs.replace(MACHINE, cores=cores)
    slow, fast = (
        make_record(
            [], backend=name, threads=threads, machine=machine,
            launches=[Launch(start_ns=pos, pos=pos, number=1, samples_ns=[ns], load=load) for pos in range(3)],
        ) for name, ns in (("cpu", 300.0), ("f", 100.0))
    )  # fmt: skip
    found = stats.speedup(slow, fast)
    assert (found.ratio == pytest.approx(3)) if known else (found.undecided is stats.CROWDED)
    assert found.high / found.low == pytest.approx(math.exp(2 * 4.3027 * 0.1 / 3**0.5) if wider else 1, rel=1e-4)


def speedup_of(low, high, *, decided=True):
    """Return a speed-up with this interval."""
    ratio = (low * high) ** 0.5 if decided else None
    why = None if decided else stats.DISTURBED
    return stats.Speedup(
        slow="cpu", fast="f", ratio=ratio, low=low, high=high, launches=3, unit="launch", undecided=why
    )


@pytest.mark.parametrize(
    ("intervals", "start"),
    [
        ({8: (1.1, 1.2), 16: (2, 3)}, 8),
        ({8: (0.9, 1.2), 16: (2, 3), 32: (2, 3)}, 16),
        ({8: (1.1, 1.2), 16: (0.5, 0.6), 32: (2, 3)}, 32),
        ({8: (1.1, 1.2), 16: (0.5, 0.6)}, None),
        ({8: (1.1, 1.2), 16: None}, None),
        ({8: None, 16: (1.1, 1.2)}, 16),
        ({}, None),
    ],
)
def test_a_backend_wins_from_where_it_always_does(intervals, start):
    """Proven at that length and at every longer one."""
    ratios = {
        n: speedup_of(2, 3, decided=False) if ends is None else speedup_of(*ends) for n, ends in intervals.items()
    }
    assert stats.winning_start(ratios) == start


def test_a_skipped_record_has_no_summary():
    """The reason it was skipped is in the error."""
    with pytest.raises(RocattnError, match="needs 9 GB"):
        stats.summarize(make_record([], status="skipped", skipped="needs 9 GB"))


def test_a_constant_ratio_has_an_interval_of_no_width():
    """b takes half the time of a in every launch, whatever the launches have in common."""
    slow = [[1000.0, 1001.0], [2000.0, 2002.0], [1500.0, 1700.0]]
    fast = [[x / 2 for x in launch] for launch in slow]
    found = stats.speedup(make_record(slow), make_record(fast, backend="cpu-flash"))
    assert (found.slow, found.fast, found.launches, found.unit) == ("cpu", "cpu-flash", 3, "launch")
    assert (found.ratio, found.low, found.high) == pytest.approx((2, 2, 2))


def test_a_speedup_has_the_t_interval_of_log_ratios():
    """A t interval with launches - 1 degrees of freedom, as scipy computes it."""
    slow, fast = [[110.0], [100.0], [130.0], [90.0]], [[50.0], [51.0], [49.0], [52.0]]
    logs = np.log(np.ravel(slow) / np.ravel(fast))
    low, high = scipy_stats.t.interval(0.95, 3, loc=logs.mean(), scale=scipy_stats.sem(logs))
    found = stats.speedup(make_record(slow), make_record(fast))
    assert (found.ratio, found.low, found.high) == pytest.approx(tuple(np.exp([logs.mean(), low, high])))


@pytest.mark.parametrize(
    ("low", "high", "decided"),
    [(1.0, 3.0, True), (1.0, 3.01, False), (3.49, 4214.78, False), (0.08, 21759.0, False), (0.2, 0.3, True),
     (0.0, 0.1, False), (1.0, math.inf, False), (1.0, None, False), (math.nan, 2.0, False), (-1.0, 2.0, False)],
)  # fmt: skip
def test_a_ratio_with_a_wide_interval_is_undecided(low, high, decided):
    """Three is the limit; an interval without an end, or of no numbers, is wider."""
    assert (stats.undecided(low, high) is None) == decided
    assert stats.undecided(low, high) in {None, stats.WIDE_INTERVAL}


def test_an_undecided_speedup_has_its_interval_and_no_ratio():
    """So that no view prints one by mistake."""
    wild = stats.speedup(make_record([[1.0], [100.0], [10.0]]), make_record([[1.0], [1.0], [1.0]]))
    assert (wild.ratio, wild.undecided) == (None, stats.WIDE_INTERVAL)
    assert wild.high > 3 * wild.low > 0


@pytest.mark.parametrize(
    ("dtype", "share", "reason"),
    [("float32", 1.04, None), ("float32", 1.06, stats.ABOVE_CEILING), ("float16", 3.68, stats.FLOAT32_CEILING),
     ("float64", 3.68, stats.ABOVE_CEILING)],
)  # fmt: skip
def test_a_passed_ceiling_is_no_ceiling(dtype, share, reason):
    """Beyond what ceilings of a quiet machine differ by, there is no share; float16 may pass one of float32."""
    config = CONFIG.replace(dtype=dtype)
    rate = stats.summarize(make_record([[2000.0]], config=config)).tflops
    ceilings = {"gemm_tflops": rate / share, "gemm_float64_tflops": rate / share}
    summary = stats.summarize(make_record([[2000.0]], config=config, ceilings=ceilings))
    assert summary.gemm_pct == (pytest.approx(100 * share) if reason is None else None)
    assert summary.undecided == ({} if reason is None else {"gemm_pct": reason})


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    """Launch noise of 5 %, sample noise of 1 % with disturbances upwards: 95 % of intervals hold the true 1.3."""
    rng = np.random.default_rng(7)
    trials, hits = 400, 0
    for _ in range(trials):
        sides = []
        for true in (1.3, 1.0):
            place = true * np.exp(rng.normal(0, 0.05, 4))[:, None]
            late = rng.random((4, 9)) < 0.1
            sides.append(1e6 * place * np.exp(rng.normal(0, 0.01, (4, 9))) * np.where(late, 1.5, 1.0))
        found = stats.speedup(make_record(sides[0].tolist()), make_record(sides[1].tolist()))
        hits += found.low <= 1.3 <= found.high
    assert hits / trials == pytest.approx(0.95, abs=0.035)


def test_one_launch_gives_an_interval_over_samples_and_says_so():
    """It holds the ratio of the samples, and its unit warns that processes may differ."""
    rng = np.random.default_rng(3)
    slow, fast = rng.normal(3e6, 1e4, 40).tolist(), rng.normal(1e6, 1e4, 40).tolist()
    found = stats.speedup(make_record([slow]), make_record([fast]))
    assert found.unit == "sample"
    assert found.low < 3 < found.high
    assert found.high / found.low < 1.02
    assert found == stats.speedup(make_record([slow]), make_record([fast]))


def test_one_launch_has_the_bootstrap_interval_of_its_median():
    """Of 31 ratios in order: 2.5 % of resamples have a median below the 11th, 2.5 % above the 21st (the binomial's)."""
    ratios = [2 + 0.01 * n for n in range(31)]
    below = [scipy_stats.binom.sf(15, 31, k / 31) for k in range(32)]
    first = next(k for k in range(32) if below[k] >= 0.025)
    last = next(k for k in range(32) if below[k] >= 0.975)
    assert (first, last) == (11, 21)
    found = stats.speedup(make_record([ratios]), make_record([[1.0] * 31]))
    assert (found.ratio, found.low, found.high) == pytest.approx((2.15, ratios[first - 1], ratios[last - 1]))


def test_of_several_launches_one_may_be_all_that_is_shared():
    """Its samples are then what there is: no interval over launches can be made of one."""
    slow = make_record([[200.0, 210.0], [1.0], [1.0]])
    fast = make_record([[100.0, 100.0]])
    found = stats.speedup(slow, fast)
    assert (found.unit, found.launches) == ("sample", 1)
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(math.sqrt(2.0 * 2.1))
    with pytest.raises(RocattnError, match="share no launch"):
        stats.speedup(make_record([], launches=slow.launches[1:]), fast)


def test_records_not_measured_together_are_not_compared():
    """Different pairs, or none at all, are an error and not a number."""
    with pytest.raises(RocattnError, match="side by side"):
        stats.speedup(make_record([[1.0]], pair="a"), make_record([[1.0]], pair="b"))
    with pytest.raises(RocattnError, match="side by side"):
        stats.speedup(make_record([[1.0]], pair=""), make_record([[1.0]], pair=""))
    with pytest.raises(RocattnError, match="side by side"):
        stats.speedup(make_record([[1.0]], host="n1"), make_record([[1.0]], host="n2"))


def test_launches_are_matched_by_position():
    """A launch that only one side has does not shift the others."""
    slow = make_record([[100.0], [300.0], [1000.0]])
    fast = make_record([[50.0], [1.0], [500.0]])
    fast = make_record([], launches=[fast.launches[0], fast.launches[2]])
    found = stats.speedup(slow, fast)
    assert (found.ratio, found.launches) == (pytest.approx(2), 2)


def test_one_disturbed_sample_does_not_move_a_ratio():
    """It is of medians: one added delay leaves it where it is."""
    calm = [[100.0 + i for i in range(11)]] * 3
    hit = [[*one[:-1], 1e9] for one in calm]
    assert stats.speedup(make_record(hit), make_record(calm)).ratio == 1


@pytest.mark.parametrize(("launches", "known"), [([0, 0, 9], True), ([9, 0, 9], False), ([9, 9, 9], False)])
def test_a_ratio_of_disturbed_launches_is_undecided(launches, known):
    """On a busy machine the same command gave 200x (147 to 272), 3.3x and 2.3x: launches are not independent there."""
    slow = [Launch(start_ns=i, pos=i, number=1, samples_ns=[2e6] * 3, nivcsw=[n] * 3) for i, n in enumerate(launches)]
    fast = [msgspec.structs.replace(one, samples_ns=[1e6] * 3, nivcsw=[0] * 3) for one in slow]
    for a, b in ((slow, fast), (fast, slow)):
        found = stats.speedup(make_record([], launches=a), make_record([], launches=b))
        assert (found.ratio is not None, found.undecided is None) == (known, known)
    assert known or found.undecided.code == "disturbed"


@pytest.mark.parametrize(("switches", "expected"), [([0, 0, 9], 0), ([0, 1, 0], 0), ([1, 0, 2], 1), ([4, 3, 5], 1)])
def test_launches_that_shared_the_cpu_are_counted(switches, expected):
    """Most samples with more than 100 involuntary switches a second; a single disturbance does not count."""
    launch = Launch(start_ns=0, pos=0, number=3, samples_ns=[1e6, 1.1e6, 1.2e6], nivcsw=switches)
    assert stats.summarize(make_record([], launches=[launch])).disturbed_launches == expected


def test_what_is_empty_or_took_no_time_counts_for_nothing():
    """A launch that was cut off before its first sample is none; of a sample of 0 ns there is no rate of switches."""
    assert stats.summarize(make_record([[1000.0, 1100.0], []])).launches == 1
    launch = Launch(start_ns=0, pos=0, number=1, samples_ns=[0.0, 1e6, 1e6], nivcsw=[5, 0, 0])
    assert not stats.disturbed(launch)
    assert not stats.disturbed(Launch(start_ns=0, pos=0, number=1, samples_ns=[0.0], nivcsw=[5]))


def test_switches_are_counted_over_all_calls_of_a_sample():
    """One switch in a sample of 30 calls of 1 ms is 33 a second; over one call it would be a thousand."""
    launch = Launch(start_ns=0, pos=0, number=30, samples_ns=[1e6, 1.1e6, 1.2e6], nivcsw=[1, 1, 1])
    assert not stats.disturbed(launch)


def test_the_newest_record_of_an_id_replaces_the_older():
    """A file to which a measurement was added again is read as its last state, in the old order."""
    old, other, new = make_record([[1.0]]), make_record([[2.0]], backend="b"), make_record([[3.0]])
    assert stats.newest([old, other, new]) == [new, other]
    assert math.isclose(stats.summarize(stats.newest([old, new])[0]).p50_ns, 3.0)
    elsewhere = make_record([[4.0]], host="n2")
    assert stats.newest([old, elsewhere]) == [old, elsewhere]  # of another host nothing is replaced
