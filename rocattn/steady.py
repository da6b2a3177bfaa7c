"""Cached calls of the public functions: work that does not change between calls is done once.

The first call of a kind checks everything, selects the backend and makes the plan. Device tensors are checked through
shadows (`DeviceTensor.shadow`), so they are accepted or rejected like numpy arrays of their shape. The result is cached
under everything that those steps depend on: function, options with their types, backends and settings, and the class,
shape, strides, dtype and device of each tensor. A later call reads addresses and the stream, makes outputs, and
launches. Addresses only affect alignment. In host memory, only cpu-flash calls with just q, k and v are cached.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from rocattn.backends import BACKENDS
from rocattn.backends.cpu_flash import CpuFlashBackend, PlainCall, address
from rocattn.errors import ConfigError
from rocattn.gpu.driver import open_hip
from rocattn.gpu.errors import GpuError
from rocattn.gpu.plan import contiguous
from rocattn.gpu.runtime import WORKSPACE_ALIGN, PreparedPlan
from rocattn.gpu.tensors import DeviceArray, DeviceTensor, from_dlpack, is_device_tensor, is_torch, stream_reader, wrap
from rocattn.layouts import Output
from rocattn.settings import USE_FLASH_ATTENTION, num_threads, raw_text
from rocattn.threads import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn.backend import Array
    from rocattn.backends.gpu import GpuBackend
    from rocattn.config import AttentionConfig
    from rocattn.gpu.memory import DeviceBlock
    from rocattn.gpu.runtime import Runtime

    Kept = tuple["Steady | None", tuple[Any, ...]]
    Call: TypeAlias = "Steady | PlainCall"
    DeviceProblem = tuple[AttentionConfig, dict[str, Array], dict[str, tuple[int, ...]]]

_FLOAT32 = {"alibi_slopes", "sinks", "q_scale", "k_scale", "v_scale"}
# Types of options whose calls are cached: only their value can matter.
_PLAIN = {type(None), bool, int, float, str, tuple}
_MOST_KEPT = 512
_FLASH = USE_FLASH_ATTENTION.encode()
_ABSENT = (None,)


class Steady:
    """A cached kind of call: outputs to make, an order of addresses, launches.

    Args:
        plan: Makes the plan of a config for inputs with this memory layout.
        config: The problem.
        given: The buffers whose addresses a call passes, in its order.
        outputs: The outputs that it makes, by buffer name.
        of_torch: Whether its tensors are torch's.
    """

    def __init__(
        self, plan: Callable[[AttentionConfig], PreparedPlan], config: AttentionConfig, given: tuple[str, ...],
        outputs: dict[str, Output], *, of_torch: bool,
    ) -> None:  # fmt: skip
        self._plan, self._config, self._given, self.outputs = plan, config, given, outputs
        self._prepared = prepared = plan(config)
        self._runtime, self._of_torch = prepared.runtime, of_torch
        self._names = (*given, *outputs)
        self._workspaces = [prepared.workspace_bytes] if prepared.workspace_bytes else []
        if not of_torch and self._runtime.pool.exact:  # separate, so that the stand-in's checks see where each one ends
            self._workspaces = list(prepared.plan.workspaces.values())
            self._names += tuple(prepared.plan.workspaces)
        self._queue = prepared.launcher(self._names).queue
        self._made: list[tuple[tuple[int, ...], tuple[int, ...], Any]] = list(outputs.values())
        if of_torch:
            self._stream, torch = stream_reader(), sys.modules["torch"]
            self._byte = torch.uint8
            self._made = [(shape, steps, getattr(torch, dtype)) for shape, steps, dtype in self._made]

    def with_output(self, out: Output) -> Steady:
        """Return the same call with another memory layout of the output."""
        return self._as(self._config, {**self.outputs, "out": out})

    def without_lse(self) -> Steady:
        """Return the same call for a caller that discards the LSE."""
        return self._as(self._config.replace(return_lse=False), {"out": self.outputs["out"]})

    def _as(self, config: AttentionConfig, outputs: dict[str, Output]) -> Steady:
        with self._runtime.entered():
            return Steady(self._plan, config, self._given, outputs, of_torch=self._of_torch)

    def run(self, addresses: list[int], source: Any) -> tuple[Any, ...]:
        """Queue the launches and return the outputs, of the kind of ``source`` and on its device.

        Raises:
            DeviceMemoryError: When there is no memory for outputs or workspaces.
            LaunchError: When HIP rejects a launch.
            GpuError: When torch returns misaligned memory.
        """
        if not self._of_torch:
            return self._run_beside_torch(addresses, source)
        made: tuple[Any, ...] = ()
        for shape, steps, dtype in self._made:
            value = source.new_empty_strided(shape, steps, dtype=dtype)
            made += (value,)
            addresses += (value.data_ptr(),)
        # From torch's allocator, which handles torch's graphs: our pool would reuse workspaces that belong to them.
        for count in self._workspaces:
            scratch = source.new_empty_strided((count,), (1,), dtype=self._byte)
            addresses += (scratch.data_ptr(),)
            if addresses[-1] % WORKSPACE_ALIGN:
                raise GpuError(f"torch's memory is at {addresses[-1]:#x}: no multiple of {WORKSPACE_ALIGN}")
        stream = self._stream(self._runtime.index)
        if self._runtime.poison or self._prepared.logged:
            self._announce(stream, addresses)
        self._queue(stream, addresses)
        return made

    def _run_beside_torch(self, addresses: list[int], source: Any) -> tuple[Any, ...]:
        runtime = self._runtime
        blocks: list[DeviceBlock] = []
        made: tuple[DeviceArray, ...] = ()
        try:
            for shape, _, dtype in self._made:
                made += (DeviceArray(runtime, shape, dtype, runtime.index, 0),)
                addresses += (made[-1].address,)
            for count in self._workspaces:
                blocks += (runtime.pool.take(count, 0),)
                addresses += (blocks[-1].address,)
            if runtime.poison or self._prepared.logged:
                self._announce(0, addresses)
            self._queue(0, addresses)
        finally:
            for block in blocks:
                runtime.pool.give(block)
        if hasattr(source, "__array_namespace__"):
            return tuple(source.__array_namespace__().from_dlpack(value) for value in made)
        return made

    def _announce(self, stream: int, values: list[int]) -> None:
        whole = values[len(self._names)] if len(values) > len(self._names) else None
        self._prepared.announce(dict(zip(self._names, values, strict=False)), stream, whole)


class FirstCall:
    """The first call of a kind.

    Args:
        tensors: The caller's tensors by argument name; None if not given.
        backend: The backend's name from the caller.
        read: Views of tensors that were already read.

    Raises:
        ConfigError: When one is not a device tensor, they are on several devices, or another backend is named.
    """

    def __init__(self, tensors: dict[str, Any], backend: Any, read: dict[str, DeviceTensor]) -> None:
        if backend not in (None, "gpu"):  # not a set: the name may be unhashable
            raise ConfigError(f"q is a device tensor: the gpu backend computes those, not {backend!r}")
        self.tensors: dict[str, DeviceTensor] = {}
        for name, value in tensors.items():
            if value is None:
                continue
            if not is_device_tensor(value):
                raise ConfigError(f"{name} is a {type(value).__name__}, but q is a device tensor: use one kind for all")
            self.tensors[name] = read.get(name) or wrap(name, value)
        self._q = self.tensors["q"]
        for name, tensor in self.tensors.items():
            if tensor.device != self._q.device:
                raise ConfigError(f"{name} is on device {tensor.device}, q on device {self._q.device}")
            if name in _FLOAT32 and tensor.dtype != "float32":
                raise ConfigError(f"{name} has dtype {tensor.dtype}: on a device it must be float32")

    def shadow(self, name: str) -> Any:
        """Return the shadow of an argument; None if it was not given."""
        return self.tensors[name].shadow() if name in self.tensors else None

    def run(self, config: AttentionConfig, views: dict[str, Array], stored: dict[str, tuple[int, ...]]) -> Kept:
        """Run the plan for these strides.

        Args:
            config: The problem.
            views: Views of the shadows, by buffer name.
            stored: The shapes of the outputs, by buffer name.

        Returns:
            The object for later calls of this kind, None with dropout, which needs its own data; and the outputs.
        """
        backend = cast("GpuBackend", BACKENDS.select(config, "gpu"))
        strides = {name: tuple(step // view.itemsize for step in view.strides) for name, view in views.items()}
        mask_dtype = views["mask"].dtype.name if "mask" in views else None
        kinds = {name: "float32" if name == "lse" else config.dtype for name in stored}
        outputs = {name: Output(shape, contiguous(shape), kinds[name]) for name, shape in stored.items()}
        given, addresses = tuple(self.tensors), [tensor.address for tensor in self.tensors.values()]
        source = self._q.source
        with open_hip().keep_device():
            runtime = backend.runtime(self._q.device)
            plan = functools.partial(backend.prepare, runtime, strides=strides, mask_dtype=mask_dtype)
            if config.dropout_p:
                # Kept until its reader is queued in the stream: then its memory may be reused.
                _held, address = self._uploaded(runtime, views["dropout_key"])
                given, addresses = (*given, "dropout_key"), [*addresses, address]
            steady = Steady(plan, config, given, outputs, of_torch=is_torch(source))
            return None if config.dropout_p else steady, steady.run(addresses, source)

    def _uploaded(self, runtime: Runtime, key: Array) -> tuple[Any, int]:
        """Return dropout's key on the device, and its address.

        Raises:
            ConfigError: While the stream is captured.
        """
        value: Any
        if is_torch(source := self._q.source):
            stream, integer = stream_reader()(runtime.index), sys.modules["torch"].int32
            value = source.new_empty_strided(key.shape, (1,), dtype=integer)
            address = int(value.data_ptr())
        else:
            stream, value = 0, DeviceArray(runtime, key.shape, "int32", runtime.index, 0)
            address = value.address
        if runtime.hip.capture_number(stream):
            raise ConfigError("dropout_p in a captured graph: each replay would drop the same weights")
        # The driver has read unpinned memory when this returns.
        runtime.hip.copy_to_device(address, key.ctypes.data, key.nbytes, stream)
        return value, address


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """A public function, for making and caching its calls on device tensors.

    Attributes:
        tensors: Names of the tensor arguments; q is the first or second.
        options: Names of all other arguments except the backend; the second one is ``window``.
        first: Takes tensors and options by name, the backend's name, and views of tensors that were already read;
            computes the first call of a kind, and returns the result of `FirstCall.run`. None if calls are only
            cached as those of another function (`keep_without_lse`).
    """

    tensors: tuple[str, ...]
    options: tuple[str, ...]
    first: Callable[[dict[str, Any], dict[str, Any], Any, dict[str, DeviceTensor]], Kept] | None = None


def checked_by(describe: Callable[[dict[str, Any], dict[str, Any]], DeviceProblem]) -> Callable[..., Kept]:
    """Return `Function.first` from a function that checks shadows and options.

    Args:
        describe: Returns the config, its arrays as views by buffer name, and the outputs' shapes by buffer name.
    """

    def first(tensors: dict[str, Any], options: dict[str, Any], backend: Any, read: dict[str, DeviceTensor]) -> Kept:
        call = FirstCall(tensors, backend, read)
        return call.run(*describe({name: call.shadow(name) for name in tensors}, options))

    return first


_KEPT: dict[tuple[Any, ...], Call] = {}
os.register_at_fork(after_in_child=_KEPT.clear)  # every first call in a child is rejected


def computed(
    function: Function, tensors: tuple[Any, ...], options: tuple[Any, ...], backend: Any = None, *,
    detached: bool = False, only_kept: bool = False,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Compute a call and return its outputs; None if the first tensor is not on a device and nothing is cached.

    Args:
        function: The called function.
        tensors: Tensors in the order of its names; None if not given.
        options: Options in the order of its names.
        backend: The backend's name from the caller.
        detached: Whether gradients are handled elsewhere.
        only_kept: Whether to return None also for a new kind of call.

    Raises:
        ConfigError: When they do not describe a problem, one is not a device tensor, or they are on several devices.
        NoBackendError: When the gpu backend cannot compute it.
    """
    addresses: list[int] = []
    read: dict[str, DeviceTensor] = {}
    key, steady = _look_up(function, tensors, options, backend, addresses, read, detached=detached)
    if steady is not None:
        # With address 0: a tensor of zeros without memory, which torch fills before its kernels see it.
        return None if only_kept and 0 in addresses else steady.run(addresses, tensors[0])
    of_torch = hasattr(tensors[0], "data_ptr")
    if only_kept or function.first is None or isinstance(tensors[0], np.ndarray):
        return None
    if not (of_torch or hasattr(tensors[0], "__dlpack__")):
        return None
    given = dict(zip(function.tensors, tensors, strict=True))
    first, result = function.first(given, dict(zip(function.options, options, strict=True)), backend, read)
    if key is not None and first is not None and all(is_torch(x) == of_torch for x in tensors if x is not None):
        _keep(key, options, first)
    return result


def keep(
    function: Function, tensors: tuple[Any, ...], options: tuple[Any, ...], backend: Any, call: PlainCall | None
) -> None:
    """Cache an object that computes this kind of call on arrays; does nothing for None.

    Args:
        function: The called function.
        tensors: As in `computed`.
        options: As in `computed`.
        backend: As in `computed`.
        call: The object that computes the calls.
    """
    if call is not None and (key := _look_up(function, tensors, options, backend, [], {})[0]) is not None:
        _keep(key, options, call)


def keep_as(
    function: Function, tensors: tuple[Any, ...], options: tuple[Any, ...], like: tuple[Function, Any, Any],
    change: Callable[[Any], Call], *, detached: bool = False,
) -> None:  # fmt: skip
    """Make calls of a function reuse those of another function with the same tensors.

    Args:
        function: The called function.
        tensors: As in `computed`; torch tensors.
        options: As in `computed`.
        like: The other function, its tensors, which may be arrays over the same memory, and its options.
        change: Turns the other function's cached call into this one's.
        detached: As in `computed`.
    """
    _, call = _look_up(*like, None, [], {})
    if call is not None and (key := _look_up(function, tensors, options, None, [], {}, detached=detached)[0]):
        _keep(key, options, change(call))


def _keep(key: Any, options: tuple[Any, ...], call: Call) -> None:
    """Cache a call if its key covers all of its relevant options."""
    if {type(option) for option in options} <= _PLAIN:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = call


def _look_up(
    function: Function, tensors: tuple[Any, ...], options: tuple[Any, ...], backend: Any, addresses: list[int],
    read: dict[str, DeviceTensor], *, detached: bool = False,
) -> tuple[tuple[Any, ...] | None, Call | None]:  # fmt: skip
    """Return a call's key (None if it cannot be cached) and the cached call, and append the addresses."""
    try:
        first = tensors[0]
        is_array, of_torch = first.__class__ is np.ndarray, hasattr(first, "data_ptr")
        if (is_array or (of_torch and not first.is_cuda)) and not only_first(tensors):
            return None, None
        key = [function, backend, options, *map(type, options)]
        if options[1].__class__ is tuple:
            key += map(type, options[1])
        if is_array:
            own = backend is None or (backend.__class__ is str and backend == CpuFlashBackend.name)
            known = own and _read_arrays(tensors, key, addresses)
        elif of_torch:
            known = _read_torch(tensors, key, detached=detached)
            if first.is_cuda:
                key += _gpu_state()
            else:
                key += (BACKENDS.state, num_threads() or sys.modules["torch"].get_num_threads())
        else:
            known = backend in (None, "gpu") and _read_others(function.tensors, tensors, key, addresses, read)
            key += _gpu_state()
        if not known:
            return None, None
        found = tuple(key)
        call = _KEPT.get(found)
        if call is not None and not addresses:  # not before: fake tensors, which are never cached, have none
            for tensor in tensors:
                if tensor is not None:
                    addresses += (tensor.data_ptr(),)
    except (AttributeError, TypeError, RuntimeError):  # not a plain kind, not hashable, or without strides
        return None, None
    return found, call


def only_first(tensors: Sequence[Any]) -> bool:
    """Return whether only the first three are given: in host memory no other calls are cached."""
    for tensor in tensors[3:]:  # noqa: SIM110 - a generator costs a call per element
        if tensor is not None:  # no `in` or count: they compare, which is costly for arrays and tensors
            return False
    return True


def _gpu_state() -> tuple[Any, ...]:
    """Return the state that determines how the gpu backend computes a problem."""
    gpu: Any = BACKENDS.peek("gpu")
    return gpu, raw_text(_FLASH) if gpu.flash_choice is None else gpu.flash_choice


def _read_arrays(arrays: tuple[Any, ...], key: list[Any], addresses: list[int]) -> bool:
    """Read the key's part for the numpy arrays q, k and v, and their addresses; False if one is a subclass."""
    key += (BACKENDS.state, thread_count())
    for array in arrays[:3]:
        if array.__class__ is not np.ndarray:
            return False
        key += (array.shape, array.strides, array.dtype)
        addresses += (address(array),)
    return True


def _read_torch(tensors: tuple[Any, ...], key: list[Any], *, detached: bool) -> bool:
    """Read the key's part for torch tensors; False if one may be rejected."""
    for tensor in tensors:
        if tensor is None:
            key += _ABSENT
        elif tensor.requires_grad and not detached and sys.modules["torch"].is_grad_enabled():
            return False
        else:
            key += (tensor.__class__, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return True


def _read_others(
    names: tuple[str, ...], tensors: tuple[Any, ...], key: list[Any], addresses: list[int],
    read: dict[str, DeviceTensor],
) -> bool:  # fmt: skip
    """Do the same for other tensors; ``read`` receives views of DLPack tensors."""
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            key += _ABSENT
        elif tensor.__class__ is DeviceArray:
            key += (DeviceArray, tensor.shape, tensor.dtype, tensor.device)
            addresses += (tensor.ready_on(0) if tensor.stream else tensor.address,)
        elif hasattr(tensor, "__dlpack__") and not (hasattr(tensor, "data_ptr") or isinstance(tensor, np.ndarray)):
            found = read[name] = from_dlpack(name, tensor)
            key += (tensor.__class__, found.shape, found.strides, found.dtype, found.device)
            addresses += (found.address,)
        else:
            return False
    return True
