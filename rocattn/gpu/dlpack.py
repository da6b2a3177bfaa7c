"""DLPack without a package: reading what a tensor exports, and exporting device memory of our own.

Structures: dlpack.h, DLPack 0.8 (what every producer gives unless asked for a newer version).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from rocattn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ROCM = 10
DEVICES = {1: "host memory", 2: "a CUDA device", 3: "pinned CUDA host memory", 11: "pinned ROCm host memory",
           13: "CUDA managed memory"}  # fmt: skip
_NAME = b"dltensor"
_INT, _FLOAT, _BFLOAT, _UINT, _BOOL = 0, 2, 4, 1, 6
_DTYPES = {
    (_FLOAT, 16): "float16", (_FLOAT, 32): "float32", (_FLOAT, 64): "float64", (_BFLOAT, 16): "bfloat16",
    (_BOOL, 8): "bool",
}  # fmt: skip
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
# A capsule that is being destroyed must not become a Python object again: the destructor takes its address.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))

_exported: dict[int, tuple[Any, ...]] = {}


def read_capsule(name: str, capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    """Return address, shape, strides in elements and dtype of an exported tensor.

    The capsule is not marked as used: whoever holds it holds the memory, and its own destructor ends the export.

    Raises:
        ConfigError: When it is no DLPack capsule, or holds a dtype that attention does not take.
    """
    if not _is_valid(capsule, _NAME):
        raise ConfigError(f"{name}.__dlpack__() gave {type(capsule).__name__}, not an unused DLPack capsule")
    tensor = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ConfigError(f"{name} has DLPack dtype (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes): "
                          f"use one of {', '.join(_CODES)}")  # fmt: skip
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
    else:  # null means contiguous
        from rocattn.gpu.plan import contiguous

        strides = contiguous(shape)
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype


def export_capsule(
    owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int
) -> Any:
    """Return a DLPack capsule of ROCm memory; ``owner`` lives until the consumer, or the unused capsule, is gone."""
    extents, steps = ((ctypes.c_int64 * len(shape))(*values) for values in (shape, strides))
    code, bits = _CODES[dtype]
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = address, ROCM, device, len(shape)
    tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset = code, bits, 1, 0
    tensor.shape, tensor.strides = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in (extents, steps))
    managed.deleter = _forget
    place = ctypes.addressof(managed)
    _exported[place] = (managed, extents, steps, owner)
    return _new(place, _NAME, _destroy)


def _forget_export(place: int) -> None:
    _exported.pop(place, None)


def _end_unused(capsule: int) -> None:
    if _dying_is_valid(capsule, _NAME):  # a consumer renames it to "used_dltensor" and calls the deleter itself
        _forget_export(_dying_pointer(capsule, _NAME))


_forget: Callable[[int], None] = _Deleter(_forget_export)
_destroy: Callable[[int], None] = _Destructor(_end_unused)
