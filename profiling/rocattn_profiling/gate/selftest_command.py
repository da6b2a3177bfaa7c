"""``rocattn gate selftest``: what the gate is worth on this machine, from a commit measured against itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.console import add_common, emit_json, print_table, say
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, USAGE, CommandError
from rocattn_profiling.gate import options as gate_options

if TYPE_CHECKING:
    import argparse

    from rocattn_profiling.gate.noise_record import NoiseSource
    from rocattn_profiling.gate.rule.sensitivity import Sensitivity
    from rocattn_profiling.gate.selftest import Selftest

_EPILOG = """exit status: 0 identical code was called neither slower nor faster; 1 it was; 3 a benchmark could not be
measured, or none was; 4 usage or environment error"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("--rev", default="", help="the revision to measure against itself (default HEAD)")
    parser.add_argument(
        "--existing-python",
        dest="base_python",
        default="",
        metavar="PYTHON",
        help="measure this existing environment instead of a revision",
    )
    gate_options.prepare(parser)
    parser.add_argument("--quick", action="store_true", help="12 rounds, shorter launches, only Quick… classes if any")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds for every benchmark (default 20; with --quick 12)"
    )
    parser.add_argument(
        "--draws", type=int, default=60, metavar="N", help="relabelled runs behind each rate (default 60)"
    )
    add_common(parser, out="out/selftest")


def run(arguments: argparse.Namespace) -> int:
    """Measure, relabel, print; exit 1 if identical code was told apart, else 3 if something could not be measured."""
    found = _measured(arguments)
    if arguments.json:
        emit_json(found)
    _print(found)
    say(f"selftest: {Path(arguments.out) / 'selftest.json'}")
    if found.wrong:
        return FAILED
    return NOT_MEASURED if found.unmeasured or not (found.benchmarks or found.exact) else OK


def _measured(arguments: argparse.Namespace) -> Selftest:
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
        exact=False,  # alike on both sides: nothing would differ
        learn=not arguments.no_noise,
        **settings,
    )
    with gate_options.measuring("selftest") as on_step:
        return run_selftest(
            Path(arguments.repo), Path(arguments.out), options, draws=arguments.draws, on_step=on_step, say=say
        )


def _print(found: Selftest) -> None:
    if found.benchmarks:
        _print_table(found)
    if found.exact:
        say(f"the same in every launch, nothing to test: {', '.join(found.exact)}")
    if found.noise is not None:
        say(_known(found, found.noise))
    for label, why in found.unmeasured.items():
        say(f"not measured: {label}: {why}")
    for label in found.wrong:
        say(f"WRONG: identical code was called a change: {label}")
    if not found.benchmarks:
        say("no benchmark has noise of its own: there are no rates to tell")
        return
    smallest = f"+{found.policy.tolerance * 100:g} %"
    rounds = found.recommended_rounds
    needed = f"{rounds} rounds show" if rounds else f"more than {found.rounds} rounds would be needed to show"
    say(
        f"false alarms {found.false_alarm_rate * 100:.2f} % a benchmark, {found.red_rate * 100:.1f} % of runs red"
        f" ({found.draws} draws); {needed} {smallest} in nine of ten benchmarks"
    )


def _print_table(found: Selftest) -> None:
    looks = sorted({look for benchmark in found.benchmarks for look in benchmark.smallest_change})
    columns = ["benchmark", "noise", "false alarms", *(f"sees in {look}" for look in looks), "rounds for the smallest"]
    print_table(
        f"identical code, {found.rounds} rounds: what the gate sees here",
        columns,
        [_row(benchmark, looks, found) for benchmark in found.benchmarks],
    )


def _known(found: Selftest, source: NoiseSource) -> str:
    """Say how much was known of the noise before this session."""
    if source.why_not:
        return f"what is found is without knowledge of earlier noise: {source.why_not}"
    known = sum(1 for benchmark in found.benchmarks if benchmark.sessions)
    return f"earlier noise was known of {known} of {len(found.benchmarks)} benchmarks: {source.path}"


def _row(benchmark: Sensitivity, looks: list[int], found: Selftest) -> list[str]:
    sizes = [benchmark.smallest_change.get(look) for look in looks]
    return [
        benchmark.id,
        f"{benchmark.noise * 100:.1f} %",
        f"{benchmark.false_alarm_rate * 100:.1f} %",
        *("-" if size is None else f"+{size * 100:g} %" for size in sizes),
        str(benchmark.rounds) if benchmark.rounds else f"> {found.rounds}",
    ]
