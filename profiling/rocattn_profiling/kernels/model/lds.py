"""Count bank conflicts of LDS accesses in a hot loop, from the addresses of the lanes and ``lds_banks.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.lds_banks import READ, TRANSPOSING_READ, WRITE, LdsAccess, lds_access
from rocattn_profiling.kernels.model.lanes import Lanes, LaneValues
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction
from rocattn_profiling.kernels.read.instructions import Access, Pipe

_BASES = ("measured", "documented", "assumed")


@dataclass(frozen=True, slots=True)
class LdsConflicts:
    """The LDS accesses of one iteration, with all lanes active.

    Attributes:
        reads, writes: Number of instructions.
        unknown: Number of accesses whose addresses cannot be derived from the code.
        read_factor, write_factor: Cycles of the known accesses over their cycles without conflicts, over all waves of
            a block; None if there are none.
        read_basis, write_basis: Weakest evidence for which lanes are served together: "measured", "documented" or
            "assumed"; "" where no address is known.
    """

    reads: int
    writes: int
    unknown: int
    read_factor: float | None
    write_factor: float | None
    read_basis: str
    write_basis: str


def lds_conflicts(
    function: AssemblyFunction, path: Sequence[int], arch: str, values: LaneValues
) -> LdsConflicts | None:
    """Return the conflicts on a path through a kernel; None without LDS accesses or known lane groups.

    Args:
        function: The kernel.
        path: Indices of its basic blocks.
        arch: The GPU.
        values: Values of its registers.
    """
    number = {READ: 0, WRITE: 0}
    cycles = {READ: [0, 0], WRITE: [0, 0]}
    bases: dict[str, set[str]] = {READ: set(), WRITE: set()}
    unknown = 0
    for block in path:
        for index, instruction in enumerate(function.blocks[block].instructions):
            if (direction := _direction(instruction)) is None:
                continue
            side = WRITE if direction == WRITE else READ
            number[side] += 1
            parts = list(_parts(instruction))
            address = values.operand(_address(instruction, side), (block, index)) if function.is_kernel else None
            try:
                access = lds_access(arch, function.wave_size, direction, parts[0][1])
            except (ArchError, ValueError):
                return None
            if address is None:
                unknown += 1
                continue
            bases[side].add(access.basis)
            for offset, _ in parts:
                taken, least = _cycles(access, address, offset)
                cycles[side][0] += taken
                cycles[side][1] += least
    if not any(number.values()):
        return None
    return LdsConflicts(
        reads=number[READ], writes=number[WRITE], unknown=unknown, read_factor=_factor(*cycles[READ]),
        write_factor=_factor(*cycles[WRITE]), read_basis=max(bases[READ], key=_BASES.index, default=""),
        write_basis=max(bases[WRITE], key=_BASES.index, default=""),
    )  # fmt: skip


def _factor(taken: int, least: int) -> float | None:
    return taken / least if least else None


def _direction(instruction: Instruction) -> str | None:
    operation = instruction.operations[0]
    if operation.unit is not Pipe.LDS or not operation.width:
        return None
    if operation.access is Access.STORE:
        return WRITE
    if operation.access is Access.LOAD:
        return TRANSPOSING_READ if "_tr_" in instruction.mnemonic else READ
    return None


def _address(instruction: Instruction, side: str) -> str:
    """Return the address operand: the first of a write, the second of a read."""
    operands = [part.split()[0] for part in instruction.operands.split(",") if part.split()]
    place = 0 if side == WRITE else 1
    return operands[place] if place < len(operands) else ""


def _parts(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """Yield (offset, bytes per lane) of each access of an instruction: two if it has two offsets."""
    width = instruction.operations[0].width
    offsets = {name: int(value, 0) for name, value in _OFFSET.findall(instruction.operands)}
    if not _TWO.search(instruction.mnemonic):
        yield offsets.get("offset", 0), width
        return
    unit = width // 2 * (64 if "st64" in instruction.mnemonic or "stride64" in instruction.mnemonic else 1)
    for name in ("offset0", "offset1"):
        yield offsets.get(name, 0) * unit, width // 2


_OFFSET = re.compile(r"\b(offset[01]?):(\w+)")
_TWO = re.compile(r"ds_(?:read|write)2|_2addr")


def _cycles(access: LdsAccess, address: Lanes, offset: int) -> tuple[int, int]:
    """Return an access's total cycles over all waves, with and without conflicts."""
    waves = (address.words + offset).reshape(-1, address.wave_size)
    waves = waves - (waves[:, :1] & ~3)  # a shift by whole words keeps the conflicts
    by_wave = [_of_wave(access, tuple(wave)) for wave in waves.tolist()]
    return sum(taken for taken, _ in by_wave), sum(least for _, least in by_wave)


@lru_cache(maxsize=1 << 12)
def _of_wave(access: LdsAccess, addresses: tuple[int, ...]) -> tuple[int, int]:
    return access.cycles(dict(enumerate(addresses)))
