"""``rocattn gate judge``: decide stored pairs without measuring."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.cli.console import emit_json, say
from rocattn_profiling.cli.status import FAILED, NOT_MEASURED, OK, UNDECIDED, USAGE, CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import BinaryIO

_DESCRIPTION = """Decide stored pairs, a JSON object a line:
{"id": …, "a": {"benchmark", "side", "unit", "number", "launches": [{"round", "pos", "start_us", "samples": [..],
"cpu": [..], "nivcsw": [..], "canary"}], "history": [[launch, ..], ..]}, "b": {…}}; cpu, nivcsw, canary (CPU time of the
same fixed work in each launch's process) and history may be absent.
A line out: {"id", "verdict", "ratio", "ratio_low", "ratio_high", "p", "rounds_used", "reason"}."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("input", metavar="IN.jsonl", help="stored pairs, a line each; - for standard input")
    parser.add_argument(
        "--out", default="out/gate/judged.jsonl", metavar="FILE", help="decisions, a line each (default %(default)s)"
    )
    parser.add_argument(
        "--min-effect", type=float, default=5.0, metavar="PCT", help="smallest change that counts (default 5)"
    )
    parser.add_argument("--session", action="store_true", help="the lines are one session and share its error")
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    parser.add_argument("--json", action="store_true", help="print counts as JSON on stdout, and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Judge a file; exit 1 for a regression, else 3 if a line was no pair."""
    if not 0.5 <= arguments.min_effect <= 100:
        raise CommandError(f"--min-effect {arguments.min_effect:g}: give a percentage from 0.5 to 100", USAGE)
    from rocattn_profiling.files import write_bytes
    from rocattn_profiling.gate.judge import judge
    from rocattn_profiling.gate.look import Policy

    with _opened(arguments.input) as rows:
        judged = judge(rows, Policy(min_effect=arguments.min_effect / 100), session=arguments.session)
    for problem in judged.problems:
        say(f"{arguments.input}: {problem}")
    if judged.invalid:
        say(f"the session does not count: {judged.invalid}")
    out = write_bytes(Path(arguments.out), b"".join(line + b"\n" for line in judged.lines))
    if arguments.json:
        emit_json({"counts": judged.counts, "problems": judged.problems, "invalid": judged.invalid, "out": str(out)})
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(judged.counts.items())) or "no pairs"
    say(f"{told}: {out}")
    if judged.counts.get("regression"):
        return FAILED
    if judged.problems or not judged.lines:
        return NOT_MEASURED
    return UNDECIDED if arguments.strict and judged.counts.get("inconclusive") else OK


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", USAGE) from error
