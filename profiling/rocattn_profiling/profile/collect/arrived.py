"""What a pass really wrote: its dispatches and counters, read with the toolkit's own readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class Arrived(msgspec.Struct, frozen=True):
    """What is in a pass's files.

    Attributes:
        files: The files that hold measurements, below the pass's folder.
        dispatches: Rows of dispatches.
        kernels: Different kernels.
        counters: Counter -> in how many dispatches it is not 0.
        problems: What the readers say is wrong, a line each.
        unread: Why the files could not be read at all, or "".
    """

    files: tuple[str, ...] = ()
    dispatches: int = 0
    kernels: int = 0
    counters: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    unread: str = ""

    def has(self, counter: str) -> bool:
        """Say whether a counter arrived, under its own name or that of its sum (files hold sums over instances)."""
        plain = counter.removesuffix("_sum")
        return bool({counter, plain, f"{plain}_sum"} & self.counters.keys())


def look(folder: Path) -> Arrived:
    """Read everything below a folder."""
    from rocattn_profiling.profile.ingest import read

    try:
        profile = read([folder])
    except Exception as error:  # noqa: BLE001 - a defect of a reader must not end a collection that took an hour
        return Arrived(unread=f"{type(error).__name__}: {error}")
    rows = profile.counters
    live = rows["value"].ne(0).groupby(rows["counter"], observed=True).sum()
    return Arrived(
        files=tuple(sorted({source.file for source in profile.provenance if source.tool and not source.skipped})),
        dispatches=len(profile.dispatches),
        kernels=int(profile.dispatches["kernel"].nunique()),
        counters={str(name): int(count) for name, count in live.items()},
        problems=tuple(str(problem) for problem in profile.problems),
    )
