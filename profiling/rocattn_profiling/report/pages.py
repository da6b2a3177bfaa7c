"""Filling templates from views: the standalone report, the Markdown comment, and what all pages share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rocattn
from rocattn_profiling.measure.stats import ABOVE_CEILING
from rocattn_profiling.report import gate_view
from rocattn_profiling.report.bench_report import BASELINE, BenchReport, Group, Row, interval_text, speedup_text
from rocattn_profiling.report.history_charts import colour_of
from rocattn_profiling.report.quantities import digits, percent, quantity, short_date

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment
    from markupsafe import Markup

    from rocattn_profiling.gate.verdict import GateResult

PROJECT = "rocattn"
MARKDOWN_ROWS = 20
GENERATOR = '<meta name="generator" content="rocattn '
_MACHINE_WORDS = {"num_cpu": "cores", "ram": "memory", "os": "system", "arch": "architecture", "gfx": "target"}


def report_html(report: BenchReport | None, gate: GateResult | None, made_ms: int) -> str:
    """Return the standalone report: one file, without links to other pages."""
    shown = gate_view.view(gate) if gate else None
    if report is None:
        return standalone("gate.html.j2", "Gate report", made_ms, gate=shown)
    return standalone("bench.html.j2", "Bench report", made_ms, report=report, heading="Bench report", gate=shown)


def standalone(template: str, title: str, made_ms: int, **values: Any) -> str:
    """Return a template filled as a page of its own, without links to other pages."""
    common = {"links": [], "project": PROJECT, "version": rocattn.__version__, "made": moment(made_ms)}
    return render(template, title, root="", here="", **common, **values)


def report_markdown(report: BenchReport | None, gate: GateResult | None, rows: int = MARKDOWN_ROWS) -> str:
    """Return Markdown short enough for a comment: at most ``rows`` rows a table, and how many were left out."""
    shown = gate_view.view(gate) if gate else None
    worth = [row for row in shown.rows if row.status not in {"pass", "skipped", "ungated"}] if shown else []
    return markdown_text("report.md.j2", report=report, gate=shown, worth=worth, limit=rows, baseline=BASELINE)


def markdown_text(template: str, **values: Any) -> str:
    """Return a Markdown template filled, without runs of empty lines."""
    return re.sub(r"\n{3,}", "\n\n", environment().get_template(template).render(**values)).strip() + "\n"


def moment(milliseconds: int) -> str:
    """Return a time as people read it: 2026-11-20 09:30 UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def render(template: str, title: str, **values: Any) -> str:
    """Return a template's page; what it shows is in ``values``."""
    backends = values.get("backends", [])
    return (
        environment()
        .get_template(template)
        .render(title=title, line_colour=None, descriptions=_descriptions(), colours=backends, **values)
    )


@cache
def _descriptions() -> dict[str, str]:
    from rocattn_profiling.measure.module_workloads import WORKLOADS
    from rocattn_profiling.measure.workloads import GRIDS

    return {name: suite.description for name, suite in (GRIDS | WORKLOADS).items()}


@cache
def environment() -> Environment:
    """Return jinja2 with our templates and filters; HTML is escaped, Markdown by the filter ``md``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(("html.j2",), default_for_string=True, default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals["above_ceiling"] = ABOVE_CEILING
    made.filters |= {
        "quantity": quantity, "digits": digits, "day": short_date, "moment": moment, "speedup": speedup_text,
        "interval": interval_text,
        "by_config": by_config, "best_rate": best_rate, "worst_error": worst_error, "any_wrong": any_wrong,
        "md": escape_markdown, "breakable": breakable, "count": count, "slug": lambda text: re.sub(r"\W+", "-", text),
        "machine_word": lambda key: _MACHINE_WORDS.get(key, key), "machine_fact": machine_fact, "ceiling": ceiling,
        "of_ceiling": of_ceiling,
        "legend": lambda report: [(b, colour_of(b, report.backends)) for b in report.backends],
        "colour": colour_of, "percent": percent, "shorten": shorten, "share": share,
    }  # fmt: skip
    return made


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


def machine_fact(value: str, key: str) -> str:
    """Return a fact of machine.json as people read it; asv gives memory in bytes or kilobytes as text."""
    return quantity(float(value), "bytes") if key == "ram" and value.isdigit() and int(value) > 1 << 28 else value


def ceiling(name: str, value: float) -> str:
    """Return a measured limit in words ("gemm 0.09 TFLOP/s")."""
    stem, _, unit = name.rpartition("_")
    return f"{stem.replace('_', ' ')} {digits(value)} {'GB/s' if unit == 'gbps' else 'TFLOP/s'}"


def of_ceiling(pct: float | None) -> str:
    """Return a percentage of a measured limit, marked if it is above it ("84.1", "127 ?")."""
    return "" if pct is None else f"{digits(pct)}{' ?' if pct > 100 else ''}"


def share(part: float) -> str:
    """Return a share in percent, never rounded to nothing or to all ("0", "<0.01", "12.3")."""
    if not part:
        return "0"
    if part < 1e-4:
        return "<0.01"
    return digits(100 * part, 3) if part == 1 or part < 0.9995 else ">99.9"


def count(number: int, noun: str, many: str = "") -> str:
    """Return a count with its noun ("1 commit", "3 commits"); ``many`` is the plural where it is not noun + s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or f'{noun}s'}"


def shorten(text: str, most: int = 90) -> str:
    """Return a name that fits a table; kernels' names can have thousands of characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def breakable(text: str) -> Markup:
    """Return escaped text that may break after dots and underscores: benchmark names are long."""
    from markupsafe import Markup, escape

    # Entities hold neither of the two characters, so nothing escaped is torn.
    return Markup(re.sub(r"([._])(?=\w)", r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped in the same line


def escape_markdown(text: str) -> str:
    """Return text that Markdown and the HTML in it cannot read as markup, on one line."""
    plain = " ".join(str(text).split())
    return re.sub(
        r"([\\`*_{}\[\]()#+!|~@])", r"\\\1", plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
