"""Separate the runs in a set of files: passes and ranks of one run are joined, different runs never are."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.profile.collect.counters import anchors
from rocattn_profiling.profile.collect.passes import PASSES, STATE
from rocattn_profiling.profile.ingest.parts import FilePart
from rocattn_profiling.profile.ingest.table import THREAD_TRACE, Run

if TYPE_CHECKING:
    import pandas as pd

    Place = tuple[str, ...]

_PASS = re.compile(r"(pass|pmc)_\d+")  # folders of one rocprofv3 or rocprofv2 command
_RANK = re.compile(r"(?:^|(?<=[/_.-]))rank[_-]?\d+(?=$|[/_.-])")
# Counters that every pass of a run repeats.
_REPEATED = {*anchors(), "GRBM_COUNT", "SQ_CYCLES", "SQ_BUSY_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_WAVE_CYCLES"}
_MOST_NAMED = 6


@dataclass
class _Unit:
    """A pass: the files that belong together, whatever their kind.

    Attributes:
        home: The folder of its workload or collection, or "".
        place: Its folders and the name that its files share, without process ids and ranks.
        parts: Its files.
        measures: Its counters, or its sampling method; empty for times only.
        kernels: The kernels that it measured.
        gpus: (target, compute units) of the GPUs that ran them, if known.
    """

    home: str
    place: Place
    parts: list[FilePart] = field(default_factory=list)
    measures: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    gpus: frozenset[tuple[str, int]] = frozenset()

    @property
    def family(self) -> tuple[str, Place]:
        """The key shared by the passes of one run."""
        return self.home, () if self.home else tuple(piece for piece in self.place if not _PASS.fullmatch(piece))


def without_rank(label: str) -> str:
    """Remove the MPI rank from the name of a pass: the ranks of one run belong together."""
    rest, ranks = _RANK.subn("", label)
    return re.sub(r"/{2,}", "/", rest).strip("/_.-") if ranks else label


def separate_runs(parts: Sequence[FilePart], agents: pd.DataFrame) -> tuple[Run, ...]:
    """Return the runs in these files if there are several, else nothing.

    Files belong to several runs if they are in different workloads or collections, ran on different GPUs, or measured
    the same of one kernel (a counter, times, or samples of one method) without being passes or ranks of one another.

    Args:
        parts: All files, arranged; ``agent`` in their dispatches is the row in `agents`.
        agents: The GPUs.
    """
    units = _units(parts, agents)
    roots = {root for camps in _rivals(units) for root in _roots(camps)}
    leaves = {root for root in roots if not any(_is_below(other, root) for other in roots)}
    by_root: dict[Place, list[_Unit]] = defaultdict(list)
    for unit in units if leaves else ():
        by_root[_root_of(unit.place, leaves)].append(unit)
    level = next((n for n, pieces in enumerate(zip(*by_root, strict=False)) if len(set(pieces)) > 1), 0)
    runs = []
    for root, members in by_root.items():
        paths = dict.fromkeys(path for unit in members for path in _paths(unit, root, parts))
        runs.append(Run("/".join(root[level:]), tuple(paths)))
    return tuple(runs)


def several(runs: Sequence[Run]) -> str:
    """Return the message about several runs: their names, and how to report one or compare two."""
    names = ", ".join(run.name for run in runs[:_MOST_NAMED])
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    first, second = (" ".join(map(_quoted, run.paths)) for run in runs[:2])
    return (
        f"these are {len(runs)} separate runs: {names}{more}. Report one (rocattn report {first}) "
        f"or compare two (rocattn report {second} --against {first})"
    )


def _quoted(path: str) -> str:
    """Quote a path for a shell, with a trailing star outside the quotes."""
    return f"{shlex.quote(path.removesuffix('*'))}{'*' if path.endswith('*') else ''}"


def _units(parts: Sequence[FilePart], agents: pd.DataFrame) -> list[_Unit]:
    """Return the passes in the order of their files."""
    homes = _homes(parts)
    units: dict[tuple[str, str], _Unit] = {}
    for part in parts:
        methods = frozenset(part.samples["method"].unique()) - {THREAD_TRACE}
        if not len(part.dispatches) and not methods:
            continue
        home = next((folder for folder in _folders(part) if folder in homes), "")
        place = tuple(shown for shown, _ in _pieces(part))
        unit = units.setdefault((home, part.pass_label), _Unit(home, place))
        unit.parts.append(part)
        unit.measures |= methods.union(part.counters["counter"].cat.categories)
        unit.kernels |= {*part.dispatches["kernel"].unique(), *part.samples["kernel"].unique()} - {""}
        rows = part.dispatches["agent"].dropna().unique().astype(np.int64)
        known = agents.iloc[rows][["arch", "cus"]].dropna()
        unit.gpus |= {(str(arch), int(cus)) for arch, cus in known.to_numpy() if arch}
    return list(units.values())


def _homes(parts: Iterable[FilePart]) -> set[str]:
    """Return the folders that contain one run: collections of `rocattn profile`, or else rocprof-compute workloads."""
    paths = [Path(part.source.file) for part in parts]
    states = {str(path.parent) for path in paths if path.name == STATE}
    collections = {
        str(folder) for path in paths for folder in path.parents
        if str(folder) in states and path.relative_to(folder).parts[0] == PASSES
    }  # fmt: skip
    workloads = {part.scope: _folders(part) for part in parts if part.source.kind == "sysinfo"}
    return collections | {folder for folder, above in workloads.items() if collections.isdisjoint(above)}


def _folders(part: FilePart) -> list[str]:
    """Return a file's folder and its parents, the nearest first."""
    return list(map(str, Path(part.source.file).parents))


def _pieces(part: FilePart) -> list[tuple[str, str]]:
    """Split a file's place into pieces: the name without ranks, and the path up to it."""
    pieces = []
    for number, folder in enumerate(Path(part.scope).parts, 1):
        if shown := without_rank(folder):
            pieces.append((shown, str(Path(*Path(part.scope).parts[:number]))))
    return [*pieces, (part.pass_label.rpartition("/")[2], "")]


def _rivals(units: Sequence[_Unit]) -> Iterator[list[list[_Unit]]]:
    """Yield partitions of the passes; passes in different cells belong to different runs."""
    yield list(_grouped((unit.home, unit) for unit in units if unit.home).values())
    yield _by_gpu(units)
    same = _grouped(
        (key, unit) for unit in units for key in {unit.measures, *(frozenset({n}) for n in unit.measures - _REPEATED)}
    )
    for members in _distinct(same.values()):
        of_kernel = _grouped((kernel, unit) for unit in members for kernel in unit.kernels)
        for alike in _distinct(of_kernel.values()):
            yield list(_grouped((unit.family, unit) for unit in alike).values())


def _distinct(groups: Iterable[list[_Unit]]) -> list[list[_Unit]]:
    """Return the distinct groups with several passes."""
    return list({tuple(map(id, group)): group for group in groups if len(group) > 1}.values())


def _grouped(pairs: Iterable[tuple[Hashable, _Unit]]) -> dict[Hashable, list[_Unit]]:
    groups: dict[Hashable, list[_Unit]] = defaultdict(list)
    for key, unit in pairs:
        groups[key].append(unit)
    return groups


def _by_gpu(units: Sequence[_Unit]) -> list[list[_Unit]]:
    """Group the passes with known GPUs: those that share a GPU or a run belong together."""
    camps: list[tuple[set[tuple[str, int]], list[_Unit]]] = []
    for unit in units:
        if unit.gpus:
            near = [c for c in camps if c[0] & unit.gpus or any(each.family == unit.family for each in c[1])]
            camps = [camp for camp in camps if camp not in near]
            gpus = set(unit.gpus).union(*(theirs for theirs, _ in near))
            camps.append((gpus, [*(each for _, members in near for each in members), unit]))
    return [members for _, members in camps]


def _roots(camps: Sequence[Sequence[_Unit]]) -> Iterator[Place]:
    """Yield, for each pass, the shortest prefix of its place that occurs in no other cell of the partition."""
    holders: dict[Place, set[int]] = defaultdict(set)
    for number, camp in enumerate(camps):
        for unit in camp:
            for length in range(1, len(unit.place) + 1):
                holders[unit.place[:length]].add(number)
    for camp in camps if len(camps) > 1 else ():
        for unit in camp:
            prefixes = (unit.place[:length] for length in range(1, len(unit.place) + 1))
            yield next((prefix for prefix in prefixes if len(holders[prefix]) == 1), unit.place)


def _is_below(place: Place, root: Place) -> bool:
    return len(place) > len(root) and place[: len(root)] == root


def _root_of(place: Place, leaves: AbstractSet[Place]) -> Place:
    """Return the run of a pass; a pass below no run is its own run."""
    prefixes = [place[:length] for length in range(1, len(place) + 1)]
    within = [prefix for prefix in prefixes if prefix in leaves]
    apart = (prefix for prefix in prefixes if not any(leaf[: len(prefix)] == prefix for leaf in leaves))
    return within[0] if within else next(apart, place)


def _paths(unit: _Unit, root: Place, parts: Sequence[FilePart]) -> Iterator[str]:
    """Yield the folders or files that select this run alone."""
    for part in unit.parts:
        path = _pieces(part)[len(root) - 1][1]
        if path:
            yield path
            continue
        beside = [each for each in parts if each.scope == part.scope and each.pass_label == part.pass_label]
        yield part.source.file if len(beside) == 1 else str(Path(part.scope, f"{root[-1]}_*"))
