"""Twice the launches take twice the work and the memory, by counting: times on a busy machine say nothing."""

import gc
import sys
import tracemalloc

import pytest

from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.report.report import build

from ..ingest import generators as new

LAUNCHES = 200
COUNTED = {"SQ_WAVES": 8.0, "GRBM_GUI_ACTIVE": 21_000.0, "SQ_INSTS_VALU": 900.0}


def launches(count):
    """Return launches of two kernels of one shape each, one after another."""
    return [
        new.Launch(n, f"kernel_{n % 2}", start=10**15 + 20_000 * n, ns=9_000 + n % 97, counters=COUNTED)
        for n in range(1, count + 1)
    ]


WRITERS = {
    "rocpd": lambda folder, made: new.rocpd(folder / "a.db", made),
    "csv": lambda folder, made: new.v3_counters(folder / "a_counter_collection.csv", made),
    "trace": lambda folder, made: new.v3_trace(folder / "a_kernel_trace.csv", made),
}


def work(folder):
    """Read and judge a profile; return calls of functions, and the most memory, in bytes."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    gc.collect()
    tracemalloc.start()
    sys.setprofile(count)
    try:
        report = build(ingest.read([folder]))
    finally:
        sys.setprofile(None)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(kernel.launches for kernel in report.kernels) == len(report.profile.dispatches) > 0
    return calls, most


@pytest.mark.parametrize("kind", WRITERS)
def test_twice_the_launches_take_twice_the_work(tmp_path, kind):
    """Doubled twice: a quadratic step would show in the second doubling. And no launch has calls of its own."""
    counts = []
    for times in (1, 2, 4):
        folder = tmp_path / str(len(counts))
        folder.mkdir()
        WRITERS[kind](folder, launches(times * LAUNCHES))
        if times == 1:
            build(ingest.read([folder]))  # imports, and what is kept between reports
        counts.append(work(folder))
    calls, most = zip(*counts, strict=True)
    assert calls[2] - calls[1] <= max(2.5 * (calls[1] - calls[0]), LAUNCHES), counts
    assert most[2] <= 4.4 * most[0], counts
