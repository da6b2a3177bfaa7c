"""Bound the size of a cache folder by evicting the least recently used entries.

Any number of processes may use the folder at the same time. An entry is a folder with a file whose modification time is
its last use, next to a lock file. It is removed only if its lock is free and it was not used recently. A rename hides
it in one step, so a reader finds all of it or nothing, and then makes it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn.settings import cache_gib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PARTIAL = ".partial-"
"""Part of the name of a folder being written or removed; one this old was left by a killed process."""
STALE_S = 24 * 3600.0
_AFTER = 0.9  # fraction of the limit to keep, so that the next entry does not trigger another scan


@dataclass(frozen=True)
class CacheEntry:
    """A cache entry: its folder, the file whose modification time is its last use, and its size on disk."""

    folder: Path
    mark: Path
    last_use_s: float
    size_bytes: float


def entries(folders: Iterable[Path], mark: str) -> Iterator[CacheEntry]:
    """Yield the entries among folders; skip those that other processes remove at the same time.

    Args:
        folders: Candidate paths; files and partial folders are skipped.
        mark: The name of the file whose modification time is the last use.
    """
    for folder in folders:
        if PARTIAL in folder.name:
            continue
        try:
            with os.scandir(folder) as items:  # raises for a file
                size = sum(map(_disk_bytes, items))
            # An entry being made has no mark yet: use its folder's time.
            marker = folder / mark if (folder / mark).exists() else folder
            yield CacheEntry(folder, marker, marker.stat().st_mtime, size)
        except OSError:
            continue


def _disk_bytes(item: os.DirEntry[str]) -> float:
    """Return the bytes of a file's blocks, shared among its hard links, or of all files in a folder."""
    if item.is_dir(follow_symlinks=False):
        with contextlib.suppress(OSError), os.scandir(item) as inside:
            return sum(map(_disk_bytes, inside))
        return 0.0
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return 0.0
    return getattr(status, "st_blocks", -(-status.st_size // 512)) * 512 / max(status.st_nlink, 1)


def used(mark: Path, after_s: float = 600.0) -> None:
    """Record that an entry was just used, unless that was recorded recently or the folder is read-only."""
    with contextlib.suppress(OSError):
        if time.time() - mark.stat().st_mtime > after_s:
            os.utime(mark)


def shrink(candidates: Iterable[CacheEntry], *, fresh_s: float, keep: int | None = None) -> float:
    """Remove the least recently used entries beyond the limit; return the number of freed bytes.

    Args:
        candidates: All entries.
        fresh_s: An entry used within this many seconds stays, since it may be in use.
        keep: Maximum number of entries; None for no limit.
    """
    oldest_first = sorted(candidates, key=lambda entry: entry.last_use_s)
    limit = cache_gib() * 2**30
    total = sum(entry.size_bytes for entry in oldest_first)
    goal = total if total <= limit else _AFTER * limit
    surplus = 0 if keep is None else len(oldest_first) - keep
    freed = 0.0
    for entry in oldest_first:
        if (total - freed <= goal and surplus <= 0) or time.time() - entry.last_use_s < fresh_s:
            break
        if _remove(entry):
            freed += entry.size_bytes
            surplus -= 1
    return freed


def _remove(entry: CacheEntry) -> bool:
    """Remove an entry unless it was used since it was listed; return whether it was removed."""
    away = entry.folder.with_name(f"{entry.folder.name}{PARTIAL}removed-{os.getpid()}")
    with _lock(entry.folder.with_suffix(".lock")) as held:
        try:
            if not held or entry.mark.stat().st_mtime != entry.last_use_s:
                return False
            entry.folder.rename(away)
        except OSError:  # a read-only cache, or another process was first
            return False
    shutil.rmtree(away, ignore_errors=True)
    return True


def sweep(folder: Path) -> None:
    """Remove leftovers from a folder of entries: partial folders, and locks without an entry."""
    for path in folder.iterdir():
        try:
            if time.time() - path.stat().st_mtime < STALE_S:
                continue
            if PARTIAL in path.name:
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == ".lock" and not path.with_suffix("").exists():
                with _lock(path) as held:
                    if held:
                        path.unlink()
        except OSError:
            continue


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Try to take a lock without waiting; yield whether it was acquired."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
