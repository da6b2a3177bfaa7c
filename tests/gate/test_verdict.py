"""The verdict: what it concludes, its exit statuses, and its text."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import card, markdown, page, render, sarif
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import ORDER
from rocattn_profiling.gate.rule.pairs import Decision

from ..screens import line
from .conftest import case_of, make_entry


@pytest.mark.parametrize(
    ("found", "overall", "status", "strict"),
    [
        (["pass", "pass"], "pass", 0, 0),
        (["pass", "improvement", "new", "skipped"], "pass", 0, 0),
        (["pass", "removed"], "not measured", 3, 3),
        (["pass", "inconclusive"], "inconclusive", 0, 2),
        (["regression", "inconclusive", "pass"], "regression", 1, 1),
        (["regression", "failed"], "regression", 1, 1),
        (["pass", "failed"], "not measured", 3, 3),
        (["pass", "missing", "inconclusive"], "not measured", 3, 3),
        (["skipped", "new"], "not measured", 3, 3),
        (["broken"], "not measured", 3, 3),
        (["ungated"], "not measured", 3, 3),
        (["waived"], "not measured", 3, 3),
        (["waived", "ungated", "removed"], "not measured", 3, 3),
        (["waived", "pass"], "pass", 0, 0),
        (["waived", "inconclusive"], "inconclusive", 0, 2),
        (["waived", "regression"], "regression", 1, 1),
        ([], "not measured", 3, 3),
    ],
)
def test_exit_statuses(entry, result_of, found, overall, status, strict):
    """0 pass, 1 regression, 2 undecided under a strict policy, 3 when not everything was measured or nothing."""
    result = result_of([entry(f"b{i}", s, 1.2 if s == "regression" else 1.0) for i, s in enumerate(found)])
    assert (result.verdict, result.status, result.strict_status) == (overall, status, strict)


BARRIERS = [make_entry(f"kernel{n}", "regression", 1.5, metric="audit", arch="gfx942") for n in range(3)]
CODE = make_entry("37 kernels", "pass", metric="audit", arch="gfx942")
FASTER = make_entry("c", "improvement", 0.8, metric="audit", arch="gfx942")
SPILL = make_entry("kernel", "regression", decision=None, metric="audit", arch="gfx942", reason="43 registers spilled")
UNTOUCHED = [
    make_entry(f"a{n}", "pass", decision=Decision(id="a", verdict="pass", reason="no changed code runs in it"))
    for n in range(3)
]
PASS, OPEN, SLOW = make_entry("b", "pass"), make_entry("o", "inconclusive"), make_entry("slow", "regression", 1.2)


@pytest.mark.parametrize(
    ("entries", "facts", "sentence"),
    [
        ([PASS], {}, snapshot("1 benchmark is within 5 %")),
        ([make_entry("slow", "regression", 1.31), make_entry("lost", "missing", reason="gone")], {}, snapshot(
            "1 of 2 benchmarks is slower by 31 % (cause not found); 1 of 2 existing benchmarks was not compared"
        )),
        # A spill where base had none, a backend that is not selected any more.
        ([make_entry("slow", "regression", 3.0), SPILL, PASS], {}, snapshot(
            "1 of 2 benchmarks is slower by 200 %, 1 of 1 exact metric is worse (cause not found)"
        )),
        # Half as many barriers again are not 50 % slower; sizes and times have a percentage each.
        ([*BARRIERS, make_entry("same", "pass", metric="audit"), PASS], {}, snapshot(
            "3 of 4 exact metrics are worse (cause not found)"
        )),
        ([*BARRIERS, make_entry("m", "regression", 1.031, metric="peakmem"), make_entry("n", "pass", metric="mem"),
          SLOW, PASS], {}, snapshot(
              "1 of 4 benchmarks is slower by 20 %, 1 of 4 benchmarks is larger by 3.1 %, 3 of 3 exact metrics are "
              "worse (cause not found)"
          )),
        ([CODE, PASS], {}, snapshot("all 2 results are no worse")),
        ([FASTER], {}, snapshot("1 of 1 result improved")),
        ([CODE, FASTER], {}, snapshot("1 of 2 results no worse, 1 improved")),
        # What was measured once is counted apart.
        (UNTOUCHED[:1], {}, snapshot("1 benchmark runs no changed code")),
        (UNTOUCHED, {}, snapshot("3 benchmarks run no changed code")),
        ([*UNTOUCHED, PASS], {}, snapshot("all 4 benchmarks pass: 1 within 5 %, 3 run no changed code")),
        ([*UNTOUCHED, PASS, OPEN], {}, snapshot(
            "4 of 5 benchmarks pass: 1 within 5 %, 3 run no changed code; 1 undecided"
        )),
        ([*UNTOUCHED, OPEN], {}, snapshot("3 of 4 benchmarks run no changed code; 1 undecided")),
        ([PASS], {"invalid": "the machine, not the code, changed speed"}, snapshot(
            "The session does not count: the machine, not the code, changed speed"
        )),
        ([PASS], {"problems": ["w.toml:3: the waiver of x expired"]}, snapshot(
            "No regression, but the waivers do not hold: w.toml:3: the waiver of x expired"
        )),
        ([PASS], {"problems": ["w.toml:3: the waiver of x expired.", "more"]}, snapshot(
            "No regression, but the waivers do not hold: w.toml:3: the waiver of x expired (1 more)"
        )),
    ],
)  # fmt: skip
def test_the_sentence_counts_each_kind_apart(result_of, entries, facts, sentence):
    """The strongest statement leads, what was not compared is in the same sentence."""
    assert result_of(entries, **facts).sentence == sentence


def test_a_change_without_a_ratio_is_worst_of_all(result_of):
    """It has no number to sort by."""
    result = result_of([make_entry("slow", "regression", 3.0), SPILL, PASS])
    assert [e.label for e in result.entries] == ["kernel", "slow", "b"]


@pytest.mark.parametrize(
    ("found", "overall", "status"),
    [
        (["pass"], "problem", 1),
        (["pass", "inconclusive"], "problem", 1),
        (["regression"], "regression", 1),
        (["failed", "pass"], "not measured", 3),
        (["waived"], "not measured", 3),
        ([], "not measured", 3),
    ],
)
def test_problems_fail_what_would_be_green(entry, result_of, found, overall, status):
    """An expired or unused waiver fails, strict or not; what is worse stays the verdict."""
    entries = [entry(f"b{i}", s, 1.2) for i, s in enumerate(found)]
    result = result_of(entries, problems=["w.toml:3: the waiver of x expired"])
    assert (result.verdict, result.status, result.strict_status) == (overall, status, status)
    assert line(card.text(result), "problem:") == snapshot("problem: w.toml:3: the waiver of x expired")


def test_problems_fail_an_invalid_session_too(entry, result_of):
    """That the machine moved does not excuse a waiver that nobody looked after."""
    moved = result_of([entry("a", "pass")], invalid="the machine moved")
    assert (moved.verdict, moved.status) == ("inconclusive", 0)
    assert result_of([entry("a", "pass")], invalid="the machine moved", problems=["x"]).status == 1


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ([CODE, make_entry("b", "skipped"), make_entry("c", "broken")], 3),
        ([CODE], 0),
        ([CODE, make_entry("gone", "waived", decision=None)], 0),  # accepted to be removed
        ([CODE, make_entry("gone", "removed")], 3),
    ],
)
def test_exact_metrics_alone_do_not_make_a_gate_green(result_of, entries, status):
    """Machine code that did not change says nothing about benchmarks of which none ran; without any it is a result."""
    assert result_of(entries).status == status


def test_the_text_cannot_command_the_terminal_or_the_workflow(entry, result_of):
    """Labels and reasons are one line of visible characters: no escapes, no forged lines, no workflow commands."""
    bad = "::add-mask::x\n::error::y \x1b[31m\u202e##[group]z"
    lines = card.text(
        result_of([
            entry(bad, "regression", 1.5, reason=bad, unit=bad), entry(bad, "new", reason=bad),
            entry(bad, "waived", waiver=bad),
        ], notes=[bad], problems=[bad])
    ).splitlines()  # fmt: skip
    assert not any(line.strip().startswith("::") for line in lines)
    assert not any("##[" in line or "\x1b" in line or "\u202e" in line for line in lines)


def test_the_text_cuts_names_as_the_comment_does(entry, result_of):
    """A label of thousands of characters leaves one line a name, in every status, and in the sentence."""
    entries = [entry(f"{status}{'x' * 3000}", status, 1.5, reason="why") for status in ORDER]
    lines = card.text(result_of(entries)).splitlines()
    for status in set(ORDER) - {"pass"}:
        assert sum(f"{status}{'x' * (159 - len(status))}…" in line for line in lines) == 1
    assert max(map(len, lines)) < 700


def test_a_long_name_leaves_the_sentence_its_end(entry, result_of):
    """A parameter's repr may have pages: how much slower, and what else is wrong, still stands after it."""
    long = f"a.time_x({'[1, 2], ' * 500})"
    result = result_of([entry(long, "regression", 1.5), entry("lost", "failed", reason="no")])
    gone = result_of([entry(long, "missing", reason="it is gone")])
    print("ZZ", repr(card.text(result).splitlines()[0]), repr(gone.sentence))


def test_a_value_of_nothing_shows_no_ratio(entry, result_of):
    """Of 0 against 5 there is none: a ratio of 1 would be read as "no change"."""
    none = Decision(id="a", verdict="inconclusive", rounds_used=5, reason="a value of 0 has no ratio to compare")
    result = result_of([entry("a", "inconclusive", unit="things", base=0.0, head=5.0, decision=none)])
    assert line(card.text(result), "->") == snapshot("a  0 things -> 5 things  ratio unknown")
    assert line(markdown.comment(result), "unknown") == snapshot(
        "| <code>a</code> | undecided | 0 things | 5 things | unknown |  |"
    )
    (found,) = json.loads(sarif.to_sarif(result))["runs"][0]["results"]
    assert "ratio" not in found["properties"]


def test_a_suite_that_did_not_run_on_both_sides_has_no_ratio(entry, result_of):
    """x1.000 would read as "measured, and nothing changed"; exact metrics are none of its benchmarks."""
    assert render.suite_ratio(result_of([entry("a", "missing", None), CODE], launches=2)) == snapshot(
        "all benchmarks together: unknown, as none was compared"
    )
    assert render.suite_ratio(result_of([PASS], launches=2)) == snapshot(
        "all benchmarks together: x1.000; canary: x1.000"
    )


def test_what_runs_nothing_that_changed_has_no_ratio(result_of):
    """It was measured once: no form shows a ratio or an interval of it."""
    assert render.suite_ratio(result_of(UNTOUCHED)) == snapshot(
        "all benchmarks together: unknown, as none was compared"
    )
    assert render.change(UNTOUCHED[0]) == "2 ms -> 2 ms, runs no changed code"
    fine, untouched = page.view(result_of([*UNTOUCHED, PASS])).quiet
    assert (len(fine.rows), fine.why, len(untouched.rows), untouched.why) == (1, "", 3, "runs no changed code")
    assert {(row.ratio, row.interval, row.rounds) for row in untouched.rows} == {("", "", 0)}


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1.5e9, "ns", "1.5 s"), (2.34e6, "ns", "2.34 ms"), (999.0, "ns", "999 ns"), (3 * 2**20, "bytes", "3 MiB"),
     (0.25, "ns", "0.25 ns"), (17.0, "ulp", "17 ulp"), (None, "ns", "-"), (999_999.0, "ns", "1 ms"),
     (1e12, "ns", "1000 s"), (1_048_000.0, "bytes", "1023 KiB"), (12345.0, "cycles", "12345 cycles"),
     (0.0, "registers", "0 registers"),
     (1e30, "x", "1e+30 x"), (43.0, "", "43")],
)  # fmt: skip
def test_quantities_are_readable(value, unit, shown):
    """Times and sizes have the unit that keeps them short."""
    assert render.quantity(value, unit) == shown


def test_a_verdict_is_read_back_as_written(entry, result_of, tmp_path):
    """JSON on disk holds everything."""
    result = result_of([entry("a", "regression", 1.2), entry("b", "new", reason="base: x")])
    path = verdict.write(result, tmp_path / "deep" / "verdict.json")
    (tmp_path / "link.json").symlink_to(path)
    assert verdict.read(path) == verdict.read(tmp_path / "link.json") == result


def test_reading_what_is_no_verdict_is_one_line(entry, result_of, tmp_path):
    """Missing, endless, foreign and future files are told apart."""
    with pytest.raises(RocattnError, match="cannot read"):
        verdict.read(tmp_path / "none.json")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for endless in (Path("/dev/zero"), pipe, tmp_path):
        with pytest.raises(RocattnError, match=f"cannot read the gate's verdict {endless}: not a regular file"):
            verdict.read(endless)
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(RocattnError, match="not a verdict"):
        verdict.read(other)
    for unlike in (b'{"notes": ["\xff"]}', b'{"notes": ' + b"[" * 100_000):
        other.write_bytes(unlike)
        with pytest.raises(RocattnError, match="not a verdict"):
            verdict.read(other)
    future = msgspec.structs.replace(result_of([entry("a", "pass")]), schema=99)
    with pytest.raises(RocattnError, match="schema 99"):
        verdict.read(verdict.write(future, other))
    other.write_text('{"schema": 99, "outcome": "of a later time"}')
    with pytest.raises(RocattnError, match="schema 99"):
        verdict.read(other)


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
    assert bool(verdict.ungated(case_of("b", kind, unit))) is larger


def test_a_benchmark_without_a_launch_is_no_pass(entry, result_of):
    """Time ran out before it: not measured, status 3; a regression that was found all the same is status 1."""
    passed, late = entry("a", "pass"), entry("b", "unreached")
    assert (result_of([passed, late]).verdict, result_of([passed, late]).status) == ("not measured", 3)
    assert result_of([late]).status == 3
    assert result_of([passed, late, entry("c", "regression", 1.2)]).status == 1
    assert result_of([passed, late]).counts == {"unreached": 1, "pass": 1}
    assert conclude([passed, late], "", tolerance=0.05, limit_s=600)[1].endswith("; 1 not reached in 10 min")
