"""The bench report: every number of a record in HTML, Markdown, JSON and CSV, and nothing left out in silence."""

import json
import re
import sys

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import markdown
from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.measure.stats import WIDE_INTERVAL, speedup, summarize
from rocattn_profiling.report import command as report_command
from rocattn_profiling.report.command import report_html, report_markdown

from ..screens import line


def cells(html):
    """The text of every table cell, tags taken out."""
    return [re.sub(r"<[^>]+>", "", c).strip() for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html, re.DOTALL)]


def test_html_shows_every_number_of_a_row(records):
    """Config, backend, percentiles, speed-up with its interval, rates, ceilings, and both errors."""
    from rocattn_profiling.pages.quantities import digits, quantity

    shown = cells(report_html(bench_report.build(records), 0))
    summary = summarize(records[1])
    gain = speedup(records[0], records[1])
    for text in (
        records[1].label, "cpu-flash", quantity(summary.p50_ns / 1e9, "seconds"),
        quantity(summary.p95_ns / 1e9, "seconds"),
        quantity(summary.p99_ns / 1e9, "seconds"), digits(summary.tokens_per_s), digits(summary.tflops),
        digits(summary.tflops_conventional), digits(summary.gbps), digits(summary.gemm_pct), digits(summary.memory_pct),
        "3.0e-07", "6.0e-07", f"{digits(gain.ratio)}x [{digits(gain.low)}, {digits(gain.high)}]",
    ):  # fmt: skip
        assert text in shown


def test_charts_are_time_against_length_for_each_backend(records):
    """Three lengths and two backends make one log-log chart of two lines with as many points as there are lengths."""
    (group,) = bench_report.build(records).groups
    (chart,) = group.charts
    assert [line.name for line in chart.lines] == ["cpu", "cpu-flash"]
    assert [len(line.marks) for line in chart.lines] == [3, 4]
    steps = [(b.x - a.x) for a, b in zip(chart.lines[1].marks, chart.lines[1].marks[1:], strict=False)]
    assert steps[0] / steps[1] == pytest.approx(1.977, abs=0.02)  # log(129/33) / log(257/129)


def test_the_length_from_which_flash_wins_is_said(records, record_of):
    """On the page, in Markdown and in JSON; and whether what calls read was in the caches."""
    cold = record_of(AttentionConfig(batch=2, num_heads=2, seq_q=1, seq_k=17, head_dim=9), caches="cold")
    report = bench_report.build([*records, cold])
    wins = "cpu-flash against cpu: faster at every length measured (33 to 257 keys)"
    html, text = report_html(report, 0), report_markdown(report)
    assert f"{wins}." in html
    assert markdown(wins) in text
    assert re.findall(r"Caches ([^.<]*)\.", html) == ["warm unless marked cold"]
    assert f"{cold.label} cold" in html
    assert markdown(f"{cold.label} cold") in text
    (winning,) = bench_report.to_json(report)["winning_lengths"]
    assert (winning["backend"], winning["standard"], winning["start"]) == ("cpu-flash", "cpu", 33)


def test_gpu_flash_is_compared_with_its_standard_path(record_of):
    """Of a config that no CPU measured; beside one, it is compared with that."""
    config = AttentionConfig(batch=2, num_heads=2, seq_q=17, seq_k=17, head_dim=9)
    made = {name: record_of(config, backend=name, pair="p") for name in ("gpu", "gpu-standard", "cpu")}
    for backends, base in ((("gpu", "gpu-standard"), "gpu-standard"), (("gpu", "gpu-standard", "cpu"), "cpu")):
        rows = bench_report.build([made[name] for name in backends]).groups[0].rows
        assert {row.record.backend: row.speedup and row.speedup.slow for row in rows} == {
            name: None if name == base else base for name in backends
        }


def test_skipped_and_wrong_are_said(records, record_of):
    """A skipped config keeps its reason; a wrong output is named, in red, in every format."""
    config = AttentionConfig(batch=2, num_heads=2, seq_q=17, seq_k=17, head_dim=9)
    good = record_of(config)
    wrong = msgspec.structs.replace(good, check=msgspec.structs.replace(good.check, ok=False, what="lse"))
    report = bench_report.build([*records, wrong])
    html, text = report_html(report, 0), report_markdown(report)
    assert all(record.skipped in html for record in records)
    assert "wrong (lse)" in html
    assert "**1 wrong**" in text
    assert "| skipped |" in text
    assert " WRONG | " in next(line for line in text.splitlines() if line.startswith(f"| {wrong.label} "))
    assert bench_report.to_json(report)["wrong"] == [wrong.id]


def test_nan_is_said_as_such(record_of):
    """The number that stands for inf in JSON is no error of an output."""
    good = record_of(AttentionConfig(batch=1, num_heads=2, seq_q=17, seq_k=17, head_dim=9))
    check = msgspec.structs.replace(good.check, ok=False, max_abs_error=sys.float_info.max)
    report = bench_report.build([msgspec.structs.replace(good, check=check)])
    assert [cell for cell in cells(report_html(report, 0)) if "NaN" in cell] == ["NaN or inf, wrong (out)"]
    (row,) = (line for line in report_markdown(report).splitlines() if " WRONG | " in line)
    assert row.endswith(" | NaN or inf |")


def test_how_to_measure_again_is_a_command(records, record_of):
    """The command names grids, backends and what differs from the defaults; a shape of one's own is spelt out."""
    assert bench_report.build(records).command == "rocattn bench --grid inference --backend cpu cpu-flash --threads 1"
    config = AttentionConfig(
        batch=1, num_heads=4, num_kv_heads=2, seq_q=5, seq_k=9, head_dim=8, causal=True, dtype="float16"
    )
    own = bench_report.build([record_of(config, suite="custom", data="trig", seed=3)])
    assert own.command == (
        "rocattn bench --batch 1 --num-heads 4 --num-kv-heads 2 --seq-q 5 --seq-k 9 --head-dim 8 --head-dim-v 8 "
        "--causal --backend cpu --dtype float16 --data trig --seed 3 --threads 1 --warm"
    )


def test_records_not_measured_side_by_side_get_no_speedup(record_of):
    """Only records of one pair are compared; the others show their times alone."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=8)
    rows = bench_report.build([record_of(config), record_of(config, "cpu-flash", pair="another")]).groups[0].rows
    assert [row.speedup for row in rows] == [None, None]


def test_a_speedup_that_says_nothing_is_undecided(record_of):
    """An interval whose ends differ threefold has no ratio in any view; JSON has the interval, and why."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=8)
    base, wild = record_of(config), record_of(config, "cpu-flash")
    spread = [
        msgspec.structs.replace(launch, samples_ns=[s * 30.0**launch.pos for s in launch.samples_ns])
        for launch in wild.launches
    ]
    report = bench_report.build([base, msgspec.structs.replace(wild, launches=spread)])
    html = report_html(report, 0)
    assert re.search(r'title="[\d.e,-]+ to [^"]+differ by more than[^"]+">undecided<', html)
    undecided = f"undecided speed-up: {WIDE_INTERVAL.text}"
    assert undecided in html
    text = report_markdown(report)
    assert "| undecided |" in text
    assert text.count(undecided) == 1
    found = bench_report.to_json(report)["rows"][1]["speedup"]
    assert (found["ratio"], found["undecided"]["code"]) == (None, "wide_interval")
    assert found["low"] < 1 < found["high"]


def test_a_busy_machine_is_announced(record_of):
    """Launches that lost the CPU over and over are counted and their times marked, in HTML and in Markdown."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=8)
    calm, busy = record_of(config), record_of(config, "cpu-flash")
    disturbed = [msgspec.structs.replace(launch, nivcsw=[50] * 5) for launch in busy.launches]
    report = bench_report.build([calm, msgspec.structs.replace(busy, launches=disturbed)])
    assert (report.launches, report.disturbed) == (6, 3)
    html, text = report_html(report, 0), report_markdown(report)
    (said,) = re.findall("busy machine</span> (.*?)</div>", html)
    assert said == snapshot(
        "3 of 6 process launches repeatedly lost the CPU to other processes: the times marked ! are too long."
    )
    assert html.count(" ms !</td>") == 1
    assert line(text, "lost the CPU") == snapshot(
        "2 measured, 2 checked against float64. 3 of 6 launches repeatedly lost the CPU to other processes: "
        "the times marked ! are too long."
    )
    assert len(re.findall(r"\| [\d.]+ ms ! \|", text)) == 1


def test_a_repeated_measurement_replaces_the_earlier(record_of):
    """Of two records with one id the last written counts, once."""
    config = AttentionConfig(batch=1, num_heads=1, seq_q=9, seq_k=9, head_dim=8)
    report = bench_report.build([record_of(config, time_ns=1e6), record_of(config, time_ns=3e6)])
    assert report.measured == 1
    assert report.groups[0].rows[0].summary.p50_ns > 2e6


def test_json_holds_raw_samples_and_numbers(records):
    """The machine-readable report has every sample, so that anyone can compute again."""
    content = json.loads(msgspec.json.encode(bench_report.to_json(bench_report.build(records))))
    assert content["measured"] == 7
    assert [r["reason"] for r in content["skipped"]] == ["needs 90.1 GiB, 7 GiB are free"]
    kept = {f"{r['suite']}/{r['backend']}/{r['label']}": r for r in content["records"]}
    assert kept[records[0].id]["launches"][0]["samples_ns"] == records[0].launches[0].samples_ns
    assert {"p50_ns", "tflops", "gbps", "tokens_per_s"} <= content["rows"][0]["summary"].keys()


def test_frames_are_tidy(records):
    """One row a measurement with units in the names, one row a sample; skipped ones keep their reason."""
    table = report_command.to_frame(records)
    assert len(table) == len(records) == 8
    assert {"suite", "backend", "seq_q", "dtype", "p50_ns", "tflops", "check_max_abs_error", "skipped"} <= set(
        table.columns
    )
    skipped = table[table["skipped"] != ""]
    assert skipped["p50_ns"].isna().all()
    assert list(skipped["seq_q"]) == [8191]
    samples = report_command.samples_frame(records)
    assert len(samples) == 7 * 3 * 5
    medians = samples.groupby(["backend", "label"])["time_ns"].median()
    assert medians["cpu", records[0].label] == pytest.approx(summarize(records[0]).p50_ns)


def test_markdown_fits_a_comment(record_of):
    """Long tables are cut and say how much is left out; the whole stays well below a comment's 65,536 characters."""
    sizes = range(1, 60)
    many = [
        record_of(AttentionConfig(batch=n, num_heads=1, seq_q=9, seq_k=9, head_dim=8), b)
        for n in sizes
        for b in ("cpu", "x")
    ]
    text = report_markdown(bench_report.build(many))
    assert line(text, "more configs") == "39 more configs in the HTML report."
    assert len(text) < 20_000
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 1
    for table in tables:
        assert len({re.sub(r"\\\|", "", line).count("|") for line in table.splitlines()}) == 1


def test_markdown_cannot_be_injected():
    """Names and reasons are text in Markdown too: no HTML, no link, no new cell, no mention."""
    assert markdown("a|b\n[x](y) <b> @me `c`") == "a&#124;b &#91;x&#93;(y) &#60;b> &#64;&#8203;me &#96;c&#96;"


def test_nothing_to_report_is_an_error():
    """No record at all is not an empty report."""
    with pytest.raises(RocattnError, match="no record"):
        bench_report.build([])
