"""The memory report: a study as a page, as Markdown and as JSON; pure functions of the study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.config import AttentionConfig
from rocattn_profiling.memory.model import Growth
from rocattn_profiling.pages.charts import Axis, Chart, ChartLine, ChartPoint, line_chart
from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.pages.render import count, markdown_text, moment, standalone

if TYPE_CHECKING:
    from rocattn_profiling.memory.measure import MemoryFit, MemoryPoint, MemoryStudy, Reduction

CHART_SIZES = {"wide": (1180, 420), "narrow": (360, 300)}

WIDEST = 1.0
"""Width of an exponent's interval from which the exponent is not shown; JSON has the numbers."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The input of the templates.

    Attributes:
        study: The measurements.
        made_ms: Creation time in ms.
        charts: Peak memory over length by `CHART_SIZES`; empty if nothing was measured.
    """

    study: MemoryStudy
    made_ms: int
    charts: dict[str, Chart]

    @property
    def measured(self) -> list[MemoryPoint]:
        """The measured points."""
        return [point for point in self.study.points if point.status == "measured"]

    @property
    def skipped(self) -> list[MemoryPoint]:
        """The points without numbers."""
        return [point for point in self.study.points if point.status != "measured"]

    @property
    def legend(self) -> list[tuple[str, int]]:
        """(name, color) of every line."""
        return [(fit.backend, number) for number, fit in enumerate(self.study.fits)]


def build(study: MemoryStudy, made_ms: int) -> MemoryReport:
    """Return the report of a study."""
    charts = {name: _chart(study, size) for name, size in CHART_SIZES.items()}
    return MemoryReport(study, made_ms, charts if any(point.status == "measured" for point in study.points) else {})


def html(report: MemoryReport) -> str:
    """Return the report as one self-contained page."""
    return standalone("memory.html.j2", "Memory", report.made_ms, report=report, **_words())


def markdown(report: MemoryReport) -> str:
    """Return the report as Markdown."""
    return markdown_text("memory.md.j2", report=report, made=moment(report.made_ms), **_words())


def to_json(report: MemoryReport) -> dict[str, Any]:
    """Return the study as JSON-ready values, including the numbers computed for tables."""
    content: dict[str, Any] = msgspec.to_builtins(report.study)
    for values, point in zip(content["points"], report.study.points, strict=True):
        values |= {"theory_bytes": point.theory.total, "difference_pct": point.difference_pct}
        values |= {"scores_pct": point.scores_pct}
    return content


def describe(study: MemoryStudy) -> str:
    """Describe the measured problem briefly."""
    config = AttentionConfig.from_dict(study.config)
    parts = [f"batch {config.batch}"]
    parts.append(f"{count(config.num_heads, 'head')} with {count(config.num_kv_heads, 'KV head')}")
    dims = f"{config.head_dim}" if config.head_dim == config.head_dim_v else f"{config.head_dim}/{config.head_dim_v}"
    parts += [f"D {dims}", config.dtype, config.direction]
    parts += [count(config.seq_q, "query token")] * study.keep_queries + ["causal"] * config.causal
    parts += [f"window {config.window[0]}, {config.window[1]}"] if config.window else []
    parts += [f"softcap {config.softcap:g}"] if config.softcap else []
    return ", ".join([*parts, count(study.threads, "thread")])


def exponent_text(growth: Growth | None) -> str:
    """Format an exponent with its interval ("1.94 [1.92, 1.95]"), or the reason why there is none."""
    if growth is None:
        return "too few lengths"
    if growth.high - growth.low > WIDEST:
        return "no power law"
    return f"{growth.exponent:.2f} [{growth.low:.2f}, {growth.high:.2f}]"


def model_text(fit: MemoryFit) -> str:
    """Return the memory extrapolated to the longest sequence, compared with the theory."""
    if fit.longest_measured_bytes is None or not fit.longest_theory_bytes:
        return "" if fit.growth is None or not fit.longest else "no fit"
    change = 100 * (fit.longest_measured_bytes / fit.longest_theory_bytes - 1)
    return f"{quantity(fit.longest_measured_bytes, 'bytes')} ({round(change, 1) + 0.0:+.1f} %)"


def reduction_of(study: MemoryStudy, backend: str) -> Reduction | None:
    """Return a backend's savings at the longest length also measured with standard attention."""
    return max((r for r in study.reductions if r.backend == backend), key=lambda r: r.length, default=None)


def _words() -> dict[str, Any]:
    """Return the functions used by both templates."""
    return {
        "describe": describe, "exponent_text": exponent_text, "model_text": model_text, "reduction_of": reduction_of
    }  # fmt: skip


def _chart(study: MemoryStudy, size: tuple[float, float]) -> Chart:
    """Return peak memory over length, both logarithmic: a power is a straight line whose slope is the exponent."""
    measured = [point for point in study.points if point.status == "measured"]
    traces = []
    for colour, fit in enumerate(study.fits):
        mine = [point for point in measured if point.backend == fit.backend]
        values = [ChartPoint(p.length, float(p.allocated_bytes), _title(p)) for p in mine]
        traces.append(ChartLine(fit.backend, colour, values))
    lengths = sorted({point.length for point in measured})
    return line_chart(
        traces,
        title="Peak memory against sequence length",
        description="; ".join(f"{fit.backend}: exponent {exponent_text(fit.growth)}" for fit in study.fits),
        unit="bytes",
        x_ticks=[(float(n), str(n)) for n in _spaced(lengths, 6 if size[0] < 600 else 16)],
        x_label="keys" if study.keep_queries else "tokens",
        x_log=True,
        size=size,
        y_axis=_byte_axis([float(point.allocated_bytes) for point in measured]),
        tick_text=lambda value: quantity(value, "bytes"),
    )


def _byte_axis(sizes: Sequence[float]) -> Axis | None:
    """Return a logarithmic scale with ticks at powers of two, about six of them; None without sizes."""
    if not sizes:
        return None
    low, high = min(sizes) / 1.25, max(sizes) * 1.25
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    return Axis(low, high, True, [2.0**n for n in range(first, last + 1, -(-(last - first + 1) // 6) or 1)])


def _spaced(lengths: Sequence[int], most: int) -> list[int]:
    """Return a limited number of the lengths, including the last one."""
    step = -(-len(lengths) // most) if lengths else 1
    return sorted(lengths[::-1][::step])


def _title(point: MemoryPoint) -> str:
    shares = f"{digits(point.scores_pct)} % scores" if point.theory.scores else "no scores kept"
    return f"{point.backend}, {point.length}: {quantity(point.allocated_bytes, 'bytes')} ({shares})"
