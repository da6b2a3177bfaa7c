"""Why a metric of a kernel is not known: counters that were not collected, or facts that the files lack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rocattn_profiling.profile.collect import counters
from rocattn_profiling.profile.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.profile.metrics.launches import spelt

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True, slots=True)
class Gap:
    """What a metric lacks.

    Attributes:
        counters: Counters of its first formula that were not collected; empty if one formula has all of its own.
        constants: Facts that are not known, by their names in ``definitions.toml``.
        ask: What `rocattn profile --metrics` collects these counters by: a group, else the metric; "" for none.
    """

    counters: tuple[str, ...]
    constants: tuple[str, ...]
    ask: str


def gap_of(metric: str, arch: str, counted: Mapping[str, object], constants: AbstractSet[str]) -> Gap:
    """Return what one metric lacks on an architecture that has a formula for it.

    Args:
        metric: Its key.
        arch: The architecture.
        counted: The counters that have values.
        constants: The names of `CONSTANTS` that have values.
    """
    ways = _needs(arch)[metric]
    lacks = [tuple(sorted(name for name in way - CONSTANTS if spelt(name, counted) not in counted)) for way in ways]
    if () not in lacks:
        return Gap(lacks[0], (), _ask(metric, ways[0] - CONSTANTS, arch))
    unknown = [tuple(sorted((way & CONSTANTS) - constants)) for way, lack in zip(ways, lacks, strict=True) if not lack]
    return Gap((), min(unknown, key=len), "")


@cache
def _needs(arch: str) -> dict[str, tuple[frozenset[str], ...]]:
    """Return the counters and constants of each metric's ways, other metrics resolved, by metric."""
    needs: dict[str, tuple[frozenset[str], ...]] = {}
    for metric in definitions().metrics:
        ways: list[frozenset[str]] = []
        for way in metric.for_arch(arch):
            found: list[frozenset[str]] = [frozenset()]
            for name in sorted(way.formula.names):
                found = [have | more for have in found for more in needs.get(name, (frozenset({name}),))]
            ways += found
        if ways:
            needs[metric.key] = tuple(dict.fromkeys(ways))
    return needs


def _ask(metric: str, needed: Collection[str], arch: str) -> str:
    """Return the first group that has the counters, beside those that every pass has; else the metric itself."""
    try:
        known = counters.of_arch(arch)
    except counters.CounterError:
        return ""
    if not all(known.has(name) for name in needed):
        return ""
    for group in counters.group_names():
        have = {name for names in counters.group(group, known) for name in names}
        if have.issuperset(set(needed) - set(counters.anchors())):
            return group
    return metric
