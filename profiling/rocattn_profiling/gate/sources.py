"""What a run measures: an asv suite, pytest-benchmark tests, commands, or several of these, each with its launcher.

This module also discovers what to measure if the user names nothing: ``gate init``, ``run`` and ``selftest`` agree.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn_profiling.asv.launch import Differing, Launcher, Suite
from rocattn_profiling.gate.launchers.command_launch import CommandLauncher
from rocattn_profiling.gate.launchers.pytest_launch import PytestLauncher
from rocattn_profiling.gate.launchers.report_launch import ReportLauncher, ReportPlace
from rocattn_profiling.gate.model import SIDES, CaseLauncher, SideName
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning.listing import PytestNames, shows
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import (
    FILE,
    FILES,
    USUAL_FOLDERS,
    Config,
    Recipe,
    SuiteError,
    UnknownNameError,
    read_config,
    usual_files,
)
from rocattn_profiling.revisions.interpreters import folder_digest
from rocattn_profiling.revisions.requirements import Groups, is_project, members, needed_members, wanted_by_tests

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Loaded, Outcome, Request
    from rocattn_profiling.revisions.environments import Environment

_NEEDED = ["pytest", "pytest-benchmark"]
_NAMED = 4  # maximum folders in an error
# Text that every benchmark of a kind must contain, searched before a file is parsed.
_MAY_HOLD = {"asv": re.compile(rb"def (time|timeraw|mem|peakmem|track)_"), "pytest": re.compile(rb"\bbenchmark\b")}
_MARKER = re.compile(rb"\bmark\.benchmark\b")  # CodSpeed's
_TESTS = ("*test*.py", "*bench*.py", "*perf*.py")  # in addition to what the project's pytest collects


class CombinedLauncher:
    """Combines several launchers of one side.

    Args:
        launchers: At least one.
        places: Benchmark name -> index of its launcher. Both sides share this dict: head's cases are tried on base
            even if base does not list them.
    """

    def __init__(self, launchers: Sequence[CaseLauncher], places: dict[str, int]) -> None:
        self._launchers, self._places = launchers, places
        self.python, self.scratch = launchers[0].python, launchers[0].scratch
        self.shared = tuple(path for launcher in launchers for path in launcher.shared)
        self.environment = launchers[-1].environment

    def discover(self) -> Suite:
        """List the benchmarks of all launchers."""
        suites = [launcher.discover() for launcher in self._launchers]
        for place, suite in enumerate(suites):
            self._places.update({benchmark.name: place for benchmark in suite.benchmarks})
        return Suite(
            benchmarks=[benchmark for suite in suites for benchmark in suite.benchmarks],
            broken={name: why for suite in suites for name, why in suite.broken.items()},
            imports={name: seconds for suite in suites for name, seconds in suite.imports.items()},
            shared={name: module for suite in suites for name, module in suite.shared.items()},
        )

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Measure a case with its launcher."""
        return self._launcher(case.benchmark.name).run(
            case, request, pos=pos, seed=seed, layout=layout, within_s=within_s
        )

    def end_server(self) -> None:
        """End the launchers' server processes."""
        for launcher in self._launchers:
            launcher.end_server()

    def call_command(self, name: str, label: str, answer: Path | None = None) -> tuple[str, ...]:
        """Return the command of the benchmark's launcher."""
        return self._launcher(name).call_command(name, label, answer)

    def loaded(
        self, name: str, label: str, trace: Sequence[str] = (), *, module: str = "", within_s: float = math.inf
    ) -> Loaded | None:
        """Return what a benchmark loads, using its launcher."""
        return self._launcher(name).loaded(name, label, trace, module=module, within_s=within_s)

    def _launcher(self, name: str) -> CaseLauncher:
        return self._launchers[self._places[name]]


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a run, and how the project is built for them.

    Attributes:
        config: asv's configuration, or a default one for a project without it.
        suite: Whether the asv suite is measured.
        tests: Test folders, files and node ids, relative to the tree.
        commands: The commands, in shell syntax.
        reports: Where each command reports results, None for one that is timed; empty if all are timed.
    """

    config: Config
    suite: bool = True
    tests: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    reports: tuple[ReportPlace | None, ...] = ()

    @property
    def folder(self) -> str:
        """The suite's folder, or else that of the first tests; "" with commands only."""
        return self.config.benchmark_dir if self.suite else next((test.partition("::")[0] for test in self.tests), "")

    def launchers(
        self,
        sides: Mapping[SideName, Environment],
        trees: Mapping[SideName, Path],
        scratch: Path,
        differing: Differing | None = None,
        ready: Mapping[SideName, Path] | None = None,
    ) -> dict[SideName, CaseLauncher]:
        """Return both sides' launchers: both use head's suite and tests; commands run in each side's own tree.

        Args:
            sides: The environments.
            trees: The checkouts; for existing environments, both are the folder that paths are relative to.
            scratch: A folder for working files.
            differing: What differs between the sides; None for existing environments.
            ready: Where commands run, if not in the checkouts.
        """
        places: dict[str, int] = {}
        return {
            side: self._launcher(sides[side], trees["head"], (ready or trees)[side], scratch / side, places, differing)
            for side in SIDES
        }

    def without_commands(self, others: Sources) -> Sources:
        """Return these sources without the commands that ``others`` also has and reports in the same way."""
        known = set(zip(others.commands, others.reports or repeat(None), strict=False))
        left = [each for each in zip(self.commands, self.reports or repeat(None), strict=False) if each not in known]
        return msgspec.structs.replace(
            self, commands=tuple(command for command, _ in left), reports=tuple(report for _, report in left)
        )

    def listing(self, side: Environment, tree: Path, ready: Path, scratch: Path) -> CaseLauncher:
        """Return a launcher that lists the suite and tests in a side's own tree; commands run in ``ready``."""
        return self._launcher(side, tree, ready, scratch, {}, None)

    def _launcher(
        self,
        side: Environment,
        suite_tree: Path,
        own_tree: Path,
        scratch: Path,
        places: dict[str, int],
        differing: Differing | None,
    ) -> CaseLauncher:
        config, python = self.config, side.python
        variables, where = config.environment, suite_tree.absolute()
        launchers: list[CaseLauncher] = []
        if self.suite:
            folder = suite_tree / config.benchmark_dir
            launchers.append(
                Launcher(python, folder, scratch, variables, config.timeout_s, tree=where, differing=differing)
            )
        if self.tests:
            remedy = "no package index is used: install it where rocattn is" if side.offline else "install it there"
            launchers.append(
                PytestLauncher(python, where, self.tests, scratch, variables, remedy=remedy, differing=differing)
            )
        reports = dict(zip(self.commands, self.reports, strict=False))
        reporting = {command: place for command, place in reports.items() if place is not None}
        if reporting:
            launchers.append(
                ReportLauncher(python, own_tree, [*reporting], scratch, variables, reports=[*reporting.values()])
            )
        timed = [command for command in self.commands if command not in reporting]
        if timed or not launchers:  # without any source, a launcher of no commands
            launchers.append(CommandLauncher(python, own_tree, timed, scratch, variables))
        return launchers[0] if len(launchers) == 1 else CombinedLauncher(launchers, places)

    def shared(self, tree: Path) -> list[Path]:
        """Return the folders and files in a tree that both sides share."""
        suite = [tree / self.config.benchmark_dir] if self.suite else []
        return [*suite, *(tree / test.partition("::")[0] for test in self.tests)]

    def digests(self, tree: Path) -> list[str]:
        """Return digests of suite, tests and files in commands; they identify a run that has no revision."""
        words = [tree / word for command in self.commands for word in command.split()]
        paths = [*self.shared(tree), *(path for path in words if path.is_file())]
        return [folder_digest(path) if path.is_dir() else str(path.stat().st_mtime_ns) for path in paths]


class Discovery(NamedTuple):
    """Benchmarks discovered in a tree.

    Attributes:
        suite: A folder of asv benchmarks, relative to the tree; None for the tree's asv.conf.json, and for tests.
        tests: Folders and files of pytest-benchmark tests, relative to the tree.
        configured: Whether the suite belongs to an asv.conf.json.
    """

    suite: str | None = None
    tests: tuple[str, ...] = ()
    configured: bool = False

    def suite_in(self, tree: Path) -> str:
        """Return the suite's name; "" for tests."""
        usual = () if self.tests else usual_files(tree)
        return self.suite or next((path.relative_to(tree).as_posix() for path in usual), "")

    @property
    def what(self) -> str:
        """A description for messages; empty for an asv.conf.json in a usual place."""
        if self.tests:
            return f"the pytest-benchmark tests in {' and '.join(self.tests)}"
        return f"the asv benchmarks in {self.suite}" if self.suite else ""

    @property
    def line(self) -> str:
        """Notice for users who named no suite; empty for an asv.conf.json."""
        none = "" if self.configured else f"no {FILE}: "
        return f"{none}measuring {self.what}; --suite or --pytest names others" if self.what else ""


def discover(tree: Path, here: str = "") -> Discovery:
    """Return a tree's asv.conf.json, or else a usual folder of asv benchmarks, or else pytest-benchmark tests.

    Arguments and errors: see `discover_all`.
    """
    return next(discover_all(tree, here))


def discover_all(tree: Path, here: str = "", *, needed: bool = True) -> Iterator[Discovery]:
    """Yield a tree's benchmarks of each kind: an asv.conf.json or a usual folder of asv benchmarks, then tests.

    Args:
        tree: A checkout.
        here: The user's current folder, relative to the tree: a configuration there takes precedence.
        needed: Whether finding nothing is an error.

    Raises:
        UnknownNameError: There are no benchmarks, or several configurations.
    """
    if (suite := _suite_of(tree, here)) is not None:
        yield suite
    if tests := _tests_of(tree):
        yield Discovery(tests=tuple(tests))
    elif suite is None and needed:
        raise UnknownNameError(_why_nothing(tree))


def _suite_of(tree: Path, here: str) -> Discovery | None:
    """Return a tree's asv benchmarks; arguments and errors: see `discover_all`."""
    listed = own_files(tree, *(f"*{name}" for name in FILES))
    folders = sorted({path.parent.relative_to(tree) for path in listed if path.name in FILES})
    mine = [folder for folder in folders if here not in {"", "."} and folder.is_relative_to(here)]
    usual = [path.parent.relative_to(tree) for path in usual_files(tree)]
    for some in (mine, usual, folders):
        if len(some) == 1:
            return Discovery(suite=None if some == usual else some[0].as_posix(), configured=True)
    if folders:
        commands = " or ".join(f"`rocattn gate run --suite {shlex.quote(f'{folder}')}`" for folder in folders)
        raise UnknownNameError(f"there are {len(folders)} {FILE}, each with a command of its own: {commands}")
    for folder in (name.rstrip("/") for name in USUAL_FOLDERS):
        if any(_holds(path, "asv") for path in own_files(tree, f"{folder}/*.py")):
            return Discovery(suite=folder)
    return None


def _why_nothing(tree: Path) -> str:
    if marked := [path for path in own_files(tree, *_TESTS) if _MARKER.search(_content(path))]:
        where = marked[0].relative_to(tree).as_posix()
        return (
            f"nothing to measure: {where} has tests with the marker `benchmark`, and pytest-benchmark needs its fixture"
        )
    places = ", ".join(USUAL_FOLDERS[:_NAMED])
    return (
        f"nothing to measure: no {FILE}, no asv benchmarks in a usual folder ({places}, …), and no test uses "
        "pytest-benchmark's fixture `benchmark`; name a suite with --suite, tests with --pytest, or a command with "
        "--command"
    )


def _tests_of(tree: Path) -> list[str]:
    """Return the folders where pytest collects all tests with the fixture, and files that it collects only by name."""
    names: dict[Path, PytestNames] = {}
    collected, others = list[Path](), list[Path]()
    patterns = dict.fromkeys((*_TESTS, *(f"*{pattern.lstrip('*')}" for pattern in PytestNames.of(tree, tree).files)))
    for path in own_files(tree, *patterns):
        known = names.setdefault(path.parent, PytestNames.of(path.parent, tree))
        if _holds(path, "pytest", known):
            (collected if known.collects(path) else others).append(path.relative_to(tree))
    return [*(_enclosing(collected) if collected else []), *(path.as_posix() for path in others)]


def own_files(tree: Path, *patterns: str) -> Iterator[Path]:
    """Yield a tree's files in order, without those git ignores; outside a repository, only files near the top."""
    try:
        listed = revisions.git(tree, "ls-files", "-z", "-co", "--exclude-standard", "--", *patterns)
    except revisions.RevisionError:
        near = [place for pattern in patterns for place in (pattern, f"*/{pattern}")]
        yield from sorted(path for place in near for path in tree.glob(place))
        return
    yield from (tree / name for name in sorted(filter(None, listed.split("\0"))))


def _holds(path: Path, kind: str, names: PytestNames | None = None) -> bool:
    """Whether a file's source contains benchmarks of a kind."""
    content = _content(path)
    return _MAY_HOLD[kind].search(content) is not None and shows(content, kind, names)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # deleted but still tracked, or a broken link
        return b""


def _enclosing(tests: Iterable[Path]) -> list[str]:
    """Return the deepest folder with all tests; if that is the tree's top, the folders and files directly below."""
    tests = list(tests)
    common = os.path.commonpath([test.parent for test in tests])
    if common:
        return [Path(common).as_posix()]
    return list(dict.fromkeys(test.parts[0] for test in tests))


def choose_sources(tree: Path, suite: str | None, tests: tuple[str, ...], options: Options) -> Sources:
    """Return what to measure: the asv suite, unless the options name only something else.

    Args:
        tree: Head's checkout, or the folder that paths are relative to.
        suite: As in `read_config`.
        tests: The ``--pytest`` arguments, relative to the tree.
        options: The commands and the requirements.

    Raises:
        UnknownNameError: Something named does not exist.
        SuiteError: The suite cannot be read.
    """
    only = bool(tests or options.commands or options.times_nothing) and suite is None
    config = read_config(tree, suite) if not only or usual_files(tree) else _usual(tree, tests)
    no_project = not tests and not usual_files(tree) and not is_project(tree)
    if only and (no_project or (options.times_nothing and not options.kernels)):
        config = Config(benchmark_dir="", recipe=Recipe(bare=True))
    for test in tests:
        path = tree / test.partition("::")[0]
        if not path.exists():
            raise UnknownNameError(f"--pytest {test}: head has no {test.partition('::')[0]}")
    if (tests or options.requirements or options.kernels) and not options.base_python:
        config = msgspec.structs.replace(config, recipe=with_tests(config.recipe, tree, tests, options))
    given = [ReportPlace.of(text) if text else None for text in options.results]
    reports = tuple(given * len(options.commands) if len(given) == 1 else given)
    return Sources(config=config, suite=not only, tests=tests, commands=options.commands, reports=reports)


def with_tests(recipe: Recipe, tree: Path, tests: tuple[str, ...], options: Options) -> Recipe:
    """Return a recipe with the requirements in the tree's files for tests, or for a program with captured kernels."""
    places = [tree / test.partition("::")[0] for test in tests]
    wanted = wanted_by_tests(tree, tree / recipe.subdir, options.requirements, places)
    return msgspec.structs.replace(recipe, tests=[*(_NEEDED if tests else []), *wanted])


def _usual(tree: Path, tests: tuple[str, ...]) -> Config:
    """Return a default configuration for a project without one.

    It builds the workspace member that contains the tests, with the members it needs. Otherwise it builds the project
    at the top of the tree, or else the one nearest to the tests; if the tests are in no project, all members.
    """
    first = tree.joinpath(*(test.partition("::")[0] for test in tests[:1]))
    above = [folder for folder in (first, *first.parents) if folder.is_relative_to(tree)]
    projects = [folder for folder in above if is_project(folder)]
    known = list(members(tree).values())
    if projects and projects[0] in known:
        chosen, siblings = projects[0], needed_members(tree, projects[0])
    elif is_project(tree) or not (projects or known):
        chosen, siblings = tree, []
    else:
        chosen, *siblings = projects[:1] or known
    subdir, *more = ("" if folder == tree else folder.relative_to(tree).as_posix() for folder in (chosen, *siblings))
    return Config(benchmark_dir="", recipe=Recipe(subdir=subdir, siblings=more))


def check_installed(tree: Path, sources: Sources, sides: Mapping[SideName, Environment]) -> None:
    """Reject environments without the tests' project: both sides would import the code in the tests' checkout.

    Raises:
        SuiteError: Names the environment, and the missing package.
    """
    project = Groups(tree / sources.config.recipe.subdir).project if sources.tests else ""
    for side, environment in sides.items():
        if project and project not in environment.packages:
            text = f"{environment.python} has no {project}: install that side's {project} there"
            raise SuiteError(f"{text}, or {side} would be measured with the code next to the tests")
