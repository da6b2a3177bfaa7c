"""Commands that report their own results, gated from two commits: no Python project, builds once a tree."""

import json
import os
import sys
from pathlib import Path

import pytest

from rocattn_profiling.asv.launch import Request
from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.launchers.report_launch import ReportLauncher, ReportPlace
from rocattn_profiling.gate.options import OptionError, Options
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

pytestmark = pytest.mark.slow

# Times and rates that wander a little from run to run, by the hash seed: the same on both sides of a round.
PROGRAM = """\
import json, pathlib
wander = 1 + hash("run") % 7 / 2000
cost = float(pathlib.Path("built.txt").read_text())
rows = [("sort", 100 * cost * wander, "us"), ("copy", 50 * wander, "us"), ("rate", 80 / cost / wander, "GB/s")]
for name, value, unit in rows:
    print(json.dumps({"name": name, "value": value, "unit": unit}))
"""
WORDS = [
    "--build",
    "cp cost.txt built.txt && echo x >> runs.txt",
    "--command",
    "python3 bench.py",
    "--results",
    "jsonl",
]


@pytest.fixture
def program(repo):
    """A repository without a Python project; its second commit makes a part of the program slower."""
    repo.put(".gitignore", "out/\n")
    repo.commit("first", **{"bench.py": PROGRAM, "cost.txt": "1.0"})
    repo.commit("slower", **{"cost.txt": "1.25"})
    return repo


def gate(project, *words):
    """Gate the last commit; return the status and the verdict."""
    here = Path.cwd()
    os.chdir(project.root)
    try:
        status = main(["gate", "run", "--quick", "--no-noise", "--out", "out", *words])
    finally:
        os.chdir(here)
    path = project.root / "out/verdict.json"
    return status, verdict.read(path) if path.exists() else None


def test_a_programs_own_results_are_gated(program, offline, capsys):
    """A slower time and a lower rate are regressions with their values, what is equal passes; one run a round."""
    status, result = gate(program, *WORDS)
    assert {entry.label: entry.status for entry in result.entries} == {
        "sort": "regression", "rate": "regression", "copy": "pass",
    }  # fmt: skip
    rate = next(entry for entry in result.entries if entry.label == "rate")
    assert (status, rate.base, rate.head, rate.unit) == (
        1,
        pytest.approx(80, rel=0.01),
        pytest.approx(64, rel=0.01),
        "GB/s",
    )
    assert rate.decision.ratio == pytest.approx(1.25, rel=0.01)
    assert "--results jsonl" in result.again
    assert "--build" in result.again
    trees = sorted((Path(os.environ["ROCATTN_CACHE_DIR"]) / "gate/trees").glob("*/tree/runs.txt"))
    before = [path.read_text() for path in trees]
    assert set(before) == {"x\n"}
    gate(program, *WORDS, "--fresh", "--rounds", "1")
    assert [path.read_text() for path in trees] == before


def test_a_build_that_fails_is_one_line(program, offline, capsys):
    """The compiler's error, not the command that failed after it."""
    command = "echo 'a.c:3:5: error: unknown type name' >&2; echo 'make: *** [all] Error 1'; exit 2"
    assert gate(program, "--build", command, *WORDS[2:])[0] == 3
    assert "a.c:3:5: error: unknown type name [log" in capsys.readouterr().err.splitlines()[-1]


def launcher(tmp_path, command, report, environment=None):
    """A side in a folder."""
    return ReportLauncher(
        sys.executable, tmp_path, [command], tmp_path / "scratch", environment or {}, reports=[ReportPlace.of(report)]
    )


def test_one_run_serves_every_benchmark_once(tmp_path):
    """The next launch of one of them runs the command again; results may be in a file."""
    (tmp_path / "p.py").write_text(
        "import json, pathlib\nruns = pathlib.Path('runs'); n = len(runs.read_text()) if runs.exists() else 0\n"
        "runs.write_text('x' * (n + 1))\n"
        "pathlib.Path('r.json').write_text(''.join(json.dumps({'name': m, 'value': n + 1, 'unit': 'ms'}) + chr(10)"
        " for m in 'ab'))\n"
    )
    side = launcher(tmp_path, f"{sys.executable} p.py", "jsonl:r.json")
    a, b = side.discover().cases()
    outcomes = [side.run(case, Request()) for case in (a, b, a, b)]
    assert [outcome.launch.samples_ns for outcome in outcomes] == [[2e6], [2e6], [3e6], [3e6]]
    assert (tmp_path / "runs").read_text() == "xxx"
    assert not outcomes[0].canary_ns


@pytest.mark.parametrize(
    ("command", "report", "why"),
    [
        ("echo no; exit 3", "jsonl", "exit status 3"), ("true", "google:r.json", "it wrote no r.json"),
        ("true", "google:old.json", "it left the old old.json"), ("echo hello", "google", "is not google"),
    ],
)  # fmt: skip
def test_what_reports_nothing_says_why(tmp_path, command, report, why):
    """A result of an earlier run is none."""
    (tmp_path / "old.json").write_text(json.dumps({"context": {}, "benchmarks": []}))
    with pytest.raises(SuiteError, match=why):
        launcher(tmp_path, command, report).discover()


def test_options_of_reports_fit_the_commands():
    """One report for all commands or one for each; formats are known; builds are of revisions."""
    for options in (
        Options(results=("go",)), Options(commands=("a", "b", "c"), results=("go", "go")), Options(builds=("make",)),
        Options(commands=("a",), builds=("make",), base_python="a", head_python="b"),
    ):  # fmt: skip
        with pytest.raises(OptionError):
            options.check()
    with pytest.raises(UnknownNameError, match="the formats are nvbench, google"):
        ReportPlace.of("gogle:x.json")
    assert ReportPlace.of("csv:out/a:b.csv") == ("csv", "out/a:b.csv")
