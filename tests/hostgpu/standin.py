"""The stand-in GPU in this process, by ctypes: one loaded copy of its library for each architecture and setting."""

import ctypes
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rocattn.toolchain.hostgpu import compile_hostgpu, hostgpu_library

KERNELS = Path(__file__).parent / "kernels"
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, LAUNCH_FAILURE = 0, 1, 2, 719
TO_DEVICE, TO_HOST = 1, 2


class StandIn:
    """One device: memory, modules and launches, with the names HIP has for them."""

    def __init__(self, folder: Path, arch: str = "gfx1100", **settings: str):
        copy = folder / f"{arch}-{len(list(folder.iterdir()))}.so"  # a copy has its own variables, and reads them once
        shutil.copyfile(hostgpu_library() / "lib" / "libamdhip64.so", copy)
        self.arch = arch
        self.lib = ctypes.CDLL(str(copy))
        self.lib.rocattn_hostgpu_report.restype = self.lib.rocattn_hostgpu_lds_cycles.restype = ctypes.c_char_p
        with environment(ROCATTN_HOSTGPU_ARCH=arch, **{f"ROCATTN_HOSTGPU_{k.upper()}": v for k, v in settings.items()}):
            self.ready = self.lib.hipInit(0)
        self._modules: dict[tuple, ctypes.c_void_p] = {}

    def report(self) -> str:
        """Return the findings since the last call."""
        text = self.lib.rocattn_hostgpu_report().decode()
        self.lib.rocattn_hostgpu_clear()
        return text

    def lds_cycles(self) -> list[list]:
        """Return [kernel, direction, bytes, instructions, cycles, least, place] since the last call."""
        lines = self.lib.rocattn_hostgpu_lds_cycles().decode().splitlines()
        return [[int(cell) if cell.isdecimal() else cell for cell in line.split("\t")] for line in lines]

    def empty(self, nbytes: int) -> ctypes.c_void_p:
        """Allocate device memory, of undefined content."""
        pointer = ctypes.c_void_p()
        assert self.lib.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == SUCCESS
        return pointer

    def upload(self, array: np.ndarray) -> ctypes.c_void_p:
        """Copy an array to device memory of its own."""
        data = np.ascontiguousarray(array)
        pointer = self.empty(data.nbytes)
        assert self.copy(pointer, data.ctypes.data_as(ctypes.c_void_p), data.nbytes, TO_DEVICE) == SUCCESS
        return pointer

    def download(self, pointer: ctypes.c_void_p, shape, dtype) -> np.ndarray:
        """Copy device memory back."""
        data = np.empty(shape, dtype)
        assert self.copy(data.ctypes.data_as(ctypes.c_void_p), pointer, data.nbytes, TO_HOST) == SUCCESS
        return data

    def copy(self, to, source, nbytes: int, kind: int) -> int:
        """Call hipMemcpy."""
        return self.lib.hipMemcpy(to, source, ctypes.c_size_t(nbytes), kind)

    def free(self, pointer: ctypes.c_void_p) -> None:
        """Give device memory back."""
        assert self.lib.hipFree(pointer) == SUCCESS

    def load(self, code: bytes) -> tuple[int, ctypes.c_void_p]:
        """Call hipModuleLoadData."""
        module = ctypes.c_void_p()
        return self.lib.hipModuleLoadData(ctypes.byref(module), code), module

    def function(self, source: str | Path, symbol: str, **defines) -> ctypes.c_void_p:
        """Compile a kernel file and return one of its kernels."""
        key = (source, *sorted(defines.items()))
        if key not in self._modules:
            status, self._modules[key] = self.load(compile_hostgpu(KERNELS / source, self.arch, defines=defines))
            assert status == SUCCESS, self.report()
        function = ctypes.c_void_p()
        assert self.lib.hipModuleGetFunction(ctypes.byref(function), self._modules[key], symbol.encode()) == SUCCESS
        return function

    def launch(self, function, grid, block, *args, lds: int = 0, stream=None) -> int:
        """Launch with ctypes arguments, in the form of a buffer."""
        fields = [(f"_{i}", type(arg)) for i, arg in enumerate(args)]
        buffer = type("Arguments", (ctypes.Structure,), {"_fields_": fields})(*args)
        size = ctypes.c_size_t(ctypes.sizeof(buffer))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        grid, block = ((*extents, 1, 1)[:3] for extents in (grid, block))
        return self.lib.hipModuleLaunchKernel(function, *grid, *block, lds, stream, None, extra)

    def run(self, source, symbol: str, grid, block, *args, **defines) -> tuple[int, str]:
        """Compile and launch; return the status and the findings."""
        self.report()
        status = self.launch(self.function(source, symbol, **defines), grid, block, *args)
        return status, self.report()


@contextmanager
def environment(**values: str):
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
