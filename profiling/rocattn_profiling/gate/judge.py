"""Judging stored pairs without measuring: JSON Lines in, a decision for each line out.

A line that is no pair costs one message and stops nothing. Lines are judged each on its own, or all as one session.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate.rule.pairs import Pair, PairError, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.rule.suite import SuiteDecision, decide, decide_suite, stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHOWN = 160  # characters of what is wrong with a line
_MOST_PROBLEMS = 1000  # told one by one: a file that is something else altogether has millions
_GZIP = b"\x1f\x8b"
_EXACT = 2.0**53  # floats from here on are whole by rounding
_NO_JSON = re.compile(rb"[\[:,]\s*(-?Infinity|NaN)\b")  # as Python's json writes them


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
        problems: A message for each line that is no pair; the first thousand of them.
        refused: How many lines are none.
        invalid: Why the session as a whole does not count (only when judged as one); else empty.
    """

    lines: list[bytes]
    counts: dict[str, int]
    problems: list[str]
    refused: int = 0
    invalid: str = ""


def judge(rows: Iterable[bytes], policy: Policy | None = None, *, session: bool = False) -> Judged:
    """Judge the lines of a file.

    Args:
        rows: Lines; empty ones are passed over.
        policy: The rule.
        session: The lines are the benchmarks of one session: they share the chance of a false alarm (Holm), and are
            void together when the machine changed speed.

    Raises:
        PairError: When the file is a compressed one.
    """
    policy = policy or Policy()
    reader = _Reader(rows)
    found = _session(reader, policy) if session else None
    decisions = found.decisions if found else [decide(pair, policy) for _, pair in reader.pairs()]
    lines = [
        msgspec.json.encode(msgspec.to_builtins(decision) | {"id": id_})
        for id_, decision in zip(reader.ids, decisions, strict=True)
    ]
    return Judged(
        lines=lines,
        counts=dict(Counter(decision.verdict for decision in decisions)),
        problems=reader.problems,
        refused=reader.refused,
        invalid=found.invalid if found else "",
    )


def _session(reader: _Reader, policy: Policy) -> SuiteDecision:
    pairs, rounds = _Stored(), 0
    for text, pair in reader.pairs():
        pairs.append(text)
        rounds = max(rounds, pair.rounds)
    return decide_suite(pairs, stored(policy, rounds))


class _Stored:
    """Pairs as the lines that they were read from, made anew whenever one is asked for: a fourth of the memory."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Line)
        self._texts: list[bytes] = []

    def append(self, text: bytes) -> None:
        """Add a line that is a pair."""
        self._texts.append(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Pair:
        return _pair(_decode(self._decoder, self._texts[index]))


class _Reader:
    """Goes through lines: keeps the ids of pairs, and tells what is no pair."""

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.rows = rows
        self.ids: list[str | int] = []
        self.problems: list[str] = []
        self.refused = 0

    def pairs(self) -> Iterator[tuple[bytes, Pair]]:
        """Give the lines that are pairs with these, in order."""
        decoder = msgspec.json.Decoder(Line)
        for number, row in enumerate(self.rows, start=1):
            if number == 1 and row.startswith(_GZIP):
                raise PairError("the file is compressed (gzip): unpack it, or hand its lines to `rocattn gate judge -`")
            text = row.removeprefix(codecs.BOM_UTF8) if number == 1 else row
            if not text.strip():
                continue
            try:
                line = _decode(decoder, text)
                pair = _pair(line)
                pair.check()
            except (msgspec.DecodeError, PairError, UnicodeDecodeError, RecursionError) as error:
                self._refuse(number, error, text)
                continue
            self.ids.append(line.id)
            yield text, pair

    def _refuse(self, number: int, error: Exception, row: bytes) -> None:
        self.refused += 1
        if self.refused <= _MOST_PROBLEMS:
            self.problems.append(f"line {number} is no pair: {_why(error, row)}")


def _pair(line: Line) -> Pair:
    return Pair(id=str(line.id), a=line.a, b=line.b)


def _why(error: Exception, row: bytes) -> str:
    """Say in one line what is wrong with a row."""
    if isinstance(error, msgspec.DecodeError) and (token := _NO_JSON.search(row)):
        return f"it holds {token[1].decode()}, which is neither JSON nor a time"
    return terminal(str(error), _SHOWN)


def _decode(decoder: msgspec.json.Decoder[Line], row: bytes) -> Line:
    """Decode a line; null stands for absent, and 3.0 for 3, as writers of tables have it."""
    try:
        return decoder.decode(row)
    except msgspec.ValidationError:
        return msgspec.convert(_cleaned(msgspec.json.decode(row)), Line)


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value
