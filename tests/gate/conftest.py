"""Small git projects with asv suites, and synthetic launches, for the tests of the gate."""

import math
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.policy import Policy
from rocattn_profiling.gate.verdict import Cause, Location
from rocattn_profiling.measure.records import Machine
from rocattn_profiling.revisions.git import Revision

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "tinylib"
version = "0.1"
[tool.hatch.build.targets.wheel]
packages = ["tinylib"]
"""
LIBRARY = """\
TICKS = 0
def work(n):
    global TICKS
    total = 0
    for i in range(n):
        total += i * i
    TICKS += n
    return total
"""
# The timer counts loop iterations: its times are exact, whatever else runs on the machine.
SUITE = """\
class Exact:
    params = [[100, 301]]
    param_names = ["n"]
    number = 3
    def setup(self, n):
        import tinylib
        self.work = tinylib.work
    def timer():
        import tinylib
        return tinylib.TICKS * 1e-6
    timer = staticmethod(timer)
    def time_work(self, n):
        self.work(n)
"""


HOSTILE = (
    "]]>|`</code></details><img src=x onerror=alert(1)>@org/team #12 https://evil.example\n\n# x\n::error::"
    "\x1b\u202e\x00"
)
CAUSE = Cause(
    kind="machine code", text="12 VGPRs spilled", location=Location(path="kernels/hip/flash attention.hip", line=118)
)


class Project:
    """A git repository in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.email", "tester@localhost")
        self.git("config", "user.name", "tester")

    def git(self, *arguments):
        """Run git in it and return what it prints."""
        done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def put(self, path, text):
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def commit(self, message, **files):
        """Write files, commit everything, return the hash."""
        for path, text in files.items():
            self.put(path, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def unfinish():
    """Return a function that makes a finished session look killed: these lines are left, and a part of the next."""

    def cut(stored, kept, rest=""):
        key = msgspec.json.decode(kept[0])["key"]
        stored.rename(stored.with_name(f"launches-{key}.jsonl")).write_text("\n".join(kept) + "\n" + rest)

    return cut


@pytest.fixture
def git():
    """Skip where git is missing."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")


@pytest.fixture
def repo(git, tmp_path):
    """An empty repository."""
    return Project(tmp_path / "repo")


@pytest.fixture
def project(repo):
    """A library with an asv suite of exact times, one commit."""
    repo.put("pyproject.toml", PYPROJECT)
    repo.put("tinylib/__init__.py", LIBRARY)
    repo.put("benchmarks/__init__.py", "")
    repo.put("benchmarks/bench_work.py", SUITE)
    repo.put(
        "asv.conf.json",
        '{"version": 1, "project": "tinylib", "repo": ".", // a comment\n "benchmark_dir": "benchmarks",}',
    )
    repo.put(".gitignore", "out/\n__pycache__/\n.asv/\n")
    repo.commit("first")
    return repo


@pytest.fixture
def varying(project):
    """The project with times that differ by up to two percent from round to round: by the hash seed, on both sides."""
    library = project.root / "tinylib/__init__.py"
    text = library.read_text().replace("TICKS += n", "TICKS += n + n * (hash('round') % 3) // 100")
    project.commit("noise of rounds", **{"tinylib/__init__.py": text})
    return project


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache folder for all tests: equal trees are built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def offline(monkeypatch, shared_cache):
    """Environments from the running interpreter's packages."""
    monkeypatch.setenv("ROCATTN_OFFLINE", "1")
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(shared_cache))


@pytest.fixture
def own_cache(monkeypatch, offline, tmp_path):
    """The same in a cache folder of the test's own, which it returns."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def not_root():
    """Skip for root, whom permissions do not stop."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere: permissions cannot be tested")


def launches(rng, rounds, slowdown, noise, kind, samples, cpu, drift):
    """Launches of a 1 ms benchmark: noise between launches, jitter within, and what the kind adds."""
    made = []
    for round_ in range(rounds):
        level = math.log1p(slowdown) + rng.normal(0, noise) + drift[round_]
        extra = 0.0
        if kind == "contaminated" and rng.random() < 0.3:
            extra = rng.exponential(0.2)
        if kind == "bimodal" and rng.random() < 0.5:
            extra = 0.06
        if kind == "skewed":
            extra = rng.gamma(1.0, 0.03)
        wall = 1e6 * np.exp(level + extra + np.abs(rng.normal(0, 0.01, samples)))
        wall = wall * np.where(rng.random(samples) < 0.2, 1 + rng.exponential(0.5, samples), 1)
        if kind == "quantised":
            wall = np.maximum(np.round(wall / 2e4), 1) * 2e4
        made.append(PairLaunch(
            round=round_, samples=wall.tolist(), cpu=wall.tolist() if cpu else [], nivcsw=[0] * samples if cpu else []
        ))  # fmt: skip
    return made


@pytest.fixture
def make_pair():
    """Return a function that draws a pair: ``make_pair(rng, rounds, slowdown, kind=…)``."""

    def make(rng, rounds, slowdown=0.0, name="x", noise=0.015, kind="normal", samples=10, cpu=False):
        # The sides run side by side, so the machine's drift is common to them.
        drift = np.cumsum(rng.normal(0, 0.02, rounds)) if kind == "drift" else np.zeros(rounds)
        a = launches(rng, rounds, 0.0, noise, kind, samples, cpu, drift)
        b = launches(rng, rounds, slowdown, noise, kind, samples, cpu, drift)
        return Pair(id=name, a=Side(launches=a, side="base"), b=Side(launches=b, side="head"))

    return make


def make_entry(label, status, ratio=1.0, **facts):
    """One entry with a decision if its status is one (or a waived one)."""
    decision = None
    if status in {*verdict.JUDGED, "waived"}:
        decision = Decision(
            id=label,
            verdict="regression" if status == "waived" else status,
            ratio=ratio,
            ratio_low=ratio * 0.97,
            ratio_high=ratio * 1.03,
            rounds_used=5,
            reason="why",
        )
        facts = {"base": 2.0e6, "head": 2.0e6 * ratio, "unit": "ns", **facts}
    return verdict.Entry(**{"label": label, "name": label, "status": status, "decision": decision, **facts})


@pytest.fixture
def entry():
    """`make_entry`."""
    return make_entry


@pytest.fixture
def result_of():
    """Return a function that makes a whole verdict around entries."""

    def make(entries, **facts):
        overall, sentence = verdict.conclude(entries, facts.get("invalid", ""), facts.get("problems", ()))
        side = verdict.SideFacts(
            revision=Revision(name="HEAD", sha="ab" * 20, tree="cd" * 20, date_ms=0, subject="a subject"),
            python="3.11",
            packages={},
        )
        machine = Machine(name="m", cpu="c", cores=2, memory_bytes=1, os="o", python="3", numpy="2")
        ordered = sorted(entries, key=lambda e: (verdict.ORDER.index(e.status), -verdict.badness(e)))
        made = {
            "verdict": overall, "sentence": sentence, "created_ms": 1, "base": side, "head": side, "machine": machine,
            "policy": Policy(), "quick": True, "seed": 1, "launches": 10, "suite": "benchmarks", "entries": ordered,
            "counts": {s: n for s in verdict.ORDER if (n := sum(e.status == s for e in entries))},
        }  # fmt: skip
        return verdict.GateResult(**{**made, **facts})

    return make


@pytest.fixture
def rich(entry, result_of):
    """A verdict with an entry of every kind, two of them of machine code."""
    return result_of(
        [
            entry("bench_a.Class.time_slow(1, 'cpu')", "regression", 1.31, causes=[CAUSE], explanation="It spills."),
            entry("flash f16", "regression", decision=None, metric="audit", arch="gfx942", base=0.0, head=43.0,
                  unit="registers", reason="43 registers are spilled", causes=[CAUSE]),
            entry("bench_a.Class.time_lost", "failed", reason="ValueError: x", traceback="Traceback\n  line"),
            entry("bench_a.Class.time_gone", "missing", reason="not there"),
            entry("bench_a.Class.time_open", "inconclusive", 1.04),
            entry("bench_a.Class.time_known", "waived", 1.08, waiver="costs a compare (#41, up to x1.1)"),
            entry("bench_a.Class.time_both", "broken", reason="no"),
            entry("bench_a.Class.time_fast", "improvement", 0.7),
            entry("flash f32", "improvement", 0.9, metric="audit", arch="gfx942"),
            entry("bench_a.Class.time_rate", "ungated", reason="shown"),
            entry("bench_a.Class.time_new", "new", reason="base: x"),
            entry("bench_a.Class.time_old", "removed", reason="gone"),
            entry("bench_a.Class.time_skip", "skipped", reason="no GPU"),
            entry("bench_a.Class.time_fine", "pass"),
        ],
        problems=[".rocattn/waivers.toml:12: the waiver of x time expired on 2026-01-01"], notes=["a note"],
        environment_differences={"numpy": ("2.4.5", "2.4.6")},
    )  # fmt: skip


@pytest.fixture
def hostile(entry, result_of):
    """Return a function that makes a verdict in which every text is foreign: ``hostile(text, entries=…, after=…)``."""

    def make(text=None, entries=12, after=""):
        text = HOSTILE if text is None else text
        text += after
        cause = Cause(kind="source", text=text, location=Location(path=text, line=1))
        facts = {
            "reason": text,
            "explanation": text,
            "waiver": text,
            "causes": [cause] * 3,
            "unit": text,
            "traceback": text,
        }
        statuses = [s for s in verdict.ORDER if s in {"regression", "failed", "inconclusive", "waived", "new", "pass"}]
        made = result_of(
            [entry(f"{text}{n}", statuses[n % len(statuses)], 1.2, name=text, metric="audit" if n % 5 == 4 else "time",
                   arch=text if n % 5 == 4 else "", **facts) for n in range(entries)],
            notes=[text] * 3, problems=[text] * 3, environment_differences={text: (text, text)}, suite=text,
            patterns=[text],
        )  # fmt: skip
        revision = msgspec.structs.replace(made.base.revision, subject=text, name=text)
        side = msgspec.structs.replace(made.base, revision=revision, python=text)
        machine = msgspec.structs.replace(made.machine, name=text, cpu=text, os=text, gpu=text, gfx=text, driver=text)
        return msgspec.structs.replace(made, base=side, head=side, machine=machine)

    return make
