"""``rocattn gate judge``: decide stored pairs without measuring; JSON Lines in, one decision per line out.

A line that is not a pair costs one message and stops nothing. Lines are decided one by one, or all as one session.
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

_DESCRIPTION = """Decide stored pairs, one JSON object per line:
{"id": …, "a": {"benchmark", "side", "unit", "number", "launches": [{"round", "pos", "start_us", "samples": [..],
"cpu": [..], "nivcsw": [..], "canary"}], "history": [[launch, ..], ..]}, "b": {…}}; a is base, b is head. cpu, nivcsw
(involuntary context switches), canary (CPU time of the same fixed work in each launch's process) and history (launches
of earlier sessions) are optional.
An output line: {"id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason", "undecided",
"rounds_needed"}; undecided is null, or the reason: {"code", "text", "remedy"}."""
_MESSAGE = 160  # maximum characters of the message about a line
_MOST_PROBLEMS = 1000  # maximum listed: a file of a different kind has millions
_GZIP = b"\x1f\x8b"
_EXACT = 2.0**53  # larger floats are integers only because of rounding
_NO_JSON = re.compile(rb"[\[:,]\s*(-?Infinity|NaN)\b")  # Python's json writes these


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("input", metavar="IN.jsonl", help="stored pairs, one per line; - for standard input")
    parser.add_argument(
        "--out", default="out/gate/judged.jsonl", metavar="FILE",
        help="decisions, one per line; - for standard output (default %(default)s)",
    )  # fmt: skip
    gate_options.add_tolerance(parser)
    parser.add_argument(
        "--session", action="store_true",
        help="treat the lines as one session: Holm's correction over all of them, void if the machine changed speed",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    parser.add_argument("--json", action="store_true", help="print only the counts, as JSON, on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Judge a file; return 1 for a regression, else 3 if a line was not a pair."""
    policy = gate_options.Options(tolerance=gate_options.chosen_tolerance(arguments)).policy()
    _check_out(arguments)
    try:
        with _opened(arguments.input) as rows:
            judged = judge(rows, policy, session=arguments.session)
    except KeyboardInterrupt as error:  # nothing is saved: unlike measurements, decisions take seconds to repeat
        error.add_note("no decision was written")
        raise
    _report(judged, arguments)
    return judged.coverage.status(failed=bool(judged.counts.get("regression")), strict=arguments.strict)


def _check_out(arguments: argparse.Namespace) -> None:
    """Refuse an output that would overwrite the input or mix with the JSON, before judging anything."""
    if arguments.out == "-":
        if arguments.json:
            raise CommandError("--out - and --json both write to standard output: give one of them")
        return
    source, out = Path(arguments.input), Path(arguments.out)
    if arguments.input != "-" and source.exists() and out.exists() and source.samefile(out):
        raise CommandError(f"--out {out} is the input file: the decisions would overwrite the stored pairs")


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
    """An input line; the id is written back unchanged."""

    id: str | int
    a: Side
    b: Side

    def pair(self) -> Pair:
        """Return the pair in the rule's form."""
        return Pair(id=str(self.id), a=self.a, b=self.b)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions on a file.

    Attributes:
        lines: The output lines as JSON, one per pair, in input order.
        counts: Verdict -> number of pairs.
        problems: A message for each line that is not a pair; at most the first thousand.
        refused: The number of lines that are not pairs.
        invalid: Why the session as a whole does not count (only when judged as one); otherwise empty.
    """

    lines: list[bytes]
    counts: dict[str, int]
    problems: list[str]
    refused: int = 0
    invalid: str = ""

    @property
    def coverage(self) -> Coverage:
        """How many pairs were decided; a line that is not a pair counts as a needed gap."""
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
        session: The lines are the benchmarks of one session: they share the false-alarm probability (Holm), and none
            counts if the machine changed speed.

    Raises:
        PairError: The file is compressed.
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
    """Pairs kept as their input lines and decoded on demand: a quarter of the memory."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(StoredPair)
        self._texts: list[bytes] = []

    def append(self, text: bytes) -> None:
        """Add a line that was checked to be a pair."""
        self._texts.append(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Pair:
        return _decode(self._decoder, self._texts[index]).pair()


class _Reader:
    """Reads lines; collects the ids of pairs, and a problem for each line that is not a pair."""

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.rows = rows
        self.ids: list[str | int] = []
        self.problems: list[str] = []
        self.refused = 0

    def pairs(self) -> Iterator[tuple[bytes, Pair]]:
        """Yield each line that is a pair, with the pair, in order."""
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
    """Describe in one line what is wrong with a row."""
    if isinstance(error, msgspec.DecodeError) and (token := _NO_JSON.search(row)):
        return f"it contains {token[1].decode()}, which is neither JSON nor a time"
    return terminal(str(error), _MESSAGE)


def _decode(decoder: msgspec.json.Decoder[StoredPair], row: bytes) -> StoredPair:
    """Decode a line; null means absent and 3.0 means 3, as tools that export tables write them."""
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
