"""Show a comparison on the terminal: the verdict, what changed on which architecture, its causes, what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.card import Card
from rocattn_profiling.base.console import stdout
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import Change, Comparison
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.verdict import (
    WORDS,
    CardRow,
    coverage,
    family_of,
    headline,
    rows_of,
    some_of,
    variant_of,
    worst,
)
from rocattn_profiling.kernels.work import work_factor
from rocattn_profiling.pages.render import count

if TYPE_CHECKING:
    from rich.text import Text

    from rocattn_profiling.base.card import Part

_MOST_ROWS, _MOST_KERNELS, _MOST_LINES, _MOST_OTHERS = 12, 2, 2, 2
_NAME = 34  # most characters of a variant or file name
_COLUMNS = {name: metric.column for name, metric in METRICS.items() if metric.column}
"""Metric of a finding -> column, most severe first. A narrow terminal drops columns from the end: first those in which
nothing got worse, then the others."""
_STYLES = {"worse": "bold red", "better": "green", "incomparable": "yellow", "missing": "yellow", "new": "", "note": ""}


def show(
    comparison: Comparison, audit: Audit, following: Sequence[tuple[str, str]], written: Path, *, notes: bool
) -> None:
    """Print the card on stdout.

    Args:
        comparison: The comparison with the base.
        audit: The current audit.
        following: Next steps: a keyword, and the advice or command.
        written: The file with the rest.
        notes: Whether to list changes without consequence one by one.
    """
    console = stdout()
    card = Card.of(console)
    rows = rows_of(comparison, audit)
    whole = comparison.coverage.whole
    gravest = rows[0].severity if rows else "better" if whole else "incomparable"
    card.add((headline(comparison, audit), f"bold {_STYLES[gravest]}".strip()), indent=4)
    for line in coverage(comparison):
        card.add((line, "dim"), indent=4)
    if rows:
        card.gap()
        _add_rows(card, rows, comparison, audit, written)
        card.gap()
        _add_causes(card, rows, comparison, written)
    if gaps := comparison.coverage.not_compared:
        card.gap()
        card.add("not compared:")
        for each in card.some(gaps, _MOST_ROWS, f"  and # more in {written}"):
            card.add(terminal(each.line), first="  ", indent=6)
    if notes and (said := comparison.of("note")):
        card.gap()
        card.add("without consequence:")
        for finding in said:
            card.add(terminal(finding.sentence), first="  ", indent=6)
    if rows and following:
        card.add(("next:", "bold"))
        for what, how in following:
            card.add(how, first=f"  {what:<8} ", indent=6)
    card.show(console)


def _add_rows(card: Card, rows: Sequence[CardRow], comparison: Comparison, audit: Audit, written: Path) -> None:
    """Add a table per kernel, with as many changed columns as fit."""
    changes = {variant_of(change): change for change in comparison.changes}
    known = {variant_of(facts): facts for facts in audit.kernels}
    total = Counter((family_of(facts), facts.arch) for facts in audit.kernels)
    total.update((problem.kernel.partition(" ")[0], problem.arch) for problem in audit.problems)
    tables: dict[str, list[CardRow]] = {}
    for row in card.some(rows, _MOST_ROWS, lambda rest: f"and {count(len(rest), 'more row')} in {written}"):
        tables.setdefault(row.kernel, []).append(row)
    for kernel, shown in tables.items():
        cells = [_cells(row, changes.get(row.variant), known.get(row.variant)) for row in shown]
        words = [
            f"{row.variants} of {max(total[kernel, row.arch], row.variants)} {WORDS[row.severity]}" for row in shown
        ]
        _add_table(card, kernel, shown, words, cells)


def _add_table(
    card: Card, kernel: str, rows: Sequence[CardRow], words: Sequence[str], cells: Sequence[dict[str, str]]
) -> None:
    about = [
        (row.arch, (word, _STYLES[row.severity]), _variant_name(row)) for row, word in zip(rows, words, strict=True)
    ]
    keys = [card.text((terminal(kernel, card.room // 2), "bold")), *card.rows(about, first=" ")]
    judged = [{_COLUMNS.get(finding.metric): finding.severity for finding in reversed(row.findings)} for row in rows]
    accused = {name for row in judged for name, severity in row.items() if severity == "worse"}
    order = [name for name in dict.fromkeys(_COLUMNS.values()) if any(row.get(name) for row in cells)]
    columns: dict[str, list[Part]] = {}

    def table() -> list[Text]:
        shown = [columns[name] for name in order if name in columns]
        return card.rows(list(zip(keys, *shown, strict=True)))

    for name in sorted(order, key=lambda name: name not in accused):
        styles = [_STYLES[of_row.get(name, "note")] for of_row in judged]
        columns[name] = [name, *zip((row.get(name, "") for row in cells), styles, strict=True)]
        if table()[0].cell_len > card.room:
            del columns[name]
    card.put(table())


def _variant_name(row: CardRow) -> str:
    """Return what distinguishes the variant: its types and sizes, or its file."""
    finding = row.findings[0]
    name = finding.file if finding.names_file else finding.kernel.removeprefix(row.kernel).strip(" _")
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def _cells(row: CardRow, change: Change | None, facts: KernelFacts | None) -> dict[str, str]:
    """Return the numbers of one row, by column."""
    cells = {
        _COLUMNS[finding.metric]: _arrow(finding.before, finding.after)
        for finding in reversed(row.findings)
        if finding.metric in _COLUMNS and finding.before != finding.after
    }
    if change is None:
        return cells
    before, after = change.before, change.after
    for name, old, new in (("VGPRs", before.vgprs, after.vgprs), ("LDS B", before.lds_bytes, after.lds_bytes)):
        if old != new:
            cells[name] = _arrow(old, new)
    if before.lost_wave_slots != after.lost_wave_slots and facts and facts.occupancy:
        slots = facts.occupancy.max_waves_per_simd
        cells["waves"] = _arrow(slots - (before.lost_wave_slots or 0), facts.occupancy.waves_per_simd)
    if "loop cycles" in cells and before.loop and after.loop and facts:
        factor = work_factor(before, after, division_known=bool(facts.variant))
        if expected := before.loop.cycles["all"] * factor:
            cells["loop cycles"] += f" {100 * (after.loop.cycles['all'] / expected - 1):+.1f} %"
    return cells


def _arrow(before: float | None, after: float | None) -> str:
    return " -> ".join("?" if value is None else f"{value:.7g}" for value in (before, after))


def _add_causes(card: Card, rows: Sequence[CardRow], comparison: Comparison, written: Path) -> None:
    """Add source changes of the worst kernels, their effects, and the costliest lines."""
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    for kernel in card.some(kernels, _MOST_KERNELS, lambda rest: f"{some_of(rest)}: in {written}"):
        row = worst([row for row in rows if row.kernel == kernel])
        _add_sources(card, row, comparison)
        finding = row.findings[0]
        card.add(f"{terminal(finding.kernel)} on {row.arch}: {terminal(finding.text)}", indent=4)
        for line in finding.lines[:_MOST_LINES]:
            card.add(card.cut(f"  {terminal(line)}"), wrap=False)
        worse_too = [other for other in row.findings[1:] if other.severity == finding.severity == "worse"]
        for other in card.some(worse_too, _MOST_OTHERS, f"  and # more in {written}"):
            card.add(card.cut(f"  {terminal(other.text)}"), wrap=False)
            for line in other.lines[:1]:
                card.add(card.cut(f"    {terminal(line)}"), wrap=False)


def _add_sources(card: Card, row: CardRow, comparison: Comparison) -> None:
    """Add the changes in a kernel's sources and in how it divides the problem."""
    finding = row.findings[0]
    changed = [source for source in comparison.sources if finding.file in source.kernels]
    for source in card.some(changed, _MOST_LINES, "changed: # more places in its sources"):
        card.add(card.cut(f"changed: {source.path}:{source.line}: {terminal(source.text)}"), wrap=False)
    for change in comparison.changes:
        if (
            variant_of(change) == row.variant
            and change.before.choices
            and change.before.choices != change.after.choices
        ):
            sides = [dict(word.split("=") for word in pin.choices.split()) for pin in (change.before, change.after)]
            pairs = {name: [side.get(name, "none") for side in sides] for name in {**sides[0], **sides[1]}}
            moved = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old != new)
            card.add(card.cut(f"changed: {moved} (rocattn/gpu/tiles.py)"), wrap=False)
