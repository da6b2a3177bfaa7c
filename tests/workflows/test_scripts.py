"""The workflows' scripts, each for real: processes that hold the GPU, its level, the base to gate against, the site."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .fakes import install_smi
from .rules import ROOT, load_script

SCRIPTS = ROOT / ".github" / "scripts"


def run(name, *words, cwd=None, **environment):
    """Run a script; return the finished process."""
    command = [*(["bash"] if name.endswith(".sh") else [sys.executable, "-I"]), SCRIPTS / name, *words]
    return subprocess.run(
        command, cwd=cwd, env={"PATH": os.environ["PATH"]} | environment, capture_output=True, text=True, check=False
    )


HOLDER = (
    "import signal, sys; held = open(sys.argv[1])\n"
    "if 'stubborn' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True); signal.pause()"
)


@pytest.fixture
def device(tmp_path):
    """A file in the place of /dev/kfd, and a function that starts a process which holds it."""
    path = tmp_path / "kfd"
    path.touch()
    started = []

    def hold(*words):
        command = [sys.executable, "-c", HOLDER, str(path), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield path, hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_holds_the_gpu_is_ended_and_nothing_else(device):
    """One that ends when asked and one that does not; a process that never opened the device is not touched."""
    path, hold = device
    left = [hold(), hold("stubborn")]
    other = hold_nothing = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    module = load_script("clean_gpu")
    proc = Path("/proc")
    try:
        found = module.holders(proc, (str(path),))
        assert found == sorted(process.pid for process in left)
        assert module.end(found, proc, grace_s=0.5) == []
        assert [process.wait() for process in left] == [-signal.SIGTERM, -signal.SIGKILL]
        assert other.poll() is None
    finally:
        hold_nothing.kill()
        hold_nothing.wait()


def test_the_job_itself_is_never_ended(device, monkeypatch, capsys):
    """A shell of this very job that has the device open is the job's own, down to the script."""
    path, _ = device
    monkeypatch.setenv("ROCATTN_GPU_DEVICES", str(path))
    module = load_script("clean_gpu")
    with path.open():
        assert os.getpid() in module.holders(Path("/proc"), (str(path),))
        assert module.main(sysfs=path.parent / "none") == 0
    assert capsys.readouterr().out == "clean_gpu: the GPU is free (0 ended)\n"


def made_proc(root, processes):
    """Write a /proc: number -> (state, parent, open file)."""
    for pid, (state, parent, file) in processes.items():
        (root / str(pid) / "fd").mkdir(parents=True)
        (root / str(pid) / "status").write_text(f"Name:\tx\nState:\t{state}\nPPid:\t{parent}\n")
        (root / str(pid) / "cmdline").write_bytes(b"python\0train.py\0::error::no\n\0")
        (root / str(pid) / "fd" / "3").symlink_to(file)
    return root


def test_one_that_waits_in_the_driver_makes_the_job_fail(tmp_path, monkeypatch, capsys):
    """SIGKILL does not end a process in state D: said with its state and what to do, and the status is 1."""
    proc = made_proc(tmp_path / "proc", {4999999: ("D (disk sleep)", 1, "/dev/kfd"), 4999998: ("Z", 1, "/dev/kfd")})
    module = load_script("clean_gpu")
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    monkeypatch.setattr(module.os, "kill", lambda *_: None)
    assert module.main(proc, tmp_path / "none") == 1
    captured = capsys.readouterr()
    assert "4999999 [D (disk sleep)]" in captured.err
    assert "restart the machine" in captured.err
    # What a process calls itself must not become a workflow command.
    assert not any(line.startswith("::") for line in (captured.out + captured.err).splitlines())


def test_another_user_s_process_makes_the_job_fail(tmp_path, monkeypatch, capsys):
    """Its files cannot be looked at, but the driver lists it."""
    proc = made_proc(tmp_path / "proc", {4999997: ("S (sleeping)", 1, "/dev/null")})
    (tmp_path / "kfd" / "4999997").mkdir(parents=True)
    assert load_script("clean_gpu").main(proc, tmp_path / "kfd") == 1
    assert "not ours to end" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi"])
def test_the_level_is_set_and_put_back(tmp_path, tool):
    """Through whichever tool there is; what was there comes back, whatever it was."""
    smi = install_smi(tmp_path, tool, level="high")
    done = run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: high -> stable_std\n"), done
    assert smi.level == "stable_std"
    done = run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: high again\n"), done
    assert smi.level == "high"
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).stdout == "gpu_level: nothing was set\n"


def test_a_level_that_is_there_already_is_the_owner_s(tmp_path):
    """Nothing is set, and nothing put back afterwards."""
    smi = install_smi(tmp_path, "amd-smi", level="stable_std")
    done = run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, done.stdout) == (0, "gpu_level: stable_std already\n")
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).stdout == "gpu_level: nothing was set\n"
    assert not any(call[0] == "set" for call in smi.calls)


def test_a_refused_level_is_said_and_the_job_goes_on(tmp_path):
    """MI300 and virtual machines refuse: a warning with the tool's own words, harmless as a workflow command."""
    smi = install_smi(tmp_path, "amd-smi", level="auto", refuses="::error::not supported\x1b[31m on this GPU")
    done = run("gpu_level.py", "set", "stable_peak", "state", cwd=tmp_path, PATH=smi.path)
    assert done.returncode == 0
    assert done.stdout == (
        "::warning::performance level is auto, not stable_peak: ?error?not supported?[31m on this GPU\n"
    )
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).returncode == 0


def test_a_level_that_does_not_come_back_is_red(tmp_path):
    """The next job would be measured at another clock."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path)
    smi.change(refuses="busy")
    done = run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path)
    assert done.returncode == 1
    assert done.stdout == "::error::performance level is stable_std and must be auto: busy\n"
    smi.change(refuses="")
    assert run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path).returncode == 0


def test_gpus_at_different_levels_go_back_to_the_driver_s_choice(tmp_path):
    """One call sets all of them; which had which cannot be put back in one."""
    smi = install_smi(tmp_path, "amd-smi", level="auto high")
    assert "mixed -> stable_std" in run("gpu_level.py", "set", "stable_std", "s", cwd=tmp_path, PATH=smi.path).stdout
    run("gpu_level.py", "restore", "s", cwd=tmp_path, PATH=smi.path)
    assert smi.level == "auto"


def test_one_gpu_of_several_is_named(tmp_path):
    """A machine with a runner for each GPU: the others' levels are theirs."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU="0000:c1:00.0")
    assert all(call[-2:] == ["-g", "0000:c1:00.0"] for call in smi.calls)


def test_the_rights_that_the_document_gives_are_for_these_calls_alone(tmp_path):
    """sudo compares the words, joined, with the expression between ^ and $; amd-smi writes files as root by --file."""
    (rule,) = re.findall(r"NOPASSWD: /opt/rocm/bin/amd-smi \^(.*)\$'", (ROOT / "docs" / "runner.md").read_text())
    allowed = re.compile(rule.replace("[:alnum:]", "A-Za-z0-9"))
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    for gpu in ("", "1", "0000:c1:00.0", "4eff74a0-0000-1000-802d-0cf9d8b6d5f4"):
        run("gpu_level.py", "set", "stable_std", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU=gpu)
        run("gpu_level.py", "restore", "state", cwd=tmp_path, PATH=smi.path, ROCATTN_SMI_GPU=gpu)
    calls = [" ".join(call) for call in smi.calls if call[0] == "set"]
    assert len(calls) == 8
    for call in calls:
        assert allowed.fullmatch(call), call
        assert not allowed.fullmatch(f"{call} --file /etc/cron.d/x")


def test_without_a_tool_or_an_answer_nothing_is_set(tmp_path):
    """The clocks are recorded beside the samples anyway."""
    done = run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH="/nowhere")
    assert (done.returncode, "neither amd-smi nor rocm-smi is installed" in done.stdout) == (0, True)
    smi = install_smi(tmp_path, "amd-smi", level="")
    done = run("gpu_level.py", "set", "high", "state", cwd=tmp_path, PATH=smi.path)
    assert (done.returncode, "does not tell the level" in done.stdout) == (0, True)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("words", [(), ("set", "warp", "s"), ("set", "high"), ("restore",), ("set", "$(touch x)", "s")])
def test_a_wrong_call_is_a_usage_error(tmp_path, words):
    """One line, status 4."""
    done = run("gpu_level.py", *words, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A clone on a branch that left main two commits ago, main having gone on."""
    for key, value in {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}.items():
        monkeypatch.setenv(key, value)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@b.c")

    class Clone:
        origin, path = tmp_path / "origin", tmp_path / "clone"

        def git(self, *words, folder=None):
            done = subprocess.run(
                ["git", "-C", folder or self.path, *words], capture_output=True, text=True, check=True
            )
            return done.stdout.strip()

        def commit(self, text):
            (self.path / "file").write_text(text)
            self.git("add", "file")
            self.git("commit", "-qm", text)
            return self.git("rev-parse", "HEAD")

        def script(self, name, *words, **environment):
            kept = {key: value for key, value in os.environ.items() if key.startswith(("GIT_", "HOME"))}
            output = str(tmp_path / "output")
            return run(name, *words, cwd=self.path, GITHUB_OUTPUT=output, **kept, **environment)

        def output(self):
            return (tmp_path / "output").read_text()

    made = Clone()
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", made.origin], check=True)
    subprocess.run(["git", "clone", "-q", made.origin, made.path], check=True, capture_output=True)
    made.git("checkout", "-qb", "main")
    made.first = made.commit("one")
    made.shared = made.commit("two")
    made.git("checkout", "-qb", "topic")
    made.commit("three")
    made.topic = made.commit("four")
    made.git("checkout", "-q", "main")
    made.main = made.commit("five")
    made.git("push", "-q", "origin", "main", "topic")
    made.git("checkout", "-q", "--detach", made.topic)
    made.git("branch", "-D", "main", "topic")
    return made


def test_the_base_is_the_newest_common_commit(repository):
    """Also by branch name, as workflow_dispatch gives it, which a detached checkout knows only as origin/main."""
    for base in (repository.main, "main", "origin/main"):
        done = repository.script("merge_base.sh", BASE=base)
        assert done.returncode == 0, done.stderr
    assert repository.output() == f"base={repository.shared}\n" * 3


def test_a_commit_of_the_base_is_measured_against_its_parent(repository):
    """By hand, a commit of main can be asked for."""
    repository.git("checkout", "-q", repository.main)
    assert repository.script("merge_base.sh", BASE="main").returncode == 0
    assert repository.output() == f"base={repository.shared}\n"


def test_no_common_commit_is_said(repository):
    """The first commit, a base that does not exist, and one that a force-push took away."""
    repository.git("checkout", "-q", repository.first)
    done = repository.script("merge_base.sh", BASE="main")
    assert (done.returncode, done.stderr) == (
        4, "merge_base.sh: HEAD is the first commit: there is nothing to compare it with\n")  # fmt: skip
    for base in ("$(touch x)", "5" * 40):
        done = repository.script("merge_base.sh", BASE=base)
        assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
        assert f"there is no branch or commit {base} here" in done.stderr
    assert not (repository.path / "x").exists()
    repository.git("checkout", "-q", "--orphan", "other")
    repository.commit("six")
    done = repository.script("merge_base.sh", BASE="main")
    assert (done.returncode, "have no common commit here" in done.stderr) == (4, True)


def test_the_site_is_published_without_history_and_keeps_the_results(repository):
    """A second night finds the first one's results; the branch has one commit; the checkout is as it was."""
    site, store = repository.path / "out" / "site", repository.path / ".asv" / "results"
    (repository.path / ".git" / "info" / "exclude").write_text("out\n.asv\n")
    assert repository.script("pages.sh", "fetch").stdout == "pages.sh: there is no gh-pages branch yet\n"
    for night in ("first", "second"):
        (site / "asv").mkdir(parents=True, exist_ok=True)
        (site / "index.html").write_text(night)
        store.mkdir(parents=True, exist_ok=True)
        (store / f"{night}.json").write_text("{}")
        done = repository.script("pages.sh", "publish", "out/site", GITHUB_TOKEN="t0ken")  # noqa: S106 - made up
        assert done.returncode == 0, done.stderr
        assert "t0ken" not in done.stdout + done.stderr
        subprocess.run(["rm", "-r", repository.path / ".asv"], check=True)
        assert repository.script("pages.sh", "fetch").returncode == 0
    assert sorted(path.name for path in store.iterdir()) == ["first.json", "second.json"]
    listed = repository.git("ls-tree", "-r", "--name-only", "gh-pages", folder=repository.origin).splitlines()
    assert listed == [".nojekyll", "index.html", "results/first.json", "results/second.json"]
    assert repository.git("show", "gh-pages:index.html", folder=repository.origin) == "second"
    assert repository.git("rev-list", "--count", "gh-pages", folder=repository.origin) == "1"
    assert repository.git("status", "--porcelain") == ""


def test_results_that_cannot_be_fetched_are_not_taken_for_none(repository, tmp_path):
    """The next publish would put one night's results in the place of all earlier ones."""
    store = repository.path / ".asv" / "results"
    repository.git("push", "-q", "origin", f"{repository.first}:refs/heads/gh-pages")
    done = repository.script("pages.sh", "fetch")
    assert (done.returncode, done.stdout) == (0, "pages.sh: gh-pages keeps no results yet\n")
    for remote in (tmp_path / "nowhere", "https://127.0.0.1:1/x.git"):
        done = repository.script("pages.sh", "fetch", PAGES_REMOTE=str(remote))
        assert (done.returncode, done.stdout) == (3, "")
        assert f"cannot be fetched from {remote}" in done.stderr
    assert not store.exists()


def test_an_empty_site_is_not_published(repository):
    """The last good one stays."""
    (repository.path / "out").mkdir()
    done = repository.script("pages.sh", "publish", "out")
    assert (done.returncode, done.stderr) == (3, "pages.sh: out has no index.html: nothing is published\n")
    assert repository.git("branch", "--list", "gh-pages", folder=repository.origin) == ""
    assert repository.script("pages.sh").returncode == 4
    assert repository.script("pages.sh", "publish").returncode == 4


def test_the_smi_stand_in_writes_what_the_tools_write(tmp_path):
    """The shapes of amd-smi's JSON (ROCm 6.2 and later) and rocm-smi's."""
    smi = install_smi(tmp_path, "amd-smi", level="auto")
    command = [tmp_path / "bin" / "amd-smi", "metric", "--perf-level", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": smi.path}).stdout
    assert json.loads(told) == [{"gpu": 0, "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO"}]


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
def test_the_machine_s_own_hook_lets_only_labels_of_its_repository_through(tmp_path, change, why):
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
def test_of_other_events_only_a_run_by_hand_comes_to_the_machine(tmp_path, name, status):
    """Each needs write access, or does not come here."""
    (tmp_path / "event.json").write_text("{}")
    told = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": name}
    done = run("job_started.py", ROCATTN_RUNNER_FOR="we/rocattn", GITHUB_REPOSITORY="we/rocattn", **told)
    assert done.returncode == status
    for bad in ("{", "[]", '{"pull_request": "x"}', "[" * 100_000):
        (tmp_path / "event.json").write_text(bad)
        done = run("job_started.py", ROCATTN_RUNNER_FOR="we/rocattn", GITHUB_REPOSITORY="we/rocattn", **told)
        assert (done.returncode, "the event cannot be read" in done.stderr) == (1, True), bad


@pytest.mark.parametrize(("event", "let_through"), [("workflow_dispatch", True), ("push", False)])
def test_a_refused_job_does_not_go_on_with_its_always_steps(tmp_path, event, let_through):
    """The runner goes on after a hook that fails, with every step whose condition is always(): it has to be ended."""
    (tmp_path / "event.json").write_text("{}")
    runner = tmp_path / "Runner.Worker"
    runner.symlink_to(shutil.which("bash"))
    told = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": event, "PATH": os.environ["PATH"]}
    hook = shlex.join([sys.executable, "-I", str(SCRIPTS / "job_started.py")])
    job = f"sh -c {shlex.quote(f'{hook}; exit $?')}; touch {tmp_path / 'always'}"
    names = {"ROCATTN_RUNNER_FOR": "we/rocattn", "GITHUB_REPOSITORY": "we/rocattn"}
    done = subprocess.run([runner, "-c", job], env=told | names, capture_output=True, text=True, check=False)
    assert (tmp_path / "always").exists() == let_through
    assert done.returncode == (0 if let_through else -signal.SIGKILL)
    assert ("refused" in done.stderr) != let_through


def test_a_run_that_owes_no_verdict_renders_none(tmp_path):
    """Nobody's machine took a job: the folder is empty, and stays so."""
    done = run("render_verdicts.sh", str(tmp_path), cwd=ROOT)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
