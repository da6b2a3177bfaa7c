"""The profile report shows what was measured, says what was not, and takes no markup from the files."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.cli import main
from rocattn_profiling.profile.ingest.table import COUNTER_DTYPES, DISPATCH_DTYPES, ROOF_DTYPES, Profile
from rocattn_profiling.profile.report import compare as profile_compare
from rocattn_profiling.profile.report import pages as profile_pages
from rocattn_profiling.profile.report import report as profile_report

from ...screens import line
from ..kit import agents, frame

MI300X = {
    "number": 0, "arch": "gfx942", "product": "MI300X", "cus": 304, "simds": 1216, "max_waves_per_cu": 32, "xccs": 8,
    "max_clock_mhz": 2100, "max_memory_clock_mhz": 1300, "memory_channels": 128, "lds_banks": 32, "l2_channels": 128,
    "file": "run/sysinfo.csv",
}  # fmt: skip
COUNTED = {
    "SQ_LEVEL_WAVES_ACCUM": 4.8e8, "GRBM_GUI_ACTIVE": 8e5, "SQ_ACTIVE_INST_VALU": 6e6, "SQ_VALU_MFMA_BUSY_CYCLES": 2e7,
    "TCC_HIT_sum": 300.0, "TCC_MISS_sum": 100.0, "TCC_EA0_RDREQ_sum": 2e6, "TCC_EA0_RDREQ_32B_sum": 0.0,
    "TCC_BUBBLE_sum": 2e6, "TCC_EA0_WRREQ_sum": 1e5, "TCC_EA0_WRREQ_64B_sum": 1e5,
    "SQ_INSTS_VALU_MFMA_MOPS_F16": 1e7, "SQ_INSTS_VALU_MFMA_MOPS_BF16": 0.0,
}  # fmt: skip


def profile(*kernels, scale=1.0):
    """Return a profile of kernels launched three times each: (name, ns); ``scale`` stretches the times."""
    rows, counts = [], []
    for name, duration in kernels:
        for number in range(3):
            counts += [(len(rows), counter, value) for counter, value in COUNTED.items()]
            rows.append({
                "process": 7, "dispatch": len(rows), "pass": "run", "kernel": name, "grid": 256 * 1000, "block": 256,
                "wave_size": 64, "vgprs": 128, "agprs": 0, "lds_bytes": 16384, "scratch_bytes": 0, "agent": 0,
                "start_ns": 10_000 * number, "end_ns": 10_000 * number + round(duration * scale), "queue": 1,
            })  # fmt: skip
    table = frame(rows, DISPATCH_DTYPES)
    counted = frame(counts, COUNTER_DTYPES)
    roof = {"device": 0, "roof": "HBM", "unit": "GB/s", "mean": 4214.0, "low": 4200.0, "high": 4220.0}
    others = roof | {"mean": 1389.0, "file": "other/roofline.csv"}
    roofs = pd.DataFrame([others, roof | {"file": "run/roofline.csv"}])[list(ROOF_DTYPES)].astype(ROOF_DTYPES)
    return Profile(dispatches=table, counters=counted, agents=agents(MI300X), roofs=roofs)


def test_each_metric_comes_with_value_unit_formula_and_source():
    """In the JSON, per kernel; 256 MB in 100 us are 2560 GB/s."""
    made = profile_report.build(profile(("attention", 100_000)))
    (kernel,) = json.loads(profile_report.dump(profile_report.to_json(made)))["kernels"]
    read = kernel["metrics"]["read_gbps"]
    assert read["value"] == pytest.approx(2560)
    assert (read["unit"], read["flags"], read["launches"]) == ("GB/s", [], 3)
    assert read["formula"] == "read_bytes / duration_ns"
    assert read["source"]
    assert kernel["time_ns"]["p50"] == 100_000
    assert kernel["theoretical_occupancy"]["binding"]["name"] == "VGPRs"


def test_a_report_per_dispatch_has_a_row_for_each():
    """With its number and process."""
    made = profile_report.build(profile(("a", 1000), ("b", 2000)), per="dispatch")
    assert [(kernel.name, kernel.dispatch) for kernel in made.kernels] == [*zip("aaabbb", range(6), strict=True)]


def test_a_profile_without_dispatches_is_an_error_of_one_line():
    """Not an empty report."""
    with pytest.raises(RocattnError, match="no kernel dispatch"):
        profile_report.build(Profile())


def test_the_page_needs_nothing_from_elsewhere():
    """No script and no address but those within it."""
    page = profile_pages.profile_html(profile_report.build(profile(("attention", 100_000), ("copy", 50_000))), 0)
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?!#)[^\"]*\"|url\(|https?://", page)
    assert "1,389" not in page, "that is another machine's"
    assert re.findall('<a href="#k1" aria-label="([^"]*)"', page) == snapshot(
        ["1. attention: 51.2 TFLOP/s at 19.5 FLOP/byte"]
    )


def test_a_flagged_occupancy_is_marked():
    """With a star in both tables; one without remarks has none."""
    made = profile_report.build(profile(("attention", 100_000)))
    (kernel,) = made.kernels
    for flags, star in ((("counted in part",), True), ((), False)):
        kernel.values["achieved_occupancy_pct"] = replace(
            kernel.values["read_gbps"], key="achieved_occupancy_pct", value=41.5, flags=flags
        )
        text, page = profile_pages.profile_markdown(made), profile_pages.profile_html(made, 0)
        assert ("| 41.5 %\\* |" in text, "| 41.5 % |" in text) == (star, not star)
        assert re.findall('41.5 %<span title="([^"]*)"', page) == list(flags)


def test_kernel_names_cannot_inject_markup():
    """Names come from other people's binaries."""
    evil = '"><img src=x onerror=alert(1)>|`*[a](javascript:alert(2))'
    made = profile_report.build(profile((evil, 100_000)))
    page, text = profile_pages.profile_html(made, 0), profile_pages.profile_markdown(made)
    assert "<img" not in page
    assert "<img" not in text
    assert "[a](" not in text
    assert json.loads(profile_pages.trace_json(made.profile))["traceEvents"][1]["args"]["kernel"] == evil


def test_fifty_kernels_with_long_names_are_less_than_a_megabyte():
    """Templated names have thousands of characters; tables show their beginning."""
    names = [(f"kernel_{n}_" + "a" * 4000, 1000 * n) for n in range(1, 51)]
    assert len(profile_pages.profile_html(profile_report.build(profile(*names)), 0)) < 1_000_000


def test_a_kernel_on_an_unknown_gpu_is_shown_with_a_reason():
    """Times are there, metrics are not."""
    made = profile(("attention", 100_000))
    made.agents = made.agents.iloc[:0]
    report = profile_report.build(made)
    page = profile_pages.profile_html(report, 0)
    assert report.kernels[0].values == {}
    assert re.findall("<li><strong>(needs[^<]*)</strong>", page) == ["needs the GPU that it ran on"]
    assert "100 µs" in page


def test_two_profiles_are_compared_kernel_by_kernel():
    """Half the time is named with what moved; a kernel of one side only is said to be."""
    before = profile(("a", 100_000), ("gone", 10), ("gone, too", 10))
    after = profile(("a", 100_000), ("new", 10), scale=0.5)
    comparison = profile_compare.compare(profile_report.build(before), profile_report.build(after))
    pairs = comparison.pairs
    by_name = {pair.name: pair for pair in pairs}
    assert pairs[0].name == "a"
    assert by_name["a"].ratio == pytest.approx(0.5)
    moved = {move.after.key: move.change for move in by_name["a"].moves}
    assert moved["read_gbps"] == pytest.approx(0.5), "twice as much, relative to the larger"
    assert "l2_hit_pct" not in moved
    found = {entry["kernel"]: entry["only_in"] for entry in profile_compare.to_json(comparison)}
    assert found == {"a": None, "gone": "before", "gone, too": "before", "new": "after"}


def test_a_comparison_is_of_medians_and_says_from_what_to_what():
    """The kernel that changed most in all comes first, of its metrics the one that moved most, up or down."""
    before = profile_report.build(profile(("steady", 900_000), ("faster", 100_000)))
    after = profile_report.build(profile(("steady", 900_000), ("faster", 60_000)))
    before.kernels[1].time_ns[90] = 1e9  # a slow launch is in no median
    old, new = before.kernels[1].values, after.kernels[1].values
    new["l2_hit_pct"] = replace(new["l2_hit_pct"], value=15.0)
    new["valu_busy_pct"] = replace(new["valu_busy_pct"], formula="of other counters")
    new["tflops"] = replace(new["tflops"], value=old["tflops"].value * 0.96)
    new["matrix_busy_pct"] = replace(new["matrix_busy_pct"], value=old["matrix_busy_pct"].value * 1.1)
    comparison = profile_compare.compare(before, after)
    pairs = comparison.pairs
    assert [(pair.name, pair.ratio) for pair in pairs] == [("faster", pytest.approx(0.6)), ("steady", pytest.approx(1))]
    assert pairs[1].moves == ()
    assert pairs[0].not_comparable == (new["valu_busy_pct"].title,)
    told = profile_compare.to_json(comparison)[0]
    assert told["time_ratio"] == pytest.approx(0.6)
    first, *others = told["moved"]
    assert (first["metric"], first["before"], first["after"]) == ("l2_hit_pct", pytest.approx(75), 15.0)
    assert first["change"] == pytest.approx(-0.8), "a fifth is left"
    assert {"read_gbps", "write_gbps", "matrix_busy_pct"} <= {move["metric"] for move in others}
    assert not {"tflops", "valu_busy_pct"} & {move["metric"] for move in others}
    page = profile_pages.profile_html(after, 0, comparison)
    assert f"{new['l2_hit_pct'].title} 75.0 to 15.0 %" in page
    assert re.findall("(?<=different counters\\): )[^<.;]*", page) == snapshot(["VALU busy"])
    for text in (page, profile_pages.profile_markdown(after, comparison)):
        assert "-40.0 %" in text


def test_a_kernel_is_compared_with_itself_on_the_same_problem():
    """Of two problems, the one that only one side has is beside nothing."""
    before, after = (profile_report.build(profile(("a", time), ("b", 10))) for time in (1000, 2000))
    before.kernels = [replace(before.kernels[0], label="Sq=128")]
    after.kernels = [replace(after.kernels[0], label=label) for label in ("Sq=4096", "Sq=128")]
    comparison = profile_compare.compare(before, after)
    pairs = comparison.pairs
    assert {(pair.label, pair.ratio) for pair in pairs} == {("Sq=128", 2.0), ("Sq=4096", None)}
    for text in (profile_pages.profile_html(after, 0, comparison), profile_pages.profile_markdown(after, comparison)):
        assert text.count("not present") == 1


def test_what_a_comparison_leaves_out_is_counted():
    """Sixteen kernels in Markdown that shows fifteen; of a kernel whose metrics moved, the first four."""
    before, after = (profile_report.build(profile(*[(f"k{n}", t + n) for n in range(16)])) for t in (100_000, 300_000))
    comparison = profile_compare.compare(before, after)
    pairs = comparison.pairs
    pairs[0] = replace(pairs[0], moves=pairs[0].moves * 2)
    text = profile_pages.profile_markdown(after, comparison)
    assert line(text, "JSON") == snapshot("1 more kernels are in the JSON.")
    assert len(pairs[0].moves) > 6
    assert f"; {len(pairs[0].moves) - 4} more |" in text
    page = profile_pages.profile_html(after, 0, comparison)
    assert str(len(pairs[0].moves) - 6) in re.findall("; ([0-9]+) more are in", page)
    few = profile_pages.profile_markdown(after, replace(comparison, pairs=pairs[:15]))
    assert "JSON" not in few


def test_launches_of_two_runs_are_compared_as_their_kernels(tmp_path, monkeypatch):
    """With a row for each launch, the last one of a kernel was compared with the last one, and nothing said so."""
    made = {"before": profile(("a", 1000)), "after": profile(("a", 2000))}
    made["after"].dispatches.loc[2, "end_ns"] = made["after"].dispatches.loc[2, "start_ns"] + 500
    for name in made:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("rocattn_profiling.profile.ingest.read", lambda paths: made[paths[0].name])
    paths = ["report", str(tmp_path / "after"), "--against", str(tmp_path / "before"), "--out", str(tmp_path / "out")]
    assert main([*paths, "--per", "dispatch"]) == 0
    found = json.loads((tmp_path / "out/profile.json").read_text())
    assert len(found["kernels"]) == 3
    assert [(pair["kernel"], pair["time_ratio"]) for pair in found["against"]] == [("a", 2.0)]


def test_times_on_different_gpus_are_no_change():
    """An MI300A's copy beside an MI300X's was "-50.1 %", a ratio of two GPUs."""
    before, after = profile(("a", 1000)), profile(("a", 500))
    before.agents = before.agents.assign(product="MI300A", cus=228, xccs=6)
    earlier, later = profile_report.build(before), profile_report.build(after)
    earlier.problems = ["x.csv: the last line is cut off; dropped"]
    comparison = profile_compare.compare(earlier, later)
    assert comparison.gpus == ("Instinct MI300A", "Instinct MI300X")
    assert [(pair.ratio, pair.cause) for pair in comparison.pairs] == [(None, None)]
    assert (comparison.named, comparison.first) == ([], None)
    assert profile_compare.cautions(earlier, later) == ["earlier profile: x.csv: the last line is cut off; dropped"]
    later.problems = []  # the bytes of these short launches are more than they can have read
    assert profile_compare.cautions(later, later) == []
    earlier.devices = []  # of which nothing is known
    assert len(profile_compare.cautions(earlier, later)) == 2


def test_the_trace_has_each_dispatch_at_its_time():
    """Microseconds from the first dispatch of the pass."""
    made = profile(("a", 1500))
    made.dispatches.loc[2, ["start_ns", "end_ns"]] = pd.NA
    events = json.loads(profile_pages.trace_json(made, ["x", "", ""]))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["ts"], event["dur"], event["name"]) for event in slices] == [(0, 1.5, "x"), (10, 1.5, "a")]


def test_a_trace_has_a_track_per_queue():
    """All call their first queue 1: on one track, launches that ran at once would be taken for nested ones."""
    made = profile(("a", 15_000))
    made.agents = pd.concat([made.agents] * 2, ignore_index=True).assign(number=[4, 5])
    made.dispatches = made.dispatches.assign(process=[7, 8, 8], agent=[0, 0, 1]).astype(DISPATCH_DTYPES)
    events = json.loads(profile_pages.trace_json(made))["traceEvents"]
    assert len({event["tid"] for event in events if event["ph"] == "X"}) == 3
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {names[event["tid"]] for event in events if event["ph"] == "X"} == {
        "process 7, GPU 4, queue 1", "process 8, GPU 4, queue 1", "process 8, GPU 5, queue 1",
    }  # fmt: skip


def test_a_trace_starts_each_pass_at_0(monkeypatch):
    """Passes ran one after another; a launch without an end has no length, and is not counted as left out."""
    made = profile(("a", 1500))
    made.dispatches["pass"] = pd.Categorical(["run", "run", "again"])
    told = json.loads(profile_pages.trace_json(made))
    assert told["otherData"] == {}
    slices = [event for event in told["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["ts"]) for event in slices] == [(0, 0), (0, 10), (1, 0)]
    assert [event["args"]["name"] for event in told["traceEvents"] if event["name"] == "process_name"] == [
        "run",
        "again",
    ]
    made.dispatches.loc[0, "end_ns"] = pd.NA
    assert json.loads(profile_pages.trace_json(made))["otherData"] == {}
    monkeypatch.setattr(profile_pages, "MOST_EVENTS", 4)  # of all passes together
    made.dispatches.loc[0, "end_ns"] = made.dispatches.loc[0, "start_ns"] + 5
    told = json.loads(profile_pages.trace_json(made))
    assert sum(event["ph"] == "X" for event in told["traceEvents"]) == 2
    assert told["otherData"] == {"left_out": "1 more dispatches"}


def test_times_left_out_leave_the_kernel_in_the_report():
    """A file without usable timestamps still has counters."""
    made = profile(("a", 1500))
    made.dispatches[["start_ns", "end_ns"]] = pd.NA
    report = profile_report.build(made)
    assert report.kernels[0].time_ns == {}
    assert report.kernels[0].values["l2_hit_pct"].value == pytest.approx(75)
    assert "read_gbps" in report.missing
    assert np.isfinite(report.kernels[0].time_share)
    assert profile_report.to_json(report)["kernels"][0]["time_share"] is None
    assert " 0.0 %" not in profile_pages.profile_markdown(report)
    assert profile_pages.profile_html(report, 0)


@pytest.mark.parametrize(("waves", "possible"), [(8000, 75), (4000, 37.5), (None, 75)])
def test_rdna_s_waves_are_of_the_size_that_their_count_fits(waves, possible):
    """1,000 blocks of 256 are 8,000 waves of 32, of which 12 fit with 120 VGPRs, or 4,000 of 64: 6."""
    made = profile(("a", 6000))
    made.agents = made.agents.assign(arch="gfx1100", product="RX 7900 XTX", cus=96, simds=192, xccs=1)
    made.dispatches = made.dispatches.assign(wave_size=pd.NA, vgprs=120).astype(DISPATCH_DTYPES)
    if waves is not None:
        counted = [{"row": row, "counter": "SQ_WAVES", "value": waves} for row in range(3)]
        made.counters = pd.DataFrame(counted).astype(COUNTER_DTYPES)
    assert profile_report.build(made).kernels[0].occupancy.occupancy_pct == possible


def test_the_mean_time_is_of_the_launches_that_have_one():
    """One of three launches of 6 us without times: they are not taken for three of 4 us, bound by their launches."""
    made = profile(*[("a", 6000)] * 4)
    made.dispatches.loc[::3, ["start_ns", "end_ns"]] = pd.NA
    assert "launch-bound" not in [finding.key for finding in profile_report.build(made).kernels[0].findings]
