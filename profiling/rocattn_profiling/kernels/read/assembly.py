"""Reading AMDGPU assembly text: functions, basic blocks, and their instructions.

It takes what clang writes with ``-S`` and what Triton keeps as ``.amdgcn``, of any kernel. Nothing is assembled and
nothing is executed. `rocattn_profiling.kernels.model.loops` finds the loops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern

import msgspec

from rocattn_profiling.kernels.read.instructions import (
    Operation,
    Pipe,
    Role,
    classify,
    ends_flow,
    has_lane_exchange,
    is_branch,
)

# How targets without scratch_* instructions reach the stack: functions that are called always so, kernels by a buffer
# that is handed to them in s[0:3] and of which LLVM makes this wave's part, there or in a copy, before anything else.
UNREADABLE = "unreadable_instruction"  # the mnemonic of what a tool cannot read, or is too long to be one
_LONGEST_LINE = 4000  # int() refuses more digits
_STACK = re.compile(r"\bs\[0:3\],\s*s3[23]\b")
_WAVE32 = re.compile(r"gfx1\d")  # gfx10 and later
_BUFFER_STACK = re.compile(r"gfx(?:90|9-generic|10)")
_BUFFER_COPY = re.compile(r"s\[(\d+):\d+\],\s*s\[0:1\]$")
_BUFFER_START = re.compile(r"s(\d+),\s*s\1,\s*s\d+$")
_BUFFER_CARRY = re.compile(r"s(\d+),\s*s\1,\s*0$")


class Instruction(msgspec.Struct, frozen=True):
    """One issued instruction.

    Attributes:
        mnemonic, operands: As written; a dual instruction's operands hold its second half, too.
        line: Line of the assembly text, from 1.
        source: File and line of the line table ("flash.h:210"), or "".
        spill: Whether the compiler notes that it saves or restores a spilled register.
        stack: Whether it is a buffer instruction with the buffer that the kernel has for its stack.
    """

    mnemonic: str
    operands: str
    line: int
    source: str = ""
    spill: bool = False
    stack: bool = False

    @property
    def mnemonics(self) -> tuple[str, ...]:
        """What is issued: both halves of a dual instruction (v_dual_*) as they are called alone, else itself."""
        if not self.mnemonic.startswith("v_dual_"):  # a property that is cached costs more
            return (self.mnemonic,)
        return tuple(mnemonic for mnemonic, _ in self.halves)

    @property
    def halves(self) -> tuple[tuple[str, str], ...]:
        """The same, each with its operands."""
        return halves_of(self.mnemonic, self.operands)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What it does: two operations where two are issued as one (v_dual_*), else one."""
        return _operations(self.mnemonic, self.operands, self.spill or self.stack)

    @property
    def unit(self) -> Pipe:
        """The unit that it is issued to."""
        return self.operations[0].unit

    @property
    def target(self) -> str | None:
        """The label that a branch names."""
        return self.operands.rpartition(",")[2].strip() if is_branch(self.mnemonic) else None

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        return not ends_flow(self.mnemonic)

    @property
    def on_stack(self) -> bool:
        """Whether it is a buffer instruction that reaches the stack."""
        return _on_stack(self.mnemonic, self.operands, self.spill or self.stack)


def _on_stack(mnemonic: str, operands: str, marked: bool) -> bool:
    return mnemonic.startswith("buffer_") and (marked or _STACK.search(operands) is not None)


@lru_cache(maxsize=1 << 16)
def _operations(mnemonic: str, operands: str, marked: bool) -> tuple[Operation, ...]:
    if mnemonic.startswith("v_dual_"):
        return tuple(classify(half) for half, _ in halves_of(mnemonic, operands))
    operation = classify(mnemonic)
    if operation.unit is Pipe.VECTOR and operation.role is not Role.CROSS_LANE and has_lane_exchange(operands):
        return (Operation(Pipe.VECTOR, Role.CROSS_LANE),)
    if operation.unit is Pipe.GLOBAL and _on_stack(mnemonic, operands, marked):
        return (Operation(Pipe.SCRATCH, access=operation.access, width=operation.width),)
    return (operation,)


def count_mnemonics(body: Collection[Instruction]) -> Counter[str]:
    """Count what is issued, by name, each half of a dual instruction by its own."""
    counts = Counter([instruction.mnemonic for instruction in body])
    if duals := {name for name in counts if name.startswith("v_dual_")}:
        halves = [name for each in body if each.mnemonic in duals for name in each.mnemonics]
        counts = Counter({name: count for name, count in counts.items() if name not in duals}) + Counter(halves)
    return counts


@lru_cache(maxsize=1 << 14)
def halves_of(mnemonic: str, operands: str) -> tuple[tuple[str, str], ...]:
    """Return what is issued by an instruction, each with its operands."""
    if not mnemonic.startswith("v_dual_"):
        return ((mnemonic, operands),)
    first, _, second = operands.partition("::")
    halves = ([mnemonic, first], second.split(None, 1))
    return tuple((half[0].replace("v_dual_", "v_", 1), "".join(half[1:]).strip()) for half in halves if half)


@dataclass(frozen=True)
class BasicBlock:
    """A basic block.

    Attributes:
        label: The label before it; "" if it follows a conditional branch.
        instructions: In order; a branch is the last.
        successors: Indices of the blocks that may follow, the one that it falls into first.
    """

    label: str
    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]


@dataclass(frozen=True)
class AssemblyFunction:
    """A kernel or a function that kernels call.

    Attributes:
        name: Its symbol.
        target: The processor of the file, with its features: "gfx90a:xnack-"; "" if the text does not say.
        blocks: In order of the text; the first is the entry. Empty for a function without instructions.
        descriptor: The ``.amdhsa_`` directives by name without that prefix; empty for a function that is no kernel.
        unknown_targets: Labels that branches name and the function does not have.
    """

    name: str
    target: str
    blocks: tuple[BasicBlock, ...]
    descriptor: dict[str, str] = field(default_factory=dict)
    unknown_targets: tuple[str, ...] = ()

    @property
    def is_kernel(self) -> bool:
        """Whether it can be launched."""
        return bool(self.descriptor)

    @property
    def wave_size(self) -> int:
        """Lanes of a wave: as the descriptor says, else what the assembler takes; 64 of what is no kernel."""
        otherwise = "1" if self.is_kernel and _WAVE32.match(self.target) else "0"
        return 32 if self.descriptor.get("wavefront_size32", otherwise) == "1" else 64


# The most frequent lines: an instruction, its operands, a comment behind ";". All others take the slow path.
_USUAL = re.compile(r"\t([a-z][a-z0-9]*_\w+)(?:[ \t]+([^;/]*[^;/\s]))?\s*(;.*)?$")
_FUNCTION = re.compile(
    r"^[ \t]*\.type[ \t]+([^\s,]+)[ \t]*,[ \t]*@function|^[ \t]*\.amdhsa_kernel[ \t]+(\S+)", re.MULTILINE
)
_LABEL = re.compile(r"\s*([^\s:;\"]+):(?!:)")
_INSTRUCTION = re.compile(r"\s*([a-z][a-z0-9]*_\w+)(?:\s+(.*))?$")
_TARGET = re.compile(r"gfx[0-9][0-9a-z-]*(?::[a-z]+[+-])*")
_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r"\s*\.file\s+(\d+)\s+(?:\"[^\"]*\"\s+)?\"([^\"]*)\"")
_SPILL = re.compile(r"Folded (?:Spill|Reload)")


def parse_assembly(text: str, first_line: int = 1) -> tuple[AssemblyFunction, ...]:
    """Split assembly text of one target into its functions, in their order.

    Other lines are skipped: text that is no AMDGPU assembly has no functions.

    Args:
        text: The text.
        first_line: The number of its first line, where it is a part of a file.
    """
    reader = _Reader({symbol or other for symbol, other in _FUNCTION.findall(text)})
    reader.read(text, first_line)
    return reader.functions()


class _Reader:
    """What is known at a line."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._target = self._source = ""
        self._files: dict[str, str] = {}
        self._bodies: dict[str, list[str | Instruction]] = {}  # labels and instructions in order
        self._descriptors: dict[str, dict[str, str]] = {}
        self._body: list[str | Instruction] | None = None
        self._descriptor: dict[str, str] | None = None

    def read(self, text: str, first_line: int) -> None:
        """Take in all of the text."""
        usual, known = _USUAL.match, dict[str, tuple[str, str, bool]]()  # many lines recur
        for number, line in enumerate(text.splitlines(), first_line):
            said = known.get(line)
            if said is None and len(line) <= _LONGEST_LINE and (match := usual(line)):
                mnemonic, operands, comment = match.groups("")
                spill = bool(comment) and _SPILL.search(comment) is not None
                said = known[line] = intern(mnemonic), operands, spill
            if said is not None and self._body is not None:
                self._body.append(Instruction(said[0], said[1], number, self._source, said[2]))
            else:
                self._read_line(number, line)

    def _read_line(self, number: int, line: str) -> None:
        code, semicolon, comment = line.partition(";")
        code = code.partition("//")[0].rstrip()
        stripped = code.lstrip()
        if not stripped:
            return
        if ":" in code and (label := _LABEL.match(code)):
            self._label(label[1])
            stripped = code[label.end() :].strip()
        if stripped.startswith("."):
            self._directive(stripped)
        elif self._body is not None and (match := _INSTRUCTION.match(stripped)):
            if len(stripped) > _LONGEST_LINE:
                self._body.append(Instruction(UNREADABLE, "", number, self._source))
                return
            spill = bool(semicolon) and bool(_SPILL.search(comment))
            self._body.append(Instruction(intern(match[1]), match[2] or "", number, self._source, spill))

    def _label(self, name: str) -> None:
        if name in self._names:
            self._body = self._bodies.setdefault(name, [])
            self._source = ""
        elif name.startswith(".Lfunc_end"):
            self._body = None
        elif self._body is not None:
            self._body.append(name)

    def _directive(self, text: str) -> None:
        if text.startswith(".loc"):
            match = _LOCATION.match(text)
            if match:
                name = self._files.get(match[1], match[1])
                self._source = f"{name}:{match[2]}" if match[2] != "0" else ""
        elif text.startswith(".amdhsa_kernel"):
            self._descriptor = self._descriptors.setdefault(text.rpartition(" ")[2], {})
        elif text.startswith(".end_amdhsa_kernel"):
            self._descriptor = None
        elif self._descriptor is not None and text.startswith(".amdhsa_"):
            name, _, value = text.removeprefix(".amdhsa_").partition(" ")
            self._descriptor[name] = value.strip()
        elif text.startswith(".amdgcn_target"):
            target = _TARGET.search(text)
            self._target = target[0] if target else ""
        elif text.startswith(".file"):
            if match := _FILE.match(text):
                self._files[match[1]] = match[2].rpartition("/")[2]
        elif text.startswith(".size"):
            self._body = None

    def functions(self) -> tuple[AssemblyFunction, ...]:
        """Return what was read."""
        functions = []
        for name, body in self._bodies.items():
            descriptor = self._descriptors.get(name, {})
            through_buffer = (
                _BUFFER_STACK.match(self._target) and descriptor.get("private_segment_fixed_size", "0") != "0"
            )
            blocks, unknown = _basic_blocks(_with_stack(body) if through_buffer else body)
            functions.append(AssemblyFunction(name, self._target, blocks, descriptor, unknown))
        return tuple(functions)


def _with_stack(body: list[str | Instruction]) -> list[str | Instruction]:
    """Return the body of a kernel that has scratch memory, with the accesses to it marked."""
    copies, started = {"0"}, set()
    for item in body:
        if isinstance(item, str):
            continue
        if item.mnemonic == "s_mov_b64" and (match := _BUFFER_COPY.match(item.operands)):
            copies.add(match[1])
        elif item.mnemonic == "s_add_u32" and (match := _BUFFER_START.match(item.operands)) and match[1] in copies:
            started.add(int(match[1]))
        elif (
            item.mnemonic == "s_addc_u32"
            and (match := _BUFFER_CARRY.match(item.operands))
            and (first := int(match[1]) - 1) in started
        ):
            return [_marked(each, f" s[{first}:{first + 3}],") for each in body]
    return body


def _marked(item: str | Instruction, stack: str) -> str | Instruction:
    """Return an instruction that knows whether its buffer is the stack's."""
    if isinstance(item, str) or not item.mnemonic.startswith("buffer_") or stack not in item.operands:
        return item
    return msgspec.structs.replace(item, stack=True)


def _basic_blocks(body: list[str | Instruction]) -> tuple[tuple[BasicBlock, ...], tuple[str, ...]]:
    """Return the blocks of a function, and the labels that its branches name in vain."""
    targets = {item.target for item in body if isinstance(item, Instruction) and is_branch(item.mnemonic)}
    parts: list[tuple[str, list[Instruction]]] = [("", [])]
    at: dict[str, int] = {}
    for item in body:
        if isinstance(item, str):
            if item in targets:
                if parts[-1][1]:
                    parts.append((item, []))
                at[item] = len(parts) - 1
                parts[-1] = (item, parts[-1][1])
            continue
        parts[-1][1].append(item)
        if is_branch(item.mnemonic) or ends_flow(item.mnemonic):
            parts.append(("", []))
    if not any(parts[-1]):
        parts.pop()  # nothing follows the last branch
    unknown = {target for target in targets if target is not None and target not in at}
    blocks = []
    for index, (label, instructions) in enumerate(parts):
        last = instructions[-1] if instructions else None
        follow = [index + 1] if index + 1 < len(parts) and (last is None or last.falls_through) else []
        if last is not None and last.target in at and at[last.target] not in follow:
            follow.append(at[last.target])
        blocks.append(BasicBlock(label, tuple(instructions), tuple(follow)))
    return tuple(blocks), tuple(sorted(unknown))
