"""The occupancy that LLVM prints for a kernel, which is not always what fits the hardware.

The rules are those of LLVM's main branch of mid-2026: GCNSubtarget::computeOccupancy, as llvm-calc-occupancy prints.
LLVM 22 differs in two: it takes LDS as asked for, in bytes, and has a coarser table for SGPRs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocattn_profiling.base.gpus import Architecture


def llvm_waves_per_simd(
    arch: Architecture,
    *,
    wave_size: int,
    vgprs: int,
    sgprs: int = 0,
    lds_bytes: int = 0,
    blocks: tuple[int, int] | None = None,
    wgp_mode: bool = True,
    trap_handler: bool = True,
) -> int:
    """Return the most waves on a SIMD, as LLVM counts them.

    Against the hardware, LLVM takes each limit on its own (no whole blocks under the registers' limit), rounds the
    waves of blocks up to the fullest SIMD, knows the block only as a range, and has half the granule of LDS on RDNA.

    Args:
        arch: The architecture.
        wave_size: Lanes of a wave.
        vgprs: Registers of a wave, AGPRs among them where they share the file.
        sgprs: Registers of a wave, VCC and the like among them.
        lds_bytes: LDS of a block.
        blocks: Threads of the smallest and the largest block ("amdgpu-flat-work-group-size"); None for 1 to 1024.
        wgp_mode: Whether a block may use both CUs of a WGP.
        trap_handler: Whether the system reserves SGPRs for one: amdhsa does.
    """
    smallest, largest = blocks or (1, arch.max_block)
    waves = [_from_blocks(arch, wave_size, smallest, largest, lds_bytes, wgp_mode=wgp_mode)]
    granule = arch.vgpr_granule[wave_size]
    if vgprs >= granule:
        waves.append(max(1, arch.vgprs[wave_size] // _up(vgprs, granule)))
    if arch.sgprs:
        given = _up(sgprs, arch.sgpr_granule) + (arch.trap_sgprs if trap_handler else 0)
        waves.append(max(1, arch.sgprs // max(given, 1)))
    return min(arch.waves_per_simd, *waves)


def _from_blocks(
    arch: Architecture, wave_size: int, smallest: int, largest: int, lds_bytes: int, *, wgp_mode: bool
) -> int:
    """Return the upper end of AMDGPUSubtarget::getOccupancyWithWorkGroupSizes."""
    cus = arch.cus_per_wgp if wgp_mode else 1
    simds = cus * arch.simds_per_cu
    slots = simds * arch.waves_per_simd
    by_lds = cus * arch.lds_bytes // max(1, _up(lds_bytes, arch.compiler_lds_granule_bytes))
    if by_lds == 0:
        return 1

    def fits(block: int) -> tuple[int, int]:
        waves = -(-block // wave_size)
        # A block of one wave needs no barrier.
        barriers = slots if waves == 1 else min(slots // waves, cus * arch.blocks_per_cu)
        return waves, min(barriers, by_lds)

    (least, most_blocks), (most, fewest_blocks) = fits(smallest), fits(largest)
    small, large = least * most_blocks, most * fewest_blocks
    waves = max(small, large)
    if large < small:
        # Larger blocks than the smallest may fill slots that it leaves empty.
        spare = (slots - most_blocks * least) // most_blocks
        waves = small + most_blocks * min(spare, most - least)
    return max(1, min(-(-waves // simds), arch.waves_per_simd))


def _up(number: int, granule: int) -> int:
    return -(-number // granule) * granule
