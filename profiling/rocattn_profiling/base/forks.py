"""Work in forks of this process, which share its memory: only results are copied between them."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rocattn.errors import RocattnError
from rocattn_profiling.base.process import Ended, end_with_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 16  # results per process that may wait for earlier ones
_WAITING = 2  # items assigned to one process at a time
_GENERATIONS, _FEWEST = 12, 48  # successive generations of forks, and the fewest items for one


class CrashedError(RocattnError):
    """Raised for work that crashed its process; the message is one line that says how."""


def apart(work: Callable[[], R]) -> R:
    """Return the result of ``work``, run in a fork, since a third-party library may crash on a damaged file.

    Raises:
        CrashedError: The fork crashed.
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
    """Run in the fork of `apart`, where a crash leaves no core dump and prints no stack."""
    _begin(parent)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        told = True, work()
    except Exception as error:  # noqa: BLE001 - raised where it is wanted
        told = False, error
    send.send(told)


def forked(work: Callable[[T], R], items: Sequence[T], jobs: int) -> Iterator[R]:
    """Yield the result of ``work`` for each item, in order.

    Args:
        work: Any function: forks inherit it. Only its results are sent, by pickle.
        items: Its arguments, one per call; a single item runs in this process.
        jobs: Number of processes; 1 does not fork.

    Raises:
        RocattnError: A process was killed.
    """
    if jobs < 2 or len(items) < 2 or sys.platform != "linux":
        yield from map(work, items)
        return
    frozen = gc.get_freeze_count()
    gc.freeze()  # garbage collection in a fork would write to, and so copy, all shared pages
    share = -(-max(_FEWEST, -(-len(items) // _GENERATIONS)) // jobs)
    forks: dict[Connection, _Fork] = {}
    told: dict[int, tuple[bool, Any]] = {}
    begun = 0
    try:
        for at in range(len(items)):
            while at not in told:
                while begun < min(len(items), at + _AHEAD * jobs):
                    free = min((fork for fork in forks.values() if fork.free), key=lambda own: own.begun, default=None)
                    if len(forks) < jobs and (free is None or free.begun):
                        free = _Fork(lambda own: work(items[own]), share)
                        forks[free.connection] = free
                    if free is None:
                        break
                    free.begin(begun)
                    begun += 1
                for connection in wait(list(forks)):
                    fork = forks[cast("Connection", connection)]
                    number, *what = fork.told()
                    told[number] = what[0], what[1]
                    if fork.done:
                        fork.end()
                        del forks[fork.connection]
            done, value = told.pop(at)
            if not done:
                raise value
            yield value
    finally:
        for fork in forks.values():
            fork.end()
        if not frozen:
            gc.unfreeze()


class _Fork:
    """A process that works on some items and is then replaced, since it keeps a copy of every page it touched.

    Args:
        work: Called with each item's index.
        items: Number of items to work on.
    """

    def __init__(self, work: Callable[[int], Any], items: int) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(work, os.getpid(), theirs), daemon=True)
        with _forking():
            self._process.start()
        theirs.close()
        self.begun, self._left = 0, items

    @property
    def free(self) -> bool:
        """Whether it accepts another item: one is queued while it works on one, so that it is never idle."""
        return self._left > 0 and self.begun < _WAITING

    @property
    def done(self) -> bool:
        """Whether it has finished all items."""
        return not self._left and not self.begun

    def begin(self, at: int) -> None:
        """Assign it an item."""
        with suppress(BrokenPipeError):  # `told` says it
            self.connection.send(at)
        self.begun += 1
        self._left -= 1

    def told(self) -> tuple[int, bool, Any]:
        """Return the next finished item, whether it succeeded, and the value or error.

        Raises:
            RocattnError: The process was killed.
        """
        try:
            told: tuple[int, bool, Any] = self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RocattnError("a helper process was killed (out of memory?)") from error
        self.begun -= 1
        return told

    def end(self) -> None:
        """End it, even while it is working."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(work: Callable[[int], Any], parent: int, connection: Connection) -> None:
    """Run in a fork of `forked`."""
    _begin(parent)
    while True:
        at = connection.recv()
        try:
            connection.send((at, True, work(at)))
        except BaseException as error:  # noqa: BLE001 - raised where it is wanted
            error.add_note(traceback.format_exc())
            connection.send((at, False, error))


@contextmanager
def _forking() -> Iterator[None]:
    with warnings.catch_warnings():  # the threads of numpy's BLAS are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _begin(parent: int) -> None:
    """Set up a fork: Ctrl-C ends its parent, which ends the fork."""
    # Another thread may have held a stream's lock, which no thread in this process would release.
    sys.stdout = sys.stderr = None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)
