"""A profile report's card: the verdict, the kernels with their limits, what to do, and what to measure next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rocattn_profiling.base.gpus import product, products
from rocattn_profiling.pages.quantities import digits, quantity
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.metrics.timeline import Kind
from rocattn_profiling.profile.report.groups import TITLES, FindingGroup, complete, group_findings, named, of_kind, part
from rocattn_profiling.profile.report.hot_spots import ON_TERMINAL
from rocattn_profiling.profile.report.names import short_name
from rocattn_profiling.profile.report.records import KernelProfile, ProfileReport, Verdict
from rocattn_profiling.profile.report.speed_of_light import SIX, SpeedBar, speed_of_light
from rocattn_profiling.profile.report.verdict import BOUND, COLLECT, IDLE, NAME_IT, OWN, SAMPLED, SHORT, WORTH_A_WORD
from rocattn_profiling.profile.report.waits import leads, time_lines

KERNELS = 5
"""Maximum number of kernels, or of groups of kernels with the same verdict."""
FINDINGS = 5
"""Maximum number of findings, or groups of findings."""
NAME_LENGTH = 90
_OTHERS = 0.1  # share of all time from which kernels without work of their own get a separate line
_LONG = 0.2  # share of all time from which a kernel gets a separate line
_SHARES = 6  # maximum number of percentages listed
_PERCENTAGE = re.compile(r"(Utilization|Util|Busy|Stalled|Percent|Hit|BankConflict)$")  # names of derived counters
_OF_MANY = {
    IDLE: "fewer blocks or waves than the GPU has units for them; split the work further, or launch fewer kernels",
    SHORT: "so short that starting them costs about as much; fuse them, or launch them in a graph",
}


@dataclass(frozen=True)
class SummaryLine:
    """The verdict on one kernel, or on several with the same verdict.

    Attributes:
        numbers: The kernels' numbers in the tables.
        who: Which kernels, with their share of the time.
        text: The verdict.
        gain: Upper bound of the gain in words; "" if the verdict has none.
    """

    numbers: tuple[int, ...]
    who: str
    text: str
    gain: str


@dataclass(frozen=True)
class KernelRow:
    """One kernel of the first table.

    Attributes:
        number: Its number in the report.
        name: As written by the profiler.
        label: The attention problem that it solved; "" if unknown.
        share: Share of all kernels' time; None without times.
        median: Median time of a launch, in words; "" without times.
        launches: Number of launches.
        facts: Their shape, GPU, spread of times and long launches, in words.
        brief: The verdict in a few words.
        bars: How close it is to memory, L2, L1, LDS, vector and matrix units; empty if none of them is known.
        other: The nearest limit if it has no bar, with its share; "" otherwise.
    """

    number: int
    name: str
    label: str
    share: float | None
    median: str
    launches: int
    facts: str
    brief: str
    bars: tuple[SpeedBar, ...]
    other: str


@dataclass(frozen=True)
class UnknownVerdict:
    """Kernels whose limit is unknown.

    Attributes:
        who: Which kernels, with their share of the time.
        why: What is missing.
        command: What would measure it.
        gpus: Candidates for NAME in the command: the GPUs that may have run them; "" if the command has no NAME.
        says: Facts from the files about the longest of them, without a judgment; "" for none.
    """

    who: str
    why: str
    command: str
    gpus: str = ""
    says: str = ""


@dataclass(frozen=True)
class ReportSummary:
    """The card of a report.

    Attributes:
        headline: The verdict on what takes most of the time, in one sentence: a kernel, or waiting.
        before, after: Text before and after the headline: how the time was spent, the verdict on the kernels.
        last: A note that it is unknown how the time was spent, or ""; not about kernels.
        rows: The longest kernels with work of their own; the numbers of the others come last.
        lines: The verdicts, those of the longest kernels first; never empty without `why_none`.
        why_none: Why there is no verdict, or "".
        others: The share of kernels without work of their own, if it is large, or "".
        more: Kernels without a row, with their share, or "".
        findings: The findings to show, by rule, the largest gain first.
        folded: Findings worth less than `groups.WORTH`.
        unknown: What is unknown, and how to measure it.
        commands: What to run next.
    """

    headline: str
    rows: list[KernelRow]
    lines: list[SummaryLine]
    why_none: str
    others: str
    more: str
    findings: list[FindingGroup]
    folded: list[FindingGroup]
    unknown: list[UnknownVerdict]
    commands: list[str]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    last: str = ""


def summarise(report: ProfileReport) -> ReportSummary:
    """Summarize how the time was spent and what bounds the kernels of a report, in descending order of time.

    Waiting that dominates is the headline. For an application, the time always comes first; for a microbenchmark it
    comes after the kernels.
    """
    summary, time = _of_kernels(report), report.timeline
    lines = [complete(report, line) for line in time_lines(time)]
    if time.unknown or not lines:
        return replace(summary, last="".join(lines))
    if leads(time):
        return replace(summary, headline=lines[0], after=(*lines[1:], summary.headline))
    if time.is_application:
        return replace(summary, before=tuple(lines))
    return replace(summary, after=tuple(lines))


def _of_kernels(report: ProfileReport) -> ReportSummary:
    """Summarize what bounds the kernels, or the launches, in descending order of time."""
    if not report.kernels:
        why = "no verdict: the files have instruction samples, but no kernel times or counters"
        commands = _after_samples(report) or [complete(report, COLLECT)]
        return ReportSummary(why, [], [], why, "", "", [], [], [], commands)
    judged = [(number, each, each.verdict) for number, each in enumerate(report.kernels, 1) if each.verdict]
    judged.sort(key=lambda row: -row[1].total_ns)  # single launches are in the order of dispatch
    kinds: tuple[Kind, ...] = ("collective", "runtime")
    shares = {TITLES[kind]: sum(each.time_share for _, each in of_kind(report, kind)) for kind in kinds}
    others = ", ".join(f"{what}: {100 * share:.0f} % of GPU time" for what, share in shares.items() if share >= _OTHERS)
    groups = group_findings(report)
    findings, folded = ([each for each in groups if each.is_small is small] for small in (False, True))
    if not judged:
        held = " and ".join(TITLES[kind] for kind in kinds if of_kind(report, kind))
        why = f"no verdict: only {held} ran"
        return ReportSummary(why, [], [], why, others, "", findings, folded, [], [])
    alike: dict[tuple[str, str], list[tuple[int, KernelProfile, Verdict]]] = {}
    for number, kernel, reason in judged:
        alone = reason.code in OWN or (reason.code in _OF_MANY and kernel.time_share >= _LONG)
        key = str(number) if alone else "" if reason.code in _OF_MANY else reason.text
        alike.setdefault((reason.code, key), []).append((number, kernel, reason))
    shown = list(alike.values())[:KERNELS]
    lines = [_line(group) for group in shown]
    unknown = _unknown(report, judged)
    return ReportSummary(
        _headline(shown[0], lines[0]), _rows(report), lines, "", others, _without_a_row(judged, shares), findings,
        folded, unknown,
        list(dict.fromkeys([*(each.command for each in unknown), *_after_samples(report, judged)])),
    )  # fmt: skip


def _after_samples(report: ProfileReport, judged: Sequence[tuple[int, KernelProfile, Verdict]] = ()) -> list[str]:
    """Return what to run after verdicts from samples, and after the hot spots that the terminal shows."""
    remedies = [reason.remedy for _, _, reason in judged if reason.code == SAMPLED]
    remedies += [each.remedy for each in report.hot_spots[:ON_TERMINAL]]
    return [complete(report, remedy) for remedy in dict.fromkeys(filter(None, remedies))]


def _without_a_row(judged: list[tuple[int, KernelProfile, Verdict]], others: dict[str, float]) -> str:
    """Return which kernels the table leaves out, with their share of the time; "" for none."""
    rest = [kernel for _, kernel, _ in judged[KERNELS:]]
    more = "more kernel" if judged[0][1].noun == "kernel" else "shorter launch"
    many = f"{more}{'es' if more.endswith('ch') else 's'}"
    names = [(count(len(rest), more, many), sum(kernel.time_share for kernel in rest))] if rest else []
    names += [(what, share) for what, share in others.items() if 0 < share < _OTHERS]
    texts = [f"{name} ({part(share)} of the time)" if judged[0][1].time_ns else name for name, share in names]
    return f"not in this table: {' and '.join(texts)}; see the report" if texts else ""


def _headline(group: list[tuple[int, KernelProfile, Verdict]], line: SummaryLine) -> str:
    """Return the verdict on the kernels that take most of the time."""
    who = _who([(number, kernel) for number, kernel, _ in group])
    _, kernel, reason = group[0]
    if reason.code == BOUND and kernel.bounds and (nearest := kernel.bounds.nearest):
        return f"{who}: {nearest.name} bound {nearest.where}"
    title = next((each.title for each in kernel.findings if each.key == reason.finding), "") if len(group) == 1 else ""
    return f"{who}: {title or line.text}"


def _rows(report: ProfileReport) -> list[KernelRow]:
    kernels = [(number, each) for number, each in enumerate(report.kernels, 1) if each.bounds]
    kernels.sort(key=lambda row: -row[1].total_ns)
    return [
        KernelRow(
            number, each.name, each.label, each.time_share if each.time_ns else None,
            quantity(each.time_ns[50] / 1e9, "seconds") if each.time_ns else "", each.launches,
            "; ".join(each.facts), each.verdict.brief if each.verdict else "", bars_of(each), _other(each),
        )
        for number, each in kernels[:KERNELS]
    ]  # fmt: skip


def bars_of(kernel: KernelProfile) -> tuple[SpeedBar, ...]:
    """Return how close a kernel is to the limits with a bar for every kernel; only a significant limit is nearest."""
    bars = speed_of_light(kernel, kernel.counters) if kernel.bounds else []
    return tuple(
        replace(bar, is_nearest=bar.is_nearest and bar.pct is not None and bar.pct >= WORTH_A_WORD)
        for bar in bars if bar.key in SIX
    )  # fmt: skip


def _other(kernel: KernelProfile) -> str:
    """Return the nearest limit if it has no bar."""
    nearest = kernel.bounds.nearest if kernel.bounds else None
    return nearest.short if nearest and nearest.key not in SIX and nearest.pct >= WORTH_A_WORD else ""


def _unknown(report: ProfileReport, judged: list[tuple[int, KernelProfile, Verdict]]) -> list[UnknownVerdict]:
    """Return what is unknown for which kernels, merging equal reasons."""
    alike: dict[tuple[str, str], list[tuple[int, KernelProfile]]] = {}
    for number, kernel, reason in judged:
        if reason.remedy and reason.code != SAMPLED:
            alike.setdefault((reason.text, reason.remedy), []).append((number, kernel))
    return [
        UnknownVerdict(
            _who(members), why, complete(report, command), _gpus(members) if command == NAME_IT else "", _says(members)
        )
        for (why, command), members in alike.items()
    ]


def _gpus(members: list[tuple[int, KernelProfile]]) -> str:
    """Return the names of the GPUs with enough LDS for these kernels' blocks."""
    most = max(kernel.resources["lds_bytes"] or 0 for _, kernel in members)
    known = [product(name) for name in products() if product(name).arch.lds_block_bytes >= most]
    few = f" (no other has {most:,} bytes of LDS per block)" if 0 < len(known) < len(products()) else ""
    instinct = [each.name.removeprefix("Instinct ").removesuffix(" (one GCD)") for each in known if "Inst" in each.name]
    radeon = [each.name.removeprefix("Radeon ") for each in known if "Radeon" in each.name]
    cards = f", or a Radeon by its name (one of {len(radeon)}: {radeon[0]}, ...)" if radeon else ""
    return f"{', '.join(instinct)}{cards}{few}"


def _says(members: list[tuple[int, KernelProfile]]) -> str:
    """Return the longest kernel's resources and, if counted, the percentages that its profiler computed."""
    number, kernel = members[0]
    if not kernel.counters:
        return ""
    titles = {"vgprs": "VGPRs", "lds_bytes": "bytes of LDS per block", "scratch_bytes": "bytes of scratch per lane"}
    facts = [f"{kernel.resources[name]:,} {title}" for name, title in titles.items() if kernel.resources[name]]
    moved = [kernel.values[key].value or 0.0 for key in ("read_gbps", "write_gbps") if key in kernel.values]
    if kernel.device is None and any(moved):  # otherwise its share of the peak says it
        facts.append(f"{sum(moved):,.0f} GB/s of memory traffic")
    shares = [(name, value) for name, value in kernel.counters.items() if _PERCENTAGE.search(name) and value > 0]
    facts += [f"{name} {digits(value)} %" for name, value in shares[:_SHARES]]
    return f"{kernel.noun} {number} has {', '.join(facts)}" if len(facts) > 1 else ""


def _who(members: list[tuple[int, KernelProfile]]) -> str:
    """Return which kernels, with their share of the time: "kernels 1, 3 (84 % of GPU time)"."""
    who = named([number for number, _ in members], members[0][1].noun, KERNELS)
    share = sum(each.time_share for _, each in members)
    return f"{who} ({part(share)} of GPU time)" if members[0][1].time_ns else who


def _line(group: list[tuple[int, KernelProfile, Verdict]]) -> SummaryLine:
    numbers = tuple(number for number, _, _ in group)
    _, kernel, reason = group[0]
    who = _who([(number, each) for number, each, _ in group])
    if len(group) > 1:
        return SummaryLine(numbers, who, _OF_MANY.get(reason.code, reason.text), "")
    gain = next((f.gain_text for f in kernel.findings if f.key == reason.finding and f.gain is not None), "")
    return SummaryLine(numbers, f"{who}, {kernel.label or short_name(kernel.name, NAME_LENGTH)}", reason.text, gain)
