"""The "gpu" backend: HIP kernels through hip-python, flash attention if supported, else the standard path.

The plan (`rocattn.gpu.plan`) decides which kernels run; this module finds the device and passes arrays to the plan.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING

import numpy as np

from rocattn import settings
from rocattn.backend import YES, Backend, Operands, Sequences, Support
from rocattn.config import AttentionConfig
from rocattn.errors import SettingError, ToolchainError
from rocattn.gpu.arch import is_nvidia
from rocattn.gpu.errors import CaptureError, GpuError
from rocattn.gpu.launch import Buffer
from rocattn.gpu.runtime import PreparedPlan, Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocattn.backend import Array

_PRIORITY_GPU = 20
_PRIORITY_STAND_IN = -1000
_KEYS_A_PLAN = 256  # granularity of the longest sequence's keys
_ALIGN = 256  # bytes, of arrays in pinned memory


class GpuBackend(Backend):
    """Attention on an AMD GPU, or on the stand-in, which executes the kernels on the CPU.

    Attributes:
        use_flash_attention: Whether the flash kernels may be used; False takes the standard path for everything.
            Defaults to ``ROCATTN_USE_FLASH_ATTENTION`` (0 is off).
        flash_choice: The value it was set to; None if the variable decides.
    """

    name = "gpu"
    takes_dropout = True
    takes_fp8 = True

    def __init__(self) -> None:
        self.flash_choice: bool | None = None
        self._lock = threading.Lock()
        self._device: tuple[Runtime | None, Support] | None = None

    @property
    def use_flash_attention(self) -> bool:
        """Whether the flash kernels may be used.

        Raises:
            SettingError: When ``ROCATTN_USE_FLASH_ATTENTION`` is neither on nor off.
        """
        return (
            settings.switch(settings.USE_FLASH_ATTENTION, default=True)
            if self.flash_choice is None
            else self.flash_choice
        )

    @use_flash_attention.setter
    def use_flash_attention(self, wanted: bool) -> None:
        self.flash_choice = wanted

    @property
    def priority(self) -> int:  # type: ignore[override]  # a class attribute elsewhere; here it depends on the machine
        """Above the CPU for a real GPU; below everything for the stand-in, which is chosen only by name."""
        try:
            runtime, absent = self._first_device()
        except SettingError:  # `available` raises it
            return _PRIORITY_GPU
        real = absent.broken if runtime is None else not runtime.device.is_stand_in
        return _PRIORITY_GPU if real else _PRIORITY_STAND_IN

    @property
    def is_stand_in(self) -> bool:  # type: ignore[override]  # like priority
        """Whether the device is the stand-in GPU: not a GPU, its times mean nothing."""
        runtime, _ = self._first_device()
        return runtime is not None and runtime.device.is_stand_in

    def available(self) -> Support:
        """Return whether there are a supported device and a compiler for its kernels; checked once per process.

        Raises:
            SettingError: When one of the library's variables, or ROCATTN_COMPILER, is invalid.
        """
        settings.check()
        runtime, absent = self._first_device()
        if runtime is None:
            return absent
        try:
            runtime.check()
        except GpuError as error:
            return Support(ok=False, reason=str(error), broken=not runtime.device.is_stand_in)
        if lacking := _lacking_compiler():
            return Support(ok=False, reason=lacking, broken=not runtime.device.is_stand_in)
        if runtime.device.is_stand_in:
            return Support(ok=True, reason="the stand-in GPU, which executes the kernels on the CPU: not a GPU")
        if is_nvidia(runtime.arch):
            return Support(ok=True, reason=f"{runtime.device.name}, HIP forwarded to its driver: not an AMD GPU")
        return YES

    def supports(self, config: AttentionConfig) -> Support:
        """Support everything the flash or standard kernels compute: all of fp16, bf16 and fp32."""
        from rocattn.gpu.plan import supports

        return supports(config)

    def can_use_flash_attention(self, config: AttentionConfig) -> Support:
        """Return whether the flash kernels compute a config on this device, or why they do not."""
        if not self.use_flash_attention:
            return Support(ok=False, reason=f"switched off (use_flash_attention, {settings.USE_FLASH_ATTENTION})")
        from rocattn.gpu.flash import can_use_flash_attention

        return can_use_flash_attention(config, self.runtime().arch)

    def select_kernel(self, config: AttentionConfig) -> str:
        """Return the flash kernel for a config: causal, no mask, or the general one."""
        from rocattn.gpu.flash import select_kernel

        return select_kernel(config)

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the bytes of device memory for the plan's workspaces: 0 for flash attention without split keys."""
        return sum(self._workspaces(config).values())

    def score_bytes(self, config: AttentionConfig) -> int:
        """Return the bytes of the standard path's scores and weights; 0 on the flash path."""
        sizes = self._workspaces(config)
        return sum(sizes.get(name, 0) for name in ("scores", "probs"))

    def _workspaces(self, config: AttentionConfig) -> dict[str, int]:
        from rocattn.gpu.plan import plan

        runtime = self.runtime()
        units = runtime.device.compute_units
        flash = self.use_flash_attention
        return plan(config, runtime.arch, use_flash_attention=flash, compute_units=units).workspaces

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` ([B, H, Sq, Dv] view) and, unless None, ``lse`` (float32 [B, H, Sq])."""
        if config.return_lse != (lse is not None):
            config = config.replace(return_lse=lse is not None)
        self._run(config, operands, {"out": out} if lse is None else {"out": out, "lse": lse})

    def supports_varlen(self, config: AttentionConfig) -> Support:
        """Support what the flash kernels compute; the backward pass is one call per sequence."""
        from rocattn.gpu.flash import can_use_flash_attention

        if config.direction == "backward":
            return super().supports_varlen(config)
        return can_use_flash_attention(config, self.runtime().arch)

    def forward_varlen(
        self, config: AttentionConfig, operands: Operands, sequences: Sequences, out: Array, lse: Array | None, *,
        resident: Mapping[str, int] | None = None, device: int = 0,
    ) -> None:  # fmt: skip
        """Write attention into ``out`` ([1, H, total_q, Dv] view) and ``lse`` [1, H, total_q]: all in one plan.

        ``resident`` has the addresses of contiguous operands already on the device.
        """
        if config.return_lse != (lse is not None):
            config = config.replace(return_lse=lse is not None)
        # A bound on the keys, so that a cache growing by single tokens keeps the same plan for many steps.
        config = config.replace(seq_k=-(-config.seq_k // _KEYS_A_PLAN) * _KEYS_A_PLAN)
        arrays = {"out": out} if lse is None else {"out": out, "lse": lse}
        for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table"):
            if (array := getattr(sequences, name)) is not None:
                arrays[name] = array
        self._run(config, operands, arrays, resident, device)

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Write the gradients into ``dq``, ``dk``, ``dv`` ([B, H or Hkv, S, D or Dv] views)."""
        self._run(config, operands, {"dout": dout, "out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv})

    def _run(
        self, config: AttentionConfig, operands: Operands, more: dict[str, Array],
        resident: Mapping[str, int] | None = None, device: int = 0,
    ) -> None:  # fmt: skip
        from rocattn.gpu.driver import open_hip

        given = {name: array for name, array in operands._asdict().items() if array is not None}
        arrays = {"q": operands.q, "k": operands.k, "v": operands.v} | more | given
        mask_dtype = None if operands.mask is None else operands.mask.dtype.name
        with open_hip().keep_device():
            prepared = self.prepare(self.runtime(device), config, mask_dtype=mask_dtype)
            _run_on_host_arrays(prepared, arrays, resident or {})

    def prepare(
        self, runtime: Runtime, config: AttentionConfig, *, strides: Mapping[str, tuple[int, ...]] | None = None,
        mask_dtype: str | None = None,
    ) -> PreparedPlan:  # fmt: skip
        """Return a config's plan, ready to run on a device; cached.

        Args:
            runtime: The device.
            config: The problem.
            strides: As in `rocattn.gpu.plan.plan`.
            mask_dtype: Dtype of an additive mask.

        Raises:
            ConfigError: When the kernels do not compute the problem, or cannot read arrays of these strides.
            ToolchainError: When a kernel has to be compiled and cannot be.
        """
        from rocattn.gpu.plan import plan

        flash = self.use_flash_attention
        key = (config, None if strides is None else tuple(strides.items()), mask_dtype, flash)
        return runtime.prepare(
            key,
            lambda: plan(
                config, runtime.arch, strides=strides, mask_dtype=mask_dtype, use_flash_attention=flash,
                compute_units=runtime.device.compute_units,
            ),
        )  # fmt: skip

    def runtime(self, index: int = 0) -> Runtime:
        """Return a device, ready for this thread.

        Raises:
            NoRuntimeError, NoDeviceError, ArchError: When no device works; the message gives the reason.
            ForkError: In a process forked after HIP was initialized.
        """
        from rocattn.gpu.runtime import open_runtime

        return open_runtime(index)

    def _first_device(self) -> tuple[Runtime | None, Support]:
        """Return the first device and `YES`, or None and the reason.

        Without a GPU driver or the stand-in, nothing is initialized or loaded: choosing a CPU backend stays cheap, and
        the process may fork.
        """
        with self._lock:
            if self._device is None:
                self._device = self._open_first()
            return self._device

    def _open_first(self) -> tuple[Runtime | None, Support]:
        from rocattn.gpu.driver import absence, nvidia_at_hand, open_hip, stand_in_at_hand
        from rocattn.gpu.reasons import driver_loaded, gpu_expected

        try:
            if not driver_loaded() and not stand_in_at_hand() and not nvidia_at_hand():
                return None, Support(ok=False, reason=absence())
            hip = open_hip()
            hip.device_count()  # raises the reason if there is none
            with hip.keep_device():
                return self.runtime(), YES
        except GpuError as error:
            return None, Support(ok=False, reason=str(error), broken=gpu_expected())


@functools.cache
def _lacking_compiler() -> str:
    """Return why GPU kernels cannot be compiled here, or ""."""
    from rocattn.toolchain import choose_compiler

    try:
        choose_compiler()
    except ToolchainError as error:
        return str(error)
    return ""


def _run_on_host_arrays(prepared: PreparedPlan, arrays: Mapping[str, Array], resident: Mapping[str, int]) -> None:
    """Run a plan on arrays in host memory and wait for it.

    Inputs are gathered into pinned memory in the plan's layout (with any strides), each while the previous one is
    being copied; outputs come back the same way.

    Args:
        prepared: The plan; its strides are those of contiguous arrays.
        arrays: The [B, H, S, D] views (and lse, mask, …) by buffer name; outputs are written.
        resident: Addresses of arrays already on the device, in the plan's layout.

    Raises:
        DeviceMemoryError: When device or pinned memory runs out.
        LaunchError: When a kernel fails.
        CaptureError: When the device's stream is being captured.
    """
    from rocattn.gpu.plan import buffer_bytes, used_buffers

    runtime, plan = prepared.runtime, prepared.plan
    runtime.enter()
    if runtime.hip.capture_number(runtime.stream):
        raise CaptureError("numpy arrays cannot be captured: each call with them waits for its result")
    used = used_buffers(plan)
    buffers = {name: plan.buffers[name] for name in arrays if name in used and name not in resident}
    sizes = {name: buffer_bytes(buffer) for name, buffer in buffers.items()}
    places, total = {}, 0
    for name, size in sizes.items():
        places[name], total = total, total + -(-size // _ALIGN) * _ALIGN
    hip, stream = runtime.hip, runtime.stream
    with runtime.staging.taken(total) as pinned, runtime.pool.taken(sizes, stream) as device:
        try:
            for name, buffer in buffers.items():
                if buffer.role == "input" and sizes[name]:
                    np.copyto(_view(pinned + places[name], buffer, sizes[name], arrays[name].dtype), arrays[name])
                    hip.copy_to_device(device[name], pinned + places[name], sizes[name], stream)
            prepared.run({**device, **resident}, stream)
            outputs = [name for name, buffer in buffers.items() if buffer.role == "output" and sizes[name]]
            for name in outputs:
                hip.copy_to_host(pinned + places[name], device[name], sizes[name], stream)
        finally:  # also after an error: the pinned memory must not be in use
            hip.stream_synchronize(stream)
        for name in outputs:
            np.copyto(arrays[name], _view(pinned + places[name], buffers[name], sizes[name], arrays[name].dtype))


def _view(address: int, buffer: Buffer, size: int, dtype: np.dtype[np.generic]) -> Array:
    memory = (ctypes.c_ubyte * size).from_address(address)
    strides = tuple(step * dtype.itemsize for step in buffer.strides)
    return np.ndarray(buffer.shape, dtype, memoryview(memory), strides=strides)
