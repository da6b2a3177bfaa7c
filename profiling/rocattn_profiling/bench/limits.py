"""Measure this machine's ceilings, and check whether a measurement fits in its memory and the time limit.

Attention is compared with these ceilings. Each is the best of several tries at the run's thread count, in a fresh
process:

- ``gemm_tflops``: float32 matrix product of numpy's BLAS, 2 n^3 operations, the best of several n.
- ``gemm_float64_tflops``: the same in float64.
- ``memory_read_gbps``: bytes of an array far larger than the last-level cache, read once by BLAS (dot product and
  matrix-vector product, the access pattern of a decode step).
- ``memory_copy_gbps``: bytes read plus bytes written when copying its first half to its second, a slice per thread.

``memory_gbps`` is the larger of the last two. Ceilings are achieved rates, not the data sheet's: on a busy machine
attention may exceed them slightly. Each run measures them again and never reuses an earlier run's.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.backends.gpu import GpuBackend
from rocattn.errors import RocattnError
from rocattn_profiling.measure.machine import available_memory_bytes, thread_environment
from rocattn_profiling.measure.stats import DISTURBED_CEILINGS, DISTURBED_SWITCHES_PER_S
from rocattn_profiling.measure.worker import Crash, run_worker, serve

if TYPE_CHECKING:
    from rocattn.backend import Backend
    from rocattn.config import AttentionConfig


_SMALLEST_ARRAY = 128 << 20
_SIZES, _QUICK_SIZES = (256, 512, 1024, 2048), (256, 1024)
"""n of the matrix products. On a busy machine only the smallest finish before another process gets the CPU: there
1024 alone reached a quarter of the rate of 256, and attention exceeded that ceiling by 50 %."""
_CACHES, _QUICK_CACHES = 4, 2
"""Size of the array in units of the last-level cache. Touching its pages first takes longer than all the rest: a
virtual machine with two cores may see a cache of 480 MiB."""
_USUAL_CACHE = 32 << 20
FEW_QUERIES = 16
"""Query rows per sequence; more than this are a prompt, or a large part of one."""
COLD_CACHES = 2
_MOST_COPIES = 1 << 16
_TIMEOUT_S = 120.0
_MOST_TAKES, _MOST_DISTURBED = 6, 3
_SWITCHES = "switches_per_s"  # involuntary context switches during a take
_AGREEING = 0.95  # takes of a quiet machine are within 4 % of their mean


def measure_ceilings(threads: int, *, quick: bool = False) -> dict[str, float]:
    """Measure the ceilings in fresh processes with this many threads.

    Args:
        threads: Threads that BLAS and the copy may use.
        quick: Whether to use fewer sizes and tries: about one second.

    Returns:
        The numbers of the module docstring, by name: the best over the processes run until two undisturbed ones agree.
        If there are no such two, `DISTURBED_CEILINGS` is added, since two disturbed processes may agree on a number
        that is too low.

    Raises:
        RocattnError: When the process fails; the message quotes its error.
    """
    taken: list[dict[str, float]] = []
    quiet: list[dict[str, float]] = []
    while len(taken) < (_MOST_TAKES if quiet else _MOST_DISTURBED) and not _agree(quiet):
        taken.append(_take_ceilings(threads, quick=quick))
        if taken[-1].pop(_SWITCHES) <= DISTURBED_SWITCHES_PER_S:
            quiet.append(taken[-1])
    best = {name: max(each[name] for each in taken) for name in taken[0]}
    return best if _agree(quiet) else best | {DISTURBED_CEILINGS: 1.0}


def _agree(taken: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the best two takes of each ceiling are about equal: disturbances only lower a ceiling."""
    if len(taken) < 2:
        return False
    best = [sorted((each[name] for each in taken), reverse=True) for name in taken[0]]
    return all(second >= _AGREEING * first for first, second, *_ in best)


def _take_ceilings(threads: int, *, quick: bool) -> dict[str, float]:
    job = msgspec.json.encode({"threads": threads, "quick": quick})
    reply = run_worker(__name__, job, os.environ | thread_environment(threads), _TIMEOUT_S)
    outcome = {"failed": reply.reason} if isinstance(reply, Crash) else msgspec.json.decode(reply.line)
    if "failed" in outcome:
        raise RocattnError(f"measuring the machine's ceilings failed: {outcome['failed']}")
    return {name: float(value) for name, value in outcome.items()}


def last_level_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache of a core in bytes; 0 if unknown."""
    sizes = []
    for path in caches.glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes, default=0)


def few_queries(config: AttentionConfig) -> bool:
    """Return whether this is like a decode step: a forward pass with so few queries that reads dominate its time."""
    queries = config.seq_q if config.varlen is None else max((q for q, _ in config.varlen.lengths), default=0)
    return config.direction == "forward" and 0 < queries <= FEW_QUERIES and config.kv_bytes > 0


def cold_copies(config: AttentionConfig, cache_bytes: int, available_bytes: int) -> int:
    """Return how many copies of Q, K and V calls must use in turns so that none is in a cache; 1 for warm caches.

    A pass with few queries does little work per byte read, so the source of its data determines its time, and between
    two steps of a layer a model reads all other layers' KV caches. A pass with many queries reads keys repeatedly.

    Args:
        config: The problem.
        cache_bytes: Size of the last-level cache; 0 (unknown) counts as 32 MiB.
        available_bytes: Available memory, at most a quarter of which is used.
    """
    if not few_queries(config):
        return 1
    size = config.q_bytes + config.kv_bytes
    copies = 1 + -(-COLD_CACHES * (cache_bytes or _USUAL_CACHE) // size)
    return copies if copies <= _MOST_COPIES and copies * size <= available_bytes // 4 else 1


def _best_rate(call: Callable[[], object], work: float, budget_s: float, tries: int) -> float:
    """Return the highest work per second over at least ``tries`` calls and ``budget_s``, after one warm-up call."""
    call()
    best, count, end = float("inf"), 0, time.perf_counter() + budget_s
    while count < tries or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
        count += 1
    return work / best


def _gemm_tflops(dtype: str, sizes: tuple[int, ...], budget_s: float) -> float:
    import numpy as np

    rates = []
    for n in sizes:
        a, b = np.full((n, n), 0.5, dtype), np.full((n, n), 0.25, dtype)
        out = np.empty_like(a)

        def product(a: object = a, b: object = b, out: object = out) -> object:
            return np.matmul(a, b, out=out)  # type: ignore[call-overload]  # arrays, bound here for each size

        rates.append(_best_rate(product, 2.0 * n**3, budget_s, 3))
    return max(rates) / 1e12


def _memory_gbps(threads: int, budget_s: float, caches: int) -> tuple[float, float]:
    """Return (read, copy) in GB/s for an array of this many last-level caches."""
    import numpy as np

    wanted = max(_SMALLEST_ARRAY, caches * (last_level_cache_bytes() or _USUAL_CACHE))
    columns = 4096
    rows = max(1, min(wanted, available_memory_bytes() // 4) // (4 * columns))
    source = np.full((rows, columns), 0.5, np.float32)
    vector = np.full(columns, 0.25, np.float32)
    flat = source.reshape(-1)
    read = max(
        _best_rate(lambda: source @ vector, source.nbytes, budget_s, 3),
        _best_rate(lambda: flat @ flat, source.nbytes, budget_s, 3),
    )
    source_half, target = flat[: flat.size // 2], flat[flat.size // 2 :][: flat.size // 2]
    bounds = [target.size * i // threads for i in range(threads + 1)]
    slices = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source_half[part]), slices))

        copied = _best_rate(copy, 2.0 * target.nbytes, budget_s, 3)
    return read / 1e9, copied / 1e9


def _measured(threads: int, *, quick: bool) -> dict[str, float]:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, time.perf_counter()
    sizes, budget_s, caches = (_QUICK_SIZES, 0.1, _QUICK_CACHES) if quick else (_SIZES, 0.5, _CACHES)
    read, copied = _memory_gbps(threads, budget_s, caches)
    found = {
        "gemm_tflops": _gemm_tflops("float32", sizes, budget_s),
        "gemm_float64_tflops": _gemm_tflops("float64", sizes, budget_s),
        "memory_gbps": max(read, copied),
        "memory_read_gbps": read,
        "memory_copy_gbps": copied,
    }
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    return found | {_SWITCHES: switches / (time.perf_counter() - began)}


PROCESS_BYTES = 250_000_000
"""A Python process with numpy, its BLAS threads' buffers, and the slices that the check uses."""
SCORE_PASSES_BYTES = 40
"""Traffic of an unfused softmax: five passes over float32 scores, each reading and writing them."""


def gigabytes(count: float) -> str:
    """Format bytes: ``21.0 GB``, below that ``35.1 MB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def tensor_bytes(config: AttentionConfig, backends: int) -> int:
    """Return the bytes of all tensors that a launch keeps in memory at once.

    That is the inputs, each backend's last outputs, the running backend's new outputs, and the check's memory: the
    absolute values of a whole tensor, and one head in float64.
    """
    inputs, outputs = _call_bytes(config)
    head = (inputs + outputs) * 8 // config.itemsize // max(1, config.batch * config.num_kv_heads)
    return inputs + outputs * (backends + 1) + max(config.q_bytes, config.kv_bytes) + head


def _call_bytes(config: AttentionConfig) -> tuple[int, int]:
    """Return the bytes that a call reads and the bytes that it writes."""
    inputs, outputs = config.q_bytes + config.kv_bytes + config.mask_bytes, config.out_bytes
    if config.direction == "backward":
        return inputs + config.out_bytes, outputs + config.q_bytes + config.kv_bytes
    return inputs, outputs


def memory_problem(
    config: AttentionConfig, backend: Backend, backends: int, available_bytes: int, copies: int = 1
) -> str:
    """Return why a backend with this many copies of Q, K and V does not fit in memory, or "".

    On a GPU, device memory contains the workspace and a copy of the tensors; another copy is pinned on the host.
    """
    workspace, kind = backend.workspace_bytes(config), "workspace"
    tensors = tensor_bytes(config, backends) + (copies - 1) * (config.q_bytes + config.kv_bytes)
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
    """Estimate the time of one call of standard attention in seconds, to decide whether to begin; never reported.

    All pairs (including hidden ones) and the work timed along with attention run at half of the matrix-product ceiling,
    the passes over the scores at the memory ceiling. Both ceilings are the CPU's: attention on a GPU counts as 0.
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
    enough = math.ceil(1.5 * needed_s)  # the next run measures new ceilings
    needed = f"{needed_s:.0f}" if needed_s >= 10 else f"{needed_s:.2g}"
    return f"would take about {needed} s, the limit is {limit_s:g} s: raise it with --time-limit {enough}"


def _perform(job: bytes, _mark: Callable[[str], None]) -> dict[str, float]:
    return _measured(**msgspec.json.decode(job))


if __name__ == "__main__":
    serve(_perform, lambda reason: {"failed": reason})
