"""Records as pandas tables: one row a measurement, or one row a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocattn_profiling.measure.stats import newest, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from rocattn_profiling.measure.records import Record

CONFIG_COLUMNS = (
    "batch", "num_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "dtype", "layout", "causal",
    "direction",
)  # fmt: skip
CHECK_COLUMNS = ("ok", "max_abs_error", "max_rel_error", "rms_error", "naive_max_abs_error")


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row a measurement: what ran, where, `Summary`'s numbers (units in the names) and the check.

    A record of ``status`` "skipped" or "failed" has its reason in ``skipped`` and no numbers.
    """
    import pandas as pd

    rows = []
    for record in newest(records):
        row = _identity(record)
        row |= {name: record.config.get(name) for name in CONFIG_COLUMNS}
        row |= {
            "machine": record.machine.name,
            "host": record.host,
            "commit": record.commit.sha if record.commit else "",
        }
        row |= {"dirty": bool(record.commit and record.commit.dirty), "threads": record.threads}
        if record.launches:
            row |= msgspec.to_builtins(summarize(record))
        check = msgspec.to_builtins(record.check) or {}
        row |= {f"check_{name}": check.get(name) for name in CHECK_COLUMNS}
        row |= {"peak_rss_bytes": record.peak_rss_bytes, "status": record.status, "skipped": record.skipped}
        rows.append(row)
    return pd.DataFrame(rows)


def samples_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row a sample: what and where, launch, sample, time_ns and, if recorded, cpu_ns."""
    import pandas as pd

    rows = [
        _identity(record)
        | {
            "machine": record.machine.name,
            "host": record.host,
            "launch": launch.pos,
            "sample": at,
            "time_ns": value,
            "cpu_ns": launch.cpu_ns[at] if at < len(launch.cpu_ns) else None,
        }
        for record in newest(records)
        for launch in record.launches
        for at, value in enumerate(launch.samples_ns)
    ]
    columns = ["suite", "backend", "label", "machine", "host", "launch", "sample", "time_ns", "cpu_ns"]
    return pd.DataFrame(rows, columns=columns)


def _identity(record: Record) -> dict[str, object]:
    return {"suite": record.suite, "backend": record.backend, "label": record.label}
