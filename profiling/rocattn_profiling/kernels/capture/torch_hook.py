"""Adapt PyTorch for a captured program: CPU tensors that claim to be on a GPU, and replacements for ``torch.cuda``.

`hook` loads this in the program's Python.
"""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

_CUDA = re.compile(r"(?:cuda|hip)(?::\d+)?$")
_NOTHING = (
    "synchronize", "empty_cache", "set_device", "init", "_lazy_init", "_lazy_call", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_stream", "ipc_collect",
    "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all", "set_device_index", "set_device_idx",
    "reset_accumulated_memory_stats", "empty_host_cache",
)  # fmt: skip
_OF_C = (
    "_cuda_getCurrentRawStream", "_cuda_getDevice", "_cuda_setDevice", "_cuda_exchangeDevice",
    "_cuda_maybeExchangeDevice",
)  # fmt: skip


class _Stream:
    """A stream, event, graph or their context that does nothing."""

    cuda_stream = stream_id = device_index = 0
    device: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _always(1.0 if name == "elapsed_time" else (0, 0) if name == "pool" else True)


def stand_in(torch: Any, gpu: dict[str, Any], capability: tuple[int, int]) -> None:
    """Make PyTorch see one GPU, backed by CPU memory."""
    torch.version.hip, torch.version.cuda = torch.version.hip or "7.0.0", None
    _answer_for(torch, gpu, capability)
    # As torch.compile does without a GPU: PyTorch's GPU build must not query the driver.
    getattr(torch._C, "_ensureCUDADeviceGuardSet", _always(None))()
    _mode(torch).__enter__()


def _answer_for(torch: Any, gpu: dict[str, Any], capability: tuple[int, int]) -> None:
    major, minor = capability
    properties = SimpleNamespace(
        name=gpu["name"], gcnArchName=gpu["arch"], multi_processor_count=gpu["cus"], major=major, minor=minor,
        warp_size=gpu["wave_size"], total_memory=gpu["memory_bytes"], shared_memory_per_block=gpu["lds_bytes"],
        shared_memory_per_multiprocessor=gpu["lds_bytes"], regs_per_multiprocessor=65536, max_threads_per_block=1024,
        max_threads_per_multi_processor=2048, L2_cache_size=4 << 20, is_integrated=0, is_multi_gpu_board=0,
        clock_rate=gpu["clock_mhz"] * 1000,
    )  # fmt: skip
    _Stream.device = torch.device("cuda", 0)
    stream, memory = _Stream(), gpu["memory_bytes"]
    answers: dict[str, Any] = {
        "_is_compiled": True, "is_available": True, "is_initialized": True, "device_count": 1,
        "_device_count_amdsmi": 1, "current_device": 0,
        "current_device_index": 0, "current_device_idx": 0, "get_memory_info": (memory, memory),
        "get_device_name": gpu["name"], "get_device_properties": properties, "get_device_capability": capability,
        "current_stream": stream, "default_stream": stream, "is_current_stream_capturing": False,
        "is_bf16_supported": True, "get_arch_list": [gpu["arch"]], "mem_get_info": (memory, memory),
        "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
        "memory_stats": {}, "_exchange_device": 0, "_maybe_exchange_device": 0, "_is_in_bad_fork": False,
        "can_device_access_peer": False, "get_rng_state": torch.get_rng_state(), **dict.fromkeys(_NOTHING),
    }  # fmt: skip
    cuda, accelerator = torch.cuda, getattr(torch, "accelerator", SimpleNamespace())
    for place in (cuda, cuda.random, accelerator):
        for name in answers.keys() & set(dir(place)):
            setattr(place, name, _always(answers[name]))
    if hasattr(accelerator, "current_accelerator"):
        accelerator.current_accelerator = _always(torch.device("cuda"))
    for name in ("Stream", "ExternalStream", "Event", "CUDAGraph", "StreamContext", "graph", "stream"):
        setattr(cuda, name, type(name, (_Stream,), {}))
    torch.Event, torch.Stream = cuda.Event, cuda.Stream  # the device-independent classes
    torch.set_default_device = _always(None)  # it would override `_mode`; tensors are on the GPU anyway
    accelerator.device_index = cuda.StreamContext

    class OnTheCpu(torch.Generator):  # type: ignore[misc]
        def __new__(cls, _: Any = None, **__: Any) -> Any:
            return super().__new__(cls, "cpu")

    torch.Generator = OnTheCpu
    cuda._initialized = True
    for name in _OF_C:
        setattr(torch._C, name, _always(0))


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def _mode(torch: Any) -> Any:
    """Return a mode in which tensors claim to be on the GPU, but are created on the CPU."""
    from torch.overrides import TorchFunctionMode

    tensor, gpu, cpu = torch.Tensor, torch.device("cuda", 0), torch.device("cpu")
    device, is_gpu, is_cpu = tensor.device.__get__, tensor.is_cuda.__get__, tensor.is_cpu.__get__

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return cpu if value.type == "cuda" else value
        return cpu if isinstance(value, str) and _CUDA.match(value) else value

    class OnTheCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (device, is_gpu, is_cpu):  # equal, but not identical
                if device(args[0]).type != "cpu":
                    return func(*args)
                return gpu if func == device else func == is_gpu
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            if func in (tensor.cuda, tensor.pin_memory, tensor.record_stream):
                return args[0]
            if func == tensor.get_device:
                return 0
            named = {key: on_cpu(value) for key, value in (kwargs or {}).items() if key != "pin_memory"}
            return func(*[on_cpu(value) for value in args], **named)

    return OnTheCpu()


def compile_for_gpu(module: Any) -> None:
    """Make torch.compile compile each graph for the GPU, but run the original on the CPU.

    Args:
        module: ``torch._inductor.compile_fx``.
    """
    import torch
    from torch._guards import detect_fake_mode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    compile_graph, compile_all, gpu = module.compile_fx_inner, module.compile_fx, torch.device("cuda", 0)

    def moved(value: Any) -> Any:
        return gpu if isinstance(value, torch.device) and value.type == "cpu" else value

    def copied(target: Any, source: Any, non_blocking: bool = False) -> Any:
        """Copy without querying the GPU's driver, which fake tensors do not need."""
        return torch.ops.aten.copy_.default(target, source, non_blocking)

    def for_gpu(graph: Any, inputs: Any, **options: Any) -> Any:
        there, graphs = copy.deepcopy(graph), options.get("cudagraphs")
        if graphs is not None:  # nothing is launched, so there is nothing to record
            options["cudagraphs"] = type(graphs)(False)
        with torch._C.DisableTorchFunction():  # so that device=gpu is not redirected to the CPU
            mode = detect_fake_mode(inputs)
            for node in there.graph.nodes:
                node.args, node.kwargs = (torch.fx.node.map_aggregate(of, moved) for of in (node.args, node.kwargs))
            with mode:
                fakes = [
                    torch.empty_strided(each.size(), each.stride(), dtype=each.dtype, device=gpu)
                    if isinstance(each, torch.Tensor) else each
                    for each in inputs
                ]  # fmt: skip
            FakeTensorProp(there, mode).propagate_dont_convert_inputs(*fakes)
            with patch.object(torch.Tensor, "copy_", copied):
                compile_graph(there, fakes, **options)

        def run(arguments: list[Any]) -> Any:
            values = list(arguments)
            arguments.clear()
            return graph(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def compiled(model: Any, inputs: Any, inner_compile: Any = for_gpu, *rest: Any, **options: Any) -> Any:
        return compile_all(model, inputs, inner_compile, *rest, **options)

    module.compile_fx = compiled


def compile_choices(module: Any) -> None:
    """Make max-autotune compile every kernel that it would time, and choose one of Triton's.

    Args:
        module: ``torch._inductor.select_algorithm``.
    """

    def timed(choices: Any, **_: Any) -> dict[Any, float]:
        times = {}
        for choice in choices:
            try:
                if hasattr(choice, "precompile"):
                    choice.precompile()
                times[choice] = 1.0 if hasattr(choice, "precompile") else 2.0  # library call
            except Exception as error:
                if not getattr(error, "noted", False):
                    raise
                times[choice] = float("inf")
        return times

    module.AlgorithmSelectorCache.benchmark_in_current_process = staticmethod(timed)
