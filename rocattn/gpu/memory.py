"""Device memory from a pool that counts every byte, and pinned host memory for copies.

A captured graph keeps the addresses that its launches were given. What is taken while a stream is captured therefore
belongs to that capture (`CaptureMemory`) and to nobody else until the graph is gone.
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
"""Pinned memory kept for the next call; more is given back, because nothing else can use it."""


_Kept = defaultdict[tuple[int, int], list[int]]  # addresses by bytes and stream


@dataclass(eq=False, slots=True)
class CaptureMemory:
    """Device memory whose addresses stand in a captured graph.

    Attributes:
        number: The capture's, as HIP counts them.
        reserved: What the device gave for it, bytes by address.
        kept: What the same capture may use again, in the order of its stream.
        in_use: Addresses not given back yet.
        released: Whether the graph is gone.
    """

    number: int
    reserved: dict[int, int] = field(default_factory=dict)
    kept: _Kept = field(default_factory=lambda: defaultdict(list))
    in_use: set[int] = field(default_factory=set)
    released: bool = False


@dataclass(eq=False, slots=True)
class DeviceBlock:
    """Device memory.

    Attributes:
        address: Its address; 0 for an empty block.
        bytes: What was asked for.
        reserved_bytes: What the device gave.
        stream: The stream that uses it: in its order alone the block may be used again.
        capture: The memory of the capture that it was taken in; None outside of captures.
    """

    address: int
    bytes: int
    reserved_bytes: int
    stream: int
    capture: CaptureMemory | None = None


@dataclass(slots=True)
class Usage:
    """What a stretch of work used at its peak, in bytes asked for; filled in at its end."""

    peak_bytes: int = 0


class Pool:
    """Device memory that is kept for the next use, because asking the driver waits for the whole device.

    Blocks are used again in the order of one stream, so freeing needs no waiting. On the stand-in GPU nothing is kept
    or rounded up: every allocation ends where it should, so that its checks see a read past the end.

    Attributes:
        current_bytes: Bytes asked for and not freed yet.
        peak_bytes: The most of them since the beginning or `measure` began.
        reserved_bytes: What the device gave, kept blocks included.
        exact: Whether nothing is kept or rounded up.

    Args:
        hip: The driver.
        entered: Makes the device this thread's current one while it is asked for memory.
    """

    def __init__(self, hip: Hip, entered: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._hip, self.exact, self._entered = hip, hip.is_stand_in, entered
        self._kept: _Kept = defaultdict(list)
        self._captures: dict[int, CaptureMemory] = {}
        self._lock = threading.RLock()
        self.current_bytes = self.peak_bytes = self.reserved_bytes = 0

    def take(self, count: int, stream: int) -> DeviceBlock:
        """Return a block of at least ``count`` bytes, its content undefined, for work on one stream.

        Raises:
            DeviceMemoryError: When the device has no more, kept blocks given back included.
            CaptureError: When the stream is captured into a graph of somebody else, of whose end nobody would tell.
        """
        with self._lock:
            size = self._rounded(count)
            capture = self._capture_of(stream) if size and stream else None  # the default one is never captured
            kept = (self._kept if capture is None else capture.kept)[size, stream]
            address = kept.pop() if kept else self._malloc(size)
            if capture is not None:
                capture.reserved[address] = size
                capture.in_use.add(address)
            self.current_bytes += count
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
            return DeviceBlock(address, count, size, stream, capture)

    def give(self, block: DeviceBlock) -> None:
        """Take a block back; work queued on its stream may still be using it."""
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
        """Keep what is taken in the capture that a stream is in, from now to `release`, for its graph alone."""
        with self._lock:
            number = self._hip.capture_number(stream)
            memory = self._captures[number] = CaptureMemory(number)
            return memory

    def release(self, memory: CaptureMemory) -> None:
        """Free the memory of a graph that is gone: hipFree waits for its last launch.

        Blocks that are still in use, an output that somebody holds, are freed when they are given back.
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
        """Hold blocks of these sizes for the length of a block of code; gives their addresses by name."""
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
        """Start the peak anew; the object it gives has, at the end, the most that was in use meanwhile."""
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
        """Give every kept block back to the device, but for those of graphs: hipFree waits for the work that used it.

        The streams are not asked: one that somebody else made may have been destroyed since.
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
    """One piece of pinned host memory, used by one call at a time, that grows to what calls need."""

    def __init__(self, hip: Hip) -> None:
        self._hip = hip
        self._address = self._bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, count: int) -> Iterator[int]:
        """Hold the memory, at least ``count`` bytes of it; gives its address (0 for none).

        All copies from and to it must be done at the end of the block.

        Raises:
            DeviceMemoryError: When so much cannot be pinned.
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
