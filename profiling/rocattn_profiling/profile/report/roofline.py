"""Rooflines as geometry: one kernel against every memory level, and all kernels of a GPU against its DRAM.

Intensities are FLOPs over a level's bytes, as in rocprof-compute's speed-of-light table (``metrics/definitions.toml``).
Its own roofline takes 64 bytes per access of the vector L1 even if a line has 128, and the L1's requests for the L2's.
Here, the distance of a point from its roof matches the bar of the same level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.pages.charts import Label, Tick, place_labels
from rocattn_profiling.pages.quantities import digits, log_ticks
from rocattn_profiling.profile.metrics.devices import Device
from rocattn_profiling.profile.report.limits import measured_roofs
from rocattn_profiling.profile.report.records import KernelProfile, ReasonCode
from rocattn_profiling.profile.report.speed_of_light import (
    MORE,
    PLANS,
    alike,
    memory_name,
    missing,
    rate_text,
    rates_of,
)
from rocattn_profiling.profile.report.verdict import NOT_COUNTABLE

if TYPE_CHECKING:
    import pandas as pd


WIDTH, HEIGHT = 360.0, 300.0  # small, so that text of size 11.5 stays legible on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, WIDTH - 8.0, 10.0, HEIGHT - 40.0
_ALIKE = 1.02  # ratio below which two roofs are drawn as one
_FONT = 11.5
# Level -> (color, metrics of its bytes, metrics of its share of the peak, rocprof-compute's name of the measured roof).
_LEVELS = {
    "memory": (0, ("read_gbps", "write_gbps"), "memory_pct", "HBM"), "l2": (2, ("l2_gbps",), "l2_pct", "L2"),
    "l1": (1, ("l1_gbps",), "l1_pct", "L1"), "lds": (3, ("lds_gbps",), "lds_pct", "LDS"),
}  # fmt: skip
_UNIT_COLOURS = (4, 5, 7, 6)
_MEASURED_TYPES = {
    "fp16": "MFMA F16", "bf16": "MFMA BF16", "fp32": "MFMA F32", "fp64": "MFMA F64", "fp8": "MFMA F8", "fp4": "MFMA F4",
    "vector-fp16": "FP16", "vector-fp32": "FP32", "vector-fp64": "FP64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the memory, for one kernel.

    Attributes:
        key, name: "l2", "L2".
        colour: Of its roof and its point.
        gbps: What moved, in GB/s.
        pct: Percent of the peak.
        peak: In GB/s; None if unknown.
        measured: The bandwidth that rocprof-compute measured in the same run, in GB/s, counted as the peak is.
    """

    key: str
    name: str
    colour: int
    gbps: float
    pct: float | None
    peak: float | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class Roof:
    """One roof: its label, its colors (two if two roofs share one line) and the points of its polyline."""

    label: str
    colours: tuple[int, ...]
    points: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One point: its label, position, tooltip and color, and the place in the page that it links to."""

    label: str
    x: float
    y: float
    title: str
    colour: int = 0
    href: str = ""


@dataclass(frozen=True, slots=True)
class LevelRow:
    """A row of the table below a roofline, with the same content in numbers; lengths are as in `Level`."""

    level: Level
    intensity: float
    note: str


@dataclass(frozen=True, slots=True)
class UnitRow:
    """The row of a type: its name and color, rate and peak in TFLOP/s, and the rate measured in the same run."""

    name: str
    colour: int
    tflops: float
    peak: float | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything that the template needs; lengths are in units of the view box.

    Attributes:
        roofs, dots, labels: What is drawn; `link` is the line through the dots, or "".
        rows, units: The same in numbers.
        lacking: Roofs and points that cannot be drawn, with the reasons.
        left_out: Number of kernels without a point.
        note: Points above their roof, and why; "" for none.
    """

    title: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    roofs: list[Roof]
    dots: list[Dot]
    labels: list[Label]
    link: str
    rows: list[LevelRow]
    units: list[UnitRow]
    lacking: list[tuple[str, Reason[ReasonCode]]]
    left_out: int = 0
    note: str = ""


def levels_of(kernel: KernelProfile, roofs: pd.DataFrame) -> list[Level]:
    """Return the memory levels whose traffic was counted for a kernel, the farthest from its waves first."""
    measured = measured_roofs(kernel.device, roofs) if kernel.device else {}
    levels = []
    for key, (colour, moved, share, roof) in _LEVELS.items():
        rates = [kernel.values[each].value for each in moved if each in kernel.values]
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(moved) or not sum(known):
            continue
        own = kernel.values[share].value if share in kernel.values else None
        peak = 100 * sum(known) / own if own else None
        name = memory_name(kernel) if key == "memory" else roof
        levels.append(Level(key, name, colour, sum(known), own, peak, measured.get(roof)))
    return levels


def hierarchical(
    kernel: KernelProfile, roofs: pd.DataFrame, counted: Mapping[str, object]
) -> Roofline | Reason[ReasonCode]:
    """Lay out one kernel against the peaks of the memory levels and of the types that it ran in.

    Args:
        kernel: The kernel.
        roofs: Measured roofs (`Profile.roofs`), may be empty; those from another folder belong to another machine.
        counted: The profile's counters.

    Returns:
        The roofline, or why there is none.
    """
    rate = kernel.values.get("tflops")
    if rate is None or rate.value is None:
        reason = missing(kernel, ("matrix_tflops",), counted)
        if reason.code == NOT_COUNTABLE:
            return Reason(
                reason.code, f"{reason.text}; the FLOPs of an attention problem are in its launch plan", PLANS
            )
        return reason
    if not rate.value:
        return Reason("no_flops", "it computes nothing in floating point")
    levels = levels_of(kernel, roofs)
    if not levels:
        return missing(kernel, ("memory_pct",), counted)
    measured = measured_roofs(kernel.device, roofs) if kernel.device else {}
    units = _units(kernel, measured)
    rows = [LevelRow(level, 1000 * rate.value / level.gbps, _note(level)) for level in levels]
    plane = _Plane(
        [(row.intensity, rate.value) for row in rows],
        [(level.name, level.colour, level.peak) for level in levels if level.peak],
        [(unit.name, unit.colour, unit.peak) for unit in units if unit.peak],
    )
    dots = [
        Dot(
            row.level.name, plane.x(row.intensity), plane.y(rate.value),
            f"{row.level.name}: {digits(row.intensity)} FLOP/byte, {rate_text(row.level.gbps)}"
            + (f", {digits(row.level.pct)} % of the peak" if row.level.pct is not None else ""),
            row.level.colour,
        )
        for row in rows
    ]  # fmt: skip
    drawn = {level.key for level in levels if level.peak}
    lacking = [
        (memory_name(kernel) if key == "memory" else roof, missing(kernel, (share,), counted))
        for key, (_, moved, share, roof) in _LEVELS.items()
        if key not in drawn and not all(_is_zero(kernel, each) for each in moved)
    ]
    lacking += [(unit.name, Reason("no_peak", "no peak of this type is known")) for unit in units if not unit.peak]
    title = f"Roofline: {digits(rate.value)} TFLOP/s; " + "; ".join(dot.title for dot in dots)
    link = " ".join(f"{dot.x},{dot.y}" for dot in sorted(dots, key=lambda dot: dot.x)) if len(dots) > 1 else ""
    return plane.drawn(title, dots, link, rows, units, lacking)


def of_gpu(device: Device, kernels: Sequence[tuple[int, KernelProfile]]) -> Roofline | None:
    """Lay out the kernels of one GPU against its memory; None if fewer than two have both FLOPs and bytes.

    Args:
        device: The GPU.
        kernels: The kernels, with their numbers in the table.
    """
    known = [(number, kernel, place) for number, kernel in kernels if (place := _place(kernel))]
    if len(known) < 2:
        return None
    peaks = {rate.name: rate.peak for _, kernel, _ in known for rate in rates_of(kernel) if rate.peak}
    units = [(name, colour, peak) for colour, (name, peak) in zip(_UNIT_COLOURS, peaks.items(), strict=False)]
    name = memory_name(known[0][1])
    memory = [(name, 0, device.constants["peak_gbps"])] if "peak_gbps" in device.constants else []
    plane = _Plane([place for _, _, place in known], memory, units)
    dots = [
        Dot(str(number), plane.x(x), plane.y(y), _title(number, kernel, x, y), 0, f"#k{number}")
        for number, kernel, (x, y) in reversed(known)  # the longest is drawn last, on top
    ]
    title = f"Roofline of {len(known)} kernels: TFLOP/s over FLOP per byte of {name} traffic"
    return plane.drawn(title, dots, "", [], [], [], len(kernels) - len(known), _above(known, memory))


def _above(
    known: Sequence[tuple[int, KernelProfile, tuple[float, float]]], memory: Sequence[tuple[str, int, float]]
) -> str:
    """Return which kernels are above the memory roof, and why; "" for none."""
    numbers = [str(n) for n, _, (x, y) in known for _, _, peak in memory if 1000 * y > x * peak * MORE / 100]
    if not numbers:
        return ""
    return f"Above the memory roof (a cache behind L2 served part of it): {', '.join(sorted(numbers, key=int))}."


def _is_zero(kernel: KernelProfile, key: str) -> bool:
    return key in kernel.values and kernel.values[key].value == 0


def _note(level: Level) -> str:
    """Return why a point is not below its roof, or "" if it is."""
    if level.pct is None or level.pct <= MORE:
        return "without bank conflicts" if level.key == "lds" else ""
    if level.key == "memory":
        return "above its roof: a cache between L2 and the memory served part of it"
    return "above its roof: the clock exceeded the maximum that the files report"


def _units(kernel: KernelProfile, measured: Mapping[str, float]) -> list[UnitRow]:
    """Return the types that ran; without counts of types, the fastest peak of the GPU."""
    rows = []
    for colour, rate in zip(_UNIT_COLOURS, rates_of(kernel), strict=False):  # there are colors for four types
        flops = measured.get(_MEASURED_TYPES[rate.type.peak])
        rows.append(UnitRow(rate.name, colour, rate.tflops, rate.peak, flops / 1000 if flops else None))
    if rows or not kernel.device:
        return rows
    constants, whole = kernel.device.constants, kernel.values["tflops"].value or 0.0
    peaks = [constants[name] for name in ("peak_matrix_tflops", "peak_vector_tflops") if name in constants]
    return [UnitRow("fastest type", 4, whole, max(peaks), None)] if peaks else []


class _Plane:
    """The logarithmic axes and the roofs on them."""

    def __init__(
        self, places: Sequence[tuple[float, float]], memory: Sequence[tuple[str, int, float]],
        units: Sequence[tuple[str, int, float]],
    ) -> None:  # fmt: skip
        self._memory, self._units = _merged(memory), _merged(units)
        tops, slopes = [top for _, _, top in self._units], [slope for _, _, slope in self._memory]
        ridges = [1000 * max(tops) / slope for slope in slopes] if tops else []
        xs, ys = [x for x, _ in places] + ridges, [y for _, y in places] + tops
        self._x_low, self._x_high = min(xs) / 3, max(xs) * 6
        self._y_low, self._y_high = min(y for _, y in places) / 6, max(ys) * 2.2

    def x(self, value: float) -> float:
        """Return the position of an intensity."""
        part = math.log(value / self._x_low) / math.log(self._x_high / self._x_low)
        return round(_LEFT + (_RIGHT - _LEFT) * part, 1)

    def y(self, value: float) -> float:
        """Return the position of a rate."""
        part = math.log(value / self._y_low) / math.log(self._y_high / self._y_low)
        return round(_BOTTOM - (_BOTTOM - _TOP) * part, 1)

    def drawn(
        self, title: str, dots: list[Dot], link: str, rows: list[LevelRow], units: list[UnitRow],
        lacking: list[tuple[str, Reason[ReasonCode]]], left_out: int = 0, note: str = "",
    ) -> Roofline:  # fmt: skip
        """Return the roofline with its roofs and non-overlapping labels."""
        roofs, wanted = self._roofs()
        ends = [[_place_of(point) for point in roof.points.split()] for roof in roofs]
        boxes = [(dot.x - 8, dot.y - 8, dot.x + 8, dot.y + 8) for dot in dots]
        if not dots[0].href:  # numbers are inside their dots, names next to them
            wanted = [(dot.label, dot.colour, _around(dot)) for dot in dots] + wanted
        frame = (_LEFT, _TOP, _RIGHT, _BOTTOM)
        labels = place_labels(wanted, boxes, frame, _FONT, [(line[0], line[-1]) for line in ends])
        return Roofline(
            title, WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM,
            [Tick(self.x(x), f"{x:g}") for x in _few(log_ticks(self._x_low, self._x_high), 7)],
            [Tick(self.y(y), f"{y:g}", "end") for y in _few(log_ticks(self._y_low, self._y_high), 7)],
            roofs, dots, labels, link, rows, units, alike(lacking), left_out, note,
        )  # fmt: skip

    def _roofs(self) -> tuple[list[Roof], list[tuple[str, int, list[tuple[float, float, str]]]]]:
        best = max((top for _, _, top in self._units), default=self._y_high)
        fastest = max((slope for _, _, slope in self._memory), default=None)
        roofs, wanted = [], []
        for name, colours, slope in self._memory:  # GB/s: TFLOP/s = FLOP/byte * GB/s / 1000
            start, end = max(self._x_low, 1000 * self._y_low / slope), min(1000 * best / slope, self._x_high)
            if start < end:
                ends = [(self.x(x), self.y(x * slope / 1000)) for x in (start, end)]
                label = f"{name} {rate_text(slope)}"
                roofs.append(Roof(label, colours, _points(ends)))
                wanted.append((label, colours[0], _along(*ends)))
        for name, colours, top in self._units:
            start = max(self._x_low, 1000 * top / fastest) if fastest else self._x_low
            if start < self._x_high:
                ends = [(self.x(x), self.y(top)) for x in (start, self._x_high)]
                label = f"{name} {digits(top)} TFLOP/s"
                roofs.append(Roof(label, colours, _points(ends)))
                at = [(_RIGHT - 2, ends[0][1] + shift, "end") for shift in (-5, 13, -18, 26)]
                wanted.append((label, colours[0], at))
        return roofs, wanted


def _merged(roofs: Sequence[tuple[str, int, float]]) -> list[tuple[str, tuple[int, ...], float]]:
    """Return the roofs, the highest first; overlapping roofs are merged."""
    merged: list[tuple[str, tuple[int, ...], float]] = []
    for name, colour, value in sorted(roofs, key=lambda roof: -roof[2]):
        if merged and merged[-1][2] / value < _ALIKE:
            last = merged.pop()
            merged.append((f"{last[0]}, {name}", (*last[1], colour), last[2]))
        else:
            merged.append((name, (colour,), value))
    return merged


def _few(ticks: list[float], most: int) -> list[float]:
    return ticks[:: math.ceil(len(ticks) / most)] if ticks else ticks


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _place_of(point: str) -> tuple[float, float]:
    x, _, y = point.partition(",")
    return float(x), float(y)


def _around(dot: Dot) -> list[tuple[float, float, str]]:
    """Return candidate positions for a dot's name: above, below, and further up and down."""
    return [(dot.x + aside, dot.y + up, "middle") for up in (-12, 21, -25, 34) for aside in (0, 10, -10)]


def _along(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float, str]]:
    """Return candidate positions for a rising line's label, below right and above left, from its lower end up."""
    places = []
    for part in (0.04, 0.12, 0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.84, 0.92):
        x, y = (a + part * (b - a) for a, b in zip(start, end, strict=True))
        places += [(x + 7, y + 9, "start"), (x - 5, y - 4, "end")]
    return places


def _place(kernel: KernelProfile) -> tuple[float, float] | None:
    """Return FLOP/byte and TFLOP/s if both are known and positive."""
    coordinates = [
        kernel.values[key].value if key in kernel.values else None for key in ("arithmetic_intensity", "tflops")
    ]
    x, y = coordinates
    return (x, y) if x and y and x > 0 and y > 0 else None


def _title(number: int, kernel: KernelProfile, x: float, y: float) -> str:
    from rocattn_profiling.pages.render import shorten

    return f"{number}. {kernel.label or shorten(kernel.name)}: {digits(y)} TFLOP/s at {digits(x)} FLOP/byte"
