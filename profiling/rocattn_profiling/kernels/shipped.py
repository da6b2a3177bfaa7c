"""The kernels that rocattn ships: list them, compile each or take it from the cache, and derive its facts."""

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

# Macros that say how a problem is divided. Two revisions may choose differently for the same problem; what is left
# names the problem, and with it what is compared with what.
_CHOICES = {
    "WAVES", "QUERY_FRAGMENTS", "KEYS_PER_TILE", "KEY_PARTS", "SLICES", "Q_IN_LDS", "MIN_WAVES", "XCDS", "STREAM_ROWS",
    "TEAM_WAVES", "ROW_BLOCKS", "TWO_PHASES", "SEQUENCES",
    "QUERY_TILES", "KEY_TILE", "RESIDENT_LDS",  # of older revisions
}  # fmt: skip
_USUAL = {"COLUMN_STEP": 0, "EXACT_DIMS": 1}  # no column is checked; the second is what older revisions call it
T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 8  # items of a process that wait
_ALONE_S = 1.0  # what takes no longer, processes of our own would cost more than they save


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation that a revision ships; see `rocattn_profiling.kernels.build.Compilation`."""

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
    """Something about a kernel or file; ``kernel`` and ``arch`` are "" for files.

    Without ``noted`` it could not be audited for this reason; with it, it was all the same.
    """

    text: str
    kernel: str = ""
    arch: str = ""
    noted: bool = False

    @property
    def line(self) -> str:
        """The one line for people."""
        return f"{self.kernel} on {self.arch}: {self.text}" if self.kernel else self.text


def shipped_kernels(archs: Sequence[str], *, quick: bool = False) -> list[Shipped]:
    """Return what this revision ships for some architectures.

    Args:
        archs: Targets.
        quick: Only half precision, at D = 128 where there is a head dimension: one of each kernel.

    Raises:
        ArchError: When there are no kernels for an architecture.
    """
    kernels = [msgspec.convert(compilation, Shipped, from_attributes=True) for compilation in all_variants(archs)]
    return [kernel for kernel in kernels if not quick or is_quick(kernel)]


def is_quick(kernel: Shipped) -> bool:
    """Whether a kernel is among the few that stand for all; of its kinds of sequences, pages stand for packed rows."""
    dtype = kernel.defines.get("DTYPE", kernel.defines.get("OUT_DTYPE", "f16"))
    sequences = kernel.defines.get("SEQUENCES", 0)
    return dtype == "f16" and kernel.defines.get("HEAD_DIM", 128) == 128 and sequences in {0, SEQUENCES["paged"]}


def equal_kernels(
    before: Sequence[Shipped], before_root: Path, now: Sequence[Shipped], now_root: Path
) -> set[tuple[str, str]]:
    """Return architecture and name of the kernels that two sides make alike: by one compiler, their bytes are equal.

    Compared is everything that a compilation reads: the source, all that it includes, and the macros.

    Args:
        before: What one side ships.
        before_root: Where its sources are: ``hip/`` and ``include/``.
        now: What the other side ships.
        now_root: Where those sources are.
    """
    old, new = _made_from(before, before_root), _made_from(now, now_root)
    return {key for key in old.keys() & new.keys() if old[key] == new[key]}


def _made_from(kernels: Sequence[Shipped], root: Path) -> dict[tuple[str, str], set[str]]:
    """Return what each kernel is made from, as hashes; like nothing elsewhere if its sources cannot be followed."""
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
        except ToolchainError:  # compiling it says why
            hashes.add(str(root))
    return by_kernel


def facts_of_all(
    kernels: Sequence[Shipped], root: Path, *, jobs: int, on_step: Callable[[str], None] = lambda _: None
) -> tuple[list[KernelFacts], list[Problem]]:
    """Return the facts of kernels, from the cache or compiled now, and a problem for each that cannot be had.

    Args:
        kernels: The kernels to analyse.
        root: Where the sources are: ``hip/`` and ``include/``.
        jobs: Processes at once.
        on_step: Called with a line after each.

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
    """Yield the number of each item, it, and what work returns for it, as they are done: at first in this process.

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
    # Fresh processes, not forks: this one may have threads.
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
    """Begin a process: Ctrl-C ends the one that started it, and that this one; what is made here has no cycles."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts "D=64" before "D=128"."""
    words = text.replace("=", " ").split()
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def facts_or_problem(kernel: Shipped, root: Path) -> KernelFacts | str:
    """Return a kernel's facts, or in one line why there are none: what travels between processes."""
    try:
        return shipped_facts(kernel, root)
    except RocattnError as error:
        return str(error)


def shipped_facts(kernel: Shipped, root: Path) -> KernelFacts:
    """Return the facts of one kernel, from the cache if this code object was analysed before by this code.

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
        ToolchainError: When its code object is not what was asked for.
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
    """Return a hash of all that turns machine code into facts: code and data of the audit and below."""
    audit, library = Path(__file__).parent, Path(rocattn.__file__).parent
    folders = (audit, library / "toolchain")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in {".py", ".toml"}]
    files += [path for name in ("gpus", "lds_banks") for path in sorted((audit.parent / "base").glob(f"{name}.*"))]
    return content_key([part for path in files for part in (path.name, path.read_bytes())])
