"""The loops of a function, the hot one of them, and the way an iteration usually takes through it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rocattn_profiling.audit.assembly import Counts
from rocattn_profiling.audit.graph import Dominance, cyclic_nodes, dominators, reverse_postorder
from rocattn_profiling.audit.instructions import Access, Unit, classify, lane_flops, lane_product_flops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocattn_profiling.audit.assembly import Function, Instruction


@dataclass(frozen=True)
class Loop:
    """A natural loop: a header that dominates the blocks from which a branch goes back to it.

    Attributes:
        header: Block that each iteration begins with.
        latches: Blocks that end an iteration.
        own: Its blocks that are in no inner loop.
        parent: Index of the loop around it in `find_loops`, or None.
        depth: 1 for an outermost loop.
        inner: The loops directly in it.
    """

    header: int
    latches: frozenset[int]
    own: frozenset[int]
    parent: int | None
    depth: int
    inner: tuple[Loop, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def blocks(self) -> frozenset[int]:
        """All of it, inner loops included: made when asked for, since of all loops of a deep nest it is too much."""
        found, waiting = set(self.own), list(self.inner)
        while waiting:
            loop = waiting.pop()
            found |= loop.own
            waiting += loop.inner
        return frozenset(found)


def counts_of(function: Function, blocks: Iterable[int]) -> Counts:
    """Add up what blocks hold."""
    return Counts.of(one for block in blocks for one in function.blocks[block].instructions)


def find_loops(function: Function) -> tuple[Loop, ...]:
    """Return all loops by the place of their headers.

    Cycles that can be entered at several places (compilers make none) are no natural loops and are left out; see
    `irregular_blocks`.
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
    index = {header: i for i, header in enumerate(sorted(headers))}
    depth: dict[int | None, int] = {None: 0}
    for header in headers:
        depth[header] = depth[around[header]] + 1
    inner: dict[int | None, list[Loop]] = {}
    made: dict[int, Loop] = {}
    for header in reversed(headers):
        outer = around[header]
        made[header] = Loop(
            header, frozenset(latches[header]), frozenset(own[header]), None if outer is None else index[outer],
            depth[header], tuple(reversed(inner.get(header, ()))),
        )  # fmt: skip
        inner.setdefault(outer, []).append(made[header])
    return tuple(made[header] for header in sorted(headers))


def _nest(
    headers: list[int], latches: dict[int, set[int]], before: dict[int, list[int]]
) -> tuple[dict[int, set[int]], dict[int, int | None]]:
    """Return the blocks of each loop that are in no inner one, and the header of the loop around each.

    The innermost loops come first, and one that is found is passed over as a whole: each block is visited once.
    """
    loop_of: dict[int, int] = {}
    own: dict[int, set[int]] = {header: set() for header in headers}
    around: dict[int, int | None] = dict.fromkeys(headers)
    outermost = {header: header for header in headers}  # so far; ways up are shortened on use

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


def irregular_blocks(function: Function, loops: Iterable[Loop]) -> set[int]:
    """Return the blocks that can be reached on cycles which are no natural loops.

    Args:
        function: The function.
        loops: All of its loops.
    """
    back = {(latch, loop.header) for loop in loops for latch in loop.latches}
    successors = [block.successors for block in function.blocks]
    reachable = reverse_postorder(successors, 0, range(len(successors)))
    return cyclic_nodes(successors, back).intersection(reachable)


def matrix_loops(function: Function) -> tuple[Loop, ...]:
    """Return the loops with matrix instructions of their own."""
    return tuple(loop for loop in find_loops(function) if counts_of(function, loop.own).units[Unit.MATRIX])


def hot_loop(function: Function) -> Loop | None:
    """Return the loop that the kernel spends its time in, as far as the text can tell; None without loops."""
    return hottest(function, find_loops(function))


def hottest(function: Function, loops: Iterable[Loop]) -> Loop | None:
    """Return the hot one of a function's loops.

    It is the loop with the most matrix instructions of its own (not in inner loops), else with the most FLOPs, else
    with the most vector instructions; the first of equals.
    """

    def heat(loop: Loop) -> tuple[int, int, int]:
        bodies = [function.blocks[block].instructions for block in loop.own]
        units = Counter(classify(one.mnemonic).unit for body in bodies for one in body)
        if matrix := units[Unit.MATRIX]:
            return matrix, 0, 0
        return 0, sum(_flops(body, lane_flops) for body in bodies), units[Unit.VECTOR]

    return max(loops, key=heat, default=None)


def _flops(body: Iterable[Instruction], flops: Callable[[str], int]) -> int:
    """Add up the FLOPs of vector instructions in a block; one that divides has none: it is rarely taken."""
    names = [name for one in body for name in one.mnemonics]
    return 0 if any(map(_DIVISION.match, names)) else sum(map(flops, names))


_DIVISION = re.compile(r"v_div_scale_|v_cvt_u32_f32")  # of floats; of integers, by way of floats


def usual_path(function: Function, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of an iteration in which nothing rare happens.

    Of all ways from the header to a latch it is the one with the most FLOPs in matrix instructions (in fused
    multiply-adds, if the loop has none), of these one with the widest loads of global memory (an iteration that is not
    the last fetches the next tile), of these the one with the fewest instructions: what a branch may skip is taken as
    skipped. A branch on exec decides nothing: it skips code only where no lane is active, so that code counts. Inner
    loops are passed over where a way leads past them, else run through once; what they load does not attract the path.
    """
    body = {block: function.blocks[block].instructions for block in loop.blocks}
    products = {block: sum(classify(one.mnemonic).flops for one in each) for block, each in body.items()}
    if not any(products.values()):
        products = {block: _flops(each, lane_product_flops) for block, each in body.items()}
    fetched = {block: _widest_load(body[block]) for block in loop.own}
    widest = max(fetched.values(), default=0)

    def value(block: int) -> tuple[int, bool, int]:
        return products[block], 0 < widest == fetched.get(block), -len(body[block])

    def followers(block: int) -> tuple[int, ...]:
        instructions, successors = function.blocks[block].instructions, function.blocks[block].successors
        branch = instructions[-1].mnemonic if instructions else ""
        active = {"s_cbranch_execz": successors[:1], "s_cbranch_execnz": successors[1:]}.get(branch, successors)
        return active if loop.blocks.intersection(active) else successors

    return _best_path(function, loop, value, followers)


def _widest_load(body: Iterable[Instruction]) -> int:
    """Return the bytes that a lane gets from the widest load of global memory; 1 if the width is not known."""
    loads = (one.operations[0] for one in body if classify(one.mnemonic).access is Access.LOAD)
    return max((load.width or 1 for load in loads if load.unit is Unit.GLOBAL), default=0)


def longest_path(function: Function, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of an iteration with the most instructions, inner loops run through once."""

    def value(block: int) -> tuple[int, bool, int]:
        return len(function.blocks[block].instructions), False, 0

    return _best_path(function, loop, value, lambda block: function.blocks[block].successors)


def _best_path(
    function: Function,
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
            if block in loop.latches:
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
