"""What every measuring process does: take a job, report its result, name who was at work, count its memory.

Such a process is started by `rocattn_profiling.measure.launching` as ``python -m``: the job comes as JSON on stdin, the
result leaves as one line of JSON on a pipe of its own, and everything that a backend prints goes to a log, so that
nothing it does can be taken for a result. The name of the backend that is running is kept in a shared file, for the
parent to name it if this process is killed.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

STATE_BYTES = 128


def reset_peak() -> None:
    """Let the kernel count the resident peak anew, where it offers that (Linux)."""
    with suppress(OSError):  # the peak is then that of the whole process so far
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """Return the peak resident set in bytes since `reset_peak`, or of the whole process without /proc."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: getrusage below
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe(error: BaseException) -> str:
    """Return an exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, so that no orphan disturbs the next measurement."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if parent and os.getppid() != parent:
        sys.exit("the parent is gone")


def serve(perform: Callable[[bytes, Callable[[str], None]], Any], failed: Callable[[str], Any]) -> None:
    """Read the job from stdin, do it, write the result: a line of JSON on the pipe that the command line names.

    Args:
        perform: Does the encoded job and returns what to report; told a function that notes the backend at work.
        failed: Makes a report of why that raised.
    """
    result_fd, state_fd = (int(word) for word in sys.argv[1:3])
    for descriptor in (result_fd, state_fd):
        os.set_inheritable(descriptor, False)

    def mark(name: str) -> None:
        os.pwrite(state_fd, name.encode()[:STATE_BYTES].ljust(STATE_BYTES), 0)

    try:
        result = perform(sys.stdin.buffer.read(), mark)
    except Exception as error:  # noqa: BLE001 - the parent reports it in one line; the log has the traceback
        traceback.print_exc()
        result = failed(describe(error))
    with os.fdopen(result_fd, "wb") as pipe:
        pipe.write(msgspec.json.encode(result) + b"\n")
