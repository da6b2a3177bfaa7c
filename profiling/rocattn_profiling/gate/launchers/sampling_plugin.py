"""The gate's pytest plug-in, in the process of a test: lists the tests, and controls how one of them is sampled.

pytest-benchmark measures. What its options cannot do is done by patching its fixture: the number of calls in a round is
chosen once, in the first launch, and reused; rounds are few and as long as the gate's sample time; CPU time and context
switches are read around each round, and the canary is timed in between.

Standalone: next to `pytest_worker`, in a side's environment, with Python 3.10 or later and pytest-benchmark 4.0 or
later.
"""

import itertools
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

FIXTURES = {"benchmark", "benchmark_weave"}
WARMUP_NS = 20_000_000
BETWEEN_NS = 2_000_000  # between canaries: not one after every microsecond-long round
MOST_SAMPLES = 12  # stored per launch; if a test sets more rounds, groups of them are averaged
FEWEST, FEWEST_LONG, LONG_NS = 4, 2, 500_000_000
# Options that a project may set for interactive runs, and that would change or break the measurement of one test.
QUIET: dict[str, Any] = {
    "benchmark_disable": False, "benchmark_enable": True, "benchmark_skip": False, "benchmark_only": False,
    "benchmark_save": None, "benchmark_autosave": None, "benchmark_compare": None, "benchmark_compare_fail": [],
    "benchmark_histogram": [], "benchmark_cprofile": None, "benchmark_quiet": True,
    "numprocesses": 0, "dist": "no", "tx": [],
}  # fmt: skip


class Listing:
    """Collects the tests that use the fixture, and the files that cannot be collected.

    Args:
        installed: The import finder that must precede pytest's.

    Attributes:
        at_end: Called with pytest's status after the tests, fixtures and session-finish hooks. It skips the terminal
            summary, for which plug-ins import a lot: 0.9 s of CPU time with hypothesis.
    """

    def __init__(self, installed: Any) -> None:
        self.installed = installed
        self.at_end: Callable[[int], None] = lambda _: None
        self.tests: list[dict[str, Any]] = []
        self.broken: dict[str, str] = {}
        self.seconds: dict[str, float] = {}  # file -> how long its collection took
        self.marked = 0  # tests with only a marker, as in CodSpeed

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: Any) -> Iterator[None]:
        """Put our finder first, and disable coverage: its tracing costs more than the code that it traces."""
        known = early_config.known_args_namespace
        if hasattr(known, "no_cov"):
            known.no_cov, known.cov_source = True, []
        sys.meta_path[:] = [self.installed, *(finder for finder in sys.meta_path if finder is not self.installed)]
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_cmdline_main(self, config: Any) -> Iterator[None]:
        """Set options before anything reads them."""
        for name, value in QUIET.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        if getattr(config.option, "randomly_seed", None) == "default":
            config.option.randomly_seed = int(os.environ.get("PYTHONHASHSEED", "0"))  # equal on both sides of a round
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        """Time the import of each file."""
        file, began = collector.nodeid.partition("::")[0], time.perf_counter()
        yield
        self.seconds[file] = self.seconds.get(file, 0.0) + time.perf_counter() - began

    def pytest_collectreport(self, report: Any) -> None:
        """Record why a file cannot be collected."""
        if report.failed:
            lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            text = next((line for line in reversed(lines) if line), "") or str(report.longrepr).strip().splitlines()[-1]
            self.broken[report.nodeid or "the tests"] = text

    def pytest_collection_finish(self, session: Any) -> None:
        """List the tests that the project's own selection leaves."""
        for item in session.items:
            if FIXTURES & set(getattr(item, "fixturenames", ())):
                self.tests.append({"node": item.nodeid, "params": parameters(item)})
            elif item.get_closest_marker("benchmark") is not None:
                self.marked += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:  # noqa: ARG002
        """Call `at_end`."""
        self.at_end(exitstatus)

    def pytest_benchmark_generate_machine_info(self) -> dict[str, Any]:
        """Leave out the machine: querying it takes a second, and the verdict has it."""
        return {}

    def pytest_benchmark_generate_commit_info(self) -> dict[str, Any]:
        """Leave out the commit: the verdict has both."""
        return {}


def parameters(item: Any) -> dict[str, str]:
    """Return the parameters of a test as text: short, plain values as they are, the test's id for others."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return {}
    texts = {}
    for name, value in spec.params.items():
        text = repr(value) if isinstance(value, str | bytes | int | float | complex | bool | None) else ""
        text = text or str(getattr(value, "__qualname__", ""))
        texts[name] = text if 0 < len(text) <= 60 else spec.id
    return texts


class Single(Listing):
    """Runs one test: the collected one, or in a forked process the requested one.

    Args:
        installed: See `Listing`.
        request: The request.
        fork: Waits for requests, and returns each in a new process; None if there is only the first.
    """

    def __init__(self, installed: Any, request: dict[str, Any], fork: Callable[[], dict[str, Any]] | None) -> None:
        super().__init__(installed)
        self.request, self.fork = request, fork

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> None:
        """Fork after collection, before the first test sets up the session's fixtures."""
        if self.fork is not None:
            self.request.update(self.fork())
            session.items[:] = [item for item in session.items if item.nodeid == self.request["node"]]
            session.testscollected, session.testsfailed = len(session.items), 0
            if session.items:
                self.begin()

    def begin(self) -> None:
        """Prepare a forked process for its test."""


class Call(Single):
    """Calls the code that a test times once, without timing it."""

    passed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: Any) -> None:
        """Disable pytest-benchmark, which then calls the code without measuring it."""
        config.option.benchmark_disable, config.option.benchmark_enable = True, False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record whether the test itself passed."""
        self.passed = self.passed or (report.when == "call" and report.passed)


class Sampling(Single):
    """Samples one test.

    Attributes:
        ending: The answer for a test that did not pass: skipped or failed.
        ran: Whether a test ran to its end.

    Args:
        installed, fork: See `Single`.
        request: ``number`` and ``count`` of the samples; 0 to choose them for ``sample_ns`` and ``budget_ns``.
        kit: ``asv_worker``, for the canary and system readings.
    """

    def __init__(
        self, installed: Any, request: dict[str, Any], fork: Callable[[], dict[str, Any]] | None, kit: Any
    ) -> None:
        super().__init__(installed, request, fork)
        self.kit = kit
        self.ending: dict[str, Any] | None = None
        self.ran = False
        self.fixture: Any = None
        self.timed: list[tuple[str, list[float], int]] = []
        self.rows: list[tuple[int, int, int, int]] = []
        self.canaries: list[int] = []
        self.started = self.before = 0
        self.ticks: list[int] = []
        self.load = 0.0

    def begin(self) -> None:
        """Drop collection errors: the requested test was collected."""
        self.ending = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        """Keep pytest-benchmark's timings: the name, seconds per call in each round, and calls per round."""
        timed = getattr(getattr(session.config, "_benchmarksession", None), "benchmarks", [])
        self.timed = [(each.fullname, list(each.stats.data), each.iterations) for each in timed if each.stats.data]
        super().pytest_sessionfinish(session, exitstatus)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Patch the fixture as it is created: other fixtures may use it before the test does."""
        outcome: Any = yield
        if fixturedef.argname in FIXTURES and outcome.excinfo is None:
            self.watch(outcome.get_result())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:  # noqa: ARG002
        """Record how the test ended."""
        outcome: Any = yield
        report = outcome.get_result()
        self.ran = self.ran or report.when == "call"
        if report.skipped:
            expected = getattr(report, "wasxfail", None)
            text = f"expected to fail: {expected}".rstrip(": ") if expected is not None else str(call.excinfo.value)
            self.ending = {"status": "skipped", "reason": text.strip() or "skipped"}
        elif report.failed and self.ending is None:
            error = call.excinfo.value if call.excinfo is not None else AssertionError(str(report.longrepr))
            self.ending = self.kit.failure(error)

    def pytest_collectreport(self, report: Any) -> None:
        """Use a file's collection error, or its skip as a whole, as the outcome of its tests."""
        super().pytest_collectreport(report)
        if report.failed:
            text = str(report.longrepr)
            self.ending = {"status": "failed", "reason": self.broken[report.nodeid or "the tests"], "traceback": text}
        elif report.skipped:
            self.ending = {"status": "skipped", "reason": str(report.longrepr[-1]).removeprefix("Skipped: ")}

    def watch(self, fixture: Any) -> None:
        """Patch the gate's sampling into the fixture."""
        self.fixture = fixture
        self.canaries = [self.kit.canary_ns() for _ in range(4)]
        self.load, self.ticks, self.started = os.getloadavg()[0], self.kit.cpu_ticks(), time.time_ns()
        make = fixture._make_runner  # noqa: SLF001 - see the module's docstring

        def make_runner(*words: Any) -> Callable[..., Any]:
            run = make(*words)

            def watched(*rest: Any) -> Any:
                if time.perf_counter_ns() - self.before > BETWEEN_NS and self.has_wall_clock:
                    self.canaries.append(self.kit.canary_ns())
                    self.before = time.perf_counter_ns()
                switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
                process, thread, wall = time.process_time_ns(), time.thread_time_ns(), time.perf_counter_ns()
                result = run(*rest)
                wall = time.perf_counter_ns() - wall
                thread, process = time.thread_time_ns() - thread, time.process_time_ns() - process
                switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
                self.rows.append((wall, process, thread, switches))
                return result

            return watched

        fixture._make_runner = make_runner  # noqa: SLF001
        fixture._calibrate_timer = self.calibrate  # noqa: SLF001
        fixture._precision = None  # noqa: SLF001 - no end of rounds by precision (5.3): the gate has its own

    @property
    def has_wall_clock(self) -> bool:
        """Whether the test is timed by the wall clock rather than a custom timer."""
        return self.fixture._timer in {time.perf_counter, time.time}  # noqa: SLF001

    def calibrate(self, run: Callable[[range], Any]) -> tuple[float, int, range]:
        """Warm up and choose calls and rounds, in place of the fixture's calibration.

        Args:
            run: Makes a round of calls.

        Returns:
            The seconds per round, the calls in it, and the same as a range.
        """
        call_ns: float = self.warm_up(run)
        number, count = self.request.get("number") or 0, self.request.get("count") or 0
        if not number:
            number = max(1, math.ceil(self.request["sample_ns"] / call_ns))
            if number > 1:  # a single call includes our overhead: correct it with a batch
                call_ns = min(self.wall_ns(run, number) for _ in range(2)) / number
                number = math.ceil(self.request["sample_ns"] / call_ns)
        cost = max(call_ns * number, 1.0)
        if not count:
            fewest = FEWEST if cost < LONG_NS else FEWEST_LONG
            most = self.request["limit_ns"] // 2 // cost - 1
            count = max(1, min(most, max(fewest, min(MOST_SAMPLES, self.request["budget_ns"] // cost))))
        self.fixture._min_rounds, self.fixture._max_time = int(count), 0.0  # noqa: SLF001
        return cost / 1e9, number, range(number)

    def warm_up(self, run: Callable[[range], Any]) -> int:
        """Call for `WARMUP_NS`, at least once; return the shortest wall time of one call in ns."""
        best, end = self.wall_ns(run, 1), time.perf_counter_ns() + WARMUP_NS
        while time.perf_counter_ns() < end:
            best = min(best, self.wall_ns(run, 1))
        return best

    def wall_ns(self, run: Callable[[range], Any], number: int) -> int:
        """Return the wall time of a round, at least 1 ns."""
        started = time.perf_counter_ns()
        run(range(number))
        return max(time.perf_counter_ns() - started, 1)

    def answer(self, data: list[float], number: int) -> dict[str, Any]:
        """Return the samples in ns with what was recorded around them.

        Args:
            data: pytest-benchmark's seconds per call in each round.
            number: Calls per round.
        """
        self.canaries += [self.kit.canary_ns() for _ in range(4)]
        rows = self.rows[-len(data) :]
        # The rounds are the last ones that ran. A row shorter than its timed round belongs to a different round.
        fits = len(rows) == len(data) and all(
            row[0] >= 0.99e9 * value * number for row, value in zip(rows, data, strict=True)
        )
        groups = list(grouped(range(len(data)), MOST_SAMPLES))
        answer: dict[str, Any] = {
            "number": number,
            "samples_ns": [1e9 * mean([data[at] for at in group]) for group in groups],
            "canary_ns": self.kit.low_end(self.canaries) if self.has_wall_clock else 0,
            "canary_of": sys.version,
            "start_ns": self.started,
            "load": self.load,
            "steal_pct": self.kit.steal_pct(self.ticks, self.kit.cpu_ticks()),
            "peak_rss_bytes": self.kit.peak_rss_bytes(),
        }
        if fits and self.has_wall_clock:
            answer["cpu_ns"] = [mean([rows[at][1] for at in group]) / number for group in groups]
            answer["thread_ns"] = [mean([rows[at][2] for at in group]) / number for group in groups]
            answer["nivcsw"] = [sum(rows[at][3] for at in group) for group in groups]
        return answer


def grouped(indices: range, most: int) -> Iterator[range]:
    """Split a range into at most ``most`` parts of nearly equal length."""
    cuts = [len(indices) * part // min(most, len(indices)) for part in range(min(most, len(indices)) + 1)]
    for start, end in itertools.pairwise(cuts):
        yield indices[start:end]


def mean(values: list[Any]) -> float:
    """Return the mean of numbers."""
    return float(sum(values) / len(values))
