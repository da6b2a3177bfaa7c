"""Facts about GPUs: the numbers of ``gpus.toml``, overridden by those that a machine reports."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from rocattn.errors import RocattnError
from rocattn.gpu.errors import ArchError

LABELLED_CLOCK = frozenset({"gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"})
"""Targets whose driver reports the game clock as the highest one, although every card exceeds it.

Linux, drivers/gpu/drm/amd/pm/swsmu, smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c and smu_v14_0_2_ppt.c: the top level of the
shader clock is cut to DriverReportedClocks.GameClockAc, which the real clock may exceed. RDNA 2's and the APUs' is not.
"""


class GpuFactsError(RocattnError, ValueError):
    """Raised for a product that is not known, and for a machine's report that cannot be used."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The facts that all chips of one target share.

    Attributes:
        name: The target, "gfx1100".
        family: "CDNA 3", "RDNA 4", ….
        wave_sizes: Lanes that a wave can have; kernels are compiled for the first.
        simds_per_cu, waves_per_simd: How many SIMDs, and wave slots in each.
        max_block: Threads of the largest block.
        vgprs: VGPRs that the waves of a SIMD share, by wave size (AGPRs come out of the same file).
        vgpr_granule: VGPRs are given to a wave in multiples of this, by wave size.
        max_vgprs, max_agprs: VGPRs and AGPRs that code can name; no AGPRs on RDNA.
        agpr_granule: The AGPRs begin behind the VGPRs, at a multiple of this; 0 on RDNA.
        sgprs, sgpr_granule: The same for SGPRs; 0 where each wave has all that code can name.
        max_sgprs: The most that metadata counts: 102 (RDNA: 106) that code can name, and VCC and its like.
        trap_sgprs: SGPRs that each wave has in addition to its own, for the trap handler.
        lds_bytes: LDS of a CU.
        lds_block_bytes: LDS that one block can have.
        lds_granule_bytes: LDS is given to a block in multiples of this.
        compiler_lds_granule_bytes: The same in LLVM's opinion.
        lds_banks: Banks of four bytes.
        instruction_cache_bytes: The cache that two CUs share.
        cus_per_wgp: 2 where two CUs are a work group processor that a block can use whole, else 1.
        blocks_per_cu: Blocks of more than one wave that fit a CU: it has so many barriers.
        ops_per_clock_per_cu: Operations in a clock of a CU, by dtype; see ``gpus.toml``.
        sources: Where each number is from, by field.
        unverified: Fields without a source to rely on.
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
    ops_per_clock_per_cu: dict[str, int]
    sources: dict[str, tuple[str, ...]] = field(repr=False)
    unverified: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One GPU that can be bought, or the one in a machine.

    Attributes:
        name: As AMD calls it, without "AMD".
        arch: The facts it shares with its siblings.
        cus: Compute units.
        clock_mhz: Its highest clock; of an unknown product, the reported one (see `LABELLED_CLOCK`).
        bandwidth_gbps: Peak of its DRAM in 1e9 bytes/s; None if that depends on the system or is not known.
        xcds: Dies that a grid is spread over.
        sources, unverified: As in `Architecture`.
        reported: Fields (also of ``arch``) that the machine reported.
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

    def peak_tflops(self, dtype: str) -> float | None:
        """Return the peak of a dtype in 1e12 operations/s at the highest clock; None if there is no such rate."""
        rate = self.arch.ops_per_clock_per_cu.get(dtype)
        return None if rate is None else rate * self.cus * self.clock_mhz / 1e6


def architecture(target: str) -> Architecture:
    """Return the facts of a target, with or without its features ("gfx942:sramecc+").

    Raises:
        ArchError: When it is not a target, or an unknown one.
    """
    name = target.partition(":")[0]
    if name not in _tables()["arch"]:
        raise ArchError(f"no facts are known of an architecture {target!r}: there are of {', '.join(architectures())}")
    return _architecture(name)


def architectures() -> tuple[str, ...]:
    """Return the targets that facts are known of."""
    return tuple(sorted(_tables()["arch"], key=lambda name: (len(name), name)))


def product(name: str) -> Product:
    """Return a product by its name, with or without "AMD", "Radeon" and "Instinct", in any case.

    Args:
        name: Or the target of a single product, with or without its features ("gfx1151").

    Raises:
        GpuFactsError: When it is not known, or a target of several.
    """
    target = name.strip().casefold().partition(":")[0]
    products_of_target = [entry for entry in products() if _product(entry).arch.name == target]
    if len(products_of_target) > 1:
        raise GpuFactsError(f"{name!r} is the target of several products, name one: {', '.join(products_of_target)}")
    only = products_of_target[0] if products_of_target else _find(name)
    if only is None:
        raise GpuFactsError(f"no facts are known of a GPU {name!r}: there are of {', '.join(products())}")
    return _product(only)


def products() -> tuple[str, ...]:
    """Return the names of all known products."""
    return tuple(_tables()["product"])


def attainable_gbps(name: str) -> float | None:
    """Return what copies reach on a product in 1e9 bytes/s; None if no source says it."""
    entry = _tables()["attainable"].get(name)
    return float(entry["gbps"]) if entry else None


def with_reported(reported: Mapping[str, object], known: Product | None = None) -> Product:
    """Return a GPU as its machine reports it; the tables fill in the rest.

    A device is often less than its product (a partition of an MI300X has 38 CUs), so that the machine is right. But a
    clock below the product's is no limit where drivers report the game clock (`LABELLED_CLOCK`).

    Args:
        reported: A row of rocprofv3's agent_info.csv, an agent of rocminfo as a dict of its lines, or the fields of
            HIP's device properties. Unknown names are passed over.
        known: The product; None to find it by the name reported.

    Raises:
        GpuFactsError: When the report lacks what no table has, or is of another architecture than ``known``.
        ArchError: When nothing is known of its architecture.
    """
    said = {_key(name): str(value).strip() for name, value in reported.items()}
    target = next((said[key] for key in ("gcnarchname", "name") if said.get(key, "").startswith("gfx")), None)
    if target is None and known is None:
        raise GpuFactsError(
            "the report names no architecture: Name (agent_info, rocminfo) or gcnArchName (HIP) is needed"
        )
    arch = known.arch if target is None and known is not None else architecture(target or "")
    if known is None:
        names = [said[key] for key in ("productname", "marketingname", "name") if key in said]
        named = next((entry for name in names if (entry := _find(name))), None)
        known = _product(named) if named else None
    if known is not None and known.arch.name != arch.name:
        raise GpuFactsError(f"the report is of a {arch.name}, but {known.name} is a {known.arch.name}")
    numbers = _numbers(said, arch)
    arch = replace(arch, **{name: number for name, number in numbers.items() if name in _ARCHITECTURE_SAYS})
    own = {name: number for name, number in numbers.items() if name not in _ARCHITECTURE_SAYS}
    if known is None:
        if missing := [name for name in ("cus", "clock_mhz") if name not in own]:
            raise GpuFactsError(f"this {arch.name} is no known product, and the report lacks {' and '.join(missing)}")
        known = Product(arch.name, arch, 0, 0, None, 1, {}, ())
    else:
        if own.get("cus", known.cus) != known.cus:
            # A partition, or another bin: its share of the memory's bandwidth is not known.
            known = replace(known, bandwidth_gbps=None)
        if arch.name in LABELLED_CLOCK and own.get("clock_mhz", known.clock_mhz) < known.clock_mhz:
            del own["clock_mhz"], numbers["clock_mhz"]
    return replace(known, arch=arch, reported=tuple(numbers), **own)


_ARCHITECTURE_SAYS = {"simds_per_cu", "waves_per_simd", "lds_bytes"}
# The name of a field in reports (letters and digits only, in lower case), and the factor from its unit to ours.
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
        # HIP counts WGPs where there are such.
        columns["cus"] = _number("multiprocessorcount", said["multiprocessorcount"]) * arch.cus_per_wgp
    if "maxwavespercu" in said and "waves_per_simd" not in columns:
        simds = columns.get("simds_per_cu", arch.simds_per_cu)
        columns["waves_per_simd"] = _number("maxwavespercu", said["maxwavespercu"]) // simds
    return columns


def _number(key: str, text: str) -> int:
    """Return the number in a report's text; rocminfo writes "32(0x20)"."""
    match = re.match(r"(\d+)(?:\.0*)?\s*(?:\(0x[0-9a-f]+\))?$", text)
    if match is None or int(match[1]) == 0:
        raise GpuFactsError(f"the report's {key} is {text!r}: a whole number above 0 was expected")
    return int(match[1])


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _find(name: str) -> str | None:
    """Return the table's name of a product that is called so."""
    return {_short(entry): entry for entry in products()}.get(_short(name))


def _short(name: str) -> str:
    return _key(re.sub(r"\b(?:amd|radeon|instinct|graphics)\b", "", name.casefold()))


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
    """Return an entry's fields, the sources of each, and its unverified fields, all with what it inherits."""
    table = dict(_tables()[kind][name])
    own_sources = {
        fact: tuple(_tables()["sources"][key] for key in keys) for fact, keys in table.pop("from", {}).items()
    }
    like = table.pop("like", None)
    inherited, sources, unverified = _entry(kind, like) if like else ({}, {}, ())
    unverified = tuple(table.pop("unverified", unverified))
    sources = {fact: own_sources.get(fact) or own_sources.get("") or sources[fact] for fact in inherited | table}
    return inherited | table, sources, unverified
