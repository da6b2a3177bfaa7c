"""Records made by hand, for tests of what is computed from them."""

import itertools

from rocattn.config import AttentionConfig
from rocattn_profiling.bench.launch import BackendLaunches
from rocattn_profiling.bench.session import BenchSession
from rocattn_profiling.measure.records import Check, Commit, Launch, Machine, Record

MACHINE = Machine(name="m", cpu="c", cores=2, memory_bytes=2**34, os="o", python="3.11", numpy="2.0")
COMMIT = Commit(sha="0123456789" * 4, date_ms=1_700_000_000_000, subject="s")
CEILINGS = {"gemm_tflops": 0.1, "gemm_float64_tflops": 0.05, "memory_gbps": 10.0}
_times = itertools.count(1)
CHECK = Check(
    ok=True, max_abs_error=1e-7, max_rel_error=1e-6, rms_error=1e-8, naive_max_abs_error=2e-7, factor=2,
    rows_checked=7, rows=7,
)  # fmt: skip
CONFIG = AttentionConfig(batch=3, num_heads=4, num_kv_heads=2, seq_q=5, seq_k=11, head_dim=24, causal=True)


def make_sides(_config, backends, settings, _threads, on_launch=lambda: None, *, module="", copies=1):
    """Stand in for ``measure_side_by_side`` where processes are not what a test is about."""
    launches = [
        Launch(start_ns=next(_times), pos=i, number=1, samples_ns=[1e6, 1.1e6]) for i in range(settings.launches)
    ]
    for _ in launches:
        on_launch()
    return {name: BackendLaunches(launches=launches, check=CHECK, peak_rss_bytes=1) for name in backends}


def run_bench(configs, backends, out, settings, *, suite="custom", **options):
    """Measure backends on each config in one session; returns the records, in order."""
    with BenchSession(out, settings, **options) as session:
        return [record for config in configs for record in session.measure(suite, config, backends)]


def make_record(samples, *, config=CONFIG, backend="cpu", pair="p", **changes):
    """Return a record whose launches have these samples, in ns."""
    made = [Launch(start_ns=i, pos=i, number=1, samples_ns=list(one)) for i, one in enumerate(samples)]
    values = {
        "suite": "s", "backend": backend, "config": config.to_dict(), "label": config.label, "machine": MACHINE,
        "commit": COMMIT, "launches": made, "check": CHECK, "pair": pair,
        "ceilings": {"gemm_tflops": 0.2, "gemm_float64_tflops": 0.1, "memory_gbps": 40.0},
    }  # fmt: skip
    return Record(**(values | changes))
