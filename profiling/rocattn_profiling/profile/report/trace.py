"""The dispatches as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rocattn_profiling.profile.ingest.table import NO_PROCESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.profile.ingest.table import Profile

MOST_EVENTS = 200_000
"""Dispatches written at most: browsers do not open more."""


def trace_json(profile: Profile, labels: Sequence[str] | None = None) -> str:
    """Return Chrome's trace format: one track a pass, process and queue, one slice a dispatch.

    Queues of two processes, or of two GPUs, have the same numbers: on one track, their slices would overlap. Times are
    those of each pass, from its own first dispatch: passes ran one after another. Dispatches without times are left
    out.

    Args:
        profile: What was read.
        labels: What each row of ``profile.dispatches`` solved.
    """
    rows = profile.dispatches
    timed = rows[rows["start_ns"].notna() & rows["end_ns"].notna()]
    numbers = profile.agents["number"].dropna().astype(int).to_dict()  # the profiler's own
    events: list[dict[str, object]] = []
    for number, (name, group) in enumerate(timed.groupby("pass", observed=True, sort=False)):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": f"{name}"}})
        first = int(group["start_ns"].min())
        chosen = group.head(max(MOST_EVENTS - len(events), 0))
        columns = [chosen[name].to_list() for name in ("start_ns", "end_ns", "kernel", "dispatch", "grid", "block")]
        owners = [chosen[name].fillna(NO_PROCESS).astype(int).to_list() for name in ("process", "agent", "queue")]
        tracks: dict[tuple[int, int, int], int] = {}
        for row, start, end, kernel, dispatch, grid, block, owner in zip(
            chosen.index.to_list(), *columns, zip(*owners, strict=True), strict=True
        ):
            track = tracks.setdefault(owner, len(tracks))
            label = labels[row] if labels else ""
            arguments = {"kernel": kernel, "dispatch": dispatch, "work items": grid, "block": block}
            # Microseconds as Chrome wants them, to the nanosecond.
            events.append({
                "name": label or str(kernel)[:120], "cat": "kernel", "ph": "X", "ts": (start - first) / 1000,
                "dur": (end - start) / 1000, "pid": number, "tid": track,
                "args": arguments | ({"problem": label} if label else {}),
            })  # fmt: skip
        for (process, agent, queue), track in tracks.items():
            named = [("process", process), ("GPU", numbers.get(agent, NO_PROCESS)), ("queue", queue)]
            text = ", ".join(f"{what} {each}" for what, each in named if each >= 0) or "queue not known"
            events.append({"name": "thread_name", "ph": "M", "pid": number, "tid": track, "args": {"name": text}})
    left = len(timed) - sum(event["ph"] == "X" for event in events)
    other = {"left_out": f"{left} more dispatches"} if left > 0 else {}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}) + "\n"
