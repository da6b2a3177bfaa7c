"""Read and write the asv result store of a repository.

Measurements by `rocattn bench` and the gate's back-fill go into the same store that `asv run` writes and `asv publish`
reads. asv rewrites ``benchmarks.json`` with its own suites at each discovery, so ours are also kept in
``benchmarks.json.rocattn``, a name that asv ignores.
"""

from __future__ import annotations

import itertools
import json
import math
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import (
    Ordered,
    PassedOver,
    Points,
    ResultFile,
    ResultGrid,
    Series,
    date_of,
    guess_unit,
    numbers_of,
    place_of,
    readable,
)
from rocattn_profiling.base.files import DocumentError, HeldError, decoded, locked, result_folder, write_text
from rocattn_profiling.base.forks import forked
from rocattn_profiling.base.markup import plain
from rocattn_profiling.revisions.asv_config import OUR_RESULTS, usual_files

if TYPE_CHECKING:
    from asv.config import Config
    from asv.results import Results

    from rocattn_profiling.measure.records import Commit, Machine, Record

    GridKey = tuple[str, tuple[tuple[str, ...], ...], str, str]

SIDECAR = "benchmarks.json.rocattn"
LOCK, LOCK_TIMEOUT_S = "rocattn-store.lock", 30.0
MACHINE_KEYS = ("arch", "cpu", "machine", "num_cpu", "os", "ram", "gpu", "gfx", "driver")
NO_NUMPY = "-numpyunknown"
"""Suffix of an environment's name in the first versions, for a project without numpy."""
_ARCHITECTURE = re.compile(r"x86_64|amd64|aarch64|arm64|ppc64le|riscv64|s390x", re.IGNORECASE)
_PATH_PART = re.compile(r"[^\w.+-]")
_FILES = 8  # files read by one task


class AsvStore:
    """The results folder named in a repository's ``asv.conf.json``.

    Attributes:
        repo_root: The repository.
        config_path: Its ``asv.conf.json``, at the top or in one of the usual folders, or else the one next to the
            results, which may be elsewhere; None without one.
        results_dir: The folder.
        project: The project's name in the configuration; "" without one.
        commit_url: ``show_commit_url`` of the configuration.

    Raises:
        RocattnError: When asv.conf.json exists but cannot be read.
    """

    def __init__(self, repo_root: Path, results_dir: Path | None = None) -> None:
        self.repo_root = Path(repo_root).resolve()
        files = usual_files(self.repo_root) or (usual_files(Path(results_dir).resolve().parent) if results_dir else [])
        self.config_path = files[0] if len(files) == 1 else None
        config = read_config(self.config_path) if self.config_path else None
        configured = (
            self.config_path.parent / str(config.results_dir)
            if self.config_path and config
            else self.repo_root / OUR_RESULTS
        )
        self.results_dir = Path(results_dir).resolve() if results_dir else configured
        self.project = str(config.project or "") if config else ""
        self.commit_url = str(config.show_commit_url or "") if config else ""

    def add(
        self,
        commit: Commit,
        benchmark: str,
        params: Sequence[Sequence[str]],
        param_names: Sequence[str],
        unit: str,
        values: Mapping[tuple[int, ...], Sample],
        version: str = "1",
        type: str = "time",  # noqa: A002 - asv's own word for it
        *,
        machine: Machine | None = None,
    ) -> None:
        """Store results of one benchmark for one commit, keeping those of the same commit and environment.

        Args:
            commit: The measured commit; a dirty tree is rejected.
            benchmark: asv's dotted name ("bench_forward.Forward.time_attention").
            params: The values of each parameter as stored by asv, their ``repr``.
            param_names: One name per parameter.
            unit: "seconds", "bytes" or the suite's own; lower is better, as everywhere in asv.
            values: Parameter index tuple (``()`` without parameters) -> `Sample`.
            version: The benchmark's version; results of older versions are no longer shown.
            type: asv's type: "time", "track" or "peakmemory".
            machine: The machine; this one if None.

        Raises:
            RocattnError: For a dirty tree, a value that asv cannot store (inf, dict, list of lists), a name that asv
                would not show, or a folder that cannot be written to.
        """
        entry = StoreEntry(benchmark, [list(p) for p in params], list(param_names), unit, version, type, dict(values))
        self._store(commit, machine or _this_machine(), [entry])

    def add_records(self, records: Iterable[Record]) -> int:
        """Store bench records, one benchmark per grid and backend (``bench.inference.cpu_flash``); return their number.

        A record with wrong output is stored as failed, a skipped one as n/a: neither has a time to show. Each node of a
        fleet has a history of its own.

        Raises:
            RocattnError: When a record has no commit or comes from a dirty tree, before anything is written.
        """
        grouped: dict[tuple[Commit, Machine], dict[str, dict[str, Sample]]] = {}
        count = 0
        for record in records:
            if record.commit is None:
                raise RocattnError(f"{record.id} was not measured in a git repository: the asv store needs a commit")
            _refuse_dirty(record.commit)
            benchmark = f"bench.{_identifier(record.suite)}.{_identifier(record.backend)}"
            name = "-".join(filter(None, (record.machine.name, record.host)))
            node = msgspec.structs.replace(record.machine, name=name)
            cells = grouped.setdefault((record.commit, node), {}).setdefault(benchmark, {})
            cold = "-cold" if record.caches == "cold" else ""  # a separate series, not a slowdown
            cells[repr(record.label + cold)] = record_value(record)
            count += 1
        for (commit, machine), benchmarks in grouped.items():
            entries = [
                StoreEntry(
                    name,
                    [list(cells)],
                    ["config"],
                    "seconds",
                    "1",
                    "time",
                    {(i,): v for i, v in enumerate(cells.values())},
                )
                for name, cells in benchmarks.items()
            ]
            self._store(commit, machine, entries)
        return count

    def read(
        self,
        on_problem: Callable[[str], None] = lambda _: None,
        on_file: Callable[[int, str], None] = lambda _, __: None,
        jobs: int = 1,
        order: Callable[[Mapping[str, int]], Sequence[str]] | None = None,
    ) -> list[Series]:
        """Return every series of the store, asv's own results included; unreadable files are skipped.

        Args:
            on_problem: Called with one line for each skipped file, and for each benchmark with results that are not
                numbers: asv stores whatever a `track_` returned, even text and True.
            on_file: Called for each file read, with the total number of files and its name.
            jobs: Number of reader processes.
            order: Returns the commits in the order of the points, given their dates; None sorts by date.
        """
        known = self.benchmarks(on_problem)
        paths = list(self.result_files(on_problem))
        tasks = [paths[at : at + _FILES] for at in range(0, len(paths), _FILES)]
        found = _Found()
        for own, more in zip(tasks, forked(lambda own: _read_files(own, known), tasks, jobs), strict=True):
            found.add(more)
            for path in own:
                on_file(len(paths), path.name)
        for note in found.passed_over.notes():
            on_problem(note)
        for what, path in found.odd.items():
            on_problem(f"{what}, first in {path}")
        grids, places = found.grids, found.places
        dates = {sha: date_ms for grid in grids.values() for sha, date_ms in grid.commits()} if order else {}
        ordered = Ordered({sha: at for at, sha in enumerate(order(dates))} if order else None)
        series: dict[tuple[str, tuple[tuple[str, str], ...], str, str], list[Points]] = {}
        for name, params, machine, env_name in list(grids):
            names = known.get(name, {}).get("param_names") or []
            names = names if len(names) == len(params) else [f"param{i + 1}" for i in range(len(params))]
            columns = grids.pop((name, params, machine, env_name)).columns(ordered)
            for combination, points in zip(itertools.product(*params), columns, strict=True):
                key = (name, tuple(zip(names, combination, strict=True)), machine, env_name)
                series.setdefault(key, []).append(points)
        return [
            Series(
                benchmark=name,
                params={key: readable(value) for key, value in params},
                arguments=tuple(value for _, value in params),
                unit=str(known.get(name, {}).get("unit") or guess_unit(name)),
                machine=machine,
                env_name=env_name,
                points=ordered.joined(series.pop((name, params, machine, env_name))),
                places=places[machine, env_name],
                pretty_name=" ".join(str(known.get(name, {}).get("pretty_name") or "").split()),
            )
            for name, params, machine, env_name in sorted(series)  # pop, so that joined data is in memory only once
        ]

    def measured(self) -> dict[str, set[str]]:
        """Return the commits with results of each benchmark, including failures, without results of other code."""
        known, commits = self.benchmarks(), dict[str, set[str]]()
        for path in self.result_files():
            with suppress(RocattnError):
                results = load_results(path)
                for name in results.get_all_result_keys():
                    if results.benchmark_version.get(name) in {None, known.get(name, {}).get("version")}:
                        commits.setdefault(name, set()).add(results.commit_hash)
        return commits

    def result_files(self, on_problem: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
        """Yield the result files of all machines; report folders without a usable machine.json."""
        folders = sorted(p for p in self.results_dir.glob("*") if p.is_dir()) if self.results_dir.is_dir() else []
        for folder in folders:
            files = [p for p in sorted(folder.glob("*.json")) if p.name != "machine.json"]
            if files and not (folder / "machine.json").is_file():
                on_problem(f"passed over {folder}: it has no machine.json")
                continue
            yield from files

    def machines(self) -> dict[str, dict[str, str]]:
        """Return machine name -> content of its machine.json, without unreadable ones."""
        machines: dict[str, dict[str, str]] = {}
        for path in sorted(self.results_dir.glob("*/machine.json")):
            facts = _load_json(path)
            if facts:
                machines[path.parent.name] = {k: str(v) for k, v in facts.items() if k in MACHINE_KEYS}
        return machines

    def benchmarks(self, on_problem: Callable[[str], None] = lambda _: None) -> dict[str, dict[str, Any]]:
        """Return asv's benchmark dictionaries by name, from its own benchmarks.json or else from ours."""
        merged: dict[str, dict[str, Any]] = {}
        for name in (SIDECAR, "benchmarks.json"):
            path = self.results_dir / name
            if not path.exists():
                continue
            table = _load_json(path)
            if table is None:
                on_problem(f"passed over {path}: it is not JSON")
                continue
            for key, value in table.items():
                if isinstance(value, dict):
                    merged[key] = united(merged[key], value) if key in merged else value
        return merged

    def _store(self, commit: Commit, machine: Machine, entries: list[StoreEntry]) -> None:
        _refuse_dirty(commit)
        for entry in entries:
            entry.check()
        with self._locked():
            facts = self._machine_facts(machine)
            results = self._load_or_new(commit, machine, facts)
            ours = _load_json(self.results_dir / SIDECAR) or {}
            asvs = _load_json(self.results_dir / "benchmarks.json") or {}
            for entry in entries:
                known = ours.get(entry.name) or asvs.get(entry.name)
                benchmark = united(known, entry.as_benchmark()) if known else entry.as_benchmark()
                add_result(results, benchmark, entry)
                ours[entry.name] = benchmark
                asvs[entry.name] = united(asvs[entry.name], benchmark) if entry.name in asvs else benchmark
            folder = self.results_dir / facts["machine"]
            self._save(results, folder)
            _write_asv_json(folder / "machine.json", facts, version=1)
            _write_asv_json(self.results_dir / SIDECAR, ours, version=2)
            _write_asv_json(self.results_dir / "benchmarks.json", asvs, version=2)

    def _machine_facts(self, machine: Machine) -> dict[str, str]:
        """Return asv's six keys and the GPU's, if there is one; what asv wrote about the machine is kept."""
        name = machine_folder(machine)
        facts = {
            "machine": name,
            "arch": arch[0] if (arch := _ARCHITECTURE.search(machine.os)) else platform.machine(),
            "cpu": machine.cpu,
            "num_cpu": str(machine.cores),
            "os": machine.os,
            "ram": str(machine.memory_bytes),
        }
        facts |= {key: value for key in ("gpu", "gfx", "driver") if (value := getattr(machine, key))}
        known = _load_json(self.results_dir / name / "machine.json") or {}
        return facts | {k: v for k, v in known.items() if k in MACHINE_KEYS and isinstance(v, str)}

    def _load_or_new(self, commit: Commit, machine: Machine, facts: dict[str, str]) -> Results:
        from asv.results import Results

        python, numpy = _short(machine.python), _short(machine.numpy)
        required = {"numpy": numpy} if numpy else {}
        env_name = "-".join([f"py{python}", *(f"{name}{version}" for name, version in required.items())])
        params = {**facts, "python": python, **required}
        # Not in the parameters: asv's graphs would start a new line for each compiler or driver. Ours mark it.
        with_ = {key: value for key in ("cpu", "gpu", "driver", "compiler") if (value := getattr(machine, key))}
        results = Results(params, {**required, **with_}, commit.sha, commit.date_ms, python, env_name, {})
        path = self.results_dir / results._filename  # noqa: SLF001 - asv offers no other way to its path
        try:
            if (earlier := path.with_name(f"{path.stem}{NO_NUMPY}.json")).is_file() and not path.exists():
                earlier.rename(path)
            results.load_data(str(self.results_dir))
        except Exception as error:
            raise RocattnError(
                f"{path} cannot be read ({plain(str(error))}): move it away, then store again"
            ) from error
        return results

    def _save(self, results: Results, folder: Path) -> None:
        """Write a result file atomically: asv, which writes in place, writes elsewhere, then the file is renamed."""
        with tempfile.TemporaryDirectory(prefix=".rocattn-", dir=self.results_dir) as scratch:
            results.save(scratch)
            folder.mkdir(exist_ok=True)
            for written in Path(scratch).glob("*/*.json"):
                written.replace(folder / written.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the store's lock; file system errors become one line."""
        try:
            result_folder(self.results_dir)
            with locked(self.results_dir / LOCK, wait_s=LOCK_TIMEOUT_S):
                yield
        except HeldError as error:
            raise RocattnError(f"{error}: wait until it has stored its results") from error
        except OSError as error:
            raise RocattnError(
                f"cannot write to the asv store {self.results_dir}: {error.strerror or error}"
            ) from error


def machine_folder(machine: Machine) -> str:
    """Return the name of a machine's results folder."""
    return _PATH_PART.sub("_", machine.name) or "unnamed"


def read_config(path: Path) -> Config:
    """Read an asv configuration.

    Raises:
        RocattnError: When it is missing or asv rejects it; one line.
    """
    from asv.config import Config

    try:
        return Config.load(str(path))
    except Exception as error:  # asv raises ValueError, UserError and json5's own for a bad file
        raise RocattnError(f"cannot read {path}: {plain(str(error))}") from error


def load_results(path: Path) -> Results:
    """Read one result file through asv's own class.

    Raises:
        RocattnError: When asv cannot read it.
    """
    from asv.results import Results
    from asv.util import UserError

    try:
        return Results.load(str(path))
    except (UserError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        try:
            data = json.loads(path.read_bytes())
            if not isinstance(data, dict) or data.get("version") != 1:
                raise RocattnError(plain(str(error))) from error
            with tempfile.TemporaryDirectory(prefix="rocattn-asv-") as scratch:
                updated = Path(scratch) / path.name
                updated.write_text(json.dumps(up_to_date(data)), encoding="utf-8")
                return Results.load(str(updated))
        except (UserError, OSError, ValueError, TypeError, AttributeError, RecursionError) as broken:
            raise RocattnError(plain(str(broken))) from broken


class _Found:
    """The content of some result files.

    Attributes:
        grids: Results by benchmark, parameter values, machine and environment.
        places: `PLACE_KEYS` of each commit by machine and environment.
        odd: Results that are not numbers, and the first file with them.
        passed_over: Files that cannot be read.
    """

    def __init__(self) -> None:
        self.grids: dict[GridKey, ResultGrid] = {}
        self.places: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
        self.odd: dict[str, Path] = {}
        self.passed_over = PassedOver()

    def read(self, path: Path, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Add a file's results, without benchmarks whose version differs from the known one."""
        file = _result_file(path)
        date_of(file.date)
        where = (str(file.params.get("machine", "")), str(file.env_name).removesuffix(NO_NUMPY))
        self.places.setdefault(where, {})[file.commit_hash] = place_of(file)
        keys, widths = {}, {}
        for name in sorted(file.results):
            info = known.get(name, {})
            if info and file.column(name, "version") not in {None, info.get("version")}:
                continue
            try:
                params = file.column(name, "params") or []
                if all(params):  # a parameter without values can have no results
                    keys[name] = (name, tuple(tuple(map(str, values)) for values in params), *where)
                    widths[name] = _combinations(params)
            except (ValueError, TypeError, AttributeError) as error:
                self._pass_over(name, error, path)
        self._add_numbers(file, path, keys, widths)

    def _add_numbers(
        self, file: ResultFile, path: Path, keys: Mapping[str, GridKey], widths: Mapping[str, int]
    ) -> None:  # fmt: skip
        """Add results of benchmarks together: one by one would take three times as long."""
        try:
            for (name, width), values in zip(widths.items(), numbers_of(file, widths), strict=True):
                self.grids.setdefault(keys[name], ResultGrid(width)).add(file, values)
        except (ValueError, TypeError) as error:
            if len(widths) == 1:
                self._pass_over(next(iter(widths)), error, path)
            else:
                for name, width in widths.items():
                    self._add_numbers(file, path, keys, {name: width})

    def _pass_over(self, name: str, error: Exception, path: Path) -> None:
        self.odd.setdefault(f"passed over {plain(name, 200)} ({plain(str(error))})", path)

    def add(self, later: _Found) -> None:
        """Add the content of later files."""
        for key, grid in later.grids.items():
            if key in self.grids:
                self.grids[key].extend(grid)
            else:
                self.grids[key] = grid
        for where, facts in later.places.items():
            self.places.setdefault(where, {}).update(facts)
        self.odd = later.odd | self.odd
        self.passed_over.extend(later.passed_over)


def _read_files(paths: Sequence[Path], known: Mapping[str, Mapping[str, Any]]) -> _Found:
    """Read result files."""
    found = _Found()
    for path in paths:
        try:
            found.read(path, known)
        except (RocattnError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            found.passed_over.add(path, error)
    return found


def _result_file(path: Path) -> ResultFile:
    """Read one result file; asv's own class would take twice as long.

    Raises:
        RocattnError: When asv would not read it.
    """
    from asv.util import UserError

    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, UserError):
        data = json.loads(path.read_bytes())
        if data["version"] in {1, 2}:
            return ResultFile(data if data["version"] == 2 else up_to_date(data))
    load_results(path)  # raises with the reason
    return ResultFile(up_to_date(json.loads(path.read_bytes())))


def _combinations(params: Sequence[Sequence[object]]) -> int:
    if (count := math.prod(map(len, params))) > _MOST_RESULTS:
        raise ValueError(f"its parameters have {count} combinations")
    return count


def up_to_date(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result file's content as ``asv update`` would make it; the file itself stays as it is.

    Raises:
        UserError: asv's, when it lacks required fields.
    """
    from asv.results import Results

    updated: dict[str, Any] = Results.update_to_2(data) | {"version": 2} if data.get("version") == 1 else data
    return updated


def _write_asv_json(path: Path, data: dict[str, Any], version: int) -> None:
    write_text(path, json.dumps({**data, "version": version}, indent=4, sort_keys=True) + "\n")


def _load_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object without asv's version field; None if it cannot be read."""
    try:
        data = decoded(path.read_bytes())
    except (OSError, DocumentError):
        return None
    return {k: v for k, v in data.items() if k != "version"} if isinstance(data, dict) else None


def _refuse_dirty(commit: Commit) -> None:
    if commit.dirty:
        raise RocattnError(f"{commit.sha[:8]} was measured with uncommitted changes: the history takes commits only")


def _this_machine() -> Machine:
    from rocattn_profiling.measure.machine import this_machine

    return this_machine()


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _short(version: str) -> str:
    """Return major.minor: the environment's name must not change with every patch release."""
    return ".".join(version.split(".")[:2])


Sample = float | list[float] | None
"""A result of one parameter combination: samples in seconds, a number, NaN for n/a, None for failed."""
_MOST_RESULTS = 1_000_000  # per benchmark and file
_BENCHMARK_NAME = re.compile(r"[A-Za-z_][\w.-]{0,199}")


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One benchmark's results, to be stored."""

    name: str
    params: list[list[str]]
    param_names: list[str]
    unit: str
    version: str
    kind: str
    values: dict[tuple[int, ...], Sample]

    def check(self) -> None:
        """Reject what would hang, crash or disappear in ``asv publish``."""
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
    """Return a record's samples; None (failed) for wrong output, NaN (n/a) for a skipped one."""
    if record.skipped or not record.launches:
        return math.nan
    if record.check is not None and not record.check.ok:
        return None
    return [sample / 1e9 for launch in record.launches for sample in launch.samples_ns]


def add_result(results: Results, benchmark: dict[str, Any], entry: StoreEntry) -> None:
    """Merge an entry into a commit's results, over the union of the parameter values."""
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
            values[at], samples[at], number[at] = value[0], list(value), 1  # asv takes their median
        else:
            values[at] = value
    merged = results.benchmark_version.get(entry.name) == entry.version
    if not merged and entry.name in results.get_all_result_keys():
        results.remove_result(entry.name)
    if not merged:
        # Combinations not measured at this commit are n/a, not failed.
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
    """Merge two descriptions of a benchmark: new facts win, parameter values are united."""
    if known.get("version") != new.get("version") or known.get("param_names") != new.get("param_names"):
        return new
    code = new.get("code") or known.get("code", "")
    pairs = zip(known.get("params", []), new.get("params", []), strict=True)
    return {**known, **new, "code": code, "params": [list(dict.fromkeys([*a, *b])) for a, b in pairs]}
