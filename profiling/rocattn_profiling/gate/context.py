"""The context of a run: both sides, their settings, and where results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.reasons import NotCompared, Reason
from rocattn_profiling.gate.explain.files import FileChange, changed_files
from rocattn_profiling.gate.model import CaseLauncher, SideFacts, SideName
from rocattn_profiling.gate.options import CodeObjects, Options
from rocattn_profiling.gate.thresholds import ThresholdTable
from rocattn_profiling.gate.waivers import WaiverTable

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Suite
    from rocattn_profiling.revisions.environments import Environment
    from rocattn_profiling.revisions.git import Revision


@dataclass(frozen=True, kw_only=True)
class Context:
    """Both sides of a run, while they are checked out and built.

    Attributes:
        options: What the run was asked for.
        repo: The repository's top folder; for existing environments, the benchmark folder.
        out: Where results go.
        suite: The benchmark folder, relative to the repository; or the first folder of tests; "" for commands alone.
        trees, revisions: Checkout and revision of each side; empty for existing environments.
        launchers: Start processes in each side's environment.
        environments: Each side's.
        places: The folders that programs run in: the checkouts, or copies that build commands have made ready; of
            existing environments, twice the folder of the start.
        builds: The commands that have made each side's folder ready.
        code_objects: The machine code of each side, where its own settings name it; else the options do.
        facts: What the verdict records about each side.
        differing: Package -> (version in base, version in head), where they differ.
        identity: Revisions and environments: a session with the same identity may be resumed.
        results: The folder of asv's results, with a subfolder for each machine.
        waivers, thresholds: Head's own settings.
        list_base: Lists base's own suite, to find what head removed; None where it is the same as head's.
        say: Prints a line of progress.
        again: The command that compares the same sides again; append ``--bench`` or ``--rounds``.
        notes: What a reader of the verdict must know about what was left out.
        not_compared: What was left out and has no entry.
    """

    options: Options = field(default_factory=Options)
    repo: Path
    out: Path
    suite: str = ""
    trees: Mapping[SideName, Path] = field(default_factory=dict)
    revisions: Mapping[SideName, Revision] = field(default_factory=dict)
    launchers: Mapping[SideName, CaseLauncher]
    environments: Mapping[SideName, Environment] = field(default_factory=dict)
    places: Mapping[SideName, Path] = field(default_factory=dict)
    builds: Mapping[SideName, tuple[str, ...]] = field(default_factory=dict)
    code_objects: Mapping[SideName, tuple[CodeObjects, ...]] = field(default_factory=dict)
    facts: Mapping[SideName, SideFacts] = field(default_factory=dict)
    differing: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    identity: Sequence[str] = ()
    results: Path = Path()
    waivers: WaiverTable = field(default_factory=WaiverTable)
    thresholds: ThresholdTable = field(default_factory=ThresholdTable)
    list_base: Callable[[], Suite | None] = lambda: None
    say: Callable[[str], None] = lambda _: None
    again: str = "rocattn gate run"
    notes: list[str] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)

    @cached_property
    def changes(self) -> dict[str, FileChange]:
        """The files that differ between both sides' trees, by path; empty without trees."""
        return changed_files(self.repo, self.trees, self.revisions, self.launchers)

    def note(self, line: str) -> None:
        """Print a line now, and keep it for the verdict."""
        self.say(line)
        self.notes.append(line)

    def leave_out(self, what: str, reason: Reason[str], line: str, *, needed: bool = False) -> None:
        """Note that something is not compared; ``needed`` as in `NotCompared`."""
        self.note(line)
        self.not_compared.append(NotCompared.of(what, reason, needed=needed))
