"""Thresholds per benchmark, from the gated repository's file ``.rocattn/thresholds.toml``.

The first table whose pattern matches applies; keys that it omits keep the run's values. The functions at the end of
this module that read TOML tables also read waivers.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.model import EXACT, JUDGED, METRICS, Entry
from rocattn_profiling.gate.rule.constants import CALLED
from rocattn_profiling.gate.rule.pairs import TIMES
from rocattn_profiling.gate.rule.policy import Policy

FILE = ".rocattn/thresholds.toml"
TOLERANCE_RANGE = (0.005, 1.0)
MOST_ROUNDS = 200
_KEYS = ("benchmark", "metric", "tolerance", "floor", "rounds", "gate")
_SIZES = {"bytes": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_FLOOR = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>\S+)")


class ThresholdError(RocattnError):
    """Raised if the thresholds file is malformed; names file and line."""


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the benchmarks that a pattern matches.

    Attributes:
        benchmark: A label, or a pattern with ``*`` and ``?`` that matches whole labels.
        metric: Only entries of this metric; empty for any.
        tolerance: Relative change that a pass of these benchmarks excludes; None for the run's tolerance.
        floor: Absolute change that is too small to matter, in ``unit``; 0 for none.
        unit: The floor's unit as written: a unit of time or size, or the benchmark's unit.
        rounds: Maximum rounds, if fewer than the run's; 0 for the run's.
        gate: Whether the benchmark is judged, not only shown.
        source: File and line.
    """

    benchmark: str
    metric: str = ""
    tolerance: float | None = None
    floor: float = 0.0
    unit: str = ""
    rounds: int = 0
    gate: bool = True
    source: str

    def text(self) -> str:
        """Return its settings and source on one line."""
        sets = []
        if self.tolerance is not None:
            tolerated, called = (f"{100 * part * self.tolerance:g} %" for part in (1, CALLED))
            sets.append(f"tolerance {tolerated} (a change: {called})")
        sets += [f"floor {self.floor:g} {self.unit}"] if self.floor else []
        sets += [f"{self.rounds} rounds at most"] if self.rounds else []
        return f"{', '.join(sets) or 'the same rule as all others'} ({self.source})"

    def matches(self, label: str, metric: str) -> bool:
        """Whether it applies to this benchmark."""
        if self.metric not in {"", metric}:
            return False
        # Brackets in a pattern are literal, because labels contain them. A label with a star matches itself.
        return label == self.benchmark or fnmatchcase(label, self.benchmark.replace("[", "[[]"))


class ThresholdTable(msgspec.Struct, frozen=True, kw_only=True):
    """All thresholds in file order; ``changed`` is whether base's differ."""

    rows: list[Threshold] = []
    changed: bool = False

    def find(self, label: str, metric: str) -> Threshold | None:
        """Return the first matching threshold."""
        return next((row for row in self.rows if row.matches(label, metric)), None)

    def policy_for(self, label: str, metric: str, policy: Policy, unit: str = "") -> Policy:
        """Return one benchmark's policy: the run's policy with its threshold applied.

        Args:
            label: The benchmark with its parameters.
            metric: "time", "mem", "peakmem" or "track".
            policy: The run's policy.
            unit: The unit of a tracked value; times are in ns, memory in bytes.

        Raises:
            ThresholdError: The floor's unit is not the benchmark's.
        """
        row = self.find(label, metric)
        if row is None:
            return policy
        looks = policy.looks
        if 0 < row.rounds < looks[-1]:
            looks = (*(look for look in looks if look < row.rounds), row.rounds)
        if not row.gate:
            looks = looks[:1]  # enough to show the numbers
        chosen = policy.tolerance if row.tolerance is None else row.tolerance
        floor = _converted(row, metric, unit, label)
        return msgspec.structs.replace(policy, looks=looks, tolerance=chosen, floor=max(policy.floor, floor))

    def apply(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries with the thresholds that applied; ``gate = false`` makes them "ungated"."""
        return [self._applied(entry) for entry in entries]

    def _applied(self, entry: Entry) -> Entry:
        row = self.find(entry.label, entry.metric)
        if row is None or entry.status not in JUDGED:
            return entry
        if row.gate:  # nothing else applies to an exact metric
            return entry if entry.metric in EXACT else msgspec.structs.replace(entry, rule=row.text())
        return msgspec.structs.replace(
            entry, status="ungated", reason=f"shown, not judged: {row.source} has gate = false"
        )

    def notes(self, entries: Sequence[Entry], *, narrowed: bool = False) -> list[str]:
        """Return notes on changes to the thresholds file and on patterns that match nothing.

        Args:
            entries: Every benchmark and exact metric.
            narrowed: Whether the run left out benchmarks that a pattern may match.
        """
        notes = [f"this change edits {FILE}: the thresholds in it are head's"] if self.changed else []
        if not narrowed:
            used = {id(self.find(entry.label, entry.metric)) for entry in entries}
            # A pattern may be for unchanged exact metrics, which have no entry.
            idle = [row for row in self.rows if id(row) not in used and row.metric not in EXACT]
            notes += [f"{row.source}: {row.benchmark!r} applies to no benchmark" for row in idle]
        return notes


def load(tree: Path | None, base: Path | None = None) -> ThresholdTable:
    """Read head's thresholds.

    Args:
        tree: Head's files; None without a repository.
        base: Base's files, to detect whether the change edits the thresholds.

    Raises:
        ThresholdError: The file is malformed.
    """
    if tree is None:
        return ThresholdTable()
    rows = _read(tree)
    changed = False
    if base is not None:
        try:
            changed = [_content(row) for row in rows] != [_content(row) for row in _read(base)]
        except ThresholdError:
            changed = True
    return ThresholdTable(rows=rows, changed=changed)


def _read(tree: Path) -> list[Threshold]:
    return [_threshold(row, source) for row, source in read_tables(tree, FILE, "threshold", ThresholdError)]


def _content(row: Threshold) -> Threshold:
    return msgspec.structs.replace(row, source="")


def _threshold(row: dict[str, Any], source: str) -> Threshold:
    check_keys(row, source, _KEYS, ("benchmark",), ThresholdError)
    if len(row.keys() - {"benchmark", "metric"}) == 0:
        raise ThresholdError(f"{source}: it sets nothing: give tolerance, floor, rounds or gate")
    for key in ("benchmark", "metric"):
        if not isinstance(row.get(key, "x"), str) or not row.get(key, "x"):
            raise ThresholdError(f"{source}: {key} must be non-empty text")
    if "metric" in row:
        check_metric(row["metric"], source, ThresholdError)
        if row["metric"] in EXACT and (idle := [key for key in ("tolerance", "floor", "rounds") if key in row]):
            why = f"{row['metric']} is exact, and takes only gate"
            raise ThresholdError(f"{source}: {idle[0]} is for what is measured: {why}")
    check_limits(row, source, ThresholdError)
    if not isinstance(row.get("gate", True), bool):
        raise ThresholdError(f"{source}: gate must be true or false")
    floor, unit = _floor(row["floor"], source) if "floor" in row else (0.0, "")
    return Threshold(
        benchmark=row["benchmark"], metric=row.get("metric", ""), tolerance=row.get("tolerance"), floor=floor,
        unit=unit, rounds=row.get("rounds", 0), gate=row.get("gate", True), source=source,
    )  # fmt: skip


def check_limits(row: Mapping[str, Any], source: str, error: type[RocattnError]) -> None:
    """Reject a tolerance or number of rounds that is out of range.

    Raises:
        RocattnError: Of the class ``error``.
    """
    effect, rounds = row.get("tolerance"), row.get("rounds", MOST_ROUNDS)
    if effect is not None and not (is_number(effect) and TOLERANCE_RANGE[0] <= effect <= TOLERANCE_RANGE[1]):
        low, high = TOLERANCE_RANGE
        raise error(f"{source}: tolerance must be a fraction from {low:g} to {high:g} (0.05 is 5 %)")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise error(f"{source}: rounds must be a whole number from 1 to {MOST_ROUNDS}")


def _floor(text: object, source: str) -> tuple[float, str]:
    """Return an absolute floor ("5 us", "2 MiB", "3 ulp") and its unit."""
    match = _FLOOR.fullmatch(text.strip()) if isinstance(text, str) else None
    try:
        number = float(match["number"]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number) or number <= 0:
        raise ThresholdError(f'{source}: floor must be a number with its unit in quotes, as in floor = "5 us"')
    return number, match["unit"]


def _converted(row: Threshold, metric: str, unit: str, label: str) -> float:
    """Return a floor in ns for times, in bytes for memory, otherwise as written."""
    if not row.floor:
        return 0.0
    if metric == "time" or (metric == "track" and unit in TIMES):
        scales = TIMES
    elif metric in {"mem", "peakmem"}:
        scales = _SIZES
    else:
        scales = {unit or row.unit: 1.0}
    if row.unit not in scales:
        own = next(iter(scales))
        raise ThresholdError(f"{row.source}: its floor is in {row.unit}, but {label} is in {own}: add a metric to it")
    return row.floor * scales[row.unit]


def read_toml(tree: Path, file: str, error: type[RocattnError]) -> tuple[dict[str, Any], str]:
    """Read a settings file.

    Args:
        tree: A checkout.
        file: The file's path in it.
        error: The exception class for a file that is not TOML.

    Returns:
        Its parsed content and its text; both empty if there is no such file.
    """
    try:
        text = (tree / file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}, ""
    except OSError as problem:
        raise error(f"{file} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{file} cannot be read: it is not UTF-8") from problem
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{file}: {problem}") from problem
    except (ValueError, RecursionError) as problem:  # endless nesting, or a number with thousands of digits
        raise error(f"{file} cannot be read: a value in it is too long or too deep") from problem


def read_tables(tree: Path, file: str, name: str, error: type[RocattnError]) -> list[tuple[dict[str, Any], str]]:
    """Read a settings file that is one TOML array of tables, with file and line of each table.

    Args:
        tree: A checkout.
        file: The file's path in it.
        name: The array's name; the file may contain nothing else.
        error: The exception class for a file in another form.

    Returns:
        (Table, "file:line") pairs; empty if there is no such file.
    """
    content, text = read_toml(tree, file, error)
    rows = content.pop(name, [])
    if content:
        raise error(f"{file}: {next(iter(content))!r} is unknown: the file is a list of [[{name}]] tables")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise error(f"{file}: begin every table with [[{name}]], in double brackets")
    return [(row, f"{file}:{line}") for row, line in zip(rows, _line_numbers(text, name, len(rows)), strict=True)]


def _line_numbers(text: str, name: str, count: int) -> list[int]:
    """Return the line on which each table begins; 1 for all if headers and tables cannot be matched."""
    header = re.compile(rf"\s*\[\[\s*{name}\s*\]\]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
    return lines if len(lines) == count else [1] * count


def check_keys(
    row: Mapping[str, Any], source: str, known: Collection[str], needed: Collection[str], error: type[RocattnError]
) -> None:
    """Reject a table with an unknown key, which would have no effect, or without a required one.

    Raises:
        RocattnError: Of the class ``error``.
    """
    if unknown := [key for key in row if key not in known]:
        raise error(f"{source}: {unknown[0]!r} is unknown; known are {', '.join(known)}")
    if lacking := [key for key in needed if key not in row]:
        raise error(f"{source}: {lacking[0]} is missing; needed are {', '.join(needed)}")


def is_number(value: object) -> bool:
    """Whether a value is a number that fits a float: TOML integers are unbounded, and booleans do not count."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def check_metric(metric: str, source: str, error: type[RocattnError]) -> None:
    """Reject a metric that no entry of a verdict can have.

    Raises:
        RocattnError: Of the class ``error``.
    """
    if metric not in METRICS:
        raise error(f"{source}: metric {metric!r} is unknown; known are {', '.join(METRICS)}")
