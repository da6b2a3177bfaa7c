"""The lines that differ between two versions of a file, and which of them are code."""

from __future__ import annotations

import difflib
import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NATIVE = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".hip", ".cu", ".pyx", ".pxd", ".rs", ".f90", ".go"})
"""Suffixes of files whose comments begin with ``//`` or ``/*``."""
_WIDTH = 160  # maximum characters shown of a changed line
_LONG_LINE, _BEFORE_CHANGE = 80, 24  # the common prefix of longer lines is cut, except its last characters
_LONG = 1000  # characters examined per line: minified files have lines of megabytes
_MOST_CHANGED = 3  # lines shown per side of a hunk


class Hunk(NamedTuple):
    """Consecutive changed lines.

    Attributes:
        line: Head's 1-based number of the first line that is code, or else of the first line.
        diff: The changed lines that are code (or else all), prefixed with "-" or "+", without common indentation.
        added, removed: Numbers of lines.
        is_code: Whether more than comments, brackets and blank lines changed.
    """

    line: int
    diff: tuple[str, ...]
    added: int
    removed: int
    is_code: bool


def hunks_between(before: Path, after: Path) -> list[Hunk]:
    """Return the changed lines in the new file's order; none if a side is not text.

    Args:
        before: The old file; may be missing.
        after: The new file; may be missing.
    """
    try:
        old, new = (path.read_text().splitlines() if path.is_file() else [] for path in (before, after))
    except (OSError, UnicodeDecodeError):
        return []
    native, hunks = after.suffix in NATIVE, []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if tag == "equal":
            continue
        added = [number for number in range(k, m) if _is_code(new[number].strip(), native=native)]
        removed = [number for number in range(i, j) if _is_code(old[number].strip(), native=native)]
        line = next(iter(added), k) if m > k else min(k, max(len(new) - 1, 0))
        gone = [old[number] for number in removed or range(i, j)]
        come = [new[number] for number in added or range(k, m)]
        hunks.append(Hunk(line + 1, _diff_lines(gone, come), m - k, j - i, bool(added or removed)))
    return hunks


def _diff_lines(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the first few changed lines of each side in diff format, without their common indentation."""
    shown = [*before[:_MOST_CHANGED], *after[:_MOST_CHANGED]]
    marks = [*"-" * len(before[:_MOST_CHANGED]), *"+" * len(after[:_MOST_CHANGED])]
    plain = textwrap.dedent("\n".join(line[:_LONG].expandtabs(4) for line in shown)).split("\n")
    plain = _around_change(plain, len(before[:_MOST_CHANGED]))
    cut = (line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…" for line in plain)
    lines = [f"{mark} {line}".rstrip() for mark, line in zip(marks, cut, strict=True)]
    left = max(len(before) - _MOST_CHANGED, 0) + max(len(after) - _MOST_CHANGED, 0)
    return (*lines, f"… {left} more lines") if left else tuple(lines)


def _around_change(lines: Sequence[str], before: int) -> list[str]:
    """Return changed lines; long ones lose most of their common prefix, since the change may be at the end.

    Args:
        lines: Base's lines, then head's.
        before: The number of base's lines.
    """
    shortened = list(lines)
    for old, new in zip(range(before), range(before, len(lines)), strict=False):
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(lines[old], lines[new], strict=False))
        alike = sum(1 for _ in same) - _BEFORE_CHANGE
        if alike > 0 and max(len(lines[old]), len(lines[new])) > _LONG_LINE:
            shortened[old], shortened[new] = (f"…{lines[at][alike:]}" for at in (old, new))
    return shortened


def _is_code(line: str, *, native: bool) -> bool:
    """Whether a line is more than a comment or brackets, judging by this line only."""
    if native:
        return not line.startswith(("/*", "* ")) and bool(re.search(r"\w", line.partition("//")[0]))
    return not line.startswith("#") and bool(re.search(r"\w", line))
