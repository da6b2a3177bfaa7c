"""Building kernels for GPUs and for the stand-in GPU, and reading what a code object says about its kernels."""

import pytest

from rocattn.toolchain import code_object

from ..hostgpu.standin import StandIn


@pytest.fixture(scope="session")
def read_metadata():
    """Return a function: code object bytes -> its AMDGPU note (LLVM AMDGPUUsage, "Code Object Metadata")."""
    return code_object.read_metadata


@pytest.fixture(scope="session")
def standin(tmp_path_factory, kernel_cache):
    """Return a function: architecture -> the stand-in GPU for it, made once."""
    made: dict[str, StandIn] = {}
    folder = tmp_path_factory.mktemp("standin")

    def make(arch):
        if arch not in made:
            made[arch] = StandIn(folder, arch)
        return made[arch]

    return make
