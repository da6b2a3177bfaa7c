"""Merge the parts of all files into one `Profile`: drop duplicates, label passes, fill in times, number GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.instruction_files import trace_key
from rocattn_profiling.profile.ingest.parts import (
    MISSING,
    FilePart,
    Notes,
    agent_frame,
    categorical,
    nullable,
    one_pass,
)
from rocattn_profiling.profile.ingest.runs import separate_runs, without_rank
from rocattn_profiling.profile.ingest.table import (
    ACTIVITY_DTYPES,
    AGENT_DTYPES,
    COUNTER_DTYPES,
    DISPATCH_DTYPES,
    INSTANCE_DTYPES,
    NO_PROCESS,
    ROOF_DTYPES,
    SAMPLE_DTYPES,
    SUMMARY_DTYPES,
    THREAD_TRACE,
    Profile,
    Source,
    empty,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Formats that one run may write side by side, the most complete first.
_FULLEST = ("rocpd", "json", "csv", "chrome")
_MERGED = "counters (merged passes)"
_OF_PASSES = {"counters (wide)", "counters (long)", "counters (by number)"}


def arrange(parts: Sequence[FilePart]) -> None:
    """Skip duplicate files, label passes, and fill in missing kernel times from traces. Mutates `parts`."""
    _arrange_samples(parts)
    _skip_merged_tables(parts)
    runs: dict[tuple[str, str], list[FilePart]] = defaultdict(list)
    for part in parts:
        if len(part.dispatches) or len(part.activities):
            runs[part.scope, part.pass_label].append(part)
    for run in runs.values():
        _skip_repeated_formats(run)
        kept = [part for part in run if not part.source.skipped]
        _complete_with_traces(kept)
    for (_, label), run in runs.items():
        _name_pass([part for part in run if not part.source.skipped], label)


def _arrange_samples(parts: Sequence[FilePart]) -> None:
    """Fill in samples' kernels from the dispatches of their run, and skip formats with duplicate samples."""
    runs: dict[tuple[str, str], list[FilePart]] = defaultdict(list)
    traces: dict[int, FilePart] = {}
    for part in parts:
        runs[part.scope, part.pass_label].append(part)
    for run in runs.values():
        sampled = [part for part in run if len(part.samples)]
        if sampled:
            tables = [part.dispatches[["process", "dispatch", "kernel"]].astype("object") for part in run]
            known = pd.concat(tables).drop_duplicates(["process", "dispatch"])
            for part in sampled:
                _name_kernels(part, known)
        by_method: dict[str, FilePart] = {}
        for part in sorted(sampled, key=_detail, reverse=True):
            for method in part.samples["method"].cat.categories:
                if method == THREAD_TRACE:  # one file per dispatch: its table and its JSON are in two folders
                    first = traces.setdefault(trace_key(part.samples), part)
                else:
                    first = by_method.setdefault(method, part)
                if first is not part:
                    part.samples = part.samples[part.samples["method"] != method]
                    if not len(part.samples) and not len(part.dispatches):
                        part.skip(f"it repeats {first.source.file}, which is read")
    _drop_sampled_times(runs.values())


def _drop_sampled_times(runs: Iterable[Sequence[FilePart]]) -> None:
    """Drop dispatches of sampled or traced runs, which disturb the waves, if another run has their kernels."""
    sampled: list[FilePart] = []
    others: list[FilePart] = []
    runs = list(runs)
    # The files of a thread trace share no name with their run's, only the folder.
    traced = {part.scope for run in runs for part in run if (part.samples["method"] == THREAD_TRACE).any()}
    for run in runs:
        is_sampled = any(len(part.samples) or part.scope in traced for part in run)
        (sampled if is_sampled else others).extend(run)
    elsewhere = {name for part in others for name in part.dispatches["kernel"].unique()}
    for part in sampled:
        rest = ~part.dispatches["kernel"].isin(elsewhere)
        if not rest.all() and not len(part.counters):
            part.dispatches = part.dispatches[rest].reset_index(drop=True)
            if not len(part.dispatches) and not len(part.samples):
                part.skip("its run was sampled or traced, which disturbs its times: those of other runs are used")


def _detail(part: FilePart) -> tuple[bool, bool, int]:
    """Return a sort key that is larger for samples with more detail: instructions, then offsets."""
    known = part.samples[["instruction", "offset"]]
    return bool((known["instruction"] != "").any()), bool(known["offset"].notna().any()), len(part.samples)


def _name_kernels(part: FilePart, known: pd.DataFrame) -> None:
    """Fill in missing kernels of samples from the dispatches in the files of the same run."""
    unnamed = (part.samples["kernel"] == "").to_numpy()
    if not unnamed.any() or not len(known):
        return
    keys = ["process", "dispatch"] if (part.samples["process"] != NO_PROCESS).all() else ["dispatch"]
    if keys == ["dispatch"] and known["process"].nunique() > 1:
        return  # their dispatch numbers coincide
    index = pd.MultiIndex.from_frame(known[keys])
    at = index.get_indexer(pd.MultiIndex.from_frame(part.samples[keys].astype("object")))
    names = part.samples["kernel"].astype("object").to_numpy(copy=True)
    filled = unnamed & (at >= 0)
    names[filled] = known["kernel"].to_numpy()[at[filled]]
    part.samples["kernel"] = pd.Categorical(names)


def _skip_merged_tables(parts: Sequence[FilePart]) -> None:
    """Skip rocprof-compute's merged table if the files of all its passes are present: only they are exact.

    From 3.6 on, ``analyze`` writes that table in the layout of the passes' files, always under this name.
    """
    folders: dict[str, list[FilePart]] = defaultdict(list)
    for part in parts:
        folders[part.scope].append(part)
    for folder in folders.values():
        counted = [part for part in folder if part.source.kind in _OF_PASSES | {_MERGED} and len(part.counters)]
        merged = [part for part in counted if part.source.kind == _MERGED or _is_of_analyze(part.source)]
        single = [part for part in counted if part not in merged]
        measured = {name for part in single for name in part.counters["counter"].cat.categories}
        for part in merged:
            if set(part.counters["counter"].cat.categories) <= measured:
                _empty(part, "all its counters are in the files of the passes next to it, which are read")


def _is_of_analyze(source: Source) -> bool:
    return source.kind == "counters (long)" and PurePath(source.file).name.partition(".")[0] == "pmc_perf"


def _empty(part: FilePart, why: str) -> None:
    blank = FilePart(part.source)
    part.dispatches, part.counters, part.instances = blank.dispatches, blank.counters, blank.instances
    part.activities = blank.activities
    part.skip(why)


def _skip_repeated_formats(run: Sequence[FilePart]) -> None:
    """Keep one format of a run that wrote several: prefer counters, then the most dispatches."""
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
    chosen = next(part for part in run if part.family == best)
    for part in run:
        if part.family != best:
            if not any(len(each.activities) for each in run if each.family == best):
                chosen.activities = part.activities  # rocprof v1 writes copies only into the trace JSON
            _empty(part, f"it repeats {chosen.source.file}, which is read")


def _complete_with_traces(run: Sequence[FilePart]) -> None:
    """Fill in times and queues of counter rows from the run's kernel trace, which keeps its unmatched rows."""
    counters = [part for part in run if len(part.counters)]
    for trace in (part for part in run if part.timing):
        for part in counters:
            _complete(part, trace)


def _complete(part: FilePart, trace: FilePart) -> None:
    known = part.dispatches["process"].unique()
    if len(known) == 1 and (trace.dispatches["process"] == NO_PROCESS).all():
        trace.dispatches["process"] = np.int32(known[0])
    by_number = trace.numbered and part.numbered
    mine, other = _keys(part.dispatches, by_number=by_number), _keys(trace.dispatches, by_number=by_number)
    at = pd.MultiIndex.from_frame(other).get_indexer(pd.MultiIndex.from_frame(mine)) if _unique(other) else None
    if at is None or not (at >= 0).any():
        return
    matched = at >= 0
    for column in ("start_ns", "end_ns", "queue", "agent", "lds_bytes", "scratch_bytes", "vgprs", "agprs", "sgprs"):
        values = part.dispatches[column]
        fill = values.isna().to_numpy() & matched
        if fill.any():
            part.dispatches.loc[fill, column] = trace.dispatches[column].to_numpy()[at[fill]]
    rest = np.ones(len(trace.dispatches), bool)
    rest[at[matched]] = False
    trace.dispatches = trace.dispatches[rest].reset_index(drop=True)


def _keys(dispatches: pd.DataFrame, *, by_number: bool) -> pd.DataFrame:
    """Return a key that matches dispatches in two files of one run: the number, or the rank among equal launches."""
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


def _name_pass(run: Sequence[FilePart], label: str) -> None:
    """Remove process id and rank from a pass's name: ``NAME_%pid%`` gives each process of a pass its own file."""
    pids = {int(pid) for part in run for pid in part.dispatches["process"].unique() if pid >= 0}
    folder, _, stem = label.rpartition("/")
    if not pids and stem.isdecimal() and len(stem) < 10:  # rocprofv3's default name: <pid>_kernel_trace.csv
        pids = {int(stem)}
        for part in run:
            part.dispatches["process"] = part.activities["process"] = np.int32(stem)
    for pid in pids:
        if stem == str(pid):
            stem = ""
        elif stem.endswith(str(pid)) and stem[-len(str(pid)) - 1] in "-_.":
            stem = stem[: -len(str(pid)) - 1]
    name = without_rank("/".join(piece for piece in (folder, stem) if piece)) or "run"
    for part in run:
        part.pass_label = name
        old = part.dispatches["pass"].cat
        renamed = [name + str(text)[len(label) :] for text in old.categories]
        part.dispatches["pass"] = old.rename_categories(renamed)
        part.activities["pass"] = one_pass(name, len(part.activities))


def apart(parts: Sequence[FilePart]) -> None:
    """Renumber processes of one pass that share a process id (two hosts, a reused id)."""
    passes: dict[str, list[FilePart]] = defaultdict(list)
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
                    for beside in parts:
                        if (beside.scope, beside.pass_label) == (part.scope, part.pass_label):
                            beside.activities.loc[beside.activities["process"] == pid, "process"] = np.int32(shown)
                    notes.add(
                        f"dispatches of process {pid} also occur in another file of this pass",
                        f"shown as process {shown}",
                    )
                taken[shown] |= numbers
            part.problems += notes.problems()


def assemble(parts: list[FilePart]) -> Profile:
    """Return the profile of all parts. Consumes the parts."""
    arrange(parts)
    apart(parts)
    profile = Profile(provenance=[part.source for part in parts])
    _number_agents(profile, parts)
    profile.runs = separate_runs(parts, profile.agents)
    offsets = np.cumsum([0, *(len(part.dispatches) for part in parts)])
    for part, offset in zip(parts, offsets, strict=False):
        if offset:
            for frame in (part.counters, part.instances):
                frame["row"] = frame["row"].to_numpy(np.int32) + np.int32(offset)
    profile.dispatches = _stack(parts, "dispatches", DISPATCH_DTYPES)
    profile.counters = _stack(parts, "counters", COUNTER_DTYPES)
    profile.activities = _stack(parts, "activities", ACTIVITY_DTYPES)
    profile.instances = _stack(parts, "instances", INSTANCE_DTYPES)
    profile.summaries = _stack(parts, "summaries", SUMMARY_DTYPES)
    profile.roofs = _stack(parts, "roofs", ROOF_DTYPES)
    profile.samples = _stack(parts, "samples", SAMPLE_DTYPES)
    profile.system = {part.source.file: part.system for part in parts if part.system}
    profile.problems = [problem for part in parts for problem in part.problems]
    return profile


def _stack(parts: Sequence[FilePart], name: str, dtypes: dict[str, str]) -> pd.DataFrame:
    """Concatenate one frame of all parts, column by column, freeing each part's column once it is copied."""
    frames = [getattr(part, name) for part in parts if len(getattr(part, name))]
    if not frames:
        return empty(dtypes)
    if len(frames) == 1:
        whole: pd.DataFrame = frames[0]
        whole.index = pd.RangeIndex(len(whole))  # in place: reset_index copies in pandas 2
        return whole
    columns: dict[str, Any] = {}
    for column, dtype in dtypes.items():
        pieces = [frame.pop(column) for frame in frames]
        if dtype == "category":
            columns[column] = _union([piece.array for piece in pieces])
        else:
            columns[column] = pd.concat(pieces, ignore_index=True).astype(dtype).array
    return pd.DataFrame(columns, copy=False)


def _union(pieces: list[Any]) -> Any:
    """Concatenate categoricals with different categories."""
    names: dict[str, int] = {}
    codes = []
    for piece in pieces:
        own = np.array([names.setdefault(name, len(names)) for name in piece.categories], np.int32)
        codes.append(own[piece.codes] if len(own) else np.zeros(0, np.int32))
    return categorical(np.concatenate(codes), list(names))


def _number_agents(profile: Profile, parts: Sequence[FilePart]) -> None:
    """Build one table of the GPUs, and set each dispatch's index into it.

    A dispatch's GPU is looked up in its own file, then in its folder, then in the parent folders; numbers from other
    folders are ignored, since they may be from another machine. The files of every pass describe the same GPUs, so
    equal ones share a row.
    """
    rows: list[dict[str, Any]] = []
    known: dict[tuple[Any, ...], int] = {}
    described: dict[str, dict[int | None, int]] = {}
    for part in parts:
        for record in part.agents.astype("object").where(part.agents.notna(), None).to_dict("records"):
            agent = {str(name): value for name, value in record.items()}
            place = known.setdefault(tuple(agent[name] for name in AGENT_DTYPES if name != "file"), len(rows))
            if place == len(rows):
                rows.append(agent)
            for scope in (part.source.file, part.scope):
                described.setdefault(scope, {}).setdefault(agent["number"], place)
                described[scope].setdefault(_by_node(agent["node"]), place)
    for part in parts:
        for frame in (each for each in (part.dispatches, part.activities) if len(each)):
            numbers = frame["agent"].to_numpy(np.int64, na_value=MISSING)
            if part.by_node:
                numbers = np.where(numbers == MISSING, MISSING, _by_node(numbers))
            frame["agent"] = nullable(_places(part, numbers, described, rows), "Int32")
    tables = [agent_frame([row], row["file"]) for row in rows]
    profile.agents = pd.concat(tables, ignore_index=True) if tables else empty(AGENT_DTYPES)


def _by_node(number: Any) -> Any:
    """Return the key of a GPU that a file identifies by node id, as rocprofv3 did up to 6.4 (since then by number)."""
    return None if number is None else -1 - number


def _places(
    part: FilePart, numbers: NDArray[np.int64], described: dict[str, dict[int | None, int]], rows: list[dict[str, Any]]
) -> NDArray[np.int64]:
    """Return the row in the agents' table for each dispatch's GPU number."""
    places = np.full(len(numbers), MISSING, np.int64)
    folders = [part.source.file, part.scope]
    while "/" in folders[-1]:
        folders.append(folders[-1].rpartition("/")[0])
    for number in np.unique(numbers):
        shown = None if number == MISSING else int(number)
        keys = [(f, key) for f in folders for key in (shown, None) if key in described.get(f, {})]
        if keys:
            place = described[keys[0][0]][keys[0][1]]
        elif shown is None:
            continue
        else:
            place = len(rows)
            stated = -1 - shown if part.by_node else shown
            about = {"arch": "", "product": "", "number": stated, "file": part.source.file}
            rows.append(dict.fromkeys(AGENT_DTYPES) | about)
            described.setdefault(part.scope, {})[shown] = place
        places[numbers == number] = place
    return places
