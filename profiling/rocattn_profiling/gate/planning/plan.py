"""The plan of a run, before anything is measured: its benchmarks, how long they take, and which call changed code."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.explain.reach import Reach, distances
from rocattn_profiling.gate.planning import pace
from rocattn_profiling.gate.planning.listing import ListedSuites
from rocattn_profiling.gate.planning.pace import how_to_shorten
from rocattn_profiling.gate.planning.select import chosen_cases, idle_acceptances, idle_patterns, nothing
from rocattn_profiling.gate.rule.policy import Policy

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Request

_LIKELY_CALLS = 4
"""Distance, in calls by name, up to which a benchmark likely runs the change: longer paths mostly mix up functions
of the same name."""


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of ``gate run --list``.

    Attributes:
        label: With its parameters.
        seconds: Seconds per launch in earlier runs; None if it was never measured here.
        calls: 1 if it calls changed code itself, by name, 2 if there is one function in between, and so on; None if
            not known.
        reached: Whether such calls were found; None if its source or the changed files do not show it.
    """

    label: str
    seconds: float | None
    calls: int | None
    reached: bool | None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would measure.

    Attributes:
        estimate_s: Seconds of a whole run, low and high end.
        benchmarks: In the order of the suite.
        unknown: Whether some commands were never timed here, so that the estimate has no high end.
    """

    estimate_s: tuple[float, float]
    benchmarks: list[PlannedCase]
    unknown: bool = False


class Plan:
    """The plan of one run.

    Args:
        context: Both sides, built.
        suites: Their benchmarks.
        cases: The cases to measure.
        request: How a launch samples.
        policy: When to look.
        reach: Decides which benchmarks run the change; None if all are measured.
    """

    def __init__(
        self,
        context: Context,
        suites: ListedSuites,
        cases: Sequence[Case],
        request: Request,
        policy: Policy,
        reach: Reach | None = None,
    ) -> None:
        self.cases = cases
        self.record = pace.record_path(context.repo, context.suite, quick=context.options.quick)
        head = suites.sides["head"]
        self.pace = pace.Pace(pace.recorded(self.record), head.imports, request.budget_ns / 1e9, head.shared)
        commands = [case for case in cases if case.benchmark.name in context.options.commands]
        self.unknown = any(not case.benchmark.better and case.label not in self.pace.known for case in commands)
        self._distances: dict[str, int | None] | None = None
        if context.trees:
            tree, shared = context.trees["head"].absolute(), context.launchers["head"].shared
            self._distances = distances(context.changes.values(), tree, shared, cases)
        self.tracing = None if reach is None else self._tracing(reach)
        self.estimate_s = self.pace.estimate_s(cases, policy.looks, traced=self.tracing)

    def _tracing(self, reach: Reach) -> pace.Tracing:
        """Return what traced calls are likely to show."""
        if reach.nothing_differs:
            return pace.Tracing([], [], calls=False)
        if self._distances is None:
            return pace.Tracing([], self.cases, calls=True)
        most = [case for case in self.cases if self._distances.get(case.label, 0) is not None]
        near = [case for case in most if self.steps.get(case.label, math.inf) <= _LIKELY_CALLS]
        return pace.Tracing(near, most, calls=True)

    @property
    def steps(self) -> dict[str, int]:
        """Label -> calls between the benchmark and the change; without benchmarks that do not reach it."""
        return {label: far for label, far in (self._distances or {}).items() if far is not None}

    def line(self, max_time_s: float) -> str:
        """Return the plan in one line."""
        count = len(self.cases)
        line = f"{count} benchmark{'' if count == 1 else 's'}, {pace.span(self.estimate_s, unknown=self.unknown)}"
        if self._distances is not None and len(self.steps) < count == len(self._distances):
            calling = len(self.steps)
            who = f"{calling or 'none'} of them appear{'' if calling > 1 else 's'}"
            line += f"; {who if count > 1 else 'it does not appear'} to call changed code"
        return line + how_to_shorten(max_time_s, math.inf if self.unknown else self.estimate_s[1])

    def listed(self) -> RunPlan:
        """Return what ``--list`` prints."""
        known = self._distances
        return RunPlan(
            estimate_s=self.estimate_s,
            unknown=self.unknown,
            benchmarks=[
                PlannedCase(
                    label=case.label,
                    seconds=self.pace.known.get(case.label),
                    calls=self.steps.get(case.label),
                    reached=None if known is None or case.label not in known else known[case.label] is not None,
                )
                for case in self.cases
            ],
        )


def chosen(suites: ListedSuites, context: Context, *, needed: bool = True) -> list[Case]:
    """Return the cases to measure; note requested names that do not exist.

    Args:
        suites: The benchmarks of both sides.
        context: Both sides.
        needed: Whether having no case is an error.

    Raises:
        UnknownNameError: No benchmark matches the patterns.
        SuiteError: There is no benchmark at all.
    """
    cases = chosen_cases(suites.sides["head"], context.options)
    if needed and not cases:
        raise nothing(suites.sides, context.options)
    offered = [*suites.sides.values(), suites.before]
    for pattern in idle_patterns(offered, context.options):
        option = f"--bench {shlex.quote(pattern)}"
        context.leave_out(
            option, Reason("unmatched", "it matches no benchmark"), f"{option} matches no benchmark", needed=True
        )
    for line in idle_acceptances(offered, context.waivers.rows):
        context.note(line)
    return cases
