"""The loops of a function, its hot loop, and the usual path of an iteration."""

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
    """A natural loop: a header that dominates the blocks from which a branch goes back to it.

    Attributes:
        header: Block that each iteration begins with.
        latches: Blocks that end an iteration.
        own: Its blocks that are in no inner loop.
        inner: The loops directly in it.
    """

    header: int
    latches: frozenset[int]
    own: frozenset[int]
    inner: tuple[Loop, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def blocks(self) -> frozenset[int]:
        """All of it, inner loops included: made when asked for, since of all loops of a deep nest it is too much."""
        blocks, waiting = set(self.own), list(self.inner)
        while waiting:
            loop = waiting.pop()
            blocks |= loop.own
            waiting += loop.inner
        return frozenset(blocks)


@lru_cache(maxsize=1)
def find_loops(function: AssemblyFunction) -> tuple[Loop, ...]:
    """Return all loops by the place of their headers.

    Cycles that can be entered at several places (compilers make none) are no natural loops and are left out; see
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
    headers = [block for block in order if block in latches]  # each before those inside it
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
    """Return the blocks of each loop that are in no inner one, and the header of the loop around each.

    Innermost loops come first, and a finished loop is skipped as a whole, so each block is visited once.
    """
    loop_of: dict[int, int] = {}
    own: dict[int, set[int]] = {header: set() for header in headers}
    around: dict[int, int | None] = dict.fromkeys(headers)
    outermost = {header: header for header in headers}  # so far; paths up are shortened on use

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
    """Whether there are cycles that are no natural loops: a depth-first search goes back on an edge of no latch.

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
    """Return the loop that the kernel spends its time in, as far as the text can tell; None without loops.

    It is the loop with the most matrix instructions of its own (not in inner loops), else with the most FLOPs, else
    with the most accesses of global memory, else with the most vector instructions; the first of equals. A loop that
    stores what an inner one sums up in matrix products is the loop over tiles of a persistent kernel: its own products
    are the ends of that one's pipeline.
    Instead of a loop that runs a constant number of times it is the loop around that: unrolled, no other would be left.
    A loop over the lanes of a wave, as LLVM sums up before an atomic, is none that a kernel spends its time in.
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
    """Return the blocks of all iterations of a loop, if they are a constant number, and not too many to look at."""
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
    """Whether a loop reads one lane after the other: the first of a mask, which loses it."""
    names = {each.mnemonic for block in loop.own for each in function.blocks[block].instructions}
    return "v_readlane_b32" in names and any(name.startswith(("s_ff1_i32_b", "s_ctz_i32_b")) for name in names)


def _is_over_tiles(function: AssemblyFunction, loop: Loop) -> bool:
    """Whether a loop stores or adds to global memory, and one in it computes matrix products and does not."""

    def has(loop: Loop, unit: Pipe, *accesses: Access | None) -> bool:
        body = (instruction for block in loop.own for instruction in function.blocks[block].instructions)
        operations = (instruction.operations[0] for instruction in body)
        return any(operation.unit is unit and operation.access in accesses for operation in operations)

    stored = (Pipe.GLOBAL, Access.STORE, Access.ATOMIC)
    computing = [within for within in loop.inner if has(within, Pipe.MATRIX, None)]
    return bool(computing) and has(loop, *stored) and not all(has(within, *stored) for within in computing)


def _flops(body: Collection[Instruction], flops: Callable[[str], int]) -> int:
    """Add up the FLOPs of vector instructions in a block; one that divides has none: it is rarely taken."""
    names = count_mnemonics(body)
    return 0 if any(map(_DIVISION.match, names)) else sum(flops(name) * count for name, count in names.items())


_MOST_REPEATED = 8192  # instructions
_DIVISION = re.compile(r"v_div_scale_|v_cvt_u32_f32")  # of floats; of integers, by way of floats


def usual_path(function: AssemblyFunction, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of an iteration in which nothing rare happens.

    Of all ways from the header to a latch it is the one with the most FLOPs in matrix instructions (in fused
    multiply-adds, if the loop has none), of these one with the widest loads of global memory (an iteration that is not
    the last fetches the next tile), of these the one with the fewest instructions: what a branch may skip is taken as
    skipped. A branch on exec decides nothing: it skips code only where no lane is active, so that code counts. Nor does
    a branch round nothing but loads: it is the mask of what all lanes load or none. Inner loops are passed over where a
    way leads past them, else run through as often as a constant says, or once; what they load does not attract the
    path.
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
    """Return the blocks from which one way only loads, and that way; the other goes past it, or sets other values.

    That is how a mask looks which is the same for all lanes, of a row of a tile that a wave loads together. Where the
    ways meet there may be a copy for each: then they lead to the same blocks.
    """
    blocks = function.blocks
    after = {block: frozenset(_behind_jump(function, to) for to in blocks[block].successors) for block in loop.blocks}
    choices: dict[int, set[frozenset[int]]] = {}  # by block: those that it is one of
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
    """Return where a block leads that only jumps; else itself."""
    jumps = [instruction.mnemonic for instruction in function.blocks[block].instructions] == ["s_branch"]
    return next(iter(function.blocks[block].successors), block) if jumps else block


def _only_loads(body: Sequence[Instruction]) -> bool:
    """Whether code loads global memory, computes addresses for that, and does nothing else.

    Code that waits for what it loads uses it. Code that sets a flag is one of several ways to do something: LLVM asks
    the flag before the next of them. A mask has no next way.
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
    """Return the bytes that a lane gets from the widest load of global memory; 1 if the width is not known."""
    loads = (instruction.operations[0] for instruction in body if classify(instruction.mnemonic).access is Access.LOAD)
    return max((load.width or 1 for load in loads if load.unit is Pipe.GLOBAL), default=0)


def _best_path(
    function: AssemblyFunction,
    loop: Loop,
    value: Callable[[int], tuple[int, bool, int]],
    followers: Callable[[int], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the way from the header to a latch with the best value.

    Values of blocks are added up, or for the second part combined by "or", and compared part by part. The best way to
    a block is kept for either second part, since a worse one so far may be the better one in the end.
    """
    order = reverse_postorder([block.successors for block in function.blocks], loop.header, loop.blocks)
    place = {block: i for i, block in enumerate(order)}
    ahead: dict[int, list[int]] = {}
    for block in reversed(order):
        # Ways that come to no latch are no ways. A loop over active lanes ends when none is left: there its other exit.
        for allowed in (followers(block), function.blocks[block].successors):
            ahead[block] = [
                to for to in allowed if place.get(to, -1) > place[block] and (ahead[to] or to in loop.latches)
            ]
            if ahead[block] or block in loop.latches:
                break
    best: dict[tuple[int, bool], tuple[int, int]] = {(loop.header, False): (0, 0)}  # up to before the block
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
    """Return the nodes reachable from one inside a set, each before those it leads to (but for back edges)."""
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
    """Return each reachable node's immediate dominator, the entry's being itself, in the order of a depth-first search.

    Lengauer and Tarjan, "A fast algorithm for finding dominators in a flowgraph" (1979), the simple version:
    O(m log n), also where the iteration of Cooper, Harvey and Kennedy is quadratic (thousands of branches to one exit).
    """
    number: dict[int, int] = {entry: 0}  # in the order of a depth-first search
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
        """Return the node with the smallest semidominator on the way up the forest, and shorten that way."""
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
    """Answers which nodes dominate which, each in constant time.

    Args:
        immediate: What `dominators` returns: each node behind its dominator.
    """

    def __init__(self, immediate: dict[int, int]) -> None:
        self._count = dict.fromkeys(immediate, 1)  # of the nodes that each dominates, which have numbers in a row
        for node, above in reversed(immediate.items()):
            if node != above:
                self._count[above] += self._count[node]
        self._first: dict[int, int] = {}
        free: dict[int, int] = {}
        for node, above in immediate.items():
            self._first[node] = first = free.get(above, 0)
            free[above], free[node] = first + self._count[node], first + 1

    def __call__(self, node: int, other: int) -> bool:
        """Whether every way to `other` leads through `node`; both are reachable."""
        return 0 <= self._first[other] - self._first[node] < self._count[node]
