"""Running one program in a process group of its own, so that nothing of it is left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rocattn.errors import RocattnError, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_QUESTION_TIMEOUT_S = 20.0
_SAID_BYTES = 1 << 20


class StartError(RocattnError, RuntimeError):
    """Raised when a program cannot be started at all."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        status: Its exit status; minus the signal's number if a signal ended it; None if it took too long.
        seconds: How long it ran.
    """

    status: int | None
    seconds: float

    @property
    def how(self) -> str:
        """The ending in words."""
        if self.status is None:
            return f"still running after {self.seconds:.0f} s, and was killed"
        if self.status < 0:
            return f"killed by {signal_name(-self.status)}"
        return f"exit status {self.status}"


@dataclass(frozen=True)
class Answer:
    """What a program printed (stdout and stderr together), and how it ended."""

    text: str
    ended: Ended


def run_group(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    timeout_s: float,
    grace_s: float = 10.0,
) -> Ended:
    """Run a program to its end or to the timeout; the whole process group is gone when this returns or is interrupted.

    A profiler that is out of time is asked to end first (SIGTERM), because it writes what it has then.

    Raises:
        StartError: When the program cannot be started.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise StartError(f"cannot start {argv[0]}: {error.strerror}") from error
    try:
        status: int | None = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        status = None
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    finally:
        _signal(process, signal.SIGKILL)  # also what a finished program left running: it would disturb the next pass
        process.wait()
    return Ended(status, time.monotonic() - began)


def ask(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = _QUESTION_TIMEOUT_S
) -> Answer | None:
    """Run a program that answers at once (``--version``) and return what it printed, or None if it does not start."""
    with tempfile.TemporaryFile() as said:
        try:
            ended = run_group(
                argv, env=os.environ if env is None else env, cwd=None, stdout=said, stderr=said,
                timeout_s=timeout_s, grace_s=0.0,
            )  # fmt: skip
        except StartError:
            return None
        said.seek(0)
        return Answer(said.read(_SAID_BYTES).decode(errors="replace"), ended)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group
        os.killpg(process.pid, number)
