"""What every workflow must hold, as a list of what is wrong: for ours, and for ours with something broken.

What zizmor finds (in `.ci/run`, as its strictest auditor) is not repeated here: unpinned actions, tokens left behind,
expressions pasted into scripts, dangerous triggers, missing concurrency groups, permissions of a whole workflow.
"""

import importlib.util
import re
from pathlib import Path

import yaml

from .expressions import holds

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
# Action -> the commit of the release that it is pinned to.
PINS = {
    "actions/checkout": ("3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "actions/setup-python": ("5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "actions/upload-artifact": ("043fb46d1a93c77aae656e7c1c64a875d1fc6a0a", "v7.0.1"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
    "pypa/gh-action-pypi-publish": ("dc37677b2e1c63e2034f94d8a5b11f265b73ba33", "v1.14.2"),
}
# The only jobs that may write, and what; none of them runs code of a pull request.
WRITES = {
    ("gpu", "admit"): {"pull-requests"},
    ("comment", "comment"): {"pull-requests"},
    ("nightly", "publish"): {"contents"},
    ("release", "publish"): {"id-token"},
}
# What a `run:` may call; logic lives in what is tested elsewhere.
COMMANDS = (
    r"bash \.ci/run", r"python3 dev\.py (rocattn|wheel|lint|test|docs)\b.*", r"python3 \.github/scripts/\w+\.py\b.*",
    r"bash \.github/scripts/\w+\.sh\b.*", r"sudo apt-get install --yes [\w-]+",
)  # fmt: skip
OURS, FORK = "we/rocattn", "they/rocattn"


def load(name):
    """Return a workflow and its text."""
    text = (FOLDER / f"{name}.yml").read_text()
    return yaml.safe_load(text), text


def load_script(name):
    """Import a script of the workflows."""
    spec = importlib.util.spec_from_file_location(f"_script_{name}", ROOT / ".github" / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names():
    """Return the workflows' names."""
    return sorted(path.stem for path in FOLDER.glob("*.y*ml"))


def triggers(workflow):
    """Return the events; YAML 1.1 reads the key ``on`` as true."""
    found = workflow.get("on", workflow.get(True))
    return found if isinstance(found, dict) else dict.fromkeys([found] if isinstance(found, str) else found)


def problems(workflow, text):
    """Return one line for each rule that a workflow breaks."""
    found = ["a secret is used: there is none in this project"] if "secrets." in text else []
    for name, job in workflow["jobs"].items():
        found += [f"{name}: {problem}" for problem in _of_job(workflow, name, job)]
        found += [f"{name}: {problem}" for step in job["steps"] for problem in _of_step(workflow, job, step, text)]
        if "self-hosted" in job["runs-on"]:
            found += [f"{name}: {problem}" for problem in _of_self_hosted(workflow, job)]
    return found


def _of_job(workflow, name, job):
    if not isinstance(job.get("timeout-minutes"), int) or job["timeout-minutes"] > 360:
        yield "no timeout"
    writes = {key for key, value in job.get("permissions", {}).items() if value != "read"}
    if more := writes - WRITES.get((workflow["name"], name), set()):
        yield f"may write {', '.join(sorted(more))}"
    for line in (line for step in job["steps"] if writes for line in step.get("run", "").splitlines()):
        script = re.fullmatch(r"(?:bash|python3) (\.github/scripts/\w+\.\w+)\b.*", line)
        if script is None or re.search(r"\bdev\.py\b|\bpip\b|\buv\b", (ROOT / script[1]).read_text()):
            yield f"installs beside a token that can write: {line!r}"


def _of_step(workflow, job, step, text):
    if "uses" in step:
        action, _, commit = step["uses"].partition("@")
        pin, version = PINS.get(action, ("", ""))
        if commit != pin:
            yield f"{action} is pinned to a commit that is not of a known release"
        elif f"{step['uses']} # {version}\n" not in text:
            yield f"{action} does not name its version"
        if action == "actions/checkout":
            yield from _of_checkout(workflow, job, step.get("with", {}))
        if action == "actions/download-artifact" and step.get("with", {}).get("path", ".") == ".":
            yield "an artifact is unpacked over the scripts of the checkout"
    if "run" in step:
        for line in step["run"].splitlines():
            if line and not line.startswith("#") and not any(re.fullmatch(form, line) for form in COMMANDS):
                yield f"a script of its own in YAML: {line!r}"


def _of_checkout(workflow, job, options):
    can_write = "write" in job.get("permissions", {}).values()
    events = set(triggers(workflow))
    foreign = "workflow_run" in events or (can_write and "pull_request" in events)
    if foreign and options.get("ref") != "${{ github.event.repository.default_branch }}":
        yield "a job that can write, or comes after one that did not trust it, checks out what a pull request brings"


def _of_self_hosted(workflow, job):
    events = triggers(workflow)
    if set(events) - {"pull_request", "workflow_dispatch"}:
        yield f"the machine is reached by {', '.join(sorted(events))}"
    if "pull_request" in events and events["pull_request"].get("types") != ["labeled"]:
        yield "the machine is reached without a label"
    for who, event in FORBIDDEN.items():
        if holds(job.get("if", "always()"), {"github": event}):
            yield f"the machine is reached by {who}"
    for who, event in ALLOWED.items():
        if not holds(job.get("if", "always()"), {"github": event}):
            yield f"the machine is not reached by {who}"
    if not job.get("environment"):
        yield "no environment, so no reviewer"
    group = job.get("concurrency") or {}
    if "matrix.gpu" not in group.get("group", "") or group.get("cancel-in-progress") is not False:
        yield "no concurrency group for the GPU that lets a running job end"
    yield from _of_restoring(job["steps"])
    yield from _of_keeping(job["steps"])


def _of_restoring(steps):
    """The level must be put back, and the GPU left free, whatever happens after it was set."""
    runs = [(step.get("run", ""), step.get("if")) for step in steps]
    changed = next((index for index, (run, _) in enumerate(runs) if "gpu_level.py set" in run), None)
    if changed is not None and not any(
        "gpu_level.py restore" in run and when == "always()" for run, when in runs[changed:]
    ):
        yield "the performance level is not always put back"
    cleaned = [(index, when) for index, (run, when) in enumerate(runs) if "clean_gpu.py" in run]
    work = next((index for index, (run, _) in enumerate(runs) if "rocattn ci" in run), 0)
    if not any(index < work for index, _ in cleaned):
        yield "an earlier job's processes are not looked for"
    if not any(index > work and when == "always()" for index, when in cleaned):
        yield "this job's processes are not always ended"


def _of_keeping(steps):
    """A machine's folder has an earlier job's files until the checkout has cleaned it; a job can end before that."""
    for step in steps:
        if step.get("uses", "").startswith("actions/upload-artifact"):
            for checked_out, status in (("success", "failure"), ("failure", "failure"), ("skipped", "failure")):
                contexts = {"steps": {"checkout": {"outcome": checked_out}}}
                if holds(step.get("if"), contexts, status) != (checked_out == "success"):
                    yield f"{step['name']!r} when the checkout is {checked_out}: an earlier job's files, or none"
    ids = [step.get("uses", "").partition("@")[0] for step in steps if step.get("id") == "checkout"]
    if ids != ["actions/checkout"]:
        yield "the step `checkout` is not the checkout"


def pull_request(repository, label="gpu"):
    """Return what GitHub tells of a label on a pull request from a repository."""
    return {
        "event_name": "pull_request", "repository": OURS,
        "event": {"label": {"name": label}, "pull_request": {"head": {"repo": {"full_name": repository}}}},
    }  # fmt: skip


FORBIDDEN = {
    "a fork": pull_request(FORK),
    "another label": pull_request(OURS, "documentation"),
    "a fork that was deleted": pull_request(None),
    "a push": {"event_name": "push", "repository": OURS, "event": {}},
    "a fork's own run of another event": {"event_name": "pull_request_target", "repository": OURS, "event": {}},
}
ALLOWED = {
    "a labelled pull request of this repository": pull_request(OURS),
    "a maintainer by hand": {"event_name": "workflow_dispatch", "repository": OURS, "event": {"inputs": {}}},
}
