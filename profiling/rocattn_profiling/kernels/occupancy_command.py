"""``rocattn kernels occupancy``: how many waves fit, which limit binds, and how far away the next step is."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.errors import RocattnError
from rocattn_profiling.base.console import add_common, emit_json, print_table, say
from rocattn_profiling.base.status import NOT_MEASURED, OK, CommandError
from rocattn_profiling.workloads.options import natural, positive

if TYPE_CHECKING:
    from rocattn_profiling.kernels.model.occupancy import Limit, Occupancy

_ABOUT = """\
Compute how many waves of a kernel fit on a SIMD, which limit binds, and what reduction gives more waves. Give registers
and LDS as in the compiler's metadata (.vgpr_count, .agpr_count, .sgpr_count); LDS and whole blocks count only with
--block. With --cases, the kernels are the rows of a CSV file with the columns arch, wave, vgprs, agprs, sgprs, lds,
block (arch and vgprs are required, "name" may be any text), and the output is CSV on stdout."""
_NEEDED, _NUMBERS = ("arch", "vgprs"), ("wave", "vgprs", "agprs", "sgprs", "lds", "block")
_DIGITS = 19
_ANSWERS = ("waves_per_simd", "max_waves_per_simd", "lost_wave_slots", "blocks", "unit", "bound_by", "sentence")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = _ABOUT
    parser.add_argument("--arch", metavar="GFX", help="GPU architecture: gfx90a, gfx942, gfx1100, ...")
    parser.add_argument("--wave", type=positive, metavar="N", help="lanes per wave (default: 64 on CDNA, 32 on RDNA)")
    parser.add_argument("--vgprs", type=natural, metavar="N", help="VGPRs; without --agprs, the sum of both")
    parser.add_argument("--agprs", type=natural, metavar="N", help="AGPRs (CDNA), unless --vgprs includes them")
    parser.add_argument("--sgprs", type=natural, metavar="N", help="SGPRs, including VCC and the like")
    parser.add_argument("--lds", type=natural, metavar="BYTES", help="bytes of LDS per block, static and dynamic")
    parser.add_argument("--block", type=positive, metavar="N", help="threads per block")
    parser.add_argument("--cu-mode", action="store_true", help="RDNA kernels are compiled with -mcumode (default: WGP)")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="a CSV file of kernels")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compute the occupancy of one kernel, or of each row of a file."""
    given = {name: getattr(arguments, name) for name in ("arch", *_NUMBERS)}
    if arguments.cases is not None:
        if stray := [f"--{name}" for name, value in given.items() if value is not None]:
            raise CommandError(f"{', '.join(stray)} cannot be combined with --cases: put it into the file")
        return _answer_cases(arguments.cases, wgp_mode=not arguments.cu_mode, as_json=arguments.json)
    if missing := [f"--{name}" for name in _NEEDED if given[name] is None]:
        raise CommandError(f"give the kernel's {' and '.join(missing)}, or a file of kernels with --cases")
    answer = _occupancy(given, wgp_mode=not arguments.cu_mode)
    if arguments.json:
        emit_json(answer)
    else:
        _print(answer)
    return OK


def _occupancy(given: dict[str, Any], *, wgp_mode: bool) -> Occupancy:
    """Return a kernel's occupancy; None stands for a default."""
    from rocattn_profiling.base.gpus import architecture
    from rocattn_profiling.kernels.model.occupancy import occupancy

    wave_size = architecture(given["arch"]).wave_sizes[0] if given["wave"] is None else given["wave"]
    return occupancy(
        given["arch"], wave_size=wave_size, vgprs=given["vgprs"], agprs=given["agprs"] or 0, sgprs=given["sgprs"] or 0,
        lds_bytes=given["lds"] or 0, block=given["block"], wgp_mode=wgp_mode,
    )  # fmt: skip


def _print(answer: Occupancy) -> None:
    """Print the limits as a table, then the resulting occupancy."""
    columns = ["limit", "given", "of", "waves per SIMD"]
    title = f"{answer.arch}, waves of {answer.wave_size}"
    if answer.block is not None:
        columns.insert(3, f"blocks per {answer.unit}")
        title += f", blocks of {answer.block}"
    print_table(title, columns, [[limit.name, *_cells(limit, answer.unit)] for limit in answer.limits])
    say(f"occupancy: {answer.waves_per_simd:g} of {answer.max_waves_per_simd} waves ({answer.occupancy_pct:g} %)")
    say(answer.sentence)
    nouns = {"LDS": "bytes of LDS"}
    if grow := ", ".join(f"{by} {nouns.get(name, name)}" for name, by in answer.slack.items()):
        say(f"slack before a loss: {grow}")


def _cells(limit: Limit, unit: str) -> list[str]:
    taker, giver = ("block", unit) if limit.name in {"LDS", "barriers"} else ("wave", "SIMD")
    blocks = [] if limit.blocks is None else [str(limit.blocks)]
    return [f"{limit.used} per {taker}", f"{limit.available} per {giver}", *blocks, f"{limit.waves:g}"]


def _answer_cases(path: Path, *, wgp_mode: bool, as_json: bool) -> int:
    """Print the occupancy of each row; report bad rows and continue."""
    answers: list[dict[str, Any]] = []
    problems: list[str] = []
    columns, rows = _read(path)
    for line, cells in rows:
        try:
            result = _occupancy(_parse(columns, cells), wgp_mode=wgp_mode)
        except RocattnError as error:
            problems.append(f"{path}:{line}: {error}")
            continue
        answers.append(dict(zip(columns, cells, strict=True)) | {"line": line, "occupancy": result})
    for problem in problems:
        say(problem)
    if as_json:
        emit_json({"cases": answers, "problems": problems})
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*columns, *_ANSWERS])
        for answer in answers:
            writer.writerow([*(answer[column] for column in columns), *_answer_cells(answer["occupancy"])])
        sys.stdout.flush()
    say(f"occupancy: {len(answers)} kernels, {len(problems)} bad rows")
    return NOT_MEASURED if problems or not answers else OK


def _answer_cells(answer: Occupancy) -> list[object]:
    cells = {name: getattr(answer, name) for name in _ANSWERS}
    cells["bound_by"] = " and ".join(answer.bound_by)
    return ["" if cell is None else cell for cell in cells.values()]


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return a file's columns, and its rows with line numbers; lines that begin with # are skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not text: {error.reason} at byte {error.start}") from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    known = ("name", "arch", *_NUMBERS)
    if not lines:
        raise CommandError(f"{path} is empty: its first line must name columns, out of {', '.join(known)}")
    try:
        (_, columns), *rows = [(n, [cell.strip() for cell in next(csv.reader([line]))]) for n, line in lines]
    except csv.Error as error:
        raise CommandError(f"{path} is not a table: {error}") from error
    if stray := [column for column in columns if column not in known]:
        raise CommandError(f"{path} has an unknown column {stray[0]!r}: choose from {', '.join(known)}")
    if len(set(columns)) < len(columns):
        raise CommandError(f"{path} has a duplicate column: {', '.join(columns)}")
    if missing := [name for name in _NEEDED if name not in columns]:
        raise CommandError(f"{path} has no column {' and '.join(missing)}")
    return columns, rows


def _parse(columns: list[str], cells: list[str]) -> dict[str, Any]:
    """Return a row's kernel; None where a cell is empty or its column is missing."""
    if len(cells) != len(columns):
        raise CommandError(f"the row has {len(cells)} cells for {len(columns)} columns")
    row = dict(zip(columns, cells, strict=True))
    given: dict[str, Any] = {"arch": row["arch"] or None}
    for name in _NUMBERS:
        text = row.get(name, "")
        if text and not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
            raise CommandError(f"{name} is {text[:_DIGITS]!r}, not a whole number of at least 0")
        given[name] = int(text) if text else None
    if missing := [name for name in _NEEDED if given[name] is None]:
        raise CommandError(f"{' and '.join(missing)} is missing")
    return given
