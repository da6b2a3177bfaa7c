"""``rocattn bench --crossover``: from which length on one backend beats another, as a file that `select` can use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.config import DTYPE_BYTES
from rocattn_profiling.base.console import emit_json, print_table, progress, say
from rocattn_profiling.base.status import FAILED, NOT_MEASURED, OK, CommandError
from rocattn_profiling.workloads.options import BAND, flag, given, positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rocattn.thresholds import Cell
    from rocattn_profiling.bench.crossover import Plan
    from rocattn_profiling.measure.settings import Settings

MASKS = ("none", "causal", "bool", "additive")
FILE = "thresholds.json"
_LENGTHS_A_CELL = 6  # about: the ends, the middle, and a bisection


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of crossovers to those of ``rocattn bench``."""
    group = parser.add_argument_group("crossovers: from which length on the second of two backends beats the first")
    group.add_argument(
        "--crossover", action="store_true",
        help=f"instead: find them for every combination below, write {FILE} (two --backend names; default cpu "
        "cpu-flash; heads, batch, layout and direction as for one shape; --seq-q fixes query tokens)",
    )  # fmt: skip
    group.add_argument("--head-dims", type=positive, nargs="+", metavar="D", help="(default 64 128; quick: 64)")
    group.add_argument("--dtypes", choices=tuple(DTYPE_BYTES), nargs="+", help="(default float32 bfloat16)")
    group.add_argument("--masks", choices=MASKS, nargs="+", help="(default none causal)")
    group.add_argument(
        "--lengths", type=positive, nargs=2, metavar=("MIN", "MAX"), help="between which to search (default 16 1024)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Measure, print a table, write the file; returns the exit status."""
    import msgspec

    import rocattn
    from rocattn.backends import BACKENDS
    from rocattn_profiling.bench import crossover
    from rocattn_profiling.measure import machine
    from rocattn_profiling.measure.settings import code_hash, import_backends

    import_backends(settings.backend_module)
    plan = _plan(arguments)
    for name in plan.backends:
        BACKENDS.get(name)  # raises, listing the names
    threads = settings.threads or machine.available_cores()
    os.environ["ROCATTN_NUM_THREADS"] = str(threads)  # what the file is for
    changes: dict[str, Any] = {"threads": threads, "launches": arguments.launches or (3 if arguments.quick else 5)}
    settings = msgspec.structs.replace(settings, **changes)
    repo = machine.measured_repo()
    about = {
        "rocattn": rocattn.__version__, "code": code_hash(settings.backend_module),
        "commit": msgspec.to_builtins(machine.this_commit(repo)) if repo else None,
        "machine": msgspec.to_builtins(machine.this_machine()), "settings": msgspec.to_builtins(settings),
        "lengths": [plan.shortest, plan.longest], "resolution": crossover.RESOLUTION,
    }  # fmt: skip
    path, cells = Path(arguments.out) / FILE, plan.cells()
    faults: list[crossover.FaultError] = []
    with progress("crossover", _LENGTHS_A_CELL * len(cells)) as shown:
        left = len(cells)

        def on_cell(_: Cell) -> None:
            nonlocal left
            left -= 1
            shown.expect(shown.done + _LENGTHS_A_CELL * left)

        thresholds, asked = crossover.measure_crossover(
            plan, settings, path, about, fresh=arguments.fresh, on_cell=on_cell, on_step=shown.step,
            on_fault=faults.append,
        )  # fmt: skip
    _print(asked, threads)
    say(f"thresholds: {path} (use them: --use-thresholds {path}, or ROCATTN_THRESHOLDS={path})")
    if arguments.json:
        emit_json({"path": str(path.resolve()), **thresholds.to_dict()})
    if any(fault.wrong for fault in faults):
        return FAILED
    return OK if any(not cell.skipped for cell in asked) and not faults else NOT_MEASURED


def _plan(arguments: argparse.Namespace) -> Plan:
    from rocattn_profiling.bench.crossover import Plan

    unfit = [*given(arguments, BAND), *given(arguments, ("seq_k", "head_dim", "head_dim_v"))]
    if unfit or arguments.grid:
        named = ", ".join([*map(flag, unfit), *(["--grid"] if arguments.grid else [])])
        raise CommandError(f"{named}: crossovers are sought over --lengths, --head-dims, --dtypes and --masks")
    backends = tuple(dict.fromkeys(arguments.backend or ("cpu", "cpu-flash")))
    if len(backends) != 2:
        raise CommandError("a crossover is between two backends: name both, --backend cpu cpu-flash")
    shortest, longest = arguments.lengths or (16, 1024)
    if shortest >= longest:
        raise CommandError(f"--lengths {shortest} {longest}: the first must be the smaller one")
    heads = given(arguments, ("batch", "num_heads", "num_kv_heads", "seq_q"))
    heads.setdefault("num_kv_heads", heads.get("num_heads", 8))
    return Plan(
        backends=(backends[0], backends[1]),
        head_dims=_unique(arguments.head_dims or ((64,) if arguments.quick else (64, 128))),
        dtypes=_unique(arguments.dtypes or ([arguments.dtype] if arguments.dtype else ["float32", "bfloat16"])),
        masks=_unique(arguments.masks or ("none", "causal")),
        shortest=shortest,
        longest=longest,
        layout=arguments.layout or "BSHD",
        direction=arguments.direction,
        **heads,
    )


def _unique(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _print(cells: Sequence[Cell], threads: int) -> None:
    from rocattn_profiling.bench.crossover import describe

    measured = [cell for cell in cells if not cell.skipped]
    if measured:
        slow, fast = measured[0].backends
        rows = [(f"D {cell.head_dim}", cell.dtype, cell.mask, describe(cell.ranges), _seen(cell)) for cell in measured]
        columns = ("head dim", "dtype", "mask", "faster with 95 % confidence", f"{slow} / {fast} at lengths")
        print_table(f"crossovers, threads: {threads}", columns, rows, keys=3)
    for cell in cells:
        if cell.skipped:
            say(f"not measured: D {cell.head_dim} {cell.dtype} {cell.mask}: {cell.skipped}")


def _seen(cell: Cell) -> str:
    """Return the ratios measured at the shortest and longest length and next to thresholds."""
    edges = {each.from_length for each in cell.ranges} | {each.to_length for each in cell.ranges}
    ends = {cell.evidence[0]["length"], cell.evidence[-1]["length"]} if cell.evidence else set()
    shown = [e for e in cell.evidence if e["length"] in edges | ends]
    return "; ".join(f"{e['length']}: {e['ratio']:.2f} [{e['low']:.2f}, {e['high']:.2f}]" for e in shown)
