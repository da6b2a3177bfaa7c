"""Small git projects with asv suites whose times are exact, and environments for them without a network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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

# A `pytest.ini`: plug-ins of this environment of which a small project has no use, and that take 0.3 s of a launch.
QUIET = "[pytest]\naddopts = -p no:hypothesispytest -p no:inline_snapshot\n"


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


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache folder for all tests, whatever process they are in: equal trees are built once."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "environments"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def offline(monkeypatch, shared_cache):
    """Environments from the running interpreter's packages."""
    monkeypatch.setenv("ROCATTN_OFFLINE", "1")
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(shared_cache))
