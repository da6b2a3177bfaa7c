"""Reading the AMDGPU code objects of any file that holds some, and checking each against itself.

A code object says the same things up to three times: in the metadata note, in the kernel descriptors (which the
hardware's packet processor goes by) and in its symbols. Where they contradict each other, somebody patched or
miscompiled it, and what a tool prints of it may not be what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError, ToolchainError
from rocattn.toolchain.code_object import (
    OTHER_RUNTIMES,
    code_object_version,
    descriptor_symbol,
    descriptors_of,
    kernel_entries,
    kernel_of_descriptor,
    kernel_of_metadata,
    metadata_of,
    read_elf,
    target_of,
)
from rocattn.toolchain.elf import shown
from rocattn_profiling.kernels.read.bundles import parts_of
from rocattn_profiling.kernels.read.contradictions import kernel_contradictions, object_contradictions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocattn.toolchain.code_object import KernelInfo
    from rocattn.toolchain.descriptor import KernelDescriptor
    from rocattn.toolchain.elf import Elf, Symbol
    from rocattn_profiling.kernels.read.bundles import EmbeddedObject


class CodeObjectError(RocattnError, ValueError):
    """Raised when a file holds no AMDGPU code object, or none that can be read; one line."""


@dataclass(frozen=True, slots=True)
class DeviceObject:
    """One AMDGPU code object of a file.

    Attributes:
        name: The file's name, and where in it the code object lies: "app[gfx90a:xnack-]", "lib.a(k.o)[gfx942]".
        target: Processor with features: "gfx942", "gfx90a:sramecc+:xnack-", "gfx11-generic"; "" if nothing says it.
        version: Of the code object's format, 2 to 6; 0 if nothing says it.
        kernels: What it says of each kernel, in its order; `KernelInfo.unknown` names what it does not say.
        elf: The code object itself.
        problems: A line for each contradiction between metadata, kernel descriptors and ELF header, and for what is
            damaged; a code object with problems is still described as far as it can be.
    """

    name: str
    target: str
    version: int
    kernels: tuple[KernelInfo, ...]
    elf: bytes
    problems: tuple[str, ...] = ()

    @property
    def processor(self) -> str:
        """The target without its features."""
        return self.target.partition(":")[0]


def read_objects(data: bytes, name: str) -> tuple[DeviceObject, ...]:
    """Return the code objects of a file, in its order.

    Args:
        data: The file's content: a code object; an offload bundle, plain or compressed; a program or library with
            HIP fat binaries; a static library of any of these.
        name: The file's name, for `DeviceObject.name` and error texts.

    Raises:
        CodeObjectError: When it holds none, or none that can be read.
    """
    found: list[DeviceObject] = []
    counts: dict[str, int] = {}
    try:
        for part in parts_of(data):
            counts[part.where] = counts.get(part.where, 0) + 1
            suffix = f"#{counts[part.where]}" if counts[part.where] > 1 else ""
            found.append(_read(part, f"{name}{part.where}{suffix}"))
    except ToolchainError as error:
        if not found:
            raise CodeObjectError(f"{name}: {error}") from error
        found.append(DeviceObject(name, "", 0, (), b"", (f"the rest of the file is left out: {error}",)))
    if not found:
        raise CodeObjectError(f"{name}: it holds no code for AMD GPUs")
    if all(each.problems and not each.kernels for each in found):
        more = f" (and {len(found) - 1} more code objects that cannot be read)" if len(found) > 1 else ""
        raise CodeObjectError(f"{found[0].name}: {found[0].problems[0]}{more}")
    return tuple(found)


def _read(part: EmbeddedObject, name: str) -> DeviceObject:
    """Describe a part as far as it can be."""
    if part.problem:
        return DeviceObject(name, part.target, 0, (), part.data, (part.problem,))
    try:
        elf = read_elf(part.data)
    except ToolchainError as error:
        return DeviceObject(name, part.target, 0, (), part.data, (str(error),))
    if elf.os_abi in OTHER_RUNTIMES:
        problem = f"it is made for {OTHER_RUNTIMES[elf.os_abi]}, not for HSA: its kernels cannot be read"
        return DeviceObject(name, part.target, 0, (), part.data, (problem,))
    reading = _Reading(elf)
    kernels = reading.kernels()
    problems = [*reading.problems, *object_contradictions(elf, reading.metadata, part.target)]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more problems like these"]
    target = reading.target or part.target
    return DeviceObject(name, target, code_object_version(elf), tuple(kernels), part.data, tuple(problems))


class _Reading:
    """What can be had of one code object, though parts of it are damaged."""

    def __init__(self, elf: Elf) -> None:
        self.problems: list[str] = []
        self.metadata: dict[str, Any] | None = None
        self._elf = elf
        try:
            self.metadata = metadata_of(elf)
        except ToolchainError as error:
            self.problems.append(str(error))
        self.target = target_of(elf, self.metadata)
        self._processor = self.target.partition(":")[0]

    def kernels(self) -> list[KernelInfo]:
        """Return its kernels: those of the metadata, then those that only have a descriptor."""
        symbols: Mapping[str, Symbol] = {}
        descriptors: Mapping[str, KernelDescriptor] = {}
        try:
            symbols = self._elf.symbols
            descriptors = descriptors_of(self._elf, self._processor)
        except ToolchainError as error:
            self.problems.append(str(error))
        found, described = [], set()
        for entry in self._entries():
            symbol = descriptor_symbol(entry)
            described.add(symbol)
            descriptor, function = descriptors.get(symbol), symbols.get(entry[".name"])
            try:
                kernel = kernel_of_metadata(entry, descriptor, function)
            except ToolchainError as error:
                self.problems.append(str(error))
                if descriptor is not None:
                    found.append(kernel_of_descriptor(entry[".name"], descriptor, self._processor, function))
                continue
            found.append(kernel)
            self.problems += kernel_contradictions(self._elf.type, symbols, entry, kernel, self._processor)
        for symbol in sorted(set(descriptors) - described):
            name = symbol.removesuffix(".kd")
            found.append(kernel_of_descriptor(shown(name), descriptors[symbol], self._processor, symbols.get(name)))
            if self.metadata is not None:
                self.problems.append(f"{shown(name)}: it has a descriptor, but the metadata does not name it")
        if found and self.metadata is None and not self.problems:
            self.problems.append(_OLD if code_object_version(self._elf) == _OLD_VERSION else _NO_METADATA)
        return found

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return kernel_entries(self.metadata or {})
        except ToolchainError as error:
            self.problems.append(str(error))
            return []


_MAX_PROBLEMS = 20
_OLD_VERSION = 2
_OLD = "code object version 2: its metadata, a YAML text, is not read; spills, block and arguments are unknown"
_NO_METADATA = "it has no metadata: registers are those that a launch allocates; spills, block, arguments are unknown"
