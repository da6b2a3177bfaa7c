"""Reads the fenced blocks of the Markdown pages, and what a page's source says of each in HTML comments above it.

A comment is one line, directly above the fence or above another such comment:

    <!-- run -->                            a test runs the block's commands
    <!-- run, status 1 -->                  and the last of them ends with this status
    <!-- run, with profilers -->            with stand-ins for AMD's profilers on PATH
    <!-- not run: the reason -->            no test runs it
    <!-- not run "rocattn ci": reason -->   of a block that is run: lines that hold this text are left out
    <!-- file: name.py -->                  the block is this file, in the folder in which the page's commands are run
    <!-- output -->                         a part of what the block before it printed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([
    *ROOT.glob("*.md"),
    *(page for name in ("docs", "kernels", "benchmarks", "research", "tests") for page in (ROOT / name).rglob("*.md")),
])  # fmt: skip
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?! (?:checked|wrong|not supported)\b)")  # these counts are exact
_FENCE = re.compile(r"(?P<indent>\s*)(?P<fence>```+|~~~+)\s*(?P<language>[\w-]*)")
_COMMENT = re.compile(r"<!-- (.+) -->")
_LEFT_OUT = re.compile(r'not run "([^"]+)": (.+)')
SHELLS = {"bash", "console", "shell", "shell-session", "zsh"}


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the comments above it."""

    page: Path
    line: int
    language: str
    text: str
    marks: tuple[str, ...] = ()
    indent: str = ""

    @property
    def where(self) -> str:
        """Page and line, as compilers write them."""
        return f"{name_of(self.page)}:{self.line}"

    @property
    def reason(self) -> str:
        """Why nothing of it is run; "" if no such reason is given."""
        return next((mark.partition(":")[2].strip() for mark in self.marks if mark.startswith("not run:")), "")

    @property
    def run(self) -> set[str] | None:
        """What stands behind "run", in pieces; None if it does not say so."""
        for mark in self.marks:
            first, *more = (part.strip() for part in mark.split(","))
            if first == "run":
                return set(more)
        return None

    @property
    def left_out(self) -> dict[str, str]:
        """Texts of lines that are not run, with their reasons."""
        found = (_LEFT_OUT.fullmatch(mark) for mark in self.marks)
        return {match[1]: match[2] for match in found if match}

    @property
    def file(self) -> str:
        """The file that the block is; "" if it is none."""
        return next((mark.partition(":")[2].strip() for mark in self.marks if mark.startswith("file:")), "")

    def script(self) -> str:
        """Return the commands without those that are left out."""
        kept = [line for line in self.text.splitlines() if not any(text in line for text in self.left_out)]
        return "\n".join(kept) + "\n"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return blocks_of(page.read_text(), page)


def blocks_of(text: str, page: Path = ROOT / "text") -> list[Block]:
    """Return the fenced blocks of a text."""
    found: list[Block] = []
    marks: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            comment = _COMMENT.fullmatch(lines[at])
            marks = [*marks, comment[1]] if comment else []
            at += 1
            continue
        first = at + 1
        at = next(n for n in range(first, len(lines)) if lines[n].strip() == opening["fence"])
        body = "".join(f"{line}\n" for line in lines[first:at])
        found.append(Block(page, first, opening["language"], body, tuple(marks), opening["indent"]))
        marks = []
        at += 1
    return found


def shape(text: str) -> str:
    """Return a line without what differs from run to run: numbers, widths of columns."""
    return re.sub(r"[─━]+", "─", " ".join(NUMBER.sub("#", text).split()))


def missing_line(shown: str, printed: str) -> str:
    """Return the first line of ``shown`` that ``printed`` does not have, in that order; "" if it has them all.

    Numbers may differ; ``…`` stands for anything within a line, and a line of it alone for any lines.
    """
    rest = iter([shape(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        parts = [part for part in (shape(part) for part in line.split("…")) if part]
        if parts and not any(_holds(candidate, parts) for candidate in rest):
            return line
    return ""


def _holds(line: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        at = line.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
