"""The parent process for asv benchmarks: list a suite, and run one benchmark once in a fresh process of a revision.

That process is `rocattn_profiling.asv.worker`: a copy is started by path in the side's environment, with a copy of this
environment's asv_runner, so that both sides use the same one even if a side has none.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import math
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn.toolchain import compiler_environment
from rocattn_profiling.asv import origins, worker
from rocattn_profiling.base.files import DocumentError, decoded
from rocattn_profiling.base.process import ForkServer, Patience, StartError, run_group
from rocattn_profiling.measure.machine import thread_environment
from rocattn_profiling.measure.records import Launch
from rocattn_profiling.revisions.asv_config import DEFAULT_TIMEOUT_S, SuiteError
from rocattn_profiling.revisions.git import TIES

if TYPE_CHECKING:
    from rocattn_profiling.base.process import Ended

WORKER = Path(__file__).with_name("worker.py")
CALL_TIMEOUT_S = 120.0  # for a process that only calls a benchmark
_PAGE_BYTES, _LINE_BYTES, _ALIGNED_BYTES = 4096, 64, 16
_OWN_BYTES = 512  # shorter strings do not come from malloc, but from Python's own allocator
Status = Literal["ok", "skipped", "failed", "timeout", "void"]


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One asv benchmark, as discovered by asv.

    Attributes:
        name, type, unit, version, params, param_names, timeout: As in asv's ``benchmarks.json``; params are reprs.
        setup_cache_key: Identifies the setup_cache that it shares with others; None without one.
        combinations: Label -> parameters of a case, if they are not a product of ``params`` (pytest).
        deterministic: Whether the same code always gives the same value; a suite declares it for a ``track_``.
        better: Which values are better in a program's own report: "smaller", "larger" or "unknown"; "" for asv and
            tests.
    """

    name: str
    type: str
    unit: str
    version: str
    params: list[list[str]]
    param_names: list[str]
    timeout: float | None = None
    setup_cache_key: str | None = None
    setup_cache_timeout: float | None = None
    combinations: dict[str, dict[str, str]] = {}
    deterministic: bool = False
    better: str = ""

    @property
    def metric(self) -> str:
        """The metric, as the prefix of benchmark names: "time", "mem", "peakmem" or "track"."""
        return {"memory": "mem", "peakmemory": "peakmem"}.get(self.type, self.type)

    def cases(self) -> list[Case]:
        """Return every parameter combination, in asv's order."""
        if self.combinations:
            return [Case(benchmark=self, param=n, label=label) for n, label in enumerate(self.combinations)]
        if not self.params:
            return [Case(benchmark=self, param=None, label=self.name)]
        combinations = itertools.product(*self.params)
        return [
            Case(benchmark=self, param=index, label=f"{self.name}({', '.join(values)})")
            for index, values in enumerate(combinations)
        ]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark with one parameter combination: the unit of measurement, comparison and naming.

    Attributes:
        param: Index into the product of the params, or into the combinations; None without params.
        label: ``module.Class.time_x(1024, 'cpu')``.
    """

    benchmark: Benchmark
    param: int | None
    label: str

    @property
    def parameters(self) -> dict[str, str]:
        """Parameter name -> value as text."""
        benchmark, index = self.benchmark, self.param
        if benchmark.combinations:
            return benchmark.combinations[self.label]
        values = []
        for options in reversed(benchmark.params):
            index, place = divmod(index or 0, len(options))
            values.append(options[place])
        return dict(zip(benchmark.param_names, reversed(values), strict=True))


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark folder in one environment: its benchmarks, and the modules that cannot be imported there.

    Attributes:
        imports: Module -> seconds to import its own code; "" -> seconds for everything that the modules import.
        shared: Benchmark -> the module of ``imports`` that its launches in a round share, however fast it imports.
    """

    benchmarks: list[Benchmark]
    broken: dict[str, str] = {}
    imports: dict[str, float] = {}
    shared: dict[str, str] = {}

    def cases(self, patterns: tuple[str, ...] = ()) -> list[Case]:
        """Return the cases whose label matches one of the regular expressions; all without patterns."""
        cases = [case for benchmark in self.benchmarks for case in benchmark.cases()]
        return [case for case in cases if not patterns or any(re.search(p, case.label) for p in patterns)]


def quick_cases(cases: list[Case]) -> list[Case]:
    """Return the cases of classes named ``Quick…``; all cases if there are none."""
    return [case for case in cases if re.search(r"(^|\.)Quick\w*\.", case.benchmark.name)] or cases


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a GPU during one sample; 0 for values it does not report."""

    sclk_mhz: float = 0.0
    mclk_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one process.

    Attributes:
        status: "ok", "skipped" (by the benchmark itself), "failed", "timeout", or "void": it ran code from outside its
            side.
        launch: The samples; None if there are none. A single value is stored as the only sample.
        thread_ns: CPU time of the main thread for the same samples; ``launch.cpu_ns`` is for the whole process.
        canary_ns: Low end of the CPU times of the canary, fixed work in the same process; 0 if the benchmark has its
            own timer.
        canary_of: The interpreter's version and build; canaries are comparable only if these are equal.
        steal_pct: Percentage of the machine's CPU time that the hypervisor gave to others during the launch.
        gpu: The GPU's state at each sample, from a timer that records it; otherwise empty.
        peak_rss_bytes: Largest resident set of the process.
        primed: Samples that were discarded to choose the sampling; see `Request`.
        seconds: Run time of the process, including startup and imports; 0 if unknown.
        reason: One line on why it was skipped or failed; ``traceback`` has the rest.
    """

    status: Status
    launch: Launch | None = None
    thread_ns: list[float] = []
    canary_ns: float = 0.0
    canary_of: str = ""
    steal_pct: float = 0.0
    gpu: list[GpuState] = []
    peak_rss_bytes: int = 0
    primed: int = 0
    seconds: float = 0.0
    reason: str = ""
    traceback: str = ""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Modules and functions loaded by a process that ran a benchmark.

    Attributes:
        modules: Name of a module -> its file.
        packages: Their distributions.
        ran: File and qualified name of each function that started, in the requested files; None if none were
            requested, or some functions may be missing.
    """

    modules: dict[str, str] = {}
    packages: list[str] = []
    ran: list[tuple[str, str]] | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. With ``number`` and ``count`` of 0, the worker chooses them for ``sample_ns`` and ``budget_ns``.

    ``primed`` is the number of samples to discard first: as many as the launch that chose. ``module`` is the
    benchmark's module if all launches of a round share its import, otherwise empty.
    """

    number: int = 0
    count: int = 0
    primed: int = 0
    sample_ns: int = 4_000_000
    budget_ns: int = 120_000_000
    module: str = ""


class OutOfTimeError(RocattnError):
    """Raised when the caller's time limit ended a process before the benchmark's own limit."""


class ForkingLauncher:
    """The part of a launcher that forks launches from a server process, which has imported what they share."""

    python: str
    scratch: Path
    environment: dict[str, str]
    _server: ForkServer | None = None

    def _serving(
        self, script: Path, request: Mapping[str, Any], variables: Mapping[str, str], end: float
    ) -> ForkServer | None:
        """Return a process that has imported a module; None if it cannot fork.

        Args:
            script: The worker.
            request: The worker's request, with the module.
            variables: Added to the environment of all launches.
            end: The caller's deadline on the monotonic clock.

        Raises:
            OutOfTimeError: When ``end`` passed before the module was imported.
        """
        key = request, variables
        if self._server is None or self._server.key != key:
            self.end_server()
            command, environment = (self.python, str(script)), {**self.environment, **variables}
            self._server = ForkServer(key, command, request, environment, self.scratch)
            left = end - time.monotonic()
            if not self._server.wait_until_ready(left, Patience()) and time.monotonic() >= end:
                raise OutOfTimeError(f"{request['module']} was not imported in time")
        return self._server if self._server.ready else None

    def end_server(self) -> None:
        """End the server process, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None


class Launcher(ForkingLauncher):
    """Starts worker processes of one side.

    Args:
        python: The interpreter of the side's environment.
        suite: The benchmark folder, outside of any installed package.
        scratch: A folder for caches, answers and logs, one per side.
        environment: Variables added to the defaults: one thread, and this interpreter's compiler for CPU kernels,
            because a revision's environment has none.
        timeout_s: Time limit for benchmarks that set none.
        tree: The checkout that contains the suite; None for its parent folder.
        differing: The differences between the sides in it.
    """

    def __init__(
        self,
        python: str,
        suite: Path,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        tree: Path | None = None,
        differing: Differing | None = None,
    ) -> None:
        self.python, self.timeout_s, self.differing = python, timeout_s, differing or Differing()
        # Absolute, because the worker starts in a different folder.
        self.suite, self.scratch = suite.absolute(), scratch.absolute()
        self.tree = (tree or suite.parent).absolute()
        self.shared = (self.suite,)  # between both sides
        self.environment, self._own = launch_environment(environment), environment
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._worker = _lay_out_runner(self.scratch / "runner")

    def discover(self) -> Suite:
        """List the suite's benchmarks in this environment.

        Raises:
            SuiteError: When the folder as a whole cannot be listed.
        """
        progress = self.scratch / "importing"
        progress.write_text("")
        request = {"do": "list", "progress": str(progress)}
        answer, outcome = self._start(request, Patience(progress), None, seed=0)
        if outcome.status != "ok":
            modules = progress.read_text().split() if outcome.status == "timeout" else []
            where = f" (while {modules[-1]} was imported)" if modules else ""
            raise SuiteError(f"cannot list the benchmarks in {self.suite.name}: {outcome.reason}{where}")
        return msgspec.convert(answer, Suite)

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Measure a case once in a fresh process; never raises for a benchmark's failure.

        Args:
            case: The case.
            request: How to sample.
            pos: Position among the launches of the same measurement, stored with the samples.
            seed: The process's PYTHONHASHSEED, equal on both sides of a pair and different in every round.
            layout: Argument of `layout_bytes`, equal on both sides of a pair and incremented every round.
            within_s: The caller's time limit, including a setup_cache that may be needed first.

        Raises:
            OutOfTimeError: When ``within_s`` ended first.
        """
        benchmark = case.benchmark
        folder = None
        timeout = benchmark.timeout or self.timeout_s
        end = time.monotonic() + within_s
        if benchmark.setup_cache_key is not None:
            folder, failed = self._cache(benchmark, end)
            if failed is not None:
                return failed
        message = {"do": "run", "benchmark": benchmark.name, "type": benchmark.type, "label": case.label}
        limits = {"limit_ns": round(timeout * 1e9), **msgspec.to_builtins(request)}
        server = None
        if request.module:
            serve = {"do": "serve", "suite": str(self.suite), "tree": str(self.tree), "module": request.module}
            server = self._serving(self._worker, serve, round_variables(seed, layout, self._own), end)
        answer, outcome = self._start(
            message | limits, timeout, folder, seed=seed, layout=layout, end=end, server=server
        )
        return measured(answer, outcome, pos, self.differing.of_one_tree(answer, self.shared))

    def call_command(
        self, name: str, label: str, answer: Path | None = None, trace: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return a command that calls a benchmark a few times without measuring, and exits normally.

        Args:
            name: The benchmark.
            label: The benchmark with its parameters.
            answer: File for the list of loaded modules; None for none.
            trace: Names of source files, without folders, whose functions to trace in one call.
        """
        request = self._call_request(name, label, answer, trace)
        return self.python, str(self._worker), msgspec.json.encode(request).decode()

    def _call_request(self, name: str, label: str, answer: Path | None, trace: Sequence[str]) -> dict[str, Any]:
        request: dict[str, Any] = {
            "do": "call",
            "benchmark": name,
            "label": label,
            "suite": str(self.suite),
            "tree": str(self.tree),
            "caches": str(self.scratch),
        }
        request |= {"answer": str(answer)} if answer else {}
        return request | ({"trace": list(trace)} if trace else {})

    def loaded(
        self, name: str, label: str, trace: Sequence[str] = (), *, module: str = "", within_s: float = math.inf
    ) -> Loaded | None:
        """Call a benchmark without measuring, and return what its process loaded; None if it does not run.

        Args:
            name: The benchmark.
            label: The benchmark with its parameters.
            trace: See `call_command`.
            module: Its module, if the next calls share one import of it; otherwise empty.
            within_s: The caller's time limit, after which the result is None.
        """
        end, server = time.monotonic() + within_s, None
        with tempfile.TemporaryDirectory(prefix="call-", dir=self.scratch, ignore_cleanup_errors=True) as folder:
            answer, log = Path(folder, "answer.json"), Path(folder, "log")
            with contextlib.suppress(StartError, OutOfTimeError):
                if module:
                    suite = {"suite": str(self.suite), "tree": str(self.tree)}
                    serve = {"do": "serve", **suite, "module": module, "trace": list(trace)}
                    server = self._serving(self._worker, serve, {}, end)
                limit_s = max(0.0, min(end - time.monotonic(), CALL_TIMEOUT_S))
                if server is not None:
                    server.run(self._call_request(name, label, answer, trace), Path(folder), log, limit_s)
                else:
                    command = self.call_command(name, label, answer, trace)
                    run_logged(command, self.environment, Path(folder), log, limit_s)
            return read_loaded(answer)

    def _cache(self, benchmark: Benchmark, end: float) -> tuple[Path, Outcome | None]:
        """Run setup_cache once per side; return its folder, and the outcome if it failed."""
        folder = self.scratch / worker.cache_name(benchmark.setup_cache_key or "")
        done = folder / "outcome.json"
        if done.exists():
            outcome = decoded(done.read_bytes(), Outcome)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            timeout = benchmark.setup_cache_timeout or benchmark.timeout or self.timeout_s
            message = {"do": "cache", "benchmark": benchmark.name, "type": benchmark.type}
            _, outcome = self._start(message, timeout, folder, seed=0, end=end)
            done.write_bytes(msgspec.json.encode(outcome))
        if outcome.status == "ok":
            return folder, None
        return folder, msgspec.structs.replace(outcome, reason=f"setup_cache: {outcome.reason}")

    def _start(
        self,
        message: dict[str, Any],
        timeout_s: float | Patience,
        cwd: Path | None,
        *,
        seed: int,
        layout: int = 0,
        end: float = math.inf,
        server: ForkServer | None = None,
    ) -> tuple[dict[str, Any], Outcome]:
        """Start a worker, by default in an empty folder as in asv, so that benchmarks do not see each other's files."""
        request = message | {"suite": str(self.suite), "tree": str(self.tree)}
        environment = self.environment | round_variables(seed, layout, self._own)
        command = (self.python, str(self._worker))
        return ask_worker(command, request, environment, self.scratch, timeout_s, end=end, cwd=cwd, server=server)


def launch_environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a launch: this process's without those that affect Python, and one thread.

    Args:
        own: Variables that override the others.
    """
    hidden = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "PYTHONPROFILEIMPORTTIME", "PYTHONSAFEPATH"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden | TIES}
    return {**kept, **thread_environment(1), **compiler_environment(), **(own or {})}


def round_variables(seed: int, layout: int, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that are equal on both sides of a pair and change every round.

    Args:
        seed: See `Launcher.run`.
        layout: See `Launcher.run`.
        own: Variables of the project's own matrix, which take precedence.
    """
    variables = {"PYTHONHASHSEED": str(seed), "ROCATTN_LAYOUT": "x" * layout_bytes(layout)}
    return {name: value for name, value in variables.items() if name not in (own or {})}


def ask_worker(
    command: Sequence[str],
    request: Mapping[str, Any],
    environment: Mapping[str, str],
    scratch: Path,
    timeout_s: float | Patience,
    *,
    end: float = math.inf,
    cwd: Path | None = None,
    server: ForkServer | None = None,
) -> tuple[dict[str, Any], Outcome]:
    """Start a worker with a request, and return its answer and the outcome, which has no launch yet.

    Args:
        command: The command, to which the request is appended as JSON; the answer goes to the file named in it.
        request: The request.
        environment: All variables of the process.
        scratch: A folder for answers and logs.
        timeout_s: Time after which the process is killed.
        end: The caller's deadline on the monotonic clock.
        cwd: Its working directory; None for a new empty folder.
        server: Process that forks the worker, instead of starting the command.

    Raises:
        OutOfTimeError: When ``end`` passed first.
        StartError: When the process cannot be started.
    """
    left = max(0.0, end - time.monotonic())
    with tempfile.TemporaryDirectory(prefix="launch-", dir=scratch, ignore_cleanup_errors=True) as folder:
        answer, log, own = Path(folder, "answer.json"), Path(folder, "log"), Path(folder, "work")
        own.mkdir()
        asked = {**request, "answer": str(answer), "parent": os.getpid()}
        most_s = math.inf if isinstance(timeout_s, Patience) else timeout_s
        if server is None:
            text = msgspec.json.encode(asked).decode()
            limit = timeout_s if isinstance(timeout_s, Patience) else min(timeout_s, left)
            ended = run_logged((*command, text), environment, cwd or own, log, limit)
        else:
            ended = server.run(asked, cwd or own, log, min(most_s, left))
        if ended.status is None and left < most_s:
            raise OutOfTimeError(f"killed after {ended.seconds:.0f} s: the run's time limit was reached")
        if ended.status is None or not answer.exists():
            Path(folder, "room").write_bytes(bytes(1 << 16))  # fails on a full disk, which loses answer and log
            printed = _tail(log)
            status: Status = "timeout" if ended.status is None else "failed"
            return {}, Outcome(status=status, reason=ended.sentence(printed), traceback=printed, seconds=ended.seconds)
        values: dict[str, Any] = decoded(answer.read_bytes())
        texts = {name: values.get(name, "") for name in ("reason", "traceback")}
        return values, Outcome(status=values["status"], seconds=round(ended.seconds, 3), **texts)


def run_logged(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    log: Path,
    timeout_s: float | Patience = CALL_TIMEOUT_S,
) -> Ended:
    """Run a program with its output in a file.

    Raises:
        StartError: When it cannot be started.
    """
    with log.open("wb") as output:
        return run_group(
            command, env=environment, cwd=cwd, stdout=output, stderr=output, timeout_s=timeout_s, grace_s=0
        )


class Differing(NamedTuple):
    """Differing files in folders visible to both sides: importing them from there would measure one side twice.

    Attributes:
        roots: Folders visible to both sides with one side's files: head's checkout, and the repository itself.
        paths: Paths of the files that differ, relative to any of the roots.
    """

    roots: tuple[Path, ...] = ()
    paths: frozenset[str] = frozenset()

    def of_one_tree(self, answer: Mapping[str, Any], shared: Sequence[Path]) -> list[str]:
        """Return the modules that a launch imported from outside its side, and in which the sides may differ.

        Args:
            answer: The worker's answer, with the result of `origins.Installed.strays`.
            shared: Files and folders that both sides share: benchmarks and their helpers.
        """
        strays = answer.get("strays", {})
        return sorted(name for name, stray in strays.items() if stray["shadows"] or self._holds(stray["files"], shared))

    def _holds(self, files: Sequence[str], shared: Sequence[Path]) -> bool:
        """Return whether a package's files differ, or other files in its folder, such as data or extension sources."""
        for root in self.roots:
            inside = [Path(file).relative_to(root) for file in files if Path(file).is_relative_to(root)]
            common = [path.relative_to(root) for path in shared if path.is_relative_to(root)]
            packages = [file.parent for file in inside if file.name == "__init__.py" and file.parent != Path()]
            for path in map(Path, self.paths):
                if any(path.is_relative_to(own) for own in common):
                    continue
                if path in inside or any(path.is_relative_to(package) for package in packages):
                    return True
        return False


def measured(answer: Mapping[str, Any], outcome: Outcome, pos: int, of_one_tree: Sequence[str] = ()) -> Outcome:
    """Return the outcome of a measuring worker, with its launch.

    Args:
        answer: The worker's answer.
        outcome: The outcome from `ask_worker`.
        pos: See `Launcher.run`.
        of_one_tree: Modules imported from outside its side.
    """
    if of_one_tree:
        reason = f"imports {', '.join(of_one_tree)} from the checkout, not from its side's environment"
        return Outcome(status="void", reason=reason, seconds=outcome.seconds)
    if outcome.status != "ok":
        return outcome
    launch = Launch(
        start_ns=answer["start_ns"],
        pos=pos,
        number=answer.get("number", 1),
        samples_ns=answer["samples_ns"] if "samples_ns" in answer else [answer["value"]],
        cpu_ns=answer.get("cpu_ns", []),
        nivcsw=answer.get("nivcsw", []),
        load=answer["load"],
    )
    return msgspec.structs.replace(
        outcome,
        launch=launch,
        thread_ns=answer.get("thread_ns", []),
        canary_ns=answer["canary_ns"],
        canary_of=answer.get("canary_of", ""),
        steal_pct=answer["steal_pct"],
        gpu=msgspec.convert(answer.get("gpu", []), list[GpuState]),
        peak_rss_bytes=answer["peak_rss_bytes"],
        primed=answer.get("primed", 0),
    )


def read_loaded(answer: Path) -> Loaded | None:
    """Return the result of a process that called a benchmark; None if it wrote none."""
    try:
        return decoded(answer.read_bytes(), Loaded)
    except (OSError, DocumentError):
        return None


def layout_bytes(number: int) -> int:
    """Return by how many bytes to lengthen the environment of a round's launches.

    The size of the environment determines where a process's stack and heap start, and so how arrays align with cache
    lines: a build may be lucky with one size (Mytkowicz et al. 2009, ASPLOS). Four consecutive numbers give lengths
    with all four alignments of malloc's 16-byte granule in a cache line, anywhere in a page; memory freed before an
    array is allocated shifts some arrays further.
    """
    line = random.Random(number).randrange((_PAGE_BYTES - _OWN_BYTES) // _LINE_BYTES)  # noqa: S311 - a place, no secret
    return _OWN_BYTES + line * _LINE_BYTES + number % (_LINE_BYTES // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _package(name: str) -> Path:
    """Return the folder of a package that is installed with asv, a dependency of this project."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _lay_out_runner(folder: Path) -> Path:
    """Copy the worker, as ``asv_worker.py``, and its dependencies into a folder; return its path.

    The worker's folder precedes the environment on the path, so that both sides use this asv_runner. pympler, which
    measures object sizes for ``mem_`` benchmarks, is for environments without it.
    """
    source = _package("asv_runner")
    for path in source.rglob("*.py"):
        place = folder / "asv_runner" / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    fallback = folder / "fallback" / "pympler"
    fallback.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "asizeof.py"):
        shutil.copyfile(_package("pympler") / name, fallback / name)
    shutil.copyfile(origins.__file__, folder / "asv_origins.py")
    return Path(shutil.copy(WORKER, folder / "asv_worker.py"))


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))  # a benchmark may have printed gigabytes
        return file.read().decode(errors="replace")


def main(words: list[str] | None = None) -> int:
    """Run one benchmark of a suite a few times and exit normally, for profilers.

    ``python -m rocattn_profiling.asv.launch benchmarks "bench_x.Class.time_y('gpu', 'B1 …')"``. The measuring worker
    ends with ``os._exit``, which would lose what a profiler writes at exit. The status is 3 if there is no benchmark
    with that label, or it did not run.
    """
    parser = argparse.ArgumentParser(prog="asv.launch", description="Run one benchmark of a suite a few times.")
    parser.add_argument("suite", type=Path, help="benchmark folder")
    parser.add_argument("label", help="benchmark with its parameters, as in the gate's output")
    parser.add_argument("--calls", type=int, default=4, metavar="N", help="timed calls (default 4)")
    arguments = parser.parse_args(words)
    folder = str(arguments.suite.resolve())
    suite = msgspec.convert(worker.list_suite({"suite": folder}), Suite)
    case = next((case for case in suite.cases() if case.label == arguments.label), None)
    if case is None:
        print(f"asv.launch: {arguments.suite} has no benchmark {arguments.label}", file=sys.stderr)
        return 3
    request = {"suite": folder, "benchmark": case.benchmark.name, "label": case.label, "type": case.benchmark.type}
    # As in asv, the cache goes to the working directory, which must not be the folder this was started in.
    with tempfile.TemporaryDirectory(prefix="rocattn-once-") as scratch, contextlib.chdir(scratch):
        if case.benchmark.setup_cache_key is not None:
            worker.make_cache(request)
        done = worker.run_benchmark(request | {"number": 1, "count": arguments.calls})
    if done["status"] != "ok":
        print(f"asv.launch: {arguments.label}: {done['status']}: {done['reason']}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
