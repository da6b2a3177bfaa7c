"""The first lines of a report: a verdict on each long kernel or why there is none, the next command, what changed."""

import json

import pandas as pd
import pytest

from rocattn_profiling.cli import main
from rocattn_profiling.profile.ingest.table import AGENT_DTYPES
from rocattn_profiling.profile.report import compare as profile_compare
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.summary import summarise

from .test_limits import BMM1, BMM2, made_of, report

COUNTED = dict.fromkeys(BMM2, 0) | {"ns": 50_000, "GRBM_GUI_ACTIVE": 800_000, "SQ_WAVES": 8192, "SQ_INSTS": 9000}


def verdict(counted, roofs=None, **agent):
    """Return the verdict on the only kernel of a report."""
    (kernel,) = report(counted, roofs, **agent).kernels
    return kernel.verdict


def fewer(by):
    """Return the second product with so much less work in the same time."""
    return {name: value // by for name, value in BMM2.items()} | {
        name: BMM2[name] for name in ("ns", "GRBM_GUI_ACTIVE", "SQ_WAVES")
    }


def without(*parts):
    """Return the counters of the second product whose names have none of these parts."""
    return {name: value for name, value in BMM2.items() if not any(part in name for part in parts)}


def kernels_of(*kernels):
    """Return the profile of kernels without counters, one launch of one block each: (name, ns)."""
    made = made_of({"ns": 40_000})
    row = made.dispatches
    rows = [row.assign(kernel=name, grid=256, start_ns=0, end_ns=ns) for name, ns in kernels]
    made.dispatches = pd.concat(rows, ignore_index=True).astype(row.dtypes.to_dict() | {"kernel": "category"})
    return made


def test_the_limit_that_bounds_a_kernel_is_its_verdict():
    """The sentence of the finding, with its gain."""
    made = report(BMM2)
    summary = summarise(made)
    (line,) = summary.lines
    assert made.kernels[0].verdict.code == "bound"
    assert line.text.startswith("LDS bound at 79 % of the time or more")
    assert line.gain == "at most 21 % of all kernels' time, more with fewer LDS cycles"
    assert (summary.commands, summary.why_none) == ([], "")


@pytest.mark.parametrize(
    ("counted", "code", "said", "command"),
    [
        (without("LDS", "TCP_"), "not_counted", "L1, LDS not counted; nearest of what was counted is memory 35 %",
         "rocattn profile --metrics caches lds -- COMMAND"),
        (without("LDS", "WRREQ"), "not_counted",
         "memory only in part, LDS not counted; nearest of what was counted is L1",
         "rocattn profile --metrics memory lds -- COMMAND"),
        ({"ns": 37482}, "times_only", "the files have times only", "rocattn profile -- COMMAND"),
        ({"ns": 2000}, "short", "2.0 us per launch", ""),
        (BMM2 | {"SQ_INSTS": 0, "GRBM_GUI_ACTIVE": 0}, "stood_still", "counters stood still",
         "sudo amd-smi set -g 0 -l stable_std && rocattn profile -- COMMAND"),
        (COUNTED | {"SQ_WAVE_CYCLES": 8_000_000}, "far", "the nearest limit is", ""),
    ],
    ids=["not counted", "in part", "times only", "short", "stood still", "far"],
)  # fmt: skip
def test_each_kernel_has_a_verdict_or_a_command(counted, code, said, command):
    """Six of eleven real inputs had no finding and no word why."""
    reason = verdict(counted)
    assert (reason.code, reason.remedy) == (code, command)
    assert said in reason.text


def test_what_a_gpu_cannot_count_is_no_reason_to_profile_again():
    """RDNA's L2 and matrix units: no profile would tell, the machine code may."""
    rdna = {"ns": 50_000, "SQ_INSTS_VALU": 1000, "GL2C_EA_WRREQ_sum": 1, "GL2C_EA_RDREQ_sum": 1, "SQ_WAVES": 8192}
    rdna |= {"SQC_LDS_IDX_ACTIVE": 1, "GRBM_GUI_ACTIVE": 100_000}
    reason = verdict(rdna, arch="gfx1201", product="RX 9070 XT", cus=64, simds=128, xccs=1, max_clock_mhz=2970)
    assert (reason.code, reason.remedy) == ("not_countable", "rocattn kernels audit FILE --lines")
    assert "this GPU cannot count L2, L1, matrix units" in reason.text


def test_without_a_gpu_the_option_that_names_it_comes_next():
    """Counters are there, and no file says what they count."""
    made = made_of(BMM2)
    made.agents = made.agents.iloc[:0]
    (kernel,) = profile_report.build(made).kernels
    assert kernel.verdict.code == "no_gpu"
    assert "--gpu" in kernel.verdict.remedy
    (named,) = profile_report.build(made, gpu="MI300X").kernels
    assert named.verdict.code == "bound"


def test_what_a_file_without_a_gpu_does_say_is_said():
    """rocprof 1's counters of an attention kernel: its LDS tells which GPUs it may have been, and where to begin."""
    made = made_of({"ns": 40_000, "VALUUtilization": 8.84, "MemUnitBusy": 0.567, "L2CacheHit": 0.0, "SQ_WAVES": 8192})
    made.dispatches = made.dispatches.assign(vgprs=256, lds_bytes=163840).astype(made.dispatches.dtypes.to_dict())
    made.agents = made.agents.iloc[:0]
    (unknown,) = summarise(profile_report.build(made)).unknown
    assert unknown.says == (
        "kernel 1 has 256 VGPRs, 163,840 bytes of LDS per block, MemUnitBusy 0.567 %, VALUUtilization 8.84 %"
    )
    assert unknown.gpus == "MI350X, MI355X (no other has 163,840 bytes of LDS per block)"
    named = summarise(profile_report.build(made, gpu="MI355X"))
    assert [group.key for group in named.findings] == ["one-block"]
    assert named.findings[0].sentence == (
        "one block fits on a compute unit, 12 % of its wave slots: while its waves wait, no other block works. LDS "
        "binds at 1 wave of 8: 81920 bytes of LDS over the step to 2 waves"
    )
    assert [(each.gpus, each.says) for each in named.unknown] == [("", unknown.says)]
    small = made_of(BMM2)
    small.agents = small.agents.iloc[:0]
    (unknown,) = summarise(profile_report.build(small)).unknown
    assert unknown.gpus.startswith("MI210, MI250, MI250X, MI300A, MI300X, ")
    assert all(profile_report.build(small, gpu=name).devices for name in unknown.gpus.split(", or ")[0].split(", "))


def test_without_times_the_limits_that_need_them_are_named():
    """A spreadsheet destroyed them: busy cycles stand, bandwidths do not."""
    made = made_of(fewer(4))
    made.dispatches[["start_ns", "end_ns"]] = pd.NA
    (kernel,) = profile_report.build(made).kernels
    assert "memory, L2, L1 without the kernel's time" in kernel.verdict.text
    assert kernel.verdict.remedy == "rocattn profile -- COMMAND"


def test_kernels_with_the_same_verdict_share_a_line():
    """22 findings of one rule were 22 lines; copies are nobody's to make faster, but their time is said."""
    names = [*(f"small_{n}" for n in range(6)), "__amd_rocclr_copyBuffer"]
    summary = summarise(profile_report.build(kernels_of(*((name, 10_000) for name in names))))
    (line,) = summary.lines
    assert line.who == "6 kernels (86 % of GPU time)"
    assert line.text.startswith("fewer blocks or waves than the GPU has units")
    assert summary.others == "copies and fills of the HIP runtime: 14 % of GPU time"


def test_the_table_leaves_no_number_out_in_silence():
    """A copy was number 3, and nowhere; what has no row is counted with its share of the time."""
    names = [(f"k{n}", 100_000 - n) for n in range(7)]
    summary = summarise(profile_report.build(kernels_of(*names[:2], ("__amd_rocclr_copyBuffer", 50_000), *names[2:])))
    assert [row.number for row in summary.rows] == [1, 2, 3, 4, 5]
    assert summary.more == (
        "not in this table: 2 more kernels (27 % of the time) and copies and fills of the HIP runtime (6.7 % of the "
        "time); see the report"
    )
    assert summary.others == ""
    few = summarise(profile_report.build(kernels_of(*names[:5])))
    assert (few.more, few.others) == ("", "")


def test_copies_are_never_the_headline():
    """97 % of a small benchmark's time are what it set up: the kernel's verdict comes first, their share second."""
    made = profile_report.build(kernels_of(("__amd_rocclr_fillBufferAligned", 97_000), ("mine", 6_000)))
    summary = summarise(made)
    assert summary.headline.startswith("kernel 1 (5.8 % of GPU time): fewer blocks")
    assert summary.others == "copies and fills of the HIP runtime: 94 % of GPU time"
    assert [group.key for group in summary.findings] == ["few-blocks", "runtime-copies"]


def test_a_long_kernel_has_a_line_of_its_own():
    """One block on 304 compute units, and nearly all of the time: its own numbers and gain."""
    first, second = summarise(profile_report.build(kernels_of(("long", 90_000), ("b", 6000)))).lines
    assert first.text.startswith("fewer blocks (1) than compute units (304)")
    assert first.gain == "at most 93 % of all kernels' time"
    assert second.numbers == (2,)


def test_each_dispatch_has_a_verdict():
    """As its kernel has: "no verdict" was all that was said."""
    summary = summarise(profile_report.build(made_of(BMM2), per="dispatch"))
    assert summary.headline == "launch 1 (100 % of GPU time): LDS bound at 79 % of the time or more"
    assert (summary.findings[0].key, summary.findings[0].who) == ("lds-bound", "launch 1")


def test_a_comparison_begins_with_the_change():
    """29 % slower, as LDS went from 23 to 79 %: the report listed 20 metrics and drew no conclusion."""
    before, after = report(BMM1), report(BMM2)
    comparison = profile_compare.compare(before, after)
    assert comparison.lines == ["+29.0 %: kernel 1, LDS busy 23 → 79 %"]
    assert comparison.first.cause.limit == "lds"
    assert profile_compare.compare(after, after).lines == ["+0.0 %: kernel 1, unchanged within 2 %"]
    other = profile_compare.compare(profile_report.build(renamed(BMM1)), after)
    assert (other.first, len(other.lines)) == (None, 1)
    for text in (profile_pages.profile_html(after, 0, comparison), profile_pages.profile_markdown(after, comparison)):
        assert "29.0 %: kernel 1, LDS busy 23 → 79 %" in text


def renamed(counted):
    """Return a profile of another kernel, on another grid."""
    made = made_of(counted)
    return made.__class__(
        dispatches=made.dispatches.assign(kernel=pd.Categorical(["other"]), grid=1024),
        counters=made.counters,
        agents=made.agents,
    )


def test_the_terminal_says_what_the_page_does(tmp_path, monkeypatch, capsys):
    """It printed a path: now what changed comes first, then what bounds the kernel; the JSON has the codes."""
    made = {"before": made_of(BMM1), "after": made_of(BMM2)}
    for name in made:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("rocattn_profiling.profile.ingest.read", lambda paths: made[paths[0].name])
    paths = ["report", str(tmp_path / "after"), "--against", str(tmp_path / "before"), "--out", str(tmp_path / "out")]
    assert main(paths) == 0
    first, *lines, last = capsys.readouterr().err.splitlines()
    assert first == "+29.0 %: kernel 1, LDS busy 23 → 79 %"
    assert any(line.startswith("   LDS bound at 79 % of the time or more") for line in lines)
    assert last.startswith("The report is at")
    (kernel,) = json.loads((tmp_path / "out/profile.json").read_text())["kernels"]
    assert kernel["verdict"]["code"] == "bound"
    assert kernel["limits"]["known"][0]["limit"] == "lds"
    made["after"] = made_of({"ns": 37482})
    assert main([*paths[:2], "--out", str(tmp_path / "out")]) == 0
    assert "next      rocattn profile -- COMMAND" in capsys.readouterr().err


def test_a_gpu_whose_file_lacks_a_fact_has_it_named():
    """An MI350's clock is 0 in rocprof-compute's file: L2 and L1 have no peak then."""
    agent = {"arch": "gfx950", "product": "MI350", "cus": 128, "simds": 512, "max_clock_mhz": None}
    assert "L2, L1 without the highest clock" in verdict(fewer(9), **agent).text
    assert set(agent) <= set(AGENT_DTYPES)
