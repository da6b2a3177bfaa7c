"""What changed in the code behind each entry that got worse, the most likely cause first.

Causes never affect a verdict. They come from the project's plug-in, from counters where there is a GPU and a profiler,
from the traceback of a benchmark that fails, and from the changed files and packages that a benchmark loads.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import readable
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import decoded
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.files import FileChange, differing_modules, loaded_changes
from rocattn_profiling.gate.explain.reach import Reach
from rocattn_profiling.gate.model import EXACT, SIDES, Cause, Entry, Location, SideName, badness
from rocattn_profiling.gate.planning.pace import TimeLimit
from rocattn_profiling.gate.plugin import Plugin, plugin_errors
from rocattn_profiling.profile.collect import find, hardware
from rocattn_profiling.profile.collect.assemble import CollectionRequest, assemble
from rocattn_profiling.profile.collect.run import Session
from rocattn_profiling.revisions.interpreters import canonical

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Loaded

MOST_CALLED = 10
"""Benchmarks to call once more to see what they load, worst first; cases of one function share one call."""
MOST_PROFILED = 3
"""Benchmarks to profile, worst first: each takes one run per group of counters on each side."""
REPORT = "profile.json"
_SLOWER = 1.02
_MOST_MOVES = 3
_TIMEOUT_S = 300.0
_MOST_FILES = 6
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def add_causes(
    entries: Sequence[Entry],
    context: Context,
    plugin: Plugin,
    limit: TimeLimit | None = None,
    on_step: Callable[[Step], None] = lambda _: None,
    *,
    modules: Mapping[str, str] | None = None,
) -> list[Entry]:
    """Return the entries, with causes added to those that are worse.

    Args:
        entries: All entries of a verdict.
        context: Both sides, while they are checked out.
        plugin: The project's plug-in.
        limit: When to stop calling benchmarks to see what they load.
        on_step: Called before each entry.
        modules: Label -> the module that calls of this benchmark import only once, in a shared process; "" for none.
    """
    worse = [entry for entry in entries if entry.worse and entry.status != "removed"]
    if not worse:
        return list(entries)
    context.say(f"looking for causes of {len(worse)} {'entry' if len(worse) == 1 else 'entries'}")
    finder = _Finder(context, plugin, worse, limit or TimeLimit.begin(0.0), modules or {})
    # Worst first, since only some are called or profiled again.
    explained = {}
    try:
        for done, entry in enumerate(sorted(worse, key=badness, reverse=True)):
            on_step(Step(done=done, total=len(worse), what="looking for causes", of=entry.label))
            explained[id(entry)] = _explained(entry, finder, context)
    finally:
        for launcher in context.launchers.values():
            launcher.end_server()
    return [explained.get(id(entry), entry) for entry in entries]


def _explained(entry: Entry, finder: _Finder, context: Context) -> Entry:
    try:
        return msgspec.structs.replace(entry, causes=[*entry.causes, *finder.causes(entry)])
    except (RocattnError, OSError) as error:
        context.say(f"no causes of {entry.label}: {error}")
        return entry


class _Finder:
    """Finds the causes of the worse entries of one run."""

    def __init__(
        self, context: Context, plugin: Plugin, worse: Sequence[Entry], limit: TimeLimit, modules: Mapping[str, str]
    ) -> None:
        self._context, self._plugin, self._limit, self._modules = context, plugin, limit, modules
        self._longest_s = 0.0
        self._loaded: dict[tuple[str, str], tuple[Loaded | None, Loaded | None]] = {}
        self._reach = Reach(context.changes)
        exact = [cause for entry in worse if entry.metric in EXACT for cause in entry.causes]
        self._of_kernels = {cause.location.path for cause in exact if cause.location}
        self._counters = Counters(context, [entry for entry in worse if entry.metric == "time"])

    def causes(self, entry: Entry) -> list[Cause]:
        """Return the plug-in's causes, then counters, the line that raised, changed files and packages."""
        with plugin_errors(self._plugin):
            causes = self._plugin.causes(entry)
        if entry.metric in EXACT:
            return causes
        named = {cause.location.path for cause in causes if cause.kind == "source" and cause.location}
        loaded = self._loaded_by(entry)
        files = self._file_causes(*loaded, named) if loaded else []
        if not self._context.trees:  # no repository that a location could point into
            files = [msgspec.structs.replace(cause, location=None) for cause in files]
        return [
            *causes,
            *self._counters.of(entry),
            *self._raised_in(entry),
            *files[:_MOST_FILES],
            *self._packages(*(loaded or (None, None))),
        ]

    def _loaded_by(self, entry: Entry) -> tuple[Loaded | None, Loaded | None] | None:
        """Return what a benchmark loads on each side where it runs; None if too many were called, or time is short.

        Cases of one function and backend share the answer for the worst of them.
        """
        key = entry.name, entry.params.get("backend", "")
        if key not in self._loaded:
            if len(self._loaded) >= MOST_CALLED:
                return None
            if not self._has_time():
                return None
            started, module = time.monotonic(), self._modules.get(entry.label, "")
            base, head = (
                self._context.launchers[side].loaded(
                    entry.name, entry.label, self._reach.files, module=module, within_s=self._limit.causes_left_s()
                )
                for side in SIDES
            )
            self._longest_s = max(self._longest_s, time.monotonic() - started)
            self._loaded[key] = base, head
        return self._loaded[key]

    def _has_time(self) -> bool:
        """Whether another call on both sides fits into the time limit, judging by the longest call so far."""
        return not self._limit.limited or self._limit.causes_left_s() > self._longest_s

    def _file_causes(self, base: Loaded | None, head: Loaded | None, named: Collection[str]) -> list[Cause]:
        """Return the changed files as causes: only those with changed functions that started, if there are any."""
        changes = [change for change in self._files(base, head) if change.path not in named]
        changes.sort(key=lambda change: change.path in self._of_kernels)  # last: files that explain machine code
        started = [(change, self._reach.started_in(change, base, head)) for change in changes]
        if any(started_in for _, started_in in started):
            started = [(change, lines) for change, lines in started if lines is not None]
            started.sort(key=lambda pair: not pair[1])
        return [change.cause(lines or ()) for change, lines in started]

    def _files(self, base: Loaded | None, head: Loaded | None) -> list[FileChange]:
        """Return the changed files that a benchmark loads, or all of them if it runs on neither side."""
        if not self._context.trees:
            return list(differing_modules(base, head, self._context.differing)) if base and head else []
        changes = self._context.changes
        return loaded_changes(changes, base, head) if base or head else list(changes.values())

    def _packages(self, base: Loaded | None, head: Loaded | None) -> list[Cause]:
        """Return the packages whose versions differ; only those that the benchmark loads, if that is known."""
        loaded = {canonical(name) for name in (*base.packages, *head.packages)} if base and head else None
        return [
            Cause(kind="environment", text=f"{name} {old or 'absent'} -> {new or 'absent'}")
            for name, (old, new) in self._context.differing.items()
            if loaded is None or name == "python" or canonical(name) in loaded
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


class Counters:
    """Profiles the worst benchmarks on both sides, on demand, where there is a GPU and a profiler for it.

    The report's comparison names the kernels whose time changed, and the metrics that moved with it.

    Args:
        context: Both sides.
        entries: Worse benchmarks.
    """

    def __init__(self, context: Context, entries: Sequence[Entry]) -> None:
        self._context = context
        slower = [entry for entry in entries if entry.status == "regression" and entry.decision is not None]
        slower.sort(key=badness, reverse=True)
        # A parameter "backend" says whether a benchmark uses the GPU; one without it may.
        able = [entry for entry in slower if readable(entry.params.get("backend", "gpu")) == "gpu"]
        self._chosen = [entry.label for entry in able[:MOST_PROFILED]]
        self._archs = hardware.examine().archs if self._chosen else ()
        self._there = bool(self._archs) and any(not tool.problem for tool in find.find_profilers())

    def of(self, entry: Entry) -> list[Cause]:
        """Return what changed in a benchmark's kernels; empty if it cannot be profiled."""
        if not self._there or entry.label not in self._chosen:
            return []
        folder = self._context.out / "explain" / f"{self._chosen.index(entry.label)}"
        self._context.say(f"profiling {entry.label} on both sides")
        try:
            for side in SIDES:
                self._profile(entry, side, folder / side)
            return causes_of(_compared(folder))
        except (RocattnError, OSError) as error:
            self._context.say(f"no counters of {entry.label}: {error}")
            return []

    def _profile(self, entry: Entry, side: SideName, out: Path) -> None:
        launcher = self._context.launchers[side]
        command = launcher.call_command(entry.name, entry.label)
        job = assemble(CollectionRequest(command, arch=self._archs[0]), hardware.examine())
        # The gate's variables for benchmarks, minus those that starting the profiler removes.
        own = {name: value for name, value in launcher.environment.items() if os.environ.get(name) != value}
        kept = {
            name: value
            for name, value in job.environment.items()
            if name in launcher.environment or name not in os.environ
        }
        collection = Session(msgspec.structs.replace(job, environment=kept | own), out).collect()
        if not collection.measured:
            raise RocattnError(f"no pass of {side} was measured ({out / REPORT} says why)")


def _compared(folder: Path) -> dict[str, Any]:
    """Return the report of head against base from `rocattn report --json`, which the gate may not import."""
    sides = [str(folder / "head"), "--against", str(folder / "base"), "--out", str(folder / "report")]
    command = [sys.executable, "-m", "rocattn_profiling.cli", "report", *sides, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RocattnError(f"the report took over {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise RocattnError((done.stderr.strip().splitlines() or ["the report failed"])[-1])
    report: dict[str, Any] = decoded(done.stdout)
    return report


def causes_of(report: dict[str, Any]) -> list[Cause]:
    """Return a cause for each slower kernel, with the metrics that moved and the report's advice.

    Args:
        report: Head's report, with the comparison to base under "against".
    """
    advice = {
        (kernel["kernel"], kernel["label"]): kernel["findings"][0]["sentence"]
        for kernel in report["kernels"]
        if kernel["findings"]
    }
    causes = []
    for pair in report["against"]:
        name = pair["label"] or pair["kernel"]
        if pair["only_in"] == "after":
            causes.append(Cause(kind="counters", text=f"the kernel {name} runs on head only"))
        elif pair["only_in"] is None and pair["time_ratio"] and pair["time_ratio"] > _SLOWER:
            moved = [
                f"{move['metric']} {move['before']:.4g} -> {move['after']:.4g} {move['unit']}".strip()
                for move in pair["moved"][:_MOST_MOVES]
            ]
            metrics = f": {', '.join(moved)}" if moved else ""
            remedy = advice.get((pair["kernel"], pair["label"]))
            text = f"the kernel {name} takes {pair['time_ratio']:.2f} times as long{metrics}"
            text += f"; {remedy}" if remedy else ""
            causes.append(Cause(kind="counters", text=text))
    return causes
