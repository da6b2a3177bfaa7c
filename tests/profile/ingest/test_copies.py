"""Memory copies are read from every format that has them, and belong to the GPU and the process of the kernels."""

import json
import sqlite3

import pytest

from rocattn_profiling.profile.ingest import read

from .generators import launches, rocpd, v3_agents, v3_json, v3_trace, write_rows

COLUMNS = [
    "Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp",
    "End_Timestamp",
]  # fmt: skip
START = 1_550_151_853_000_000


def copies_csv(path, *rows, generation="7.0"):
    """Write rocprofv3's memory_copy_trace.csv of (direction, source, target, start, end)."""
    named = [
        ("MEMORY_COPY", d, *((f"Agent {s}", f"Agent {t}") if generation == "7.0" else (s, t)), 1, a, b)
        for d, s, t, a, b in rows
    ]
    return write_rows(path, COLUMNS, named)


@pytest.mark.parametrize(("generation", "gpu"), [("7.0", 2), ("6.4", 1)])
def test_rocprofv3_s_table_of_copies(tmp_path, generation, gpu):
    """Up to 6.4 agents are node ids; the GPU is the target on the way to it, else the source."""
    v3_trace(tmp_path / "4711_kernel_trace.csv", launches(agent=gpu), generation)
    v3_agents(tmp_path / "4711_agent_info.csv")
    copies_csv(
        tmp_path / "4711_memory_copy_trace.csv", ("HOST_TO_DEVICE", 0, gpu, START, START + 500),
        ("MEMORY_COPY_DEVICE_TO_HOST", gpu, 0, START + 600, START + 700),
        ("DEVICE_TO_HOST", gpu, 0, START + 900, START + 900), generation=generation,
    )  # fmt: skip
    profile = read([tmp_path])
    held = profile.activities
    assert list(held["name"]) == ["HOST_TO_DEVICE", "DEVICE_TO_HOST"]
    assert list(held["end_ns"] - held["start_ns"]) == [500, 100]
    assert set(held["agent"]) == set(profile.dispatches["agent"])
    assert set(held["process"]) == set(profile.dispatches["process"]) == {4711}
    assert set(held["pass"]) == set(profile.dispatches["pass"])
    assert [problem.what for problem in profile.problems] == ["1 copy ends before it starts"]


def test_copies_of_the_json_have_bytes(tmp_path):
    """Its operations are numbers."""
    path = v3_json(tmp_path / "1_results.json", launches())
    content = json.loads(path.read_text())
    content["rocprofiler-sdk-tool"][0]["buffer_records"]["memory_copy"] = [
        {"operation": 2, "start_timestamp": START, "end_timestamp": START + 9, "bytes": 64,
         "src_agent_id": {"handle": 1}, "dst_agent_id": {"handle": 9280}},
        {"operation": 3, "start_timestamp": START, "end_timestamp": START + 9,
         "src_agent_id": {"handle": 9280}, "dst_agent_id": {"handle": 1}},
    ]  # fmt: skip
    path.write_text(json.dumps(content))
    profile = read([path])
    assert list(profile.activities["name"]) == ["HOST_TO_DEVICE", "DEVICE_TO_HOST"]
    assert profile.activities["bytes"][0] == 64
    assert profile.activities["bytes"].isna()[1]
    assert set(profile.activities["agent"]) == set(profile.dispatches["agent"])


def test_copies_of_a_database(tmp_path):
    """Through its view, as the kernels."""
    path = rocpd(tmp_path / "1_results.db", launches())
    base = sqlite3.connect(path)
    base.execute(
        'CREATE VIEW memory_copies AS SELECT 4711 AS pid, "MEMORY_COPY_HOST_TO_DEVICE" AS name, 5 AS start, 9 AS "end",'
        " 64 AS size, 0 AS src_agent_log_index, 2 AS dst_agent_log_index"
    )
    base.commit()
    base.close()
    profile = read([path])
    assert profile.activities[["process", "name", "start_ns", "end_ns", "bytes"]].to_numpy().tolist() == [
        [4711, "HOST_TO_DEVICE", 5, 9, 64]
    ]
    assert set(profile.activities["agent"]) == set(profile.dispatches["agent"])


def test_copies_of_two_formats_of_one_run_are_counted_once(tmp_path):
    """rocprofv3 can write CSV and JSON at once."""
    v3_trace(tmp_path / "7_kernel_trace.csv", launches())
    copies_csv(tmp_path / "7_memory_copy_trace.csv", ("HOST_TO_DEVICE", 0, 2, START, START + 9))
    path = v3_json(tmp_path / "7_results.json", launches())
    content = json.loads(path.read_text())
    record = {"operation": 2, "start_timestamp": START, "end_timestamp": START + 9, "dst_agent_id": {"handle": 9280}}
    content["rocprofiler-sdk-tool"][0]["buffer_records"]["memory_copy"] = [record]
    path.write_text(json.dumps(content))
    profile = read([tmp_path])
    assert (len(profile.dispatches), len(profile.activities)) == (3, 1)


def test_rocprof_1_writes_its_copies_into_the_trace_only(tmp_path):
    """Beside results.csv, which has the kernels and is read."""

    def event(pid, name, begin, end):
        about = {"BeginNs": str(begin), "EndNs": str(end), "dev-id": "2", "queue-id": "0", "pid": "517", "Name": name}
        return {"ph": "X", "pid": pid, "name": name, "ts": "0", "dur": "1", "args": about}

    def track(pid, name):
        return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}

    events = [track(1, "COPY"), track(6, "GPU0"), event("1", "CopyHostToDevice", 10, 20), event("6", "k", 30, 40)]
    (tmp_path / "results.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "results.csv").write_text(
        '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr","arch_vgpr",'
        '"accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"\n'
        '0,"k",2,0,0,517,517,64,64,0,0,8,0,16,64,"0x0","0x0",1,30,40,41,10\n'
    )
    profile = read([tmp_path])
    assert list(profile.activities["name"]) == ["CopyHostToDevice"]
    assert set(profile.activities["agent"]) == set(profile.dispatches["agent"])
    assert len(profile.dispatches) == 1
