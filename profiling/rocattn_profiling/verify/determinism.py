"""The same bits again: repeated, on any number of threads, and while other threads compute."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from rocattn_profiling.verify.arrays import compute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocattn.backend import Array, Backend
    from rocattn.config import AttentionConfig
    from rocattn_profiling.workloads.inputs import Inputs

THREADS = (1, 2, 3, 8)
"""Numbers of threads that a backend is given, by ``ROCATTN_NUM_THREADS``."""
TOGETHER = 4
_REPEATS = 3
_FILL = 7.0  # outputs hold other garbage than NaN in later runs: what is not written, or is added to, differs


def differing(config: AttentionConfig, inputs: Inputs, backend: Backend) -> tuple[dict[str, Array], str]:
    """Return the first run's outputs, and a sentence on what differs from them in later runs; "" if nothing does."""
    first = compute(config, inputs, backend)
    for _ in range(_REPEATS):
        if found := _difference(first, compute(config, inputs, backend, fill=_FILL)):
            return first, f"{found} when it is run again"
    for count in THREADS:
        with _threads(count):
            again = compute(config, inputs, backend)
        if found := _difference(first, again):
            return first, f"{found} on {count} thread{'s' * (count > 1)}"
    with ThreadPoolExecutor(TOGETHER) as pool:
        runs = list(pool.map(lambda _: compute(config, inputs, backend), range(2 * TOGETHER)))
    for run in runs:
        if found := _difference(first, run):
            return first, f"{found} when {TOGETHER} threads call it at once"
    return first, ""


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = os.environ.get("ROCATTN_NUM_THREADS")
    os.environ["ROCATTN_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["ROCATTN_NUM_THREADS"]
        else:
            os.environ["ROCATTN_NUM_THREADS"] = before


def _difference(first: dict[str, Array], other: dict[str, Array]) -> str:
    """Say in which tensor bits differ, in how many elements, and by how much."""
    for name, array in first.items():
        mine, theirs = (np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (array, other[name]))
        if (wrong := mine != theirs).any():
            with np.errstate(all="ignore"):
                gap = np.abs(array[wrong].astype(np.float64) - other[name][wrong].astype(np.float64))
            largest = float(np.max(gap, initial=0, where=np.isfinite(gap)))
            return f"{name} has other bits in {int(wrong.sum())} of {wrong.size} elements (up to {largest:.1e} apart)"
    return ""
