"""The folder of a collection: its state, for resuming, and its result, ``profile.json``."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import (
    DocumentError,
    StagedFiles,
    decoded,
    of_other_schema,
    result_folder,
    write_bytes,
)
from rocattn_profiling.base.reasons import Coverage, NotCompared
from rocattn_profiling.profile.collect.find import Tool
from rocattn_profiling.profile.collect.hardware import Hardware
from rocattn_profiling.profile.collect.passes import PASSES, STATE, PassPlan, ProfilerPass
from rocattn_profiling.profile.collect.symptoms import PassFinding

SCHEMA = 1
PROFILE = "profile.json"
PassStatus = Literal["done", "partial", "failed", "split", "missing"]


class ResumeError(RocattnError, RuntimeError):
    """Raised when a folder's collection cannot be resumed with the current request."""


class Job(msgspec.Struct, frozen=True):
    """A collection's application, profiler and passes.

    Attributes:
        tool: The profiler.
        why: The reason for it.
        plan: The passes.
        command: The application with its arguments.
        cwd: Its working directory.
        output_format: The profiler's format.
        timeout_s: Time limit per pass.
        environment: The application's environment.
        removed: Names of variables removed from the caller's environment.
        torch_rocm: ROCm release of the torch in the command's Python, or "".
    """

    tool: Tool
    why: str
    plan: PassPlan
    command: tuple[str, ...]
    cwd: str
    output_format: str
    timeout_s: float
    environment: dict[str, str]
    removed: tuple[str, ...] = ()
    torch_rocm: str = ""

    @property
    def key(self) -> str:
        """A hash of everything that must be equal to combine passes of two collections."""
        parts = (self.tool.path, self.tool.version, self.tool.rocm, self.plan.arch, self.plan.wanted, self.plan.passes)
        return hashlib.sha256(msgspec.json.encode((*parts, self.command, self.cwd, self.output_format))).hexdigest()


class PassOutput(msgspec.Struct, frozen=True):
    """The contents of a pass's files.

    Attributes:
        files: The files with measurements, below the pass's folder.
        dispatches: Number of dispatches.
        kernels: Number of distinct kernels.
        counters: Counter -> number of dispatches in which it is not 0.
        problems: The readers' problems, one line each.
        samples: Number of PC samples.
        unread: Why the files could not be read at all, or "".
    """

    files: tuple[str, ...] = ()
    dispatches: int = 0
    kernels: int = 0
    counters: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    samples: int = 0
    unread: str = ""

    def has(self, counter: str) -> bool:
        """Return whether a counter is present, under its own name or the name of its sum over instances."""
        plain = counter.removesuffix("_sum")
        return bool({counter, plain, f"{plain}_sum"} & self.counters.keys())


class PassResult(msgspec.Struct, frozen=True):
    """The result of one pass.

    Attributes:
        name: The pass's name, and that of its folder below ``passes``.
        status: done; partial (some counters are missing); failed; split (its halves are separate passes); missing (not
            run).
        counters: The requested counters; none for the timing pass.
        line: The command line, without secrets.
        ended: How it ended, as text.
        seconds: Its run time.
        arrived: The contents of its files.
        findings: Its problems.
    """

    name: str
    status: PassStatus
    counters: tuple[str, ...]
    line: str = ""
    ended: str = ""
    seconds: float = 0.0
    arrived: PassOutput | None = None
    findings: tuple[PassFinding, ...] = ()


class CollectionState(msgspec.Struct, frozen=True):
    """The state needed to resume: the passes (after splits), and the results of those that were run."""

    schema: int
    key: str
    passes: tuple[ProfilerPass, ...]
    results: dict[str, PassResult] = {}

    def left(self) -> tuple[ProfilerPass, ...]:
        """Return the passes without data, in order."""
        have = {name for name, result in self.results.items() if result.status in {"done", "partial", "split"}}
        return tuple(of_pass for of_pass in self.passes if of_pass.name not in have)


class Collection(msgspec.Struct, frozen=True):
    """The contents of ``profile.json``: the request, the results, and the failures with their reasons.

    Attributes:
        schema: Version of this format.
        rocattn: Version of rocattn.
        complete: Whether every pass has all requested counters.
        tool: The profiler; ``why`` is the reason for it.
        arch: The GPU's architecture.
        wanted: The requested groups, metrics and counters.
        left_out: Requested names that this GPU does not have, with the reason.
        command: The application, without secrets.
        passes: The result of each pass.
        stopped: Why later passes were not run, or "".
        notes: Caveats about the numbers.
        removed: Names of variables removed from the environment.
        before: The GPUs at the start.
        after: The GPUs at the end.
        not_compared: Parts that were not measured: counters left out, and incomplete passes.
        kernel: The counted kernels (a regular expression); "" for all.
        launches: The counted launches of each kernel; "" for all.
        gpu: The index of the only counted GPU; None for all.
    """

    schema: int
    rocattn: str
    complete: bool
    tool: Tool
    why: str
    arch: str
    wanted: tuple[str, ...]
    left_out: dict[str, str]
    command: tuple[str, ...]
    cwd: str
    output_format: str
    passes: tuple[PassResult, ...]
    stopped: str
    notes: tuple[str, ...]
    removed: tuple[str, ...]
    before: Hardware
    after: Hardware
    not_compared: tuple[NotCompared, ...] = ()
    kernel: str = ""
    launches: str = ""
    gpu: int | None = None

    @property
    def coverage(self) -> Coverage:
        """The number of passes with data, and the parts that were not measured."""
        return Coverage(compared=self.measured, not_compared=self.not_compared)

    @property
    def measured(self) -> int:
        """Number of passes with data."""
        return sum(result.status in {"done", "partial"} for result in self.passes)


def not_measured(left_out: dict[str, str], passes: Sequence[PassResult], stopped: str) -> tuple[NotCompared, ...]:
    """Return what a collection did not measure; an incomplete pass counts as needed."""
    lacking = [NotCompared(what=name, code="not_countable", text=why) for name, why in left_out.items()]
    lacking += [
        NotCompared(what=f"pass {each.name}", code=each.status, text=each.ended or stopped, needed=True)
        for each in passes
        if each.status not in {"done", "split"}
    ]
    return tuple(lacking)


def open_state(out: Path, job: Job, *, resume: bool) -> CollectionState:
    """Return the initial state: the folder's state to resume it, else a new one.

    Without ``resume``, an earlier collection in the folder is moved to ``<folder>-earlier-N``.

    Raises:
        ResumeError: When there is nothing to resume, or it belongs to another request.
        RocattnError: When the folder cannot be used.
    """
    fresh = CollectionState(SCHEMA, job.key, job.plan.passes)
    path = out / STATE
    if resume:
        try:
            state = decoded(path.read_bytes(), CollectionState)
        except FileNotFoundError as error:
            raise ResumeError(f"nothing to resume in {out}: leave out --resume") from error
        except (DocumentError, OSError) as error:
            raise ResumeError(f"{path} cannot be read ({error}): leave out --resume to start anew") from error
        if (state.schema, state.key) != (SCHEMA, job.key):
            raise ResumeError(
                f"the collection in {out} has another command, profiler or choice of counters: repeat those to "
                "resume it, or leave out --resume"
            )
        return state
    with StagedFiles() as staging:
        staging.add(path, [msgspec.json.encode(fresh)])  # first: a full disk moves nothing
        if path.exists():
            _move_aside(out)
        staging.commit()
    return fresh


def save_state(out: Path, state: CollectionState) -> None:
    """Write the state atomically."""
    write_bytes(out / STATE, msgspec.json.encode(state))


def save_profile(out: Path, collection: Collection) -> Path:
    """Write ``profile.json`` atomically, indented."""
    encoded = msgspec.json.format(msgspec.json.encode(collection), indent=2)
    return write_bytes(out / PROFILE, encoded + b"\n")


def read_profile(path: Path) -> Collection:
    """Read a ``profile.json``.

    Raises:
        RocattnError: When it cannot be read, or has another schema.
    """
    try:
        collection = decoded(path.read_bytes(), Collection)
    except OSError as error:
        raise RocattnError(f"cannot read {path}: {error.strerror}") from error
    except DocumentError as error:
        raise RocattnError(f"{path} is not a profile.json of rocattn: {error}") from error
    if collection.schema != SCHEMA:
        raise RocattnError(of_other_schema(path, collection.schema, SCHEMA))
    return collection


def fresh_folder(folder: Path) -> Path:
    """Create an empty folder, replacing an existing one.

    Raises:
        RocattnError: When it cannot be written.
    """
    try:
        if folder.exists():
            shutil.rmtree(folder)
        result_folder(folder)
    except OSError as error:
        raise RocattnError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def _move_aside(out: Path) -> None:
    """Move a collection into a new sibling folder; other files in the folder stay."""
    aside = next(
        folder
        for number in itertools.count(1)
        if not (folder := out.with_name(f"{out.name}-earlier-{number}")).exists()
    )
    try:
        result_folder(aside)
        for name in (PROFILE, PASSES, STATE):  # the state last: a folder without it is not a collection
            if (out / name).exists():
                (out / name).rename(aside / name)
    except OSError as error:
        raise RocattnError(f"cannot move the earlier collection in {out} aside: {error.strerror}") from error


def read_pass(folder: Path) -> PassOutput:
    """Read everything below a folder."""
    from rocattn_profiling.profile.ingest import read

    try:
        profile = read([folder])
    except Exception as error:  # noqa: BLE001 - a defect of a reader must not end a collection that took an hour
        return PassOutput(unread=f"{type(error).__name__}: {error}")
    rows = profile.counters
    live = rows["value"].ne(0).groupby(rows["counter"], observed=True).sum()
    return PassOutput(
        files=tuple(sorted({source.file for source in profile.provenance if source.tool and not source.skipped})),
        dispatches=len(profile.dispatches),
        kernels=int(profile.dispatches["kernel"].nunique()),
        counters={str(name): int(count) for name, count in live.items()},
        problems=tuple(str(problem) for problem in profile.problems),
        samples=int(profile.samples["count"].sum()),
    )
