"""Compares plans, workspaces and backend choices: pure functions of both sides' answers.

These results are exact, so every change is reported. A change fails only because of its consequences: a problem loses
the flash path, its plan or its backend, or needs more memory. A different tile or grid is only listed: timing, or the
audit of the kernels, decides whether it is slower.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from rocattn_profiling.gate.model import Cause, Entry, Status, decision_of
from rocattn_profiling.pages.render import count as counted

from .answers import Answers, PlanAnswer, PlannedLaunch
from .machine_code import error_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE_BYTES = 4096
"""Memory is allocated in pages, so a workspace that grows by less costs nothing."""
_NAMED = 8  # causes listed per entry


FLASH_PATH = "flash path"
"""A group of plans, and the code of a cause that lost this path."""


class _Change(NamedTuple):
    """One difference for one problem on one architecture (or on the host: "").

    Attributes:
        status, metric: See `Entry`; "pass" for no difference.
        group: Its group, judged together over all problems: "flash path", "select cpu-flash".
        problem, arch: Label of the problem, and the architecture.
        text: The difference, as a clause.
        base, head: Bytes of a workspace.
    """

    status: Status
    metric: str
    group: str
    problem: str
    arch: str
    text: str
    base: int | None = None
    head: int | None = None


def compare(base: Mapping[str, Answers], head: Mapping[str, Answers], archs: Sequence[str]) -> list[Entry]:
    """Return an entry for each group of changes that matter, one for all other changes, and one for what is equal.

    Args:
        base: Base's answers by problem label.
        head: Head's answers by problem label.
        archs: The architectures of the plans.
    """
    asked = [key for key in head if not base[key].unknown]
    known = [key for key in asked if not head[key].unknown]
    changes = [
        _Change("regression", "plan", "plans", key, "", f"the library refuses the problem: {head[key].unknown}")
        for key in asked
        if head[key].unknown
    ]
    for key in known:
        changes += _selection(key, base[key], head[key])
        changes += _host_workspaces(key, base[key], head[key])
        for arch in archs:
            if (old := base[key].plans.get(arch)) and (new := head[key].plans.get(arch)):
                changes += _plan(key, arch, old, new)
    groups: dict[tuple[str, str, str], list[_Change]] = defaultdict(list)
    for change in changes:
        groups[change.metric, change.group, change.arch].append(change)
    # Lost plans are counted among all plans of the architecture, including those of the flash path.
    others = {
        (metric, group, arch): len(groups.get((metric, FLASH_PATH, arch), ()) if arch else known)
        for metric, group, arch in groups
        if group == "plans"
    }
    judged = (_judged(of_group, others.get(key, 0)) for key, of_group in groups.items())
    entries = _merged([entry for entry in judged if entry], archs)
    for metric, what in (("plan", "plans and backend choices"), ("workspace", "workspaces")):
        of_metric = [change for change in changes if change.metric == metric]
        entries += _listed(metric, [change for change in of_metric if change.status == "ungated"])
        if equal := sum(change.status == "pass" for change in of_metric):
            text = f"{equal} {what} of {len(known)} problems equal base's"
            entries.append(Entry(label=f"{equal} {what}", name=what, metric=metric, status="pass", reason=text))
    return entries


def _plan(key: str, arch: str, old: PlanAnswer, new: PlanAnswer) -> Iterator[_Change]:
    if old.absent:
        return  # base is too old to have plans
    lost = new.problem or new.absent
    if old.problem or lost:
        if not lost:
            yield _Change("new", "plan", "plans", key, arch, f"base has none: {old.problem}")
        elif not old.problem:
            text = f"head has no plan ({lost}); base launches {_names(old.launches)}"
            yield _Change("regression", "plan", "plans", key, arch, text)
        else:
            yield _Change("pass", "plan", "no plan", key, arch, "neither side has one")
        return
    before, after = sum(old.workspaces.values()), sum(new.workspaces.values())
    if old.path != new.path:
        why = f": {new.reason}" if new.reason else ""
        was, now = (f"the {side.path} path ({_names(side.launches)})" for side in (old, new))
        text = f"{was} gives way to {now}{why}"
        yield _Change("regression" if old.path == "flash" else "improvement", "plan", FLASH_PATH, key, arch, text)
        return  # different workspaces follow from the different path
    group = FLASH_PATH if old.path == "flash" else "plans"
    if old.hash == new.hash:
        yield _Change("pass", "plan", group, key, arch, "as in base")
    else:
        yield _Change("ungated", "plan", group, key, arch, geometry(old, new))
    yield _memory("gpu", key, arch, before, after)


def geometry(old: PlanAnswer, new: PlanAnswer) -> str:
    """Describe the differences between two plans for one problem."""
    if _kernels(old) != _kernels(new):
        return f"launches {_names(new.launches)} instead of {_names(old.launches)}"
    parts = []
    for before, after in zip(old.launches, new.launches, strict=True):
        changed = [
            f"{what} {_size(was)} -> {_size(now)}"
            for what, was, now in (
                ("grid", before.grid, after.grid),
                ("block", before.block, after.block),
                ("dynamic LDS", (before.dynamic_lds_bytes,), (after.dynamic_lds_bytes,)),
            )
            if was != now
        ]
        names = before.defines.keys() | after.defines.keys()
        changed += [
            f"{name} {before.defines.get(name, 'unset')} -> {after.defines.get(name, 'unset')}"
            for name in sorted(names)
            if before.defines.get(name) != after.defines.get(name)
        ]
        if changed:
            parts.append(f"{after.kernel}: {', '.join(changed)}")
    return "; ".join(parts) or "other arguments of the same launches"


def _selection(key: str, old: Answers, new: Answers) -> Iterator[_Change]:
    if not old.selected:
        if new.selected:
            yield _Change(
                "new", "plan", f"select {new.selected}", key, "", f"{new.selected} is selected; base has none"
            )
        return
    group = f"select {old.selected}"
    if lost := lost_backend(old, new):
        yield _Change("regression", "plan", group, key, "", lost)
    elif old.selected != new.selected:
        yield _Change("ungated", "plan", group, key, "", f"{new.selected} is selected instead of {old.selected}")
    else:
        yield _Change("pass", "plan", group, key, "", "as in base")
    for name, answer in old.backends.items():
        now = new.backends.get(name)
        # The selected backend is compared above; losing another one affects users who request it by name.
        if name != old.selected and answer.supports:
            lost = "" if now and now.supports else f": {now.why}" if now else ": it is no longer registered"
            text = f"{name} no longer computes it{lost}" if lost else "as in base"
            yield _Change("regression" if lost else "pass", "plan", f"support {name}", key, "", text)


def lost_backend(old: Answers, new: Answers) -> str:
    """Describe how a problem lost the backend that base selects for it; "" if it did not."""
    was, now = old.selected, new.selected
    if was == now:
        return ""
    answer, before = new.backends.get(was), old.backends[was]
    chosen = now or "no backend"
    if answer is None:
        return f"{chosen} is selected, since {was}, which base selects, is no longer registered"
    if not answer.able:
        return f"{chosen} is selected, since {was}, which base selects, no longer can: {answer.why}"
    if now in old.backends and old.backends[now].priority < before.priority:
        return f"{chosen} is selected, which base ranks below {was}"
    return ""


def _host_workspaces(key: str, old: Answers, new: Answers) -> Iterator[_Change]:
    for name, answer in new.backends.items():
        before = old.backends.get(name)
        if before and before.workspace_bytes is not None and answer.workspace_bytes is not None:
            yield _memory(name, key, "", before.workspace_bytes, answer.workspace_bytes)


def _memory(backend: str, key: str, arch: str, before: int, after: int) -> _Change:
    text = f"{before} -> {after} bytes of workspace"
    status: Status = "pass"
    if abs(after - before) >= PAGE_BYTES:
        status = "regression" if after > before else "improvement"
    elif after != before:
        status, text = "ungated", f"{text}, which is less than a page"
    return _Change(status, "workspace", f"workspace {backend}", key, arch, text, before, after)


def _judged(changes: Sequence[_Change], others: int) -> Entry | None:
    """Return the entry of one group on one architecture; None if it contains nothing to judge.

    Args:
        changes: The group's changes.
        others: Number of additional plans that a loss is counted among.
    """
    order: tuple[Status, ...] = ("regression", "improvement", "new")
    status = next((status for status in order if any(change.status == status for change in changes)), None)
    if status is None:
        return None
    alike = [change for change in changes if change.status == status]
    first, count, kinds = alike[0], len(changes) + others, len({change.text for change in alike})
    causes = _causes(alike, "launch" if first.metric == "workspace" else "backend")
    if first.group == FLASH_PATH and status == "regression":
        causes = [msgspec.structs.replace(cause, about=FLASH_PATH) for cause in causes]
    more = f"; {counted(kinds - 1, 'more kind')} of change" if kinds > 1 else ""
    reason = f"{len(alike)} of {count} problems: {causes[0].text}{more}"
    base: float | None
    head: float | None
    if first.metric == "workspace":
        worst = max(alike, key=lambda change: _growth(change) if status == "regression" else -_growth(change))
        unit, base, head, ratio = "bytes", worst.base, worst.head, _ratio(worst.base, worst.head)
        reason = f"{worst.text} of {worst.problem}{_more(alike)}"
    else:
        lost = sum(change.status == "regression" for change in changes)
        gained = sum(change.status in {"improvement", "new"} for change in changes)
        unit, base, head = "problems", count - gained, float(count - lost)
        # Gains do not offset losses: a regression's ratio covers only the problems that base had.
        ratio = _ratio(base - lost, base) if status == "regression" else _ratio(head, base)
    decided = decision_of(first.group, status, ratio, reason) if ratio and status != "new" else None
    return Entry(
        label=first.group, name=first.group, metric=first.metric, arch=first.arch, status=status, unit=unit, base=base,
        head=head, reason=reason, decision=decided, causes=causes,
    )  # fmt: skip


def _growth(change: _Change) -> float:
    return _ratio(change.base, change.head) or float("inf" if change.head else 0)


def _ratio(below: float | None, above: float | None) -> float | None:
    return above / below if below and above else None


def _more(alike: Sequence[_Change]) -> str:
    return f", and {counted(len(alike) - 1, 'more problem')} alike" if len(alike) > 1 else ""


def _causes(changes: Sequence[_Change], kind: Literal["backend", "launch"]) -> list[Cause]:
    """Return each distinct difference once, most frequent first, with an example problem."""
    groups: dict[str, list[_Change]] = defaultdict(list)
    for change in changes:
        groups[change.text].append(change)
    causes = []
    for text, of_text in sorted(groups.items(), key=lambda item: -len(item[1]))[:_NAMED]:
        problems = list(dict.fromkeys(change.problem for change in of_text))
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        causes.append(Cause(kind=kind, text=f"{text} ({problems[0]}{more})", location=error_at(text)))
    return causes


def _merged(entries: Sequence[Entry], archs: Sequence[str]) -> list[Entry]:
    """Merge entries that are equal on every architecture into one without an architecture."""
    equal: dict[bytes, list[Entry]] = defaultdict(list)
    for entry in entries:
        equal[msgspec.json.encode(msgspec.structs.replace(entry, arch=""))].append(entry)
    merged: list[Entry] = []
    for group in equal.values():
        everywhere = len(group) == len(archs)
        merged += [msgspec.structs.replace(group[0], arch="")] if everywhere else group
    return merged


def _listed(metric: str, changes: Sequence[_Change]) -> list[Entry]:
    """Return one entry for all changes that are neither worse nor better."""
    if not changes:
        return []
    what = "plans or choices" if metric == "plan" else "workspaces"
    different = (
        counted(len(changes), "plan or choice", what) if metric == "plan" else counted(len(changes), "workspace")
    )
    reason = f"{different} not as in base, none with a slower path: shown, not judged"
    return [
        Entry(
            label=f"changed {what}", name=f"changed {what}", metric=metric, status="ungated", reason=reason,
            causes=_causes(changes, "launch"),
        )
    ]  # fmt: skip


def _kernels(plan: PlanAnswer) -> list[str]:
    return [launch.kernel for launch in plan.launches]


def _names(launches: Sequence[PlannedLaunch]) -> str:
    return " + ".join(launch.kernel for launch in launches) or "nothing"


def _size(value: Sequence[int]) -> str:
    return " x ".join(map(str, value))
