"""A log of the plans a process ran, in order, which maps a profiler's dispatches to attention problems.

Each line is JSON. A plan's first run writes the whole plan: ``{"process": pid, "plan": {…}, "number": n}``
(as `rocattn plan --json` has it); every run is a line ``{"process": pid, "ran": n}``. `rocattn profile` asks for it by
the environment, so that the profiled command need not know of it.
"""

from __future__ import annotations

import json
import os
from functools import cache

from rocattn.gpu.errors import GpuError
from rocattn.gpu.launch import LaunchPlan

VARIABLE = "ROCATTN_PLAN_LOG"


class PlanLog:
    """The log of this process: appended to, so that several processes may share one file."""

    def __init__(self, path: str) -> None:
        self._path, self._plans = path, 0
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._problem(error) from error

    def add(self, plan: LaunchPlan) -> int:
        """Write down a plan and return its number."""
        self._plans += 1
        self._write({"process": os.getpid(), "number": self._plans, "plan": plan.as_dict()})
        return self._plans

    def ran(self, number: int) -> None:
        """Write down that a plan ran."""
        self._write({"process": os.getpid(), "ran": number})

    def _write(self, line: dict[str, object]) -> None:
        # One write a line: lines of processes that share the file stay whole.
        try:
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> GpuError:
        return GpuError(f"cannot write the plan log {self._path} ({VARIABLE}): {error.strerror}")


@cache
def plan_log() -> PlanLog | None:
    """Return the log that the environment asks for, or None.

    Raises:
        GpuError: When it cannot be written.
    """
    path = os.environ.get(VARIABLE)
    return PlanLog(path) if path else None
