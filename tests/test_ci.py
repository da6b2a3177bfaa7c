"""``rocattn ci``: which steps it plans, how it goes on after a failure, and which status it ends with."""

import json
import subprocess

import pytest

from rocattn_profiling import cli
from rocattn_profiling.cli import ci


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with one commit as the working directory."""
    for key, value in {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_CONFIG_GLOBAL": "/dev/null"}.items():
        monkeypatch.setenv(key, value)
        monkeypatch.setenv(key.replace("AUTHOR", "COMMITTER"), value)
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    commit("one")
    return tmp_path


def git(*arguments):
    """Run git in the working directory."""
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit(text):
    """Commit a file with this text."""
    with open("file", "w") as file:  # noqa: PTH123 - a one-line helper
        file.write(text)
    git("add", "file")
    git("commit", "-qm", text)


@pytest.fixture
def fake_commands(monkeypatch):
    """Commands that end with the statuses a test sets, in place of real ones; gives the list of what was run.

    There is a compiler for GPU kernels, whatever this machine has.
    """
    ran, statuses = [], {}
    monkeypatch.setattr("rocattn.toolchain.choose_compiler", lambda: None)

    def command(arguments):
        ran.append(arguments)
        return statuses.get(arguments[0], 0)

    monkeypatch.setattr(ci, "_run_command", command)
    return ran, statuses


def test_all_steps_run_in_order_and_the_summary_is_json(repository, fake_commands, capsys):
    """With a parent and a clean tree, every step runs, and --json is alone on stdout."""
    commit("two")
    ran, _ = fake_commands
    assert cli.main(["ci", "--quick", "--json", "--out", str(repository.parent / "o")]) == 0
    assert [command[0] for command in ran] == [
        "doctor",
        "verify",
        "bench",
        "kernels",
        "gate",
        "bench",
        "report",
        "site",
    ]
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == 0
    assert [step["name"] for step in result["steps"]] == list(ci.STEPS)
    assert json.loads((repository.parent / "o/ci.json").read_text()) == result


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [({"gate": 1}, 1), ({"gate": 2}, 2), ({"gate": 3, "verify": 1}, 1), ({"bench": 3}, 3), ({"site": -9}, 3)],
)
def test_a_failing_step_does_not_hide_the_others(repository, fake_commands, statuses, expected):
    """Later steps still run, and the gravest status wins; a crashed step is "not measured"."""
    commit("two")
    ran, wanted = fake_commands
    wanted.update(statuses)
    assert cli.main(["ci", "--out", str(repository.parent / "o")]) == expected
    assert len(ran) == len(ci.STEPS)


def test_the_first_commit_has_nothing_to_gate_and_says_so(repository, fake_commands, capsys):
    """A root commit skips the gate loudly; the rest runs."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--out", str(repository.parent / "o")]) == 0
    assert "gate" not in [command[0] for command in ran]
    assert "gate: SKIPPED: the first commit has no parent" in capsys.readouterr().err


def test_a_dirty_tree_is_gated_as_it_is(repository):
    """Uncommitted changes are what the user wants to know about."""
    (repository / "file").write_text("three")
    assert ci.gate_arguments(None) == (["--head", "WORKTREE"], "")


def test_a_shallow_clone_does_not_skip_the_gate(repository, tmp_path_factory, monkeypatch):
    """The commit has a parent that was not fetched: the gate runs and says so, instead of being skipped in silence."""
    commit("two")
    shallow = tmp_path_factory.mktemp("shallow")
    git("clone", "-q", "--depth", "1", f"file://{repository}", str(shallow / "clone"))
    monkeypatch.chdir(shallow / "clone")
    assert ci.gate_arguments(None) == ([], "")


def test_without_a_compiler_the_audit_is_skipped_with_the_reason(repository, fake_commands, monkeypatch, capsys):
    """Machine code needs a compiler; without one the step says so, and the rest runs."""
    from rocattn.errors import ToolchainError

    def none():
        raise ToolchainError("no compiler for HIP kernels: none here")

    monkeypatch.setattr("rocattn.toolchain.choose_compiler", none)
    commit("two")
    ran, _ = fake_commands
    assert cli.main(["ci", "--out", str(repository.parent / "o")]) == 0
    assert "kernels" not in [command[0] for command in ran]
    assert "audit: SKIPPED: no compiler for HIP kernels: none here" in capsys.readouterr().err


def test_outside_a_checkout_what_needs_commits_is_skipped(tmp_path, monkeypatch, fake_commands, capsys):
    """An unpacked archive can still verify and measure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    ran, _ = fake_commands
    assert cli.main(["ci"]) == 0
    assert [command[0] for command in ran] == ["doctor", "verify", "bench", "kernels", "report"]
    assert capsys.readouterr().err.count("SKIPPED: not a git checkout") == 3


def test_skipped_steps_are_named_and_nothing_run_is_not_green(repository, fake_commands):
    """--skip leaves steps out; a job that ran nothing has measured nothing."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--skip", *ci.STEPS]) == 3
    assert not ran
