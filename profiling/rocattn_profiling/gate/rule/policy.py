"""The sizes and levels of the rule, and its planned looks."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from rocattn_profiling.gate.rule.constants import (
    BENCHMARK_LEVEL,
    CALLED,
    FIRST_LOOK_SHARE,
    FULL_LOOKS,
    LAST_LOOK,
    LAST_LOOK_ADJUSTED,
    LAST_LOOK_LONG,
    MARGIN,
    PASS_SHARE,
    PRIOR_NOISE,
    SHORT_RUN,
    SUITE_LEVEL,
    TOLERANCE,
)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, written into every verdict.

    Attributes:
        tolerance: Relative change that a pass excludes. The other two sizes are fractions of it.
        level: Probability of a false regression over the whole suite (Holm); a pass gets half of it.
        benchmark_level: Upper limit for a single benchmark at any look but the last, however small the suite.
        looks: Rounds after which the launches are analyzed.
        prior_noise: Expected launch noise, in logs, of a benchmark without a history.
        floor: Absolute change per call that is too small to matter, in ns for times, otherwise in the pair's unit; the
            pair's own floor counts if it is larger.
    """

    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1e30)] = TOLERANCE
    level: Annotated[float, msgspec.Meta(ge=0, le=1)] = SUITE_LEVEL
    benchmark_level: float = BENCHMARK_LEVEL
    looks: tuple[int, ...] = FULL_LOOKS
    prior_noise: float = PRIOR_NOISE
    floor: float = 0.0

    @property
    def log_margin(self) -> float:
        """Shift in logs that nuisances (layout, import order) may cause; a change must significantly exceed it."""
        return math.log1p(MARGIN * self.tolerance)

    @property
    def log_called(self) -> float:
        """Smallest estimate in logs that is called a change."""
        return math.log1p(self.called)

    @property
    def called(self) -> float:
        """Smallest relative estimate that is called a change."""
        return CALLED * self.tolerance

    @property
    def log_tolerance(self) -> float:
        """Change in logs that a pass excludes."""
        return math.log1p(self.tolerance)

    def leniency(self, rounds: int, *, adjusted: bool) -> float:
        """Return the factor on the level at the look after ``rounds`` rounds.

        The last look gets extra alpha, because nothing is measured after it. With more launches, the margin and the
        alternative explanations dominate the p-value, so the factor grows; with the machine's slowdown removed, they
        leave less uncovered (docs/gate-measured.md).

        Args:
            rounds: Launches per side.
            adjusted: Whether the canary explains the launches, and its slowdown was removed (`Interim.adjusted`).
        """
        if rounds < self.looks[-1]:
            return 1.0
        if rounds < FULL_LOOKS[0]:
            return SHORT_RUN
        fewest, most = FULL_LOOKS[1], FULL_LOOKS[-1]
        start = LAST_LOOK_ADJUSTED if adjusted else LAST_LOOK
        return start + (LAST_LOOK_LONG - start) * (min(max(rounds, fewest), most) - fewest) / (most - fewest)

    def pass_alpha(self, index: int) -> float:
        """Return the alpha that a pass may spend at the look with this index (from 0): half first, then evenly."""
        share = FIRST_LOOK_SHARE if index == 0 else (1 - FIRST_LOOK_SHARE) / (len(self.looks) - 1)
        return PASS_SHARE * self.level * share

    @property
    def sizes(self) -> str:
        """The three sizes in words, as every report states them."""
        sizes = (self.tolerance, self.called, MARGIN * self.tolerance)
        tolerated, called, margin = (f"{100 * size:g} %" for size in sizes)
        return (
            f"a pass shows the change to be within {tolerated}; a change is called when its estimate is {called} or "
            f"more and significantly beyond {margin}"
        )
