"""Launches pytest-benchmark tests from the parent process: lists them, and runs one in a fresh pytest of a side."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.asv import origins, worker
from rocattn_profiling.asv.launch import (
    Benchmark,
    Differing,
    ForkingLauncher,
    OutOfTimeError,
    Suite,
    ask_worker,
    launch_environment,
    measured,
    read_loaded,
    round_variables,
    run_logged,
)
from rocattn_profiling.base.process import Patience, StartError
from rocattn_profiling.pages.render import count
from rocattn_profiling.revisions.asv_config import SuiteError

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Loaded, Outcome, Request
    from rocattn_profiling.base.process import ForkServer

TIMEOUT_S = 600.0  # per test: pytest-benchmark has no limit
_OF_OTHER_RUNS = ("PYTEST_XDIST", "PYTEST_CURRENT_TEST")
_FILES = ("pytest_worker.py", "sampling_plugin.py")
_TEST_FOLDERS = frozenset({"test", "tests", "bench", "benchmark", "benchmarks", "perf"})
_TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
_ROOTS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py")


class PytestLauncher(ForkingLauncher):
    """Starts pytest in the environment of one side, in head's checkout.

    If a file has several tests, all launches of a round are forked from one pytest that has collected the file.

    Args:
        python: The interpreter of the side's environment.
        tree: The checkout, or the folder that the paths are in.
        paths: Test folders, files or node ids (``tests/bench/test_x.py::test_y``), relative to the tree.
        scratch: A folder for answers and logs; one per side.
        environment: See `rocattn_profiling.asv.launch.Launcher`.
        remedy: How to install a package that the side's environment lacks.
        differing: See `rocattn_profiling.asv.launch.Launcher`.
    """

    def __init__(
        self,
        python: str,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        *,
        remedy: str = "install it there",
        differing: Differing | None = None,
    ) -> None:
        self.python, self.scratch, self.remedy, self.differing = (
            python,
            scratch.absolute(),
            remedy,
            differing or Differing(),
        )
        self.tree = tree = tree.absolute()
        self.named = [str(tree / path) for path in paths]
        places = [Path(path.partition("::")[0]) for path in self.named]
        self.shared = tuple(dict.fromkeys(file for place in places for file in _tests_alone(tree, place)))
        self.root = _root_of(tree, places)
        # pytest-benchmark times nothing in a process that looks like a pytest-xdist worker.
        launched = launch_environment(environment)
        self._own = environment
        self.environment = {key: value for key, value in launched.items() if not key.startswith(_OF_OTHER_RUNS)}
        self._worker = _lay_out(self.scratch / "pytest")

    def discover(self) -> Suite:
        """List the tests that use the fixture ``benchmark`` in this environment.

        Raises:
            SuiteError: The environment lacks pytest or pytest-benchmark, or pytest does not start.
        """
        answer, outcome = self._ask({"do": "list", "paths": self.named}, Patience())
        if missing := answer.get("missing"):
            names = " and ".join(missing)
            raise SuiteError(f"{self.python} has no {names}, which --pytest needs: {self.remedy}")
        if outcome.status != "ok":
            needs = "--requirements names what they need besides the project"
            raise SuiteError(f"pytest cannot list {' '.join(self._shown())}: {outcome.reason}; {needs}")
        if answer["marked"] and not answer["tests"]:
            raise SuiteError(
                f"{count(answer['marked'], 'test')} with the marker `benchmark`, and none with the fixture: let them "
                "take `benchmark` and call what is timed with it"
            )
        benchmarks, seconds = _benchmarks(answer["tests"]), answer["seconds"]
        files = {benchmark.name: benchmark.name.partition("::")[0] for benchmark in benchmarks}
        start_s = max(0.0, outcome.seconds - math.fsum(seconds.values()))
        imports = {file: start_s + seconds.get(file, 0.0) for file in files.values()}
        several = Counter(test["node"].partition("::")[0] for test in answer["tests"])
        shared = {name: file for name, file in files.items() if several[file] > 1}
        return Suite(benchmarks=benchmarks, broken=answer["broken"], imports=imports, shared=shared)

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Measure a test once in a fresh process; see `rocattn_profiling.asv.launch.Launcher.run`."""
        limits = {"limit_ns": round(TIMEOUT_S * 1e9), **msgspec.to_builtins(request)}
        message = {"do": "run", "node": case.label, "paths": self.named}
        end, variables = time.monotonic() + within_s, round_variables(seed, layout, self._own)
        server = self._serving(self._worker, self._serve(request.module), variables, end) if request.module else None
        answer, outcome = self._ask(message | limits, TIMEOUT_S, variables, end, server)
        return measured(answer, outcome, pos, self.differing.of_one_tree(answer, self.shared))

    def _serve(self, file: str, trace: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the request for a process that forks launches of a file's tests; with ``trace``, traced calls."""
        words = {"do": "serve", "module": file, "node": file, "paths": self.named, "scratch": str(self.scratch)}
        traced = {"trace": list(trace)} if trace else {}
        return {**words, **self._places, **traced, "calls": trace is not None}

    def call_command(
        self,
        name: str,  # noqa: ARG002 - the label suffices
        label: str,
        answer: Path | None = None,
        trace: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return a command that calls a test once, unmeasured, and exits normally."""
        request = self._call_request(label, answer, trace)
        return self.python, str(self._worker), msgspec.json.encode(request).decode()

    def _call_request(self, label: str, answer: Path | None, trace: Sequence[str]) -> dict[str, Any]:
        request: dict[str, Any] = {"do": "call", "node": label, "paths": self.named, **self._places}
        request["scratch"] = str(self.scratch)
        request |= {"answer": str(answer)} if answer else {}
        return request | ({"trace": list(trace)} if trace else {})

    def loaded(
        self, name: str, label: str, trace: Sequence[str] = (), *, module: str = "", within_s: float = math.inf
    ) -> Loaded | None:
        """Call a test, unmeasured, and return the modules that its process has loaded, except head's tests."""
        with tempfile.TemporaryDirectory(prefix="call-", dir=self.scratch, ignore_cleanup_errors=True) as folder:
            answer, log, end = Path(folder, "answer.json"), Path(folder, "log"), time.monotonic() + within_s
            with contextlib.suppress(StartError, OutOfTimeError):
                server = self._serving(self._worker, self._serve(module, trace), {}, end) if module else None
                limit_s = max(0.0, min(end - time.monotonic(), TIMEOUT_S))
                if server is not None:
                    server.run(self._call_request(label, answer, trace), Path(folder), log, limit_s)
                else:
                    command = self.call_command(name, label, answer, trace)
                    run_logged(command, self.environment, Path(folder), log, limit_s)
            return read_loaded(answer)

    def _ask(
        self,
        message: dict[str, Any],
        timeout_s: float | Patience,
        variables: Mapping[str, str] | None = None,
        end: float = math.inf,
        server: ForkServer | None = None,
    ) -> tuple[dict[str, Any], Outcome]:
        command, request = (self.python, str(self._worker)), message | self._places
        environment = {**self.environment, **(variables or {})}
        return ask_worker(command, request, environment, self.scratch, timeout_s, end=end, server=server)

    @property
    def _places(self) -> dict[str, str]:
        return {"root": str(self.root), "tree": str(self.tree)}

    def _shown(self) -> list[str]:
        return [path.removeprefix(f"{self.root}/") for path in self.named]


def _root_of(tree: Path, paths: Sequence[Path]) -> Path:
    """Return the folder that pytest starts in: the nearest one above all paths that has a configuration file."""
    first, *others = [path if path.is_dir() else path.parent for path in paths]
    above = [folder for folder in (first, *first.parents) if folder.is_relative_to(tree)]
    common = [folder for folder in above if all(path.is_relative_to(folder) for path in others)]
    return next((folder for folder in common if any((folder / name).is_file() for name in _ROOTS)), tree)


def _tests_alone(tree: Path, place: Path) -> list[Path]:
    """Return the place itself if it is a file or a test folder; otherwise the test files in it, without other code."""
    if place.is_file() or (place.is_relative_to(tree) and _TEST_FOLDERS & set(place.relative_to(tree).parts)):
        return [place]
    return sorted(file for pattern in _TEST_FILES for file in place.rglob(pattern))


def _lay_out(folder: Path) -> Path:
    """Copy the worker and the modules that it needs into a folder; return the worker's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)
    for module in (worker, origins):
        shutil.copyfile(str(module.__file__), folder / f"asv_{Path(str(module.__file__)).name}")
    return folder / _FILES[0]


def _benchmarks(tests: Sequence[Mapping[str, Any]]) -> list[Benchmark]:
    """Return a benchmark for each test function, with the parameters of its cases."""
    functions: dict[str, dict[str, dict[str, str]]] = {}
    for test in tests:
        node, parameters = test["node"], test["params"]
        name = node.partition("[")[0] if parameters else node
        functions.setdefault(name, {})[node] = parameters
    return [
        Benchmark(
            name=name, type="time", unit="seconds", version="", params=[], param_names=[], combinations=combinations
        )
        for name, combinations in functions.items()
    ]
