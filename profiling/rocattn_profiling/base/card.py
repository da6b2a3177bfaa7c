"""One screen: a command's answer as lines of styled text, with all widths, wrapping, alignment and truncation.

On a terminal, paragraphs are wrapped, but words are not broken, so that names, paths and commands can be copied. In a
log or file a paragraph is one line, and a table is as wide as it needs to be. The console handles colors.

rich is imported inside the functions, so that ``--help`` does not load it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rocattn_profiling.base.markup import line as harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    Part = str | tuple[str, str] | Text
    """Text, text with a style in rich's words, or what is already put together."""

Item = TypeVar("Item")
_NARROWEST, _WIDEST, _LOG, _UNLIMITED = 60, 120, 100, 10_000
_SHORTEST = 20  # minimum columns of a truncated line on a narrow terminal
_WORD = re.compile(r"\s*\S+\s*")
_ASCII = {"…": "...", "µ": "u", "≥": ">", "→": "->", "\u2013": "-", "·": ".", **dict.fromkeys("█▏▎▍▌▋▊▉", "#")}


class Card:
    """Lines for one screen; untrusted text in them is never interpreted as markup.

    Attributes:
        lines: The lines added so far.
        width: Columns for text: 60 to 120, or 100 in a log.
        room: Columns that a table may take: a terminal's full width, unlimited in a log.
        unicode: Whether the output supports more than ASCII.
    """

    def __init__(self, width: int = 0, *, unicode: bool = True) -> None:
        """Begin a card for a terminal with ``width`` columns; 0 is for a log or file."""
        self.lines: list[Text] = []
        self.width = min(max(width, _NARROWEST), _WIDEST) if width else _LOG
        self.room = width or _UNLIMITED
        self.unicode = unicode

    @classmethod
    def of(cls, console: Console) -> Card:
        """Return a card for what a console can show; COLUMNS makes a pipe as narrow as a terminal."""
        limited = console.is_terminal or "COLUMNS" in os.environ
        return cls(console.width if limited else 0, unicode=console.encoding.lower().startswith("utf"))

    def text(self, *parts: Part) -> Text:
        """Return parts as one text."""
        from rich.text import Text

        text = Text()
        for part in parts:
            if isinstance(part, Text):
                text.append_text(part)
            else:
                words, style = (part, "") if isinstance(part, str) else part
                text.append(self.spell(words), style)
        return text

    def spell(self, text: str) -> str:
        """Return text on one line, in characters the output can show, without control sequences."""
        text = harmless(text)
        return text if self.unicode else "".join(_ASCII.get(character, character) for character in text)

    def add(self, *parts: Part, first: Part = "", indent: int | None = None, wrap: bool = True) -> None:
        """Add a paragraph.

        Args:
            parts: Its text.
            first: Prefix of its first line.
            indent: Spaces before its other lines; None for the length of ``first``.
            wrap: Whether lines may be wrapped; False for commands and paths, so that they can be copied.
        """
        from rich.cells import cell_len

        head = self.text(first)
        whole, margin = self.text(head, *parts), head.cell_len if indent is None else indent
        breaks, used = [], head.cell_len
        for word in _WORD.finditer(whole.plain, len(head)) if wrap and self.room < _UNLIMITED else ():
            if word.start() > len(head) and used + cell_len(word[0].rstrip()) > self.width:
                breaks.append(word.start())
                used = margin
            used += cell_len(word[0])
        for number, line in enumerate(whole.divide(breaks)):
            self.lines.append(self.text(" " * margin * bool(number), line))
            self.lines[-1].rstrip()

    def gap(self) -> None:
        """Add an empty line."""
        self.add()

    def some(self, items: Sequence[Item], most: int, rest: str | Callable[[Sequence[Item]], str]) -> Iterator[Item]:
        """Yield the first items for the caller to add; then add a line about the others, if there are any.

        Args:
            items: All items.
            most: Maximum number of items to show.
            rest: The line, in which the first ``#`` is the number of others, or a function of them that returns it.
        """
        yield from items[:most]
        if others := items[most:]:
            self.add((rest(others) if callable(rest) else rest.replace("#", str(len(others)), 1), "dim"), indent=2)

    def rows(
        self, rows: Iterable[Sequence[Part]], *, right: Container[int] = (), gap: int = 2, first: str = ""
    ) -> list[Text]:
        """Return a line per row, with aligned columns; columns without text are left out.

        Args:
            rows: Rows with the same number of cells.
            right: Columns that are right-aligned.
            gap: Spaces between two columns.
            first: Prefix of each line.
        """
        cells = [[self.text(cell) for cell in row] for row in rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
                (cell.pad_left if number in right else cell.pad_right)(width - cell.cell_len)
            filled = [cell for cell, width in zip(row, widths, strict=True) if width]
            lines.append(self.text(first, self.text(" " * gap).join(filled)))
        return lines

    def put(self, lines: Iterable[Text]) -> None:
        """Add lines as they are."""
        for line in lines:
            self.add(line, wrap=False)

    def cut(self, text: str, taken: int = 0) -> str:
        """Return as much of a line as fits next to ``taken`` columns; in a log, all of it."""
        return text if self.room == _UNLIMITED else self.fit(text, max(self.width - taken, _SHORTEST))

    def fit(self, text: str, most: int) -> str:
        """Return text in at most ``most`` columns, with an ellipsis if it is truncated."""
        from rich.cells import cell_len, set_cell_size

        text, dots = self.spell(text), self.spell("…")
        return text if cell_len(text) <= most else set_cell_size(text, most - len(dots)).rstrip() + dots

    def show(self, console: Console) -> None:
        """Print the lines."""
        for line in self.lines:
            console.print(line, soft_wrap=True)

    def __str__(self) -> str:
        return "".join(f"{line.plain}\n" for line in self.lines)


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of others: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
