"""Both ends of a measuring process: the parent starts it with a job and reads its result; the worker serves the job.

The process is started as ``python -m MODULE``. It reads the job as JSON from stdin and writes the result as one line of
JSON to a separate pipe. Everything that a backend prints goes to a log, so that it cannot be mistaken for a result. A
shared file has the running backend's name, so that the parent can report it if the process is killed.
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
    """A process that ended without a result: the backend running then ("" if none), how it ended, what it printed."""

    backend: str
    reason: str
    log: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A process's report, one line of JSON, and its printed output."""

    line: bytes
    log: str


def run_worker(module: str, job: bytes, env: dict[str, str], timeout_s: float) -> Reply | Crash:
    """Run a job in a fresh process, leave nothing of it behind, and return its report.

    (If a signal arrives while the process is being created, the process ends by itself, since its input closes and its
    parent is gone.)

    Args:
        module: The module to run with ``-m``; it calls `serve` at its end.
        job: What to do, encoded.
        env: The process's whole environment.
        timeout_s: Seconds after which the process is killed.
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
    """Send the job and return the pipe's first line: truncated if the process died, None if it took too long."""
    assert process.stdin is not None
    try:
        process.stdin.write(job)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before reading: the empty reply below shows that
    received = b""
    # Do not read to the end of the file: a process that the backend left behind may keep the pipe open.
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            break
        received += chunk
    with suppress(TimeoutExpired):  # it has reported: do not wait longer for its exit handlers
        process.wait(max(0.0, min(_EXIT_S, deadline - time.monotonic())))
    return received


def reset_peak() -> None:
    """Reset the kernel's peak resident set, if supported (Linux)."""
    with suppress(OSError):  # otherwise the peak is that of the whole process so far
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
    """Read the job from stdin, run it, and write the result as a JSON line to the pipe given on the command line.

    It ends when its parent does: an orphan would disturb the next measurement.

    Args:
        perform: Runs the encoded job and returns its report; its second argument records the running backend.
        failed: Returns a report on an exception.
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
