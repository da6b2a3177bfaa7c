"""Tell the runs in a set of files apart: passes and ranks of one run are joined, two runs never are."""

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

_PASS = re.compile(r"(pass|pmc)_\d+")  # folders of one call of rocprofv3 or rocprofv2
_RANK = re.compile(r"(?:^|(?<=[/_.-]))rank[_-]?\d+(?=$|[/_.-])")
# What passes of one run repeat, beside what each of them is for.
_REPEATED = {*anchors(), "GRBM_COUNT", "SQ_CYCLES", "SQ_BUSY_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_WAVE_CYCLES"}
_MOST_NAMED = 6


@dataclass
class _Unit:
    """What a pass measured: its files count together, whatever they are.

    Attributes:
        home: The folder of its workload or collection; "" for none.
        place: Its folders and the name that its files share, process ids and ranks left out.
        parts: Its files.
        measures: Its counters, or how it was sampled; empty for times only.
        kernels: The kernels that it measured.
        gpus: (target, compute units) of those that ran them, as far as known.
    """

    home: str
    place: Place
    parts: list[FilePart] = field(default_factory=list)
    measures: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    gpus: frozenset[tuple[str, int]] = frozenset()

    @property
    def family(self) -> tuple[str, Place]:
        """What passes of one run have in common."""
        return self.home, () if self.home else tuple(piece for piece in self.place if not _PASS.fullmatch(piece))


def without_rank(label: str) -> str:
    """Return the name of a pass without the number of an MPI rank: the ranks of one run count together."""
    rest, ranks = _RANK.subn("", label)
    return re.sub(r"/{2,}", "/", rest).strip("/_.-") if ranks else label


def separate_runs(parts: Sequence[FilePart], agents: pd.DataFrame) -> tuple[Run, ...]:
    """Return the runs that these files are of if they are of several, else nothing.

    Files are of several runs where each has a folder of its own (a workload, a collection), where they ran on different
    GPUs, or where they counted the same, or timed or sampled in the same way, of one kernel and are no passes or ranks
    of each other.

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
    """Return what to say of several runs: which they are, and how to report one or to compare two."""
    names = ", ".join(run.name for run in runs[:_MOST_NAMED])
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    first, second = (" ".join(map(_quoted, run.paths)) for run in runs[:2])
    return (
        f"these are {len(runs)} separate runs: {names}{more}. Report one (rocattn report {first}) "
        f"or compare two (rocattn report {second} --against {first})"
    )


def _quoted(path: str) -> str:
    """Return a path for a shell, a trailing star outside the quotes."""
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
    """Return the folders that are a run: collections of `rocattn profile`, else workloads of rocprof-compute."""
    paths = [Path(part.source.file) for part in parts]
    states = {str(path.parent) for path in paths if path.name == STATE}
    collections = {
        str(folder) for path in paths for folder in path.parents
        if str(folder) in states and path.relative_to(folder).parts[0] == PASSES
    }  # fmt: skip
    workloads = {part.scope: _folders(part) for part in parts if part.source.kind == "sysinfo"}
    return collections | {folder for folder, above in workloads.items() if collections.isdisjoint(above)}


def _folders(part: FilePart) -> list[str]:
    """Return the folder of a file and those above it, the nearest first."""
    return list(map(str, Path(part.source.file).parents))


def _pieces(part: FilePart) -> list[tuple[str, str]]:
    """Return the place of a file, piece by piece: its name without ranks, and the path up to it."""
    pieces = []
    for number, folder in enumerate(Path(part.scope).parts, 1):
        if shown := without_rank(folder):
            pieces.append((shown, str(Path(*Path(part.scope).parts[:number]))))
    return [*pieces, (part.pass_label.rpartition("/")[2], "")]


def _rivals(units: Sequence[_Unit]) -> Iterator[list[list[_Unit]]]:
    """Yield groups of camps: the passes in one are not of the run of those in another."""
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
    """Return groups of several passes, each once."""
    return list({tuple(map(id, group)): group for group in groups if len(group) > 1}.values())


def _grouped(pairs: Iterable[tuple[Hashable, _Unit]]) -> dict[Hashable, list[_Unit]]:
    groups: dict[Hashable, list[_Unit]] = defaultdict(list)
    for key, unit in pairs:
        groups[key].append(unit)
    return groups


def _by_gpu(units: Sequence[_Unit]) -> list[list[_Unit]]:
    """Return the passes whose GPUs are known: those with a GPU in common, and those of one run, together."""
    camps: list[tuple[set[tuple[str, int]], list[_Unit]]] = []
    for unit in units:
        if unit.gpus:
            near = [c for c in camps if c[0] & unit.gpus or any(each.family == unit.family for each in c[1])]
            camps = [camp for camp in camps if camp not in near]
            gpus = set(unit.gpus).union(*(theirs for theirs, _ in near))
            camps.append((gpus, [*(each for _, members in near for each in members), unit]))
    return [members for _, members in camps]


def _roots(camps: Sequence[Sequence[_Unit]]) -> Iterator[Place]:
    """Yield for each pass the shortest piece of its place that no other camp has."""
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
    """Return the run that a pass is of; one that is below none is a run of its own."""
    prefixes = [place[:length] for length in range(1, len(place) + 1)]
    within = [prefix for prefix in prefixes if prefix in leaves]
    apart = (prefix for prefix in prefixes if not any(leaf[: len(prefix)] == prefix for leaf in leaves))
    return within[0] if within else next(apart, place)


def _paths(unit: _Unit, root: Place, parts: Sequence[FilePart]) -> Iterator[str]:
    """Yield the folders or files to name to read a run alone."""
    for part in unit.parts:
        path = _pieces(part)[len(root) - 1][1]
        if path:
            yield path
            continue
        beside = [each for each in parts if each.scope == part.scope and each.pass_label == part.pass_label]
        yield part.source.file if len(beside) == 1 else str(Path(part.scope, f"{root[-1]}_*"))
