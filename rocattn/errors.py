"""Exception types, which also derive from the matching builtin, and the reasons why programs failed."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?::|$)")
_ERROR = re.compile(r"\b(?:fatal )?(?:error|fatal): ", re.IGNORECASE)
# The format of shells, loaders and most programs: their name, then the problem.
_NAMED = re.compile(
    r"(?!(?:warning|note|info|hint|debug):)[\w./+-]+: (?!(?:warning|note|info|hint|debug):)"
    r".*\b(?:not found|no such|not a|cannot|can't|could not|failed|denied|unable"
    r"|invalid|unknown|unrecogni[sz]ed|not recogni[sz]ed|unsupported|required|missing)\b",
    re.IGNORECASE,
)


class RocattnError(Exception):
    """Base of every error rocattn raises on purpose; the message states the problem and the remedy."""


class ConfigError(RocattnError, ValueError):
    """Raised when arguments do not describe an attention problem: shapes, dtypes or options conflict."""


class SettingError(RocattnError, ValueError):
    """Raised when an environment variable has an invalid value; the message lists the valid ones."""


class BackendWarning(RuntimeWarning):
    """Issued once per process for a backend that would be selected but does not work here, with the remedy."""


class NoBackendError(RocattnError, RuntimeError):
    """Raised when no backend can run a config; ``reasons`` maps each backend's name to the reason."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[NoBackendError], tuple[str, dict[str, str]]]:
        """Return how to recreate it: pickle would call the class with only the message."""
        return type(self), (str(self), self.reasons)


class ToolchainError(RocattnError, RuntimeError):
    """Raised when no compiler is found or a kernel does not compile.

    Attributes:
        command: The command that failed; also a note on the exception, so that ``--debug`` shows it.
        output: Everything the command printed.
    """

    def __init__(self, message: str, *, command: Sequence[str] = (), output: str = "") -> None:
        super().__init__(message)
        self.command = tuple(command)
        self.output = output
        if command:
            self.add_note(f"command: {shlex.join(command)}\n{output}".rstrip())


def signal_name(number: int) -> str:
    """Return a signal's name; Python has none for most real-time signals."""
    import signal  # takes a millisecond: not spent on successful calls

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def complaint(output: str, otherwise: str = "it printed nothing") -> str:
    """Return the line that explains a program's failure from its output.

    After a Python traceback, that is the exception's line. Other programs print the error first, perhaps followed by
    advice: the first line with ``error:``, or else of the form ``program: problem``. Otherwise it is the last
    line.

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
    """Return the line of the exception that ended a Python program, or ""."""
    begins = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if begins:
        at = begins[-1]
        indent = len(lines[at]) - len(lines[at].lstrip())
        # Frames are indented more; a message may have several lines.
        return next((line for line in lines[at + 1 :] if len(line) - len(line.lstrip()) <= indent), "")
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), "")
