"""What all benchmarks of a session did together: the mean of their changes, with its interval.

The interval is for these benchmarks, which are fixed; what is drawn are the rounds, of which another session would have
others. Benchmarks of a round share what the machine did in it, so that their contributions to the mean
(`noise.influences`) are added up round by round before they are squared, and Student's t pays for few rounds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.measure.stats import student_t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocattn_profiling.gate.rule.look import Look

_MOST = 690.0  # in logs: what a ratio can be told as


def mean_change(looks: Sequence[Look]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of looks that have one, and its 95 % interval.

    The interval is 0 to infinity for fewer than two: a benchmark has its own.

    Args:
        looks: The last of each benchmark, with the shares of its rounds.
    """
    changes = [look.change.shift for look in looks if look.change is not None]
    if not changes:
        return 1.0, 0.0, math.inf
    middle = math.fsum(changes) / len(changes)
    if len(changes) < 2:
        return math.exp(middle), 0.0, math.inf
    half = half_width([look.shares for look in looks if look.change is not None and look.shares is not None])
    low, high = (math.exp(min(max(edge, -_MOST), _MOST)) for edge in (middle - half, middle + half))
    return math.exp(middle), low, high


def half_width(shares: Sequence[np.ndarray[tuple[int, int], np.dtype[np.float64]]]) -> float:
    """Return half of the width of the 95 % interval of a mean over benchmarks, in logs.

    Args:
        shares: What the rounds of each benchmark contribute to its change, as `Look.shares`. A benchmark that was
            decided early has fewer rounds than others.
    """
    moved, weights = np.zeros((2, max(of_one.shape[1] for of_one in shares)))
    for of_one in shares:
        for side in of_one:
            used = np.flatnonzero(~np.isnan(side))
            # As for any variance: launches lie closer to their own middle than to the truth.
            moved[used] += side[used] * math.sqrt(len(used) / (len(used) - 1)) / len(shares)
            weights[used] += 1 / len(used)
    # Rounds that weigh unequally are worth fewer (Satterthwaite's degrees of freedom).
    rounds = float((weights**2).sum() ** 2 / (weights**4).sum())
    return student_t_quantile(0.975, max(1, round(rounds) - 1)) * math.sqrt(float(moved @ moved))
