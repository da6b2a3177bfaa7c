"""Executing plans: what HIP is told, what is timed, and what goes wrong, against a runtime that only remembers."""

import json
import struct

import pytest

from rocattn.gpu.reasons import driver_loaded

from .conftest import run_python

# Plans of a kernel of the tests' own, and what runs them.
PRELUDE = r"""
import ctypes, json, os, sys
from rocattn.gpu.build import code_object_name
from rocattn.gpu.driver import library_path
from rocattn.gpu.errors import GpuError
from rocattn.gpu.launch import Buffer, BufferArg, KernelLaunch, LaunchPlan, ScalarArg, WorkspaceArg
from rocattn.gpu.runtime import PreparedPlan, open_runtime

KERNEL = os.environ["STUB_KERNEL"]
SCALARS = [("in_stride", "i64", 5), ("out_stride", "i64", -7), ("rows", "u32", 3), ("columns", "u32", 5),
           ("first", "u32", 3), ("step", "u32", 1)]

def make(scalars=SCALARS, launches=2, workspace=4096, arch="gfx1100", **changes):
    args = (BufferArg("in"), WorkspaceArg("out", workspace), ScalarArg("lse", "u64", 0), BufferArg("factors"),
            *(ScalarArg(*scalar) for scalar in scalars))
    fields = dict(kernel="rows", source=KERNEL, defines={}, symbol="scale_rows", grid=(3, 2, 1),
                  block=(64, 1, 1), args=args, dynamic_lds_bytes=16,
                  code_object=code_object_name(KERNEL, arch, {})) | changes
    buffers = {name: Buffer((15,), (1,), "float32", "input") for name in ("in", "factors")}
    return LaunchPlan(arch, {}, "standard", "", buffers, (KernelLaunch(**fields),) * launches, {"out": workspace})

stub = ctypes.CDLL(str(library_path()))
stub.stub_log.restype = ctypes.c_char_p
def log():
    text = stub.stub_log().decode()
    stub.stub_clear()
    return text
def show(**values):
    print(json.dumps(values))
"""


def outcome(done):
    """Return what the code printed last."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def failure(done):
    """Return the last line of a traceback."""
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


def test_a_launch_tells_hip_what_the_plan_says(stub):
    """Grid, block, LDS, stream and every byte of the argument block arrive; workspaces are shared by launches."""
    code = """
runtime = open_runtime()
prepared = PreparedPlan(runtime, make())
log()
prepared.run({"in": 4096, "factors": 8192}, 77)
first = log()
prepared.run({"in": 512, "factors": 0}, 0)
show(first=first, second=log(), peak=runtime.pool.peak_bytes, current=runtime.pool.current_bytes)
"""
    found = outcome(stub(PRELUDE + code))
    one, two, rest = found["first"].split(";")
    assert one == two
    assert not rest
    name, grid, block, lds, stream, whole, data = one.split(" ")
    assert (name, grid, block, lds, stream, whole) == ("scale_rows", "3,2,1", "64,1,1", "16", "77", "1")
    values = struct.unpack("<4Q2q4I", bytes.fromhex(data))
    assert (values[0], values[2:]) == (4096, (0, 8192, 5, -7, 3, 5, 3, 1))
    assert values[1] != 0
    again = struct.unpack("<4Q2q4I", bytes.fromhex(found["second"].split(";")[0].split(" ")[6]))
    assert (again[0], again[3]) == (512, 0)
    assert (found["peak"], found["current"]) == (4096, 0)


def test_outputs_can_be_poisoned_before_they_are_written(stub):
    """What a kernel does not write is then NaN, not what an earlier call left; inputs stay as they are."""
    code = """
import ctypes, dataclasses
runtime = open_runtime()
plan = make(launches=1)
plan = dataclasses.replace(plan, buffers=plan.buffers | {"in": Buffer((3, 5), (5, 1), "float32", "output")})
places = {name: runtime.hip.malloc(60) for name in ("in", "factors")}
for place in places.values():
    ctypes.memset(place, 0, 60)
log()
PreparedPlan(runtime, plan).run(places, 0)
show(calls=[call.split(" ")[0] for call in log().split(";")],
     bytes=[ctypes.string_at(place, 60).hex() for place in places.values()])
"""
    found = outcome(stub(PRELUDE + code, ROCATTN_GPU_POISON="1"))
    assert found["calls"] == ["function", "fill", "fill", "scale_rows", ""]
    assert found["bytes"] == ["ff" * 60, "00" * 60]
    assert outcome(stub(PRELUDE + code))["bytes"] == ["00" * 60, "00" * 60]


def test_a_device_that_is_not_there_is_named(stub):
    """HIP's count is in the message."""
    assert failure(stub(f"{PRELUDE}\nopen_runtime(1)")).endswith("GpuError: there is no device 1: HIP has 1")


@pytest.mark.parametrize(
    ("archs", "ends"),
    [
        ("gfx90c:xnack- gfx1100 gfx906 gfx942", "; set HIP_VISIBLE_DEVICES to choose device 1 (gfx1100) or 3 (gfx942)"),
        ("gfx90c:xnack- gfx906", " and their siblings"),
    ],
)
def test_a_first_device_without_kernels_leads_to_those_with(stub, archs, ends):
    """A processor's own GPU may come before the card: the reason says which to choose."""
    code = """
import rocattn.gpu.reasons
rocattn.gpu.reasons.driver_loaded = lambda: True
from rocattn import BACKENDS
show(reason=BACKENDS.get("gpu").available().reason)
"""
    reason = outcome(stub(PRELUDE + code, STUB_ARCH=archs))["reason"]
    assert reason.startswith("device 0: there are no kernels for gfx90c, only for ")
    assert reason.endswith(ends)


SELECT = """
import sys, warnings
from pathlib import Path
from rocattn.gpu import reasons
reasons._DRIVERS = (Path(sys.argv[1], "kfd"),)
reasons._TOPOLOGY = Path(sys.argv[1], "nodes")
for name in sys.argv[2].split():
    sys.modules[name] = None
from rocattn import BACKENDS, AttentionConfig, ToolchainError
import rocattn.toolchain
if sys.argv[3]:
    def none():
        raise ToolchainError("no compiler for HIP kernels: install one")
    rocattn.toolchain.choose_compiler = none
BACKENDS.unregister("cpu-flash")  # compiling it would take long
config = AttentionConfig(batch=1, num_heads=1, seq_q=4, seq_k=4, head_dim=4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    chosen = [BACKENDS.select(config).name for _ in range(2)]
    BACKENDS.select(config.replace(dtype="float64"))
print(chosen, [str(warning.message) for warning in caught])
"""
MI300X = 90402  # gfx_target_version


def machine(folder, *versions):
    """Make the driver's files of a machine with these processors; 0 is a CPU."""
    (folder / "kfd").touch()
    for number, version in enumerate(versions):
        (folder / "nodes" / str(number)).mkdir(parents=True)
        (folder / "nodes" / str(number) / "properties").write_text(f"cpu_cores_count 8\ngfx_target_version {version}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("hidden", "reason"), [("", "libamdhip64.so was not found"), ("rocm hip", "hip-python is not")]
)
def test_a_gpu_that_cannot_be_used_is_said_once(tmp_path, hidden, reason):
    """Where the driver has a GPU with kernels: no bindings, or ROCM_PATH leads nowhere; in two calls one warning."""
    place = machine(tmp_path, 0, MI300X)
    done = run_python(SELECT, place, hidden, "", ROCM_PATH=str(tmp_path / "wrong"), LD_LIBRARY_PATH="")
    assert done.stdout.startswith("['cpu', 'cpu'] [\"the backend gpu does not work here, so cpu computes"), done.stderr
    assert done.stdout.count("does not work here") == 1
    assert reason in done.stdout


@pytest.mark.parametrize(
    ("versions", "environment"),
    [((0,), {}), ((0, 90006), {}), ((0, MI300X), {"HIP_VISIBLE_DEVICES": "-1"}), (None, {})],
    ids=["a CPU", "a GPU without kernels", "hidden", "no driver"],
)
def test_without_a_gpu_for_it_nothing_is_said(tmp_path, versions, environment):
    """A machine without one, or whose user keeps it for others, lacks nothing."""
    place = str(tmp_path) if versions is None else machine(tmp_path, *versions)
    done = run_python(SELECT, place, "rocm hip", "", ROCM_PATH=str(tmp_path / "wrong"), **environment)
    assert done.stdout == "['cpu', 'cpu'] []\n", done.stderr


def test_a_gpu_without_a_compiler_for_its_kernels_is_said(stub, tmp_path):
    """The call is computed elsewhere, and does not fail at the first kernel."""
    done = stub(SELECT, machine(tmp_path, MI300X), "", "no compiler", STUB_ARCH="gfx942")
    assert "so cpu computes" in done.stdout, done.stderr
    assert "no compiler for HIP kernels: install one" in done.stdout


def test_choosing_a_backend_without_a_driver_loads_no_hip(tmp_path):
    """Nothing of HIP is loaded, so the process may fork, and the CPU's first call does not wait for it."""
    if driver_loaded():
        pytest.skip("this machine has a GPU driver")
    code = """
import sys
import numpy as np, rocattn
q = np.ones((1, 2, 1, 4), np.float32)
assert (rocattn.attention(q, q, q) == 1).all()
print([name for name in sys.modules if name in {"rocm.bindings.hip", "hip.hip"}])
print("amdhip" in open("/proc/self/maps").read())
"""
    done = run_python(code, ROCM_PATH=str(tmp_path))
    assert done.stdout.split("\n")[:2] == ["[]", "False"], done.stderr


def test_broken_rocm_packages_leave_the_cpu_backends(tmp_path):
    """hip-python asks the package rocm_sdk for the library first, and hands on what that raises."""
    pytest.importorskip("rocm.bindings.util.paths")
    code = """
import sys, types
def find_libraries(name):
    raise FileNotFoundError(f"no {name}")
sys.modules["rocm_sdk"] = types.SimpleNamespace(find_libraries=find_libraries)
import numpy as np, rocattn
from rocattn.gpu.probe import _probe_here
q = np.ones((1, 2, 1, 4), np.float32)
assert (rocattn.attention(q, q, q) == 1).all()
print(rocattn.BACKENDS.get("gpu").available().reason)
print(_probe_here().reason)
"""
    done = run_python(code, ROCM_PATH=str(tmp_path))
    reason = "no HIP runtime: the package rocm_sdk is incomplete: no amdhip64"
    assert done.stdout.splitlines() == [reason] * 2, done.stderr


@pytest.mark.parametrize(
    ("hidden", "words"),
    [("[]", "no HIP runtime: libamdhip64.so was not found"), ("['rocm', 'hip']", "hip-python is not installed: ")],
)
def test_a_machine_without_a_gpu_says_what_is_missing(tmp_path, hidden, words):
    """Bindings or runtime: the reason is that of the backend, with what to do."""
    if driver_loaded():
        pytest.skip("this machine has a GPU driver")
    code = f"""
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {hidden} else find(name, *more)
for name in {hidden}:
    sys.modules[name] = None
from rocattn import BACKENDS
print(BACKENDS.get("gpu").available().reason)
"""
    done = run_python(code, ROCM_PATH=str(tmp_path))
    if "no HIP runtime" not in done.stdout and "hip-python" not in done.stdout:
        pytest.skip("this machine's loader finds a HIP runtime by itself")
    assert words in done.stdout, done.stderr


def test_launches_are_timed_by_events(stub):
    """The time of each launch is that between the events around it, in ns, without the warm-up.

    An idle GPU would take the first event at once and then wait for the host: each timed run follows another, and
    that a fill. Whether the GPU was still at it is asked after the last timed launch; this runtime always is.
    """
    code = """
prepared = PreparedPlan(open_runtime(), make())
times = prepared.time({"in": 4096, "factors": 8192}, 0, warmup=1, repeats=2)
show(times=times, calls=" ".join(call.split(" ")[0] for call in log().split(";")[1:]))
"""
    found = outcome(stub(PRELUDE + code))
    # The stub records its n-th event at n * n ms: a run of two launches records three.
    assert found["times"] == [[3e6, 9e6], [5e6, 11e6]]
    untimed, timed = "scale_rows scale_rows ", "event scale_rows event scale_rows event wait wait "
    assert found["calls"] == untimed + ("fill " + untimed + timed) * 2


def test_launches_that_wait_for_each_other_are_not_timed(stub):
    """A GPU that has always caught up with the host is used in a way that adds the host's time to each kernel's."""
    code = "PreparedPlan(open_runtime(), make()).time({'in': 4096, 'factors': 8192}, 0, warmup=0, repeats=1)"
    words = failure(stub(PRELUDE + code, STUB_IDLE="1", STUB_QUIET="1"))
    assert "GpuError: nothing can be timed: the GPU waited for the host behind 1024 fills of " in words


@pytest.mark.parametrize(
    ("code", "environment", "words"),
    [
        ("make(scalars=SCALARS[:-1])", {}, "scale_rows takes 10 arguments, the plan gives 9"),
        (
            "make(scalars=[SCALARS[2], *SCALARS[1:2], SCALARS[0], *SCALARS[3:]])",
            {},
            "takes in_stride: by_value of 8 bytes at 32, where the plan has rows: u32 of 4 bytes at 32",
        ),
        (
            "make(scalars=[SCALARS[1], SCALARS[0], *SCALARS[2:]])",
            {},
            "takes in_stride: by_value of 8 bytes at 32, where the plan has out_stride: i64",
        ),
        ("make(symbol='rows')", {}, "there is no kernel rows: the code object has scale_rows"),
        ("make(block=(128, 1, 1))", {}, "scale_rows takes 64 threads per block, the plan has 128"),
        ("make(arch='gfx942')", {}, "ArchError: the plan is for gfx942, the device is gfx1100"),
        ("make()", {"STUB_LOAD": "209"}, "ArchError: the device is gfx1100, which cannot run code for gfx1100"),
        ("make()", {"STUB_LOAD": "218"}, "does not load: hipModuleLoadData gave hipErrorInvalidKernelFile"),
        (
            "make(scalars=[('in_stride', 'i64', 1 << 63), *SCALARS[1:]])",
            {},
            "in_stride = 9223372036854775808 is not a valid i64",
        ),
        ("make()", {"STUB_ARCH": "gfx803"}, "ArchError: device 0: there are no kernels for gfx803"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_it_runs(stub, code, environment, words):
    """The code object's own metadata is compared with the arguments; the message says where they differ."""
    done = stub(f"{PRELUDE}\nPreparedPlan(open_runtime(), {code})", **environment)
    assert words in failure(done)


def test_a_refused_launch_names_the_kernel(stub):
    """HIP's error comes with the kernel's name, not as a number."""
    code = "PreparedPlan(open_runtime(), make()).run({'in': 0, 'factors': 0}, 0)"
    words = failure(stub(PRELUDE + code, STUB_LAUNCH="9"))
    assert words.endswith("LaunchError: rows: hipModuleLaunchKernel gave hipErrorInvalidConfiguration")
    words = failure(stub(PRELUDE + code, STUB_LAUNCH="7777"))  # no name for it
    assert "LaunchError: rows: hipModuleLaunchKernel: the HIP runtime is newer than hip-python " in words


def test_too_large_a_workspace_says_what_there_is(stub):
    """Out of memory has the sizes, as text and as numbers; nothing is kept of the failed call."""
    code = """
runtime = open_runtime()
keep = runtime.pool.take(300_000, 0)
try:
    PreparedPlan(runtime, make(workspace=900_000)).run({"in": 0, "factors": 0}, 0)
except GpuError as error:
    found = [type(error).__name__, str(error), error.requested_bytes, error.free_bytes, error.total_bytes]
runtime.pool.give(keep)
PreparedPlan(runtime, make(workspace=900_000)).run({"in": 0, "factors": 0}, 0)  # the kept block makes room
show(found=found, current=runtime.pool.current_bytes, reserved=runtime.pool.reserved_bytes)
"""
    found = outcome(stub(PRELUDE + code))
    assert found["found"][0] == "DeviceMemoryError"
    free = (1 << 20) - 300_032
    assert found["found"][1] == "no device memory for 900.1 kB: 748.5 kB of 1.0 MB are free"
    assert found["found"][2:] == [900_096, free, 1 << 20]
    assert (found["current"], found["reserved"]) == (0, 900_096)


def test_a_fork_of_a_process_that_used_the_gpu_is_told_so(stub):
    """The child gets a clear error; the parent goes on."""
    code = """
runtime = open_runtime()
prepared = PreparedPlan(runtime, make())
child = os.fork()
if child == 0:
    for action in (open_runtime, lambda: prepared.run({"in": 0, "factors": 0}, 0)):
        try:
            action()
        except GpuError as error:
            print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
prepared.run({"in": 0, "factors": 0}, 0)
print("the parent goes on")
"""
    done = stub(PRELUDE + code)
    assert done.returncode == 0, done.stderr
    first, second, parent = done.stdout.splitlines()
    assert first == second
    assert first.startswith("ForkError HIP was initialized in process ")
    assert 'multiprocessing\'s "spawn"' in first
    assert parent == "the parent goes on"


def test_real_device_comes_first_but_not_in_a_fork(stub):
    """With a GPU that has a driver the gpu backend is chosen first; a forked child falls back with the reason."""
    code = """
import rocattn.gpu.reasons
rocattn.gpu.reasons.driver_loaded = lambda: True
from rocattn import BACKENDS, AttentionConfig
config = AttentionConfig(batch=1, num_heads=1, seq_q=4, seq_k=4, head_dim=8)
print([backend.name for backend in BACKENDS][0], BACKENDS.select(config).name, flush=True)
if os.fork() == 0:
    print(BACKENDS.select(config).name, BACKENDS.get("gpu").available().reason, flush=True)
    os._exit(0)
os.wait()
"""
    done = stub(PRELUDE + code)
    assert done.returncode == 0, done.stderr
    parent, child = done.stdout.splitlines()
    assert parent == "gpu gpu"
    assert child.startswith("cpu-flash HIP was initialized in process")
