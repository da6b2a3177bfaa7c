"""Read memory copies: rocprofv3's table and JSON records, and the view of a rocpd database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rocattn_profiling.profile.ingest.columns import plain
from rocattn_profiling.profile.ingest.csv_text import Header, blocks
from rocattn_profiling.profile.ingest.long_csv import number_in
from rocattn_profiling.profile.ingest.parts import MISSING, NO_ROWS, Activity, Database, FilePart, Notes, activity_frame
from rocattn_profiling.profile.ingest.table import COPY, NO_PROCESS

TO_DEVICE = "HOST_TO_DEVICE"
_PREFIX = "MEMORY_COPY_"
# rocprofiler_memory_copy_operation_t, rocprofiler-sdk/fwd.h.
_OPERATIONS = ("", "HOST_TO_HOST", TO_DEVICE, "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")
_CELLS = {
    "direction": "label", "source_agent_id": "label", "destination_agent_id": "label", "start_timestamp": "int",
    "end_timestamp": "int",
}  # fmt: skip


class MemoryCopy(msgspec.Struct):
    """One record of ``buffer_records.memory_copy``."""

    operation: int = 0
    start_timestamp: int = MISSING
    end_timestamp: int = MISSING
    src_agent_id: dict[str, int] = {}
    dst_agent_id: dict[str, int] = {}
    bytes: int = MISSING


def copies_of(records: Iterable[MemoryCopy], process: int, numbers: Mapping[Any, int]) -> list[Activity]:
    """Return the copies of a process; ``numbers`` maps agent handles to GPU numbers."""
    rows = []
    for each in records:
        direction = _OPERATIONS[each.operation] if 0 <= each.operation < len(_OPERATIONS) else ""
        agent = each.dst_agent_id if direction == TO_DEVICE else each.src_agent_id
        number = numbers.get(agent.get("handle"), MISSING)
        rows.append((process, number, COPY, direction, each.start_timestamp, each.end_timestamp, each.bytes))
    return rows


def read_copies(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read rocprofv3's memory_copy_trace.csv, which does not state bytes."""
    notes = Notes(part.source.file)
    places = {plain(name): place for place, name in enumerate(header.names)}
    wanted = {name: (places[name], kind) for name, kind in _CELLS.items() if name in places}
    rows: list[Activity] = []
    for block in blocks(path, header, wanted, notes):
        columns = {name: list(values) for name, values in block.columns.items()}
        for direction, source, target, start, end in zip(*(columns[name] for name in _CELLS), strict=True):
            name = str(direction).removeprefix(_PREFIX)
            agent = str(target if name == TO_DEVICE else source)
            part.by_node |= agent.isdecimal()  # ROCm 6.4 and earlier
            rows.append((NO_PROCESS, number_in(agent), COPY, name, int(start), int(end), MISSING))
    part.activities = activity_frame(rows, part.pass_label, notes)
    part.problems += notes.problems()
    return part if rows else part.skip(NO_ROWS)


def copies_of_database(connection: Database, columns: set[str]) -> list[Activity]:
    """Return the copies in a rocpd database whose ``memory_copies`` view has these columns."""
    needed = {"pid", "name", "start", "end", "size", "src_agent_log_index", "dst_agent_log_index"}
    if not needed <= columns:
        return []
    rows: list[Activity] = []
    for pid, name, *times, source, target in connection.rows(
        'SELECT pid, name, start, "end", size, src_agent_log_index, dst_agent_log_index FROM memory_copies'
    ):
        direction = str(name).removeprefix(_PREFIX)
        agent = target if direction == TO_DEVICE else source
        number, start, end, size = (MISSING if value is None else int(value) for value in (agent, *times))
        rows.append((int(pid), number, COPY, direction, start, end, size))
    return rows
