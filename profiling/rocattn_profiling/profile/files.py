"""The listing of profiler files: for each file, which tool wrote it, its contents, and its problems."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import emit_json, print_table, say
from rocattn_profiling.base.status import NOT_MEASURED, OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.profile.ingest import FileSummary


def list_files(paths: Sequence[str], *, as_json: bool) -> int:
    """List these files and folders, as a table on stderr or as JSON on stdout.

    Returns:
        The exit status: 3 if none of them contains a measurement.
    """
    from rocattn_profiling.profile.ingest import describe

    summaries = describe(paths)
    if as_json:
        emit_json({"files": [to_json(summary) for summary in summaries]})
    else:
        _print(summaries)
    return OK if any(not summary.source.skipped for summary in summaries) else NOT_MEASURED


def to_json(summary: FileSummary) -> dict[str, Any]:
    """Return one file's summary as JSON-ready values."""
    import msgspec

    return {
        **msgspec.to_builtins(summary.source),
        "kernels": summary.kernels,
        "dispatches": summary.dispatches,
        "counters": list(summary.counters),
        "samples": summary.samples,
        "problems": [{"line": p.line, "what": p.what, "remedy": p.remedy} for p in summary.problems],
    }


def _print(summaries: Sequence[FileSummary]) -> None:
    read = [summary for summary in summaries if not summary.source.skipped]
    skipped = [summary for summary in summaries if summary.source.skipped]
    root = os.path.commonpath([summary.source.file for summary in summaries]) if len(summaries) > 1 else ""
    rows = [
        (
            os.path.relpath(summary.source.file, root) if root else summary.source.file,
            f"{summary.source.tool} {summary.source.generation}".strip(),
            summary.source.kind,
            *(
                str(count) if count else ""
                for count in (summary.kernels, summary.dispatches, len(summary.counters), summary.samples)
            ),
            str(len(summary.problems) or ""),
        )
        for summary in read
    ]
    columns = ("file", "tool and generation", "holds", "kernels", "dispatches", "counters", "samples", "problems")
    if rows:
        print_table(f"{len(read)} files read" + (f" below {root}" if root else ""), columns, rows)
    for summary in summaries:
        for problem in summary.problems:
            say(str(problem))
    if skipped:
        say(f"{len(skipped)} files contain nothing to read:")
    for summary in skipped:
        if not summary.problems:
            file = os.path.relpath(summary.source.file, root) if root else summary.source.file
            say(f"  {file}: {summary.source.skipped}")
