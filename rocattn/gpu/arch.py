"""The GPU architectures with kernels."""

from __future__ import annotations

import re
from typing import Literal

from rocattn.gpu.errors import ArchError

Family = Literal["gfx11", "gfx12", "cdna", "nvidia", "vector"]
TESTED = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
"""The targets that tests compile for."""

# CDNA 2 to 4, RDNA 2, 3, 3.5 and 4: the families whose matrix instructions (or lack of them) kernels/include handles.
_KNOWN = re.compile(r"gfx(?:90a|94[0-2]|950|103[0-6]|110[0-3]|115[0-3]|120[01])")
_TARGET = re.compile(r"(gfx[0-9a-f]{3,})(?::(?:sramecc|xnack)[+-])*")
# NVIDIA's Ampere and later, with matrix instructions in nvgpu.h: for checks on an available card, by research/hipcuda.
_NVIDIA = re.compile(r"sm_(?:8[0-9]|9[0-9]|1[0-9]{2})")


def processor(target: str) -> str:
    """Return a target without its features: "gfx942" for "gfx942:sramecc+:xnack-".

    Code compiled without features runs with any setting of them.

    Raises:
        ArchError: When it is not a GPU target, or has no kernels.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ArchError(f"{target!r} is no GPU architecture: write it like gfx942 or gfx1100")
    if _KNOWN.fullmatch(match[1]) is None:
        raise ArchError(f"there are no kernels for {match[1]}, only for {', '.join(TESTED)} and their siblings")
    return match[1]


def is_nvidia(target: str) -> bool:
    """Return whether a target is an NVIDIA card, which runs the kernels' portable parts; its numbers are not AMD's."""
    return _NVIDIA.fullmatch(target) is not None


def device_target(target: str) -> str:
    """Return the target for a device's kernels: `processor`, or an NVIDIA card's unmodified target.

    Raises:
        ArchError: When it has no kernels.
    """
    return target if is_nvidia(target) else processor(target)


def fp8_dtype(arch: str) -> str | None:
    """Return the 8-bit dtype that a target (without features) converts with an instruction (v_cvt_pk_f32_fp8).

    The other dtype, and both on other targets, are converted with integer arithmetic.
    """
    if arch == "gfx942":
        return "float8_e4m3fnuz"
    return "float8_e4m3fn" if arch == "gfx950" or arch.startswith("gfx12") else None


def has_kernels(target: str) -> bool:
    """Return whether a target has kernels, whatever its features."""
    try:
        device_target(target)
    except ArchError:
        return False
    return True


def wave_size(target: str) -> int:
    """Return the lanes of a wave for which kernels are compiled: 64 on CDNA, 32 on RDNA."""
    return 64 if device_target(target).startswith("gfx9") else 32


def family(arch: str, dtype: str) -> Family:
    """Return the form of the matrix product on an architecture for a dtype (`kernels/include/rocattn/matrix.h`)."""
    if dtype == "float32":
        return "vector"
    if arch.startswith("gfx11"):
        return "gfx11"
    if arch.startswith("gfx12"):
        return "gfx12"
    if is_nvidia(arch):
        return "nvidia"
    return "cdna" if arch in {"gfx90a", "gfx942", "gfx950"} else "vector"


# For the largest product of each target, as counted by the HIP runtime: CUs on gfx9, work-group processors (two CUs
# each) on gfx10 and later.
_COMPUTE_UNITS = {
    "gfx90a": 104, "gfx940": 304, "gfx941": 304, "gfx942": 304, "gfx950": 256,
    "gfx1030": 40, "gfx1031": 20, "gfx1032": 16, "gfx1033": 4, "gfx1034": 8, "gfx1035": 6, "gfx1036": 1,
    "gfx1100": 48, "gfx1101": 30, "gfx1102": 16, "gfx1103": 6,
    "gfx1150": 8, "gfx1151": 20, "gfx1152": 4, "gfx1153": 1, "gfx1200": 16, "gfx1201": 32,
}  # fmt: skip
# Active compute units per compute die (XCD), each with its own L2 cache.
_XCD_UNITS = {"gfx940": 38, "gfx941": 38, "gfx942": 38, "gfx950": 32}


def default_compute_units(arch: str) -> int:
    """Return the compute units assumed for a plan without a device: those of the target's largest product."""
    return 132 if is_nvidia(arch) else _COMPUTE_UNITS[arch]  # H200


def xcds(arch: str, compute_units: int) -> int:
    """Return the number of dies with separate L2 caches that share a grid's blocks: 1 except on gfx94x and gfx950.

    Args:
        arch: Target, without features.
        compute_units: The device's compute units, or those of a GPU's partition.
    """
    return max(1, round(compute_units / _XCD_UNITS.get(arch, compute_units)))


def blocks_a_unit(arch: str, waves: int, lds_bytes: int) -> int:
    """Return how many blocks of a kernel with up to 256 VGPRs fit on a compute unit at once.

    Args:
        arch: Target, without features.
        waves: Waves per block.
        lds_bytes: LDS per block.
    """
    if arch.startswith("gfx9"):
        lds, granule = (160 << 10, 1280) if arch == "gfx950" else (64 << 10, 512)
        waves_a_simd = 2  # 512 VGPRs per lane
    elif is_nvidia(arch):
        lds, granule = 100 << 10, 1024  # of the cards with the smallest
        waves_a_simd = 2  # 64 K registers per multiprocessor
    else:
        lds, granule = 128 << 10, 1024
        waves_a_simd = 4  # 1024 VGPRs; 5 with 1536
    return max(1, min(lds // (-(-lds_bytes // granule) * granule), 4 * waves_a_simd // waves))


def bytes_in_flight(arch: str) -> int:
    """Return how many bytes of K and V in flight saturate a compute unit's share of memory bandwidth, with a margin.

    It is three to four times latency times bandwidth, about 17 KiB on gfx942, 31 KiB on gfx950 and 16 KiB per RDNA WGP.
    More blocks would only split the keys into more pieces to combine. Estimates: never measured on a GPU.
    """
    return (128 if arch == "gfx950" else 48 if arch.startswith("gfx9") else 64) << 10
