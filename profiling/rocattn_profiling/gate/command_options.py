"""What ``rocattn gate run`` and ``selftest`` have in common: how a suite is chosen and measured."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import end_on_sigterm, progress
from rocattn_profiling.base.status import NOT_MEASURED, USAGE, CommandError
from rocattn_profiling.gate.rule.policy import CALLED, MIN_EFFECT, Policy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from rocattn_profiling.base.progress import Step


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    text = "benchmark folder or asv.conf.json (default: asv.conf.json)"
    parser.add_argument("--suite", default="", metavar="PATH", help=text)
    parser.add_argument("--repo", default="", metavar="DIR", help="repository, if not that of the current folder")
    text = "only benchmarks it finds; may be repeated"
    parser.add_argument("--bench", action="append", default=[], metavar="REGEX", help=text)
    add_min_effect(parser)
    text = "of every random order (default: from the revisions)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=text)
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    text = "record of the noise of earlier sessions (default: this machine's own, beside its results in the asv store)"
    parser.add_argument("--noise", default="", metavar="FILE", help=text)
    parser.add_argument("--no-noise", action="store_true", help="leave that record alone")


def add_min_effect(parser: argparse.ArgumentParser) -> None:
    """Add the option for the tolerance."""
    default = Policy()
    called, tolerated = (f"{100 * part:g}" for part in (default.called, default.min_effect))
    text = (
        f"tolerance: a pass shows the change to be within it, and a change is called from {CALLED:g} of it on "
        f"(default {tolerated}: called from {called})"
    )
    parser.add_argument("--min-effect", type=float, default=100 * MIN_EFFECT, metavar="PCT", help=text)


def min_effect(arguments: argparse.Namespace) -> float:
    """Return the tolerance as a part of the value.

    Raises:
        CommandError: When it is out of range: one line, with the exit status of a usage error.
    """
    if not 0.5 <= arguments.min_effect <= 100:
        raise CommandError(f"--min-effect {arguments.min_effect:g}: give a percentage from 0.5 to 100", USAGE)
    return float(arguments.min_effect / 100)


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the arguments say of `rocattn_profiling.gate.options.Options`.

    Raises:
        CommandError: For what cannot be meant: one line, with the exit status of a usage error.
    """
    import re

    if arguments.rounds is not None and not 1 <= arguments.rounds <= 200:
        raise CommandError(f"--rounds {arguments.rounds}: give 1 to 200 (a regression needs at least 5)", USAGE)
    tolerance = min_effect(arguments)
    for pattern in arguments.bench:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CommandError(f"--bench {pattern!r} is no regular expression: {error}", USAGE) from error
    return {
        "suite": arguments.suite,
        "patterns": tuple(arguments.bench),
        "quick": arguments.quick,
        "rounds": arguments.rounds or 0,
        "min_effect": tolerance,
        "seed": arguments.seed,
        "fresh": arguments.fresh,
        "noise_file": arguments.noise,
        "no_noise": arguments.no_noise,
    }


@contextmanager
def measuring(what: str) -> Iterator[Callable[[Step], None]]:
    """Show progress while a block measures; the block is given what takes its steps.

    Raises:
        CommandError: When nothing could be measured.
    """
    from rocattn_profiling.revisions.asv_config import SuiteError
    from rocattn_profiling.revisions.build import BuildError

    before = end_on_sigterm("gate", "what was finished is kept, and the same command goes on from there")
    try:
        with progress(what, 0) as shown:

            def on_step(step: Step) -> None:
                # Later looks add launches for what is still undecided: the end is only known for the look at hand.
                shown.expect(step.total)
                shown.step(step.what)

            yield on_step
    except (BuildError, SuiteError) as error:
        raise CommandError(str(error), NOT_MEASURED) from error
    finally:
        signal.signal(signal.SIGTERM, before)
