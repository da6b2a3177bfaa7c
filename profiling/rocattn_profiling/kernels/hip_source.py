"""HIP sources of others, compiled into assembly text: with ROCm's headers, or without ROCm with a few of our own.

Ours (``kernels/others``) have what kernels use, and declare the host's side so that whole programs compile. Functions
of ROCm's device library (``tanhf``) are simpler there: the compiler names each that is used.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocattn.errors import ToolchainError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import PINNED, Compiler, choose_compiler, find_compilers, run_step
from rocattn_profiling.kernels.read.text_files import decoded

SUFFIXES = frozenset({".hip", ".cu", ".cc", ".cpp", ".cxx"})
"""Of files that are compiled; a folder's are not."""
_OPTIONS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-std=c++20", "-O3", "-gline-tables-only"),
    *("-fuse-cuid=none", "-fno-caret-diagnostics", "-S"),
)
_WITHOUT_ROCM = ("-nogpulib", "-nogpuinc", "--no-default-config")
# What the pinned package's own driver says of its C++ library, which leaves it to whoever compiles.
_LIBCXX = {
    "ABI_VERSION": "1", "ABI_NAMESPACE": "__1", "HARDENING_MODE_DEFAULT": "_LIBCPP_HARDENING_MODE_NONE",
    "ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE", "PSTL_BACKEND_SERIAL": "1",
    "HAS_VENDOR_AVAILABILITY_ANNOTATIONS": "0",
} | {
    f"HAS_{name}": "1"
    for name in (
        "THREADS", "MONOTONIC_CLOCK", "MUSL_LIBC", "FILESYSTEM", "RANDOM_DEVICE", "LOCALIZATION", "UNICODE",
        "WIDE_CHARACTERS", "TIME_ZONE_DATABASE",
    )
}  # fmt: skip
_LACKING = re.compile(r"error: .*(file not found|undeclared|no member named|unknown type|no matching function)")
_SIMPLER = re.compile(r"'(\w+)(?:<[^']*>)?' is deprecated: rocattn")


@dataclass(frozen=True, slots=True)
class HipBuild:
    """How sources are compiled.

    Attributes:
        options: The user's, for the compiler.
        repo: The working tree that paths are of; None outside of one.
        tree: A checkout of another revision to take files from instead.
    """

    options: tuple[str, ...] = ()
    repo: Path | None = None
    tree: Path | None = None

    def place(self, path: Path) -> Path:
        """Return where a path's state is."""
        path = path.resolve()
        if self.tree and self.repo and path.is_relative_to(self.repo):
            return self.tree / path.relative_to(self.repo)
        return path


class HipSource(NamedTuple):
    """A source, and the target that it is compiled for."""

    build: HipBuild
    arch: str

    def compiled(self, path: Path) -> tuple[str, list[str]]:
        """Return the assembly text of a source, and the functions in it that are simpler than ROCm's.

        Raises:
            ToolchainError: When it does not compile; with the first error, and what headers may lack.
        """
        build = self.build
        source, folder = build.place(path), build.place(Path.cwd())
        if not source.is_file():
            raise ToolchainError(f"{path}: that revision does not have it")
        command, remedy = _command()
        options = list(build.options)
        if build.repo and build.tree:
            command.append(f"-ffile-prefix-map={build.tree}={build.repo}")
            options = [each.replace(f"{build.repo}/", f"{build.tree}/") for each in options]
        where = [f"-ffile-prefix-map={folder}/=", f"-working-directory={folder}", f"--offload-arch={self.arch}"]
        with tempfile.TemporaryDirectory(prefix="rocattn-source-") as made:
            text = Path(made, "code.s")
            try:
                said = run_step([*command, *where, *options, str(source), "-o", str(text)], source, self.arch)
            except ToolchainError as error:
                lacks = _LACKING.search(error.output)
                raise ToolchainError(f"{error}{remedy * bool(lacks)}") from error
            return decoded(text.read_bytes()), sorted(set(_SIMPLER.findall(said)))


def _command() -> tuple[list[str], str]:
    """Return a compiler with its headers, and what to say of an error that other headers may not have.

    Raises:
        ToolchainError: When there is no compiler.
    """
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    compiler = choose_compiler()
    if (rocm / "include" / "hip" / "hip_runtime.h").is_file():
        if not compiler.given:
            compiler = next((each for each in find_compilers() if each.kind == "rocm" and each.targets), compiler)
        if compiler.kind != PINNED:
            return [*compiler.argv, *_OPTIONS, f"--rocm-path={rocm}"], ""
    ours = [kernel_root() / "others", kernel_root() / "include"]
    headers = [option for folder in [*_headers(compiler), *ours] for option in ("-isystem", str(folder))]
    own = [f"-D_LIBCPP_{name}={value}" for name, value in _LIBCXX.items()] if compiler.kind == PINNED else []
    own += [f"--target={platform.machine()}-linux-musl", "-nostdinc", "-nostdinc++"] if own else []
    remedy = "; ROCm's headers are not here: set ROCM_PATH, or name folders with --options=-I…"
    return [*compiler.argv, *_OPTIONS, *_WITHOUT_ROCM, *own, *headers], remedy


def _headers(compiler: Compiler) -> list[Path]:
    """Return the folders of the C and C++ libraries' headers where the compiler does not find its own."""
    if compiler.kind != PINNED:
        return []
    lib = Path(compiler.argv[0]).parent / "lib"
    machine = platform.machine()
    family = {"x86_64": "x86"}.get(machine, machine)
    libc = (f"{machine}-linux-musl", "generic-musl", f"{family}-linux-any", "any-linux-any")
    return [lib / "libcxx" / "include", lib / "include", *(lib / "libc" / "include" / each for each in libc)]
