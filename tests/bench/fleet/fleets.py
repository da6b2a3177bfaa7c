"""Fleets of short measurements, for tests of what becomes of their jobs."""

import functools

from rocattn.config import AttentionConfig
from rocattn_profiling.bench.fleet import cluster
from rocattn_profiling.bench.fleet.cluster import State, Wanted, open_cluster
from rocattn_profiling.bench.fleet.session import FleetSession, FleetUnit
from rocattn_profiling.bench.session import SuiteFacts
from rocattn_profiling.measure.settings import Settings

MODULE = "fleet_backends"
CONFIGS = [AttentionConfig(batch=1, num_heads=2, seq_q=9, seq_k=n, head_dim=12) for n in (13, 17)]
MINUTES = 5.0


def settings(**changes):
    """Return settings for one short launch."""
    short = {"launches": 1, "min_samples": 3, "max_samples": 3, "warmup_s": 0.0, "budget_s": 0.0, "threads": 1}
    return Settings(**(short | {"backend_module": MODULE} | changes))


class Inline(cluster.Cluster):
    """Jobs that are over when they have been submitted: for what is done with jobs, not how they run."""

    pause_s, same_machine = 0.0, True

    def __init__(self, *_):
        self.count = 0

    def submit(self, function, argument):
        """Do the job at once."""
        function(argument)
        self.count += 1
        return str(self.count)

    def poll(self, ids):
        """Say that all are over."""
        return {job: State("COMPLETED", over=True) for job in ids}


def units(*backends, configs=CONFIGS, layers=0):
    """Return a unit a config."""
    return [FleetUnit("t", (config,), backends, (SuiteFacts(layers=layers),)) for config in configs]


def session(out, *, kind="local", minutes=MINUTES, max_jobs=2, **changes):
    """Return a session of a fleet; what it says of jobs and notes is in its ``said``."""
    said = []
    opened = changes.pop("cluster", functools.partial(open_cluster, kind, wanted=Wanted(minutes)))
    extra = {"on_state": said.append, "on_note": said.append}
    extra |= {name: changes.pop(name) for name in ("fresh", "gpus", "on_state") if name in changes}
    made = FleetSession(out, settings(**changes), opened, kind=kind, max_jobs=max_jobs, **extra)
    made.said = said
    return made


def measured(out, of, **changes):
    """Measure units; returns the session, and the records by unit."""
    with session(out, **changes) as made:
        return made, made.measure(of)
