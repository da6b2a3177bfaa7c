"""Attention's theoretical memory, its measured growth with the sequence, and the longest sequence that fits.

Pure functions of configs and numbers. All sizes are bytes requested from an allocator; a process needs more (the
interpreter, libraries, partly used pages).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rocattn_profiling.measure.stats import student_t_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn.backend import Backend
    from rocattn.config import AttentionConfig

    Numbers = NDArray[np.float64]

MIN_LENGTHS = 5
"""Minimum number of lengths for a fit of three parameters to have a meaningful interval."""
LINEAR_PCT, PARABOLA_PCT = 0.5, 5.0
"""Maximum distance of sizes from a line, and from a parabola, for extrapolation."""
MAX_SEQUENCE = 1 << 30
"""All sequences are shorter: positions are 32-bit in the kernels."""
_POWERS = (0.05, 4.0)  # range of exponents
_GOLDEN_STEPS, _EDGE_STEPS = 60, 50


class Theory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one call, in bytes.

    Attributes:
        inputs: q, k, v and options; for backward also dout, out and LSE.
        outputs: out (and LSE if returned); backward: dq, dk, dv.
        workspace: The backend's peak allocation (`Backend.workspace_bytes`).
        scores: The part of the workspace for scores or weights of [.., Sq, Sk] (`Backend.score_bytes`).
    """

    inputs: int
    outputs: int
    workspace: int
    scores: int

    @property
    def total(self) -> int:
        """Inputs, outputs and workspace."""
        return self.inputs + self.outputs + self.workspace


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes = fixed + factor * S ** exponent``, fitted by relative least squares with ``fixed`` >= 0.

    Attributes:
        exponent, low, high: The exponent and its 95 % interval: the exponents whose best fit is not worse than the
            best of all by more than the F distribution allows (a profile of the sum of squares). The numbers are
            exact, so the interval shows how far the growth is from a pure power, not its noise.
        fixed_bytes, factor: As in the formula.
        misfit_pct: Root mean square of the relative residuals, in percent.
        lengths: Number of lengths.
    """

    exponent: float
    low: float
    high: float
    fixed_bytes: float
    factor: float
    misfit_pct: float
    lengths: int


def theory(config: AttentionConfig, backend: Backend) -> Theory:
    """Return the memory of a backend's call on a config from its formulas."""
    wide = 8 if config.dtype == "float64" else 4
    options = config.mask_bytes + wide * config.num_heads * (config.alibi + config.sinks)
    lse = 4 * config.batch * config.num_heads * config.seq_q
    inputs, outputs = config.q_bytes + config.kv_bytes + options, config.out_bytes + lse * config.return_lse
    if config.direction == "backward":
        inputs, outputs = inputs + 2 * config.out_bytes + lse, config.q_bytes + config.kv_bytes
    return Theory(
        inputs=inputs, outputs=outputs, workspace=backend.workspace_bytes(config), scores=backend.score_bytes(config)
    )


def fit_growth(lengths: Sequence[int], sizes: Sequence[float]) -> Growth | None:
    """Return how memory grows with the sequence; None with fewer than `MIN_LENGTHS` different lengths."""
    if len(set(lengths)) < MIN_LENGTHS:
        return None
    # In units of the longest sequence and the largest size: powers of raw lengths would overflow a float.
    x, y = np.array(lengths, float), np.array(sizes, float)
    x, y, unit, largest = x / x.max(), y / y.max(), x.max(), y.max()
    best = _best_power(x, y)
    squares, fixed, factor = _fit_power(x, y, best)
    free = len(x) - 3
    t = student_t_quantile(0.975, free)
    limit = squares * (1 + t * t / free)

    def edge(outside: float) -> float:
        """Find by bisection where the profile crosses the limit between the best power and one outside."""
        inside = best
        if _fit_power(x, y, outside)[0] <= limit:
            return outside
        for _ in range(_EDGE_STEPS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if _fit_power(x, y, middle)[0] <= limit else (inside, middle)
        return inside

    return Growth(
        exponent=best,
        low=edge(_POWERS[0]),
        high=edge(_POWERS[1]),
        fixed_bytes=float(fixed * largest),
        factor=float(factor * largest / unit**best),
        misfit_pct=100 * math.sqrt(squares / len(x)),
        lengths=len(x),
    )


def _best_power(x: Numbers, y: Numbers) -> float:
    """Return the exponent with the smallest sum of squares: the best of a grid, refined by golden section."""
    grid = np.linspace(*_POWERS, 80)
    squares = [_fit_power(x, y, float(power))[0] for power in grid]
    at = int(np.argmin(squares))
    low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_GOLDEN_STEPS):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if _fit_power(x, y, a)[0] <= _fit_power(x, y, b)[0] else (a, high)
    return (low + high) / 2


def _fit_power(x: Numbers, y: Numbers, power: float) -> tuple[float, float, float]:
    """Return (sum of squared relative residuals, fixed part, factor) of the best fit with this exponent."""
    powers = x**power
    basis = np.stack([1 / y, powers / y], axis=1)
    fixed, factor = np.linalg.lstsq(basis, np.ones_like(y), rcond=None)[0]
    if fixed < 0:
        fixed, factor = 0.0, float(basis[:, 1].sum() / np.square(basis[:, 1]).sum())
    residuals = basis @ np.array([fixed, factor]) - 1
    return float(residuals @ residuals), float(fixed), float(factor)


def extrapolate(lengths: Sequence[int], sizes: Sequence[float], length: int) -> float | None:
    """Extrapolate measured sizes to another length; None with too few points or a poor fit.

    Uses a straight line in S if it is within `LINEAR_PCT` of every size, else a parabola, by relative least squares. A
    power law cannot follow the sum of a linear and a quadratic part, but a polynomial can. A parabola through linear
    data would amplify a byte's deviation without bound, and one that bends down (from steps) would become negative.
    """
    if len(set(lengths)) < MIN_LENGTHS:
        return None
    x, y = np.array(lengths, float) / length, np.array(sizes, float)
    for degree in (1, 2):
        basis = np.stack([x**power for power in range(degree + 1)], axis=1) / y[:, None]
        factors = np.linalg.lstsq(basis, np.ones_like(y), rcond=None)[0]
        misfit = float(np.abs(basis @ factors - 1).max())
        if misfit <= LINEAR_PCT / 100:
            break
    return float(factors.sum()) if misfit <= PARABOLA_PCT / 100 and factors[-1] >= 0 else None


def largest_sequence(total: Callable[[int], int], budget_bytes: int) -> int:
    """Return the longest sequence that fits in a budget: it does, and one token more does not; 0 if 1 does not fit.

    Args:
        total: Bytes by length, increasing except for small steps.
        budget_bytes: The budget.
    """
    if total(1) > budget_bytes:
        return 0
    fits, too_long = 1, 2
    while too_long < MAX_SEQUENCE and total(too_long) <= budget_bytes:
        fits, too_long = too_long, 2 * too_long
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if total(middle) <= budget_bytes else (fits, middle)
    return fits


def at_length(config: AttentionConfig, length: int, *, keep_queries: bool = False) -> AttentionConfig:
    """Return a config with another number of keys and, unless they are kept, the same number of query tokens.

    A mask's axes that are not broadcast follow.
    """
    seq_q, mask_shape = config.seq_q if keep_queries else length, config.mask_shape
    if mask_shape is not None:
        rows, keys = (seq_q if mask_shape[2] > 1 else 1), (length if mask_shape[3] > 1 else 1)
        mask_shape = (mask_shape[0], mask_shape[1], rows, keys)
    return config.replace(seq_q=seq_q, seq_k=length, mask_shape=mask_shape)
