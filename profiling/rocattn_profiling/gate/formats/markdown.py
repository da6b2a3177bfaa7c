"""A verdict as Markdown: the comment on a pull request, and the summary of a workflow step.

Regressions come first: their numbers, each cause once with the changed lines, and the command that measures them again.
Undecided benchmarks come second, one line per reason; the numbers of all others are folded. Everything from the code
under test is escaped (`rocattn_profiling.base.markup`). The output stays below a limit in bytes; items that do not fit
are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rocattn_profiling.base.card import listed
from rocattn_profiling.base.markup import code, markdown, prose
from rocattn_profiling.gate.formats import render
from rocattn_profiling.gate.groups import CauseGroup, ReasonGroup, acceptance, by_cause, by_reason, repeats
from rocattn_profiling.gate.model import Cause, Entry, GateResult, SideFacts, Status
from rocattn_profiling.gate.rule.pairs import Decision

_T = TypeVar("_T")

MARKER = "<!-- rocattn-gate -->"
COMMENT_BYTES = 63_000  # GitHub's limit is 65,536 characters; a workflow may add some
SUMMARY_BYTES = 1_000_000  # per step; GitHub drops the entire summary above 1 MiB
# Statuses in the folded table, in this order; entries of other statuses are only counted.
_ROWS: tuple[Status, ...] = ("inconclusive", "waived", "broken", "improvement", "unreached", "new", "removed")
_HEADER = ["| benchmark | verdict | base | head | head / base | 95 % interval |", "|---|---|---:|---:|---:|---|"]
_SHARE = 0.5  # of the remaining bytes, for each table
_NAMED = 3  # benchmarks named per reason
_LIST_BYTES = 8000  # of a list of problems, packages or notes


def comment(result: GateResult, *, run_url: str = "", remark: str = "", limit: int = COMMENT_BYTES) -> str:
    """Return the comment on a pull request; its first line is a marker by which the next run finds and replaces it.

    Args:
        result: The verdict.
        run_url: Address of the workflow run, from the workflow itself.
        remark: An additional sentence below the verdict, from us.
        limit: The maximum size in bytes.
    """
    return f"{MARKER}\n{summary(result, run_url=run_url, remark=remark, limit=limit - len(MARKER) - 1)}"


def unreadable(run_url: str = "") -> str:
    """Return the comment for a run without a readable verdict."""
    run = f" [Its log]({run_url}) says why." if run_url else ""
    text = "The run left no readable verdict: nothing was compared, so nothing is known to be fine."
    return f"{MARKER}\n### rocattn gate: not measured\n\n{text}{run}\n"


def summary(result: GateResult, *, run_url: str = "", remark: str = "", limit: int = SUMMARY_BYTES) -> str:
    """Return the verdict as Markdown without the marker of a comment; for the arguments see `comment`."""
    head, foot = "\n".join(_head(result, run_url, remark)), "\n".join(_foot(result))
    room = limit - len(head.encode()) - len(foot.encode()) - 1500  # for the tables' headers and the "Cut to size" line
    parts, cut = [head], []
    worse = [entry for entry in result.entries if entry.worse]
    table, shown = _fitting(worse, int(room * _SHARE), _row)
    missing = len(worse) - shown
    parts += ["", *_HEADER, *table] if table else []
    room -= _size(table)

    groups = by_cause(result.entries)
    commands, command = repeats(result, groups)
    own = {id(group): each for group, each in zip(groups, commands, strict=True)}
    again = [f"repeat: {code(command, 300)}"] if command else []
    blocks, shown = _fitting(
        groups, int(room * _SHARE), lambda group: _block(group, own[id(group)], acceptance(result, group)), _brief_block
    )
    blocks += again if blocks else []
    cut += [f"the causes of {sum(len(group.entries) for group in groups[shown:])} more"] if groups[shown:] else []
    parts += ["", *blocks] if blocks else []
    room -= _size(blocks)

    reasons = [group for status in ("inconclusive", "broken", "skipped") for group in by_reason(result.entries, status)]
    lines, shown = _fitting(reasons, int(room * _SHARE), _reason)
    cut += [f"the reasons of {sum(len(group.entries) for group in reasons[shown:])} more"] if reasons[shown:] else []
    parts += ["", *lines] if lines else []
    room -= _size(lines)

    rest = [entry for status in _ROWS for entry in result.entries if entry.status == status and not entry.worse]
    table, shown = _fitting(rest, room, _row)
    missing += len(rest) - shown
    cut += [f"{missing} more rows"] if missing else []
    if table:
        parts += [
            "",
            f"<details><summary>{len(rest)} more benchmarks</summary>",
            "",
            *_HEADER,
            *table,
            "",
            "</details>",
        ]
    if cut:
        parts += ["", f"**Cut to size:** {', '.join(cut)} did not fit here; the verdict's file has everything."]
    return "\n".join([*parts, "", foot]) + "\n"


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _fitting(items: Sequence[_T], room: int, *forms: Callable[[_T], str]) -> tuple[list[str], int]:
    """Return the leading items that fit, each in the first of its forms that fits, and their number.

    The first item that does not fit ends the list; later items are not formatted.
    """
    chosen: list[str] = []
    for item in items:
        text = next((text for form in forms if len((text := form(item)).encode()) + 1 <= room), None)
        if text is None:
            break
        chosen.append(text)
        room -= len(text.encode()) + 1
    return chosen, len(chosen)


def _head(result: GateResult, run_url: str, remark: str) -> Iterator[str]:
    yield f"### rocattn gate: {render.headline(result).lower()}"
    yield ""
    yield markdown(result.sentence, 600)
    yield ""
    run = f" ([run]({run_url}))" if run_url else ""
    yield f"base {_side(result.base)}, head {_side(result.head)}: {render.counted(result) or 'no benchmarks'}{run}"
    if result.problems:
        yield ""
        yield from _listed([f"**problem:** {markdown(problem, 250)}" for problem in result.problems])
    if remark:
        yield ""
        yield remark


def _side(side: SideFacts) -> str:
    if side.revision is None:
        return code(side.interpreter)
    return f"{code(side.revision.short)} {markdown(side.revision.subject, 100)}".rstrip()


def _listed(lines: Sequence[str], most: int | None = None) -> list[str]:
    """Return the list items that fit, and a line with the number of the others."""
    chosen, shown = _fitting(lines[:most], _LIST_BYTES, "- {}".format)
    return chosen if shown == len(lines) else [*chosen, f"- {len(lines) - shown} more"]


def _row(entry: Entry) -> str:
    decision = entry.decision
    cells = [
        code(render.title(entry)),
        f"**{entry.status}**" if entry.worse else f"{_status(entry)}{', likely slower' if entry.suspect else ''}",
        "" if entry.base is None else markdown(render.quantity(entry.base, entry.unit), 40),
        "" if entry.head is None else markdown(render.quantity(entry.head, entry.unit), 40),
        "" if decision is None or entry.base is None else _ratio(decision),
        markdown(render.interval(entry)),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(decision: Decision) -> str:
    if decision.untouched:
        return ""
    return render.ratio(decision.ratio) if decision.has_ratio else "unknown"


def _status(entry: Entry) -> str:
    waived = f": {markdown(entry.waiver, 200)}" if entry.waiver else ""
    rule = f" (rule: {markdown(entry.rule, 200)})" if entry.rule else ""
    untouched = entry.decision is not None and entry.decision.untouched
    how = f": {render.UNTOUCHED}" if untouched else ""
    return f"{'undecided' if entry.status == 'inconclusive' else entry.status}{how}{waived}{rule}"


def _block(group: CauseGroup, command: str, accept: str) -> str:
    """Return one cause with its changed lines, and how to measure its benchmarks again or accept the worst of them."""
    causes = _listed([_cause(cause) for cause in group.causes], render.MOST_CAUSES)
    lines = {"repeat": command, "accept": accept}
    copied = [f"- {word}: {code(line, 300)}" for word, line in lines.items() if line]
    return "\n".join([*_brief(group), *causes, *copied, ""])


def _brief_block(group: CauseGroup) -> str:
    return "\n".join([*_brief(group), ""])


def _brief(group: CauseGroup) -> Iterator[str]:
    """Yield the benchmarks of a cause, and their reasons apart from numbers."""
    others = len(group.entries) - 1
    known = "cause of" if group.causes else "no cause found for"
    more = f" and {others} more" if others else ""
    yield f"**{known}** {code(render.title(group.entries[0]))}{more}:"
    yield ""
    reasons = dict.fromkeys(entry.reason for entry in group.entries if entry.reason)
    rules = dict.fromkeys(f"rule: {entry.rule}" for entry in group.entries if entry.rule)
    yield from (f"- {markdown(reason, 300)}" for reason in list(reasons)[:_NAMED])
    yield from (f"- {markdown(rule, 200)}" for rule in list(rules)[:_NAMED])


def _reason(group: ReasonGroup) -> str:
    """Return one line: how many are undecided or broken, why, what helps, and which."""
    word = f"{render.word(group.entries[0].status)}{', likely slower' if group.suspect else ''}"
    names = listed([code(render.title(entry)) for entry in group.entries], _NAMED)
    return f"- **{len(group.entries)} {word}:** {markdown(group.reason.line, 400)} ({names})"


def _cause(cause: Cause) -> str:
    place = render.where(cause)
    words = [prose(cause.text, 400), f"({code(place)})" if place else ""]
    changed = "\n".join(f"  {render.diff_line(line, _verbatim)}" for line in cause.diff)
    diff = f'\n  <pre lang="diff">\n{changed}\n  </pre>' if changed else ""
    return f"**{cause.kind}:** {' '.join(word for word in words if word)}{diff}"


def _verbatim(text: str) -> str:
    """Return text for an element that preserves whitespace; `markdown` cuts and escapes it."""
    return markdown(text, 200)


def _foot(result: GateResult) -> Iterator[str]:
    policy, machine = result.policy, result.machine
    yield "<details><summary>How it was measured</summary>"
    yield ""
    if machine is not None:
        gpu = f", {machine.gpu} ({machine.gfx}, driver {machine.driver})" if machine.gpu else ""
        about = f"{machine.name}: {machine.cpu}, {machine.cores} cores{gpu}; {machine.os}"
        yield f"- {markdown(about, 300)}"
        pythons = " and ".join(dict.fromkeys([result.base.python, result.head.python]))
        quick = ", quick mode" if result.quick else ""
        yield f"- Python {markdown(pythons, 60)}; {result.launches} processes, seed {result.seed}{quick}"
    yield f"- {policy.sizes}; at most {policy.level * 100:g} % chance of a false alarm over the whole suite"
    yield f"- {markdown(render.suite_ratio(result))}"
    if result.noise is not None:
        yield f"- {markdown(render.known_beforehand(result.entries, result.noise), 300)}"
    yield from _listed([_package(name, *pair) for name, pair in result.environment_differences.items()])
    yield from _listed([markdown(note, 300) for note in result.notes])
    if result.again:
        yield f"- again: {code(result.again, 300)}"
    yield ""
    yield "</details>"


def _package(name: str, base: str, head: str) -> str:
    return f"{code(name, 60)} {code(base or 'absent', 60)} on base, {code(head or 'absent', 60)} on head"
