"""Auditing another revision: its sources from git, compiled by today's compiler and read by today's audit."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError, complaint
from rocattn_profiling.kernels.shipped import Shipped, is_quick
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rocattn_profiling.revisions.git import Revision

# Which kernels a revision ships, and with which macros, is said by its own code, run in a process of its own.
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


class Listed(msgspec.Struct, frozen=True):
    """What a checkout compiles, and of each architecture that it has no kernels for why."""

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
    repo = revisions.find_repository(start)
    revision = revisions.resolve(repo, name)
    scratch = environments.cache_root() / "scratch"
    revisions.prune_checkouts(scratch)
    with revisions.checkout(repo, revision, scratch) as tree:
        listed = list_kernels(tree, revision.short, archs)
        chosen = [one for one in listed.kernels if not quick or is_quick(one)]
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
