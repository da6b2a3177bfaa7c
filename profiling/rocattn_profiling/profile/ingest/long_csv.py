"""Reader of CSV with a row per dispatch and counter, or per dispatch (rocprofv3, `rocpd convert`, rocprof-compute 3).

The columns of a dispatch are repeated in the row of each of its counters. Rows of one dispatch are neighbours in real
files, so each run of equal keys is read once; runs of the same dispatch that lie apart are put together at the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn_profiling.profile.ingest import columns
from rocattn_profiling.profile.ingest.csv_text import blocks
from rocattn_profiling.profile.ingest.dispatches import product, resolve
from rocattn_profiling.profile.ingest.instances import combine
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    Notes,
    Part,
    Vocabulary,
    categorical,
    dispatch_frame,
    joined,
    kernel_name,
    narrow,
    one_pass,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from rocattn_profiling.profile.ingest.csv_text import Block, Header

_NUMBER = re.compile(r"(\d+)\s*$")


def number_in(text: str) -> int:
    """Return the number at the end of "Agent 4", "Queue 0" or "4"; `MISSING` if there is none."""
    match = _NUMBER.search(text)
    return int(match[1]) if match and len(match[1]) < 19 else MISSING


def wanted_columns(header: Header) -> dict[str, tuple[int, str]]:
    """Return which columns of a header to read, and as what."""
    return {
        name: (position, "label" if name in columns.LABELS else "float" if name in columns.FLOATS else "int")
        for name, position in columns.positions(header.names).items()
    }


def read_long(path: Path, header: Header, part: Part) -> Part:
    """Read a CSV file with a row per dispatch and counter, or per dispatch if it has no counter column."""
    notes = Notes(part.source.file)
    wanted = wanted_columns(header)
    reader = _LongReader(wanted, notes)
    by_dispatch = not {"guid", "replay"} & set(wanted)  # which also tell rows apart
    for block in blocks(path, header, wanted, notes, by_dispatch=by_dispatch):
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

    def take(self, block: Block) -> None:
        """Add a block's rows."""
        made = {name: self._coded(name, values) for name, values in block.columns.items()}
        if block.firsts is None or block.starts is None:
            keep = self._usable(made, block)
            if not keep.all():
                made = {name: values[keep] for name, values in made.items()}
            rows = int(keep.sum())
            if not rows:
                return
            starts = self._run_starts(made, rows)
            firsts = {name: values[starts] for name, values in made.items()}
        else:
            rows, starts = block.rows, block.starts
            firsts = {name: self._coded(name, values) for name, values in block.firsts.items()}
        runs = {name: narrow(v) for name, v in firsts.items() if name not in {"counter", "value"}}
        if "counter" in made:
            lengths = np.diff(np.append(starts, rows))
            if self._runs and all(self._runs[-1][name][-1] == values[0] for name, values in runs.items()):
                runs = {name: values[1:] for name, values in runs.items()}  # a dispatch that began in the last block
                self._seen -= 1
            numbers = np.arange(self._seen, self._seen + len(starts), dtype=np.int32)
            self._rows.append(np.repeat(numbers, lengths))
            self._codes.append(made["counter"].astype(np.int16))
            self._values.append(made["value"])
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

    def _usable(self, made: dict[str, NDArray[Any]], block: Block) -> NDArray[np.bool_]:
        """Return which rows have what a row needs: a dispatch number where there are numbers, and a value."""
        keep = np.ones(block.rows, bool)
        if "dispatch" in made:
            keep &= made["dispatch"] != MISSING
        self._notes.add(
            "{n} rows without a dispatch number", "dropped; profile again",
            count=int((~keep).sum()), line=block.first_line,
        )  # fmt: skip
        if "value" in made:
            missing = keep & np.isnan(made["value"])
            self._notes.add(
                "{n} counter values are missing or no numbers", "treated as not measured",
                count=int(missing.sum()), line=block.first_line,
            )  # fmt: skip
            keep &= ~missing
        return keep

    @staticmethod
    def _run_starts(made: dict[str, NDArray[Any]], rows: int) -> NDArray[np.intp]:
        """Return where the dispatch changes; in a trace every row is one."""
        if "counter" not in made:
            return np.arange(rows)
        changes = np.zeros(rows, bool)
        changes[0] = True
        for name in ("dispatch", "process", "guid", "replay", "start_ns"):
            if name in made:
                changes[1:] |= made[name][1:] != made[name][:-1]
        return np.flatnonzero(changes)

    def finish(self, part: Part) -> None:
        """Fill the part with what was read."""
        if not self._runs:
            part.skip("it holds no rows: nothing was dispatched, or a filter excluded everything")
            return
        runs = {name: joined([run.pop(name) for run in self._runs]) for name in list(self._runs[0])}
        self._runs.clear()
        resolved = resolve(runs, self._notes)
        passes = row_of_run = None
        if resolved is not None:
            first, row_of_run, passes = resolved
            if len(first) < len(row_of_run) and "counter" not in self._wanted:
                self._notes.add(
                    "{n} dispatches occur more than once", "read once", count=len(row_of_run) - len(first)
                )  # fmt: skip
            runs = {name: values[first] for name, values in runs.items()}
        self._kernels.note_broken(self._notes)
        part.numbered = "dispatch" in runs
        # Up to 6.4 rocprofv3 writes a node id, from 7.0 on "Agent N", which counts otherwise.
        agents = self._numbers["agent"]
        part.by_node = part.source.tool == "rocprofv3" and bool(agents) and all(map(str.isdecimal, agents))
        part.dispatches = self._frame(runs, part.pass_label, passes)
        del runs  # before the counters are joined, which takes twice their memory for a moment
        if "counter" in self._wanted:
            rows = joined(self._rows)
            rows = rows if row_of_run is None else row_of_run[rows]
            names = list(self._counters.codes)
            made = combine(rows, joined(self._codes), joined(self._values), names, self._notes)
            part.counters, part.instances = made

    def _frame(self, runs: dict[str, NDArray[Any]], label: str, passes: NDArray[np.int32] | None) -> pd.DataFrame:
        count = len(runs["kernel"])
        made: dict[str, Any] = {name: runs[name] for name in runs if name not in {"guid", "replay"}}
        made["kernel"] = self._kernels.categorical(runs["kernel"])
        for whole in ("grid", "block"):
            if whole not in made and f"{whole}_x" in made:
                made[whole] = product(made, whole)
        if "dispatch" not in made:  # rocprofv3 6.2.0 traces: count them as they started
            order = np.argsort(runs["start_ns"], kind="stable") if "start_ns" in runs else np.arange(count)
            made["dispatch"] = np.empty(count, np.int64)
            made["dispatch"][order] = np.arange(1, count + 1)
        if passes is None or not passes.any():
            made["pass"] = one_pass(label, count)
        else:
            made["pass"] = categorical(passes, [f"{label}[{index}]" for index in range(int(passes.max()) + 1)])
        return dispatch_frame(made, count)
