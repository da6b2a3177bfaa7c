"""Records: each is one measurement, with what and where, raw samples, and whether its output was correct.

Records are stored one per line (JSON Lines) and never rewritten: a file that a kill truncated in the middle of a line
loses only that line. Values derived from samples (means, percentiles, TFLOP/s) are computed in
`rocattn_profiling.measure.stats`, not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError, RocattnError
from rocattn_profiling.base.files import DocumentError, of_other_schema
from rocattn_profiling.base.journal import DamagedError, append_entry, entry_of
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.base.reasons import Coverage, Reason, counted

SCHEMA = 1
Status = Literal["measured", "skipped", "failed"]
"""Measured, left out on purpose, or failed because the backend crashed or raised."""
_LONGEST_NS = 1e18  # 31 years; times must also be above 0, since rates are work over time
_LARGEST = 1e300  # stands for inf, which JSON lacks


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one process launch.

    Attributes:
        start_ns: Unix time at which the process began to sample.
        pos: Position among the launches of the same measurement, from 0.
        number: Calls timed together in one sample; samples are already divided by it.
        samples_ns: Wall time per call for each sample, in the order taken.
        cpu_ns: CPU time of the process for the same samples (all threads); may be empty.
        nivcsw: Involuntary context switches during each sample; may be empty.
        load: 1-minute load average at the start of the launch.
        host_ns: Host time of an asynchronous call with arrays on the GPU; 0 if not measured.
        kernels_ns: GPU time of the call's kernels.
    """

    start_ns: int
    pos: int
    number: int
    samples_ns: list[Annotated[float, msgspec.Meta(gt=0, le=_LONGEST_NS)]]
    cpu_ns: list[float] = []
    nivcsw: list[int] = []
    load: float = 0.0
    host_ns: float = 0.0
    kernels_ns: float = 0.0


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of the output with float64 (rule: error <= factor x the error of a naive program in the dtype).

    Attributes:
        ok: Whether the error is within the rule (ratio <= 1), and no input was modified.
        max_abs_error, max_rel_error, rms_error: Against the float64 result; rel is max_abs over the largest |result|.
        naive_max_abs_error: max_abs_error of the naive program in the same dtype.
        factor: The rule's factor (2 for outputs, 3 for gradients).
        rows_checked, rows: Number of query rows compared, and in total; large outputs are sampled.
        what: The tensor with the worst error: "out", "lse", "dq", "dk" or "dv".
        ratio: The largest ratio of that error to the allowed one.
        written: Inputs that the backend wrote into.
    """

    ok: bool
    max_abs_error: float
    max_rel_error: float
    rms_error: float
    naive_max_abs_error: float
    factor: float
    rows_checked: int
    rows: int
    what: str = "out"
    ratio: float = 0.0
    written: tuple[str, ...] = ()

    @property
    def not_finite(self) -> bool:
        """Whether there is NaN or inf where float64 has none, or vice versa; the error is then NaN."""
        return self.max_abs_error > _LARGEST


def written_into(names: Iterable[str]) -> str:
    """Return the error message for a backend that modified these arrays."""
    return f"the backend wrote into {', '.join(names)}, which it is given to read"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record was measured: facts that rarely change. ``compiler`` is the CPU kernels', with their ISA."""

    name: str
    cpu: str
    cores: Annotated[int, msgspec.Meta(ge=0)]
    memory_bytes: int
    os: str
    python: str
    numpy: str
    blas: str = ""
    compiler: str = ""
    gpu: str = ""
    gfx: str = ""
    driver: str = ""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Which code was measured; ``dirty`` if the working tree differed from the commit."""

    sha: str
    date_ms: int
    subject: str = ""
    dirty: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one backend on one config.

    Attributes:
        suite: The grid it belongs to ("inference", "decode", …).
        backend: The backend's name.
        config: `AttentionConfig.to_dict` of what ran.
        label: `AttentionConfig.label`, for display.
        data: How inputs were made: "normal" or "trig", with ``seed``.
        threads: Maximum number of BLAS and kernel threads.
        status: Whether it was measured, left out on purpose (memory, time, support), or the backend crashed or raised.
        launches: Raw samples per process launch; empty unless measured.
        check: The comparison with float64; None unless measured.
        peak_rss_bytes: Largest resident set of a launch (the whole process).
        ceilings: This machine's limits measured in the same run: ``gemm_tflops``, ``memory_gbps``; also ``disturbed``
            if other processes kept them low.
        skipped: Why it was skipped or failed, with the size that did not fit; empty if it was measured.
        pair: Identifies records measured interleaved in the same launches; they may be compared sample by sample.
        option: The option that selects it, if the suite is not a grid: ``--modules gemma``.
        extra_flops, extra_bytes: Work timed in addition to the config's attention: a module's projections.
        layers: How many layers of the model have this config, if the suite is a model; otherwise 0.
        host: The node's name, if a fleet's job measured it; see `Place`.
        caches: "cold" if calls cycled through copies of Q, K and V that together exceed every cache, as each layer of a
            model has its own keys and values; "warm" if each call read the same arrays.
    """

    schema: int = SCHEMA
    suite: str
    backend: str
    config: dict[str, Any]
    label: str
    machine: Machine
    commit: Commit | None
    data: str = "normal"
    seed: int = 0
    threads: int = 0
    status: Status = "measured"
    launches: list[Launch] = []
    check: Check | None = None
    peak_rss_bytes: int = 0
    ceilings: dict[str, float] = {}
    skipped: str = ""
    pair: str = ""
    option: str = ""
    extra_flops: int = 0
    extra_bytes: int = 0
    layers: int = 0
    host: str = ""
    caches: Literal["warm", "cold"] = "warm"

    def __post_init__(self) -> None:
        """Reject a status that its reason contradicts.

        Raises:
            ValueError: A measured record has a reason, or another one has none.
        """
        if (self.status == "measured") == bool(self.skipped):
            raise ValueError(f"status {self.status!r} contradicts skipped {self.skipped!r}")

    @property
    def why_not(self) -> str:
        """Why there are no samples, for display; empty if there are."""
        if self.status == "failed":
            return f"failed: {self.skipped}"
        return self.skipped or ("" if self.launches else "nothing was measured")

    @property
    def id(self) -> str:
        """Identifies the measurement: suite, backend and config."""
        return f"{self.suite}/{self.backend}/{self.label}"


def append_record(path: Path, record: Record) -> None:
    """Append one record and force it to disk.

    Raises:
        RocattnError: The file cannot be written; the message names the file and the cause.
    """
    append_entry(path, record)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records in a file, skipping a line that a kill truncated.

    Raises:
        RocattnError: The file is missing, or a complete line is not a record of this schema.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RocattnError(f"cannot read records from {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = entry_of(line, Record)
        except DocumentError as error:
            if isinstance(error, DamagedError):
                raise RocattnError(f"{path}:{number} is damaged: {error}") from error
            if isinstance(error.__cause__, msgspec.ValidationError):
                raise RocattnError(f"{path}:{number} is not a rocattn record: {error}") from error
            if line.startswith(b"{"):  # a truncated record
                continue
            raise RocattnError(f"{path}:{number} is not a record: is this the right file?") from None
        if record.schema != SCHEMA:
            other = of_other_schema(f"{path}:{number}", record.schema, SCHEMA)
            raise RocattnError(f"{other}: use the one that wrote it")
        try:
            AttentionConfig.from_dict(record.config)
        except ConfigError as error:
            raise RocattnError(f"{path}:{number} is not a rocattn record: {terminal(str(error), 300)}") from error
        yield record


def coverage_of(records: Iterable[Record]) -> Coverage:
    """Return how many records are measurements, and why others are not; a failed backend counts as a needed gap."""
    records = list(records)
    left_out = {
        status: counted(
            [(f"# problem on {record.backend}", f"# problems on {record.backend}", Reason(status, record.skipped))
             for record in records if record.status == status],
            needed=status == "failed",
        )
        for status in ("failed", "skipped")
    }  # fmt: skip
    return Coverage(
        compared=sum(bool(record.launches) for record in records), not_compared=sum(left_out.values(), start=())
    )


def to_builtins(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return records as JSON-ready values."""
    return [msgspec.to_builtins(record) for record in records]


class Place(NamedTuple):
    """Where records were measured: a machine with its software and, on a fleet, the node's host name.

    Numbers from two places are never compared. Two nodes of the same type are two places: clocks, cooling and other
    tenants can differ by more than many a speed-up.
    """

    machine: Machine
    host: str

    @property
    def name(self) -> str:
        """The machine's name and, on a fleet, the node's."""
        return f"{self.machine.name} ({self.host})" if self.host else self.machine.name


def place_of(record: Record) -> Place:
    """Return where a record was measured."""
    return Place(record.machine, record.host)


def by_place(records: Iterable[Record]) -> dict[Place, list[Record]]:
    """Group records by where they were measured, in order of first appearance."""
    members: dict[Place, list[Record]] = {}
    for record in records:
        members.setdefault(place_of(record), []).append(record)
    return members


def place_names(places: Iterable[Place]) -> dict[Place, str]:
    """Return a unique name for each place; equal names get the facts that differ appended."""
    places = list(dict.fromkeys(places))
    alike: dict[str, list[Place]] = {}
    for place in places:
        alike.setdefault(place.name, []).append(place)
    names = {}
    for name, members in alike.items():
        facts = {place: msgspec.to_builtins(place.machine) for place in members}
        differing = [key for key in Machine.__struct_fields__ if len({of[key] for of in facts.values()}) > 1]
        for place, of in facts.items():
            names[place] = ", ".join([name, *(f"{key} {of[key] or 'none'}" for key in differing)])
    return {place: names[place] for place in places}
