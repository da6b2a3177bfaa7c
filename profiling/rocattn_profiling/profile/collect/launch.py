"""The small interface of a profiler's module: from a pass to one command line with its files and variables."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Protocol

import msgspec

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn_profiling.profile.collect.find import Tool
    from rocattn_profiling.profile.collect.passes import Pass, PassPlan

RUN_SCRIPT = "run.sh"
_SHELL_SAFE = re.compile(r"[\w@%+=:,./-]+")


class PathError(RocattnError, ValueError):
    """Raised when a profiler cannot work with a path, because it puts it into a shell command without quotes."""


class Launch(msgspec.Struct, frozen=True):
    """How one pass is started.

    Attributes:
        argv: The command line.
        env: Variables that are set for it.
        files: Files that are written first: path below the pass's folder -> text.
        folders: Folders that are made first, below the pass's folder.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command line as a shell takes it, with its variables in front."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.argv)])


class Collector(Protocol):
    """One profiler."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The output formats it can be asked for, the usual one first."""
        ...

    def plan(self, plan: PassPlan) -> PassPlan:
        """Return the plan as this profiler carries it out."""
        ...

    def launch(self, tool: Tool, of_pass: Pass, command: tuple[str, ...], folder: Path, output_format: str) -> Launch:
        """Return how to start a pass of a command, with everything it writes below a folder (absolute)."""
        ...


def through_a_script(command: tuple[str, ...], folder: Path) -> tuple[str, dict[str, str]]:
    """Return a script that becomes the command, and its file, for profilers that evaluate their arguments again.

    Raises:
        PathError: When the folder's own path would not survive that.
    """
    shell_safe(folder)
    return str(folder / RUN_SCRIPT), {RUN_SCRIPT: f"#!/bin/sh\nexec {shlex.join(command)}\n"}


def shell_safe(folder: Path) -> None:
    """Raise `PathError` when a path has characters that an unquoted shell word would not keep."""
    if _SHELL_SAFE.fullmatch(str(folder)) is None:
        raise PathError(f"this profiler cannot write to {str(folder)!r}: use --out with letters, digits and ._-/ only")
