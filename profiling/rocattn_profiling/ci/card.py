"""The steps of ``rocattn ci``, and its final screen: verdict, each step's outcome and findings, and the next command.

The verdict covers only what ran, and states what was left out: whole steps, and parts named in a step's files
(`Coverage`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.card import Card
from rocattn_profiling.base.console import stdout
from rocattn_profiling.base.files import decoded
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, UNDECIDED, USAGE

STEPS = ("doctor", "verify", "bench", "audit", "gate", "profile", "report", "site")
OF_GPU: Final = "known"
"""The step that only a GPU job has: the known program."""
MEASURING = frozenset({"verify", "bench", "audit", "gate", "profile", OF_GPU, "site"})
"""If none of these steps ran, nothing was measured."""
_VERDICTS = {
    OK: ("PASS", "bold green", ""),  # `_passed`
    FAILED: ("FAIL", "bold red", "something is wrong or got worse"),
    UNDECIDED: ("UNDECIDED", "bold yellow", "the gate could not decide everything"),
    NOT_MEASURED: ("NOT MEASURED", "bold yellow", "not everything could be measured"),
}
_CLAIMS = {"verify": "outputs are right", "audit": "no kernel got worse", "gate": "nothing got slower"}
_OF_DECIDED = "nothing that was decided got slower"
_NAMED = 3  # left-out parts named in the verdict
_ERROR = ("ERROR", "bold red", "a step could not be run as it was asked to")
# Worst first: a wrong result or proven regression outranks a failed measurement, which outranks an open question.
_SEVERITY = (FAILED, USAGE, NOT_MEASURED, UNDECIDED, OK)
MEANING = {OK: "ok", FAILED: "FAILED", UNDECIDED: "undecided", NOT_MEASURED: "not measured", USAGE: "error"}
_STYLES = {OK: "green", FAILED: "bold red"}
SkipCode = Literal[
    "asked", "first_commit", "no_commit", "no_compiler", "no_git", "no_gpu", "no_pins", "no_profiler", "no_records",
    "no_verdict", "nothing_slower", "profiled",
]  # fmt: skip
"""Codes for why a step was skipped."""
ASKED: Final = "asked"
"""Code for a step named in --skip."""
CHANGE = "change something, and see what it does: rocattn gate run --head WORKTREE"
DOCTOR = "rocattn doctor  # what is missing here, and how to get it"


@dataclass
class JobStep:
    """A step of the job, with one or more commands and its outcome.

    Attributes:
        name, commands: Its name and commands.
        why_skipped: The reason it was not run; None if it was.
        asked: Whether the user requested it by name: if skipped, it counts as not measured.
        status: The worst status of its commands.
        seconds, cpu_seconds: Its duration, and the CPU seconds of all its processes, which depend less on other
            load.
        coverage: How much it examined, according to its files.
        evidence: Its findings, according to its files; "" if there are none.
    """

    name: str
    commands: list[list[str]] = field(default_factory=list)
    why_skipped: Reason[SkipCode] | None = None
    asked: bool = False
    status: int = OK
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    coverage: Coverage | None = None
    evidence: str = ""

    @property
    def skipped(self) -> str:
        """The reason it was not run, as text; "" if it was."""
        return self.why_skipped.text if self.why_skipped else ""

    @property
    def left_out(self) -> tuple[NotCompared, ...]:
        """What it did not examine: everything if it was needed and not run, or the parts named in its files."""
        if self.why_skipped is None:
            parts = self.coverage.not_compared if self.coverage else ()
            return tuple(msgspec.structs.replace(part, what=f"{part.what} ({self.name})") for part in parts)
        if self.why_skipped.code in NO_NEED or self.name not in MEASURING:
            return ()
        return (NotCompared.of(self.name, self.why_skipped, needed=self.asked),)

    @property
    def outcome(self) -> str:
        """Words for the summary."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        return MEANING.get(self.status, f"ended with status {self.status}")


NO_NEED = frozenset({"nothing_slower", "profiled", "no_verdict", "no_records"})
"""Codes of the reasons that a step had nothing to do, or that another step was itself left out."""


def coverage_of(steps: Sequence[JobStep]) -> Coverage:
    """Return how much of the job was examined, as whole steps and their parts."""
    ran = [step for step in steps if not step.skipped]
    return Coverage(
        compared=sum(step.name in MEASURING for step in ran),
        undecided=sum(step.coverage.undecided for step in ran if step.coverage),
        not_compared=tuple(part for step in steps for part in step.left_out),
    )


def status_of(steps: Sequence[JobStep]) -> int:
    """Return the exit status: the worst of the steps that ran; 3 if none measured or a requested one was not run.

    Parts left out by a step are already reflected in its status.
    """
    skipped = tuple(part for step in steps if step.skipped for part in step.left_out)
    own = Coverage(compared=coverage_of(steps).compared, not_compared=skipped).status()
    return worst([own, *(step.status for step in steps if not step.skipped)])


def worst(statuses: Iterable[int]) -> int:
    """Return the worst of several exit statuses; an undefined one (a crash) counts as not measured."""
    return _SEVERITY[min(map(gravity, statuses), default=gravity(NOT_MEASURED))]


def gravity(status: int) -> int:
    """Return a key that sorts the worst status first."""
    return _SEVERITY.index(status if status in _SEVERITY else NOT_MEASURED)


def headline(steps: Sequence[JobStep], status: int) -> tuple[str, str, str]:
    """Return the verdict's word and style, and its sentence: the result of what ran, and what was left out."""
    word, style, sentence = _VERDICTS.get(status, _ERROR)
    coverage, gaps = coverage_of(steps), _gaps(steps)
    if status == OK:
        word += "" if coverage.whole else " for what ran"
        sentence = _passed(steps)
    elif status == NOT_MEASURED and not coverage.compared:
        sentence = "nothing was measured"
    return word, style, "; ".join(part for part in (sentence, gaps) if part)


def _passed(steps: Sequence[JobStep]) -> str:
    """Return the positive results of the steps that examined something: nothing got slower where the gate decided."""
    return ", ".join(
        _CLAIMS[step.name] if not step.coverage or not step.coverage.undecided else _OF_DECIDED
        for step in steps
        if step.name in _CLAIMS and not step.skipped and (step.coverage is None or step.coverage.compared)
    )


def _gaps(steps: Sequence[JobStep]) -> str:
    """Return what is undecided, which steps were skipped, and what others left out, or ""."""
    undecided = sum(step.coverage.undecided for step in steps if step.coverage and not step.skipped)
    skipped = [step.name for step in steps if step.skipped and step.left_out]
    parts = [part.what for step in steps if not step.skipped for part in step.left_out]
    words = [f"{undecided} undecided"] if undecided else []
    words += [f"{_and(skipped)} skipped"] if skipped else []
    if parts:
        named = parts[:_NAMED] + ([f"{len(parts) - _NAMED} more"] if parts[_NAMED:] else [])
        words.append(f"not looked at: {', '.join(named)}")
    return ", ".join(words)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def show(steps: Sequence[JobStep], status: int, pages: Mapping[str, Path]) -> None:
    """Print the card on stdout.

    Args:
        steps: In their order.
        status: Exit status of the job.
        pages: Name of a step -> its page.
    """
    console = stdout()
    card = Card.of(console)
    word, style, sentence = headline(steps, status)
    took = f"({sum(step.seconds for step in steps):.0f} s, exit status {status})"
    card.gap()
    card.add((word, style), f": {sentence} {took}", indent=2)
    card.gap()
    styles = ["dim" if step.skipped else _STYLES.get(step.status, "bold yellow") for step in steps]
    words = ["skipped" if step.skipped else step.outcome for step in steps]
    took_s = ["" if step.skipped else f"{step.seconds:.0f} s" for step in steps]
    names = [step.name for step in steps]
    lines = card.rows(list(zip(names, zip(words, styles, strict=True), took_s, strict=True)), right={2}, first="  ")
    for step, line in zip(steps, lines, strict=True):
        card.add(line, "  ", card.cut(terminal(step.skipped or step.evidence), line.cell_len + 2), wrap=False)
    card.gap()
    card.add(_next(steps, status), first=("next: ", "cyan"), wrap=False)
    for name, page in pages.items():
        card.add(page.as_uri(), first=f"  {name:8} ", wrap=False)
    card.show(console)


def _next(steps: Sequence[JobStep], status: int) -> str:
    """Return the next command: repeat the step that decided the status, or try a change."""
    skipped = {step.name: step.why_skipped for step in steps if step.why_skipped and step.left_out}
    gate = skipped.pop("gate", None)
    if status == OK and (gate is None or gate.code == ASKED):
        return CHANGE
    if status == OK and gate is not None:
        return next((why.remedy for why in (gate, *skipped.values()) if why.remedy), DOCTOR)
    decisive = next((step for step in steps if step.status == status and not step.skipped), None)
    if decisive is None:
        return next((why.remedy for why in (gate, *skipped.values()) if why and why.remedy), DOCTOR)
    why = "more rounds decide it" if status == UNDECIDED else "repeat that step, whose lines above say more"
    return f"rocattn {shlex.join(decisive.commands[-1])}  # {why}"


def pages_of(steps: Iterable[JobStep], out: Path) -> dict[str, Path]:
    """Return the pages written by this job, by step name; an older job's pages are excluded.

    Args:
        steps: When all have ended.
        out: The job's folder.
    """
    written = {"gate": {OK, FAILED, UNDECIDED}, "report": {OK}, "site": {OK}}  # otherwise the page may be older
    pages = {
        step.name: (out / step.name / "index.html").resolve()
        for step in steps
        if not step.skipped and step.status in written.get(step.name, ())
    }
    return {name: page for name, page in pages.items() if page.is_file()}


def read_back(step: JobStep, out: Path, since_s: float) -> None:
    """Fill in a completed step's findings and coverage from the files that it wrote.

    Args:
        step: The step.
        out: The job's folder.
        since_s: Start of the job, from `time.time`: older files belong to another job.
    """
    if step.skipped or step.name not in _FILES:
        return
    read, path = _FILES[step.name][0], out / step.name / _FILES[step.name][1]
    try:
        if path.stat().st_mtime >= since_s:
            step.evidence, step.coverage = read(path)
    except (OSError, ValueError, KeyError, TypeError, RocattnError):
        return  # an invalid file is no evidence


def _verified(path: Path) -> tuple[str, Coverage]:
    report = decoded(path.read_bytes())
    left_out = msgspec.convert(report.get("not_compared", []), tuple[NotCompared, ...])
    said = f"{report['ran']} outputs checked against float64, {report['failed']} wrong"
    return said, Coverage(compared=report["ran"], not_compared=left_out)


def _benched(path: Path) -> tuple[str, Coverage]:
    from rocattn_profiling.measure import records as measured
    from rocattn_profiling.pages.render import count

    records = list(measured.read_records(path))
    timed = [record for record in records if record.launches]
    backends = sorted({record.backend for record in timed})
    configs = len({(record.suite, record.label) for record in timed})
    said = f"{count(configs, 'problem')} timed on {', '.join(backends) or 'no backend'}"
    return said, measured.coverage_of(records)


def _audited(path: Path) -> tuple[str, Coverage]:
    from rocattn_profiling.kernels.compare import Comparison
    from rocattn_profiling.kernels.verdict import counts

    comparison = decoded(path.read_bytes(), Comparison)
    return counts(comparison), comparison.coverage


def _gated(path: Path) -> tuple[str, Coverage]:
    from rocattn_profiling.gate import verdict
    from rocattn_profiling.gate.formats.render import counted

    result = verdict.read(path)
    return counted(result), result.coverage


def _profiled(path: Path) -> tuple[str, Coverage]:
    from rocattn_profiling.ci.known import FOLDERS
    from rocattn_profiling.profile.collect.store import read_profile

    places = {name: path.parents[1] / name / path.name for name in FOLDERS}
    # They are written one after the other: an older one is from an earlier job.
    is_of_job = {name: each.is_file() and each.stat().st_mtime >= path.stat().st_mtime for name, each in places.items()}
    read = [read_profile(each) for name, each in places.items() if is_of_job[name]]
    measured, passes = sum(each.measured for each in read), sum(len(each.passes) for each in read)
    gaps = [part for each in read for part in each.not_compared]
    gaps += [
        NotCompared(what=name, code="refused", text="rocattn profile refused it, as its line above says", needed=True)
        for name, known in is_of_job.items() if not known
    ]  # fmt: skip
    return f"{measured} of {passes} passes measured", Coverage(compared=measured, not_compared=tuple(gaps))


_FILES = {
    "verify": (_verified, "verify.json"), "bench": (_benched, "records.jsonl"), "audit": (_audited, "comparison.json"),
    "gate": (_gated, "verdict.json"), OF_GPU: (_profiled, "profile/profile.json"),
}  # fmt: skip
"""The function that reads a step's evidence, and its file."""
