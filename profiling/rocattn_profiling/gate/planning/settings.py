"""A repository's gate settings: ``.rocattn/gate.toml``, with keys named like the options of ``gate run``.

Head's file decides what is measured, like its benchmarks and its asv.conf.json: running the gate on a change runs the
change's code anyway. Each side is built according to its own file, since a compiler flag is part of a change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.launchers.report_launch import ReportPlace
from rocattn_profiling.gate.options import SETTINGS as FILE
from rocattn_profiling.gate.options import CodeObjects, Options
from rocattn_profiling.gate.planning.pace import parsed_limit
from rocattn_profiling.gate.thresholds import check_keys, check_limits, read_toml
from rocattn_profiling.revisions.asv_config import UnknownNameError

EDITED = f"this change edits {FILE}: what is measured is head's, and base is built as its own says"
_TOP = ("suite", "pytest", "requirements", "build", "command", "code-objects", "kernels", "arch", "limits")
_COMMAND = ("run", "results")
_OBJECTS = ("build", "files")
_LIMITS = ("tolerance", "rounds", "max-time")
_BUILT = ("commands", "code_objects", "kernels")  # these need a checkout in which the builds have run


class GateSettingsError(RocattnError):
    """Raised when the file cannot be read; the message is one line with the file and, if known, the line number."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, as in `rocattn_profiling.gate.options.Options`; empty for keys that are not set."""

    suite: str = ""
    pytest: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    code_objects: tuple[CodeObjects, ...] = ()
    kernels: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    tolerance: float = 0.0
    rounds: int = 0
    max_time_s: float = 0.0


def load(tree: Path) -> GateSettings:
    """Read the file of a checkout.

    Raises:
        GateSettingsError: The file is malformed.
    """
    content, text = read_toml(tree, FILE, GateSettingsError)
    where = _Lines(text)
    check_keys(content, where.of(content, _TOP), _TOP, (), GateSettingsError)
    commands = content.get("command", [])
    if not isinstance(commands, list) or not all(isinstance(row, dict) for row in commands):
        raise GateSettingsError(f"{where('command')}: begin every command with [[command]], in double brackets")
    for row in commands:
        check_keys(row, where.of(row, _COMMAND), _COMMAND, ("run",), GateSettingsError)
    objects = content.get("code-objects", [])
    objects = objects if isinstance(objects, list) else [objects]
    if not all(isinstance(row, dict) for row in objects):
        raise GateSettingsError(f"{where('code-objects')}: code-objects is a table: [code-objects]")
    for row in objects:
        check_keys(row, where.of(row, _OBJECTS), _OBJECTS, ("files",), GateSettingsError)
    limits = content.get("limits", {})
    if not isinstance(limits, dict):
        raise GateSettingsError(f"{where('limits')}: limits is a table: [limits]")
    check_keys(limits, where.of(limits, _LIMITS), _LIMITS, (), GateSettingsError)
    check_limits(limits, where("limits"), GateSettingsError)
    results = tuple(where.text(row, "results") if "results" in row else "" for row in commands)
    try:
        _ = [ReportPlace.of(text) for text in results if text]
    except UnknownNameError as error:
        raise GateSettingsError(f"{where('results')}: {error}") from error
    return GateSettings(
        suite=where.text(content, "suite") if "suite" in content else "",
        pytest=where.texts(content, "pytest"),
        commands=tuple(where.text(row, "run") for row in commands),
        results=results if any(results) else (),
        requirements=where.texts(content, "requirements"),
        builds=where.texts(content, "build"),
        code_objects=tuple(
            CodeObjects(
                files=where.texts(row, "files"),
                builds=where.texts(row, "build" if "build" in row else "") or where.texts(content, "build"),
            )
            for row in objects
        ),
        kernels=where.texts(content, "kernels"),
        archs=where.texts(content, "arch"),
        tolerance=float(limits.get("tolerance", 0.0)),
        rounds=limits.get("rounds", 0),
        max_time_s=_limit(limits, where("max-time")),
    )


def chosen(options: Options, own: GateSettings) -> Options:
    """Return the options of a run: the caller's, or else those of a side's file.

    What to measure is a single choice: any source named by the caller replaces all of the file's. Existing environments
    are not built, and without exact metrics there is no machine code.
    """
    keys = ["tolerance", "rounds", "max_time_s"]
    keys += [] if options.measures else ["suite", "pytest", "commands", "results"]
    if not options.measures and options.exact:
        keys += ["kernels", "archs"] + ["code_objects"] * (not options.base_python)
    if not options.base_python and any(getattr(options, key) or (key in keys and getattr(own, key)) for key in _BUILT):
        keys.append("builds")
    if not options.base_python and not options.measures:
        keys.append("requirements")
    return msgspec.structs.replace(options, **{key: getattr(options, key) or getattr(own, key) for key in keys})


class _Lines:
    """The line numbers of keys in a file, for errors."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def __call__(self, key: str) -> str:
        """Return the file with the number of the first line that sets a key or begins its table."""
        sets = re.compile(rf"""\s*(?:\[+\s*)?["']?{re.escape(key)}["']?\s*(?:=|\]|\.)""")
        line = next((number for number, line in enumerate(self._lines, 1) if sets.match(line)), 0)
        return f"{FILE}:{line}" if line else FILE

    def of(self, table: dict[str, Any], known: Sequence[str]) -> str:
        """Return the place of a table's first unknown key."""
        return next((self(key) for key in table if key not in known), FILE)

    def text(self, table: dict[str, Any], key: str) -> str:
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            raise GateSettingsError(f"{self(key)}: {key} must be non-empty text")
        return value

    def texts(self, table: dict[str, Any], key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) and each.strip() for each in listed):
            raise GateSettingsError(f"{self(key)}: {key} must be a string or a list of strings, none of them empty")
        return tuple(listed)


def _limit(limits: dict[str, Any], where: str) -> float:
    text = limits.get("max-time", "")
    seconds = parsed_limit(text) if isinstance(text, str) and text else 0.0
    if "max-time" in limits and not seconds >= 1:
        raise GateSettingsError(f'{where}: max-time must be a duration in quotes, as in max-time = "10m"')
    return seconds
