"""One fresh process: the peak memory of one call of one backend, as the allocators count it and as the kernel sees it.

Started by `rocattn_profiling.measure.launching`, as `sample_worker` is. On the CPU the allocators are numpy's, which
reports every array to tracemalloc, and that of the CPU kernels, which counts for itself; on the GPU it is the pool of
`rocattn.gpu.memory`. All three count bytes asked for. The resident set is taken first, in a call of its own, because
tracemalloc's own tables are resident too.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.backends import BACKENDS, CpuFlashBackend, GpuBackend
from rocattn.config import AttentionConfig
from rocattn_profiling.bench.sample_worker import calls_of
from rocattn_profiling.measure.settings import import_backends
from rocattn_profiling.measure.worker import end_with_parent, peak_rss_bytes, reset_peak, serve
from rocattn_profiling.memory.model import at_length
from rocattn_profiling.workloads.inputs import make_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocattn.registry import Backend


class MemoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: `AttentionConfig.to_dict`, a backend, and the rest as in `sample_worker.Job`."""

    config: dict[str, Any]
    backend: str
    backend_module: str = ""
    parent: int = 0


class MemoryResult(msgspec.Struct, kw_only=True):
    """What one call took, in bytes.

    Attributes:
        allocated_bytes: The allocators' peak: inputs, outputs and workspace. Of the GPU's memory for the gpu backend.
        rss_bytes: How far the process's resident set rose during the call, from before its inputs were made.
        failed: Why there are no numbers; empty if there are.
    """

    allocated_bytes: int = 0
    rss_bytes: int = 0
    failed: str = ""


def allocator_peak(backend: Backend, call: Callable[[], object]) -> int:
    """Return the most bytes that the allocators behind a backend held during a call, what was there before included.

    tracemalloc must be tracing. The native kernels allocate once, while all arrays of a call are there, so that the
    two peaks add up.
    """
    if isinstance(backend, GpuBackend):
        with backend.runtime().pool.measure() as usage:
            call()
        return usage.peak_bytes
    native = isinstance(backend, CpuFlashBackend)
    tracemalloc.reset_peak()
    if native:
        CpuFlashBackend.most_allocated_bytes(reset=True)
    call()
    return tracemalloc.get_traced_memory()[1] + (CpuFlashBackend.most_allocated_bytes() if native else 0)


def measure_call(config: AttentionConfig, name: str) -> MemoryResult:
    """Measure one call of a backend in this process, through the public API."""
    backend = BACKENDS.get(name)
    _warm_up(config, name)
    gc.collect()
    reset_peak()
    before = peak_rss_bytes()
    call = calls_of([name], config, make_inputs(config))[name]
    reset_peak()  # making inputs takes more for a moment
    call()
    rss = peak_rss_bytes() - before
    del call
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        call = calls_of([name], config, make_inputs(config))[name]
        if config.direction == "backward":
            call()  # its first call makes out and LSE, which are inputs
        peak = allocator_peak(backend, call)
    finally:
        tracemalloc.stop()
    return MemoryResult(allocated_bytes=peak - start * (not isinstance(backend, GpuBackend)), rss_bytes=rss)


def _warm_up(config: AttentionConfig, name: str) -> None:
    """Call the backend on a few tokens: imports, compiling and starting threads are not the call's memory."""
    small = at_length(config, 9)
    calls_of([name], small, make_inputs(small))[name]()


def _perform(encoded: bytes, mark: Callable[[str], None]) -> MemoryResult:
    job = msgspec.json.decode(encoded, type=MemoryJob)
    end_with_parent(job.parent)
    import_backends(job.backend_module)
    mark(job.backend)
    return measure_call(AttentionConfig.from_dict(job.config), job.backend)


if __name__ == "__main__":
    serve(_perform, lambda reason: MemoryResult(failed=reason))
