"""The runner's job-started hook (docs/runner.md): ends a job that must not run here, before its first step.

The machine uses a copy owned by root, so a pull request that changes this file changes nothing there. The repository
that may use the machine is in ROCATTN_RUNNER_FOR ("owner/name"), set by the machine's owner. Only a label on a pull
request from that repository itself, and a manual run, are allowed, whatever the workflow files say.

A status other than 0 makes the runner skip the job's steps, except those with ``if: always()`` (issue 2811 of
actions/runner), which a changed workflow file can have. So a refusal also kills the runner's process for the job; the
runner itself goes on, and reports the job as failed.
"""  # noqa: INP001 - a script of the workflows, in no package

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

LABEL = "gpu"
WORKER = "Runner.Worker"


def refusal(name: str, event: dict[str, Any], repository: str, allowed: str) -> str:
    """Return why a job may not run here; "" if it may.

    Args:
        name: The event's name.
        event: The event's payload from GitHub.
        repository: The repository that the job belongs to.
        allowed: The repository that may use the machine.
    """
    head = ((event.get("pull_request") or {}).get("head") or {}).get("repo") or {}
    labelled = event.get("action") == "labeled" and (event.get("label") or {}).get("name") == LABEL
    by_hand = name == "workflow_dispatch"
    guards = (
        (bool(allowed), "ROCATTN_RUNNER_FOR is not set on this machine"),
        (repository.lower() == allowed.lower(), f"{repository!a} may not use this machine"),
        (by_hand or name == "pull_request", f"the event {name!a} is not allowed here"),
        (by_hand or labelled, f"a pull request runs here by the label {LABEL} alone"),
        (
            by_hand or str(head.get("full_name", "")).lower() == allowed.lower(),
            "a fork's pull request is not allowed here",
        ),
    )
    return next((why for holds, why in guards if not holds), "")


def worker(proc: Path = Path("/proc")) -> int:
    """Return the process that runs the job, of which this hook is a descendant; 0 if there is none."""
    pid = os.getpid()
    while pid > 1:
        try:
            lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
        except OSError:  # another user's process, if those are hidden
            return 0
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if status.get("Name") == WORKER:
            return pid
        pid = int(status.get("PPid", "0"))
    return 0


def refuse(why: str) -> int:
    """Print why, and end the whole job."""
    print(f"job_started: {why}: refused", file=sys.stderr, flush=True)
    if pid := worker():
        os.kill(pid, signal.SIGKILL)
    else:
        print(f"job_started: there is no {WORKER} to end: steps with always() still run", file=sys.stderr)
    return 1


def main() -> int:
    """Read the runner's event, and allow or refuse the job."""
    try:
        event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())
        environment = [os.environ.get(key, "") for key in ("GITHUB_REPOSITORY", "ROCATTN_RUNNER_FOR")]
        why = refusal(os.environ.get("GITHUB_EVENT_NAME", ""), event, *environment)
    except (KeyError, OSError, ValueError, AttributeError, RecursionError) as error:  # not in GitHub's format
        why = f"the event cannot be read ({type(error).__name__})"
    if why:
        return refuse(why)
    print("job_started: let through")
    return 0


if __name__ == "__main__":
    sys.exit(main())
