"""A verdict as text: one sentence, worst first, what is undecided openly second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.gate.verdict import ORDER, Entry, GateResult

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCALES = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
_SHOWN_IN_FULL = {"regression", "failed", "missing", "inconclusive", "broken", "improvement"}


def text(result: GateResult) -> str:
    """Return the verdict for a terminal or a log."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: GateResult) -> Iterator[str]:
    yield f"{result.verdict.upper()}: {result.sentence}"
    base, head = result.base.revision, result.head.revision
    yield f"base {base.short} {base.subject}"
    yield f"head {head.short} {head.subject}"
    counts = [f"{result.counts[status]} {status}" for status in ORDER if result.counts.get(status)]
    yield f"{', '.join(counts) or 'no benchmarks'} ({result.launches} processes, seed {result.seed})"
    for status in ORDER:
        entries = [entry for entry in result.entries if entry.status == status]
        if not entries:
            continue
        if status in _SHOWN_IN_FULL:
            yield ""
            yield f"{status}:"
            for entry in entries:
                yield from entry_lines(entry)
        else:
            yield ""
            yield f"{status}: {len(entries)}"
            for entry in entries:
                yield f"  {_short(entry)}"
    if result.notes:
        yield ""
        yield from (f"note: {note}" for note in result.notes)


def entry_lines(entry: Entry) -> Iterator[str]:
    """Give the lines of one entry: its name, then its numbers and the reason."""
    yield f"  {entry.label}"
    if entry.decision is not None and entry.base is not None and entry.head is not None:
        yield f"    {change(entry)}"
        yield f"    {entry.decision.reason}"
    elif entry.reason:
        yield f"    {entry.reason}"


def _short(entry: Entry) -> str:
    if entry.decision is not None and entry.base is not None and entry.head is not None:
        return f"{change(entry)}  {entry.label}"
    return f"{entry.label}{': ' + entry.reason if entry.reason else ''}"


def change(entry: Entry) -> str:
    """Return base -> head with the ratio and its interval."""
    decision = entry.decision
    assert decision is not None
    values = f"{quantity(entry.base, entry.unit)} -> {quantity(entry.head, entry.unit)}"
    high = "inf" if decision.ratio_high is None else f"{decision.ratio_high:.3f}"
    return f"{values}, x{decision.ratio:.3f} [{decision.ratio_low:.3f}, {high}] after {decision.rounds_used} rounds"


def quantity(value: float | None, unit: str) -> str:
    """Return a value with a readable unit."""
    if value is None:
        return "-"
    for factor, name in _SCALES.get(unit, ()):
        if value >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value:.4g} {unit}"
