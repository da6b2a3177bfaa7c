"""Holding what a code object's metadata says against its kernel descriptors, its ELF header and its container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocattn.toolchain.code_object import code_object_version, descriptor_symbol, target_of_flags, target_of_triple
from rocattn.toolchain.descriptor import gfx_major
from rocattn.toolchain.elf import RELOCATABLE, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocattn.toolchain.code_object import KernelInfo
    from rocattn.toolchain.descriptor import KernelDescriptor
    from rocattn.toolchain.elf import Elf, Symbol

# The metadata's own version is [1, n] with this n for each version of the format.
_METADATA_MINORS = {3: 0, 4: 1, 5: 2, 6: 2}
_EXACT = {
    "wave_size": (".wavefront_size", "lanes a wave"),
    "lds_bytes": (".group_segment_fixed_size", "bytes of LDS"),
    "scratch_bytes": (".private_segment_fixed_size", "bytes of scratch a lane"),
    "kernarg_bytes": (".kernarg_segment_size", "bytes of arguments"),
}


def object_contradictions(elf: Elf, metadata: dict[str, Any] | None, container_target: str) -> list[str]:
    """Return what the ELF header, the metadata and the container do not agree on.

    Args:
        elf: The code object.
        metadata: Its metadata, if any.
        container_target: What an offload bundle says that it is for; "" if nothing does.
    """
    found = []
    target, version = target_of_flags(elf), code_object_version(elf)
    named = metadata.get("amdhsa.target") if metadata else None
    if isinstance(named, str) and target and target_of_triple(named) != target:
        found.append(f"its ELF header says {target}, its metadata {shown(named, 80)}")
    if not target:
        found.append(f"its ELF header has processor number {elf.flags & 0xFF:#x}, which is not known here")
    if container_target and target and not _fits(container_target, target):
        found.append(f"its bundle says that it is for {container_target}, its ELF header says {target}")
    said = metadata.get("amdhsa.version") if metadata else None
    # Hand-written metadata often says an older version than the file has: nothing hangs on that.
    fine = [[1, minor] for minor in range(_METADATA_MINORS.get(version, -1) + 1)]
    if said is not None and fine and said not in fine:
        found.append(f"its ELF header says code object version {version}, its metadata {shown(repr(said), 40)}")
    return found


def _fits(container: str, target: str) -> bool:
    """Whether both name the same processor, and no feature is on in one and off in the other."""
    one, other = container.split(":"), target.split(":")
    opposite = {feature[:-1] + ("-" if feature[-1] == "+" else "+") for feature in one[1:]}
    return one[0] == other[0] and not opposite & set(other[1:])


def kernel_contradictions(
    file_type: int, symbols: Mapping[str, Symbol], entry: dict[str, Any], kernel: KernelInfo, processor: str
) -> list[str]:
    """Return what a kernel's metadata, descriptor and symbol do not agree on.

    Args:
        file_type: Of the ELF file.
        symbols: Its symbols.
        entry: The kernel's metadata.
        kernel: What was read of both.
        processor: What it is for.
    """
    name, descriptor = shown(kernel.symbol), kernel.descriptor
    if descriptor is None:
        return [f"{name}: the metadata names it, but there is no descriptor {shown(descriptor_symbol(entry))}"]
    found = []
    for attribute, (key, what) in _EXACT.items():
        said, has = entry.get(key), getattr(descriptor, attribute)
        # Hand-written kernels leave the size of the arguments out of the descriptor: nothing reads it there.
        unsaid = attribute == "kernarg_bytes" and has == 0
        decodable = attribute != "wave_size" or gfx_major(processor)
        if said is not None and said != has and not unsaid and decodable:
            found.append(f"{name}: the metadata says {said} {what}, the descriptor {has}")
    if gfx_major(processor):
        found += [f"{name}: {text}" for text in _registers(kernel)]
    mode = entry.get(".workgroup_processor_mode")
    if mode is not None and descriptor.wgp_mode is not None and bool(mode) != descriptor.wgp_mode:
        found.append(f"{name}: metadata and descriptor do not agree on WGP mode")
    if file_type != RELOCATABLE:
        found += _entry_point(symbols, entry, descriptor, name)
    return found


def _registers(kernel: KernelInfo) -> list[str]:
    """Return how the registers that a launch allocates are too few; more than are used is fine (to limit the waves)."""
    descriptor, found = kernel.descriptor, []
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
            found.append(f"it uses {said} {what}, and its descriptor allocates {has}")
    return found


def _entry_point(
    symbols: Mapping[str, Symbol], entry: dict[str, Any], descriptor: KernelDescriptor, name: str
) -> list[str]:
    """Hold the descriptor's entry against the function's symbol, where the file has both."""
    function, place = symbols.get(entry[".name"]), symbols.get(descriptor_symbol(entry))
    if function is None or place is None or place.value + descriptor.entry == function.value:
        return []
    return [
        f"{name}: its descriptor starts it at {place.value + descriptor.entry:#x}, its symbol is at {function.value:#x}"
    ]
