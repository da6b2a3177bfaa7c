"""What commands share in talking to people and programs: progress on stderr, JSON alone on stdout, tables.

rich and msgspec are imported inside the functions, so that ``--help`` does not pay for them.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import Console


_WHAT = 160  # characters of a step: a label may be long


def add_common(parser: argparse.ArgumentParser, *, out: str | None = None) -> None:
    """Add ``--json`` and, if the command writes files, ``--out`` with its default."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, and nothing else there")
    if out is not None:
        parser.add_argument("--out", default=out, metavar="DIR", help=f"folder to write to (default {out})")


def stderr() -> Console:
    """Return the console for people; rich itself honours NO_COLOR and plain pipes."""
    from rich.console import Console

    # Labels may hold brackets and colons, which rich would take for its own markup, or for an error in it.
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def say(message: str) -> None:
    """Print one line for people on stderr."""
    print(message, file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value), indent=2)
    print(encoded.decode(), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stderr; every column but the first is right-aligned.

    No cell is cut: a narrow terminal gets wrapped cells, a pipe (which has no width) as wide a table as it takes.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = stderr()
    if not console.is_terminal:
        needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        console.width = max(console.width, needed)
    console.print(table)


class Progress:
    """Progress with an ETA: a live bar on a terminal, a line every few seconds elsewhere (CI logs).

    What is ``brief`` has no last line when it was over before the first was due.
    """

    def __init__(self, title: str, total: int, *, quiet_s: float = 5.0, brief: bool = False) -> None:
        self.title, self.total, self.done = title, total, 0
        self._started = self._last = time.monotonic()
        self._quiet_s, self._brief = quiet_s, brief
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, TextColumn("{task.fields[what]}", markup=False), console=stderr())
            self._task = self._bar.add_task(title, total=total, what="")
            self._bar.start()

    def expect(self, total: int) -> None:
        """Change how many steps there will be in all."""
        if not self.total:
            self._started = self._last = time.monotonic()  # what came before has no steps to foretell others by
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def step(self, what: str = "", count: int = 1) -> None:
        """Count finished steps and say what the last one was."""
        from rocattn_profiling.markup import terminal

        self.done += count
        what = terminal(what, _WHAT)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, what=what)
            return
        now = time.monotonic()
        if now - self._last >= self._quiet_s or (self.done >= self.total and not self._brief):
            self._last, self._brief = now, False
            left = (now - self._started) / max(self.done, 1) * (self.total - self.done)
            say(f"{self.title}: {self.done}/{self.total}, {left:.0f} s left{', ' + what if what else ''}")

    def stop(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(title: str, total: int, *, brief: bool = False) -> Iterator[Progress]:
    """Show progress for the length of a block."""
    shown = Progress(title, total, brief=brief)
    try:
        yield shown
    finally:
        shown.stop()
