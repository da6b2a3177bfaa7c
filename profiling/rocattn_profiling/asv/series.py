"""Series: the history of one benchmark, as points with intervals, read from asv's result objects."""

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
"""Keys of the machine and software that a benchmark ran on; levels are not compared across a change of one."""

_RATE = re.compile(
    r"(?:/ ?(?:[mun\u00b5\u03bc]?s|secs?|seconds?|min(?:ute)?s?|h(?:ours?)?|cycles?|clk)|flops"
    r"|\b[kmgtpe]?i?(?:b|bit|f|i|io|o|q|r|t)ps)$|\bper (?:(?:milli|micro|nano)?sec(?:ond)?|minute|hour|cycle)\b"
)
_COLUMNS = frozenset({"result", "params", "version", "started_at", "duration", "samples", "profile"})
LARGEST = 1e300
"""Larger numbers are none: sums and spans of a few of them would be infinite."""
_END_MS = 253_402_300_800_000  # of the year 9999, the last that Python's dates have


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


class Points(Sequence[Point]):
    """The points of a series, in columns: a long history has millions, which as objects fill a gigabyte.

    Attributes:
        shas, dates_ms: The commits; series that were measured together have the same lists.
        values: float64; infinite where the benchmark failed, NaN for n/a.
        lows, highs: float64; NaN where there is no interval.
    """

    __slots__ = ("dates_ms", "highs", "lows", "shas", "values")

    def __init__(
        self, shas: list[str], dates_ms: list[int], values: NDArray[np.float64], lows: NDArray[np.float64],
        highs: NDArray[np.float64],
    ) -> None:  # fmt: skip
        self.shas, self.dates_ms, self.values, self.lows, self.highs = shas, dates_ms, values, lows, highs

    @classmethod
    def of(cls, points: Iterable[Point]) -> Points:
        """Return points in columns."""
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
        """Return which values ratios can be taken of."""
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
    points: Points
    places: dict[str, dict[str, str]] = {}
    pretty_name: str = ""

    def __post_init__(self) -> None:
        """Take any sequence of points."""
        if not isinstance(self.points, Points):
            msgspec.structs.force_setattr(self, "points", Points.of(self.points))

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


class Ordered:
    """Orders points, once for all series with the same commits, which then share the lists of these.

    Args:
        place: Of each commit; points are in the order of their dates if None.
    """

    def __init__(self, place: Mapping[str, int] | None = None) -> None:
        self._place = place
        self._known: dict[tuple[int, ...], tuple[list[str], list[int], list[int], Sequence[Points]]] = {}

    def order(self, shas: Sequence[str], dates_ms: Sequence[int]) -> list[int]:
        """Return the indices of commits in order."""
        place = self._place
        return sorted(range(len(shas)), key=lambda at: (place[shas[at]] if place else 0, dates_ms[at], shas[at]))

    def joined(self, parts: Sequence[Points]) -> Points:
        """Return the points of several results, each in order, as one."""
        if len(parts) == 1:
            return parts[0]
        key = tuple(id(part.shas) for part in parts)
        if key not in self._known:
            shas = [sha for part in parts for sha in part.shas]
            dates_ms = [date_ms for part in parts for date_ms in part.dates_ms]
            order = self.order(shas, dates_ms)
            # The parts, too: what they are known by must stay theirs.
            self._known[key] = [shas[at] for at in order], [dates_ms[at] for at in order], order, parts
        shas, dates_ms, order, _ = self._known[key]
        columns = ([part.values for part in parts], [part.lows for part in parts], [part.highs for part in parts])
        return Points(shas, dates_ms, *(np.concatenate(column)[order] for column in columns))


def once_for_commits(make: Callable[[Points], T]) -> Callable[[Points], T]:
    """Return a function that makes what depends on commits alone once for all series with the same list of them."""
    made: dict[int, T] = {}

    def of(points: Points) -> T:
        if id(points.shas) not in made:
            made[id(points.shas)] = make(points)
        return made[id(points.shas)]

    return of


class CommitPlaces(dict[str, int]):
    """The places of commits, from 0, and of points by their commits."""

    def __init__(self, shas: Iterable[str]) -> None:
        super().__init__((sha, at) for at, sha in enumerate(shas))
        self.of = once_for_commits(self._of)

    def _of(self, points: Points) -> NDArray[np.intp]:
        return np.array([self.get(sha, -1) for sha in points.shas], dtype=np.intp)

    def along(self, points: Points) -> NDArray[np.float64]:
        """Return the values by the places of commits; NaN where there is none."""
        row, at = np.full(len(self) + 1, math.nan), self.of(points)  # the last for those without a place
        row[at] = np.where(np.isfinite(points.values), points.values, math.nan)
        return row[:-1]


def in_order(series: Iterable[Series], place: Mapping[str, int]) -> list[Series]:
    """Return series with their points in the order of ``place``; the commits it lacks are left out."""

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
    """Return the date that a result file states, in milliseconds since 1970; ValueError for what is none."""
    if not isinstance(stated, int | float) or not 0 <= stated < _END_MS:
        raise ValueError(f"its date is {plain(str(stated), 40)}, not a time in milliseconds since 1970")
    return int(stated)


def commits_of(lines: Iterable[Points]) -> dict[str, int]:
    """Return the commits that have points, with their dates in milliseconds since 1970."""
    shared = {id(points.shas): points for points in lines}
    return {sha: date for points in shared.values() for sha, date in zip(points.shas, points.dates_ms, strict=True)}


class ResultFile:
    """A result file of asv's version 2 as it is: asv's own class makes a dictionary for each of millions of results.

    Attributes:
        params, requirements, commit_hash, date, env_name: As in the file.
        results: A row for each benchmark, with values in the order of the file's columns; the last ones may lack.

    Raises:
        KeyError, TypeError, AttributeError: When it is not what asv accepts.
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
        """Return what a benchmark has in one column; None if nothing."""
        row, at = self.results[name], self._at.get(key)
        return None if at is None or at >= len(row) else row[at]


class ResultGrid:
    """Results of one benchmark for the same parameter values, a row for each result file, on their way to series."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._shas: list[str] = []
        self._dates_ms: list[int] = []
        self._numbers: tuple[list[bytes], ...] = [], [], []  # cheaper to send and to join than arrays

    def add(self, file: ResultFile, values: Iterable[NDArray[np.float64]]) -> None:
        """Add what a result file has of the benchmark, from `numbers_of`."""
        for column, own in zip(self._numbers, values, strict=True):
            column.append(own.tobytes())
        self._shas.append(file.commit_hash)
        self._dates_ms.append(int(file.date))

    def extend(self, later: ResultGrid) -> None:
        """Add what other result files have of it."""
        self._shas += later._shas
        self._dates_ms += later._dates_ms
        for column, numbers in zip(self._numbers, later._numbers, strict=True):
            column.extend(numbers)

    def commits(self) -> Iterator[tuple[str, int]]:
        """Return the commits with their dates in milliseconds since 1970."""
        return zip(self._shas, self._dates_ms, strict=True)

    def columns(self, ordered: Ordered) -> list[Points]:
        """Return the points of each combination in order."""
        order = ordered.order(self._shas, self._dates_ms)
        shas, dates_ms = [self._shas[at] for at in order], [self._dates_ms[at] for at in order]
        values, lows, highs = (
            np.frombuffer(b"".join(column)).reshape(-1, self._width)[order].T.copy() for column in self._numbers
        )
        return [Points(shas, dates_ms, values[at], lows[at], highs[at]) for at in range(self._width)]


def numbers_of(
    file: ResultFile, widths: Mapping[str, int]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the values of each benchmark with the ends of their intervals, as `Points` keeps them.

    Args:
        file: The results.
        widths: How many results each benchmark has.

    Raises:
        ValueError, TypeError: When a result of any is no number.
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
    """Return a column with a value for each combination: None, which asv takes for failed, where it has none."""
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
    """Return results as `Points` keeps them, NaN for an absurdly large one; ValueError for anything but a number."""
    kinds = _kinds(values)
    if int in kinds:  # of any length
        values = [None if v is None else float(v) if -LARGEST <= v <= LARGEST else math.nan for v in values]
    numbers = np.array(values, dtype=float)  # None becomes NaN
    numbers[np.abs(numbers) > LARGEST] = math.nan
    if type(None) in kinds:
        numbers[[v is None for v in values]] = math.inf
    return numbers


def _intervals(
    lows: Sequence[Any], highs: Sequence[Any], samples: Sequence[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the intervals of results, from their samples or else as asv computed them; NaN where there is none."""
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
    """Return the `PLACE_KEYS` of a result file; older files lack those that only newer tools write."""
    known = {**file.params, **(file.requirements if isinstance(file.requirements, dict) else {})}
    return {key: str(known[key]) for key in PLACE_KEYS if known.get(key)}


def readable(value: str) -> str:
    """Return an asv parameter value (a ``repr``) as people read it: without quotes."""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" else value


def guess_unit(name: str) -> str:
    """Return the unit that a method name of asv implies."""
    method = name.rsplit(".", 1)[-1]
    return "bytes" if method.startswith(("mem_", "peakmem_")) else "seconds" if method.startswith("time") else "unit"


def is_rate(unit: str) -> bool:
    """Whether values of a unit are rates, whose fall is the regression; all others are better when smaller, as in asv.

    ``GB/s``, ``ops/ms``, ``GBps``, ``TFLOPS``, ``fps``, ``tokens per second`` are; ``ms/step``, ``steps``, ``ps`` not.
    """
    return _RATE.search(unit.strip().lower()) is not None


class PassedOver:
    """Unreadable files, reported in one line per reason: a store of an old asv holds thousands of them."""

    def __init__(self) -> None:
        self._paths: dict[str, list[Path]] = {}

    def add(self, path: Path, error: Exception) -> None:
        """Remember a file; its path is removed from the reason."""
        why = plain(str(error).replace(str(path.absolute()), "it"))
        self._paths.setdefault(why, []).append(path)

    def extend(self, later: PassedOver) -> None:
        """Add other files."""
        for why, paths in later._paths.items():
            self._paths.setdefault(why, []).extend(paths)

    def notes(self) -> list[str]:
        """Return the lines."""
        return [
            f"passed over {paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''}: {why}"
            for why, paths in self._paths.items()
        ]
