"""A folder of records that one run at a time writes to, and that never mixes two runs that are not the same.

One ``records.jsonl`` holds measurements of one commit, source text and settings, on one machine or one fleet;
``session.json`` beside it says which. A run into the same folder with the same identity keeps what is finished and
measures the rest. A run with another identity moves the old file into ``older/`` first and says so: nothing is mixed
and nothing is lost.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Self

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import Staging
from rocattn_profiling.measure.records import Record, append_record, read_records
from rocattn_profiling.measure.settings import Identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType


class ResultsFolder:
    """The folder, locked while it is entered.

    Attributes:
        out, path: The folder, and its records.
        file: The name of these.

    Args:
        out: The folder; ``records.jsonl``, ``session.json`` and, if something failed, ``failures.log`` go there.
        fresh: Put finished records aside even if they could be kept.
        on_note: Called with a line for people.

    Raises:
        RocattnError: On entering: another run writes to the folder, or it cannot be written.
    """

    file = "records.jsonl"

    def __init__(self, out: Path, *, fresh: bool, on_note: Callable[[str], None]) -> None:
        self.out, self.path = out, out / self.file
        self._fresh, self._on_note = fresh, on_note
        self._lock: Any = None

    def __enter__(self) -> Self:
        from filelock import FileLock, Timeout

        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.out / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RocattnError(f"another bench is writing to {self.out}: wait for it, or use another --out") from None
        except OSError as error:
            raise RocattnError(f"cannot write to {self.out}: {error.strerror or error}") from error
        try:
            self._take_over()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def identity(self) -> Identity:
        """Return what a run that starts now is."""
        raise NotImplementedError

    def keep(self, records: list[Record]) -> None:
        """Take over the records of an earlier run of the same identity."""
        raise NotImplementedError

    def _take_over(self) -> None:
        """Keep the records that are there, or put them aside; then say in ``session.json`` whose the file is."""
        session = self.out / "session.json"
        identity = self.identity()
        with Staging() as staging:
            encoded = msgspec.json.format(msgspec.json.encode(identity), indent=2)
            staging.add(session, [encoded, b"\n"])  # first: a full disk moves nothing
            if session.exists() or self.path.exists():
                difference = identity.difference(Identity.load(session))
                if self._fresh or difference:
                    self._put_aside("as --fresh asks" if self._fresh else f"they are of {difference}")
                elif self.path.exists():
                    self.keep(self._readable())
            staging.commit()

    def _readable(self) -> list[Record]:
        try:
            return list(read_records(self.path))
        except RocattnError as error:
            raise RocattnError(f"{error}; to measure anew, --fresh puts that file aside") from error

    def _put_aside(self, why: str) -> None:
        """Move the records of another run to ``older/``."""
        if not self.path.exists():
            return
        name = f"records-{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:4]}.jsonl"
        target = self.out / "older" / name
        try:
            target.parent.mkdir(exist_ok=True)
            self.path.replace(target)
        except OSError as error:
            raise RocattnError(f"cannot move {self.path} to {target}: {error.strerror}") from error
        self._on_note(f"moved the older records to {target}: {why}")

    def _append(self, record: Record) -> None:
        append_record(self.path, record)

    def _keep_log(self, what: str, text: str) -> None:
        """Append what a failed process printed (its traceback) to ``failures.log``."""
        path = self.out / "failures.log"
        try:
            with path.open("a") as file:
                file.write(f"== {what}\n{text}\n")
        except OSError as error:
            raise RocattnError(f"cannot write {path}: {error.strerror}; what was measured before is kept") from error
