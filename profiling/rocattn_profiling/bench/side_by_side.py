"""Measuring several backends on one config in the same launches, going on without one that fails."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import rocattn
from rocattn_profiling.bench.sample_worker import BackendSamples, Job, Result
from rocattn_profiling.measure.launching import Crash, run_worker
from rocattn_profiling.measure.machine import thread_environment
from rocattn_profiling.measure.records import Check, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocattn.config import AttentionConfig
    from rocattn_profiling.measure.settings import Settings

_START_AND_CHECK_S = 30.0
_WORKER = "rocattn_profiling.bench.sample_worker"


@dataclass
class Side:
    """What was measured of one backend; ``failed`` says why it is not whole, ``log`` what the process printed then."""

    launches: list[Launch] = field(default_factory=list)
    check: Check | None = None
    peak_rss_bytes: int = 0
    failed: str = ""
    log: str = ""

    def add(self, samples: BackendSamples, result: Result, pos: int) -> None:
        """Take over the samples of a launch, or its failure."""
        if samples.failed:
            self.failed, self.log = samples.failed, result.log
            return
        self.check = self.check or samples.check
        self.peak_rss_bytes = max(self.peak_rss_bytes, samples.peak_rss_bytes)
        self.launches.append(
            Launch(
                start_ns=result.start_ns,
                load=result.load,
                pos=pos,
                number=samples.number,
                samples_ns=samples.samples_ns,
                cpu_ns=samples.cpu_ns,
                nivcsw=samples.nivcsw,
            )
        )


def measure_side_by_side(
    config: AttentionConfig,
    backends: Sequence[str],
    settings: Settings,
    threads: int,
    on_launch: Callable[[], None] = lambda: None,
    *,
    module: str = "",
) -> dict[str, Side]:
    """Measure backends on a config, or in a module around it, in ``settings.launches`` fresh processes.

    A backend that raises, crashes the process or hangs is dropped with its reason; the launch in which it took the
    others down with it is repeated for them.
    """
    sides = {name: Side() for name in backends}
    env = os.environ | thread_environment(threads)
    patience_s = 2 * settings.time_limit_s + _START_AND_CHECK_S
    for pos in range(settings.launches):
        while able := [name for name, side in sides.items() if not side.failed]:
            outcome = launch(_job(config, able, settings, pos, module), env, patience_s)
            if isinstance(outcome, Result) and not outcome.failed:
                for samples in outcome.series:
                    sides[samples.backend].add(samples, outcome, pos)
                break
            _blame({name: sides[name] for name in able}, outcome)
        on_launch()
    return sides


def launch(job: Job, env: dict[str, str], timeout_s: float) -> Result | Crash:
    """Do a sampling job in a fresh process and return what it reports; see `run_worker`."""
    answer = run_worker(_WORKER, msgspec.json.encode(job), env, timeout_s)
    if isinstance(answer, Crash):
        return answer
    result = msgspec.json.decode(answer.line, type=Result)
    result.log = answer.log
    return result


def _job(config: AttentionConfig, backends: list[str], settings: Settings, pos: int, module: str) -> Job:
    return Job(
        config=config.to_dict(),
        backends=backends,
        data=settings.data,
        seed=settings.seed,
        pos=pos,
        warmup_s=settings.warmup_s,
        budget_s=settings.budget_s,
        min_samples=settings.min_samples,
        max_samples=settings.max_samples,
        check=pos == 0,
        module=module,
        backend_module=settings.backend_module,
        library=str(Path(str(rocattn.__file__)).resolve().parent),
        parent=os.getpid(),
    )


def _blame(sides: dict[str, Side], outcome: Crash | Result) -> None:
    """Mark the backend that was running as failed; all of them if the process failed outside of any."""
    culprit, reason = (outcome.backend, outcome.reason) if isinstance(outcome, Crash) else ("", outcome.failed)
    for name in [culprit] if culprit in sides else sides:
        sides[name].failed = reason if culprit in sides else f"outside of any backend: {reason}"
        sides[name].log = outcome.log
