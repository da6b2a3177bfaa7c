"""The launches of a session, stored on disk so that a later run can resume it.

Every finished launch is appended to ``launches-KEY.jsonl``, which becomes ``launches.jsonl`` once there is a verdict.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Case, Outcome
from rocattn_profiling.base.journal import append_entry, entries
from rocattn_profiling.gate.model import EarlierNoise, SideName


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``launches.jsonl``: the session's key and its prior knowledge of noise, a launch, or a trace.

    ``runs_change`` is what traced calls of a benchmark showed.
    """

    kind: Literal["session", "launch", "trace"]
    key: str = ""
    label: str = ""
    side: SideName = "base"
    round: int = 0
    repeat: int = 0
    outcome: Outcome | None = None
    began_with: EarlierNoise | None = None
    runs_change: bool | None = None


class LaunchStore:
    """The launches of one session, in a separate file until it is finished; files of other sessions stay.

    Attributes:
        path: The file of the unfinished session.
        resumed: The launches that were in it.
        traced: Label -> what traced calls showed.

    Args:
        path: ``launches.jsonl``, the name of the finished file.
        key: Identifies revisions and settings: only an unfinished session with the same key is resumed.
        fresh: Discard earlier launches of this session.
        began_with: Prior knowledge of the noise; a resumed session keeps its own.
    """

    def __init__(self, path: Path, key: str, *, fresh: bool = False, began_with: EarlierNoise | None = None) -> None:
        self._final, self.path = path, path.with_name(f"{path.stem}-{key}{path.suffix}")
        self.began_with = began_with or EarlierNoise()
        self._known: dict[tuple[str, SideName, int, int], Outcome] = {}
        self.traced: dict[str, bool | None] = {}
        lines, verb = list[LaunchLine](), "read"
        try:
            with suppress(FileNotFoundError):
                lines = [] if fresh else list(entries(self.path, LaunchLine))
            if not any(line.kind == "session" and line.key == key for line in lines):
                lines, verb = [], "replace"
                self.path.unlink(missing_ok=True)
        except OSError as error:
            text = f"cannot {verb} {self.path}: {error.strerror}; name another folder with --out"
            raise RocattnError(text) from error
        if not lines:
            append_entry(self.path, LaunchLine(kind="session", key=key, began_with=self.began_with))
        for line in lines:
            if line.kind == "session":
                self.began_with = line.began_with or EarlierNoise()
            elif line.kind == "trace":
                self.traced[line.label] = line.runs_change
            elif line.outcome is not None:
                self._known[line.label, line.side, line.round, line.repeat] = line.outcome
        self.resumed = len(self._known)

    def count(self) -> int:
        """Return the number of launches in the file."""
        return sum(line.kind == "launch" for line in entries(self.path, LaunchLine))

    def get(self, case: Case, side: SideName, round_: int, repeat: int = 0) -> Outcome | None:
        """Return a finished launch."""
        return self._known.get((case.label, side, round_, repeat))

    def put(self, case: Case, side: SideName, round_: int, outcome: Outcome, repeat: int = 0) -> None:
        """Store a finished launch: on disk, then in memory."""
        append_entry(
            self.path,
            LaunchLine(kind="launch", label=case.label, side=side, round=round_, repeat=repeat, outcome=outcome),
        )
        self._known[case.label, side, round_, repeat] = outcome

    def put_trace(self, case: Case, runs_change: bool | None) -> None:
        """Store what traced calls show for a case; not on disk if the time limit may have cut them off."""
        if runs_change is not None:
            append_entry(self.path, LaunchLine(kind="trace", label=case.label, runs_change=runs_change))
        self.traced[case.label] = runs_change

    def finish(self) -> None:
        """Replace the launches of the last finished session with these; the next run then starts from scratch."""
        try:
            self.path.replace(self._final)
        except OSError as error:
            raise RocattnError(f"cannot write {self._final}: {error.strerror}") from error
