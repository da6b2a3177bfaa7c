"""``rocattn gate``: ``run`` fails on a proven regression, ``selftest`` tests that, the others take what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, say
from rocattn_profiling.base.status import USAGE, CommandError
from rocattn_profiling.gate import (
    command_options as gate_options,
)
from rocattn_profiling.gate import (
    judge_command as gate_judge,
)
from rocattn_profiling.gate import (
    selftest_command as gate_selftest,
)
from rocattn_profiling.gate import (
    show_command as gate_show,
)

if TYPE_CHECKING:
    import argparse

    from rocattn_profiling.gate.verdict import GateResult


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="run|judge|selftest|show|comment")
    text = "measure base and head in fresh, interleaved processes and decide"
    run_ = verbs.add_parser("run", help=text, description=text.capitalize() + ".")
    run_.add_argument(
        "--base", default="", metavar="REV", help="revision to compare with (default: the parent of head)"
    )
    run_.add_argument(
        "--head", default="", metavar="REV", help="revision to judge, or WORKTREE for the tree as it is (default: HEAD)"
    )
    for side in ("base", "head"):
        text = f"Python of an existing environment to take as {side}, instead of revisions"
        run_.add_argument(f"--{side}-python", default="", metavar="PYTHON", help=text)
    text = "interpreter to build revisions with (default: the running one)"
    run_.add_argument("--python", default="", metavar="PYTHON", help=text)
    gate_options.prepare(run_)
    run_.add_argument("--quick", action="store_true", help="fewer rounds, shorter launches, only Quick… classes if any")
    run_.add_argument("--rounds", type=int, metavar="N", help="most rounds for an undecided benchmark")
    run_.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    run_.add_argument("--no-exact", action="store_true", help="leave out what needs no clock (machine code, plans)")
    text = "add base's launches to the record of noise: for runs on the main branch, not on pull requests"
    run_.add_argument("--learn", action="store_true", help=text)
    add_common(run_, out="out/gate")
    text = "decide stored pairs without measuring"
    gate_judge.prepare(verbs.add_parser("judge", help=text))
    gate_show.prepare_show(verbs.add_parser("show", help="print a stored verdict in another form"))
    text = "make the comment for a pull request from a verdict that nobody vouches for"
    gate_show.prepare_comment(verbs.add_parser("comment", help=text))
    text = "measure one commit against itself: what the gate sees on this machine, and how often it is wrong"
    gate_selftest.prepare(verbs.add_parser("selftest", help=text, description=text.capitalize() + "."))


def run(arguments: argparse.Namespace) -> int:
    """Measure, decide, print; return the exit status of the verdict."""
    others = {
        "judge": gate_judge.run,
        "selftest": gate_selftest.run,
        "show": gate_show.run_show,
        "comment": gate_show.run_comment,
    }
    if arguments.verb in others:
        return others[arguments.verb](arguments)
    result = _measured(arguments)
    from rocattn_profiling.gate.formats import outputs, render

    if why := outputs.step_summary(result):
        say(f"note: {why}")
    if arguments.json:
        emit_json(result)
    else:
        print(render.text(result), end="")
    say(f"verdict: {Path(arguments.out) / 'verdict.json'}")
    return result.strict_status if arguments.strict else result.status


def _measured(arguments: argparse.Namespace) -> GateResult:
    settings = gate_options.chosen(arguments)
    if arguments.repo and (arguments.base_python or arguments.head_python):
        raise CommandError("--repo names a repository, and existing environments need none", USAGE)
    from rocattn_profiling.gate.options import Options
    from rocattn_profiling.gate.run import run_gate

    options = Options(
        base=arguments.base,
        head=arguments.head,
        base_python=arguments.base_python,
        head_python=arguments.head_python,
        python=arguments.python,
        exact=not arguments.no_exact,
        learn=arguments.learn,
        **settings,
    )
    with gate_options.measuring("gate") as on_step:
        return run_gate(Path(arguments.repo), Path(arguments.out), options, on_step=on_step, say=say)
