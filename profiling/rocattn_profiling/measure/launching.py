"""Starting one sampling process, waiting for its result, and saying in a line what became of it otherwise."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO

import msgspec

from rocattn.complaint import complaint
from rocattn.errors import signal_name
from rocattn_profiling.measure.worker import STATE_BYTES

_ENDING_S = 10.0


class Crash(msgspec.Struct, frozen=True):
    """A launch that ended without a result: which backend was running ("" if none was), how it ended, what it said."""

    backend: str
    reason: str
    log: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What a process reported: a line of JSON; and what it printed."""

    line: bytes
    log: str


def run_worker(module: str, job: bytes, env: dict[str, str], timeout_s: float) -> Answer | Crash:
    """Do a job in a fresh process and return what it reports.

    The process leads a group of its own, and the whole group is gone when this returns or is interrupted. (A signal
    that lands while the process is being made leaves it to end by itself: its input closes, its parent is not there.)

    Args:
        module: Run with ``-m``; it ends in `rocattn_profiling.measure.worker.serve`.
        job: What to do, encoded.
        env: The process's whole environment.
        timeout_s: After this long the process is killed.
    """
    worker = [sys.executable, "-P", "-m", module]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as state:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb", buffering=0) as pipe:
            try:
                process = subprocess.Popen(
                    [*worker, str(write_fd), str(state.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=env,
                    pass_fds=(write_fd, state.fileno()),
                    start_new_session=True,
                )
            finally:
                os.close(write_fd)
            try:
                line = _converse(process, pipe, job, timeout_s)
            finally:
                _end(process)
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
        if line is not None and line.endswith(b"\n"):
            return Answer(line, said)
        backend = os.pread(state.fileno(), STATE_BYTES, 0).decode(errors="replace").strip("\0 ")
        reason = f"it took more than {timeout_s:.0f} s" if line is None else _how_it_ended(process.returncode, said)
        return Crash(backend, reason, said)


def _converse(process: subprocess.Popen[bytes], pipe: IO[bytes], job: bytes, timeout_s: float) -> bytes | None:
    """Send the job, return the first line of the pipe: cut short if the process died, None if it took too long."""
    deadline = time.monotonic() + timeout_s
    assert process.stdin is not None
    try:
        process.stdin.write(job)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before reading: the empty answer below says so
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
    with suppress(subprocess.TimeoutExpired):  # it has reported: what still runs at its exit is not waited for
        process.wait(max(0.0, min(_ENDING_S, deadline - time.monotonic())))
    return received


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process's group, and collect the process."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of it (macOS says so with EPERM)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how_it_ended(status: int, said: str) -> str:
    """Put an exit status, and the last words of the process, into one line."""
    if status < 0:
        name = signal_name(-status)
        hint = ", as the kernel does when memory runs out" if -status == signal.SIGKILL else ""
        return f"it was killed by {name}{hint}"
    why = complaint(said, "")
    return f"it ended with exit status {status}" + (f": {why}" if why else "")
