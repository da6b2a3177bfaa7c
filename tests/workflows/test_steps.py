"""Every step of the workflows that needs no AMD hardware, executed in order in a clean clone.

The stand-in GPU is in the place of the GPU, fakes in the place of amd-smi, the profiler and GitHub's API; the clone,
the gate, both builds, the verdicts and the comments are real.
"""

import io
import json
import sysconfig
import zipfile

import pytest

import rocattn
from rocattn.toolchain.hostgpu import hostgpu_library

from ..screens import line
from .fakes import install_rocprofv3, install_smi
from .github import GitHub, archive
from .jobs import Done, Runner, snapshot, without_git
from .scenario import Scenario, git

pytestmark = pytest.mark.slow
ARCH = "gfx942"
HOSTILE = "$(touch pwned)`touch pwned`;touch pwned\n\"'<img src=x onerror=alert(1)>]]>"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory, kernel_cache):
    """The repository and its pull requests, a machine with a pretend GPU, and a GitHub."""
    if why := without_git():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("workflows")
    made = Scenario(folder, snapshot(folder))
    made.smi = install_smi(folder, "amd-smi", level="auto")
    install_rocprofv3(folder, arch=ARCH)
    # What kernels compile to is kept for this run; a runner of the real workflow starts with an empty cache.
    machine = {"ROCATTN_CACHE_DIR": str(kernel_cache)}
    gpu = {
        "ROCM_PATH": str(hostgpu_library()),
        "ROCATTN_HOSTGPU_ARCH": ARCH,
        "ROCATTN_GPU_DEVICES": str(folder / "kfd"),
    }
    made.cpu_machine = Runner(folder, made.origin, machine)
    (folder / "gpu").mkdir()
    made.gpu_machine = Runner(folder / "gpu", made.origin, {**machine, **gpu})
    for name in ("amd-smi", "rocprofv3", "sudo"):
        (folder / "gpu" / "bin" / name).symlink_to(folder / "bin" / name)
    made.folder = folder
    made.hub = GitHub()
    for number, (name, sha) in enumerate(made.heads.items(), 1):
        made.hub.add_pull(number, sha, branch=name)
    made.hub.rights["ann"] = "write"
    return made


def labelled(scenario, name):
    """Return what GitHub tells of the label `gpu` on a pull request, its title and branch being hostile."""
    number = list(scenario.heads).index(name) + 1
    pull = {
        "number": number, "title": HOSTILE, "body": HOSTILE, "base": {"sha": scenario.base, "ref": "main"},
        "head": {"sha": scenario.heads[name], "ref": HOSTILE, "repo": {"full_name": "we/rocattn"}},
    }  # fmt: skip
    event = {
        "label": {"name": "gpu"}, "pull_request": pull, "sender": {"login": "ann"},
        "repository": {"default_branch": "main"},
    }  # fmt: skip
    return {"event_name": "pull_request", "event": event, "sha": scenario.merges[name]}


def on_the_gpu(scenario, name):
    """Run the workflow `gpu` for a pull request; return both jobs."""
    github = labelled(scenario, name)
    machine = scenario.gpu_machine
    machine.artifacts = {}
    with scenario.hub.serving() as variables:
        scenario.cpu_machine.environment |= variables
        admitted = scenario.cpu_machine.job("gpu", "admit", github)
    assert admitted.outcome == "success", repr(admitted)
    variables = {
        "ROCATTN_DOCTOR_ARGS": "--allow-stand-in",
        "ROCATTN_CI_ARGS": "--allow-stand-in --quick --bench QuickGpu "
        "--skip doctor verify bench audit report site known",
    }
    done = machine.job(
        "gpu", "gpu", github, variables=variables, needs={"admit": admitted.outputs}, matrix={"gpu": ARCH}
    )
    return admitted, done


def commented(scenario, name, done, workflow="gpu"):
    """Run the workflow `comment` after a run; return the comment."""
    number = list(scenario.heads).index(name) + 1
    conclusion = "success" if done.outcome == "success" else "failure"
    run = {
        "event": "pull_request", "conclusion": conclusion, "id": 42, "head_sha": scenario.heads[name],
        "head_branch": name, "head_repository": {"full_name": "we/rocattn"}, "workflow_id": 5, "name": workflow,
        "path": f".github/workflows/{workflow}.yml",
    }  # fmt: skip
    github = {
        "event_name": "workflow_run", "sha": scenario.base,
        "event": {"workflow_run": run, "repository": {"default_branch": "main"}},
    }  # fmt: skip
    machine = scenario.gpu_machine if workflow == "gpu" else scenario.cpu_machine
    scenario.hub.artifacts, scenario.hub.jobs, scenario.hub.head = machine.artifacts, [], scenario.heads[name]
    if workflow == "gpu":
        scenario.hub.add_machine(ARCH, conclusion)
    scenario.hub.comments[number].clear()
    with scenario.hub.serving() as variables:
        scenario.cpu_machine.environment |= variables
        rendered = scenario.cpu_machine.job("comment", "render", github)
        assert rendered.outcome == "success", repr(rendered)
        needs = {"render": rendered.outputs}
        comment = scenario.cpu_machine.job("comment", "comment", github, needs=needs)
    assert comment.outcome == "success", repr(comment)
    assert len(scenario.hub.comments[number]) == 1
    return scenario.hub.comments[number][0]["body"]


def verdict(machine, name):
    """Return the verdict that a run kept, decoded."""
    with zipfile.ZipFile(io.BytesIO(machine.artifacts[name])) as packed:
        return json.loads(packed.read("verdict.json"))


def names_in(artifact):
    """Return the names of an artifact's files."""
    with zipfile.ZipFile(io.BytesIO(artifact)) as packed:
        return packed.namelist()


def nothing_was_injected(scenario):
    """No hostile text was run anywhere."""
    assert list(scenario.folder.rglob("pwned")) == []


def levels_are_back(scenario):
    """The performance level was set and is what it was."""
    sets = [call[2] for call in scenario.smi.calls if call[:2] == ["set", "--perf-level"]]
    assert sets[-2:] == ["STABLE_STD", "AUTO"]
    assert scenario.smi.level == "auto"


@pytest.fixture(scope="module")
def green(scenario):
    """The workflow `gpu` for the pull request that changes nothing: both jobs, the artifacts and the verdict."""
    admitted, done = on_the_gpu(scenario, "unchanged")
    artifacts = dict(scenario.gpu_machine.artifacts)
    return admitted, done, artifacts, verdict(scenario.gpu_machine, f"verdict-{ARCH}")


def test_unchanged_pull_request_is_green(scenario, green):
    """Admission, health, level, both builds, the gate, level back, artifacts, comment."""
    admitted, done, scenario.gpu_machine.artifacts, found = green
    assert admitted.outputs == {"sha": scenario.heads["unchanged"], "base": scenario.base}
    assert scenario.hub.labels[1] == []
    assert done.outcome == "success", repr(done)
    assert {step.outcome for step in done.steps} == {"success"}, repr(done)
    levels_are_back(scenario)
    assert found["verdict"] == "pass"
    assert any("QuickGpu" in entry["label"] and entry["status"] == "pass" for entry in found["entries"])
    said = line(done.step("rocattn ci").log, "profile: ")
    assert said == "[6/9] profile: SKIPPED: no GPU benchmark became slower"
    assert "rocattn gate: pass" in done.summary
    text = commented(scenario, "unchanged", done)
    assert "ended with **success**" in text
    assert "rocattn gate: pass" in text
    nothing_was_injected(scenario)


def test_planted_regression_is_red_with_a_profile(scenario):
    """Every kernel launched twice: the job fails, the comment names the benchmark and x2, the profiler ran on it."""
    _, done = on_the_gpu(scenario, "slower")
    assert done.outcome == "failure", repr(done)
    assert [step.name for step in done.steps if step.outcome == "failure"] == ["rocattn ci"]
    levels_are_back(scenario)
    found = verdict(scenario.gpu_machine, f"verdict-{ARCH}")
    worse = [entry for entry in found["entries"] if entry["status"] == "regression"]
    assert [round(entry["decision"]["ratio"], 3) for entry in worse] == [2.0]
    text = commented(scenario, "slower", done)
    assert "ended with **failure**" in text
    assert "bench_launches.QuickGpu.time_launches" in text
    assert "2.00" in text or "+100" in text, text
    calls = [json.loads(line) for line in (scenario.folder / "profiler-calls.jsonl").read_text().splitlines()]
    profiled = [call["argv"][-1] for call in calls if any("asv.launch" in word for word in call["argv"])]
    assert set(profiled) == {entry["label"] for entry in worse}
    kept = scenario.gpu_machine.artifacts[f"gpu-{ARCH}"]
    assert b"profile/1/profile.json" in kept
    nothing_was_injected(scenario)


def test_a_planted_crash_is_could_not_measure_and_not_green(scenario):
    """A kernel's launch ends the process: no green, no regression claimed, the level put back all the same."""
    _, done = on_the_gpu(scenario, "crashes")
    assert done.outcome == "failure", repr(done)
    assert [step.name for step in done.steps if step.outcome == "failure"] == ["rocattn ci"]
    levels_are_back(scenario)
    found = verdict(scenario.gpu_machine, f"verdict-{ARCH}")
    assert found["verdict"] == "not measured"
    assert [entry["status"] for entry in found["entries"] if "QuickGpu" in entry["label"]] == ["failed"]
    text = commented(scenario, "crashes", done)
    assert "ended with **failure**" in text
    assert line(text, "rocattn gate:") == "### rocattn gate: not measured"
    assert "bench_launches.QuickGpu.time_launches('gpu')</code> | **failed**" in text
    # Why it ended is free text, which the comment of an untrusted verdict leaves to the artifact.
    assert "SIGABRT" not in text
    assert any("SIGABRT" in entry["reason"] for entry in found["entries"])
    nothing_was_injected(scenario)


def test_a_job_without_a_verdict_is_could_not_measure(scenario):
    """Not even the health check survives: nothing is measured, no level set; the comment does not stay silent."""
    before = len(scenario.smi.calls)
    _, done = on_the_gpu(scenario, "dies")
    assert done.outcome == "failure", repr(done)
    assert [step.name for step in done.steps if step.outcome == "failure"] == ["Is the GPU healthy?"]
    assert done.step("rocattn ci").outcome == "skipped"
    assert [step.outcome for step in done.steps if "performance level" in step.name] == ["skipped", "success"]
    assert not any("set" in call for call in scenario.smi.calls[before:])
    assert scenario.gpu_machine.artifacts == {}
    text = commented(scenario, "dies", done)
    assert "ended with **failure**" in text
    assert line(text, "rocattn gate:") == "### rocattn gate: not measured"


NAMES = ["<img src=x onerror=alert(1)>", "@everyone", "[here](https://evil.example)", "<!-- -->", "$(touch pwned)"]


def test_hostile_verdict_shows_only_numbers_and_safe_names(scenario, green):
    """An artifact that keeps to the schema and has HTML, links, mentions and a pull request's number in every text."""
    done = Done("failure", [], {}, "")
    found = {**green[-1], "pr_number": 3, "verdict": "regression"}
    for entry in found["entries"]:
        entry["label"] = entry["name"] = entry["reason"] = "\n\n".join(NAMES) + "\n```\n"
        entry["status"] = "regression"
    found["sentence"] = found["notes"][0] = found["head"]["revision"]["subject"] = " ".join(NAMES)
    scenario.gpu_machine.artifacts = {f"verdict-{ARCH}": archive({"verdict.json": json.dumps(found).encode()})}
    text = commented(scenario, "dies", done)
    assert "ended with **failure**" in text
    first, _, rest = text.partition("\n")
    assert first == f"<!-- rocattn:verdict-{ARCH} -->"
    for name in NAMES[:3]:
        assert name not in rest
    nothing_was_injected(scenario)


@pytest.mark.parametrize("content", [b"[]", b'{"schema": 99}', b"\xff\xfe", b"{" * 100_000])
def test_what_is_no_verdict_is_could_not_measure(scenario, content):
    """Another schema, another encoding, a parser's nightmare: the comment says that nothing was measured."""
    scenario.gpu_machine.artifacts = {f"verdict-{ARCH}": archive({"verdict.json": content})}
    text = commented(scenario, "dies", Done("success", [], {}, ""))
    assert line(text, "rocattn gate:") == "### rocattn gate: not measured"
    assert "No regression" not in text


def test_a_fork_s_pull_request_gets_no_job(scenario):
    """Neither admitted nor measured, label or not."""
    github = labelled(scenario, "unchanged")
    github["event"]["pull_request"]["head"]["repo"]["full_name"] = "they/rocattn"
    for job in ("admit", "gpu"):
        done = scenario.cpu_machine.job("gpu", job, github, needs={"admit": {"sha": ""}}, matrix={"gpu": ARCH})
        assert (done.outcome, done.steps) == ("skipped", [])


def test_a_maintainer_runs_a_fork_s_commit_by_hand(scenario):
    """The commit is named with all its digits, its base by branch."""
    inputs = {"sha": scenario.heads["unchanged"], "base": "main"}
    github = {
        "event_name": "workflow_dispatch", "sha": scenario.base,
        "event": {"inputs": inputs, "sender": {"login": "ann"}, "repository": {"default_branch": "main"}},
    }  # fmt: skip
    with scenario.hub.serving() as variables:
        scenario.cpu_machine.environment |= variables
        assert scenario.cpu_machine.job("gpu", "admit", github).outputs == inputs
        inputs["sha"] = HOSTILE
        assert scenario.cpu_machine.job("gpu", "admit", github).outcome == "failure"
    nothing_was_injected(scenario)


def test_the_gate_without_a_gpu_and_the_wheel(scenario):
    """A pull request's merge commit: a real slowdown of the CPU path is red, its comment says so; the wheel builds."""
    machine = scenario.cpu_machine
    machine.artifacts = {}
    github = {"event_name": "pull_request", "event": {}, "sha": scenario.merges["slower"]}
    only = "QuickForward.*'cpu', 'b1-h8-q128-k128-d64-float32'"
    variables = {"ROCATTN_GATE_ARGS": f"--quick --no-exact --rounds 5 --bench {only.replace(' ', '.')}"}
    done = machine.job("test", "gate", github, variables=variables)
    assert done.outcome == "failure", repr(done)
    found = verdict(machine, "verdict")
    assert found["verdict"] == "regression", repr(done)
    (entry,) = [entry for entry in found["entries"] if entry["status"] == "regression"]
    assert 2 < entry["decision"]["ratio"] < 4
    assert {"comment.md", "junit.xml", "gate.sarif"} <= set(names_in(machine.artifacts["gate"]))
    text = commented(scenario, "slower", done, "test")
    assert text.startswith("<!-- rocattn:verdict -->")
    assert "regression" in text
    built = machine.job("test", "wheel", github)
    assert built.outcome == "success", repr(built)
    assert {name.rpartition(".")[2] for name in names_in(machine.artifacts["wheel"])} == {"whl", "gz"}


def test_the_night_measures_and_publishes(scenario):
    """The asv history, the site on gh-pages, the results for the next night, the noise for the next pull request."""
    machine = scenario.cpu_machine
    machine.artifacts = {}
    github = {"event_name": "schedule", "event": {}, "sha": scenario.base}
    variables = {"ROCATTN_HISTORY": "1", "ROCATTN_NIGHTLY_ARGS": "--quick --skip verify bench audit report"}
    variables["ROCATTN_SITE_URL"] = "https://we.github.io/rocattn/"
    only = "--bench QuickForward.*'cpu',.'b1-h8-q128-k128-d64-float32'"
    variables["ROCATTN_SELFTEST_ARGS"] = f"--quick --rounds 4 --draws 3 {only}"
    done = machine.job("nightly", "measure", github, variables=variables)
    assert done.outcome == "success", repr(done)
    published = machine.job("nightly", "publish", github, needs={"measure": {}})
    assert published.outcome == "success", repr(published)
    listed = git(scenario.origin, "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert {"index.html", "docs/index.html", "docs/docs/api.html"} <= set(listed)
    assert 'href="docs/index.html"' in git(scenario.origin, "show", "gh-pages:index.html")
    assert any(name.startswith("results/") and scenario.base[:8] in name for name in listed), listed
    assert "https://we.github.io/rocattn/" in git(scenario.origin, "show", "gh-pages:feed.xml")
    (record,) = [name for name in listed if name.endswith("/noise.json.rocattn")]
    kept = git(scenario.origin, "show", f"gh-pages:{record}")
    github = {"event_name": "pull_request", "event": {}, "sha": scenario.merges["slower"]}
    done = machine.job("test", "gate", github, variables={"ROCATTN_GATE_ARGS": f"--quick --no-exact --rounds 5 {only}"})
    assert done.outcome == "failure", repr(done)
    found = verdict(machine, "verdict")
    assert found["noise"]["path"].endswith(f".asv/{record}")
    assert [(entry["noise"]["sessions"], entry["noise"]["launches"]) for entry in found["entries"]] == [(1, 8)]
    known = "known for 1 of 1 benchmarks, 1 session each (noise.json.rocattn)"
    assert line(done.summary, "earlier sessions") == f"- noise of earlier sessions: {known}"
    assert (machine.work / ".asv" / record).read_text().strip() == kept


def test_a_tag_is_built_tried_and_published(scenario, monkeypatch):
    """Wheel and sdist, both in empty environments (pip without an index), and both sent off; no other tag is."""
    machine = scenario.cpu_machine
    machine.artifacts = {}
    version = rocattn.__version__
    github = {"event_name": "push", "event": {"repository": {"fork": False}}, "sha": scenario.base}
    wrong = machine.job("release", "build", {**github, "ref_name": "v99.0.0"})
    assert (wrong.outcome, "99.0.0" in wrong.step("Compare").log) == ("failure", True), repr(wrong)
    built = machine.job("release", "build", {**github, "ref_name": f"v{version}"})
    assert built.outcome == "success", repr(built)
    alone = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PYTHONPATH": sysconfig.get_path("purelib")}
    alone["PIP_NO_BUILD_ISOLATION"] = "0"  # which pip reads as: no isolation
    for name, value in alone.items():
        monkeypatch.setitem(machine.environment, name, value)
    tried = machine.job("release", "try", github, matrix={"python": "3.13"})
    assert tried.outcome == "success", repr(tried)
    assert tried.step("Install").log.count(f"rocattn {version}\n") == 2
    assert machine.job("release", "publish", {**github, "event": {"repository": {"fork": True}}}).outcome == "skipped"
    assert machine.job("release", "publish", github).outcome == "success"
    assert machine.published == [f"rocattn-{version}-py3-none-any.whl", f"rocattn-{version}.tar.gz"]
