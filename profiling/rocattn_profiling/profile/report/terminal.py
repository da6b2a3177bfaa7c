"""A profile report on the terminal: verdict, evidence, cause, next command; for 80 columns and more.

Colors and bold type need a terminal without NO_COLOR; a star marks the nearest limit everywhere. If the output is not
UTF-8, bars and signs are ASCII.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from rocattn_profiling.base.card import Card
from rocattn_profiling.base.console import stderr
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.pages.quantities import percent, quantity
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.report.causes import UNCHANGED
from rocattn_profiling.profile.report.compare import KernelPair, ProfileComparison
from rocattn_profiling.profile.report.groups import FindingGroup, complete, part
from rocattn_profiling.profile.report.hot_spots import ON_TERMINAL, caution, cycles_text, headline, wait_text
from rocattn_profiling.profile.report.names import short_names
from rocattn_profiling.profile.report.records import HotLine, HotSpots, KernelProfile, ProfileReport
from rocattn_profiling.profile.report.speed_of_light import SpeedBar
from rocattn_profiling.profile.report.summary import FINDINGS, KERNELS, KernelRow, ReportSummary, bars_of
from rocattn_profiling.profile.report.verdict import COLLECT, NOT_COUNTABLE

PROVE = "rocattn gate run --head WORKTREE"
PROBLEMS = 3
"""Maximum number of file problems shown; the report has all."""
_HOT_LINES, _PLACE = 5, 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
NONE = "\u2013"
"""Placeholder for an unknown number."""
_INDENT = "   "
_GAP = "  "
_VALUE = 6  # characters of " *≥100"
_LONGEST_BAR = 10
_MOST_ELLIPSES = 3  # per name: each ellipsis is two characters longer in ASCII
_NUMBER = 5  # characters of a kernel's number, or of "gone"
_SIDE = 3  # additional characters for "before"
_MOST_OF_FIRST = 2  # findings shown of the kernel that changed most


def _names(card: Card, kernels: Sequence[tuple[str, str]], most: int) -> list[str]:
    """Return the names of kernels on this screen, in at most so many characters: the label or the name."""
    most -= 0 if card.unicode else 2 * _MOST_ELLIPSES
    short = short_names([clean(name) for name, _ in kernels], most)
    shown = [clean(label) or name for (_, label), name in zip(kernels, short, strict=True)]
    return [card.fit(text, most) for text in shown]


def clean(text: str) -> str:
    """Return foreign text without terminal control sequences."""
    return terminal(text, 1000)


def show(report: ProfileReport, summary: ReportSummary, comparison: ProfileComparison | None = None) -> None:
    """Print a report's card on stderr; for the arguments see `fill`."""
    console = stderr()
    fill(Card.of(console), report, summary, comparison).show(console)


def fill(
    card: Card, report: ProfileReport, summary: ReportSummary, comparison: ProfileComparison | None = None
) -> Card:
    """Add a report's lines to a card, and return it.

    Args:
        card: The card.
        report: The report.
        summary: Its summary.
        comparison: Comparison with an earlier profile; if given, the changes replace the kernels and their findings.
    """
    if comparison is not None:
        add_comparison(card, report, summary, comparison)
        add_problems(card, report.problems)
        return card
    if report.chosen:
        card.add((clean(report.chosen), "dim"))
    for line in summary.before:
        card.add(_sentence(clean(line)))
    card.add((_sentence(clean(summary.headline)), "bold"))
    for line in filter(None, (*summary.after, summary.others)):
        card.add(_sentence(clean(line)))
    if summary.rows:
        card.gap()
        add_kernels(card, summary)
    if summary.findings or summary.folded:
        card.gap()
        add_findings(card, summary)
    add_hot_spots(card, report)
    add_unknown(card, summary)
    known = {unknown.command for unknown in summary.unknown}
    for number, command in enumerate(command for command in summary.commands if command not in known):
        if not number:
            card.gap()
        card.add("next      ", (clean(command), "cyan"), first=_INDENT, wrap=False)
    if summary.last:
        card.gap()
        card.add((_sentence(clean(summary.last)), "dim"))
    add_problems(card, report.problems)
    if not summary.commands:
        card.gap()
        card.add("After a change, compare:")
        card.add((complete(report, "rocattn report AFTER --against PATH"), "cyan"), first=_INDENT, wrap=False)
    return card


def add_kernels(card: Card, summary: ReportSummary) -> None:
    """Add the table of kernels: share, time, launches and verdict, with a bar for each limit below."""
    rows = summary.rows
    cells = [("share", "median", "calls", "verdict")]
    cells += [
        ("" if row.share is None else part(row.share), row.median, f"{row.launches:,}", row.brief) for row in rows
    ]
    numbers = [str(row.number) for row in rows]
    digits = max(map(len, numbers))
    table = _table(card, numbers, [(row.name, row.label) for row in rows], cells, right={1, 2, 3})
    for number, line in enumerate(table):
        card.add((line, "" if number else "dim"), wrap=False)
        if any(bar.pct is not None for row in rows for bar in row.bars):
            add_bars(card, rows[max(number - 1, 0)].bars, is_head=not number, indent=digits + 1)
        if number and rows[number - 1].facts:
            card.add((rows[number - 1].facts, "dim"), first=" " * (digits + 1))
        if number and rows[number - 1].other:
            card.add(f"nearest: {rows[number - 1].other}", first=" " * (digits + 1))
    if note := _legend(rows):
        card.add((note, "dim"), first=" " * (digits + 1))
    if summary.more:
        card.add(summary.more, first=" " * (digits + 1))


def _table(
    card: Card, numbers: Sequence[str], kernels: Sequence[tuple[str, str]], cells: Sequence[Sequence[str]],
    right: Container[int],
) -> list[str]:  # fmt: skip
    """Return the lines of a table of kernels; the names get the room that the other cells leave.

    Args:
        card: The card that the table is for.
        numbers: The kernels' numbers.
        kernels: Their names and labels.
        cells: The headings, then those of each kernel.
        right: Which columns are right-aligned.
    """
    from rich.cells import set_cell_size

    digits = max(map(len, numbers))
    left = card.width - digits - 1 - len(_GAP) - max(line.cell_len for line in card.rows(cells))
    names = ["kernel", *_names(card, kernels, left)]
    keys = [
        f"{number:>{digits}} {set_cell_size(name, left)}" for number, name in zip(["", *numbers], names, strict=True)
    ]
    return [line.plain for line in card.rows([[key, *row] for key, row in zip(keys, cells, strict=True)], right=right)]


def add_comparison(card: Card, report: ProfileReport, summary: ReportSummary, comparison: ProfileComparison) -> None:
    """Add what changed: the kernels that matter most with their causes, times before and after, and what to do next."""
    first = comparison.first
    for number, line in enumerate(comparison.lines):
        pair = comparison.named[number] if number < len(comparison.named) else None
        card.add((_sentence(clean(line)), _color(pair) or "bold" if pair else "" if number else "bold"))
        if pair and pair.cause and pair.cause.evidence:
            card.add("; ".join(pair.cause.evidence), first=_INDENT)
    card.gap()
    _add_times(card, comparison)
    groups = [each for each in summary.findings if first and first.after and first.number in each.kernels]
    if groups:
        card.gap()
        for number, group in enumerate(groups[:_MOST_OF_FIRST], 1):
            _add_finding(card, number, group)
    remedy = first.cause.remedy if first and first.cause else "" if first else COLLECT
    if remedy:
        card.gap()
        card.add("Next, on both sides:")
        card.add((complete(report, clean(remedy)), "cyan"), first=_INDENT, wrap=False)
    elif _color(first):
        card.gap()
        card.add("Two runs prove nothing. To prove the change:")
        card.add((PROVE, "cyan"), first=_INDENT, wrap=False)


def _add_times(card: Card, comparison: ProfileComparison) -> None:
    """Add the table of kernels with their times before and after, and both sides' limits for the first kernel."""
    pairs = comparison.pairs[:KERNELS]
    cells = [("before", "after", "change", "calls")]
    cells += [(_time(pair.before), _time(pair.after), _change(pair), _calls(pair)) for pair in pairs]
    where = ["new" if not pair.before else str(pair.number) if pair.after else "gone" for pair in pairs]
    table = _table(
        card,
        [f"{each:>{_NUMBER - 1}}" for each in where],
        [(pair.name, pair.label) for pair in pairs],
        cells,
        right={1, 2, 3, 4},
    )
    for number, line in enumerate(table):
        pair = pairs[number - 1] if number else None
        card.add((line, _color(pair) if pair else "dim"), wrap=False)
        if pair and pair.is_other_instance and pair.before:
            was = _names(card, [(pair.before.name, pair.before.label)], card.width - _NUMBER - len("was "))
            card.add((f"was {was[0]}", "dim"), first=" " * _NUMBER)
        if pair and pair.launched and sum(each.name == pair.name for each in comparison.pairs) > 1:
            card.add((pair.launched, "dim"), first=" " * _NUMBER)
        if pair and pair is comparison.first and pair.before and pair.after:
            sides = [bars_of(kernel) for kernel in (pair.before, pair.after)]
            if any(bar.pct is not None for bars in sides for bar in bars):
                add_bars(card, sides[0], is_head=True, indent=_NUMBER + _SIDE)
            for name, bars in zip(("before", "after"), sides, strict=True):
                add_bars(card, bars, is_head=False, indent=_NUMBER + _SIDE, name=name)
    if len(comparison.pairs) > KERNELS:
        card.add(f"{count(len(comparison.pairs) - KERNELS, 'more kernel is', 'more kernels are')} in the report.",
                 first=" " * _NUMBER)  # fmt: skip


def _time(kernel: KernelProfile | None) -> str:
    return quantity(kernel.time_ns[50] / 1e9, "seconds") if kernel and kernel.time_ns else NONE


def _change(pair: KernelPair) -> str:
    return percent(pair.ratio) if pair.ratio else ""


def _calls(pair: KernelPair) -> str:
    calls = [f"{each.launches:,}" for each in (pair.before, pair.after) if each]
    return " → ".join(dict.fromkeys(calls))


def _color(pair: KernelPair | None) -> str:
    """Return the color of a change: red for a slower kernel."""
    if pair is None or pair.ratio is None or abs(pair.ratio - 1) < UNCHANGED:
        return ""
    return "bold red" if pair.ratio > 1 else "bold green"


def add_bars(card: Card, bars: Sequence[SpeedBar], *, is_head: bool, indent: int, name: str = "") -> None:
    """Add a line with a bar for each limit, or with their headings; the name goes into the indentation."""
    if not bars or (not is_head and all(bar.pct is None for bar in bars)):
        return
    room = (card.width - indent - len(_GAP) * (len(bars) - 1)) // len(bars)
    cells = min(room - _VALUE, _LONGEST_BAR)
    parts: list[str | tuple[str, str]] = []
    for bar in bars:
        parts.append(_GAP if parts else "")
        if is_head:
            parts.append((bar.name.ljust(cells + _VALUE), "dim"))
            continue
        if bar.pct is None:
            parts.append((("n/a" if _is_uncountable(bar) else NONE).ljust(cells + _VALUE), "dim"))
            continue
        filled, rest = _bar(bar.pct, cells, unicode=card.unicode)
        value = f"{'*' if bar.is_nearest else ''}{'≥' if bar.is_least and round(bar.pct) else ''}{bar.pct:.0f}"
        style = "bold" if bar.is_nearest else ""
        parts += [(filled, style or "cyan"), (rest, "dim"), (value.rjust(_VALUE), style)]
    card.add(*parts, first=f"{f'{name} ':>{indent}}", wrap=False)


def _bar(pct: float, cells: int, *, unicode: bool) -> tuple[str, str]:
    """Return the filled and empty parts of a bar; it is full beyond the peak (a cache served part of the traffic)."""
    eighths = round(min(pct, 100.0) / 100 * cells * 8) if unicode else 8 * round(min(pct, 100.0) / 100 * cells)
    filled = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return filled, "·" * (cells - len(filled))


def _is_uncountable(bar: SpeedBar) -> bool:
    return bar.missing is not None and bar.missing.code == NOT_COUNTABLE


def _legend(rows: Sequence[KernelRow]) -> str:
    """Return the explanation of the signs that occur in the table."""
    bars = [bar for row in rows for bar in row.bars if any(each.pct is not None for each in row.bars)]
    signs = {
        "% of peak": bool(bars),
        "* nearest limit": any(bar.is_nearest for bar in bars),
        "≥ at least": any(bar.is_least for bar in bars if bar.pct is not None),
        f"{NONE} not counted": any(bar.pct is None and not _is_uncountable(bar) for bar in bars),
        "n/a this GPU cannot count it": any(map(_is_uncountable, bars)),
    }
    return ", ".join(sign for sign, is_there in signs.items() if is_there)


def add_findings(card: Card, summary: ReportSummary) -> None:
    """Add the first findings (gain, sentence, counters, next command) and the number of the others."""
    more = count(len(summary.findings) - FINDINGS, "more finding is", "more findings are")
    for number, group in enumerate(card.some(summary.findings, FINDINGS, f"{_INDENT}{more} in the report."), 1):
        _add_finding(card, number, group)
    if summary.folded:
        small = sum(len(group.kernels) for group in summary.folded)
        what = (
            count(len(summary.folded), "finding")
            if not summary.findings
            else count(len(summary.folded), "more finding", "more findings")
        )
        who = count(small, "kernel") if summary.folded[0].noun == "kernel" else count(small, "launch", "launches")
        card.add(f"{what} (in {who}) below 1 % of GPU time: see the report.", first=_INDENT)


def _add_finding(card: Card, number: int, group: FindingGroup) -> None:
    card.add((f"{_sentence(group.who)}: {group.gain_text}", "bold"), first=f"{number}. ")
    card.add(_sentence(clean(group.text)), first=_INDENT)
    if group.proof:
        card.add((group.proof, "dim"), first=f"{_INDENT}counters  ")
    if group.command:
        card.add("next      ", (clean(group.command), "cyan"), first=_INDENT, wrap=False)


def add_unknown(card: Card, summary: ReportSummary) -> None:
    """Add what is unknown, and the command that would measure it."""
    for unknown in summary.unknown[:FINDINGS]:
        card.gap()
        text = f"{unknown.who}: {unknown.why}"
        if unknown.says:
            card.add(_sentence(clean(unknown.says)))
        card.add("To measure it:" if text in {summary.headline, *summary.after} else _sentence(clean(text)))
        card.add("next      ", (clean(unknown.command), "cyan"), first=_INDENT, wrap=False)
        if unknown.gpus:
            card.add(unknown.gpus, first=f"{_INDENT}NAME      ")


def add_hot_spots(card: Card, report: ProfileReport) -> None:
    """Add the hottest lines of the first kernels, if instructions were sampled."""
    if report.hot_spots or report.not_hot:
        card.gap()
    for spots in report.hot_spots[:ON_TERMINAL]:
        card.add(headline(spots, _PLACE))
        lines = [] if spots.few else spots.lines[:_HOT_LINES]
        if lines:
            note = "" if spots.no_cycles else " (cycles: to issue it)"
            cells = [("share  ", "line", "" if spots.no_cycles else "cycles", f"what the waves do{note}")]
            cells += [_hot_line(card, spots, line) for line in lines]
            card.put(card.rows(cells, right={0, 2}, first="  "))
        if spots.finding and spots.number is None:  # otherwise it is among the kernel's findings
            card.add(terminal(spots.finding.sentence), first="  ")
        if spots.few:
            card.add(caution(spots), first="  ")
    if len(report.hot_spots) > ON_TERMINAL:
        card.add(f"Hot spots of {count(len(report.hot_spots) - ON_TERMINAL, 'more kernel')} are in the report")
    if report.not_hot:
        card.add(report.not_hot)


def _hot_line(card: Card, spots: HotSpots, line: HotLine) -> tuple[str, str, str, str]:
    """Return the cells of a line; a place is cut at its start, because its end says more."""
    place = terminal(line.place)
    place = place if len(place) <= _PLACE else f"{card.spell('…')}{place[1 - _PLACE :]}"
    cycles = "" if spots.no_cycles else cycles_text(line)
    return f"{spots.share(line.count):.1f} %", place, cycles, wait_text(spots, line.causes)


def add_problems(card: Card, problems: Sequence[str]) -> None:
    """Add the first problems of the files."""
    if not problems:
        return
    card.gap()
    more = count(len(problems) - PROBLEMS, "more note is", "more notes are")
    for problem in card.some(problems, PROBLEMS, f"note: {more} in the report."):
        card.add(clean(problem), first="note: ")


def _sentence(text: str) -> str:
    """Return text with a capital first letter."""
    return text[:1].upper() + text[1:]
