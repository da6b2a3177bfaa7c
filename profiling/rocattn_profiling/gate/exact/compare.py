"""Exact metrics by ratchet: machine code, launch plans, workspaces and the choice of a backend, base against head.

Nothing here is timed, so nothing is left to chance: what got worse by its consequence is a regression the first time
it is seen. A worsening whose pin the same change renews was accepted in the reviewed way; an improvement asks for the
pin to be renewed, so that the next change cannot eat it up.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError, ToolchainError
from rocattn.gpu.arch import TESTED
from rocattn.toolchain.compilers import choose_compiler
from rocattn_profiling.gate.exact import plans as exact_plans
from rocattn_profiling.gate.exact.audit import KERNELS, PINS, Kernels, PinFiles, compare_kernels, cost_ratio, error_at
from rocattn_profiling.gate.exact.sides import ProbeError, ask, usual_problems
from rocattn_profiling.gate.measure import SIDES, SideName
from rocattn_profiling.gate.verdict import Cause, Entry, Location
from rocattn_profiling.kernels.revision import list_kernels
from rocattn_profiling.kernels.shipped import is_quick
from rocattn_profiling.kernels.source_lines import MOST, lines_of_shipped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocattn_profiling.gate.exact.audit import Compared
    from rocattn_profiling.gate.sides import Context
    from rocattn_profiling.gate.verdict import Status
    from rocattn_profiling.kernels.compare import Finding
    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.kernels.shipped import Shipped
    from rocattn_profiling.kernels.source_lines import SourceLine

METRICS = ("audit", "plan", "workspace")
UNITS = {
    "spills": "spilled registers", "scratch": "bytes of scratch a lane", "occupancy": "waves a SIMD",
    "blocks": "blocks", "issue cycles": "cycles", "global loads": "bytes a load", "matrix": "matrix FLOPs",
    "instruction cache": "bytes of code", "loop code": "bytes of code",
}  # fmt: skip
PLANS_FROM = ("rocattn", KERNELS)
KERNELS_FROM = (*PLANS_FROM, "profiling/rocattn_profiling/kernels")
OPTIONS_FROM = "rocattn/toolchain/hip.py"
_ABOUT_SPILLS = frozenset({"spills", "scratch"})
_RATIOS: tuple[Status, ...] = ("regression", "improvement", "waived")


def entries(context: Context) -> list[Entry]:
    """Compare what can be compared without a clock.

    A project without GPU kernels of ours has none of this, and neither has a side without files; what is left out is
    noted in the context.
    """
    if any(side not in context.trees for side in SIDES):
        context.note("exact metrics are left out: an existing environment has no sources to compare")
        return []
    base, head = (_ours(context.trees[side]) for side in SIDES)
    if base and not head:
        return [_failed("plan", "plans and kernels", RocattnError("head has no plans and kernels any more; base has"))]
    if head and not base:
        context.note("exact metrics are left out: base is too old to have plans and kernels")
    return [*_plans(context), *_audit(context)] if base and head else []


def _ours(tree: Path) -> bool:
    """Whether a checkout is one of rocattn, new enough to have plans and kernels."""
    return (tree / "rocattn" / "gpu" / "plan.py").is_file() and (tree / KERNELS / "hip").is_dir()


def _plans(context: Context) -> list[Entry]:
    """Compare plans, workspaces and choices, unless not a byte that they are made from differs."""
    if not _differ(context, PLANS_FROM):
        reason = "the library and its kernels are base's, byte for byte"
        return [
            Entry(label=f"all {what}", name=what, metric=metric, status="pass", reason=reason)
            for what, metric in (("plans and backend choices", "plan"), ("workspaces", "workspace"))
        ]
    problems = usual_problems()
    try:
        base = ask(context, "base", problems, TESTED)
    except ProbeError as error:
        context.note(f"plans and workspaces are left out: {error}")
        return []
    try:
        head = ask(context, "head", problems, TESTED)
    except ProbeError as error:
        return [_failed("plan", "plans and backend choices", error)]
    return exact_plans.compare(base, head, TESTED)


def _failed(metric: str, label: str, error: RocattnError, arch: str = "") -> Entry:
    """Return the entry of what base says and head does not: not measured is never passed."""
    return Entry(label=label, name=label, metric=metric, arch=arch, status="failed", reason=str(error))


def _audit(context: Context) -> list[Entry]:
    """Compare machine code, unless not a byte that it is made from differs."""
    if not _differ(context, KERNELS_FROM):
        reason = "the kernels and what chooses them are base's, byte for byte"
        return [Entry(label="all kernels", name="kernels", metric="audit", status="pass", reason=reason)]
    try:
        choose_compiler()
    except ToolchainError as error:
        context.note(f"the machine code is not compared: {error}")
        return []
    try:
        base, unknown = _kernels(context, "base")
    except RocattnError as error:
        context.note(f"the machine code is not compared: {error}")
        return []
    if len({_content(context.trees[side] / OPTIONS_FROM) for side in SIDES}) > 1:
        context.note(
            f"{OPTIONS_FROM} differs, and both sides are compiled with the options of the rocattn that runs here: what "
            "other options change is told by `rocattn kernels audit --check-pins` alone"
        )
    for arch, why in unknown.items():
        context.note(f"base's machine code for {arch} is not compared: {why}")
    try:
        head, unlisted = _kernels(context, "head")
        failed = [
            _failed("audit", "kernels", RocattnError(f"head does not list its kernels for {arch}: {why}"), arch)
            for arch, why in unlisted.items()
            if any(one.arch == arch for one in base.shipped)
        ]
        base, head = (
            side._replace(shipped=[one for one in side.shipped if one.arch not in unlisted.keys() | unknown.keys()])
            for side in (base, head)
        )
        compared = compare_kernels(base, head, say=context.say)
    except RocattnError as error:
        return [_failed("audit", "kernels", error)]
    shipped = {(one.arch, one.name): one for one in head.shipped}
    return [*failed, *audit_entries(compared, shipped, head, PinFiles(base.tree, head.tree, context.note))]


def _kernels(context: Context, side: SideName) -> tuple[Kernels, dict[str, str]]:
    """Return what a side ships, and why it does not say so of an architecture."""
    tree = context.trees[side]
    listed = list_kernels(tree, side, TESTED)
    return Kernels(tree, [one for one in listed.kernels if not context.options.quick or is_quick(one)]), listed.problems


def _differ(context: Context, folders: Sequence[str]) -> bool:
    """Whether any file of some folders differs between the sides."""
    base, head = (
        [_digest(context.trees[side] / folder) for folder in folders] for side in SIDES
    )  # fmt: skip
    return base != head


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _digest(folder: Path) -> str:
    """Return a hash of the names and contents of a folder's files, without what Python leaves there."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return total.hexdigest()


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
    decided = exact_plans.decision_of(name, status, ratio, reason) if ratio and status in _RATIOS else None
    return Entry(
        label=name, name=name.partition(" ")[0], metric="audit", arch=arch, about=first.metric, status=status,
        waiver=waiver,        unit=UNITS.get(first.metric, ""), base=base, head=worth, reason=reason, decision=decided,
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
