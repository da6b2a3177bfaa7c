"""Orders, dominators and cycles of control-flow graphs: without recursion, and in nearly linear time on any graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Graph = Sequence[Sequence[int]]  # successors by node


def reverse_postorder(successors: Graph, entry: int, within: Collection[int]) -> list[int]:
    """Return the nodes reachable from one inside a set, each before those it leads to (but for back edges)."""
    if not within:
        return []
    seen, order = {entry}, []
    stack = [(entry, iter(successors[entry]))]
    while stack:
        node, followers = stack[-1]
        for follower in followers:
            if follower in within and follower not in seen:
                seen.add(follower)
                stack.append((follower, iter(successors[follower])))
                break
        else:
            stack.pop()
            order.append(node)
    return order[::-1]


def dominators(successors: Graph, entry: int) -> dict[int, int]:  # noqa: C901  one algorithm, as published
    """Return each reachable node's immediate dominator, the entry's being itself.

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
        immediate: What `dominators` returns.
    """

    def __init__(self, immediate: dict[int, int]) -> None:
        below: dict[int, list[int]] = {node: [] for node in immediate}
        root = next(iter(immediate), -1)
        for node, above in immediate.items():
            if node != above:
                below[above].append(node)
            else:
                root = node
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        stack = [root] if immediate else []
        while stack:
            node = stack[-1]
            if node not in self._first:
                self._first[node] = len(self._first)
                stack += below[node]
            else:
                stack.pop()
                self._last.setdefault(node, len(self._first))

    def __call__(self, node: int, other: int) -> bool:
        """Whether every way to `other` leads through `node`; both are reachable."""
        return self._first[node] <= self._first[other] < self._last[node]


def cyclic_nodes(successors: Graph, without: Collection[tuple[int, int]] = ()) -> set[int]:
    """Return the nodes that lie on cycles, some edges left out.

    Kosaraju and Sharir's strongly connected components: a second search, against the edges and in the reverse order in
    which a first one finished.
    """
    kept = [[to for to in followers if (node, to) not in without] for node, followers in enumerate(successors)]
    before: list[list[int]] = [[] for _ in kept]
    for node, followers in enumerate(kept):
        for to in followers:
            before[to].append(node)
    everything, unseen, order = range(len(kept)), set(range(len(kept))), []
    for root in everything:
        if root in unseen:
            finished = reverse_postorder(kept, root, unseen)
            unseen.difference_update(finished)
            order.append(finished)
    found: set[int] = set()
    unseen = set(everything)
    for root in (node for finished in reversed(order) for node in finished):
        if root in unseen:
            component = reverse_postorder(before, root, unseen)
            unseen.difference_update(component)
            if len(component) > 1 or root in kept[root]:
                found.update(component)
    return found
