"""HIP on CUDA's driver: hip-python and rocattn's GPU path above a driver that has no card behind it."""

import json
import os
import re
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from runpy import run_path

import pytest

from rocattn.errors import ToolchainError
from rocattn.gpu.arch import device_target, family, has_kernels, is_nvidia, wave_size
from rocattn.gpu.build import _compile_ptx, compile_for_device
from rocattn.toolchain.host import compile_host

from ..host_compilers import building_with, each_compiler

HERE = Path(__file__).parent
HIPCUDA = HERE.parents[1] / "research/hipcuda"
RUN = run_path(str(HIPCUDA / "hipcuda.py"))
compile_ptx, hipcuda_library = RUN["compile_ptx"], RUN["hipcuda_library"]
EXPORTED = re.compile(r"HIPCUDA_EXPORT\s+[\w* ]+?(hip\w+)\(")
NAMED = re.compile(r'(?:call|_outputs|_allocated)\("(hip\w+)"')


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory):
    """Build a CUDA driver without a card."""
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "libcuda.so.1").write_bytes(compile_host([HERE / "fake_cuda.cpp"]))
    return folder


def environment(driver, **more):
    """Return the environment in which HIP is forwarded to that driver."""
    root = hipcuda_library()
    paths = os.pathsep.join((f"{root}/lib", str(driver)))
    return {**os.environ, "ROCM_PATH": str(root), "LD_LIBRARY_PATH": paths, **more}


def run(driver, program, **more):
    """Run a program in it."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment(driver, **more), capture_output=True, text=True, timeout=600, check=False
    )


def probed(driver, **more):
    """Return what rocattn finds there."""
    done = run(driver, "from dataclasses import asdict; import json; from rocattn.gpu.probe import probe;"
                       "print(json.dumps(asdict(probe())))", **more)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_card_is_described_as_what_it_is(fake_driver):
    """Name, target and units are the card's own."""
    (device,) = probed(fake_driver)["devices"]
    assert (device["name"], device["arch"], device["compute_units"]) == ("Fake card", "sm_90", 132)
    assert device["wave_size"] == 32
    assert not device["is_stand_in"]


def test_records_of_it_carry_its_name_and_never_say_amdgpu(fake_driver):
    """So that no history mixes them with an AMD GPU's."""
    done = run(fake_driver, "from rocattn_profiling.measure.machine import gpu_facts; print(gpu_facts())")
    assert "'gpu': 'Fake card', 'gfx': 'sm_90'" in done.stdout
    assert "amdgpu" not in done.stdout


@each_compiler
def test_the_library_of_each_compiler_finds_the_card(fake_driver, compiler):
    """It forwards calls to a driver that it looks for when it is loaded."""
    with building_with(compiler):
        answer = probed(fake_driver)
    assert len(answer["devices"]) == 1, answer


def test_without_a_driver_or_a_card_the_reason_is_given(fake_driver, tmp_path):
    """Both name the library that finds none."""
    if find_library("cuda"):
        pytest.skip("this machine has CUDA's own driver")
    for answer in (probed(tmp_path), probed(fake_driver, ROCATTN_FAKE_CUDA_EMPTY="1")):
        assert answer["devices"] == []
        assert "libcuda.so.1" in answer["reason"]


@pytest.mark.usefixtures("compiler")
def test_plans_are_compiled_launched_and_captured(fake_driver):
    """From numpy arrays to a graph: each call reaches the driver in the form that it wants."""
    program = """
import numpy as np, rocattn
from rocattn.config import AttentionConfig
from rocattn.gpu.graphs import capture
from rocattn.gpu.plan import plan
from rocattn.gpu.runtime import PreparedPlan, open_runtime
q = np.zeros((1, 64, 2, 64), np.float16)
assert rocattn.attention(q, q, q, backend="gpu").shape == q.shape
runtime = open_runtime()
config = AttentionConfig(batch=1, seq_q=64, seq_k=64, num_heads=2, head_dim=64, dtype="float16")
prepared = PreparedPlan(runtime, plan(config, runtime.arch))
addresses = {name: runtime.hip.malloc(1 << 20) for name in prepared.plan.buffers}
prepared.run(addresses, runtime.stream)
start, stop = runtime.hip.event_create(), runtime.hip.event_create()
runtime.hip.event_record(start, runtime.stream), runtime.hip.event_record(stop, runtime.stream)
assert runtime.hip.event_elapsed_ms(start, stop) == 0.5
with capture(runtime, runtime.stream) as graph:
    prepared.run(addresses, runtime.stream)
graph.launch(runtime.stream)
print("done")
"""
    done = run(fake_driver, program)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("status", [716, 700])
def test_a_fault_of_a_kernel_is_a_launch_error(fake_driver, status):
    """Also one that only CUDA has a number for."""
    program = "from rocattn.gpu.runtime import open_runtime; r = open_runtime(); r.hip.stream_synchronize(r.stream)"
    done = run(fake_driver, program, ROCATTN_FAKE_CUDA_FAULT=str(status))
    assert "LaunchError" in done.stderr.splitlines()[-1]


def test_too_much_memory_is_a_memory_error(fake_driver):
    """As on HIP."""
    done = run(fake_driver, "from rocattn.gpu.runtime import open_runtime; open_runtime().hip.malloc(1 << 40)")
    assert "DeviceMemoryError" in done.stderr.splitlines()[-1]


def test_every_call_that_the_driver_makes_is_there():
    """A call that is missing would be found by its first use only."""
    made = set(NAMED.findall((Path(__file__).parents[2] / "rocattn/gpu/driver.py").read_text()))
    exported = {name for source in HIPCUDA.glob("*.cpp") for name in EXPORTED.findall(source.read_text())}
    assert made
    assert made - exported - {"hipGetDeviceProperties"} == set()  # which is hipGetDevicePropertiesR0600 in the library


def test_without_the_forwarding_library_no_kernel_is_compiled(monkeypatch, tmp_path):
    """Its folder has what compiles them; that is said in one line."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    _compile_ptx.cache_clear()
    with pytest.raises(ToolchainError, match="research/hipcuda"):
        compile_for_device("hip/softmax.hip", "sm_90", {}, stand_in=False)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("arch", "release"), [("sm_80", "7.8"), ("sm_90", "7.8"), ("sm_121", "8.8")])
def test_kernels_compile_to_ptx_of_the_card(arch, release):
    """For the card's own target, in a release that does not depend on the CUDA that is installed, or is not."""
    defines = {"IN_DTYPE": "f16", "OUT_DTYPE": "f16", "BLOCK": 256}
    try:
        text = compile_ptx("hip/softmax.hip", arch, defines=defines).decode()
    except ToolchainError as error:
        if "unsupported CUDA gpu architecture" not in str(error):
            raise
        pytest.skip(str(error))
    assert f".target {arch}\n" in text
    assert f".version {release}\n" in text
    assert ".entry" in text


def test_which_cards_there_are_kernels_for():
    """Those whose matrix instructions nvgpu.h has."""
    assert is_nvidia("sm_90")
    assert not is_nvidia("sm_75")
    assert not is_nvidia("gfx90a")
    assert device_target("sm_90") == "sm_90"
    assert has_kernels("sm_120")
    assert (wave_size("sm_90"), family("sm_90", "float16"), family("sm_90", "float32")) == (32, "nvidia", "vector")
