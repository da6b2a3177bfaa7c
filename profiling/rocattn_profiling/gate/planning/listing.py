"""The benchmarks of both sides, and those whose names the sources show before anything is built."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rocattn_profiling.asv.launch import Suite
from rocattn_profiling.base.console import Step
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import SIDES, SideName

_BENCHMARK = re.compile(r"(time|timeraw|mem|peakmem|track)_\w+")
_FIXTURE = "benchmark"  # pytest-benchmark's
_MAKERS = frozenset(
    {"setattr", "globals", "locals", "vars", "exec", "eval", "type", "__dict__", "benchmark_name"}
    | {"pytest_generate_tests", "pytest_collection_modifyitems", "pytest_collect_file"}
)
_NO_SOURCES = frozenset({"site-packages", "node_modules", "__pycache__"})


class ListedSuites(NamedTuple):
    """Head's benchmark files in both environments, and base's own files; None where those are the same."""

    sides: dict[SideName, Suite]
    before: Suite | None


def listed_suites(context: Context, on_step: Callable[[Step], None]) -> ListedSuites:
    """List the benchmarks of both sides at the same time; nothing is timed yet.

    Args:
        context: Both sides, built.
        on_step: Called when it begins.

    Raises:
        SuiteError: A folder as a whole cannot be listed.
    """
    on_step(Step(done=0, total=0, what="listing the benchmarks"))
    answers: dict[str, Suite | None] = {}
    errors: list[Exception] = []

    def find(name: str, ask: Callable[[], Suite | None]) -> None:
        try:
            answers[name] = ask()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    questions: dict[str, Callable[[], Suite | None]] = {"": context.list_base}
    questions |= {side: context.launchers[side].discover for side in SIDES}
    # Daemons: an interrupted run does not wait for them, and their processes end with this one.
    threads = [threading.Thread(target=find, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return ListedSuites({side: suite for side in SIDES if (suite := answers[side]) is not None}, answers[""])


def names_in_source(folders: Sequence[Path]) -> list[str] | None:
    """Return the names of all benchmarks as the sources show them, unsorted; None where only a listing would.

    Args:
        folders: Of a suite, and folders and files of tests.
    """
    names: list[str] = []
    for module, file in (each for folder in folders for each in _files(folder)):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            return None
        if not _shows_all(tree):
            return None
        for name, function in _functions(tree.body):
            # A test may hand any of its fixtures on to pytest-benchmark's.
            if function.name.startswith("test") and function.args.args["." in name :]:
                names.append(f"{file.name}::{name.replace('.', '::')}")
            elif _BENCHMARK.fullmatch(function.name) and not name.startswith("_"):
                names.append(f"{module}.{name}")
    return names


def shows(source: bytes, kind: str) -> bool:
    """Whether a file's source shows benchmarks of a kind: "asv", or "pytest" for tests with pytest-benchmark."""
    try:
        functions = [function for _, function in _functions(ast.parse(source).body)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    if kind == "asv":
        return any(_BENCHMARK.fullmatch(function.name) for function in functions)
    return any(f.name.startswith("test") and any(each.arg == _FIXTURE for each in f.args.args) for f in functions)


def names_a_function(pattern: str) -> bool:
    """Whether a pattern is the name of a benchmark's function, perhaps with its class and module."""
    function = pattern.rpartition(".")[2]
    is_plain = re.fullmatch(r"[\w.]+", pattern) is not None
    return is_plain and (function.startswith("test_") or _BENCHMARK.fullmatch(function) is not None)


def _functions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield each function with its qualified name."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield owner + node.name, node


def _shows_all(tree: ast.Module) -> bool:
    """Whether a file's source surely shows its benchmarks: none inherited, imported, renamed or made while running."""
    nodes = list(ast.walk(tree))
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    words |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    return not (
        words & _MAKERS
        or any(node.bases or node.keywords or node.decorator_list for node in classes)
        or any(node.level for node in imports)
        or any(name == "*" or name[:1].isupper() or _BENCHMARK.fullmatch(name) for name in names)
    )


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each Python file of a suite or of tests, with the name that its benchmarks begin with."""
    if folder.is_file():
        yield folder.name, folder
        return
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder).with_suffix("")
        if any(part.startswith(".") or part in _NO_SOURCES for part in place.parts):
            continue
        parts = place.parent.parts if place.name == "__init__" else place.parts
        yield ".".join(parts) or folder.name, file
