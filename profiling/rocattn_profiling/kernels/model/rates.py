"""Instruction costs in cycles from ``rates.toml``, by mnemonic, GPU and wave size.

They are throughputs: the cycles for which an instruction blocks others. Stalls (latency, full queues, cache misses,
bank conflicts, clock changes) are not included.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from rocattn.errors import RocattnError
from rocattn_profiling.kernels.read.assembly import Instruction
from rocattn_profiling.kernels.read.instructions import (
    Operation,
    Pipe,
    Role,
    classify,
    has_lane_exchange,
    integer,
    lane_flops,
)


class RatesError(RocattnError, ValueError):
    """Raised for a GPU or a wave size without known rates."""


class NoRatesError(RatesError):
    """Raised for an unknown GPU; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost and the work of an instruction of one wave.

    Attributes:
        kind: "matrix", "plain", "dual", "lds_load_16B", ...; see `kind_of`.
        unit: The unit that executes it.
        cycles: Cycles for which it keeps its unit busy.
        issue: Cycles for which it blocks the SIMD's vector issue (vector and matrix) or the wave (memory); otherwise
            `cycles`.
        peak_cycles: For matrix instructions, cycles of its FLOPs at the dense peak of their type; otherwise 0.
        known: Whether it has a rate; if not, it counts as a plain instruction of its unit.
        flops: FLOPs of matrix products, per wave.
        lane_flops, lane_bytes: FLOPs of vector instructions and bytes of memory instructions, per lane.
    """

    kind: str
    unit: Pipe
    cycles: float
    issue: float
    peak_cycles: float = 0
    known: bool = True
    flops: int = 0
    lane_flops: int = 0
    lane_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """How a memory unit moves data for one wave; see ``rates.toml``."""

    bytes_per_cycle: int
    shared_by: int
    least: int
    issue: int
    address: int = 0
    issue_per_dword: int = 0
    issue_with_vector_address: int = 0

    def cycles(self, lane_bytes: int, wave_size: int, *, vector_address: bool) -> tuple[float, float]:
        """Return the cycles for which an access blocks the unit, and the wave, by its bytes per lane."""
        busy = self.address + max(self.least, lane_bytes * wave_size / self.bytes_per_cycle)
        issue = self.issue + self.issue_per_dword * -(-lane_bytes // 4)
        return busy, issue + self.issue_with_vector_address * vector_address


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The cost of a matrix instruction; see ``rates.toml``."""

    cycles: float
    issue: float
    sparse: bool
    half_if_narrow: bool


@dataclass(frozen=True)
class Rates:
    """The rates of one GPU family for one wave size.

    Attributes:
        family: "cdna3", ….
        wave_size: Lanes per wave.
        cycles, issue: Kind of instruction -> cycles.
        memory: Unit ("lds", "global") and access ("load", "store", "atomic", "exchange") -> rates.
        products: `product_key` -> cost.
        peak: Element type -> FLOPs per cycle of the best dense product.
        one_cycle: Matches vector instructions that take one cycle instead of two, if there are any.
    """

    family: str
    wave_size: int
    cycles: Mapping[str, float]
    issue: Mapping[str, float]
    memory: Mapping[tuple[str, str], Memory]
    products: Mapping[tuple[str, ...], MatrixProduct]
    peak: Mapping[str, float]
    one_cycle: re.Pattern[str]
    _costs: dict[tuple[Any, ...], Cost] = field(default_factory=dict, repr=False, compare=False)

    def cost(self, instruction: Instruction) -> Cost:
        """Return the cost of an instruction."""
        key = (instruction.mnemonic, _traits(instruction), instruction.on_stack)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._cost(instruction)
        return cost

    def _cost(self, instruction: Instruction) -> Cost:
        mnemonic, operation = instruction.mnemonic, instruction.operations[0]
        if operation.unit is Pipe.MATRIX:
            return self._product(mnemonic, instruction.operands, operation.flops)
        if operation.unit in _MEMORY_UNITS:
            return self._access(instruction, operation)
        kind = kind_of(mnemonic, instruction.operands)
        cycles = self.cycles.get(kind)
        known = cycles is not None and operation.unit is not Pipe.OTHER
        if cycles is None:
            cycles = self.cycles["plain" if operation.unit is Pipe.VECTOR else "other"]
        issue = self.issue.get(kind, cycles)
        if mnemonic == "s_nop":  # s_nop 3 takes four issue slots (ISA documents: wait states, operand + 1)
            cycles = issue = cycles * (min(integer(instruction.operands.partition(" ")[0]) or 0, 127) + 1)
        elif kind != "cross_lane" and self.one_cycle.match(mnemonic):
            cycles = issue = 1
        flops = sum(map(lane_flops, instruction.mnemonics)) if operation.unit is Pipe.VECTOR else 0
        return Cost(kind, operation.unit, cycles, issue, known=known, lane_flops=flops)

    def _access(self, instruction: Instruction, operation: Operation) -> Cost:
        unit = "lds" if operation.unit is Pipe.LDS else "global"  # scratch is private global memory
        kind = _memory_kind(operation)
        access = operation.access.value if operation.access else "exchange" if kind.endswith("exchange") else "atomic"
        outside = _NO_SCALAR_ADDRESS.search(instruction.operands) is not None
        busy, issue = self.memory[unit, access].cycles(operation.width or 4, self.wave_size, vector_address=outside)
        known = not kind.endswith("other")
        return Cost(kind, operation.unit, busy, issue, known=known, lane_bytes=operation.width)

    def shared_by(self, unit: str) -> int:
        """Return how many SIMDs share a memory unit: "lds" or "global"."""
        return self.memory[unit, "load"].shared_by

    def _product(self, mnemonic: str, operands: str, flops: int) -> Cost:
        key = product_key(mnemonic)
        product = self.products.get(key)
        if product is None:
            best = max(self.peak.values(), default=0)
            cycles = flops / best if best else self.cycles["plain"]
            return Cost("matrix", Pipe.MATRIX, cycles, cycles, cycles, known=False, flops=flops)
        half = product.half_if_narrow and min(_format(operands, "cbsz"), _format(operands, "blgp")) >= _NARROW
        cycles = product.cycles / (2 if half else 1)
        peak = cycles if product.sparse or product.half_if_narrow else flops / self.peak[_element(key)]
        issue = product.issue if product.issue < product.cycles else cycles
        return Cost("matrix", Pipe.MATRIX, cycles, issue, peak, flops=flops)


@cache
def rates(arch: str, wave_size: int) -> Rates:
    """Return the rates for a GPU without features ("gfx942") and a wave size.

    Raises:
        RatesError: When there are none.
    """
    data = _data()
    family = next((name for name, chips in data["families"].items() if arch in chips), None)
    if family is None:
        known = ", ".join(chip for chips in data["families"].values() for chip in chips)
        text = f"no instruction rates are known for {arch or 'code without a target'}, only for {known}"
        raise NoRatesError(text)
    cycles, issue = {}, {}
    for entry in _of(family, data["instruction"]):
        for kind in entry["kinds"]:
            if str(wave_size) in entry["cycles"]:
                cycles[kind] = entry["cycles"][str(wave_size)]
                issue[kind] = entry.get("issue", entry["cycles"])[str(wave_size)]
    if not cycles:
        raise RatesError(f"{arch} has no waves of {wave_size} lanes")
    memory = {}
    for entry in _of(family, data["memory"]):
        numbers = {k: v for k, v in entry.items() if k not in {"families", "unit", "access", "source", "measured"}}
        memory.update({(entry["unit"], access): Memory(**numbers) for access in entry["access"]})
    products: dict[tuple[str, ...], MatrixProduct] = {}
    peak: dict[str, float] = {}
    for entry in _of(family, data["matrix"]):
        own = entry["cycles"]
        product = MatrixProduct(
            own, entry.get("issue", own), entry.get("sparse", False), entry.get("half_if_narrow", False)
        )
        for name in _expand(entry["names"]):
            key = product_key(f"v_{name}")
            products[key] = product
            if not product.sparse:
                element = "f8" if product.half_if_narrow else _element(key)  # the rate with 8-bit elements
                peak[element] = max(peak.get(element, 0), classify(f"v_{name}").flops / own)
    fast = data["wave64_in_one_cycle"]
    pattern = fast["pattern"] if family in fast["families"] and wave_size == _WAVE64 else r"(?!)"
    return Rates(family, wave_size, cycles, issue, memory, products, peak, re.compile(pattern))


def kind_of(mnemonic: str, operands: str = "") -> str:
    """Return the kind of an instruction, which is finer than its unit and role.

    Vector instructions are "plain", "packed", "dot", "move", "cross_lane", "conversion", "conversion_packed", "dual",
    "multiply", "integer64", "mad64", "f64", "transcendental", "transcendental_f64" or "scalar_transcendental"; memory
    instructions have unit, direction and bytes per lane ("lds_load_16B"); the others are "matrix" and unit names.
    """
    operation = classify(mnemonic)
    unit = operation.unit
    if unit in _MEMORY_UNITS:
        return _memory_kind(operation)
    if unit is not Pipe.VECTOR:
        return str(unit.value)
    if mnemonic.startswith("v_dual_"):
        return "dual"
    return _vector_kind(mnemonic, operation, exchanges=has_lane_exchange(operands))


def _memory_kind(operation: Operation) -> str:
    if operation.role is Role.CROSS_LANE:
        return f"{operation.unit.value}_exchange"
    if operation.access is None:
        return f"{operation.unit.value}_other"
    return f"{operation.unit.value}_{operation.access.value}_{operation.width}B"


def _vector_kind(mnemonic: str, operation: Operation, *, exchanges: bool) -> str:
    if operation.role is Role.TRANSCENDENTAL:
        return (
            "scalar_transcendental" if mnemonic.startswith("v_s_")
            else "transcendental_f64" if "_f64" in mnemonic else "transcendental"
        )  # fmt: skip
    if _F64.search(mnemonic):
        return "f64"
    if operation.role is Role.CROSS_LANE or exchanges:
        return "cross_lane"
    if operation.role is Role.CONVERSION:
        return "conversion_packed" if "_pk" in mnemonic else "conversion"
    if operation.role in {Role.MOVE, Role.PACKED}:
        return str(operation.role.value)
    return next((kind for kind, known in _PLAIN_KINDS if known.match(mnemonic)), "plain")


def product_key(mnemonic: str) -> tuple[str, ...]:
    """Return a matrix instruction's identity (family, result, shape, products, elements), the same for both names.

    gfx90a writes ``v_mfma_f32_32x32x4bf16_1k`` for what gfx942 calls ``v_mfma_f32_32x32x4_2b_bf16``.
    """
    match = _PRODUCT.match(mnemonic)
    if not match:
        return (mnemonic,)
    family, result, m, n, k, _, element = match.groups()
    flops = classify(mnemonic).flops
    several = flops // (2 * int(m) * int(n) * int(k))
    # bf16 products without "_1k" are different instructions, half as deep.
    return str(family), result, m, n, k, str(several), element.removesuffix("_1k")


_WAVE64 = 64
_NARROW = 2  # MFMA formats 0 and 1 have 8 bits, 2 to 4 have 6 and 4 (LLVM: MFMAScaleFormats)
_MEMORY_UNITS = frozenset({Pipe.LDS, Pipe.GLOBAL, Pipe.SCRATCH})
_NO_SCALAR_ADDRESS = re.compile(r", (?:off|null)\b")
_F64 = re.compile(r"_f64(?=_|$)")
_PLAIN_KINDS = (
    ("dot", re.compile(r"v_dot\d")),
    ("multiply", re.compile(r"v_mul_(?:lo|hi)_[iu]32|v_mqsad")),
    ("mad64", re.compile(r"v_mad_(?:co_)?[iu]64")),
    ("integer64", re.compile(r"v_(?:lsh\w*|ash\w*|add\w*|sub\w*|cmpx?_\w+)_[biu]64(?:_e32|_e64)?$")),
)
_PRODUCT = re.compile(
    r"v_((?:s?wmmac?|mfma|smfmac)(?:_scale)?)_(\w+?)_(\d+)x(\d+)x(\d+)_?(\d+b_)?(\w+?)(?:_e64|_w32|_w64)?$"
)


def _element(key: tuple[str, ...]) -> str:
    """Return the type of a product's elements; all 8-bit types are one."""
    return "f8" if re.fullmatch(r"b?f8_\w+|fp8_\w+", key[-1]) else key[-1]


def _format(operands: str, name: str) -> int:
    match = re.search(rf"\b{name}:(\d+)", operands)
    return int(match[1]) if match else 0


def _traits(instruction: Instruction) -> str | bool:
    """Return the properties of the operands that affect the cost."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    if mnemonic.startswith("s_"):
        return operands if mnemonic == "s_nop" else ""
    if mnemonic.startswith("v_dual_"):
        return instruction.mnemonics[-1]
    if mnemonic.startswith("v_"):
        return operands if "f8f6f4" in mnemonic else instruction.operations[0].role is Role.CROSS_LANE
    return _NO_SCALAR_ADDRESS.search(operands) is not None


def _of(family: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if family in entry["families"]]


def _expand(names: list[str]) -> list[str]:
    eight = ("bf8_bf8", "bf8_fp8", "fp8_bf8", "fp8_fp8")
    return [name.replace("<8>", each) for name in names for each in (eight if "<8>" in name else ("",))]


@cache
def rates_version() -> str:
    """Return a short hash of the rates: issue cycles from different rates are not comparable."""

    def without_sources(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_sources(each) for name, each in value.items() if name not in {"source", "sources"}}
        return [without_sources(each) for each in value] if isinstance(value, list) else value

    numbers = json.dumps(without_sources(_data()), sort_keys=True)
    return hashlib.sha256(numbers.encode()).hexdigest()[:12]


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("rocattn_profiling.kernels.model").joinpath("rates.toml").read_text(encoding="utf-8"))
