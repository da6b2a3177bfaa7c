"""Read CSV with one row per dispatch and counter, or per dispatch.

`read_long` reads the files of rocprofv3, ``rocpd convert`` and rocprof-compute 3, which repeat a dispatch's columns for
each of its counters. Rows of one dispatch are adjacent in real files, so each sequence of equal keys is read once;
separated sequences of the same dispatch are merged at the end.

`read_by_number` reads the counters of rocprof-compute's own tool (2026), which writes three files per process and pass:
``counters_<pass>_<pid>.csv.gz`` has a row per launch, counter and hardware instance, ``dispatch_…`` the launches and
``kernel_symbols_…`` the kernel names. They refer to each other by numbers that are valid only within that process.
Only the file names identify the process and the files that belong together; rocprof-compute's ``analyze`` also relies
on them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest import columns
from rocattn_profiling.profile.ingest.csv_text import HEADER_BYTES, Header, RecordBlock, Utf8, blocks, parse_header
from rocattn_profiling.profile.ingest.instances import combine
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    NO_NUMBER,
    NO_ROWS,
    NO_VALUE,
    REUSED,
    FilePart,
    Notes,
    UnreadableError,
    Vocabulary,
    categorical,
    dispatch_frame,
    joined,
    kernel_name,
    narrow,
    one_pass,
)
from rocattn_profiling.profile.ingest.small_csv import rows_of, whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMBER = re.compile(r"(\d+)\s*$")
_IDENTITY = ("process", "guid", "replay", "dispatch", "kernel", "grid", "start_ns")
_COUNTERS = "counters"
_PROCESS = re.compile(r"_(\d{1,9})\.csv(?:\.gz)?$")


def number_in(text: str) -> int:
    """Return the number at the end of "Agent 4", "Queue 0" or "4"; `MISSING` if there is none."""
    match = _NUMBER.search(text)
    return int(match[1]) if match and len(match[1]) < 19 else MISSING


def wanted_columns(header: Header) -> dict[str, tuple[int, str]]:
    """Return the columns to read: position and kind by name."""
    return {
        name: (position, "label" if name in columns.LABELS else "float" if name in columns.FLOATS else "int")
        for name, position in columns.positions(header.names).items()
    }


def read_long(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a CSV file with one row per dispatch and counter, or per dispatch if it has no counter column."""
    notes = Notes(part.source.file)
    wanted = wanted_columns(header)
    reader = _LongReader(wanted, notes)
    for block in blocks(path, header, wanted, notes):
        reader.take(block)
    reader.finish(part)
    part.problems += notes.problems()
    return part


class _LongReader:
    def __init__(self, wanted: dict[str, tuple[int, str]], notes: Notes) -> None:
        self._wanted, self._notes = wanted, notes
        self._kernels, self._counters, self._guids = Vocabulary(kernel_name), Vocabulary(), Vocabulary()
        self._numbers: dict[str, dict[str, int]] = {"agent": {}, "queue": {}}
        self._runs: list[dict[str, NDArray[Any]]] = []
        self._rows: list[NDArray[np.int32]] = []
        self._codes: list[NDArray[np.int16]] = []
        self._values: list[NDArray[np.float64]] = []
        self._seen = 0

    def take(self, block: RecordBlock) -> None:
        """Add a block's rows."""
        coded = {name: self._coded(name, values) for name, values in block.columns.items()}
        keep = self._usable(coded, block)
        if not keep.all():
            coded = {name: values[keep] for name, values in coded.items()}
        rows = int(keep.sum())
        if not rows:
            return
        starts = self._run_starts(coded, rows)
        runs = {name: narrow(values[starts]) for name, values in coded.items() if name not in {"counter", "value"}}
        if "counter" in coded:
            lengths = np.diff(np.append(starts, rows))
            if self._runs and all(self._runs[-1][name][-1] == values[0] for name, values in runs.items()):
                runs = {name: values[1:] for name, values in runs.items()}  # the dispatch started in the last block
                self._seen -= 1
            numbers = np.arange(self._seen, self._seen + len(starts), dtype=np.int32)
            self._rows.append(np.repeat(numbers, lengths))
            self._codes.append(coded["counter"].astype(np.int16))
            self._values.append(coded["value"])
        if len(next(iter(runs.values()))):
            self._runs.append(runs)
        self._seen += len(starts)

    def _coded(self, name: str, values: Any) -> NDArray[Any]:
        """Return a column as numbers: codes for names, numbers for "Agent 4"."""
        if name in self._numbers:
            known = self._numbers[name]
            texts = [str(text) for text in values.categories]
            for text in texts:
                known.setdefault(text, number_in(text))
            numbers: NDArray[np.int64] = np.array([known[text] for text in texts] or [MISSING], np.int64)[values.codes]
            return numbers
        if name in columns.LABELS:
            words = {"kernel": self._kernels, "counter": self._counters, "guid": self._guids}[name]
            return words.encode(values)
        return np.asarray(values)

    def _usable(self, coded: dict[str, NDArray[Any]], block: RecordBlock) -> NDArray[np.bool_]:
        """Return the mask of rows with a value and, if the table has dispatch numbers, a dispatch number."""
        keep = np.ones(block.rows, bool)
        if "dispatch" in coded:
            keep &= coded["dispatch"] != MISSING
        self._notes.add(NO_NUMBER, "dropped; profile again", count=int((~keep).sum()), line=block.line_of(~keep))
        if "value" in coded:
            missing = keep & np.isnan(coded["value"])
            self._notes.add(NO_VALUE, "treated as not measured", count=int(missing.sum()), line=block.line_of(missing))
            keep &= ~missing
        return keep

    @staticmethod
    def _run_starts(coded: dict[str, NDArray[Any]], rows: int) -> NDArray[np.intp]:
        """Return where the dispatch changes; in a trace every row is a dispatch."""
        if "counter" not in coded:
            return np.arange(rows)
        changes = np.zeros(rows, bool)
        changes[0] = True
        for name in ("dispatch", "process", "guid", "replay", "start_ns"):
            if name in coded:
                changes[1:] |= coded[name][1:] != coded[name][:-1]
        return np.flatnonzero(changes)

    def finish(self, part: FilePart) -> None:
        """Fill the part with the rows read."""
        if not self._runs:
            part.skip(NO_ROWS)
            return
        runs = {name: joined([run.pop(name) for run in self._runs]) for name in list(self._runs[0])}
        self._runs.clear()
        resolved = resolve(runs, self._notes)
        passes = row_of_run = None
        if resolved is not None:
            first, row_of_run, passes = resolved
            if len(first) < len(row_of_run) and "counter" not in self._wanted:
                self._notes.add(
                    "{n} [dispatch occurs|dispatches occur] more than once",
                    "read once",
                    count=len(row_of_run) - len(first),
                )
            runs = {name: values[first] for name, values in runs.items()}
        self._kernels.note_broken(self._notes)
        part.numbered = "dispatch" in runs
        # Up to 6.4 rocprofv3 writes a node id, from 7.0 on "Agent N", which is numbered differently.
        agents = self._numbers["agent"]
        part.by_node = part.source.tool == "rocprofv3" and bool(agents) and all(map(str.isdecimal, agents))
        part.dispatches = self._frame(runs, part.pass_label, passes)
        del runs  # joining the counters temporarily takes twice their memory
        if "counter" in self._wanted:
            rows = joined(self._rows)
            rows = rows if row_of_run is None else row_of_run[rows]
            names = list(self._counters.codes)
            frames = combine(rows, joined(self._codes), joined(self._values), names, self._notes)
            part.counters, part.instances = frames

    def _frame(self, runs: dict[str, NDArray[Any]], label: str, passes: NDArray[np.int32] | None) -> pd.DataFrame:
        count = len(runs["kernel"])
        described: dict[str, Any] = {name: runs[name] for name in runs if name not in {"guid", "replay"}}
        described["kernel"] = self._kernels.categorical(runs["kernel"])
        for size in ("grid", "block"):
            if size not in described and f"{size}_x" in described:
                described[size] = product(described, size)
        if "dispatch" not in described:  # rocprofv3 6.2.0 traces: number them by start time
            order = np.argsort(runs["start_ns"], kind="stable") if "start_ns" in runs else np.arange(count)
            described["dispatch"] = np.empty(count, np.int64)
            described["dispatch"][order] = np.arange(1, count + 1)
        if passes is None or not passes.any():
            described["pass"] = one_pass(label, count)
        else:
            described["pass"] = categorical(passes, [f"{label}[{index}]" for index in range(int(passes.max()) + 1)])
        return dispatch_frame(described, count)


def product(sizes: Mapping[str, NDArray[Any]], whole: str) -> NDArray[np.int64]:
    """Return the number of work-items, x*y*z; unknown if one of the factors is."""
    total = np.ones(len(sizes[f"{whole}_x"]), np.int64)
    unknown = np.zeros(len(total), bool)
    for axis in "xyz":
        size = sizes.get(f"{whole}_{axis}")
        if size is not None:
            unknown |= (size < 0) | (size > np.iinfo(np.uint32).max)
            total *= np.where(unknown, 1, size)
    total[unknown] = MISSING
    return total


def resolve(
    runs: Mapping[str, NDArray[Any]], notes: Notes
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]] | None:
    """Determine which sequences of rows are the same dispatch, and the pass of each dispatch.

    A dispatch number repeated with the same kernel and grid but another start time is another pass of the application;
    with another kernel or grid the number was reused (several processes or devices).

    Args:
        runs: Columns of the row sequences, compared by the `_IDENTITY` columns present in the file.
        notes: Collects problems.

    Returns:
        Index of the first sequence of each dispatch, each sequence's dispatch, and each dispatch's pass; None if every
        sequence is one dispatch of a single pass.
    """
    if "dispatch" not in runs:
        return None
    owners = [name for name in ("process", "guid", "replay") if name in runs]
    numbers = runs["dispatch"]
    if all((runs[name] == runs[name][0]).all() for name in owners) and bool((numbers[1:] > numbers[:-1]).all()):
        return None
    table = pd.DataFrame({name: runs[name] for name in _IDENTITY if name in runs}, copy=False)
    groups = table.groupby(list(table.columns), sort=False, dropna=False)
    row: NDArray[np.int32] = np.asarray(groups.ngroup(), np.int32)
    first: NDArray[np.int64] = np.flatnonzero(np.asarray(groups.cumcount()) == 0)
    firsts = table.iloc[first]
    if "replay" in table:
        passes = pd.factorize(firsts["replay"], sort=True)[0]
        return first, row, np.asarray(passes, np.int32)
    number = firsts.groupby([name for name in ("process", "dispatch") if name in firsts], sort=False)
    again = np.asarray(number.cumcount(), np.int32)
    launch = [name for name in ("kernel", "grid") if name in firsts]
    reused = np.zeros(len(firsts), bool)
    for name in launch:
        reused |= (number[name].transform("first") != firsts[name]).to_numpy()
    if reused.any():
        notes.add(
            REUSED, "distinguished by kernel, grid and start time; "
            "give every process its own file (-o NAME_%pid%)", count=int(reused.sum()),
        )  # fmt: skip
        again = np.zeros(len(firsts), np.int32)
    return first, row, np.asarray(again, np.int32)


def read_by_number(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a counter file together with its launch and kernel files.

    Raises:
        UnreadableError: When one of them is missing.
    """
    notes = Notes(part.source.file)
    symbols = _symbols(*_beside(path, "kernel_symbols"))
    launches = _launches(*_beside(path, "dispatch"), symbols, notes)
    number = launches.pop("kernel_id")
    count = len(number)
    if not count:
        part.problems += notes.problems()
        return part.skip(NO_ROWS)
    part.pass_label = part.pass_label.replace(f"{_COUNTERS}_", "", 1)
    kernels = Vocabulary(kernel_name)
    described: dict[str, Any] = {**launches, "pass": one_pass(part.pass_label, count)}
    described["kernel"] = kernels.categorical(
        _looked_up(number, {n: kernels.code(name) for n, (name, *_) in symbols.items()})
    )
    for place, ours in enumerate(("vgprs", "agprs", "sgprs"), 1):
        described[ours] = _looked_up(number, {n: int(symbol[place]) for n, symbol in symbols.items()})
    if process := _PROCESS.search(path.name):
        described["process"] = np.full(count, int(process[1]), np.int64)
    part.dispatches = dispatch_frame(described, count)
    part.counters, part.instances = _counters(path, header, launches["dispatch"], notes)
    kernels.note_broken(notes)
    part.problems += notes.problems()
    return part


def _looked_up(numbers: NDArray[np.int64], known: dict[int, int]) -> NDArray[np.int64]:
    """Return the known value for each number."""
    distinct, at = np.unique(numbers, return_inverse=True)
    values: NDArray[np.int64] = np.array([known[int(number)] for number in distinct], np.int64)[at]
    return values


def _symbols(path: Path, header: Header) -> dict[int, tuple[str, int, int, int]]:
    """Return name and registers (`MISSING` if not stated), by kernel number."""
    symbols = {}
    for row in rows_of(path, header):
        if row["kernel_id"].isdecimal():
            registers = [whole(row.get(name)) for name in ("arch_vgpr", "accum_vgpr", "sgpr")]
            vgprs, agprs, sgprs = (MISSING if value is None else value for value in registers)
            symbols[int(row["kernel_id"])] = (row.get("kernel_name", ""), vgprs, agprs, sgprs)
    return symbols


def _beside(path: Path, kind: str) -> tuple[Path, Header]:
    """Return the file of this kind that belongs to a counter file, and its header."""
    known = _COUNTERS in path.name
    other = path.with_name(path.name.replace(_COUNTERS, kind, 1) if known else f"{kind}_….csv.gz")
    if not known or not other.is_file():
        raise UnreadableError(
            f"its {'launches' if kind == 'dispatch' else 'kernels'} are not in {other.name} next to it",
            "keep the three files of a pass together, under the names that rocprof-compute gave them",
        )
    stream = Utf8(other)
    try:
        header = parse_header(stream.read(HEADER_BYTES))
    finally:
        stream.close()
    if header is None or "kernel_id" not in header.names:
        raise UnreadableError(f"{other.name} next to it is not a table with a kernel_id", "profile again")
    return other, header


def _launches(path: Path, header: Header, symbols: Collection[int], notes: Notes) -> dict[str, NDArray[np.int64]]:
    """Return the columns of the distinct launches with a known kernel."""
    wanted = wanted_columns(header) | {"kernel_id": (header.names.index("kernel_id"), "int")}
    pieces: dict[str, list[NDArray[np.int64]]] = {name: [] for name in wanted}
    for block in blocks(path, header, wanted, notes):
        for name, values in block.columns.items():
            if name in columns.LABELS:
                known = np.array([number_in(str(text)) for text in values.categories] or [MISSING], np.int64)
                pieces[name].append(known[values.codes])
            else:
                pieces[name].append(np.asarray(values, np.int64))
    launches = {name: joined(values) for name, values in pieces.items()}
    keep = np.isin(launches["kernel_id"], list(symbols))
    notes.add(
        "{n} [launch is of a kernel|launches are of kernels] that [is|are] not listed",
        "left out; profile again",
        count=int((~keep).sum()),
    )
    keep[keep] = ~pd.Series(launches["dispatch"][keep]).duplicated().to_numpy()
    return {name: values[keep] for name, values in launches.items()}


def _counters(
    path: Path, header: Header, launches: NDArray[np.int64], notes: Notes
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the counters and instances frames, without rows of unknown launches."""
    wanted = {name: at for name, at in wanted_columns(header).items() if name in {"dispatch", "counter", "value"}}
    names = Vocabulary()
    index = pd.Index(launches)
    rows: list[NDArray[np.int32]] = []
    codes: list[NDArray[np.int16]] = []
    values: list[NDArray[np.float64]] = []
    for block in blocks(path, header, wanted, notes):
        row = index.get_indexer(block.columns["dispatch"])
        value = np.asarray(block.columns["value"])
        notes.add(
            "{n} [value is of a launch that is|values are of launches that are] not listed",
            "left out; profile again",
            count=int((row < 0).sum()),
        )
        keep = (row >= 0) & ~np.isnan(value)
        rows.append(row[keep].astype(np.int32))
        codes.append(names.encode(block.columns["counter"])[keep].astype(np.int16))
        values.append(value[keep])
    several = Notes("")  # several rows per counter are normal in these files
    return combine(joined(rows), joined(codes), joined(values), list(names.codes), several)
