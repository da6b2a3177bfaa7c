"""The counters of each architecture and how many fit in a pass: `counters.toml` as an object per architecture."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rocattn.errors import RocattnError

ACCUMULATOR = "SQ_ACCUM_PREV_HIRES"
"""The only register that integrates the preceding level counter, so a pass has at most one accumulated counter."""

_TARGET = re.compile(r"(gfx[0-9a-f]{3,})(?::(?:sramecc|xnack)[+-])*")


class CounterError(RocattnError, ValueError):
    """Raised for an unknown architecture, counter or group; the message lists the known ones."""


@dataclass(frozen=True)
class ArchCounters:
    """The counters of one architecture.

    Attributes:
        arch: The requested architecture.
        table: The architecture whose table is used.
        limits: Block -> number of its counters that fit in one pass.
        blocks: Raw counter -> block.
        expressions: Derived counter -> the raw counters it needs.
        later: Counter -> first ROCm release that has it, and the profiler this applies to ("" for all).
        note: Known defects of this architecture's counters, or "".
        verified: Whether the profiler's own table contains this architecture.
    """

    arch: str
    table: str
    limits: dict[str, int]
    blocks: dict[str, str]
    expressions: dict[str, tuple[str, ...]]
    later: dict[str, tuple[tuple[int, int], str]]
    note: str
    verified: bool

    def has(self, counter: str) -> bool:
        """Return whether the counter exists on this architecture."""
        return counter in self.blocks or counter in self.expressions

    def in_release(self, counter: str, release: tuple[int, int], tool: str) -> bool:
        """Return whether a profiler of this ROCm release has the counter; true for an unknown release, (0, 0)."""
        first, only = self.later.get(counter, ((0, 0), ""))
        return release == (0, 0) or release >= first or only not in {"", tool}

    def needs(self, counter: str) -> tuple[str, ...]:
        """Return the raw counters that a counter is computed from; a raw counter itself."""
        return (counter,) if counter in self.blocks else self.expressions[counter]

    def registers(self, counters: tuple[str, ...]) -> dict[str, int]:
        """Return the number of counter registers per block that these counters take in total."""
        used: dict[str, int] = {}
        for raw in {raw for counter in counters for raw in self.needs(counter)}:
            block = "SQ" if raw == ACCUMULATOR else self.blocks[raw]  # RDNA's tables name it SQ_ACCUM_PREV
            used[block] = used.get(block, 0) + 1
        return used

    def over(self, counters: tuple[str, ...]) -> str:
        """Return why these counters do not fit in one pass, or ""."""
        accumulated = [counter for counter in counters if ACCUMULATOR in self.needs(counter)]
        if len(accumulated) > 1:
            return f"{' and '.join(accumulated)} each need the one accumulator"
        for block, count in sorted(self.registers(counters).items()):
            limit = self.limits.get(block)
            if limit is not None and count > limit:
                return f"{block} has {limit} counters a pass, {count} are needed"
        return ""


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("counters.toml").read_text())


def known_archs() -> tuple[str, ...]:
    """Return the architectures with a table of their own or a shared one."""
    data = _data()
    return (*data["arch"], *data["like"])


def anchors() -> tuple[str, ...]:
    """Return the counters that every pass repeats."""
    return tuple(_data()["anchors"])


def group_names() -> dict[str, str]:
    """Return the description of each group by name, default groups first."""
    data = _data()
    order = [*data["default"], *(name for name in data["group"] if name not in data["default"])]
    return {name: data["group"][name]["about"] for name in order}


def default_groups() -> tuple[str, ...]:
    """Return the default groups."""
    return tuple(_data()["default"])


def group(name: str, counters: ArchCounters) -> list[tuple[str, ...]]:
    """Return a group's counters on an architecture; the counters of a tuple belong in one pass.

    Raises:
        CounterError: When the group does not exist.
    """
    data = _data()["group"]
    if name not in data:
        raise CounterError(f"there is no group {name!r} of counters: there are {', '.join(group_names())}")
    for entry in data[name]["counters"]:
        if counters.table in entry["archs"].split():
            return [tuple(names.split()) for names in entry["names"]]
    return []


@cache
def of_arch(arch: str) -> ArchCounters:
    """Return the counters of an architecture ("gfx942" or "gfx942:sramecc+:xnack-").

    Raises:
        CounterError: When it is no architecture, or has no table.
    """
    match = _TARGET.fullmatch(arch)
    if match is None:
        raise CounterError(f"{arch!r} is no GPU architecture: write it like gfx942 or gfx1100")
    data, name = _data(), match[1]
    like = data["like"].get(name, {"as": name})
    table = like["as"]
    if table not in data["arch"]:
        known = ", ".join(known_archs())
        raise CounterError(f"there is no table of counters for {name}: there is one for {known}")
    facts = data["arch"][table]

    def here(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [row for row in rows if table in row["archs"].split()]

    expressions = {row["name"]: tuple(row["needs"].split()) for row in here(data["derived"])}
    for row in here(data["reduced"]):
        expressions |= {f"{raw}_{row['suffix']}": (raw,) for raw in row["names"].split()}
    return ArchCounters(
        arch=name,
        table=table,
        limits=data["limits"][facts["limits"]] | like.get("limits", {}),
        later={
            counter: (_release(row["release"]), row.get("tool", ""))
            for row in facts.get("later", ())
            for counter in row["names"].split()
        },
        blocks={raw: row["block"] for row in here(data["raw"]) for raw in row["names"].split()},
        expressions=expressions,
        note=facts.get("note", ""),
        verified=not like.get("unverified", False),
    )


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
