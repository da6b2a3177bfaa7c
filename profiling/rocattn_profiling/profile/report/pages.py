"""The profile report as one HTML file, as Markdown, and its dispatches as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn_profiling.pages.render import add_filters, count, markdown_text, shorten, standalone
from rocattn_profiling.pages.time_strips import time_strips
from rocattn_profiling.profile.ingest.table import NO_PROCESS, Profile
from rocattn_profiling.profile.metrics.aggregate import MetricValue
from rocattn_profiling.profile.metrics.definitions import definitions
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.report import hot_spots
from rocattn_profiling.profile.report.compare import KernelPair, ProfileComparison
from rocattn_profiling.profile.report.findings import TOO_LOW
from rocattn_profiling.profile.report.groups import complete
from rocattn_profiling.profile.report.memory_chart import MemoryChart, memory_chart
from rocattn_profiling.profile.report.names import short_name, short_names
from rocattn_profiling.profile.report.records import KernelFinding, KernelProfile, ProfileReport, ReasonCode
from rocattn_profiling.profile.report.roofline import Roofline, hierarchical, of_gpu
from rocattn_profiling.profile.report.speed_of_light import SpeedBar, rate_text, speed_of_light
from rocattn_profiling.profile.report.summary import NAME_LENGTH, summarise
from rocattn_profiling.profile.report.waits import gap_text

if TYPE_CHECKING:
    from rocattn_profiling.base.reasons import Reason

KERNELS = 200
LISTED_KERNELS = 10
"""Number of rows of the first table; the others unfold on demand."""
COMMANDS = 4
COMPARE = "rocattn report AFTER --against PATH"
TITLED = 2
"""Number of GPUs in the title."""
PICTURED = 10
"""Number of kernels with a roofline and a memory chart: those with the most time."""
WORTH_SAYING = 0.5
"""Percent from which a stall is listed."""
STALLS = {
    "waiting_pct": "waves waiting", "issue_waiting_pct": "ready, but another wave issued",
    "wave_slots_full_pct": "held back by wave slots", "vgprs_full_pct": "by VGPRs", "sgprs_full_pct": "by SGPRs",
    "lds_full_pct": "by LDS", "barriers_full_pct": "by barriers",
}  # fmt: skip
STRIPS = 16
"""Number of GPUs whose time is drawn."""
HOT = 12
MARKDOWN_KERNELS = 15
MARKDOWN_HOT = 2
MARKDOWN_FINDINGS = 8
LISTED = 100
COLUMNS = ("memory_pct", "read_gbps", "write_gbps", "l2_hit_pct", "matrix_busy_pct", "valu_busy_pct", "tflops")
GROUPS = {
    "occupancy": "Occupancy", "launch": "What held waves back", "memory": "Memory", "caches": "Caches", "lds": "LDS",
    "compute": "Compute",
}  # fmt: skip
MOST_EVENTS = 200_000
"""Maximum number of dispatches in a trace: browsers cannot open more."""


@dataclass(frozen=True)
class Shown:
    """One kernel on the page.

    Attributes:
        number: Its number in all tables.
        short: Its shortened name.
        kernel: The kernel.
        groups: Its metrics by group.
        remarks: All flags of its metrics.
        bars: How close it is to each limit; empty for the HIP runtime's own kernels.
        gain: Upper bound of the gain of its verdict's finding, in words; "" if there is none.
        causes: The findings other than its verdict.
        stalls: What its waves waited for, with shares in percent.
        commands: What to run next.
        roofline, chart: Pictures; None for kernels with less time.
    """

    number: int
    short: str
    kernel: KernelProfile
    groups: list[tuple[str, list[MetricValue]]]
    remarks: list[str]
    bars: list[SpeedBar]
    gain: str
    causes: list[KernelFinding]
    stalls: list[tuple[str, float]]
    commands: list[str]
    roofline: Roofline | Reason[ReasonCode] | None
    chart: MemoryChart | None

    @property
    def has_bars(self) -> bool:
        """Whether any limit is known."""
        return any(bar.missing is None for bar in self.bars)


@dataclass(frozen=True)
class UsedFormula:
    """One formula that was used, and its metric."""

    title: str
    text: str
    source: str


def profile_html(report: ProfileReport, made_ms: int, comparison: ProfileComparison | None = None) -> str:
    """Return the report as one self-contained page.

    Args:
        report: What to show.
        made_ms: Creation time in milliseconds since 1970.
        comparison: Comparison with an earlier profile.
    """
    add_filters({"rate": rate_text, "named": _named, "marked": _marked, "capfirst": _capfirst})
    shown = _shown(report)
    title, facts = heading(report)
    return standalone(
        "profile.html.j2", title, made_ms, report=report, facts=facts, shown=shown,
        more_kernels=max(len(report.kernels) - KERNELS, 0), listed_kernels=LISTED_KERNELS,
        rooflines=_rooflines(report, shown), formulas=_formulas(report), listed=LISTED, missing=_missing(report),
        pairs=comparison.pairs if comparison else None, summary=summarise(report), too_low=_too_low(report),
        changed=comparison.lines if comparison else [], hot=report.hot_spots[:HOT], hot_spots=hot_spots,
        compare=complete(report, COMPARE) if report.per == "kernel" else "", gap_text=gap_text,
        strips=time_strips([(gpu.name, gpu.span_ns / 1e9, gpu.bins) for gpu in report.timeline.gpus[:STRIPS]]),
    )  # fmt: skip


def heading(report: ProfileReport) -> tuple[str, list[str]]:
    """Return the title (workload and GPU), and the tool, its release, the date and the size of a profile."""
    system = list(report.profile.system.values())

    def said(*names: str) -> list[str]:
        texts = (" ".join(facts.get(name, "").split()) for facts in system for name in names)
        return list(dict.fromkeys(filter(None, texts)))

    commands = said("command") or said("workload_name")
    more = f" and {len(commands) - 1} more" if len(commands) > 1 else ""
    title = f"Profile of {shorten(commands[0])}{more}" if commands else "Profile"
    products = list(dict.fromkeys(device.name for device in report.devices))
    gpus = dict.fromkeys(
        device.name if device.arch == device.name else f"{device.name} ({device.arch})" for device in report.devices
    )
    sources = report.profile.provenance
    tools = dict.fromkeys((each.tool, each.version) for each in sources if each.tool and each.version)
    tools = tools or dict.fromkeys((each.tool, "") for each in sources if each.tool)
    releases = dict.fromkeys(each.rocm for each in sources if each.rocm)
    launches = sum(kernel.launches for kernel in report.kernels)
    names = {(each.name, each.label) for each in report.kernels}
    kernels = count(len(names), "kernel") if report.per == "kernel" and report.kernels else ""
    kernels += f" in {len(report.kernels):,} shapes or places" if kernels and len(report.kernels) > len(names) else ""
    facts = [
        ", ".join(gpus) or "GPU not named by any file", ", ".join(" ".join(each).strip() for each in tools),
        f"ROCm {', '.join(releases)}" if releases else "", ", ".join(said("timestamp", "date")[:2]), kernels,
        report.chosen or (count(launches, "launch", "launches") if launches else ""), count(len(sources), "file"),
    ]  # fmt: skip
    more = f" and {len(products) - TITLED} more" if len(products) > TITLED else ""
    where = f" on {', '.join(products[:TITLED])}{more}"
    return f"{title}{where if products else ''}", list(filter(None, facts))


def profile_markdown(report: ProfileReport, comparison: ProfileComparison | None = None) -> str:
    """Return the report as Markdown short enough for a comment."""
    add_filters({"named": _named, "marked": _marked, "capfirst": _capfirst})
    title, facts = heading(report)
    first = report.kernels[:MARKDOWN_KERNELS]
    names = short_names([kernel.name for kernel in first], NAME_LENGTH)
    return markdown_text(
        "profile.md.j2", title=title, facts=facts, report=report,
        shown=list(enumerate(zip(first, names, strict=True), 1)),
        more=max(len(report.kernels) - MARKDOWN_KERNELS, 0),
        most_findings=MARKDOWN_FINDINGS, too_low=_too_low(report),
        columns=_columns(report), pairs=comparison.pairs if comparison else None,
        limit=MARKDOWN_KERNELS, summary=summarise(report), changed=comparison.lines if comparison else [],
        hot=report.hot_spots[:MARKDOWN_HOT], hot_spots=hot_spots,
    )  # fmt: skip


def _named(kernel: KernelProfile | KernelPair) -> str:
    """Return the attention problem that a kernel solved, or its short name."""
    return kernel.label or short_name(kernel.name, NAME_LENGTH)


def _marked(text: str) -> str:
    """Return a sentence with its caveat replaced by a mark; the page explains the mark once."""
    return text.replace(TOO_LOW, " †")


def _capfirst(text: str) -> str:
    """Return text with a capital first letter; jinja2's ``capitalize`` lowercases the others."""
    return text[:1].upper() + text[1:]


def _too_low(report: ProfileReport) -> str:
    """Return the caveat that the mark stands for; "" if no sentence has it."""
    return TOO_LOW.strip(" ()") if any(each.is_too_low for kernel in report.kernels for each in kernel.findings) else ""


def _shown(report: ProfileReport) -> list[Shown]:
    kernels = report.kernels[:KERNELS]
    names = short_names([kernel.name for kernel in kernels], NAME_LENGTH)
    return [
        _of_kernel(number, name, kernel, report, is_pictured=number <= PICTURED)
        for number, (name, kernel) in enumerate(zip(names, kernels, strict=True), 1)
    ]


def _of_kernel(number: int, name: str, kernel: KernelProfile, report: ProfileReport, *, is_pictured: bool) -> Shown:
    group_of = {metric.key: metric.group for metric in definitions().metrics}
    groups = [
        (title, [value for key, value in kernel.values.items() if group_of[key] == group])
        for group, title in GROUPS.items()
    ]
    remarks = list(dict.fromkeys(flag for _, values in groups for value in values for flag in value.flags))
    counted = kernel.counters
    bars = speed_of_light(kernel, counted) if kernel.bounds else []
    verdict = kernel.verdict
    gain = next((each.gain_text for each in kernel.findings if verdict and each.key == verdict.finding), "")
    remedies = [verdict.remedy] if verdict and verdict.remedy else [bar.missing.remedy for bar in bars if bar.missing]
    remedies += [finding.command for finding in kernel.findings]
    commands = dict.fromkeys(complete(report, remedy) for remedy in remedies if remedy)
    known = [(text, value.value or 0.0) for key, text in STALLS.items() if (value := kernel.values.get(key))]
    is_pictured = is_pictured and bool(bars) and kernel.device is not None
    return Shown(
        number, name, kernel, [(title, values) for title, values in groups if values], remarks, bars,
        gain, [each for each in kernel.findings if not verdict or each.key != verdict.finding],
        [(text, value) for text, value in known if value >= WORTH_SAYING], list(commands)[:COMMANDS],
        hierarchical(kernel, report.profile.roofs, counted) if is_pictured else None,
        memory_chart(kernel, counted) if is_pictured else None,
    )  # fmt: skip


def _rooflines(report: ProfileReport, shown: list[Shown]) -> list[tuple[Device, Roofline]]:
    """Return the roofline of each GPU on which several kernels ran."""
    drawn = [
        (device, of_gpu(device, [(each.number, each.kernel) for each in shown if each.kernel.device is device]))
        for device in report.devices
    ]
    return [(device, roofline) for device, roofline in drawn if roofline]


def _columns(report: ProfileReport) -> list[tuple[str, str, str]]:
    """Return (key, title, unit) of the table's columns: metrics that have a value for some kernel."""
    titles = {metric.key: metric for metric in definitions().metrics}
    return [
        (key, titles[key].title, titles[key].unit)
        for key in COLUMNS
        if any(key in kernel.values and kernel.values[key].value is not None for kernel in report.kernels)
    ]


def _missing(report: ProfileReport) -> list[tuple[str, str]]:
    """Return (reason, titles) of the metrics that no kernel has, grouped by reason."""
    titles = {metric.key: metric.title for metric in definitions().metrics}
    by_reason: dict[str, list[str]] = {}
    for key, why in report.missing.items():
        by_reason.setdefault(why, []).append(titles[key])
    return [(why, ", ".join(sorted(names))) for why, names in sorted(by_reason.items())]


def _formulas(report: ProfileReport) -> list[UsedFormula]:
    """Return each formula that was used, once."""
    used = {
        (value.title, value.formula): UsedFormula(f"{value.title} [{value.unit}]", value.formula, value.source)
        for kernel in report.kernels
        for value in kernel.values.values()
    }
    return list(used.values())


class _Told(msgspec.Struct, gc=False, omit_defaults=True):
    kernel: str
    dispatch: int
    grid: int = msgspec.field(name="work items")
    block: int
    problem: str = ""


class _Slice(msgspec.Struct, gc=False):
    """A launch in Chrome's trace format; a dictionary per launch would burden the garbage collector."""

    name: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: _Told
    cat: str = "kernel"
    ph: str = "X"


def trace_json(profile: Profile, labels: Sequence[str] | None = None) -> str:
    """Return Chrome's trace format: one track per pass, process and queue, one slice per dispatch.

    Queues of different processes or GPUs may have the same number, and their slices would overlap on one track. Times
    are relative to the first dispatch of each pass, since passes ran one after another. Dispatches without times are
    left out.

    Args:
        profile: What was read.
        labels: The attention problem that each row of ``profile.dispatches`` solved.
    """
    rows = profile.dispatches
    timed = (rows["start_ns"].notna() & rows["end_ns"].notna()).to_numpy()
    of_pass, labelled = rows["pass"].cat.codes.to_numpy(), rows["pass"].cat.categories
    numbers = profile.agents["number"].dropna().astype(int).to_dict()  # the profiler's own numbers
    events: list[object] = []
    shown = 0
    for number, code in enumerate(rows["pass"].cat.codes[timed].unique().tolist()):
        here = np.flatnonzero(timed & (of_pass == code))
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": f"{labelled[code]}"}})
        first = int(rows["start_ns"].array[here].min())
        chosen = rows.iloc[here[: max(MOST_EVENTS - len(events), 0)]]
        start, end = (chosen[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        # Chrome's format has microseconds; these have nanosecond resolution.
        times = ((ns / 1000).tolist() for ns in (start - first, end - start))
        columns = [chosen[name].to_list() for name in ("kernel", "dispatch", "grid", "block")]
        owners = [chosen[name].fillna(NO_PROCESS).astype(int).to_list() for name in ("process", "agent", "queue")]
        said = [labels[row] for row in chosen.index] if labels else [""] * len(chosen)
        tracks: dict[tuple[int, int, int], int] = {}
        events += [
            _Slice(label or str(kernel)[:120], at, long, number, tracks.setdefault(owner, len(tracks)),
                   _Told(kernel, dispatch, grid, block, label))
            for at, long, kernel, dispatch, grid, block, label, owner in zip(
                *times, *columns, said, zip(*owners, strict=True), strict=True
            )
        ]  # fmt: skip
        shown += len(chosen)
        for (process, agent, queue), track in tracks.items():
            named = [("process", process), ("GPU", numbers.get(agent, NO_PROCESS)), ("queue", queue)]
            text = ", ".join(f"{what} {each}" for what, each in named if each >= 0) or "queue not known"
            events.append({"name": "thread_name", "ph": "M", "pid": number, "tid": track, "args": {"name": text}})
    left = np.count_nonzero(timed) - shown
    other = {"left_out": f"{left} more dispatches"} if left > 0 else {}
    content = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}
    return msgspec.json.encode(content).decode() + "\n"
