"""The order of instructions in a hot loop: what overlaps with a wave's own products, and what it waits for.

`rocattn_profiling.kernels.model.cost` computes how long the units are busy; this module, whether the order of the code
lets them be busy at the same time. One product is 16 x 16 x 16 (8192 FLOPs) whatever the instruction: a 32x32x8 counts
as two, and takes twice as long.

A loop is analyzed in its steady state: the next iteration waits for what the previous one left outstanding. Each wait
is matched with its accesses by the hardware's counters (`WaitCounters`); a wait with nothing outstanding does not
count.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

from rocattn_profiling.kernels.read.assembly import Instruction, count_mnemonics
from rocattn_profiling.kernels.read.instructions import (
    FENCE,
    Access,
    Operation,
    Pipe,
    idioms,
    integer,
    is_wide_fence,
    waits_for_waves,
)

PRODUCT_FLOPS = 2 * 16**3
OVERLAP_GAP = 12
"""Maximum number of vector instructions between two products that can still overlap with them.

A 32x32x8 product on CDNA 3 keeps its unit busy for 32 cycles, in which 8 vector instructions issue; one of the two
waves on a SIMD may run ahead by about as much. With more in a row, the matrix unit waits for this wave.
"""

LATENCY = 1000
"""Approximate latency of global memory in cycles: a far cache hit takes some 500, DRAM under load twice that."""
_ITERATIONS = 4  # to reach the steady state: loads may be three tiles ahead


@dataclass(frozen=True, slots=True)
class Schedule:
    """Instruction order in one iteration of a hot loop's usual path, for one wave.

    Attributes:
        products: Matrix products, in units of 16 x 16 x 16.
        own_overlap_pct: Percentage of vector instructions between products of the same wave, at most `OVERLAP_GAP` in
            a row; None without products or vector instructions.
        run: Average number of products from one wait (for memory, LDS or other waves) to the next, over the stretches
            with products; None without products.
        read_distance: Products from an LDS read to its wait: the median over these waits, each with its last read;
            None without products or such waits.
        load_distance: The same for global loads.
        idioms: Its costly idioms (`rocattn_profiling.kernels.read.instructions.idioms`).
        read_waits, bare_read_waits: Waits for LDS reads, and the number of these without a product in between.
        loads_in_flight: Maximum number of global loads in flight when the code waits for one of them; None without
            loads.
        bytes_in_flight: Bytes per lane of those loads; direct-to-LDS loads included.
        exposed_cycles: Cycles for which a lone wave waits for global memory with a latency of `LATENCY`; None without
            global loads, and with products, where `load_distance` covers it.
    """

    products: float
    own_overlap_pct: float | None
    run: float | None
    read_distance: float | None
    read_waits: int
    bare_read_waits: int
    loads_in_flight: int | None
    bytes_in_flight: int | None
    load_distance: float | None = None
    idioms: tuple[str, ...] = ()
    exposed_cycles: float | None = None


def schedule_of(
    body: Sequence[Instruction],
    arch: str,
    *,
    is_loop: bool,
    named: Sequence[str] = (),
    cycles: Mapping[Instruction, float] | None = None,
) -> Schedule:
    """Return the order of an iteration.

    Args:
        body: Its instructions.
        arch: The GPU ("gfx942"), which determines the wait counters.
        is_loop: Whether the first instruction follows the last one.
        named: Idioms that cannot be derived from its mnemonics.
        cycles: Issue cycles of each instruction in a lone wave.
    """
    events, products = _events(body, WaitCounters(arch))
    counts, spent = Counter(body), [cycles[each] for each in body] if cycles else []
    vector = sum(times for instruction, times in counts.items() if instruction.unit is Pipe.VECTOR)
    waits = _waits(events, products, is_loop=is_loop)
    distances = [wait.distance for wait in waits if wait.distance is not None]
    loads = [wait.loads for wait in waits if wait.loads]
    load_distances = [wait.load_distance for wait in waits if wait.load_distance is not None]
    loads_of = [(each.operations[0].width, times) for each, times in counts.items() if _is_global_load(each)]
    widths = [width for width, times in loads_of for _ in range(times)]  # without a wait in the loop, all are in flight
    in_flight = max(loads, key=lambda each: (sum(each), len(each)), default=tuple(widths))
    return Schedule(
        products=products,
        own_overlap_pct=100 * _overlapped(body, is_loop=is_loop) / vector if products and vector else None,
        run=_mean_run(body, {wait.at for wait in waits}, is_loop=is_loop) if products else None,
        read_distance=median(distances) if products and distances else None,
        read_waits=len(distances),
        bare_read_waits=sum(distance == 0 for distance in distances),
        loads_in_flight=len(in_flight) if widths else None,
        bytes_in_flight=sum(in_flight) if widths else None,
        load_distance=median(load_distances) if products and load_distances else None,
        idioms=(*named_in(body), *named),
        exposed_cycles=_exposed(events, spent, is_loop=is_loop) if widths and spent and not products else None,
    )


def named_in(body: Sequence[Instruction]) -> tuple[str, ...]:
    """Return the idioms in instructions."""
    found = idioms(count_mnemonics(body))
    wide = any(is_wide_fence(instruction.mnemonic, instruction.operands) for instruction in set(body))
    return (*found, FENCE) if wide and FENCE not in found else found


def _products(instruction: Instruction) -> float:
    operation = instruction.operations[0]
    return operation.flops / PRODUCT_FLOPS if operation.unit is Pipe.MATRIX else 0


def _is_global_load(instruction: Instruction) -> bool:
    operation = instruction.operations[0]
    return operation.unit is Pipe.GLOBAL and operation.access is Access.LOAD


def _overlapped(body: Sequence[Instruction], *, is_loop: bool) -> int:
    """Count the vector instructions in short gaps between products, except for gaps with a barrier."""
    matrix = [i for i, instruction in enumerate(body) if instruction.unit is Pipe.MATRIX]
    gaps = [body[start:end] for start, end in pairwise(matrix)]
    if is_loop and matrix:
        gaps.append([*body[matrix[-1] :], *body[: matrix[0]]])
    counts = [
        sum(instruction.unit is Pipe.VECTOR for instruction in gap)
        for gap in gaps
        if not any(waits_for_waves(instruction.mnemonic) for instruction in gap)
    ]
    return sum(count for count in counts if count <= OVERLAP_GAP)


def _mean_run(body: Sequence[Instruction], waits: set[int], *, is_loop: bool) -> float:
    """Return the average number of products between waits; a loop's last stretch continues in the next iteration."""
    stretches = [0.0]
    for i, instruction in enumerate(body):
        if i in waits or waits_for_waves(instruction.mnemonic):
            stretches.append(0)
        stretches[-1] += _products(instruction)
    if is_loop and len(stretches) > 1:
        stretches[0] += stretches.pop()
    runs = [run for run in stretches if run]
    return sum(runs) / len(runs)


def _exposed(events: Sequence[_Event], cycles: Iterable[float], *, is_loop: bool) -> float:
    """Return the cycles that an iteration waits for global memory, if everything else only takes its issue cycles."""
    queues, late, waited = defaultdict[str, deque[float]](deque), 0.0, 0.0
    issued = list(accumulate(cycles))
    for iteration in range(_ITERATIONS if is_loop else 1):
        before, start = late, iteration * issued[-1]
        for at, _, what in events:
            now = start + issued[at] + late
            if isinstance(what, _Access):
                for name in what.counters:
                    queues[name].append(now + LATENCY * (what.load is not None))
                continue
            for name, left in what.left.items():
                queue = queues[name]
                ended = [queue.popleft() for _ in range(len(queue) - left)]
                late += max(max(ended, default=now) - now, 0)
                now = start + issued[at] + late
        waited = late - before
    return waited


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait with outstanding accesses.

    Attributes:
        at: Index of the instruction.
        distance: Products since the last LDS read that it waits for; None if it waits for none.
        loads: Bytes per lane of each outstanding global load; empty if it waits for none.
        load_distance: Products since the last global load that it waits for; None if it waits for none.
    """

    at: int
    distance: float | None
    loads: tuple[int, ...]
    load_distance: float | None


@dataclass(frozen=True, slots=True)
class _Access:
    """A memory access.

    Attributes:
        reads_lds: Whether it reads LDS.
        load: Bytes per lane from global memory; None unless it is a global load.
        counters: The counters that count it.
    """

    reads_lds: bool
    load: int | None
    counters: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A wait instruction: counter -> number of accesses it leaves outstanding."""

    left: dict[str, int]


class _Event(NamedTuple):
    """The position of an access or wait in the iteration, and the number of products before it."""

    at: int
    products: float
    what: _Access | _Asked


def _waits(events: Sequence[_Event], total: float, *, is_loop: bool) -> list[_Wait]:
    """Match the waits of an iteration with their accesses; in a loop, of an iteration in the steady state."""
    queues: dict[str, deque[tuple[float, _Access]]] = {}
    waits: list[_Wait] = []
    last = (_ITERATIONS if is_loop else 1) - 1
    for iteration in range(last + 1):
        for at, products, what in events:
            here = iteration * total + products
            if isinstance(what, _Access):
                for name in what.counters:
                    queues.setdefault(name, deque()).append((here, what))
                continue
            ended = {
                name: [queues[name].popleft() for _ in range(len(queues[name]) - left)]
                for name, left in what.left.items()
                if name in queues
            }
            if iteration == last and any(ended.values()):
                waits.append(_wait(at, here, ended, queues))
    return waits


def _wait(
    at: int,
    here: float,
    ended: Mapping[str, Sequence[tuple[float, _Access]]],
    queues: Mapping[str, Iterable[tuple[float, _Access]]],
) -> _Wait:
    done = [each for of_counter in ended.values() for each in of_counter]
    reads = [products for products, each in done if each.reads_lds]
    loaded = [products for products, each in done if each.load is not None]
    before = [  # once, even if two counters count it (flat)
        each.load
        for name, queue in (queues.items() if loaded else ())
        for _, each in (*ended.get(name, ()), *queue)
        if each.load is not None and name == min(each.counters)
    ]
    nearest = [here - max(places) if places else None for places in (reads, loaded)]
    return _Wait(at, nearest[0], tuple(before), nearest[1])


def _events(body: Sequence[Instruction], counters: WaitCounters) -> tuple[list[_Event], float]:
    """Return the accesses and waits in order, and the number of products of the iteration."""
    events: list[_Event] = []
    products, known = 0.0, {instruction: counters.told(instruction) for instruction in set(body)}
    for at, instruction in enumerate(body):
        what = known[instruction]
        if isinstance(what, float):
            products += what
        elif what is not None:
            events.append(_Event(at, products, what))
    return events, products


class WaitCounters:
    """The counters of a wave's outstanding accesses.

    gfx9 has one for LDS and scalar loads (lgkmcnt) and one for all vector memory (vmcnt); gfx10 adds one for stores
    (vscnt); gfx12 has one each (dscnt, kmcnt, loadcnt, storecnt). Accesses are assumed to complete in issue order:
    where they do not (scalar loads), compilers wait for all.
    """

    def __init__(self, arch: str) -> None:
        self._immediate = _IMMEDIATES[2 if arch.startswith("gfx11") else 1 if arch.startswith("gfx10") else 0]
        self._same = {} if arch.startswith("gfx12") else {"k": "ds"}
        if arch.startswith("gfx9"):
            self._same["store"] = "load"

    def told(self, instruction: Instruction) -> _Access | _Asked | float | None:
        """Return an access, a wait or a number of products; None for instructions that only take time."""
        if instruction.mnemonic.startswith("s_wait"):
            left = self.left_by(instruction)
            return _Asked(left) if left else None
        operation = instruction.operations[0]
        if operation.unit is Pipe.MATRIX:
            return operation.flops / PRODUCT_FLOPS
        if operation.unit is Pipe.VECTOR or not (names := self.of(instruction.mnemonic, operation)):
            return None
        loads = operation.access is Access.LOAD
        load = operation.width if loads and operation.unit is Pipe.GLOBAL else None
        return _Access(loads and operation.unit is Pipe.LDS, load, names)

    def of(self, mnemonic: str, operation: Operation) -> frozenset[str]:
        """Return the counters that count an instruction; none unless it is an access."""
        if operation.unit is Pipe.LDS:
            return frozenset({"ds"})
        if operation.unit in {Pipe.GLOBAL, Pipe.SCRATCH}:
            name = "load" if operation.access is Access.LOAD else "store"
            return frozenset({self._same.get(name, name), *(("ds",) if mnemonic.startswith("flat_") else ())})
        return frozenset({self._same.get("k", "k")}) if _SCALAR_LOAD.match(mnemonic) else frozenset()

    def left_by(self, wait: Instruction) -> dict[str, int]:
        """Return how many accesses a wait leaves outstanding, by counter."""
        left: dict[str, int] = {}
        for name, number in self._asked(wait).items():
            counter = self._same.get(name, name)
            left[counter] = min(number, left.get(counter, number))
        return left

    def _asked(self, instruction: Instruction) -> dict[str, int]:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        if mnemonic == "s_wait_idle":
            return dict.fromkeys(("load", "store", "ds", "k"), 0)
        if mnemonic == "s_waitcnt":
            named = {_COUNTERS[name]: int(left) for name, left in _NAMED.findall(operands) if name in _COUNTERS}
            return named or self._unpacked(operands)
        if match := _ONE.match(mnemonic):
            number = integer(operands.rpartition(",")[2].strip())
            if number is None:
                return {}
            first, second = (_COUNTERS.get(name) for name in match.groups())
            if match[2]:  # two counts in one: the first in bits 8 and up, the second in bits 0 to 5
                return {name: left for name, left in ((first, number >> 8), (second, number & 63)) if name}
            return {first: number} if first else {}
        return {}

    def _unpacked(self, operands: str) -> dict[str, int]:
        number = integer(operands.rpartition(",")[2].strip())
        if number is None:
            return {}
        return {
            name: sum((number >> low & (1 << bits) - 1) << shift for low, bits, shift in parts)
            for name, parts in self._immediate.items()
        }


_SCALAR_LOAD = re.compile(r"s_(?:buffer_)?load|s_scratch_load|s_mem(?:real)?time")
_NAMED = re.compile(r"(\w+)\((\d+)\)")
_COUNTERS = {
    "vmcnt": "load", "lgkmcnt": "ds", "vscnt": "store", "loadcnt": "load", "dscnt": "ds", "kmcnt": "k",
    "storecnt": "store",
}  # fmt: skip
_ONE = re.compile(r"s_wait(?:cnt)?_([a-z]+cnt)(?:_([a-z]+cnt))?$")
# Bits of each counter in s_waitcnt's numeric operand: (lowest bit, number of bits, their place in the count), from
# LLVM's AMDGPUBaseInfo.cpp, for gfx9, gfx10 and gfx11.
_IMMEDIATES = (
    {"load": ((0, 4, 0), (14, 2, 4)), "ds": ((8, 4, 0),)},
    {"load": ((0, 4, 0), (14, 2, 4)), "ds": ((8, 6, 0),)},
    {"load": ((10, 6, 0),), "ds": ((4, 6, 0),)},
)
