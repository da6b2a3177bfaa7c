"""What the flags of a code object's ELF header say: its processor and features (LLVM, "User Guide for AMDGPU Backend").

The numbers are those of LLVM's ``EF_AMDGPU_MACH_*`` and ``EF_AMDGPU_FEATURE_*`` (llvm/BinaryFormat/ELF.h).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocattn.toolchain.elf import Elf

_OS_HSA, _OS_PAL, _OS_MESA = 64, 65, 66
OTHER_RUNTIMES = {_OS_PAL: "PAL (graphics drivers)", _OS_MESA: "Mesa"}
_MACHINES = {
    0x20: "gfx600", 0x21: "gfx601", 0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703", 0x26: "gfx704",
    0x28: "gfx801", 0x29: "gfx802", 0x2A: "gfx803", 0x2B: "gfx810", 0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904",
    0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c", 0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012",
    0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3A: "gfx602", 0x3B: "gfx705", 0x3C: "gfx805",
    0x3D: "gfx1035", 0x3E: "gfx1034", 0x3F: "gfx90a", 0x40: "gfx940", 0x41: "gfx1100", 0x42: "gfx1013",
    0x43: "gfx1150", 0x44: "gfx1103", 0x45: "gfx1036", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200",
    0x49: "gfx1250", 0x4A: "gfx1151", 0x4B: "gfx941", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950", 0x50: "gfx1310",
    0x51: "gfx9-generic", 0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x55: "gfx1152",
    0x58: "gfx1153", 0x59: "gfx12-generic", 0x5A: "gfx1251", 0x5B: "gfx12-5-generic", 0x5C: "gfx1172", 0x5D: "gfx1170",
    0x5E: "gfx1171", 0x5F: "gfx9-4-generic",
}  # fmt: skip
_SETTINGS = {2: "-", 3: "+"}  # 0: the processor has no such feature; 1: code for either setting
# LLVM writes "amdgcn-amd-amdhsa--gfx942", since 2026 also "amdgpu9.42-amd-amdhsa-unknown-gfx942".
_TRIPLE = re.compile(r"amdg(?:cn|pu[0-9a-z.]*)-amd-amdhsa-[a-z]*-(gfx.+)")


def code_object_version(elf: Elf) -> int:
    """Return the version of the code-object format, 2 to 6 at this time; 0 for another runtime's."""
    return elf.abi_version + 2 if elf.os_abi == _OS_HSA else 0


def target_of_flags(elf: Elf) -> str:
    """Return the target of an ELF header: "gfx90a:sramecc+:xnack-"; "" if its processor is not known here."""
    processor = _MACHINES.get(elf.flags & 0xFF, "")
    if not processor or code_object_version(elf) < 3:
        return processor
    if code_object_version(elf) == 3:  # one bit a feature: on, or off or not there
        settings = [("sramecc", 3 * (elf.flags >> 9 & 1)), ("xnack", 3 * (elf.flags >> 8 & 1))]
    else:
        settings = [("sramecc", elf.flags >> 10 & 3), ("xnack", elf.flags >> 8 & 3)]
    return processor + "".join(f":{name}{_SETTINGS[value]}" for name, value in settings if value in _SETTINGS)


def target_of_triple(text: str) -> str:
    """Return the target of "amdgcn-amd-amdhsa--gfx90a:xnack-"; "" if it is another triple."""
    found = _TRIPLE.fullmatch(text)
    return found[1] if found else ""
