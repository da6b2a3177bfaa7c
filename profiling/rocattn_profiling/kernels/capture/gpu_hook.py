"""The GPU that is not there, for a captured program: what Triton's driver, its timing and ROCm's amdsmi answer.

`hook` loads it, in the program's Python, where the program shall not run on a GPU.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = json.loads(os.environ["ROCATTN_CAPTURE"])["gpu"]


def always(value: Any) -> Callable[..., Any]:
    """Return a function that returns a value."""
    return lambda *_, **__: value


class _Launcher:
    """Launches nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> None:
        pass


class _Utils:
    """Answers for the device and its loader."""

    load_binary = staticmethod(always((1, 1, 0, 0, 1024)))  # module, function, registers, spills, threads
    unload_module = staticmethod(always(None))
    get_device_properties = staticmethod(
        always({
            "max_shared_mem": GPU["lds_bytes"], "multiprocessor_count": GPU["cus"], "warpSize": GPU["wave_size"],
            "arch": GPU["arch"], "max_num_regs": 65536, "sm_clock_rate": GPU["clock_mhz"] * 1000,
            "mem_clock_rate": 1_000_000, "mem_bus_width": 4096,
        })
    )  # fmt: skip


class _Driver:
    """What Triton takes for the driver of the GPU."""

    binary_ext, launcher_cls, utils = "hsaco", _Launcher, _Utils
    get_current_device = get_current_stream = staticmethod(always(0))
    set_current_device = get_empty_cache_for_benchmark = clear_cache = staticmethod(always(None))

    @staticmethod
    def get_current_target() -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("hip", GPU["arch"], GPU["wave_size"])

    @staticmethod
    def get_device_interface() -> Any:
        import torch

        return torch.cuda

    @staticmethod
    def get_active_torch_device() -> Any:
        import torch

        return torch.device("cuda", 0)

    @staticmethod
    def get_benchmarker() -> Callable[..., Any]:
        return _timed

    @staticmethod
    def get_device_capability(_: int = 0) -> tuple[int, int]:
        return capability()

    @staticmethod
    def map_python_to_cpp_type(kind: str) -> str:
        return kind

    @staticmethod
    def assemble_tensormap_to_arg(_: Any, arguments: Any) -> Any:
        return arguments


def capability() -> tuple[int, int]:
    """Return what PyTorch calls the capability of an AMD GPU: gfx950 is 9, 5."""
    digits = GPU["arch"][3:]
    return int(digits[:-2], 16), int(digits[-2], 16)


def amdsmi() -> types.ModuleType:
    """Return what stands in for ROCm's `amdsmi`, which vLLM asks what GPU there is, installed or not."""
    module = types.ModuleType("amdsmi", "One GPU that is not there.")
    error = type("AmdSmiException", (Exception,), {})
    asic = {"market_name": GPU["name"], "target_graphics_version": GPU["arch"], "num_compute_units": GPU["cus"]}

    def refuse(*_: Any) -> None:
        raise error("rocattn kernels capture: there is no GPU to ask")

    module.__dict__.update(
        __getattr__=lambda name: _refused(name, refuse), __spec__=importlib.machinery.ModuleSpec("amdsmi", None),
        AmdSmiException=error, AmdSmiMemoryType=types.SimpleNamespace(VRAM=0, VIS_VRAM=1, GTT=2),
        amdsmi_init=always(None), amdsmi_shut_down=always(None), amdsmi_get_processor_handles=always([0]),
        amdsmi_get_gpu_asic_info=always({**asic, "device_id": "0x0"}), amdsmi_get_gpu_device_uuid=always("0"),
        amdsmi_get_gpu_memory_total=always(GPU["memory_bytes"]),
    )  # fmt: skip
    return module


def _refused(name: str, refuse: Callable[..., None]) -> Callable[..., None]:
    if name.startswith("amdsmi_"):
        return refuse
    raise AttributeError(name)


def _triton_driver(module: Any) -> None:
    module._create_driver = _Driver
    for name in {"default", "_default"} & vars(module.driver).keys():
        setattr(module.driver, name, _Driver)
    module.driver.set_active(_Driver)
    module.driver.set_active = module.driver.reset_active = always(None)  # torch.compile would have AMD's


def _amd_driver(module: Any) -> None:
    module.HIPUtils = _Utils  # torch.compile makes one, though it is not used


def _triton_testing(module: Any) -> None:
    for name in ("do_bench", "do_bench_cudagraph"):
        setattr(module, name, _timed)


def _timed(call: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """Run what would be timed once; a configuration that does not compile is the slowest, as it is noted already."""
    time_ms = 1.0
    try:
        call()
    except Exception as error:
        if not getattr(error, "noted", False):
            raise
        time_ms = float("inf")
    if quantiles is not None and len(quantiles) > 1:
        return [time_ms] * len(quantiles)
    return [time_ms] if return_mode == "all" else time_ms


PATCHES = {
    "triton.backends.amd.driver": _amd_driver,
    "triton.runtime.driver": _triton_driver,
    "triton.testing": _triton_testing,
}  # by the module that they are called with once it was run
