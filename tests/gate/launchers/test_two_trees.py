"""A verdict is about two different trees, or there is none: where a benchmark found the project is looked at."""

import pytest

from rocattn_profiling.asv.launch import Differing

from ...projects import QUIET
from ..conftest import gate_run

pytestmark = pytest.mark.slow

SLOWER = "TICKS += n + n // 4"
SUITE = """\
def track_ticks():
    tinylib.TICKS = 0
    tinylib.work(300)
    return tinylib.TICKS
"""
TOP = "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent.parent))\n"
BY_PATH = """\
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("ours", pathlib.Path(__file__).parent.parent / "tinylib/__init__.py")
tinylib = importlib.util.module_from_spec(spec)
import sys
sys.modules["ours"] = tinylib
spec.loader.exec_module(tinylib)
"""
TESTED = """\
import pytest
import one

@pytest.mark.benchmark(timer=lambda: one.ticks() * 1e-6)
def test_work(benchmark):
    benchmark(one.work, 300)
"""
MEMBER = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nversion = "1"\n'


def gate(project, *words):
    """Gate the last commit; return the status and the verdict."""
    return gate_run(project.root, "--quick", "--no-noise", *words)


def suite_of(project, text, **files):
    """Commit a suite, then a slower library."""
    project.commit("suite", **{"benchmarks/bench_work.py": text, **files})
    slower = (project.root / "tinylib/__init__.py").read_text().replace("TICKS += n", SLOWER)
    project.commit("slower", **{"tinylib/__init__.py": slower})


def test_a_suite_that_inserts_the_checkout_is_measured(project, offline):
    """Each side's environment goes first, as it does for tests."""
    suite_of(project, f"{TOP}import tinylib\n{SUITE}")
    status, result = gate(project)
    assert (status, result.entries[0].decision.ratio) == (1, pytest.approx(1.25))


def test_one_tree_on_both_sides_is_no_pass(project, offline):
    """Loaded by path under another name: nothing shows that the environment has it."""
    suite_of(project, BY_PATH + SUITE, **{"benchmarks/bench_more.py": "def track_it():\n    return 1\n"})
    status, result = gate(project)
    assert (status, [entry.status for entry in result.entries]) == (3, ["void", "pass"])
    assert result.sentence.startswith(
        "1 of 2 existing benchmarks was not compared: bench_work.track_ticks: imports ours"
    )


def test_a_helper_beside_the_suite_may_stay_as_it_is(project, offline):
    """It is head's on both sides; only where it differs is a part of the change measured twice."""
    suite_of(project, f"{TOP}import helper, tinylib\n{SUITE}", **{"helper.py": "A = 1\n"})
    assert gate(project)[0] == 1
    project.commit("helper", **{"helper.py": "A = 2\n"})
    status, result = gate(project)
    assert (status, result.entries[0].reason) == (
        3,
        "imports helper from the checkout, not from its side's environment",
    )


def test_what_base_has_is_never_new(project, offline):
    """Head's file imports what base lacks: its benchmarks exist, and were not compared."""
    project.commit("suite", **{"benchmarks/bench_work.py": f"import tinylib\n{SUITE}"})
    library = (project.root / "tinylib/__init__.py").read_text()
    more = "from tinylib import shiny\ndef track_shiny():\n    return shiny()\n"
    files = {
        "tinylib/__init__.py": f"{library}def shiny():\n    return 1\n",
        "benchmarks/bench_work.py": f"import tinylib\n{more}{SUITE}",
    }
    project.commit("api", **files)
    status, result = gate(project)
    assert {entry.name: entry.status for entry in result.entries} == {
        "bench_work.track_ticks": "void", "bench_work.track_shiny": "new",
    }  # fmt: skip
    assert (status, result.sentence[:45]) == (3, "1 of 1 existing benchmark was not compared: b")


def test_a_benchmark_that_base_lacks_is_new(project, offline):
    """In a file of its own it hides nothing."""
    library = (project.root / "tinylib/__init__.py").read_text()
    more = "from tinylib import shiny\ndef track_shiny():\n    return shiny()\n"
    files = {"tinylib/__init__.py": f"{library}def shiny():\n    return 1\n", "benchmarks/bench_more.py": more}
    project.commit("api", **files)
    status, result = gate(project, "--bench", "track|time_work")
    assert (status, {entry.status for entry in result.entries}) == (0, {"new", "pass"})


@pytest.mark.parametrize("where", ["packages/one/tests", "checks"])
def test_members_of_a_workspace_are_built(repo, offline, where):
    """The one that tests are in with what it requires, or all of them; groups at the top count."""
    top = '[tool.uv.workspace]\nmembers = ["packages/*"]\n[dependency-groups]\ndev = ["pytest-benchmark"]\n'
    repo.put("pyproject.toml", top)
    repo.put("packages/one/pyproject.toml", f'{MEMBER}name = "one"\ndependencies = ["two"]\n')
    repo.put("packages/two/pyproject.toml", f'{MEMBER}name = "two"\n')
    repo.put("packages/one/one/__init__.py", "import two\nwork = two.work\ndef ticks():\n    return two.TICKS\n")
    repo.put("packages/two/two/__init__.py", "TICKS = 0\ndef work(n):\n    global TICKS\n    TICKS += n\n")
    repo.put("packages/one/conftest.py", "")  # puts its folder on the path
    repo.put("pytest.ini", QUIET)
    repo.put(".gitignore", "out/\n__pycache__/\n")
    repo.commit("first", **{f"{where}/test_work.py": TESTED})
    slower = (repo.root / "packages/two/two/__init__.py").read_text().replace("TICKS += n", SLOWER)
    repo.commit("slower", **{"packages/two/two/__init__.py": slower})
    _, result = gate(repo, "--rounds", "1")  # which decides nothing, but shows what was built
    assert result.entries[0].head / result.entries[0].base == pytest.approx(1.25)


def test_what_is_of_one_tree_is_told_by_what_differs(tmp_path):
    """A package with a file of any kind that differs; not the benchmarks', and not for being in the checkout."""
    files = [str(tmp_path / "pkg/__init__.py"), str(tmp_path / "pkg/core.py")]
    answer = {"strays": {"pkg": {"files": files, "shadows": False}}}

    def found(*paths, shared=()):
        return Differing((tmp_path,), frozenset(paths)).of_one_tree(answer, [tmp_path / path for path in shared])

    assert found("pkg/core.py") == found("pkg/native/fast.c") == ["pkg"]
    assert found("pkg.py", "docs/pkg/core.py") == found("pkg/core.py", shared=["pkg"]) == []
    answer["strays"]["pkg"]["shadows"] = True
    assert found() == ["pkg"]
