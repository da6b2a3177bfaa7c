"""Commands that report their own results, gated from two commits: no Python project, builds once a tree."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from rocattn_profiling.asv.launch import Request
from rocattn_profiling.gate.launchers.report_launch import ReportLauncher, ReportPlace
from rocattn_profiling.gate.options import OptionError, Options
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

from ..conftest import gate_run, statuses

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
    return gate_run(project.root, "--quick", "--no-noise", *words)


def test_a_programs_own_results_are_gated(program, offline, capsys):
    """A slower time and a lower rate are regressions with their values, what is equal passes; one run a round."""
    status, result = gate(program, *WORDS)
    assert statuses(result) == {
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
    error = "a.c:3:5: error: unknown type name"
    command = f"echo '{error}' >&2; echo 'make: *** [all] Error 1'; exit 2"
    assert gate(program, "--build", command, *WORDS[2:])[0] == 3
    said = re.sub(r"\(\w+\)|log: .*(?=/build)", "…", capsys.readouterr().err.splitlines()[-1])
    assert said == f'rocattn gate: HEAD~1 …: --build "{command}" ended with status 2: {error} […/build.log]'


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


def google(waits):
    """A program with results of Google Benchmark's kind, that gives up its core so many times."""
    rows = [
        {"name": name, "run_name": name, "repetition_index": 0, "iterations": 1000, "time_unit": "us",
         "real_time": real, "cpu_time": 10.0}
        for name, real in (("hash", 10.1), ("hash", 14.0), ("gpu/manual_time", 9.0))
    ]  # fmt: skip
    text = json.dumps(json.dumps({"context": {}, "benchmarks": rows}))
    return f"import time\nfor _ in range({waits}):\n    time.sleep(0.0002)\nprint({text})\n"


def test_what_is_seen_from_outside_is_of_cpu_results_alone(tmp_path):
    """The canary, and which samples lost their core: not of a GPU's time, nor where calls may have waited."""
    found = {}
    for name, waits in (("busy.py", 0), ("waiting.py", 500)):
        (tmp_path / name).write_text(google(waits))
        side = launcher(tmp_path, f"{sys.executable} {name}", "google")
        suite = side.discover()
        assert suite.shared == dict.fromkeys(("hash", "gpu/manual_time"), f"{sys.executable} {name}")
        assert suite.imports[f"{sys.executable} {name}"] > 0.01
        found[name] = [side.run(case, Request()) for case in suite.cases()]
    hashed, gpu = found["busy.py"]
    assert (hashed.launch.nivcsw, hashed.launch.cpu_ns, gpu.launch.nivcsw) == ([0, 1], [1e4, 1e4], [])
    assert (hashed.canary_ns > 1e4, gpu.canary_ns) == (True, 0)
    assert found["waiting.py"][0].launch.nivcsw == []


CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project(tiny C)
add_compile_options(-O1)
add_executable(bench bench.c work.c)
"""
BENCH = """\
#include <stdio.h>
#include <time.h>
unsigned work(void); unsigned other(void);
static double now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return 1e9 * t.tv_sec + t.tv_nsec; }
static void run(const char *name, unsigned (*call)(void), int last) {
  for (int i = 0; i < 12; i++) {
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    for (int k = 0; k < 40; k++) call();
    cpu = (now(CLOCK_THREAD_CPUTIME_ID) - cpu) / 40, wall = (now(CLOCK_MONOTONIC) - wall) / 40;
    printf("{\\"name\\":\\"%s\\",\\"iterations\\":40,\\"real_time\\":%f,\\"cpu_time\\":%f,\\"time_unit\\":\\"ns\\"}%s\\n",
           name, wall, cpu, last && i == 11 ? "" : ",");
  }
}
int main(void) {
  printf("{\\"context\\": {}, \\"benchmarks\\": [");
  run("work", work, 0), run("other", other, 1);
  printf("]}");
}
"""
WORK = """\
#define LOOP(n) unsigned h = 1; for (volatile int i = 0; i < n; i++) h = (h ^ i) * 16777619u; return h;
unsigned work(void) { LOOP(20000) }
unsigned other(void) { LOOP(20000) }
"""


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("cc")), reason="needs cmake and a C compiler")
def test_a_cmake_project_is_gated_from_its_own_file(repo, offline):
    """Built on both sides as .rocattn/gate.toml says: what is slower is red by its CPU time, what is not never is."""
    settings = 'build = ["cmake -B b", "cmake --build b"]\n[[command]]\nrun = "b/bench"\nresults = "google"\n'
    files = {"CMakeLists.txt": CMAKE, "bench.c": BENCH, "work.c": WORK, ".rocattn/gate.toml": settings}
    repo.commit("first", **files, **{".gitignore": "out/\nb/\n"})
    repo.commit("slower", **{"work.c": WORK.replace("work(void) { LOOP(20000)", "work(void) { LOOP(30000)")})
    status, result = gate(repo)
    found = {entry.label: entry for entry in result.entries}
    assert (status, found["work"].status) == (1, "regression"), result.sentence
    assert found["other"].status in {"pass", "inconclusive"}
    assert "in CPU time" in found["work"].decision.reason
    assert [cause.location.path for cause in found["work"].causes] == ["work.c"]
    assert all(launch.canary for entry in result.entries for launch in entry.base_launches)


@pytest.mark.parametrize(
    ("command", "report", "why"),
    [
        ("echo no; exit 3", "jsonl", "exit status 3"), ("true", "google:r.json", "it wrote no r.json"),
        ("true", "google:old.json", "it did not rewrite old.json"), ("echo hello", "google", "is not google"),
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
