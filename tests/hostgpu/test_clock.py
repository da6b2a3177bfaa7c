"""The stand-in's made-up clock: host time for calls, device time for work, and streams between them."""

import ctypes

import numpy as np
import pytest

from .standin import SUCCESS

NOT_READY = 600
COSTS = "call=8000 event=2000 kernel=3000 copy=5000 memset=50000"


@pytest.fixture
def clocked(standin):
    """A device with these costs, and a function: handle names -> new streams and events."""
    device = standin(time=COSTS)

    def make(streams=0, events=0, flags=0):
        made = [ctypes.c_void_p() for _ in range(streams + events)]
        for handle in made[:streams]:
            assert device.lib.hipStreamCreateWithFlags(ctypes.byref(handle), flags) == SUCCESS
        for handle in made[streams:]:
            assert device.lib.hipEventCreate(ctypes.byref(handle)) == SUCCESS
        return made

    return device, make


def elapsed_ns(device, start, stop):
    """The time between two events, once both are there."""
    ms = ctypes.c_float()
    assert device.lib.hipEventSynchronize(stop) == SUCCESS
    assert device.lib.hipEventElapsedTime(ctypes.byref(ms), start, stop) == SUCCESS
    return round(ms.value * 1e6)


def copier(device):
    """Return a function: stream -> the launch of a kernel that copies."""
    function, x, y = device.function("copy.hip", "copy"), device.upload(np.ones(128, np.float32)), device.empty(512)
    return lambda stream: device.launch(function, (1,), (128,), x, y, ctypes.c_uint(128), stream=stream)


def test_a_launch_on_an_idle_stream_has_the_host_s_time_in_it(clocked):
    """The first event is there when the host records it; the kernel begins a call later and takes its own time."""
    device, make = clocked
    stream, start, stop = make(1, 2)
    launch, lib = copier(device), device.lib
    assert lib.hipStreamSynchronize(stream) == SUCCESS
    lib.hipEventRecord(start, stream)
    assert launch(stream) == SUCCESS
    lib.hipEventRecord(stop, stream)
    assert elapsed_ns(device, start, stop) == 8000 + 5000


def test_behind_other_work_a_launch_takes_its_own_time(clocked):
    """And says so: an event behind work is not ready until the host has waited for it."""
    device, make = clocked
    stream, start, stop = make(1, 2)
    launch, lib = copier(device), device.lib
    pointer = device.empty(16)
    assert lib.hipMemsetAsync(pointer, 0, ctypes.c_size_t(16), stream) == SUCCESS
    lib.hipEventRecord(start, stream)
    assert launch(stream) == SUCCESS
    lib.hipEventRecord(stop, stream)
    assert [lib.hipEventQuery(start), lib.hipEventQuery(stop), lib.hipStreamQuery(stream)] == [NOT_READY] * 3
    assert lib.hipEventElapsedTime(ctypes.byref(ctypes.c_float()), start, stop) == NOT_READY
    assert elapsed_ns(device, start, stop) == 5000
    assert [lib.hipEventQuery(start), lib.hipEventQuery(stop), lib.hipStreamQuery(stream)] == [SUCCESS] * 3


def test_streams_overlap_unless_ordered(clocked):
    """The default stream waits for blocking streams and they for it; an event makes one wait; others go on."""
    device, make = clocked
    lib, pointer, size = device.lib, device.empty(16), ctypes.c_size_t(16)
    for flags, first_on_default in ((0, 50000 + 5000), (1, 5000)):
        busy, start, stop = make(1, 2, flags)
        launch = copier(device)
        lib.hipDeviceSynchronize()
        lib.hipEventRecord(start, busy)
        assert lib.hipMemsetAsync(pointer, 0, size, busy) == SUCCESS
        assert launch(None) == SUCCESS
        lib.hipEventRecord(stop, None)
        # From the memset's begin, or from the launch's own: 8000 after each call.
        assert elapsed_ns(device, start, stop) == 8000 + (first_on_default if flags == 0 else 8000 + first_on_default)
    busy, other, start, waited, stop = make(2, 3)
    lib.hipDeviceSynchronize()
    lib.hipEventRecord(start, busy)
    assert lib.hipMemsetAsync(pointer, 0, size, busy) == SUCCESS
    lib.hipEventRecord(waited, busy)
    assert lib.hipStreamWaitEvent(other, waited, 0) == SUCCESS
    assert launch(other) == SUCCESS
    lib.hipEventRecord(stop, other)
    assert elapsed_ns(device, start, stop) == 8000 + 50000 + 5000


@pytest.mark.parametrize("wrong", ["call", "call=", "call=8us", "=3", "call=1 event:2"])
def test_costs_that_are_none_are_told(standin, wrong):
    """In one line; time is then real."""
    device = standin(time=wrong)
    report = device.report()
    assert report.count("\n") == 1
    assert "ROCATTN_HOSTGPU_TIME has '" in report
    event = ctypes.c_void_p()
    assert device.lib.hipEventCreate(ctypes.byref(event)) == SUCCESS
    assert device.lib.hipEventRecord(event, None) == SUCCESS
    assert device.lib.hipEventQuery(event) == SUCCESS
