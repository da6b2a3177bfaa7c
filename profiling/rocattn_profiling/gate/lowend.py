"""The statistics under the gate: low-end location of launches, its noise, and how sure a difference is.

Contention only adds time, so a side is located by its lowest launches and a launch by the low end of its samples. What
the mean and the spread of the k lowest of n normal values are worth is computed once by simulation with a fixed seed;
the spread is moderated by a prior (Smyth 2004, limma) because a handful of launches may look quiet by chance.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LOW_QUANTILE = 0.1  # of the samples of a launch
LOW_SHARE = 0.5  # of the launches of a side
_DRAWS = 40_000
_EXACT_UP_TO = 6  # 924 splits; above it a fixed sample of them
_SPLITS = 3_000


class OrderFacts(NamedTuple):
    """Of the k lowest of n standard normal values: variance of their mean, expected variance among them, its df."""

    mean_variance: float
    spread: float
    freedom: float


class Difference(NamedTuple):
    """Head minus base, in logs.

    Attributes:
        shift: Difference of the low ends.
        error: Its standard error.
        freedom: Degrees of freedom of the error.
        noise: Launch-to-launch noise (standard deviation in logs) that the data alone show.
    """

    shift: float
    error: float
    freedom: float
    noise: float

    def p_above(self, bound: float) -> float:
        """Chance to see so large a shift if the true one were ``bound``: small means it is above."""
        return student_tail((self.shift - bound) / self.error, self.freedom)

    def p_below(self, bound: float) -> float:
        """Chance to see so small a shift if the true one were ``bound``: small means it is below."""
        return student_tail((bound - self.shift) / self.error, self.freedom)

    def interval(self, tail: float = 0.025) -> tuple[float, float]:
        """Return the two-sided confidence interval with this much in either tail."""
        reach = student_quantile(tail, self.freedom) * self.error
        return self.shift - reach, self.shift + reach


def lowest(count: int) -> int:
    """Return how many of a side's launches stand for it."""
    return math.ceil(LOW_SHARE * count)


def low_end(samples: Sequence[float]) -> float:
    """Return the low quantile of a launch's samples (linear interpolation)."""
    ordered = sorted(samples)
    place = LOW_QUANTILE * (len(ordered) - 1)
    index = int(place)
    after = ordered[min(index + 1, len(ordered) - 1)]
    return ordered[index] + (place - index) * (after - ordered[index])


@lru_cache(maxsize=256)
def order_facts(count: int) -> OrderFacts:
    """Return what the low end of ``count`` launches is worth under normal noise of standard deviation 1."""
    k = lowest(count)
    draws = np.sort(np.random.default_rng(20).standard_normal((_DRAWS, count)), axis=1)[:, :k]
    mean_variance = float(draws.mean(axis=1).var())
    if k < 2:
        return OrderFacts(mean_variance, 1.0, 0.0)
    spreads = draws.var(axis=1, ddof=1)
    spread = float(spreads.mean())
    return OrderFacts(mean_variance, spread, 2 * spread**2 / float(spreads.var()))


def difference(a: NDArray[np.float64], b: NDArray[np.float64], prior: float, prior_freedom: float) -> Difference:
    """Compare the low ends of two sides.

    Args:
        a: Locations of base launches, in logs, shape [n].
        b: Locations of head launches, in logs, shape [m].
        prior: Noise (standard deviation in logs) that launches have before any is seen.
        prior_freedom: How many degrees of freedom that is worth.
    """
    shift, seen, freedom, scale = 0.0, 0.0, 0.0, 0.0
    for side, sign in ((a, -1.0), (b, 1.0)):
        facts = order_facts(len(side))
        low = np.sort(side)[: lowest(len(side))]
        shift += sign * float(low.mean())
        scale += facts.mean_variance
        if len(low) > 1:
            seen += facts.freedom * float(low.var(ddof=1)) / facts.spread
            freedom += facts.freedom
    total = freedom + prior_freedom
    variance = (seen + prior_freedom * prior**2) / total
    return Difference(shift, math.sqrt(variance * scale), total, math.sqrt(seen / freedom) if freedom else 0.0)


@lru_cache(maxsize=64)
def _splits(a: int, b: int) -> NDArray[np.intp]:
    """Return ways to deal a + b launches to two sides, base first: all of them, or a fixed sample."""
    total = a + b
    if total <= 2 * _EXACT_UP_TO:
        rows = [
            (*chosen, *sorted(set(range(total)) - set(chosen))) for chosen in itertools.combinations(range(total), a)
        ]
        return np.array(rows)
    generator = np.random.default_rng(7)
    return np.argsort(generator.random((_SPLITS, total)), axis=1)


def permutation_p(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the share of ways to deal the launches to two sides that give as large a shift up."""
    splits = _splits(len(a), len(b))
    dealt = np.concatenate([a, b])[splits]
    low_a = np.sort(dealt[:, : len(a)], axis=1)[:, : lowest(len(a))].mean(axis=1)
    low_b = np.sort(dealt[:, len(a) :], axis=1)[:, : lowest(len(b))].mean(axis=1)
    seen = np.sort(b)[: lowest(len(b))].mean() - np.sort(a)[: lowest(len(a))].mean()
    as_large = int((low_b - low_a >= seen - 1e-12).sum())
    if len(a) + len(b) <= 2 * _EXACT_UP_TO:
        return as_large / len(splits)
    return (as_large + 1) / (len(splits) + 1)


def student_tail(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's distribution, by the continued fraction of the incomplete beta function.

    Numerical Recipes 6.4; freedom > 0, need not be whole.
    """
    half = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, freedom / (freedom + t * t))
    return half if t > 0 else 1.0 - half


def student_quantile(tail: float, freedom: float) -> float:
    """Return t with P(T > t) = tail, for tails below one half."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > tail:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1.0 - _incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 300):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + factor / (c if abs(c) > tiny else tiny)
            fraction *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return math.exp(front) * fraction / a
