"""Commands as benchmarks: in the side's own checkout, with its own Python, timed with all their children."""

import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling.asv.launch import Request
from rocattn_profiling.gate.launchers.command_launch import CommandLauncher

BURN = "import sys; x = sum(i * i for i in range(int(sys.argv[1])))"


@pytest.fixture
def tree(tmp_path):
    """A checkout with a script, and a module that it imports."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "work.py").write_text("import part\nprint('noise')\n")
    (folder / "part.py").write_text(f"import sys\nsys.argv = ['', '3000']\n{BURN}\n")
    return folder


def launcher(tree, *commands):
    """A side whose environment is the running interpreter."""
    return CommandLauncher(sys.executable, tree, commands, tree.parent / "scratch", {})


def run(side, command, **request):
    """Time one of its commands."""
    case = next(case for case in side.discover().cases() if case.label == command)
    return side.run(case, Request(**request))


def test_a_command_is_timed_as_a_whole(tree):
    """Wall and CPU time with children, as often as fits in the budget; a pipe is one command."""
    command = "python work.py | cat"
    side = launcher(tree, command)
    outcome = run(side, command, budget_ns=1)
    assert outcome.status == "ok", outcome.reason
    assert (len(outcome.launch.samples_ns), outcome.launch.number) == (1, 1)
    assert outcome.launch.cpu_ns[0] > 0
    assert outcome.canary_ns > 0
    assert len(run(side, command, count=3).launch.samples_ns) == 3


def test_a_wait_is_no_cpu_time(tree):
    """A command that sleeps is judged by the wall clock: its CPU time is far from it."""
    launch = run(launcher(tree, "sleep 0.2"), "sleep 0.2", count=1).launch
    assert launch.samples_ns[0] > 0.2e9 > 4 * launch.cpu_ns[0]


@pytest.mark.parametrize(
    ("command", "line"),
    [("python -c 'raise SystemExit(\"no data\")'", "no data"), ("exit 3", "3"), ("no-such-program", "no-such-program")],
)
def test_a_command_that_fails_says_why(tree, command, line):
    """Its last line, in one."""
    outcome = run(launcher(tree, command), command)
    assert outcome.status == "failed"
    assert line in outcome.reason
    assert "\n" not in outcome.reason


def test_python_is_the_sides_own(tree, tmp_path):
    """The environment's folder comes first on PATH, though its python is a link to another one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    command = f"test \"$(python -c 'import sys; print(sys.prefix)')\" = {tmp_path / 'own'}"
    side = CommandLauncher(str(tmp_path / "own/bin/python"), tree, [command], tmp_path / "scratch", {})
    assert run(side, command, count=1).status == "ok"


def test_what_a_command_loads(tree):
    """Modules of every Python that it starts; nothing of a command without one."""
    side = launcher(tree, "python work.py", "true")
    loaded = side.loaded("python work.py", "python work.py")
    assert Path(loaded.modules["part"]) == tree / "part.py"
    assert side.loaded("true", "true") is None
