"""The HIP runtime through hip-python, imported only here; addresses and handles are plain integers.

Facts relied on (hip-python 7.2 and 10): importing it works without ROCm; the first call then raises RuntimeError.
Outputs of a failed call are garbage. Error values print as numbers, so names are taken from the enum.
``hipGetErrorString`` writes to stderr if the library is missing, so it is not used. Integers are accepted as addresses
wherever a pointer or handle is expected.
"""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rocattn.gpu.errors import DeviceMemoryError, GpuError, LaunchError, NoDeviceError, NoRuntimeError
from rocattn.gpu.reasons import LIBRARY, NO_NVIDIA_DEVICE, library_reason, no_device_reason, stand_in_reason
from rocattn.installed import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAND_IN_SYMBOL = "rocattn_hostgpu_version"
"""Exported only by the stand-in GPU's library (kernels/hostgpu)."""
NVIDIA_SYMBOL = "rocattn_hipcuda_version"
"""Exported only by the library that forwards HIP's calls to an NVIDIA driver (research/hipcuda)."""
_OUT_OF_MEMORY = frozenset({"hipErrorOutOfMemory", "hipErrorMemoryAllocation"})
_STEPS = "hipModuleLaunchKernel", "hipGetDevice", "hipSetDevice"  # calls of a launch
_CAPTURE_THREAD_LOCAL, _CAPTURE_RELAXED = 1, 2  # hipStreamCaptureMode


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU as described by the HIP runtime.

    Attributes:
        name: Marketing name; empty on some boards.
        arch: Target for which kernels are compiled, with features ("gfx942:sramecc+:xnack-").
        compute_units: Compute units (on gfx10 and later, as the runtime counts them: usually work-group processors).
        memory_bytes: Device memory.
        wave_size: Lanes of a wave, 32 or 64.
        is_stand_in: Whether it is the stand-in, which executes kernels on the CPU: its times mean nothing.
    """

    name: str
    arch: str
    compute_units: int
    memory_bytes: int
    wave_size: int
    is_stand_in: bool = False


def _failed(call: str, status: Any) -> GpuError:
    """Return the exception for a status other than hipSuccess."""
    name = str(getattr(status, "name", status))
    return GpuError(f"{call} gave {name}", status=name)


def _no_bindings() -> str:
    return f"hip-python is not installed: {install_command('hip-python')} (x86-64 Linux only)"


def import_bindings() -> tuple[Any, str]:
    """Return hip-python's ``hip`` module (``rocm.bindings`` since 10) and the package's version, or None.

    Importing it starts nothing: the runtime library is opened by the first call.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        package = version("hip-python")
    except PackageNotFoundError:
        package = ""
    for home in ("rocm.bindings", "hip"):
        try:
            return import_module(f"{home}.hip"), package
        except ModuleNotFoundError:
            continue
    return None, ""


def library_path() -> Path:
    """Return where hip-python finds the runtime; a bare name if it leaves that to the loader.

    Raises:
        NoRuntimeError: When ROCm's Python packages, which take precedence, fail.
    """
    try:
        from rocm.bindings.util.paths import get_library_path

        return Path(os.fsdecode(get_library_path("amdhip64")))
    except ImportError:
        return Path(LIBRARY)
    except Exception as error:  # partially installed packages may raise anything
        raise NoRuntimeError(f"no HIP runtime: the package rocm_sdk is incomplete: {error}") from error


def stand_in_at_hand() -> bool:
    """Return whether the HIP runtime to load is the stand-in; opens the library without initializing anything."""
    return _library_has(STAND_IN_SYMBOL)


def nvidia_at_hand() -> bool:
    """Return whether the HIP runtime to load forwards to an NVIDIA driver; initializes nothing."""
    return _library_has(NVIDIA_SYMBOL)


def _library_has(symbol: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(str(library_path())), symbol)
    except (OSError, NoRuntimeError):
        return False


def absence() -> str:
    """Return why this machine without a GPU driver cannot use a GPU; loads and initializes nothing of HIP."""
    if find_spec("rocm") is None and find_spec("hip") is None:
        return _no_bindings()
    path = library_path()
    if path.is_absolute() and path.exists():
        return "no AMD GPU: /dev/kfd is missing, so no amdgpu driver is loaded"
    return library_reason(path)


class Hip:
    """The HIP runtime calls used by rocattn; each checks its status.

    Attributes:
        version: hip-python's version.
        is_stand_in: Whether the library is the stand-in GPU.

    Raises:
        NoRuntimeError: When hip-python or the library is missing; the message gives the remedy.
    """

    def __init__(self) -> None:
        self._hip, self.version = import_bindings()
        if self._hip is None:
            raise NoRuntimeError(_no_bindings())
        if hasattr(self._hip, "has_symbol") and not self._hip.has_symbol("hipInit"):
            raise NoRuntimeError(library_reason(library_path()))
        self._success = self._hip.hipError_t.hipSuccess
        self._to_device = self._hip.hipMemcpyKind.hipMemcpyHostToDevice
        self._to_host = self._hip.hipMemcpyKind.hipMemcpyDeviceToHost
        self._on_device = self._hip.hipMemcpyKind.hipMemcpyDeviceToDevice
        self.is_stand_in = stand_in_at_hand()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a HIP function by name and return its first output; bindings return (status, output…) or a bare status.

        Raises:
            NoRuntimeError: When the library or this function in it is missing.
            GpuError: When the status is not hipSuccess; the message names function and status.
        """
        outputs = self._outputs(name, *arguments)
        return outputs[0] if outputs else None

    def _outputs(self, name: str, *arguments: Any) -> list[Any]:
        try:
            result = getattr(self._hip, name)(*arguments)
        except RuntimeError as error:  # raised by the bindings for a missing library or symbol
            if "dlopen" in str(error):
                raise NoRuntimeError(library_reason(library_path())) from error
            raise NoRuntimeError(f"the HIP runtime does not fit hip-python: {error}") from error
        except ValueError as error:
            raise self._unnamed(name, error) from error
        status, *outputs = result if isinstance(result, tuple) else (result,)
        if status != self._success:
            self._forget_error()
            raise _failed(name, status)
        return outputs

    def _unnamed(self, name: str, error: ValueError) -> GpuError:
        """Return the exception for an error code unknown to these bindings."""
        self._forget_error()
        return GpuError(f"{name}: the HIP runtime is newer than hip-python {self.version}: {error}")

    def _forget_error(self) -> None:
        """Clear the last error, which HIP 7 and later keep until read: torch's next launch would raise it."""
        with suppress(RuntimeError, ValueError):
            self._hip.hipGetLastError()

    def runtime_version(self) -> str:
        """Return the version, which HIP packs as major * 10^7 + minor * 10^5 + patch; "" if unknown."""
        try:
            packed = int(self.call("hipRuntimeGetVersion"))
        except NoRuntimeError:
            raise
        except GpuError:
            return ""
        return f"{packed // 10**7}.{packed // 10**5 % 100}.{packed % 10**5}"

    def device_count(self) -> int:
        """Return the number of devices.

        Raises:
            NoDeviceError: When there is none; the message gives the reason and the remedy.
        """
        try:
            count = int(self.call("hipGetDeviceCount"))
        except NoRuntimeError:
            raise
        except GpuError as error:
            raise NoDeviceError(self._no_device(error)) from error
        if count == 0:
            raise NoDeviceError(no_device_reason("hipGetDeviceCount returned 0"))
        return count

    def _no_device(self, error: GpuError) -> str:
        if self.is_stand_in:
            return stand_in_reason()
        return NO_NVIDIA_DEVICE if nvidia_at_hand() else no_device_reason(str(error))

    def describe(self, index: int) -> GpuDevice:
        """Return the runtime's description of a device."""
        try:
            properties = self.call("hipGetDeviceProperties", index)
        except TypeError:  # before 10 the caller passes the struct
            properties = self._hip.hipDeviceProp_t()
            self.call("hipGetDeviceProperties", properties, index)
        return GpuDevice(
            name=_text(properties.name),
            arch=_text(properties.gcnArchName),
            compute_units=int(properties.multiProcessorCount),
            memory_bytes=int(properties.totalGlobalMem),
            wave_size=int(properties.warpSize),
            is_stand_in=self.is_stand_in,
        )

    def use_device(self, index: int) -> None:
        """Make a device current for this thread."""
        self.call("hipSetDevice", index)

    @contextmanager
    def keep_device(self) -> Iterator[None]:
        """Restore this thread's current device at the end, which the caller's next tensors depend on."""
        before = int(self.call("hipGetDevice"))
        try:
            yield
        finally:
            self.use_device(before)

    def malloc(self, count: int) -> int:
        """Allocate device memory and return its address, even while a stream is being captured.

        Raises:
            DeviceMemoryError: When there is not enough; states free and total memory.
        """
        return self._allocated("hipMalloc", "device memory", count)

    def free(self, address: int) -> None:
        """Free memory from `malloc`, after all work of the device."""
        with self._relaxed():
            self.call("hipFree", address)

    def host_malloc(self, count: int) -> int:
        """Allocate page-locked host memory, which copies access directly, and return its address."""
        return self._allocated("hipHostMalloc", "pinned host memory", count, 0)

    def host_free(self, address: int) -> None:
        """Free memory from `host_malloc`."""
        with self._relaxed():
            self.call("hipHostFree", address)

    def _allocated(self, name: str, what: str, count: int, *flags: int) -> int:
        try:
            with self._relaxed():
                return int(self.call(name, count, *flags))
        except NoRuntimeError:
            raise
        except GpuError as error:
            if error.status not in _OUT_OF_MEMORY:
                raise
            raise DeviceMemoryError(what, count, *self.memory_info()) from error

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Let this thread allocate and free while a stream is captured, without invalidating the capture.

        torch's allocator does the same. hip-python cannot: its hipThreadExchangeStreamCaptureMode takes no mode.
        """
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        self._exchange_mode(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange_mode(ctypes.byref(mode))

    @functools.cached_property
    def _exchange_mode(self) -> Callable[[Any], int]:
        exchange = getattr(ctypes.CDLL(str(library_path())), "hipThreadExchangeStreamCaptureMode", None)
        return exchange or (lambda _: 0)  # nothing to relax in a runtime without captures

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes of the current device; (-1, -1) if unknown."""
        try:
            result = self._hip.hipMemGetInfo()
        except (RuntimeError, ValueError):
            return -1, -1
        return (int(result[1]), int(result[2])) if result[0] == self._success else (-1, -1)

    def copy_to_device(self, device: int, host: int, count: int, stream: int) -> None:
        """Queue a copy from host memory, which must not change until the copy has finished."""
        self.call("hipMemcpyAsync", device, host, count, self._to_device, stream)

    def copy_to_host(self, host: int, device: int, count: int, stream: int) -> None:
        """Queue a copy to host memory."""
        self.call("hipMemcpyAsync", host, device, count, self._to_host, stream)

    def copy_on_device(self, to: int, source: int, count: int, stream: int) -> None:
        """Queue a copy within a device's memory."""
        self.call("hipMemcpyAsync", to, source, count, self._on_device, stream)

    def poison(self, device: int, count: int, stream: int) -> None:
        """Queue filling device memory with 0xff bytes: NaN in every floating format."""
        self.call("hipMemsetAsync", device, 0xFF, count, stream)

    def stream_create(self) -> int:
        """Return a new stream."""
        return int(self.call("hipStreamCreate"))

    def stream_synchronize(self, stream: int) -> None:
        """Wait until all work of a stream has finished.

        Raises:
            LaunchError: When part of it failed.
        """
        try:
            self.call("hipStreamSynchronize", stream)
        except GpuError as error:
            raise LaunchError(f"a kernel failed while it ran: {error}", report=self.report()) from error

    def capture_begin(self, stream: int) -> None:
        """Begin capturing a stream's work instead of executing it; other threads are not restricted."""
        self.call("hipStreamBeginCapture", stream, self._hip.hipStreamCaptureMode(_CAPTURE_THREAD_LOCAL))

    def capture_number(self, stream: int) -> int:
        """Return HIP's number of the capture that a stream is part of; 0 if it is not being captured."""
        if not stream:  # the default stream is never captured, and querying it may be an error
            return 0
        status, number = self._outputs("hipStreamGetCaptureInfo", stream)
        return int(number) if status == self._hip.hipStreamCaptureStatus.hipStreamCaptureStatusActive else 0

    def capture_end(self, stream: int) -> int:
        """End a capture and return its graph.

        Raises:
            GpuError: When something made the capture invalid.
        """
        return int(self.call("hipStreamEndCapture", stream))

    def graph_instantiate(self, graph: int) -> int:
        """Return an executable graph, and free the graph that it is made from."""
        try:
            return int(self.call("hipGraphInstantiateWithFlags", graph, 0))
        finally:
            self.call("hipGraphDestroy", graph)

    def graph_launch(self, ready: int, stream: int) -> None:
        """Queue all work of a graph."""
        self.call("hipGraphLaunch", ready, stream)

    def graph_destroy(self, ready: int) -> None:
        """Free a graph from `graph_instantiate`."""
        self.call("hipGraphExecDestroy", ready)

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Make a stream's subsequent work wait for an event."""
        self.call("hipStreamWaitEvent", stream, event, 0)

    def event_create(self) -> int:
        """Return a new event."""
        return int(self.call("hipEventCreate"))

    def event_record(self, event: int, stream: int) -> None:
        """Record the event at this point of a stream."""
        self.call("hipEventRecord", event, stream)

    def event_ready(self, event: int) -> bool:
        """Return whether a stream has reached a recorded event, without waiting."""
        try:
            self.call("hipEventQuery", event)
        except GpuError as error:
            if error.status == "hipErrorNotReady":
                return False
            raise
        return True

    def event_elapsed_ms(self, start: int, stop: int) -> float:
        """Wait for the later event and return the time between both in ms (a C float, about 0.5 us resolution)."""
        self.call("hipEventSynchronize", stop)
        return float(self.call("hipEventElapsedTime", start, stop))

    def event_destroy(self, event: int) -> None:
        """Free an event."""
        self.call("hipEventDestroy", event)

    def module_load(self, code: bytes) -> int:
        """Load machine code, and return the module."""
        return int(self.call("hipModuleLoadData", code))

    def module_function(self, module: int, symbol: str) -> int:
        """Return a kernel of a module."""
        return int(self.call("hipModuleGetFunction", module, symbol.encode()))

    def launch(self, words: bytes) -> int:
        """Queue a plan's kernels: the only time-critical call, made by kernels/cpu/launch.cpp instead of `call`.

        Args:
            words: `Call` of launch.cpp; HIP reads the arguments before this returns.

        Returns:
            0, or a status for `refusal`.

        Raises:
            ToolchainError: When there is no compiler for launch.cpp.
        """
        return int(self._queue_kernels(words))

    def refusal(self, status: int) -> tuple[GpuError, int]:
        """Return the exception for a status of `launch`, and the index of the failed kernel."""
        call = _STEPS[status >> 56]
        try:
            self._forget_error()
            return _failed(call, self._hip.hipError_t(status & 0xFFFFFFFF)), status >> 32 & 0xFFFFFF
        except ValueError as error:
            return self._unnamed(call, error), status >> 32 & 0xFFFFFF

    @functools.cached_property
    def _queue_kernels(self) -> Callable[[bytes], int]:
        from rocattn.toolchain.cpu_library import open_library, read_launcher

        queue: Any = open_library(read_launcher()).rocattn_gpu_launch
        queue.restype = ctypes.c_int64
        return cast("Callable[[bytes], int]", queue)  # no argtypes: bytes are passed as they are

    @functools.cached_property
    def entry_points(self) -> tuple[int, ...]:
        """The addresses of the functions that launch.cpp calls, in the order of its `Plan`."""
        library = ctypes.CDLL(str(library_path()))
        return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _STEPS)

    def report(self) -> str:
        """Return and clear the findings of the stand-in's checks; empty on a GPU."""
        if not self.is_stand_in:
            return ""
        library = ctypes.CDLL(str(library_path()))
        library.rocattn_hostgpu_report.restype = ctypes.c_char_p
        text: bytes = library.rocattn_hostgpu_report() or b""
        library.rocattn_hostgpu_clear()
        return text.decode(errors="replace").strip()

    def lds_cycles(self) -> list[tuple[str, str, int, int]]:
        """Return and clear the LDS accesses that the stand-in counted, if enabled in its settings.

        Returns:
            Kernel, direction ("read", "write", "transposing read"), cycles, and cycles without bank conflicts, with an
            entry per source location.
        """
        if not self.is_stand_in:
            return []
        library = ctypes.CDLL(str(library_path()))
        library.rocattn_hostgpu_lds_cycles.restype = ctypes.c_char_p
        text: bytes = library.rocattn_hostgpu_lds_cycles()
        rows = [line.split("\t") for line in text.decode(errors="replace").splitlines()]
        return [(kernel, direction, int(cycles), int(least)) for kernel, direction, _, _, cycles, least, _ in rows]


def _text(value: bytes | str) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else value).rstrip("\0")


@functools.cache
def open_hip() -> Hip:
    """Return the runtime's calls, one object per process.

    Raises:
        NoRuntimeError: When hip-python or the library is missing.
    """
    return Hip()
