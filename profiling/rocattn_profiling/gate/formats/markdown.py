"""A verdict as Markdown: the comment on a pull request, and the summary of a workflow's step.

Regressions come first, undecided benchmarks second, waived ones third. Everything from the code under test is written
as text (`rocattn_profiling.base.markup`). The whole stays below a limit in bytes, and what does not fit is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rocattn_profiling.base.markup import code, markdown, prose
from rocattn_profiling.gate.formats import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rocattn_profiling.gate.rule.pairs import Decision
    from rocattn_profiling.gate.verdict import Cause, Entry, GateResult, SideFacts, Status

_T = TypeVar("_T")

MARKER = "<!-- rocattn-gate -->"
COMMENT_BYTES = 63_000  # GitHub takes 65,536 characters, 64 kB in bytes, of which a workflow may want some
SUMMARY_BYTES = 1_000_000  # of a step; GitHub drops the whole summary above 1 MiB
# Rows of the table in this order; entries of other statuses are only counted above it.
_ROWS: tuple[Status, ...] = (
    "regression", "failed", "missing", "inconclusive", "waived", "broken", "improvement", "new", "removed",
)  # fmt: skip
_BAD = frozenset({"regression", "failed", "missing"})
_OPEN = frozenset({"inconclusive", "broken"})  # many at once often share a reason
_EXPLAINED = _BAD | _OPEN | {"waived"}
_ROWS_SHARE = 0.6  # of the room, the rest being for reasons
_LIST_BYTES = 8000  # of a list of problems, packages or notes


def comment(result: GateResult, *, run_url: str = "", remark: str = "", limit: int = COMMENT_BYTES) -> str:
    """Return the comment on a pull request; its first line is a marker by which the next run can replace it.

    Args:
        result: The verdict.
        run_url: Address of the workflow's run, from the workflow itself.
        remark: A sentence of our own below the verdict.
        limit: Most bytes.
    """
    return f"{MARKER}\n{summary(result, run_url=run_url, remark=remark, limit=limit - len(MARKER) - 1)}"


def unreadable(run_url: str = "") -> str:
    """Return the comment for a run that left no verdict."""
    run = f" [Its log]({run_url}) says why." if run_url else ""
    text = "The run left no readable verdict: nothing was compared, so nothing is known to be fine."
    return f"{MARKER}\n### rocattn gate: not measured\n\n{text}{run}\n"


def summary(result: GateResult, *, run_url: str = "", remark: str = "", limit: int = SUMMARY_BYTES) -> str:
    """Return the verdict as Markdown without the marker of a comment; arguments as for `comment`."""
    head, foot = "\n".join(_head(result, run_url, remark)), "\n".join(_foot(result))
    room = limit - len(head.encode()) - len(foot.encode()) - 1000  # the table's header, and what did not fit
    rows = [entry for status in _ROWS for entry in result.entries if entry.status == status]
    table, shown = _fitting(rows, int(room * _ROWS_SHARE), _row)
    explained = _alike([entry for entry in rows if entry.status in _EXPLAINED and _has_words(entry)])
    room -= sum(len(line.encode()) + 1 for line in table)
    details, detailed = _fitting(explained, room, _detail, _brief)
    parts = [head]
    if table:
        parts += [
            "",
            "| benchmark | verdict | base | head | head / base | 95 % interval |",
            "|---|---|---:|---:|---:|---|",
        ]
        parts += table
    left = [f"{len(rows) - shown} more rows"] if shown < len(rows) else []
    left += [f"the reasons of {sum(map(len, explained[detailed:]))} more"] if detailed < len(explained) else []
    if left:
        parts += ["", f"**Cut to size:** {' and '.join(left)} did not fit here; the verdict's file has everything."]
    parts += ["", *details] if details else []
    return "\n".join([*parts, "", foot]) + "\n"


def _fitting(items: Sequence[_T], room: int, *forms: Callable[[_T], str]) -> tuple[list[str], int]:
    """Return the leading items that fit, each in the first of its forms that fits, and their number.

    The first item that does not fit ends the list, and later ones are not formatted.
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
    yield f"### rocattn gate: {result.verdict}"
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
        f"**{entry.status}**"
        if entry.status in _BAD
        else f"{entry.status}{', likely slower' if entry.suspect else ''}",
        "" if entry.base is None else markdown(render.quantity(entry.base, entry.unit), 40),
        "" if entry.head is None else markdown(render.quantity(entry.head, entry.unit), 40),
        "" if decision is None or entry.base is None else _ratio(decision),
        markdown(render.interval(entry)),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(decision: Decision) -> str:
    return render.ratio(decision.ratio) if decision.has_ratio else "unknown"


def _has_words(entry: Entry) -> bool:
    return bool(entry.causes or entry.waiver or render.reasons(entry))


def _alike(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the entries in their order, grouping open ones that share a reason."""
    groups: dict[object, list[Entry]] = {}
    for place, entry in enumerate(entries):
        same = (entry.status, *render.reasons(entry), entry.rule) if entry.status in _OPEN else place
        groups.setdefault(same, []).append(entry)
    return list(groups.values())


def _detail(entries: Sequence[Entry], *, brief: bool = False) -> str:
    """Return the reasons, folded. The blank lines inside the element make GitHub read Markdown there."""
    entry = entries[0]
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    lines = [f"<details><summary>{code(render.title(entry))}{more} {entry.status}</summary>", ""]
    if entry.waiver:
        lines += [f"waived: {markdown(entry.waiver, 400)}", ""]
    if entry.causes and not brief:
        lines += [*_listed([_cause(cause) for cause in entry.causes], render.MOST_CAUSES), ""]
    lines += [f"{markdown(reason, 200 if brief else 600)}\n" for reason in render.reasons(entry)]
    lines += [f"rule: {markdown(entry.rule, 200)}\n"] if entry.rule else []
    return "\n".join([*lines, "</details>"])


def _brief(entries: Sequence[Entry]) -> str:
    return _detail(entries, brief=True)


def _cause(cause: Cause) -> str:
    place = render.where(cause)
    words = [prose(cause.text, 400), f"({code(place)})" if place else ""]
    return f"**{cause.kind}:** {' '.join(word for word in words if word)}"


def _foot(result: GateResult) -> Iterator[str]:
    policy, machine = result.policy, result.machine
    yield "<details><summary>How it was measured</summary>"
    yield ""
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
