"""A clean copy of the asv store: what ``asv publish`` can take without hanging, crashing or losing points."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import PassedOver, beyond_measure

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from rocattn_profiling.asv.store import AsvStore

RESULTS_VERSION = 2
COLUMNS = {"result", "params", "version", "started_at", "duration", "samples", "profile"}
"""What asv's result files have beside columns of statistics."""
SHOWN = {"result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"}
"""What ``asv publish`` makes its pages from: it reads every file twice, so the copies have no more."""


@dataclass(slots=True)
class Staged:
    """What a copy holds.

    Attributes:
        results: Result files copied.
        commits: The commits they are of.
        notes: One line for each thing left out or changed.
    """

    results: int = 0
    commits: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def stage(store: AsvStore, folder: Path, known: Collection[str]) -> Staged:
    """Copy a store, leaving the original as it is.

    Infinite and huge values become n/a (they hang asv's step detection), containers become failures (they crash it), a
    benchmark list that asv rewrote gets ours back, an interpreter's path becomes "existing". What no page shows
    (samples, start times) is left out.

    Args:
        store: The store to copy.
        folder: Where to; made if missing.
        known: Commits the repository has: asv fails on others (rebased away, or a shallow clone).
    """
    staged = Staged()
    benchmarks = {k: _plain(v) for k, v in store.benchmarks(staged.notes.append).items() if _well_formed(k, v)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "benchmarks.json", {**benchmarks, "version": 2})
    unknown: set[str] = set()
    passed_over = PassedOver()
    machines = store.machines()
    for path in store.result_files(staged.notes.append):
        try:
            data = json.loads(path.read_bytes())
            _check(data)
            if data["commit_hash"] not in known:
                unknown.add(data["commit_hash"])
                continue
            changed = _clean(data, benchmarks)
        except (RocattnError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            passed_over.add(path, error)
            continue
        if changed:
            staged.notes.append(f"{path.name}: {changed} values that asv cannot show were left out")
        machine = folder / path.parent.name / "machine.json"
        if not machine.exists():
            facts = machines.get(path.parent.name, {})
            _write(machine, {**facts, "machine": path.parent.name, "version": 1})
        _write(folder / path.parent.name / path.name, data)
        staged.results += 1
        staged.commits.add(data["commit_hash"])
    staged.notes += passed_over.notes()
    if unknown:
        staged.notes.append(f"{len(unknown)} measured commits are not in this clone: asv's graphs leave them out")
    return staged


def _check(data: dict[str, Any]) -> None:
    """Hold a result file to what asv's own reading of it takes for granted, without reading it twice.

    Raises:
        ValueError: When asv would fail on it.
        KeyError: As above.
    """
    for key in ("params", "requirements", "commit_hash", "date", "python", "env_name"):
        data[key]
    if data.get("version") != RESULTS_VERSION:
        raise ValueError(f"it is of version {data.get('version')!r} of asv's results, not {RESULTS_VERSION}")
    columns = data["result_columns"]
    unknown = {column for column in columns if not column.startswith("stats_")} - COLUMNS
    if unknown:
        raise ValueError(f"asv does not know its column {min(unknown)!r}")
    statistics = [at for at, column in enumerate(columns) if column.startswith("stats_")]
    for name, row in data["results"].items():
        lengths = {len(row[at]) for at in statistics if at < len(row) and row[at] is not None}
        if len(lengths) > 1:
            raise ValueError(f"the statistics of {name} are not of one length")


def _well_formed(name: str, benchmark: dict[str, Any]) -> bool:
    """Whether asv's pages can show a benchmark: names without markup, parameters as lists of text."""
    params, names = benchmark.get("params", []), benchmark.get("param_names", [])
    return (
        not set(name) & set("<>\"'&")
        and isinstance(params, list)
        and isinstance(names, list)
        and len(params) == len(names)
        and all(isinstance(p, list) and all(isinstance(v, str) for v in p) for p in params)
        and not any("<" in str(name) for name in names)
    )


def _plain(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark without a pretty name or a unit that asv's scripts would write into a page as markup."""
    odd = {key for key in ("pretty_name", "unit") if "<" in str(benchmark.get(key) or "")}
    plain = {key: value for key, value in benchmark.items() if key not in odd}
    return plain | ({"unit": "unit"} if "unit" in odd else {})


def _clean(data: dict[str, Any], benchmarks: dict[str, dict[str, Any]]) -> int:
    """Make one result file safe and short in place; returns how many values were replaced or dropped."""
    changed = 0
    params = data["params"]
    if "/" in str(params.get("python", "")):
        params["python"] = "existing"
    columns = data["result_columns"]
    at_result, at_params = columns.index("result"), columns.index("params")
    kept = [at for at, column in enumerate(columns) if column in SHOWN]
    for name in list(data["results"]):
        row = data["results"][name]
        values = row[at_result]
        own = row[at_params] if len(row) > at_params else []
        expected = len(list(itertools.product(*(own or []))))
        if name not in benchmarks or (values is not None and len(values) != expected):
            changed += name in benchmarks
            del data["results"][name]
            continue
        for at, value in enumerate(values or []):
            if isinstance(value, (dict, list, str, bool)):
                values[at], changed = None, changed + 1
            elif value is not None and beyond_measure(value):
                values[at], changed = math.nan, changed + 1
        data["results"][name] = [row[at] for at in kept if at < len(row)]
    data["result_columns"] = [columns[at] for at in kept]
    return changed


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
