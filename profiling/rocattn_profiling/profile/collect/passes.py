"""Plan the passes that measure the requested counters: groups that fit the hardware, plus one without counters.

Profilers do not split counters into passes: too many counters of one block abort the application (rocprofv3: at the
first dispatch). So counters are grouped here by the blocks' registers. Every pass repeats the anchor counters, so it
can be normalized by its own cycles and checked against the other passes. The plan is deterministic.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

import msgspec

from rocattn_profiling.profile.collect.counters import (
    ArchCounters,
    CounterError,
    anchors,
    default_groups,
    group,
    group_names,
    of_arch,
)
from rocattn_profiling.profile.collect.find import METHODS, NoProfilerError
from rocattn_profiling.profile.metrics.definitions import definitions

STATE, PASSES = "state.json", "passes"
TIMING, SAMPLING, TRACE = "timing", "pc-sampling", "thread-trace"
_TRACES = (7, 0)  # first ROCm release whose rocprofv3 traces instructions
# Cycles (a power of two, rocprof-compute's default) and microseconds. Shorter intervals produce a lot of data.
_INTERVALS = {"stochastic": 1 << 20, "host_trap": 1000}
_COUNTER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class ProfilerPass(msgspec.Struct, frozen=True):
    """One run of the application with its counters, or without for the undisturbed timing run (a kernel trace).

    ``opaque`` marks the single pass of a profiler that plans its own passes (rocprof-compute). ``devices`` are the
    indices of the GPUs to count on; empty for all. ``sampling`` is the method of a pass that takes PC samples instead,
    every ``interval`` cycles (stochastic) or microseconds (host_trap). ``traced`` marks a pass with a thread trace, and
    ``decoder`` is its decoder's folder, "" for ROCm's own. ``kernel`` (a regular expression) and ``launches``
    ("2-10,15", of each kernel) select what to count or trace, "" for all; ``gpu`` is the index of the only GPU to
    count on.
    """

    name: str
    counters: tuple[str, ...] = ()
    opaque: bool = False
    devices: tuple[int, ...] = ()
    sampling: str = ""
    interval: int = 0
    traced: bool = False
    decoder: str = ""
    kernel: str = ""
    launches: str = ""
    gpu: int | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The requested counters of this pass, without the anchors."""
        return tuple(name for name in self.counters if name not in anchors()) or self.counters


class PassPlan(msgspec.Struct, frozen=True):
    """The passes, and the requested names that were left out, with the reason."""

    arch: str
    wanted: tuple[str, ...]
    passes: tuple[ProfilerPass, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...] = ()


def plan_passes(
    wanted: Sequence[str], arch: str, release: tuple[int, int] = (0, 0), tool: str = "rocprofv3"
) -> PassPlan:
    """Return the passes that measure these groups, metrics and counters on an architecture.

    Args:
        wanted: Names of groups (`group_names`), metrics (`metric_names`) and counters; empty means the default groups.
        arch: Like gfx942.
        release: The profiler's ROCm release; (0, 0) if unknown. Counters of groups and metrics that it does not have
            are left out; explicitly named counters are requested anyway.
        tool: The profiler's name.

    Raises:
        CounterError: When a name is not a group, metric or counter here, or no counter is left.
    """
    counters = of_arch(arch)
    names = tuple(dict.fromkeys(wanted)) or default_groups()
    left_out: dict[str, str] = {}
    bundles: list[tuple[str, ...]] = []
    for name in names:
        if name in group_names():
            bundled = group(name, counters)
            older = [
                counter for bundle in bundled for counter in bundle if not counters.in_release(counter, release, tool)
            ]
            if older:
                left_out |= dict.fromkeys(older, f"not in ROCm {release[0]}.{release[1]} on {counters.arch}")
            known = [tuple(counter for counter in bundle if counter not in older) for bundle in bundled]
            bundles += [bundle for bundle in known if bundle]
            if not bundled:
                left_out[name] = f"{counters.arch} has no counters for it"
        elif name in metric_names():
            needed = of_metric(name, counters, release, tool)
            if needed:
                bundles.append(needed)
            elif of_metric(name, counters):
                left_out[name] = f"ROCm {release[0]}.{release[1]} does not count it on {counters.arch}"
            else:
                left_out[name] = f"{counters.arch} has no counters for it"
        else:
            bundles.append((_known(name, counters),))
    if not bundles:
        raise CounterError(f"nothing to count: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    anchor = tuple(name for name in anchors() if counters.has(name))
    packed = _pack(_splits(bundles, anchor, counters), anchor, counters)
    notes = [counters.note] if counters.note else []
    if not counters.verified:
        notes.append(
            f"{counters.arch} is not in ROCm 7.0's counter table: the counters of {counters.table} are asked for"
        )
    passes = [
        ProfilerPass(TIMING),
        *(ProfilerPass(f"counters-{number}", of_pass) for number, of_pass in enumerate(packed, 1)),
    ]
    return PassPlan(counters.arch, names, tuple(passes), left_out, tuple(notes))


def sampling_pass(method: str, interval: int, arch: str, release: tuple[int, int], tool: str) -> ProfilerPass:
    """Return the pass that takes PC samples.

    The pass is separate: counted kernels are serialized, and no known release can count and sample at once.

    Args:
        method: "stochastic", "host_trap", or "auto" for the better one available.
        interval: Cycles (stochastic; a power of two) or microseconds (host_trap) between samples; 0 for the default.
        arch: Like gfx942.
        release: The profiler's ROCm release; (0, 0) if unknown.
        tool: The profiler's name.

    Raises:
        CounterError: When this GPU or this profiler does not support it.
    """
    if tool != "rocprofv3":
        raise CounterError(f"{tool} takes no PC samples: rocprofv3 of ROCm 6.4 and later does")
    if arch not in METHODS:
        others = f"{', '.join(METHODS)} have it; --thread-trace traces instructions"
        raise CounterError(f"AMD documents no PC sampling for {arch}: {others}")
    known = [name for name, first in METHODS[arch].items() if release == (0, 0) or release >= first]
    if not known:
        raise CounterError(f"PC sampling needs ROCm 6.4, this rocprofv3 is of {release[0]}.{release[1]}")
    if method not in {"auto", *known}:
        raise CounterError(f"{arch} has no {method} PC sampling with this rocprofv3: take {' or '.join(known)}")
    method = known[0] if method == "auto" else method
    interval = interval or _INTERVALS[method]
    if method == "stochastic" and interval & (interval - 1):
        raise CounterError(f"the interval of stochastic PC sampling is a power of two cycles, not {interval}")
    return ProfilerPass(SAMPLING, sampling=method, interval=interval)


def trace_pass(release: tuple[int, int], tool: str, decoder: str = "") -> ProfilerPass:
    """Return the pass that traces the instructions of one compute unit's waves in one launch of each kernel.

    Args:
        release: The profiler's ROCm release; (0, 0) if unknown.
        tool: The profiler's name.
        decoder: The folder of AMD's trace decoder; "" if it is in ROCm's ``lib``.

    Raises:
        NoProfilerError: When this profiler does not support it.
    """
    if tool != "rocprofv3":
        raise NoProfilerError(f"{tool} traces no instructions: rocprofv3 of ROCm 7.0 and later does")
    if (0, 0) < release < _TRACES:
        raise NoProfilerError(f"a thread trace needs ROCm 7.0, this rocprofv3 is of {release[0]}.{release[1]}")
    return ProfilerPass(TRACE, traced=True, decoder=decoder)


def split(too_big: ProfilerPass) -> tuple[ProfilerPass, ProfilerPass] | None:
    """Split a pass into two with half the counters each, or return None if that is impossible.

    Used if the hardware takes fewer counters than its table says; both halves keep the anchors.
    """
    wanted = too_big.wanted
    if len(wanted) < 2 or too_big.opaque:
        return None
    anchor = tuple(name for name in too_big.counters if name not in wanted)
    middle = (len(wanted) + 1) // 2
    return (
        msgspec.structs.replace(too_big, name=f"{too_big.name}a", counters=(*anchor, *wanted[:middle])),
        msgspec.structs.replace(too_big, name=f"{too_big.name}b", counters=(*anchor, *wanted[middle:])),
    )


def _known(name: str, counters: ArchCounters) -> str:
    """Return the name if the architecture has this counter; otherwise raise, suggesting similar names."""
    if _COUNTER.fullmatch(name) is None:
        raise CounterError(f"{name!r} is not the name of a counter or a group: use letters, digits and _ only")
    if counters.has(name):
        why = counters.over((name,))
        if why:
            raise CounterError(f"{name} cannot be measured in one pass on {counters.arch}: {why}")
        return name
    every = [*group_names(), *metric_names(), *counters.blocks, *counters.expressions]
    near = difflib.get_close_matches(name, every, n=3) or list(group_names())
    raise CounterError(f"{counters.arch} has no counter, metric or group {name!r}: there is {', '.join(near)}")


def metric_names() -> tuple[str, ...]:
    """Return the metrics that can be requested by name."""
    return tuple(metric.key for metric in definitions().metrics)


def of_metric(
    key: str, counters: ArchCounters, release: tuple[int, int] = (0, 0), tool: str = "rocprofv3"
) -> tuple[str, ...]:
    """Return the counters of a metric's first formula that the architecture fully supports, or ()."""
    for names in definitions().counters(counters.arch).get(key, ()):
        if names and all(counters.has(name) and counters.in_release(name, release, tool) for name in names):
            return tuple(sorted(names))
    return ()


def _splits(
    bundles: Iterable[tuple[str, ...]], anchor: tuple[str, ...], counters: ArchCounters
) -> list[tuple[str, ...]]:
    """Return the bundles, splitting those that do not fit in a pass with the anchors."""
    parts: list[tuple[str, ...]] = []
    for bundle in bundles:
        part: tuple[str, ...] = ()
        for name in bundle:
            if part and counters.over((*anchor, *part, name)):
                parts.append(part)
                part = ()
            part = (*part, name)
        parts.append(part)
    return parts


def _pack(bundles: Iterable[tuple[str, ...]], anchor: tuple[str, ...], counters: ArchCounters) -> list[tuple[str, ...]]:
    """Put each bundle into the first pass with room for it, or else into a new pass."""
    passes: list[tuple[str, ...]] = []
    for bundle in bundles:
        for index, taken in enumerate(passes):
            together = tuple(dict.fromkeys((*taken, *bundle)))
            if not counters.over(together):
                passes[index] = together
                break
        else:
            # A counter that needs an anchor's whole block is measured without that anchor.
            kept = tuple(name for name in anchor if not counters.over(tuple(dict.fromkeys((name, *bundle)))))
            passes.append(tuple(dict.fromkeys((*kept, *bundle))))
    return passes
