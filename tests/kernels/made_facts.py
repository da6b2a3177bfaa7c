"""Facts of kernels that no compiler made: one number at a time can be changed."""

import dataclasses

from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.facts import KernelFacts, Spills
from rocattn_profiling.kernels.model.cost import LoopCost, Work
from rocattn_profiling.kernels.model.occupancy import occupancy
from rocattn_profiling.kernels.model.schedule import Schedule

COMPILER = "clang version 22.1.8"


def order(**changes):
    """Return the order of a loop of 32 products."""
    values = {
        "products": 32.0, "own_overlap_pct": 40.0, "run": 8.0, "read_distance": 4.0,
        "read_waits": 4, "bare_read_waits": 0, "loads_in_flight": 8, "bytes_in_flight": 128, "load_distance": 16.0,
    }  # fmt: skip
    return Schedule(**(values | changes))


def loop(*, plain=300, matrix=64, loads=((16, 8),), flops=262144, scratch=0, schedule=None, **changes):
    """Return a loop of a wave of 32 lanes on gfx1100: cycles follow from the counts."""
    kinds = {"plain": Work(plain, float(plain)), "matrix": Work(matrix, 16.0 * matrix)}
    kinds |= {f"global_load_{width}B": Work(count, 4.0 * count) for width, count in loads}
    if scratch:
        kinds["scratch_load_4B"] = Work(scratch, 4.0 * scratch)
    kinds = {name: work for name, work in kinds.items() if work.instructions}
    cycles = {name: work.cycles for name, work in kinds.items()}
    memory = sum(value for name, value in cycles.items() if "_load_" in name)
    moved = sum(32 * width * count for width, count in loads)
    total = sum(cycles.values())
    known = {
        "kinds": kinds, "instructions": sum(work.instructions for work in kinds.values()), "issue_cycles": total,
        "matrix_cycles": cycles.get("matrix", 0.0), "vector_cycles": cycles.get("plain", 0.0), "memory_cycles": memory,
        "matrix_flops": flops if matrix else 0, "vector_flops": 64 * plain, "global_bytes": moved, "has_loop": True,
        "arch": "gfx1100", "loop": ".LBB0_1", "source": "", "bound_by": "matrix and vector", "lines": (), "notes": (),
        "gaps": (), "schedule": schedule, "lds": None,
        "cache_lines": None, "step": None, "trips": None, "others": (),
    }  # fmt: skip
    known |= changes
    return LoopCost(**{field.name: known.get(field.name, 0) for field in dataclasses.fields(LoopCost)})


def facts(
    *, vgprs=190, sgprs=60, lds=19216, block=128, vgpr_spills=0, sgpr_spills=0, scratch=0, compiler=COMPILER,
    cost=None, **changes,
):  # fmt: skip
    """Return a kernel of gfx1100: 190 VGPRs leave 8 waves a SIMD, 19216 bytes of LDS 6."""
    cost = cost or loop()
    values = {
        "kernel": "flash_attention", "variant": "f16 D=128", "choices": "WAVES=4", "arch": "gfx1100",
        "target": "gfx1100", "symbol": "flash_attention", "file": "hip/flash_attention.hip", "compiler": compiler,
        "wave_size": 32, "block": block, "vgprs": vgprs, "agprs": 0, "sgprs": sgprs,
        "spills": Spills(vgprs=vgpr_spills, sgprs=sgpr_spills, instructions=0), "scratch_bytes": scratch,
        "lds_bytes": lds, "kernarg_bytes": 64, "code_bytes": 20_000, "instructions": 3000, "loop": cost,
        "loop_bytes": 10_000,
        "occupancy": occupancy("gfx1100", wave_size=32, vgprs=vgprs, sgprs=sgprs, lds_bytes=lds, block=block),
    }  # fmt: skip
    return KernelFacts(**(values | changes))


def audit(*kernels, subject="head", rates="r1"):
    """Return an audit of these kernels."""
    return Audit(subject=subject, rates=rates, kernels=list(kernels))
