"""Files of settings in a gated repository: TOML with one array of tables, errors with file and line."""

from __future__ import annotations

import math
import re
import tomllib
from typing import TYPE_CHECKING, Any

from rocattn_profiling.gate.verdict import METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from rocattn.errors import RocattnError


def read(tree: Path, file: str, name: str, error: type[RocattnError]) -> list[tuple[dict[str, Any], str]]:
    """Return the tables of a file with the place of each ("file:line"); none where there is no such file.

    Args:
        tree: A repository's files.
        file: Path of the file in it.
        name: Of the array: the file may hold nothing else.
        error: Raised, with one line, when the file is not that.
    """
    try:
        text = (tree / file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise error(f"{file} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{file} cannot be read: it is not UTF-8") from problem
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{file}: {problem}") from problem
    except (ValueError, RecursionError) as problem:  # brackets without end, or a number of thousands of digits
        raise error(f"{file} cannot be read: a value in it is too long or too deep") from problem
    rows = content.pop(name, [])
    if content:
        raise error(f"{file}: {next(iter(content))!r} is unknown: the file is a list of [[{name}]] tables")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise error(f"{file}: begin every table with [[{name}]], in double brackets")
    return [(row, f"{file}:{line}") for row, line in zip(rows, _lines(text, name, len(rows)), strict=True)]


def _lines(text: str, name: str, count: int) -> list[int]:
    """Return the lines at which the tables begin; 1 for all where the text does not show them."""
    header = re.compile(rf"\s*\[\[\s*{name}\s*\]\]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
    return lines if len(lines) == count else [1] * count


def check_keys(
    row: Mapping[str, Any], source: str, known: Collection[str], needed: Collection[str], error: type[RocattnError]
) -> None:
    """Refuse a table with an unknown key, which would be a setting without effect, or without a needed one.

    Raises:
        RocattnError: Of the class ``error``.
    """
    if unknown := [key for key in row if key not in known]:
        raise error(f"{source}: {unknown[0]!r} is unknown; known are {', '.join(known)}")
    if lacking := [key for key in needed if key not in row]:
        raise error(f"{source}: {lacking[0]} is missing; needed are {', '.join(needed)}")


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; TOML's whole numbers have no limit, and true is none."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def check_metric(metric: str, source: str, error: type[RocattnError]) -> None:
    """Refuse a metric that no entry of a verdict has: it would match nothing.

    Raises:
        RocattnError: Of the class ``error``.
    """
    if metric not in METRICS:
        raise error(f"{source}: metric {metric!r} is unknown; known are {', '.join(METRICS)}")
