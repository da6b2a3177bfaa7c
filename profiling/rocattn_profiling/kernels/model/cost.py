"""The cost of one iteration of a kernel's hot loop: cycles by kind, FLOPs, bytes, and the resulting issue bound.

This is a throughput model. Each instruction keeps its unit busy for the cycles in ``rates.toml``; a lone wave issues
its instructions one by one (`LoopCost.issue_cycles`); with enough waves on a SIMD the units work in parallel, and the
busiest one is the bottleneck (`LoopCost.bound_cycles`). Where SIMDs share a unit (LDS, the L1 cache), all of them are
assumed to run this loop. LDS bank conflicts, waits, dependences between instructions, occupancy, cache misses and
barriers are left out: the bound is what no schedule can beat, not what a kernel reaches. It does not rank kernels by
speed, either (docs/instruction-costs.md has a case that it ranks the wrong way round).

Matrix and vector instructions share the issue port of a SIMD. On gfx11 and gfx12 a WMMA occupies it to the end: the two
serialize. On CDNA an MFMA occupies it for its first 4 cycles (8 if sparse); vector instructions of other waves, or
independent ones of the same wave, overlap with the rest, so that two waves on a SIMD can reach
``max(matrix, matrix issue + vector)``. That needs at least two waves, or a schedule that interleaves within one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rocattn_profiling.kernels.model.cache_lines import CacheLines, cache_lines
from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.lds import LdsConflicts, lds_conflicts
from rocattn_profiling.kernels.model.loops import Loop, find_loops, has_irregular_cycles, hot_loop, usual_path
from rocattn_profiling.kernels.model.rates import Cost, Rates, rates
from rocattn_profiling.kernels.model.schedule import Schedule, named_in, schedule_of
from rocattn_profiling.kernels.model.trips import Count, count_of
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction
from rocattn_profiling.kernels.read.instructions import Pipe, classify, is_indirect, waits_for_waves


@dataclass(frozen=True, slots=True)
class Work:
    """Instructions of one kind, and the cycles for which they keep their unit busy."""

    instructions: int
    cycles: float


@dataclass(frozen=True, slots=True)
class LineCost:
    """The cost of one source line ("flash.h:210") per iteration; the line is "" where the text has none."""

    line: str
    instructions: int
    cycles: float


@dataclass(frozen=True, slots=True)
class OtherLoop:
    """A loop other than the hot one: all of its own code, each instruction once, whatever path an iteration takes.

    The last of them is the hot loop's code outside its usual path, without cycles: it rarely runs.

    Attributes:
        source: Its first source line, or "".
        cycles: Issue cycles of a lone wave.
        flops, global_bytes: Its work per wave.
        barriers: Its barriers.
        idioms: Its costly idioms.
    """

    source: str
    cycles: float
    flops: int
    global_bytes: int
    barriers: int
    idioms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoopCost:
    """One iteration of the hot loop's usual path, for one wave. Every field can be written as JSON.

    Attributes:
        arch, wave_size: The assumed target and lanes per wave.
        loop: Label of the loop's header; "" if it has none, or without a loop (see `has_loop`).
        step: Increment of the loop counter per iteration; None if unknown.
        trips: Trip count, if constant; 1 without a loop.
        has_loop: Whether there is a loop; if not, the numbers are for all of the code, executed once.
        line: Its first line in the assembly text.
        source: Its first source line ("flash.h:210"), or "".
        instructions: Issued instructions.
        kinds: Work by kind: "matrix", "plain", "packed", "dual", "transcendental", …, "lds_load_16B",
            "global_load_16B", …, "scalar", "branch", "wait", "hint" (`rocattn_profiling.kernels.model.rates.kind_of`).
        issue_cycles: Cycles of a lone wave without waits: the sum of the next five.
        matrix_cycles, vector_cycles, scalar_cycles: Cycles of the matrix, vector and scalar unit.
        memory_cycles: Cycles to issue memory instructions.
        other_cycles: Cycles of branches, waits and hints.
        lds_cycles, global_cycles: Cycles for which accesses keep the LDS and the L1 cache (with scratch) busy.
        bound_cycles: Minimum cycles per iteration if other waves fill all idle cycles.
        bound_by: The busiest unit: "matrix and vector", "matrix", "vector", "transcendental", "lds",
            "global", "scalar" or "branch".
        matrix_share_pct: Matrix cycles in percent of `issue_cycles`.
        issue_bound_pct: The share of `bound_cycles` that the matrix unit could use if nothing waited, in products at
            the best dense rate of their types; None without matrix instructions. Not a measure of speed.
        matrix_flops, vector_flops: FLOPs per wave, all lanes active; a fused multiply-add counts 2.
        global_bytes: Bytes that the wave loads and stores, repeated accesses included.
        flops_per_global_byte: Arithmetic intensity of the wave; None without global accesses.
        barriers: Instructions that wait for other waves.
        others: Loops that are not part of the iteration, in code order.
        schedule: The order of its instructions; None only in old audits.
        lds: Bank conflicts of its LDS accesses; None without any, or if the GPU's banks are unknown.
        cache_lines: Cache lines touched by its global accesses; None without any.
        lines: Contribution of each source line to `issue_cycles`, largest first.
        notes: Unknowns and assumptions about this kernel.
        gaps: The notes on what the numbers leave out, or count differently from what runs.
    """

    arch: str
    wave_size: int
    loop: str
    has_loop: bool
    line: int
    source: str
    instructions: int
    kinds: dict[str, Work]
    issue_cycles: float
    matrix_cycles: float
    vector_cycles: float
    scalar_cycles: float
    memory_cycles: float
    other_cycles: float
    lds_cycles: float
    global_cycles: float
    bound_cycles: float
    bound_by: str
    matrix_share_pct: float
    issue_bound_pct: float | None
    matrix_flops: int
    vector_flops: int
    global_bytes: int
    flops_per_global_byte: float | None
    barriers: int
    schedule: Schedule | None = None
    lds: LdsConflicts | None = None
    cache_lines: CacheLines | None = None
    step: int | None = None
    trips: int | None = None
    lines: tuple[LineCost, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    others: tuple[OtherLoop, ...] = ()

    def cycles_per(self, flops: float) -> float | None:
        """Return the issue cycles per this many FLOPs, of matrix products if there are any; None without FLOPs.

        A 16 x 16 score tile of forward attention has 2 * 16 * 16 * (D + Dv).
        """
        done = self.matrix_flops or self.vector_flops
        return self.issue_cycles * flops / done if done else None


_NO_LOOP = "no loop: all of its code is counted once"
_OVERLAP = "matrix and vector instructions overlap only with two or more waves per SIMD, or interleaved in one"


def loop_cost(function: AssemblyFunction, arch: str, threads: int = 0) -> LoopCost | None:
    """Return the cost of one iteration of the hot loop, or None for a function without instructions.

    Args:
        function: A function from `parse_assembly`.
        arch: The GPU; features ("gfx942:xnack-") are ignored. If empty, the target in the text.
        threads: Threads per block, for its memory accesses; by default, those of a wave.

    Raises:
        RatesError: When the GPU has no known rates.
    """
    chip = (arch or function.target).partition(":")[0]
    table = rates(chip, function.wave_size)
    loops = find_loops(function)
    loop = hot_loop(function)
    path = usual_path(function, loop) if loop else tuple(range(len(function.blocks)))
    body = [instruction for block in path for instruction in function.blocks[block].instructions]
    if not body:
        return None
    costs = {instruction: table.cost(instruction) for instruction in set(body)}
    notes = _notes(function, table, loops, loop, path, costs)
    values = LaneValues(function, threads)
    lds, lines = lds_conflicts(function, path, chip, values), cache_lines(function, path, chip, values)
    label = function.blocks[path[0]].label if loop else ""
    line = next(block.line for at in path if (block := function.blocks[at]).instructions)
    cost = _summary(table, chip, body, costs, lds, lines, (label, line), loop is not None, notes)
    count = count_of(function, loop.header, loop.blocks, values) if loop else Count(0, 1)
    beside = [each.own for each in loops if each.header not in path]
    skipped = loop.blocks.difference(path) if loop else ()
    *others, rare = (
        _beside(table, [each for block in sorted(blocks) for each in function.blocks[block].instructions])
        for blocks in (*beside, skipped)
    )
    cost = replace(cost, others=(*others, replace(rare, cycles=0.0)))
    return replace(cost, step=count.step or None, trips=count.trips) if count else cost


def _barriers(body: Iterable[Instruction]) -> int:
    return sum(times for instruction, times in Counter(body).items() if waits_for_waves(instruction.mnemonic))


def _beside(table: Rates, body: Sequence[Instruction]) -> OtherLoop:
    counted = [(times, table.cost(instruction)) for instruction, times in Counter(body).items()]
    moved = sum(times * cost.lane_bytes for times, cost in counted if cost.unit is Pipe.GLOBAL)
    return OtherLoop(
        source=next((instruction.source for instruction in body if instruction.source), ""),
        cycles=sum(times * lone_cycles(cost) for times, cost in counted),
        flops=sum(times * (cost.flops + table.wave_size * cost.lane_flops) for times, cost in counted),
        global_bytes=table.wave_size * moved, barriers=_barriers(body), idioms=named_in(body),
    )  # fmt: skip


def _summary(
    table: Rates, chip: str, body: Sequence[Instruction], costs: Mapping[Instruction, Cost], lds: LdsConflicts | None,
    cached: CacheLines | None, place: tuple[str, int], has_loop: bool, notes: tuple[str, ...],
) -> LoopCost:  # fmt: skip
    """Sum the costs of instructions."""
    wave = table.wave_size
    busy: Counter[str] = Counter()
    kinds: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0])
    lines: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0])
    flops = {"matrix": 0, "vector": 0}
    shared_issue = peak = beside = 0.0
    moved = 0
    for instruction, times in Counter(body).items():
        cost = costs[instruction]
        part = _PARTS[cost.unit]
        cycles, spent = times * cost.cycles, times * lone_cycles(cost)
        busy[part] += spent  # type: ignore[assignment]  # a Counter of floats
        for of, taken in (kinds[cost.kind], cycles), (lines[instruction.source], spent):
            of[0] += times
            of[1] += taken
        if part in {"matrix", "vector"}:
            shared_issue += times * cost.issue
            peak += times * cost.peak_cycles
            if cost.kind == "transcendental" and cost.issue < cost.cycles:  # in a separate unit
                beside += cycles
        elif part == "memory":
            busy["lds" if cost.unit is Pipe.LDS else "global"] += cycles  # type: ignore[assignment]
            moved += times * wave * cost.lane_bytes * (cost.unit is Pipe.GLOBAL)
        elif cost.unit is Pipe.BRANCH:
            busy["branch"] += cycles  # type: ignore[assignment]
        flops["matrix"] += times * cost.flops
        flops["vector"] += times * wave * cost.lane_flops
    issue = sum(busy[part] for part in ("matrix", "vector", "scalar", "memory", "other"))
    bound_by, bound = _bound(table, busy, shared_issue, beside)
    done = sum(flops.values())
    return LoopCost(
        arch=chip, wave_size=wave, loop=place[0], has_loop=has_loop, line=place[1],
        source=next((instruction.source for instruction in body if instruction.source), ""), instructions=len(body),
        kinds={kind: Work(int(n), cycles) for kind, (n, cycles) in sorted(kinds.items())},
        issue_cycles=issue, matrix_cycles=busy["matrix"], vector_cycles=busy["vector"], scalar_cycles=busy["scalar"],
        memory_cycles=busy["memory"], other_cycles=busy["other"],
        lds_cycles=busy["lds"], global_cycles=busy["global"], bound_cycles=bound, bound_by=bound_by,
        matrix_share_pct=100 * busy["matrix"] / issue if issue else 0,
        issue_bound_pct=100 * peak / bound if busy["matrix"] else None,
        matrix_flops=flops["matrix"], vector_flops=flops["vector"], global_bytes=moved,
        flops_per_global_byte=done / moved if moved else None,
        barriers=_barriers(body),
        schedule=schedule_of(
            body, chip, is_loop=has_loop, named=["vector load of one address"] if cached and cached.uniform else [],
            cycles={instruction: lone_cycles(cost) for instruction, cost in costs.items()},
        ),
        lds=lds, cache_lines=cached,
        lines=tuple(sorted((LineCost(name, int(n), cycles) for name, (n, cycles) in lines.items()),
                           key=lambda each: (-each.cycles, each.line))),
        notes=notes, gaps=tuple(note for note in notes if note not in {_NO_LOOP, _OVERLAP}),
    )  # fmt: skip


def lone_cycles(cost: Cost) -> float:
    """Return the cycles that a lone wave needs to issue an instruction, a part of `LoopCost.issue_cycles`."""
    return cost.issue if _PARTS[cost.unit] == "memory" else cost.cycles


def _bound(table: Rates, busy: Counter[str], shared_issue: float, beside: float) -> tuple[str, float]:
    """Return the busiest unit of a SIMD and its cycles."""
    both = "matrix and vector" if busy["matrix"] and busy["vector"] else "matrix" if busy["matrix"] else "vector"
    units = {
        both: shared_issue,
        "matrix": busy["matrix"],
        "transcendental": beside,
        "lds": busy["lds"] * table.shared_by("lds"),
        "global": busy["global"] * table.shared_by("global"),
        "scalar": busy["scalar"],
        "branch": busy["branch"],
    }
    # The first of equals wins: where WMMA and vector instructions serialize, "matrix" never exceeds both together.
    name = max(units, key=lambda unit: units[unit])
    return name, units[name]


_PARTS = {
    Pipe.MATRIX: "matrix", Pipe.VECTOR: "vector", Pipe.SCALAR: "scalar", Pipe.LDS: "memory", Pipe.GLOBAL: "memory",
    Pipe.SCRATCH: "memory", Pipe.BRANCH: "other", Pipe.WAIT: "other", Pipe.HINT: "other", Pipe.OTHER: "other",
}  # fmt: skip


def _notes(
    function: AssemblyFunction, table: Rates, loops: Sequence[Loop], loop: Loop | None, path: tuple[int, ...],
    costs: Mapping[Instruction, Cost],
) -> tuple[str, ...]:  # fmt: skip
    """Return notes that a reader needs to interpret the numbers."""
    notes = []
    if loop is None:
        notes.append(_NO_LOOP)
    else:
        inner = {each.header for each in loops if each.header != loop.header and each.header in loop.blocks}
        if met := {header for header in inner if path.count(header) == 1}:
            what = "an inner loop is" if len(met) == 1 else f"{len(met)} inner loops are"
            notes.append(f"{what} counted as running once, whatever the trip count")
    units = {classify(instruction.mnemonic).unit for instruction in costs}
    if table.family.startswith("cdna") and {Pipe.MATRIX, Pipe.VECTOR} <= units:
        notes.append(_OVERLAP)
    if has_irregular_cycles(function, loops):
        notes.append("some cycles of branches have several entries: they do not count as loops")
    if any(is_indirect(instruction.mnemonic) for instruction in costs):
        notes.append("it calls or jumps to addresses in registers: code there is not counted")
    if gone := function.unknown_targets:
        notes.append(f"branch targets are not in the text: {', '.join(gone[:3])}{', …' * (len(gone) > 3)}")
    if not function.is_kernel and table.family.startswith("rdna"):
        notes.append(f"the text does not say the wave size: {function.wave_size} is assumed")
    if unrated := sorted({instruction.mnemonic for instruction, cost in costs.items() if not cost.known}):
        notes.append(f"no rates for {', '.join(unrated[:5])}: counted as plain instructions of their unit")
    return tuple(notes)
