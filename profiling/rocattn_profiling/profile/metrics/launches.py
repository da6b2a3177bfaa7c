"""The launches of a profile: the dispatches of all passes, joined, with the counters that each pass measured.

Counters that contradict themselves or each other are dropped here, with the reason, before metrics are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.ingest.table import Profile
from rocattn_profiling.profile.metrics.definitions import CounterRule
from rocattn_profiling.profile.metrics.multiplexing import bring_together

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

KEYS = ["kernel", "grid", "block", "gpu", "ordinal"]
BUSY = "GRBM_GUI_ACTIVE"
WAVES = "SQ_WAVES"
_INSTRUCTIONS = ("SQ_INSTS", "SQ_INSTS_VALU")
# These are above 0 for every kernel.
_NEVER_0 = (BUSY, "GRBM_COUNT", "SQ_WAVE_CYCLES", "SQ_BUSY_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_CYCLES", *_INSTRUCTIONS)
# If clocks are not pinned, even a wave counter drifts: up to 12 % measured on an RX 9070 XT.
WAVE_DRIFT = 0.15
# Bound of every counter: a thousand compute units with a thousand events each per cycle, at 4 GHz, plus 1 ms of the
# profiler's work around the launch. A launch without times is taken to last an hour.
_A_CYCLE, _CYCLES_A_NS, _AROUND_NS, _LONGEST_NS = 1e6, 4.0, 1e6, 3.6e12


def in_words(number: int) -> str:
    """Return a number of launches as text."""
    return count(number, "launch", "launches")


def spelt(name: str, counters: Mapping[str, object]) -> str:
    """Return a counter's name as these counters spell it, with or without "_sum", which carries no information here.

    Instances are always summed, by the profiler ("_sum") or when its file is read. The requested spelling comes first,
    because a profile may have both, from different passes.
    """
    other = name.removesuffix("_sum") if name.endswith("_sum") else f"{name}_sum"
    return other if name not in counters and other in counters else name


@dataclass(frozen=True)
class PassCounters:
    """One run of the application.

    Attributes:
        name: As in the profile.
        counters: Counter -> value per launch; NaN if not counted.
        duration_ns: Per launch; NaN if its times are missing or impossible.
        borrowed: Counter -> the launches whose value is from another launch (`multiplexing`).
    """

    name: str
    counters: dict[str, Floats]
    duration_ns: Floats
    borrowed: dict[str, Mask] = field(default_factory=dict)


@dataclass
class Launches:
    """All launches and the counters of each pass.

    Attributes:
        table: One row per launch: `KEYS`; its number over all GPUs as ``ordinal``; and from the first pass that has the
            launch, the dispatch number, agent, resources, wave size, and ``rank``, the number of its process in that
            pass.
        passes: Passes with counters, in the profile's order.
        undisturbed_ns: Time from passes without counters; NaN if there is none.
        problems: What was left out, and why.
        stood_still: Whether counters that are never 0 read 0 in some launch.
        left_out: Counter or metric -> the launches whose value was left out.
    """

    table: pd.DataFrame
    passes: list[PassCounters]
    undisturbed_ns: Floats
    problems: list[str] = field(default_factory=list)
    stood_still: bool = False
    left_out: dict[str, Mask] = field(default_factory=dict)
    _times: dict[str, Floats] = field(default_factory=dict)

    def time_beside(self, each: PassCounters) -> Floats:
        """Return the time of each launch that goes with a pass's counters: undisturbed if known, otherwise its own."""
        if each.name not in self._times:  # shared by all formulas with a counter of this pass
            disturbed = np.isnan(self.undisturbed_ns)
            self._times[each.name] = np.where(disturbed, each.duration_ns, self.undisturbed_ns)
        return self._times[each.name]

    def leave_out(self, counters: dict[str, Floats], where: Mask, names: Iterable[str] | None = None) -> None:
        """Leave out values of all these counters, or of the named ones, and record the launches in `left_out`."""
        for name in list(counters) if names is None else names:
            gone = where & ~np.isnan(counters[name])
            counters[name][gone] = np.nan
            self.left_out[name] = self.left_out.get(name, np.zeros(len(self), dtype=bool)) | gone

    def __len__(self) -> int:
        """Return the number of launches."""
        return len(self.table)

    @cached_property
    def joined(self) -> PassCounters:
        """Every counter from one pass that has it, for metrics that may combine passes and for other conventions.

        The parts of a file with many passes ("pmc_perf[3]") come before files with fewer, as in rocprof-compute.
        """
        counters: dict[str, Floats] = {}
        borrowed: dict[str, Mask] = {}
        families = Counter(each.name.partition("[")[0] for each in self.passes)
        for each in sorted(self.passes, key=lambda each: -families[each.name.partition("[")[0]]):
            for name, values in each.counters.items():
                if name not in counters:
                    # The array is shared: values left out of the pass are left out here, too.
                    counters[name], own = values, each.borrowed.get(name)
                    borrowed[name] = np.zeros(len(self), dtype=bool) if own is None else own.copy()
                    continue
                have = counters[name]
                if name in each.borrowed:
                    borrowed[name] |= np.isnan(have) & each.borrowed[name]
                counters[name] = np.where(np.isnan(have), values, have)
        return PassCounters("several passes", counters, self.duration_ns, borrowed)

    @cached_property
    def duration_ns(self) -> Floats:
        """The time of each launch: undisturbed if there is such a pass, otherwise from the first pass that has one."""
        durations = self.undisturbed_ns.copy()
        for each in self.passes:
            durations = np.where(np.isnan(durations), each.duration_ns, durations)
        return durations


def find_launches(profile: Profile) -> Launches:
    """Join the passes of a profile by kernel, grid, block, GPU and the number of the launch among equal ones.

    Dispatch numbers cannot join them: each pass ran the application again, perhaps in a different order.
    """
    rows = profile.dispatches
    keys = rows[["kernel", "grid", "block"]].assign(gpu=_same_gpus(rows), ordinal=profile.ordinals())
    # Sorted, so that the numbering does not depend on which pass came first.
    launch = keys.groupby(KEYS, observed=True, dropna=False, sort=True).ngroup().to_numpy()
    first = np.empty(launch.max(initial=-1) + 1, np.int64)
    first[launch[::-1]] = np.arange(len(launch))[::-1]  # the last write wins
    described = ["process", "dispatch", "agent", "lds_bytes", "scratch_bytes", "vgprs", "agprs", "sgprs", "wave_size"]
    rank = rows.groupby("pass", observed=True, sort=False)["process"].rank(method="dense").astype("int64") - 1
    table = pd.concat([keys, rows[described], rank.rename("rank")], axis=1).iloc[first].reset_index(drop=True)
    table["ordinal"] = table.groupby(KEYS[:3], observed=True, dropna=False).cumcount()  # used to match plans
    count = len(table)
    time = (rows["end_ns"] - rows["start_ns"]).astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    pass_names, of_row = list(rows["pass"].cat.categories), rows["pass"].cat.codes.to_numpy()
    counters = profile.counters
    at_row = counters["row"].to_numpy()
    column = counters["counter"].cat.codes.to_numpy()
    # Sorted once by (pass, counter): profiles have millions of values.
    by_counter = np.lexsort((column, of_row[at_row]))
    starts = np.flatnonzero(np.diff(of_row[at_row][by_counter] * np.int64(1 << 32) + column[by_counter], prepend=-1))
    by_pass: dict[int, dict[str, Floats]] = {}
    for run in np.split(by_counter, starts[1:]) if len(by_counter) else ():
        values = np.full(count, np.nan)
        values[launch[at_row[run]]] = counters["value"].to_numpy()[run]
        name = str(counters["counter"].cat.categories[column[run[0]]])
        by_pass.setdefault(int(of_row[at_row[run[0]]]), {})[name] = values
    undisturbed, passes = np.full(count, np.nan), []
    problems: list[str] = []
    alike: dict[frozenset[str], list[tuple[str, NDArray[np.int64]]]] = {}
    for code in pd.unique(of_row).tolist():
        duration = np.full(count, np.nan)
        here = launch[of_row == code]
        duration[here] = time[of_row == code]
        alike.setdefault(frozenset(by_pass.get(code, ())), []).append((str(pass_names[code]), here))
        if code in by_pass:
            borrowed, told = bring_together(str(pass_names[code]), by_pass[code], table)
            passes.append(PassCounters(str(pass_names[code]), by_pass[code], duration, borrowed))
            problems += told
        else:
            undisturbed = np.where(np.isnan(undisturbed), duration, undisturbed)
    return Launches(table, passes, undisturbed, [*_repeated(alike.values()), *problems])


def _same_gpus(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for the GPU of each dispatch, used to join passes; all 0 if any GPU is unknown.

    A GPU that the pass with the most GPUs also has is the same one. The others replace the GPUs that their pass lacks,
    in order: a run may number its GPUs differently, or use different ones.
    """
    if rows["agent"].isna().any():
        return np.zeros(len(rows), np.int64)
    agents, of_pass = rows["agent"].to_numpy(np.int64), rows["pass"].cat.codes.to_numpy()
    sets = {code: set(pd.unique(agents[of_pass == code]).tolist()) for code in pd.unique(of_pass).tolist()}
    widest = max(sets.values(), key=len, default=set())
    result = agents.copy()
    for code, own in sets.items():
        for other, stands_for in zip(sorted(own - widest), sorted(widest - own), strict=False):
            result[(of_pass == code) & (agents == other)] = stands_for
    return result


def _repeated(alike: Iterable[Sequence[tuple[str, NDArray[np.int64]]]]) -> list[str]:
    """Report passes of one run that measured the same counters of the same launches; only one is used.

    Args:
        alike: Groups of passes with the same counters, each pass with the numbers of its launches.
    """
    again = [
        (name, first) for (first, launches), *others in alike for name, here in others if np.isin(here, launches).any()
    ]
    if not again:
        return []
    name, first = again[0]
    who = f"{name} and {len(again) - 1} more repeat" if len(again) > 1 else f"{name} repeats"
    return [f"pass {who} the measurements of pass {first}, which is reported"]


def take_out(launches: Launches, checks: Iterable[CounterRule], archs: NDArray[np.object_]) -> None:
    """Drop counters that cannot be right: all zero, a part above its whole, names of another architecture.

    Args:
        launches: Modified; every removal adds a line to ``problems``.
        checks: The rules; those for other targets do nothing.
        archs: The target of each launch; "" if unknown.
    """
    for each in launches.passes:
        _take_out_wrapped(launches, each)
        _take_out_silent(launches, each)
        _take_out_waves(launches, each, archs)
        for check in checks:
            fits = {arch for arch in set(archs) if check.arch.fullmatch(arch)}
            here = np.isin(archs, list(fits))
            if not here.any():
                continue
            if check.foreign:
                named = [name for name in each.counters if check.foreign.fullmatch(name)]
                wrong = [name for name in named if not np.isnan(each.counters[name][here]).all()]
                launches.leave_out(each.counters, here, wrong)
                if wrong:
                    launches.problems.append(f"pass {each.name}: {', '.join(wrong)} left out: {check.why}")
            else:
                names = [spelt(name, each.counters) for name in (check.part, check.whole)]
                if any(name not in each.counters for name in names):
                    continue
                part, whole = (each.counters[name] for name in names)
                broken = here & (part > whole)
                if broken.any():
                    at = int(np.flatnonzero(broken)[0])
                    launches.problems.append(
                        f"pass {each.name}: {check.part} and {check.whole} left out in {in_words(broken.sum())}: "
                        f"{check.why}, but one launch has {part[at]:.0f} of {whole[at]:.0f}"
                    )
                    launches.leave_out(each.counters, broken, names)
    if launches.stood_still:
        _take_out_zeros(launches)


def _take_out_silent(launches: Launches, each: PassCounters) -> None:
    """Drop counters that read 0 but cannot be 0, and the whole launch if the hardware was not set up to count.

    If it counted instructions, only the silent counter is dropped (gfx1200's SQ_WAVE_CYCLES is always 0: issue 8523 of
    ROCm/rocm-systems).
    """
    always_counting = [name for name in _NEVER_0 if name in each.counters]
    if not always_counting:
        return
    stack = np.vstack([each.counters[name] for name in always_counting])
    of = (~np.isnan(stack)).any(0).sum()
    counting = np.zeros(len(launches), dtype=bool)
    for name in _INSTRUCTIONS:
        counting |= each.counters.get(name, np.zeros(len(launches))) > 0
    for name, values in zip(always_counting, stack, strict=True):
        alone = (values == 0) & counting
        if alone.any():
            launches.leave_out(each.counters, alone, [name])
            launches.problems.append(
                f"pass {each.name}: {name} left out: it reads 0 in {alone.sum()} of {in_words(of)} that executed "
                "instructions, so this GPU's profiler does not count it"
            )
    silent = (stack == 0).any(0) & ~counting
    if silent.any():
        launches.stood_still = True
        launches.leave_out(each.counters, silent)
        launches.problems.append(
            f"pass {each.name}: {', '.join(always_counting)}: 0 in {silent.sum()} of {in_words(of)}, left out: "
            "on Radeon, counters need a pinned performance level (amd-smi set -g 0 -l stable_std)"
        )


def _take_out_zeros(launches: Launches) -> None:
    """Drop launches for which a pass counted nothing: if one pass did not count, others may not have either."""
    names = []
    for each in launches.passes:
        stack = np.vstack(list(each.counters.values()))
        silent = (np.nan_to_num(stack) == 0).all(0) & ~np.isnan(stack).all(0)
        if silent.any():
            names.append(each.name)
            launches.leave_out(each.counters, silent)
    if names:
        more = f" and {len(names) - 1} more passes" if len(names) > 1 else ""
        launches.problems.append(f"pass {names[0]}{more}: left out where all counters read 0: nothing was counted")


def _take_out_wrapped(launches: Launches, each: PassCounters) -> None:
    """Drop values that are impossible in the launch's time: the register wrapped, or was read too early."""
    cycles = _CYCLES_A_NS * (np.nan_to_num(each.duration_ns, nan=_LONGEST_NS) + _AROUND_NS)
    for name, values in each.counters.items():
        with np.errstate(invalid="ignore"):
            wrong = (values < 0) | (values > cycles * _A_CYCLE)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            launches.problems.append(
                f"pass {each.name}: {name} left out in {wrong.sum()} of {in_words((~np.isnan(values)).sum())}: "
                f"{values[at]:.3g} is impossible in the launch's time"
            )
            launches.leave_out(each.counters, wrong, [name])


def _take_out_waves(launches: Launches, each: PassCounters, archs: NDArray[np.object_]) -> None:
    """Drop launches whose wave count contradicts their grid and block."""
    if WAVES not in each.counters:
        return
    counted, table = each.counters[WAVES], launches.table
    grid, block = table["grid"].to_numpy(np.float64), table["block"].to_numpy(np.float64)
    lanes = table["wave_size"].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    old = [arch for arch in pd.unique(archs) if str(arch).startswith("gfx9")]
    lanes = np.where(np.isin(archs, old), 64.0, lanes)  # GCN and CDNA have no other size
    known = (grid > 0) & (block > 0) & (counted > 0)
    wrong = known.copy()
    for size in (32, 64):
        needed = np.ceil(grid / np.where(block > 0, block, 1)) * np.ceil(block / size)
        possible = np.isnan(lanes) | (lanes == size)
        wrong &= ~(possible & (np.abs(counted - needed) <= WAVE_DRIFT * needed))
    # If the number of waves is wrong, other counters are, too (gfx1030, rocprofv3 1.1.0).
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        launches.problems.append(
            f"pass {each.name}: {wrong.sum()} of {in_words(known.sum())} left out: {WAVES} is {counted[at]:.0f} where "
            f"{grid[at]:.0f} work-items in blocks of {block[at]:.0f} are launched, so other counters are wrong, too"
        )
        launches.leave_out(each.counters, wrong)
