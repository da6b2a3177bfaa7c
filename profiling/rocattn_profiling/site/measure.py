"""Backfills the history: builds and measures the newest commits with the gate's worker, into the asv store."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.asv import launch as asv_launch
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.journal import Journal, keeping
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.measure.records import Commit
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions import git as revisions
from rocattn_profiling.revisions.asv_config import SuiteError, read_config

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Launcher, Outcome
    from rocattn_profiling.asv.store import Sample
    from rocattn_profiling.revisions.environments import Environment
    from rocattn_profiling.revisions.git import Revision

REQUEST = asv_launch.Request(sample_ns=3_000_000, budget_ns=60_000_000)


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a backfill.

    Attributes:
        measured: Commits that now have results.
        known: Commits that already had results.
        passed_over: Commits that do not build or run no benchmark: short hash -> reason.
        launches: Number of processes that produced samples.
    """

    measured: list[Revision] = []
    known: list[Revision] = []
    passed_over: dict[str, str] = {}
    launches: int = 0


class _Finished(msgspec.Struct, frozen=True):
    """A launch of a case on a commit."""

    label: str
    sha: str
    round: int
    outcome: asv_launch.Outcome


def measure_history(
    repo: Path,
    count: int,
    *,
    results: Path | None = None,
    launches: int = 3,
    benchmarks: Sequence[str] = (),
    on_step: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Backfill:
    """Measure the newest ``count`` first-parent commits: the benchmarks without results in the asv store.

    Launches are kept next to the store until all are done, so an interrupted run can be resumed.

    Args:
        repo: A folder inside the repository; its HEAD gives the suite, as in asv, and its ``asv.conf.json`` the store.
        count: How many commits to look back.
        results: The folder of a different store.
        launches: Processes per commit and benchmark, interleaved so that drift affects all commits alike.
        benchmarks: Regular expressions that select benchmarks; without any, the suite's quick ones.
        on_step: Called after every launch.
        say: Called with a line about every commit that is built or skipped.

    Raises:
        RevisionError, SuiteError, CacheError: There is no usable repository, suite or cache.
        RocattnError: The store cannot be written.
    """
    repo = revisions.find_repository(repo)
    store = AsvStore(repo, results)
    newest = revisions.first_parents(repo, "HEAD", count)
    builder = _Builder(repo, say)
    suite_from = next((revision for revision in newest if builder.build(revision)), None)
    if suite_from is None:
        return Backfill(passed_over=builder.passed_over)
    passed_over = builder.passed_over
    with revisions.checkout(repo, revisions.resolve(repo, "HEAD"), environments.cache_root() / "scratch") as tree:
        config = read_config(tree, None)

        def launcher(revision: Revision) -> Launcher:
            python, scratch = builder.built[revision].python, tree.parent / revision.sha[:10]
            suite = tree / config.benchmark_dir
            return asv_launch.Launcher(python, suite, scratch, config.environment, config.timeout_s, tree=tree)

        matches = launcher(suite_from).discover().cases(tuple(benchmarks))
        cases = matches if benchmarks else asv_launch.quick_cases(matches)
        if not cases:
            raise SuiteError("no benchmark of the suite matches: nothing would be measured")
        there = store.measured()
        lacking = {r: [c for c in cases if r.sha not in there.get(c.benchmark.name, ())] for r in newest}
        known = [revision for revision in newest if not lacking[revision]]
        launchers = {r: launcher(r) for r in newest if lacking[r] and builder.build(r)}
        todo = [(case, revision) for case in cases for revision in launchers if case in lacking[revision]]
        key = msgspec.json.encode([[(c.label, c.benchmark.version) for c in cases], REQUEST, this_machine()]).decode()
        journal = Journal(store.results_dir / "history.jsonl.rocattn", key, _Finished)  # a name that asv ignores
        if journal.found:
            say(f"resuming an earlier run, launches done: {len(journal.found)} ({journal.path})")
        with keeping(journal.path, f"at most {len(todo) * launches} launches", journal.count):
            outcomes = _measure(todo, launchers, launches, journal, on_step)
    measured = []
    for revision in launchers:
        of_commit = {case.label: outcomes[case.label, revision] for case in lacking[revision]}
        if _store(store, revision, builder.built[revision], lacking[revision], of_commit):
            measured.append(revision)
        else:
            reason = next(o.reason for runs in of_commit.values() for o in runs)
            passed_over[revision.short] = f"no benchmark runs on it ({reason})"
            say(f"passed over {revision.short} {revision.subject}: {passed_over[revision.short]}")
    journal.finish()
    samples = sum(outcome.launch is not None for runs in outcomes.values() for outcome in runs)
    return Backfill(measured=measured, known=known, passed_over=passed_over, launches=samples)


class _Builder:
    """Builds each commit once, and keeps the reason if it does not build."""

    def __init__(self, repo: Path, say: Callable[[str], None]) -> None:
        self.repo, self.say = repo, say
        self.built: dict[Revision, Environment] = {}
        self.passed_over: dict[str, str] = {}

    def build(self, revision: Revision) -> bool:
        """Build a commit; False if it does not build."""
        if revision not in self.built and revision.short not in self.passed_over:
            self.say(f"building {revision.short} {revision.subject}")
            try:
                self.built[revision] = environments.build(self.repo, revision)
            except environments.BuildError as error:
                self.passed_over[revision.short] = str(error)
                self.say(f"passed over: {error}")
        return revision in self.built


def _measure(
    todo: Sequence[tuple[Case, Revision]],
    launchers: dict[Revision, Launcher],
    launches: int,
    journal: Journal[_Finished],
    on_step: Callable[[Step], None],
) -> dict[tuple[str, Revision], list[Outcome]]:
    """Run every case on every commit without it, round by round, alternating the order of the commits."""
    outcomes: dict[tuple[str, Revision], list[Outcome]] = {(case.label, revision): [] for case, revision in todo}
    earlier = {(each.label, each.sha, each.round): each.outcome for each in journal.found}
    sampling: dict[str, asv_launch.Request] = {}
    total, done = len(outcomes) * launches, 0
    by_case = [list(pairs) for _, pairs in itertools.groupby(todo, key=lambda pair: pair[0].label)]
    for round_ in range(launches):
        for case, revision in (pair for pairs in by_case for pair in (pairs[::-1] if round_ % 2 else pairs)):
            runs = outcomes[case.label, revision]
            done += 1
            # A failed case is not retried; a tracked number is the same each time.
            if not runs or (runs[-1].status == "ok" and case.benchmark.type != "track"):
                request = sampling.get(case.label, REQUEST)
                outcome = earlier.get((case.label, revision.sha, round_))
                if outcome is None:
                    outcome = launchers[revision].run(case, request, pos=round_, seed=round_, layout=round_)
                    journal.append(_Finished(case.label, revision.sha, round_, outcome))
                runs.append(outcome)
                if outcome.launch is not None:
                    chosen = outcome.launch
                    sampling[case.label] = asv_launch.Request(number=chosen.number, count=len(chosen.samples_ns))
            on_step(Step(done=done, total=total, what=f"{revision.short}: {case.label}"))
    return outcomes


def _store(
    store: AsvStore, revision: Revision, environment: Environment, cases: list[Case], outcomes: dict[str, list[Outcome]]
) -> bool:
    """Store one commit's results; False if no benchmark ran."""
    if not any(outcome.status == "ok" for runs in outcomes.values() for outcome in runs):
        return False
    commit = Commit(sha=revision.sha, date_ms=revision.date_ms, subject=revision.subject)
    machine = msgspec.structs.replace(
        this_machine(), python=environment.python_version, numpy=environment.packages.get("numpy", "")
    )
    for benchmark in {case.benchmark.name: case.benchmark for case in cases}.values():
        of_benchmark = [case for case in cases if case.benchmark.name == benchmark.name]
        values = {_index(case): _value(case, outcomes[case.label]) for case in of_benchmark}
        store.add(
            commit,
            benchmark.name,
            benchmark.params,
            benchmark.param_names,
            benchmark.unit,
            values,
            benchmark.version,
            benchmark.type,
            machine=machine,
        )
    return True


def _index(case: Case) -> tuple[int, ...]:
    """Return a case's index into the values of each parameter of its benchmark."""
    rest, places = case.param or 0, []
    for options in reversed(case.benchmark.params):
        rest, place = divmod(rest, len(options))
        places.append(place)
    return tuple(reversed(places))


def _value(case: Case, runs: list[Outcome]) -> Sample:
    """Return the value to store: all samples in seconds, a number, NaN if skipped, or None if failed."""
    samples = [value for run in runs if run.launch is not None for value in run.launch.samples_ns]
    if not samples:
        return math.nan if runs[-1].status == "skipped" else None
    if case.benchmark.type == "time":
        return [value / 1e9 for value in samples]
    return sorted(samples)[len(samples) // 2]
