"""Device tensors as inputs and outputs: torch's (ROCm build) and anything with DLPack, without host copies.

Only a tensor's address, shape and strides are read; its memory is used in place. Outputs come from the input's
library: torch allocates them for torch, others get a `DeviceArray`, or the result of their `from_dlpack`.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from rocattn.backend import Operands, Sequences
from rocattn.config import FP8_DTYPES
from rocattn.errors import ConfigError
from rocattn.gpu.memory import DeviceBlock
from rocattn.gpu.plan import ELEMENT_BYTES, contiguous
from rocattn.gpu.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocattn.backend import Array

# DLPack: structures and codes of dlpack.h, version 0.8 (which every producer uses unless asked for a newer one).
_ROCM = 10
_DEVICES = {1: "host memory", 2: "a CUDA device", 3: "pinned CUDA host memory", 11: "pinned ROCm host memory",
           13: "CUDA managed memory"}  # fmt: skip
_CAPSULE = b"dltensor"
_INT, _FLOAT, _BFLOAT, _UINT, _BOOL, _E4M3FN, _E4M3FNUZ = 0, 2, 4, 1, 6, 10, 11  # the last two are of version 1.1
_DTYPES = {
    (_FLOAT, 16): "float16", (_FLOAT, 32): "float32", (_FLOAT, 64): "float64", (_BFLOAT, 16): "bfloat16",
    (_BOOL, 8): "bool", (_INT, 32): "int32", (_E4M3FN, 8): "float8_e4m3fn", (_E4M3FNUZ, 8): "float8_e4m3fnuz",
}  # fmt: skip
_WHERE = ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table")
_CODES = {name: code for code, name in _DTYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
# A capsule being destroyed must not become a Python object again, so the destructor takes its address.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))

_exported: dict[int, tuple[Any, ...]] = {}


class DeviceTensor(NamedTuple):
    """A view of foreign device memory.

    Attributes:
        address: Address of its first element.
        shape: Its extents.
        strides: Strides in elements.
        dtype: numpy's name.
        device: HIP's index of the device.
        source: The caller's tensor.
        owner: The object that keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    source: Any
    owner: Any

    def shadow(self) -> Array:
        """Return a numpy array with this shape, dtype and strides but no memory: only for its shape, never read."""
        dtype = numpy_dtype(self.dtype)
        strides = tuple(step * dtype.itemsize for step in self.strides)
        return np.lib.stride_tricks.as_strided(np.empty(1, dtype), self.shape, strides, writeable=False)


class DeviceArray:
    """Own device memory as an array: attention's output for DLPack inputs.

    Attributes:
        address: Address of its first element.
        shape: Its extents; contiguous.
        dtype: numpy's name.
        device: HIP's index of the device.
        stream: The stream that writes it.
    """

    def __init__(self, runtime: Runtime, shape: tuple[int, ...], dtype: str, device: int, stream: int) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._runtime, self.stream = runtime, stream
        count = math.prod(shape) * ELEMENT_BYTES[dtype]
        self._block: DeviceBlock | None = runtime.pool.take(count, stream)
        self.address = self._block.address

    def ready_on(self, stream: int) -> int:
        """Return the address, after making the content available to work on a stream."""
        if stream != self.stream:
            self._runtime.hip.stream_synchronize(self.stream)
        return self.address

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None and not sys.is_finalizing():
            self._block = None
            self._runtime.pool.give(block)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kDLROCM, device index)."""
        return _ROCM, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule with its content ready on every stream, after waiting for ours."""
        del stream
        self._runtime.hip.stream_synchronize(self.stream)
        return _export_capsule(self, self.address, self.shape, contiguous(self.shape), self.dtype, self.device)


def is_device_tensor(value: Any) -> bool:
    """Return whether a value is a tensor that the gpu backend may accept instead of a numpy array."""
    return not isinstance(value, np.ndarray | np.generic) and (is_torch(value) or hasattr(value, "__dlpack__"))


def wrap(name: str, value: Any) -> DeviceTensor:
    """Return a view of a caller's device tensor.

    Args:
        name: Its name in errors.
        value: A torch tensor of a ROCm build, or an object with ``__dlpack__`` on a ROCm device.

    Raises:
        ConfigError: When it is not in a ROCm device's memory; the message states where it is and the remedy.
    """
    return _from_torch(name, value) if is_torch(value) else from_dlpack(name, value)


def is_torch(value: Any) -> bool:
    """Return whether a value is a torch tensor."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def _from_torch(name: str, value: Any) -> DeviceTensor:
    torch = sys.modules["torch"]
    if value.device.type != "cuda":  # torch's name for AMD devices as well
        raise ConfigError(f"{name} is a torch tensor on {value.device.type}: {_remedy(name, value)}")
    if torch.version.hip is None and not _on_nvidia():
        raise ConfigError(f"{name} is on a CUDA device: the gpu backend runs on AMD GPUs, with a ROCm build of torch")
    if value.requires_grad and torch.is_grad_enabled():
        raise ConfigError(
            f"{name} requires a gradient, and no graph is recorded here: call torch.ops.rocattn.attention of "
            "rocattn.torch, or this under torch.no_grad()"
        )
    _check_one_runtime(str(torch.__file__))
    dtype = str(value.dtype).removeprefix("torch.")
    index = int(value.device.index or 0)
    return DeviceTensor(int(value.data_ptr()), tuple(value.shape), tuple(value.stride()), dtype, index, value, value)


@functools.cache
def stream_reader() -> Callable[[int], int]:
    """Return a function from a device index to torch's current stream; 0 is the default stream."""
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


@functools.cache
def _on_nvidia() -> bool:
    from rocattn.gpu.driver import nvidia_at_hand

    return nvidia_at_hand()


def _remedy(name: str, value: Any) -> str:
    """Return the advice for a torch tensor outside a GPU, in terms that torch accepts."""
    if value.device.type != "cpu":
        return "move it to an AMD GPU"
    array = f"{name}.detach()" if value.requires_grad else name
    as_numpy = ".view(torch.int16).numpy().view(ml_dtypes.bfloat16)" if "bfloat16" in str(value.dtype) else ".numpy()"
    return f"pass {array}{as_numpy}, call rocattn.torch, or move it to the GPU"


@functools.cache  # reading the memory maps of a process with torch takes a millisecond
def _check_one_runtime(torch_file: str) -> None:
    """Reject two HIP runtimes in one process, which share no memory; torch's wheels contain their own."""
    from rocattn.gpu.driver import open_hip

    open_hip()
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    runtimes = sorted({line.split()[-1] for line in maps.splitlines() if "/libamdhip64" in line})
    if len({Path(path).resolve() for path in runtimes}) > 1:
        raise ConfigError(
            f"two HIP runtimes are loaded ({' and '.join(runtimes)}), which share no memory: start Python with "
            f"ROCM_PATH={Path(torch_file).parent}, whose lib folder holds torch's"
        )


def from_dlpack(name: str, value: Any) -> DeviceTensor:
    """Return a view of an object with ``__dlpack__``, like `wrap`."""
    if not hasattr(value, "__dlpack_device__"):
        raise ConfigError(
            f"{name} is a {_kind(value)}: device tensors need the gpu backend, which takes torch tensors and whatever "
            "has __dlpack__ and __dlpack_device__; pass numpy arrays otherwise"
        )
    device, index = value.__dlpack_device__()
    if device != _ROCM:
        where = _DEVICES.get(device, f"DLPack device type {device}")
        remedy = "pass it as a numpy array" if device == 1 else "device tensors must be on a ROCm device"
        raise ConfigError(f"{name} is a {_kind(value)} in {where}: {remedy}")
    capsule = value.__dlpack__(stream=0)
    address, shape, strides, dtype = _read_capsule(name, capsule)
    return DeviceTensor(address, shape, strides, dtype, int(index), value, capsule)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, including those of ml_dtypes.

    Raises:
        ConfigError: When neither numpy nor ml_dtypes has it.
    """
    if name == "bfloat16" or name in FP8_DTYPES:
        import ml_dtypes

        return cast("np.dtype[Any]", np.dtype(getattr(ml_dtypes, name)))
    try:
        return np.dtype(name)
    except TypeError:
        raise ConfigError(f"dtype {name} has no counterpart in numpy: use float16, bfloat16 or float32") from None


def views_of(operands: Operands, sequences: Sequences | None = None) -> dict[str, Array]:
    """Return the given arrays by buffer name."""
    named = operands._asdict()
    if sequences is not None:
        named |= {name: getattr(sequences, name) for name in _WHERE}
    return {name: array for name, array in named.items() if array is not None}


def _read_capsule(name: str, capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    """Return address, shape, strides in elements and dtype of an exported tensor.

    The capsule is not marked as used: it keeps the memory alive, and its destructor ends the export.

    Raises:
        ConfigError: When it is not a DLPack capsule, or attention does not support its dtype.
    """
    if not _is_valid(capsule, _CAPSULE):
        raise ConfigError(f"{name}.__dlpack__() gave {type(capsule).__name__}, not an unused DLPack capsule")
    tensor = _Tensor.from_address(_pointer(capsule, _CAPSULE))  # a `_Managed` begins with it
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ConfigError(f"{name} has DLPack dtype (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes): "
                          f"use one of {', '.join(_CODES)}")  # fmt: skip
    shape = tuple(tensor.shape[: tensor.ndim])
    # Null strides mean a contiguous tensor.
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous(shape)
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype


def _export_capsule(
    owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int
) -> Any:
    """Return a DLPack capsule of ROCm memory; ``owner`` lives until the consumer or the unused capsule is released."""
    extents, steps = ((ctypes.c_int64 * len(shape))(*values) for values in (shape, strides))
    code, bits = _CODES[dtype]
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = address, _ROCM, device, len(shape)
    tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset = code, bits, 1, 0
    tensor.shape, tensor.strides = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in (extents, steps))
    managed.deleter = _forget
    place = ctypes.addressof(managed)
    _exported[place] = (managed, extents, steps, owner)
    return _new(place, _CAPSULE, _destroy)


def _forget_export(place: int) -> None:
    _exported.pop(place, None)


def _end_unused(capsule: int) -> None:
    if _dying_is_valid(capsule, _CAPSULE):  # a consumer renames it to "used_dltensor" and calls the deleter
        _forget_export(_dying_pointer(capsule, _CAPSULE))


_forget: Callable[[int], None] = _Deleter(_forget_export)
_destroy: Callable[[int], None] = _Destructor(_end_unused)
