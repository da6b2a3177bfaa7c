"""Every tool's and generation's files become the same table."""

import json
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest.table import AGENT_DTYPES, COUNTER_DTYPES, DISPATCH_DTYPES

from . import generators as g
from . import older_generators as older

ALL = ("process", "dispatch", "kernel", "grid", "block", "lds_bytes", "scratch_bytes", "vgprs", "agprs", "sgprs",
       "start_ns", "end_ns", "queue", "counter", "value")  # fmt: skip
UNTIMED = {"start_ns", "end_ns"}


def truth(made, columns=ALL):
    """Return what the tidy table must hold."""
    rows = []
    for launch in made:
        grid, block = launch.work_items()
        for name, value in launch.counters.items() or [(None, None)]:
            row = {
                "process": launch.process, "dispatch": launch.dispatch, "kernel": launch.kernel, "grid": grid,
                "block": block, "lds_bytes": launch.lds, "scratch_bytes": launch.scratch, "vgprs": launch.vgprs,
                "agprs": launch.agprs, "sgprs": launch.sgprs, "start_ns": launch.start, "end_ns": launch.end,
                "queue": launch.queue, "counter": name, "value": value,
            }  # fmt: skip
            rows.append(tuple(row[column] for column in columns))
    return sorted(rows, key=repr)


def held(profile, columns=ALL):
    """Return what the tidy table holds, as plain values."""
    table = profile.tidy([name for name in columns if name not in {"counter", "value"}])
    rows = table.astype("object").where(table.notna(), None)[list(columns)].itertuples(index=False, name=None)
    return sorted(rows, key=repr)


def without(*names):
    """Return the columns that a format states."""
    return tuple(column for column in ALL if column not in names)


NO_COUNTERS = g.launches(counters=())
CASES = {
    "v3 6.2.0": (lambda p, m: g.v3_counters(p / "a.csv", m, "6.2.0"), without("agprs", *UNTIMED), "6.2.0 to 6.2.2"),
    "v3 6.2.4": (lambda p, m: g.v3_counters(p / "a.csv", m, "6.2.4"), without("agprs", *UNTIMED), "6.2.4"),
    "v3 6.3": (lambda p, m: g.v3_counters(p / "a.csv", m, "6.3"), without("agprs"), "6.3"),
    "v3 6.4": (lambda p, m: g.v3_counters(p / "a.csv", m, "6.4"), ALL, "6.4"),
    "v3 7.0": (lambda p, m: g.v3_counters(p / "a.csv", m, "7.0"), ALL, "7.0 or later"),
    "rocpd convert": (lambda p, m: g.v3_counters(p / "a.csv", m, "convert"), ALL, "rocpd convert"),
    "v3 JSON": (lambda p, m: g.v3_json(p / "a.json", m, instances=4), ALL, "6.2 or later"),
    "rocpd 3": (lambda p, m: g.rocpd(p / "a.db", m, instances=4), ALL, "schema 3"),
    "rocpd 4": (lambda p, m: g.rocpd(p / "a.db", m, schema=4, instances=4), ALL, "schema 4.1.0"),
    "v1": (lambda p, m: older.v1(p / "a.csv", m), ALL, "ROCm 5.3 or later"),
    "v1 before 5.3": (lambda p, m: older.v1(p / "a.csv", m, old=True), without("agprs"), "ROCm 5.2 or earlier"),
    "v2": (lambda p, m: older.v2(p / "a.csv", m), ALL, ""),
    "compute long": (lambda p, m: older.compute_long(p / "a.csv", m), without("process", "queue"), "3.6 or later"),
    "compute by number": (lambda p, m: older.compute_by_number(p, m, instances=4), without("queue"),
                          "its own tool, 2026"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_counters_of_every_format_become_the_same_table(tmp_path, case):
    """Names, sizes, registers, times and counters come out as they went in."""
    write, columns, generation = CASES[case]
    made = g.launches(5)
    profile = ingest.read([write(tmp_path, made)])
    assert held(profile, columns) == truth(made, columns)
    assert [source.generation for source in profile.provenance] == [generation]
    assert profile.problems == []
    stated = [name for name in columns if name in DISPATCH_DTYPES]
    assert not profile.dispatches[stated].isna().any(axis=None)
    for name in {"agprs", *UNTIMED} - set(columns):
        assert profile.dispatches[name].isna().all()


@pytest.mark.parametrize("case", CASES)
def test_the_types_are_the_same_for_every_format(tmp_path, case):
    """What the file lacks does not change a column's type."""
    profile = ingest.read([CASES[case][0](tmp_path, g.launches(3))])
    for frame, dtypes in (
        (profile.dispatches, DISPATCH_DTYPES), (profile.counters, COUNTER_DTYPES), (profile.agents, AGENT_DTYPES)
    ):  # fmt: skip
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == dtypes
    assert profile.dispatches.index.equals(pd.RangeIndex(len(profile.dispatches)))


@pytest.mark.parametrize("generation", g.TRACE_V3)
def test_kernel_traces_of_every_generation(tmp_path, generation):
    """A trace gives sizes in three dimensions; the first generation does not number its dispatches."""
    columns = without("process", "counter", "value", "vgprs", "agprs", "sgprs")
    made = g.launches(4, counters=())
    profile = ingest.read([g.v3_trace(tmp_path / "a.csv", made, generation)])
    assert held(profile, columns) == truth(made, columns)
    assert not len(profile.counters)
    assert profile.problems == []


def test_the_trace_json_of_rocprof_v1_gives_times_and_no_sizes(tmp_path):
    """Kernels are the events of the GPUs; API calls are not."""
    columns = ("process", "dispatch", "kernel", "start_ns", "end_ns", "queue")
    made = g.launches(3, counters=())
    profile = ingest.read([older.chrome(tmp_path / "results.json", made)])
    assert held(profile, columns) == truth(made, columns)
    assert (profile.dispatches["grid"] == -1).all()


def test_agents_are_found_by_number_and_by_node(tmp_path):
    """From 7.0 "Agent 2" is the logical number, up to 6.4 1 is the node id: both are the same GPU here."""
    g.v3_agents(tmp_path / "x_agent_info.csv")
    g.v3_counters(tmp_path / "x_counter_collection.csv", g.launches(2, agent=2), "7.0")
    g.v3_counters(tmp_path / "y_counter_collection.csv", g.launches(2, agent=1), "6.4")
    profile = ingest.read([tmp_path])
    assert len(profile.agents) == 1
    assert profile.dispatches["agent"].tolist() == [0] * 4
    assert profile.agents.loc[0, ["arch", "cus", "lds_bytes", "xccs", "max_clock_mhz"]].tolist() == [
        "gfx942", 304, 65536, 8, 2100.0
    ]  # fmt: skip


def test_a_gpu_that_no_file_describes_has_its_number(tmp_path):
    """Nothing is guessed about it."""
    for generation in ("7.0", "6.4"):
        profile = ingest.read([g.v3_counters(tmp_path / "a.csv", g.launches(2, agent=5), generation)])
        assert profile.agents["number"].tolist() == [5]
        assert profile.agents["cus"].isna().all()


@pytest.mark.parametrize("kind", ["json", "db"])
def test_no_environment_is_read(tmp_path, kind):
    """These files hold the process's environment, tokens included; the command is kept."""
    made = g.launches(2)
    path = g.v3_json(tmp_path / "a.json", made) if kind == "json" else g.rocpd(tmp_path / "a.db", made)
    profile = ingest.read([path])
    assert profile.system == {str(path): {"command": "./app"}}
    assert "secret" not in repr(profile)


@pytest.mark.parametrize("kind", ["json", "db"])
def test_gpus_are_matched_by_logical_number(tmp_path, kind):
    """The CPU is none of them; a CSV beside it that says "Agent 2" means the same GPU."""
    write = g.v3_json if kind == "json" else g.rocpd
    write(tmp_path / f"a.{kind}", g.launches(2, agent=2))
    g.v3_counters(tmp_path / "b_counter_collection.csv", g.launches(2, agent=2), "7.0")
    g.v3_counters(tmp_path / "c_counter_collection.csv", g.launches(2, agent=1), "6.4")  # the node's id
    profile = ingest.read([tmp_path])
    assert profile.agents[["number", "node", "arch", "cus"]].values.tolist() == [[2, 1, "gfx942", 304]]
    assert profile.dispatches["agent"].tolist() == [0] * 6


def test_of_what_results_say_twice_the_dispatch_s_own_is_taken(tmp_path):
    """Names as rocprofv3's CSV has them (its options shorten them), found by id; registers and LDS of the launch."""
    made = g.launches(2)
    path = g.v3_json(tmp_path / "a.json", made)
    text = json.loads(path.read_text())
    (process,) = text["rocprofiler-sdk-tool"]
    for symbol in process["kernel_symbols"]:
        symbol |= {"demangled_kernel_name": "long", "kernel_name": "mangled", "arch_vgpr_count": 9, "sgpr_count": 9}
    process["kernel_symbols"].reverse()
    for collected in process["callback_records"]["counter_collection"]:
        collected["dispatch_data"]["dispatch_info"]["group_segment_size"] = 500  # allocated in steps of 512
    path.write_text(json.dumps(text))
    assert held(ingest.read([path])) == truth(made)


def test_a_database_of_some_dispatches_has_their_counters(tmp_path):
    """--kernel-iteration-range leaves gaps, and the first is not number 1."""
    made = [launch for launch in g.launches(9) if launch.dispatch in {3, 4, 7, 9}]
    for number, kept in enumerate((made, made[:2])):
        profile = ingest.read([g.rocpd(tmp_path / f"{number}.db", kept, instances=3)])
        assert held(profile) == truth(kept)


@pytest.mark.parametrize("kind", ["json", "db"])
def test_instances_are_summed_and_the_largest_is_kept(tmp_path, kind):
    """A counter of four instances is their sum; how many there were is in its own frame."""
    made = g.launches(2, counters=("TCC_HIT",))
    write = g.v3_json if kind == "json" else g.rocpd
    profile = ingest.read([write(tmp_path / f"a.{kind}", made, instances=4)])
    assert profile.counters["value"].tolist() == [1000.0, 2000.0]
    assert profile.instances["instances"].tolist() == [4, 4]
    assert profile.instances["max"].tolist() == [250.0, 500.0]


@pytest.mark.parametrize("schema", [3, 4])
def test_processes_of_a_merged_database_are_kept_apart(tmp_path, schema):
    """`rocpd merge` of two ranks: ids begin again in each; schema 4's own view counts each value for every rank."""
    first = g.launches(3, counters=("A", "B"), process=71)
    second = [
        g.Launch(**{**vars(launch), "process": 72, "vgprs": 48, "counters": {"C": 7.0 + i, "A": 5.0 + i}})
        for i, launch in enumerate(g.launches(5)[1:])
    ]
    profile = ingest.read([g.rocpd(tmp_path / "a.db", first + second, schema=schema, instances=2, merged=True)])
    assert held(profile) == truth(first + second)
    assert profile.instances["instances"].tolist() == [2] * 14
    assert profile.problems == []


def test_reading_a_database_writes_no_log_files(tmp_path):
    """`rocpd merge` leaves that mode on: reading made two files there, and in a folder of others said "damaged"."""
    made = g.launches(3)
    path = g.rocpd(tmp_path / "a.db", made)
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = WAL")
    assert held(ingest.read([path])) == truth(made)
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]
    with closing(sqlite3.connect(path)) as base:  # what is in the log only is read, too
        base.execute("UPDATE rocpd_kernel_dispatch_u SET lds = 1024")
        base.commit()
        assert ingest.read([path]).dispatches["lds_bytes"].tolist() == [1024] * 3


def test_an_impossible_deviation_is_reported(tmp_path):
    """rocprofv3 1.1.0 writes standard deviations far beyond the range of the values."""
    path = g.v3_stats(tmp_path / "a_kernel_stats.csv", g.launches(2))
    row = '"odd",3,30,10.000000,1.0,5,15,4546838.000000\n'
    path.write_text(path.read_text() + row)
    profile = ingest.read([path])
    assert profile.summaries["kernel"].tolist() == [*(launch.kernel for launch in g.launches(2)), "odd"]
    assert profile.summaries["total_ns"].tolist() == [7040.0, 7041.0, 30.0]
    assert [problem.what for problem in profile.problems] == ["StdDev of 1 kernel is larger than its range"]


@pytest.mark.parametrize(
    "names", [["hipMalloc", "__hipPushCallConfiguration"], ["hsa_queue_create"], ["HIP_API", "KERNEL_DISPATCH"]]
)
def test_statistics_of_other_things_are_not_kernels(tmp_path, names):
    """The header is the same: what the file lists decides."""
    path = tmp_path / "a.csv"
    path.write_text('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n' + "".join(
        f'"{name}",1,10,10,1.0\n' for name in names
    ))  # fmt: skip
    (found,) = ingest.describe([path])
    assert found.source.skipped == "statistics of API calls, copies or domains: it contains no kernels"


def test_memory_is_that_of_the_names_once(tmp_path):
    """A kernel's name is stored once, however many counters carry it."""
    name = "k" * 10_000
    made = [g.Launch(i + 1, name, counters={"A": 1.0, "B": 2.0}) for i in range(300)]
    profile = ingest.read([g.v3_counters(tmp_path / "a.csv", made)])
    assert profile.dispatches["kernel"].cat.categories.tolist() == [name]
    assert profile.dispatches.memory_usage(deep=True).sum() + profile.counters.memory_usage(deep=True).sum() < 80_000


def test_a_stated_bandwidth_goes_before_the_number_of_channels(tmp_path, monkeypatch):
    """An MI300A's file has the 96 channels of its L2 and 5324.8 GB/s; 96 would make a peak of 3993.6."""
    about = {"gpu_model": "MI300A_A1", "gpu_arch": "gfx942", "max_mclk": 1300, "num_hbm_channels": 96, "hbm_bw": 5324.8}
    monkeypatch.setitem(older.SYSINFO, "2", older.SYSINFO["2"] | about)
    profile = ingest.read([older.sysinfo(tmp_path, "2")])
    assert profile.agents["memory_channels"].to_list() == [128]


@pytest.mark.parametrize("instances", [1, 2])
def test_numbers_that_json_does_not_have_are_not_measured(tmp_path, instances):
    """rocprofv3 writes NaN and Infinity as they are (a derived counter of nothing): the whole file was refused."""
    made = g.launches(2, counters=("A", "B"))
    path = g.v3_json(tmp_path / "a.json", made, instances=instances)
    text = path.read_text()
    for value, word in ((1000.0, "NaN"), (2001.0, "-Infinity")):  # of the last instance only
        assert f'"value": {value / instances}' in text
        text = text.replace(f'"value": {value / instances}', f'"value": {word}', 1)
    path.write_text(text)
    profile = ingest.read([path])
    assert profile.counters["value"].tolist() == [1001.0, 2000.0]
    assert [str(problem).partition(": ")[2] for problem in profile.problems] == [
        "2 counter values are missing or not numbers; treated as not measured"
    ]
