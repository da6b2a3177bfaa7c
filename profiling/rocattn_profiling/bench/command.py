"""``rocattn bench``: time attention backends on workload grids or on one shape, checking every output."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, progress, say
from rocattn_profiling.base.status import CommandError
from rocattn_profiling.bench.fleet import command as bench_fleet
from rocattn_profiling.workloads.options import add_sizes, add_storage, natural, positive, seconds, thread_number

if TYPE_CHECKING:
    from rocattn_profiling.base.console import Progress
    from rocattn_profiling.base.reasons import Coverage
    from rocattn_profiling.bench.fleet.session import FleetSession
    from rocattn_profiling.bench.parts import SuitePart
    from rocattn_profiling.bench.session import BenchSession
    from rocattn_profiling.measure.records import Record
    from rocattn_profiling.measure.settings import Settings

_EPILOG = """\
Each config is measured in fresh processes that take turns between backends, and every output is compared with float64.
Speed-ups have a 95 % interval over process launches. A config that does not fit in memory or in the time limit is
skipped and listed. Records are written as they finish: a rerun with the same --out, commit and settings measures only
what is missing.

exit status: 0 measured, and all outputs right (configs skipped for their size are listed)
             1 an output was wrong
             3 a backend crashed or raised, a job of a cluster left no result, nothing of a requested grid was measured,
               or nothing of it on a backend that --backend names
             4 usage or environment error
             130 interrupted: what was finished is kept, and the same command goes on from there"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_common(parser, out="out/bench")
    what = parser.add_argument_group("what to measure (the first four exclude each other and the sizes of one shape)")
    mode = what.add_mutually_exclusive_group()
    mode.add_argument(
        "--grid", action="extend", nargs="+", metavar="NAME", help="grids (default inference; see --list)"
    )
    mode.add_argument("--list", action="store_true", help="list the grids and their sizes, then exit")
    mode.add_argument(
        "--modules", action="extend", nargs="+", metavar="NAME",
        help="attention modules with their projections (standard, gemma, gemma_fast: with a KV cache)",
    )  # fmt: skip
    mode.add_argument(
        "--model", metavar="FILE.gguf",
        help="the attention layers of a model by this file's metadata, without projections and feed-forward layers: "
        "time to first token and decoded tokens/s",
    )  # fmt: skip
    what.add_argument(
        "--prompts", type=positive, nargs="+", metavar="N",
        help="with --model: prompt lengths, which are also the cache lengths to decode at (default 128 512 2048; with "
        "--quick 128 512; at most the model's context)",
    )  # fmt: skip
    what.add_argument("--quick", action="store_true", help="a subset of each grid, and short launches")
    what.add_argument(
        "--backend", action="extend", nargs="+", metavar="NAME",
        help="backends to measure, compared with the first one; gpu-standard is the standard path of gpu "
        "(default: the grid's)",
    )  # fmt: skip
    what.add_argument(
        "--backend-module", default=os.environ.get("ROCATTN_BACKEND_MODULE", ""), metavar="MODULE",
        help="import this module (or FILE.py) first: it registers backends of yours in rocattn.BACKENDS, and they are "
        "measured too (default: the environment variable ROCATTN_BACKEND_MODULE)",
    )  # fmt: skip
    add_storage(what)
    what.add_argument("--data", choices=("normal", "trig"), default="normal", help="input values (default normal)")
    what.add_argument("--seed", type=natural, default=0, metavar="N", help="seed of the input values (default 0)")
    shape = parser.add_argument_group("one shape of your own, instead of a grid")
    add_sizes(shape)
    bench_fleet.add_options(parser)
    how = parser.add_argument_group("how to measure")
    how.add_argument("--launches", type=positive, metavar="N", help="fresh processes per config (default 3)")
    how.add_argument("--samples", type=positive, metavar="N", help="samples per launch (default: 5 to 50 in about 1 s)")
    how.add_argument("--threads", type=thread_number, metavar="N", help="threads (default: the cores available)")
    how.add_argument(
        "--time-limit", type=seconds, metavar="S",
        help="skip a config estimated to take longer than this many seconds (default 60)",
    )  # fmt: skip
    how.add_argument(
        "--warm", action="store_true",
        help="keep keys and values in the CPU caches between calls with few queries, which otherwise start cold",
    )  # fmt: skip
    how.add_argument("--fresh", action="store_true", help="measure everything again; older records are moved aside")
    how.add_argument("--no-store", action="store_true", help="do not add the results to the asv store")


def run(arguments: argparse.Namespace) -> int:
    """Measure the requested parts and report the results."""
    from rocattn_profiling.bench import view as bench_view
    from rocattn_profiling.bench.model import print_passes
    from rocattn_profiling.bench.parts import parts_of

    if arguments.list:
        return bench_view.list_grids(as_json=arguments.json)
    require_own_checkout()
    bench_fleet.check(arguments)
    if arguments.prompts and not arguments.model:
        raise CommandError("--prompts needs a model: name its file with --model")
    settings, parts = _settings(arguments), parts_of(arguments)
    notes: list[str] = []
    total = sum(len(part.configs) for part in parts) * settings.launches
    with progress("bench", total) as shown:
        measured = _measure_on_fleet if arguments.engine == bench_fleet.SLURM else _measure_here
        session, suites = measured(arguments, settings, parts, shown, notes)
    for note in notes:
        say(note)
    records = [record for _, of_part in suites for record in of_part]
    bench_view.print_tables(suites)
    bench_view.print_summary(session, records)
    unmeasured = bench_view.unmeasured(suites, _named(arguments))
    coverage = bench_view.coverage(session, suites, _named(arguments))
    gaps = coverage.gaps("measured")
    for suite, name, reason in unmeasured:
        say(f"not measured: {name} in {suite}, requested with --backend (status 3): {reason}")
    more = print_passes(records) if arguments.model else {}
    more["not_compared"] = list(coverage.not_compared)
    more["unmeasured"] = [dict(zip(("suite", "backend", "reason"), each, strict=True)) for each in unmeasured]
    if arguments.json:
        emit_json(bench_view.as_json(session, records) | more)
    if not arguments.no_store:  # last: a store that cannot be written must not hide the measurements
        say(_store(session, records))
    say(f"bench: {coverage.compared} of {len(records)} results measured{'; ' * bool(gaps)}{gaps}")
    return _status(coverage, records)


def _measure_here(
    arguments: argparse.Namespace, settings: Settings, parts: list[SuitePart], shown: Progress, notes: list[str]
) -> tuple[BenchSession, list[tuple[str, list[Record]]]]:
    """Measure the parts on this machine, one config at a time."""
    from rocattn_profiling.bench.session import BenchSession

    session = BenchSession(
        Path(arguments.out), settings, fresh=arguments.fresh, on_step=shown.step, on_note=notes.append
    )
    parts = _with_backends(parts, arguments, session.added_backends, gpu=_has_gpu())
    with session, _keeping(session, parts):
        return session, [(part.suite, _measure(session, part)) for part in parts]


def _measure_on_fleet(
    arguments: argparse.Namespace, settings: Settings, parts: list[SuitePart], shown: Progress, notes: list[str]
) -> tuple[FleetSession, list[tuple[str, list[Record]]]]:
    """Measure the parts on a cluster."""
    session = bench_fleet.open_session(arguments, settings, parts, shown, notes)
    parts = _with_backends(parts, arguments, session.added_backends, gpu=bench_fleet.wants_gpus(arguments) > 0)
    with session, _keeping(session, parts):
        return session, bench_fleet.measure(session, parts)


def _keeping(session: BenchSession | FleetSession, parts: list[SuitePart]) -> AbstractContextManager[None]:
    from rocattn_profiling.base.journal import keeping
    from rocattn_profiling.measure.records import read_records

    wanted = {
        f"{part.suite}/{name}/{config.label}" for part in parts for config in part.configs for name in part.backends
    }

    def count() -> int:
        return len(wanted & {record.id for record in read_records(session.path)}) if session.path.exists() else 0

    return keeping(session.path, len(wanted), count)


def _settings(arguments: argparse.Namespace) -> Settings:
    from rocattn_profiling.measure.settings import Settings

    changes: dict[str, Any] = {name: getattr(arguments, name) for name in ("data", "seed", "backend_module", "warm")}
    changes |= {name: value for name in ("launches", "threads") if (value := getattr(arguments, name)) is not None}
    if arguments.samples is not None:
        changes |= {"min_samples": arguments.samples, "max_samples": arguments.samples}
    if arguments.time_limit is not None:
        changes["time_limit_s"] = arguments.time_limit
    return Settings.for_quick(**changes) if arguments.quick else Settings(**changes)


def _with_backends(
    parts: list[SuitePart], arguments: argparse.Namespace, added: list[str], *, gpu: bool
) -> list[SuitePart]:
    """Return the parts with their backends: the named ones, or else the grid's, a GPU's and the module's."""
    from rocattn.backends import BACKENDS
    from rocattn_profiling.bench.launch import register_named
    from rocattn_profiling.bench.parts import DEFAULT_GRID
    from rocattn_profiling.workloads.grids import get_grid

    register_named(arguments.backend or ())
    for name in arguments.backend or ():
        BACKENDS.get(name)  # raises, listing the names
    named = _named(arguments)
    if not named:
        added = [*(["gpu"] if gpu else []), *added]
    usual = {part.suite: part.backends or list(get_grid(DEFAULT_GRID).backends) for part in parts}
    return [replace(part, backends=named or list(dict.fromkeys([*usual[part.suite], *added]))) for part in parts]


def _named(arguments: argparse.Namespace) -> list[str]:
    """Return the backends requested by name."""
    return list(dict.fromkeys(arguments.backend or []))


def _has_gpu() -> bool:
    """Return whether the gpu backend works here, on a real GPU."""
    from rocattn.backends import BACKENDS

    gpu = BACKENDS.get("gpu")
    return bool(gpu.available()) and not gpu.is_stand_in


def _measure(session: BenchSession, part: SuitePart) -> list[Record]:
    facts_of = part.facts_of
    return [
        record
        for config in part.configs
        for record in session.measure(part.suite, config, part.backends, facts_of(config) if facts_of else None)
    ]


def _store(session: BenchSession | FleetSession, records: list[Record]) -> str:
    """Add the records to the checkout's asv store, or print the reason why not."""
    if session.repo is None or session.commit is None:
        return "not added to the asv store: this rocattn does not run from a git checkout"
    if session.commit.dirty:
        return "not added to the asv store: the working tree differs from its commit"
    from rocattn_profiling.measure.machine import available_cores
    from rocattn_profiling.measure.settings import Settings

    usual = Settings(threads=available_cores() if session.machine else 0)  # 0: the CPUs given to each job of a fleet
    if any(getattr(session.settings, name) != getattr(usual, name) for name in ("threads", "data", "seed", "warm")):
        return "not added to the asv store: its history has only normal data, seed 0, all available cores and no --warm"
    from rocattn_profiling.asv.store import AsvStore

    kept, left_out = [], Counter[str]()
    for record in records:
        if why := _not_of_the_history(record):
            left_out[why] += 1
        elif record.launches:
            kept.append(record)
    without = ", ".join(f"{number} {why}" for why, number in left_out.items())
    if left_out and not kept:
        return f"not added to the asv store: {without}"
    store = AsvStore(session.repo)
    count = store.add_records(kept)
    added = f"added {count} results of commit {session.commit.sha[:9]} to the asv store {store.results_dir}"
    return f"{added}, but not {without}" if without else added


def _not_of_the_history(record: Record) -> str:
    """Return why a result cannot join the history of this repository's commits, or ""."""
    from rocattn.backends import BACKENDS
    from rocattn_profiling.measure.stats import mostly_disturbed
    from rocattn_profiling.workloads.grids import GRIDS
    from rocattn_profiling.workloads.modules import WORKLOADS

    if not type(BACKENDS.get(record.backend)).__module__.startswith(("rocattn.", "rocattn_profiling.")):
        return "of a backend that is in no commit"
    if record.suite not in GRIDS | WORKLOADS:
        return "of a shape or model that is not in the suites"
    if mostly_disturbed(record.launches):
        return "with most launches disturbed by other processes"
    return ""


def _status(coverage: Coverage, records: list[Record]) -> int:
    """Return the exit status documented in the epilog of ``--help``."""
    return coverage.status(failed=any(record.check is not None and not record.check.ok for record in records))
