"""Bench into a folder: each config side by side in fresh processes, each record on disk once it is finished.

One run at a time writes to a folder, and different runs never mix. ``records.jsonl`` contains measurements of one
commit, source text and settings on one machine or fleet, identified by ``session.json``. A run with the same identity
keeps finished records and measures the rest. A run with another identity first moves the old file into ``older/``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from rocattn.backends.gpu import GpuBackend
from rocattn.errors import RocattnError
from rocattn_profiling.base.files import StagedFiles, result_folder
from rocattn_profiling.bench import limits
from rocattn_profiling.bench.launch import measure_side_by_side, register_named
from rocattn_profiling.bench.limits import estimate_call_s, memory_problem, time_problem
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.records import Record, append_record, read_records
from rocattn_profiling.measure.settings import Identity, Settings, import_backends
from rocattn_profiling.measure.worker import describe

if TYPE_CHECKING:
    from rocattn.config import AttentionConfig


@dataclass(frozen=True, slots=True)
class SuiteFacts:
    """Additional facts for records of a suite that is not a grid, as in `Record`.

    ``module``: whether the suite names a module workload, which is timed in place of attention.
    """

    option: str = ""
    extra_flops: int = 0
    extra_bytes: int = 0
    layers: int = 0
    module: bool = False


class ResultsFolder:
    """A results folder, locked while entered.

    Attributes:
        out, path: The folder, and its records file.
        file: The name of the records file.

    Args:
        out: The folder; ``records.jsonl``, ``session.json`` and, if something failed, ``failures.log`` go there.
        fresh: Whether to set finished records aside even if they could be kept.
        on_note: Called with a line for the user.

    Raises:
        RocattnError: On entering, if another run writes to the folder or it cannot be written.
    """

    file = "records.jsonl"

    def __init__(self, out: Path, *, fresh: bool, on_note: Callable[[str], None]) -> None:
        self.out, self.path = out, out / self.file
        self._fresh, self._on_note = fresh, on_note
        self._lock: Any = None

    def __enter__(self) -> Self:
        from filelock import FileLock, Timeout

        try:
            result_folder(self.out)
            self._lock = FileLock(self.out / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RocattnError(f"another bench is writing to {self.out}: wait for it, or use another --out") from None
        except OSError as error:
            raise RocattnError(f"cannot write to {self.out}: {error.strerror or error}") from error
        try:
            self._take_over()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def identity(self) -> Identity:
        """Return the identity of a run starting now."""
        raise NotImplementedError

    def keep(self, records: list[Record]) -> None:
        """Adopt the records of an earlier run with the same identity."""
        raise NotImplementedError

    def _take_over(self) -> None:
        """Keep existing records or set them aside; then write the run's identity into ``session.json``."""
        session = self.out / "session.json"
        identity = self.identity()
        with StagedFiles() as staging:
            encoded = msgspec.json.format(msgspec.json.encode(identity), indent=2)
            staging.add(session, [encoded, b"\n"])  # first: a full disk moves nothing
            if session.exists() or self.path.exists():
                difference = identity.difference(Identity.load(session))
                if self._fresh or difference:
                    self._put_aside("--fresh was given" if self._fresh else f"they come from {difference}")
                elif self.path.exists():
                    self.keep(self._readable())
            staging.commit()

    def _readable(self) -> list[Record]:
        try:
            return list(read_records(self.path))
        except RocattnError as error:
            raise RocattnError(f"{error}; to measure again, move that file aside with --fresh") from error

    def _put_aside(self, why: str) -> None:
        """Move another run's records to ``older/``."""
        if not self.path.exists():
            return
        name = f"records-{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:4]}.jsonl"
        target = self.out / "older" / name
        try:
            target.parent.mkdir(exist_ok=True)
            self.path.replace(target)
        except OSError as error:
            raise RocattnError(f"cannot move {self.path} to {target}: {error.strerror}") from error
        self._on_note(f"moved the older records to {target}: {why}")

    def _append(self, record: Record) -> None:
        append_record(self.path, record)

    def _keep_log(self, what: str, text: str) -> None:
        """Append a failed process's output (its traceback) to ``failures.log``."""
        path = self.out / "failures.log"
        try:
            with path.open("a") as file:
                file.write(f"== {what}\n{text}\n")
        except OSError as error:
            raise RocattnError(f"cannot write {path}: {error.strerror}; what was measured before is kept") from error


class BenchSession(ResultsFolder):
    """An open results folder with its finished records; measures more.

    Attributes:
        added_backends: Names that the backend module registered.
        machine, commit, repo, settings, path: As in the records, and their file.
        kept_configs: Number of configs already finished on all supporting backends.
        failures: Always empty: failures are in the records.
        host: The node named in records; "" for this machine: see `places`.

    Args:
        out: The folder, as in `ResultsFolder`.
        settings: How to measure.
        fresh: Put finished records aside even if they could be kept.
        on_step: Called as launches finish, with the config's label and their number.
        on_note: Called with a line for the user: records set aside, a busy machine.

    Raises:
        RocattnError: On entering, if another run writes to the folder or it cannot be written.
    """

    failures = ()
    host = ""

    def __init__(
        self,
        out: Path,
        settings: Settings,
        *,
        fresh: bool = False,
        on_step: Callable[[str, int], None] = lambda _label, _count: None,
        on_note: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(out, fresh=fresh, on_note=on_note)
        self.added_backends = import_backends(settings.backend_module)
        self.settings = msgspec.structs.replace(settings, threads=settings.threads or machine.available_cores())
        self.machine = machine.this_machine()
        self.repo = machine.measured_repo()
        self.commit = machine.this_commit(self.repo) if self.repo else None
        self._on_step = on_step
        self._ceilings: dict[str, float] = {}
        self._cache_bytes = limits.last_level_cache_bytes()
        self._memory_bytes = machine.available_memory_bytes()
        self._known: dict[str, Record] = {}
        self.kept_configs = 0

    def identity(self) -> Identity:
        """Return the identity of a run starting now, and announce a busy machine, since its records begin here."""
        load = machine.load_average()
        if load > self.machine.cores / 2:
            self._on_note(f"the machine is busy (load {load:.1f} on {self.machine.cores} cores): times are disturbed")
            if self.settings.threads > 1:
                self._on_note(
                    "BLAS threads spin while they wait for one that lost its core (64 ms of CPU time per call were "
                    "seen instead of 0.9 ms): --threads 1 is steadier here"
                )
        if not self._cache_bytes and not self.settings.warm:
            self._on_note(
                "this system does not report the size of its last-level cache: 32 MiB is assumed, and decoding "
                "may read from a warm cache"
            )
        return Identity.of(self.commit, self.machine, self.settings)

    def keep(self, records: list[Record]) -> None:
        """Adopt the records of an earlier run with the same identity."""
        self._known = {record.id: record for record in records if record.host == self.host}

    @property
    def ceilings(self) -> dict[str, float]:
        """This machine's ceilings, measured on first use in a run."""
        if not self._ceilings:
            self._ceilings = limits.measure_ceilings(self.settings.threads, quick=self.settings.quick)
        return self._ceilings

    def kept(self, suite: str, config: AttentionConfig, backends: Sequence[str]) -> list[Record]:
        """Return a config's finished records if all these backends were measured together, else nothing."""
        known = [self._known.get(f"{suite}/{name}/{config.label}") for name in backends]
        finished = [record for record in known if record is not None and record.launches]
        together = len({record.pair for record in finished}) == 1
        return finished if together and len(finished) == len(backends) else []

    def measure(
        self, suite: str, config: AttentionConfig, backends: Sequence[str], facts: SuiteFacts | None = None
    ) -> list[Record]:
        """Return one record per backend on a config: kept, measured side by side, or stating why it was not measured.

        New records are on disk on return.

        Args:
            suite: The suite of the records.
            config: The problem.
            backends: Names.
            facts: Additional facts for the records.

        Raises:
            RocattnError: When a record cannot be written; a backend's failure becomes a record with status "failed".
        """
        register_named(backends)
        facts = facts or SuiteFacts()
        kept = self.kept(suite, config, backends)
        if kept and all(record.layers == facts.layers for record in kept):  # else another model of this name
            self.kept_configs += 1
            self._on_step(config.label, self.settings.launches)
            return kept
        asked = {name: self._problem(config, name, len(backends), facts) for name in backends}
        refused = {name: problem for name, problem in asked.items() if problem is not None}
        able = [name for name in backends if name not in refused]
        known = self.kept(suite, config, able)
        records = {record.backend: record for record in known if record.layers == facts.layers}
        if records or not able:
            self.kept_configs += bool(records)
            self._on_step(config.label, self.settings.launches)
        else:
            records = self._measure_able(suite, config, able, facts)
        for name in backends:
            if name in records:
                continue
            status, reason = refused[name]
            records[name] = self._record(suite, config, name, facts, status=status, skipped=reason)
            before = self._known.get(records[name].id)
            if before is None or before.launches:  # a restart that skips it again adds no line
                self._store(records[name])
        return [records[name] for name in backends]

    def _measure_able(
        self, suite: str, config: AttentionConfig, able: list[str], facts: SuiteFacts
    ) -> dict[str, Record]:
        """Measure backends side by side and store a record for each."""
        copies = self._copies(config, facts)
        sides = measure_side_by_side(
            config,
            able,
            self.settings,
            self.settings.threads,
            lambda: self._on_step(config.label, 1),
            module=suite if facts.module else "",
            copies=copies,
        )
        pair = uuid.uuid4().hex[:12]
        records = {}
        for name, side in sides.items():
            if side.failed:
                self._keep_log(f"{suite}/{name}/{config.label}: {side.failed}", side.log)
                records[name] = self._record(suite, config, name, facts, status="failed", skipped=side.failed)
            else:
                records[name] = self._record(
                    suite,
                    config,
                    name,
                    facts,
                    launches=side.launches,
                    check=side.check,
                    peak_rss_bytes=side.peak_rss_bytes,
                    pair=pair,
                    caches="cold" if copies > 1 else "warm",
                )
            self._store(records[name])
        return records

    def _copies(self, config: AttentionConfig, facts: SuiteFacts) -> int:
        """Return the number of copies of Q, K and V that calls rotate through; 1 for modules, which make their own."""
        if self.settings.warm or facts.module:
            return 1
        return limits.cold_copies(config, self._cache_bytes, self._memory_bytes)

    def _store(self, record: Record) -> None:
        self._append(record)
        self._known[record.id] = record

    def _record(self, suite: str, config: AttentionConfig, backend: str, facts: SuiteFacts, **more: Any) -> Record:
        return Record(
            suite=suite,
            backend=backend,
            config=config.to_dict(),
            label=config.label,
            machine=self.machine,
            commit=self.commit,
            data=self.settings.data,
            seed=self.settings.seed,
            threads=self.settings.threads,
            ceilings=self.ceilings,
            option=facts.option,
            extra_flops=facts.extra_flops,
            extra_bytes=facts.extra_bytes,
            layers=facts.layers,
            host=self.host,
            **more,
        )

    def _problem(
        self, config: AttentionConfig, name: str, count: int, facts: SuiteFacts
    ) -> tuple[Literal["skipped", "failed"], str] | None:
        """Return why a backend is not measured on a config (a stand-in, too large, too slow, …), or None."""
        from rocattn.backends import BACKENDS

        backend = BACKENDS.get(name)
        try:
            answer = BACKENDS.supports(backend, config)
            if not answer:
                return "skipped", f"not supported: {answer.reason}"
            if backend.is_stand_in:
                return "skipped", "not timed: it runs on the stand-in GPU here, whose times mean nothing"
            copies = self._copies(config, facts)
            problem = memory_problem(config, backend, count, machine.available_memory_bytes(), copies)
        except Exception as error:  # noqa: BLE001 - a user's backend may raise anything: report it and continue
            return "failed", describe(error)
        calls = self.settings.launches * (2 + self.settings.min_samples) * count
        call_s = estimate_call_s(config, self.ceilings, facts.extra_flops, on_gpu=isinstance(backend, GpuBackend))
        problem = problem or time_problem(calls * call_s, self.settings.time_limit_s)
        return ("skipped", problem) if problem else None
