"""Reader of the counters of rocprof-compute's own tool (2026), which stand in three files of a process and pass.

``counters_<pass>_<pid>.csv.gz`` has a row per launch, counter and hardware instance, ``dispatch_…`` the launches and
``kernel_symbols_…`` the kernels' names; they refer to each other by numbers that hold in that process alone. Only the
files' names say which belong together, and which process it was: rocprof-compute's analyze goes by them, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest import columns
from rocattn_profiling.profile.ingest.csv_text import HEADER_BYTES, Utf8, blocks, parse_header
from rocattn_profiling.profile.ingest.instances import combine
from rocattn_profiling.profile.ingest.long_csv import number_in, wanted_columns
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    Notes,
    Part,
    UnreadableError,
    Vocabulary,
    dispatch_frame,
    joined,
    kernel_name,
    one_pass,
)
from rocattn_profiling.profile.ingest.small_csv import rows_of, whole

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray

    from rocattn_profiling.profile.ingest.csv_text import Header

_COUNTERS = "counters"
_PROCESS = re.compile(r"_(\d{1,9})\.csv(?:\.gz)?$")


def read_by_number(path: Path, header: Header, part: Part) -> Part:
    """Read a file of counters with the launches and the kernels that stand beside it.

    Raises:
        UnreadableError: When one of those is not there.
    """
    notes = Notes(part.source.file)
    symbols = _symbols(*_beside(path, "kernel_symbols"))
    launches = _launches(*_beside(path, "dispatch"), symbols, notes)
    number = launches.pop("kernel_id")
    count = len(number)
    if not count:
        part.problems += notes.problems()
        return part.skip("it holds no rows: nothing was dispatched, or a filter excluded everything")
    part.pass_label = part.pass_label.replace(f"{_COUNTERS}_", "", 1)
    kernels = Vocabulary(kernel_name)
    made: dict[str, Any] = {**launches, "pass": one_pass(part.pass_label, count)}
    made["kernel"] = kernels.categorical(
        _looked_up(number, {n: kernels.code(name) for n, (name, *_) in symbols.items()})
    )
    for place, ours in enumerate(("vgprs", "agprs", "sgprs"), 1):
        made[ours] = _looked_up(number, {n: int(symbol[place]) for n, symbol in symbols.items()})
    if process := _PROCESS.search(path.name):
        made["process"] = np.full(count, int(process[1]), np.int64)
    part.dispatches = dispatch_frame(made, count)
    part.counters, part.instances = _counters(path, header, launches["dispatch"], notes)
    kernels.note_broken(notes)
    part.problems += notes.problems()
    return part


def _looked_up(numbers: NDArray[np.int64], known: dict[int, int]) -> NDArray[np.int64]:
    """Return what is known for each of these numbers."""
    distinct, at = np.unique(numbers, return_inverse=True)
    found: NDArray[np.int64] = np.array([known[int(number)] for number in distinct], np.int64)[at]
    return found


def _symbols(path: Path, header: Header) -> dict[int, tuple[str, int, int, int]]:
    """Return name and registers (`MISSING` where not stated) of each kernel's number."""
    found = {}
    for row in rows_of(path, header):
        if row["kernel_id"].isdecimal():
            registers = [whole(row.get(name)) for name in ("arch_vgpr", "accum_vgpr", "sgpr")]
            vgprs, agprs, sgprs = (MISSING if value is None else value for value in registers)
            found[int(row["kernel_id"])] = (row.get("kernel_name", ""), vgprs, agprs, sgprs)
    return found


def _beside(path: Path, kind: str) -> tuple[Path, Header]:
    """Return the file of this kind that belongs to a file of counters, and its header."""
    known = _COUNTERS in path.name
    other = path.with_name(path.name.replace(_COUNTERS, kind, 1) if known else f"{kind}_….csv.gz")
    if not known or not other.is_file():
        raise UnreadableError(
            f"its {'launches' if kind == 'dispatch' else 'kernels'} are not in {other.name} beside it",
            "keep the three files of a pass together, under the names that rocprof-compute gave them",
        )
    stream = Utf8(other)
    try:
        header = parse_header(stream.read(HEADER_BYTES))
    finally:
        stream.close()
    if header is None or "kernel_id" not in header.names:
        raise UnreadableError(f"{other.name} beside it is no table with a kernel_id", "profile again")
    return other, header


def _launches(path: Path, header: Header, symbols: Collection[int], notes: Notes) -> dict[str, NDArray[np.int64]]:
    """Return the columns of the launches whose kernel is known, each launch once."""
    wanted = wanted_columns(header) | {"kernel_id": (header.names.index("kernel_id"), "int")}
    pieces: dict[str, list[NDArray[np.int64]]] = {name: [] for name in wanted}
    for block in blocks(path, header, wanted, notes):
        for name, values in block.columns.items():
            if name in columns.LABELS:
                known = np.array([number_in(str(text)) for text in values.categories] or [MISSING], np.int64)
                pieces[name].append(known[values.codes])
            else:
                pieces[name].append(np.asarray(values, np.int64))
    made = {name: joined(values) for name, values in pieces.items()}
    keep = np.isin(made["kernel_id"], list(symbols))
    notes.add("{n} launches are of kernels that are not listed", "left out; profile again", count=int((~keep).sum()))
    keep[keep] = ~pd.Series(made["dispatch"][keep]).duplicated().to_numpy()
    return {name: values[keep] for name, values in made.items()}


def _counters(
    path: Path, header: Header, launches: NDArray[np.int64], notes: Notes
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the counters' and the instances' frames; rows of launches that are not known are left out."""
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
            "{n} values are of launches that are not listed", "left out; profile again", count=int((row < 0).sum()),
        )  # fmt: skip
        keep = (row >= 0) & ~np.isnan(value)
        rows.append(row[keep].astype(np.int32))
        codes.append(names.encode(block.columns["counter"])[keep].astype(np.int16))
        values.append(value[keep])
    several = Notes("")  # that a counter has a row per instance is how these files are
    return combine(joined(rows), joined(codes), joined(values), list(names.codes), several)
