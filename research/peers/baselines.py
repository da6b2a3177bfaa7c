"""Measure the tables of ``docs/baselines.md`` and put them between their markers there.

    .venv/bin/python research/peers/baselines.py                      # all of them, minutes
    .venv/bin/python research/peers/baselines.py --only square        # the original suite's table

``square`` is the table of the original suite, [1, n, n], beside its figures: averages of one call, of a machine and a
number of threads that are not known, so for orientation and not for a ratio. ``modules`` and ``models`` are the quick
runs of ``rocattn bench --modules`` and ``--model``; the two GGUF files are written here, with metadata only.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import GGUFWriter

from rocattn.config import AttentionConfig
from rocattn_profiling.base.files import write_text
from rocattn_profiling.bench.model import passes
from rocattn_profiling.bench.view import count, duration
from rocattn_profiling.cli import main as rocattn
from rocattn_profiling.measure.records import Record, read_records
from rocattn_profiling.measure.stats import newest, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "baselines.md"
BACKENDS = ("cpu", "cpu-flash")
ORIGINAL_NS = {32: 33.5e3, 64: 264e3, 128: 2.59e6, 256: 22.3e6, 512: 349e6}
MODELS: dict[str, tuple[str, dict[str, int | float]]] = {
    "llama-2-7b": ("llama", {
        "block_count": 32, "context_length": 4096, "embedding_length": 4096, "attention.head_count": 32,
    }),
    "gemma-2-2b": ("gemma2", {
        "block_count": 26, "context_length": 8192, "embedding_length": 2304, "attention.head_count": 8,
        "attention.head_count_kv": 4, "attention.key_length": 256, "attention.value_length": 256,
        "attention.sliding_window": 4096, "attn_logit_softcapping": 50.0,
    }),
}  # fmt: skip


def measured(out: Path, *words: str) -> list[Record]:
    """Bench afresh into a folder and return the records that have samples."""
    if status := rocattn(["bench", *words, "--backend", *BACKENDS, "--fresh", "--no-store", "--out", str(out)]):
        sys.exit(status)
    return [record for record in newest(read_records(out / "records.jsonl")) if record.launches]


def square(out: Path) -> str:
    """Return the original suite's table."""
    lines = [
        "| n | average: `cpu` | `cpu-flash` | original | tokens/s: `cpu` | `cpu-flash` | max error |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    records = measured(out, "--grid", "square")
    for n, row in side_by_side(records, lambda record: record.config["seq_q"]):
        average_ns = [summarize(record).mean_ns for record in row]
        times = [duration(ns) + mark(record) for ns, record in zip(average_ns, row, strict=True)]
        rates = [count(n * 1e9 / ns) for ns in average_ns]
        lines.append(f"| {' | '.join([str(n), *times, duration(ORIGINAL_NS[n]), *rates, error_of(row)])} |")
    return "\n".join([*lines, "", conditions(records)])


def modules(out: Path) -> str:
    """Return the table of attention modules."""
    lines = ["| module | Sq | Sk | `cpu` | `cpu-flash` | max error |", "|---|---:|---:|---:|---:|---:|"]
    records = measured(out, "--modules", "standard", "gemma", "gemma_fast", "--quick")
    for (suite, config), row in side_by_side(records, lambda one: (one.suite, AttentionConfig.from_dict(one.config))):
        where = [suite.removeprefix("module-"), str(config.seq_q), str(config.seq_k)]
        times = [duration(summarize(record).p50_ns) + mark(record) for record in row]
        lines.append(f"| {' | '.join([*where, *times, error_of(row)])} |")
    return "\n".join([*lines, "", conditions(records)])


def models(out: Path) -> str:
    """Return the table of the two models' attention layers."""
    lines = [
        "| model | tokens | first token: `cpu` | `cpu-flash` | decoding, tokens/s: `cpu` | `cpu-flash` |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    records = []
    for name, (architecture, sizes) in MODELS.items():
        path = out / f"{name}.gguf"
        write_model(path, name, architecture, sizes)
        found = measured(out / name, "--model", str(path), "--quick")
        records += found
        made = {(one.length, one.backend, one.step): one for one in passes(found)}
        for length in sorted({length for length, _, _ in made}):
            prompts, steps = (
                [made.get((length, backend, of_step)) for backend in BACKENDS] for of_step in (False, True)
            )
            cells = [duration(one.p50_ns) + " !" * one.disturbed if one else "not all layers" for one in prompts]
            cells += [count(one.tokens_per_s) + " !" * one.disturbed if one else "not all layers" for one in steps]
            lines.append(f"| {name} | {length} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", conditions(records)])


def write_model(path: Path, name: str, architecture: str, sizes: dict[str, int | float]) -> None:
    """Write a GGUF file of metadata only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = GGUFWriter(path, architecture)
    file.add_name(name)
    for key, value in sizes.items():
        if isinstance(value, int):
            file.add_uint32(f"{architecture}.{key}", value)
        else:
            file.add_float32(f"{architecture}.{key}", value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.close()


def mark(record: Record) -> str:
    """Return what stands behind a time that was disturbed."""
    return " !" if summarize(record).disturbed_launches else ""


def side_by_side(records: list[Record], key: Callable[[Record], Any]) -> Iterator[tuple[Any, list[Record]]]:
    """Yield what two records of different backends share, and both in the order of `BACKENDS`."""
    rows: dict[Any, dict[str, Record]] = {}
    for record in records:
        rows.setdefault(key(record), {})[record.backend] = record
    for shared, row in rows.items():
        yield shared, [row[backend] for backend in BACKENDS]


def error_of(row: list[Record]) -> str:
    """Return the largest error of either backend against float64."""
    return f"{max(record.check.max_abs_error for record in row if record.check):.1e}"


def conditions(records: list[Record]) -> str:
    """Return a sentence that says where, when and under what load."""
    machine, loads = records[0].machine, sorted(launch.load for record in records for launch in record.launches)
    disturbed = sum(summarize(record).disturbed_launches for record in records)
    return textwrap.fill(
        f"{machine.cpu}, {machine.cores} cores, Python {machine.python}, numpy {machine.numpy}, {machine.compiler}; "
        f"{records[0].threads} threads, float32; {time.strftime('%d %B %Y', time.gmtime())}. "
        f"Load average {loads[0]:.1f} to {loads[-1]:.1f}; {disturbed} of {len(loads)} launches were disturbed (!).",
        100,
    )


TABLES = {"square": square, "modules": modules, "models": models}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES), help="(default: all)")
    parser.add_argument("--out", default="out/baselines", metavar="DIR", help="folder for the records")
    parser.add_argument("--page", default=PAGE, type=Path, metavar="FILE", help="(default docs/baselines.md)")
    arguments = parser.parse_args()
    for name in arguments.only:
        made = TABLES[name](Path(arguments.out) / name)
        print(made)
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, found, rest = arguments.page.read_text().partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            print(f"{arguments.page} has no {begin} … {end}: nothing written", file=sys.stderr)
            return 4
        write_text(arguments.page, f"{head}{begin}\n{made}\n{end}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
