"""Files of other tools are read or named for what they are, with the way to something that is read."""

import gzip
import json
import sqlite3
from contextlib import closing

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.profile import ingest

from ...screens import line, screen
from ..kit import lines_of
from . import generators as g
from . import older_generators as older
from .test_formats import held, truth

PACKET = b"\n\x06\x08\x01\x10\x00 \x05"
NODE = {
    "frame": {"name": "attn", "type": "function"},
    "metrics": {"count": 3, "time (ns)": 6000.0, "device_type": "HIP"},
}


FILES = {
    "a.pftrace": PACKET * 20, "renamed": PACKET * 20, "perfetto-trace.proto": b"\n\xff\xff\x03" + b"\0" * 50,
    "a.ncu-rep": b"NVR\0\1\2", "a.nsys-rep": b"\1\2\3\0" * 9, "a.xlsx": b"PK\3\4\0\0",
    "smi.json": b'[{"gpu": 0, "usage": {"gfx_activity": {"value": 3, "unit": "%"}}}]',
    "smi.csv": b"timestamp,gpu,power_usage,hotspot_temperature\n1,0,100,50\n",
    "smi.txt": b"GPU: 0\n    USAGE:\n        GFX_ACTIVITY: 3 %\n",
    "2.1_Speed-of-Light.csv": b"Metric,Avg,Unit,Peak,Pct of Peak\nVALU,1,GFLOP,2,3\n",
    "16.3.csv": b"Metric,Avg,Min,Max,Unit\nx,1,1,1,y\n",
    "0.1.csv": b"Kernel_Name,Count,Sum(ms),Mean(ms),Pct\nk,1,1,1,1\n",
    "gpu_timeline.csv": b"type,time ms,percent\nbusy,1,2\n", "GEMM.csv": b"name,param: M,param: N\naten::mm,1,2\n",
    "idle.csv": b"rank,idle_time_us,compute_time_us\n0,1,2\n",
    "other.json": b'{"traceEvents": [{"ph": "X", "name": "x"}]}',
    "results.json": b',{"args":{"name":"COPY"},"ph":"M","pid":1,"name":"process_name"}\n', "any.json": b'{"a": 1}',
    "notes.txt": b"\na text that starts with an empty line\n",  # which makes no trace of it
}  # fmt: skip


def test_a_known_file_is_named(tmp_path):
    """By its content where that tells, else by the end of its name; databases by their tables.

    rocprof 1 writes one beside results.csv, Nsight Systems exports one.
    """
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    for name, table in (("results.db", "KERN"), ("nsys.db", "CUPTI_ACTIVITY_KIND_KERNEL"), ("x.db", "x")):
        with closing(sqlite3.connect(tmp_path / name)) as made, made:
            made.execute(f"CREATE TABLE {table} (name)")
    found = {summary.source.file.rpartition("/")[2]: summary.source for summary in ingest.describe([tmp_path])}
    said = {f"{name} ({source.tool})": source.skipped for name, source in sorted(found.items())}
    assert lines_of(said) == snapshot("""\
0.1.csv (rocprof-compute): top kernels of `rocprof-compute analyze`, computed from pmc_perf.csv, which is read: pass
    the workload's folder
16.3.csv (rocprof-compute): a table of `rocprof-compute analyze`, computed from pmc_perf.csv, which is read: pass the
    workload's folder
2.1_Speed-of-Light.csv (rocprof-compute): a table of `rocprof-compute analyze`, computed from pmc_perf.csv, which is
    read: pass the workload's folder
GEMM.csv (TraceLens): a table of TraceLens, computed from a trace: pass the trace itself
a.ncu-rep (Nsight Compute): a report of Nsight Compute from an NVIDIA GPU: rocattn reports on AMD GPUs only
a.nsys-rep (Nsight Systems): a report of Nsight Systems from an NVIDIA GPU: rocattn reports on AMD GPUs only
a.pftrace (Perfetto): a Perfetto trace (rocprofv3 -f pftrace, rocprof-sys): record with rocprofv3 --kernel-trace
    --output-format csv json rocpd, which are read
a.xlsx (): an archive or workbook: unpack it, or pass the files that it was made from
any.json (): a JSON file that no known profiler wrote
gpu_timeline.csv (TraceLens): a table of TraceLens, computed from a trace: pass the trace itself
idle.csv (HolisticTraceAnalysis): a table of HolisticTraceAnalysis, computed from a trace: pass the trace itself
notes.txt (): a text file that no known profiler wrote
nsys.db (Nsight Systems): Nsight Systems' export from an NVIDIA GPU: rocattn reports on AMD GPUs only
other.json (): a Chrome trace of neither PyTorch's profiler nor rocprof 1: record with rocprofv3 --kernel-trace
    --output-format csv json rocpd, which are read
perfetto-trace.proto (Perfetto): a Perfetto trace (rocprofv3 -f pftrace, rocprof-sys): record with rocprofv3 --kernel-
    trace --output-format csv json rocpd, which are read
renamed (Perfetto): a Perfetto trace (rocprofv3 -f pftrace, rocprof-sys): record with rocprofv3 --kernel-trace
    --output-format csv json rocpd, which are read
results.db (rocprof): rocprof 1's copy of the launches in results.csv, which is read: pass that file
results.json (rocprof): rocprof 1's trace without kernels: --hip-trace or --sys-trace records them; results.csv has
    them, too
smi.csv (amd-smi): amd-smi's readings: clocks, power and temperatures, no kernels
smi.json (amd-smi): amd-smi's readings: clocks, power and temperatures, no kernels
smi.txt (amd-smi): amd-smi's readings: clocks, power and temperatures, no kernels
x.db (): a SQLite database that no known profiler wrote\
""")


def test_compressed_json_is_read_as_it_is_plain(tmp_path):
    """rocprofv3's results and rocprof 1's trace."""
    made = g.launches(3)
    for write in (g.v3_json, older.chrome):
        plain = write(tmp_path / f"{write.__name__}.json", made)
        packed = tmp_path / f"{write.__name__}.json.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        assert ingest.read([packed]).dispatches["start_ns"].equals(ingest.read([plain]).dispatches["start_ns"])
    assert held(ingest.read([tmp_path / "v3_json.json.gz"])) == truth(made)
    packed.write_bytes(packed.read_bytes()[:-20])
    (problem,) = ingest.read([packed]).problems
    assert problem.what == snapshot(
        "the compressed file is damaged or cut off (Compressed file ended before the end-of-stream marker was "
        "reached); profile again"
    )


@pytest.mark.parametrize("write", ["v3", "v1", "proton"])
def test_statistics_alone_are_reported_as_such(tmp_path, capsys, write):
    """Calls, total, mean and share, and that single launches are unknown: of rocprofv3, rocprof 1 and proton."""
    path = tmp_path / {"v3": "a_kernel_stats.csv", "v1": "results.stats.csv", "proton": "attn.hatchet"}[write]
    if write == "proton":
        tree = {"frame": {"name": "ROOT", "type": "function"}, "metrics": {"count": 0, "time (ns)": 0}, "children": [
            {"frame": {"name": "step", "type": "function"}, "metrics": {}, "children": [NODE | {"children": []}]},
            NODE | {"frame": {"name": "gemm"}, "metrics": {"count": 1, "time (ns)": 5999.0}, "children": []},
        ]}  # fmt: skip
        path.write_text(json.dumps([tree, {"HIP": {"0": {"arch": "gfx942", "num_sms": 304}}}]))
    else:
        rows = "attn,3,6000,2000,50.0" if write == "v1" else '"attn",3,6000,2000.0,50.0,1500,2500,9.0'
        names = "Name,Calls,TotalDurationNs,AverageNs,Percentage" + ("" if write == "v1" else ",MinNs,MaxNs,StdDev")
        path.write_text(f"{names}\n{rows}\n{rows.replace('attn', 'gemm')}\n")
    assert main(["report", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    first = json.loads(out)["statistics"][0]
    assert (first["kernel"], first["calls"], first["total_ns"]) == ("attn", 3, 6000)
    assert first["share"] == pytest.approx(0.5, abs=1e-3)
    assert "6.00 µs" in err
    assert line(err, "statistics only") == snapshot(
        "statistics only: without single launches, limits and the GPU's busy share are unknown (rocattn profile -- "
        "COMMAND)"
    )
    assert main(["report", str(path), "--json", "--kernel", "gem"]) == 0
    out, _ = capsys.readouterr()
    assert [row["kernel"] for row in json.loads(out)["statistics"]] == ["gemm"]
    for option in (("--launches", "1"), ("--gpu", "MI300X"), ("--peak", "hbm=4TB/s"), ("--per", "dispatch")):
        assert main(["report", str(path), *option]) == 3
        assert screen(capsys.readouterr().err) == snapshot(
            "rocattn report: the files have statistics only, not single launches"
        )
