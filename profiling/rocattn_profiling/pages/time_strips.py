"""Strips as geometry: how an item's time is spent, as stacked fractions that a template draws as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocattn_profiling.pages.charts import Tick
from rocattn_profiling.pages.quantities import digits, fitting_unit, nice_ticks

_RIGHT, _TOP, _BOTTOM = 956.0, 4.0, 34.0
_CHARACTER = 6.6  # pixels per character of a name
_EDGE = 0.97  # fraction of the length from which a label ends at its tick


@dataclass(frozen=True, slots=True)
class TimeStrip:
    """A strip; lengths are pixels of the view box.

    Attributes:
        name: The label to its left.
        left: Its left edge.
        areas: The ``d`` of a path for each fraction, from the bottom; "" for none.
        ticks: Ticks of its time axis.
    """

    name: str
    left: float
    areas: tuple[str, ...]
    ticks: tuple[Tick, ...]


def time_strips(things: Sequence[tuple[str, float, Sequence[Sequence[float]]]]) -> list[TimeStrip]:
    """Return a strip for each item, with a common left edge and separate time axes.

    Args:
        things: Name, seconds, and the fractions (0 to 1) in equal parts of the time.
    """
    left = max((len(name) for name, _, _ in things), default=0) * _CHARACTER + 6
    return [_strip(name, seconds, shares, left) for name, seconds, shares in things]


def _strip(name: str, seconds: float, shares: Sequence[Sequence[float]], left: float) -> TimeStrip:
    width, bottoms, areas = _RIGHT - left, [0.0] * len(shares), []
    for share in zip(*shares, strict=True):
        tops = [low + each for low, each in zip(bottoms, share, strict=True)]
        areas.append(_outline(bottoms, tops, left, width / len(shares)))
        bottoms = tops
    unit = fitting_unit(seconds, "seconds")
    ticks = (
        Tick(
            round(left + width * value * unit.factor / seconds, 1), f"{digits(value)} {unit.symbol}",
            "end" if value * unit.factor > _EDGE * seconds else "middle",
        )
        for value in nice_ticks(0, seconds / unit.factor) if value > 0
    )  # fmt: skip
    return TimeStrip(name, left, tuple(areas), tuple(ticks))


def _outline(bottoms: Sequence[float], tops: Sequence[float], left: float, step: float) -> str:
    """Return the bars between two lines, merging equal adjacent ones."""
    height = _BOTTOM - _TOP
    runs: list[list[float]] = []
    for place, (low, high) in enumerate(zip(bottoms, tops, strict=True)):
        if runs and runs[-1][1] == place and runs[-1][2:] == [low, high]:
            runs[-1][1] = place + 1
        elif high > low:
            runs.append([place, place + 1, low, high])
    return "".join(
        f"M{left + step * first:.1f} {_BOTTOM - height * low:.1f}V{_BOTTOM - height * high:.1f}"
        f"H{left + step * last:.1f}V{_BOTTOM - height * low:.1f}Z"
        for first, last, low, high in runs
    )
