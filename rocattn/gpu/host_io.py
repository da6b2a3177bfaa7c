"""Running a plan on numpy arrays: through pinned memory to the device, and back."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from rocattn.gpu.errors import CaptureError
from rocattn.gpu.plan import buffer_bytes, used_buffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocattn.gpu.launch import Buffer
    from rocattn.gpu.runtime import PreparedPlan
    from rocattn.registry import Array

_ALIGN = 256


def run_on_host_arrays(prepared: PreparedPlan, arrays: Mapping[str, Array]) -> None:
    """Run a plan on arrays in host memory and wait for it.

    Inputs are gathered into pinned memory in the plan's own layout (any strides are fine), one while the one before is
    on its way; outputs come back the same way.

    Args:
        prepared: The plan; its strides are those of contiguous arrays.
        arrays: The [B, H, S, D] views (and lse, mask, …) by buffer name; outputs are written.

    Raises:
        DeviceMemoryError: When device or pinned memory runs out.
        LaunchError: When a kernel fails.
        CaptureError: When the device's own stream is being captured.
    """
    runtime, plan = prepared.runtime, prepared.plan
    runtime.enter()
    if runtime.hip.capture_number(runtime.stream):
        raise CaptureError("numpy arrays cannot be captured: each call with them waits for its result")
    used = used_buffers(plan)
    buffers = {name: plan.buffers[name] for name in arrays if name in used}
    sizes = {name: buffer_bytes(buffer) for name, buffer in buffers.items()}
    places, total = {}, 0
    for name, size in sizes.items():
        places[name], total = total, total + -(-size // _ALIGN) * _ALIGN
    hip, stream = runtime.hip, runtime.stream
    with runtime.staging.taken(total) as pinned, runtime.pool.taken(sizes, stream) as device:
        try:
            for name, buffer in buffers.items():
                if buffer.role == "input" and sizes[name]:
                    np.copyto(_view(pinned + places[name], buffer, sizes[name], arrays[name].dtype), arrays[name])
                    hip.copy_to_device(device[name], pinned + places[name], sizes[name], stream)
            prepared.run(device, stream)
            outputs = [name for name, buffer in buffers.items() if buffer.role == "output" and sizes[name]]
            for name in outputs:
                hip.copy_to_host(pinned + places[name], device[name], sizes[name], stream)
        finally:  # also on the way out of an error: the pinned memory must not be in use any more
            hip.stream_synchronize(stream)
        for name in outputs:
            np.copyto(arrays[name], _view(pinned + places[name], buffers[name], sizes[name], arrays[name].dtype))


def _view(address: int, buffer: Buffer, size: int, dtype: np.dtype[np.generic]) -> Array:
    memory = (ctypes.c_ubyte * size).from_address(address)
    strides = tuple(step * dtype.itemsize for step in buffer.strides)
    return np.ndarray(buffer.shape, dtype, memoryview(memory), strides=strides)
