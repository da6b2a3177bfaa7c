"""What is measured where nobody names it, and which benchmarks sources show before anything is built."""

import pytest

from rocattn_profiling import cli
from rocattn_profiling.gate.launchers.pytest_launch import PytestLauncher
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning.listing import names_a_function, names_in_source
from rocattn_profiling.gate.planning.select import unmatched
from rocattn_profiling.gate.sources import choose_sources, discover
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions.asv_config import UnknownNameError

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
        None, ("more", "test_c.py", "tests"),
        ("no asv.conf.json: measuring the pytest-benchmark tests in more and test_c.py and tests; --suite or --pytest "
        "names others"),
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
    words = ["gate", verb, *(["--out", str(repo.root / "out")] if verb != "init" else [])]
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


@pytest.mark.parametrize(
    "doubt",
    [
        "setattr(object, 'x', 1)", "from .common import Base", "from library import time_it", "from library import *",
        "class A(object):\n    def time_it(self): ...", "time_work.benchmark_name = 'x'", "def broken(:",
    ],
)  # fmt: skip
def test_names_are_known_where_the_sources_show_all(tmp_path, doubt):
    """A function by its name is refused before a build; where a benchmark may be made elsewhere nothing is known."""
    (tmp_path / "bench_a.py").write_text(BENCH)
    (tmp_path / "test_a.py").write_text(f"{TESTED}class TestIt:\n    def test_more(self, timed): ...\n")
    names = ["bench_a.time_work", "test_a.py::test_work", "test_a.py::TestIt::test_more"]
    assert names_in_source([tmp_path]) == names
    (tmp_path / "bench_b.py").write_text(f"{doubt}\n")
    assert names_in_source([tmp_path]) is None


@pytest.mark.parametrize("node", ["TestIt", "TestIt::test_more", "test_work", "test_work[3]"])
def test_a_node_id_that_is_mistyped_is_refused(tmp_path, node):
    """By what its file shows; one that may have more is left to pytest."""
    (tmp_path / "test_a.py").write_text(f"{TESTED}class TestIt:\n    def test_more(self, benchmark): ...\n")
    options = Options(base_python="python")
    assert choose_sources(tmp_path, None, (f"test_a.py::{node}",), options).tests == (f"test_a.py::{node}",)
    with pytest.raises(UnknownNameError, match=r"^--pytest test_a\.py::test_wrk matches none of 2 benchmarks; did you"):
        choose_sources(tmp_path, None, ("test_a.py::test_wrk",), options)
    (tmp_path / "test_a.py").write_text("from elsewhere import *\n")
    assert choose_sources(tmp_path, None, ("test_a.py::test_wrk",), options).tests


def test_only_names_of_functions_are_looked_up_in_sources():
    """Parameters and parts of names are not."""
    assert all(map(names_a_function, ["time_a", "test_a", "bench_x.Suite.peakmem_a"]))
    assert not any(map(names_a_function, ["Suite", "time_a(3", "a|time_b", "tests/test_a.py::test_b", "work"]))


def test_what_matches_nothing_is_one_line_with_names():
    """Close ones, whatever they are in; else the first ones."""
    names = ["bench_a.time_sort", "bench_b.Suite.time_find", "tests/test_a.py::test_sort", "bench_c.track_bytes"]
    line = (
        "--bench time_srt matches none of 4 benchmarks; did you mean bench_a.time_sort or tests/test_a.py::test_sort?"
    )
    assert unmatched("--bench", ["time_srt"], names) == line
    first = "bench_a.time_sort, bench_b.Suite.time_find, tests/test_a.py::test_sort and 1 more"
    assert unmatched("--bench", ["zzz", "q q"], names) == f"--bench zzz or 'q q' matches none of 4 benchmarks: {first}"
