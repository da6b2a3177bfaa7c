"""One kernel against the hardware's peaks: a bar for each limit, with achieved value, peak and formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.pages.quantities import digits
from rocattn_profiling.profile.metrics.aggregate import MetricValue
from rocattn_profiling.profile.metrics.definitions import definitions
from rocattn_profiling.profile.metrics.evaluate import CONSTANT_NAMES
from rocattn_profiling.profile.report.limits import NEAR
from rocattn_profiling.profile.report.records import Bound, KernelProfile, ReasonCode
from rocattn_profiling.profile.report.verdict import NAME_IT, NO_GPU, NOT_COUNTABLE, NOT_COUNTED, gap_of

SHOWN = 25.0
"""Percent from which a limit other than the six has a bar, too."""
RAN = 0.01
"""Share of a kernel's FLOPs from which a type counts as one that the kernel runs in."""
MORE = 100.5  # largest percentage that rounding explains; above it, another level served part of the traffic
PLANS = "rocattn report PATH --plans FILE"


@dataclass(frozen=True, slots=True)
class Type:
    """A number type of the matrix or vector units; ``peak`` is its name in ``gpus.toml``."""

    metric: str
    name: str
    peak: str
    is_matrix: bool


TYPES = (
    Type("matrix_fp4_tflops", "FP6, FP4", "fp4", True), Type("matrix_fp8_tflops", "FP8", "fp8", True),
    Type("matrix_fp16_tflops", "FP16", "fp16", True), Type("matrix_bf16_tflops", "BF16", "bf16", True),
    Type("matrix_fp32_tflops", "FP32", "fp32", True), Type("matrix_fp64_tflops", "FP64", "fp64", True),
    Type("vector_fp16_tflops", "FP16", "vector-fp16", False), Type("vector_fp32_tflops", "FP32", "vector-fp32", False),
    Type("vector_fp64_tflops", "FP64", "vector-fp64", False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate in one type: achieved and peak in TFLOP/s; ``peak`` is None if not in the tables."""

    type: Type
    tflops: float
    peak: float | None

    @property
    def pct(self) -> float | None:
        """Percent of the peak."""
        return 100 * self.tflops / self.peak if self.peak else None

    @property
    def name(self) -> str:
        """The type and its unit: "BF16 matrix"."""
        return f"{self.type.name} {'matrix' if self.type.is_matrix else 'vector'}"


@dataclass(frozen=True, slots=True)
class SpeedBar:
    """How close a kernel is to one limit.

    Attributes:
        key, name: Of the limit.
        pct: Percent of the peak; None if unknown. Above 100, a cache behind this level served part of the traffic.
        is_least: Whether the true share may be larger.
        is_nearest: Whether this is the nearest limit.
        achieved, peak: In words; "" if unknown.
        notes: Other facts from the counters; "" for none.
        rates: For the matrix and the vector units, the types that ran.
        formulas: Metric, formula and source of the percentage and of the achieved rate.
        missing: Why it is unknown, with the command that would measure it; None if it is known.
    """

    key: str
    name: str
    pct: float | None = None
    is_least: bool = False
    is_nearest: bool = False
    achieved: str = ""
    peak: str = ""
    notes: str = ""
    rates: tuple[Rate, ...] = ()
    formulas: tuple[MetricValue, ...] = ()
    missing: Reason[ReasonCode] | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it bounds the kernel: the limit is the nearest, and near."""
        return self.is_nearest and self.pct is not None and self.pct >= NEAR


@dataclass(frozen=True, slots=True)
class _Level:
    key: str
    name: str
    pct: tuple[str, ...]
    rate: str


# The six limits shown for every kernel: metrics of the share, the best first, and of the rate.
_SIX = (
    _Level("memory", "HBM", ("memory_pct",), ""),
    _Level("l2", "L2", ("l2_pct",), "l2_gbps"),
    _Level("l1", "L1", ("l1_pct",), "l1_gbps"),
    _Level("lds", "LDS", ("lds_busy_pct", "lds_time_pct"), "lds_moved_gbps"),
    _Level("vector", "vector", ("valu_busy_pct", "valu_time_pct"), ""),
    _Level("matrix", "matrix", ("matrix_busy_pct", "matrix_time_pct"), ""),
)

SIX = frozenset(level.key for level in _SIX)
"""The limits that have a bar for every kernel."""


def speed_of_light(kernel: KernelProfile, counted: Mapping[str, object]) -> list[SpeedBar]:
    """Return the bars of one kernel: memory, L2, L1, LDS, vector and matrix units, then other near limits.

    Args:
        kernel: The kernel.
        counted: The profile's counters.
    """
    bounds = {bound.key: bound for bound in kernel.bounds.known} if kernel.bounds else {}
    nearest = kernel.bounds.nearest if kernel.bounds else None
    bars = []
    for level in _SIX:
        bound = bounds.pop(level.key, None)
        name = memory_name(kernel) if level.key == "memory" else level.name
        bars.append(_bar(kernel, level, name, bound, nearest is not None and bound is nearest, counted))
    others = [bound for bound in bounds.values() if bound.pct >= SHOWN or bound is nearest]
    for bound in others:
        used = _used(kernel, [*bound.numbers], bound.pct)
        bars.append(
            SpeedBar(
                bound.key,
                bound.name,
                bound.pct,
                bound.is_least,
                bound is nearest,
                notes=bound.notes,
                formulas=tuple(used),
            )
        )
    return bars


def _bar(
    kernel: KernelProfile,
    level: _Level,
    name: str,
    bound: Bound | None,
    is_nearest: bool,
    counted: Mapping[str, object],
) -> SpeedBar:
    values = kernel.values
    shares = [share for key in level.pct if (share := _number(kernel, key)) is not None]
    pct = bound.pct if bound else next(iter(shares), None)
    if pct is None:
        return SpeedBar(level.key, name, missing=missing(kernel, level.pct, counted))
    rates = tuple(
        rate
        for rate in rates_of(kernel)
        if level.key in {"matrix", "vector"} and rate.type.is_matrix == (level.key == "matrix")
    )
    achieved, peak = _achieved(kernel, level)
    made_of = _used(kernel, [*level.pct, *(bound.numbers if bound else ())], pct)
    extra = [values[key] for key in (level.rate, *(rate.type.metric for rate in rates)) if key in values]
    notes = bound.notes if bound else "above the peak: a cache between L2 and the memory served part of it"
    notes = "" if level.key == "l2" else notes  # the note is the rate, which has its own column
    return SpeedBar(
        level.key, name, pct, bool(bound and bound.is_least), is_nearest, achieved, peak, notes, rates,
        tuple({each.key: each for each in [*made_of, *extra]}.values()),
    )  # fmt: skip


def _achieved(kernel: KernelProfile, level: _Level) -> tuple[str, str]:
    """Return what was achieved and the peak of one level, as text."""
    constants = kernel.device.constants if kernel.device else {}
    if level.key == "memory":
        rates = [_number(kernel, key) for key in ("read_gbps", "write_gbps")]
        known = [each for each in rates if each is not None]
        return rate_text(sum(known)) if known else "", rate_text(constants.get("peak_gbps"))
    if level.key == "lds":
        moved = _number(kernel, level.rate)
        if not moved:
            return "not used" if moved == 0 else "busy, of all cycles", ""
        return f"busy, of all cycles; at most {rate_text(moved)} moved", rate_text(lds_peak(kernel))
    if level.rate:
        rate, pct = _number(kernel, level.rate), _number(kernel, level.pct[0])
        return rate_text(rate), rate_text(100 * rate / pct if rate and pct else None)
    return "busy, of all cycles", ""


def lds_peak(kernel: KernelProfile) -> float | None:
    """Return the LDS bandwidth in GB/s: 4 bytes per bank and cycle, but 128 bytes on gfx950 (as in rocprof-compute)."""
    rate, pct = _number(kernel, "lds_gbps"), _number(kernel, "lds_pct")
    if rate and pct:
        return 100 * rate / pct
    return None


def rates_of(kernel: KernelProfile) -> list[Rate]:
    """Return the rates of the types that make up at least `RAN` of a kernel's FLOPs, the largest first."""
    product = kernel.device.known if kernel.device else None
    known = [(each, _number(kernel, each.metric) or 0.0) for each in TYPES]
    total = sum(rate for _, rate in known)
    rates = [
        Rate(each, rate, product.peak_tflops(each.peak) if product else None)
        for each, rate in known
        if total and rate >= RAN * total
    ]
    return sorted(rates, key=lambda rate: -rate.tflops)


def missing(kernel: KernelProfile, metrics: Sequence[str], counted: Mapping[str, object]) -> Reason[ReasonCode]:
    """Return why a kernel has no value for any of these metrics, and the command that would give one.

    Args:
        kernel: The kernel.
        metrics: Alternatives, the best first.
        counted: The profile's counters.
    """
    device = kernel.device
    if device is None:
        return Reason(NO_GPU, "no file says which GPU ran it", NAME_IT)
    values = [kernel.values[key] for key in metrics if key in kernel.values]
    if dropped := next((each for each in values if each.value is None), None):
        return Reason("impossible", f"left out: {'; '.join(dropped.flags) or 'impossible'}")
    ways = {metric.key: metric.for_arch(device.arch) for metric in definitions().metrics if metric.key in metrics}
    metric = next((key for key in metrics if ways[key]), "")
    if not metric:
        return Reason(NOT_COUNTABLE, f"{device.arch} has no counter for it")
    known = {*device.constants, "grid_threads", "block_threads", "wave_size"}
    known |= {"duration_ns"} if kernel.time_ns else set()
    gap = gap_of(metric, device.arch, counted, known)
    if gap.counters:
        command = f"rocattn profile --metrics {gap.ask} -- COMMAND" if gap.ask else ""
        return Reason(NOT_COUNTED, f"not collected: {', '.join(gap.counters)}", command)
    if gap.constants:
        facts = ", ".join(CONSTANT_NAMES.get(each, each) for each in gap.constants)
        return Reason("unknown_fact", f"needs {facts}")
    return Reason("not_of_this", "not counted in this kernel's launches", "rocattn profile -- COMMAND")


def alike(reasons: Sequence[tuple[str, Reason[ReasonCode]]]) -> list[tuple[str, Reason[ReasonCode]]]:
    """Return what is missing and why, merging equal reasons."""
    names: dict[Reason[ReasonCode], list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [(", ".join(members), reason) for reason, members in names.items()]


def memory_name(kernel: KernelProfile) -> str:
    """Return the name of a GPU's memory: HBM on Instinct, DRAM on Radeon."""
    return "HBM" if kernel.device is None or kernel.device.arch.startswith("gfx9") else "DRAM"


def rate_text(gbps: float | None) -> str:
    """Return a rate in GB/s or TB/s; "" for None."""
    if gbps is None:
        return ""
    return f"{digits(gbps / 1000)} TB/s" if gbps >= 999.5 else f"{digits(gbps)} GB/s"


def _number(kernel: KernelProfile, key: str) -> float | None:
    metric = kernel.values.get(key)
    return metric.value if metric else None


def _used(kernel: KernelProfile, keys: Sequence[str], pct: float) -> list[MetricValue]:
    """Return the one of these metrics that equals a share; if none does, all that have values."""
    metrics = [kernel.values[key] for key in dict.fromkeys(keys) if key in kernel.values]
    metrics = [each for each in metrics if each.value is not None]
    equal = [each for each in metrics if abs((each.value or 0.0) - pct) < 0.5 and each.unit.startswith("%")]
    return equal[:1] or metrics
