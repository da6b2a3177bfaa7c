"""The noise record: launch noise of earlier sessions on one machine, a file that the gate reads before measuring.

A session consists of launches of identical code, each stored only as its location (a low quantile of its samples).
The decision uses comparable sessions: same machine, benchmark, code version, Python and sampling. An unusable file
costs one message and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import machine_folder
from rocattn_profiling.base.files import (
    DocumentError,
    locked,
    of_other_schema,
    open_regular,
    result_folder,
    write_bytes,
    write_text,
)
from rocattn_profiling.base.journal import DamagedError, entry_of, line_of
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import (
    BenchmarkHistory,
    BenchmarkKey,
    EarlierNoise,
    KnownNoise,
    NoiseSource,
    PastSession,
    SessionResult,
)
from rocattn_profiling.gate.rule.constants import MIN_LAUNCHES, SESSIONS
from rocattn_profiling.gate.rule.launches import cpu_bound, locations
from rocattn_profiling.gate.rule.pairs import Pair, PairLaunch
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.measure.stats import low_quantile

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Request
    from rocattn_profiling.measure.records import Machine

SCHEMA = 1
FILE = "noise.json.rocattn"  # in the machine's folder of the asv store: a name that asv ignores
MOST_LAUNCHES = 40  # per session: both sides of twenty rounds
_MOST_BYTES = 64 << 20
_STALE_US = 180 * 86_400e6  # benchmarks not measured for this long are dropped
_DIGITS = 6
_SD_OF_MAD = 1.4826  # standard deviation of a normal distribution, in median absolute deviations


class NoiseError(RocattnError):
    """Raised if a file is not a noise record of this machine; the message is one line that names the file."""


class RecordedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a record: its name in asv's results, and what determines its speed and noise."""

    name: str
    cpu: str
    cores: int
    gpu: str = ""

    @property
    def title(self) -> str:
        """A description of the machine for messages."""
        gpu = f", {self.gpu}" if self.gpu else ""
        return f"{self.name} ({self.cpu}, {self.cores} cores{gpu})"


class NoiseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file's contents."""

    schema: int = SCHEMA
    machine: RecordedMachine
    benchmarks: list[BenchmarkHistory] = []


class Measurement(NamedTuple):
    """A benchmark's launches of identical code in the current session."""

    key: BenchmarkKey
    launches: Sequence[PairLaunch]


@dataclass(frozen=True, slots=True)
class NoiseHistory:
    """A run's access to the record: it reads its history there and, with ``--learn``, adds to it.

    Attributes:
        context: What is compared, and the run's options.
        request: How launches sample.
    """

    context: Context
    request: Request

    @property
    def path(self) -> Path:
        """The record's path: the one given, or else the default next to the machine's results."""
        if self.context.options.noise_file:
            return Path(self.context.options.noise_file).expanduser()
        return self.context.results / machine_folder(this_machine()) / FILE

    def known(self, cases: Sequence[Case]) -> EarlierNoise:
        """Return the cases' history; bad file contents do not raise."""
        path = None if self.context.options.no_noise else self.path
        pythons = {_short(facts.python) for facts in self.context.facts.values()}
        if path is not None and len(pythons) > 1:
            return EarlierNoise(source=NoiseSource(why_not="unknown: the sides run different versions of Python"))
        return known(path, this_machine(), [self._key(case) for case in cases])

    def learn(self, cases: Sequence[Case], measured: SessionResult) -> str:
        """Add the session's launches of identical code; return a line with what was added, or why nothing was."""
        if measured.decision.invalid:
            return f"noise: nothing learned from a session that does not count: {measured.decision.invalid}"
        path = self.path
        try:
            count = append(path, this_machine(), self._measurements(cases, measured))
            if count and not self.context.options.noise_file:
                _keep_out_of_git(path)
        except RocattnError as error:
            return f"noise: nothing learned: {error}"
        if not count:
            return "noise: nothing learned: no benchmark has launches that differ"
        return f"noise: learned from {count} benchmark{'' if count == 1 else 's'}: {path}"

    def _measurements(self, cases: Sequence[Case], measured: SessionResult) -> Iterator[Measurement]:
        keys = {case.label: self._key(case) for case in cases}
        for pair in measured.pairs:
            sides = {"base": pair.a, "head": pair.b}
            launches = [launch for side in self.context.options.unchanged_sides() for launch in sides[side].launches]
            yield Measurement(keys[pair.id], launches)

    def _key(self, case: Case) -> BenchmarkKey:
        return BenchmarkKey(
            label=case.label,
            version=case.benchmark.version,
            python=_short(self.context.facts["base"].python),
            sample_ns=self.request.sample_ns,
            budget_ns=self.request.budget_ns,
        )


def _keep_out_of_git(path: Path) -> None:
    """Add a git-ignore rule for a record next to results, so that it does not make the project's tree dirty."""
    ignore = path.with_name(".gitignore")
    if not ignore.exists():
        write_text(ignore, f"/{path.name}\n/{ignore.name}\n")


def _short(version: str) -> str:
    """Return the major and minor version: a patch release of Python does not change the noise."""
    return ".".join(version.split(".")[:2])


def recorded_machine(machine: Machine) -> RecordedMachine:
    """Return the machine in the record's format."""
    return RecordedMachine(name=machine.name, cpu=machine.cpu, cores=machine.cores, gpu=machine.gpu)


def read(path: Path, machine: Machine) -> NoiseRecord:
    """Read this machine's record.

    Raises:
        NoiseError: It cannot be read, is not a record of this schema, or belongs to another machine.
        FileNotFoundError: There is none.
    """
    try:
        with open_regular(path) as file:
            record = entry_of(file.read(_MOST_BYTES).strip(), NoiseRecord)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NoiseError(f"{path} cannot be read: {error.strerror}") from error
    except DamagedError as error:
        raise NoiseError(f"{path} is damaged: {error}; without it, the next run begins a new one") from error
    except DocumentError as error:
        raise NoiseError(f"{path} is not a noise record of rocattn gate") from error
    if record.schema != SCHEMA:
        raise NoiseError(of_other_schema(path, record.schema, SCHEMA))
    if not all(past.sessions and all(map(_is_sound, past.sessions)) for past in record.benchmarks):
        raise NoiseError(f"{path} contains numbers that are not times")
    if record.machine != (here := recorded_machine(machine)):
        raise NoiseError(f"{path} is from another machine, {terminal(record.machine.title, 200)}; this is {here.title}")
    return record


def known(path: Path | None, machine: Machine, keys: Iterable[BenchmarkKey]) -> EarlierNoise:
    """Return the history of these benchmarks; bad file contents do not raise.

    Args:
        path: The record; None to ignore it.
        machine: This machine.
        keys: The benchmarks about to be measured.
    """
    if path is None:
        return EarlierNoise(source=NoiseSource(why_not="left alone (--no-noise)"))
    try:
        record = read(path, machine)
    except FileNotFoundError:
        return EarlierNoise(source=NoiseSource(path=str(path), why_not=f"there is no record yet: {path}"))
    except NoiseError as error:
        return EarlierNoise(source=NoiseSource(path=str(path), why_not=str(error)))
    wanted = set(keys)
    return EarlierNoise(
        source=NoiseSource(path=str(path)), benchmarks=[past for past in record.benchmarks if past.key in wanted]
    )


def append(path: Path, machine: Machine, measured: Iterable[Measurement]) -> int:
    """Add a session to a record, which is created if it does not exist; return the number of benchmarks added.

    The file is read, changed and replaced under a lock. Adding the same session again (from a run that was stopped
    right afterwards) replaces it. A file that is not a record of this machine is not changed.

    Args:
        path: The record.
        machine: This machine.
        measured: Launches of identical code, by benchmark; skipped if there are too few or all are equal.

    Raises:
        NoiseError: As for `read`.
        RocattnError: The file cannot be written.
    """
    new = {m.key: session for m in measured if (session := session_of(m.launches)) is not None}
    if not new:
        return 0
    with ExitStack() as stack:
        try:
            # Do not hide the folder itself: the project may commit the machine's results.
            result_folder(path.parent, ignored=not path.parent.parent.exists())
            stack.enter_context(locked(path.with_name(f"{path.name}.lock")))
        except OSError as error:
            raise RocattnError(f"cannot write {path}: {error.strerror}") from error
        try:
            old = read(path, machine).benchmarks
        except FileNotFoundError:
            old = []
        record = NoiseRecord(machine=recorded_machine(machine), benchmarks=list(_merged(old, new)))
        write_bytes(path, line_of(record) + b"\n")
    return len(new)


def session_of(launches: Sequence[PairLaunch]) -> PastSession | None:
    """Return launches of identical code in stored form; None if they show no noise (too few, or all equal)."""
    launches = sorted(launches, key=lambda launch: launch.round)[:MOST_LAUNCHES]
    wall = [_rounded(low_quantile(launch.samples)) for launch in launches]
    if len(launches) < MIN_LAUNCHES or min(wall) <= 0 or len(set(wall)) == 1:
        return None
    cpu = [_rounded(low_quantile(launch.cpu)) for launch in launches if launch.cpu]
    canary = [_rounded(launch.canary) for launch in launches if launch.canary > 0]
    return PastSession(
        start_us=min(launch.start_us for launch in launches),
        samples=min(len(launch.samples) for launch in launches),
        wall=wall,
        cpu=cpu if len(cpu) == len(wall) and min(cpu) > 0 else [],
        canary=canary if len(canary) == len(wall) else [],
    )


def known_noise(pair: Pair) -> KnownNoise | None:
    """Return the noise in a pair's history, for the quantity that decides it; None without a history."""
    sessions = pair.a.history
    if not sessions:
        return None
    timed = cpu_bound(pair)[0] and all(launch.cpu for session in sessions for launch in session)
    by_session = [locations(session, "cpu" if timed else "samples") for session in sessions]
    deviations = np.concatenate([np.abs(x - np.median(x)) for x in by_session])
    value = _SD_OF_MAD * float(np.median(deviations))
    return KnownNoise(sessions=len(sessions), launches=len(deviations), value=value)


def _merged(old: Sequence[BenchmarkHistory], new: dict[BenchmarkKey, PastSession]) -> Iterator[BenchmarkHistory]:
    """Yield the old histories with the new session appended; a new code version replaces its benchmark's history."""
    now = max(session.start_us for session in new.values())
    for past in old:
        if past.key in new:
            session = new[past.key]
            earlier = [other for other in past.sessions if other.start_us != session.start_us]
            sessions = sorted([*earlier, session], key=lambda other: other.start_us)[-SESSIONS:]
            yield BenchmarkHistory(key=past.key, sessions=sessions)
        elif not any(_replaces(key, past.key) for key in new) and now - past.sessions[-1].start_us < _STALE_US:
            yield past
    before = {past.key for past in old}
    yield from (BenchmarkHistory(key=key, sessions=[session]) for key, session in new.items() if key not in before)


def _replaces(new: BenchmarkKey, old: BenchmarkKey) -> bool:
    return msgspec.structs.replace(new, version=old.version) == old


def _is_sound(session: PastSession) -> bool:
    """Whether a session's numbers are plausible launches."""
    columns = [column for column in (session.cpu, session.canary) if column]
    numbers = [*session.wall, *(value for column in columns for value in column)]
    alike = bool(session.wall) and all(len(column) == len(session.wall) for column in columns)
    return alike and session.samples > 0 and all(0 < value < 1e30 for value in numbers)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
