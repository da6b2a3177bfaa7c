"""The machine's own hook: what it lets through, and that a refused job does not go on."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from inline_snapshot import snapshot

from .scripts import SCRIPTS, run

LABELLED = {
    "action": "labeled", "label": {"name": "gpu"}, "pull_request": {"head": {"repo": {"full_name": "We/rocattn"}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"action": "synchronize"}, "by the label gpu alone"),
        ({"label": {"name": "docs"}}, "by the label gpu alone"),
        ({"label": None}, "by the label gpu alone"),
        ({"pull_request": {"head": {"repo": {"full_name": "they/rocattn"}}}}, "a fork's"),
        ({"pull_request": {"head": {"repo": None}}}, "a fork's"),
        ({"pull_request": None}, "a fork's"),
    ],
)
def test_hook_lets_only_its_repositorys_labels_through(tmp_path, change, why):
    """The last guard is not in the repository: it holds when a workflow file is changed or merged by mistake."""
    event = tmp_path / "event.json"
    event.write_text(json.dumps(LABELLED | change))
    told = {"GITHUB_EVENT_PATH": str(event), "GITHUB_EVENT_NAME": "pull_request", "GITHUB_REPOSITORY": "we/rocattn"}
    done = run("job_started.py", ROCATTN_RUNNER_FOR="we/rocattn", **told)
    assert done.returncode == bool(why)
    assert why in done.stderr
    assert run("job_started.py", **told).returncode == 1  # a machine that was not set up takes nothing
    assert run("job_started.py", ROCATTN_RUNNER_FOR="they/other", **told).returncode == 1


@pytest.mark.parametrize(
    ("name", "status"),
    [("workflow_dispatch", 0), ("push", 1), ("pull_request_target", 1), ("schedule", 1), ("issue_comment", 1), ("", 1)],
)
def test_only_manual_runs_of_other_events_are_let_in(tmp_path, name, status):
    """Each needs write access, or is not allowed here."""
    (tmp_path / "event.json").write_text("{}")
    told = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": name}
    done = run("job_started.py", ROCATTN_RUNNER_FOR="we/rocattn", GITHUB_REPOSITORY="we/rocattn", **told)
    assert done.returncode == status
    for bad in ("{", "[]", '{"pull_request": "x"}', "[" * 100_000):
        (tmp_path / "event.json").write_text(bad)
        done = run("job_started.py", ROCATTN_RUNNER_FOR="we/rocattn", GITHUB_REPOSITORY="we/rocattn", **told)
        assert (done.returncode, done.stderr.partition(" (")[0]) == (
            1,
            snapshot("job_started: the event cannot be read"),
        ), bad


@pytest.mark.parametrize(("event", "let_through"), [("workflow_dispatch", True), ("push", False)])
def test_a_refused_job_does_not_go_on_with_its_always_steps(tmp_path, event, let_through):
    """The runner goes on after a hook that fails, with every step whose condition is always(): it has to be ended."""
    (tmp_path / "event.json").write_text("{}")
    runner = tmp_path / "Runner.Worker"
    runner.symlink_to(shutil.which("bash"))
    told = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": event, "PATH": os.environ["PATH"]}
    hook = shlex.join([sys.executable, "-I", str(SCRIPTS / "job_started.py")])
    job = f"sh -c {shlex.quote(f'{hook}; exit $?')}; touch {shlex.quote(str(tmp_path / 'always'))}"
    names = {"ROCATTN_RUNNER_FOR": "we/rocattn", "GITHUB_REPOSITORY": "we/rocattn"}
    done = subprocess.run([runner, "-c", job], env=told | names, capture_output=True, text=True, check=False)
    assert (tmp_path / "always").exists() == let_through
    assert done.returncode == (0 if let_through else -signal.SIGKILL)
    assert ("refused" in done.stderr) != let_through
