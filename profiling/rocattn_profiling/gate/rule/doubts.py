"""What else than a change of the code could make two sides differ: slow states of one of them, or two modes of both.

Each is a probability, weighed by how well it explains the launches, that `rocattn_profiling.gate.rule.look` adds
to that of no change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.gate.rule.noise import log_density, lowest_of

if TYPE_CHECKING:
    from rocattn_profiling.gate.rule.noise import Array
    from rocattn_profiling.gate.rule.posterior import Change

_MEMORY, _COEFFICIENT = 0.5, 0.7  # chance of slow states before five launches are seen, and how long those last
_HELD = 4.5  # median absolute deviations at which an outlier is held
_MODES = 0.1  # share of benchmarks that have two modes
_MODE_SHARES = (np.arange(12) + 0.5) / 12


def memory(a: Array, b: Array) -> tuple[float, float]:
    """Return the probability that a side has slow states of its own, and the part of its launches that then counts.

    Independent launches and launches correlated by 0.7 from one to the next are told apart by the smaller of two
    lag-one coefficients: that of both sides, and that of head minus base, round by round, which what is common to a
    round does not touch. Means and scatters in short series were simulated. Five launches say next to nothing, so the
    prior stands; the part that counts is 1 / (1 + 2 sum_k (1 - k/n) 0.7^k).

    Args:
        a: Locations of base launches in the order of their rounds, in logs.
        b: The same of head.
    """
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    of_base, of_head, of_steps = _lag_one(np.array([a, b, b - a]))
    seen = min(_correlation(of_base + of_head, count), _correlation(of_steps, count))
    fits = [
        math.exp(-0.5 * ((seen - mean) / scatter) ** 2) / scatter
        for mean, scatter in (
            (-0.05 - 1.2 / count, 0.8 / math.sqrt(count + 5)),
            (0.66 - 3.7 / count, 0.85 / math.sqrt(count + 4)),
        )
    ]
    held = _MEMORY * fits[1] / (_MEMORY * fits[1] + (1 - _MEMORY) * fits[0])
    lost = sum((1 - lag / count) * _COEFFICIENT**lag for lag in range(1, count))
    return held, 1.0 / (1.0 + 2.0 * lost)


def _lag_one(rows: Array) -> Array:
    """Return sums of products of neighbours and of squares, shape [row, 2]: around the row's mean, outliers held."""
    steps = rows - _medians(rows)
    reach = _HELD * _medians(np.abs(steps))
    steps = np.minimum(np.maximum(steps, -reach), reach)
    steps -= steps.mean(axis=1, keepdims=True)
    return np.stack([(steps[:, 1:] * steps[:, :-1]).sum(axis=1), (steps**2).sum(axis=1)], axis=1)


def _correlation(sums: Array, count: int) -> float:
    together, power = sums.tolist()
    return together / power if power > 0 else -1.0 / count


def _medians(rows: Array) -> Array:
    """Return the median of each row, shape [row, 1]: for few launches much faster than numpy's."""
    ordered, count = np.sort(rows, axis=1), rows.shape[1]
    found: Array = 0.5 * (ordered[:, (count - 1) // 2, None] + ordered[:, count // 2, None])
    return found


def two_modes(a: Array, b: Array, seen: Change, prior: Array) -> float:
    """Return the probability that two modes of unchanged code look like this change; arguments as `against_modes`."""
    return _MODES / (_MODES + (1 - _MODES) * against_modes(a, b, seen, prior))


def against_modes(a: Array, b: Array, seen: Change, prior: Array) -> float:
    """Return the Bayes factor of a change against one benchmark with two modes that both sides visit.

    Code that runs at two speeds by chance (layout, placement, a neighbour on the same core) can show one speed in most
    launches of base and the other in most of head. Both explanations have the same two levels and the same noise; the
    modes add a share, uniform.

    Args:
        a: Locations of base launches, in logs.
        b: Locations of head launches, in logs.
        seen: The change, of `compared`.
        prior: Of the way that the sides are read, as in `Readings`.
    """
    base = float(lowest_of(a[None]).mean())
    head = base + seen.shift
    own, other = (log_density(np.concatenate([a - of_a, b - of_b])) for of_a, of_b in ((base, head), (head, base)))
    peak = np.maximum(own, other)
    own_density, other_density = np.exp(own - peak), np.exp(other - peak)
    share = _MODE_SHARES[:, None]  # of the level of head
    mine = np.where((np.arange(len(own)) < len(a))[:, None, None], 1 - share, share)  # [launch, share, 1]
    mixed = other_density[:, None] + mine * (own_density - other_density)[:, None]
    weights = prior.ravel()
    modes, changed = np.log(mixed).sum(axis=0) + peak.sum(axis=0) + weights, own.sum(axis=0) + weights
    best = changed.max()
    return float(np.exp(changed - best).sum() / max(np.exp(modes - best).sum() / len(_MODE_SHARES), 1e-300))
