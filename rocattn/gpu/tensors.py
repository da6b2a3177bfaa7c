"""Device tensors in and out: torch's (ROCm build) and anything with DLPack, without a trip through the host.

A tensor's address, shape and strides are all that is read; its memory is used in place. Outputs come from the input's
own library: torch allocates them for torch, others get a `DeviceArray`, or what their `from_dlpack` makes of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rocattn.errors import ConfigError
from rocattn.gpu import dlpack
from rocattn.gpu.plan import contiguous
from rocattn.layouts import stored_shape

if TYPE_CHECKING:
    from rocattn.backends.gpu import GpuBackend
    from rocattn.config import AttentionConfig
    from rocattn.gpu.memory import Block
    from rocattn.gpu.runtime import Runtime
    from rocattn.layouts import Operands
    from rocattn.registry import Array


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A view of device memory that somebody else owns.

    Attributes:
        address: Of its first element.
        shape: Its extents.
        strides: In elements.
        dtype: numpy's name.
        device: HIP's index of the device.
        stream: The stream on which its content is valid; 0 is the default one.
        source: The caller's tensor.
        owner: What keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    stream: int
    source: Any
    owner: Any

    def shadow(self) -> Array:
        """Return a numpy array with this shape, dtype and strides over no memory: for its shape alone, never read."""
        dtype = _numpy_dtype(self.dtype)
        strides = tuple(step * dtype.itemsize for step in self.strides)
        return np.lib.stride_tricks.as_strided(np.empty(1, dtype), self.shape, strides, writeable=False)


class DeviceArray:
    """Device memory of ours as an array: attention's output for inputs that came by DLPack.

    Attributes:
        address: Of its first element.
        shape: Its extents; contiguous.
        dtype: numpy's name.
        device: HIP's index of the device.
    """

    def __init__(self, runtime: Runtime, shape: tuple[int, ...], dtype: str, device: int, stream: int) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._runtime, self._stream = runtime, stream
        count = int(np.prod(shape, dtype=np.int64)) * _numpy_dtype(dtype).itemsize
        self._block: Block | None = runtime.pool.take(count, stream)
        self.address = self._block.address

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None and not sys.is_finalizing():
            self._block = None
            self._runtime.pool.give(block)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kDLROCM, device index)."""
        return dlpack.ROCM, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule; its content is ready on every stream, as ours is waited for."""
        del stream
        self._runtime.hip.stream_synchronize(self._stream)
        return dlpack.export_capsule(self, self.address, self.shape, contiguous(self.shape), self.dtype, self.device)


def is_device_tensor(value: Any) -> bool:
    """Whether a value is a tensor that the gpu backend may take in place of a numpy array."""
    return not isinstance(value, np.ndarray | np.generic) and (_is_torch(value) or hasattr(value, "__dlpack__"))


def wrap(name: str, value: Any) -> DeviceTensor:
    """Return a view of a caller's device tensor.

    Args:
        name: What to call it in an error.
        value: A torch tensor of a ROCm build, or an object with ``__dlpack__`` on a ROCm device.

    Raises:
        ConfigError: When it is not in a ROCm device's memory; the text says where it is and what to do.
    """
    return _from_torch(name, value) if _is_torch(value) else _from_dlpack(name, value)


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def _from_torch(name: str, value: Any) -> DeviceTensor:
    torch = sys.modules["torch"]
    if value.device.type != "cuda":  # what torch calls AMD's devices, too
        raise ConfigError(f"{name} is a torch tensor on {value.device.type}: {_remedy(name, value)}")
    if torch.version.hip is None:
        raise ConfigError(f"{name} is on a CUDA device: the gpu backend runs on AMD GPUs, with a ROCm build of torch")
    if value.requires_grad and torch.is_grad_enabled():
        raise ConfigError(
            f"{name} requires a gradient, and no graph is recorded here: call this under torch.no_grad(), or inside a "
            "torch.autograd.Function whose backward calls rocattn.attention_backward"
        )
    _check_one_runtime(Path(str(torch.__file__)).parent)
    dtype = str(value.dtype).removeprefix("torch.")
    stream = int(torch.cuda.current_stream(value.device).cuda_stream)
    index = int(value.device.index or 0)
    return DeviceTensor(
        int(value.data_ptr()), tuple(value.shape), tuple(value.stride()), dtype, index, stream, value, value
    )


def _remedy(name: str, value: Any) -> str:
    """Return what to do with a torch tensor outside of a GPU: words that torch does not refuse in turn."""
    if value.device.type != "cpu":
        return "move it to an AMD GPU"
    array = f"{name}.detach()" if value.requires_grad else name
    as_numpy = ".view(torch.int16).numpy().view(ml_dtypes.bfloat16)" if "bfloat16" in str(value.dtype) else ".numpy()"
    return f"pass {array}{as_numpy}, or move it to the GPU"


def _check_one_runtime(torch_home: Path) -> None:
    """Refuse two HIP runtimes in one process: they share no memory; torch's wheels bring their own."""
    from rocattn.gpu.driver import open_hip

    open_hip()
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    found = sorted({line.split()[-1] for line in maps.splitlines() if "/libamdhip64" in line})
    if len({Path(path).resolve() for path in found}) > 1:
        raise ConfigError(
            f"two HIP runtimes are loaded ({' and '.join(found)}), which share no memory: start Python with "
            f"ROCM_PATH={torch_home}, whose lib folder holds torch's"
        )


def _from_dlpack(name: str, value: Any) -> DeviceTensor:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not hasattr(value, "__dlpack_device__"):
        raise ConfigError(
            f"{name} is a {kind}: device tensors need the gpu backend, which takes torch tensors and whatever has "
            "__dlpack__ and __dlpack_device__; pass numpy arrays otherwise"
        )
    device, index = (int(part) for part in value.__dlpack_device__())
    if device != dlpack.ROCM:
        where = dlpack.DEVICES.get(device, f"DLPack device type {device}")
        remedy = "pass it as a numpy array" if device == 1 else "device tensors must be on a ROCm device"
        raise ConfigError(f"{name} is a {kind} in {where}: {remedy}")
    capsule = value.__dlpack__(stream=0)
    address, shape, strides, dtype = dlpack.read_capsule(name, capsule)
    return DeviceTensor(address, shape, strides, dtype, index, 0, value, capsule)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))
    try:
        return np.dtype(name)
    except TypeError:
        raise ConfigError(f"dtype {name} has no counterpart in numpy: use float16, bfloat16 or float32") from None


class DeviceCall:
    """One call of the public functions on device tensors: the same checks as for numpy, then the gpu backend.

    The checks run on shadows (`DeviceTensor.shadow`), so that a device tensor and a numpy array of one shape are
    accepted or refused alike.

    Args:
        tensors: The caller's tensors by argument name; None for what was not given.
        backend: The backend's name as the caller gave it.

    Raises:
        ConfigError: When one is no device tensor, they are on several devices, or another backend is named.
    """

    def __init__(self, tensors: dict[str, Any], backend: str | None) -> None:
        if backend not in (None, "gpu"):  # no set: the name may be unhashable
            raise ConfigError(f"q is a device tensor: the gpu backend computes those, not {backend!r}")
        self._tensors: dict[str, DeviceTensor] = {}
        for name, value in tensors.items():
            if value is None:
                continue
            if not is_device_tensor(value):
                raise ConfigError(f"{name} is a {type(value).__name__}, but q is a device tensor: use one kind for all")
            self._tensors[name] = wrap(name, value)
        self._q = self._tensors["q"]
        for name, tensor in self._tensors.items():
            if tensor.device != self._q.device:
                raise ConfigError(f"{name} is on device {tensor.device}, q on device {self._q.device}")
            if name in {"alibi_slopes", "sinks"} and tensor.dtype != "float32":
                raise ConfigError(f"{name} has dtype {tensor.dtype}: on a device it must be float32")

    def shadow(self, name: str) -> Any:
        """Return the shadow of an argument; None if it was not given."""
        return self._tensors[name].shadow() if name in self._tensors else None

    def forward(self, config: AttentionConfig, operands: Operands) -> Any:
        """Compute attention on the device; returns what `rocattn.attention` returns."""
        stored = {"out": stored_shape(config, "out")}
        if config.return_lse:
            stored["lse"] = config.scores_shape[:3]
        out, *lse = self._run(config, _views(operands), stored)
        return (out, *lse) if lse else out

    def backward(self, config: AttentionConfig, operands: Operands, more: dict[str, Array]) -> tuple[Any, Any, Any]:
        """Compute the gradients on the device.

        Args:
            config: The problem.
            operands: Views of the shadows.
            more: Views of the shadows of dout, out and lse.
        """
        stored = {f"d{name}": stored_shape(config, name) for name in ("q", "k", "v")}
        dq, dk, dv = self._run(config, _views(operands) | more, stored)
        return dq, dk, dv

    def _run(self, config: AttentionConfig, views: dict[str, Array], stored: dict[str, tuple[int, ...]]) -> list[Any]:
        """Run the plan for these strides; returns the outputs, of q's kind, in the order of ``stored``."""
        from rocattn.backends import BACKENDS
        from rocattn.gpu.driver import open_hip

        backend = cast("GpuBackend", BACKENDS.select(config, "gpu"))
        strides = {name: tuple(step // view.itemsize for step in view.strides) for name, view in views.items()}
        mask_dtype = views["mask"].dtype.name if "mask" in views else None
        addresses = {name: tensor.address for name, tensor in self._tensors.items()}
        made = []
        with open_hip().keep_device():
            runtime = backend.runtime(self._q.device)
            prepared = backend.prepare(runtime, config, strides=strides, mask_dtype=mask_dtype)
            for name, shape in stored.items():
                value, addresses[name] = self._empty(runtime, shape, "float32" if name == "lse" else config.dtype)
                made.append(value)
            # Of torch's allocator, which knows torch's graphs: workspaces of our pool would be used again under them.
            scratch = self._scratch(prepared.workspace_bytes) if _is_torch(self._q.source) else None
            prepared.run(addresses, self._q.stream, workspace=scratch and int(scratch.data_ptr()))
        return [self._handed_out(value) for value in made]

    def _empty(self, runtime: Runtime, shape: tuple[int, ...], dtype: str) -> tuple[Any, int]:
        source = self._q.source
        if _is_torch(source):
            tensor = source.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
            return tensor, int(tensor.data_ptr())
        array = DeviceArray(runtime, shape, dtype, self._q.device, self._q.stream)
        return array, array.address

    def _scratch(self, count: int) -> Any:
        return self._q.source.new_empty((count,), dtype=sys.modules["torch"].uint8) if count else None

    def _handed_out(self, value: Any) -> Any:
        source = self._q.source
        if isinstance(value, DeviceArray) and hasattr(source, "__array_namespace__"):
            return source.__array_namespace__().from_dlpack(value)
        return value


def _views(operands: Operands) -> dict[str, Array]:
    """Return the operands that are given, by buffer name."""
    named = {name: getattr(operands, name) for name in ("q", "k", "v", "mask", "alibi_slopes", "sinks")}
    return {name: view for name, view in named.items() if view is not None}
