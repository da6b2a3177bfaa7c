"""The gate's verdict as a page: worst first, with a dot for every process launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.gate.formats.render import reasons
from rocattn_profiling.gate.verdict import EXACT
from rocattn_profiling.measure.stats import low_quantile
from rocattn_profiling.pages.charts import Strip, strip
from rocattn_profiling.pages.quantities import digits, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn_profiling.gate.rule.pairs import PairLaunch
    from rocattn_profiling.gate.verdict import Cause, Entry, GateResult

TONES = {
    "pass": "good", "improvement": "good", "regression": "bad", "failed": "bad", "missing": "bad",
    "problem": "bad", "not measured": "warn", "inconclusive": "warn", "waived": "warn", "broken": "warn",
    "unreached": "warn",
}  # fmt: skip
WORDS = {
    "regression": "slower or larger, proven",
    "improvement": "faster or smaller, proven",
    "pass": "no change that matters, proven",
    "inconclusive": "not decided by these launches",
    "unreached": "not measured: time ran out",
    "failed": "ran on base, fails on head",
    "missing": "ran on base, cannot run on head",
    "broken": "fails on both sides",
    "new": "base cannot run it yet",
    "removed": "not in head's suite any more",
    "skipped": "skips itself on both sides",
    "ungated": "shown, not judged",
    "waived": "slower or larger, accepted by a waiver",
}
"""What each status means, for readers who are new to it."""


class Piece(NamedTuple):
    """A part of a sentence: words, or code that was between backticks."""

    text: str
    is_code: bool


def pieces(text: str) -> list[Piece]:
    """Split a sentence into words and code; an unpaired backtick makes all of it words."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [Piece(text, is_code=False)]
    return [Piece(part, is_code=place % 2 == 1) for place, part in enumerate(parts) if part]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One benchmark or exact metric: status, numbers as text, reasons, and a dot for each launch of both sides."""

    label: str
    metric: str
    arch: str
    status: str
    tone: str
    base: str
    head: str
    ratio: str
    interval: str
    rounds: int
    reasons: list[str]
    traceback: str
    causes: list[tuple[Cause, list[Piece]]]
    waiver: str
    rule: str
    suspect: bool
    strip: Strip | None

    @property
    def has_why(self) -> bool:
        """Whether it has causes or a waiver to show."""
        return bool(self.causes or self.waiver)


@dataclass(frozen=True, slots=True)
class GateView:
    """The verdict page: the result, its rows, and the number of each status.

    Attributes:
        rows: Every entry, worst first; ``timed`` are those that were measured.
        exact: Exact metrics by architecture; architectures without changes form one group at the end.
    """

    result: GateResult
    tone: str
    rows: list[GateRow]
    timed: list[GateRow]
    exact: list[tuple[str, list[GateRow]]]
    counts: list[tuple[str, int, str, str]]


def view(result: GateResult) -> GateView:
    """Lay out a verdict, its entries in the verdict's order."""
    counts = [(status, n, TONES.get(status, ""), WORDS.get(status, "")) for status, n in result.counts.items() if n]
    rows = [_row(entry) for entry in result.entries]
    read = [row for row in rows if row.metric in EXACT]
    moved = {row.arch for row in read if row.status != "pass"}
    exact: dict[str, list[GateRow]] = {}
    for row in read:
        if row.arch in moved:
            exact.setdefault(row.arch or "every architecture", []).append(row)
    if quiet := [row for row in read if row.arch not in moved]:
        exact["nothing moved"] = quiet
    timed = [row for row in rows if row.metric not in EXACT]
    # Rows are worst first: so is the order in which architectures come up.
    return GateView(result, TONES.get(result.verdict, ""), rows, timed, list(exact.items()), counts)


def _row(entry: Entry) -> GateRow:
    unit, factor = ("seconds", 1e-9) if entry.unit == "ns" else (entry.unit, 1.0)
    decision = entry.decision
    high = "" if decision is None else "∞" if decision.ratio_high is None else digits(decision.ratio_high, 4)
    sides = [("base", entry.base_launches), ("head", entry.head_launches)]
    return GateRow(
        label=entry.label,
        metric=entry.metric,
        arch=entry.arch,
        status=entry.status,
        tone=TONES.get(entry.status, ""),
        base=_value(entry, entry.base),
        head=_value(entry, entry.head),
        ratio="" if decision is None else f"{digits(decision.ratio, 4)}x" if decision.has_ratio else "unknown",
        # Exact metrics have no interval and take no rounds.
        interval=f"[{digits(decision.ratio_low, 4)}, {high}]"
        if decision and decision.has_ratio and decision.rounds_used
        else "",
        rounds=decision.rounds_used if decision else 0,
        reasons=reasons(entry),
        traceback=entry.traceback,
        causes=[(cause, pieces(cause.text)) for cause in entry.causes],
        waiver=entry.waiver,
        rule=entry.rule,
        suspect=entry.suspect,
        strip=strip([(name, [v * factor for v in locations(launches)]) for name, launches in sides], unit),
    )


def locations(launches: Iterable[PairLaunch]) -> list[float]:
    """Return each launch's location, which the decision uses too."""
    return [low_quantile(launch.samples) for launch in launches if launch.samples]


def _value(entry: Entry, value: float | None) -> str:
    if value is None:
        return ""
    if entry.unit == "ns":
        return quantity(value * 1e-9, "seconds")
    # Counts have no decimals: 43 registers, not 43.0.
    return quantity(value, entry.unit) if entry.unit == "bytes" or value % 1 else f"{value:.0f} {entry.unit}".rstrip()
