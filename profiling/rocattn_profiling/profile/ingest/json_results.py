"""Readers of JSON: rocprofv3's ``*_results.json`` and the Chrome trace of rocprof v1.

``*_results.json`` has an element per process and a record per counter instance. Only the fields that the tables need
are decoded; the environment in the file is never read. The Chrome trace, written with ``--hip-trace``, is the only
file of such a run with kernel times.
"""

from __future__ import annotations

import math
import mmap
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rocattn_profiling.profile.ingest.copies import MemoryCopy, copies_of
from rocattn_profiling.profile.ingest.csv_text import GZIP, Utf8
from rocattn_profiling.profile.ingest.instances import combine
from rocattn_profiling.profile.ingest.parts import (
    ABORTED,
    MISSING,
    NO_DISPATCHES,
    NO_VALUE,
    REPORT_IT,
    Activity,
    FilePart,
    Notes,
    UnreadableError,
    Vocabulary,
    activity_frame,
    agent_frame,
    dispatch_frame,
    kernel_name,
    one_pass,
)
from rocattn_profiling.profile.ingest.pc_samples import (
    IndexedSample,
    KernelStart,
    LoadedObject,
    SampleRows,
    SampleStrings,
    add_records,
    entries_of,
)
from rocattn_profiling.profile.ingest.small_csv import agent_of, whole
from rocattn_profiling.profile.ingest.table import COPY, HOST_TRAP, STOCHASTIC

LARGEST_BYTES = 1 << 30  # decoding takes several times the file's size in memory
# A string, or one of the words outside a string.
_WORDS = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?\b(?:NaN|Inf(?:inity)?)\b', re.DOTALL)


class Handle(msgspec.Struct):
    """An identifier."""

    handle: int = -1


class Sizes(msgspec.Struct):
    """Work-items in three dimensions."""

    x: int = 1
    y: int = 1
    z: int = 1

    def product(self) -> int:
        """Return the number of work-items, or `MISSING` if a size is invalid."""
        total = self.x * self.y * self.z
        return total if min(self.x, self.y, self.z) >= 0 and total < 2**62 else MISSING


class DispatchInfo(msgspec.Struct):
    """A kernel dispatch."""

    dispatch_id: int
    kernel_id: int
    agent_id: Handle = msgspec.field(default_factory=Handle)
    queue_id: Handle = msgspec.field(default_factory=Handle)
    private_segment_size: int = MISSING
    group_segment_size: int = MISSING
    workgroup_size: Sizes = msgspec.field(default_factory=Sizes)
    grid_size: Sizes = msgspec.field(default_factory=Sizes)


class Dispatch(msgspec.Struct):
    """A kernel dispatch with its times."""

    dispatch_info: DispatchInfo
    start_timestamp: int = MISSING
    end_timestamp: int = MISSING


class CounterRecord(msgspec.Struct):
    """One value of one counter instance."""

    counter_id: Handle
    value: float | None


class CounterCollection(msgspec.Struct):
    """The counters of one dispatch."""

    dispatch_data: Dispatch
    records: list[CounterRecord] = []
    arch_vgpr_count: int = MISSING
    accum_vgpr_count: int = MISSING
    sgpr_count: int = MISSING
    lds_block_size_v: int = MISSING


class KernelSymbol(KernelStart):
    """A kernel."""

    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: int = MISSING
    accum_vgpr_count: int = MISSING
    sgpr_count: int = MISSING


class Counter(msgspec.Struct):
    """A counter's name."""

    id: Handle
    name: str = ""


class Callbacks(msgspec.Struct):
    """Records collected in callbacks."""

    counter_collection: list[CounterCollection] = []


class Buffers(msgspec.Struct):
    """Records collected in buffers."""

    kernel_dispatch: list[Dispatch] = []
    counter_collection: list[CounterCollection] = []
    memory_copy: list[MemoryCopy] = []
    pc_sample_host_trap: list[IndexedSample] = []
    pc_sample_stochastic: list[IndexedSample] = []


class Metadata(msgspec.Struct):
    """The process."""

    pid: int = -1
    command: list[str] | str = ""


class Process(msgspec.Struct):
    """All data of one process."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    agents: list[dict[str, Any]] = []
    counters: list[Counter] = []
    kernel_symbols: list[KernelSymbol] = []
    code_objects: list[LoadedObject] = []
    strings: SampleStrings = msgspec.field(default_factory=SampleStrings)
    callback_records: Callbacks = msgspec.field(default_factory=Callbacks)
    buffer_records: Buffers = msgspec.field(default_factory=Buffers)


class Document(msgspec.Struct, rename={"processes": "rocprofiler-sdk-tool"}):
    """The file."""

    processes: list[Process]


def decode(path: Path, kind: type[Any]) -> Any:
    """Decode a JSON file as the given type.

    Raises:
        UnreadableError: When it is too large, truncated, not JSON, or of another type.
    """
    with path.open("rb") as file, ExitStack() as opened:
        data: bytes | mmap.mmap
        if file.read(2) == GZIP:
            stream = Utf8(path)
            opened.callback(stream.close)
            data = stream.read(LARGEST_BYTES + 1)
            size = len(data)
        else:
            size = file.seek(0, 2)
            data = b"" if size > LARGEST_BYTES else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if size > LARGEST_BYTES:
            raise UnreadableError("larger than 1 GiB", "have the profiler write CSV or rocpd: -f csv rocpd")
        if isinstance(data, mmap.mmap):
            opened.enter_context(data)
        try:
            return _decoded(data, kind)
        except msgspec.ValidationError as error:
            raise UnreadableError(f"not the JSON it looks like ({error})", REPORT_IT) from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise UnreadableError(f"the JSON is broken or cut off ({error})", ABORTED) from error


def _decoded(data: bytes | mmap.mmap, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):  # names may contain any bytes of the code object
        text = data[:].decode(errors="replace").encode()
        return msgspec.json.decode(with_null(text), type=kind, strict=False)


def read_json(path: Path, part: FilePart) -> FilePart:
    """Read a ``*_results.json`` of rocprofv3."""
    document = decode(path, Document)
    notes = Notes(part.source.file)
    table = _Table(notes)
    for process in document.processes:
        table.take(process)
        if process.metadata.command:
            command = process.metadata.command
            part.system["command"] = command if isinstance(command, str) else " ".join(command)
    part.agents = agent_frame(table.agents, part.source.file)
    table.fill(part)
    part.problems += notes.problems()
    return part


_COLUMNS = (
    "process", "dispatch", "kernel", "grid", "block", "lds_bytes", "scratch_bytes", "vgprs", "agprs", "sgprs",
    "start_ns", "end_ns", "queue", "agent",
)  # fmt: skip


class _Table:
    def __init__(self, notes: Notes) -> None:
        self.agents: list[dict[str, Any]] = []
        self._notes = notes
        self._kernels, self._counters = Vocabulary(kernel_name), Vocabulary()
        self._dispatches: list[tuple[int, ...]] = []
        self._values: list[tuple[int, int, float]] = []
        self._samples = SampleRows()
        self._copies: list[Activity] = []

    def take(self, process: Process) -> None:
        """Add one process."""
        numbers = {}
        for agent in process.agents:
            own = agent.get("id")
            handle = own.get("handle") if isinstance(own, dict) else None
            row = agent_of(agent)
            if isinstance(handle, int):
                numbers[handle] = MISSING if row["number"] is None else row["number"]
            if agent.get("type") in (2, "GPU"):  # rocprofiler_agent_type_t: 1 is a CPU, 2 a GPU
                self.agents.append(row)
        symbols = {
            symbol.kernel_id if symbol.kernel_id >= 0 else i: symbol for i, symbol in enumerate(process.kernel_symbols)
        }
        names = {counter.id.handle: counter.name for counter in process.counters}
        rows: dict[int, int] = {}
        for held in (process.callback_records.counter_collection, process.buffer_records.counter_collection):
            for collection in held:
                info = collection.dispatch_data.dispatch_info
                rows[info.dispatch_id] = len(self._dispatches)
                self._add(process, collection.dispatch_data, collection, symbols.get(info.kernel_id), numbers)
                self._take_values(collection, names, rows[info.dispatch_id])
        for dispatch in process.buffer_records.kernel_dispatch:
            if dispatch.dispatch_info.dispatch_id not in rows:
                symbol = symbols.get(dispatch.dispatch_info.kernel_id)
                self._add(process, dispatch, None, symbol, numbers)
        self._take_samples(process, symbols)
        self._copies += copies_of(process.buffer_records.memory_copy, process.metadata.pid, numbers)

    def _take_samples(self, process: Process, symbols: dict[int, KernelSymbol]) -> None:
        buffers = process.buffer_records
        launched = [each.dispatch_info for each in buffers.kernel_dispatch]
        for held in (process.callback_records.counter_collection, buffers.counter_collection):
            launched += [each.dispatch_data.dispatch_info for each in held]
        named = {
            info.dispatch_id: kernel_name(_name_of(symbols[info.kernel_id]))
            for info in launched if info.kernel_id in symbols
        }  # fmt: skip
        entries = entries_of(process.code_objects, [(each, _name_of(each)) for each in symbols.values()])
        records = {HOST_TRAP: buffers.pc_sample_host_trap, STOCHASTIC: buffers.pc_sample_stochastic}
        add_records(self._samples, records, process.strings, process.metadata.pid, named, entries)

    def _add(
        self, process: Process, dispatch: Dispatch, collection: CounterCollection | None, symbol: KernelSymbol | None,
        numbers: dict[Any, int],
    ) -> None:  # fmt: skip
        info = dispatch.dispatch_info
        if symbol is None:
            self._notes.add(
                "{n} [dispatch of a kernel|dispatches of kernels] that the file does not name",
                "shown by [its|their] kernel number",
            )
            symbol = KernelSymbol(formatted_kernel_name=f"kernel {info.kernel_id}")
        name = _name_of(symbol)
        stated: CounterCollection | KernelSymbol = (
            symbol if collection is None or collection.arch_vgpr_count == MISSING else collection
        )
        lds = info.group_segment_size
        if collection is not None and collection.lds_block_size_v != MISSING:
            lds = collection.lds_block_size_v
        agprs = stated.accum_vgpr_count if stated.accum_vgpr_count != MISSING else symbol.accum_vgpr_count
        row = (
            process.metadata.pid, info.dispatch_id, self._kernels.code(name), info.grid_size.product(),
            info.workgroup_size.product(), lds, info.private_segment_size, stated.arch_vgpr_count, agprs,
            stated.sgpr_count, dispatch.start_timestamp, dispatch.end_timestamp, info.queue_id.handle,
            numbers.get(info.agent_id.handle, MISSING),
        )  # fmt: skip
        self._dispatches.append(tuple(value if -(2**63) <= value < 2**63 else MISSING for value in row))

    def _take_values(self, collection: CounterCollection, names: dict[int, str], row: int) -> None:
        for record in collection.records:
            name = names.get(record.counter_id.handle)
            if name is None:
                self._notes.add("{n} [value of a counter|values of counters] that the file does not name", "dropped")
            else:
                value = math.nan if record.value is None else record.value
                self._values.append((row, self._counters.code(name), value))

    def fill(self, part: FilePart) -> None:
        """Fill the part."""
        part.samples = self._samples.frame(part.pass_label)
        part.activities = activity_frame(self._copies, part.pass_label, self._notes)
        if not self._dispatches and len(part.samples):
            return
        if not self._dispatches:
            part.skip(NO_DISPATCHES)
            return
        columns: dict[str, Any] = dict(zip(_COLUMNS, np.array(self._dispatches, np.int64).T, strict=True))
        self._kernels.note_broken(self._notes)
        columns["kernel"] = self._kernels.categorical(columns["kernel"])
        columns["pass"] = one_pass(part.pass_label, len(self._dispatches))
        part.dispatches = dispatch_frame(columns, len(self._dispatches))
        if self._values:
            row, code, value = (np.array(column) for column in zip(*self._values, strict=True))
            names = list(self._counters.codes)
            unread = Notes("")  # several records per counter are normal in this format
            frames = combine(row.astype(np.int32), code, value.astype(np.float64), names, unread)
            known = frames[0]["value"].notna()  # a sum over an unknown instance is unknown
            self._notes.add(NO_VALUE, "treated as not measured", count=int((~known).sum()))
            part.counters = frames[0][known].reset_index(drop=True)
            part.instances = frames[1][frames[1]["max"].notna()].reset_index(drop=True)


def _name_of(symbol: KernelSymbol) -> str:
    return symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name


class ChromeEvent(msgspec.Struct):
    """One trace event; numbers are text in these files."""

    ph: str = ""
    pid: int | str = ""
    name: str = ""
    args: dict[str, Any] = {}


class ChromeTrace(msgspec.Struct):
    """The file."""

    traceEvents: list[ChromeEvent]  # noqa: N815 - the format's own name


def read_chrome_trace(path: Path, part: FilePart) -> FilePart:
    """Read the kernels of a rocprof v1 ``results.json``: name, times, queue and device, no sizes."""
    trace: ChromeTrace = decode(path, ChromeTrace)
    named = {
        str(event.pid): str(event.args.get("name", "")) for event in trace.traceEvents
        if event.ph == "M" and event.name == "process_name"
    }  # fmt: skip
    notes = Notes(part.source.file)
    kernels = Vocabulary(kernel_name)
    rows = []
    copies: list[Activity] = []
    for event in trace.traceEvents:
        track = named.get(str(event.pid), "")
        if event.ph != "X" or not (track.startswith("GPU") or track == "COPY"):
            continue
        start, end = _nanoseconds(event.args.get("BeginNs")), _nanoseconds(event.args.get("EndNs"))
        if MISSING in {start, end}:
            notes.add("{n} [kernel or copy|kernels or copies] without BeginNs and EndNs", "dropped")
            continue
        device, queue, process = (whole(str(event.args.get(name, ""))) for name in ("dev-id", "queue-id", "pid"))
        name = str(event.args.get("Name") or event.name)
        if track == "COPY":
            owner = (-1 if process is None else process, MISSING if device is None else device)
            copies.append((*owner, COPY, name, start, end, MISSING))
            continue
        rows.append((kernels.code(name), start, end, device, queue, -1 if process is None else process))
    part.activities = activity_frame(copies, part.pass_label, notes)
    part.problems += notes.problems()
    if not rows:
        return part.skip("its trace contains no kernels")
    rows.sort(key=lambda row: row[1])
    table = np.array([[MISSING if value is None else value for value in row] for row in rows], np.int64)
    columns: dict[str, Any] = dict(
        zip(("kernel", "start_ns", "end_ns", "agent", "queue", "process"), table.T, strict=True)
    )
    columns["kernel"] = kernels.categorical(columns["kernel"])
    columns["dispatch"] = np.arange(1, len(rows) + 1)
    columns["pass"] = one_pass(part.pass_label, len(rows))
    part.dispatches = dispatch_frame(columns, len(rows))
    part.numbered, part.timing = False, True
    return part


def _nanoseconds(text: object) -> int:
    digits = str(text)
    return int(digits) if digits.isdecimal() and len(digits) < 19 else MISSING


def with_null(data: bytes) -> bytes:
    """Replace NaN and infinities with null: Python's json, rapidjson and rocprofv3 write them, but JSON has none."""
    if b"NaN" not in data and b"Inf" not in data:
        return data
    return _WORDS.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", data)
