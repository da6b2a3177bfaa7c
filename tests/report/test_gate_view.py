"""The gate's page: what was measured, what was read off by architecture, why, and what is accepted."""

import re

import msgspec
import pytest

from rocattn_profiling.gate.pairs import Decision
from rocattn_profiling.gate.verdict import Cause, Entry, Location
from rocattn_profiling.report import gate_view
from rocattn_profiling.report.pages import report_html, report_markdown

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
    slow = msgspec.structs.replace(verdict.entries[0], explanation="It spills now.", causes=[CAUSE], reason="too much")
    code = [
        exact("flash f16", "gfx942", "regression", 96.0, 104.0, explanation="It spills now.", causes=[CAUSE]),
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


def test_numbers_that_were_counted_have_no_interval_and_no_digits(whole):
    """43 registers, not 43.0; a ratio without an interval that would be its own ends."""
    row = dict(gate_view.view(whole).exact)["gfx942"][0]
    assert (row.base, row.head, row.ratio, row.interval, row.rounds) == (
        "96 registers", "104 registers", "1.083x", "", 0
    )  # fmt: skip


def test_a_regression_says_why_and_where(whole):
    """Explanation, causes with file and line, both reasons; a waiver with its words; the problems above all."""
    text = report_html(None, whole, 0)
    assert text.count("It spills now.") == 2
    assert "<b>machine code</b>: 43 VGPRs spilled" in text
    assert ":118</span>" in text
    assert "because regression" in text
    assert "too much" in text
    assert '<span class="tag warn">waived</span> a compare more (#41)' in text
    assert '<span class="tag bad">problem</span> waivers.<wbr>toml:3: the waiver of x expired' in text
    assert text.index("problem</span>") < text.index("<table")


def test_what_stands_between_backticks_is_code():
    """An explanation quotes lines and commands; a backtick without its partner stays one."""
    assert gate_view.pieces("take `a + b` back") == [("take ", False), ("a + b", True), (" back", False)]
    assert gate_view.pieces("`x`") == [("x", True)]
    assert gate_view.pieces("a ` b") == [("a ` b", False)]
    assert gate_view.pieces("") == []


def test_hostile_explanations_and_paths_stay_text(whole):
    """Also in what only regressions have: explanations, causes, places, waivers, problems, architectures."""
    bad = "<script>alert(1)</script>\"' `<script>x</script>`"
    cause = Cause(kind="source", text=bad, location=Location(path=bad, line=1))
    entries = [
        msgspec.structs.replace(e, explanation=bad, causes=[cause], waiver=bad, arch=bad, reason=bad)
        for e in whole.entries
    ]
    text = report_html(None, msgspec.structs.replace(whole, entries=entries, problems=[bad]), 0)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_existing_environments_have_their_interpreter_for_a_name(whole):
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
