"""The "cpu-flash" backend: native tiled attention (kernels/cpu), from the wheel or compiled on first use.

This module turns views into pointers and strides and calls the library without the GIL. Arrays are used in place
unless their last axis is strided or their data is misaligned; those are copied first.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.backend import YES, Backend, Operands, Sequences, Support, length_problem
from rocattn.config import AttentionConfig, VarlenShape
from rocattn.dropout import factor, threshold
from rocattn.errors import RocattnError, SettingError, ToolchainError
from rocattn.layouts import Output, empty_array
from rocattn.threads import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocattn.backend import Array

_LOG = logging.getLogger(__name__)

_CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "bool": 3, "none": -1}
# `Args` of kernels/cpu/abi.h begins with its size and the addresses of q, k, v, o, lse, mask, slopes, sinks, dout,
# dq, dk, dv, dlse and dropout_key, packed on every call. Setting the fields by name takes 0.3 us longer.
_NO_GRADIENTS = (0,) * 9  # for a call that also lacks mask, slopes and sinks
_POINTERS = struct.Struct("=q14Q")


class _Shape(ctypes.Structure):
    """The rest of `Args`, with the names used there; strides are in elements."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv")),
        *((name, ctypes.c_int64 * 3) for name in ("qs", "ks", "vs", "os", "dos", "dqs", "dks", "dvs")),
        ("ms", ctypes.c_int64 * 4), ("ls", ctypes.c_int64), ("table", ctypes.c_int64), ("page_size", ctypes.c_int64),
        ("left", ctypes.c_int64), ("right", ctypes.c_int64),
        ("dtype", ctypes.c_int32), ("mask_dtype", ctypes.c_int32), ("threads", ctypes.c_int32),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float),
        ("drop_below", ctypes.c_uint32), ("keep_factor", ctypes.c_float),
    )  # fmt: skip


# `Sequences` of abi.h: its size, four addresses, the width of the block table.
_SEQUENCES = struct.Struct("=q4Qq")
_ARGS_SIZE = _POINTERS.size + ctypes.sizeof(_Shape)
_BAD_ARGUMENTS, _OUT_OF_MEMORY = 1, 2
_WORTH_WAKING = 1 << 18  # bytes of K from which decode uses two or more threads


def load_library() -> ctypes.CDLL:
    """Open the CPU kernel library for this machine: the wheel's, or one compiled on first use.

    Raises:
        ToolchainError: When there is neither a library nor a compiler, or it cannot be opened.
    """
    from rocattn.toolchain.cpu_library import GIVEN, choose_cpu_library, open_library, open_path, read_library

    start = time.perf_counter()
    chosen = choose_cpu_library()
    if chosen.maker == GIVEN and chosen.path is not None:
        library = open_path(chosen.path)
        if not hasattr(library, "rocattn_cpu_isa"):
            raise ToolchainError("it holds no CPU kernels of rocattn")
    else:
        library = open_library(read_library(chosen))
    for name in ("forward", "backward"):
        function = getattr(library, f"rocattn_cpu_{name}")
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int32
        function = getattr(library, f"rocattn_cpu_{name}_varlen")
        function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_int32
    library.rocattn_cpu_workspace_varlen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32]
    library.rocattn_cpu_workspace_varlen.restype = ctypes.c_int64
    library.rocattn_cpu_rouse.argtypes, library.rocattn_cpu_rouse.restype = [ctypes.c_int32], None
    library.rocattn_cpu_borrow.argtypes, library.rocattn_cpu_borrow.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    library.rocattn_cpu_workspace.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    library.rocattn_cpu_workspace.restype = ctypes.c_int64
    library.rocattn_cpu_most_allocated.argtypes = [ctypes.c_int32]
    library.rocattn_cpu_most_allocated.restype = ctypes.c_int64
    library.rocattn_cpu_probe_flops.argtypes = [ctypes.c_int32, ctypes.c_int64, ctypes.c_int32]
    library.rocattn_cpu_probe_flops.restype = ctypes.c_double
    library.rocattn_cpu_probe_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    library.rocattn_cpu_probe_read.restype = ctypes.c_float
    library.rocattn_cpu_probe_flush.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.rocattn_cpu_probe_flush.restype = ctypes.c_int32
    _LOG.debug("CPU kernels ready in %.0f ms", (time.perf_counter() - start) * 1e3)
    return library


@functools.cache
def _library() -> ctypes.CDLL | Support:
    """Return the library, or why there is none; computed once per process unless a variable is invalid.

    Raises:
        SettingError: When ROCATTN_COMPILER, ROCATTN_CPU_ISA or ROCATTN_CPU_LIBRARY is invalid.
    """
    try:
        return load_library()
    except ToolchainError as error:
        if chosen := os.environ.get("ROCATTN_CPU_LIBRARY"):
            text = f"ROCATTN_CPU_LIBRARY is {chosen!r}: {error}; build the CPU kernels for it, or unset it"
            raise SettingError(text) from error
        return Support(ok=False, reason=str(error), broken=True)


def _borrow_threads(library: ctypes.CDLL) -> None:
    """Run the kernels on PyTorch's threads, which otherwise spin for milliseconds after PyTorch's operators."""
    process = ctypes.CDLL(None)  # PyTorch loads its OpenMP runtime globally
    try:
        functions = process.GOMP_parallel, process.omp_get_max_threads
    except AttributeError:
        return  # built without one
    library.rocattn_cpu_borrow(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))


def _in_place(array: Array) -> bool:
    return array.flags.aligned and _steps_fit(array.strides, array.shape[-1], array.itemsize)


def _steps_fit(strides: tuple[int, ...], width: int, item: int) -> bool:
    """Return whether the kernels can read an array with these strides in bytes, this width and item size."""
    return (strides[3] == item or width <= 1) and not (strides[0] % item or strides[1] % item or strides[2] % item)


def _usable(array: Array) -> Array:
    """Return the array itself if the kernels can read it, else a contiguous copy."""
    return array if _in_place(array) else np.array(array, order="C", copy=True)


def _interface_address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _object_address(array: Array) -> int:
    # `PyArrayObject_fields.data` of numpy's C API, the first field after Python's own, takes 0.2 us;
    # `array.ctypes.data` and `__array_interface__` take 0.7 and 0.9 us, five times per call.
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value


def _choose_address() -> Callable[[Array], int]:
    if sys.implementation.name == "cpython":
        probe = np.empty(4, np.float32)[1:]
        if _object_address(probe) == _interface_address(probe):
            return _object_address
    return _interface_address


address = _choose_address()


@functools.lru_cache(maxsize=256)
def _shape(
    config: AttentionConfig, strides: tuple[tuple[int, ...], ...], mask: tuple[int, int, int, int], mask_code: int,
    threads: int,
) -> bytes:  # fmt: skip
    """Return the bytes of a `_Shape`; cached, because a loop of calls repeats them.

    Args:
        config: The problem.
        strides: Strides in bytes [B, heads, S, width] of q, k, v, out and, for backward, dout, dq, dk, dv.
        mask: Strides in elements; all 0 without a mask.
        mask_code: The mask's dtype code.
        threads: Maximum number of threads.
    """
    left, right = config.band or (-1, -1)
    varlen = config.varlen
    rows_q, rows_k = (config.seq_q, config.seq_k) if varlen is None else (varlen.total_q, varlen.total_k)
    shape = _Shape(
        B=config.batch, H=config.num_heads, Hkv=config.num_kv_heads, Sq=rows_q, Sk=rows_k, D=config.head_dim,
        Dv=config.head_dim_v, ms=mask, ls=rows_q, page_size=0 if varlen is None else varlen.page_size, left=left,
        right=right, dtype=_CODES[config.dtype], mask_dtype=mask_code, threads=threads, scale=config.softmax_scale,
        softcap=config.softcap or 0.0, drop_below=threshold(config.dropout_p), keep_factor=factor(config.dropout_p),
    )  # fmt: skip
    for name, array in zip(("qs", "ks", "vs", "os", "dos", "dqs", "dks", "dvs"), strides, strict=False):
        setattr(shape, name, tuple(step // config.itemsize for step in array[:3]))
    return bytes(shape)


def _pack(
    config: AttentionConfig, operands: Operands, out: Array, lse: Array | None, gradients: tuple[Array, ...] = ()
) -> tuple[bytes, tuple[Array | None, ...]]:
    """Return the C struct, and the arrays that must stay alive while it is used."""
    q, k, v = _usable(operands.q), _usable(operands.k), _usable(operands.v)
    mask, mask_strides, mask_code = operands.mask, (0, 0, 0, 0), -1
    if mask is not None:
        item = mask.itemsize
        if not mask.flags.aligned or any(stride % item for stride in mask.strides):
            mask = np.array(mask, order="C", copy=True)
        b, h, i, j = (0 if n == 1 else step // item for n, step in zip(mask.shape, mask.strides, strict=True))
        mask_strides = (b, h, i, j)
        mask_code = _CODES[mask.dtype.name]
    slopes = None if operands.alibi_slopes is None else np.ascontiguousarray(operands.alibi_slopes, np.float32)
    sinks = None if operands.sinks is None else np.ascontiguousarray(operands.sinks, np.float32)
    dlse = None if operands.dlse is None else np.ascontiguousarray(operands.dlse, np.float32)  # same layout as the LSE
    pointers = _POINTERS.pack(
        _ARGS_SIZE, address(q), address(k), address(v), address(out),
        0 if lse is None else address(lse), 0 if mask is None else address(mask),
        0 if slopes is None else address(slopes), 0 if sinks is None else address(sinks),
        *(map(address, gradients) if gradients else (0, 0, 0, 0)), 0 if dlse is None else address(dlse),
        0 if operands.dropout_key is None else address(operands.dropout_key),
    )  # fmt: skip
    strides: tuple[tuple[int, ...], ...] = (q.strides, k.strides, v.strides, out.strides)
    if gradients:
        strides += tuple(array.strides for array in gradients)
    shape = _shape(config, strides, mask_strides, mask_code, thread_count())
    return pointers + shape, (q, k, v, mask, slopes, sinks, dlse)


def _pack_sequences(sequences: Sequences) -> bytes:
    """Return the C struct; the arrays must stay alive while it is used."""
    table = sequences.block_table
    given = (sequences.cu_seqlens_q, sequences.cu_seqlens_k, sequences.seqlens_k, table)
    addresses = (0 if array is None else address(array) for array in given)
    return _SEQUENCES.pack(_SEQUENCES.size, *addresses, 0 if table is None else table.shape[1])


def _check(status: int, config: AttentionConfig) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"no memory for the workspace of {config.label}")
    if status:
        raise RocattnError(f"the CPU kernels refused {config.label} (status {status}): this is a bug in rocattn")


class PlainCall:
    """A cached forward call with only q, k and v: allocates outputs and packs addresses.

    Args:
        config: The problem.
        packed: Its `_Shape`.
        outputs: "out" and, if requested, "lse".
        dtype: Dtype of "out".
    """

    def __init__(
        self, config: AttentionConfig, packed: bytes, outputs: dict[str, Output], dtype: np.dtype[Any]
    ) -> None:
        self._config, self._packed, self.outputs, self._dtype = config, packed, outputs, dtype

    def with_output(self, out: Output) -> PlainCall:
        """Return the same call with another memory layout of the output."""
        return PlainCall(self._config, self._packed, {**self.outputs, "out": out}, self._dtype)

    def without_lse(self) -> PlainCall:
        """Return the same call for a caller that discards the LSE."""
        return PlainCall(self._config, self._packed, {"out": self.outputs["out"]}, self._dtype)

    def run(self, addresses: list[int], source: Any) -> tuple[Any, ...] | None:
        """Compute and return the outputs, as arrays or torch tensors like ``source``; None for misaligned arrays."""
        q, k, v = addresses
        if (q | k | v) % self._dtype.itemsize:
            return None
        logs = self.outputs.get("lse")
        if isinstance(source, np.ndarray):
            out = empty_array(self.outputs["out"].shape, self._dtype)
            lse = None if logs is None else np.empty(logs.shape, np.float32)
            lse_at, out_at = 0 if lse is None else address(lse), address(out)
        else:
            shape, strides, _ = self.outputs["out"]
            out = source.new_empty_strided(shape, strides)
            float32 = sys.modules["torch"].float32
            lse = None if logs is None else source.new_empty_strided(logs.shape, logs.strides, dtype=float32)
            lse_at, out_at = 0 if lse is None else lse.data_ptr(), out.data_ptr()
        args = _POINTERS.pack(_ARGS_SIZE, q, k, v, out_at, lse_at, *_NO_GRADIENTS) + self._packed
        _check(CpuFlashBackend.loaded().rocattn_cpu_forward(args), self._config)
        return (out,) if lse is None else (out, lse)


class CpuFlashBackend(Backend):
    """Native tiled attention on this CPU."""

    name = "cpu-flash"
    priority = 10
    cost = "on the CPU"
    takes_dropout = True
    takes_lse_gradient = True
    _opened: ctypes.CDLL | None = None  # the library, after its first call
    _beside_torch = False  # whether a call came after PyTorch was completely imported

    def available(self) -> Support:
        """Return whether the kernels are or can be compiled here; the first call may take several seconds.

        Raises:
            SettingError: When a variable of these kernels is invalid.
        """
        library = _library()
        return library if isinstance(library, Support) else YES

    def supports(self, config: AttentionConfig) -> Support:
        """Support everything except float64 and sequences of 2^30 or more."""
        if config.dtype == "float64":
            return Support(ok=False, reason="float64 is not computed in tiles: its sums are float32; use cpu")
        reason = length_problem(config)
        return Support(ok=False, reason=reason) if reason else YES

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the bytes of all threads' tiles, partial results of split keys, and (backward) float32 dq sums."""
        if config.varlen is not None:
            return self._varlen_workspace(config)
        heads, item = config.num_kv_heads, config.itemsize
        # Assumes contiguous arrays; if rows are a power of two apart, the kernels copy tiles.
        rows = [
            (0, config.seq_k * dim * item, dim * item)
            if config.layout == "BHSD"
            else (0, dim * item, heads * dim * item)
            for dim in (config.head_dim, config.head_dim_v)
        ]
        mask_code = {"none": -1, "bool": 3, "additive": _CODES[config.dtype]}[config.mask]
        pointers = _POINTERS.pack(_ARGS_SIZE, *(0,) * 6, int(config.alibi), *(0,) * 6, int(config.dropout_p > 0))
        packed = pointers + _shape(config, ((0, 0, 0), *rows), (0, 0, 0, 0), mask_code, thread_count())
        return int(self.loaded().rocattn_cpu_workspace(packed, int(config.direction == "backward")))

    def expect(self, kv_bytes: int) -> None:
        """Wake sleeping threads, which takes longer than the call's checks."""
        if self._opened is not None and kv_bytes >= _WORTH_WAKING and (threads := thread_count()) > 1:
            self._opened.rocattn_cpu_rouse(threads)

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""
        library = self._opened = self.loaded()
        target = out if _in_place(out) else np.empty(out.shape, out.dtype)
        logs = lse if lse is None or lse.flags.c_contiguous else np.empty(lse.shape, np.float32)
        packed, alive = _pack(config, operands, target, logs)
        _check(library.rocattn_cpu_forward(packed), config)
        del alive
        if target is not out:
            out[...] = target
        if lse is not None and logs is not lse:
            lse[...] = logs

    @staticmethod
    def plain_call(
        config: AttentionConfig, operands: Operands, out: Array, made: dict[str, Array | None]
    ) -> PlainCall | None:
        """Return an object that repeats a `forward` call; None if it needs more than q, k and v in place.

        Args:
            config: As given to `forward`.
            operands: As given to `forward`.
            out: As given to `forward`.
            made: The outputs as the caller stores them, by name.
        """
        used = (operands.q, operands.k, operands.v, out)
        if any(x is not None for x in operands[3:]) or not all(map(_in_place, used)) or not out.size:
            return None
        packed = _shape(config, tuple(x.strides for x in used), (0, 0, 0, 0), -1, thread_count())
        outputs = {name: Output.of(array) for name, array in made.items() if array is not None}
        return PlainCall(config, packed, outputs, out.dtype)

    def forward_varlen(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences, out: Array, lse: Array | None
    ) -> None:
        """Write attention into ``out`` ([1, H, total_q, Dv] view) and ``lse`` [1, H, total_q]: one job for all."""
        library = self._opened = self.loaded()
        target = out if _in_place(out) else np.empty(out.shape, out.dtype)
        logs = lse if lse is None or lse.flags.c_contiguous else np.empty(lse.shape, np.float32)
        packed, alive = _pack(config, operands, target, logs)
        _check(library.rocattn_cpu_forward_varlen(packed, _pack_sequences(sequences)), config)
        del alive
        if target is not out:
            out[...] = target
        if lse is not None and logs is not lse:
            lse[...] = logs

    def _varlen_workspace(self, config: AttentionConfig) -> int:
        lengths = np.array([(single.seq_q, single.seq_k) for single in config.sequences], np.int64).reshape(-1, 2)
        starts = np.zeros((2, len(lengths) + 1), np.int32)
        starts[:, 1:] = lengths.cumsum(axis=0).T
        varlen = VarlenShape(total_q=int(starts[0, -1]), total_k=int(starts[1, -1]))
        heads, dim, item = config.num_kv_heads, config.head_dim, config.itemsize
        packed = config.replace(batch=len(lengths), varlen=varlen)
        pointers = _POINTERS.pack(_ARGS_SIZE, *(0,) * 6, int(config.alibi), *(0,) * 7)
        k, v = ((0, size, heads * size) for size in (dim * item, config.head_dim_v * item))
        args = pointers + _shape(packed, ((0, 0, 0), k, v), (0, 0, 0, 0), -1, thread_count())
        where = _SEQUENCES.pack(_SEQUENCES.size, address(starts[0]), address(starts[1]), 0, 0, 0)
        return int(self.loaded().rocattn_cpu_workspace_varlen(args, where, int(config.direction == "backward")))

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Write the gradients into ``dq``, ``dk``, ``dv`` ([B, H or Hkv, S, D or Dv] views)."""
        self._differentiate(config, operands, None, dout, out, lse, (dq, dk, dv))

    def backward_varlen(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences,
        dout: Array, out: Array, lse: Array, dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Like `backward`, for packed sequences: large ones one at a time with all threads, then one per thread."""
        self._differentiate(config, operands, sequences, dout, out, lse, (dq, dk, dv))

    def _differentiate(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences | None,
        dout: Array, out: Array, lse: Array, wanted: tuple[Array, ...],
    ) -> None:  # fmt: skip
        library = self.loaded()
        targets = tuple(x if _in_place(x) else np.empty(x.shape, x.dtype) for x in wanted)
        upstream, result, logs = _usable(dout), _usable(out), np.ascontiguousarray(lse, np.float32)
        packed, alive = _pack(config, operands, result, logs, (upstream, *targets))
        if sequences is None:
            status = library.rocattn_cpu_backward(packed)
        else:
            for target in targets[1:]:
                target[...] = 0  # for rows of sequences without queries
            status = library.rocattn_cpu_backward_varlen(packed, _pack_sequences(sequences))
        _check(status, config)
        del alive
        for array, target in zip(wanted, targets, strict=True):
            if target is not array:
                array[...] = target

    @classmethod
    def most_allocated_bytes(cls, *, reset: bool = False) -> int:
        """Return the kernels' peak allocation in bytes in this process since the last reset."""
        return int(cls.loaded().rocattn_cpu_most_allocated(int(reset)))

    @classmethod
    def loaded(cls) -> ctypes.CDLL:
        """Return the library.

        Raises:
            ToolchainError: When there is no library.
        """
        library = _library()
        if isinstance(library, Support):
            raise ToolchainError(library.reason)
        if not cls._beside_torch and (module := sys.modules.get("torch")) and hasattr(module, "get_num_threads"):
            _borrow_threads(library)
            cls._beside_torch = True
        return library
