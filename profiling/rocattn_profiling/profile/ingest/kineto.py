"""Read PyTorch profiler traces (Kineto) from ROCm: kernels with times, sizes and GPU.

The trace is JSON with an array of events, a few percent of them GPU events. Files have gigabytes, so the array is
decoded piece by piece, whatever precedes and follows it (PyTorch writes it in the middle, tools that rewrite traces
put it first or last).

ROCm's Kineto writes the launch arguments as sizes: blocks for hipLaunchKernel and hipModuleLaunchKernel, but work-items
for hipExtModuleLaunchKernel (hipBLASLt, Tensile, MIOpen), as HIP documents these calls. The event with the same
correlation names the call. A graph launch states no size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rocattn_profiling.base.gpus import GpuFactsError, Product, architecture, named
from rocattn_profiling.profile.ingest.csv_text import Utf8
from rocattn_profiling.profile.ingest.json_results import with_null
from rocattn_profiling.profile.ingest.parts import (
    ABORTED,
    MISSING,
    REPORT_IT,
    FilePart,
    Notes,
    UnreadableError,
    Vocabulary,
    activity_frame,
    agent_frame,
    dispatch_frame,
    integers,
    kernel_name,
    one_pass,
)
from rocattn_profiling.profile.ingest.table import COPY, FILL

PIECE_BYTES = 8 << 20
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_BEHIND = re.compile(rb"\}\s*(?=\])")
_MOST_TRIES = 32  # candidate ends of a piece: objects in arguments look the same, but leave incomplete JSON before them
_FEW_TRIES = 4  # with the text repaired, which is slow
_COPIES = {"gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL, "memset": FILL}
_WORK_ITEMS = re.compile(r"hipExt\w*Launch")  # calls whose sizes are work-items
_ARCHS = {(9, 4): "gfx942", (9, 5): "gfx950"}  # for devices without a name: HIP's major and minor version


class Arguments(msgspec.Struct, gc=False):
    """Arguments of a launch; others are ignored."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: Any = None
    block: Any = None
    bytes: Any = None


class Event(msgspec.Struct, gc=False):
    """One event of the trace."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None


class DeviceProperties(msgspec.Struct):
    """HIP's properties of one GPU."""

    id: int = -1
    name: str = ""
    major: int = msgspec.field(default=0, name="computeMajor")
    minor: int = msgspec.field(default=0, name="computeMinor")
    wave_size: int | None = msgspec.field(default=None, name="warpSize")
    multiprocessors: int | None = msgspec.field(default=None, name="numSms")


class Distributed(msgspec.Struct):
    """The process's rank in its job."""

    rank: int = 0
    world_size: int = 1


class Surroundings(msgspec.Struct):
    """The fields around the events."""

    deviceProperties: list[DeviceProperties] = []  # noqa: N815 - the format's own names
    distributedInfo: Distributed | None = None  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    cuda_runtime_version: int | None = None


def read_kineto(path: Path, part: FilePart) -> FilePart:
    """Read the kernels of a PyTorch trace, plain or compressed.

    Raises:
        UnreadableError: When it is truncated or not JSON.
    """
    notes = Notes(part.source.file)
    table, around = _Table(notes), Surroundings()
    stream = Utf8(path)
    try:
        for found in _pieces(stream):
            if isinstance(found, Surroundings):
                around = found
            else:
                table.take(found)
    finally:
        stream.close()
    if any("NVIDIA" in each.name for each in around.deviceProperties) or around.cuda_runtime_version:
        return part.skip("a PyTorch trace of an NVIDIA GPU: rocattn reports on AMD GPUs only")
    if around.distributedInfo and around.distributedInfo.world_size > 1:
        part.system = {"rank": str(around.distributedInfo.rank)}
        # The ranks of a job are one run, whatever their files are called.
        part.pass_label = "/".join(filter(None, (part.pass_label.rpartition("/")[0], "trace")))
    table.fill(part, around)
    part.problems += notes.problems()
    return part


def _pieces(stream: Utf8) -> Iterator[list[Event] | Surroundings]:
    """Yield the events in batches, then the fields around them."""
    data, key = b"", None
    while key is None:
        more = stream.read(PIECE_BYTES)
        if not more:
            raise UnreadableError("the JSON has no array of events", ABORTED)
        data += more
        key = _KEY.search(data)
    head, data = data[: key.start()], data[key.end() :]
    while more := stream.read(PIECE_BYTES):
        data += more
        if found := _whole(data, _BETWEEN):
            yield found[0]
            data = data[found[1] :]
    # The end of the array and other fields follow the last event; there may be no event at all.
    rest = 0
    if not data.lstrip().startswith(b"]"):
        found = _whole(data, _BEHIND)
        if found is None:
            raise UnreadableError("the JSON is broken or cut off", ABORTED)
        yield found[0]
        rest = found[1]
    around = b"".join([head, b'"traceEvents":[]', data[data.index(b"]", rest) + 1 :]])
    try:
        yield msgspec.json.decode(_repaired(around), type=Surroundings, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"the JSON is broken or cut off ({error})", ABORTED) from error


def _whole(data: bytes, ends: re.Pattern[bytes]) -> tuple[list[Event], int] | None:
    """Return the events up to the last candidate end with complete JSON before it, and where the rest begins.

    Raises:
        UnreadableError: When the JSON is complete but contains no events.
    """
    places = [(match.start() + 1, match.end()) for match in ends.finditer(data)]
    for most, repair in ((_MOST_TRIES, bytes), (_FEW_TRIES, _repaired)):
        for end, rest in places[-1 : -most - 1 : -1]:
            try:
                return _EVENTS.decode(b"".join([b"[", repair(data[:end]), b"]"])), rest
            except msgspec.ValidationError as error:
                raise UnreadableError(f"not the JSON it looks like ({error})", REPORT_IT) from error
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return None


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)


def _repaired(data: bytes) -> bytes:
    """Return valid JSON, without NaN, infinities and bytes that are not text, which Python's json writes."""
    return with_null(data.decode(errors="replace").encode())


class _Table:
    """The GPU events of one trace."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._kernels = Vocabulary(kernel_name)
        self._rows: list[tuple[Any, ...]] = []
        self._launches: dict[Any, bool] = {}  # correlation -> whether its sizes are work-items
        self._process = -1
        self._copies: list[tuple[str, str, int, int, int, int]] = []

    def take(self, events: list[Event]) -> None:
        """Add a batch of events."""
        for event in events:
            kind, arguments = event.cat.lower(), event.args
            if kind == "kernel" and event.ph == "X":
                told = arguments or Arguments()
                start, length = _nanoseconds(event.ts), _nanoseconds(event.dur)
                if start is None or length is None:
                    self._notes.add("{n} [kernel|kernels] without times", "dropped")
                    continue
                device = _whole_number(told.device if told.device is not None else event.pid)
                correlation = _known_by(told.correlation)
                sizes = (_product(told.grid), _product(told.block))
                code = self._kernels.code(event.name)
                queue = _whole_number(told.stream)
                self._rows.append((code, start, start + length, device, queue, correlation, *sizes))
            elif kind in {"cuda_runtime", "cuda_driver"} and arguments and arguments.correlation is not None:
                if isinstance(event.pid, int) and abs(event.pid) < 2**31:
                    self._process = event.pid
                self._launches[_known_by(arguments.correlation)] = _WORK_ITEMS.match(event.name) is not None
            elif kind in _COPIES and event.ph == "X":
                told = arguments or Arguments()
                start, length = _nanoseconds(event.ts), _nanoseconds(event.dur)
                device = _whole_number(told.device if told.device is not None else event.pid)
                if start is None or length is None:
                    self._notes.add("{n} [copy or fill|copies or fills] without times", "dropped")
                else:
                    size = _whole_number(told.bytes)
                    name = event.name.partition(" (")[0]  # "Memcpy HtoD (Host -> Device)"
                    self._copies.append((_COPIES[kind], name, start, start + length, device, size))

    def fill(self, part: FilePart, around: Surroundings) -> None:
        """Fill the part."""
        if not self._rows:
            only = "copies and fills only" if self._copies else "CPU activity only"
            part.skip(f"a PyTorch trace with {only}: record ProfilerActivity.CUDA, which also covers ROCm")
            return
        rows = sorted(self._rows, key=lambda row: row[1])
        code, start, end, device, queue, correlation, grid, block = zip(*rows, strict=True)
        base = around.baseTimeNanoseconds
        columns: dict[str, Any] = {
            "kernel": self._kernels.categorical(np.array(code, np.int32)),
            "start_ns": integers([each + base for each in start]),
            "end_ns": integers([each + base for each in end]),
            "queue": np.array(queue, np.int64), "grid": np.array(grid, np.int64), "block": np.array(block, np.int64),
            "dispatch": np.arange(1, len(rows) + 1), "process": np.full(len(rows), self._process),
            "pass": one_pass(part.pass_label, len(rows)),
        }  # fmt: skip
        columns["grid"] = self._work_items(code, correlation, columns["grid"], columns["block"])
        self._notes.add(
            "{n} [launch has|launches have] no known number of blocks (graphs state none)",
            "[its|their] time is reported", count=int((columns["grid"] == MISSING).sum()),
        )  # fmt: skip
        numbers = np.array(device, np.int64)
        rank = around.distributedInfo.rank if part.system.get("rank") and around.distributedInfo else None
        if rank is not None and len(set(device)) == 1:
            numbers[:] = _whole_number(rank)  # every rank of a job may number its GPU 0
        columns["agent"] = numbers
        shown = dict(zip(device, numbers.tolist(), strict=True))
        agents = [_agent(around.deviceProperties, own, number) for own, number in shown.items()]
        part.agents = agent_frame(agents, part.source.file)
        copies = [
            (self._process, shown.get(device, MISSING), kind, name, start + base, end + base, size)
            for kind, name, start, end, device, size in self._copies
        ]
        part.activities = activity_frame(copies, part.pass_label, self._notes)
        self._kernels.note_broken(self._notes)
        part.dispatches = dispatch_frame(columns, len(rows))
        part.numbered, part.timing = False, True

    def _work_items(self, codes: Any, correlations: Any, grid: Any, block: Any) -> Any:
        """Return the work-items of each launch; an unknown launch call is inferred from the kernel's other launches."""
        calls = [
            self._launches.get(each) if size != MISSING else None for each, size in zip(correlations, grid, strict=True)
        ]
        usual = {code: call for code, call in zip(codes, calls, strict=True) if call is not None}
        found = [usual.get(code) if call is None else call for code, call in zip(codes, calls, strict=True)]
        is_items, is_blocks = (np.array([each is kind for each in found]) for kind in (True, False))
        known = (grid != MISSING) & (block != MISSING)
        total = np.where(is_blocks & known, np.where(known, grid, 0) * np.where(known, block, 0), grid)
        return np.where(known & (is_items | is_blocks), total, MISSING)


def _agent(properties: list[DeviceProperties], device: int, number: int) -> Mapping[str, Any]:
    """Return the row of a GPU; ROCm identifies a kernel's GPU by its node, which tells equal GPUs apart."""
    own = [each for each in properties if each.id == device] if len(properties) > device >= 0 else []
    alike = {(each.name, each.multiprocessors) for each in properties}
    known = own[0] if own else properties[0] if len(alike) == 1 else None
    if known is None:
        return {"number": number, "arch": "", "product": ""}
    arch, cus = _ARCHS.get((known.major, known.minor), ""), known.multiprocessors
    try:
        found = named(known.name) if known.name else ()
    except GpuFactsError:
        found = ()
    if found:
        arch = found[0].arch.name if isinstance(found[0], Product) else found[0].arch
    elif (known.major, known.minor) == (9, 0) and cus in {104, 110}:
        arch = "gfx90a"
    if cus and arch.startswith("gfx1"):
        cus *= architecture(arch).cus_per_wgp  # HIP counts WGPs
    return {"number": number, "arch": arch, "product": known.name, "cus": cus, "wave_size": known.wave_size}


def _nanoseconds(microseconds: Any) -> int | None:
    try:
        return round(float(microseconds) * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _known_by(correlation: Any) -> Any:
    return None if isinstance(correlation, list | dict) else correlation


def _whole_number(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if abs(number) < 2**31 else MISSING


def _product(sizes: Any) -> int:
    if not isinstance(sizes, list) or not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        return MISSING
    total = math.prod(sizes)
    return total if total < 2**31 else MISSING
