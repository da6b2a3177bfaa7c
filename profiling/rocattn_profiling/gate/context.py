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
        options: The run's options.
        repo: The repository's top folder; for existing environments, the benchmark folder.
        out: Where results go.
        suite: The benchmark folder, relative to the repository; or the first test folder; "" with commands only.
        trees, revisions: Checkout and revision of each side; empty for existing environments.
        launchers: Each side's launcher, which starts processes in its environment.
        environments: Each side's environment.
        places: The folder that each side's programs run in: its checkout, or a copy prepared by its build commands.
            With existing environments, both are the folder that the gate was started in.
        builds: The commands that prepared each side's folder.
        code_objects: Each side's machine code if its own settings list it; otherwise the options apply.
        facts: What the verdict records about each side.
        differing: Package -> (version in base, version in head), where they differ.
        identity: Revisions and environments; a session with the same identity can be resumed.
        results: The folder of asv's results, with a subfolder per machine.
        waivers, thresholds: Head's settings.
        list_base: Lists base's suite, to find what head removed; None if both sides have the same suite.
        say: Prints a progress line.
        again: The command that repeats this comparison; append ``--bench`` or ``--rounds``.
        notes: Notes for the verdict about what was left out.
        not_compared: What was left out without an entry.
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
        """The files that differ between the two trees, by path; empty without trees."""
        return changed_files(self.repo, self.trees, self.revisions, self.launchers)

    def note(self, line: str) -> None:
        """Print a line now and record it for the verdict."""
        self.say(line)
        self.notes.append(line)

    def leave_out(self, what: str, reason: Reason[str], line: str, *, needed: bool = False) -> None:
        """Record that something is not compared; ``needed`` as in `NotCompared`."""
        self.note(line)
        self.not_compared.append(NotCompared.of(what, reason, needed=needed))
