"""What a report says first: how the time was spent, and whether that comes before the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from rocattn_profiling.pages.quantities import digits, fitting_unit, quantity
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.metrics.timeline import CollectiveTime, GpuTime, IdleGap, StartSkew, Timeline
from rocattn_profiling.profile.report.names import short_name
from rocattn_profiling.profile.report.verdict import COLLECT

LEADS = 0.3
"""Share of an application's time without compute, or of the busy time in exposed communication, from which it leads the
report: few kernels could save as much.
"""
_NEARLY_ALL = 0.9  # share of the time with compute from which one short line is enough
_UNEVEN, _FEWEST = 0.2, 5  # share of the launches that take half of the time; minimum number of launches
_SKEWED = 0.05  # share of the collectives' time spent waiting for the last GPU
_MOSTLY = 0.5  # share of that wait that is for one GPU
_DIFFERS = 0.05  # how far below the average a GPU's busy share must be to be listed
_HIDDEN = 0.01  # exposed communication up to this share of the time counts as none
_SPREAD = 0.02  # share of the idle time below which no single wait is listed
_SHORT_NS = 20e3  # a shorter wait is launch overhead: some microseconds each
_GAPS, _NAME = 2, 40
_UNKNOWN = {
    "counted": f"counters and samples change when kernels start; for a run without them: {COLLECT}",
    "durations": f"the files do not say when kernels start and end; for a trace: {COLLECT}",
    "one_launch": "the files have only one launch",
    "part": "only some launches were chosen; leave out --kernel and --launches",
}


def leads(time: Timeline) -> bool:
    """Return whether communication or idle time is the first thing to look at."""
    span, compute, exposed, busy = _sums(time.gpus, "span", "compute", "exposed", "busy")
    lost = time.is_application and span - compute >= LEADS * span
    return bool(time.gpus) and (lost or exposed >= LEADS * busy)


def _sums(gpus: Sequence[GpuTime], *names: str) -> tuple[int, ...]:
    """Return these times, added up over all GPUs."""
    return tuple(sum(getattr(gpu, f"{name}_ns") for gpu in gpus) for name in names)


def time_lines(time: Timeline) -> list[str]:
    """Return how the time was spent: busy share, exposed communication, skew and the longest waits, if known."""
    if time.unknown:
        return [f"GPU busy time is unknown: {_UNKNOWN[time.unknown]}"]
    gpus = time.gpus
    lines = [_busy(time)] if gpus else []
    if time.collectives:
        exposed = _sums(gpus, "exposed")[0] > _HIDDEN * _sums(gpus, "span")[0]
        lines += [_exposed(gpus) if exposed else _hidden(gpus)]
        lines += [skew_text(time)] if exposed or is_skewed(time) else []
    copies, idle, span = _sums(gpus, "copies", "idle", "span")
    if time.is_application and copies >= (1 - _NEARLY_ALL) * span:
        lines.append(
            f"copies without compute: {_time(copies)}, {share_of(copies, span)} of the time; overlap them with kernels "
            "(pinned memory, a separate stream), or keep the data on the GPU"
        )
    if time.is_application and idle >= (1 - _NEARLY_ALL) * span:
        lines.append(_waits(gpus))
    return lines


def share_of(part_ns: int, all_ns: int) -> str:
    """Return a share of time: "28 %", "1.7 %"."""
    percent = 100 * part_ns / max(all_ns, 1)
    return f"{percent:{'.0f' if percent >= 10 else '.2g'}} %"


def _time(ns: float) -> str:
    return quantity(ns / 1e9, "seconds")


def _busy(time: Timeline) -> str:
    gpus = time.gpus
    span, compute, exposed, copies, idle, busy = _sums(gpus, "span", "compute", "exposed", "copies", "idle", "busy")
    unit = fitting_unit(span / len(gpus) / 1e9, "seconds")
    length = f"{digits(span / len(gpus) / 1e9 / unit.factor, 4)} {unit.symbol}"
    least = min(gpus, key=lambda gpu: gpu.busy_ns / gpu.span_ns)
    differs = least.busy_ns / least.span_ns < (1 - _DIFFERS) * busy / span
    who = "the GPU is" if len(gpus) == 1 else f"{len(gpus)} GPUs are"
    each = " each" if len(gpus) > 1 else ""
    each += f", {least.name} least ({share_of(least.busy_ns, least.span_ns)})" if differs else ""
    said = f"{who} busy {share_of(busy, span)} of {length}{each}"
    if compute >= _NEARLY_ALL * span:
        return f"{said}, nearly always with compute"
    parts = {"compute": compute, "exposed communication": exposed, "copies": copies, "idle": idle}
    said = f"{said}: {', '.join(f'{name} {share_of(ns, span)}' for name, ns in parts.items() if ns)}"
    held = sum(gpu.launches for gpu in gpus)
    if time.missing:
        return (
            f"{said}; the files have {held:,} of {held + time.missing:,} launches, and the others' time counts as idle"
        )
    if time.is_application or leads(time):
        return said
    launches = count(held, "launch", "launches")
    return f"{said}; {launches} of {count(time.kernels, 'kernel')} are not an application, so the gaps mean little"


def _exposed(gpus: Sequence[GpuTime]) -> str:
    exposed, held, span = _sums(gpus, "exposed", "communication", "span")
    where = "" if len(gpus) == 1 else " on all GPUs"
    hidden = share_of(held - exposed, held) if held > exposed else "none"
    return (
        f"exposed communication: {_time(exposed)}{where}, {share_of(exposed, span)} of the time; compute hides "
        f"{hidden} of the {_time(held)} with collectives"
    )


def _hidden(gpus: Sequence[GpuTime]) -> str:
    exposed, held, span = _sums(gpus, "exposed", "communication", "span")
    if 2 * exposed > held:
        return f"communication: {_time(held)}, {share_of(held, span)} of the time"
    return f"communication is hidden: compute overlaps {share_of(held - exposed, held)} of its {_time(held)}"


def uneven(held: CollectiveTime) -> str:
    """Say that few launches take half of the collectives' time; "" if they do not."""
    if held.launches < _FEWEST or held.half > _UNEVEN * held.launches:
        return ""
    return (
        f"{held.half:,} of {held.launches:,} collective launches {'takes' if held.half == 1 else 'take'} half of their "
        f"time (longest {_time(held.longest_ns)}, median {_time(held.median_ns)})"
    )


def is_skewed(time: Timeline) -> bool:
    """Return whether GPUs wait for a late GPU."""
    return bool(time.skew and time.collectives and time.skew.waited_ns >= _SKEWED * time.collectives.total_ns)


def skew_text(time: Timeline) -> str:
    """Return which GPU is last in collectives, or why that is unknown and what hints at it."""
    held, skew = time.collectives, time.skew
    assert held is not None, "asked for only with collectives"
    if skew is None:
        hint = uneven(held)
        said = (
            f"{hint}, most likely waiting for a late rank; which one is unknown, because "
            if hint
            else "unknown, because "
        )
        if len(time.gpus) > 1:
            return f"skew of starts: {said}the launches of the GPUs cannot be paired"
        return f"skew of starts: {said}these are the launches of one GPU; report the files of all ranks together"
    clock = ", by durations, because the clocks differ" if skew.by_duration else ""
    spread = f"{_time(skew.median_ns)} apart (median; {_time(skew.longest_ns)} at most{clock})"
    if not is_skewed(time):
        return f"skew of starts: {spread} on {skew.gpus} GPUs, so none delays the others much"
    waited = f"{share_of(skew.waited_ns, held.total_ns)} of the collectives' time is this wait"
    return f"skew of starts: {spread}; {_last(skew)}; {waited}"


def who_is_late(time: Timeline) -> str:
    """Return how unequal the launches are, or which GPU delays the others; "" for neither."""
    if time.skew:
        return _last(time.skew) if is_skewed(time) else ""
    return uneven(time.collectives) if time.collectives else ""


def _last(skew: StartSkew) -> str:
    mostly = skew.for_last_ns >= _MOSTLY * skew.waited_ns
    often = f"{skew.times_last:,} of {skew.matched:,} collectives"
    return f"{skew.last} is last in {often}" if mostly else f"no GPU is always last ({skew.last} most, in {often})"


def _waits(gpus: Sequence[GpuTime]) -> str:
    idle, waits = _sums(gpus, "idle")[0], sum(gpu.waits for gpu in gpus)
    longest = max((gap.ns for gpu in gpus for gap in gpu.gaps), default=0)
    if longest < _SPREAD * idle:
        cure = (
            "a HIP graph, or fewer and larger kernels, cut them"
            if idle < _SHORT_NS * waits
            else "the host launches too late"
        )
        return f"idle: {waits:,} waits of {_time(idle / waits)} on average, none longer than {_time(longest)}: {cure}"
    gaps = sorted(((gap, gpu) for gpu in gpus for gap in gpu.gaps), key=lambda each: -each[0].ns)[:_GAPS]
    where = (
        f"{_time(gap.ns)} {gap_text(gap, _NAME)}{'' if len(gpus) == 1 else f' on {gpu.name}'}" for gap, gpu in gaps
    )
    return f"longest waits: {'; '.join(where)}"


def gap_text(gap: IdleGap, most: int) -> str:
    """Return the kernels between which a GPU waited, with names cut to this length."""
    before, after = short_name(gap.before, most), short_name(gap.after, most)
    return f"between two {before}" if before == after else f"between {before} and {after}"
