"""Launches of a module whose import takes long: forked from one process that has imported it."""

import sys
import time

import pytest

from rocattn_profiling.asv.launch import Launcher, OutOfTimeError, Request

SUITE = """
import os
import time
with open(os.environ["IMPORTS"], "a") as file:
    file.write("x")
STATE = []


def prepare():
    return os.getpid()


prepare()


def helper():
    return sum(range(1000))


def track_pid():
    STATE.append(1)
    assert len(STATE) == 1
    return os.getpid()


def track_hash():
    return hash("text") % 1000


def time_sum():
    helper()


def time_other():
    len(STATE)


def time_forking():
    os.waitpid(os.spawnl(os.P_NOWAIT, "/bin/true", "true"), 0)


def track_failing():
    raise ValueError("on purpose")


def track_endless():
    time.sleep(60)


track_endless.timeout = 0.5
"""
SHARED = Request(module="bench")


@pytest.fixture
def side(tmp_path):
    """A launcher on the suite; how often it was imported is the size of the file ``imports``."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/bench.py").write_text(SUITE)
    launcher = Launcher(
        sys.executable, tmp_path / "suite", tmp_path / "scratch", {"IMPORTS": str(tmp_path / "imports")}
    )
    cases = {case.label.partition("_")[2]: case for case in launcher.discover().cases()}
    (tmp_path / "imports").unlink()
    yield launcher, cases, lambda: (tmp_path / "imports").stat().st_size
    launcher.end_server()


def test_launches_of_a_round_share_an_import(side):
    """Each is a process of its own, in the state that the import left; the next round imports again."""
    launcher, cases, imports = side
    values = [launcher.run(cases["pid"], SHARED, seed=1).launch.samples_ns[0] for _ in range(3)]
    assert len(set(values)) == 3
    timed = launcher.run(cases["sum"], SHARED, seed=1)
    assert (timed.status, len(timed.launch.samples_ns) >= 4, timed.canary_ns > 0) == ("ok", True, True)
    assert imports() == 1
    hashes = {launcher.run(cases["hash"], SHARED, seed=seed).launch.samples_ns[0] for seed in (1, 1, 2)}
    assert (len(hashes), imports()) == (2, 2)
    alone = launcher.run(cases["hash"], Request(), seed=1).launch.samples_ns[0]
    assert alone in hashes


def test_a_failing_and_an_endless_launch_harm_no_other(side):
    """The reason is the benchmark's own; what takes too long is killed."""
    launcher, cases, imports = side
    failed = launcher.run(cases["failing"], SHARED)
    assert (failed.status, failed.reason) == ("failed", "ValueError: on purpose")
    assert launcher.run(cases["endless"], SHARED).status == "timeout"
    with pytest.raises(OutOfTimeError):
        launcher.run(cases["endless"], SHARED, within_s=0.1)
    assert launcher.run(cases["pid"], SHARED).status == "ok"
    assert imports() == 1


def test_an_import_that_cannot_be_shared_is_not(side, tmp_path):
    """One that fails, or starts threads, is left to each launch, which says why it fails."""
    launcher, cases, _ = side
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "suite/bench.py").write_text(threads + SUITE)
    assert launcher.run(cases["pid"], SHARED, seed=3).status == "ok"
    (tmp_path / "suite/bench.py").write_text("raise RuntimeError('on purpose')")
    began = time.monotonic()
    failed = launcher.run(cases["pid"], SHARED, seed=4)
    assert (failed.status, failed.reason.startswith("RuntimeError: on purpose")) == ("failed", True)
    assert time.monotonic() - began < 30


def test_traced_calls_share_an_import(side):
    """Each sees what it runs itself and what the import ran; the fork that it comes from does not count."""
    launcher, _, imports = side

    def ran(name):
        loaded = launcher.loaded(f"bench.{name}", f"bench.{name}", ["bench.py"], module="bench")
        return None if loaded.ran is None else {function for _, function in loaded.ran} - {"<module>"}

    assert ran("time_sum") == {"prepare", "helper", "time_sum"}
    assert ran("time_other") == {"prepare", "time_other"}
    assert ran("time_forking") is None
    assert launcher.loaded("bench.track_failing", "bench.track_failing", ["bench.py"], module="bench") is None
    assert imports() == 1
    assert launcher.loaded("bench.time_sum", "bench.time_sum", ["bench.py"], within_s=0.0) is None
