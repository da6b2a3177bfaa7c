"""The benchmarks of both sides, and what a file's source shows of them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocattn_profiling.asv.launch import Launcher, Outcome, Suite
from rocattn_profiling.gate.planning.listing import listed_suites, shows
from rocattn_profiling.revisions.asv_config import SuiteError

TESTS = b"""
def test_plain(): ...
class TestGroup:
    def test_inner(self, benchmark): ...
"""


def test_a_source_shows_what_it_holds():
    """Of asv functions and methods by their names, of pytest-benchmark those that take its fixture."""
    for source in (b"def time_alone(n): ...\n", b"class _Base:\n    def peakmem_own(self): ...\n"):
        assert shows(source, "asv")
        assert not shows(source, "pytest")
    assert shows(TESTS, "pytest")
    assert not any(
        shows(source, kind) for source in (b"def test_x(): ...", b"def time_x(:\n") for kind in ("asv", "pytest")
    )


def test_a_module_that_never_ends_its_import_is_named(tmp_path, monkeypatch):
    """The last one that the worker began."""

    def hang(_launcher, request, *_, **__):
        Path(request["progress"]).write_text("bench_a\nbench_b\n")
        return {}, Outcome(status="timeout", reason="too long")

    monkeypatch.setattr(Launcher, "_start", hang)
    with pytest.raises(SuiteError, match=r"too long \(while bench_b was imported\)$"):
        Launcher(sys.executable, tmp_path / "suite", tmp_path / "scratch").discover()


def test_an_error_of_one_side_is_the_run_s():
    """Both sides are listed at the same time, each in its own thread."""

    def fail():
        raise SuiteError("no suite")

    lists = SimpleNamespace(discover=lambda: Suite(benchmarks=[]))
    context = SimpleNamespace(list_base=lambda: None, launchers={"base": lists, "head": lists})
    assert listed_suites(context, len).before is None
    context.launchers["base"] = SimpleNamespace(discover=fail)
    with pytest.raises(SuiteError, match="no suite"):
        listed_suites(context, len)
