"""From which length on one backend beats another: bisection over lengths, each judged by interleaved launches.

A comparison at one length is that of `rocattn bench`: fresh processes, samples in turns, a 95 % t interval over
launches. It says "faster" only if the interval leaves 1. The number of launches is fixed beforehand: adding some until
an interval leaves 1 would make that happen too often. Between two measured lengths with one verdict it is taken to hold
throughout; the middle is always measured, so that a change there and back is not easily missed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.backends import BACKENDS
from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn.thresholds import Cell, Range, Thresholds, ThresholdsError, foreign, load_thresholds, machine_identity
from rocattn_profiling.base.files import write_text
from rocattn_profiling.bench.side_by_side import measure_side_by_side
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.feasibility import memory_problem
from rocattn_profiling.measure.stats import Speedup, compare_launches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.measure.settings import Settings

RESOLUTION = 1.2
"""Ratio of two lengths, one on each side of a threshold, at which bisection ends."""


def verdict(found: Speedup) -> int:
    """Return 1 if the second backend is faster with 95 % confidence, -1 if the first is, 0 if neither is."""
    return 1 if found.low > 1 else -1 if found.high < 1 else 0


def find_ranges(
    compare: Callable[[int], Speedup], backends: tuple[str, str], shortest: int, longest: int
) -> tuple[tuple[Range, ...], dict[int, Speedup]]:
    """Find where each of two backends is the faster one.

    Args:
        compare: Measures at a length; asked once for each.
        backends: Its slow and its fast one.
        shortest: Where to begin.
        longest: Where to end.

    Returns:
        The ranges, and every measurement by length. A range goes from the first to the last of neighbouring measured
        lengths with one verdict; what holds at the shortest or longest is taken to go on beyond it. Lengths at which
        nothing was proven are in no range.
    """
    known = {length: compare(length) for length in (shortest, longest)}
    following: int | None = round(math.sqrt(shortest * longest))
    while following is not None:
        if following not in known:
            known[following] = compare(following)
        following = _undivided(known)
    ranges = []
    for sign, run in itertools.groupby(sorted(known), key=lambda length: verdict(known[length])):
        lengths = list(run)
        if sign:
            begins, ends = lengths[0] > shortest, lengths[-1] < longest
            ranges.append(Range(lengths[0] if begins else 1, lengths[-1] if ends else None, backends[sign > 0]))
    return tuple(ranges), known


def _undivided(known: dict[int, Speedup]) -> int | None:
    """Return a length between two neighbours of different verdicts that are not near enough; None if there are none."""
    for a, b in itertools.pairwise(sorted(known)):
        if verdict(known[a]) != verdict(known[b]) and b > RESOLUTION * a and b - a > 1:
            return round(math.sqrt(a * b))
    return None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `measure_crossover` goes through: every head dimension, dtype and mask kind on one shape.

    Attributes:
        backends: Two names; the first is what the second is compared with.
        head_dims, dtypes, masks: Lists; mask kinds are `rocattn.thresholds.MASKS`.
        batch, num_heads, num_kv_heads, layout, direction, seq_q: As in `rocattn.thresholds.Cell`.
        shortest, longest: Lengths between which thresholds are sought.
    """

    backends: tuple[str, str]
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]
    masks: tuple[str, ...]
    shortest: int
    longest: int
    batch: int = 1
    num_heads: int = 8
    num_kv_heads: int = 8
    layout: str = "BSHD"
    direction: str = "forward"
    seq_q: int | None = None

    def cells(self) -> list[Cell]:
        """Return every cell, not measured yet."""
        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("backends", "batch", "num_heads", "num_kv_heads", "layout", "direction", "seq_q")
        }
        return [
            Cell(head_dim=dim, dtype=dtype, mask=mask, **shared)
            for dim in self.head_dims
            for dtype in self.dtypes
            for mask in self.masks
        ]


def config_of_cell(cell: Cell, length: int) -> AttentionConfig:
    """Return the config of a cell at a length."""
    seq_q = length if cell.seq_q is None else cell.seq_q
    own = cell.mask in {"bool", "additive"}
    return AttentionConfig(
        batch=cell.batch,
        num_heads=cell.num_heads,
        num_kv_heads=cell.num_kv_heads,
        seq_q=seq_q,
        seq_k=length,
        head_dim=cell.head_dim,
        dtype=cell.dtype,
        layout=cell.layout,
        causal=cell.mask == "causal",
        mask=cell.mask if own else "none",  # type: ignore[arg-type]  # one of MASKS: the two that are masks
        mask_shape=(1, 1, seq_q, length) if own else None,
        direction=cell.direction,  # type: ignore[arg-type]  # checked by the config itself
    )


class FaultError(RocattnError):
    """Raised when a backend crashes, or its output is ``wrong``: the cell has no measurement."""

    def __init__(self, message: str, *, wrong: bool = False) -> None:
        super().__init__(message)
        self.wrong = wrong


def measure_cell(
    cell: Cell,
    shortest: int,
    longest: int,
    settings: Settings,
    on_step: Callable[[str], None],
    on_fault: Callable[[FaultError], None] | None = None,
) -> Cell:
    """Return a cell with what was measured, or with the reason why nothing was; ``on_fault`` is told of a fault."""
    for name in cell.backends:
        backend = BACKENDS.get(name)
        answer = BACKENDS.supports(backend, config_of_cell(cell, shortest))
        problem = answer.reason if not answer else "it runs on the stand-in GPU" if backend.is_stand_in else ""
        if not problem and (largest := config_of_cell(cell, longest)) and BACKENDS.supports(backend, largest):
            problem = memory_problem(largest, backend, len(cell.backends), machine.available_memory_bytes())
            problem += f" at {longest} tokens: lower --lengths" if problem else ""
        if problem:
            return replace(cell, skipped=f"{name}: {problem}")

    def compare(length: int) -> Speedup:
        config = config_of_cell(cell, length)
        sides = measure_side_by_side(config, cell.backends, settings, settings.threads)
        on_step(config.label)
        for name, side in sides.items():
            if side.failed:
                raise FaultError(f"{name} failed on {config.label}: {side.failed}")
            if side.check is None or not side.check.ok:
                raise FaultError(f"{name} gave a wrong output on {config.label}", wrong=True)
        slow, fast = cell.backends
        return compare_launches(sides[slow].launches, sides[fast].launches, slow, fast)

    try:
        ranges, known = find_ranges(compare, cell.backends, shortest, longest)
    except RocattnError as error:
        if on_fault is not None:
            on_fault(error if isinstance(error, FaultError) else FaultError(str(error)))
        return replace(cell, skipped=str(error))
    return replace(cell, ranges=ranges, evidence=tuple(_evidence(length, known[length]) for length in sorted(known)))


def _evidence(length: int, found: Speedup) -> dict[str, Any]:
    values = {"ratio": found.ratio, "low": found.low, "high": found.high}
    return {"length": length, "launches": found.launches, **{name: round(value, 4) for name, value in values.items()}}


def measure_crossover(
    plan: Plan,
    settings: Settings,
    path: Path,
    about: dict[str, Any],
    *,
    fresh: bool = False,
    on_cell: Callable[[Cell], None] = lambda _cell: None,
    on_step: Callable[[str], None] = lambda _what: None,
    on_fault: Callable[[FaultError], None] | None = None,
) -> tuple[Thresholds, list[Cell]]:
    """Measure all cells of a plan into a file of thresholds; it is whole after every cell.

    Cells of the file that the plan does not name are kept, and so are those that it names, unless ``fresh`` or they are
    of other lengths, settings or sources. Each cell says of which it is: after a change a run may be interrupted, or
    name only some of them.

    Args:
        plan: What to measure.
        settings: How; ``threads`` must be set.
        path: The file.
        about: What is written beside it for people; of its "code", "settings" and "lengths" the new cells are.
        fresh: Measure everything anew.
        on_cell: Called after each cell, kept ones included.
        on_step: Called after each measured length.
        on_fault: Called when a backend crashed or its output was wrong, which costs the cell.

    Returns:
        The whole file, and the plan's cells.

    Raises:
        ThresholdsError: When the file is there and is of another machine or thread count, or no such file.
    """
    cells: dict[tuple[Any, ...], Cell] = {}
    if path.exists():
        old = load_thresholds(path, force=True)
        if problem := foreign(old):
            raise ThresholdsError(f"{path} was measured {problem}: choose another --out, or remove it")
        cells = {_key(cell): cell for cell in old.cells}
    backends = {*plan.backends, *(name for cell in cells.values() for name in cell.backends)}
    thresholds = Thresholds(
        machine=machine_identity(backends), threads=settings.threads, cells=tuple(cells.values()), about=about
    )
    asked, state = [], _state(about)
    for cell in plan.cells():
        known = cells.get(_key(cell))
        if fresh or known is None or known.skipped or known.state != state:
            known = replace(measure_cell(cell, plan.shortest, plan.longest, settings, on_step, on_fault), state=state)
            cells[_key(cell)] = known
            thresholds = replace(thresholds, cells=tuple(cells.values()))
            encoded = msgspec.json.format(msgspec.json.encode(thresholds.to_dict()), indent=1).decode()
            write_text(path, encoded + "\n")
        asked.append(known)
        on_cell(known)
    return thresholds, asked


def _state(about: dict[str, Any]) -> str:
    """Return what must be the same for two runs to measure the same cells."""
    same = {name: about[name] for name in ("code", "settings", "lengths")}
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()[:16]


def _key(cell: Cell) -> tuple[Any, ...]:
    return (*cell.kind, cell.head_dim, *cell.backends)


def describe(ranges: Sequence[Range]) -> str:
    """Return ranges in words: "cpu up to 24, cpu-flash from 48"; "undecided" for none."""
    parts = []
    for each in ranges:
        begins, ends = each.from_length > 1, each.to_length is not None
        where = f"{each.from_length} to {each.to_length}" if begins and ends else ""
        where = where or (f"from {each.from_length}" if begins else f"up to {each.to_length}" if ends else "everywhere")
        parts.append(f"{each.winner} {where}")
    return ", ".join(parts) or "undecided"
