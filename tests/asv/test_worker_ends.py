"""Every way in which a benchmark's process may end, and what becomes of what it started."""

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling.asv.launch import Launcher, Request, round_variables
from rocattn_profiling.base.process import MARK, end_marked

SUITE = """
import os, subprocess, sys, threading, time

def time_prints():
    print("noise " * 20)
    sys.stderr.write("more noise")
    os.write(1, b'{"status": "ok"}')

def time_fails():
    deeper()

def deeper():
    raise ValueError("first line\\nsecond line")

def time_exits():
    sys.exit(0)

def time_dies():
    os.kill(os.getpid(), 11)

def time_leaves():
    os._exit(7)

def time_hangs():
    child = os.fork()
    if child == 0:
        with open(os.environ["ROCATTN_TEST_LOG"], "w") as log:
            log.write(str(os.getpid()))
    while True:
        time.sleep(0.05)
time_hangs.timeout = 1.0

def time_detaches():
    time_detaches.child = getattr(time_detaches, "child", None) or subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    with open(os.environ["ROCATTN_TEST_LOG"], "w") as log:
        log.write(str(time_detaches.child.pid))

def time_takes_streams():
    sys.stdout = None
    threading.Thread(target=lambda: time.sleep(600)).start()
time_takes_streams.timeout = 20.0
time_takes_streams.number = 1

def time_shouts():
    raise ValueError("x" * 10**6)

def timeraw_fails():
    return "1 / 0"

def track_nan():
    return float("nan")

def track_text():
    return "seven"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs one case by its label."""
    monkeypatch.setenv("ROCATTN_TEST_LOG", str(tmp_path / "log.txt"))
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "bench.py").write_text(SUITE)
    launcher = Launcher(sys.executable, folder, tmp_path / "scratch")
    cases = {case.label: case for case in launcher.discover().cases()}
    return lambda label: launcher.run(cases[f"bench.{label}"], Request(sample_ns=200_000, budget_ns=2_000_000))


def has_ended(number):
    """Whether a process ends by itself within half a minute: killing is asynchronous."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 30.0)[0])  # readable once it has ended
    finally:
        os.close(handle)


def test_prints_cannot_get_into_the_answer(run):
    """A benchmark may write what it likes to stdout and stderr."""
    assert run("time_prints").status == "ok"


def test_a_benchmark_may_take_its_stdout_away(run):
    """The answer stands; threads that it left do not keep the process until its time is up."""
    assert run("time_takes_streams").status == "ok"


def test_a_failure_has_one_line_and_the_whole_traceback(run):
    """The reason is the exception's first line; the traceback reaches the frame that raised."""
    found = run("time_fails")
    assert (found.status, found.reason) == ("failed", "ValueError: first line")
    assert "in deeper" in found.traceback


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("time_exits", "SystemExit: 0"),
        ("time_dies", "the process was killed by SIGSEGV"),
        ("time_leaves", "the process ended with exit status 7: it printed nothing"),
        ("track_text", "TypeError: the benchmark returned str, not a number"),
        ("time_shouts", f"ValueError: {'x' * 988}"),
        ("timeraw_fails", "ZeroDivisionError: division by zero"),
    ],
)
def test_every_way_to_end_badly_is_a_failure_with_its_reason(run, name, reason):
    """Exits, signals and values that are no number are failures, never measurements."""
    found = run(name)
    assert (found.status, found.reason, found.launch) == ("failed", reason, None)
    assert len(found.traceback) <= 20_000


def test_nan_stands_for_no_result(run):
    """As asv takes it: such a combination is skipped, not broken."""
    found = run("track_nan")
    assert (found.status, found.launch) == ("skipped", None)


def test_a_full_disk_is_no_failure_of_the_benchmark(run, monkeypatch):
    """A process that ends without an answer may have had no room for one: then nothing is blamed on the benchmark."""
    write = Path.write_bytes

    def full(path, data):
        if path.name == "room":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    assert run("time_leaves").status == "failed"
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        run("time_leaves")


def test_a_timeout_ends_the_benchmark_and_its_children(run, tmp_path):
    """After its timeout the whole process group is gone."""
    found = run("time_hangs")
    assert found.status == "timeout"
    assert "1 s" in found.reason
    assert has_ended(int((tmp_path / "log.txt").read_text()))


def test_a_process_in_a_session_of_its_own_ends_with_the_launch(run, tmp_path):
    """A daemon that a benchmark leaves behind would disturb the next measurement, and outlive the gate."""
    assert run("time_detaches").status == "ok"
    assert has_ended(int((tmp_path / "log.txt").read_text()))


def test_other_processes_stay():
    """Only what inherited the launch's own mark is ended, and only if it is new."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    own, other = (subprocess.Popen(command, env={**os.environ, MARK: mark}) for mark in ("outer own", "another launch"))
    try:
        end_marked("own", frozenset([own.pid, other.pid]))
        assert own.poll() is None
        end_marked("own", frozenset())
        assert own.wait(300) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.wait()


def test_the_matrix_of_the_project_goes_before_ours():
    """A hash seed that the project pins stays; without one every round has its own."""
    assert round_variables(3, 0, {"PYTHONHASHSEED": "7"}).keys() == {"ROCATTN_LAYOUT"}
    assert round_variables(3, 0)["PYTHONHASHSEED"] == "3"
