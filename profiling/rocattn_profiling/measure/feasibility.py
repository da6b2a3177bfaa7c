"""What a measurement would need, before it is tried: memory and time, in a sentence when it is too much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rocattn.backends.gpu import GpuBackend

if TYPE_CHECKING:
    from rocattn.backend import Backend
    from rocattn.config import AttentionConfig

PROCESS_BYTES = 250_000_000
"""A Python process with numpy and its BLAS threads' buffers, and the slices that the check works in."""
SCORE_PASSES_BYTES = 40
"""Traffic of a softmax that is not fused: five passes over float32 scores, each reading and writing them."""


def gigabytes(count: float) -> str:
    """Return bytes as people read them: ``21.0 GB``, below that ``35.1 MB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def tensor_bytes(config: AttentionConfig, backends: int) -> int:
    """Return the bytes of all tensors that a launch holds at once.

    Inputs, the last outputs of each backend and the new ones of the running one, and what the check needs beside
    them: the absolute values of a whole tensor, and one head's share in float64.
    """
    inputs, outputs = _call_bytes(config)
    head = (inputs + outputs) * 8 // config.itemsize // max(1, config.batch * config.num_kv_heads)
    return inputs + outputs * (backends + 1) + max(config.q_bytes, config.kv_bytes) + head


def _call_bytes(config: AttentionConfig) -> tuple[int, int]:
    """Return the bytes of what a call reads and of what it writes."""
    inputs, outputs = config.q_bytes + config.kv_bytes + config.mask_bytes, config.out_bytes
    if config.direction == "backward":
        return inputs + config.out_bytes, outputs + config.q_bytes + config.kv_bytes
    return inputs, outputs


def memory_problem(config: AttentionConfig, backend: Backend, backends: int, available_bytes: int) -> str:
    """Return why a backend does not fit in memory, or "".

    On a GPU the workspace is in the device's memory, beside a copy of the tensors, and another is pinned here.
    """
    workspace, kind = backend.workspace_bytes(config), "workspace"
    tensors = tensor_bytes(config, backends)
    if isinstance(backend, GpuBackend):
        copy, device = sum(_call_bytes(config)), backend.runtime().device.memory_bytes
        if workspace + copy > device:
            needed = f"{gigabytes(workspace)} of workspace and {gigabytes(copy)} for tensors"
            return f"needs {needed} on the GPU, which has {gigabytes(device)}"
        workspace, kind = copy, "pinned memory"
    if workspace + tensors + PROCESS_BYTES <= available_bytes:
        return ""
    available = f"{gigabytes(available_bytes)} available"
    return f"needs {gigabytes(workspace)} of {kind} and {gigabytes(tensors)} for tensors, {available}"


def estimate_call_s(
    config: AttentionConfig, ceilings: dict[str, float], extra_flops: int = 0, *, on_gpu: bool = False
) -> float:
    """Return a rough time of one call of standard attention, in seconds: for deciding whether to begin, not to report.

    All pairs (also the hidden ones) and what is timed beside attention at half of the matrix-product ceiling, and the
    passes over the scores at the memory ceiling. Both are the CPU's: attention on a GPU counts nothing.
    """
    pairs = config.batch * config.num_heads * config.seq_q * config.seq_k
    products = 2 * (config.head_dim + config.head_dim_v) * (1.0 if config.direction == "forward" else 2.5)
    gemm = ceilings["gemm_float64_tflops" if config.dtype == "float64" else "gemm_tflops"]
    attention_s = (
        0.0 if on_gpu else pairs * (products / (0.5e12 * gemm) + SCORE_PASSES_BYTES / (1e9 * ceilings["memory_gbps"]))
    )
    return attention_s + extra_flops / (0.5e12 * gemm)


def time_problem(needed_s: float, limit_s: float) -> str:
    """Return why a measurement takes too long, and how to allow it, or ""."""
    if needed_s <= limit_s:
        return ""
    enough = math.ceil(1.5 * needed_s)  # the next run measures its ceilings anew
    needed = f"{needed_s:.0f}" if needed_s >= 10 else f"{needed_s:.2g}"
    return f"would take about {needed} s, the limit is {limit_s:g} s: raise it with --time-limit {enough}"
