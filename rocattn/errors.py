"""What can go wrong, as types: each also derives from the builtin a caller would catch anyway."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RocattnError(Exception):
    """Base of every error rocattn raises on purpose; its text says what is wrong and what to do."""


class ConfigError(RocattnError, ValueError):
    """Raised when arguments do not describe an attention problem: shapes, dtypes or options disagree."""


class NoBackendError(RocattnError, RuntimeError):
    """Raised when no backend can run a config; ``reasons`` maps each backend's name to why not."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


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
