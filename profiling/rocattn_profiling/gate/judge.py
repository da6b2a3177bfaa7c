"""Judging stored pairs without measuring: JSON Lines in, a decision for each line out.

A line that is no pair costs one message and stops nothing. Lines are judged each on its own, or all as one session.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.gate.decide import SuiteDecision, decide, decide_suite, stored
from rocattn_profiling.gate.look import Policy
from rocattn_profiling.gate.pairs import Pair, PairError, Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHOWN = 160  # characters of what is wrong with a line


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it is stored; the id is handed back as it came."""

    id: str | int
    a: Side
    b: Side


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a file.

    Attributes:
        lines: The lines out as JSON, one for each pair, in the order of the lines in.
        counts: Verdict -> how many.
        problems: A message for each line that is no pair.
        invalid: Why the session as a whole does not count (only when judged as one); else empty.
    """

    lines: list[bytes]
    counts: dict[str, int]
    problems: list[str]
    invalid: str = ""


def judge(rows: Iterable[bytes], policy: Policy | None = None, *, session: bool = False) -> Judged:
    """Judge the lines of a file.

    Args:
        rows: Lines; empty ones are passed over.
        policy: The rule.
        session: The lines are the benchmarks of one session: they share the chance of a false alarm (Holm), and are
            void together when the machine changed speed.
    """
    policy = policy or Policy()
    ids: list[str | int] = []
    problems: list[str] = []
    pairs = _pairs(rows, ids, problems)
    found = _session(list(pairs), policy) if session else None
    decisions = found.decisions if found else [decide(pair, policy) for pair in pairs]
    lines = [
        msgspec.json.encode(msgspec.to_builtins(decision) | {"id": id_})
        for id_, decision in zip(ids, decisions, strict=True)
    ]
    counts = Counter(decision.verdict for decision in decisions)
    return Judged(lines=lines, counts=dict(counts), problems=problems, invalid=found.invalid if found else "")


def _session(pairs: list[Pair], policy: Policy) -> SuiteDecision:
    return decide_suite(pairs, stored(policy, max((pair.rounds for pair in pairs), default=0)))


def _pairs(rows: Iterable[bytes], ids: list[str | int], problems: list[str]) -> Iterator[Pair]:
    """Go through the pairs of lines; what is none is told in ``problems``, the ids of the others go to ``ids``."""
    decoder = msgspec.json.Decoder(Line)
    for number, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        try:
            line = _decode(decoder, row)
            pair = Pair(id=str(line.id), a=line.a, b=line.b)
            pair.check()
        except (msgspec.DecodeError, PairError, UnicodeDecodeError, RecursionError) as error:
            problems.append(f"line {number} is no pair: {' '.join(str(error).split())[:_SHOWN]}")
            continue
        ids.append(line.id)
        yield pair


def _decode(decoder: msgspec.json.Decoder[Line], row: bytes) -> Line:
    """Decode a line; null stands for absent."""
    try:
        return decoder.decode(row)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(row)
        cleaned = _without_nulls(plain)
        if cleaned == plain:
            raise
        return msgspec.convert(cleaned, Line)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
