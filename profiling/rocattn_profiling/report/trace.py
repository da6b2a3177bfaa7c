"""The dispatches as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.ingest.table import Profile

MOST_EVENTS = 200_000
"""Dispatches written at most: browsers do not open more."""


def trace_json(profile: Profile, labels: Sequence[str] | None = None) -> str:
    """Return Chrome's trace format: one track a pass and queue, one slice a dispatch.

    Times are those of each pass, from its own first dispatch: passes ran one after another. Dispatches without times
    are left out.

    Args:
        profile: What was read.
        labels: What each row of ``profile.dispatches`` solved.
    """
    rows = profile.dispatches
    timed = rows[rows["start_ns"].notna() & rows["end_ns"].notna()]
    events: list[dict[str, object]] = []
    for number, (name, group) in enumerate(timed.groupby("pass", observed=True, sort=False)):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": f"{name}"}})
        first = int(group["start_ns"].min())
        chosen = group.head(max(MOST_EVENTS - len(events), 0))
        columns = [chosen[name].to_list() for name in ("start_ns", "end_ns", "kernel", "dispatch", "grid", "block")]
        queues = chosen["queue"].fillna(0).to_list()
        for row, start, end, kernel, dispatch, grid, block, queue in zip(
            chosen.index.to_list(), *columns, queues, strict=True
        ):
            label = labels[row] if labels else ""
            arguments = {"kernel": kernel, "dispatch": dispatch, "work items": grid, "block": block}
            # Microseconds as Chrome wants them, to the nanosecond.
            events.append({
                "name": label or str(kernel)[:120], "cat": "kernel", "ph": "X", "ts": (start - first) / 1000,
                "dur": (end - start) / 1000, "pid": number, "tid": int(queue),
                "args": arguments | ({"problem": label} if label else {}),
            })  # fmt: skip
    left = len(timed) - sum(event["ph"] == "X" for event in events)
    other = {"left_out": f"{left} more dispatches"} if left > 0 else {}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}) + "\n"
