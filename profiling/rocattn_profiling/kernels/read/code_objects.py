"""Read the AMDGPU code objects of any file, and check each for consistency.

A code object states the same facts up to three times: in the metadata note, in the kernel descriptors (which the
hardware's packet processor uses) and in its symbols. Contradictions mean a patched or miscompiled file,
for which a tool's output may differ from what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    target_of_flags,
    target_of_triple,
)
from rocattn.toolchain.descriptor import gfx_major
from rocattn.toolchain.elf import RELOCATABLE, shown
from rocattn_profiling.kernels.read.bundles import EmbeddedObject, NothingForGpusError, parts_of

if TYPE_CHECKING:
    from rocattn.toolchain.code_object import KernelInfo
    from rocattn.toolchain.descriptor import KernelDescriptor
    from rocattn.toolchain.elf import Elf, Symbol


class CodeObjectError(RocattnError, ValueError):
    """Raised when a file has no readable AMDGPU code object; one line."""


class NoDeviceCodeError(CodeObjectError):
    """Raised when a file cannot contain code objects, or is intact and has none; one line."""


@dataclass(frozen=True, slots=True)
class DeviceObject:
    """One AMDGPU code object of a file.

    Attributes:
        name: The file's name, and the code object's place in it: "app[gfx90a:xnack-]", "lib.a(k.o)[gfx942]".
        target: Processor with features: "gfx942", "gfx90a:sramecc+:xnack-", "gfx11-generic"; "" if unknown.
        version: Code object version, 2 to 6; 0 if unknown.
        kernels: Metadata of each kernel, in file order; `KernelInfo.unknown` lists missing numbers.
        elf: The code object itself.
        problems: One line for each contradiction between metadata, kernel descriptors and ELF header, and for damaged
            data; a code object with problems is still described as far as possible.
        unread: Whether a part could not be read, rather than being contradictory.
    """

    name: str
    target: str
    version: int
    kernels: tuple[KernelInfo, ...]
    elf: bytes
    problems: tuple[str, ...] = ()
    unread: bool = False

    @property
    def processor(self) -> str:
        """The target without its features."""
        return self.target.partition(":")[0]


def read_objects(data: bytes, name: str) -> tuple[DeviceObject, ...]:
    """Return the code objects of a file, in file order.

    Args:
        data: The file's content: a code object; an offload bundle, plain or compressed; a program or library with
            HIP fat binaries; a static library of any of these.
        name: The file's name, for `DeviceObject.name` and error texts.

    Raises:
        CodeObjectError: When it contains none, or none is readable.
    """
    devices: list[DeviceObject] = []
    counts: dict[str, int] = {}
    try:
        for part in parts_of(data):
            counts[part.where] = counts.get(part.where, 0) + 1
            suffix = f"#{counts[part.where]}" if counts[part.where] > 1 else ""
            devices.append(_read(part, f"{name}{part.where}{suffix}"))
    except ToolchainError as error:
        if not devices:
            kind = NoDeviceCodeError if isinstance(error, NothingForGpusError) else CodeObjectError
            raise kind(f"{name}: {error}") from error
        devices.append(_unread(name, f"the rest of the file is skipped: {error}"))
    if not devices:
        raise NoDeviceCodeError(f"{name}: it contains no code for AMD GPUs")
    if all(each.problems and not each.kernels for each in devices):
        more = f" (and {len(devices) - 1} more code objects that cannot be read)" if len(devices) > 1 else ""
        raise CodeObjectError(f"{devices[0].name}: {devices[0].problems[0]}{more}")
    return tuple(devices)


def _read(part: EmbeddedObject, name: str) -> DeviceObject:
    """Describe a part as far as possible."""
    if part.problem:
        return _unread(name, part.problem, part)
    try:
        elf = read_elf(part.data)
    except ToolchainError as error:
        return _unread(name, str(error), part)
    if elf.os_abi in OTHER_RUNTIMES:
        problem = f"it targets {OTHER_RUNTIMES[elf.os_abi]}, not HSA: its kernels cannot be read"
        return _unread(name, problem, part)
    reading = _Reading(elf)
    kernels = reading.kernels()
    problems = [*reading.problems, *reading.contradictions, *_object_contradictions(elf, reading.metadata, part.target)]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more problems like these"]
    target = reading.target or part.target
    unread = bool(reading.problems)
    return DeviceObject(name, target, code_object_version(elf), tuple(kernels), part.data, tuple(problems), unread)


def _unread(name: str, problem: str, part: EmbeddedObject | None = None) -> DeviceObject:
    target, data = (part.target, part.data) if part else ("", b"")
    return DeviceObject(name, target, 0, (), data, (problem,), unread=True)


class _Reading:
    """A reader of one code object that tolerates damaged parts."""

    def __init__(self, elf: Elf) -> None:
        self.problems: list[str] = []
        self.contradictions: list[str] = []
        self.metadata: dict[str, Any] | None = None
        self._elf = elf
        try:
            self.metadata = metadata_of(elf)
        except ToolchainError as error:
            self.problems.append(str(error))
        self.target = target_of(elf, self.metadata)
        self._processor = self.target.partition(":")[0]

    def kernels(self) -> list[KernelInfo]:
        """Return its kernels: those in the metadata, then those with only a descriptor."""
        symbols: Mapping[str, Symbol] = {}
        descriptors: Mapping[str, KernelDescriptor] = {}
        try:
            symbols = self._elf.symbols
            descriptors = descriptors_of(self._elf, self._processor)
        except ToolchainError as error:
            self.problems.append(str(error))
        kernels, described = [], set()
        for entry in self._entries():
            symbol = descriptor_symbol(entry)
            described.add(symbol)
            descriptor, function = descriptors.get(symbol), symbols.get(entry[".name"])
            try:
                kernel = kernel_of_metadata(entry, descriptor, function)
            except ToolchainError as error:
                self.problems.append(str(error))
                if descriptor is not None:
                    kernels.append(kernel_of_descriptor(entry[".name"], descriptor, self._processor, function))
                continue
            kernels.append(kernel)
            self.contradictions += _kernel_contradictions(self._elf.type, symbols, entry, kernel, self._processor)
        for symbol in sorted(set(descriptors) - described):
            name = symbol.removesuffix(".kd")
            kernels.append(kernel_of_descriptor(shown(name), descriptors[symbol], self._processor, symbols.get(name)))
            if self.metadata is not None:
                self.contradictions.append(f"{shown(name)}: it has a descriptor, but is not in the metadata")
        if kernels and self.metadata is None and not self.problems:
            self.problems.append(_OLD if code_object_version(self._elf) == _OLD_VERSION else _NO_METADATA)
        return kernels

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return kernel_entries(self.metadata or {})
        except ToolchainError as error:
            self.problems.append(str(error))
            return []


_MAX_PROBLEMS = 20
_OLD_VERSION = 2
_OLD = "code object version 2: its YAML metadata is not supported; spills, block and arguments are unknown"
_NO_METADATA = "it has no metadata: register counts are those allocated at launch; spills, block, arguments are unknown"
# Code object version -> n, where the metadata's version is [1, n].
_METADATA_MINORS = {3: 0, 4: 1, 5: 2, 6: 2}
_EXACT = {
    "wave_size": (".wavefront_size", "lanes per wave"),
    "lds_bytes": (".group_segment_fixed_size", "bytes of LDS"),
    "scratch_bytes": (".private_segment_fixed_size", "bytes of scratch per lane"),
    "kernarg_bytes": (".kernarg_segment_size", "bytes of arguments"),
}


def _object_contradictions(elf: Elf, metadata: dict[str, Any] | None, container_target: str) -> list[str]:
    """Return the contradictions between the ELF header, the metadata and the container.

    Args:
        elf: The code object.
        metadata: Its metadata, if any.
        container_target: Its target according to an offload bundle; "" without one.
    """
    problems = []
    target, version = target_of_flags(elf), code_object_version(elf)
    named = metadata.get("amdhsa.target") if metadata else None
    if isinstance(named, str) and target and target_of_triple(named) != target:
        problems.append(f"its ELF header says {target}, its metadata {shown(named, 80)}")
    if not target:
        problems.append(f"its ELF header has an unknown processor number {elf.flags & 0xFF:#x}")
    if container_target and target and not _fits(container_target, target):
        problems.append(f"its bundle says {container_target}, its ELF header says {target}")
    said = metadata.get("amdhsa.version") if metadata else None
    # Hand-written metadata often has an older version than the file, which is harmless.
    fine = [[1, minor] for minor in range(_METADATA_MINORS.get(version, -1) + 1)]
    if said is not None and fine and said not in fine:
        problems.append(f"its ELF header says code object version {version}, its metadata {shown(repr(said), 40)}")
    return problems


def _fits(container: str, target: str) -> bool:
    """Return whether both are the same processor, and no feature is on in one and off in the other."""
    mine, other = container.split(":"), target.split(":")
    opposite = {feature[:-1] + ("-" if feature[-1] == "+" else "+") for feature in mine[1:]}
    return mine[0] == other[0] and not opposite & set(other[1:])


def _kernel_contradictions(
    file_type: int, symbols: Mapping[str, Symbol], entry: dict[str, Any], kernel: KernelInfo, processor: str
) -> list[str]:
    """Return the contradictions between a kernel's metadata, descriptor and symbol.

    Args:
        file_type: Type of the ELF file.
        symbols: Its symbols.
        entry: The kernel's metadata.
        kernel: The kernel as read from both.
        processor: Its target processor.
    """
    name, descriptor = shown(kernel.symbol), kernel.descriptor
    if descriptor is None:
        return [f"{name}: it is in the metadata, but has no descriptor {shown(descriptor_symbol(entry))}"]
    problems = []
    for attribute, (key, what) in _EXACT.items():
        said, has = entry.get(key), getattr(descriptor, attribute)
        # Hand-written kernels omit the argument size from the descriptor, where nothing reads it.
        unsaid = attribute == "kernarg_bytes" and has == 0
        decodable = attribute != "wave_size" or gfx_major(processor)
        if said is not None and said != has and not unsaid and decodable:
            problems.append(f"{name}: the metadata says {said} {what}, the descriptor {has}")
    if gfx_major(processor):
        problems += [f"{name}: {text}" for text in _registers(kernel)]
    mode = entry.get(".workgroup_processor_mode")
    if mode is not None and descriptor.wgp_mode is not None and bool(mode) != descriptor.wgp_mode:
        problems.append(f"{name}: metadata and descriptor disagree on WGP mode")
    if file_type != RELOCATABLE:
        problems += _entry_point(symbols, entry, descriptor, name)
    return problems


def _registers(kernel: KernelInfo) -> list[str]:
    """Return problems of too few allocated registers; more than are used is fine, to limit the waves."""
    descriptor, problems = kernel.descriptor, []
    assert descriptor is not None
    for said, has, what in (
        (kernel.vgprs, descriptor.vgprs, "VGPRs"),
        (kernel.sgprs if descriptor.sgprs else 0, descriptor.sgprs, "SGPRs"),
        (
            descriptor.accum_offset + kernel.agprs if kernel.agprs and descriptor.accum_offset else 0,
            descriptor.vgprs,
            "VGPRs with AGPRs from the accumulation offset on",
        ),
    ):
        if said > has:
            problems.append(f"it uses {said} {what}, and its descriptor allocates {has}")
    return problems


def _entry_point(
    symbols: Mapping[str, Symbol], entry: dict[str, Any], descriptor: KernelDescriptor, name: str
) -> list[str]:
    """Compare the descriptor's entry point with the function's symbol, if the file has both."""
    function, place = symbols.get(entry[".name"]), symbols.get(descriptor_symbol(entry))
    if function is None or place is None or place.value + descriptor.entry == function.value:
        return []
    return [
        f"{name}: its descriptor starts it at {place.value + descriptor.entry:#x}, its symbol is at {function.value:#x}"
    ]
