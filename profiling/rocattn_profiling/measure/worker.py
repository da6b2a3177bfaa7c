"""A measuring process, from both ends: starting it with a job and reading its result; and its part of the same.

The process is started as ``python -m MODULE``. The job comes as JSON on stdin, the result leaves as one line of JSON on
a pipe of its own, and everything that a backend prints goes to a log, so that nothing it prints can be taken for a
result. The name of the running backend is kept in a shared file, for the parent to name it if the process is killed.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any

import msgspec

from rocattn_profiling.base.process import Ended, end_with_parent, running

if TYPE_CHECKING:
    from collections.abc import Callable

_STATE_BYTES = 128
_EXIT_S = 10.0


class Crash(msgspec.Struct, frozen=True):
    """A process that ended without a result: which backend was running ("" if none), how it ended, what it printed."""

    backend: str
    reason: str
    log: str = ""


class Reply(msgspec.Struct, frozen=True):
    """What a process reported, a line of JSON, and what it printed."""

    line: bytes
    log: str


def run_worker(module: str, job: bytes, env: dict[str, str], timeout_s: float) -> Reply | Crash:
    """Do a job in a fresh process, of which nothing is left afterwards, and return its report.

    (A signal that lands while the process is being made leaves it to end by itself: its input closes, its parent is not
    there.)

    Args:
        module: Run with ``-m``; it ends in `serve`.
        job: What to do, encoded.
        env: The process's whole environment.
        timeout_s: After this long the process is killed.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as state:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb", buffering=0) as pipe, os.fdopen(write_fd, "wb", buffering=0) as ours:
            fds = (write_fd, state.fileno())
            command = [sys.executable, "-P", "-m", module, *map(str, (*fds, os.getpid()))]
            with running(command, env=env, stdin=PIPE, stdout=log, stderr=log, pass_fds=fds) as process:
                ours.close()
                line = _converse(process, pipe, job, began + timeout_s)
        log.seek(0)
        printed = log.read().decode(errors="replace").strip()
        if line is not None and line.endswith(b"\n"):
            return Reply(line, printed)
        backend = os.pread(state.fileno(), _STATE_BYTES, 0).decode(errors="replace").strip("\0 ")
        ended = Ended(None if line is None else process.returncode, time.monotonic() - began)
        return Crash(backend, ended.sentence(printed), printed)


def _converse(process: Popen[bytes], pipe: IO[bytes], job: bytes, deadline: float) -> bytes | None:
    """Send the job, return the first line of the pipe: cut short if the process died, None if it took too long."""
    assert process.stdin is not None
    try:
        process.stdin.write(job)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before reading: the empty reply below shows that
    received = b""
    # Not until the end of the file: a process that the backend left behind may hold the pipe open.
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            break
        received += chunk
    with suppress(TimeoutExpired):  # it has reported: its exit handlers are not waited for any longer
        process.wait(max(0.0, min(_EXIT_S, deadline - time.monotonic())))
    return received


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


def serve(perform: Callable[[bytes, Callable[[str], None]], Any], failed: Callable[[str], Any]) -> None:
    """Read the job from stdin, do it, write the result: a line of JSON on the pipe that the command line names.

    It ends with its parent: an orphan would disturb the next measurement.

    Args:
        perform: Does the encoded job and returns its report; its second argument records the backend at work.
        failed: Makes a report of why that raised.
    """
    result_fd, state_fd, parent = (int(word) for word in sys.argv[1:4])
    end_with_parent(parent)
    for descriptor in (result_fd, state_fd):
        os.set_inheritable(descriptor, False)

    def mark(name: str) -> None:
        os.pwrite(state_fd, name.encode()[:_STATE_BYTES].ljust(_STATE_BYTES), 0)

    try:
        result = perform(sys.stdin.buffer.read(), mark)
    except Exception as error:  # noqa: BLE001 - the parent reports it in one line; the log has the traceback
        traceback.print_exc()
        result = failed(describe(error))
    with os.fdopen(result_fd, "wb") as pipe:
        pipe.write(msgspec.json.encode(result) + b"\n")
