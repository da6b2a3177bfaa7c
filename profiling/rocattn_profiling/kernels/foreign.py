"""Facts about any file with AMD GPU kernels: the output of a compiler, Triton or a build system.

Files next to it are used as well: Triton's JSON has the compiler version and the launch's block and LDS; assembly from
the same build (``.s``, ``.amdgcn``) provides the instructions if no disassembler is installed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn.toolchain.elf import Elf, shown
from rocattn_profiling.base.files import decoded as load_json
from rocattn_profiling.kernels.capture.run import LISTING, Captured
from rocattn_profiling.kernels.facts import KernelFacts, kernel_facts
from rocattn_profiling.kernels.hip_source import HipSource
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, parse_assembly
from rocattn_profiling.kernels.read.bundles import is_container
from rocattn_profiling.kernels.read.code_objects import DeviceObject, NoDeviceCodeError, read_objects
from rocattn_profiling.kernels.read.disassembly import DisassemblyError, disassemble
from rocattn_profiling.kernels.read.text_files import compiler_of, decoded, kernels_of_text, texts_of
from rocattn_profiling.kernels.shipped import Problem

if TYPE_CHECKING:
    from rocattn.toolchain.code_object import KernelInfo

_OTHER_TEXTS = (
    (re.compile(r"^[ \t]*\.target[ \t]+sm_", re.MULTILINE), "it is PTX, for NVIDIA GPUs"),
    (re.compile(r"^(; ModuleID|target triple|define .*\{$)", re.MULTILINE), "it is LLVM IR: compile it (llc)"),
    (re.compile(r"^(module|#loc|tt\.func|func\.func)\b", re.MULTILINE), "it is MLIR, which is not machine code yet"),
)
_TEXT = (".s", ".amdgcn", ".asm", ".S")


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How kernels are launched, as far as known.

    Attributes:
        block: Threads per block; 0 if unknown: the largest that a kernel allows is assumed.
        dynamic_lds_bytes: Dynamic LDS of the launch; None if unknown: none is assumed.
    """

    block: int = 0
    dynamic_lds_bytes: int | None = None


class Part(NamedTuple):
    """One code object of a file, a whole text file, or a source for one target."""

    path: Path
    launch: LaunchConfig
    content: DeviceObject | str | HipSource

    @property
    def processor(self) -> str:
        """Its target processor; "" if not known yet."""
        return self.content.processor if isinstance(self.content, DeviceObject) else ""


def files_of(paths: Iterable[Path]) -> tuple[list[Path], int]:
    """Return the given files, the files in given folders that may hold GPU code, and the number of others.

    Assembly next to an object of the same name belongs to that object. In a folder of captured kernels, no file counts
    as another one.
    """
    files, skipped = [], 0
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        below = [each for each in sorted(path.rglob("*")) if each.is_file()]
        found = [each for each in below if may_hold_code(each)]
        objects = {each.with_suffix("") for each in found if each.suffix not in _TEXT}
        files += [each for each in found if each.suffix not in _TEXT or each.with_suffix("") not in objects]
        skipped += 0 if (path / LISTING).is_file() else len(below) - len(found)
    return list(dict.fromkeys(files)), skipped


def may_hold_code(path: Path) -> bool:
    """Return whether a file may hold GPU code: an object, library, archive, or assembly text for an AMD GPU."""
    try:
        with path.open("rb") as file:
            return b"amdhsa" in file.read() if path.suffix in _TEXT else is_container(file.read(64))
    except OSError:
        return True  # reading it will report why


def parts_of_file(path: Path, launch: LaunchConfig) -> tuple[list[Part], list[Problem]]:
    """Return the parts of a file, for `facts_of_part`, and its problems.

    Args:
        path: A code object, a bundle, a program or library with kernels in it, or assembly text.
        launch: The launch as given; a file next to it may fill in unknown numbers.

    Raises:
        NoDeviceCodeError: When it is another kind of file.
    """
    name = name_of(path)
    try:
        data = path.read_bytes()
        if path.suffix in _TEXT or _is_text(data):
            return [Part(path, launch, decoded(data))], []
        devices = read_objects(data, name)
    except OSError as error:
        return [], [Problem(f"cannot read {name}: {error.strerror}")]
    except NoDeviceCodeError:
        raise
    except RocattnError as error:
        return [], [Problem(str(error))]
    problems = [
        Problem(f"{device.name}: {line}", noted=not device.unread) for device in devices for line in device.problems
    ]
    without = [device.name for device in devices if not device.kernels]
    problems += [Problem(f"{device}: it contains no kernel", noted=True) for device in without]
    return [Part(path, launch, device) for device in devices if device.kernels], problems


def facts_of_part(part: Part) -> tuple[list[KernelFacts], list[Problem]]:
    """Return the facts of a part's kernels, and its problems."""
    name, reader = name_of(part.path), _Reader(part.path, part.launch)
    try:
        if isinstance(part.content, DeviceObject):
            return reader.of_device(part.content), []
        if isinstance(part.content, str):
            return reader.of_text(part.content)
        return _facts_of_source(part.content, reader, part.path)
    except RocattnError as error:
        text = str(error)
        return [], [Problem(text if name in text else f"{name}: {text}")]


def _facts_of_source(source: HipSource, reader: _Reader, path: Path) -> tuple[list[KernelFacts], list[Problem]]:
    text, simpler = source.compiled(path)
    kernels, problems = reader.of_text(text)
    name = name_of(path)
    if not kernels:
        why = "templates must be instantiated"
        problems = [Problem(f"{name}: it has no kernel for {source.arch}: {why}")]
    elif simpler:
        kernels = [msgspec.structs.replace(facts, simplified=tuple(simpler)) for facts in kernels]
        functions = ", ".join(simpler)
        problems = [Problem(f"{name}: with simplified versions of ROCm's functions: {functions}", noted=True)]
    return kernels, problems


def name_of(path: Path) -> str:
    """Return a file's name in a form that is safe for a line of text and for JSON, whatever its bytes."""
    return shown(str(path), 4096)


def _is_text(data: bytes) -> bool:
    """Return whether a file of unknown name is text: assembly has no zero bytes, all binary formats here do."""
    return bool(data) and b"\0" not in data[:4096]


class _Source(msgspec.Struct, frozen=True):
    file: str = ""
    line: int = 0


class _Captured(msgspec.Struct, frozen=True):
    """What ``capture.hook`` adds to Triton's JSON: argument types and constants by name, or why compilation failed."""

    kernel: str = ""
    arch: str = ""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    source: _Source = _Source()
    versions: dict[str, str] = {}
    error: str = ""

    @property
    def config(self) -> dict[str, str]:
        """What distinguishes kernels of the same name."""
        return {
            kind: " ".join(f"{name}={value}".replace(" ", "") for name, value in sorted(of.items()))
            for kind, of in (("signature", self.signature), ("constants", self.constants))
        }


class _Failed(msgspec.Struct, frozen=True):
    captured: _Captured


def not_captured(paths: Iterable[Path]) -> list[Problem]:
    """Return what is missing from folders of captured kernels: failed compilations and programs that did not finish."""
    found = []
    for folder in paths:
        if not (folder / LISTING).is_file():
            continue
        try:
            listing = load_json((folder / LISTING).read_bytes(), Captured)
        except (OSError, ValueError) as error:
            found.append(
                Problem(f"{name_of(folder)}: its {LISTING} cannot be read ({error}): missing kernels are unknown")
            )
            continue
        failed = [run for run in listing.runs if run.failure]
        found += [Problem(f"{name_of(folder)}: the program failed on {run.arch}: {run.failure}") for run in failed]
    for path in (each for folder in paths if folder.is_dir() for each in sorted(folder.rglob("*.json"))):
        with suppress(OSError, ValueError):
            said = load_json(path.read_bytes(), _Failed).captured
            if said.error:
                found.append(Problem(said.error.splitlines()[0], kernel=said.kernel, arch=said.arch))
    return found


class _Triton(msgspec.Struct, frozen=True):
    """A kernel's metadata in Triton's JSON: its launch and Triton's version, which no other file has."""

    shared: int
    num_warps: int
    warp_size: int
    triton_version: str = ""
    captured: _Captured | None = None


# Fields of Triton's JSON that are not configuration: results, and properties of the machine.
_NOT_CONFIGURED = re.compile(r"hash|name|shared|arch|base_arch|triton_version|.*_scratch_.*|tmem_size")
_TTIR = (".ttir", ".source", ".ttgir")
_SIGNATURE = re.compile(r"tt\.func public @[^(]*\((.*)\)(?: attributes|\s*\{)")
_NO_TYPE = re.compile(r"%[\w.]+: |\s*loc\((?:[^()]|\([^()]*\))*\)|tt\.|[{}=,]| : i32")
_SHAPE = re.compile(r"tensor<((?:\d+x)+)")
_CONSTANT = re.compile(r"arith\.constant (?:dense<)?([\w.+-]+)")


def _triton_beside(path: Path) -> tuple[_Triton, dict[str, str]] | None:
    """Return Triton's JSON next to a file, and the configuration from it and from the TTIR."""
    try:
        data = path.with_suffix(".json").read_bytes()
        known, said = load_json(data, _Triton), load_json(data, dict[str, Any])
    except (OSError, ValueError):  # missing, or from another tool; msgspec's errors are ValueErrors
        return None
    config = {
        name: shown(str(value), 80)
        for name, value in said.items()
        if isinstance(value, str | int | float) and not _NOT_CONFIGURED.fullmatch(name)
    }
    if known.captured:
        return known, config | known.captured.config
    for suffix in _TTIR:
        with suppress(OSError):
            text = decoded(path.with_suffix(suffix).read_bytes())
            if signature := _SIGNATURE.search(text):
                config["signature"] = " ".join(_NO_TYPE.sub(" ", signature[1]).split())
            for kind, of in (("tile", _SHAPE), ("constants", _CONSTANT)):
                config[kind] = " ".join(sorted({word.rstrip("x") for word in of.findall(text)}))
            break
    return known, config


def _compiler_of(device: DeviceObject) -> str:
    """Return a code object's compiler from its .comment section; "" without one."""
    elf = Elf.read(device.elf)
    said = b"".join(elf.content(section) for section in elf.named(".comment")).decode(errors="replace")
    names = (" ".join(name.split()) for name in said.split("\0"))
    return ", ".join(dict.fromkeys(name for name in names if name and not name.startswith("Linker:")))


class _Reader:
    """A reader for the kernels of one file."""

    def __init__(self, path: Path, launch: LaunchConfig) -> None:
        self._path, self._launch, self._compiler, self._defined = path, launch, "", ""
        self._config: dict[str, str] = {}
        if beside := _triton_beside(path):  # unless given explicitly
            triton, self._config = beside
            lds = triton.shared if launch.dynamic_lds_bytes is None else launch.dynamic_lds_bytes
            self._launch = LaunchConfig(launch.block or triton.num_warps * triton.warp_size, lds)
            captured = triton.captured or _Captured()
            inside = f" with LLVM {shown(captured.versions['llvm'])}" if "llvm" in captured.versions else ""
            self._compiler = f"Triton {shown(triton.triton_version)}{inside}" if triton.triton_version else ""
            if captured.source.file:
                self._defined = f"{captured.source.file}:{captured.source.line}"

    def of_text(self, text: str) -> tuple[list[KernelFacts], list[Problem]]:
        """Return the facts of assembly text, which may have several targets."""
        kernels: list[KernelFacts] = []
        texts = list(texts_of(text))
        targets: Counter[str] = Counter()
        any_function = False
        for line, part in texts:
            functions = {function.name: function for function in parse_assembly(part, line)}
            any_function = any_function or bool(functions)
            compiler, infos = compiler_of(part), kernels_of_text(part, tuple(functions.values()))
            target = next((functions[symbol].target for symbol in infos), "")
            targets[target] += 1
            place = f"[{target}]" + (f"#{targets[target]}" if targets[target] > 1 else "") if len(texts) > 1 else ""
            for symbol, info in infos.items():
                kernels.append(self._facts(info, target, functions[symbol], f"{name_of(self._path)}{place}", compiler))
        if kernels:
            return kernels, []
        what = "it contains functions, but no kernel" if any_function else "it contains no AMD GPU assembly"
        named = next((said for pattern, said in _OTHER_TEXTS if pattern.search(text)), what)
        return [], [Problem(f"{name_of(self._path)}: {named}")]

    def of_device(self, device: DeviceObject) -> list[KernelFacts]:
        """Return the facts of a code object, with its code if there is a disassembler or assembly next to it."""
        why = "the disassembly does not contain this kernel"
        try:
            functions = {function.name: function for function in parse_assembly(disassemble(device))}
        except DisassemblyError as error:
            functions, beside = self._functions_beside(device)
            why = f"{error}{beside}"
        compiler = _compiler_of(device)
        kernels = []
        for info in device.kernels:
            function = functions.get(info.symbol)
            no_code = "" if function else why
            kernels.append(self._facts(info, device.target, function, device.name, compiler, no_code))
        return kernels

    def _functions_beside(self, device: DeviceObject) -> tuple[dict[str, AssemblyFunction], str]:
        """Return the functions of assembly next to the file if its kernels' numbers match, otherwise a note."""
        stale = ""
        for suffix in _TEXT:
            try:
                texts = texts_of(decoded(self._path.with_suffix(suffix).read_bytes()))
            except OSError:
                continue
            kernels = {info.symbol: info for info in device.kernels}
            for line, text in texts:
                stale = f"; {self._path.stem}{suffix} next to it is from another build"
                functions = parse_assembly(text, line)
                said = kernels_of_text(text, functions)
                if said.keys() == kernels.keys() and all(_same(said[name], kernels[name]) for name in said):
                    return {function.name: function for function in functions}, ""
        return {}, stale

    def _facts(
        self,
        info: KernelInfo,
        target: str,
        function: AssemblyFunction | None,
        name: str,
        compiler: str,
        no_code: str = "",
    ) -> KernelFacts:
        missing = []
        if not info.lds_bytes and self._launch.dynamic_lds_bytes is None:
            missing.append("the launch's dynamic LDS (Triton's `shared`): give it with --dynamic-lds")
        block = self._launch.block or info.required_block
        if not block:
            limit = f"{info.block} threads, its limit, are assumed" if info.block else "its limit is unknown, too"
            missing.append(f"the launch's block: {limit}")
        return kernel_facts(
            info, target, function, file=name, config=self._config, compiler=compiler or self._compiler,
            defined=self._defined, block=block,
            dynamic_lds_bytes=self._launch.dynamic_lds_bytes or 0, unknown=tuple(missing), no_code=no_code,
        )  # fmt: skip


def _same(mine: KernelInfo, other: KernelInfo) -> bool:
    """Return whether text and code object agree on a kernel; if not, they are from different builds.

    The size of the code must be known: an extra barrier changes no other number.
    """
    names = ("vgprs", "agprs", "sgprs", "vgpr_spills", "sgpr_spills", "lds_bytes", "scratch_bytes", "kernarg_bytes")
    return mine.code_bytes == other.code_bytes > 0 and all(
        getattr(mine, name) == getattr(other, name) for name in names
    )
