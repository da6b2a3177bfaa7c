"""From launches to the GateResult: which cases are measured, entries for the others, and notes."""

from __future__ import annotations

import difflib
import re
import shlex
import time
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.asv import launch as asv_launch
from rocattn_profiling.base.console import duration
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.planning.pace import UNDECIDED_SHARE
from rocattn_profiling.gate.rule.reasons import MOST_LAUNCHES
from rocattn_profiling.gate.verdict import Entry
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from rocattn_profiling.asv.launch import Case, Suite
    from rocattn_profiling.gate.measure import Design, SessionResult, SideName
    from rocattn_profiling.gate.options import Options
    from rocattn_profiling.gate.sides import Context
    from rocattn_profiling.gate.waivers import Waiver

_NAMED = 3  # benchmarks in an error


def chosen_cases(suite: Suite, options: Options) -> list[Case]:
    """Return the cases to measure: those that match, and in quick mode the quick classes where there are any."""
    cases = suite.cases(options.patterns)
    return asv_launch.quick_cases(cases) if options.quick and not options.patterns else cases


def nothing(suites: Mapping[SideName, Suite], options: Options) -> SuiteError:
    """Return the error that says in one line why there is nothing to measure."""
    suite = suites["head"]
    if suite.broken:
        module, why = next(iter(suite.broken.items()))
        return SuiteError(f"no benchmark can be imported: {module}: {why}")
    if options.patterns and suite.benchmarks:
        return UnknownNameError(
            unmatched("--bench", options.patterns, [benchmark.name for benchmark in suite.benchmarks])
        )
    return SuiteError("the suite has no benchmarks: nothing would be measured")


def unmatched(option: str, patterns: Sequence[str], names: Sequence[str]) -> str:
    """Return the line for what matches none of some benchmarks, with close names, or else the first ones."""
    asked = " or ".join(shlex.quote(pattern) for pattern in patterns)
    lasts = {_last(name): name for name in reversed(names)}
    near = [lasts[last] for pattern in patterns for last in difflib.get_close_matches(_last(pattern), lasts, n=_NAMED)]
    line = f"{option} {asked} matches none of {len(names)} benchmark{'' if len(names) == 1 else 's'}"
    if near:
        return f"{line}; did you mean {' or '.join(dict.fromkeys(near))}?"
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    return f"{line}: {', '.join(names[:_NAMED])}{more}"


def _last(name: str) -> str:
    """Return the function of a benchmark's name or a test's node id."""
    return re.split(r"[.:]", name)[-1]


def lost_modules(before: Suite | None, suites: Mapping[SideName, Suite], options: Options) -> list[Entry]:
    """Return entries for modules that head cannot import, and benchmarks that only base discovers."""
    broken = suites["head"].broken
    entries: list[Entry] = []
    offered = [case.label for case in before.cases(options.patterns)] if before else []
    for module, why in broken.items():
        # Both sides run head's files, so a file that the change broke fails on both though base's version worked.
        lost = module not in suites["base"].broken or any(_is_of(label, module) for label in offered)
        status: verdict.Status = "failed" if lost else "broken"
        entries.append(Entry(label=module, name=module, status=status, reason=f"cannot be imported: {why}"))
    known = {case.label for case in suites["head"].cases()}
    for case in suites["base"].cases(options.patterns):
        # Benchmarks of a module that head cannot import are covered by the module's entry.
        if case.label not in known and not any(_is_of(case.label, module) for module in broken):
            reason = "base offers it and head does not, from the same benchmark files"
            entries.append(Entry(label=case.label, name=case.benchmark.name, status="missing", reason=reason))
    return entries


def _is_of(name: str, module: str) -> bool:
    """Whether a benchmark is of a module: asv joins them by a dot, pytest by colons."""
    return name.startswith((f"{module}.", f"{module}::"))


def failed_by_change(
    entries: Sequence[Entry], before: Suite | None, now: Suite, trees: Mapping[SideName, Path]
) -> list[Entry]:
    """Return the entries; a benchmark that fails on both sides, and whose own code head changed, failed on head.

    Both sides run head's files: what they show of base is how head's benchmark does there.

    Args:
        entries: Of the measured benchmarks.
        before: Base's own suite.
        now: Head's.
        trees: Both checkouts, for tests: pytest gives them no version.
    """
    if before is None:
        return list(entries)
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


def removed(before: Suite | None, suites: Mapping[SideName, Suite], options: Options) -> list[Entry]:
    """Return entries for benchmarks of base's own suite that head's suite no longer has."""
    if before is None:
        return []
    # Benchmarks that base still discovers in head's files are missing on head (`lost_modules`), not removed.
    known = {benchmark.name for suite in suites.values() for benchmark in suite.benchmarks}
    lost = {case.benchmark.name for case in before.cases(options.patterns)} - known
    lost = {name for name in lost if not any(_is_of(name, module) for module in suites["head"].broken)}
    return [Entry(label=n, name=n, status="removed", reason="head's suite no longer has it") for n in sorted(lost)]


def idle_patterns(suites: Iterable[Suite | None], options: Options) -> list[str]:
    """Return the patterns that match nothing in any of the suites, which are probably typos.

    A module that cannot be imported counts by its name, since its benchmarks are unknown.
    """
    labels = [label for suite in suites if suite for label in (*(case.label for case in suite.cases()), *suite.broken)]
    return [p for p in options.patterns if not any(re.search(p, label) for label in labels)]


def idle_acceptances(suites: Iterable[Suite | None], waivers: Iterable[Waiver]) -> list[str]:
    """Return a line for each commit's waiver of no benchmark in any of the suites, with the closest name.

    What a module that cannot be imported offers is unknown, and so is what exact metrics read off.
    """
    known = [suite for suite in suites if suite]
    labels = {case.label: _last(case.benchmark.name) for suite in known for case in suite.cases()}
    broken = {module for suite in known for module in suite.broken}
    lines = []
    for waiver in waivers:
        label = waiver.benchmark
        of_commit = waiver.expires is None and waiver.metric not in verdict.EXACT
        if not of_commit or label in labels or any(_is_of(label, module) for module in broken):
            continue
        line = f"Rocattn-Accept of {waiver.source} names no benchmark here: {label}"
        lasts = difflib.get_close_matches(_last(re.split(r"[(\[]", label)[0]), set(labels.values()), n=_NAMED)
        near = [offered for offered, last in labels.items() if last in lasts]
        closest = difflib.get_close_matches(label, near, n=1, cutoff=0.0)
        lines.append(f"{line}; did you mean {closest[0]}?" if closest else line)
    return lines


def worst_first(entry: Entry) -> tuple[int, bool, float, str, str]:
    """Return a sort key with the worst entry first."""
    return verdict.ORDER.index(entry.status), not entry.suspect, -verdict.badness(entry), entry.label, entry.arch


def result_of(
    context: Context, design: Design, session: SessionResult, entries: Sequence[Entry], problems: Sequence[str]
) -> verdict.GateResult:
    """Assemble the verdict.

    Args:
        context: What was compared; its notes are the verdict's.
        design: What was measured, and how.
        session: The launches, and the decisions about them.
        entries: Every benchmark and exact metric, waivers applied.
        problems: Why the gate fails besides its verdicts.
    """
    listed = set(session.decision.listed)
    entries = sorted((_marked(entry, listed) for entry in entries), key=worst_first)
    limit_s = context.options.max_time_s
    overall, sentence = conclude(
        entries, session.decision.invalid, problems, tolerance=design.policy.tolerance, limit_s=limit_s,
        more=context.not_compared,
    )  # fmt: skip
    return verdict.GateResult(
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
        counts=verdict.counts_of(entries),
        not_compared=list(verdict.coverage_of(entries, context.not_compared).not_compared),
        entries=entries,
    )


def budget_of(design: Design, session: SessionResult, estimate_s: tuple[float, float]) -> verdict.TimeBudget:
    """Return what a run made of its time, and what would decide and measure the rest.

    Args:
        design: What was to be measured, with its limit.
        session: What was.
        estimate_s: As planned, low and high end.
    """
    limit = design.limit
    return verdict.TimeBudget(
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
    """Return in one line what would decide the undecided ones and measure the rest; empty if nothing would."""
    pace, looks = design.pace, design.looks
    cases = {case.label: case for case in design.cases}
    if session.stopped:
        left, rounds = [cases[label] for label in session.unreached], {p.id: p.rounds for p in session.pairs}
        traced = None if design.runs_change is None else design.tracing
        may_run = {case.label for case in traced.most} if traced else set()
        further = [case for case in left if case.label in may_run]
        seconds = pace.whole_s(left, looks, UNDECIDED_SHARE[1], traced, further)
        by_rounds: dict[int, list[Case]] = {}  # together, since those of one module share its import
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
    # Launches that were looked at are not measured on: the planned looks are what keeps false alarms rare.
    seconds = needed * pace.round_s(cases[d.id] for d in more)
    beyond = needed - looks[-1]
    what = f"about {beyond} more round{'' if beyond == 1 else 's'} would decide {len(more)} of the undecided"
    alone = f"about {duration(seconds)} for {'these' if len(more) > 1 else 'it'} alone (--bench)"
    return f"{what}: --rounds {needed}, {alone}"


def _marked(entry: Entry, listed: Collection[str]) -> Entry:
    """Mark an entry that is undecided but likely slower."""
    suspect = entry.status == "inconclusive" and entry.metric not in verdict.EXACT and entry.label in listed
    return msgspec.structs.replace(entry, suspect=True) if suspect else entry


def _again(context: Context) -> str:
    """Return the command that compares the same sides again; `groups.repeat` adds what to measure."""
    return shlex.join([*shlex.split(context.again), *(["--quick"] if context.options.quick else [])])


def _notes(context: Context, session: SessionResult) -> list[str]:
    notes = []
    if any(fact.offline for fact in context.facts.values()):
        notes.append(
            "offline: dependencies are those of the running interpreter on both sides, not the revisions' own locks"
        )
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
