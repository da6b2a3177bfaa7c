"""Long lines with few points: of every stretch the lowest and the highest, so that nothing that stands out is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def thin(values: Sequence[float | None], most: int, keep: Collection[int] = ()) -> list[int]:
    """Return the indices of a line's points to draw, in order.

    Kept are the first and last point, of every stretch the lowest and highest value and the first failure, and what the
    caller asks for; so at most about one and a half times ``most`` and what is asked for.

    Args:
        values: None failed, NaN is n/a.
        most: About how many points may be drawn.
        keep: Indices that are drawn in any case.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    numbers = np.array(values, dtype=float)  # None becomes NaN, too
    known = np.isfinite(numbers)
    lowest, highest = np.where(known, numbers, np.inf), np.where(known, numbers, -np.inf)
    kept = {0, count - 1, *keep}
    stretches = max(1, most // 2)
    for number in range(stretches):
        start, end = number * count // stretches, (number + 1) * count // stretches
        # Of a stretch without any value this is its first place: a gap stays a gap.
        kept |= {start + int(lowest[start:end].argmin()), start + int(highest[start:end].argmax())}
        if not known[start:end].all():
            kept.update([i for i in range(start, end) if values[i] is None][:1])
    return sorted(kept)
