"""Bench on many machines: one job per unit, each in its own folder; finished results are merged here.

A unit is measured side by side (a config on its backends) or added up (the layers of a model's pass).
``records.jsonl`` and ``session.json`` have the format of `rocattn bench`, but each record names its machine.
``jobs/<unit>/`` contains the input, the records and the output of one job.

The submitter keeps all its state in these files. When restarted after a kill, it merges results finished in the
meantime, waits for running jobs, and submits the rest.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.base.files import DocumentError, decoded, write_text
from rocattn_profiling.bench.fleet.cluster import ENDED, Cluster, State
from rocattn_profiling.bench.session import BenchSession, ResultsFolder, SuiteFacts
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.records import Commit, place_of, read_records
from rocattn_profiling.measure.settings import Identity, Settings, code_hash, import_backends
from rocattn_profiling.measure.stats import newest
from rocattn_profiling.pages.render import count

if TYPE_CHECKING:
    from rocattn_profiling.measure.records import Record

_T = TypeVar("_T")
_JOB = "job.json"
_LOGS = "logs"
_TAKEN = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT"}
"""States in which a job's last output is a consequence of its end, not its cause."""
_ARRIVAL_S = 30.0
"""How long a file written by a node may take to appear here: network file systems cache folder listings."""


@dataclass(frozen=True)
class FleetUnit:
    """The work of one job: configs of a suite that belong together, and their backends."""

    suite: str
    configs: tuple[AttentionConfig, ...]
    backends: tuple[str, ...]
    facts: tuple[SuiteFacts, ...]

    @property
    def name(self) -> str:
        """A readable name, also of its folder: the suite, the first label and a hash of everything."""
        text = repr((self.suite, [c.label for c in self.configs], self.backends, self.facts))
        return f"{self.suite}-{self.configs[0].label}"[:120] + f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def ids(self) -> list[str]:
        """The ids of its records in order."""
        return [f"{self.suite}/{name}/{config.label}" for config in self.configs for name in self.backends]


class Failure(NamedTuple):
    """A unit whose job left no result, with the reason."""

    unit: FleetUnit
    reason: str


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a unit was last assigned to."""

    job: str
    cluster: str


class FleetSession(ResultsFolder):
    """An open results folder of a fleet; `records.Place` explains why machines are never compared.

    Attributes:
        machine: None, since its records are from many machines.
        added_backends: Names that the backend module registered.
        commit, repo, settings: What to measure and how; with 0 threads, each job uses all CPUs it was given.
        kept_configs: Number of configs already finished.
        failures: Units without a result, after `measure`.
        jobs: Number of jobs submitted, plus the earlier run's jobs that were awaited.

    Args:
        out: The folder, as in `ResultsFolder`; on Slurm one visible to all nodes.
        settings: How to measure.
        cluster: Opens the cluster, given the folder for its logs.
        kind: The cluster's kind, stored with its jobs.
        max_jobs: Maximum number of unfinished jobs.
        gpus: Exclusive GPUs per job; on one machine they are assigned here.
        fresh, on_note: As in `ResultsFolder`.
        on_step: Called as units finish, with a label and the number of launches.
        on_state: Called with a line for the user when jobs start, wait or end.

    Raises:
        RocattnError: When the folder cannot be written, here or on entering (see `ResultsFolder`).
    """

    machine = None

    def __init__(
        self,
        out: Path,
        settings: Settings,
        cluster: Callable[[Path], Cluster],
        *,
        kind: str,
        max_jobs: int,
        gpus: int = 0,
        fresh: bool = False,
        on_step: Callable[[str, int], None] = lambda _label, _count: None,
        on_note: Callable[[str], None] = lambda _line: None,
        on_state: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(out.resolve(), fresh=fresh, on_note=on_note)
        self.added_backends = import_backends(settings.backend_module)
        self.settings = settings
        self.repo = machine.measured_repo()
        self.commit = machine.this_commit(self.repo) if self.repo else None
        self.kept_configs, self.jobs = 0, 0
        self.failures: list[Failure] = []
        self._folder = self.out / "jobs"
        self._kind, self._max_jobs, self._gpus = kind, max_jobs, gpus
        self._on_step, self._on_state = on_step, on_state
        self._known: list[Record] = []
        try:
            self._cluster = cluster(self._folder / _LOGS)
        except OSError as error:  # submitit creates the folder
            raise RocattnError(f"cannot write to {self.out}: {error.strerror or error}") from error
        self._code = code_hash(settings.backend_module)
        self._last_line = ""

    def identity(self) -> Identity:
        """Return the identity of a run starting now, without a machine."""
        return Identity.of(self.commit, None, self.settings)

    def keep(self, records: list[Record]) -> None:
        """Adopt the records of an earlier run with the same identity."""
        self._known = records

    def _put_aside(self, why: str) -> None:
        """Move the records of another run to ``older/``, and cancel its jobs, whose results are obsolete."""
        super()._put_aside(why)
        jobs = [submitted for path in self._folder.glob(f"*/{_JOB}") if (submitted := _read(path, Submitted))]
        mine = {submitted.job for submitted in jobs if submitted.cluster == self._kind}
        running = [job for job, state in self._cluster.poll(mine).items() if not state.over] if mine else []
        for job in running:
            self._cluster.cancel(job)
        if running:
            self._on_note(f"cancelled {count(len(running), 'job')} of the older run")
        for folder in (path.parent for path in self._folder.glob(f"*/{TASK}")):
            shutil.rmtree(folder, ignore_errors=True)  # their finished records were moved already

    def measure(self, units: Sequence[FleetUnit]) -> dict[FleetUnit, list[Record]]:
        """Return the records of each unit, in order of configs and backends; units in `failures` have none.

        On an interrupt or error it cancels its jobs; finished results are kept.

        Raises:
            ClusterError: When the cluster rejects a job or stops answering.
            RocattnError: When a record cannot be written.
        """
        records_of: dict[FleetUnit, list[Record]] = {}
        for unit in units:
            self._take_left_behind(unit)
            if (records := self._finished(unit)) is not None:
                records_of[unit] = records
                self.kept_configs += len(unit.configs)
                self._step(unit)
        running = self._still_out([unit for unit in units if unit not in records_of])
        waiting = [unit for unit in units if unit not in records_of and unit not in running.values()]
        try:
            while waiting or running:
                while waiting and len(running) < self._max_jobs:
                    unit = waiting.pop(0)
                    running[self._submit(unit, running)] = unit
                states = self._cluster.poll(running)
                self._tell(states, len(waiting))
                for job, state in states.items():
                    if state.over:
                        unit = running.pop(job)
                        self._collect(unit, job, state)
                        if (records := self._finished(unit, also_failed=True)) is not None:
                            records_of[unit] = records
                        self._step(unit)
                if running:
                    time.sleep(self._cluster.pause_s)
        except BaseException:
            self._on_state(f"cancelling {count(len(running), 'job')}")
            for job in running:
                self._cluster.cancel(job)
            raise
        return {unit: records_of[unit] for unit in units if unit in records_of}

    def _step(self, unit: FleetUnit) -> None:
        self._on_step(unit.configs[0].label, self.settings.launches * len(unit.configs))

    def _tell(self, states: dict[str, State], waiting: int) -> None:
        """Report the jobs' states if they changed."""
        counts = Counter(f"{s.word}{f' ({s.why})' if s.why else ''}" for s in states.values() if not s.over)
        parts = [f"{count} {word}" for word, count in sorted(counts.items())]
        line = ", ".join([*parts, *([f"{waiting} not submitted yet"] if waiting else [])])
        if line and line != self._last_line:
            self._last_line = line
            self._on_state(f"jobs: {line}")

    def _finished(self, unit: FleetUnit, *, also_failed: bool = False) -> list[Record] | None:
        """Return a unit's records from the last place that has all of them, with each config measured side by side."""
        layers = {config.label: facts.layers for config, facts in zip(unit.configs, unit.facts, strict=True)}
        wanted = set(unit.ids)
        own = [r for r in self._known if r.id in wanted and r.layers == layers[r.label]]
        for place in dict.fromkeys(place_of(record) for record in reversed(own)):
            there = [record for record in own if place_of(record) == place]
            records = [each for label in layers for each in _side_by_side(unit, label, there)]
            if len(records) < len(wanted):
                continue
            if also_failed or not any(self._again(unit, record) for record in records):
                return records
        return None

    def _again(self, unit: FleetUnit, record: Record) -> bool:
        """Return whether to retry a record: its backend failed, or it was skipped and the time limit is longer now."""
        if record.status == "failed":
            return True
        task = _read(self._folder / unit.name / TASK, Task) if record.skipped else None
        return task is not None and task.settings.time_limit_s < self.settings.time_limit_s

    def _take_left_behind(self, unit: FleetUnit) -> None:
        """Merge the results of jobs that ended without their submitter."""
        folder = self._folder / unit.name
        if _read(folder / DONE, Done) is not None:
            self._merge(unit, folder)

    def _still_out(self, units: Sequence[FleetUnit]) -> dict[str, FleetUnit]:
        """Return the unfinished jobs of an earlier run."""
        known = {unit: _read(self._folder / unit.name / _JOB, Submitted) for unit in units}
        jobs = {job.job: unit for unit, job in known.items() if job is not None and job.cluster == self._kind}
        states = self._cluster.poll(jobs) if jobs else {}
        out = {job: unit for job, unit in jobs.items() if not states[job].over}
        if out:
            self._on_state(f"waiting for {count(len(out), 'job')} that an earlier run submitted")
        return out

    def _submit(self, unit: FleetUnit, running: dict[str, FleetUnit]) -> str:
        """Assign a unit to a new job; return the job's id."""
        folder = self._folder / unit.name
        task = Task(
            suite=unit.suite,
            backends=list(unit.backends),
            configs=[config.to_dict() for config in unit.configs],
            facts=list(unit.facts),
            settings=self.settings,
            commit=self.commit,
            code=self._code,
            library=str(Path(str(rocattn.__file__)).resolve().parent),
            gpus=self._free_gpus(running) if self._cluster.same_machine and self._gpus else "",
            named=not self._cluster.same_machine,
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DONE).unlink(missing_ok=True)
        write_text(folder / TASK, msgspec.json.encode(task).decode() + "\n")
        job = self._cluster.submit(perform, str(folder))
        write_text(folder / _JOB, msgspec.json.encode(Submitted(job=job, cluster=self._kind)).decode() + "\n")
        self.jobs += 1
        return job

    def _free_gpus(self, running: dict[str, FleetUnit]) -> str:
        """Return as many free GPUs of this machine as a job gets."""
        given = os.environ.get(GPUS, "")
        mine = given.split(",") if given else [str(n) for n in range(self._gpus * self._max_jobs)]
        tasks = [_read(self._folder / unit.name / TASK, Task) for unit in running.values()]
        taken = {gpu for task in tasks if task for gpu in task.gpus.split(",")}
        free = [gpu for gpu in mine if gpu not in taken]
        if len(free) < self._gpus:
            raise RocattnError(f"{GPUS}={given} has too few GPUs for {self._max_jobs} jobs of {self._gpus}")
        return ",".join(free[: self._gpus])

    def _collect(self, unit: FleetUnit, job: str, state: State) -> None:
        """Merge the records of a finished job, or record why it left none."""
        folder = self._folder / unit.name
        done = self._arrived(folder) if state.word in {"COMPLETED", ENDED} else _read(folder / DONE, Done)
        if done is not None:
            self._merge(unit, folder)
            return
        said = "" if state.word in _TAKEN else self._cluster.last_words(job) or "it wrote nothing"
        reason = f"job {job} ended{'' if state.word == ENDED else f' as {state.word}'}{f': {said}' if said else ''}"
        self.failures.append(Failure(unit, reason))
        self._keep_log(f"{unit.name}: {reason}", self._cluster.log(job))

    def _arrived(self, folder: Path) -> Done | None:
        """Wait briefly for the file that a job writes on completion."""
        deadline = time.monotonic() + (0.0 if self._cluster.same_machine else _ARRIVAL_S)
        while (done := _read(folder / DONE, Done)) is None and time.monotonic() < deadline:
            with suppress(OSError):
                os.utime(folder)  # refreshes the listing of a network file system
            time.sleep(1.0)
        return done

    def _merge(self, unit: FleetUnit, folder: Path) -> None:
        """Add a job's records to the fleet's, each once, and keep the output of its failed processes."""
        records = list(read_records(folder / UnitSession.file))
        here = place_of(records[-1])  # a job restarted on another node left some records of the first
        have = {(record.id, place_of(record), record.pair, record.skipped) for record in self._known}
        for record in newest(record for record in records if place_of(record) == here):
            if (record.id, here, record.pair, record.skipped) not in have:
                self._append(record)
                self._known.append(record)
        (folder / DONE).unlink()
        log = folder / "failures.log"
        if log.exists():
            self._keep_log(unit.name, log.read_text(errors="replace"))
            log.unlink()


def _side_by_side(unit: FleetUnit, label: str, records: Sequence[Record]) -> list[Record]:
    """Return a config's records of the unit's backends that were measured together, including skipped ones."""
    own = [record for record in records if record.label == label]
    for pair in sorted({record.pair: None for record in reversed(own)}, key=lambda pair: not pair):  # the latest first
        of_backend = {record.backend: record for of_pair in ("", pair) for record in own if record.pair == of_pair}
        if len(of_backend) == len(unit.backends):
            return [of_backend[name] for name in unit.backends]
    return []


def _read(path: Path, kind: type[_T]) -> _T | None:
    """Decode a JSON file; None if it is missing or incomplete."""
    try:
        return decoded(path.read_bytes(), kind)
    except (OSError, DocumentError):
        return None


TASK, DONE = "task.json", "done.json"
GPUS = "ROCR_VISIBLE_DEVICES"
_OTHER_FILTERS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as read by its job.

    Attributes:
        suite, backends: As in the records.
        configs: Each as `AttentionConfig.to_dict`, with the `SuiteFacts` at the same index.
        settings, commit: The submitter's.
        code: Hash of the source text to measure.
        library: Folder that rocattn must be imported from.
        gpus: The GPUs visible to the job, as ROCR_VISIBLE_DEVICES; "" if the cluster sets it.
        named: Whether records name their node.
    """

    suite: str
    backends: list[str]
    configs: list[dict[str, Any]]
    facts: list[SuiteFacts]
    settings: Settings
    commit: Commit | None
    code: str
    library: str
    gpus: str = ""
    named: bool = True


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a completed job: the node, and the number of record lines."""

    host: str
    records: int


class UnitSession(BenchSession):
    """A session in a unit's folder; its records state the task's commit and host."""

    file = "measured.jsonl"  # not records.jsonl, which reports look for: these records are only a part

    def __init__(self, folder: Path, task: Task) -> None:
        super().__init__(folder, task.settings)
        self.commit = task.commit
        self.host = node_name() if task.named else ""


def perform(folder: str) -> None:
    """Measure the unit in a folder.

    Raises:
        RocattnError: When this is not the code that was submitted, or the folder is in use.
    """
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _ended)
    place = Path(folder)
    task = msgspec.json.decode((place / TASK).read_bytes(), type=Task)
    see_own_gpus(task.gpus)
    library = str(Path(str(rocattn.__file__)).resolve().parent)
    if library != task.library:
        raise RocattnError(f"the job imported rocattn from {library}, not from {task.library}")
    with UnitSession(place, task) as session:
        if code_hash(task.settings.backend_module) != task.code:
            raise RocattnError("the source changed after the job was submitted: run the command again")
        for values, facts in zip(task.configs, task.facts, strict=True):
            session.measure(task.suite, AttentionConfig.from_dict(values), task.backends, facts)
        done = Done(host=node_name(), records=len(session.path.read_bytes().splitlines()))
    write_text(place / DONE, msgspec.json.encode(done).decode() + "\n")


def _ended(number: int, _frame: FrameType | None) -> None:
    """End the job at once on the cluster's signal, which sampling processes also get, so no backend has failed."""
    sys.exit(f"the job got {signal.Signals(number).name}: it ran out of time or was cancelled")


def node_name() -> str:
    """Return the node's name, preferably the cluster's name for it."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def see_own_gpus(gpus: str) -> None:
    """Reduce the environment of this process and its children to one GPU filter.

    ROCR_VISIBLE_DEVICES renumbers the remaining ones from 0; HIP then applies its own three filters to the new numbers.
    Slurm (without a GPU type in its configuration) and submitit set several of them to the same original number, which
    hides every GPU except the first.
    """
    if gpus:
        os.environ[GPUS] = gpus
    if os.environ.get(GPUS):
        for name in _OTHER_FILTERS:
            os.environ.pop(name, None)
