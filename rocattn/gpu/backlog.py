"""Untimed work in front of what is timed, so that the GPU is still busy with it when the last timed launch is queued.

An idle GPU begins each launch when the host has queued it: the time between two events then holds the host's launching,
which for the two short kernels of a decode step is more than the kernels take. How much work is enough depends on the
GPU and the host, so it is not guessed: after the last timed launch the first event is asked whether the GPU has got
there, and if it has, the same is done again behind twice the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rocattn.gpu.errors import GpuError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rocattn.gpu.driver import Hip
    from rocattn.gpu.runtime import Runtime

SCRATCH_BYTES = 256 << 20
"""What is filled at a time: 50 us at 5 TB/s, several times what the host takes to queue it."""
MOST_FILLS = 1024


class Backlog:
    """Fills of scratch memory, of which as many are queued as were needed so far.

    Used as a context manager, it gives the scratch memory back at the end.

    Args:
        runtime: The device.
        stream: The stream that the timed launches are queued on.
        scratch_bytes: What is filled at a time; a quarter of the free memory if that is less.
        then: Queues what comes between the fills and the timed launches: the launches once more, untimed, if they are
            to find in the caches what they left there. None: they find the caches overwritten.

    Raises:
        DeviceMemoryError: When there is no memory to fill.
    """

    def __init__(
        self, runtime: Runtime, stream: int, then: Callable[[], None] | None, scratch_bytes: int = SCRATCH_BYTES
    ) -> None:
        self._hip, self._pool, self._stream, self._then = runtime.hip, runtime.pool, stream, then
        self._scratch = runtime.pool.take(_within(runtime.hip, scratch_bytes), stream)
        self._fills = 1

    def __enter__(self) -> Self:
        """Hold the scratch memory."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the scratch memory back."""
        self._pool.give(self._scratch)

    def queue(self, start: int) -> None:
        """Queue the untimed work, and behind it the event at which the time begins."""
        for _ in range(self._fills):
            self._hip.poison(self._scratch.address, self._scratch.bytes, self._stream)
        if self._then is not None:
            self._then()
        self._hip.event_record(start, self._stream)

    def was_enough(self, start: int) -> bool:
        """Say, right after the last timed launch, whether the GPU has not got to the first event; if it has, grow.

        Raises:
            GpuError: When no amount of work is enough.
        """
        if not self._hip.event_ready(start):
            return True
        if self._fills >= MOST_FILLS:
            raise GpuError(
                f"nothing can be timed: the GPU waited for the host behind {self._fills} fills of "
                f"{self._scratch.bytes} bytes; something makes each launch wait for the one before "
                "(AMD_SERIALIZE_KERNEL, HIP_LAUNCH_BLOCKING, or a profiler)"
            )
        self._fills *= 2
        return False

    def ahead_of(self, start: int, timed: Callable[[], None]) -> None:
        """Queue what is timed behind enough untimed work: again until it was enough.

        Args:
            start: The event at which the time begins.
            timed: Queues the launches, and the events behind them.

        Raises:
            GpuError: When no amount of work is enough.
        """
        while True:
            self.queue(start)
            timed()
            if self.was_enough(start):
                return


def _within(hip: Hip, wanted: int) -> int:
    free, _ = hip.memory_info()
    return min(wanted, free // 4) if free > 0 else wanted
