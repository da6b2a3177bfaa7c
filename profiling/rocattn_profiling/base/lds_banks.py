"""LDS bank conflicts of a wave's access, from the lanes that ``lds_banks.toml`` says are served together."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rocattn_profiling.base.gpus import architecture

READ, WRITE, TRANSPOSING_READ = "read", "write", "transposing read"
_WORD = 4
_HALF = 32


@dataclass(frozen=True, slots=True)
class LdsAccess:
    """How a GPU serves an LDS access of one direction and width.

    Attributes:
        direction: "read", "write" or "transposing read" (``ds_read_b64_tr_b16``).
        bytes: Bytes per lane.
        banks: Number of 4-byte banks.
        groups: The lanes that are served together, in one cycle if there is no bank conflict.
        basis: "measured", "documented" or "assumed".
        source: Key of ``[sources]`` in the file.
    """

    direction: str
    bytes: int
    banks: int
    groups: tuple[tuple[int, ...], ...]
    basis: str
    source: str

    def cycles(self, addresses: Mapping[int, int]) -> tuple[int, int]:
        """Return the cycles that an access takes, and those it would take without conflicts.

        Args:
            addresses: Lane -> byte address, for active lanes; an access that crosses a word boundary counts for both.
        """
        taken = least = 0
        for group in self.groups:
            words: dict[int, set[int]] = {}
            for lane in group:
                if lane in addresses:
                    first, last = addresses[lane] // _WORD, (addresses[lane] + self.bytes - 1) // _WORD
                    for word in range(first, last + 1):
                        words.setdefault(word % self.banks, set()).add(word)
            taken += max(map(len, words.values()), default=0)
            least += bool(words)
        return taken, least


@cache
def lds_accesses(arch: str, wave_size: int) -> tuple[LdsAccess, ...]:
    """Return how a GPU serves its known types of LDS accesses.

    Args:
        arch: "gfx942"; features are ignored.
        wave_size: Lanes per wavefront.

    Raises:
        ArchError: The architecture is unknown.
    """
    family, accesses = architecture(arch).family, []
    for entry in _data()["access"]:
        if family in entry["families"]:
            how = (entry["bytes"], entry["banks"], _groups(entry, wave_size), entry["basis"][family], entry["source"])
            accesses += [LdsAccess(direction, *how) for direction in entry["directions"]]
    return tuple(accesses)


def lds_access(arch: str, wave_size: int, direction: str, nbytes: int) -> LdsAccess:
    """Return how a GPU serves an access of ``nbytes`` per lane; if unknown, the next wider known access is used.

    Raises:
        ArchError: The architecture is unknown.
        ValueError: It has no such access.
    """
    accesses = lds_accesses(arch, wave_size)
    known = [access for access in accesses if access.direction == direction and access.bytes >= nbytes]
    if not known:
        raise ValueError(f"nothing is known about a {direction} of {nbytes} bytes on {arch}")
    return min(known, key=lambda access: access.bytes)


def lds_groups_text(arch: str, wave_size: int) -> str:
    """Return the groups in the stand-in GPU's format, one access per line (kernels/hostgpu/README.md)."""
    lines = []
    for access in lds_accesses(arch, wave_size):
        masks = (f"{sum(1 << lane for lane in group):#x}" for group in access.groups)
        lines.append(f"{access.direction} {access.bytes} {access.banks} {' '.join(masks)}\n")
    return "".join(lines)


def _groups(entry: Mapping[str, Any], wave_size: int) -> tuple[tuple[int, ...], ...]:
    groups = tuple(_lanes(text) for text in entry["groups"])
    if wave_size == _HALF or entry.get("whole_wave"):
        return groups
    return groups + tuple(tuple(lane + _HALF for lane in group) for group in groups)


def _lanes(text: str) -> tuple[int, ...]:
    runs = [[int(lane) for lane in run.split("-")] for run in text.split(",")]
    return tuple(lane for run in runs for lane in range(run[0], run[-1] + 1))


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((files("rocattn_profiling.base") / "lds_banks.toml").read_text(encoding="utf-8"))
