"""Facts about GPUs: the numbers in ``gpus.toml``, overridden by those that a machine reports."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from rocattn.errors import RocattnError
from rocattn.gpu.arch import has_kernels
from rocattn.gpu.errors import ArchError

LABELLED_CLOCK = frozenset({"gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"})
"""Targets whose driver reports the game clock as the highest one, although every card exceeds it.

Linux, drivers/gpu/drm/amd/pm/swsmu, smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c and smu_v14_0_2_ppt.c: the driver caps the top
level of the shader clock at DriverReportedClocks.GameClockAc, which the real clock may exceed. It does not for RDNA 2
or APUs.
"""


class GpuFactsError(RocattnError, ValueError):
    """Raised for an unknown product, and for a machine's report that cannot be used."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The facts that all chips of one target share.

    Attributes:
        name: The target, "gfx1100".
        family: "CDNA 3", "RDNA 4", ….
        wave_sizes: Possible numbers of lanes per wave; kernels are compiled for the first.
        simds_per_cu, waves_per_simd: SIMDs per CU, and wave slots per SIMD.
        max_block: Threads of the largest block.
        vgprs: VGPRs that the waves of a SIMD share, by wave size (AGPRs are in the same register file).
        vgpr_granule: VGPRs are allocated to a wave in multiples of this, by wave size.
        max_vgprs, max_agprs: VGPRs and AGPRs that code can address; no AGPRs on RDNA.
        agpr_granule: AGPRs start after the VGPRs, at a multiple of this; 0 on RDNA.
        sgprs, sgpr_granule: The same for SGPRs; 0 where each wave has all that code can address.
        max_sgprs: The most that metadata counts: 102 (RDNA: 106) that code can address, plus VCC and similar registers.
        trap_sgprs: Additional SGPRs of each wave, for the trap handler.
        lds_bytes: LDS per CU.
        lds_block_bytes: LDS that one block can use.
        lds_granule_bytes: LDS is allocated to a block in multiples of this.
        compiler_lds_granule_bytes: The granule that LLVM assumes.
        lds_banks: Number of banks, each four bytes wide.
        instruction_cache_bytes: Size of the cache that two CUs share.
        cus_per_wgp: 2 where two CUs form a work group processor that one block can use as a whole, otherwise 1.
        blocks_per_cu: Blocks of more than one wave that fit on a CU: its number of barriers.
        ops_per_clock_per_cu: Operations per clock per CU, by dtype; see ``gpus.toml``.
        sources: The sources of each number, by field.
        unverified: Fields without a reliable source.
    """

    name: str
    family: str
    wave_sizes: tuple[int, ...]
    simds_per_cu: int
    waves_per_simd: int
    max_block: int
    vgprs: dict[int, int]
    vgpr_granule: dict[int, int]
    max_vgprs: int
    max_agprs: int
    agpr_granule: int
    sgprs: int
    sgpr_granule: int
    max_sgprs: int
    trap_sgprs: int
    lds_bytes: int
    lds_block_bytes: int
    lds_granule_bytes: int
    compiler_lds_granule_bytes: int
    lds_banks: int
    instruction_cache_bytes: int
    cus_per_wgp: int
    blocks_per_cu: int
    ops_per_clock_per_cu: dict[str, float]
    sources: dict[str, tuple[str, ...]] = field(repr=False)
    unverified: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One GPU that can be bought, or the one in a machine.

    Attributes:
        name: AMD's name for it, without "AMD".
        arch: The facts that it shares with other products of its target.
        cus: Compute units.
        clock_mhz: Its highest clock; for an unknown product, the reported one (see `LABELLED_CLOCK`).
        bandwidth_gbps: Peak DRAM bandwidth in 1e9 bytes/s; None if it depends on the system or is unknown.
        xcds: Number of dies that a grid is spread over.
        sources, unverified: As in `Architecture`.
        reported: Fields (also of ``arch``) that the machine reported.
        share: A partition's fraction of the product, also of its memory bandwidth; 1.0 for a whole product.
    """

    name: str
    arch: Architecture
    cus: int
    clock_mhz: int
    bandwidth_gbps: float | None
    xcds: int
    sources: dict[str, tuple[str, ...]] = field(repr=False)
    unverified: tuple[str, ...]
    reported: tuple[str, ...] = ()
    share: float = 1.0

    def peak_tflops(self, dtype: str) -> float | None:
        """Return the peak rate of a dtype in 1e12 operations/s at the highest clock; None if no rate is listed."""
        rate = self.arch.ops_per_clock_per_cu.get(dtype)
        return None if rate is None else rate * self.cus * self.clock_mhz / 1e6


@dataclass(frozen=True, slots=True)
class OtherGpu:
    """A GPU without kernels in this project: the numbers that a counter report needs; see ``gpus.toml``."""

    name: str
    arch: str
    cus: int
    simds_per_cu: int
    waves_per_cu: int
    wave_size: int
    lds_bytes: int
    lds_banks: int
    xcds: int
    clock_mhz: int
    bandwidth_gbps: float
    matrix_tflops: float
    vector_tflops: float
    source: str


def architecture(target: str) -> Architecture:
    """Return the facts of a target, with or without its features ("gfx942:sramecc+").

    Raises:
        ArchError: When it is not a target, or not a known one.
    """
    name = target.partition(":")[0]
    if name not in _tables()["arch"]:
        raise ArchError(f"no facts are known about architecture {target!r}; known: {', '.join(architectures())}")
    return _architecture(name)


def architectures() -> tuple[str, ...]:
    """Return the targets with both known facts and kernels."""
    return tuple(sorted(filter(has_kernels, _tables()["arch"]), key=lambda name: (len(name), name)))


def product(name: str) -> Product:
    """Return a product by its name, with or without "AMD", "Radeon" and "Instinct", ignoring case.

    Args:
        name: The name, a partition ("MI300X CPX"), or the target of a single product, with or without its features
            ("gfx1151").

    Raises:
        GpuFactsError: When the name is unknown, matches several products, or matches one without kernels.
    """
    found = named(name)
    if len(found) > 1:
        raise GpuFactsError(f"{name!r} matches several products, name one: {_listed(found)}")
    if not isinstance(found[0], Product):
        raise GpuFactsError(f"there are no kernels for the {found[0].name}")
    return found[0]


def named(name: str) -> tuple[Product | OtherGpu, ...]:
    """Return the products that match a name; a driver's name can stand for two chips ("MI250X/MI250").

    Args:
        name: As for `product`.

    Raises:
        GpuFactsError: When the name is unknown, or is the target of several products.
    """
    target = name.strip().casefold().partition(":")[0]
    of_target = [each for entry in products() if (each := _product(entry)).arch.name == target]
    mode = _MODE.search(name.casefold())
    found = _find(_MODE.sub(" ", name.casefold().partition(":")[0]))
    if not found and len(of_target) > 1:
        raise GpuFactsError(f"{name!r} is the target of several products, name one: {_listed(of_target)}")
    found = found or tuple(of_target) or tuple(each for each in _others() if each.arch == target)
    if mode and len(found) == 1 and isinstance(found[0], Product):
        return (_partition(found[0], mode[0]),)
    if not found:
        raise GpuFactsError(f"no facts are known about a GPU {name!r}; known: {', '.join(known_names())}")
    return found


def reported_as(name: str, arch: str, device_id: int | None, cus: int | None) -> tuple[Product | OtherGpu, ...]:
    """Return the products that a file's description of a GPU may mean; none if the tables have no match.

    Match by name first, then by PCI id; where the driver has only a generic name ("AMD Radeon Graphics"), match by
    target and CUs.
    """
    listed = [_entry_of(each) for each in _tables()["device_ids"].get(f"0x{device_id or 0:04X}", ())]
    is_generic = not re.search(r"\d", _short(name)) or _short(name).startswith("gfx")
    every: list[Product | OtherGpu] = [*map(_product, products()), *_others()]
    ways: tuple[Sequence[Product | OtherGpu], ...] = (_find(name), listed, every if is_generic else ())
    for number, way in enumerate(ways):
        fits = [each for each in way if _arch_of(each) == arch]
        same = [each for each in fits if each.cus == cus]
        if fits and (number < 2 or same):  # a partition or bin of a named product has another number of CUs
            return tuple(same or fits)
    return ()


def _listed(found: Iterable[Product | OtherGpu]) -> str:
    return ", ".join(each.name for each in found)


def _arch_of(gpu: Product | OtherGpu) -> str:
    return gpu.arch if isinstance(gpu, OtherGpu) else gpu.arch.name


# The modes in which an MI300 or later exposes its XCDs as several devices (ROCm documentation, GPU partitioning).
_MODE = re.compile(r"\b[sdtqc]px\b")
_PARTS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}


def _partition(whole: Product, mode: str) -> Product:
    """Return one partition of a product, with its share of the bandwidth.

    Raises:
        GpuFactsError: When the product's dies cannot be split this way.
    """
    parts = _PARTS.get(mode, whole.xcds)
    if whole.xcds % parts or whole.xcds == 1:
        raise GpuFactsError(f"the {whole.name} cannot be split as {mode.upper()}: it has {whole.xcds} XCDs")
    return _share(replace(whole, cus=whole.cus // parts, xcds=whole.xcds // parts), whole)


def _share(device: Product, whole: Product) -> Product:
    """Return a device, with its share of the product's bandwidth if it is one of several equal partitions."""
    parts = whole.cus // device.cus if device.cus and whole.cus % device.cus == 0 else 0
    if parts == 1:
        return device
    if parts == 0 or whole.xcds % parts or whole.bandwidth_gbps is None:
        return replace(device, bandwidth_gbps=None)  # a separate bin: no source states its memory
    name = f"{whole.name} (1 of {parts} partitions)"
    return replace(device, name=name, bandwidth_gbps=whole.bandwidth_gbps / parts, share=1 / parts)


def products() -> tuple[str, ...]:
    """Return the names of all known products with kernels."""
    return tuple(_tables()["product"])


def attainable_gbps(name: str) -> float | None:
    """Return the bandwidth that copies reach on a product in 1e9 bytes/s; None if no source states it."""
    entry = _tables()["attainable"].get(name)
    return float(entry["gbps"]) if entry else None


def known_names() -> tuple[str, ...]:
    """Return the names of all known GPUs, including those without kernels."""
    return (*products(), *(each.name for each in _others()))


def with_reported(reported: Mapping[str, object], known: Product | None = None) -> Product:
    """Return a GPU as its machine reports it; the tables fill in the rest.

    A device is often less than its product (a partition of an MI300X has 38 CUs), so the report takes precedence. But
    a reported clock below the product's is ignored where drivers report the game clock (`LABELLED_CLOCK`).

    Args:
        reported: A row of rocprofv3's agent_info.csv, an agent of rocminfo as a dict of its lines, or the fields of
            HIP's device properties. Unknown names are ignored.
        known: The product; None to find it in the report.

    Raises:
        GpuFactsError: When the report lacks a number that no table has, or its architecture is not that of ``known``.
        ArchError: When its architecture is unknown.
    """
    said = {_key(name): str(value).strip() for name, value in reported.items()}
    target = next((said[key] for key in ("gcnarchname", "name") if said.get(key, "").startswith("gfx")), None)
    if target is None and known is None:
        raise GpuFactsError(
            "the report names no architecture: Name (agent_info, rocminfo) or gcnArchName (HIP) is needed"
        )
    arch = known.arch if target is None and known is not None else architecture(target or "")
    if known is None:
        name = next((said[key] for key in ("productname", "marketingname", "name") if key in said), "")
        device_id = next((_id(said[key]) for key in ("deviceid", "chipid") if key in said), None)
        stated = _numbers(said, arch)
        found = reported_as(name, arch.name, device_id, stated.get("cus"))
        known = _common([each for each in found if isinstance(each, Product)], stated)
    if known is not None and known.arch.name != arch.name:
        raise GpuFactsError(f"the report is from a {arch.name}, but {known.name} is a {known.arch.name}")
    numbers = _numbers(said, arch)
    arch = replace(arch, **{name: number for name, number in numbers.items() if name in _ARCHITECTURE_SAYS})
    own = {name: number for name, number in numbers.items() if name not in _ARCHITECTURE_SAYS}
    if known is None:
        if missing := [name for name in ("cus", "clock_mhz") if name not in own]:
            raise GpuFactsError(f"this {arch.name} is not a known product and the report lacks {' and '.join(missing)}")
        known = Product(arch.name, arch, 0, 0, None, 1, {}, ())
    else:
        whole = known
        if arch.name in LABELLED_CLOCK and own.get("clock_mhz", known.clock_mhz) < known.clock_mhz:
            del own["clock_mhz"], numbers["clock_mhz"]
        return _share(replace(known, arch=arch, reported=tuple(numbers), **own), whole)
    return replace(known, arch=arch, reported=tuple(numbers), **own)


def _common(found: Sequence[Product], stated: Mapping[str, object]) -> Product | None:
    """Return what a report's candidate products share; None if they differ in a fact that it does not state."""
    if not found or any(
        len({getattr(each, fact) for each in found}) > 1 for fact in {"cus", "clock_mhz"} - stated.keys()
    ):
        return None
    first, bandwidths = found[0], {each.bandwidth_gbps for each in found}
    if len(bandwidths) > 1 or len({each.cus for each in found}) > 1:
        return replace(first, name=first.arch.name, bandwidth_gbps=bandwidths.pop() if len(bandwidths) == 1 else None)
    return replace(first, name=" or ".join(each.name for each in found))


def _id(text: str) -> int | None:
    """Parse a PCI id as tools write it: 29708, 0x740c, or rocminfo's "29708(0x740c)"."""
    match = re.match(r"0x[0-9a-f]+|\d+", text.casefold())
    return int(match[0], 0) if match else None


_ARCHITECTURE_SAYS = {"simds_per_cu", "waves_per_simd", "lds_bytes"}
# A report's field name (letters and digits only, lower case) -> our field, and the factor to its unit.
_REPORTED = {
    "cucount": ("cus", 1), "computeunit": ("cus", 1), "simdpercu": ("simds_per_cu", 1),
    "simdspercu": ("simds_per_cu", 1), "maxwavespersimd": ("waves_per_simd", 1), "ldssizeinkb": ("lds_bytes", 1024),
    "numxcc": ("xcds", 1), "maxengineclkfcompute": ("clock_mhz", 1), "maxclockfreqmhz": ("clock_mhz", 1),
    "clockrate": ("clock_mhz", 1e-3),
}  # fmt: skip


def _numbers(said: Mapping[str, str], arch: Architecture) -> dict[str, Any]:
    """Return the fields that a report states."""
    columns: dict[str, Any] = {}
    for key, (fact, unit) in _REPORTED.items():
        if key in said:
            columns[fact] = round(_number(key, said[key]) * unit)
    if "multiprocessorcount" in said and "cus" not in columns:
        # HIP counts WGPs where the architecture has them.
        columns["cus"] = _number("multiprocessorcount", said["multiprocessorcount"]) * arch.cus_per_wgp
    if "maxwavespercu" in said and "waves_per_simd" not in columns:
        simds = columns.get("simds_per_cu", arch.simds_per_cu)
        columns["waves_per_simd"] = _number("maxwavespercu", said["maxwavespercu"]) // simds
    return columns


def _number(key: str, text: str) -> int:
    """Return the number in a report's text; rocminfo writes "32(0x20)"."""
    match = re.match(r"(\d+)(?:\.0*)?\s*(?:\(0x[0-9a-f]+\))?$", text)
    if match is None or int(match[1]) == 0:
        raise GpuFactsError(f"the report's {key} is {text!r}, not a whole number above 0")
    return int(match[1])


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _find(name: str) -> tuple[Product | OtherGpu, ...]:
    """Return the products of this name; of a list with slashes, all products if every name is known."""
    entries = [_names().get(_short(piece), ()) for piece in name.split("/")]
    found = dict.fromkeys(entry for each in entries for entry in each) if all(entries) else {}
    return tuple(map(_entry_of, found))


@cache
def _names() -> dict[str, tuple[str, ...]]:
    own = {_short(entry): (entry,) for entry in known_names()}
    return {_short(alias): tuple(entries) for alias, entries in _tables()["aliases"].items()} | own


def _entry_of(name: str) -> Product | OtherGpu:
    return _product(name) if name in _tables()["product"] else next(each for each in _others() if each.name == name)


_BRAND = re.compile(r"^(?:amd|ati|radeon|instinct|ai(?!max)|pro|rx)+(?=.*\d|graphics)")
# Possible suffixes of a name: a virtual function, a chip's revision (rocprof-compute), a part or a form factor.
_BEHIND = re.compile(r"(?:graphics|onegcd|vf|hf|oam|a\d)+$")


def _short(name: str) -> str:
    """Return a name without brands and the suffixes that tools add: "mi250x", "7900xtx", "w780048gb"."""
    key = _BRAND.sub("", _BEHIND.sub("", _key(name)))
    return key if key.startswith("w7800") else re.sub(r"(?<=xt|\de|00)(?:8|16|20|24|32|48)gb$", "", key)


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files("rocattn_profiling.base").joinpath("gpus.toml").read_text())


@cache
def _architecture(name: str) -> Architecture:
    table, sources, unverified = _entry("arch", name)
    for fact in ("vgprs", "vgpr_granule"):
        table[fact] = {int(size): number for size, number in table[fact].items()}
    table["wave_sizes"] = tuple(table["wave_sizes"])
    return Architecture(name=name, sources=sources, unverified=unverified, **table)


@cache
def _product(name: str) -> Product:
    table, sources, unverified = _entry("product", name)
    table["arch"] = _architecture(table["arch"])
    table.setdefault("bandwidth_gbps", None)
    return Product(name=name, sources=sources, unverified=unverified, **table)


def _entry(kind: str, name: str) -> tuple[dict[str, Any], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return an entry's fields, the sources of each, and its unverified fields, including inherited ones."""
    table = dict(_tables()[kind][name])
    own_sources = {
        fact: tuple(_tables()["sources"][key] for key in keys) for fact, keys in table.pop("from", {}).items()
    }
    like = table.pop("like", None)
    inherited, sources, unverified = _entry(kind, like) if like else ({}, {}, ())
    unverified = tuple(table.pop("unverified", unverified))
    sources = {fact: own_sources.get(fact) or own_sources.get("") or sources[fact] for fact in inherited | table}
    return inherited | table, sources, unverified


@cache
def _others() -> tuple[OtherGpu, ...]:
    tables = _tables()
    return tuple(
        OtherGpu(name=name, source=tables["sources"][table["from"]], **{k: v for k, v in table.items() if k != "from"})
        for name, table in tables["other"].items()
    )
