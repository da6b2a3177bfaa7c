"""The plan of a run: how many benchmarks seem to call changed code, and how long they may take."""

from types import SimpleNamespace

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.launch import Request, Suite
from rocattn_profiling.gate.explain.files import FileChange
from rocattn_profiling.gate.explain.reach import Reach
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning.listing import ListedSuites
from rocattn_profiling.gate.planning.plan import Plan
from rocattn_profiling.gate.rule.policy import Policy

from ..conftest import case_of

NAMES = ("test_direct", "test_through", "test_apart", "test_made_later")
TESTS = """\
import tinylib


def test_direct(benchmark):
    benchmark(tinylib.work, 1)


def test_through(benchmark):
    benchmark(lambda: tinylib.twice(1))


def test_apart(benchmark):
    benchmark(len, "text")
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return a function that plans tests of pytest-benchmark whose library changed, by the tests' names."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path / "cache"))
    for side, result in (("base", "n"), ("head", "n + 0")):
        (tmp_path / side / "tests").mkdir(parents=True)
        text = f"def work(n):\n    return {result}\n\n\ndef twice(n):\n    return 2 * work(n)\n"
        (tmp_path / side / "tinylib.py").write_text(text)
        (tmp_path / side / "tests/test_bench.py").write_text(TESTS)
    change = FileChange("tinylib.py", tmp_path / "base/tinylib.py", tmp_path / "head/tinylib.py")
    context = SimpleNamespace(
        repo=tmp_path, suite="tests", options=Options(quick=True), changes={change.path: change},
        trees={side: tmp_path / side for side in ("base", "head")},
        launchers={"head": SimpleNamespace(shared=(tmp_path / "head/tests",))},
    )  # fmt: skip

    def plan(*names, commands=(), better=""):
        context.options = Options(quick=True, commands=commands)
        suite = Suite(benchmarks=[case_of(f"tests/test_bench.py::{name}", better=better).benchmark for name in names])
        suites = ListedSuites({"base": suite, "head": suite}, None)
        return Plan(context, suites, suite.cases(), Request(), Policy(), Reach(context.changes))

    return plan


@pytest.mark.parametrize(
    ("limit_s", "longest_s", "end"),
    [
        (0, 60, ""),
        (0, 60.1, "; use --max-time or --bench to shorten it"),
        (600, 60, "; --max-time ends it after 10 min"),
    ],
)
def test_a_run_of_a_minute_needs_no_shortening(planned, limit_s, longest_s, end):
    """The upper end of the estimate counts; a limit that was given is said in any case."""
    plan = planned(NAMES[2])
    plan.estimate_s = (10.0, longest_s)
    assert plan.line(limit_s).endswith(f"it does not appear to call changed code{end}")


def test_a_command_that_was_never_timed_has_no_high_end(planned):
    """What the gate only guesses is no promise; results that a program reports were timed when they were listed."""
    name = f"tests/test_bench.py::{NAMES[2]}"
    plan = planned(NAMES[2], commands=(name,))
    assert (plan.unknown, plan.listed().unknown) == (True, True)
    assert plan.line(0) == snapshot(
        "1 benchmark, 1 s at least: the first run shows how long a command takes; it does not appear to call changed "
        "code; use --max-time or --bench to shorten it"
    )
    assert plan.line(0).endswith("; use --max-time or --bench to shorten it")
    reported = planned(NAMES[2], commands=(name,), better="smaller")
    assert (reported.unknown, "at least" in reported.line(0)) == (False, False)


def test_a_plan_says_what_the_sources_show(planned):
    """Tests by their node ids; one whose source is not found is unknown, and may take as long as one that calls it."""
    known = planned(*NAMES[:3])
    assert known.line(0).endswith("; 2 of them appear to call changed code")
    assert planned(NAMES[0], NAMES[2]).line(0).endswith("; 1 of them appears to call changed code")
    assert planned(NAMES[2]).line(0).endswith("; it does not appear to call changed code")
    plan = planned(*NAMES)
    listed = {case.label.rpartition("::")[2]: (case.calls, case.reached) for case in plan.listed().benchmarks}
    assert listed == dict(zip(NAMES, [(1, True), (2, True), (None, False), (None, None)], strict=True))
    assert "changed code" not in plan.line(0)
    assert [case.label.rpartition("::")[2] for case in plan.tracing.most] == [NAMES[0], NAMES[1], NAMES[3]]
    assert [case.label.rpartition("::")[2] for case in plan.tracing.fewest] == list(NAMES[:2])
