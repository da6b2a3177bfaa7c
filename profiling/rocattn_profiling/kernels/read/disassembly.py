"""Disassemble a code object with LLVM into text that `parse_assembly` reads.

LLVM's library from the package rocm-llvm-python is tried first, in a fork, because damaged code may crash it. It reads
no line tables: a code object with one goes to llvm-objdump first.

Each line of llvm-objdump's AMDGPU output ends in a comment with the instruction's address and encoding. Branch targets
are computed from these: versions print them differently, and none labels a function's own first instruction.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError, ToolchainError
from rocattn.installed import install_command
from rocattn.toolchain.code_object import read_elf
from rocattn.toolchain.elf import RELOCATABLE, shown
from rocattn_profiling.base.forks import CrashedError, apart
from rocattn_profiling.kernels.read.assembly import UNREADABLE
from rocattn_profiling.kernels.read.code_objects import DeviceObject
from rocattn_profiling.kernels.read.instructions import ends_flow, is_branch

if TYPE_CHECKING:
    from rocattn.toolchain.code_object import KernelInfo
    from rocattn.toolchain.elf import Elf, Symbol

    # Address, instruction, target address of a branch, and (file, line).
    Line = tuple[int, "_Said", int | None, tuple[str, str] | None]

MAX_CODE_BYTES = 32 << 20
_TIMEOUT_S = 120.0
_LIBRARY = "librocmllvm.so"
_NEWEST, _OLDEST = 40, 14  # versions NN to look for in llvm-objdump-NN
_STT_FUNC, _STT_OLD_KERNEL, _OLD_DESCRIPTOR_BYTES = 2, 10, 256
_INSTRUCTION = re.compile(r"\s+(\S+)\s*(.*?)\s*// ([0-9A-F]+): ([0-9A-F]{8})")
_HEADER = re.compile(r"([0-9a-f]{16}) <")
_SOURCE = re.compile(r"; (.+):(\d+)(?: \(discriminator \d+\))?$")
_MAX_OVERLAP = 2  # bytes of all functions over bytes of code: two symbols may share code
_MAX_UNREADABLE = 0.01  # share of instructions; above it, the tool is too old for the processor
_FIRST_LLVM = {"gfx950": 20, "gfx1250": 22, "gfx1251": 23}  # first version that reads it; 19 reads all others
_REFUSED: dict[tuple[str, str], str] = {}  # (tool, processor it does not know) -> reason


class DisassemblyError(RocattnError, RuntimeError):
    """Raised when no tool here can disassemble the code; one line with reason and remedy."""


class _UnknownProcessorError(DisassemblyError):
    """Raised when a tool does not know a processor: it would reject the next kernel as well."""


def disassemble(device: DeviceObject) -> str:
    """Return a code object's assembly text, with ``.loc`` lines if it has a line table.

    The text has all instructions of each function, by the size of its symbol, and the descriptor fields that
    `parse_assembly` needs. Only a compiler's own text marks spills and instructions without a source line. The few
    instructions that a tool older than the compiler cannot read appear as `UNREADABLE`.

    Raises:
        DisassemblyError: When no llvm-objdump here knows the processor, or it fails.
    """
    try:
        elf = read_elf(device.elf)
        functions = _functions(elf)
    except ToolchainError as error:
        raise DisassemblyError(str(error)) from error
    if not functions:
        raise DisassemblyError("it has no function symbols, so the start of its kernels is unknown")
    reasons = []
    for tool in find_disassemblers(lines=bool(elf.named(".debug_line"))):
        reason = _REFUSED.get((tool, device.processor))
        if reason is None:
            try:
                return _text(device, elf, functions, tool)
            except _UnknownProcessorError as error:
                reason = _REFUSED[tool, device.processor] = str(error)
            except DisassemblyError as error:
                reason = str(error)
        reasons.append(reason)
    first = _FIRST_LLVM.get(device.processor, 19)
    looked = "; ".join(reasons) or "none is on PATH or in ROCm"
    looked += f"; LLVM {first} and newer read it ({llvm_remedy(first)})"
    raise DisassemblyError(f"no llvm-objdump for {device.processor or 'its processor'}: {looked}")


def llvm_remedy(first: int = 20) -> str:
    """Return how to install LLVM of at least this version, or how to find ROCm's.

    The default version reads every target that rocattn has kernels for.
    """
    package = [] if _library() or platform.machine() != "x86_64" else [install_command("rocm-llvm-python")]
    return ", ".join([*package, f"install LLVM {first} or newer (apt install llvm-{first})", "or set ROCM_PATH"])


def find_disassemblers(*, lines: bool = False) -> list[str]:
    """Return LLVM's library, if installed, and every llvm-objdump; with ``lines``, llvm-objdump first."""
    library = [str(path) for path in [_library()] if path]
    return [*find_objdumps(), *library] if lines else [*library, *find_objdumps()]


def find_objdumps() -> list[str]:
    """Return every llvm-objdump here: ROCm's, then those on PATH, newest version first."""
    return find_tools("llvm-objdump")


@cache
def _library() -> Path | None:
    """Return the shared library of LLVM in the package rocm-llvm-python."""
    try:
        spec = find_spec("rocm.llvm")
    except ModuleNotFoundError:  # no ROCm package at all
        return None
    path = Path(spec.origin).parent / _LIBRARY if spec and spec.origin else None
    return path if path and path.is_file() else None


@cache
def _llvm(path: str) -> ctypes.CDLL:
    """Load LLVM's library.

    Raises:
        OSError: When it does not load.
    """
    llvm = ctypes.CDLL(path)
    for part in ("TargetInfo", "TargetMC", "Disassembler"):
        getattr(llvm, f"LLVMInitializeAMDGPU{part}")()
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    llvm.LLVMCreateDisasmCPU.restype, llvm.LLVMDisasmInstruction.restype = pointer, size
    llvm.LLVMCreateDisasmCPU.argtypes = (text, text, pointer, ctypes.c_int, pointer, pointer)
    llvm.LLVMDisasmInstruction.argtypes = (pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, text, size)
    return llvm


@cache
def _knows(path: str, processor: str) -> str:
    """Return why LLVM's library cannot read a processor's code, or "". A separate process asks, as it may crash."""
    ask = "import sys; from {0} import _llvm; _llvm(sys.argv[1]).LLVMCreateDisasmCPU(*{1})"
    arguments = "(b'amdgcn-amd-amdhsa', sys.argv[2].encode(), None, 0, None, None) or sys.exit(1)"
    command = [sys.executable, "-c", ask.format(__name__, arguments), path, processor]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_LIBRARY} does not respond ({error})"
    return f"{_LIBRARY} does not support it" if done.returncode or "not a recognized" in done.stderr else ""


def find_tools(name: str) -> list[str]:
    """Return every LLVM program with this name: ROCm's, then those on PATH, newest version first."""
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    paths = [root / folder / name for folder in ("lib/llvm/bin", "llvm/bin")]
    tools = [str(path) for path in paths if os.access(path, os.X_OK)]
    names = (*(f"{name}-{version}" for version in range(_NEWEST, _OLDEST - 1, -1)), name)
    tools += [path for each in names if (path := shutil.which(each))]
    files: dict[str, str] = {}
    for tool in tools:
        files.setdefault(os.path.realpath(tool), tool)
    return list(files.values())


@dataclass(frozen=True, slots=True)
class _Span:
    """Address range of a function."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """An instruction as printed by a tool, and as assembly text; ``ends`` if the next one does not run next."""

    mnemonic: str
    operands: str
    text: str
    branches: bool
    ends: bool
    readable: bool


@lru_cache(maxsize=1 << 15)
def _said(mnemonic: str, operands: str) -> _Said:
    readable = not mnemonic.startswith((".", "<"))  # ".long 0x7fb01514": unknown to the tool
    text = f"\t{mnemonic if readable else UNREADABLE} {operands}".rstrip()
    return _Said(mnemonic, operands, text, is_branch(mnemonic), ends_flow(mnemonic), readable)


def _functions(elf: Elf) -> list[_Span]:
    """Return the functions by address; one without a size ends at the next function, or with its section.

    Raises:
        ToolchainError: When the file is damaged, not linked, or too large.
    """
    if elf.type == RELOCATABLE:
        raise ToolchainError(
            "it is not linked, so its branch targets are unknown: use ld.lld -shared IN.o -o OUT.hsaco"
        )
    symbols = {
        symbol.value: symbol  # one of those at the same address
        for symbol in elf.symbols.values()
        if symbol.type in {_STT_FUNC, _STT_OLD_KERNEL} and symbol.name.isprintable()
    }
    code_bytes = sum(elf.sections[index].bytes for index in {symbol.section for symbol in symbols.values()})
    if code_bytes > MAX_CODE_BYTES:
        raise ToolchainError(f"it has more than {MAX_CODE_BYTES >> 20} MiB of machine code: too much to disassemble")
    starts = sorted(symbols)
    spans = [
        _Span(symbols[start].name, *_range(elf, symbols[start], following))
        for start, following in zip_longest(starts, starts[1:], fillvalue=0)
    ]
    if sum(span.end - span.start for span in spans) > _MAX_OVERLAP * code_bytes:
        raise ToolchainError("it is damaged: its functions overlap")
    return spans


def _range(elf: Elf, symbol: Symbol, following: int) -> tuple[int, int]:
    section = elf.sections[symbol.section]
    end = symbol.value + symbol.bytes if symbol.bytes else following or section.address + section.bytes
    skipped = _OLD_DESCRIPTOR_BYTES if symbol.type == _STT_OLD_KERNEL else 0
    return symbol.value + skipped, end


def _text(device: DeviceObject, elf: Elf, functions: list[_Span], tool: str) -> str:
    """Run a tool and return its output as assembly text.

    Args:
        device: The code object.
        elf: Its ELF file.
        functions: Its functions.
        tool: The program.

    Raises:
        DisassemblyError: When it fails, or does not know the processor's instructions.
    """
    if not tool.endswith(_LIBRARY):
        return _assembled(device, elf, _printed(device, functions, tool), tool)
    if refused := _knows(tool, device.processor):
        raise _UnknownProcessorError(refused)
    _llvm(tool)  # loaded once, for all forks
    try:
        return apart(lambda: _assembled(device, elf, _decoded(device, elf, functions, tool), tool))
    except CrashedError as error:  # some encodings crash LLVM
        raise DisassemblyError(f"{_LIBRARY} crashes on it ({error})") from error


def _assembled(device: DeviceObject, elf: Elf, read: Iterable[tuple[_Span, list[Line]]], tool: str) -> str:
    """Return the instructions that a tool read as assembly text."""
    writer = _Writer(device, elf)
    for span, instructions in read:
        writer.function(span, instructions)
    if not writer.instructions:
        raise DisassemblyError(f"{tool} found no instructions in it")
    if writer.unreadable > _MAX_UNREADABLE * writer.instructions:
        share = f"over {100 * _MAX_UNREADABLE:g} % of its instructions"
        raise DisassemblyError(f"{tool} is too old: it cannot read {share}")
    return "\n".join(writer.lines) + "\n"


def _decoded(device: DeviceObject, elf: Elf, functions: list[_Span], tool: str) -> Iterator[tuple[_Span, list[Line]]]:
    """Yield each function with its instructions, decoded by LLVM's library."""
    llvm = _llvm(tool)
    context = llvm.LLVMCreateDisasmCPU(b"amdgcn-amd-amdhsa", device.processor.encode(), None, 0, None, None)
    text = ctypes.create_string_buffer(1024)
    read: dict[int, tuple[_Said, int]] = {}  # by encoding, one or two words: many recur
    for span in functions:
        within = (each for each in elf.sections if each.address <= span.start < each.address + each.bytes)
        if (section := next(within, None)) is None:
            raise DisassemblyError(f"it is damaged: {span.name} starts outside all sections")
        code = elf.content(section)[span.start - section.address : span.end - section.address]
        start = ctypes.addressof(held := ctypes.create_string_buffer(code, len(code)))
        words = array("I", code[: len(held) & ~3])
        place, end = 0, len(words)
        body: list[Line] = []
        words.append(0)
        while place < end:
            word = words[place]
            if (known := read.get(word)) is None:
                both = word << 32 | words[place + 1] | 1 << 64
                if (known := read.get(both)) is None:
                    left, at = len(code) - 4 * place, 4 * place
                    taken = llvm.LLVMDisasmInstruction(context, start + at, left, span.start + at, text, 1024)
                    mnemonic, _, operands = text.value.decode().strip().partition(" ") if taken else (".long", "", "")
                    known = _said(mnemonic, operands.partition("//")[0].strip()), -(-taken // 4) or 1
                    if taken in {4, 8}:
                        read[word if taken == 4 else both] = known
            said, taken = known
            at = span.start + 4 * place
            body.append((at, said, _target(at, word) if said.branches else None, None))
            place += taken
        yield span, body
    llvm.LLVMDisasmDispose(ctypes.c_void_p(context))


def _printed(device: DeviceObject, functions: list[_Span], tool: str) -> Iterator[tuple[_Span, list[Line]]]:
    """Yield each function with its instructions, as printed by llvm-objdump."""
    with tempfile.TemporaryDirectory(prefix="rocattn-objdump-") as folder:
        code, printed = Path(folder, "code.hsaco"), Path(folder, "code.txt")
        code.write_bytes(device.elf)
        command = [tool, "--disassemble", "--line-numbers", "--no-show-raw-insn", code.name]
        try:
            with printed.open("wb") as out:
                done = subprocess.run(  # in this folder, as it crashes on unknown processors and leaves a core file
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                    timeout=_TIMEOUT_S, check=False,
                )  # fmt: skip
        except OSError as error:
            raise DisassemblyError(f"{tool} could not be started ({error.strerror})") from error
        except subprocess.TimeoutExpired as error:
            raise DisassemblyError(f"{tool} took longer than {_TIMEOUT_S:.0f} s") from error
        if done.returncode:
            raise _complaint(tool, done.returncode, done.stderr.decode(errors="replace"))
        with printed.open(errors="backslashreplace") as lines:
            yield from _by_function(lines, functions)


def _complaint(tool: str, status: int, output: str) -> DisassemblyError:
    """Return the exception for a failed tool."""
    if "not yet supported" in output or "find target" in output:
        return _UnknownProcessorError(f"{tool} does not support it")
    if status < 0:
        return DisassemblyError(f"{tool} crashes on it")
    lines = [line for line in output.splitlines() if line.strip()]
    said = f"fails: {shown(lines[0], 120)}" if lines else "fails without a message"
    return DisassemblyError(f"{tool} {said}")


def _by_function(lines: Iterable[str], functions: list[_Span]) -> Iterator[tuple[_Span, list[Line]]]:
    """Yield each function with its instructions; lines between functions are padding."""
    spans = iter(functions)
    span = next(spans, None)
    source: tuple[str, str] | None = None
    body: list[Line] = []
    starts = {each.start for each in functions}
    for line in lines:
        if line.startswith("; "):
            if place := _SOURCE.match(line.rstrip("\n")):
                source = place[1], place[2]
            continue
        match = _INSTRUCTION.match(line)
        if match is None:
            if (header := _HEADER.match(line)) and int(header[1], 16) in starts:
                source = None
            continue
        address = int(match[3], 16)
        while span is not None and address >= span.end:
            yield span, body
            span, body = next(spans, None), []
        if span is None:
            return
        if address >= span.start:
            said = _said(match[1], match[2])
            body.append((address, said, _target(address, int(match[4], 16)) if said.branches else None, source))
    if span is not None:
        yield span, body


def _target(address: int, word: int) -> int:
    """Return a branch's target address: its low 16 bits are a signed offset in words from the next instruction."""
    words = word & 0xFFFF
    return address + 4 + 4 * (words - 0x10000 if words & 0x8000 else words)


@dataclass(slots=True)
class _Writer:
    """A writer of assembly text."""

    device: DeviceObject
    elf: Elf
    lines: list[str] = field(default_factory=list)
    instructions: int = 0
    unreadable: int = 0
    _files: dict[str, int] = field(default_factory=dict)
    _kernels: dict[str, KernelInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kernels = {kernel.symbol: kernel for kernel in self.device.kernels}
        self.lines.append(f'\t.amdgcn_target "amdgcn-amd-amdhsa--{self.device.target}"')
        self.lines += [f'\t.ident "{name}"' for name in _compilers(self.elf)]

    def function(self, span: _Span, instructions: list[Line]) -> None:
        """Write a function, and its descriptor if it is a kernel."""
        number = len(self.lines)
        self.lines += [f"\t.type\t{span.name},@function", f"{span.name}:"]
        targets = {target for _, _, target, _ in instructions}
        current, reachable, lines = None, True, self.lines
        for address, said, target, source in instructions:
            if address in targets:
                lines.append(f"{_label(address)}:")
                reachable = True
            if not reachable and said.mnemonic == "s_nop":
                continue  # the assembler's padding, to align the next loop
            reachable = not said.ends
            if source and source != current:
                self._location(*source)
            current = source
            self.instructions += 1
            self.unreadable += not said.readable
            if target is None:
                lines.append(said.text)
            else:
                operands = f"{said.operands[: said.operands.rfind(',') + 1]} {_label(target)}".lstrip()
                lines.append(f"\t{said.mnemonic} {operands}")
        self.lines += [f".Lfunc_end{number}:", f"\t.size\t{span.name}, .Lfunc_end{number}-{span.name}"]
        if span.name in self._kernels:
            self._descriptor(self._kernels[span.name])

    def _location(self, path: str, line: str) -> None:
        if path not in self._files:
            self._files[path] = len(self._files)
            name = path.replace('"', "'")
            self.lines.append(f'\t.file\t{self._files[path]} "{name}"')
        self.lines.append(f"\t.loc\t{self._files[path]} {line} 0")

    def _descriptor(self, kernel: KernelInfo) -> None:
        said = {
            "group_segment_fixed_size": kernel.lds_bytes,
            "private_segment_fixed_size": kernel.scratch_bytes,
            "kernarg_size": kernel.kernarg_bytes,
            "wavefront_size32": int(kernel.wave_size == 32),
            "next_free_vgpr": kernel.vgprs,
            "next_free_sgpr": kernel.sgprs,
        }
        self.lines.append(f"\t.amdhsa_kernel {kernel.symbol}")
        self.lines += [f"\t\t.amdhsa_{name} {value}" for name, value in said.items()]
        self.lines.append("\t.end_amdhsa_kernel")


def _label(address: int) -> str:
    return f".L{address:x}"


def _compilers(elf: Elf) -> list[str]:
    """Return the compilers in section .comment, without the linker, which is listed there, too."""
    try:
        content = b"\0".join(elf.content(section) for section in elf.named(".comment"))
    except ToolchainError:
        return []
    texts = (text.decode(errors="replace") for text in content.split(b"\0"))
    return [shown(text).replace('"', "'") for text in texts if text and not text.startswith("Linker:")][:1]
