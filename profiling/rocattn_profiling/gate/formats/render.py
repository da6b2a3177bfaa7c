"""A verdict as text, and the phrases shared by all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate.model import EXACT, ORDER, Cause, Entry, GateResult, NoiseSource

_SCALES = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
UNTOUCHED = "runs no changed code"
SUSPECT = "likely slower (nine in ten of those marked so are)"
_NAME = 160  # characters of a label, as in the comment; the JSON has it whole
_INDENT = 24  # most indentation shown of a changed line
MOST_CAUSES = 8
"""Causes shown per entry; the JSON has all."""
_WORDS = {
    "inconclusive": "undecided", "improvement": "improved", "failed": "fails on head", "missing": "missing on head",
    "unreached": "not reached in time", "broken": "broken on both sides", "void": "not compared",
    "ungated": "not judged", "waived": "accepted by a waiver",
}  # fmt: skip


def word(status: str, metric: str = "") -> str:
    """Return the status of an entry in plain words; for some statuses they depend on the metric."""
    if status == "regression":
        return "slower" if metric == "time" else "larger" if metric in {"mem", "peakmem", "track"} else "worse"
    return _WORDS.get(status, status)


def headline(result: GateResult) -> str:
    """Return the verdict's word in capitals."""
    return "UNDECIDED" if result.verdict == "inconclusive" else result.verdict.upper()


def suite_ratio(result: GateResult) -> str:
    """Return the ratio of the whole suite; if the canary's is the same, it was the machine rather than the code."""
    if not any(_is_compared(entry) for entry in result.entries):
        return "all benchmarks together: unknown, as none was compared"
    return f"all benchmarks together: {ratio(result.suite_shift)}; canary: {ratio(result.canary_shift)}"


def known_beforehand(entries: Sequence[Entry], source: NoiseSource) -> str:
    """Return in one line how much was known about the noise before the run, and from which source."""
    name = Path(source.path).name  # do not publish the machine's paths
    if source.why_not:
        return f"noise of earlier sessions: {source.why_not.replace(source.path, name) if name else source.why_not}"
    measured = [entry for entry in entries if _is_compared(entry)]
    known = [entry.noise for entry in measured if entry.noise is not None]
    sessions = span([noise.sessions for noise in known])
    about = f", {sessions} session{'' if sessions == '1' else 's'} each" if known else ""
    where = f" ({name})" if name else ""
    return f"noise of earlier sessions: known for {len(known)} of {len(measured)} benchmarks{about}{where}"


def _is_compared(entry: Entry) -> bool:
    """Whether the launches of both sides of a benchmark were compared."""
    return entry.decision is not None and entry.metric not in EXACT and not entry.decision.untouched


def span(numbers: Sequence[int]) -> str:
    """Return the range of some numbers."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


def counted(result: GateResult) -> str:
    """Return the number of entries per status, worst first."""
    return ", ".join(_counted(status, number) for status in ORDER if (number := result.counts.get(status, 0)))


def _counted(status: str, number: int) -> str:
    noun = status in {"regression", "improvement"}
    return f"{number} {'undecided' if status == 'inconclusive' else status}{'s' if noun and number > 1 else ''}"


def entry_lines(entry: Entry) -> Iterator[str]:
    """Yield the lines of one entry: its name, numbers, reasons, waiver, and causes."""
    yield f"  {terminal(title(entry), _NAME)}"
    lines = [change(entry), *reasons(entry)]
    yield from (f"    {terminal(line)}" for line in lines if line)
    if entry.suspect:
        yield f"    {SUSPECT}"
    if entry.rule:
        yield f"    rule: {terminal(entry.rule)}"
    if entry.waiver:
        yield f"    waived: {terminal(entry.waiver)}"
    for cause in entry.causes[:MOST_CAUSES]:
        place = f" ({terminal(where(cause))})" if where(cause) else ""
        yield f"    - {cause.kind}: {terminal(cause.text)}{place}"
        yield from (f"        {diff_line(line, terminal)}" for line in cause.diff)
    if more := len(entry.causes[MOST_CAUSES:]):
        yield f"    - {more} more"


def title(entry: Entry) -> str:
    """Return the label of an entry; for exact metrics also the metric and the architecture."""
    about = [part for part in (entry.metric, entry.arch) if part] if entry.metric in EXACT else []
    return f"{entry.label} [{', '.join(about)}]" if about else entry.label


def reasons(entry: Entry) -> list[str]:
    """Return why an entry has its status: the decision's reason, and the effect of waivers and thresholds."""
    decision = [entry.decision.reason] if entry.decision is not None else []
    return [reason for reason in dict.fromkeys([*decision, entry.reason]) if reason]


def why(entry: Entry) -> str:
    """Return an entry's reasons and most likely cause, on one line."""
    first = [cause_line(cause) for cause in entry.causes[:1]] if entry.metric not in EXACT else []
    return "; ".join([*reasons(entry), *first])


def cause_line(cause: Cause) -> str:
    """Return a cause with the first line that it added (or else removed), on one line."""
    changed = next((line for mark in "+-" for line in cause.diff if line[:1] == mark), "")
    return f"{cause.kind}: {cause.text}{f': `{changed[2:].strip()}`' if changed else ''}"


def where(cause: Cause) -> str:
    """Return a cause's location; empty if its text already names it."""
    if cause.location is None:
        return ""
    place = f"{cause.location.path}:{cause.location.line}"
    if cause.kind == "machine code" and cause.location.line == 1:  # only the kernel's file is known, not the line
        place = cause.location.path
    name = cause.location.path if cause.kind == "source" else place  # the text of a changed file also has the line
    return "" if name in cause.text else place


def diff_line(line: str, escape: Callable[[str], str]) -> str:
    """Return a line of a cause's diff, escaped; its indentation, which ``escape`` would drop, is kept."""
    if line[:1] not in {"+", "-", " "}:  # not a diff line, so not our text
        return escape(line)
    mark, rest = line[0], line[1:]
    indent = len(rest) - len(rest.lstrip(" "))
    return f"{mark}{' ' * min(indent, _INDENT)}{escape(rest)}"


def change(entry: Entry) -> str:
    """Return base -> head with the ratio and its interval, as far as known."""
    if entry.base is None or entry.head is None:
        return ""
    values = f"{quantity(entry.base, entry.unit)} -> {quantity(entry.head, entry.unit)}"
    decision = entry.decision
    if decision is None:
        return values
    if decision.untouched:
        return f"{values}, {UNTOUCHED}"
    if not decision.rounds_used:  # an exact metric has no interval
        return f"{values}, {ratio(decision.ratio)}"
    shown = f"{ratio(decision.ratio)} {interval(entry)}" if decision.has_ratio else "ratio unknown"
    return f"{values}, {shown} after {decision.rounds_used} round{'' if decision.rounds_used == 1 else 's'}"


def ratio(value: float) -> str:
    """Return a ratio with three decimals; above 1000, with three digits."""
    return f"x{_decimals(value)}"


def _decimals(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.3g}"


def interval(entry: Entry) -> str:
    """Return the 95 % confidence interval of the ratio; empty for exact metrics, and without a decision or a ratio."""
    decision = entry.decision
    if decision is None or not decision.rounds_used or not decision.has_ratio:
        return ""
    high = "inf" if decision.ratio_high is None else _decimals(decision.ratio_high)
    return f"[{_decimals(decision.ratio_low)}, {high}]"


def quantity(value: float | None, unit: str) -> str:
    """Return a value with a readable unit."""
    if value is None:
        return "-"
    for factor, name in _SCALES.get(unit, ()):
        if value >= 0.9995 * factor:  # compares after rounding: 999.99 us is 1 ms
            return f"{_digits(value / factor, 3)} {name}"
    return f"{_digits(value, 4)} {unit}".rstrip()


def _digits(value: float, significant: int) -> str:
    """Return a number with the given significant digits; without an exponent if its integer digits are shorter."""
    return f"{value:.0f}" if 10**significant - 0.5 <= value < 1e15 else f"{value:.{significant}g}"
