"""The result of reading one file, and helpers shared by all readers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import plain
from rocattn_profiling.profile.ingest.table import (
    ACTIVITY_DTYPES,
    AGENT_DTYPES,
    COUNTER_DTYPES,
    DISPATCH_DTYPES,
    INSTANCE_DTYPES,
    NO_DISPATCH,
    NO_PROCESS,
    ROOF_DTYPES,
    SAMPLE_DTYPES,
    SUMMARY_DTYPES,
    FileProblem,
    Source,
    empty,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Messages of several readers.
ABORTED = "profile again if the run was aborted"
DROPPED = f"dropped; {ABORTED}"
NO_DISPATCHES = "it contains no dispatches: nothing was dispatched, or only other domains were traced"
NO_ROWS = "it contains no rows: nothing was dispatched, or a filter excluded everything"
NO_NUMBER = "{n} [row|rows] without a dispatch number"
NO_VALUE = "{n} counter [value is missing or not a number|values are missing or not numbers]"
REUSED = "{n} dispatch [number is|numbers are] used for several dispatches"
REPORT_IT = "report it with the file"
NO_COUNTERS = "this is not a counter file"
MISSING = np.iinfo(np.int64).min  # an integer that the file does not state
Activity = tuple[int, int, str, str, int, int, int]
"""Process, the profiler's GPU number, kind, name, start and end in ns, bytes; `MISSING` where not stated."""
_LEAST_ROW_BYTES = 16  # a real dispatch takes over 60 bytes in the file
_LEAST_LETTERS, _REPEATED = 16 << 20, 8
_FALLBACK = {"process": NO_PROCESS, "dispatch": NO_DISPATCH, "grid": -1, "block": -1}
_NUMPY = {"Int32": np.int32, "Int64": np.int64}


class UnreadableError(RocattnError):
    """Raised inside the package when a file cannot be read; becomes a `FileProblem`, and reading continues."""

    def __init__(self, what: str, remedy: str, line: int | None = None) -> None:
        what = plain(what)  # it may quote the file
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy, self.line = what, remedy, line


class Database(sqlite3.Connection):
    """A profiler's database with bounded queries: its views are untrusted.

    Attributes:
        file_bytes: Its size, which limits the rows and text that are read.
    """

    file_bytes: int = 0

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        Raises:
            UnreadableError: When there are more rows, or longer text, than the file can contain.
        """
        letters = 0
        for rows, row in enumerate(self.execute(query), 1):
            letters += sum(len(value) for value in row if isinstance(value, str | bytes))
            self.check(rows, letters)
            yield row

    def check(self, rows: int, letters: int = 0) -> None:
        """Reject more rows or characters than the file can contain; views repeat names."""
        if rows > self.file_bytes // _LEAST_ROW_BYTES or letters > _LEAST_LETTERS + _REPEATED * self.file_bytes:
            raise UnreadableError("its views return more than the file can hold", "this is not a profiler's file")


class Notes:
    """Collects the problems of one file and counts repeated ones."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[str, str], tuple[int, int | None]] = {}

    def add(self, what: str, remedy: str, *, count: int = 1, line: int | None = None) -> None:
        """Note a problem.

        ``{n}`` in the text becomes the count, and ``[row|rows]`` singular or plural; ``line`` is the first case's.
        """
        if count:
            before, first = self._found.get((what, remedy), (0, line))
            self._found[what, remedy] = (before + count, first)

    def problems(self) -> list[FileProblem]:
        """Return the problems in order of first occurrence."""
        return [
            FileProblem(self._file, line, *(counted(text, count) if "{n}" in what else text for text in (what, remedy)))
            for (what, remedy), (count, line) in self._found.items()
        ]


_EITHER = re.compile(r"\[([^][|]*)\|([^][|]*)\]")


def counted(text: str, count: int) -> str:
    """Fill in the count and choose singular or plural: "{n} [row is|rows are] dropped"."""
    return _EITHER.sub(lambda either: either[1 if count == 1 else 2], text).replace("{n}", f"{count:,}")


def kernel_name(text: str) -> str:
    """Remove the suffixes of rocprof v1 and v2 from a kernel's name, so that all tools agree on it."""
    name = text.strip().replace("\r\n", "\n")
    for suffix in (" [clone .kd]", " (.kd)", ".kd"):
        name = name.removesuffix(suffix)
    return name.rstrip()


class Vocabulary:
    """Integer codes for distinct texts, so that a name in many rows is stored once."""

    def __init__(self, clean: Callable[[str], str] = str) -> None:
        self._clean = clean
        self.codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """Return the code of a text."""
        return self.codes.setdefault(self._clean(text), len(self.codes))

    def encode(self, labels: pd.Categorical) -> NDArray[np.int32]:
        """Return the codes of texts."""
        known = np.fromiter((self.code(str(text)) for text in labels.categories), np.int32, len(labels.categories))
        return known[labels.codes] if len(known) else np.zeros(0, np.int32)

    def categorical(self, codes: NDArray[Any]) -> Any:
        """Return the texts of these codes."""
        return categorical(codes, list(self.codes))

    def note_broken(self, notes: Notes) -> None:
        """Note names that were not UTF-8."""
        broken = sum("\ufffd" in text for text in self.codes)
        notes.add(
            "{n} kernel [name contains|names contain] bytes that are not UTF-8",
            "those bytes are shown as \ufffd",
            count=broken,
        )


def categorical(codes: NDArray[Any], names: Sequence[str]) -> Any:
    """Return a categorical of these names."""
    return pd.Categorical.from_codes(codes, categories=pd.Index(list(names), dtype="object"))


@dataclass
class FilePart:
    """The tables read from one file.

    Attributes:
        source: The file and the tool that wrote it.
        scope: The run's folder, where agents and traces are looked up.
        family: One of the formats that a run may write side by side: "csv", "json", "rocpd" or "chrome".
        pass_label: Name of the rows' pass (rows may append a group).
        dispatches: Columns of `DISPATCH_DTYPES`; ``agent`` is still the profiler's own number.
        activities: Columns of `ACTIVITY_DTYPES` (`activity_frame` makes it); ``agent`` as in dispatches.
        numbered: False if the file does not number its dispatches; they are numbered by start time.
        timing: True for a kernel trace, which supplies the times of counter rows.
        by_node: True if ``agent`` is a node id.
        system: Facts about the run.
    """

    source: Source
    scope: str = ""
    family: str = "csv"
    pass_label: str = ""
    dispatches: pd.DataFrame = field(default_factory=lambda: empty(DISPATCH_DTYPES))
    counters: pd.DataFrame = field(default_factory=lambda: empty(COUNTER_DTYPES))
    activities: pd.DataFrame = field(default_factory=lambda: empty(ACTIVITY_DTYPES))
    instances: pd.DataFrame = field(default_factory=lambda: empty(INSTANCE_DTYPES))
    agents: pd.DataFrame = field(default_factory=lambda: empty(AGENT_DTYPES))
    summaries: pd.DataFrame = field(default_factory=lambda: empty(SUMMARY_DTYPES))
    roofs: pd.DataFrame = field(default_factory=lambda: empty(ROOF_DTYPES))
    samples: pd.DataFrame = field(default_factory=lambda: empty(SAMPLE_DTYPES))
    system: dict[str, str] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)
    numbered: bool = True
    timing: bool = False
    by_node: bool = False

    def skip(self, why: str) -> FilePart:
        """Mark this part as skipped for this reason, and return it."""
        self.source = replace(self.source, skipped=why)
        return self


def nullable(values: NDArray[Any], dtype: str) -> Any:
    """Return a nullable integer array; `MISSING` and values that do not fit the type become <NA>."""
    kind = _NUMPY[dtype]
    mask = values == MISSING
    if kind is np.int32 and values.dtype != np.int32:
        mask |= (values > np.iinfo(np.int32).max) | (values < np.iinfo(np.int32).min)
    held = values.astype(kind, copy=bool(mask.any()))
    if mask.any():
        held[mask] = 1
    return pd.arrays.IntegerArray(held, mask)


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return integers from a file as an array; `MISSING` for None and for integers of more than 64 bits."""
    try:
        return np.array(values, np.int64)
    except (OverflowError, TypeError):
        return np.array([MISSING if each is None or abs(each) >= -MISSING else each for each in values], np.int64)


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Copy integers into 32 bits if all of them fit, so that the original can be freed."""
    limits = np.iinfo(np.int32)
    if not len(values) or (values.min() >= limits.min and values.max() <= limits.max):
        return values.astype(np.int32)
    return values.copy()


def joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays and free the pieces."""
    whole = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    pieces.clear()
    return whole


def dispatch_frame(columns: Mapping[str, Any], rows: int) -> pd.DataFrame:
    """Build the dispatches frame from integer arrays (`MISSING` where unknown) and categoricals.

    Absent columns are unknown.
    """
    arrays: dict[str, Any] = {}
    for name, dtype in DISPATCH_DTYPES.items():
        values = columns.get(name)
        if dtype == "category":
            arrays[name] = one_pass("", rows) if values is None else values
        elif values is None:
            unknown = np.full(rows, _FALLBACK.get(name, MISSING), np.int64)
            arrays[name] = nullable(unknown, dtype) if dtype in _NUMPY else unknown.astype(dtype)
        elif dtype in _NUMPY:
            arrays[name] = nullable(np.asarray(values), dtype)
        else:
            arrays[name] = _plain(np.asarray(values), dtype, _FALLBACK[name])
    return pd.DataFrame(arrays, copy=False)


def _plain(values: NDArray[Any], dtype: str, unknown: int) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    outside = (values < limits.min) | (values > limits.max) | (values == MISSING)
    return (np.where(outside, unknown, values) if outside.any() else values).astype(dtype, copy=False)


def one_pass(label: str, rows: int) -> Any:
    """Return the pass column for a file with a single pass."""
    return categorical(np.zeros(rows, np.int8), [label])


def counter_frame(row: NDArray[Any], counter: Any, value: NDArray[np.float64]) -> pd.DataFrame:
    """Build the counters frame without copying the arrays."""
    return pd.DataFrame({"row": row.astype(np.int32, copy=False), "counter": counter, "value": value}, copy=False)


def activity_frame(rows: Sequence[Activity], label: str, notes: Notes) -> pd.DataFrame:
    """Build the activities frame; drop and note those that do not end after they start."""
    kept = [row for row in rows if MISSING < row[4] < row[5] < -MISSING]
    backwards = len(rows) - len(kept)
    notes.add(
        "{n} [copy ends before it starts|copies end before they start]", "left out of the time line", count=backwards
    )
    if not kept:
        return empty(ACTIVITY_DTYPES)
    process, agent, kind, name, start, end, size = zip(*kept, strict=True)
    columns = {
        "pass": one_pass(label, len(kept)), "process": _plain(integers(process), "int32", NO_PROCESS),
        "agent": nullable(integers(agent), "Int32"), "kind": pd.Categorical(kind),
        "name": pd.Categorical(name), "start_ns": np.array(start, np.int64), "end_ns": np.array(end, np.int64),
        "bytes": nullable(integers(size), "Int64"),
    }  # fmt: skip
    return pd.DataFrame(columns, copy=False)


def agent_frame(agents: Sequence[Mapping[str, Any]], file: str) -> pd.DataFrame:
    """Build the agents frame from one mapping per GPU; missing keys and None are unknown."""
    frame = empty(AGENT_DTYPES)
    if not agents:
        return frame
    columns = {}
    for name, dtype in AGENT_DTYPES.items():
        values = [file if name == "file" else agent.get(name) for agent in agents]
        columns[name] = pd.Series(nullable(integers(values), dtype) if dtype in _NUMPY else values, dtype=dtype)
    return pd.DataFrame(columns)
