"""Prepare both sides of a run for measuring: build two revisions, or use two existing environments."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Differing
from rocattn_profiling.base.card import listed
from rocattn_profiling.base.console import saying_elapsed
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.status import NOT_MEASURED, CommandError
from rocattn_profiling.gate import thresholds, waivers
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.files import differing_paths
from rocattn_profiling.gate.model import SIDES, SideFacts, SideName
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning import settings
from rocattn_profiling.gate.planning.settings import GateSettings
from rocattn_profiling.gate.plugin import load_plugin
from rocattn_profiling.gate.sources import check_installed, choose_sources, discover, discover_all, with_tests
from rocattn_profiling.pages.render import count
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError
from rocattn_profiling.revisions.build import MatrixPinError
from rocattn_profiling.revisions.environments import Environment
from rocattn_profiling.revisions.interpreters import find_interpreter

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Suite
    from rocattn_profiling.revisions.asv_config import Recipe
    from rocattn_profiling.revisions.git import Revision, Uncommitted


def choose_revisions(
    repo: Path, options: Options, *, start: Path = Path(), note: Callable[[str], None] = lambda _: None
) -> tuple[Revision, Revision]:
    """Return base and head.

    Args:
        repo: The repository.
        options: What to compare.
        start: The folder that the gate was started in, for the command in an error.
        note: Called with a line about untracked files, which HEAD lacks and WORKTREE includes.

    Raises:
        RevisionError: A revision does not exist, or tracked files have changes and no ``head`` was given.
    """
    if options.head in {"", revisions.WORKTREE}:
        held = revisions.uncommitted(repo)
        if held.changed and not options.head:
            worktree = _command(start, options, {"base": options.base, "head": revisions.WORKTREE}, selection=True)
            raise revisions.RevisionError(
                f"tracked files have uncommitted changes ({_listed(held.changed, 1)}): "
                f"commit them, measure them with `{worktree}`, or leave them out with --head HEAD"
            )
        for line in _untracked(repo, held, options.head):
            note(line)
    head = revisions.resolve(repo, options.head or "HEAD")
    if options.base:
        return revisions.resolve(repo, options.base), head
    return (revisions.resolve(repo, "HEAD") if head.dirty else revisions.parent(repo, head)), head


def _untracked(repo: Path, held: Uncommitted, head: str) -> Iterator[str]:
    """Yield a line about untracked files, if any: how they are treated, and which may belong to the change."""
    files = [path for path in held.untracked if not _changes_nothing(repo, path)]
    meant = [path for path in files if path in held.sources or path.startswith(".rocattn/")]
    if not files:
        return
    files = [*meant, *(path for path in files if path not in meant)]
    if head == revisions.WORKTREE:
        yield f"{revisions.WORKTREE} includes {count(len(files), 'untracked file')}: {_listed(files)}"
        return
    are, they = ("is", "it was") if len(files) == 1 else ("are", "they were")
    line = f"{count(len(files), 'untracked file')} {are} not part of HEAD, so {they} not built: {_listed(files)}"
    if meant:
        belong, it = ("belongs", "it") if len(meant) == 1 else ("belong", "them")
        line += f". If {_listed(meant)} {belong} to the change, commit {it} or add --head {revisions.WORKTREE}"
    yield line


def _listed(paths: Sequence[str], most: int = 3) -> str:
    return listed([terminal(path, 80) for path in paths], most)


def _changes_nothing(repo: Path, path: str) -> bool:
    """Whether an untracked file affects neither measuring nor judging: bytecode, workflows, empty thresholds."""
    if path == thresholds.FILE:
        with contextlib.suppress(thresholds.ThresholdError):
            return not thresholds.load(repo).rows
    return path.startswith(".github/workflows/") or path.endswith(".pyc")


@contextlib.contextmanager
def open_sides(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Context]:
    """Provide both sides, ready to be measured, while the block runs.

    Args:
        start: The folder that paths are relative to; for revisions, one inside the repository.
        out: Where results go; it also holds working files while the block runs.
        options: What to compare.
        say: Prints one line about each longer stage.

    Raises:
        RevisionError: A revision does not exist, or the tree is dirty.
        InterpreterError: An existing environment cannot be used.
        BuildError: A revision does not build.
        CacheError: The cache folder is not writable.
        UnknownNameError: There is no such suite or test, or nothing to measure.
        SuiteError: The suite cannot be read.
        WaiverError, ThresholdError, GateSettingsError, PluginError: The repository's settings cannot be read.
    """
    revisions.prune_checkouts(out / "work")
    opened = _existing if options.base_python else _revisions
    with opened(start, out, options, say) as context:
        yield context


@contextlib.contextmanager
def _revisions(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Context]:
    repo = revisions.find_repository(start)
    notes: list[str] = []

    def note(line: str) -> None:
        say(line)
        notes.append(line)

    chosen = dict(zip(SIDES, choose_revisions(repo, options, start=start, note=note), strict=True))
    for side, revision in chosen.items():
        say(f"{side} {revision.short} {revision.subject}")
    work = out / "work"
    with (
        revisions.checkout(repo, chosen["head"], work) as head_tree,
        revisions.checkout(repo, chosen["base"], work) as base_tree,
    ):
        said = options  # as given by the caller
        own, before = settings.load(head_tree), _of_base(base_tree)
        here = os.path.relpath(start.resolve(), repo.resolve())
        options, suite, tests = _chosen(repo, start, said, own, head_tree)
        suite, tests = _measured(head_tree, suite, tests, options, say, here)
        sources = choose_sources(head_tree, suite, tests, options)
        builds: dict[SideName, tuple[str, ...]]
        builds = {"base": said.builds or before.builds or options.builds, "head": options.builds}
        if own != before:
            notes.append(settings.EDITED)
        config, recipe = sources.config, sources.config.recipe
        if options.python:
            python, facts = find_interpreter(options.python, "--python")
            recipe = msgspec.structs.replace(recipe, python=(python, facts.python_version))
        # Read settings before building, so that a mistake in them costs a second, not minutes.
        messages = waivers.commit_messages(repo, chosen["base"], chosen["head"])
        accepted, limits = waivers.load(head_tree, messages, base_tree), thresholds.load(head_tree, base_tree)
        if (why := load_plugin(head_tree).unmeasurable(options.patterns)) is not None:
            raise CommandError(f"nothing was built, because nothing could be measured: {why.line}", NOT_MEASURED)
        # Benchmarks are head's on both sides, with head's requirements; a captured program uses its own side's.
        of_base = with_tests(recipe, base_tree, tests, options) if options.kernels else recipe
        built = _build_with_pins(repo, chosen, {"base": of_base, "head": recipe}, say, note)

        def list_base() -> Suite | None:
            try:
                asked, own_suite, own_tests = options, suite, tests
                if before != GateSettings() and not said.measures:
                    asked, own_suite, own_tests = _chosen(repo, start, said, before, base_tree)
                    own_suite, own_tests = _measured(base_tree, own_suite, own_tests, asked, lambda _: None, here)
                old = choose_sources(base_tree, own_suite, own_tests, asked).without_commands(sources)
                if not (old.suite or old.tests or old.commands):
                    return None
                both = zip(old.shared(base_tree), sources.shared(head_tree), strict=False)
                if old == sources.without_commands(sources) and all(_same_files(*paths) for paths in both):
                    return None
                return old.listing(built["base"], base_tree, ready["base"], base_tree.parent / "list").discover()
            except SuiteError:
                return None  # base's suite cannot be listed, so nothing counts as removed

        ready = _ready({"base": base_tree, "head": head_tree}, chosen, built, builds, say)
        # A suite outside the repository is not part of any revision.
        outside = sources.digests(head_tree) if Path(config.benchmark_dir).is_absolute() else []
        trees: dict[SideName, Path] = {"base": base_tree, "head": head_tree}
        context = Context(
            options=options,
            repo=repo,
            out=out,
            suite=sources.folder,
            environments=built,
            places=ready,
            builds=builds,
            code_objects={"base": before.code_objects if not said.measures else (), "head": options.code_objects},
            trees=trees,
            revisions=chosen,
            launchers=sources.launchers(
                built, trees, head_tree.parent, _differing(repo, head_tree, chosen), ready=ready
            ),
            facts={side: _facts(built[side], revision) for side, revision in chosen.items()},
            differing=environments.differences(built["base"], built["head"]),
            identity=[
                *(chosen[side].sha for side in SIDES),
                *(built[side].folder for side in SIDES),
                *builds["base"],
                *outside,
            ],
            results=repo / config.results_dir,
            waivers=accepted,
            thresholds=limits,
            list_base=list_base,
            say=say,
            again=_command(start, said, {side: _name(revision) for side, revision in chosen.items()}),
            notes=notes,
        )
        for line in config.left_out:
            context.note(line)
        yield context


def _chosen(
    repo: Path, start: Path, options: Options, own: GateSettings, tree: Path
) -> tuple[Options, str | None, tuple[str, ...]]:
    """Return options, suite and tests from the caller and a side's settings, whose paths are relative to the top.

    Machine code in the settings is compared in addition to a tree's benchmarks, not instead.

    Raises:
        OptionError: They contradict each other.
        UnknownNameError: Tests are outside the repository.
    """
    named, start = options.measures, start if options.measures else repo
    options = settings.chosen(options, own)
    options.check()
    if options.times_nothing and not named:
        for found in islice(discover_all(tree, needed=False), 1):
            options = msgspec.structs.replace(options, suite=found.suite_in(tree), pytest=found.tests)
    suite = _suite_in(repo, start, options.suite)
    return options, suite, tuple(_test_in(repo, start, test) for test in options.pytest)


def _of_base(tree: Path) -> GateSettings:
    """Return base's settings; empty ones if they cannot be read, since head may fix them."""
    try:
        return settings.load(tree)
    except settings.GateSettingsError:
        return GateSettings()


def _differing(repo: Path, tree: Path, chosen: Mapping[SideName, Revision]) -> Differing:
    """Return the differing files, which no side may import from head's checkout or from the repository."""
    paths = differing_paths(repo, chosen) or {}
    return Differing((tree.resolve(), repo.resolve()), frozenset((*paths, *paths.values())))


def _measured(
    tree: Path, suite: str | None, tests: tuple[str, ...], options: Options, say: Callable[[str], None], here: str = ""
) -> tuple[str | None, tuple[str, ...]]:
    """Return the suite and tests to measure: those named, or else what the tree has, which ``say`` reports.

    Raises:
        UnknownNameError: Nothing was named, and the tree has nothing to measure.
    """
    if suite or tests or options.commands or options.times_nothing:
        return suite, tests
    discovery = discover(tree, here)
    if discovery.line:
        say(discovery.line)
    return discovery.suite, discovery.tests


def _same_files(folder: Path, other: Path) -> bool:
    """Whether two folders contain the same files with the same contents, or two files are equal."""
    if not folder.is_dir():
        return other.is_file() and folder.read_bytes() == other.read_bytes()
    names = [{path.relative_to(top) for path in top.rglob("*") if path.is_file()} for top in (folder, other)]
    return names[0] == names[1] and all((folder / n).read_bytes() == (other / n).read_bytes() for n in names[0])


def _suite_in(repo: Path, start: Path, suite: str) -> str | None:
    """Return the suite's path relative to the repository, or its absolute path if it is outside."""
    if not suite:
        return None
    for top in (start, repo, Path()):
        path = (top / Path(suite).expanduser()).resolve()
        if path.exists():
            inside = path.is_relative_to(repo.resolve())
            return path.relative_to(repo.resolve()).as_posix() if inside else str(path)
    return suite  # it may exist only in the revision


def _test_in(repo: Path, start: Path, test: str) -> str:
    """Return a ``--pytest`` argument with its path relative to the repository.

    Raises:
        UnknownNameError: It is outside the repository.
    """
    path, colons, name = test.partition("::")
    inside = _suite_in(repo, start, path) or "."
    if Path(inside).is_absolute():
        raise UnknownNameError(f"--pytest {path} is outside the repository: its tests belong to no revision")
    return f"{inside}{colons}{name}"


def _build_with_pins(
    repo: Path,
    chosen: Mapping[SideName, Revision],
    recipes: Mapping[SideName, Recipe],
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> dict[SideName, Environment]:
    """Build both sides; if the versions pinned in asv's matrix do not install, build without the pins."""
    try:
        return _build(repo, chosen, recipes, say)
    except MatrixPinError as error:
        pins = " and ".join(recipes["head"].pins)
        note(f"asv's matrix pins {pins}, which does not install here ({error}): both sides use versions that do")
        return _build(repo, chosen, {side: recipe.without_pins() for side, recipe in recipes.items()}, say)


def _build(
    repo: Path, chosen: Mapping[SideName, Revision], recipes: Mapping[SideName, Recipe], say: Callable[[str], None]
) -> dict[SideName, Environment]:
    """Build both sides in the same way: if one must be built offline, both are."""
    started = time.monotonic()
    built: dict[SideName, Environment] = {}
    for side, revision in chosen.items():
        what = f"building {side}: {revision.name} ({revision.short})"
        say(what)
        with saying_elapsed(what, say):
            built[side] = environments.build(repo, revision, recipes[side])
    if built["base"].offline != built["head"].offline:
        with saying_elapsed("building both sides with the packages installed here", say):
            built = {
                side: environments.build(repo, revision, recipes[side], offline=True)
                for side, revision in chosen.items()
            }
    say(f"both sides are built ({time.monotonic() - started:.0f} s)")
    return built


def _ready(
    trees: Mapping[SideName, Path],
    chosen: Mapping[SideName, Revision],
    built: Mapping[SideName, Environment],
    commands: Mapping[SideName, Sequence[str]],
    say: Callable[[str], None],
) -> Mapping[SideName, Path]:
    """Return the folders that commands run in: the checkouts, or built copies of them."""
    ready = {}
    for side, tree in trees.items():
        ready[side] = tree
        if commands[side]:
            what = f"running --build for {side}"
            say(what)
            with saying_elapsed(what, say):
                ready[side] = environments.built_tree(tree, chosen[side], commands[side], built[side])
    return ready


@contextlib.contextmanager
def _existing(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Context]:
    tree, said = start.absolute(), options
    options = settings.chosen(options, settings.load(tree))
    options.check()
    suite, tests = _measured(tree, options.suite or None, options.pytest, options, say)
    sources = choose_sources(tree, suite, tests, options)
    config, (shared, *_) = sources.config, [*sources.shared(tree), tree / "."]
    folder_of_settings = _settings(shared)
    accepted, limits = waivers.load(folder_of_settings), thresholds.load(folder_of_settings)
    existing: dict[SideName, Environment] = {}
    digests = []
    for side, python in zip(SIDES, (options.base_python, options.head_python), strict=True):
        path, facts = find_interpreter(python, f"--{side}-python")
        say(f"{side} {path} (Python {facts.python_version}, {len(facts.packages)} packages)")
        existing[side] = Environment(
            python=path, folder="", offline=False, packages=facts.packages, python_version=facts.python_version
        )
        digests.append(facts.digest())
    check_installed(tree, sources, existing)
    with revisions.own_folder(out / "work") as folder:
        context = Context(
            options=options,
            repo=shared,
            out=out,
            suite=sources.folder,
            environments=existing,
            places=dict.fromkeys(SIDES, tree),
            launchers=sources.launchers(existing, dict.fromkeys(SIDES, tree), folder),
            facts={side: _facts(existing[side], None) for side in SIDES},
            differing=environments.differences(existing["base"], existing["head"]),
            identity=[*(existing[side].python for side in SIDES), *digests, *sources.digests(tree)],
            results=tree / config.results_dir,
            waivers=accepted,
            thresholds=limits,
            say=say,
            again=_command(start, said, {}),
        )
        for line in config.left_out:
            context.note(line)
        yield context


def _settings(suite: Path) -> Path | None:
    """Return the nearest folder above a suite with a ``.rocattn`` in it."""
    return next((folder for folder in (suite, *suite.parents) if (folder / ".rocattn").is_dir()), None)


def _name(revision: Revision) -> str:
    return revisions.WORKTREE if revision.dirty else revision.sha[:10]


def _command(start: Path, options: Options, sides: Mapping[SideName, str], *, selection: bool = False) -> str:
    """Return the command that compares two sides by the same rule, run from the folder that the gate started in.

    ``selection`` adds the choice of benchmarks, and ``--quick``.
    """
    words = ["rocattn", "gate", "run"]
    if sides:
        words += [] if start == Path() else ["--repo", os.fspath(start)]
        words += [word for side in SIDES if sides[side] for word in (f"--{side}", sides[side])]
    else:
        words += ["--base-python", options.base_python, "--head-python", options.head_python]
    for option, value in (("--python", options.python), ("--suite", options.suite)):
        words += [option, value] if value else []
    listed = (
        ("--pytest", options.pytest), ("--build", options.builds), ("--command", options.commands),
        ("--results", options.results), ("--requirements", options.requirements), ("--kernels", options.kernels),
        ("--code-objects", [text for of in options.code_objects for text in of.files]),
    )  # fmt: skip
    words += [word for option, values in listed for value in values for word in (option, value)]
    words += ["--arch", *options.archs] if options.archs else []
    if options.tolerance:
        words += ["--tolerance", f"{100 * options.tolerance:g}"]
    if selection:
        words += ["--quick"] * options.quick + [word for pattern in options.patterns for word in ("--bench", pattern)]
    return shlex.join(words)


def _facts(environment: Environment, revision: Revision | None) -> SideFacts:
    return SideFacts(
        revision=revision,
        interpreter=environment.python if revision is None else "",
        python=environment.python_version,
        packages=environment.packages,
        offline=environment.offline,
    )


@contextlib.contextmanager
def out_errors(out: Path) -> Iterator[None]:
    """Turn a failure to write into a one-line error.

    Raises:
        RocattnError: Names the folder and the cause.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        where = os.fspath(out)
        shown = RocattnError(f"cannot write in {where}: {why}; free it, or name another folder with --out")
        shown.__notes__ = getattr(error, "__notes__", [])
        raise shown from error
