"""The HIP runtime through hip-python, of which this is the only importer.

Facts relied on (hip-python 7.2 and 10): importing it works without ROCm; the first call then raises RuntimeError.
Outputs of a failed call are garbage. Error values print as numbers, so names are taken from the enum.
``hipGetErrorString`` writes to stderr when the library is missing, so it is not used.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

LIBRARY = "libamdhip64.so"
_PROBE_TIMEOUT_S = 60.0
_VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as the HIP runtime describes it.

    Attributes:
        name: Marketing name; empty on some boards.
        arch: Target as kernels are compiled for it, features included ("gfx942:sramecc+:xnack-").
        compute_units: Compute units (on gfx10 and later, as the runtime counts them: usually work-group processors).
        memory_bytes: Device memory.
        wave_size: Lanes of a wave, 32 or 64.
    """

    name: str
    arch: str
    compute_units: int
    memory_bytes: int
    wave_size: int


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """What was found: devices, or the reason there are none and what to do about it.

    Attributes:
        devices: Usable GPUs in HIP's order.
        reason: Why there are none; empty when there are some.
        runtime: HIP runtime version ("7.2.53211"); empty without a runtime.
        bindings: hip-python's version; empty when it is not installed.
    """

    devices: list[GpuDevice] = field(default_factory=list)
    reason: str = ""
    runtime: str = ""
    bindings: str = ""


class _HipError(Exception):
    """A call did not return hipSuccess; the text names both."""


class _NoGpuError(Exception):
    """There is no usable GPU; the text is the reason."""


def probe() -> GpuProbe:
    """Look for GPUs in a process of its own; never raises and prints nothing.

    A process of its own, because a broken driver can hang or abort its caller, because runtimes write to stderr, and
    because a process that has initialised HIP must not fork any more (hipInit's documentation).
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-P", "-m", "rocattn.gpu.driver"]
    try:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            return GpuProbe(reason=_death(done.returncode, done.stderr.decode(errors="replace")))
        found = json.loads(done.stdout.splitlines()[-1])
        return GpuProbe(**found | {"devices": [GpuDevice(**device) for device in found["devices"]]})
    except subprocess.TimeoutExpired:
        return GpuProbe(
            reason=f"the HIP runtime did not answer in {_PROBE_TIMEOUT_S:.0f} s: see `dmesg` for amdgpu errors"
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        return GpuProbe(reason=f"looking for GPUs failed: {error}")


def _death(status: int, output: str) -> str:
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    if status > 0:
        return f"looking for GPUs failed: {last}"
    name = signal.Signals(-status).name
    return f"the HIP runtime crashed ({name}) while it was asked for devices; bindings and ROCm may not match: {last}"


def _import_bindings() -> tuple[Any, str]:
    """Return hip-python's ``hip`` module (spelt ``rocm.bindings`` since 10) and the package's version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        package = version("hip-python")
    except PackageNotFoundError:
        package = ""
    for home in ("rocm.bindings", "hip"):
        try:
            return import_module(f"{home}.hip"), package
        except ModuleNotFoundError:
            continue
    return None, ""


def _look() -> GpuProbe:
    """Ask the runtime in this process."""
    hip, bindings = _import_bindings()
    if hip is None:
        return GpuProbe(reason="hip-python is not installed: pip install hip-python (x86-64 Linux only)")
    if hasattr(hip, "has_symbol") and not hip.has_symbol("hipInit"):
        return GpuProbe(reason=_library_reason(), bindings=bindings)
    runtime = ""
    try:
        runtime = _runtime(hip)
        devices = [_describe(hip, index) for index in range(_count(hip))]
    except _NoGpuError as error:
        return GpuProbe(reason=str(error), runtime=runtime, bindings=bindings)
    except _HipError as error:
        reason = f"the HIP runtime found GPUs but does not describe them: {error}"
    except RuntimeError as error:  # the bindings' word for a library or a symbol that is missing
        reason = _library_reason() if "dlopen" in str(error) else f"the HIP runtime does not fit hip-python: {error}"
    except ValueError as error:  # an error code that these bindings have no name for
        reason = f"the HIP runtime is newer than hip-python {bindings}: {error}"
    else:
        return GpuProbe(devices=devices, runtime=runtime, bindings=bindings)
    return GpuProbe(reason=reason, runtime=runtime, bindings=bindings)


def _count(hip: Any) -> int:
    """Return the number of devices, or raise _NoGpuError when there is none."""
    try:
        count = int(_call(hip, "hipGetDeviceCount"))
    except _HipError as error:
        raise _NoGpuError(_no_device_reason(str(error))) from error
    if count == 0:
        raise _NoGpuError(_no_device_reason("hipGetDeviceCount gave 0"))
    return count


def _call(hip: Any, name: str, *arguments: Any) -> Any:
    """Call HIP and return its output, or raise _HipError; bindings return (status, output…) or a bare status."""
    result = getattr(hip, name)(*arguments)
    status, *outputs = result if isinstance(result, tuple) else (result,)
    if status != hip.hipError_t.hipSuccess:
        raise _HipError(f"{name} gave {getattr(status, 'name', status)}")
    return outputs[0] if outputs else None


def _describe(hip: Any, index: int) -> GpuDevice:
    try:
        properties = _call(hip, "hipGetDeviceProperties", index)
    except TypeError:  # before 10 the caller brings the struct
        properties = hip.hipDeviceProp_t()
        _call(hip, "hipGetDeviceProperties", properties, index)
    return GpuDevice(
        name=_text(properties.name),
        arch=_text(properties.gcnArchName),
        compute_units=int(properties.multiProcessorCount),
        memory_bytes=int(properties.totalGlobalMem),
        wave_size=int(properties.warpSize),
    )


def _text(value: bytes | str) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else value).rstrip("\0")


def _runtime(hip: Any) -> str:
    """Return the version, which HIP packs as major * 10^7 + minor * 10^5 + patch; empty if it does not tell."""
    try:
        packed = int(_call(hip, "hipRuntimeGetVersion"))
    except _HipError:
        return ""
    return f"{packed // 10**7}.{packed // 10**5 % 100}.{packed % 10**5}"


def _library_reason() -> str:
    """Say why the runtime library cannot be loaded: not there, only under a versioned name, or broken."""
    try:
        from rocm.bindings.util.paths import get_library_path

        path = Path(os.fsdecode(get_library_path("amdhip64")))
    except ImportError:
        path = Path(LIBRARY)
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


def _no_device_reason(answer: str) -> str:
    """Say why a runtime sees no device: driver, permission, or an environment variable that hides them."""
    found = f"a HIP runtime but no device ({answer})"
    kfd = Path("/dev/kfd")
    if not kfd.exists():
        remedy = "load the amdgpu driver (in a container: --device=/dev/kfd --device=/dev/dri)"
        return f"{found}: /dev/kfd is missing: {remedy}"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return f"{found}: no permission on /dev/kfd: add this user to the groups render and video, then log in again"
    hiding = [f"{name}={os.environ[name]!r}" for name in _VISIBILITY if name in os.environ]
    if hiding:
        return f"{found}: {', '.join(hiding)} may hide it"
    return f"{found}: /dev/kfd is usable, so see `rocminfo` and `dmesg` for an unsupported GPU"


if __name__ == "__main__":
    print(json.dumps(asdict(_look())))
