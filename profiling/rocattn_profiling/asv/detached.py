"""Processes that a launch leaves behind in sessions of their own, which ending its process group does not reach.

They are found by a mark in the environment that they inherited, among the processes that were not there before. Where
there is no ``/proc`` nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "ROCATTN_LAUNCH"  # variable whose value is the launch's own
_PROC = Path("/proc")
_ROUNDS = 5  # a process may start another one while it is looked for


def processes() -> frozenset[int]:
    """Return the ids of all processes; empty where the system does not tell."""
    try:
        return frozenset(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    except OSError:
        return frozenset()


def end_marked(mark: str, before: frozenset[int]) -> None:
    """Kill what still runs of a launch.

    Args:
        mark: The launch's value of `MARK`.
        before: Processes that were there before it.
    """
    wanted = f"{MARK}={mark}\0".encode()
    for _ in range(_ROUNDS):
        found = [number for number in processes() - before if wanted in _environment(number)]
        for number in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        if not found:
            return


def _environment(number: int) -> bytes:
    """Return the environment that a process was started with; empty when it has ended, or is somebody else's."""
    try:
        return (_PROC / str(number) / "environ").read_bytes()
    except OSError:
        return b""
