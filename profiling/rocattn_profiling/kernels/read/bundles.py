"""Extract code objects from files: offload bundles, programs and libraries with fat binaries, archives.

Formats: "Clang Offload Bundler" in clang's documentation (compressed bundles: llvm/Object/OffloadBundle.h, versions
1 to 3, zlib and zstd), llvm/Object/OffloadBinary.h (``.llvm.offloading``), ar.
Files are untrusted: nothing may overlap, and the unpacked size is bounded.
"""

from __future__ import annotations

import importlib
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rocattn.errors import ToolchainError
from rocattn.installed import install_command
from rocattn.toolchain.code_object import is_code_object
from rocattn.toolchain.elf import Elf, is_elf, shown

_BUNDLE, _COMPRESSED, _OFFLOAD = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"\x10\xff\x10\xad"
_ARCHIVE, _THIN_ARCHIVE = b"!<arch>\n", b"!<thin>\n"
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_FAT_SECTIONS = (".hip_fatbin", ".llvm.offloading")
_MAX_ENTRIES = 1 << 16
_TARGET = re.compile(r"gfx[0-9][0-9a-z-]*(?::[a-z]+[+-])*$")
_CUDA = 190  # e_machine; AMD's is 224
_DEVICE_ELF = re.compile(rb"\x7fELF\x02\x01\x01.{11}\xe0\0", re.DOTALL)
_TABLES = struct.Struct("<32xQQ6xHHHH")  # ELF header: place and number of program and section headers
_NOT_ZERO = re.compile(rb"[^\0]")
MAX_UNPACKED_BYTES = 512 << 20
_MAX_RATIO, _FREE_BYTES = 256, 1 << 20  # code for many targets compresses by 5 to 50, a bomb by 1000
_ZLIB, _ZSTD = 0, 1
# After magic, version and method: total size (not in version 1), unpacked size, hash.
_HEADERS = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard")


class NothingForGpusError(ToolchainError):
    """Raised when a file cannot contain code objects, or is intact and contains none."""


@dataclass(slots=True)
class Budget:
    """How many bytes may still be unpacked from one file."""

    left: int = MAX_UNPACKED_BYTES

    def spend(self, size: int) -> None:
        """Subtract bytes.

        Raises:
            ToolchainError: When too few are left.
        """
        if size > self.left:
            raise ToolchainError(
                f"its compressed bundles unpack to more than {MAX_UNPACKED_BYTES >> 20} MiB: unpack the one that you "
                "want with clang-offload-bundler --unbundle"
            )
        self.left -= size


@dataclass(frozen=True, slots=True)
class EmbeddedObject:
    """A piece of a file that is, or should be, a code object.

    Attributes:
        where: Its path in the file: "", "[gfx90a:xnack-]", "(member.o)[gfx942]".
        target: Its target according to the container; "" if not stated.
        data: Its bytes.
        problem: Why it is not a code object; "" if it is one.
    """

    where: str
    target: str
    data: bytes
    problem: str = ""


def is_container(head: bytes) -> bool:
    """Return whether a file with this beginning may contain code objects."""
    return head.startswith((b"\x7fELF", _BUNDLE, _COMPRESSED, _OFFLOAD, _ARCHIVE))


def parts_of(data: bytes) -> Iterator[EmbeddedObject]:
    """Yield the code objects of a file, and pieces that should be some, in file order.

    Raises:
        NothingForGpusError: When the file cannot contain code objects, or contains none.
        ToolchainError: On reaching damaged data.
    """
    yield from _parts(data, "", Budget(), in_archive=False)


def _parts(data: bytes, where: str, budget: Budget, *, in_archive: bool) -> Iterator[EmbeddedObject]:
    if is_code_object(data) or data.startswith(_BITCODE):
        yield EmbeddedObject(where, "", data, _no_code_object(data))
    elif data.startswith((_BUNDLE, _COMPRESSED, _OFFLOAD)):
        yield from _bundles(data, where, budget)
    elif is_elf(data):
        yield from _fat_sections(data, where, budget)
    elif data.startswith(_ARCHIVE) and not in_archive:
        yield from _archive(data, budget)
    else:
        raise NothingForGpusError(_no_code_object(data))


def _no_code_object(data: bytes) -> str:
    """Return why bytes are not a readable code object; "" if they are."""
    if is_code_object(data):
        return ""
    if not data:
        return "it is empty"
    return next((reason for magic, reason in _REASONS if data.startswith(magic)), _NOTHING_KNOWN)


_NOTHING_KNOWN = "it is not an AMD GPU code object, offload bundle, program, library or archive"
_REASONS = (
    (_BITCODE, "it is LLVM bitcode, not machine code (-fgpu-rdc or -flto): link it first"),
    (_THIN_ARCHIVE, "it is a thin archive, which only names its members: give those files"),
    (b"\x7fELF", "it is not a 64-bit little-endian ELF file, or it is truncated"),
    (b"PK\x03\x04", "it is a zip archive: unpack it, and give the files in it"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it, and give its content"),
    (b"\x03\x02\x23\x07", "it is SPIR-V, which the driver compiles: compile it for a GPU (--offload-arch=gfx942)"),
    (b"\x50\xed\x55\xba", "it is a fat binary for NVIDIA GPUs"),
    (b"MZ", "it is a Windows program: extract its code objects with llvm-objdump --offloading"),
)


def _bundles(data: bytes, where: str, budget: Budget) -> Iterator[EmbeddedObject]:
    """Yield the parts of consecutive bundles with zeros in between, as in a section .hip_fatbin."""
    at = 0
    view = memoryview(data)
    while at < len(data):
        if data.startswith(_BUNDLE, at):
            end, parts = _plain(view[at:], where)
        elif data.startswith(_COMPRESSED, at):
            end, content = _unpacked(view[at:], budget)
            if not content.startswith(_BUNDLE):
                raise ToolchainError("the content of its compressed bundle is not a bundle")
            _, parts = _plain(memoryview(content), where)
        elif data.startswith(_OFFLOAD, at):
            end, parts = _offload_binary(view[at:], where)
        else:
            raise ToolchainError(f"there is no offload bundle at byte {at}")
        yield from parts
        more = _NOT_ZERO.search(data, at + end)
        at = more.start() if more else len(data)


def _plain(data: memoryview, where: str) -> tuple[int, list[EmbeddedObject]]:
    """Return the length of a bundle, and its device code."""
    parts: list[EmbeddedObject] = []
    try:
        (count,) = struct.unpack_from("<Q", data, len(_BUNDLE))
        at = end = len(_BUNDLE) + 8
        total = 0
        for _ in range(_counted(count)):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            entry = bytes(_within(data, at + 24, length, "an entry's name")).decode(errors="backslashreplace")
            at += 24 + length
            content = _within(data, offset, size, shown(entry) or "an entry")
            total += size
            end = max(at, end, offset + size)
            if total > len(data):
                raise ToolchainError("its bundle's entries overlap")
            if size and not entry.startswith("host"):
                parts.append(_part(entry, bytes(content), where))
    except struct.error as error:
        raise ToolchainError("its bundle is truncated in the table of entries") from error
    return end, parts


def _offload_binary(data: memoryview, where: str) -> tuple[int, list[EmbeddedObject]]:
    """Return the length of an offload binary of version 1, and its image."""
    try:
        version, size, entry_at = struct.unpack_from("<IQQ", data, len(_OFFLOAD))
        if version != 1:
            raise ToolchainError(f"its offload binary has version {version}; only 1 is supported")
        whole = _within(data, 0, size, "the offload binary")
        strings, count, image, image_bytes = struct.unpack_from("<QQQQ", whole, entry_at + 8)
        texts = {}
        for index in range(_counted(count)):
            key, value = struct.unpack_from("<QQ", whole, strings + 16 * index)
            texts[_c_string(whole, key)] = _c_string(whole, value)
    except struct.error as error:
        raise ToolchainError("its offload binary is truncated") from error
    target = texts.get(b"arch", b"").decode(errors="backslashreplace")
    content = bytes(_within(whole, image, image_bytes, "the image of an offload binary"))
    amd = texts.get(b"triple", b"").startswith(b"amdgcn")
    return max(size, 1), [_part(target, content, where)] if amd else []


def _part(entry: str, data: bytes, where: str) -> EmbeddedObject:
    """Return a part by its entry's name: "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-"."""
    match = _TARGET.search(entry)
    target = match[0] if match else ""
    return EmbeddedObject(f"{where}[{target or shown(entry, 80)}]", target, data, _no_code_object(data))


def _counted(count: int) -> int:
    if count > _MAX_ENTRIES:
        raise ToolchainError(f"its bundle claims to have {count} entries")
    return count


def _within(data: memoryview, start: int, size: int, what: str) -> memoryview:
    if start + size > len(data):
        raise ToolchainError(f"its bundle is truncated: {what} ends at byte {start + size} of {len(data)}")
    return data[start : start + size]


def _c_string(data: memoryview, start: int, limit: int = 256) -> bytes:
    return bytes(data[start : start + limit]).partition(b"\0")[0]


def _fat_sections(data: bytes, where: str, budget: Budget) -> Iterator[EmbeddedObject]:
    """Yield the device code of a host program, library or object file."""
    if int.from_bytes(data[18:20], "little") == _CUDA:
        raise NothingForGpusError("it is a cubin, machine code for NVIDIA GPUs")
    elf = Elf.read(data)
    sections = [section for name in _FAT_SECTIONS for section in elf.named(name)]
    if sum(section.bytes for section in sections) > len(data):
        raise ToolchainError("it is damaged: its sections overlap")
    for section in sections:
        yield from _bundles(elf.content(section), where, budget)
    embedded = list(_embedded(data, where, [(section.offset, section.offset + section.bytes) for section in sections]))
    yield from embedded
    if not sections and not embedded:
        if b"\0" + _BUNDLE + b"hip" in data:  # a section's name
            raise ToolchainError("its device code is LLVM bitcode, not machine code (-fgpu-rdc): link it first")
        raise NothingForGpusError("it is a program or library without code for AMD GPUs, in .hip_fatbin or elsewhere")


def _embedded(data: bytes, where: str, passed: Sequence[tuple[int, int]]) -> Iterator[EmbeddedObject]:
    """Yield code objects anywhere in a host file, as in Mojo's, except in the ranges that were read before."""
    behind = 0
    for match in _DEVICE_ELF.finditer(data):
        at = match.start()
        if at < behind or any(start <= at < end for start, end in passed):
            continue
        if at + _TABLES.size > len(data):
            return
        programs, sections, *sizes = _TABLES.unpack_from(data, at)
        program_bytes, program_count, section_bytes, section_count = sizes
        ends = [sections + section_bytes * section_count, _TABLES.size]
        ends += [
            sum(struct.unpack_from("<Q16xQ", data, at + programs + program_bytes * number + 8))
            for number in range(program_count)
            if at + programs + program_bytes * number + 40 <= len(data)
        ]
        behind = at + max(ends)
        if behind <= len(data):
            yield EmbeddedObject(f"{where}[at {at:#x}]", "", data[at:behind])


def _archive(data: bytes, budget: Budget) -> Iterator[EmbeddedObject]:
    """Yield the device code of an archive's members; most have none."""
    names, at = b"", len(_ARCHIVE)
    while at < len(data):
        header = data[at : at + 60]
        if len(header) < 60 or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise ToolchainError(f"the archive is damaged: there is no member at byte {at}")
        size = int(header[48:58])
        if at + 60 + size > len(data):
            raise ToolchainError(f"the archive is truncated: a member ends at byte {at + 60 + size} of {len(data)}")
        name, content = header[:16].rstrip(), data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name == b"//":
            names = content
        elif name not in {b"/", b"/SYM64/"}:
            name, content = _member(name, content, names)
            yield from _member_parts(content, f"({shown(name.decode(errors='backslashreplace'), 80)})", budget)


def _member(name: bytes, content: bytes, names: bytes) -> tuple[bytes, bytes]:
    """Return a member's name and content: long names are in a table (GNU) or before the content (BSD)."""
    if name.startswith(b"#1/") and name[3:].isdigit():
        length = int(name[3:])
        return content[:length].rstrip(b"\0"), content[length:]
    if name.startswith(b"/") and name[1:].isdigit():
        return names[int(name[1:]) :].partition(b"\n")[0].rstrip(b"/"), content
    return name.rstrip(b"/"), content


def _member_parts(content: bytes, where: str, budget: Budget) -> Iterator[EmbeddedObject]:
    try:
        yield from _parts(content, where, budget, in_archive=True)
    except NothingForGpusError as error:
        if not is_elf(content):
            yield EmbeddedObject(where, "", content, str(error))
    except ToolchainError as error:
        yield EmbeddedObject(where, "", content, str(error))


def _unpacked(data: memoryview, budget: Budget) -> tuple[int, bytes]:
    """Return the length of the compressed bundle at the start of the data, and the unpacked bundle.

    Raises:
        ToolchainError: When it is damaged, larger than the budget, or its compression is not supported.
    """
    try:
        version, method = struct.unpack_from("<HH", data, len(_COMPRESSED))
        if version not in _HEADERS:
            raise ToolchainError(f"its compressed bundle has version {version}; 1 to 3 are supported")
        header = _HEADERS[version]
        *whole, size, _ = header.unpack_from(data, len(_COMPRESSED) + 4)
    except struct.error as error:
        raise ToolchainError("its compressed bundle is truncated in the header") from error
    start = len(_COMPRESSED) + 4 + header.size
    end = whole[0] if whole else len(data)
    if not start <= end <= len(data):
        raise ToolchainError(f"its compressed bundle is truncated: it ends at byte {end} of {len(data)}")
    if size > _MAX_RATIO * (end - start) + _FREE_BYTES:
        raise ToolchainError(f"its compressed bundle claims to unpack {end - start} bytes to {size}: that is not code")
    budget.spend(size)
    content = bytes(data[start:end])
    if method == _ZLIB:
        unpacked, used = _unzip(content, size)
    elif method == _ZSTD:
        unpacked, used = _unzstd(content, size)
    else:
        raise ToolchainError(f"its compressed bundle has compression {method}; 0 (zlib) and 1 (zstd) are supported")
    if len(unpacked) != size:
        raise ToolchainError(f"its compressed bundle does not unpack to the {size} bytes stated in its header")
    return (end if whole else start + used), unpacked


def _unzip(data: bytes, size: int) -> tuple[bytes, int]:
    """Return at most one byte more than ``size``, and how many bytes of the data that took."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise ToolchainError(f"its compressed bundle is damaged: {error}") from error
    return unpacked, len(data) - len(unpacker.unused_data)


def _unzstd(data: bytes, size: int) -> tuple[bytes, int]:
    """Return at most one byte more than ``size``, and how many bytes of the data that took.

    Only version 1 bundles do not state their end; it is then at the next bundle's magic, as in clang.
    """
    module = zstd_module()
    if module is None:
        raise ToolchainError(
            f"its bundle is compressed with zstd, and no module here reads that: {install_command('zstandard')}, use "
            "Python 3.14, or unpack it with clang-offload-bundler --unbundle"
        )
    following = data.find(_COMPRESSED)
    try:
        if hasattr(module, "ZstdDecompressionReader"):  # zstandard, whose other calls have no size limit
            unpacked = module.ZstdDecompressor().stream_reader(data).read(size + 1)
        else:
            unpacked = module.ZstdDecompressor().decompress(data, size + 1)
    except (module.ZstdError, EOFError, MemoryError) as error:
        raise ToolchainError(f"its compressed bundle is damaged: {error}") from error
    return unpacked, len(data) if following < 0 else following


def zstd_module() -> Any:
    """Return the first installed module that reads zstd; None if there is none."""
    for name in _ZSTD_MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
