"""One process launch of the recorded pairs: measures a group of small benchmarks once, prints one JSON line.

Started by ``record.py`` as ``python kinds.py GROUP SLOWER_PCT SEED``. Every kind does ``units`` equal pieces of work a
call; slower by 5 % is 5 % more pieces, really executed. Nothing is imported that a group does not need, so that a
launch is cheap; the order of the kinds in a launch is random.
"""

import gc
import json
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "profiling/rocattn_profiling/asv"))
from worker import canary_ns, low_end

SAMPLES = 10
WARM_UP = 2  # samples that are taken and thrown away
GROUPS = {
    "python": ("python_loop", "allocation", "small_20us"),
    "numpy": ("numpy_matmul", "memory_copy", "large_20ms", "attention_cpu", "attention_flash"),
}
# Calls of one sample: fixed, so that both sides of a pair are sampled alike.
NUMBER = {"small_20us": 60, "python_loop": 2, "allocation": 3, "numpy_matmul": 2, "attention_flash": 6}


def python_loop(units):
    """Interpreted integer arithmetic, 100 units: about 0.6 ms."""
    spans = [range(300)] * units

    def call():
        total = 0
        for span in spans:
            for i in span:
                total += i * i
        return total

    return call


def allocation(units):
    """Small dictionaries and byte strings, made and dropped, 100 units: about 0.3 ms."""
    spans = [range(30)] * units

    def call():
        return [{"key": i, "data": bytes(100 + i)} for span in spans for i in span]

    return call


def small_20us(units):
    """Joining short texts, 100 units: about 20 us."""
    numbers = list(range(1000, 1000 + 3 * units))

    def call():
        return ",".join(map(str, numbers))

    return call


def numpy_matmul(units):
    """Products of small float32 matrices through BLAS, 100 units: about 0.5 ms."""
    import numpy as np

    a = np.random.default_rng(1).standard_normal((64, 64), dtype=np.float32)
    out, product, times = np.empty_like(a), np.matmul, range(units)

    def call():
        for _ in times:
            product(a, a, out=out)

    return call


def memory_copy(units):
    """Copying 48 MB, more than all caches hold, 100 units: about 2 ms."""
    import numpy as np

    source = np.ones(units * 120_000, dtype=np.float32)
    target = np.zeros_like(source)

    def call():
        np.copyto(target, source)

    return call


def large_20ms(units):
    """Exponentials in cache, 100 units: about 20 ms."""
    import numpy as np

    x = np.linspace(-1.0, 1.0, 20_000)
    out, times = np.empty_like(x), range(units * 16)

    def call():
        for _ in times:
            np.exp(x, out=out)

    return call


def _attention(backend, units):
    import numpy as np

    import rocattn

    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, units, 32, 32), dtype=np.float32) for _ in range(3))

    def call():
        return rocattn.attention(q, k, v, layout="BHSD", backend=backend)

    return call


def attention_cpu(units):
    """The numpy backend, a unit is a head."""
    return _attention("cpu", units)


def attention_flash(units):
    """The native tiled backend, a unit is a head."""
    return _attention("cpu-flash", units)


def measure(name, slower_pct):
    """Return the samples of one kind: wall and thread CPU time a call in ns, involuntary switches a sample."""
    call = globals()[name](100 + slower_pct)
    number = NUMBER.get(name, 1)
    calls = range(number)
    canaries = [canary_ns() for _ in range(3)]
    wall, cpu, switches = [], [], []
    for _ in range(WARM_UP + SAMPLES):
        switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        thread = time.thread_time_ns()
        start = time.perf_counter_ns()
        for _ in calls:
            call()
        end = time.perf_counter_ns()
        cpu.append((time.thread_time_ns() - thread) / number)
        wall.append((end - start) / number)
        switches.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switched)
        canaries.append(canary_ns())
    canaries += [canary_ns() for _ in range(3)]
    return {
        "number": number,
        "samples": wall[WARM_UP:],
        "cpu": cpu[WARM_UP:],
        "nivcsw": switches[WARM_UP:],
        "canary": low_end(canaries),
    }


def main():
    """Measure the kinds of a group in random order."""
    group, slower_pct, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    names = list(GROUPS[group])
    random.Random(seed).shuffle(names)  # noqa: S311 - an order
    gc.disable()
    found = {name: {"start_us": time.time_ns() // 1000, **measure(name, slower_pct)} for name in names}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
