"""Work in forks of this process, which share what it has read: nothing but results is copied between them."""

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
_AHEAD = 16  # results for each process that wait for those before them
_WAITING = 2  # items at one process
_GENERATIONS, _FEWEST = 12, 48  # of forks, one after the other, and items of one


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
    """A process that works on some items, and makes way for a new one: it keeps a copy of all that it ever touched.

    Args:
        work: What is called with each.
        items: How many it works on.
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
        """Whether it takes another item: one waits while it works on one, so that it need not wait for us."""
        return self._left > 0 and self.begun < _WAITING

    @property
    def done(self) -> bool:
        """Whether it has worked on all."""
        return not self._left and not self.begun

    def begin(self, at: int) -> None:
        """Give it an item."""
        with suppress(BrokenPipeError):  # `told` says it
            self.connection.send(at)
        self.begun += 1
        self._left -= 1

    def told(self) -> tuple[int, bool, Any]:
        """Return the next item that it has worked on, whether without an error, and the value or error.

        Raises:
            RocattnError: When it was killed.
        """
        try:
            told: tuple[int, bool, Any] = self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RocattnError("a helper process was killed (out of memory?)") from error
        self.begun -= 1
        return told

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(work: Callable[[int], Any], parent: int, connection: Connection) -> None:
    """Be a fork of `forked`."""
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
    """Begin a fork: Ctrl-C ends the process that made it, and that this one."""
    # Another thread may have held a stream's lock, which then nothing in this process releases.
    sys.stdout = sys.stderr = None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)
