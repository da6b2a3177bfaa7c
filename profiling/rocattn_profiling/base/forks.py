"""Work in forks of this process, which share what it has read: nothing but results is copied between them."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from rocattn.errors import RocattnError
from rocattn_profiling.base.process import Ended, end_with_parent

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 4  # results for each process that wait for those before them
_GENERATIONS, _FEWEST = 12, 48  # of forks, one after the other, and items of one
_work: Callable[[int], Any] | None  # of a fork: it inherits what cannot be sent


class CrashedError(RocattnError):
    """Raised for work that ended its process; one line that says how."""


def apart(work: Callable[[], R]) -> R:
    """Return what ``work`` returns in a fork: a library of others may end that for what is in a damaged file.

    Raises:
        CrashedError: When it did.
    """
    if sys.platform != "linux":
        return work()
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(work, os.getpid(), send))
    with _forking():
        process.start()
    send.close()
    try:
        done, value = receive.recv()
    except EOFError:
        process.join()
        raise CrashedError(Ended(process.exitcode, 0.0).how) from None
    finally:
        process.kill()  # it may not have ended when Ctrl-C comes; else it has told all
        process.join()
        receive.close()
    if not done:
        raise value
    return value  # type: ignore[no-any-return]


def _tell(work: Callable[[], Any], parent: int, send: Connection) -> None:
    """Be the fork of `apart`, whose crash leaves no core and prints no stack."""
    _begin(parent)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        told = True, work()
    except Exception as error:  # noqa: BLE001 - raised where it is wanted
        told = False, error
    send.send(told)


def forked(work: Callable[[T], R], items: Sequence[T], jobs: int) -> Iterator[R]:
    """Yield what ``work`` returns for each item, in order.

    Args:
        work: May be any function: forks inherit it. Only what it returns is sent, by pickle.
        items: What it is called with, in this process if there is only one.
        jobs: Number of processes; 1 forks none.

    Raises:
        RocattnError: When a process was killed.
    """
    if jobs < 2 or len(items) < 2 or sys.platform != "linux":
        yield from map(work, items)
        return
    frozen = gc.get_freeze_count()
    gc.freeze()  # a collection in a fork would write to everything it shares, and so copy it
    some = max(_FEWEST, -(-len(items) // _GENERATIONS))
    try:
        for at in range(0, len(items), some):
            yield from _generation(work, items[at : at + some], jobs)
    except BrokenProcessPool as error:
        raise RocattnError("a helper process was killed (out of memory?)") from error
    finally:
        if not frozen:
            gc.unfreeze()


def _generation(work: Callable[[T], R], items: Sequence[T], jobs: int) -> Iterator[R]:
    """Work in forks that end together: each keeps a copy of all that it ever touched."""
    pool = ProcessPoolExecutor(
        min(jobs, len(items)), get_context("fork"), initializer=_begin,
        initargs=(os.getpid(), lambda at: work(items[at])),
    )  # fmt: skip
    waiting: deque[Future[R]] = deque()
    try:
        for at in range(len(items)):
            with _forking():
                waiting.append(pool.submit(_call, at))
            if len(waiting) > _AHEAD * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _forking() -> Iterator[None]:
    with warnings.catch_warnings():  # the threads of numpy's BLAS are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _begin(parent: int, work: Callable[[int], Any] | None = None) -> None:
    """Begin a fork: Ctrl-C ends the process that made it, and that this one."""
    global _work  # noqa: PLW0603 - a task is called by its name alone
    _work = work
    # Another thread may have held a stream's lock, which then nothing in this process releases.
    sys.stdout = sys.stderr = None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def _call(at: int) -> Any:
    assert _work is not None, "the fork began with it"
    return _work(at)
