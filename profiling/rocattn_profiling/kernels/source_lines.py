"""The source lines that a hot loop's cycles and spills come from.

The shipped kernels are compiled without line tables. Kernels that a finding names are compiled once more with them
(``-gline-tables-only``), and the tables are used only if the machine code is identical. Most
instructions come from small functions that everything else calls (a matrix product, a load); they are counted where the
file that has the loop calls them, as the chain of inlined calls beside each ``.loc`` says.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.toolchain.elf import Elf
from rocattn.toolchain.inputs import inputs_of
from rocattn_profiling.kernels.compare import SourceChange
from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.loops import hot_loop
from rocattn_profiling.kernels.read.assembly import parse_assembly
from rocattn_profiling.kernels.shipped import compile_kernel, shipped_kernels
from rocattn_profiling.revisions.hunks import hunks_between

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocattn_profiling.kernels.audit import Audit
    from rocattn_profiling.kernels.compare import Comparison
    from rocattn_profiling.kernels.model.cost import LoopCost
    from rocattn_profiling.kernels.read.assembly import AssemblyFunction
    from rocattn_profiling.kernels.shipped import Shipped
    from rocattn_profiling.revisions.hunks import Hunk

SHOWN = 3
MOST = 12  # kernels that lines are looked up for: each may take a compilation
_LOCATION = re.compile(r"\s*\.loc\s[^;]*;\s*(\S.*)$")
_FRAME = re.compile(r"([^\s\[\]@]+):(\d+):\d+")
_WIDTH = 72  # of the source text shown

Frame = tuple[str, str]
"""File and line of a call in a chain of inlined ones, the innermost first."""


class SourceLine(NamedTuple):
    """A line of the source, and what it costs.

    Attributes:
        place: Its file and number, with a colon between.
        text: What it costs, and the source text where that is known.
        spills: Whether it is listed for the registers that it saves or restores, not for its cycles.
    """

    place: str
    text: str
    spills: bool = False

    @property
    def file(self) -> str:
        """The file, as the compiler names it."""
        return self.place.partition(":")[0]

    @property
    def number(self) -> int:
        """The line's number, from 1."""
        return int(self.place.split(":")[1])

    def __str__(self) -> str:
        """Return the one line for people."""
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
    """Return the same for a shipped kernel, with the source text, and the lines that its spills are on.

    Raises:
        ToolchainError: When it does not compile.
    """
    plain, with_tables = compile_kernel(kernel, root), compile_kernel(kernel, root, line_tables=True)
    if _machine_code(plain.data) != _machine_code(with_tables.data):
        return []  # then these are the lines of another program
    function = next((each for each in parse_assembly(with_tables.assembly) if each.name == kernel.symbol), None)
    if function is None:
        return []
    function = _at_callers(function, _chains(with_tables.assembly))
    sources = _Sources(root, root / kernel.source)
    spills = Counter(
        each.source for block in function.blocks for each in block.instructions if each.spill and each.source
    )
    lines = lines_of_loop(loop_cost(function, kernel.arch))
    lines += [
        SourceLine(line, f"{_saving(count)} spilled registers", spills=True)
        for line, count in spills.most_common(SHOWN)
    ]
    return [line._replace(text=f"{line.text}{sources.text(line)}") for line in lines]


def _saving(count: int) -> str:
    return "1 instruction saves or restores" if count == 1 else f"{count} instructions save or restore"


def _chains(assembly: str) -> list[tuple[Frame, ...]]:
    """Return for each line of a text the chain of calls that the last location before it names."""
    chains: list[tuple[Frame, ...]] = [()]
    current: tuple[Frame, ...] = ()
    for line in assembly.splitlines():
        if ".loc" in line and (match := _LOCATION.match(line)):
            current = tuple((file, number) for file, number in _FRAME.findall(match[1]))
        chains.append(current)
    return chains


def _at_callers(function: AssemblyFunction, chains: Sequence[tuple[Frame, ...]]) -> AssemblyFunction:
    """Return a function with its instructions attributed to the file that has its hot loop."""
    loop = hot_loop(function)
    ends = [function.blocks[block].instructions[-1:] for block in loop.latches] if loop else []
    files = {chains[last[0].line][0][0] for last in ends if last and chains[last[0].line]}

    def source(line: int) -> str:
        frames = [frame for frame in chains[line] if frame[1] != "0"]
        inside = [frame for frame in frames if frame[0] in files]
        return ":".join((inside or frames or [("", "")])[0]).removeprefix(":")

    blocks = [
        replace(
            block,
            instructions=tuple(
                replace(instruction, source=source(instruction.line)) for instruction in block.instructions
            ),
        )
        for block in function.blocks
    ]
    return replace(function, blocks=tuple(blocks))


class _Sources:
    """The texts that lines are from; the compiler names headers below ``include/``, the rest beside the source."""

    def __init__(self, root: Path, source: Path) -> None:
        self._root, self._source = root, source
        self._texts: dict[str, list[str]] = {}

    def text(self, line: SourceLine) -> str:
        """Return ": " and the text of a line; "" if it is not there."""
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
    """Add the source lines of hot loops to findings of what got worse.

    Args:
        comparison: As made from the audit.
        audit: Of what got worse.
        root: Where the sources of shipped kernels are; None for files, whose own line tables are taken.
        variants: Architecture, name and file of what the lines are wanted of; the first `MOST` get them.
    """
    facts = {(facts.arch, facts.name, facts.file): facts for facts in audit.kernels}
    lines = {}
    shipped = {} if root is None else {(kernel.arch, kernel.name): kernel for kernel in shipped_kernels(audit.archs)}
    for key in [key for key in variants if key in facts][:MOST]:  # what does not compile has no lines
        if root is None:
            lines[key] = lines_of_loop(facts[key].loop)
        elif key[:2] in shipped:
            lines[key] = lines_of_shipped(shipped[key[:2]], root)
    findings = [
        # Once for each kernel: its first finding takes them.
        msgspec.structs.replace(
            finding,
            lines=_ordered(lines.pop((finding.arch, finding.kernel, finding.file), []), finding.metric),
        )
        if finding.severity == "worse"
        else finding
        for finding in comparison.findings
    ]
    return msgspec.structs.replace(comparison, findings=findings)


def _ordered(lines: list[SourceLine], metric: str) -> list[str]:
    """Return lines for people; of a spill those first that it is on."""
    return [str(line) for line in sorted(lines, key=lambda line: line.spills != (metric == "spills"))]


def _new_line(hunk: Hunk) -> str:
    """Return the first line that came, or else the first that went."""
    return next((line[2:] for line in hunk.diff if line.startswith("+ ")), hunk.diff[0]).strip()


def with_sources(comparison: Comparison, before: Path, now: Path) -> Comparison:
    """Add the changed lines of code in the sources of kernels with findings.

    Args:
        comparison: Of two revisions.
        before: The older one's ``kernels/``.
        now: The newer one's.
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
