"""Benchmarks timed by the GPU's clock: an asv ``timer`` based on events, and attention prepared on the device.

A sample is the time between an event before the timed launches and one after them. Events and launches are queued
while the GPU is still busy with untimed work (`rocattn.gpu.backlog`), so a sample excludes the host's launch time. For
a cold cache that work overwrites the caches; for a warm one it is followed by another, untimed copy of the launches.
"""

from __future__ import annotations

import functools
import math
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rocattn
from rocattn.backends import BACKENDS
from rocattn.errors import RocattnError
from rocattn.gpu.backlog import SCRATCH_BYTES, Backlog
from rocattn.gpu.driver import import_bindings
from rocattn.gpu.errors import GpuError
from rocattn.gpu.plan import buffer_bytes, used_buffers
from rocattn.gpu.reasons import NOT_TIMED
from rocattn.gpu.tensors import DeviceArray
from rocattn_profiling.base.files import system_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn.backends.gpu import GpuBackend
    from rocattn.config import AttentionConfig
    from rocattn.gpu.driver import Hip
    from rocattn.gpu.runtime import PreparedPlan, Runtime
    from rocattn_profiling.workloads.inputs import Inputs

RAMP_VARIABLE = "ROCATTN_GPU_RAMP_S"
RAMP_S = 1.0  # clocks of an idle GPU take up to a second to rise (ROCm composable_kernel issue 1241, MI300)
FLUSH_BYTES = 512 << 20  # twice MI300X's Infinity Cache of 256 MiB, which no device property reports
_BUS_ID_BYTES = 32
_HOST_SAMPLES, _CALLS_A_SAMPLE = 9, 20


class EventClock:
    """The GPU's time in seconds for asv's ``timer`` attribute: called before and after the timed calls.

    Only the time between two such calls counts; otherwise the clock stands still.

    Args:
        runtime: The device; the stand-in GPU, whose times mean nothing, is rejected.
        stream: The stream of the timed launches.
        call: Queues the launches once; benchmarks use the method `call`, which counts its calls.
        backlog: Untimed work on that stream, long enough to hide the launching.
        sensors: Read while the timed work runs.

    Raises:
        GpuError: On the stand-in.
    """

    def __init__(
        self, runtime: Runtime, stream: int, call: Callable[[], None], backlog: Backlog, sensors: Sensors | None
    ) -> None:
        if runtime.device.is_stand_in:
            raise GpuError(NOT_TIMED)
        self._hip, self._stream, self._call, self._backlog = runtime.hip, stream, call, backlog
        self._sensors = sensors
        self._events = (self._hip.event_create(), self._hip.event_create())
        self._seen: list[dict[str, float]] = []
        self._seconds = 0.0
        self._open = False
        self._calls = 0

    def call(self) -> None:
        """Queue the timed calls."""
        self._calls += 1
        self._call()

    def __call__(self) -> float:
        """Begin or end a timed interval; return the total seconds of all completed intervals.

        If the GPU caught up with the host, the interval includes launch time: its calls are queued and timed again.

        Raises:
            GpuError: When the GPU waits for the host however long the backlog is (`Backlog.was_enough`).
        """
        start, stop = self._events
        self._open = not self._open
        if self._open:
            self._calls = 0
            self._backlog.queue(start)
        else:
            self._hip.event_record(stop, self._stream)
            if self._calls and not self._backlog.was_enough(start):
                self._backlog.ahead_of(start, self._again)
            if self._sensors is not None:  # now, while the GPU is busy: its idle clocks differ
                self._seen.append(self._sensors.read())
            self._seconds += self._hip.event_elapsed_ms(start, stop) / 1e3
        return self._seconds

    def _again(self) -> None:
        for _ in range(self._calls):
            self._call()
        self._hip.event_record(self._events[1], self._stream)

    def take_state(self) -> dict[str, float]:
        """Return the mean sensor readings since the last call; rocattn's worker calls this after each sample."""
        states, self._seen = self._seen, []
        return {name: statistics.mean(state[name] for state in states) for name in (states[0] if states else {})}


class DeviceCase:
    """An attention problem with its inputs on the device.

    Attributes:
        clock: The timer of its calls.

    Args:
        config: The problem.
        inputs: Its arrays.
        cold: Whether the caches are overwritten before each call.

    Raises:
        NotImplementedError: Skips the benchmark in asv: there is no GPU, or only the stand-in.
        GpuError: When the GPU fails.
    """

    def __init__(self, config: AttentionConfig, inputs: Inputs, *, cold: bool) -> None:
        backend = usable_gpu()
        runtime = backend.runtime()
        mask_dtype = None if inputs.mask is None else inputs.mask.dtype.name
        self._prepared = backend.prepare(runtime, config, mask_dtype=mask_dtype)
        self._stream = runtime.stream
        self._addresses = _upload(self._prepared, config, inputs)
        backlog = Backlog(
            runtime.hip,
            runtime.pool,
            self._stream,
            None if cold else self._queue,
            flush_bytes(runtime.hip) if cold else SCRATCH_BYTES,
        )
        self.clock = EventClock(runtime, self._stream, self._queue, backlog, find_sensors(_bus_id(runtime.hip)))
        self._ramp(_ramp_seconds())

    def call(self) -> None:
        """Queue the problem's launches."""
        self.clock.call()

    def _queue(self) -> None:
        self._prepared.run(self._addresses, self._stream)

    def _ramp(self, seconds: float) -> None:
        """Keep the GPU busy until its clocks have ramped up; at least one call, which also compiles and loads."""
        hip, end = self._prepared.runtime.hip, time.monotonic() + seconds
        while True:
            self._queue()
            hip.stream_synchronize(self._stream)
            if time.monotonic() >= end:
                return


class HostCall:
    """A call of the public function with arrays on the device: it queues kernels and does not wait.

    On the stand-in GPU, whose kernels run inside the launch, nothing is launched, so only the host's work remains.

    Args:
        config: A forward problem.
        inputs: Its arrays.

    Raises:
        NotImplementedError: Skips the benchmark in asv: there is neither a device nor the stand-in.
    """

    def __init__(self, config: AttentionConfig, inputs: Inputs) -> None:
        backend: GpuBackend = BACKENDS.get("gpu")  # type: ignore[assignment]  # as above
        answer = backend.available()
        if not answer:
            raise NotImplementedError(answer.reason)
        self.runtime = backend.runtime()
        function: Any = rocattn.attention if config.varlen is None else rocattn.attention_varlen
        tensors = [self._uploaded(x) for x in (inputs.q, inputs.k, inputs.v)]
        options = {
            name: self._uploaded(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.options(config).items()
        }
        self._call = functools.partial(function, *tensors, **options)
        if self.runtime.device.is_stand_in:
            self.runtime.pool.exact, hip = False, self.runtime.hip
            hip.launch = lambda words: 0  # type: ignore[method-assign]  # noqa: ARG005 - same signature
        for _ in range(2):
            self._call()

    def _uploaded(self, array: NDArray[Any]) -> DeviceArray:
        packed = np.ascontiguousarray(array)
        made = DeviceArray(self.runtime, packed.shape, packed.dtype.name, self.runtime.index, 0)
        self.runtime.hip.copy_to_device(made.address, packed.ctypes.data, packed.nbytes, 0)
        self.runtime.hip.stream_synchronize(0)  # before the packed copy is freed
        return made

    def __call__(self) -> None:
        """Queue the call."""
        self._call()

    def wait(self) -> None:
        """Wait for the queued work."""
        self.runtime.hip.stream_synchronize(0)


def host_and_kernels_ns(config: AttentionConfig, inputs: Inputs) -> tuple[float, float]:
    """Return the median host time of a call with arrays on the GPU and the median time of its kernels, in ns.

    Raises:
        NotImplementedError: When there is no GPU.
        GpuError: When the GPU cannot be timed.
    """
    backend, call, host = usable_gpu(), HostCall(config, inputs), []
    for _ in range(_HOST_SAMPLES):
        call.wait()
        began = time.perf_counter_ns()
        for _ in range(_CALLS_A_SAMPLE):
            call()
        host.append((time.perf_counter_ns() - began) / _CALLS_A_SAMPLE)
    call.wait()
    mask_dtype = None if inputs.mask is None else inputs.mask.dtype.name
    prepared = backend.prepare(call.runtime, config, mask_dtype=mask_dtype)
    addresses = _upload(prepared, config, inputs)
    times = prepared.time(addresses, call.runtime.stream, warmup=1, repeats=_HOST_SAMPLES)
    return statistics.median(host), sum(map(statistics.median, times))


def _ramp_seconds() -> float:
    """Return the GPU's ramp-up time in seconds: ``ROCATTN_GPU_RAMP_S``, or 1.

    Raises:
        RocattnError: When the variable is not a time.
    """
    text = os.environ.get(RAMP_VARIABLE) or str(RAMP_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise RocattnError(f"{RAMP_VARIABLE} is {text!r}: it must be a number of seconds, like {RAMP_S}")
    return seconds


def usable_gpu() -> GpuBackend:
    """Return the GPU backend of a machine with a GPU.

    Raises:
        NotImplementedError: When there is no GPU, or only the stand-in, whose times must never be compared as a GPU's.
    """
    backend: GpuBackend = BACKENDS.get("gpu")  # type: ignore[assignment]  # the registry knows it by its base class
    answer = backend.available()
    if not answer:
        raise NotImplementedError(answer.reason)
    if backend.is_stand_in:
        raise NotImplementedError("the device is the stand-in GPU: its times mean nothing")
    return backend


def _upload(prepared: PreparedPlan, config: AttentionConfig, inputs: Inputs) -> dict[str, int]:
    """Copy the inputs to the device, allocate the outputs, and return the addresses."""
    runtime, plan = prepared.runtime, prepared.plan
    operands = inputs.operands(config)
    arrays = {
        "q": inputs.q, "k": inputs.k, "v": inputs.v, "mask": inputs.mask, "sinks": inputs.sinks,
        "alibi_slopes": operands.alibi_slopes,
    }  # fmt: skip
    if (where := inputs.sequences) is not None:
        names = ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table")
        arrays |= {name: getattr(where, name) for name in names}
    addresses = {}
    for name in used_buffers(plan):
        addresses[name] = runtime.pool.take(buffer_bytes(plan.buffers[name]), runtime.stream).address
        if plan.buffers[name].role == "input":
            array = arrays.get(name)
            if array is None:
                raise RocattnError(f"the plan reads {name}, which these inputs do not have")
            packed = np.ascontiguousarray(array)
            runtime.hip.copy_to_device(addresses[name], packed.ctypes.data, packed.nbytes, runtime.stream)
            runtime.hip.stream_synchronize(runtime.stream)  # before the packed copy is freed
    return addresses


def flush_bytes(hip: Hip, index: int = 0) -> int:
    """Return the number of bytes that flush the caches: at least twice the L2 cache that the device reports."""
    try:
        try:
            properties = hip.call("hipGetDeviceProperties", index)
        except TypeError:  # as in `_bus_id`
            module, _ = import_bindings()
            properties = module.hipDeviceProp_t()
            hip.call("hipGetDeviceProperties", properties, index)
    except GpuError:
        return FLUSH_BYTES
    return max(FLUSH_BYTES, 2 * int(properties.l2CacheSize))


def _bus_id(hip: Hip, index: int = 0) -> str:
    """Return the device's PCI bus id; empty when the runtime does not report it."""
    try:
        try:
            bus_id = hip.call("hipDeviceGetPCIBusId", _BUS_ID_BYTES, index)
        except TypeError:  # before hip-python 10 the caller passes the buffer
            bus_id = bytearray(_BUS_ID_BYTES)
            hip.call("hipDeviceGetPCIBusId", bus_id, _BUS_ID_BYTES, index)
    except GpuError:
        return ""
    return bytes(bus_id).split(b"\0")[0].decode(errors="replace")


DRM = Path("/sys/class/drm")
AMD = "0x1002"
_CURRENT = re.compile(r"(\d+(?:\.\d+)?)\s*Mhz\s*\*", re.IGNORECASE)
_HOTTEST = ("junction", "edge", "mem")  # temp*_label, in order of preference


class Sensors:
    """The sensors of one device.

    Args:
        device: The sysfs folder ``…/card0/device``.
    """

    def __init__(self, device: Path) -> None:
        self.device = device
        monitor = next(iter(sorted(device.glob("hwmon/hwmon*"))), None)
        self._clocks = {system_text(label): _input(label) for label in _labels(monitor, "freq")}
        self._temperatures = {system_text(label): _input(label) for label in _labels(monitor, "temp")}
        powers = [monitor / name for name in ("power1_average", "power1_input")] if monitor else []
        self._power = next((path for path in powers if path.is_file()), None)

    def read(self) -> dict[str, float]:
        """Return sclk_mhz, mclk_mhz, power_w and temperature_c (°C); 0 for values the device does not report."""
        hottest = next((self._temperatures[name] for name in _HOTTEST if name in self._temperatures), None)
        return {
            "sclk_mhz": self._clock("sclk"),
            "mclk_mhz": self._clock("mclk"),
            "power_w": _number(self._power) / 1e6,
            "temperature_c": _number(hottest) / 1e3,
        }

    def _clock(self, name: str) -> float:
        # hwmon reports the actual clock, the table of levels only the requested one.
        if exact := _number(self._clocks.get(name)) / 1e6:
            return exact
        marked = _CURRENT.search(system_text(self.device / f"pp_dpm_{name}"))
        return float(marked.group(1)) if marked else 0.0


def find_sensors(bus_id: str = "", drm: Path = DRM) -> Sensors | None:
    """Return the sensors of an AMD GPU.

    Args:
        bus_id: The PCI bus id ("0000:03:00.0"); if empty, the machine's only AMD GPU is used.
        drm: The folder in which the kernel lists its cards.

    Returns:
        None if there is no such GPU, or the choice is ambiguous: no clock is better than the wrong one.
    """
    cards = [path for path in sorted(drm.glob("card*")) if re.fullmatch(r"card\d+", path.name)]
    devices = [card / "device" for card in cards if system_text(card / "device" / "vendor") == AMD]
    if bus_id:
        devices = [device for device in devices if device.resolve().name.lower() == bus_id.lower()]
    return Sensors(devices[0]) if len(devices) == 1 else None


def _labels(monitor: Path | None, kind: str) -> list[Path]:
    return sorted(monitor.glob(f"{kind}*_label")) if monitor else []


def _input(label: Path) -> Path:
    return label.with_name(label.name.replace("_label", "_input"))


def _number(path: Path | None) -> float:
    text = system_text(path) if path is not None else ""
    try:
        return float(text)
    except ValueError:
        return 0.0
