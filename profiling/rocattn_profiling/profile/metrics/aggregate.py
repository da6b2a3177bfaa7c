"""Metrics of kernels: the values of their launches from `evaluate`, aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.profile.metrics.definitions import CONSTANTS, Metric, definitions
from rocattn_profiling.profile.metrics.evaluate import MIXED, TOO_SHORT, Evaluation, Use, impossible
from rocattn_profiling.profile.metrics.launches import in_words
from rocattn_profiling.profile.metrics.multiplexing import BORROWED
from rocattn_profiling.profile.metrics.units import LaunchUnit, LongLaunches, long_launches, units_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


PERCENTILES = (0, 10, 50, 90, 99, 100)


@dataclass(frozen=True)
class MetricValue:
    """One metric of one group of launches.

    Attributes:
        key, title, unit: Of the metric.
        value: Aggregated by `convention`; None if it was dropped.
        mean: Mean over the launches, the convention of rocprof-compute up to 3.6.
        across: The same mean with counters from several passes, as in rocprof-compute; None if it is equal.
        convention: "SUM/SUM", or "mean" for an amount per launch or a share that the profiler computed.
        launches: Number of launches.
        formula, source: The formula and its reference.
        passes: The passes that the counters come from.
        flags: Caveats.
        counters: What a kernel's value was computed from: (counter, mean over the launches).
    """

    key: str
    title: str
    unit: str
    value: float | None
    mean: float | None
    across: float | None
    convention: str
    launches: int
    formula: str
    source: str
    passes: tuple[str, ...]
    flags: tuple[str, ...]
    counters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class LaunchGroup:
    """Launches that are judged together, or a single launch.

    Attributes:
        unit: What they have in common: kernel, problem, shape and GPUs.
        rows: Their numbers in `Evaluation.launches`.
        time_ns: Percentile -> time of a launch; empty if no pass has times.
        total_ns: Sum over all launches.
        values: Metric -> value.
        long: The few launches that take much of the time; None if there are none.
    """

    unit: LaunchUnit
    rows: Integers
    time_ns: dict[int, float]
    total_ns: float
    values: dict[str, MetricValue]
    long: LongLaunches | None = None

    @property
    def name(self) -> str:
        """The kernel."""
        return self.unit.kernel

    @property
    def label(self) -> str:
        """The attention problem that it solved; "" if unknown."""
        return self.unit.label


def by_kernel(evaluation: Evaluation, labels: Sequence[str] | None = None) -> list[LaunchGroup]:
    """Group launches by kernel, problem, shape and GPU (`units_of`), in descending order of total time.

    Args:
        evaluation: Of the launches.
        labels: The problem of each launch: a kernel that solved several problems becomes several groups.
    """
    of_launch, units = units_of(evaluation, labels)
    return _grouped(evaluation, of_launch, units, keeps_counters=True)  # for single launches it would be too many


def by_launch(evaluation: Evaluation, labels: Sequence[str] | None = None) -> list[LaunchGroup]:
    """Return each launch as a separate group, in order of dispatch."""
    groups = _grouped(evaluation, *units_of(evaluation, labels, single=True))
    order = evaluation.launches.table.sort_values(["process", "dispatch"], kind="stable").index
    place = {int(row): i for i, row in enumerate(order)}
    return sorted(groups, key=lambda group: place[int(group.rows[0])])


def _grouped(
    evaluation: Evaluation, of_launch: Integers, units: Sequence[LaunchUnit], *, keeps_counters: bool = False
) -> list[LaunchGroup]:
    sums = _Sums(evaluation, of_launch, len(units), keeps_counters=keeps_counters)
    per_metric = {metric.key: sums.values_of(metric) for metric in definitions().metrics}
    duration = evaluation.launches.duration_ns
    order = np.argsort(of_launch, kind="stable")
    bounds = np.searchsorted(of_launch[order], np.arange(len(units) + 1))
    groups = []
    for number, unit in enumerate(units):
        rows = order[bounds[number] : bounds[number + 1]]
        times = duration[rows][~np.isnan(duration[rows])]
        spread = dict(zip(PERCENTILES, np.percentile(times, PERCENTILES).tolist(), strict=True)) if len(times) else {}
        values = {metric: by_group[number] for metric, by_group in per_metric.items() if number in by_group}
        groups.append(LaunchGroup(unit, rows, spread, float(times.sum()), values, long_launches(times)))
    return sorted(groups, key=lambda group: (-group.total_ns, group.name, group.label, group.unit.shape))


def _differ(value: float, other: float) -> bool:
    """Whether two numbers differ by more than rounding."""
    return bool(np.isfinite(value) and abs(value - other) > 1e-9 * max(abs(value), abs(other)))


def _is_share(name: str) -> bool:
    """Whether a counter is a share or mean that the profiler computed (OccupancyPercent), so that sums mean nothing.

    Counters that can be summed have names in capitals (FETCH_SIZE), except for the suffix for sums over instances.
    """
    stem = name.removesuffix("_sum")
    return not stem.isupper() and not stem.islower()


class _Sums:
    """Sums over groups of launches, metric by metric in definition order, so that later ones can use earlier ones."""

    def __init__(self, evaluation: Evaluation, of_launch: Integers, groups: int, *, keeps_counters: bool) -> None:
        self._evaluation, self._of_launch, self._groups = evaluation, of_launch, groups
        self._ratios: dict[str, Floats] = {}
        self._flags: dict[tuple[str, int], tuple[str, ...]] = {}
        self._counters: dict[tuple[str, int], dict[str, float]] = {}
        self._keeps_counters = keeps_counters
        self._kinds = {metric.key: metric.is_ratio for metric in definitions().metrics}

    def values_of(self, metric: Metric) -> dict[int, MetricValue]:
        """Return a metric's value by group."""
        own = self._evaluation.values[metric.key]
        uses = self._evaluation.uses.get(metric.key, [])
        launches = [self._add(np.ones(len(own)), use.where & np.isfinite(own)) for use in uses]
        result = np.full(self._groups, np.nan)
        by_group: dict[int, MetricValue] = {}
        for number, use in enumerate(uses):
            # Use the one formula that most launches of the group have: sums over two formulas would mix them.
            best = np.argmax(np.vstack(launches), axis=0)
            mine = (best == number) & (launches[number] > 0)
            where = use.where & np.isfinite(own)
            with np.errstate(invalid="ignore", divide="ignore"):
                means = self._add(own, where) / launches[number]
                across = self._add(self._evaluation.across[metric.key], where) / launches[number]
                value = self._ratio(use, where, launches[number]) if metric.is_ratio else means
            counted = {
                name: self._add(use.inputs[name], where)
                for name in sorted(use.way.formula.names - CONSTANTS - self._kinds.keys()) if self._keeps_counters
            }  # fmt: skip
            reasons: dict[int, list[str]] = {}
            for keep, why in impossible(
                metric, np.where(mine, value, np.nan), self._constants(where, launches[number])
            ):
                value = np.where(keep, value, np.nan)
                for group in np.flatnonzero(~keep):
                    reasons.setdefault(int(group), []).append(why)
            result[mine] = value[mine]
            short, all_of = (
                self._add(np.ones(len(own)), use.is_short),
                np.bincount(self._of_launch, minlength=self._groups),
            )
            borrowed = self._add(np.ones(len(own)), use.is_borrowed)
            for group in np.flatnonzero(mine):
                flags = reasons.get(int(group), [])
                own_launches = int(launches[number][group])
                if own_launches < all_of[group]:
                    flags.append(f"from {own_launches} of {in_words(int(all_of[group]))}")
                if short[group]:
                    flags.append(f"in {in_words(int(short[group]))} {TOO_SHORT}")
                if use.is_mixed:
                    flags.append(MIXED)
                if borrowed[group]:
                    flags.append(f"in {int(borrowed[group])} of {in_words(own_launches)} with {BORROWED}")
                flags += use.cautions
                # Caveats of a metric also apply to metrics that are computed from it.
                for name in sorted(use.way.formula.names):
                    flags += self._flags.get((name, int(group)), ())
                flags = list(dict.fromkeys(flags))
                self._flags[metric.key, int(group)] = tuple(flags)
                counters = {name: float(sums[group]) / own_launches for name, sums in counted.items()}
                if self._keeps_counters:
                    for name in sorted(use.way.formula.names):
                        counters |= self._counters.get((name, int(group)), {})
                    self._counters[metric.key, int(group)] = counters
                by_group[int(group)] = MetricValue(
                    metric.key, metric.title, metric.unit,
                    float(value[group]) if np.isfinite(value[group]) else None, float(means[group]),
                    float(across[group]) if _differ(across[group], means[group]) else None,
                    "SUM/SUM" if metric.is_ratio and not any(map(_is_share, use.way.formula.names)) else "mean",
                    own_launches, use.way.formula.text, use.way.source, use.passes, tuple(flags),
                    tuple(counters.items()),
                )  # fmt: skip
        self._ratios[metric.key] = result
        return by_group

    def _add(self, values: Floats, where: NDArray[np.bool_]) -> Floats:
        return np.bincount(self._of_launch[where], values[where], self._groups).astype(np.float64)

    def _constants(self, where: NDArray[np.bool_], launches: Floats) -> dict[str, Floats]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                name: self._add(np.nan_to_num(values, nan=np.nan), where) / launches
                for name, values in self._evaluation.constants.items()
            }

    def _ratio(self, use: Use, where: NDArray[np.bool_], launches: Floats) -> Floats:
        """Evaluate a formula on sums: amounts, counters and times are summed, constants and shares averaged."""
        sums = {}
        for name in use.way.formula.names:
            if self._kinds.get(name):
                sums[name] = self._inner(name, where, launches)
            elif _is_share(name) or (name in CONSTANTS and name not in {"duration_ns", "work_flops", "work_bytes"}):
                sums[name] = self._add(use.inputs[name], where) / launches
            else:
                sums[name] = self._add(use.inputs[name], where)
        return use.way.formula.evaluate(sums)

    def _inner(self, name: str, where: NDArray[np.bool_], launches: Floats) -> Floats:
        """Return a ratio that another ratio uses, over the launches of that ratio if it covers all of them."""
        for use in self._evaluation.uses.get(name, []):
            if not (where & ~use.where).any():
                return self._ratio(use, where, launches)
        return self._ratios[name]
