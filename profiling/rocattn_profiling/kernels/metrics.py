"""The audit's metrics: their names, when they are worse, and what to try (``metrics.toml``)."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files

import msgspec


class AuditMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric; ``metrics.toml`` documents the fields."""

    column: str = ""
    in_table: str = ""
    legend: str = ""
    structural: bool = False
    unit: str = ""
    more_is_better: bool = False
    worse: str = ""
    points: float = 0
    percent: float = 0
    advice: str = ""
    advice_of: str = ""
    advice_ours: str = ""
    enough: float = math.inf
    lines: str = ""
    of_rates: bool = False
    value: str = ""
    judged: str = ""
    inclusive: bool = False
    per_work: bool = False
    sentence: str = ""

    @property
    def heading(self) -> str:
        """Its column heading in the audit's tables."""
        return self.in_table or self.column

    def growth(self, before: float | None, after: float | None, work: float = 1.0) -> float:
        """Return by how much a number got worse (below 0: better); 0 for a change that does not count or is unknown.

        Args:
            before: The number before.
            after: The number now.
            work: How many times the previous work an iteration does.
        """
        if before is None or after is None:
            return 0
        before, after = min(before, self.enough), min(after, self.enough)
        expected = before * work if self.per_work else before
        if self.points:
            change, limit = after - expected, max(self.points, expected * self.percent / 100)
        else:
            change, limit = 100 * (after / expected - 1) if expected else 0, self.percent
        if abs(change) < limit or (abs(change) == limit and not self.inclusive):
            return 0
        return -change if self.more_is_better else change


METRICS = msgspec.convert(
    tomllib.loads(files(__package__).joinpath("metrics.toml").read_text("utf-8")), dict[str, AuditMetric]
)
"""Name used by findings -> metric, most severe first."""
STRUCTURAL = frozenset(metric.heading for metric in METRICS.values() if metric.structural)
"""Columns shown only with --all."""
