"""Change points of many lines: over processes where there is so much work that starting them pays."""

from __future__ import annotations

import os
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import Point, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from rocattn_profiling.site.changes.changepoints import CommitChange

    Finder = Callable[[Series, set[str]], Sequence[CommitChange]]

FEW_POINTS = 100_000
"""Points of all lines together that one process is through with in the time that others take to start."""
_LINES = 16  # of one task
_POLITE = 5  # asv's pages are made at the same time, and have an end of time


def spread(
    find: Finder, series: Sequence[Series], starts: Sequence[set[str]], jobs: int
) -> Iterator[list[CommitChange]]:
    """Do as ``map(find, series, starts)`` does, in so many processes; their number changes no result.

    Args:
        find: A function of a module, which another process finds by its name; it gets shas and values only.
        series: Points in commit order.
        starts: Boundaries of each series.
        jobs: Processes.

    Raises:
        RocattnError: When a process was killed.
    """
    if jobs < 2 or sum(len(one.points) for one in series) < FEW_POINTS:
        yield from (list(find(one, begins)) for one, begins in zip(series, starts, strict=True))
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin)
    waiting: deque[Future[list[list[CommitChange]]]] = deque()
    try:
        for at in range(0, len(series), _LINES):
            tasks = [(_lean(series[i]), starts[i]) for i in range(at, min(at + _LINES, len(series)))]
            waiting.append(pool.submit(_found, find, msgspec.msgpack.encode(tasks)))
            if len(waiting) > 4 * jobs:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RocattnError("a helper process that looked for change points was killed (out of memory?)") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _lean(one: Series) -> Series:
    """Return a series without what is not looked at: samples and places are most of it."""
    points = [Point(sha=point.sha, date_ms=0, value=point.value) for point in one.points]
    return msgspec.structs.replace(one, points=points, places={})


def _found(find: Finder, tasks: bytes) -> list[list[CommitChange]]:
    decoded = msgspec.msgpack.decode(tasks, type=list[tuple[Series, set[str]]])
    return [list(find(one, starts)) for one, starts in decoded]


def _begin() -> None:
    """Let Ctrl-C end the main process, which then ends its helpers, and whatever has an end of time go first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_POLITE)
