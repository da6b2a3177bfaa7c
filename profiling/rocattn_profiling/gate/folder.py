"""The folder that a run of the gate works in: its own while it runs, and no part of the project."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A process that a killed run was starting holds what that had open until it has begun.
_LEFT_BEHIND_S, _PAUSE_S = 2.0, 0.05


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make a folder and keep every other run of the gate out of it for the length of a block.

    Two runs in one folder would take each other's launches for their own, of an interrupted run. The lock is on the
    folder itself, not on a file as elsewhere (`files.locked`): in a folder that was there and that git does not ignore
    a file would be a change of the tree that is about to be measured.

    Raises:
        RocattnError: When another process is at work in it.
        OSError: When it cannot be made.
    """
    _make(out)
    descriptor = os.open(out, os.O_RDONLY)  # the lock ends with the process
    end = time.monotonic() + _LEFT_BEHIND_S
    while not _lock(descriptor):
        if time.monotonic() > end:
            os.close(descriptor)
            raise RocattnError(f"another gate is at work in {out}: wait for it, or name another folder with --out")
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock if nobody has it; a file system without locks is no reason not to measure."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in {errno.EWOULDBLOCK, errno.EACCES}
    return True


def _make(out: Path) -> None:
    """Make a folder that is new ignore itself: results must not make the project's tree count as changed."""
    if not out.exists():
        out.mkdir(parents=True)
        (out / ".gitignore").write_text("*\n")
