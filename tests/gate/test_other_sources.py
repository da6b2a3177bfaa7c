"""Tests of pytest-benchmark and commands, gated like an asv suite: by revisions, and between existing environments."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.options import OptionError, Options
from rocattn_profiling.gate.sides import open_sides
from rocattn_profiling.gate.sources import choose_sources
from rocattn_profiling.revisions.asv_config import SuiteError

from ..projects import QUIET

pytestmark = pytest.mark.slow

# The timer counts loop iterations: its times are exact, whatever else runs on the machine.
TESTS = """\
import pytest

import tinylib


@pytest.mark.benchmark(timer=lambda: tinylib.TICKS * 1e-6)
@pytest.mark.parametrize("n", [300])
def test_work(benchmark, n):
    benchmark(tinylib.work, n)
"""


@pytest.fixture
def tested(project):
    """The small project with a test instead of its suite."""
    project.git("rm", "-rq", "asv.conf.json", "benchmarks")
    project.commit("tests", **{"tests/__init__.py": "", "tests/test_bench.py": TESTS, "pytest.ini": QUIET})
    return project


def test_a_slower_function_is_found_and_named(tested, offline, monkeypatch):
    """From two commits, without an asv.conf.json: verdict, parameters, place in SARIF, and the command to repeat it."""
    slower = (tested.root / "tinylib/__init__.py").read_text().replace("TICKS += n", "TICKS += n + n // 4")
    tested.commit("slower", **{"tinylib/__init__.py": slower})
    monkeypatch.chdir(tested.root)
    assert main(["gate", "run", "--pytest", "tests", "--quick", "--no-noise", "--out", "out"]) == 1
    result = verdict.read(Path("out/verdict.json"))
    (entry,) = result.entries
    assert (entry.label, entry.name) == ("tests/test_bench.py::test_work[300]", "tests/test_bench.py::test_work")
    assert (entry.status, entry.params) == ("regression", {"n": "300"})
    assert entry.decision.ratio == pytest.approx(1.25)
    assert [cause.location.path for cause in entry.causes if cause.location] == ["tinylib/__init__.py"]
    words = shlex.split(result.again)
    assert words[words.index("--pytest") + 1] == "tests"
    (finding,) = json.loads(Path("out/gate.sarif").read_text())["runs"][0]["results"]
    assert finding["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "tinylib/__init__.py"


def test_sources_are_measured_together(tested, tmp_path, monkeypatch):
    """Tests and commands between two environments; what runs on neither side is broken, not lost."""
    tested.put("pyproject.toml", '[project]\nname = "pytest"\n')  # one that the running interpreter has
    tested.put("tests/test_bench.py", "def test_it(benchmark):\n    benchmark(int)\n")
    monkeypatch.chdir(tested.root)
    python = ["--base-python", sys.executable, "--head-python", sys.executable]
    sources = ["--pytest", "tests", "--command", "true", "--command", "exit 3"]
    assert main(["gate", "run", *python, *sources, "--quick", "--rounds", "1", "--no-noise", "--out", "out"]) == 0
    result = verdict.read(Path("out/verdict.json"))
    statuses = {entry.label: entry.status for entry in result.entries}
    assert statuses == {"tests/test_bench.py::test_it": "inconclusive", "true": "inconclusive", "exit 3": "broken"}
    assert len(result.entries[0].base_launches) <= 1


def test_each_source_replaces_the_suite(project):
    """Unless that is named, too; its recipe is followed all the same."""
    project.put("asv.conf.json", '{"benchmark_dir": "benchmarks", "matrix": {"req": {"numpy": []}}}')
    project.put("tests/test_it.py", "")
    options = Options(pytest=("tests",), requirements=("psutil",))
    sources = choose_sources(project.root, None, ("tests",), options)
    assert (sources.suite, sources.tests, sources.folder) == (False, ("tests",), "tests")
    recipe = sources.config.recipe
    assert (recipe.requirements, recipe.tests) == (["numpy"], ["pytest", "pytest-benchmark", "psutil"])
    assert choose_sources(project.root, "benchmarks", ("tests",), options).suite
    assert choose_sources(project.root, None, (), Options()).suite


def test_a_project_below_the_top_is_the_one_that_is_built(repo):
    """The nearest to its tests, where the top has none."""
    repo.put("packages/one/pyproject.toml", "[project]\nname = 'one'\n")
    repo.put("packages/one/tests/test_it.py", "")
    sources = choose_sources(repo.root, None, ("packages/one/tests",), Options(pytest=("packages/one/tests",)))
    assert sources.config.recipe.subdir == "packages/one"


@pytest.mark.parametrize(
    "options",
    [
        Options(requirements=("test",)),
        Options(pytest=("",)),
        Options(commands=(" ",)),
        Options(pytest=("tests",), requirements=("x",), base_python="a", head_python="b"),
    ],
)
def test_options_that_contradict_each_other(options):
    """Refused before anything is opened."""
    with pytest.raises(OptionError):
        options.check()


@pytest.mark.parametrize("path", ["no/such", "../elsewhere"])
def test_tests_that_are_not_there_are_refused(tested, tmp_path, offline, path):
    """Before anything is built; outside of the repository they belong to no revision."""
    (tmp_path / "elsewhere").mkdir()
    tested.commit("second")
    options = Options(pytest=(path,))
    with pytest.raises(SuiteError), open_sides(tested.root, tmp_path / "out", options, lambda _: None):
        pass


def test_an_environment_without_the_project_is_refused(tested, tmp_path):
    """Its tests would import the checkout's on both sides."""
    options = Options(pytest=("tests",), base_python=sys.executable, head_python=sys.executable)
    with pytest.raises(SuiteError, match="tinylib"), open_sides(tested.root, tmp_path, options, lambda _: None):
        pass
