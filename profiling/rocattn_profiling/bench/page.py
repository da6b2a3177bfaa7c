"""How templates show records of a bench: filters for ``bench_tables.html.j2`` and for whoever shows such records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocattn_profiling.bench.report import BenchReport, Group, Row, interval_text, speedup_text
from rocattn_profiling.measure.stats import ABOVE_CEILING
from rocattn_profiling.pages.charts import colour_of
from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.pages.render import add_filters
from rocattn_profiling.workloads.grids import GRIDS
from rocattn_profiling.workloads.modules import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def by_config(group: Group) -> list[tuple[str, dict[str, Row]]]:
    """Return (label, rows by backend) in the group's order."""
    found: dict[str, dict[str, Row]] = {}
    for row in group.rows:
        found.setdefault(row.record.label, {})[row.record.backend] = row
    return list(found.items())


def best_rate(rows: Mapping[str, Row]) -> str:
    """Return the highest rate of exact FLOPs among backends."""
    return quantity(max(row.summary.tflops for row in rows.values()) * 1e12, "FLOP/s")


def worst_error(rows: Mapping[str, Row]) -> str:
    """Return the largest error as a multiple of the naive program's; "exact" where neither errs."""
    if any(row.record.check and row.record.check.not_finite for row in rows.values()):
        return "NaN or inf"
    ratios = [ratio for row in rows.values() if (ratio := row.error_ratio) is not None]
    if ratios:
        return f"{digits(max(ratios), 2)}x"
    return "exact" if any(row.record.check for row in rows.values()) else "not checked"


def any_wrong(rows: Mapping[str, Row]) -> bool:
    """Whether an output broke the accuracy rule."""
    return any(row.wrong for row in rows.values())


def ceiling(name: str, value: float) -> str:
    """Return a measured limit in words ("gemm 0.09 TFLOP/s")."""
    stem, _, unit = name.rpartition("_")
    return f"{stem.replace('_', ' ')} {digits(value)} {'GB/s' if unit == 'gbps' else 'TFLOP/s'}"


def of_ceiling(pct: float | None) -> str:
    """Return a percentage of a measured limit, marked if it is above it ("84.1", "127 ?")."""
    return "" if pct is None else f"{digits(pct)}{' ?' if pct > 100 else ''}"


def _legend(report: BenchReport) -> list[tuple[str, int]]:
    return [(backend, colour_of(backend, report.backends)) for backend in report.backends]


def prepare_templates() -> None:
    """Give templates the filters for records."""
    filters: dict[str, Callable[..., Any]] = {
        "speedup": speedup_text, "interval": interval_text, "by_config": by_config, "best_rate": best_rate,
        "worst_error": worst_error, "any_wrong": any_wrong, "ceiling": ceiling, "of_ceiling": of_ceiling,
        "legend": _legend,
    }  # fmt: skip
    descriptions = {name: suite.description for name, suite in (GRIDS | WORKLOADS).items()}
    add_filters(filters, above_ceiling=ABOVE_CEILING, descriptions=descriptions)
