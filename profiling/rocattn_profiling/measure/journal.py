"""What a command has measured before it ended: kept on disk result by result, for the same command to continue from."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from rocattn_profiling.base.console import say
from rocattn_profiling.base.files import append_line
from rocattn_profiling.measure.records import Status


class _Measured(Protocol):
    @property
    def status(self) -> Status: ...


Result = TypeVar("Result", bound=_Measured)


class Journal:
    """Finished results of an unfinished run, each a line of JSON with its checksum; the same run goes on from them.

    Attributes:
        path: The file, which is gone once the run has ended.

    Args:
        folder: Where the run's results will be.
        key: Everything that the results depend on; a run of another key has another file.
        total: How many results there will be.
    """

    def __init__(self, folder: Path, key: bytes, total: int) -> None:
        self.path = folder / f"unfinished-{hashlib.sha256(key).hexdigest()[:16]}.jsonl"
        self._total = total
        self._kept: dict[str, bytes] = {}
        lines: list[bytes] = []
        with suppress(FileNotFoundError):
            lines = self.path.read_bytes().splitlines()
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeError):  # cut by a kill, or damaged
                checksum, name, value = msgspec.json.decode(line, type=tuple[int, str, msgspec.Raw])
                if checksum == _checksum(name, value):
                    self._kept[name] = bytes(value)

    @property
    def says(self) -> str:
        """What is kept, and where."""
        return f"{len(self._kept)} of {self._total} in {self.path}"

    def result(self, name: str, kind: type[Result], measure: Callable[[], Result]) -> Result:
        """Return what is kept under a name; else measure it, and keep it where it is a measurement."""
        if name in self._kept:
            return msgspec.json.decode(self._kept[name], type=kind)
        value = measure()
        if value.status == "measured":
            encoded = msgspec.json.encode(value)
            append_line(self.path, msgspec.json.encode((_checksum(name, encoded), name, msgspec.Raw(encoded))))
            self._kept[name] = encoded
        return value

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Say what is kept if the block is ended early, by whatever; the file is gone only after it."""
        if self._kept:
            say(f"going on with {self.says}")
        try:
            yield
        except BaseException:
            say(f"kept {self.says}{'; the same command continues from there' if self._kept else ''}")
            raise

    def finish(self) -> None:
        """Remove the file: the results are where they belong."""
        self.path.unlink(missing_ok=True)


def _checksum(name: str, value: bytes | msgspec.Raw) -> int:
    return zlib.crc32(name.encode() + bytes(value))
