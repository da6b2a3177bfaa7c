"""Waivers, thresholds and outputs in a whole run of the gate, on a small project whose times are exact."""

import json

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import thresholds, waivers
from rocattn_profiling.gate.plugin import Plugin
from rocattn_profiling.revisions import environments

from .conftest import gate_run, statuses

# Counts loops instead of time; only the larger size can be made slower.
COUNTING = "TICKS = 0\ndef work(n):\n    global TICKS\n    TICKS += n if n < 200 else n * 1\n"
SLOW = "bench_work.Exact.time_work(301)"
FAST = "bench_work.Exact.time_work(100)"
WAIVER = f"""
[[waiver]]
benchmark = "{SLOW}"
metric = "time"
ceiling = 2.5
expires = 2999-01-01
issue = "#41"
reason = "known"
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def slower(project, offline):
    """Return a function that makes the larger size twice as slow in one commit, and gates that commit."""
    project.commit("count", **{"tinylib/__init__.py": COUNTING})

    def commit_and_gate(message="slower", **files):
        project.commit(message, **{"tinylib/__init__.py": COUNTING.replace("n * 1", "n * 2"), **files})
        return gate_run(project.root, "--quick", out="out/gate")

    return commit_and_gate


def test_a_waiver_of_the_same_change_is_shown_everywhere(slower, project, monkeypatch, tmp_path, capsys):
    """The gate is green, the regression is shown as waived in every output, and who added it can be seen."""
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    status, result = slower(**{waivers.FILE: WAIVER})
    assert (status, result.verdict) == (0, "pass")
    assert statuses(result) == {SLOW: "waived", FAST: "pass"}
    assert "1 waived" in result.sentence
    assert result.again.startswith("rocattn gate run --base ")
    assert result.again.endswith(" --quick")
    out = project.root / "out/gate"
    for text in (capsys.readouterr().out, (out / "comment.md").read_text(), (out / "junit.xml").read_text(),
                 (out / "gate.sarif").read_text(), summary.read_text()):  # fmt: skip
        assert "added by this change" in text
    assert json.loads((out / "gate.sarif").read_text())["runs"][0]["results"][0]["suppressions"]


def test_a_trailer_holds_for_its_commit_and_an_old_waiver_fails(slower, project):
    """The regression is accepted by the message; the file's waiver of what did not get worse is one line, and red."""
    trailer = f"slower\n\nRocattn-Accept: {SLOW} | time | 2.5 | for once"
    old = WAIVER.replace("2999", "2001").replace(SLOW, FAST)
    status, result = slower(trailer, **{waivers.FILE: old})
    assert (status, result.verdict) == (1, "problem")
    assert statuses(result) == {SLOW: "waived", FAST: "pass"}
    assert result.problems == [f"{waivers.FILE}:2: the waiver of {FAST} time expired on 2001-01-01"]
    commit = project.git("rev-parse", "--short", "HEAD").strip()
    assert result.entries[0].waiver == f"for once (up to x2.5, accepted in commit {commit})"


def test_a_trailer_for_no_benchmark_is_named(slower, project, capsys):
    """A typo in function, class or parameters, whichever benchmarks ran; one of what is measured is not told."""
    meant = {
        "bench_work.Exact.time_wrok(301)": SLOW, "bench_work.Exakt.time_work(100)": FAST,
        "bench_work.Exact.time_work": SLOW, "gone": "",
    }  # fmt: skip
    lines = [f"Rocattn-Accept: {name} | time | 2.5 | once" for name in (*meant, FAST)]
    status, result = slower("\n".join(["s\n", *lines]))
    commit = project.git("rev-parse", "--short", "HEAD").strip()
    notes = [
        f"Rocattn-Accept of commit {commit} names no benchmark here: {name}" + (f"; did you mean {did}?" if did else "")
        for name, did in meant.items()
    ]
    assert (status, sorted(note for note in result.notes if "Accept" in note)) == (1, sorted(notes))
    shown = "".join(capsys.readouterr().out.split())  # lines break after hyphens, too
    assert [note for note in notes if "".join(note.split()) not in shown] == []


def test_a_waiver_of_a_removed_benchmark_fails_a_quick_run(slower):
    """Its suite has no quick classes, so that all of it was measured; many projects run the gate in no other way."""
    gone = WAIVER.replace(SLOW, "bench_work.Gone.time_work")
    status, result = slower(**{waivers.FILE: WAIVER + gone})
    assert (status, result.verdict) == (1, "problem")
    (problem,) = result.problems
    assert problem.startswith(f"{waivers.FILE}:10: the waiver of bench_work.Gone.time_work time is not needed: ")
    assert problem.endswith("no benchmark in the suite has this name, these parameters and this metric; remove it")


def test_above_its_ceiling_a_regression_fails(slower, monkeypatch):
    """A waiver for ten percent does not cover a doubling; what exact metrics leave out is a note beside it."""
    note = "the machine code is not compared: why"
    monkeypatch.setattr(Plugin, "entries", lambda plugin: plugin.context.note(note) or [])
    status, result = slower(**{waivers.FILE: WAIVER.replace("2.5", "1.1")})
    assert status == 1
    assert result.entries[0].status == "regression"
    assert "x2.000 is above its waiver's ceiling of x1.1" in result.entries[0].reason
    assert "the machine code is not compared: why" in result.notes


def test_thresholds_of_the_repository_count(slower):
    """What is not gated is shown after the first look; a run in which nothing else was measured would not be green."""
    rule = f'[[threshold]]\nbenchmark = "{SLOW}"\ngate = false\n[[threshold]]\nbenchmark = "*"\nrounds = 5\n'
    status, result = slower(**{thresholds.FILE: rule})
    assert (status, result.verdict) == (0, "pass")
    shown = next(e for e in result.entries if e.label == SLOW)
    assert (shown.status, shown.decision.rounds_used) == ("ungated", 5)
    assert shown.decision.ratio == pytest.approx(2.0)
    assert f"this change edits {thresholds.FILE}: the thresholds in it are head's" in result.notes


@pytest.mark.parametrize("head", ["HEAD", "WORKTREE"])
@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (waivers.FILE, WAIVER.replace("ceiling", "celling"), "2: 'celling' is unknown"),
        (waivers.FILE, WAIVER.replace('"time"', '"tme"'), "2: metric 'tme' is unknown"),
        (thresholds.FILE, '[[threshold]]\nbenchmark = "*"\nmetric = "tme"\nrounds = 5\n', "1: metric 'tme' is unknown"),
    ],
)
def test_a_mistake_in_a_file_ends_the_run_before_it_builds(
    project, offline, monkeypatch, capsys, head, file, text, said
):
    """Usage, one line with file and line, of a commit or of the files as they are; nothing was built or measured."""
    if head == "HEAD":
        project.commit("settings", **{file: text})
    else:
        project.put(file, text)
    monkeypatch.chdir(project.root)
    monkeypatch.setattr(environments, "build", lambda *_, **__: pytest.fail("it was built"))
    status = main(["gate", "run", "--quick", "--base", "HEAD", "--head", head, "--out", "out/gate"])
    err = capsys.readouterr().err
    assert (status, (project.root / "out/gate/verdict.json").exists()) == (4, False)
    assert f"{file}:{said}" in err
    assert "building" not in err
    assert not list((project.root / "out/gate/work").iterdir())


def test_one_trailer_accepts_all_benchmarks_of_a_cause(project, offline, monkeypatch, capsys):
    """The line that is printed, up to its ceiling; not those of another line, and not more than it says."""
    doubled = COUNTING.replace("n if n < 200 else n * 1", "2 * n")
    single = {"tinylib/__init__.py": COUNTING.replace("n if n < 200 else n * 1", "n")}
    project.commit("count", **single, **{"benchmarks/bench_one.py": "def track_one():\n    return 1\n"})
    project.commit("slower", **{"tinylib/__init__.py": doubled})
    monkeypatch.chdir(project.root)
    assert main(["gate", "run", "--quick", "--out", "out/gate"]) == 1
    line = next(line.strip() for line in capsys.readouterr().out.splitlines() if "accept: " in line)
    line = line.removeprefix("accept: ").replace("REASON", "the change is worth it")
    assert line.startswith("Rocattn-Accept: tinylib/__init__.py:4 | cause | 2.")
    other = "\n".join([line.replace("| 2.", "| 1."), line.replace(":4 |", ":5 |")])  # neither accepts
    for text, status in ((line, 0), (other, 1)):
        project.git("commit", "--quiet", "--allow-empty", "--message", f"accept\n\n{text}")
        assert main(["gate", "run", "--base", "HEAD~2", "--quick", "--out", "out/gate"]) == status
        project.git("reset", "--quiet", "--hard", "HEAD~1")
