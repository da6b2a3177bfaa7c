"""Execute plans: modules, argument blocks built once, launches in order on a stream, and their times.

A `PreparedPlan` contains everything that does not change between calls: loaded code, one packed argument block per
launch, and where addresses go in the blocks. A run packs its addresses, and one call queues all launches
(kernels/cpu/launch.cpp).
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rocattn.config import DTYPE_BYTES
from rocattn.gpu.arch import device_target, has_kernels
from rocattn.gpu.backlog import Backlog
from rocattn.gpu.build import arg_layout, code_problem, compile_for_device, pack_scalar
from rocattn.gpu.driver import open_hip
from rocattn.gpu.errors import ArchError, ForkError, GpuError, LaunchError
from rocattn.gpu.launch import Buffer, KernelLaunch, LaunchPlan
from rocattn.gpu.memory import PinnedStaging, Pool
from rocattn.gpu.plan import buffer_bytes, used_buffers
from rocattn.gpu.plan_log import plan_log
from rocattn.gpu.reasons import NOT_TIMED
from rocattn.settings import GPU_POISON, switch
from rocattn.toolchain.code_object import is_code_object

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

_UNFIT = frozenset({"hipErrorNoBinaryForGpu", "hipErrorSharedObjectInitFailed"})  # the code is for another architecture
_MAX_PREPARED = 512
WORKSPACE_ALIGN = 256
"""Required alignment of a caller's workspace, that of hipMalloc."""
# `Kernel`, `Place` and `Plan` of kernels/cpu/launch.cpp, and its maximum argument bytes.
_KERNEL, _PLACE, _PLAN = struct.Struct("=Q8I2Q"), struct.Struct("=2IQ"), struct.Struct("=5Qq")
_MOST_ARGUMENT_BYTES = 1024


class Runtime:
    """A device in this process: memory, loaded kernels, prepared plans.

    Attributes:
        hip: The driver.
        index: HIP's index of the device.
        device: The device's description.
        arch: Its target without features.
        pool: Its memory.
        staging: Pinned host memory for copies.
        stream: The stream for work from host arrays.
        poison: Whether to fill outputs and workspaces with NaN before a plan writes them, since reused memory may
            contain the correct result of an earlier call. ``ROCATTN_GPU_POISON=1`` enables it, and so does
            `rocattn verify`; never on the stand-in, which itself tracks what has not been written.
    """

    def __init__(self, index: int) -> None:
        self._process = os.getpid()
        self.index = index
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
        self.pool, self.staging = Pool(self.hip, self.entered), PinnedStaging(self.hip)
        self.stream = self.hip.stream_create()
        self.poison = switch(GPU_POISON) and not self.device.is_stand_in
        self._functions: dict[tuple[str, str], int] = {}
        self._code: list[bytes] = []  # HIP does not document that it copies loaded code
        self._prepared: OrderedDict[Hashable, PreparedPlan] = OrderedDict()
        self._lock = threading.RLock()

    def _others(self, count: int) -> str:
        """Name the supported devices: an integrated GPU may come before the intended card."""
        archs = {index: self.hip.describe(index).arch for index in range(count)}
        usable = [f"{index} ({arch})" for index, arch in archs.items() if has_kernels(arch)]
        return f"; set HIP_VISIBLE_DEVICES to choose device {' or '.join(usable)}" if usable else ""

    def enter(self) -> None:
        """Make the device current for this thread.

        Raises:
            ForkError: In a process forked after HIP was initialized.
        """
        self.check()
        self.hip.use_device(self.index)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the device current for this thread, and restore the previous one at the end."""
        with self.hip.keep_device():
            self.enter()
            yield

    def check(self) -> None:
        """Raise if used in a process other than its own.

        Raises:
            ForkError: In a process forked after HIP was initialized.
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
        """Return the function of each launch, compiling and loading missing code.

        Raises:
            ArchError: When the code is for an architecture other than the device's.
            ToolchainError: When a kernel does not compile.
            GpuError: When the code does not match the plan's arguments, or does not load.
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
        # A library for the stand-in lacks this metadata; the stand-in checks the sizes at each launch.
        checked = is_code_object(code)
        if checked and (problem := code_problem(code, launch.symbol, launch.args, launch.block)):
            raise GpuError(f"{launch.code_object}: {problem}")
        self._code.append(code)
        try:
            return self.hip.module_function(self.hip.module_load(code), launch.symbol)
        except GpuError as error:
            if error.status in _UNFIT:
                raise ArchError(f"the device is {self.device.arch}, which cannot run code for {self.arch}") from error
            details = f" ({report})" if (report := self.hip.report()) else ""
            raise GpuError(f"{launch.kernel} ({launch.code_object}) does not load: {error}{details}") from error


class PreparedPlan:
    """A plan ready to run on one device.

    Attributes:
        plan: The plan.
        runtime: The device.
        workspace_bytes: Size of a workspace passed by a caller; 0 if the plan needs none.
        logged: Whether each run is recorded in the plan log.
    """

    def __init__(self, runtime: Runtime, plan: LaunchPlan) -> None:
        if plan.arch != runtime.arch:
            raise ArchError(f"the plan is for {plan.arch}, the device is {runtime.device.arch}")
        self.plan, self.runtime = plan, runtime
        self._functions = runtime.load(plan.launches)
        self._log = plan_log()
        self._number = self._log.add(plan) if self._log else 0
        self.logged = self._log is not None
        self._places: dict[str, int] = {}
        self.workspace_bytes = 0
        for name, size in plan.workspaces.items():
            self._places[name] = self.workspace_bytes
            self.workspace_bytes += -(-size // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
        self._names = (*used_buffers(plan), *plan.workspaces)
        self._launcher = self.launcher(self._names)

    def launcher(self, names: Sequence[str]) -> PackedLaunches:
        """Return the object that queues the launches, given addresses of these buffers and workspaces in this order.

        If no workspace is named, all share one of `workspace_bytes`, whose address comes after the others.
        """
        places = {name: (len(names), at) for name, at in self._places.items()}
        places |= {name: (index, 0) for index, name in enumerate(names)}
        count = len(names) + (bool(self._places) and not self._places.keys() <= set(names))
        return PackedLaunches(self.runtime, self.plan.launches, self._functions, places, count)

    def run(self, addresses: Mapping[str, int], stream: int, *, workspace: int | None = None) -> None:
        """Queue all launches on a stream.

        Args:
            addresses: Address of each buffer used by a launch.
            stream: A HIP stream; 0 is the default one.
            workspace: The address of `workspace_bytes` of device memory, a multiple of `WORKSPACE_ALIGN`, that nothing
                else uses until the launches have ended, or, if captured, until their graph is closed. None uses the
                pool.

        Raises:
            LaunchError: When HIP rejects a launch.
            DeviceMemoryError: When there is no memory for a workspace.
            CaptureError: When something other than `rocattn.gpu.graphs` captures the stream and there is no workspace.
            GpuError: When the workspace is not aligned.
        """
        if workspace is not None and workspace % WORKSPACE_ALIGN:
            raise GpuError(f"the workspace is at {workspace:#x}: its address must be a multiple of {WORKSPACE_ALIGN}")
        self._bound(addresses, stream, self._launch_all, workspace)

    def time(self, addresses: Mapping[str, int], stream: int, *, warmup: int, repeats: int) -> list[list[float]]:
        """Time each launch with events.

        Args:
            addresses: Address of each buffer used by a launch.
            stream: A HIP stream.
            warmup: Runs before the measured ones.
            repeats: Measured runs, each after an unmeasured one and enough other work (`rocattn.gpu.backlog`) that no
                time includes the host's launch overhead.

        Returns:
            For each launch of the plan, its times in ns, one per run.

        Raises:
            GpuError: On the stand-in, whose times mean nothing, and if each launch waits for the previous one.
            DeviceMemoryError: When there is no memory for a workspace, or for the preceding work.
        """
        if self.runtime.device.is_stand_in:
            raise GpuError(NOT_TIMED)
        hip = self.runtime.hip
        samples: list[list[float]] = [[] for _ in self.plan.launches]
        events: list[int] = []

        def measure(stream: int, values: Sequence[int]) -> None:
            for _ in range(warmup):
                self._launch_all(stream, values)
            events.extend(hip.event_create() for _ in range(len(samples) + 1))
            untimed = functools.partial(self._launch_all, stream, values)
            with Backlog(self.runtime.hip, self.runtime.pool, stream, untimed) as backlog:
                for _ in range(repeats):
                    backlog.ahead_of(events[0], lambda: launch_between_events(stream, values))
                    for index, times in enumerate(samples):
                        times.append(hip.event_elapsed_ms(events[index], events[index + 1]) * 1e6)

        def launch_between_events(stream: int, values: Sequence[int]) -> None:
            self._note()
            for index, event in enumerate(events[1:]):
                self._launcher.queue_one(index, stream, values)
                hip.event_record(event, stream)

        try:
            self._bound(addresses, stream, measure)
        finally:
            for event in events:
                hip.event_destroy(event)
        return samples

    def _bound(
        self, addresses: Mapping[str, int], stream: int, action: Callable[[int, Sequence[int]], None],
        workspace: int | None = None,
    ) -> None:  # fmt: skip
        """Call a function with the stream and all addresses, in the order of the launcher's names."""
        self.runtime.enter()
        needed = self.plan.workspaces if workspace is None else {}
        with self.runtime.pool.taken(needed, stream) as taken:
            places = {**addresses, **taken, **self._within(workspace)}
            if self.runtime.poison:
                self._poison(places, stream)
            action(stream, [places[name] for name in self._names])

    def _within(self, workspace: int | None) -> dict[str, int]:
        return {} if workspace is None else {name: workspace + at for name, at in self._places.items()}

    def announce(self, addresses: Mapping[str, int], stream: int, workspace: int | None) -> None:
        """Prepare for launches queued elsewhere: poison if requested, and log the plan."""
        if self.runtime.poison:
            with self.runtime.entered():
                self._poison({**addresses, **self._within(workspace)}, stream)
        self._note()

    def _poison(self, places: Mapping[str, int], stream: int) -> None:
        written = {name: buffer_bytes(buffer) for name, buffer in self.plan.buffers.items() if _is_dense_output(buffer)}
        for name, size in (written | self.plan.workspaces).items():
            if size and places.get(name):
                self.runtime.hip.poison(places[name], size, stream)

    def _launch_all(self, stream: int, values: Sequence[int]) -> None:
        self._note()
        self._launcher.queue(stream, values)

    def _note(self) -> None:
        if self._log:
            self._log.ran(self._number)


def _is_dense_output(buffer: Buffer) -> bool:
    """Return whether an output has no gaps, which could contain other data."""
    count = 1
    for extent in buffer.shape:
        count *= extent
    return buffer.role == "output" and buffer_bytes(buffer) == count * DTYPE_BYTES[buffer.dtype]


class PackedLaunches:
    """The launches of a plan in the format of launch.cpp: immutable, so threads share it.

    Args:
        runtime: The device.
        launches: The launches.
        functions: The function of each launch.
        places: Buffer or workspace name -> index of its value in a call, and the offset to add.
        count: Number of values.

    Raises:
        GpuError: When a kernel's arguments do not fit their types, or are too many.
    """

    def __init__(
        self, runtime: Runtime, launches: Sequence[KernelLaunch], functions: Sequence[int],
        places: Mapping[str, tuple[int, int]], count: int,
    ) -> None:  # fmt: skip
        self._hip, self._launches = runtime.hip, launches
        kernels, addressed = b"", b""
        self._memory: list[Any] = []
        for launch, function in zip(launches, functions, strict=True):
            layout = arg_layout(launch.args)
            size = sum(layout[-1]) + 7 & ~7 if layout else 0
            if size > _MOST_ARGUMENT_BYTES:
                raise GpuError(f"{launch.kernel} takes {size} bytes of arguments: {_MOST_ARGUMENT_BYTES} is the most")
            block, before = bytearray(size), len(addressed)
            for arg, (at, _) in zip(launch.args, layout, strict=True):
                if arg.kind == "scalar":
                    data = pack_scalar(arg)
                    block[at : at + len(data)] = data
                else:
                    index, offset = places[arg.name]
                    addressed += _PLACE.pack(at, index, offset + (arg.offset_bytes if arg.kind == "buffer" else 0))
            extents = (*launch.grid, *launch.block, launch.dynamic_lds_bytes)
            count_here = (len(addressed) - before) // _PLACE.size
            kernels += _KERNEL.pack(function, *extents, count_here, size, self._kept(bytes(block)))
        plan = _PLAN.pack(*self._hip.entry_points, self._kept(kernels), self._kept(addressed), runtime.index)
        self._plan, self._all = self._kept(plan), len(launches) << 32
        self._pack = struct.Struct(f"={3 + count}Q").pack

    def _kept(self, data: bytes) -> int:
        """Return the address of a copy that lives as long as this object."""
        self._memory.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self._memory[-1])

    def queue(self, stream: int, values: Sequence[int]) -> None:
        """Queue all launches.

        Raises:
            LaunchError: When HIP rejects a launch; those before it are queued.
        """
        if status := self._hip.launch(self._pack(self._plan, self._all, stream, *values)):
            raise self._refused(status)

    def queue_one(self, index: int, stream: int, values: Sequence[int]) -> None:
        """Queue one launch, like `queue`."""
        if status := self._hip.launch(self._pack(self._plan, index | index + 1 << 32, stream, *values)):
            raise self._refused(status)

    def _refused(self, status: int) -> LaunchError:
        error, index = self._hip.refusal(status)
        kernel = self._launches[index].kernel
        failure = LaunchError(f"{kernel}: {error}", kernel, self._hip.report())
        failure.__cause__ = error
        return failure


def check_process(initialised_in: int) -> None:
    """Raise in a child of the process that initialized HIP.

    Raises:
        ForkError: In such a child; the message tells how to start workers instead.
    """
    if os.getpid() != initialised_in:
        raise ForkError(
            f"HIP was initialized in process {initialised_in}, of which this one ({os.getpid()}) is a fork, and cannot "
            'be used here: start workers with multiprocessing\'s "spawn", or fork before the first use of the GPU'
        )


_RUNTIMES: dict[int, Runtime] = {}
_OPENING = threading.Lock()


def open_runtime(index: int = 0) -> Runtime:
    """Return the runtime of a device, one object per process and device.

    Raises:
        NoRuntimeError, NoDeviceError: When there is no HIP runtime, or no device.
        ArchError: When the device has no kernels.
        ForkError: In a process forked after HIP was initialized.
    """
    with _OPENING:
        if index not in _RUNTIMES:
            for other in _RUNTIMES.values():
                other.enter()
            _RUNTIMES[index] = Runtime(index)
        runtime = _RUNTIMES[index]
    runtime.enter()
    return runtime
