"""Which benchmarks a run measures, and which given names match none."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rocattn_profiling.asv import launch as asv_launch
from rocattn_profiling.gate.model import CAUSE, EXACT, SideName
from rocattn_profiling.gate.options import Options
from rocattn_profiling.gate.waivers import REMOVED, Waiver
from rocattn_profiling.revisions.asv_config import SuiteError, UnknownNameError

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case, Suite

_NAMED = 3  # benchmarks named in an error


def chosen_cases(suite: Suite, options: Options) -> list[Case]:
    """Return the cases to measure: those that match; in quick mode only the quick classes, if there are any."""
    cases = suite.cases(options.patterns)
    return asv_launch.quick_cases(cases) if options.quick and not options.patterns else cases


def nothing(suites: Mapping[SideName, Suite], options: Options) -> SuiteError:
    """Return the error, in one line, for a run without anything to measure."""
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
    """Return the line for patterns that match no benchmark, with similar names, or else the first few."""
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


def of_module(name: str, module: str) -> bool:
    """Whether a benchmark belongs to a module: asv joins them by a dot, pytest by colons."""
    return name.startswith((f"{module}.", f"{module}::"))


def idle_patterns(suites: Iterable[Suite | None], options: Options) -> list[str]:
    """Return the patterns that match nothing in any suite: probably typos.

    A module that cannot be imported is matched by its name, since its benchmarks are unknown.
    """
    labels = [label for suite in suites if suite for label in (*(case.label for case in suite.cases()), *suite.broken)]
    return [p for p in options.patterns if not any(re.search(p, label) for label in labels)]


def idle_acceptances(suites: Iterable[Suite | None], waivers: Iterable[Waiver]) -> list[str]:
    """Return a line, with the closest name, for each waiver in a commit that names no benchmark of any suite.

    The benchmarks of a module that cannot be imported are unknown, and so are the labels of exact metrics.
    """
    known = [suite for suite in suites if suite]
    labels = {case.label: _last(case.benchmark.name) for suite in known for case in suite.cases()}
    broken = {module for suite in known for module in suite.broken}
    lines = []
    for waiver in waivers:
        label = waiver.benchmark
        of_commit = waiver.expires is None and waiver.metric not in {*EXACT, CAUSE, REMOVED}
        if not of_commit or label in labels or any(of_module(label, module) for module in broken):
            continue
        line = f"Rocattn-Accept of {waiver.source} names no benchmark here: {label}"
        lasts = difflib.get_close_matches(_last(re.split(r"[(\[]", label)[0]), set(labels.values()), n=_NAMED)
        near = [offered for offered, last in labels.items() if last in lasts]
        closest = difflib.get_close_matches(label, near, n=1, cutoff=0.0)
        lines.append(f"{line}; did you mean {closest[0]}?" if closest else line)
    return lines
