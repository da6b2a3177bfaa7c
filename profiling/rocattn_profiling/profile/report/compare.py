"""Comparison of two profiles: which kernels changed in time, why, and which metrics changed with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.base.reasons import Coverage, Reason, counted
from rocattn_profiling.pages.quantities import percent
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.metrics.aggregate import MetricValue
from rocattn_profiling.profile.report.causes import ChangeCause, cause_of
from rocattn_profiling.profile.report.names import base_name, matching, short_name, short_names
from rocattn_profiling.profile.report.records import KernelProfile, ProfileReport

if TYPE_CHECKING:
    _Side = list[KernelProfile]

MOVED = 0.05
"""Smallest relative change of a metric that is reported; two runs of one program differ by less."""
CHANGES = 3
"""Number of kernels that are listed first."""
NAMED = 60
"""Length of a kernel's name in a sentence, in characters."""
NAME, INSTANCE, LEFT_OVER, ASKED = "name", "instance", "left over", "--pair"
"""How two kernels were paired."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric in both profiles."""

    before: MetricValue
    after: MetricValue
    change: float


@dataclass(frozen=True, slots=True)
class KernelPair:
    """One kernel in both profiles.

    Attributes:
        before, after: Its profiles; None if the kernel did not run.
        number: Its number in the later profile's report, or in the earlier one's if it is gone.
        ratio: Median time after over before; None if either is missing, or the GPUs differ.
        cause: What explains the change; None without a ratio, and for the HIP runtime's own kernels.
        moves: Metrics that changed, the largest change first.
        not_comparable: Metrics computed by different formulas, whose difference is meaningless.
        paired_by: How they were paired: "name", "instance", "left over" or "--pair"; "" if unpaired.
    """

    before: KernelProfile | None
    after: KernelProfile | None
    number: int
    ratio: float | None
    cause: ChangeCause | None
    moves: tuple[MetricChange, ...]
    not_comparable: tuple[str, ...]
    paired_by: str = ""

    @property
    def launched(self) -> str:
        """Its blocks and its GPU, as text."""
        kernel = self.after or self.before
        return "; ".join(filter(None, [kernel.shape.text, kernel.where])) if kernel else ""

    @property
    def name(self) -> str:
        """The kernel."""
        kernel = self.after or self.before
        return kernel.name if kernel else ""

    @property
    def label(self) -> str:
        """The attention problem that it solved; "" if unknown."""
        kernel = self.after or self.before
        return kernel.label if kernel else ""

    @property
    def is_other_instance(self) -> bool:
        """Whether template arguments or parameters differ between the sides."""
        return bool(self.before and self.after and self.before.name != self.after.name)


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Comparison of two profiles.

    Attributes:
        pairs: Their kernels, by descending change of total time.
        gpus: The GPUs before and after if they differ, otherwise None. Their times are not comparable then.
        coverage: How many kernels were compared, and what was not.
        named: The pairs that are listed first: the first few present on both sides, without the HIP runtime's kernels.
        lines: What changed, as text: one line for each of `named`, then the rest; at least one.
    """

    pairs: list[KernelPair]
    gpus: tuple[str, str] | None
    named: list[KernelPair]
    lines: list[str]
    coverage: Coverage

    @property
    def first(self) -> KernelPair | None:
        """The kernel that matters most."""
        return self.named[0] if self.named else None


def compare(before: ProfileReport, after: ProfileReport, asked: Sequence[str] = ()) -> ProfileComparison:
    """Match kernels, by descending change of total time (`_matched`).

    Args:
        before: The earlier profile.
        after: The later one.
        asked: Pairs of kernels with different names, "A=B" (`names.matching`), which come first.

    Raises:
        RocattnError: If a name in such a pair matches no kernel, or several.
    """
    number_of = {id(kernel): number for each in (before, after) for number, kernel in enumerate(each.kernels, 1)}
    gpus = differing_gpus(before, after)
    pairs = [
        _pair(first, second, number_of, how, same_gpu=gpus is None)
        for first, second, how in _matched(before.kernels, after.kernels, asked)
    ]

    def weight(pair: KernelPair) -> float:
        totals = [kernel.total_ns if kernel else 0.0 for kernel in (pair.before, pair.after)]
        return abs(totals[1] - totals[0])

    pairs.sort(key=lambda pair: (pair.paired_by != ASKED, -weight(pair), pair.name, pair.label))
    both = [pair for pair in pairs if pair.before and pair.after]
    alone = len(pairs) - len(both)
    both = [pair for pair in both if pair.after and not pair.after.kind]  # without the runtime's copies and fills
    named = [] if gpus else both[:CHANGES]
    lines = [headline(pair) for pair in named]
    if gpus:
        lines = [f"different GPUs ({gpus[0]} before, {gpus[1]} after): their times cannot be compared as one change"]
    elif not both:
        lines = ["no kernel of the program is in both profiles: nothing to compare"]
    lines += list(dict.fromkeys(_said(pair) for pair in pairs if pair.paired_by == LEFT_OVER))
    if alone and both:
        lines.append(f"{count(alone, 'kernel is', 'kernels are')} in only one of the profiles")
    return ProfileComparison(pairs, gpus, named, lines, _coverage(pairs, gpus))


def _coverage(pairs: list[KernelPair], gpus: tuple[str, str] | None) -> Coverage:
    """Return how many kernels' times were compared, and which metrics only one side has."""
    of: list[tuple[str, str, Reason[str]]] = []
    for pair in pairs:
        if pair.before is None or pair.after is None:
            side = "later" if pair.before is None else "earlier"
            of.append(("# kernel", "# kernels", Reason("one_side", f"only the {side} profile has it")))
            continue
        if pair.ratio is None:
            why = Reason("gpus", f"of {gpus[0]} and {gpus[1]}") if gpus else Reason("no_time", "one side has no time")
            of.append(("# kernel", "# kernels", why))
        for values, others, side in (
            (pair.before.values, pair.after.values, "earlier"), (pair.after.values, pair.before.values, "later")
        ):  # fmt: skip
            alone = [key for key, each in values.items() if each.value is not None and _value(others.get(key)) is None]
            one_side = Reason("one_side", f"only the {side} profile has it")
            of += [("# metric of a kernel", "# metrics of kernels", one_side)] * len(alone)
        formulas = Reason("formulas", "computed in different ways")
        of += [("# metric of a kernel", "# metrics of kernels", formulas)] * len(pair.not_comparable)
    return Coverage(compared=sum(pair.ratio is not None for pair in pairs), not_compared=counted(of))


def _value(of: MetricValue | None) -> float | None:
    return of.value if of else None


def _matched(
    before: _Side, after: _Side, asked: Sequence[str]
) -> list[tuple[KernelProfile | None, KernelProfile | None, str]]:
    """Return the kernels of both sides in pairs, each with how it was paired; unpaired kernels come last.

    Kernels match by name, problem, shape and GPU. The remaining kernels match by less: on other GPUs of the run; as the
    only shape of a kernel; as a function's only instance (a tile's size is a template argument, or part of the name);
    and if one kernel remains on each side, launched with equal blocks, as the only candidates.
    """
    old, new = list(before), list(after)
    pairs: list[tuple[KernelProfile | None, KernelProfile | None, str]] = []

    def match(how: str, key: Callable[[KernelProfile], object]) -> None:
        """Pair the kernels whose key is unique on each side."""
        ours, theirs = ({each: [k for k in side if key(k) == each] for each in map(key, side)} for side in (old, new))
        for each, (kernel, *more) in theirs.items():
            if not more and len(ours.get(each, ())) == 1:
                pairs.append((ours[each][0], kernel, how))
                old.remove(ours[each][0])
                new.remove(kernel)

    for text in asked:
        first, second = _sides(text, old, new)
        others = {id(k): id(k) for side, name in ((old, first), (new, second)) for k in side if k.name != name}
        match(ASKED, partial(_unless, others, lambda k: (k.shape, k.label, k.where)))
        match(ASKED, partial(_unless, others, lambda k: k.shape))
        match(ASKED, partial(_unless, others, lambda _: "it"))
    match(NAME, lambda k: (k.name, k.label, k.shape, k.where))
    match(NAME, lambda k: (k.name, k.label, k.shape))
    # A row for a GPU on one side only: this GPU ran the same work as the other GPUs on the other side.
    asked_for = [id(kernel) for *both, how in pairs if how == ASKED for kernel in both]
    for side, there, is_new in ((new, before, True), (old, after, False)):
        for kernel in list(side):
            same = [k for k in there if _work(k) == _work(kernel) and id(k) not in asked_for]
            if same:
                pairs.append((same[0], kernel, NAME) if is_new else (kernel, same[0], NAME))
                side.remove(kernel)
    match(NAME, lambda k: (k.name, k.label))
    match(INSTANCE, lambda k: (base_name(k.name), k.label, k.shape))
    match(INSTANCE, lambda k: (base_name(k.name), k.label))
    if all(len({k.name for k in side if k.bounds}) == 1 for side in (old, new)):
        match(LEFT_OVER, lambda k: (k.shape, k.where, k.label) if k.bounds else id(k))
    return [*pairs, *((None, kernel, "") for kernel in new), *((kernel, None, "") for kernel in old)]


def _unless(others: Mapping[int, int], key: Callable[[KernelProfile], object], kernel: KernelProfile) -> object:
    """Return a kernel's key if the kernel is a candidate, otherwise a key that is unique."""
    return others.get(id(kernel)) or key(kernel)


def _sides(text: str, before: _Side, after: _Side) -> list[str]:
    """Return the two kernels of "A=B"; an operator's name may itself contain "="."""
    wrong = RocattnError(f"--pair {text}: name a kernel of the earlier profile and one of the later, A=B")
    for at in [place for place, each in enumerate(text) if each == "="]:
        found = []
        for side, name in ((before, text[:at]), (after, text[at + 1 :])):
            try:
                found.append(matching(list(dict.fromkeys(kernel.name for kernel in side)), name) if name else [])
            except RocattnError as error:
                wrong = RocattnError(f"--pair {text}: {error}")
        if len(found) == 2 and all(len(each) == 1 for each in found):
            return [each[0] for each in found]
        for each in found:
            if len(each) > 1:
                some = ", ".join(short_names(each[:CHANGES], NAMED))
                wrong = RocattnError(f"--pair {text}: {len(each)} kernels match, give more of the name: {some}")
    raise wrong


def _said(pair: KernelPair) -> str:
    """Say that two kernels with different names were paired because no others are left."""
    names = [short_name(kernel.name, NAMED) if kernel else "" for kernel in (pair.before, pair.after)]
    return f"the only unmatched kernels, launched with the same blocks, are a pair: {names[0]} before, {names[1]} after"


def _work(kernel: KernelProfile) -> tuple[object, ...]:
    return kernel.name, kernel.label, kernel.shape


def differing_gpus(before: ProfileReport, after: ProfileReport) -> tuple[str, str] | None:
    """Return the GPUs of two profiles if they are known to differ."""
    names = [" and ".join(sorted({device.name for device in report.devices})) for report in (before, after)]
    return (names[0], names[1]) if all(names) and names[0] != names[1] else None


def headline(pair: KernelPair) -> str:
    """Return a kernel's change and its cause: "+29.4 %: kernel 1, LDS busy 23 → 79 %"."""
    change = percent(pair.ratio) if pair.ratio else "times not known"
    return f"{change}: kernel {pair.number}{f', {pair.cause.text}' if pair.cause else ''}"


def cautions(before: ProfileReport, after: ProfileReport) -> list[str]:
    """Return the caveats of a comparison: unknown GPUs, and problems of the earlier profile."""
    lines = [f"earlier profile: {problem}" for problem in before.problems]
    unknown = [when for when, each in (("earlier", before), ("later", after)) if not each.devices]
    if len(unknown) == 1:
        lines.insert(0, f"the {unknown[0]} profile does not say which GPU ran it: the GPUs may differ")
    return lines


def _pair(
    before: KernelProfile | None, after: KernelProfile | None, number_of: dict[int, int], how: str, *, same_gpu: bool
) -> KernelPair:
    number = number_of[id(after or before)]
    if before is None or after is None:
        return KernelPair(before, after, number, None, None, (), ())
    timed = same_gpu and 50 in before.time_ns and 50 in after.time_ns
    ratio = after.time_ns[50] / before.time_ns[50] if timed else None
    cause = cause_of(before, after, ratio) if ratio and after.bounds and before.bounds else None
    moves, different = [], []
    for key, new in after.values.items():
        old = before.values.get(key)
        if old is None or old.value is None or new.value is None:
            continue
        if old.formula != new.formula:
            different.append(new.title)
            continue
        size = max(abs(old.value), abs(new.value))
        change = (new.value - old.value) / size if size else 0.0
        if abs(change) > MOVED:
            moves.append(MetricChange(old, new, change))
    moves.sort(key=lambda move: -abs(move.change))
    return KernelPair(before, after, number, ratio, cause, tuple(moves), tuple(different), how)


def to_json(comparison: ProfileComparison) -> list[dict[str, object]]:
    """Return the comparison as JSON-ready values; ``change`` is relative to the larger side."""
    return [
        {
            "kernel": pair.name,
            "before": pair.before.name if pair.before else None,
            "label": pair.label,
            "launched": pair.launched,
            "paired_by": pair.paired_by,
            "only_in": None if pair.before and pair.after else "after" if pair.after else "before",
            "time_ratio": pair.ratio,
            "cause": msgspec.to_builtins(pair.cause),
            "moved": [
                {"metric": move.after.key, "unit": move.after.unit, "before": move.before.value,
                 "after": move.after.value, "change": move.change}
                for move in pair.moves
            ],
            "not_comparable": list(pair.not_comparable),
        }
        for pair in comparison.pairs
    ]  # fmt: skip
