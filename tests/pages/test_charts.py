"""Axes and numbers: round ticks inside the axis, sane scales, units that fit."""

import math
import time

import pytest

from rocattn_profiling.pages.charts import ChartLine, ChartPoint, line_chart, sparklines, strip, value_axis
from rocattn_profiling.pages.quantities import (
    between,
    digits,
    log_ticks,
    natural,
    nice_ticks,
    percent,
    percent_tick,
    quantity,
    short_date,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "seconds", "12.3 ms"), (999.6e-6, "seconds", "1.00 ms"), (5e-10, "seconds", "0.500 ns"),
        (90, "seconds", "1.50 min"),
        (1536, "bytes", "1.50 KiB"), (0.31, "ulp", "0.310 ulp"), (0, "seconds", "0 ns"), (None, "seconds", "—"),
        (math.nan, "bytes", "—"), (math.inf, "seconds", "—"), (5.9e9, "FLOP/s", "5.90 GFLOP/s"),
        (1048576, "bytes", "1.00 MiB"), (3 * 2**30, "bytes", "3.00 GiB"), (2e12, "FLOP/s", "2.00 TFLOP/s"),
        (1.04e9, "FLOP/s", "1.04 GFLOP/s"), (5e6, "FLOP/s", "5.00 MFLOP/s"), (1234567, "waves", "1,234,567 waves"),
    ],
)  # fmt: skip
def test_quantities_have_fitting_units(value, unit, text):
    """Three digits and the prefix that keeps the number at 1 or more."""
    assert quantity(value, unit) == text


def test_numbers_keep_three_digits():
    """No exponent where people write none, no digits that were not measured."""
    assert [digits(v) for v in (1234567.0, 1.0, 0.0123, 1e12, 2e-9)] == [
        "1,234,567",
        "1.00",
        "0.0123",
        "1.00e+12",
        "2.00e-09",
    ]
    assert [percent(v) for v in (1.031, 0.5, 3.2, None)] == ["+3.1 %", "-50.0 %", "+220 %", "—"]
    assert between(0.001, 0.0012, "seconds") == "1.00 to 1.20 ms"
    assert [digits(v) for v in (0.000123, 0.0000996, 0.0000123, 123456789.0, 999.7e6)] == [
        "0.000123", "9.96e-05", "1.23e-05", "123,456,789", "1.00e+09",
    ]  # fmt: skip
    assert [percent(v) for v in (24.9, 25.0, 1975.63, 0.0401, 0.04, 1e-4)] == [
        "+2390 %",
        "x25",
        "x1980",
        "-96.0 %",
        "x1/25",
        "x1/10000",
    ]
    assert [percent(v) for v in (0.9996, 1.9996, 2.0, -1.5)] == ["+0.0 %", "+100 %", "+100 %", "-250 %"]
    assert [percent_tick(v) for v in (1.3, 1.0, 0.75, 1.025)] == ["+30 %", "0 %", "-25 %", "+2.5 %"]
    assert between(None, 1.0, "seconds") == ""
    assert between(0.0009, 0.0012, "seconds") == "0.900 to 1.20 ms"  # both in the unit of the larger one
    assert sorted(["q1024", "q128", "q33"], key=natural) == ["q33", "q128", "q1024"]


def test_dates_are_utc_wherever_the_site_is_made(monkeypatch):
    """A commit of 23:30 is of that day in Tokyo, too: two runners would else disagree about one page."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    short_date.cache_clear()
    try:
        assert short_date(1_767_223_800_000) == "2025-12-31"
    finally:
        monkeypatch.undo()
        time.tzset()
        short_date.cache_clear()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3.61, 3.64), (-7, 1e6), (1e-9, 2.2e-9), (5, 5.0001), (0, 3e-16)])
def test_ticks_are_round_and_inside(low, high):
    """Two to ten ticks within the range, evenly spaced by 1, 2, 2.5 or 5 times a power of ten."""
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 10
    assert low - 1e-9 * abs(high) <= ticks[0]
    assert ticks[-1] <= high + 1e-9 * abs(high)
    step = ticks[1] - ticks[0]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 1e-3


def test_a_span_of_nothing_has_one_tick():
    """Values that differ by less than a float can be parted into."""
    assert nice_ticks(0.0, 5e-324) == [0.0]
    assert nice_ticks(2.0, 2.0) == [2.0]


def test_log_ticks_cover_the_range():
    """1, 2, 5 over few decades, powers of ten over many."""
    assert log_ticks(0.9, 25) == [1, 2, 5, 10, 20]
    assert log_ticks(1, 1e6) == [10.0**e for e in range(7)]


def test_axes_are_sane():
    """Noise does not fill a chart, alike values do not start at 0, unlike ones do, wide ranges are logarithmic."""
    noise = value_axis([1.000, 1.001, 0.999])
    assert noise.high - noise.low >= 0.19
    assert value_axis([4.0, 5.0]).low > 2
    assert value_axis([1.0, 5.0]).low == 0
    assert value_axis([0.001, 1.0]).log
    assert not value_axis([0.0, 1.0]).log
    single = value_axis([0.0])
    assert single.low < single.high


def test_everything_drawn_lies_inside():
    """Points, intervals (huge ones cut) and ticks stay within the plot, and labels within the picture."""
    values = [ChartPoint(n, v, "t", v * 0.5, v * 40) for n, v in enumerate([3.0, 3.1, 2.9, 3.05])]
    chart = line_chart(
        [ChartLine("a", 0, values)],
        title="t",
        description="d",
        unit="seconds",
        x_ticks=[(n, f"{n}" * 7) for n in range(4)],
    )
    for mark in chart.lines[0].marks:
        assert chart.left <= mark.x <= chart.right
        assert chart.top <= mark.high <= mark.y <= mark.low <= chart.bottom
    # The values still use a good part of the height though the intervals are forty times as large.
    heights = [mark.y for mark in chart.lines[0].marks]
    assert max(heights) - min(heights) > 0.05 * (chart.bottom - chart.top)
    assert chart.x_ticks[-1].at + (0 if chart.x_ticks[-1].anchor == "end" else 22) <= chart.width


@pytest.mark.parametrize("values", [[], [math.nan], [None], [1.0], [0.0, 0.0], [-1.0, 2.0]], ids=str)
def test_odd_data_still_makes_a_chart(values):
    """Nothing, one point, all alike, zero and negative values lay out without an error, all within the picture."""
    trace = ChartLine("a", 0, [ChartPoint(n, v, "t") for n, v in enumerate(values)])
    chart = line_chart([trace], title="t", description="d", unit="seconds", x_ticks=[])
    assert all(chart.top <= m.y <= chart.bottom for m in chart.lines[0].marks)


def test_strips_share_one_axis():
    """Base and head lie on one scale in percent, with the median of each; nothing finite is no strip."""
    laid = strip([("base", [1.0, 1.1, 1.2]), ("head", [2.0, math.nan])], "seconds")
    base, head = laid.rows
    assert [p for p, _ in base.places] == sorted(p for p, _ in base.places)
    assert base.places[-1][0] < head.places[0][0] <= 100
    assert base.middle == base.places[1][0]
    assert (laid.low, laid.high) == ("1.00 s", "2.00 s")
    assert strip([("base", []), ("head", [math.nan])], "seconds") is None


def test_sparklines_share_one_scale():
    """Two lines at 1 and 1.3 do not both fill the height; a single point is no line."""
    flat, step, single = sparklines([[1.0, 1.0], [1.0, 1.3], [None, 1.0]])
    assert flat.split()[0].split(",")[1] == flat.split()[1].split(",")[1] == step.split()[0].split(",")[1]
    assert single == ""
