"""Present audits: a table on the terminal, and the complete results as Markdown and JSON files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path

from rocattn_profiling.base.card import Card
from rocattn_profiling.base.console import print_table, say, stderr
from rocattn_profiling.base.files import write_together
from rocattn_profiling.base.markup import code, markdown
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import Comparison, Finding
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.metrics import METRICS, STRUCTURAL
from rocattn_profiling.kernels.model.cache_lines import CacheLines
from rocattn_profiling.kernels.model.cost import LoopCost
from rocattn_profiling.kernels.model.lds import LdsConflicts
from rocattn_profiling.kernels.model.occupancy import Occupancy
from rocattn_profiling.kernels.model.schedule import Schedule
from rocattn_profiling.kernels.verdict import WORDS, Variant, coverage, headline

AUDIT, MARKDOWN, COMPARISON = "audit.json", "audit.md", "comparison.json"
_MOST_ROWS = 60
_MOST_TEXT = 4000  # most characters of a name in the file
_KEYS = ("kernel", "arch")  # with several files, the file is a key, too
_RESOURCES = (
    "VGPRs", "AGPRs", "SGPRs", "spills", "scratch B", "LDS B", "waves", "bound by", "cycles",
    "matrix %", "issue bound %", "code B",
)  # fmt: skip
_SUMMARY = ("kernel", "arch", "variants", "VGPRs", "spill", "scratch", "LDS B", "waves", "bound by", "code B")
_ORDER = (
    "read x", "write x", "barriers", "lines x", "load-wait", "in flight", "read-wait", "FLOP/B", "products",
    "overlap %", "run", "bare waits",
)  # fmt: skip
_LEGEND = {metric.heading: metric.legend for metric in METRICS.values() if metric.legend}
"""Column -> meaning, where its name does not say it."""
_TITLES = WORDS | {"note": "without consequence"}
_STALE = {
    "better": "better: pin it with `rocattn kernels audit --write-pins`, or a later regression can hide in the slack",
    "new": "new: pin it with --write-pins",
    "missing": "missing: update the pins with --write-pins",
}


def for_people(audit: Audit, comparison: Comparison | None) -> tuple[Audit, Comparison | None]:
    """Return both with symbols demangled, as far as an installed demangler can."""
    import msgspec

    from rocattn_profiling.kernels.read.cxx_names import readable

    findings = comparison.findings if comparison else []
    names = readable([*(facts.kernel for facts in audit.kernels), *(finding.kernel for finding in findings)])
    if not names:
        return audit, comparison
    kernels = [msgspec.structs.replace(facts, kernel=names.get(facts.kernel, facts.kernel)) for facts in audit.kernels]
    audit = msgspec.structs.replace(audit, kernels=kernels)
    if comparison is not None:
        moved, changes = (
            [msgspec.structs.replace(symbol, kernel=names.get(symbol.kernel, symbol.kernel)) for symbol in of]
            for of in (findings, comparison.changes)
        )
        comparison = msgspec.structs.replace(comparison, findings=moved, changes=changes)
    return audit, comparison


def show_table(audit: Audit, written: Path, *, lines: bool, files: bool, everything: bool = False) -> None:
    """Print the kernels, or a summary if there are many; then the unknown facts, each line once.

    Args:
        audit: The kernels.
        written: The file that has every kernel.
        lines: Whether to show the costliest source lines of the hot loops.
        files: Whether kernels must be distinguished by file.
        everything: Whether to also print the columns on how the code is built.
    """
    if len(audit.kernels) <= _MOST_ROWS:
        hidden = frozenset[str]() if everything else STRUCTURAL
        resources = _columns(_RESOURCES, files=files), _resource_rows(audit, files=files)
        order = _columns(_ORDER, files=files), _order_rows(audit.kernels, files=files)
        for title, columns, rows in (f"audit of {audit.subject}", *resources), ("order of the hot loops", *order):
            if rows:
                _show(title, columns, rows, hidden, keys=len(_KEYS) + files)
    else:
        print_table(f"audit of {audit.subject}", _SUMMARY, list(_summary_rows(audit.kernels)), keys=len(_KEYS))
        say(f"each line covers several variants, smallest to largest; all kernels are in {written}")
    show_remarks(audit, lines=lines, files=files)


def _show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], hidden: Collection[str], *, keys: int
) -> None:
    """Print a table without some columns, and the legend of the others."""
    kept = [name not in hidden for name in columns]
    columns, *rows = (list(compress(row, kept)) for row in (columns, *rows))
    print_table(title, columns, rows, keys=keys)
    _show_legend(columns, rows)


def _show_legend(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console = stderr()
    legend = Card.of(console)
    for meaning in _legend(columns, rows):
        legend.add(meaning, indent=4)
    legend.show(console)


def _legend(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the legends of columns that have a value, one line per column."""
    filled = [name for name, *cells in zip(columns, *rows, strict=True) if any(cell not in {"", "0"} for cell in cells)]
    return [f"{name}: {_LEGEND[name]}" for name in filled if name in _LEGEND]


def _order_rows(kernels: Sequence[KernelFacts], *, files: bool) -> list[list[str]]:
    """Return the rows of kernels with products or loads in a loop; ranked if they come from several files."""
    known = [facts for facts in kernels if facts.loop and facts.loop.schedule]
    if files:
        known.sort(key=_rank, reverse=True)
    return [
        [*_keys(facts, files=files), *_order_row(facts.loop, facts.loop.schedule)]
        for facts in known
        if facts.loop and facts.loop.schedule
        if facts.loop.matrix_flops or (facts.loop.has_loop and facts.loop.schedule.loads_in_flight)
    ]


def _rank(facts: KernelFacts) -> tuple[float, float]:
    """Return the sort key that matched measured speeds: products between waits, then own overlap."""
    schedule = facts.loop.schedule if facts.loop else None
    return (schedule.run or 0, schedule.own_overlap_pct or 0) if schedule else (0, 0)


def _order_row(loop: LoopCost, schedule: Schedule) -> list[str]:
    waits = f"{schedule.bare_read_waits}/{schedule.read_waits}" if schedule.read_waits and loop.matrix_flops else ""
    return [
        *_conflicts(loop.lds), str(loop.barriers), _lines(loop.cache_lines), _cell(schedule.load_distance, 3),
        _cell(schedule.loads_in_flight), _cell(schedule.read_distance, 3),
        _cell(loop.flops_per_global_byte if loop.matrix_flops else None, 4), _cell(schedule.products or None),
        _cell(schedule.own_overlap_pct, 3), _cell(schedule.run, 3), waits,
    ]  # fmt: skip


def _lines(lines: CacheLines | None) -> str:
    return _factor(lines.accesses, lines.factor, "", all_known=not lines.unknown) if lines else ""


def _conflicts(lds: LdsConflicts | None) -> tuple[str, str]:
    """Return the factors of reads and writes, marked where assumed or unknown."""
    if lds is None:
        return "", ""
    sides = ((lds.reads, lds.read_factor, lds.read_basis), (lds.writes, lds.write_factor, lds.write_basis))
    read, write = (_factor(*side, all_known=not lds.unknown) for side in sides)
    return read, write


def _factor(accesses: int, factor: float | None, basis: str, *, all_known: bool) -> str:
    if not accesses or factor is None:
        return "?" if accesses else ""
    return f"{'~' if basis == 'assumed' else ''}{factor:.3g}{'' if all_known else '?'}"


def show_remarks(audit: Audit, variants: Collection[Variant] | None = None, *, lines: bool, files: bool) -> None:
    """Print the source lines of hot loops if requested, then the unknown facts, each line once.

    Args:
        audit: The current audit.
        variants: Kernels to show; None for all.
        lines: Whether to show the costliest source lines of their hot loops.
        files: Whether kernels must be distinguished by file.
    """
    kernels = [facts for facts in audit.kernels if variants is None or (facts.arch, facts.name, facts.file) in variants]
    if lines:
        for facts in kernels:
            for line in _loop_lines(facts, named=files):
                say(line)
    said: dict[tuple[str, str], list[str]] = {}
    for facts in kernels:
        for about in _unsaid(facts):
            said.setdefault(about, []).append(facts.name)
    for (what, line), names in said.items():
        whose = "" if len(names) == len(kernels) else f" of {names[0] if len(names) == 1 else f'{len(names)} kernels'}"
        say(f"{what}{whose}: {line}")


def _unsaid(facts: KernelFacts) -> Iterator[tuple[str, str]]:
    """Yield (kind, line): unknown facts of a kernel, and what its cycles leave out."""
    for gap in facts.gaps:
        yield "not known", gap
    if facts.loop:
        for note in facts.loop.gaps:
            yield "cycles", note


def _columns(columns: Sequence[str], *, files: bool) -> list[str]:
    """Return the columns of a table, keys first."""
    return [*_KEYS, *(["file"] if files else []), *columns]


def _keys(facts: KernelFacts, *, files: bool) -> list[str]:
    return [facts.name, facts.arch, *([facts.file] if files else [])]


def _resource_rows(audit: Audit, *, files: bool) -> list[list[str]]:
    return [[*_keys(facts, files=files), *resources(facts)] for facts in audit.kernels]


def resources(facts: KernelFacts) -> list[str]:
    """Return the cells of one kernel."""
    loop, waves = facts.loop, facts.occupancy
    vgprs, sgprs = _said(facts, "vgprs", facts.vgprs), _said(facts, "sgprs", facts.sgprs)
    scratch, lds = _said(facts, "scratch_bytes", facts.scratch_bytes), _said(facts, "lds_bytes", facts.lds_bytes)
    spills = _said(facts, "vgpr_spills", facts.spills.vgprs)
    spills += f" + {facts.spills.sgprs} SGPR" if facts.spills.sgprs else ""
    return [
        vgprs, _said(facts, "agprs", facts.agprs), sgprs, spills, scratch, lds,
        f"{waves.waves_per_simd:g}/{waves.max_waves_per_simd}" if waves else "?",
        ", ".join(_binding(waves)) if waves else "?", _cell(loop.issue_cycles if loop else None),
        _cell(loop.matrix_share_pct if loop and loop.matrix_flops else None, 3),
        _cell(loop.issue_bound_pct if loop else None, 3), str(facts.code_bytes or "?"),
    ]  # fmt: skip


def _said(facts: KernelFacts, name: str, value: int) -> str:
    return str(value) if value or facts.says(name) else "?"


def _binding(waves: Occupancy) -> tuple[str, ...]:
    """Return the binding limits: only the wave slots if all are full."""
    return ("wave slots",) if waves.binding.name == "wave slots" else waves.bound_by


def _cell(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _summary_rows(kernels: Iterable[KernelFacts]) -> Iterator[list[str]]:
    groups: dict[tuple[str, str], list[KernelFacts]] = {}
    for facts in kernels:
        groups.setdefault((facts.kernel, facts.arch), []).append(facts)
    for (kernel, arch), of_kernel in sorted(groups.items()):
        waves = [facts.occupancy for facts in of_kernel if facts.occupancy]
        bound = Counter(name for occupancy in waves for name in _binding(occupancy))
        yield [
            kernel, arch, str(len(of_kernel)), _span(facts.vgprs for facts in of_kernel),
            str(sum(facts.spills.vgprs > 0 for facts in of_kernel)),
            str(sum(facts.scratch_bytes > 0 for facts in of_kernel)), _span(facts.lds_bytes for facts in of_kernel),
            _span(occupancy.waves_per_simd for occupancy in waves), ", ".join(name for name, _ in bound.most_common()),
            _span(facts.code_bytes for facts in of_kernel),
        ]  # fmt: skip


def _span(values: Iterable[float]) -> str:
    distinct = sorted(set(values))
    if not distinct:
        return "?"
    return f"{distinct[0]:g}" if len(distinct) == 1 else f"{distinct[0]:g}-{distinct[-1]:g}"


def _loop_lines(facts: KernelFacts, *, named: bool) -> Iterator[str]:
    from rocattn_profiling.kernels.source_lines import lines_of_loop

    lines = lines_of_loop(facts.loop)
    if lines:
        yield f"{facts.name} {facts.arch}{f' ({facts.file})' if named else ''}:"
        yield from (f"  {line}" for line in lines)


def _groups(comparison: Comparison) -> Iterator[tuple[str, list[Finding]]]:
    for severity in _TITLES:
        findings = [finding for finding in comparison.findings if finding.severity == severity]
        if findings:
            yield severity, findings


def _title(severity: str, *, pinned: bool) -> str:
    return _STALE.get(severity, _TITLES[severity]) if pinned else _TITLES[severity]


def write(
    out: Path, audit: Audit, comparison: Comparison | None, readable: tuple[Audit, Comparison | None],
    *, pinned: bool, files: bool,
) -> None:  # fmt: skip
    """Write the audit and the comparison for programs, and both, with readable names, as Markdown.

    Raises:
        RocattnError: When the folder cannot be written to.
    """
    import msgspec

    def as_json(value: object) -> str:
        return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"

    texts = {out / AUDIT: as_json(audit)}
    if comparison is not None:
        texts[out / COMPARISON] = as_json(comparison)
    write_together(texts | {out / MARKDOWN: _markdown(*readable, pinned=pinned, files=files)})


def _markdown(audit: Audit, comparison: Comparison | None, *, pinned: bool, files: bool) -> str:
    """Return everything as Markdown: changes first, then every kernel."""
    lines = ["# Audit of the machine code", ""]
    if comparison is not None:
        lines += [f"**{_escaped(headline(comparison, audit))}**", ""]
        lines += [part for line in coverage(comparison) for part in (_escaped(line), "")]
        for severity, findings in _groups(comparison):
            lines += [f"## {_title(severity, pinned=pinned).capitalize()}", ""]
            for finding in findings:
                lines.append(f"- {_escaped(finding.sentence)}")
                lines += [f"  - {code(line, _MOST_TEXT)}" for line in finding.lines]
            lines.append("")
        if gaps := comparison.coverage.not_compared:
            lines += ["## Not compared", "", *(f"- {_escaped(each.line)}" for each in gaps), ""]
    lines += [f"## {len(audit.kernels)} kernels of {_escaped(audit.subject)}", ""]
    lines += [f"Compiled by {_escaped(name) or 'an unknown compiler'}." for name in audit.compilers]
    if rows := _resource_rows(audit, files=files):
        lines += _with_legend(_columns(_RESOURCES, files=files), rows)
    if rows := _order_rows(audit.kernels, files=files):
        lines += ["", "## Order of the hot loops", *_with_legend(_columns(_ORDER, files=files), rows)]
    unknown = [
        f"{facts.name}: {'cycles: ' * (what == 'cycles')}{line}"
        for facts in audit.kernels
        for what, line in _unsaid(facts)
    ]
    unknown += [problem.line for problem in audit.problems]
    if unknown:
        lines += ["", "## Not known", "", *(f"- {_escaped(line)}" for line in dict.fromkeys(unknown))]
    return "\n".join(lines) + "\n"


def _with_legend(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", *(f"- {meaning}" for meaning in _legend(columns, rows)), "", *_table(columns, rows)]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head = [_cells(columns), _cells("-" if name in {"kernel", "arch", "file"} else "-:" for name in columns)]
    return head + [_cells(map(_escaped, row)) for row in rows]


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Escape Markdown in a name: C++ symbols are full of it, and a code object may come from anyone."""
    return markdown(text, _MOST_TEXT)
