"""Run one benchmark of an asv suite a few times and end as programs do: what a profiler is started on.

``python -m rocattn_profiling.asv.once benchmarks "bench_x.Class.time_y('gpu', 'B1 …')"``. The worker that
measures (`asv_worker`) leaves by ``os._exit``, and what a profiler writes at the end of its application would be lost.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import msgspec

from rocattn_profiling.asv import worker as asv_worker
from rocattn_profiling.asv.launch import Suite


def main(words: list[str] | None = None) -> int:
    """Run the benchmark of a label; the status is 3 when there is none, or it did not run."""
    parser = argparse.ArgumentParser(prog="asv_once", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", type=Path, help="benchmark folder")
    parser.add_argument("label", help="benchmark with its parameters, as the gate names it")
    parser.add_argument("--calls", type=int, default=4, metavar="N", help="timed calls (default 4)")
    arguments = parser.parse_args(words)
    folder = str(arguments.suite.resolve())
    suite = msgspec.convert(asv_worker.list_suite({"suite": folder}), Suite)
    case = next((case for case in suite.cases() if case.label == arguments.label), None)
    if case is None:
        print(f"asv_once: {arguments.suite} has no benchmark {arguments.label}", file=sys.stderr)
        return 3
    request = {"suite": folder, "benchmark": case.benchmark.name, "label": case.label, "type": case.benchmark.type}
    # The cache goes to the working directory, as asv has it: not to whatever folder this was started in.
    with tempfile.TemporaryDirectory(prefix="rocattn-once-") as scratch, contextlib.chdir(scratch):
        if case.benchmark.setup_cache_key is not None:
            asv_worker.make_cache(request)
        done = asv_worker.run_benchmark(request | {"number": 1, "count": arguments.calls})
    if done["status"] != "ok":
        print(f"asv_once: {arguments.label}: {done['status']}: {done['reason']}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
