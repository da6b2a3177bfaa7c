"""The first plan of a suite that takes long to import: by what is listed, by earlier listings, by its sources."""

import sys
from types import SimpleNamespace

import pytest

from rocattn_profiling.asv.launch import Launcher, PartialListing, Request, Suite
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning import listing
from rocattn_profiling.gate.planning.listing import from_source, listed_suites
from rocattn_profiling.revisions.asv_config import SuiteError

SOURCE = b"""
import asv_helpers
SIZES = asv_helpers.sizes()
class _Base:
    params = [["a", "b"], [1, 2, 3]]
    def time_shared(self, x, y): ...
    def setup(self, x, y): ...
class First(_Base):
    def time_own(self, x, y): ...
    def peakmem_own(self, x, y): ...
class Second(_Base):
    params = "x", "y z"
    def time_shared(self, x): ...
class Computed:
    params = SIZES
    def track_it(self, n): ...
def time_alone(n): ...
time_alone.params = [10, 20]
def helper(): ...
"""
TESTS = b"""
import pytest
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_timed(benchmark, n, kind): ...
def test_plain(): ...
class TestGroup:
    def test_inner(self, benchmark): ...
"""
SLOW = "import os, time\nwhile not os.path.exists(os.environ['GO_ON']):\n    time.sleep(0.02)\n"
BENCH = "class C:\n    params = ['x', 'y']\n    def time_it(self, x): ...\n    def time_other(self, x): ...\n"


def labels(listed):
    """Return the labels of all cases."""
    return [case.label for case in Suite(benchmarks=listed.benchmarks).cases()]


def test_a_source_shows_its_benchmarks():
    """Functions by their names, inherited ones too, and parameters where they are written down."""
    listed = labels(from_source("m", "", SOURCE))
    assert sum(label.startswith("m.First.time_shared(") for label in listed) == 6
    assert sum(label.startswith("m.First.") for label in listed) == 18
    assert [label for label in listed if "Second" in label] == [
        "m.Second.time_shared('x')", "m.Second.time_shared('y z')",
    ]  # fmt: skip
    assert [label for label in listed if "Computed" in label] == ["m.Computed.track_it"]
    assert [label for label in listed if "alone" in label] == ["m.time_alone(10)", "m.time_alone(20)"]
    assert len(listed) == 18 + 2 + 1 + 2
    assert len(labels(from_source("test_m.py", "", TESTS))) == 3
    assert from_source("m", "", b"def time_x(:\n").benchmarks == []


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def slow_suite(tmp_path, cache, monkeypatch):
    """Return a function that lists a suite one module of which imports until a plan is said; it returns the plans."""
    monkeypatch.setattr(listing, "_FIRST_PLAN_S", 0.3)
    monkeypatch.setattr(listing, "_KNOWN_PLAN_S", 0.1)
    folder = tmp_path / "suite"
    folder.mkdir()
    for name, text in {"bench_a": BENCH, "bench_b": SLOW + BENCH, "bench_c": BENCH}.items():
        (folder / f"{name}.py").write_text(text)
    go_on = tmp_path / "go on"

    def run():
        go_on.unlink(missing_ok=True)
        said, steps = [], []
        variables = {"GO_ON": str(go_on)}
        context = SimpleNamespace(
            options=Options(), repo=tmp_path, suite="suite", trees={}, list_base=lambda: None,
            launchers={side: Launcher(sys.executable, folder, tmp_path / side, variables) for side in ("base", "head")},
            say=lambda line: (said.append(line), go_on.touch()),
        )  # fmt: skip
        suites = listed_suites(context, Request(), Options().policy(), steps.append)
        return suites, said, steps

    return run, folder


def test_a_plan_comes_while_a_module_imports(slow_suite):
    """What both sides have listed, each from its end, and the rest by its source; the next run knows it all at once."""
    run, folder = slow_suite
    suites, said, steps = run()
    assert [len(suites.sides[side].cases()) for side in ("base", "head")] == [12, 12]
    assert [line.split()[1] for line in said] == ["12"]
    assert "bench_b" in said[0]
    assert max(step.total for step in steps) == 3
    _, again, _ = run()
    assert [line.split()[1] for line in again] == ["12"]
    assert "bench_b" not in again[0]
    (folder / "bench_b.py").write_text(SLOW + BENCH + "def time_more(): ...\n")
    _, changed, _ = run()
    assert [line.split()[1] for line in changed] == ["13"]
    assert "bench_b" in changed[0]


class Listed:
    """A launcher that lists nothing, at once."""

    shared = ()

    def __init__(self, error=None):
        self.error = error

    def discover(self, **_order):
        """Answer at once."""
        if self.error:
            raise self.error
        return Suite(benchmarks=[])

    def listed_so_far(self):
        """Return nothing."""
        return PartialListing()


def test_what_lists_at_once_has_no_first_plan(tmp_path, cache):
    """And an error of one side is the run's."""
    said = []
    context = SimpleNamespace(
        options=Options(), repo=tmp_path, suite="", list_base=lambda: None, say=said.append,
        launchers={"base": Listed(), "head": Listed()},
    )  # fmt: skip
    assert listed_suites(context, Request(), Options().policy(), len).before is None
    assert said == []
    context.launchers["base"] = Listed(error=SuiteError("no suite"))
    with pytest.raises(SuiteError, match="no suite"):
        listed_suites(context, Request(), Options().policy(), len)


def test_half_a_line_is_not_a_listing(tmp_path):
    """The worker writes while the gate reads."""
    (tmp_path / "suite").mkdir()
    launcher = Launcher(sys.executable, tmp_path / "suite", tmp_path / "scratch")
    assert launcher.listed_so_far() == PartialListing()
    lines = '{"importing":"a","benchmarks":[],"imports":{"":0}}\n{"importing":"b","bench'
    (tmp_path / "scratch/listing.jsonl").write_text(lines)
    part = launcher.listed_so_far()
    assert (part.modules, part.importing) == ({}, "a")
