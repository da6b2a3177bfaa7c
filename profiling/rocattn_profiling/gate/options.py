"""The gate's options, and the arguments that ``rocattn gate run`` and ``selftest`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.console import progress
from rocattn_profiling.base.gpus import architecture
from rocattn_profiling.base.status import NOT_MEASURED, USAGE, CommandError
from rocattn_profiling.gate.rule.constants import CALLED, FULL_LOOKS, QUICK_LOOKS, TOLERANCE
from rocattn_profiling.gate.rule.policy import Policy

if TYPE_CHECKING:
    from rocattn_profiling.base.console import Step
    from rocattn_profiling.gate.model import SideName

SETTINGS = ".rocattn/gate.toml"
"""The repository's settings file, which lists what to measure."""


class OptionError(RocattnError):
    """Raised if options contradict each other."""


class CodeObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Machine code that each side's checkout contains or builds.

    Attributes:
        files: File patterns, relative to the checkout: code objects, libraries, assembly text, HIP sources.
        builds: Commands that build them, as in `Options.builds`; none for tracked files.
    """

    files: tuple[str, ...]
    builds: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare and how.

    Attributes:
        base: A revision; "" for head's parent (for a dirty tree: HEAD).
        head: A revision or "WORKTREE"; "" for HEAD, if the tree is clean.
        base_python, head_python: Pythons of existing environments, instead of revisions.
        python: The interpreter to build revisions with; "" for the running one.
        suite: A benchmark folder or an asv.conf.json, relative to the repository; "" for ``asv.conf.json``.
        pytest: pytest-benchmark tests: folders, files or node ids, relative to the folder that the gate starts in.
        commands: Commands that are timed as a whole, in shell syntax.
        results: Where the commands report results instead, as ``FORMAT[:FILE]``: one per command ("" if it is
            timed), or one for all.
        builds: Commands that prepare a side's checkout for them, run once for identical files.
        code_objects: Machine code to compare, without a GPU.
        kernels: Programs, in shell syntax, whose Triton kernels are captured and compared without a GPU.
        archs: The architectures to compile for, and the only ones that are compared; empty for all available.
        requirements: What the tests or commands need in addition to the project: groups of its pyproject.toml,
            requirements files, or packages; empty for its usual groups.
        patterns: Regular expressions; a benchmark is measured if one of them matches its label anywhere.
        quick: Fewer looks, shorter launches, and only classes named ``Quick…`` if the suite has any.
        rounds: Maximum rounds; 0 for the default.
        tolerance: Relative change that a pass excludes; see `rocattn_profiling.gate.rule.policy.Policy`. 0 for the
            default.
        seed: Seed of every order; 0 to derive it from revisions and settings.
        fresh: Discard an unfinished run instead of resuming it.
        exact: Also compare exact metrics.
        noise_file: The noise record; "" for the machine's default, next to its results.
        no_noise: Neither read nor write a noise record.
        max_time_s: Maximum measuring time in seconds, not counting builds; 0 for no limit.
        learn: Add this session's launches of identical code to the noise record.
    """

    base: str = ""
    head: str = ""
    base_python: str = ""
    head_python: str = ""
    python: str = ""
    suite: str = ""
    pytest: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    code_objects: tuple[CodeObjects, ...] = ()
    kernels: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    quick: bool = False
    rounds: int = 0
    tolerance: float = 0.0
    seed: int = 0
    fresh: bool = False
    exact: bool = True
    noise_file: str = ""
    no_noise: bool = False
    max_time_s: float = 0.0
    learn: bool = False

    @property
    def measures(self) -> bool:
        """Whether the options name anything to measure."""
        return bool(self.suite or self.pytest or self.commands or self.code_objects or self.kernels)

    @property
    def times_nothing(self) -> bool:
        """Whether the options name only machine code: then the gate looks for no benchmarks."""
        return bool(self.code_objects or self.kernels) and not (self.suite or self.pytest or self.commands)

    def check(self) -> None:
        """Reject options that contradict each other.

        Raises:
            OptionError: Options contradict each other, such as existing environments mixed with revisions.
            ArchError: An architecture is unknown.
        """
        if (self.base_python or self.head_python) and (self.base or self.head):
            raise OptionError("--base and --head are revisions, --base-python and --head-python environments: not both")
        if self.python and self.base_python:
            raise OptionError("--python says what revisions are built with: existing environments have their own")
        if bool(self.base_python) != bool(self.head_python):
            missing = "--head-python" if self.base_python else "--base-python"
            raise OptionError(f"{missing} is missing: an existing environment is needed on each side")
        if self.requirements and self.base_python:
            raise OptionError("--requirements says what to build with: existing environments have their own packages")
        if self.requirements and not (self.pytest or self.commands or self.kernels or self.code_objects):
            raise OptionError("--requirements goes with --pytest or --command: an asv suite takes them from its matrix")
        if self.results and len(self.results) not in {1, len(self.commands)}:
            raise OptionError("--results goes with --command: give one for all commands, or one for each")
        if self.results and not self.commands:
            raise OptionError("--results says what a --command reports: name the command")
        if self.builds and (self.base_python or not (self.commands or self.kernels or self.code_objects)):
            raise OptionError("--build makes the checkouts of revisions ready for --command and --code-objects")
        self._check_machine_code()
        named = (*self.pytest, *self.commands, *self.requirements, *self.kernels)
        if not all(text.strip() for text in named):
            raise OptionError("--pytest, --command, --kernels and --requirements each need a value")
        if self.no_noise and (self.noise_file or self.learn):
            raise OptionError("--no-noise leaves the record of noise alone: it goes with neither --noise nor --learn")

    def _check_machine_code(self) -> None:
        if self.archs and not (self.code_objects or self.kernels):
            raise OptionError("--arch goes with --code-objects or --kernels: name what to compare")
        if self.kernels and not self.archs:
            raise OptionError("--kernels compiles a program's kernels: name the architectures with --arch")
        for arch in self.archs:
            architecture(arch)  # reject unknown ones before anything is built
        if self.code_objects and self.base_python:
            remedy = "`rocattn kernels audit NEW --against OLD` compares folders"
            raise OptionError(f"--code-objects are built from revisions, and environments have none: {remedy}")
        if not self.exact and (self.code_objects or self.kernels):
            raise OptionError("--no-exact skips machine code: it goes with neither --code-objects nor --kernels")
        for of in self.code_objects:
            if bad := [text for text in of.files if not text or text.startswith("/") or ".." in text.split("/")]:
                raise OptionError(f"--code-objects {bad[0]!r}: give a pattern of files inside the repository")

    def policy(self) -> Policy:
        """Return the rule that these options select."""
        looks: tuple[int, ...] = QUICK_LOOKS if self.quick else FULL_LOOKS
        if self.rounds:
            looks = (*(look for look in looks if look < self.rounds), self.rounds)
        return Policy(tolerance=self.tolerance or TOLERANCE, looks=looks)

    @property
    def equal_code_passes(self) -> bool:
        """Whether a benchmark that runs no code that differs passes after one round; to learn noise takes more."""
        return not self.learn

    def unchanged_sides(self) -> tuple[SideName, ...]:
        """Return the sides whose launches may enter the noise record: base does not depend on the change."""
        return ("base",)


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a suite and how it is measured."""
    text = (
        "benchmark folder or asv.conf.json (default: asv.conf.json, else a usual folder of asv benchmarks, else tests)"
    )
    parser.add_argument("--suite", default="", metavar="PATH", help=text)
    text = "pytest-benchmark tests instead: a folder, file or node id; may be repeated"
    parser.add_argument("--pytest", action="append", default=[], metavar="PATH", help=text)
    text = "a command to time as a whole, in each side's checkout; may be repeated"
    parser.add_argument("--command", dest="commands", action="append", default=[], metavar="COMMAND", help=text)
    text = "read results that the commands report, in a file or printed, instead; may be repeated, once per command"
    parser.add_argument("--results", action="append", default=[], metavar="FORMAT[:FILE]", help=text)
    text = "run this in each side's checkout before the commands, once for identical files; may be repeated"
    parser.add_argument("--build", dest="builds", action="append", default=[], metavar="COMMAND", help=text)
    text = (
        "what these need: a group or extra of pyproject.toml, a requirements file, or a package (default: the groups \
of tests and benchmarks); may be repeated"
    )
    parser.add_argument("--requirements", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--repo", default="", metavar="DIR", help="repository (default: that of the current folder)")
    text = "only benchmarks whose label matches this pattern anywhere; may be repeated"
    parser.add_argument("--bench", action="append", default=[], metavar="REGEX", help=text)
    add_tolerance(parser)
    text = "seed of every random order (default: derived from the revisions)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=text)
    parser.add_argument("--fresh", action="store_true", help="start over instead of resuming an interrupted run")
    text = "noise record of earlier sessions (default: this machine's, in the asv store)"
    parser.add_argument("--noise", default="", metavar="FILE", help=text)
    parser.add_argument("--no-noise", action="store_true", help="neither read nor write the noise record")


def add_tolerance(parser: argparse.ArgumentParser) -> None:
    """Add the option for the tolerance."""
    default = Policy()
    called, tolerated = (f"{100 * part:g}" for part in (default.called, default.tolerance))
    text = (
        f"tolerance: a pass shows the change to be within it, and a change is called from {CALLED:g} of it on "
        f"(default {tolerated}: called from {called})"
    )
    parser.add_argument("--tolerance", type=float, metavar="PCT", help=text)


def chosen_limit(text: str) -> float:
    """Return ``--max-time`` in seconds; 0 if empty.

    Raises:
        CommandError: It is not a duration; exit status of a usage error.
    """
    if not text:
        return 0.0
    from rocattn_profiling.gate.planning.pace import parsed_limit

    seconds = parsed_limit(text)
    if not seconds >= 1:
        raise CommandError(f"--max-time {text}: give a duration such as 10m, 90s, 1h30m, or seconds", USAGE)
    return seconds


def chosen_tolerance(arguments: argparse.Namespace) -> float:
    """Return the tolerance as a fraction; 0 if none was given.

    Raises:
        CommandError: It is out of range; exit status of a usage error.
    """
    if arguments.tolerance is None:
        return 0.0
    if not 0.5 <= arguments.tolerance <= 100:
        raise CommandError(f"--tolerance {arguments.tolerance:g}: give a percentage from 0.5 to 100", USAGE)
    return float(arguments.tolerance / 100)


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `Options` that the shared arguments set.

    Raises:
        CommandError: An argument is out of range; exit status of a usage error.
    """
    import re

    if arguments.rounds is not None and not 1 <= arguments.rounds <= 200:
        raise CommandError(f"--rounds {arguments.rounds}: give 1 to 200 (a regression needs at least 5)", USAGE)
    for pattern in arguments.bench:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CommandError(f"--bench {pattern!r} is not a valid regular expression: {error}", USAGE) from error
    return {
        "suite": arguments.suite,
        "pytest": tuple(arguments.pytest),
        "commands": tuple(arguments.commands),
        "results": tuple(arguments.results),
        "builds": tuple(arguments.builds),
        "requirements": tuple(arguments.requirements),
        "patterns": tuple(arguments.bench),
        "quick": arguments.quick,
        "rounds": arguments.rounds or 0,
        "tolerance": chosen_tolerance(arguments),
        "seed": arguments.seed,
        "fresh": arguments.fresh,
        "noise_file": arguments.noise,
        "no_noise": arguments.no_noise,
    }


@contextmanager
def measuring(title: str) -> Iterator[Callable[[Step], None]]:
    """Show progress while the block measures, and turn build errors into exit statuses.

    Args:
        title: The progress bar's title.

    Yields:
        A callback for each step.

    Raises:
        CommandError: Nothing could be measured.
    """
    from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError
    from rocattn_profiling.revisions.build import BuildError

    try:
        with progress(title, 0, phased=True) as bar:
            yield bar.show
    except (BuildError, SuiteError) as error:
        status = USAGE if isinstance(error, UnknownNameError) else NOT_MEASURED
        shown = CommandError(str(error), status)
        shown.__notes__ = getattr(error, "__notes__", [])
        raise shown from error
