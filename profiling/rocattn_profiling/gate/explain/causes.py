"""What differs between base and head on the path of everything that got worse, the likeliest cause first.

Causes decide nothing: a verdict stands without them. They come from the project's plug-in, from counters where there is
a GPU and a profiler, from the traceback of a benchmark that fails, and from the changed files and packages that a
benchmark loads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.explain.counters import Counters
from rocattn_profiling.gate.explain.files import differing_modules, loaded_changes
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.verdict import EXACT, Cause, Entry, Location, badness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.asv.launch import Loaded
    from rocattn_profiling.gate.explain.files import FileChange
    from rocattn_profiling.gate.plugin import Plugin
    from rocattn_profiling.gate.sides import Context

WORSE = frozenset({"regression", "failed", "missing"})
MOST_CALLED = 10
"""Benchmarks that are called once more to see what they load, the worst first; cases of one function share one call."""
_MOST_FILES = 6
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def add_causes(entries: Sequence[Entry], context: Context, plugin: Plugin) -> list[Entry]:
    """Return the entries with the causes of every one that is worse.

    Args:
        entries: All entries of a verdict.
        context: Both sides, while they are checked out.
        plugin: What the gate knows about the project.
    """
    worse = [entry for entry in entries if entry.status in WORSE]
    if not worse:
        return list(entries)
    context.say(f"looking for causes of {len(worse)} {'entry' if len(worse) == 1 else 'entries'}")
    finder = _Finder(context, plugin, worse)
    # The worst first, since only some are called or profiled again.
    explained = {id(entry): _explained(entry, finder, context) for entry in sorted(worse, key=badness, reverse=True)}
    return [explained.get(id(entry), entry) for entry in entries]


def _explained(entry: Entry, finder: _Finder, context: Context) -> Entry:
    try:
        return msgspec.structs.replace(entry, causes=[*entry.causes, *finder.causes(entry)])
    except (RocattnError, OSError) as error:
        context.say(f"no causes of {entry.label}: {error}")
        return entry


class _Finder:
    """Finds the causes of the worse entries of one run."""

    def __init__(self, context: Context, plugin: Plugin, worse: Sequence[Entry]) -> None:
        self._context, self._plugin = context, plugin
        self._loaded: dict[tuple[str, str], tuple[Loaded | None, Loaded | None]] = {}
        self._counters = Counters(context, [entry for entry in worse if entry.metric == "time"])

    def causes(self, entry: Entry) -> list[Cause]:
        """Return what the plug-in knows, then counters, then what raised an error, then changed files and packages."""
        causes = self._plugin.causes(entry)
        if entry.metric in EXACT:
            return causes
        named = {cause.location.path for cause in causes if cause.kind == "source" and cause.location}
        loaded = self._loaded_by(entry)
        files = [change.cause() for change in self._files(*loaded) if change.path not in named] if loaded else []
        if not self._context.trees:  # there is no repository that a location could be in
            files = [msgspec.structs.replace(cause, location=None) for cause in files]
        return [
            *causes,
            *self._counters.of(entry),
            *self._raised_in(entry),
            *files[:_MOST_FILES],
            *self._packages(*(loaded or (None, None))),
        ]

    def _loaded_by(self, entry: Entry) -> tuple[Loaded | None, Loaded | None] | None:
        """Return what a benchmark loads on each side where it runs; None after too many other benchmarks.

        Cases of one function and backend share the answer of the worst.
        """
        key = entry.name, entry.params.get("backend", "")
        if key not in self._loaded:
            if len(self._loaded) >= MOST_CALLED:
                return None
            base, head = (self._context.launchers[side].loaded(entry.name, entry.label) for side in SIDES)
            self._loaded[key] = base, head
        return self._loaded[key]

    def _files(self, base: Loaded | None, head: Loaded | None) -> list[FileChange]:
        """Return the changed files that a benchmark loads, or all of them where it runs on neither side."""
        if not self._context.trees:
            return list(differing_modules(base, head, self._context.differing)) if base and head else []
        changes = self._context.changes
        return loaded_changes(changes, base, head) if base or head else list(changes.values())

    def _packages(self, base: Loaded | None, head: Loaded | None) -> list[Cause]:
        """Return the packages whose versions differ, of those that the benchmark loads, if that is known."""
        loaded = {_canonical(name) for name in (*base.packages, *head.packages)} if base and head else None
        return [
            Cause(kind="environment", text=f"{name} {old or 'absent'} -> {new or 'absent'}")
            for name, (old, new) in self._context.differing.items()
            if loaded is None or name == "python" or _canonical(name) in loaded
        ]

    def _raised_in(self, entry: Entry) -> list[Cause]:
        """Return the innermost frame of an error that is in a changed file."""
        for file, line in reversed(_FRAME.findall(entry.traceback)):
            installed = file.rpartition("site-packages/")[2]
            for path in self._context.changes:
                if f"/{path}".endswith(f"/{installed}") or file.endswith(f"/{path}"):
                    text = f"the error is raised in {path}, line {line}, which changed"
                    return [Cause(kind="source", text=text, location=Location(path=path, line=int(line)))]
        return []


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
