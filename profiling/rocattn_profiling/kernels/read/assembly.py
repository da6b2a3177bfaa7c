"""Parse AMDGPU assembly text into functions, basic blocks and instructions.

The input is the output of clang ``-S`` or Triton's ``.amdgcn``, for any kernel. Nothing is assembled or executed.
`rocattn_profiling.kernels.model.loops` finds the loops.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern

from rocattn_profiling.kernels.read.instructions import (
    Operation,
    Pipe,
    Role,
    classify,
    ends_flow,
    has_lane_exchange,
    is_branch,
)

# How targets without scratch_* instructions access the stack: called functions always through s[0:3]; kernels through a
# buffer passed in s[0:3], from which LLVM first derives the wave's own part, in place or in a copy.
UNREADABLE = "unreadable_instruction"  # mnemonic for instructions that a tool cannot decode, or that are too long
_LONGEST_LINE = 4000  # int() refuses more digits
_STACK = re.compile(r"\bs\[0:3\],\s*s3[23]\b")
_WAVE32 = re.compile(r"gfx1\d")  # gfx10 and later
_BUFFER_STACK = re.compile(r"gfx(?:90|9-generic|10)")
_BUFFER_COPY = re.compile(r"s\[(\d+):\d+\],\s*s\[0:1\]$")
_BUFFER_START = re.compile(r"s(\d+),\s*s\1,\s*s\d+$")
_BUFFER_CARRY = re.compile(r"s(\d+),\s*s\1,\s*0$")


class Instruction:
    """One issued instruction. Instructions of a text with equal spelling and source line share one object.

    Attributes:
        mnemonic, operands: As written; a dual instruction's operands include its second half.
        source: File and line from the line table ("flash.h:210"), or "".
        spill: Whether the compiler marks it as saving or restoring a spilled register.
        on_stack: Whether it is a buffer instruction that accesses the stack.
        operations: Its operations: two for a dual instruction (v_dual_*), otherwise one.
        unit: The unit it is issued to.
        target: The target label of a branch.
        falls_through: Whether execution may continue with the next instruction.
        halves: (mnemonic, operands) of both halves of a dual instruction (v_dual_*), as if issued alone; otherwise of
            the instruction itself.
        mnemonics: The mnemonics of `halves`.
    """

    __slots__ = (
        "falls_through", "halves", "mnemonic", "mnemonics", "on_stack", "operands", "operations", "source", "spill",
        "target", "unit",
    )  # fmt: skip

    def __init__(
        self, mnemonic: str, operands: str, source: str = "", *, spill: bool = False, stack: bool = False
    ) -> None:
        """Derive the attributes; ``stack`` says that its buffer is the kernel's stack."""
        self.mnemonic, self.operands, self.source, self.spill = mnemonic, operands, source, spill
        marked = spill or stack
        self.on_stack = mnemonic.startswith("buffer_") and (marked or _STACK.search(operands) is not None)
        self.halves = halves_of(mnemonic, operands)
        self.mnemonics = tuple(name for name, _ in self.halves)
        self.operations = self._operations()
        self.unit = self.operations[0].unit
        self.target = operands.rpartition(",")[2].strip() if is_branch(mnemonic) else None
        self.falls_through = not ends_flow(mnemonic)

    def _operations(self) -> tuple[Operation, ...]:
        if self.mnemonic.startswith("v_dual_"):
            return tuple(map(classify, self.mnemonics))
        operation = classify(self.mnemonic)
        if operation.unit is Pipe.VECTOR and has_lane_exchange(self.operands):
            return (Operation(Pipe.VECTOR, Role.CROSS_LANE),)
        if self.on_stack and operation.unit is Pipe.GLOBAL:
            return (Operation(Pipe.SCRATCH, access=operation.access, width=operation.width),)
        return (operation,)


def count_mnemonics(body: Collection[Instruction]) -> Counter[str]:
    """Count issued instructions by mnemonic, each half of a dual instruction separately."""
    counts = Counter([instruction.mnemonic for instruction in body])
    if duals := {name for name in counts if name.startswith("v_dual_")}:
        halves = [name for each in body if each.mnemonic in duals for name in each.mnemonics]
        counts = Counter({name: count for name, count in counts.items() if name not in duals}) + Counter(halves)
    return counts


def halves_of(mnemonic: str, operands: str) -> tuple[tuple[str, str], ...]:
    """Return (mnemonic, operands) of each operation that an instruction issues."""
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
        instructions: In order; only the last can be a branch.
        successors: Indices of possible next blocks, the fall-through block first.
        line: Line of the first instruction in the assembly text, from 1.
    """

    label: str
    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]
    line: int = 0


@dataclass(frozen=True, eq=False)
class AssemblyFunction:
    """A kernel or a function that kernels call; compared by identity.

    Attributes:
        name: Its symbol.
        target: The file's processor with its features, "gfx90a:xnack-"; "" if the text does not say.
        blocks: In text order; the first is the entry. Empty for a function without instructions.
        descriptor: ``.amdhsa_`` directives by name without that prefix; empty unless the function is a kernel.
        unknown_targets: Branch targets that are not in the function.
    """

    name: str
    target: str
    blocks: tuple[BasicBlock, ...]
    descriptor: dict[str, str] = field(default_factory=dict)
    unknown_targets: tuple[str, ...] = ()

    @cached_property
    def instructions(self) -> Counter[Instruction]:
        """Instruction -> its number of occurrences."""
        return Counter(instruction for block in self.blocks for instruction in block.instructions)

    @property
    def is_kernel(self) -> bool:
        """Whether it can be launched."""
        return bool(self.descriptor)

    @property
    def wave_size(self) -> int:
        """Lanes per wave: from the descriptor, or else the assembler's default; 64 for functions."""
        otherwise = "1" if self.is_kernel and _WAVE32.match(self.target) else "0"
        return 32 if self.descriptor.get("wavefront_size32", otherwise) == "1" else 64


# The most frequent lines: an instruction, its operands, a comment after ";". All others take the slow path.
_USUAL = re.compile(r"\t([a-z][a-z0-9]*_\w+)(?:[ \t]+([^;/]*[^;/\s]))?\s*(;.*)?$")
_FUNCTION = re.compile(r"\.type[ \t]+([^\s,]+)[ \t]*,[ \t]*@function")
_KERNEL = re.compile(r"\.amdhsa_kernel[ \t]+(\S+)")
_LABEL = re.compile(r"\s*([^\s:;\"]+):(?!:)")
_INSTRUCTION = re.compile(r"\s*([a-z][a-z0-9]*_\w+)(?:\s+(.*))?$")
_TARGET = re.compile(r"gfx[0-9][0-9a-z-]*(?::[a-z]+[+-])*")
_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r"\s*\.file\s+(\d+)\s+(?:\"[^\"]*\"\s+)?\"([^\"]*)\"")
_SPILL = re.compile(r"Folded (?:Spill|Reload)")


def parse_assembly(text: str, first_line: int = 1) -> tuple[AssemblyFunction, ...]:
    """Split assembly text for one target into its functions, in order.

    Other lines are skipped: text that is not AMDGPU assembly has no functions.

    Args:
        text: The text.
        first_line: Number of its first line in the file.
    """
    reader = _Reader({*_FUNCTION.findall(text), *_KERNEL.findall(text)})
    reader.read(text, first_line)
    return reader.functions()


@dataclass(eq=False)
class _Body:
    """A function's instructions with their line numbers, and its labels with the index of the next instruction."""

    instructions: list[Instruction] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    labels: list[tuple[str, int]] = field(default_factory=list)


class _Reader:
    """A line-by-line parser and its state."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._target = self._source = ""
        self._files: dict[str, str] = {}
        self._bodies: dict[str, _Body] = {}
        self._descriptors: dict[str, dict[str, str]] = {}
        self._body: _Body | None = None
        self._descriptor: dict[str, str] | None = None
        self._known: defaultdict[str, dict[str, Instruction]] = defaultdict(dict)  # by source and text: many recur

    def read(self, text: str, first_line: int) -> None:
        """Parse the whole text."""
        usual, known, body = _USUAL.match, self._known[""], self._body
        for number, line in enumerate(text.splitlines(), first_line):
            if body is not None:
                said = known.get(line)
                if said is None and len(line) <= _LONGEST_LINE and (match := usual(line)):
                    mnemonic, operands, comment = match.groups("")
                    spill = bool(comment) and _SPILL.search(comment) is not None
                    said = known[line] = Instruction(intern(mnemonic), operands, self._source, spill=spill)
                if said is not None:
                    body.instructions.append(said)
                    body.lines.append(number)
                    continue
            self._read_line(number, line)
            body, known = self._body, self._known[self._source]

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
            mnemonic, operands = (UNREADABLE, "") if len(stripped) > _LONGEST_LINE else match.groups("")
            spill = bool(semicolon) and bool(_SPILL.search(comment))
            self._body.instructions.append(Instruction(intern(mnemonic), operands, self._source, spill=spill))
            self._body.lines.append(number)

    def _label(self, name: str) -> None:
        if name in self._names:
            self._body = self._bodies.setdefault(name, _Body())
            self._source = ""
        elif name.startswith(".Lfunc_end"):
            self._body = None
        elif self._body is not None:
            self._body.labels.append((name, len(self._body.instructions)))

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
        """Return the parsed functions."""
        functions = []
        for name, body in self._bodies.items():
            descriptor = self._descriptors.get(name, {})
            through_buffer = (
                _BUFFER_STACK.match(self._target) and descriptor.get("private_segment_fixed_size", "0") != "0"
            )
            if through_buffer:
                _mark_stack(body)
            blocks, unknown = _basic_blocks(body)
            functions.append(AssemblyFunction(name, self._target, blocks, descriptor, unknown))
        return tuple(functions)


def _mark_stack(body: _Body) -> None:
    """Mark the accesses to scratch memory in the body of a kernel that has some."""
    copies, started = {"0"}, set()
    for each in body.instructions:
        if each.mnemonic == "s_mov_b64" and (match := _BUFFER_COPY.match(each.operands)):
            copies.add(match[1])
        elif each.mnemonic == "s_add_u32" and (match := _BUFFER_START.match(each.operands)) and match[1] in copies:
            started.add(int(match[1]))
        elif (
            each.mnemonic == "s_addc_u32"
            and (match := _BUFFER_CARRY.match(each.operands))
            and (first := int(match[1]) - 1) in started
        ):
            stack = f" s[{first}:{first + 3}],"
            accesses = {
                known: Instruction(known.mnemonic, known.operands, known.source, spill=known.spill, stack=True)
                for known in set(body.instructions)
                if known.mnemonic.startswith("buffer_") and stack in known.operands
            }
            body.instructions[:] = [accesses.get(known, known) for known in body.instructions]
            return


def _basic_blocks(body: _Body) -> tuple[tuple[BasicBlock, ...], tuple[str, ...]]:
    """Return the blocks of a function, and the branch targets that it lacks."""
    instructions, kinds = body.instructions, set(body.instructions)
    targets = {each.target for each in kinds if each.target is not None}
    last = {each for each in kinds if each.target is not None or not each.falls_through}
    places = {label: place for label, place in body.labels if label in targets}
    labels = {place: label for label, place in places.items()}
    starts = {0, *labels, *(place for place, each in enumerate(instructions, 1) if each in last)}
    ordered = sorted(start for start in starts if start < len(instructions) or start in labels)
    index = {start: number for number, start in enumerate(ordered)}
    blocks = []
    for number, start in enumerate(ordered):
        part = tuple(instructions[start : ordered[number + 1] if number + 1 < len(ordered) else None])
        end = part[-1] if part else None
        follow = [number + 1] if number + 1 < len(ordered) and (end is None or end.falls_through) else []
        if end is not None and end.target in places and (goal := index[places[end.target]]) not in follow:
            follow.append(goal)
        blocks.append(BasicBlock(labels.get(start, ""), part, tuple(follow), body.lines[start] if part else 0))
    return tuple(blocks), tuple(sorted(targets - places.keys()))
