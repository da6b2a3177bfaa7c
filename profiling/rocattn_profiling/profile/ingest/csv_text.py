"""CSV as the profilers, spreadsheets and crashes leave it, read in blocks of bounded size.

The fast path hands whole blocks to pandas' C parser with fixed types. A block that does not fit them (a cut line, a
repeated header, a spreadsheet's number), or whose quotes do not add up (the profilers do not escape quotes inside
kernel names), is read again line by line. Only the odd block pays.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import warnings
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.csv_fields import IrregularError, Lines
from rocattn_profiling.profile.ingest.csv_repair import drop, split_records
from rocattn_profiling.profile.ingest.parts import MISSING, Notes, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK_BYTES = 8 << 20
LONGEST_LINE_BYTES = 4 << 20
HEADER_BYTES = 1 << 20  # rocprof-compute's merged header has 2700 columns, 80 KB
_STRICT = {"int": "int64", "float": "float64", "label": "category"}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


_GZIP = b"\x1f\x8b"


class Utf8:
    """Reads a file as UTF-8 bytes, whatever byte order mark it starts with; drops NUL bytes and counts them.

    What is compressed with gzip (tables of rocprof-compute 10.2) is decompressed.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self.is_compressed = self._file.read(2) == _GZIP
        if self.is_compressed:
            self._file.close()
            self._file = cast("BinaryIO", gzip.open(path))  # noqa: SIM115 - closed by `close`
        self._file.seek(0)
        start = self._raw(4)
        self._decoder: codecs.IncrementalDecoder | None = None
        skip = 0
        for bom, encoding in _BOMS:
            if start.startswith(bom):
                skip = len(bom)
                if encoding != "utf-8":
                    self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._file.seek(skip)
        self.nuls = 0

    def read(self, size: int) -> bytes:
        """Return up to ``size`` more bytes of the file, as UTF-8; empty at the end."""
        data = self._raw(size)
        if self._decoder is not None:
            return self._decoder.decode(data, final=not data).encode()
        if b"\0" in data:
            before = len(data)
            data = data.replace(b"\0", b"")
            self.nuls += before - len(data)
            return data or self.read(size)
        return data

    def _raw(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableError(f"the compressed file is damaged or cut off ({error})", "profile again") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Header:
    """The first line of a CSV file: its names and the delimiter between them."""

    names: list[str]
    delimiter: str
    bytes: int


def parse_header(start: bytes) -> Header | None:
    """Return the header of a CSV file from its first bytes (UTF-8, no byte order mark), or None if it is no CSV.

    A first line of one name is not taken for CSV.
    """
    end = start.find(b"\n")
    line = start if end < 0 else start[: end + 1]
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return None
    delimiter = max(",;\t", key=text.count)
    if not text.isprintable() and "\t" not in text:
        return None
    try:
        names = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return None
    return Header([name.strip() for name in names], delimiter, len(line)) if len(names) > 1 else None


@dataclass
class Block:
    """Some consecutive records of a file, by column name.

    Attributes:
        rows: How many records.
        first_line: Line of the first one (a name that spans lines shifts what follows).
        columns: Integers (`MISSING` where there is none), floats (NaN), and categoricals for text.
        starts: Where runs of records of one dispatch start, if ``firsts`` is there.
        firsts: The columns that are the same in all records of a run, once per run; None if they are in ``columns``.
    """

    rows: int
    first_line: int
    columns: dict[str, Any]
    starts: NDArray[np.intp] | None = None
    firsts: dict[str, Any] | None = None


def blocks(
    path: Path,
    header: Header,
    wanted: Mapping[str, tuple[int, str]],
    notes: Notes,
    *,
    by_dispatch: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Block]:
    """Yield the records of a CSV file, a few megabytes at a time.

    Args:
        path: The file.
        header: Its parsed first line.
        wanted: Column name -> (position, kind), the kind being "int", "float" or "label".
        notes: Takes what is wrong.
        by_dispatch: Whether consecutive records with one "dispatch" differ only in "counter" and "value", so that the
            other columns need only be read once (in `Block.firsts`).
        block_bytes: Bytes per block.

    Raises:
        UnreadableError: When a line is longer than any table's.
    """
    stream = Utf8(path)
    parser = _Parser(header, wanted, notes, by_dispatch=by_dispatch)
    try:
        line = 2
        for piece in _chunks(stream, header.bytes, block_bytes, notes):
            data = parser.unfinished + piece
            line -= parser.unfinished.count(b"\n")
            parser.unfinished = b""
            block = None if data.isspace() else parser.parse(data, line)
            line += block.rows if block is not None and block.firsts is not None else count_byte(data, b"\n")
            if block is not None and block.rows:
                yield block
        if parser.unfinished:
            lost = parser.unfinished.count(b"\n")
            drop(notes, line - lost, lost)
        notes.add("{n} NUL bytes (the file was not fully written)", "dropped; profile again", count=stream.nuls)
    finally:
        stream.close()


def _chunks(stream: Utf8, header_bytes: int, size: int, notes: Notes) -> Iterator[bytes]:
    """Yield pieces that end where a line ends."""
    held = last = b""
    skip = header_bytes
    while more := stream.read(size):
        if skip:
            more, skip = more[skip:], max(0, skip - len(more))
        cut = more.rfind(b"\n") + 1
        piece = b"".join([held, memoryview(more)[:cut]])
        held = more[cut:] if cut else held + more
        more = b""  # blocks are large: no second one is kept while the first is read
        if cut:
            last = piece[-100:]
            yield piece
        elif len(held) > LONGEST_LINE_BYTES:
            break
    if len(held) > LONGEST_LINE_BYTES:
        longest = f"a line longer than {LONGEST_LINE_BYTES >> 20} MiB"
        raise UnreadableError(longest, "this is no table; give the right file")
    if not held.strip():
        return
    if last and not _as_long(held, last):
        notes.add("the last line is cut off", "dropped; profile again if the run was aborted")
    else:
        notes.add("the last line has no end: the file may be cut off", "profile again if the run was aborted")
        yield held


def _as_long(line: bytes, before: bytes) -> bool:
    """Return whether the last number of a line without an end has as many digits as that of the line before.

    The profilers end every line, so one that has none is cut, and its last number may have lost digits. Timestamps are
    equally long, and values have the same number of decimals.
    """
    ours, theirs = (text.strip().rpartition(b",")[2].partition(b".") for text in (line, before))
    return len(ours[2]) == len(theirs[2]) and (bool(ours[1]) or len(ours[0]) == len(theirs[0]))


def count_byte(data: bytes, byte: bytes) -> int:
    """Return how often a byte occurs; several times faster than `bytes.count` where it is frequent."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == byte[0]))


class _Parser:
    def __init__(
        self, header: Header, wanted: Mapping[str, tuple[int, str]], notes: Notes, *, by_dispatch: bool
    ) -> None:
        self._header, self._wanted, self._notes = header, wanted, notes
        self._by_dispatch = by_dispatch and {"dispatch", "kernel", "counter", "value"} <= set(wanted)
        self._name_at = wanted["kernel"][0] if "kernel" in wanted else None
        self.unfinished = b""  # the begin of a record that the next block ends
        self._edges = np.zeros(256, bool)
        self._edges[np.frombuffer(header.delimiter.encode() + b"\r\n", np.uint8)] = True

    def parse(self, data: bytes, line: int) -> Block:
        """Return the records of a block, by the fastest way that reads them right."""
        for attempt in (self._once_per_dispatch, self._whole) if self._by_dispatch else (self._whole,):
            try:
                return attempt(data, line)
            except (ValueError, OverflowError):  # pandas' parser errors are ValueErrors, and so is IrregularError
                continue
        width = len(self._header.names)
        delimiter = self._header.delimiter
        rows, self.unfinished = split_records(data, width, delimiter, self._name_at, line, self._notes)
        return self._convert(pd.DataFrame(rows, columns=range(width), dtype="object"), line)

    def _whole(self, data: bytes, line: int) -> Block:
        """Read every column of every record."""
        self._check(data)
        columns = self._read(data, list(self._wanted))
        return Block(len(next(iter(columns.values()))), line, columns)

    def _once_per_dispatch(self, data: bytes, line: int) -> Block:
        """Read the dispatch's number, the counter and the value of every line, and the rest of each first line.

        Raises:
            IrregularError: Where that does not pay or cannot be relied on: the first and the last line of a dispatch
                must be of the same process and start time.
        """
        width = len(self._header.names)
        lines = Lines(data, self._header.delimiter, width)
        places = {
            name: lines.from_left(at) if at < self._wanted["kernel"][0] else lines.from_right(width - at - 1)
            for name, (at, _) in self._wanted.items() if name in {"dispatch", "process", "start_ns", "counter", "value"}
        }  # fmt: skip
        dispatch = lines.integers(*places["dispatch"])
        starts = np.flatnonzero(np.concatenate([[True], dispatch[1:] != dispatch[:-1]]))
        self._by_dispatch = len(starts) * 3 <= len(dispatch)
        ends = np.append(starts[1:], len(dispatch)) - 1
        for same in {"process", "start_ns"} & set(places):
            begin, end = places[same]
            if (lines.integers(begin[starts], end[starts]) != lines.integers(begin[ends], end[ends])).any():
                raise IrregularError(same)
        made = {"dispatch": dispatch, "counter": lines.names(*places["counter"])}
        made["value"] = lines.decimals(*places["value"])
        picked = lines.pick(starts)
        self._check(picked)
        firsts = self._read(picked, [name for name in self._wanted if name not in {"counter", "value"}])
        if not np.array_equal(firsts["dispatch"], dispatch[starts]):
            raise IrregularError("dispatch")
        return Block(len(dispatch), line, made, starts, firsts)

    def _check(self, data: bytes) -> None:
        """Refuse what pandas would read without an error, but wrong.

        That is the case for 8.1E+14, which it takes for an integer (the profilers write no capital E, spreadsheets do),
        for quotes that do not pair, and for a quote with neither a delimiter nor a line end at its side.

        Raises:
            IrregularError: When the data has any of these.
        """
        if b"E+" in data:
            raise IrregularError("E+")
        text = np.frombuffer(data, np.uint8)
        at = np.flatnonzero(text == ord('"'))
        if len(at) % 2:
            raise IrregularError('"')
        at = at[(at > 0) & (at < len(text) - 1)]
        if not (self._edges[text[at - 1]] | self._edges[text[at + 1]]).all():
            raise IrregularError('"')

    def _read(self, data: bytes, names: Sequence[str]) -> dict[str, Any]:
        """Return these columns of all records.

        Raises:
            ValueError: When a value is not of its column's type (`IrregularError` is one).
        """
        types = {self._wanted[name][0]: _STRICT[self._wanted[name][1]] for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.ParserWarning)  # rows of other lengths show in their values
            warnings.simplefilter("ignore", RuntimeWarning)  # "nan" for an integer is an error a moment later
            frame = pd.read_csv(
                io.BytesIO(data), header=None, names=range(len(self._header.names)), usecols=sorted(types),
                index_col=False, sep=self._header.delimiter, dtype=types, na_filter=False, low_memory=False,
                encoding_errors="replace",
            )  # fmt: skip
        made: dict[str, Any] = {}
        for name in names:
            column = frame[self._wanted[name][0]]
            if self._wanted[name][1] == "label":
                numbers = pd.api.types.is_numeric_dtype(column.cat.categories.dtype)
                if numbers and name not in {"agent", "queue"}:  # pandas took names like 1e5 for numbers
                    raise IrregularError(name)
                made[name] = column.array
            else:
                made[name] = column.to_numpy()
                if self._wanted[name][1] == "float" and not np.isfinite(made[name]).all():
                    raise IrregularError(name)
        return made

    def _convert(self, frame: pd.DataFrame, line: int) -> Block:
        """Turn text into columns, noting what does not fit."""
        names = self._header.names
        label = next((position for position, kind in self._wanted.values() if kind == "label"), None)
        if label is not None:
            repeated = (frame[label] == names[label]).to_numpy()
            self._notes.add(
                "the header line occurs {n} more times (files were joined)", "those lines are dropped",
                count=int(repeated.sum()), line=line,
            )  # fmt: skip
            frame = frame[~repeated]
        columns: dict[str, Any] = {}
        for name, (position, kind) in self._wanted.items():
            cells = frame[position]
            if kind == "float":
                values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
                columns[name] = np.where(np.isfinite(values), values, np.nan)
            elif kind == "label":
                columns[name] = cells.str.strip().astype("category").array
            else:
                shown = "timestamps" if name in {"start_ns", "end_ns"} else f"values of {names[position]}"
                columns[name] = self._integers(cells.str.strip(), shown, line)
        return Block(len(frame), line, columns)

    def _integers(self, cells: pd.Series, name: str, line: int) -> NDArray[np.int64]:
        made = np.full(len(cells), MISSING, np.int64)
        rounded = cells.str.fullmatch(r"[\d.,]+E\+?\d+").to_numpy(bool)
        self._notes.add(
            f"{{n}} {name} in scientific notation: a spreadsheet rounded them", "not used; use the original file",
            count=int(rounded.sum()), line=line,
        )  # fmt: skip
        exact = cells.str.fullmatch(r"[+-]?\d{1,19}").to_numpy() & ~rounded
        whole = pd.to_numeric(cells[exact], errors="coerce")
        if whole.dtype != np.int64:  # a 19-digit number beyond int64
            whole = whole.where(whole.abs() < 2.0**63, np.nan)
        made[np.flatnonzero(exact)[whole.notna().to_numpy()]] = whole.dropna().to_numpy(np.int64)
        rest = ~exact & ~rounded & (cells != "").to_numpy()
        if rest.any():
            near = pd.to_numeric(cells[rest], errors="coerce").to_numpy(np.float64)
            fits = np.isfinite(near) & (np.abs(near) < 2.0**63)
            made[np.flatnonzero(rest)[fits]] = np.rint(near[fits]).astype(np.int64)
            self._notes.add(f"{{n}} {name} are no numbers", "treated as missing", count=int((~fits).sum()), line=line)
        return made
