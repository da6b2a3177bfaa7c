"""Run backends side by side on one config in fresh processes: the parent's part and the process's part.

A process samples the backends in turns, compares their outputs with float64, reports and exits. If a backend crashes
the process, it is repeated without that backend. `rocattn_profiling.measure.worker` defines the protocol.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import resource
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import rocattn
from rocattn.backends import BACKENDS, GpuBackend
from rocattn.config import AttentionConfig
from rocattn.gpu.errors import GpuError
from rocattn_profiling.measure.machine import load_average, thread_environment
from rocattn_profiling.measure.records import Check, Launch
from rocattn_profiling.measure.settings import import_backends
from rocattn_profiling.measure.stats import GPU_STANDARD
from rocattn_profiling.measure.worker import Crash, describe, peak_rss_bytes, reset_peak, run_worker, serve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocattn_profiling.measure.settings import Settings
    from rocattn_profiling.workloads.inputs import Inputs

    _Call = Callable[[], tuple[Any, ...]]
    _Outputs = dict[str, tuple[Any, ...]]

_START_AND_CHECK_S = 30.0
_WARMUP_CALLS = 10
_SETTLING_CALLS = 4
_REST_S = 0.003  # lets waiting threads of the last backend go to sleep (see `machine.thread_environment`)
_LONG = 20  # a call that takes this many times the minimum sample time needs no settling
_ALL_ROWS = 1e30  # FLOPs: so many that no problem's rows are sampled
_DOUBT = 4.0  # the largest error of all rows may be this many times that of the sampled rows
_RESOLUTIONS = 1000  # a sample is at least this many ticks of the clock


class StandardGpuBackend(GpuBackend):
    """The gpu backend's standard path under a separate name, to compare it with the flash kernels."""

    name = GPU_STANDARD
    priority = -1001  # chosen only by name

    def __init__(self) -> None:
        super().__init__()
        self.use_flash_attention = False


def register_named(names: Iterable[str]) -> None:
    """Register `StandardGpuBackend`, which is available only by name."""
    if GPU_STANDARD in names and all(backend.name != GPU_STANDARD for backend in BACKENDS):
        BACKENDS.register(StandardGpuBackend())


class LaunchJob(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a launch.

    Attributes:
        config: `AttentionConfig.to_dict`.
        backends: Names, sampled in turns.
        data, seed: Kind and seed of the inputs (`workloads.inputs.make_inputs`).
        pos: Position of the launch; with the seed it determines the order of turns.
        warmup_s: Each backend's warm-up ends after this time or ten calls; at least one call, four if they are short.
        budget_s: Sampling time per backend, within ``min_samples`` and ``max_samples``.
        min_sample_ns: Minimum time of a sample; short calls are timed together.
        copies: Copies of Q, K and V that calls use in turns, so that none of them is in a cache.
        check: Whether to compare outputs with float64.
        module: Suite of the module workload around attention; "" for attention alone.
        backend_module: Module that registers additional backends when imported; "" for none.
        library: Folder that rocattn must be imported from: the parent's.
    """

    config: dict[str, Any]
    backends: list[str]
    data: str
    seed: int
    pos: int
    warmup_s: float
    budget_s: float
    min_samples: int
    max_samples: int
    min_sample_ns: int = 1_000_000
    copies: int = 1
    check: bool = False
    module: str = ""
    backend_module: str = ""
    library: str = ""


class BackendSamples(msgspec.Struct, kw_only=True):
    """A backend's part of a report: its launch, or in ``failed`` the reason why there is none."""

    backend: str
    launch: Launch | None = None
    peak_rss_bytes: int = 0
    check: Check | None = None
    failed: str = ""


class Result(msgspec.Struct, kw_only=True):
    """The report of a process.

    Attributes:
        series: One per backend.
        failed: Why the launch could not begin; empty if it did.
        log: The process's output, filled in by the parent.
    """

    series: list[BackendSamples] = []
    failed: str = ""
    log: str = ""


def _poison(outputs: tuple[Any, ...]) -> None:
    """Fill free memory of the outputs' sizes with NaN.

    Otherwise a backend that returns without writing its output could get memory with another backend's correct
    result.
    """
    import numpy as np

    for array in outputs:
        blocks = [np.full(array.shape, np.nan, array.dtype) for _ in range(4)]
        del blocks


class TurnSampler:
    """Samples several calls in random turns; a call that raises is dropped with the reason.

    Args:
        calls: A call per backend that returns the output arrays.
        job: The limits.
        mark: Called with the name of the backend that is about to run.
        restore: Restores the inputs and returns the names of those that were overwritten.
    """

    def __init__(
        self,
        calls: dict[str, Callable[[], tuple[Any, ...]]],
        job: LaunchJob,
        mark: Callable[[str], None],
        restore: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.job, self.mark, self._calls, self._restore = job, mark, calls, restore
        self.written: dict[str, tuple[str, ...]] = {}
        self._start_ns, self._load = time.time_ns(), load_average()
        self.series = {name: BackendSamples(backend=name) for name in calls}
        self.outputs: dict[str, tuple[Any, ...]] = {}

    @property
    def able(self) -> list[str]:
        """The backends that have not failed."""
        return [name for name, series in self.series.items() if not series.failed]

    def warm_up(self) -> None:
        """Warm up each call, record its peak memory, and determine the number of calls per sample."""
        tick_ns = time.get_clock_info("perf_counter").resolution * 1e9
        wanted_ns = max(self.job.min_sample_ns, _RESOLUTIONS * tick_ns)
        for name in self.able:
            reset_peak()
            best, end = math.inf, time.perf_counter() + self.job.warmup_s
            for calls in range(1, _WARMUP_CALLS + 1):
                if not self._guarded(name, 1):
                    break
                best = min(best, self._elapsed_ns)
                # The first runs of a short call are not representative: the number needs a few to settle.
                if time.perf_counter() >= end and (calls >= _SETTLING_CALLS or best >= _LONG * wanted_ns):
                    break
            self.series[name].peak_rss_bytes = peak_rss_bytes()
            self._inspect(name)
            if not self.series[name].failed:
                number = max(1, math.ceil(wanted_ns / best)) if best > 0 else 1
                self.series[name].launch = Launch(
                    start_ns=self._start_ns, pos=self.job.pos, number=number, samples_ns=[], cpu_ns=[], nivcsw=[],
                    load=self._load,
                )  # fmt: skip

    def sample(self) -> None:
        """Take rounds of one sample of each backend until the budget or ``max_samples`` ends; poison the last."""
        turns = random.Random(f"{self.job.seed} {self.job.pos}")  # noqa: S311 - order of turns, not a secret
        end = time.perf_counter() + self.job.budget_s * len(self.able)
        rounds, before = 0, ""
        while rounds < self.job.max_samples and self.able:
            rounds += 1
            last = rounds >= self.job.max_samples or (rounds >= self.job.min_samples and time.perf_counter() >= end)
            order = self.able
            turns.shuffle(order)
            if last:
                self._restore()
            for name in order:
                if last:
                    _poison(self.outputs[name])
                if before not in {"", name}:
                    time.sleep(_REST_S)
                    end += _REST_S  # the budget is for samples
                before = name
                self._take(name)
                if last:
                    self._inspect(name)
            if last:
                return

    def _inspect(self, name: str) -> None:
        """Record the inputs that the last backend overwrote, and restore them for the others."""
        self.written[name] = tuple(dict.fromkeys([*self.written.get(name, ()), *self._restore()]))

    def _take(self, name: str) -> None:
        launch = self.series[name].launch
        assert launch is not None
        switched = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        cpu = time.process_time_ns()
        if not self._guarded(name, launch.number):
            return
        cpu = time.process_time_ns() - cpu
        launch.nivcsw.append(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switched)
        launch.cpu_ns.append(cpu / launch.number)
        launch.samples_ns.append(self._elapsed_ns / launch.number)

    def _guarded(self, name: str, number: int) -> bool:
        """Make ``number`` calls; keep the last output and the total time, or return False with the reason kept."""
        call, output = self._calls[name], ()
        self.mark(name)
        try:
            started = time.perf_counter_ns()
            for _ in range(number):
                output = call()
            self._elapsed_ns = time.perf_counter_ns() - started
        except Exception as error:  # noqa: BLE001 - any exception is the backend's failure, not the bench's
            traceback.print_exc()
            self.series[name] = BackendSamples(backend=name, failed=describe(error))
            self.outputs.pop(name, None)
            return False
        self.outputs[name] = output
        return True


class Copies:
    """Q, K and V of the inputs, and consecutive copies of them in memory.

    Args:
        inputs: The inputs.
        count: Number of each, including the inputs' own.
    """

    def __init__(self, inputs: Inputs, count: int = 1) -> None:
        import numpy as np

        self._given = (inputs.q, inputs.k, inputs.v)
        self._further = [np.empty((count - 1, *array.shape), array.dtype) for array in self._given]
        self.refill()

    def refill(self) -> None:
        """Copy the values of the inputs into the copies."""
        for further, array in zip(self._further, self._given, strict=True):
            further[...] = array

    def turns(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """Cycle through the (q, k, v) of all copies endlessly, starting with the inputs' own."""
        return itertools.cycle([self._given, *zip(*self._further, strict=True)])


def calls_of(
    backends: Sequence[str], config: AttentionConfig, inputs: Inputs, copies: Copies | None = None
) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """Return a function per backend that makes one call through the public API.

    Args:
        backends: Names.
        config: The problem.
        inputs: Its inputs.
        copies: Copies of Q, K and V, used by forward calls in turns.
    """
    lengths = config.varlen is not None
    attention = rocattn.attention_varlen if lengths else rocattn.attention
    gradients = rocattn.attention_varlen_backward if lengths else rocattn.attention_backward

    def forward(name: str) -> Callable[[], tuple[Any, ...]]:
        options, turns = inputs.options(config), (copies or Copies(inputs)).turns()

        def call() -> tuple[Any, ...]:
            output = attention(*next(turns), backend=name, **options)
            return output if isinstance(output, tuple) else (output,)

        return call

    def backward(name: str) -> Callable[[], tuple[Any, ...]]:
        options = inputs.options(config)
        options.pop("return_lse", None)
        out_and_lse: list[Any] = []

        def call() -> tuple[Any, ...]:
            if not out_and_lse:  # a failure in the forward pass counts in this backend's warm-up
                out_and_lse.extend(attention(inputs.q, inputs.k, inputs.v, backend=name, return_lse=True, **options))
            assert inputs.dout is not None
            q, k, v = inputs.q, inputs.k, inputs.v
            return gradients(inputs.dout, q, k, v, *out_and_lse, backend=name, **options)

        return call

    make = forward if config.direction == "forward" else backward
    return {name: make(name) for name in backends}


def check_outputs(
    config: AttentionConfig, inputs: Inputs, outputs: dict[str, tuple[NDArray[Any], ...]], seed: int
) -> dict[str, Check]:
    """Compare the outputs of each backend with float64 and with each other.

    For large problems only a sample of rows is compared with float64. Every complete output is compared with the first
    backend's, and if they differ by more than their errors explain, all rows of both are compared with float64 by the
    same rule, which shows which one is wrong.

    Args:
        config: The problem.
        inputs: Its inputs.
        outputs: By backend: (out,) or (out, lse), or (dq, dk, dv), in the config's layout and dtype.
        seed: Seed of the sampling.
    """
    from rocattn_profiling.workloads.accuracy import check_gradients, check_output

    check = check_output if config.direction == "forward" else check_gradients
    checks = {name: check(config, inputs, *arrays, seed=seed) for name, arrays in outputs.items()}
    first, *others = outputs
    doubtful = [name for name in others if _differ(outputs[first], outputs[name], checks[first], checks[name])]
    for name in [first, *doubtful] if doubtful else []:
        checks[name] = check(config, inputs, *outputs[name], max_flops=_ALL_ROWS, seed=seed)
    return checks


def _differ(a: tuple[NDArray[Any], ...], b: tuple[NDArray[Any], ...], check_a: Check, check_b: Check) -> bool:
    """Return whether two backends' outputs differ by more than their errors in the sampled rows explain."""
    if check_a.rows_checked == check_a.rows or not (check_a.ok and check_b.ok):
        return False
    allowed = _DOUBT * (check_a.max_rel_error + check_b.max_rel_error)
    return any(_relative_difference(x, y) > allowed for x, y in zip(a, b, strict=True))


def _relative_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest |a - b| over the largest |a|, computed per sequence to save memory."""
    import numpy as np

    worst = largest = 0.0
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            wide, difference = np.abs(x, dtype=np.float64), np.subtract(x, y, dtype=np.float64)
            visible = np.isfinite(wide)  # the LSE of a row without a visible key is -inf, which is checked elsewhere
            largest = max(largest, float(wide.max(initial=0, where=visible)))
            worst = max(worst, float(np.abs(difference).max(initial=0, where=visible)))
    return worst / largest if largest else worst


def _prepare(
    job: LaunchJob, config: AttentionConfig
) -> tuple[dict[str, _Call], Callable[[_Outputs], dict[str, Check]], Callable[[], tuple[str, ...]]]:
    """Return a function per backend that makes one call, one that checks the outputs, and one that restores the inputs.

    A module makes its own inputs for each call.
    """
    if job.module:
        from rocattn_profiling.workloads import modules

        return *modules.prepare(job.module, config, job.backends, job.seed), tuple
    from rocattn_profiling.workloads.inputs import make_inputs

    inputs = make_inputs(config, data=job.data, seed=job.seed)
    copies = Copies(inputs, job.copies)
    calls = calls_of(job.backends, config, inputs, copies)
    if not job.check:
        return calls, lambda _: {}, tuple
    given = inputs.arrays()
    sums = {name: _checksum(array) for name, array in given.items()}
    seen: set[str] = set()

    def restore() -> tuple[str, ...]:
        written = tuple(name for name, array in given.items() if _checksum(array) != sums[name])
        if written:
            made = make_inputs(config, data=job.data, seed=job.seed).arrays()
            for name in written:
                given[name][...] = made[name]
        seen.update(written)
        if seen:  # a backend that overwrites inputs also overwrites the copies
            copies.refill()
        return written

    return calls, lambda outputs: check_outputs(config, inputs, outputs, job.seed), restore


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view("uint8").data)  # no copy: the memory estimate does not include one


def perform(job: LaunchJob, mark: Callable[[str], None]) -> Result:
    """Do a job in this process."""
    library = str(Path(str(rocattn.__file__)).resolve().parent)
    if job.library and library != job.library:
        return Result(failed=f"the worker imported rocattn from {library}, not from {job.library}")
    if job.backend_module:
        import_backends(job.backend_module)
    register_named(job.backends)
    config = AttentionConfig.from_dict(job.config)
    calls, check, restore = _prepare(job, config)
    sampler = TurnSampler(calls, job, mark, restore)
    gc.collect()
    gc.disable()
    sampler.warm_up()
    sampler.sample()
    gc.enable()
    if job.check and sampler.able:
        mark("")
        for backend, judged in check(sampler.outputs).items():
            written = sampler.written[backend]
            ok = judged.ok and not written
            sampler.series[backend].check = msgspec.structs.replace(judged, ok=ok, written=written)
    if (samples := sampler.series.get("gpu")) and samples.launch and config.direction == "forward" and not job.module:
        host, kernels = _host_and_kernels_ns(job, config)
        samples.launch = msgspec.structs.replace(samples.launch, host_ns=host, kernels_ns=kernels)
    return Result(series=list(sampler.series.values()))


def _host_and_kernels_ns(job: LaunchJob, config: AttentionConfig) -> tuple[float, float]:
    """Return the host time of a call and its kernels' time, in ns; 0 for both without a GPU that can be timed."""
    from rocattn_profiling.bench.gpu_clock import host_and_kernels_ns
    from rocattn_profiling.workloads.inputs import make_inputs

    try:
        return host_and_kernels_ns(config, make_inputs(config, data=job.data, seed=job.seed))
    except (GpuError, NotImplementedError):
        return 0.0, 0.0


@dataclass
class BackendLaunches:
    """The measurement of a backend; ``failed`` is the reason if it is incomplete, ``log`` that process's output."""

    launches: list[Launch] = field(default_factory=list)
    check: Check | None = None
    peak_rss_bytes: int = 0
    failed: str = ""
    log: str = ""

    def add(self, samples: BackendSamples, log: str) -> None:
        """Add the backend's launch from a process, or its failure."""
        if samples.launch is None:
            self.failed, self.log = samples.failed, log
            return
        self.check = self.check or samples.check
        self.peak_rss_bytes = max(self.peak_rss_bytes, samples.peak_rss_bytes)
        self.launches.append(samples.launch)


def measure_side_by_side(
    config: AttentionConfig,
    backends: Sequence[str],
    settings: Settings,
    threads: int,
    on_launch: Callable[[], None] = lambda: None,
    *,
    module: str = "",
    copies: int = 1,
) -> dict[str, BackendLaunches]:
    """Measure backends on a config, or in a module around it, in ``settings.launches`` fresh processes.

    Calls use ``copies`` copies of Q, K and V in turns (`limits.cold_copies`).

    A backend that raises, crashes the process or hangs is dropped with the reason; a launch that it ended is repeated
    for the others.
    """
    sides = {name: BackendLaunches() for name in backends}
    env = os.environ | thread_environment(threads)
    patience_s = 2 * settings.time_limit_s + _START_AND_CHECK_S
    for pos in range(settings.launches):
        while able := [name for name, side in sides.items() if not side.failed]:
            job = _launch_job(config, able, settings, pos=pos, module=module, copies=copies)
            outcome = launch(job, env, patience_s)
            if isinstance(outcome, Result) and not outcome.failed:
                for samples in outcome.series:
                    sides[samples.backend].add(samples, outcome.log)
                break
            _blame({name: sides[name] for name in able}, outcome)
        on_launch()
    return sides


def launch(job: LaunchJob, env: dict[str, str], timeout_s: float) -> Result | Crash:
    """Run a sampling job in a fresh process and return its report; see `run_worker`."""
    reply = run_worker(__name__, msgspec.json.encode(job), env, timeout_s)
    if isinstance(reply, Crash):
        return reply
    result = msgspec.json.decode(reply.line, type=Result)
    result.log = reply.log
    return result


def _launch_job(
    config: AttentionConfig, backends: list[str], settings: Settings, *, pos: int, module: str, copies: int
) -> LaunchJob:
    return LaunchJob(
        config=config.to_dict(),
        backends=backends,
        data=settings.data,
        seed=settings.seed,
        pos=pos,
        warmup_s=settings.warmup_s,
        budget_s=settings.budget_s,
        min_samples=settings.min_samples,
        max_samples=settings.max_samples,
        copies=copies,
        check=pos == 0,
        module=module,
        backend_module=settings.backend_module,
        library=str(Path(str(rocattn.__file__)).resolve().parent),
    )


def _blame(sides: dict[str, BackendLaunches], outcome: Crash | Result) -> None:
    """Mark the running backend as failed, or all of them if the process failed outside of any backend."""
    culprit, reason = (outcome.backend, outcome.reason) if isinstance(outcome, Crash) else ("", outcome.failed)
    for name in [culprit] if culprit in sides else sides:
        sides[name].failed = reason if culprit in sides else f"outside any backend: {reason}"
        sides[name].log = outcome.log


def _decode_and_perform(encoded: bytes, mark: Callable[[str], None]) -> Result:
    job = msgspec.json.decode(encoded, type=LaunchJob)
    return perform(job, mark)


if __name__ == "__main__":
    serve(_decode_and_perform, lambda reason: Result(failed=reason))
