"""Measure memory: one fresh process per length and backend, and fits over all of them.

A process measures the peak memory of one call, as counted by the allocators and by the kernel. On the CPU the
allocators are numpy's, which reports every array to tracemalloc, and the CPU kernels', which counts itself; on the GPU
it is the pool in `rocattn.gpu.memory`. All three count requested bytes. The resident set is measured first, in a
separate call, because tracemalloc's tables are also resident.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.backends import BACKENDS, CpuFlashBackend, GpuBackend
from rocattn.config import AttentionConfig
from rocattn_profiling.bench.launch import calls_of, register_named
from rocattn_profiling.bench.limits import PROCESS_BYTES, gigabytes
from rocattn_profiling.measure.machine import available_memory_bytes, thread_environment
from rocattn_profiling.measure.records import Status
from rocattn_profiling.measure.settings import import_backends
from rocattn_profiling.measure.stats import GPU_STANDARD, STANDARD_OF
from rocattn_profiling.measure.worker import Crash, peak_rss_bytes, reset_peak, run_worker, serve
from rocattn_profiling.memory import model as memory_model
from rocattn_profiling.memory.model import Growth, Theory
from rocattn_profiling.workloads.inputs import make_inputs

if TYPE_CHECKING:
    from rocattn.backend import Backend
    from rocattn_profiling.base.journal import Journal

ALLOWED_PCT, ALLOWED_BYTES = 5.0, 1 << 16
_GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""With these, glibc returns freed memory, so the resident set is the memory in use. (Not used when measuring times.)"""
_TIMEOUT_S = 600.0


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A length on a backend, in bytes.

    Attributes:
        backend: Its name, or `GPU_STANDARD`.
        length: Keys, and query tokens unless they are fixed.
        label: The config's label.
        theory: Memory from the formulas.
        status: Whether it was measured, skipped for its size, or the backend crashed or raised.
        allocated_bytes, rss_bytes: As in `MemoryResult`; 0 unless measured.
        matrix_bytes: B * H * Sq * Sk scores in float32 (float64 for float64): the whole attention matrix.
        skipped: Why it was skipped or failed; empty if it was measured.
    """

    backend: str
    length: int
    label: str
    theory: Theory
    matrix_bytes: int
    status: Status = "measured"
    allocated_bytes: int = 0
    rss_bytes: int = 0
    skipped: str = ""

    @property
    def difference_pct(self) -> float:
        """Theory relative to the allocators' count, as a change in percent."""
        return 100 * (self.theory.total / self.allocated_bytes - 1) if self.allocated_bytes else 0.0

    @property
    def scores_pct(self) -> float:
        """Scores [.., Sq, Sk] in percent of the peak."""
        return 100 * self.theory.scores / self.allocated_bytes if self.allocated_bytes else 0.0


class MemoryFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fit through a backend's points.

    Attributes:
        backend: As in `MemoryPoint`.
        growth: Growth of the allocators' peak; None with too few lengths.
        longest: Tokens that fit in the budget according to theory.
        longest_theory_bytes: Their memory according to theory.
        longest_measured_bytes: Their memory extrapolated from measurements; None with too few lengths.
        worst_difference_pct: The largest |theory over measured - 1|, in percent; None if nothing was measured.
    """

    backend: str
    growth: Growth | None
    longest: int
    longest_theory_bytes: int
    longest_measured_bytes: float | None
    worst_difference_pct: float | None


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's savings relative to standard attention at the same length, in percent.

    Attributes:
        total_pct: Savings of the whole peak.
        workspace_pct: Savings of all allocations except inputs and outputs.
    """

    backend: str
    standard: str
    length: int
    total_pct: float
    workspace_pct: float


class MemoryStudy(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `rocattn memory`.

    Attributes:
        config: The first config (`AttentionConfig.to_dict`); only its length varies.
        keep_queries: Whether query tokens are constant while keys vary.
        threads, budget_bytes: As requested.
        absent: Backends that were not measured, with the reason.
    """

    schema: int = 1
    config: dict[str, Any]
    keep_queries: bool
    threads: int
    budget_bytes: int
    points: list[MemoryPoint]
    fits: list[MemoryFit]
    reductions: list[Reduction]
    absent: dict[str, str]


class MemoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a process: `AttentionConfig.to_dict`, a backend, and fields of `bench.launch.LaunchJob`."""

    config: dict[str, Any]
    backend: str
    backend_module: str = ""


class MemoryResult(msgspec.Struct, kw_only=True):
    """The memory of one call, in bytes.

    Attributes:
        allocated_bytes: The allocators' peak: inputs, outputs and workspace; GPU memory for the gpu backend.
        rss_bytes: Increase of the process's resident set during the call, from before its inputs were made.
        failed: Why there are no numbers; empty if there are.
    """

    allocated_bytes: int = 0
    rss_bytes: int = 0
    failed: str = ""


def allocator_peak(backend: Backend, call: Callable[[], object]) -> int:
    """Return the peak bytes of a backend's allocators during a call, including earlier allocations.

    tracemalloc must be tracing. The native kernels allocate once, while all arrays of a call exist, so the two peaks
    add up.
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
    reset_peak()  # making inputs temporarily takes more
    call()
    rss = peak_rss_bytes() - before
    del call
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        call = calls_of([name], config, make_inputs(config))[name]
        if config.direction == "backward":
            call()  # the first call makes out and LSE, which are inputs
        peak = allocator_peak(backend, call)
    finally:
        tracemalloc.stop()
    return MemoryResult(allocated_bytes=peak - start * (not isinstance(backend, GpuBackend)), rss_bytes=rss)


def _warm_up(config: AttentionConfig, name: str) -> None:
    """Call the backend on a few tokens, to exclude the memory of imports, compilation and thread startup."""
    small = memory_model.at_length(config, 9)
    calls_of([name], small, make_inputs(small))[name]()


def _perform(encoded: bytes, mark: Callable[[str], None]) -> MemoryResult:
    job = msgspec.json.decode(encoded, type=MemoryJob)
    import_backends(job.backend_module)
    register_named([job.backend])
    mark(job.backend)
    return measure_call(AttentionConfig.from_dict(job.config), job.backend)


def measure_memory(
    config: AttentionConfig,
    lengths: Sequence[int],
    names: Sequence[str],
    *,
    threads: int,
    budget_bytes: int,
    keep_queries: bool = False,
    backend_module: str = "",
    journal: Journal[MemoryPoint] | None = None,
    on_step: Callable[[str], None] = lambda _what: None,
) -> MemoryStudy:
    """Measure backends on a config at several lengths.

    Args:
        config: The problem.
        lengths: Keys, and query tokens unless ``keep_queries``.
        names: Backends, or `GPU_STANDARD`.
        threads: Threads of the kernels; must equal this process's ``ROCATTN_NUM_THREADS``, since the theory of some
            backends depends on it.
        budget_bytes: The budget for the longest sequence.
        keep_queries: Whether to leave query tokens unchanged.
        backend_module: Module that registers additional backends, imported by each process.
        journal: Stores finished points, including those of a terminated run.
        on_step: Called after each measurement, with its name.

    Raises:
        NoBackendError: For an unknown name.
    """
    register_named(names)
    subjects = [BACKENDS.get(name) for name in names]
    configs = {length: memory_model.at_length(config, length, keep_queries=keep_queries) for length in lengths}
    known = {(point.backend, point.label): point for point in (journal.found if journal else [])}
    points, fits, absent = [], [], {}
    for subject in subjects:
        answer = BACKENDS.supports(subject, configs[lengths[0]])
        if not answer:
            absent[subject.name] = answer.reason
            on_step(subject.name)
            continue
        mine = []
        for length, at in configs.items():
            point = known.get((subject.name, at.label))
            if point is None:
                point = _measure_point(subject, length, at, threads, backend_module)
                if journal and point.status == "measured":  # failures may be transient
                    journal.append(point)
            mine.append(point)
            on_step(f"{subject.name} {at.label}")
        points += mine
        fits.append(_fit(subject, mine, config, budget_bytes, keep_queries=keep_queries))
    return MemoryStudy(
        config=configs[lengths[0]].to_dict(),
        keep_queries=keep_queries,
        threads=threads,
        budget_bytes=budget_bytes,
        points=points,
        fits=fits,
        reductions=reductions(points),
        absent=absent,
    )


def _measure_point(
    subject: Backend, length: int, config: AttentionConfig, threads: int, backend_module: str
) -> MemoryPoint:
    theory = memory_model.theory(config, subject)
    item = 8 if config.dtype == "float64" else 4
    matrix = config.batch * config.num_heads * config.seq_q * config.seq_k * item
    values: dict[str, Any] = {
        "backend": subject.name, "length": length, "label": config.label, "theory": theory, "matrix_bytes": matrix
    }  # fmt: skip
    available = available_memory_bytes()
    # Inputs and outputs of the measuring process's two calls never exist at once, but on the stand-in GPU the
    # device memory is also this machine's.
    process = 2 * theory.total + PROCESS_BYTES
    if process > available:
        needed = f"needs {gigabytes(theory.total)} by theory, {gigabytes(available)} available"
        return MemoryPoint(**values, status="skipped", skipped=f"{needed}; its process may take {gigabytes(process)}")
    job = MemoryJob(config=config.to_dict(), backend=subject.name, backend_module=backend_module)
    env = os.environ | thread_environment(threads) | _GIVE_BACK
    reply = run_worker(__name__, msgspec.json.encode(job), env, _TIMEOUT_S)
    if isinstance(reply, Crash):
        return MemoryPoint(**values, status="failed", skipped=reply.reason)
    result = msgspec.json.decode(reply.line, type=MemoryResult)
    if result.failed:
        return MemoryPoint(**values, status="failed", skipped=result.failed)
    return MemoryPoint(**values, allocated_bytes=result.allocated_bytes, rss_bytes=result.rss_bytes)


def _fit(
    subject: Backend, points: list[MemoryPoint], config: AttentionConfig, budget_bytes: int, *, keep_queries: bool
) -> MemoryFit:
    measured = [point for point in points if point.status == "measured"]
    lengths, sizes = [p.length for p in measured], [float(p.allocated_bytes) for p in measured]

    def total(length: int) -> int:
        at = memory_model.at_length(config, length, keep_queries=keep_queries)
        return memory_model.theory(at, subject).total

    longest = memory_model.largest_sequence(total, budget_bytes)
    return MemoryFit(
        backend=subject.name,
        growth=memory_model.fit_growth(lengths, sizes),
        longest=longest,
        longest_theory_bytes=total(longest) if longest else 0,
        longest_measured_bytes=memory_model.extrapolate(lengths, sizes, longest) if longest else None,
        worst_difference_pct=max((abs(p.difference_pct) for p in measured), default=None),
    )


def reductions(points: Sequence[MemoryPoint]) -> list[Reduction]:
    """Return each backend's savings relative to standard attention, at the lengths measured for both."""
    measured = {(point.backend, point.length): point for point in points if point.status == "measured"}
    savings = []
    for (name, length), point in measured.items():
        standard = STANDARD_OF.get(name, "cpu")
        base = measured.get((standard, length))
        if base is None:
            continue
        tensors = base.theory.inputs + base.theory.outputs
        beside, base_beside = point.allocated_bytes - tensors, base.allocated_bytes - tensors
        savings.append(
            Reduction(
                backend=name,
                standard=standard,
                length=length,
                total_pct=100 * (1 - point.allocated_bytes / base.allocated_bytes),
                workspace_pct=100 * (1 - beside / base_beside) if base_beside > 0 else 0.0,
            )
        )
    return savings


def disagreements(study: MemoryStudy) -> list[MemoryPoint]:
    """Return the points whose allocators' count contradicts the theory.

    Small Python objects are also counted, so `ALLOWED_BYTES` are tolerated in addition to `ALLOWED_PCT`.
    """
    measured = [point for point in study.points if point.status == "measured"]
    return [
        p
        for p in measured
        if abs(p.theory.total - p.allocated_bytes) > ALLOWED_BYTES + p.allocated_bytes * ALLOWED_PCT / 100
    ]


def usable_backends() -> list[str]:
    """Return the default backends: all that work here, and both paths of a real GPU."""
    names = []
    for backend in BACKENDS:
        if backend.name == GPU_STANDARD or backend.is_stand_in or not backend.available():
            continue
        names += [GPU_STANDARD, backend.name] if backend.name == "gpu" else [backend.name]
    return sorted(names, key=lambda name: STANDARD_OF.get(name) != "")


if __name__ == "__main__":
    serve(_perform, lambda reason: MemoryResult(failed=reason))
