# ruff: noqa: D102, D103 - the names say it
"""Odd backends for jobs of a fleet: imported in the job, as a user's module is.

Nothing is measured there, unless ``FLEET_MEASURES`` is set: most tests are of what becomes of jobs.
"""

import os
import signal
from pathlib import Path

import made_records
import odd_backends

from rocattn.backends import BACKENDS
from rocattn_profiling.bench import session as harness

CEILINGS = {"gemm_tflops": 0.1, "gemm_float64_tflops": 0.05, "memory_gbps": 10.0}
_measure = harness.measure_side_by_side


def measure(config, backends, *rest, **more):
    real = os.environ.get("FLEET_MEASURES") or not {"odd-crash", "odd-hang"}.isdisjoint(backends)
    return (_measure if real else made_records.make_sides)(config, backends, *rest, **more)


if "SUBMITIT_EXECUTOR" in os.environ:  # in a job: the tests' own process patches itself
    harness.limits.measure_ceilings = lambda *_, **__: dict(CEILINGS)
    harness.measure_side_by_side = measure


class OneShot(odd_backends.Odd):
    """Does its worst in the job's own process while a file is there, and takes the file away."""

    def supports(self, config):
        flag = Path(os.environ["FLEET_FLAG"])
        if flag.exists() and config.seq_q == 9:
            flag.unlink()
            self._twist(None)
        return super().supports(config)

    def forward(self, config, operands, out, lse):
        BACKENDS.get("cpu").forward(config, operands, out, lse)


def die(_out):
    os.kill(os.getpid(), signal.SIGKILL)


BACKENDS.register(OneShot("fleet-dies-once", die))
BACKENDS.register(OneShot("fleet-hangs-once", odd_backends.hang))
