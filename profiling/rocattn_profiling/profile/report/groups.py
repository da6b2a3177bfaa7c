"""Findings of all kernels, grouped by rule: what to do first, its maximum gain and the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rocattn_profiling.pages.quantities import digits
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.metrics.launches import spelt
from rocattn_profiling.profile.metrics.timeline import Kind
from rocattn_profiling.profile.report.records import KernelFinding, KernelProfile, ProfileReport
from rocattn_profiling.profile.report.waits import share_of, who_is_late

WORTH = 0.01
"""Share of all kernels' time below which a group is folded: counted, but not shown."""
COPIES = "runtime-copies"
COLLECTIVES = "collectives"
TITLES: dict[Kind, str] = {"runtime": "copies and fills of the HIP runtime", "collective": "collectives"}
"""Names for kernels that do no work of their own."""
_COPIES_WORTH = 0.1  # share of all time from which copies and fills are a finding; every program has some
_RARE = 0.5  # copies per kernel launch below which they may belong to the setup
_SMALL_NS = 50e3  # shorter collectives are dominated by latency: at 300 GB/s this is less than 15 MB
_MANY = 10  # minimum number of launches for that conclusion
_MOST_NAMED = 6  # kernels listed by number in a group
_MOST_COUNTERS = 6
_IF_SET_UP = "; ignore this if only the setup copies"


@dataclass(frozen=True)
class FindingGroup:
    """What one rule found, in one or more kernels.

    Attributes:
        key: The rule, or the limit: "lds-bound".
        title: What the kernels have in common: "LDS bound".
        kernels: Their numbers in the report, the longest first.
        share: Their share of all kernels' time; None without times.
        sentence: The finding, with the numbers of the kernel that could gain most.
        gain: Upper bound of the gain, as a share of all kernels' time; None if unknown.
        rank: Sort key.
        counters: Counters behind it and their means over the launches of the kernel that could gain most.
        command: Command that finds the cause; "" for none.
        less: What gains more than the bound, which assumes the same work: "fewer LDS cycles"; "" for nothing.
        noun: What a row of the report is: "kernel" or "launch".
    """

    key: str
    title: str
    kernels: tuple[int, ...]
    share: float | None
    sentence: str
    gain: float | None
    rank: float
    counters: dict[str, float]
    command: str
    less: str = ""
    noun: str = "kernel"

    @property
    def is_small(self) -> bool:
        """Whether it is worth less than `WORTH`, by gain; by time if the gain is unknown or less work gains more."""
        worth = self.share if self.gain is None or self.less else self.gain
        return worth is not None and worth < WORTH

    @property
    def is_named(self) -> bool:
        """Whether its kernels do no work of their own; the terminal's table does not list these."""
        return self.key in {COPIES, COLLECTIVES}

    @property
    def who(self) -> str:
        """Its kernels: "kernel 1", "kernels 1, 3" or "22 kernels"; or what they are."""
        if self.is_named:
            return self.title
        return named(self.kernels, self.noun, _MOST_NAMED)

    @property
    def gain_text(self) -> str:
        """The upper bound in words."""
        if self.gain is None:
            return "gain not known"
        more = f", more with {self.less}" if self.less else ""
        return f"{'together ' if len(self.kernels) > 1 else ''}at most {part(self.gain)} of GPU time{more}"

    @property
    def text(self) -> str:
        """The finding as text; for several kernels, what they have in common comes first."""
        if len(self.kernels) == 1 or self.is_named:
            return self.sentence
        return f"{self.title}. Most to gain, {self.noun} {self.kernels[0]}: {self.sentence}"

    @property
    def proof(self) -> str:
        """Its counters: "SQ_LDS_IDX_ACTIVE 18.9 M"; "" for none."""
        return ", ".join(f"{name} {amount(value)}" for name, value in list(self.counters.items())[:_MOST_COUNTERS])


def named(numbers: Sequence[int], noun: str, most: int) -> str:
    """Return rows of the report as text: "kernel 1", "launches 1, 3", or "22 kernels" if there are more."""
    many = "launches" if noun == "launch" else f"{noun}s"
    if len(numbers) > most:
        return count(len(numbers), noun, many)
    return f"{noun if len(numbers) == 1 else many} {', '.join(map(str, numbers))}"


def part(share: float) -> str:
    """Return a share of time as a percentage: "18 %", "2.1 %"."""
    percent = 100 * share
    return f"{percent:{'.0f' if percent >= 10 else '.2g'}} %"  # 100, not 1e+02


def amount(value: float) -> str:
    """Return a count with a prefix: "18.9 M"."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{digits(value / size)} {prefix}"
    return digits(value)


def complete(report: ProfileReport, command: str) -> str:
    """Return a command with PATH and COMMAND replaced by the profile's files and program, if known."""
    text = command.replace("PATH", " ".join(map(shlex.quote, report.paths)) or "PATH")
    return text.replace("-- COMMAND", f"-- {shlex.join(report.command) or 'COMMAND'}")


def group_findings(report: ProfileReport) -> list[FindingGroup]:
    """Return the findings of a report by rule, the largest gain first; includes small ones (`is_small`)."""
    by_rule: dict[tuple[str, str], list[tuple[int, KernelProfile, KernelFinding]]] = {}
    for number, kernel in enumerate(report.kernels, 1):
        for finding in kernel.findings:
            by_rule.setdefault((finding.key, finding.title), []).append((number, kernel, finding))
    groups = [*(_group(members, report) for members in by_rule.values()), *_collectives(report)]
    ordered = sorted(groups, key=lambda group: (-group.rank, group.key))
    for copies in _copies(report):  # never first: the report is about kernels
        longer = sum(group.rank >= copies.rank for group in ordered)
        ordered.insert(max(longer, min(len(ordered), 1)), copies)
    return ordered


def _group(members: Sequence[tuple[int, KernelProfile, KernelFinding]], report: ProfileReport) -> FindingGroup:
    ordered = sorted(members, key=lambda member: -member[2].rank)
    _, kernel, finding = ordered[0]
    gains = [each.gain for _, _, each in ordered]
    return FindingGroup(
        finding.key, finding.title, tuple(number for number, _, _ in ordered),
        sum(each.time_share for _, each, _ in ordered) if kernel.time_ns else None,
        finding.sentence, None if None in gains else sum(gain for gain in gains if gain is not None),
        sum(each.rank for _, _, each in ordered), _counters(kernel, finding), complete(report, finding.command),
        finding.less, kernel.noun,
    )  # fmt: skip


def _counters(kernel: KernelProfile, finding: KernelFinding) -> dict[str, float]:
    """Return the counters that the finding's metrics were computed from, in the order of the metrics."""
    used: dict[str, float] = {}
    for name in finding.numbers:
        if name in kernel.values:
            used |= dict(kernel.values[name].counters)
    return {spelt(counter, kernel.counters): value for counter, value in used.items()}


def _copies(report: ProfileReport) -> list[FindingGroup]:
    """Return the HIP runtime's copies and fills as a finding, if they take much of the time."""
    own = of_kind(report, "runtime")
    share = sum(each.time_share for _, each in own)
    if report.per != "kernel" or share < _COPIES_WORTH:
        return []
    copies, launches = sum(each.launches for _, each in own), sum(k.launches for k in report.kernels if not k.kind)
    is_each_time = launches >= _MANY and copies >= _RARE * launches
    return [FindingGroup(
        COPIES, TITLES["runtime"], tuple(number for number, _ in own), share,
        f"{copies:,} for {count(launches, 'launch', 'launches')}: keep data on the GPU between launches, and do not "
        f"clear memory that is overwritten (hipMemcpy, hipMemset){'' if is_each_time else _IF_SET_UP}",
        share, share / 2, {}, "",
    )]  # fmt: skip


def of_kind(report: ProfileReport, kind: Kind) -> list[tuple[int, KernelProfile]]:
    """Return the kernels of a kind with their numbers."""
    return [(number, each) for number, each in enumerate(report.kernels, 1) if each.kind == kind]


def _collectives(report: ProfileReport) -> list[FindingGroup]:
    """Return the collectives as a finding: how much is exposed, which rank delays the others, and what to do.

    Exposed time is an upper bound of the gain: overlap could hide all of it.
    """
    own, time = of_kind(report, "collective"), report.timeline
    if report.per != "kernel" or not own:
        return []
    share, held = sum(each.time_share for _, each in own), time.collectives
    total = sum(each.total_ns for each in report.kernels)
    exposed = sum(gpu.exposed_ns for gpu in time.gpus)
    gain = min(exposed / total, share) if held and total else None
    says = "a trace of all ranks shows how much of them compute hides, and which rank is late"
    if held:
        late, many = who_is_late(time), held.median_ns < _SMALL_NS and held.launches >= _MANY
        parts = [
            f"{share_of(exposed, sum(gpu.communication_ns for gpu in time.gpus))} of their time is exposed", late,
            "balance the ranks' work, and what their hosts do before it" if late else "",
            "send fewer, larger messages" if many else "",
        ]  # fmt: skip
        says = "; ".join(filter(None, parts))
    return [FindingGroup(
        COLLECTIVES, TITLES["collective"], tuple(number for number, _ in own), share if own[0][1].time_ns else None,
        f"{says}; overlap them with compute that does not depend on them", gain,
        share / 2 if gain is None else gain, {}, "",
    )]  # fmt: skip


def to_json(groups: Sequence[FindingGroup]) -> list[dict[str, Any]]:
    """Return the groups as JSON-ready values; ``gain`` and ``share`` are parts of all kernels' time (0 to 1)."""
    return [asdict(group) | {"folded": group.is_small} for group in groups]
