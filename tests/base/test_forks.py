"""Work in forks: in order, with what this process holds, and with nobody left when one of them or this one ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.base.forks import forked

PARENT = """\
import os, time
from rocattn_profiling.base.forks import forked

def work(at):
    os.write(1, b"%d\\n" % os.getpid())  # its stdout is closed
    time.sleep(60)

list(forked(work, range(8), 2))
"""


def test_results_come_in_the_order_of_their_items():
    """From other processes, though later ones are done before; a function that cannot be pickled is inherited."""
    held = {at: at * at for at in range(20)}

    def work(at):
        time.sleep(0.02 * (at == 0))
        return held[at], os.getpid()

    found = list(forked(work, range(20), 2))
    assert [value for value, _ in found] == list(held.values())
    assert os.getpid() not in {pid for _, pid in found}
    assert list(forked(work, range(3), 1)) == [(at * at, os.getpid()) for at in range(3)]


def test_an_error_is_that_of_the_work():
    """With its own type, as if there were no other process."""

    def work(at):
        raise ValueError(f"item {at}")

    with pytest.raises(ValueError, match="item 0"):
        list(forked(work, range(4), 2))


def test_a_killed_process_is_one_line():
    """It may have run out of memory."""

    def work(at):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RocattnError, match="a helper process was killed"):
        list(forked(work, range(4), 2))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills processes with their parent")
def test_none_survives_the_process_that_forked_it():
    """Even if that one is killed."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        forks = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        deadline = time.monotonic() + 10
        while left := [pid for pid in forks if _runs(pid)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
