"""``asv publish`` for long histories: the same pages in a fraction of the time. Run as a process of its own.

asv reads every result file three times, computes each file name and each line's data again at every use, and looks for
steps in time that grows with the square of a line. Here what is computed twice is kept, and steps are sought among the
newest commits only. Everything else is asv's own code; the tests compare both programs' pages.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP_POINTS = 400
"""Points of a line, the newest, among which asv looks for steps: its lists of regressions are about those."""


def hasten() -> None:
    """Make this process's asv keep what it computes more than once.

    Raises:
        AttributeError: When this asv is another one than these changes are for.
    """
    from asv import graph, results, util

    util.sanitize_filename = functools.cache(util.sanitize_filename)
    results.Results.load = _loaded_once(results.Results.load)
    graph.mean_na = _mean_na
    graph.Graph.get_data = _computed_once(graph.Graph.get_data)
    _Steps.of_all = staticmethod(graph._compute_graph_steps)  # noqa: SLF001 - the one place where lines can be cut
    graph._compute_graph_steps = newest_steps  # noqa: SLF001 - as above


class _Steps:
    """asv's own step detection of one line."""

    of_all: Any


def newest_steps(data: list[Any], reraise: bool = True) -> Any:
    """Return the steps of a line's newest points."""
    return _Steps.of_all(data[-STEP_POINTS:], reraise)


def _loaded_once(load: Any) -> classmethod[Any, Any, Any]:
    known: dict[str, Any] = {}

    def loaded(_: type, path: str, machine_name: str | None = None) -> Any:
        if path not in known:
            known[path] = load(path, machine_name)
        return known[path]

    return classmethod(loaded)


def _computed_once(get_data: Any) -> Any:
    def data(graph: Any) -> list[Any]:
        known = graph.__dict__.get("_rocattn_data")
        points = len(graph.data_points)
        if known is None or known[0] != points:
            known = graph._rocattn_data = (points, get_data(graph))  # noqa: SLF001 - kept with the graph it is of
        return list(known[1])

    return data


def _mean_na(values: Iterable[float | None]) -> float | None:
    """Return asv's mean: of what is there, None without any."""
    there = [value for value in values if value is not None and value == value]  # noqa: PLR0124 - false for NaN
    return sum(there) / len(there) if there else None


def main() -> None:
    """Publish with the configuration that the command line names; the exit status is asv's."""
    from asv.main import main as asv

    gc.disable()  # millions of small lists, no cycles worth looking for
    with contextlib.suppress(AttributeError):  # another asv than the locked one still publishes, at its own pace
        hasten()
    sys.argv = ["asv", "publish", "--no-pull", "--config", sys.argv[1]]
    asv()


if __name__ == "__main__":
    main()
