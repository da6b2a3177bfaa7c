"""Series: the history of one benchmark as points with intervals, read from asv's results."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
import numpy as np

from rocattn_profiling.base.markup import plain

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
PLACE_KEYS = ("cpu", "num_cpu", "os", "gpu", "gfx", "driver", "compiler")
"""Keys that describe a benchmark's machine and software; levels are not compared across a change in any of them."""

_RATE = re.compile(
    r"(?:/ ?(?:[mun\u00b5\u03bc]?s|secs?|seconds?|min(?:ute)?s?|h(?:ours?)?|cycles?|clk)|flops"
    r"|\b[kmgtpe]?i?(?:b|bit|f|i|io|o|q|r|t)ps)$|\bper (?:(?:milli|micro|nano)?sec(?:ond)?|minute|hour|cycle)\b"
)
_COLUMNS = frozenset({"result", "params", "version", "started_at", "duration", "samples", "profile"})
LARGEST = 1e300
"""Larger numbers are treated as missing: sums and spans of a few of them would be infinite."""
_END_MS = 253_402_300_800_000  # end of the year 9999, the last one in Python's dates


class Point(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one commit.

    Attributes:
        sha, date_ms: The commit; milliseconds since 1970.
        value: In the series' unit (in asv, the median of the samples); NaN is n/a, None is failed.
        low, high: Confidence interval of the median, at least 95 % (within the run); None with too few samples.
    """

    sha: str
    date_ms: int
    value: float | None
    low: float | None = None
    high: float | None = None


class Points(Sequence[Point]):
    """The points of a series, in columns: a long history has millions, which would take a gigabyte as objects.

    Attributes:
        shas, dates_ms: The commits; series measured together share the same lists.
        values: float64; infinity for failed, NaN for n/a.
        lows, highs: float64; NaN without an interval.
    """

    __slots__ = ("dates_ms", "highs", "lows", "shas", "values")

    def __init__(
        self, shas: list[str], dates_ms: list[int], values: NDArray[np.float64], lows: NDArray[np.float64],
        highs: NDArray[np.float64],
    ) -> None:  # fmt: skip
        self.shas, self.dates_ms, self.values, self.lows, self.highs = shas, dates_ms, values, lows, highs

    @classmethod
    def of(cls, points: Iterable[Point]) -> Points:
        """Convert points to columns."""
        rows = [(p.sha, p.date_ms, _encoded(p.value), p.low, p.high) for p in points]
        shas, dates_ms, *numbers = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [], [])
        return cls(shas, dates_ms, *(np.array(column, dtype=float) for column in numbers))

    def __len__(self) -> int:
        return len(self.shas)

    @overload
    def __getitem__(self, at: int) -> Point: ...
    @overload
    def __getitem__(self, at: slice) -> Points: ...
    def __getitem__(self, at: int | slice) -> Point | Points:
        if isinstance(at, slice):
            return Points(self.shas[at], self.dates_ms[at], self.values[at], self.lows[at], self.highs[at])
        low, high = self.lows[at].item(), self.highs[at].item()
        return _point(self.shas[at], self.dates_ms[at], self.values[at].item(), low, high)

    def positive(self) -> NDArray[np.bool_]:
        """Return a mask of the values that are usable in ratios."""
        return (self.values > 0) & (self.values < math.inf)

    def __iter__(self) -> Iterator[Point]:
        numbers = self.values.tolist(), self.lows.tolist(), self.highs.tolist()
        return map(_point, self.shas, self.dates_ms, *numbers)


def _encoded(value: float | None) -> float:
    return math.inf if value is None else value


def _point(sha: str, date_ms: int, value: float, low: float, high: float) -> Point:
    known, between = None if value == math.inf else value, not math.isnan(low)
    return Point(sha=sha, date_ms=date_ms, value=known, low=low if between else None, high=high if between else None)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one parameter combination of one benchmark on one machine; points are in commit-date order.

    ``params`` maps parameter names to readable values, ``arguments`` to asv's (their ``repr``); ``unit`` is "seconds",
    "bytes" or a suite's own; ``places`` maps a commit to the `PLACE_KEYS` in its result file (one mapping for all
    series of a machine and environment). ``pretty_name`` is the suite's title.
    """

    benchmark: str
    params: dict[str, str]
    arguments: tuple[str, ...] = ()
    unit: str
    machine: str
    env_name: str
    points: Points
    places: dict[str, dict[str, str]] = {}
    pretty_name: str = ""

    def __post_init__(self) -> None:
        """Accept any sequence of points."""
        if not isinstance(self.points, Points):
            msgspec.structs.force_setattr(self, "points", Points.of(self.points))

    @property
    def label(self) -> str:
        """The benchmark with its parameters, as in the gate."""
        return f"{self.benchmark}({', '.join(self.arguments)})" if self.arguments else self.benchmark


def interval(samples: list[float], alpha: float = 0.05) -> tuple[float | None, float | None]:
    """Return a confidence interval (>= 1 - alpha) of the median from order statistics; (None, None) for few samples."""
    if len(samples) < 2:
        return None, None
    from asv_runner.statistics import quantile_ci

    _, (low, high) = quantile_ci(samples, 0.5, alpha)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)


class Ordered:
    """Sorts points, once for all series with the same commits, which then share the lists of commits.

    Args:
        place: Commit -> its place; None sorts points by date.
    """

    def __init__(self, place: Mapping[str, int] | None = None) -> None:
        self._place = place
        self._known: dict[tuple[int, ...], tuple[list[str], list[int], list[int], Sequence[Points]]] = {}

    def order(self, shas: Sequence[str], dates_ms: Sequence[int]) -> list[int]:
        """Return the indices that sort the commits."""
        place = self._place
        return sorted(range(len(shas)), key=lambda at: (place[shas[at]] if place else 0, dates_ms[at], shas[at]))

    def joined(self, parts: Sequence[Points]) -> Points:
        """Return the sorted points of several results."""
        if len(parts) == 1:
            return parts[0]
        key = tuple(id(part.shas) for part in parts)
        if key not in self._known:
            shas = [sha for part in parts for sha in part.shas]
            dates_ms = [date_ms for part in parts for date_ms in part.dates_ms]
            order = self.order(shas, dates_ms)
            # Keep the parts alive, too, because the key has their ids.
            self._known[key] = [shas[at] for at in order], [dates_ms[at] for at in order], order, parts
        shas, dates_ms, order, _ = self._known[key]
        columns = ([part.values for part in parts], [part.lows for part in parts], [part.highs for part in parts])
        return Points(shas, dates_ms, *(np.concatenate(column)[order] for column in columns))


def once_for_commits(make: Callable[[Points], T]) -> Callable[[Points], T]:
    """Return a cached ``make``, whose result depends only on the commits, for series that share the list of commits."""
    made: dict[int, T] = {}

    def of(points: Points) -> T:
        if id(points.shas) not in made:
            made[id(points.shas)] = make(points)
        return made[id(points.shas)]

    return of


class CommitPlaces(dict[str, int]):
    """The places of commits, from 0, and of points through their commits."""

    def __init__(self, shas: Iterable[str]) -> None:
        super().__init__((sha, at) for at, sha in enumerate(shas))
        self.of = once_for_commits(self._of)

    def _of(self, points: Points) -> NDArray[np.intp]:
        return np.array([self.get(sha, -1) for sha in points.shas], dtype=np.intp)

    def along(self, points: Points) -> NDArray[np.float64]:
        """Return the values by place of the commit; NaN where there is none."""
        row, at = np.full(len(self) + 1, math.nan), self.of(points)  # the last row is for points without a place
        row[at] = np.where(np.isfinite(points.values), points.values, math.nan)
        return row[:-1]


def in_order(series: Iterable[Series], place: Mapping[str, int]) -> list[Series]:
    """Return series with their points in the order of ``place``, without commits that are not in it."""

    def chosen(own: Points) -> tuple[list[str], list[int], NDArray[np.intp]]:
        at = sorted((i for i, sha in enumerate(own.shas) if sha in place), key=lambda i: place[own.shas[i]])
        return [own.shas[i] for i in at], [own.dates_ms[i] for i in at], np.array(at, dtype=np.intp)

    of_line, ordered = once_for_commits(chosen), []
    for line in series:
        own = line.points
        shas, dates_ms, kept = of_line(own)
        if shas == own.shas:  # nothing to copy
            ordered.append(line)
            continue
        points = Points(shas, dates_ms, own.values[kept], own.lows[kept], own.highs[kept])
        ordered.append(msgspec.structs.replace(line, points=points))
    return ordered


def date_of(stated: object) -> int:
    """Return the date in a result file, in milliseconds since 1970; ValueError if it is invalid."""
    if not isinstance(stated, int | float) or not 0 <= stated < _END_MS:
        raise ValueError(f"its date is {plain(str(stated), 40)}, not a time in milliseconds since 1970")
    return int(stated)


def commits_of(lines: Iterable[Points]) -> dict[str, int]:
    """Return the commits that have points, with their dates in milliseconds since 1970."""
    shared = {id(points.shas): points for points in lines}
    return {sha: date for points in shared.values() for sha, date in zip(points.shas, points.dates_ms, strict=True)}


class ResultFile:
    """The content of an asv result file, version 2. asv's own class would create a dictionary for each result.

    Attributes:
        params, requirements, commit_hash, date, env_name: As in the file.
        results: A row per benchmark, with values in the order of the file's columns; the last ones may be missing.

    Raises:
        KeyError, TypeError, AttributeError: When asv would not accept it.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.params, self.requirements = data["params"], data["requirements"]
        self.commit_hash, self.date, self.env_name = data["commit_hash"], data["date"], data["env_name"]
        self.results: Mapping[str, list[Any]] = data["results"]
        self._at = {key: at for at, key in enumerate(data["result_columns"])}
        _ = self.params["machine"], data["python"]
        if unknown := [key for key in self._at if key not in _COLUMNS and not key.startswith("stats_")]:
            raise KeyError(unknown[0])

    def column(self, name: str, key: str) -> Any:
        """Return a benchmark's value in one column; None if it is missing."""
        row, at = self.results[name], self._at.get(key)
        return None if at is None or at >= len(row) else row[at]


class ResultGrid:
    """Results of one benchmark for the same parameter values, one row per result file, to be made into series."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._shas: list[str] = []
        self._dates_ms: list[int] = []
        self._numbers: tuple[list[bytes], ...] = [], [], []  # cheaper to send and join than arrays

    def add(self, file: ResultFile, values: Iterable[NDArray[np.float64]]) -> None:
        """Add a result file's numbers of the benchmark, from `numbers_of`."""
        for column, own in zip(self._numbers, values, strict=True):
            column.append(own.tobytes())
        self._shas.append(file.commit_hash)
        self._dates_ms.append(int(file.date))

    def extend(self, later: ResultGrid) -> None:
        """Add the results from other files."""
        self._shas += later._shas
        self._dates_ms += later._dates_ms
        for column, numbers in zip(self._numbers, later._numbers, strict=True):
            column.extend(numbers)

    def commits(self) -> Iterator[tuple[str, int]]:
        """Return the commits with their dates in milliseconds since 1970."""
        return zip(self._shas, self._dates_ms, strict=True)

    def columns(self, ordered: Ordered) -> list[Points]:
        """Return the sorted points of each combination."""
        order = ordered.order(self._shas, self._dates_ms)
        shas, dates_ms = [self._shas[at] for at in order], [self._dates_ms[at] for at in order]
        values, lows, highs = (
            np.frombuffer(b"".join(column)).reshape(-1, self._width)[order].T.copy() for column in self._numbers
        )
        return [Points(shas, dates_ms, values[at], lows[at], highs[at]) for at in range(self._width)]


def numbers_of(
    file: ResultFile, widths: Mapping[str, int]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the values of each benchmark with the ends of their intervals, as in `Points`.

    Args:
        file: The results.
        widths: Number of results of each benchmark.

    Raises:
        ValueError, TypeError: When a result is not a number.
    """
    found, lows, highs, samples = (
        [value for name, width in widths.items() for value in _whole(file.column(name, key), width)]
        for key in ("result", "stats_ci_99_a", "stats_ci_99_b", "samples")
    )
    columns = _numbers(found), *_intervals(lows, highs, samples)
    for start, width in zip(itertools.accumulate(widths.values(), initial=0), widths.values(), strict=False):
        values, low, high = (column[start : start + width] for column in columns)
        yield values, low, high


def _whole(column: list[Any] | None, width: int) -> list[Any]:
    """Return a column with one value per combination; missing ones are None, which means failed in asv."""
    if column is None:
        return [None] * width
    if not isinstance(column, list):
        raise TypeError(f"{type(column).__name__} instead of a list")
    return column if len(column) == width else [*column, *[None] * width][:width]


def _kinds(values: Sequence[Any]) -> set[type]:
    """Return the types of numbers and None; ValueError for anything else."""
    kinds = {*map(type, values)}
    for kind in kinds - {float, int, type(None)}:
        raise ValueError(f"{kind.__name__} instead of a number")
    return kinds


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return results as in `Points`, NaN for absurdly large ones; ValueError for anything but a number."""
    kinds = _kinds(values)
    if int in kinds:  # may be of any size
        values = [None if v is None else float(v) if -LARGEST <= v <= LARGEST else math.nan for v in values]
    numbers = np.array(values, dtype=float)  # None becomes NaN
    numbers[np.abs(numbers) > LARGEST] = math.nan
    if type(None) in kinds:
        numbers[[v is None for v in values]] = math.inf
    return numbers


def _intervals(
    lows: Sequence[Any], highs: Sequence[Any], samples: Sequence[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the intervals of results, from their samples or else from asv; NaN where there is none."""
    low, high = _numbers(lows), _numbers(highs)
    unknown = ~(np.isfinite(low) & np.isfinite(high))
    low[unknown] = high[unknown] = math.nan
    for at, own in enumerate(samples if any(samples) else ()):
        if own:
            _kinds(own)
            ends = interval([value for value in own if value is not None and -LARGEST <= value <= LARGEST])
            if None not in ends:
                low[at], high[at] = ends
    return low, high


def place_of(file: ResultFile) -> dict[str, str]:
    """Return the `PLACE_KEYS` of a result file; files from older tools lack some."""
    known = {**file.params, **(file.requirements if isinstance(file.requirements, dict) else {})}
    return {key: str(known[key]) for key in PLACE_KEYS if known.get(key)}


def readable(value: str) -> str:
    """Return an asv parameter value (a ``repr``) without quotes."""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" else value


def guess_unit(name: str) -> str:
    """Return the unit implied by the name of an asv method."""
    method = name.rsplit(".", 1)[-1]
    return "bytes" if method.startswith(("mem_", "peakmem_")) else "seconds" if method.startswith("time") else "unit"


def is_rate(unit: str) -> bool:
    """Return whether a unit is a rate, for which a drop is a regression; for all others smaller is better, as in asv.

    ``GB/s``, ``ops/ms``, ``GBps``, ``TFLOPS``, ``fps``, ``tokens per second`` are rates; ``ms/step``, ``steps``, ``ps``
    are not.
    """
    return _RATE.search(unit.strip().lower()) is not None


class PassedOver:
    """Unreadable files, reported in one line per reason: an old asv's store has thousands of them."""

    def __init__(self) -> None:
        self._paths: dict[str, list[Path]] = {}

    def add(self, path: Path, error: Exception) -> None:
        """Add a file; its path is removed from the reason."""
        why = plain(str(error).replace(str(path.absolute()), "it"))
        self._paths.setdefault(why, []).append(path)

    def extend(self, later: PassedOver) -> None:
        """Add other files."""
        for why, paths in later._paths.items():
            self._paths.setdefault(why, []).extend(paths)

    def notes(self) -> list[str]:
        """Return one line per reason."""
        return [
            f"passed over {paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''}: {why}"
            for why, paths in self._paths.items()
        ]
