"""``rocattn ci``: which steps it plans, how it goes on after a failure, and which status it ends with."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from inline_snapshot import snapshot

from rocattn_profiling import cli
from rocattn_profiling.base.reasons import Coverage
from rocattn_profiling.ci import card
from rocattn_profiling.ci import command as ci
from rocattn_profiling.gate.model import Cause, Entry
from rocattn_profiling.gate.verdict import write
from rocattn_profiling.profile.collect import find

from ..made_reports import verdict  # noqa: F401 - the fixture
from ..programs import hearing
from ..screens import screen


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with one commit as the working directory."""
    for key, value in {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c"}.items():
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
    monkeypatch.setattr("rocattn_profiling.ci.archive._doctor", lambda _arguments: {"checks": []})

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
    assert [command[0] for command in ran] == ["doctor", "verify", "bench", "kernels", "gate", "report", "site"]
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == 0
    assert [step["name"] for step in result["steps"]] == list(ci.STEPS)
    assert json.loads((repository.parent / "o/ci.json").read_text()) == result


def test_the_address_of_the_site_goes_to_its_feed(repository, fake_commands):
    """--site-url reaches ``rocattn site``; without it the feed is left without absolute links."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--site-url", "https://a.b/c/", "--out", str(repository.parent / "o")]) == 0
    assert ran[-1][3:5] == ["--url", "https://a.b/c/"]


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
    assert len(ran) == len(ci.STEPS) - 1  # without a verdict there is nothing to profile


def test_the_first_commit_has_nothing_to_gate_and_says_so(repository, fake_commands, capsys):
    """A root commit skips the gate loudly; the rest runs."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--out", str(repository.parent / "o")]) == 0
    assert "gate" not in [command[0] for command in ran]
    assert re.findall(r"\] (.*: SKIPPED: .*)", capsys.readouterr().err) == snapshot(
        ["gate: SKIPPED: the first commit has no parent to compare with", "profile: SKIPPED: the gate was not run"]
    )


def test_a_dirty_tree_is_gated_as_it_is(repository):
    """Uncommitted changes are what the user wants to know about."""
    (repository / "file").write_text("three")
    assert ci.gate_arguments(None) == (["--head", "WORKTREE"], None)


def test_a_stray_file_leaves_the_commit_to_be_gated(repository):
    """With it the tree would be compared with its own commit: nothing of the commit would be gated."""
    commit("two")
    (repository / "log").write_text("")
    assert ci.gate_arguments(None) == ([], None)
    for name in ("package/old.py", "package/new.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("")
        if name == "package/old.py":
            git("add", name)
            git("commit", "-q", "-m", "three")
    assert ci.gate_arguments(None) == (["--head", "WORKTREE"], None)


def test_a_shallow_clone_does_not_skip_the_gate(repository, tmp_path_factory, monkeypatch):
    """The commit has a parent that was not fetched: the gate runs and says so, instead of being skipped in silence."""
    commit("two")
    shallow = tmp_path_factory.mktemp("shallow")
    git("clone", "-q", "--depth", "1", f"file://{repository}", str(shallow / "clone"))
    monkeypatch.chdir(shallow / "clone")
    assert ci.gate_arguments(None) == ([], None)


def test_without_a_compiler_the_audit_is_skipped(repository, fake_commands, monkeypatch, capsys):
    """Machine code needs a compiler; without one the step says so, and the rest runs."""
    from rocattn.errors import ToolchainError

    def none():
        raise ToolchainError("no compiler for HIP kernels: none here")

    monkeypatch.setattr("rocattn.toolchain.choose_compiler", none)
    commit("two")
    ran, _ = fake_commands
    assert cli.main(["ci", "--out", str(repository.parent / "o")]) == 0
    assert "kernels" not in [command[0] for command in ran]
    assert re.findall(r"\] (.*: SKIPPED: .*)", capsys.readouterr().err) == snapshot(
        ["audit: SKIPPED: no compiler for HIP kernels: none here", "profile: SKIPPED: the gate left no verdict"]
    )


REGRESSED = [
    Entry(
        label="bench_x.Quick.time_it('cpu')", name="bench_x.Quick.time_it", params={"b": "'cpu'"}, status="regression"
    ),
    *(
        Entry(label=f"bench_x.time_it('gpu', {n})", name="bench_x.time_it", params={"b": "'gpu'"}, status="regression")
        for n in range(5)
    ),
    Entry(label="bench_gpu.time_it", name="bench_gpu.time_it", status="pass"),
    Entry(label="flash", name="flash", params={"b": "'gpu'"}, metric="audit", status="regression"),
]


@pytest.fixture
def gated(fake_commands, monkeypatch):
    """A gate that leaves a verdict with these entries, and a profiler; gives what was run."""
    ran, statuses = fake_commands

    class Verdict:
        entries, suite, counts, coverage = REGRESSED, "benchmarks", {}, Coverage(compared=1)

    def command(arguments):
        ran.append(arguments)
        if arguments[0] == "gate":
            if statuses.get("gate") == 4:
                return 4
            path = Path(arguments[-1]) / "verdict.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name("new").touch()
            path.with_name("new").replace(path)
            return 1
        return statuses.get(arguments[0], 0)

    monkeypatch.setattr(ci, "_run_command", command)
    monkeypatch.setattr("rocattn_profiling.gate.verdict.read", lambda _path: Verdict)
    monkeypatch.setattr(find, "find_profilers", lambda: [find.Tool("rocprofv3", "/rocm/bin/rocprofv3")])
    return ran, statuses


def test_regressed_gpu_benchmarks_are_profiled_worst_first(repository, gated, capsys):
    """Three of them, no CPU benchmark, nothing that was never timed; a gap in a profile hides no regression."""
    commit("two")
    ran, statuses = gated
    statuses["profile"] = 3
    assert cli.main(["ci", "--out", "o", "--json", "--gpu", "gfx942", "--skip", "known"]) == 1
    profiles = [command for command in ran if command[0] == "profile"]
    assert [command[-2:] for command in profiles] == [["benchmarks", f"bench_x.time_it('gpu', {n})"] for n in range(3)]
    options = [command[1 : command.index("--")] for command in profiles]
    assert options == [["--out", f"o/profile/{n}", "--arch", "gfx942"] for n in (1, 2, 3)]
    assert ["report", "o/profile/2", "--out", "o/profile/2/report"] in ran
    step = next(step for step in json.loads(capsys.readouterr().out)["steps"] if step["name"] == "profile")
    assert step["status"] == 3


def test_an_older_verdict_stays_and_is_not_used(repository, gated, capsys):
    """Of a gate that was not run, or that ended without one: it would read as this job's."""
    commit("two")
    ran, statuses = gated
    cli.main(["ci", "--out", "o"])
    assert [command[0] for command in ran].count("profile") == 3
    ran.clear()
    cli.main(["ci", "--out", "o", "--skip", "gate"])
    statuses["gate"] = 4
    assert cli.main(["ci", "--out", "o"]) == 4
    assert Path("o/gate/verdict.json").exists()
    assert "profile" not in [command[0] for command in ran]
    assert re.findall(r"\] (.*: SKIPPED: .*)", capsys.readouterr().err) == snapshot(
        [
            "gate: SKIPPED: asked for by --skip",
            "profile: SKIPPED: the gate was not run",
            "profile: SKIPPED: the gate left no verdict",
        ]
    )
    site = ran[-1]
    assert (site[0], site[site.index("--gate") + 1]) == ("site", os.devnull)


def test_a_job_without_a_bench_reports_no_older_records(repository, fake_commands, capsys):
    """There is no report then, and an older one is not named as this job's; the gate's page is."""
    commit("two")
    ran, _ = fake_commands
    for name in ("report", "site"):
        (repository / "o" / name).mkdir(parents=True)
        (repository / "o" / name / "index.html").touch()
    cli.main(["ci", "--out", "o", "--base", "HEAD~1", "--skip", "bench"])
    assert "report" not in [command[0] for command in ran]
    capsys.readouterr()
    cli.main(["ci", "--out", "o", "--json", "--skip", "bench", "gate", "site"])
    said = capsys.readouterr()
    assert re.findall(r"\] (.*: SKIPPED: .*)", said.err) == snapshot(
        [
            "bench: SKIPPED: asked for by --skip",
            "gate: SKIPPED: asked for by --skip",
            "profile: SKIPPED: the gate was not run",
            "report: SKIPPED: bench was not run",
            "site: SKIPPED: asked for by --skip",
        ]
    )
    assert json.loads(said.out).keys() == {"status", "undecided", "not_compared", "steps"}


COUNTED = [
    msgspec.structs.replace(entry, causes=[Cause(kind="counters", text="L2 hits 80 % -> 20 %")]) for entry in REGRESSED
]


def test_what_the_gate_has_counters_of_is_not_profiled_again(repository, gated, monkeypatch):
    """Only the benchmarks that the gate could not profile are run once more."""
    commit("two")
    ran, _ = gated
    monkeypatch.setattr(
        "rocattn_profiling.gate.verdict.read",
        lambda _path: SimpleNamespace(entries=[*COUNTED[:3], *REGRESSED[3:]], suite="benchmarks"),
    )
    cli.main(["ci", "--out", "o"])
    profiles = [command[-1] for command in ran if command[0] == "profile"]
    assert profiles == [f"bench_x.time_it('gpu', {n})" for n in (2, 3, 4)]


@pytest.mark.parametrize(
    ("entries", "tools", "why"),
    [
        (REGRESSED[:1], None, "no GPU benchmark became slower"),
        (COUNTED, None, "the gate has profiled what became slower: o/gate/explain"),
        (REGRESSED, [], "no profiler is installed"),
        (REGRESSED, [find.Tool("rocprof", "/x", problem="broken")], "no profiler is installed"),
    ],
)
def test_without_a_regression_nothing_is_profiled(repository, gated, monkeypatch, capsys, entries, tools, why):
    """Skipped loudly."""
    commit("two")

    class Verdict:
        suite, counts, coverage = "benchmarks", {}, Coverage(compared=1)

    Verdict.entries = entries
    monkeypatch.setattr("rocattn_profiling.gate.verdict.read", lambda _path: Verdict)
    if tools is not None:
        monkeypatch.setattr(find, "find_profilers", lambda: tools)
    assert cli.main(["ci", "--out", "o"]) == 1
    assert f"profile: SKIPPED: {why}" in capsys.readouterr().err


def test_a_job_about_a_gpu_runs_nothing_without_one(repository, fake_commands, capsys):
    """--gpu: the first step fails, the rest is skipped with that reason, and the status is an error, never green."""
    commit("two")
    ran, statuses = fake_commands
    statuses["doctor"] = 4
    assert cli.main(["ci", "--gpu", "gfx942", "--out", "o"]) == 4
    assert ran == [["doctor", "--gpu", "gfx942"]]
    assert capsys.readouterr().err.count("SKIPPED: there is no GPU to measure on") == len(ci.STEPS) - 1


def test_without_gpu_wanted_a_failing_doctor_stops_nothing(repository, fake_commands):
    """A machine without a GPU is the usual case."""
    commit("two")
    ran, statuses = fake_commands
    statuses["doctor"] = 4
    assert cli.main(["ci", "--out", "o"]) == 4
    assert len(ran) == len(ci.STEPS) - 1


def test_the_gate_gets_its_benchmarks(repository, fake_commands):
    """--bench goes to the gate, each as a word of its own."""
    commit("two")
    ran, _ = fake_commands
    assert cli.main(["ci", "--bench", "a b", "--bench", "c", "--out", "o"]) == 0
    gate = next(command for command in ran if command[0] == "gate")
    assert gate[2:6] == ["--bench", "a b", "--bench", "c"]


def test_outside_a_checkout_what_needs_commits_is_skipped(tmp_path, monkeypatch, fake_commands, capsys):
    """An unpacked archive can still verify and measure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    ran, _ = fake_commands
    assert cli.main(["ci"]) == 0
    assert [command[0] for command in ran] == ["doctor", "verify", "bench", "kernels", "report"]
    assert capsys.readouterr().err.count("SKIPPED: not a git checkout") == 2


def test_a_pass_claims_only_what_ran_and_says_what_did_not(tmp_path, monkeypatch, fake_commands, capsys):
    """No gate, no word about slower, and no next command that needs a checkout; what --skip left out is said, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.main(["ci", "--json", "--skip", "bench"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert [(each["what"], each["code"], each["needed"]) for each in result["not_compared"]] == [
        ("bench", "asked", False), ("gate", "no_commit", False), ("site", "no_commit", False),
    ]  # fmt: skip
    cli.main(["ci"])
    assert re.sub(r"\d+(\.\d+)? s\b", "N s", screen(capsys.readouterr().out)) == snapshot("""\
PASS for what ran: outputs are right, no kernel got worse; gate and site skipped (N s, exit status 0)
  doctor   ok       N s
  verify   ok       N s
  bench    ok       N s
  audit    ok       N s
  gate     skipped       not a git checkout with a commit
  profile  skipped       the gate was not run
  report   ok       N s
  site     skipped       not a git checkout with a commit
next: run it in a git clone: the gate compares commits\
""")


@pytest.mark.parametrize("asked", [["--bench", "sort"], ["--history", "3"]])
def test_what_was_asked_for_and_cannot_run_is_status_3(tmp_path, monkeypatch, fake_commands, asked):
    """Outside a checkout: benchmarks to gate, commits to measure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.main(["ci", *asked]) == 3
    step = {"--bench": "gate", "--history": "site"}[asked[0]]
    assert cli.main(["ci", *asked, "--skip", step]) == 0


def test_a_job_of_steps_that_measure_nothing_is_not_green(repository, fake_commands):
    """The doctor looks at the machine, and the report at what is there."""
    assert cli.main(["ci", "--skip", *sorted(card.MEASURING), "--out", "o"]) == 3


def test_what_steps_left_out_stands_in_the_verdict(repository, fake_commands, monkeypatch, capsys, verdict):  # noqa: F811
    """By their own files: the gate's undecided and skipped benchmarks, a backend that verify had not."""
    commit("two")
    entries = [Entry(label=f"b{n}", name="b", status=status, reason="no GPU" if status == "skipped" else "")
               for n, status in enumerate(["pass"] * 4 + ["inconclusive"] * 3 + ["skipped"] * 2)]  # fmt: skip

    def command(arguments):
        out = Path("o") / arguments[0]
        out.mkdir(parents=True, exist_ok=True)
        if arguments[0] == "gate":
            write(msgspec.structs.replace(verdict, verdict="pass", entries=entries), out / "verdict.json")
        if arguments[0] == "verify":
            lacking = {"what": "gpu", "code": "unavailable", "text": "no GPU"}
            (out / "verify.json").write_text(json.dumps({"ran": 3, "failed": 0, "not_compared": [lacking]}))
        return 0

    monkeypatch.setattr(ci, "_run_command", command)
    assert cli.main(["ci", "--out", "o", "--skip", "audit"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(
        "PASS for what ran: outputs are right, nothing that was decided got slower; 3 undecided, audit skipped, not "
        "looked at: gpu (verify), 2 benchmarks skipped (gate) ("
    )
    result = json.loads(Path("o/ci.json").read_text())
    assert result["undecided"] == 3
    assert {(each["code"], each["text"]) for each in result["not_compared"]} == {
        ("unavailable", "no GPU"), ("asked", "asked for by --skip"), ("skipped", "no GPU"),
    }  # fmt: skip


def test_a_checkout_that_git_refuses_is_not_skipped(repository, monkeypatch, fake_commands):
    """Another user's, as in containers: the gate is asked, and its error is the job's; skipped would be green."""
    commit("two")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    ran, statuses = fake_commands
    statuses["gate"] = 4
    assert cli.main(["ci", "--out", "o"]) == 4
    assert ["gate", "run", "--out", "o/gate"] in ran


def test_without_git_that_is_the_reason(repository, monkeypatch, fake_commands, capsys):
    """Not that this is no checkout."""
    monkeypatch.setenv("PATH", str(repository))
    assert cli.main(["ci", "--out", "o"]) == 0
    assert capsys.readouterr().err.count("SKIPPED: git is not installed") == 2


def test_a_base_that_was_asked_for_is_not_skipped(tmp_path, monkeypatch, fake_commands):
    """Where git knows nothing, the gate is asked all the same, and its error is the job's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    ran, statuses = fake_commands
    statuses["gate"] = 4
    assert cli.main(["ci", "--base", "main", "--out", "o"]) == 4
    assert ["gate", "run", "--base", "main", "--out", "o/gate"] in ran


@pytest.mark.parametrize(
    ("how", "status", "why"),
    [
        (signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "the terminal was closed"),
    ],
)  # fmt: skip
def test_a_job_that_is_ended_ends_its_step(tmp_path, how, status, why):
    """Nothing goes on measuring; and an earlier job's status does not stand for this one."""
    ready, tool, summary = tmp_path / "ready", tmp_path / "bin" / "chromium", tmp_path / "o" / "ci.json"
    os.mkfifo(ready)
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho $PPID $$ > "{ready}"\nexec sleep 600\n')  # a program that doctor starts
    tool.chmod(0o755)
    summary.parent.mkdir()
    summary.write_text('{"status": 0}')
    command = [
        *hearing(how),
        sys.executable,
        "-m",
        "rocattn_profiling.cli",
        "ci",
        "--out",
        "o",
        "--skip",
        *ci.STEPS[1:],
    ]
    path = {"PATH": os.pathsep.join([str(tool.parent), os.environ["PATH"]])}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        with ready.open() as told:
            started = [psutil.Process(int(word)) for word in told.readline().split()]
        process.send_signal(how)
        process.wait()
        left = [one.cmdline() for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    finally:
        with contextlib.suppress(ProcessLookupError):  # what has no handler may leave its own
            os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[1]
    assert process.returncode == status, said
    assert left == []
    assert said.splitlines()[-1] == f"rocattn ci: {why}; nothing was finished yet"
    assert json.loads(summary.read_text())["status"] == 3


def test_an_unwritable_folder_ends_the_job_before_measuring(repository, fake_commands, capsys):
    """One line, and no step was run for nothing."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--out", "file/o"]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    assert not ran


def test_skipped_steps_are_named_and_nothing_run_is_not_green(repository, fake_commands):
    """--skip leaves steps out; a job that ran nothing has measured nothing."""
    ran, _ = fake_commands
    assert cli.main(["ci", "--skip", *ci.STEPS]) == 3
    assert not ran


def test_the_last_screen_has_verdict_evidence_and_next_command(repository, fake_commands, monkeypatch, capsys):
    """Twenty lines at 80 columns; what a step left in an earlier job is no evidence of this one."""
    commit("two")
    ran, statuses = fake_commands
    statuses["gate"] = 1
    old = Path("o/bench/records.jsonl")
    old.parent.mkdir(parents=True)
    old.write_text("")
    os.utime(old, (1, 1))

    def command(arguments):
        ran.append(arguments)
        if arguments[0] == "verify":
            Path("o/verify").mkdir()
            Path("o/verify/verify.json").write_text('{"ran": 317, "failed": 0}')
        return statuses.get(arguments[0], 0)

    monkeypatch.setattr(ci, "_run_command", command)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["ci", "--quick", "--out", "o"]) == 1
    card = capsys.readouterr().out
    lines = [line for line in card.splitlines() if line]
    assert lines[0].startswith("FAIL")
    assert len(card.splitlines()) <= 20
    assert max(map(len, lines[: 1 + len(ci.STEPS)])) <= 80  # a command or an address is never cut
    steps = {line.split()[0]: line.split()[1:] for line in lines[1 : 1 + len(ci.STEPS)]}
    assert list(steps) == list(ci.STEPS)
    assert "317" in steps["verify"]
    assert steps["bench"] == ["ok", "0", "s"]
    assert steps["gate"][0] == "FAILED"
    assert "rocattn gate run" in card.partition("next: ")[2]
    assert json.loads(Path("o/ci.json").read_text())["steps"][1]["cpu_seconds"] >= 0
