"""The verdict on a terminal: one card, in the order verdict, evidence, cause, next command."""

from __future__ import annotations

from collections.abc import Sequence

from rocattn_profiling.base.card import Card, listed
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
    deciding,
    repeats,
)
from rocattn_profiling.gate.model import Cause, Entry, GateResult

_SENTENCE = 600
_NAME = 160  # characters of a label, as in the comment; the JSON has it whole
_MOST_ROWS = 5  # benchmarks listed per cause
_MOST_MEASURED = 2  # undecided benchmarks per reason with numbers; the others are only named
_MOST_GROUPS = 10  # causes, or reasons why benchmarks are undecided
_MOST_CAUSES = 3  # in addition to the first
_MOST_LISTED = 5  # improvements, waived regressions, notes, problems
_EXPLAINED = ("broken", "skipped")
_COUNTED = ("unreached", "new", "removed", "ungated")
_STYLES = {
    "regression": "bold red", "problem": "bold red", "pass": "bold green", "inconclusive": "bold yellow",
    "not measured": "bold yellow", "failed": "bold red", "missing": "bold red", "void": "bold red",
    "removed": "bold red", "improvement": "green", "waived": "yellow", "broken": "yellow",
}  # fmt: skip


def text(result: GateResult, width: int = 0) -> str:
    """Return the card without color, for a file or a terminal of ``width`` columns."""
    return str(_fill(Card(width), result))


def show(result: GateResult) -> None:
    """Print the card on stdout."""
    console = stdout()
    _fill(Card.of(console), result).show(console)


def _fill(card: Card, result: GateResult) -> Card:
    card.add((f"{render.headline(result)}: ", _STYLES[result.verdict]), terminal(result.sentence, _SENTENCE), indent=2)
    for name, side in (("base", result.base), ("head", result.head)):
        card.add(card.cut(terminal(side.title), len(name) + 1), first=(f"{name} ", "dim"), wrap=False)
    card.add(f"{render.counted(result) or 'no benchmarks'}; {result.launches} processes", indent=2)
    _add_remarks(card, "problem", "red", result.problems)
    groups = by_cause(result.entries)
    commands, command = repeats(result, groups)
    others = f"and {sum(len(group.entries) for group in groups[_MOST_GROUPS:])} more with # other causes"
    for group, own in card.some(list(zip(groups, commands, strict=False)), _MOST_GROUPS, others):
        card.gap()
        _add_worse(card, group, own, acceptance(result, group))
    if command:
        card.gap()
        card.add(terminal(command, _SENTENCE), first=("repeat: ", "cyan"), wrap=False)
    _add_undecided(card, result)
    _add_others(card, result)
    if result.budget.remedy:
        card.gap()
        card.add(terminal(result.budget.remedy), first=("next: ", "cyan"))
    if result.remarks:
        card.gap()
        _add_remarks(card, "note", "dim", result.remarks)
    return card


def _add_worse(card: Card, group: CauseGroup, command: str, accept: str) -> None:
    """Add the block of one cause: its benchmarks, the cause with the changed lines, and what to do next."""
    fits = len(group.entries) <= _MOST_ROWS + 1  # "and 1 more" would take as many lines
    shown = group.entries if fits else group.entries[:_MOST_ROWS]
    common = common_part([render.title(entry) for entry in shown])
    name = common.removesuffix("::").removesuffix(".") or f"{len(group.entries)} results"
    word = f"{render.word(group.status, shown[0].metric)}: "
    card.add((terminal(name, _NAME), "bold"), first=(word, _STYLES[group.status]), wrap=False)
    _add_rows(card, shown, len(common))
    if more := group.entries[len(shown) :]:
        ratios = [entry.decision.ratio for entry in more if entry.decision is not None and entry.decision.has_ratio]
        ends = dict.fromkeys([render.ratio(min(ratios)), render.ratio(max(ratios))]) if ratios else []
        card.add(f"  and {len(more)} more{', ' if ends else ''}{' to '.join(ends)}")
    for reason in dict.fromkeys(entry.reason for entry in shown if entry.reason):
        card.add(terminal(reason), first="  ")
    _add_causes(card, group.causes)
    for word, line in (("repeat", command), ("accept", accept)):
        if line:
            card.add(terminal(line, _SENTENCE), first=(f"  {word}: ", "cyan"), wrap=False)


def _add_rows(card: Card, entries: Sequence[Entry], common: int = 0) -> None:
    """Add a line for each entry, with the numbers aligned; two lines if one would be too long."""
    labels = [terminal(render.title(entry)[common:], _NAME) for entry in entries]
    numbers = [_numbers(entry) for entry in entries]
    values = card.rows([(base, "->" if base else "", head) for base, head, *_ in numbers], right={0, 2}, gap=1)
    ratios = card.rows([((ratio, "bold"), interval) for *_, ratio, interval in numbers], right={0}, gap=1)
    rules = [f"({terminal(entry.rule)})" if entry.rule else "" for entry in entries]
    lines = card.rows(list(zip(labels, values, ratios, strict=True)), first="  ")
    if max(line.cell_len for line in lines) <= card.room and not any(rules):
        card.put([line for line in lines if line.plain.strip()])  # empty: no numbers, name in the title
        return
    for label, *parts in zip(labels, values, ratios, rules, strict=True):
        card.put([card.text("  ", label)] if label else [])
        if line := "  ".join(part for part in (" ".join(str(part).split()) for part in parts) if part):
            card.add(line, first="    ", wrap=False)


def _numbers(entry: Entry) -> tuple[str, str, str, str]:
    """Return base, head, their ratio and its interval."""
    if entry.base is None or entry.head is None:
        return "", "", "", ""
    base, head = (terminal(render.quantity(value, entry.unit), 40) for value in (entry.base, entry.head))
    decision = entry.decision
    ratio = "" if decision is None else render.ratio(decision.ratio) if decision.has_ratio else "ratio unknown"
    return base, head, ratio, render.interval(entry)


def _add_causes(card: Card, causes: Sequence[Cause]) -> None:
    head = "  cause:  "
    for cause in card.some(causes, _MOST_CAUSES + 1, "          and # more differences"):
        place = terminal(render.where(cause))
        place = f" ({place})" if place and cause.text else place
        kind = "" if cause.kind == "source" else f"{cause.kind}: "
        card.add(f"{kind}{terminal(cause.text)}{place}", first=(head, "cyan"))
        head = " " * len(head)
        for changed in cause.diff:
            style = {"-": "red", "+": "green"}.get(changed[:1], "dim")
            card.add((card.cut(render.diff_line(changed, terminal), 12), style), first=" " * 12, wrap=False)


def _add_undecided(card: Card, result: GateResult) -> None:
    """Add the undecided benchmarks: a paragraph per reason, with one remedy."""
    groups = by_reason(result.entries, "inconclusive")
    others = f"and {sum(len(group.entries) for group in groups[_MOST_GROUPS:])} undecided for other reasons"
    for group in card.some(groups, _MOST_GROUPS, others):
        _add_reason(card, group, "undecided", _STYLES["inconclusive"])
        if command := deciding(result, group):
            card.add(terminal(command, _SENTENCE), first=("  next: ", "cyan"), wrap=False)


def _add_reason(card: Card, group: ReasonGroup, word: str, style: str) -> None:
    """Add one group: how many, why, what helps, and which."""
    card.gap()
    likely = f", {render.SUSPECT}" if group.suspect else ""
    count = (f"{len(group.entries)} {word}", style)
    card.add(count, f"{likely}: {terminal(group.reason.line)}", indent=2)
    if len(group.entries) <= _MOST_MEASURED:
        _add_rows(card, group.entries)
    else:
        _add_names(card, group.entries, "  ")


def _add_others(card: Card, result: GateResult) -> None:
    """Add the entries that are neither worse nor undecided: improvements and waived ones by name, others as a count."""
    for status in ("waived", "improvement"):
        entries = [entry for entry in result.entries if entry.status == status]
        if entries:
            card.gap()
            card.add((f"{len(entries)} {render.word(status)}", _STYLES[status]))
        for entry in card.some(entries, _MOST_LISTED, "  and # more"):
            _add_rows(card, [entry])
            if entry.waiver:
                card.add(terminal(entry.waiver), first="    ")
    for status in _EXPLAINED:
        for group in by_reason(result.entries, status):
            _add_reason(card, group, render.word(status), _STYLES.get(status, ""))
    others = {
        status: [each for each in result.entries if each.status == status and not each.worse] for status in _COUNTED
    }
    if any(others.values()):
        card.gap()
    for status, entries in others.items():
        if entries:
            _add_names(card, entries, f"{len(entries)} {render.word(status)}: ")


def _add_names(card: Card, entries: Sequence[Entry], first: str) -> None:
    """Add as many names as fit on a line, at least one, and the number of the others."""
    names = [terminal(render.title(entry), _NAME) for entry in entries]
    lines = (listed(names, most) for most in range(len(names), 0, -1))
    fitting = next((line for line in lines if card.text(first, line).cell_len <= card.width), listed(names, 1))
    card.add((fitting, "dim"), first=first, wrap=False)


def _add_remarks(card: Card, word: str, style: str, texts: Sequence[str]) -> None:
    for remark in card.some(texts, _MOST_LISTED, f"and # more {word}s"):
        card.add((f"{word}: ", style), terminal(remark), indent=2)
