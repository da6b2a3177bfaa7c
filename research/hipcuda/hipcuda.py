"""HIP on an NVIDIA card: a ``libamdhip64.so`` that forwards HIP's calls to CUDA's driver, and kernels as PTX.

For checking, on a GPU that works by itself, everything that drives one; never for numbers of an AMD GPU. A program
finds the library as it finds ROCm's: ``ROCM_PATH`` names the folder whose ``lib`` holds it. A copy of this file is in
that folder, too: there `rocattn.gpu.build` finds `compile_ptx`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import choose_compiler, run_step
from rocattn.toolchain.hip import define_options
from rocattn.toolchain.host import hip_library
from rocattn.toolchain.inputs import absolute, content_key, inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONS = (
    *("-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++"),
    *("--no-default-config", "-std=c++20", "-O3", "-Wall", "-Wextra", "-Wno-unknown-cuda-version"),
    "-fuse-cuid=none",
)


def hipcuda_library() -> Path:
    """Build the library that forwards HIP's calls to CUDA's driver, or take it from the cache.

    Returns:
        The folder to name in ``ROCM_PATH``.

    Raises:
        ToolchainError: When there is no compiler or the library cannot be written.
    """
    here = Path(__file__)
    root = hip_library(here.parent)
    with tempfile.NamedTemporaryFile(dir=root, delete=False) as file:
        file.write(here.read_bytes())
    Path(file.name).replace(root / here.name)  # atomic: another process may be at it too
    return root


def compile_ptx(source: Path | str, arch: str, *, defines: Mapping[str, str | float | bool | None]) -> bytes:
    """Compile one kernel file to PTX, or take it from the cache.

    Args:
        source: A ``.hip`` file; a relative path is taken below `kernel_root`.
        arch: The card's target, like "sm_90".
        defines: Macros; True is 1, False 0, None defines the name alone.

    Returns:
        The text, which ``hipModuleLoadData`` of `hipcuda_library` takes in the place of a code object.

    Raises:
        ToolchainError: When there is no compiler or the kernel does not compile.
    """
    path = absolute(source if Path(source).is_absolute() else kernel_root() / source)
    headers = kernel_root() / "include"
    compiler = choose_compiler()
    options = [*_OPTIONS, f"--cuda-gpu-arch={arch}", f"--cuda-feature=+{_ptx(arch)}", *define_options(defines)]
    inputs = inputs_of(headers, path)
    parts: list[str | bytes] = ["ptx-1", compiler.version, path.name, *options]
    parts += [part for entry in inputs for part in entry]

    def make() -> dict[str, bytes]:
        try:
            with tempfile.TemporaryDirectory(prefix="rocattn-build-") as folder:
                target = Path(folder, "code.ptx")
                run_step([*compiler.argv, *options, f"-I{headers}", "-S", path.name, "-o", str(target)], path, arch)
                return {"code.ptx": target.read_bytes()}
        except OSError as error:
            raise ToolchainError(f"cannot build {path.name} in a temporary folder: {error.strerror}") from error

    return ContentCache(cache_folder()).get_or_make(content_key(parts), make)["code.ptx"]


def _ptx(arch: str) -> str:
    """Return the PTX release to write: clang's own choice is that of the CUDA installed here; without one, too old."""
    return "ptx88" if arch.startswith("sm_1") else "ptx78"
