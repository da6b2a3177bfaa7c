"""A verdict from a job that ran untrusted code: only its numbers and names are used; the conclusion is recomputed.

A pull request's job can write anything into its verdict, and the job that comments has a token. The record's types
bound the numbers (`rocattn_profiling.gate.rule.pairs.Number`), this module drops the sentences, and `markdown` escapes
the rest and cuts it to size.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import DocumentError, decoded, open_regular
from rocattn_profiling.base.reasons import NotCompared
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import SCHEMA, Cause, Entry, GateResult, SideFacts, counts_of, coverage_of
from rocattn_profiling.gate.result import worst_first
from rocattn_profiling.gate.rule.policy import Policy

MOST_BYTES = 64 << 20  # 500 benchmarks with every sample of 40 launches take about 25 MB
MOST_ENTRIES = 5000
_PATH = re.compile(r"(?!\.\.)[\w.+-]{1,200}(/(?!\.\.)[\w.+-]{1,200})*", re.ASCII)
# A test's node id, or the folder of a suite; nothing that a shell or the gate's options would interpret.
_SOURCE = re.compile(r"(?![-/.])[\w./+-]{1,200}(::\w{1,100}){0,3}", re.ASCII)
_MOST_SOURCES = 20
_VALUED = frozenset({"--suite", "--pytest", "--command", "--build", "--results", "--requirements", "--python"})
_INVALID = "the machine, not the code, changed speed"
_MOST_LEFT_OUT = 50
_PROBLEM = "a waiver has expired or is not needed"


class UntrustedError(RocattnError):
    """Raised when a file is not a verdict that can be shown; the message is one line that quotes nothing from it."""


def read(path: Path, *, explain: bool = False) -> GateResult:
    """Read a verdict that untrusted code may have written.

    Args:
        path: A regular file; links are not followed.
        explain: Also keep its sentences, which the pull request controls.

    Raises:
        UntrustedError: The file is missing, too large, or not a verdict.
    """
    try:
        # An unpacked artifact may contain links to anything, or a pipe that never ends.
        with open_regular(path, follow_links=False) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UntrustedError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB")
        result = decoded(data, GateResult)
    except OSError as error:
        raise UntrustedError(f"cannot read {path.name}: {error.strerror}") from error
    except DocumentError as error:
        raise UntrustedError(f"{path.name} is not a verdict of rocattn gate") from error
    if result.schema != SCHEMA or len(result.entries) > MOST_ENTRIES:
        raise UntrustedError(f"{path.name} has another schema, or more than {MOST_ENTRIES} entries")
    return _concluded(result if explain else _without_sentences(result))


def _concluded(result: GateResult) -> GateResult:
    """Return the verdict with its conclusion recomputed from the entries."""
    entries = sorted((_checked(entry) for entry in result.entries), key=worst_first)
    invalid = _INVALID if result.invalid else ""
    tolerance, limit_s = result.policy.tolerance, result.budget.limit_s
    more = result.beyond_entries[:_MOST_LEFT_OUT]
    overall, sentence = conclude(entries, invalid, result.problems, tolerance=tolerance, limit_s=limit_s, more=more)
    again, note = _again(result)
    counts, notes = counts_of(entries), [*result.notes, *([note] if note else [])]
    return msgspec.structs.replace(
        result, verdict=overall, sentence=sentence, invalid=invalid, again=again, counts=counts, entries=entries,
        patterns=[], notes=notes, not_compared=list(coverage_of(entries, more).not_compared),
    )  # fmt: skip


def _again(result: GateResult) -> tuple[str, str]:
    """Return the command that compares the same sides again, and a note on what it leaves out.

    The pull request chose what was measured. Folders and tests are repeated, like other names. Commands, packages and
    interpreters are not, since a reader would run them.
    """
    sides = [side.revision for side in (result.base, result.head)]
    shas = [revision.sha[:12] for revision in sides if revision is not None and not revision.dirty]
    if len(shas) != len(sides):
        return "", ""
    words = ["rocattn", "gate", "run", "--base", shas[0], "--head", shas[1]]
    try:
        given = shlex.split(result.again[: _MOST_SOURCES * 300])
    except ValueError:  # unbalanced quotes
        given = []
    left_out: dict[str, None] = {}
    for option, value in itertools.pairwise(given):
        if option in {"--suite", "--pytest"} and _SOURCE.fullmatch(value) and ".." not in value:
            words += [option, value]
        elif option in _VALUED:
            left_out[option] = None
    if result.policy.tolerance != Policy().tolerance:
        words += ["--tolerance", f"{100 * result.policy.tolerance:g}"]
    words += ["--quick"] if result.quick else []
    if not left_out:
        return shlex.join(words), ""
    names = " and ".join(left_out)
    if left_out.keys() & {
        "--command",
        "--build",
        "--results",
        "--suite",
        "--pytest",
    }:  # without these something else would be measured
        return "", f"no command repeats this run: the pull request's values for {names} are not shown"
    return shlex.join(words), f"the command to repeat it lacks the pull request's values for {names}"


def _checked(entry: Entry) -> Entry:
    """Return an entry without locations that are not paths, and without causes that are then empty."""
    causes = [
        cause if cause.location is None or (_PATH.fullmatch(cause.location.path) and cause.location.line > 0)
        else msgspec.structs.replace(cause, location=None)
        for cause in entry.causes
    ]  # fmt: skip
    return msgspec.structs.replace(
        entry,
        causes=[cause for cause in causes if cause.text or cause.location],
        suspect=entry.suspect and entry.status == "inconclusive",
    )


def _without_sentences(result: GateResult) -> GateResult:
    """Return a verdict with only its numbers and names: text in a field that is not copied here is dropped."""
    noise = result.noise
    return msgspec.structs.replace(
        result,
        patterns=[],
        notes=[],
        problems=[_PROBLEM for _ in result.problems[:50]],
        not_compared=[
            NotCompared(what="more in the run's own summary", code="more", text="", needed=each.needed)
            for each in result.beyond_entries[:1]
        ],
        noise=noise and msgspec.structs.replace(noise, path="", why_not="not known" if noise.why_not else ""),
        base=_side(result.base),
        head=_side(result.head),
        entries=[_entry(entry) for entry in result.entries],
    )


def _side(side: SideFacts) -> SideFacts:
    revision = side.revision and msgspec.structs.replace(side.revision, name="", subject="")
    return msgspec.structs.replace(side, revision=revision)


def _entry(entry: Entry) -> Entry:
    decision = entry.decision and msgspec.structs.replace(entry.decision, id="", reason="", undecided=None)
    return Entry(
        label=entry.label, name=entry.name, unit=entry.unit, metric=entry.metric, arch=entry.arch, status=entry.status,
        decision=decision, base=entry.base, head=entry.head, suspect=entry.suspect, noise=entry.noise,
        causes=[Cause(kind=cause.kind, text="", location=cause.location) for cause in entry.causes[:20]],
    )  # fmt: skip
