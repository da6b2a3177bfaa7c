"""Write files: a reader never sees a partial file, a kill loses at most the last line, and a lock excludes others.

Results are written in two steps: `StagedFiles` writes every file under a temporary name next to its target, where a
full disk, an error or Ctrl-C does no harm, and then renames them all. So a failing command keeps earlier results.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, overload

from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import terminal

T = TypeVar("T")
_IGNORE = ".gitignore"
_LONGEST_REASON = 300


class HeldError(RocattnError):
    """Raised if another process holds a lock; the message is one line that names the file."""


class DocumentError(RocattnError, ValueError):
    """Raised for a document that is not JSON, or not of the expected type; the message is one line with the reason."""


@overload
def decoded(data: bytes | str) -> Any: ...
@overload
def decoded(data: bytes | str, kind: type[T]) -> T: ...


def decoded(data: bytes | str, kind: Any = Any) -> Any:
    """Decode an untrusted JSON document as a type.

    Raises:
        DocumentError: It is damaged, nested too deeply, or of another type.
    """
    import msgspec

    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(terminal(str(error), _LONGEST_REASON)) from error


def of_other_schema(what: str | Path, schema: object, ours: int) -> str:
    """Return the message that a document, or a line of one, has a different schema from what this rocattn reads."""
    return f"{what} has schema {terminal(str(schema), 40)}, this rocattn reads {ours}"


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading; reject a device or pipe, which may never end, without waiting for it.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return the identity of a file's content, which changes when it is replaced; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def system_text(path: Path) -> str:
    """Return a file of /proc or /sys, stripped; "" if it cannot be read (a sleeping GPU's sensor, an offline core)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def write_text(path: Path, text: str) -> Path:
    """Write a file atomically (temporary file, then rename), creating its folder.

    Raises:
        RocattnError: It cannot be written; one line that names the file and the cause.
    """
    return write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> Path:
    """Write bytes to a file atomically, like `write_text`; a device or pipe is written to, never replaced."""
    with StagedFiles() as staging:
        staging.add(path, [data])
        staging.commit()
    return path


def write_together(files: Mapping[Path, str], *, committed: bool = False) -> list[Path]:
    """Write several files, all or none; return their paths. For ``committed`` see `StagedFiles`.

    Raises:
        RocattnError: As for `write_text`; every file is then unchanged.
    """
    with StagedFiles(committed=committed) as staging:
        for path, text in files.items():
            staging.add(path, [text.encode()])
        staging.commit()
    return list(files)


def result_folder(folder: Path, *, ignored: bool = True) -> list[Path]:
    """Create a results folder with its parents; return the new ones, outermost first.

    In a git repository the outermost new folder ignores itself, like the caches of pytest and ruff, so that results
    never show up as changes to the user's project. ``ignored=False`` is for files that the user commits.

    Raises:
        OSError: A folder cannot be created, or a file is in the way; no new folder remains.
    """
    created: list[Path] = []
    try:
        for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            missing.mkdir(exist_ok=True)
            created.append(missing)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if ignored and created and _would_show_in_git(created[0]):
            (created[0] / _IGNORE).write_text("*\n")
    except OSError:
        _remove_empty(created)
        raise
    return created


def _would_show_in_git(folder: Path) -> bool:
    """Whether a new folder is in a repository, but not in a folder that ignores itself."""
    for above in folder.absolute().parents:
        if system_text(above / _IGNORE) == "*":
            return False
        if (above / ".git").exists():
            return True
    return False


def _remove_empty(created: list[Path]) -> None:
    """Remove the folders that `result_folder` created, if nothing else is in them."""
    for folder in reversed(created):
        with suppress(OSError):  # not empty: something was committed to it
            if [*folder.iterdir()] == [folder / _IGNORE]:
                (folder / _IGNORE).unlink()
            folder.rmdir()


class StagedFiles:
    """Files and folders that are written as ``.NAME.partial`` until all of them are complete.

    When the block ends, everything that is not committed is removed, with the folders created for it.

    Args:
        committed: Whether the files are for the user to commit; otherwise they are results, whose new folders git
            ignores.
    """

    def __init__(self, *, committed: bool = False) -> None:
        self._committed = committed
        self._waiting: dict[Path, Path] = {}
        self._made: list[Path] = []
        self._through: list[tuple[Path, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for partial in self._waiting.values():
            _remove(partial)
        _remove_empty(self._made)

    def expect(self, paths: Iterable[Path]) -> None:
        """Prepare for files that forks of this process will `add`: their leftovers are also removed here.

        Raises:
            RocattnError: As for `add`; also for a device or pipe, whose content a fork could not keep.
        """
        for path in paths:
            if _is_special(path):
                raise RocattnError(f"cannot write {path}: not a regular file")
            with _naming(path):
                self._beside(path)

    def add(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a file next to its target; content for a device or pipe stays in memory.

        Raises:
            RocattnError: It cannot be written; one line that names the file and the cause.
        """
        if path.is_dir():
            raise RocattnError(f"cannot write {path}: {os.strerror(errno.EISDIR)}")
        if _is_special(path):
            self._through.append((path, b"".join(pieces)))
            return
        with _naming(path), self._beside(path).open("wb") as file:
            file.writelines(pieces)

    def folder(self, path: Path) -> Path:
        """Return an empty folder to fill, which will replace ``path`` entirely.

        Raises:
            RocattnError: As for `add`.
        """
        with _naming(path):
            partial = self._beside(path)
            partial.mkdir()
        return partial

    def drop(self, path: Path) -> None:
        """Discard the file or folder staged for a path."""
        _remove(self._waiting.pop(path))

    def commit(self, *, replace: bool = True) -> None:
        """Move everything to its target.

        Ctrl-C is deferred until that is done, so that files of two runs are not mixed.

        Args:
            replace: False keeps existing files, and moves only new ones.

        Raises:
            RocattnError: A device or pipe cannot be written (before any move), or a file cannot be renamed.
        """
        while self._through:
            _write_through(*self._through.pop(0))
        interrupted: KeyboardInterrupt | None = None
        while self._waiting:
            path, partial = next(iter(self._waiting.items()))
            try:
                if replace or not path.exists():
                    _put(partial, path)
                else:
                    _remove(partial)
                self._waiting.pop(path, None)
            except KeyboardInterrupt as error:
                interrupted = error
                if not partial.exists():
                    self._waiting.pop(path, None)
        if interrupted is not None:
            raise interrupted

    def _beside(self, path: Path) -> Path:
        """Return a free temporary path for a file or folder, creating its parent folders."""
        self._made += result_folder(path.parent, ignored=not self._committed)
        partial = path.with_name(f".{path.name}.partial")
        _remove(partial)
        self._waiting[path] = partial
        return partial


def _put(partial: Path, path: Path) -> None:
    """Move a complete file or folder to its target; an existing folder is moved aside first."""
    with _naming(path):
        if not (partial.is_dir() and path.is_dir()):
            partial.replace(path)
            return
        old = path.with_name(f".{path.name}.old")
        _remove(old)
        path.replace(old)
        try:
            partial.replace(path)
        except OSError:
            old.replace(path)
            raise
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a file or a whole folder, if possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):  # the folder may be read-only
        path.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RocattnError(f"cannot write {path}: {error.strerror}") from error


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
    """Append one line and force it to disk, creating the folder.

    Raises:
        RocattnError: It cannot be written; the message names the file and the cause.
    """
    line += b"\n"
    try:
        result_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a killed run left a partial line: end it first
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
def locked(lock: Path, *, wait_s: float = math.inf) -> Iterator[None]:
    """Hold a lock file while the block runs; remove it afterwards.

    The operating system releases the lock when the process ends in any way, so a file left by a killed process locks
    nothing. A process that waited for a removed file creates it again and waits for that (as filelock does since
    3.29.7), so the file can be removed while it is locked.

    Args:
        lock: The file, in an existing folder.
        wait_s: How long to wait for the lock, in seconds.

    Raises:
        HeldError: Another process still holds it then.
        OSError: The folder cannot be written, or does not support locks.
    """
    from filelock import FileLock, Timeout

    own = FileLock(lock, timeout=-1 if math.isinf(wait_s) else wait_s)
    try:
        own.acquire()
    except Timeout as error:
        raise HeldError(f"another process holds {lock}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # harmless if it stays: it is unlocked
            lock.unlink()
        own.release()
