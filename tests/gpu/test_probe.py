"""Looking for GPUs: what `probe` says with and without a runtime, against a stub libamdhip64.so."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rocattn.gpu import reasons
from rocattn.gpu.driver import GpuDevice
from rocattn.gpu.probe import GpuProbe

from .conftest import build_runtime, run_python

pytestmark = pytest.mark.skipif(find_spec("rocm") is None and find_spec("hip") is None, reason="hip-python is missing")

STUB = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "stub_properties.h"
int hipInit(unsigned flags) { (void)flags; return 0; }
int hipRuntimeGetVersion(int* version) { *version = 70253211; return 0; }
int hipGetDeviceCount(int* count) {
    fputs("amdgpu.ids: No such file or directory\n", stderr);
    if (STATUS < 0) raise(-STATUS);
    *count = STATUS ? -7 : COUNT;
    return STATUS;
}
int hipGetDevicePropertiesR0600(Properties* p, int device) {
    strcpy(p->name, device ? "Radeon RX 7900 XTX" : "AMD Instinct MI300X");
    strcpy((char*)p + ARCH_OFFSET, device ? "gfx1100" : "gfx942:sramecc+:xnack-");
    p->totalGlobalMem = device ? 24ull << 30 : 192ull << 30;
    p->multiProcessorCount = device ? 48 : 304;
    p->warpSize = device ? 32 : 64;
    return 0;
}
"""


def probe_in_child(**environment):
    """Probe in a process with its own environment; returns the result and what reached stderr."""
    done = run_python("from rocattn.gpu.probe import probe; print(repr(probe()))", **environment)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout, {"GpuProbe": GpuProbe, "GpuDevice": GpuDevice}), done.stderr  # noqa: S307 - our own repr


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """Return a function: device count, status -> a ROCM_PATH with a runtime that answers so."""

    def build(count: int, status: int = 0, source: str = STUB) -> str:
        root = tmp_path_factory.mktemp("rocm")
        (root / "stub.c").write_text(source)
        build_runtime(root, root / "stub.c", f"-DCOUNT={count}", f"-DSTATUS={status}")
        return str(root)

    return build


def test_devices_are_described(stub):
    """Name, target with features, compute units, memory and wave size of every device come through, in order."""
    found, noise = probe_in_child(ROCM_PATH=stub(2))
    assert found.reason == ""
    assert found.runtime == "7.2.53211"
    assert found.devices == [
        GpuDevice("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192 << 30, 64),
        GpuDevice("Radeon RX 7900 XTX", "gfx1100", 48, 24 << 30, 32),
    ]
    assert noise == ""


@pytest.mark.parametrize(
    ("count", "status", "named"), [(0, 100, "hipErrorNoDevice"), (0, 0, "hipGetDeviceCount returned 0")]
)
def test_a_runtime_without_a_device_says_so(stub, count, status, named):
    """The error is named, not numbered, and the reason goes on to /dev/kfd or what hides the device."""
    found, noise = probe_in_child(ROCM_PATH=stub(count, status))
    assert found.devices == []
    assert found.reason.startswith("a HIP runtime but no device")
    assert named in found.reason
    if not Path("/dev/kfd").exists():
        assert "/dev/kfd is missing" in found.reason
    assert noise == ""


@pytest.mark.parametrize(
    ("status", "source", "says"),
    [
        (-6, STUB, "crashed (SIGABRT)"),
        (-40, STUB, "crashed (signal 40)"),  # Python has no names for most real-time signals
        (7777, STUB, "7777"),  # bindings raise ValueError for a code they do not know: a newer runtime's
        (0, STUB.replace("PropertiesR0600", "Properties"), "hipGetDevicePropertiesR0600"),  # HIP 5 has none
    ],
    ids=["abort", "signal without a name", "unknown code", "missing symbol"],
)
def test_a_runtime_that_fails_is_a_reason(stub, status, source, says):
    """It ends the look, not the caller, and without a traceback."""
    found, noise = probe_in_child(ROCM_PATH=stub(1, status, source))
    assert says in found.reason
    assert found.devices == []
    assert noise == ""


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("", ["no HIP runtime", "libamdhip64.so was not found", "{lib}"]),
        ("libamdhip64.so.7", ["no HIP runtime", "libamdhip64.so.7 is there"]),  # without the development link
        ("libamdhip64.so", ["does not load"]),  # a broken library is not reported as a missing one
    ],
    ids=["none", "versioned alone", "broken"],
)
def test_without_a_runtime_the_reason_says_what_was_looked_for(tmp_path, library, says):
    """And where."""
    (tmp_path / "lib").mkdir()
    if library:
        (tmp_path / "lib" / library).write_text("not a library")
    found, noise = probe_in_child(ROCM_PATH=str(tmp_path))
    if library != "libamdhip64.so" and not found.reason.startswith("no HIP runtime"):
        pytest.skip("this machine's loader finds a HIP runtime by itself")
    assert all(words.format(lib=tmp_path / "lib") in found.reason for words in says)
    assert noise == ""


def test_nothing_is_left_of_the_probe_in_the_caller():
    """The caller does not import hip-python: a process that has initialised HIP must not fork."""
    code = (
        "import sys; from rocattn.gpu.probe import probe; probe(); print('rocm' in sys.modules, 'hip' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("kfd", "nodes", "says"),
    [
        (0o666, {}, "dri/renderD* is missing: start the container with --device=/dev/dri, too"),
        (
            0o666,
            {"renderD128": 0, "renderD129": 0},
            "no permission on {dri}/renderD128, {dri}/renderD129: add this user",
        ),
        (0, {"renderD128": 0}, "no permission on {kfd}, {dri}/renderD128: add this user"),
        (0, {"renderD128": 0o666}, "no permission on {kfd}: add this user"),
        (0, {}, "no permission on {kfd}: add this user"),
        (0o666, {"renderD128": 0, "renderD129": 0o666}, "HIP_VISIBLE_DEVICES='7' may hide it"),
    ],
)
def test_a_driver_that_is_closed_to_this_user_is_the_reason(tmp_path, monkeypatch, kfd, nodes, says):
    """A GPU has two device files: the second is what containers and groups usually lack."""
    made, dri = tmp_path / "kfd", tmp_path / "dri"
    dri.mkdir()
    modes = {made: kfd} | {dri / name: mode for name, mode in nodes.items()}
    for path in modes:
        path.touch()
    # Root may open everything, whatever a file's mode is.
    monkeypatch.setattr(reasons.os, "access", lambda path, _: bool(modes[path]))
    monkeypatch.setattr(reasons, "_DRIVERS", (made,))
    monkeypatch.setattr(reasons, "_RENDER_NODES", dri)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "7")
    reason = reasons.no_device_reason("hipErrorNoDevice")
    assert says.format(kfd=made, dri=dri) in reason
