"""What each test may rely on: usual signals, and that a process which outlives the tests is found."""

import os
import signal
import subprocess
import sys

import pytest

from .surroundings import MARK, ROOT, end, living


def test_signals_are_usual_whatever_our_starter_ignores():
    """A shell's background job has SIGINT ignored: programs that tests start would never end at it."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_settings_of_git_python_and_terminals_stay_out(tmp_path):
    """In a hook of git's, with another checkout first among modules and a narrow terminal in colour, say."""
    other = tmp_path / "other" / "rocattn"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the other checkout')")
    (tmp_path / "settings").write_text("[commit]\ngpgSign = true\n[user]\nname = them\n")
    theirs = {
        "PYTHONPATH": str(other.parent), "GIT_DIR": str(tmp_path / "theirs"), "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "settings"), "COLUMNS": "40", "FORCE_COLOR": "1", "NO_COLOR": "1",
    }  # fmt: skip
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.surroundings import take_usual_variables\n"
        "take_usual_variables()\n"
        "import os, subprocess, rocattn\n"
        "print(rocattn.__file__, *sorted(set(os.environ) & {*sys.argv[1:]}))\n"
        "print(subprocess.run(['git', 'config', 'user.name'], capture_output=True, text=True).stdout)"
    )
    command = [sys.executable, "-c", program, *theirs]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | theirs, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(ROOT / "rocattn/__init__.py"), "GIT_CONFIG_GLOBAL"]


@pytest.mark.parametrize(
    ("start", "marked"),
    [("exec sleep 600", True), ("exec sleep 600", False), ("sleep 600 & ", True), ("setsid sleep 600 & ", True)],
    ids=["child", "child of another environment", "orphan", "orphan in its own session"],
)
def test_what_a_test_leaves_is_found_and_ended(start, marked, request):
    """And told, with its test."""
    env = os.environ if marked else {"PATH": os.environ["PATH"]}
    before = {process.pid for process in living(os.environ[MARK])}
    with subprocess.Popen(["sh", "-c", f"{start} >&-"], env=env) as started:
        if "&" in start:
            started.wait()
        found = [process for process in living(os.environ[MARK]) if process.pid not in before]
        told = [end(process) for process in found]
    assert len(told) == 1
    assert "sleep 600" in told[0]  # the shell may be about to become it
    assert not marked or told[0].startswith(request.node.nodeid)
