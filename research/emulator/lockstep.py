"""Follows an emulated wave instruction by instruction and compares it with `isa`: which one is wrong, and how.

Each instruction begins from the registers that the emulator has, so that a mistake is named where it is made, and is
not handed on. All registers are compared after every instruction, and all bytes that a store writes.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from isa import APPROXIMATE, F32, SCC, U32, State, UnknownInstructionError, parse
from isa_wave import LeftToFixupError, apply, stores

from rocattn.toolchain import compile_hip

if TYPE_CHECKING:
    from machine import Machine

    from rocattn.gpu.launch import KernelLaunch

_LABEL = re.compile(r"([\w.$]+):")
_ROUNDED = re.compile(
    r"(v|s|v_s|v_pk|v_dual)_(add|sub|subrev|mul|fma|fmac|fmaak|fmamk|exp|log|rcp|rcp_iflag|rsq|sqrt|ldexp|div_fmas|div_fixup"
    r"|fma_mix)_f32( .*)?|v_[mw]\w+_f32_\d+x.*"
)  # what the reference, or the emulator (its fused products are not), rounds otherwise than the hardware
_EPSILON = 2.0**-23
_LEAST_NORMAL = 2.0**-126


@dataclass
class Difference:
    """One instruction whose result differs.

    Attributes:
        text: The instruction, as LLVM prints it.
        where: The register or address.
        lane: The first lane that differs; -1 for a scalar.
        emulator, right: Both values, as bits.
        sources: The instruction's operands in that lane, as bits.
    """

    text: str
    where: str
    lane: int
    emulator: int
    right: int
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line."""
        lane = f" lane {self.lane}" if self.lane >= 0 else ""
        return f"{self.text}: {self.where}{lane} is {self.emulator:#x}, not {self.right:#x}; from {self.sources}"


@dataclass
class Lockstep:
    """A machine whose every step is compared; `differences` holds the first of each instruction's name."""

    machine: Machine
    checked: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    differences: dict[str, Difference] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put itself between the machine and its steps."""
        self._step, self.machine.step = self.machine.step, self.step  # type: ignore[method-assign]
        self.machine.loaded = self.learn  # type: ignore[method-assign]

    def learn(self, launch: KernelLaunch, entry: int) -> None:
        """Note which text belongs to which address of a kernel: LLVM's own, in the order of the code."""
        lines = compile_hip(launch.source, self.machine.arch, defines=launch.defines).assembly.splitlines()
        at, inside = entry, False
        for line in lines:
            if match := _LABEL.match(line):
                inside = match[1] == launch.symbol or (inside and not match[1].startswith(".Lfunc_end"))
            text = line.split(";")[0].strip()
            if not inside or not line.startswith("\t") or not text or text.startswith((".", "//")):
                continue
            self._texts[at] = text
            at += self.machine.size_at(at)

    def step(self, state: Any, lds: Any, scratch: Any = None) -> str:
        """Execute one instruction and compare."""
        text = self._texts.get(state.pc, "")
        before = self._state(state, lds).copy()
        name = self._step(state, lds, scratch)
        after = self._state(state, lds)
        label = text.partition(" ")[0] or name.lower()
        expected = before.copy()
        try:
            parts = [parse(part.replace("v_dual_", "v_")) for part in text.split(" :: ")]
            with np.errstate(all="ignore"):
                written = [store for ins in parts for store in stores(ins, before)]
                for ins in parts:
                    changed = before.copy()
                    apply(ins, changed)
                    _merge(expected, before, changed)
        except LeftToFixupError:
            return name
        except UnknownInstructionError as error:
            self.unknown[f"{label} ({error})"] += 1
            return name
        self.checked[label] += 1
        found = self._differs(text, expected, after, before) or _store_differs(text, written, after)
        if found:
            self.wrong[label] += 1
            self.differences.setdefault(label, found)
        return name

    @property
    def found(self) -> bool:
        """Whether any instruction's result differed."""
        return bool(self.differences)

    def report(self) -> None:
        """Print what was compared since the last report, and each instruction that differed, with its operands."""
        print(f"{'':18} {self.checked.total():,} instructions of {len(self.checked)} kinds compared,"
              f" {self.wrong.total()} differ, {self.unknown.total()} not compared")  # fmt: skip
        for name, count in self.wrong.items():
            print(f"{'':20} {count} times {name}, first {self.differences[name]}")
        for name, count in self.unknown.items():
            print(f"{'':20} not compared: {count} times {name}")
        for counter in (self.checked, self.wrong, self.unknown):
            counter.clear()

    def _state(self, state: Any, lds: Any) -> State:
        lanes = state.wave_size
        v, a, s = (np.frombuffer(part.as_memoryview(force_zero_copy=True).cast("I"), U32)
                   for part in (state.vgpr_buf, state.accvgpr_buf, state.sgpr_buf))  # fmt: skip
        memory = np.frombuffer(lds.as_memoryview(force_zero_copy=True).cast("B"), np.uint8)
        return State(v.reshape(-1, lanes), a.reshape(-1, lanes), s, memory)

    def _differs(self, text: str, right: State, got: State, before: State) -> Difference | None:
        files = [("v", right.v, got.v)] + ([("a", right.a, got.a)] if before.lanes == 64 else [])
        for file, wanted, found in files:
            if np.array_equal(wanted, found):
                continue
            for register, lane in np.argwhere(wanted != found):
                if not _alike(text, wanted[register, lane], found[register, lane]):
                    return Difference(text, f"{file}{register}", int(lane), int(found[register, lane]),
                                      int(wanted[register, lane]), _sources(text, before, int(lane)))  # fmt: skip
        numbers = [*range(124), *range(125, 128), SCC] if before.lanes == 32 else [*range(128), SCC]
        for number in numbers:
            if right.s[number] != got.s[number] and not _alike(text, right.s[number], got.s[number]):
                where = "scc" if number == SCC else f"s{number}"
                return Difference(text, where, -1, int(got.s[number]), int(right.s[number]), _sources(text, before, 0))
        return None


def _merge(expected: State, before: State, changed: State) -> None:
    """Take over what one half of a dual instruction changed: both read the registers before."""
    for name in ("v", "a", "s"):
        old, new = getattr(before, name), getattr(changed, name)
        getattr(expected, name)[new != old] = new[new != old]


def _alike(text: str, wanted: Any, found: Any) -> bool:
    """Whether two results are the same but for rounding: any NaN, and what may be a unit or two apart."""
    name = re.sub(r"_(e32|e64|sdwa)$", "", text.partition(" ")[0])
    if not _ROUNDED.fullmatch(name):
        return False
    a, b = (float(np.array(bits, U32).view(F32)) for bits in (wanted, found))
    if np.isnan(a) and np.isnan(b):
        return True
    if name.startswith(("v_mfma", "v_wmma")):
        return bool(abs(a - b) <= 2.0**-16 * max(abs(a), abs(b)) + 2.0**-12)
    units = 4 if name in APPROXIMATE else 2
    return bool(abs(a - b) <= units * _EPSILON * max(abs(a), abs(b), _LEAST_NORMAL))


def _sources(text: str, before: State, lane: int) -> tuple[str, ...]:
    found = []
    for file, first, _, last, single in re.findall(r"\b([vsa])(?:\[(\d+)(:(\d+))?\]|(\d+))", text):
        numbers = range(int(first), int(last or first) + 1) if first else [int(single)]
        source = {"v": before.v, "a": before.a}.get(file)
        for number in numbers:
            value = before.s[number] if source is None else source[number, lane]
            found.append(f"{file}{number}={int(value):#x}")
    return tuple(found[:16])


def _store_differs(text: str, written: list[tuple[bool, int, bytes]], after: State) -> Difference | None:
    final: dict[tuple[bool, int], int] = {}
    for lds, address, data in written:
        for i, byte in enumerate(data):
            final[lds, address + i] = byte
    for (lds, address), byte in final.items():
        got = int(after.lds[address]) if lds else ctypes.string_at(address, 1)[0]
        if got != byte:
            return Difference(text, f"{'LDS' if lds else 'memory'} at {address:#x}", -1, got, byte)
    return None
