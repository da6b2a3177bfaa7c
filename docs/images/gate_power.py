"""Charts of what the gate and other tools' rules found on the same recorded launches, and every recording's table.

The numbers are those that ``research/gate_pairs/table.py`` wrote; nothing is measured or computed anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDINGS = ROOT / "research" / "gate_pairs"
TABLE = ROOT / "docs" / "data" / "gate-rules.tsv"
CHANGES = (2, 3, 5, 10, 25)


@dataclass(frozen=True)
class Recording:
    """One recording: its file without the suffix, its machine, ``record.py --seed`` (0: unknown), its table's date."""

    name: str
    machine: str
    seed: int
    date: str
    use: str = "judging"

    def summary(self) -> dict[str, Any]:
        """Return what ``table.py`` wrote."""
        summary: dict[str, Any] = json.loads((RECORDINGS / f"{self.name}.json").read_text())
        return summary


ALL = (
    Recording("zen4_by_rounds", "Zen 4", 137, "2026-11-23"),
    Recording("zen4_quiet", "Zen 4", 89, "2026-11-22"),
    Recording("zen4_loaded", "Zen 4", 83, "2026-11-22"),
    Recording("zen4_crowded", "Zen 4", 97, "2026-11-23"),
    Recording("zen4_choosing", "Zen 4", 79, "2026-11-22", "choosing"),
    Recording("xeon_quiet", "Xeon", 53, "2026-11-22"),
    Recording("xeon_again", "Xeon", 73, "2026-11-22"),
    Recording("xeon_loaded", "Xeon", 71, "2026-11-22"),
    Recording("xeon_busy", "Xeon", 43, "2026-11-22"),
    Recording("xeon_choosing", "Xeon", 0, "2026-11-22", "choosing"),
    Recording("xeon_contended", "Xeon with shared cores", 107, "2026-11-23"),
    Recording("xeon_contended_choosing", "Xeon with shared cores", 101, "2026-11-23", "choosing"),
    Recording("unseen_quiet", "EPYC, no canary", 0, "2026-11-20"),
    Recording("unseen_light", "EPYC, no canary", 0, "2026-11-20"),
    Recording("unseen", "EPYC, no canary", 0, "2026-11-20"),
    Recording("choosing_quiet", "EPYC, no canary", 0, "2026-11-20", "choosing"),
    Recording("choosing_light", "EPYC, no canary", 0, "2026-11-20", "choosing"),
    Recording("choosing", "EPYC, no canary", 0, "2026-11-20", "choosing"),
)
COLUMNS = (
    "recording", "machine", "seed", "table_made", "used_for", "load_median", "load_max", "blocks",
    "rule", "rounds", "mean_rounds_unchanged", "unchanged_pairs", "false_alarms_pct", "red_pull_requests_pct",
    "pairs_per_change", *(f"found_plus_{change}_pct" for change in CHANGES), "called_the_opposite",
)  # fmt: skip


def share(rule: dict[str, Any], change: int) -> float:
    """Return the percentage of pairs with this change (0: unchanged) that a rule called a regression."""
    return float(rule["verdicts_pct"][str(change)].get("regression", 0.0))


def table() -> str:
    """Return every row of every recording as tab-separated values."""
    lines = [COLUMNS]
    for recording in ALL:
        summary = recording.summary()
        start = (
            recording.name, recording.machine, recording.seed or "", recording.date, recording.use,
            summary["load_median"], summary["load_max"], summary["blocks"],
        )  # fmt: skip
        lines += [
            (
                *start, rule["rule"], rule["rounds"], f"{rule['rounds_used']:.1f}", rule["verdicts_pct"]["0"]["pairs"],
                share(rule, 0), rule["red_prs_pct"], rule["verdicts_pct"]["10"]["pairs"],
                *(share(rule, change) for change in CHANGES), rule["sign_errors"],
            )
            for rule in summary["rules"]
        ]  # fmt: skip
    return "".join("\t".join(str(cell) for cell in line) + "\n" for line in lines)


# --- The chart ----------------------------------------------------------------------------------------------------

RULES = {  # as table.py names them -> as the chart does
    "rocattn gate": "rocattn gate",
    "rocattn gate, slow launches repeated": "… with repeats",
    "asv continuous (factor 1.1)": "asv, factor 1.1",
    "asv continuous (factor 1.05)": "asv, factor 1.05",
    "median more than 5 % up": "median up by 5 %",
    "pytest-benchmark min:5%": "pytest-bench. min",
    "pytest-benchmark mean:5%": "pytest-bench. mean",
    "pooled Mann-Whitney, p < 0.05": "Mann-Whitney",
}
WIDTH, LABELS, GAP, NUMBER = 416, 168, 8, 60  # pixels; text of 14 px is 12 px in a column of 358
ROW, BAR = 24, 14
STYLE = """\
.page{fill:#fff}text{font:14px system-ui,sans-serif;fill:#14181f}.dim{fill:#545d6b}.bold{font-weight:700}
.false{fill:#c2410c}.power{fill:#93b4d8}.ours .power{fill:#0b5cad}.rule{stroke:#d9dee6}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e8ecf1}.dim{fill:#a3adba}
.false{fill:#ff9a5c}.power{fill:#3d5f85}.ours .power{fill:#6cb0f5}.rule{stroke:#2e3641}}"""


def chart(recording: Recording) -> str:
    """Return bars of false alarms beside bars of what was found, a row for each rule, as SVG.

    +10 % after five rounds above, +5 % after up to twenty below.
    """
    summary = recording.summary()
    shown = {(rule["rule"], rule["rounds"]): rule for rule in summary["rules"] if rule["rule"] in RULES}
    most = max(share(rule, 0) for rule in shown.values())
    column = (WIDTH - LABELS - 2 * GAP) / 2
    parts = [
        _text(10, 24, recording.machine.replace("Xeon with", "Xeon,"), "bold"),
        *_legend(24, LABELS + GAP, LABELS + 2 * GAP + column),
    ]
    y = 38.0
    for rounds, change in ((5, 10), (20, 5)):
        of_block = [(name, shown[name, rounds]) for name in RULES if (name, rounds) in shown]
        parts.append(f'<path class="rule" d="M10 {y}H{WIDTH - 10}"/>')
        ours = shown["rocattn gate", rounds]["rounds_used"]
        used = "5 rounds" if rounds == 5 else f"up to 20 rounds (gate: {ours:.1f} on average)"
        parts.append(_text(10, y + 20, f"{change} % slower, {used}", "dim"))
        y += 30
        for name, rule in of_block:
            parts += _row(y, name, (share(rule, 0), most), share(rule, change), column)
            y += ROW
        y += 8
    height = round(y + 2)
    title = (
        f"False alarms and slowdowns found, by rule, on recorded launches ({recording.machine}, "
        f"seed {recording.seed}); the numbers are in docs/data/gate-rules.tsv"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "") -> str:
    name = f' class="{style}"' if style else ""
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{name}{side}>{escape(words)}</text>'


def _legend(y: float, *places: float) -> list[str]:
    return [
        part
        for x, style, words in zip(places, ("false", "power"), ("false alarms", "found"), strict=True)
        for part in (f'<rect class="{style}" x="{x:g}" y="{y - 11}" width="12" height="12"/>', _text(x + 17, y, words))
    ]


def _row(y: float, name: str, false: tuple[float, float], found: float, column: float) -> list[str]:
    """Return one rule's bars; ``false`` is its false alarms and the most of any rule, in percent."""
    longest, middle = column - NUMBER, y + BAR / 2 + 5
    ours = name.startswith("rocattn")
    parts = [f'<g class="{"ours" if ours else "other"}">', _text(10, middle, RULES[name], "bold" if ours else "")]
    for x, style, value, scale, number in (
        (LABELS + GAP, "false", false[0], false[1], f"{false[0]:.2f} %"),
        (LABELS + 2 * GAP + column, "power", found, 100.0, f"{found:.0f} %"),
    ):
        length = longest * value / scale
        parts.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{length:.1f}" height="{BAR}"/>')
        parts.append(_text(round(x + length + 5, 1), middle, number, "bold" if ours else ""))
    return [*parts, "</g>"]


_RECORDED = {recording.name: recording for recording in ALL}
PICTURES = {
    "gate-power.svg": lambda: chart(_RECORDED["zen4_by_rounds"]),
    "gate-power-busy.svg": lambda: chart(_RECORDED["xeon_busy"]),
    "gate-power-shared.svg": lambda: chart(_RECORDED["xeon_contended"]),
}
