"""``rocattn bench --engine slurm``: the same sweep on a cluster, one job per config."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn_profiling.base.console import say
from rocattn_profiling.base.status import CommandError
from rocattn_profiling.workloads.options import natural, positive

if TYPE_CHECKING:
    from rocattn_profiling.base.console import Progress
    from rocattn_profiling.bench.fleet.session import FleetSession, FleetUnit
    from rocattn_profiling.bench.parts import SuitePart
    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.measure.settings import Settings

HERE, SLURM = "here", "slurm"
_CLUSTERS = ("slurm", "local")
_MAX_JOBS = {"slurm": 32, "local": 1}
_START_MINUTES = 5  # per node: start Python, compile the kernels for its CPU, measure its ceilings
_START_AND_CHECK_S = 30.0  # per launch


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the fleet options to ``rocattn bench``."""
    group = parser.add_argument_group("measuring on a cluster")
    group.add_argument(
        "--engine", choices=(HERE, SLURM), default=HERE,
        help="slurm: a job for each config, its backends side by side in it; the records come together in --out, which "
        "all nodes must see. The same command again submits what is missing (needs submitit: pip install "
        "'rocattn[slurm]')",
    )  # fmt: skip
    group.add_argument(
        "--cluster", choices=_CLUSTERS, help="local: the jobs are processes of this machine (default slurm)"
    )
    group.add_argument("--partition", metavar="NAME", help="partition (queue) to submit the jobs to")
    group.add_argument(
        "--gpus", type=natural, metavar="N", help="GPUs that a job has to itself (default 1 with --backend gpu, or 0)"
    )
    group.add_argument(
        "--share-nodes", action="store_true", default=None,
        help="let jobs without a GPU share a node with other jobs, which changes their times",
    )  # fmt: skip
    group.add_argument(
        "--job-minutes", type=_minutes, metavar="M",
        help="time limit of a job (default: what its launches may take, plus 5 minutes)",
    )  # fmt: skip
    group.add_argument(
        "--max-jobs", type=positive, metavar="N",
        help=f"most jobs queued or running at a time (default {_MAX_JOBS['slurm']}; local: {_MAX_JOBS['local']})",
    )  # fmt: skip
    group.add_argument(
        "--slurm-option", action="append", default=[], metavar="NAME[=VALUE]",
        help="one more option for sbatch, without its dashes: account=physics, constraint=mi300x, exclusive",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """Reject options that cannot be combined.

    Raises:
        CommandError: Names the options.
    """
    own = {
        "--cluster": arguments.cluster, "--partition": arguments.partition, "--gpus": arguments.gpus,
        "--share-nodes": arguments.share_nodes, "--job-minutes": arguments.job_minutes,
        "--max-jobs": arguments.max_jobs, "--slurm-option": arguments.slurm_option or None,
    }  # fmt: skip
    given = [name for name, value in own.items() if value is not None]
    if arguments.engine == HERE:
        if given:
            raise CommandError(f"{', '.join(given)}: only with --engine slurm")
        return
    if arguments.cluster == "local" and (arguments.partition or arguments.slurm_option or arguments.share_nodes):
        raise CommandError("--cluster local has no nodes, no partition and no sbatch options: leave them out")


def wants_gpus(arguments: argparse.Namespace) -> int:
    """Return the number of GPUs that a job requests."""
    default = int("gpu" in (arguments.backend or []))
    return default if arguments.gpus is None else int(arguments.gpus)


def open_session(
    arguments: argparse.Namespace, settings: Settings, parts: Sequence[SuitePart], shown: Progress, notes: list[str]
) -> FleetSession:
    """Return the session from the command line, for parts whose backends may still be unknown.

    Raises:
        ClusterError: When submitit or the cluster is missing.
    """
    from rocattn_profiling.bench.fleet.cluster import Wanted, open_cluster
    from rocattn_profiling.bench.fleet.session import FleetSession

    kind, gpus = arguments.cluster or "slurm", wants_gpus(arguments)
    options = {"partition": arguments.partition} if arguments.partition else {}
    options |= {} if gpus or arguments.share_nodes else {"exclusive": True}
    options |= dict(map(_option, arguments.slurm_option))
    minutes = arguments.job_minutes or job_minutes(settings, parts)
    wanted = Wanted(minutes=minutes, gpus=gpus, threads=settings.threads, options=options)
    return FleetSession(
        Path(arguments.out),
        settings,
        functools.partial(open_cluster, kind, wanted=wanted),
        kind=kind,
        max_jobs=arguments.max_jobs or _MAX_JOBS[kind],
        gpus=gpus,
        fresh=arguments.fresh,
        on_step=shown.step,
        on_note=notes.append,
        on_state=say,
    )


def job_minutes(settings: Settings, parts: Sequence[SuitePart]) -> int:
    """Return the time limit of a job: its start plus the slowest permitted launches."""
    configs = max((len(unit.configs) for part in parts for unit in _units(part)), default=1)
    launches_s = configs * settings.launches * (2 * settings.time_limit_s + _START_AND_CHECK_S)
    return _START_MINUTES + math.ceil(launches_s / 60)


def measure(session: FleetSession, parts: Sequence[SuitePart]) -> list[tuple[str, list[Record]]]:
    """Measure the parts with one job per unit; return their records by suite."""
    units = [(part.suite, _units(part)) for part in parts]
    records_of = session.measure([unit for _, own in units for unit in own])
    return [(suite, [record for unit in own for record in records_of.get(unit, [])]) for suite, own in units]


def _units(part: SuitePart) -> list[FleetUnit]:
    """Return one unit per config, or per pass of a model, whose layers are added up."""
    from rocattn_profiling.bench.fleet.session import FleetUnit
    from rocattn_profiling.bench.session import SuiteFacts

    groups: dict[Any, list[tuple[Any, SuiteFacts]]] = {}
    for config in part.configs:
        facts = part.facts_of(config) if part.facts_of else SuiteFacts()
        key = (config.seq_q, config.seq_k) if facts.layers else config.label
        groups.setdefault(key, []).append((config, facts))
    return [
        FleetUnit(part.suite, tuple(c for c, _ in members), tuple(part.backends), tuple(f for _, f in members))
        for members in groups.values()
    ]


def _option(text: str) -> tuple[str, str | bool]:
    """Return name and value of an sbatch option; True if it has no value."""
    name, equals, value = text.partition("=")
    name = name.lstrip("-")
    if not name:
        raise CommandError(f"--slurm-option {text!r}: write NAME=VALUE, or NAME alone")
    return name, value if equals else True


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value
