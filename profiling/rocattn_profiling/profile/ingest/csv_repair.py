"""Splits CSV records whose quotes do not add up, line by line.

rocprofv3 writes kernel names in quotes and does not escape quotes inside them, rocprof v1 may not quote them at all;
names hold commas and line ends. Every other field is free of all three, so the name is what stands between the right
number of plain fields before it and after it.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.profile.ingest.parts import Notes

MOST_LINES = 64  # of one record; what is longer never ends, and joining it again and again would not either


def split_records(
    data: bytes, fields: int, delimiter: str, name_at: int | None, line: int, notes: Notes
) -> tuple[list[list[str]], bytes]:
    """Return the fields of every record, and the begin of one that is not complete yet.

    What cannot be split is dropped and noted.

    Args:
        data: Complete lines.
        fields: Number of columns.
        delimiter: The character between them.
        name_at: Position of the kernel name, or None if the table has none.
        line: Line number of the first line.
        notes: Takes what is wrong.
    """
    rows: list[list[str]] = []
    held: list[str] = []  # lines of a record that has not ended yet
    began = line
    for number, raw in enumerate(data.decode(errors="replace").removesuffix("\n").split("\n"), line):
        text = raw.removesuffix("\r")
        if not held and not text.strip():
            continue
        record = _split(text, fields, delimiter, name_at)
        if record is None and held:
            record = _split("\n".join([*held, text]), fields, delimiter, name_at)
        elif held:  # this line is a record of its own: what was held never ended
            drop(notes, began, len(held))
            held = []
        if record is not None:
            rows.append(record)
            held = []
            continue
        if not held:
            began = number
        held.append(text)
        if len(held) > MOST_LINES or '"' not in held[0]:  # only a quoted name goes on in the next line
            drop(notes, began, len(held))
            held = []
    return rows, "".join(f"{text}\n" for text in held).encode()


def drop(notes: Notes, line: int, count: int) -> None:
    """Note lines that are dropped."""
    notes.add(
        "{n} lines are no records of this table", "dropped; profile again if the run was aborted",
        count=count, line=line,
    )  # fmt: skip


def _split(text: str, fields: int, delimiter: str, name_at: int | None) -> list[str] | None:
    """Return the fields of one record, or None if the text is not one."""
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
    """Return fields without their quotes, or None if one of them holds a quote or a line end."""
    fields = [
        piece[1:-1] if len(piece) > 1 and piece[0] == piece[-1] == '"' else piece for piece in map(str.strip, pieces)
    ]
    return None if any('"' in field or "\n" in field for field in fields) else fields
