"""The verdict on a terminal: one card in the order verdict, evidence, cause, next command.

Lines are pieces of text with a style, so the same card is coloured on a terminal and plain in a file.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.base.console import stdout
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate.formats import render
from rocattn_profiling.gate.groups import (
    CauseGroup,
    ReasonGroup,
    acceptance,
    by_cause,
    by_reason,
    common_part,
    repeat,
    repeats,
)
from rocattn_profiling.gate.model import Cause, Entry, GateResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Piece = tuple[str, str]
"""Text and its style in rich's words; "" for none."""
Line = list[Piece]

WIDTH = 100
_NARROWEST, _WIDEST = 60, 140
_SENTENCE = 600
_NAME = 160  # characters of a label, as in the comment; the JSON has it whole
_MOST_ROWS = 5  # benchmarks of one cause that are listed
_MOST_MEASURED = 2  # undecided ones of one reason that are shown with their numbers, not only by name
_MOST_GROUPS = 10  # causes, or reasons of undecided ones
_MOST_CAUSES = 3  # besides the first
_MOST_LISTED = 5  # improvements and waived ones, notes and problems
_EXPLAINED = ("broken", "skipped")
_COUNTED = ("unreached", "new", "removed", "ungated")
_STYLES = {
    "regression": "bold red", "problem": "bold red", "pass": "bold green", "inconclusive": "bold yellow",
    "not measured": "bold yellow", "failed": "bold red", "missing": "bold red", "improvement": "green",
    "waived": "yellow", "broken": "yellow",
}  # fmt: skip


class _Row(NamedTuple):
    """A benchmark's numbers in columns; ``rest`` is what has no column."""

    label: str
    base: str
    head: str
    ratio: str
    interval: str
    rest: str

    @property
    def numbers(self) -> str:
        """The numbers in one string, as wide as they are."""
        values = " -> ".join(value for value in (self.base, self.head) if value)
        return "  ".join(part for part in (values, f"{self.ratio} {self.interval}".strip(), self.rest) if part)


def text(result: GateResult, width: int = WIDTH) -> str:
    """Return the card without colour."""
    return "".join("".join(piece for piece, _ in line).rstrip() + "\n" for line in _card(result, width))


def show(result: GateResult) -> None:
    """Print the card on stdout, as wide as the terminal and in colour where there is one."""
    from rich.text import Text

    console = stdout()
    width = min(max(console.width, _NARROWEST), _WIDEST) if console.is_terminal else WIDTH
    for line in _card(result, width):
        shown = Text.assemble(*line)
        shown.rstrip()
        console.print(shown, soft_wrap=True)


def _card(result: GateResult, width: int) -> Iterator[Line]:
    word, sentence = f"{render.headline(result)}: ", terminal(result.sentence, _SENTENCE)
    yield from _wrapped(word, _STYLES[result.verdict], sentence, width, indent=2)
    for name, side in (("base", result.base), ("head", result.head)):
        yield [(f"{name} ", "dim"), (_cut(terminal(side.title), width - 5), "")]
    counts = f"{render.counted(result) or 'no benchmarks'}; {result.launches} processes"
    yield from _wrapped("", "", counts, width, indent=2)
    yield from _paragraphs([("problem", "red", problem) for problem in result.problems], width)
    groups = by_cause(result.entries)
    commands, command = repeats(result, groups)
    for group, own in zip(groups[:_MOST_GROUPS], commands, strict=False):
        yield []
        yield from _worse(group, own, acceptance(result, group), width)
    if more := groups[_MOST_GROUPS:]:
        count = sum(len(group.entries) for group in more)
        yield [(f"and {count} more with {len(more)} other causes", "")]
    if command:
        yield from [[], [("repeat: ", "cyan"), (terminal(command, _SENTENCE), "")]]
    yield from _undecided(result, width)
    yield from _listed(result, width)
    if result.budget.remedy:
        yield from [[], *_wrapped("next: ", "cyan", terminal(result.budget.remedy), width)]
    if result.remarks:
        yield []
        yield from _paragraphs([("note", "dim", note) for note in result.remarks], width)


def _worse(group: CauseGroup, command: str, accept: str, width: int) -> Iterator[Line]:
    """Yield the block of one cause: its benchmarks, the cause with the changed lines, and what to do if it has that."""
    fits = len(group.entries) <= _MOST_ROWS + 1  # a line for one more may as well be its own
    shown = group.entries if fits else group.entries[:_MOST_ROWS]
    common = common_part([render.title(entry) for entry in shown])
    yield [
        (f"{render.word(group.status, shown[0].metric)}: ", _STYLES[group.status]),
        (_name(common.removesuffix("::").removesuffix(".") or f"{len(group.entries)} results", _NAME), "bold"),
    ]
    yield from _rows(shown, len(common), width)
    if more := group.entries[len(shown) :]:
        ratios = [entry.decision.ratio for entry in more if entry.decision is not None and entry.decision.has_ratio]
        ends = dict.fromkeys([render.ratio(min(ratios)), render.ratio(max(ratios))]) if ratios else []
        between = f", {' to '.join(ends)}" if ends else ""
        yield [(f"  and {len(more)} more{between}", "")]
    for reason in dict.fromkeys(reason for entry in shown for reason in render.own_reasons(entry)):
        yield from _wrapped("  ", "", terminal(reason), width)
    yield from _causes(group.causes, width)
    if command:
        yield [("  repeat: ", "cyan"), (terminal(command, _SENTENCE), "")]
    if accept:
        yield [("  accept: ", "cyan"), (terminal(accept, _SENTENCE), "")]


def _rows(entries: Sequence[Entry], common: int, width: int) -> Iterator[Line]:
    """Yield a line for each entry with its numbers below each other; two where one would be too long."""
    rows = [_row(entry, common) for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    if not any(widths):  # one that was not measured: its name stands above
        return
    if sum(widths) + len("    ->    ") <= width and not any(row.rest for row in rows):
        for row in rows:
            label, base, head, ratio, interval = (
                cell.ljust(most) if column in {0, 4} else cell.rjust(most)
                for column, (cell, most) in enumerate(zip(row, widths, strict=False))
            )
            arrow = " -> " if row.base and row.head else "    " if any(other.base for other in rows) else ""
            values = f"{base}{arrow}{head}"
            gap = "  " if widths[0] else ""
            yield [(f"  {label}{gap}{values}  ", ""), (ratio, "bold"), (f" {interval}", "")]
        return
    for row in rows:
        yield [(f"  {row.label}", "")]
        yield from [[(f"    {row.numbers}", "")]] if row.numbers else []


def _row(entry: Entry, common: int) -> _Row:
    decision = entry.decision
    label = _name(render.title(entry)[common:], _NAME)
    if entry.base is None or entry.head is None:
        return _Row(label, "", "", "", "", "")
    known = decision is not None and decision.has_ratio
    return _Row(
        label=label,
        base=terminal(render.quantity(entry.base, entry.unit), 40),
        head=terminal(render.quantity(entry.head, entry.unit), 40),
        ratio="" if decision is None else render.ratio(decision.ratio) if known else "ratio unknown",
        interval=render.interval(entry),
        rest=f"({terminal(entry.rule)})" if entry.rule else "",
    )


def _causes(causes: Sequence[Cause], width: int) -> Iterator[Line]:
    for number, cause in enumerate(causes[: _MOST_CAUSES + 1]):
        place = terminal(render.where(cause))
        place = f" ({place})" if place and cause.text else place
        kind = "" if cause.kind == "source" else f"{cause.kind}: "
        head = "  cause:  " if number == 0 else "          "
        yield from _wrapped(head, "cyan", f"{kind}{terminal(cause.text)}{place}", width)
        for changed in cause.diff:
            style = {"-": "red", "+": "green"}.get(changed[:1], "dim")
            yield [("            ", ""), (_cut(render.diff_line(changed, terminal), width - 12), style)]
    if more := causes[_MOST_CAUSES + 1 :]:
        yield [(f"          and {len(more)} more differences", "dim")]


def _undecided(result: GateResult, width: int) -> Iterator[Line]:
    """Yield the undecided ones: a paragraph for each reason, with one remedy."""
    groups = by_reason(result.entries, "inconclusive")
    for group in groups[:_MOST_GROUPS]:
        yield []
        yield from _reasons(group, "undecided", _STYLES["inconclusive"], width)
        if command := _next(result, group):
            yield [("  next: ", "cyan"), (command, "")]
    if more := groups[_MOST_GROUPS:]:
        yield [(f"and {sum(len(group.entries) for group in more)} undecided for other reasons", "")]


def _next(result: GateResult, group: ReasonGroup) -> str:
    """Return the command that would decide a group where more rounds do."""
    rounds = max((entry.decision.rounds_needed for entry in group.entries if entry.decision is not None), default=0)
    return terminal(repeat(result, group.entries, rounds=rounds), _SENTENCE) if rounds else ""


def _reasons(group: ReasonGroup, word: str, style: str, width: int) -> Iterator[Line]:
    """Yield one group: how many, why, what helps, and who."""
    count = f"{len(group.entries)} {word}"
    likely = f", {render.SUSPECT}" if group.suspect else ""
    lines = textwrap.wrap(f"{count}{likely}: {terminal(group.reason.line)}", width, subsequent_indent="  ")
    yield [(count, style), (lines[0][len(count) :], "")]
    yield from ([(line, "")] for line in lines[1:])
    if len(group.entries) <= _MOST_MEASURED:
        yield from _rows(group.entries, 0, width)
    else:
        yield [("  ", ""), (_names(group.entries, width - 2), "dim")]


def _listed(result: GateResult, width: int) -> Iterator[Line]:
    """Yield what is neither worse nor undecided: improvements and accepted regressions by name, others as a count."""
    for status in ("waived", "improvement"):
        entries = [entry for entry in result.entries if entry.status == status]
        if not entries:
            continue
        yield []
        yield [(f"{len(entries)} {render.word(status)}", _STYLES[status])]
        for entry in entries[:_MOST_LISTED]:
            yield from _rows([entry], 0, width)
            if entry.waiver:
                yield from _wrapped("    ", "", terminal(entry.waiver), width)
        if more := entries[_MOST_LISTED:]:
            yield [(f"  and {len(more)} more", "")]
    for status in _EXPLAINED:
        for group in by_reason(result.entries, status):
            yield []
            yield from _reasons(group, render.word(status), _STYLES.get(status, ""), width)
    others = {status: [entry for entry in result.entries if entry.status == status] for status in _COUNTED}
    yield from [[]] if any(others.values()) else []
    for status, entries in others.items():
        if entries:
            count = f"{len(entries)} {render.word(status)}: "
            yield [(count, ""), (_names(entries, width - len(count)), "dim")]


def _names(entries: Sequence[Entry], width: int) -> str:
    """Return as many names as fit, and the number of the others; at least one."""
    names = [_name(render.title(entry), _NAME) for entry in entries]
    for count in range(len(names), 0, -1):
        more = f" and {len(names) - count} more" if count < len(names) else ""
        line = ", ".join(names[:count]) + more
        if len(line) <= width or count == 1:
            return line
    return ""


def _paragraphs(items: Sequence[tuple[str, str, str]], width: int) -> Iterator[Line]:
    for word, style, content in items[:_MOST_LISTED]:
        yield from _wrapped(f"{word}: ", style, terminal(content), width, indent=2)
    if more := items[_MOST_LISTED:]:
        yield [(f"and {len(more)} more {more[0][0]}s", "dim")]


def _wrapped(head: str, style: str, content: str, width: int, *, indent: int | None = None) -> Iterator[Line]:
    """Yield text after a styled head, folded at the width and indented as far as the head."""
    lines = textwrap.wrap(content, width - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    yield [(head, style), (lines[0], "")]
    margin = " " * (len(head) if indent is None else indent)
    for line in textwrap.wrap(" ".join(lines[1:]), width - len(margin), break_long_words=False, break_on_hyphens=False):
        yield [(margin, ""), (line, "")]


def _name(label: str, most: int) -> str:
    return terminal(label, most)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
