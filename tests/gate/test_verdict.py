"""The verdict: what it concludes, its exit statuses, and its text."""

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.gate import render, verdict
from rocattn_profiling.gate.look import Policy
from rocattn_profiling.gate.pairs import Decision
from rocattn_profiling.gate.verdict import Entry, GateResult, SideFacts, conclude
from rocattn_profiling.measure.asv_launch import Benchmark, Case
from rocattn_profiling.measure.records import Machine
from rocattn_profiling.measure.revisions import Revision


def entry(label, status, ratio=1.0, **facts):
    """One entry with a decision if its status is one."""
    decision = None
    if status in verdict.JUDGED:
        decision = Decision(
            id=label,
            verdict=status,
            ratio=ratio,
            ratio_low=ratio * 0.97,
            ratio_high=ratio * 1.03,
            rounds_used=5,
            reason="why",
        )
        facts = {"base": 2.0e6, "head": 2.0e6 * ratio, "unit": "ns", **facts}
    return Entry(label=label, name=label, status=status, decision=decision, **facts)


def result_of(entries, **facts):
    """A whole verdict around entries."""
    overall, sentence = conclude(entries, facts.get("invalid", ""))
    side = SideFacts(
        revision=Revision(name="HEAD", sha="ab" * 20, tree="cd" * 20, date_ms=0, subject="a subject"),
        python="3.11",
        packages={},
    )
    machine = Machine(name="m", cpu="c", cores=2, memory_bytes=1, os="o", python="3", numpy="2")
    order = verdict.ORDER
    return GateResult(
        verdict=overall, sentence=sentence, created_ms=1, base=side, head=side, machine=machine,
        policy=Policy(),
        quick=True, seed=1, launches=10, suite="benchmarks",
        entries=sorted(entries, key=lambda e: order.index(e.status)),
        counts={s: n for s in order if (n := sum(e.status == s for e in entries))}, **facts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "overall", "status", "strict"),
    [
        (["pass", "pass"], "pass", 0, 0),
        (["pass", "improvement", "new", "removed", "skipped"], "pass", 0, 0),
        (["pass", "inconclusive"], "inconclusive", 0, 2),
        (["regression", "inconclusive", "pass"], "regression", 1, 1),
        (["regression", "failed"], "regression", 1, 1),
        (["pass", "failed"], "not measured", 3, 3),
        (["pass", "missing", "inconclusive"], "not measured", 3, 3),
        (["skipped", "new"], "not measured", 3, 3),
        (["broken"], "not measured", 3, 3),
        (["ungated"], "not measured", 3, 3),
        ([], "not measured", 3, 3),
    ],
)
def test_exit_statuses(found, overall, status, strict):
    """0 pass, 1 regression, 2 undecided under a strict policy, 3 when not everything was measured or nothing."""
    result = result_of([entry(f"b{i}", s, 1.2 if s == "regression" else 1.0) for i, s in enumerate(found)])
    assert (result.verdict, result.status, result.strict_status) == (overall, status, strict)


def test_a_regression_beside_a_lost_benchmark_names_both():
    """The stronger statement leads, the other is in the same sentence."""
    result = result_of([entry("slow", "regression", 1.31), entry("lost", "missing", reason="gone")])
    assert "slow by 31 %" in result.sentence
    assert "1 could not be measured on head" in result.sentence


def test_an_invalid_session_is_inconclusive():
    """When the machine moved, nothing passes."""
    result = result_of([entry("a", "pass")], invalid="the machine, not the code, changed speed")
    assert (result.verdict, result.status) == ("inconclusive", 0)
    assert "does not count" in result.sentence


def test_the_text_is_worst_first_and_shows_what_is_open():
    """Regressions, then what could not be measured, then the undecided, each with its reason; passes last."""
    result = result_of([
        entry("fine", "pass"),
        entry("open", "inconclusive"),
        entry("worse", "regression", 1.5),
        entry("lost", "failed", reason="ValueError: x"),
        entry("faster", "improvement", 0.5),
    ], notes=["a note"])  # fmt: skip
    text = render.text(result)
    places = [
        text.index(f"\n{status}") for status in ("regression:", "failed:", "inconclusive:", "improvement:", "pass: 1")
    ]
    assert places == sorted(places)
    assert "2 ms -> 3 ms, x1.500 [1.455, 1.545] after 5 rounds" in text
    assert "ValueError: x" in text
    assert "1 regression, 1 failed, 1 inconclusive, 1 improvement, 1 pass (10 processes, seed 1)" in text
    assert text.endswith("note: a note\n")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1.5e9, "ns", "1.5 s"), (2.34e6, "ns", "2.34 ms"), (999.0, "ns", "999 ns"), (3 * 2**20, "bytes", "3 MiB"),
     (0.25, "ns", "0.25 ns"), (17.0, "ulp", "17 ulp"), (None, "ns", "-")],
)  # fmt: skip
def test_quantities_are_readable(value, unit, shown):
    """Times and sizes have the unit that keeps them short."""
    assert render.quantity(value, unit) == shown


def test_a_verdict_is_read_back_as_written(tmp_path):
    """JSON on disk holds everything."""
    result = result_of([entry("a", "regression", 1.2), entry("b", "new", reason="base: x")])
    assert verdict.read(verdict.write(result, tmp_path / "deep" / "verdict.json")) == result


def test_reading_what_is_no_verdict_is_one_line(tmp_path):
    """Missing, foreign and future files are told apart."""
    with pytest.raises(RocattnError, match="cannot read"):
        verdict.read(tmp_path / "none.json")
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(RocattnError, match="not a verdict"):
        verdict.read(other)
    future = msgspec.structs.replace(result_of([entry("a", "pass")]), schema=99)
    with pytest.raises(RocattnError, match="schema 99"):
        verdict.read(verdict.write(future, other))


@pytest.mark.parametrize(
    ("kind", "unit", "larger"),
    [
        ("track", "GB/s", True),
        ("track", "TFLOPS", True),
        ("track", "bytes", False),
        ("track", "ulp", False),
        ("track", "unit", False),
        ("time", "seconds", False),
    ],
)
def test_rates_are_not_judged_by_smaller_is_better(kind, unit, larger):
    """asv counts a smaller value as better, always; a tracked rate would be judged the wrong way round."""
    benchmark = Benchmark(name="b", type=kind, unit=unit, version="1", params=[], param_names=[])
    assert verdict.larger_is_better(Case(benchmark=benchmark, param=None, label="b")) is larger
