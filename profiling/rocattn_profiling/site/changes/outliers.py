"""Outliers of a benchmark's history: points that are on no level, alone or a few together."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CONFIRMED = 5  # points on a level
SHORTEST = 3  # points of the newest level: one or two are outliers
FLOOR = 1e-3  # noise in logs that even a constant series is credited with
_CLIP = 2.5  # noise scales from the running median at which an outlier is held
_FAR = 3.75  # noise scales from both sides at which several together are far off
_WINDOW = 2 * CONFIRMED - 1


def drawn_in(y: Array) -> Array:
    """Draw outliers in towards the running median, also those that came together; a run that may be a level is none."""
    count = len(y)
    # Points of a run of `CONFIRMED` are most of any window of twice as many that they stand in: what is shorter is not.
    middle = np.full(count, statistics.median(y[:_WINDOW].tolist()))  # numpy's takes longer for so few
    if count > _WINDOW:
        half = _WINDOW // 2
        middle[half : count - half] = np.median(np.lib.stride_tricks.sliding_window_view(y, _WINDOW), axis=1)
    # At the end three points may be news.
    for i in range(max(0, count - CONFIRMED + 1), count):
        middle[i] = statistics.median(y[max(0, i - SHORTEST + 1) : i + SHORTEST].tolist())
    scale = step_scale(y)
    held = np.clip(y, middle - _CLIP * scale, middle + _CLIP * scale)
    # Those that came together raise each other's median, and what is left of them is a bump. They are put where the
    # points around them lie, if they are far off those before and those after, and too few for a level.
    side = np.sign(y - held)
    for start, end in itertools.pairwise(np.flatnonzero(np.diff(side, prepend=0.0, append=0.0)).tolist()):
        if not side[start] or not 1 < end - start < CONFIRMED or end == count:
            continue
        first, last = max(0, start - CONFIRMED + 1), end + CONFIRMED - 1
        parts = [part for part in (held[first:start], held[end:last]) if len(part)]
        around = float(np.median(np.concatenate(parts)))
        edge = max(side[start] * float(np.median(part)) for part in parts) + _FAR * scale
        few = int((side[start] * (y[first:last] - around) > _CLIP * scale).sum()) < CONFIRMED
        if few and (side[start] * y[start:end]).min() > edge:
            held[start:end] = around
    return held


def step_scale(y: Array) -> float:
    """Return the noise that the steps from point to point show, which few changes of level hardly touch."""
    # Normal noise has a mean step of 1.128 scales. A tenth is left out for outliers.
    steps = np.sort(np.abs(np.diff(y)))
    return max(float(np.mean(steps[: math.ceil(0.9 * len(steps))])) / 0.9, FLOOR)
