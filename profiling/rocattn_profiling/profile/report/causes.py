"""Why a kernel's time changed between two profiles: the cause and the numbers behind it.

A limit explains a change if the time spent at it (its share of the limit times the kernel's time) grew or shrank with
the kernel's time, and if the slower side is near the limit. If several qualify, the nearest is taken. Causes other than
limits come in the order in which they mislead: other work, spilled registers and a lower clock change every share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.profile.report.findings import wastes
from rocattn_profiling.profile.report.records import Bound, KernelProfile
from rocattn_profiling.profile.report.verdict import COLLECT, not_looked_at

SAME: Final = "same"
WORK: Final = "work"
SCRATCH: Final = "scratch"
CLOCK: Final = "clock"
WASTE: Final = "waste"
LIMIT: Final = "limit"
BYTES: Final = "bytes"
OCCUPANCY: Final = "occupancy"
WAITING: Final = "waiting"
UNEXPLAINED: Final = "unexplained"
UNCOUNTED: Final = "uncounted"
ChangeCode = Literal[
    "same", "work", "scratch", "clock", "waste", "limit", "bytes", "occupancy", "waiting", "unexplained", "uncounted",
]  # fmt: skip
UNCHANGED = 0.02
"""Smallest relative change of time that is explained; two runs of one program differ by as much."""
POINTS = 5.0
"""Smallest change of a share, in percentage points, that counts."""
NEAR_ENOUGH = 30.0
"""A limit explains a change only if the slower side is at this percentage of it or more."""
_EXPLAINS = 0.3  # minimum ratio of the change of the time at a limit to the change of the kernel's time
_ALIKE = 0.7  # minimum share of the log of the time ratio that work or cycles must account for
_LONG_ENOUGH_NS = 20_000.0  # on shorter kernels, too many of the counted cycles are the profiler's own
# Growth from which a waste is a cause, and from which it comes before any limit.
_GREW, _MANY_TIMES = 1.1, 1.4
_EVIDENCE = {
    "memory": ("l2_hit_pct", "read_bytes", "written_bytes"),
    "fabric": ("l2_hit_pct", "read_bytes", "written_bytes"),
    "l2": ("l1_hit_pct", "l2_gbps"),
    "l1": ("l1_gbps", "l1_asked_gbps", "l1_accesses_per_instruction"),
    "lds": ("lds_cycles_per_instruction", "lds_unaligned_pct", "lds_conflict_pct", "lds_instructions"),
    "vector": ("valu_instructions", "valu_active_lanes"),
}


class ChangeCause(Reason[ChangeCode], frozen=True):
    """What explains a change of time.

    Attributes:
        limit: The key of the limit that explains it; "" if there is none.
        evidence: Other numbers that moved with it, in words.
    """

    limit: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    """Both sides of a kernel and the ratio of their median times."""

    before: KernelProfile
    after: KernelProfile
    ratio: float

    @property
    def slower(self) -> KernelProfile:
        return self.after if self.ratio > 1 else self.before

    def values(self, key: str) -> tuple[float, float] | None:
        """Return a metric before and after, if both are known and computed by the same formula."""
        old, new = self.before.values.get(key), self.after.values.get(key)
        if old is None or new is None or old.value is None or new.value is None or old.formula != new.formula:
            return None
        return old.value, new.value

    def accounts(self, ratio: float) -> bool:
        """Whether a change by this ratio accounts for most of the kernel's change, but not for much more."""
        if ratio <= 0:
            return False
        part = math.log(ratio) / math.log(self.ratio)
        return _ALIKE <= part <= 1 / _ALIKE


def cause_of(before: KernelProfile, after: KernelProfile, ratio: float) -> ChangeCause:
    """Return what explains the change of a kernel's time.

    Args:
        before: The kernel in the earlier profile.
        after: The kernel in the later profile, on the same GPU model.
        ratio: Median time after over before.
    """
    if abs(ratio - 1) < UNCHANGED:
        return ChangeCause(SAME, f"unchanged within {100 * UNCHANGED:.0f} %")
    change = _Change(before, after, ratio)
    return next(_causes(change))


def _causes(change: _Change) -> Iterator[ChangeCause]:
    """Yield possible explanations of the change, the most informative first; at least one."""
    before, after = change.before, change.after
    scratch = [each.resources["scratch_bytes"] or 0 for each in (before, after)]
    if (scratch[1] - scratch[0]) * (change.ratio - 1) > 0:
        yield ChangeCause(SCRATCH, f"scratch {scratch[0]} → {scratch[1]} bytes per lane (spilled registers)")
    items = [_work_items(each) for each in (before, after)]
    if items[0] and items[1] and change.accounts(items[1] / items[0]):
        yield ChangeCause(WORK, f"launched with {items[0]:,.0f} → {items[1]:,.0f} work-items: not the same work")
    yield from _clock(change)
    grown = list(_wastes(change))
    yield from (cause for ratio, cause in grown if ratio >= _MANY_TIMES)
    yield from _limits(change)
    yield from (cause for _, cause in grown)
    yield from _bytes(change)
    yield from _waves(change)
    if not (before.bounds and before.bounds.known and after.bounds and after.bounds.known):
        yield ChangeCause(UNCOUNTED, "no limit was counted in both profiles", COLLECT)
    slower = change.slower
    names, command = not_looked_at(slower.device, slower.counters, slower.time_ns.get(50))
    more = f"; not counted: {', '.join(names)}" if names else ""
    yield ChangeCause(UNEXPLAINED, f"no counted limit or waste explains it{more}", command or COLLECT)


def _wastes(change: _Change) -> Iterator[tuple[float, ChangeCause]]:
    """Yield the wastes that are larger on the slower side, the largest growth first, each with its growth."""
    found = {each.key: each for each in change.slower.findings if each.waste}
    grown = []
    for metric, (_, rule) in wastes().items():
        both = change.values(metric)
        if rule not in found or both is None or min(both) < 0:
            continue
        # For active lanes a lower value is the waste; for all other metrics a higher one.
        is_more = (both[1] > both[0]) == (metric != "valu_active_lanes")
        ratio = max(both) / min(both) if min(both) > 0 else math.inf
        if is_more == (change.ratio > 1) and ratio >= _GREW:
            value = change.after.values[metric]
            title = value.title if value.title[:2].isupper() else f"{value.title[0].lower()}{value.title[1:]}"
            moved = f"{title} {_moved(both, value.unit)}"
            evidence = tuple(_evidence(change, "memory"))
            grown.append((ratio, ChangeCause(WASTE, f"{found[rule].title}: {moved}", evidence=evidence)))
    yield from sorted(grown, key=lambda each: -each[0])


def _bytes(change: _Change) -> Iterator[ChangeCause]:
    """Yield the bytes moved, if they account for the change and no limit is near."""
    both = [change.values(name) for name in ("read_bytes", "written_bytes")]
    old, new = (sum(each[side] for each in both if each) for side in (0, 1))
    if old > 0 and change.accounts(new / old):
        yield ChangeCause(BYTES, f"bytes between L2 and memory {_moved((old, new), 'bytes')}")


def _moved(both: tuple[float, float], unit: str) -> str:
    """Return a number before and after with its unit: "4 → 64 accesses/instruction", "1.9 → 2.1 GiB"."""
    if unit == "bytes":
        return " → ".join(quantity(each, unit) for each in both)
    before, after = (f"{each:,.0f}" if float(each).is_integer() else digits(each) for each in both)
    return f"{before} → {after} {'%' if unit.startswith('%') else unit}"


def _work_items(kernel: KernelProfile) -> float:
    """Return the work-items of a launch; 0 if launches differ."""
    return float(kernel.grids[0][0]) if len(kernel.grids) == 1 else 0.0


def _clock(change: _Change) -> Iterator[ChangeCause]:
    """Yield the clock, if the same number of cycles took a different time."""
    cycles = [each.counters.get("GRBM_GUI_ACTIVE", 0.0) for each in (change.before, change.after)]
    times = [each.time_ns[50] for each in (change.before, change.after)]
    if min(cycles) <= 0 or min(times) < _LONG_ENOUGH_NS:
        return
    speed = (cycles[1] / times[1]) / (cycles[0] / times[0])
    if change.accounts(1 / speed):
        yield ChangeCause(CLOCK, f"the same cycles at a clock {'lower' if speed < 1 else 'higher'} by "
                    f"{abs(100 * (speed - 1)):.0f} %")  # fmt: skip


def _limits(change: _Change) -> Iterator[ChangeCause]:
    """Yield the limits that explain the change, the best first."""
    old, new = (
        {bound.key: bound for bound in (kernel.bounds.known if kernel.bounds else ())}
        for kernel in (change.before, change.after)
    )
    times = change.before.time_ns[50], change.after.time_ns[50]
    slowed = times[1] - times[0]
    scored = []
    for key, after in new.items():
        before = old.get(key)
        if before is None or before.is_least != after.is_least:
            continue  # a lower bound and a value cannot be compared
        at_limit = (after.pct * times[1] - before.pct * times[0]) / 100
        slow = (after if slowed > 0 else before).pct
        if at_limit * slowed > 0 and abs(at_limit) >= _EXPLAINS * abs(slowed) and slow >= NEAR_ENOUGH:
            scored.append((min(abs(at_limit), abs(slowed)) * slow, before, after, at_limit))
    for _, before, after, _ in sorted(scored, key=lambda each: -each[0]):
        yield ChangeCause(LIMIT, _shift(before, after, times[1] / times[0]), limit=after.key,
                    evidence=tuple(_evidence(change, after.key)))  # fmt: skip


def _shift(before: Bound, after: Bound, ratio: float) -> str:
    """Return how far a limit moved ("LDS busy 23 → 79 %") or, at an equal share, by how much its work changed."""
    if abs(after.pct - before.pct) >= POINTS:
        return f"{after.label} {before.pct:.0f} → {after.pct:.0f} %"
    work = 100 * (after.pct * ratio / before.pct - 1)
    what = after.less if work < 0 else after.less.replace("fewer", "more")
    return f"{after.label} at {after.pct:.0f} % both times, for {abs(work):.0f} % {what}"


def _evidence(change: _Change, key: str) -> Iterator[str]:
    """Yield the metrics of a limit that moved."""
    for name in _EVIDENCE.get(key, ()):
        both = change.values(name)
        if both and abs(both[1] - both[0]) > 0.05 * max(map(abs, both)):
            value = change.after.values[name]
            yield f"{value.title} {_moved(both, value.unit)}"


def _waves(change: _Change) -> Iterator[ChangeCause]:
    """Yield occupancy and waiting if they moved, with the time or against it."""
    slower = change.ratio > 1
    occupancy = change.values("achieved_occupancy_pct")
    if occupancy and abs(occupancy[1] - occupancy[0]) >= POINTS and (occupancy[1] < occupancy[0]) == slower:
        names = {"vgprs": "VGPRs", "agprs": "AGPRs", "lds_bytes": "bytes of LDS"}
        both = [(title, change.before.resources[name], change.after.resources[name]) for name, title in names.items()]
        moved = tuple(f"{title} {old} → {new}" for title, old, new in both if old != new)
        yield ChangeCause(OCCUPANCY, f"occupancy {occupancy[0]:.0f} → {occupancy[1]:.0f} %", evidence=moved)
    waiting = change.values("waiting_pct")
    if waiting and abs(waiting[1] - waiting[0]) >= POINTS and (waiting[1] > waiting[0]) == slower:
        yield ChangeCause(WAITING, f"waves waiting {waiting[0]:.0f} → {waiting[1]:.0f} % of their time")
