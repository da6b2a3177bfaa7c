"""The column names of the profilers' CSV files, for all tools and generations.

Header names are compared in lower case, with ``-`` replaced by ``_``. Each generation of each tool uses a subset;
`detect` distinguishes them.
"""

from __future__ import annotations

import re

# Name in our tables -> names in the files.
NAMES = {
    "dispatch": ("dispatch_id", "index"),
    "process": ("process_id", "pid"),
    "kernel": ("kernel_name", "kernelname"),
    "agent": ("agent_id", "gpu_id"),
    "queue": ("queue_id",),
    "grid": ("grid_size", "grd"),
    "grid_x": ("grid_size_x",),
    "grid_y": ("grid_size_y",),
    "grid_z": ("grid_size_z",),
    "block": ("workgroup_size", "wgr"),
    "block_x": ("workgroup_size_x",),
    "block_y": ("workgroup_size_y",),
    "block_z": ("workgroup_size_z",),
    "lds_bytes": ("lds_block_size", "lds_per_workgroup", "group_segment_size", "lds", "lds_size"),
    "scratch_bytes": ("scratch_size", "scratch_per_workitem", "private_segment_size", "scr"),
    "vgprs": ("vgpr_count", "arch_vgpr", "arch_vgpr_count", "vgpr"),
    "agprs": ("accum_vgpr_count", "accum_vgpr"),
    "sgprs": ("sgpr_count", "sgpr"),
    "wave_size": ("wave_size",),
    "start_ns": ("start_timestamp", "beginns", "start"),
    "end_ns": ("end_timestamp", "endns", "end"),
    "counter": ("counter_name",),
    "value": ("counter_value",),
    "guid": ("guid",),
    "replay": ("replay_pass",),
}
LABELS = frozenset({"kernel", "counter", "guid", "agent", "queue"})  # read as text; agent may be "Agent 4"
FLOATS = frozenset({"value"})

# Columns that describe a dispatch but are not read. They are never counters.
IGNORED = frozenset({
    "category", "completens", "correlation_id", "dispatchns", "duration", "durationns", "fbar", "kernel_id", "kind",
    "node_id", "obj", "parent_stack_id", "queue_index", "region", "sig", "stack_id", "stream_id", "thread_id", "tid",
    "xcc_index",
})  # fmt: skip
_CANONICAL = {name: ours for ours, names in NAMES.items() for name in names}
_REPEATED = re.compile(r"_(\d{1,9})$")


def plain(name: str) -> str:
    """Return a header name in the form used for comparisons."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def canonical(name: str) -> str | None:
    """Return our name for a header name, or None."""
    return _CANONICAL.get(plain(name))


def positions(header: list[str]) -> dict[str, int]:
    """Return the position of each known column; the first one if a column is repeated."""
    by_name: dict[str, int] = {}
    for position, name in enumerate(header):
        ours = canonical(name)
        if ours is not None:
            by_name.setdefault(ours, position)
    return by_name


def repeated_description(name: str) -> int | None:
    """Return N for a description column that merging the passes repeated (``Kernel_ID_3``), else None."""
    match = _REPEATED.search(name)
    if match is None:
        return None
    base = plain(name[: match.start()])
    return int(match[1]) if base in _CANONICAL or base in IGNORED else None


def is_description(name: str) -> bool:
    """Return whether a column describes the dispatch rather than a counter."""
    return canonical(name) is not None or plain(name) in IGNORED or repeated_description(name) is not None
