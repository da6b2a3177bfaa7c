"""The gate from two revisions to a verdict, on a small project whose times are exact."""

import errno
import json
import os
import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Suite
from rocattn_profiling.cli import main
from rocattn_profiling.gate.model import Entry
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.result import failed_by_change
from rocattn_profiling.gate.run import run_gate
from rocattn_profiling.gate.sides import choose_revisions, out_errors
from rocattn_profiling.revisions.git import RevisionError

from .conftest import case_of, gate_run, statuses

COUNTING = "TICKS = 0\ndef work(n):\n    global TICKS\n    TICKS += n\n"
DOUBLED = {"tinylib/__init__.py": COUNTING.replace("+= n", "+= 2 * n")}


def gate(project, *arguments, out="out/gate"):
    """Run the command in the project; return its exit status and the verdict."""
    return gate_run(project.root, *arguments, out=out)


pytestmark = pytest.mark.slow


def test_a_doubled_loop_fails_and_names_the_benchmarks(project, offline, capsys):
    """A planted slowdown exits 1; every benchmark on that path is named with its ratio, and the text leads with it."""
    project.commit("slower", **DOUBLED)
    status, result = gate(project, "--quick")
    assert (status, result.verdict, set(statuses(result).values())) == (1, "regression", {"regression"})
    assert [round(entry.decision.ratio, 3) for entry in result.entries] == [2.0] * 2
    assert all(len(entry.base_launches) == 5 for entry in result.entries)
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == "page: out/gate/index.html"
    assert (project.root / "out/gate/index.html").read_text().count("<title>head: ") == 10
    assert printed.out.startswith("REGRESSION: 2 of 2 benchmarks")
    assert "\nslower: bench_work.Exact.time_work\n" in printed.out  # then a line for each of its two parameters
    assert (project.root / "out/gate/verdict.txt").read_text() == printed.out


def test_the_same_code_passes_and_json_is_alone_on_stdout(project, offline, capsys):
    """A commit that changes no code exits 0 when strict; notes say what whoever reads it later did not see."""
    project.commit("empty")
    project.put("log", "")
    status, result = gate(project, "--quick", "--strict", "--json", "--bench", r"\(100\)")
    assert (status, set(statuses(result).values())) == (0, {"pass"})
    assert any("identical files" in note for note in result.notes)
    assert any("offline" in note for note in result.notes)
    assert "1 untracked file is not part of HEAD, so it was not built: log" in result.notes
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(msgspec.json.encode(result))
    assert (printed["patterns"], len(printed["entries"])) == ([r"\(100\)"], 1)


def test_a_speedup_passes_as_an_improvement(project, offline):
    """Head at half the time exits 0."""
    project.commit("slower", **DOUBLED)
    status, result = gate(project, "--quick", "--base", "HEAD", "--head", "HEAD~1", "--bench", "100")
    assert status == 0
    assert set(statuses(result).values()) == {"improvement"}


def test_a_real_clock_sees_a_doubled_loop(project, offline):
    """The planted slowdown on this machine's own clock is found too."""
    suite = "import tinylib\n\ndef time_work():\n    tinylib.work(20000)\n"
    project.commit("suite", **{"benchmarks/bench_work.py": suite})
    slower = (
        (project.root / "tinylib/__init__.py")
        .read_text()
        .replace("    for i in range(n):", "    for i in [*range(n)] * 2:")
    )
    project.commit("slower", **{"tinylib/__init__.py": slower})
    status, result = gate(project, "--quick", "--rounds", "20")
    assert status == 1, result.entries[0].decision
    assert statuses(result) == {"bench_work.time_work": "regression"}
    assert 1.5 < result.entries[0].decision.ratio < 3


def test_benchmarks_without_a_verdict_have_their_status(project, offline):
    """Each reason for having no verdict has its own name, and what head lost exits 3."""
    suite = """
import tinylib
def ticking(function):
    function.timer = lambda: tinylib.TICKS * 1e-6
    return function
@ticking
def time_same(): tinylib.work(50)
if hasattr(tinylib, "HAS"):
    def time_of_base(): pass
def time_gone(): pass
"""
    project.commit(
        "base", **{"benchmarks/bench_work.py": suite, "tinylib/__init__.py": COUNTING + "def old(): pass\nHAS = True\n"}
    )
    suite = suite.replace(
        "def time_gone(): pass\n",
        """
def time_needs_new(): tinylib.new()
def time_needs_old(): tinylib.old()
def time_never(): tinylib.nothing()
def track_loss(): return -5
def track_huge(): return 1e300
class Skips:
    def setup(self): raise NotImplementedError("not here")
    def time_it(self): pass
class Lost:
    def setup(self):
        if not hasattr(tinylib, "HAS"): raise NotImplementedError("HAS is gone")
    def time_it(self): pass
def track_speed(): return 3.0
track_speed.unit = "GB/s"
""",
    )
    project.commit("head", **{"benchmarks/bench_work.py": suite, "tinylib/__init__.py": COUNTING + "def new(): pass\n"})
    status, result = gate(project, "--quick")
    assert status == 3
    assert result.verdict == "not measured"
    assert statuses(result) == {
        "bench_work.time_same": "pass",
        "bench_work.time_gone": "removed",
        "bench_work.time_of_base": "missing",
        "bench_work.time_needs_new": "new",
        "bench_work.time_needs_old": "failed",
        "bench_work.time_never": "broken",
        "bench_work.track_loss": "broken",
        "bench_work.track_huge": "broken",
        "bench_work.Skips.time_it": "skipped",
        "bench_work.Lost.time_it": "missing",
        "bench_work.track_speed": "ungated",
    }
    of = {entry.label: entry for entry in result.entries}
    assert len(of) == len(result.entries)
    assert "returned -5: a negative value has no ratio" in of["bench_work.track_loss"].reason
    assert "returned 1e+300: so large a value has no ratio" in of["bench_work.track_huge"].reason
    assert "no attribute 'old'" in of["bench_work.time_needs_old"].reason
    assert "in time_needs_old" in of["bench_work.time_needs_old"].traceback
    assert of["bench_work.Skips.time_it"].reason == "not here"
    assert of["bench_work.time_needs_new"].reason.startswith("base: ")


def test_a_suite_that_head_cannot_import_exits_3(project, offline, capsys):
    """A benchmark file broken by the change is not a smaller suite."""
    project.commit("broken", **{"benchmarks/bench_more.py": "import tinylib\ntinylib.nothing\n"})
    project.commit("worse", **{"tinylib/__init__.py": "raise RuntimeError('broken library')\n"})
    status, result = gate(project, "--quick")
    assert status == 3
    assert statuses(result)["bench_work.Exact.time_work(100)"] == "failed"
    assert "broken library" in capsys.readouterr().out


def test_a_benchmark_file_that_the_change_breaks_exits_3(project, offline, capsys):
    """Both sides run head's files, so it fails on both: but base's own could be imported."""
    raising = "def time_no():\n    raise ValueError('never')\n\n\ndef time_it():\n    {}\n"
    project.commit("more", **{"benchmarks/bench_more.py": "def time_it():\n    pass\n", "benchmarks/bench_no.py": "(",
                              "benchmarks/bench_raise.py": raising.format("pass")})  # fmt: skip
    project.commit("typo", **{"benchmarks/bench_more.py": "def time_it(:\n    pass\n",
                              "benchmarks/bench_raise.py": raising.format("raise ValueError('now')")})  # fmt: skip
    status, result = gate(project, "--quick", "--rounds", "1")
    assert status == 3
    found = statuses(result)
    assert (found["bench_more"], found["bench_no"]) == ("failed", "broken")
    assert (found["bench_raise.time_it"], found["bench_raise.time_no"]) == ("failed", "broken")
    shown = " ".join(capsys.readouterr().out.split())
    assert "SyntaxError" in shown
    status, result = gate(project, "--quick", "--rounds", "1", "--bench", "Exact")
    assert (status, statuses(result)["bench_more"]) == (0, "broken")


@pytest.mark.parametrize(("head_text", "status"), [("def test_it(benchmark): 1 / 0", "failed"), ("", "broken")])
def test_a_test_fails_on_head_if_its_own_file_changed(tmp_path, head_text, status):
    """pytest gives no version of a test's own code; base has the test, and both sides ran head's."""
    name = "tests/test_bench.py::test_it"
    trees = {side: tmp_path / side for side in ("base", "head")}
    for side, text in (("base", ""), ("head", head_text)):
        (trees[side] / "tests").mkdir(parents=True)
        (trees[side] / "tests/test_bench.py").write_text(text)
    suite = Suite(benchmarks=[case_of(name, version="").benchmark], broken={})
    entry = Entry(label=name, name=name, status="broken", reason="ZeroDivisionError")
    (found,) = failed_by_change([entry], suite, suite, trees)
    assert (found.status, "its own code changed" in found.reason) == (status, status == "failed")
    assert failed_by_change([entry], None, suite, trees) == [entry]


def test_a_full_disk_is_one_line_that_names_the_folder():
    """Exit 4 by its kind: the environment's fault, and what to do."""
    with (
        pytest.raises(RocattnError, match="cannot write in out/gate: No space left on device; free it"),
        out_errors(Path("out/gate")),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--base", "no-such"), 4, "revision 'no-such' does not exist"),
        (("--head", "HEAD"), 4, "has no parent"),
        (
            ("--base", "HEAD", "--bench", "no_such_bench"),
            4,
            "--bench no_such_bench matches none of 1 benchmark: bench_work.Exact",
        ),
        (("--base", "HEAD", "--suite", "nowhere"), 4, "there is no nowhere"),
        (("--base", "HEAD", "--pytest", "tests/no"), 4, "--pytest tests/no: head has no tests/no"),
        (("--base", "HEAD", "--bench", "("), 4, "is not a valid regular expression"),
        (("--base", "HEAD", "--tolerance", "0"), 4, "--tolerance"),
        (("--base", "HEAD", "--rounds", "-1"), 4, "--rounds"),
        (("--base", "HEAD", "--rounds", "0"), 4, "--rounds 0: give 1 to 200"),
        (("--base-python", "/bin/ls", "--head-python", "/bin/ls"), 4, "does not answer like a Python interpreter"),
    ],
)
def test_bad_requests_are_one_line_with_their_status(project, offline, capsys, arguments, status, said):
    """What is mistyped exits 4; the last line on stderr says why, and no other does; stdout is empty."""
    assert gate(project, *arguments)[0] == status
    captured = capsys.readouterr()
    assert said in captured.err.strip().splitlines()[-1]
    assert captured.err.count("no_such_bench") == said.count("no_such_bench")
    assert captured.out == ""


def test_an_unbuildable_head_exits_3_and_names_it(project, offline, capsys):
    """Nothing was measured: not green, not a regression."""
    project.commit("broken", **{"pyproject.toml": "[project\n"})
    status, result = gate(project)
    assert (status, result) == (3, None)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "HEAD (" in last
    assert "does not build: its pyproject.toml is not valid TOML" in last


def test_a_dirty_tree_must_be_named(project, offline, capsys):
    """Without --head one line offers both ways, one as a command; WORKTREE measures the changes against HEAD."""
    project.put("tinylib/__init__.py", DOUBLED["tinylib/__init__.py"])
    assert gate(project, "--quick", "--bench", "100")[0] == 4
    error = capsys.readouterr().err
    assert "tracked files have uncommitted changes (tinylib/__init__.py): commit them, measure them with `" in error
    command = shlex.split(error.split("`")[1])
    assert command[command.index("--head") :] == ["--head", "WORKTREE", "--quick", "--bench", "100"]
    assert "or leave them out with --head HEAD" in error
    status, result = gate(project, "--head", "WORKTREE", "--quick", "--bench", "100")
    assert status == 1
    assert result.head.revision.dirty
    assert result.base.revision.sha == project.git("rev-parse", "HEAD")


def test_results_do_not_make_the_tree_dirty(project, offline):
    """A project that does not ignore ``out/`` is gated twice; a folder that was there is left as it is."""
    project.put(".gitignore", "__pycache__/\n")
    project.commit("ignore less")
    kept = project.root / "kept"
    kept.mkdir()
    for out in ("results/gate", "results/gate", "kept"):
        status, result = gate(project, "--quick", "--bench", "100", out=out)
        assert (status, result.verdict) == (0, "pass")
    assert (project.root / "results/.gitignore").read_text() == "*\n"
    assert not (kept / ".gitignore").exists()


def test_default_revisions(project):
    """Head is HEAD and base its parent; the worktree of a clean tree is HEAD against its parent."""
    project.commit("second", **{"a.txt": "1"})
    shas = [project.git("rev-parse", name) for name in ("HEAD~1", "HEAD")]
    assert [r.sha for r in choose_revisions(project.root, Options())] == shas
    assert [r.sha for r in choose_revisions(project.root, Options(head="WORKTREE"))] == shas
    project.put("a.txt", "2")
    with pytest.raises(RevisionError, match=r"changes \(a.txt\): commit"):
        choose_revisions(project.root, Options())
    assert [r.sha for r in choose_revisions(project.root, Options(head="HEAD"))] == shas


def noted(project, head=""):
    """The lines about untracked files; head is HEAD all the same."""
    notes = []
    _, revision = choose_revisions(project.root, Options(head=head), note=notes.append)
    assert head or revision.sha == project.git("rev-parse", "HEAD")
    return notes


def test_what_init_writes_is_no_untracked_file_to_speak_of(project, offline):
    """Nor is bytecode; a limit and a waiver are, as they count only once they are committed. A staged file is a change.

    What `gate init` writes is there to be committed: git does not ignore it.
    """
    project.commit("second")
    assert main(["gate", "init", "--repo", str(project.root)]) == 0
    assert ".github/workflows/" in project.git("status", "--porcelain", "--untracked-files=all")
    project.put("work/other.pyc", "")
    assert noted(project) == []
    limit = '[[threshold]]\nbenchmark = "*"\ntolerance = 10\n'
    for path, text in ((".rocattn/thresholds.toml", limit), (".rocattn/waivers.toml", "")):
        left = (project.root / path).read_text() if (project.root / path).exists() else None
        project.put(path, text)
        (line,) = noted(project)
        assert f"If {path} belongs to the change, commit it or add --head WORKTREE" in line
        (project.root / path).unlink() if left is None else project.put(path, left)
    project.git("add", ".github")
    with pytest.raises(RevisionError, match=r"changes \(.github/workflows/rocattn-gate-comment.yml and 1 more\)"):
        choose_revisions(project.root, Options())


def test_untracked_files_are_named_and_stop_nothing(project):
    """Head is HEAD, without them; a new module or benchmark comes first, as one that may be meant."""
    project.commit("second")
    project.put("log", "")
    assert noted(project) == ["1 untracked file is not part of HEAD, so it was not built: log"]
    for path in ("a.csv", "b.csv", "tinylib/fast.py", "benchmarks/bench_new.py"):
        project.put(path, "")
    (line,) = noted(project)
    both = "benchmarks/bench_new.py, tinylib/fast.py"
    assert line.startswith(f"5 untracked files are not part of HEAD, so they were not built: {both}, a.csv and 2 more")
    assert line.endswith(f". If {both} belong to the change, commit them or add --head WORKTREE")
    assert noted(project, "WORKTREE") == [f"WORKTREE includes 5 untracked files: {both}, a.csv and 2 more"]
    assert noted(project, "HEAD") == []


def test_an_output_folder_that_takes_no_files_is_one_line(project, offline, capsys):
    """A file in the way of --out: exit 4, and the line names the folder."""
    project.put("out", "in the way")
    assert gate(project, "--base", "HEAD", "--head", "HEAD", out="out/gate")[0] == 4
    assert "out/gate" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "status", "notes"),
    [
        (("--base", "nosuch"), 4, []),
        (("--bench", "NoSuchBench"), 4, []),
        (("--head", "broken"), 3, ["out/gate/verdict.json is from an earlier run"]),
    ],
)
def test_a_failing_run_leaves_the_earlier_verdict(project, offline, capsys, arguments, status, notes):
    """A typing error costs nothing that was measured; after another error a line says that the verdict is older."""
    project.commit("same")
    assert gate(project, "--quick", "--bench", "100")[0] == 0
    out = project.root / "out/gate"
    left = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {"verdict.json", "launches.jsonl", "gate.sarif"} < left.keys()
    project.git("checkout", "-q", "-b", "broken")
    project.commit("broken", **{"pyproject.toml": "[project\n"})
    project.git("checkout", "-q", "main")
    capsys.readouterr()
    assert gate(project, "--quick", *arguments)[0] == status
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == left
    lines = capsys.readouterr().err.splitlines()
    (error,) = [at for at, line in enumerate(lines) if line.startswith("rocattn gate: ")]
    assert lines[error + 1 :] == notes


def test_a_pattern_without_a_match_is_noted(project, offline):
    """Before anything is measured, and in the verdict; one that finds only what head removed is no typo."""
    suite = (project.root / "benchmarks/bench_work.py").read_text()
    more = suite + "    def time_gone(self, n):\n        self.work(n)\n"
    project.commit("more", **{"benchmarks/bench_work.py": more})
    project.commit("less", **{"benchmarks/bench_work.py": suite})
    said = []
    options = Options(quick=True, patterns=("100", "zzz", r"gone\(301"))
    result = run_gate(project.root, project.root / "out/gate", options, say=said.append)
    line = "--bench zzz matches no benchmark"
    assert [text for text in said if "matches" in text] == [line]
    assert [note for note in result.notes if "matches" in note] == [line]
    assert result.status == 3  # it was named
    assert "--bench zzz (it matches no benchmark)" in result.sentence
    assert {entry.status for entry in result.entries} == {"pass", "removed"}


def test_steps_are_reported_with_the_look_at_hand(project, offline):
    """Whoever shows progress learns what is done, what is planned, and which round runs."""
    project.commit("empty")
    steps = []
    options = Options(quick=True, patterns=("100",))
    result = run_gate(project.root, project.root / "out/gate", options, on_step=steps.append)
    measured = [step for step in steps if step.of and not step.what.startswith("listing")]
    assert len(measured) == result.launches == 10
    assert {(step.done, step.total) for step in measured} == {(0, 1)}
    assert "round 5 of at most 12" in measured[-1].what
    assert all(step.left_s is not None for step in measured)


TWO = """
import tinylib
class Suite:
    def timer():
        return tinylib.TICKS * 1e-6
    timer = staticmethod(timer)
    number, repeat = 1, 3
    def time_changed(self):
        tinylib.work(300)
    def time_other(self):
        tinylib.other(300)
"""
BOTH = COUNTING + "def other(n):\n    global TICKS\n    TICKS += n\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="functions have no qualified names to trace")
def test_what_does_not_run_the_change_is_measured_once(project, offline, capsys):
    """Both import the file that changed, and one calls the function: that is decided by its times, the other passes."""
    project.commit("two", **{"benchmarks/bench_work.py": TWO, "tinylib/__init__.py": BOTH})
    project.commit("slower", **{"tinylib/__init__.py": BOTH.replace("+= n", "+= 2 * n", 1)})
    status, result = gate(project, "--quick")
    of = {entry.label.rpartition("_")[2]: entry for entry in result.entries}
    assert (status, of["changed"].status, of["other"].status) == (1, "regression", "pass")
    assert (len(of["changed"].base_launches), len(of["other"].base_launches)) == (5, 1)
    assert len(of["other"].head_launches) == 1
    assert (of["changed"].decision.untouched, of["other"].decision.untouched) == (False, True)
    assert of["other"].decision.reason.endswith("traced calls on both sides show it")
    assert result.launches == 12
    planned = gate(project, "--quick")[1].budget.estimate_s  # by the first run's times
    capsys.readouterr()
    project.commit("words", **{"tinylib/__init__.py": BOTH.replace("+= n", "+= 2 * n  # twice", 1)})
    status, result = gate(project, "--quick", "--strict")
    assert (status, result.launches) == (0, 4)
    assert result.sentence == "2 benchmarks run no changed code"
    assert {entry.decision.reason for entry in result.entries} == {
        "no changed code runs in it: only comments, docstrings and documents differ"
    }
    assert result.budget.estimate_s[1] < planned[0] / 2
    assert capsys.readouterr().out.startswith("PASS: 2 benchmarks run no changed code\n")


def test_a_list_says_how_long_and_how_far(project, offline, capsys):
    """A line a benchmark, with headings; nothing is measured."""
    text = (project.root / "tinylib/__init__.py").read_text()
    project.commit("more", **{"tinylib/__init__.py": text.replace("TICKS += n", "TICKS += n + 0")})
    assert gate(project, "--list", "--bench", "time_work")[0] == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["launch", "change", "benchmark"]
    assert {row[heading.index("benchmark") :].partition("(")[0] for row in rows} == {"bench_work.Exact.time_work"}
    assert all(row[: heading.index("benchmark")].split()[-2:] == ["called", "directly"] for row in rows)
    assert not (project.root / "out/gate/verdict.json").exists()
