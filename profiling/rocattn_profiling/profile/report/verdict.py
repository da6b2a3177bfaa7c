"""The verdict on one kernel: the limit that bounds it, or why that is unknown and which command would measure it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Final

from rocattn_profiling.profile.collect import counters
from rocattn_profiling.profile.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.metrics.evaluate import CONSTANT_NAMES
from rocattn_profiling.profile.metrics.launches import spelt
from rocattn_profiling.profile.report.findings import LARGE, wastes
from rocattn_profiling.profile.report.limits import NEAR, lines_command
from rocattn_profiling.profile.report.records import Bound, Bounds, KernelFinding, ReasonCode, Stall, Verdict

BOUND: Final = "bound"
IDLE: Final = "idle_units"
SHORT: Final = "short"
STRAGGLER: Final = "straggler"
SAMPLED: Final = "sampled"
FAR: Final = "far"
WASTE: Final = "waste"
NO_GPU: Final = "no_gpu"
TIMES_ONLY: Final = "times_only"
STOOD_STILL: Final = "stood_still"
NOT_COUNTED: Final = "not_counted"
NOT_COUNTABLE: Final = "not_countable"
OWN = frozenset({BOUND, WASTE, STRAGGLER, SAMPLED, FAR})
"""Verdicts with numbers of one kernel, which are never merged."""
WORTH_A_WORD = 10.0
"""Percent from which the nearest known limit is mentioned if others are unknown."""
COLLECT = "rocattn profile -- COMMAND"
NAME_IT = "rocattn report PATH --gpu NAME"
STATE_IT = "rocattn report PATH --peak memory=RATE"
_UNITS: tuple[ReasonCode, str] = (IDLE, "idle units")
_FIRST: dict[str, tuple[ReasonCode, str]] = {
    "straggler": (STRAGGLER, "slower GPU"), "launch-bound": (SHORT, "launch bound"), "few-blocks": _UNITS,
    "few-blocks-rdna": _UNITS, "few-waves": _UNITS,
}  # fmt: skip
_WAITS = ("latency-bound", "latency-bound-waiting", "few-rounds", "occupancy-below-theory", "dynamic-lds")
_HOT = "hot-line"
_WORDS = 3  # maximum number of uncounted wastes listed


@dataclass(frozen=True, slots=True)
class Gap:
    """The counters and constants that a metric lacks.

    Attributes:
        counters: Uncollected counters of its first formula; empty if any formula has all of its counters.
        constants: Unknown constants, by their names in ``definitions.toml``.
        ask: The argument of `rocattn profile --metrics` that collects them: a group or the metric; "" for none.
    """

    counters: tuple[str, ...]
    constants: tuple[str, ...]
    ask: str


def verdict(
    bounds: Bounds, findings: Sequence[KernelFinding], device: Device | None, counted: Mapping[str, object],
    median_ns: float | None, *, stood_still: bool, left_out: AbstractSet[str] = frozenset(), stall: Stall | None = None,
    sampled: bool = False,
) -> Verdict:  # fmt: skip
    """Return what bounds a kernel (a limit, a waste, or what its samples wait for), or why it is unknown.

    Args:
        bounds: How close it is to its limits.
        findings: Its findings, the largest gain first.
        device: The GPU; None if no file names it.
        counted: The counters that have values for this kernel.
        median_ns: Its median time in ns; None without times.
        stood_still: Whether counters of this profile did not count, so that zeros are meaningless.
        left_out: Counters and metrics with impossible values in some of its launches.
        stall: What its waves mostly wait for, from samples or a trace.
        sampled: Whether the profile has samples or a trace of it.
    """
    by_key = {finding.key: finding.sentence for finding in findings}
    nearest = bounds.nearest
    if nearest and nearest.pct >= NEAR:
        key = f"{nearest.key}-bound"
        return Verdict(BOUND, by_key[key], brief=f"{nearest.name} bound", finding=key)
    first = next((finding for finding in findings if finding.key != _HOT), None)  # waits are symptoms of waste
    if first and first.waste >= LARGE:
        return Verdict(WASTE, first.sentence, brief=first.title, finding=first.key)
    if first := next((finding for key in _FIRST for finding in findings if finding.key == key), None):
        code, brief = _FIRST[first.key]
        return Verdict(code, first.sentence, brief=brief, finding=first.key)
    lines = lines_command(device.arch if device else "", sampled=sampled)
    unknown = _unmeasured(device, counted, median_ns, stood_still=stood_still, left_out=left_out)
    unknown = unknown or _unlimited(bounds, device, counted, median_ns, left_out, lines)
    if stall:
        unknown = _sampled(stall, unknown, nearest, findings)
    return unknown or _far(nearest, by_key, device, counted, median_ns, lines)


def _far(
    nearest: Bound | None, by_key: Mapping[str, str], device: Device | None, counted: Mapping[str, object],
    median_ns: float | None, lines: str,
) -> Verdict:  # fmt: skip
    """Return why a kernel is far from every limit, as far as counters show, and what to measure for the rest."""
    if waits := next((key for key in _WAITS if key in by_key), ""):
        return Verdict(FAR, by_key[waits], brief="waiting", finding=waits)
    names, command = not_looked_at(device, counted, median_ns)
    why = (
        f"not counted: {', '.join(names)}"
        if names
        else "what its waves wait for was not sampled"
        if lines
        else "its samples show no cause"
    )
    far = f"far from every limit: {nearest.short if nearest else 'none'} is nearest; {why}"
    return Verdict(FAR, far, command or lines, brief="far from limits")


def not_looked_at(
    device: Device | None, counted: Mapping[str, object], median_ns: float | None
) -> tuple[tuple[str, ...], str]:
    """Return which wastes were not counted, and the command that counts those that the GPU supports."""
    if device is None:
        return (), ""
    known = device.constants.keys() | _of_launch(median_ns)
    gaps = [
        (word, gap_of(metric, device.arch, counted, known))
        for metric, (word, _) in wastes().items() if metric in _needs(device.arch)
    ]  # fmt: skip
    lacking = [(word, gap) for word, gap in gaps if gap.counters and gap.ask]
    counted_in_part = {word for word, gap in gaps if not gap.counters}
    lacking = [(word, gap) for word, gap in lacking if word not in counted_in_part]
    words = list(dict.fromkeys(word for word, _ in lacking))
    some = [*words[:_WORDS], f"{len(words) - _WORDS} more"] if len(words) > _WORDS + 1 else words
    return tuple(some), _next([gap for _, gap in lacking])


def _sampled(
    stall: Stall, unknown: Verdict | None, nearest: Bound | None, findings: Sequence[KernelFinding]
) -> Verdict:
    """Return the verdict on a kernel that no known limit bounds, from what its waves wait for."""
    rest = unknown.text if unknown else f"the nearest limit is {nearest.short}" if nearest else ""
    text = f"{stall.text}: {stall.advice}{f'; {rest}' if rest else ''}"
    command = stall.command if unknown and unknown.code == TIMES_ONLY else unknown.remedy if unknown else ""
    finding = next((each.key for each in findings if (each.key, each.title) == (_HOT, stall.title)), "")
    return Verdict(SAMPLED, text, command, brief=stall.title, finding=finding)


def _unmeasured(
    device: Device | None, counted: Mapping[str, object], median_ns: float | None, *, stood_still: bool,
    left_out: AbstractSet[str],
) -> Verdict | None:  # fmt: skip
    """Return why the files as a whole cannot identify any limit; None if they may."""
    if not counted and not stood_still and left_out:
        why = "limit not known: its counters were left out as impossible"
        return Verdict(NOT_COUNTED, why, COLLECT, brief="left out")
    if not counted and not stood_still:
        return Verdict(
            TIMES_ONLY, f"limit not known: {'the files have times only' if median_ns else 'no counters'}", COLLECT,
            brief="not counted",
        )  # fmt: skip
    if device is None:
        return Verdict(NO_GPU, "limit not known: no file says which GPU ran it", NAME_IT, brief="GPU not known")
    if stood_still:
        return Verdict(
            STOOD_STILL, "limit not known: counters did not count at this performance level",
            f"sudo amd-smi set -g 0 -l stable_std && {COLLECT}", brief="not counted",
        )  # fmt: skip
    return None


def _unlimited(
    bounds: Bounds, device: Device | None, counted: Mapping[str, object], median_ns: float | None,
    left_out: AbstractSet[str], lines: str,
) -> Verdict | None:  # fmt: skip
    """Return which limits are unknown and how to measure them; None if all are known."""
    nearest = bounds.nearest
    others = f"; the nearest counted limit is {nearest.short}" if nearest and nearest.pct >= WORTH_A_WORD else ""
    if device and bounds.uncounted:
        parts = {bound.key for bound in bounds.known}  # known, but for part of the work only
        known = device.constants.keys() | _of_launch(median_ns)
        gaps, lacking = [], defaultdict[tuple[bool, str], list[str]](list)
        for limit in bounds.uncounted:
            metric = limit.countable(device.arch)
            gaps.append(gap := gap_of(metric, device.arch, counted, known))
            why = (
                "not counted" if gap.counters
                else f"unknown without {', '.join(CONSTANT_NAMES.get(n, n) for n in gap.constants)}" if gap.constants
                else "above its peak, because a cache served part of it" if limit.key in bounds.beyond
                else "not counted in one launch" if left_out.isdisjoint(_made_of(metric, device.arch))
                else "left out as impossible"
            )  # fmt: skip
            lacking[not gap.counters, why].append(f"{limit.name} (partly)" if limit.key in parts else limit.name)
        said = [f"{', '.join(lacking[each])} {each[1]}" for each in sorted(lacking, key=lambda each: each[0])]
        return Verdict(NOT_COUNTED, f"limit not known: {'; '.join(said)}{others}", _next(gaps), brief="not counted")
    if bounds.uncountable:
        names = ", ".join(limit.name for limit in bounds.uncountable)
        return Verdict(
            NOT_COUNTABLE, f"limit not known: this GPU cannot count {names}{others}", lines, brief="not countable"
        )
    return None


def _of_launch(median_ns: float | None) -> set[str]:
    """Return the known constants of launches, not of the GPU."""
    return {"grid_threads", "block_threads", "wave_size"} | ({"duration_ns"} if median_ns is not None else set())


@cache
def _made_of(metric: str, arch: str) -> frozenset[str]:
    """Return the counters and metrics that a metric is computed from on an architecture, including itself."""
    by_key = {each.key: each for each in definitions().metrics}
    made: set[str] = set()
    open_ = {metric}
    while open_:
        name = open_.pop()
        made.add(name)
        if name in by_key:
            open_ |= {each for way in by_key[name].for_arch(arch) for each in way.formula.names} - made - CONSTANTS
    return frozenset(made)


def _next(gaps: Sequence[Gap]) -> str:
    """Return the command that supplies the missing inputs, or "". Peaks come first, because no counter supplies one."""
    if any("peak_gbps" in gap.constants for gap in gaps):
        return STATE_IT
    asked = dict.fromkeys(gap.ask for gap in gaps if gap.ask)
    if asked:
        return f"rocattn profile --metrics {' '.join(asked)} -- COMMAND"
    return COLLECT if any("duration_ns" in gap.constants for gap in gaps) else ""


def gap_of(metric: str, arch: str, counted: Mapping[str, object], constants: AbstractSet[str]) -> Gap:
    """Return the inputs that one metric lacks, on an architecture that has a formula for it.

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
    """Return by metric the counters and constants of each of its formulas, with other metrics resolved."""
    needs: dict[str, tuple[frozenset[str], ...]] = {}
    for metric in definitions().metrics:
        ways: list[frozenset[str]] = []
        for way in metric.for_arch(arch):
            combinations: list[frozenset[str]] = [frozenset()]
            for name in sorted(way.formula.names):
                combinations = [have | more for have in combinations for more in needs.get(name, (frozenset({name}),))]
            ways += combinations
        if ways:
            needs[metric.key] = tuple(dict.fromkeys(ways))
    return needs


def _ask(metric: str, needed: Collection[str], arch: str) -> str:
    """Return the first group with these counters (anchors are in every pass), otherwise the metric itself."""
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
