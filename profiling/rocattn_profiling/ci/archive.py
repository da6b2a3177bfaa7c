"""The archive of ``rocattn ci --gpu``: a job's GPU measurements in publishable form.

An allowlist defines the content: files of the steps (`_MEMBERS`), fields of their JSON, text columns of a profiler's
tables. Free text, such as logs, and code objects with their line tables stay on the machine. Names of machine and user,
known folders, secrets of the environment and absolute paths are removed from every text; a file that still contains
one of them is left out and listed.
"""

from __future__ import annotations

import csv
import getpass
import gzip
import io
import itertools
import json
import os
import platform
import pwd
import re
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import rocattn
from rocattn.errors import RocattnError
from rocattn.sources import kernel_root
from rocattn_profiling.base.files import DocumentError, decoded, write_bytes
from rocattn_profiling.base.status import OK
from rocattn_profiling.ci import known
from rocattn_profiling.ci.card import JobStep
from rocattn_profiling.measure.records import read_records
from rocattn_profiling.profile.collect.scrub import SCRUBBED, secrets_of

ARCHIVE, SUMMARY, BESIDE, DOCTOR = "rocattn-gpu.tar.gz", "SUMMARY.md", "beside.json", "doctor.json"
_ROOT = "rocattn-gpu"
_WAVES = 32  # wave timelines per trace, which has thousands
# An absolute path, but not the rest of a URL, a relative path or a unit (GB/s).
_PATH = re.compile(r"(?:file://|(?<![\w./])(?<!:/))/(?![/\s])[^\s\"'`<>|:;,(){}\[\]]*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|0x[0-9a-f]+", re.IGNORECASE)
# Generic names, and words that occur in measurements.
_NOBODY = {"amd", "cpu", "docker", "gpu", "hip", "linux", "localhost", "rocm", "root", "runner", "ubuntu", "user"}
_SHORTEST = 3  # shorter names would match unrelated text
_TEXT_COLUMNS = {
    "agent_id", "agent_type", "counter_name", "instruction", "kernel_name", "kernelname", "kind", "model_name", "name",
    "product_name", "source", "vendor_name",
}  # fmt: skip
_SERIAL = re.compile(r"uuid|unique|serial", re.IGNORECASE)
_OF_COLLECTION = (
    "rocattn", "complete", "tool", "why", "arch", "wanted", "left_out", "passes", "stopped", "notes", "removed",
    "before", "after", "not_compared", "kernel", "launches",
)  # fmt: skip
_OF_VERIFY = (
    "rocattn", "level", "seed", "cases", "ran", "failed", "skipped", "seconds", "unavailable", "unchecked",
    "not_compared", "stand_ins", "architectures", "symptoms", "failures", "agreements", "ulp_edges", "outcomes",
)  # fmt: skip
_SHOWN = {"gpu", "profilers (only for profiling on a GPU)"}  # of doctor
_UNSAID = {"line", "path", "smi"}  # in a collection: command lines, the profiler's path, a tool's output


class Cleaner:
    """Removes text that identifies the machine or its user.

    Args:
        values: Folders and secrets, removed everywhere.
        names: Names of the machine and its user, removed as whole words.
    """

    def __init__(self, values: frozenset[str], names: frozenset[str]) -> None:
        longest = sorted(values | names, key=lambda value: (-len(value), value))
        patterns = (
            re.escape(value) if value in values else rf"(?<![^\W_]){re.escape(value)}(?![^\W_])" for value in longest
        )
        self._values = re.compile("|".join(patterns) or r"(?!)")
        self._kernels = str(kernel_root())

    @classmethod
    def of_machine(cls, out: Path) -> Cleaner:
        """Return the cleaner for this machine, its user, the environment, and a job's folder."""
        host = platform.node()
        names = {host, host.partition(".")[0], *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}
        with suppress(KeyError, OSError):
            account = pwd.getpwuid(os.getuid())
            names |= {getpass.getuser(), account.pw_name, account.pw_gecos.partition(",")[0]}
        names = {name for name in names if len(name) >= _SHORTEST and name.lower() not in _NOBODY}
        folders = {str(Path.home()), str(Path.cwd()), str(out.absolute()), sys.prefix} - {"/"}
        return cls(secrets_of(os.environ).values | folders, frozenset(names))

    def text(self, text: str) -> str:
        """Return a text without these values and absolute paths; paths of our kernel files start at ``kernels``."""
        text = self._values.sub(SCRUBBED, text.replace(self._kernels, "kernels"))
        return _PATH.sub("<path>", text)

    def tree(self, value: Any, unsaid: AbstractSet[str] = frozenset()) -> Any:
        """Return JSON with cleaned texts, without some fields."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.tree(each, unsaid) for key, each in value.items() if key not in unsaid}
        return [self.tree(each, unsaid) for each in value] if isinstance(value, (list, tuple)) else value

    def table(self, text: str) -> str:
        """Return a CSV with only numbers and the texts of allowed columns; other cells are empty."""
        header, *rows = csv.reader(text.splitlines()) if text else [[]]
        free = [name.strip().lower().replace("-", "_").replace(" ", "_") in _TEXT_COLUMNS for name in header]
        serial = [_SERIAL.search(name) is not None for name in header]
        out = io.StringIO()
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(map(self.text, header))
        for row in rows:
            if len(row) == len(header):  # otherwise its cells do not match the columns
                cells = zip(row, free, serial, strict=True)
                lines.writerow(
                    self.text(cell) if is_free else cell if _NUMBER.fullmatch(cell) and not is_serial else ""
                    for cell, is_free, is_serial in cells
                )
        return out.getvalue()

    def still_in(self, text: str) -> bool:
        """Return whether a text still contains one of the values or names."""
        return self._values.search(text) is not None


def _tree(path: Path, cleaner: Cleaner) -> str:
    return json.dumps(cleaner.tree(decoded(path.read_bytes()))) + "\n"


def _lines(path: Path, cleaner: Cleaner) -> str:
    return "".join(json.dumps(cleaner.tree(decoded(line))) + "\n" for line in path.read_bytes().splitlines())


def _records(path: Path, cleaner: Cleaner) -> str:
    kept = []
    for record in read_records(path):
        commit = record.commit and msgspec.structs.replace(record.commit, subject="")
        kept.append(msgspec.to_builtins(msgspec.structs.replace(record, commit=commit, host="")))
    return "".join(json.dumps(cleaner.tree(each)) + "\n" for each in kept)


def _table(path: Path, cleaner: Cleaner) -> str:
    return cleaner.table(path.read_text("utf-8", errors="replace"))


def _verified(path: Path, cleaner: Cleaner) -> str:
    report = decoded(path.read_bytes())
    return json.dumps(cleaner.tree({name: report[name] for name in _OF_VERIFY})) + "\n"


def _collection(path: Path, cleaner: Cleaner) -> str:
    collection = decoded(path.read_bytes())
    return json.dumps(cleaner.tree({name: collection[name] for name in _OF_COLLECTION}, _UNSAID)) + "\n"


_MEMBERS: tuple[tuple[str, str, Callable[[Path, Cleaner], str]], ...] = (
    ("verify", "verify.json", _verified),
    ("bench", "records.jsonl", _records),
    ("audit", "comparison.json", _tree),
    *(
        ("known", f"{folder}/{pattern}", clean)
        for folder in known.FOLDERS
        for pattern, clean in (
            ("profile.json", _collection),
            ("passes/*/plans.jsonl", _lines),
            ("passes/*/raw/**/*.csv", _table),
            ("passes/*/raw/**/ui_output_*/code.json", _tree),
            ("passes/*/raw/**/ui_output_*/se*_wv*.json", _tree),
        )
    ),
)
"""The files of each step, and their cleaning functions."""


def pack(steps: Sequence[JobStep], out: Path, since_s: float, doctor: Sequence[str]) -> Path:
    """Write the archive into the job's folder and return its path.

    Args:
        steps: The steps, after all have ended.
        out: The job's folder.
        since_s: Start of the job: older files belong to another one.
        doctor: The arguments of ``rocattn`` that check this machine.

    Raises:
        RocattnError: When it cannot be written.
    """
    cleaner = Cleaner.of_machine(out)
    texts: dict[str, str] = {}
    left_out: list[str] = []

    def add(name: str, make: Callable[[], str]) -> None:
        try:
            text = make()
        except (OSError, ValueError, KeyError, TypeError, csv.Error, RocattnError) as error:
            left_out.append(f"{name}: it cannot be read ({cleaner.text(str(error))})")
            return
        if cleaner.still_in(text):
            left_out.append(f"{name}: it would tell whose machine this is")
        else:
            texts[name] = text

    for step in steps:
        for path, clean in () if step.skipped else _files(step, out, since_s):
            name = cleaner.text(path.relative_to(out).as_posix()).replace(SCRUBBED, "scrubbed")
            add(name, lambda path=path, clean=clean: clean(path, cleaner))  # type: ignore[misc]
    seen = _doctor(doctor)
    add(DOCTOR, lambda: json.dumps(cleaner.tree(seen), indent=1) + "\n")
    rows = _beside(steps, out, since_s)
    add(BESIDE, lambda: json.dumps(cleaner.tree(rows), indent=1) + "\n")
    add(SUMMARY, lambda: cleaner.text(_summary(steps, seen, rows, left_out)))
    return write_bytes(out.resolve() / ARCHIVE, _tarred(texts))


def _files(step: JobStep, out: Path, since_s: float) -> Iterator[tuple[Path, Callable[[Path, Cleaner], str]]]:
    for name, pattern, clean in _MEMBERS:
        if name == step.name:
            found = sorted(path for path in (out / name).glob(pattern) if path.stat().st_mtime >= since_s)
            for _, alike in itertools.groupby(found, key=lambda path: path.parent):
                for path in itertools.islice(alike, _WAVES):
                    yield path, clean


def _doctor(arguments: Sequence[str]) -> dict[str, Any]:
    """Return doctor's output as JSON; a crash becomes a failed row."""
    command = [sys.executable, "-m", "rocattn_profiling.cli", *arguments, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    try:
        return decoded(ended.stdout, dict[str, Any])
    except DocumentError:
        row = {"group": "gpu", "name": "doctor", "status": "broken", "detail": f"ended with status {ended.returncode}"}
        return {"checks": [row]}


def _beside(steps: Sequence[JobStep], out: Path, since_s: float) -> list[dict[str, Any]]:
    """Return the rows of `known.beside`; none if bench or audit left no file in this job."""
    from rocattn_profiling.kernels.audit import read_audit

    ran = {step.name for step in steps if not step.skipped}
    records, audit = out / "bench/records.jsonl", out / "audit/audit.json"
    with suppress(OSError, RocattnError):
        if "bench" in ran and records.stat().st_mtime >= since_s:
            is_there = "audit" in ran and audit.is_file() and audit.stat().st_mtime >= since_s
            return known.beside(read_records(records), read_audit(audit).kernels if is_there else ())
    return []


def _summary(
    steps: Sequence[JobStep], doctor: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]
) -> str:
    """Return the GPU, what ran, what was not measured, and the table, in Markdown."""
    lines = [f"# A GPU as rocattn {rocattn.__version__} saw it", ""]
    lines += [f"- {row['name']}: {row['detail']}" for row in doctor["checks"] if row["group"] in _SHOWN]
    lines += ["", "| step | outcome | found |", "|---|---|---|"]
    lines += [f"| {step.name} | {'skipped' if step.skipped else step.outcome} | {step.evidence} |" for step in steps]
    lines += ["", "## Not measured", ""]
    missing = []
    for step in steps:
        if step.skipped or step.status != OK:
            missing.append(f"{step.name}: {step.skipped or step.outcome}")
        missing += [part.line for part in step.left_out if not step.skipped]
    if not rows:
        missing.append("no time of a GPU stands beside the audit's numbers")
    lines += [f"- {each}" for each in missing] or ["Nothing was left out."]
    columns = (
        ("problem", "problem"), ("kernel", "kernel"), ("call, µs", "time_ns"), ("TFLOP/s", "tflops"),
        ("host, µs", "host_ns"), ("its kernels, µs", "kernels_ns"),
        ("VGPRs", "vgprs"), ("spilled VGPRs", "vgpr_spills"), ("waves per SIMD", "waves_per_simd"),
        ("issue cycles of an iteration", "loop_issue_cycles"), ("issue bound, %", "issue_bound_pct"),
        ("why not audited", "not_audited"),
    )  # fmt: skip
    if rows:
        lines += ["", "## The audit's numbers beside what was timed", ""]
        lines += [f"| {' | '.join(name for name, _ in columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_cell(row, key) for _, key in columns)} |" for row in rows]
        lines += ["", f"Host and kernels are medians; each launch is in `{BESIDE}`. The audit predicts no time."]
    lines += ["", "## Not in this archive", "", *(f"- {each}" for each in left_out)]
    lines += ["- logs, raw traces (`.att`), code objects (`.out`): they name folders, and stay on the machine"]
    lines += [f"- all but {_WAVES} timelines of waves of each trace"]
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if isinstance(value, list):  # a list of launches
        value = statistics.median(value) if any(value) else None
    if isinstance(value, float):
        return f"{value / 1000:.1f}" if key.endswith("_ns") else f"{value:.3g}"
    return "" if value is None else str(value)


def _tarred(texts: Mapping[str, str]) -> bytes:
    """Return a .tar.gz of these files without owners and times."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, text in sorted(texts.items()):
            data = text.encode()
            member = tarfile.TarInfo(f"{_ROOT}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
