"""How long launches take: times from earlier runs and from this one, and estimates based on both.

The record is in the gate's cache folder, one file per repository and suite. It is used for planning only: a wrong or
missing record changes no verdict.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.console import duration
from rocattn_profiling.base.files import DocumentError, decoded, write_bytes
from rocattn_profiling.revisions.environments import cache_root

if TYPE_CHECKING:
    from rocattn_profiling.asv.launch import Case

_SHORT_S = 60.0
SHARED_IMPORT_S = 4.0
"""Import time from which on all launches of an asv module in a round share one import."""
_START_S = 0.25  # per process: Python, asv_runner and the worker
_SAMPLING = 2.0  # times the budget: warm-up, choosing the sampling, long calls
_GUESSED = (0.6, 1.8)  # if guessed from import times alone, which do not cover long calls
_MEASURED = (0.9, 1.2)
UNDECIDED_SHARE = (0.1, 0.5)
"""Share of the benchmarks expected to stay undecided after each look: at the low and the high end of an estimate."""
_LAUNCHES_BY = 0.92  # of the limit, by which every launch must be expected to end
_CUT_BY = 0.97  # when a launch that takes longer than expected is killed
_CAUSES_BY = 1.04
_UNITS = {"h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "": 1.0}
_LIMIT = re.compile(r"(?:\d+(?:\.\d+)?(?:h|min|m|s)\s*)+|\d+(?:\.\d+)?", re.ASCII)


class Tracing(NamedTuple):
    """What traced calls after the first round are expected to show.

    Attributes:
        fewest, most: The benchmarks that may run the change, at the low and the high end; only they are measured on.
        calls: Whether traced calls are needed; False if both sides have the same code.
    """

    fewest: Sequence[Case]
    most: Sequence[Case]
    calls: bool


class LaunchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The record: benchmark with its parameters -> seconds per launch."""

    seconds: dict[str, float] = {}


def record_path(repo: Path, suite: str, *, quick: bool) -> Path:
    """Return the file of a suite's times; quick launches are shorter and have a separate file."""
    key = hashlib.sha256(f"{repo.absolute()}\0{suite}\0{quick}".encode()).hexdigest()[:20]
    return cache_root() / "times" / f"{key}.json"


def recorded(path: Path) -> dict[str, float]:
    """Return the recorded seconds per launch; empty if the file is missing or damaged."""
    with suppress(OSError, DocumentError):
        seconds = decoded(path.read_bytes(), LaunchTimes).seconds
        return {label: value for label, value in seconds.items() if math.isfinite(value) and value > 0}
    return {}


class Pace:
    """Expected seconds of launches.

    Args:
        known: Benchmark with its parameters -> seconds per launch, from earlier runs.
        imports: Module of the suite -> seconds to import its own code; "" -> seconds to import its dependencies.
        budget_s: How long a launch samples.
        shared: Benchmark -> the module that its launches share, however short its import is.
    """

    def __init__(
        self,
        known: Mapping[str, float] | None = None,
        imports: Mapping[str, float] | None = None,
        budget_s: float = 0.2,
        shared: Mapping[str, str] | None = None,
    ) -> None:
        self.known, self._imports, self._budget_s = dict(known or {}), dict(imports or {}), budget_s
        self._long = {module for module, seconds in self._imports.items() if module and seconds >= SHARED_IMPORT_S}
        self._shared = dict(shared or {})
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._longer: list[float] = []  # seconds by which launches exceeded the guess: long calls and setups

    def saw(self, case: Case, seconds: float) -> None:
        """Record the seconds of a launch; 0 means unknown."""
        if seconds > 0:
            if case.label not in self._seen and case.label not in self.known:
                self._longer.append(seconds - self._guess(case))
            self._seen[case.label].append(seconds)

    def launch_s(self, case: Case) -> float:
        """Return the expected seconds of a launch."""
        if launches := self._seen.get(case.label):
            return statistics.fmean(launches)
        if case.label in self.known:
            return self.known[case.label]
        return max(_START_S, self._guess(case) + (statistics.median(self._longer) if self._longer else 0.0))

    def round_s(self, cases: Iterable[Case]) -> float:
        """Return the expected seconds of one round of both sides, with shared imports."""
        cases = list(cases)
        modules = {self.shared_module(case) for case in cases} - {""}
        return 2 * math.fsum([*map(self.launch_s, cases), *(self._imports[module] for module in modules)])

    def shared_module(self, case: Case) -> str:
        """Return the module whose import a benchmark's launches share; empty if each launch imports it."""
        module = self._shared.get(case.benchmark.name) or self._module(case)
        shared = module in self._long or case.benchmark.name in self._shared
        # Not for memory benchmarks: a forked process shares memory with its parent.
        return module if shared and case.benchmark.type in {"time", "track"} else ""

    def import_s(self, module: str) -> float:
        """Return the seconds of a module's own import; 0 for none."""
        return self._imports.get(module, 0.0) if module else 0.0

    def estimate_s(
        self, cases: Sequence[Case], looks: Sequence[int], *, traced: Tracing | None = None
    ) -> tuple[float, float]:
        """Return the expected seconds of a whole run, low and high end.

        Args:
            cases: The benchmarks.
            looks: The rounds after which some of them are decided.
            traced: What traced calls are expected to show; None without traced calls.
        """
        certain = [case for case in cases if case.label in self.known or case.label in self._seen]
        sure = self.round_s(certain) / (self.round_s(cases) or 1.0)
        further = (cases, cases) if traced is None else (traced.fewest, traced.most)
        ends = []
        for share, measured, guessed, some in zip(UNDECIDED_SHARE, _MEASURED, _GUESSED, further, strict=True):
            factor = sure * measured + (1 - sure) * guessed
            ends.append(factor * self.whole_s(cases, looks, share, traced, some))
        return ends[0], ends[1]

    def whole_s(
        self, cases: Sequence[Case], looks: Sequence[int], share: float, traced: Tracing | None, further: Sequence[Case]
    ) -> float:
        """Return the expected seconds of cases from their first round on.

        Args:
            cases: The benchmarks.
            looks: All planned looks.
            share: Expected share of them that each look leaves undecided.
            traced: What traced calls are expected to show; None without traced calls.
            further: With traced calls, the cases that are measured on.
        """
        if traced is None:
            return self.rest_s(cases, 0, looks, share)
        # All have one round, and a traced call takes about as long as a launch.
        return (1 + traced.calls) * self.round_s(cases) + self.rest_s(further, 1, looks, share)

    def rest_s(self, cases: Iterable[Case], done: int, looks: Sequence[int], share: float) -> float:
        """Return the expected seconds until cases are decided or out of rounds.

        Args:
            cases: The undecided cases.
            done: Their rounds so far.
            looks: All planned looks.
            share: Expected share of them that each look leaves undecided.
        """
        rounds, left = 0.0, 1.0
        for look in looks:
            if look > done:
                rounds, left, done = rounds + left * (look - done), left * share, look
        return rounds * self.round_s(cases)

    def record(self, path: Path) -> None:
        """Update the record with this run's times; ignore a failure to write."""
        means = {label: round(statistics.fmean(seconds), 3) for label, seconds in self._seen.items()}
        if not means:
            return
        with suppress(RocattnError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, msgspec.json.encode(LaunchTimes(seconds=recorded(path) | means)))

    def _guess(self, case: Case) -> float:
        own = 0.0 if self.shared_module(case) else self._imports.get(self._module(case), 0.0)
        return _START_S + self._imports.get("", 0.0) + own + _SAMPLING * self._budget_s

    def _module(self, case: Case) -> str:
        name = case.benchmark.name
        modules = (module for module in self._imports if module and name.startswith((f"{module}.", f"{module}::")))
        return max(modules, key=len, default="-")


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """When a run has to end, on `time.monotonic`'s clock.

    Attributes:
        limit_s: Seconds from the start; infinite without a limit.
        start: When both sides were built, plus the time of later preparations.
    """

    limit_s: float
    start: float

    @classmethod
    def begin(cls, limit_s: float) -> TimeLimit:
        """Return a limit that starts now; 0 seconds mean no limit."""
        return cls(limit_s or math.inf, time.monotonic())

    def extended(self, seconds: float) -> TimeLimit:
        """Return the limit, moved by seconds that do not count."""
        return TimeLimit(self.limit_s, self.start + seconds)

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.limit_s)

    def launches_left_s(self) -> float:
        """Return the seconds left for planned launches."""
        return self._left(_LAUNCHES_BY)

    def cut_s(self) -> float:
        """Return the seconds after which a launch that takes longer than planned is killed."""
        return max(0.0, self._left(_CUT_BY))

    def causes_left_s(self) -> float:
        """Return the seconds left for the search for causes."""
        return max(0.0, self._left(_CAUSES_BY))

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start

    def _left(self, share: float) -> float:
        return share * self.limit_s - self.elapsed_s()


def parsed_limit(text: str) -> float:
    """Return the seconds of ``10m``, ``90s``, ``1h30m`` or ``600``; NaN for anything else, and for less than 1 s."""
    if not _LIMIT.fullmatch(text.strip()):
        return math.nan
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|min|m|s|)", text)
    seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    return seconds if seconds >= 1 else math.nan


def span(seconds: tuple[float, float], *, unknown: bool = False) -> str:
    """Return a readable estimate: ``about 18 min``, ``about 18 to 40 min``.

    Args:
        seconds: The low and the high end.
        unknown: Whether it excludes commands that were never timed.
    """
    if unknown:
        return f"{duration(seconds[0])} at least: the first run shows how long a command takes"
    low, high = (duration(end) for end in seconds)
    if low == high or seconds[1] < 1.3 * seconds[0]:
        return f"about {duration(math.fsum(seconds) / 2)}"
    unit = high.rpartition(" ")[2]
    alike = low.count(" ") == high.count(" ") == 1 and low.endswith(f" {unit}")
    return f"about {low.removesuffix(f' {unit}') if alike else low} to {high}"


def how_to_shorten(max_time_s: float, longest_s: float) -> str:
    """Return the end of a plan's line; "" for a run of at most a minute."""
    if max_time_s:
        return f"; --max-time ends it after {duration(max_time_s)}"
    return "; use --max-time or --bench to shorten it" if longest_s > _SHORT_S else ""
