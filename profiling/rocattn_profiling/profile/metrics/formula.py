"""Formulas of metrics: arithmetic over counters, checked when they are read and evaluated on whole columns."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
}


class FormulaError(RocattnError):
    """A formula that is no arithmetic over names and numbers."""


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic with + - * /, min and max over names.

    Attributes:
        text: As it was written.
        names: What it needs, counters and constants alike.
    """

    text: str
    names: frozenset[str]
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Read a formula.

        Raises:
            FormulaError: When it holds anything but arithmetic, names and numbers.
        """
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise FormulaError(f"the formula {text!r} is no arithmetic: {error.msg}") from error
        names: set[str] = set()
        _check(text, tree, names)
        return cls(text, frozenset(names), tree)

    def evaluate(self, values: Mapping[str, NDArray[np.float64] | float]) -> NDArray[np.float64]:
        """Return its value, element by element; NaN where it divides nothing by nothing, inf where something.

        Raises:
            KeyError: When a name has no value.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(_value(self._tree, values), dtype=np.float64)


def _check(text: str, node: ast.expr, names: set[str]) -> None:
    """Accept what `_value` evaluates, and collect the names."""
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
            raise FormulaError(f"the formula {text!r} may not hold {ast.unparse(node)!r}")
    for child in children:
        _check(text, child, names)


def _value(node: ast.expr, values: Mapping[str, NDArray[np.float64] | float]) -> Any:
    match node:
        case ast.BinOp(left, kind, right):
            # As arrays: a division of Python numbers by zero would raise.
            return _OPERATORS[type(kind)](np.asarray(_value(left, values), np.float64), _value(right, values))
        case ast.UnaryOp(_, operand):
            return -_value(operand, values)
        case ast.Call(ast.Name(name), arguments):
            return _FUNCTIONS[name](*(_value(each, values) for each in arguments))
        case ast.Name(name):
            return values[name]
        case ast.Constant(value):
            return value
    raise AssertionError(node)  # _check lets nothing else through
