"""PyTorch's traces: kernels with times, sizes and GPU, wherever the events stand in the file, and several ranks."""

import gzip
import json

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest import kineto
from rocattn_profiling.profile.metrics.devices import devices_of

from ...screens import screen

BASE = 1_759_300_074_000_000_000
MI300X = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "warpSize": 64, "numSms": 304}


def launch(number, name="k", api="hipLaunchKernel", grid=(4, 2, 1), block=(256, 1, 1), device=2, pid=77):
    """Return the events of one launch: the call on the CPU and the kernel."""
    sizes = {} if grid is None else {"grid": list(grid), "block": list(block)}
    at = 6_869_181_217_913.045 + 10 * number
    call = {"ph": "X", "cat": "cuda_runtime", "name": api, "pid": pid, "tid": 1, "ts": at - 5, "dur": 1.5,
            "args": {"correlation": number, "cid": 107, **sizes}}  # fmt: skip
    arguments = {"device": device, "stream": 3, "correlation": number, "kind": "Dispatch Kernel", **sizes}
    kernel = {
        "ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 3, "ts": at, "dur": 6.239, "args": arguments,
    }  # fmt: skip
    return [call, kernel]


def trace(path, events, *, events_first=None, indent=None, **around):
    """Write a trace; its events stand in the middle, as PyTorch writes it, or first or last."""
    about = {"schemaVersion": 1, "deviceProperties": [MI300X], "baseTimeNanoseconds": BASE} | around
    names = list(about)
    cut = {None: 2, True: 0, False: len(names)}[events_first]
    whole = {name: about[name] for name in names[:cut]} | {"traceEvents": events}
    whole |= {name: about[name] for name in names[cut:]} | {"traceName": "x.json"}
    text = json.dumps(whole, indent=indent)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


CPU = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 77, "tid": 1, "ts": 1.0, "dur": 2.0,
       "args": {"Input Dims": [[1, 2], []], "nested": [{"a": 1}, {"b": "}, {"}]}}  # fmt: skip


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("events_first", [None, True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_kernels_are_read_wherever_the_events_stand(tmp_path, monkeypatch, name, events_first, indent):
    """Also in pieces of a few bytes that end anywhere."""
    monkeypatch.setattr(kineto, "PIECE_BYTES", 600)
    events = [event for n in range(5) for event in (CPU, *launch(n))]
    profile = ingest.read([trace(tmp_path / name, events, events_first=events_first, indent=indent)])
    assert profile.problems == []
    found = profile.dispatches
    assert found["kernel"].tolist() == ["k"] * 5
    assert found["start_ns"].tolist() == [BASE + 6_869_181_217_913_045 + 10_000 * n for n in range(5)]
    assert (found["end_ns"] - found["start_ns"]).tolist() == [6_239] * 5
    assert (found["process"].unique().tolist(), found["queue"].unique().tolist()) == ([77], [3])


def test_sizes_are_blocks_or_work_items_by_the_call(tmp_path):
    """hipExtModuleLaunchKernel takes work-items; a graph's launch states nothing, though its kernel may elsewhere."""
    events = [
        *launch(1), *launch(2, "Cijk", "hipExtModuleLaunchKernel", (65_536, 1, 1)),
        *launch(3, "triton", "hipModuleLaunchKernel", (24, 1, 1)), *launch(4, "in a graph", "hipGraphLaunch", None),
        *launch(5, "orphan")[1:],
    ]  # fmt: skip
    profile = ingest.read([trace(tmp_path / "a.json", events)])
    assert profile.dispatches["grid"].tolist() == [2_048, 65_536, 6_144, -1, -1]
    (problem,) = profile.problems
    assert problem.what == "2 launches have no known number of blocks (graphs state none)"


@pytest.mark.parametrize(
    ("properties", "gpu", "cus"),
    [
        (MI300X, "Instinct MI300X", 304), (MI300X | {"name": "AMD Instinct MI300X VF"}, "Instinct MI300X", 304),
        (MI300X | {"name": "", "numSms": 228}, "Instinct MI300A", 228), (MI300X | {"name": ""}, "gfx942", 304),
        ({"id": 0, "name": "AMD Radeon RX 7900 XTX", "computeMajor": 11, "numSms": 48}, "Radeon RX 7900 XTX", 96),
    ],
)  # fmt: skip
def test_the_gpu_is_that_of_the_device_properties(tmp_path, properties, gpu, cus):
    """Kernels carry a node's number, properties count from 0: equal devices are meant by any number."""
    profile = ingest.read(
        [trace(tmp_path / "a.json", launch(1), deviceProperties=[properties, properties | {"id": 1}])]
    )
    (row,) = profile.dispatches["agent"].unique()
    device = devices_of(profile)[row]
    assert (device.name, device.constants.get("cus")) == (gpu, cus)
    assert profile.agents["number"].tolist() == [2]


def test_the_ranks_of_a_job_are_one_run_with_a_gpu_each(tmp_path):
    """Whatever their files are called, and although each calls its GPU 0."""
    for rank in range(3):
        name = f"host_{4000 + rank}.17737097423413{rank}.pt.trace.json.gz"
        trace(tmp_path / name, launch(1, device=0, pid=100 + rank), distributedInfo={"rank": rank, "world_size": 3})
    profile = ingest.read([tmp_path])
    assert profile.runs == ()
    assert profile.dispatches["pass"].unique().tolist() == ["trace"]
    assert sorted(profile.agents["number"]) == [0, 1, 2]
    assert profile.dispatches["agent"].nunique() == 3
    assert sorted(about["rank"] for about in profile.system.values()) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("events", "around", "said"),
    [
        ([CPU], {}, "a PyTorch trace with CPU activity only"),
        ([], {}, "a PyTorch trace with CPU activity only"),
        ([{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1, "dur": 1}], {}, "copies and fills only"),
        (launch(1), {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}, "of an NVIDIA GPU"),
    ],
)
def test_a_trace_without_kernels_of_an_amd_gpu_says_so(tmp_path, events, around, said):
    """With what to record."""
    (found,) = ingest.describe([trace(tmp_path / "a.json", events, **around)])
    assert said in found.source.skipped


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace_that_is_cut_off_is_refused(tmp_path, name, cut):
    """In one line; nothing is read of it by halves."""
    path = trace(tmp_path / name, [event for n in range(200) for event in launch(n)])
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    profile = ingest.read([path])
    assert not len(profile.dispatches)
    (problem,) = profile.problems
    assert "cut off" in problem.what


def test_what_python_writes_and_json_has_not_is_read(tmp_path):
    """NaN and infinities, as json.dump writes them, and names that are no UTF-8."""
    events = [
        *launch(1),
        CPU | {"args": {"memory bandwidth (GB/s)": float("inf"), "x": float("nan")}},
        *launch(2, "kX"),
    ]
    path = trace(tmp_path / "a.json", events)
    path.write_bytes(path.read_bytes().replace(b"kX", b"k\xff"))
    assert ingest.read([path]).dispatches["kernel"].tolist() == ["k", "k\ufffd"]


def test_a_trace_is_reported(tmp_path, capsys):
    """On the terminal, with the product and its kernels."""
    trace(tmp_path / "a.json.gz", [event for n in range(5) for event in launch(n, "void attn<128>(float*)")])
    assert main(["report", str(tmp_path / "a.json.gz"), "--out", str(tmp_path / "out")]) == 0
    assert "attn<128>" in capsys.readouterr().err
    assert "Instinct MI300X" in (tmp_path / "out/profile.md").read_text()


@pytest.mark.parametrize("large", [2**31, 2**63, 10**30])
def test_numbers_beyond_all_measure_are_not_known(tmp_path, large):
    """Of the GPU, the job, the process, the clock and the launch: the kernel is there all the same."""
    gpu = MI300X | {"id": 2, "numSms": large, "warpSize": large}
    call, kernel = launch(1, pid=large)
    call["args"]["correlation"] = kernel["args"]["correlation"] = [{}]
    copy = {**kernel, "cat": "gpu_memcpy", "args": {"device": large, "bytes": large}}
    path = trace(
        tmp_path / "a.json", [call, kernel, copy], deviceProperties=[gpu] * 3, baseTimeNanoseconds=large,
        distributedInfo={"rank": large, "world_size": 2},
    )  # fmt: skip
    profile = ingest.read([path])
    assert len(profile.dispatches) == 1
    assert profile.agents["wave_size"].isna().all()
    assert "report" not in " ".join(map(str, profile.problems))


def test_copies_and_fills_are_activities_of_their_gpu(tmp_path):
    """Beside the kernels, on the same clock; one without a length is dropped with a note."""
    at = 6_869_181_217_000.0

    def copy(cat, name, ts, dur, **arguments):
        return {"ph": "X", "cat": cat, "name": name, "pid": 2, "tid": 7, "ts": ts, "dur": dur, "args": arguments}

    events = [
        *launch(1), copy("gpu_memcpy", "Memcpy HtoD (Host -> Device)", at, 4.5, device=2, bytes=4096),
        copy("gpu_memset", "Memset (Device)", at + 9, 1.0, device=2),
        copy("gpu_memcpy", "Memcpy DtoH", at, None, device=2),
    ]  # fmt: skip
    profile = ingest.read([trace(tmp_path / "a.json", events)])
    held = profile.activities
    assert (list(held["kind"]), list(held["name"])) == (["copy", "fill"], ["Memcpy HtoD", "Memset"])
    assert held["bytes"].iloc[0] == 4096
    assert list(held["end_ns"] - held["start_ns"]) == [4500, 1000]
    assert set(held["agent"]) == set(profile.dispatches["agent"])
    assert int(held["start_ns"].iloc[0]) == BASE + int(at * 1000)
    assert screen(" ".join(map(str, profile.problems)), tmp=tmp_path) == snapshot(
        "tmp/a.json: 1 copy or fill without times; dropped"
    )
