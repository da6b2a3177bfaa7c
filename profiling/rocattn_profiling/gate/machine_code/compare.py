"""Compares both sides' code objects for a project's plug-in: entries with causes, exact rather than timed.

`compare_audits` takes audits of any code objects (`rocattn_profiling.kernels.audit.audit_files`). `compare_kernels`
compiles HIP sources, but only those that can differ: the same source, macros and compiler give the same bytes. This
machine's compiler compiles both sides, so every difference comes from the sources.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocattn_profiling.gate.model import Cause, Entry, Location, Status, decision_of
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import Comparison, Finding, compare, problem_of
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.model.rates import rates_version
from rocattn_profiling.kernels.pairs import PARTS_OF, pairs_of, split_symbol
from rocattn_profiling.kernels.pins import pin_of
from rocattn_profiling.kernels.shipped import equal_kernels, facts_of_all
from rocattn_profiling.kernels.verdict import Variant, variant_of
from rocattn_profiling.kernels.work import work_factor

if TYPE_CHECKING:
    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.shipped import Shipped


class Kernels(NamedTuple):
    """One side's kernels: the folder of their sources, which contains ``include``, and what to compile from it."""

    root: Path
    shipped: Sequence[Shipped]


class Compared(NamedTuple):
    """Result of `compare_audits` and `compare_kernels`.

    Attributes:
        same: Architecture -> number of kernels that are byte-identical to base's and are not compiled.
        comparison: The comparison of all other kernels.
        before: Base's facts: of kernels on both sides by head's variant, and of kernels that head lacks.
        after: Head's facts, without kernels whose counterpart is ambiguous.
        broken: The compiler's error on head, for kernels that compile on neither side.
    """

    same: dict[str, int]
    comparison: Comparison
    before: dict[Variant, KernelFacts]
    after: dict[Variant, KernelFacts]
    broken: dict[tuple[str, str], str]


class Review:
    """Hooks for what a project adds to the comparison of code objects; the defaults add nothing."""

    def place(self, finding: Finding) -> Location | None:  # noqa: ARG002 - for subclasses
        """Return the location of a finding in the repository."""
        return None

    def crept(self, before: KernelFacts, after: KernelFacts) -> list[Finding]:  # noqa: ARG002
        """Return what got worse over time in a kernel that is no worse than base's."""
        return []

    def settled(self, entry: Entry, after: KernelFacts) -> Entry:  # noqa: ARG002
        """Return the entry of a kernel that both sides have, adjusted for what was accepted earlier."""
        return entry


def compare_audits(base: Audit, head: Audit) -> Compared:
    """Compare the code objects of both sides."""
    pairs = pairs_of(base, head)
    before = {variant_of(now): was for was, now in pairs.both} | {variant_of(facts): facts for facts in pairs.missing}
    clear = {id(facts) for facts in (*(now for _, now in pairs.both), *pairs.new)}
    after = {variant_of(facts): facts for facts in head.kernels if id(facts) in clear}
    return Compared({}, compare(base, head), before, after, {})


def compare_kernels(
    base: Kernels, head: Kernels, *, jobs: int = 0, say: Callable[[str], None] = lambda _: None
) -> Compared:
    """Compare the kernels of two checkouts, compiling those that can differ.

    Args:
        base: Base's kernels.
        head: Head's kernels.
        jobs: Number of processes; 0 for one per available core.
        say: Prints how many kernels are compiled.

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
    compared = compare_audits(*audits)
    compiled = {(facts.arch, facts.name) for audit in audits for facts in audit.kernels}
    neither = sorted((old.keys() & new.keys()) - equal - compiled)
    return compared._replace(
        same=same, broken={(arch, name): problem_of(audits[1], name, arch) for arch, name in neither}
    )


def cost_ratio(finding: Finding, before: KernelFacts, after: KernelFacts) -> float | None:
    """Return the factor by which the cost of a finding grew; None if it was zero."""
    if finding.metric == "occupancy":
        return _ratio(_waves(after), _waves(before))
    if finding.metric == "issue cycles":
        factor = work_factor(pin_of(before), pin_of(after))
        return _ratio((finding.before or 0) * factor, finding.after)
    if METRICS[finding.metric].more_is_better:
        return _ratio(finding.after, finding.before)
    return _ratio(finding.before, finding.after)


def _ratio(below: float | None, above: float | None) -> float | None:
    return above / below if below and above else None


def _waves(facts: KernelFacts) -> float | None:
    return facts.occupancy.waves_per_simd if facts.occupancy else None


def audit_entries(compared: Compared, review: Review | None = None) -> list[Entry]:
    """Return an entry for each kernel that got worse or better, is new or is gone; one per architecture for the rest.

    Args:
        compared: Both sides' code objects.
        review: The project's hooks.
    """
    review = review or Review()
    grouped: dict[Variant, list[Finding]] = {}
    for finding in compared.comparison.findings:
        grouped.setdefault(variant_of(finding), []).append(finding)
    gone = (facts for key, facts in compared.before.items() if key not in compared.after)
    labels = labels_of([*compared.after.values(), *gone])
    entries: list[Entry] = []
    quiet: dict[str, list[int]] = {arch: [count, 0] for arch, count in compared.same.items()}
    for key in dict.fromkeys([*compared.after, *grouped]):
        findings = grouped.get(key, [])
        before, after = compared.before.get(key), compared.after.get(key)
        if before and after and _are_notes(findings):
            findings = [*review.crept(before, after), *findings]
        if _are_notes(findings):
            count = quiet.setdefault(key[0], [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + bool(findings)
            continue
        entries.append(_kernel_entry(key[0], labels.get(key, key[1]), findings, before, after, review))
    entries += [_broken(arch, name, error) for (arch, name), error in compared.broken.items()]
    entries.sort(key=lambda entry: (entry.status != "regression", entry.arch, entry.label))
    return [*entries, *(_rest(arch, *count) for arch, count in sorted(quiet.items()))]


def _are_notes(findings: Sequence[Finding]) -> bool:
    return all(finding.severity == "note" for finding in findings)


def labels_of(kernels: Iterable[KernelFacts]) -> dict[Variant, str]:
    """Return the label of each kernel in waivers: its name, with distinguishing traits if several share that name.

    Labels are the same on every machine: C++ names are demangled here, as far as that needs no external program.
    """
    groups: dict[tuple[str, str], list[KernelFacts]] = {}
    for facts in kernels:
        names, _ = split_symbol(facts.name)
        groups.setdefault((facts.arch, names[-1] if names else facts.name), []).append(facts)
    labels: dict[Variant, str] = {}
    for (_, name), alike in groups.items():
        traits = [_traits(facts) for facts in alike]
        common = set(traits[0]).intersection(*traits[1:])
        given: Counter[str] = Counter()
        for facts, own in zip(alike, traits, strict=True):
            apart = " ".join(trait for trait in own if trait not in common)
            label = f"{name} [{apart}]" if apart else name
            given[label] += 1
            labels[variant_of(facts)] = f"{label} #{given[label]}" if given[label] > 1 else label
    return labels


def _traits(facts: KernelFacts) -> list[str]:
    """Return the traits that may distinguish a kernel from others of its name; those set by its source come first."""
    constants, tile, signature = (facts.config.get(kind, "").split() for kind in PARTS_OF)
    others = [f"{kind}={value}" for kind, value in facts.config.items() if kind not in PARTS_OF]
    names, arguments = split_symbol(facts.name)
    of_symbol = [".".join(names[:-1]), arguments] if names else []
    return [each for each in (*constants, *tile, *others, *of_symbol, *signature) if each]


def _kernel_entry(
    arch: str,
    name: str,
    findings: Sequence[Finding],
    before: KernelFacts | None,
    after: KernelFacts | None,
    review: Review,
) -> Entry:
    """Return the entry of a kernel from its most severe findings; its numbers are those of the largest growth."""
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
    # A waiver's ceiling must cover every finding; a finding without a ratio is unbounded.
    first, ratio = max(sized, key=lambda item: item[1] or math.inf) if status == "regression" else sized[0]
    old, new = first.before, first.after
    if before and after and first.metric == "occupancy" and before.occupancy and after.occupancy:
        old, new = before.occupancy.waves_per_simd, after.occupancy.waves_per_simd
    decided = decision_of(name, status, ratio, reason) if ratio and status in {"regression", "improvement"} else None
    entry = Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status=status,
        unit=METRICS[first.metric].unit, base=old, head=new, reason=reason, decision=decided,
        causes=[
            Cause(kind="machine code", text=finding.text, about=finding.metric, location=review.place(finding))
            for finding in findings
        ],
    )  # fmt: skip
    return review.settled(entry, after) if before and after else entry


def _broken(arch: str, name: str, error: str) -> Entry:
    """Return the entry of a kernel that compiles on neither side."""
    reason = f"it does not compile on either side: {error}"
    return Entry(label=name, name=name.partition(" ")[0], metric="audit", arch=arch, status="broken", reason=reason)


def _rest(arch: str, kernels: int, noted: int) -> Entry:
    name = f"{kernels} kernels"
    changes = f"{noted} of them with changes that do not matter" if noted else "without any difference that matters"
    return Entry(label=name, name="kernels", metric="audit", arch=arch, status="pass", reason=f"{name}: {changes}")
