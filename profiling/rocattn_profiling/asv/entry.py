"""One benchmark's results on their way into the asv store: what asv can show, and how it joins what is there."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from asv.results import Results

    from rocattn_profiling.measure.records import Record

Sample = float | list[float] | None
"""A result of one parameter combination: samples in seconds, a number, NaN for n/a, None for failed."""
_BENCHMARK_NAME = re.compile(r"[A-Za-z_][\w.-]{0,199}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark's results on their way into the store."""

    name: str
    params: list[list[str]]
    param_names: list[str]
    unit: str
    version: str
    kind: str
    values: dict[tuple[int, ...], Sample]

    def check(self) -> None:
        """Refuse what would hang, crash or vanish in ``asv publish``."""
        if not _BENCHMARK_NAME.fullmatch(self.name):
            raise RocattnError(f"{self.name!r} is not a benchmark name: use letters, digits, '_', '-' and '.'")
        if len(self.params) != len(self.param_names):
            raise RocattnError(f"{self.name}: {len(self.params)} parameters but {len(self.param_names)} names")
        for index, value in self.values.items():
            if len(index) != len(self.params) or any(
                not 0 <= i < len(p) for i, p in zip(index, self.params, strict=True)
            ):
                raise RocattnError(f"{self.name}: {index} is not the index of a parameter combination")
            for number in value if isinstance(value, list) else [value]:
                if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
                    raise RocattnError(f"{self.name}{index}: a {type(number).__name__} is not a value asv can show")
                if number is not None and (math.isinf(number) or (isinstance(value, list) and math.isnan(number))):
                    raise RocattnError(
                        f"{self.name}{index}: {number} is not a value asv can show (NaN alone means n/a)"
                    )
            if value == []:
                raise RocattnError(f"{self.name}{index} has no samples: give NaN for n/a or None for failed")

    def as_benchmark(self) -> dict[str, Any]:
        """Return asv's description of the benchmark."""
        return {
            "name": self.name,
            "params": self.params,
            "param_names": self.param_names,
            "unit": self.unit,
            "version": self.version,
            "type": self.kind,
            "code": "",
            "timeout": 60.0,
        }


def record_value(record: Record) -> Sample:
    """Return a record's samples; a record whose output was wrong has failed, a skipped one is n/a."""
    if record.skipped or not record.launches:
        return math.nan
    if record.check is not None and not record.check.ok:
        return None
    return [sample / 1e9 for launch in record.launches for sample in launch.samples_ns]


def add_result(results: Results, benchmark: dict[str, Any], entry: Entry) -> None:
    """Merge an entry into a commit's results, in the union of the parameter values."""
    from asv.runner import BenchmarkResult

    combinations = list(itertools.product(*benchmark["params"]))
    place = {combination: at for at, combination in enumerate(combinations)}
    kept = len(combinations)
    values: list[float | None] = [None] * kept
    samples: list[list[float] | None] = [None] * kept
    number: list[int | None] = [None] * kept
    chosen = set()
    for index, value in entry.values.items():
        at = place[tuple(p[i] for i, p in zip(index, entry.params, strict=True))]
        chosen.add(at)
        if isinstance(value, list):
            values[at], samples[at], number[at] = value[0], list(value), 1  # asv makes it their median
        else:
            values[at] = value
    merged = results.benchmark_version.get(entry.name) == entry.version
    if not merged and entry.name in results.get_all_result_keys():
        results.remove_result(entry.name)
    if not merged:
        # Combinations nobody measured at this commit are n/a, not failed.
        values = [v if at in chosen else math.nan for at, v in enumerate(values)]
    elif len(chosen) < kept:
        old = set(itertools.product(*(results.get_result_params(entry.name) or [])))
        new = {at for at, combination in enumerate(combinations) if combination not in old and at not in chosen}
        for at in new:
            values[at] = math.nan
        chosen |= new
    outcome = BenchmarkResult(values, samples, number, 0, "", None)
    results.add_result(benchmark, outcome, record_samples=True, selected_idx=chosen if merged else None)


def united(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The description of a benchmark that two sources know: new facts win, parameter values are united."""
    if known.get("version") != new.get("version") or known.get("param_names") != new.get("param_names"):
        return new
    code = new.get("code") or known.get("code", "")
    pairs = zip(known.get("params", []), new.get("params", []), strict=True)
    return {**known, **new, "code": code, "params": [list(dict.fromkeys([*a, *b])) for a, b in pairs]}
