"""The kill loop: every command that measures, ended at a seeded moment by a seeded signal, loses nothing and nobody."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest

from rocattn_profiling.base.journal import entries

from ..programs import hearing
from ..projects import offline, project, repo, shared_cache  # noqa: F401 - fixtures

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -signal.SIGKILL}
SHAPE = ["--num-heads", "2", "--seq-q", "48", "--head-dim", "16"]
VERBS = {
    "memory": (["memory", "--backend", "cpu", "--lengths", *map(str, range(32, 72, 8)), "--out", "out"], 12.0),
    "verify": (["verify", "--quick", "--family", "edges", "accuracy", "--backend", "cpu", "--out", "out"], 8.0),
    "bench": (["bench", *SHAPE, "--quick", "--backend", "cpu", "cpu-flash", "--no-store", "--out", "out"], 10.0),
    "site": (["site", "--measure", "2", "--launches", "20", "--no-asv", "--out", "out/site"], 15.0),
    "gate": (["gate", "run", "--quick", "--out", "out"], 15.0),
    "report": (["report", "--records", "none", "--out", "out"], 2.0),
    "doctor": (["doctor"], 4.0),
    "kernels audit": (["kernels", "audit", "--quick", "--arch", "gfx942", "--jobs", "2", "--out", "out"], 12.0),
}
# What compiles begins with an empty cache each time: with a full one no worker would be at work.
COMPILING = {"kernels audit"}
_KEPT = re.compile(r"; kept (\d+) of (?:at most )?\d+(?: launches)? in (\S+);")
_GONE_S = 30.0
KILLS = 30


def lines_of(folder):
    """Return the whole lines of every journal below a folder, and those that are none."""
    whole, torn = {}, []
    for path in folder.rglob("*.jsonl*"):
        whole[path] = list(entries(path, dict))
        torn += [path] * (len(path.read_bytes().splitlines()) - len(whole[path]))
    return whole, torn


def stamps_of(folder):
    """Return when each document below a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}


def descendants(process):
    """Return the processes that a process has started."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def kill_once(verb, folder, chance, most=60.0):
    """Start a command, end it within so many seconds, and hold it to what it promises.

    Returns:
        The signal, whether it ended the command, and how many finished results lie there.
    """
    words, usual = VERBS[verb]
    how, at = chance.choice([*STATUS]), chance.uniform(0.2, min(most, usual))
    before, stamps = lines_of(folder)[0], stamps_of(folder)
    cold = {"ROCATTN_CACHE_DIR": str(folder / f"cold-{chance.random()}")} if verb in COMPILING else {}
    process = subprocess.Popen(
        [*hearing(signal.SIGINT, signal.SIGHUP), sys.executable, "-m", "rocattn_profiling.cli", *words],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | cold,
    )  # fmt: skip
    started, end = {}, time.monotonic() + at
    while time.monotonic() < end and process.poll() is None:
        started |= {child.pid: child for child in descendants(process)}
        time.sleep(0.05)
    started |= {child.pid: child for child in descendants(process)}
    process.send_signal(how)
    said = process.communicate()[1]
    # It may have ended by itself before, or not have come to its own handlers.
    assert process.returncode in {0, 1, 3, 4, -how, STATUS[how]}, (verb, how, process.returncode, said)
    _, alive = psutil.wait_procs(started.values(), timeout=_GONE_S)
    left = [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert left == [], (verb, how, at, said)
    (whole, torn), later = lines_of(folder), stamps_of(folder)
    assert not torn or how == signal.SIGKILL, (verb, how, at, torn)
    for path, earlier in before.items():  # none of an unfinished run is lost to the next
        # A run that is killed on its way out has written its results, and so removed the journal or replaced the last.
        written = any(later[one] != stamps.get(one) for one in later if one.parent == path.parent)
        kept = process.returncode in {0, 1, 3} or whole.get(path, [])[: len(earlier)] == earlier
        assert kept or written, (verb, how, at, path, len(earlier), len(whole.get(path, [])))
    if process.returncode == STATUS[how] and how != signal.SIGKILL:
        assert said.splitlines()[-1].startswith("rocattn") or "earlier run" in said, said
        if told := _KEPT.search(said):
            assert any(str(path).endswith(told[2].removeprefix("out/")) for path in whole) or verb == "bench", said
            assert int(told[1]) > 0
    return how, process.returncode in {-how, STATUS[how]}, sum(map(len, whole.values()))


@pytest.fixture
def place(project, offline, monkeypatch):  # noqa: F811 - fixtures
    """A small project, and its second commit."""
    project.commit("next", **{"a.txt": "1"})
    return project.root


def test_a_few_kills_lose_nothing(place):
    """Three commands, of which one has workers that compile; after three or four seconds each is at work."""
    chance = random.Random(7)  # noqa: S311 - seeded
    for verb in ("memory", "verify", "kernels audit"):
        kill_once(verb, place, chance, most=4.0)


@pytest.mark.parametrize("verb", VERBS)
def test_many_kills_lose_nothing(place, verb):
    """Thirty of each command: 240 in all; in the end each finishes as if nothing had been."""
    chance = random.Random(verb)  # noqa: S311 - seeded
    ends = [kill_once(verb, place, chance) for _ in range(KILLS)]
    ended, kept = (sum(bool(end[column]) for end in ends) for column in (1, 2))
    by_signal = ", ".join(f"{signal.Signals(how).name} {n}" for how, n in Counter(how for how, *_ in ends).items())
    print(f"{verb}: {KILLS} ({by_signal}), {ended} while it ran, {kept} with finished results")  # pytest -rP
    done = subprocess.run(
        [sys.executable, "-m", "rocattn_profiling.cli", *VERBS[verb][0]], cwd=place, env=os.environ,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (3 if verb == "report" else 0), done.stderr
