"""Count the cache lines touched by global accesses in a hot loop, from the addresses of the lanes."""

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
    """The global loads and stores of one iteration, with all lanes active.

    Lanes separated by an unknown number (a row's pitch) are assumed to be in different lines. Where an access starts
    within a line is unknown: the best case is assumed.

    Attributes:
        accesses: Instructions with one address per lane.
        unknown: Number of accesses whose addresses cannot be derived from the code.
        line_bytes: Bytes per line: 64 on gfx9, otherwise 128.
        factor: Lines that waves touch over the minimum for the bytes moved, over all known accesses of all waves of a
            block; None if none is known.
        worst: The largest factor of one access; None if none is known.
        worst_lines: Lines that the first wave touches in that access.
        worst_stride: Bytes from lane to lane in that access, if constant.
        uniform: Known loads with the same address in all lanes, which a scalar load could do.
        own_lines: Known accesses in which each lane touches a different line.
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
    """Return the cache lines touched on a path through a kernel; None without global accesses.

    Args:
        function: The kernel.
        path: Indices of its basic blocks.
        arch: The GPU.
        values: Values of its registers.
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
    """Return the operand with the per-lane address; "0" if there is none, "" if unknown."""
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
    """Return per wave the number of lines touched, and the minimum for the bytes moved."""
    shape = (-1, address.wave_size)
    words = address.words.reshape(shape)
    words = (words - words[:, :1] + 0x80000000 & 0xFFFFFFFF) - 0x80000000
    waves = zip(words.tolist(), address.labels.reshape(shape).tolist(), strict=True)
    return [_of_wave(tuple(places), tuple(labels), width, line) for places, labels in waves]


@lru_cache(maxsize=1 << 12)
def _of_wave(places: tuple[int, ...], labels: tuple[int, ...], width: int, line: int) -> tuple[int, int]:
    """Return those numbers for one wave, from its lanes' addresses and groups; only lanes in a group share lines."""
    lines = moved = 0
    for label in set(labels):
        starts = np.unique([place for place, other in zip(places, labels, strict=True) if other == label])
        starts -= starts[0]
        first, last = starts // line, (starts + width - 1) // line
        lines += len(np.unique(np.concatenate([first, last])))
        moved += int(np.minimum(np.diff(starts, append=starts[-1] + width), width).sum())
    return lines, min(lines, -(-moved // line))


def _stride(address: Lanes) -> int | None:
    """Return the bytes from lane to lane if constant in the first wave, otherwise None."""
    if address.groups is not None:
        return None
    steps = np.unique(np.diff(address.words[: address.wave_size]))
    return int(steps[0]) if len(steps) == 1 else None
