"""Why there is no HIP runtime or no device, and what to do about it: texts found by looking at the machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

LIBRARY = "libamdhip64.so"
STAND_IN_ARCH = "ROCATTN_HOSTGPU_ARCH"
_VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_DRIVERS = (Path("/dev/kfd"), Path("/dev/dxg"))  # Linux; Windows' subsystem for Linux


def driver_loaded() -> bool:
    """Whether this machine has the device file of an AMD GPU driver; without one no real device can work."""
    return any(path.exists() for path in _DRIVERS)


def library_reason(path: Path) -> str:
    """Say why the runtime library cannot be loaded: not there, only under a versioned name, or broken."""
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
    """Say why a runtime sees no device: driver, permission, or an environment variable that hides them."""
    found = f"a HIP runtime but no device ({answer})"
    kfd = _DRIVERS[0]
    if not driver_loaded():
        remedy = "load the amdgpu driver (in a container: --device=/dev/kfd --device=/dev/dri)"
        return f"{found}: /dev/kfd is missing: {remedy}"
    if kfd.exists() and not os.access(kfd, os.R_OK | os.W_OK):
        return f"{found}: no permission on /dev/kfd: add this user to the groups render and video, then log in again"
    hiding = [f"{name}={os.environ[name]!r}" for name in _VISIBILITY if name in os.environ]
    if hiding:
        return f"{found}: {', '.join(hiding)} may hide it"
    return f"{found}: /dev/kfd is usable, so see `rocminfo` and `dmesg` for an unsupported GPU"


def stand_in_reason() -> str:
    """Say why the stand-in GPU gives no device: it is asked to stand in for something else than it can."""
    from rocattn.gpu.arch import TESTED

    asked = os.environ.get(STAND_IN_ARCH)
    return f"the stand-in GPU cannot be {asked!r}: set {STAND_IN_ARCH} to one of {', '.join(TESTED)}"
