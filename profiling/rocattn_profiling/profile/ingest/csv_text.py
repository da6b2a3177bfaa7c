"""Read CSV as profilers, spreadsheets and crashes leave it, in blocks of bounded size.

pandas' C parser reads blocks with fixed types, two at a time because it releases the GIL. Only a block that does not
fit these types (a truncated line, a repeated header, a spreadsheet's number) or has unbalanced quotes goes through
the slower, line-by-line `split_records`. rocprofv3 quotes kernel names without escaping quotes inside them, rocprof v1
may not quote them at all, and names contain commas and line breaks. No other field contains any of these, so the name
is the text between the expected number of plain fields before and after it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.parts import ABORTED, DROPPED, MISSING, Notes, UnreadableError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

R = TypeVar("R")
BLOCK_BYTES = 4 << 20
_READERS = 2
LONGEST_LINE_BYTES = 4 << 20
_IN_CACHE = 1 << 18  # bytes scanned at a time, with half a dozen masks of this size
HEADER_BYTES = 1 << 20  # rocprof-compute's merged header has 2700 columns, 80 KB
_STRICT = {"int": "int64", "float": "float64", "label": "category"}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NUMBERS_AS_LABELS = frozenset({"agent", "queue", "exec_mask"})  # may parse as numbers: no text is lost
GZIP = b"\x1f\x8b"
MOST_LINES = 64  # per record; a longer one counts as unterminated


class Utf8:
    """Reads a file as UTF-8 bytes, with any byte order mark; drops and counts NUL bytes.

    Files compressed with gzip (tables of rocprof-compute 10.2) are decompressed.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self.is_compressed = self._file.read(2) == GZIP
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
    """The first line of a CSV file: column names and delimiter."""

    names: list[str]
    delimiter: str
    bytes: int


def parse_header(start: bytes) -> Header | None:
    """Return the header of a CSV file from its first bytes (UTF-8, no byte order mark), or None if it is not CSV.

    A first line with a single name does not count as CSV.
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
class RecordBlock:
    """Consecutive records of a file, by column name.

    Attributes:
        rows: Number of records.
        first_line: Line of the first one (approximate after a name that spans lines).
        columns: Integers (`MISSING` where absent), floats (NaN), and categoricals for text.
        lines: Line of each record if they were read one by one; None if the lines are consecutive.
    """

    rows: int
    first_line: int
    columns: dict[str, Any]
    lines: pd.Index | None = None

    def line_of(self, which: NDArray[np.bool_]) -> int:
        """Return the line of the first record in the mask."""
        at = int(np.argmax(which))
        return self.first_line + at if self.lines is None else int(self.lines[at])


def blocks(
    path: Path, header: Header, wanted: Mapping[str, tuple[int, str]], notes: Notes, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[RecordBlock]:
    """Yield the records of a CSV file, a few megabytes at a time.

    Args:
        path: The file.
        header: Its parsed first line.
        wanted: Column name -> (position, kind), the kind being "int", "float" or "label".
        notes: Collects problems.
        block_bytes: Bytes per block.

    Raises:
        UnreadableError: When a line is too long for a table.
    """
    stream = Utf8(path)
    parser = _Parser(header, wanted, notes)
    try:
        line = 2
        for piece, alone in _ahead(parser.regular, _chunks(stream, header.bytes, block_bytes, notes)):
            data = parser.unfinished + piece
            line -= parser.unfinished.count(b"\n")
            columns = parser.regular(data) if parser.unfinished else alone
            parser.unfinished = b""
            block = None if data.isspace() else parser.parse(data, line, columns)
            line += count_byte(data, b"\n")
            if block is not None and block.rows:
                yield block
        if parser.unfinished:
            lost = parser.unfinished.count(b"\n")
            drop(notes, line - lost, lost)
        notes.add("{n} NUL [byte|bytes] (the file was not fully written)", "dropped; profile again", count=stream.nuls)
    finally:
        stream.close()


def _ahead(work: Callable[[bytes], R], pieces: Iterable[bytes]) -> Iterator[tuple[bytes, R]]:
    """Yield each piece with the result of ``work``, which runs ahead on the next pieces in threads."""
    waiting: deque[tuple[bytes, Future[R]]] = deque()
    with warnings.catch_warnings(), ThreadPoolExecutor(_READERS) as pool:  # applies to all threads
        warnings.simplefilter("ignore", pd.errors.ParserWarning)  # values reveal rows of the wrong length
        for piece in pieces:
            waiting.append((piece, pool.submit(work, piece)))
            if len(waiting) > _READERS:
                first, done = waiting.popleft()
                yield first, done.result()
        for first, done in waiting:
            yield first, done.result()


def _chunks(stream: Utf8, header_bytes: int, size: int, notes: Notes) -> Iterator[bytes]:
    """Yield pieces that end at a line break."""
    held = last = b""
    skip = header_bytes
    while more := stream.read(size):
        if skip:
            more, skip = more[skip:], max(0, skip - len(more))
        cut = more.rfind(b"\n") + 1
        piece = b"".join([held, memoryview(more)[:cut]])
        held = more[cut:] if cut else held + more
        more = b""  # blocks are large: do not keep a second one
        if cut:
            last = piece[-100:]
            yield piece
        elif len(held) > LONGEST_LINE_BYTES:
            break
    if len(held) > LONGEST_LINE_BYTES:
        longest = f"a line longer than {LONGEST_LINE_BYTES >> 20} MiB"
        raise UnreadableError(longest, "this is not a table; pass the right file")
    if not held.strip():
        return
    if last and not _as_long(held, last):
        notes.add("the last line is cut off", DROPPED)
    else:
        said = "the last line does not end in a newline: the file may be cut off"
        notes.add(said, ABORTED)
        yield held


def _as_long(line: bytes, before: bytes) -> bool:
    """Return whether the last number of an unterminated line has as many digits as the previous line's.

    The profilers terminate every line, so this one was truncated and its last number may have lost digits. Timestamps
    are equally long, and values have the same number of decimals.
    """
    ours, theirs = (text.strip().rpartition(b",")[2].partition(b".") for text in (line, before))
    return len(ours[2]) == len(theirs[2]) and (bool(ours[1]) or len(ours[0]) == len(theirs[0]))


def count_byte(data: bytes, byte: bytes) -> int:
    """Count a byte; several times faster than `bytes.count` for frequent bytes."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == byte[0]))


class _Parser:
    def __init__(self, header: Header, wanted: Mapping[str, tuple[int, str]], notes: Notes) -> None:
        self._header, self._wanted, self._notes = header, wanted, notes
        self._name_at = wanted["kernel"][0] if "kernel" in wanted else None
        self.unfinished = b""  # the start of a record that the next block completes
        self._delimiter = ord(header.delimiter)

    def regular(self, data: bytes) -> dict[str, Any] | None:
        """Return the columns of a block that pandas reads correctly; None otherwise."""
        try:
            self._check(data)
            return self._read(data)
        except (ValueError, OverflowError):  # includes pandas' parser errors and IrregularError
            return None

    def parse(self, data: bytes, line: int, columns: dict[str, Any] | None) -> RecordBlock:
        """Return the records of a block: the given columns if it is regular."""
        if columns is not None:
            return RecordBlock(len(next(iter(columns.values()))), line, columns)
        width = len(self._header.names)
        delimiter = self._header.delimiter
        rows, lines, self.unfinished = split_records(data, width, delimiter, self._name_at, line, self._notes)
        return self._convert(pd.DataFrame(rows, lines, range(width), dtype="object"), line)

    def _check(self, data: bytes) -> None:
        """Refuse data that pandas would misread without an error.

        That is 8.1E+14, which pandas takes for an integer (spreadsheets write a capital E, profilers do not), unpaired
        quotes, and a quote next to neither a delimiter nor a line break. pandas rejects a block of only blank lines.

        Raises:
            IrregularError: When the data contains any of these.
        """
        if data.isspace():
            raise IrregularError(" ")
        text = np.frombuffer(data, np.uint8)
        quotes = 0
        for begin in range(0, len(text), _IN_CACHE):
            part = text[begin : begin + _IN_CACHE + 2]  # plus two bytes of the next part
            if ((part[:-1] == ord("E")) & (part[1:] == ord("+"))).any():
                raise IrregularError("E+")
            quote, edge = part == ord('"'), part == self._delimiter
            edge |= part == ord("\n")
            edge |= part == ord("\r")
            if (quote[1:-1] & ~(edge[:-2] | edge[2:])).any():
                raise IrregularError('"')
            quotes += int(np.count_nonzero(quote[:_IN_CACHE]))
        if quotes % 2:
            raise IrregularError('"')

    def _read(self, data: bytes) -> dict[str, Any]:
        """Return the columns of all records.

        Raises:
            ValueError: When a value does not have its column's type (`IrregularError` is one).
        """
        types = {position: _STRICT[kind] for position, kind in self._wanted.values()}
        with np.errstate(invalid="ignore"):  # "nan" for an integer is rejected below
            frame = pd.read_csv(
                io.BytesIO(data), header=None, names=range(len(self._header.names)), usecols=sorted(types),
                index_col=False, sep=self._header.delimiter, dtype=types, na_filter=False, low_memory=False,
                encoding_errors="replace",
            )  # fmt: skip
        columns: dict[str, Any] = {}
        for name, (position, kind) in self._wanted.items():
            column = frame[position]
            if kind == "label":
                numbers = pd.api.types.is_numeric_dtype(column.cat.categories.dtype)
                if numbers and name not in _NUMBERS_AS_LABELS:  # pandas parsed names like 1e5 as numbers
                    raise IrregularError(name)
                columns[name] = column.array
            else:
                columns[name] = column.to_numpy()
                # pandas 3.0 returns uint64 for numbers beyond int64, whatever dtype is requested.
                if columns[name].dtype != _STRICT[kind] or not (kind == "int" or np.isfinite(columns[name]).all()):
                    raise IrregularError(name)
        return columns

    def _convert(self, frame: pd.DataFrame, line: int) -> RecordBlock:
        """Convert text to columns and note values that do not fit; the index holds the line numbers."""
        names = self._header.names
        label = next((position for position, kind in self._wanted.values() if kind == "label"), None)
        if label is not None:
            repeated = (frame[label] == names[label]).to_numpy()
            self._notes.add(
                "the header line occurs {n} more [time|times] (files were joined)",
                "[that line is|those lines are] dropped", count=int(repeated.sum()), line=_first(frame.index, repeated),
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
                is_time = name in {"start_ns", "end_ns"}
                shown = "[timestamp|timestamps]" if is_time else f"[value|values] of {names[position]}"
                columns[name] = self._integers(cells.str.strip(), shown)
        return RecordBlock(len(frame), line, columns, frame.index)

    def _integers(self, cells: pd.Series, name: str) -> NDArray[np.int64]:
        integers = np.full(len(cells), MISSING, np.int64)
        rounded = cells.str.fullmatch(r"[\d.,]+E\+?\d+").to_numpy(bool)
        self._notes.add(
            f"{{n}} {name} in scientific notation: a spreadsheet rounded [it|them]", "not used; use the original file",
            count=int(rounded.sum()), line=_first(cells.index, rounded),
        )  # fmt: skip
        exact = cells.str.fullmatch(r"[+-]?\d{1,19}").to_numpy() & ~rounded
        whole = pd.to_numeric(cells[exact], errors="coerce")
        if whole.dtype != np.int64:  # a 19-digit number beyond int64
            whole = whole.where(whole.abs() < 2.0**63, np.nan)
        integers[np.flatnonzero(exact)[whole.notna().to_numpy()]] = whole.dropna().to_numpy(np.int64)
        rest = ~exact & ~rounded & (cells != "").to_numpy()
        if rest.any():
            near = pd.to_numeric(cells[rest], errors="coerce").to_numpy(np.float64)
            fits = np.isfinite(near) & (np.abs(near) < 2.0**63)
            integers[np.flatnonzero(rest)[fits]] = np.rint(near[fits]).astype(np.int64)
            self._notes.add(
                f"{{n}} {name} [is not a number|are not numbers]", "treated as missing", count=int((~fits).sum()),
                line=_first(cells.index[rest], ~fits),
            )  # fmt: skip
        return integers


def _first(lines: pd.Index, which: NDArray[np.bool_]) -> int | None:
    """Return the line of the first record in the mask, if any."""
    return int(lines[which][0]) if which.any() else None


class IrregularError(ValueError):
    """Raised when a piece of CSV is too irregular for pandas and must be read line by line."""


def split_records(
    data: bytes, fields: int, delimiter: str, name_at: int | None, line: int, notes: Notes
) -> tuple[list[list[str]], list[int], bytes]:
    """Return the fields of every record, the line of each record, and the start of an incomplete record.

    Lines that cannot be split are dropped and noted.

    Args:
        data: Complete lines.
        fields: Number of columns.
        delimiter: The character between them.
        name_at: Position of the kernel name, or None if the table has none.
        line: Line number of the first line.
        notes: Collects problems.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    held: list[str] = []  # lines of an incomplete record
    began = line
    for number, raw in enumerate(data.decode(errors="replace").removesuffix("\n").split("\n"), line):
        text = raw.removesuffix("\r")
        if not held and not text.strip():
            continue
        record = _split(text, fields, delimiter, name_at)
        if record is None and held:
            record = _split("\n".join([*held, text]), fields, delimiter, name_at)
        elif held:  # this line is a complete record, so the previous one never ended
            drop(notes, began, len(held))
            held = []
        if record is not None:
            rows.append(record)
            lines.append(began if held else number)
            held = []
            continue
        if not held:
            began = number
        held.append(text)
        if len(held) > MOST_LINES or '"' not in held[0]:  # only a quoted name may span lines
            drop(notes, began, len(held))
            held = []
    return rows, lines, "".join(f"{text}\n" for text in held).encode()


def drop(notes: Notes, line: int, count: int) -> None:
    """Note dropped lines."""
    notes.add("{n} [line is not a record|lines are not records] of this table", DROPPED, count=count, line=line)


def _split(text: str, fields: int, delimiter: str, name_at: int | None) -> list[str] | None:
    """Return the fields of one record, or None if the text is not a record."""
    try:
        rows = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        rows = []
    if len(rows) == 1 and len(rows[0]) == fields:
        return rows[0]
    pieces = text.split(delimiter)
    if name_at is None or len(pieces) < fields:
        return None
    after = fields - name_at - 1
    name = delimiter.join(pieces[name_at : len(pieces) - after])
    left, right = _plain(pieces[:name_at]), _plain(pieces[len(pieces) - after :])
    if left is None or right is None or name.startswith('"') != (len(name) > 1 and name.endswith('"')):
        return None
    return [*left, name[1:-1] if name.startswith('"') else name, *right]


def _plain(pieces: Sequence[str]) -> list[str] | None:
    """Return fields without their quotes, or None if one of them contains a quote or a line break."""
    fields = [
        piece[1:-1] if len(piece) > 1 and piece[0] == piece[-1] == '"' else piece for piece in map(str.strip, pieces)
    ]
    return None if any('"' in field or "\n" in field for field in fields) else fields
