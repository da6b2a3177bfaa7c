"""``rocattn gate``: ``run`` measures and decides; ``show`` and ``comment`` print a stored verdict in another form.

The modules `init` and `judge` implement the subcommands of those names; `selftest` does that command's measuring.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, print_table, print_utf8, say
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, USAGE, CommandError
from rocattn_profiling.gate import init, judge
from rocattn_profiling.gate import options as gate_options
from rocattn_profiling.gate.foreign import compare

if TYPE_CHECKING:
    from rocattn_profiling.gate.model import GateResult, NoiseSource
    from rocattn_profiling.gate.planning.plan import PlannedCase
    from rocattn_profiling.gate.selftest import Selftest, Sensitivity

_RUN_EPILOG = """\
  rocattn gate run --base main...               HEAD against its merge base with main
  rocattn gate run --head WORKTREE --bench Sort
                                                uncommitted changes against HEAD, some benchmarks

exit status: 0 nothing is proven to be slower
             1 a benchmark became slower or larger, or a waiver has expired or is not needed
             2 undecided, under --strict
             3 something could not be built or measured, nothing was judged, or a --bench matches nothing
             4 usage or environment error
             130 interrupted: the same command continues with what was measured"""
_SELFTEST_EPILOG = """exit status: 0 identical code was called neither slower nor faster; 1 it was; 3 a benchmark could
not be measured, or there was none; 4 usage or environment error"""
FORMATS = ("text", "markdown", "junit", "sarif", "summary", "annotations", "json", "html")
_RUN_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/[A-Za-z0-9_./-]+")
_REMARK = (
    "Taken from the run's verdict: names and numbers only. Its reasons and causes are in the run's own summary "
    "and files."
)


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="init|run|compare|judge|selftest|show|comment")
    init.prepare(verbs.add_parser("init", help="write the GitHub workflows that gate a project's pull requests"))
    text = "measure base and head in fresh, interleaved processes and decide"
    _prepare_run(verbs.add_parser("run", help=text, description=text.capitalize() + "."))
    text = "decide from result files of other benchmark tools"
    compare.prepare(verbs.add_parser("compare", help=text))
    text = "decide stored pairs without measuring"
    judge.prepare(verbs.add_parser("judge", help=text))
    _prepare_show(verbs.add_parser("show", help="print a stored verdict in another form"))
    text = "make the comment for a pull request from an untrusted verdict"
    _prepare_comment(verbs.add_parser("comment", help=text))
    text = "measure one commit against itself: which changes the gate finds on this machine, and how often it is wrong"
    _prepare_selftest(verbs.add_parser("selftest", help=text, description=text.capitalize() + "."))


def run(arguments: argparse.Namespace) -> int:
    """Run a subcommand; return its exit status."""
    subcommands: dict[str, Callable[[argparse.Namespace], int]] = {
        "init": init.run,
        "run": _run,
        "compare": compare.run,
        "judge": judge.run,
        "selftest": _selftest,
        "show": _show,
        "comment": _comment,
    }
    return subcommands[arguments.verb](arguments)


def _prepare_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _RUN_EPILOG
    parser.add_argument(
        "--base", default="", metavar="REV", help="revision to compare with (default: the parent of head)"
    )
    parser.add_argument(
        "--head", default="", metavar="REV", help="revision to judge, or WORKTREE for the tree as it is (default: HEAD)"
    )
    for side in ("base", "head"):
        text = f"Python of an existing environment to use as {side}, instead of revisions"
        parser.add_argument(f"--{side}-python", default="", metavar="PYTHON", help=text)
    text = "interpreter to build revisions with (default: the running one)"
    parser.add_argument("--python", default="", metavar="PYTHON", help=text)
    gate_options.prepare(parser)
    text = "machine code to compare, without a GPU: code objects, libraries, .s or .hip files in each side's checkout \
(as --build leaves it), as 'build/**/*.hsaco'; may be repeated"
    parser.add_argument("--code-objects", action="append", default=[], metavar="PATTERN", help=text)
    text = "a program whose Triton kernels are compared: each side compiles them for --arch, without a GPU; may be \
repeated"
    parser.add_argument("--kernels", action="append", default=[], metavar="COMMAND", help=text)
    text = "architectures to compile for and compare"
    parser.add_argument("--arch", nargs="+", default=[], metavar="GFX", help=text)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, shorter launches, only Quick… classes if any"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum rounds for an undecided benchmark")
    text = "stop after this time, not counting builds: 10m, 90s, 1h30m; the same command then continues with the rest"
    parser.add_argument("--max-time", default="", metavar="TIME", help=text)
    text = "print what would be measured, how long it would take and what calls changed code; measure nothing"
    parser.add_argument("--list", action="store_true", help=text)
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything is undecided")
    parser.add_argument("--no-exact", action="store_true", help="skip what needs no clock (machine code, plans)")
    text = "add base's launches to the noise record: for runs on the main branch, not on pull requests"
    parser.add_argument("--learn", action="store_true", help=text)
    add_common(parser, out="out/gate")


def _run(arguments: argparse.Namespace) -> int:
    """Measure, decide, print; return the exit status of the verdict."""
    if arguments.list:
        return _list(arguments)
    result = _measured(arguments)
    from rocattn_profiling.gate.formats import outputs

    return outputs.show(result, Path(arguments.out), json=arguments.json, strict=arguments.strict)


def _measured(arguments: argparse.Namespace) -> GateResult:
    options = _options(arguments)
    from rocattn_profiling.gate.run import run_gate

    with gate_options.measuring("gate") as on_step:
        return run_gate(Path(arguments.repo), Path(arguments.out), options, on_step=on_step, say=say)


def _options(arguments: argparse.Namespace) -> gate_options.Options:
    settings = gate_options.chosen(arguments)
    if arguments.repo and (arguments.base_python or arguments.head_python):
        raise CommandError("--repo names a repository, and existing environments need none", USAGE)
    files, builds = tuple(arguments.code_objects), tuple(arguments.builds)
    return gate_options.Options(
        code_objects=(gate_options.CodeObjects(files=files, builds=builds),) if files else (),
        kernels=tuple(arguments.kernels),
        archs=tuple(dict.fromkeys(arguments.arch)),
        base=arguments.base,
        head=arguments.head,
        base_python=arguments.base_python,
        head_python=arguments.head_python,
        python=arguments.python,
        exact=not arguments.no_exact,
        max_time_s=gate_options.chosen_limit(arguments.max_time),
        learn=arguments.learn,
        **settings,
    )


def _list(arguments: argparse.Namespace) -> int:
    """Print what would be measured."""
    options = _options(arguments)
    from rocattn_profiling.gate.planning.pace import span
    from rocattn_profiling.gate.run import list_run

    with gate_options.measuring("gate") as on_step:
        plan = list_run(Path(arguments.repo), Path(arguments.out), options, on_step=on_step, say=say)
    if arguments.json:
        emit_json(plan)
        return OK
    print(f"{'launch':>8}  {'change':<26}  benchmark")
    for case in plan.benchmarks:
        seconds = "-" if case.seconds is None else f"{case.seconds:.1f} s"
        print(f"{seconds:>8}  {_called(case):<26}  {terminal(case.label)}")
    count = len(plan.benchmarks)
    say(f"{count} benchmark{'' if count == 1 else 's'}, in total {span(plan.estimate_s, unknown=plan.unknown)}")
    return OK


def _called(case: PlannedCase) -> str:
    """Describe how a benchmark reaches the changed code, as far as the sources show."""
    if case.calls is None:
        return "unknown" if case.reached is None else "no call found"
    between = case.calls - 1
    return f"called through {between} function{'' if between == 1 else 's'}" if between else "called directly"


def _prepare_show(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show``."""
    parser.description = "Print a stored verdict, or write it to a file."
    parser.add_argument("verdict", metavar="VERDICT.json", help="written by rocattn gate run, or its folder")
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="markdown: a comment (below 64 kB); summary: the same for a step's summary (below 1 MiB); annotations: "
        "GitHub workflow commands; html: the page (default text)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write to this file instead of printing")
    parser.add_argument("--exit-status", action="store_true", help="exit with the verdict's status instead of 0")
    parser.add_argument("--strict", action="store_true", help="with --exit-status: 2 if anything is undecided")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def _show(arguments: argparse.Namespace) -> int:
    """Print or write a verdict; return 0, or the verdict's exit status with ``--exit-status``."""
    from rocattn_profiling.gate import verdict
    from rocattn_profiling.gate.formats import card

    path = Path(arguments.verdict)
    result = verdict.read(path / verdict.FILE if path.is_dir() else path)
    if arguments.format == "text" and arguments.out in {None, "-"}:
        card.show(result)
    else:
        _print(_formatter(arguments.format)(result), arguments.out)
    if not arguments.exit_status:
        return OK
    return result.strict_status if arguments.strict else result.status


def _formatter(name: str) -> Callable[[GateResult], str]:
    from rocattn_profiling.gate import verdict
    from rocattn_profiling.gate.formats import card, junit, markdown, outputs, page, sarif

    forms: dict[str, Callable[[GateResult], str]] = {
        "text": card.text, "markdown": markdown.comment, "junit": junit.to_xml, "sarif": sarif.to_sarif,
        "summary": markdown.summary, "annotations": outputs.workflow_commands, "json": verdict.to_json,
        "html": page.html,
    }  # fmt: skip
    return forms[name]


def _prepare_comment(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``comment``."""
    parser.description = (
        "Print the comment for a pull request from a verdict that untrusted code may have written: only its numbers "
        "and names are used, and the conclusion is drawn again. Without a readable verdict the comment says that "
        "nothing was measured, and the exit status is 3."
    )
    parser.add_argument("verdict", metavar="VERDICT.json", help="the untrusted verdict")
    parser.add_argument("--out", metavar="FILE", help="write the comment to this file instead of printing it")
    parser.add_argument("--run-url", default="", metavar="URL", help="address of the workflow run, to link to")
    parser.add_argument(
        "--explain", action="store_true",
        help="also show reasons and causes: text from the verdict, escaped but not verified",
    )  # fmt: skip


def _comment(arguments: argparse.Namespace) -> int:
    """Print or write the comment; return 3 if there is no verdict to show."""
    if arguments.run_url and not _RUN_URL.fullmatch(arguments.run_url):
        raise CommandError("--run-url must be a plain address, as in https://github.com/owner/project/actions/runs/1")
    from rocattn_profiling.gate.formats import markdown, untrusted

    try:
        result = untrusted.read(Path(arguments.verdict), explain=arguments.explain)
    except untrusted.UntrustedError as error:
        _print(markdown.unreadable(arguments.run_url), arguments.out)
        say(f"rocattn gate comment: {error}")
        return NOT_MEASURED
    remark = "" if arguments.explain else _REMARK
    _print(markdown.comment(result, run_url=arguments.run_url, remark=remark), arguments.out)
    return OK


def _print(text: str, out: str | None) -> None:
    if out is None or out == "-":
        print_utf8(text)
        return
    from rocattn_profiling.base.files import write_text

    say(f"written: {write_text(Path(out), text)}")


def _prepare_selftest(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``selftest``."""
    parser.epilog = _SELFTEST_EPILOG
    parser.add_argument("--rev", default="", help="the revision to measure against itself (default HEAD)")
    parser.add_argument(
        "--existing-python", dest="base_python", default="", metavar="PYTHON",
        help="measure this existing environment instead of a revision",
    )  # fmt: skip
    gate_options.prepare(parser)
    parser.add_argument("--quick", action="store_true", help="12 rounds, shorter launches, only Quick… classes if any")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds for every benchmark (default 20; with --quick 12)"
    )
    parser.add_argument(
        "--draws", type=int, default=60, metavar="N", help="relabelled runs behind each rate (default %(default)s)"
    )
    add_common(parser, out="out/selftest")


def _selftest(arguments: argparse.Namespace) -> int:
    """Measure, relabel, print; return 1 if identical code was called a change, else 3 if something was not measured."""
    selftest = _measured_selftest(arguments)
    if arguments.json:
        emit_json(selftest)
    _print_selftest(selftest)
    say(f"selftest: {Path(arguments.out) / 'selftest.json'}")
    if selftest.wrong:
        return FAILED
    return NOT_MEASURED if selftest.unmeasured or not (selftest.benchmarks or selftest.exact) else OK


def _measured_selftest(arguments: argparse.Namespace) -> Selftest:
    settings = gate_options.chosen(arguments)
    if arguments.rev and arguments.base_python:
        raise CommandError("--rev measures a revision, --existing-python an environment: give one of them", USAGE)
    if not 3 <= arguments.draws <= 10_000:
        raise CommandError(f"--draws {arguments.draws}: give 3 to 10000", USAGE)
    from rocattn_profiling.gate.selftest import SelftestOptions, run_selftest

    revision = arguments.rev or ("" if arguments.base_python else "HEAD")
    options = SelftestOptions(
        base=revision,
        head=revision,
        base_python=arguments.base_python,
        head_python=arguments.base_python,
        exact=False,  # nothing differs between equal sides
        learn=not arguments.no_noise,
        **settings,
    )
    with gate_options.measuring("selftest") as on_step:
        return run_selftest(
            Path(arguments.repo), Path(arguments.out), options, draws=arguments.draws, on_step=on_step, say=say
        )


def _print_selftest(selftest: Selftest) -> None:
    if selftest.benchmarks:
        _print_sensitivities(selftest)
    if selftest.exact:
        say(f"the same in every launch, nothing to test: {', '.join(selftest.exact)}")
    if selftest.noise is not None:
        say(_known_noise(selftest, selftest.noise))
    for label, why in selftest.unmeasured.items():
        say(f"not measured: {label}: {why}")
    for label in selftest.wrong:
        say(f"WRONG: identical code was called a change: {label}")
    if not selftest.benchmarks:
        say("no benchmark showed any noise, so there are no rates to report")
        return
    tolerance = f"+{selftest.policy.tolerance * 100:g} %"
    rounds = selftest.recommended_rounds
    needed = f"{rounds} rounds show" if rounds else f"more than {selftest.rounds} rounds would be needed to show"
    say(
        f"false alarms {selftest.false_alarm_rate * 100:.2f} % per benchmark, {selftest.red_rate * 100:.1f} % of runs "
        f"red ({selftest.draws} draws); {needed} {tolerance} in nine of ten benchmarks"
    )


def _print_sensitivities(selftest: Selftest) -> None:
    looks = sorted({look for benchmark in selftest.benchmarks for look in benchmark.smallest_change})
    finds = (f"finds in {look}" for look in looks)
    print_table(
        f"identical code, {selftest.rounds} rounds: what the gate finds here",
        ["benchmark", "noise", "false alarms", *finds, "rounds for the tolerance"],
        [_sensitivity_row(benchmark, looks, selftest.rounds) for benchmark in selftest.benchmarks],
    )


def _known_noise(selftest: Selftest, source: NoiseSource) -> str:
    """Describe in one line the history that was available before this session."""
    if source.why_not:
        return f"the noise from earlier sessions is unknown: {source.why_not}"
    known = sum(1 for benchmark in selftest.benchmarks if benchmark.sessions)
    return f"noise from earlier sessions was known for {known} of {len(selftest.benchmarks)} benchmarks: {source.path}"


def _sensitivity_row(benchmark: Sensitivity, looks: list[int], rounds: int) -> list[str]:
    sizes = [benchmark.smallest_change.get(look) for look in looks]
    return [
        benchmark.id,
        f"{benchmark.noise * 100:.1f} %",
        f"{benchmark.false_alarm_rate * 100:.1f} %",
        *("-" if size is None else f"+{size * 100:g} %" for size in sizes),
        str(benchmark.rounds) if benchmark.rounds else f"> {rounds}",
    ]
