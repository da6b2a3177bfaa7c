"""The machine code of both sides' kernels, compared: only what can differ is compiled.

The same source, macros and compiler give the same bytes. So a kernel whose files and macros are those of base is left
out without a look, and a pull request that touches one kernel compiles that kernel. Both sides are compiled by this
machine's compiler: a difference is one of the sources.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocattn.errors import RocattnError
from rocattn.toolchain.inputs import content_key, inputs_of
from rocattn_profiling.gate.plugin import decision_of
from rocattn_profiling.gate.verdict import Cause, Entry, Location
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
from rocattn_profiling.kernels.shipped import facts_of_all
from rocattn_profiling.kernels.source_lines import MOST, lines_of_shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.gate.verdict import Status
    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.pins import Pin, Pins
    from rocattn_profiling.kernels.shipped import Shipped
    from rocattn_profiling.kernels.source_lines import SourceLine

KERNELS, PINS = "kernels", "benchmarks/pins"
UNITS = {
    "spills": "spilled registers", "scratch": "bytes of scratch a lane", "occupancy": "waves a SIMD",
    "blocks": "blocks", "issue cycles": "cycles", "global loads": "bytes a load", "matrix": "matrix FLOPs",
    "instruction cache": "bytes of code", "loop code": "bytes of code",
}  # fmt: skip
_ABOUT_SPILLS = frozenset({"spills", "scratch"})
_RATIOS: tuple[Status, ...] = ("regression", "improvement", "waived")
_ERROR = re.compile(r"(?:^|\s)(\S+?):(\d+):\d+: (?:fatal )?error:")


class Kernels(NamedTuple):
    """What one side ships: its checkout, and the compilations that it makes."""

    tree: Path
    shipped: Sequence[Shipped]

    @property
    def root(self) -> Path:
        """Where its sources are."""
        return self.tree / KERNELS


class Compared(NamedTuple):
    """What came of comparing machine code.

    Attributes:
        same: Kernels of each architecture that are not compiled, being base's byte for byte.
        comparison: Of the others.
        before, after: Their facts by (architecture, name).
        broken: Why head's does not compile, of kernels that do not compile on either side.
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
        jobs: Processes at once; 0 for the cores available.
        say: Told how many are compiled.

    Raises:
        ToolchainError: When there is no compiler.
    """
    old, new = ({_key(one): one for one in side.shipped} for side in (base, head))
    same: dict[str, int] = {}
    left: set[tuple[str, str]] = set()
    contents = [_Contents(side.root) for side in (base, head)]
    for key in old.keys() & new.keys():
        if contents[0].of(old[key]) == contents[1].of(new[key]):
            same[key[0]] = same.get(key[0], 0) + 1
            left.add(key)
    wanted = [[one for key, one in side.items() if key not in left] for side in (old, new)]
    if count := len(wanted[0]) + len(wanted[1]):
        say(f"machine code: {count} of {len(old) + len(new)} compilations can differ")
    jobs = jobs or len(os.sched_getaffinity(0))
    audits = []
    for side, kernels, name in ((base, wanted[0], "base"), (head, wanted[1], "head")):
        facts, problems = facts_of_all(kernels, side.root, jobs=jobs) if kernels else ([], [])
        audits.append(Audit(subject=name, rates=rates_version(), kernels=facts, problems=problems))
    before, after = ({(facts.arch, facts.name): facts for facts in audit.kernels} for audit in audits)
    neither = sorted((old.keys() & new.keys()) - left - before.keys() - after.keys())
    broken = {(arch, name): problem_of(audits[1], name, arch) for arch, name in neither}
    return Compared(same, compare(*audits), before, after, broken)


def _key(one: Shipped) -> tuple[str, str]:
    return one.arch, one.name


class _Contents:
    """Hashes of all that compilations of one side read; each source and its headers are read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: dict[str, str] = {}

    def of(self, one: Shipped) -> str:
        """Return the hash of one compilation."""
        if one.source not in self._sources:
            read = inputs_of(self._root / "include", self._root / one.source)
            self._sources[one.source] = content_key(part for entry in read for part in entry)
        macros = [f"{name}={value}" for name, value in sorted(one.defines.items())]
        return content_key([one.arch, one.source, one.symbol, *macros, self._sources[one.source]])


def error_at(text: str) -> Location | None:
    """Return the place in the kernels' sources that a compiler's message names; None where it names none of them."""
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
    """Return by what factor the cost that a finding is about grew; None where it began at nothing."""
    if finding.metric == "occupancy":
        return _ratio(_waves(after), _waves(before))
    if finding.metric in {"blocks", "global loads", "matrix"}:  # more of these is better
        return _ratio(finding.after, finding.before)
    if finding.metric == "issue cycles":
        factor = work_factor(pin_of(before), pin_of(after))
        return _ratio((finding.before or 0) * factor, finding.after)
    return _ratio(finding.before, finding.after)


def _ratio(below: float | None, above: float | None) -> float | None:
    return above / below if below and above else None


def _waves(facts: KernelFacts) -> float | None:
    return facts.occupancy.waves_per_simd if facts.occupancy else None


class PinFiles:
    """The pins of both checkouts: whether a change was accepted in the reviewed way, or crept in over many commits.

    Args:
        base, head: The checkouts.
        note: Told why head's pins of an architecture do neither.
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
        """Return what is worse than the pin though not than base, which meets the pin."""
        pin = self._pin("head", after)
        return [] if pin is None or _worse(pin, before) else _worse(pin, after)

    def outdone(self, after: KernelFacts) -> bool:
        """Whether the kernel is better than its pin, which then wants to be renewed."""
        pin = self._pin("head", after)
        return pin is not None and any(one.severity == "better" for one in differences(pin, after))

    def _pin(self, side: str, facts: KernelFacts) -> Pin | None:
        """Return a kernel's pin; None where there is none, or it is of another compiler or table of rates."""
        pins = self._pins(side, facts)
        return pins.kernels.get(facts.name) if pins else None

    def _pins(self, side: str, facts: KernelFacts) -> Pins | None:
        """Return the pins of a kernel's architecture, if they can be compared with it."""
        if (side, facts.arch) not in self._read:
            try:
                self._read[side, facts.arch] = self._comparable(side, facts)
            except PinError as error:
                self._read[side, facts.arch] = None
                if side == "head":
                    place = str(error).replace(f"{self._trees[side]}/", "")
                    self._note(f"the pins of {facts.arch} neither accept nor remember anything: {place}")
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
    return [one for one in differences(pin, facts) if one.severity == "worse"]


def audit_entries(
    compared: Compared, shipped: dict[tuple[str, str], Shipped], head: Kernels, pins: PinFiles
) -> list[Entry]:
    """Return an entry for each kernel that got worse, better, came or went, and one an architecture for the rest.

    Args:
        compared: Both sides' machine code.
        shipped: Head's compilations by (architecture, name): to find the lines of what got worse.
        head: Where they are compiled from.
        pins: Both sides' pins.
    """
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in compared.comparison.findings:
        grouped.setdefault((finding.arch, finding.kernel), []).append(finding)
    made: list[Entry] = []
    quiet: dict[str, list[int]] = {arch: [count, 0] for arch, count in compared.same.items()}
    for key in dict.fromkeys([*compared.after, *grouped]):
        findings = grouped.get(key, [])
        before, after = compared.before.get(key), compared.after.get(key)
        if before and after and all(one.severity == "note" for one in findings):
            findings = [*pins.crept(before, after), *findings]
        if all(one.severity == "note" for one in findings):
            count = quiet.setdefault(key[0], [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + bool(findings)
            continue
        made.append(_kernel_entry(key, findings, before, after, pins))
    made += [_neither(arch, name, why) for (arch, name), why in compared.broken.items()]
    made.sort(key=lambda entry: (entry.status != "regression", entry.arch, entry.label))
    return [*_with_lines(made, shipped, head), *(_rest(arch, *count) for arch, count in sorted(quiet.items()))]


def _kernel_entry(
    key: tuple[str, str],
    findings: Sequence[Finding],
    before: KernelFacts | None,
    after: KernelFacts | None,
    pins: PinFiles,
) -> Entry:
    """Return the entry of a kernel by its gravest findings; its numbers are those of what grew most."""
    arch, name = key
    severity = next(one.severity for one in findings if one.severity != "note")
    told = [one for one in findings if one.severity == severity]
    status: Status = {
        "worse": "regression",
        "better": "improvement",
        "incomparable": "ungated",
        "missing": "removed",
        "new": "new",
    }[severity]  # type: ignore[assignment]  # all of them are statuses
    reason = "; ".join(one.text for one in told)
    sized = [(one, cost_ratio(one, before, after) if before and after else None) for one in told]
    # A waiver's ceiling must hold for each of them, and nothing bounds what has no ratio.
    first, ratio = max(sized, key=lambda item: item[1] or math.inf) if status == "regression" else sized[0]
    waiver, base, worth = "", first.before, first.after
    if before and after:
        if first.metric == "occupancy" and before.occupancy and after.occupancy:
            base, worth = before.occupancy.waves_per_simd, after.occupancy.waves_per_simd
        if status == "regression" and pins.accepts(after):
            status, waiver = "waived", f"this change renewed the kernel's pin in {PINS}/{arch}.json"
        if status == "improvement" and pins.outdone(after):
            reason += (
                "; renew its pin with `rocattn kernels audit --write-pins`, so that the gain cannot be lost unseen"
            )
    decided = decision_of(name, status, ratio, reason) if ratio and status in _RATIOS else None
    return Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status=status,
        waiver=waiver, unit=UNITS.get(first.metric, ""), base=base, head=worth, reason=reason, decision=decided,
        causes=[Cause(kind="machine code", text=one.text, about=one.metric, location=_source(one)) for one in told],
    )  # fmt: skip


def _neither(arch: str, name: str, why: str) -> Entry:
    """Return the entry of a kernel that compiles on neither side: nobody knows what became of it."""
    reason = f"it does not compile on either side: {why}"
    return Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status="broken", reason=reason
    )  # fmt: skip


def _source(finding: Finding) -> Location | None:
    """Return a kernel's file, with the line of the compiler's error where that is what happened."""
    return error_at(finding.text) or (Location(path=f"{KERNELS}/{finding.file}") if finding.file else None)


def _rest(arch: str, kernels: int, noted: int) -> Entry:
    what = f"{kernels} kernels"
    changed = f"{noted} of them with changes without consequence" if noted else "without any difference that counts"
    return Entry(label=what, name="kernels", metric="audit", arch=arch, status="pass", reason=f"{what}: {changed}")


def _with_lines(made: list[Entry], shipped: dict[tuple[str, str], Shipped], head: Kernels) -> list[Entry]:
    """Say of the first kernels that got worse which source lines cost most; each may take a compilation."""
    found = []
    left = MOST
    for entry in made:
        one = shipped.get((entry.arch, entry.label))
        if entry.status != "regression" or one is None or not left:
            found.append(entry)
            continue
        left -= 1
        try:
            lines = lines_of_shipped(one, head.root)
        except RocattnError:  # it does not compile: that is the finding itself
            lines = []
        found.append(msgspec.structs.replace(entry, causes=_located(entry.causes, lines, one)))
    return found


def _located(causes: Sequence[Cause], lines: Sequence[SourceLine], one: Shipped) -> list[Cause]:
    """Give each cause the line that it is likeliest about: of spills one that saves registers, else the costliest."""
    made = []
    for cause in causes:
        # Of the fitting lines the first; without one, the first of the others.
        line = min(lines, key=lambda line: line.spills != (cause.about in _ABOUT_SPILLS), default=None)
        if line is None:
            made.append(cause)
            continue
        folder = KERNELS if line.file.startswith("include/") else f"{KERNELS}/{one.source.rpartition('/')[0]}"
        where = Location(path=f"{folder}/{line.file}", line=line.number)
        made.append(msgspec.structs.replace(cause, text=f"{cause.text} [{line}]", location=where))
    return made
