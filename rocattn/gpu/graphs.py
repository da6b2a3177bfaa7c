"""Graphs: launches captured once and launched again with one call, with the memory that they need.

A decode step is two kernels of a few microseconds, and launching them takes the host longer. A captured graph is queued
in one call, but it keeps every address: those of the caller's arrays, whose content may change from launch to launch
while their place must not, and those of workspaces, which belong to the graph until it is closed.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from rocattn.gpu.errors import CaptureError, GpuError, LaunchError
from rocattn.gpu.memory import CaptureMemory
from rocattn.gpu.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class Graph:
    """Work that was captured; as a context manager it closes itself.

    Launches of one graph use the same memory, so each waits for the one before, whatever its stream: HIP, other than
    CUDA, does not say that they do.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._memory: CaptureMemory | None = None
        self._ready = self._done = 0  # what is launched, and the event behind its last launch
        self._stream: int | None = None  # of the last launch
        self._lock = threading.Lock()

    def launch(self, stream: int) -> None:
        """Queue all of it.

        Args:
            stream: A HIP stream, which need not be the captured one; 0 is the default one.

        Raises:
            CaptureError: Before its capture has ended, and after `close`.
            LaunchError: When HIP refuses it.
        """
        self._runtime.enter()
        hip = self._runtime.hip
        with self._lock:
            if not self._ready:
                raise CaptureError("this graph cannot be launched: its capture has not ended, or it was closed")
            if self._stream not in (None, stream):
                hip.stream_wait_event(stream, self._done)
            try:
                hip.graph_launch(self._ready, stream)
            except GpuError as error:
                raise LaunchError(f"the graph was not launched: {error}", report=hip.report()) from error
            hip.event_record(self._done, stream)
            self._stream = stream

    def close(self) -> None:
        """Free the graph and its memory, after its last launch; a second time does nothing."""
        with self._lock:
            ready, self._ready = self._ready, 0
            memory, self._memory = self._memory, None
        if ready:
            self._runtime.enter()
            self._runtime.hip.graph_destroy(ready)
            self._runtime.hip.event_destroy(self._done)
        if memory is not None:
            self._runtime.pool.release(memory)

    def __enter__(self) -> Self:
        """Hold the graph."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @contextmanager
    def captured(self, stream: int) -> Iterator[None]:
        """Make it of what is asked of a stream within the block of code: `capture` is how to get there."""
        hip = self._runtime.hip
        hip.capture_begin(stream)
        self._memory = self._runtime.pool.begin_capture(stream)
        try:
            yield
        except BaseException:
            with suppress(GpuError):  # what went wrong in the block may have made the capture invalid
                hip.graph_destroy(hip.graph_instantiate(hip.capture_end(stream)))
            self.close()
            raise
        try:
            ready = hip.graph_instantiate(hip.capture_end(stream))
        except GpuError as error:
            self.close()
            raise CaptureError(f"nothing was captured: {error}: something in it waited for the GPU") from error
        self._ready, self._done = ready, hip.event_create()


@contextmanager
def capture(runtime: Runtime, stream: int) -> Iterator[Graph]:
    """Capture what is asked of a stream within the block of code, and of streams that wait for its events.

    Each plan must have run once before, outside of a capture: its kernels are then compiled and loaded. Device tensors
    and `PreparedPlan.run` can be captured, numpy arrays cannot: each call with them waits for its result.

    Args:
        runtime: The device.
        stream: A HIP stream other than the default one, in use by nobody else meanwhile.

    Yields:
        The graph, which can be launched when the block has ended, until it is closed.

    Raises:
        CaptureError: For the default stream, and when something in the block made the capture invalid.
        GpuError: When the stream is captured already.
    """
    runtime.enter()
    if not stream:
        raise CaptureError("HIP does not capture the default stream: use one of hipStreamCreate")
    graph = Graph(runtime)
    with graph.captured(stream):
        yield graph
