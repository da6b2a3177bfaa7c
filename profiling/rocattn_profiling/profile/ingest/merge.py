"""Puts the files of one run together before they become one table: which say the same, and which complete others."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.parts import Notes, Part
from rocattn_profiling.profile.ingest.table import NO_PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocattn_profiling.profile.ingest.table import Source

# Formats that one run may write side by side, the fullest first.
_FULLEST = ("rocpd", "json", "csv", "chrome")
_MERGED = "counters (merged passes)"
_OF_PASSES = {"counters (wide)", "counters (long)", "counters (by number)"}


def arrange(parts: Sequence[Part]) -> None:
    """Mark what is said twice as skipped, name the passes, and let traces complete counters. Changes the parts."""
    _skip_merged_tables(parts)
    runs: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in parts:
        if len(part.dispatches):
            runs[part.scope, part.pass_label].append(part)
    for run in runs.values():
        _skip_repeated_formats(run)
        kept = [part for part in run if not part.source.skipped]
        _complete_with_traces(kept)
    for (_, label), run in runs.items():
        _name_pass([part for part in run if not part.source.skipped], label)


def _skip_merged_tables(parts: Sequence[Part]) -> None:
    """Skip rocprof-compute's merged table where the files of its passes are all there: they are exact, it is not.

    From 3.6 on its analyze writes that table, always under this name, in the layout of the passes' own files.
    """
    folders: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        folders[part.scope].append(part)
    for folder in folders.values():
        counted = [part for part in folder if part.source.kind in _OF_PASSES | {_MERGED} and len(part.counters)]
        merged = [part for part in counted if part.source.kind == _MERGED or _is_of_analyze(part.source)]
        single = [part for part in counted if part not in merged]
        measured = {name for part in single for name in part.counters["counter"].cat.categories}
        for part in merged:
            if set(part.counters["counter"].cat.categories) <= measured:
                _empty(part, "all its counters are in the files of the passes beside it, which are read")


def _is_of_analyze(source: Source) -> bool:
    return source.kind == "counters (long)" and PurePath(source.file).name.partition(".")[0] == "pmc_perf"


def _empty(part: Part, why: str) -> None:
    blank = Part(part.source)
    part.dispatches, part.counters, part.instances = blank.dispatches, blank.counters, blank.instances
    part.skip(why)


def _skip_repeated_formats(run: Sequence[Part]) -> None:
    """Keep one format of a run that wrote several: the one with the most counters, then dispatches."""
    families = {part.family for part in run}
    if len(families) < 2:
        return
    size = {
        family: (
            sum(len(part.counters) > 0 for part in run if part.family == family) > 0,
            max(len(part.dispatches) for part in run if part.family == family),
            -_FULLEST.index(family),
        )
        for family in families
    }
    best = max(size, key=size.__getitem__)
    chosen = next(part.source.file for part in run if part.family == best)
    for part in run:
        if part.family != best:
            _empty(part, f"it repeats {chosen}, which is read")


def _complete_with_traces(run: Sequence[Part]) -> None:
    """Fill times and queues of counters' rows from the kernel trace of the same run; other rows stay its own."""
    counters = [part for part in run if len(part.counters)]
    for trace in (part for part in run if part.timing):
        for part in counters:
            _complete(part, trace)


def _complete(part: Part, trace: Part) -> None:
    known = part.dispatches["process"].unique()
    if len(known) == 1 and (trace.dispatches["process"] == NO_PROCESS).all():
        trace.dispatches["process"] = np.int32(known[0])
    by_number = trace.numbered and part.numbered
    mine, other = _keys(part.dispatches, by_number=by_number), _keys(trace.dispatches, by_number=by_number)
    at = pd.MultiIndex.from_frame(other).get_indexer(pd.MultiIndex.from_frame(mine)) if _unique(other) else None
    if at is None or not (at >= 0).any():
        return
    found = at >= 0
    for column in ("start_ns", "end_ns", "queue", "agent", "lds_bytes", "scratch_bytes", "vgprs", "agprs", "sgprs"):
        values = part.dispatches[column]
        fill = values.isna().to_numpy() & found
        if fill.any():
            part.dispatches.loc[fill, column] = trace.dispatches[column].to_numpy()[at[fill]]
    rest = np.ones(len(trace.dispatches), bool)
    rest[at[found]] = False
    trace.dispatches = trace.dispatches[rest].reset_index(drop=True)


def _keys(dispatches: pd.DataFrame, *, by_number: bool) -> pd.DataFrame:
    """Return what identifies a dispatch in two files of one run: its number, or its place among equal launches."""
    names = ["process", "kernel", "grid", "block"]
    keys = dispatches[names].copy()
    keys["kernel"] = keys["kernel"].astype("object")
    if by_number:
        keys["dispatch"] = dispatches["dispatch"]
    else:
        order = dispatches.sort_values("dispatch", kind="stable").index
        keys["dispatch"] = keys.loc[order].groupby(names, sort=False).cumcount().sort_index()
    return keys


def _unique(keys: pd.DataFrame) -> bool:
    return not bool(keys.duplicated().any())


def _name_pass(run: Sequence[Part], label: str) -> None:
    """Take the process id out of the pass's name: ``NAME_%pid%`` gives each process of one pass a file."""
    pids = {int(pid) for part in run for pid in part.dispatches["process"].unique() if pid >= 0}
    folder, _, stem = label.rpartition("/")
    if not pids and stem.isdecimal() and len(stem) < 10:  # the default name of rocprofv3: <pid>_kernel_trace.csv
        pids = {int(stem)}
        for part in run:
            part.dispatches["process"] = np.int32(stem)
    for pid in pids:
        if stem == str(pid):
            stem = ""
        elif stem.endswith(str(pid)) and stem[-len(str(pid)) - 1] in "-_.":
            stem = stem[: -len(str(pid)) - 1]
    name = "/".join(piece for piece in (folder, stem) if piece) or "run"
    for part in run:
        old = part.dispatches["pass"].cat
        renamed = [name + str(text)[len(label) :] for text in old.categories]
        part.dispatches["pass"] = old.rename_categories(renamed)


def apart(parts: Iterable[Part]) -> None:
    """Give processes of one pass that share a process id (two hosts, a reused id) numbers of their own."""
    passes: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        for label in part.dispatches["pass"].cat.categories if len(part.dispatches) else ():
            passes[label].append(part)
    fresh = NO_PROCESS
    for sharing in passes.values():
        taken: dict[int, set[int]] = defaultdict(set)
        for part in sharing if len(sharing) > 1 else ():
            notes = Notes(part.source.file)
            for pid in part.dispatches["process"].unique():
                mine = part.dispatches["process"] == pid
                numbers = set(part.dispatches.loc[mine, "dispatch"])
                shown = int(pid)
                if taken[shown] & numbers:
                    fresh -= 1
                    shown = fresh
                    part.dispatches.loc[mine, "process"] = np.int32(shown)
                    notes.add(
                        f"dispatches of process {pid} also occur in another file of this pass",
                        f"shown as process {shown}",
                    )
                taken[shown] |= numbers
            part.problems += notes.problems()
