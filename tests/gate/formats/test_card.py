"""The card on the terminal: one block for each cause, short enough for a screen."""

import datetime as dt
import html
import re

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate import waivers
from rocattn_profiling.gate.formats import card, markdown, page, sarif
from rocattn_profiling.gate.groups import by_cause, by_reason, common_part, repeat
from rocattn_profiling.gate.model import Cause, Location
from rocattn_profiling.gate.rule.pairs import Decision

from ...screens import line, screen

TODAY = dt.date(2026, 11, 20)
AGAIN = "rocattn gate run --base a --head b"
LINE = Cause(
    kind="source", text="a/b.py:7 changed (+1 -1)", location=Location(path="a/b.py", line=7),
    diff=("- return x", "+ return sorted(x)"),
)  # fmt: skip


@pytest.fixture
def open_entry(entry):
    """Return a function that makes an undecided entry: ``open_entry(label, code, rounds)``."""

    def make(label, code="few_rounds", rounds=0, **facts):
        decision = Decision(
            id=label, verdict="inconclusive", ratio=1.01, ratio_low=0.96, ratio_high=1.06, rounds_used=20,
            undecided=Reason(code, f"its own words about {label}", "do this"), rounds_needed=rounds,
        )  # fmt: skip
        return entry(label, "inconclusive", decision=decision, name=label.partition("(")[0], **facts)

    return make


def slow(entry, count, cause=LINE):
    """Return regressions of one benchmark at so many parameters, by one cause."""
    return [
        entry(f"m.C.time_x({n})", "regression", 1.2 + n / 100, name="m.C.time_x", causes=[cause]) for n in range(count)
    ]


def test_a_card_is_worst_first_and_says_why(rich):
    """Each status with its reason, its change and what accepts it; passes are counted."""
    assert card.text(rich, 100) == snapshot("""\
REGRESSION: 1 of 11 benchmarks is slower by 31 %, 1 of 2 exact metrics is worse (1 cause); 3 of 11
  existing benchmarks were not compared, 1 waiver did not hold; not compared: 1 benchmark broken on
  both sides (no), 1 benchmark skipped (no GPU), 1 benchmark not judged (shown), 1 more
base ababababab a subject
head ababababab a subject
2 regressions, 1 failed, 1 missing, 1 removed, 1 undecided, 1 waived, 1 broken, 2 improvements, 1
  ungated, 1 new, 1 skipped, 1 pass; 10 processes
problem: .rocattn/waivers.toml:12: the waiver of x time expired on 2026-01-01

worse: 2 results
  flash f16 [audit, gfx942]          0 registers -> 43 registers
  bench_a.Class.time_slow(1, 'cpu')         2 ms ->      2.62 ms  x1.310 [1.271, 1.349]
  43 registers are spilled
  cause:  machine code: 12 VGPRs spilled (kernels/hip/flash attention.hip:118)
  accept: Rocattn-Accept: bench_a.Class.time_slow(1, 'cpu') | time | 1.35 | REASON

fails on head: bench_a.Class.time_lost
  ValueError: x

missing on head: bench_a.Class.time_gone
  not there
  accept: Rocattn-Accept: bench_a.Class.time_gone | removed | REASON

removed: bench_a.Class.time_old
  gone
  accept: Rocattn-Accept: bench_a.Class.time_old | removed | REASON

1 undecided: why
  bench_a.Class.time_open  2 ms -> 2.08 ms  x1.040 [1.009, 1.071]

1 accepted by a waiver
  bench_a.Class.time_known  2 ms -> 2.16 ms  x1.080 [1.048, 1.112]
    costs a compare (#41, up to x1.1)

2 improved
  flash f32 [audit, gfx942]  2 ms -> 1.8 ms  x0.900 [0.873, 0.927]
  bench_a.Class.time_fast  2 ms -> 1.4 ms  x0.700 [0.679, 0.721]

1 broken on both sides: no
  bench_a.Class.time_both

1 skipped: no GPU
  bench_a.Class.time_skip

1 new: bench_a.Class.time_new
1 not judged: bench_a.Class.time_rate

note: the environments differ: numpy 2.4.5 -> 2.4.6
note: a note
""")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_small_verdict_fits_20_lines(entry, result_of, width):
    """Twelve benchmarks, one of them slower at seven parameters: the changed lines and the command once."""
    result = result_of([*slow(entry, 7), *(entry(f"m.C.time_{n}", "pass") for n in range(5))], again=AGAIN)
    text = card.text(result, width)
    assert text.count("\n") <= 20
    assert (
        text.count("+ return sorted(x)")
        == text.count("a/b.py:7 changed")
        == text.count(f"repeat: {AGAIN} --bench")
        == 1
    )
    assert max(map(len, text.splitlines())) <= width


def test_each_cause_shows_the_line_that_accepts_it(entry, result_of):
    """After the command, in every form: the label, and the interval's upper end rounded up; read as it stands."""
    other = Cause(kind="source", text="c.py:1 changed", location=Location(path="c.py", line=1))
    exact = entry("flash f16", "regression", 1.5, metric="audit", arch="gfx942", causes=[other])
    memory = entry("m.peakmem_x(1, 'a | b')", "regression", 1.2, metric="peakmem", causes=[other])
    result = result_of([*slow(entry, 3), exact, memory, entry("m.lost", "failed", reason="x")], again=AGAIN)
    first, second = lines = [  # 1.22 and 1.2, each by 1.03
        "Rocattn-Accept: a/b.py:7 | cause | 1.26 | REASON",
        "Rocattn-Accept: m.peakmem_x(1, 'a | b') | peakmem | 1.24 | REASON",
    ]
    text = card.text(result)
    assert re.findall(r"^  repeat: \S.*\n  accept: (.*)$", text, re.MULTILINE) == [second, first]
    comment = html.unescape(re.sub(r"</?code>|&#8203;", "", markdown.comment(result)))
    assert re.findall(r"^- repeat: \S.*\n- accept: (.*)$", comment, re.MULTILINE) == [second, first]
    assert [part.accept for part in page.view(result).parts[:2]] == [second, first]
    assert f"<h3>Accept</h3><code>{first}</code>" in html.unescape(page.html(result))
    after, _ = waivers.apply(result.entries, waivers.load(None, [("abc", line) for line in lines]), TODAY)
    accepted = {e.label for e in after if e.status == "waived"}
    assert accepted == {*(f"m.C.time_x({n})" for n in range(3)), "m.peakmem_x(1, 'a | b')"}
    none = msgspec.structs.replace(result.head, revision=None, interpreter="after/bin/python")
    assert "accept:" not in card.text(msgspec.structs.replace(result, head=none))


@pytest.mark.parametrize("label", ["x" * 300, "a\nb", "a\u202eb", "a ", "a | time | 2 | b"])
def test_a_line_that_would_accept_nothing_is_not_shown(entry, result_of, label):
    """A label that is too long to copy, or that the parser reads otherwise."""
    assert "accept:" not in card.text(result_of([entry(label, "regression", 1.2)], again=AGAIN))


@pytest.mark.parametrize(("high", "ceiling"), [(1.29, "1.29"), (1.2901, "1.30"), (1.15, "1.15"), (None, "inf")])
def test_the_ceiling_suffices_and_is_no_larger(entry, high, ceiling):
    """Hundredths, whatever a float makes of them."""
    decision = Decision(id="x", verdict="regression", ratio=1.12, ratio_low=1.1, ratio_high=high)
    line = waivers.trailer([entry("x", "regression", decision=decision)])
    assert line == f"Rocattn-Accept: x | time | {ceiling} | REASON"


def test_one_command_for_all_causes_is_printed_once(entry, result_of):
    """Exact metrics are all read off again by the same command; the changed line comes before the machine code."""
    code = Cause(kind="machine code", text="2 -> 3 barriers in the hot loop", about="barriers")
    facts = {"metric": "audit", "reason": code.text}
    worse = [entry(f"k{n}", "regression", 1.5, arch=f"gfx{n}", causes=[LINE, code], **facts) for n in range(8)]
    other = entry("other", "regression", 1.2, arch="gfx9", causes=[code], **facts)
    result = result_of([*worse, other], again=AGAIN, patterns=["Quick"])
    text = card.text(result)
    assert text.count("repeat: ") == markdown.summary(result).count("repeat: ") == 1
    assert line(text, "--bench") == snapshot("repeat: rocattn gate run --base a --head b --bench Quick")
    assert text.count("a/b.py:7") == text.count("cause:  a/b.py:7 changed") == 1
    assert [text.count(f"  {place}  machine code: 2 -> 3 barriers") for place in ("cause:", "      ")] == [1, 1]
    assert "and 3 more, x1.500\n" in text


def test_a_large_suite_fits_one_screen(entry, open_entry, result_of):
    """300 benchmarks, 3 slower, 40 undecided for three reasons: a remedy for each reason, passes counted."""
    undecided = [open_entry(f"m.D.time_{n}(1)", ("few_rounds", "noise", "rounds")[n % 3], 30 + n) for n in range(40)]
    passed = [entry(f"m.E.time_{n}", "pass") for n in range(257)]
    text = card.text(result_of([*slow(entry, 3), *undecided, *passed], again=AGAIN))
    assert text.count("\n") <= 40
    assert text.count(" undecided: ") == 3
    assert "257 pass" in text


def test_regressions_are_grouped_by_the_changed_line(entry):
    """One line, whatever else is on the way; another line, another status and an unknown cause are apart."""
    other = Cause(kind="source", text="c.py:1 changed", location=Location(path="c.py", line=1))
    code = Cause(kind="machine code", text="12 VGPRs spilled")
    entries = [
        entry("a", "regression", 1.5, causes=[code, LINE]), entry("b", "regression", 1.4, causes=[LINE, other]),
        entry("c", "regression", 1.3, causes=[other]), entry("d", "regression", 1.2),
        entry("e", "failed", causes=[LINE]), entry("f", "pass"),
    ]  # fmt: skip
    groups = by_cause(entries)
    assert [[member.label for member in group.entries] for group in groups] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert groups[0].causes == [code, LINE, other]


def test_undecided_ones_share_a_remedy(open_entry):
    """Likely slower ones apart; where each would need other rounds, half and all are named."""
    few = [open_entry(f"m.x({n})", rounds=10 * n) for n in (1, 2, 9)]
    groups = by_reason([*few, open_entry("y", "noise"), open_entry("z", rounds=30, suspect=True)], "inconclusive")
    assert [len(group.entries) for group in groups] == [1, 3, 1]
    assert [group.reason.code for group in groups] == ["few_rounds", "few_rounds", "noise"]
    assert all(number in groups[1].reason.remedy for number in ("20", "90"))
    assert groups[2].reason.text == "its own words about y"


@pytest.mark.parametrize(
    ("measured", "others", "pattern"),
    [
        (["m.C.time_x"], [], "time_x"),
        (["m.C.time_x"], ["m.D.time_x"], "C.time_x"),
        (["m.C.time_x", "m.C.time_y"], [], "C"),
        (["m.C.time_x", "m.C.time_y"], ["m.C.time_z"], "'time_x|time_y'"),
        (["a/test_b.py::test_x"], ["a/test_b.py::test_y"], "test_x"),
        (["m.C.time_x; rm -rf /"], [], ""),
        (["a.py::test_x; rm -rf /"], [], ""),
    ],
)
def test_the_command_measures_the_group_alone(entry, result_of, measured, others, pattern):
    """A short pattern that finds no other benchmark; a name that is none of Python's is never in a command."""
    entries = [entry(name, "regression", 1.2) for name in measured]
    result = result_of([*entries, *(entry(name, "pass") for name in others)], again=AGAIN)
    assert repeat(result, entries) == (f"{AGAIN} --bench {pattern}" if pattern else AGAIN)


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["m.C.time_x(1)", "m.C.time_x(2)"], "m.C.time_x"),
        (["m.C.time_x", "m.C.time_xy"], "m.C."),
        (["m.C.time_x"], "m.C.time_x"),
        (["a", "b"], ""),
        (["tests/bench.py::test_a[1.5]", "tests/bench.py::test_a[1.6]"], "tests/bench.py::"),
        (["a.py::C::test_x", "a.py::C::test_y"], "a.py::C::"),
    ],
)
def test_names_share_whole_parts(names, common):
    """Up to a dot or the parameters, never in the middle of a word."""
    assert common_part(names) == common


def test_a_ratio_that_is_no_number_stands_nowhere(entry, result_of):
    """An undecided pair whose interval is 0.08 to 21759 has no ratio in any form, the JSON apart."""
    reason = Reason("noise", "its launches differ too much", "make it less noisy")
    decision = Decision(
        id="a", verdict="inconclusive", ratio=121.34, ratio_low=0.08, ratio_high=21759.0, rounds_used=5,
        reason=f"undecided: {reason.line}", undecided=reason,
    )  # fmt: skip
    result = result_of([entry("a", "inconclusive", decision=decision)])
    for shown in (card.text(result), markdown.comment(result), sarif.to_sarif(result)):
        assert "121.3" not in str(shown)
        assert "21759" not in str(shown)
    assert screen(card.text(result)) == snapshot("""\
UNDECIDED: 0 of 1 benchmark within 5 %; 1 undecided
base ababababab a subject
head ababababab a subject
1 undecided; 10 processes
1 undecided: its launches differ too much; make it less noisy
  a  2 ms -> 2 ms  ratio unknown\
""")
