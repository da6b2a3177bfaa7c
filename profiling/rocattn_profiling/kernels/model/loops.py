"""Find a function's loops, its hot loop, and the usual path of an iteration."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from rocattn_profiling.kernels.model.lanes import LaneValues
from rocattn_profiling.kernels.model.trips import count_of
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction, count_mnemonics
from rocattn_profiling.kernels.read.instructions import Access, Pipe, classify, lane_flops, lane_product_flops

if TYPE_CHECKING:
    Graph = Sequence[Sequence[int]]  # successors by node


@dataclass(frozen=True)
class Loop:
    """A natural loop: a header that dominates the blocks that branch back to it.

    Attributes:
        header: The first block of each iteration.
        latches: Blocks that end an iteration.
        own: Its blocks outside inner loops.
        inner: Loops nested directly in it.
    """

    header: int
    latches: frozenset[int]
    own: frozenset[int]
    inner: tuple[Loop, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def blocks(self) -> frozenset[int]:
        """All its blocks, inner loops included. Computed on demand: for all loops of a deep nest it is too much."""
        blocks, waiting = set(self.own), list(self.inner)
        while waiting:
            loop = waiting.pop()
            blocks |= loop.own
            waiting += loop.inner
        return frozenset(blocks)


@lru_cache(maxsize=1)
def find_loops(function: AssemblyFunction) -> tuple[Loop, ...]:
    """Return all loops in the order of their headers.

    Cycles with several entries, which compilers do not produce, are not natural loops and are left out; see
    `has_irregular_cycles`.
    """
    if not function.blocks:
        return ()
    successors = [block.successors for block in function.blocks]
    order = reverse_postorder(successors, 0, range(len(successors)))
    dominates = Dominance(dominators(successors, 0))
    before: dict[int, list[int]] = {block: [] for block in order}
    latches: dict[int, set[int]] = {}
    for block in order:
        for follower in successors[block]:
            before[follower].append(block)
            if dominates(follower, block):
                latches.setdefault(follower, set()).add(block)
    headers = [block for block in order if block in latches]  # outer before inner
    own, around = _nest(headers, latches, before)
    inner: dict[int | None, list[Loop]] = {}
    loops: dict[int, Loop] = {}
    for header in reversed(headers):
        within = tuple(reversed(inner.get(header, ())))
        loops[header] = Loop(header, frozenset(latches[header]), frozenset(own[header]), within)
        inner.setdefault(around[header], []).append(loops[header])
    return tuple(loops[header] for header in sorted(headers))


def _nest(
    headers: list[int], latches: dict[int, set[int]], before: dict[int, list[int]]
) -> tuple[dict[int, set[int]], dict[int, int | None]]:
    """Return each loop's blocks outside inner loops, and the header of its enclosing loop.

    Innermost loops come first, and a finished loop is skipped as a whole, so each block is visited once.
    """
    loop_of: dict[int, int] = {}
    own: dict[int, set[int]] = {header: set() for header in headers}
    around: dict[int, int | None] = dict.fromkeys(headers)
    outermost = {header: header for header in headers}  # so far; with path compression

    def top(header: int) -> int:
        way = []
        while outermost[header] != header:
            way.append(header)
            header = outermost[header]
        for each in way:
            outermost[each] = header
        return header

    for header in reversed(headers):
        loop_of[header] = header
        own[header].add(header)
        waiting = [latch for latch in latches[header] if latch != header]
        while waiting:
            block = waiting.pop()
            if block not in loop_of:
                loop_of[block] = header
                own[header].add(block)
                waiting += before[block]
            elif (other := top(loop_of[block])) != header:
                around[other] = outermost[other] = header
                waiting += before[other]
    return own, around


def has_irregular_cycles(function: AssemblyFunction, loops: Iterable[Loop]) -> bool:
    """Return whether there are cycles other than natural loops: a depth-first search has a back edge not from a latch.

    Hecht and Ullman, "Characterizations of reducible flow graphs" (1974).

    Args:
        function: A function with instructions.
        loops: All of its loops.
    """
    back = {(latch, loop.header) for loop in loops for latch in loop.latches}
    successors = [block.successors for block in function.blocks]
    place = {block: i for i, block in enumerate(reverse_postorder(successors, 0, range(len(successors))))}
    return any(place[to] <= i and (block, to) not in back for block, i in place.items() for to in successors[block])


@lru_cache(maxsize=1)
def hot_loop(function: AssemblyFunction) -> Loop | None:
    """Return the loop that the kernel most likely spends its time in; None without loops.

    It is the loop with the most matrix instructions of its own (not in inner loops), then the most FLOPs, then the most
    global accesses, then the most vector instructions; the first of equals. A loop that stores what an inner one
    accumulates in matrix products is the tile loop of a persistent kernel: its own products are the ends of the inner
    loop's pipeline.
    A loop with a constant trip count is replaced by its enclosing loop, as if it were unrolled. A loop over the lanes
    of a wave, which LLVM generates to sum before an atomic, is never hot.
    """

    def heat(loop: Loop) -> tuple[int, int, int, int]:
        bodies = [function.blocks[block].instructions for block in loop.own]
        units = Counter(classify(instruction.mnemonic).unit for body in bodies for instruction in body)
        if matrix := units[Pipe.MATRIX]:
            return matrix, 0, 0, 0
        return 0, sum(_flops(body, lane_flops) for body in bodies), units[Pipe.GLOBAL], units[Pipe.VECTOR]

    loops = [loop for loop in find_loops(function) if not _is_over_lanes(function, loop)]
    hot = max((loop for loop in loops if not _is_over_tiles(function, loop)), key=heat, default=None)
    while hot and (around := next((loop for loop in loops if hot in loop.inner), None)):
        if _is_over_tiles(function, around) or not _repeated(function, hot):
            break
        hot = around
    return hot


def _repeated(function: AssemblyFunction, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of all iterations, if their number is constant and not too large."""
    count = count_of(function, loop.header, loop.blocks, _wave_values(function))
    if count is None or not count.trips:
        return ()
    once = usual_path(function, loop)
    instructions = sum(len(function.blocks[block].instructions) for block in once)
    return once * count.trips if instructions * count.trips <= _MOST_REPEATED else ()


@lru_cache(maxsize=1)
def _wave_values(function: AssemblyFunction) -> LaneValues:
    return LaneValues(function, function.wave_size)


def _is_over_lanes(function: AssemblyFunction, loop: Loop) -> bool:
    """Return whether a loop visits lane after lane: it reads the first lane of a mask, then clears its bit."""
    names = {each.mnemonic for block in loop.own for each in function.blocks[block].instructions}
    return "v_readlane_b32" in names and any(name.startswith(("s_ff1_i32_b", "s_ctz_i32_b")) for name in names)


def _is_over_tiles(function: AssemblyFunction, loop: Loop) -> bool:
    """Return whether a loop stores or adds to global memory, and an inner one computes matrix products only."""

    def has(loop: Loop, unit: Pipe, *accesses: Access | None) -> bool:
        body = (instruction for block in loop.own for instruction in function.blocks[block].instructions)
        operations = (instruction.operations[0] for instruction in body)
        return any(operation.unit is unit and operation.access in accesses for operation in operations)

    stored = (Pipe.GLOBAL, Access.STORE, Access.ATOMIC)
    computing = [within for within in loop.inner if has(within, Pipe.MATRIX, None)]
    return bool(computing) and has(loop, *stored) and not all(has(within, *stored) for within in computing)


def _flops(body: Collection[Instruction], flops: Callable[[str], int]) -> int:
    """Sum a block's FLOPs in vector instructions; 0 if it divides, because such blocks rarely run."""
    names = count_mnemonics(body)
    return 0 if any(map(_DIVISION.match, names)) else sum(flops(name) * count for name, count in names.items())


_MOST_REPEATED = 8192  # instructions
_DIVISION = re.compile(r"v_div_scale_|v_cvt_u32_f32")  # float division; integer division through floats


def usual_path(function: AssemblyFunction, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of a typical iteration.

    Among all paths from the header to a latch it is the one with the most FLOPs in matrix instructions (in fused
    multiply-adds, if the loop has none), then with the widest global loads (all iterations but the last fetch the next
    tile), then with the fewest instructions: code that a branch may skip counts as skipped. Two kinds of branches are
    ignored, so that the code they skip counts: branches on exec, which skip code only if no lane is active, and
    branches around code that only loads, which are a mask shared by all lanes. Inner loops are skipped if a path leads
    past them; otherwise they run their constant trip count, or once, and their loads do not attract the path.
    """
    body = {block: function.blocks[block].instructions for block in loop.blocks}
    products = {
        block: sum(classify(instruction.mnemonic).flops for instruction in each) for block, each in body.items()
    }
    if not any(products.values()):
        products = {block: _flops(each, lane_product_flops) for block, each in body.items()}
    fetched = {block: _widest_load(body[block]) for block in loop.own}
    widest = max(fetched.values(), default=0)
    masked = _masked_loads(function, loop)

    def value(block: int) -> tuple[int, bool, int]:
        return products[block], 0 < widest == fetched.get(block), -len(body[block])

    def followers(block: int) -> tuple[int, ...]:
        instructions, successors = function.blocks[block].instructions, function.blocks[block].successors
        branch = instructions[-1].mnemonic if instructions else ""
        active = {"s_cbranch_execz": successors[:1], "s_cbranch_execnz": successors[1:]}.get(branch, successors)
        active = masked.get(block, active)
        return active if loop.blocks.intersection(active) else successors

    path = _best_path(function, loop, value, followers)
    for inner in loop.inner:
        if inner.header in path and (repeated := _repeated(function, inner)):
            start = path.index(inner.header)
            end = next((i for i in range(start, len(path)) if path[i] not in inner.blocks), len(path))
            path = (*path[:start], *repeated, *path[end:])
    return path


def _masked_loads(function: AssemblyFunction, loop: Loop) -> dict[int, tuple[int]]:
    """Return the blocks with a branch that only loads -> that branch; the other one skips it, or sets other values.

    This is a mask shared by all lanes, for a tile row that a wave loads together. The code where the branches join may
    be duplicated: then both lead to the same blocks.
    """
    blocks = function.blocks
    after = {block: frozenset(_behind_jump(function, to) for to in blocks[block].successors) for block in loop.blocks}
    choices: dict[int, set[frozenset[int]]] = {}  # block -> sets of successors that contain it
    for block in loop.blocks:
        if _behind_jump(function, block) == block:
            for to in after[block]:
                choices.setdefault(to, set()).add(after[block])
    masks: dict[int, tuple[int]] = {}
    for block in loop.blocks:
        ways = [way for way in blocks[block].successors if way in loop.blocks]
        for way, other in (ways, ways[::-1]) if len(ways) == 2 else ():
            past = after[way] == {_behind_jump(function, other)} and choices.get(way) == {after[block]}
            instead = after[way] == after[other] and not any(
                each.operations[0].access for each in blocks[other].instructions
            )
            if way in loop.own and (past or instead) and _only_loads(blocks[way].instructions):
                masks[block] = (way,)
    return masks


def _behind_jump(function: AssemblyFunction, block: int) -> int:
    """Return the target of a block that only jumps; otherwise the block itself."""
    jumps = [instruction.mnemonic for instruction in function.blocks[block].instructions] == ["s_branch"]
    return next(iter(function.blocks[block].successors), block) if jumps else block


def _only_loads(body: Sequence[Instruction]) -> bool:
    """Return whether code only loads global memory and computes addresses for that.

    Code that waits for its loads uses them. Code that sets a flag is one of several alternatives: LLVM tests the flag
    before the next one. A mask has no alternatives.
    """
    operations = [instruction.operations[0] for instruction in body]
    first = next((i for i, operation in enumerate(operations) if operation.unit is Pipe.GLOBAL), len(body))
    uses = any(
        _WAIT.match(instruction.mnemonic) and not _ALU_WAIT.match(instruction.mnemonic) for instruction in body[first:]
    )
    flags = any(_FLAG.match(f"{instruction.mnemonic} {instruction.operands}") for instruction in body)
    others = {
        (operation.unit, operation.access)
        for operation, instruction in zip(operations, body, strict=True)
        if operation.unit not in _ADDRESSES and not _WAIT.match(instruction.mnemonic)
    }
    return others == {(Pipe.GLOBAL, Access.LOAD)} and not uses and not flags


_ADDRESSES = {Pipe.VECTOR, Pipe.SCALAR, Pipe.HINT, Pipe.BRANCH}
_WAIT, _ALU_WAIT = re.compile(r"s_wait"), re.compile(r"s_wait(?:cnt_depctr|_alu)")
_FLAG = re.compile(r"s_mov_b(?:32|64) [^,]+, (?:0|-1)$")


def _widest_load(body: Iterable[Instruction]) -> int:
    """Return the bytes per lane of the widest global load; 1 if the width is unknown."""
    loads = (instruction.operations[0] for instruction in body if classify(instruction.mnemonic).access is Access.LOAD)
    return max((load.width or 1 for load in loads if load.unit is Pipe.GLOBAL), default=0)


def _best_path(
    function: AssemblyFunction,
    loop: Loop,
    value: Callable[[int], tuple[int, bool, int]],
    followers: Callable[[int], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the path from the header to a latch with the best value.

    The first and third parts of the blocks' values are summed, the second is ORed; sums are compared part by part. The
    best path to a block is kept for either second part, since the one that is worse so far may win in the end.
    """
    order = reverse_postorder([block.successors for block in function.blocks], loop.header, loop.blocks)
    place = {block: i for i, block in enumerate(order)}
    ahead: dict[int, list[int]] = {}
    for block in reversed(order):
        # Paths must reach a latch. A loop over active lanes ends when none is left: then its other exit is allowed.
        for allowed in (followers(block), function.blocks[block].successors):
            ahead[block] = [
                to for to in allowed if place.get(to, -1) > place[block] and (ahead[to] or to in loop.latches)
            ]
            if ahead[block] or block in loop.latches:
                break
    best: dict[tuple[int, bool], tuple[int, int]] = {(loop.header, False): (0, 0)}  # value before the block
    came_from: dict[tuple[int, bool], tuple[int, bool]] = {}
    ends: list[tuple[tuple[int, bool, int], tuple[int, bool]]] = []
    for block in order:
        first, second, third = value(block)
        for so_far in (False, True):
            if (block, so_far) not in best:
                continue
            x, y = best[block, so_far]
            after, here = so_far or second, (x + first, y + third)
            if block in loop.latches and (loop.header in followers(block) or not ahead[block]):
                ends.append(((here[0], after, here[1]), (block, so_far)))
            for follower in ahead[block]:
                if best.get((follower, after), here) <= here:
                    best[follower, after], came_from[follower, after] = here, (block, so_far)
    at = max(ends)[1]
    path = [at[0]]
    while at in came_from:
        at = came_from[at]
        path.append(at[0])
    return tuple(reversed(path))


# ---- orders, dominators and cycles of any control-flow graph: without recursion, in nearly linear time ----


def reverse_postorder(successors: Graph, entry: int, within: Collection[int]) -> list[int]:
    """Return the nodes of a set reachable from the entry, each before its successors (except along back edges)."""
    visited, order = {entry}, []
    stack = [(entry, iter(successors[entry]))]
    while stack:
        node, followers = stack[-1]
        for follower in followers:
            if follower in within and follower not in visited:
                visited.add(follower)
                stack.append((follower, iter(successors[follower])))
                break
        else:
            stack.pop()
            order.append(node)
    return order[::-1]


def dominators(successors: Graph, entry: int) -> dict[int, int]:  # noqa: C901  one algorithm, as published
    """Return each reachable node's immediate dominator (the entry's is itself), in depth-first order.

    Lengauer and Tarjan, "A fast algorithm for finding dominators in a flowgraph" (1979), the simple version:
    O(m log n), even where the iteration of Cooper, Harvey and Kennedy is quadratic (thousands of branches to one exit).
    """
    number: dict[int, int] = {entry: 0}  # in depth-first order
    nodes, parent = [entry], [0]
    stack = [(0, iter(successors[entry]))]
    while stack:
        at, followers = stack[-1]
        for follower in followers:
            if follower not in number:
                number[follower] = len(nodes)
                stack.append((len(nodes), iter(successors[follower])))
                nodes.append(follower)
                parent.append(at)
                break
        else:
            stack.pop()
    count = len(nodes)
    before: list[list[int]] = [[] for _ in nodes]
    for at, node in enumerate(nodes):
        for follower in successors[node]:
            before[number[follower]].append(at)
    semi, best, above = list(range(count)), list(range(count)), [-1] * count
    immediate, bucket = [0] * count, [[] for _ in nodes]  # type: list[int], list[list[int]]

    def evaluate(node: int) -> int:
        """Return the node with the smallest semidominator on the path up the forest, and compress that path."""
        way = []
        while above[node] >= 0 and above[above[node]] >= 0:
            way.append(node)
            node = above[node]
        for each in reversed(way):
            if semi[best[above[each]]] < semi[best[each]]:
                best[each] = best[above[each]]
            above[each] = above[node]
        return best[way[0] if way else node]

    for at in range(count - 1, 0, -1):
        for other in before[at]:
            semi[at] = min(semi[at], semi[evaluate(other)])
        bucket[semi[at]].append(at)
        above[at] = parent[at]
        for node in bucket[parent[at]]:
            least = evaluate(node)
            immediate[node] = least if semi[least] < semi[node] else parent[at]
        bucket[parent[at]].clear()
    for at in range(1, count):
        if immediate[at] != semi[at]:
            immediate[at] = immediate[immediate[at]]
    return {node: nodes[immediate[at]] for at, node in enumerate(nodes)}


class Dominance:
    """Dominance queries in constant time.

    Args:
        immediate: The result of `dominators`, with each node after its dominator.
    """

    def __init__(self, immediate: dict[int, int]) -> None:
        self._count = dict.fromkeys(immediate, 1)  # dominated nodes, which are numbered consecutively
        for node, above in reversed(immediate.items()):
            if node != above:
                self._count[above] += self._count[node]
        self._first: dict[int, int] = {}
        free: dict[int, int] = {}
        for node, above in immediate.items():
            self._first[node] = first = free.get(above, 0)
            free[above], free[node] = first + self._count[node], first + 1

    def __call__(self, node: int, other: int) -> bool:
        """Return whether every path to `other` passes through `node`; both must be reachable."""
        return 0 <= self._first[other] - self._first[node] < self._count[node]
