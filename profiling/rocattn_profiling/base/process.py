"""Run other programs without leaving processes behind; report how they ended and their versions."""

from __future__ import annotations

import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rocattn.errors import RocattnError, complaint, signal_name
from rocattn_profiling.base.markup import terminal

MARK = "ROCATTN_LAUNCH"
"""Environment variable of every process that `running` starts: a word for it and for each of its ancestors."""
_SWEEPS = 5  # a process may start another one while it is being searched for
_QUESTION_TIMEOUT_S = 20.0
_started: dict[str, frozenset[int]] = {}  # the words of the programs that run now, in all threads, and what ran before
_REST_S = 0.1  # between two looks for what is left of them
_KILLED_S = 10.0  # for a killed process to be gone
_PRINTED_BYTES = 1 << 20
_LONGEST_COMPLAINT = 1000
_CHECK_S = 1.0  # between two looks at whether a process still works
_VERSION_QUESTIONS = {"amd-smi": "version"}


class StartError(RocattnError, RuntimeError):
    """Raised if a program cannot be started at all; ``why`` is the system's error."""

    def __init__(self, program: str, why: str) -> None:
        super().__init__(f"cannot start {program}: {why}")
        self.why = why


class BrokenToolError(RocattnError):
    """Raised if an existing program does not run; the text continues its name: "does not start (…)"."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        status: Its exit status; minus the signal's number if a signal ended it; None if it took too long.
        seconds: How long it ran, in seconds.
    """

    status: int | None
    seconds: float

    @property
    def how(self) -> str:
        """A description of how it ended."""
        if self.status is None:
            return f"still running after {self.seconds:.0f} s, and was killed"
        if self.status < 0:
            return f"killed by {signal_name(-self.status)}"
        return f"exit status {self.status}"

    def sentence(self, printed: str) -> str:
        """Return a sentence on how a process ended without a result, with the line of its output that says why."""
        if self.status is None:
            return f"the process took more than {self.seconds:.0f} s"
        if self.status < 0:
            hint = ", as the kernel does when memory runs out" if -self.status == signal.SIGKILL else ""
            return f"the process was {self.how}{hint}"
        return f"the process ended with {self.how}: {complaint(printed)[-_LONGEST_COMPLAINT:]}"


@dataclass(frozen=True)
class Answer:
    """The output of a program (stdout and stderr together), and how it ended."""

    text: str
    ended: Ended


@dataclass(frozen=True)
class Patience:
    """The limit of a program that may run as long as it makes progress: time alone would fail on a busy machine.

    Attributes:
        sign: A file that the program appends to as it makes progress; None for none.
        idle_s: How many seconds it may go without a sign and without using ``least_cpu_s`` of CPU time.
        least_cpu_s: CPU time in seconds that a working program uses even on a busy machine.
        cpu_s: CPU time in seconds that it may use between two signs.
    """

    sign: Path | None = None
    idle_s: float = 120.0
    least_cpu_s: float = 1.0
    cpu_s: float = 600.0


class _Activity:
    """The activity of a session of processes, measured against a `Patience`."""

    def __init__(self, leader: int, patience: Patience) -> None:
        self._leader, self._patience = leader, patience
        self._size, self._at_sign = -1, 0.0
        self._active, self._at_active = time.monotonic(), 0.0

    def is_over(self) -> bool:
        """Whether the program hangs, or used too much CPU time without progress; call it periodically."""
        patience, cpu_s, now = self._patience, _cpu_s(self._leader), time.monotonic()
        size = patience.sign.stat().st_size if patience.sign is not None and patience.sign.exists() else 0
        if size != self._size or cpu_s - self._at_active >= patience.least_cpu_s:
            self._active, self._at_active = now, cpu_s
        if size != self._size:
            self._size, self._at_sign = size, cpu_s
        return now - self._active > patience.idle_s or cpu_s - self._at_sign > patience.cpu_s


def _cpu_s(leader: int) -> float:
    """Return the CPU time in seconds that a session's processes have used so far."""
    import psutil  # no --help needs it

    seconds = 0.0
    for number in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(number) == leader:
                seconds += sum(psutil.Process(number).cpu_times()[:4])  # also of the children that it waited for
    return seconds


@contextmanager
def running(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: IO[bytes],
    stderr: IO[bytes],
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program while the block runs; at its end, kill whatever is left of it.

    The program leads a process group, which is killed as a whole. Processes that it started in other sessions are
    killed too: they inherit `MARK`, which identifies them among the new processes.

    Raises:
        StartError: The program cannot be started.
    """
    before, word = _processes(), secrets.token_hex(16)
    marked = {**env, MARK: f"{env.get(MARK, '')} {word}".strip()}
    process: subprocess.Popen[bytes] | None = None
    _started[word] = before  # now: the program may be at work before Popen returns
    try:
        try:
            process = subprocess.Popen(
                list(argv), env=marked, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=tuple(pass_fds),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise StartError(argv[0], error.strerror or str(error)) from error
        yield process
    finally:  # where a signal's exception comes before Popen returns, the program may be there already
        if process is not None:
            _signal(process, signal.SIGKILL)
            process.wait()
        end_marked(word, before)
        del _started[word]


def end_started() -> None:
    """Kill what `running` runs now, also in other threads, which a signal does not reach and which wait for it."""
    for word, before in list(_started.items()):
        end_marked(word, before)
    # One that was just becoming another program had no environment, and so no mark: again until all are gone.
    threading.Thread(target=_end_rest, daemon=True).start()


def _end_rest() -> None:
    while started := list(_started.items()):
        time.sleep(_REST_S)
        for word, before in started:
            end_marked(word, before)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, so that no orphan disturbs the next measurement."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def run_group(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    timeout_s: float | Patience,
    grace_s: float = 10.0,
) -> Ended:
    """Run a program to its end or its limit; no process remains when this returns or is interrupted.

    A profiler that exceeds its time gets SIGTERM first, because it then writes its files.

    Raises:
        StartError: The program cannot be started.
    """
    began = time.monotonic()
    with running(argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr) as process:
        status = _waited(process, timeout_s)
        if status is None and grace_s:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        return Ended(status, time.monotonic() - began)


def _waited(process: subprocess.Popen[bytes], limit: float | Patience) -> int | None:
    """Wait for a process; return its status, or None if it exceeded its limit."""
    activity = _Activity(process.pid, limit) if isinstance(limit, Patience) else None
    while True:
        try:
            return process.wait(_CHECK_S if isinstance(limit, Patience) else limit)
        except subprocess.TimeoutExpired:
            if activity is None or activity.is_over():
                return None


def ask(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = _QUESTION_TIMEOUT_S
) -> Answer | None:
    """Run a program that answers at once (``--version``) and return its output, or None if it does not start."""
    try:
        return _captured(argv, env, timeout_s)
    except StartError:
        return None


def find_tool(*names: str) -> str | None:
    """Return the first of these programs that is on PATH or in ROCm's bin."""
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "bin"
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(rocm)])
    return next((path for name in names if (path := shutil.which(name, path=folders))), None)


def tool_version(path: str, timeout_s: float = _QUESTION_TIMEOUT_S) -> str:
    """Return the version that a program prints.

    Raises:
        BrokenToolError: It does not run; the text says how it fails.
    """
    question = _VERSION_QUESTIONS.get(Path(path).name, "--version")
    try:
        answer = _captured([path, question], None, timeout_s)
    except StartError as error:
        raise BrokenToolError(f"does not start ({error.why})") from error
    printed, status = answer.text, answer.ended.status
    if status is None:
        raise BrokenToolError(f"does not answer in {timeout_s:.0f} s")
    if status:
        # No version is taken from its output: a traceback has numbers of folders.
        why = terminal(complaint(printed, "it prints nothing"), 200)
        raise BrokenToolError(f"does not work, `{question}` ends with status {status}: {why}")
    version = re.search(r"\d+(?:\.\d+)+\S*", printed)
    return version[0].rstrip(",)") if version else "gives no version"


def _captured(argv: Sequence[str], env: Mapping[str, str] | None, timeout_s: float) -> Answer:
    with tempfile.TemporaryFile() as printed:
        ended = run_group(
            argv, env=os.environ if env is None else env, cwd=None, stdout=printed, stderr=printed,
            timeout_s=timeout_s, grace_s=0.0,
        )  # fmt: skip
        printed.seek(0)
        return Answer(printed.read(_PRINTED_BYTES).decode(errors="replace"), ended)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group (macOS says so with EPERM)
        os.killpg(process.pid, number)


def _processes() -> frozenset[int]:
    import psutil

    return frozenset(psutil.pids())


def end_marked(word: str, before: frozenset[int]) -> None:
    """Kill the processes that a program left behind.

    Args:
        word: The program's word in the value of `MARK`.
        before: Processes that existed before it.
    """
    for _ in range(_SWEEPS):
        left = [number for number in _processes() - before if word in _marks(number)]
        for number in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        if not left:
            return


def _marks(number: int) -> list[str]:
    """Return the words of `MARK` that a process was started with; none if it has ended, or is another user's."""
    import psutil

    with suppress(OSError, psutil.Error):
        return str(psutil.Process(number).environ().get(MARK, "")).split()
    return []


class ForkServer:
    """A program that prepares itself once, then forks a process per request, like asv's fork server.

    Its last argument is its first request, in JSON, with the descriptor ``reply``. To that it writes "ready" and, for
    each line of JSON on stdin, the id of the process that it forks, and its exit status.

    Args:
        key: Identifies what it has prepared.
        command: The command that starts it.
        request: Its first request.
        environment: All environment variables of the program, which its forks inherit.
        scratch: A folder for its log.
    """

    def __init__(
        self,
        key: object,
        command: Sequence[str],
        request: Mapping[str, Any],
        environment: Mapping[str, str],
        scratch: Path,
    ) -> None:
        import msgspec  # no --help needs it

        self.key, self.ready, self._text = key, False, b""
        self._stack = ExitStack()
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="serve-", dir=scratch, ignore_cleanup_errors=True)
        )
        log = self._stack.enter_context(Path(folder, "log").open("wb"))  # noqa: SIM115 - the stack closes it
        self._replies, reply = os.pipe()
        self._stack.callback(os.close, self._replies)
        try:
            text = msgspec.json.encode({**request, "reply": reply, "parent": os.getpid()}).decode()
            self._process = self._stack.enter_context(
                running(
                    (*command, text), env=environment, cwd=Path(folder), stdin=subprocess.PIPE, stdout=log, stderr=log,
                    pass_fds=(reply,),
                )
            )  # fmt: skip
            assert self._process.stdin is not None
            self._stack.callback(self._process.stdin.close)
        finally:
            os.close(reply)

    def wait_until_ready(self, timeout_s: float, patience: Patience) -> bool:
        """Wait until it is prepared; return whether it will fork."""
        end, activity = time.monotonic() + timeout_s, _Activity(self._process.pid, patience)
        while (left := end - time.monotonic()) > 0 and not self.ready:
            self.ready = self._line(min(left, _CHECK_S)) == "ready"
            if not self.ready and (self._process.poll() is not None or activity.is_over()):
                break
        return self.ready

    def run(self, request: Mapping[str, Any], cwd: Path, log: Path, timeout_s: float) -> Ended:
        """Fork a process for a request and wait for its end; it is killed after the timeout."""
        import msgspec

        began = time.monotonic()
        assert self._process.stdin is not None
        with suppress(OSError):  # a server that has ended answers nothing
            self._process.stdin.write(msgspec.json.encode({**request, "cwd": str(cwd), "log": str(log)}) + b"\n")
            self._process.stdin.flush()
        number = self._line(timeout_s)
        status = self._line(timeout_s - (time.monotonic() - began)) if number else ""
        if number:
            with suppress(ProcessLookupError):  # also what it has started itself
                os.killpg(int(number), signal.SIGKILL)
        if not status:
            self.ready = bool(number) and bool(self._line(_KILLED_S))
        seconds = time.monotonic() - began
        if status or seconds >= timeout_s:
            return Ended(int(status) if status else None, seconds)
        return Ended(-signal.SIGKILL, seconds)  # the server itself was killed

    def close(self) -> None:
        """End it."""
        self._stack.close()

    def _line(self, timeout_s: float) -> str:
        """Return the next line of its replies; "" if none arrives in time, or it has ended."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            if not select.select([self._replies], [], [], max(0.0, end - time.monotonic()))[0]:
                return ""
            part = os.read(self._replies, 1 << 12)
            if not part:
                return ""
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()
