"""Detect GPUs in a subprocess, for `rocattn doctor` and other callers that must not initialize HIP themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field

from rocattn.errors import complaint, signal_name
from rocattn.gpu.driver import GpuDevice, Hip, import_bindings
from rocattn.gpu.errors import GpuError, NoDeviceError, NoRuntimeError

_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """The usable devices, or the reason why there are none, with the remedy.

    Attributes:
        devices: Usable GPUs (or the stand-in) in HIP's order.
        reason: Why there are none; empty if there are any.
        runtime: HIP runtime version ("7.2.53211"); empty without a runtime.
        bindings: hip-python's version; empty if it is not installed.
    """

    devices: list[GpuDevice] = field(default_factory=list)
    reason: str = ""
    runtime: str = ""
    bindings: str = ""


def probe() -> GpuProbe:
    """Look for GPUs in a separate process; never raises and prints nothing.

    The process is separate because a broken driver can hang or abort its caller, because runtimes write to stderr, and
    because a process must not fork after initializing HIP (hipInit's documentation).
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-P", "-m", "rocattn.gpu.probe"]
    try:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            return GpuProbe(reason=_death(done.returncode, done.stderr.decode(errors="replace")))
        answer = json.loads(done.stdout.splitlines()[-1])
        return GpuProbe(**answer | {"devices": [GpuDevice(**device) for device in answer["devices"]]})
    except subprocess.TimeoutExpired:
        return GpuProbe(
            reason=f"the HIP runtime did not answer in {_PROBE_TIMEOUT_S:.0f} s: see `dmesg` for amdgpu errors"
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        return GpuProbe(reason=f"looking for GPUs failed: {error}")


def _death(status: int, output: str) -> str:
    last = complaint(output)
    if status > 0:
        return f"looking for GPUs failed: {last}"
    name = signal_name(-status)
    return f"the HIP runtime crashed ({name}) while listing devices; bindings and ROCm may not match: {last}"


def _probe_here() -> GpuProbe:
    """Query the runtime in this process."""
    _, bindings = import_bindings()
    runtime = ""
    try:
        hip = Hip()
        runtime = hip.runtime_version()
        devices = [hip.describe(index) for index in range(hip.device_count())]
    except (NoRuntimeError, NoDeviceError) as error:
        return GpuProbe(reason=str(error), runtime=runtime, bindings=bindings)
    except GpuError as error:
        reason = f"the HIP runtime found GPUs but does not describe them: {error}"
        return GpuProbe(reason=reason, runtime=runtime, bindings=bindings)
    return GpuProbe(devices=devices, runtime=runtime, bindings=bindings)


if __name__ == "__main__":
    print(json.dumps(asdict(_probe_here())))
