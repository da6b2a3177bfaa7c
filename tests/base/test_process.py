"""Programs without a limit in seconds: what works may go on on a machine however busy, and what hangs is ended."""

import os
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
