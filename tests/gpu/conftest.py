"""Running code against HIP runtimes that need no GPU: one that only remembers calls, and the stand-in GPU."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGES = os.pathsep.join(entry for entry in sys.path if entry)


def run_python(code, *arguments, **environment):
    """Run code in an interpreter of its own; returns the finished process."""
    kept = {name: value for name, value in os.environ.items() if "VISIBLE" not in name and name != "LD_LIBRARY_PATH"}
    kept |= {"PYTHONPATH": os.pathsep.join([str(HERE), PACKAGES])} | environment
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=kept, capture_output=True, text=True, check=False
    )


def build_runtime(root, source, *options):
    """Compile a HIP runtime in C, for which the folder can then be ROCM_PATH."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None and find_spec("ziglang") is None:
        pytest.skip("the stub runtime needs gcc or ziglang")
    compiler = [gcc] if gcc else [sys.executable, "-m", "ziglang", "cc"]
    (root / "lib").mkdir()
    library = root / "lib" / "libamdhip64.so"
    subprocess.run([*compiler, *options, "-I", HERE, "-shared", "-fPIC", source, "-o", library], check=True)


@pytest.fixture(scope="session")
def stub(tmp_path_factory, kernel_cache):
    """Return a function: code, environment -> the process, run against the runtime of ``stub_hip.c``."""
    if find_spec("rocm") is None and find_spec("hip") is None:
        pytest.skip("hip-python is missing")
    root = tmp_path_factory.mktemp("rocm")
    build_runtime(root, HERE / "stub_hip.c", "-O1")

    def run(code, *arguments, **environment):
        return run_python(
            code, *arguments, ROCM_PATH=str(root), STUB_KERNEL=str(HERE / "stub_kernel.hip"), **environment
        )

    return run


@pytest.fixture(scope="session")
def hostgpu(kernel_cache):
    """Return a function: code, architecture, environment -> the JSON that it prints last, run on the stand-in GPU."""
    if find_spec("rocm") is None and find_spec("hip") is None:
        pytest.skip("hip-python is missing")
    from rocattn.toolchain.hostgpu import hostgpu_library

    root = str(hostgpu_library())

    def run(code, arch="gfx1100", *arguments, **environment):
        done = run_python(code, *arguments, ROCM_PATH=root, ROCATTN_HOSTGPU_ARCH=arch, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
