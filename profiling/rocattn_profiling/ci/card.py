"""The steps of ``rocattn ci``, and its last screen: verdict, how each step ended, what it found, what to do next."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.console import stdout
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, UNDECIDED, USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

STEPS = ("doctor", "verify", "bench", "audit", "gate", "profile", "report", "site")
_VERDICTS = {
    OK: ("PASS", "bold green", "everything that ran here is right, and nothing got slower"),
    FAILED: ("FAIL", "bold red", "something is wrong or got worse"),
    UNDECIDED: ("UNDECIDED", "bold yellow", "the gate could not decide everything"),
    NOT_MEASURED: ("NOT MEASURED", "bold yellow", "not everything could be measured"),
}
_ERROR = ("ERROR", "bold red", "a step could not be run as it was asked to")
# Worst first: a wrong result or proven regression outranks a failed measurement, and that an open question.
_SEVERITY = (FAILED, USAGE, NOT_MEASURED, UNDECIDED, OK)
MEANING = {OK: "ok", FAILED: "FAILED", UNDECIDED: "undecided", NOT_MEASURED: "not measured", USAGE: "error"}
_STYLES = {OK: "green", FAILED: "bold red"}
_SHORTEST = 20  # characters of evidence, however narrow the terminal


@dataclass
class JobStep:
    """A step of the job, one command or several, with its outcome; ``skipped`` is the reason it was not run.

    ``cpu_seconds`` are those of all its processes: beside other work ``seconds`` say little.
    """

    name: str
    commands: list[list[str]] = field(default_factory=list)
    skipped: str = ""
    status: int = OK
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """Words for the summary."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        return MEANING.get(self.status, f"ended with status {self.status}")


def worst(statuses: Iterable[int]) -> int:
    """Return the gravest of several exit statuses; one that no command has (a crash) counts as not measured."""
    return _SEVERITY[min(map(gravity, statuses), default=gravity(NOT_MEASURED))]


def gravity(status: int) -> int:
    """Return a key that sorts the gravest status first."""
    return _SEVERITY.index(status if status in _SEVERITY else NOT_MEASURED)


def show(steps: Sequence[JobStep], status: int, says: Mapping[str, str], pages: Mapping[str, Path]) -> None:
    """Print the card on stdout.

    Args:
        steps: In their order.
        status: Exit status of the job.
        says: Name of a step -> its evidence.
        pages: Name of a step -> its page.
    """
    from rich.text import Text

    console = stdout()
    word, style, sentence = _VERDICTS.get(status, _ERROR)
    took = f"({sum(step.seconds for step in steps):.0f} s, exit status {status})"
    console.print(Text.assemble("\n", (word, style), f": {sentence} {took}\n"))
    words = ["skipped" if step.skipped else step.outcome for step in steps]
    for step, ended in zip(steps, words, strict=True):
        took = "" if step.skipped else f"{step.seconds:.0f} s"
        style = "dim" if step.skipped else _STYLES.get(step.status, "bold yellow")
        line = Text.assemble(f"  {step.name:8} ", (f"{ended:{max(map(len, words))}}", style), f" {took:>6}  ")
        evident = step.skipped or says.get(step.name, "")
        line.append(terminal(evident, max(console.width - line.cell_len, _SHORTEST)))
        line.rstrip()
        console.print(line)
    console.print(Text.assemble("\n", ("next: ", "cyan"), _next(steps, status)))
    for name, page in pages.items():
        console.print(f"  {name:8} {page.as_uri()}")


def _next(steps: Sequence[JobStep], status: int) -> str:
    """Return what to do: repeat the step that decided the status, or try a change."""
    if status == OK:
        return "change something, and see what it does: rocattn gate run --head WORKTREE"
    decisive = next((step for step in steps if step.status == status and not step.skipped), None)
    if decisive is None:
        return "rocattn doctor  # what is missing here, and how to get it"
    why = "more rounds decide it" if status == UNDECIDED else "repeat that step, whose lines above say more"
    return f"rocattn {shlex.join(decisive.commands[-1])}  # {why}"


def pages_of(steps: Iterable[JobStep], out: Path) -> dict[str, Path]:
    """Return the pages that this job wrote by the name of their step: an older job's is not named as this one's.

    Args:
        steps: When all have ended.
        out: The job's folder.
    """
    written = {"gate": {OK, FAILED, UNDECIDED}, "report": {OK}, "site": {OK}}  # else there may be an older page
    pages = {
        step.name: (out / step.name / "index.html").resolve()
        for step in steps
        if not step.skipped and step.status in written.get(step.name, ())
    }
    return {name: page for name, page in pages.items() if page.is_file()}


def evidence(name: str, out: Path, since_s: float) -> str:
    """Return what a step found, from the files that it wrote; "" if it says nothing that counts.

    Args:
        name: Of the step.
        out: The job's folder.
        since_s: When the job began, as `time.time` gives it: an older file is of another job.
    """
    if name not in _FILES:
        return ""
    read, path = _FILES[name][0], out / name / _FILES[name][1]
    try:
        return read(path) if path.stat().st_mtime >= since_s else ""
    except (OSError, ValueError, KeyError, TypeError, RocattnError, msgspec.MsgspecError):
        return ""  # an odd file is no evidence


def _verified(path: Path) -> str:
    report = json.loads(path.read_text("utf-8"))
    return f"{report['ran']} outputs checked against float64, {report['failed']} wrong"


def _benched(path: Path) -> str:
    from rocattn_profiling.measure.records import read_records

    records = [record for record in read_records(path) if record.launches]
    backends = sorted({record.backend for record in records})
    configs = len({(record.suite, record.label) for record in records})
    return f"{configs} problems timed on {', '.join(backends)}"


def _audited(path: Path) -> str:
    from rocattn_profiling.kernels import card
    from rocattn_profiling.kernels.compare import Comparison

    comparison = msgspec.json.decode(path.read_bytes(), type=Comparison)
    return card.counts(comparison)


def _gated(path: Path) -> str:
    from rocattn_profiling.gate import verdict
    from rocattn_profiling.gate.formats.render import counted

    return counted(verdict.read(path))


_FILES = {
    "verify": (_verified, "verify.json"), "bench": (_benched, "records.jsonl"), "audit": (_audited, "comparison.json"),
    "gate": (_gated, "verdict.json"),
}  # fmt: skip
"""What reads the evidence of a step, and from which of its files."""
