"""Series: the history of one benchmark, as points with intervals, read from asv's result objects."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from asv.results import Results


PLACE_KEYS = ("cpu", "num_cpu", "os", "gpu", "gfx", "driver", "compiler")
"""Keys of the machine and software that a benchmark ran on; levels are not compared across a change of one."""

_RATE = re.compile(r"(?:/ ?s(?:ecs?|econds?)?|flops|\b[kmgtpe]?i?(?:b|bit|f|i|io|o|q|r|t)ps)$|\bper sec(?:ond)?\b")
LARGEST = 1e300
"""Larger numbers are none: sums and spans of a few of them would be infinite."""


class Point(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one commit.

    Attributes:
        sha, date_ms: The commit; milliseconds since 1970.
        value: In the series' unit (asv's: the median of the samples); NaN is n/a, None failed.
        low, high: Interval of the median with at least 95 % coverage (within the run); None without enough samples.
    """

    sha: str
    date_ms: int
    value: float | None
    low: float | None = None
    high: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one parameter combination of one benchmark on one machine; points are in commit-date order.

    ``params`` maps parameter names to readable values, ``arguments`` are the same as asv has them (their ``repr``);
    ``unit`` is "seconds", "bytes" or a suite's own; ``places`` maps a commit to the facts of `PLACE_KEYS` that its
    result file knows (one mapping for all series of a machine and environment). ``pretty_name`` is the suite's title.
    """

    benchmark: str
    params: dict[str, str]
    arguments: tuple[str, ...] = ()
    unit: str
    machine: str
    env_name: str
    points: list[Point]
    places: dict[str, dict[str, str]] = {}
    pretty_name: str = ""

    @property
    def label(self) -> str:
        """The benchmark with its parameters, as the gate names it."""
        return f"{self.benchmark}({', '.join(self.arguments)})" if self.arguments else self.benchmark


def interval(samples: list[float], alpha: float = 0.05) -> tuple[float | None, float | None]:
    """Return an interval of the median from order statistics, coverage >= 1 - alpha; (None, None) for few samples."""
    if len(samples) < 2:
        return None, None
    from asv_runner.statistics import quantile_ci

    _, (low, high) = quantile_ci(samples, 0.5, alpha)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)


def points_of(results: Results, name: str, names: list[str]) -> Iterator[tuple[tuple[tuple[str, str], ...], Point]]:
    """Go through one benchmark of a result file: parameters as asv has them and the point of each combination."""
    own = results.get_result_params(name) or []
    values = results.get_result_value(name, own)
    samples = results.get_result_samples(name, own)
    stats = results.get_result_stats(name, own)
    names = names if len(names) == len(own) else [f"param{i + 1}" for i in range(len(own))]
    for at, combination in enumerate(itertools.product(*own)):
        value = _number(values[at])
        taken = [s for s in map(_finite, samples[at] or []) if s is not None]
        low, high = interval(taken)
        if low is None and stats[at]:
            low, high = _finite(stats[at].get("ci_99_a")), _finite(stats[at].get("ci_99_b"))
            low, high = (None, None) if low is None or high is None else (low, high)
        point = Point(sha=results.commit_hash, date_ms=int(results.date), value=value, low=low, high=high)
        yield tuple(zip(names, combination, strict=True)), point


def place_of(results: Results) -> dict[str, str]:
    """Return the `PLACE_KEYS` of a result file; older files lack those that only newer tools write."""
    required = results._requirements  # noqa: SLF001 - asv reads and writes them, and gives no other way to them
    known = {**results.params, **(required if isinstance(required, dict) else {})}
    return {key: str(known[key]) for key in PLACE_KEYS if known.get(key)}


def readable(value: str) -> str:
    """Return an asv parameter value (a ``repr``) as people read it: without quotes."""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" else value


def _number(value: object) -> float | None:
    """Return a result as it is, NaN for an absurdly large one, None for None; ValueError for anything but a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{type(value).__name__} in place of a number")  # noqa: TRY004 - malformed data, not a caller's type
    return math.nan if beyond_measure(value) else float(value)


def beyond_measure(value: float) -> bool:
    """Whether a number is infinite, or too large for a float or for arithmetic: a ``track_`` may return any."""
    return abs(value) > LARGEST


def _finite(value: object) -> float | None:
    number = _number(value)
    return None if number is None or math.isnan(number) else number


def guess_unit(name: str) -> str:
    """Return the unit that a method name of asv implies."""
    method = name.rsplit(".", 1)[-1]
    return "bytes" if method.startswith(("mem_", "peakmem_")) else "seconds" if method.startswith("time") else "unit"


def is_rate(unit: str) -> bool:
    """Whether values of a unit are rates, whose fall is the regression; all others are better when smaller, as in asv.

    ``GB/s``, ``GBps``, ``TFLOPS``, ``fps`` and ``tokens per second`` are; ``ms/step``, ``steps`` and ``ps`` are none.
    """
    return _RATE.search(unit.strip().lower()) is not None


class PassedOver:
    """Unreadable files, reported in one line per reason: a store of an old asv holds thousands of them."""

    def __init__(self) -> None:
        self._paths: dict[str, list[Path]] = {}

    def add(self, path: Path, error: Exception) -> None:
        """Remember a file; its path is removed from the reason."""
        why = " ".join(str(error).split()).replace(str(path.absolute()), "it")
        self._paths.setdefault(why, []).append(path)

    def notes(self) -> list[str]:
        """Return the lines."""
        return [
            f"passed over {paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''}: {why}"
            for why, paths in self._paths.items()
        ]
