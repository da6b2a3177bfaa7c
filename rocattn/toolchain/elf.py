"""Read the parts of a 64-bit little-endian ELF file needed for code objects; every offset and size is checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from rocattn.errors import ToolchainError

AMDGPU = 224  # e_machine
RELOCATABLE = 1  # e_type
_MAGIC = b"\x7fELF\x02\x01"
_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES, _NOTE_BYTES = 64, 64, 24, 12
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 2, 7, 8, 11
_SHN_FIRST_RESERVED = 0xFF00


def is_elf(data: bytes) -> bool:
    """Return whether bytes begin with the complete header of a 64-bit little-endian ELF file."""
    return data[:6] == _MAGIC and len(data) >= _HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the section table; offset and bytes locate its content in the file."""

    index: int
    name: int
    type: int
    address: int
    offset: int
    bytes: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol-table entry for something the file defines; ``bytes`` is 0 if its size is not plausible."""

    name: str
    type: int
    section: int
    value: int
    bytes: int


@dataclass(frozen=True)
class Elf:
    """An ELF file.

    Attributes:
        data: The file.
        type, machine, flags: From its header.
        os_abi, abi_version: From its identification.
        sections: Its section table.
    """

    data: bytes
    type: int
    machine: int
    flags: int
    os_abi: int
    abi_version: int
    sections: tuple[Section, ...]
    names_section: int

    @classmethod
    def read(cls, data: bytes) -> Elf:
        """Read the header and the section table.

        Raises:
            ToolchainError: When the bytes are not such a file, or the table is not within it.
        """
        if not is_elf(data):
            raise ToolchainError("this is no 64-bit little-endian ELF file, or it is cut short")
        kind, machine = struct.unpack_from("<HH", data, 16)
        (table,) = struct.unpack_from("<Q", data, 40)
        (flags,) = struct.unpack_from("<I", data, 48)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if table and size != _SECTION_BYTES:
            raise _damaged(f"its section headers have {size} bytes, not {_SECTION_BYTES}")
        if table and not count:  # more sections than the header's field can state: the first one's size has the number
            _check(data, table, _SECTION_BYTES, "the section table")
            (count,) = struct.unpack_from("<Q", data, table + 32)
        if table:
            _check(data, table, count * _SECTION_BYTES, "the section table")
        sections = []
        for index in range(count if table else 0):
            name, form, _, address, offset, length, link = struct.unpack_from(
                "<IIQQQQI", data, table + index * _SECTION_BYTES
            )
            sections.append(Section(index, name, form, address, offset, length, link))
        return cls(data, kind, machine, flags, data[7], data[8], tuple(sections), names)

    def content(self, section: Section) -> bytes:
        """Return a section's bytes.

        Raises:
            ToolchainError: When it does not lie within the file.
        """
        if section.type == _SHT_NOBITS:
            return b""
        _check(self.data, section.offset, section.bytes, f"section {section.index}")
        return self.data[section.offset : section.offset + section.bytes]

    def named(self, name: str) -> tuple[Section, ...]:
        """Return the sections with a name.

        Raises:
            ToolchainError: When the names do not lie within the file.
        """
        if self.names_section >= len(self.sections):
            return ()
        names, wanted = self.content(self.sections[self.names_section]), name.encode() + b"\0"
        return tuple(each for each in self.sections if names[each.name : each.name + len(wanted)] == wanted)

    @cached_property
    def notes(self) -> tuple[tuple[bytes, int, bytes], ...]:
        """Its notes: owner, type and content.

        Raises:
            ToolchainError: When one does not lie within its section.
        """
        notes = []
        for section in self._of_type(_SHT_NOTE):
            content, at = self.content(section), 0
            while at + _NOTE_BYTES <= len(content):
                name, size, kind = struct.unpack_from("<III", content, at)
                text = at + _NOTE_BYTES + _to_words(name)
                if text + size > len(content):
                    raise _damaged(f"a note of section {section.index} is longer than the section")
                notes.append((content[at + _NOTE_BYTES : at + _NOTE_BYTES + name], kind, content[text : text + size]))
                at = text + _to_words(size)
        return tuple(notes)

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """Its named, defined symbols; those of the dynamic table before others with the same name.

        Raises:
            ToolchainError: When a table or a name does not lie within the file.
        """
        symbols: dict[str, Symbol] = {}
        spent = 0
        for table in (*self._of_type(_SHT_SYMTAB), *self._of_type(_SHT_DYNSYM)):
            if table.link >= len(self.sections):
                raise _damaged(f"the names of symbol table {table.index} are in section {table.link}, which is not")
            names, entries = self.content(self.sections[table.link]), self.content(table)
            for at in range(0, len(entries) - _SYMBOL_BYTES + 1, _SYMBOL_BYTES):
                name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", entries, at)
                if not name or not 0 < section < min(len(self.sections), _SHN_FIRST_RESERVED):
                    continue
                end = names.find(b"\0", name)
                if end < 0:
                    raise _damaged(f"a name of symbol table {table.index} has no end")
                spent += end - name
                if spent > 4 * len(self.data):  # otherwise many symbols sharing one long name would take too long
                    raise _damaged("its symbols' names are longer than the file")
                text = names[name:end].decode(errors="backslashreplace")
                symbols[text] = Symbol(text, info & 0xF, section, value, size if size <= len(self.data) else 0)
        return symbols

    def at_symbol(self, symbol: Symbol, size: int) -> bytes:
        """Return the bytes that begin at a symbol.

        Raises:
            ToolchainError: When they do not lie within its section.
        """
        section = self.sections[symbol.section]
        start = symbol.value - (0 if self.type == RELOCATABLE else section.address)
        if start < 0 or start + size > section.bytes or section.type == _SHT_NOBITS:
            raise _damaged(f"symbol {shown(symbol.name)} does not lie within its section")
        _check(self.data, section.offset + start, size, f"symbol {shown(symbol.name)}")
        return self.data[section.offset + start : section.offset + start + size]

    def _of_type(self, kind: int) -> list[Section]:
        """Return the sections of a type, checked not to exceed the file in total: hostile ones overlap."""
        sections = [section for section in self.sections if section.type == kind]
        if sum(section.bytes for section in sections) > len(self.data):
            raise _damaged("its sections are larger than the file")
        return sections


def shown(name: str, limit: int = 200) -> str:
    """Return a name from a file in a form suitable for a line of text: printable, and not too long."""
    text = name if name.isprintable() else name.encode("unicode_escape").decode()
    return text if len(text) <= limit else f"{text[:limit]}…"


def _to_words(size: int) -> int:
    return (size + 3) // 4 * 4


def _check(data: bytes, start: int, size: int, what: str) -> None:
    if start + size > len(data):
        raise _damaged(f"{what} ends at byte {start + size} of {len(data)}")


def _damaged(text: str) -> ToolchainError:
    return ToolchainError(f"the file is damaged: {text}")
