"""A comparison on the terminal: the verdict, what moved on which architecture, what did it, what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from rocattn.gpu.arch import TESTED
from rocattn_profiling.base.card import Card, listed
from rocattn_profiling.base.console import stdout
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import SEVERITIES, Change, Comparison, Finding, work_factor
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.pages.render import count

if TYPE_CHECKING:
    from rich.text import Text

    from rocattn_profiling.base.card import Part

_MOST_ROWS, _MOST_KERNELS, _MOST_NAMED, _MOST_LINES, _MOST_OTHERS = 12, 2, 3, 2, 2
_NAME = 34  # characters of a variant or a file
_COLUMNS = {name: metric.column for name, metric in METRICS.items() if metric.column}
"""Columns by the metric of a finding, the gravest first: on a narrow terminal the last of those in which nothing got
worse are left out, then the last of the others."""
_GRAVITY = list(METRICS)
_STYLES = {"worse": "bold red", "better": "green", "incomparable": "yellow", "missing": "yellow", "new": "", "note": ""}
WORDS = {
    "worse": "worse", "better": "better", "incomparable": "not comparable", "missing": "missing", "new": "new",
    "note": "changed",
}  # fmt: skip
"""Severities, as people read them."""

Variant = tuple[str, str, str]
"""Architecture, name and file of one compilation."""


class CardRow(NamedTuple):
    """What happened to the variants of a kernel on one architecture.

    Attributes:
        kernel: Its name without the variant; kernels of one of our sources are one.
        arch: The architecture.
        severity: Of the gravest finding.
        findings: Of the variant with the gravest one, the gravest first.
        variants: How many have this severity.
    """

    kernel: str
    arch: str
    severity: str
    findings: list[Finding]
    variants: int

    @property
    def variant(self) -> Variant:
        """The variant that stands for all."""
        return _variant(self.findings[0])


def rows_of(comparison: Comparison, audit: Audit, *, notes: bool = False) -> list[CardRow]:
    """Return a row for each kernel, architecture and severity, the gravest first.

    Args:
        comparison: What differs.
        audit: Of now, for the names of kernels.
        notes: Whether changes without consequence get rows as well.
    """
    names = {(facts.name, facts.file): _family(facts) for facts in audit.kernels}
    by_variant: dict[Variant, list[Finding]] = {}
    for finding in comparison.findings:
        by_variant.setdefault(_variant(finding), []).append(finding)
    groups: dict[tuple[str, str, str], list[list[Finding]]] = {}
    for findings in by_variant.values():
        findings.sort(key=_gravity)
        severity, name = findings[0].severity, findings[0].kernel
        if notes or severity != "note":
            family = names.get((name, findings[0].file), name.partition(" ")[0])
            groups.setdefault((family, findings[0].arch, severity), []).append(findings)
    rows = [
        CardRow(*key, findings=min(variants, key=lambda findings: _gravity(findings[0])), variants=len(variants))
        for key, variants in groups.items()
    ]
    worst: dict[str, tuple[int, int, float]] = {}
    for row in rows:
        worst[row.kernel] = min(worst.get(row.kernel, (99, 0, 0.0)), _gravity(row.findings[0]))
    return sorted(rows, key=lambda row: (worst[row.kernel], row.kernel, _place(row.arch), _gravity(row.findings[0])))


def _family(facts: KernelFacts) -> str:
    """Return the name under which a kernel is counted: what one source of ours makes shares its causes."""
    source = PurePath(facts.file)
    return source.stem if source.suffix == ".hip" and facts.kernel.startswith(source.stem) else facts.kernel


def _variant(of: Finding | Change | KernelFacts) -> Variant:
    return of.arch, getattr(of, "name", "") or of.kernel, of.file


def _gravity(finding: Finding) -> tuple[int, int, float]:
    """Return a key that sorts the gravest first: what it means, what it is about, how much it is."""
    before, after = finding.before or 0, finding.after or 0
    return SEVERITIES.index(finding.severity), _GRAVITY.index(finding.metric), -abs(after - before) / (before or 1)


def _place(arch: str) -> tuple[int, str]:
    return (TESTED.index(arch) if arch in TESTED else len(TESTED)), arch


def headline(comparison: Comparison, audit: Audit) -> str:
    """Return the verdict in one line: what was found, and what was not compared."""
    gaps = comparison.coverage.gaps()
    return "; ".join([_verdict(comparison, audit), *([gaps] if gaps else [])])


def _verdict(comparison: Comparison, audit: Audit) -> str:
    rows = rows_of(comparison, audit)
    if not rows:
        whole = comparison.coverage.whole
        return f"no kernel got worse or better{'' if whole else ' in what was compared'}"
    archs = sorted({facts.arch for facts in audit.kernels} | {row.arch for row in rows})
    kernels = {severity: list(dict.fromkeys(r.kernel for r in rows if r.severity == severity)) for severity in WORDS}
    gravest = next(severity for severity in WORDS if kernels[severity])
    parts = [f"{len(kernels[gravest])} kernel{'s' * (len(kernels[gravest]) > 1)} {WORDS[gravest]}"]
    on = {row.arch for row in rows if row.severity == gravest}
    if len(archs) == 1:
        parts[0] += f" on {archs[0]}"
    else:
        parts[0] += f" on {len(on)} of {len(archs)} architectures"
    parts += [f"{len(named)} {WORDS[name]}" for name, named in kernels.items() if named and name != gravest]
    return f"{', '.join(parts)}: {_some(kernels[gravest])}"


def counts(comparison: Comparison) -> str:
    """Return what was compared with what, and how many variants did not change."""
    gravest: dict[Variant, int] = {}
    for finding in comparison.findings:
        place = SEVERITIES.index(finding.severity)
        gravest[_variant(finding)] = min(gravest.get(_variant(finding), place), place)
    number = Counter(SEVERITIES[place] for place in gravest.values())
    only_notes = number.pop("note", 0)
    parts = [f"{number[severity]} {WORDS[severity]}" for severity in SEVERITIES if number[severity]]
    parts += [f"{only_notes} changed without consequence"] if only_notes else []
    parts += [f"{comparison.unchanged} unchanged"]
    compared = count(comparison.compared, "variant")
    return f"{compared} of {comparison.head} against {comparison.base}: {', '.join(parts)}"


def coverage(comparison: Comparison) -> list[str]:
    """Return `counts`, and how many variants were not compiled, since they cannot differ."""
    if not comparison.alike:
        return [counts(comparison)]
    alike = f"{count(comparison.alike, 'variant')} with the same sources and macros as in {comparison.base}"
    looked_at = bool(comparison.compared or comparison.findings)
    return [*([counts(comparison)] if looked_at else []), f"{alike}: not compiled"]


def show(
    comparison: Comparison, audit: Audit, following: Sequence[tuple[str, str]], written: Path, *, notes: bool
) -> None:
    """Print the card on stdout.

    Args:
        comparison: With what was before.
        audit: Of now.
        following: What to do next: a word for what it is, and the advice or command.
        written: The file that has the rest.
        notes: Whether to print changes without consequence one by one.
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
    """Add a table for each kernel, with the columns that moved in it, as many as there is room for."""
    changes = {_variant(change): change for change in comparison.changes}
    known = {_variant(facts): facts for facts in audit.kernels}
    total = Counter((_family(facts), facts.arch) for facts in audit.kernels)
    total.update((problem.kernel.partition(" ")[0], problem.arch) for problem in audit.problems)
    tables: dict[str, list[CardRow]] = {}
    for row in card.some(rows, _MOST_ROWS, lambda rest: f"and {count(len(rest), 'more row')} in {written}"):
        tables.setdefault(row.kernel, []).append(row)
    for kernel, shown in tables.items():
        cells = [_cells(row, changes.get(row.variant), known.get(row.variant)) for row in shown]
        words = [f"{row.variants} of {total[kernel, row.arch]} {WORDS[row.severity]}" for row in shown]
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
    """Return what tells the shown variant from the kernel's others: its types and sizes, or its file."""
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
    """Add for the gravest kernels what changed in the source, and what that did, with the lines that pay for it."""
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    for kernel in card.some(kernels, _MOST_KERNELS, lambda rest: f"{_some(rest)}: in {written}"):
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


def worst(rows: Sequence[CardRow]) -> CardRow:
    """Return the row with the gravest finding."""
    return min(rows, key=lambda row: _gravity(row.findings[0]))


def _add_sources(card: Card, row: CardRow, comparison: Comparison) -> None:
    """Add what changed in the sources of a kernel, and in how it divides the problem."""
    finding = row.findings[0]
    changed = [source for source in comparison.sources if finding.file in source.kernels]
    for source in card.some(changed, _MOST_LINES, "changed: # more places in its sources"):
        card.add(card.cut(f"changed: {source.path}:{source.line}: {terminal(source.text)}"), wrap=False)
    for change in comparison.changes:
        if _variant(change) == row.variant and change.before.choices and change.before.choices != change.after.choices:
            sides = [dict(word.split("=") for word in pin.choices.split()) for pin in (change.before, change.after)]
            pairs = {name: [side.get(name, "none") for side in sides] for name in {**sides[0], **sides[1]}}
            moved = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old != new)
            card.add(card.cut(f"changed: {moved} (rocattn/gpu/tiles.py)"), wrap=False)


def _some(names: Sequence[str]) -> str:
    return listed([terminal(name, 80) for name in names], _MOST_NAMED)
