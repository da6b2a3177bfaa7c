"""Assemble the GateResult from launches, with entries for what was not measured, and notes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.base.console import duration
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import (
    EXACT,
    ORDER,
    SIDES,
    Design,
    Entry,
    GateResult,
    SessionResult,
    SideName,
    Status,
    TimeBudget,
    badness,
    counts_of,
    coverage_of,
)
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.planning.pace import UNDECIDED_SHARE
from rocattn_profiling.gate.planning.select import of_module
from rocattn_profiling.gate.rule.reasons import MOST_LAUNCHES
from rocattn_profiling.measure.machine import this_machine

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Suite


def lost_modules(before: Suite | None, suites: Mapping[SideName, Suite], options: Options) -> list[Entry]:
    """Return entries for modules that head cannot import, and benchmarks that only base discovers."""
    broken = suites["head"].broken
    entries: list[Entry] = []
    offered = [case.label for case in before.cases(options.patterns)] if before else []
    for module, why in broken.items():
        # Both sides run head's files, so a file that the change broke fails on both, although base's version worked.
        lost = module not in suites["base"].broken or any(of_module(label, module) for label in offered)
        status: Status = "failed" if lost else "broken"
        entries.append(Entry(label=module, name=module, status=status, reason=f"cannot be imported: {why}"))
    known = {case.label for case in suites["head"].cases()}
    for case in suites["base"].cases(options.patterns):
        # A module that head cannot import has one entry for all its benchmarks.
        if case.label not in known and not any(of_module(case.label, module) for module in broken):
            reason = "base has it and head does not, with the same benchmark files"
            entries.append(Entry(label=case.label, name=case.benchmark.name, status="missing", reason=reason))
    return entries


def failed_by_change(
    entries: Sequence[Entry], before: Suite | None, now: Suite, trees: Mapping[SideName, Path]
) -> list[Entry]:
    """Return the entries; a benchmark that fails on both sides and whose code head changed becomes "failed".

    Both sides run head's files, so base's result is that of head's benchmark on base's code. A benchmark of base's
    suite is not "new" just because head's version of it does not run on base: it was not compared.

    Args:
        entries: Entries of the measured benchmarks.
        before: Base's suite.
        now: Head's suite.
        trees: Both checkouts, to compare tests, which have no version in pytest.
    """
    if before is None:
        return list(entries)
    offered = {each.name for each in before.benchmarks}
    entries = [_existing(entry) if entry.status == "new" and entry.name in offered else entry for entry in entries]
    old, new = ({each.name: each.version for each in suite.benchmarks} for suite in (before, now))

    def is_changed(name: str) -> bool:
        if name not in old or name not in new:
            return False
        if new[name]:
            return old[name] != new[name]
        file = name.partition("::")[0]
        base, head = (trees[side] / file for side in SIDES)
        return base.is_file() and head.is_file() and base.read_bytes() != head.read_bytes()

    return [
        msgspec.structs.replace(entry, status="failed", reason=f"since its own code changed: {entry.reason}")
        if entry.status == "broken" and is_changed(entry.name) else entry
        for entry in entries
    ]  # fmt: skip


def _existing(entry: Entry) -> Entry:
    reason = f"head's benchmark files do not run there: {entry.reason}"
    return msgspec.structs.replace(entry, status="void", reason=reason)


def removed(before: Suite | None, suites: Mapping[SideName, Suite], options: Options) -> list[Entry]:
    """Return entries for benchmarks of base's suite that head's suite lacks, entirely or for some parameters.

    The gate does not pass until the change accepts the removal; otherwise a change could remove a slow benchmark.
    """
    if before is None:
        return []
    # Benchmarks that base still discovers in head's files are missing (`lost_modules`), not removed.
    known = {case.label for suite in suites.values() for case in suite.cases()}
    names = {benchmark.name for suite in suites.values() for benchmark in suite.benchmarks}
    lost: dict[str, list[str]] = {}
    for case in before.cases(options.patterns):
        if case.label not in known and not any(of_module(case.label, module) for module in suites["head"].broken):
            lost.setdefault(case.benchmark.name, []).append(case.label)
    whole = "head's suite no longer has it"
    part = "head's suite no longer has {} of its combinations, such as {}"
    return [
        Entry(label=n, name=n, status="removed", reason=part.format(len(of), of[0]) if n in names else whole)
        for n, of in sorted(lost.items())
    ]


def worst_first(entry: Entry) -> tuple[int, bool, float, str, str]:
    """Return a sort key that puts the worst entry first."""
    return ORDER.index(entry.status), not entry.suspect, -badness(entry), entry.label, entry.arch


def result_of(
    context: Context, design: Design, session: SessionResult, entries: Sequence[Entry], problems: Sequence[str]
) -> GateResult:
    """Assemble the verdict.

    Args:
        context: What was compared; its notes become the verdict's.
        design: What was measured, and how.
        session: The launches, and the decisions about them.
        entries: Every benchmark and exact metric, waivers applied.
        problems: Why the gate fails apart from its verdicts.
    """
    listed = set(session.decision.listed)
    entries = sorted((_marked(entry, listed) for entry in entries), key=worst_first)
    limit_s = context.options.max_time_s
    overall, sentence = conclude(
        entries, session.decision.invalid, problems, tolerance=design.policy.tolerance, limit_s=limit_s,
        more=context.not_compared,
    )  # fmt: skip
    return GateResult(
        verdict=overall,
        sentence=sentence,
        created_ms=time.time_ns() // 1_000_000,
        base=context.facts["base"],
        head=context.facts["head"],
        machine=this_machine(),
        environment_differences=dict(context.differing),
        policy=design.policy,
        quick=context.options.quick,
        seed=design.seed,
        launches=session.launches,
        suite=context.suite,
        patterns=list(context.options.patterns),
        suite_shift=session.decision.shift,
        canary_shift=session.decision.canary,
        invalid=session.decision.invalid,
        again=_again(context),
        notes=[*_notes(context, session), *context.notes],
        problems=list(problems),
        counts=counts_of(entries),
        not_compared=list(coverage_of(entries, context.not_compared).not_compared),
        entries=entries,
    )


def budget_of(design: Design, session: SessionResult, estimate_s: tuple[float, float]) -> TimeBudget:
    """Return how a run used its time, and how to decide and measure the rest.

    Args:
        design: What was planned, with its time limit.
        session: What was measured.
        estimate_s: The planned time in seconds, low and high end.
    """
    limit = design.limit
    return TimeBudget(
        limit_s=limit.limit_s if limit.limited else 0.0,
        estimate_s=estimate_s,
        measured_s=round(limit.elapsed_s(), 1),
        benchmarks=len(design.cases),
        stopped=session.stopped,
        unreached=len(session.unreached),
        open=len(session.open),
        remedy=_remedy(design, session),
    )


def _remedy(design: Design, session: SessionResult) -> str:
    """Say in one line how to decide the undecided and measure the rest; empty if nothing would."""
    pace, looks = design.pace, design.looks
    cases = {case.label: case for case in design.cases}
    if session.stopped:
        left, rounds = [cases[label] for label in session.unreached], {p.id: p.rounds for p in session.pairs}
        traced = None if design.runs_change is None else design.tracing
        may_run = {case.label for case in traced.most} if traced else set()
        further = [case for case in left if case.label in may_run]
        seconds = pace.whole_s(left, looks, UNDECIDED_SHARE[1], traced, further)
        by_rounds: dict[int, list[Case]] = {}  # grouped, since cases of one module share its import
        for label in session.open:
            by_rounds.setdefault(rounds[label], []).append(cases[label])
        seconds += sum(pace.rest_s(each, done, looks, UNDECIDED_SHARE[1]) for done, each in by_rounds.items())
        counts = [f"{len(left)} not measured"] if left else []
        counts += [f"{len(session.open)} undecided for lack of time"] if session.open else []
        return f"{', '.join(counts)}: the same command continues where it stopped (about {duration(seconds)} more)"
    more = [d for d in session.decision.decisions if d.verdict == "inconclusive" and d.rounds_needed > looks[-1]]
    if not more:
        return ""
    needed = min(max(d.rounds_needed for d in more), MOST_LAUNCHES)
    # Do not continue after the last planned look: looking more often would make false alarms more frequent.
    seconds = needed * pace.round_s(cases[d.id] for d in more)
    beyond = needed - looks[-1]
    what = f"about {beyond} more round{'' if beyond == 1 else 's'} would decide {len(more)} of the undecided"
    alone = f"about {duration(seconds)} for {'these' if len(more) > 1 else 'it'} alone (--bench)"
    return f"{what}: --rounds {needed}, {alone}"


def _marked(entry: Entry, listed: Collection[str]) -> Entry:
    """Mark an entry if it is undecided but likely slower."""
    suspect = entry.status == "inconclusive" and entry.metric not in EXACT and entry.label in listed
    return msgspec.structs.replace(entry, suspect=True) if suspect else entry


def _again(context: Context) -> str:
    """Return the command that repeats the comparison; `groups.repeat` adds what to measure."""
    return shlex.join([*shlex.split(context.again), *(["--quick"] if context.options.quick else [])])


def _notes(context: Context, session: SessionResult) -> list[str]:
    notes = []
    if any(fact.offline for fact in context.facts.values()):
        notes.append("offline: both sides use the running interpreter's dependencies, not the revisions' own locks")
    base, head = (context.facts[side].revision for side in SIDES)
    if base is not None and head is not None and base.tree == head.tree:
        notes.append("base and head have identical files: this run measures the machine's noise")
    if session.repeated:
        repeats = f"{session.repeated} of {session.launches} processes repeat a launch"
        notes.append(f"{repeats} that ran while the machine was slow (its canary took longer)")
    steal = [launch.steal_pct for pair in session.pairs for side in (pair.a, pair.b) for launch in side.launches]
    if steal and (worst := max(steal)) >= 5:
        notes.append(f"the hypervisor gave up to {worst:.0f} % of this machine's CPU time to others during a launch")
    return notes
