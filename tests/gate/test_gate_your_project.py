"""docs/gate-your-project.md, followed to the letter on a project that is not ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling.gate import verdict

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gate-your-project.md"
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "wordcount"
version = "0.1"
[tool.hatch.build.targets.wheel]
packages = ["src/wordcount"]
"""
LIBRARY = """\
WORDS = 0
def count(text):
    global WORDS
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
        WORDS += 1
    return found
"""
SLOWER = LIBRARY.replace("text.split()", "(text * 3).split()")
# Timed in words instead of seconds, as asv's ``timer`` allows: the same on a quiet machine and on a busy one.
SUITE = """\
import wordcount

class Count:
    params = [100, 1000]
    timer = staticmethod(lambda: wordcount.WORDS * 1e-6)
    def setup(self, n):
        self.text = "the quick brown fox " * n
    def time_count(self, n):
        wordcount.count(self.text)
"""
pytestmark = pytest.mark.slow


def block(containing):
    """Return the one shell block of the page that holds a text."""
    (found,) = (
        b for b in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL) if containing in b
    )
    return found


def follow(lines, folder):
    """Run a block in a shell, with the command as its only help; return the status and the verdict."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["sh", "-ec", lines], cwd=folder, env=os.environ | {"PATH": path}, check=False)
    return done.returncode, verdict.read(folder / "out/gate/verdict.json")


@pytest.fixture
def theirs(repo, offline):
    """Somebody's project on a branch of its own: a library in src, an asv suite, no word of rocattn."""
    repo.put("pyproject.toml", PYPROJECT)
    repo.put("src/wordcount/__init__.py", LIBRARY)
    repo.put("benchmarks/asv.conf.json", '{"version": 1, "project": "wordcount", "repo": "..", "benchmark_dir": "."}')
    repo.put("benchmarks/bench_count.py", SUITE)
    repo.put(".gitignore", "out/\n__pycache__/\n")
    repo.commit("first")
    repo.git("checkout", "--quiet", "-b", "change")
    return repo


def test_one_command_tells_a_slowdown_from_no_change(theirs):
    """The page's two commands, twice: a comment changes nothing; three times the work is named with file and size."""
    theirs.commit("comment", **{"src/wordcount/__init__.py": "# counts words\n" + LIBRARY})
    status, result = follow(block("rocattn gate init"), theirs.root)
    assert status == 0, result.sentence
    assert {entry.status for entry in result.entries} == {"pass"}
    theirs.commit("slower", **{"src/wordcount/__init__.py": SLOWER})
    status, result = follow(block("rocattn gate init"), theirs.root)
    assert status == 1, result.sentence
    assert {entry.label for entry in result.entries if entry.status == "regression"} == {
        "bench_count.Count.time_count(100)",
        "bench_count.Count.time_count(1000)",
    }
    assert all(entry.decision.ratio == pytest.approx(3) for entry in result.entries)
    assert [cause.location.path for cause in result.entries[0].causes] == ["src/wordcount/__init__.py"]
    changed = theirs.git("status", "--porcelain", "--untracked-files=all").splitlines()
    assert all(line.startswith(("?? .github/workflows/rocattn-gate", "?? .rocattn/")) for line in changed), changed


def test_two_environments_are_compared_by_the_page_s_command(tmp_path):
    """No repository, no build: two environments in the folder, and the suite."""
    for name, library in (("before", LIBRARY), ("after", SLOWER)):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / name], check=True)
        (site,) = (tmp_path / name).glob("lib/python3*/site-packages")
        (site / "wordcount.py").write_text(library)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/bench_count.py").write_text(SUITE)
    status, result = follow(block("--base-python"), tmp_path)
    assert status == 1, result.sentence
    assert {entry.status for entry in result.entries} == {"regression"}
