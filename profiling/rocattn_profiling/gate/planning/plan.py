"""The plan of a run before anything is measured: its benchmarks, how long they take, and which the change can reach."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn_profiling.base.console import Step, duration
from rocattn_profiling.gate import result
from rocattn_profiling.gate.explain.reach import distances
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.planning import pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.asv.launch import Case, Request, Suite
    from rocattn_profiling.gate.measure import SideName
    from rocattn_profiling.gate.rule.policy import Policy
    from rocattn_profiling.gate.sides import Context

_SLOW_S = 10.0  # of listing a suite, after which the number of its functions is said
_FUNCTION = re.compile(rb"^\s*def (?:time|timeraw|mem|peakmem|track)_\w+", re.MULTILINE)


class ListedSuites(NamedTuple):
    """Head's benchmark files in both environments, and base's own files; None where those are the same."""

    sides: dict[SideName, Suite]
    before: Suite | None


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of ``gate run --list``.

    Attributes:
        label: With its parameters.
        seconds: Of a launch in earlier runs; None if it was never measured here.
        calls: How many calls away the change is, by name; None if it is out of reach.
        reached: Whether the change can reach it; None where the changed files do not show it.
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
    """

    estimate_s: tuple[float, float]
    benchmarks: list[PlannedCase]


class Plan:
    """The plan of one run.

    Args:
        context: Both sides, built.
        suites: Their benchmarks.
        cases: Those to measure.
        request: How a launch samples.
        policy: When to look.
    """

    def __init__(
        self, context: Context, suites: ListedSuites, cases: Sequence[Case], request: Request, policy: Policy
    ) -> None:
        self.cases, self._policy = cases, policy
        self.record = pace.record_path(context.repo, context.suite, quick=context.options.quick)
        imports = suites.sides["head"].imports
        self.pace = pace.Pace(pace.recorded(self.record), imports, request.budget_ns / 1e9)
        self.estimate_s = self.pace.estimate_s(cases, policy.looks)
        self._distances: dict[str, int | None] | None = None
        shared = context.launchers["head"].shared
        if context.trees and len(shared) == 1 and shared[0].is_dir():  # one asv suite: tests and commands have no names
            self._distances = distances(context.changes.values(), context.trees["head"], shared[0], cases)

    @property
    def steps(self) -> dict[str, int]:
        """Label -> calls between the benchmark and the change; without those that it does not reach."""
        return {label: far for label, far in (self._distances or {}).items() if far is not None}

    def line(self, max_time_s: float) -> str:
        """Return the plan in one line."""
        count = len(self.cases)
        line = f"{count} benchmark{'' if count == 1 else 's'}, {pace.span(self.estimate_s)}"
        if self._distances is not None:
            line += f"; the change can reach {len(self.steps)} of them"
        if not max_time_s:
            return f"{line}; --max-time or --bench shorten it"
        return f"{line}; --max-time ends it after {duration(max_time_s)}"

    def listed(self) -> RunPlan:
        """Return what ``--list`` prints."""
        known = self._distances
        return RunPlan(
            estimate_s=self.estimate_s,
            benchmarks=[
                PlannedCase(
                    label=case.label,
                    seconds=self.pace.known.get(case.label),
                    calls=self.steps.get(case.label),
                    reached=None if known is None else known[case.label] is not None,
                )
                for case in self.cases
            ],
        )


def listed_suites(context: Context, on_step: Callable[[Step], None]) -> ListedSuites:
    """List the benchmarks of both sides at the same time; nothing is timed yet.

    Raises:
        SuiteError: A folder as a whole cannot be listed.
    """
    on_step(Step(done=0, total=0, what="listing the benchmarks"))
    answers: dict[str, Suite | None] = {}
    errors: list[Exception] = []

    def find(name: str, ask: Callable[[], Suite | None]) -> None:
        try:
            answers[name] = ask()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    questions: dict[str, Callable[[], Suite | None]] = {side: context.launchers[side].discover for side in SIDES}
    # Daemons: an interrupted run does not wait for them, and their processes end with this one.
    questions[""] = context.list_base
    threads = [threading.Thread(target=find, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    threads[0].join(_SLOW_S)
    if threads[0].is_alive():
        context.say(
            f"{_functions(context.launchers['head'].shared)}; listing their parameters takes as long as importing them"
        )
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    sides = {side: suite for side in SIDES if (suite := answers[side]) is not None}
    return ListedSuites(sides, answers[""])


def _functions(suites: Sequence[Path]) -> str:
    """Return how many functions of some suites look like benchmarks."""
    count = sum(len(_FUNCTION.findall(file.read_bytes())) for suite in suites for file in suite.rglob("*.py"))
    return f"about {count} benchmark function{'' if count == 1 else 's'}"


def chosen(suites: ListedSuites, context: Context) -> list[Case]:
    """Return the cases to measure; note what was asked for and is not there."""
    for line in result.idle_patterns([*suites.sides.values(), suites.before], context.options):
        context.note(line)
    return result.chosen_cases(suites.sides["head"], context.options)
