"""The GPUs of a profile as constants for formulas: from its files, completed from the product tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.gpus import (
    LABELLED_CLOCK,
    GpuFactsError,
    OtherGpu,
    Product,
    architecture,
    architectures,
    named,
    reported_as,
    with_reported,
)

if TYPE_CHECKING:
    from rocattn_profiling.profile.ingest.table import Profile

UNKNOWN_AGENT = -1
GIVEN = "given"
"""Origin of a peak from --peak."""


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        arch: Its target, "gfx942".
        name: The product, or the target if the product is unknown.
        constants: Known values of the lowercase names in ``definitions.toml``.
        origin: The origin of each: "reported", `GIVEN`, or the product or architecture in the tables.
        known: The product, for other facts in the tables; None if they do not have the architecture.
        folder: Folder of the file that reports it, whose measured roofs belong to it; "" for none.
    """

    arch: str
    name: str
    constants: dict[str, float]
    origin: dict[str, str]
    known: Product | None
    folder: str = ""


def devices_of(profile: Profile, gpu: str | None = None, peaks: Mapping[str, float] | None = None) -> dict[int, Device]:
    """Return the GPUs of a profile by row in ``agents``; the key -1 stands for all others.

    Args:
        profile: Its ``agents`` have the reported facts.
        gpu: A product, or a target of only one product, for files that do not name their GPU; it does not override
            reported facts.
        peaks: Peaks that override those of files and tables (`given_peaks`).

    Raises:
        GpuFactsError: If `gpu` is not a known product, or is a target of several.
    """
    found = named(gpu) if gpu is not None else ()
    devices = {}
    for number, row in enumerate(profile.agents.to_dict("records")):
        if isinstance(row["arch"], str) and row["arch"]:
            devices[number] = _device({str(name): value for name, value in row.items() if _is_said(value)}, found)
    if found:
        devices.setdefault(UNKNOWN_AGENT, _of_several(found))
    elif len({(each.arch, tuple(each.constants.items())) for each in devices.values()}) == 1:
        devices[UNKNOWN_AGENT] = next(iter(devices.values()))  # all GPUs are of one kind, so it does not matter which
    if not peaks:
        return devices
    once = {id(each): _with_peaks(each, peaks) for each in devices.values()}
    return {number: once[id(each)] for number, each in devices.items()}


_UNITS = {"mb": 1e6, "gb": 1e9, "tb": 1e12, "gib": 2.0**30, "tib": 2.0**40}
_OPS = {"gflop": 1e-3, "tflop": 1.0, "pflop": 1e3}
_MEMORY = frozenset({"hbm", "memory", "dram"})
_DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4")
_PEAK = re.compile(r"\s*(\w+)\s*=\s*(\d+(?:\.\d*)?)\s*([kmgt]i?b|[gtp]flop)s?(?:/s|ps)?\s*", re.IGNORECASE)


def given_peaks(texts: Sequence[str]) -> dict[str, float]:
    """Return the peaks from --peak: "peak_gbps" in GB/s, "matrix", "vector" and data types in TFLOP/s.

    Args:
        texts: "hbm=4.2TB/s", "fp16=1307 TFLOP/s"; ``memory`` and ``dram`` are the same as ``hbm``.

    Raises:
        GpuFactsError: If one has another form, or a unit that does not fit.
    """
    peaks = {}
    for text in texts:
        match = _PEAK.fullmatch(text)
        name, unit = (match[1].casefold(), match[3].casefold()) if match else ("", "")
        value = float(match[2]) if match else 0.0
        if name in _MEMORY and unit in _UNITS and value > 0:
            peaks["peak_gbps"] = value * _UNITS[unit] / 1e9
        elif name in {"matrix", "vector", *_DTYPES} and unit in _OPS and value > 0:
            peaks[name] = value * _OPS[unit]
        else:
            raise GpuFactsError(
                f"--peak {text!r} is not a peak: give the memory's in GB/s or TB/s (hbm=4.2TB/s), or one of matrix, "
                f"vector, {', '.join(_DTYPES)} in TFLOP/s (fp16=1307TFLOP/s)"
            )
    return peaks


def _with_peaks(device: Device, peaks: Mapping[str, float]) -> Device:
    """Return a device with these peaks."""
    known, given = device.known, {}
    if "peak_gbps" in peaks:
        given["peak_gbps"] = peaks["peak_gbps"]
    types = {name: value for name, value in peaks.items() if name in _DTYPES}
    if known and types:
        per_clock = {name: value * 1e6 / (known.cus * known.clock_mhz) for name, value in types.items()}
        rates = {**known.arch.ops_per_clock_per_cu, **per_clock}
        known = replace(known, arch=replace(known.arch, ops_per_clock_per_cu=rates))
    if types:
        given["peak_matrix_tflops"] = (_highest(known)[0] if known else None) or max(types.values())
    for name in ("matrix", "vector"):
        if name in peaks:
            given[f"peak_{name}_tflops"] = peaks[name]
    return replace(
        device, known=known, constants=device.constants | given, origin=device.origin | dict.fromkeys(given, GIVEN)
    )


def _is_said(value: object) -> bool:
    """Whether a report has a value; drivers write 0 for unknown ones."""
    return value is not None and not pd.isna(value) and value not in {"", 0}  # type: ignore[call-overload]  # a scalar


def _device(row: dict[str, Any], named_by: Sequence[Product | OtherGpu]) -> Device:
    arch = str(row["arch"]).partition(":")[0]
    cus = row.get("cus")
    simds = row.get("simds")
    names = {
        "cus": cus, "simds_per_cu": simds / cus if simds and cus else None, "waves_per_cu": row.get("max_waves_per_cu"),
        "xcds": row.get("xccs"), "clock_mhz": row.get("max_clock_mhz"), "lds_banks": row.get("lds_banks"),
        "l2_channels": row.get("l2_channels"),
    }  # fmt: skip
    said = {name: float(value) for name, value in names.items() if value is not None}
    if arch.startswith("gfx9") and "max_memory_clock_mhz" in row and "memory_channels" in row:
        # rocprof-compute's formula for HBM: 32 bytes per channel and clock; the clock already counts both edges.
        said["peak_gbps"] = row["max_memory_clock_mhz"] / 1000 * 32 * row["memory_channels"]
    known = _known(arch, row, said, [each for each in named_by if isinstance(each, Product) and each.arch.name == arch])
    if isinstance(known, Product) and "clock_mhz" not in known.reported:
        said.pop("clock_mhz", None)
    device = _from_tables(known) if known else Device(arch, str(row.get("product", arch)), {}, {}, None)
    origin = device.origin | dict.fromkeys(said, "reported")
    if arch in architectures():  # rocprof-compute always writes 32, but gfx950 has 64
        said["lds_banks"], origin["lds_banks"] = float(architecture(arch).lds_banks), f"tables: {arch}"
    folder = str(Path(str(row.get("file", ""))).parent)
    constants = device.constants | said
    if isinstance(known, Product) and known.name == arch and arch in LABELLED_CLOCK:
        # The maximum clock of a card that is not in the tables is unknown.
        del constants["clock_mhz"], origin["clock_mhz"]
    return replace(device, constants=constants, origin=origin, folder=folder)


def _known(
    arch: str, row: dict[str, Any], said: dict[str, float], named_by: Sequence[Product]
) -> Product | OtherGpu | None:
    """Return the product in the tables for a report; None if its architecture or too many facts are missing."""
    name, cus = str(row.get("product", "")), int(said.get("cus", 0)) or None
    found = reported_as(name, arch, row.get("device_id"), cus)
    if arch not in architectures():
        return found[0] if len(found) == 1 else None
    report = {
        "Name": arch, "Product_Name": name, "Device_Id": row.get("device_id", ""), "Cu_Count": cus or "",
        "Simd_Per_Cu": int(said.get("simds_per_cu", 0)) or "", "Num_Xcc": int(said.get("xcds", 0)) or "",
        "Max_Engine_Clk_Fcompute": int(said.get("clock_mhz", 0)) or "",
    }  # fmt: skip
    # The name from --gpu decides between several products, or names a GPU that the file does not.
    stated = [each for each in named_by if not found or each.name in {other.name for other in found}]
    try:
        return with_reported(
            {key: value for key, value in report.items() if value != ""}, stated[0] if len(stated) == 1 else None
        )
    except (GpuFactsError, ArchError):
        return None


def _highest(known: Product) -> tuple[float | None, float | None]:
    """Return the highest floating-point peaks of the matrix and the vector instructions, in TFLOP/s."""
    rates = known.arch.ops_per_clock_per_cu
    floats = {name: known.peak_tflops(name) or 0.0 for name in rates if not name.startswith(("int", "vector-int"))}
    matrix = max((v for name, v in floats.items() if not name.startswith("vector-")), default=None)
    return matrix, max((v for name, v in floats.items() if name.startswith("vector-")), default=None)


def _of_several(found: Sequence[Product | OtherGpu]) -> Device:
    """Return the device that a name stands for; for several products, only what they have in common."""
    first, *others = map(_from_tables, found)
    if not others:
        return first
    common = {
        name: value for name, value in first.constants.items() if all(o.constants.get(name) == value for o in others)
    }
    names = " or ".join(each.name for each in (first, *others))
    return Device(first.arch, names, common, dict.fromkeys(common, f"tables: {names}"), None)


def _from_tables(known: Product | OtherGpu) -> Device:
    constants: dict[str, float | None]
    if isinstance(known, OtherGpu):
        arch, source, product_known = known.arch, known.name, None
        constants = {
            "cus": known.cus, "simds_per_cu": known.simds_per_cu, "waves_per_cu": known.waves_per_cu,
            "xcds": known.xcds, "clock_mhz": known.clock_mhz, "lds_banks": known.lds_banks,
            "peak_gbps": known.bandwidth_gbps, "peak_matrix_tflops": known.matrix_tflops,
            "peak_vector_tflops": known.vector_tflops,
        }  # fmt: skip
    else:
        chip, arch, source, product_known = known.arch, known.arch.name, known.name, known
        waves = chip.simds_per_cu * chip.waves_per_simd
        matrix, vector = _highest(known)
        constants = {
            "cus": known.cus, "simds_per_cu": chip.simds_per_cu, "waves_per_cu": waves,
            "xcds": known.xcds, "clock_mhz": known.clock_mhz, "lds_banks": chip.lds_banks,
            "peak_gbps": known.bandwidth_gbps, "peak_matrix_tflops": matrix, "peak_vector_tflops": vector,
        }  # fmt: skip
    values = {name: float(value) for name, value in constants.items() if value is not None}
    return Device(arch, known.name, values, dict.fromkeys(values, f"tables: {source}"), product_known)
