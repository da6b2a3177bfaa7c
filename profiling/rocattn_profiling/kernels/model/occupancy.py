"""Theoretical occupancy: how many waves fit on a SIMD, and which limit binds by how much.

The rules are the hardware's: registers and LDS are allocated in granules, blocks are resident as a whole or not at all,
and the waves of a block spread over the SIMDs of its CU (on RDNA in WGP mode: the four of the WGP). The numbers are in
``base/gpus.toml``. LLVM computes occupancy differently in places: see docs/occupancy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.base.gpus import architecture

if TYPE_CHECKING:
    from rocattn_profiling.base.gpus import Architecture

_SGPRS_OF_AN_RDNA_WAVE = 128
_SLOTS, _VGPRS, _SGPRS, LDS, _BARRIERS = "wave slots", "VGPRs", "SGPRs", "LDS", "barriers"


class OccupancyError(RocattnError, ValueError):
    """Raised when numbers are impossible for a kernel on that architecture."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit that one resource sets.

    Attributes:
        name: "wave slots", "VGPRs", "SGPRs", "LDS" or "barriers".
        waves: Waves per SIMD that it alone allows, in whole blocks; at most the wave slots.
        blocks: Blocks per CU or WGP that it alone allows; None if the block is unknown.
        used: Allocation per wave (LDS and barriers: per block), rounded up to the granule.
        available: Capacity per SIMD (LDS and barriers: per CU or WGP).
    """

    name: str
    waves: float
    blocks: int | None
    used: int
    available: int


@dataclass(frozen=True, slots=True)
class Need:
    """A resource that must shrink for a step: VGPRs or SGPRs per wave, or bytes of LDS per block, now and then."""

    resource: str
    now: int
    at_most: int


@dataclass(frozen=True, slots=True)
class OccupancyStep:
    """The next step up: the waves per SIMD (and blocks) once every need is met."""

    waves: float
    blocks: int | None
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many waves fit.

    Attributes:
        arch, wave_size, block: The input: target, lanes per wave, threads per block (None if unknown).
        vgprs: Registers that a wave uses in the VGPR file, including AGPRs.
        waves_per_simd: Waves per SIMD; not an integer if the blocks do not spread evenly over the SIMDs.
        max_waves_per_simd: Wave slots per SIMD.
        lost_wave_slots: Empty wave slots per SIMD: lower is better.
        occupancy_pct: Waves in percent of the slots.
        blocks: Blocks resident on the unit; None if the block is unknown, 0 if not even one fits.
        unit: Where a block is resident: "CU", or "WGP" (two CUs).
        limits: The limit of each resource.
        binding: The tightest limit (the first of equals; wave slots come first).
        bound_by: The names of all equally tight limits.
        next_step: What to shrink, and for how many waves; None if only another block size can give more.
        slack: How much each resource may grow before a wave or block is lost.
        sentence: The result in a kernel engineer's words.
    """

    arch: str
    wave_size: int
    block: int | None
    vgprs: int
    waves_per_simd: float
    max_waves_per_simd: int
    lost_wave_slots: float
    occupancy_pct: float
    blocks: int | None
    unit: str
    limits: tuple[Limit, ...]
    binding: Limit
    bound_by: tuple[str, ...]
    next_step: OccupancyStep | None
    slack: dict[str, int]
    sentence: str


def occupancy(
    arch: str,
    *,
    wave_size: int,
    vgprs: int,
    agprs: int = 0,
    sgprs: int = 0,
    lds_bytes: int = 0,
    block: int | None = None,
    wgp_mode: bool = True,
) -> Occupancy:
    """Return the theoretical occupancy of a kernel.

    Args:
        arch: The target, with or without features.
        wave_size: Lanes per wave: 64 on CDNA, 32 or 64 on RDNA.
        vgprs: VGPRs per wave; with ``agprs`` 0 the sum of both, as in a code object's ``.vgpr_count``.
        agprs: AGPRs per wave (gfx90a and later CDNA), if not included in ``vgprs``.
        sgprs: SGPRs per wave, including VCC, as in ``.sgpr_count``; without effect on RDNA.
        lds_bytes: Bytes of LDS per block, static and dynamic.
        block: Threads per block; None ignores whole blocks, LDS and barriers.
        wgp_mode: On RDNA, whether blocks may use the whole WGP (the compilers' default, off with ``-mcumode``).

    Raises:
        ArchError: When the architecture is unknown.
        OccupancyError: When a number is impossible there.
    """
    chip = architecture(arch)
    _check(chip, wave_size, vgprs, agprs, sgprs, lds_bytes, block)
    # AGPRs follow the VGPRs in one register file (LLVM, "User Guide for AMDGPU Backend": accum_offset).
    total = _up(vgprs, chip.agpr_granule) + agprs if agprs else vgprs
    kernel = _Kernel(chip, wave_size, block, chip.cus_per_wgp if wgp_mode else 1, total, sgprs, lds_bytes)
    limits = _limits(kernel)
    binding = min(limits, key=lambda limit: limit.waves)
    bound_by = tuple(limit.name for limit in limits if limit.waves == binding.waves)
    step = _next_step(kernel, binding)
    unit = "WGP" if kernel.cus == 2 else "CU"
    return Occupancy(
        arch=chip.name, wave_size=wave_size, block=block, vgprs=total, waves_per_simd=binding.waves,
        max_waves_per_simd=chip.waves_per_simd, lost_wave_slots=_plain(chip.waves_per_simd - binding.waves),
        occupancy_pct=_plain(100 * binding.waves / chip.waves_per_simd), blocks=binding.blocks, unit=unit,
        limits=limits, binding=binding, bound_by=bound_by, next_step=step, slack=_slack(kernel, binding),
        sentence=_sentence(kernel, binding, bound_by, step, unit),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel on its architecture; ``cus`` is the number of CUs that one block can use."""

    arch: Architecture
    wave_size: int
    block: int | None
    cus: int
    vgprs: int
    sgprs: int
    lds_bytes: int

    @property
    def simds(self) -> int:
        return self.cus * self.arch.simds_per_cu

    @property
    def waves(self) -> int:
        """Waves per block."""
        return -(-(self.block or self.wave_size) // self.wave_size)

    @property
    def vgpr_granule(self) -> int:
        return self.arch.vgpr_granule[self.wave_size]


def _check(
    arch: Architecture, wave_size: int, vgprs: int, agprs: int, sgprs: int, lds_bytes: int, block: int | None
) -> None:
    """Reject numbers that are impossible on that architecture."""
    name = arch.name
    if wave_size not in arch.wave_sizes:
        sizes = " or ".join(str(size) for size in arch.wave_sizes)
        raise OccupancyError(f"{name} has no waves of {wave_size} lanes: its waves have {sizes}")
    if agprs and not arch.max_agprs:
        raise OccupancyError(f"{name} has no AGPRs, but the kernel has {agprs}")
    most = arch.max_vgprs if agprs else arch.max_vgprs + arch.max_agprs
    # Profilers and hand-written metadata (aiter's) state the registers allocated to a wave, not those it uses.
    given = _up(arch.max_sgprs, arch.sgpr_granule or _SGPRS_OF_AN_RDNA_WAVE)
    for what, number, limit in (
        ("VGPRs", vgprs, most), ("AGPRs", agprs, arch.max_agprs), ("SGPRs", sgprs, given),
        ("threads in a block", block, arch.max_block),
    ):  # fmt: skip
        if number is not None and not 0 <= number <= limit:
            raise OccupancyError(f"{number} {what} are impossible: {name} has 0 to {limit}")
    if block == 0:
        raise OccupancyError("a block of 0 threads is impossible")
    if lds_bytes < 0:
        raise OccupancyError(f"{lds_bytes} bytes of LDS are impossible")
    if lds_bytes and block is None:
        raise OccupancyError("LDS is allocated per block: give its threads")


def _limits(kernel: _Kernel) -> tuple[Limit, ...]:
    """Return the limit of each resource; the first of equal ones binds."""
    arch = kernel.arch

    def per_wave(name: str, used: int, available: int) -> Limit:
        waves = min(available // used, arch.waves_per_simd)
        if kernel.block is None:
            return Limit(name, waves, None, used, available)
        blocks = waves * kernel.simds // kernel.waves
        return Limit(name, _plain(blocks * kernel.waves / kernel.simds), blocks, used, available)

    def per_block(name: str, used: int, available: int, blocks: int) -> Limit:
        waves = min(blocks * kernel.waves / kernel.simds, arch.waves_per_simd)
        return Limit(name, _plain(waves), blocks, used, available)

    limits = [per_wave(_SLOTS, 1, arch.waves_per_simd)]
    vgprs = max(_up(kernel.vgprs, kernel.vgpr_granule), kernel.vgpr_granule)
    limits.append(per_wave(_VGPRS, vgprs, arch.vgprs[kernel.wave_size]))
    if arch.sgprs:
        sgprs = max(_up(kernel.sgprs, arch.sgpr_granule), arch.sgpr_granule) + arch.trap_sgprs
        limits.append(per_wave(_SGPRS, sgprs, arch.sgprs))
    if kernel.lds_bytes:
        lds, available = _up(kernel.lds_bytes, arch.lds_granule_bytes), kernel.cus * arch.lds_bytes
        fits = kernel.lds_bytes <= arch.lds_block_bytes
        limits.append(per_block(LDS, lds, available, available // lds if fits else 0))
    if kernel.block is not None and kernel.waves > 1:
        barriers = kernel.cus * arch.blocks_per_cu
        limits.append(per_block(_BARRIERS, 1, barriers, barriers))
    return tuple(limits)


def _most(kernel: _Kernel, blocks: int | None, waves: int) -> dict[str, int]:
    """Return the maximum of each resource for this many blocks (or, without a block, waves per SIMD)."""
    arch = kernel.arch
    if blocks is not None:
        waves = -(-blocks * kernel.waves // kernel.simds)
    granule = kernel.vgpr_granule
    most_vgprs = min(arch.vgprs[kernel.wave_size] // waves // granule * granule, arch.max_vgprs + arch.max_agprs)
    most = {_VGPRS: most_vgprs}
    if arch.sgprs:
        sgprs = (arch.sgprs // waves - arch.trap_sgprs) // arch.sgpr_granule * arch.sgpr_granule
        most[_SGPRS] = min(sgprs, max(arch.max_sgprs, kernel.sgprs))  # more may be allocated than code can address
    if blocks is not None:
        lds = kernel.cus * arch.lds_bytes // blocks // arch.lds_granule_bytes * arch.lds_granule_bytes
        most[LDS] = min(lds, arch.lds_block_bytes)
    return most


def _next_step(kernel: _Kernel, binding: Limit) -> OccupancyStep | None:
    """Return the smallest reduction of registers and LDS that adds a wave or a block."""
    blocks = None if binding.blocks is None else binding.blocks + 1
    waves = int(binding.waves) + 1 if blocks is None else -(-blocks * kernel.waves // kernel.simds)
    if waves > kernel.arch.waves_per_simd:
        return None
    now = {_VGPRS: kernel.vgprs, _SGPRS: kernel.sgprs, LDS: kernel.lds_bytes}
    most = _most(kernel, blocks, waves)
    needs = tuple(Need(name, now[name], limit) for name, limit in most.items() if now[name] > limit)
    met = {need.resource: need.at_most for need in needs}
    after = replace(
        kernel, vgprs=met.get(_VGPRS, kernel.vgprs), sgprs=met.get(_SGPRS, kernel.sgprs),
        lds_bytes=met.get(LDS, kernel.lds_bytes),
    )  # fmt: skip
    won = min(_limits(after), key=lambda limit: limit.waves)
    return OccupancyStep(won.waves, won.blocks, needs)


def _slack(kernel: _Kernel, binding: Limit) -> dict[str, int]:
    """Return how much each resource may grow at the current occupancy."""
    if not binding.waves:
        return {}
    most = _most(kernel, binding.blocks, int(binding.waves))
    now = {_VGPRS: kernel.vgprs, _SGPRS: kernel.sgprs, LDS: kernel.lds_bytes}
    return {name: limit - now[name] for name, limit in most.items()}


def _sentence(kernel: _Kernel, binding: Limit, bound_by: tuple[str, ...], step: OccupancyStep | None, unit: str) -> str:
    """Describe the theoretical result, in words that cannot be confused with a measured occupancy."""
    slots = kernel.arch.waves_per_simd
    if binding.waves == slots:
        allowing = "registers allow" if kernel.block is None else "registers, LDS and block size allow"
        return f"{allowing} all {slots} wave slots of a SIMD"
    if step is None:
        filled = (binding.blocks or 0) * kernel.waves
        return (
            f"at most {_waves(binding.waves)} of {slots}: blocks of {_waves(kernel.waves)} fit {filled} of the "
            f"{unit}'s {slots * kernel.simds} wave slots; only another block size gives more"
        )
    who, singular = " and ".join(bound_by), bound_by == (LDS,)
    if binding.blocks == 0:
        what = f"no block of {kernel.block} threads fits a {unit}: {who} {'allows' if singular else 'allow'} none"
    else:
        what = f"{who} {'binds' if singular else 'bind'} at {_waves(binding.waves)} of {slots}"
    return f"{what}: {' and '.join(_over(need) for need in step.needs)} over the step to {_waves(step.waves)}"


def _waves(number: float) -> str:
    return f"{number:g} wave{'' if number == 1 else 's'}"


def _over(need: Need) -> str:
    """Describe by how much a resource exceeds the step."""
    over = need.now - need.at_most
    if need.resource == LDS:
        return f"{over} bytes of LDS"
    return f"{over} {need.resource if over > 1 else need.resource[:-1]}"


def _plain(number: float) -> float:
    """Return a whole number as an int, so that it prints as one."""
    return int(number) if number == int(number) else number


def _up(number: int, granule: int) -> int:
    return -(-number // granule) * granule
