"""Compile other people's HIP sources into assembly text, with ROCm's headers or, without ROCm, a few of our own.

Our headers (``kernels/others``) cover what kernels use, and declare the host API so that whole programs compile. They
simplify functions of ROCm's device library (``tanhf``): the compiler reports each one that is used.
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
"""File suffixes that are compiled, except for files in a given folder."""
_OPTIONS = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-std=c++20", "-O3", "-gline-tables-only"),
    *("-fuse-cuid=none", "-fno-caret-diagnostics", "-S"),
)
_WITHOUT_ROCM = ("-nogpulib", "-nogpuinc", "--no-default-config")
# Settings that the pinned package's driver passes for its C++ library, which has no defaults for them.
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
        options: The user's compiler options.
        repo: The working tree that contains the paths; None outside of one.
        tree: A checkout of another revision to read files from instead.
    """

    options: tuple[str, ...] = ()
    repo: Path | None = None
    tree: Path | None = None

    def place(self, path: Path) -> Path:
        """Return the path of a file in the chosen revision."""
        path = path.resolve()
        if self.tree and self.repo and path.is_relative_to(self.repo):
            return self.tree / path.relative_to(self.repo)
        return path


class HipSource(NamedTuple):
    """A source and its target."""

    build: HipBuild
    arch: str

    def compiled(self, path: Path) -> tuple[str, list[str]]:
        """Return a source's assembly text, and the library functions it uses in simplified form.

        Raises:
            ToolchainError: When it does not compile, with the first error and a hint about missing headers.
        """
        build = self.build
        source, folder = build.place(path), build.place(Path.cwd())
        if not source.is_file():
            raise ToolchainError(f"{path} does not exist in that revision")
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
    """Return a compiler command with headers, and a hint for errors that ROCm's headers may avoid.

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
    remedy = "; ROCm's headers were not found: set ROCM_PATH, or add folders with --options=-I…"
    return [*compiler.argv, *_OPTIONS, *_WITHOUT_ROCM, *own, *headers], remedy


def _headers(compiler: Compiler) -> list[Path]:
    """Return header folders of the C and C++ libraries, for a compiler that does not find its own."""
    if compiler.kind != PINNED:
        return []
    lib = Path(compiler.argv[0]).parent / "lib"
    machine = platform.machine()
    family = {"x86_64": "x86"}.get(machine, machine)
    libc = (f"{machine}-linux-musl", "generic-musl", f"{family}-linux-any", "any-linux-any")
    return [lib / "libcxx" / "include", lib / "include", *(lib / "libc" / "include" / each for each in libc)]
