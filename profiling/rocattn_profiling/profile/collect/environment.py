"""The environment a profiled application gets: the caller's, without what another profiler left in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Variables by which profilers pass orders to the application's process. An inherited one adds its own tool, its own
# counters or its own output format (rocprofv3 appends to ROCPROF_OUTPUT_FORMAT) to ours. ROCPROF selects the collector
# of rocprof-compute.
_PROFILER = re.compile(r"(?:ROCPROF|ROCP|ROCPROFILER|ROCTRACER)(?:_\w+)?|HSA_TOOLS_\w+|AQLPROFILE_\w+|OMNIPERF_\w+")
_LIBRARY = re.compile(r"rocprof|roctracer|roctx|rocprofiler|omnitrace|rocprof-sys", re.IGNORECASE)


def clean(environment: Mapping[str, str], keep: Collection[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment without profilers' variables, and the names of those that were taken out.

    Entries of LD_PRELOAD that are profilers' libraries are taken out one by one.

    Args:
        environment: The caller's.
        keep: Names to leave as they are.
    """
    result, removed = dict(environment), []
    for name in sorted(environment):
        if name in keep:
            continue
        if _PROFILER.fullmatch(name):
            del result[name]
            removed.append(name)
        elif name == "LD_PRELOAD":
            entries = re.split(r"[:\s]+", environment[name])
            kept = [entry for entry in entries if entry and not _LIBRARY.search(Path(entry).name)]
            if len(kept) < len([entry for entry in entries if entry]):
                result[name] = ":".join(kept)
                removed.append(name)
                if not kept:
                    del result[name]
    return result, tuple(removed)


def under_a_profiler(removed: Collection[str]) -> bool:
    """Say whether the variables that were taken out mean that a profiler runs this very process."""
    return bool({"ROCP_TOOL_LIBRARIES", "HSA_TOOLS_LIB", "LD_PRELOAD"} & set(removed))
