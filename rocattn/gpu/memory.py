"""A pool of device memory that counts every byte, and pinned host memory for copies.

A captured graph keeps the addresses of its launches. Memory allocated while a stream is being captured therefore
belongs exclusively to that capture (`CaptureMemory`) until the graph is closed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocattn.gpu.driver import Hip
from rocattn.gpu.errors import CaptureError, DeviceMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager


_SMALL, _LARGE = 512, 1 << 21
KEPT_STAGING_BYTES = 1 << 28
"""Pinned memory kept for the next call; more is freed, because nothing else can use it."""


_Kept = defaultdict[tuple[int, int], list[int]]  # addresses by bytes and stream


@dataclass(eq=False, slots=True)
class CaptureMemory:
    """Device memory whose addresses are part of a captured graph.

    Attributes:
        number: HIP's number of the capture.
        reserved: Memory allocated on the device for it, bytes by address.
        kept: Blocks that the same capture may reuse in stream order.
        in_use: Addresses not returned yet.
        released: Whether the graph was closed.
    """

    number: int
    reserved: dict[int, int] = field(default_factory=dict)
    kept: _Kept = field(default_factory=lambda: defaultdict(list))
    in_use: set[int] = field(default_factory=set)
    released: bool = False


@dataclass(eq=False, slots=True)
class DeviceBlock:
    """A block of device memory.

    Attributes:
        address: Its address; 0 for an empty block.
        bytes: The requested size.
        reserved_bytes: The size allocated on the device.
        stream: The stream that uses it: the block may be reused only in that stream's order.
        capture: The memory of the capture that allocated it; None outside captures.
    """

    address: int
    bytes: int
    reserved_bytes: int
    stream: int
    capture: CaptureMemory | None = None


@dataclass(slots=True)
class Usage:
    """The peak memory of a section of work in requested bytes; filled in at its end."""

    peak_bytes: int = 0


class Pool:
    """Device memory kept for reuse, because driver allocations wait for the whole device.

    Blocks are reused in the order of one stream, so freeing needs no waiting. On the stand-in GPU nothing is kept or
    rounded up: every allocation has its exact size, so that the stand-in's checks detect a read past the end.

    Attributes:
        current_bytes: Requested bytes not freed yet.
        peak_bytes: Their maximum since the start or since `measure` began.
        reserved_bytes: Bytes allocated on the device, including kept blocks.
        exact: Whether nothing is kept or rounded up.

    Args:
        hip: The driver.
        entered: Makes the device current for this thread during allocations.
    """

    def __init__(self, hip: Hip, entered: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._hip, self.exact, self._entered = hip, hip.is_stand_in, entered
        self._kept: _Kept = defaultdict(list)
        self._captures: dict[int, CaptureMemory] = {}
        self._lock = threading.RLock()
        self.current_bytes = self.peak_bytes = self.reserved_bytes = 0

    def take(self, count: int, stream: int) -> DeviceBlock:
        """Return a block of at least ``count`` bytes, with undefined content, for work on one stream.

        Raises:
            DeviceMemoryError: When the device has no more memory even after freeing kept blocks.
            CaptureError: When the stream is being captured into a foreign graph, whose lifetime is unknown.
        """
        with self._lock:
            size = self._rounded(count)
            capture = self._capture_of(stream) if size and stream else None  # the default stream is never captured
            kept = (self._kept if capture is None else capture.kept)[size, stream]
            address = kept.pop() if kept else self._malloc(size)
            if capture is not None:
                capture.reserved[address] = size
                capture.in_use.add(address)
            self.current_bytes += count
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
            return DeviceBlock(address, count, size, stream, capture)

    def give(self, block: DeviceBlock) -> None:
        """Return a block to the pool; work queued on its stream may still be using it."""
        with self._lock:
            self.current_bytes -= block.bytes
            if not block.address:
                return
            if block.capture is not None:
                self._give_to_capture(block, block.capture)
            elif self.exact:
                self._free(block.address, block.reserved_bytes)  # hipFree waits for the device
            else:
                self._kept[block.reserved_bytes, block.stream].append(block.address)

    def begin_capture(self, stream: int) -> CaptureMemory:
        """Reserve memory allocated in a stream's capture exclusively for its graph until `release`."""
        with self._lock:
            number = self._hip.capture_number(stream)
            memory = self._captures[number] = CaptureMemory(number)
            return memory

    def release(self, memory: CaptureMemory) -> None:
        """Free the memory of a closed graph: hipFree waits for its last launch.

        Blocks still in use, such as outputs that the caller keeps, are freed when they are returned.
        """
        with self._lock:
            self._captures.pop(memory.number, None)
            memory.released = True
            for address in memory.reserved.keys() - memory.in_use:
                self._free(address, memory.reserved.pop(address))

    def _capture_of(self, stream: int) -> CaptureMemory | None:
        number = self._hip.capture_number(stream)
        if number and number not in self._captures:
            raise CaptureError(
                "the stream is captured into a graph that would keep an address of the pool, and the pool would not "
                "know for how long: capture with rocattn.gpu.graphs.capture, or give `run` a workspace of your own"
            )
        return self._captures.get(number)

    def _give_to_capture(self, block: DeviceBlock, memory: CaptureMemory) -> None:
        memory.in_use.remove(block.address)
        if memory.released:
            self._free(block.address, memory.reserved.pop(block.address))
        elif not self.exact:
            memory.kept[block.reserved_bytes, block.stream].append(block.address)

    @contextmanager
    def taken(self, sizes: Mapping[str, int], stream: int) -> Iterator[dict[str, int]]:
        """Allocate blocks of these sizes during a block of code; yield their addresses by name."""
        blocks: dict[str, DeviceBlock] = {}
        try:
            for name, size in sizes.items():
                blocks[name] = self.take(size, stream)
            yield {name: block.address for name, block in blocks.items()}
        finally:
            for block in blocks.values():
                self.give(block)

    @contextmanager
    def measure(self) -> Iterator[Usage]:
        """Reset the peak; the yielded object contains the peak usage at the end."""
        usage = Usage()
        with self._lock:
            before, self.peak_bytes = self.peak_bytes, self.current_bytes
        try:
            yield usage
        finally:
            with self._lock:
                usage.peak_bytes = self.peak_bytes
                self.peak_bytes = max(before, self.peak_bytes)

    def trim(self) -> None:
        """Free every kept block except those of graphs: hipFree waits for the work that used it.

        Streams are not queried: a foreign one may have been destroyed in the meantime.
        """
        with self._lock:
            for (size, _), addresses in self._kept.items():
                while addresses:
                    self._free(addresses.pop(), size)
            self._kept.clear()

    def _rounded(self, count: int) -> int:
        if self.exact:
            return count
        step = _SMALL if count < _LARGE else _LARGE
        return -(-count // step) * step

    def _malloc(self, size: int) -> int:
        if not size:
            return 0
        with self._entered():
            try:
                address = self._hip.malloc(size)
            except DeviceMemoryError:
                self.trim()
                address = self._hip.malloc(size)
        self.reserved_bytes += size
        return address

    def _free(self, address: int, size: int) -> None:
        self._hip.free(address)
        self.reserved_bytes -= size


class PinnedStaging:
    """A block of pinned host memory, used by one call at a time, that grows as calls need it."""

    def __init__(self, hip: Hip) -> None:
        self._hip = hip
        self._address = self._bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, count: int) -> Iterator[int]:
        """Hold at least ``count`` bytes of the memory; yield its address (0 for none).

        All copies from and to it must have finished at the end of the block.

        Raises:
            DeviceMemoryError: When the memory cannot be pinned.
        """
        with self._lock:
            if count > self._bytes:
                self._release()
                self._address, self._bytes = self._hip.host_malloc(count), count
            try:
                yield self._address
            finally:
                if self._bytes > KEPT_STAGING_BYTES:
                    self._release()

    def _release(self) -> None:
        if self._address:
            self._hip.host_free(self._address)
        self._address = self._bytes = 0
