"""Charts as geometry: numbers and labels that ``charts.html.j2`` draws as inline SVG without scripts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rocattn_profiling.pages.quantities import MANY, digits, fitting_unit, log_ticks, nice_ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

COLOURS = 8
STYLES = 4 * COLOURS
"""Distinguishable line styles: every color solid, then every color dashed, in three patterns."""
TAG_ROW = 15
"""Height of the row of tags below an axis."""
LABEL_CHARACTERS = 8
"""Width of the labels to the left of a chart, in characters."""


class ChartPoint(NamedTuple):
    """A point to draw; ``y`` is None if it failed, NaN for a gap. Without a title it gets no mark.

    ``anchor`` is the mark's anchor for links.
    """

    x: float
    y: float | None
    title: str
    low: float | None = None
    high: float | None = None
    href: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """A range of x to mark, with a tooltip and a link; ``tone`` is "good", "bad", "warn" or ""."""

    low: float
    high: float
    title: str
    tone: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A named line; ``colour`` is one of the `STYLES`, which `line_class` maps to CSS classes.

    ``place`` is where it was measured, for scripts that select lines. ``bends`` are the x and y of a long line, NaN at
    gaps and infinite at failures; ``values`` are then only the points with marks and all failures.
    """

    name: str
    colour: int
    values: list[ChartPoint]
    place: str = ""
    bends: tuple[NDArray[Any], Array] | None = None

    @property
    def corners(self) -> tuple[NDArray[Any], Array]:
        """The x and y of all its points."""
        if self.bends:
            return self.bends
        ys = [math.inf if value.y is None else value.y for value in self.values]
        return np.array([value.x for value in self.values]), np.array(ys, dtype=float)


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled position on an axis, in pixels."""

    at: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Label:
    """A text in a chart: position (of the baseline), anchor and color."""

    text: str
    colour: int
    x: float
    y: float
    anchor: str


class Mark(NamedTuple):
    """A drawn point: position, ends of the interval, tooltip, linked page and anchor."""

    x: float
    y: float
    title: str
    low: float | None = None
    high: float | None = None
    failed: bool = False
    href: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn line: ``paths`` are the runs between gaps, as the ``points`` of polylines."""

    name: str
    colour: int
    paths: list[str]
    marks: list[Mark]
    place: str = ""


@dataclass(slots=True)
class Chart:
    """The data a template needs to draw a chart; lengths are pixels of the view box."""

    title: str
    description: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)
    x_label: str = ""
    tags: list[Label] = field(default_factory=list)
    y_label: str = ""
    unit: str = ""
    lines: list[Drawn] = field(default_factory=list)
    rule: float | None = None
    bands: list[Band] = field(default_factory=list)
    edges: list[tuple[float, str]] = field(default_factory=list)
    thinned: bool = False
    low_x: float = 0.0
    high_x: float = 1.0


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to [0, 1] with its ticks in values."""

    low: float
    high: float
    log: bool
    ticks: list[float]

    def places(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the positions of values: 0 at ``low``, 1 at ``high``."""
        if self.log:
            return np.log(np.maximum(values, self.low) / self.low) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)

    def place(self, value: float) -> float:
        """Return the position of a value."""
        return self.places(np.array([value])).item()


def colour_of(name: str, backends: Sequence[str]) -> int:
    """Return a name's color, the same on every page; dashed if there are more names than colors."""
    return backends.index(name) % STYLES if name in backends else COLOURS - 1


def line_class(style: int) -> str:
    """Return the CSS classes of one of the `STYLES`."""
    dash, colour = divmod(style, COLOURS)
    return f"s{colour} d{dash}" if dash else f"s{colour}"


def value_axis(
    values: Sequence[float], *, least_span: float = 0.2, log: bool | None = None, zero: bool = True, count: int = 5
) -> Axis:
    """Choose a scale: logarithmic for wide ranges; else from 0, or a narrower range if all values are similar.

    Args:
        values: Finite numbers.
        least_span: Smallest range, as a fraction of the middle value, so that noise does not fill the chart.
        log: Whether the scale is logarithmic; chosen if None.
        zero: Whether varying values are shown from 0; False if 0 has no meaning (ratios).
        count: Approximate number of ticks.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log is None:
        log = low > 0 and high / low > MANY
    if log and low > 0:
        low, high = low / 1.25, high * 1.25
        return Axis(low, high, True, log_ticks(low, high))
    middle = (low + high) / 2
    half = max((high - low) * 0.6, abs(middle) * least_span / 2, 1e-300)
    bottom, top = middle - half, middle + half
    if zero and low >= 0 and (bottom < 0 or low < 0.45 * high):
        bottom, top = 0.0, (high * 1.08 or 1.0)
    return Axis(bottom, top, False, nice_ticks(bottom, top, count))


def line_chart(
    traces: Sequence[ChartLine],
    *,
    title: str,
    description: str,
    unit: str,
    x_ticks: Sequence[tuple[float, str]],
    x_label: str = "",
    tags: Sequence[tuple[float, str]] = (),
    x_log: bool = False,
    size: tuple[float, float] = (640, 300),
    y_axis: Axis | None = None,
    tick_text: Callable[[float], str] | None = None,
    rule: float | None = None,
    bands: Sequence[Band] = (),
    edges: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Lay out lines over a common x: numbers (``x_log``) or positions of commits.

    Args:
        traces: Lines with values in ``unit``.
        title: The chart's title.
        description: Text for screen readers.
        unit: Unit of the y values: "seconds", "bytes" or any word.
        x_ticks: (x, label).
        tags: The same in a row below, by priority; those without room are left out.
        x_label: Label below the axis.
        x_log: Whether x is logarithmic.
        size: Width and height.
        y_axis: The scale; chosen from the values if None.
        tick_text: Formats y ticks; numbers in a suitable unit if None.
        rule: A value at which to draw a horizontal line.
        bands: Ranges of x to mark.
        edges: (x, tooltip) of vertical lines: levels on both sides are not comparable.
    """
    axis = y_axis or value_axis(_shown(traces), log=True if x_log else None)
    fit = fitting_unit(axis.high / (1.3 if not axis.log else 4), unit)
    width, height = size[0], size[1] + (TAG_ROW if tags else 0)
    ticks = axis.ticks
    if y_axis is None and not axis.log:  # round numbers in the displayed unit: 18 KiB, not 18000 B
        ticks = [fit.factor * tick for tick in nice_ticks(axis.low / fit.factor, axis.high / fit.factor)]
    write = tick_text or (lambda y: f"{y / fit.factor:.6g}")
    widest = max((len(write(tick)) for tick in ticks), default=0)
    left = max(58.0, round(12 + 11 * LETTER * widest, 1))
    chart = Chart(title, description, width, height, left, width - 14, 12, size[1] - (44 if x_label else 28))
    span_x, span_y = chart.right - chart.left, chart.bottom - chart.top
    spans = [own for own in (*(t.corners[0] for t in traces), np.array([x for x, _ in x_ticks])) if len(own)]
    low_x, high_x = min((s.min().item() for s in spans), default=0.0), max((s.max().item() for s in spans), default=1.0)

    chart.low_x, chart.high_x = low_x, high_x

    along = Axis(low_x, high_x, x_log, []) if spans and high_x > low_x else None

    def xs_of(values: Sequence[float] | Array) -> Array:
        parts = along.places(np.array(values, dtype=float)) if along else np.full(len(values), 0.5)
        return np.rint(10 * (chart.left + span_x * (0.02 + 0.96 * parts)))

    def ys_of(values: Sequence[float] | Array) -> Array:
        parts = axis.places(np.array(values, dtype=float))
        return np.rint(10 * (chart.bottom - span_y * np.minimum(np.maximum(parts, 0.0), 1.0)))

    def labelled(texts: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
        return list(zip(_pixels(xs_of([x for x, _ in texts])), (text for _, text in texts), strict=True))

    def anchor(at: float, label: str) -> str:
        return "end" if at + 3.3 * len(label) > chart.width else "middle"

    chart.y_ticks = [Tick(at, write(y)) for at, y in zip(_pixels(ys_of(ticks)), ticks, strict=True)]
    chart.x_ticks = [Tick(at, label, anchor(at, label)) for at, label in labelled(x_ticks)]
    chart.x_label = x_label
    row = chart.bottom + 16 + TAG_ROW
    inside = labelled([(x, label) for x, label in tags if low_x <= x <= high_x])
    wanted = [(label, 0, [(at, row, anchor(at, label))]) for at, label in inside]
    chart.tags = place_labels(wanted, [], (0, 0, width, height), 11)
    if not tick_text:
        # Next to the highest tick if there is room, otherwise in the heading.
        fits = len(chart.y_ticks[-1].label if chart.y_ticks else "") + len(fit.symbol) < LABEL_CHARACTERS
        chart.y_label, chart.unit = (fit.symbol, "") if fits else ("", fit.symbol)
    chart.lines = [_draw(trace, xs_of, ys_of, chart.bottom) for trace in traces]
    chart.rule = _pixels(ys_of([rule]))[0] if rule is not None else None
    # From the last commit on the old level to the first certainly on the new one, and never too thin to see.
    lows, highs = (_pixels(xs_of(ends)) for ends in ([b.low for b in bands], [max(b.low, b.high) for b in bands]))
    chart.bands = [
        Band(low - 2, high + 2, b.title, b.tone, b.href) for b, low, high in zip(bands, lows, highs, strict=True)
    ]
    chart.edges = labelled(edges)
    return chart


def _shown(traces: Sequence[ChartLine]) -> list[float]:
    """Return the values an axis must include: all values, and intervals unless they would flatten the values."""
    ys = np.concatenate([t.corners[1] for t in traces]) if traces else np.empty(0)
    ys = ys[np.isfinite(ys)]
    ends = [end for t in traces for v in t.values for end in (v.low, v.high) if end is not None and math.isfinite(end)]
    if not len(ys):
        return ends
    low, high = ys.min().item(), ys.max().item()
    reach = max(high - low, 0.25 * abs(high))
    return [low, high, *(min(max(end, low - reach), high + reach) for end in ends)]


def _draw(
    trace: ChartLine, xs_of: Callable[[Sequence[float] | Array], Array],
    ys_of: Callable[[Sequence[float] | Array], Array], bottom: float,
) -> Drawn:  # fmt: skip
    xs, ys = trace.corners
    known = np.isfinite(ys)
    places = zip(_texts(xs_of(xs)), _texts(ys_of(np.where(known, ys, 1.0))), strict=True)
    texts = list(map(",".join, places))
    edges = [0, *(np.flatnonzero(known[1:] != known[:-1]) + 1).tolist(), len(ys)]
    paths = [texts[start:end] for start, end in itertools.pairwise(edges) if end > start and known[start]]
    marks = []
    points = [v for v in trace.values if v.y is None or (v.title and math.isfinite(v.y))]
    between = [(v.low, v.high) for v in points if v.title and v.low is not None and v.high is not None]
    heights = [math.nan if v.y is None else v.y for v in points]
    tops = _pixels(ys_of([*heights, *(low for low, _ in between), *(high for _, high in between)]))
    ends = iter(zip(tops[len(points) :][: len(between)], tops[len(points) + len(between) :], strict=True))
    for value, x, y in zip(points, _pixels(xs_of([v.x for v in points])), tops, strict=False):
        least, most = next(ends) if value.title and value.low is not None and value.high is not None else (None, None)
        if value.y is None:
            marks.append(Mark(x, bottom - 6, value.title, failed=True, href=value.href, anchor=value.anchor))
        else:
            marks.append(Mark(x, y, value.title, least, most, href=value.href, anchor=value.anchor))
    return Drawn(trace.name, trace.colour, [" ".join(path) for path in paths if len(path) > 1], marks, trace.place)


def _pixels(tenths: Array) -> list[float]:
    return list((tenths / 10).tolist())


def _texts(tenths: Array) -> list[str]:
    """Return tenths of pixels as text: a history has millions, and regular formatting takes ten times as long."""
    at = tenths.astype(np.intp)
    return list(_written(int(at.max(initial=0)).bit_length()).take(at).tolist())


@lru_cache(maxsize=16)
def _written(bits: int) -> NDArray[np.object_]:
    return np.array([str(tenths / 10) for tenths in range(1 << bits)], dtype=object)


@dataclass(frozen=True, slots=True)
class Dots:
    """A row of a dot strip: (position in percent of the width, tooltip), and the median's position."""

    name: str
    places: list[tuple[float, str]]
    middle: float | None


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows of dots over a common axis, one dot per process launch."""

    rows: list[Dots]
    low: str
    high: str


def strip(rows: Sequence[tuple[str, Sequence[float]]], unit: str) -> Strip | None:
    """Lay out a row of dots for each (name, values); None without finite values."""
    finite = [v for _, values in rows for v in values if math.isfinite(v)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    pad = max((high - low) * 0.06, abs(high) * 0.005, 1e-300)
    axis = Axis(low - pad, high + pad, False, [])
    fit = fitting_unit(high, unit)
    laid = []
    for name, values in rows:
        known = sorted(v for v in values if math.isfinite(v))
        places = [(round(100 * axis.place(v), 2), f"{name}: {digits(v / fit.factor, 4)} {fit.symbol}") for v in known]
        middle = (
            known[len(known) // 2] if len(known) % 2 else sum(known[len(known) // 2 - 1 :][:2]) / 2 if known else None
        )
        laid.append(Dots(name, places, None if middle is None else round(100 * axis.place(middle), 2)))
    return Strip(laid, f"{digits(low / fit.factor)} {fit.symbol}", f"{digits(high / fit.factor)} {fit.symbol}")


def sparklines(
    rows: Sequence[Sequence[float | None] | NDArray[np.float64]], width: float = 220, height: float = 44,
    least_span: float = 0.1, at: Sequence[float] | None = None,
) -> list[str]:  # fmt: skip
    """Return the ``points`` of sparklines with a common scale; "" for a row with fewer than two finite values.

    ``at`` are the x positions of the values, from 0; equally spaced if None.
    """
    finite = [v for row in rows for v in row if v is not None and math.isfinite(v)]
    axis = value_axis(finite, least_span=least_span, log=False)
    drawn = []
    for row in rows:
        along = range(len(row)) if at is None else at
        last = max(along[-1], 1) if len(along) else 1
        known = [(n, v) for n, v in zip(along, row, strict=True) if v is not None and math.isfinite(v)]
        heights = axis.places(np.array([v for _, v in known])).tolist()
        places = [
            f"{3 + (width - 6) * n / last:.1f},{3 + (height - 6) * (1 - place):.1f}"
            for (n, _), place in zip(known, heights, strict=True)
        ]
        drawn.append(" ".join(places) if len(places) > 1 else "")
    return drawn


def thin(values: Array, most: int, keep: Collection[int] = ()) -> list[int]:
    """Return the indices of a line's points to draw, in order.

    Keeps the first and last point, the lowest and highest value and the first failure of every section, and ``keep``:
    at most about one and a half times ``most``, plus ``keep``.

    Args:
        values: Values; infinite for failures, NaN for n/a.
        most: Approximate number of points to draw.
        keep: Indices that are always drawn.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    known, stretches = np.isfinite(values), max(1, most // 2)
    within, first = _stretches(count, stretches), np.arange(stretches)
    kept = {0, count - 1, *keep}
    for sign in (1, -1):
        # In a section without values this is its first index, so a gap stays a gap.
        lowest = np.where(known, sign * values, np.inf)[within].argmin(axis=1)
        kept.update(within[first, lowest].tolist())
    if (failed := values == math.inf).any():
        own = failed[within]
        kept.update(within[first, own.argmax(axis=1)][own.any(axis=1)].tolist())
    return sorted(kept)


@lru_cache(maxsize=64)
def _stretches(count: int, many: int) -> NDArray[np.intp]:
    """Split the indices of points into sections, one row each; shorter rows repeat their last index."""
    edges = np.arange(many + 1) * count // many
    longest = int((edges[1:] - edges[:-1]).max())
    places: NDArray[np.intp] = np.minimum(edges[:-1, None] + np.arange(longest), edges[1:, None] - 1)
    return places


LETTER = 0.64
"""Width of a bold character relative to the font size; most are narrower."""


def place_labels(
    wanted: Sequence[tuple[str, int, Sequence[tuple[float, float, str]]]],
    taken: Sequence[tuple[float, float, float, float]],
    frame: tuple[float, float, float, float],
    font: float,
    lines: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> list[Label]:
    """Place texts without overlaps, inside the frame and outside taken boxes; texts without room are left out.

    Positions off all lines are preferred.

    Args:
        wanted: Text, color and the positions to try in order, each (x, y of the baseline, anchor).
        taken: Boxes to keep free: left, top, right, bottom.
        frame: The box to stay in.
        font: The size of the text.
        lines: The ends of lines that texts should not cross.
    """
    boxes, labels = list(taken), []
    for text, colour, places in wanted:
        free = []
        for x, y, anchor in places:
            box = _box(text, x, y, anchor, font)
            inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
            if inside and not any(_overlap(box, other) for other in reversed(boxes)):  # the nearest boxes are last
                free.append((sum(_crosses(box, line) for line in lines), box, (x, y, anchor)))
        if free:
            _, box, (x, y, anchor) = min(free, key=lambda place: place[0])  # the first of the best positions
            boxes.append(box)
            labels.append(Label(text, colour, round(x, 1), round(y, 1), anchor))
    return labels


def _crosses(
    box: tuple[float, float, float, float], line: tuple[tuple[float, float], tuple[float, float]], steps: int = 64
) -> bool:
    """Return whether a line passes through a box, checked at points along it."""
    (x, y), (to_x, to_y) = line
    return any(
        box[0] < x + (to_x - x) * part / steps < box[2] and box[1] < y + (to_y - y) * part / steps < box[3]
        for part in range(steps + 1)
    )


def _box(text: str, x: float, y: float, anchor: str, font: float) -> tuple[float, float, float, float]:
    width = LETTER * font * len(text)
    left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return left, y - font, left + width, y + 0.35 * font


def _overlap(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
