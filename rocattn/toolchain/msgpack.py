"""Decoding MessagePack as it occurs in code objects' metadata, so that the library needs no other package for it.

The input may be hostile: nesting, the number of values and every length are bounded.
"""

from __future__ import annotations

import struct
from typing import Any

MAX_DEPTH, MAX_VALUES = 32, 4_000_000
_NUMBERS = {  # code -> struct format
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_COUNTED = {  # code -> what follows, and the struct format of its count
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_SHORT = ((0x90, "map", 0x0F), (0xA0, "list", 0x0F), (0xC0, "text", 0x1F))  # below, what, bits of the count


def decode(data: bytes) -> Any:
    """Return the value at the beginning of the bytes.

    Raises:
        ValueError: When they are no MessagePack, or nested or long beyond what any code object needs.
    """
    try:
        return _Decoder(data).value(0)
    except (struct.error, IndexError) as error:
        raise ValueError("it ends in the middle of a value") from error
    except TypeError as error:
        raise ValueError(f"a list or a map is the key of a map: {error}") from error


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values = 0

    def value(self, depth: int) -> Any:
        """Return the next value."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        code = self._data[self._at]
        self._at += 1
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 256
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code in _COUNTED:
            what, form = _COUNTED[code]
            return self._counted(what, self._number(form), depth)
        for below, what, mask in _SHORT:
            if code < below:
                return self._counted(what, code & mask, depth)
        raise ValueError(f"unexpected MessagePack type {code:#x}")

    def _counted(self, what: str, count: int, depth: int) -> Any:
        if what == "list":
            return [self.value(depth + 1) for _ in range(count)]
        if what == "map":
            return self._map(count, depth)
        found = self._bytes(count)
        return found.decode() if what == "text" else found

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise IndexError
        self._at += count
        return found

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        values = {}
        for _ in range(count):
            key = self.value(depth + 1)
            values[key] = self.value(depth + 1)
        return values
