"""Tests of pytest-benchmark: listed, measured in a fresh pytest each, with the side's own package and head's tests."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rocattn_profiling.asv.launch import Request
from rocattn_profiling.gate.launchers.pytest_launch import PytestLauncher
from rocattn_profiling.gate.sources import discover
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

from ...projects import QUIET

REQUEST = Request(sample_ns=400_000, budget_ns=16_000_000)
TESTS = """\
import itertools
import os
import time

import pytest

import tinylib
from . import helper


@pytest.fixture
def given(benchmark):
    return lambda: benchmark(tinylib.work)


@pytest.mark.parametrize("n", [10, 300])
@pytest.mark.parametrize(("kind", "call"), [("a", tinylib.work), ("b", len)])
def test_params(benchmark, n, kind, call):
    benchmark(tinylib.work)


def test_side(given):
    assert tinylib.SIDE == os.environ["SIDE"], tinylib.__file__
    assert helper.PLACE == "checkout"
    given()


def test_pedantic(benchmark):
    benchmark.pedantic(tinylib.work, rounds=100, iterations=3)


@pytest.mark.benchmark(min_rounds=500, timer=itertools.count().__next__)
def test_own_timer(benchmark):
    benchmark(tinylib.work)


def test_plain():
    pass


@pytest.mark.skip(reason="no need")
def test_skipped(benchmark):
    benchmark(tinylib.work)


@pytest.mark.xfail(reason="not yet")
def test_expected(benchmark):
    benchmark(tinylib.nothing)


def test_raises(benchmark):
    benchmark(lambda: 1 / 0)


def test_unused(benchmark):
    pass


def test_slow(benchmark):
    benchmark(time.sleep, 30)
"""
# Every way to put the checkout's package before the environment's: ini file, conftest, packages of tests.
FILES = {
    "pyproject.toml": '[project]\nname = "tinylib"\n[tool.pytest.ini_options]\n'
    'addopts = "--benchmark-skip -n 2 --benchmark-warmup=on -p no:hypothesispytest -p no:inline_snapshot"\n'
    'pythonpath = ["."]\n',
    "tinylib/__init__.py": "SIDE = 'checkout'\n\n\ndef work():\n    return sum(range(100))\n",
    "conftest.py": "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent))\n",
    "tests/__init__.py": "",
    "tests/bench/__init__.py": "",
    "tests/bench/helper.py": "PLACE = 'checkout'\n",
    "tests/bench/test_it.py": TESTS,
    "tests/bench/test_broken.py": "import no_such_module\n",
    "tests/bench/test_left_out.py": "import pytest\npytest.importorskip('no_such_module')\n",
}
NODE = "tests/bench/test_it.py"


def write(tree, files):
    """Write files by path."""
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A side's own package, on the path as an installed one is."""
    folder = tmp_path_factory.mktemp("site")
    write(folder, {"tinylib/__init__.py": FILES["tinylib/__init__.py"].replace("checkout", "base")})
    return folder


@pytest.fixture(scope="module")
def launcher(site, tmp_path_factory):
    """One side: its own package, the checkout's tests."""
    tree = tmp_path_factory.mktemp("tree")
    write(tree, FILES)
    variables = {"PYTHONPATH": str(site), "SIDE": "base"}
    return PytestLauncher(sys.executable, tree, ["tests/bench"], tree.parent / "scratch", variables)


@pytest.fixture(scope="module")
def suite(launcher):
    """What it lists."""
    return launcher.discover()


@pytest.fixture(params=["", NODE], ids=["alone", "forked"])
def request_(request, launcher):
    """How to sample: in a process of its own, or in one forked from a pytest that has collected the file."""
    yield msgspec.structs.replace(REQUEST, module=request.param)
    launcher.end_server()


def run(launcher, suite, name, request=REQUEST):
    """Measure one test."""
    return launcher.run(next(case for case in suite.cases() if case.label == f"{NODE}::{name}"), request)


def test_only_tests_with_the_fixture_are_listed(suite):
    """By node id, with parameters by name; a file that does not import is broken, one that skips itself is nothing."""
    names = {benchmark.name for benchmark in suite.benchmarks}
    assert f"{NODE}::test_plain" not in names
    assert f"{NODE}::test_side" in names
    cases = {case.label: case.parameters for case in suite.cases() if case.benchmark.name == f"{NODE}::test_params"}
    assert cases[f"{NODE}::test_params[a-work-10]"] == {"n": "10", "kind": "'a'", "call": "work"}
    assert len(cases) == 4
    assert suite.broken == {"tests/bench/test_broken.py": "ModuleNotFoundError: No module named 'no_such_module'"}


def test_a_launch_has_all_that_the_decision_reads(launcher, suite, request_):
    """The side's own package is measured; number and count of samples are chosen once and then kept."""
    first = run(launcher, suite, "test_side", request_)
    assert first.status == "ok", first.reason
    launch = first.launch
    assert launch.number > 1
    # A call of a microsecond: the watching of a single one must not count in the cost of a sample.
    assert 8 <= len(launch.samples_ns) == len(launch.cpu_ns) == len(launch.nivcsw) <= 12
    assert min(launch.cpu_ns) > 0
    assert first.canary_ns > 0
    assert first.canary_of == sys.version
    assert first.peak_rss_bytes > 1e6
    again = run(launcher, suite, "test_side", msgspec.structs.replace(request_, number=7, count=5))
    assert (again.launch.number, len(again.launch.samples_ns)) == (7, 5)


def test_a_files_launches_of_a_round_share_its_collection(tmp_path):
    """Each is a process with fixtures of its own; the next round collects again, and a lone test does not."""
    code = "import os\nopen('imports', 'a').write('x')\nSEEN = []\n\n\n" + "".join(
        f"def test_{name}(benchmark):\n    SEEN.append(1)\n    assert len(SEEN) == 1\n    benchmark(int)\n\n\n"
        for name in "ab"
    )
    lone = "def test_c(benchmark):\n    benchmark(int)\n"
    write(tmp_path / "tree", {"pytest.ini": QUIET, "test_it.py": code, "test_lone.py": lone})
    launcher = PytestLauncher(sys.executable, tmp_path / "tree", ["test_it.py", "test_lone.py"], tmp_path / "scratch")
    suite = launcher.discover()
    assert suite.shared == {"test_it.py::test_a": "test_it.py", "test_it.py::test_b": "test_it.py"}
    assert min(suite.imports["test_it.py"], suite.imports["test_lone.py"]) > 0.05
    (tmp_path / "tree/imports").unlink()
    request = Request(number=1, count=1, module="test_it.py")
    outcomes = [launcher.run(case, request, seed=seed) for seed in (1, 2) for case in suite.cases()[:2]]
    launcher.end_server()
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4
    assert (tmp_path / "tree/imports").read_text() == "xx"


def test_rounds_of_the_tests_own_are_kept(launcher, suite):
    """pedantic's iterations; its hundred rounds are averaged in groups. A timer of its own has no CPU time."""
    launch = run(launcher, suite, "test_pedantic").launch
    assert (launch.number, len(launch.samples_ns), len(launch.nivcsw)) == (3, 12, 12)
    own = run(launcher, suite, "test_own_timer", Request(number=2, count=3))
    assert own.launch.samples_ns == [1e9 / 2] * 3
    assert (own.launch.cpu_ns, own.canary_ns) == ([], 0)


@pytest.mark.parametrize(
    ("name", "status", "word"),
    [
        ("test_skipped", "skipped", "no need"),
        ("test_expected", "skipped", "not yet"),
        ("test_raises", "failed", "ZeroDivisionError"),
        ("test_gone", "failed", ""),
    ],
)
def test_an_ending_without_a_time(launcher, suite, request_, name, status, word):
    """As asv's: skipped by itself, or failed with the exception's line."""
    case = next(iter(suite.cases()))
    case = type(case)(benchmark=case.benchmark, param=None, label=f"{NODE}::{name}")
    outcome = launcher.run(case, request_)
    assert outcome.status == status
    assert word in outcome.reason
    assert "\n" not in outcome.reason


@pytest.mark.parametrize("module", ["", NODE])
def test_what_a_test_loads(launcher, module):
    """The side's modules, from where they are; head's own tests are on both sides and no difference."""
    loaded = launcher.loaded(f"{NODE}::test_side", f"{NODE}::test_side", module=module)
    assert Path(loaded.modules["tinylib"]).is_relative_to(launcher.environment["PYTHONPATH"])
    assert not any(Path(file).is_relative_to(launcher.root) for file in loaded.modules.values())
    assert launcher.loaded(f"{NODE}::test_raises", f"{NODE}::test_raises", module=module) is None
    launcher.end_server()


@pytest.mark.parametrize("module", ["", NODE])
def test_a_traced_test_says_what_ran(launcher, module):
    """pytest-benchmark starts git for a name of the commit, which runs nothing of the project's; nor does a fork."""
    ran = launcher.loaded(f"{NODE}::test_side", f"{NODE}::test_side", ["__init__.py"], module=module).ran
    launcher.end_server()
    functions = {function for file, function in ran if Path(file).parent.name == "tinylib"}
    assert functions == {"<module>", "work"}


def test_tests_within_the_package_are_the_checkouts(site, tmp_path):
    """Beside the environment's package: tests below it are taken from the checkout, everything else is not."""
    inside = "from tinylib import SIDE\nfrom tinylib.tests.here import HERE\n\n\ndef test_it(benchmark):\n"
    files = {
        "pytest.ini": QUIET,
        "tinylib/__init__.py": "SIDE = 'checkout'\n",
        "tinylib/tests/__init__.py": "",
        "tinylib/tests/conftest.py": "import tinylib\n",
        "tinylib/tests/here.py": "HERE = 1\n",
        "tinylib/tests/test_in.py": f"{inside}    assert benchmark(str, SIDE) == 'base'\n",
    }
    write(tmp_path / "tree", files)
    launcher = PytestLauncher(
        sys.executable, tmp_path / "tree", ["tinylib/tests"], tmp_path / "scratch", {"PYTHONPATH": str(site)}
    )
    (case,) = launcher.discover().cases()
    outcome = launcher.run(case, Request(number=1, count=1))
    assert outcome.status == "ok", outcome.reason


def test_importing_the_checkouts_file_by_path_fails(site, tmp_path):
    """No path can be corrected where a test loads the file itself."""
    code = (
        "import importlib.util\nimport sys\nfrom pathlib import Path\n\n"
        "spec = importlib.util.spec_from_file_location('tinylib', Path('tinylib/__init__.py').resolve())\n"
        "sys.modules['tinylib'] = importlib.util.module_from_spec(spec)\n\n\n"
        "def test_it(benchmark):\n    benchmark(int)\n"
    )
    write(tmp_path / "tree", {"pytest.ini": QUIET, "tinylib/__init__.py": "", "test_in.py": code})
    launcher = PytestLauncher(
        sys.executable, tmp_path / "tree", ["test_in.py"], tmp_path / "scratch", {"PYTHONPATH": str(site)}
    )
    (case,) = launcher.discover().cases()
    assert launcher.run(case, Request(number=1, count=1)).status == "void"


def test_an_environment_without_pytest_is_refused(tmp_path):
    """With the remedy."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    (tmp_path / "tests").mkdir()
    launcher = PytestLauncher(
        str(tmp_path / "bare/bin/python"), tmp_path, ["tests"], tmp_path / "scratch", remedy="the remedy"
    )
    with pytest.raises(SuiteError, match=r"pytest-benchmark.*the remedy"):
        launcher.discover()


def test_a_conftest_that_fails_is_one_line(tmp_path):
    """pytest itself cannot start."""
    write(tmp_path, {"conftest.py": "import no_such_module\n", "test_it.py": ""})
    launcher = PytestLauncher(sys.executable, tmp_path, ["test_it.py"], tmp_path / "scratch")
    with pytest.raises(SuiteError, match="no_such_module") as caught:
        launcher.discover()
    assert os.linesep not in str(caught.value)


def test_errors_of_warnings_hide_no_ending(tmp_path):
    """pytest-benchmark warns where nothing was timed: a skipped test is skipped, with its own reason."""
    code = "import pytest\n\n\ndef test_it(benchmark):\n    pytest.skip('needs a library')\n"
    settings = QUIET + "filterwarnings = error\n"
    write(tmp_path / "tree", {"pytest.ini": settings, "test_a.py": code})
    launcher = PytestLauncher(sys.executable, tmp_path / "tree", ["test_a.py"], tmp_path / "scratch")
    (case,) = launcher.discover().cases()
    outcome = launcher.run(case, Request(number=1, count=1))
    assert (outcome.status, outcome.reason) == ("skipped", "needs a library")


def test_a_marker_alone_is_no_benchmark_of_pytest_benchmark(tmp_path):
    """CodSpeed's is; the message says what to do."""
    code = "import pytest\n\n\n@pytest.mark.benchmark\ndef test_it(): ...\n"
    write(tmp_path / "tree", {"pytest.ini": QUIET, "test_a.py": code})
    launcher = PytestLauncher(sys.executable, tmp_path / "tree", ["test_a.py"], tmp_path / "scratch")
    with pytest.raises(SuiteError, match="1 test with the marker `benchmark`, and none with the fixture"):
        launcher.discover()
    with pytest.raises(UnknownNameError, match=r"nothing to measure: test_a\.py has tests with the marker"):
        discover(tmp_path / "tree")
