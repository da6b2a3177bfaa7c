"""Reader of rocprof v1's Chrome trace: with ``--hip-trace`` it is the only file that has the kernels' times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    Notes,
    Part,
    Vocabulary,
    dispatch_frame,
    kernel_name,
    one_pass,
)
from rocattn_profiling.profile.ingest.rocprofv3_json import decode
from rocattn_profiling.profile.ingest.small_csv import whole

if TYPE_CHECKING:
    from pathlib import Path


class Event(msgspec.Struct):
    """One trace event; numbers are text in these files."""

    ph: str = ""
    pid: int | str = ""
    name: str = ""
    args: dict[str, Any] = {}


class Trace(msgspec.Struct):
    """The file."""

    traceEvents: list[Event]  # noqa: N815 - the format's own name


def read_chrome_trace(path: Path, part: Part) -> Part:
    """Read the kernels of a rocprof v1 ``results.json``: name, times, queue and device, no sizes."""
    trace: Trace = decode(path, Trace)
    gpus = {
        str(event.pid) for event in trace.traceEvents
        if event.ph == "M" and event.name == "process_name" and str(event.args.get("name", "")).startswith("GPU")
    }  # fmt: skip
    notes = Notes(part.source.file)
    kernels = Vocabulary(kernel_name)
    rows = []
    for event in trace.traceEvents:
        if event.ph != "X" or str(event.pid) not in gpus:
            continue
        start, end = _nanoseconds(event.args.get("BeginNs")), _nanoseconds(event.args.get("EndNs"))
        if MISSING in {start, end}:
            notes.add("{n} kernels without BeginNs and EndNs", "dropped")
            continue
        device, queue, process = (whole(str(event.args.get(name, ""))) for name in ("dev-id", "queue-id", "pid"))
        name = str(event.args.get("Name") or event.name)
        rows.append((kernels.code(name), start, end, device, queue, -1 if process is None else process))
    part.problems += notes.problems()
    if not rows:
        return part.skip("its trace holds no kernels")
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
