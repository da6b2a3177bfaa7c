"""What is measured where nobody names it, and which benchmarks sources show before anything is built."""

import pytest

from rocattn_profiling import cli
from rocattn_profiling.gate.launchers.pytest_launch import PytestLauncher
from rocattn_profiling.gate.planning.select import unmatched
from rocattn_profiling.gate.sources import discover
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions.asv_config import UnknownNameError

from ...projects import QUIET

BENCH = "import tinylib\n\n\ndef time_work():\n    tinylib.work(3)\n"
TESTED = "import tinylib\n\n\ndef test_work(benchmark):\n    benchmark(tinylib.work, 3)\n"
NONE = "nothing to measure: no asv.conf.json, no asv benchmarks in a usual folder (benchmarks/, asv_bench/, "
CASES = {
    "configured": ({"asv.conf.json": "{}", "benchmarks/bench_text.py": BENCH, "tests/test_a.py": TESTED}, None, (), ""),
    "folder": (
        {"benchmarks/bench_text.py": BENCH, "tests/test_a.py": TESTED}, "benchmarks", (),
        "no asv.conf.json: measuring the asv benchmarks in benchmarks; --suite or --pytest names others",
    ),
    "tests": (
        {"benchmarks/test_a.py": TESTED, "benchmarks/plain.py": "def timed(): ...\n"}, None, ("benchmarks",),
        "no asv.conf.json: measuring the pytest-benchmark tests in benchmarks; --suite or --pytest names others",
    ),
    "apart": (
        {"tests/deep/test_a.py": TESTED, "more/bench_b.py": TESTED, "test_c.py": TESTED, ".gitignore": "env/\n",
         "env/tests/test_d.py": TESTED},
        None, ("test_c.py", "tests", "more/bench_b.py"),
        ("no asv.conf.json: measuring the pytest-benchmark tests in test_c.py and tests and more/bench_b.py; "
        "--suite or --pytest names others"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_is_found_and_said(repo, case):
    """A configuration, else a usual folder of asv benchmarks, else tests; never the whole tree, nor ignored files."""
    files, suite, tests, line = CASES[case]
    for path, text in files.items():
        repo.put(path, text)
    measured = discover(repo.root)
    assert (measured.suite, measured.tests, measured.line) == (suite, tests, line)


def test_existing_environments_need_no_repository(tmp_path):
    """The folder that the gate is started in is searched, too."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TESTED)
    assert discover(tmp_path).tests == ("tests",)
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf/bench_a.py").write_text(BENCH)
    assert discover(tmp_path).suite == "perf"


@pytest.mark.parametrize("verb", ["init", "run", "selftest"])
def test_every_verb_measures_the_same(repo, monkeypatch, capsys, verb):
    """Each says in one line what it takes, or that there is nothing, and how to name it; nothing is built for that."""

    def build(*_, **__):
        raise environments.BuildError("stopped here")

    monkeypatch.setattr(environments, "build", build)
    monkeypatch.chdir(repo.root)
    words = ["gate", verb, *(["--out", str(repo.root / "out")] if verb != "init" else ["--no-list"])]
    repo.commit("nothing", **{"a.txt": ""})
    repo.commit("still nothing")
    assert cli.main(words) == 4
    assert NONE in capsys.readouterr().err.splitlines()[-1]
    repo.commit("folder", **{"benchmarks/bench_text.py": BENCH})
    assert cli.main(words) == (0 if verb == "init" else 3)
    said = capsys.readouterr()
    assert "the asv benchmarks in benchmarks" in (said.out if verb == "init" else said.err)


def test_tests_beside_the_code_hide_no_change(tmp_path):
    """Of a folder with the project's own code, the files of tests are head's on both sides, and nothing else."""
    for name in ("pkg/core.py", "pkg/test_core.py", "pkg/conftest.py", "tests/helpers.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def shared(*paths):
        launcher = PytestLauncher("python", tmp_path, paths, tmp_path / "scratch")
        return {path.relative_to(tmp_path).as_posix() for path in launcher.shared}

    assert shared("pkg", "tests") == {"pkg/test_core.py", "pkg/conftest.py", "tests"}
    assert shared(".") == {"pkg/test_core.py", "pkg/conftest.py"}
    assert shared("pkg/core.py::test_x") == {"pkg/core.py"}


def test_what_git_asv_and_pytest_know_is_found(repo):
    """A configuration anywhere, the own folder's first, of several each command; files by the project's own names."""
    repo.put("bench/asv.conf.json", "{}")
    found = discover(repo.root)
    assert (found.suite, found.line) == (
        "bench",
        "measuring the asv benchmarks in bench; --suite or --pytest names others",
    )
    repo.put("other/deep/asv.conf.jsonc", "{}")
    assert discover(repo.root, "other").suite == "other/deep"
    with pytest.raises(
        UnknownNameError, match=r"`rocattn gate run --suite bench` or `rocattn gate run --suite other/deep`"
    ):
        discover(repo.root)
    repo.put("asv.conf.json", "{}")
    assert discover(repo.root).suite is None


NAMED = {
    "file by its name": ({"benchmarking/bench_core.py": TESTED}, ("benchmarking/bench_core.py",)),
    "async and guarded": (
        {"tests/test_a.py": "if True:\n    async def test_x(benchmark): ...\n"}, ("tests",),
    ),
    "own names": (
        {"pytest.ini": "[pytest]\npython_files = perf_*.py\npython_functions = bench_*\n",
         "checks/perf_a.py": "def bench_a(benchmark): ...\n", "checks/test_b.py": TESTED},
        ("checks",),
    ),
    "names in pyproject.toml": (
        {"pyproject.toml": "[tool.pytest.ini_options]\npython_files = ['check_*.py', 'bench_*.py']\n",
         "a/check_a.py": TESTED, "b/test_b.py": TESTED},
        ("a", "b/test_b.py"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_tests_are_what_the_projects_pytest_collects(repo, case):
    """Folders whose files it finds by itself, and by name those that it does not."""
    files, tests = NAMED[case]
    for path, text in files.items():
        repo.put(path, text)
    assert discover(repo.root).tests == tests


def test_paths_are_those_of_the_current_folder(project, offline, monkeypatch, capsys):
    """What is named in a subfolder is its own, though the top has the same."""
    for path in ("tests/test_top.py", "sub/tests/test_member.py"):
        project.put(path, TESTED)
    project.put("pytest.ini", QUIET)
    project.commit("tests")
    project.commit("more", **{"tinylib/more.py": ""})
    monkeypatch.chdir(project.root / "sub")
    assert cli.main(["gate", "run", "--list", "--pytest", "tests", "--out", str(project.root / "out")]) == 0
    assert "sub/tests/test_member.py::test_work" in capsys.readouterr().out


def test_what_matches_nothing_is_one_line_with_names():
    """Close ones, whatever they are in; else the first ones."""
    names = ["bench_a.time_sort", "bench_b.Suite.time_find", "tests/test_a.py::test_sort", "bench_c.track_bytes"]
    line = (
        "--bench time_srt matches none of 4 benchmarks; did you mean bench_a.time_sort or tests/test_a.py::test_sort?"
    )
    assert unmatched("--bench", ["time_srt"], names) == line
    first = "bench_a.time_sort, bench_b.Suite.time_find, tests/test_a.py::test_sort and 1 more"
    assert unmatched("--bench", ["zzz", "q q"], names) == f"--bench zzz or 'q q' matches none of 4 benchmarks: {first}"
