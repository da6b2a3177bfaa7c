"""Launches as a plan lists them, executed on the stand-in GPU with all of its checks."""

import ctypes

import numpy as np

from rocattn.dropout import dropout_key
from rocattn.gpu.build import argument_problem
from rocattn.gpu.launch import Buffer
from rocattn.layouts import heads_view, stored_shape
from rocattn.sources import kernel_root
from rocattn.toolchain import compile_hip
from rocattn.toolchain.code_object import kernels_of
from rocattn_profiling.workloads.inputs import numpy_dtype

CTYPES = {
    "u32": ctypes.c_uint32, "i32": ctypes.c_int32, "u64": ctypes.c_uint64, "i64": ctypes.c_int64, "f32": ctypes.c_float,
}  # fmt: skip
PAD = 5  # elements of NaN after every row of a caller's array


class Arrays:
    """The arrays of one problem on the stand-in, each row followed by NaN, outputs full of NaN."""

    def __init__(self, device, config):
        self.device, self.config = device, config
        self.buffers, self.pointers, self.whole = {}, {}, {}

    def add(self, name, array, *, role="input"):
        """Upload an array as the caller holds it; q, k, v and the like become [B, H, S, D] views."""
        heads = {"k": "num_kv_heads", "v": "num_kv_heads"}.get(name[-1] if name[0] == "d" else name, "num_heads")
        padded = np.full((*array.shape[:-1], array.shape[-1] + PAD), np.nan, array.dtype)
        part = padded[..., : array.shape[-1]]
        part[...] = array
        view = heads_view(part, self.config.layout, getattr(self.config, heads), name)
        self.add_view(name, padded, view, role)

    def add_plain(self, name, array, *, role="input"):
        """Upload a contiguous array."""
        self.add_view(name, np.ascontiguousarray(array), array, role)

    def add_view(self, name, memory, view, role="input"):
        """Upload an array's memory; the kernels see the view of it, which begins where it does."""
        strides = tuple(step // view.itemsize for step in view.strides)
        self.buffers[name] = Buffer(view.shape, strides, view.dtype.name, role)
        self.pointers[name] = self.device.upload(memory) if memory.size else ctypes.c_void_p(0)
        self.whole[name] = memory

    def result(self, name):
        """Download an output as the caller holds it; assert that nothing beyond its rows was written."""
        memory = self.whole[name]
        if memory.size:
            memory = self.device.download(self.pointers[name], memory.shape, memory.dtype)
        if name == "lse":
            return memory
        assert np.isnan(memory[..., memory.shape[-1] - PAD :].astype(np.float32)).all(), f"{name}: written beyond a row"
        return memory[..., : memory.shape[-1] - PAD]

    def run(self, launches):
        """Run launches in order; assert that the stand-in has no objection to any."""
        workspaces = {}
        for launch in launches:
            arguments = [self._argument(arg, workspaces) for arg in launch.args]
            if min(launch.grid) == 0:
                continue
            source = kernel_root() / launch.source
            status, report = self.device.run(
                source, launch.symbol, launch.grid, launch.block, *arguments, **launch.defines
            )
            assert (status, report) == (0, ""), f"{launch.kernel} of {self.config.label}: {report or status}"
        for pointer in workspaces.values():
            self.device.free(pointer)

    def free(self):
        """Give the device memory back."""
        for pointer in self.pointers.values():
            if pointer.value:
                self.device.free(pointer)

    def _argument(self, arg, workspaces):
        if arg.kind == "buffer":
            return ctypes.c_void_p((self.pointers[arg.name].value or 0) + arg.offset_bytes)
        if arg.kind == "workspace":
            if arg.name not in workspaces:
                workspaces[arg.name] = self.device.empty(max(arg.bytes, 1))
            return workspaces[arg.name]
        return CTYPES[arg.type](arg.value)


def forward_arrays(device, config, inputs):
    """Upload a forward problem; out and lse are full of NaN."""
    arrays = Arrays(device, config)
    for name in ("q", "k", "v"):
        arrays.add(name, getattr(inputs, name))
    arrays.add("out", np.full(stored_shape(config, "out"), np.nan, numpy_dtype(config.dtype)), role="output")
    _add_options(arrays, config, inputs)
    if config.return_lse:
        rows = (config.batch, config.num_heads, config.seq_q)
        arrays.add_plain("lse", np.full(rows, np.nan, np.float32), role="output")
    return arrays


def backward_arrays(device, config, inputs, out, lse):
    """Upload a backward problem; the gradients are full of NaN."""
    arrays = Arrays(device, config)
    for name, array in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v), ("dout", inputs.dout), ("out", out)):
        arrays.add(name, array)
    arrays.add_plain("lse", lse)
    for name in ("q", "k", "v"):
        arrays.add(f"d{name}", np.full(stored_shape(config, name), np.nan, numpy_dtype(config.dtype)), role="output")
    _add_options(arrays, config, inputs)
    return arrays


def _add_options(arrays, config, inputs):
    if inputs.mask is not None:
        transposed = not inputs.mask.flags.c_contiguous
        memory = np.ascontiguousarray(inputs.mask.swapaxes(2, 3) if transposed else inputs.mask)
        arrays.add_view("mask", memory, memory.swapaxes(2, 3) if transposed else memory)
    if inputs.alibi_slopes is not None:
        slopes = np.broadcast_to(inputs.alibi_slopes, (config.batch, config.num_heads))
        arrays.add_plain("alibi_slopes", np.ascontiguousarray(slopes))
    for name in ("sinks", "k_scale", "v_scale"):
        if (array := getattr(inputs, name)) is not None:
            arrays.add_plain(name, array)
    if config.dropout_p:
        arrays.add_plain("dropout_key", dropout_key(inputs.dropout_seed, 0).view(np.int32))


def check_arguments(launches, arch):
    """Assert that the code objects' own metadata agrees with every launch: arguments, block, wave size."""
    for launch in launches:
        (kernel,) = kernels_of(compile_hip(launch.source, arch, defines=launch.defines).data)
        assert argument_problem(kernel, launch.args) == ""
