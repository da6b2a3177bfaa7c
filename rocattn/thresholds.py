"""Measured thresholds: which of two backends is faster from which length on, on one machine with one thread count.

`rocattn bench --crossover` writes the file, `BackendRegistry.use_thresholds` reads it. A threshold changes a selection
only where it was measured: for that kind of problem (the fields of `Cell`), at lengths at which one backend was faster
with 95 % confidence. Everything else is selected by priority, as without a file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.cpu_model import cpu_model
from rocattn.errors import RocattnError, ToolchainError
from rocattn.threads import thread_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import UnionType

    from rocattn.config import AttentionConfig

SCHEMA = 1
MASKS = ("none", "causal", "bool", "additive")


class ThresholdsError(RocattnError):
    """Raised when a file of thresholds cannot be read, or is not of this machine."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lengths at which a backend is the faster one; ``to_length`` None is open."""

    from_length: int
    to_length: int | None
    winner: str

    def holds(self, length: int) -> bool:
        """Whether a length is in the range."""
        return self.from_length <= length and (self.to_length is None or length <= self.to_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Two backends on one kind of problem.

    Attributes:
        backends: The two; evidence counts how many times faster the second is.
        head_dim, dtype, mask, batch, num_heads, num_kv_heads, layout, direction: The kind. No other option is on;
            the head dimension of V is the same.
        seq_q: Query tokens where they are fixed (decode) and the length counts keys; None where Sq = Sk is the length.
        ranges: Where one of the two is faster with 95 % confidence.
        evidence: One measurement each: length, ratio, low, high, launches.
        skipped: Why nothing was measured; empty if it was.
        state: Hash of the source text, settings and lengths that it was measured with: those of the file's other cells
            may be older or newer.
    """

    backends: tuple[str, str]
    head_dim: int
    dtype: str
    mask: str
    batch: int
    num_heads: int
    num_kv_heads: int
    layout: str = "BSHD"
    direction: str = "forward"
    seq_q: int | None = None
    ranges: tuple[Range, ...] = ()
    evidence: tuple[dict[str, Any], ...] = ()
    skipped: str = ""
    state: str = ""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Everything that must agree with a config but its head dimension and length."""
        heads = (self.batch, self.num_heads, self.num_kv_heads)
        return (self.dtype, self.mask, *heads, self.layout, self.direction, self.seq_q)

    def winner(self, length: int) -> str | None:
        """Return the faster backend at a length, or None where neither was proven to be."""
        return next((each.winner for each in self.ranges if each.holds(length)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """A file of thresholds.

    Attributes:
        machine: `machine_identity` of where they were measured.
        threads: The thread count they were measured with.
        cells: By kind of problem and pair of backends.
        about: Versions, commit, settings: for people.
    """

    machine: Mapping[str, str]
    threads: int
    cells: tuple[Cell, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the file's content as JSON-ready values."""
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "threads": self.threads,
            "about": dict(self.about),
            "cells": [asdict(cell) for cell in self.cells],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Thresholds:
        """Rebuild thresholds from `to_dict`'s values; KeyError, TypeError or ValueError if they are none."""
        if values["schema"] != SCHEMA:
            raise ValueError(f"its schema is {values['schema']!r}, this rocattn reads {SCHEMA}")
        cells = tuple(_cell(entry) for entry in values["cells"])
        machine = {str(name): str(value) for name, value in dict(values["machine"]).items()}
        _check({"threads": values["threads"]}, int)
        return cls(machine=machine, threads=values["threads"], cells=cells, about=values["about"])

    def rules(self) -> Rules:
        """Return what a selection asks."""
        return Rules(cell for cell in self.cells if cell.ranges)


class Rules:
    """Thresholds by kind of problem, ready to be asked at every call."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells: dict[tuple[Any, ...], dict[tuple[str, str], dict[int, Cell]]] = {}
        for cell in cells:
            self._cells.setdefault(cell.kind, {}).setdefault(cell.backends, {})[cell.head_dim] = cell

    def better(self, config: AttentionConfig, name: str) -> str | None:
        """Return the backend that was measured to be faster than the named one on a config; None if none was.

        Between two measured head dimensions both must agree; beyond them nothing is said.
        """
        kind = mask_kind(config)
        if kind is None or config.head_dim != config.head_dim_v:
            return None
        heads = (config.batch, config.num_heads, config.num_kv_heads)
        shared = (config.dtype, kind, *heads, config.layout, config.direction)
        for seq_q in (None, config.seq_q) if config.seq_q == config.seq_k else (config.seq_q,):
            for backends, dims in self._cells.get((*shared, seq_q), {}).items():
                if name in backends and (found := _agreed(dims, config)) not in {None, name}:
                    return found
        return None


def _agreed(dims: Mapping[int, Cell], config: AttentionConfig) -> str | None:
    if config.head_dim in dims:
        return dims[config.head_dim].winner(config.seq_k)
    below = max((dim for dim in dims if dim < config.head_dim), default=None)
    above = min((dim for dim in dims if dim > config.head_dim), default=None)
    if below is None or above is None:
        return None
    found = dims[below].winner(config.seq_k)
    return found if found == dims[above].winner(config.seq_k) else None


def mask_kind(config: AttentionConfig) -> str | None:
    """Return which of `MASKS` a config has; None if it has a window, two masks or options that no cell knows."""
    if config.window is not None or config.softcap is not None or config.alibi or config.sinks:
        return None
    if config.mask_shape is None:
        return "causal" if config.causal else "none"
    own = config.mask_shape == (1, 1, config.seq_q, config.seq_k)
    return config.mask if own and not config.causal else None


def machine_identity(backends: Iterable[str]) -> dict[str, str]:
    """Return what thresholds between backends depend on: CPU, what its kernels are compiled for, for "gpu" the GPU."""
    from rocattn.toolchain import host_isa

    try:
        found = {"cpu": cpu_model(), "isa": host_isa()}
    except ToolchainError:
        found = {"cpu": cpu_model(), "isa": ""}
    return found | ({"gpu": _gpu_name()} if "gpu" in backends else {})


def _gpu_name() -> str:
    from rocattn.gpu.errors import GpuError
    from rocattn.gpu.runtime import open_runtime

    try:
        device = open_runtime().device
    except GpuError:
        return "no GPU"
    return f"{device.name} {device.arch}"


def load_thresholds(path: Path, *, force: bool = False) -> Thresholds:
    """Read a file of thresholds.

    Args:
        path: As `rocattn bench --crossover` wrote it.
        force: Take it even if it is of another machine or thread count.

    Raises:
        ThresholdsError: When it cannot be read, or is of another machine or thread count; one line.
    """
    try:
        found = Thresholds.from_dict(json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise ThresholdsError(f"cannot read thresholds from {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ThresholdsError(f"{path} holds no thresholds of `rocattn bench --crossover`: {what}") from error
    if not force and (problem := foreign(found)):
        remedy = "measure here (rocattn bench --crossover), or pass force=True (--force-thresholds)"
        raise ThresholdsError(f"{path} was measured {problem}: {remedy}")
    return found


def foreign(found: Thresholds) -> str:
    """Return in what way thresholds are not of this process ("on another machine …"); "" if they are."""
    here = machine_identity(name for cell in found.cells for name in cell.backends)
    if dict(found.machine) != here:
        there, this = (", ".join(filter(None, identity.values())) for identity in (found.machine, here))
        return f"on another machine ({there}; this is {this})"
    if found.threads != thread_count():
        return f"with {found.threads} thread{'s' * (found.threads != 1)}, and this process uses {thread_count()}"
    return ""


def _cell(entry: Mapping[str, Any]) -> Cell:
    first, second = entry["backends"]
    made = {"backends": (str(first), str(second)), "ranges": tuple(Range(**each) for each in entry["ranges"])}
    cell = Cell(**{**entry, **made, "evidence": tuple(entry["evidence"])})
    # A selection compares and looks up all of these: what is wrong is told now, not in some later call.
    _check({name: getattr(cell, name) for name in ("dtype", "mask", "layout", "direction")}, str)
    _check({name: getattr(cell, name) for name in ("head_dim", "batch", "num_heads", "num_kv_heads")}, int)
    _check({"seq_q": cell.seq_q}, int | None)
    for each in cell.ranges:
        _check({"from_length": each.from_length}, int)
        _check({"to_length": each.to_length}, int | None)
        _check({"winner": each.winner}, str)
    return cell


def _check(values: Mapping[str, Any], kind: type | UnionType) -> None:
    """Raise TypeError for a value that is of another kind."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}")
