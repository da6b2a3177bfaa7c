"""``rocattn verify``: check backends against float64, the contract and each other with families of cases."""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import shlex
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.gpu.reasons import STAND_IN_ARCH
from rocattn.sources import require_own_checkout
from rocattn_profiling.base import console
from rocattn_profiling.base.status import OK, CommandError

if TYPE_CHECKING:
    from rocattn.backend import Backend
    from rocattn_profiling.base.journal import Journal
    from rocattn_profiling.verify.cases import VerifyCase
    from rocattn_profiling.verify.outcomes import FinishedCase, Verification

LEVELS = ("quick", "core", "full")
INTERRUPTED = "interrupted"
"""Folder in --out for the results of an interrupted run, so that a complete run's results are kept."""
RUNNING = "running.txt"
"""File in --out with the command of the running case; it remains if a backend kills the process."""
_SHOWN = 20
"""Number of failures to print, worst first; the files list all."""
_STAND_IN = "ROCM_PATH=$(rocattn doctor --hostgpu)"

_EPILOG = """\
Levels: quick (seconds) isolates the common mistakes of a new kernel in every dtype, covers all pairs of options, and
runs each family once; core (the default, minutes) adds magnitudes, tile edges, memory layouts, poisoned keys, gradients
of every option and determinism in every dtype; full adds long sequences. If a backend refuses the plainest cases, cases
that it accepts are added. --out gets verify.json and index.html, one page without scripts.

exit status: 0 everything that ran is right
             1 something is wrong
             3 nothing ran, or nothing on a backend that --backend names
             4 usage or environment error
             130 interrupted: what was finished is in the folder interrupted in --out, and the same command goes on"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--level", choices=LEVELS, default="core", help="how much to run (default core)")
    level.add_argument("--quick", dest="level", action="store_const", const="quick", help="the same as --level quick")
    level.add_argument("--case", metavar="LABEL", help="only the case with this label, as shown for a failure")
    parser.add_argument("--family", nargs="+", metavar="NAME", help="only cases of these families (see --list)")
    parser.add_argument("--list", action="store_true", help="list the families and their numbers of cases, then exit")
    parser.add_argument("--backend", nargs="+", metavar="NAME", help="backends to check (default: every available one)")
    parser.add_argument(
        "--backend-module", default=os.environ.get("ROCATTN_BACKEND_MODULE", ""), metavar="MODULE",
        help="import this module (or FILE.py) first: it registers backends of yours in rocattn.BACKENDS, and they are "
        "checked too (default: the environment variable ROCATTN_BACKEND_MODULE)",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the inputs (default 0)")
    parser.add_argument(
        "--lds-conflicts", action="store_true",
        help="on the stand-in GPU, also count the LDS bank conflicts of each kernel, and print them",
    )  # fmt: skip
    parser.add_argument("--junit", metavar="FILE", help="also write the outcomes as JUnit XML")
    console.add_common(parser, out="out/verify")


def run(arguments: argparse.Namespace) -> int:
    """Run the cases, print tables and failures, write the files, and return the exit status."""
    require_own_checkout()
    # Before numpy is imported: in small cases OpenBLAS threads mostly wait for each other on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ROCATTN_GPU_POISON", "1")  # device memory may contain the correct result of an earlier case

    arch = os.environ.get(STAND_IN_ARCH) or "gfx1100"
    if arguments.lds_conflicts:
        from rocattn_profiling.base.gpus import architecture
        from rocattn_profiling.base.lds_banks import lds_groups_text

        # Before the stand-in reads it, on the first request for a backend.
        os.environ["ROCATTN_HOSTGPU_LDS_GROUPS"] = lds_groups_text(arch, architecture(arch).wave_sizes[0])

    from rocattn.backend import checked
    from rocattn.backends import BACKENDS
    from rocattn_profiling.base.files import write_text
    from rocattn_profiling.measure.settings import import_backends
    from rocattn_profiling.verify import run as verification
    from rocattn_profiling.verify.outcomes import Verification

    import_backends(arguments.backend_module)
    named = [BACKENDS.get(name) for name in dict.fromkeys(arguments.backend)] if arguments.backend else list(BACKENDS)
    absent = {backend.name: answer.reason for backend in named if not (answer := checked(backend, backend.available()))}
    backends = [backend for backend in named if backend.name not in absent]
    chosen = _chosen(arguments, backends)
    if arguments.list:
        return _list(chosen, as_json=arguments.json)
    result, started, running = Verification(), time.time(), Path(arguments.out) / RUNNING

    def note(case: str, backend: str) -> None:
        write_text(running, _again(case, backend, arguments) + "\n")

    journal = _journal(arguments, backends)
    silent = not faulthandler.is_enabled()
    if silent:  # if a backend kills the process, its lines stay on the screen
        with suppress(OSError, ValueError, RuntimeError):  # the stream is not a file
            faulthandler.enable()
    try:
        total = len(chosen) * len(backends)
        with _keeping(arguments, journal, result, total), console.progress("verify", total) as shown:
            verification.verify(
                chosen, backends, shown.step, seed=arguments.seed, result=result, on_start=note, journal=journal
            )
    except KeyboardInterrupt:
        _finish(arguments, chosen, backends, absent, result, started, Path(arguments.out) / INTERRUPTED)
        raise
    finally:
        if silent:
            faulthandler.disable()
        with suppress(OSError):  # the folder itself may not be writable
            running.unlink()
    if arguments.lds_conflicts:
        _print_conflicts(arch)
    status = _finish(arguments, chosen, backends, absent, result, started, Path(arguments.out))
    if journal:
        journal.finish()
    return status


def _journal(arguments: argparse.Namespace, backends: list[Backend]) -> Journal[FinishedCase] | None:
    """Return the journal of finished cases.

    None with a user's module, whose imports may have changed, and when counting LDS accesses.
    """
    if arguments.backend_module or arguments.lds_conflicts:
        return None
    from rocattn_profiling.base.journal import Journal
    from rocattn_profiling.measure.machine import this_machine
    from rocattn_profiling.measure.settings import code_hash
    from rocattn_profiling.verify.outcomes import FinishedCase

    settings = sorted(item for item in os.environ.items() if item[0].startswith(("ROC", "HIP")))
    run = (code_hash(), this_machine(), arguments.seed, [b.name for b in backends], _architectures(backends), settings)
    journal = Journal(Path(arguments.out) / "cases.jsonl", repr(run), FinishedCase)
    if journal.found:
        console.say(f"verify: resuming an earlier run, cases done: {len(journal.found)} ({journal.path})")
    return journal


def _keeping(
    arguments: argparse.Namespace, journal: Journal[FinishedCase] | None, result: Verification, total: int
) -> AbstractContextManager[None]:
    from rocattn_profiling.base.journal import entries, keeping
    from rocattn_profiling.verify.outcomes import YARDSTICK, FinishedCase

    def count() -> int:
        of_cases = [result.outcomes]
        if journal is not None:
            of_cases = [of.outcomes for of in entries(journal.path, FinishedCase)] if journal.path.exists() else []
        return sum(outcome.backend != YARDSTICK for outcomes in of_cases for outcome in outcomes)

    if journal is None:
        where = Path(arguments.out) / INTERRUPTED
        return keeping(where, total, count, "the same command starts over")
    return keeping(journal.path, total, count)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more")
    return int(text)


def _chosen(arguments: argparse.Namespace, backends: list[Backend]) -> list[VerifyCase]:
    from rocattn_profiling.verify.cases import FAMILIES, cases, find_case

    unknown = [name for name in arguments.family or () if name not in FAMILIES]
    if unknown:
        raise CommandError(f"no family is named {unknown[0]!r}: use one of {', '.join(FAMILIES)}")
    if arguments.case:
        case = find_case(arguments.case)
        if arguments.family and case.family not in arguments.family:
            raise CommandError(f"the case given with --case is in the family {case.family}: name that, or no --family")
        return [case]
    every = cases(arguments.level, backends)
    return [case for case in every if not arguments.family or case.family in arguments.family]


def _list(chosen: list[VerifyCase], *, as_json: bool) -> int:
    from rocattn_profiling.verify.cases import FAMILIES

    rows = [
        {"family": name, "cases": sum(case.family == name for case in chosen), "about": about}
        for name, about in FAMILIES.items()
    ]
    console.print_table(
        "families", ["family", "cases", "about"], [[str(value) for value in row.values()] for row in rows]
    )
    if as_json:
        console.emit_json(rows)
    return OK


def _finish(
    arguments: argparse.Namespace, chosen: list[VerifyCase], backends: list[Backend], absent: dict[str, str],
    result: Verification, started: float, out: Path,
) -> int:  # fmt: skip
    """Print the result, write it unless nothing ran, and return the exit status."""
    import msgspec

    from rocattn.backends.gpu import GpuBackend
    from rocattn.gpu.driver import stand_in_at_hand
    from rocattn_profiling.base.files import write_together
    from rocattn_profiling.verify import report as shown

    report = shown.build(
        result,
        cases=len(chosen),
        level="one case" if arguments.case else arguments.level,
        seed=arguments.seed,
        unavailable=absent,
        named=arguments.backend or (),
        stand_ins=[backend.name for backend in backends if backend.is_stand_in],
        architectures=_architectures(backends),
        again=lambda outcome: _again(outcome.case, outcome.backend, arguments),
        started=started,
        seconds=time.time() - started,
    )
    shown.print_tables(report)  # first: a full disk must not hide the result
    shown.print_failures(report, _SHOWN)
    if GpuBackend.name in absent and GpuBackend.name in report.unchecked and not stand_in_at_hand():
        console.say(f"without a GPU: {_STAND_IN} rocattn verify --backend {GpuBackend.name}")
    encoded = msgspec.json.format(msgspec.json.encode(shown.to_json(report)), indent=2).decode()
    path, page = out / "verify.json", out / "index.html"
    texts = {path: encoded + "\n", page: shown.to_html(report)} if report.ran else {}
    if arguments.junit and out.name != INTERRUPTED:
        texts[Path(arguments.junit)] = shown.to_xml(report)
    write_together(texts)
    counts = f"{report.ran} checked, {report.failed} wrong, {report.skipped} not supported"
    gaps = report.coverage.gaps("checked")
    where = f"written to {path} and {page.name}" if report.ran else "nothing was run, so no report was written"
    console.say("; ".join([f"verify: {counts}", *shown.devices(report), where, *([gaps] if gaps else [])]))
    if arguments.json:
        console.emit_json(shown.to_json(report))
    return report.coverage.status(failed=bool(report.failed))


def _architectures(backends: list[Backend]) -> dict[str, str]:
    """Return the architecture of each backend that has one; a GPU lost during the run has none."""
    from rocattn.backends.gpu import GpuBackend
    from rocattn.gpu.errors import GpuError

    archs = {}
    for backend in backends:
        with suppress(GpuError):
            if isinstance(backend, GpuBackend):
                archs[backend.name] = backend.runtime().arch
    return archs


def _print_conflicts(arch: str) -> None:
    """Print, for each kernel, the ratio of LDS access cycles to the cycles without bank conflicts."""
    from rocattn.gpu.driver import open_hip
    from rocattn.gpu.errors import GpuError

    try:
        counts = open_hip().lds_cycles()
    except GpuError:
        counts = []
    if not counts:
        console.say(f"verify: no LDS access was counted: that needs a case on the stand-in GPU, with {_STAND_IN}")
        return
    sums: dict[tuple[str, str], list[int]] = {}
    for kernel, direction, cycles, least in counts:
        both = sums.setdefault((kernel, direction), [0, 0])
        both[:] = both[0] + cycles, both[1] + least
    console.print_table(
        f"LDS cycles, {arch} (calculated from the lanes that are served together)",
        ["kernel", "access", "cycles", "without conflicts", "factor"],
        [[*where, str(cycles), str(least), f"{cycles / least:.3f}"] for where, (cycles, least) in sorted(sums.items())],
    )


def _again(case: str, backend: str, arguments: argparse.Namespace) -> str:
    """Return the command that repeats a case on a backend, with the relevant environment variables."""
    names = ["ROCATTN_NUM_THREADS", "ROCATTN_COMPILER"]
    if backend == "gpu":
        names += ["ROCM_PATH", "ROCATTN_HOSTGPU_ARCH", "ROCATTN_HOSTGPU_ORDER", "ROCATTN_USE_FLASH_ATTENTION"]
    shell: list[Any] = [_setting(name, os.environ[name]) for name in names if os.environ.get(name)]
    words = ["rocattn", "verify", "--case", case]
    if backend != "yardstick":
        words += ["--backend", backend]
    words += ["--seed", str(arguments.seed)] * bool(arguments.seed)
    words += ["--backend-module", arguments.backend_module] * bool(arguments.backend_module)
    return " ".join([*shell, shlex.join(words)])


@functools.cache
def _setting(name: str, value: str) -> str:
    """Return a variable's assignment in shell syntax; the stand-in's folder becomes the command that prints it."""
    from rocattn.errors import ToolchainError
    from rocattn.gpu.driver import stand_in_at_hand
    from rocattn.toolchain.hostgpu import hostgpu_library

    if name == "ROCM_PATH" and stand_in_at_hand():
        with suppress(ToolchainError):
            if Path(value) == hostgpu_library():
                return _STAND_IN
    return f"{name}={shlex.quote(value)}"
