"""Log the plans that a process ran, in order, to map a profiler's dispatches to attention problems.

Each line is JSON. A plan's first run writes the whole plan: ``{"process": pid, "plan": {…}, "number": n}``
(in the format of `rocattn plan --json`); every run is a line ``{"process": pid, "ran": n}``. `rocattn profile` requests
it through the environment, so the profiled command needs no change.
"""

from __future__ import annotations

import json
import os
from functools import cache

from rocattn.gpu.errors import GpuError
from rocattn.gpu.launch import LaunchPlan

VARIABLE = "ROCATTN_PLAN_LOG"


class PlanLog:
    """The log of this process, opened for appending, so that several processes may share a file."""

    def __init__(self, path: str) -> None:
        self._path, self._plans = path, 0
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._problem(error) from error

    def add(self, plan: LaunchPlan) -> int:
        """Log a plan and return its number."""
        self._plans += 1
        self._write({"process": os.getpid(), "number": self._plans, "plan": plan.as_dict()})
        return self._plans

    def ran(self, number: int) -> None:
        """Log a run of a plan."""
        self._write({"process": os.getpid(), "ran": number})

    def _write(self, line: dict[str, object]) -> None:
        # One write per line, so that lines of processes that share the file stay intact.
        try:
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> GpuError:
        return GpuError(f"cannot write the plan log {self._path} ({VARIABLE}): {error.strerror}")


@cache
def plan_log() -> PlanLog | None:
    """Return the log requested by the environment, or None.

    Raises:
        GpuError: When it cannot be written.
    """
    path = os.environ.get(VARIABLE)
    return PlanLog(path) if path else None
