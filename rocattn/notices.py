"""Messages of the library for users on stderr; ``ROCATTN_QUIET=1`` silences them."""

from __future__ import annotations

import os
import sys


def quiet() -> bool:
    """Return whether ``ROCATTN_QUIET`` is on."""
    return os.environ.get("ROCATTN_QUIET", "") not in {"", "0"}


def notice(text: str) -> None:
    """Print one line on stderr unless ``ROCATTN_QUIET`` is set."""
    if not quiet():
        print(f"rocattn: {text}", file=sys.stderr, flush=True)
