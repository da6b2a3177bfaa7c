"""The ``rocattn`` command: a table of verbs, each a folder whose module `command` is imported only when it is used."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import rocattn
from rocattn.errors import RocattnError
from rocattn_profiling.base.console import cleanly, ending, json_alone, open_streams, say, spell_out
from rocattn_profiling.base.status import NOT_MEASURED, USAGE, CommandError

# Verb -> one line of help. Each verb's `command` has `prepare(parser)` and `run(arguments) -> exit status`.
VERBS = {
    "doctor": "show what this machine has (compilers, GPU, profilers, backends) and what is missing",
    "bench": "time attention backends on workload grids, checking every output",
    "verify": "check every available backend against float64",
    "memory": "measure peak memory against sequence length, and what fits in a budget",
    "plan": "print the kernel launches of one attention problem on one GPU architecture, without a GPU",
    "kernels": "build the GPU kernels, audit their machine code, calculate occupancy",
    "profile": "run a command under an AMD profiler: times, then counters in passes the hardware takes",
    "gate": "measure two revisions side by side and fail on a proven regression",
    "report": "write a report (HTML, Markdown, JSON) from measured records, or from a profiler's files",
    "site": "publish the history website: asv's pages and our own",
    "ci": "the main job: verify, bench, audit, gate against the parent commit, profile, report and site",
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors have our exit status and say one line."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse types it NoReturn; sys.exit is that
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Take "--" for the value that it is in `--base=--`, for which argparse gives an empty list."""
        if not action.option_strings or arg_strings != ["--"]:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value if action.nargs is None else [value]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is no choice, with the one that was probably meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if guess := _closest(str(value), map(str, action.choices or ())):
                error.message = f"invalid choice: {value!r}, did you mean {guess!r}?"
            raise

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help and version; argparse's own method ignores write errors."""
        (file or sys.stderr).write(message)


class _VerbParser(_Parser):
    """The parser of a command and of each of its subcommands, which argparse makes of the same class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"epilog": "exit status: see rocattn --help"} | options)
        text = "show the traceback of an error"
        # Without a default, so that a subcommand does not reset its command's value.
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown options here; argparse leaves that to the parent command, whose --help lacks the options."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word for word in unknown if word.startswith("--")]
            guess = _closest(options[0].partition("=")[0], self._option_string_actions) if options else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f', did you mean {guess}?' if guess else ''}")
        return known, unknown


def _closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that a mistyped one is nearest to; "" if it is near none."""
    from difflib import get_close_matches  # not where all is well

    return next(iter(get_close_matches(word, known, 1)), "")


def _top_parser() -> argparse.ArgumentParser:
    lines = [f"  {verb:8} {text}" for verb, text in VERBS.items()]
    epilog = (
        "exit status: 0 fine, 1 the thing checked failed, 2 undecided under --strict,\n"
        "3 nothing or not everything was measured, 4 usage or environment error, 130 interrupted (Ctrl-C),\n"
        "143 terminated"
    )
    parser = _Parser(
        prog="rocattn",
        usage="rocattn [--version] [--debug] COMMAND ...",
        description="Keeps attention kernels right and fast.\n\ncommands:\n" + "\n".join(lines),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rocattn {rocattn.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("command", choices=VERBS, metavar="COMMAND", help=argparse.SUPPRESS)
    rest = parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False  # or argparse names it beside COMMAND where only that is missing
    return parser


def parser_for(verb: str, *, debug: bool = False) -> argparse.ArgumentParser:
    """Return the parser of one command, importing its module."""
    text = VERBS[verb]
    parser = _VerbParser(prog=f"rocattn {verb}", description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(debug=debug)
    import_module(f"rocattn_profiling.{verb}.command").prepare(parser)
    return parser


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse what follows the name of a command; where that alone does nothing, its help is the usage error."""
    if not words and any(action.choices and not action.option_strings for action in parser._actions):  # noqa: SLF001
        parser.print_help(sys.stderr)
        sys.exit(USAGE)
    return parser.parse_args(words)


def main(argv: list[str] | None = None) -> int:
    """Run one command; an expected error is one line on stderr and its exit status, never a traceback."""
    name, debug = "rocattn", False
    open_streams()
    spell_out()
    try:
        try:
            top = _parsed(_top_parser(), sys.argv[1:] if argv is None else argv)
            name, debug = f"rocattn {top.command}", top.debug
            with cleanly(top.command):
                arguments = _parsed(parser_for(top.command, debug=debug), top.rest)
                debug = arguments.debug
                with json_alone(getattr(arguments, "json", False)):
                    return int(import_module(f"rocattn_profiling.{top.command}.command").run(arguments))
        finally:
            sys.stdout.flush()  # here, where an error has its line; not when the interpreter ends
    except RocattnError as error:
        if debug:
            _complain(traceback.format_exc().rstrip())
        _complain(f"{name}: {error}", *getattr(error, "__notes__", ()))
        return error.status if isinstance(error, CommandError) else USAGE
    except KeyboardInterrupt as error:
        _complain(f"{name}: {ending('interrupted')}", *getattr(error, "__notes__", ()))
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output (head, less) has gone: not an error of ours
        _drop(sys.stdout)
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - shown whole; Python's own status for it, 1, would read as a regression
        return _unexpected(name, error, debug=debug)


def _drop(stream: IO[str]) -> None:
    """Discard a stream's buffer, or the interpreter writes it again at exit, and ends with a status of its own."""
    with suppress(OSError):  # a stream that is not a file, in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unexpected(name: str, error: Exception, *, debug: bool) -> int:
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EBADF}:
        if not error.filename:
            _drop(sys.stdout)
        if not debug:
            where = error.filename or "the output to stdout"
            _complain(f"{name}: cannot write {where}: {error.strerror}")
            return USAGE
    if isinstance(error, FileNotFoundError) and not debug and _is_nowhere():
        _complain(f"{name}: the working directory no longer exists: change to one that does")
        return USAGE
    _complain(traceback.format_exc().rstrip())
    _complain(f"{name}: this is a bug in rocattn: please report the lines above")
    return NOT_MEASURED


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _complain(*lines: str) -> None:
    """Print on stderr; if that fails, as on a full disk, the exit status is still ours."""
    try:
        say(*(each for line in lines for each in line.splitlines()))
    except OSError:
        _drop(sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
