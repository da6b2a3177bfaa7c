"""The listing of profiler files: for every file what wrote it, what it holds, and what is wrong in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import emit_json, print_table, say
from rocattn_profiling.base.status import NOT_MEASURED, OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.profile.ingest import FileSummary


def list_files(paths: Sequence[str], *, as_json: bool) -> int:
    """Print the listing of these files and folders, as a table on stderr or as JSON on stdout.

    Returns:
        The exit status: 3 when none of them holds a measurement.
    """
    from rocattn_profiling.profile.ingest import describe

    found = describe(paths)
    if as_json:
        emit_json({"files": [to_json(one) for one in found]})
    else:
        _print(found)
    return OK if any(not one.source.skipped for one in found) else NOT_MEASURED


def to_json(one: FileSummary) -> dict[str, Any]:
    """Return one file's summary as JSON-ready values."""
    import msgspec

    return {
        **msgspec.to_builtins(one.source),
        "kernels": one.kernels,
        "dispatches": one.dispatches,
        "counters": list(one.counters),
        "problems": [{"line": p.line, "what": p.what, "remedy": p.remedy} for p in one.problems],
    }


def _print(found: Sequence[FileSummary]) -> None:
    read = [one for one in found if not one.source.skipped]
    skipped = [one for one in found if one.source.skipped]
    root = os.path.commonpath([one.source.file for one in found]) if len(found) > 1 else ""
    rows = [
        (
            os.path.relpath(one.source.file, root) if root else one.source.file,
            f"{one.source.tool} {one.source.generation}".strip(),
            one.source.kind,
            *(str(count) if count else "" for count in (one.kernels, one.dispatches, len(one.counters))),
            str(len(one.problems) or ""),
        )
        for one in read
    ]
    columns = ("file", "tool and generation", "holds", "kernels", "dispatches", "counters", "problems")
    if rows:
        print_table(f"{len(read)} files read" + (f" below {root}" if root else ""), columns, rows)
    for one in found:
        for problem in one.problems:
            say(str(problem))
    if skipped:
        say(f"{len(skipped)} files hold nothing to read:")
    for one in skipped:
        if not one.problems:
            say(f"  {os.path.relpath(one.source.file, root) if root else one.source.file}: {one.source.skipped}")
