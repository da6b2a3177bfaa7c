"""A gate that is stopped in the middle, and one that starts where another is at work."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.run import alone
from rocattn_profiling.gate.session.store import LaunchLine

from ..screens import line

pytestmark = pytest.mark.slow

DOUBLED = {"tinylib/__init__.py": "TICKS = 0\ndef work(n):\n    global TICKS\n    TICKS += 2 * n\n"}


@pytest.fixture
def gate(project, offline, monkeypatch):
    """Return a function that runs the command in the project and gives its exit status: ``gate("--quick", out=…)``."""
    monkeypatch.chdir(project.root)
    return lambda *arguments, out="out/gate": main(["gate", "run", "--quick", "--out", out, *arguments])


def verdict_in(folder):
    """Read what a run left."""
    return verdict.read(folder / "verdict.json")


def test_two_gates_do_not_share_a_folder(project, gate, capsys):
    """The second would go on with the launches of the first: exit 4, one line, and nothing of the first is touched."""
    project.commit("empty")
    out = project.root / "out/gate"
    with alone(out):
        (out / "verdict.json").write_text("the first's")
        assert gate() == 4
        assert capsys.readouterr().err == snapshot(
            "rocattn gate: another gate is running in out/gate: wait for it, or name another folder with --out\n"
        )
        assert (out / "verdict.json").read_text() == "the first's"
    assert gate("--bench", r"\(100\)") == 0


def test_the_lock_of_a_run_that_was_just_killed_is_waited_for(tmp_path):
    """What that run was starting holds the folder for a moment longer, and is no other gate."""
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, [holder]).start()
    with alone(tmp_path), pytest.raises(RocattnError, match="another gate is running"), alone(tmp_path):
        pass


def test_a_file_system_without_locks_is_measured_on(tmp_path, monkeypatch):
    """Some network file systems have none: that nobody can be kept out is no reason not to measure."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with alone(tmp_path / "out"):
        assert (tmp_path / "out").is_dir()


def start_and_stop(project, how, *arguments, after):
    """Start the gate in a process of its own, stop it by a signal once so many lines are stored; return its status."""
    command = [sys.executable, "-m", "rocattn_profiling.cli", "gate", "run", *arguments, "--out", "out/stopped"]
    process = subprocess.Popen(command, cwd=project.root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = project.root / "out/stopped"
    while process.poll() is None and sum(p.read_bytes().count(b"\n") for p in folder.glob("launches-*.jsonl")) < after:
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(how)
    return process.wait()


@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_a_stopped_run_goes_on_and_ends_as_an_uninterrupted_one(project, gate, capsys, how, status):
    """In the middle of a round: the next run keeps what is there, measures the rest, decides and waives alike."""
    waiver = """
        [[waiver]]
        benchmark = "bench_work.Exact.time_work(100)"
        metric = "time"
        ceiling = 2.5
        expires = 2999-01-01
        issue = "https://localhost/1"
        reason = "accepted for the test"
    """
    project.put(".rocattn/waivers.toml", textwrap.dedent(waiver))
    project.commit("slower", **DOUBLED)
    # One line for the session, and nine of the twenty launches of five rounds.
    assert start_and_stop(project, how, "--quick", after=10) == status
    (path,) = project.root.glob("out/stopped/launches-*.jsonl")
    if how != signal.SIGKILL:
        assert not list((project.root / "out/stopped/work").iterdir())
    with path.open("ab") as file:
        file.write(b'{"kind":"launch","label":"half a li')
    before = sum(b'"kind":"launch"' in line for line in path.read_bytes().splitlines()[:-1])  # others are of traces
    resumed_status = gate(out="out/stopped")
    assert line(capsys.readouterr().err, "resuming") == f"resuming an interrupted run: {before} launches are there"
    assert not list((project.root / "out/stopped/work").iterdir())
    assert (resumed_status, gate()) == (1, 1)
    resumed, whole = (verdict_in(project.root / "out" / name) for name in ("stopped", "gate"))
    assert sorted(entry.status for entry in resumed.entries) == ["regression", "waived"]
    told = ("seed", "launches", "verdict", "sentence", "problems", "counts")
    assert [getattr(resumed, name) for name in told] == [getattr(whole, name) for name in told]
    for one, other in zip(resumed.entries, whole.entries, strict=True):
        assert (one.label, one.status, one.decision, one.waiver) == (
            other.label,
            other.status,
            other.decision,
            other.waiver,
        )
    path = path.with_name("launches.jsonl")
    lines = [
        msgspec.json.decode(x, type=LaunchLine) for x in path.read_bytes().splitlines() if not x.endswith(b"half a li")
    ]
    keys = [(line.label, line.side, line.round) for line in lines if line.kind == "launch"]
    assert len(keys) == len(set(keys)) == resumed.launches
