"""Exception types, which also derive from the builtin a caller would catch, and the reasons of failed programs."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?::|$)")
_ERROR = re.compile(r"\b(?:fatal )?(?:error|fatal): ", re.IGNORECASE)
# As shells, loaders and most programs complain: their name first, then what is wrong.
_NAMED = re.compile(
    r"(?!(?:warning|note|info|hint|debug):)[\w./+-]+: (?!(?:warning|note|info|hint|debug):)"
    r".*\b(?:not found|no such|not a|cannot|can't|could not|failed|denied|unable"
    r"|invalid|unknown|unrecogni[sz]ed|not recogni[sz]ed|unsupported|required|missing)\b",
    re.IGNORECASE,
)


class RocattnError(Exception):
    """Base of every error rocattn raises on purpose; its text says what is wrong and what to do."""


class ConfigError(RocattnError, ValueError):
    """Raised when arguments do not describe an attention problem: shapes, dtypes or options disagree."""


class SettingError(RocattnError, ValueError):
    """Raised when an environment variable that the user set cannot be obeyed; the text says what is possible."""


class BackendWarning(RuntimeWarning):
    """Issued once a process for a backend that would have been chosen and does not work here; says what to do."""


class NoBackendError(RocattnError, RuntimeError):
    """Raised when no backend can run a config; ``reasons`` maps each backend's name to why not."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[NoBackendError], tuple[str, dict[str, str]]]:
        """Return how to make it again: pickle would call the class with the message alone."""
        return type(self), (str(self), self.reasons)


class ToolchainError(RocattnError, RuntimeError):
    """Raised when no compiler is found or a kernel does not compile.

    Attributes:
        command: The command that failed; also a note on the exception, so ``--debug`` shows it.
        output: Everything that command printed.
    """

    def __init__(self, message: str, *, command: Sequence[str] = (), output: str = "") -> None:
        super().__init__(message)
        self.command = tuple(command)
        self.output = output
        if command:
            self.add_note(f"command: {shlex.join(command)}\n{output}".rstrip())


def signal_name(number: int) -> str:
    """Return a signal's name; Python has none for most of the real-time ones."""
    import signal  # a millisecond, which no call that works should take

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def complaint(output: str, otherwise: str = "it printed nothing") -> str:
    """Return the line of a program's output that explains its failure.

    After a Python traceback that is the exception's line. Other programs name the error first and may go on with
    advice: the first line with ``error:``, or else of the shape ``program: what is wrong``. Without these it is the
    last line.

    Args:
        output: The program's output, standard error last if both are given.
        otherwise: Returned for empty output.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if not lines:
        return otherwise
    reason = _raised(lines)
    for shape in (_ERROR.search, _NAMED.match):
        reason = reason or next((line for line in lines if shape(line.strip())), "")
    return (reason or lines[-1]).strip()


def _raised(lines: list[str]) -> str:
    """Return the line of the exception that a Python program ended with, or ""."""
    begins = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if begins:
        at = begins[-1]
        indent = len(lines[at]) - len(lines[at].lstrip())
        # Frames are indented further; a message may go on over more lines.
        return next((line for line in lines[at + 1 :] if len(line) - len(line.lstrip()) <= indent), "")
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), "")
