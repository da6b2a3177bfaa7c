"""Programs without a limit in seconds: what works may go on on a machine however busy, and what hangs is ended."""

import os
import subprocess
import sys

import pytest

from rocattn_profiling.base import process
from rocattn_profiling.base.process import Patience, run_group

WAITS = "import time; time.sleep(60)"
COMPUTES = "import time\nwhile time.process_time() < {}:\n    pass"
APPENDS = """\
import time
for n in range(1, 6):
    while time.process_time() < n * 0.1:
        pass
    open("sign", "a").write("x")
"""
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES.format(0.7)!r}])"


@pytest.fixture
def status(tmp_path, monkeypatch):
    """Return a function that runs a Python program with a patience, and returns its status."""
    monkeypatch.setattr(process, "_CHECK_S", 0.02)

    def run(program, **limits):
        patience = Patience(**{"least_cpu_s": 0.01, "sign": tmp_path / "sign", **limits})
        command = [sys.executable, "-S", "-c", program]
        with (tmp_path / "log").open("wb") as log:
            return run_group(
                command, env=dict(os.environ), cwd=tmp_path, stdout=log, stderr=log, timeout_s=patience, grace_s=0
            ).status

    return run


def test_what_waits_for_nothing_is_ended(status):
    """It uses no CPU time."""
    assert status(WAITS, idle_s=0.5) is None


@pytest.mark.parametrize("program", [COMPUTES.format(0.7), CHILD], ids=["itself", "child"])
def test_what_computes_goes_on(status, program):
    """For longer than it may be idle, and in a process that it started, too."""
    assert status(program, idle_s=0.5) == 0


def test_what_computes_for_ever_is_ended(status):
    """Unless it shows in between that it gets on."""
    assert status(COMPUTES.format(60), cpu_s=0.3) is None
    assert status(APPENDS, cpu_s=0.3) == 0


def test_a_signal_while_a_program_starts_leaves_none(monkeypatch):
    """A handler's exception may come before Popen returns, when the program runs already."""

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            assert reader.readline() == b"here\n"
            raise SystemExit(9)

        def __del__(self):
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    ends = os.pipe()
    code = "import signal; print('here', flush=True); signal.pause()"
    with os.fdopen(ends[0], "rb") as reader:
        with os.fdopen(ends[1], "wb") as held, pytest.raises(SystemExit):
            run_group([sys.executable, "-c", code], env={}, cwd=None, stdout=held, stderr=held, timeout_s=60)
        assert reader.read() == b""
