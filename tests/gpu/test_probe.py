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


@pytest.mark.parametrize(("status", "name"), [(-6, "SIGABRT"), (-40, "signal 40")])
def test_a_runtime_that_aborts_is_a_reason(stub, status, name):
    """A crash of the runtime ends the look, not the caller; Python has no names for most real-time signals."""
    found, noise = probe_in_child(ROCM_PATH=stub(1, status))
    assert f"crashed ({name})" in found.reason
    assert noise == ""


def test_an_unknown_error_code_is_a_reason(stub):
    """Bindings raise ValueError for a code they do not know; that is a newer runtime, not a traceback."""
    found, _ = probe_in_child(ROCM_PATH=stub(1, 7777))
    assert "7777" in found.reason
    assert found.devices == []


def test_a_runtime_without_the_expected_symbols_is_a_reason(stub):
    """HIP 5 has no hipGetDevicePropertiesR0600: the reason names it."""
    found, _ = probe_in_child(ROCM_PATH=stub(1, 0, STUB.replace("PropertiesR0600", "Properties")))
    assert "hipGetDevicePropertiesR0600" in found.reason


def test_no_runtime_names_the_places_that_were_searched(tmp_path):
    """Without the library the reason says what was looked for and where."""
    found, noise = probe_in_child(ROCM_PATH=str(tmp_path))
    if not found.reason.startswith("no HIP runtime"):
        pytest.skip("this machine's loader finds a HIP runtime by itself")
    assert "libamdhip64.so was not found" in found.reason
    assert str(tmp_path / "lib") in found.reason
    assert noise == ""


def test_a_versioned_runtime_alone_is_pointed_out(tmp_path):
    """Runtime packages without the development link have libamdhip64.so.N only."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so.7").touch()
    found, _ = probe_in_child(ROCM_PATH=str(tmp_path))
    if not found.reason.startswith("no HIP runtime"):
        pytest.skip("this machine's loader finds a HIP runtime by itself")
    assert "libamdhip64.so.7 is there" in found.reason


def test_a_runtime_that_does_not_load_says_why(tmp_path):
    """A broken library is not reported as a missing one."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("not a library")
    found, noise = probe_in_child(ROCM_PATH=str(tmp_path))
    assert "does not load" in found.reason
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
