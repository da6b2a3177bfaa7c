"""What this machine can do at most, measured: matrix products and memory traffic, to judge attention against.

Four numbers, each the best of several tries at the thread count of the run, taken in a fresh process:

- ``gemm_tflops``: float32 matrix product of numpy's BLAS, 2 n^3 operations, the best of a few n.
- ``gemm_float64_tflops``: the same in float64.
- ``memory_read_gbps``: bytes of an array far larger than the last-level cache that BLAS reads once (dot product and
  matrix-vector product, the access of a decode step).
- ``memory_copy_gbps``: bytes read plus bytes written by a copy of that array, all threads copying a slice.

``memory_gbps`` is the larger of the last two. They are what was reached, not what the data sheet promises: on a busy
machine attention may exceed them a little. They are measured anew in every run and never taken from an earlier one.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError, complaint
from rocattn_profiling.measure.machine import available_memory_bytes, thread_environment

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALLEST_ARRAY = 128 << 20
_SIZES, _QUICK_SIZES = (256, 512, 1024, 2048), (256, 1024)
"""n of the matrix products. On a busy machine only the smallest are over before another process gets the CPU: there
1024 alone was a quarter of what 256 reached, and attention had 150 % of the ceiling."""
_TIMEOUT_S = 120


def measure_ceilings(threads: int, *, quick: bool = False) -> dict[str, float]:
    """Measure the ceilings in a fresh process with that many threads.

    Args:
        threads: Threads that BLAS and the copy may use.
        quick: Fewer sizes and tries: about a second.

    Returns:
        The numbers of the module's docstring, by name.

    Raises:
        RocattnError: When the process fails; the message quotes its error.
    """
    command = [sys.executable, "-P", "-m", __name__, str(threads), "quick" if quick else "full"]
    env = os.environ | thread_environment(threads)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RocattnError(f"measuring the machine's ceilings took more than {_TIMEOUT_S} s: is it idle?") from None
    if done.returncode:
        why = complaint(done.stderr, f"exit status {done.returncode}")
        raise RocattnError(f"measuring the machine's ceilings failed: {why}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def last_level_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache that one core sees, in bytes; 32 MiB when the system does not say."""
    sizes = []
    for path in caches.glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes, default=0) or 32 << 20


def _best_rate(call: Callable[[], object], work: float, budget_s: float, tries: int) -> float:
    """Return the largest work per second of at least ``tries`` calls, going on for ``budget_s``; one call warms up."""
    call()
    best, count, end = float("inf"), 0, time.perf_counter() + budget_s
    while count < tries or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
        count += 1
    return work / best


def _gemm_tflops(dtype: str, sizes: tuple[int, ...], budget_s: float) -> float:
    import numpy as np

    rates = []
    for n in sizes:
        a, b = np.full((n, n), 0.5, dtype), np.full((n, n), 0.25, dtype)
        out = np.empty_like(a)

        def product(a: object = a, b: object = b, out: object = out) -> object:
            return np.matmul(a, b, out=out)  # type: ignore[call-overload]  # arrays, bound here for each size

        rates.append(_best_rate(product, 2.0 * n**3, budget_s, 3))
    return max(rates) / 1e12


def _memory_gbps(threads: int, budget_s: float) -> tuple[float, float]:
    """Return (read, copy) in GB/s."""
    import numpy as np

    wanted = max(_SMALLEST_ARRAY, 4 * last_level_cache_bytes())
    columns = 4096
    rows = max(1, min(wanted, available_memory_bytes() // 4) // (4 * columns))
    source = np.full((rows, columns), 0.5, np.float32)
    vector = np.full(columns, 0.25, np.float32)
    flat = source.reshape(-1)
    read = max(
        _best_rate(lambda: source @ vector, source.nbytes, budget_s, 3),
        _best_rate(lambda: flat @ flat, source.nbytes, budget_s, 3),
    )
    target = np.zeros_like(flat)
    bounds = [flat.size * i // threads for i in range(threads + 1)]
    slices = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], flat[part]), slices))

        copied = _best_rate(copy, 2.0 * source.nbytes, budget_s, 3)
    return read / 1e9, copied / 1e9


def _main(threads: int, quick: bool) -> None:
    sizes, budget_s = (_QUICK_SIZES, 0.1) if quick else (_SIZES, 0.5)
    read, copied = _memory_gbps(threads, budget_s)
    result = {
        "gemm_tflops": _gemm_tflops("float32", sizes, budget_s),
        "gemm_float64_tflops": _gemm_tflops("float64", sizes, budget_s),
        "memory_gbps": max(read, copied),
        "memory_read_gbps": read,
        "memory_copy_gbps": copied,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2] == "quick")
