"""The GPUs of a profile as constants for formulas: as reported by its files, completed from the tables of products."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.gpus import (
    LABELLED_CLOCK,
    GpuFactsError,
    Product,
    architecture,
    architectures,
    product,
    with_reported,
)

if TYPE_CHECKING:
    from rocattn_profiling.profile.ingest.table import Profile

UNKNOWN_AGENT = -1
_A1 = re.compile(r"_A\d$")  # rocprof-compute's mark of a chip's revision: MI300X_A1


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        arch: Its target, "gfx942".
        name: The product if it is known, else the target.
        constants: Values for the names in small letters of ``definitions.toml``, as far as known.
        origin: Where each is from: "reported", or the product or architecture of the tables.
        known: The product for the tables' further facts; None for an architecture that is not in them.
        folder: Folder of the file that reports it: roofs measured in that folder are its own; "" for none.
    """

    arch: str
    name: str
    constants: dict[str, float]
    origin: dict[str, str]
    known: Product | None
    folder: str = ""


def devices_of(profile: Profile, gpu: str | None = None) -> dict[int, Device]:
    """Return the GPUs of a profile by their row in ``agents``; the key -1 stands for all others.

    Args:
        profile: Its ``agents`` say what the files report.
        gpu: A product's name, or the target of a single one, for files that do not name their GPU; it does not
            override what files report.

    Raises:
        GpuFactsError: When `gpu` is no known product, or a target of several.
    """
    devices = {}
    for number, row in enumerate(profile.agents.to_dict("records")):
        if isinstance(row["arch"], str) and row["arch"]:
            devices[number] = _device({str(name): value for name, value in row.items() if _is_said(value)})
    if gpu is not None:
        devices.setdefault(UNKNOWN_AGENT, _from_tables(product(gpu)))
    elif len({(each.arch, tuple(each.constants.items())) for each in devices.values()}) == 1:
        devices[UNKNOWN_AGENT] = next(iter(devices.values()))  # a run on GPUs of one kind: whichever it was
    return devices


def _is_said(value: object) -> bool:
    """Whether a report states a value: drivers write 0 where they know none."""
    return value is not None and not pd.isna(value) and value not in {"", 0}  # type: ignore[call-overload]  # a scalar


def _device(row: dict[str, Any]) -> Device:
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
        # rocprof-compute's formula for HBM: 32 bytes a channel and clock, both edges in the clock's number.
        said["peak_gbps"] = row["max_memory_clock_mhz"] / 1000 * 32 * row["memory_channels"]
    known = _known(arch, row, said)
    if known and "clock_mhz" not in known.reported:
        said.pop("clock_mhz", None)
    device = _from_tables(known) if known else Device(arch, str(row.get("product", arch)), {}, {}, None)
    origin = device.origin | dict.fromkeys(said, "reported")
    if arch in architectures():  # rocprof-compute writes a constant, 32, also for gfx950, which has 64
        said["lds_banks"], origin["lds_banks"] = float(architecture(arch).lds_banks), f"tables: {arch}"
    if arch == "gfx908" and "xcds" not in said:
        said["xcds"], origin["xcds"] = 1.0, "an MI100 is one die"  # in no table: there are no kernels for it
    folder = str(Path(str(row.get("file", ""))).parent)
    constants = device.constants | said
    if known and known.name == arch and arch in LABELLED_CLOCK:
        del (
            constants["clock_mhz"],
            origin["clock_mhz"],
        )  # the highest clock of a card that is not in the tables is unknown
    return replace(device, constants=constants, origin=origin, folder=folder)


def _known(arch: str, row: dict[str, Any], said: dict[str, float]) -> Product | None:
    """Return the tables' product of a report, or None if they do not have its architecture or lack too much."""
    if arch not in architectures():
        return None
    report = {
        "Name": arch, "Product_Name": _A1.sub("", str(row.get("product", ""))),
        "Cu_Count": int(said.get("cus", 0)) or "",
        "Simd_Per_Cu": int(said.get("simds_per_cu", 0)) or "", "Num_Xcc": int(said.get("xcds", 0)) or "",
        "Max_Engine_Clk_Fcompute": int(said.get("clock_mhz", 0)) or "",
    }  # fmt: skip
    try:
        return with_reported({name: value for name, value in report.items() if value != ""})
    except (GpuFactsError, ArchError):
        return None


def _from_tables(known: Product) -> Device:
    arch = known.arch
    rates = arch.ops_per_clock_per_cu
    floats = {name: known.peak_tflops(name) or 0.0 for name in rates if not name.startswith(("int", "vector-int"))}
    constants: dict[str, float | None] = {
        "cus": known.cus, "simds_per_cu": arch.simds_per_cu, "waves_per_cu": arch.simds_per_cu * arch.waves_per_simd,
        "xcds": known.xcds, "clock_mhz": known.clock_mhz, "lds_banks": arch.lds_banks,
        "peak_gbps": known.bandwidth_gbps,
        "peak_matrix_tflops": max((v for name, v in floats.items() if not name.startswith("vector-")), default=None),
        "peak_vector_tflops": max((v for name, v in floats.items() if name.startswith("vector-")), default=None),
    }  # fmt: skip
    values = {name: float(value) for name, value in constants.items() if value is not None}
    return Device(arch.name, known.name, values, dict.fromkeys(values, f"tables: {known.name}"), known)
