"""What tests find around them, whoever starts them: usual signals and variables; and that they leave no process."""

import os
import secrets
import signal
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
MARK = "TESTED_BY"  # a variable of whatever this process starts, with this process's own word


def take_usual_signals():
    """Undo what a script's ``&`` or a supervisor had this process ignore: all that it starts would ignore it, too.

    SIGHUP stays: under nohup the tests outlive their terminal. A test of it uses `programs.hearing`.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGCHLD: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, usual)


def take_usual_variables():
    """Take out what turns git, Python and terminals from their usual ways: a user's settings, and those of a git hook.

    In a hook `git commit` in a test's folder would be one in the user's repository; PYTHONPATH may name another
    checkout, whose modules would be tested in place of ours.
    """
    os.environ.pop("PYTHONPATH", None)
    sys.path[:0] = [str(ROOT), str(ROOT / "profiling")]  # xdist hands its first process's on
    terminal = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"}
    for name in set(os.environ) - {"GIT_EXEC_PATH"}:  # where git itself is
        if name.startswith("GIT_") or name in terminal:
            del os.environ[name]
    os.environ.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left():
    """Fail when something that a test started outlives the tests, with the command and the test."""
    os.environ[MARK] = word = secrets.token_hex(8)
    yield
    _, left = psutil.wait_procs(living(word), timeout=20)  # some have only just been told to end
    told = [line for process in left if (line := end(process))]
    assert not told, "\n".join(["still running after the tests:", *told])


def living(word):
    """Return what this process started, also what has its word in the environment and no parent any more."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        try:
            other = process.status() != psutil.STATUS_ZOMBIE and process.pid not in {os.getpid(), tracker()}
            if other and (process.pid in ours or process.environ().get(MARK) == word):
                found.append(process)
        except psutil.Error:  # it has ended, or is somebody else's
            continue
    return found


def tracker():
    """Return the number of multiprocessing's own helper, which ends with this process."""
    return resource_tracker._resource_tracker._pid


def end(process):
    """Kill a process; return what it is and which test started it, or nothing if it ended by itself."""
    try:
        test = process.environ().get("PYTEST_CURRENT_TEST", "a test")
        line = f"{test} started {process.pid}: {' '.join(process.cmdline())[:300]}"
        process.kill()
    except psutil.Error:
        return ""
    return line
