"""Audit other revisions: sources from git, today's compiler and today's audit.

`track_history` adds the numbers of many commits to the asv store, for the history on the site, without a GPU. The
benchmarks are those of ``benchmarks/bench_audit.py``, and ``asv run`` fills the same series; but no commit is built.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError, complaint
from rocattn_profiling.kernels.audit import audit_shipped
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.shipped import Shipped, is_quick
from rocattn_profiling.measure.records import Commit
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions

if TYPE_CHECKING:
    from rocattn_profiling.asv.store import AsvStore, Sample
    from rocattn_profiling.revisions.git import Revision

# The revision's own code lists its kernels and their macros, in a separate process.
_LIST = """
import json, sys
try:
    from rocattn_profiling.kernels.build import all_variants
except ModuleNotFoundError as error:  # before the folders were named after the commands
    if not (error.name or "").startswith("rocattn_profiling"):
        raise
    from rocattn_profiling.audit.kernel_build import all_variants
found, problems = [], {}
for arch in sys.argv[1:]:
    try:
        made = all_variants([arch])
    except Exception as error:
        problems[arch] = str(error)
        continue
    found += [{name: getattr(one, name) for name in ("kernel", "source", "symbol", "defines", "arch")} for one in made]
print(json.dumps({"kernels": found, "problems": problems}))
"""
_TIMEOUT_S = 120.0
SUITE = "bench_audit.Kernels"
TRACKED: dict[str, tuple[str, Callable[[KernelFacts], float | None]]] = {
    "track_vgprs": ("registers", lambda facts: facts.vgprs),
    "track_lost_wave_slots": ("waves", lambda facts: facts.lost_wave_slots),
    "track_spills": ("registers", lambda facts: facts.spills.vgprs + facts.spills.sgprs),
    "track_hot_loop": ("cycles", lambda facts: facts.cycles_for_work),
    "track_sgprs": ("registers", lambda facts: facts.sgprs),
    "track_lds_bytes": ("bytes", lambda facts: facts.lds_bytes),
    "track_code_bytes": ("bytes", lambda facts: facts.code_bytes),
}
"""Tracked metric -> unit and function, as in the suite; lower is better for all."""


class Listed(msgspec.Struct, frozen=True):
    """The kernels that a checkout compiles, and problems by architecture."""

    kernels: list[Shipped]
    problems: dict[str, str]


class RevisionKernels(NamedTuple):
    """The kernels of a revision.

    Attributes:
        revision: The revision.
        root: Its ``kernels/`` folder.
        kernels: The kernels it compiles.
        problems: One line for each architecture without kernels.
    """

    revision: Revision
    root: Path
    kernels: list[Shipped]
    problems: list[str]


@contextmanager
def tree_of_revision(start: Path, name: str) -> Iterator[tuple[Path, Path, Revision]]:
    """Yield a repository, a temporary checkout, and its revision.

    Args:
        start: A folder of the repository.
        name: The revision, or WORKTREE.

    Raises:
        RevisionError: When there is no such revision.
    """
    repo = revisions.find_repository(start)
    revision = revisions.resolve(repo, name)
    scratch = environments.cache_root() / "scratch"
    revisions.prune_checkouts(scratch)
    with revisions.checkout(repo, revision, scratch) as tree:
        yield repo, tree, revision


@contextmanager
def kernels_of_revision(
    start: Path, name: str, archs: Sequence[str], *, quick: bool = False
) -> Iterator[RevisionKernels]:
    """Yield the kernels of a revision, with their sources in a temporary checkout.

    Args:
        start: A folder of the repository.
        name: The revision, or WORKTREE.
        archs: Targets.
        quick: Whether to list only representative kernels.

    Raises:
        RevisionError: When there is no such revision.
        RocattnError: When it ships no kernels.
    """
    with tree_of_revision(start, name) as (_, tree, revision):
        listed = list_kernels(tree, revision.short, archs)
        chosen = [kernel for kernel in listed.kernels if not quick or is_quick(kernel)]
        problems = [f"{arch}: {why}" for arch, why in listed.problems.items()]
        if not chosen:
            why = "; ".join(problems) or "none is in its build grid"
            raise RocattnError(f"{revision.short} has no kernels to audit: {why}")
        yield RevisionKernels(revision, tree / "kernels", chosen, problems)


def list_kernels(tree: Path, name: str, archs: Sequence[str]) -> Listed:
    """Ask the code of a checkout which kernels it ships.

    Args:
        tree: The checkout.
        name: Its name in error messages.
        archs: Targets.

    Raises:
        RocattnError: When that fails.
    """
    path = os.pathsep.join([str(tree), str(tree / "profiling")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _LIST, *archs]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RocattnError(f"{name} did not list its kernels in {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        why = complaint(done.stderr, "no message")
        raise RocattnError(f"{name} does not list its kernels ({why}): it is too old to be audited")
    return msgspec.json.decode(done.stdout, type=Listed)


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `track_history`.

    Attributes:
        stored: Commits added to the store.
        known: Commits that were already in it.
        passed_over: Commits without kernels to audit: short hash -> why.
    """

    stored: list[str] = []
    known: list[str] = []
    passed_over: dict[str, str] = {}


def track_history(
    start: Path, count: int, archs: Sequence[str], *, jobs: int, on_step: Callable[[str], None] = lambda _: None
) -> Tracked:
    """Audit representative kernels of the newest first-parent commits that are not in the store.

    Args:
        start: A folder of the repository.
        count: How many commits back to look.
        archs: Targets.
        jobs: Parallel processes.
        on_step: Called with a line after each commit.

    Raises:
        RevisionError: When there is no repository.
        RocattnError: When the store cannot be written to.
    """
    from rocattn_profiling.asv.store import AsvStore

    repo = revisions.find_repository(start)
    store = AsvStore(repo)
    shas = _with_all_numbers(store)
    result = Tracked()
    for revision in revisions.first_parents(repo, "HEAD", count):
        if revision.sha in shas:
            result.known.append(revision.sha)
            on_step(f"{revision.short}: already in the store")
            continue
        try:
            with kernels_of_revision(repo, revision.sha, archs, quick=True) as shipped:
                audit = audit_shipped(archs, jobs=jobs, root=shipped.root, kernels=shipped.kernels)
        except RocattnError as error:
            result.passed_over[revision.short] = str(error)
            on_step(f"{revision.short}: skipped")
            continue
        store_facts(store, Commit(sha=revision.sha, date_ms=revision.date_ms, subject=revision.subject), audit.kernels)
        result.stored.append(revision.sha)
        on_step(revision.short)
    return result


def _with_all_numbers(store: AsvStore) -> set[str]:
    """Return the commits that have all numbers in the store: older versions tracked fewer."""
    known: dict[str, set[str]] = {f"{SUITE}.{metric}": set() for metric in TRACKED}
    for series in store.read():
        if series.benchmark in known:
            known[series.benchmark] |= set(series.points.shas)
    return set.intersection(*known.values())


def store_facts(store: AsvStore, commit: Commit, kernels: Sequence[KernelFacts]) -> None:
    """Add the tracked numbers of one commit's kernels to the store.

    Raises:
        RocattnError: When the store cannot be written to.
    """
    archs = sorted({facts.arch for facts in kernels})
    names = list(dict.fromkeys(facts.name for facts in kernels))
    params = [list(map(repr, archs)), list(map(repr, names))]
    for metric, (unit, value_of) in TRACKED.items():
        values: dict[tuple[int, ...], Sample] = {
            (archs.index(facts.arch), names.index(facts.name)): float(math.nan if value is None else value)
            for facts in kernels
            for value in [value_of(facts)]
        }
        store.add(commit, f"{SUITE}.{metric}", params, ["arch", "kernel"], unit, values, type="track")
