"""Commands that report their own results: a run of one is a launch of every benchmark that it reports.

What can be seen of such a run from outside is watched for results with CPU time, and for no others: a GPU's time does
not follow the CPU's speed. The canary is timed before, after and while the program runs. Its voluntary context switches
tell waits of its own from interruptions: a call that waits gives its core up at least once.
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

_TAKEN_S = 0.001  # of a launch besides the run, which it shares with others of its command
_APART_S = 0.1  # of the canary, 0.2 ms, while a program runs
_AROUND = 4  # times before and after it
_WAITING = 0.1  # voluntary switches a call, of a benchmark that may wait
# Sides are listed at once: two programs may want all of a GPU's memory, or write one file.
_ONE_AT_A_TIME = threading.Lock()


class ReportPlace(NamedTuple):
    """Where a command's results are: the name of their format, and a file in its checkout; "" for what it prints."""

    form: str
    file: str

    @classmethod
    def of(cls, text: str) -> ReportPlace:
        """Return what ``--results FORMAT[:FILE]`` says.

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
        canary_ns: The usual time of the canary around and during it.
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

    A benchmark's launch is what the latest run reported of it, unless it has taken that already: then the command runs
    again. So one run a round serves all benchmarks of a command.

    Args:
        python, tree, commands, scratch, environment: As in `CommandLauncher`.
        reports: Of each command, where its results are.
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
        self._places: dict[str, tuple[str, str]] = {}  # label -> command, and the name that it reports
        self._latest: dict[str, _Run] = {}

    def discover(self) -> Suite:
        """Run each command once, unmeasured, and list what it reports.

        Raises:
            SuiteError: When none of them reports anything.
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
        """Return what a run reported of a benchmark; as `rocattn_profiling.asv.launch.Launcher.run`."""
        del request  # how it samples is the program's own
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
        # Reported times are means of all that a run did, so it is the usual canary that fits them, not the fastest.
        canary_ns = statistics.median(canaries)
        outcome = Outcome(status="ok", seconds=ended.seconds)
        return _Run(results, outcome, set(), start_ns, canary_ns, _waits() - waited)


def _waits() -> int:
    """Return the voluntary context switches of the processes that this one has waited for so far, with their own."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw


def _interruptions(reading: Reading, waits: int) -> list[int]:
    """Return, for each sample of a benchmark that does not wait, 1 if its core was taken away, else 0; [] if it may."""
    if not reading.cpu or waits >= _WAITING * reading.number:
        return []
    return [int(cpu < CPU_BOUND[0] * wall) for wall, cpu in zip(reading.values, reading.cpu, strict=True)]


@contextmanager
def _canaries() -> Iterator[list[int]]:
    """Time the canary around a block and, in a thread, while it runs; yield the times, whole at the block's end."""
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
    """Return what was reported as a benchmark: a time in ns or a rate is one of time; it says itself what is better."""
    unit, better = (reading.unit, reading.better) if reading else ("ns", "smaller")
    kind = "time" if unit == "ns" or better == "larger" else "track"
    return Benchmark(
        name=label, type=kind, unit="seconds" if unit == "ns" else unit, version="", params=[], param_names=[],
        better=better or "unknown",
    )  # fmt: skip
