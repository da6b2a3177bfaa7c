"""The machine code of both sides' kernels, compared: only what can differ is compiled.

The same source, macros and compiler give the same bytes. So a kernel whose files and macros are those of base is left
out without a look, and a pull request that touches one kernel compiles that kernel. Both sides are compiled by this
machine's compiler: a difference is one of the sources.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from rocattn.toolchain.inputs import content_key, inputs_of
from rocattn_profiling.gate.verdict import Location
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.pins import Pin, Pins
    from rocattn_profiling.kernels.shipped import Shipped

KERNELS, PINS = "kernels", "benchmarks/pins"
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
