"""The gate's verdict as a view: worst first, every process launch a dot, the words of the verdict kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.measure.stats import LOCATION_QUANTILE, quantile
from rocattn_profiling.report.charts import Strip, strip
from rocattn_profiling.report.quantities import digits, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocattn_profiling.gate.pairs import PairLaunch
    from rocattn_profiling.gate.verdict import Entry, GateResult

TONES = {
    "pass": "good", "improvement": "good", "regression": "bad", "failed": "bad", "missing": "bad",
    "not measured": "warn", "inconclusive": "warn", "broken": "warn",
}  # fmt: skip
WORDS = {
    "regression": "slower or larger, proven",
    "improvement": "faster or smaller, proven",
    "pass": "no change that matters, proven",
    "inconclusive": "not decided by these launches",
    "failed": "ran on base, fails on head",
    "missing": "ran on base, cannot run on head",
    "broken": "fails on both sides",
    "new": "base cannot run it yet",
    "removed": "not in head's suite any more",
    "skipped": "skips itself on both sides",
    "ungated": "shown, not judged",
}
"""What each status means, for people who see the word for the first time."""


@dataclass(frozen=True, slots=True)
class GateRow:
    """One benchmark: its word, numbers as text, and a dot for each launch of both sides."""

    label: str
    status: str
    tone: str
    base: str
    head: str
    ratio: str
    interval: str
    rounds: int
    reason: str
    traceback: str
    strip: Strip | None


@dataclass(frozen=True, slots=True)
class GateView:
    """The verdict page: the result itself, its rows, and how many there are of each status."""

    result: GateResult
    tone: str
    rows: list[GateRow]
    counts: list[tuple[str, int, str, str]]


def view(result: GateResult) -> GateView:
    """Lay out a verdict; entries stay in the verdict's order, which is worst first."""
    counts = [(status, n, TONES.get(status, ""), WORDS.get(status, "")) for status, n in result.counts.items() if n]
    return GateView(result, TONES.get(result.verdict, ""), [_row(entry) for entry in result.entries], counts)


def _row(entry: Entry) -> GateRow:
    unit, factor = ("seconds", 1e-9) if entry.unit == "ns" else (entry.unit, 1.0)
    decision = entry.decision
    high = "" if decision is None else "∞" if decision.ratio_high is None else digits(decision.ratio_high, 4)
    sides = [("base", entry.base_launches), ("head", entry.head_launches)]
    return GateRow(
        label=entry.label,
        status=entry.status,
        tone=TONES.get(entry.status, ""),
        base=_value(entry.base, factor, unit),
        head=_value(entry.head, factor, unit),
        ratio=f"{digits(decision.ratio, 4)}x" if decision else "",
        interval=f"[{digits(decision.ratio_low, 4)}, {high}]" if decision else "",
        rounds=decision.rounds_used if decision else 0,
        reason=decision.reason if decision and not entry.reason else entry.reason,
        traceback=entry.traceback,
        strip=strip([(name, [v * factor for v in locations(launches)]) for name, launches in sides], unit),
    )


def locations(launches: Iterable[PairLaunch]) -> list[float]:
    """Return each launch's place: the low quantile of its samples that the decision uses too."""
    return [quantile(launch.samples, LOCATION_QUANTILE) for launch in launches if launch.samples]


def _value(value: float | None, factor: float, unit: str) -> str:
    return "" if value is None else quantity(value * factor, unit)
