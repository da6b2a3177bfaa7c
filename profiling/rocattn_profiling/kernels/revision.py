"""Auditing other revisions: sources from git, compiled by today's compiler and read by today's audit.

`track_history` puts the numbers of many commits into the asv store: the history that the site shows, without a GPU. The
benchmarks are those of ``benchmarks/bench_audit.py``, and ``asv run`` fills the same series; here no commit is built.
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

# A revision's own code lists the kernels that it ships and their macros, in a process of its own.
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
"""Tracked numbers with their units, the same as in the suite; lower is better for all."""


class Listed(msgspec.Struct, frozen=True):
    """The kernels that a checkout compiles, and why it has none for an architecture."""

    kernels: list[Shipped]
    problems: dict[str, str]


class RevisionKernels(NamedTuple):
    """What a revision ships.

    Attributes:
        revision: Which.
        root: Its ``kernels/``.
        kernels: What it compiles.
        problems: Architectures that it has no kernels for, a line each.
    """

    revision: Revision
    root: Path
    kernels: list[Shipped]
    problems: list[str]


@contextmanager
def tree_of_revision(start: Path, name: str) -> Iterator[tuple[Path, Path, Revision]]:
    """Give a repository, the folder of a checkout of it, and the revision that it is of, for the length of a block.

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
    """Give the kernels of a revision, with their sources in a folder, for the length of a block.

    Args:
        start: A folder of the repository.
        name: The revision, or WORKTREE.
        archs: Targets.
        quick: Only the kernels that stand for all.

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
        name: What to call it in errors.
        archs: Targets.

    Raises:
        RocattnError: When it does not say.
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
    """What was put into the store.

    Attributes:
        stored: Commits that now have numbers.
        known: Commits that had them before.
        passed_over: Commits without kernels to audit: short hash -> why.
    """

    stored: list[str] = []
    known: list[str] = []
    passed_over: dict[str, str] = {}


def track_history(
    start: Path, count: int, archs: Sequence[str], *, jobs: int, on_step: Callable[[str], None] = lambda _: None
) -> Tracked:
    """Audit the kernels that stand for all, of those of the newest first-parent commits that the store does not know.

    Args:
        start: A folder of the repository.
        count: How many commits back to look.
        archs: Targets.
        jobs: Processes at once.
        on_step: Called with a line after each commit.

    Raises:
        RevisionError: When there is no repository.
        RocattnError: When the store takes no files.
    """
    from rocattn_profiling.asv.store import AsvStore

    repo = revisions.find_repository(start)
    store = AsvStore(repo)
    shas = _with_all_numbers(store)
    result = Tracked()
    for revision in revisions.first_parents(repo, "HEAD", count):
        if revision.sha in shas:
            result.known.append(revision.sha)
            on_step(f"{revision.short} is known")
            continue
        try:
            with kernels_of_revision(repo, revision.sha, archs, quick=True) as shipped:
                audit = audit_shipped(archs, jobs=jobs, root=shipped.root, kernels=shipped.kernels)
        except RocattnError as error:
            result.passed_over[revision.short] = str(error)
            on_step(f"{revision.short} is passed over")
            continue
        store_facts(store, Commit(sha=revision.sha, date_ms=revision.date_ms, subject=revision.subject), audit.kernels)
        result.stored.append(revision.sha)
        on_step(revision.short)
    return result


def _with_all_numbers(store: AsvStore) -> set[str]:
    """Return the commits whose every number is known: older versions tracked fewer."""
    known: dict[str, set[str]] = {f"{SUITE}.{metric}": set() for metric in TRACKED}
    for series in store.read():
        if series.benchmark in known:
            known[series.benchmark] |= set(series.points.shas)
    return set.intersection(*known.values())


def store_facts(store: AsvStore, commit: Commit, kernels: Sequence[KernelFacts]) -> None:
    """Put the tracked numbers of one commit's kernels into the store.

    Raises:
        RocattnError: When the store takes no files.
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
