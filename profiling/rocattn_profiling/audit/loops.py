"""The loops of a function, the hot one of them, and the way an iteration usually takes through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.audit.assembly import Counts
from rocattn_profiling.audit.instructions import Access, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from rocattn_profiling.audit.assembly import Function


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: a header that dominates the blocks from which a branch goes back to it.

    Attributes:
        header: Block that each iteration begins with.
        latches: Blocks that end an iteration.
        blocks: All of it, inner loops included.
        own: Its blocks that are in no inner loop.
        parent: Index of the loop around it in `find_loops`, or None.
        depth: 1 for an outermost loop.
    """

    header: int
    latches: frozenset[int]
    blocks: frozenset[int]
    own: frozenset[int]
    parent: int | None
    depth: int


def counts_of(function: Function, blocks: Iterable[int]) -> Counts:
    """Add up what blocks hold."""
    total = Counts()
    for block in blocks:
        total += function.blocks[block].counts
    return total


def find_loops(function: Function) -> tuple[Loop, ...]:
    """Return all loops by the place of their headers.

    Cycles that can be entered at several places (compilers make none) are no natural loops and are left out.
    """
    order = _reverse_postorder(function, 0, range(len(function.blocks)))
    before = _predecessors(function, order)
    dominator = _dominators(order, before)
    latches: dict[int, set[int]] = {}
    for block in order:
        for follower in function.blocks[block].successors:
            if _dominates(dominator, follower, block):
                latches.setdefault(follower, set()).add(block)
    bodies = {header: _body(header, ends, before) for header, ends in latches.items()}
    headers = sorted(bodies)
    index = {header: i for i, header in enumerate(headers)}
    around: dict[int, int | None] = {}
    for header in headers:
        outer = [other for other in headers if other != header and header in bodies[other]]
        around[header] = min(outer, key=lambda other: len(bodies[other]), default=None)
    inner: dict[int, set[int]] = {header: set() for header in headers}
    for header, outer_header in around.items():
        if outer_header is not None:
            inner[outer_header] |= bodies[header]
    made = []
    for header in headers:
        depth, at = 1, around[header]
        parent = None if at is None else index[at]
        while at is not None:
            depth, at = depth + 1, around[at]
        body = frozenset(bodies[header])
        made.append(Loop(header, frozenset(latches[header]), body, body - inner[header], parent, depth))
    return tuple(made)


def matrix_loops(function: Function) -> tuple[Loop, ...]:
    """Return the loops with matrix instructions of their own."""
    return tuple(loop for loop in find_loops(function) if counts_of(function, loop.own).units[Unit.MATRIX])


def hot_loop(function: Function) -> Loop | None:
    """Return the loop that the kernel spends its time in, as far as the text can tell.

    It is the loop with the most matrix instructions of its own (not in inner loops), else with the most vector
    instructions; the first of equals.
    """

    def heat(loop: Loop) -> tuple[int, int]:
        counts = counts_of(function, loop.own)
        matrix = counts.units[Unit.MATRIX]
        return matrix, 0 if matrix else counts.units[Unit.VECTOR]

    return max(find_loops(function), key=heat, default=None)


def usual_path(function: Function, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of an iteration in which nothing rare happens.

    Of all ways from the header to a latch it is the one with the most FLOPs in matrix instructions, of these one that
    loads global memory if any does (an iteration that is not the last fetches the next tile), of these the one with the
    fewest instructions: what a branch may skip is taken as skipped. A branch on exec decides nothing: it skips code
    only where no lane is active, so that code counts. Inner loops are passed over where a way leads past them, else run
    through once; what they load does not attract the path.
    """

    def value(block: int) -> tuple[int, bool, int]:
        counts = function.blocks[block].counts
        return counts.flops, block in loop.own and counts.accesses(Unit.GLOBAL, Access.LOAD) > 0, -counts.instructions

    def followers(block: int) -> tuple[int, ...]:
        instructions, successors = function.blocks[block].instructions, function.blocks[block].successors
        branch = instructions[-1].mnemonic if instructions else ""
        active = {"s_cbranch_execz": successors[:1], "s_cbranch_execnz": successors[1:]}.get(branch, successors)
        return active if loop.blocks.intersection(active) else successors

    return _best_path(function, loop, value, followers)


def longest_path(function: Function, loop: Loop) -> tuple[int, ...]:
    """Return the blocks of an iteration with the most instructions, inner loops run through once."""

    def value(block: int) -> tuple[int, bool, int]:
        return function.blocks[block].counts.instructions, False, 0

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
    order = _reverse_postorder(function, loop.header, loop.blocks)
    place = {block: i for i, block in enumerate(order)}
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
            for follower in followers(block):
                if place.get(follower, -1) > place[block] and best.get((follower, after), here) <= here:
                    best[follower, after], came_from[follower, after] = here, (block, so_far)
    at = max(ends)[1]
    path = [at[0]]
    while at in came_from:
        at = came_from[at]
        path.append(at[0])
    return tuple(reversed(path))


def _reverse_postorder(function: Function, entry: int, within: Collection[int]) -> list[int]:
    """Return the blocks reachable from one inside a set, each before those it leads to (but for back edges)."""
    if not within:
        return []
    seen, order = {entry}, []
    stack = [(entry, iter(function.blocks[entry].successors))]
    while stack:
        block, followers = stack[-1]
        for follower in followers:
            if follower in within and follower not in seen:
                seen.add(follower)
                stack.append((follower, iter(function.blocks[follower].successors)))
                break
        else:
            stack.pop()
            order.append(block)
    return order[::-1]


def _predecessors(function: Function, order: list[int]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for follower in function.blocks[block].successors:
            before[follower].append(block)
    return before


def _dominators(order: list[int], before: dict[int, list[int]]) -> dict[int, int]:
    """Return each block's immediate dominator, the entry's being itself (Cooper, Harvey and Kennedy's iteration)."""
    place = {block: i for i, block in enumerate(order)}
    found: dict[int, int] = {block: block for block in order[:1]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [other for other in before[block] if other in found]
            new = known[0]
            for other in known[1:]:
                at = other
                while new != at:
                    if place[new] > place[at]:
                        new = found[new]
                    else:
                        at = found[at]
            if found.get(block) != new:
                found[block], changed = new, True
    return found


def _dominates(dominator: dict[int, int], block: int, other: int) -> bool:
    """Whether every way to `other` leads through `block`."""
    while other != block and dominator[other] != other:
        other = dominator[other]
    return other == block


def _body(header: int, latches: Iterable[int], before: dict[int, list[int]]) -> set[int]:
    """Return the blocks from which a latch is reached without passing the header."""
    body, waiting = {header}, list(latches)
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += before[block]
    return body
