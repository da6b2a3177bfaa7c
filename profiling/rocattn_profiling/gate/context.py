"""What stands behind a comparison: both sides' files, interpreters and environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rocattn_profiling.asv.launch import Launcher
    from rocattn_profiling.gate.measure import SideName
    from rocattn_profiling.revisions.git import Revision


@dataclass(frozen=True, slots=True)
class Context:
    """Both sides while they lie checked out and built.

    Attributes:
        repo: The repository's top folder.
        out: Where results go.
        trees: A side's files as checked out; a side without a revision (an existing environment) has none.
        revisions: As ``trees``.
        launchers: Start processes in a side's environment.
        differing: Package -> (version in base, version in head), where they differ.
        quick: A short run is wanted: leave out what takes longer than it tells.
        say: Takes one line about every longer stage.
        again: The command that compares the same sides again, to which a reader adds ``--bench`` or ``--rounds``.
        undone: The same with the working tree as head: for a reader who took a change back in it.
        notes: What a reader of the verdict must know of what was left out.
    """

    repo: Path
    out: Path
    trees: Mapping[SideName, Path]
    revisions: Mapping[SideName, Revision]
    launchers: Mapping[SideName, Launcher]
    differing: Mapping[str, tuple[str, str]]
    quick: bool
    say: Callable[[str], None]
    again: str = "rocattn gate run"
    undone: str = "rocattn gate run --head WORKTREE"
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Say a line now, and in the verdict."""
        self.say(line)
        self.notes.append(line)
