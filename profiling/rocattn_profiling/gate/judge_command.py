"""``rocattn gate judge``: decide stored pairs without measuring."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import emit_json, say
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, UNDECIDED, USAGE, CommandError
from rocattn_profiling.gate import options as gate_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import BinaryIO

    from rocattn_profiling.gate.judge import Judged

_DESCRIPTION = """Decide stored pairs, a JSON object a line:
{"id": …, "a": {"benchmark", "side", "unit", "number", "launches": [{"round", "pos", "start_us", "samples": [..],
"cpu": [..], "nivcsw": [..], "canary"}], "history": [[launch, ..], ..]}, "b": {…}}; cpu, nivcsw, canary (CPU time of the
same fixed work in each launch's process) and history may be absent.
A line out: {"id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason", "undecided"};
undecided is null, or why the pair is: {"code", "text", "remedy"}."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("input", metavar="IN.jsonl", help="stored pairs, a line each; - for standard input")
    parser.add_argument(
        "--out", default="out/gate/judged.jsonl", metavar="FILE",
        help="decisions, a line each; - for standard output (default %(default)s)",
    )  # fmt: skip
    gate_options.add_tolerance(parser)
    parser.add_argument("--session", action="store_true", help="the lines are one session and share its error")
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    parser.add_argument("--json", action="store_true", help="print counts as JSON on stdout, and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Judge a file; exit 1 for a regression, else 3 if a line was no pair."""
    tolerance = gate_options.chosen_tolerance(arguments)
    _check_out(arguments)
    from rocattn_profiling.gate.judge import judge
    from rocattn_profiling.gate.rule.policy import Policy

    try:
        with _opened(arguments.input) as rows:
            judged = judge(rows, Policy(tolerance=tolerance), session=arguments.session)
    except KeyboardInterrupt as error:  # unlike what is measured, decisions are made again in seconds
        raise CommandError("interrupted: no decision was written", 128 + signal.SIGINT) from error
    _give(judged, arguments)
    if judged.counts.get("regression"):
        return FAILED
    if judged.refused or not judged.lines:
        return NOT_MEASURED
    return UNDECIDED if arguments.strict and judged.counts.get("inconclusive") else OK


def _check_out(arguments: argparse.Namespace) -> None:
    """Refuse to write where it would do harm, before anything is judged."""
    if arguments.out == "-":
        if arguments.json:
            raise CommandError("--out - and --json both want standard output: give one of them")
        if sys.stdout is None:
            raise CommandError("standard output is closed: name a file for the decisions with --out")
        return
    source, out = Path(arguments.input), Path(arguments.out)
    if arguments.input != "-" and source.exists() and out.exists() and source.samefile(out):
        raise CommandError(f"--out {out} is the file of stored pairs itself, which the decisions would replace")


def _give(judged: Judged, arguments: argparse.Namespace) -> None:
    """Write the decisions, and tell people what came of the lines."""
    for problem in judged.problems:
        say(f"{arguments.input}: {problem}")
    if more := judged.refused - len(judged.problems):
        say(f"{arguments.input}: {more} more lines are no pair")
    if judged.invalid:
        say(f"the session does not count: {judged.invalid}")
    data = b"".join(line + b"\n" for line in judged.lines)
    out = _written(arguments.out, data) if data else "no decision was written"
    if arguments.json:
        facts = {"counts": judged.counts, "problems": judged.problems, "refused": judged.refused}
        emit_json({**facts, "invalid": judged.invalid, "out": out})
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(judged.counts.items())) or "no pairs"
    say(f"{told}: {out}")


def _written(name: str, data: bytes) -> str:
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return "standard output"
    from rocattn_profiling.base.files import write_bytes

    return str(write_bytes(Path(name), data))


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
