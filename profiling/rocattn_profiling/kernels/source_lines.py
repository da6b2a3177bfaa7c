"""Find the source lines that cause a hot loop's cycles and spills.

The shipped kernels are compiled without line tables. Kernels with findings are compiled again with them
(``-gline-tables-only``), and the tables are used only if the machine code is identical. Most
instructions come from small inlined functions (a matrix product, a load); they are attributed to the line that calls
them in the file with the loop, by the chain of inlined calls after each ``.loc``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.toolchain.elf import Elf
from rocattn.toolchain.inputs import inputs_of
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import Comparison, SourceChange
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.model.cost import LoopCost, loop_cost
from rocattn_profiling.kernels.model.loops import hot_loop, usual_path
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, Instruction, parse_assembly
from rocattn_profiling.kernels.read.instructions import Access, Pipe, waits_for_waves
from rocattn_profiling.kernels.shipped import Shipped, compile_kernel, shipped_kernels
from rocattn_profiling.revisions.hunks import hunks_between

if TYPE_CHECKING:
    from rocattn_profiling.revisions.hunks import Hunk

SHOWN = 3
MOST = 12  # most kernels to look up: each may need a compilation
_LOCATION = re.compile(r"\s*\.loc\s[^;]*;\s*(\S.*)$")
_FILE = re.compile(r"\s*\.(?:file|loc)\s")
_FRAME = re.compile(r"([^\s\[\]@]+):(\d+):\d+")
_WIDTH = 72  # most characters of source text

Frame = tuple[str, str]
"""File and line of an inlined call; chains start with the innermost."""


class SourceLine(NamedTuple):
    """A source line and its cost.

    Attributes:
        place: "FILE:LINE".
        text: Its cost, and the source text if known.
        shows: Why it is listed: a kind of `LINE_KINDS`, or "" for its cycles.
    """

    place: str
    text: str
    shows: str = ""

    @property
    def file(self) -> str:
        """The file, as the compiler names it."""
        return self.place.partition(":")[0]

    @property
    def number(self) -> int:
        """The line's number, from 1."""
        return int(self.place.split(":")[1])

    def __str__(self) -> str:
        """Return it as one line of text."""
        return f"{self.place}: {self.text}"


def lines_of_loop(loop: LoopCost | None) -> list[SourceLine]:
    """Return the costliest source lines of a hot loop, with their cycles; empty without a line table."""
    if loop is None:
        return []
    return [
        SourceLine(line.line, f"{line.cycles:g} of {loop.issue_cycles:g} cycles, {line.instructions} instructions")
        for line in loop.lines[:SHOWN]
        if line.line
    ]


def lines_of_shipped(kernel: Shipped, root: Path) -> list[SourceLine]:
    """Return those lines for a shipped kernel, with source text, and the lines for each kind of `LINE_KINDS`.

    Raises:
        ToolchainError: When it does not compile.
    """
    plain, with_tables = compile_kernel(kernel, root), compile_kernel(kernel, root, line_tables=True)
    if _machine_code(plain.data) != _machine_code(with_tables.data):
        return []  # the line table belongs to different code
    text, chains = _with_chains(with_tables.assembly)
    function = next((each for each in parse_assembly(text) if each.name == kernel.symbol), None)
    if function is None:
        return []
    function = _at_callers(function, chains)
    sources = _Sources(root, root / kernel.source)
    lines = lines_of_loop(loop_cost(function, kernel.arch))
    loop = hot_loop(function)
    path = usual_path(function, loop) if loop else range(len(function.blocks))
    for kind, shown in LINE_KINDS.items():
        blocks = [function.blocks[at] for at in path] if shown.in_loop else function.blocks
        instructions = Counter(
            each.source for block in blocks for each in block.instructions if each.source and shown.has(each)
        )
        for line, times in instructions.most_common():
            lines.append(SourceLine(line, shown.single if times == 1 else f"{times} {shown.many}", kind))
    return [line._replace(text=f"{line.text}{sources.text(line)}") for line in lines]


class LineKind(NamedTuple):
    """Instructions that cause a kind of finding.

    Attributes:
        has: Whether an instruction is one of them.
        single: Text for one instruction.
        many: Text after the count of several.
        in_loop: Whether only instructions in the hot loop count.
    """

    has: Callable[[Instruction], bool]
    single: str
    many: str
    in_loop: bool = True


def _accesses(unit: Pipe, access: Access) -> Callable[[Instruction], bool]:
    return lambda instruction: any((each.unit, each.access) == (unit, access) for each in instruction.operations)


LINE_KINDS = {
    "spills": LineKind(
        lambda instruction: instruction.spill,
        "1 instruction saves or restores spilled registers",
        "instructions save or restore spilled registers",
        in_loop=False,
    ),
    "barriers": LineKind(lambda instruction: waits_for_waves(instruction.mnemonic), "1 barrier", "barriers"),
    "global loads": LineKind(_accesses(Pipe.GLOBAL, Access.LOAD), "1 global load", "global loads"),
    "LDS reads": LineKind(_accesses(Pipe.LDS, Access.LOAD), "1 LDS read", "LDS reads"),
    "LDS writes": LineKind(_accesses(Pipe.LDS, Access.STORE), "1 LDS write", "LDS writes"),
}
"""Kinds of lines that explain a finding better than the costliest lines do."""


def shown_for(metric: str) -> str:
    """Return the kind of lines that explain a metric: a key of `LINE_KINDS`, or "" for the costliest."""
    return METRICS[metric].lines if metric in METRICS else ""


def _with_chains(assembly: str) -> tuple[str, list[tuple[Frame, ...]]]:
    """Return the text with each location's file replaced by the index of its call chain, and the chains."""
    chains: list[tuple[Frame, ...]] = []
    lines = []
    for line in assembly.splitlines():
        if match := _LOCATION.match(line):
            lines.append(f"\t.loc\t{len(chains)} 1")
            chains.append(tuple((file, number) for file, number in _FRAME.findall(match[1])))
        elif not _FILE.match(line):
            lines.append(line)
    return "\n".join(lines), chains


def _at_callers(function: AssemblyFunction, chains: Sequence[tuple[Frame, ...]]) -> AssemblyFunction:
    """Return a function with its instructions attributed to the file with its hot loop."""

    def chain(instruction: Instruction) -> tuple[Frame, ...]:
        return chains[int(instruction.source.partition(":")[0])] if instruction.source else ()

    def placed(instruction: Instruction) -> Instruction:
        frames = [frame for frame in chain(instruction) if frame[1] != "0"]
        inside = [frame for frame in frames if frame[0] in files]
        source = ":".join((inside or frames or [("", "")])[0]).removeprefix(":")
        return Instruction(instruction.mnemonic, instruction.operands, source, spill=instruction.spill)

    loop = hot_loop(function)
    ends = [function.blocks[block].instructions[-1:] for block in loop.latches] if loop else []
    files = {chain(last[0])[0][0] for last in ends if last and chain(last[0])}
    known = {instruction: placed(instruction) for instruction in function.instructions}
    bodies = [tuple(known[each] for each in block.instructions) for block in function.blocks]
    blocks = (replace(block, instructions=body) for block, body in zip(function.blocks, bodies, strict=True))
    return replace(function, blocks=tuple(blocks))


class _Sources:
    """Texts of the sources. The compiler's names are relative to ``include/``, or to the source's folder."""

    def __init__(self, root: Path, source: Path) -> None:
        self._root, self._source = root, source
        self._texts: dict[str, list[str]] = {}

    def text(self, line: SourceLine) -> str:
        """Return ": " and the text of a line; "" if it cannot be read."""
        file = line.file
        if file not in self._texts:
            path = self._root / file if file.startswith("include/") else self._source.parent / file
            self._texts[file] = path.read_text().splitlines() if path.is_file() else []
        lines, at = self._texts[file], line.number - 1
        text = " ".join(lines[at].split()) if 0 <= at < len(lines) else ""
        return f": {text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…'}" if text else ""


def _machine_code(data: bytes) -> bytes:
    elf = Elf.read(data)
    return b"".join(elf.content(section) for section in elf.named(".text"))


def with_lines(
    comparison: Comparison, audit: Audit, root: Path | None, variants: Sequence[tuple[str, str, str]]
) -> Comparison:
    """Add the source lines of hot loops to findings that got worse.

    Args:
        comparison: A comparison with the audit.
        audit: The audit of head.
        root: Folder of the shipped kernels' sources; None for files, which use their own line tables.
        variants: Architecture, name and file of the kernels to look up; only the first `MOST` are.
    """
    facts = {(facts.arch, facts.name, facts.file): facts for facts in audit.kernels}
    lines: dict[tuple[str, str, str], list[SourceLine]] = {}
    shipped = {} if root is None else {(kernel.arch, kernel.name): kernel for kernel in shipped_kernels(audit.archs)}
    for key in [key for key in variants if key in facts][:MOST]:  # kernels that do not compile are absent
        if root is None:
            lines[key] = lines_of_loop(facts[key].loop)
        elif key[:2] in shipped:
            lines[key] = lines_of_shipped(shipped[key[:2]], root)
    changed = {place for source in comparison.sources for place in _places(source)}
    findings = []
    for finding in comparison.findings:
        left = lines.get((finding.arch, finding.kernel, finding.file), [])
        if finding.severity == "worse" and left:
            kinds = {line.shows for line in left}
            kind = shown_for(finding.metric) if shown_for(finding.metric) in kinds else ""
            own = sorted((line for line in left if line.shows == kind), key=lambda line: line.place not in changed)
            left[:] = [line for line in left if line.shows != kind]  # once per kernel
            findings.append(msgspec.structs.replace(finding, lines=[str(line) for line in own[:SHOWN]]))
        else:
            findings.append(finding)
    return msgspec.structs.replace(comparison, findings=findings)


def _places(source: SourceChange) -> tuple[str, str]:
    """Return the names that a compiler may use for a changed line: relative to ``include/``, or to the source."""
    return f"{source.path.partition('/')[2]}:{source.line}", f"{source.path.rpartition('/')[2]}:{source.line}"


def _new_line(hunk: Hunk) -> str:
    """Return the first added line, or the first removed one if none was added."""
    return next((line[2:] for line in hunk.diff if line.startswith("+ ")), hunk.diff[0]).strip()


def with_sources(comparison: Comparison, before: Path, now: Path) -> Comparison:
    """Add the changed lines of code in the sources of kernels with findings.

    Args:
        comparison: A comparison of two revisions.
        before: ``kernels/`` of the older revision.
        now: ``kernels/`` of the newer revision.
    """
    kernels: dict[str, list[str]] = {}
    for source in dict.fromkeys(finding.file for finding in comparison.findings if finding.severity != "note"):
        if (now / source).is_file():
            for name, _ in inputs_of(now / "include", now / source):
                path = name if name.startswith("include/") else f"{source.rpartition('/')[0]}/{name}"
                kernels.setdefault(path, []).append(source)
    changed = [
        SourceChange(path=f"kernels/{path}", line=hunk.line, text=_new_line(hunk), kernels=of)
        for path, of in kernels.items()
        for hunk in hunks_between(before / path, now / path)
        if hunk.is_code
    ]
    return msgspec.structs.replace(comparison, sources=changed)
