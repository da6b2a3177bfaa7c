"""Results of other programs: every format is seen in a file, and read with its unit and what is better of it."""

import json
import struct

import pytest

from rocattn_profiling.gate.foreign.readers import FORMS, ReadError, direction, parse, read_results, unit_of

GOOGLE = {
    "context": {"date": "2026-01-02T03:04:05+00:00"},
    "benchmarks": [
        {"name": "sum/8", "run_name": "sum/8", "run_type": "iteration", "iterations": 100, "real_time": 2.0,
         "cpu_time": 1.5, "time_unit": "us"},
        {"name": "sum/8", "run_name": "sum/8", "run_type": "iteration", "iterations": 90, "real_time": 3.0,
         "cpu_time": 2.5, "time_unit": "us"},
        {"name": "sum/8_median", "run_name": "sum/8", "run_type": "aggregate", "aggregate_name": "median",
         "real_time": 2.5, "cpu_time": 2.0, "time_unit": "us"},
        {"name": "copy/manual_time_median", "run_name": "copy/manual_time", "run_type": "aggregate",
         "aggregate_name": "median", "iterations": 3, "real_time": 4.0, "cpu_time": 9.0, "time_unit": "ms"},
        {"name": "bad", "run_name": "bad", "error_occurred": True, "error_message": "no device"},
    ],
}  # fmt: skip
NVBENCH = {
    "devices": [],
    "benchmarks": [
        {"name": "copy", "states": [
            {"name": "N=8", "summaries": [
                {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "2e-06"}]},
            ]},
            {"name": "N=9", "is_skipped": True, "skip_reason": "too large", "summaries": None},
        ]},
    ],
}  # fmt: skip
PYTEST = {
    "machine_info": {}, "datetime": "2026-01-02T03:04:05+00:00",
    "benchmarks": [{"fullname": "t.py::test_x", "stats": {"data": [1e-3, 2e-3], "median": 1.5e-3, "iterations": 4}}],
}  # fmt: skip
HYPERFINE = {
    "results": [
        {"command": "./a", "median": 0.5, "times": [0.5, 0.6], "exit_codes": [0, 0]},
        {"command": "./b", "median": 0.5, "times": [0.5], "exit_codes": [3]},
    ]
}
CATCH2 = """log of the program
<?xml version="1.0"?><Catch2TestRun name="t"><TestCase name="sorting" tags="[!benchmark]">
<BenchmarkResults name="a &lt; b" samples="100" resamples="100000" iterations="3" clockResolution="20">
<!--All values in nano seconds--><mean value="306.6" lowerBound="306" upperBound="307" ci="0.95"/>
</BenchmarkResults><BenchmarkResults name="throws"><failed message="no"/></BenchmarkResults>
<Section name="large" filename="x.cpp" line="5"><BenchmarkResults name="a &lt; b" samples="100" iterations="3">
<mean value="900" lowerBound="890" upperBound="910" ci="0.95"/></BenchmarkResults></Section>
</TestCase></Catch2TestRun>"""
CRITERION = """Benchmarking fib 20: Collecting 100 samples
fib 20                  time:   [26.029 us 26.251 us 26.505 us]
                        change: [-1.0% +0.2% +1.1%] (p = 0.63 > 0.05)
a/very/long/name/of/a/benchmark
                        time:   [1.0290 ms 1.2510 ms 1.5050 ms]
"""
CARGO = '{"reason":"benchmark-complete","id":"fib","iteration_count":[2,4],"measured_values":[10.0,24.0],"unit":"ns"}\n'
GO = """goos: linux
BenchmarkSort-8   	     100	     1234 ns/op	  12 B/op	       3 allocs/op
BenchmarkSort-8   	     120	     1250 ns/op	  12 B/op	       3 allocs/op
BenchmarkCopy-8   	     100	     2000 ns/op	  55.2 MB/s
--- FAIL: BenchmarkBad
ok  	example.org/x	1.2s
"""
GO_CORES = "BenchmarkSort   100  1234 ns/op\nBenchmarkSort-2   100  800 ns/op\n"
GO_SIZES = "BenchmarkSort/size-16   100  1234 ns/op\nBenchmarkSort/size-32   100  800 ns/op\n"
GO_EVENTS = "".join(
    json.dumps({"Action": "output", "Output": text}) + "\n"
    for text in ("BenchmarkSort\n", "BenchmarkSort-8 \t", "100 \t 9 ns/op\n")
)
GOOGLE_TABLE = """name,iterations,real_time,cpu_time,time_unit,bytes_per_second,error_occurred,error_message
"sum/8",100,2,1.5,us,1.39766e+10,,
"sum_BigO",,0.1,0.09,N,,,
"sum_RMS",,0.15,0.05,,,,
"bad",,,,,,true,"no device"
"copy/manual_time",10,100,200,ns,,,
"""
COUNTERS = "size,items_per_second,hit_per_sec\n10,5,7\n20,,8\n"
HIPBLASLT = """Is supported 1 / Total solutions: 1
[0]:transA,m,n,hipblaslt-Gflops,hipblaslt-GB/s,us
    T,128,256,1.3e+06,234.3,21.5
    --Solution index: 302128
"""
ROCBLAS = "transA,M,N,rocblas-Gflops,us,CPU-Gflops,us,norm-error\nN,4,8,97190.6,1317,2.5,9999,1e-7\n"
TRITON = "N,Triton (GB/s),Torch (GB/s)\n1024.0,812.5,790.25\n2048.0,900.0,880.0\n"
CK = """a_m_k: dim 2
Perf: 0.023 ms, 123.4 TFlops, 456.7 GB/s, DeviceGemm<256, 128>
Best Perf for f16: 0.02 ms, 1 TFlops, 2 GB/s, X
"""
LINES = """{"name": "p", "value": [3, 4], "unit": "points", "better": "larger"}
log
{"name": "q", "value": 5, "unit": "fps"}
"""
CASES = {
    "google": (
        GOOGLE, {"sum/8": ("ns", [2000, 3000], "smaller"), "copy/manual_time": ("ns", [4e6], "smaller")}, ["bad"],
    ),
    "nvbench": (NVBENCH, {"copy N=8": ("ns", [2000], "smaller")}, ["copy N=9"]),
    "pytest": (PYTEST, {"t.py::test_x": ("ns", [1e6, 2e6], "smaller")}, []),
    "hyperfine": (HYPERFINE, {"./a": ("ns", [5e8, 6e8], "smaller")}, ["./b"]),
    "catch2": (
        CATCH2,
        {"sorting: a < b": ("ns", [306.6], "smaller"), "sorting: large: a < b": ("ns", [900], "smaller")},
        ["sorting: throws"],
    ),
    "criterion": (
        CRITERION,
        {"fib 20": ("ns", [26251], "smaller"), "a/very/long/name/of/a/benchmark": ("ns", [1.251e6], "smaller")}, [],
    ),
    "criterion messages": (CARGO, {"fib": ("ns", [5, 6], "smaller")}, []),
    "go": (
        GO,
        {
            "BenchmarkSort": ("ns", [1234, 1250], "smaller"), "BenchmarkSort B/op": ("B/op", [12, 12], "smaller"),
            "BenchmarkSort allocs/op": ("allocs/op", [3, 3], "smaller"), "BenchmarkCopy": ("ns", [2000], "smaller"),
        },
        ["BenchmarkBad"],
    ),
    "go on one core and two": (
        GO_CORES, {"BenchmarkSort": ("ns", [1234], "smaller"), "BenchmarkSort-2": ("ns", [800], "smaller")}, [],
    ),
    "go with sizes": (
        GO_SIZES,
        {"BenchmarkSort/size-16": ("ns", [1234], "smaller"), "BenchmarkSort/size-32": ("ns", [800], "smaller")}, [],
    ),
    "go as events": (GO_EVENTS, {"BenchmarkSort": ("ns", [9], "smaller")}, []),
    "csv of Google": (
        GOOGLE_TABLE, {"sum/8": ("ns", [2000], "smaller"), "copy/manual_time": ("ns", [100], "smaller")}, ["bad"],
    ),
    "csv of counters": (
        COUNTERS,
        {
            "size=10 items_per_second": ("items/s", [5], "larger"), "size=10 hit_per_sec": ("hit/s", [7], "larger"),
            "size=20 hit_per_sec": ("hit/s", [8], "larger"),
        },
        [],
    ),
    "csv": (HIPBLASLT, {"transA=T, m=128, n=256": ("ns", [21500], "smaller")}, []),
    "csv of two libraries": (ROCBLAS, {"transA=N, M=4, N=8": ("ns", [1317000], "smaller")}, []),
    "csv of rates": (
        TRITON,
        {
            "N=1024.0 Triton (GB/s)": ("GB/s", [812.5], "larger"),
            "N=1024.0 Torch (GB/s)": ("GB/s", [790.25], "larger"),
            "N=2048.0 Triton (GB/s)": ("GB/s", [900], "larger"),
            "N=2048.0 Torch (GB/s)": ("GB/s", [880], "larger"),
        },
        [],
    ),
    "ck": (CK, {"DeviceGemm<256, 128>": ("ns", [23000], "smaller"), "X": ("ns", [20000], "smaller")}, []),
    "jsonl": (LINES, {"p": ("points", [3, 4], "larger"), "q": ("fps", [5], "larger")}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_format_is_seen_and_read(tmp_path, case):
    """Names, units, samples and directions; what failed is named."""
    content, expected, failed = CASES[case]
    path = tmp_path / "results"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    results = read_results(path)
    assert results.form == case.partition(" ")[0]
    assert {name: (r.unit, pytest.approx(r.values), r.better) for name, r in results.readings.items()} == expected
    assert sorted(results.failed) == failed
    assert bool(results.start_s) == (results.form in {"google", "pytest"})


def test_every_format_has_a_case():
    """But asv's, which is in a store."""
    assert {case.partition(" ")[0] for case in CASES} | {"asv"} == set(FORMS)


def test_what_belongs_to_samples_is_kept(tmp_path):
    """CPU time and calls of Google Benchmark, but of no time that it was given; nvbench's samples beside its JSON."""
    path = tmp_path / "results.json"
    path.write_text(json.dumps(GOOGLE))
    readings = read_results(path).readings
    assert (list(readings["sum/8"].cpu), readings["sum/8"].number) == ([1500, 2500], 90)
    assert not readings["copy/manual_time"].cpu
    state = NVBENCH["benchmarks"][0]["states"][0]
    binary = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": "a/0.bin"}]}
    whole = {
        **NVBENCH,
        "benchmarks": [{"name": "copy", "states": [{**state, "summaries": [*state["summaries"], binary]}]}],
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.bin").write_bytes(struct.pack("<2f", 1e-6, 3e-6))
    path.write_text(json.dumps(whole))
    assert read_results(path).readings["copy N=8"].values == pytest.approx([1000, 3000])


def test_asvs_results_are_read_with_their_samples(tmp_path):
    """Parameters in the name, units from benchmarks.json; a rate is better when larger."""
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b",
               "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples"]  # fmt: skip
    rest = ["v", 1, 1, None, None, None, None, None, None]
    content = {
        "commit_hash": "a" * 40, "date": 1, "env_name": "e", "params": {"machine": "m"}, "python": "3",
        "requirements": {}, "env_vars": {}, "durations": {}, "version": 2, "result_columns": columns,
        "results": {
            "a.time_x": [[1.5, None], [["1", "2"]], *rest, [[1.0, 2.0], None]], "a.track_y": [[7.0], [], *rest, None],
        },
    }  # fmt: skip
    folder = tmp_path / "machine"
    folder.mkdir()
    (folder / "aaaa-e.json").write_text(json.dumps(content))
    (tmp_path / "benchmarks.json").write_text('{"a.track_y": {"unit": "GB/s"}, "version": 2}')
    results = read_results(folder / "aaaa-e.json")
    assert {name: (r.unit, r.values, r.better) for name, r in results.readings.items()} == {
        "a.time_x(1)": ("ns", [1e9, 2e9], "smaller"), "a.track_y": ("GB/s", [7.0], "larger"),
    }  # fmt: skip
    assert list(results.failed) == ["a.time_x(2)"]


@pytest.mark.parametrize(
    ("text", "form", "why"),
    [
        ("nothing of this", "", "has no known format: name it with --format"), ("{", "", "has no known format"),
        ("{}", "google", "is not google"), ("a,b\n1,2\n", "csv", "has no csv results"),
        ('{"name": "x", "value": 1, "unit": "u", "better": "more"}', "", "is not jsonl"),
        ("BenchmarkA 1 5 ns/op\n" * 2, "pytest", "is not pytest"), ("a," + "b" * 200_000, "", "has no known format"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path, text, form, why):
    """With the file's name."""
    with pytest.raises(ReadError, match=why) as caught:
        parse(text, tmp_path / "x.txt", form)
    assert "x.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_cannot_be_compared_is_a_failure(tmp_path):
    """NaN, a negative time, and a rate of 0: their benchmark has no result."""
    lines = ('{"name": "a", "value": NaN, "unit": "s"}\n{"name": "b", "value": -1, "unit": "s"}\n'
             '{"name": "c", "value": 0, "unit": "GB/s"}\n{"name": "d", "value": 0, "unit": "bytes"}\n')  # fmt: skip
    results = parse(lines, tmp_path / "x")
    assert (sorted(results.failed), list(results.readings)) == (["a", "b", "c"], ["d"])


def test_units_are_read_and_not_guessed():
    """The end of a column's name; a letter alone may be a size, and a word alone says nothing."""
    columns = ["us", "time_ms", "latency (us)", "rocblas-Gflops", "Triton (GB/s)", "TB/s", "tflops", "fwd_time[ms]"]
    assert [unit_of(name) for name in columns] == ["us", "ms", "us", "Gflops", "GB/s", "TB/s", "tflops", "ms"]
    assert not any(map(unit_of, ["s", "M", "seqlen", "time", "batch", "Triton", "steps", "bs", ""]))
    assert [direction(unit) for unit in ("ns", "B/op", "MiB", "ops/ms", "GB/s", "items/min", "IPC", "points", "%")] == [
        "smaller", "smaller", "smaller", "larger", "larger", "larger", "", "", "",
    ]  # fmt: skip
