"""Evaluate the metrics of every launch of a profile, each with its formula or the reason why it has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from rocattn_profiling.profile.ingest.table import Profile
from rocattn_profiling.profile.metrics.definitions import CONSTANTS, Alternative, Metric, definitions
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.metrics.launches import BUSY, Launches, PassCounters, find_launches, spelt, take_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

# Counted cycles over the cycles in the kernel's time at the highest clock: above this, they include the profiler's.
SHORT = 1.05
MIXED = "counters from several passes, each a separate run of the application"
TOO_SHORT = (
    "the counted cycles exceed the kernel's time at the highest clock, so they include the profiler's own work: too low"
)


@dataclass(frozen=True)
class Use:
    """One formula for a metric, evaluated for some launches.

    Attributes:
        way: The formula.
        where: Mask of the launches.
        inputs: The value of each name, per launch.
        passes: The passes that the counters come from: for each launch one, or several if mixed.
        is_mixed: Whether the counters of one launch come from several passes.
        is_short: For formulas over cycles, launches whose cycles include the profiler's own.
        duration_ns: The kernel's time that goes with the counters, per launch.
        cautions: Known defects of its counters on this GPU.
        is_borrowed: Launches with a counter from another launch.
    """

    way: Alternative
    where: Mask
    inputs: Mapping[str, Floats]
    passes: tuple[str, ...]
    is_mixed: bool
    is_short: Mask
    duration_ns: Floats
    cautions: tuple[str, ...]
    is_borrowed: Mask


@dataclass
class Evaluation:
    """The metrics of all launches.

    Attributes:
        launches: What was measured.
        constants: Per launch, the lowercase names of ``definitions.toml``.
        archs: Target of each launch; "" if unknown.
        of_arch: Target -> its launches.
        values: Metric -> value per launch; NaN if there is none.
        across: Metric -> the same formula over counters from several passes where `values` uses one pass, as in
            rocprof-compute.
        uses: Metric -> the formulas used.
        times: Metric -> the kernel's time that goes with its counters, per launch: undisturbed, or from their pass.
        left_out: Metric -> why values were dropped, one line each.
        missing: Metric -> why no launch has a value.
    """

    launches: Launches
    constants: dict[str, Floats]
    archs: NDArray[np.object_]
    of_arch: dict[str, Mask]
    values: dict[str, Floats] = field(default_factory=dict)
    across: dict[str, Floats] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    times: dict[str, Floats] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def evaluate(profile: Profile, devices: Mapping[int, Device], work: Mapping[str, Floats] | None = None) -> Evaluation:
    """Evaluate every metric for which the profile has the counters.

    Args:
        profile: What was read.
        devices: The GPUs by ``agent``; the key -1 stands for launches of all other agents.
        work: "work_flops" and "work_bytes" per launch, in the order of `find_launches`; NaN if unknown.
    """
    launches = find_launches(profile)
    agents, of_launch = np.unique(
        launches.table["agent"].astype("Int64").fillna(-1).to_numpy(np.int64), return_inverse=True
    )
    of_agent = [devices.get(int(agent), devices.get(-1)) for agent in agents]
    archs = np.array([device.arch if device else "" for device in of_agent], object)[of_launch]
    take_out(launches, definitions().checks, archs)
    constants = _constants(launches, of_agent, of_launch)
    constants.update(work or {})
    result = Evaluation(launches, constants, archs, {arch: archs == arch for arch in pd.unique(archs)})
    every = (*launches.passes, launches.joined)
    short = {each.name: _is_short(result, each.counters.get(BUSY), each.duration_ns) for each in every}
    nothing = np.full(len(launches), np.nan)  # shared by all metrics without a value: most of a hundred
    nothing.flags.writeable = False
    for metric in definitions().metrics:
        _evaluate_metric(result, metric, short, nothing)
    return result


def _constants(
    launches: Launches, of_agent: Sequence[Device | None], of_launch: NDArray[np.int64]
) -> dict[str, Floats]:
    table = launches.table
    constants: dict[str, Floats] = {}
    for name in sorted(CONSTANTS):
        known = [each.constants.get(name, np.nan) if each else np.nan for each in of_agent]
        constants[name] = np.array(known, np.float64)[of_launch]
    for name, column in (("grid_threads", "grid"), ("block_threads", "block"), ("wave_size", "wave_size")):
        sizes = table[column].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
        constants[name] = np.asarray(sizes, np.float64)
    constants["duration_ns"] = launches.duration_ns
    return constants


def _is_short(result: Evaluation, busy: Floats | None, duration_ns: Floats) -> Mask:
    """Whether the busy cycles of one XCD exceed those in the kernel's time at the highest clock."""
    if busy is None:
        return np.zeros(len(result.launches), dtype=bool)
    xcds, clock = result.constants["xcds"], result.constants["clock_mhz"]
    return np.asarray(busy / xcds > duration_ns * clock / 1000 * SHORT)  # False for NaN


def _evaluate_metric(result: Evaluation, metric: Metric, short: Mapping[str, Mask], nothing: Floats) -> None:
    count = len(result.launches)
    values = times = nothing
    wanting: set[str] = set()
    for arch, here in result.of_arch.items():
        if not arch:
            wanting.add("the GPU that it ran on")
        cus = float(result.constants["cus"][here].min())
        for way in metric.for_arch(arch):
            cautions = definitions().cautions_of(metric.key, way, arch, cus)
            for use in _merge_single_passes(_uses(result, way, here & np.isnan(values), short, wanting, cautions)):
                if values is nothing:
                    values, times = nothing.copy(), nothing.copy()
                with np.errstate(all="ignore"):
                    evaluated = way.formula.evaluate(use.inputs)
                values[use.where] = np.broadcast_to(evaluated, (count,))[use.where]
                times[use.where] = use.duration_ns[use.where]
                _evaluate_across(result, metric, use)
                result.uses.setdefault(metric.key, []).append(use)
    # 0 / 0 is not a value, because there was nothing to take a share of.
    for keep, why in impossible(metric, values, result.constants):
        values = np.where(keep, values, np.nan)
        result.left_out.setdefault(metric.key, []).append(why)
        _leave_out(result, metric, ~keep, why)
    result.values[metric.key], result.times[metric.key] = values, times
    if metric.key not in result.uses:
        ways = [way for arch in result.of_arch for way in metric.for_arch(arch)]
        if wanting == {_PROBLEM} and any(way.formula.names - CONSTANTS for way in ways):
            result.missing[metric.key] = f"not counted, and {_PROBLEM} is not known"
        else:
            result.missing[metric.key] = (
                f"needs {', '.join(sorted(wanting))}"
                if wanting
                else "not counted"
                if ways
                else "this GPU cannot count it"
            )


def _leave_out(result: Evaluation, metric: Metric, broken: Mask, why: str) -> None:
    """Leave out the inputs of an impossible rate over time, too, because only they can have made it impossible."""
    launches, uses = result.launches, result.uses[metric.key]
    launches.left_out[metric.key] = launches.left_out.get(metric.key, np.zeros(len(launches), dtype=bool)) | broken
    names = {name for use in uses if "duration_ns" in use.way.formula.names for name in use.inputs} - CONSTANTS
    if not names:
        return
    launches.problems.append(f"{metric.title}: {why}, so its counters are left out, too")
    while names:
        name = names.pop()
        if name in result.values:
            launches.leave_out(result.values, broken, [name])
            names |= {each for use in result.uses[name] for each in use.inputs} - CONSTANTS
        for each in (*launches.passes, launches.joined):
            if (have := spelt(name, each.counters)) in each.counters:
                launches.leave_out(each.counters, broken, [have])


def _evaluate_across(result: Evaluation, metric: Metric, use: Use) -> None:
    """Evaluate a use's formula on the counters of all passes combined."""
    joined = result.launches.joined.counters
    inputs = {}
    for name, values in use.inputs.items():
        known = result.across.get(name)
        if known is not None:
            inputs[name] = np.where(np.isnan(known), values, known)
        else:
            inputs[name] = joined.get(spelt(name, joined), values)
    across = result.across.setdefault(metric.key, np.full(len(result.launches), np.nan))
    across[use.where] = np.broadcast_to(use.way.formula.evaluate(inputs), across.shape)[use.where]


def impossible(metric: Metric, values: Floats, constants: Mapping[str, Floats]) -> list[tuple[Mask, str]]:
    """Check values against the metric's range; return (mask of values to keep, reason) for each violated rule."""
    broken_rules: list[tuple[Mask, str]] = []

    def rule(broken: Mask, why: Callable[[int], str]) -> None:
        if broken.any():
            worst = int(np.flatnonzero(broken)[np.argmax(np.abs(values[broken]))])
            broken_rules.append((~broken, f"left out in {broken.sum()} of {len(values)}: {why(worst)}"))

    rule(np.isinf(values), lambda _: "division by zero")
    finite = np.isfinite(values)
    if metric.least is not None:
        least = metric.least
        rule(finite & (values < least), lambda at: f"{values[at]:.6g} {metric.unit} is below {least:g}")
    if metric.most is not None:
        most = np.broadcast_to(metric.most.evaluate(constants), values.shape)
        with np.errstate(invalid="ignore"):
            beyond = finite & (values > most * (1 + metric.slack))
        rule(beyond, lambda at: f"{values[at]:.6g} {metric.unit} is above the maximum, {most[at]:.6g}")
    return broken_rules


class _Taken(NamedTuple):
    where: Mask
    values: dict[str, Floats]
    duration_ns: Floats
    passes: tuple[str, ...]
    is_mixed: bool
    is_borrowed: Mask


def _uses(
    result: Evaluation, way: Alternative, open_: Mask, short: Mapping[str, Mask], wanting: set[str],
    cautions: tuple[str, ...],
) -> list[Use]:  # fmt: skip
    """Find the counters of a formula: all from one pass if possible, otherwise from several passes if allowed."""
    names = way.formula.names
    metrics = {name for name in names if name in result.values}
    counters = sorted(names - metrics - CONSTANTS)
    known: dict[str, Floats] = {name: result.values[name] for name in metrics}
    known |= {name: result.constants[name] for name in names & CONSTANTS}
    uses = []
    for taken in _take(result, counters, way, open_, sorted(metrics)):
        where = taken.where.copy()
        inputs = {**known, **taken.values}
        if "duration_ns" in names:
            inputs["duration_ns"] = taken.duration_ns
        for name in sorted(names & CONSTANTS):
            if np.isnan(inputs[name][where]).all():
                wanting.add(CONSTANT_NAMES.get(name, name))
        for values in inputs.values():
            where &= ~np.isnan(values)
        if where.any():
            measured = result.launches.joined.name if taken.is_mixed else taken.passes[0] if taken.passes else ""
            is_short = short[measured] if BUSY in names else np.zeros_like(where)
            uses.append(
                Use(
                    way, where, inputs, taken.passes, taken.is_mixed, is_short & where, taken.duration_ns, cautions,
                    taken.is_borrowed & where,
                )
            )  # fmt: skip
    return uses


def _merge_single_passes(uses: list[Use]) -> list[Use]:
    """Merge the uses of a formula over single passes into one, because it does not matter which pass has a launch."""
    single = [use for use in uses if not use.is_mixed]
    if len(single) < 2:
        return uses
    masks = [use.where for use in single]

    def of_its_pass(values: Sequence[Floats]) -> Floats:
        return np.select(masks, values, np.nan)

    merged = Use(
        single[0].way, np.logical_or.reduce(masks),
        {name: of_its_pass([use.inputs[name] for use in single]) for name in single[0].inputs},
        tuple(dict.fromkeys(name for use in single for name in use.passes)), False,
        np.logical_or.reduce([use.is_short for use in single]), of_its_pass([use.duration_ns for use in single]),
        single[0].cautions, np.logical_or.reduce([use.is_borrowed for use in single]),
    )  # fmt: skip
    return [merged, *(use for use in uses if use.is_mixed)]


_PROBLEM = "the attention problem"
CONSTANT_NAMES = {
    "cus": "the number of compute units", "xcds": "the number of XCDs", "clock_mhz": "the highest clock",
    "peak_gbps": "the memory's peak bandwidth", "duration_ns": "the kernel's time", "lds_banks": "the LDS's banks",
    "l2_channels": "the number of L2 channels",
    "waves_per_cu": "the wave slots of a compute unit", "work_flops": _PROBLEM, "work_bytes": _PROBLEM,
}  # fmt: skip


def _time_of(result: Evaluation, metrics: Sequence[str]) -> Floats:
    """Return the kernel's time that goes with these metrics if they agree, otherwise any."""
    every = result.launches.duration_ns
    if not metrics:
        return every
    first, *others = (result.times[name] for name in metrics)
    is_one = np.logical_and.reduce([~np.isnan(first), *(first == each for each in others)])
    return np.where(is_one, first, every)


def _take(
    result: Evaluation, counters: Sequence[str], way: Alternative, open_: Mask, metrics: Sequence[str]
) -> list[_Taken]:
    """Return the counters of the open launches: from each pass that has all of them, then from several passes."""
    launches = result.launches
    if not counters:
        borrowed = _any([use.is_borrowed for name in metrics for use in result.uses.get(name, ())], open_)
        return [_Taken(open_, {}, _time_of(result, metrics), (), is_mixed=False, is_borrowed=borrowed)]
    takes, rest = [], open_.copy()
    exact = [each for each in launches.passes if all(name in each.counters for name in counters)]
    others = [each for each in launches.passes if each not in exact]
    for each in (*exact, *others):
        names = {name: spelt(name, each.counters) for name in counters}
        if any(name not in each.counters for name in names.values()):
            continue
        own = launches.time_beside(each)
        values = {name: each.counters[have] for name, have in names.items()}
        where = rest & ~np.isnan(np.vstack(list(values.values()))).any(0)
        if "duration_ns" in way.formula.names:
            where &= ~np.isnan(own)
        if where.any():
            borrowed = _borrowed(each, names.values(), where)
            takes.append(_Taken(where, values, own, (each.name,), is_mixed=False, is_borrowed=borrowed))
            rest &= ~where
    joined = launches.joined.counters
    names = {name: spelt(name, joined) for name in counters}
    if not way.one_pass and rest.any() and all(name in joined for name in names.values()):
        values = {name: joined[have] for name, have in names.items()}
        passes = tuple(p.name for p in launches.passes if not p.counters.keys().isdisjoint(names.values()))
        borrowed = _borrowed(launches.joined, names.values(), rest)
        takes.append(_Taken(rest, values, launches.duration_ns, passes, len(passes) > 1, borrowed))
    return takes


def _borrowed(each: PassCounters, names: Iterable[str], where: Mask) -> Mask:
    """Return the launches with one of these counters from another launch."""
    return _any([each.borrowed[name] for name in names if name in each.borrowed], where)


def _any(masks: Iterable[Mask], like: Mask) -> Mask:
    """Return the union of the masks; all false without masks."""
    result = np.zeros_like(like)
    for mask in masks:
        result |= mask
    return result
