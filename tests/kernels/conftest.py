"""Building kernels for GPUs and for the stand-in GPU, and reading what a code object says about its kernels."""

import pytest

from rocattn.toolchain import code_object

from ..hostgpu.standin import StandIn
from .code_files import compile_text, pinned


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


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a function: target and version -> code object and assembly by the pinned compiler, made once."""
    compiler, folder, made = pinned(), tmp_path_factory.mktemp("built"), {}

    def build(target, version=5):
        if (target, version) not in made:
            option = f"-mcode-object-version={version}"
            made[target, version] = compile_text(compiler.argv, compiler.linker, folder, target, option)
        return made[target, version]

    return build
