"""docs/gate-your-project.md, followed to the letter on a project that is not ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling.gate import verdict

from ..projects import LIBRARY, SUITE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gate-your-project.md"
SLOWER = LIBRARY.replace("TICKS += n", "TICKS += 3 * n")
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


def test_one_command_tells_a_slowdown_from_no_change(project, offline):
    """The page's two commands, twice: a comment changes nothing; three times the work is named with file and size."""
    project.git("checkout", "--quiet", "-b", "change")
    project.commit("comment", **{"tinylib/__init__.py": "# counts\n" + LIBRARY})
    status, result = follow(block("rocattn gate init"), project.root)
    assert status == 0, result.sentence
    assert {entry.status for entry in result.entries} == {"pass"}
    project.commit("slower", **{"tinylib/__init__.py": SLOWER})
    status, result = follow(block("rocattn gate init"), project.root)
    assert status == 1, result.sentence
    assert [(entry.status, entry.decision.ratio) for entry in result.entries] == [("regression", pytest.approx(3))] * 2
    assert [cause.location.path for cause in result.entries[0].causes] == ["tinylib/__init__.py"]
    changed = project.git("status", "--porcelain", "--untracked-files=all").splitlines()
    assert all(line.startswith(("?? .github/workflows/rocattn-gate", "?? .rocattn/")) for line in changed), changed


def test_two_environments_are_compared_by_the_page_s_command(tmp_path):
    """No repository, no build: two environments in the folder, and the suite."""
    for name, library in (("before", LIBRARY), ("after", SLOWER)):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / name], check=True)
        (site,) = (tmp_path / name).glob("lib/python3*/site-packages")
        (site / "tinylib.py").write_text(library)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/bench_work.py").write_text(SUITE)
    status, result = follow(block("--base-python"), tmp_path)
    assert status == 1, result.sentence
    assert {entry.status for entry in result.entries} == {"regression"}
