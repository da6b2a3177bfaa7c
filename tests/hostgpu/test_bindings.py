"""The stand-in as hip-python sees it, in a process of its own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rocattn.toolchain.hostgpu import compile_hostgpu, hostgpu_library

from .standin import KERNELS

THROUGH_BINDINGS = """
import ctypes, json, sys
import numpy as np
try:
    from rocm.bindings import hip
except ModuleNotFoundError:
    from hip import hip

def call(name, *arguments):
    status, *outputs = getattr(hip, name)(*arguments)
    assert status == hip.hipError_t.hipSuccess, (name, status)
    return outputs[0] if len(outputs) == 1 else outputs

def fails(name, *arguments):
    return getattr(hip, name)(*arguments)[0].name

call("hipInit", 0)
try:
    properties = call("hipGetDeviceProperties", 0)
except TypeError:  # before hip-python 10
    properties = hip.hipDeviceProp_t()
    call("hipGetDeviceProperties", properties, 0)
names = ["name", "gcnArchName", "totalGlobalMem", "sharedMemPerBlock", "regsPerBlock", "warpSize",
    "maxThreadsPerBlock", "maxThreadsDim", "maxGridSize", "clockRate", "major", "minor", "multiProcessorCount",
    "canMapHostMemory", "concurrentKernels", "unifiedAddressing", "maxThreadsPerMultiProcessor",
    "sharedMemPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerBlockOptin",
    "maxSharedMemoryPerMultiProcessor", "isLargeBar", "asicRevision", "memoryBusWidth", "l2CacheSize"]
plain = lambda v: v.decode().rstrip("\\0") if isinstance(v, bytes) else list(v) if isinstance(v, (list, tuple)) else v
answer = {"properties": {name: plain(getattr(properties, name)) for name in names}}
answer["count"] = call("hipGetDeviceCount")
answer["memory"] = call("hipMemGetInfo")
attribute = hip.hipDeviceAttribute_t
answer["wave"] = call("hipDeviceGetAttribute", attribute.hipDeviceAttributeWarpSize, 0)
answer["lds"] = call("hipDeviceGetAttribute", attribute.hipDeviceAttributeMaxSharedMemoryPerBlock, 0)
answer["runtime"] = call("hipRuntimeGetVersion")

code = open(sys.argv[1], "rb").read()
x = np.arange(128, dtype=np.float32)
y = np.zeros_like(x)
stream = call("hipStreamCreate")
start, stop = call("hipEventCreate"), call("hipEventCreate")
dx, dy = call("hipMalloc", x.nbytes), call("hipMalloc", y.nbytes)
kinds = hip.hipMemcpyKind
call("hipMemcpyAsync", dx, x.ctypes.data, x.nbytes, kinds.hipMemcpyHostToDevice, stream)
call("hipMemsetAsync", dy, 0, y.nbytes, stream)
module = call("hipModuleLoadData", code)
function = call("hipModuleGetFunction", module, b"copy")
call("hipEventRecord", start, stream)
call("hipModuleLaunchKernel", function, 1, 1, 1, 128, 1, 1, 0, stream, None, (dx, dy, ctypes.c_uint32(128)))
call("hipEventRecord", stop, stream)
call("hipEventSynchronize", stop)
answer["milliseconds"] = call("hipEventElapsedTime", start, stop)
call("hipMemcpy", y.ctypes.data, dy, y.nbytes, kinds.hipMemcpyDeviceToHost)
answer["copied"] = bool((x == y).all())
answer["beyond"] = fails("hipModuleLaunchKernel", function, 1, 1, 1, 128, 1, 1, 0, stream, None,
                         (dx, dy, ctypes.c_uint32(129)))
answer["too much"] = fails("hipMalloc", 1 << 30)
answer["wrong arch"] = fails("hipModuleLoadData", open(sys.argv[2], "rb").read())
for handle in (dx, dy):
    call("hipFree", handle)
call("hipModuleUnload", module)
call("hipEventDestroy", start)
call("hipStreamDestroy", stream)
answer["memory after"] = call("hipMemGetInfo")
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def bindings(standin, tmp_path_factory):
    """What hip-python, in a process of its own, says about a stand-in gfx942 with 1 MiB."""
    if find_spec("hip") is None:
        pytest.skip("hip-python is not installed")
    folder = tmp_path_factory.mktemp("bindings")
    for arch in ("gfx942", "gfx950"):
        Path(folder, f"{arch}.so").write_bytes(compile_hostgpu(KERNELS / "copy.hip", arch))
    root = hostgpu_library()
    done = subprocess.run(
        [sys.executable, "-c", THROUGH_BINDINGS, folder / "gfx942.so", folder / "gfx950.so"],
        env=os.environ | {
            "ROCM_PATH": str(root), "LD_LIBRARY_PATH": str(root / "lib"), "ROCATTN_HOSTGPU_ARCH": "gfx942",
            "ROCATTN_HOSTGPU_MEMORY_BYTES": str(1 << 20),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_bindings_read_the_properties_where_they_are(bindings):
    """The struct has HIP's layout: bindings that know only that see every field."""
    answer, _ = bindings
    properties = answer["properties"]
    assert properties == {
        "name": "rocattn hostgpu: a stand-in for gfx942, no GPU", "gcnArchName": "gfx942", "totalGlobalMem": 1 << 20,
        "sharedMemPerBlock": 65536, "regsPerBlock": 65536, "warpSize": 64, "maxThreadsPerBlock": 1024,
        "maxThreadsDim": [1024] * 3, "maxGridSize": [2**31 - 1, 65535, 65535], "clockRate": 0, "major": 9, "minor": 4,
        "multiProcessorCount": 304, "canMapHostMemory": 1, "concurrentKernels": 0, "unifiedAddressing": 1,
        "maxThreadsPerMultiProcessor": 2048, "sharedMemPerMultiprocessor": 65536, "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 65536, "maxSharedMemoryPerMultiProcessor": 65536, "isLargeBar": 0, "asicRevision": 0,
        "memoryBusWidth": 0, "l2CacheSize": 0,
    }  # fmt: skip
    assert (answer["count"], answer["wave"], answer["lds"]) == (1, 64, 65536)
    assert answer["runtime"] // 10**7 == 7


def test_bindings_run_a_kernel(bindings):
    """Memory, module, launch by an argument buffer, events; and nothing is left allocated."""
    answer, _ = bindings
    assert answer["copied"]
    assert answer["milliseconds"] >= 0
    assert answer["memory"] == answer["memory after"] == [1 << 20, 1 << 20]


def test_bindings_see_the_errors_of_a_gpu(bindings):
    """A read past the end is a launch failure, with its reason on stderr; so are too little memory and wrong code."""
    answer, stderr = bindings
    assert answer["beyond"] == "hipErrorLaunchFailure"
    assert "out-of-bounds global read at copy.hip" in stderr
    assert answer["too much"] == "hipErrorOutOfMemory"
    assert answer["wrong arch"] == "hipErrorNoBinaryForGpu"
    assert "the kernel was compiled for gfx950, ROCATTN_HOSTGPU_ARCH is gfx942" in stderr
