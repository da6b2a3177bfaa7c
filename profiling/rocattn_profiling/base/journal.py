"""Journals: one line per finished result, with a checksum, on disk before the next result is started.

An interrupted command continues from there when it is run again; its last line says how much was kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import DocumentError, append_line, decoded

T = TypeVar("T")
_CHECKSUM = re.compile(rb',"checksum":(\d+)}$')
_AGAIN = "the same command continues"


class DamagedError(DocumentError):
    """Raised for a complete line that was modified after it was written."""


def line_of(entry: msgspec.Struct) -> bytes:
    """Return a result as JSON, with a checksum of the rest as its last field."""
    text = msgspec.json.encode(entry)[:-1]
    return b'%b,"checksum":%d}' % (text, zlib.crc32(text))


def append_entry(path: Path, entry: msgspec.Struct) -> None:
    """Append a result with its checksum, and force it to disk.

    Raises:
        RocattnError: When it cannot be written; the message names the file and the cause.
    """
    append_line(path, line_of(entry))


def entry_of(line: bytes, kind: type[T]) -> T:
    """Return a line's result; lines from older versions have no checksum.

    Raises:
        DamagedError: Its checksum differs.
        DocumentError: It was truncated, or is of another type.
    """
    found = _CHECKSUM.search(line)
    if found is not None and found[1] != b"%d" % zlib.crc32(line[: found.start()]):
        raise DamagedError("it was changed after it was written: its checksum differs")
    return decoded(line, kind)


def entries(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield a file's results, skipping lines that a kill truncated or that are damaged.

    Raises:
        OSError: It cannot be read.
    """
    for line in path.read_bytes().splitlines():
        with suppress(DocumentError):
            yield entry_of(line, kind)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    key: str


class Journal(Generic[T]):
    """The finished results of a run, for the run that continues it.

    Attributes:
        path: The file.
        found: The results of an interrupted run; none if its key was different.

    Args:
        path: The file; one with another key is replaced.
        key: Equal for two runs if one may continue with the other's results.
        kind: The type of a result.
    """

    def __init__(self, path: Path, key: str, kind: type[T]) -> None:
        self.path = path
        self.found: list[T] = []
        try:
            head = next(entries(path, _Head), None) if path.exists() else None
            if head is not None and head.key == key:
                self.found = list(entries(path, kind))
            elif path.exists():
                path.unlink()
        except OSError as error:
            raise RocattnError(f"cannot read {path}: {error.strerror}") from error
        self._key = key

    def append(self, entry: Any) -> None:
        """Add a finished result; it is on disk when this returns."""
        if not self.path.exists():
            append_entry(self.path, _Head(self._key))
        append_entry(self.path, entry)

    def count(self) -> int:
        """Return the number of results in the file."""
        return sum(1 for _ in entries(self.path, dict)) - 1 if self.path.exists() else 0

    def finish(self) -> None:
        """Remove the file: the run has written its results."""
        self.path.unlink(missing_ok=True)


class _Keeping(NamedTuple):
    path: Path
    total: int | str
    counted: Callable[[], int]
    again: str


_kept: list[_Keeping] = []  # of the command that runs or was ended


@contextmanager
def keeping(path: Path, total: int | str, count: Callable[[], int], again: str = _AGAIN) -> Iterator[None]:
    """Register what `kept` reports if a signal ends this block.

    Args:
        path: The file or folder with finished results.
        total: The expected number of results, or "at most 40" if it is not known yet.
        count: Counts the existing results.
        again: How to continue.
    """
    _kept.append(_Keeping(path, total, count, again))
    try:
        yield
    except KeyboardInterrupt:
        raise  # `kept` counts when all has ended
    except BaseException:
        _kept.clear()
        raise
    _kept.clear()


def kept() -> str:
    """Describe what an interrupted command has kept on disk; "" if it measures nothing."""
    if not _kept:
        return ""
    last = _kept.pop()
    _kept.clear()
    number = last.counted()
    return f"kept {number} of {last.total} in {last.path}; {last.again}" if number else "nothing was finished yet"
