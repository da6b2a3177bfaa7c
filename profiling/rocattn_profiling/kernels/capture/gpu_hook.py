"""Simulate a GPU for a captured program: replacements for Triton's driver, its timing, and ROCm's amdsmi.

`hook` loads this in the program's Python, unless the program runs on a real GPU.
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
    """A launcher that launches nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> None:
        pass


class _Utils:
    """Replacement for the device properties and the loader."""

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
    """Replacement for Triton's GPU driver."""

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
    """Return PyTorch's capability of the GPU: (9, 5) for gfx950."""
    digits = GPU["arch"][3:]
    return int(digits[:-2], 16), int(digits[-2], 16)


def amdsmi() -> types.ModuleType:
    """Return a replacement for ROCm's `amdsmi`, which vLLM queries for the GPU."""
    module = types.ModuleType("amdsmi", "One simulated GPU.")
    error = type("AmdSmiException", (Exception,), {})
    asic = {"market_name": GPU["name"], "target_graphics_version": GPU["arch"], "num_compute_units": GPU["cus"]}

    def refuse(*_: Any) -> None:
        raise error("rocattn kernels capture: there is no GPU to query")

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
    module.driver.set_active = module.driver.reset_active = always(None)  # torch.compile would set AMD's


def _amd_driver(module: Any) -> None:
    module.HIPUtils = _Utils  # torch.compile creates one without using it


def _triton_testing(module: Any) -> None:
    for name in ("do_bench", "do_bench_cudagraph"):
        setattr(module, name, _timed)


def _timed(call: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """Run a timed call once. A configuration that does not compile, already noted, is the slowest."""
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
}  # module name -> function, called with the module after its import
