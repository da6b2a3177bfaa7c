"""A folder of results addressed by the hash of everything they were made from.

Entries are written in a sibling folder and renamed into place, so readers never see partial entries and a killed
writer leaves no valid one. A lock file per key keeps parallel first uses from doing the same work twice. The least
recently used entries are evicted when the folder grows too large (`rocattn.cache_limit`).
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn import cache_limit
from rocattn.errors import SettingError
from rocattn.notices import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG = logging.getLogger(__name__)
_SUMS = "SHA256SUMS"
FRESH_S = 3600.0
"""An entry used within this many seconds stays, whatever the limit."""
_PRUNED = "pruned"  # modified at the last scan over all entries, of which there may be tens of thousands


def cache_folder() -> Path:
    """Return the folder for compiled kernels: ``ROCATTN_CACHE_DIR``, or else the user's cache folder."""
    # Made absolute, with ~ expanded: no shell reads a variable file (a runner's .env, systemd's).
    try:
        if chosen := os.environ.get("ROCATTN_CACHE_DIR"):
            return Path(chosen).expanduser().absolute()
        from platformdirs import user_cache_path

        return user_cache_path("rocattn")
    except RuntimeError:
        # A user without a name or HOME (a container's --user) gets the container's home, nearly always read-only,
        # which all writers can handle.
        return Path("/.cache/rocattn")


def write_problem(folder: Path) -> str:
    """Return why nothing can be written to a folder (created if missing), or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def compiled_entries(root: Path) -> Iterator[cache_limit.CacheEntry]:
    """Yield the entries of a `ContentCache` in a folder."""
    for part in root.glob("[0-9a-f][0-9a-f]"):
        with suppress(OSError):
            yield from cache_limit.entries(list(part.iterdir()), _SUMS)


def _prune(root: Path) -> None:
    """Keep a cache within its limit; scans at most once per `FRESH_S`, since younger entries stay."""
    stamp = root / _PRUNED
    with suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < FRESH_S:
            return
        stamp.touch()
        for part in root.glob("[0-9a-f][0-9a-f]"):
            cache_limit.sweep(part)
        cache_limit.shrink(compiled_entries(root), fresh_s=FRESH_S)


class ContentCache:
    """Named byte strings by key in a folder; falls back to a temporary folder if that one is not writable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._degraded = False

    def get_or_make(
        self, key: str, make: Callable[[], dict[str, bytes]], announce: Callable[[], None] = lambda: None
    ) -> dict[str, bytes]:
        """Return the files of an entry, making them on first use; exceptions of ``make`` propagate.

        ``announce`` is called first, also if this process waits while another makes them.
        """
        if (kept := self._read(key)) is not None:
            return kept
        announce()
        with self._locked(key):
            if (kept := self._read(key)) is not None:
                return kept
            files = make()
            try:
                self._write(key, files)
            except OSError as error:
                self._use_temporary_folder(error)
                self._write_if_possible(key, files)
        if not self._degraded:
            _prune(self._root)
        return files

    def _entry(self, key: str) -> Path:
        return self._root / key[:2] / key

    def _read(self, key: str) -> dict[str, bytes] | None:
        """Return an entry with valid checksums, else None (a power loss can leave a renamed entry without its data)."""
        entry = self._entry(key)
        files: dict[str, bytes] = {}
        try:
            for line in (entry / _SUMS).read_text().splitlines():
                digest, name = line.split("  ", 1)
                files[name] = (entry / name).read_bytes()
                if hashlib.sha256(files[name]).hexdigest() != digest:
                    return None
        except (OSError, ValueError):
            return None
        cache_limit.used(entry / _SUMS)
        return files or None

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the key's lock; if locking fails (no permission or support), renames still keep the cache consistent."""
        from filelock import FileLock

        for _ in range(2):
            lock = FileLock(self._entry(key).with_suffix(".lock"))
            try:
                Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
            except NotImplementedError:
                break
            except OSError as error:
                if self._degraded:
                    break
                self._use_temporary_folder(error)
                continue
            try:
                yield
            finally:
                lock.release()
            return
        yield

    def _write(self, key: str, files: dict[str, bytes]) -> None:
        """Put an entry in place by one rename; an entry already put there by another process stays."""
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        # Existing ones were left by a killed holder of the lock that we now hold.
        for stale in entry.parent.glob(f"{key}{cache_limit.PARTIAL}*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}{cache_limit.PARTIAL}", dir=entry.parent))
        try:
            for name, data in files.items():
                (partial / name).write_bytes(data)
            sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
            (partial / _SUMS).write_text("".join(sums))
            if entry.exists() and self._read(key) is None:
                shutil.rmtree(entry)
            partial.rename(entry)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise

    def _write_if_possible(self, key: str, files: dict[str, bytes]) -> None:
        try:
            self._write(key, files)
        except OSError as error:
            _LOG.debug("the temporary folder takes no files either: %s", error)

    def _use_temporary_folder(self, error: OSError) -> None:
        """Switch once to a temporary folder of this process, with a one-line warning unless silenced.

        Raises:
            SettingError: When the user named the folder and it cannot be created.
        """
        if self._degraded:
            return
        if os.environ.get("ROCATTN_CACHE_DIR") and not os.path.isdir(self._root):  # noqa: PTH112 - never raises
            raise SettingError(
                f"ROCATTN_CACHE_DIR is {os.environ['ROCATTN_CACHE_DIR']!r}: it cannot be made "
                f"({error.strerror or error}): set it to a writable folder, or unset it"
            ) from error
        self._degraded = True
        unusable = self._root
        try:
            self._root = Path(tempfile.mkdtemp(prefix="rocattn-cache-"))
        except OSError:
            return  # nothing is cached: every use makes its result again
        atexit.register(_remove_own, self._root, os.getpid())
        if not quiet():
            _LOG.warning(
                "cannot write the cache folder %s (%s), so every process compiles again: "
                "set ROCATTN_CACHE_DIR to a writable folder", unusable, error.strerror or error,
            )  # fmt: skip


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the exit handler, not the folder
        shutil.rmtree(folder, ignore_errors=True)
