"""``rocattn memory``: peak memory of attention over sequence length: measured, explained and extrapolated."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocattn.settings import num_threads
from rocattn.sources import require_own_checkout
from rocattn_profiling.base.console import add_common, emit_json, print_table, progress, say
from rocattn_profiling.base.status import CommandError
from rocattn_profiling.workloads.options import (
    STORAGE,
    add_sizes,
    add_storage,
    config_of,
    given,
    positive,
    thread_number,
)

if TYPE_CHECKING:
    from rocattn.config import AttentionConfig
    from rocattn_profiling.base.reasons import Coverage
    from rocattn_profiling.memory.measure import MemoryFit, MemoryPoint, MemoryStudy

LENGTHS = (1024, 1448, 2048, 2896, 4096)
QUICK_LENGTHS = (256, 362, 512, 724, 1024)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGT", 1)}
_EPILOG = """\
Each length of each backend is measured in a fresh process: what the allocators count (numpy's arrays, the workspace
of the CPU kernels, the GPU's pool) and how far the resident set grows. Unless heads are given, 8 query heads share
one KV head: then cpu holds all scores at once. With more KV heads it computes 4 million scores at a time.
A length is the number of keys, and of query tokens too unless --seq-q sets that.

exit status: 0 measured, and the theory is right
             1 the allocators' count contradicts the theory (by more than 5 % and 64 KiB)
             3 a backend failed, or nothing was measured, or nothing of a backend that --backend names
             4 usage or environment error"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_common(parser, out="out/memory")
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--backend", action="extend", nargs="+", metavar="NAME",
        help="backends; gpu-standard is the standard path of gpu (default: all that work here except a stand-in GPU)",
    )  # fmt: skip
    what.add_argument("--lengths", type=positive, nargs="+", metavar="N", help="(default 1024 to 4096 in 5 steps)")
    what.add_argument("--quick", action="store_true", help="lengths from 256 to 1024")
    what.add_argument(
        "--budget", type=byte_count, metavar="SIZE",
        help="find the longest sequence that fits in this much memory: 8GiB, 500MB (default: this machine's memory)",
    )  # fmt: skip
    what.add_argument(
        "--backend-module", default=os.environ.get("ROCATTN_BACKEND_MODULE", ""), metavar="MODULE",
        help="import this module (or FILE.py) first, as `rocattn bench` does",
    )  # fmt: skip
    what.add_argument(
        "--threads",
        type=thread_number,
        metavar="N",
        help="threads (default: ROCATTN_NUM_THREADS, else the cores available)",
    )
    add_storage(what)
    add_sizes(parser.add_argument_group("the shape, whose length varies"))


def byte_count(text: str) -> int:
    """Parse a size: "8GiB", "500 MB", "1.5G", "4096".

    Raises:
        argparse.ArgumentTypeError: When it is not a size.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?)B?", text, re.IGNORECASE)
    unit = "" if match is None else match[2][:1].upper() + match[2][1:].lower()
    size = float(match[1]) * _UNITS[unit] if match is not None and unit in _UNITS else 0
    if not 1 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write it as 8GiB or 500MB")
    return int(size)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print two tables, write memory.json, memory.md and memory.html, and return the exit status."""
    import time
    from contextlib import suppress
    from pathlib import Path

    import msgspec

    from rocattn.cache import write_problem
    from rocattn_profiling.base.files import result_folder, write_together
    from rocattn_profiling.base.journal import Journal, keeping
    from rocattn_profiling.measure.machine import available_cores, this_machine, total_memory_bytes
    from rocattn_profiling.measure.settings import code_hash, import_backends
    from rocattn_profiling.memory import measure as memory_measure
    from rocattn_profiling.memory import page as memory_report

    require_own_checkout()
    config, keep_queries = _config(arguments)
    lengths = sorted(set(arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)))
    threads = arguments.threads or num_threads() or available_cores()
    os.environ["ROCATTN_NUM_THREADS"] = str(threads)  # this process computes the theory for the measuring processes
    import_backends(arguments.backend_module)
    names = list(dict.fromkeys(arguments.backend or memory_measure.usable_backends()))
    out = Path(arguments.out)
    with suppress(OSError):  # reported by the next line
        result_folder(out)
    if problem := write_problem(out):  # before measuring, not after
        raise CommandError(f"cannot write to {out}: {problem}")
    of_run = (config.to_dict(), keep_queries, threads, code_hash(arguments.backend_module), this_machine())
    journal = Journal(out / "points.jsonl", msgspec.json.encode(of_run).decode(), memory_measure.MemoryPoint)
    if journal.found:
        say(f"memory: resuming an earlier run, lengths done: {len(journal.found)} ({journal.path})")
    total = len(names) * len(lengths)
    with keeping(journal.path, total, journal.count), progress("memory", total) as shown:
        study = memory_measure.measure_memory(
            config, lengths, names, threads=threads, budget_bytes=arguments.budget or total_memory_bytes(),
            keep_queries=keep_queries, backend_module=arguments.backend_module, journal=journal, on_step=shown.step,
        )  # fmt: skip
    _print(study)
    report = memory_report.build(study, int(time.time() * 1000))
    unmeasured = _unmeasured(study, arguments.backend or ())
    coverage = _coverage(study, unmeasured)
    content = memory_report.to_json(report) | {"unmeasured": unmeasured, "not_compared": coverage.not_compared}
    encoded = msgspec.json.format(msgspec.json.encode(content), indent=1).decode()
    for name in unmeasured:
        say(f"{name} was requested with --backend and was not measured: status 3")
    if any(not point.skipped for point in study.points):
        page = out / "memory.html"
        write_together({
            out / "memory.json": encoded + "\n",
            out / "memory.md": memory_report.markdown(report),
            page: memory_report.html(report),
        })  # fmt: skip
        say(f"The report is at {page}")
    else:
        say("nothing was measured, so no report was written")
    journal.finish()
    if arguments.json:
        emit_json(content)
    gaps = coverage.gaps("measured")
    say(f"memory: {coverage.compared} of {len(study.points)} lengths measured{'; ' * bool(gaps)}{gaps}")
    return coverage.status(failed=bool(memory_measure.disagreements(study)))


def _config(arguments: argparse.Namespace) -> tuple[AttentionConfig, bool]:
    """Return the shape, whose lengths will be replaced, and whether its query tokens are fixed."""
    fields = given(arguments)
    if "seq_k" in fields:
        raise CommandError("the number of keys varies: list the numbers with --lengths, not --seq-k")
    if "num_heads" not in fields and "num_kv_heads" not in fields:
        fields |= {"num_heads": 8, "num_kv_heads": 1}
    fields |= given(arguments, STORAGE)
    return config_of(fields, arguments.direction), "seq_q" in fields


def _print(study: MemoryStudy) -> None:
    from rocattn_profiling.memory import measure as memory_measure
    from rocattn_profiling.memory.page import describe
    from rocattn_profiling.pages.quantities import quantity

    measured = [point for point in study.points if point.status == "measured"]
    if measured:
        columns = ("backend", "tokens", "peak", "theory", "difference", "workspace", "scores, % of peak", "RSS")
        print_table(f"memory: {describe(study)}", columns, [_row(point) for point in measured], keys=2)
        growth = ("backend", "exponent (95 %)", "fixed", "less than standard", "tokens in budget", "extrapolated")
        rows = [_fit_row(study, fit) for fit in study.fits]
        print_table(f"growth, and a budget of {quantity(study.budget_bytes, 'bytes')}", growth, rows)
    for name, reason in study.absent.items():
        say(f"not measured: {name}: {reason}")
    for point in study.points:
        if point.status != "measured":
            say(f"{point.status} {point.backend} {point.label}: {point.skipped}")
    for point in memory_measure.disagreements(study):
        what = f"{quantity(point.theory.total, 'bytes')} by theory, {quantity(point.allocated_bytes, 'bytes')} counted"
        say(f"WRONG theory of {point.backend} {point.label}: {what}")


def _row(point: MemoryPoint) -> tuple[str, ...]:
    from rocattn_profiling.pages.quantities import quantity

    tensors = point.theory.inputs + point.theory.outputs
    return (
        point.backend, str(point.length), quantity(point.allocated_bytes, "bytes"),
        quantity(point.theory.total, "bytes"), f"{point.difference_pct:+.2f} %",
        quantity(max(point.allocated_bytes - tensors, 0), "bytes"), f"{point.scores_pct:.1f} %",
        quantity(point.rss_bytes, "bytes"),
    )  # fmt: skip


def _fit_row(study: MemoryStudy, fit: MemoryFit) -> tuple[str, ...]:
    from rocattn_profiling.memory.page import exponent_text, model_text, reduction_of
    from rocattn_profiling.pages.quantities import quantity

    saved = reduction_of(study, fit.backend)
    return (
        fit.backend,
        exponent_text(fit.growth),
        "" if fit.growth is None else quantity(fit.growth.fixed_bytes, "bytes"),
        "" if saved is None else f"{saved.total_pct:.1f} % at {saved.length}",
        f"{fit.longest:,}",
        model_text(fit),
    )


def _unmeasured(study: MemoryStudy, named: Sequence[str]) -> list[str]:
    """Return the backends requested by name that have no measurement."""
    measured = {point.backend for point in study.points if not point.skipped}
    return [name for name in dict.fromkeys(named) if name not in measured]


def _coverage(study: MemoryStudy, unmeasured: Sequence[str]) -> Coverage:
    """Return how much was measured; failed backends and backends requested by name are needed."""
    from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason, counted

    absent = [
        NotCompared(what=name, code="unsupported", text=reason, needed=name in unmeasured)
        for name, reason in study.absent.items()
    ]
    left_out = [point for point in study.points if point.status != "measured"]
    for name in dict.fromkeys(point.backend for point in left_out):
        of = [(f"# length on {name}", f"# lengths on {name}", Reason(point.status, point.skipped))
              for point in left_out if point.backend == name]  # fmt: skip
        failed = any(point.status == "failed" for point in left_out if point.backend == name)
        absent += counted(of, needed=failed or name in unmeasured)
    return Coverage(compared=len(study.points) - len(left_out), not_compared=tuple(absent))
