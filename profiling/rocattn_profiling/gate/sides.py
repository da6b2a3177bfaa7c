"""Both sides of a comparison, ready to be measured: two revisions that are built, or two environments that exist."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate import thresholds, waivers
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.verdict import SideFacts
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import SuiteError, read_config
from rocattn_profiling.revisions.environments import Environment
from rocattn_profiling.revisions.interpreters import find_interpreter, folder_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rocattn_profiling.asv.launch import Suite
    from rocattn_profiling.gate.measure import SideName
    from rocattn_profiling.gate.thresholds import Thresholds
    from rocattn_profiling.gate.waivers import Found
    from rocattn_profiling.revisions.asv_config import Config, Recipe
    from rocattn_profiling.revisions.git import Revision


@dataclass(frozen=True, slots=True)
class Sides:
    """What a comparison starts from.

    Attributes:
        context: Files, launchers and what differs.
        config: The suite's configuration, one for both sides.
        facts: What the verdict says of each side.
        identity: What makes a session the same one: revisions and environments.
        results: The folder of asv's results, with one for each machine.
        accepted, limits: Head's own waivers and thresholds.
        before: Lists base's own suite, to see what head's no longer has; None where both sides share one suite.
    """

    context: Context
    config: Config
    facts: Mapping[SideName, SideFacts]
    identity: list[str]
    results: Path
    accepted: Found
    limits: Thresholds
    before: Callable[[], Suite | None]


def choose_revisions(repo: Path, options: Options) -> tuple[Revision, Revision]:
    """Return base and head.

    Raises:
        RevisionError: When one does not exist, or the tree is dirty and ``head`` was not named.
    """
    if not options.head and (changed := revisions.changes(repo)):
        shown = terminal(changed[0], 80) + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
        raise revisions.RevisionError(
            f"the working tree has changes ({shown}): commit them, have git ignore them, or name what to measure "
            "with --head WORKTREE or --head HEAD"
        )
    head = revisions.resolve(repo, options.head or "HEAD")
    if options.base:
        return revisions.resolve(repo, options.base), head
    return (revisions.resolve(repo, "HEAD") if head.dirty else revisions.parent(repo, head)), head


@contextlib.contextmanager
def open_sides(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Sides]:
    """Make both sides ready for the length of a block.

    Args:
        start: The folder that paths are relative to; for revisions, one inside the repository.
        out: Where results go; working files lie in it while the block runs.
        options: What to compare.
        say: Told one line about every longer stage.

    Raises:
        RevisionError: A revision does not exist, or the tree is dirty.
        InterpreterError: An existing environment cannot be used.
        BuildError: A revision does not build.
        CacheError: The cache folder takes no files.
        SuiteError: There is no suite.
        WaiverError, ThresholdError: The repository's own settings cannot be read.
    """
    revisions.prune_checkouts(out / "work")
    opened = _existing if options.base_python else _revisions
    with opened(start, out, options, say) as sides:
        for line in sides.config.left_out:
            say(line)
        yield sides


@contextlib.contextmanager
def _revisions(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Sides]:
    repo = revisions.find_repository(start)
    chosen = dict(zip(SIDES, choose_revisions(repo, options), strict=True))
    for side, revision in chosen.items():
        say(f"{side} {revision.short} {revision.subject}")
    suite, work = _suite_in(repo, start, options.suite), out / "work"
    with (
        revisions.checkout(repo, chosen["head"], work) as head_tree,
        revisions.checkout(repo, chosen["base"], work) as base_tree,
    ):
        config = read_config(head_tree, suite)
        recipe = config.recipe
        if options.python:
            python, facts = find_interpreter(options.python, "--python")
            recipe = msgspec.structs.replace(recipe, python=(python, facts.python_version))
        # Before the builds: a mistake in them costs a second, not minutes.
        accepted = waivers.load(head_tree, waivers.commit_messages(repo, chosen["base"], chosen["head"]), base_tree)
        limits = thresholds.load(head_tree, base_tree)
        built = _build(repo, chosen, recipe, say)
        trees: dict[SideName, Path] = {"base": base_tree, "head": head_tree}
        launchers = _launchers(built, head_tree / config.benchmark_dir, head_tree.parent, config)

        def before() -> Suite | None:
            try:
                old = read_config(base_tree, suite)
                folder, scratch = base_tree / old.benchmark_dir, base_tree.parent / "list"
                return Launcher(built["base"].python, folder, scratch, old.environment).discover()
            except SuiteError:
                return None  # base has no suite that can be listed: then nothing was removed from it

        # A suite beside the repository is no part of any revision.
        outside = [folder_digest(Path(config.benchmark_dir))] if Path(config.benchmark_dir).is_absolute() else []
        yield Sides(
            context=_context(start, repo, out, options, say, trees, chosen, launchers, built),
            config=config,
            facts={side: _facts(built[side], revision) for side, revision in chosen.items()},
            identity=[*(chosen[side].sha for side in SIDES), *(built[side].folder for side in SIDES), *outside],
            results=repo / config.results_dir,
            accepted=accepted,
            limits=limits,
            before=before,
        )


def _suite_in(repo: Path, start: Path, suite: str) -> str | None:
    """Return the suite as a path in the repository; one outside of it (benchmarks kept apart) as an absolute path."""
    if not suite:
        return None
    for top in (repo, start, Path()):
        found = (top / Path(suite).expanduser()).resolve()
        if found.exists():
            inside = found.is_relative_to(repo.resolve())
            return found.relative_to(repo.resolve()).as_posix() if inside else str(found)
    return suite  # perhaps only the revision has it


def _build(
    repo: Path, chosen: Mapping[SideName, Revision], recipe: Recipe, say: Callable[[str], None]
) -> dict[SideName, Environment]:
    """Build both sides in the same way: if one has to go offline, both do."""
    started = time.monotonic()
    built: dict[SideName, Environment] = {}
    for side, revision in chosen.items():
        say(f"building {side}: {revision.name} ({revision.short})")
        built[side] = environments.build(repo, revision, recipe)
    if built["base"].offline != built["head"].offline:
        built = {side: environments.build(repo, revision, recipe, offline=True) for side, revision in chosen.items()}
    say(f"both sides are built ({time.monotonic() - started:.0f} s)")
    return built


@contextlib.contextmanager
def _existing(start: Path, out: Path, options: Options, say: Callable[[str], None]) -> Iterator[Sides]:
    config = read_config(start.absolute(), options.suite or None)
    suite = start.absolute() / config.benchmark_dir
    settings = _settings(suite)
    accepted, limits = waivers.load(settings), thresholds.load(settings)
    found: dict[SideName, Environment] = {}
    digests = []
    for side, python in zip(SIDES, (options.base_python, options.head_python), strict=True):
        path, facts = find_interpreter(python, f"--{side}-python")
        say(f"{side} {path} (Python {facts.python_version}, {len(facts.packages)} packages)")
        found[side] = Environment(
            python=path, folder="", offline=False, packages=facts.packages, python_version=facts.python_version
        )
        digests.append(facts.digest())
    with revisions.own_folder(out / "work") as folder:
        launchers = _launchers(found, suite, folder, config)
        yield Sides(
            context=_context(start, suite, out, options, say, {}, {}, launchers, found),
            config=config,
            facts={side: _facts(found[side], None) for side in SIDES},
            identity=[*(found[side].python for side in SIDES), *digests, folder_digest(suite)],
            results=start.absolute() / config.results_dir,
            accepted=accepted,
            limits=limits,
            before=lambda: None,
        )


def _settings(suite: Path) -> Path | None:
    """Return the nearest folder above a suite that holds ``.rocattn``."""
    return next((folder for folder in suite.parents if (folder / ".rocattn").is_dir()), None)


def _context(
    start: Path,
    repo: Path,
    out: Path,
    options: Options,
    say: Callable[[str], None],
    trees: Mapping[SideName, Path],
    chosen: Mapping[SideName, Revision],
    launchers: Mapping[SideName, Launcher],
    sides: Mapping[SideName, Environment],
) -> Context:
    differing = environments.differences(sides["base"], sides["head"])
    named = {side: revisions.WORKTREE if one.dirty else one.sha[:10] for side, one in chosen.items()}
    again = _command(start, options, named)
    undone = _command(start, options, named | {"head": revisions.WORKTREE}) if named else again
    return Context(repo, out, trees, chosen, launchers, differing, options.quick, say, again, undone)


def _command(start: Path, options: Options, named: Mapping[SideName, str]) -> str:
    """Return the command that compares two sides by the same rule, from the folder that the gate was started in."""
    words = ["rocattn", "gate", "run"]
    if named:
        words += [] if start == Path() else ["--repo", os.fspath(start)]
        words += ["--base", named["base"], "--head", named["head"]]
    else:
        words += ["--base-python", options.base_python, "--head-python", options.head_python]
    for option, value in (("--python", options.python), ("--suite", options.suite)):
        words += [option, value] if value else []
    if options.min_effect != Options().min_effect:
        words += ["--min-effect", f"{100 * options.min_effect:g}"]
    return shlex.join(words)


def _launchers(
    sides: Mapping[SideName, Environment], suite: Path, scratch: Path, config: Config
) -> dict[SideName, Launcher]:
    """Return both sides' launchers on one benchmark folder, as asv has it."""
    return {
        side: Launcher(sides[side].python, suite, scratch / side, config.environment, config.timeout_s)
        for side in SIDES
    }


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
    """Turn a disk or folder that takes no files into one line.

    Raises:
        RocattnError: Names the folder and the cause.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        where = os.fspath(out)
        raise RocattnError(f"cannot write in {where}: {why}; free it, or name another folder with --out") from error
