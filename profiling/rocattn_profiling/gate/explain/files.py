"""Which files differ between both sides' trees, where in them to look first, and which files a module imports."""

from __future__ import annotations

import ast
import difflib
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.gate.verdict import Cause, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rocattn_profiling.gate.measure import SideName

_LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules", "out", ".asv"}
_MOST_BYTES = 2_000_000  # a larger file is no source that a person reads
_WIDTH = 88  # of the source text shown
ROOTS = ("", "src", "profiling")
NATIVE = {".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".hip", ".cu", ".pyx", ".pxd", ".rs", ".f90", ".go"}


class Hunk(NamedTuple):
    """Consecutive changed lines.

    Attributes:
        line: The first that is code, as head has it (from 1); else the first.
        text: What stands there; of deleted lines, what stood there.
        added, removed: How many lines.
        after, before: Numbers of the lines that are code, as head and as base have them.
    """

    line: int
    text: str
    added: int
    removed: int
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    @property
    def is_code(self) -> bool:
        """Whether more than comments, docstrings, brackets and blank lines may have changed."""
        return bool(self.after or self.before)

    @property
    def shown(self) -> str:
        """The text, cut to a readable width."""
        return self.text if len(self.text) <= _WIDTH else self.text[: _WIDTH - 1] + "…"


class _Function(NamedTuple):
    """A function of a file: its name with those around it, its lines with decorators, and what it says."""

    name: str
    first: int
    last: int
    code: str

    def holds(self, lines: Iterable[int]) -> bool:
        """Whether any of some lines is one of its own."""
        return any(self.first <= line <= self.last for line in lines)


class _Parsed(NamedTuple):
    """One side of a file; a file that is no Python has no functions."""

    functions: tuple[_Function, ...] = ()
    prose: frozenset[int] = frozenset()


def _parsed(path: Path) -> _Parsed:
    """Return the functions of a file, and the lines of its docstrings, which do nothing."""
    try:
        tree = ast.parse(path.read_bytes()) if path.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return _Parsed()
    prose: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body.pop(0)
            prose |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return _Parsed(tuple(_functions(tree)), frozenset(prose))


def _functions(node: ast.AST, inside: str = "") -> Iterator[_Function]:
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}.{child.name}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            # The dump has no line numbers and no layout: what moved or was formatted is as it was.
            yield _Function(name, first, child.end_lineno or first, ast.dump(child))
        yield from _functions(child, name)


def _is_code(line: str, *, native: bool) -> bool:
    """Whether a line says anything to a compiler or interpreter, as far as the line alone tells."""
    if native:
        return not line.startswith(("/*", "* ")) and bool(re.search(r"\w", line.partition("//")[0]))
    return not line.startswith("#") and bool(re.search(r"\w", line))


class Change:
    """One file that differs.

    Attributes:
        path: Relative to the trees' top folders.
        before, after: The file on each side; one of them may not be there.
        was: Its path on base, where that is another one.
    """

    def __init__(self, path: str, before: Path, after: Path, was: str = "") -> None:
        self.path, self.before, self.after, self.was = path, before, after, was

    @cached_property
    def _lines(self) -> tuple[list[str], list[str]]:
        """Both sides' lines; none where a side is not text."""
        try:
            old, new = (path.read_text().splitlines() if path.is_file() else [] for path in (self.before, self.after))
        except (OSError, UnicodeDecodeError):
            return [], []
        return old, new

    @cached_property
    def hunks(self) -> list[Hunk]:
        """What differs, in the order of head's lines; empty where a side is not text."""
        (old, new), native = self._lines, Path(self.path).suffix in NATIVE

        def code_of(lines: list[str], first: int, last: int, prose: frozenset[int]) -> tuple[int, ...]:
            numbers = (number for number in range(first + 1, last + 1) if number not in prose)
            return tuple(number for number in numbers if _is_code(lines[number - 1].strip(), native=native))

        found = []
        for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new).get_opcodes():
            if tag != "equal":
                before = code_of(old, i, j, self._sides[0].prose)
                after = code_of(new, k, m, self._sides[1].prose)
                at = next(iter(after), k + 1) if m > k else min(k + 1, max(len(new), 1))
                text = new[at - 1] if m > k else old[next(iter(before), i + 1) - 1]
                found.append(Hunk(at, text.strip(), m - k, j - i, after, before))
        return found

    @cached_property
    def _sides(self) -> tuple[_Parsed, _Parsed]:
        return _parsed(self.before), _parsed(self.after)

    def worth_a_look(self, ran: Iterable[int] = ()) -> Hunk | None:
        """Return the hunk to look at first: in a changed function that ran, else outside of functions, else any code.

        Args:
            ran: First lines of the functions of head's file that ran.
        """
        changed = self._changed(ran)
        old = [one for one in self._sides[0].functions if one.name in {other.name for other in changed}]
        code = [hunk for hunk in self.hunks if hunk.is_code]
        for hunk in code:
            lines = [line for line in hunk.after if any(one.holds([line]) for one in changed)]
            if lines:
                return hunk._replace(line=lines[0], text=self._lines[1][lines[0] - 1].strip())
            if any(one.holds(hunk.before) for one in old):
                return hunk
        return next(iter([hunk for hunk in code if self._outside(hunk)] or code or self.hunks), None)

    def touches(self, ran: Iterable[int]) -> bool:
        """Whether a function that ran has changed, or is new."""
        return bool(self._changed(ran))

    @property
    def outside(self) -> bool:
        """Whether code changed that is in no function: what a module does when it is imported, and its constants."""
        return any(self._outside(hunk) for hunk in self.hunks if hunk.is_code)

    def _changed(self, ran: Iterable[int]) -> list[_Function]:
        """Return the functions with these first lines that base does not have as they are."""
        wanted, (before, after) = set(ran), self._sides
        known = {(one.name, one.code) for one in before.functions}
        return [one for one in after.functions if one.first in wanted and (one.name, one.code) not in known]

    def _outside(self, hunk: Hunk) -> bool:
        return any(
            not any(one.holds([line]) for one in side.functions)
            for side, lines in zip(self._sides, (hunk.before, hunk.after), strict=True)
            for line in lines
        )

    @property
    def counts(self) -> str:
        """Lines added and removed, as ``git diff --stat`` has them."""
        return f"+{sum(hunk.added for hunk in self.hunks)} -{sum(hunk.removed for hunk in self.hunks)}"

    def cause(self, ran: Iterable[int] = ()) -> Cause:
        """Return the change as a cause, with the line to look at."""
        if not self.after.is_file():
            return Cause(kind="source", text=f"{self.path} is gone")
        if not self.before.is_file():
            return Cause(kind="source", text=f"{self.path} is new", location=Location(path=self.path))
        hunk, name = self.worth_a_look(ran), self.path + (f" ({self.was} in base)" if self.was else "")
        if hunk is None:
            return Cause(kind="source", text=f"{name} differs", location=Location(path=self.path))
        where = Location(path=self.path, line=hunk.line)
        return Cause(
            kind="source", text=f"{name} changed ({self.counts}), line {hunk.line}: `{hunk.shown}`", location=where
        )


def changed_files(
    base: Path, head: Path, *, without: Sequence[str] = (), among: Mapping[str, str] | None = None
) -> dict[str, Change]:
    """Return the files that differ between two trees by their relative path; of a file under a new name, by that.

    One that has nothing but a new name is listed as gone, which it is for those that look for it under the old one.

    Args:
        base: Before.
        head: Now.
        without: Folders that both sides take from head, so that a change in them explains nothing.
        among: The paths that can differ, each with the one it had on base, where that is known; else both trees are
            read.
    """
    pairs = {path: path for path in _files(base) | _files(head)} if among is None else among
    found = {}
    for path, was in sorted(pairs.items()):
        if any(path == folder or path.startswith(f"{folder}/") for folder in without):
            continue
        before, after = base / was, head / path
        if before.is_file() and after.is_file() and before.read_bytes() == after.read_bytes():
            if was != path:
                found[was] = Change(was, before, head / was)
            continue
        found[path] = Change(path, before, after, was if was != path else "")
    return found


def _files(tree: Path) -> set[str]:
    found = set()
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                found.add(path.relative_to(tree).as_posix())
    return found


def of_module(changes: dict[str, Change], module: str, file: str, side: SideName = "head") -> Change | None:
    """Return the change of the file that a module of a side was loaded from, wherever the tree keeps its packages.

    Names alone would take a library's ``random`` for the project's ``x/random.py``: the contents must be equal, too.
    """
    stem = module.replace(".", "/")
    for end in (f"{stem}.py", f"{stem}/__init__.py"):
        for change in changes.values():
            own = change.after if side == "head" else change.before
            path = (change.was or change.path) if side == "base" else change.path
            if (path == end or path.endswith(f"/{end}")) and equal(own, Path(file)):
                return change
    return None


def equal(one: Path, other: Path) -> bool:
    """Whether both files can be read and hold the same."""
    try:
        return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def imports_of(tree: Path, starts: Iterable[str], more_roots: Sequence[str] = ()) -> list[str]:
    """Return the files below a tree that files import, directly or not, nearest first, the files themselves included.

    Imports are read, not run, those inside of functions included; a name that is not in the tree is left out.

    Args:
        tree: The checkout.
        starts: Relative paths.
        more_roots: Folders of the tree from which modules are imported, beside the usual ones.
    """
    waiting, found = [path for path in starts if (tree / path).is_file()], []
    roots = [tree / root for root in dict.fromkeys([*ROOTS, *more_roots])]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        for names in _imported(tree / path):
            for root in roots:
                beside = (root / names).with_suffix(".py")
                package = root / names / "__init__.py"
                target = next((one for one in (beside, package) if one.is_file()), None)
                if target is not None:
                    packages = [one / "__init__.py" for one in target.parents if one != root and root in one.parents]
                    inside = [target, *(one for one in packages if one.is_file())]  # Python runs these, too
                    waiting += [one.relative_to(tree).as_posix() for one in inside]
                    break
    return found


def _imported(path: Path) -> Iterator[str]:
    """Give what a file imports as paths without suffix: of ``from a import b`` both a/b and a."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_text())))
    except (OSError, SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            base = node.module.replace(".", "/")
            yield from (f"{base}/{alias.name}" for alias in node.names)
            yield base
        elif isinstance(node, ast.ImportFrom):
            # Relative: resolved from the file's own place, whatever its package is called.
            parent = path.parent
            for _ in range(node.level - 1):
                parent = parent.parent
            inside = (node.module or "").replace(".", "/")
            for alias in node.names:
                yield str(parent / inside / alias.name)
            yield str(parent / inside)
