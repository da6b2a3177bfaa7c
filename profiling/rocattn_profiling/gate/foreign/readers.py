"""Readers for other programs' result files: a table of formats, with how to detect and read each.

Units decide the direction. A rate is better when larger; a time, a size or a count per operation when smaller. For any
other unit the file itself must say which (JSON lines with ``better``), or the result is not judged. A result that
occurs several times in a file gives several samples of one run.
"""

from __future__ import annotations

import array
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree as ET

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import guess_unit, is_rate
from rocattn_profiling.asv.store import load_results
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.gate.rule.pairs import TIMES, no_measurement

Better = Literal["smaller", "larger", ""]
_SIZES = re.compile(r"[kmgt]?i?b(ytes)?", re.IGNORECASE)
_PER_OPERATION = re.compile(r"/ ?(op|iter|call|step|item)s?$")
_GO = re.compile(r"^(Benchmark\S*)\s+(\d+)\s+(.+)$|^--- FAIL: (Benchmark\S*)", re.MULTILINE)
_CORES = re.compile(r"-(\d+)$")  # GOMAXPROCS, which go appends to a name unless it is 1
_CRITERION = re.compile(r"[ \t]+\[\S+ \S+ (\S+) (\S+) \S+ \S+\]")  # after "time:"
_TIMED = re.compile(r"[ \t]time:[ \t]{1,99}\[")
_LONGEST_UNIT = 80  # characters at the end of a column's name that are searched for a unit
_NAMED_PARTS = frozenset({"TestCase", "Section"})  # of a Catch2 report
_CK = re.compile(r"^(?:Best )?Perf\b[^:\n]*:\s*([\d.eE+-]+) (ms|us), .*?GB/s(?:, *(.*))?$", re.MULTILINE)


_ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)  # raised by text in another format


class ReadError(RocattnError):
    """Raised for a result file that cannot be read; the message is one line."""


class Reading(NamedTuple):
    """A result of one benchmark in one file.

    Attributes:
        name: The benchmark with its parameters.
        unit: "ns" for every time, otherwise as in the file.
        values: The samples.
        better: Which values are better; "" if unknown.
        cpu: CPU time of the same samples, in ns; empty if unknown, and for GPU times.
        number: The smallest number of calls per sample.
    """

    name: str
    unit: str
    values: list[float]
    better: Better
    cpu: Sequence[float] = ()
    number: int = 1


class Results(NamedTuple):
    """The results in one file.

    Attributes:
        form: Name of its format.
        readings: Name -> its reading.
        failed: Name -> why it has no value.
        start_s: When the file says that it was measured, in Unix seconds; 0 if it does not say.
    """

    form: str
    readings: dict[str, Reading]
    failed: dict[str, str]
    start_s: float = 0.0


class Text(NamedTuple):
    """A file, or a command's output: its text, the text parsed as JSON (None if it is not), and its path."""

    content: str
    json: Any
    path: Path


class Form(NamedTuple):
    """A format: whether a text has it, its readings, and its start; a failed benchmark is read as (name, reason)."""

    fits: Callable[[Text], bool]
    read: Callable[[Text], Iterator[Reading | tuple[str, str]]]
    start: Callable[[Text], object] = lambda _: None


def direction(unit: str) -> Better:
    """Return which values of a unit are better; "" if the unit does not say."""
    if unit in TIMES or _SIZES.fullmatch(unit) or _PER_OPERATION.search(unit):
        return "smaller"
    return "larger" if is_rate(unit) else ""


def undirected(unit: str) -> str:
    """Return why values of a unit are not judged."""
    return f"nothing says whether more {unit} is better or worse"


def read_results(path: Path, form: str = "") -> Results:
    """Read a result file.

    Args:
        path: The file.
        form: Name of its format; "" to detect it.

    Raises:
        ReadError: Its format is unknown or not the given one, or it has no result.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error.strerror}") from error
    return parse(text, path, form)


def parse(text: str, path: Path, form: str = "") -> Results:
    """Read a program's output; like `read_results`, but given the text."""
    try:
        whole = json.loads(text) if text.lstrip()[:1] in {"{", "["} else None
    except (ValueError, RecursionError):
        whole = None
    source = Text(text, whole, path)
    name = form or next((name for name, each in FORMS.items() if _fits(each, source)), "")
    if not name:
        raise ReadError(f"{path} has no known format: name it with --format ({', '.join(FORMS)})")
    readings: dict[str, Reading] = {}
    failed: dict[str, str] = {}
    try:
        for each in FORMS[name].read(source):
            if not isinstance(each, Reading):
                failed[each[0]] = each[1]
            elif wrong := next(filter(None, map(no_measurement, each.values)), ""):
                failed[each.name] = f"a value is {wrong}"
            elif each.better == "larger" and not all(each.values):
                failed[each.name] = f"a rate is 0 {each.unit}"
            else:
                before = readings.get(each.name)
                readings[each.name] = each if before is None else _joined(before, each)
        start = _seconds(FORMS[name].start(source))
    except (*_ODD, SyntaxError, OverflowError, RocattnError) as error:
        raise ReadError(f"{path} is not {name}: {terminal(f'{type(error).__name__}: {error}', 300)}") from error
    if not readings and not failed:
        raise ReadError(f"{path} has no {name} results")
    return Results(name, readings, {name: why for name, why in failed.items() if name not in readings}, start)


def _fits(form: Form, source: Text) -> bool:
    try:
        return form.fits(source)
    except _ODD:
        return False


def _joined(before: Reading, more: Reading) -> Reading:
    if before.unit != more.unit:
        raise ValueError(f"{before.name} is in {before.unit} and in {more.unit}")
    cpu = [*before.cpu, *more.cpu] if before.cpu and more.cpu else ()
    return before._replace(values=[*before.values, *more.values], cpu=cpu, number=min(before.number, more.number))


def _seconds(when: object) -> float:
    try:
        return datetime.fromisoformat(str(when)).timestamp() if when else 0.0
    except ValueError:
        return 0.0


def _reading(name: str, unit: str, values: Sequence[float], better: Better | None = None, **more: Any) -> Reading:
    """Return a reading; times become ns."""
    factor = TIMES.get(unit)
    numbers = [float(value) * (factor or 1.0) for value in values]
    return Reading(name, "ns" if factor else unit, numbers, direction(unit) if better is None else better, **more)


# --- The formats --------------------------------------------------------------------------------------------------


def _google(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """Repetitions, or the median if there are only aggregates; manual times have no CPU time."""
    rows = source.json["benchmarks"]
    single = {row.get("run_name", row["name"]) for row in rows if row.get("run_type", "iteration") != "aggregate"}
    for row in rows:
        name, kind = row.get("run_name", row["name"]), row.get("run_type", "iteration")
        if row.get("error_occurred") or row.get("skipped"):
            yield name, str(row.get("error_message") or row.get("skip_message") or "it failed")
        elif kind != "aggregate" or (name not in single and row.get("aggregate_name") == "median"):
            unit, manual = row.get("time_unit", "ns"), "manual_time" in name
            cpu = [] if manual or "cpu_time" not in row else [row["cpu_time"] * TIMES[unit]]
            number = max(1, int(row.get("iterations", 1))) if kind != "aggregate" else 1
            yield _reading(name, unit, [row["real_time"]], cpu=cpu, number=number)


def _nvbench(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """GPU time of every sample if the binary file is there, otherwise the mean GPU time."""
    for benchmark in source.json["benchmarks"]:
        for state in benchmark["states"]:
            name = f"{benchmark['name']} {state['name']}".strip()
            listed = state.get("summaries") or []
            found = {each["tag"]: {datum["name"]: datum["value"] for datum in each["data"]} for each in listed}
            raw, mean = found.get("nv/json/bin:nv/cold/sample_times"), found.get("nv/cold/time/gpu/mean")
            file = source.path.parent / raw["filename"] if raw else None
            if file is not None and file.is_file():
                samples = array.array("f", file.read_bytes())
                if sys.byteorder == "big":
                    samples.byteswap()
                yield _reading(name, "s", samples)
            elif mean is not None:
                yield _reading(name, "s", [mean["value"]])
            else:
                yield name, str(state.get("skip_reason") or "it has no GPU time")


def _pytest(source: Text) -> Iterator[Reading | tuple[str, str]]:
    for row in source.json["benchmarks"]:
        stats = row["stats"]
        yield _reading(row["fullname"], "s", stats.get("data") or [stats["median"]], number=max(1, stats["iterations"]))


def _hyperfine(source: Text) -> Iterator[Reading | tuple[str, str]]:
    for row in source.json["results"]:
        codes = row.get("exit_codes") or []
        if any(codes):
            yield row["command"], f"it ended with exit status {next(filter(None, codes))}"
        else:
            yield _reading(row["command"], "s", row.get("times") or [row["median"]])


def _asv(source: Text) -> Iterator[Reading | tuple[str, str]]:
    import itertools

    results = load_results(source.path)
    listed = next((file for up in (0, 1) if (file := source.path.parents[up] / "benchmarks.json").is_file()), None)
    known = json.loads(listed.read_text()) if listed else {}
    for name in results.get_all_result_keys():
        own = results.get_result_params(name) or []
        values, samples = results.get_result_value(name, own), results.get_result_samples(name, own)
        unit = (known.get(name) or {}).get("unit") or guess_unit(name)
        better: Better = "larger" if is_rate(unit) else "smaller"  # asv's rule
        for at, combination in enumerate(itertools.product(*own)):
            label = f"{name}({', '.join(combination)})" if combination else name
            if values[at] is None or values[at] != values[at]:
                yield label, "it has no result"
            else:
                yield _reading(label, unit, samples[at] or [values[at]], better)


def _catch2(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """Catch2's XML reporter, versions 2 and 3: means in ns; output before the XML is skipped."""
    text = source.content
    yield from _catch2_of(ET.fromstring(text[max(0, text.find("<?xml")) :].strip()), ())  # noqa: S314 - no DTD


def _catch2_of(element: ET.Element, above: tuple[str, ...]) -> Iterator[Reading | tuple[str, str]]:
    for each in element:
        name = ": ".join((*above, each.get("name", "")))
        mean, failed = each.find("mean"), each.find("failed")
        if each.tag != "BenchmarkResults":
            yield from _catch2_of(each, (*above, each.get("name", "")) if each.tag in _NAMED_PARTS else above)
        elif mean is None:
            yield name, (failed.get("message", "") if failed is not None else "") or "it failed"
        else:
            yield _reading(name, "ns", [float(mean.attrib["value"])])


def _criterion(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """Messages (``cargo criterion --message-format json``) or plain output, where a long name has its own line."""
    rows = [json.loads(line) for line in source.content.splitlines() if line.startswith("{")]
    for row in (row for row in rows if row.get("reason") == "benchmark-complete"):
        times = zip(row["measured_values"], row["iteration_count"], strict=True)
        values = [value / count for value, count in times]
        yield _reading(row["id"], row["unit"], values, number=max(1, int(min(row["iteration_count"]))))
    lines = source.content.splitlines()
    for number, line in enumerate(lines if not rows else []):
        name, _, rest = line.rpartition("time:")
        if match := name.endswith((" ", "\t")) and _CRITERION.match(rest):
            yield _reading(name.strip() or lines[number - 1].strip(), match[2], [float(match[1])])


def _go(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """Output of ``go test -bench``, also with ``-json``; a core count that all names end with is dropped."""
    found = _GO.findall(_go_text(source))
    cores = {match[1] if (match := _CORES.search(name)) else "" for name, *_ in found if name}
    for name, count, rest, broken in found:
        if broken:
            yield broken, "it failed"
            continue
        words = rest.split()
        own = _CORES.sub("", name) if len(cores) == 1 else name
        for value, unit in zip(words[::2], words[1::2], strict=False):
            if unit == "ns/op":
                yield _reading(own, "ns", [float(value)], number=int(count))
            elif not (unit == "MB/s" and "ns/op" in words):  # the same time in another unit
                yield _reading(f"{own} {unit}", unit, [float(value)])


def _go_text(source: Text) -> str:
    lines = source.content.splitlines()
    if not (lines and lines[0].startswith("{") and '"Action"' in lines[0]):
        return source.content
    return "".join(json.loads(line).get("Output", "") for line in lines if line.startswith("{"))


def _ck(source: Text) -> Iterator[Reading | tuple[str, str]]:
    for value, unit, name in _CK.findall(source.content):
        yield _reading(name.strip() or "best", unit, [float(value)])


def _lines(source: Text) -> Iterator[Reading | tuple[str, str]]:
    for row in map(json.loads, (line for line in source.content.splitlines() if line.startswith("{"))):
        values = row["value"] if isinstance(row["value"], list) else [row["value"]]
        better = row.get("better")
        if better not in {None, "smaller", "larger", "lower", "higher"}:
            raise ValueError(f'"better" is {better!r}: "smaller" or "larger"')
        stated: Better | None = None if better is None else "larger" if better in {"larger", "higher"} else "smaller"
        yield _reading(row["name"], row["unit"], values, stated)


def _tables(source: Text) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield each comma-separated table in a text whose header has a unit; other output is skipped."""
    header: list[str] = []
    rows: list[list[str]] = []
    for line in [*source.content.splitlines(), ""]:
        cells = _cells(re.sub(r"^\[\d+\]:?", "", line.strip()))
        if header and len(cells) == len(header):
            rows.append(cells)
            continue
        if header and rows:
            yield header, rows
        names = len(cells) > 1 and not any(map(_is_number, cells))
        header, rows = (cells, []) if names and any(map(unit_of, cells)) else ([], [])


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:  # a cell of more than 128 KiB: not a table
        return []


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def unit_of(column: str) -> str:
    """Return the unit at the end of a column's name ("us", "time_ms", "rocblas-Gflops", "Triton (GB/s)"), or ""."""
    column = column[-_LONGEST_UNIT:]  # bounds the search, which retries from every position
    if rate := re.search(r"([A-Za-z]+)_per_s(?:ec(?:ond)?)?$", column):
        return f"{rate[1]}/s"
    match = re.search(r"[(\[]([^()\[\]]+)[)\]]$", column) or re.search(r"([^\s_:-]+)$", column)
    unit = match[1] if match else ""
    whole = unit == column
    known = (unit in TIMES and not (whole and len(unit) == 1)) or (is_rate(unit) and not unit.isdigit())
    return unit if known else ""


def _csv(source: Text) -> Iterator[Reading | tuple[str, str]]:
    """Rows of tables: the cells before the first column with a unit name a benchmark; empty cells are not results."""
    for header, rows in _tables(source):
        if {"real_time", "time_unit"} <= set(header):
            yield from _google_rows(header, rows)
            continue
        found = {at: unit_of(unit_name(header, at)) for at in range(len(header))}
        units = {at: unit for at, unit in found.items() if unit}
        times = {at: unit for at, unit in units.items() if unit in TIMES}
        first = min(units)
        for row in rows:
            key = ", ".join(f"{header[at]}={row[at]}" for at in range(first) if header[at])
            for at, unit in (times or units).items():
                column = header[at] if len(times or units) > 1 else ""
                name = " ".join(filter(None, [key, column])) or header[at]
                if not row[at]:
                    continue
                try:
                    yield _reading(name, unit, [float(row[at])])
                except ValueError:
                    yield name, f"{header[at]} is {row[at]!r}"


def _google_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[Reading | tuple[str, str]]:
    """Google Benchmark's own table, without rows of fits (no time unit) and aggregates (no iterations)."""
    for row in (dict(zip(header, cells, strict=True)) for cells in rows):
        if row.get("error_occurred") == "true":
            yield row["name"], row.get("error_message") or "it failed"
        elif row["time_unit"] in TIMES and row.get("iterations"):
            unit, manual = row["time_unit"], "manual_time" in row["name"]
            cpu = [] if manual else [float(row["cpu_time"]) * TIMES[unit]]
            yield _reading(row["name"], unit, [float(row["real_time"])], cpu=cpu, number=max(1, int(row["iterations"])))


def unit_name(header: Sequence[str], at: int) -> str:
    """Return a column's name; "" if it occurred before: rocblas-bench repeats ``us`` for CPU time."""
    return "" if header[at] in header[:at] else header[at]


def _has(*keys: str, **of_first: str) -> Callable[[Text], bool]:
    """Return a test for JSON objects with these keys, and with a given key in the first item of a list."""

    def fits(source: Text) -> bool:
        known = all(key in source.json for key in keys)
        return known and all(inner in source.json[outer][0] for outer, inner in of_first.items())

    return fits


def _is_lines(source: Text) -> bool:
    first = next((line for line in source.content.splitlines() if line.startswith("{")), "{}")
    return bool({"name", "value", "unit"} <= json.loads(first).keys())


def _context(source: Text) -> object:
    return source.json.get("context", {}).get("date")


FORMS: Mapping[str, Form] = {
    "nvbench": Form(_has("devices", benchmarks="states"), _nvbench),
    "google": Form(_has("context", "benchmarks"), _google, _context),
    "pytest": Form(_has("machine_info", "benchmarks"), _pytest, lambda source: source.json.get("datetime")),
    "hyperfine": Form(_has(results="command"), _hyperfine),
    "asv": Form(_has("commit_hash", "results", "params"), _asv),
    "catch2": Form(lambda source: "<BenchmarkResults" in source.content, _catch2),
    "criterion": Form(
        lambda source: '"benchmark-complete"' in source.content or _TIMED.search(source.content) is not None, _criterion
    ),
    "go": Form(lambda source: _GO.search(_go_text(source)) is not None, _go),
    "ck": Form(lambda source: _CK.search(source.content) is not None, _ck),
    "jsonl": Form(_is_lines, _lines),
    "csv": Form(lambda source: next(_tables(source), None) is not None, _csv),
}
"""Name -> format; the first one that fits a file is used."""
