"""The profile report as one HTML file, as Markdown, and its dispatches as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.pages.render import markdown_text, shorten, standalone
from rocattn_profiling.profile.ingest.table import NO_PROCESS
from rocattn_profiling.profile.metrics.definitions import definitions
from rocattn_profiling.profile.report import hot_spots
from rocattn_profiling.profile.report.roofline import Roofline, roofline
from rocattn_profiling.profile.report.summary import changes, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.profile.ingest.table import Profile
    from rocattn_profiling.profile.metrics.aggregate import MetricValue
    from rocattn_profiling.profile.metrics.devices import Device
    from rocattn_profiling.profile.report.compare import KernelPair
    from rocattn_profiling.profile.report.report import KernelProfile, ProfileReport


KERNELS = 200
FINDINGS = 25
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
"""Limit on the dispatches written: browsers do not open more."""


@dataclass(frozen=True)
class Shown:
    """One kernel on the page: its number, its shortened name, its metrics by group, all remarks."""

    number: int
    short: str
    kernel: KernelProfile
    groups: list[tuple[str, list[MetricValue]]]
    remarks: list[str]


@dataclass(frozen=True)
class UsedFormula:
    """One formula that was used, and the metric it is for."""

    title: str
    text: str
    source: str


def profile_html(report: ProfileReport, made_ms: int, pairs: list[KernelPair] | None = None) -> str:
    """Return the report as one self-contained page.

    Args:
        report: What to show.
        made_ms: When, in milliseconds since 1970.
        pairs: The comparison with an earlier profile.
    """
    shown = [_shown(number, kernel) for number, kernel in enumerate(report.kernels[:KERNELS], 1)]
    number_of = {id(each.kernel): each.number for each in shown}
    findings = [(number_of[id(kernel)], finding) for kernel, finding in report.findings if id(kernel) in number_of]
    return standalone(
        "profile.html.j2", "Profile", made_ms, report=report, shown=shown, findings=findings[:FINDINGS],
        more_findings=max(len(findings) - FINDINGS, 0), more_kernels=max(len(report.kernels) - KERNELS, 0),
        rooflines=_rooflines(report, shown), formulas=_formulas(report), columns=_columns(report), listed=LISTED,
        missing=_missing(report), pairs=pairs, summary=summarise(report),
        changed=changes(report, pairs) if pairs is not None else [], hot=report.hot_spots[:HOT], hot_spots=hot_spots,
    )  # fmt: skip


def profile_markdown(report: ProfileReport, pairs: list[KernelPair] | None = None) -> str:
    """Return the report as Markdown short enough for a comment."""
    shown = [_shown(number, kernel) for number, kernel in enumerate(report.kernels, 1)]
    number_of = {id(each.kernel): each.number for each in shown}
    return markdown_text(
        "profile.md.j2", report=report, shown=shown[:MARKDOWN_KERNELS], more=max(len(shown) - MARKDOWN_KERNELS, 0),
        findings=[(number_of[id(kernel)], finding) for kernel, finding in report.findings][:MARKDOWN_FINDINGS],
        columns=_columns(report), missing=_missing(report), pairs=pairs, limit=MARKDOWN_KERNELS,
        summary=summarise(report), changed=changes(report, pairs) if pairs is not None else [],
        hot=report.hot_spots[:MARKDOWN_HOT], hot_spots=hot_spots,
    )  # fmt: skip


def _shown(number: int, kernel: KernelProfile) -> Shown:
    group_of = {metric.key: metric.group for metric in definitions().metrics}
    groups = [
        (title, [value for key, value in kernel.values.items() if group_of[key] == group])
        for group, title in GROUPS.items()
    ]
    remarks = list(dict.fromkeys(flag for _, values in groups for value in values for flag in value.flags))
    return Shown(number, shorten(kernel.name), kernel, [(title, values) for title, values in groups if values], remarks)


def _rooflines(report: ProfileReport, shown: list[Shown]) -> list[tuple[Device, Roofline | None]]:
    of_device = [
        (device, [(each.number, each.kernel) for each in shown if each.kernel.device is device])
        for device in report.devices
    ]
    return [(device, roofline(device, kernels, report.profile.roofs)) for device, kernels in of_device]


def _columns(report: ProfileReport) -> list[tuple[str, str, str]]:
    """Return (key, title, unit) of the table's columns: metrics for which some kernel has a value."""
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


def trace_json(profile: Profile, labels: Sequence[str] | None = None) -> str:
    """Return Chrome's trace format: one track per pass, process and queue, one slice per dispatch.

    Queues of different processes or GPUs may have the same number, and their slices would overlap on one track. Times
    are relative to the first dispatch of each pass, since passes ran one after another. Dispatches without times are
    left out.

    Args:
        profile: What was read.
        labels: The problem that each row of ``profile.dispatches`` solved.
    """
    rows = profile.dispatches
    timed = rows[rows["start_ns"].notna() & rows["end_ns"].notna()]
    numbers = profile.agents["number"].dropna().astype(int).to_dict()  # the profiler's own
    events: list[dict[str, object]] = []
    for number, (name, group) in enumerate(timed.groupby("pass", observed=True, sort=False)):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": f"{name}"}})
        first = int(group["start_ns"].min())
        chosen = group.head(max(MOST_EVENTS - len(events), 0))
        columns = [chosen[name].to_list() for name in ("start_ns", "end_ns", "kernel", "dispatch", "grid", "block")]
        owners = [chosen[name].fillna(NO_PROCESS).astype(int).to_list() for name in ("process", "agent", "queue")]
        tracks: dict[tuple[int, int, int], int] = {}
        for row, start, end, kernel, dispatch, grid, block, owner in zip(
            chosen.index.to_list(), *columns, zip(*owners, strict=True), strict=True
        ):
            track = tracks.setdefault(owner, len(tracks))
            label = labels[row] if labels else ""
            arguments = {"kernel": kernel, "dispatch": dispatch, "work items": grid, "block": block}
            # Microseconds as Chrome wants them, to the nanosecond.
            events.append({
                "name": label or str(kernel)[:120], "cat": "kernel", "ph": "X", "ts": (start - first) / 1000,
                "dur": (end - start) / 1000, "pid": number, "tid": track,
                "args": arguments | ({"problem": label} if label else {}),
            })  # fmt: skip
        for (process, agent, queue), track in tracks.items():
            named = [("process", process), ("GPU", numbers.get(agent, NO_PROCESS)), ("queue", queue)]
            text = ", ".join(f"{what} {each}" for what, each in named if each >= 0) or "queue not known"
            events.append({"name": "thread_name", "ph": "M", "pid": number, "tid": track, "args": {"name": text}})
    left = len(timed) - sum(event["ph"] == "X" for event in events)
    other = {"left_out": f"{left} more dispatches"} if left > 0 else {}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}) + "\n"
