"""The gate's page: what was measured, what was read off by architecture, why, and what is accepted."""

import re

import msgspec
import pytest

from rocattn_profiling.gate.formats import page as gate_view
from rocattn_profiling.gate.rule.pairs import Decision
from rocattn_profiling.gate.verdict import Cause, Entry, Location
from rocattn_profiling.report.command import report_html, report_markdown

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


def test_what_was_read_off_stands_by_architecture(whole):
    """Beside the table of benchmarks, in the order of the worst; what holds everywhere has a table of its own."""
    view = gate_view.view(whole)
    assert [row.label for row in view.timed] == [e.label for e in whole.entries if e.metric == "time"]
    assert [(arch, [row.label for row in rows]) for arch, rows in view.exact] == [
        ("gfx942", ["flash f16", "flash f32"]), ("every architecture", ["select decode"]),
        ("nothing moved", ["12 kernels"]),
    ]  # fmt: skip
    text = report_html(None, whole, 0)
    parts = re.findall(r'<tr class="part"><th scope="rowgroup" colspan="5">([^<]+)</th>', text)
    assert parts == ["gfx942", "every architecture", "nothing moved"]
    assert "12 kernels</span> on gfx1100" in text
    assert "flash f16</span> on" not in text


def test_counts_have_no_interval_and_no_decimals(whole):
    """43 registers, not 43.0; a ratio without an interval that would be its own ends."""
    row = dict(gate_view.view(whole).exact)["gfx942"][0]
    assert (row.base, row.head, row.ratio, row.interval, row.rounds) == (
        "96 registers", "104 registers", "1.083x", "", 0
    )  # fmt: skip


def test_base_stands_beside_head_in_numbers_and_dots(verdict):
    """2 ms became 2.6 ms: each dot is the low end of a launch, which its slow sample does not move."""
    slow, _, unclear, _ = gate_view.view(verdict).timed
    assert (slow.base, slow.head, slow.ratio) == ("2.00 ms", "2.60 ms", "1.300x")
    assert slow.interval == "[1.274, 1.326]"
    assert unclear.interval == "[1.019, ∞]"
    base, head = slow.strip.rows
    assert (base.name, head.name) == ("base", "head")
    assert base.middle < head.middle
    assert base.places[0][1] == "base: 2.010 ms"  # a twentieth of the way from 2.0 to 2.2
    assert (slow.strip.low, slow.strip.high) == ("2.01 ms", "2.62 ms")


def test_a_ratio_that_is_not_known_is_none_of_1(verdict):
    """Of 0 against 5 there is no ratio: 1.000x would read as "no change", and [0, ∞] as one."""
    decision = Decision(id="x", verdict="regression", rounds_used=5, reason="from 0 to 5")
    entry = Entry(
        label="x", name="x", metric="track", unit="leaks", status="regression", base=0.0, head=5.0, decision=decision
    )
    ((row,), result) = (gate_view.view(only := msgspec.structs.replace(verdict, entries=[entry])).timed, only)
    assert (row.base, row.head, row.ratio, row.interval, row.rounds) == ("0 leaks", "5 leaks", "unknown", "", 5)
    assert "1.000x" not in report_html(None, result, 0)


def test_sizes_and_fractions_have_digits_and_reasons_stand_once(verdict):
    """1.5 KiB of 1,536 bytes; 2.5 waves lost; what decision and entry say alike is one sentence."""
    decision = Decision(id="x", verdict="pass", ratio=1.0, ratio_low=1.0, ratio_high=1.0, reason="as before")
    facts = {
        "label": "x",
        "name": "x",
        "status": "pass",
        "decision": decision,
        "reason": "as before",
        "rule": "t.toml:3",
    }
    entries = [
        Entry(metric="peakmem", unit="bytes", base=1536.0, head=1536.0, **facts),
        Entry(metric="audit", unit="slots", base=2.5, head=0.0, suspect=True, **facts),
    ]
    shown = gate_view.view(msgspec.structs.replace(verdict, entries=entries)).rows
    assert [(row.base, row.head) for row in shown] == [("1.50 KiB", "1.50 KiB"), ("2.50 slots", "0 slots")]
    assert [row.reasons for row in shown] == [["as before"]] * 2
    assert [row.suspect for row in shown] == [False, True]
    assert {row.rule for row in shown} == {"t.toml:3"}


def test_an_architecture_with_changes_has_its_own_group(verdict):
    """An improvement, a waived regression, a kernel that base has not: all of them moved."""
    statuses = ("improvement", "waived", "new", "removed", "pass")
    entries = [exact("k", f"gfx{n}", status, 9.0, 9.0) for n, status in enumerate(statuses)]
    view = gate_view.view(msgspec.structs.replace(verdict, entries=entries))
    assert [arch for arch, _ in view.exact] == ["gfx0", "gfx1", "gfx2", "gfx3", "nothing moved"]


def test_tones_are_green_if_proven_and_red_if_failing(verdict):
    """Undecided, not measured, broken before and accepted are neither: somebody has to look."""
    tones = {"good": {"pass", "improvement"}, "bad": {"regression", "failed", "missing", "problem"}}
    for status, tone in gate_view.TONES.items():
        assert tone == next((each for each, members in tones.items() if status in members), "warn")
    assert gate_view.view(verdict).tone == "bad"
    counts = {"pass": 3, "inconclusive": 1, "failed": 0}
    view = gate_view.view(msgspec.structs.replace(verdict, verdict="inconclusive", counts=counts))
    assert view.tone == "warn"
    assert [(status, n, tone) for status, n, tone, _ in view.counts] == [
        ("pass", 3, "good"),
        ("inconclusive", 1, "warn"),
    ]


def test_a_regression_says_why_and_where(whole):
    """Causes with file and line, both reasons; a waiver with its words; the problems above all."""
    text = report_html(None, whole, 0)
    assert text.count("<b>machine code</b>: 43 VGPRs spilled") == 2
    assert ":118</span>" in text
    assert "because regression" in text
    assert "too much" in text
    assert '<span class="tag warn">waived</span> a compare more (#41)' in text
    assert '<span class="tag bad">problem</span> waivers.<wbr>toml:3: the waiver of x expired' in text
    assert text.index("problem</span>") < text.index("<table")


def test_a_cause_is_shown(verdict):
    """Below the row of its benchmark."""
    entries = [msgspec.structs.replace(verdict.entries[0], causes=[CAUSE])]
    assert "43 VGPRs spilled" in report_html(None, msgspec.structs.replace(verdict, entries=entries), 0)


def test_what_stands_between_backticks_is_code():
    """A cause quotes lines and commands; a backtick without its partner stays one."""
    assert gate_view.pieces("take `a + b` back") == [("take ", False), ("a + b", True), (" back", False)]
    assert gate_view.pieces("`x`") == [("x", True)]
    assert gate_view.pieces("a ` b") == [("a ` b", False)]
    assert gate_view.pieces("") == []


def test_hostile_causes_and_paths_stay_text(whole):
    """Also in what only regressions have: causes, places, waivers, problems, architectures."""
    bad = "<script>alert(1)</script>\"' `<script>x</script>`"
    cause = Cause(kind="source", text=bad, location=Location(path=bad, line=1))
    entries = [msgspec.structs.replace(e, causes=[cause], waiver=bad, arch=bad, reason=bad) for e in whole.entries]
    text = report_html(None, msgspec.structs.replace(whole, entries=entries, problems=[bad]), 0)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_existing_environments_are_named_by_interpreter(whole):
    """No revision, no subject, no command that would name one."""
    sides = {
        name: msgspec.structs.replace(whole.base, revision=None, interpreter=f"/env/{name}/bin/python")
        for name in ("base", "head")
    }
    result = msgspec.structs.replace(whole, **sides)
    text = report_html(None, result, 0)
    assert "/env/head/bin/python" in text
    assert "rocattn gate run --base" not in text
    assert "`/env/base/bin/python`" in report_markdown(None, result)


def test_every_status_and_verdict_has_a_tone_or_is_quiet():
    """A verdict word that the page does not know would look harmless."""
    from typing import get_args

    from rocattn_profiling.gate.verdict import ORDER, Overall

    assert set(get_args(Overall)) <= set(gate_view.TONES)
    assert set(ORDER) == set(gate_view.WORDS)
