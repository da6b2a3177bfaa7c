"""Compares the machine code of any project without a GPU: code objects from a build, and a program's Triton kernels.

Code objects are files in each side's checkout. A program's kernels are captured in each side's environment, so two
environments, or two revisions that require different Tritons, show what an upgrade does to the same kernels.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from rocattn_profiling.base.console import Step
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.machine_code.compare import Review, audit_entries, compare_audits
from rocattn_profiling.gate.model import SIDES, Cause, Entry, Location, SideName
from rocattn_profiling.gate.sources import own_files
from rocattn_profiling.kernels.audit import PROBLEM, Audit, audit_files
from rocattn_profiling.kernels.capture.run import Captured, StandInGpu, capture, gpu_of, prepared, write_listing
from rocattn_profiling.kernels.compare import Finding
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.hip_source import SUFFIXES
from rocattn_profiling.kernels.pairs import split_symbol
from rocattn_profiling.kernels.sentences import advice, compiled_by
from rocattn_profiling.kernels.shipped import Problem
from rocattn_profiling.kernels.verdict import Variant, variant_of
from rocattn_profiling.revisions import environments
from rocattn_profiling.revisions.hunks import NATIVE

TIMEOUT_S = 1800.0
"""Time limit of a program whose kernels are captured."""
_SOURCES = ("*.py", *(f"*{suffix}" for suffix in sorted({*SUFFIXES, ".cuh", ".h", ".hpp", ".inc", ".s", ".S"})))
_DEFINED = r"__global__[^;{{}}]*?\b{name}\s*\(|^[ \t]*def[ \t]+{name}\b|^{name}:"
_MOST_BYTES = 4_000_000  # of a source; a larger file is data
_MOST_FILES = 6  # changed files to name
_LONGEST = 400  # lines from a kernel's definition on: changes within them come first
_NOTHING = Reason[str]("no_files", "no file matches", "say with --build what makes them")
_NO_ARCH = Reason[str]("no_arch", "there are sources among them", "name architectures to compile for with --arch")
_NO_KERNELS = Reason[str](
    "no_kernels", "its program compiled no Triton kernel",
    "its environment needs Triton, and its inputs have to reach a kernel",
)  # fmt: skip


def machine_code_entries(context: Context, on_step: Callable[[Step], None] = lambda _: None) -> list[Entry]:
    """Return an entry for each kernel that differs, and one per architecture for the rest; empty if none was requested.

    What could not be compared is reported with `Context.leave_out` and its reason.

    Args:
        context: Both sides, built.
        on_step: Called before each longer step.

    Raises:
        BuildError: A side's code objects do not build.
        ArchError: An architecture is unknown.
        NotCapturedError: The folder for captured kernels contains other files.
    """
    if not (context.options.code_objects or context.options.kernels):
        return []
    gpus = [gpu_of(arch) for arch in context.options.archs]
    sides = {side: _SideCode(context, side, on_step) for side in SIDES}
    for each in sides.values():
        each.capture(gpus)
        each.find()
    base, head = _failing_alike(context, sides["base"].audited(), sides["head"].audited())
    compared = compare_audits(base, head)
    lost = [each for each in base.not_audited if each not in compared.comparison.not_compared]
    for gap in (*compared.comparison.not_compared, *lost):
        why = Reason(gap.code, gap.text, gap.remedy)
        context.leave_out(gap.what, why, f"not compared: {gap.line}", needed=True)
    return audit_entries(compared, _Sources(context, compared.before, compared.after))


class _SideCode:
    """Finds and builds the files of one side."""

    def __init__(self, context: Context, side: SideName, on_step: Callable[[Step], None]) -> None:
        self._context, self._side, self._on_step = context, side, on_step
        self._place = context.places[side]
        self._paths: list[Path] = []
        self._folders = [(self._place, "")]  # in the text of problems -> what to show instead

    def capture(self, gpus: Sequence[StandInGpu]) -> None:
        """Capture the kernels that the programs would launch in this side's environment."""
        context, side = self._context, self._side
        for number, program in enumerate(context.options.kernels):
            out = prepared(context.out / "kernels" / f"{side}{number or ''}")
            runs = []
            for gpu in gpus:
                context.say(f"{side}: compiling the kernels of `{program}` for {gpu.arch}")
                self._on_step(Step(done=0, total=0, what=f"capturing kernels of {side}"))
                python, command = Path(context.environments[side].python), ["/bin/sh", "-c", program]
                run = capture(command, gpu, out, python=python, timeout_s=TIMEOUT_S, cwd=self._place)
                runs.append(run)
                write_listing(out, Captured(program=command, runs=runs))
                if not run.kernels and not run.failure:
                    self._lacks(f"{side}'s kernels for {gpu.arch}", _NO_KERNELS)
            self._paths.append(out)
            self._folders.append((out, f"`{program}`"))

    def find(self) -> None:
        """Find the files that match the patterns; build them first if there are commands for it."""
        context, side = self._context, self._side
        asked = context.options.code_objects
        for of in (asked and context.code_objects.get(side)) or asked:
            tree = self._place
            if of.builds and of.builds != context.builds.get(side):
                context.say(f"{side}: building code objects")
                own = context.trees[side], context.revisions[side]
                tree = environments.built_tree(*own, of.builds, context.environments[side])
            for pattern in of.files:
                found = sorted(path for path in tree.glob(pattern) if ".git" not in path.relative_to(tree).parts)
                if not found:
                    self._lacks(f"{side}'s {pattern}", _NOTHING)
                if not context.options.archs and any(path.suffix in SUFFIXES for path in found):
                    self._lacks(f"{side}'s {pattern}", _NO_ARCH)
                self._paths += found
            self._folders.append((tree, ""))

    def audited(self) -> Audit:
        """Return the audit of the files; problems name files relative to their folders."""
        self._on_step(Step(done=0, total=0, what=f"reading machine code of {self._side}"))
        jobs = len(os.sched_getaffinity(0))
        audit = audit_files(self._paths, archs=self._context.options.archs, jobs=jobs)
        problems = [msgspec.structs.replace(each, text=self._within(each)) for each in audit.problems]
        for each in problems:
            if each.noted:
                self._context.say(each.line)
        return msgspec.structs.replace(audit, subject=self._side, problems=problems)

    def _within(self, problem: Problem) -> str:
        text = problem.text
        for folder, name in sorted(self._folders, key=lambda each: -len(str(each[0]))):
            text = text.replace(f"{folder}/", "").replace(str(folder), name)
        return text if problem.kernel else f"{self._side}: {text}"

    def _lacks(self, what: str, why: Reason[str]) -> None:
        self._context.leave_out(what, why, f"{what}: {why.line}", needed=True)


def _failing_alike(context: Context, base: Audit, head: Audit) -> tuple[Audit, Audit]:
    """Drop kernels that fail to compile on both sides for the same reason: they are listed, not a gap in coverage."""
    alike = Counter(each for each in base.problems if each.kernel) & Counter(head.problems)
    for problem, number in alike.items():
        what = f"{problem.kernel} on {problem.arch}" + (f" ({number} times)" if number > 1 else "")
        context.leave_out(what, Reason(PROBLEM, problem.text), f"{what} compiles on neither side: {problem.text}")
    rest = ([*(Counter(audit.problems) - alike).elements()] for audit in (base, head))
    base_problems, head_problems = rest
    return (
        msgspec.structs.replace(base, problems=base_problems),
        msgspec.structs.replace(head, problems=head_problems),
    )


class _Sources(Review):
    """Where kernels are defined, and what changed there.

    Args:
        context: Both sides.
        before, after: See `Compared`.
    """

    def __init__(self, context: Context, before: dict[Variant, KernelFacts], after: dict[Variant, KernelFacts]) -> None:
        self._context, self._before, self._after = context, before, after
        self._texts: dict[str, str] | None = None

    def place(self, finding: Finding) -> Location | None:
        """Return where head defines a kernel, otherwise the script that captures it; None if neither is a file here."""
        facts = self._after.get(variant_of(finding)) or self._before.get(variant_of(finding))
        file, _, line = facts.defined.rpartition(":") if facts else ("", "", "")
        for side in reversed(SIDES):
            top = self._context.places[side].absolute()
            if file and Path(file).is_relative_to(top):
                return Location(path=Path(file).relative_to(top).as_posix(), line=int(line))
        return self._found(finding.kernel) if not file else self._script()

    def _found(self, symbol: str) -> Location | None:
        """Return where the sources define the kernel with this symbol."""
        names, _ = split_symbol(symbol)
        defined = re.compile(_DEFINED.format(name=re.escape(names[-1] if names else symbol)), re.MULTILINE)
        for path, text in self._sources().items():
            if match := defined.search(text):
                return Location(path=path, line=1 + text.count("\n", 0, match.end()))
        return None

    def _sources(self) -> dict[str, str]:
        if self._texts is None:
            top = self._context.trees.get("head", self._context.places["head"])
            files = [path for path in own_files(top, *_SOURCES) if path.is_file()]
            self._texts = {
                path.relative_to(top).as_posix(): path.read_text(errors="replace")
                for path in files
                if path.stat().st_size <= _MOST_BYTES
            }
        return self._texts

    def _script(self) -> Location | None:
        words = (word for program in self._context.options.kernels for word in program.split())
        top = self._context.places["head"]
        return next((Location(path=word) for word in words if (top / word).is_file() and word[0] not in "/."), None)

    def settled(self, entry: Entry, after: KernelFacts) -> Entry:
        """Add changed sources, a different compiler and advice to the entry of a kernel that got worse."""
        if entry.status != "regression":
            return entry
        before = self._before[variant_of(after)]
        causes = [*self._changed(entry), *_compilers(before, after)]
        return msgspec.structs.replace(entry, causes=[*causes, *_advised(entry.causes, after)])

    def _changed(self, entry: Entry) -> Iterator[Cause]:
        """Yield the changed file that defines a kernel, or else the changed files of its language, up to six."""
        changes, place = self._context.changes, entry.place
        if place and place.path in changes:
            yield changes[place.path].cause([range(place.line, place.line + _LONGEST)])
            return
        python = place is not None and place.path.endswith(".py")
        suffixes = {".py"} if python else NATIVE
        of_kind = [change for path, change in changes.items() if Path(path).suffix in suffixes]
        yield from (change.cause() for change in of_kind[:_MOST_FILES])


def _compilers(before: KernelFacts, after: KernelFacts) -> Iterator[Cause]:
    if before.compiler != after.compiler:
        yield Cause(kind="environment", text=compiled_by(before.compiler, after.compiler))


def _advised(causes: Sequence[Cause], after: KernelFacts) -> Iterator[Cause]:
    given = {""}
    for cause in causes:
        tried = advice(cause.about, after.occupancy, ours=False)
        yield cause if tried in given else msgspec.structs.replace(cause, text=f"{cause.text}; {tried}")
        given.add(tried)
