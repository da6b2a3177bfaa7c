"""Lists the benchmarks of both sides, and finds files that contain some before anything is built."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rocattn_profiling.asv.launch import Suite
from rocattn_profiling.base.console import Step
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import SIDES, SideName

_BENCHMARK = re.compile(r"(time|timeraw|mem|peakmem|track)_\w+")
_FIXTURE = "benchmark"  # pytest-benchmark's


class ListedSuites(NamedTuple):
    """Head's benchmarks in both environments, and base's own benchmarks; None if base has the same files."""

    sides: dict[SideName, Suite]
    before: Suite | None


def listed_suites(context: Context, on_step: Callable[[Step], None]) -> ListedSuites:
    """List the benchmarks of both sides at the same time; nothing is timed yet.

    Args:
        context: Both sides, built.
        on_step: Called when it begins.

    Raises:
        SuiteError: An entire folder cannot be listed.
    """
    on_step(Step(done=0, total=0, what="listing the benchmarks"))
    answers: dict[str, Suite | None] = {}
    errors: list[Exception] = []

    def find(name: str, ask: Callable[[], Suite | None]) -> None:
        try:
            answers[name] = ask()
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)

    questions: dict[str, Callable[[], Suite | None]] = {"": context.list_base}
    questions |= {side: context.launchers[side].discover for side in SIDES}
    # Daemon threads, so that an interrupted run does not wait for them; their processes end with this one.
    threads = [threading.Thread(target=find, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return ListedSuites({side: suite for side in SIDES if (suite := answers[side]) is not None}, answers[""])


class PytestNames(NamedTuple):
    """Which names pytest collects in a project: patterns of files, and prefixes or patterns of functions."""

    files: tuple[str, ...] = ("test_*.py", "*_test.py")
    functions: tuple[str, ...] = ("test",)

    @classmethod
    def of(cls, folder: Path, tree: Path) -> PytestNames:
        """Return a folder's settings, from the nearest configuration file above it, up to the tree."""
        for place in (folder, *folder.parents):
            if (section := _pytest_section(place)) is not None:
                given = {key: section[f"python_{key}"] for key in cls._fields if f"python_{key}" in section}
                words = {k: tuple(v.split() if isinstance(v, str) else map(str, v)) for k, v in given.items()}
                return cls(**words)
            if place == tree:
                break
        return cls()

    def collects(self, file: Path) -> bool:
        """Whether pytest collects a file from a folder on its command line."""
        return any(fnmatch.fnmatch(file.name, pattern) for pattern in self.files)

    def is_test(self, name: str) -> bool:
        """Whether a function of this name is a test."""
        return any(name.startswith(pattern) or fnmatch.fnmatch(name, pattern) for pattern in self.functions)


def _pytest_section(folder: Path) -> Mapping[str, Any] | None:
    """Return pytest's section of a folder's configuration, in pytest's search order; None without one."""
    for name, section in (
        ("pytest.ini", "pytest"), (".pytest.ini", "pytest"), ("pyproject.toml", ""), ("tox.ini", "pytest"),
        ("setup.cfg", "tool:pytest"),
    ):  # fmt: skip
        path = folder / name
        try:
            text = path.read_text()
            if not section:
                found: Mapping[str, Any] | None = (
                    tomllib.loads(text).get("tool", {}).get("pytest", {}).get("ini_options")
                )
            else:
                parser = configparser.ConfigParser(interpolation=None)
                parser.read_string(text)
                found = dict(parser[section]) if section in parser else {} if name == "pytest.ini" else None
        except (OSError, ValueError, configparser.Error):
            continue
        if found is not None:
            return found
    return None


def shows(source: bytes, kind: str, names: PytestNames | None = None) -> bool:
    """Whether a file's source contains benchmarks of a kind: "asv", or "pytest" for pytest-benchmark tests."""
    try:
        functions = list(_functions(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    if kind == "asv":
        return any(_BENCHMARK.fullmatch(function.name) for function in functions)
    is_test = (names or PytestNames()).is_test
    return any(is_test(f.name) and any(each.arg == _FIXTURE for each in f.args.args) for f in functions)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module and its classes, including those under a condition, but no nested functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)
