"""The memory pool counts every byte, keeps blocks by stream, and gives them back when the device has no more."""

import pytest

from rocattn.gpu.errors import CaptureError, DeviceMemoryError
from rocattn.gpu.memory import KEPT_STAGING_BYTES, PinnedStaging, Pool


class FakeHip:
    """A driver with so many bytes of memory, which remembers what it was asked."""

    def __init__(self, total=10_000, is_stand_in=False):
        self.is_stand_in, self.total = is_stand_in, total
        self.live, self.calls, self.next = {}, [], 4096

    def malloc(self, count):
        """Hand out addresses that are never used twice."""
        self.calls.append(f"malloc {count}")
        if sum(self.live.values()) + count > self.total:
            raise DeviceMemoryError("device memory", count, self.total - sum(self.live.values()), self.total)
        self.next += 1 << 20
        self.live[self.next] = count
        return self.next

    def free(self, address):
        """Take back what was handed out; anything else is a KeyError."""
        self.calls.append("free")
        del self.live[address]

    host_malloc, host_free = malloc, free
    captured = 0

    def capture_number(self, stream):
        """Say in which capture a stream is: stream 9 in the one that is set."""
        return self.captured if stream == 9 else 0


def test_bytes_are_counted_as_asked_for():
    """Current and peak are exact, whatever the device rounds up to."""
    pool = Pool(FakeHip())
    first, second = pool.take(1000, 0), pool.take(1, 0)
    assert (pool.current_bytes, pool.peak_bytes, pool.reserved_bytes) == (1001, 1001, 1024 + 512)
    pool.give(first)
    assert (pool.current_bytes, pool.peak_bytes, pool.reserved_bytes) == (1, 1001, 1024 + 512)
    pool.give(second)
    assert (pool.current_bytes, pool.peak_bytes) == (0, 1001)


def test_a_measurement_has_a_peak_of_its_own():
    """The peak is counted anew inside, from what is in use; outside, the larger of both stays."""
    pool = Pool(FakeHip())
    pool.give(pool.take(5000, 0))
    held = pool.take(100, 0)
    with pool.measure() as outer:
        pool.give(pool.take(700, 0))
        with pool.measure() as inner:
            pool.give(pool.take(300, 0))
    assert (inner.peak_bytes, outer.peak_bytes, pool.peak_bytes) == (400, 800, 5000)
    pool.give(held)
    with pool.measure() as outer, pool.measure() as inner:
        pool.give(pool.take(6000, 0))
    assert (inner.peak_bytes, outer.peak_bytes, pool.peak_bytes) == (6000, 6000, 6000)


def test_a_block_is_used_again_on_its_own_stream_only():
    """Another stream may be ahead of the one that still uses the block."""
    hip = FakeHip()
    pool = Pool(hip)
    block = pool.take(500, 7)
    pool.give(block)
    assert pool.take(400, 7).address == block.address
    assert pool.take(400, 8).address != block.address
    assert hip.calls == ["malloc 512", "malloc 512"]


def test_kept_blocks_make_room_for_other_sizes():
    """When the device has no more, kept blocks go back, then it is tried again; a stream may be gone by then."""
    hip = FakeHip(total=4096)
    pool = Pool(hip)
    pool.give(pool.take(3000, 5))
    assert pool.take(2000, 0).reserved_bytes == 2048
    assert hip.calls == ["malloc 3072", "malloc 2048", "free", "malloc 2048"]
    assert pool.reserved_bytes == 2048


def test_out_of_memory_leaves_the_books_right():
    """A request that fails is not counted, and what was taken before it is given back."""
    pool = Pool(FakeHip(total=4096))
    words = r"no device memory for 5\.1 kB: 1\.0 kB of 4\.1 kB are free"
    with pytest.raises(DeviceMemoryError, match=words), pool.taken({"a": 3000, "b": 5000}, 0):
        pytest.fail("there is no memory for b")
    assert (pool.current_bytes, pool.peak_bytes) == (0, 3000)


def test_what_a_capture_takes_is_the_graph_s_until_it_is_gone():
    """Used again within the capture only, not trimmed, not handed to others; freed at the end, what is held later."""
    hip = FakeHip()
    pool = Pool(hip)
    pool.give(pool.take(500, 9))
    hip.captured = 3
    memory = pool.begin_capture(9)
    first = pool.take(500, 9)
    pool.give(first)
    assert pool.take(500, 9).address == first.address
    held = pool.take(500, 9)
    hip.captured = 0
    eager = pool.take(500, 9)
    assert eager.address not in memory.reserved
    pool.give(eager)
    pool.trim()
    assert hip.live.keys() == memory.reserved.keys() == {first.address, held.address}
    pool.give(pool.take(500, 9))
    pool.trim()
    pool.give(held)
    assert pool.take(500, 9).address not in memory.reserved
    hip.calls.clear()
    last = pool.take(100, 0)
    pool.release(memory)
    assert hip.calls.count("free") == 1, "the first block has not been given back"
    assert (pool.reserved_bytes, memory.reserved.keys()) == (3 * 512, {first.address})
    pool.give(last)


def test_a_capture_that_the_pool_does_not_know_gets_nothing():
    """Its graph would keep the address, and nobody would say for how long."""
    hip = FakeHip()
    pool = Pool(hip)
    hip.captured = 3
    with pytest.raises(CaptureError, match="give `run` a workspace of your own"):
        pool.take(500, 9)
    assert pool.take(500, 8).address
    assert pool.take(0, 9).address == 0
    assert pool.current_bytes == 500


def test_empty_blocks_are_free():
    """A size of 0 asks the device for nothing, and its address is null."""
    hip = FakeHip()
    with Pool(hip).taken({"a": 0}, 0) as places:
        assert places == {"a": 0}
    assert hip.calls == []


def test_on_the_stand_in_every_allocation_ends_where_it_should():
    """Its checks see a read past the end, or of an earlier call's data, only if nothing is rounded up or kept."""
    hip = FakeHip(is_stand_in=True)
    pool = Pool(hip)
    pool.give(pool.take(1001, 0))
    pool.give(pool.take(1001, 0))
    assert hip.calls == ["malloc 1001", "free", "malloc 1001", "free"]
    assert (pool.reserved_bytes, pool.peak_bytes) == (0, 1001)


def test_staging_memory_grows_and_huge_pieces_are_not_kept():
    """Small calls share one pinned piece; one beyond the limit is given back at its end."""
    hip = FakeHip(total=2 * KEPT_STAGING_BYTES)
    staging = PinnedStaging(hip)
    for count in (100, 50, 200, KEPT_STAGING_BYTES + 1, 10):
        with staging.taken(count) as address:
            assert hip.live[address] >= count
    assert hip.calls == [
        "malloc 100", "free", "malloc 200", "free", f"malloc {KEPT_STAGING_BYTES + 1}", "free", "malloc 10"
    ]  # fmt: skip
