"""Cache lines that the accesses of global memory in a hot loop touch, from the addresses of the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rocattn_profiling.kernels.model.lanes import Lanes, LaneValues
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction
from rocattn_profiling.kernels.read.instructions import Access, Pipe


@dataclass(frozen=True, slots=True)
class CacheLines:
    """The loads and stores of global memory of one iteration, with every lane active.

    Lanes that an unknown number tells apart (a row's pitch) are taken to be in different lines. Nothing says where an
    access begins in a line: the best place is taken.

    Attributes:
        accesses: Instructions of one address for each lane.
        unknown: Those of them whose addresses the code does not tell.
        line_bytes: Of a line: 64 on gfx9, else 128.
        factor: Lines that a wave touches over the least that hold as many bytes, over all known accesses of all waves
            of a block; None if none is known.
        worst: The largest factor of one access; None if none is known.
        worst_lines: Lines that the first wave touches in it.
        worst_stride: Bytes from lane to lane in it, if that is a constant.
        uniform: Known loads whose lanes all have one address, as a scalar load would do.
        own_lines: Known accesses in which each lane has a line of its own.
    """

    accesses: int
    unknown: int
    line_bytes: int
    factor: float | None
    worst: float | None
    worst_lines: int
    worst_stride: int | None
    own_lines: int
    uniform: int


def cache_lines(function: AssemblyFunction, path: Sequence[int], arch: str, values: LaneValues) -> CacheLines | None:
    """Return the lines on a way through a kernel; None without accesses of global memory.

    Args:
        function: The kernel.
        path: Its blocks of instructions.
        arch: The GPU.
        values: Of its registers.
    """
    line = 64 if arch.startswith("gfx9") else 128
    accesses = unknown = own = uniform = lines = least = worst_lines = 0
    worst, stride = None, None
    for block in path:
        for index, instruction in enumerate(function.blocks[block].instructions):
            operation = instruction.operations[0]
            if operation.unit is not Pipe.GLOBAL or operation.access not in {Access.LOAD, Access.STORE}:
                continue
            accesses += 1
            text = _address(instruction)
            address = values.grouped_operand(text, (block, index)) if text and function.is_kernel else None
            if address is None or not operation.width:
                unknown += 1
                continue
            uniform += operation.access is Access.LOAD and address.uniform and text != "0"
            by_wave = _touched(address, operation.width, line)
            touched, needed = (sum(each) for each in zip(*by_wave, strict=True))
            lines, least = lines + touched, least + needed
            own += by_wave[0][0] >= address.wave_size
            if worst is None or touched / needed > worst:
                worst, worst_lines, stride = touched / needed, by_wave[0][0], _stride(address)
    if not accesses:
        return None
    return CacheLines(
        accesses=accesses, unknown=unknown, line_bytes=line, factor=lines / least if least else None, worst=worst,
        worst_lines=worst_lines, worst_stride=stride, own_lines=own, uniform=uniform,
    )  # fmt: skip


def _address(instruction: Instruction) -> str:
    """Return the operand that tells the lanes apart; "0" if none does, "" if it is not known."""
    mnemonic, parts = instruction.mnemonic, [part.split() for part in instruction.operands.split(",")]
    operands = [part[0] for part in parts if part]
    modifiers = {word for part in parts for word in part[1:]}
    store = instruction.operations[0].access is Access.STORE
    to_lds = "_load_lds_" in mnemonic or "lds" in modifiers
    if mnemonic.startswith(("global_", "flat_")):
        place = 0 if store or to_lds else 1
    elif mnemonic.startswith("buffer_") and "idxen" not in modifiers:
        if "offen" not in modifiers:
            return "0"
        place = 0 if to_lds else 1
    else:
        return ""
    return operands[place] if place < len(operands) else ""


def _touched(address: Lanes, width: int, line: int) -> list[tuple[int, int]]:
    """Return for each wave the lines that it touches, and the least that hold what it moves."""
    shape = (-1, address.wave_size)
    words = address.words.reshape(shape)
    words = (words - words[:, :1] + 0x80000000 & 0xFFFFFFFF) - 0x80000000
    waves = zip(words.tolist(), address.labels.reshape(shape).tolist(), strict=True)
    return [_of_wave(tuple(places), tuple(labels), width, line) for places, labels in waves]


@lru_cache(maxsize=1 << 12)
def _of_wave(places: tuple[int, ...], labels: tuple[int, ...], width: int, line: int) -> tuple[int, int]:
    """Return the same of one wave, from the places of its lanes and what they must share to be near each other."""
    lines = moved = 0
    for label in set(labels):
        starts = np.unique([place for place, other in zip(places, labels, strict=True) if other == label])
        starts -= starts[0]
        first, last = starts // line, (starts + width - 1) // line
        lines += len(np.unique(np.concatenate([first, last])))
        moved += int(np.minimum(np.diff(starts, append=starts[-1] + width), width).sum())
    return lines, min(lines, -(-moved // line))


def _stride(address: Lanes) -> int | None:
    """Return the bytes from each lane to the next, if they are the same for all of the first wave."""
    if address.groups is not None:
        return None
    steps = np.unique(np.diff(address.words[: address.wave_size]))
    return int(steps[0]) if len(steps) == 1 else None
