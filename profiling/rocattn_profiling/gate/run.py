"""One run of the gate, from the names of two revisions or environments to a verdict on disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Request
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import result_folder, stamp
from rocattn_profiling.base.journal import keeping
from rocattn_profiling.gate import noise_record, result, verdict, waivers
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.causes import add_causes
from rocattn_profiling.gate.explain.reach import Reach, reach_of
from rocattn_profiling.gate.formats import outputs
from rocattn_profiling.gate.machine_code.entries import machine_code_entries
from rocattn_profiling.gate.measure import PairedSession
from rocattn_profiling.gate.model import EXACT, SIDES, Design, Entry, GateResult, SessionResult
from rocattn_profiling.gate.options import OptionError, Options
from rocattn_profiling.gate.planning.listing import listed_suites
from rocattn_profiling.gate.planning.pace import Pace, TimeLimit
from rocattn_profiling.gate.planning.plan import Plan, RunPlan, chosen
from rocattn_profiling.gate.plugin import Plugin, load_plugin, plugin_errors
from rocattn_profiling.gate.session.store import LaunchStore
from rocattn_profiling.gate.sides import open_sides, out_errors
from rocattn_profiling.revisions.asv_config import UnknownNameError
from rocattn_profiling.revisions.git import RevisionError
from rocattn_profiling.revisions.interpreters import InterpreterError

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case

QUICK_REQUEST = Request(sample_ns=3_000_000, budget_ns=60_000_000)
FULL_REQUEST = Request(sample_ns=5_000_000, budget_ns=200_000_000)
# A process that a killed run was just starting keeps the run's files open until it has started.
_LEFT_BEHIND_S, _PAUSE_S = 2.0, 0.05


def run_gate(
    start: Path,
    out: Path,
    options: Options | None = None,
    *,
    on_step: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    also: Callable[[GateResult, LaunchStore], Mapping[str, str]] = lambda _result, _store: {},
) -> GateResult:
    """Measure two sides interleaved and decide; write the verdict in all its forms, and ``launches.jsonl``.

    The files replace those of an earlier run at the very end. A run that fails leaves those unchanged, and its error
    mentions them.

    Args:
        start: The folder that paths are relative to; for revisions, one inside the repository.
        out: Folder for the results; an unfinished run in it is resumed.
        options: What to compare and how.
        on_step: Called after every launch.
        say: Prints one line about each longer stage.
        also: Returns further files (name -> content) to write with the verdict, from the result and its launches.

    Raises:
        OptionError: The options contradict each other.
        RevisionError: A revision does not exist, or the tree is dirty.
        InterpreterError: An existing environment cannot be used.
        BuildError: A revision does not build: nothing was measured.
        CacheError: The cache folder is not writable.
        UnknownNameError: There is no such suite or test, or no benchmark matches.
        SuiteError: The suite cannot be read or listed, or has no benchmarks.
        WaiverError, ThresholdError, GateSettingsError: The repository's settings cannot be read.
        RocattnError: ``out`` is not writable, or another run is using it.
    """
    options = options or Options()
    options.check()
    with out_errors(out), alone(out), _naming_earlier_verdict(out):
        with open_sides(start, out, options, say) as context:
            options = context.options
            limit = TimeLimit.begin(options.max_time_s)
            request, policy = _request(options), options.policy()
            suites = listed_suites(context, on_step)
            entries = result.lost_modules(suites.before, suites.sides, options)
            cases = chosen(suites, context, needed=not (entries or options.times_nothing))
            entries += result.removed(suites.before, suites.sides, options)
            reach = reach_of(context)
            plan = Plan(context, suites, cases, request, policy, reach)
            if cases:
                say(plan.line(options.max_time_s))
            plugin = plugin_of(context)
            started = time.monotonic()
            entries += machine_code_entries(context, on_step)
            with plugin_errors(plugin):
                plugin.prepare(cases)
            limit = limit.extended(time.monotonic() - started)  # planning may include a build that takes a minute
            design, key = _design(context, plan, limit, reach)
            record = noise_record.NoiseHistory(context, design.request)
            store = LaunchStore(out / "launches.jsonl", key, fresh=options.fresh, began_with=record.known(cases))
            if store.resumed:
                say(f"resuming an interrupted run: {store.resumed} launches are there")
            most = len(SIDES) * sum(design.policy_of(case).looks[-1] for case in cases)
            try:
                with keeping(store.path, f"at most {most}", store.count):
                    session = PairedSession(context.launchers, design, store, on_step).run()
            finally:
                design.pace.record(plan.record)
            measured = verdict.entries_of(cases, session)
            entries += result.failed_by_change(measured, suites.before, suites.sides["head"], context.trees)
            narrowed = bool(options.patterns) or len(cases) < len(suites.sides["head"].cases()) or session.stopped
            gate_result = _concluded(context, plugin, design, session, entries, narrowed=narrowed, on_step=on_step)
            budget = result.budget_of(design, session, plan.estimate_s)
            gate_result = msgspec.structs.replace(gate_result, noise=store.began_with.source, budget=budget)
        outputs.write_all(gate_result, out, also(gate_result, store))
        if options.learn:
            say(record.learn(cases, session))
        if not session.stopped:
            store.finish()
    return gate_result


def list_run(
    start: Path,
    out: Path,
    options: Options,
    *,
    on_step: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> RunPlan:
    """Return what `run_gate` would measure; builds both sides, measures nothing, and raises the same errors."""
    options.check()
    with out_errors(out), alone(out), open_sides(start, out, options, say) as context:
        options = context.options
        request, policy = _request(options), options.policy()
        suites = listed_suites(context, on_step)
        cases = chosen(suites, context, needed=not options.times_nothing)
        return Plan(context, suites, cases, request, policy, reach_of(context)).listed()


def _request(options: Options) -> Request:
    return QUICK_REQUEST if options.quick else FULL_REQUEST


@contextmanager
def _naming_earlier_verdict(out: Path) -> Iterator[None]:
    """If a run ends without a verdict, add to its error that the folder contains an earlier run's verdict.

    Usage errors get no such note: nothing was started.
    """
    path = out / verdict.FILE
    before = stamp(path)
    try:
        yield
    except (OptionError, RevisionError, InterpreterError, UnknownNameError):
        raise
    except BaseException as error:
        if before is not None and stamp(path) == before:
            error.add_note(f"{path} is from an earlier run")
        raise


def _design(context: Context, plan: Plan, limit: TimeLimit, reach: Reach | None) -> tuple[Design, str]:
    """Return what to measure and how, and the session's key.

    Sessions with the same key have the same revisions, environments, settings and benchmarks.
    """
    options, cases = context.options, plan.cases
    policy = options.policy()
    policies = {}
    for case in cases:
        benchmark = case.benchmark
        own = context.thresholds.policy_for(case.label, benchmark.metric, policy, benchmark.unit)
        if own != policy:
            policies[case.label] = own
    settings = msgspec.structs.replace(options, fresh=False, base="", head="", exact=True, learn=False, max_time_s=0.0)
    parts = [*context.identity, *(msgspec.json.encode(part).decode() for part in (settings, policy, policies))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    seed = options.seed or int(key[:8], 16)
    design = Design(
        cases=cases, policy=policy, policies=policies, request=_request(options), seed=seed, steps=plan.steps,
        pace=plan.pace, limit=limit, tracing=plan.tracing,
        runs_change=None if reach is None else _change_tracer(context, reach, plan.pace, limit),
    )  # fmt: skip
    return design, key


def _change_tracer(context: Context, reach: Reach, pace: Pace, limit: TimeLimit) -> Callable[[Case], bool | None]:
    """Return a function that determines whether a benchmark runs code that differs; it returns None if unknown."""

    def runs_change(case: Case) -> bool | None:
        if case.benchmark.name in context.options.commands or case.benchmark.better:
            return None  # a command may read any file and need not be one Python process
        if reach.nothing_differs:
            return False
        if case.benchmark.setup_cache_key is not None:
            return None  # code that filled the cache was not traced
        name, module = case.benchmark.name, pace.shared_module(case)
        loaded = (
            context.launchers[side].loaded(name, case.label, reach.files, module=module, within_s=limit.cut_s())
            for side in SIDES
        )
        return reach.ran(*loaded)

    return runs_change


def _concluded(
    context: Context,
    plugin: Plugin,
    design: Design,
    session: SessionResult,
    entries: list[Entry],
    *,
    narrowed: bool,
    on_step: Callable[[Step], None],
) -> GateResult:
    """Add exact metrics and causes, and apply the repository's thresholds and waivers."""
    options, limits = context.options, context.thresholds
    if options.exact and context.trees:
        on_step(Step(done=0, total=0, what="reading exact metrics"))
        with plugin_errors(plugin):
            entries = [*entries, *plugin.entries()]
    # A quick run may compute only some exact metrics, whichever benchmarks it measures: rocattn's skips some kernels.
    narrowed = narrowed or (options.quick and any(entry.metric in EXACT for entry in entries))
    entries = limits.apply(entries)
    modules = {case.label: design.pace.shared_module(case) for case in design.cases}
    entries = add_causes(entries, context, plugin, design.limit, on_step, modules=modules)
    entries, problems = waivers.apply(entries, context.waivers, waivers.utc_today(), narrowed=narrowed)
    context.notes.extend([*context.waivers.notes, *limits.notes(entries, narrowed=narrowed)])
    return result.result_of(context, design, session, entries, problems)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Create a folder and lock out other gate runs while the block runs.

    Two runs in one folder would resume each other's launches. The lock is on the folder itself, not on a file as
    elsewhere (`files.locked`): in an existing folder that git does not ignore, a lock file would make the tree to be
    measured dirty.

    Raises:
        RocattnError: Another process is using it.
        OSError: It cannot be created.
    """
    result_folder(out)
    descriptor = os.open(out, os.O_RDONLY)  # the lock ends with the process
    end = time.monotonic() + _LEFT_BEHIND_S
    while not _lock(descriptor):
        if time.monotonic() > end:
            os.close(descriptor)
            raise RocattnError(f"another gate is running in {out}: wait for it, or name another folder with --out")
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock if it is free; return whether it was. A file system without locks counts as free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in {errno.EWOULDBLOCK, errno.EACCES}
    return True


def plugin_of(context: Context) -> Plugin:
    """Return the gated project's plug-in: head's, or for existing environments that of the suite's folder.

    Raises:
        PluginError: It cannot be loaded.
    """
    shared = context.launchers["head"].shared
    plugin = load_plugin(context.trees.get("head") or next((path.parent for path in shared), context.repo))
    with plugin_errors(plugin):
        return plugin(context)
