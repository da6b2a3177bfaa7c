"""Read rocpd databases (rocprofv3's default since ROCm 7.0) through their views.

Table names have a suffix per file and change with the schema; views have no suffix and change less. Schema 3 (7.0 to
7.2) has ``kernels`` and ``pmc_events``; schema 4 renames some of their columns, counts ``grid_size_x`` in blocks, and
leaves the join to the reader. The process's environment, also in the file, is never read.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.copies import copies_of_database
from rocattn_profiling.profile.ingest.instances import combine
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    NO_DISPATCHES,
    NO_VALUE,
    REUSED,
    Database,
    FilePart,
    Notes,
    UnreadableError,
    Vocabulary,
    activity_frame,
    agent_frame,
    dispatch_frame,
    joined,
    kernel_name,
    narrow,
    one_pass,
)
from rocattn_profiling.profile.ingest.pc_samples import samples_of_database
from rocattn_profiling.profile.ingest.small_csv import agent_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS = 16_384
_CHECK_EVERY = 100_000  # virtual machine steps between clock checks
_LEAST_SECONDS = 60.0
_BYTES_PER_SECOND = 1e6  # real files are read 50 times faster; stops a view that never ends
_PER_GUID = 1 << 40  # counter ids are small: this separates those of several processes
_MOST_CELL_BYTES = 4 << 20
_MOST_SQLITE_BYTES = 256 << 20  # limit of SQLite's own memory

# Our column -> expressions over the columns of the `kernels` view; the first that exists is used.
_DISPATCH = {
    "process": ("pid",),
    "dispatch": ("dispatch_id",),
    "kernel": ("kernel_id",),
    "grid": ("grid_x*grid_y*grid_z",),
    "block": ("workgroup_x*workgroup_y*workgroup_z",),
    "lds_bytes": ("lds_size", "lds_block_size"),
    "scratch_bytes": ("scratch_size",),
    "start_ns": ("start",),
    "end_ns": ("end",),
    "queue": ("queue_id",),
    "agent": ("agent_log_index", "agent_logical_index"),
}


def open_database(path: Path) -> Database:
    """Open a SQLite file read-only, with limits on time and size.

    `rocpd merge` leaves its file in write-ahead-log mode, where even readers create files next to it, or fail
    without write permission. A file with an empty or missing log is opened as immutable.

    Raises:
        UnreadableError: When the file cannot be opened.
    """
    with path.open("rb") as file:
        has_log = file.read(20)[18:] == b"\2\2"  # the format's write and read version
    log = path.with_name(f"{path.name}-wal")
    immutable = "&immutable=1" if has_log and not (log.exists() and log.stat().st_size) else ""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{immutable}", uri=True, factory=Database)
    except sqlite3.Error as error:
        raise UnreadableError(f"cannot be opened ({error})", "check the file's permissions") from error
    try:
        limit = time.monotonic() + _LEAST_SECONDS + path.stat().st_size / _BYTES_PER_SECOND
        connection.set_progress_handler(lambda: int(time.monotonic() > limit), _CHECK_EVERY)
        connection.file_bytes = path.stat().st_size
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_CELL_BYTES)
        connection.execute(f"PRAGMA hard_heap_limit={_MOST_SQLITE_BYTES}")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA cache_size=-16384")
    except BaseException:  # settings fail in a damaged file
        connection.close()
        raise
    return connection


def read_rocpd(path: Path, part: FilePart) -> FilePart:
    """Read a rocpd database.

    Raises:
        UnreadableError: When the database is damaged, cut off, or lacks the views.
    """
    notes = Notes(part.source.file)
    with closing(open_database(path)) as connection:
        try:
            _Reader(connection, part, notes).read()
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise UnreadableError("its views do not end", "this is not a profiler's file") from error
            if "no such function" in str(error):  # some rocprofiler-sdk branches compress columns: lz4_decompress
                convert = "let ROCm's own tool write CSV: rocpd convert --output-format csv -i FILE"
                raise UnreadableError(f"its views need what this SQLite lacks ({error})", convert) from error
            raise UnreadableError(f"the database is damaged ({error})", "profile again") from error
        except MemoryError as error:  # SQLite's limit
            raise UnreadableError("its views need too much memory", "this is not a profiler's file") from error
        except (sqlite3.Error, UnicodeDecodeError, TypeError, ValueError, OverflowError) as error:  # text for numbers
            raise UnreadableError(f"the database is damaged or cut off ({error})", "profile again") from error
    part.problems += notes.problems()
    return part


class _Reader:
    def __init__(self, connection: Database, part: FilePart, notes: Notes) -> None:
        self._connection, self._part, self._notes = connection, part, notes
        self._guids = [text for (text,) in connection.rows("SELECT DISTINCT guid FROM rocpd_info_process")]

    def read(self) -> None:
        """Read everything."""
        self._read_about()
        columns = self._columns_of("kernels")
        if not columns:
            raise UnreadableError("it has no view 'kernels'", "write it with rocprofv3 of ROCm 7.0 or later")
        copies = copies_of_database(self._connection, self._columns_of("memory_copies"))
        self._part.activities = activity_frame(copies, self._part.pass_label, self._notes)
        samples = samples_of_database(self._connection, self._part.pass_label)
        if samples is not None:
            self._part.samples = samples
        dispatches = self._dispatches(columns)
        if not len(dispatches["dispatch"]):
            if len(self._part.samples):
                return
            self._part.skip(NO_DISPATCHES)
            return
        rows = self._row_of(dispatches)
        count = len(dispatches["dispatch"])
        guid = dispatches.pop("guid", None)
        self._add_kernels(dispatches, guid)
        dispatches["pass"] = one_pass(self._part.pass_label, count)
        self._part.dispatches = dispatch_frame(dispatches, count)
        self._counters(rows)

    def _columns_of(self, view: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info('{view}')")}

    def _read_about(self) -> None:
        agents = []
        columns = self._columns_of("rocpd_info_agent")
        named = [
            name
            for name in ("absolute_index", "logical_index", "name", "generic_name", "product_name")
            if name in columns
        ]
        query = f"SELECT {', '.join(named)}, extdata FROM rocpd_info_agent WHERE type = 'GPU'"  # noqa: S608 - own names
        for *values, extra in self._connection.rows(query):
            about = dict(zip(named, values, strict=True))
            details = _mapping(extra)
            agent = agent_of(details)
            agent["number"] = about.get("logical_index")
            agent["node"] = about.get("absolute_index")
            arch = next((str(about[n]) for n in ("name", "generic_name") if str(about.get(n)).startswith("gfx")), "")
            agent["arch"] = arch or agent["arch"]
            agent["product"] = about.get("product_name") or agent["product"]
            agents.append(agent)
        self._part.agents = agent_frame(agents, self._part.source.file)
        commands = self._connection.execute("SELECT DISTINCT command FROM processes WHERE command IS NOT NULL")
        self._part.system["command"] = "; ".join(str(text) for (text,) in commands.fetchmany(8))

    def _chunks(self, query: str, width: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of an integer query as arrays of shape [rows, width]; `MISSING` for NULL."""
        cursor = self._connection.execute(query)
        cursor.arraysize = CHUNK_ROWS
        total = 0
        while rows := cursor.fetchmany():
            total += len(rows)
            self._connection.check(total)
            flat = itertools.chain.from_iterable(rows)
            try:
                yield np.fromiter(flat, np.int64, len(rows) * width).reshape(-1, width)
            except (TypeError, ValueError, OverflowError):
                yield np.array([[self._integer(value) for value in row] for row in rows], np.int64)

    def _integer(self, value: object) -> int:
        if isinstance(value, (int, float)) and abs(value) < 2**63:
            return int(value)
        if value is not None:
            self._notes.add(
                "{n} [value is not an integer where one is|values are not integers where integers are] expected",
                "treated as missing",
            )
        return MISSING

    def _dispatches(self, columns: set[str]) -> dict[str, Any]:
        """Return the dispatches' columns in narrow types."""
        chosen = {}
        for ours, expressions in _DISPATCH.items():
            usable = (e for e in expressions if all(name in columns for name in e.split("*")))
            expression = next(usable, None)
            if expression is not None:
                chosen[ours] = expression.replace("end", '"end"')
        for needed in ("dispatch", "kernel", "start_ns", "end_ns"):
            if needed not in chosen:
                raise UnreadableError(f"its view 'kernels' has no {needed}", "report it with the file's schema_version")
        if len(self._guids) > 1:
            chosen["guid"] = f"CASE guid {self._guid_cases()} END"
        query = f"SELECT {', '.join(chosen.values())} FROM kernels"  # noqa: S608 - names from _DISPATCH
        pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in chosen}
        for table in self._chunks(query, len(chosen)):
            for position, name in enumerate(chosen):
                pieces[name].append(narrow(table[:, position]))
        return {name: joined(pieces.pop(name)) for name in list(pieces)}

    def _guid_cases(self) -> str:
        quoted = (guid.replace("'", "''") for guid in map(str, self._guids))
        return " ".join(f"WHEN '{guid}' THEN {code}" for code, guid in enumerate(quoted))

    def _row_of(self, dispatches: dict[str, Any]) -> _RowFinder:
        return _RowFinder(dispatches["dispatch"], dispatches.get("process"), dispatches.get("guid"), self._notes)

    def _add_kernels(self, dispatches: dict[str, Any], guid: NDArray[Any] | None) -> None:
        """Replace kernel ids with names, and add the kernels' registers."""
        columns = self._columns_of("rocpd_info_kernel_symbol")
        registers = {"vgprs": "arch_vgpr_count", "agprs": "accum_vgpr_count", "sgprs": "sgpr_count"}
        fields = ["guid", "id", "display_name", *(column for column in registers.values() if column in columns)]
        codes = {str(text): code for code, text in enumerate(self._guids)} if guid is not None else {}
        symbols = {}
        for owner, identity, name, *counts in self._connection.rows(
            f"SELECT {', '.join(fields)} FROM rocpd_info_kernel_symbol"  # noqa: S608 - own names
        ):
            symbols[codes.get(str(owner), 0), identity] = (name, counts)
        of_row, identities = pd.factorize(dispatches["kernel"])
        owned = of_row if guid is None else guid.astype(np.int64) * len(identities) + of_row
        codes_of_row, pairs = pd.factorize(owned)
        unique = [(int(pair) // len(identities), int(identities[pair % len(identities)])) for pair in pairs]
        kernels = Vocabulary(kernel_name)
        names = np.zeros(len(unique), np.int32)
        counts_of = np.full((len(unique), len(fields) - 3), MISSING, np.int64)
        for position, pair in enumerate(unique):
            name, counts = symbols.get(pair, (None, []))
            if name is None:
                self._notes.add("{n} [kernel|kernels] that the file does not name", "shown by [its|their] number")
            names[position] = kernels.code(f"kernel {pair[1]}" if name is None else str(name))
            for place, count in enumerate(counts):
                counts_of[position, place] = self._integer(count)
        dispatches["kernel"] = kernels.categorical(names[codes_of_row])
        present = [ours for ours, column in registers.items() if column in columns]
        for place, ours in enumerate(present):
            dispatches[ours] = counts_of[:, place][codes_of_row]

    def _counters(self, rows: _RowFinder) -> None:
        """Read the counters: one row per dispatch and instance."""
        columns = self._columns_of("pmc_events")
        if "counter_value" in columns:
            source, value = "pmc_events K", "counter_value"
        elif {"event_id", "value"} <= columns and "event_id" in self._columns_of("kernels"):
            # Not the view kernel_pmc_events, which joins only by event: with several processes in a file, event
            # numbers coincide, and it counts each value once per process.
            source, value = "kernels K JOIN pmc_events E ON E.event_id = K.event_id AND E.guid = K.guid", "value"
        else:
            return
        guid = f"CASE K.guid {self._guid_cases()} END" if len(self._guids) > 1 else "0"
        query = f"SELECT {guid}, pid, dispatch_id, pmc_id, {value} FROM {source}"  # noqa: S608 - names from above
        cursor = self._connection.execute(query)
        cursor.arraysize = CHUNK_ROWS
        row_pieces: list[NDArray[Any]] = []
        identities: list[NDArray[Any]] = []
        values: list[NDArray[np.float64]] = []
        total = 0
        while fetched := cursor.fetchmany():
            total += len(fetched)
            self._connection.check(total)
            try:
                table = np.fromiter(itertools.chain.from_iterable(fetched), np.float64, 5 * len(fetched)).reshape(-1, 5)
            except (TypeError, ValueError, OverflowError):  # text that is not a number
                table = np.array(
                    [[np.nan if not isinstance(v, (int, float)) else v for v in row] for row in fetched], np.float64
                )
            known = ~np.isnan(table).any(axis=1)
            self._notes.add(NO_VALUE, "dropped", count=int((~known).sum()))
            whole = table[known, :4].astype(np.int64)
            row = rows.find(whole[:, 2], whole[:, 1], whole[:, 0])
            self._notes.add("{n} counter [value|values] of no dispatch", "dropped", count=int((row < 0).sum()))
            row_pieces.append(row[row >= 0].astype(np.int32))
            identities.append((whole[:, 3] + whole[:, 0] * _PER_GUID)[row >= 0])
            values.append(table[known, 4][row >= 0])
        if not row_pieces or not sum(map(len, row_pieces)):
            return
        several = len(self._guids) > 1
        guids = {str(text): code * _PER_GUID if several else 0 for code, text in enumerate(self._guids)}
        described = self._connection.rows("SELECT guid, id, name FROM rocpd_info_pmc")
        names = {guids.get(str(owner), 0) + identity: str(name) for owner, identity, name in described}
        codes, unique = pd.factorize(joined(identities))
        labels = [names.get(int(identity), f"counter {identity}") for identity in unique]
        words = Vocabulary()
        code = np.array([words.code(label) for label in labels], np.int32)[codes]
        frames = combine(
            joined(row_pieces), code, joined(values), list(words.codes), Notes("")
        )  # several rows per counter are normal
        self._part.counters, self._part.instances = frames


class _RowFinder:
    """Finds a counter's dispatch by process and dispatch number."""

    def __init__(
        self, dispatch: NDArray[Any], process: NDArray[Any] | None, guid: NDArray[Any] | None, notes: Notes
    ) -> None:
        self._plain = bool(len(dispatch)) and bool((np.diff(dispatch) == 1).all())
        self._first = int(dispatch[0])
        self._count = len(dispatch)
        self._index: pd.Index | None = None
        if not self._plain or (process is not None and (process != process[0]).any()):
            self._plain = False
            keys = [dispatch.astype(np.int64), self._or_zero(process, dispatch), self._or_zero(guid, dispatch)]
            index = pd.MultiIndex.from_arrays(keys)
            again = index.duplicated()
            notes.add(REUSED, "counters go to the first of them", count=int(again.sum()))
            self._rows = np.flatnonzero(~again)
            self._index = index[~again]

    @staticmethod
    def _or_zero(values: NDArray[Any] | None, like: NDArray[Any]) -> NDArray[np.int64]:
        return np.zeros(len(like), np.int64) if values is None else values.astype(np.int64)

    def find(self, dispatch: NDArray[Any], process: NDArray[Any], guid: NDArray[Any]) -> NDArray[np.int64]:
        """Return the row of each dispatch, or -1."""
        if self._index is None:
            row = dispatch - self._first
            return np.where((row >= 0) & (row < self._count), row, -1)
        at = self._index.get_indexer(pd.MultiIndex.from_arrays([dispatch, process, guid]))
        return np.where(at >= 0, self._rows[at], -1)


def _mapping(text: object) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(str(text))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
