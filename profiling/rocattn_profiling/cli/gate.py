"""``rocattn gate``: ``run`` measures two revisions and fails on a proven regression, ``judge`` decides stored pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.cli import gate_judge
from rocattn_profiling.cli.console import add_common, emit_json, progress, say
from rocattn_profiling.cli.status import NOT_MEASURED, USAGE, CommandError

if TYPE_CHECKING:
    import argparse

    from rocattn_profiling.gate.measure import Step
    from rocattn_profiling.gate.verdict import GateResult


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="run|judge")
    text = "measure base and head in fresh, interleaved processes and decide"
    run_ = verbs.add_parser("run", help=text, description=text.capitalize() + ".")
    run_.add_argument(
        "--base", default="", metavar="REV", help="revision to compare with (default: the parent of head)"
    )
    run_.add_argument(
        "--head", default="", metavar="REV", help="revision to judge, or WORKTREE for the tree as it is (default: HEAD)"
    )
    run_.add_argument(
        "--suite", default="", metavar="PATH", help="benchmark folder or asv.conf.json (default: asv.conf.json)"
    )
    run_.add_argument(
        "--bench", action="append", default=[], metavar="REGEX", help="only benchmarks it finds; may be repeated"
    )
    run_.add_argument("--quick", action="store_true", help="fewer rounds, shorter launches, only Quick… classes if any")
    run_.add_argument("--rounds", type=int, default=0, metavar="N", help="most rounds for an undecided benchmark")
    run_.add_argument(
        "--min-effect", type=float, default=5.0, metavar="PCT", help="smallest change that counts (default 5)"
    )
    run_.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    run_.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of every random order (default: from the revisions)"
    )
    run_.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    add_common(run_, out="out/gate")
    text = "decide stored pairs without measuring"
    gate_judge.prepare(verbs.add_parser("judge", help=text))


def run(arguments: argparse.Namespace) -> int:
    """Measure, decide, print; return the exit status of the verdict."""
    if arguments.verb == "judge":
        return gate_judge.run(arguments)
    result = _measured(arguments)
    from rocattn_profiling.gate import render

    if arguments.json:
        emit_json(result)
    else:
        print(render.text(result), end="")
    say(f"verdict: {Path(arguments.out) / 'verdict.json'}")
    return result.strict_status if arguments.strict else result.status


def _measured(arguments: argparse.Namespace) -> GateResult:
    _check(arguments)
    from rocattn_profiling.gate.run import Options, run_gate
    from rocattn_profiling.measure.asv_launch import SuiteError
    from rocattn_profiling.measure.environments import BuildError

    options = Options(
        base=arguments.base,
        head=arguments.head,
        suite=arguments.suite,
        patterns=tuple(arguments.bench),
        quick=arguments.quick,
        rounds=arguments.rounds,
        min_effect=arguments.min_effect / 100,
        seed=arguments.seed,
        fresh=arguments.fresh,
    )
    try:
        with progress("gate", 0) as shown:

            def on_step(step: Step) -> None:
                # Later looks add launches for what is still undecided: the end is only known for the look at hand.
                shown.expect(step.total)
                shown.step(step.what)

            return run_gate(Path(), Path(arguments.out), options, on_step=on_step, say=say)
    except (BuildError, SuiteError) as error:
        raise CommandError(str(error), NOT_MEASURED) from error


def _check(arguments: argparse.Namespace) -> None:
    import re

    if arguments.rounds < 0 or arguments.rounds > 200:
        raise CommandError(f"--rounds {arguments.rounds}: give 1 to 200 (a regression needs at least 5)", USAGE)
    if not 0.5 <= arguments.min_effect <= 100:
        raise CommandError(f"--min-effect {arguments.min_effect:g}: give a percentage from 0.5 to 100", USAGE)
    for pattern in arguments.bench:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CommandError(f"--bench {pattern!r} is no regular expression: {error}", USAGE) from error
