"""The folder that a run of the gate works in: its own while it runs, and no part of the project."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            os.close(descriptor)
            line = f"another gate is at work in {out}: wait for it, or name another folder with --out"
            raise RocattnError(line) from error
        # A file system without locks is no reason not to measure.
    try:
        yield
    finally:
        os.close(descriptor)


def _make(out: Path) -> None:
    """Make a folder that is new ignore itself: results must not make the project's tree count as changed."""
    if not out.exists():
        out.mkdir(parents=True)
        (out / ".gitignore").write_text("*\n")
