"""Two profiles side by side: which kernels changed in time, and which metrics changed with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocattn_profiling.profile.metrics.aggregate import MetricValue
    from rocattn_profiling.profile.report.report import KernelProfile, ProfileReport

MOVED = 0.05
"""Relative change from which a metric is reported; two runs of one program differ by less."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of both profiles."""

    before: MetricValue
    after: MetricValue
    change: float


@dataclass(frozen=True, slots=True)
class KernelPair:
    """One kernel in both profiles.

    Attributes:
        before, after: Its profiles; None if it did not run.
        ratio: Median time after over before; None if either is missing.
        moves: Metrics that changed, the largest change first.
        not_comparable: Metrics computed by different formulas, whose difference is meaningless.
    """

    before: KernelProfile | None
    after: KernelProfile | None
    ratio: float | None
    moves: tuple[MetricChange, ...]
    not_comparable: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kernel."""
        kernel = self.after or self.before
        return kernel.name if kernel else ""

    @property
    def label(self) -> str:
        """The attention problem that it solved; "" if unknown."""
        kernel = self.after or self.before
        return kernel.label if kernel else ""


def compare(before: ProfileReport, after: ProfileReport) -> list[KernelPair]:
    """Match kernels by name and problem, in descending order of the change of their total time."""
    old = {(kernel.name, kernel.label): kernel for kernel in before.kernels}
    new = {(kernel.name, kernel.label): kernel for kernel in after.kernels}
    pairs = [_pair(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]

    def weight(pair: KernelPair) -> float:
        totals = [kernel.total_ns if kernel else 0.0 for kernel in (pair.before, pair.after)]
        return abs(totals[1] - totals[0])

    return sorted(pairs, key=lambda pair: (-weight(pair), pair.name, pair.label))


def cautions(before: ProfileReport, after: ProfileReport) -> list[str]:
    """Return the caveats of a comparison: different GPUs, and problems of the earlier profile."""
    old, new = ({device.name for device in report.devices} for report in (before, after))
    lines = [f"earlier profile: {problem}" for problem in before.problems]
    if old and new and old != new:
        names = [" and ".join(sorted(each)) for each in (old, new)]
        lines.insert(0, f"the earlier profile is of {names[0]}, this one of {names[1]}: the GPUs differ, too")
    return lines


def _pair(before: KernelProfile | None, after: KernelProfile | None) -> KernelPair:
    if before is None or after is None:
        return KernelPair(before, after, None, (), ())
    ratio = after.time_ns[50] / before.time_ns[50] if 50 in before.time_ns and 50 in after.time_ns else None
    moves, different = [], []
    for key, new in after.values.items():
        old = before.values.get(key)
        if old is None or old.value is None or new.value is None:
            continue
        if old.formula != new.formula:
            different.append(new.title)
            continue
        size = max(abs(old.value), abs(new.value))
        change = (new.value - old.value) / size if size else 0.0
        if abs(change) > MOVED:
            moves.append(MetricChange(old, new, change))
    moves.sort(key=lambda move: -abs(move.change))
    return KernelPair(before, after, ratio, tuple(moves), tuple(different))


def to_json(pairs: list[KernelPair]) -> list[dict[str, object]]:
    """Return the comparison as JSON-ready values; ``change`` is relative to the larger of both."""
    return [
        {
            "kernel": pair.name,
            "label": pair.label,
            "only_in": None if pair.before and pair.after else "after" if pair.after else "before",
            "time_ratio": pair.ratio,
            "moved": [
                {"metric": move.after.key, "unit": move.after.unit, "before": move.before.value,
                 "after": move.after.value, "change": move.change}
                for move in pair.moves
            ],
            "not_comparable": list(pair.not_comparable),
        }
        for pair in pairs
    ]  # fmt: skip
