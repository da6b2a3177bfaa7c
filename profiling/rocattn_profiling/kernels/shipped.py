"""The kernels that rocattn ships: list them, compile them or take them from the cache, and derive their facts."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

import rocattn
from rocattn.cache import ContentCache, cache_folder
from rocattn.errors import RocattnError, ToolchainError
from rocattn.gpu.flash import SEQUENCES
from rocattn.toolchain.code_object import kernels_of
from rocattn.toolchain.hip import compile_hip, define_options
from rocattn.toolchain.inputs import absolute, content_key, inputs_of
from rocattn_profiling.base.process import end_with_parent
from rocattn_profiling.kernels.build import all_variants
from rocattn_profiling.kernels.facts import KernelFacts, kernel_facts
from rocattn_profiling.kernels.read.assembly import parse_assembly

if TYPE_CHECKING:
    from rocattn.toolchain.hip import CodeObject

# Macros that divide a problem. Revisions may choose differently for the same problem, so kernels are matched by the
# remaining macros, which name the problem.
_CHOICES = {
    "WAVES", "QUERY_FRAGMENTS", "KEYS_PER_TILE", "KEY_PARTS", "SLICES", "Q_IN_LDS", "MIN_WAVES", "XCDS", "STREAM_ROWS",
    "TEAM_WAVES", "ROW_BLOCKS", "TWO_PHASES", "SEQUENCES",
    "QUERY_TILES", "KEY_TILE", "RESIDENT_LDS",  # in older revisions
}  # fmt: skip
_USUAL = {"COLUMN_STEP": 0, "EXACT_DIMS": 1}  # no bounds checks on columns; older revisions use the second name
T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 8  # queued items per process
_ALONE_S = 1.0  # for less work, starting processes costs more than it saves


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled kernel that a revision ships; see `rocattn_profiling.kernels.build.Compilation`."""

    kernel: str
    source: str
    symbol: str
    defines: dict[str, str | int]
    arch: str

    @property
    def variant(self) -> str:
        """The problem it is compiled for: "f16 D=128"."""
        rest = {name: value for name, value in self.defines.items() if name not in _CHOICES}
        words = [str(rest.pop("DTYPE"))] if "DTYPE" in rest else []
        if "IN_DTYPE" in rest and "OUT_DTYPE" in rest:
            words.append(f"{rest.pop('IN_DTYPE')}->{rest.pop('OUT_DTYPE')}")
        head_dim = rest.pop("HEAD_DIM", None)
        if head_dim is not None:
            words.append(f"D={head_dim}")
        if (head_dim_v := rest.pop("HEAD_DIM_V", head_dim)) != head_dim:
            words.append(f"Dv={head_dim_v}")
        rest = {name: value for name, value in rest.items() if _USUAL.get(name) != value}
        return " ".join([*words, *(f"{name}={value}" for name, value in sorted(rest.items()))])

    @property
    def choices(self) -> str:
        """The macros that divide the problem."""
        return " ".join(f"{name}={value}" for name, value in self.defines.items() if name in _CHOICES)

    @property
    def name(self) -> str:
        """Its name in audits, without the architecture."""
        return f"{self.kernel} {self.variant}".rstrip()


class Problem(msgspec.Struct, frozen=True):
    """A problem with a kernel or file; ``kernel`` and ``arch`` are "" for files.

    It prevented the audit, unless ``noted``.
    """

    text: str
    kernel: str = ""
    arch: str = ""
    noted: bool = False

    @property
    def line(self) -> str:
        """The problem as one line of text."""
        return f"{self.kernel} on {self.arch}: {self.text}" if self.kernel else self.text


def shipped_kernels(archs: Sequence[str], *, quick: bool = False) -> list[Shipped]:
    """Return the kernels that this revision ships.

    Args:
        archs: Targets.
        quick: Whether to return only one variant per kernel: half precision, D = 128 if it has a head dimension.

    Raises:
        ArchError: When there are no kernels for an architecture.
    """
    kernels = [msgspec.convert(compilation, Shipped, from_attributes=True) for compilation in all_variants(archs)]
    return [kernel for kernel in kernels if not quick or is_quick(kernel)]


def is_quick(kernel: Shipped) -> bool:
    """Return whether a kernel is in the representative set; paged sequences represent packed rows, too."""
    dtype = kernel.defines.get("DTYPE", kernel.defines.get("OUT_DTYPE", "f16"))
    sequences = kernel.defines.get("SEQUENCES", 0)
    return dtype == "f16" and kernel.defines.get("HEAD_DIM", 128) == 128 and sequences in {0, SEQUENCES["paged"]}


def equal_kernels(
    before: Sequence[Shipped], before_root: Path, now: Sequence[Shipped], now_root: Path
) -> set[tuple[str, str]]:
    """Return (architecture, name) of kernels with equal inputs on two sides: the same compiler gives equal bytes.

    The inputs are everything that a compilation reads: the source, its includes, and the macros.

    Args:
        before: Kernels that one side ships.
        before_root: Folder of its sources: ``hip/`` and ``include/``.
        now: Kernels that the other side ships.
        now_root: Folder of the other side's sources.
    """
    old, new = _made_from(before, before_root), _made_from(now, now_root)
    return {key for key in old.keys() & new.keys() if old[key] == new[key]}


def _made_from(kernels: Sequence[Shipped], root: Path) -> dict[tuple[str, str], set[str]]:
    """Return hashes of each kernel's inputs, unique to this side if its includes cannot be resolved."""
    by_kernel: dict[tuple[str, str], set[str]] = {}

    @functools.cache
    def inputs(source: str) -> str:
        files = inputs_of(absolute(root / "include"), absolute(root / source))
        return content_key(part for file in files for part in file)

    for kernel in kernels:
        hashes = by_kernel.setdefault((kernel.arch, kernel.name), set())
        try:
            macros = define_options(kernel.defines)
            hashes.add(content_key([kernel.kernel, kernel.source, kernel.symbol, *macros, inputs(kernel.source)]))
        except ToolchainError:  # compiling it will report why
            hashes.add(str(root))
    return by_kernel


def facts_of_all(
    kernels: Sequence[Shipped], root: Path, *, jobs: int, on_step: Callable[[str], None] = lambda _: None
) -> tuple[list[KernelFacts], list[Problem]]:
    """Return the facts of kernels, from the cache or compiled now, and a problem for each that failed.

    Args:
        kernels: The kernels to analyze.
        root: Folder of the sources: ``hip/`` and ``include/``.
        jobs: Parallel processes.
        on_step: Called with a line after each kernel.

    Raises:
        ToolchainError: When there is no compiler.
    """
    facts: list[KernelFacts] = []
    problems: list[Problem] = []

    def take(kernel: Shipped, result: KernelFacts | str) -> None:
        if isinstance(result, str):
            problems.append(Problem(result, kernel.name, kernel.arch))
        else:
            facts.append(result)
        on_step(f"{kernel.name} {kernel.arch}")

    for _, kernel, result in in_processes(functools.partial(facts_or_problem, root=root), kernels, jobs=jobs):
        take(kernel, result)
    facts.sort(key=lambda facts: (facts.arch, facts.kernel, natural(facts.variant)))
    return facts, sorted(problems, key=lambda problem: problem.line)


def in_processes(work: Callable[[T], R], items: Iterable[T], *, jobs: int) -> Iterator[tuple[int, T, R]]:
    """Yield (index, item, result of ``work``) as items finish. Short jobs run in this process only.

    Raises:
        RocattnError: When a process is killed.
    """
    numbered, begun = enumerate(items), time.monotonic()
    for number, item in numbered:
        yield number, item, work(item)
        if jobs > 1 and time.monotonic() - begun > _ALONE_S:
            break
    if (following := next(numbered, None)) is None:
        return
    # Spawn rather than fork: this process may have threads.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),))
    running: dict[Future[R], tuple[int, T]] = {}
    try:
        for number, item in itertools.chain([following], numbered):
            running[pool.submit(work, item)] = number, item
            while len(running) >= _AHEAD * jobs:
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield *running.pop(done), done.result()
        for done in as_completed(running):
            yield *running[done], done.result()
    except BrokenProcessPool as error:
        raise RocattnError("a helper process was killed (out of memory?): try again with --jobs 1") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Set up a worker process: its parent handles Ctrl-C and ends it, and it creates no reference cycles to collect."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts "D=64" before "D=128"."""
    words = text.replace("=", " ").split()
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def facts_or_problem(kernel: Shipped, root: Path) -> KernelFacts | str:
    """Return a kernel's facts, or one line on why there are none, which can be pickled."""
    try:
        return shipped_facts(kernel, root)
    except RocattnError as error:
        return str(error)


def shipped_facts(kernel: Shipped, root: Path) -> KernelFacts:
    """Return the facts of one kernel, from the cache if this version of the code has analyzed the same code object.

    Raises:
        ToolchainError: When it does not compile.
    """
    code = compile_kernel(kernel, root)
    about = msgspec.json.encode([kernel, code.compiler.version])
    key = content_key(["facts-1", own_version(), about, code.data, code.assembly])
    files = ContentCache(cache_folder()).get_or_make(
        key, lambda: {"facts.json": msgspec.json.encode(facts_of_code(kernel, code))}
    )
    return msgspec.json.decode(files["facts.json"], type=KernelFacts)


def compile_kernel(kernel: Shipped, root: Path, *, line_tables: bool = False) -> CodeObject:
    """Compile a kernel from the sources in a folder, or take it from the cache.

    Raises:
        ToolchainError: When it does not compile.
    """
    return compile_hip(
        root / kernel.source,
        kernel.arch,
        defines=kernel.defines,
        include_root=root / "include",
        line_tables=line_tables,
    )


def facts_of_code(kernel: Shipped, code: CodeObject) -> KernelFacts:
    """Return the facts of a compiled kernel.

    Raises:
        ToolchainError: When its code object lacks the kernel.
    """
    info = next((info for info in kernels_of(code.data) if info.symbol == kernel.symbol), None)
    function = next((function for function in parse_assembly(code.assembly) if function.name == kernel.symbol), None)
    if info is None or function is None:
        raise RocattnError(f"{kernel.source} has no kernel {kernel.symbol}")
    return kernel_facts(
        info, code.arch, function, file=kernel.source, kernel=kernel.kernel, variant=kernel.variant,
        choices=kernel.choices, compiler=code.compiler.version,
    )  # fmt: skip


@functools.cache
def own_version() -> str:
    """Return a hash of the code and data that turn machine code into facts."""
    audit, library = Path(__file__).parent, Path(rocattn.__file__).parent
    folders = (audit, library / "toolchain")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in {".py", ".toml"}]
    files += [path for name in ("gpus", "lds_banks") for path in sorted((audit.parent / "base").glob(f"{name}.*"))]
    return content_key([part for path in files for part in (path.name, path.read_bytes())])
