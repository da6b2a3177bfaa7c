"""Audits: the facts of many kernels, shipped by a revision or read from files, in one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import rocattn
from rocattn.errors import RocattnError
from rocattn.sources import kernel_root
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.base.reasons import NotCompared, Reason, counted
from rocattn_profiling.kernels import shipped
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.foreign import LaunchConfig, facts_of_file, name_of
from rocattn_profiling.kernels.model.rates import rates_version

SCHEMA = 3
PROBLEM = "problem"
"""Code of kernels and files that could not be audited, among what is not compared."""
_NAMED = 3  # files that an audit names


class AuditFileError(RocattnError):
    """Raised when a file is no audit; one line."""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a set of kernels.

    Attributes:
        schema: Of this record.
        rocattn: Version of the tool.
        subject: "this checkout", a revision, or the files.
        rates: Which table of issue cycles was used: numbers from another one are not comparable.
        kernels: By architecture and name.
        problems: Kernels and files that could not be audited.
    """

    schema: int = SCHEMA
    rocattn: str = rocattn.__version__
    subject: str
    rates: str
    kernels: list[KernelFacts]
    problems: list[shipped.Problem] = []

    @property
    def compilers(self) -> list[str]:
        """What compiled the kernels; "" stands for what no file says."""
        return sorted({facts.compiler for facts in self.kernels})

    @property
    def not_audited(self) -> tuple[NotCompared, ...]:
        """The kernels and files that could not be audited."""
        of = [("kernel" if each.kernel else "file", Reason(PROBLEM, each.text)) for each in self.problems]
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
    """Audit the kernels that this revision, or another one, ships.

    Args:
        archs: Targets.
        jobs: Processes at once.
        quick: Only those that stand for all.
        root: Where the sources are, if not in this revision.
        kernels: What another revision ships; without it, what this one does.
        subject: What to call it.
        on_step: Called with a line after each kernel.
        on_total: Called once it is known how many there are.

    Raises:
        ToolchainError: When there is no compiler.
        ArchError: When there are no kernels for an architecture.
    """
    wanted = shipped.shipped_kernels(archs, quick=quick) if kernels is None else list(kernels)
    if wanted:
        choose_compiler()  # without one, say so once
    on_total(len(wanted))
    facts, problems = shipped.facts_of_all(wanted, root or kernel_root(), jobs=jobs, on_step=on_step)
    return Audit(subject=subject, rates=rates_version(), kernels=facts, problems=problems)


def audit_files(files: Sequence[Path], *, archs: Sequence[str] = (), launch: LaunchConfig | None = None) -> Audit:
    """Audit files of any origin: code objects, bundles, programs with kernels in them, assembly text.

    Args:
        files: Their paths.
        archs: Only these architectures; without any, all.
        launch: How the kernels are launched, if it is known.
    """
    kernels: list[KernelFacts] = []
    problems: list[shipped.Problem] = []
    files = list(dict.fromkeys(files))
    for path in files:
        facts, lines = facts_of_file(path, launch or LaunchConfig())
        kernels += facts
        problems += [shipped.Problem(line) for line in lines]
    wanted = {arch.partition(":")[0] for arch in archs}
    kept = [facts for facts in kernels if not wanted or facts.arch in wanted]
    if kernels and not kept:
        there = ", ".join(sorted({facts.arch or "an unknown processor" for facts in kernels}))
        problems.append(shipped.Problem(f"no kernel is for {' or '.join(sorted(wanted))}: they are for {there}"))
    subject = ", ".join(map(name_of, files)) if len(files) <= _NAMED else f"{len(files)} files"
    return Audit(subject=subject, rates=rates_version(), kernels=kept, problems=problems)


def read_audit(path: Path) -> Audit:
    """Read an audit that was written as JSON.

    Raises:
        AuditFileError: When the file cannot be read or is no audit of this version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        head: Any = msgspec.json.decode(data)
        if isinstance(head, dict) and "audit" in head:
            data = msgspec.json.encode(head["audit"])  # what `rocattn kernels audit --json` prints has more around it
            head = head["audit"]
        if isinstance(head, dict) and head.get("schema", SCHEMA) != SCHEMA:
            raise AuditFileError(
                f"{path} is an audit of version {head['schema']}, this tool reads {SCHEMA}: write it anew"
            )
        return msgspec.json.decode(data, type=Audit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        remedy = "name an audit.json, as `rocattn kernels audit --out` writes it"
        raise AuditFileError(f"{path} is not an audit: {remedy} ({error})") from error
