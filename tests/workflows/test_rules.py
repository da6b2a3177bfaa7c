"""The workflows as YAML: forks do not reach the GPU machine, tokens are small, actions pinned, scripts short."""

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .expressions import evaluate, fill, holds
from .rules import PINS, ROOT, load, load_script, names, problems, pull_request, triggers


@pytest.mark.parametrize("name", names())
def test_a_workflow_holds_every_rule(name):
    """No finding for any of ours."""
    assert problems(*load(name)) == []


def first_checkout(job):
    """Return a job's checkout."""
    return next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout"))


def last_step(workflow):
    """Return the last step of job `test`."""
    return workflow["jobs"]["test"]["steps"][-1]


def put(*path, value):
    """Return a change that sets something in a workflow."""

    def change(workflow):
        place = workflow
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(*path):
    """Return a change that removes something."""

    def change(workflow):
        place = workflow
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


def without_step(job, words):
    """Return a change that removes the last step that calls something."""

    def change(workflow):
        steps = workflow["jobs"][job]["steps"]
        steps.remove([step for step in steps if words in step.get("run", "")][-1])

    return change


GPU = ("jobs", "gpu")
FORK_GUARD = "github.event.pull_request.head.repo.full_name == github.repository"
MUTATIONS = {
    "gpu without any guard": ("gpu", drop(*GPU, "if"), "reached by a fork"),
    "gpu by label alone": ("gpu", put(*GPU, "if", value="github.event.label.name == 'gpu'"), "reached by a fork"),
    "gpu by origin alone": ("gpu", put(*GPU, "if", value=FORK_GUARD), "reached by another label"),
    "gpu by either": ("gpu", put(*GPU, "if", value=f"github.event.label.name == 'gpu' || {FORK_GUARD}"), "by a fork"),
    "gpu on every push of a pull request": (
        "gpu", put(True, "pull_request", "types", value=["labeled", "synchronize"]), "without a label"),
    "gpu for another event": ("gpu", put(True, "schedule", value=[]), "reached by pull_request, schedule"),
    "gpu without a reviewer": ("gpu", drop(*GPU, "environment"), "no environment"),
    "gpu without a queue": ("gpu", drop(*GPU, "concurrency"), "no concurrency group for the GPU"),
    "gpu that ends running jobs": ("gpu", put(*GPU, "concurrency", "cancel-in-progress", value=True), "lets a running"),
    "gpu with one queue for all": ("gpu", put(*GPU, "concurrency", "group", value="gpu"), "no concurrency group for"),
    "gpu that leaves the level": ("gpu", without_step("gpu", "restore"), "level is not always put back"),
    "gpu that puts the level back on success only": (
        "gpu", lambda w: next(s for s in w["jobs"]["gpu"]["steps"] if "restore" in s.get("run", "")).pop("if"),
        "level is not always put back"),
    "gpu that leaves processes": ("gpu", without_step("gpu", "clean_gpu"), "this job's processes"),
    "gpu that keeps an earlier job's verdict": (
        "gpu", lambda w: next(s for s in w["jobs"]["gpu"]["steps"] if s.get("name") == "Keep the verdict").update(
            {"if": "always()"}), "an earlier job's files"),
    "gpu that may write": ("gpu", put(*GPU, "permissions", "contents", value="write"), "may write contents"),
    "admit with the pull request's scripts": (
        "gpu", lambda w: first_checkout(w["jobs"]["admit"])["with"].pop("ref"), "checks out what a pull request"),
    "comment with the pull request's code": (
        "comment",
        lambda w: first_checkout(w["jobs"]["comment"])["with"].update(ref="${{ github.event.workflow_run.head_sha }}"),
        "checks out what a pull request brings"),
    "comment that renders the pull request's code": (
        "comment", lambda w: first_checkout(w["jobs"]["render"])["with"].pop("ref"), "checks out what a pull request"),
    "comment that renders where it may write": (
        "comment", lambda w: w["jobs"]["comment"]["steps"].append(w["jobs"]["render"]["steps"][3]), "installs"),
    "comment that installs where it may write": (
        "comment", lambda w: w["jobs"]["comment"]["steps"].append({"run": "python3 dev.py rocattn gate"}), "installs"),
    "rendering that may comment": (
        "comment", put("jobs", "render", "permissions", "pull-requests", value="write"), "render: may write pull"),
    "a comment unpacked over the scripts": (
        "comment", lambda w: w["jobs"]["comment"]["steps"][1]["with"].pop("path"), "over the scripts"),
    "comment that may push": ("comment", put("jobs", "comment", "permissions", "contents", value="write"), "may write"),
    "a job without a timeout": ("test", drop("jobs", "gate", "timeout-minutes"), "gate: no timeout"),
    "an action of someone's fork": (
        "test", lambda w: first_checkout(w["jobs"]["wheel"]).update(uses="some/checkout@" + "a" * 40), "known release"),
    "an artifact over the checkout": (
        "nightly", lambda w: w["jobs"]["publish"]["steps"][1]["with"].pop("path"), "over the scripts"),
    "logic in YAML": (
        "test", lambda w: last_step(w).update(run="curl https://example.org | sh"), "of its own in YAML"),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_broken_workflow_is_found(what):
    """Each guard, taken out of our own files, is missed."""
    name, change, expected = MUTATIONS[what]
    workflow, text = load(name)
    broken = copy.deepcopy(workflow)
    change(broken)
    assert broken != workflow
    found = problems(broken, text)
    assert any(expected in problem for problem in found), found


def test_who_reaches_the_machine_also_needs_the_admission():
    """The job on the machine waits for `admit` and runs the commit that it names, not what the branch has by then."""
    job = load("gpu")[0]["jobs"]["gpu"]
    assert job["needs"] == "admit"
    assert first_checkout(job)["with"]["ref"] == "${{ needs.admit.outputs.sha }}"
    assert not holds(load("gpu")[0]["jobs"]["admit"]["if"], {"github": pull_request("they/rocattn")})


def test_other_labels_do_not_share_the_queue():
    """A group has one waiting run: a further one, though it does nothing, would end it and the consent with it."""
    queue = load("gpu")[0]["concurrency"]["group"]

    def group(label, run):
        event = {"label": {"name": label}, "pull_request": {"number": 7}}
        return fill(queue, {"github": {"event": event, "run_id": run}, "inputs": {}})

    assert group("gpu", 1) == group("gpu", 2) == "gpu-7"
    assert len({group("docs", 3), group("docs", 4), "gpu-7"}) == 3
    by_hand = {"github": {"event": {"inputs": {}}, "run_id": 5}, "inputs": {"sha": "a1"}}
    assert fill(queue, by_hand) == "gpu-a1"


@pytest.mark.parametrize(
    ("conclusion", "told"),
    [("success", True), ("failure", True), ("timed_out", True), ("cancelled", True), ("skipped", False)],
)
def test_every_run_that_ended_is_told_of(conclusion, told):
    """A job that takes longer than it may ends as cancelled, which is how a GPU that hangs looks."""
    run = {"event": "pull_request", "conclusion": conclusion}
    assert holds(load("comment")[0]["jobs"]["render"]["if"], {"github": {"event": {"workflow_run": run}}}) == told


def test_a_night_is_not_measured_and_published_in_forks():
    """Their owner may have turned schedules on for something else; what they start by hand is their wish."""
    jobs = load("nightly")[0]["jobs"]

    def runs(event, fork, measured="success"):
        github = {"event_name": event, "event": {"repository": {"fork": fork}}}
        contexts = {"github": github, "needs": {"measure": {"result": measured}}}
        return [holds(jobs[name]["if"], contexts, "success") for name in ("measure", "publish")]

    assert [runs("schedule", fork=False)[0], runs("workflow_dispatch", fork=True)[0]] == [True, True]
    assert not runs("schedule", fork=True)[0]
    assert [runs("schedule", True, measured)[1] for measured in ("success", "failure", "skipped")] == [
        True,
        True,
        False,
    ]


def test_documented_required_checks_always_run():
    """By the names that GitHub shows; a job of `gpu` is skipped, and so passed, for any other label."""
    (row,) = re.findall(r"required checks \| (.*);", (ROOT / "docs" / "runner.md").read_text())
    test, shown = load("test")[0], []
    for job in test["jobs"].values():
        versions = job.get("strategy", {}).get("matrix", {}).get("python", [""])
        shown += [fill(job["name"], {"matrix": {"python": version}}) for version in versions]
    assert re.findall(r"`([^`]+)`", row) == shown
    assert set(triggers(test)) == {"push", "pull_request", "merge_group"}
    assert [
        name for name, job in test["jobs"].items() if not holds(job.get("if"), {"github": pull_request("we/x")})
    ] == []
    queued = {"github": {"event_name": "merge_group"}}
    assert [name for name, job in test["jobs"].items() if not holds(job.get("if"), queued)] == ["gate"]


def test_scripts_and_workflow_agree_on_label_and_machines():
    """What YAML spells and the scripts compare with; without the variable there is one machine to run on."""
    job = load("gpu")[0]["jobs"]["gpu"]
    scripts = {name: load_script(name) for name in ("pull_request", "job_started")}
    assert {script.LABEL for script in scripts.values()} == {"gpu"}
    assert set(job["runs-on"]) - {"${{ matrix.gpu }}"} == scripts["pull_request"].COMMON_LABELS
    assert fill(job["strategy"]["matrix"]["gpu"], {"vars": {}}) == ["gfx942"]
    assert fill(job["strategy"]["matrix"]["gpu"], {"vars": {"ROCATTN_GPUS": '["gfx90a", "gfx1100"]'}})[1] == "gfx1100"
    kept = [step["with"]["name"] for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert scripts["pull_request"].ARTIFACT.fullmatch(fill(kept[0], {"matrix": {"gpu": "gfx1100"}}))


def test_every_job_is_executed_by_a_test():
    """A new job needs its steps run; only those that run these very tests are not."""
    tested = (Path(__file__).parent / "test_steps.py").read_text()
    tested = set(re.findall(r'\.job\(\s*"(\w+)", "(\w+)"', tested))
    jobs = {(name, job) for name in names() for job in load(name)[0]["jobs"]}
    assert jobs - tested == {("test", "test"), ("nightly", "tests")}


def test_every_pin_is_used():
    """A pin that nothing uses is not looked after."""
    text = "".join(load(name)[1] for name in names())
    assert [action for action in PINS if f"{action}@" not in text] == []


@pytest.mark.parametrize("name", names())
def test_the_scripts_in_yaml_pass_shellcheck(name, tmp_path):
    """Each `run:` as bash would read it, variables of the step's `env` being set from outside."""
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (group lint)")
    for number, step in enumerate(step for job in load(name)[0]["jobs"].values() for step in job["steps"]):
        if "run" in step:
            (tmp_path / f"{number}.sh").write_text(step["run"])
    files = sorted(tmp_path.iterdir())
    assert files
    done = subprocess.run([shellcheck, "-s", "bash", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_shell_script_is_linted_by_the_check():
    """`.ci/run` hands shellcheck what git knows as a shell script; there is no other in the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    scripts = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix not in {".py", ".png"} and path.read_bytes()[:2] == b"#!":
            first = path.read_bytes().split(b"\n", 1)[0]
            scripts += [name] if b"sh" in first else []
    assert all(name.endswith(".sh") or name == ".ci/run" for name in scripts), scripts


def test_an_accepted_finding_says_why():
    """`zizmor: ignore` stands beside its reason, on its line or on the one above."""
    for name in names():
        lines = load(name)[1].splitlines()
        for above, line in zip(["", *lines], lines, strict=False):
            if "zizmor: ignore" in line:
                reason = above if line.rstrip().endswith("]") else line.rpartition("]")[2]
                assert len(reason.strip(" #")) > 20, line


CONTEXTS = {"github": {"event": {"label": {"name": "GPU"}, "number": 7}}, "vars": {}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{ github.event.label.name == 'gpu' }}", True),  # GitHub compares without regard to case
        ("github.event.label.name != 'gpu'", False),
        ("github.event.nothing.at.all", None),
        ("github.event.nothing == ''", True),
        ("vars.X || 'it''s'", "it's"),
        ("'' && 'x'", ""),
        ("'a' || '' && 'b'", "a"),
        ("('a' || '') && 'b'", "b"),
        ("!github.event.x", True),
        ("!(always() && cancelled())", True),
        ("fromJSON('[1, 2]')", [1, 2]),
        ("github.event.number == 7", True),
    ],
)
def test_expressions_mean_what_they_mean_on_github(text, value):
    """The guards are only as good as what evaluates them here."""
    assert evaluate(text, CONTEXTS) == value


def test_unknown_expression_is_an_error():
    """A misspelt context or a sign that is not read must not count as false, which would look like a guard."""
    for text, error in (("gihub.event", KeyError), ("a ~ b", ValueError), ("contains('a', 'b')", KeyError)):
        with pytest.raises(error):
            evaluate(text, CONTEXTS)
    assert [holds(None, CONTEXTS, status) for status in ("success", "failure")] == [True, False]
    assert [holds("'x' == 'x'", CONTEXTS, status) for status in ("success", "failure")] == [True, False]
    assert holds("always()", CONTEXTS, "failure")
    assert fill("a ${{ github.event.number }} b ${{ vars.X }}", CONTEXTS) == "a 7 b "
