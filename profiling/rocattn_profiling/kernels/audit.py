"""Audits: the facts of many kernels, shipped by a revision or read from files, in one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

import rocattn
from rocattn.errors import RocattnError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.base.files import DocumentError, decoded
from rocattn_profiling.base.reasons import NotCompared, Reason, counted
from rocattn_profiling.kernels import shipped
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.foreign import (
    LaunchConfig,
    Part,
    facts_of_part,
    files_of,
    name_of,
    not_captured,
    parts_of_file,
)
from rocattn_profiling.kernels.hip_source import SUFFIXES, HipBuild, HipSource
from rocattn_profiling.kernels.model.rates import rates_version
from rocattn_profiling.kernels.read.code_objects import NoDeviceCodeError
from rocattn_profiling.pages.render import count

SCHEMA = 4
PROBLEM = "problem"
"""Reason code for kernels and files that could not be audited."""
_NAMED = 3  # most files named in an audit's subject


class AuditFileError(RocattnError):
    """Raised when a file is not an audit; one line."""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a set of kernels.

    Attributes:
        schema: Version of this record's format.
        rocattn: Version of the tool.
        subject: "this checkout", a revision, or the files.
        rates: Version of the instruction-cost table; numbers from different versions are not comparable.
        kernels: Sorted by architecture and name.
        problems: Kernels and files that could not be audited, and oddities of others.
    """

    schema: int = SCHEMA
    rocattn: str = rocattn.__version__
    subject: str
    rates: str
    kernels: list[KernelFacts]
    problems: list[shipped.Problem] = []

    @property
    def compilers(self) -> list[str]:
        """The kernels' compilers; "" stands for an unknown one."""
        return sorted({facts.compiler for facts in self.kernels})

    @property
    def not_audited(self) -> tuple[NotCompared, ...]:
        """The kernels and files that could not be audited."""
        of = [
            ("kernel" if each.kernel else "file", Reason(PROBLEM, each.text))
            for each in self.problems
            if not each.noted
        ]
        return counted([(f"# {noun}", f"# {noun}s", reason) for noun, reason in of], needed=True)

    @property
    def archs(self) -> list[str]:
        """The architectures."""
        return sorted({facts.arch for facts in self.kernels})


def audit_shipped(
    archs: Sequence[str],
    *,
    jobs: int,
    quick: bool = False,
    root: Path | None = None,
    kernels: Sequence[shipped.Shipped] | None = None,
    subject: str = "this checkout",
    on_step: Callable[[str], None] = lambda _: None,
    on_total: Callable[[int], None] = lambda _: None,
) -> Audit:
    """Audit the kernels that this or another revision ships.

    Args:
        archs: Targets.
        jobs: Parallel processes.
        quick: Whether to audit only representative kernels.
        root: Folder of the sources; by default, this revision's.
        kernels: Kernels of another revision; by default, this revision's.
        subject: What to call it.
        on_step: Called with a line after each kernel.
        on_total: Called once with the number of kernels.

    Raises:
        ToolchainError: When there is no compiler.
        ArchError: When there are no kernels for an architecture.
    """
    wanted = shipped.shipped_kernels(archs, quick=quick) if kernels is None else list(kernels)
    if wanted:
        choose_compiler()  # to report a missing one only once
    on_total(len(wanted))
    facts, problems = shipped.facts_of_all(wanted, root or kernel_root(), jobs=jobs, on_step=on_step)
    return Audit(subject=subject, rates=rates_version(), kernels=facts, problems=problems)


def audit_files(
    paths: Sequence[Path],
    *,
    archs: Sequence[str] = (),
    launch: LaunchConfig | None = None,
    build: HipBuild | None = None,
    jobs: int = 1,
    on_step: Callable[[str], None] = lambda _: None,
    on_total: Callable[[int], None] = lambda _: None,
) -> Audit:
    """Audit files of any origin: code objects, bundles, programs with kernels in them, assembly text, HIP sources.

    Args:
        paths: The files, or folders that contain them.
        archs: Architectures to audit; by default, all.
        launch: How the kernels are launched, if known.
        build: How sources are compiled.
        jobs: Parallel processes.
        on_step: Called with a line after each code object.
        on_total: Called with the number of code objects, which grows as files are read.
    """
    wanted, paths = {arch.partition(":")[0] for arch in archs}, list(dict.fromkeys(paths))
    files, skipped = files_of(paths)
    total, others = len(files), set[str]()
    problems: list[shipped.Problem] = []

    def parts() -> Iterator[Part]:
        nonlocal skipped, total
        for path in files:
            of_file: list[Part] = []
            if path.suffix in SUFFIXES:
                sources = [HipSource(build or HipBuild(), arch) for arch in archs]
                total += len(sources) - 1
                yield from (Part(path, launch or LaunchConfig(), source) for source in sources)
                continue
            try:
                of_file, lines = parts_of_file(path, launch or LaunchConfig())
            except NoDeviceCodeError as error:
                lines, skipped = ([shipped.Problem(str(error))], skipped) if path in paths else ([], skipped + 1)
            problems.extend(lines)
            asked = [part for part in of_file if not wanted or part.processor in {"", *wanted}]
            others.update(part.processor for part in of_file if part not in asked)
            total += len(asked) - 1
            on_total(total)
            yield from asked

    on_total(total)
    results: dict[int, list[KernelFacts]] = {}
    for number, part, (kernels, lines) in shipped.in_processes(facts_of_part, parts(), jobs=jobs):
        results[number] = [facts for facts in kernels if not wanted or facts.arch in wanted]
        others.update(facts.arch for facts in kernels)
        problems += lines
        on_step(name_of(part.path))
    kept = [facts for number in sorted(results) for facts in results[number]]
    problems += [each for each in not_captured(paths) if not wanted or each.arch in {"", *wanted}]
    if others and not kept:
        there = ", ".join(sorted(arch or "an unknown processor" for arch in others))
        problems.append(shipped.Problem(f"no kernels for {' or '.join(sorted(wanted))}: they are for {there}"))
    if skipped:
        problems.append(shipped.Problem(f"skipped {count(skipped, 'file')} without code for AMD GPUs", noted=True))
    subject = ", ".join(map(name_of, paths)) if len(paths) <= _NAMED else f"{len(paths)} files"
    return Audit(subject=subject, rates=rates_version(), kernels=kept, problems=problems)


def read_audit(path: Path) -> Audit:
    """Read an audit from a JSON file.

    Raises:
        AuditFileError: When the file cannot be read or is not an audit of this version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        head = decoded(data)
        if isinstance(head, dict) and "audit" in head:
            data = msgspec.json.encode(head["audit"])  # the output of `--json` has more around it
            head = head["audit"]
        if isinstance(head, dict) and head.get("schema", SCHEMA) != SCHEMA:
            raise AuditFileError(
                f"{path} is an audit of version {head['schema']}, this tool reads {SCHEMA}: write it again"
            )
        return decoded(data, Audit)
    except DocumentError as error:
        remedy = "give an audit.json written by `rocattn kernels audit --out`"
        raise AuditFileError(f"{path} is not an audit: {remedy} ({error})") from error
