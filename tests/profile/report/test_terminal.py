"""The report on the terminal: it fits, it is never silent, and it marks the nearest limit with and without styles."""

from dataclasses import replace

import pytest

from rocattn_profiling.base.card import Card
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.compare import compare
from rocattn_profiling.profile.report.summary import summarise
from rocattn_profiling.profile.report.terminal import NONE, PROVE, fill

from .test_limits import BMM1, BMM2, made_of, report
from .test_names import ABS
from .test_summary import kernels_of

COPIED = ("next      ", "rocattn report AFTER", "xxxxxxxx")


def styled(made, before=None, **screen):
    """Return a report's lines for a terminal of 80 columns, or for another screen."""
    card = Card(**{"width": 80} | screen)
    return fill(card, made, summarise(made), compare(before, made) if before else None).lines


def lines(made, before=None, **screen):
    """Return them as plain text."""
    return [line.plain for line in styled(made, before, **screen)]


def long_names():
    """Return the second product's report with names that fit no terminal, and a second kernel."""
    made = report(BMM2)
    (kernel,) = made.kernels
    made.kernels = [replace(kernel, name=ABS), replace(kernel, name=ABS.replace("Abs", "Negate"), label="b1-h8-q4096")]
    made.problems = ["run/" + "x" * 200 + ".csv: cut off"]
    return made


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_fits_the_terminal(width, unicode):
    """All but commands and paths, which are copied: a kernel's row is never broken."""
    made = long_names()
    for before in (None, report(BMM1)):
        shown = lines(made, before, width=width, unicode=unicode)
        assert max(len(line) for line in shown if not any(command in line for command in COPIED)) <= width
        assert unicode or "".join(shown).isascii()


def test_the_nearest_limit_is_bold_on_a_terminal():
    """Everywhere it has a star, so that a pipe and NO_COLOR lose nothing."""
    (row,) = [line for line in styled(report(BMM2)) if "*≥79" in line.plain]
    bold = {row.plain[span.start : span.end].strip() for span in row.spans if "bold" in str(span.style)}
    assert "*≥79" in bold
    assert not any("46" in text for text in bold), "L1 is not the nearest"


def test_bars_show_each_limit_and_what_is_not_known():
    """Full at the peak; what was not counted is no 0, and what no counter shows is said to be so."""
    text = "\n".join(lines(report(BMM2)))
    assert "████·  *≥79" in text
    assert "not counted" not in text
    partly = {name: value for name, value in BMM2.items() if "LDS" not in name}
    text = "\n".join(lines(report(partly)))
    assert f"{NONE} not counted" in text
    rdna = {"ns": 50_000, "SQ_INSTS_VALU": 1000, "GL2C_EA_WRREQ_sum": 1, "GL2C_EA_RDREQ_sum": 1, "SQ_WAVES": 8192}
    agent = {"arch": "gfx1201", "product": "RX 9070 XT", "cus": 64, "simds": 128, "xccs": 1, "max_clock_mhz": 2970}
    text = "\n".join(lines(report(rdna | {"SQC_LDS_IDX_ACTIVE": 1, "GRBM_GUI_ACTIVE": 100_000}, **agent)))
    assert "n/a this GPU cannot count it" in text
    assert "DRAM" in text
    assert "HBM" not in text


def test_it_is_never_silent():
    """Whatever is in the files: at least one finding, or a reason and a command with their own paths in it."""
    times = report({"ns": 37482})
    times.paths, times.command = ["my runs/a"], ("python", "train.py", "--steps", "3")
    assert any(line.endswith("rocattn profile -- python train.py --steps 3") for line in lines(times))
    unnamed = made_of(BMM2)
    unnamed.agents = unnamed.agents.iloc[:0]
    unnamed = profile_report.build(unnamed)
    unnamed.paths = ["my runs/a"]
    assert any(line.endswith("rocattn report 'my runs/a' --gpu NAME") for line in lines(unnamed))
    assert any(line.startswith("   NAME      MI210, MI250, ") for line in lines(unnamed))
    assert "Kernel 1 has 48 VGPRs, 2,560 bytes of LDS per block" in lines(unnamed)
    assert any(line.startswith("1. ") for line in lines(report(BMM2)))
    dispatches = profile_report.build(kernels_of(("first", 2000), ("longest", 90_000)), per="dispatch")
    rows = [line for line in lines(dispatches) if line.startswith(("1 ", "2 "))]
    assert ["longest" in row for row in rows] == [True, False]


def test_copies_are_the_second_line():
    """Below the verdict on the kernel."""
    first, *rest = lines(profile_report.build(kernels_of(("__amd_rocclr_copyBuffer", 9_000), ("mine", 6_000))))
    assert first.startswith("Kernel 1 (40 % of GPU time): fewer blocks")
    assert "Copies and fills of the HIP runtime: 60 % of GPU time" in rest


def test_more_than_five_findings_are_counted():
    """Five are shown; those below 1 % are counted with their kernels."""
    made = profile_report.build(kernels_of(("tiny", 2000), ("tinier", 1900), ("long", 1_000_000)))
    assert any("(in 2 kernels) below 1 %" in line for line in lines(made))
    made.kernels = [replace(each, findings=[] if each.time_share > 0.5 else each.findings) for each in made.kernels]
    assert any("(in 2 kernels) below 1 %" in line for line in lines(made)), "though there is no other"
    (kernel,) = report(BMM2).kernels
    made = report(BMM2)
    findings = [replace(kernel.findings[0], key=f"rule-{n}") for n in range(7)]
    made.kernels = [replace(kernel, findings=findings)]
    shown = lines(made)
    assert [line[:2] for line in shown if line[:1].isdigit() and line[1:2] == "."] == ["1.", "2.", "3.", "4.", "5."]
    assert any("2 more findings are in the report" in line for line in shown)


def test_a_comparison_opens_with_the_change():
    """What became slower is red; then its limits on both sides, and the kernels of one side."""
    before, after = report(BMM1), report(BMM2)
    (kernel,) = after.kernels
    after.kernels = [kernel, replace(kernel, name="fresh", total_ns=10.0)]
    dropped = [replace(kernel, name=name, total_ns=ns) for name, ns in (("dropped", 10.0), ("dropped, too", 9.0))]
    before.kernels = [*before.kernels, *dropped]
    shown = styled(after, before)
    assert shown[0].plain == "+29.0 %: kernel 1, LDS busy 23 → 79 %"
    assert "red" in str(shown[0].spans[0].style)
    plain = [line.plain for line in shown]
    assert any(line.startswith(" before ") and "*≥59" in line for line in plain)
    assert any(line.startswith("  after ") and "*≥79" in line for line in plain)
    assert any(line.startswith(" new fresh") for line in plain)
    assert any(line.startswith("gone dropped") for line in plain)
    assert plain[-1].strip() == PROVE
    back = styled(before, after)
    assert "green" in str(back[0].spans[0].style)


def test_two_gpus_are_told_apart_before_any_number():
    """Their times stand side by side, without a change and without a color."""
    before, after = report(BMM1, product="MI300A", cus=228, xccs=6), report(BMM2)
    shown = styled(after, before)
    assert "different gpus" in shown[0].plain.lower()
    assert not any(color in str(span.style) for line in shown for span in line.spans for color in ("red", "green"))
    assert not any("+29" in line.plain for line in shown)
    assert shown[-1].plain.strip() == "rocattn profile -- COMMAND"
