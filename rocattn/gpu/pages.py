"""The pages of a KV cache in device memory: tokens are written once, and attention reads them in place."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from rocattn.backend import Operands, Sequences
from rocattn.backends.gpu import GpuBackend
from rocattn.config import AttentionConfig
from rocattn.errors import ConfigError
from rocattn.gpu.tensors import DeviceArray

if TYPE_CHECKING:
    from rocattn.backend import Array


class DevicePages:
    """K and V of a pool of pages on one device.

    Attributes:
        keys: [num_pages, page_size, Hkv, D], a DLPack tensor.
        values: [num_pages, page_size, Hkv, Dv].

    Args:
        device: HIP's index of the device.
        keys: Shape of the keys.
        values: Shape of the values.
        dtype: Dtype of both.

    Raises:
        GpuError: When the device does not exist or has too little memory.
        NoBackendError: When the gpu backend cannot run here; the message gives the reason.
    """

    def __init__(self, device: int, keys: tuple[int, ...], values: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        from rocattn.backends import BACKENDS
        from rocattn.gpu.driver import open_hip

        self._backend = cast("GpuBackend", BACKENDS.get("gpu"))
        self._device = device
        with open_hip().keep_device():
            self._runtime = self._backend.runtime(device)
            stream = self._runtime.stream
            self.keys, self.values = (
                DeviceArray(self._runtime, shape, dtype.name, device, stream) for shape in (keys, values)
            )
        self._item = dtype.itemsize

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Reject copying and pickling: device memory belongs to one process.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("a cache on a device cannot be copied or pickled: make another, or keep it in host memory")

    def write(self, places: Array, k: Array, v: Array) -> None:
        """Write tokens and wait until they have arrived.

        Args:
            places: Each token's row among the rows of all pages, [N].
            k: [N, Hkv, D].
            v: [N, Hkv, Dv].
        """
        from rocattn.gpu.driver import open_hip

        if not len(places):
            return
        # Adjacent rows are copied together.
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = list(zip([0, *ends.tolist()], [*ends.tolist(), len(places)], strict=True))
        runtime = self._runtime
        with open_hip().keep_device():
            runtime.enter()
            for tokens, array in ((k, self.keys), (v, self.values)):
                row = tokens[0].size * self._item
                if not row:
                    continue
                with runtime.staging.taken(len(places) * row) as pinned:
                    memory = (ctypes.c_ubyte * (len(places) * row)).from_address(pinned)
                    np.copyto(np.frombuffer(memory, tokens.dtype).reshape(tokens.shape), tokens)
                    try:
                        for first, end in runs:
                            at, count = array.address + int(places[first]) * row, (end - first) * row
                            runtime.hip.copy_to_device(at, pinned + first * row, count, runtime.stream)
                    finally:  # the pinned memory must not be in use
                        runtime.hip.stream_synchronize(runtime.stream)

    def copy(self, source: int, to: int) -> None:
        """Copy a page's keys and values over another page's, before all later work on the pages."""
        from rocattn.gpu.driver import open_hip

        runtime = self._runtime
        with open_hip().keep_device():
            runtime.enter()
            for array in (self.keys, self.values):
                count = math.prod(array.shape[1:]) * self._item
                if count:
                    place = array.address
                    runtime.hip.copy_on_device(place + to * count, place + source * count, count, runtime.stream)

    def attend(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences, out: Array, lse: Array | None
    ) -> None:
        """Compute `Backend.forward_varlen` over the pages; the operands' k and v only provide shapes."""
        resident = {"k": self.keys.address, "v": self.values.address}
        self._backend.forward_varlen(config, operands, sequences, out, lse, resident=resident, device=self._device)
