"""Building kernels for GPUs and for this CPU, and reading what a code object says about its kernels."""

import ctypes
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain import choose_compiler

SHIM = Path(__file__).parent / "host_shim"


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    """A cache folder of this session: the user's is never touched, and every run compiles for real."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCATTN_CACHE_DIR", str(tmp_path_factory.mktemp("kernel-cache")))
        try:
            choose_compiler()
        except ToolchainError as error:
            pytest.skip(str(error))
        yield


@pytest.fixture(scope="session")
def read_metadata():
    """Return a function: code object bytes -> its AMDGPU note (LLVM AMDGPUUsage, "Code Object Metadata")."""

    def read(data: bytes) -> dict:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        for index in range(count):
            header = table + index * size
            (kind,) = struct.unpack_from("<I", data, header + 4)
            if kind != 7:  # SHT_NOTE
                continue
            (start,) = struct.unpack_from("<Q", data, header + 24)
            name_size, text_size, note = struct.unpack_from("<III", data, start)
            assert (data[start + 12 : start + 12 + name_size], note) == (b"AMDGPU\0", 32)
            text = start + 12 + (name_size + 3) // 4 * 4
            return msgspec.msgpack.decode(data[text : text + text_size])
        raise AssertionError("the code object has no note")

    return read


@pytest.fixture(scope="session")
def build_for_cpu(tmp_path_factory):
    """Return a function: shim file, defines -> the kernel as a shared library for this CPU, loaded."""
    if find_spec("ziglang") is None:
        pytest.skip("running kernels on the CPU needs ziglang: pip install 'rocattn[toolchain]'")
    folder = tmp_path_factory.mktemp("kernels-on-cpu")
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-nostdlib++", "-fno-exceptions", "-fno-rtti"]
    includes = [f"-I{kernel_root()}", f"-I{kernel_root() / 'include'}"]
    built: dict[tuple, ctypes.CDLL] = {}

    def build(source: str, **defines: str | int) -> ctypes.CDLL:
        key = (source, *sorted(defines.items()))
        if key not in built:
            library = folder / f"{len(built)}.so"
            flags = [f"-D{name}={value}" for name, value in defines.items()]
            command = [
                sys.executable,
                "-m",
                "ziglang",
                "c++",
                *options,
                *includes,
                *flags,
                SHIM / source,
                "-o",
                library,
            ]
            caches = {name: str(folder / name) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
            done = subprocess.run(
                command, env={**caches, "HOME": str(folder)}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            built[key] = ctypes.CDLL(str(library))
        return built[key]

    return build
