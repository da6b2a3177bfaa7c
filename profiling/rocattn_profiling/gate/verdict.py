"""Entries for measured cases, and reading and writing the verdict as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import is_rate
from rocattn_profiling.base.files import DocumentError, decoded, of_other_schema, open_regular, write_text
from rocattn_profiling.gate.foreign.readers import undirected
from rocattn_profiling.gate.model import SCHEMA, Entry, GateResult, SessionResult, SideName, Status
from rocattn_profiling.gate.noise_record import known_noise
from rocattn_profiling.gate.rule.pairs import Decision, Pair

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Outcome

FILE = "verdict.json"


class _Schema(msgspec.Struct):
    schema: int = SCHEMA


def entries_of(cases: Sequence[Case], session: SessionResult) -> list[Entry]:
    """Return an entry for each case."""
    decisions = {decision.id: decision for decision in session.decision.decisions}
    pairs = {pair.id: pair for pair in session.pairs}
    unreached = set(session.unreached)
    return [
        _judged(case, pairs[case.label], decisions[case.label], session.decision.levels.get(case.label))
        if case.label in decisions
        else _entry(case, "unreached", reason="there was no time left to run it on both sides")
        if case.label in unreached
        else _unjudged(case, session.outcomes[case.label])
        for case in cases
    ]


def _judged(case: Case, pair: Pair, decision: Decision, levels: tuple[float, float] | None) -> Entry:
    why = ungated(case)
    base, head = levels or (None, None)
    if levels and case.benchmark.better == "larger":  # its launches record the inverse: the time per unit
        base, head = 1 / levels[0], 1 / levels[1]
    return _entry(
        case,
        "ungated" if why else decision.verdict,  # type: ignore[arg-type]  # verdicts are a subset of Status
        unit=pair.a.unit,
        decision=decision,
        base=base,
        head=head,
        base_launches=pair.a.launches,
        head_launches=pair.b.launches,
        noise=known_noise(pair),
        reason=why,
    )


def ungated(case: Case) -> str:
    """Return why values are shown but not judged: the better direction is unknown, or asv assumes the wrong one."""
    benchmark = case.benchmark
    if benchmark.better == "unknown":
        return undirected(benchmark.unit)
    if benchmark.type == "track" and not benchmark.better and is_rate(benchmark.unit):
        return f"asv treats smaller as better, but {benchmark.unit} says otherwise: shown, not judged"
    return ""


def _entry(case: Case, status: Status, **facts: Any) -> Entry:
    benchmark = case.benchmark
    named = {"label": case.label, "name": benchmark.name, "params": case.parameters, "unit": benchmark.unit}
    return Entry(**{**named, "metric": benchmark.metric, "status": status, **facts})


def _unjudged(case: Case, outcomes: dict[SideName, Outcome]) -> Entry:
    base, head = outcomes["base"], outcomes["head"]
    bad = {"failed", "timeout"}
    status: Status
    if "void" in {base.status, head.status}:
        status, shown = "void", head if head.status == "void" else base
    elif head.status == "ok":
        status, shown = "new", base
    elif base.status == "ok":
        status, shown = ("failed" if head.status in bad else "missing"), head
    elif head.status in bad:
        # If base skipped it, only head can show the failure.
        status, shown = ("failed" if base.status == "skipped" else "broken"), head
    else:
        status, shown = "skipped", head
    where = "base: " if status == "new" else ""
    traceback = shown.traceback if shown.status in bad else ""
    return _entry(case, status, reason=where + shown.reason, traceback=traceback)


def write(result: GateResult, path: Path) -> Path:
    """Write only the verdict, as JSON.

    Raises:
        RocattnError: The file cannot be written.
    """
    return write_text(path, to_json(result))


def to_json(result: GateResult) -> str:
    """Return the verdict as JSON, which `read` reads and from which every other form is made."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"


def read(path: Path) -> GateResult:
    """Read a verdict.

    Raises:
        RocattnError: It is missing, not a regular file, or not a verdict of this schema.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
        # Check this first, because a verdict of another schema may lack fields of this one.
        schema = decoded(data, _Schema).schema
        if schema != SCHEMA:
            raise RocattnError(of_other_schema(path, schema, SCHEMA))
        return decoded(data, GateResult)
    except OSError as error:
        raise RocattnError(f"cannot read the gate's verdict {path}: {error.strerror}") from error
    except DocumentError as error:
        raise RocattnError(f"{path} is not a verdict of rocattn gate: {error}") from error
