"""The language of ``definitions.toml``, ``findings.toml`` and ``limits.toml``: formulas, conditions and sentences.

A formula is arithmetic over counters, parsed and checked once, and evaluated on whole columns. A condition compares two
formulas. A sentence has placeholders for numbers, like {memory_pct:.0f}.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
    "ceil": np.ceil,
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|>|<)\s*(.+)")
_PLACE = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


class FormulaError(RocattnError):
    """The formula is not arithmetic over names and numbers."""


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic with + - * /, min, max and ceil over names.

    Attributes:
        text: As it was written.
        names: The counters, metrics and constants that it uses.
    """

    text: str
    names: frozenset[str]
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Read a formula.

        Raises:
            FormulaError: If it contains anything except arithmetic, names and numbers.
        """
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise FormulaError(f"the formula {text!r} is not arithmetic: {error.msg}") from error
        names: set[str] = set()
        _check(text, tree, names)
        return cls(text, frozenset(names), tree)

    def evaluate(self, values: Mapping[str, NDArray[np.float64] | float]) -> NDArray[np.float64]:
        """Return its value, element by element; 0 / 0 is NaN, x / 0 is inf.

        Raises:
            KeyError: If a name has no value.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(_value(self._tree, values), dtype=np.float64)


def _check(text: str, node: ast.expr, names: set[str]) -> None:
    """Raise `FormulaError` for anything that `_value` cannot evaluate, and collect the names."""
    children: list[ast.expr]
    match node:
        case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
            children = [left, right]
        case ast.UnaryOp(ast.USub(), operand):
            children = [operand]
        case ast.Constant(int() | float()):
            children = []
        case ast.Name(name):
            names.add(name)
            children = []
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS and arguments:
            children = arguments
        case _:
            raise FormulaError(f"the formula {text!r} may not contain {ast.unparse(node)!r}")
    for child in children:
        _check(text, child, names)


def _value(node: ast.expr, values: Mapping[str, NDArray[np.float64] | float]) -> Any:
    match node:
        case ast.BinOp(left, kind, right):
            # Use arrays, because dividing Python numbers by zero would raise.
            return _OPERATORS[type(kind)](np.asarray(_value(left, values), np.float64), _value(right, values))
        case ast.UnaryOp(_, operand):
            return -_value(operand, values)
        case ast.Call(ast.Name(name), arguments):
            return _FUNCTIONS[name](*(_value(each, values) for each in arguments))
        case ast.Name(name):
            return values[name]
        case ast.Constant(value):
            return value
    raise AssertionError(node)  # _check rejects everything else


class Between(float):
    """A number that differs between launches: printed as a range, and evaluated at both ends (`ends`)."""

    least: float

    def __new__(cls, least: float, most: float) -> Self:
        """Return the maximum as a float with the minimum attached."""
        self = super().__new__(cls, most)
        self.least = float(least)
        return self

    def __format__(self, spec: str) -> str:
        """Return "17 to 32"."""
        least, most = format(self.least, spec), format(float(self), spec)
        return most if least == most else f"{least} to {most}"


def ends(numbers: Mapping[str, float]) -> list[Mapping[str, float]]:
    """Return the numbers with all ranges at their maximum and, if there are ranges, those at their minimum."""
    least = {name: value.least for name, value in numbers.items() if isinstance(value, Between)}
    return [numbers, {**numbers, **least}] if least else [numbers]


def evaluate(formula: Formula, sides: Sequence[Mapping[str, float]]) -> float:
    """Return a formula's value, as a range if the ends differ."""
    values = [float(formula.evaluate(side)) for side in sides]
    return Between(min(values), max(values)) if min(values) < max(values) else values[0]


class RuleError(RocattnError):
    """A rule of ``findings.toml`` or ``limits.toml`` is invalid."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of two formulas: "memory_pct >= 60"."""

    left: Formula
    compare: Callable[[float, float], bool]
    right: Formula

    @classmethod
    def parse(cls, key: str, text: str) -> Condition:
        """Read a condition of the rule with this key.

        Raises:
            RuleError: If it is not a comparison.
        """
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise RuleError(f"the rule {key} has a condition that compares nothing: {text!r}")
        return cls(Formula.parse(match[1]), _COMPARE[match[2]], Formula.parse(match[3]))

    @property
    def names(self) -> frozenset[str]:
        """All names that it uses."""
        return self.left.names | self.right.names

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether it is true; false if a name has no value."""
        if any(name not in numbers for name in self.names):
            return False
        return self.compare(float(self.left.evaluate(numbers)), float(self.right.evaluate(numbers)))


def places(text: str) -> set[str]:
    """Return the names of the placeholders in a sentence: {name} or {name:format}."""
    return {name for name, _ in _PLACE.findall(text)}


def fill(text: str, numbers: Mapping[str, float], words: Mapping[str, str] | None = None) -> str:
    """Fill a sentence with numbers, or with words if ``words`` has the name.

    Raises:
        KeyError: If a name is in neither.
    """
    words = words or {}
    return _PLACE.sub(lambda m: words[m[1]] if m[1] in words else format(numbers[m[1]], m[2] or ".3g"), text)
