"""``rocattn gate judge``: decide stored pairs without measuring, JSON Lines in and a decision for each line out.

A line that is not a pair costs one message and stops nothing. Lines are decided each on its own, or all as one session.
"""

from __future__ import annotations

import argparse
import codecs
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from rocattn_profiling.base.console import emit_json, say
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.reasons import Coverage, Reason, counted
from rocattn_profiling.base.status import USAGE, CommandError
from rocattn_profiling.gate import options as gate_options
from rocattn_profiling.gate.rule.pairs import Pair, PairError, Side
from rocattn_profiling.gate.rule.policy import Policy

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.suite import SuiteDecision

_DESCRIPTION = """Decide stored pairs, a JSON object a line:
{"id": …, "a": {"benchmark", "side", "unit", "number", "launches": [{"round", "pos", "start_us", "samples": [..],
"cpu": [..], "nivcsw": [..], "canary"}], "history": [[launch, ..], ..]}, "b": {…}}; a is base, b is head. cpu, nivcsw
(involuntary context switches), canary (CPU time of the same fixed work in each launch's process) and history (launches
of earlier sessions) are optional.
A line out: {"id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason", "undecided",
"rounds_needed"}; undecided is null, or why the pair is: {"code", "text", "remedy"}."""
_MESSAGE = 160  # characters of what is wrong with a line
_MOST_PROBLEMS = 1000  # listed: a file of something else altogether has millions
_GZIP = b"\x1f\x8b"
_EXACT = 2.0**53  # floats from here on are integers by rounding
_NO_JSON = re.compile(rb"[\[:,]\s*(-?Infinity|NaN)\b")  # as Python's json writes them


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("input", metavar="IN.jsonl", help="stored pairs, one a line; - for standard input")
    parser.add_argument(
        "--out", default="out/gate/judged.jsonl", metavar="FILE",
        help="decisions, one a line; - for standard output (default %(default)s)",
    )  # fmt: skip
    gate_options.add_tolerance(parser)
    parser.add_argument(
        "--session", action="store_true",
        help="treat the lines as one session: Holm's correction over all of them, void if the machine changed speed",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    parser.add_argument("--json", action="store_true", help="print counts as JSON on stdout, and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Judge a file; exit 1 for a regression, else 3 if a line was no pair."""
    policy = gate_options.Options(tolerance=gate_options.chosen_tolerance(arguments)).policy()
    _check_out(arguments)
    try:
        with _opened(arguments.input) as rows:
            judged = judge(rows, policy, session=arguments.session)
    except KeyboardInterrupt as error:  # unlike measurements, decisions are made again in seconds
        error.add_note("no decision was written")
        raise
    _report(judged, arguments)
    return judged.coverage.status(failed=bool(judged.counts.get("regression")), strict=arguments.strict)


def _check_out(arguments: argparse.Namespace) -> None:
    """Refuse an output that would do harm, before anything is judged."""
    if arguments.out == "-":
        if arguments.json:
            raise CommandError("--out - and --json both write to standard output: give one of them")
        return
    source, out = Path(arguments.input), Path(arguments.out)
    if arguments.input != "-" and source.exists() and out.exists() and source.samefile(out):
        raise CommandError(f"--out {out} is the file of stored pairs itself, and the decisions would replace it")


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        if sys.stdin is None:
            raise CommandError("standard input is closed: name a file of stored pairs")
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", USAGE) from error


def _report(judged: Judged, arguments: argparse.Namespace) -> None:
    """Write the decisions, and print problems and counts."""
    from rocattn_profiling.pages.render import count

    for problem in judged.problems:
        say(f"{arguments.input}: {problem}")
    if more := judged.refused - len(judged.problems):
        say(f"{arguments.input}: {count(more, 'more line')} refused")
    if judged.invalid:
        say(f"the session does not count: {judged.invalid}")
    data = b"".join(line + b"\n" for line in judged.lines)
    out = _written(arguments.out, data) if data else "no decision was written"
    if arguments.json:
        facts: dict[str, Any] = {"counts": judged.counts, "problems": judged.problems, "refused": judged.refused}
        facts["not_compared"] = judged.coverage.not_compared
        emit_json({**facts, "invalid": judged.invalid, "out": out})
    counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(judged.counts.items())) or "no pairs"
    gaps = msgspec.structs.replace(judged.coverage, undecided=0).gaps("judged")
    say(f"{counts}{'; ' * bool(gaps)}{gaps}: {out}")


def _written(name: str, data: bytes) -> str:
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return "standard output"
    from rocattn_profiling.base.files import write_bytes

    return str(write_bytes(Path(name), data))


class StoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it is stored; the id is written back as it came."""

    id: str | int
    a: Side
    b: Side

    def pair(self) -> Pair:
        """Return it as the rule reads it."""
        return Pair(id=str(self.id), a=self.a, b=self.b)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions on a file.

    Attributes:
        lines: The lines out as JSON, one for each pair, in the order of the lines in.
        counts: Verdict -> how many.
        problems: A message for each line that is not a pair; the first thousand of them.
        refused: How many lines are no pair.
        invalid: Why the session as a whole does not count (only when judged as one); else empty.
    """

    lines: list[bytes]
    counts: dict[str, int]
    problems: list[str]
    refused: int = 0
    invalid: str = ""

    @property
    def coverage(self) -> Coverage:
        """How many pairs were decided; a line that is none is needed."""
        undecided = self.counts.get("inconclusive", 0)
        of = [("# line", "# lines", Reason("no_pair", "no pair"))] * self.refused
        return Coverage(
            compared=len(self.lines) - undecided, undecided=undecided, not_compared=counted(of, needed=True)
        )


def judge(rows: Iterable[bytes], policy: Policy | None = None, *, session: bool = False) -> Judged:
    """Judge the lines of a file.

    Args:
        rows: Lines; empty ones are skipped.
        policy: The rule.
        session: The lines are the benchmarks of one session: they share the probability of a false alarm (Holm), and
            are all void when the machine changed speed.

    Raises:
        PairError: When the file is a compressed one.
    """
    from rocattn_profiling.gate.rule.suite import decide

    policy = policy or Policy()
    reader = _Reader(rows)
    suite = _decided_as_session(reader, policy) if session else None
    decisions = suite.decisions if suite else [decide(pair, policy) for _, pair in reader.pairs()]
    lines = [
        msgspec.json.encode(msgspec.to_builtins(decision) | {"id": id_})
        for id_, decision in zip(reader.ids, decisions, strict=True)
    ]
    return Judged(
        lines=lines,
        counts=dict(Counter(decision.verdict for decision in decisions)),
        problems=reader.problems,
        refused=reader.refused,
        invalid=suite.invalid if suite else "",
    )


def _decided_as_session(reader: _Reader, policy: Policy) -> SuiteDecision:
    from rocattn_profiling.gate.rule.suite import decide_suite, stored

    pairs, rounds = _EncodedPairs(), 0
    for text, pair in reader.pairs():
        pairs.append(text)
        rounds = max(rounds, pair.rounds)
    return decide_suite(pairs, stored(policy, rounds))


class _EncodedPairs:
    """Pairs kept as the lines that they came from and decoded on demand: a fourth of the memory."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(StoredPair)
        self._texts: list[bytes] = []

    def append(self, text: bytes) -> None:
        """Add a line that is a pair."""
        self._texts.append(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Pair:
        return _decode(self._decoder, self._texts[index]).pair()


class _Reader:
    """Reads lines; collects the ids of pairs, and a problem for each line that is none."""

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.rows = rows
        self.ids: list[str | int] = []
        self.problems: list[str] = []
        self.refused = 0

    def pairs(self) -> Iterator[tuple[bytes, Pair]]:
        """Yield the lines that are pairs with these, in order."""
        decoder = msgspec.json.Decoder(StoredPair)
        for number, row in enumerate(self.rows, start=1):
            if number == 1 and row.startswith(_GZIP):
                raise PairError("the file is compressed (gzip): unpack it, or hand its lines to `rocattn gate judge -`")
            text = row.removeprefix(codecs.BOM_UTF8) if number == 1 else row
            if not text.strip():
                continue
            try:
                line = _decode(decoder, text)
                pair = line.pair()
                pair.check()
            except (msgspec.DecodeError, PairError, UnicodeDecodeError, RecursionError) as error:
                self._refuse(number, error, text)
                continue
            self.ids.append(line.id)
            yield text, pair

    def _refuse(self, number: int, error: Exception, row: bytes) -> None:
        self.refused += 1
        if self.refused <= _MOST_PROBLEMS:
            self.problems.append(f"line {number} is not a pair: {_problem(error, row)}")


def _problem(error: Exception, row: bytes) -> str:
    """Return in one line what is wrong with a row."""
    if isinstance(error, msgspec.DecodeError) and (token := _NO_JSON.search(row)):
        return f"it holds {token[1].decode()}, which is neither JSON nor a time"
    return terminal(str(error), _MESSAGE)


def _decode(decoder: msgspec.json.Decoder[StoredPair], row: bytes) -> StoredPair:
    """Decode a line; null stands for absent and 3.0 for 3, as writers of tables have it."""
    try:
        return decoder.decode(row)
    except msgspec.ValidationError:
        return msgspec.convert(_cleaned(msgspec.json.decode(row)), StoredPair)


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value
