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
import time
from pathlib import Path

from gguf import GGUFWriter

from rocattn.config import AttentionConfig
from rocattn_profiling.base.files import write_text
from rocattn_profiling.bench.model import passes
from rocattn_profiling.bench.view import count, duration
from rocattn_profiling.cli import main as rocattn
from rocattn_profiling.measure.records import Record, read_records
from rocattn_profiling.measure.stats import newest, summarize

PAGE = Path(__file__).resolve().parents[2] / "docs" / "baselines.md"
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
    if status := rocattn(
        ["bench", *words, "--backend", "cpu", "cpu-flash", "--fresh", "--no-store", "--out", str(out)]
    ):
        sys.exit(status)
    return [record for record in newest(read_records(out / "records.jsonl")) if record.launches]


def square(out: Path) -> str:
    """Return the original suite's table."""
    lines = [
        "| [1, n, n] | backend | average | median | tokens/s | ops/s | max error | original average |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    records = measured(out, "--grid", "square")
    for record in records:
        n, summary = record.config["seq_q"], summarize(record)
        average_ns = summary.mean_ns
        rates = f"{count(n * 1e9 / average_ns)} | {count(1e9 / average_ns)} | {error_of(record)}"
        times = f"{duration(average_ns)}{mark(record)} | {duration(summary.p50_ns)}"
        lines.append(f"| {n} | `{record.backend}` | {times} | {rates} | {duration(ORIGINAL_NS[n])} |")
    return "\n".join([*lines, "", conditions(records)])


def modules(out: Path) -> str:
    """Return the table of attention modules."""
    lines = ["| suite | Sq | Sk | backend | median | tokens/s | max error |", "|---|---:|---:|---|---:|---:|---:|"]
    records = measured(out, "--modules", "standard", "gemma", "gemma_fast", "--quick")
    for record in records:
        config, summary = AttentionConfig.from_dict(record.config), summarize(record)
        where = f"`{record.suite}` | {config.seq_q} | {config.seq_k} | `{record.backend}`"
        rates = f"{count(summary.tokens_per_s)} | {error_of(record)}"
        lines.append(f"| {where} | {duration(summary.p50_ns)}{mark(record)} | {rates} |")
    return "\n".join([*lines, "", conditions(records)])


def models(out: Path) -> str:
    """Return the table of the two models' attention layers."""
    lines = ["| model | tokens | backend | time to first token | decoding, tokens/s |", "|---|---:|---|---:|---:|"]
    records = []
    for name, (architecture, sizes) in MODELS.items():
        path = out / f"{name}.gguf"
        write_model(path, name, architecture, sizes)
        found = measured(out / name, "--model", str(path), "--quick")
        records += found
        made = {(one.length, one.backend, one.step): one for one in passes(found)}
        for length, backend in sorted({(length, backend) for length, backend, _ in made}):
            prompt, step = (made.get((length, backend, of_step)) for of_step in (False, True))
            first = duration(prompt.p50_ns) + " !" * prompt.disturbed if prompt else "not all layers"
            rate = count(step.tokens_per_s) + " !" * step.disturbed if step else "not all layers"
            lines.append(f"| {name} | {length} | `{backend}` | {first} | {rate} |")
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


def error_of(record: Record) -> str:
    """Return the largest error against float64."""
    return f"{record.check.max_abs_error:.1e}" if record.check else "not checked"


def conditions(records: list[Record]) -> str:
    """Return a line that says where, when and under what load."""
    machine, loads = records[0].machine, sorted(launch.load for record in records for launch in record.launches)
    disturbed = sum(summarize(record).disturbed_launches for record in records)
    return (
        f"{machine.cpu}, {machine.cores} cores, Python {machine.python}, numpy {machine.numpy}, {machine.compiler}; "
        f"{records[0].threads} threads, float32; {time.strftime('%d %B %Y', time.gmtime())}. "
        f"Load average while measuring: {loads[0]:.1f} to {loads[-1]:.1f}; {disturbed} of {len(loads)} launches lost "
        "the CPU to other processes over and over (marked !: too long)."
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
