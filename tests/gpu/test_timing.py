"""Times of short plans on the stand-in's made-up clock: the kernels' own, without the host's launching."""

import pytest

# What `benchmarks/bench_gpu.py` and `PreparedPlan.time` do, with a device that says that it is a GPU.
PRELUDE = """
import dataclasses, json, os
from rocattn import BACKENDS, AttentionConfig
from rocattn.gpu.errors import GpuError
from rocattn_profiling.workloads.inputs import make_inputs
from rocattn_profiling.bench.gpu_clock import DeviceCase
config = AttentionConfig(batch=1, seq_q=1, seq_k=512, num_heads=2, head_dim=32, dtype="float16")
gpu = BACKENDS.get("gpu")
runtime = gpu.runtime()
prepared = gpu.prepare(runtime, config)
runtime.device = dataclasses.replace(runtime.device, is_stand_in=False)
runtime.pool.exact = False  # hipFree waits for the device; on a GPU the pool keeps its blocks
fills = []
fill = runtime.hip.poison
runtime.hip.poison = lambda *a: (fills.append(a), fill(*a))[1]
"""
SMALL = {"ROCATTN_HOSTGPU_MEMORY_BYTES": str(8 << 20), "ROCATTN_GPU_RAMP_S": "0"}
# The host takes 8 us a launch, a decode step of two kernels 5 us on the device.
DECODE = "event=2000 flash_decode=3000 flash_decode_combine=2000 memset=50000 call="


@pytest.fixture
def timed(hostgpu):
    """Return a function: code, costs -> what it prints, on a stand-in with little memory and that clock."""
    return lambda code, costs: hostgpu(PRELUDE + code, "gfx942", ROCATTN_HOSTGPU_TIME=costs, **SMALL)


@pytest.mark.parametrize("host_ns", [8000, 40000])
def test_a_decode_plan_has_its_kernels_own_times(timed, host_ns):
    """However long the host takes to launch: one fill in front of a run, or as many as that needs."""
    code = """
case = DeviceCase(config, make_inputs(config), cold=False)
fills.clear()
first = prepared.time(case._addresses, runtime.stream, warmup=1, repeats=1)
several = prepared.time(case._addresses, runtime.stream, warmup=1, repeats=4)
print(json.dumps([first, several, len(fills)]))
"""
    first, several, fills = timed(code, f"{DECODE}{host_ns}")
    assert first == [pytest.approx([3000]), pytest.approx([2000])]
    assert several == [pytest.approx([3000] * 4), pytest.approx([2000] * 4)]
    assert fills == 5 or host_ns > 8000


@pytest.mark.parametrize("cold", [False, True])
def test_a_sample_of_the_suites_clock_has_no_gaps(timed, cold):
    """Five calls in a sample; if the GPU caught up with the host, they are queued again behind more."""
    code = f"""
case = DeviceCase(config, make_inputs(config), cold={cold})
fills.clear()
samples, counts = [], []
for _ in range(3):
    start = case.clock()
    for _ in range(5):
        case.call()
    samples.append((case.clock() - start) * 1e9)
    counts.append(len(fills))
print(json.dumps([samples, counts]))
"""
    samples, counts = timed(code, f"{DECODE}8000")
    assert samples == pytest.approx([5 * (3000 + 2000)] * 3, rel=1e-4)
    assert counts[2] - counts[1] < counts[0], "what was enough for one sample is what the next begins with"


def test_a_calls_host_time_stands_beside_its_kernels(timed):
    """Of a device that says it is a GPU both; on the stand-in the calls of the suite, which launch nothing there."""
    code = """
from rocattn_profiling.bench.gpu_clock import HostCall, host_and_kernels_ns
host, kernels = host_and_kernels_ns(config, make_inputs(config))
runtime.device = dataclasses.replace(runtime.device, is_stand_in=True)
launched = []
runtime.hip.launch = launched.append
call = HostCall(config, make_inputs(config))
call()
call.wait()
try:
    host_and_kernels_ns(config, make_inputs(config))
except NotImplementedError as error:
    print(json.dumps([host > 0, kernels, launched, str(error)]))
"""
    host, kernels, launched, said = timed(code, f"{DECODE}8000")
    assert host
    assert kernels == pytest.approx(5000)
    assert launched == []
    assert said.startswith("the device is the stand-in GPU")
