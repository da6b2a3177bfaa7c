"""What to optimise: rules of ``findings.toml`` applied to the numbers of kernels, ordered by what they would gain."""

from __future__ import annotations

import operator
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from rocattn.errors import RocattnError
from rocattn_profiling.metrics.definitions import CONSTANTS, definitions
from rocattn_profiling.metrics.formula import Formula

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

OF_KERNEL = frozenset(
    {
        "time_share", "mean_ns", "launches", "blocks", "vgprs", "lds_bytes", "scratch_bytes",
        "theoretical_occupancy_pct", "blocks_that_fit",
    }
)  # fmt: skip
"""Names in rules beside metrics and constants of the GPU."""
LIMITER = "limiter"
TOO_LOW = " (shares of cycles are too low here: the profiler's own are among those of so short a kernel)"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|>|<)\s*(.+)")
_PLACE = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


class RuleError(RocattnError):
    """A rule of ``findings.toml`` that cannot be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to do.

    Attributes:
        key: The rule.
        sentence: With the numbers behind it.
        gain: At most so much of all kernels' time, 0 to 1; None where no number bounds it, or no time is known.
        rank: What orders findings: the gain where there is one.
        numbers: What went into it, by name.
    """

    key: str
    sentence: str
    gain: float | None
    rank: float
    numbers: dict[str, float]

    @property
    def gain_text(self) -> str:
        """What it would gain at most, in words."""
        if self.gain is None:
            return "gain not known"
        share = 100 * self.gain
        return f"at most {share:{'.0f' if share >= 10 else '.2g'}} % of all kernels' time"  # 100, not 1e+02


@dataclass(frozen=True, slots=True)
class _Condition:
    left: Formula
    compare: Callable[[float, float], bool]
    right: Formula

    @property
    def names(self) -> frozenset[str]:
        return self.left.names | self.right.names

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether it holds; never where a name has no number."""
        if any(name not in numbers for name in self.names):
            return False
        return self.compare(float(self.left.evaluate(numbers)), float(self.right.evaluate(numbers)))


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    when: tuple[_Condition, ...]
    unless: tuple[_Condition, ...]
    says: str
    let: dict[str, Formula]
    gain: Formula | None
    rank: float

    def apply(self, numbers: Mapping[str, float], limiter: str, too_low: AbstractSet[str]) -> Finding | None:
        if not all(each.holds(numbers) for each in self.when) or any(each.holds(numbers) for each in self.unless):
            return None
        known = dict(numbers)
        needed = [*self.let.values(), *([self.gain] if self.gain else [])]
        if any(name not in known for formula in needed for name in formula.names):
            return None
        known |= {name: float(formula.evaluate(known)) for name, formula in self.let.items()}
        places = [name for name, _ in _PLACE.findall(self.says) if name != LIMITER]
        if any(name not in known for name in places):
            return None
        sentence = _PLACE.sub(lambda m: limiter if m[1] == LIMITER else format(known[m[1]], m[2] or ".3g"), self.says)
        used = {name for each in self.when for name in each.names} | set(places)
        sentence = f"{sentence.strip()}{TOO_LOW if used & too_low else ''}"
        share = numbers.get("time_share")
        bound = float(np.clip(self.gain.evaluate(known), 0, 1)) if self.gain else None
        rank = (self.rank if bound is None else bound) * (1 if share is None else share)
        gain = None if bound is None or share is None else rank
        return Finding(self.key, sentence, gain, rank, {name: known[name] for name in sorted(used)})


def find(numbers: Mapping[str, float], limiter: str = "", too_low: AbstractSet[str] = frozenset()) -> list[Finding]:
    """Return what the rules say of one kernel, the largest gain first.

    Args:
        numbers: Metrics by key, constants of the GPU, and `OF_KERNEL`; what is not known is left out.
        limiter: The occupancy calculator's sentence; "" if it was not asked.
        too_low: Which of the numbers are, because they are per cycle and the profiler's own work is in the cycles.
    """
    limiter = limiter[:1].upper() + limiter[1:]  # a sentence of its own there
    found = [finding for rule in _rules() if (finding := rule.apply(numbers, limiter, too_low))]
    return sorted(found, key=lambda finding: (-finding.rank, finding.key))


@cache
def _rules() -> tuple[_Rule, ...]:
    """Read ``findings.toml``.

    Raises:
        RuleError: When a rule names what nothing gives, or a condition compares nothing.
    """
    text = files(__package__).joinpath("findings.toml").read_text("utf-8")
    known = {metric.key for metric in definitions().metrics} | CONSTANTS | OF_KERNEL
    rules = []
    for table in tomllib.loads(text)["finding"]:
        key = str(table["key"])
        when, unless = (tuple(_condition(key, each) for each in table.get(name, ())) for name in ("when", "unless"))
        let = {name: Formula.parse(formula) for name, formula in table.get("let", {}).items()}
        gain = Formula.parse(table["gain"]) if "gain" in table else None
        if (gain is None) == ("rank" not in table):
            raise RuleError(f"the finding {key} must have either a gain or a rank")
        rule = _Rule(key, when, unless, table["says"], let, gain, float(table.get("rank", 0)))
        names = {name for each in (*when, *unless) for name in each.names} | (gain.names if gain else frozenset())
        names |= {name for formula in let.values() for name in formula.names}
        names |= {name for name, _ in _PLACE.findall(rule.says)} - {LIMITER, *let}
        if unknown := sorted(names - known):
            raise RuleError(f"the finding {key} names {', '.join(unknown)}, which nothing gives")
        rules.append(rule)
    return tuple(rules)


def _condition(key: str, text: str) -> _Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise RuleError(f"the finding {key} has a condition that compares nothing: {text!r}")
    return _Condition(Formula.parse(match[1]), _COMPARE[match[2]], Formula.parse(match[3]))
