"""Graphs: launches captured once and replayed with one call, with the memory that they need.

A decode step is two kernels of a few microseconds each, and launching them takes the host longer. A captured graph is
queued in one call, but keeps every address: those of the caller's arrays, whose content may change between launches
while their location must not, and those of workspaces, which belong to the graph until it is closed.
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
    """Captured work; as a context manager it closes itself.

    Launches of one graph use the same memory, so each waits for the previous one, whatever its stream: HIP, unlike
    CUDA, does not document that it orders them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._memory: CaptureMemory | None = None
        self._ready = self._done = 0  # the executable graph, and the event after its last launch
        self._stream: int | None = None  # stream of the last launch
        self._lock = threading.Lock()

    def launch(self, stream: int) -> None:
        """Queue the graph.

        Args:
            stream: A HIP stream, not necessarily the captured one; 0 is the default stream.

        Raises:
            CaptureError: Before the capture has ended, and after `close`.
            LaunchError: When HIP rejects the launch.
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
        """Free the graph and its memory after its last launch; calling it again does nothing."""
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
        """Return the graph."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the graph."""
        self.close()

    @contextmanager
    def captured(self, stream: int) -> Iterator[None]:
        """Capture a stream's work within the block of code; called through `capture`."""
        hip = self._runtime.hip
        hip.capture_begin(stream)
        self._memory = self._runtime.pool.begin_capture(stream)
        try:
            yield
        except BaseException:
            with suppress(GpuError):  # an error in the block may have invalidated the capture
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
    """Capture the work queued within the block of code on a stream, and on streams that wait for its events.

    Each plan must have run once before, outside a capture, so that its kernels are compiled and loaded. Device tensors
    and `PreparedPlan.run` can be captured; numpy arrays cannot, since each call with them waits for its result.

    Args:
        runtime: The device.
        stream: A HIP stream other than the default one, not used elsewhere at the same time.

    Yields:
        The graph, which can be launched after the block until it is closed.

    Raises:
        CaptureError: For the default stream, or when something in the block invalidated the capture.
        GpuError: When the stream is already being captured.
    """
    runtime.enter()
    if not stream:
        raise CaptureError("HIP does not capture the default stream: use one of hipStreamCreate")
    graph = Graph(runtime)
    with graph.captured(stream):
        yield graph
