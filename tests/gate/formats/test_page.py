"""The gate's page: a part for each cause and reason, with a dot for each launch, folded where nothing is to do."""

from typing import get_args

import msgspec
import numpy as np
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.gate.model import Cause, Entry, Location, Overall
from rocattn_profiling.gate.rule.pairs import Decision, Pair, PairLaunch, Side
from rocattn_profiling.gate.rule.suite import decide

from ...screens import line

CAUSE = Cause(kind="machine code", text="43 VGPRs spilled", location=Location(path="kernels/hip/a.hip", line=118))


def exact(label, arch, status, base, head, **facts):
    """An entry that was read off, not measured."""
    decision = Decision(id=label, verdict=status, ratio=head / base, ratio_low=head / base, ratio_high=head / base)
    return Entry(
        label=label, name=label, metric="audit", arch=arch, unit="registers", status=status, base=base, head=head,
        decision=decision if base else None, **facts,
    )  # fmt: skip


@pytest.fixture
def whole(verdict):
    """A verdict with machine code of two architectures, a waiver and a problem beside what was measured."""
    waived = msgspec.structs.replace(verdict.entries[0], label="known", status="waived", waiver="a compare more (#41)")
    slow = msgspec.structs.replace(verdict.entries[0], causes=[CAUSE], reason="too much")
    code = [
        exact("flash f16", "gfx942", "regression", 96.0, 104.0, causes=[CAUSE]),
        exact("12 kernels", "gfx1100", "pass", 1.0, 1.0),
        exact("flash f32", "gfx942", "pass", 8.0, 8.0),
        Entry(label="select decode", name="s", metric="plan", status="regression", reason="flash is not selected"),
    ]
    entries = [slow, *verdict.entries[1:], waived, *code]
    return msgspec.structs.replace(verdict, entries=entries, problems=["waivers.toml:3: the waiver of x expired"])


def test_the_page_has_a_part_for_each_cause_and_reason(whole):
    """Worst first: three causes, what is undecided, waived and improved; passes are folded below."""
    view = gate_view.view(whole)
    assert [(part.word, len(part.rows), part.is_open) for part in (*view.parts, *view.quiet)] == [
        ("slower", 2, True), ("fails on head", 1, True), ("worse", 1, True), ("undecided", 1, False),
        ("accepted by a waiver", 1, True), ("pass", 3, False),
    ]  # fmt: skip
    first = view.parts[0]
    assert first.rows[1].label == "flash f16 [audit, gfx942]"  # the same line slowed a benchmark down
    assert [cause for cause, _ in first.causes] == [CAUSE]


def test_a_cause_stands_once_with_its_command(entry, result_of):
    """Twelve parameters of one benchmark: one block, the changed lines once, the worst rows open."""
    cause = Cause(
        kind="source", text="a/b.py:7 changed (+1 -1)", location=Location(path="a/b.py", line=7),
        diff=("- return x", "+ return sorted(x)"),
    )  # fmt: skip
    slow = [
        entry(f"m.C.time_x({n})", "regression", 1.2 + n / 100, name="m.C.time_x", causes=[cause]) for n in range(12)
    ]
    result = result_of([*slow, entry("m.C.time_y", "pass")], again="rocattn gate run --base a --head b")
    text = gate_view.html(result)
    assert text.count("+ return sorted(x)") == text.count("b.<wbr>py:7") == 1
    (part,) = gate_view.view(result).parts
    assert (part.title, part.command) == ("m.C.time_x", "rocattn gate run --base a --head b --bench time_x")
    assert [row.label for row in part.shown][:2] == ["(11)", "(10)"]
    assert (len(part.shown), len(part.folded)) == (gate_view.MOST_OPEN, 4)


def test_counts_have_no_interval_and_no_decimals(whole):
    """43 registers, not 43.0; a ratio without an interval that would be its own ends."""
    row = gate_view.view(whole).parts[0].rows[1]
    assert (row.base, row.head, row.ratio, row.interval, row.rounds) == (
        "96 registers", "104 registers", "x1.083", "", 0
    )  # fmt: skip


def test_base_stands_beside_head_in_numbers_and_dots(verdict):
    """2 ms became 2.6 ms: each dot is the low end of a launch, which its slow sample does not move."""
    view = gate_view.view(verdict)
    slow, unclear = (next(part for part in view.parts if part.word == word).rows[0] for word in ("slower", "undecided"))
    assert (slow.base, slow.head, slow.ratio) == ("2.00 ms", "2.60 ms", "x1.300")
    assert slow.interval == "[1.274, 1.326]"
    assert (unclear.ratio, unclear.interval) == ("ratio unknown", "")
    base, head = slow.strip.rows
    assert (base.name, head.name) == ("base", "head")
    assert base.middle < head.middle
    assert base.places[0][1] == "base: 2.010 ms"  # a twentieth of the way from 2.0 to 2.2
    assert (slow.strip.low, slow.strip.high) == ("2.01 ms", "2.62 ms")


def test_dots_are_of_the_time_that_decided(make_pair, result_of):
    """A busy machine stretches wall times, by which nothing was decided: the dots stand where the numbers do."""
    calm = make_pair(np.random.default_rng(1), 6, slowdown=0.3, cpu=True)
    base, head = (
        [
            msgspec.structs.replace(each, samples=[3 * value for value in each.samples], nivcsw=[4] * len(each.samples))
            for each in side.launches
        ]
        for side in (calm.a, calm.b)
    )
    decision = decide(Pair(id="x", a=Side(launches=base), b=Side(launches=head)))
    entry = Entry(
        label="x", name="x", unit="ns", status="regression", base=1e6, head=1.3e6, decision=decision,
        base_launches=base, head_launches=head,
    )  # fmt: skip
    (part,) = gate_view.view(result_of([entry])).parts
    low, high = (float(text.removesuffix(" ms")) for text in (part.rows[0].strip.low, part.rows[0].strip.high))
    assert 0.9 < low < high < 1.6


def test_a_large_suite_keeps_its_page_small(result_of, entry):
    """300 benchmarks of 20 launches a side: below a megabyte, for those that pass have one path for all their dots."""
    launches = [PairLaunch(round=n, samples=[2e6 + 1e3 * n] * 10) for n in range(20)]
    many = [entry(f"m.C.time_{n}", "pass", base_launches=launches, head_launches=launches) for n in range(300)]
    text = gate_view.html(result_of(many))
    assert len(text) < 1_000_000
    assert text.count('class="small-strip"') == 300
    assert text.count('<details class="panel') == 1


def test_a_ratio_that_is_not_known_is_none_of_1(verdict):
    """Of 0 against 5 there is no ratio: x1.000 would read as "no change", and [0, inf] as one."""
    decision = Decision(id="x", verdict="regression", rounds_used=5, reason="from 0 to 5")
    entry = Entry(
        label="x", name="x", metric="track", unit="leaks", status="regression", base=0.0, head=5.0, decision=decision
    )
    result = msgspec.structs.replace(verdict, entries=[entry])
    (row,) = gate_view.view(result).parts[0].rows
    assert (row.base, row.head, row.ratio, row.interval) == ("0 leaks", "5 leaks", "ratio unknown", "")
    assert "x1.000" not in gate_view.html(result).partition("The rule, and")[0]


def test_sizes_have_digits_and_reasons_stand_once(verdict):
    """1.5 KiB of 1,536 bytes; 2.5 waves lost; what decision and entry say alike is one sentence."""
    decision = Decision(id="x", verdict="pass", ratio=1.0, ratio_low=1.0, ratio_high=1.0, reason="as before")
    facts = {"label": "x", "name": "x", "status": "pass", "decision": decision, "reason": "as before", "rule": "t:3"}
    entries = [
        Entry(metric="peakmem", unit="bytes", base=1536.0, head=1536.0, **facts),
        Entry(metric="audit", unit="slots", base=2.5, head=0.0, **facts),
    ]
    (part,) = gate_view.view(msgspec.structs.replace(verdict, entries=entries)).quiet
    assert [(row.base, row.head) for row in part.rows] == [("1.50 KiB", "1.50 KiB"), ("2.50 slots", "0 slots")]
    assert [row.reasons for row in part.rows] == [["as before"]] * 2
    assert {row.rule for row in part.rows} == {"t:3"}


def test_tones_are_green_if_proven_and_red_if_failing(verdict):
    """Undecided, not measured, broken before and accepted are neither: somebody has to look."""
    tones = {"good": {"pass", "improvement"}, "bad": {"regression", "failed", "missing", "problem"}}
    for status, tone in gate_view.TONES.items():
        assert tone == next((each for each, members in tones.items() if status in members), "warn")
    assert gate_view.view(verdict).tone == "bad"
    assert gate_view.view(msgspec.structs.replace(verdict, verdict="inconclusive")).tone == "warn"


def test_a_regression_says_why_and_where(whole):
    """The cause with file and line, both reasons; a waiver with its words; the problems above all."""
    text = gate_view.html(whole)
    assert text.count("machine code: 43 VGPRs spilled") == 1
    assert ":118</span>" in text
    assert "because regression" in text
    assert "too much" in text
    assert line(text, "compare") == snapshot(
        '</div><div class="note says">because regression (5 rounds) waiver: a compare more (#41)</div></div>'
    )
    assert line(text.replace("<p ", "\n<p "), "problem</span>") == snapshot(
        '<div class="panel"><span class="tag bad">problem</span> waivers.<wbr>toml:3: the waiver of x expired</div>'
    )
    assert text.index("problem</span>") < text.index('<section class="panel')


def test_what_stands_between_backticks_is_code():
    """A cause quotes lines and commands; a backtick without its partner stays one."""
    assert gate_view.pieces("take `a + b` back") == [("take ", False), ("a + b", True), (" back", False)]
    assert gate_view.pieces("`x`") == [("x", True)]
    assert gate_view.pieces("a ` b") == [("a ` b", False)]
    assert gate_view.pieces("") == []


def test_hostile_causes_and_paths_stay_text(whole):
    """Also in what only regressions have: causes, places, changed lines, waivers, problems, architectures."""
    bad = "<script>alert(1)</script>\"' `<script>x</script>`"
    cause = Cause(kind="source", text=bad, location=Location(path=bad, line=1), diff=(f"- {bad}", bad))
    entries = [msgspec.structs.replace(e, causes=[cause], waiver=bad, arch=bad, reason=bad) for e in whole.entries]
    text = gate_view.html(msgspec.structs.replace(whole, entries=entries, problems=[bad]))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_existing_environments_are_named_by_interpreter(whole):
    """No revision, no subject, no command that would name one."""
    sides = {
        name: msgspec.structs.replace(whole.base, revision=None, interpreter=f"/env/{name}/bin/python")
        for name in ("base", "head")
    }
    text = gate_view.html(msgspec.structs.replace(whole, **sides))
    assert "/env/head/bin/python" in text
    assert "rocattn gate run --base" not in text


def test_every_verdict_has_a_tone():
    """A verdict word that the page does not know would look harmless."""
    assert set(get_args(Overall)) <= set(gate_view.TONES)
