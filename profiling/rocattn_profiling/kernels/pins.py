"""Pins: each kernel's numbers as last accepted in review, with one file per architecture, a few lines per kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import decoded, write_together
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.model.cost import LoopCost
from rocattn_profiling.kernels.read.instructions import idioms_weight
from rocattn_profiling.kernels.shipped import natural

SCHEMA = 1
_A_LINE = 5  # numbers of the order per line
Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


_CONFLICT = re.compile(rb"^(<{7} |={7}$|>{7} )", re.MULTILINE)


class PinError(RocattnError):
    """Raised when a pin file cannot be read; one line."""


class OrderPin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The order of the hot loop's instructions, rounded: `Schedule`, `LdsConflicts`, `CacheLines` and `LoopCost`."""

    read_distance: Amount | None = None
    barriers: Count = 0
    read_conflicts: Amount | None = None
    write_conflicts: Amount | None = None
    loads_in_flight: Count = 0
    bytes_in_flight: Count = 0
    load_distance: Amount | None = None
    cache_lines: Amount | None = None
    idioms: tuple[str, ...] = ()
    exposed_cycles: Amount | None = None

    @property
    def idiom_count(self) -> int:
        """Number of costly code kinds."""
        return len(self.idioms)

    @property
    def idioms_weight(self) -> int:
        """Total weight of the costly code kinds."""
        return idioms_weight(self.idioms)


# Unknown names are rejected: a number under a misspelled name would never be compared.
class LoopPin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One iteration of the hot loop, per wave.

    Attributes:
        cycles: Issue cycles, in total ("all") and by kind of instruction.
        matrix_flops, vector_flops, global_bytes: Its work.
        loads: Bytes per lane -> global loads of that width.
        bytes: Approximate code size.
        step: Increment of the loop counter per iteration.
        trips: Trip count, if constant.
        order: The order of its instructions.
    """

    cycles: dict[str, Amount]
    matrix_flops: Count = 0
    vector_flops: Count = 0
    global_bytes: Count = 0
    loads: dict[int, Count] = {}
    bytes: Count = 0
    step: int | None = None
    trips: Count | None = None
    order: OrderPin | None = None

    @property
    def flops(self) -> int:
        """FLOPs of matrix products if there are any, otherwise of vector instructions."""
        return self.matrix_flops or self.vector_flops

    @property
    def load_width(self) -> float | None:
        """Average bytes per lane and load; None without loads."""
        count = sum(self.loads.values())
        return sum(width * number for width, number in self.loads.items()) / count if count else None

    @property
    def flops_per_byte(self) -> float | None:
        """FLOPs of matrix products per byte of global memory; None if either is 0."""
        return self.matrix_flops / self.global_bytes if self.matrix_flops and self.global_bytes else None


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The compared numbers of one kernel; see `KernelFacts`. ``blocks`` is per CU or WGP."""

    choices: str = ""
    vgprs: Count
    agprs: Count = 0
    sgprs: Count
    vgpr_spills: Count = 0
    sgpr_spills: Count = 0
    scratch_bytes: Count = 0
    lds_bytes: Count = 0
    block: Count
    lost_wave_slots: float | None = None
    blocks: Count | None = None
    loop: LoopPin | None = None
    code_bytes: Count = 0


class Pins(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pins of one architecture.

    Attributes:
        schema: Version of the file format.
        arch, compiler: Target and compiler of the kernels; numbers from different compilers are not comparable.
        rates: Version of the instruction-cost table.
        kernels: Name of a kernel -> its pin.
    """

    schema: int = SCHEMA
    arch: str
    compiler: str
    rates: str
    kernels: dict[str, Pin]


class _Schema(msgspec.Struct, frozen=True):
    schema: int = SCHEMA


def pin_of(facts: KernelFacts) -> Pin:
    """Return the compared numbers of a kernel."""
    loop = None
    if (cost := facts.loop) is not None:
        parts = {
            "matrix": cost.matrix_cycles, "vector": cost.vector_cycles, "memory": cost.memory_cycles,
            "scalar": cost.scalar_cycles, "other": cost.other_cycles,
        }  # fmt: skip
        cycles = {"all": cost.issue_cycles, **{name: value for name, value in parts.items() if value}}
        loop = LoopPin(
            cycles={name: round(value, 2) for name, value in cycles.items()}, matrix_flops=cost.matrix_flops,
            vector_flops=cost.vector_flops, global_bytes=cost.global_bytes,
            loads=dict(sorted(facts.global_loads.items(), reverse=True)), bytes=facts.loop_bytes or 0,
            step=cost.step, trips=cost.trips,
            order=_order_of(cost),
        )  # fmt: skip
    return Pin(
        choices=facts.choices, vgprs=facts.vgprs, agprs=facts.agprs, sgprs=facts.sgprs,
        vgpr_spills=facts.spills.vgprs, sgpr_spills=facts.spills.sgprs, scratch_bytes=facts.scratch_bytes,
        lds_bytes=facts.lds_bytes, block=facts.block, lost_wave_slots=facts.lost_wave_slots,
        blocks=facts.occupancy.blocks if facts.occupancy else None, loop=loop, code_bytes=facts.code_bytes,
    )  # fmt: skip


def _order_of(cost: LoopCost) -> OrderPin | None:
    schedule = cost.schedule
    if schedule is None:
        return None
    conflicts = (cost.lds.read_factor, cost.lds.write_factor) if cost.lds else (None, None)
    return OrderPin(
        read_distance=_rounded(schedule.read_distance, 2), barriers=cost.barriers,
        read_conflicts=_rounded(conflicts[0], 3), write_conflicts=_rounded(conflicts[1], 3),
        loads_in_flight=schedule.loads_in_flight or 0, bytes_in_flight=schedule.bytes_in_flight or 0,
        load_distance=_rounded(schedule.load_distance, 2),
        cache_lines=_rounded(cost.cache_lines.factor if cost.cache_lines else None, 3), idioms=schedule.idioms,
        exposed_cycles=_rounded(schedule.exposed_cycles, 0),
    )  # fmt: skip


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def pins_of(audit: Audit) -> list[Pins]:
    """Return an audit's numbers, one `Pins` per architecture.

    Raises:
        PinError: When the kernels of one architecture were compiled by different compilers.
    """
    by_arch = []
    for arch in audit.archs:
        kernels = [facts for facts in audit.kernels if facts.arch == arch]
        compilers = sorted({facts.compiler for facts in kernels})
        if len(compilers) != 1:
            raise PinError(f"the kernels for {arch} come from several compilers: {', '.join(compilers)}")
        pins = {facts.name: pin_of(facts) for facts in kernels}
        by_arch.append(Pins(arch=arch, compiler=compilers[0], rates=audit.rates, kernels=pins))
    return by_arch


def write_pins(folder: Path, pins: Iterable[Pins]) -> list[Path]:
    """Write one file per architecture, formatted so that a changed kernel is a changed line.

    Raises:
        RocattnError: When the folder cannot be written to.
    """
    return write_together({folder / f"{pin.arch}.json": _text(pin) for pin in pins}, committed=True)


def _text(pins: Pins) -> str:
    head = {"schema": pins.schema, "arch": pins.arch, "compiler": pins.compiler, "rates": pins.rates}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    kernels = [_block(name, pin) for name, pin in sorted(pins.kernels.items(), key=lambda item: _place(item[0]))]
    return "\n".join(["{", *lines, '  "kernels": {', ",\n".join(kernels), "  }", "}", ""])


def _block(name: str, pin: Pin) -> str:
    """Format a pin as short lines: variant and resources, then the hot loop's cycles, work and order."""
    values = _plain(msgspec.to_builtins(pin, str_keys=True))
    loop = values.pop("loop", {})
    what = {key: values.pop(key) for key in ("choices", "block", "code_bytes") if key in values}
    lines = [json.dumps(part)[1:-1] for part in (what, values) if part]
    if loop:
        cycles, order = loop.pop("cycles"), loop.pop("order", None)
        parts = [f'"loop": {{"cycles": {json.dumps(cycles)}']
        parts += [f"  {json.dumps(loop)[1:-1]}"] if loop else []
        if order is not None:
            named = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in order.items()]
            first, rest = ", ".join(named[:_A_LINE]), ", ".join(named[_A_LINE:])
            parts += [f'  "order": {{{first}', f"    {rest}}}"] if rest else [f'  "order": {{{first}}}']
        lines += [*parts[:-1], f"{parts[-1]}}}"]
    return f"    {json.dumps(name)}: {{\n      " + ",\n      ".join(lines) + "\n    }"


def _plain(value: Any) -> Any:
    """Convert whole floats to int, so that they are written without a fraction."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _place(name: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    kernel, _, variant = name.partition(" ")
    return kernel, natural(variant)


def read_pins(path: Path) -> Pins:
    """Read a pin file.

    Raises:
        PinError: When it is missing or invalid.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        remedy = "write it with `rocattn kernels audit --write-pins`, and commit it"
        raise PinError(f"there are no pins for {path.stem} ({path}): {remedy}") from error
    except OSError as error:
        raise PinError(f"cannot read {path}: {error.strerror}") from error
    anew = "write them again with `rocattn kernels audit --write-pins`"
    if _CONFLICT.search(data):
        raise PinError(f"{path} contains unresolved merge-conflict markers: take either side, then {anew}")
    try:
        # Checked first, because the names depend on the version.
        schema = decoded(data, _Schema).schema
        if schema != SCHEMA:
            raise PinError(f"{path} has pins of version {schema}, this tool reads {SCHEMA}: write them again")
        pins = decoded(data, Pins)
        json.loads(data, object_pairs_hook=_once)
    except ValueError as error:
        raise PinError(f"{path} is not a pin file: {error}: {anew}") from error
    if pins.arch != path.stem:
        raise PinError(f"{path} has the pins of {pins.arch}: rename it to match")
    for name, pin in pins.kernels.items():
        if pin.loop is not None and not pin.loop.cycles.get("all"):
            raise PinError(f"{path} is not a pin file: the loop of {name} has no total cycles: {anew}")
    return pins


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Reject duplicate names, which a merge may leave: the first would have no effect."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"{twice!r} appears twice")
