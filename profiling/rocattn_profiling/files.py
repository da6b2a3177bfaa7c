"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Write a file atomically (temporary file, then rename), making its folder.

    Raises:
        RocattnError: When the folder or disk does not take it; one line that names the file and the cause.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # the folder itself may be what cannot be written
            partial.unlink(missing_ok=True)
        raise RocattnError(f"cannot write {path}: {error.strerror}") from error
    return path
