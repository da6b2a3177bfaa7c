"""Environments: a revision's wheel and its dependencies in a virtual environment, cached by content.

`rocattn_profiling.revisions.build` builds them. Online, dependencies come from an index, constrained by the revision's
``requirements.lock`` if it has one. Offline (``ROCATTN_OFFLINE=1``, or no index answers), the environment has the
revision's wheel first, then the running interpreter's packages; every result says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rocattn import cache_limit
from rocattn.cache import cache_folder
from rocattn.errors import RocattnError
from rocattn.settings import OFFLINE, switch
from rocattn_profiling.base.files import DocumentError, decoded, locked
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import Recipe
from rocattn_profiling.revisions.build import (
    DISK_FULL,
    Build,
    BuildError,
    DiskError,
    NoIndexError,
    meaningful_line,
    running_packages,
)
from rocattn_profiling.revisions.git import Revision

__all__ = ["BuildError", "CacheError", "Environment", "build", "cache_root", "differences"]

KEEP = 12  # environments in the cache; one is 20 to 400 MB, mostly hard links into uv's cache
_STAMP = "stamp.json"  # in each environment: its facts; the modification time is the last use
_FILES = "files.json"  # in each environment: the state of its files when it was ready
FRESH_S = 6 * 3600.0  # an environment used this recently is never removed: a running gate may be using it


class CacheError(RocattnError):
    """Raised if the cache folder cannot be written."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """One side's environment, ready to use.

    Attributes:
        python: The path of its interpreter.
        folder: The path of its cache entry, which also has ``build.log``; "" for an existing environment.
        offline: Whether it uses the running interpreter's dependencies instead of the revision's own.
        packages: Name -> version of every importable package.
        python_version: Like "3.11.7".
        project: The canonical name of the package that was built; "" if unknown.
    """

    python: str
    folder: str
    offline: bool
    packages: dict[str, str]
    python_version: str
    project: str = ""


def cache_root() -> Path:
    """Return the gate's cache folder: ``$ROCATTN_CACHE_DIR`` or the user's cache folder."""
    return cache_folder() / "gate"


def find_uv() -> str | None:
    """Return uv's path: ``$ROCATTN_UV`` (empty for none), the one next to the interpreter, or the one on PATH."""
    if (given := os.environ.get("ROCATTN_UV")) is not None:
        return given or None
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def offline_wanted() -> bool:
    """Whether ``$ROCATTN_OFFLINE`` forbids using a package index."""
    return switch(OFFLINE)


def build(repo: Path, revision: Revision, recipe: Recipe | None = None, *, offline: bool | None = None) -> Environment:
    """Return a revision's environment, from the cache or freshly built.

    Args:
        repo: The repository's top folder.
        revision: The revision to build.
        recipe: How to build it; None for the project at the repository's top, with its own build backend.
        offline: True to use the running interpreter's packages; None to decide by ``$ROCATTN_OFFLINE`` and to fall
            back to them if no index answers.

    Raises:
        BuildError: The revision does not build; names the log.
        CacheError: The cache folder cannot be written.
    """
    wanted = offline_wanted() if offline is None else offline
    try:
        return _cached(repo, revision, recipe or Recipe(), offline=wanted)
    except NoIndexError as error:
        if offline is False:
            raise BuildError(f"cannot build {revision.name}: no package index answers ({error})") from error
        return _cached(repo, revision, recipe or Recipe(), offline=True)


def _cached(repo: Path, revision: Revision, recipe: Recipe, *, offline: bool) -> Environment:
    root = cache_root()
    entry = root / "envs" / _key(revision, recipe, offline=offline)
    with _cache_errors(root):
        entry.parent.mkdir(parents=True, exist_ok=True)
        revisions.prune_checkouts(root / "scratch")
        with locked(entry.with_suffix(".lock")):
            stamp = entry / _STAMP
            if (ready := _read_stamp(stamp)) and _is_whole(entry):
                os.utime(stamp)
                return ready
            shutil.rmtree(entry, ignore_errors=True)
            entry.mkdir()
            _prune(entry.parent)
            with revisions.checkout(repo, revision, root / "scratch") as source:
                ready = _make(source, entry, revision, recipe, offline=offline)
            (entry / _FILES).write_bytes(msgspec.json.encode(sorted(_files(entry))))
            # The stamp is written last: an entry without one is incomplete and is rebuilt.
            partial = entry / ".stamp.partial"
            partial.write_bytes(msgspec.json.encode(ready))
            partial.replace(stamp)
            return ready


def built_tree(source: Path, revision: Revision, commands: Sequence[str], environment: Environment) -> Path:
    """Return a copy of a checkout in which build commands have run, from the cache or freshly made.

    The copy is used where it was built, since build folders contain absolute paths.

    Args:
        source: The checkout.
        revision: Its revision.
        commands: Commands in shell syntax, run in order at the top of the copy.
        environment: The environment that comes first on PATH.

    Raises:
        BuildError: One of them fails; names the log.
        CacheError: The cache folder cannot be written.
    """
    root = cache_root()
    parts = (revision.tree, environment.folder, *commands)
    entry = root / "trees" / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    tree, stamp, log = entry / "tree", entry / _STAMP, entry / "build.log"
    with _cache_errors(root):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with locked(entry.with_suffix(".lock")):
            if stamp.exists():
                os.utime(stamp)
                return tree
            shutil.rmtree(entry, ignore_errors=True)
            shutil.copytree(source, tree, symlinks=True)
            _prune(entry.parent)
            path = os.pathsep.join([str(Path(environment.python).parent), os.environ.get("PATH", os.defpath)])
            for command in commands:
                with log.open("ab") as output:
                    done = subprocess.run(
                        ["/bin/sh", "-c", command], cwd=tree, env=os.environ | {"PATH": path}, check=False,
                        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    )  # fmt: skip
                if done.returncode:
                    why = meaningful_line(log.read_text(errors="replace"))
                    raise BuildError(
                        f"{revision.name} ({revision.short}): --build {command!r} ended with status {done.returncode}: "
                        f"{why} [log: {log}]"
                    )
            stamp.write_text("{}")
    return tree


def _read_stamp(stamp: Path) -> Environment | None:
    try:
        ready = decoded(stamp.read_bytes(), Environment)
    except (FileNotFoundError, NotADirectoryError, DocumentError):
        return None
    return ready if Path(ready.python).exists() else None


def _is_whole(entry: Path) -> bool:
    """Whether installed files are unchanged: an edited or deleted file breaks every run; new files are allowed."""
    try:
        return set(decoded((entry / _FILES).read_bytes(), list[str])) <= _files(entry)
    except FileNotFoundError:  # an environment of an older version
        return True
    except DocumentError:
        return False


def _files(entry: Path) -> set[str]:
    """Return size, time and path of each file except bytecode; hashing contents of up to 400 MB would take too long."""
    found = set()
    for folder, below, names in os.walk(entry / "venv"):
        below[:] = [name for name in below if name != "__pycache__"]
        for path in (os.path.join(folder, name) for name in names):  # noqa: PTH118 - thousands
            status = os.lstat(path)
            found.add(f"{status.st_size} {status.st_mtime_ns} {path!a}")
    return found


def _make(source: Path, entry: Path, revision: Revision, recipe: Recipe, *, offline: bool) -> Environment:
    build_ = Build(source, entry, revision, recipe, uv=find_uv(), offline=offline)
    try:
        facts, project = build_.make()
    except DiskError as error:
        raise CacheError(_cache_message(cache_root(), str(error))) from error
    return Environment(
        python=build_.python,
        folder=str(entry),
        offline=offline,
        packages=facts.packages,
        python_version=facts.python_version,
        project=project,
    )


def _key(revision: Revision, recipe: Recipe, *, offline: bool) -> str:
    """Hash everything that determines an environment's content; the lock is part of the tree."""
    # Two commits with the same files share an environment, unless build commands receive the commit.
    parts = [revision.tree, revision.sha if recipe.has_commands else "", msgspec.json.encode(recipe).decode()]
    # venv installs pip and setuptools, uv does not: sides made with different tools would differ in that.
    parts += [sys.executable, sys.version, platform.machine(), str(offline), str(not offline and bool(find_uv()))]
    if offline:  # the dependencies are the running interpreter's packages
        parts += [f"{name}=={version}" for name, version in sorted(running_packages().items())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def _cache_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except revisions.RevisionError as error:
        if DISK_FULL.search(error.output):
            raise CacheError(_cache_message(root, str(error))) from error
        raise
    except OSError as error:
        raise CacheError(_cache_message(root, error.strerror or str(error))) from error


def _cache_message(root: Path, cause: str) -> str:
    return f"the cache folder {root} cannot be written ({cause}): free it, or name another with ROCATTN_CACHE_DIR"


def cached_entries(envs: Path) -> Iterator[cache_limit.CacheEntry]:
    """Yield the environments in a folder, including those being built."""
    return cache_limit.entries([path for path in envs.iterdir() if path.is_dir()], _STAMP)


def _prune(envs: Path) -> None:
    """Remove the least recently used environments beyond `KEEP`, and beyond the cache's size limit."""
    cache_limit.shrink(cached_entries(envs), fresh_s=FRESH_S, keep=KEEP)


def differences(base: Environment, head: Environment) -> dict[str, tuple[str, str]]:
    """Return package -> (version in base, version in head) where they differ; "" where absent.

    The project itself is left out: its difference is what is measured, and versions derived from commits always differ.
    """
    names = base.packages.keys() | head.packages.keys()
    if base.project == head.project:
        names = names - {base.project}
    pairs = {name: (base.packages.get(name, ""), head.packages.get(name, "")) for name in sorted(names)}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if base.python_version != head.python_version:
        differing["python"] = (base.python_version, head.python_version)
    return differing
