"""The roofline of kernels as geometry: bytes against FLOPs, with the chip's roofs and those measured on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn_profiling.pages.charts import Tick
from rocattn_profiling.pages.quantities import digits, log_ticks

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import pandas as pd

    from rocattn_profiling.profile.metrics.devices import Device
    from rocattn_profiling.profile.report.report import KernelProfile

WIDTH, HEIGHT = 860.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, WIDTH - 16.0, 14.0, HEIGHT - 48.0
# Measured roofs to draw, by rocprof-compute's names: the traffic here is that of the memory.
_MEASURED_MEMORY = ("HBM", "MALL")
_MEASURED_COMPUTE = ("FP32", "MFMA F16", "MFMA BF16", "MFMA F32", "MFMA F8", "MFMA F6", "MFMA F4")
_PEAKS = {
    "fp16": "matrix units, FP16", "fp32": "matrix units, FP32", "vector-fp32": "vector units, FP32",
    "fp8": "matrix units, FP8", "fp4": "matrix units, FP6 and FP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roof:
    """One roof: its label, whether it was measured or is the data sheet's, and the points of its polyline."""

    label: str
    colour: int
    measured: bool
    points: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One kernel: its number in the table, its position and its tooltip."""

    number: int
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything a template needs; lengths are pixels of the view box."""

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
    left_out: int


def roofline(device: Device, kernels: Sequence[tuple[int, KernelProfile]], roofs: pd.DataFrame) -> Roofline | None:
    """Lay out the kernels of one GPU; None if none has both FLOPs and bytes.

    Args:
        device: The GPU, for the data sheet's roofs.
        kernels: With their numbers in the table.
        roofs: Measured roofs (`Profile.roofs`), possibly empty; those from another folder belong to another machine.
    """
    known = [(n, kernel, place) for n, kernel in kernels if (place := _place(kernel))]
    if not known:
        return None
    memory, compute = _limits(device, roofs)
    xs = [x for _, _, (x, _) in known] + [top / (slope / 1000) for _, top, _ in compute for _, slope, _ in memory]
    ys = [y for _, _, (_, y) in known] + [top for _, top, _ in compute]
    x_low, x_high = min(xs) / 2.5, max(xs) * 4
    y_low, y_high = min(ys) / 2.5, max(ys) * 1.8

    def at_x(value: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * math.log(value / x_low) / math.log(x_high / x_low), 1)

    def at_y(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * math.log(value / y_low) / math.log(y_high / y_low), 1)

    best = max((top for _, top, _ in compute), default=y_high)
    fastest = max((slope for _, slope, _ in memory), default=None)
    lines = []
    for label, slope, measured in memory:  # GB/s: TFLOP/s = FLOP/byte * GB/s / 1000
        start = max(x_low, y_low * 1000 / slope)
        end = min(best * 1000 / slope, x_high)
        if start < end:
            ends = f"{at_x(start)},{at_y(start * slope / 1000)} {at_x(end)},{at_y(end * slope / 1000)}"
            lines.append((f"{label} {digits(slope)} GB/s", measured, ends))
    for label, top, measured in compute:
        start = max(x_low, top * 1000 / fastest) if fastest else x_low
        if start < x_high:
            lines.append(
                (f"{label} {digits(top)} TFLOP/s", measured, f"{at_x(start)},{at_y(top)} {at_x(x_high)},{at_y(top)}")
            )
    return Roofline(
        WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM,
        [Tick(at_x(x), f"{x:g}") for x in log_ticks(x_low, x_high)],
        [Tick(at_y(y), f"{y:g}", "end") for y in log_ticks(y_low, y_high)],
        [Roof(label, i % 8, measured, points) for i, (label, measured, points) in enumerate(lines)],
        [Dot(n, at_x(x), at_y(y), _title(n, kernel, x, y)) for n, kernel, (x, y) in known],
        len(kernels) - len(known),
    )  # fmt: skip


def _place(kernel: KernelProfile) -> tuple[float, float] | None:
    """Return FLOP/byte and TFLOP/s if both are known and positive."""
    coordinates = [
        kernel.values[key].value if key in kernel.values else None for key in ("arithmetic_intensity", "tflops")
    ]
    x, y = coordinates
    return (x, y) if x and y and x > 0 and y > 0 else None


def _title(number: int, kernel: KernelProfile, x: float, y: float) -> str:
    name = kernel.label or (kernel.name if len(kernel.name) < 80 else f"{kernel.name[:77]}...")
    return f"{number}. {name}: {digits(y)} TFLOP/s at {digits(x)} FLOP/byte"


def _limits(device: Device, roofs: pd.DataFrame) -> tuple[list[tuple[str, float, bool]], list[tuple[str, float, bool]]]:
    """Return (label, GB/s, measured) of memories and (label, TFLOP/s, measured) of units, the largest first."""
    memory = [("memory", device.constants["peak_gbps"], False)] if "peak_gbps" in device.constants else []
    compute: list[tuple[str, float, bool]] = []
    if device.known:
        peaks = {label: device.known.peak_tflops(dtype) for dtype, label in _PEAKS.items()}
        compute = [(label, peak, False) for label, peak in peaks.items() if peak]
    for roof in _measured(device, roofs):
        if roof["roof"] in _MEASURED_MEMORY and roof["mean"] > 0:
            memory.append((str(roof["roof"]), float(roof["mean"]), True))
        elif roof["roof"] in _MEASURED_COMPUTE and roof["mean"] > 0:
            compute.append((str(roof["roof"]), float(roof["mean"]) / 1000, True))
    return sorted(memory, key=lambda each: -each[1]), sorted(compute, key=lambda each: -each[1])


def _measured(device: Device, roofs: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return the roofs measured in the folder of a device's own file, one of each name, since its GPUs are equal."""
    beside = [str(Path(str(file)).parent) == device.folder for file in roofs["file"]]
    return roofs[beside].drop_duplicates("roof").to_dict("records")


def measured_memory(device: Device, roofs: pd.DataFrame) -> float | None:
    """Return the bandwidth of a GPU's memory in GB/s as it was measured in the same run, or None."""
    return next((float(roof["mean"]) for roof in _measured(device, roofs) if roof["roof"] == "HBM"), None)
