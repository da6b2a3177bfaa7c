"""The line of a failed program's output that says why it failed."""

from __future__ import annotations

import re

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


def complaint(output: str, otherwise: str = "it printed nothing") -> str:
    """Return the line that says why a program failed, by the shape of what it printed.

    After a Python traceback that is the exception's line. Other programs name the error first and may go on with
    advice: the first line with ``error:``, or else of the shape ``program: what is wrong``. Without these it is the
    last line.

    Args:
        output: What the program printed, standard error last where both are there.
        otherwise: Returned when that is nothing.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if not lines:
        return otherwise
    found = _raised(lines)
    for shape in (_ERROR.search, _NAMED.match):
        found = found or next((line for line in lines if shape(line.strip())), "")
    return (found or lines[-1]).strip()


def _raised(lines: list[str]) -> str:
    """Return the line of the exception that a Python program ended with, or ""."""
    begins = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if begins:
        at = begins[-1]
        indent = len(lines[at]) - len(lines[at].lstrip())
        # Frames are indented further; a message may go on over more lines.
        return next((line for line in lines[at + 1 :] if len(line) - len(line.lstrip()) <= indent), "")
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), "")
