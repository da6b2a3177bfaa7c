"""Writing files: a reader never sees half of one, a kill loses at most the last line, and a lock keeps others out."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO


class HeldError(RocattnError):
    """Raised when another process holds a lock; one line that names the file."""


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading; a device or a pipe, which may never end, is refused without waiting for it.

    Raises:
        OSError: When it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def write_text(path: Path, text: str) -> Path:
    """Write a file atomically (temporary file, then rename), making its folder.

    Raises:
        RocattnError: When the folder or disk does not take it; one line that names the file and the cause.
    """
    return write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file of bytes atomically, as `write_text` does; a device or a pipe is written to, never replaced."""
    if path.is_dir():
        raise RocattnError(f"cannot write {path}: {os.strerror(errno.EISDIR)}")
    if _is_special(path):
        _write_through(path, data)
        return path
    return write_pieces(path, [data])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> Path:
    """Write a regular file atomically, as `write_text` does, of pieces that need not be in memory together."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the folder itself may be what cannot be written
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RocattnError(f"cannot write {path}: {error.strerror}") from error
        raise
    return path


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket. Links are not followed, but those in /dev are devices."""
    if path.absolute().parent.as_posix() == "/dev":
        return True
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def _write_through(path: Path, data: bytes) -> None:
    try:
        with path.open("ab") as file:  # /dev/stdout may be a file that others have written to
            file.write(data)
    except OSError as error:
        raise RocattnError(f"cannot write {path}: {error.strerror}") from error


def append_line(path: Path, line: bytes) -> None:
    """Append one line and force it to disk, making the folder.

    Raises:
        RocattnError: When the folder or disk does not take it; the message names the file and the cause.
    """
    line += b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a killed run left half a line: end it, so that ours stands alone
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RocattnError(f"cannot write {path}: {error.strerror}; what was measured before is kept") from error


@contextmanager
def locked(lock: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file for the length of a block; it is gone afterwards.

    The lock is the system's and ends with the process, however that ends: a file that a killed one left locks nothing.
    One who waited for a file that is gone makes it anew and waits for that (filelock does, from 3.29.7 on), so that it
    may be removed while it is held.

    Args:
        lock: The file, in a folder that exists.
        wait: Wait for whoever holds it.

    Raises:
        HeldError: When another holds it and ``wait`` is False.
        OSError: When the folder does not take it, or has no locks.
    """
    from filelock import FileLock, Timeout

    own = FileLock(lock, timeout=-1 if wait else 0)
    try:
        own.acquire()
    except Timeout as error:
        raise HeldError(f"another process holds {lock}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # it may stay: nobody holds it
            lock.unlink()
        own.release()
