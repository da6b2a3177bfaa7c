"""``asv publish`` for long histories, run as a process of its own: CONFIG, and how many points to search for steps.

asv reads each result file three times, recomputes file names and the data of every line at each use, and its step
detection takes time that grows with the square of a line's length. Here results are cached, and only the newest points
are searched for steps. Everything else is asv's own code; a test compares the pages of both programs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def hasten(step_points: int) -> None:
    """Make this process's asv cache what it computes more than once.

    Args:
        step_points: The newest points of a line, in which asv searches for steps.

    Raises:
        AttributeError: When this asv lacks what is replaced here.
    """
    from asv import graph, results, util

    steps_of_all = graph._compute_graph_steps  # noqa: SLF001 - the one place where lines can be cut

    @functools.wraps(steps_of_all)  # asv's worker processes look it up under asv's name
    def newest_steps(data: list[Any], reraise: bool = True) -> Any:
        return steps_of_all(data[-step_points:], reraise)

    util.sanitize_filename = functools.cache(util.sanitize_filename)
    results.Results.load = _loaded_once(results.Results.load)
    graph.mean_na = _mean_na
    graph.Graph.get_data = _computed_once(graph.Graph.get_data)
    graph._compute_graph_steps = newest_steps  # noqa: SLF001 - as above


def _loaded_once(load: Any) -> classmethod[Any, Any, Any]:
    results: dict[str, Any] = {}

    def loaded(_: type, path: str, machine_name: str | None = None) -> Any:
        if path not in results:
            results[path] = load(path, machine_name)
        return results[path]

    return classmethod(loaded)


def _computed_once(get_data: Any) -> Any:
    def data(graph: Any) -> list[Any]:
        cached = graph.__dict__.get("_rocattn_data")
        points = len(graph.data_points)
        if cached is None or cached[0] != points:
            cached = graph._rocattn_data = (points, get_data(graph))  # noqa: SLF001 - lives as long as its graph
        return list(cached[1])

    return data


def _mean_na(values: Iterable[float | None]) -> float | None:
    """Return asv's mean: of the values that are neither None nor NaN; None without any."""
    finite = [value for value in values if value is not None and value == value]  # noqa: PLR0124 - false for NaN
    return sum(finite) / len(finite) if finite else None


def main() -> None:
    """Publish with the configuration that the command line names; the exit status is asv's."""
    from asv.main import main as asv

    gc.disable()  # millions of small lists without cycles
    with contextlib.suppress(AttributeError):  # an asv other than the locked one still publishes, at its own pace
        hasten(int(sys.argv[2]))
    sys.argv = ["asv", "publish", "--no-pull", "--config", sys.argv[1]]
    asv()


if __name__ == "__main__":
    main()
