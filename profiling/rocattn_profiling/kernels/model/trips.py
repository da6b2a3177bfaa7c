"""Find how a loop counts: the step of its counter, and its trip count if constant."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn_profiling.kernels.model.lanes import LaneValues, plain_name, registers_of
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction

if TYPE_CHECKING:
    from rocattn_profiling.kernels.model.lanes import Register, Site

_MOST_TRIPS = 4096


@dataclass(frozen=True, slots=True)
class Count:
    """How a loop counts.

    Attributes:
        step: Increment of the loop counter per iteration, in the compiler's unit.
        trips: Trip count, if constant and at most 4096.
    """

    step: int
    trips: int | None = None


def count_of(function: AssemblyFunction, header: int, body: Collection[int], values: LaneValues) -> Count | None:
    """Return how a loop counts; None if unknown.

    Args:
        function: The kernel.
        header: The first block of each iteration.
        body: The loop's blocks, inner loops included.
        values: Values of the kernel's registers.
    """
    exits = [block for block in sorted(body) if not set(function.blocks[block].successors) <= set(body)]
    for block in exits:
        instructions = function.blocks[block].instructions
        for index in range(len(instructions) - 1, -1, -1):
            match = _COMPARE.match(instructions[index].mnemonic)
            if match is None:
                continue
            operands = [part.strip() for part in instructions[index].operands.split(",")][-2:]
            for place, text in enumerate(operands):
                if (found := _step(function, text, body, values)) is None:
                    continue
                step, start, added = found
                first, bound = _first(values, start, header, body), _number(values, operands[1 - place], (block, index))
                branch = instructions[-1].mnemonic
                if first is None or bound is None or len(exits) > 1 or not branch.startswith("s_cbranch_scc"):
                    return Count(step)
                stays = (function.blocks[block].successors[-1] in body) == branch.endswith("1")
                compare = _CONDITIONS[match[1]]
                after = (block, index) > added if block == added[0] else block != header

                def goes_on(value: int) -> bool:
                    pair = (value, bound) if place == 0 else (bound, value)  # noqa: B023  called at once
                    return bool(compare(*pair)) == stays  # noqa: B023

                return Count(step, _trips(first + step * after, step, goes_on, at_start=block == header != added[0]))
            break
    return None


def _trips(value: int, step: int, goes_on: Callable[[int], bool], *, at_start: bool) -> int | None:
    """Return the number of iterations until a comparison ends the loop; with ``at_start`` it precedes the iteration."""
    for trips in range(not at_start, _MOST_TRIPS + 1):
        if not goes_on(value):
            return trips
        value += step
    return None


def _step(
    function: AssemblyFunction, text: str, body: Collection[int], values: LaneValues
) -> tuple[int, str, Site] | None:
    """Return a register's increment per iteration, the register that it is added to, and where that is written."""
    seen: list[Register] = []  # pairs are represented by the low half
    step, written = 0, (-1, -1)
    while (registers := registers_of(text)) and registers[0] not in seen and len(seen) < 3:
        seen.append(registers[0])
        sites = values.written_in(registers[0], body)
        if len(sites) != 1:
            return None
        block, index = sites[0]
        source, added = _summands(function.blocks[block].instructions[index], registers[0], sites[0], values)
        if source is None or (step and added):
            return None
        if written[0] < 0:
            written = sites[0]
        step, text = step or added, source
    return (step, text, written) if step and registers and registers[0] in seen else None


def _summands(instruction: Instruction, register: Register, site: Site, values: LaneValues) -> tuple[str | None, int]:
    """Return the register and the constant added by a sum, 0 for a copy; None for anything else."""
    for mnemonic, operands in instruction.halves:
        parts = [part.strip() for part in operands.split(",")]
        if registers_of(parts[0])[:1] != (register,):
            continue
        name = plain_name(mnemonic)
        if name in {"s_mov_b32", "v_mov_b32", "s_mov_b64", "v_mov_b64"}:
            return parts[1], 0
        if name in {"s_addk_i32", "s_addk_co_i32"}:
            return parts[0], _signed(int(parts[1], 0), 16)
        if match := _SUM.match(name):
            for source, other in (parts[-2:], parts[:-3:-1]):
                number = _number(values, other, site)
                if registers_of(source) and number is not None and (other == parts[-1] or match[1] == "add"):
                    return source, number if match[1] == "add" else -number
    return None, 0


def _first(values: LaneValues, text: str, header: int, body: Collection[int]) -> int | None:
    """Return the loop counter's initial value; None if unknown."""
    numbers = {_number(values, text, site) for site in values.before(header) if site[0] not in body}
    return numbers.pop() if len(numbers) == 1 else None


def _number(values: LaneValues, text: str, site: Site) -> int | None:
    value = values.operand(text, site)
    return _signed(int(value.words[0]), 32) if value and value.exact and value.uniform else None


def _signed(number: int, bits: int) -> int:
    return (number & (1 << bits) - 1 ^ 1 << bits - 1) - (1 << bits - 1)


_COMPARE = re.compile(r"[sv]_cmpk?_(eq|lg|ne|lt|le|gt|ge)_[iu](?:32|64)")
_SUM = re.compile(r"[sv]_(add|sub)(?:_co)?_[iu](?:32|64)$")
_CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "lg": operator.ne, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge,
}  # fmt: skip
