"""Work in forks: in order, with what this process holds, and with nobody left when one of them or this one ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from pickle import PicklingError

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.base.forks import CrashedError, apart, forked

PARENT = """\
import os, sys, time
from rocattn_profiling.base.forks import forked
from rocattn_profiling.kernels.shipped import in_processes

os.environ.setdefault("STARTER", str(os.getpid()))

def work(at):
    if os.environ["STARTER"] == str(os.getpid()):
        return time.sleep(1.1)  # it starts others only after a second of work
    os.write(1, b"%d\\n" % os.getpid())  # a fork has no stdout
    time.sleep(60)

if __name__ == "__main__":
    list(forked(work, range(8), 2) if sys.argv[1] == "forks" else in_processes(work, range(80), jobs=2))
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


def test_forks_make_way_for_new_ones():
    """A fork keeps a copy of all that it touches: none lives from the first item to the last."""
    items = Counter(forked(lambda _: os.getpid(), range(300), 2))
    assert max(items.values()) < 30
    assert len(items) > 10


def test_an_error_is_that_of_the_work():
    """With its own type, as if there were no other process."""

    def work(at):
        raise ValueError(f"item {at}")

    with pytest.raises(ValueError, match="item 0") as raised:
        list(forked(work, range(4), 2))
    assert "in work" in "".join(raised.value.__notes__)  # where it was, for who mends it
    with pytest.raises((AttributeError, PicklingError), match="local object"):
        list(forked(lambda at: lambda: at, range(4), 2))


def test_a_killed_process_is_one_line():
    """It may have run out of memory."""

    def work(at):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RocattnError, match="a helper process was killed"):
        list(forked(work, range(4), 2))


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: ctypes.string_at(0), "killed by SIGSEGV"),
        (os.abort, "killed by SIGABRT"),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_a_library_that_ends_its_fork_is_one_line(end, how, capfd):
    """Nothing is printed, and this process goes on; what is returned or raised comes out."""
    with pytest.raises(CrashedError, match=how):
        apart(end)
    assert capfd.readouterr() == ("", "")
    assert apart(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills processes with their parent")
@pytest.mark.parametrize("kind", ["forks", "fresh"])
def test_none_survives_the_process_that_started_it(kind, tmp_path):
    """Even if that one is killed."""
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, tmp_path / "parent.py", kind], stdout=subprocess.PIPE) as parent:
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
