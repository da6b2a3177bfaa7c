"""Executing plans: modules, argument blocks built once, launches in order on a stream, and their times.

A `PreparedPlan` holds all that does not change from call to call: code loaded, arguments packed into one structure a
launch, the five words that tell HIP where it is. A call then only writes addresses and launches.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rocattn.config import DTYPE_BYTES
from rocattn.gpu.arch import device_target, has_kernels
from rocattn.gpu.backlog import Backlog
from rocattn.gpu.build import arg_layout, arg_type, code_problem, compile_for_device, pack_scalar
from rocattn.gpu.driver import open_hip
from rocattn.gpu.errors import ArchError, ForkError, GpuError, LaunchError
from rocattn.gpu.launch import Buffer, KernelLaunch, LaunchPlan
from rocattn.gpu.memory import PinnedStaging, Pool
from rocattn.gpu.plan import buffer_bytes
from rocattn.gpu.plan_log import plan_log
from rocattn.gpu.reasons import NOT_TIMED
from rocattn.settings import GPU_POISON, switch
from rocattn.toolchain.code_object import is_code_object

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

_UNFIT = frozenset({"hipErrorNoBinaryForGpu", "hipErrorSharedObjectInitFailed"})  # code for another architecture
_LAUNCH_PARAM_BUFFER_POINTER, _LAUNCH_PARAM_BUFFER_SIZE, _LAUNCH_PARAM_END = 1, 2, 3
_MAX_PREPARED = 512
WORKSPACE_ALIGN = 256
"""What a workspace of the caller must be a multiple of: what hipMalloc aligns to."""
_CTYPES = {
    "pointer": ctypes.c_uint64, "u64": ctypes.c_uint64, "i64": ctypes.c_int64, "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32, "f32": ctypes.c_float,
}  # fmt: skip


class Runtime:
    """One device of this process: its memory, its loaded kernels, its prepared plans.

    Attributes:
        hip: The driver.
        device: What the device is.
        arch: Its target without features.
        pool: Its memory.
        staging: Pinned host memory for copies.
        stream: The stream for work from host arrays.
        poison: Whether outputs and workspaces are filled with NaN before a plan writes them: memory that is used again
            may hold the right answer of an earlier call. ``ROCATTN_GPU_POISON=1`` turns it on, and `rocattn verify`
            does; never on the stand-in, which knows itself what has not been written.
    """

    def __init__(self, index: int) -> None:
        self._process = os.getpid()
        self._index = index
        self.hip = open_hip()
        count = self.hip.device_count()
        if not 0 <= index < count:
            raise GpuError(f"there is no device {index}: HIP has {count}")
        self.device = self.hip.describe(index)
        try:
            self.arch = device_target(self.device.arch)
        except ArchError as error:
            raise ArchError(f"device {index}: {error}{self._others(count)}") from None
        self.hip.use_device(index)
        self.pool, self.staging = Pool(self.hip), PinnedStaging(self.hip)
        self.stream = self.hip.stream_create()
        self.poison = switch(GPU_POISON) and not self.device.is_stand_in
        self._functions: dict[tuple[str, str], int] = {}
        self._code: list[bytes] = []  # HIP does not say that it copies what it loads
        self._prepared: OrderedDict[Hashable, PreparedPlan] = OrderedDict()
        self._lock = threading.RLock()

    def _others(self, count: int) -> str:
        """Name the devices that there are kernels for: an integrated GPU may come before the card that is meant."""
        archs = {index: self.hip.describe(index).arch for index in range(count)}
        usable = [f"{index} ({arch})" for index, arch in archs.items() if has_kernels(arch)]
        return f"; set HIP_VISIBLE_DEVICES to choose device {' or '.join(usable)}" if usable else ""

    def enter(self) -> None:
        """Make the device this thread's current one.

        Raises:
            ForkError: In a process that was forked after HIP had been initialised.
        """
        self.check()
        self.hip.use_device(self._index)

    def check(self) -> None:
        """Refuse to be used in another process than its own.

        Raises:
            ForkError: In a process that was forked after HIP had been initialised.
        """
        check_process(self._process)

    def prepare(self, key: Hashable, make: Callable[[], LaunchPlan]) -> PreparedPlan:
        """Return the prepared plan of a key, making plan and code on first use."""
        with self._lock:
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._prepared[key] = PreparedPlan(self, make())
                if len(self._prepared) > _MAX_PREPARED:
                    self._prepared.popitem(last=False)
            self._prepared.move_to_end(key)
            return prepared

    def load(self, launches: tuple[KernelLaunch, ...]) -> list[int]:
        """Return the function of each launch, compiling and loading what is not there yet.

        Raises:
            ArchError: When the code is for another architecture than the device's.
            ToolchainError: When a kernel does not compile.
            GpuError: When the code does not take the plan's arguments, or does not load.
        """
        with self._lock:
            missing = {}
            for launch in launches:
                if (launch.code_object, launch.symbol) not in self._functions:
                    missing[launch.code_object] = launch
            if missing:
                workers = min(len(missing), len(os.sched_getaffinity(0)))
                with ThreadPoolExecutor(workers) as threads:
                    code = dict(zip(missing, threads.map(self._compile, missing.values()), strict=True))
                for name, launch in missing.items():
                    self._functions[name, launch.symbol] = self._load(launch, code[name])
            return [self._functions[launch.code_object, launch.symbol] for launch in launches]

    def _compile(self, launch: KernelLaunch) -> bytes:
        return compile_for_device(launch.source, self.arch, launch.defines, stand_in=self.device.is_stand_in)

    def _load(self, launch: KernelLaunch, code: bytes) -> int:
        # A library for the stand-in has no such metadata; the stand-in itself checks the sizes at each launch.
        checked = is_code_object(code)
        if checked and (problem := code_problem(code, launch.symbol, launch.args, launch.block)):
            raise GpuError(f"{launch.code_object}: {problem}")
        self._code.append(code)
        try:
            return self.hip.module_function(self.hip.module_load(code), launch.symbol)
        except GpuError as error:
            if error.status in _UNFIT:
                raise ArchError(f"the device is {self.device.arch}, which code for {self.arch} does not fit") from error
            details = f" ({report})" if (report := self.hip.report()) else ""
            raise GpuError(f"{launch.kernel} ({launch.code_object}) does not load: {error}{details}") from error


class PreparedPlan:
    """A plan ready to run on one device.

    Attributes:
        plan: The plan.
        runtime: The device.
        workspace_bytes: Of a workspace that a caller brings; 0 if the plan needs none.
    """

    def __init__(self, runtime: Runtime, plan: LaunchPlan) -> None:
        if plan.arch != runtime.arch:
            raise ArchError(f"the plan is for {plan.arch}, the device is {runtime.device.arch}")
        self.plan, self.runtime = plan, runtime
        self._lock = threading.Lock()
        functions = runtime.load(plan.launches)
        self._calls = [_Call(launch, function) for launch, function in zip(plan.launches, functions, strict=True)]
        self._log = plan_log()
        self._number = self._log.add(plan) if self._log else 0
        self._places: dict[str, int] = {}
        self.workspace_bytes = 0
        for name, size in plan.workspaces.items():
            self._places[name] = self.workspace_bytes
            self.workspace_bytes += -(-size // WORKSPACE_ALIGN) * WORKSPACE_ALIGN

    def run(self, addresses: Mapping[str, int], stream: int, *, workspace: int | None = None) -> None:
        """Queue all launches on a stream.

        Args:
            addresses: Of each buffer that a launch takes.
            stream: A HIP stream; 0 is the default one.
            workspace: The address of `workspace_bytes` of device memory, a multiple of `WORKSPACE_ALIGN`, that nothing
                else uses until the launches have ended, or, if they are captured, until their graph is gone. None: it
                comes from the pool.

        Raises:
            LaunchError: When HIP refuses one.
            DeviceMemoryError: When there is no memory for a workspace.
            CaptureError: When the stream is captured, not by `rocattn.gpu.graphs`, and there is no workspace.
            GpuError: When the workspace is not aligned.
        """
        if workspace is not None and workspace % WORKSPACE_ALIGN:
            raise GpuError(f"the workspace is at {workspace:#x}: its address must be a multiple of {WORKSPACE_ALIGN}")
        self._bound(addresses, stream, self._launch_all, workspace)

    def time(self, addresses: Mapping[str, int], stream: int, *, warmup: int, repeats: int) -> list[list[float]]:
        """Measure each launch by events.

        Args:
            addresses: Of each buffer that a launch takes.
            stream: A HIP stream.
            warmup: Runs before the measured ones.
            repeats: Measured runs, each behind one more that is not and enough other work to launch behind
                (`rocattn.gpu.backlog`), so that no time has the host's launching in it.

        Returns:
            For each launch of the plan its times in ns, one a run.

        Raises:
            GpuError: On the stand-in, whose times mean nothing, and where each launch waits for the one before.
            DeviceMemoryError: When there is no memory for a workspace, or for the work in front.
        """
        if self.runtime.device.is_stand_in:
            raise GpuError(NOT_TIMED)
        hip = self.runtime.hip
        samples: list[list[float]] = [[] for _ in self._calls]
        events: list[int] = []

        def measure(stream: int) -> None:
            for _ in range(warmup):
                self._launch_all(stream)
            events.extend(hip.event_create() for _ in range(len(self._calls) + 1))
            with Backlog(self.runtime.hip, self.runtime.pool, stream, lambda: self._launch_all(stream)) as backlog:
                for _ in range(repeats):
                    backlog.ahead_of(events[0], lambda: launch_between_events(stream))
                    for index, times in enumerate(samples):
                        times.append(hip.event_elapsed_ms(events[index], events[index + 1]) * 1e6)

        def launch_between_events(stream: int) -> None:
            self._note()
            for call, event in zip(self._calls, events[1:], strict=True):
                call.launch(hip, stream)
                hip.event_record(event, stream)

        try:
            self._bound(addresses, stream, measure)
        finally:
            for event in events:
                hip.event_destroy(event)
        return samples

    def _bound(
        self, addresses: Mapping[str, int], stream: int, action: Callable[[int], None], workspace: int | None = None
    ) -> None:
        """Do something with every address in its place: one thread at a time, as the argument blocks are shared."""
        self.runtime.enter()
        needed = self.plan.workspaces if workspace is None else {}
        with self._lock, self.runtime.pool.taken(needed, stream) as taken:
            own = {} if workspace is None else {name: workspace + at for name, at in self._places.items()}
            places = {**addresses, **taken, **own}
            for call in self._calls:
                call.bind(places)
            if self.runtime.poison:
                self._poison(places, stream)
            action(stream)

    def _poison(self, places: Mapping[str, int], stream: int) -> None:
        written = {name: buffer_bytes(buffer) for name, buffer in self.plan.buffers.items() if _is_dense_output(buffer)}
        for name, size in (written | self.plan.workspaces).items():
            if size and places.get(name):
                self.runtime.hip.poison(places[name], size, stream)

    def _launch_all(self, stream: int) -> None:
        self._note()
        hip = self.runtime.hip
        for call in self._calls:
            call.launch(hip, stream)

    def _note(self) -> None:
        if self._log:
            self._log.ran(self._number)


def _is_dense_output(buffer: Buffer) -> bool:
    """Whether an output has no gaps, in which there could be somebody else's data."""
    count = 1
    for extent in buffer.shape:
        count *= extent
    return buffer.role == "output" and buffer_bytes(buffer) == count * DTYPE_BYTES[buffer.dtype]


class _Call:
    """One launch with its argument block and the structure that passes it to HIP."""

    def __init__(self, launch: KernelLaunch, function: int) -> None:
        self._kernel = launch.kernel
        self._what = (function, *launch.grid, *launch.block, launch.dynamic_lds_bytes)
        kind = _structure(tuple((arg_type(arg), size) for arg, (_, size) in zip(launch.args, arg_layout(launch.args),
                                                                                strict=True)))  # fmt: skip
        self._arguments = kind()
        self._pointers = [
            (f"a{index}", arg.name, arg.offset_bytes if arg.kind == "buffer" else 0)
            for index, arg in enumerate(launch.args) if arg.kind != "scalar"
        ]  # fmt: skip
        for arg, (offset, size) in zip(launch.args, arg_layout(launch.args), strict=True):
            if arg.kind == "scalar":
                ctypes.memmove(ctypes.addressof(self._arguments) + offset, pack_scalar(arg), size)
        self._size = ctypes.c_size_t(ctypes.sizeof(kind))
        self._extra = (ctypes.c_void_p * 5)(
            _LAUNCH_PARAM_BUFFER_POINTER, ctypes.addressof(self._arguments),
            _LAUNCH_PARAM_BUFFER_SIZE, ctypes.addressof(self._size), _LAUNCH_PARAM_END,
        )  # fmt: skip

    def bind(self, addresses: Mapping[str, int]) -> None:
        for field, name, offset in self._pointers:
            setattr(self._arguments, field, addresses[name] + offset)

    def launch(self, hip: Any, stream: int) -> None:
        try:
            hip.launch(self._what, stream, self._extra)
        except GpuError as error:
            raise LaunchError(f"{self._kernel}: {error}", self._kernel, hip.report()) from error


@functools.cache
def _structure(fields: tuple[tuple[str, int], ...]) -> type[ctypes.Structure]:
    """Return the structure of a kernel signature: one class however many kernels and plans share it."""
    listed = [
        (f"a{index}", _CTYPES[kind] if kind in _CTYPES else ctypes.c_ubyte * size)
        for index, (kind, size) in enumerate(fields)
    ]
    return type("Arguments", (ctypes.Structure,), {"_fields_": listed})


def check_process(initialised_in: int) -> None:
    """Refuse to go on in a child of the process that initialised HIP.

    Raises:
        ForkError: In such a child; the text says how to start workers instead.
    """
    if os.getpid() != initialised_in:
        raise ForkError(
            f"HIP was initialised in process {initialised_in}, of which this one ({os.getpid()}) is a fork, and cannot "
            'be used here: start workers with multiprocessing\'s "spawn", or fork before the first use of the GPU'
        )


_RUNTIMES: dict[int, Runtime] = {}
_OPENING = threading.Lock()


def open_runtime(index: int = 0) -> Runtime:
    """Return the runtime of a device, one object a process and device.

    Raises:
        NoRuntimeError, NoDeviceError: When there is no HIP runtime, or no device.
        ArchError: When there are no kernels for the device.
        ForkError: In a process that was forked after HIP had been initialised.
    """
    with _OPENING:
        if index not in _RUNTIMES:
            for other in _RUNTIMES.values():
                other.enter()
            _RUNTIMES[index] = Runtime(index)
        runtime = _RUNTIMES[index]
    runtime.enter()
    return runtime
