"""The stand-in as a HIP runtime, call by call."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rocattn import toolchain
from rocattn.errors import SettingError, ToolchainError
from rocattn.toolchain.hostgpu import compile_hostgpu

from .standin import INVALID_VALUE, KERNELS, OUT_OF_MEMORY, SUCCESS, TO_DEVICE, TO_HOST

INVALID_CONFIGURATION, NO_DEVICE, INVALID_DEVICE, NO_BINARY, INVALID_FILE = 9, 100, 101, 209, 218
INVALID_HANDLE, NOT_FOUND = 400, 500
DEVICE_TO_DEVICE = 3
ELF = b"\x7fELF\x02\x01"


def test_memory_is_counted_and_limited(standin):
    """Exactly the bytes asked for count; too many are refused and change nothing."""
    device = standin(memory_bytes=str(1 << 20))
    assert free_bytes(device) == (1 << 20, 1 << 20)
    first = device.empty(600_000)
    assert free_bytes(device) == ((1 << 20) - 600_000, 1 << 20)
    pointer = ctypes.c_void_p(1)
    assert device.lib.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(600_000)) == OUT_OF_MEMORY
    assert pointer.value is None
    device.free(first)
    for _ in range(100):  # memory is used again, in the end
        device.free(device.upload(np.zeros(900_000, np.uint8)))
    assert free_bytes(device) == (1 << 20, 1 << 20)
    assert device.lib.hipFree(first) == INVALID_VALUE
    assert device.lib.hipFree(None) == SUCCESS


def free_bytes(device):
    """(free, total) of the device's memory."""
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    assert device.lib.hipMemGetInfo(*map(ctypes.byref, sizes)) == SUCCESS
    return tuple(size.value for size in sizes)


def test_live_allocations_never_overlap(standin):
    """Random allocations and releases in a small arena: contents survive, addresses are aligned, gaps are used."""
    device = standin(memory_bytes=str(1 << 20))
    rng, live = np.random.default_rng(9), []
    for step in range(600):
        if live and (rng.random() < 0.45 or len(live) > 12):
            pointer, data = live.pop(int(rng.integers(len(live))))
            np.testing.assert_array_equal(device.download(pointer, data.shape, np.uint8), data)
            device.free(pointer)
        else:
            data = np.full(int(rng.integers(1, 60_000)), step % 256, np.uint8)
            live.append((device.upload(data), data))
            assert live[-1][0].value % 256 == 0
    for pointer, data in live:
        np.testing.assert_array_equal(device.download(pointer, data.shape, np.uint8), data)
        device.free(pointer)


def test_copies_beyond_an_allocation_are_refused(standin):
    """In both directions, with the sizes."""
    device = standin()
    pointer, host = device.empty(100), (ctypes.c_char * 200)()
    assert device.copy(pointer, host, 101, TO_DEVICE) == INVALID_VALUE
    assert "copy to the device of 101 bytes at byte 0" in device.report()
    assert device.copy(host, pointer, 101, TO_HOST) == INVALID_VALUE
    assert "copy from the device of 101 bytes" in device.report()
    assert device.copy(pointer, host, 100, TO_HOST) == INVALID_VALUE  # host memory is no source on the device
    assert device.lib.hipMemset(pointer, 0, ctypes.c_size_t(101)) == INVALID_VALUE
    assert "memset of 101 bytes" in device.report()
    device.free(pointer)
    assert device.copy(pointer, host, 1, TO_DEVICE) == INVALID_VALUE
    assert "was freed" in device.report()


def test_what_is_initialised_follows_copies_and_memset(standin):
    """A copy on the device carries undefined bytes along; memset and host memory are defined."""
    device = standin()
    function = device.function("copy.hip", "copy")
    undefined, target, out = device.empty(512), device.empty(512), device.empty(512)
    count = ctypes.c_uint(128)
    assert device.copy(target, undefined, 512, DEVICE_TO_DEVICE) == SUCCESS
    assert device.launch(function, (1,), (128,), target, out, count) != SUCCESS
    assert "uninitialised global read" in device.report()
    assert device.lib.hipMemset(undefined, 7, ctypes.c_size_t(512)) == SUCCESS
    assert device.copy(target, undefined, 512, DEVICE_TO_DEVICE) == SUCCESS
    assert device.launch(function, (1,), (128,), target, out, count) == SUCCESS, device.report()
    assert (device.download(out, 512, np.uint8) == 7).all()
    pinned = ctypes.c_void_p()
    assert device.lib.hipHostMalloc(ctypes.byref(pinned), ctypes.c_size_t(512), 0) == SUCCESS
    ctypes.memset(pinned, 9, 512)
    assert device.launch(function, (1,), (128,), pinned, out, count) == SUCCESS, device.report()
    assert (device.download(out, 512, np.uint8) == 9).all()
    assert device.lib.hipFree(pinned) == INVALID_VALUE
    assert device.lib.hipHostFree(pinned) == SUCCESS


def test_pointers_tell_what_they_are(standin):
    """Device memory, pinned memory, and memory of neither kind."""
    device = standin()
    seen = (ctypes.c_uint64 * 4)()
    pinned, inside = ctypes.c_void_p(), device.empty(64).value + 63
    assert device.lib.hipHostMalloc(ctypes.byref(pinned), ctypes.c_size_t(64), 0) == SUCCESS
    for pointer, kind in ((inside, 2), (inside + 1, 0), (pinned.value, 1), (ctypes.addressof(seen), 0)):
        assert device.lib.hipPointerGetAttributes(seen, ctypes.c_void_p(pointer)) == SUCCESS
        assert seen[0] & 0xFFFFFFFF == kind


def foreign_library(folder):
    """A shared object that is no kernel."""
    (folder / "other.cpp").write_text("int answer() { return 42; }\n")
    return toolchain.compile_host([folder / "other.cpp"])


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (lambda _: ELF + bytes(12) + b"\xe0\0" + bytes(100), NO_BINARY, "code for a real GPU"),
        (lambda _: toolchain.compile_hip(KERNELS / "copy.hip", "gfx1100").data, NO_BINARY, "code for a real GPU"),
        (lambda _: ELF + bytes(10) + b"\3\0\x08\0" + bytes(100), NO_BINARY, "for this CPU"),
        (lambda _: b"__CLANG_OFFLOAD_BUNDLE__" + bytes(100), INVALID_FILE, "no 64-bit ELF file"),
        (foreign_library, INVALID_FILE, "no kernel of rocattn"),
    ],
    ids=["header of a GPU's", "the very bytes that a GPU would take", "another CPU's", "bundle", "library"],
)
def test_code_that_cannot_run_is_refused(standin, tmp_path, code, status, words):
    """Each with a line that says why."""
    device = standin()
    assert device.load(code(tmp_path))[0] == status
    assert words in device.report()


def test_modules_come_and_go(standin):
    """Two at once, each with its own code; after unloading, handles are refused."""
    device = standin()
    status, first = device.load(compile_hostgpu(KERNELS / "copy.hip", "gfx1100"))
    assert status == SUCCESS
    status, second = device.load(compile_hostgpu(KERNELS / "copy.hip", "gfx1100", defines={"TIMES": 3}))
    assert status == SUCCESS
    x, y = device.upload(np.ones(128, np.float32)), device.empty(512)
    functions = [ctypes.c_void_p(), ctypes.c_void_p()]
    for module, function, wanted in ((first, functions[0], 1), (second, functions[1], 3)):
        assert device.lib.hipModuleGetFunction(ctypes.byref(function), module, b"copy") == SUCCESS
        assert device.launch(function, (1,), (128,), x, y, ctypes.c_uint(128)) == SUCCESS
        assert (device.download(y, 128, np.float32) == wanted).all()
    missing = ctypes.c_void_p()
    assert device.lib.hipModuleGetFunction(ctypes.byref(missing), first, b"copyy") == NOT_FOUND
    assert device.lib.hipModuleUnload(first) == SUCCESS
    assert device.launch(functions[0], (1,), (128,), x, y, ctypes.c_uint(128)) == INVALID_HANDLE
    assert device.lib.hipModuleUnload(first) == INVALID_HANDLE
    assert device.launch(functions[1], (1,), (128,), x, y, ctypes.c_uint(128)) == SUCCESS
    assert device.lib.hipModuleUnload(second) == SUCCESS


def test_errors_stay_until_they_are_asked_for(standin):
    """hipPeekAtLastError keeps, hipGetLastError clears; every error has HIP's name."""
    device = standin()
    device.lib.hipGetLastError()
    device.lib.hipGetErrorName.restype = device.lib.hipGetErrorString.restype = ctypes.c_char_p
    assert device.lib.hipSetDevice(1) == INVALID_DEVICE
    assert device.lib.hipSetDevice(0) == SUCCESS
    assert device.lib.hipPeekAtLastError() == INVALID_DEVICE
    assert device.lib.hipGetLastError() == INVALID_DEVICE
    assert device.lib.hipGetLastError() == SUCCESS
    assert device.lib.hipGetErrorName(INVALID_DEVICE) == b"hipErrorInvalidDevice"
    assert device.lib.hipGetErrorString(OUT_OF_MEMORY) == b"out of memory"


def test_streams_and_events_are_handles(standin):
    """Unknown ones are refused; an event that was not recorded has no time."""
    device = standin()
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    assert device.lib.hipStreamCreate(ctypes.byref(stream)) == SUCCESS
    assert device.lib.hipEventCreate(ctypes.byref(event)) == SUCCESS
    elapsed = ctypes.c_float()
    assert device.lib.hipEventElapsedTime(ctypes.byref(elapsed), event, event) == INVALID_HANDLE
    assert device.lib.hipEventRecord(event, stream) == SUCCESS
    assert device.lib.hipEventElapsedTime(ctypes.byref(elapsed), event, event) == SUCCESS
    assert elapsed.value == 0
    assert device.lib.hipStreamDestroy(stream) == SUCCESS
    assert device.lib.hipStreamSynchronize(stream) == INVALID_HANDLE
    assert device.lib.hipEventRecord(event, stream) == INVALID_HANDLE
    assert device.lib.hipStreamSynchronize(None) == SUCCESS


def test_an_unknown_architecture_is_no_device(standin):
    """With one line that lists what there is."""
    device = standin("gfx906")
    assert device.ready == NO_DEVICE
    count = ctypes.c_int(7)
    assert device.lib.hipGetDeviceCount(ctypes.byref(count)) == NO_DEVICE
    assert count.value == 0
    report = device.report()
    assert report.count("\n") == 1
    assert "'gfx906'" in report
    assert "gfx1201" in report


def test_other_names_do_the_same(standin):
    """Copies and fills by direction and width, asynchronous ones, queries, and a kernel's block size."""
    lib, device = standin().lib, standin()
    pointer, stream, event = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.hipMallocAsync(ctypes.byref(pointer), ctypes.c_size_t(16), None) == SUCCESS
    data, back, size = (ctypes.c_uint8 * 16)(*range(16)), (ctypes.c_uint8 * 16)(), ctypes.c_size_t(16)
    assert lib.hipMemcpyHtoD(pointer, data, size) == SUCCESS
    assert lib.hipMemcpyDtoD(ctypes.c_void_p(pointer.value + 8), pointer, ctypes.c_size_t(8)) == SUCCESS
    assert lib.hipMemcpyDtoH(back, pointer, size) == SUCCESS
    assert list(back) == [*range(8), *range(8)]
    for fill, width in ((lib.hipMemsetD8, 1), (lib.hipMemsetD16, 2), (lib.hipMemsetD32, 4)):
        value = int.from_bytes(bytes(range(65, 65 + width)), "little")
        assert fill(pointer, value, ctypes.c_size_t(16 // width)) == SUCCESS
        assert bytes(device.download(pointer, 16, np.uint8)) == bytes(range(65, 65 + width)) * (16 // width)
    assert lib.hipStreamCreateWithFlags(ctypes.byref(stream), 1) == SUCCESS
    assert lib.hipEventCreateWithFlags(ctypes.byref(event), 0) == SUCCESS
    assert lib.hipMemsetAsync(pointer, 3, size, stream) == SUCCESS
    assert lib.hipEventRecord(event, stream) == SUCCESS
    assert lib.hipStreamWaitEvent(stream, event, 0) == lib.hipEventQuery(event) == lib.hipStreamQuery(stream) == SUCCESS
    assert lib.hipFreeAsync(pointer, stream) == SUCCESS
    number, name = ctypes.c_int(), ctypes.create_string_buffer(64)
    assert lib.hipFuncGetAttribute(ctypes.byref(number), 0, device.function("copy.hip", "copy")) == SUCCESS
    assert number.value == 128
    assert lib.hipDeviceGetName(name, 64, 0) == SUCCESS
    assert name.value == b"rocattn hostgpu: a stand-in for gfx1100, no GPU"


def test_threads_of_the_host_may_launch_at_the_same_time(standin):
    """Each has its own arrays; the stand-in runs one launch after another."""
    device = standin()
    function = device.function("copy.hip", "copy")

    def work(seed):
        x = np.full(128, seed, np.float32)
        pointer, target = device.upload(x), device.empty(512)
        return all(
            device.launch(function, (1,), (128,), pointer, target, ctypes.c_uint(128)) == SUCCESS
            and (device.download(target, 128, np.float32) == x).all()
            for _ in range(50)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("order", [(2, 1, 3), (1, 2, 0), (1, 3, 3)])
def test_a_list_of_arguments_in_another_order_is_refused(standin, order):
    """HIP looks at fixed places of the list for its marks; none at all is refused for a kernel that has arguments."""
    device = standin()
    function = device.function("copy.hip", "copy")
    buffer = (ctypes.c_uint64 * 3)(*(device.empty(512).value for _ in range(2)), 128)
    size = ctypes.c_size_t(20)
    places = {1: ctypes.addressof(buffer), 2: ctypes.addressof(size)}
    first, second, last = order
    extra = (ctypes.c_void_p * 5)(first, places[first], second, places.get(second, 0), last)
    sizes = (1, 1, 1, 128, 1, 1, 0)
    assert device.lib.hipModuleLaunchKernel(function, *sizes, None, None, extra) == INVALID_VALUE
    assert device.lib.hipModuleLaunchKernel(function, *sizes, None, None, None) == INVALID_VALUE


def test_empty_grids_are_refused(standin):
    """As HIP does, without running anything."""
    device = standin()
    function = device.function("copy.hip", "copy")
    x, y = device.upload(np.ones(128, np.float32)), device.empty(512)
    assert device.launch(function, (0,), (128,), x, y, ctypes.c_uint(128)) == INVALID_CONFIGURATION


@pytest.mark.parametrize(
    ("arch", "level", "error", "words"),
    [
        ("gfx906", "1", ToolchainError, "the stand-in GPU has no 'gfx906': it has gfx1030"),
        ("gfx942", "fast", SettingError, "ROCATTN_HOSTGPU_OPTIMIZE is 'fast': set it to 0 or 1 or 2"),
    ],
)
def test_the_toolchain_refuses_what_there_is_not(monkeypatch, arch, level, error, words):
    """Before any compiler starts; a mistyped setting is not taken for the default."""
    monkeypatch.setenv("ROCATTN_HOSTGPU_OPTIMIZE", level)
    with pytest.raises(error, match=words):
        compile_hostgpu(KERNELS / "copy.hip", arch)
