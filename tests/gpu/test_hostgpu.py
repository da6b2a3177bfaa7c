"""The whole path, from `rocattn.attention` through hip-python to executed kernels, on the stand-in GPU."""

from pathlib import Path

import pytest

from rocattn.gpu.arch import TESTED

from .hostgpu_cases import BACKWARD, CASES

CALL = "import hostgpu_cases; hostgpu_cases.main()"
EXPECTED = [*(f"{name} {path}" for name in CASES for path in ("flash", "standard")), *BACKWARD]


@pytest.fixture(scope="module")
def found(hostgpu):
    """Return a function: architecture -> what became of each case there; one process for all of them."""
    results = {}

    def on(arch):
        if arch not in results:
            results[arch] = hostgpu(CALL, arch)
        return results[arch]

    return on


@pytest.mark.slow
@pytest.mark.parametrize("arch", TESTED)
def test_every_case_is_right_on_every_architecture(found, arch):
    """Masks, GQA, odd sizes, dtypes and layouts, both paths, both directions, within the rule for errors."""
    results = dict(found(arch))
    assert results.pop("memory") == [0, 0]
    assert results.keys() == set(EXPECTED)
    assert {name: text for name, text in results.items() if text != "right"} == {}


def test_the_stand_in_is_never_chosen_and_says_what_it_is(hostgpu):
    """Without being named it comes after everything; its name says that it is no GPU."""
    code = """
import json, numpy as np, rocattn
from rocattn import BACKENDS, AttentionConfig
gpu = BACKENDS.get("gpu")
config = AttentionConfig(batch=1, num_heads=2, seq_q=3, seq_k=3, head_dim=8)
answer = gpu.available()
print(json.dumps([bool(answer), answer.reason, [b.name for b in BACKENDS][-1], BACKENDS.select(config).name != "gpu",
                  gpu.is_stand_in, gpu.runtime().device.name]))
"""
    works, reason, last, passed_over, stand_in, name = hostgpu(code, "gfx942")
    assert works
    assert "not a GPU" in reason
    assert (last, passed_over, stand_in) == ("gpu", True, True)
    assert "no GPU" in name


def test_nothing_is_timed_on_the_stand_in(hostgpu, tmp_path):
    """`rocattn bench` says so in a line and has no record of a time; `PreparedPlan.time` refuses."""
    code = """
import json, sys
from rocattn import BACKENDS, AttentionConfig
from rocattn.gpu.errors import GpuError
from rocattn_profiling.cli import main
status = main(["bench", "--backend", "gpu", "--seq-q", "16", "--quick", "--no-store", "--out", sys.argv[1]])
gpu = BACKENDS.get("gpu")
gpu.use_flash_attention = False
config = AttentionConfig(batch=1, num_heads=2, seq_q=3, seq_k=3, head_dim=8)
try:
    gpu.prepare(gpu.runtime(), config).time({}, 0, warmup=0, repeats=1)
except GpuError as error:
    print(json.dumps([status, str(error)]))
"""
    status, words = hostgpu(code, "gfx1100", str(tmp_path))
    assert status == 3
    assert "its times mean nothing" in words
    (record,) = (tmp_path / "records.jsonl").read_text().splitlines()
    assert "not timed: it runs on the stand-in GPU" in record
    assert '"launches":[]' in record or "samples" not in record


def test_a_kernel_that_reads_past_its_buffer_is_reported(hostgpu):
    """The stand-in's finding reaches the caller as the error's text; the next call works."""
    code = """
import json, numpy as np, rocattn
from rocattn import BACKENDS, AttentionConfig
from rocattn.gpu.errors import LaunchError
gpu = BACKENDS.get("gpu")
gpu.use_flash_attention = False
runtime = gpu.runtime()
config = AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=9, head_dim=8)
prepared = gpu.prepare(runtime, config)
sizes = {"q": 4 * 2 * 9 * 8 - 4, "k": 4 * 2 * 9 * 8, "v": 4 * 2 * 9 * 8, "out": 4 * 2 * 9 * 8}
zeros = np.zeros(4 * 2 * 9 * 8, np.uint8)
try:
    with runtime.pool.taken(sizes, 0) as places:
        for name, place in places.items():
            runtime.hip.copy_to_device(place, zeros.ctypes.data, sizes[name], 0)
        prepared.run(places, 0)
        runtime.hip.stream_synchronize(0)
    found = ["nothing", "", ""]
except LaunchError as error:
    found = [str(error), error.kernel, error.report + runtime.hip.report()]  # the report is given once
q = np.ones((1, 9, 2, 8), np.float32)
print(json.dumps([*found, bool(np.allclose(rocattn.attention(q, q, q, backend="gpu"), 1)), runtime.pool.current_bytes]))
"""
    words, kernel, report, works, current = hostgpu(code)
    assert kernel == "qk_matmul"
    assert "out-of-bounds global read at include/rocattn/" in report
    assert report in words
    assert works
    assert current == 0


def test_doctor_names_the_stand_in_plainly(hostgpu):
    """It is no GPU in the rows, in the summary and in the JSON."""
    code = """
import json
from rocattn_profiling.doctor.command import lines, verdict
from rocattn_profiling.doctor.checks import examine
report = examine()
values = report.to_builtins()
print(json.dumps(["\\n".join(lines(report.checks)), verdict(values), values["gpu"]["devices"],
                  [backend for backend in values["backends"] if backend["name"] == "gpu"]]))
"""
    shown, summary, devices, backends = hostgpu(code, "gfx1201")
    assert "the stand-in for gfx1201, wave32: not a GPU; its times mean nothing" in shown
    assert "runs on the stand-in GPU: not a GPU, never chosen unless named" in shown
    assert "GPU path: no GPU, only the stand-in" in summary
    assert [(device["arch"], device["is_stand_in"]) for device in devices] == [("gfx1201", True)]
    assert [(backend["works"], backend["is_stand_in"]) for backend in backends] == [(True, True)]


def test_doctor_prints_the_folder_that_rocm_path_wants(hostgpu, capsys):
    """The one line is a folder with the library that hip-python looks for."""
    from rocattn_profiling import cli

    assert cli.main(["doctor", "--hostgpu"]) == 0
    (folder,) = capsys.readouterr().out.splitlines()
    assert (Path(folder) / "lib" / "libamdhip64.so").is_file()


def test_the_cpu_kernels_and_the_stand_in_live_in_one_process(hostgpu):
    """Both open libraries from memory; neither is handed the other's, whichever comes first."""
    code = """
import json, sys
import numpy as np, rocattn
q = np.random.default_rng(0).standard_normal((1, 5, 2, 8)).astype(np.float32)
order = sys.argv[1].split()
out = {name: rocattn.attention(q, q, q, backend=name) for name in order}
exact = rocattn.attention(q, q, q, backend="cpu")
print(json.dumps([bool(np.allclose(value, exact, atol=1e-5)) for value in out.values()]))
"""
    for order in ("cpu-flash gpu", "gpu cpu-flash"):
        assert hostgpu(code, "gfx1100", order) == [True, True]


def test_a_gpu_that_the_stand_in_cannot_be_is_named(hostgpu):
    """Not as a missing driver of a real GPU, which nobody on a machine with the stand-in is looking for."""
    code = "import json, rocattn; print(json.dumps(rocattn.BACKENDS.get('gpu').available().reason))"
    reason = hostgpu(code, "gfx1151")
    assert reason.startswith("the stand-in GPU cannot be 'gfx1151': set ROCATTN_HOSTGPU_ARCH to one of gfx90a, gfx942")


def test_a_failed_call_leaves_no_error_behind(hostgpu):
    """HIP keeps a thread's last error for whoever asks next: torch asks after each launch, and would raise ours."""
    code = """
import ctypes, json, rocattn
from rocattn.gpu.driver import library_path, open_hip
from rocattn.gpu.errors import GpuError
hip, left = open_hip(), ctypes.CDLL(str(library_path())).hipPeekAtLastError
found = []
config = rocattn.AttentionConfig(batch=1, seq_q=4, seq_k=4, num_heads=1, head_dim=32, dtype="float16")
prepared = rocattn.BACKENDS.get("gpu").prepare(rocattn.BACKENDS.get("gpu").runtime(), config)
nowhere = dict.fromkeys(prepared.plan.buffers, 0)
for attempt in (lambda: hip.malloc(1 << 50), lambda: prepared.run(nowhere, 0)):
    try:
        attempt()
    except GpuError as error:
        found.append([type(error).__name__, left()])
print(json.dumps(found))
"""
    assert hostgpu(code) == [["DeviceMemoryError", 0], ["LaunchError", 0]]
