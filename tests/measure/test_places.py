"""Numbers of two places are never compared: not in tables, reports, charts, sums over layers or histories."""

import json

import msgspec
import pytest
from inline_snapshot import snapshot
from markupsafe import escape

from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.bench import model as bench_model
from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.bench import view as bench_view
from rocattn_profiling.bench.model import passes
from rocattn_profiling.cli import main
from rocattn_profiling.measure import stats
from rocattn_profiling.measure.records import Place, append_record, by_place, place_names, place_of
from rocattn_profiling.report import command as report_command

from ..bench.made_records import MACHINE, make_record
from ..screens import screen

MS = 1e6
OTHER = msgspec.structs.replace(MACHINE, name="m", numpy="2.1")
# Two nodes of one type: on n1 the second backend is 4 times as fast as the first, on n2 half as fast.
NODES = {"n1": (8 * MS, 2 * MS), "n2": (10 * MS, 20 * MS)}
CONFIGS = [AttentionConfig(batch=1, num_heads=2, seq_q=n, seq_k=n, head_dim=16) for n in (7, 33)]


def fleet_records(configs=CONFIGS, **changes):
    """Return what two nodes measured of the same configs, as one file holds it: mixed."""
    return [
        make_record([[time, 1.01 * time], [time, 1.02 * time]], config=config, backend=backend, host=host,
                    pair=f"{host} {config.label}", **changes)
        for config in configs
        for at, backend in enumerate(("cpu", "cpu-flash"))
        for host, times in NODES.items()
        for time in (times[at],)
    ]  # fmt: skip


def test_nodes_of_one_type_are_two_places():
    """The machine alone, which they share, does not make them one; neither does a name, where the software differs."""
    places = [place_of(record) for record in fleet_records()]
    assert len(set(places)) == 2
    assert place_names(places) == {Place(MACHINE, "n1"): "m (n1)", Place(MACHINE, "n2"): "m (n2)"}
    assert place_names([Place(MACHINE, ""), Place(OTHER, "")]) == {
        Place(MACHINE, ""): "m, numpy 2.0", Place(OTHER, ""): "m, numpy 2.1",
    }  # fmt: skip


def test_a_repetition_replaces_only_at_its_own_place():
    """The same config on another node is another measurement."""
    records = fleet_records()
    again = msgspec.structs.replace(records[1], pair="later")
    kept = stats.newest([*records, again])
    assert len(kept) == len(records)
    assert kept[1].pair == "later"
    assert {place_of(record).host for record in kept} == {"n1", "n2"}


def test_records_of_two_places_have_no_speedup():
    """Two jobs that were given one pair by mistake are still not side by side."""
    a, b = (make_record([[MS]], backend=name, host=host) for name, host in (("cpu", "n1"), ("cpu-flash", "n2")))
    with pytest.raises(RocattnError, match="not measured side by side"):
        stats.speedup(a, b)


def test_the_bench_table_is_one_for_each_place(capsys):
    """Each says where it is of, and its speed-ups are of that place alone."""
    records = fleet_records()
    bench_view.print_tables([("s", records)])
    first, second = capsys.readouterr().err.split("s on m (n2)")
    assert "s on m (n1)" in first
    assert "4.00x" in first
    assert "0.50x" not in first
    assert "0.50x" in second
    assert "4.00x" not in second
    found = bench_view.speedups(records)
    assert [round(speedup.ratio, 2) for _, speedup in found] == [4.0, 0.5] * len(CONFIGS)


def test_more_than_a_ceiling_is_undecided_and_explained(capsys):
    """127 % of a ceiling is no share: every view says "undecided", and once why; the ceiling is said to be passed."""
    config = AttentionConfig(batch=1, num_heads=2, seq_q=64, seq_k=64, head_dim=16)
    usual, fast = (make_record([[2000.0]], config=config, backend=name) for name in ("cpu", "cpu-flash"))
    fast = msgspec.structs.replace(fast, ceilings={"gemm_tflops": stats.summarize(fast).tflops / 1.27})
    usual = msgspec.structs.replace(usual, ceilings={"gemm_tflops": stats.summarize(usual).tflops / 0.27})
    why = f"undecided % of ceiling: {stats.ABOVE_CEILING.line}"
    bench_view.print_tables([("s", [usual, fast])])
    text = capsys.readouterr().err
    assert "127" not in text
    assert "27.0 GEMM  " in text
    assert text.count(why) == 1
    html = report_command.report_html(bench_report.build([usual, fast]), 0)
    assert "127 ?" not in html
    assert html.count(">undecided<") == 1
    assert html.count(str(escape(why))) == 1
    row = bench_report.to_json(bench_report.build([usual, fast]))["rows"][1]["summary"]
    assert row["gemm_pct"] is None
    assert row["undecided"]["gemm_pct"]["code"] == "above_ceiling"
    cells = report_command.to_frame([usual, fast])["undecided"].tolist()
    assert cells == ["", "gemm_pct: above_ceiling"]
    bench_view.print_tables([("s", [usual])])
    assert "undecided" not in capsys.readouterr().err
    assert ">undecided<" not in report_command.report_html(bench_report.build([usual]), 0)


def test_the_report_has_a_group_for_each_place():
    """Rows, verdicts, charts and ceilings are of one place; each of the two says which."""
    ceilings = {"n1": {"memory_gbps": 40.0}, "n2": {"memory_gbps": 10.0}}
    records = [msgspec.structs.replace(record, ceilings=ceilings[record.host]) for record in fleet_records()]
    report = bench_report.build(records)
    assert [group.name for group in report.groups] == ["s on m (n1)", "s on m (n2)"]
    assert [{row.verdict for row in group.rows if row.speedup} for group in report.groups] == [{"faster"}, {"slower"}]
    for group, host in zip(report.groups, NODES, strict=True):
        assert {row.record.host for row in group.rows} == {host}
        (chart,) = group.charts
        assert [len(line.marks) for line in chart.lines] == [len(CONFIGS)] * 2
    assert [(each.name, each.ceilings["memory_gbps"]) for each in report.machines] == [("m (n1)", 40.0), ("m (n2)", 10)]
    for text in (report_command.report_html(report, 0), report_command.report_markdown(report)):
        assert "n1" in text
        assert "n2" in text


def test_the_baseline_of_one_place_is_none_of_another():
    """Where the first backend was measured only elsewhere, there is nothing to compare with."""
    records = [record for record in fleet_records() if (record.host, record.backend) != ("n2", "cpu")]
    report = bench_report.build(records)
    assert [row.speedup is not None for group in report.groups for row in group.rows] == [False, True] * 2 + [False] * 2


def test_the_report_command_writes_both_places_everywhere(tmp_path):
    """`rocattn report` of a fleet's file: every format names the node of every row."""
    for record in fleet_records():
        append_record(tmp_path / "bench" / "records.jsonl", record)
    words = ["--records", str(tmp_path / "bench"), "--out", str(tmp_path / "report")]
    assert main(["report", *words, "--format", "json", "csv", "samples", "html", "md"]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {(row["host"], round(row["speedup"]["ratio"], 1)) for row in report["rows"] if row["speedup"]} == {
        ("n1", 4.0), ("n2", 0.5),
    }  # fmt: skip
    assert [machine["host"] for machine in report["machines"]] == ["n1", "n2"]
    for name in ("results.csv", "samples.csv"):
        assert "n1" in (tmp_path / "report" / name).read_text()
    assert len(report_command.to_frame(fleet_records())) == len(fleet_records())


def test_layers_of_a_model_are_added_up_within_one_place_only(capsys):
    """Half of a pass here and half of it there is no pass; two whole ones are two, each with its own times."""
    records = fleet_records(layers=3, suite="model-x")
    both = [AttentionConfig(batch=1, num_heads=2, seq_q=7, seq_k=7, head_dim=dim) for dim in (16, 24)]
    whole = fleet_records(both, layers=3, suite="model-y")
    halves = [r for r in whole if (r.config["head_dim"] == 16) == (r.host == "n1")]
    assert passes(halves) == []
    found = passes(whole)
    assert {(one.machine, one.backend): one.layers for one in found} == {
        (f"m ({host})", backend): 6 for host in NODES for backend in ("cpu", "cpu-flash")
    }
    assert {one.machine for one in passes(r for r in records if r.host == "n1")} == {""}
    bench_model.print_passes(whole)
    assert screen(capsys.readouterr().err) == snapshot("""\
time to first token, 6 attention layers on m (n1)
 tokens       cpu   cpu-flash
 ────────────────────────────
 7        48.2 ms     12.1 ms
time to first token, 6 attention layers on m (n2)
 tokens       cpu   cpu-flash
 ────────────────────────────
 7        60.3 ms      121 ms
attention layers only: no projections, no feed-forward layers, no sampling; a whole model takes longer\
""")


def test_the_asv_store_has_a_history_for_each_place(tmp_path):
    """No line goes from a time of one node to a time of another."""
    store = AsvStore(tmp_path, tmp_path / "results")
    store.add_records(fleet_records())
    assert set(store.machines()) == {"m-n1", "m-n2"}
    values = {(series.machine, series.benchmark): {point.value for point in series.points} for series in store.read()}
    assert len(values) == 4
    assert all(len(of_line) == 1 for of_line in values.values())


def test_by_place_keeps_every_record_once():
    """Grouping neither drops nor doubles."""
    records = fleet_records()
    assert sorted(map(id, records)) == sorted(id(r) for members in by_place(records).values() for r in members)
