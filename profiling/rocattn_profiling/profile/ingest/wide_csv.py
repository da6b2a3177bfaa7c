"""Read CSV with one row per dispatch and one column per counter (rocprof v1 and v2, Omniperf, rocprof-compute).

rocprof-compute merges the files of its passes into one ``pmc_perf.csv``: side by side, with repeated description
columns before each pass's counters (``wave_size_3``, ``Kernel_ID_3``). These show which counters were measured in the
same run, so each group becomes a separate pass: a ratio of counters from two groups would mix two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest import columns
from rocattn_profiling.profile.ingest.csv_text import Header, blocks
from rocattn_profiling.profile.ingest.instances import MOST_COUNTERS, accumulator_names, base_name
from rocattn_profiling.profile.ingest.long_csv import number_in
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    NO_COUNTERS,
    NO_NUMBER,
    NO_ROWS,
    REUSED,
    FilePart,
    Notes,
    UnreadableError,
    Vocabulary,
    categorical,
    counter_frame,
    dispatch_frame,
    kernel_name,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class CounterGroup:
    """The counters of one pass in a wide file.

    Attributes:
        counters: Counter -> positions of its columns (several for ``TCC_HIT[0]``, ``TCC_HIT[1]``, ...).
    """

    counters: dict[str, list[int]] = field(default_factory=dict)

    def named(self) -> list[str]:
        """Return the counter names; an accumulator is named after its level counter."""
        names = accumulator_names(list(self.counters))
        return [names.get(counter, counter) for counter in self.counters]


def counter_groups(header: list[str], notes: Notes) -> list[CounterGroup]:
    """Return the counters of a wide header, grouped by pass."""
    groups: dict[int, CounterGroup] = {}
    current = 0
    taken: set[str] = set()
    for position, name in enumerate(header):
        number = columns.repeated_description(name)
        current = max(current, number or 0)
        if columns.is_description(name) or not name:
            continue
        group = groups.setdefault(current, CounterGroup())
        base = name.removesuffix(f"_{current}") if current else name
        counter = (
            base if base in taken else name
        )  # the merge appends a number to a counter that an earlier pass also has
        if counter in taken and counter == name:
            notes.add("{n} counter [column is|columns are] repeated", "the first of each is read")
            continue
        taken.add(counter)
        group.counters.setdefault(base_name(counter), []).append(position)
    return [groups[key] for key in sorted(groups)]


def read_wide(path: Path, header: Header, part: FilePart) -> FilePart:
    """Read a CSV file with one row per dispatch and one column per counter."""
    notes = Notes(part.source.file)
    groups = counter_groups(header.names, notes)
    places = [position for group in groups for at in group.counters.values() for position in at]
    if len(places) > MOST_COUNTERS:
        raise UnreadableError(f"{len(places)} counter columns", NO_COUNTERS)
    wanted: dict[str, tuple[int, str]] = {
        name: (position, "label" if name in {"kernel", "agent", "queue"} else "int")
        for name, position in columns.positions(header.names).items()
    }
    wanted |= {f"#{position}": (position, "float") for position in places}
    kernels = Vocabulary(kernel_name)
    pieces: list[dict[str, NDArray[Any]]] = []
    values: list[NDArray[np.float64]] = []
    for block in blocks(path, header, wanted, notes):
        described = {name: _coded(name, block.columns[name], kernels) for name in wanted if name[0] != "#"}
        keep = described["dispatch"] != MISSING if "dispatch" in described else np.ones(block.rows, bool)
        notes.add(NO_NUMBER, "dropped; profile again", count=int((~keep).sum()), line=block.line_of(~keep))
        pieces.append({name: column[keep] for name, column in described.items()})
        if places:
            values.append(np.column_stack([block.columns[f"#{position}"] for position in places])[keep])
    rows = sum(len(piece["kernel"]) for piece in pieces)
    if not rows:
        part.problems += notes.problems()
        return part.skip(NO_ROWS)
    joined: dict[str, Any] = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    _note_reused(joined, notes)
    kernels.note_broken(notes)
    joined["kernel"] = kernels.categorical(joined["kernel"])
    matrix = np.concatenate(values) if places else np.zeros((rows, 0))
    values.clear()
    _fill(part, joined, groups, matrix, {position: index for index, position in enumerate(places)})
    part.problems += notes.problems()
    return part


def _coded(name: str, values: Any, kernels: Vocabulary) -> NDArray[Any]:
    if name == "kernel":
        return kernels.encode(values)
    if name in {"agent", "queue"}:
        known = np.array([number_in(str(text)) for text in values.categories] or [MISSING], np.int64)
        numbers: NDArray[np.int64] = known[values.codes]
        return numbers
    return np.asarray(values)


def _note_reused(described: Mapping[str, NDArray[Any]], notes: Notes) -> None:
    owner = [described[name] for name in ("process", "dispatch") if name in described]
    if "dispatch" in described:
        reused = int(pd.DataFrame(dict(enumerate(owner))).duplicated().sum())
        notes.add(REUSED, "distinguished by their order in the file; give every process its own file", count=reused)


def _fill(
    part: FilePart,
    described: dict[str, Any],
    groups: list[CounterGroup],
    matrix: NDArray[np.float64],
    index: dict[int, int],
) -> None:
    """Fill the part: each group of counters becomes a pass with its own rows."""
    rows = len(described["kernel"])
    labels = [part.pass_label] if len(groups) < 2 else [f"{part.pass_label}[{n}]" for n in range(len(groups))]
    copies = len(labels)
    repeated: dict[str, Any] = {
        name: np.tile(np.asarray(v), copies) for name, v in described.items() if name != "kernel"
    }
    kernel = described["kernel"]
    repeated["kernel"] = categorical(np.tile(kernel.codes, copies), kernel.categories)
    repeated["pass"] = categorical(np.repeat(np.arange(copies, dtype=np.int16), rows), labels)
    part.dispatches = dispatch_frame(repeated, rows * copies)
    part.numbered = "dispatch" in described
    names = list(dict.fromkeys(name for group in groups for name in group.named()))
    code_of = {name: code for code, name in enumerate(names)}
    pieces = [
        _group_values(group, matrix, index, rows * number, [code_of[name] for name in group.named()])
        for number, group in enumerate(groups)
    ]
    if not pieces:
        return
    row, code, value, count, largest = (np.concatenate(column) for column in zip(*pieces, strict=True))
    counter = categorical(code, names)
    part.counters = counter_frame(row, counter, value)
    split = count > 1
    part.instances = pd.DataFrame({
        "row": row[split], "counter": counter[split], "instances": count[split].astype(np.int32), "max": largest[split],
    })  # fmt: skip


def _group_values(
    group: CounterGroup, matrix: NDArray[np.float64], index: dict[int, int], offset: int, codes: list[int]
) -> tuple[NDArray[Any], ...]:
    """Return row, code, sum, number of instances and maximum of a group's measured values, row by row.

    A counter with a missing instance counts as not measured.
    """
    sums, counts, largest = [], [], []
    for positions in group.counters.values():
        part = matrix[:, [index[position] for position in positions]]
        counts.append(np.where(np.isnan(part).any(axis=1), 0, len(positions)))
        sums.append(part.sum(axis=1))
        largest.append(part.max(axis=1))
    count = np.column_stack(counts)
    rows, at = np.nonzero(count)
    row = (rows + offset).astype(np.int32)
    code = np.array(codes, np.int16)[at]
    return row, code, np.column_stack(sums)[rows, at], count[rows, at], np.column_stack(largest)[rows, at]
