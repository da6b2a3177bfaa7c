"""Queue untimed work ahead of timed launches, so that the GPU is still busy when the last of them is queued.

An idle GPU starts each launch as soon as the host has queued it, so the time between two events includes the host's
launch overhead, which for the two short kernels of a decode step exceeds their own time. The right amount of work
depends on GPU and host, so it is found by doubling: if the GPU has already reached the first event when the last timed
launch is queued, the measurement is repeated after twice the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rocattn.gpu.driver import Hip
from rocattn.gpu.errors import GpuError
from rocattn.gpu.memory import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SCRATCH_BYTES = 256 << 20
"""Bytes of one fill: 50 us at 5 TB/s, several times the host's time to queue it."""
MOST_FILLS = 1024


class Backlog:
    """Queues fills of scratch memory, as many as were necessary so far.

    As a context manager it frees the scratch memory at the end.

    Args:
        hip: The device's driver.
        pool: The device's memory.
        stream: The stream of the timed launches.
        scratch_bytes: Bytes per fill; at most a quarter of the free memory.
        then: Queues work between the fills and the timed launches: another, untimed copy of the launches for warm
            caches. None leaves the caches overwritten.

    Raises:
        DeviceMemoryError: When there is no memory for the scratch.
    """

    def __init__(
        self, hip: Hip, pool: Pool, stream: int, then: Callable[[], None] | None, scratch_bytes: int = SCRATCH_BYTES
    ) -> None:
        self._hip, self._pool, self._stream, self._then = hip, pool, stream, then
        self._scratch = pool.take(_within(hip, scratch_bytes), stream)
        self._fills = 1

    def __enter__(self) -> Self:
        """Return self, with the scratch memory allocated."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the scratch memory."""
        self._pool.give(self._scratch)

    def queue(self, start: int) -> None:
        """Queue the untimed work, followed by the event that starts the timing."""
        for _ in range(self._fills):
            self._hip.poison(self._scratch.address, self._scratch.bytes, self._stream)
        if self._then is not None:
            self._then()
        self._hip.event_record(start, self._stream)

    def was_enough(self, start: int) -> bool:
        """Return, right after the last timed launch, whether the first event is still pending; if not, double the work.

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
        """Queue the timed launches after untimed work, repeating until there was enough of it.

        Args:
            start: The event that starts the timing.
            timed: Queues the launches and the events after them.

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
