"""Conditions and sentences of ``findings.toml`` and ``limits.toml``: comparisons of formulas, texts with numbers."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.profile.metrics.formula import Formula

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|>|<)\s*(.+)")
_PLACE = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


class RuleError(RocattnError):
    """A rule of ``findings.toml`` or ``limits.toml`` that cannot be read."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of two formulas: "memory_pct >= 60"."""

    left: Formula
    compare: Callable[[float, float], bool]
    right: Formula

    @classmethod
    def parse(cls, key: str, text: str) -> Condition:
        """Read a condition of the rule of this key.

        Raises:
            RuleError: When it compares nothing.
        """
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise RuleError(f"the rule {key} has a condition that compares nothing: {text!r}")
        return cls(Formula.parse(match[1]), _COMPARE[match[2]], Formula.parse(match[3]))

    @property
    def names(self) -> frozenset[str]:
        """What it needs."""
        return self.left.names | self.right.names

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether it holds; never where a name has no number."""
        if any(name not in numbers for name in self.names):
            return False
        return self.compare(float(self.left.evaluate(numbers)), float(self.right.evaluate(numbers)))


def places(text: str) -> set[str]:
    """Return the names in a sentence: {name} or {name:format}."""
    return {name for name, _ in _PLACE.findall(text)}


def fill(text: str, numbers: Mapping[str, float], words: Mapping[str, str] | None = None) -> str:
    """Return a sentence with its numbers, and words where a name stands for such.

    Raises:
        KeyError: When a name has neither.
    """
    words = words or {}
    return _PLACE.sub(lambda m: words[m[1]] if m[1] in words else format(numbers[m[1]], m[2] or ".3g"), text)
