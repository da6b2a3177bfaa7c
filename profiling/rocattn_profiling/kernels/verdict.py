"""The verdict of a comparison: the changed kernels, worst first, and a one-line summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from rocattn.gpu.arch import TESTED
from rocattn_profiling.base.card import listed
from rocattn_profiling.base.markup import terminal
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.compare import SEVERITIES, Change, Comparison, Finding
from rocattn_profiling.kernels.facts import KernelFacts
from rocattn_profiling.kernels.metrics import METRICS
from rocattn_profiling.kernels.sentences import compiled_by
from rocattn_profiling.pages.render import count

_MOST_NAMED = 3
_GRAVITY = list(METRICS)
WORDS = {
    "worse": "worse", "better": "better", "incomparable": "not comparable", "missing": "missing", "new": "new",
    "note": "changed",
}  # fmt: skip
"""Severity -> its name on the terminal."""
Variant = tuple[str, str, str]
"""Architecture, name and file of one compiled kernel."""


class CardRow(NamedTuple):
    """Changes in the variants of a kernel on one architecture.

    Attributes:
        kernel: Its name without the variant; kernels from one of our sources share a name.
        arch: The architecture.
        severity: The severity of the worst finding.
        findings: All findings for the variant with the worst one, worst first.
        variants: How many variants have this severity.
    """

    kernel: str
    arch: str
    severity: str
    findings: list[Finding]
    variants: int

    @property
    def variant(self) -> Variant:
        """The variant that represents all."""
        return variant_of(self.findings[0])


def rows_of(comparison: Comparison, audit: Audit, *, notes: bool = False) -> list[CardRow]:
    """Return a row for each kernel, architecture and severity, worst first.

    Args:
        comparison: The differences.
        audit: The current audit, for the names of kernels.
        notes: Whether changes without consequence get rows as well.
    """
    names = {(facts.name, facts.file): family_of(facts) for facts in audit.kernels}
    by_variant: dict[Variant, list[Finding]] = {}
    for finding in comparison.findings:
        by_variant.setdefault(variant_of(finding), []).append(finding)
    groups: dict[tuple[str, str, str], list[list[Finding]]] = {}
    for findings in by_variant.values():
        findings.sort(key=gravity_of)
        severity, name = findings[0].severity, findings[0].kernel
        if notes or severity != "note":
            family = names.get((name, findings[0].file), name.partition(" ")[0])
            groups.setdefault((family, findings[0].arch, severity), []).append(findings)
    rows = [
        CardRow(*key, findings=min(variants, key=lambda findings: gravity_of(findings[0])), variants=len(variants))
        for key, variants in groups.items()
    ]
    worst: dict[str, tuple[int, int, float]] = {}
    for row in rows:
        worst[row.kernel] = min(worst.get(row.kernel, (99, 0, 0.0)), gravity_of(row.findings[0]))
    return sorted(rows, key=lambda row: (worst[row.kernel], row.kernel, _place(row.arch), gravity_of(row.findings[0])))


def family_of(facts: KernelFacts) -> str:
    """Return the name under which a kernel is counted: one per source of ours, because its kernels share causes."""
    source = PurePath(facts.file)
    return source.stem if source.suffix == ".hip" and facts.kernel.startswith(source.stem) else facts.kernel


def variant_of(of: Finding | Change | KernelFacts) -> Variant:
    """Return the variant that a record belongs to."""
    return of.arch, getattr(of, "name", "") or of.kernel, of.file


def gravity_of(finding: Finding) -> tuple[int, int, float]:
    """Return a key that sorts the worst first: by severity, metric, then relative change."""
    before, after = finding.before or 0, finding.after or 0
    return SEVERITIES.index(finding.severity), _GRAVITY.index(finding.metric), -abs(after - before) / (before or 1)


def _place(arch: str) -> tuple[int, str]:
    return (TESTED.index(arch) if arch in TESTED else len(TESTED)), arch


def headline(comparison: Comparison, audit: Audit) -> str:
    """Return the verdict in one line: the findings, and what was not compared."""
    gaps = comparison.coverage.gaps()
    return "; ".join([_verdict(comparison, audit), *([gaps] if gaps else [])])


def _verdict(comparison: Comparison, audit: Audit) -> str:
    rows = rows_of(comparison, audit)
    if not rows:
        whole = comparison.coverage.whole
        return f"no kernel got worse or better{'' if whole else ' in what was compared'}"
    archs = sorted({facts.arch for facts in audit.kernels} | {row.arch for row in rows})
    kernels = {severity: list(dict.fromkeys(r.kernel for r in rows if r.severity == severity)) for severity in WORDS}
    gravest = next(severity for severity in WORDS if kernels[severity])
    parts = [f"{len(kernels[gravest])} kernel{'s' * (len(kernels[gravest]) > 1)} {WORDS[gravest]}"]
    on = {row.arch for row in rows if row.severity == gravest}
    if len(archs) == 1:
        parts[0] += f" on {archs[0]}"
    else:
        parts[0] += f" on {len(on)} of {len(archs)} architectures"
    parts += [f"{len(named)} {WORDS[name]}" for name, named in kernels.items() if named and name != gravest]
    return f"{', '.join(parts)}: {some_of(kernels[gravest])}"


def counts(comparison: Comparison) -> str:
    """Return what was compared with what, and the number of variants per severity."""
    gravest: dict[Variant, int] = {}
    for finding in comparison.findings:
        place = SEVERITIES.index(finding.severity)
        gravest[variant_of(finding)] = min(gravest.get(variant_of(finding), place), place)
    number = Counter(SEVERITIES[place] for place in gravest.values())
    only_notes = number.pop("note", 0)
    parts = [f"{number[severity]} {WORDS[severity]}" for severity in SEVERITIES if number[severity]]
    parts += [f"{only_notes} changed without consequence"] if only_notes else []
    parts += [f"{comparison.unchanged} unchanged"]
    compared = count(comparison.compared, "variant")
    return f"{compared} of {comparison.head} against {comparison.base}: {', '.join(parts)}"


def coverage(comparison: Comparison) -> list[str]:
    """Return `counts`, changed compilers, and how many variants were not compiled because they cannot differ."""
    if not comparison.alike:
        return [counts(comparison), *(compiled_by(*sides) for sides in comparison.compilers)]
    alike = f"{count(comparison.alike, 'variant')} with the same sources and macros as in {comparison.base}"
    looked_at = bool(comparison.compared or comparison.findings)
    return [*([counts(comparison)] if looked_at else []), f"{alike}: not compiled"]


def worst(rows: Sequence[CardRow]) -> CardRow:
    """Return the row with the worst finding."""
    return min(rows, key=lambda row: gravity_of(row.findings[0]))


def some_of(names: Sequence[str]) -> str:
    """Return the first few names and the number of others."""
    return listed([terminal(name, 80) for name in names], _MOST_NAMED)
