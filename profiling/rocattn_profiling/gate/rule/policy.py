"""The rule of the gate: its sizes, its levels, and when it looks."""

from __future__ import annotations

import math

import msgspec

TOLERANCE = 0.05
"""Default tolerance: relative change that a pass excludes."""
CALLED, MARGIN = 0.4, 0.2
"""Parts of the tolerance: the smallest estimate that is called a change, and what layout or import order may cause."""
FULL_LOOKS = (5, 10, 15, 20)
QUICK_LOOKS = (5, 8, 12)
_FIRST_SHARE = 0.5  # of a pass's level goes to the first look: most unchanged code should not need a second
# Factor on the level at a last look: up to ten rounds, and after twenty.
_LENIENT, _LENIENT_ADJUSTED, _LENIENT_MOST = 2.5, 3.5, 4.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, written into every verdict.

    Attributes:
        tolerance: Relative change that a pass excludes. The other two sizes are fractions of it.
        level: Chance of a false regression over the whole suite (Holm); half of it is that of a false pass.
        benchmark_level: Probability at which a single benchmark fails at a look that others follow, however small the
            suite.
        looks: Rounds after which the data are judged.
        prior_noise: Launch noise in logs expected of a benchmark without a history.
        floor: Absolute change of one call that is too small to matter, in ns for times, else in the pair's own unit;
            the pair's own floor counts where it is larger.
    """

    tolerance: float = TOLERANCE
    level: float = 0.05
    benchmark_level: float = 0.025
    looks: tuple[int, ...] = FULL_LOOKS
    prior_noise: float = 0.02
    floor: float = 0.0

    @property
    def log_margin(self) -> float:
        """Shift in logs that nuisances (layout, import order) may cause; a change must exceed it significantly."""
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
        """Return the factor on the level at the look after so many rounds.

        The last look has more than its share: what is undecided there would never be found. The more launches, the
        more the margin and the doubts make of the probability, so the factor grows with them; with the machine's speed
        taken out less is left that they do not cover (docs/gate-measured.md). Three or four launches are too few to be
        lenient with.

        Args:
            rounds: Launches a side.
            adjusted: Whether the machine's speed explains the launches and was taken out (`Look.adjusted`).
        """
        if rounds < self.looks[-1]:
            return 1.0
        if rounds < FULL_LOOKS[0]:
            return 0.5
        fewest, most = FULL_LOOKS[1], FULL_LOOKS[-1]
        start = _LENIENT_ADJUSTED if adjusted else _LENIENT
        return start + (_LENIENT_MOST - start) * (min(max(rounds, fewest), most) - fewest) / (most - fewest)

    def pass_share(self, index: int) -> float:
        """Return the part of a pass's level that the look of this index (from 0) spends: half, then equal parts."""
        return _FIRST_SHARE if index == 0 else (1 - _FIRST_SHARE) / (len(self.looks) - 1)

    @property
    def sizes(self) -> str:
        """The three sizes in words, as every report states them."""
        sizes = (self.tolerance, self.called, MARGIN * self.tolerance)
        tolerated, called, margin = (f"{100 * size:g} %" for size in sizes)
        return (
            f"a pass shows the change to be within {tolerated}; a change is called when its estimate is {called} or "
            f"more and significantly beyond {margin}"
        )
