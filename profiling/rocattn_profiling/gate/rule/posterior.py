"""The posterior of the change between two sides, and the probabilities and intervals that are read off it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

POINTS = 81  # levels tried a side, for each tau
SHIFTS = 2 * POINTS - 1  # differences of the levels of two sides
_STEPS = np.arange(1.0 - POINTS, POINTS)  # that these are from the one in their middle
_EVEN = np.linspace(0.0, 1.0, 241)  # where the whole posterior is looked at, in parts of its width
_UNLIKELY = 1e-5  # a tau of less probability has no say in the interval


@dataclass(frozen=True)
class Change:
    """Posterior of head minus base, in logs.

    Attributes:
        middles: Of evenly spaced shifts, a row of them for each tau of each way to read the launches; shape [row, 1].
        steps: Between them, shape [row, 1].
        mass: Probability of the row's way and tau and of each shift, shape [row, shift].
        chances: Of the ways, now that the launches are seen (`rocattn_profiling.gate.rule.noise.compared`).
        noise: Posterior mean of tau: the noise of the launches as they are read, here and now.
    """

    middles: Array
    steps: Array
    mass: Array
    chances: Array
    noise: float

    @property
    def shift(self) -> float:
        """The median."""
        return self._quantiles[0]

    @property
    def low(self) -> float:
        """Where the 95 % interval begins."""
        return self._quantiles[1]

    @property
    def high(self) -> float:
        """Where it ends."""
        return self._quantiles[2]

    def p_below(self, bound: float) -> float:
        """Return the probability that the change is not above the bound."""
        return self._p_within((bound - self.middles) / self.steps - _STEPS)

    def p_above(self, bound: float) -> float:
        """Return the probability that the change is not below the bound."""
        return self._p_within(_STEPS - (bound - self.middles) / self.steps)

    def _p_within(self, left: Array) -> float:
        """Return the mass within a bound so many steps away: each shift's is spread over one step either way."""
        return float(np.vdot(self.mass, np.minimum(np.maximum(0.5 + 0.5 * left, 0.0), 1.0)))

    @cached_property
    def _quantiles(self) -> tuple[float, float, float]:
        likely = self.mass.sum(axis=1) > _UNLIKELY
        middles, steps, mass = self.middles[likely], self.steps[likely], self.mass[likely]
        reach = (POINTS - 1) * steps
        start, end = (middles - reach).min(), (middles + reach).max()
        fine = np.sort(np.concatenate([start + (end - start) * _EVEN, list(set(middles.ravel().tolist()))]))
        below = np.cumsum(mass, axis=1) - 0.5 * mass
        places = np.minimum((fine - middles) / steps + (POINTS - 1), SHIFTS - 1)
        left = np.minimum(np.maximum(places, 0.0).astype(np.intp), SHIFTS - 2)
        at = left + np.arange(0, below.size, SHIFTS)[:, None]
        found = below.take(at)
        found += (below.take(at + 1) - found) * (places - left)
        middle, low, high = np.interp((0.5, 0.025, 0.975), (found * (places >= 0)).sum(axis=0), fine).tolist()
        return middle, low, high
