"""How far benchmarks are from a change by the names that their sources call, and whether they run it."""

import sys
from types import SimpleNamespace

import pytest

from rocattn_profiling.asv.launch import Launcher
from rocattn_profiling.gate.explain.files import FileChange
from rocattn_profiling.gate.explain.reach import Reach, difference, distances, reach_of
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.selftest import SelftestOptions

from ..conftest import case_of

LIBRARY = """
\"\"\"A library.\"\"\"
from functools import lru_cache

LIMIT = 3


def inner(x):
    \"\"\"Return.\"\"\"
    return x + 1


def outer(x):
    return inner(x)


class Thing:
    SIZE = 4

    def __init__(self):
        self.x = LIMIT

    def method(self):
        return outer(self.x)


def apart():
    return 0
"""
SUITE = """
import library


class Suite:
    def setup(self):
        self.x = library.apart()

    def time_inner(self):
        library.inner(1)

    def time_outer(self):
        library.outer(1)

    def time_method(self):
        self.thing.method()


def time_new():
    library.Thing()


def time_nothing():
    pass
"""


@pytest.fixture
def trees(tmp_path):
    """Two checkouts of a library with a suite."""
    for side in ("base", "head"):
        (tmp_path / side / "suite").mkdir(parents=True)
        (tmp_path / side / "library.py").write_text(LIBRARY)
        (tmp_path / side / "suite/bench.py").write_text(SUITE)
    return tmp_path


def changed(trees, old, new, path="library.py"):
    """Plant a change on head."""
    before, after = trees / "base" / path, trees / "head" / path
    text = after.read_text()
    assert old in text
    after.write_text(text.replace(old, new))
    return FileChange(path, before, after)


def by_name(trees, *changes):
    """Distances by the benchmark's last name."""
    names = ["Suite.time_inner", "Suite.time_outer", "Suite.time_method", "time_new", "time_nothing"]
    cases = [case_of(f"bench.{name}") for name in names]
    calls = distances(changes, trees / "head", [trees / "head/suite"], cases)
    return calls and {label.rpartition(".")[2]: number for label, number in calls.items()}


def test_a_benchmark_is_as_far_as_the_calls_between(trees):
    """A set-up counts as one call more; what calls nothing that differs has no distance."""
    change = changed(trees, "return x + 1", "return x + 1.0")
    assert difference(change).functions == {"inner"}
    assert by_name(trees, change) == {
        "time_inner": 1, "time_outer": 2, "time_method": 3, "time_new": None, "time_nothing": None,
    }  # fmt: skip
    apart = changed(trees, "return 0", "return 1")
    assert by_name(trees, apart) == {
        "time_inner": 1, "time_outer": 2, "time_method": 2, "time_new": None, "time_nothing": None,
    }  # fmt: skip


def test_constants_and_constructors_are_followed(trees):
    """`Thing()` calls ``Thing.__init__``, which reads the constant."""
    assert by_name(trees, changed(trees, "LIMIT = 3", "LIMIT = 4"))["time_new"] == 2
    change = changed(trees, "self.x = LIMIT", "self.x = LIMIT + 1")
    assert difference(change).functions == {"Thing.__init__"}


def test_an_import_that_came_calls_nothing(trees):
    """Who uses it differs, too; a name that both sides define, and differently, is a difference for its users."""
    came = changed(trees, "LIMIT = 3", "import library\n\nLIMIT = 3")
    assert difference(came).names == {"library"}
    assert set(by_name(trees, came).values()) == {None}
    assert by_name(trees, changed(trees, "LIMIT = 3", "LIMIT = 4"))["time_new"] == 2


def test_comments_docstrings_and_moved_lines_are_no_difference(trees):
    """Neither is a file of tests or documentation."""
    change = changed(trees, "Return.", "Return more.\n\n    And more.")
    assert not any(difference(change))
    change = changed(trees, "def outer(x):", "# words\ndef outer(x):  # more")
    assert not any(difference(change))
    (trees / "head/tests").mkdir()
    (trees / "head/tests/test_x.py").write_text("x = 1\n")
    new = FileChange("tests/test_x.py", trees / "base/tests/test_x.py", trees / "head/tests/test_x.py")
    assert set(by_name(trees, new, change).values()) == {None}


@pytest.mark.parametrize("text", ["print(1)\n", "def broken(:\n"])
def test_where_names_say_nothing_there_are_no_distances(trees, text):
    """A statement that only does something, or a file that does not parse."""
    change = changed(trees, "LIMIT = 3\n", f"LIMIT = 3\n{text}")
    assert by_name(trees, change) is None
    native = FileChange("x.c", trees / "base/x.c", trees / "head/x.c")
    assert difference(native) is None
    assert by_name(trees, native) is None


IMPORTS = """
from library import apart, inner as nearest, outer


class Shared:
    def setup(self):
        self.run = outer


class Derived(Shared):
    functions = [outer]

    def time_it(self):
        self.run(1)


def time_apart():
    apart()


def time_renamed():
    nearest(1)


def time_listed(case):
    case(1)


time_listed.params = [outer]
"""
TESTS = """
import library
import pytest
from library import apart, inner, outer

CASES = {"outer": outer}


@pytest.fixture
def prepared(basis):
    return basis


class TestGroup:
    def test_method(self, benchmark):
        benchmark(outer, 1)


def test_direct(benchmark):
    benchmark(inner, 1)


def test_lambda(benchmark):
    benchmark(lambda: library.inner(1))


def test_pedantic(benchmark):
    benchmark.pedantic(inner, args=(1,), rounds=3)


@pytest.mark.parametrize("case", [1, 2])
def test_table(benchmark, case):
    benchmark(CASES["outer"], case)


def test_fixture(benchmark, prepared):
    benchmark(len, prepared)


def test_apart(benchmark):
    benchmark(apart)
"""


def of_names(trees, change, shared, names):
    """Distances of benchmarks by their names; those that are not known are left out."""
    return distances([change], trees / "head", shared, [case_of(name) for name in names])


def test_names_imported_together_do_not_call_each_other(trees):
    """An import, a class's bases and attributes, and parameters of a function each lead to what they name."""
    (trees / "head/suite/imports.py").write_text(IMPORTS)
    change = changed(trees, "return x + 1", "return x + 1.0")
    names = ["Derived.time_it", "time_apart", "time_renamed", "time_listed", "time_made_later"]
    calls = of_names(trees, change, [trees / "head/suite"], [f"imports.{name}" for name in names])
    assert calls == {
        "imports.Derived.time_it": 2, "imports.time_apart": None, "imports.time_renamed": 2, "imports.time_listed": 2,
    }  # fmt: skip


@pytest.mark.parametrize("named", ["tests", "tests/test_it.py"])
def test_tests_are_found_by_their_node_ids(trees, named):
    """Whatever a test hands to the fixture, and through fixtures of conftest.py; what is not found stays unknown."""
    folder = trees / "head/tests"
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS)
    conftest = "import library, pytest\n\n\n@pytest.fixture\ndef basis():\n    return [library.outer(1)]\n"
    (folder / "conftest.py").write_text(conftest)
    change = changed(trees, "return x + 1", "return x + 1.0")
    calls = {
        "TestGroup::test_method": 2, "test_direct": 1, "test_lambda": 1, "test_pedantic": 1, "test_table": 3,
        "test_fixture": 4, "test_apart": None,
    }  # fmt: skip
    names = [f"tests/test_it.py::{name}" for name in (*calls, "test_made_later")]
    shared = [trees / "head" / named]
    expected = {f"tests/test_it.py::{name}": number for name, number in calls.items()}
    assert of_names(trees, change, shared, [*names, "python work.py"]) == expected


def test_settings_of_the_gate_are_nothing_that_runs(trees):
    """What `gate init` writes leaves the change in a function known."""
    change = changed(trees, "return x + 1", "return x + 1.0")
    written = [
        FileChange(path, trees / "base" / path, trees / "head" / path)
        for path in (".github/workflows/rocattn-gate.yml", ".rocattn/thresholds.toml")
    ]
    assert Reach({each.path: each for each in (change, *written)}).known
    assert by_name(trees, *written, change)["time_inner"] == 1


def traced(trees, reach, benchmark):
    """Trace a benchmark on both sides."""
    return [
        Launcher(
            sys.executable, trees / "head/suite", trees / "scratch" / side, {"PYTHONPATH": str(trees / side)}
        ).loaded(f"bench.{benchmark}", f"bench.{benchmark}", reach.files)
        for side in ("base", "head")
    ]


def ran(trees, change, benchmark):
    """Whether a benchmark runs a change."""
    reach = Reach({change.path: change})
    return reach.ran(*traced(trees, reach, benchmark))


def test_a_traced_call_shows_whether_a_difference_runs(trees):
    """Also in a set-up, and through any number of calls."""
    change = changed(trees, "return x + 1", "return x + 1.0")
    assert ran(trees, change, "Suite.time_outer")
    assert not ran(trees, change, "time_nothing")
    assert ran(trees, changed(trees, "return 0", "return 1"), "Suite.time_inner")


def test_a_constant_that_differs_is_run_by_the_import(trees):
    """Nobody can tell who reads it."""
    assert ran(trees, changed(trees, "LIMIT = 3", "LIMIT = 4"), "time_nothing")


def test_what_a_trace_cannot_see_is_not_known(trees):
    """Another process, and files that act without being called."""
    start = "import subprocess, sys\n    subprocess.run([sys.executable, '-c', ''], check=True)\n    library.Thing()"
    changed(trees, "library.Thing()", start, "suite/bench.py")
    change = changed(trees, "return x + 1", "return x + 1.0")
    assert ran(trees, change, "time_new") is None
    assert ran(trees, change, "time_nothing") is False
    data = FileChange("settings.json", trees / "base/settings.json", trees / "head/settings.json")
    reach = Reach({change.path: change, data.path: data})
    assert reach.ran(*traced(trees, reach, "time_nothing")) is None
    assert reach.ran(None, None) is None


def test_a_cause_is_located_in_a_function_that_ran(trees):
    """Not at the first line that differs; a file none of whose differing functions ran has no lines."""
    (trees / "base/other.py").write_text("def f():\n    return 1\n")
    (trees / "head/other.py").write_text("def f():\n    return 2\n")
    other = FileChange("other.py", trees / "base/other.py", trees / "head/other.py")
    changed(trees, "return x + 1", "return x + 1.0")
    change = changed(trees, "self.x = LIMIT", "self.x = 2 * LIMIT")
    reach = Reach({change.path: change, other.path: other})
    sides = traced(trees, reach, "time_new")
    (lines,) = reach.started_in(change, *sides)
    assert change.cause().location.line == 10
    assert change.cause([lines]).location.line in lines
    assert LIBRARY.splitlines()[change.cause([lines]).location.line - 1].strip() == "self.x = LIMIT"
    assert reach.started_in(other, *sides) is None


def test_some_runs_measure_everything(trees):
    """One commit against itself, one that learns, and what calls do not show; equal code needs no calls."""

    def reach(change, options=None, *, same=False, python="3.12.1", differing=(), kept=("base", "head")):
        shas = ("a", "a") if same else ("a", "b")
        return reach_of(SimpleNamespace(
            options=options or Options(), trees={side: trees / side for side in kept}, differing=differing,
            revisions={side: SimpleNamespace(tree=sha) for side, sha in zip(kept, shas, strict=False)},
            facts={side: SimpleNamespace(python=python) for side in ("base", "head")}, changes={change.path: change},
        ))  # fmt: skip

    comment = changed(trees, "def outer(x):", "# words\ndef outer(x):  # more")
    assert reach(comment).nothing_differs
    assert reach(comment, python="3.10.13").nothing_differs
    assert reach(comment, same=True) is None
    assert reach(comment, Options(learn=True)) is None
    assert reach(comment, SelftestOptions()) is None
    assert reach(comment, differing={"numpy": ("1", "2")}) is None
    assert reach(comment, kept=()) is None
    code = changed(trees, "return x + 1", "return x + 1.0")
    assert not reach(code).nothing_differs
    assert reach(code, python="3.10.13") is None
    assert reach(FileChange("x.c", trees / "base/x.c", trees / "head/x.c")) is None
