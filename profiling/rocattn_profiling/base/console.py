"""Terminal output that commands share: progress on stderr, JSON only on stdout, tables, clean exits on signals.

rich and msgspec are imported inside the functions, so that ``--help`` does not load them.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

    Handlers = dict[signal.Signals, Any]

_WHAT = 160  # maximum characters of a step, since a label may be long
_GAP = 3  # spaces between two columns of a table
_ELAPSED_TERMINAL_S, _ELAPSED_LOG_S = 20.0, 60.0  # interval between two lines about a long step
_ENDING = {signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal was closed"}
_STARTS = (ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__)
_LOADED_S = 0.01  # delay before re-raising a signal that arrived while a compiled module was loading
_kept: list[tuple[IO[str], int]] = []  # stdout and its descriptor while `json_alone` reserves them


def add_common(parser: argparse.ArgumentParser, *, out: str | None = None) -> None:
    """Add ``--json`` and, if the command writes files, ``--out`` with its default."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, and nothing else there")
    if out is not None:
        parser.add_argument("--out", default=out, metavar="DIR", help=f"folder to write to (default {out})")


def stderr() -> Console:
    """Return the console for messages; for its colors see `stdout`."""
    return _console(stderr=True)


def stdout() -> Console:
    """Return the console for a command's answer: with color only on a terminal, without NO_COLOR or TERM=dumb."""
    return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    # With NO_COLOR, rich would still write bold text.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    # Labels may contain brackets and colons, which rich would parse as its own markup.
    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False, color_system=colours)


def say(*lines: str) -> None:
    """Print messages on stderr; untrusted text in them is not interpreted as markup."""
    from rocattn_profiling.base.markup import line

    print(*map(line, lines), sep="\n", file=sys.stderr, flush=True)


@contextmanager
def steps(title: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that announces each step on stderr: with a spinner on a terminal, otherwise with a line."""
    console = stderr()
    if not console.is_terminal:
        yield lambda what: say(f"{title}: {what}")
        return
    with console.status(title) as status:
        yield lambda what: status.update(f"{title}: {what}")


@contextmanager
def saying_elapsed(what: str, say_line: Callable[[str], None]) -> Iterator[None]:
    """Report the elapsed time of a long block at intervals, which are shorter on a terminal than in a log.

    Args:
        what: The activity, as the beginning of the line.
        say_line: Prints one line.
    """
    every_s = _ELAPSED_TERMINAL_S if sys.stderr.isatty() else _ELAPSED_LOG_S
    started, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            say_line(f"{what}: {duration(time.monotonic() - started)} so far")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def open_streams() -> None:
    """Reopen standard streams that the parent closed, so that no other file gets their descriptors.

    Output to a closed stderr is only messages and is dropped, as it is on a full disk. Output to a closed stdout was
    requested, so writing it fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY), number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr, standard = sys.stderr or os.fdopen(2, "w", closefd=False), sys.__stderr__
    if standard is not None and sys.stderr is standard and standard.fileno() == 2:
        raw = io.BufferedWriter(_ForPeople(2, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, standard.encoding, standard.errors, line_buffering=True)


class _ForPeople(io.FileIO):
    """A stream that drops output if the disk is full, since an unwritable log must not end a measurement."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some bytes."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            return memoryview(data).nbytes


def spell_out() -> None:
    """Make stdout escape characters that its encoding lacks, like stderr: a name must not crash a command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def print_utf8(text: str) -> None:
    """Print text for programs in UTF-8 in any locale, since JSON and XML require it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    print(text, end="", flush=True)


def at_end(handler: Callable[[int, FrameType | None], Any]) -> Handlers:
    """Install a handler for a stopped job or closed terminal; return the previous ones, for `restore`.

    An ignored signal (SIGHUP under nohup) stays ignored. Ctrl-C is not affected.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        return {}
    former = {number: signal.getsignal(number) for number in (*_ENDING, signal.SIGINT)}
    former = {number: was for number, was in former.items() if was not in {signal.SIG_IGN, None}}
    for number, was in former.items():
        wanted = handler if number in _ENDING else was
        signal.signal(number, _between_loads(wanted) if callable(wanted) else wanted)
    return former


def _between_loads(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
    """Return a handler that raises, but not while a compiled module is loading, whose own imports would then fail.

    Not every module checks for a failed import: msgspec dropped the exception, and crashed minutes later because
    datetime was missing.
    """

    def heard(number: int, frame: FrameType | None) -> Any:
        caller = frame
        while caller is not None:
            if caller.f_code in _STARTS:
                # Send it to the waiting thread: a signal to another thread does not interrupt its system call.
                again = threading.Timer(_LOADED_S, signal.pthread_kill, (threading.get_ident(), number))
                again.daemon = True
                return again.start()
            caller = caller.f_back
        return handler(number, frame)

    return heard


class EndedError(KeyboardInterrupt):
    """Raised on a signal of `at_end`; any other exception from a backend, even SystemExit, is the backend's failure."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = signal.Signals(number)


def ending(how: str) -> str:
    """Return the last line of a command that a signal ended: how it ended, and what is kept."""
    from rocattn_profiling.base.journal import kept

    return "; ".join(filter(None, [how, kept()]))


def restore(former: Handlers) -> None:
    """Restore previous handlers."""
    for number, handler in former.items():
        signal.signal(number, handler)


@contextmanager
def cleanly(command: str) -> Iterator[None]:
    """Unwind on the signals of `at_end`, so that child processes end too, and finally say what is kept.

    Also makes sure that failures of started programs are noticed, even if SIGCHLD was ignored.
    """
    from rocattn_profiling.base.process import end_started

    def ended(number: int, _frame: FrameType | None) -> NoReturn:
        end_started()  # threads may be waiting for them
        raise EndedError(number)

    with suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # then every failed program would appear to exit with 0
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    former = at_end(ended)
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        told = error.__cause__ if isinstance(error, RuntimeError) else error  # 3.11 wraps exceptions in __set_name__
        if not isinstance(told, KeyboardInterrupt):
            raise
        if not isinstance(told, EndedError):
            raise told from None
        with suppress(OSError):  # no terminal is left to write to
            say(f"rocattn {command}: {ending(_ENDING[told.number])}", *getattr(told, "__notes__", ()))
        raise SystemExit(128 + told.number) from None
    finally:
        restore(former)


@contextmanager
def json_alone(wanted: bool) -> Iterator[None]:
    """Reserve stdout for `emit_json`: other output (a user's backend, its module, native code) goes to stderr."""
    if wanted:
        _kept.append((sys.stdout, -1))
        with suppress(OSError, ValueError):  # in tests stdout has no descriptor, or another one
            if (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2):
                _kept[-1] = (sys.stdout, os.dup(1))
                os.dup2(2, 1)
        sys.stdout = sys.stderr
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    while _kept:
        stream, descriptor = _kept.pop()
        if descriptor >= 0:
            os.dup2(descriptor, 1)
            os.close(descriptor)
        sys.stdout = stream


def emit_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value), indent=2)
    _give_back()
    print_utf8(f"{encoded.decode()}\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1, answer: bool = False
) -> None:
    """Print a table; every column but the keys is right-aligned.

    No cell is truncated. On a pipe the table is as wide as it needs to be. On a narrower terminal it is split into
    parts below each other, each of which repeats the key columns.

    Args:
        title: Printed above the table.
        columns: The columns' names.
        rows: Rows with one cell per column.
        keys: How many of the first columns identify a row (kernel and architecture: 2).
        answer: Whether it is the command's answer, and goes to stdout; otherwise it goes to stderr.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    from rocattn_profiling.base.markup import line

    console = stdout() if answer else stderr()
    title, columns, rows = line(title), [line(name) for name in columns], [[line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) + _GAP for column in zip(columns, *rows, strict=True)]
    if not console.is_terminal:
        console.width = max(console.width, sum(widths))
    room = console.width - min(sum(widths[:keys]), console.width // 2) + _GAP
    parts: list[list[int]] = [[]]
    for index in range(keys, len(columns)):
        if parts[-1] and sum(widths[each] for each in (*parts[-1], index)) > room:
            parts.append([])
        parts[-1].append(index)
    for part in parts:
        table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for index in (*range(keys), *part):
            whole = index >= keys and widths[index] <= room  # otherwise wrap it, since no cell is truncated
            table.add_column(
                columns[index], justify="right" if index >= keys else "left", no_wrap=whole, overflow="fold"
            )
        for row in rows:
            table.add_row(*(row[index] for index in (*range(keys), *part)))
        console.print(table)
        title = ""


def duration(seconds: float) -> str:
    """Return a duration for display: ``40 s``, ``6 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(round(minutes / 5) * 5, 60)
    return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"


class Progress:
    """Progress with an ETA: a live bar on a terminal, a line every few seconds elsewhere (CI logs).

    With ``brief`` it prints nothing if it ends before its first line is due. ``phased`` is for `Progress.show`.
    """

    def __init__(self, title: str, total: int, *, phased: bool = False, brief: bool = False) -> None:
        self.title, self.total, self.done = title, total, 0
        self._started = self._last = time.monotonic()
        self._quiet_s, self._brief = 15.0 if phased else 5.0, brief
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            count = () if phased else (MofNCompleteColumn(), TimeRemainingColumn())
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20 if phased else 40), *count)
            self._bar = Bar(*columns, TextColumn("{task.fields[what]}", markup=False), console=stderr())
            self._task = self._bar.add_task(title, total=total, what="")
            self._bar.start()

    def expect(self, total: int) -> None:
        """Change the total number of steps."""
        if not self.total:
            self._started = self._last = time.monotonic()  # earlier time says nothing about the time per step
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def step(self, what: str = "", count: int = 1) -> None:
        """Count finished steps and name the last one."""
        from rocattn_profiling.base.markup import terminal

        self.done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, what=terminal(what, _WHAT))
            return
        now = time.monotonic()
        if now - self._last >= self._quiet_s or (self.done >= self.total and not self._brief):
            self._last, self._brief = now, False
            left = (now - self._started) / max(self.done, 1) * (self.total - self.done)
            told = f", {terminal(what, _WHAT)}" if what else ""
            say(f"{self.title}: {self.done}/{self.total}, {left:.0f} s left{told}")

    def show(self, step: Step) -> None:
        """Show the progress of a run with several phases: a bar per phase, and the time left for the whole run."""
        from rocattn_profiling.base.markup import terminal

        left = "" if step.left_s is None else f", about {duration(step.left_s)} left"
        if self._bar is not None:
            count = f" ({step.done} of {step.total})" if step.total else ""
            what = f"{step.what}{count}{left}{': ' if step.of else ''}{step.of}"
            total = step.total or None  # a phase of unknown length pulses
            self._bar.update(self._task, completed=step.done, total=total, what=terminal(what, _WHAT))
            return
        now = time.monotonic()
        if now - self._last >= self._quiet_s:
            self._last = now
            count = f": {step.done} of {step.total}" if step.total else ""
            say(f"{self.title}: {terminal(step.what, _WHAT)}{count}{left}")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(title: str, total: int, *, brief: bool = False, phased: bool = False) -> Iterator[Progress]:
    """Show progress while the block runs; arguments: see `Progress`."""
    shown = Progress(title, total, brief=brief, phased=phased)
    try:
        yield shown
    finally:
        shown.stop()


class Step(NamedTuple):
    """Progress of one phase.

    Attributes:
        done, total: Launches, passes or benchmarks; a total of 0 means unknown.
        what: A description of the phase, or the name of the current or last step.
        left_s: Seconds left for the whole run; None if unknown.
        of: The name of the current step, if ``what`` is the phase.
    """

    done: int
    total: int
    what: str
    left_s: float | None = None
    of: str = ""
