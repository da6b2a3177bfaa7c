"""One screen: a command's answer as lines of styled text. Widths, wrapping, alignment and cuts are decided here alone.

On a terminal, paragraphs are wrapped; no word is broken, so that names, paths and commands can be copied. In a log and
in a file a paragraph is one line, and a table is as wide as it needs to be. Colors are the console's business.

rich is imported inside the functions, so that ``--help`` does not pay for it.
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
_SHORTEST = 20  # columns of a line that is cut, however narrow the terminal
_WORD = re.compile(r"\s*\S+\s*")
_ASCII = {"…": "...", "µ": "u", "≥": ">", "→": "->", "\u2013": "-", "·": ".", **dict.fromkeys("█▏▎▍▌▋▊▉", "#")}


class Card:
    """Lines for one screen; foreign text in them is text, whatever it holds.

    Attributes:
        lines: What was added.
        width: Columns that texts are laid out for: 60 to 120, 100 in a log.
        room: Columns that a table may take: all of a terminal, without limit in a log.
        unicode: Whether the output takes more than ASCII.
    """

    def __init__(self, width: int = 0, *, unicode: bool = True) -> None:
        """Begin a card for a terminal of so many columns; without any, for a log or a file."""
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
        """Return text on one line, in what the output can show, without anything that acts on a terminal or a log."""
        text = harmless(text)
        return text if self.unicode else "".join(_ASCII.get(character, character) for character in text)

    def add(self, *parts: Part, first: Part = "", indent: int | None = None, wrap: bool = True) -> None:
        """Add a paragraph.

        Args:
            parts: Its text.
            first: What its first line begins with.
            indent: Blanks before its other lines; None for the length of ``first``.
            wrap: Whether lines may be broken; commands and paths are not, so that they can be copied.
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
        """Yield the first items, to be added; then add a line about the others, if there are any.

        Args:
            items: All of them.
            most: How many are shown.
            rest: The line, in which the first ``#`` is their number, or what returns it for them.
        """
        yield from items[:most]
        if others := items[most:]:
            self.add((rest(others) if callable(rest) else rest.replace("#", str(len(others)), 1), "dim"), indent=2)

    def rows(
        self, rows: Iterable[Sequence[Part]], *, right: Container[int] = (), gap: int = 2, first: str = ""
    ) -> list[Text]:
        """Return a line for each row, with its cells below each other; columns without text take no room.

        Args:
            rows: As many cells each.
            right: Columns that are aligned at the right.
            gap: Blanks between two columns.
            first: What each line begins with.
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
        """Return as much of a line as fits beside so many columns; in a log all of it."""
        return text if self.room == _UNLIMITED else self.fit(text, max(self.width - taken, _SHORTEST))

    def fit(self, text: str, most: int) -> str:
        """Return text in at most so many columns, with an ellipsis where it is cut."""
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
    """Return the first names, and how many others there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
