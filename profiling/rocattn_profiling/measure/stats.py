"""Numbers computed from records: summaries, rates against this machine's ceilings, and speed-ups with intervals.

Pure functions, without numpy. Percentiles are over all samples of all launches. Rates use the median, because
contention only ever adds time, which would inflate a mean. The unit of every interval is the process launch: samples
of one launch share its memory layout and its disturbances and are not independent (research behind the gate: pooled
samples turned up to 28 % of identical pairs into "differences").
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, median, stdev
from typing import Literal

import msgspec

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.measure.records import Launch, Record, place_of

GPU_STANDARD = "gpu-standard"
STANDARD_OF = {"gpu": GPU_STANDARD, GPU_STANDARD: "", "cpu": ""}
"""The standard attention that a backend is compared with; "cpu" unless listed, none for standard attention."""
LOW_QUANTILE = 0.05
"""Quantile of a launch's samples that is its location: for ten samples, about the mean of the lowest two. Higher
quantiles and means were no better on the gate's recordings."""
DISTURBED_SWITCHES_PER_S = 100.0
"""On an idle machine a process is preempted a few times a second; next to a busy process, hundreds of times."""
CROWDING_LOAD = 1.5
"""Runnable processes per core, including our own, from which a record is `crowded`."""
CROWDED_SPREAD = 0.1
"""Standard deviation of the log ratio between single-threaded runs on a crowded machine, in addition to that between
launches. With it, 48 of 48 intervals of sixteen runs at load 13 to 16 contained the mean of the other runs in their
group of eight; without it, 39."""
WIDEST_RATIO = 3.0
"""Ratio of a 95 % interval's ends from which a ratio is undecided: "121x (3.5 to 4215)" is no number."""
CEILING_SLACK = 1.05
"""Largest accepted share of a ceiling: on a quiet machine, eight repeated ceilings were within 4 % of their mean."""
DISTURBED_CEILINGS = "disturbed"
"""Key in a record's ceilings if other processes disturbed all takes or all except one, or if no two takes agreed."""
UndecidedCode = Literal[
    "wide_interval", "disturbed", "crowded", "disturbed_ceiling", "above_ceiling", "float32_ceiling"
]
"""Why a number is undecided, as codes for programs."""
_QUIET_OR_ONE_THREAD = (
    "measure again on an idle machine (`rocattn doctor` shows the load), or, where several threads were measured, with "
    "--threads 1: BLAS threads that wait for one that lost its core keep the other cores busy"
)
WIDE_INTERVAL: Reason[UndecidedCode] = Reason(
    "wide_interval",
    f"the ends of its 95 % interval differ by more than a factor of {WIDEST_RATIO:g}",
    "measure again on an idle machine (`rocattn doctor` shows the load), or with more launches",
)
DISTURBED: Reason[UndecidedCode] = Reason(
    "disturbed",
    "other processes kept taking the CPU from most launches of one side, whose times then depend on each other",
    _QUIET_OR_ONE_THREAD,
)
CROWDED: Reason[UndecidedCode] = Reason(
    "crowded",
    "several threads were measured while more processes wanted to run than there are cores",
    _QUIET_OR_ONE_THREAD,
)
ABOVE_CEILING: Reason[UndecidedCode] = Reason(
    "above_ceiling",
    "the result exceeds the ceiling measured in this run: the machine was busy while the ceiling was "
    "measured, or the data were in the caches",
    "measure again on an idle machine (`rocattn doctor` shows the load)",
)
DISTURBED_CEILING: Reason[UndecidedCode] = Reason(
    "disturbed_ceiling",
    "other processes kept taking the CPU while the ceilings were measured, so they are too low",
    _QUIET_OR_ONE_THREAD,
)
FLOAT32_CEILING: Reason[UndecidedCode] = Reason(
    "float32_ceiling",
    "the GEMM ceiling is for float32 products, which 16-bit instructions exceed; or the machine was busy while it was "
    "measured",
    "compare TFLOP/s, or measure again on an idle machine (`rocattn doctor` shows the load)",
)
_RESAMPLES = 2000


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A record's statistics.

    Attributes:
        launches, samples: Number of each.
        mean_ns, min_ns, max_ns, p50_ns, p95_ns, p99_ns: Wall time of one call, over all samples.
        launch_stddev_ns: Standard deviation over the launches' locations (`location`); None with fewer than two.
        disturbed_launches: Launches that lost the CPU to other processes all the time (`disturbed`).
        cores_used: CPU time over wall time, over all samples; None if CPU time was not recorded.
        calls_per_s: 1 / P50.
        tokens_per_s: batch * seq_q (or all packed rows) / P50: B / time for a decode step, prompt tokens / time for a
            prompt.
        tflops: Exact FLOPs (visible pairs only, plus a module's projections) / P50, in 1e12/s.
        tflops_conventional: The same with the FLOPs that papers report (``flops_conventional``).
        gbps: Compulsory bytes (``bytes_moved``) / P50, in 1e9/s.
        gemm_pct, memory_pct: tflops and gbps in percent of the ceilings measured in the same run; None without one,
            and if undecided. float64 is compared with the float64 ceiling, every other dtype with float32's.
        undecided: Why "gemm_pct" or "memory_pct" is None although its ceiling was measured.
    """

    launches: int
    samples: int
    mean_ns: float
    min_ns: float
    max_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    launch_stddev_ns: float | None
    disturbed_launches: int
    cores_used: float | None
    calls_per_s: float
    tokens_per_s: float
    tflops: float
    tflops_conventional: float
    gbps: float
    gemm_pct: float | None
    memory_pct: float | None
    undecided: dict[str, Reason[UndecidedCode]] = {}


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """How many times faster one record is than another.

    Attributes:
        slow, fast: The backends compared: ``ratio`` is the time of ``slow`` over the time of ``fast``.
        ratio: Geometric mean over launches of the ratio of the launches' medians; None if it is undecided.
        low, high: The 95 % interval of the ratio.
        launches: Launches compared.
        unit: "launch": a t interval over launches. "sample": there is one launch only, so the interval is a bootstrap
            over its interleaved samples; it says nothing about how the ratio varies between processes.
        undecided: Why there is no ratio; None if there is one.
    """

    slow: str
    fast: str
    ratio: float | None
    low: float
    high: float
    launches: int
    unit: str
    undecided: Reason[UndecidedCode] | None = None


def undecided(low: float, high: float | None) -> Reason[UndecidedCode] | None:
    """Return why a ratio with this 95 % interval is too uncertain to show; None if it is not.

    Args:
        low: The lower end of the interval.
        high: The upper end; None is infinite.
    """
    return None if high is not None and 0 < high <= WIDEST_RATIO * low else WIDE_INTERVAL


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile (0 to 1) by linear interpolation between order statistics, numpy's default method.

    Raises:
        RocattnError: There are no values.
    """
    if not values:
        raise RocattnError("a quantile of no samples was asked for")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def low_quantile(samples: Sequence[float]) -> float:
    """Return the location of a launch with these samples, robust to preemption and outliers."""
    return quantile(samples, LOW_QUANTILE)


def mostly_disturbed(launches: Sequence[Launch]) -> bool:
    """Whether most launches were `disturbed`."""
    return 2 * sum(map(disturbed, launches)) > len(launches)


def disturbed(launch: Launch) -> bool:
    """Whether most samples of a launch lost the CPU at more than `DISTURBED_SWITCHES_PER_S`.

    The criterion is involuntary context switches, not times, so that excluding or marking such launches does not favor
    fast ones. The gate's criterion, CPU share relative to uninterrupted samples, works only for one thread: with two,
    64 of 75 such launches on a busy machine had no uninterrupted samples to compare with.
    """
    spans_ns = [sample * launch.number for sample in launch.samples_ns]
    rates = [switches * 1e9 / span for switches, span in zip(launch.nivcsw, spans_ns, strict=False) if span]
    return bool(rates) and median(rates) > DISTURBED_SWITCHES_PER_S


def newest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each id and place, in order of first appearance: repetitions replace earlier ones."""
    return list({(record.id, place_of(record)): record for record in records}.values())


def summarize(record: Record) -> Summary:
    """Return the summary of a record that has samples.

    Raises:
        RocattnError: It has none (it was skipped).
    """
    samples = [sample for launch in record.launches for sample in launch.samples_ns]
    if not samples:
        raise RocattnError(f"{record.id} has no samples: {record.skipped or 'nothing was measured'}")
    config = AttentionConfig.from_dict(record.config)
    p50 = quantile(samples, 0.5)
    tflops = (config.flops + record.extra_flops) / p50 / 1e3
    gbps = (config.bytes_moved + record.extra_bytes) / p50
    ceilings = {} if record.backend in {"gpu", GPU_STANDARD} else record.ceilings  # ceilings are the CPU's
    gemm = ceilings.get("gemm_float64_tflops" if config.dtype == "float64" else "gemm_tflops")
    shares = {"gemm_pct": _share(tflops, gemm), "memory_pct": _share(gbps, ceilings.get("memory_gbps"))}
    passed = {name for name, share in shares.items() if share is not None and share > CEILING_SLACK}
    why = {"gemm_pct": FLOAT32_CEILING if config.itemsize == 2 else ABOVE_CEILING, "memory_pct": ABOVE_CEILING}
    if ceilings.get(DISTURBED_CEILINGS):
        passed, why = (
            {name for name, share in shares.items() if share is not None},
            dict.fromkeys(why, DISTURBED_CEILING),
        )
    locations = [low_quantile(launch.samples_ns) for launch in record.launches if launch.samples_ns]
    cpu = [value for launch in record.launches for value in launch.cpu_ns]
    return Summary(
        launches=len(locations),
        samples=len(samples),
        mean_ns=fmean(samples),
        min_ns=min(samples),
        max_ns=max(samples),
        p50_ns=p50,
        p95_ns=quantile(samples, 0.95),
        p99_ns=quantile(samples, 0.99),
        launch_stddev_ns=stdev(locations) if len(locations) > 1 else None,
        disturbed_launches=sum(disturbed(launch) for launch in record.launches),
        cores_used=sum(cpu) / sum(samples) if len(cpu) == len(samples) else None,
        calls_per_s=1e9 / p50,
        tokens_per_s=config.rows_q * 1e9 / p50,
        tflops=tflops,
        tflops_conventional=(config.flops_conventional + record.extra_flops) / p50 / 1e3,
        gbps=gbps,
        **{name: None if share is None or name in passed else 100 * share for name, share in shares.items()},
        undecided={name: why[name] for name in shares if name in passed},
    )


def _share(rate: float, ceiling: float | None) -> float | None:
    return rate / ceiling if ceiling else None


def student_t_cdf(t: float, dof: int) -> float:
    """Return P(T <= t) of Student's t distribution with an integer number of degrees of freedom.

    Uses the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    theta = math.atan2(t, math.sqrt(dof))
    cos2, sin = math.cos(theta) ** 2, math.sin(theta)
    term = total = math.cos(theta) if dof % 2 else 1.0
    for k in range(3 if dof % 2 else 2, dof - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    if dof % 2 == 0:
        return 0.5 + sin * total / 2
    return 0.5 + (theta + (sin * total if dof > 1 else 0.0)) / math.pi


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, dof: int) -> float:
    """Return the t with P(T <= t) = p, for 0.5 <= p < 1, by Newton's method.

    Raises:
        RocattnError: p is outside that range, or dof < 1.
    """
    if not 0.5 <= p < 1 or dof < 1:
        raise RocattnError(f"Student's t has no quantile here for p = {p} and {dof} degrees of freedom")
    peak = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    # Start from the normal quantile, which is below the root: the CDF is concave there, so no step overshoots.
    t, step = NormalDist().inv_cdf(p), 1.0
    while step > 1e-9 * t:  # the next step would be about its square
        step = (p - student_t_cdf(t, dof)) / (peak * (1 + t * t / dof) ** (-(dof + 1) / 2))
        t += step
    return t


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return (mean, low, high): the t interval for the mean of at least two independent values."""
    mean = fmean(values)
    half = student_t_quantile(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def _bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return (median, low, high): the 95 % percentile bootstrap interval of the median."""
    source = random.Random(seed)  # noqa: S311 - resampling, not secrets; seeded for reproducible results
    medians = [median(source.choices(values, k=len(values))) for _ in range(_RESAMPLES)]
    return median(values), quantile(medians, 0.025), quantile(medians, 0.975)


def speedup(a: Record, b: Record) -> Speedup:
    """Return how many times faster ``b`` is than ``a``: the time of ``a`` over the time of ``b``, with its interval.

    Raises:
        RocattnError: The two were not measured interleaved in the same launches, or share no launch.
    """
    if not a.pair or a.pair != b.pair or place_of(a) != place_of(b):
        raise RocattnError(f"{a.id} and {b.id} were not measured side by side: they cannot be compared")
    found = compare_launches(a.launches, b.launches, a.backend, b.backend)
    if not crowded(a):
        return found
    if a.threads != 1:
        return msgspec.structs.replace(found, ratio=None, undecided=CROWDED)
    return _widened(found)


def crowded(record: Record) -> bool:
    """Whether more processes were runnable than there are cores, in most launches.

    The scheduler's choice between several threads then persists for seconds: launches within a run agree, but those of
    the next run differ.
    """
    loads = [launch.load for launch in record.launches]
    return bool(loads) and median(loads) > CROWDING_LOAD * max(1, record.machine.cores)


def _widened(found: Speedup) -> Speedup:
    """Return a speed-up whose interval includes the variation between runs, which launches of one run do not show."""
    if found.unit != "launch":
        return found
    centre, half = (math.log(found.low) + math.log(found.high)) / 2, (math.log(found.high) - math.log(found.low)) / 2
    more = student_t_quantile(0.975, found.launches - 1) * CROWDED_SPREAD / math.sqrt(found.launches)
    half = math.hypot(half, more)
    low, high = math.exp(centre - half), math.exp(centre + half)
    why_not = found.undecided or undecided(low, high)
    return msgspec.structs.replace(found, low=low, high=high, ratio=None if why_not else found.ratio, undecided=why_not)


def winning_start(ratios: Mapping[int, Speedup]) -> int | None:
    """Return the smallest length from which on every speed-up is proven; None if the longest length's is not."""
    start = None
    for length in sorted(ratios, reverse=True):
        if ratios[length].ratio is None or ratios[length].low <= 1:
            break
        start = length
    return start


def compare_launches(slow: Sequence[Launch], fast: Sequence[Launch], slow_name: str, fast_name: str) -> Speedup:
    """Return how many times faster one backend's launches are than another's in the same processes.

    Raises:
        RocattnError: The two share no launch.
    """
    others = {launch.pos: launch for launch in fast}
    launches = [(launch, others[launch.pos]) for launch in slow if launch.pos in others]
    if not launches:
        raise RocattnError(f"{slow_name} and {fast_name} share no launch")
    if len(launches) > 1:
        unit = "launch"
        centre, low, high = mean_interval([math.log(median(x.samples_ns) / median(y.samples_ns)) for x, y in launches])
    else:
        unit = "sample"
        ((x, y),) = launches
        pairs = zip(x.samples_ns, y.samples_ns, strict=False)
        centre, low, high = _bootstrap_interval([math.log(s / t) for s, t in pairs])
    ends = math.exp(low), math.exp(high)
    # Launches are independent draws only on an undisturbed machine: the same command gave 200x, 3.3x and 2.3x.
    why_not = DISTURBED if any(map(mostly_disturbed, zip(*launches, strict=True))) else undecided(*ends)
    return Speedup(
        slow=slow_name,
        fast=fast_name,
        ratio=None if why_not else math.exp(centre),
        low=ends[0],
        high=ends[1],
        launches=len(launches),
        unit=unit,
        undecided=why_not,
    )
