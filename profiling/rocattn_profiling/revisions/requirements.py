"""The packages that a project's tests need: from its pyproject.toml, from a requirements file, or as given."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError
from rocattn_profiling.revisions.interpreters import canonical

GROUPS = ("test", "tests", "testing", "bench", "benchmark", "benchmarks", "benchmarking", "perf", "performance")
PLUGINS = frozenset({"pytest-benchmark", "pytest-codspeed"})
"""Packages that provide the fixture: if no usual group has one, the first other group that does is also read."""
PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_USUAL_FILES = ("*require*.txt", "*require*/*.txt", "test*/*require*.txt")
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([\w., ]+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SELF = re.compile(r"([A-Za-z0-9._-]+)\s*\[([^\]]+)\]\s*$")


class Groups:
    """The named lists of requirements in a project's pyproject.toml: dependency groups (PEP 735), and extras.

    Args:
        project: The project's folder.

    Raises:
        SuiteError: Its pyproject.toml is not valid TOML.
    """

    def __init__(self, project: Path) -> None:
        tables = _tables(project)
        table = tables.get("project", {})
        self.project = canonical(str(table.get("name", "")))
        self._groups = _by_name(tables.get("dependency-groups", {}))
        self._extras = _by_name(table.get("optional-dependencies", {}))

    def __contains__(self, name: str) -> bool:
        """Whether there is a group or extra with this name."""
        return canonical(name) in self._groups.keys() | self._extras.keys()

    def requirements(self, name: str) -> list[str]:
        """Return the requirements of the group and extra with this name, including nested ones; empty without them."""
        return list(dict.fromkeys([*self._of_group(canonical(name), ()), *self._of_extra(canonical(name), ())]))

    def of_tests(self) -> list[str]:
        """Return the requirements of the usual groups for tests and benchmarks."""
        listed = [text for name in GROUPS for text in self.requirements(name)]
        if not _has_plugin(listed):
            others = (self.requirements(name) for name in [*self._groups, *self._extras])
            listed += next(filter(_has_plugin, others), [])
        return list(dict.fromkeys(listed))

    def for_modules(self, modules: Collection[str]) -> list[str]:
        """Return requirements from any group or extra for packages that have the same name as a module."""
        every = (text for name in [*self._groups, *self._extras] for text in self.requirements(name))
        return [text for text in dict.fromkeys(every) if name_of(text) in modules]

    def _of_group(self, name: str, above: tuple[str, ...]) -> Iterator[str]:
        for item in self._groups.get(name, []) if name not in above else []:
            if isinstance(item, str):
                yield from self._expanded(item, above)
            elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
                yield from self._of_group(canonical(item["include-group"]), (*above, name))

    def _of_extra(self, name: str, above: tuple[str, ...]) -> Iterator[str]:
        for item in self._extras.get(name, []) if name not in above else []:
            if isinstance(item, str):
                yield from self._expanded(item, (*above, name))

    def _expanded(self, text: str, above: tuple[str, ...]) -> Iterator[str]:
        """Yield a requirement, or, for the project's own extras (``project[test]``), theirs."""
        match = _SELF.match(text)
        if not match or canonical(match[1]) != self.project:
            yield text
            return
        for extra in match[2].split(","):
            yield from self._of_extra(canonical(extra.strip()), above)


def is_project(folder: Path) -> bool:
    """Whether a folder can be built: a pyproject.toml only for a workspace or settings is not a project."""
    if any((folder / name).is_file() for name in PROJECT_FILES[1:]):
        return True
    return not {"project", "build-system"}.isdisjoint(_tables(folder))


def members(tree: Path) -> dict[str, Path]:
    """Return name -> folder of the projects in a uv workspace; empty if the tree is not one."""
    workspace = _tables(tree).get("tool", {}).get("uv", {}).get("workspace", {})
    found = {path for pattern in workspace.get("members", []) for path in sorted(tree.glob(pattern)) if path.is_dir()}
    found -= {path for pattern in workspace.get("exclude", []) for path in tree.glob(pattern)}
    named = {Groups(path).project or path.name: path for path in sorted(found) if is_project(path)}
    return named | ({Groups(tree).project or tree.name: tree} if named and is_project(tree) else {})


def needed_members(tree: Path, project: Path) -> list[Path]:
    """Return the workspace members that a member requires, directly or indirectly, except itself."""
    known, needed, wanted = members(tree), list[Path](), [project]
    while wanted:
        folder = wanted.pop()
        table = _tables(folder)
        own = [*table.get("project", {}).get("dependencies", []), *Groups(folder).of_tests()]
        more = [known[name] for name in map(name_of, own) if name in known]
        fresh = [path for path in dict.fromkeys(more) if path not in {project, *needed}]
        needed, wanted = [*needed, *fresh], [*wanted, *fresh]
    return needed


def _tables(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's pyproject.toml; empty without one.

    Raises:
        SuiteError: It is not valid TOML.
    """
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text()) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"pyproject.toml is not valid TOML: {error}") from error


def wanted_by_tests(tree: Path, project: Path, named: Sequence[str], tests: Iterable[Path] = ()) -> list[str]:
    """Return the requirements of tests, in pip's syntax.

    Args:
        tree: The checked-out repository.
        project: The project's folder in it.
        tests: Their files and folders: packages that they import and an extra lists are added if ``named`` is empty.
        named: Each a requirements file, a group or extra of pyproject.toml, or a requirement; empty for the usual
            groups.

    Raises:
        UnknownNameError: An item of ``named`` is none of these.
        SuiteError: A file cannot be read.
    """
    groups = Groups(project)
    if not named:
        found = groups.of_tests()  # a workspace often has them at its top
        if not _has_plugin(found):
            found += Groups(tree).of_tests()
        if not _has_plugin(found):
            found += next(filter(_has_plugin, map(_of_file, _files(project, tree))), [])
        known = {*map(name_of, found)}
        more = groups.for_modules(_imported(tests))
        return list(dict.fromkeys([*found, *(text for text in more if name_of(text) not in known)]))
    listed: list[str] = []
    for text in named:
        file = next((folder / text for folder in (project, tree) if (folder / text).is_file()), None)
        if file is not None:
            listed += _lines(file, ())
        elif text in groups:
            listed += groups.requirements(text)
        elif re.fullmatch(r"[A-Za-z0-9].*", text) and "/" not in text.partition("@")[0]:
            listed.append(text)
        else:
            raise UnknownNameError(
                f"--requirements {text}: not a file, a group or extra of pyproject.toml, or a package"
            )
    return list(dict.fromkeys(listed))


def _imported(tests: Iterable[Path]) -> set[str]:
    """Return all parts of imported modules' names: a project's own backend module is often named like its package."""
    parts: set[str] = set()
    for file in (file for path in tests for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])):
        with contextlib.suppress(OSError):
            for line in _IMPORT.findall(file.read_text(errors="replace")):
                parts |= {canonical(part) for part in re.findall(r"\w+", line)}
    return parts


def _has_plugin(requirements: Iterable[str]) -> bool:
    return not PLUGINS.isdisjoint(map(name_of, requirements))


def _files(project: Path, tree: Path) -> list[Path]:
    """Return the requirements files in their usual places, the project's first."""
    return [path for top in (project, tree) for pattern in _USUAL_FILES for path in sorted(top.glob(pattern))]


def _of_file(file: Path) -> list[str]:
    """Return the requirements in a file that the user did not name; none if it cannot be read completely."""
    try:
        return list(_lines(file, ()))
    except (SuiteError, OSError):
        return []


def name_of(requirement: str) -> str:
    """Return the canonical name of a requirement's package; "" if it does not begin with a name."""
    match = _NAME.match(requirement.strip())
    return canonical(match.group()) if match else ""


def _lines(file: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the requirements in a file in pip's format and in files it includes; other options are ignored."""
    for line in file.read_text(errors="replace").replace("\\\n", "").splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        included = re.match(r"(?:-r|--requirement)[ =]*(.+)", text)
        if included and file not in above:
            other = file.parent / included[1].strip()
            if not other.is_file():
                raise SuiteError(f"{file.name} includes {included[1].strip()}, which is not there")
            yield from _lines(other, (*above, file))
        elif text and not text.startswith("-"):
            yield text.partition(" --hash")[0].strip()


def _by_name(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {canonical(name): value for name, value in table.items() if isinstance(value, list)}
