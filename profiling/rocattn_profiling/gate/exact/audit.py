"""Machine code of both sides' kernels, compared; only what can differ is compiled.

The same source, macros and compiler give the same bytes. So a kernel whose files and macros equal base's is skipped,
and a pull request that touches one kernel compiles that kernel. Both sides are compiled by this machine's compiler, so
every difference comes from the sources.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.model import Cause, Entry, Location, Status, decision_of
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import (
    Comparison,
    Finding,
    compare,
    differences,
    lacking_in,
    problem_of,
    work_factor,
)
from rocattn_profiling.kernels.model.rates import rates_version
from rocattn_profiling.kernels.pins import PinError, pin_of, read_pins
from rocattn_profiling.kernels.shipped import equal_kernels, facts_of_all
from rocattn_profiling.kernels.source_lines import MOST, lines_of_shipped, shown_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.pins import Pin, Pins
    from rocattn_profiling.kernels.shipped import Shipped
    from rocattn_profiling.kernels.source_lines import SourceLine

KERNELS, PINS = "kernels", "benchmarks/pins"
UNITS = {
    "spills": "spilled registers", "scratch": "bytes of scratch per lane", "occupancy": "waves per SIMD",
    "blocks": "blocks", "issue cycles": "cycles", "global loads": "bytes per load", "matrix": "matrix FLOPs",
    "instruction cache": "bytes of code", "loop code": "bytes of code",
    "own overlap": "% of vector instructions", "run": "products", "read to wait": "products", "bare waits": "waits",
    "barriers": "barriers", "FLOP/B": "FLOP per byte", "LDS reads": "LDS cycles per matrix cycle",
    "loads in flight": "loads", "read conflicts": "times the cycles", "write conflicts": "times the cycles",
}  # fmt: skip
_MORE_IS_BETTER = frozenset({"blocks", "global loads", "matrix", "run", "read to wait", "FLOP/B", "loads in flight"})
_RATIOS: tuple[Status, ...] = ("regression", "improvement", "waived")
_ERROR = re.compile(r"(?:^|\s)(\S+?):(\d+):\d+: (?:fatal )?error:")


class Kernels(NamedTuple):
    """What one side ships: its checkout and its compilations."""

    tree: Path
    shipped: Sequence[Shipped]

    @property
    def root(self) -> Path:
        """The folder of its sources."""
        return self.tree / KERNELS


class Compared(NamedTuple):
    """Result of `compare_kernels`.

    Attributes:
        same: Architecture -> number of kernels that equal base's byte for byte, which are not compiled.
        comparison: Of the others.
        before, after: Their facts by (architecture, name).
        broken: The compiler's error on head, for kernels that compile on neither side.
    """

    same: dict[str, int]
    comparison: Comparison
    before: dict[tuple[str, str], KernelFacts]
    after: dict[tuple[str, str], KernelFacts]
    broken: dict[tuple[str, str], str]


def compare_kernels(
    base: Kernels, head: Kernels, *, jobs: int = 0, say: Callable[[str], None] = lambda _: None
) -> Compared:
    """Compare the kernels of two checkouts, compiling those that can differ.

    Args:
        base: Before.
        head: Now.
        jobs: Number of processes; 0 for the cores available.
        say: Prints how many are compiled.

    Raises:
        ToolchainError: When there is no compiler.
    """
    old, new = ({(kernel.arch, kernel.name): kernel for kernel in side.shipped} for side in (base, head))
    equal = equal_kernels(base.shipped, base.root, head.shipped, head.root)
    same = Counter(arch for arch, _ in equal)
    wanted = [[kernel for key, kernel in side.items() if key not in equal] for side in (old, new)]
    if count := len(wanted[0]) + len(wanted[1]):
        say(f"machine code: compiling {count} of {len(old) + len(new)} kernels of both sides; the others are identical")
    jobs = jobs or len(os.sched_getaffinity(0))
    audits = []
    for side, kernels, name in ((base, wanted[0], "base"), (head, wanted[1], "head")):
        facts, problems = facts_of_all(kernels, side.root, jobs=jobs) if kernels else ([], [])
        audits.append(Audit(subject=name, rates=rates_version(), kernels=facts, problems=problems))
    before, after = ({(facts.arch, facts.name): facts for facts in audit.kernels} for audit in audits)
    neither = sorted((old.keys() & new.keys()) - equal - before.keys() - after.keys())
    broken = {(arch, name): problem_of(audits[1], name, arch) for arch, name in neither}
    return Compared(same, compare(*audits), before, after, broken)


def error_at(text: str) -> Location | None:
    """Return the location in the kernels' sources that a compiler's message names; None where it names none."""
    match = _ERROR.search(text)
    if match is None:
        return None
    header = match[1].rpartition("include/rocattn/")  # before it the checkout's path, or one from the kernel's folder
    name = match[1].removeprefix("./")
    if header[1]:
        path = "".join(header[1:])
    elif "/" in name:
        return None  # the compiler's own header
    else:
        path = f"hip/{name}" if name.endswith(".hip") else f"cpu/{name}"
    return Location(path=f"{KERNELS}/{path}", line=int(match[2]))


def cost_ratio(finding: Finding, before: KernelFacts, after: KernelFacts) -> float | None:
    """Return the factor by which the cost of a finding grew; None where it was zero."""
    if finding.metric == "occupancy":
        return _ratio(_waves(after), _waves(before))
    if finding.metric in _MORE_IS_BETTER:
        return _ratio(finding.after, finding.before)
    if finding.metric == "issue cycles":
        factor = work_factor(pin_of(before), pin_of(after))
        return _ratio((finding.before or 0) * factor, finding.after)
    if finding.metric == "own overlap":  # the rest is what the matrix unit waits for
        return _ratio(100 - (finding.before or 0), 100 - (finding.after or 0))
    return _ratio(finding.before, finding.after)


def _ratio(below: float | None, above: float | None) -> float | None:
    return above / below if below and above else None


def _waves(facts: KernelFacts) -> float | None:
    return facts.occupancy.waves_per_simd if facts.occupancy else None


class PinFiles:
    """The pins of both checkouts: they show what review accepted, and what crept in over many commits.

    Args:
        base, head: The checkouts.
        note: Takes the reason why head's pins of an architecture cannot be used.
    """

    def __init__(self, base: Path, head: Path, note: Callable[[str], None] = lambda _: None) -> None:
        self._trees = {"base": base, "head": head}
        self._note = note
        self._read: dict[tuple[str, str], Pins | None] = {}

    def accepts(self, after: KernelFacts) -> bool:
        """Whether this change renewed the kernel's pin, and meets it."""
        new = self._pin("head", after)
        if new is None or new == self._pin("base", after) or lacking_in(new, pin_of(after)):
            return False
        return not _worse(new, after)

    def crept(self, before: KernelFacts, after: KernelFacts) -> list[Finding]:
        """Return what is worse than the pin, where base still meets it."""
        pin = self._pin("head", after)
        return [] if pin is None or _worse(pin, before) else _worse(pin, after)

    def outdone(self, after: KernelFacts) -> bool:
        """Whether the kernel is better than its pin, which should then be renewed."""
        pin = self._pin("head", after)
        return pin is not None and any(finding.severity == "better" for finding in differences(pin, after))

    def _pin(self, side: str, facts: KernelFacts) -> Pin | None:
        """Return a kernel's pin; None without one, or if another compiler or table of rates made it."""
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
            PinError: When they cannot be read, or are of another compiler or table of rates.
        """
        path = self._trees[side] / PINS / f"{facts.arch}.json"
        if not path.is_file():
            return None
        pins = read_pins(path)
        if pins.compiler != facts.compiler:
            raise PinError(f"they are of {pins.compiler}, and the kernels are compiled by {facts.compiler}")
        if pins.rates != rates_version():
            raise PinError("their cycles are of another table of rates: `rocattn kernels audit --write-pins`")
        return pins


def _worse(pin: Pin, facts: KernelFacts) -> list[Finding]:
    return [finding for finding in differences(pin, facts) if finding.severity == "worse"]


def audit_entries(
    compared: Compared,
    shipped: dict[tuple[str, str], Shipped],
    head: Kernels,
    pins: PinFiles,
    changed: Callable[[Shipped], list[Cause]] = lambda _: [],
) -> list[Entry]:
    """Return an entry for each kernel that got worse or better, came or went, and one per architecture for the rest.

    Args:
        compared: Both sides' machine code.
        shipped: Head's compilations by (architecture, name), to find the source lines of what got worse.
        head: Head's kernels.
        pins: Both sides' pins.
        changed: Names the changed lines of code that a kernel is compiled from.
    """
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in compared.comparison.findings:
        grouped.setdefault((finding.arch, finding.kernel), []).append(finding)
    entries: list[Entry] = []
    quiet: dict[str, list[int]] = {arch: [count, 0] for arch, count in compared.same.items()}
    for key in dict.fromkeys([*compared.after, *grouped]):
        findings = grouped.get(key, [])
        before, after = compared.before.get(key), compared.after.get(key)
        if before and after and _are_notes(findings):
            findings = [*pins.crept(before, after), *findings]
        if _are_notes(findings):
            count = quiet.setdefault(key[0], [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + bool(findings)
            continue
        entries.append(_kernel_entry(key, findings, before, after, pins))
    entries += [_broken(arch, name, error) for (arch, name), error in compared.broken.items()]
    entries.sort(key=lambda entry: (entry.status != "regression", entry.arch, entry.label))
    entries = [_with_sources(entry, shipped, changed) for entry in entries]
    return [*_with_lines(entries, shipped, head), *(_rest(arch, *count) for arch, count in sorted(quiet.items()))]


def _are_notes(findings: Sequence[Finding]) -> bool:
    return all(finding.severity == "note" for finding in findings)


def _kernel_entry(
    key: tuple[str, str],
    findings: Sequence[Finding],
    before: KernelFacts | None,
    after: KernelFacts | None,
    pins: PinFiles,
) -> Entry:
    """Return the entry of a kernel by its most severe findings; its numbers are those of what grew most."""
    arch, name = key
    severity = next(finding.severity for finding in findings if finding.severity != "note")
    findings = [finding for finding in findings if finding.severity == severity]
    status: Status = {
        "worse": "regression",
        "better": "improvement",
        "incomparable": "ungated",
        "missing": "removed",
        "new": "new",
    }[severity]  # type: ignore[assignment]  # all of them are statuses
    reason = "; ".join(finding.text for finding in findings)
    sized = [(finding, cost_ratio(finding, before, after) if before and after else None) for finding in findings]
    # A waiver's ceiling must hold for each finding, and nothing bounds one without a ratio.
    first, ratio = max(sized, key=lambda item: item[1] or math.inf) if status == "regression" else sized[0]
    waiver, old, new = "", first.before, first.after
    if before and after:
        if first.metric == "occupancy" and before.occupancy and after.occupancy:
            old, new = before.occupancy.waves_per_simd, after.occupancy.waves_per_simd
        if status == "regression" and pins.accepts(after):
            status, waiver = "waived", f"this change renewed the kernel's pin in {PINS}/{arch}.json"
        if status == "improvement" and pins.outdone(after):
            reason += "; renew its pin with `rocattn kernels audit --write-pins`, or the gain may be lost unnoticed"
    decided = decision_of(name, status, ratio, reason) if ratio and status in _RATIOS else None
    return Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status=status,
        waiver=waiver, unit=UNITS.get(first.metric, ""), base=old, head=new, reason=reason, decision=decided,
        causes=[
            Cause(kind="machine code", text=finding.text, about=finding.metric, location=_source(finding))
            for finding in findings
        ],
    )  # fmt: skip


def _broken(arch: str, name: str, error: str) -> Entry:
    """Return the entry of a kernel that compiles on neither side."""
    reason = f"it does not compile on either side: {error}"
    return Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status="broken", reason=reason
    )  # fmt: skip


def _source(finding: Finding) -> Location | None:
    """Return a kernel's file, with the line if the finding is a compiler's error."""
    return error_at(finding.text) or (Location(path=f"{KERNELS}/{finding.file}") if finding.file else None)


def _rest(arch: str, kernels: int, noted: int) -> Entry:
    name = f"{kernels} kernels"
    changes = f"{noted} of them with changes without consequence" if noted else "without any difference that counts"
    return Entry(label=name, name="kernels", metric="audit", arch=arch, status="pass", reason=f"{name}: {changes}")


def _with_sources(
    entry: Entry, shipped: dict[tuple[str, str], Shipped], changed: Callable[[Shipped], list[Cause]]
) -> Entry:
    """Put the changed lines of a kernel that got worse before its machine code, which then needs no place of its own.

    Only spills keep one, and compiler errors: where they are is not where the code changed.
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


def _with_lines(entries: list[Entry], shipped: dict[tuple[str, str], Shipped], head: Kernels) -> list[Entry]:
    """Locate the lines of machine code that has no better place, the costliest ones; each may take a compilation.

    Of more than `MOST`, each architecture's first kernels are taken: one cause may make all variants of one worse.
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
            lines = lines_of_shipped(kernel, head.root)
        except RocattnError:  # it does not compile, which is the finding itself
            lines = []
        located[at] = msgspec.structs.replace(entry, causes=_located(entry.causes, lines, kernel))
    return located


def _lacks_line(cause: Cause) -> bool:
    return cause.kind == "machine code" and cause.location is not None


def _located(causes: Sequence[Cause], lines: Sequence[SourceLine], kernel: Shipped) -> list[Cause]:
    """Give each cause its likeliest line: one that shows it, else the costliest."""
    located = []
    for cause in causes:
        # The first line that fits, else the first of the others.
        line = min(lines, key=lambda line: line.shows != shown_for(cause.about), default=None)
        if line is None or not _lacks_line(cause):
            located.append(cause)
            continue
        folder = KERNELS if line.file.startswith("include/") else f"{KERNELS}/{kernel.source.rpartition('/')[0]}"
        where = Location(path=f"{folder}/{line.file}", line=line.number)
        located.append(msgspec.structs.replace(cause, text=f"{cause.text} [{line}]", location=where))
    return located
