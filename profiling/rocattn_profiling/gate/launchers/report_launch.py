"""Commands that report their own results: one run is a launch of every benchmark that it reports.

A run is watched from outside, but only for results with CPU time: GPU time does not follow the CPU's speed. The canary
is timed before, after and during the run. The program's voluntary context switches distinguish its own waits from
interruptions: a call that waits gives up its core at least once.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.asv import worker
from rocattn_profiling.asv.launch import Benchmark, Outcome, OutOfTimeError, Suite, round_variables
from rocattn_profiling.base.files import stamp
from rocattn_profiling.base.process import run_group
from rocattn_profiling.gate.foreign.readers import FORMS, ReadError, Reading, Results, parse, read_results
from rocattn_profiling.gate.launchers.command_launch import TIMEOUT_S, CommandLauncher
from rocattn_profiling.gate.rule.constants import CPU_BOUND
from rocattn_profiling.measure.records import Launch
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Request

_TAKEN_S = 0.001  # per launch, without the run that it shares with others of its command
_APART_S = 0.1  # between canaries (0.2 ms each) while a program runs
_AROUND = 4  # canaries before it, and after it
_WAITING = 0.1  # voluntary switches per call from which on a benchmark may wait
# Both sides are listed at the same time, but two programs may need all of a GPU's memory, or write the same file.
_ONE_AT_A_TIME = threading.Lock()


class ReportPlace(NamedTuple):
    """Where a command's results are: the name of their format, and a file in its checkout; "" for its output."""

    form: str
    file: str

    @classmethod
    def of(cls, text: str) -> ReportPlace:
        """Parse the value of ``--results FORMAT[:FILE]``.

        Raises:
            UnknownNameError: There is no such format.
        """
        form, _, file = text.partition(":")
        if form not in FORMS:
            raise UnknownNameError(f"--results {text}: the formats are {', '.join(FORMS)}")
        return cls(form, file)


class _Run(NamedTuple):
    """One run of a command.

    Attributes:
        results: What it reported; None if it failed.
        outcome: How it ended.
        taken: The benchmarks that took their launch from it.
        start_ns: When it began.
        canary_ns: The canary's median time around and during it.
        waits: Voluntary context switches.
    """

    results: Results | None
    outcome: Outcome
    taken: set[str]
    start_ns: int
    canary_ns: float = 0.0
    waits: int = 0


class ReportLauncher(CommandLauncher):
    """Runs commands on one side, and takes the results that they report.

    A benchmark's launch comes from the latest run of its command. The command runs again once a benchmark needs another
    launch, so one run per round serves all benchmarks of a command.

    Args:
        python, tree, commands, scratch, environment: See `CommandLauncher`.
        reports: Where each command's results are.
    """

    def __init__(
        self,
        python: str,
        tree: Path,
        commands: Sequence[str],
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        *,
        reports: Sequence[ReportPlace],
    ) -> None:
        super().__init__(python, tree, commands, scratch, environment)
        self._reports = dict(zip(commands, reports, strict=True))
        self._places: dict[str, tuple[str, str]] = {}  # label -> command, and the name in its report
        self._latest: dict[str, _Run] = {}

    def discover(self) -> Suite:
        """Run each command once, unmeasured, and list what it reports.

        Raises:
            SuiteError: None of them reports anything.
        """
        benchmarks: dict[str, Benchmark] = {}
        broken, seconds = {}, {}
        for command in self._reports:
            with _ONE_AT_A_TIME:
                ran = self._run(command, {}, math.inf)
            if ran.results is None:
                broken[command] = ran.outcome.reason
                continue
            seconds[command] = ran.outcome.seconds
            for name in (*ran.results.readings, *ran.results.failed):
                label = name if name not in self._places else f"{command}: {name}"
                self._places[label] = command, name
                benchmarks[label] = _benchmark(label, ran.results.readings.get(name))
        if broken and not benchmarks:
            command, why = next(iter(broken.items()))
            raise SuiteError(f"{command} reports nothing: {why}")
        shared = {label: self._places[label][0] for label in benchmarks}
        return Suite(benchmarks=list(benchmarks.values()), broken=broken, imports=seconds, shared=shared)

    def run(
        self, case: Case, request: Request, *, pos: int = 0, seed: int = 0, layout: int = 0, within_s: float = math.inf
    ) -> Outcome:
        """Return what a run reported for a benchmark; see `rocattn_profiling.asv.launch.Launcher.run`."""
        del request  # the program decides how it samples
        place = self._places.get(case.label)
        if place is None:
            return Outcome(status="failed", reason="no command reports it here")
        command, name = place
        ran = self._latest.get(command)
        if ran is None or case.label in ran.taken:
            ran = self._latest[command] = self._run(command, round_variables(seed, layout, self._own), within_s)
        ran.taken.add(case.label)
        reading = ran.results.readings.get(name) if ran.results else None
        if ran.results is None or reading is None:
            why = ran.results.failed.get(name, "this run did not report it") if ran.results else ran.outcome.reason
            return Outcome(status="failed", reason=why, seconds=_TAKEN_S)
        larger = reading.better == "larger"
        launch = Launch(
            start_ns=ran.start_ns,
            pos=pos,
            number=reading.number,
            samples_ns=[1 / value for value in reading.values] if larger else reading.values,
            cpu_ns=list(reading.cpu),
            nivcsw=_interruptions(reading, ran.waits),
        )
        canary_ns = ran.canary_ns if launch.cpu_ns else 0.0
        return Outcome(status="ok", launch=launch, seconds=_TAKEN_S, canary_ns=canary_ns, canary_of=sys.version)

    def call_command(self, name: str, label: str, answer: Path | None = None) -> tuple[str, ...]:
        """Return the command that reports a benchmark."""
        return super().call_command(name, self._places.get(label, (label, ""))[0], answer)

    def _run(self, command: str, variables: Mapping[str, str], within_s: float) -> _Run:
        report = self._reports[command]
        file, printed, log = self.tree / report.file, self.scratch / "printed", self.scratch / "command.log"
        before, start_ns = stamp(file) if report.file else None, time.time_ns()
        shell, waited = super().call_command(command, command), _waits()
        with printed.open("wb") as out, log.open("wb") as err, _canaries() as canaries:
            ended = run_group(
                shell, env={**self.environment, **variables}, cwd=self.tree, stdout=out, stderr=err,
                timeout_s=min(within_s, TIMEOUT_S), grace_s=0,
            )  # fmt: skip
        if ended.status is None and within_s < TIMEOUT_S:
            raise OutOfTimeError(f"the command was killed after {ended.seconds:.0f} s: time limit of the run")

        def failed(why: str) -> _Run:
            return _Run(None, Outcome(status="failed", reason=why, seconds=ended.seconds), set(), start_ns)

        if ended.status:
            return failed(ended.sentence(log.read_text(errors="replace")[-4000:]))
        if ended.status is None:
            return failed(ended.sentence(""))
        if report.file and (after := stamp(file)) in {None, before}:
            return failed(f"it {'wrote no' if after is None else 'did not rewrite'} {report.file}")
        try:
            text = printed.read_text(errors="replace")
            results = read_results(file, report.form) if report.file else parse(text, Path("its output"), report.form)
        except ReadError as error:
            return failed(str(error).replace(f"{self.tree}{os.sep}", ""))
        # Reported times are averages over the whole run, so the median canary matches them, not the fastest.
        canary_ns = statistics.median(canaries)
        outcome = Outcome(status="ok", seconds=ended.seconds)
        return _Run(results, outcome, set(), start_ns, canary_ns, _waits() - waited)


def _waits() -> int:
    """Return the voluntary context switches of all child processes waited for so far, with their descendants."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw


def _interruptions(reading: Reading, waits: int) -> list[int]:
    """Return 1 for each sample that lost its core and 0 for the others; [] for a benchmark that may wait."""
    if not reading.cpu or waits >= _WAITING * reading.number:
        return []
    return [int(cpu < CPU_BOUND[0] * wall) for wall, cpu in zip(reading.values, reading.cpu, strict=True)]


@contextmanager
def _canaries() -> Iterator[list[int]]:
    """Time the canary around a block and, in a thread, during it; the yielded list is complete after the block."""
    times, over = [worker.canary_ns() for _ in range(_AROUND)], threading.Event()

    def watch() -> None:
        while not over.wait(_APART_S):
            times.append(worker.canary_ns())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()
        times += [worker.canary_ns() for _ in range(_AROUND)]


def _benchmark(label: str, reading: Reading | None) -> Benchmark:
    """Return a reported result as a benchmark: of type time for a time or a rate; the report gives the direction."""
    unit, better = (reading.unit, reading.better) if reading else ("ns", "smaller")
    kind = "time" if unit == "ns" or better == "larger" else "track"
    return Benchmark(
        name=label, type=kind, unit="seconds" if unit == "ns" else unit, version="", params=[], param_names=[],
        better=better or "unknown",
    )  # fmt: skip
