"""Run a program without a GPU, once per architecture, or on this machine's GPU, and list the saved kernels."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from rocattn.errors import RocattnError, ToolchainError
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.base.files import DocumentError, decoded, write_text
from rocattn_profiling.base.gpus import architecture, product, products
from rocattn_profiling.base.process import find_tool, run_group

LISTING = "capture.json"
_HOOKS = {"hook.py": "sitecustomize.py", "gpu_hook.py": "gpu_hook.py", "torch_hook.py": "torch_hook.py"}
LOG = "program.log"
_NOT_USED = (  # features that skip the compiler, launch without Triton, or need times
    "TRITON_INTERPRET", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER", "TORCHINDUCTOR_USE_STATIC_TRITON_LAUNCHER",
    "TORCHINDUCTOR_BENCHMARK_EPILOGUE_FUSION",
)  # fmt: skip
_PYTHONS = ("python", "python3")


class StandInGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated GPU of a program: the largest product of an architecture."""

    arch: str
    name: str
    cus: int
    clock_mhz: int
    wave_size: int
    lds_bytes: int
    memory_bytes: int = 192 << 30


class NotCompiled(msgspec.Struct, frozen=True):
    """A kernel that Triton did not compile, and its error message."""

    kernel: str
    text: str


class CapturedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels saved from a program on one architecture.

    Attributes:
        arch: The architecture.
        kernels: Name of a kernel -> number of compiled variants.
        not_compiled: Kernels that did not compile.
        failure: How the program failed; "" if it did not.
    """

    arch: str
    kernels: dict[str, int]
    not_compiled: list[NotCompiled]
    failure: str = ""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A program's kernels: ``capture.json`` in their folder."""

    program: list[str]
    runs: list[CapturedRun]


class _Said(msgspec.Struct, frozen=True):
    """What `hook` writes next to a code object, as far as it is listed."""

    kernel: str
    error: str = ""


class _Beside(msgspec.Struct, frozen=True):
    captured: _Said


class NotCapturedError(RocattnError):
    """Raised when a program cannot be captured at all."""


def gpu_of(arch: str) -> StandInGpu:
    """Return the GPU to simulate.

    Raises:
        ArchError: When the architecture is unknown.
    """
    facts = architecture(arch)
    of_arch = [each for each in map(product, products()) if each.arch.name == facts.name]
    largest = max(of_arch, key=lambda each: each.cus, default=None)
    return StandInGpu(
        arch=facts.name, name=f"AMD {largest.name}" if largest else "AMD Radeon Graphics",
        cus=largest.cus if largest else 32, clock_mhz=largest.clock_mhz if largest else 2000,
        wave_size=facts.wave_sizes[0], lds_bytes=facts.lds_block_bytes,
    )  # fmt: skip


def prepared(out: Path) -> Path:
    """Return the output folder, after removing an earlier capture.

    Raises:
        NotCapturedError: When it contains other files.
    """
    if out.is_dir() and any(out.iterdir()):
        try:
            earlier = decoded((out / LISTING).read_bytes(), Captured)
        except (OSError, DocumentError) as error:
            raise NotCapturedError(f"{out} is not empty and not an earlier capture: use another folder") from error
        for run in earlier.runs:
            shutil.rmtree(out / run.arch, ignore_errors=True)
        (out / LISTING).unlink()
    out.mkdir(parents=True, exist_ok=True)
    return out.resolve()


def command_of(program: Sequence[str], python: Path | None) -> tuple[list[str], dict[str, str]]:
    """Return a program's command line, and environment variables that lead it to the same Python.

    Args:
        program: The command line; a leading plain ``python`` becomes the interpreter in ``python``.
        python: A virtual environment, or an interpreter.

    Raises:
        NotCapturedError: When there is no interpreter.
    """
    if python is None:
        return list(program), {}
    found = [path for path in (python, python / "bin" / "python", python / "bin" / "python3") if path.is_file()]
    if not found or not os.access(found[0], os.X_OK):
        raise NotCapturedError(f"{python} is neither a virtual environment nor a Python interpreter")
    first = Path.cwd() / found[0]  # not resolved: in a virtual environment it is a link
    path = f"{first.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    rest = [str(first), *program[1:]] if program[0] in _PYTHONS else list(program)
    return rest, {"PATH": path}


def capture(
    program: Sequence[str],
    gpu: StandInGpu,
    out: Path,
    *,
    python: Path | None,
    timeout_s: float,
    cwd: Path | None = None,
) -> CapturedRun:
    """Run a program for one architecture and list the saved kernels.

    Args:
        program: Its command line.
        gpu: The GPU to simulate.
        out: The folder; kernels go into a subfolder named after the architecture.
        python: See `command_of`.
        timeout_s: Time limit for the program.
        cwd: Its working directory; None for the current one.

    Raises:
        NotCapturedError: When there is no such Python.
        StartError: When the program cannot be started.
    """
    (out / gpu.arch).mkdir(exist_ok=True)
    failure = _run(program, gpu, out, out / gpu.arch / LOG, python, timeout_s, cwd)
    return _listed(out / gpu.arch, failure)


def capture_here(program: Sequence[str], out: Path, *, python: Path | None, timeout_s: float) -> list[CapturedRun]:
    """Run a program on this machine's GPU and list the saved kernels by architecture.

    See `capture` for arguments and errors.
    """
    failure = _run(program, None, out, out / LOG, python, timeout_s, None)
    folders = sorted({path.parents[2] for path in out.glob("*/*/*/*.json")})
    return [_listed(folder, failure) for folder in folders]


def _run(
    program: Sequence[str],
    gpu: StandInGpu | None,
    out: Path,
    log: Path,
    python: Path | None,
    timeout_s: float,
    cwd: Path | None,
) -> str:
    """Run the program; return how it failed, or ""."""
    argv, found_by = command_of(program, python)
    with _hooked(gpu, out) as env, log.open("wb") as file:
        ended = run_group(argv, env={**env, **found_by}, cwd=cwd, stdout=file, stderr=file, timeout_s=timeout_s)
    return "" if ended.status == 0 else ended.sentence(log.read_text(errors="replace"))


def _listed(folder: Path, failure: str) -> CapturedRun:
    kernels: dict[str, int] = {}
    not_compiled = []
    for said in _kept(folder):
        if said.error:
            not_compiled.append(NotCompiled(said.kernel, said.error))
        else:
            kernels[said.kernel] = kernels.get(said.kernel, 0) + 1
    return CapturedRun(arch=folder.name, kernels=kernels, not_compiled=not_compiled, failure=failure)


def _kept(folder: Path) -> Iterator[_Said]:
    for path in sorted(folder.glob("*/*/*.json")):
        with suppress(DocumentError):  # incomplete if the program was killed
            yield decoded(path.read_bytes(), _Beside).captured


def write_listing(out: Path, listing: Captured) -> Path:
    """Write the list of saved kernels."""
    return write_text(out / LISTING, msgspec.json.format(msgspec.json.encode(listing)).decode() + "\n")


@contextmanager
def _hooked(gpu: StandInGpu | None, out: Path) -> Iterator[Mapping[str, str]]:
    """Yield an environment in which every Python runs `hook` first, with empty caches."""
    with tempfile.TemporaryDirectory(prefix="rocattn-capture-") as name:
        place = Path(name)
        for source, copy in _HOOKS.items():
            shutil.copyfile(Path(__file__).with_name(source), place / copy)
        paths = [name, *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "ROCATTN_CAPTURE": msgspec.json.encode({"gpu": gpu, "out": str(out)}).decode(),
            "TRITON_CACHE_DIR": str(place / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **dict.fromkeys(_NOT_USED, "0"),
            **_linker(place),
            **(_rocm(place, gpu) if gpu else {}),
        }


_ROCM = {
    "rocminfo": "Agent 1\n  Name: {arch}\n  Marketing Name: {name}\n  Device Type: GPU\n  Compute Unit: {cus}",
    "hipconfig": "7.0.0",
}


def _rocm(place: Path, gpu: StandInGpu) -> dict[str, str]:
    """Provide replacements for ROCm's tools, which libraries query for the GPU, if none are installed."""
    if any(map(find_tool, _ROCM)):
        return {}
    for tool, answer in _ROCM.items():
        _script(place / "rocm" / "bin" / tool, f"print({answer.format_map(msgspec.to_builtins(gpu))!r})")
    return {"ROCM_HOME": str(place / "rocm")}


def _script(path: Path, code: str) -> str:
    """Write an executable script for this Python that needs no packages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -IS\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def _linker(place: Path) -> dict[str, str]:
    """Point Triton 3.4 and older, which look for ROCm's linker, to one."""
    variable = "TRITON_HIP_LLD_PATH"
    if variable in os.environ:
        return {}
    linker = find_tool("ld.lld")
    if linker is None:
        try:
            words = choose_compiler().linker
        except ToolchainError:
            return {}  # newer versions bundle one, older ones report the error
        rest = "[word for word in sys.argv[1:] if word not in {'-flavor', 'gnu'}]"  # implied by its name
        linker = _script(place / "ld.lld", f"import os, sys\nos.execv({words[0]!r}, {list(words)!r} + {rest})")
    return {variable: linker}
