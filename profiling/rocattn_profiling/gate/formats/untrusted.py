"""A verdict from a job that ran foreign code: only its numbers and names are taken, and the conclusion is our own.

A pull request's job can write anything into its verdict. The job that comments has a token, so it takes no sentence
from there: what is kept is typed, limited and, where it becomes Markdown, written as text.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import open_regular
from rocattn_profiling.base.markup import plain
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.verdict import Entry, GateResult

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn_profiling.gate.rule.noise_record import NoiseSource
    from rocattn_profiling.gate.rule.pairs import Decision
    from rocattn_profiling.gate.verdict import Cause, SideFacts

MOST_BYTES = 64 << 20  # 500 benchmarks with every sample of 40 launches take about 25 MB
MOST_ENTRIES = 5000
_LARGEST = 1e30  # of a number: no unit of ours gets near it
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME = 200  # characters
_PATH = re.compile(r"(?!\.\.)[\w.+-]+(/(?!\.\.)[\w.+-]+)*", re.ASCII)


class UntrustedError(RocattnError):
    """Raised when a file is no verdict that can be shown; one line, without a word of the file's own."""


def read(path: Path, *, explain: bool = False) -> GateResult:
    """Read a verdict that foreign code may have written.

    Args:
        path: A regular file; links are not followed.
        explain: Whether reasons and texts of causes are kept, too: text that the pull request chose.

    Raises:
        UntrustedError: When it is missing, too large, or not a verdict; its content is never quoted.
    """
    data = _bytes(path)
    try:
        result = msgspec.json.decode(data, type=GateResult)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UntrustedError(f"{path.name} is not a verdict of rocattn gate") from error
    if result.schema != verdict.SCHEMA:
        raise UntrustedError(f"{path.name} has another schema than {verdict.SCHEMA}")
    if len(result.entries) > MOST_ENTRIES:
        raise UntrustedError(f"{path.name} has more than {MOST_ENTRIES} entries")
    for side in (result.base, result.head):
        if side.revision is not None and not _SHA.fullmatch(side.revision.sha):
            raise UntrustedError(f"{path.name} names a revision that is no commit")
    if not all(map(_is_sane, _numbers(result))):
        raise UntrustedError(f"{path.name} holds a number that is no measurement")
    return _reduced(result, explain=explain)


def _bytes(path: Path) -> bytes:
    try:
        # An unpacked artifact may hold links to anything, or a pipe that never ends.
        with open_regular(path, follow_links=False) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UntrustedError(f"cannot read {path.name}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UntrustedError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB")
    return data


def _numbers(result: GateResult) -> list[float | None]:
    policy = result.policy
    numbers: list[float | None] = [
        result.suite_shift, result.canary_shift, result.launches, result.seed,
        result.machine.cores, policy.tolerance, policy.level,
    ]  # fmt: skip
    for entry in result.entries:
        numbers += [entry.base, entry.head]
        if (noise := entry.noise) is not None:
            numbers += [noise.sessions, noise.launches, noise.value]
        if (decision := entry.decision) is not None:
            numbers += [decision.ratio, decision.ratio_low, decision.ratio_high, decision.p, decision.rounds_used]
    return numbers


def _is_sane(number: float | None) -> bool:
    return number is None or (math.isfinite(number) and 0 <= number <= _LARGEST)


def _reduced(result: GateResult, *, explain: bool) -> GateResult:
    """Return the verdict with what may be shown of it, concluded anew."""
    entries = [_entry(entry, explain=explain) for entry in result.entries]
    entries.sort(key=lambda entry: (verdict.ORDER.index(entry.status), not entry.suspect, -verdict.badness(entry)))
    invalid = "the machine, not the code, changed speed" if result.invalid else ""
    problems = [plain(p, 300) if explain else "a waiver is expired or not needed" for p in result.problems[:50]]
    overall, sentence = verdict.conclude(entries, invalid, problems)
    return msgspec.structs.replace(
        result,
        verdict=overall,
        sentence=sentence,
        base=_side(result.base, explain=explain),
        head=_side(result.head, explain=explain),
        environment_differences=dict(list(result.environment_differences.items())[:50]),
        patterns=[],
        again=_again(result),
        invalid=invalid,
        notes=[plain(note, 300) for note in result.notes[:50]] if explain else [],
        problems=problems,
        noise=_source(result.noise, explain=explain),
        counts={s: n for s in verdict.ORDER if (n := sum(entry.status == s for entry in entries))},
        entries=entries,
    )


def _again(result: GateResult) -> str:
    """Return the command that compares the same commits; empty where a side is not one."""
    sides = [side.revision for side in (result.base, result.head)]
    shas = [revision.sha[:12] for revision in sides if revision is not None and not revision.dirty]
    quick = " --quick" if result.quick else ""
    return f"rocattn gate run --base {shas[0]} --head {shas[1]}{quick}" if len(shas) == len(sides) else ""


def _source(source: NoiseSource | None, *, explain: bool) -> NoiseSource | None:
    """Return where earlier noise was known from, without the words and the path that the run chose."""
    if source is None:
        return None
    path, why_not = (plain(source.path, 300), plain(source.why_not, 300)) if explain else ("", "")
    return msgspec.structs.replace(source, path=path, why_not=why_not or ("not known" if source.why_not else ""))


def _side(side: SideFacts, *, explain: bool) -> SideFacts:
    if side.revision is None:
        return side
    subject = side.revision.subject if explain else ""
    return msgspec.structs.replace(side, revision=msgspec.structs.replace(side.revision, subject=subject))


def _entry(entry: Entry, *, explain: bool) -> Entry:
    return Entry(
        label=plain(entry.label, _NAME),
        name=plain(entry.name, _NAME),
        unit=plain(entry.unit, 20),
        metric=plain(entry.metric, 20),
        arch=plain(entry.arch, 20),
        status=entry.status,
        decision=_decision(entry.decision, explain=explain),
        base=entry.base,
        head=entry.head,
        reason=plain(entry.reason, 600) if explain else "",
        causes=[shown for cause in entry.causes[:20] if (shown := _cause(cause, explain=explain)) is not None],
        waiver=plain(entry.waiver, 400) if explain else "",
        rule=plain(entry.rule, 200) if explain else "",
        suspect=entry.suspect and entry.status == "inconclusive",
        noise=entry.noise,
    )


def _decision(decision: Decision | None, *, explain: bool) -> Decision | None:
    if decision is None:
        return None
    return msgspec.structs.replace(
        decision, id="", reason=plain(decision.reason, 600) if explain else "", undecided=None
    )


def _cause(cause: Cause, *, explain: bool) -> Cause | None:
    """Return a cause's kind and place; nothing where there is no place that reads as one."""
    place = cause.location
    if place is not None and not (len(place.path) <= _NAME and _PATH.fullmatch(place.path) and 0 < place.line < 10**7):
        place = None
    if explain:
        return msgspec.structs.replace(cause, text=plain(cause.text, 400), about="", location=place)
    return msgspec.structs.replace(cause, text="", about="", location=place) if place is not None else None
