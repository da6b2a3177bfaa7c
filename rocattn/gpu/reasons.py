"""Diagnose a missing HIP runtime or device: the reason and the remedy, from the state of the machine."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

LIBRARY = "libamdhip64.so"
STAND_IN_ARCH = "ROCATTN_HOSTGPU_ARCH"
NOT_TIMED = "the device is the stand-in GPU: its times mean nothing, so nothing is timed on it"
NO_NVIDIA_DEVICE = "HIP is forwarded to an NVIDIA driver (ROCM_PATH), but libcuda.so.1 finds no card: see nvidia-smi"
_VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_DRIVERS = (Path("/dev/kfd"), Path("/dev/dxg"))  # Linux; Windows Subsystem for Linux
_RENDER_NODES = Path("/dev/dri")
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def driver_loaded() -> bool:
    """Return whether this machine has an AMD GPU driver's device file; without one no real device can work."""
    return any(path.exists() for path in _DRIVERS)


def gpu_expected() -> bool:
    """Return whether this machine's driver has a supported GPU that the user has not hidden."""
    from rocattn.gpu.arch import has_kernels

    hidden = any(os.environ.get(name) in {"", "-1"} for name in _VISIBILITY)
    if hidden or not _DRIVERS[0].exists():  # /dev/dxg exists for any vendor's GPU
        return False
    archs = _driver_archs()
    return archs is None or any(map(has_kernels, archs))


def _driver_archs() -> list[str] | None:
    """Return the architectures of the driver's GPUs, which a container may not all use; None if unknown.

    ``gfx_target_version`` (amdkfd's ABI in sysfs) is 90402 for gfx942 and 90010 for gfx90a; 0 for a CPU.
    """
    nodes = list(_TOPOLOGY.glob("*/properties"))
    if not nodes:
        return None
    archs = []
    for node in nodes:
        try:
            version = re.search(r"^gfx_target_version (\d+)$", node.read_text(), re.MULTILINE)
        except OSError:  # this container may not use the GPU
            continue
        if version and (number := int(version[1])):
            archs.append(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    return archs


def library_reason(path: Path) -> str:
    """Return why the runtime library cannot be loaded: missing, only under a versioned name, or broken."""
    root = Path(os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or "/opt/rocm")
    missing = (
        f"no HIP runtime: {LIBRARY} was not found (looked in {root / 'lib'} and the loader's paths); "
        "install ROCm, or set ROCM_PATH"
    )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        if path.is_absolute() or not str(error).startswith(f"{LIBRARY}: cannot open"):
            return f"no HIP runtime: {path} does not load: {error}"
    if (root / "lib" / LIBRARY).exists():
        return f"no HIP runtime: this hip-python does not look in {root / 'lib'}: add it to LD_LIBRARY_PATH"
    versioned = sorted((root / "lib").glob(f"{LIBRARY}.*"))
    if versioned:
        return (
            f"no HIP runtime: {versioned[-1]} is there but not {LIBRARY}; install hip-dev (hip-devel), which links it"
        )
    return missing


def no_device_reason(answer: str) -> str:
    """Return why a runtime sees no device: driver, permission, or an environment variable that hides them."""
    subject = f"a HIP runtime but no device ({answer})"
    kfd = _DRIVERS[0]
    if not driver_loaded():
        remedy = "load the amdgpu driver (in a container: --device=/dev/kfd --device=/dev/dri)"
        return f"{subject}: /dev/kfd is missing: {remedy}"
    if kfd.exists() and (refused := _refused(kfd)):
        return f"{subject}: {refused}"
    hiding = [f"{name}={os.environ[name]!r}" for name in _VISIBILITY if name in os.environ]
    if hiding:
        return f"{subject}: {', '.join(hiding)} may hide it"
    return f"{subject}: {kfd} is usable, so see `rocminfo` and `dmesg` for an unsupported GPU"


def _refused(kfd: Path) -> str:
    """Return what denies this user access to the driver's device files, or "".

    A GPU has two: /dev/kfd, shared by all GPUs, and its own render node. HIP opens both.
    """
    nodes = sorted(_RENDER_NODES.glob("renderD*"))
    closed = [kfd] if _closed(kfd) else []
    if nodes and all(map(_closed, nodes)):  # some GPUs may be other users'
        closed += nodes
    if closed:
        names = ", ".join(map(str, closed))
        return f"no permission on {names}: add this user to the groups render and video, then log in again"
    if not nodes:
        return f"{_RENDER_NODES}/renderD* is missing: start the container with --device=/dev/dri, too"
    return ""


def _closed(path: Path) -> bool:
    return not os.access(path, os.R_OK | os.W_OK)


def stand_in_reason() -> str:
    """Return why the stand-in GPU provides no device: the requested architecture is not supported."""
    from rocattn.gpu.arch import TESTED

    asked = os.environ.get(STAND_IN_ARCH)
    return f"the stand-in GPU cannot be {asked!r}: set {STAND_IN_ARCH} to one of {', '.join(TESTED)}"
