"""Outcomes of a verification as JUnit XML: what a CI server counts, and what it shows of each."""

from xml.etree import ElementTree as ET

import pytest

from rocattn_profiling.measure.records import Check
from rocattn_profiling.verify import report as verify_report
from rocattn_profiling.verify.outcomes import CaseOutcome, Verification

RIGHT, WRONG = (
    Check(
        ok=ok, max_abs_error=error, max_rel_error=1.0, rms_error=1.0, naive_max_abs_error=1e-7, factor=2.0,
        rows_checked=1, rows=1,
    )
    for ok, error in ((True, 1e-7), (False, 0.5))
)  # fmt: skip


def outcome(case, backend="cpu", **facts):
    """One outcome of the family "accuracy"."""
    return CaseOutcome(case=case, backend=backend, options=[], family="accuracy", seconds=0.25, **facts)


@pytest.fixture
def suites():
    """The parsed file of two backends: everything right, and one of each other kind."""
    found = Verification(
        outcomes=[
            outcome("a", check=RIGHT), outcome("a", "odd", check=WRONG), outcome("b", check=RIGHT),
            outcome("b", "odd", error="ValueError: no <b>"), outcome("c", "odd", skipped="no float64 & no <i>"),
            outcome("d", "odd", check=RIGHT, problem="a NaN leaked"), outcome("e", "odd", check=RIGHT),
            outcome("f", "odd", check=WRONG, symptom="the scale is missing\x1b"),
        ]
    )  # fmt: skip
    report = verify_report.build(
        found, cases=6, level="core", seed=1, unavailable={}, stand_ins=[], architectures={},
        again=lambda o: f"rocattn verify {o.case}", started=0.0, seconds=9.5,
    )  # fmt: skip
    root = ET.fromstring(verify_report.to_xml(report).encode())  # noqa: S314 - made in this test
    assert root.get("time") == "9.500"
    return {suite.get("name"): suite for suite in root}


def test_each_outcome_is_counted_once_by_what_became_of_it(suites):
    """A wrong number or a leak is a failure, an exception an error; what a backend does not support is skipped."""
    names = ("tests", "failures", "errors", "skipped")
    assert [suites["cpu"].get(name) for name in names] == ["2", "0", "0", "0"]
    assert [suites["odd"].get(name) for name in names] == ["6", "3", "1", "1"]
    assert (suites["cpu"].get("time"), suites["odd"].get("time")) == ("0.500", "1.500")
    kinds = {test.get("name"): [child.tag for child in test] for test in suites["odd"]}
    assert kinds == {"a": ["failure"], "b": ["error"], "c": ["skipped"], "d": ["failure"], "e": [], "f": ["failure"]}
    assert [(test.get("classname"), test.get("time")) for test in suites["cpu"]] == [("cpu.accuracy", "0.250")] * 2


def test_what_is_wrong_says_how_and_how_to_see_it_again(suites):
    """The symptom where it is known, else the fault; below it the command; control characters are none of XML's."""
    tests = {test.get("name"): test for test in suites["odd"]}
    assert "off by 5.00e-01" in tests["a"][0].get("message")
    assert tests["b"][0].get("message") == "ValueError: no <b>"
    assert tests["c"][0].get("message") == "no float64 & no <i>"
    assert tests["d"][0].get("message") == "a NaN leaked"
    assert tests["f"][0].get("message").startswith("the scale is missing")
    assert "off by" in tests["f"][0].text
    for case in "abdf":
        assert f"again: rocattn verify {case}" in tests[case][0].text
