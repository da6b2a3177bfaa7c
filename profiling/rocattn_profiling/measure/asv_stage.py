"""A clean copy of the asv store: what ``asv publish`` can take without hanging, crashing or losing points."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError
from rocattn_profiling.measure.asv_store import AsvStore, load_results

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


@dataclass(slots=True)
class Staged:
    """What a copy holds.

    Attributes:
        results: Result files copied.
        notes: One line for each thing left out or changed.
    """

    results: int = 0
    notes: list[str] = field(default_factory=list)


def stage(store: AsvStore, folder: Path, known: Collection[str]) -> Staged:
    """Copy a store, leaving the original as it is.

    Infinite values become n/a (they hang asv's step detection), containers become failures (they crash it), a
    benchmark list that asv rewrote gets ours back, an interpreter's path becomes "existing".

    Args:
        store: The store to copy.
        folder: Where to; made if missing.
        known: Commits the repository has: asv fails on others (rebased away, or a shallow clone).
    """
    staged = Staged()
    benchmarks = {k: v for k, v in store.benchmarks(staged.notes.append).items() if _well_formed(k, v)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "benchmarks.json", {**benchmarks, "version": 2})
    unknown: set[str] = set()
    for path in store.result_files(staged.notes.append):
        try:
            load_results(path)  # asv's own opinion first
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["commit_hash"] not in known:
                unknown.add(data["commit_hash"])
                continue
            changed = _clean(data, benchmarks)
        except (RocattnError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            staged.notes.append(" ".join(f"passed over {path}: {error}".split()))
            continue
        if changed:
            staged.notes.append(f"{path.name}: {changed} values that asv cannot show were left out")
        machine = folder / path.parent.name / "machine.json"
        if not machine.exists():
            facts = store.machines().get(path.parent.name, {})
            _write(machine, {**facts, "machine": path.parent.name, "version": 1})
        _write(folder / path.parent.name / path.name, data)
        staged.results += 1
    if unknown:
        staged.notes.append(f"{len(unknown)} measured commits are not in this clone: their points are left out")
    return staged


def _well_formed(name: str, benchmark: dict[str, Any]) -> bool:
    """Whether asv's pages can show a benchmark: names without markup, parameters as lists of text."""
    params, names = benchmark.get("params", []), benchmark.get("param_names", [])
    return (
        not set(name) & set("<>\"'&")
        and isinstance(params, list)
        and isinstance(names, list)
        and len(params) == len(names)
        and all(isinstance(p, list) and all(isinstance(v, str) for v in p) for p in params)
    )


def _clean(data: dict[str, Any], benchmarks: dict[str, dict[str, Any]]) -> int:
    """Make one result file safe in place; returns how many values were replaced or dropped."""
    changed = 0
    params = data["params"]
    if "/" in str(params.get("python", "")):
        params["python"] = "existing"
    columns = data["result_columns"]
    at_result, at_params = columns.index("result"), columns.index("params")
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
            elif value is not None and math.isinf(value):
                values[at], changed = math.nan, changed + 1
    return changed


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
