"""The verdict: what it concludes, its exit statuses, and its text."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Benchmark, Case
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import card, markdown, page, render, sarif
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import ORDER, Cause, Location
from rocattn_profiling.gate.rule.pairs import Decision


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


def test_a_regression_beside_a_lost_benchmark_names_both(entry, result_of):
    """The stronger statement leads, the other is in the same sentence."""
    result = result_of([entry("slow", "regression", 1.31), entry("lost", "missing", reason="gone")])
    assert "slower by 31 %" in result.sentence
    assert "1 of 2 existing benchmarks was not compared" in result.sentence


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
    if overall == "problem":
        assert "w.toml:3: the waiver of x expired" in result.sentence
    assert "problem: w.toml:3: the waiver of x expired" in card.text(result)


def test_problems_fail_an_invalid_session_too(entry, result_of):
    """That the machine moved does not excuse a waiver that nobody looked after."""
    assert result_of([entry("a", "pass")], invalid="the machine moved", problems=["x"]).status == 1


def test_a_regression_without_a_ratio_is_one(entry, result_of):
    """A spill where base had none, a backend that is not selected any more: worst of all, and named by architecture."""
    spill = entry("kernel", "regression", decision=None, metric="audit", arch="gfx942", reason="43 registers spilled")
    result = result_of([entry("slow", "regression", 3.0), spill, entry("fine", "pass")])
    assert (result.verdict, result.status) == ("regression", 1)
    assert result.sentence.startswith("1 of 2 benchmarks is slower by 200 %, 1 of 1 exact metric is worse (")
    assert [e.label for e in result.entries] == ["kernel", "slow", "fine"]
    assert "43 registers spilled" in card.text(result)


def test_counts_are_no_times(entry, result_of):
    """Half as many barriers again are not 50 % slower; sizes and times have a percentage each."""
    barriers = [entry(f"kernel{n}", "regression", 1.5, metric="audit", arch="gfx942") for n in range(3)]
    counts = result_of([*barriers, entry("same", "pass", metric="audit"), entry("b", "pass")])
    assert counts.sentence == "3 of 4 exact metrics are worse (cause not found)"
    sizes = [entry("m", "regression", 1.031, metric="peakmem"), entry("n", "pass", metric="mem")]
    mixed = result_of([*barriers, *sizes, entry("slow", "regression", 1.2), entry("fast", "pass")])
    assert mixed.sentence == (
        "1 of 4 benchmarks is slower by 20 %, 1 of 4 benchmarks is larger by 3.1 %, 3 of 3 exact metrics are worse "
        "(cause not found)"
    )


def test_exact_metrics_alone_do_not_make_a_gate_green(entry, result_of):
    """Machine code that did not change says nothing about benchmarks of which none ran; without any it is a result."""
    code = entry("37 kernels", "pass", metric="audit", arch="gfx942")
    assert result_of([code, entry("b", "skipped"), entry("c", "broken")]).status == 3
    assert result_of([code]).verdict == "pass"
    assert result_of([code, entry("gone", "waived", decision=None)]).verdict == "pass"  # accepted to be removed
    assert result_of([code, entry("gone", "removed")]).status == 3
    assert result_of([code, entry("b", "pass")]).sentence == "all 2 results are no worse"
    assert result_of([entry("b", "pass")]).sentence == "1 benchmark is within 5 %"
    faster = entry("c", "improvement", 0.8, metric="audit", arch="gfx942")
    assert result_of([faster]).sentence == "1 of 1 result improved"
    assert result_of([code, faster]).sentence == "1 of 2 results no worse, 1 improved"


def test_the_text_says_why_and_what_is_waived(entry, result_of):
    """Causes with their place, waivers and a ceiling that was broken stand beside the numbers."""
    cause = Cause(kind="machine code", text="12 VGPRs spilled", location=Location(path="kernels/a.hip", line=7))
    result = result_of([
        entry("worse", "regression", 1.5, causes=[cause], reason="above its ceiling"),
        entry("known", "waived", 1.2, waiver="costs a compare (#41, up to x1.3)"),
    ])  # fmt: skip
    text = card.text(result)
    assert "  cause:  machine code: 12 VGPRs spilled (kernels/a.hip:7)\n" in text
    assert "1 accepted by a waiver\n" in text
    assert "    costs a compare (#41, up to x1.3)\n" in text
    assert "  above its ceiling\n" in text
    assert max(map(len, text.splitlines())) < 120


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
    assert "by 50 % (cause not found); 1 of 2 existing benchmarks was not" in card.text(result).splitlines()[0]
    gone = result_of([entry(long, "missing", reason="it is gone")])
    assert gone.sentence.endswith(": it is gone")


def test_a_value_of_nothing_shows_no_ratio(entry, result_of):
    """Of 0 against 5 there is none: a ratio of 1 would be read as "no change"."""
    none = Decision(id="a", verdict="inconclusive", rounds_used=5, reason="a value of 0 has no ratio to compare")
    result = result_of([entry("a", "inconclusive", unit="things", base=0.0, head=5.0, decision=none)])
    assert "0 things -> 5 things  ratio unknown" in card.text(result)
    assert "| 0 things | 5 things | unknown |  |" in markdown.comment(result)
    (found,) = json.loads(sarif.to_sarif(result))["runs"][0]["results"]
    assert "ratio" not in found["properties"]


def test_broken_benchmarks_with_one_reason_share_it(entry, result_of):
    """Each reason once, with their number and as many names as a line has room for."""
    entries = [entry(f"b.C.track_nan({i})", "broken", reason="nan is no value") for i in range(41)]
    entries.insert(20, entry("b.time_other", "broken", reason="SystemExit: 3"))
    text = card.text(result_of([*entries, entry("x", "pass")]))
    assert "\n41 broken on both sides: nan is no value\n  b.C.track_nan(0), b.C.track_nan(1)" in text
    assert "\n1 broken on both sides: SystemExit: 3\n  b.time_other\n" in text


def test_an_invalid_session_is_inconclusive(entry, result_of):
    """When the machine moved, nothing passes."""
    result = result_of([entry("a", "pass")], invalid="the machine, not the code, changed speed")
    assert (result.verdict, result.status) == ("inconclusive", 0)
    assert "does not count" in result.sentence


def test_a_suite_that_did_not_run_on_both_sides_has_no_ratio(entry, result_of):
    """x1.000 would read as "measured, and nothing changed"; exact metrics are none of its benchmarks."""
    result = result_of([entry("a", "missing", None), entry("k", "pass", metric="audit")], launches=2)
    assert "all benchmarks together: unknown, as none was compared" in render.suite_ratio(result)
    assert "all benchmarks together: x1.000" in render.suite_ratio(result_of([entry("a", "pass")], launches=2))


def test_the_text_is_worst_first_and_shows_what_is_open(entry, result_of):
    """Regressions, then what could not be measured, then the undecided, each with its reason; passes are counted."""
    result = result_of([
        entry("fine", "pass"),
        entry("open", "inconclusive"),
        entry("worse", "regression", 1.5),
        entry("lost", "failed", reason="ValueError: x"),
        entry("faster", "improvement", 0.5),
    ], notes=["a note"])  # fmt: skip
    text = card.text(result)
    places = [
        text.index(f"\n{part}") for part in ("slower: worse", "fails on head: lost", "1 undecided: why", "1 improved")
    ]
    assert places == sorted(places)
    assert "2 ms -> 3 ms  x1.500 [1.455, 1.545]" in text
    assert "ValueError: x" in text
    assert "1 regression, 1 failed, 1 undecided, 1 improvement, 1 pass; 10 processes\n" in text
    assert text.endswith("note: a note\n")


def test_what_runs_nothing_that_changed_has_no_ratio(entry, result_of):
    """It was measured once: the sentence counts it apart, and no form shows a ratio or an interval of it."""
    decision = Decision(id="a", verdict="pass", reason="no changed code runs in it")
    alone = [entry(f"a{n}", "pass", decision=decision) for n in range(3)]
    assert result_of(alone).sentence == "3 benchmarks run no changed code"
    assert result_of(alone[:1]).sentence == "1 benchmark runs no changed code"
    assert "unknown, as none was compared" in render.suite_ratio(result_of(alone))
    mixed = result_of([*alone, entry("b", "pass")])
    assert mixed.sentence == "all 4 benchmarks pass: 1 within 5 %, 3 run no changed code"
    open_ = result_of([*alone, entry("b", "pass"), entry("c", "inconclusive")])
    assert open_.sentence == "4 of 5 benchmarks pass: 1 within 5 %, 3 run no changed code; 1 undecided"
    assert result_of([*alone, entry("c", "inconclusive")]).sentence == (
        "3 of 4 benchmarks run no changed code; 1 undecided"
    )
    assert render.change(alone[0]) == "2 ms -> 2 ms, runs no changed code"
    fine, untouched = page.view(mixed).quiet
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
    benchmark = Benchmark(name="b", type=kind, unit=unit, version="1", params=[], param_names=[])
    assert bool(verdict.ungated(Case(benchmark=benchmark, param=None, label="b"))) is larger


def test_a_benchmark_without_a_launch_is_no_pass(entry, result_of):
    """Time ran out before it: not measured, status 3; a regression that was found all the same is status 1."""
    passed, late = entry("a", "pass"), entry("b", "unreached")
    assert (result_of([passed, late]).verdict, result_of([passed, late]).status) == ("not measured", 3)
    assert result_of([late]).status == 3
    assert result_of([passed, late, entry("c", "regression", 1.2)]).status == 1
    assert result_of([passed, late]).counts == {"unreached": 1, "pass": 1}
    assert conclude([passed, late], "", tolerance=0.05, limit_s=600)[1].endswith("; 1 not reached in 10 min")
