"""The report on records and a verdict: one page of HTML, or Markdown for a comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.bench.page import prepare_templates
from rocattn_profiling.bench.report import BASELINE
from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.pages.render import markdown_text, standalone

if TYPE_CHECKING:
    from rocattn_profiling.bench.report import BenchReport
    from rocattn_profiling.gate.verdict import GateResult

MARKDOWN_ROWS = 20


def report_html(report: BenchReport | None, gate: GateResult | None, made_ms: int) -> str:
    """Return the standalone report: one file, without links to other pages."""
    prepare_templates()
    shown = gate_view.view(gate) if gate else None
    if report is None:
        return standalone("gate.html.j2", "Gate report", made_ms, gate=shown)
    return standalone("bench.html.j2", "Bench report", made_ms, report=report, heading="Bench report", gate=shown)


def report_markdown(report: BenchReport | None, gate: GateResult | None, rows: int = MARKDOWN_ROWS) -> str:
    """Return Markdown short enough for a comment: at most ``rows`` rows a table, and how many were left out."""
    prepare_templates()
    shown = gate_view.view(gate) if gate else None
    worth = [row for row in shown.rows if row.status not in {"pass", "skipped", "ungated"}] if shown else []
    return markdown_text("report.md.j2", report=report, gate=shown, worth=worth, limit=rows, baseline=BASELINE)
