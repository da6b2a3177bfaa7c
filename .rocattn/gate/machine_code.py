"""The machine code of rocattn's kernels: what pins accept, slow growth beyond them, and locations of regressions."""

from __future__ import annotations

import re
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn.gpu.arch import TESTED
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.machine_code.compare import Kernels, Review, audit_entries, compare_kernels
from rocattn_profiling.gate.model import SIDES, Cause, Entry, Location, SideName
from rocattn_profiling.kernels.audit import PROBLEM
from rocattn_profiling.kernels.compare import Finding, differences, lacking_in
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.model.rates import rates_version
from rocattn_profiling.kernels.pins import Pin, PinError, Pins, pin_of, read_pins
from rocattn_profiling.kernels.revision import list_kernels
from rocattn_profiling.kernels.shipped import Shipped, is_quick
from rocattn_profiling.kernels.source_lines import MOST, SourceLine, lines_of_shipped, shown_for

from .answers import PlanAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

KERNELS, PINS = "kernels", "benchmarks/pins"
OPTIONS_FROM = "rocattn/toolchain/hip.py"
_ERROR = re.compile(r"(?:^|\s)(\S+?):(\d+):\d+: (?:fatal )?error:")


def compare_machine_code(context: Context, sources_of: Callable[[Shipped], list[Cause]]) -> list[Entry]:
    """Return the entries of both sides' machine code.

    Args:
        context: Both sides.
        sources_of: Names the changed files that a kernel is compiled from.
    """
    try:
        choose_compiler()
        base, unknown = _kernels(context, "base")
    except RocattnError as error:
        context.leave_out("machine code", Reason("unread", str(error)), f"the machine code is not compared: {error}")
        return []
    if len({_content(context.trees[side] / OPTIONS_FROM) for side in SIDES}) > 1:
        context.note(
            f"{OPTIONS_FROM} differs, but both sides are compiled with the options of the rocattn that runs here: only "
            "`rocattn kernels audit --check-pins` shows what other options change"
        )
    for arch, reason in unknown.items():
        line = f"base's machine code for {arch} is not compared: {reason}"
        context.leave_out(f"machine code for {arch}", Reason("unread", reason), line)
    try:
        head, unlisted = _kernels(context, "head")
        failed = [
            failed_entry("audit", "kernels", RocattnError(f"head does not list its kernels for {arch}: {reason}"), arch)
            for arch, reason in unlisted.items()
            if any(kernel.arch == arch for kernel in base.shipped)
        ]
        base, head = (
            side._replace(shipped=[k for k in side.shipped if k.arch not in unlisted.keys() | unknown.keys()])
            for side in (base, head)
        )
        compared = compare_kernels(base, head, say=context.say)
    except RocattnError as error:
        return [failed_entry("audit", "kernels", error)]
    # Kernels that do not compile already have entries.
    context.not_compared.extend(gap for gap in compared.comparison.not_compared if gap.code != PROBLEM)
    pins = PinFiles(context.trees["base"], context.trees["head"], context.note)
    shipped = {(kernel.arch, kernel.name): kernel for kernel in head.shipped}
    return [*failed, *with_places(audit_entries(compared, pins), shipped, head.root, sources_of)]


def _kernels(context: Context, side: SideName) -> tuple[Kernels, dict[str, str]]:
    """Return a side's shipped kernels, and why an architecture's kernels cannot be listed."""
    tree = context.trees[side]
    listed = list_kernels(tree, side, TESTED)
    chosen = [kernel for kernel in listed.kernels if not context.options.quick or is_quick(kernel)]
    return Kernels(tree / KERNELS, chosen), listed.problems


def machine_code_causes(context: Context, arch: str, old: PlanAnswer, new: PlanAnswer) -> list[Cause]:
    """Return what got worse in the machine code of two plans' kernels, largest cost first, or else any difference.

    Improvements are left out: they do not explain a regression.

    Args:
        context: Both sides, with their trees.
        arch: The GPU's architecture.
        old: Base's plan.
        new: Head's plan.
    """
    base, head = (
        Kernels(context.trees[side] / KERNELS, [
            Shipped(kernel=run.kernel, source=run.source, symbol=run.symbol, defines=run.defines, arch=arch)
            for run in plan.launches
        ])
        for side, plan in zip(SIDES, (old, new), strict=True)
    )  # fmt: skip
    try:
        compared = compare_kernels(base, head)
    except RocattnError as error:
        context.say(f"the machine code is not compared: {error}")
        return []
    findings = compared.comparison.findings
    worse = [finding for finding in findings if finding.severity == "worse"]
    return [
        Cause(
            kind="machine code",
            text=finding.sentence,
            about=finding.metric,
            location=Location(path=f"{KERNELS}/{finding.file}") if finding.file else None,
        )
        for finding in worse or findings
        if finding.severity not in {"new", "missing", "better"}
    ]


def failed_entry(metric: str, label: str, error: RocattnError, arch: str = "") -> Entry:
    """Return the entry for something that only base can answer: what is not measured never passes."""
    return Entry(label=label, name=label, metric=metric, arch=arch, status="failed", reason=str(error))


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def error_at(text: str) -> Location | None:
    """Return the location in the kernels' sources that a compiler's message names; None if there is none."""
    match = _ERROR.search(text)
    if match is None:
        return None
    header = match[1].rpartition("include/rocattn/")  # after the checkout's path, or a relative one
    name = match[1].removeprefix("./")
    if header[1]:
        path = "".join(header[1:])
    elif "/" in name:
        return None  # the compiler's own header
    else:
        path = f"hip/{name}" if name.endswith(".hip") else f"cpu/{name}"
    return Location(path=f"{KERNELS}/{path}", line=int(match[2]))


class PinFiles(Review):
    """The pins of both checkouts: they show what review accepted, and what crept in over many commits.

    Args:
        base, head: The checkouts.
        note: Called with the reason why head's pins of an architecture cannot be used.
    """

    def __init__(self, base: Path, head: Path, note: Callable[[str], None] = lambda _: None) -> None:
        self._trees = {"base": base, "head": head}
        self._note = note
        self._read: dict[tuple[str, str], Pins | None] = {}

    def place(self, finding: Finding) -> Location | None:
        """Return a kernel's file, with the line if the finding is a compiler error."""
        return error_at(finding.text) or (Location(path=f"{KERNELS}/{finding.file}") if finding.file else None)

    def settled(self, entry: Entry, after: KernelFacts) -> Entry:
        """Accept a regression whose pin was renewed; after an improvement, ask to renew the pin."""
        status, reason, waiver = entry.status, entry.reason, ""
        if status == "regression" and self.accepts(after):
            status, waiver = "waived", f"this change renewed the kernel's pin in {PINS}/{after.arch}.json"
        if status == "improvement" and self.outdone(after):
            reason += "; renew its pin with `rocattn kernels audit --write-pins`, or the gain may be lost unnoticed"
        decided = entry.decision and msgspec.structs.replace(entry.decision, verdict=status, reason=reason)
        return msgspec.structs.replace(entry, status=status, reason=reason, waiver=waiver, decision=decided)

    def accepts(self, after: KernelFacts) -> bool:
        """Whether this change renewed the kernel's pin and meets it."""
        new = self._pin("head", after)
        if new is None or new == self._pin("base", after) or lacking_in(new, pin_of(after)):
            return False
        return not _worse(new, after)

    def crept(self, before: KernelFacts, after: KernelFacts) -> list[Finding]:
        """Return what is worse than the pin although base still meets it."""
        pin = self._pin("head", after)
        return [] if pin is None or _worse(pin, before) else _worse(pin, after)

    def outdone(self, after: KernelFacts) -> bool:
        """Whether the kernel is better than its pin, which should then be renewed."""
        pin = self._pin("head", after)
        return pin is not None and any(finding.severity == "better" for finding in differences(pin, after))

    def _pin(self, side: str, facts: KernelFacts) -> Pin | None:
        """Return a kernel's pin; None without one, or if it comes from another compiler or instruction-cost table."""
        pins = self._pins(side, facts)
        return pins.kernels.get(facts.name) if pins else None

    def _pins(self, side: str, facts: KernelFacts) -> Pins | None:
        """Return the pins of a kernel's architecture, if they are comparable."""
        if (side, facts.arch) not in self._read:
            try:
                self._read[side, facts.arch] = self._comparable(side, facts)
            except PinError as error:
                self._read[side, facts.arch] = None
                if side == "head":
                    place = str(error).replace(f"{self._trees[side]}/", "")
                    self._note(f"the pins of {facts.arch} cannot be used: {place}")
        return self._read[side, facts.arch]

    def _comparable(self, side: str, facts: KernelFacts) -> Pins | None:
        """Read pins.

        Raises:
            PinError: They cannot be read, or come from another compiler or instruction-cost table.
        """
        path = self._trees[side] / PINS / f"{facts.arch}.json"
        if not path.is_file():
            return None
        pins = read_pins(path)
        if pins.compiler != facts.compiler:
            raise PinError(f"they come from {pins.compiler}, but {facts.compiler} compiled the kernels")
        if pins.rates != rates_version():
            raise PinError(
                "they were computed with a different instruction-cost table: `rocattn kernels audit --write-pins`"
            )
        return pins


def _worse(pin: Pin, facts: KernelFacts) -> list[Finding]:
    return [finding for finding in differences(pin, facts) if finding.severity == "worse"]


def with_places(
    entries: Sequence[Entry],
    shipped: dict[tuple[str, str], Shipped],
    root: Path,
    changed: Callable[[Shipped], list[Cause]],
) -> list[Entry]:
    """Return entries of regressions with their changed lines, or else the costliest lines of their machine code.

    Args:
        entries: The audit's entries.
        shipped: Head's compilations by (architecture, name).
        root: The folder of head's sources.
        changed: Names the changed lines of code that a kernel is compiled from.
    """
    return _with_lines([_with_sources(entry, shipped, changed) for entry in entries], shipped, root)


def _with_sources(
    entry: Entry, shipped: dict[tuple[str, str], Shipped], changed: Callable[[Shipped], list[Cause]]
) -> Entry:
    """Put the changed lines of a kernel that got worse before its machine code, which then needs no location.

    Only spills and compiler errors keep theirs: it differs from where the code changed.
    """
    kernel = shipped.get((entry.arch, entry.label))
    sources = changed(kernel) if kernel is not None and entry.status == "regression" else []
    if not sources:
        return entry
    code = [
        cause
        if shown_for(cause.about) == "spills" or error_at(cause.text)
        else msgspec.structs.replace(cause, location=None)
        for cause in entry.causes
    ]
    return msgspec.structs.replace(entry, causes=[*sources, *code])


def _with_lines(entries: list[Entry], shipped: dict[tuple[str, str], Shipped], root: Path) -> list[Entry]:
    """Locate machine code without a better location at its costliest lines; each kernel may take a compilation.

    If there are more than `MOST`, take each architecture's first kernels: one cause may affect all of its variants.
    """
    worse: dict[str, list[int]] = {}
    for at, entry in enumerate(entries):
        if (
            entry.status == "regression"
            and (entry.arch, entry.label) in shipped
            and any(map(_lacks_line, entry.causes))
        ):
            worse.setdefault(entry.arch, []).append(at)
    by_turns = chain.from_iterable(zip_longest(*worse.values()))
    located = list(entries)
    for at in islice((at for at in by_turns if at is not None), MOST):
        entry = entries[at]
        kernel = shipped[entry.arch, entry.label]
        try:
            lines = lines_of_shipped(kernel, root)
        except RocattnError:  # it does not compile, which is the finding
            lines = []
        located[at] = msgspec.structs.replace(entry, causes=_located(entry.causes, lines, kernel))
    return located


def _lacks_line(cause: Cause) -> bool:
    return cause.kind == "machine code" and cause.location is not None


def _located(causes: Sequence[Cause], lines: Sequence[SourceLine], kernel: Shipped) -> list[Cause]:
    """Give each cause its most likely line: one that shows it, or else the costliest."""
    located = []
    for cause in causes:
        # The first line that fits, or else the first line.
        line = min(lines, key=lambda line: line.shows != shown_for(cause.about), default=None)
        if line is None or not _lacks_line(cause):
            located.append(cause)
            continue
        folder = KERNELS if line.file.startswith("include/") else f"{KERNELS}/{kernel.source.rpartition('/')[0]}"
        where = Location(path=f"{folder}/{line.file}", line=line.number)
        located.append(msgspec.structs.replace(cause, text=f"{cause.text} [{line}]", location=where))
    return located
