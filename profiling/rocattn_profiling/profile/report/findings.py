"""Findings: the limit that bounds a kernel and the rules of ``findings.toml``, the largest gain first."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from rocattn_profiling.profile.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.profile.metrics.formula import Condition, Formula, RuleError, ends, evaluate, fill, places
from rocattn_profiling.profile.report.limits import LINES, NEAR, limits, lines_command
from rocattn_profiling.profile.report.records import Bounds, KernelFinding

OF_KERNEL = frozenset(
    {
        "time_share", "median_ns", "launches", "blocks", "blocks_least", "vgprs", "lds_bytes", "scratch_bytes",
        "agprs", "theoretical_occupancy_pct", "blocks_that_fit", "bound_pct", "uncounted", "uncountable", "dynamic_lds",
        "waits", "stalled_pct", "times_the_others", "long_excess",
    }
)  # fmt: skip
"""Names that rules can use in addition to metrics and constants of the GPU."""
WORDS = frozenset({"limiter", "bound", "arch", "place", "others", "long", "median", LINES})
TOO_LOW = " (per-cycle values are too low: on a kernel this short they include the profiler's own cycles)"
LARGE = 0.25
"""Share of a kernel's time from which a waste comes before rules that apply to most kernels (`last`)."""
_RANK_WAITING, _OF_LIMIT = 0.5, 0.99
_NEXT = 0.5  # the second-nearest limit is mentioned from this fraction of the nearest one's share


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    title: str
    when: tuple[Condition, ...]
    unless: tuple[Condition, ...]
    says: str
    let: dict[str, Formula]
    gain: Formula | None
    rank: Formula
    eases: frozenset[str]
    next: str
    waste: str
    last: bool
    sure: bool
    cause: str

    def apply(
        self, numbers: Mapping[str, float], bounds: Bounds, words: Mapping[str, str], too_low: AbstractSet[str]
    ) -> KernelFinding | None:
        sides = ends(numbers)  # if launches differ, the condition must be true for all of them
        if not all(each.holds(side) for each in self.when for side in sides):
            return None
        if any(each.holds(side) for each in self.unless for side in sides):
            return None
        known = dict(numbers)
        if any(name not in known for formula in self.let.values() for name in formula.names):
            return None
        known |= {name: evaluate(formula, sides) for name, formula in self.let.items()}
        named = places(self.says) - WORDS
        if any(name not in known for name in named):
            return None
        sentence = fill(self.says, known, words)
        used = {name for each in self.when for name in each.names} | named
        is_too_low = bool(used & too_low)
        if is_too_low and self.sure:
            return None
        sentence = f"{sentence.strip()}{TOO_LOW if is_too_low else ''}"
        # The remaining work takes at least as long as its nearest limit requires.
        most = 1 - bounds.without(self.eases) / 100
        is_bounded = self.gain and self.gain.names <= known.keys()
        gain = float(np.clip(evaluate(self.gain, ends(known)), 0, most)) if self.gain and is_bounded else None
        part = evaluate(self.rank, ends(known)) if gain is None else gain
        rank, shown_gain = _of_all(gain, part, numbers)
        rank *= _OF_LIMIT if gain == most else 1  # of several limits, the one that leaves no more to gain comes first
        command = fill(self.next, known, words) if places(self.next) <= known.keys() | words.keys() else ""
        inputs = {name: float(known[name]) for name in sorted(used)}
        if is_too_low:
            shown_gain = None  # as an upper bound it would be too low
        return KernelFinding(
            self.key, self.title, sentence, shown_gain, rank, inputs, command, is_too_low,
            waste=part if self.waste else 0.0,
        )  # fmt: skip


def _of_all(gain: float | None, rank: float, numbers: Mapping[str, float]) -> tuple[float, float | None]:
    """Return the rank and the gain of a finding as shares of all kernels' time."""
    share = numbers.get("time_share")
    rank = (rank if gain is None else gain) * (1 if share is None else share)
    return rank, None if gain is None or share is None else rank


def find(
    numbers: Mapping[str, float], bounds: Bounds, limiter: str = "", too_low: AbstractSet[str] = frozenset(),
    arch: str = "", words_of_launches: Mapping[str, str] | None = None, *, sampled: bool = False,
) -> list[KernelFinding]:  # fmt: skip
    """Return the findings of one kernel: the limit that bounds it and the rules that apply, the largest gain first.

    Args:
        numbers: Metrics by key, constants of the GPU, and the known names of `OF_KERNEL` except its limits.
        bounds: How close it is to its limits.
        limiter: The occupancy calculator's sentence; "" for none.
        too_low: Per-cycle numbers that are too low because they include the profiler's own cycles.
        arch: The GPU's architecture; "" if unknown.
        words_of_launches: The rules' words "place", "others", "long" and "median", if any.
        sampled: Whether the profile has its PC samples or a thread trace.
    """
    nearest = bounds.nearest
    waits = numbers.get("waiting_pct", 100.0) / 100
    known = {
        **numbers,
        "waits": waits,
        "uncounted": float(len(bounds.uncounted)),
        "uncountable": float(len(bounds.uncountable)),
    }
    words = {"limiter": limiter[:1].upper() + limiter[1:], "bound": ""}  # findings use the limiter as a full sentence
    words |= {LINES: lines_command(arch, sampled=sampled)} | dict(words_of_launches or {})
    if arch:
        words["arch"] = arch
    findings = []
    if nearest:
        known["bound_pct"], words["bound"] = nearest.pct, nearest.short
        if nearest.pct >= NEAR:
            rank, gain = _of_all(None if nearest.is_waiting else 1 - nearest.reached / 100, _RANK_WAITING, numbers)
            findings.append(
                KernelFinding(
                    f"{nearest.key}-bound", f"{nearest.name} bound", bound_sentence(bounds), gain, rank,
                    nearest.numbers, nearest.command, less=nearest.less,
                )
            )  # fmt: skip
    findings += [finding for rule in _rules() if (finding := rule.apply(known, bounds, words, too_low))]
    large = [finding.rank for finding in findings if finding.waste >= LARGE]
    last = {rule.key for rule in _rules() if rule.last and large}
    findings = [replace(each, rank=min(each.rank, min(large) / 2)) if each.key in last else each for each in findings]
    return sorted(findings, key=lambda finding: (-finding.rank, finding.key))


def wastes() -> dict[str, tuple[str, str]]:
    """Return the inputs of the waste rules: metric -> what its counters measure, in words, and the rule's key."""
    return {rule.cause: (rule.waste, rule.key) for rule in _rules() if rule.waste}


def bound_sentence(bounds: Bounds) -> str:
    """Return a sentence with the limit that bounds a kernel, the observations on it, and the next limit."""
    nearest, *others = bounds.known
    after = others[0] if others and others[0].pct >= _NEXT * nearest.pct else None
    parts = [nearest.notes, nearest.advice, f"next is {after.short}" if after else ""]
    return f"{nearest.name} bound {nearest.where}: {'; '.join(filter(None, parts))}"


@cache
def _rules() -> tuple[_Rule, ...]:
    """Read ``findings.toml``.

    Raises:
        RuleError: If a rule refers to an unknown name, or a condition is not a comparison.
    """
    text = files(__package__).joinpath("findings.toml").read_text("utf-8")
    known = {metric.key for metric in definitions().metrics} | CONSTANTS | OF_KERNEL
    eased = {limit.key for limit in limits()}
    rules = []
    for table in tomllib.loads(text)["finding"]:
        key = str(table["key"])
        when, unless = (
            tuple(Condition.parse(key, each) for each in table.get(name, ())) for name in ("when", "unless")
        )
        let = {name: Formula.parse(formula) for name, formula in table.get("let", {}).items()}
        gain = Formula.parse(table["gain"]) if "gain" in table else None
        if gain is None and "rank" not in table:
            raise RuleError(f"the finding {key} must have a gain or a rank")
        if ("waste" in table) != ("cause" in table):
            raise RuleError(f"the finding {key} must have both `waste` and `cause`, or neither")
        eases = frozenset(table.get("eases", ()))
        rule = _Rule(
            key, table["title"], when, unless, table["says"], let, gain, Formula.parse(str(table.get("rank", 0))),
            eases, table.get("next", ""), table.get("waste", ""), table.get("last", False), table.get("sure", False),
            table.get("cause", ""),
        )  # fmt: skip
        names = {name for each in (*when, *unless) for name in each.names} | (gain.names if gain else frozenset())
        names |= {name for formula in let.values() for name in formula.names} | rule.rank.names | ({rule.cause} - {""})
        names |= (places(rule.says) | places(rule.next)) - WORDS - set(let)
        if unknown := sorted((names - known) | (eases - eased)):
            raise RuleError(f"the finding {key} refers to unknown names: {', '.join(unknown)}")
        rules.append(rule)
    return tuple(rules)
