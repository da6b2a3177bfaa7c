"""Format numbers for readers: a suitable prefix, three digits, round axis ticks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

_LAST_MS = 253_402_214_400_000  # the last day of the year 9999
_STEPS: dict[str, list[tuple[float, str]]] = {
    "seconds": [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min")],
    "bytes": [(1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")],
    "FLOP/s": [(1e6, "MFLOP/s"), (1e9, "GFLOP/s"), (1e12, "TFLOP/s")],
}
NOTHING = "—"
MANY = 25.0
"""Ratio from which changes are shown as multiples, and axes are logarithmic."""


@dataclass(frozen=True, slots=True)
class DisplayUnit:
    """A unit to show values in: ``value / factor`` followed by ``symbol``."""

    factor: float
    symbol: str


_UNITS = {unit: [DisplayUnit(*step) for step in reversed(steps)] for unit, steps in _STEPS.items()}


def fitting_unit(value: float, unit: str) -> DisplayUnit:
    """Return the largest unit that shows a value as 1 or more ("seconds" and "bytes" have prefixes)."""
    units = _UNITS.get(unit)
    if units is None:
        return DisplayUnit(1.0, unit)
    return next((own for own in units if abs(value) >= own.factor * 0.9995), units[-1])


def digits(value: float, significant: int = 3) -> str:
    """Format a number with this many significant digits, without an exponent from 0.0001 to below 1e9."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else NOTHING
    size = int(f"{value:.{significant - 1}e}".partition("e")[2])  # of the rounded number: 0.9996 has the size of 1.00
    if size < -4 or size >= 9:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, significant - 1 - size)}f}"


def quantity(value: float | None, unit: str) -> str:
    """Return a value with its unit ("12.3 ms"), or a dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return NOTHING
    fit = fitting_unit(value, unit)
    if unit not in _STEPS and float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f} {unit}".strip()  # registers, waves: counts have no decimals
    return f"{digits(value / fit.factor)} {fit.symbol}".strip()


def between(low: float | None, high: float | None, unit: str) -> str:
    """Format an interval ("12.1 to 12.6 ms"), or return ""."""
    if low is None or high is None:
        return ""
    fit = fitting_unit(high, unit)
    return f"{digits(low / fit.factor)} to {digits(high / fit.factor)} {fit.symbol}".strip()


def percent(ratio: float | None) -> str:
    """Return a ratio as a signed change ("+3.1 %"), one of `MANY` times and more as a multiple."""
    if ratio is None or not math.isfinite(ratio):
        return NOTHING
    if ratio > 0 and max(ratio, 1 / ratio) >= MANY:
        return times(ratio)
    change = round(100 * (ratio - 1), 1) + 0.0  # -0.0 becomes 0.0
    return f"{change:+.1f} %" if abs(change) < 100 else f"{change:+.0f} %"


def times(ratio: float) -> str:
    """Return a ratio as a multiple ("x30", "x1/30"): percents of large ones are long, and falls crowd at -100 %."""
    factor = float(f"{max(ratio, 1 / ratio):.3g}")
    return f"x{factor:.12g}" if ratio >= 1 else f"x1/{factor:.12g}"


def percent_tick(ratio: float) -> str:
    """Return a ratio as a round change on an axis ("+30 %", "0 %")."""
    change = round(100 * (ratio - 1), 6)
    return f"{change:+g} %" if change else "0 %"


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts q128 before q1024."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text)]


def utc(date_ms: int) -> datetime:
    """Return a time in UTC; one beyond the years of calendars, of a damaged file, as their first or last."""
    return datetime.fromtimestamp(min(max(date_ms, 0), _LAST_MS) / 1000, UTC)


@lru_cache(maxsize=8192)
def short_date(date_ms: int) -> str:
    """Return a day as 2026-11-20 (UTC)."""
    return utc(date_ms).strftime("%Y-%m-%d")


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers (1, 2, 2.5 or 5 times a power of ten) within [low, high]."""
    span = high - low
    if not span > 1e-300:  # dividing it would underflow
        return [low]
    raw = span / max(count - 1, 1)
    exponent = math.floor(math.log10(raw))
    power = 10.0**exponent
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 3 - exponent) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 times powers of ten within [low, high]; only powers of ten over more than three decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    multiples = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in multiples]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]
