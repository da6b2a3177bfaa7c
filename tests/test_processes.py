"""What each test may rely on: usual signals, and that a process which outlives the tests is found."""

import os
import signal
import subprocess

import pytest

from .processes import MARK, end, living


def test_signals_are_usual_whatever_our_starter_ignores():
    """A shell's background job has SIGINT ignored: programs that tests start would never end at it."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("start", "marked"),
    [("exec sleep 600", True), ("exec sleep 600", False), ("sleep 600 & ", True), ("setsid sleep 600 & ", True)],
    ids=["child", "child of another environment", "orphan", "orphan in its own session"],
)
def test_what_a_test_leaves_is_found_and_ended(start, marked, request):
    """And told, with its test."""
    env = os.environ if marked else {"PATH": os.environ["PATH"]}
    before = {process.pid for process in living(os.environ[MARK])}
    with subprocess.Popen(["sh", "-c", f"{start} >&-"], env=env) as started:
        if "&" in start:
            started.wait()
        found = [process for process in living(os.environ[MARK]) if process.pid not in before]
        told = [end(process) for process in found]
    assert len(told) == 1
    assert told[0].endswith(": sleep 600")
    assert not marked or told[0].startswith(request.node.nodeid)
