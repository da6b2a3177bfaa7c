"""Work of several streams on the same memory: what has no order is found, and everything that makes one is known."""

import ctypes

import numpy as np
import pytest

from .standin import LAUNCH_FAILURE, SUCCESS, TO_DEVICE

NON_BLOCKING, RELAXED = 1, 2
SIZE = ctypes.c_size_t(512)


class Two:
    """A device with two streams that the default stream leaves alone, and three arrays of 128 floats."""

    def __init__(self, device):
        self.device, self.lib = device, device.lib
        self.function = device.function("copy.hip", "copy")
        self.x, self.y, self.z = (device.upload(np.ones(128, np.float32)) for _ in range(3))
        self.lib.hipDeviceSynchronize()
        self.one, self.two = self.stream(), self.stream()
        self.event = self.made(self.lib.hipEventCreate)
        device.report()

    def made(self, call, *more):
        """Call something that gives a handle."""
        handle = ctypes.c_void_p()
        assert call(ctypes.byref(handle), *more) == SUCCESS
        return handle

    def stream(self, flags=NON_BLOCKING):
        """Make a stream."""
        return self.made(self.lib.hipStreamCreateWithFlags, flags)

    def copy(self, x, y, stream):
        """Launch the kernel y = x."""
        return self.device.launch(self.function, (1,), (128,), x, y, ctypes.c_uint(128), stream=stream)

    def graph(self, stream, action):
        """Capture what an action asks of a stream; returns its launch."""
        assert self.lib.hipStreamBeginCapture(stream, RELAXED) == SUCCESS
        action()
        graph = self.made(lambda to: self.lib.hipStreamEndCapture(stream, to))
        ready = self.made(self.lib.hipGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
        return lambda on: self.lib.hipGraphLaunch(ready, on)

    def close(self):
        """Destroy the streams: with one left, the default one, nothing needs to be noted."""
        self.lib.hipDeviceSynchronize()
        for stream in (self.one, self.two):
            assert self.lib.hipStreamDestroy(stream) == SUCCESS


@pytest.fixture
def two(standin):
    """Two streams on a device."""
    made = Two(standin("gfx1100"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (("x", "y"), "writes byte 0 of allocation N, which copy writes on another stream"),
        (("y", "z"), "reads byte 0 of allocation N, which copy writes on another stream"),
        (("z", "x"), "writes byte 0 of allocation N, which copy reads on another stream"),
        (("x", "z"), ""),
    ],
)
def test_two_streams_that_touch_the_same_bytes_race(two, second, words):
    """If one of them writes: with the place in the kernel, and what the other one is."""
    assert two.copy(two.x, two.y, two.one) == SUCCESS, two.device.report()
    status = two.copy(*(getattr(two, name) for name in second), two.two)
    report = two.device.report()
    assert status == (LAUNCH_FAILURE if words else SUCCESS)
    if not words:
        assert report == ""
        return
    assert report.startswith("rocattn hostgpu: race between streams at copy.hip:11, kernel copy, block (0, 0, 0)")
    before, _, after = words.partition(" N")
    assert before in report
    assert f"{after}, and nothing orders the two" in report


def test_copies_and_fills_race_too(two):
    """By their names; one without a stream is on the default stream, which streams of this kind do not wait for."""
    lib, host = two.lib, (ctypes.c_char * 512)()
    assert lib.hipMemsetAsync(two.x, 1, SIZE, two.one) == SUCCESS
    assert lib.hipMemcpyAsync(two.x, host, SIZE, TO_DEVICE, two.two) == LAUNCH_FAILURE
    assert "race between streams at a copy: writes byte 0 of allocation" in (report := two.device.report())
    assert ", which memset writes on another stream" in report
    lib.hipDeviceSynchronize()
    assert two.copy(two.x, two.y, two.one) == SUCCESS
    assert lib.hipMemset(two.y, 0, SIZE) == LAUNCH_FAILURE
    assert "race between streams at a memset: writes byte 0" in two.device.report()


def test_everything_that_orders_streams_is_known(two):
    """Events, the host's waiting for a stream, an event or the device, freeing, and blocking streams."""
    lib = two.lib

    def by_event():
        lib.hipEventRecord(two.event, two.one)
        lib.hipStreamWaitEvent(two.two, two.event, 0)

    def by_host_and_event():
        lib.hipEventRecord(two.event, two.one)
        lib.hipEventSynchronize(two.event)

    ways = {
        "event": by_event,
        "event and host": by_host_and_event,
        "query": lambda: lib.hipStreamQuery(two.one),
        "stream and host": lambda: lib.hipStreamSynchronize(two.one),
        "device": lib.hipDeviceSynchronize,
        "free": lambda: two.device.free(two.device.empty(8)),
    }
    for name, order in ways.items():
        assert two.copy(two.x, two.y, two.one) == SUCCESS, name
        order()
        assert two.copy(two.y, two.x, two.two) == SUCCESS, (name, two.device.report())
        lib.hipDeviceSynchronize()
    blocking = two.stream(flags=0)
    assert two.copy(two.x, two.y, blocking) == SUCCESS
    assert two.copy(two.y, two.x, None) == SUCCESS, two.device.report()
    assert two.copy(two.x, two.y, blocking) == SUCCESS, two.device.report()
    assert two.copy(two.y, two.x, two.two) == LAUNCH_FAILURE
    lib.hipDeviceSynchronize()
    assert lib.hipStreamDestroy(blocking) == SUCCESS


def test_an_event_orders_only_what_comes_before_it(two):
    """Later work of its stream is not waited for, and knowing goes from stream to stream."""
    lib, third = two.lib, two.stream()
    assert two.copy(two.x, two.y, two.one) == SUCCESS
    lib.hipEventRecord(two.event, two.one)
    assert lib.hipMemsetAsync(two.z, 0, SIZE, two.one) == SUCCESS
    lib.hipStreamWaitEvent(two.two, two.event, 0)
    assert two.copy(two.y, two.x, two.two) == SUCCESS, two.device.report()
    lib.hipEventRecord(two.event, two.two)
    lib.hipStreamWaitEvent(third, two.event, 0)
    assert lib.hipMemsetAsync(two.y, 0, SIZE, third) == SUCCESS, two.device.report()
    assert two.copy(two.z, two.x, third) == LAUNCH_FAILURE
    lib.hipDeviceSynchronize()
    assert lib.hipStreamDestroy(third) == SUCCESS


def test_a_graph_s_launch_races_with_other_streams(two):
    """And with its own launch on another stream, of which HIP does not say that it waits."""
    launch = two.graph(two.one, lambda: two.copy(two.x, two.y, two.one))
    assert two.copy(two.z, two.y, two.one) == SUCCESS
    assert launch(two.one) == SUCCESS, two.device.report()
    assert launch(two.two) == LAUNCH_FAILURE
    assert "race between streams at copy.hip:11" in two.device.report()


@pytest.mark.parametrize("ordered", [False, True])
def test_branches_of_a_graph_race_unless_an_event_orders_them(two, ordered):
    """As they would if they were not captured."""
    lib, joined = two.lib, two.made(two.lib.hipEventCreate)

    def fork():
        lib.hipEventRecord(two.event, two.one)
        lib.hipStreamWaitEvent(two.two, two.event, 0)
        assert two.copy(two.x, two.y, two.two) == SUCCESS
        lib.hipEventRecord(joined, two.two)
        if ordered:
            lib.hipStreamWaitEvent(two.one, joined, 0)
        assert two.copy(two.z, two.y, two.one) == SUCCESS
        lib.hipStreamWaitEvent(two.one, joined, 0)

    launch = two.graph(two.one, fork)
    for _ in range(2):
        assert launch(two.one) == (SUCCESS if ordered else LAUNCH_FAILURE)
        assert ("race between streams" in two.device.report()) is not ordered
        lib.hipDeviceSynchronize()


def test_without_checks_nothing_is_found(standin):
    """As for every other mistake."""
    two = Two(standin("gfx1100", checks="none"))
    assert two.copy(two.x, two.y, two.one) == two.copy(two.x, two.y, two.two) == SUCCESS
    two.close()
