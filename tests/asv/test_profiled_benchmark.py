"""One benchmark in one process that ends as programs do: what a profiler is started on."""

import subprocess
import sys

import pytest

SUITE = """
import atexit
from pathlib import Path

def note(text):
    with Path("{log}").open("a") as log:
        log.write(text + "\\n")

atexit.register(note, "end")

class Cached:
    params = [["gpu", "cpu"], [1, 2]]
    param_names = ["backend", "n"]
    def setup_cache(self):
        Path("beside").touch()
        return {{"value": 5}}
    def setup(self, cache, backend, n):
        if backend == "cpu": raise NotImplementedError("not on the CPU")
    def time_it(self, cache, backend, n):
        note(f"{{backend}} {{n}} {{cache['value']}}")

def time_broken():
    raise ValueError("no")

def track_one():
    note("tracked")
    return 1.0
"""


@pytest.fixture
def once(tmp_path):
    """Return a function: words -> the finished process and the lines that the suite noted."""
    suite, log = tmp_path / "suite", tmp_path / "log"
    suite.mkdir()
    (suite / "__init__.py").touch()
    (suite / "bench_x.py").write_text(SUITE.format(log=log))

    def call(*words):
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "rocattn_profiling.asv.launch", "suite", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not (tmp_path / "beside").exists()
        return done, log.read_text().splitlines() if log.exists() else []

    return call


def test_the_named_benchmark_runs_in_a_process_that_exits(once):
    """The named parameters, the cache of setup_cache, the calls asked for; atexit hooks run, where profilers write."""
    done, noted = once("bench_x.Cached.time_it('gpu', 2)", "--calls", "3")
    assert done.returncode == 0, done.stderr
    assert set(noted[:-1]) == {"gpu 2 5"}
    assert len(noted) >= 3 + 1
    assert noted[-1] == "end"


def test_a_tracked_value_can_be_run_too(once):
    """Not only times."""
    done, noted = once("bench_x.track_one")
    assert (done.returncode, noted) == (0, ["tracked", "end"])


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("bench_x.Cached.time_it('gpu', 3)", "has no benchmark"),
        ("bench_x.Cached.time_it('cpu', 1)", "skipped: not on the CPU"),
    ],
)
def test_what_did_not_run_is_not_measured(once, label, says):
    """One line, status 3."""
    done, _ = once(label)
    assert done.returncode == 3
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_failing_benchmark_fails(once):
    """Its traceback is what one wants to see."""
    done, _ = once("bench_x.time_broken")
    assert done.returncode == 1
    assert "ValueError: no" in done.stderr
