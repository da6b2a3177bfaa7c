"""Benchmarks on the GPU's own clock, against a runtime whose events have known times and a made-up sysfs."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocattn.errors import RocattnError
from rocattn.gpu.errors import GpuError
from rocattn_profiling.bench import gpu_clock
from rocattn_profiling.bench.gpu_clock import Sensors, find_sensors

ROOT = Path(__file__).resolve().parents[2]

# What the suites' own classes do, on a problem that fits the stub's megabyte.
SUITE = """\
import os
import rocattn.gpu.reasons
import rocattn_profiling.bench.gpu_clock as clock
from rocattn import AttentionConfig
from rocattn_profiling.workloads.inputs import make_inputs
from pathlib import Path

rocattn.gpu.reasons.driver_loaded = lambda: True
find_sensors = clock.find_sensors
clock.find_sensors = lambda bus_id: find_sensors(bus_id, Path(os.environ["STUB_DRM"]))
CONFIG = AttentionConfig(batch=1, seq_q=33, seq_k=33, num_heads=2, head_dim=64, dtype="float16")
CASES = {}

class Events:
    params = ["warm", "cold"]
    number, repeat, rounds, warmup_time = 2, 3, 1, 0.0
    def setup(self, cache):
        if cache not in CASES:
            CASES[cache] = clock.DeviceCase(CONFIG, make_inputs(CONFIG), cold=cache == "cold")
        self.call, self.timer = CASES[cache].call, CASES[cache].clock
    def time_attention(self, _):
        self.call()
"""


@pytest.mark.parametrize(("l2", "flushed"), [(4 << 20, 512 << 20), (300 << 20, 600 << 20), (None, 512 << 20)])
def test_cold_caches_are_those_that_the_device_tells(l2, flushed):
    """Twice its L2, and what no property tells at least; as bindings of both kinds answer, or none does."""

    def call(_name, *arguments):
        if l2 is None:
            raise GpuError("hipGetDeviceProperties gave hipErrorUnknown")
        assert arguments == (0,)
        return SimpleNamespace(l2CacheSize=l2)

    assert gpu_clock.flush_bytes(SimpleNamespace(call=call)) == flushed


@pytest.fixture
def drm(tmp_path):
    """A sysfs with one AMD GPU where the stub says it is, one of another vendor, and a connector."""
    device = tmp_path / "devices" / "0000:03:00.0"
    monitor = device / "hwmon" / "hwmon4"
    monitor.mkdir(parents=True)
    put = {
        "vendor": "0x1002",
        "pp_dpm_sclk": "0: 500Mhz\n1: 2300Mhz *\n2: 2400Mhz",
        "pp_dpm_mclk": "0: 96Mhz\n3: 1249Mhz *",
        "hwmon/hwmon4/freq1_label": "sclk",
        "hwmon/hwmon4/freq1_input": "2287000000",
        "hwmon/hwmon4/power1_average": "287500000",
        "hwmon/hwmon4/temp1_label": "edge",
        "hwmon/hwmon4/temp1_input": "51000",
        "hwmon/hwmon4/temp2_label": "junction",
        "hwmon/hwmon4/temp2_input": "67000",
    }
    for name, text in put.items():
        (device / name).write_text(text + "\n")
    cards = tmp_path / "drm"
    for card in ("card0", "card1", "card1-DP-1"):
        (cards / card).mkdir(parents=True)
    (cards / "card1" / "device").symlink_to(device)
    (cards / "card0" / "device").mkdir()
    (cards / "card0" / "device" / "vendor").write_text("0x10de\n")
    return cards


def test_sensors_read_what_the_driver_s_files_say(drm):
    """The monitor's clock before the table's level, the junction before the edge; units are MHz, W and Celsius."""
    found = find_sensors(drm=drm)
    assert found.read() == {"sclk_mhz": 2287.0, "mclk_mhz": 1249.0, "power_w": 287.5, "temperature_c": 67.0}
    (found.device / "hwmon/hwmon4/freq1_label").unlink()
    assert Sensors(found.device).read()["sclk_mhz"] == 2300.0


def test_what_a_device_does_not_tell_is_zero(tmp_path):
    """No monitor, a level that nothing marks, a file that is no number: 0, never an error in a measurement."""
    (tmp_path / "pp_dpm_sclk").write_text("0: 500Mhz\n1: 2300Mhz")
    assert set(Sensors(tmp_path).read().values()) == {0.0}
    (tmp_path / "hwmon/hwmon0").mkdir(parents=True)
    (tmp_path / "hwmon/hwmon0/power1_input").write_text("not a number")
    assert set(Sensors(tmp_path).read().values()) == {0.0}


def test_the_right_one_of_two_gpus_is_read_or_none(drm, tmp_path):
    """By its place on the bus; without it, two GPUs are one too many."""
    other = tmp_path / "devices" / "0000:83:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x1002\n")
    (other / "pp_dpm_sclk").write_text("S: 132Mhz *\n")
    (drm / "card2").mkdir()
    (drm / "card2" / "device").symlink_to(other)
    assert find_sensors(drm=drm) is None
    assert find_sensors("0000:83:00.0", drm).read()["sclk_mhz"] == 132.0
    assert find_sensors("0000:03:00.0".upper(), drm).read()["sclk_mhz"] == 2287.0
    assert find_sensors("0000:99:00.0", drm) is None


def test_untimed_work_is_queued_before_the_first_event(stub):
    """Fill, untimed call, event, calls, event: the clock counts the time between the events only."""
    code = """
import ctypes, json
from rocattn.gpu.backlog import Backlog
from rocattn.gpu.runtime import open_runtime
from rocattn_profiling.bench.gpu_clock import EventClock
class Sensor:
    def read(self):
        order.append("read")
        return {"sclk_mhz": 100.0 * len(order)}
order = []
runtime = open_runtime()
hip = runtime.hip
record, fill = hip.event_record, hip.poison
hip.event_record = lambda *a: (order.append("event"), record(*a))[1]
hip.poison = lambda *a: (order.append("fill"), fill(*a))[1]
backlog = Backlog(runtime.hip, runtime.pool, 0, lambda: order.append("untimed"))
clock = EventClock(runtime, 0, lambda: order.append("call"), backlog, Sensor())
times = []
for _ in range(2):
    start = clock()
    clock.call()
    times.append(clock() - start)
print(json.dumps([times, order, clock.take_state(), clock.take_state()]))
"""
    done = stub(code)
    assert done.returncode == 0, done.stderr
    times, order, state, after = json.loads(done.stdout.splitlines()[-1])
    # The stub records its n-th event at n * n ms.
    assert times == pytest.approx([0.003, 0.007])
    assert order == ["fill", "untimed", "event", "call", "event", "read"] * 2
    assert state == {"sclk_mhz": (600 + 1200) / 2}
    assert after == {}


def test_the_runtime_says_where_the_device_is_on_the_bus(stub):
    """By this the sensors of one GPU are told from those of another; a runtime that does not tell is no error."""
    code = """
from rocattn.gpu.driver import open_hip
from rocattn.gpu.errors import GpuError
from rocattn_profiling.bench.gpu_clock import _bus_id
class Old:
    def call(self, name, buffer, length, index):
        buffer[:12] = b"0000:83:00.0"
class Mute:
    def call(self, *_):
        raise GpuError("hipDeviceGetPCIBusId gave hipErrorUnknown")
print(_bus_id(open_hip()), _bus_id(Old()), repr(_bus_id(Mute())))
"""
    assert stub(code).stdout.split() == ["0000:03:00.0", "0000:83:00.0", "''"]


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_ramp_that_is_no_time_is_told(value, monkeypatch):
    """In one line that names the variable; nothing set is a second."""
    monkeypatch.setenv("ROCATTN_GPU_RAMP_S", value)
    with pytest.raises(RocattnError, match=f"ROCATTN_GPU_RAMP_S is '{value}': it must be a number of seconds"):
        gpu_clock._ramp_seconds()
    monkeypatch.setenv("ROCATTN_GPU_RAMP_S", "")
    assert gpu_clock._ramp_seconds() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_a_launch_has_event_times_and_the_gpu_s_state(stub, drm, tmp_path, cache):
    """Through the gate's worker: samples from events, no CPU times, and clocks, power, temperature beside each."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/bench.py").write_text(SUITE)
    code = f"""
import json, sys
from pathlib import Path
from rocattn_profiling.gate.session.state import pair_launch
from rocattn_profiling.asv.launch import Launcher, Request
import msgspec
launcher = Launcher(sys.executable, Path(sys.argv[1]) / "suite", Path(sys.argv[1]) / "scratch")
(case,) = launcher.discover().cases((r"'{cache}'",))
outcome = launcher.run(case, Request(number=2, count=4))
assert outcome.status == "ok", outcome.traceback or outcome.reason
print(json.dumps(msgspec.to_builtins([outcome, pair_launch(0, outcome)])))
"""
    done = stub(code, str(tmp_path), STUB_DRM=str(drm), STUB_QUIET="1", ROCATTN_GPU_RAMP_S="0")
    assert done.returncode == 0, done.stderr
    outcome, pair = json.loads(done.stdout.splitlines()[-1])
    samples = outcome["launch"]["samples_ns"]
    assert len(samples) == 4
    # A call is between two consecutive events of the stub, 2n + 1 ms apart: later ones take longer, by 4 ms a call.
    assert [b - a for a, b in itertools.pairwise(samples)] == pytest.approx([8e6] * 3, rel=1e-3)
    assert outcome["launch"]["cpu_ns"] == []
    assert outcome["gpu"] == [{"sclk_mhz": 2287.0, "mclk_mhz": 1249.0, "power_w": 287.5, "temperature_c": 67.0}] * 4
    assert pair["sclk_mhz"] == [2287.0] * 4
    assert (pair["mclk_mhz"], pair["power_w"], pair["temperature_c"]) == (1249.0, 287.5, 67.0)


@pytest.mark.slow
def test_asv_itself_samples_the_clock(stub, drm, tmp_path):
    """The attribute is asv's own: its runner takes the event times for samples, of calls that are set up one by one."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/bench.py").write_text(SUITE)
    code = """
import os, subprocess, sys
import asv.benchmark
root = sys.argv[1]
del os.environ["PYTHONPATH"]  # asv takes from the path what stands in it
run = [sys.executable, asv.benchmark.__file__, "run", f"{root}/suite", "bench.Events.time_attention-0", "{}", "None"]
sys.exit(subprocess.run([*run, f"{root}/answer.json"]).returncode)
"""
    done = stub(code, str(tmp_path), STUB_DRM=str(drm), STUB_QUIET="1", ROCATTN_GPU_RAMP_S="0")
    assert done.returncode == 0, done.stderr
    samples = json.loads((tmp_path / "answer.json").read_text())["samples"]
    assert len(samples) == 3
    assert [b - a for a, b in itertools.pairwise(samples)] == pytest.approx([8e-3] * 2, rel=1e-3)


def test_the_stand_in_is_never_timed(hostgpu):
    """Neither the clock nor a case of the suites: the reason says that its times mean nothing."""
    code = """
import json
from rocattn import AttentionConfig
from rocattn.gpu.errors import GpuError
from rocattn.gpu.runtime import open_runtime
from rocattn_profiling.workloads.inputs import make_inputs
from rocattn_profiling.bench.gpu_clock import DeviceCase, EventClock
said = []
try:
    EventClock(open_runtime(), 0, print, None, None)
except GpuError as error:
    said.append(str(error))
config = AttentionConfig(batch=1, seq_q=8, seq_k=8, num_heads=1, head_dim=64, dtype="float16")
try:
    DeviceCase(config, make_inputs(config), cold=False)
except NotImplementedError as error:
    said.append(str(error))
print(json.dumps(said))
"""
    assert ["mean nothing" in text for text in hostgpu(code)] == [True, True]


def test_the_suites_skip_without_a_gpu(hostgpu, tmp_path):
    """On the stand-in and on a machine with none: skipped with the reason, never a time."""
    code = f"""
import json, sys
from pathlib import Path
from rocattn_profiling.asv.launch import Launcher, Request
launcher = Launcher(sys.executable, Path({str(ROOT / "benchmarks")!r}), Path(sys.argv[1]))
case = launcher.discover().cases((r"bench_gpu\\.QuickEvents",))[0]
outcome = launcher.run(case, Request(number=1, count=1))
print(json.dumps([outcome.status, outcome.reason]))
"""
    status, reason = hostgpu(code, "gfx1100", str(tmp_path))
    assert (status, "stand-in" in reason) == ("skipped", True)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    status, reason = json.loads(done.stdout.splitlines()[-1])
    assert status == "skipped", reason


def test_the_clock_of_the_page_counts_timed_calls_alone(monkeypatch):
    """docs/changed-a-kernel.md's clock and benchmark, on a torch whose GPU takes 2 ms a call."""
    gpu_ms = 0.0

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = gpu_ms

        def synchronize(self):
            pass

        def elapsed_time(self, stop):
            return stop.at - self.at

    def softmax(_x, dim):
        nonlocal gpu_ms
        gpu_ms += 2.0

    torch = SimpleNamespace(
        cuda=SimpleNamespace(Event=Event), softmax=softmax, float16=None, randn=lambda *_shape, **_options: None
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    page = (ROOT / "docs/changed-a-kernel.md").read_text()
    module = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], module)  # noqa: S102 - the page's own code
    benchmark = module["Mine"]()
    benchmark.setup()
    for calls in (1, 20):
        before = benchmark.timer()
        for _ in range(calls):
            benchmark.time_softmax()
        assert benchmark.timer() - before == pytest.approx(calls * 2e-3)
        gpu_ms += 500.0  # what the GPU does between samples is not counted
