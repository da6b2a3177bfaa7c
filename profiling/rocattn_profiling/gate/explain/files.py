"""Which files differ between the sides, which of these a benchmark loads, and which lines to read first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.gate.model import SIDES, CaseLauncher, Cause, Location, SideName
from rocattn_profiling.revisions.git import git
from rocattn_profiling.revisions.hunks import NATIVE, Hunk, hunks_between

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Loaded
    from rocattn_profiling.revisions.git import Revision

_COMPILED = frozenset({".so", ".pyd"})
_LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "node_modules", "out", ".asv"})
_MOST_BYTES = 2_000_000  # a larger file is not a source that a person reads
_MOST_LINES = 8  # listed per file


class FileChange:
    """One file that differs.

    Attributes:
        path: Relative to the trees.
        before, after: The file on each side; one of them may be missing.
        old_path: Its path on base if it was renamed; otherwise empty.
    """

    def __init__(self, path: str, before: Path, after: Path, old_path: str = "") -> None:
        self.path, self.before, self.after, self.old_path = path, before, after, old_path

    @cached_property
    def hunks(self) -> list[Hunk]:
        """The changed lines in head's order; empty if a side is not text."""
        return hunks_between(self.before, self.after)

    def cause(self, ran: Sequence[range] = ()) -> Cause:
        """Return the change as a cause, located at its first changed line of code.

        Args:
            ran: Lines of head's functions that ran: changed lines within them come first.
        """
        if not self.after.is_file():
            return Cause(kind="source", text=f"{self.path} is gone")
        if not self.before.is_file():
            return Cause(kind="source", text=f"{self.path} is new", location=Location(path=self.path))
        was = f" ({self.old_path} in base)" if self.old_path else ""
        hunks = [hunk for hunk in self.hunks if hunk.is_code] or self.hunks
        hunks = sorted(hunks, key=lambda hunk: not any(hunk.line in lines for lines in ran))
        if not hunks:
            return Cause(kind="source", text=f"{self.path}{was} differs", location=Location(path=self.path))
        first, others = hunks[0], [str(hunk.line) for hunk in hunks[1:_MOST_LINES]]
        counts = f"+{sum(hunk.added for hunk in self.hunks)} -{sum(hunk.removed for hunk in self.hunks)}"
        more = f"; also line{'s' if others[1:] else ''} {', '.join(others)}" if others else ""
        more += ", …" if hunks[_MOST_LINES:] else ""
        return Cause(
            kind="source",
            text=f"{self.path}:{first.line}{was} changed ({counts}){more}",
            location=Location(path=self.path, line=first.line),
            diff=first.diff,
        )


def changed_files(
    repo: Path,
    trees: Mapping[SideName, Path],
    revisions: Mapping[SideName, Revision],
    launchers: Mapping[SideName, CaseLauncher],
) -> dict[str, FileChange]:
    """Return the files that differ between both sides' trees, by path; empty without trees.

    Benchmarks are left out if both sides run head's. A file that was only renamed counts as deleted: code that looks
    for it under its old name cannot find it.

    Args:
        repo: The repository's top folder.
        trees: Checkout of each side.
        revisions: Revision of each side; empty outside of git.
        launchers: Their `shared` files are the same on both sides.
    """
    if any(side not in trees for side in SIDES):
        return {}
    base, head = (trees[side] for side in SIDES)
    top = head.absolute()
    shared = [path.relative_to(top) for path in launchers["head"].shared if path.is_relative_to(top)]
    changes, paths = {}, differing_paths(repo, revisions)
    if paths is None:
        paths = {path: path for path in _files(base) | _files(head)}
    for path, old_path in sorted(paths.items()):
        if any(Path(path).is_relative_to(folder) for folder in shared):
            continue
        before, after = base / old_path, head / path
        if before.is_file() and after.is_file() and before.read_bytes() == after.read_bytes():
            if old_path != path:
                changes[old_path] = FileChange(old_path, before, head / old_path)
            continue
        changes[path] = FileChange(path, before, after, old_path if old_path != path else "")
    return changes


def differing_paths(repo: Path, revisions: Mapping[SideName, Revision]) -> dict[str, str] | None:
    """Return the paths that git says differ, each with its path on base; None without two revisions."""
    if any(side not in revisions for side in SIDES):
        return None
    shas = (revisions[side].sha for side in SIDES)
    listed = git(repo, "diff", "--name-status", "--no-relative", "-M", "-z", *shas)
    words, paths = iter(listed.split("\0")), {}
    for status in words:
        if status:
            old_path = next(words)
            paths[next(words) if status.startswith("R") else old_path] = old_path
    return paths


def _files(tree: Path) -> set[str]:
    paths = set()
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                paths.add(path.relative_to(tree).as_posix())
    return paths


def loaded_changes(changes: Mapping[str, FileChange], base: Loaded | None, head: Loaded | None) -> list[FileChange]:
    """Return the changed files that a benchmark loads on either side.

    These are modules, data files in the folder of a loaded module, and native sources if a compiled module differs.

    Args:
        changes: The files that differ.
        base: What the benchmark loads on base; None if it does not run there.
        head: The same on head.
    """
    modules = [_files_by_name(loaded) if loaded else {} for loaded in (base, head)]
    folders = {name.rpartition("/")[0] for side in modules for name in side}
    native = base is not None and head is not None and _compiled_differ(base, head)
    chosen = []
    for path, change in changes.items():
        if path.endswith(".py"):
            is_loaded = _is_module(change.old_path or path, change.before, modules[0]) or _is_module(
                path, change.after, modules[1]
            )
        else:
            is_loaded = native if Path(path).suffix in NATIVE else bool(folders & set(_ends(path.rpartition("/")[0])))
        chosen += [change] if is_loaded else []
    return chosen


def _files_by_name(loaded: Loaded) -> dict[str, Path]:
    """Return the files of loaded modules by the paths that Python looks for: "a/b.py" and "a/b/__init__.py"."""
    return {
        name.replace(".", "/") + ("/__init__.py" if Path(file).stem == "__init__" else ".py"): Path(file)
        for name, file in loaded.modules.items()
    }


def _ends(path: str) -> Iterator[str]:
    """Yield a path and all its suffixes ("a/b.py", "b.py"): a tree may keep its packages in any folder."""
    while path:
        yield path
        path = path.partition("/")[2]


def _is_module(path: str, own: Path, modules: Mapping[str, Path]) -> bool:
    """Whether a file of a tree was loaded as a module.

    By name alone a library's ``random`` would match the project's ``x/random.py``, so the contents must be equal too.
    """
    return any(end in modules and _equal(own, modules[end]) for end in _ends(path))


def _compiled_differ(base: Loaded, head: Loaded) -> bool:
    """Whether a compiled module differs between the sides, or is loaded on base only."""
    compiled = [(name, Path(file)) for name, file in base.modules.items() if Path(file).suffix in _COMPILED]
    return any(name not in head.modules or not _equal(file, Path(head.modules[name])) for name, file in compiled)


def differing_modules(base: Loaded, head: Loaded, packages: Mapping[str, object]) -> Iterator[FileChange]:
    """Yield the loaded Python modules that differ between two existing environments, which have no trees.

    Args:
        base: What a benchmark loads on base.
        head: The same on head.
        packages: Distributions whose versions differ; their modules are left out.
    """
    known = {re.sub(r"[-_.]+", "_", name).lower() for name in packages}
    for module, file in head.modules.items():
        before, after = Path(base.modules.get(module, "")), Path(file)
        if module.partition(".")[0].lower() in known or after.suffix != ".py" or before == after:
            continue
        if before.is_file() and after.is_file() and not _equal(before, after):
            end = "/__init__.py" if after.stem == "__init__" else ".py"
            yield FileChange(module.replace(".", "/") + end, before, after)


def _equal(file: Path, other: Path) -> bool:
    """Whether both files can be read and have the same content."""
    try:
        return file.stat().st_size == other.stat().st_size and file.read_bytes() == other.read_bytes()
    except OSError:
        return False
