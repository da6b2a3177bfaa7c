"""Find profiler files in folders, read and check each file, and merge them: `read` and `describe`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.base.markup import plain
from rocattn_profiling.profile.ingest.csv_text import HEADER_BYTES, Utf8, parse_header
from rocattn_profiling.profile.ingest.detect import (
    HEAD_BYTES,
    DetectedFile,
    detect,
    within_workload,
    workload_generation,
)
from rocattn_profiling.profile.ingest.merge import arrange, assemble
from rocattn_profiling.profile.ingest.parts import MISSING, FilePart, Notes, UnreadableError, nullable
from rocattn_profiling.profile.ingest.small_csv import rows_of
from rocattn_profiling.profile.ingest.table import THREAD_TRACE, FileProblem, FileSummary, Profile, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_FILES = 20_000
_VERSION = re.compile(rb"(?mi)^(?:omniperf|rocprof(?:iler)?-compute) version:? +([\w.+-]{1,40})")
# Suffixes that rocprofv3 appends to the name of a run.
_SUFFIX = re.compile(
    r"_?(counter_collection(_trace)?|kernel_trace|kernel_stats|agent_info|results|domain_stats|[a-z]+_api_(trace|stats)|"
    r"memory_copy_(trace|stats)|pc_sampling_(host_trap|stochastic))$"
)
_AT_ONCE = 1 << 16  # values per chunk
_FEWEST_ROUNDED = 3
_SEVEN_DIGITS = 1_000_000  # from here on, a value of six significant digits ends in a zero


def read(paths: Sequence[str | os.PathLike[str]]) -> Profile:
    """Read profiler output from any supported tools and versions into one profile.

    A file that cannot be read becomes one entry in `Profile.problems`; the others are still read.

    Args:
        paths: Files, or folders to search.

    Raises:
        RocattnError: When a path does not exist.
    """
    return assemble(_load(paths))


def describe(paths: Sequence[str | os.PathLike[str]]) -> list[FileSummary]:
    """Describe every file in these paths: its tool, its contents and its problems.

    Raises:
        RocattnError: When a path does not exist.
    """
    parts = _load(paths)
    held = [
        (
            part.dispatches["kernel"].nunique() or part.summaries["kernel"].nunique(),
            len(part.dispatches.drop_duplicates(["process", "dispatch"])),
            tuple(sorted(part.counters["counter"].cat.categories)),
            int(part.samples.loc[part.samples["method"] != THREAD_TRACE, "count"].sum()),
        )
        for part in parts
    ]
    arrange(parts)
    return [
        FileSummary(part.source, kernels, dispatches, counters, tuple(part.problems), samples)
        for part, (kernels, dispatches, counters, samples) in zip(parts, held, strict=True)
    ]


def _load(paths: Sequence[str | os.PathLike[str]]) -> list[FilePart]:
    """Return a part for every file, in the order of the paths."""
    parts = []
    roots = [Path(path) for path in paths]
    names = _root_names(roots)
    real_paths: set[str] = set()
    for root, name in zip(roots, names, strict=True):
        by_folder: dict[Path, list[Path]] = {}
        for path in _files(root):
            real = os.path.realpath(path)
            if real not in real_paths:
                real_paths.add(real)
                by_folder.setdefault(path.parent, []).append(path)
        for folder, files in by_folder.items():
            relative = folder.relative_to(root).as_posix() if root.is_dir() else "."
            label = "/".join(piece for piece in (name, relative) if piece not in {"", "."})
            parts += _load_folder(folder, files, label)
        if len(real_paths) > MOST_FILES:
            parts.append(
                _broken(Source(str(root), "", "", "folder", ""), f"more than {MOST_FILES} files", "name the run")
            )
            break
    return parts


def _root_names(roots: list[Path]) -> list[str]:
    """Return a unique name for each root; a single root needs none."""
    folders = [root if root.is_dir() else root.parent for root in roots]
    distinct = list(dict.fromkeys(map(os.path.realpath, folders)))
    if len(distinct) < 2:
        return [""] * len(roots)
    common = os.path.commonpath(distinct)
    return [os.path.relpath(os.path.realpath(folder), common).replace(os.sep, "/") for folder in folders]


def _files(root: Path) -> Iterator[Path]:
    """Yield the files below a path in natural order, skipping hidden folders; visit each folder once."""
    if not root.exists():
        raise RocattnError(f"{root} does not exist")
    if not root.is_dir():
        yield root
        return
    visited: set[tuple[int, int]] = set()
    count = 0
    for folder, folders, files in os.walk(root, followlinks=True):
        about = os.stat(folder)  # noqa: PTH116 - os.walk yields strings
        if (about.st_dev, about.st_ino) in visited:  # a link to a parent folder would recurse forever
            folders.clear()
            continue
        visited.add((about.st_dev, about.st_ino))
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural)
        for name in sorted(files, key=_natural):
            if not name.startswith("."):
                count += 1
                yield Path(folder, name)
        if count > MOST_FILES:
            return


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort pmc_perf_10 after pmc_perf_9."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d{1,18})", name)]


def _load_folder(folder: Path, files: list[Path], label: str) -> list[FilePart]:
    detected: list[DetectedFile | FilePart] = []
    for path in files:
        try:
            detected.append(detect(path, str(path)))
        except OSError as error:
            source = Source(str(path), "", "", "broken", "")
            detected.append(
                _broken(source, f"cannot be read ({error.strerror})", "check that it exists and its permissions")
            )
    generation, rocm, version = _workload(detected)
    parts = []
    for file in detected:
        if isinstance(file, FilePart):
            parts.append(file)
            continue
        if generation:
            file = within_workload(file, generation, version)  # noqa: PLW2901 - the same file with more facts
        parts.append(_read_one(replace(file, source=replace(file.source, rocm=rocm)), folder, label))
    return parts


def _workload(files: Sequence[DetectedFile | FilePart]) -> tuple[str, str, str]:
    """Return rocprof-compute's generation and the ROCm and tool versions if a folder has its sysinfo.csv."""
    for file in files:
        if isinstance(file, DetectedFile) and file.source.kind == "sysinfo":
            stream = Utf8(file.path)
            try:
                header = parse_header(stream.read(HEADER_BYTES))
            finally:
                stream.close()
            assert header is not None, "detect has parsed this header"
            rows = rows_of(file.path, header)
            row = rows[0] if rows else {}
            rocm = row.get("rocm_version") or row.get("host_rocmver") or ""
            logs = [log.path for log in files if isinstance(log, DetectedFile) and log.is_log_of_compute()]
            version = next((stated for stated in map(_stated_version, logs) if stated), "")
            return workload_generation(header.names, row.get("version", "")), rocm, version
    return "", "", ""


def _stated_version(log: Path) -> str:
    """Return the version in rocprof-compute's log, or ""."""
    stream = Utf8(log)
    try:
        match = _VERSION.search(stream.read(HEAD_BYTES))
    finally:
        stream.close()
    return match[1].decode() if match else ""


def _read_one(file: DetectedFile, folder: Path, label: str) -> FilePart:
    """Read one file; any error becomes a problem of that file only."""
    stem = file.path.stem.removesuffix(".csv")  # for compressed tables
    run = _SUFFIX.sub("", stem) if file.source.tool == "rocprofv3" else stem
    part = FilePart(file.source, scope=str(folder), family=file.family)
    part.pass_label = "/".join(piece for piece in (label, run) if piece)
    if file.reader is None:
        if file.source.kind == "broken":
            part.problems.append(FileProblem(file.source.file, None, file.source.skipped, "the other files are read"))
        return part
    try:
        part = file.reader(part)
        check(part)
    except UnreadableError as error:
        return _broken(file.source, error.what, error.remedy, error.line)
    except (OSError, MemoryError) as error:
        return _broken(file.source, f"cannot be read ({error})", "check the disk, the permissions and the memory")
    except Exception as error:  # noqa: BLE001 - one malicious file must not hide the run's other files
        text = plain(f"{type(error).__name__}: {error}", 200)
        return _broken(file.source, f"cannot be read ({text})", "please report this file to rocattn")
    return part


def _broken(source: Source, what: str, remedy: str, line: int | None = None) -> FilePart:
    part = FilePart(replace(source, skipped=what))
    part.problems.append(FileProblem(source.file, line, what, remedy))
    return part


def check(part: FilePart) -> None:
    """Note problems in one file's values, and remove impossible times."""
    if not len(part.dispatches):
        return
    notes = Notes(part.source.file)
    _check_times(part, notes)
    _check_counters(part, notes)
    part.problems += notes.problems()


def _check_times(part: FilePart, notes: Notes) -> None:
    """Remove times with a duration of zero or less."""
    times = part.dispatches[["start_ns", "end_ns"]]
    start, end = (times[name].to_numpy(np.int64, na_value=MISSING) for name in times)
    half = (start == MISSING) != (end == MISSING)
    unused = "[its|their] times are not used"
    never = (start != MISSING) & (end != MISSING) & (end <= start)
    notes.add(
        "{n} [dispatch ends before or when it starts|dispatches end before or when they start]",
        unused if part.timing else f"{unused}; take times from a kernel trace", count=int(never.sum()),
    )  # fmt: skip
    notes.add("{n} [dispatch has|dispatches have] a start or an end, not both", unused, count=int(half.sum()))
    wrong = half | never
    if wrong.any():
        for name, values in (("start_ns", start), ("end_ns", end)):
            part.dispatches[name] = nullable(np.where(wrong, MISSING, values), "Int64")


def _check_counters(part: FilePart, notes: Notes) -> None:
    if not len(part.counters):
        return
    row = part.counters["row"].to_numpy()
    counts = np.zeros(len(part.dispatches), np.int64)
    for begin in range(0, len(row), 16 * _AT_ONCE):  # bincount makes 64-bit copies
        counts += np.bincount(row[begin : begin + 16 * _AT_ONCE], minlength=len(counts))
    passes = part.dispatches["pass"].cat.codes.to_numpy()
    most = np.zeros(passes.max() + 1, np.int64)
    np.maximum.at(most, passes, counts)
    notes.add(
        "{n} [dispatch lacks counters that others of its|dispatches lack counters that others of their] pass have",
        "metrics that need those are not computed", count=int((counts < most[passes]).sum()),
    )  # fmt: skip
    if _rounded_to_six_digits(part.counters["value"].to_numpy()):
        notes.add("values have 6 significant digits only", "small differences of large values mean nothing")


def _rounded_to_six_digits(values: NDArray[np.float64]) -> bool:
    """Return whether all large values are rounded and at least three distinct ones exist.

    A count that is the same in every launch (1228800 waves) does not indicate rounding.
    """
    distinct: set[float] = set()
    for begin in range(0, len(values), _AT_ONCE):
        part = values[begin : begin + _AT_ONCE]
        large = part[part >= _SEVEN_DIGITS]
        if (large % 10.0 ** (np.floor(np.log10(large)) - 5)).any():
            return False
        if len(distinct) < _FEWEST_ROUNDED:
            distinct.update(np.unique(large)[:_FEWEST_ROUNDED].tolist())
    return len(distinct) >= _FEWEST_ROUNDED
