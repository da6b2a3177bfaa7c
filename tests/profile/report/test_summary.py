"""The first lines of a report: a verdict on each long kernel or why there is none, the next command, what changed."""

import json

import pandas as pd
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.profile.report import compare as profile_compare
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.summary import summarise

from ..kit import lines_of
from .test_limits import BMM1, BMM2, made_of, report

COUNTED = dict.fromkeys(BMM2, 0) | {"ns": 50_000, "GRBM_GUI_ACTIVE": 800_000, "SQ_WAVES": 8192, "SQ_INSTS": 9000}


def fewer(by):
    """Return the second product with so much less work in the same time."""
    return {name: value // by for name, value in BMM2.items()} | {
        name: BMM2[name] for name in ("ns", "GRBM_GUI_ACTIVE", "SQ_WAVES")
    }


def without(*parts):
    """Return the counters of the second product whose names have none of these parts."""
    return {name: value for name, value in BMM2.items() if not any(part in name for part in parts)}


UNTIMED = made_of(fewer(4))
UNTIMED.dispatches[["start_ns", "end_ns"]] = pd.NA
MI350 = {"arch": "gfx950", "product": "MI350", "cus": 128, "simds": 512, "max_clock_mhz": None}
SILENT = {
    "not counted": made_of(without("LDS", "TCP_")),
    "in part": made_of(without("LDS", "WRREQ")),
    "times only": made_of({"ns": 37482}),
    "short": made_of({"ns": 2000}),
    "stood still": made_of(BMM2 | {"SQ_INSTS": 0, "GRBM_GUI_ACTIVE": 0}),
    "far": made_of(COUNTED | {"SQ_WAVE_CYCLES": 8_000_000}),
    "a spreadsheet destroyed the times": UNTIMED,
    "a clock of 0 in an MI350's file": made_of(fewer(9), **MI350),
}


def test_each_kernel_has_a_verdict_or_a_command():
    """Six of eleven real inputs had no finding and no word why; a limit that lacks a fact has it named."""
    reasons = {name: profile_report.build(made).kernels[0].verdict for name, made in SILENT.items()}
    assert {name: f"{reason.code} {reason.remedy}" for name, reason in reasons.items()} == snapshot(
        {
            "not counted": "not_counted rocattn profile --metrics caches lds -- COMMAND",
            "in part": "not_counted rocattn profile --metrics memory lds -- COMMAND",
            "times only": "times_only rocattn profile -- COMMAND",
            "short": "short ",
            "stood still": "stood_still sudo amd-smi set -g 0 -l stable_std && rocattn profile -- COMMAND",
            "far": "far ",
            "a spreadsheet destroyed the times": "not_counted rocattn profile -- COMMAND",
            "a clock of 0 in an MI350's file": "not_counted rocattn profile --metrics memory -- COMMAND",
        }
    )
    assert lines_of({name: reason.text for name, reason in reasons.items()}) == snapshot("""\
not counted: limit not known: L1, LDS not counted; the nearest counted limit is memory 35 %
in part: limit not known: memory (partly), LDS not counted; the nearest counted limit is L1 at least 46 %
times only: limit not known: the files have times only
short: 2.0 µs per launch: starting a kernel costs about as much; fuse it with its neighbors, or launch it in a graph
stood still: limit not known: counters did not count at this performance level
far: latency bound: the nearest limit is instruction issue at least 0 %, with 3 % of the wave slots filled; more waves
    or more loads in flight per wave hide the latency. Registers, LDS and block size allow all 8 wave slots of a SIMD
a spreadsheet destroyed the times: limit not known: memory, L2, L1 unknown without the kernel's time; the nearest
    counted limit is LDS 17 %
a clock of 0 in an MI350's file: limit not known: memory (partly) not counted; L2, L1 unknown without the highest
    clock; the nearest counted limit is LDS 18 %\
""")


def kernels_of(*kernels):
    """Return the profile of kernels without counters, one launch of one block each: (name, ns)."""
    made = made_of({"ns": 40_000})
    row = made.dispatches
    rows = [row.assign(kernel=name, grid=256, start_ns=0, end_ns=ns) for name, ns in kernels]
    made.dispatches = pd.concat(rows, ignore_index=True).astype(row.dtypes.to_dict() | {"kernel": "category"})
    return made


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
        "one block fits on a compute unit, 12 % of its wave slots: while its waves wait, no other block runs. LDS "
        "binds at 1 wave of 8: 81920 bytes of LDS over the step to 2 waves"
    )
    assert [(each.gpus, each.says) for each in named.unknown] == [("", unknown.says)]
    small = made_of(BMM2)
    small.agents = small.agents.iloc[:0]
    (unknown,) = summarise(profile_report.build(small)).unknown
    assert unknown.gpus.startswith("MI210, MI250, MI250X, MI300A, MI300X, ")
    assert all(profile_report.build(small, gpu=name).devices for name in unknown.gpus.split(", or ")[0].split(", "))


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
    renamed = made_of(BMM1)
    renamed.dispatches = renamed.dispatches.assign(kernel=pd.Categorical(["other"]), grid=1024)
    other = profile_compare.compare(profile_report.build(renamed), after)
    assert (other.first, len(other.lines)) == (None, 1)
    for text in (profile_pages.profile_html(after, 0, comparison), profile_pages.profile_markdown(after, comparison)):
        assert comparison.lines[0].lstrip("+") in text


def test_the_terminal_says_what_the_page_does(tmp_path, monkeypatch, capsys):
    """It printed a path: now what changed comes first, then what bounds the kernel; the JSON has the codes."""
    made = {"before": made_of(BMM1), "after": made_of(BMM2)}
    for name in made:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("rocattn_profiling.profile.ingest.read", lambda paths: made[paths[0].name])
    paths = ["report", str(tmp_path / "after"), "--against", str(tmp_path / "before"), "--out", str(tmp_path / "out")]
    assert main(paths) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("+29.0 %: kernel 1, LDS busy 23 → 79 %", f"The report is at {tmp_path}/out/profile.html")
    (kernel,) = json.loads((tmp_path / "out/profile.json").read_text())["kernels"]
    assert (kernel["verdict"]["code"], kernel["limits"]["known"][0]["limit"]) == ("bound", "lds")
