"""Fields of many CSV lines at once, by the positions of their delimiters, without splitting every line.

rocprofv3 repeats a dispatch's long description in the line of each of its counters. Of most lines only three fields
are new: the dispatch's number, the counter and its value. They stand at a fixed count of delimiters from the left or
right end of the line, so that a kernel name with delimiters in it is in nobody's way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.parts import categorical

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONGEST_NAME = 64
_KEEP = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # the first bytes of a little-endian word
_MIX = np.uint64(0x9E3779B97F4A7C15)
_EXACT = 9_000_000_000  # below it, value * 10^6 is exact in a float64


class IrregularError(ValueError):
    """Raised when a piece of CSV is not as regular as a fast way to read it needs; a slower way is tried."""


class Lines:
    """The lines of a piece of CSV; every method takes and returns arrays over the lines.

    Raises:
        IrregularError: When a line has less than so many fields, or the last line has no end.
    """

    def __init__(self, data: bytes, delimiter: str, fields: int) -> None:
        self._bytes = data
        self._text = np.frombuffer(data, np.uint8)
        self.ends = np.flatnonzero(self._text == ord("\n"))
        self.begins = np.concatenate([[0], self.ends[:-1] + 1])
        self._commas = np.flatnonzero(self._text == ord(delimiter))
        self._after = np.searchsorted(self._commas, self.ends)  # delimiters up to the end of each line
        self._before = np.concatenate([[0], self._after[:-1]])
        # A line may have more delimiters than fields: in a name.
        if not data.endswith(b"\n") or (self._after - self._before < fields - 1).any():
            raise IrregularError("fields")

    def from_left(self, position: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return where the field at this position begins and ends, counted from the begins of the lines."""
        begin = self._commas[self._before + position - 1] + 1 if position else self.begins
        return begin, self._commas[self._before + position]

    def from_right(self, following: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return where the field that so many others follow begins and ends."""
        end = self._commas[self._after - following] if following else self.ends
        return self._commas[self._after - following - 1] + 1, end

    def integers(self, begin: NDArray[Any], end: NDArray[Any]) -> NDArray[np.int64]:
        """Return fields of digits as numbers.

        Raises:
            IrregularError: When one of them is something else.
        """
        width = end - begin
        if width.min() < 1 or width.max() > 18:
            raise IrregularError("integer")
        shortest = int(width.min())
        value = np.zeros(len(begin), np.int64)
        for place in range(int(width.max())):
            digit = self._text[begin + place] - np.uint8(ord("0"))  # what is below "0" becomes large
            if place < shortest:
                if digit.max() > 9:
                    raise IrregularError("digit")
                value *= 10
                value += digit
                continue
            inside = place < width
            if (digit[inside] > 9).any():
                raise IrregularError("digit")
            value = np.where(inside, value * 10 + digit, value)
        return value

    def decimals(self, begin: NDArray[Any], end: NDArray[Any]) -> NDArray[np.float64]:
        """Return fields as floats; those with six decimals, as rocprofv3 writes all from 1 on, are read together.

        Raises:
            ValueError: When a field is no finite number.
        """
        value = np.empty(len(begin), np.float64)
        usual = (end - begin >= 8) & (self._text[np.maximum(end - 7, 0)] == ord("."))
        if usual.any():
            try:
                whole, part = self.integers(begin[usual], end[usual] - 7), self.integers(end[usual] - 6, end[usual])
                exact = whole < _EXACT
                value[usual] = np.where(exact, (np.where(exact, whole, 0) * 1_000_000 + part) / 1e6, whole + part / 1e6)
            except IrregularError:  # one is negative, or has an exponent
                usual[:] = False
        rest = np.flatnonzero(~usual)
        pairs = zip(begin[rest].tolist(), end[rest].tolist(), strict=True)
        value[rest] = [float(self._bytes[a:b]) for a, b in pairs]
        if not np.isfinite(value).all():
            raise IrregularError("infinite")
        return value

    def names(self, begin: NDArray[Any], end: NDArray[Any]) -> Any:
        """Return short fields of text without their quotes, as a categorical.

        Raises:
            IrregularError: When one of them is long, or quoted in one line and not in another.
        """
        length = end - begin
        if length.min() < 0 or length.max() > _LONGEST_NAME:
            raise IrregularError("name")
        last = len(self._text) - 8
        if last < 0 or (begin + (length + 7) // 8 * 8 - 8 > last).any():
            raise IrregularError("end")
        words = np.ndarray((last + 1,), "<u8", self._text, strides=(1,))  # a word at every byte
        held = []
        key = np.zeros(len(begin), np.uint64)
        for offset in range(0, int(length.max()), 8):
            word = words[np.minimum(begin + offset, last)] & _KEEP[np.clip(length - offset, 0, 8)]
            held.append(word)
            key = (key ^ word) * _MIX
            key ^= key >> np.uint64(29)
        codes, unique = pd.factorize(key)
        first = np.empty(len(unique), np.intp)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        if not all((word == word[first][codes]).all() for word in held):  # two names with one key
            raise IrregularError("name")
        pairs = zip(begin[first].tolist(), end[first].tolist(), strict=True)
        texts = [self._bytes[a:b].decode(errors="replace").strip('"') for a, b in pairs]
        if len(set(texts)) < len(texts):
            raise IrregularError("quotes")
        return categorical(codes, texts)

    def pick(self, lines: NDArray[Any]) -> bytes:
        """Return these lines."""
        pairs = zip(self.begins[lines].tolist(), (self.ends[lines] + 1).tolist(), strict=True)
        text = memoryview(self._bytes)
        return b"".join([text[a:b] for a, b in pairs])
