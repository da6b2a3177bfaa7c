"""What earlier sessions showed of each benchmark's noise on one machine: a file that the gate reads before it measures.

A session is the launches of identical code, each by its location (the low end of its samples) alone. The decision
hears of those that are comparable: same machine, benchmark and version of its code, Python and way of sampling. A file
that cannot be used costs one line and nothing else.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import locked, open_regular, write_bytes
from rocattn_profiling.gate.rule.constants import LOW_QUANTILE, MIN_LAUNCHES, SESSIONS
from rocattn_profiling.gate.rule.launches import cpu_bound, locations
from rocattn_profiling.gate.rule.pairs import Count, Number, PairLaunch
from rocattn_profiling.measure.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rocattn_profiling.gate.rule.pairs import Pair
    from rocattn_profiling.measure.records import Machine

SCHEMA = 1
FILE = "noise.json.rocattn"  # in the machine's folder of the asv store: a name that asv passes over
MOST_LAUNCHES = 40  # of a session: both sides of twenty rounds
_MOST_BYTES = 64 << 20
_STALE_US = 180 * 86_400e6  # a benchmark that was not measured for so long is forgotten
_LIKE = 3  # times as many samples are still comparable: a busy machine takes 4 where a quiet one takes 12
_DIGITS = 6
_NORMAL = 1.4826  # median absolute deviation -> standard deviation


class NoiseError(RocattnError):
    """Raised when a file is no noise record of this machine; one line that names it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a record is of: the name of its results, and what makes it as fast and as noisy as it is."""

    name: str
    cpu: str
    cores: int
    gpu: str = ""

    @property
    def title(self) -> str:
        """What a reader knows it by."""
        gpu = f", {self.gpu}" if self.gpu else ""
        return f"{self.name} ({self.cpu}, {self.cores} cores{gpu})"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What makes launches comparable beside the machine.

    Attributes:
        label: The benchmark with its parameters.
        version: Of its code, by asv; another version begins anew.
        python: Major and minor version of the interpreter.
        sample_ns, budget_ns: The sampling asked for: quick and full runs differ in it.
    """

    label: str
    version: str
    python: str
    sample_ns: int
    budget_ns: int


class PastSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Launches of identical code, side by side in time.

    Attributes:
        start_us: Unix time of the first, in microseconds: what tells a session from another.
        samples: How many samples a launch had.
        wall: Location of each launch by wall time (or its value), in the benchmark's unit.
        cpu: The same by CPU time; empty when unknown.
        canary: Time of the fixed work in each launch, in ns; empty when unknown.
    """

    start_us: float
    samples: int
    wall: list[float]
    cpu: list[float] = []
    canary: list[float] = []

    def launches(self) -> list[PairLaunch]:
        """Return the launches as a pair's history has them."""
        columns = zip(self.wall, self.cpu or [0.0] * len(self.wall), self.canary or [0.0] * len(self.wall), strict=True)
        return [
            PairLaunch(round=place, samples=[wall], cpu=[cpu] if self.cpu else [], canary=canary)
            for place, (wall, cpu, canary) in enumerate(columns)
        ]


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one benchmark, the newest last."""

    key: Key
    sessions: list[PastSession]


class NoiseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: int = SCHEMA
    machine: Place
    benchmarks: list[Past] = []


class NoiseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's knowledge of earlier noise came from.

    Attributes:
        path: The record; "" when none was to be read.
        why_not: Why nothing is known, one line; "" when it was read.
    """

    path: str = ""
    why_not: str = ""


class KnownNoise(msgspec.Struct, frozen=True, kw_only=True):
    """What was known of one benchmark before it was measured.

    Attributes:
        sessions, launches: How many.
        value: Typical distance of a launch from the median of its session, as a standard deviation in logs.
    """

    sessions: Count
    launches: Count
    value: Number


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a run began with; kept with its launches, so that a resumed run decides as an uninterrupted one."""

    source: NoiseSource = NoiseSource()
    benchmarks: list[Past] = []

    def history(self, label: str, samples: int) -> list[list[PairLaunch]]:
        """Return the sessions of a benchmark whose launches had about as many samples, the newest last."""
        found = (session for past in self.benchmarks if past.key.label == label for session in past.sessions)
        return [s.launches() for s in found if max(s.samples, samples) <= _LIKE * min(s.samples, samples)]


class Measurement(NamedTuple):
    """A benchmark's launches of identical code in the session at hand."""

    key: Key
    launches: Sequence[PairLaunch]


def place_of(machine: Machine) -> Place:
    """Return what of a machine a record is kept for."""
    return Place(name=machine.name, cpu=machine.cpu, cores=machine.cores, gpu=machine.gpu)


def read(path: Path, machine: Machine) -> NoiseRecord:
    """Read the record of this machine.

    Raises:
        NoiseError: When it cannot be read, is no record of this schema, or another machine's.
        FileNotFoundError: When there is none.
    """
    try:
        with open_regular(path) as file:
            record = msgspec.json.decode(file.read(_MOST_BYTES), type=NoiseRecord)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NoiseError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoiseError(f"{path} is no noise record of rocattn gate") from error
    if record.schema != SCHEMA:
        raise NoiseError(f"{path} has schema {record.schema}; this rocattn reads {SCHEMA}")
    if not all(past.sessions and all(map(_is_sound, past.sessions)) for past in record.benchmarks):
        raise NoiseError(f"{path} holds numbers that are no times")
    if record.machine != (here := place_of(machine)):
        raise NoiseError(f"{path} is of another machine, {record.machine.title}; this is {here.title}")
    return record


def known(path: Path | None, machine: Machine, keys: Iterable[Key]) -> Known:
    """Return what a record tells of these benchmarks; never raises for what is in the file.

    Args:
        path: The record; None when it is to be left alone.
        machine: This one.
        keys: The benchmarks about to be measured.
    """
    if path is None:
        return Known(source=NoiseSource(why_not="left alone (--no-noise)"))
    try:
        record = read(path, machine)
    except FileNotFoundError:
        return Known(source=NoiseSource(path=str(path), why_not=f"there is no record yet: {path}"))
    except NoiseError as error:
        return Known(source=NoiseSource(path=str(path), why_not=str(error)))
    wanted = set(keys)
    return Known(
        source=NoiseSource(path=str(path)), benchmarks=[past for past in record.benchmarks if past.key in wanted]
    )


def append(path: Path, machine: Machine, measured: Iterable[Measurement]) -> int:
    """Add a session to a record, making it where there is none; return how many benchmarks it has launches of.

    The file is read, changed and replaced under a lock. The same session again (of a run that was stopped right after
    it) replaces itself. What is no record of this machine is left as it is.

    Args:
        path: The record.
        machine: This one.
        measured: A benchmark's launches of identical code each; those that tell nothing of noise are passed over.

    Raises:
        NoiseError: As `read`.
        RocattnError: When the folder or disk does not take it.
    """
    new = {m.key: session for m in measured if (session := session_of(m.launches)) is not None}
    if not new:
        return 0
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_name(f"{path.name}.lock"), wait=True))
        except OSError as error:
            raise RocattnError(f"cannot write {path}: {error.strerror}") from error
        try:
            old = read(path, machine).benchmarks
        except FileNotFoundError:
            old = []
        record = NoiseRecord(machine=place_of(machine), benchmarks=list(_joined(old, new)))
        write_bytes(path, msgspec.json.encode(record) + b"\n")
    return len(new)


def session_of(launches: Sequence[PairLaunch]) -> PastSession | None:
    """Return launches of identical code as they are kept; None where they say nothing of noise (few, or all alike)."""
    launches = sorted(launches, key=lambda launch: launch.round)[:MOST_LAUNCHES]
    wall = [_rounded(quantile(launch.samples, LOW_QUANTILE)) for launch in launches]
    if len(launches) < MIN_LAUNCHES or min(wall) <= 0 or len(set(wall)) == 1:
        return None
    cpu = [_rounded(quantile(launch.cpu, LOW_QUANTILE)) for launch in launches if launch.cpu]
    canary = [_rounded(launch.canary) for launch in launches if launch.canary > 0]
    return PastSession(
        start_us=min(launch.start_us for launch in launches),
        samples=min(len(launch.samples) for launch in launches),
        wall=wall,
        cpu=cpu if len(cpu) == len(wall) and min(cpu) > 0 else [],
        canary=canary if len(canary) == len(wall) else [],
    )


def known_noise(pair: Pair) -> KnownNoise | None:
    """Return what was known of a pair's noise beforehand, in the quantity that decides it; None without a history."""
    sessions = pair.a.history
    if not sessions:
        return None
    timed = cpu_bound(pair)[0] and all(launch.cpu for session in sessions for launch in session)
    places = [locations(session, "cpu" if timed else "samples") for session in sessions]
    away = np.concatenate([np.abs(at - np.median(at)) for at in places])
    return KnownNoise(sessions=len(sessions), launches=len(away), value=_NORMAL * float(np.median(away)))


def _joined(old: Sequence[Past], new: dict[Key, PastSession]) -> Iterator[Past]:
    """Yield what is kept of the old, with the new at its end; another version of a benchmark takes its place."""
    now = max(session.start_us for session in new.values())
    for past in old:
        if past.key in new:
            session = new[past.key]
            earlier = [one for one in past.sessions if one.start_us != session.start_us]
            yield Past(key=past.key, sessions=sorted([*earlier, session], key=lambda one: one.start_us)[-SESSIONS:])
        elif not any(_replaces(key, past.key) for key in new) and now - past.sessions[-1].start_us < _STALE_US:
            yield past
    known_before = {past.key for past in old}
    yield from (Past(key=key, sessions=[session]) for key, session in new.items() if key not in known_before)


def _replaces(new: Key, old: Key) -> bool:
    return msgspec.structs.replace(new, version=old.version) == old


def _is_sound(session: PastSession) -> bool:
    """Whether a session's numbers can be taken for launches."""
    columns = [column for column in (session.cpu, session.canary) if column]
    numbers = [*session.wall, *(value for column in columns for value in column)]
    alike = bool(session.wall) and all(len(column) == len(session.wall) for column in columns)
    return alike and session.samples > 0 and all(0 < value < 1e30 for value in numbers)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
