"""The first lines of a profile report: what bounds its kernels, what to measure next, and what became slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.pages.quantities import percent, quantity
from rocattn_profiling.pages.render import shorten
from rocattn_profiling.profile.report.hot_spots import ON_TERMINAL
from rocattn_profiling.profile.report.verdict import BOUND, COLLECT, FAR, IDLE, SHORT

if TYPE_CHECKING:
    from rocattn_profiling.profile.report.compare import KernelPair
    from rocattn_profiling.profile.report.report import KernelProfile, ProfileReport
    from rocattn_profiling.profile.report.verdict import Verdict


KERNELS = 5
"""Number of lines for kernels, or groups of them with the same verdict."""
ALSO = 2
"""Number of lines for other findings."""
CHANGES = 3
"""Number of lines for the kernels of a comparison."""
MOVED = 5.0
"""Percentage points from which a limit's share counts as changed."""
_RUNTIME = 0.1  # part of all time from which the runtime's own kernels have a line
_LONG = 0.2  # part of all time from which a kernel has a line of its own
_OF_MANY = {
    IDLE: "fewer blocks or waves than the GPU has units for them; split the work further, or launch fewer kernels",
    SHORT: "so short that starting them costs about as much; fuse them or launch them by a graph",
}


@dataclass(frozen=True)
class SummaryLine:
    """The verdict on one kernel, or on several that have the same.

    Attributes:
        numbers: The kernels' numbers in the tables.
        who: Which kernels, with their share of the time.
        text: The verdict.
        gain: Upper bound of the gain in words; "" if the verdict has none.
    """

    numbers: tuple[int, ...]
    who: str
    text: str
    gain: str


@dataclass(frozen=True)
class ReportSummary:
    """The first lines of a report.

    Attributes:
        lines: The verdicts, those of the longest kernels first; never empty without `why_none`.
        why_none: Why there is no verdict, or "".
        runtime: The share of the HIP runtime's own kernels, or "".
        more: How many more kernels there are, or "".
        also: Other findings, the largest gain first.
        commands: What to run next.
    """

    lines: list[SummaryLine]
    why_none: str
    runtime: str
    more: str
    also: list[str]
    commands: list[str]


def summarise(report: ProfileReport) -> ReportSummary:
    """Summarise what bounds the kernels of a report, in descending order of time."""
    if report.per != "kernel":
        return ReportSummary([], "no verdict: those are of kernels, not of single dispatches", "", "", [], [])
    if not report.kernels:
        why = "no verdict: the files have samples of instructions, but no times and no counters of kernels"
        return ReportSummary([], why, "", "", [], _after_samples(report) or [COLLECT])
    judged = [(number, each, each.verdict) for number, each in enumerate(report.kernels, 1) if each.verdict]
    own = [each for each in report.kernels if each.verdict is None]
    share = sum(each.time_share for each in own)
    runtime = f"copies and fills of the HIP runtime: {100 * share:.0f} % of the time" if share >= _RUNTIME else ""
    if not judged:
        return ReportSummary([], "no verdict: only the HIP runtime's own kernels ran", runtime, "", [], [])
    groups: dict[tuple[str, str], list[tuple[int, KernelProfile, Verdict]]] = {}
    for number, kernel, reason in judged:
        alone = reason.code in {BOUND, FAR} or (reason.code in _OF_MANY and kernel.time_share >= _LONG)
        key = str(number) if alone else "" if reason.code in _OF_MANY else reason.text
        groups.setdefault((reason.code, key), []).append((number, kernel, reason))
    shown = list(groups.values())[:KERNELS]
    left = sum(len(group) for group in groups.values()) - sum(len(group) for group in shown)
    commands = dict.fromkeys(reason.remedy for group in groups.values() for _, _, reason in group if reason.remedy)
    return ReportSummary(
        [_line(group) for group in shown], "", runtime, f"{left} more kernels are in the report" if left else "",
        _others(report), [*dict.fromkeys([*commands, *_after_samples(report)])],
    )  # fmt: skip


def _after_samples(report: ProfileReport) -> list[str]:
    """Return what to run after the hot spots that the terminal shows."""
    return [*dict.fromkeys(each.remedy for each in report.hot_spots[:ON_TERMINAL] if each.remedy)]


def _others(report: ProfileReport) -> list[str]:
    """Return the first findings that are not their kernel's verdict."""
    number_of = {id(kernel): number for number, kernel in enumerate(report.kernels, 1)}
    lines = [
        f"kernel {number_of[id(kernel)]}: {finding.sentence}"
        for kernel, finding in report.findings
        if kernel.verdict and finding.key != kernel.verdict.finding and kernel.verdict.code not in _OF_MANY
    ]
    return lines[:ALSO]


def _line(group: list[tuple[int, KernelProfile, Verdict]]) -> SummaryLine:
    numbers = tuple(number for number, _, _ in group)
    number, kernel, reason = group[0]
    share = sum(each.time_share for _, each, _ in group)
    part = f"{100 * share:.{0 if share >= 0.1 else 1}f} % of the time" if kernel.time_ns else ""
    if len(group) > 1:
        who = f"{len(group)} kernels{f' ({part})' if part else ''}"
        return SummaryLine(numbers, who, _OF_MANY.get(reason.code, reason.text), "")
    median = quantity(kernel.time_ns[50] / 1e9, "seconds") if kernel.time_ns else ""
    facts = ", ".join(filter(None, (part, median)))
    gain = next((f.gain_text for f in kernel.findings if f.key == reason.finding and f.gain is not None), "")
    return SummaryLine(numbers, f"kernel {number}{f' ({facts})' if facts else ''}, {name(kernel)}", reason.text, gain)


def name(kernel: KernelProfile) -> str:
    """Return the attention problem that a kernel solved, else its shortened name."""
    return kernel.label or shorten(kernel.name)


def changes(report: ProfileReport, pairs: list[KernelPair]) -> list[str]:
    """Return a line for each kernel whose time changed most, and the number of kernels in one profile only.

    Args:
        report: The later profile, whose numbering of kernels is used.
        pairs: The comparison.
    """
    number_of = {(kernel.name, kernel.label): number for number, kernel in enumerate(report.kernels, 1)}
    both = [pair for pair in pairs if pair.before and pair.after]
    if not both:
        return ["no kernel is in both profiles: nothing to compare"]
    alone = len(pairs) - len(both)
    both = [pair for pair in both if pair.after and pair.after.bounds] or both  # not the runtime's copies and fills
    lines = []
    for pair in both[:CHANGES]:
        who = f"kernel {number_of[pair.name, pair.label]}" if report.per == "kernel" else pair.label or pair.name
        lines.append(f"{percent(pair.ratio) if pair.ratio else 'times not known'}: {who}, {_shift(pair)}")
    if len(both) > CHANGES:
        lines.append(f"{len(both) - CHANGES} more kernels are in the report")
    if alone:
        lines.append(f"{alone} kernels are in one of the profiles only")
    return lines


def _shift(pair: KernelPair) -> str:
    """Return the limit whose share changed most: "LDS 23 -> 79 %"."""
    before, after = (
        {bound.key: bound for bound in (kernel.bounds.known if kernel and kernel.bounds else ())}
        for kernel in (pair.before, pair.after)
    )
    common = [(after[key].pct - before[key].pct, before[key], after[key]) for key in after if key in before]
    if not common:
        return "no limit was counted in both"
    change, old, new = max(common, key=lambda each: abs(each[0]))
    if abs(change) < MOVED:
        return f"no limit moved by {MOVED:.0f} points"
    return f"{new.name} {old.pct:.0f} -> {new.pct:.0f} %"


def lines(report: ProfileReport, pairs: list[KernelPair] | None = None) -> list[str]:
    """Return the report's lines for the terminal; at least one.

    Args:
        report: The report.
        pairs: The comparison with an earlier profile.
    """
    from rocattn_profiling.base.markup import terminal
    from rocattn_profiling.profile.report.hot_spots import terminal_lines

    summary = summarise(report)
    rows = changes(report, pairs) if pairs is not None else []
    if summary.why_none:
        rows.append(summary.why_none)
    rows += [f"{line.who}: {line.text}{f' ({line.gain})' if line.gain else ''}" for line in summary.lines]
    rows += [text for text in (summary.more, summary.runtime) if text]
    rows += [f"also {text}" for text in summary.also]
    after = [f"next: {command}" for command in summary.commands]
    hot = terminal_lines(report.hot_spots, report.not_hot)  # whose columns stay in line
    return [*(terminal(line, 1000) for line in rows), *hot, *(terminal(line, 1000) for line in after)]
