"""Whether two hot loops are the same loop, and how much work each does, so that costs are compared per unit of work."""

from __future__ import annotations

import math

from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.pins import LoopPin, Pin
from rocattn_profiling.kernels.read.instructions import CALL

SAME_WORK = 0.05  # how closely two measures of an iteration's work must agree to be the same factor


def work_factor(pin: Pin, now: Pin, *, division_known: bool = True) -> float:
    """Return how many times the previous work an iteration does, so that cycles are compared for the same work.

    If a kernel divides its problem differently, the factor is the ratio of FLOPs. If not, extra FLOPs are waste rather
    than work, unless the bytes loaded changed about as much (the loop was unrolled), or only one of the loops loads
    (the hot loop is another loop of the nest). Without FLOPs, the factor is the ratio of bytes loaded if stores grew
    with it, and otherwise the ratio of trip counts or steps.

    Args:
        pin: The numbers before.
        now: The numbers now.
        division_known: Whether the kernel's choices say how it divides its problem. They are unknown for other
            people's kernels: there, a changed number of matrix products means another tile (Triton's BLOCK_M).
    """
    old, new = pin.loop, now.loop
    assert old is not None
    assert new is not None
    before, after = (old.matrix_flops, new.matrix_flops) if old.matrix_flops else (old.vector_flops, new.vector_flops)
    loaded = [sum(width * count for width, count in loop.loads.items()) for loop in (old, new)]
    more = loaded[1] / loaded[0] if all(loaded) else 0.0
    counted = _counted(old, new)
    if not before and not after:
        moved = new.global_bytes / old.global_bytes if old.global_bytes else 0.0
        if not any(loaded) and moved and not _counts(old, new):
            return moved  # it only stores
        return more if more and abs(moved / more - 1) < SAME_WORK else counted
    if not before or not after or before == after:
        return 1.0
    factor = after / before
    if pin.choices != now.choices or (old.matrix_flops and not division_known):
        return factor
    if not more:
        return factor if any(loaded) or abs(counted / factor - 1) < SAME_WORK else 1.0
    apart = abs(math.log(more / factor))
    return more if apart < SAME_WORK else factor if apart <= abs(math.log(factor)) / 2 else counted


def _counted(old: LoopPin, new: LoopPin) -> float:
    """Return the work factor from trip counts or steps; 1 if the growth in cycles does not support it.

    The compiler chooses what a loop counts: iterations, elements or bytes.
    """
    if not _counts(old, new):
        return 1.0
    factor = old.trips / new.trips if old.trips and new.trips else abs((new.step or 1) / (old.step or 1))
    grown = [
        new.cycles[kind] / old.cycles[kind] for kind in ("all", "memory") if kind in old.cycles.keys() & new.cycles
    ]
    apart = min(abs(math.log(each / factor)) for each in grown)
    return factor if apart <= abs(math.log(factor)) / 2 else 1.0


def _counts(old: LoopPin, new: LoopPin) -> bool:
    """Return whether the trip counts or the steps of both loops are known."""
    return bool((old.trips and new.trips) or (old.step and new.step))


def why_apart(old: LoopPin, new: LoopPin) -> str:
    """Return why two hot loops are not the same loop; "" if they may be."""
    if CALL in idioms_of(old) ^ idioms_of(new):
        return "only one side's calls a function, and called code is not counted"
    if 1 in {old.trips, new.trips} and None in {old.trips, new.trips}:
        return "one side has no loop, and the other's trip count is unknown"
    if bool(old.loads) != bool(new.loads) and old.flops and new.flops and abs(new.flops / old.flops - 1) > SAME_WORK:
        return "only one side's loads: they are not the same loop of a nest"
    return ""


def narrowing(old: LoopPin, new: LoopPin, factor: float) -> float:
    """Return 1 if global loads got narrower, so that more of them fetch the same; -1 if wider; 0 otherwise."""
    before, after = old.load_width, new.load_width
    if not before or not after:
        return 0
    more = sum(new.loads.values()) / (sum(old.loads.values()) * factor)
    limit = METRICS["global loads"].percent / 100
    if after < before * (1 - limit) and more > 1 + limit:
        return 1
    return -1 if after > before * (1 + limit) and more < 1 - limit else 0


def idioms_of(loop: LoopPin) -> set[str]:
    """Return the kinds of a loop's costly instructions."""
    return set(loop.order.idioms) if loop.order else set()
