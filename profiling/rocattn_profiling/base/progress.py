"""How far long work is, for whoever shows progress."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """What is done, launches or passes, of how many as far as is known, and what comes or came last."""

    done: int
    total: int
    what: str
