"""Stream capture and graphs on the stand-in: what is written down, what is refused, and what a launch does."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from .standin import INVALID_VALUE, LAUNCH_FAILURE, SUCCESS, TO_HOST

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
INVALID_HANDLE, ILLEGAL_STATE = 400, 401
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(905, 909)
SIZE = ctypes.c_size_t(512)


class Graphs:
    """One device with the calls that these tests make again and again."""

    def __init__(self, device):
        self.device, self.lib = device, device.lib
        self.function = device.function("copy.hip", "copy")

    def made(self, call, *more):
        """Call something that gives a handle."""
        handle = ctypes.c_void_p()
        assert call(ctypes.byref(handle), *more) == SUCCESS
        return handle

    def stream(self, flags=0):
        """Make a stream."""
        return self.made(self.lib.hipStreamCreateWithFlags, flags)

    def event(self):
        """Make an event."""
        return self.made(self.lib.hipEventCreate)

    def copy(self, x, y, stream):
        """Launch the kernel y = x on 128 floats."""
        return self.device.launch(self.function, (1,), (128,), x, y, ctypes.c_uint(128), stream=stream)

    def status(self, stream):
        """(status of the call, capture status, capture's number)."""
        state, number = ctypes.c_int(9), ctypes.c_ulonglong()
        found = self.lib.hipStreamGetCaptureInfo(stream, ctypes.byref(state), ctypes.byref(number))
        return found, state.value, number.value

    def end(self, stream):
        """End a capture; returns the status and the graph."""
        graph = ctypes.c_void_p()
        return self.lib.hipStreamEndCapture(stream, ctypes.byref(graph)), graph

    def floats(self, value):
        """128 floats on the device."""
        return self.device.upload(np.full(128, value, np.float32))

    def first(self, pointer):
        """The first of them."""
        return float(self.device.download(pointer, 128, np.float32)[0])


@pytest.fixture
def graphs(standin):
    """A device whose captures have all ended."""
    made = Graphs(standin("gfx1100"))
    made.device.report()
    return made


def test_captured_work_is_done_by_each_launch_and_not_before(graphs):
    """Kernels and fills in order, arguments as they were; the graph's launches outlive its handle."""
    lib, stream, x, y = graphs.lib, graphs.stream(), graphs.floats(5), graphs.floats(1)
    assert lib.hipStreamBeginCapture(stream, GLOBAL) == SUCCESS
    found, state, number = graphs.status(stream)
    assert (found, state, number > 0) == (SUCCESS, 1, True)
    assert graphs.copy(x, y, stream) == SUCCESS
    assert lib.hipMemsetAsync(x, 0, SIZE, stream) == SUCCESS
    status, graph = graphs.end(stream)
    assert status == SUCCESS
    assert graphs.status(stream)[:2] == (SUCCESS, 0)
    assert [graphs.first(x), graphs.first(y)] == [5, 1]
    count = ctypes.c_size_t()
    assert lib.hipGraphGetNodes(graph, None, ctypes.byref(count)) == SUCCESS
    assert count.value == 2
    ready = graphs.made(lib.hipGraphInstantiate, graph, None, None, ctypes.c_size_t(0))
    assert lib.hipGraphDestroy(graph) == SUCCESS
    for wanted in ([0, 5], [0, 0]):
        assert lib.hipGraphLaunch(ready, stream) == SUCCESS, graphs.device.report()
        assert [graphs.first(x), graphs.first(y)] == wanted
    assert lib.hipGraphExecDestroy(ready) == SUCCESS
    assert lib.hipGraphLaunch(ready, stream) == INVALID_VALUE


@pytest.mark.parametrize(
    ("mode", "relaxed", "wanted"),
    [(GLOBAL, False, UNSUPPORTED), (THREAD_LOCAL, False, UNSUPPORTED), (RELAXED, False, SUCCESS),
     (GLOBAL, True, SUCCESS), (THREAD_LOCAL, True, SUCCESS)],
)  # fmt: skip
def test_allocating_in_a_capture_needs_the_relaxed_mode(graphs, mode, relaxed, wanted):
    """The capture's, or the thread's for a while; else the capture is lost."""
    lib, stream, pointer = graphs.lib, graphs.stream(), ctypes.c_void_p()
    x, y = graphs.floats(1), graphs.floats(2)
    thread = ctypes.c_int(RELAXED)
    assert lib.hipStreamBeginCapture(stream, mode) == SUCCESS
    if relaxed:
        assert lib.hipThreadExchangeStreamCaptureMode(ctypes.byref(thread)) == SUCCESS
        assert thread.value == GLOBAL
    assert lib.hipMalloc(ctypes.byref(pointer), SIZE) == wanted
    assert lib.hipFree(pointer) == wanted
    if relaxed:
        assert lib.hipThreadExchangeStreamCaptureMode(ctypes.byref(thread)) == SUCCESS
        assert thread.value == RELAXED
    assert graphs.copy(x, y, stream) == (SUCCESS if wanted == SUCCESS else INVALIDATED)
    assert graphs.status(stream)[1] == (1 if wanted == SUCCESS else 2)
    assert graphs.end(stream)[0] == (SUCCESS if wanted == SUCCESS else INVALIDATED)


@pytest.mark.parametrize(("mode", "wanted"), [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, SUCCESS), (RELAXED, SUCCESS)])
def test_only_a_global_capture_binds_other_threads(graphs, mode, wanted):
    """What they allocate; no thread may wait for the device, and only the capture's own may end it."""
    lib, stream = graphs.lib, graphs.stream()
    assert lib.hipStreamBeginCapture(stream, mode) == SUCCESS
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lib.hipFree, None).result() == wanted
        ended = SUCCESS if mode == RELAXED else WRONG_THREAD
        assert other.submit(graphs.end, stream).result()[0] == ended
        assert other.submit(lib.hipDeviceSynchronize).result() == (SUCCESS if mode == RELAXED else UNSUPPORTED)
    if mode != RELAXED:
        assert graphs.end(stream)[0] == INVALIDATED


def test_what_waits_is_refused_in_a_capture(graphs):
    """Whatever its mode: copies and fills without a stream, waiting for it, for an event of it, for the device."""
    lib, other, event, x = graphs.lib, graphs.stream(), graphs.event(), graphs.floats(1)
    host, elapsed = (ctypes.c_char * 512)(), ctypes.byref(ctypes.c_float())
    assert lib.hipEventRecord(event, other) == SUCCESS
    attempts = {
        "copy": (lambda: graphs.device.copy(host, x, 512, TO_HOST), IMPLICIT),
        "fill": (lambda: lib.hipMemset(x, 0, SIZE), IMPLICIT),
        "device": (lib.hipDeviceSynchronize, UNSUPPORTED),
        "stream": (lambda: lib.hipStreamSynchronize(stream), UNSUPPORTED),
        "query": (lambda: lib.hipStreamQuery(stream), UNSUPPORTED),
        "event": (lambda: lib.hipEventSynchronize(event), CAPTURED_EVENT),
        "event's query": (lambda: lib.hipEventQuery(event), CAPTURED_EVENT),
        "another stream": (lambda: lib.hipStreamWaitEvent(stream, before, 0), ISOLATION),
    }
    for name, (attempt, wanted) in attempts.items():
        stream, before = graphs.stream(), graphs.event()
        assert lib.hipEventRecord(before, other) == SUCCESS
        assert lib.hipStreamBeginCapture(stream, RELAXED) == SUCCESS
        assert lib.hipEventRecord(event, stream) == SUCCESS
        assert attempt() == wanted, name
        assert graphs.end(stream)[0] == INVALIDATED, name
    assert lib.hipEventElapsedTime(elapsed, event, event) == INVALID_HANDLE
    assert lib.hipStreamBeginCapture(stream, GLOBAL) == SUCCESS
    assert lib.hipStreamSynchronize(other) == UNSUPPORTED
    assert graphs.end(stream)[0] == INVALIDATED


def test_default_stream_is_never_captured(graphs):
    """A stream that the default stream does not wait for leaves it alone."""
    lib, x, y = graphs.lib, graphs.floats(1), graphs.floats(2)
    assert lib.hipStreamBeginCapture(None, GLOBAL) == UNSUPPORTED
    for flags, wanted in ((0, IMPLICIT), (1, SUCCESS)):
        stream = graphs.stream(flags)
        assert graphs.end(stream)[0] == ILLEGAL_STATE
        assert lib.hipStreamBeginCapture(stream, GLOBAL) == SUCCESS
        assert lib.hipStreamBeginCapture(stream, GLOBAL) == ILLEGAL_STATE
        assert graphs.copy(x, y, None) == wanted
        assert graphs.status(None)[0] == wanted
        assert graphs.end(stream)[0] == SUCCESS


def fork(graphs, join):
    """Capture x -> y on a stream, and, on one that waits for it, y -> z; returns the status and the graph."""
    lib, first, second = graphs.lib, graphs.stream(), graphs.stream()
    x, y, z = graphs.floats(7), graphs.floats(0), graphs.floats(0)
    split, joined = graphs.event(), graphs.event()
    assert lib.hipStreamBeginCapture(first, THREAD_LOCAL) == SUCCESS
    assert graphs.copy(x, y, first) == SUCCESS
    assert lib.hipEventRecord(split, first) == SUCCESS
    assert lib.hipStreamWaitEvent(second, split, 0) == SUCCESS
    assert graphs.status(second) == graphs.status(first)
    assert graphs.end(second)[0] == UNMATCHED
    assert graphs.copy(y, z, second) == SUCCESS
    if join:
        assert lib.hipEventRecord(joined, second) == SUCCESS
        assert lib.hipStreamWaitEvent(first, joined, 0) == SUCCESS
    status, graph = graphs.end(first)
    assert graphs.status(second)[:2] == (SUCCESS, 0)
    return status, graph, first, z


def test_second_stream_joins_a_capture_by_its_event(graphs):
    """Its work is in the graph, and must come before the end."""
    status, graph, stream, z = fork(graphs, join=True)
    assert status == SUCCESS
    ready = graphs.made(graphs.lib.hipGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
    assert graphs.lib.hipGraphLaunch(ready, stream) == SUCCESS, graphs.device.report()
    assert graphs.first(z) == 7
    assert fork(graphs, join=False)[0] == UNJOINED


def test_two_captures_do_not_merge(graphs):
    """Neither survives it."""
    lib, one, two, event = graphs.lib, graphs.stream(), graphs.stream(), graphs.event()
    for stream in (one, two):
        assert lib.hipStreamBeginCapture(stream, THREAD_LOCAL) == SUCCESS
    assert lib.hipEventRecord(event, one) == SUCCESS
    assert lib.hipStreamWaitEvent(two, event, 0) == MERGE
    assert [graphs.end(one)[0], graphs.end(two)[0]] == [INVALIDATED] * 2


def test_a_graph_whose_memory_is_gone_is_told(graphs):
    """At its launch, by allocation: another one at the same address is not the same."""
    lib, stream, x, y = graphs.lib, graphs.stream(), graphs.floats(1), graphs.floats(2)
    assert lib.hipStreamBeginCapture(stream, GLOBAL) == SUCCESS
    assert graphs.copy(x, y, stream) == SUCCESS
    ready = graphs.made(lib.hipGraphInstantiateWithFlags, graphs.end(stream)[1], ctypes.c_ulonglong(0))
    graphs.device.free(y)
    assert lib.hipGraphLaunch(ready, stream) == LAUNCH_FAILURE
    report = graphs.device.report()
    assert report.startswith("rocattn hostgpu: graph launched after its memory was freed, kernel copy: argument 1 ")
    assert report.count("\n") == 1


def test_branches_of_a_graph_overlap_in_time(standin):
    """The host launches it in one call; the branches' kernels overlap, what waits for both does not."""
    graphs = Graphs(standin("gfx1100", time="call=8000 copy=5000 memset=3000"))
    lib, stream, other = graphs.lib, graphs.stream(), graphs.stream()
    split, joined, start, stop = (graphs.event() for _ in range(4))
    x, y, z = graphs.floats(1), graphs.floats(2), graphs.floats(3)
    assert lib.hipStreamBeginCapture(stream, GLOBAL) == SUCCESS
    lib.hipEventRecord(split, stream)
    lib.hipStreamWaitEvent(other, split, 0)
    assert graphs.copy(x, y, stream) == graphs.copy(x, z, other) == SUCCESS
    lib.hipEventRecord(joined, other)
    lib.hipStreamWaitEvent(stream, joined, 0)
    assert lib.hipMemsetAsync(x, 0, SIZE, stream) == SUCCESS
    status, graph = graphs.end(stream)
    assert status == SUCCESS
    ready = graphs.made(lib.hipGraphInstantiateWithFlags, graph, ctypes.c_ulonglong(0))
    lib.hipDeviceSynchronize()
    lib.hipEventRecord(start, stream)
    assert lib.hipGraphLaunch(ready, stream) == SUCCESS
    lib.hipEventRecord(stop, stream)
    ms = ctypes.c_float()
    lib.hipStreamSynchronize(stream)
    assert lib.hipEventElapsedTime(ctypes.byref(ms), start, stop) == SUCCESS
    assert round(ms.value * 1e6) == 8000 + 5000 + 3000
