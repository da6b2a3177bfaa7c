"""The packages that a project's own tests need: from its pyproject.toml, from a requirements file, or as named."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError
from rocattn_profiling.revisions.interpreters import canonical

GROUPS = ("test", "tests", "testing", "bench", "benchmark", "benchmarks", "perf")
DEVELOPMENT = ("dev", "develop", "development")
"""Groups that hold documentation and linters as well: read only where no other one has pytest-benchmark."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SELF = re.compile(r"([A-Za-z0-9._-]+)\s*\[([^\]]+)\]\s*$")


class Groups:
    """The named lists of requirements in a project's pyproject.toml: dependency groups (PEP 735), and extras.

    Args:
        project: The project's folder.

    Raises:
        SuiteError: When its pyproject.toml is not valid TOML.
    """

    def __init__(self, project: Path) -> None:
        path = project / "pyproject.toml"
        try:
            tables = tomllib.loads(path.read_text()) if path.is_file() else {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SuiteError(f"pyproject.toml is not valid TOML: {error}") from error
        table = tables.get("project", {})
        self.project = canonical(str(table.get("name", "")))
        self._groups = _by_name(tables.get("dependency-groups", {}))
        self._extras = _by_name(table.get("optional-dependencies", {}))

    def __contains__(self, name: str) -> bool:
        """Whether there is a group or an extra of this name."""
        return canonical(name) in self._groups.keys() | self._extras.keys()

    def requirements(self, name: str) -> list[str]:
        """Return what a group and an extra of this name ask for, with what they include; empty without them."""
        return list(dict.fromkeys([*self._of_group(canonical(name), ()), *self._of_extra(canonical(name), ())]))

    def of_tests(self) -> list[str]:
        """Return what the usual groups of tests and benchmarks ask for."""
        listed = [text for name in GROUPS for text in self.requirements(name)]
        if not any(name_of(text) == "pytest-benchmark" for text in listed):
            develop = [self.requirements(name) for name in DEVELOPMENT]
            listed += [text for texts in develop for text in texts if "pytest-benchmark" in map(name_of, texts)]
        return list(dict.fromkeys(listed))

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
        """Yield a requirement, or those of the project's own extras that it names: ``project[test]``."""
        match = _SELF.match(text)
        if not match or canonical(match[1]) != self.project:
            yield text
            return
        for extra in match[2].split(","):
            yield from self._of_extra(canonical(extra.strip()), above)


def wanted_by_tests(tree: Path, project: Path, named: Sequence[str]) -> list[str]:
    """Return the requirements of tests, in pip's syntax.

    Args:
        tree: The checked-out repository.
        project: The project's folder in it.
        named: Each a requirements file, a group or an extra of pyproject.toml, or a requirement; none for the usual
            groups.

    Raises:
        UnknownNameError: When one of them is nothing of this.
        SuiteError: When a file cannot be read.
    """
    groups = Groups(project)
    if not named:
        return groups.of_tests()
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
                f"--requirements {text}: no file of head, no group or extra of pyproject.toml, no package"
            )
    return list(dict.fromkeys(listed))


def name_of(requirement: str) -> str:
    """Return the canonical name of the package that a requirement is for; "" for what begins with none."""
    match = _NAME.match(requirement.strip())
    return canonical(match.group()) if match else ""


def _lines(file: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the requirements of a file in pip's format and of those that it includes; other options are left out."""
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
