"""All files written from one verdict: for readers, CI servers and code-scanning pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rocattn_profiling.base.card import listed
from rocattn_profiling.base.console import emit_json, say
from rocattn_profiling.base.files import write_together
from rocattn_profiling.base.markup import command_data, command_property, plain, terminal
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import card, junit, markdown, page, render, sarif
from rocattn_profiling.gate.groups import CauseGroup, ReasonGroup, by_cause, by_reason
from rocattn_profiling.gate.model import GateResult

FILES: dict[str, Callable[[GateResult], str]] = {
    "verdict.txt": card.text,
    "comment.md": markdown.comment,
    "junit.xml": junit.to_xml,
    "gate.sarif": sarif.to_sarif,
    page.FILE: page.html,
}
_SUMMARY_LIMIT = 1 << 20  # GitHub drops the entire summary of a step if the file is larger
_MOST_ANNOTATIONS = 10  # GitHub's limit per step and kind


def write_all(result: GateResult, out: Path, more: Mapping[str, str] | None = None) -> list[Path]:
    """Write the verdict in every form into a folder; return the files, ``verdict.json`` first.

    Args:
        result: The verdict.
        out: The folder.
        more: Additional files to write (name -> content).

    Raises:
        RocattnError: The files cannot be written; then all are unchanged.
    """
    texts = {verdict.FILE: verdict.to_json(result)} | {name: make(result) for name, make in FILES.items()}
    return write_together({out / name: text for name, text in (texts | dict(more or {})).items()})


def show(result: GateResult, out: Path, *, json: bool, strict: bool) -> int:
    """Print a verdict written to ``out``, add it to a workflow's step summary, and return its exit status."""
    if problem := step_summary(result):
        say(f"note: {problem}")
    if json:
        emit_json(result)
    else:
        card.show(result)
    say(f"page: {out / page.FILE}")
    return result.strict_status if strict else result.status


def step_summary(result: GateResult, environ: Mapping[str, str] = os.environ) -> str:
    """Append the verdict to the summary of a workflow step, if there is one.

    Returns:
        Why nothing was appended; empty on success, and outside of a workflow.
    """
    name = environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return ""
    path = Path(name)
    try:
        room = _SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0) - 1
        if room < markdown.COMMENT_BYTES:
            return f"the step's summary {name} is full"
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" + markdown.summary(result, limit=min(room, markdown.SUMMARY_BYTES)))
    except OSError as error:
        # The verdict is complete without the summary: a runner's full disk must not become an environment error.
        return f"cannot write the step's summary {name}: {error.strerror}"
    return ""


def workflow_commands(result: GateResult) -> str:
    """Return workflow commands that annotate regressions at their most likely causes, and a last line of text."""
    lines = [_cause_command(group) for group in by_cause(result.entries)[:_MOST_ANNOTATIONS]]
    lines += [_reason_command(group) for group in by_reason(result.entries, "inconclusive")[:_MOST_ANNOTATIONS]]
    lines += [_command("error", {}, problem) for problem in result.problems[:_MOST_ANNOTATIONS]]
    return "\n".join([*lines, f"{result.verdict}: {terminal(result.sentence, 600)}"]) + "\n"


def _cause_command(group: CauseGroup) -> str:
    """Return the annotation at the line of one cause: the worst benchmark, how many others, and what changed."""
    worst, others = group.entries[0], len(group.entries) - 1
    place = next((cause.location for cause in group.causes if cause.location is not None), None)
    where = {"file": place.path, "line": str(place.line)} if place is not None else {}
    title = f"{worst.status}: {render.title(worst)}{f' and {others} more' if others else ''}"
    message = "; ".join(text for text in (render.change(worst), render.why(worst)) if text)
    return _command("error", where | {"title": title}, message)


def _reason_command(group: ReasonGroup) -> str:
    likely = ", likely slower" if group.suspect else ""
    names = listed([render.title(entry) for entry in group.entries], 3)
    return _command("warning", {"title": f"{len(group.entries)} undecided{likely}"}, f"{group.reason.line} ({names})")


def _command(kind: str, properties: Mapping[str, str], message: str) -> str:
    shown = ",".join(f"{key}={command_property(plain(value, 300))}" for key, value in properties.items())
    return f"::{kind}{' ' if shown else ''}{shown}::{command_data(plain(message, 2000))}"
